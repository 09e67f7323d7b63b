//! Reads a pickle as a tree of plain values. Nothing that it names is imported, called or created: a global is its two
//! names, and an object is the names of its class, its arguments and its state.
//!
//! Source: `Lib/pickletools.py` of CPython 3.13. The opcodes are those of protocols 2 to 5 that torch, Python and
//! Lightning write for checkpoints. Others are refused. There is no recursion, and a value that is used many times is
//! stored once. One opcode of a byte can make a value of many bytes, so the memory that is allocated is counted.

/// Memory that a pickle may take for each of its bytes, in bytes. A large state dict takes 6.
const HEAP_PER_BYTE: usize = 8;

/// Memory that every pickle may take in addition, in bytes.
const HEAP_BASE: usize = 64 << 20;

/// The overhead of an allocation, in bytes.
const ALLOCATION: usize = 16;

/// A place in the pickle, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PickleSpan {
    start: u32,
    len: u32,
}

/// A value. Numbers are indices into the [`PickleTree`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PickleValue {
    None,
    Bool(bool),
    Int(i64),
    /// A whole number that does not fit into 64 bits, in little-endian order.
    Big(PickleSpan),
    Float(f64),
    /// UTF-8, unless the pickle is broken or of Python 2.
    Text(PickleSpan),
    Bytes(PickleSpan),
    Tuple(u32),
    /// A list or a set.
    List(u32),
    Dict(u32),
    /// The target of a name in a module: a class or a function.
    Global(u32),
    Object(u32),
    /// What the program that loads the pickle has to supply: a storage.
    Persistent(u32),
}

/// An object that Python would create by a call.
#[derive(Debug, Clone)]
pub struct PickleObject {
    /// The class or the function, mostly a [`PickleValue::Global`].
    pub class: PickleValue,
    /// Whether it is called. Otherwise only its `__new__` is.
    pub is_call: bool,
    /// The arguments, mostly a [`PickleValue::Tuple`].
    pub args: PickleValue,
    /// What is set after the call.
    pub state: PickleValue,
    /// Items that are added after the call, as those of a list or a dict.
    pub items: Option<Box<ObjectItems>>,
}

/// Items that are added to an object.
#[derive(Debug, Clone, Default)]
pub struct ObjectItems {
    pub list: Vec<PickleValue>,
    pub dict: Vec<(PickleValue, PickleValue)>,
}

/// The values of a pickle.
#[derive(Debug)]
pub struct PickleTree<'i> {
    bytes: &'i [u8],
    tuples: Vec<(u32, u32)>,
    in_tuples: Vec<PickleValue>,
    lists: Vec<Vec<PickleValue>>,
    dicts: Vec<Vec<(PickleValue, PickleValue)>>,
    globals: Vec<(PickleSpan, PickleSpan)>,
    objects: Vec<PickleObject>,
    persistent: Vec<PickleValue>,
    /// The value of the whole pickle.
    pub root: PickleValue,
    /// Number of bytes of the pickle. Others may follow.
    pub len: usize,
    /// Number of values.
    pub values: usize,
}

/// Why a pickle cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("byte {at} of the pickle: {fault}")]
pub struct BrokenPickle {
    /// In bytes from the start of the pickle.
    pub at: usize,
    /// The fault.
    pub fault: PickleFault,
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PickleFault {
    #[error("it is cut short")]
    Cut,
    #[error("a length of {len} bytes, but {left} are left")]
    Length { len: i64, left: usize },
    #[error("protocol {protocol}; 2 to 5 are supported")]
    Protocol { protocol: u8 },
    #[error("it does not begin with a protocol number, as all pickles that torch writes do")]
    NoProtocol,
    #[error("opcode {name} can run code, and torch does not write it")]
    Code { name: &'static str },
    #[error("opcode {opcode:#04x} is not one that torch writes")]
    Opcode { opcode: u8 },
    #[error("the stack has too few values")]
    Stack,
    #[error("value {number} was not stored before it is used")]
    Memo { number: u32 },
    #[error("{what} has another type")]
    Type { what: &'static str },
    #[error("a key has no value")]
    NoValue,
    #[error("its values take more than {max} bytes of memory")]
    Heap { max: usize },
}

/// The memory that the interpreter may allocate.
struct PickleHeap {
    max: usize,
    left: usize,
}

impl PickleHeap {
    fn new(len: usize) -> Self {
        let max = len.saturating_mul(HEAP_PER_BYTE).saturating_add(HEAP_BASE);
        Self { max, left: max }
    }

    /// Counts bytes.
    fn take(&mut self, bytes: usize) -> Result<(), PickleFault> {
        self.left = self.left.checked_sub(bytes).ok_or(PickleFault::Heap { max: self.max })?;
        Ok(())
    }

    /// Makes room for more elements. Every vector of the interpreter grows in this way only.
    fn reserve<T>(&mut self, vec: &mut Vec<T>, more: usize) -> Result<(), PickleFault> {
        let (old, needed) = (vec.capacity(), vec.len().saturating_add(more));
        if needed <= old {
            return Ok(());
        }
        let new = needed.max(old.saturating_mul(2));
        let first = if old == 0 { ALLOCATION } else { 0 };
        self.take((new - old).saturating_mul(size_of::<T>()).saturating_add(first))?;
        vec.try_reserve_exact(new - vec.len()).map_err(|_| PickleFault::Heap { max: self.max })
    }

    /// Adds an element. Returns its index.
    fn push<T>(&mut self, vec: &mut Vec<T>, element: T) -> Result<u32, PickleFault> {
        self.reserve(vec, 1)?;
        vec.push(element);
        Ok(vec.len() as u32 - 1)
    }
}

/// The state of the interpreter.
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
}

/// Reads a pickle.
pub fn load_pickle(bytes: &[u8]) -> Result<PickleTree<'_>, BrokenPickle> {
    let tree = PickleTree {
        bytes,
        tuples: Vec::new(),
        in_tuples: Vec::new(),
        lists: Vec::new(),
        dicts: Vec::new(),
        globals: Vec::new(),
        objects: Vec::new(),
        persistent: Vec::new(),
        root: PickleValue::None,
        len: 0,
        values: 0,
    };
    let (heap, stack) = (PickleHeap::new(bytes.len()), Vec::new());
    let mut machine = PickleMachine { tree, heap, at: 0, stack, marks: Vec::new(), memo: Vec::new(), stored: 0 };
    loop {
        let at = machine.at;
        match machine.step() {
            Ok(true) => {}
            Ok(false) => {
                machine.tree.len = machine.at;
                return Ok(machine.tree);
            }
            Err(fault) => return Err(BrokenPickle { at, fault }),
        }
    }
}

impl<'i> PickleTree<'i> {
    /// The bytes at a place.
    pub fn bytes(&self, span: PickleSpan) -> &'i [u8] {
        self.bytes.get(span.start as usize..span.start as usize + span.len as usize).unwrap_or_default()
    }

    /// The elements of a tuple or a list; empty for other values.
    pub fn elements(&self, value: PickleValue) -> &[PickleValue] {
        match value {
            PickleValue::Tuple(at) => {
                let (start, len) = self.tuples[at as usize];
                &self.in_tuples[start as usize..(start + len) as usize]
            }
            PickleValue::List(at) => &self.lists[at as usize],
            _ => &[],
        }
    }

    /// The items of a dict; empty for other values.
    pub fn items(&self, value: PickleValue) -> &[(PickleValue, PickleValue)] {
        match value {
            PickleValue::Dict(at) => &self.dicts[at as usize],
            _ => &[],
        }
    }

    /// The module and the name of a global; `None` for other values.
    pub fn global(&self, value: PickleValue) -> Option<(&'i str, &'i str)> {
        let PickleValue::Global(at) = value else { return None };
        let (module, name) = self.globals[at as usize];
        let text = |span| str::from_utf8(self.bytes(span)).unwrap_or("?");
        Some((text(module), text(name)))
    }

    /// Every global that the pickle names, in the order of their first use.
    pub fn globals(&self) -> impl Iterator<Item = (&'i str, &'i str)> {
        (0..self.globals.len() as u32).filter_map(|at| self.global(PickleValue::Global(at)))
    }

    /// What Python would call.
    pub fn called(&self) -> impl Iterator<Item = PickleValue> {
        let calls = self.objects.iter().filter(|object| object.is_call);
        calls.flat_map(|object| {
            // This function calls its first argument.
            let inner = self.global(object.class) == Some(("torch._tensor", "_rebuild_from_type_v2"));
            let inner = self.elements(object.args).first().copied().filter(|_| inner);
            std::iter::once(object.class).chain(inner)
        })
    }

    /// An object; `None` for other values.
    pub fn object(&self, value: PickleValue) -> Option<&PickleObject> {
        let PickleValue::Object(at) = value else { return None };
        self.objects.get(at as usize)
    }

    /// The identifier of something that is not in the pickle; `None` for other values.
    pub fn persistent(&self, value: PickleValue) -> Option<PickleValue> {
        let PickleValue::Persistent(at) = value else { return None };
        self.persistent.get(at as usize).copied()
    }

    /// Whether a value is this text.
    pub fn is_text(&self, value: PickleValue, text: &str) -> bool {
        matches!(value, PickleValue::Text(span) if self.bytes(span) == text.as_bytes())
    }

    /// A text, if it is one and is UTF-8.
    pub fn text(&self, value: PickleValue) -> Option<&'i str> {
        let PickleValue::Text(span) = value else { return None };
        str::from_utf8(self.bytes(span)).ok()
    }
}

impl PickleMachine<'_> {
    /// Carries out the next opcode. Returns whether another follows.
    fn step(&mut self) -> Result<bool, PickleFault> {
        let is_first = self.at == 0;
        let opcode = self.u8()?;
        if is_first && opcode != 0x80 {
            return Err(PickleFault::NoProtocol);
        }
        match opcode {
            0x80 => match self.u8()? {
                2..=5 => {}
                protocol => return Err(PickleFault::Protocol { protocol }),
            },
            // FRAME. The length is a hint for buffers.
            0x95 => drop(self.number(8)?),
            b'.' => {
                self.tree.root = self.pop()?;
                return Ok(false);
            }
            b'(' => drop(self.heap.push(&mut self.marks, self.stack.len() as u32)?),
            b'0' => match self.marks.last() {
                Some(mark) if *mark as usize == self.stack.len() => drop(self.marks.pop()),
                _ => drop(self.pop()?),
            },
            b'1' => {
                let start = self.pop_mark()?;
                self.stack.truncate(start);
            }
            b'2' => {
                let top = self.top()?;
                self.push(top)?;
            }
            b'N' => self.push(PickleValue::None)?,
            0x88 => self.push(PickleValue::Bool(true))?,
            0x89 => self.push(PickleValue::Bool(false))?,
            b'K' => self.unsigned(1)?,
            b'M' => self.unsigned(2)?,
            b'J' => {
                let number = self.number(4)? as u32;
                self.push(PickleValue::Int(i64::from(number.cast_signed())))?;
            }
            b'G' => {
                // The only number in big-endian order.
                let bits = self.number(8)?.swap_bytes();
                self.push(PickleValue::Float(f64::from_bits(bits)))?;
            }
            0x8a => {
                let len = self.length(1)?;
                self.long(len)?;
            }
            0x8b => {
                let len = self.length(4)?;
                self.long(len)?;
            }
            b'U' => self.text(1)?,
            b'T' => self.text(4)?,
            0x8c => self.text(1)?,
            b'X' => self.text(4)?,
            0x8d => self.text(8)?,
            b'C' => self.binary(1)?,
            b'B' => self.binary(4)?,
            0x8e => self.binary(8)?,
            0x96 => self.binary(8)?,
            b')' => self.tuple(self.stack.len())?,
            0x85..=0x87 => self.tuple(self.last(usize::from(opcode - 0x84))?)?,
            b't' => {
                let start = self.pop_mark()?;
                self.tuple(start)?;
            }
            b']' | 0x8f => self.list(self.stack.len())?,
            b'l' | 0x91 => {
                let start = self.pop_mark()?;
                self.list(start)?;
            }
            b'}' => self.dict(self.stack.len())?,
            b'd' => {
                let start = self.pop_mark()?;
                self.dict(start)?;
            }
            b'a' => self.append(self.last(1)?)?,
            b'e' | 0x90 => {
                let start = self.pop_mark()?;
                self.append(start)?;
            }
            b's' => self.set(self.last(2)?)?,
            b'u' => {
                let start = self.pop_mark()?;
                self.set(start)?;
            }
            b'q' => {
                let number = self.number(1)? as u32;
                self.remember(number)?;
            }
            b'r' => {
                let number = self.number(4)? as u32;
                self.remember(number)?;
            }
            0x94 => self.remember(self.stored)?,
            b'h' => {
                let number = self.number(1)? as u32;
                self.recall(number)?;
            }
            b'j' => {
                let number = self.number(4)? as u32;
                self.recall(number)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => {
                let (PickleValue::Text(name), PickleValue::Text(module)) = (self.pop()?, self.pop()?) else {
                    return Err(PickleFault::Type { what: "the name of a global" });
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
                let at = self.heap.push(&mut self.tree.persistent, id)?;
                self.push(PickleValue::Persistent(at))?;
            }
            b'i' => return Err(PickleFault::Code { name: "INST" }),
            b'o' => return Err(PickleFault::Code { name: "OBJ" }),
            0x82..=0x84 => return Err(PickleFault::Code { name: "EXT" }),
            opcode => return Err(PickleFault::Opcode { opcode }),
        }
        Ok(true)
    }

    fn left(&self) -> usize {
        self.tree.bytes.len() - self.at
    }

    fn take(&mut self, len: usize) -> Result<PickleSpan, PickleFault> {
        if len > self.left() {
            return Err(PickleFault::Cut);
        }
        let span = PickleSpan { start: self.at as u32, len: len as u32 };
        self.at += len;
        Ok(span)
    }

    fn u8(&mut self) -> Result<u8, PickleFault> {
        Ok(self.number(1)? as u8)
    }

    /// A number of `len` bytes, at most 8, in little-endian order.
    fn number(&mut self, len: usize) -> Result<u64, PickleFault> {
        let span = self.take(len)?;
        Ok(self.tree.bytes(span).iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// A length that is stored in `width` bytes, of what is still there.
    fn length(&mut self, width: usize) -> Result<usize, PickleFault> {
        let number = self.number(width)?;
        // LONG4 has a signed length. In other opcodes so many bytes are never left.
        let len = if width == 4 { i64::from((number as u32).cast_signed()) } else { number.cast_signed() };
        let left = self.left();
        usize::try_from(len).ok().filter(|len| *len <= left).ok_or(PickleFault::Length { len, left })
    }

    fn push(&mut self, value: PickleValue) -> Result<(), PickleFault> {
        self.insert(self.stack.len(), value)
    }

    /// Adds a value to the stack, below those that it will hold.
    fn insert(&mut self, at: usize, value: PickleValue) -> Result<(), PickleFault> {
        self.tree.values += 1;
        self.heap.reserve(&mut self.stack, 1)?;
        self.stack.insert(at, value);
        Ok(())
    }

    fn pop(&mut self) -> Result<PickleValue, PickleFault> {
        self.last(1)?;
        self.stack.pop().ok_or(PickleFault::Stack)
    }

    fn top(&self) -> Result<PickleValue, PickleFault> {
        self.stack.last().copied().ok_or(PickleFault::Stack)
    }

    /// Where the values above the last mark begin in the stack.
    fn pop_mark(&mut self) -> Result<usize, PickleFault> {
        let mark = self.marks.pop().map(|mark| mark as usize);
        mark.filter(|mark| *mark <= self.stack.len()).ok_or(PickleFault::Stack)
    }

    /// Where the last `count` values begin in the stack. They must be above the last mark.
    fn last(&self, count: usize) -> Result<usize, PickleFault> {
        let start = self.stack.len().checked_sub(count).ok_or(PickleFault::Stack)?;
        let is_below = self.marks.last().is_some_and(|mark| *mark as usize > start);
        if is_below { Err(PickleFault::Stack) } else { Ok(start) }
    }

    fn unsigned(&mut self, len: usize) -> Result<(), PickleFault> {
        let number = self.number(len)?;
        self.push(PickleValue::Int(number.cast_signed()))
    }

    fn long(&mut self, len: usize) -> Result<(), PickleFault> {
        let span = self.take(len)?;
        let bytes = self.tree.bytes(span);
        if len > 8 {
            return self.push(PickleValue::Big(span));
        }
        let is_negative = bytes.last().is_some_and(|last| last & 0x80 != 0);
        let fill = if is_negative { u64::MAX } else { 0 };
        let number = bytes.iter().rev().fold(fill, |number, byte| number << 8 | u64::from(*byte));
        self.push(PickleValue::Int(number.cast_signed()))
    }

    fn text(&mut self, width: usize) -> Result<(), PickleFault> {
        let len = self.length(width)?;
        let span = self.take(len)?;
        self.push(PickleValue::Text(span))
    }

    fn binary(&mut self, width: usize) -> Result<(), PickleFault> {
        let len = self.length(width)?;
        let span = self.take(len)?;
        self.push(PickleValue::Bytes(span))
    }

    fn line(&mut self) -> Result<PickleSpan, PickleFault> {
        let rest = &self.tree.bytes[self.at..];
        let len = rest.iter().position(|byte| *byte == b'\n').ok_or(PickleFault::Cut)?;
        let span = self.take(len)?;
        self.at += 1;
        Ok(span)
    }

    /// Makes a tuple of the values from `start` on in the stack.
    fn tuple(&mut self, start: usize) -> Result<(), PickleFault> {
        let Self { tree, heap, stack, .. } = self;
        let len = stack.len() - start;
        heap.reserve(&mut tree.in_tuples, len)?;
        let at = heap.push(&mut tree.tuples, (tree.in_tuples.len() as u32, len as u32))?;
        tree.in_tuples.extend(stack.drain(start..));
        self.push(PickleValue::Tuple(at))
    }

    /// Makes a list or a set of the values from `start` on in the stack.
    fn list(&mut self, start: usize) -> Result<(), PickleFault> {
        let at = self.heap.push(&mut self.tree.lists, Vec::new())?;
        self.insert(start, PickleValue::List(at))?;
        self.append(start + 1)
    }

    /// Makes a dict of the values from `start` on in the stack.
    fn dict(&mut self, start: usize) -> Result<(), PickleFault> {
        let at = self.heap.push(&mut self.tree.dicts, Vec::new())?;
        self.insert(start, PickleValue::Dict(at))?;
        self.set(start + 1)
    }

    fn global(&mut self, module: PickleSpan, name: PickleSpan) -> Result<(), PickleFault> {
        let at = self.heap.push(&mut self.tree.globals, (module, name))?;
        self.push(PickleValue::Global(at))
    }

    fn object(&mut self, class: PickleValue, args: PickleValue, is_call: bool) -> Result<(), PickleFault> {
        let object = PickleObject { class, is_call, args, state: PickleValue::None, items: None };
        let at = self.heap.push(&mut self.tree.objects, object)?;
        self.push(PickleValue::Object(at))
    }

    /// Adds the values from `start` on in the stack to the list, the set or the object before them.
    fn append(&mut self, start: usize) -> Result<(), PickleFault> {
        let target = self.target(start)?;
        let Self { tree, heap, stack, .. } = self;
        let list = match target {
            PickleValue::List(at) => &mut tree.lists[at as usize],
            PickleValue::Object(at) => &mut added(&mut tree.objects[at as usize], heap)?.list,
            _ => return Err(PickleFault::Type { what: "what values are added to" }),
        };
        heap.reserve(list, stack.len() - start)?;
        list.extend(stack.drain(start..));
        Ok(())
    }

    /// Adds the items from `start` on in the stack to the dict or the object before them.
    fn set(&mut self, start: usize) -> Result<(), PickleFault> {
        let target = self.target(start)?;
        let Self { tree, heap, stack, .. } = self;
        let (pairs, rest) = stack[start..].as_chunks::<2>();
        if !rest.is_empty() {
            return Err(PickleFault::NoValue);
        }
        let dict = match target {
            PickleValue::Dict(at) => &mut tree.dicts[at as usize],
            PickleValue::Object(at) => &mut added(&mut tree.objects[at as usize], heap)?.dict,
            _ => return Err(PickleFault::Type { what: "what items are added to" }),
        };
        heap.reserve(dict, pairs.len())?;
        dict.extend(pairs.iter().map(|[key, value]| (*key, *value)));
        stack.truncate(start);
        Ok(())
    }

    /// Adds the named arguments of the object on top.
    fn set_named(&mut self, named: PickleValue) -> Result<(), PickleFault> {
        let (PickleValue::Dict(dict), PickleValue::Object(at)) = (named, self.top()?) else { return Ok(()) };
        let Self { tree, heap, .. } = self;
        let (from, to) = (&tree.dicts[dict as usize], &mut added(&mut tree.objects[at as usize], heap)?.dict);
        heap.reserve(to, from.len())?;
        to.extend_from_slice(from);
        Ok(())
    }

    /// The value before `start` in the stack.
    fn target(&self, start: usize) -> Result<PickleValue, PickleFault> {
        start.checked_sub(1).and_then(|at| self.stack.get(at)).copied().ok_or(PickleFault::Stack)
    }

    fn remember(&mut self, number: u32) -> Result<(), PickleFault> {
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

    fn recall(&mut self, number: u32) -> Result<(), PickleFault> {
        let value = self.memo.get(number as usize).copied().flatten().ok_or(PickleFault::Memo { number })?;
        self.push(value)
    }
}

/// The items that are added to an object.
fn added<'o>(object: &'o mut PickleObject, heap: &mut PickleHeap) -> Result<&'o mut ObjectItems, PickleFault> {
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
            (b"", "byte 0 of the pickle: it is cut short"),
            (b"\x80\x02", "byte 2 of the pickle: it is cut short"),
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
        assert!(fault(b"\x80\x02cos").contains("cut short"));
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
