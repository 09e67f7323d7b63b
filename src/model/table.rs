//! The table of a model's tensors, over all of its files.

use super::assembled::AssembledTensors;
use super::data::{self, BytePlaces, TensorData};
use super::ids::{ModelFileId, TensorId};
use super::others::OtherFiles;
use super::population::TensorPopulation;
use super::quantized::QuantizedWeights;
use crate::content::{Extents, Segment, SourceRun, Sources};
use crate::format::{
    Dtype, Header, HeaderTensor, MetadataValue, NameTable, SkipList, SkippedEntry, TensorInfo, TensorTable,
};
use crate::source::{self, FileId, Location, Source, SourceStat};
use crate::text::quote;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt;
use std::sync::{Arc, OnceLock};

/// The name of the index of a sharded model among its documents.
pub const INDEX: &str = "model.safetensors.index.json";

/// The tensors of a model as one name space, and the files that it is made of.
///
/// Tensors are numbered: first the assembled ones, which are made of parts of files; then the tensors of the files,
/// file by file in the order of their names, each in the order of its data. There are three populations:
/// - [`Model::logical`]: the name space of the model. Every name occurs once.
/// - [`Model::listed`]: the logical tensors, and those that are shown only in their own file.
/// - [`Model::stored`]: the tensors of the files as they are, assembled or not.
///
/// Methods panic if no tensor or no file has the given number.
#[derive(Debug)]
pub struct Model {
    pub location: Location,
    pub form: &'static ModelForm,
    pub facts: ModelFacts,
    /// In the order of their names.
    pub files: Vec<ModelFile>,
    /// The bytes of the files, in the same order, for the contents that refer to them by number.
    sources: Sources,
    assembled: AssembledTensors,
    /// The logical tensors have numbers below this.
    len: usize,
    /// The tensors that are shown only in their own file, sorted. Those below `len` are not logical.
    only_in_own_file: Vec<TensorId>,
    /// The number of the first tensor of each file, and the end of the last one.
    first: Vec<TensorId>,
    /// Finds logical tensors of several files; built at the first lookup.
    by_name: OnceLock<NameTable>,
    pub quantized: QuantizedWeights,
}

/// Properties of all models of an assembler. Later layers print them and act on them.
#[derive(Debug)]
pub struct ModelForm {
    /// For programs, in `inspect --json`.
    pub kind: &'static str,
    /// Why a command cannot change the file; `None` if the model is one file of its own.
    pub edit_refusal: Option<&'static str>,
    pub access: ModelAccess,
    /// Whether the model may have several files, which are then shown one by one.
    pub has_shards: bool,
    /// Whether the tensors of each file are shown as they are stored.
    pub shows_stored: bool,
    /// Whether the tensors are weights, which may be quantized, and not data.
    pub holds_weights: bool,
    pub notes: NoteKind,
}

impl ModelForm {
    /// One file that is a model.
    pub(super) const FILE: Self = Self {
        kind: "file",
        edit_refusal: None,
        access: ModelAccess::File,
        has_shards: false,
        shows_stored: false,
        holds_weights: true,
        notes: NoteKind::Splits,
    };
}

/// Who may read a mount of a model that the user named.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelAccess {
    /// Those who may read the file that the user named.
    File,
    /// Those who may read all files of the model, of which the user named only one, and search the directories between
    /// the model's base and them.
    FilesAndDirectories,
}

/// The subject of the mismatches and the remarks about a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoteKind {
    /// An index, whose entries may be repeated.
    Index,
    Manifest,
    /// The numbers in the names of shards.
    Numbers,
    /// The names and keys of splits.
    Splits,
}

/// The facts about a model besides its tensors. Its assembler sets those that it knows.
#[derive(Debug, Default)]
pub struct ModelFacts {
    /// A description that follows the format, such as `3 shards by an index`; empty for a file.
    pub description: String,
    /// The manifest that names the files of the model, if it is not at the location of the model.
    pub main_file: Option<Location>,
    /// The directory that holds all files, if that is not the directory of the main file or one above it.
    pub base: Option<Location>,
    /// The text of `config.json`, if it was read because the model may be quantized.
    pub config: Option<Vec<u8>>,
    /// The network that the configuration of a quantized model names, such as `llama`.
    pub network: Option<String>,
    /// The name of the model, if it does not follow from its location.
    pub name: Option<OsString>,
    /// The metadata of the model, if it is not that of its only file.
    pub metadata: Option<Vec<(String, MetadataValue)>>,
    /// Files besides those of tensors, which are shown: the manifest of a dataset, and the index of a sharded model if
    /// loaders can read it as it is.
    pub documents: Vec<(&'static str, Arc<dyn Source>)>,
    /// The separator of key and column in the names of tensors, if they are the cells of a table.
    pub separator: Option<Box<str>>,
    /// The list of all tensors that the writer may have left beside the manifest.
    pub tensor_list: Option<Location>,
    /// Owner and permissions that users need besides those of the files: of the directories on the way to them.
    pub needed: Vec<SourceStat>,
    /// The files that describe the model: an index, a manifest or a configuration.
    pub described_by: Vec<DescribingFile>,
    /// The files of the model that could not be opened.
    pub unopened: Vec<Location>,
    /// Mismatches between the index or manifest and the files, or between splits. Empty unless the model was opened
    /// leniently, or is a dataset.
    pub mismatches: SkipList,
    /// Messages about other findings in an index or a manifest.
    pub remarks: Vec<String>,
    pub stated: StatedTotals,
    /// The other sets of tensors in its file, such as the states of an optimizer: each a model of its own, whose
    /// location is that of the file and the name of the set.
    pub sets: Vec<Model>,
    /// The files of its directory that are not parts of it.
    pub others: OtherFiles,
}

/// A file that describes a model, in the version that was read.
#[derive(Debug)]
pub struct DescribingFile {
    pub location: Location,
    pub id: Option<FileId>,
    pub stat: SourceStat,
}

/// A file that a model is made of.
#[derive(Debug)]
pub struct ModelFile {
    /// File name; for a shard, as written in the index or the manifest.
    pub name: String,
    pub location: Location,
    /// Also gives the format. It has no tensors if the file has no header.
    pub header: Header,
    pub source: Arc<dyn Source>,
}

/// The totals in the `metadata` of an index. Only `check` uses them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct StatedTotals {
    pub total_size: Option<u64>,
    pub total_parameters: Option<u64>,
    #[serde(skip)]
    pub shards: Option<usize>,
    /// Whether there is a `metadata` object. transformers cannot read an index without one.
    #[serde(skip)]
    pub is_object: bool,
}

#[derive(Debug, Clone)]
pub struct Tensor<'m> {
    pub id: TensorId,
    pub info: TensorInfo<'m>,
    pub(super) data: TensorData<'m>,
}

impl<'m> Tensor<'m> {
    /// The file whose header describes the tensor. `None` for one that is made of parts of files.
    pub fn file(&self) -> Option<ModelFileId> {
        self.stored().map(|(file, _)| file)
    }

    /// The file whose header describes the tensor, and what it says. `None` for one that is made of parts of files.
    pub fn stored(&self) -> Option<(ModelFileId, &HeaderTensor<'m>)> {
        if let TensorData::Stored { file, tensor } = &self.data { Some((*file, tensor)) } else { None }
    }

    /// The places of its bytes in the files of the model, one after the other. None if they are not there as they are,
    /// or if an assembled tensor has no bytes.
    pub fn places(&self) -> BytePlaces {
        self.data.places()
    }

    /// Whether its bytes lie nowhere as they are, but have to be gathered.
    pub fn is_gathered(&self) -> bool {
        self.data.is_gathered()
    }

    /// A file that holds some of its bytes, for messages.
    pub fn first_file(&self) -> Option<ModelFileId> {
        self.data.first_file()
    }
}

impl Model {
    pub(super) fn new(location: &Location, form: &'static ModelForm, files: Vec<ModelFile>) -> Self {
        let metadata = (files.len() != 1).then(|| merge_metadata(&files));
        let mut model = Self {
            location: location.absolute().unwrap_or_else(|_| location.clone()),
            form,
            facts: ModelFacts { metadata, ..ModelFacts::default() },
            len: files.iter().map(|file| file.header.len()).sum(),
            sources: files.iter().map(|file| file.source.clone()).collect(),
            files,
            assembled: AssembledTensors::default(),
            only_in_own_file: Vec::new(),
            first: Vec::new(),
            by_name: OnceLock::new(),
            quantized: QuantizedWeights::default(),
        };
        model.number_tensors();
        model
    }

    fn number_tensors(&mut self) {
        let mut next = self.assembled.table().len();
        self.first = vec![TensorId::new(next)];
        for file in &self.files {
            next += file.header.len();
            self.first.push(TensorId::new(next));
        }
    }

    /// Removes stored tensors, which must be sorted, from the name space.
    pub(super) fn set_only_in_own_file(&mut self, tensors: Vec<TensorId>) {
        self.only_in_own_file = tensors;
    }

    /// Makes `assembled` the whole name space. Of the stored tensors, `only_in_own_file` are listed too. The numbers of
    /// stored tensors move up by the number of assembled ones.
    pub(super) fn set_assembled(&mut self, assembled: AssembledTensors, only_in_own_file: Vec<TensorId>) {
        let by = assembled.table().len();
        self.only_in_own_file = only_in_own_file.iter().map(|id| TensorId::new(id.index() + by)).collect();
        self.only_in_own_file.sort_unstable();
        (self.len, self.assembled) = (by, assembled);
        self.number_tensors();
    }

    /// The index or the manifest that names the files of the model, or else its only or first file.
    pub fn main_file(&self) -> &Location {
        self.facts.main_file.as_ref().unwrap_or(&self.location)
    }

    /// Sets the separator of key and column. Models whose tensors are not the cells of a table stay as they are.
    pub fn set_separator(&mut self, separator: &str) {
        if !self.form.holds_weights && self.assembled.table().is_empty() {
            self.facts.separator = Some(separator.into());
        }
    }

    /// The format of its files, such as `safetensors`; empty for a model without files.
    pub fn format(&self) -> &'static str {
        self.files.first().map_or("", |file| file.header.format)
    }

    /// The version of that format, if it has versions.
    pub fn format_version(&self) -> Option<u32> {
        self.files.iter().find_map(|file| file.header.version)
    }

    pub fn has_text(&self) -> bool {
        self.files.iter().any(|file| file.header.text().is_some())
    }

    pub fn logical(&self) -> TensorPopulation<'_> {
        let holes = self.only_in_own_file.partition_point(|id| id.index() < self.len);
        TensorPopulation::new(0, self.len, &self.only_in_own_file[..holes], &[])
    }

    pub fn listed(&self) -> TensorPopulation<'_> {
        let holes = self.only_in_own_file.partition_point(|id| id.index() < self.len);
        TensorPopulation::new(0, self.len, &[], &self.only_in_own_file[holes..])
    }

    pub fn stored(&self) -> TensorPopulation<'_> {
        self.consecutive(0, self.files.len())
    }

    pub fn stored_in(&self, file: ModelFileId) -> TensorPopulation<'_> {
        self.consecutive(file.index(), file.index() + 1)
    }

    /// The tensors of the files from `start` on and before `end`.
    fn consecutive(&self, start: usize, end: usize) -> TensorPopulation<'_> {
        TensorPopulation::new(self.first[start].index(), self.first[end].index(), &[], &[])
    }

    pub fn tensor(&self, id: TensorId) -> Tensor<'_> {
        if id.index() < self.assembled.table().len() {
            let (info, data) = self.assembled.tensor(id.index());
            return Tensor { id, info, data };
        }
        let (file, tensor) = self.stored_tensor(id);
        Tensor { id, info: tensor.info, data: TensorData::Stored { file, tensor } }
    }

    /// The file that holds a stored tensor, and what its header says.
    pub fn stored_tensor(&self, id: TensorId) -> (ModelFileId, HeaderTensor<'_>) {
        let (file, index) = self.locate(id);
        (file, self.file(file).header.tensor(index))
    }

    pub fn contains(&self, id: TensorId) -> bool {
        self.first.last().is_some_and(|end| id < *end)
    }

    /// The table that describes a tensor, and the index of the tensor in it.
    fn described(&self, id: TensorId) -> (&TensorTable, usize) {
        if id.index() < self.assembled.table().len() {
            return (self.assembled.table(), id.index());
        }
        let (file, index) = self.locate(id);
        (&self.file(file).header, index)
    }

    pub fn name(&self, id: TensorId) -> &str {
        let (table, index) = self.described(id);
        table.name(index)
    }

    pub(super) fn name_at(&self, index: usize) -> &str {
        self.name(TensorId::new(index))
    }

    /// Whether the entry of a tensor has a form that only some readers accept.
    pub fn is_unusual(&self, id: TensorId) -> bool {
        let (table, index) = self.described(id);
        table.is_unusual(index)
    }

    /// The file that holds a stored tensor.
    pub fn file_with(&self, id: TensorId) -> ModelFileId {
        self.locate(id).0
    }

    pub fn data(&self, tensor: &Tensor) -> Segment {
        match &tensor.data {
            TensorData::Stored { file, tensor } => data::data_in(self.source(*file), tensor),
            TensorData::Assembled(assembled) => assembled.data(),
        }
    }

    /// The data of runs in the files of the model, `len` bytes in total.
    pub fn extents(&self, runs: Arc<[SourceRun]>, len: u64) -> Extents {
        Extents::new(self.sources.clone(), runs, len)
    }

    /// The table of all logical tensors, unless they are those of several files.
    fn only_table(&self) -> Option<&TensorTable> {
        match &self.files[..] {
            _ if !self.assembled.table().is_empty() => Some(self.assembled.table()),
            [one] if self.only_in_own_file.is_empty() => Some(&one.header),
            _ => None,
        }
    }

    pub fn find(&self, name: &str) -> Option<TensorId> {
        if let Some(table) = self.only_table() {
            return table.find(name).map(TensorId::new);
        }
        let names = self.by_name.get_or_init(|| self.logical_names());
        names.find(name, |index| self.name_at(index)).map(TensorId::new)
    }

    fn logical_names(&self) -> NameTable {
        let logical = self.logical();
        let mut table = NameTable::with_capacity(logical.len());
        for id in logical.iter() {
            table.insert(id.index(), |index| self.name_at(index));
        }
        table
    }

    /// Whether [`Model::find`] returns at once. The first lookup in a model of several files builds a table of all
    /// names.
    pub fn can_find(&self) -> bool {
        self.only_table().is_some() || self.by_name.get().is_some()
    }

    pub fn find_in(&self, file: ModelFileId, name: &str) -> Option<TensorId> {
        let index = self.file(file).header.find(name)?;
        Some(TensorId::new(self.first[file.index()].index() + index))
    }

    pub fn file_ids(&self) -> impl ExactSizeIterator<Item = ModelFileId> + use<> {
        (0..self.files.len()).map(ModelFileId::new)
    }

    pub fn file(&self, file: ModelFileId) -> &ModelFile {
        &self.files[file.index()]
    }

    /// The bytes of all files, in their order.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    pub fn source(&self, file: ModelFileId) -> &Arc<dyn Source> {
        &self.file(file).source
    }

    /// Fails if a file is no longer the version that was opened.
    pub fn verify(&self) -> Result<(), source::Error> {
        self.sources.iter().try_for_each(|source| source.verify())
    }

    /// The metadata of all files, sorted by key. If several files have a key, the value of the first file is kept. That
    /// of a split model is the metadata of the first split, without the keys that describe the split.
    pub fn metadata(&self) -> &[(String, MetadataValue)] {
        match (&self.facts.metadata, &self.files[..]) {
            (Some(metadata), _) => metadata,
            (None, [one, ..]) => &one.header.metadata,
            (None, []) => &[],
        }
    }

    /// The entries that were skipped, and what is shown although it does not fit. Empty unless the model was opened
    /// leniently, or cannot be shown as a whole.
    pub fn skipped(&self) -> impl Iterator<Item = &SkippedEntry> {
        let in_files = self.files.iter().flat_map(|file| file.header.skipped.listed());
        self.facts.mismatches.listed().iter().chain(in_files)
    }

    fn skip_lists(&self) -> impl Iterator<Item = &SkipList> {
        [&self.facts.mismatches].into_iter().chain(self.files.iter().map(|file| &file.header.skipped))
    }

    /// Number of entries that were skipped, listed or not.
    pub fn left_out(&self) -> usize {
        self.skip_lists().map(SkipList::left_out).sum()
    }

    /// Logs what users of a mount of the model should know: [`Model::report`], and which weights are not dequantized.
    pub fn report_mount(&self, source: &impl fmt::Display) {
        self.report(source);
        for note in self.quantized.notes() {
            log::warn!("{source}: {note}");
        }
    }

    /// Logs left-out entries, remarks and unknown dtypes, at most 20 lines of each. `source` names the model.
    pub fn report(&self, source: &impl fmt::Display) {
        const LINES: usize = 20;
        for skipped in self.skipped().take(LINES) {
            log::warn!("{source}: {skipped}");
        }
        if let Some(more @ 1..) = self.skip_lists().map(SkipList::total).sum::<usize>().checked_sub(LINES) {
            log::warn!("{source}: {more} more; see index.json");
        }
        for remark in self.facts.remarks.iter().take(LINES) {
            log::warn!("{source}: {remark}");
        }
        let unknown: BTreeSet<_> = self.files.iter().flat_map(|file| &file.header.unknown_dtypes).collect();
        for dtype in unknown.iter().take(LINES) {
            log::warn!("{source}: unknown dtype {}: such tensors are shown as raw bytes", quote(dtype));
        }
        for dtype in self.size_only_dtypes() {
            log::warn!(
                "{source}: dtype {dtype}: no known writer defines its values, so tensors are shown as raw bytes"
            );
        }
    }

    /// The dtypes of tensors of which only the size is known, each once.
    pub fn size_only_dtypes(&self) -> Vec<Dtype<'static>> {
        let mut found: Vec<_> = self.files.iter().flat_map(|file| file.header.size_only_dtypes()).collect();
        found.sort_unstable_by_key(|dtype| dtype.name());
        found.dedup();
        found
    }

    /// Owner, permissions and modification time of the model. Only users who may read each of its files may read it,
    /// and its time is that of the newest file. `None` for a model without files.
    pub fn stat(&self) -> Option<SourceStat> {
        let files = self.sources.iter().map(|source| source.stat());
        let files = files.reduce(|a, b| SourceStat { mtime: a.mtime.max(b.mtime), ..a.and(b) })?;
        let described_by = self.facts.described_by.iter().map(|file| &file.stat);
        Some(self.facts.needed.iter().chain(described_by).fold(files, |files, needed| files.and(*needed)))
    }

    /// The file of a stored tensor, and its index there.
    fn locate(&self, id: TensorId) -> (ModelFileId, usize) {
        let file = self.first.partition_point(|first| *first <= id).saturating_sub(1);
        (ModelFileId::new(file), id.index() - self.first[file].index())
    }
}

fn merge_metadata(files: &[ModelFile]) -> Vec<(String, MetadataValue)> {
    let mut merged: Vec<_> = files.iter().flat_map(|file| &file.header.metadata).cloned().collect();
    // Stable, so that the first file's value of a repeated key is kept.
    merged.sort_by(|a, b| a.0.cmp(&b.0));
    merged.dedup_by(|later, kept| later.0 == kept.0);
    merged
}

/// The text of the value of a key in metadata, which is sorted by key.
pub fn metadata_text<'m>(metadata: &'m [(String, MetadataValue)], key: &str) -> Option<&'m str> {
    find_value(metadata, key).map(MetadataValue::text)
}

/// The value of a key in metadata, which is sorted by key.
pub fn find_value<'m>(metadata: &'m [(String, MetadataValue)], key: &str) -> Option<&'m MetadataValue> {
    let at = metadata.binary_search_by(|(other, _)| other[..].cmp(key)).ok()?;
    Some(&metadata[at].1)
}

/// Whether the value of a metadata key is a hash of the data in the same file. ModelSpec and sd-scripts have such keys.
pub fn is_data_hash(key: &str) -> bool {
    ["modelspec.hash_", "sshs_"].iter().any(|prefix| key.starts_with(prefix))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{Content, ReadRequest};
    use crate::format::{HeaderBuilder, ParseMode};
    use crate::model::assembled::TensorAssembly;
    use crate::model::header::read_header;
    use crate::source::MemorySource;
    use std::ops::Range;
    use std::path::Path;

    const FORM: ModelForm = ModelForm {
        kind: "test",
        edit_refusal: Some("made by hand"),
        access: ModelAccess::FilesAndDirectories,
        has_shards: true,
        shows_stored: true,
        holds_weights: true,
        notes: NoteKind::Index,
    };

    /// A safetensors file with one tensor.
    fn file(name: &str, dtype: &str, shape: &str, data: &[u8]) -> ModelFile {
        let end = data.len();
        let header = format!(r#"{{"{name}":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#);
        let bytes = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat();
        let location = Location::from(Path::new("/m/x.safetensors"));
        let source = Arc::new(MemorySource::new(bytes));
        let header = read_header(&location, &*source, ParseMode::Strict).unwrap();
        ModelFile { name: format!("{name}.safetensors"), location, header, source }
    }

    /// A file whose header, if it has one, names no tensors.
    fn data_file(data: &[u8]) -> ModelFile {
        let header = HeaderBuilder::new(ParseMode::Strict).finish("data", None, 0, "").unwrap();
        let location = Location::from(Path::new("/m/weights.data"));
        ModelFile { name: "weights.data".into(), location, header, source: Arc::new(MemorySource::new(data.to_vec())) }
    }

    /// A `.npy` file of 16-bit numbers, with `data` as it is stored.
    fn array(name: &str, descr: &str, is_fortran: bool, shape: &str, data: &[u8]) -> ModelFile {
        let fortran = if is_fortran { "True" } else { "False" };
        let header = format!("{{'descr': '{descr}', 'fortran_order': {fortran}, 'shape': {shape}, }}");
        let len = (header.len() as u16).to_le_bytes();
        let bytes = [b"\x93NUMPY\x01\x00", &len[..], header.as_bytes(), data].concat();
        let location = Location::from(Path::new("/m").join(format!("{name}.npy")));
        let source = Arc::new(MemorySource::new(bytes));
        let header = read_header(&location, &*source, ParseMode::Strict).unwrap();
        ModelFile { name: format!("{name}.npy"), location, header, source }
    }

    fn read(model: &Model, name: &str) -> Vec<u8> {
        let tensor = model.tensor(model.find(name).unwrap());
        let content = Content::from(model.data(&tensor));
        let len = content.len();
        content.read(0..len, &ReadRequest::WAIT).unwrap().to_vec()
    }

    #[test]
    fn rows_of_arrays_in_other_orders_are_renamed_sliced_and_joined() {
        // Rows [0, 1, 2], [3, 4, 5]; the same in big-endian order; [6, 7, 8], [9, 10, 11] by columns.
        let numbers = |numbers: &[u16]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
        let big: Vec<u8> = (0..6u16).flat_map(u16::to_be_bytes).collect();
        let files = vec![
            array("big", ">u2", false, "(2, 3)", &big),
            array("columns", "<u2", true, "(2, 3)", &numbers(&[6, 9, 7, 10, 8, 11])),
            array("plain", "<u2", false, "(2, 3)", &numbers(&[12, 13, 14, 15, 16, 17])),
        ];
        let mut model = Model::new(&Path::new("/m/recipe").into(), &FORM, files);
        let mut made = TensorAssembly::new(model.sources());
        let parts = model.stored().iter().map(|id| {
            let (file, tensor) = model.stored_tensor(id);
            made.stored(file, &tensor)
        });
        let parts: Vec<(usize, Range<u64>)> = parts.collect();
        let row = |part: usize, row: u64| {
            let (source, range) = parts[part].clone();
            (source, range.start + row * 6..range.start + row * 6 + 6)
        };
        made.push("renamed", Dtype::U16, &[2, 3], [parts[1].clone()]).unwrap();
        made.push("row", Dtype::U16, &[1, 3], [row(0, 1)]).unwrap();
        made.push("joined", Dtype::U16, &[6, 3], parts.clone()).unwrap();
        made.push("rows", Dtype::U16, &[3, 3], [row(1, 1), row(2, 0), row(0, 0)]).unwrap();
        made.push("in the file", Dtype::U16, &[1, 3], [row(2, 1)]).unwrap();
        let stored = model.stored().iter().collect();
        model.set_assembled(made.finish().unwrap(), stored);

        let all: Vec<u16> = (0..18).collect();
        for (name, expected) in [
            ("renamed", &all[6..12]),
            ("row", &all[3..6]),
            ("joined", &all[..]),
            ("rows", &[9, 10, 11, 12, 13, 14, 0, 1, 2]),
            ("in the file", &all[15..]),
        ] {
            let tensor = model.tensor(model.find(name).unwrap());
            assert_eq!(read(&model, name), numbers(expected), "{name}");
            assert_eq!(
                (tensor.is_gathered(), tensor.places().len()),
                match name {
                    "in the file" => (false, 1),
                    _ => (true, 0),
                }
            );
            // Parts of elements too.
            let content = Content::from(model.data(&tensor));
            for start in 0..content.len() {
                let part = content.read(start..content.len().min(start + 5), &ReadRequest::WAIT).unwrap();
                assert_eq!(&part[..], &numbers(expected)[start as usize..][..part.len()], "{name}");
            }
        }
        let place = &model.tensor(model.find("in the file").unwrap()).places()[0];
        assert_eq!((place.file, place.range.end - place.range.start), (ModelFileId::new(2), 6));
        assert!(place.range.end == model.source(ModelFileId::new(2)).len());
    }

    #[test]
    fn tensors_are_renamed_sliced_joined_and_found_in_other_files() {
        let files = vec![file("a", "U8", "[2,3]", b"abcdef"), file("b", "U8", "[1,3]", b"ghi"), data_file(b"..xyz.")];
        let mut model = Model::new(&Path::new("/m/recipe").into(), &FORM, files);
        let at = |name: &str| {
            let (file, tensor) = model.stored_tensor(model.find(name).unwrap());
            (file.index(), tensor.range)
        };
        let (a, b) = (at("a"), at("b"));
        let mut made = TensorAssembly::new(model.sources());
        made.push("renamed", Dtype::U8, &[2, 3], [a.clone()]).unwrap();
        made.push("second_row", Dtype::U8, &[1, 3], [(a.0, a.1.start + 3..a.1.end)]).unwrap();
        made.push("joined", Dtype::U8, &[3, 3], [b, a]).unwrap();
        made.push("empty", Dtype::F32, &[0, 4], []).unwrap();
        made.push("elsewhere", Dtype::Unknown("X8"), &[3], [(2, 2..5)]).unwrap();
        made.push("last", Dtype::U8, &[1], [(2, 5..6)]).unwrap();
        let stored = model.find("a").unwrap();
        model.set_assembled(made.finish().unwrap(), vec![stored]);

        let expected = [
            ("renamed", &b"abcdef"[..]),
            ("second_row", b"def"),
            ("joined", b"ghiabcdef"),
            ("empty", b""),
            ("elsewhere", b"xyz"),
            ("last", b"."),
        ];
        for (name, data) in expected {
            assert_eq!(read(&model, name), data, "{name}");
        }
        let names = |some: TensorPopulation| some.iter().map(|id| model.name(id).to_owned()).collect::<Vec<_>>();
        assert_eq!(names(model.logical()), expected.map(|(name, _)| name));
        assert_eq!(names(model.stored()), ["a", "b"]);
        assert_eq!(names(model.listed())[6..], ["a"]);
        assert_eq!((model.find("a"), model.can_find()), (None, true));
        let info = model.tensor(model.find("elsewhere").unwrap()).info;
        assert_eq!((info.dtype, info.shape, info.nbytes), (Dtype::Unknown("X8"), &[3][..], 3));
    }
}
