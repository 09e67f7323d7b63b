//! Finds the tensors in the tree of a pickle, and everything else that can be metadata.
//!
//! The name of a tensor is the path to it: keys and indices, joined by dots. If every tensor is inside the entry
//! `state_dict` of the root, names begin there, as in files that the converter of safetensors writes. An object of an
//! unknown class is metadata, its class in angle brackets; what it holds is found like the items of a dict. Modules
//! have the names of their state dict. A key with a dot and a path of several keys can be the same name: the second
//! tensor with a name, and the second value of metadata, have a number behind it.

use super::archive::TorchArchive;
use super::dtype::{self, F4_PAIR, TorchDtype};
use super::error::{PytorchError, PytorchFault};
use super::ndarray::{self, float};
use super::pickle::{PickleObject, PickleTree, PickleValue};
use super::{RANK_MAX, STATE_DICT, UNNAMED};
use crate::format::header::{HeaderBuilder, NewTensor, ParseMode};
use crate::format::metadata::{MetadataValue, ScalarType};
use crate::text::{brackets, write_json_string};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::ops::Range;

/// Maximum number of values that are visited, by all paths.
const VISITS_MAX: usize = 1 << 28;

/// Maximum depth of nested values.
const DEPTH_MAX: usize = 200;

/// Maximum number of bytes of all names and metadata.
const TEXT_MAX: usize = 128 << 20;

/// Depth up to which functions are looked through for the tensor that they wrap.
const WRAPPERS_MAX: usize = 8;

/// What a tensor or an entry of the metadata takes without its text, in bytes.
const ENTRY: usize = 128;

/// Maximum number of bytes that are shown of a text in a key that is a tuple.
const KEY_PART_MAX: usize = 1024;

/// A tensor, as the pickle describes it.
struct PickledTensor {
    dtype: TorchDtype,
    shape: Vec<u64>,
    strides: Vec<u64>,
    range: Range<u64>,
}

/// The kind of a value.
enum ValueKind<'t> {
    /// A function that builds a tensor, and its arguments.
    Tensor {
        function: &'t str,
        args: &'t [PickleValue],
    },
    Dict(PickledMapping<'t>),
    /// A sequence.
    List(&'t [PickleValue]),
    /// An object of another class.
    Object(&'t PickleObject),
    /// A value of one line.
    Scalar(ScalarType, String),
}

/// A mapping: dict, or the arguments of a class of dicts and the items that are added. Nothing is copied, because many
/// objects can share their arguments.
#[derive(Clone, Copy)]
struct PickledMapping<'t> {
    tree: &'t PickleTree<'t>,
    /// Dicts and lists of pairs.
    args: &'t [PickleValue],
    added: &'t [(PickleValue, PickleValue)],
}

impl<'t> PickledMapping<'t> {
    fn items(self) -> impl Iterator<Item = (PickleValue, PickleValue)> + 't {
        let Self { tree, args, added } = self;
        // Python 2 writes pairs.
        let pairs = args.iter().flat_map(move |arg| tree.elements(*arg)).filter_map(move |pair| {
            let [key, value] = tree.elements(*pair) else { return None };
            Some((*key, *value))
        });
        args.iter().flat_map(move |arg| tree.items(*arg)).copied().chain(pairs).chain(added.iter().copied())
    }

    /// Number of values that are searched to find one.
    fn work(self) -> usize {
        let given = self.args.iter().map(|arg| self.tree.elements(*arg).len() + self.tree.items(*arg).len());
        given.sum::<usize>() + self.added.len()
    }
}

/// The state of a walk through a tree.
pub struct PickleLowering<'a> {
    tree: &'a PickleTree<'a>,
    archive: &'a TorchArchive<'a>,
    builder: &'a mut HeaderBuilder,
    path: String,
    /// The containers on the path, to find those that contain themselves.
    open: HashSet<(&'static str, u32)>,
    /// A hash of the keys on the path, and that of each tensor and of each value of metadata.
    keys: u64,
    tensor_keys: Vec<u64>,
    metadata_keys: Vec<u64>,
    /// How many values may still be visited, and how many bytes of text may still be added.
    visits: usize,
    text: usize,
    /// Whether values that are not tensors are left out.
    only_tensors: bool,
}

/// Adds everything in the tree to the header.
pub fn lower(tree: &PickleTree, archive: &TorchArchive, builder: &mut HeaderBuilder) -> Result<(), PytorchError> {
    // A value can be reached by several paths, but a program writes few such values.
    let visits = (8 * tree.values + 1000).min(VISITS_MAX);
    let mut lowering = PickleLowering {
        tree,
        archive,
        builder,
        path: String::new(),
        open: HashSet::new(),
        keys: 0,
        tensor_keys: Vec::new(),
        metadata_keys: Vec::new(),
        visits,
        text: TEXT_MAX,
        only_tensors: false,
    };
    lowering.root(tree.root)?;
    let PickleLowering { tensor_keys, metadata_keys, .. } = lowering;
    builder.number_repeated(&tensor_keys, &metadata_keys);
    Ok(())
}

impl<'a> PickleLowering<'a> {
    fn root(&mut self, root: PickleValue) -> Result<(), PytorchError> {
        let Some(inner) = self.state_dict(root)? else { return self.walk(root, 0) };
        self.part(STATE_DICT, |lowering| lowering.walk(inner, 1))?;
        let ValueKind::Dict(items) = self.kind(root) else { return Ok(()) };
        let tree = self.tree;
        self.items(items.items().filter(|(key, _)| !tree.is_text(*key, STATE_DICT)), 0)
    }

    /// The value of the key `state_dict` of the root, if it holds all tensors.
    fn state_dict(&mut self, root: PickleValue) -> Result<Option<PickleValue>, PytorchError> {
        let ValueKind::Dict(items) = self.kind(root) else { return Ok(None) };
        let mut inner = None;
        for (key, value) in items.items() {
            if self.tree.is_text(key, STATE_DICT) {
                inner = Some(value);
            } else if self.holds_tensor(value, 1)? {
                return Ok(None);
            }
        }
        Ok(inner.filter(|inner| matches!(self.kind(*inner), ValueKind::Dict(_))))
    }

    fn holds_tensor(&mut self, value: PickleValue, depth: usize) -> Result<bool, PytorchError> {
        self.visit(depth)?;
        let Some(container) = container(value) else { return Ok(false) };
        if !self.open.insert(container) {
            return Ok(false);
        }
        let holds = self.contents_hold_tensor(value, depth)?;
        self.open.remove(&container);
        Ok(holds)
    }

    fn contents_hold_tensor(&mut self, value: PickleValue, depth: usize) -> Result<bool, PytorchError> {
        let tree = self.tree;
        let mut any = |values: &mut dyn Iterator<Item = PickleValue>| -> Result<bool, PytorchError> {
            for value in values {
                if self.holds_tensor(value, depth + 1)? {
                    return Ok(true);
                }
            }
            Ok(false)
        };
        match value_kind(tree, value) {
            ValueKind::Tensor { .. } => Ok(true),
            ValueKind::Scalar(_, text) => self.count(text.len()).map(|()| false),
            ValueKind::Dict(items) => any(&mut items.items().map(|(_, value)| value)),
            ValueKind::List(values) => any(&mut values.iter().copied()),
            ValueKind::Object(object) => {
                let items = object.items.iter();
                let items = items
                    .flat_map(|items| items.list.iter().copied().chain(items.dict.iter().map(|(_, value)| *value)));
                any(&mut [object.args, object.state].into_iter().chain(items))
            }
        }
    }

    fn kind(&self, value: PickleValue) -> ValueKind<'a> {
        value_kind(self.tree, value)
    }

    /// Counts a visit of a value.
    fn visit(&mut self, depth: usize) -> Result<(), PytorchError> {
        let limit = |what| PytorchError::Limit { what, path: self.path.clone() };
        if depth > DEPTH_MAX {
            return Err(limit("values are nested too deeply"));
        }
        self.spend(1)
    }

    /// Counts values that are looked at.
    fn spend(&mut self, count: usize) -> Result<(), PytorchError> {
        let what = "too many paths lead to the same values";
        self.visits =
            self.visits.checked_sub(count).ok_or_else(|| PytorchError::Limit { what, path: self.path.clone() })?;
        Ok(())
    }

    /// Counts bytes of text.
    fn count(&mut self, len: usize) -> Result<(), PytorchError> {
        let what = "more than 128 MiB of names and metadata";
        self.text = self.text.checked_sub(len).ok_or_else(|| PytorchError::Limit { what, path: self.path.clone() })?;
        Ok(())
    }

    /// Adds a value, at the current path.
    fn walk(&mut self, value: PickleValue, depth: usize) -> Result<(), PytorchError> {
        self.visit(depth)?;
        let Some(container) = container(value) else { return self.contents(value, depth) };
        if !self.open.insert(container) {
            return self.metadata(MetadataValue::string(format!("<{} that contains itself>", container.0)));
        }
        self.contents(value, depth)?;
        self.open.remove(&container);
        Ok(())
    }

    fn contents(&mut self, value: PickleValue, depth: usize) -> Result<(), PytorchError> {
        match self.kind(value) {
            ValueKind::Tensor { function, args } => self.tensor(function, args, depth),
            ValueKind::Dict(items) => self.items(items.items(), depth),
            ValueKind::List(values) => self.list(values, depth),
            ValueKind::Object(object) => self.object(object, depth),
            ValueKind::Scalar(scalar, text) => self.metadata(MetadataValue::scalar(scalar, text)),
        }
    }

    fn items(
        &mut self,
        items: impl Iterator<Item = (PickleValue, PickleValue)>,
        depth: usize,
    ) -> Result<(), PytorchError> {
        for (key, value) in items {
            let text = self.key(key);
            self.at_key(&text, matches!(key, PickleValue::Text(_)), |lowering| lowering.walk(value, depth + 1))?;
        }
        Ok(())
    }

    fn list(&mut self, values: &[PickleValue], depth: usize) -> Result<(), PytorchError> {
        if let Some(array) = self.array(values)? {
            return self.metadata(array);
        }
        for (at, value) in values.iter().enumerate() {
            self.at(&at.to_string(), |lowering| lowering.walk(*value, depth + 1))?;
        }
        Ok(())
    }

    /// Goes one step along the path.
    fn at(&mut self, key: &str, go: impl FnOnce(&mut Self) -> Result<(), PytorchError>) -> Result<(), PytorchError> {
        self.at_key(key, true, go)
    }

    /// As [`PickleLowering::at`], for a key that may be a number or another value.
    fn at_key(
        &mut self,
        key: &str,
        is_text: bool,
        go: impl FnOnce(&mut Self) -> Result<(), PytorchError>,
    ) -> Result<(), PytorchError> {
        let len = self.path.len();
        self.count(len + key.len())?;
        if len > 0 {
            self.path.push('.');
        }
        self.path.push_str(key);
        // With the name, the lengths give the keys.
        self.part((key.len(), is_text), go)?;
        self.path.truncate(len);
        Ok(())
    }

    /// Goes to a part of a value that has the same path as another part.
    fn part(
        &mut self,
        part: impl Hash,
        go: impl FnOnce(&mut Self) -> Result<(), PytorchError>,
    ) -> Result<(), PytorchError> {
        let keys = self.keys;
        let mut hasher = DefaultHasher::new();
        (keys, part).hash(&mut hasher);
        self.keys = hasher.finish();
        go(self)?;
        self.keys = keys;
        Ok(())
    }

    /// The text of a key.
    fn key(&self, key: PickleValue) -> String {
        match self.kind(key) {
            ValueKind::Scalar(_, text) => text,
            ValueKind::List(values) => {
                let values: Vec<String> = values.iter().take(64).map(|value| self.inner_key(*value)).collect();
                format!("({})", values.join(", "))
            }
            ValueKind::Tensor { .. } | ValueKind::Dict(_) | ValueKind::Object(_) => "<object>".to_owned(),
        }
    }

    /// The text of an element of a key that is a tuple.
    fn inner_key(&self, value: PickleValue) -> String {
        if let PickleValue::Text(span) | PickleValue::Bytes(span) = value {
            let bytes = self.tree.bytes(span);
            return format!("'{}'", String::from_utf8_lossy(&bytes[..bytes.len().min(KEY_PART_MAX)]));
        }
        match self.kind(value) {
            ValueKind::Scalar(ScalarType::String, text) => format!("'{text}'"),
            ValueKind::Scalar(_, text) => text,
            _ => "<object>".to_owned(),
        }
    }

    fn metadata(&mut self, value: MetadataValue) -> Result<(), PytorchError> {
        self.count(self.path.len() + value.text().len() + ENTRY)?;
        if self.only_tensors {
            return Ok(());
        }
        let key = if self.path.is_empty() { UNNAMED.to_owned() } else { self.path.clone() };
        self.metadata_keys.push(self.keys);
        self.builder.metadata(key, value);
        Ok(())
    }

    /// A list of scalars of one type as an array. `None` for other lists.
    fn array(&mut self, values: &[PickleValue]) -> Result<Option<MetadataValue>, PytorchError> {
        let mut found: Option<ScalarType> = None;
        let is_scalar =
            |value: &PickleValue| !matches!(value, PickleValue::Tuple(_) | PickleValue::List(_) | PickleValue::Dict(_));
        if !values.iter().all(is_scalar) {
            return Ok(None);
        }
        let mut lines = Vec::new();
        for value in values {
            let ValueKind::Scalar(scalar, text) = self.kind(*value) else { return Ok(None) };
            found = Some(match found {
                None => scalar,
                Some(other) if other == scalar => scalar,
                Some(ScalarType::I64 | ScalarType::F64) if matches!(scalar, ScalarType::I64 | ScalarType::F64) => {
                    ScalarType::F64
                }
                Some(_) => return Ok(None),
            });
            self.count(text.len() + 1)?;
            match scalar {
                // Writing to a vector cannot fail.
                ScalarType::String => drop(write_json_string(&text, &mut lines)),
                scalar if scalar.is_float() && text.contains('n') => lines.extend(b"null"),
                _ => lines.extend(text.as_bytes()),
            }
            lines.push(b'\n');
        }
        let lines = String::from_utf8(lines).unwrap_or_default();
        Ok(Some(MetadataValue::array(found.unwrap_or(ScalarType::String), lines)))
    }

    /// Adds an object of a class that is not known.
    fn object(&mut self, object: &PickleObject, depth: usize) -> Result<(), PytorchError> {
        let class = match self.tree.global(object.class) {
            Some((module, name)) => format!("<{module}.{name}>"),
            None => "<object>".to_owned(),
        };
        self.metadata(MetadataValue::string(class))?;
        // A state of slots is a tuple of a dict and a dict.
        let single = [object.state];
        let states = match object.state {
            PickleValue::Tuple(_) => self.tree.elements(object.state),
            _ => &single,
        };
        for state in states {
            if self.find(*state, "_parameters")?.is_some() && self.find(*state, "_modules")?.is_some() {
                return self.module(*state, depth);
            }
        }
        for (at, state) in states.iter().enumerate() {
            match self.kind(*state) {
                ValueKind::Dict(_) => self.part(at, |lowering| lowering.walk(*state, depth + 1))?,
                _ if container(*state).is_some() => {
                    let key = if states.len() == 1 { "state".to_owned() } else { format!("state.{at}") };
                    self.at(&key, |lowering| lowering.walk(*state, depth + 1))?;
                }
                _ => {}
            }
        }
        if let Some(items) = &object.items {
            self.part("items", |lowering| lowering.items(items.dict.iter().copied(), depth))?;
            if !items.list.is_empty() {
                self.part("list", |lowering| lowering.list(&items.list, depth))?;
            }
        }
        // Arguments other than tensors have no names that mean anything.
        let only_tensors = std::mem::replace(&mut self.only_tensors, true);
        let walked = self.part("args", |lowering| lowering.walk(object.args, depth + 1));
        self.only_tensors = only_tensors;
        walked
    }

    /// Adds the parameters and the buffers of a module, as `torch.nn.Module.state_dict` does.
    fn module(&mut self, state: PickleValue, depth: usize) -> Result<(), PytorchError> {
        let left_out = match self.find(state, "_non_persistent_buffers_set")?.map(|set| self.kind(set)) {
            Some(ValueKind::List(names)) => names,
            _ => &[],
        };
        for kind in ["_parameters", "_buffers", "_modules"] {
            let Some(part) = self.find(state, kind)? else { continue };
            let ValueKind::Dict(items) = self.kind(part) else { continue };
            for (key, value) in items.items() {
                self.visit(depth)?;
                let key = self.key(key);
                if kind == "_buffers" {
                    self.spend(left_out.len())?;
                    if left_out.iter().any(|name| self.tree.is_text(*name, &key)) {
                        continue;
                    }
                }
                if value != PickleValue::None {
                    self.at(&key, |lowering| lowering.walk(value, depth + 1))?;
                }
            }
        }
        Ok(())
    }

    /// The value of a key of a dict.
    fn find(&mut self, dict: PickleValue, key: &str) -> Result<Option<PickleValue>, PytorchError> {
        let ValueKind::Dict(items) = self.kind(dict) else { return Ok(None) };
        // Many objects can share a dict.
        self.spend(1 + items.work())?;
        Ok(items.items().find(|(found, _)| self.tree.is_text(*found, key)).map(|(_, value)| value))
    }

    /// Adds what a function of torch builds.
    fn tensor(&mut self, function: &str, args: &[PickleValue], depth: usize) -> Result<(), PytorchError> {
        let (mut function, mut args, mut converted) = (function, args, None);
        for _ in 0..WRAPPERS_MAX {
            let inner = match (function, args) {
                ("_rebuild_parameter" | "_rebuild_parameter_with_state" | "Parameter", [inner, ..]) => {
                    self.kind(*inner)
                }
                ("_rebuild_device_tensor_from_cpu_tensor", [inner, dtype, ..]) => {
                    converted = Some(*dtype);
                    self.kind(*inner)
                }
                ("_rebuild_from_type_v2", [inner, _, inner_args, ..]) => {
                    let Some((module, name)) = self.tree.global(*inner) else { break };
                    let Some(function) = builder(module, name) else { break };
                    ValueKind::Tensor { function, args: self.tree.elements(*inner_args) }
                }
                _ => break,
            };
            let ValueKind::Tensor { function: inner, args: inner_args } = inner else { break };
            (function, args) = (inner, inner_args);
        }
        match (function, args) {
            ("_rebuild_sparse_tensor", [layout, parts, ..]) => return self.sparse(*layout, *parts, depth),
            // It has no data in a storage of the file.
            _ if NO_STORAGE.contains(&function) => return self.builder_name(function),
            _ => {}
        }
        let is_lenient = self.builder.mode() == ParseMode::Lenient;
        match self.rebuild(function, args) {
            // Torch would convert the values.
            Ok(tensor) if converted.is_some_and(|dtype| self.dtype(dtype) != Some(tensor.dtype)) => {
                return self.builder_name(CONVERTED);
            }
            Ok(tensor) => {
                let dims = tensor.shape.len() + tensor.strides.len();
                self.count(self.path.len() + ENTRY + dims * size_of::<u64>())?;
                let name = if self.path.is_empty() { UNNAMED } else { &self.path };
                let name = self.builder.name(name);
                self.push(name, &tensor);
                if function == "_rebuild_qtensor" {
                    return self.quantizer(args.get(4).copied(), depth);
                }
            }
            Err(fault) => {
                let name = if self.path.is_empty() { UNNAMED } else { &self.path };
                if !is_lenient {
                    return Err(PytorchError::Tensor { name: name.to_owned(), fault });
                }
                self.builder.skip(name, || fault.to_string());
            }
        }
        Ok(())
    }

    /// Adds the name of a function whose tensor cannot be shown.
    fn builder_name(&mut self, function: &str) -> Result<(), PytorchError> {
        self.metadata(MetadataValue::string(format!("<torch._utils.{function}>")))
    }

    fn dtype(&self, value: PickleValue) -> Option<TorchDtype> {
        let (module, name) = self.tree.global(value)?;
        dtype::of_name(module, name)
    }

    /// Adds the parts of a sparse tensor.
    fn sparse(&mut self, layout: PickleValue, parts: PickleValue, depth: usize) -> Result<(), PytorchError> {
        let layout = self.key(layout);
        let parts = self.tree.elements(parts);
        let names: &[&str] = match parts.len() {
            4 if layout != "torch.sparse_coo" => &["compressed", "plain", "values", "size"],
            _ => &["indices", "values", "size", "coalesced"],
        };
        self.at("layout", |lowering| lowering.metadata(MetadataValue::string(layout)))?;
        for (name, part) in names.iter().zip(parts) {
            self.at(name, |lowering| lowering.walk(*part, depth + 1))?;
        }
        Ok(())
    }

    /// Adds how the integers of a tensor are scaled.
    fn quantizer(&mut self, quantizer: Option<PickleValue>, depth: usize) -> Result<(), PytorchError> {
        let Some(parts) = quantizer.map(|quantizer| self.tree.elements(quantizer)) else { return Ok(()) };
        let names = ["qscheme", "scale", "zero_point", "axis"];
        for (name, part) in names.iter().zip(parts) {
            self.at(name, |lowering| lowering.walk(*part, depth + 1))?;
        }
        Ok(())
    }

    fn rebuild(&self, function: &str, args: &[PickleValue]) -> Result<PickledTensor, PytorchFault> {
        let arguments = || PytorchFault::Arguments { function: function.to_owned() };
        let [storage, offset, shape, strides, rest @ ..] = args else { return Err(arguments()) };
        let v3 = match (function, rest) {
            ("_rebuild_tensor_v3", [_, _, dtype, rest @ ..]) => {
                self.check_bits(rest.first().copied())?;
                Some(*dtype)
            }
            ("_rebuild_tensor_v2", [_, _, rest @ ..]) => {
                self.check_bits(rest.first().copied())?;
                None
            }
            ("_rebuild_tensor" | "_rebuild_qtensor", _) => None,
            _ => return Err(arguments()),
        };
        let numbers = |value: PickleValue| -> Option<Vec<i64>> {
            let ValueKind::List(values) = self.kind(value) else { return None };
            let values = (values.len() <= RANK_MAX).then_some(values)?;
            values.iter().map(|value| if let PickleValue::Int(number) = value { Some(*number) } else { None }).collect()
        };
        // Before the numbers are copied: many tensors can share a long tuple.
        for value in [shape, strides] {
            let rank = self.tree.elements(*value).len();
            if rank > RANK_MAX {
                return Err(PytorchFault::Dimensions { rank });
            }
        }
        let (PickleValue::Int(offset), Some(shape), Some(strides)) = (*offset, numbers(*shape), numbers(*strides))
        else {
            return Err(arguments());
        };
        let (class, key, numel) = self.storage(*storage)?;
        let dtype = match v3 {
            None => class,
            Some(dtype) => {
                let (module, name) = self.tree.global(dtype).ok_or_else(arguments)?;
                dtype::of_name(module, name).ok_or_else(|| PytorchFault::Dtype { dtype: format!("{module}.{name}") })?
            }
        };
        if dtype.size == 0 || class.size == 0 {
            return Err(PytorchFault::Packed { dtype: "quint4x2 or quint2x4".to_owned() });
        }
        let (entry, data) = self.archive.storage(key)?;
        let size = data.end - data.start;
        if Some(size) != numel.checked_mul(class.size.into()) {
            return Err(PytorchFault::Size { entry, size, numel, width: class.size });
        }
        place(dtype, &shape, &strides, offset, &data)
    }

    /// The class of a storage, its key, and its number of elements.
    fn storage(&self, value: PickleValue) -> Result<(TorchDtype, &'a str, u64), PytorchFault> {
        let id = self.tree.persistent(value).ok_or(PytorchFault::Storage)?;
        let [kind, class, key, _, numel, ..] = self.tree.elements(id) else { return Err(PytorchFault::Storage) };
        let (key, numel) = match (self.tree.text(*key), *numel) {
            (Some(key), PickleValue::Int(numel @ 0..)) if self.tree.text(*kind) == Some("storage") => {
                (key, numel.unsigned_abs())
            }
            _ => return Err(PytorchFault::Storage),
        };
        let (module, name) = self.tree.global(*class).ok_or(PytorchFault::Storage)?;
        let class = || PytorchFault::Class { class: format!("{module}.{name}") };
        Ok((dtype::of_storage(module, name).ok_or_else(class)?, key, numel))
    }

    /// Fails if the values of a tensor differ from its bytes.
    fn check_bits(&self, bits: Option<PickleValue>) -> Result<(), PytorchFault> {
        let Some(bits) = bits else { return Ok(()) };
        // Torch writes at most two items, and several tensors can share what another program writes.
        let items = self.tree.items(bits);
        if items.len() > 16 || matches!(bits, PickleValue::Object(_)) {
            return Err(PytorchFault::Arguments { function: "_rebuild_tensor".to_owned() });
        }
        let has =
            |text| items.iter().any(|(key, value)| self.tree.is_text(*key, text) && *value == PickleValue::Bool(true));
        match () {
            () if has("conj") => Err(PytorchFault::Lazy { what: "conjugate", method: "resolve_conj" }),
            () if has("neg") => Err(PytorchFault::Lazy { what: "negative", method: "resolve_neg" }),
            () => Ok(()),
        }
    }

    fn push(&mut self, name: crate::format::header::ArenaName, tensor: &PickledTensor) {
        self.tensor_keys.push(self.keys);
        let PickledTensor { dtype, shape, strides, range } = tensor;
        let start = self.builder.next_dim();
        let pairs = u64::from(dtype.name == F4_PAIR);
        for (at, dim) in shape.iter().enumerate() {
            // The shape counts pairs of elements, along the last dimension.
            let is_last = at + 1 == shape.len();
            self.builder.dim(if is_last { dim << pairs } else { *dim });
        }
        let shape = self.builder.shape_from(start);
        let number = self.builder.dtype_number(dtype.name);
        let new = NewTensor { name, dtype: number, shape, range: range.clone(), is_unusual: false };
        let word = if self.archive.is_big_endian { dtype.word } else { 1 };
        if strides.is_empty() && word == 1 {
            return self.builder.push(new);
        }
        let start = self.builder.next_dim();
        let dense = contiguous(&tensor.shape);
        let strides = if strides.is_empty() { &dense } else { strides };
        strides.iter().for_each(|stride| self.builder.dim(*stride));
        let strides = self.builder.shape_from(start);
        self.builder.push_strided(new, &strides, dtype.size, word);
    }
}

/// Where the elements of a tensor are. The strides are empty if they lie in C order.
fn place(
    dtype: TorchDtype,
    shape: &[i64],
    strides: &[i64],
    offset: i64,
    data: &Range<u64>,
) -> Result<PickledTensor, PytorchFault> {
    let list = |numbers: &[i64]| format!("{numbers:?}");
    if shape.len() != strides.len() {
        return Err(PytorchFault::Rank { shape: list(shape), rank: shape.len(), strides: strides.len() });
    }
    let unsigned =
        |numbers: &[i64]| numbers.iter().map(|number| u64::try_from(*number).ok()).collect::<Option<Vec<_>>>();
    let (Some(dims), Some(steps), Ok(offset)) = (unsigned(shape), unsigned(strides), u64::try_from(offset)) else {
        return Err(PytorchFault::Negative { shape: list(shape), strides: list(strides) });
    };
    let size = u64::from(dtype.size);
    if dims.contains(&0) {
        return Ok(PickledTensor { dtype, shape: dims, strides: Vec::new(), range: data.start..data.start });
    }
    let overflow = || PytorchFault::Overflow { shape: brackets(&dims), dtype: dtype.name };
    let fits = |number: &u64| i64::try_from(*number).is_ok();
    let nbytes = dims.iter().try_fold(2 * size, |product, dim| product.checked_mul(*dim).filter(fits));
    nbytes.ok_or_else(overflow)?;
    let last =
        dims.iter().zip(&steps).try_fold(0u64, |last, (dim, step)| last.checked_add((dim - 1).checked_mul(*step)?));
    let numel = (data.end - data.start) / size;
    let needed = last.and_then(|last| last.checked_add(offset)?.checked_add(1));
    let (Some(needed), Some(last)) = (needed.filter(|needed| *needed <= numel), last) else {
        let needed = needed.unwrap_or(u64::MAX);
        return Err(PytorchFault::Beyond { shape: brackets(&dims), strides: brackets(&steps), offset, needed, numel });
    };
    let start = data.start + offset * size;
    let range = start..start + (last + 1) * size;
    debug_assert!(offset + last + 1 == needed, "the range ends inside the storage");
    let dense = contiguous(&dims);
    let is_dense = dims.iter().zip(steps.iter().zip(&dense)).all(|(dim, (step, dense))| *dim == 1 || step == dense);
    if is_dense {
        return Ok(PickledTensor { dtype, shape: dims, strides: Vec::new(), range });
    }
    if dtype.name == F4_PAIR {
        return Err(PytorchFault::StridedPairs { strides: brackets(&steps) });
    }
    Ok(PickledTensor { dtype, shape: dims, strides: steps, range })
}

/// The strides of C order.
fn contiguous(shape: &[u64]) -> Vec<u64> {
    let mut strides = vec![1; shape.len()];
    for at in (1..shape.len()).rev() {
        strides[at - 1] = shape[at].saturating_mul(strides[at]);
    }
    strides
}

/// The kind and the number of a value that can hold others.
fn container(value: PickleValue) -> Option<(&'static str, u32)> {
    match value {
        PickleValue::Tuple(at) => Some(("tuple", at)),
        PickleValue::List(at) => Some(("list", at)),
        PickleValue::Dict(at) => Some(("dict", at)),
        PickleValue::Object(at) => Some(("object", at)),
        _ => None,
    }
}

/// The kind of a value.
fn value_kind<'t>(tree: &'t PickleTree, value: PickleValue) -> ValueKind<'t> {
    let string = |text: String| ValueKind::Scalar(ScalarType::String, text);
    match value {
        PickleValue::None => string("None".to_owned()),
        PickleValue::Bool(value) => ValueKind::Scalar(ScalarType::Bool, value.to_string()),
        PickleValue::Int(value) => ValueKind::Scalar(ScalarType::I64, value.to_string()),
        PickleValue::Big(span) => {
            let digits: String = tree.bytes(span).iter().rev().take(64).map(|byte| format!("{byte:02x}")).collect();
            string(format!("0x{digits}"))
        }
        PickleValue::Float(value) => ValueKind::Scalar(ScalarType::F64, float(value)),
        PickleValue::Text(span) | PickleValue::Bytes(span) => {
            string(String::from_utf8_lossy(tree.bytes(span)).into_owned())
        }
        PickleValue::Tuple(_) | PickleValue::List(_) => ValueKind::List(tree.elements(value)),
        PickleValue::Dict(_) => ValueKind::Dict(PickledMapping { tree, args: &[], added: tree.items(value) }),
        PickleValue::Global(_) => string(match tree.global(value) {
            Some(("torch", name)) => format!("torch.{name}"),
            Some((module, name)) => format!("<{module}.{name}>"),
            None => String::new(),
        }),
        PickleValue::Persistent(_) => string("<storage>".to_owned()),
        PickleValue::Object(_) => match tree.object(value) {
            Some(object) => object_kind(tree, object),
            None => string(String::new()),
        },
    }
}

fn object_kind<'t>(tree: &'t PickleTree, object: &'t PickleObject) -> ValueKind<'t> {
    let Some((module, name)) = tree.global(object.class) else { return ValueKind::Object(object) };
    let args = tree.elements(object.args);
    if let Some(function) = builder(module, name) {
        return ValueKind::Tensor { function, args };
    }
    if let Some((scalar, text)) = ndarray::describe_ndarray(tree, object) {
        return ValueKind::Scalar(scalar, text);
    }
    let string = |text: String| ValueKind::Scalar(ScalarType::String, text);
    let items = object.items.as_deref();
    let first = args.first().copied();
    match (module, name) {
        ("collections", "OrderedDict" | "Counter" | "defaultdict") | ("builtins" | "__builtin__", "dict") => {
            let added = items.map_or(&[][..], |items| &items.dict);
            // The class of a default value precedes the items.
            ValueKind::Dict(PickledMapping { tree, args: &args[..args.len().min(2)], added })
        }
        ("torch", "Size") | ("builtins" | "__builtin__", "set" | "frozenset" | "list" | "tuple") => {
            ValueKind::List(first.map_or(&[], |first| tree.elements(first)))
        }
        ("torch", "device") => match (first.and_then(|first| tree.text(first)), args.get(1)) {
            (Some(device), Some(PickleValue::Int(index))) => string(format!("{device}:{index}")),
            (Some(device), _) => string(device.to_owned()),
            (None, _) => ValueKind::Object(object),
        },
        ("torch.serialization", "_get_layout") | ("_codecs", "encode") | ("builtins" | "__builtin__", "bytearray") => {
            match first.map(|first| kind_of_text(tree, first)) {
                Some(Some(text)) => string(text),
                _ => ValueKind::Object(object),
            }
        }
        ("builtins" | "__builtin__", "complex") => match args {
            [PickleValue::Float(real), PickleValue::Float(imaginary)] => string(format!(
                "{}{}{}j",
                float(*real),
                if imaginary.is_sign_negative() { "" } else { "+" },
                float(*imaginary)
            )),
            _ => ValueKind::Object(object),
        },
        _ => ValueKind::Object(object),
    }
}

fn kind_of_text(tree: &PickleTree, value: PickleValue) -> Option<String> {
    match value {
        PickleValue::Text(span) | PickleValue::Bytes(span) => {
            Some(String::from_utf8_lossy(tree.bytes(span)).into_owned())
        }
        _ => None,
    }
}

/// A function that copies a tensor to a device, and converts it to a dtype.
const CONVERTED: &str = "_rebuild_device_tensor_from_cpu_tensor";

/// Functions whose tensors have no data in a storage.
const NO_STORAGE: [&str; 3] =
    ["_rebuild_device_tensor_from_numpy", "_rebuild_meta_tensor_no_storage", "_rebuild_wrapper_subclass"];

/// The function with that name, if it builds a tensor.
fn builder(module: &str, name: &str) -> Option<&'static str> {
    const BUILDERS: [&str; 11] = [
        "_rebuild_tensor",
        "_rebuild_tensor_v2",
        "_rebuild_tensor_v3",
        "_rebuild_parameter",
        "_rebuild_parameter_with_state",
        "_rebuild_qtensor",
        "_rebuild_sparse_tensor",
        CONVERTED,
        NO_STORAGE[0],
        NO_STORAGE[1],
        NO_STORAGE[2],
    ];
    match module {
        "torch._utils" => BUILDERS.iter().find(|known| **known == name).copied(),
        "torch._tensor" if name == "_rebuild_from_type_v2" => Some("_rebuild_from_type_v2"),
        "torch.nn.parameter" if name == "Parameter" => Some("Parameter"),
        _ => None,
    }
}
