//! Files of `torch.save` that each process of a training writes for itself: the parts that it holds of the tensors of a
//! model, and where they belong.
//!
//! Their pickles name classes of PyTorch's distributed tensors and of DeepSpeed. Only the fields that are needed are
//! looked into, and only classes that are known are read there. Everything else may hold anything.

mod placement;
#[cfg(test)]
mod tests;
mod zero;

use super::archive::TorchArchive;
use super::dtype::{self, F4_PAIR, TorchDtype};
use super::rebuild::{PickledTensor, rebuild_tensor};
use super::storages::TorchStorages;
use super::value::{PickledMapping, ValueKind, WRAPPER, builder, value_kind};
use super::{RANK_MAX, checkpoint_error};
use crate::format::dtype::Dtype;
use crate::format::error::Error;
use crate::format::header::ParseMode;
use crate::format::input::HeaderInput;
use crate::format::pickle::{PickleObject, PickleTree, PickleValue};
use crate::format::tensors::{HeaderTensor, TensorInfo, TensorLayout, c_strides};
use crate::format::zip::ZipDirectory;
use crate::text::{brackets, quote};
use smallvec::SmallVec;
use std::borrow::Cow;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

pub use zero::{ZeroModelStates, ZeroPartition, ZeroShape, parse_zero_model, parse_zero_partition, parse_zero_states};

/// Maximum number of boxes of all tensors of all files. One with many dimensions counts as several.
const BOXES_MAX: usize = 1 << 20;

/// Number of dimensions from which on a box counts as several.
const BOX_RANK: usize = 4;

/// Maximum number of boxes of a tensor. A tensor of more is not joined.
pub const TENSOR_BOXES_MAX: usize = 10_000;

/// Maximum number of items of dicts and of ranges of indices that are looked at in all files. Many objects can share a
/// dict.
const WORK_MAX: usize = 1 << 26;

/// Maximum number of bytes of all names of all files. A pickle may repeat a long one any number of times.
const TEXT_MAX: usize = 1 << 30;

/// Maximum number of fields of an object. Those of torch have at most 20.
const FIELDS_MAX: usize = 64;

/// Depth up to which functions are looked through for the tensor that they wrap.
const WRAPPERS_MAX: usize = 8;

/// The entry of the file of an optimizer that has the tensors.
const STATE: &str = "state";

/// What the names of flattened parameters contain.
const FLAT: &str = "_flat_param";

/// The modules of the classes that are read.
const DISTRIBUTED: &str = "torch.distributed.";

/// Sizes or indices, one for each dimension.
pub type BoxDims = SmallVec<[u64; 2]>;

/// What the files of a checkpoint may still have.
#[derive(Debug)]
pub struct RankLimits {
    /// Number of boxes of tensors, and of other tensors.
    boxes: AtomicUsize,
    /// Number of bytes of names.
    text: AtomicUsize,
    /// Number of items of dicts and of ranges of indices that may still be looked at.
    work: AtomicUsize,
}

impl Default for RankLimits {
    fn default() -> Self {
        let [boxes, text, work] = [BOXES_MAX, TEXT_MAX, WORK_MAX].map(AtomicUsize::new);
        Self { boxes, text, work }
    }
}

/// Takes from what is left. Returns whether there was enough.
fn take(left: &AtomicUsize, count: usize) -> bool {
    left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(count)).is_ok()
}

/// The tensors that one process has saved.
#[derive(Debug)]
pub struct RankFile {
    /// In the order of the file. No two have the same name.
    pub tensors: Vec<RankTensor>,
    /// Number of values that are not tensors.
    pub objects: usize,
}

#[derive(Debug)]
pub struct RankTensor {
    pub name: String,
    /// What the file has of it, or why that cannot be used.
    pub held: Result<HeldTensor, String>,
}

/// What a process holds of a tensor.
#[derive(Debug)]
pub struct HeldTensor {
    /// Whether other processes hold other parts. Otherwise the file has the whole tensor.
    pub is_sharded: bool,
    pub dtype: Dtype<'static>,
    /// The shape of the whole tensor.
    pub shape: BoxDims,
    pub boxes: Vec<RankBox>,
}

/// A part of a tensor, with a range of indices along every dimension.
#[derive(Debug)]
pub struct RankBox {
    /// The index of its first element in the whole tensor.
    pub offsets: BoxDims,
    pub part: RankPart,
}

/// An array in a file.
#[derive(Debug, Clone)]
pub struct RankPart {
    pub dtype: Dtype<'static>,
    pub shape: BoxDims,
    /// In bytes.
    pub nbytes: u64,
    /// In bytes from the start of the file.
    pub range: Range<u64>,
    /// As [`TensorLayout`].
    layout: Option<PartLayout>,
}

#[derive(Debug, Clone)]
struct PartLayout {
    strides: BoxDims,
    size: u32,
    word: u8,
}

impl RankPart {
    /// The part as a tensor with a name.
    pub fn stored<'a>(&'a self, name: &'a str) -> HeaderTensor<'a> {
        let layout = self.layout.as_ref();
        HeaderTensor {
            info: TensorInfo { name, dtype: self.dtype, shape: &self.shape, nbytes: self.nbytes },
            range: self.range.clone(),
            layout: layout.map(|PartLayout { strides, size, word }| TensorLayout { strides, size: *size, word: *word }),
        }
    }

    /// A vector of float32 numbers at a place in a file.
    #[cfg(test)]
    pub fn of_f32(range: Range<u64>) -> Self {
        let nbytes = range.end - range.start;
        Self { dtype: Dtype::F32, shape: [nbytes / 4].into_iter().collect(), nbytes, range, layout: None }
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        element_count(&self.shape)
    }
}

/// Reads what one process of FSDP has saved: a dict of tensors by their names.
///
/// Fails with [`Error::Missing`] until the directory, the pickle and some local headers are in `input`.
pub fn parse_rank_file(input: &HeaderInput, limits: &RankLimits) -> Result<RankFile, Error> {
    read_archive(input, limits, |reader, root| {
        let items = reader.mapping(root, "the file")?;
        let mut found = FoundTensors::default();
        for (key, value) in items.items() {
            let name = |reader: &RankReader| {
                let name = reader.tree.text(key).ok_or_else(|| format!("{} is no text", reader.key(key)))?;
                reader.name(name)
            };
            found.add(reader, name, key, value)?;
        }
        found.finish()
    })
}

/// Reads what one process of FSDP has saved of the state of an optimizer. The entry `state` of the file is a dict that
/// has a dict of tensors for every parameter. The names of the tensors are the keys on their path, joined by dots.
///
/// Fails with [`Error::Missing`] until the directory, the pickle and some local headers are in `input`.
pub fn parse_rank_states(input: &HeaderInput, limits: &RankLimits) -> Result<RankFile, Error> {
    read_archive(input, limits, |reader, root| {
        let state = reader.entry(root, STATE)?.ok_or("it has no state, as a file of an optimizer does")?;
        let mut found = FoundTensors::default();
        for (parameter, values) in reader.mapping(state, "its state")?.items() {
            let parameter = reader.key_text(parameter)?;
            for (key, value) in reader.mapping(values, "the state of a parameter")?.items() {
                let name = |reader: &RankReader| {
                    let key = reader.key_text(key)?;
                    reader.name(&format!("{STATE}.{parameter}.{key}"))
                };
                found.add(reader, name, key, value)?;
            }
        }
        found.finish()
    })
}

/// The tensors that were found in a file.
#[derive(Default)]
struct FoundTensors {
    tensors: Vec<RankTensor>,
    objects: usize,
}

impl FoundTensors {
    /// Adds the value of a key of a dict. `name` gives its name, if it is a tensor.
    fn add(
        &mut self,
        reader: &RankReader,
        name: impl FnOnce(&RankReader) -> Result<String, String>,
        key: PickleValue,
        value: PickleValue,
    ) -> Result<(), String> {
        let Some(found) = reader.find_tensor(value) else {
            reader.check_object(key, value)?;
            self.objects += 1;
            return Ok(());
        };
        let name = name(reader)?;
        let held = match name.contains(FLAT) {
            true => Err("it has flattened parameters, whose shapes only the program knows (LOCAL_STATE_DICT)".into()),
            false => reader.held(&found),
        };
        reader.take_boxes(1, held.as_ref().map_or(0, |held: &HeldTensor| held.shape.len()))?;
        self.tensors.push(RankTensor { name, held });
        Ok(())
    }

    fn finish(self) -> Result<RankFile, String> {
        let Self { tensors, objects } = self;
        if tensors.is_empty() {
            return Err("none of the values of its dict is a tensor".to_owned());
        }
        let mut names = HashSet::new();
        match tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
            Some(tensor) => Err(format!("two tensors are called {}", quote(&tensor.name))),
            None => Ok(RankFile { tensors, objects }),
        }
    }
}

/// Reads the pickle of an archive. The error of `read` says what is wrong with the file.
fn read_archive<T>(
    input: &HeaderInput,
    limits: &RankLimits,
    read: impl FnOnce(&RankReader, PickleValue) -> Result<T, String>,
) -> Result<T, Error> {
    let directory = ZipDirectory::read(input).map_err(|error| error.map_part(checkpoint_error))?;
    let archive = TorchArchive::read(&directory, input, ParseMode::Strict)?;
    let tree = archive.tree(input)?;
    let reader = RankReader { tree: &tree, storages: &archive.storages, limits };
    read(&reader, tree.root).map_err(checkpoint_error)
}

/// A value that builds a tensor.
enum BuiltTensor<'t> {
    /// By a function with these arguments.
    Plain { function: &'t str, args: &'t [PickleValue] },
    /// An object of a subclass of Tensor: its class, the arguments that describe it, and its attributes.
    Wrapped { class: (&'t str, &'t str), args: &'t [PickleValue], state: PickleValue },
}

struct RankReader<'t> {
    tree: &'t PickleTree<'t>,
    storages: &'t TorchStorages<'t>,
    limits: &'t RankLimits,
}

impl<'t> RankReader<'t> {
    fn mapping(&self, value: PickleValue, what: &str) -> Result<PickledMapping<'t>, String> {
        match value_kind(self.tree, value) {
            ValueKind::Dict(items) => {
                self.spend(items.work().saturating_add(1))?;
                Ok(items)
            }
            _ => Err(format!("{what} is not a dict")),
        }
    }

    /// Fails if a value beside the tensors has tensors, which would be left out.
    fn check_object(&self, key: PickleValue, value: PickleValue) -> Result<(), String> {
        if !matches!(value_kind(self.tree, value), ValueKind::Dict(_)) {
            return Ok(());
        }
        let has_tensor = self.mapping(value, "a value")?.items().any(|(_, value)| self.find_tensor(value).is_some());
        match has_tensor {
            true => Err(format!("{} has a dict of tensors; only tensors beside it are read", self.key(key))),
            false => Ok(()),
        }
    }

    /// A key of a dict that is a text or a number.
    fn key_text(&self, key: PickleValue) -> Result<Cow<'t, str>, String> {
        match (self.tree.text(key), key) {
            (Some(text), _) => Ok(text.into()),
            (None, PickleValue::Int(number)) => Ok(number.to_string().into()),
            (None, _) => Err(format!("{} is no text and no number", self.key(key))),
        }
    }

    /// A key of a dict, for messages.
    fn key(&self, key: PickleValue) -> String {
        let kind = match value_kind(self.tree, key) {
            ValueKind::Scalar(_, text) => format!("key {}", quote(&text)),
            _ => "a key".to_owned(),
        };
        format!("{kind} of its dict")
    }

    fn list(&self, value: PickleValue, what: &str) -> Result<&'t [PickleValue], String> {
        match value_kind(self.tree, value) {
            ValueKind::List(values) => Ok(values),
            _ => Err(format!("{what} is not a list")),
        }
    }

    fn name(&self, name: &str) -> Result<String, String> {
        match take(&self.limits.text, name.len()) {
            true => Ok(name.to_owned()),
            false => Err(format!("the files have more than {} MiB of names", TEXT_MAX >> 20)),
        }
    }

    fn spend(&self, work: usize) -> Result<(), String> {
        match take(&self.limits.work, work) {
            true => Ok(()),
            false => Err(format!("the files have more than {WORK_MAX} items of dicts and ranges of indices")),
        }
    }

    /// Takes boxes with a number of dimensions from what is left.
    fn take_boxes(&self, count: usize, rank: usize) -> Result<(), String> {
        match take(&self.limits.boxes, count.saturating_mul(rank.div_ceil(BOX_RANK).max(1))) {
            true => Ok(()),
            false => Err(format!("the files have more than {BOXES_MAX} parts of tensors")),
        }
    }

    /// The tensor that a value builds, if it does.
    fn find_tensor(&self, value: PickleValue) -> Option<BuiltTensor<'t>> {
        let ValueKind::Tensor { mut function, mut args } = value_kind(self.tree, value) else { return None };
        for _ in 0..WRAPPERS_MAX {
            match (function, args) {
                ("_rebuild_parameter" | "_rebuild_parameter_with_state" | "Parameter", [inner, ..]) => {
                    let ValueKind::Tensor { function: inner, args: inner_args } = value_kind(self.tree, *inner) else {
                        break;
                    };
                    (function, args) = (inner, inner_args);
                }
                ("_rebuild_from_type_v2", [inner, class, inner_args, rest @ ..]) => {
                    let Some(inner) = self.tree.global(*inner).and_then(|(module, name)| builder(module, name)) else {
                        break;
                    };
                    (function, args) = (inner, self.tree.elements(*inner_args));
                    if function == WRAPPER {
                        let class = self.tree.global(*class).unwrap_or(("?", "?"));
                        let state = rest.first().copied().unwrap_or_default();
                        return Some(BuiltTensor::Wrapped { class, args, state });
                    }
                }
                _ => break,
            }
        }
        Some(BuiltTensor::Plain { function, args })
    }

    /// A tensor whose elements lie in the file.
    fn plain(&self, value: PickleValue, what: &str) -> Result<PickledTensor, String> {
        match self.find_tensor(value) {
            Some(BuiltTensor::Plain { function, args }) => self.rebuild(function, args),
            Some(BuiltTensor::Wrapped { class, .. }) => Err(format!("{what} {}", unknown_class(class))),
            None => Err(format!("{what} is not a tensor")),
        }
    }

    fn rebuild(&self, function: &str, args: &[PickleValue]) -> Result<PickledTensor, String> {
        if !function.starts_with("_rebuild_tensor") {
            return Err(format!(
                "it is built by torch._utils.{function}, which is not supported in a file of one process"
            ));
        }
        rebuild_tensor(self.tree, self.storages, function, args)
    }

    /// A tensor whose elements lie in the file, as a part.
    fn part(&self, tensor: &PickledTensor) -> Result<RankPart, String> {
        let strides = tensor.strides.clone().unwrap_or_else(|| c_strides(&tensor.shape));
        self.part_of(tensor.dtype, &tensor.shape, &strides, tensor.range.start)
    }

    /// The part with these sizes and distances of neighbours, which begins at a byte.
    fn part_of(&self, dtype: TorchDtype, shape: &[u64], strides: &[u64], start: u64) -> Result<RankPart, String> {
        let size = u64::from(dtype.size);
        let count = element_count(shape);
        let last: u64 = match count {
            0 => 0,
            _ => shape.iter().zip(strides).map(|(dim, stride)| (dim - 1) * stride).sum::<u64>() + 1,
        };
        let dense = c_strides(shape);
        let is_dense =
            count == 0 || shape.iter().zip(strides.iter().zip(&dense)).all(|(dim, (a, b))| *dim == 1 || a == b);
        let word = if self.storages.is_big_endian { dtype.word } else { 1 };
        let mut dims: BoxDims = shape.into();
        let layout = (!is_dense || word > 1).then(|| PartLayout { strides: strides.into(), size: dtype.size, word });
        if dtype.name == F4_PAIR {
            if layout.is_some() {
                return Err("parts of rows of pairs of 4-bit numbers are not supported".to_owned());
            }
            double_last(&mut dims);
        }
        let range = start..start + last * size;
        Ok(RankPart { dtype: Dtype::from_name(dtype.name), shape: dims, nbytes: count * size, range, layout })
    }

    fn held(&self, found: &BuiltTensor<'t>) -> Result<HeldTensor, String> {
        match found {
            BuiltTensor::Plain { function, args } => {
                let part = self.part(&self.rebuild(function, args)?)?;
                let (dtype, shape) = (part.dtype, part.shape.clone());
                let offsets = shape.iter().map(|_| 0).collect();
                Ok(HeldTensor { is_sharded: false, dtype, shape, boxes: vec![RankBox { offsets, part }] })
            }
            BuiltTensor::Wrapped { class: (module, name), args, state } if module.starts_with(DISTRIBUTED) => {
                match *name {
                    "DTensor" => self.dtensor(args, *state),
                    "ShardedTensor" => self.sharded_tensor(args, *state),
                    _ => Err(format!("it {}", unknown_class((module, name)))),
                }
            }
            BuiltTensor::Wrapped { class, .. } => Err(format!("it {}", unknown_class(*class))),
        }
    }

    /// The dtype and the shape in the arguments that describe an object of a subclass of Tensor.
    fn described(&self, args: &[PickleValue]) -> Result<(TorchDtype, BoxDims), String> {
        let [_, dtype, size, ..] = args else { return Err("its description is not what torch writes".to_owned()) };
        let (module, name) = self.tree.global(*dtype).ok_or("its dtype is missing")?;
        let dtype = dtype::of_name(module, name).filter(|dtype| dtype.size > 0);
        let dtype = dtype.ok_or_else(|| format!("its dtype {} is not known", quote(&format!("{module}.{name}"))))?;
        Ok((dtype, self.numbers(*size, "its size")?))
    }

    /// The shards of a ShardedTensor that this process holds.
    fn sharded_tensor(&self, args: &[PickleValue], state: PickleValue) -> Result<HeldTensor, String> {
        let (dtype, _) = self.described(args)?;
        let [shards, metadata, ..] = self.tree.elements(state) else {
            return Err("the state of the ShardedTensor is not what torch writes".to_owned());
        };
        let metadata = self.object(*metadata, "ShardedTensorMetadata")?;
        let mut shape = self.numbers(self.field(metadata, "size")?, "its size")?;
        let shards = self.list(*shards, "the shards")?;
        self.take_boxes(shards.len(), shape.len())?;
        let mut boxes = Vec::new();
        for shard in shards {
            let shard = self.object(*shard, "Shard")?;
            let place = self.object(self.field(shard, "metadata")?, "ShardMetadata")?;
            let mut offsets = self.numbers(self.field(place, "shard_offsets")?, "the offsets of a shard")?;
            let sizes = self.numbers(self.field(place, "shard_sizes")?, "the sizes of a shard")?;
            let local = self.plain(self.field(shard, "tensor")?, "a shard")?;
            check_local(&local, dtype, &sizes)?;
            if offsets.len() != shape.len() || sizes.len() != shape.len() {
                let (offsets, shape) = (brackets(&offsets), brackets(&shape));
                return Err(format!("a shard begins at {offsets}, and the shape is {shape}"));
            }
            if dtype.name == F4_PAIR {
                double_last(&mut offsets);
            }
            boxes.push(RankBox { offsets, part: self.part(&local)? });
        }
        if dtype.name == F4_PAIR {
            double_last(&mut shape);
        }
        Ok(HeldTensor { is_sharded: true, dtype: Dtype::from_name(dtype.name), shape, boxes })
    }

    /// The object of a class of PyTorch's distributed tensors.
    fn object(&self, value: PickleValue, class: &str) -> Result<&'t PickleObject, String> {
        let tree: &'t PickleTree = self.tree;
        let object = tree.object(value).filter(|object| !object.is_call);
        let found = object.and_then(|object| Some((object, tree.global(object.class)?)));
        match found {
            Some((object, (module, name))) if name == class && module.starts_with(DISTRIBUTED) => Ok(object),
            Some((_, class_found)) => Err(format!("an object of {class} {}", unknown_class(class_found))),
            None => Err(format!("a value is no object of {class}")),
        }
    }

    /// The value of a field in the state of an object: a dict, or two if the class has slots, of which each may be
    /// `None`.
    fn find(&self, state: PickleValue, name: &str) -> Result<Option<PickleValue>, String> {
        let dicts = match (state, self.tree.elements(state)) {
            (PickleValue::Tuple(_), [attributes, slots]) => [*attributes, *slots],
            (PickleValue::Tuple(_), parts) => {
                return Err(format!("the state of an object has {} parts instead of two", parts.len()));
            }
            _ => [PickleValue::None, state],
        };
        let dicts = dicts.map(|dict| self.tree.items(dict));
        if let Some(fields) = dicts.iter().find(|fields| fields.len() > FIELDS_MAX) {
            return Err(format!("an object has {} fields; at most {FIELDS_MAX} are read", fields.len()));
        }
        // The last one counts, as in Python.
        let mut fields = dicts.into_iter().flatten().rev();
        Ok(fields.find(|(key, _)| self.tree.is_text(*key, name)).map(|(_, value)| *value))
    }

    fn field_of(&self, state: PickleValue, name: &str, class: &str) -> Result<PickleValue, String> {
        self.find(state, name)?.ok_or_else(|| format!("an object of {class} has no field {name}"))
    }

    fn field(&self, object: &PickleObject, name: &str) -> Result<PickleValue, String> {
        let class = self.tree.global(object.class).map_or("?", |(_, class)| class);
        self.field_of(object.state, name, &quote(class))
    }

    /// A list with a value for each dimension.
    fn dims(&self, value: PickleValue, what: &str) -> Result<&'t [PickleValue], String> {
        let values = self.list(value, what)?;
        if values.len() > RANK_MAX {
            return Err(format!("{what}: {} values; torch has at most {RANK_MAX} dimensions", values.len()));
        }
        Ok(values)
    }

    /// The numbers of a `torch.Size`, a tuple or a list, one for each dimension.
    fn numbers(&self, value: PickleValue, what: &str) -> Result<BoxDims, String> {
        self.dims(value, what)?.iter().map(|value| self.number(*value, what)).collect()
    }

    fn number(&self, value: PickleValue, what: &str) -> Result<u64, String> {
        match value {
            PickleValue::Int(number @ 0..) => Ok(number.unsigned_abs()),
            _ => Err(format!("{what} has another value than whole numbers from 0 on")),
        }
    }
}

/// The number of elements of a shape that was checked. Other sizes beside one of 0 may have any product.
fn element_count(shape: &[u64]) -> u64 {
    if shape.contains(&0) { 0 } else { shape.iter().product() }
}

/// Fails unless a tensor is what the object that holds it says.
fn check_local(local: &PickledTensor, dtype: TorchDtype, shape: &[u64]) -> Result<(), String> {
    if local.dtype == dtype && local.shape == shape {
        return Ok(());
    }
    let (has, shape) = (brackets(&local.shape), brackets(shape));
    let (found, name) = (local.dtype.name, dtype.name);
    Err(format!("its part in the file is {found} {has}, and should be {name} {shape}"))
}

fn unknown_class((module, name): (&str, &str)) -> String {
    format!("is an object of {}, which is not supported", quote(&format!("{module}.{name}")))
}

/// Turns pairs of elements along the last dimension into elements.
fn double_last(dims: &mut BoxDims) {
    if let Some(last) = dims.last_mut() {
        *last = last.saturating_mul(2);
    }
}
