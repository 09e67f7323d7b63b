//! The values of a pickle. A value that is used many times is stored once.

/// A function that calls its first argument.
const CALLER: (&str, &str) = ("torch._tensor", "_rebuild_from_type_v2");

/// A place in the pickle, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PickleSpan {
    pub(super) start: u32,
    pub(super) len: u32,
}

/// A value. Numbers are indices into the [`PickleTree`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub enum PickleValue {
    #[default]
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
    /// A storage, which the program that loads the pickle has to supply.
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
    /// Is set after the call.
    pub state: PickleValue,
    /// Items that are added after the call, as those of a list or a dict.
    pub items: Option<Box<ObjectItems>>,
}

#[derive(Debug, Clone, Default)]
pub struct ObjectItems {
    pub list: Vec<PickleValue>,
    pub dict: Vec<(PickleValue, PickleValue)>,
}

#[derive(Debug, Default)]
pub struct PickleTree<'i> {
    pub(super) bytes: &'i [u8],
    pub(super) tuples: Vec<(u32, u32)>,
    pub(super) in_tuples: Vec<PickleValue>,
    pub(super) lists: Vec<Vec<PickleValue>>,
    pub(super) dicts: Vec<Vec<(PickleValue, PickleValue)>>,
    pub(super) globals: Vec<(PickleSpan, PickleSpan)>,
    pub(super) objects: Vec<PickleObject>,
    pub(super) persistent: Vec<PickleValue>,
    /// The value of the whole pickle.
    pub root: PickleValue,
    /// Number of bytes of the pickle. Others may follow.
    pub len: usize,
    pub values: usize,
}

impl<'i> PickleTree<'i> {
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
        let [module, name] = [module, name].map(|span| str::from_utf8(self.bytes(span)).unwrap_or("?"));
        Some((module, name))
    }

    /// Every global that the pickle names, in the order of their first use.
    pub fn globals(&self) -> impl Iterator<Item = (&'i str, &'i str)> {
        (0..self.globals.len() as u32).filter_map(|at| self.global(PickleValue::Global(at)))
    }

    /// A global that `is_refused` refuses, by its module and its name, among all values that these values hold.
    pub fn find_global(
        &self,
        values: &[PickleValue],
        is_refused: impl Fn(&str, &str) -> bool,
    ) -> Option<(&'i str, &'i str)> {
        let mut seen = [self.tuples.len(), self.lists.len(), self.dicts.len(), self.objects.len(), self.globals.len()]
            .map(|len| vec![false; len]);
        let mut ahead = Vec::new();
        let mut add = |value: PickleValue, ahead: &mut Vec<PickleValue>| {
            let (kind, at) = match value {
                PickleValue::Tuple(at) => (0, at),
                PickleValue::List(at) => (1, at),
                PickleValue::Dict(at) => (2, at),
                PickleValue::Object(at) => (3, at),
                PickleValue::Global(at) => (4, at),
                _ => return,
            };
            if !std::mem::replace(&mut seen[kind][at as usize], true) {
                ahead.push(value);
            }
        };
        values.iter().for_each(|value| add(*value, &mut ahead));
        while let Some(value) = ahead.pop() {
            if let Some(global) = self.global(value).filter(|(module, name)| is_refused(module, name)) {
                return Some(global);
            }
            self.elements(value).iter().for_each(|one| add(*one, &mut ahead));
            let object = self.object(value);
            let items = object.and_then(|object| object.items.as_deref());
            let pairs = self.items(value).iter().chain(items.iter().flat_map(|items| &items.dict));
            pairs.flat_map(|(key, value)| [*key, *value]).for_each(|one| add(one, &mut ahead));
            items.iter().flat_map(|items| &items.list).for_each(|one| add(*one, &mut ahead));
            object
                .iter()
                .flat_map(|object| [object.class, object.args, object.state])
                .for_each(|one| add(one, &mut ahead));
        }
        None
    }

    /// The class that a persistent id names together with its source code, as torch before version 1.6 writes it.
    pub(super) fn class_with_source(&self, id: PickleValue) -> Option<PickleValue> {
        match self.elements(id) {
            [kind, class @ PickleValue::Global(_), ..] if self.is_text(*kind, "module") => Some(*class),
            [class @ PickleValue::Global(_), ..] => Some(*class),
            _ => None,
        }
    }

    /// The id of a value that the program that loads the pickle supplies, in a slice, unless the id is a tuple.
    pub fn plain_id(&self, value: PickleValue) -> Option<&[PickleValue]> {
        let PickleValue::Persistent(at) = value else { return None };
        let id = self.persistent.get(at as usize)?;
        matches!(id, PickleValue::Text(_) | PickleValue::Int(_)).then_some(std::slice::from_ref(id))
    }

    /// Whether the pickle makes objects.
    pub fn has_objects(&self) -> bool {
        !self.objects.is_empty()
    }

    /// Every storage that the pickle refers to, in the order of the pickle.
    pub fn all_persistent(&self) -> impl Iterator<Item = PickleValue> {
        (0..self.persistent.len() as u32).map(PickleValue::Persistent)
    }

    /// The functions and classes that Python would call.
    pub fn called(&self) -> impl Iterator<Item = PickleValue> {
        let calls = self.objects.iter().filter(|object| object.is_call);
        calls.flat_map(|object| {
            let is_caller = self.global(object.class) == Some(CALLER);
            let inner = self.elements(object.args).first().copied().filter(|_| is_caller);
            std::iter::once(object.class).chain(inner)
        })
    }

    pub fn object(&self, value: PickleValue) -> Option<&PickleObject> {
        let PickleValue::Object(at) = value else { return None };
        self.objects.get(at as usize)
    }

    pub fn persistent(&self, value: PickleValue) -> Option<PickleValue> {
        let PickleValue::Persistent(at) = value else { return None };
        self.persistent.get(at as usize).copied()
    }

    pub fn is_text(&self, value: PickleValue, text: &str) -> bool {
        matches!(value, PickleValue::Text(span) if self.bytes(span) == text.as_bytes())
    }

    /// A text, if it is one and is UTF-8.
    pub fn text(&self, value: PickleValue) -> Option<&'i str> {
        let PickleValue::Text(span) = value else { return None };
        str::from_utf8(self.bytes(span)).ok()
    }
}
