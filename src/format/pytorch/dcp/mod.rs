//! The file `.metadata` of a distributed checkpoint of PyTorch: which tensors it has, the parts of each, and where the
//! parts lie in the `.distcp` files.
//!
//! It is a pickle of an object of dataclasses. Two fields are read, and may hold only the classes that are listed here.
//! The other fields may hold anything and are never looked into. Source: `torch/distributed/checkpoint/metadata.py` and
//! `filesystem.py` of torch 2.0 to 2.15.

#[cfg(test)]
mod tests;

use super::dtype::{self, F4_PAIR};
use super::value::{ValueKind, value_kind};
use super::{RANK_MAX, states_start};
use crate::format::dtype::Dtype;
use crate::format::pickle::{PickleObject, PickleSpan, PickleTree, PickleValue, is_listed, load_records};
use crate::text::{brackets, quote};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Maximum size of the file in bytes. A part of a tensor takes about 140.
pub const METADATA_MAX: u64 = 160 << 20;

/// Maximum number of tensors, and of parts of all tensors. A pickle may repeat a list of parts any number of times.
const PARTS_MAX: usize = 1 << 20;

/// Maximum number of chunks that are looked at, with those that have no elements.
const CHUNKS_MAX: usize = 4 * PARTS_MAX;

/// Maximum number of all sizes and offsets. A pickle may repeat these too.
const NUMBERS_MAX: usize = 16 << 20;

/// Maximum number of fields of an object. Those of torch have at most 6.
const FIELDS_MAX: usize = 64;

const CHECKPOINT: &str = "torch.distributed.checkpoint.metadata";

/// Modules, and the names of the classes and functions of each that the two fields may hold, besides dtypes.
const KNOWN: [(&str, &str); 7] = [
    (
        CHECKPOINT,
        "TensorStorageMetadata ChunkStorageMetadata BytesStorageMetadata TensorProperties MetadataIndex \
         _MEM_FORMAT_ENCODING",
    ),
    // Before torch 2.3.
    ("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties MEM_FORMAT_ENCODING"),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    // Names a member of an enumeration.
    ("builtins", "getattr"),
];

/// The tensors of a distributed checkpoint.
#[derive(Debug)]
pub struct CheckpointIndex<'i> {
    pub tensors: Vec<CheckpointTensor<'i>>,
    parts: Vec<CheckpointPart>,
    /// The sizes and offsets of all tensors and parts.
    numbers: Vec<u64>,
    /// The names of the files that have the parts, in the directory of the checkpoint. Each is there once.
    pub files: Vec<&'i str>,
    /// Number of pickled objects that are not tensors, such as the number of steps.
    pub objects: usize,
    /// Whether it has the states of an optimizer and nothing else.
    pub is_optimizer: bool,
}

#[derive(Debug)]
pub struct CheckpointTensor<'i> {
    pub name: &'i str,
    pub dtype: Dtype<'static>,
    /// The index of the first size in `numbers`, and their number.
    numbers: usize,
    rank: usize,
    /// The indices of the first part and of the end of the parts.
    parts: (usize, usize),
}

/// A part of a tensor with at least one element.
#[derive(Debug)]
pub struct CheckpointPart {
    /// The index of the first offset in `numbers`. The sizes follow the offsets.
    numbers: usize,
    /// `None` if the file does not say where the part is.
    pub place: Option<ItemPlace>,
}

/// Where a part is stored: an archive of `torch.save` inside of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ItemPlace {
    /// The index of its name in [`CheckpointIndex::files`].
    pub file: u32,
    /// In bytes from the start of the file.
    pub offset: u64,
    /// In bytes.
    pub len: u64,
}

/// The range of indices of a part along each dimension of its tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartBounds<'n> {
    /// The index of its first element in the tensor.
    pub offsets: &'n [u64],
    pub shape: &'n [u64],
}

impl<'i> CheckpointIndex<'i> {
    /// Reads the bytes of a file. Fails with a message that does not name the file.
    pub fn parse(bytes: &'i [u8]) -> Result<Self, String> {
        let tree = load_records(bytes)?;
        let root = CheckpointReader::object(&tree, tree.root, "Metadata", "the metadata of a distributed checkpoint")?;
        let tensors = field(&tree, root, "state_dict_metadata")?;
        let places = field(&tree, root, "storage_data")?;
        if let Some((module, name)) = tree.find_global(&[tensors, places], is_refused) {
            let global = quote(&format!("{module}.{name}"));
            return Err(format!("it names {global}, which distributed checkpoints do not use"));
        }
        let mut reader = CheckpointReader { tree: &tree, index: Self::empty(), chunks: 0 };
        reader.tensors(tensors)?;
        reader.places(places)?;
        Ok(reader.index)
    }

    fn empty() -> Self {
        let (tensors, parts, numbers, files) = Default::default();
        Self { tensors, parts, numbers, files, objects: 0, is_optimizer: false }
    }

    pub fn shape(&self, tensor: &CheckpointTensor) -> &[u64] {
        &self.numbers[tensor.numbers..tensor.numbers + tensor.rank]
    }

    /// Number of parts of all tensors.
    pub fn part_count(&self) -> usize {
        self.parts.len()
    }

    /// The numbers of the parts of a tensor. Parts without elements are left out.
    pub fn part_numbers(&self, tensor: &CheckpointTensor) -> Range<usize> {
        tensor.parts.0..tensor.parts.1
    }

    /// A part by its number. Panics unless it is below [`CheckpointIndex::part_count`].
    pub fn part(&self, number: usize) -> &CheckpointPart {
        &self.parts[number]
    }

    pub fn bounds(&self, tensor: &CheckpointTensor, part: &CheckpointPart) -> PartBounds<'_> {
        let (offsets, shape) = self.numbers[part.numbers..part.numbers + 2 * tensor.rank].split_at(tensor.rank);
        PartBounds { offsets, shape }
    }
}

/// The value of a field of an object of a dataclass.
fn field(tree: &PickleTree, object: &PickleObject, name: &str) -> Result<PickleValue, String> {
    optional_field(tree, object, name)?.ok_or_else(|| {
        let class = tree.global(object.class).map_or("?", |(_, class)| class);
        format!("an object of {} has no field {name}", quote(class))
    })
}

fn optional_field(tree: &PickleTree, object: &PickleObject, name: &str) -> Result<Option<PickleValue>, String> {
    let fields = tree.items(object.state);
    if fields.len() > FIELDS_MAX {
        return Err(format!("an object has {} fields; at most {FIELDS_MAX} are read", fields.len()));
    }
    // The last one counts, as in Python.
    Ok(fields.iter().rev().find(|(key, _)| tree.is_text(*key, name)).map(|(_, value)| *value))
}

struct CheckpointReader<'t, 'i> {
    tree: &'t PickleTree<'i>,
    index: CheckpointIndex<'i>,
    /// Number of chunks that were looked at.
    chunks: usize,
}

impl<'t, 'i> CheckpointReader<'t, 'i> {
    /// The object of a class, or what it is instead. `what` is what is read.
    fn object(tree: &'t PickleTree, value: PickleValue, class: &str, what: &str) -> Result<&'t PickleObject, String> {
        let object = tree.object(value).filter(|object| !object.is_call);
        let found = object.and_then(|object| Some((object, tree.global(object.class)?)));
        match found {
            Some((object, (module, name))) if name == class && is_checkpoint_module(module) => Ok(object),
            Some((_, (module, name))) => Err(format!(
                "{what} is an object of {}, and should be one of {class}",
                quote(&format!("{module}.{name}"))
            )),
            None => Err(format!("{what} is no object of {class}")),
        }
    }

    fn mapping(
        &self,
        value: PickleValue,
        what: &str,
    ) -> Result<impl Iterator<Item = (PickleValue, PickleValue)> + use<'t, 'i>, String> {
        match value_kind(self.tree, value) {
            ValueKind::Dict(items) => Ok(items.items()),
            _ => Err(format!("{what} is not a dict")),
        }
    }

    fn tensors(&mut self, value: PickleValue) -> Result<(), String> {
        let mut names = HashSet::new();
        for (key, value) in self.mapping(value, "state_dict_metadata")? {
            let name = self.tree.text(key).ok_or("the name of a tensor is not a text")?;
            if !names.insert(name) {
                return Err(format!("two tensors are called {}", quote(name)));
            }
            let class = self.tree.object(value).and_then(|object| self.tree.global(object.class));
            if class == Some((CHECKPOINT, "BytesStorageMetadata")) {
                self.index.objects += 1;
                continue;
            }
            self.tensor(name, value).map_err(|fault| format!("tensor {}: {fault}", quote(name)))?;
        }
        self.index.is_optimizer = states_start(names).is_some();
        Ok(())
    }

    fn tensor(&mut self, name: &'i str, value: PickleValue) -> Result<(), String> {
        let tree = self.tree;
        let tensor = Self::object(tree, value, "TensorStorageMetadata", "its description")?;
        let dtype = self.dtype(field(tree, tensor, "properties")?)?;
        let is_pair = dtype.name() == F4_PAIR;
        let numbers = self.index.numbers.len();
        let rank = self.numbers(field(tree, tensor, "size")?, is_pair)?;
        let start = self.index.parts.len();
        let chunks = field(tree, tensor, "chunks")?;
        let PickleValue::List(_) = chunks else { return Err("its chunks are not a list".to_owned()) };
        for chunk in tree.elements(chunks) {
            self.part(*chunk, rank, is_pair)?;
        }
        if self.index.tensors.len() == PARTS_MAX {
            return Err(format!("more than {PARTS_MAX} tensors"));
        }
        let parts = (start, self.index.parts.len());
        self.index.tensors.push(CheckpointTensor { name, dtype, numbers, rank, parts });
        Ok(())
    }

    fn part(&mut self, value: PickleValue, rank: usize, is_pair: bool) -> Result<(), String> {
        self.chunks += 1;
        if self.chunks > CHUNKS_MAX {
            return Err(format!("more than {CHUNKS_MAX} chunks of all tensors"));
        }
        let chunk = Self::object(self.tree, value, "ChunkStorageMetadata", "a chunk")?;
        let numbers = self.index.numbers.len();
        for name in ["offsets", "sizes"] {
            let found = self.numbers(field(self.tree, chunk, name)?, is_pair)?;
            if found != rank {
                return Err(format!("the {name} of a chunk have {found} dimensions instead of {rank}"));
            }
        }
        // A process that has no element of a tensor saves an empty part, which may be in the same place as another.
        if self.index.numbers[numbers + rank..].contains(&0) {
            self.index.numbers.truncate(numbers);
            return Ok(());
        }
        if self.index.parts.len() == PARTS_MAX {
            return Err(format!("more than {PARTS_MAX} chunks of all tensors"));
        }
        self.index.parts.push(CheckpointPart { numbers, place: None });
        Ok(())
    }

    /// Only the dtype of the properties counts. Their strides are those of one process.
    fn dtype(&self, properties: PickleValue) -> Result<Dtype<'static>, String> {
        let object = Self::object(self.tree, properties, "TensorProperties", "its properties")?;
        let value = match object.state {
            PickleValue::Tuple(_) => self.tree.elements(object.state).first().copied(),
            _ => optional_field(self.tree, object, "dtype")?,
        };
        let (module, name) = value.and_then(|value| self.tree.global(value)).ok_or("its dtype is missing")?;
        let dtype = dtype::of_name(module, name).filter(|dtype| dtype.size > 0);
        let dtype = dtype.ok_or_else(|| format!("its dtype {} is not known", quote(&format!("{module}.{name}"))))?;
        Ok(Dtype::from_name(dtype.name))
    }

    /// Adds the numbers of a `torch.Size`, and returns how many there are. `is_pair` is whether they count pairs of
    /// elements along the last dimension.
    fn numbers(&mut self, value: PickleValue, is_pair: bool) -> Result<usize, String> {
        let ValueKind::List(values) = value_kind(self.tree, value) else {
            return Err("a size is no tuple of numbers".to_owned());
        };
        if values.len() > RANK_MAX {
            return Err(format!("{} dimensions; torch has at most {RANK_MAX}", values.len()));
        }
        let numbers = &mut self.index.numbers;
        if numbers.len() + values.len() > NUMBERS_MAX {
            return Err(format!("more than {NUMBERS_MAX} sizes and offsets of all tensors"));
        }
        for value in values {
            let PickleValue::Int(number @ 0..) = value else {
                return Err("a size or an offset is no whole number from 0 on".to_owned());
            };
            numbers.push(number.unsigned_abs());
        }
        if is_pair && let Some(last) = numbers.last_mut().filter(|_| !values.is_empty()) {
            *last = last.saturating_mul(2);
        }
        Ok(values.len())
    }

    /// Reads where the parts lie.
    fn places(&mut self, value: PickleValue) -> Result<(), String> {
        let by_offsets = self.parts_by_offsets()?;
        let by_name: HashMap<&str, u32> = self.index.tensors.iter().map(|tensor| tensor.name).zip(0..).collect();
        let mut places: Vec<Option<ItemPlace>> = vec![None; self.index.parts.len()];
        let (mut files, mut offsets) = (ItemFiles::default(), Vec::new());
        // A pickle may repeat a long name any number of times.
        let mut known: HashMap<PickleSpan, Option<u32>> = HashMap::new();
        for (key, value) in self.mapping(value, "storage_data")? {
            let key = Self::object(self.tree, key, "MetadataIndex", "a key of storage_data")?;
            let name = field(self.tree, key, "fqn")?;
            let PickleValue::Text(span) = name else { return Err("a key of storage_data has no name".to_owned()) };
            let number = known.entry(span).or_insert_with(|| by_name.get(self.tree.text(name)?).copied());
            let Some(number) = *number else { continue };
            self.offsets(optional_field(self.tree, key, "offset")?, number, &mut offsets)?;
            let Some(part) = by_offsets.get(&(number, &offsets[..])) else { continue };
            let place = self.place(value, &mut files).map_err(|fault| {
                let CheckpointTensor { name, .. } = &self.index.tensors[number as usize];
                format!("tensor {}: {fault}", quote(name))
            })?;
            places[*part] = Some(place);
        }
        drop(by_offsets);
        for (part, place) in self.index.parts.iter_mut().zip(places) {
            part.place = place;
        }
        self.index.files = files.names;
        Ok(())
    }

    /// The number of each part, by the number of its tensor and its offsets. Two parts with the same offsets would have
    /// the same element.
    fn parts_by_offsets(&self) -> Result<HashMap<(u32, &[u64]), usize>, String> {
        let index = &self.index;
        let mut found = HashMap::with_capacity(index.parts.len());
        for (number, tensor) in (0..).zip(&index.tensors) {
            for part in index.part_numbers(tensor) {
                let PartBounds { offsets, .. } = index.bounds(tensor, &index.parts[part]);
                if found.insert((number, offsets), part).is_some() {
                    let name = quote(tensor.name);
                    return Err(format!("tensor {name}: two chunks begin at {}", brackets(offsets)));
                }
            }
        }
        Ok(found)
    }

    /// The offsets in a key, in the units of the parts of the tensor with that number.
    fn offsets(&self, value: Option<PickleValue>, tensor: u32, offsets: &mut Vec<u64>) -> Result<(), String> {
        offsets.clear();
        let value = value.unwrap_or_default();
        if value == PickleValue::None {
            return Ok(());
        }
        let ValueKind::List(values) = value_kind(self.tree, value) else {
            return Err("the offset in a key of storage_data is no tuple of numbers".to_owned());
        };
        if values.len() != self.index.tensors[tensor as usize].rank {
            // No part has such offsets. Those of scalars have none.
            offsets.push(u64::MAX);
            return Ok(());
        }
        for value in values {
            let PickleValue::Int(number @ 0..) = value else {
                return Err("the offset in a key of storage_data has other values than numbers from 0 on".to_owned());
            };
            offsets.push(number.unsigned_abs());
        }
        let is_pair = self.index.tensors[tensor as usize].dtype.name() == F4_PAIR;
        if let Some(last) = offsets.last_mut().filter(|_| is_pair) {
            *last = last.saturating_mul(2);
        }
        Ok(())
    }

    fn place(&self, value: PickleValue, files: &mut ItemFiles<'i>) -> Result<ItemPlace, String> {
        let tree = self.tree;
        let info = Self::object(tree, value, "_StorageInfo", "the place of a chunk")?;
        self.check_transforms(optional_field(tree, info, "transform_descriptors")?)?;
        let file = files.number(tree, field(tree, info, "relative_path")?)?;
        let (PickleValue::Int(offset @ 0..), PickleValue::Int(len @ 0..)) =
            (field(tree, info, "offset")?, field(tree, info, "length")?)
        else {
            return Err("the offset or the length of a chunk is no whole number from 0 on".to_owned());
        };
        Ok(ItemPlace { file, offset: offset.unsigned_abs(), len: len.unsigned_abs() })
    }

    /// Fails if the bytes of a part were changed, such as compressed, before they were stored.
    fn check_transforms(&self, transforms: Option<PickleValue>) -> Result<(), String> {
        let transforms = transforms.unwrap_or_default();
        let names = match transforms {
            PickleValue::None => return Ok(()),
            PickleValue::List(_) | PickleValue::Tuple(_) => self.tree.elements(transforms),
            _ => return Err("transform_descriptors is not a list".to_owned()),
        };
        let Some(first) = names.first() else { return Ok(()) };
        let name = quote(self.tree.text(*first).unwrap_or("?"));
        Err(format!("it is stored with the transform {name}, which is not supported (save it without)"))
    }
}

/// The files of the parts, numbered in the order of their first use.
#[derive(Default)]
struct ItemFiles<'i> {
    names: Vec<&'i str>,
    by_name: HashMap<&'i str, u32>,
    by_span: HashMap<PickleSpan, u32>,
}

impl<'i> ItemFiles<'i> {
    fn number(&mut self, tree: &PickleTree<'i>, path: PickleValue) -> Result<u32, String> {
        let PickleValue::Text(span) = path else { return Err("the path of a chunk is not a text".to_owned()) };
        if let Some(number) = self.by_span.get(&span) {
            return Ok(*number);
        }
        let name = tree.text(path).ok_or("the path of a chunk is not UTF-8")?;
        check_path(name)?;
        let number = *self.by_name.entry(name).or_insert_with(|| {
            self.names.push(name);
            self.names.len() as u32 - 1
        });
        self.by_span.insert(span, number);
        Ok(number)
    }
}

fn is_refused(module: &str, name: &str) -> bool {
    !is_listed(&KNOWN, module, name) && dtype::of_name(module, name).is_none()
}

fn is_checkpoint_module(module: &str) -> bool {
    KNOWN[..3].iter().any(|(known, _)| *known == module)
}

/// Accepts only names of files in the directory of the checkpoint.
fn check_path(path: &str) -> Result<(), String> {
    /// The longest file name on Linux, in bytes.
    const NAME_MAX: usize = 255;
    let why = match path {
        "" => "is empty",
        "." | ".." => "is a directory",
        _ if path.contains(['/', '\\']) => "leads out of the directory",
        _ if path.contains('\0') => "has a zero byte",
        _ if path.len() > NAME_MAX => "is too long",
        _ => return Ok(()),
    };
    Err(format!("refused: the path {} {why}", quote(path)))
}
