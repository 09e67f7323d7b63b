//! A distributed checkpoint of PyTorch: a directory with the file `.metadata`, which names the tensors and their parts,
//! and files such as `__0_0.distcp`, which have the parts. Each part is an archive of `torch.save` of its own, which
//! has one tensor.
//!
//! Source: PyTorch, `FileSystemWriter` in `torch/distributed/checkpoint/filesystem.py`.
//!
//! The location of such a model is that of `.metadata`. The archives are looked into when the model is opened.

use super::set::{self, KnownFiles, OPTIMIZER, SEVERAL_FILES, SHARDS_MAX, SetMismatches};
use crate::content::{ArrayBox, check_cover};
use crate::format::pytorch::{self, CheckpointIndex, CheckpointPart, CheckpointTensor, ItemPlace, PartBounds};
use crate::format::{self, Header, HeaderInput, HeaderTensor, MissingRange, ParseMode, TensorInfo, TensorLayout};
use crate::model::assembled::TensorAssembly;
use crate::model::boxes::TensorBox;
use crate::model::error::{Error, LINKED};
use crate::model::ids::ModelFileId;
use crate::model::linked::is_below;
use crate::model::table::{DescribingFile, Model, ModelAccess, ModelFile, ModelForm, NoteKind};
use crate::source::{self, FileId, ListedEntry, ListedKind, Location, Source};
use crate::text::{brackets, quote};
use crate::threads;
use crate::units::plural;
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;

/// The name of the file that describes the checkpoint.
const METADATA: &str = ".metadata";

/// The name of that file while it is written. It is renamed at the end of the save.
const UNFINISHED: &str = ".metadata.tmp";

const SUFFIX: &[u8] = b".distcp";

/// Number of bytes that are read at first at the end of an archive. Those that torch writes have less than 1 KiB after
/// the data.
const ITEM_TAIL: u64 = 4 << 10;

/// Maximum number of bytes of an archive that are read to find its tensor, and of reads.
const ITEM_READ_MAX: u64 = 192 << 10;
const ITEM_READS_MAX: usize = 16;

/// Number of archives that are looked into before a fault ends the work.
const READ_TOGETHER: usize = 1024;

const FORM: ModelForm = ModelForm {
    kind: "checkpoint",
    edit_refusal: Some(SEVERAL_FILES),
    access: ModelAccess::FilesAndDirectories,
    has_shards: false,
    shows_stored: false,
    holds_weights: true,
    notes: NoteKind::Index,
};

/// The name of the file that describes the checkpoint in a directory with these entries, or of one that was left by a
/// save without a description of all processes. `None` if the directory is not that of a checkpoint.
pub(in crate::model) fn description_in(entries: &[ListedEntry]) -> Option<OsString> {
    let files = || entries.iter().filter(|entry| entry.kind == ListedKind::File);
    let has_parts = files().any(|entry| entry.name.as_bytes().ends_with(SUFFIX));
    let names = files().map(|entry| &entry.name[..]).filter(|name| has_parts && is_description(name));
    // The names sort as `.metadata`, `.metadata.tmp`, `__0.metadata`.
    names.min().map(OsStr::to_owned)
}

/// Whether a file of that name describes a checkpoint, or a part of it.
pub fn is_description(name: &OsStr) -> bool {
    name == METADATA || name == UNFINISHED || is_of_one_process(name)
}

/// Whether the file at a location describes a whole checkpoint, and not a part of it or a save that is not finished.
pub(in crate::model) fn is_whole(location: &Location) -> bool {
    location.file_name() == METADATA
}

/// Whether a file of that name beside a description has no tensors that belong to the model: those of Megatron and of
/// Lightning have the settings of the training.
pub(in crate::model) fn is_supplement(name: &OsStr) -> bool {
    name == "common.pt" || name == "meta.pt"
}

/// Whether a name is that of the description that each process writes by itself if they cannot talk to each other, such
/// as `__0.metadata`.
fn is_of_one_process(name: &OsStr) -> bool {
    let number = name.as_bytes().strip_prefix(b"__").and_then(|rest| rest.strip_suffix(METADATA.as_bytes()));
    number.is_some_and(|number| !number.is_empty() && number.iter().all(u8::is_ascii_digit))
}

pub(super) fn checkpoint_files(location: &Location) -> KnownFiles {
    let read = set::read_list(location, pytorch::METADATA_MAX).ok();
    let index = read.as_ref().and_then(|(bytes, _)| CheckpointIndex::parse(bytes).ok());
    let dir = location.parent();
    let names = index.iter().flat_map(|index| &index.files).take(SHARDS_MAX);
    let is_optimizer = is_whole(location) && index.as_ref().is_some_and(|index| index.is_optimizer);
    let files = KnownFiles::with(location, names.map(|name| dir.join(name)).collect());
    KnownFiles { set: is_optimizer.then_some(OPTIMIZER), ..files }
}

/// Fails if the file at `location` does not describe the checkpoint of all processes.
fn check_finished(location: &Location) -> Result<(), Error> {
    let name = location.file_name();
    let fault = match () {
        () if name == METADATA => return Ok(()),
        () if name == UNFINISHED => "the save of this distributed checkpoint is unfinished: .metadata is missing",
        () => {
            "describes only what one process saved, as with use_collectives=False; only checkpoints with .metadata are \
             read"
        }
    };
    Err(Error::of_set(location, fault))
}

/// Opens the checkpoint that the file at `location` describes.
pub(super) fn open_checkpoint(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    check_finished(location)?;
    let (bytes, source) = set::read_source(location, pytorch::METADATA_MAX)?;
    let described_by = DescribingFile { location: location.clone(), id: source.id(), stat: source.stat() };
    let index = CheckpointIndex::parse(&bytes);
    let index = index.map_err(|fault| Error::of_set(location, format!("distributed checkpoint: {fault}")))?;
    let mut mismatches = SetMismatches::default();
    let CheckpointFiles { files, homes, unopened } = open_files(location, &index, &mut mismatches)?;
    let mut model = Model::new(location, &FORM, files);
    let parts = CheckpointParts::new(&index, &model, homes);
    let mut faults = parts.find_faults(&model);
    let items = parts.read_items(&model, mode, &mut faults)?;
    // A checkpoint that is saved again over this one has other files, and then another description.
    source.verify()?;
    parts.set_ends(&model, &items);
    let mut assembly = TensorAssembly::new(model.sources());
    for (tensor, fault) in index.tensors.iter().zip(faults) {
        let joined = fault.map_or_else(|| parts.join(tensor, &items, &mut assembly), Err);
        if let Err(reason) = joined {
            mismatches.push(tensor.name, || format!("tensor {}: {reason}", quote(tensor.name)));
        }
    }
    let assembled = assembly.finish().map_err(|_| Error::of_set(location, "the names of its tensors are too long"))?;
    let mismatches = mismatches.settle(location, mode)?;
    model.set_assembled(assembled, Vec::new());
    let objects = match index.objects {
        0 => String::new(),
        objects => format!(", without {}", plural(objects as u64, "other object")),
    };
    let facts = &mut model.facts;
    facts.description = format!("a distributed checkpoint of {}{objects}", plural(index.files.len() as u64, "file"));
    facts.metadata = Some(Vec::new());
    facts.described_by.push(described_by);
    (facts.unopened, facts.mismatches) = (unopened, mismatches);
    Ok(model)
}

/// The files of a checkpoint.
struct CheckpointFiles {
    /// Sorted by name.
    files: Vec<ModelFile>,
    /// The index in `files` of each file of the description, if it could be opened.
    homes: Vec<Option<usize>>,
    unopened: Vec<Location>,
}

fn open_files(
    location: &Location,
    index: &CheckpointIndex,
    mismatches: &mut SetMismatches,
) -> Result<CheckpointFiles, Error> {
    if index.files.len() > SHARDS_MAX {
        let count = index.files.len();
        return Err(Error::of_set(location, format!("names {count} files; at most {SHARDS_MAX} are opened")));
    }
    let dir = location.parent();
    let mut order: Vec<usize> = (0..index.files.len()).collect();
    order.sort_by_key(|at| index.files[*at]);
    let opened = threads::map_parallel(order.len(), |at| source::open_local(&dir.join(index.files[order[at]])));
    let (mut files, mut homes, mut unopened) = (Vec::new(), vec![None; order.len()], Vec::new());
    for (at, opened) in order.into_iter().zip(opened) {
        let name = index.files[at];
        let location = dir.join(name);
        match opened {
            Ok(source) => {
                homes[at] = Some(files.len());
                let mut header = Header::empty(0);
                header.format = pytorch::DISTCP;
                files.push(ModelFile { name: name.to_owned(), location, header, source });
            }
            // The file may be intact.
            Err(error) if error.is_transient() => return Err(error.into()),
            Err(error) => {
                mismatches.push_shard(name, || format!("a file is missing or broken: {error}"));
                unopened.push(location);
            }
        }
    }
    if files.is_empty() {
        mismatches.refuse_nothing(location, "files")?;
    }
    Ok(CheckpointFiles { files, homes, unopened })
}

/// The place of the tensor of a part in its file.
struct ItemTensor {
    /// In bytes from the start of the file.
    range: Range<u64>,
    nbytes: u64,
    /// Unless the elements follow each other in C order.
    layout: Option<ItemLayout>,
}

/// As [`TensorLayout`].
struct ItemLayout {
    strides: Box<[u64]>,
    size: u32,
    word: u8,
}

impl ItemLayout {
    fn borrowed(&self) -> TensorLayout<'_> {
        TensorLayout { strides: &self.strides, size: self.size, word: self.word }
    }
}

/// The description of a checkpoint, and where its files are in the model.
struct CheckpointParts<'c> {
    index: &'c CheckpointIndex<'c>,
    /// The index in the model of each file of the description, if it could be opened.
    homes: Vec<Option<usize>>,
    /// Whether messages may quote each file of the model: it lies in the directory of the checkpoint.
    are_quoted: Vec<bool>,
}

/// The tensor of each part by the number of the part, of those that were looked into.
type ItemTensors = Vec<Option<ItemTensor>>;

/// Why each tensor cannot be used.
type TensorFaults = Vec<Option<String>>;

impl<'c> CheckpointParts<'c> {
    fn new(index: &'c CheckpointIndex<'c>, model: &Model, homes: Vec<Option<usize>>) -> Self {
        let dir = model.location.parent();
        let are_quoted = model.files.iter().map(|file| is_below(&file.location, &dir)).collect();
        Self { index, homes, are_quoted }
    }

    /// The index of the file of a part in the model, if it could be opened.
    fn home(&self, part: &CheckpointPart) -> Option<usize> {
        part.place.and_then(|place| self.homes[place.file as usize])
    }

    /// The tensors that the description alone shows to be faulty: parts that do not cover them, that lie nowhere, or
    /// that have bytes of another part. So the work on the files is bounded by their sizes.
    fn find_faults(&self, model: &Model) -> TensorFaults {
        let tensors = &self.index.tensors;
        let mut faults = threads::map_parallel(tensors.len(), |at| self.cover_fault(&tensors[at]));
        let mut places: Vec<(FileId, u64, u64, usize)> = Vec::new();
        for (at, tensor) in tensors.iter().enumerate() {
            for part in self.index.part_numbers(tensor).map(|number| self.index.part(number)) {
                if let (Some(ItemPlace { offset, len, .. }), Some(home)) = (part.place, self.home(part)) {
                    // Two names may be those of one file.
                    let file = model.files[home].source.id().unwrap_or((0, home as u64));
                    places.push((file, offset, offset.saturating_add(len), at));
                }
            }
        }
        places.sort_unstable();
        let mut before: Option<(FileId, u64, usize)> = None;
        for (file, start, end, at) in places {
            let overlaps = before.filter(|(other, reached, _)| *other == file && *reached > start);
            if let Some((.., other)) = overlaps {
                let name = quote(tensors[other].name);
                faults[at].get_or_insert_with(|| format!("its part at byte {start} has bytes of a part of {name}"));
            }
            let reached = before.filter(|(other, ..)| *other == file).map_or(end, |(_, reached, _)| reached.max(end));
            before = Some((file, reached, at));
        }
        faults
    }

    /// Why the parts of a tensor do not make it, whatever they hold.
    fn cover_fault(&self, tensor: &CheckpointTensor) -> Option<String> {
        let boxes = self.index.part_numbers(tensor).map(|number| {
            let PartBounds { offsets, shape } = self.index.bounds(tensor, self.index.part(number));
            // Whatever the strides are, they are not looked at.
            ArrayBox { offsets: offsets.into(), shape: shape.into(), strides: shape.into() }
        });
        check_cover(self.index.shape(tensor), &boxes.collect::<Vec<_>>()).err().map(|fault| fault.to_string())
    }

    /// Looks into the archives of the parts of all tensors without a fault, in the order of their bytes. In strict
    /// mode, a fault ends the work. Fails if a file cannot be read now.
    fn read_items(&self, model: &Model, mode: ParseMode, faults: &mut TensorFaults) -> Result<ItemTensors, Error> {
        let index = self.index;
        let mut items: ItemTensors = (0..index.part_count()).map(|_| None).collect();
        let sound = faults.iter().enumerate().filter(|(_, fault)| fault.is_none());
        let parts = sound.flat_map(|(at, _)| index.part_numbers(&index.tensors[at]).map(move |number| (at, number)));
        let mut parts: Vec<(usize, usize)> = parts.collect();
        parts.sort_by_key(|(_, number)| index.part(*number).place.map(|place| (place.file, place.offset)));
        for some in parts.chunks(READ_TOGETHER) {
            if mode == ParseMode::Strict && faults.iter().any(Option::is_some) {
                break;
            }
            let read = threads::map_parallel(some.len(), |at| {
                let (tensor, number) = some[at];
                self.read_item(model, &index.tensors[tensor], index.part(number))
            });
            for ((tensor, number), item) in some.iter().zip(read) {
                match item? {
                    Ok(item) => items[*number] = Some(item),
                    Err(fault) => {
                        let fault = self.named_fault(&index.tensors[*tensor], index.part(*number), &fault);
                        faults[*tensor].get_or_insert(fault);
                    }
                }
            }
        }
        Ok(items)
    }

    /// A fault with the name of the part.
    fn named_fault(&self, tensor: &CheckpointTensor, part: &CheckpointPart, fault: &str) -> String {
        let offsets = brackets(self.index.bounds(tensor, part).offsets);
        match part.place {
            Some(place) => {
                let file = quote(self.index.files[place.file as usize]);
                format!("its part at {offsets} in {file}: {fault}")
            }
            None => format!("its part at {offsets}: {fault}"),
        }
    }

    /// The tensor in the archive of a part.
    fn read_item(
        &self,
        model: &Model,
        tensor: &CheckpointTensor,
        part: &CheckpointPart,
    ) -> Result<Result<ItemTensor, String>, Error> {
        let Some(place) = part.place else { return Ok(Err("storage_data does not say where it is".to_owned())) };
        let Some(home) = self.home(part) else { return Ok(Err("the file cannot be opened".to_owned())) };
        let header = item_header(&*model.files[home].source, &place)?;
        let item =
            header.and_then(|header| only_tensor(&header, &place, tensor, self.index.bounds(tensor, part).shape));
        // What a link out of the directory leads to may be private.
        Ok(item.map_err(|fault| if self.are_quoted[home] { fault } else { LINKED.to_owned() }))
    }

    /// Sets where the tensors end in each file, for sources that read ahead.
    fn set_ends(&self, model: &Model, items: &ItemTensors) {
        let mut ends: Vec<Vec<u64>> = vec![Vec::new(); model.files.len()];
        for (number, item) in items.iter().enumerate() {
            if let (Some(home), Some(item)) = (self.home(self.index.part(number)), item) {
                ends[home].push(item.range.end);
            }
        }
        for (file, ends) in model.files.iter().zip(ends) {
            file.source.set_ends(ends.into_iter());
        }
    }

    /// Joins the parts of a tensor. The error is the reason why they do not make it.
    fn join(
        &self,
        tensor: &CheckpointTensor,
        items: &ItemTensors,
        assembly: &mut TensorAssembly,
    ) -> Result<(), String> {
        let CheckpointTensor { name, dtype, .. } = *tensor;
        let boxes = self.index.part_numbers(tensor).map(|number| {
            let part = self.index.part(number);
            let ItemTensor { range, nbytes, layout } = items[number].as_ref().ok_or("a part of it was not read")?;
            let PartBounds { offsets, shape } = self.index.bounds(tensor, part);
            let info = TensorInfo { name, dtype, shape, nbytes: *nbytes };
            let layout = layout.as_ref().map(ItemLayout::borrowed);
            let file = ModelFileId::new(self.home(part).unwrap_or_default());
            Ok(TensorBox { file, stored: HeaderTensor { info, range: range.clone(), layout }, offsets })
        });
        let boxes = boxes.collect::<Result<Vec<TensorBox>, String>>()?;
        let shape = self.index.shape(tensor);
        let data = assembly.join_boxes(shape, &boxes)?;
        assembly.push(name, dtype, shape, data).map_err(str::to_owned)
    }
}

/// The header of the archive at a place in a file.
fn item_header(source: &dyn Source, place: &ItemPlace) -> Result<Result<Header, String>, Error> {
    let ItemPlace { offset, len, .. } = *place;
    if offset.checked_add(len).is_none_or(|end| end > source.len()) {
        let has = source.len();
        return Ok(Err(format!(
            "its {len} bytes at byte {offset} go beyond the end of the file, which has {has} bytes"
        )));
    }
    let mut input = HeaderInput::with_tail(len, ITEM_TAIL);
    for _ in 0..ITEM_READS_MAX {
        let range = match pytorch::parse_zip(&input, ParseMode::Strict) {
            Ok(header) => return Ok(Ok(header)),
            Err(format::Error::Missing(MissingRange(range))) => range,
            Err(error) => return Ok(Err(format!("at byte {offset}: {error}"))),
        };
        if input.held().saturating_add(range.end - range.start) > ITEM_READ_MAX {
            break;
        }
        let mut bytes = vec![0; (range.end - range.start) as usize];
        source.read_exact_at(&mut bytes, offset + range.start)?;
        input.add(range.start, bytes);
    }
    Ok(Err(format!("at byte {offset}: the archive has more besides its data than {ITEM_READ_MAX} bytes")))
}

/// The only tensor of an archive. It must be what the description of the checkpoint says.
fn only_tensor(
    header: &Header,
    place: &ItemPlace,
    tensor: &CheckpointTensor,
    shape: &[u64],
) -> Result<ItemTensor, String> {
    let offset = place.offset;
    let mut tensors = header.tensors();
    let (Some(found), None) = (tensors.next(), tensors.next()) else {
        return Err(format!(
            "the archive at byte {offset} has {} instead of one",
            plural(header.len() as u64, "tensor")
        ));
    };
    if found.name != pytorch::UNNAMED || !header.metadata.is_empty() {
        return Err(format!("the archive at byte {offset} has an object with a tensor instead of a tensor"));
    }
    if found.dtype != tensor.dtype || found.shape != shape {
        let (has, shape) = (brackets(found.shape), brackets(shape));
        let dtypes = (found.dtype.quoted(), tensor.dtype.quoted());
        return Err(format!("it is {} {has} in the file, and {} {shape} in .metadata", dtypes.0, dtypes.1));
    }
    let range = offset + found.range.start..offset + found.range.end;
    let layout =
        found.layout.map(|TensorLayout { strides, size, word }| ItemLayout { strides: strides.into(), size, word });
    Ok(ItemTensor { range, nbytes: found.nbytes, layout })
}
