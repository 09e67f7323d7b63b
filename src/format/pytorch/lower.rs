//! Finds the tensors in the tree of a pickle, and everything else that can be metadata.
//!
//! The name of a tensor is the path to it: keys and indices, joined by dots. If every tensor is inside the entry
//! `state_dict` of the root, names begin there, as in files that the converter of safetensors writes. An object of an
//! unknown class is metadata, its class in angle brackets; what it holds is found like the items of a dict. Modules
//! have the names of their state dict. A key with a dot and a path of several keys can be the same name: the second
//! tensor with a name, and the second value of metadata, have a number behind it.

use super::archive::TorchArchive;
use super::dtype::{self, F4_PAIR, TorchDtype};
use super::rebuild::{PickledTensor, rebuild_tensor};
use super::recover::{RecoveredArchive, recover_archive};
use super::storages::TorchStorages;
use super::value::{
    CONVERTED, FROM_NDARRAY, NO_STORAGE, TAR_TENSOR, ValueKind, WRAPPER, builder, container, value_kind,
};
use super::{DUPLICATE, NAME, STATE_DICT, UNNAMED, checkpoint_error};
use crate::format::error::Error;
use crate::format::header::{ENTRIES_MAX, Header, HeaderBuilder, ParseMode, SkippedEntry};
use crate::format::input::HeaderInput;
use crate::format::metadata::{MetadataValue, ScalarType, push_line};
use crate::format::pickle::{PickleObject, PickleTree, PickleValue, is_ndarray};
use crate::format::tensors::c_strides;
use crate::format::zip::ZipDirectory;
use crate::text::quote;
use std::collections::{BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};

/// Maximum number of values that are visited, by all paths.
const VISITS_MAX: usize = 1 << 28;

const DEPTH_MAX: usize = 200;

/// Maximum number of bytes of all names and metadata.
const TEXT_MAX: usize = 128 << 20;

/// Depth up to which functions are looked through for the tensor that they wrap.
const WRAPPERS_MAX: usize = 8;

/// The memory of a tensor or an entry of the metadata without its text, in bytes.
const ENTRY: usize = 128;

/// Maximum number of bytes that are shown of a text in a key that is a tuple.
const KEY_PART_MAX: usize = 1024;

/// Why an array of NumPy is left out.
const IN_PICKLE: &str = "an array of NumPy, whose elements are in the pickle (save it as a tensor: torch.from_numpy)";

/// Why an object that wraps tensors is left out.
const NO_ATTRIBUTES: &str = "an object of a subclass of Tensor, in whose attributes no tensor is";

pub struct PickleLowering<'a> {
    tree: &'a PickleTree<'a>,
    storages: &'a TorchStorages<'a>,
    builder: &'a mut HeaderBuilder,
    path: String,
    /// The containers on the path, to find those that contain themselves.
    open: HashSet<(&'static str, u32)>,
    /// A hash of the keys on the path, and that of each tensor and of each value of metadata.
    keys: u64,
    tensor_keys: Vec<u64>,
    metadata_keys: Vec<u64>,
    /// The number of values that may still be visited, and the number of bytes of text that may still be added.
    visits: usize,
    text: usize,
    only_tensors: bool,
}

/// Reads the header of a zip archive.
///
/// Fails with [`Error::Missing`] until the directory, the pickle and some local headers are in `input`.
pub fn parse_zip(input: &HeaderInput, mode: ParseMode) -> Result<Header, Error> {
    let directory = match ZipDirectory::read(input) {
        Err(Error::Broken(_)) if mode == ParseMode::Lenient => {
            let RecoveredArchive { directory, end } = &*input.keep(|| recover_archive(input))?;
            let mut header = parse_archive(directory, input, mode)?;
            header.skipped.remark(|| SkippedEntry::bytes(format!(
                "the end of the archive is missing or broken, as when a download stops: of {} bytes, the first {end} have \
                 complete entries", input.len()
            )));
            return Ok(header);
        }
        directory => directory.map_err(|error| error.map_part(checkpoint_error))?,
    };
    parse_archive(&directory, input, mode)
}

fn parse_archive(directory: &ZipDirectory, input: &HeaderInput, mode: ParseMode) -> Result<Header, Error> {
    let archive = TorchArchive::read(directory, input, mode)?;
    lower_tree(&archive.tree(input)?, &archive.storages, archive.data_start, mode)
}

/// The header of a file with this pickle, whose data begins at byte `data_start`.
pub fn lower_tree(
    tree: &PickleTree,
    storages: &TorchStorages,
    data_start: u64,
    mode: ParseMode,
) -> Result<Header, Error> {
    let mut builder = HeaderBuilder::new(mode);
    let mut lowering = PickleLowering {
        tree,
        storages,
        builder: &mut builder,
        path: String::new(),
        open: HashSet::new(),
        keys: 0,
        tensor_keys: Vec::new(),
        metadata_keys: Vec::new(),
        // A value can be reached by several paths, but a program writes few such values.
        visits: (8 * tree.values + 1000).min(VISITS_MAX),
        text: TEXT_MAX,
        only_tensors: false,
    };
    lowering.root(tree.root)?;
    let PickleLowering { tensor_keys, metadata_keys, .. } = lowering;
    builder.number_repeated(&tensor_keys, &metadata_keys);
    builder.finish(NAME, None, data_start, DUPLICATE)
}

impl<'a> PickleLowering<'a> {
    fn root(&mut self, root: PickleValue) -> Result<(), Error> {
        let Some(inner) = self.state_dict(root)? else {
            self.entries(root)?;
            return self.walk(root, 0);
        };
        self.part(STATE_DICT, |lowering| lowering.walk(inner, 1))?;
        let ValueKind::Dict(items) = self.kind(root) else { return Ok(()) };
        let tree = self.tree;
        self.items(items.items().filter(|(key, _)| !tree.is_text(*key, STATE_DICT)), 0)
    }

    /// Finds the keys of the root whose values may have parts.
    fn entries(&mut self, root: PickleValue) -> Result<(), Error> {
        let ValueKind::Dict(items) = self.kind(root) else { return Ok(()) };
        self.spend(items.work())?;
        let (mut entries, mut before_dots) = (BTreeSet::new(), BTreeSet::new());
        // A pickle may repeat a long key any number of times.
        let mut left = TEXT_MAX;
        for (key, value) in items.items() {
            let Some(key) = self.tree.text(key) else { continue };
            match left.checked_sub(key.len()) {
                Some(rest) => left = rest,
                None => return Ok(()),
            }
            match key.split_once('.') {
                Some((first, _)) => before_dots.insert(first),
                None => container(value).is_some() && !key.is_empty() && entries.insert(key),
            };
            if entries.len().max(before_dots.len()) > ENTRIES_MAX {
                return Ok(());
            }
        }
        // A key with dots has the name of a path.
        if entries.is_disjoint(&before_dots) {
            self.builder.entries(entries.into_iter().map(str::to_owned).collect());
        }
        Ok(())
    }

    /// The value of the key `state_dict` of the root, if it holds all tensors.
    fn state_dict(&mut self, root: PickleValue) -> Result<Option<PickleValue>, Error> {
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

    fn holds_tensor(&mut self, value: PickleValue, depth: usize) -> Result<bool, Error> {
        self.visit(depth)?;
        let Some(container) = container(value).filter(|container| self.open.insert(*container)) else {
            return Ok(self.tar_id(value).is_some());
        };
        let kind = self.kind(value);
        let mut holds = matches!(kind, ValueKind::Tensor { .. });
        if let ValueKind::Scalar(_, text) = &kind {
            self.count(text.len())?;
        }
        for part in kind.parts() {
            if self.holds_tensor(part, depth + 1)? {
                holds = true;
                break;
            }
        }
        self.open.remove(&container);
        Ok(holds)
    }

    /// The kind of a value. Copies its text, so that many uses of a long one take time.
    fn kind(&self, value: PickleValue) -> ValueKind<'a> {
        match self.tar_id(value) {
            Some(args) => ValueKind::Tensor { function: TAR_TENSOR, args },
            None => value_kind(self.tree, value),
        }
    }

    /// The key of a tensor of a tar archive, in a slice.
    fn tar_id(&self, value: PickleValue) -> Option<&'a [PickleValue]> {
        self.tree.plain_id(value).filter(|_| self.storages.has_tensors())
    }

    fn visit(&mut self, depth: usize) -> Result<(), Error> {
        if depth > DEPTH_MAX {
            return Err(self.limit("values are nested too deeply"));
        }
        self.spend(1)
    }

    fn spend(&mut self, count: usize) -> Result<(), Error> {
        let left = self.visits.checked_sub(count);
        self.visits = left.ok_or_else(|| self.limit("too many paths lead to the same values"))?;
        Ok(())
    }

    fn count(&mut self, len: usize) -> Result<(), Error> {
        let left = self.text.checked_sub(len);
        self.text = left.ok_or_else(|| self.limit("more than 128 MiB of names and metadata"))?;
        Ok(())
    }

    fn limit(&self, what: &str) -> Error {
        Error::Limit(format!("PyTorch checkpoint: {what}, at {}", quote(&self.path)))
    }

    fn walk(&mut self, value: PickleValue, depth: usize) -> Result<(), Error> {
        self.visit(depth)?;
        let Some(container) = container(value) else { return self.contents(value, depth) };
        if !self.open.insert(container) {
            return self.metadata(MetadataValue::string(format!("<{} that contains itself>", container.0)));
        }
        self.contents(value, depth)?;
        self.open.remove(&container);
        Ok(())
    }

    fn contents(&mut self, value: PickleValue, depth: usize) -> Result<(), Error> {
        match self.kind(value) {
            ValueKind::Tensor { function, args } => self.tensor(function, args, depth),
            ValueKind::Dict(items) => self.items(items.items(), depth),
            ValueKind::List(values) => self.list(values, depth),
            ValueKind::Object(object) => self.object(object, depth),
            ValueKind::Scalar(scalar, text) => {
                if is_ndarray(self.tree, value) {
                    self.leave_out(&format!("{text}, {IN_PICKLE}"))?;
                }
                self.metadata(MetadataValue::scalar(scalar, text))
            }
        }
    }

    /// Reports a tensor that cannot be shown although the file is sound.
    fn leave_out(&mut self, reason: &str) -> Result<(), Error> {
        self.count(self.path.len() + ENTRY + reason.len())?;
        let name = if self.path.is_empty() { UNNAMED } else { &self.path };
        self.builder.skip(name, || reason.to_owned());
        Ok(())
    }

    fn items(&mut self, items: impl Iterator<Item = (PickleValue, PickleValue)>, depth: usize) -> Result<(), Error> {
        for (key, value) in items {
            let text = self.key(key);
            self.at_key(&text, matches!(key, PickleValue::Text(_)), |lowering| lowering.walk(value, depth + 1))?;
        }
        Ok(())
    }

    fn list(&mut self, values: &[PickleValue], depth: usize) -> Result<(), Error> {
        if let Some(array) = self.array(values)? {
            return self.metadata(array);
        }
        self.parts((0..values.len()).map(|at| at.to_string()), values, depth)
    }

    /// Adds the parts of a value under these names.
    fn parts(
        &mut self,
        names: impl IntoIterator<Item = impl AsRef<str>>,
        parts: &[PickleValue],
        depth: usize,
    ) -> Result<(), Error> {
        names
            .into_iter()
            .zip(parts)
            .try_for_each(|(name, part)| self.at_key(name.as_ref(), true, |lowering| lowering.walk(*part, depth + 1)))
    }

    /// Goes one step along the path. The key is a text, a number or another value.
    fn at_key(
        &mut self,
        key: &str,
        is_text: bool,
        go: impl FnOnce(&mut Self) -> Result<(), Error>,
    ) -> Result<(), Error> {
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
    fn part(&mut self, part: impl Hash, go: impl FnOnce(&mut Self) -> Result<(), Error>) -> Result<(), Error> {
        let keys = self.keys;
        let mut hasher = DefaultHasher::new();
        (keys, part).hash(&mut hasher);
        self.keys = hasher.finish();
        go(self)?;
        self.keys = keys;
        Ok(())
    }

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

    fn metadata(&mut self, value: MetadataValue) -> Result<(), Error> {
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
    fn array(&mut self, values: &[PickleValue]) -> Result<Option<MetadataValue>, Error> {
        let mut found: Option<ScalarType> = None;
        let is_nested = values
            .iter()
            .any(|value| matches!(value, PickleValue::Tuple(_) | PickleValue::List(_) | PickleValue::Dict(_)));
        if is_nested {
            return Ok(None);
        }
        let mut lines = Vec::new();
        for value in values {
            let ValueKind::Scalar(scalar, text) = self.kind(*value) else { return Ok(None) };
            if is_ndarray(self.tree, *value) {
                return Ok(None);
            }
            found = Some(match found {
                None => scalar,
                Some(other) if other == scalar => scalar,
                Some(ScalarType::I64 | ScalarType::F64) if matches!(scalar, ScalarType::I64 | ScalarType::F64) => {
                    ScalarType::F64
                }
                Some(_) => return Ok(None),
            });
            self.count(text.len() + 1)?;
            push_line(scalar, &text, &mut lines);
        }
        Ok(Some(MetadataValue::array(found.unwrap_or(ScalarType::String), lines)))
    }

    /// Adds an object of a class that is not known.
    fn object(&mut self, object: &PickleObject, depth: usize) -> Result<(), Error> {
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
                    self.at_key(&key, true, |lowering| lowering.walk(*state, depth + 1))?;
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
    fn module(&mut self, state: PickleValue, depth: usize) -> Result<(), Error> {
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
                    self.at_key(&key, true, |lowering| lowering.walk(value, depth + 1))?;
                }
            }
        }
        Ok(())
    }

    fn find(&mut self, dict: PickleValue, key: &str) -> Result<Option<PickleValue>, Error> {
        let ValueKind::Dict(items) = self.kind(dict) else { return Ok(None) };
        // Many objects can share a dict.
        self.spend(1 + items.work())?;
        Ok(items.items().find(|(found, _)| self.tree.is_text(*found, key)).map(|(_, value)| value))
    }

    fn tensor(&mut self, function: &str, args: &[PickleValue], depth: usize) -> Result<(), Error> {
        let (mut function, mut args, mut converted, mut state) = (function, args, None, None);
        for _ in 0..WRAPPERS_MAX {
            let inner = match (function, args) {
                ("_rebuild_parameter" | "_rebuild_parameter_with_state" | "Parameter", [inner, ..]) => {
                    self.kind(*inner)
                }
                ("_rebuild_device_tensor_from_cpu_tensor", [inner, dtype, ..]) => {
                    converted = Some(*dtype);
                    self.kind(*inner)
                }
                ("_rebuild_from_type_v2", [inner, _, inner_args, rest @ ..]) => {
                    state = rest.first().copied();
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
            (WRAPPER, _) => return self.wrapper(state, depth),
            _ if NO_STORAGE.contains(&function) => {
                if function == FROM_NDARRAY {
                    self.leave_out(IN_PICKLE)?;
                }
                return self.builder_name(function);
            }
            _ => {}
        }
        let is_lenient = self.builder.mode() == ParseMode::Lenient;
        match rebuild_tensor(self.tree, self.storages, function, args) {
            // Torch would convert the values.
            Ok(tensor) if converted.is_some_and(|dtype| self.dtype(dtype) != Some(tensor.dtype)) => {
                self.leave_out("torch converts it to another dtype when it loads it")?;
                return self.builder_name(CONVERTED);
            }
            Ok(tensor) => {
                let dims = tensor.shape.len() + tensor.strides.as_ref().map_or(0, Vec::len);
                self.count(self.path.len() + ENTRY + dims * size_of::<u64>())?;
                self.push(&tensor);
                if let ("_rebuild_qtensor", [_, _, _, _, quantizer, ..]) = (function, args) {
                    // The scales of the integers.
                    let parts = self.tree.elements(*quantizer);
                    return self.parts(["qscheme", "scale", "zero_point", "axis"], parts, depth);
                }
            }
            Err(fault) => {
                let name = if self.path.is_empty() { UNNAMED } else { &self.path };
                if !is_lenient {
                    return Err(Error::Tensor { name: name.to_owned(), fault });
                }
                self.builder.skip(name, || fault);
            }
        }
        Ok(())
    }

    /// Adds the tensors that an object wraps, such as the codes and the scales of a quantized weight, or the part of
    /// one process. They are in its attributes.
    fn wrapper(&mut self, state: Option<PickleValue>, depth: usize) -> Result<(), Error> {
        self.builder_name(WRAPPER)?;
        let Some(state) = state else { return self.leave_out(NO_ATTRIBUTES) };
        if !self.holds_tensor(state, depth + 1)? {
            self.leave_out(NO_ATTRIBUTES)?;
        }
        let single = [state];
        // A state of slots is a tuple of a dict and a dict.
        let states = match state {
            PickleValue::Tuple(_) => self.tree.elements(state),
            _ => &single,
        };
        for (at, state) in states.iter().enumerate() {
            if container(*state).is_some() {
                self.part(("state", at), |lowering| lowering.walk(*state, depth + 1))?;
            }
        }
        Ok(())
    }

    /// Adds the name of a function whose tensor cannot be shown.
    fn builder_name(&mut self, function: &str) -> Result<(), Error> {
        self.metadata(MetadataValue::string(format!("<torch._utils.{function}>")))
    }

    fn dtype(&self, value: PickleValue) -> Option<TorchDtype> {
        let (module, name) = self.tree.global(value)?;
        dtype::of_name(module, name)
    }

    fn sparse(&mut self, layout: PickleValue, parts: PickleValue, depth: usize) -> Result<(), Error> {
        let layout = self.key(layout);
        let parts = self.tree.elements(parts);
        let names: &[&str] = match parts.len() {
            4 if layout != "torch.sparse_coo" => &["compressed", "plain", "values", "size"],
            _ => &["indices", "values", "size", "coalesced"],
        };
        self.at_key("layout", true, |lowering| lowering.metadata(MetadataValue::string(layout)))?;
        self.parts(names, parts, depth)
    }

    fn push(&mut self, tensor: &PickledTensor) {
        self.tensor_keys.push(self.keys);
        let PickledTensor { dtype, shape, strides, range } = tensor;
        let name = if self.path.is_empty() { UNNAMED } else { &self.path };
        let mut dims = shape.clone();
        if let Some(last) = dims.last_mut().filter(|_| dtype.name == F4_PAIR) {
            // The shape counts pairs of elements, along the last dimension.
            *last <<= 1;
        }
        let number = self.builder.dtype_number(dtype.name);
        let new = self.builder.tensor(name, number, &dims, range.clone());
        let word = if self.storages.is_big_endian { dtype.word } else { 1 };
        match strides {
            None if word == 1 => self.builder.push(new),
            None => self.builder.push_strided(new, &c_strides(shape), dtype.size, word),
            Some(strides) => self.builder.push_strided(new, strides, dtype.size, word),
        }
    }
}
