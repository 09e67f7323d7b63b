//! The interpreter of pickles.
//!
//! Source: `Lib/pickletools.py` of CPython 3.13. The opcodes are those of protocols 2 to 5 that torch, Python and
//! Lightning write for checkpoints. Others are refused. There is no recursion. One opcode of a byte can make a value of
//! many bytes, so the memory that is allocated is counted.

use super::tree::{ObjectItems, PickleObject, PickleSpan, PickleTree, PickleValue};
use crate::format::input::number_at;

/// Memory that a pickle may take for each of its bytes, in bytes. A large state dict takes 6.
const HEAP_PER_BYTE: usize = 8;

/// As [`HEAP_PER_BYTE`], for a pickle of many small objects. Those of a distributed checkpoint take 8.
const RECORDS_HEAP_PER_BYTE: usize = 12;

/// Memory that every pickle may take in addition, in bytes.
const HEAP_BASE: usize = 64 << 20;

const ALLOCATION: usize = 16;

const CUT: &str = "it is truncated";

const TOO_FEW: &str = "the stack has too few values";

struct PickleHeap {
    max: usize,
    left: usize,
}

impl PickleHeap {
    fn new(len: usize, per_byte: usize) -> Self {
        let max = len.saturating_mul(per_byte).saturating_add(HEAP_BASE);
        Self { max, left: max }
    }

    fn take(&mut self, bytes: usize) -> Result<(), String> {
        self.left = self.left.checked_sub(bytes).ok_or_else(|| self.full())?;
        Ok(())
    }

    fn full(&self) -> String {
        format!("its values take more than {} bytes of memory", self.max)
    }

    /// Makes room for more elements. Every vector of the interpreter grows in this way only.
    fn reserve<T>(&mut self, vec: &mut Vec<T>, more: usize) -> Result<(), String> {
        let (old, needed) = (vec.capacity(), vec.len().saturating_add(more));
        if needed <= old {
            return Ok(());
        }
        let new = needed.max(old.saturating_mul(2));
        let first = if old == 0 { ALLOCATION } else { 0 };
        self.take((new - old).saturating_mul(size_of::<T>()).saturating_add(first))?;
        vec.try_reserve_exact(new - vec.len()).map_err(|_| self.full())
    }

    /// Adds an element. Returns its index.
    fn push<T>(&mut self, vec: &mut Vec<T>, element: T) -> Result<u32, String> {
        self.reserve(vec, 1)?;
        vec.push(element);
        Ok(vec.len() as u32 - 1)
    }
}

struct PickleMachine<'i> {
    tree: PickleTree<'i>,
    heap: PickleHeap,
    at: usize,
    stack: Vec<PickleValue>,
    /// The lengths of the stack at the marks.
    marks: Vec<u32>,
    /// The stored values by their numbers. Writers count from 0.
    memo: Vec<Option<PickleValue>>,
    /// Number of those that are stored.
    stored: u32,
    /// If the bytes end before the pickle does: the least number of bytes that it has.
    needs: Option<usize>,
}

/// Why the first bytes of a file are no whole pickle.
#[derive(Debug)]
pub struct PickleFault {
    pub message: String,
    /// If the bytes end before the pickle does: the least number of bytes that it has.
    pub needs: Option<usize>,
}

/// Reads a pickle. Fails with a message.
pub fn load_pickle(bytes: &[u8]) -> Result<PickleTree<'_>, String> {
    load_within(bytes, HEAP_PER_BYTE).map_err(|fault| fault.message)
}

/// As [`load_pickle`], where the number of bytes of the pickle is not known. Other bytes may follow it.
pub fn load_first(bytes: &[u8]) -> Result<PickleTree<'_>, PickleFault> {
    load_within(bytes, HEAP_PER_BYTE)
}

/// As [`load_pickle`], for a pickle of many small objects, which takes more memory.
pub fn load_records(bytes: &[u8]) -> Result<PickleTree<'_>, String> {
    load_within(bytes, RECORDS_HEAP_PER_BYTE).map_err(|fault| fault.message)
}

fn load_within(bytes: &[u8], heap_per_byte: usize) -> Result<PickleTree<'_>, PickleFault> {
    let tree = PickleTree { bytes, ..PickleTree::default() };
    let (heap, stack) = (PickleHeap::new(bytes.len(), heap_per_byte), Vec::new());
    let (marks, memo) = Default::default();
    let mut machine = PickleMachine { tree, heap, at: 0, stack, marks, memo, stored: 0, needs: None };
    loop {
        let at = machine.at;
        match machine.step() {
            Ok(true) => {}
            Ok(false) => {
                machine.tree.len = machine.at;
                return Ok(machine.tree);
            }
            Err(fault) => {
                let message = format!("byte {at} of the pickle: {fault}");
                return Err(PickleFault { message, needs: machine.needs });
            }
        }
    }
}

impl PickleMachine<'_> {
    /// Carries out the next opcode. Returns whether another follows.
    fn step(&mut self) -> Result<bool, String> {
        let is_first = self.at == 0;
        let opcode = self.number(1)? as u8;
        if is_first && opcode != 0x80 {
            return Err("it does not begin with a protocol number, as all pickles that torch writes do".to_owned());
        }
        // The start of the values that the opcode takes, in the stack.
        let start = match opcode {
            b't' | b'l' | b'd' | b'e' | b'u' | b'1' | 0x90 | 0x91 => self.pop_mark()?,
            b'a' | 0x85 => self.last(1)?,
            b's' | 0x86 => self.last(2)?,
            0x87 => self.last(3)?,
            _ => self.stack.len(),
        };
        // The width of the number or the length that follows the opcode, in bytes.
        let width = match opcode {
            0x80 | b'K' | b'q' | b'h' | 0x8a | b'U' | 0x8c | b'C' => 1,
            b'M' => 2,
            b'J' | b'r' | b'j' | 0x8b | b'T' | b'X' | b'B' => 4,
            0x95 | b'G' | 0x8d | 0x8e | 0x96 => 8,
            _ => 0,
        };
        let number = self.number(width)?;
        match opcode {
            0x80 if !(2..=5).contains(&number) => return Err(format!("protocol {number}; 2 to 5 are supported")),
            // FRAME has a length that is a hint for buffers.
            0x80 | 0x95 => {}
            b'.' => {
                self.tree.root = self.pop()?;
                return Ok(false);
            }
            b'(' => drop(self.heap.push(&mut self.marks, start as u32)?),
            b'0' => match self.marks.last() {
                Some(mark) if *mark as usize == start => drop(self.marks.pop()),
                _ => drop(self.pop()?),
            },
            b'1' => self.stack.truncate(start),
            b'2' => self.push(self.top()?)?,
            b'N' => self.push(PickleValue::None)?,
            0x88 | 0x89 => self.push(PickleValue::Bool(opcode == 0x88))?,
            b'K' | b'M' => self.push(PickleValue::Int(number.cast_signed()))?,
            b'J' => self.push(PickleValue::Int(i64::from((number as u32).cast_signed())))?,
            // The only number in big-endian order.
            b'G' => self.push(PickleValue::Float(f64::from_bits(number.swap_bytes())))?,
            0x8a | 0x8b => {
                let span = self.counted(width, number)?;
                self.push(self.long(span))?;
            }
            b'U' | b'T' | 0x8c | b'X' | 0x8d => {
                let span = self.counted(width, number)?;
                self.push(PickleValue::Text(span))?;
            }
            b'C' | b'B' | 0x8e | 0x96 => {
                let span = self.counted(width, number)?;
                self.push(PickleValue::Bytes(span))?;
            }
            b')' | b't' | 0x85..=0x87 => self.tuple(start)?,
            b']' | b'l' | 0x8f | 0x91 => self.list(start)?,
            b'}' | b'd' => self.dict(start)?,
            b'a' | b'e' | 0x90 => self.append(start)?,
            b's' | b'u' => self.set(start)?,
            b'q' | b'r' => self.remember(number as u32)?,
            0x94 => self.remember(self.stored)?,
            b'h' | b'j' => self.recall(number as u32)?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => {
                let (PickleValue::Text(name), PickleValue::Text(module)) = (self.pop()?, self.pop()?) else {
                    return Err("the name of a global has another type".to_owned());
                };
                self.global(module, name)?;
            }
            // REDUCE, NEWOBJ: a class or a function, and arguments.
            b'R' | 0x81 => {
                let (args, class) = (self.pop()?, self.pop()?);
                self.object(class, args, opcode == b'R')?;
            }
            // NEWOBJ_EX: with named arguments too.
            0x92 => {
                let (named, args, class) = (self.pop()?, self.pop()?, self.pop()?);
                self.object(class, args, false)?;
                self.set_named(named)?;
            }
            b'b' => {
                let state = self.pop()?;
                if let PickleValue::Object(at) = self.top()? {
                    self.tree.objects[at as usize].state = state;
                }
            }
            b'Q' => {
                let id = self.pop()?;
                match self.tree.class_with_source(id) {
                    Some(class) => self.push(class)?,
                    None => {
                        let at = self.heap.push(&mut self.tree.persistent, id)?;
                        self.push(PickleValue::Persistent(at))?;
                    }
                }
            }
            b'i' | b'o' | 0x82..=0x84 => {
                let name = match opcode {
                    b'i' => "INST",
                    b'o' => "OBJ",
                    _ => "EXT",
                };
                return Err(format!("opcode {name} can run code, and torch does not write it"));
            }
            opcode => return Err(format!("opcode {opcode:#04x} is not one that torch writes")),
        }
        Ok(true)
    }

    fn take(&mut self, len: usize) -> Result<PickleSpan, String> {
        if len > self.tree.bytes.len() - self.at {
            self.needs = Some(self.at.saturating_add(len));
            return Err(CUT.to_owned());
        }
        let span = PickleSpan { start: self.at as u32, len: len as u32 };
        self.at += len;
        Ok(span)
    }

    /// A number of `len` bytes, at most 8, in little-endian order.
    fn number(&mut self, len: usize) -> Result<u64, String> {
        let span = self.take(len)?;
        Ok(number_at(self.tree.bytes(span), 0, len))
    }

    /// The bytes after their length, which is stored in `width` bytes.
    fn counted(&mut self, width: usize, len: u64) -> Result<PickleSpan, String> {
        // LONG4 has a signed length. In other opcodes so many bytes are never left.
        let len = if width == 4 { i64::from((len as u32).cast_signed()) } else { len.cast_signed() };
        let left = self.tree.bytes.len() - self.at;
        match usize::try_from(len) {
            Ok(len) if len <= left => self.take(len),
            fits => {
                self.needs = fits.ok().map(|len| self.at.saturating_add(len));
                Err(format!("a length of {len} bytes, but {left} are left"))
            }
        }
    }

    /// A whole number in two's complement.
    fn long(&self, span: PickleSpan) -> PickleValue {
        let bytes = self.tree.bytes(span);
        if bytes.len() > 8 {
            return PickleValue::Big(span);
        }
        let is_negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let fill = if is_negative { u64::MAX } else { 0 };
        let number = bytes.iter().rev().fold(fill, |number, byte| number << 8 | u64::from(*byte));
        PickleValue::Int(number.cast_signed())
    }

    fn push(&mut self, value: PickleValue) -> Result<(), String> {
        self.insert(self.stack.len(), value)
    }

    /// Adds a value to the stack, below those that it will hold.
    fn insert(&mut self, at: usize, value: PickleValue) -> Result<(), String> {
        self.tree.values += 1;
        self.heap.reserve(&mut self.stack, 1)?;
        self.stack.insert(at, value);
        Ok(())
    }

    fn pop(&mut self) -> Result<PickleValue, String> {
        self.last(1)?;
        self.stack.pop().ok_or_else(|| TOO_FEW.to_owned())
    }

    fn top(&self) -> Result<PickleValue, String> {
        self.stack.last().copied().ok_or_else(|| TOO_FEW.to_owned())
    }

    /// The start of the values above the last mark, in the stack.
    fn pop_mark(&mut self) -> Result<usize, String> {
        let mark = self.marks.pop().map(|mark| mark as usize);
        mark.filter(|mark| *mark <= self.stack.len()).ok_or_else(|| TOO_FEW.to_owned())
    }

    /// The start of the last `count` values in the stack. They must be above the last mark.
    fn last(&self, count: usize) -> Result<usize, String> {
        let start = self.stack.len().checked_sub(count).ok_or_else(|| TOO_FEW.to_owned())?;
        let is_below = self.marks.last().is_some_and(|mark| *mark as usize > start);
        if is_below { Err(TOO_FEW.to_owned()) } else { Ok(start) }
    }

    fn line(&mut self) -> Result<PickleSpan, String> {
        let rest = &self.tree.bytes[self.at..];
        let Some(len) = rest.iter().position(|byte| *byte == b'\n') else {
            self.needs = Some(self.tree.bytes.len() + 1);
            return Err(CUT.to_owned());
        };
        let span = self.take(len)?;
        self.at += 1;
        Ok(span)
    }

    /// Makes a tuple of the values from `start` on in the stack.
    fn tuple(&mut self, start: usize) -> Result<(), String> {
        let Self { tree, heap, stack, .. } = self;
        let len = stack.len() - start;
        heap.reserve(&mut tree.in_tuples, len)?;
        let at = heap.push(&mut tree.tuples, (tree.in_tuples.len() as u32, len as u32))?;
        tree.in_tuples.extend(stack.drain(start..));
        self.push(PickleValue::Tuple(at))
    }

    /// Makes a list or a set of the values from `start` on in the stack.
    fn list(&mut self, start: usize) -> Result<(), String> {
        let at = self.heap.push(&mut self.tree.lists, Vec::new())?;
        self.insert(start, PickleValue::List(at))?;
        self.append(start + 1)
    }

    /// Makes a dict of the values from `start` on in the stack.
    fn dict(&mut self, start: usize) -> Result<(), String> {
        let at = self.heap.push(&mut self.tree.dicts, Vec::new())?;
        self.insert(start, PickleValue::Dict(at))?;
        self.set(start + 1)
    }

    fn global(&mut self, module: PickleSpan, name: PickleSpan) -> Result<(), String> {
        let at = self.heap.push(&mut self.tree.globals, (module, name))?;
        self.push(PickleValue::Global(at))
    }

    fn object(&mut self, class: PickleValue, args: PickleValue, is_call: bool) -> Result<(), String> {
        let object = PickleObject { class, is_call, args, state: PickleValue::None, items: None };
        let at = self.heap.push(&mut self.tree.objects, object)?;
        self.push(PickleValue::Object(at))
    }

    /// Adds the values from `start` on in the stack to the list, the set or the object before them.
    fn append(&mut self, start: usize) -> Result<(), String> {
        let target = self.target(start)?;
        let Self { tree, heap, stack, .. } = self;
        let list = match target {
            PickleValue::List(at) => &mut tree.lists[at as usize],
            PickleValue::Object(at) => &mut added(&mut tree.objects[at as usize], heap)?.list,
            _ => return Err("what values are added to has another type".to_owned()),
        };
        heap.reserve(list, stack.len() - start)?;
        list.extend(stack.drain(start..));
        Ok(())
    }

    /// Adds the items from `start` on in the stack to the dict or the object before them.
    fn set(&mut self, start: usize) -> Result<(), String> {
        let target = self.target(start)?;
        let Self { tree, heap, stack, .. } = self;
        let (pairs, rest) = stack[start..].as_chunks::<2>();
        if !rest.is_empty() {
            return Err("a key has no value".to_owned());
        }
        let dict = match target {
            PickleValue::Dict(at) => &mut tree.dicts[at as usize],
            PickleValue::Object(at) => &mut added(&mut tree.objects[at as usize], heap)?.dict,
            _ => return Err("what items are added to has another type".to_owned()),
        };
        heap.reserve(dict, pairs.len())?;
        dict.extend(pairs.iter().map(|[key, value]| (*key, *value)));
        stack.truncate(start);
        Ok(())
    }

    /// Adds the named arguments of the object on top.
    fn set_named(&mut self, named: PickleValue) -> Result<(), String> {
        let (PickleValue::Dict(dict), PickleValue::Object(at)) = (named, self.top()?) else { return Ok(()) };
        let Self { tree, heap, .. } = self;
        let (from, to) = (&tree.dicts[dict as usize], &mut added(&mut tree.objects[at as usize], heap)?.dict);
        heap.reserve(to, from.len())?;
        to.extend_from_slice(from);
        Ok(())
    }

    fn target(&self, start: usize) -> Result<PickleValue, String> {
        start.checked_sub(1).and_then(|at| self.stack.get(at)).copied().ok_or_else(|| TOO_FEW.to_owned())
    }

    fn remember(&mut self, number: u32) -> Result<(), String> {
        let (top, at) = (self.top()?, number as usize);
        let len = self.memo.len();
        if at >= len {
            self.heap.reserve(&mut self.memo, at + 1 - len)?;
            self.memo.resize(at + 1, None);
        }
        if self.memo[at].replace(top).is_none() {
            self.stored += 1;
        }
        Ok(())
    }

    fn recall(&mut self, number: u32) -> Result<(), String> {
        let value = self.memo.get(number as usize).copied().flatten();
        let value = value.ok_or_else(|| format!("value {number} was not stored before it is used"))?;
        self.push(value)
    }
}

fn added<'o>(object: &'o mut PickleObject, heap: &mut PickleHeap) -> Result<&'o mut ObjectItems, String> {
    if object.items.is_none() {
        heap.take(size_of::<ObjectItems>() + ALLOCATION)?;
    }
    Ok(object.items.get_or_insert_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(bytes: &[u8]) -> String {
        load_pickle(bytes).unwrap_err().to_string()
    }

    #[test]
    fn values_of_all_protocols_are_read() {
        // pickle.dumps({'a': [1, -2, 2.5, None, True], 'b': (3, 4), 'c': b'x'}, protocol) of Python 3.13.
        let two = b"\x80\x02}q\0(X\x01\0\0\0aq\x01]q\x02(K\x01J\xfe\xff\xff\xffG@\x04\0\0\0\0\0\0N\x88eX\x01\0\0\0bq\x03K\x03K\x04\x86q\x04u.";
        let five = b"\x80\x05\x95\x25\0\0\0\0\0\0\0}\x94(\x8c\x01a\x94]\x94(K\x01J\xfe\xff\xff\xffG@\x04\0\0\0\0\0\0N\x88e\x8c\x01b\x94K\x03K\x04\x86\x94u.";
        for bytes in [&two[..], five] {
            let tree = load_pickle(bytes).unwrap();
            let [(a, list), (b, pair)] = tree.items(tree.root) else { panic!("{tree:?}") };
            assert_eq!((tree.text(*a), tree.text(*b)), (Some("a"), Some("b")));
            assert_eq!(tree.elements(*pair), [PickleValue::Int(3), PickleValue::Int(4)]);
            let expected = [
                PickleValue::Int(1),
                PickleValue::Int(-2),
                PickleValue::Float(2.5),
                PickleValue::None,
                PickleValue::Bool(true),
            ];
            assert_eq!((tree.elements(*list), tree.len), (&expected[..], bytes.len()));
        }
        let long = |bytes: &[u8]| {
            load_pickle(&[&b"\x80\x02\x8a"[..], &[bytes.len() as u8], bytes, &b"."[..]].concat()).unwrap().root
        };
        assert_eq!(
            (long(&[]), long(&[0xff]), long(&[0, 1])),
            (PickleValue::Int(0), PickleValue::Int(-1), PickleValue::Int(256))
        );
        assert_eq!(long(&i64::MIN.to_le_bytes()), PickleValue::Int(i64::MIN));
        assert!(matches!(long(&[1; 255]), PickleValue::Big(_)));
    }

    #[test]
    fn first_pickle_ends_before_other_bytes_or_says_how_many_it_needs() {
        let whole = b"\x80\x02X\x03\0\0\0abc.";
        assert_eq!(load_first(&[&whole[..], b"more"].concat()).unwrap().len, whole.len());
        let needs = |bytes: &[u8]| load_first(bytes).unwrap_err().needs;
        assert_eq!(
            (needs(b""), needs(&whole[..5]), needs(&whole[..8]), needs(&whole[..10])),
            (Some(1), Some(7), Some(10), Some(11))
        );
        assert_eq!((needs(b"\x80\x02cos"), needs(b"\x80\x02X\xff\xff\xff\xff"), needs(b"}")), (Some(6), None, None));
    }

    #[test]
    fn classes_with_their_source_are_classes() {
        // As torch before 1.6, and as torch before 0.1.10.
        for bytes in [
            &b"\x80\x02(X\x06\0\0\0modulecm\nNet\nX\0\0\0\0X\0\0\0\0tQ)\x81."[..],
            b"\x80\x02cm\nNet\nX\0\0\0\0X\0\0\0\0\x87Q)\x81.",
        ] {
            let tree = load_pickle(bytes).unwrap();
            let object = tree.object(tree.root).unwrap();
            assert_eq!((tree.global(object.class), tree.all_persistent().count()), (Some(("m", "Net")), 0));
        }
        // What is no class is not taken for one.
        let tree = load_pickle(b"\x80\x02(X\x06\0\0\0moduleK\x01X\0\0\0\0X\0\0\0\0tQ.").unwrap();
        assert_eq!(tree.root, PickleValue::Persistent(0));
    }

    #[test]
    fn nothing_is_called() {
        let tree = load_pickle(b"\x80\x02cos\nsystem\nX\x02\0\0\0id\x85R.").unwrap();
        let object = tree.object(tree.root).unwrap();
        assert_eq!(tree.global(object.class), Some(("os", "system")));
        assert_eq!(tree.text(tree.elements(object.args)[0]), Some("id"));
        assert_eq!(tree.globals().collect::<Vec<_>>(), [("os", "system")]);
        // The names of a global can be values.
        let tree = load_pickle(b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x02id\x85R.").unwrap();
        assert_eq!(tree.globals().collect::<Vec<_>>(), [("os", "system")]);
    }

    #[test]
    fn hostile_pickles_are_refused() {
        let cases: [(&[u8], &str); 22] = [
            (b"", "byte 0 of the pickle: it is truncated"),
            (b"\x80\x02", "byte 2 of the pickle: it is truncated"),
            (b"\x80\x02X\x05\0\0\0abc", "byte 2 of the pickle: a length of 5 bytes, but 3 are left"),
            (b"\x80\x02X\xff\xff\xff\xff", "a length of -1 bytes, but 0 are left"),
            (b"\x80\x02\x8b\xfb\xff\xff\xff.", "a length of -5 bytes"),
            (b"\x80\x04\x8e\0\0\0\0\0\0\0\x40.", "a length of 4611686018427387904 bytes"),
            (b"\x80\x04\x8d\xff\xff\xff\xff\xff\xff\xff\xff.", "a length of -1 bytes"),
            (b"\x80\x01.", "protocol 1; 2 to 5 are supported"),
            (b"\x80\x06.", "protocol 6"),
            (b"}.", "it does not begin with a protocol number"),
            (b"\x80\x02(cos\nsystem\no.", "opcode OBJ can run code"),
            (b"\x80\x02(ios\nsystem\n.", "opcode INST can run code"),
            (b"\x80\x02\x82\x01.", "opcode EXT can run code"),
            (b"\x80\x02P1\n.", "opcode 0x50 is not one that torch writes"),
            (b"\x80\x02.", "the stack has too few values"),
            (b"\x80\x02t.", "the stack has too few values"),
            (b"\x80\x02N(R.", "the stack has too few values"),
            (b"\x80\x02N(\x85.", "the stack has too few values"),
            (b"\x80\x02h\x05.", "value 5 was not stored before it is used"),
            (b"\x80\x02K\x01K\x02a.", "what values are added to has another type"),
            (b"\x80\x02}(K\x01u.", "byte 6 of the pickle: a key has no value"),
            (b"\x80\x04K\x01K\x02\x93.", "the name of a global has another type"),
        ];
        for (bytes, expected) in cases {
            let found = fault(bytes);
            assert!(found.contains(expected), "{found}\n{expected}");
        }
        assert!(fault(b"\x80\x02cos").contains("truncated"));
    }

    #[test]
    fn deep_and_shared_values_take_little_memory() {
        // A million nested tuples: no recursion, also when they are dropped.
        let deep = [&b"\x80\x02)"[..], &[0x85; 1_000_000], b"."].concat();
        assert_eq!(load_pickle(&deep).unwrap().values, 1_000_001);
        // Lists that hold the one before ten times: 10^10 paths, and few values.
        let mut bomb = b"\x80\x02]q\0".to_vec();
        for level in 0..10u8 {
            bomb.extend(b"](");
            bomb.extend([b'h', level].repeat(10));
            bomb.extend([b'e', b'q', level + 1]);
        }
        bomb.push(b'.');
        assert!(load_pickle(&bomb).unwrap().values < 200);
        // A list that holds itself.
        assert!(load_pickle(b"\x80\x02]q\0h\0a.").is_ok());
    }

    #[test]
    fn memory_is_bounded() {
        let len = 12 << 20;
        let max = HEAP_BASE + HEAP_PER_BYTE * len;
        // Each unit takes as much memory as possible for its length.
        let units: [(&[u8], &[u8]); 8] = [
            (b"", b"N"),
            (b"", b"}"),
            (b"", b"]0"),
            (b"", b"]Na"),
            (b"N", b"\x94"),
            (b"", b"]\x94("),
            (b"ca\nb\n\x94", b"h\0)RNNs0"),
            (b"ca\nb\n\x940}\x94(NNNNNNu0", b"h\0)h\x01\x920"),
        ];
        for (head, unit) in units {
            let mut bytes = [b"\x80\x04", head].concat();
            bytes.extend(unit.repeat((len - bytes.len()) / unit.len()));
            bytes.resize(len, b'N');
            let found = fault(&bytes);
            assert!(found.ends_with(&format!("its values take more than {max} bytes of memory")), "{unit:?}: {found}");
        }
        // A number of a stored value that no writer reaches.
        assert!(fault(b"\x80\x02Nr\xff\xff\xff\xff.").ends_with("bytes of memory"));
    }
}
