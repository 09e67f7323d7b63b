//! The table of a model's tensors, over all of its files.

use super::error::Error;
use super::header;
use super::ids::{ShardId, TensorId};
use super::population::TensorPopulation;
use super::quantized::QuantizedWeights;
use crate::content::{Data, Extent, Extents, SourceRun, Sources, StridedData, StridedLayout};
use crate::format::gguf::SPLIT_PREFIX;
use crate::format::{self, Dtype, Header, MetadataValue, NameTable, ParseMode, SkipList, SkippedEntry, TensorInfo};
use crate::source::{self, Location, Source, SourceStat};
use crate::text::quote;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::sync::{Arc, OnceLock};

/// All tensors of the files of one model as one name space.
///
/// Tensors are numbered: first the arrays that are joined from several files, in the order of their first parts; then
/// the tensors of the files, file by file in the order of their names, each in the order of its data. There are three
/// populations:
/// - [`Model::logical`]: the name space of the model. Every name occurs once.
/// - [`Model::listed`]: the logical tensors, and those that are shown only in their own file.
/// - [`Model::stored`]: the tensors of the files as they are, joined or not.
#[derive(Debug)]
pub struct Model {
    location: Location,
    kind: ModelKind,
    shards: Vec<Shard>,
    /// The bytes of the shards, in the same order.
    sources: Sources,
    joined: Vec<JoinedArray>,
    /// The logical tensors have numbers below this.
    len: usize,
    /// Number of tensors in all files.
    stored: usize,
    /// The tensors that are shown only in their own file, sorted. Those below `len` are not logical.
    aside: Vec<TensorId>,
    /// The number of the first tensor of each shard.
    first: Vec<TensorId>,
    /// Finds logical tensors. A model of one file uses the header's own table; others build one at the first lookup.
    by_name: OnceLock<NameTable>,
    quantized: QuantizedWeights,
    /// `dataset_manifest.json`, of a dataset.
    manifest: Option<Arc<dyn Source>>,
    /// What separates key and column in the names of a dataset in key-value mode, if that is known.
    separator: Option<Box<str>>,
    /// What users need besides access to the files: owner and permissions of the index or the manifest, and of the
    /// directories on the way to the files.
    needed: Vec<SourceStat>,
    /// Of the files that decide what the model is, besides those of its tensors.
    decided: Vec<SourceStat>,
    /// The files of the model that could not be opened.
    unopened: Vec<Location>,
    list: Option<ManifestEntry>,
    /// The metadata of the model, if it is not that of its only file.
    metadata: Vec<(String, MetadataValue)>,
    notes: ModelNotes,
}

/// What a model was opened from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ModelKind {
    /// One file.
    File,
    /// An index and the shards that it names.
    Sharded,
    /// A manifest and the shards that it names.
    Dataset,
    /// GGUF files whose names say that they are splits of one model.
    Splits,
    /// A file that the manifest of an Ollama store names.
    Layer,
}

/// The manifest of an Ollama store that names a layer.
#[derive(Debug)]
struct ManifestEntry {
    location: Location,
    store: Location,
    /// The name of the model.
    stem: OsString,
}

/// One file of a model.
#[derive(Debug)]
pub struct Shard {
    /// File name; for a shard, as written in the index or the manifest.
    pub name: String,
    /// Header of the file.
    pub header: Header,
}

/// Tensors of several shards as one array, concatenated along the first dimension.
#[derive(Debug)]
pub(super) struct JoinedArray {
    /// The first part, which gives name and dtype.
    pub like: TensorId,
    pub shape: Vec<u64>,
    pub runs: Arc<[SourceRun]>,
    pub nbytes: u64,
}

/// The totals in the `metadata` of an index. Only `check` uses them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
pub struct StatedTotals {
    /// Size of all tensors in bytes.
    pub total_size: Option<u64>,
    /// Number of elements of all tensors.
    pub total_parameters: Option<u64>,
}

/// Findings from opening a model.
#[derive(Debug, Default)]
pub(super) struct ModelNotes {
    /// Mismatches between the index or manifest and the files.
    pub mismatches: SkipList,
    /// Other findings, as messages.
    pub remarks: Vec<String>,
    /// The totals in the index.
    pub stated: StatedTotals,
    /// How many shards could not be opened.
    pub missing: usize,
}

/// A tensor of a model.
#[derive(Debug, Clone)]
pub struct Tensor<'m> {
    /// Its number.
    pub id: TensorId,
    /// Its description. The `range` of a joined array counts from the beginning of the array.
    pub info: TensorInfo<'m>,
    /// The files that hold its data.
    pub parts: TensorParts<'m>,
}

/// The files that hold the data of a tensor.
#[derive(Debug, Clone, Copy)]
pub enum TensorParts<'m> {
    /// All of it is in one file.
    One(ShardId),
    /// Runs in several files, one after the other; none for an array without data.
    Many(&'m Arc<[SourceRun]>),
}

impl Model {
    /// Reads the header of a model of one file.
    pub fn from_source(location: &Location, source: Arc<dyn Source>, mode: ParseMode) -> Result<Self, Error> {
        let name = location.file_name().to_string_lossy().into_owned();
        let header = header::read_header(location, &*source, mode)?;
        Ok(Self::new(location, ModelKind::File, vec![(Shard { name, header }, source)], ModelNotes::default()))
    }

    /// Reads the header of the layer at `location`, whose bytes are in the file `blob`.
    pub(super) fn from_layer(
        location: &Location,
        blob: &Location,
        source: Arc<dyn Source>,
        mode: ParseMode,
    ) -> Result<Self, Error> {
        let name = blob.file_name().to_string_lossy().into_owned();
        let header = header::read_header(location, &*source, mode)?;
        Ok(Self::new(location, ModelKind::Layer, vec![(Shard { name, header }, source)], ModelNotes::default()))
    }

    pub(super) fn new(
        location: &Location,
        kind: ModelKind,
        files: Vec<(Shard, Arc<dyn Source>)>,
        notes: ModelNotes,
    ) -> Self {
        let (shards, sources): (Vec<Shard>, Vec<_>) = files.into_iter().unzip();
        let first = shards.iter().scan(0, |next, shard| {
            let first = TensorId::new(*next);
            *next += shard.header.len();
            Some(first)
        });
        let first = first.collect();
        let stored = shards.iter().map(|shard| shard.header.len()).sum();
        let metadata = match &shards[..] {
            [first, ..] if kind == ModelKind::Splits => whole_metadata(&first.header),
            [_] => Vec::new(),
            _ => merge_metadata(&shards),
        };
        let location = location.absolute().unwrap_or_else(|_| location.clone());
        let (joined, aside, by_name, quantized, manifest) = Default::default();
        let (separator, needed, decided, unopened, list) = Default::default();
        let (sources, len) = (sources.into(), stored);
        Self {
            location,
            kind,
            shards,
            sources,
            joined,
            len,
            stored,
            aside,
            first,
            by_name,
            quantized,
            manifest,
            separator,
            needed,
            decided,
            unopened,
            list,
            metadata,
            notes,
        }
    }

    pub(super) fn notes_mut(&mut self) -> &mut ModelNotes {
        &mut self.notes
    }

    pub(super) fn set_manifest(&mut self, manifest: Arc<dyn Source>) {
        self.manifest = Some(manifest);
    }

    /// Sets the files of the model that could not be opened.
    pub(super) fn set_unopened(&mut self, unopened: Vec<Location>) {
        self.unopened = unopened;
    }

    /// Sets the manifest that names the model, its store, and the name of the model.
    pub(super) fn set_list(&mut self, location: Location, store: Location, stem: OsString) {
        self.list = Some(ManifestEntry { location, store, stem });
    }

    /// The name of the model, if it does not follow from its location.
    pub(super) fn own_name(&self) -> Option<&OsStr> {
        self.list.as_ref().map(|list| &*list.stem)
    }

    /// The Ollama store that holds the model; `None` for other models.
    pub(super) fn base(&self) -> Option<&Location> {
        self.list.as_ref().map(|list| &list.store)
    }

    /// The index or the manifest that names the files of the model, or else its only or first file.
    pub fn main_file(&self) -> &Location {
        self.list.as_ref().map_or(&self.location, |list| &list.location)
    }

    /// Whether a model of this kind is always one file.
    pub fn is_single(&self) -> bool {
        matches!(self.kind, ModelKind::File | ModelKind::Layer)
    }

    /// Restricts [`Model::stat`] to the permissions that `needed` gives too, such as those of the index or manifest.
    pub(super) fn need(&mut self, needed: SourceStat) {
        self.needed.push(needed);
    }

    /// Also depends on a file beside those of its tensors: an index, a manifest or a configuration.
    pub(super) fn depend_on(&mut self, file: SourceStat) {
        self.need(file);
        self.decided.push(file);
    }

    /// Owner, permissions and times of the files that decide what the model is, besides those of its tensors.
    pub fn decided(&self) -> &[SourceStat] {
        &self.decided
    }

    /// The locations of all its files, including those that could not be opened.
    pub(super) fn locations(&self) -> Vec<Location> {
        let opened = self.sources.iter().filter_map(|source| source.path().map(Location::from));
        opened.chain([self.main_file()].into_iter().chain(&self.unopened).cloned()).collect()
    }

    /// The files of the model that could not be opened.
    pub fn unopened(&self) -> &[Location] {
        &self.unopened
    }

    /// Removes tensors from the name space. `aside` must be sorted.
    pub(super) fn set_aside(&mut self, aside: Vec<TensorId>) {
        self.aside = aside;
    }

    /// Makes `joined` the whole name space. `aside` are the tensors that belong to no joined array. The numbers of
    /// tensors move up by the number of joined arrays.
    pub(super) fn set_joined(&mut self, mut joined: Vec<JoinedArray>, mut aside: Vec<TensorId>) {
        let by = joined.len();
        let moved = |id: &TensorId| TensorId::new(id.index() + by);
        joined.iter_mut().for_each(|joined| joined.like = moved(&joined.like));
        aside.iter_mut().for_each(|aside| *aside = moved(aside));
        aside.sort_unstable();
        self.first.iter_mut().for_each(|first| *first = moved(first));
        (self.len, self.joined, self.aside) = (by, joined, aside);
    }

    /// What separates key and column in the names of a dataset in key-value mode, if that is known. `None` for other
    /// models.
    pub fn separator(&self) -> Option<&str> {
        self.separator.as_deref()
    }

    /// Sets what separates key and column. Other models than datasets in key-value mode stay as they are.
    pub fn set_separator(&mut self, separator: &str) {
        if self.kind == ModelKind::Dataset && self.joined.is_empty() {
            self.separator = Some(separator.into());
        }
    }

    /// The location that the model was opened from, independent of the current directory.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// What the model was opened from.
    pub fn kind(&self) -> ModelKind {
        self.kind
    }

    /// The format of its files: `safetensors`.
    pub fn format(&self) -> &'static str {
        self.shards.first().map_or("", |shard| shard.header.format())
    }

    /// The tensors of the name space. Every name occurs once.
    pub fn logical(&self) -> TensorPopulation<'_> {
        let holes = self.aside.partition_point(|id| id.index() < self.len);
        TensorPopulation::new(0, self.len, &self.aside[..holes], &[])
    }

    /// The logical tensors, and those that are shown only in their own file.
    pub fn listed(&self) -> TensorPopulation<'_> {
        let holes = self.aside.partition_point(|id| id.index() < self.len);
        TensorPopulation::new(0, self.len, &[], &self.aside[holes..])
    }

    /// The tensors of all files.
    pub fn stored(&self) -> TensorPopulation<'_> {
        let first = self.joined.len();
        TensorPopulation::new(first, first + self.stored, &[], &[])
    }

    /// The tensors of one file.
    pub fn stored_in(&self, shard: ShardId) -> TensorPopulation<'_> {
        let first = self.first[shard.index()].index();
        TensorPopulation::new(first, first + self.shard(shard).header.len(), &[], &[])
    }

    /// A tensor.
    ///
    /// # Panics
    /// If no tensor has that number.
    pub fn tensor(&self, id: TensorId) -> Tensor<'_> {
        if let Some(JoinedArray { like, shape, runs, nbytes }) = self.joined.get(id.index()) {
            let info = TensorInfo { shape, range: 0..*nbytes, ..self.tensor(*like).info };
            return Tensor { id, info, parts: TensorParts::Many(runs) };
        }
        let (shard, index) = self.locate(id);
        Tensor { id, info: self.shard(shard).header.tensor(index), parts: TensorParts::One(shard) }
    }

    /// Whether a tensor has that number.
    pub fn contains(&self, id: TensorId) -> bool {
        id.index() < self.joined.len() || self.stored().contains(id)
    }

    /// The name of a tensor.
    ///
    /// # Panics
    /// If no tensor has that number.
    pub fn name(&self, id: TensorId) -> &str {
        let id = self.joined.get(id.index()).map_or(id, |joined| joined.like);
        let (shard, index) = self.locate(id);
        self.shard(shard).header.name(index)
    }

    /// Whether the entry of a tensor has a form that only some readers accept.
    ///
    /// # Panics
    /// If no tensor has that number.
    pub fn is_unusual(&self, id: TensorId) -> bool {
        id.index() >= self.joined.len() && {
            let (shard, index) = self.locate(id);
            self.shard(shard).header.is_unusual(index)
        }
    }

    /// The file that holds a stored tensor.
    pub fn shard_of(&self, id: TensorId) -> ShardId {
        self.locate(id).0
    }

    /// The data of a tensor.
    pub fn data(&self, tensor: &Tensor) -> Data {
        match tensor.parts {
            TensorParts::One(shard) => data_in(self.source(shard), &tensor.info),
            TensorParts::Many(runs) => Data::Extents(self.extents(runs.clone(), tensor.info.range.end)),
        }
    }

    /// The data of runs in the files of the model, `len` bytes in total.
    pub fn extents(&self, runs: Arc<[SourceRun]>, len: u64) -> Extents {
        Extents { sources: self.sources.clone(), runs, len }
    }

    /// The runs that hold the data of a tensor. A tensor without data may have one run of no bytes. `None` if its
    /// elements have to be gathered.
    pub fn runs(&self, tensor: &Tensor) -> Option<Arc<[SourceRun]>> {
        if tensor.info.layout.is_some() {
            return None;
        }
        Some(match tensor.parts {
            TensorParts::Many(runs) => runs.clone(),
            TensorParts::One(shard) => {
                [SourceRun { start: 0, source: shard.index(), offset: tensor.info.range.start }].into()
            }
        })
    }

    /// The logical tensor called `name`.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        if let (true, [one]) = (self.is_single(), &self.shards[..]) {
            return one.header.find(name).map(TensorId::new);
        }
        let name_at = |index| self.name(TensorId::new(index));
        let table = || {
            let logical = self.logical();
            let mut table = NameTable::with_capacity(logical.len());
            for id in logical.iter() {
                table.insert(id.index(), name_at);
            }
            table
        };
        self.by_name.get_or_init(table).find(name, name_at).map(TensorId::new)
    }

    /// Whether [`Model::find`] returns at once. The first lookup in a model of several files builds a table of all
    /// names.
    pub fn can_find(&self) -> bool {
        self.is_single() || self.by_name.get().is_some()
    }

    /// The quantized weights.
    pub fn quantized(&self) -> &QuantizedWeights {
        &self.quantized
    }

    pub(super) fn set_quantized(&mut self, quantized: QuantizedWeights) {
        self.quantized = quantized;
    }

    /// The tensor called `name` in one file.
    pub fn find_in(&self, shard: ShardId, name: &str) -> Option<TensorId> {
        let index = self.shard(shard).header.find(name)?;
        Some(TensorId::new(self.first[shard.index()].index() + index))
    }

    /// The files, in the order of their names.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The numbers of the files.
    pub fn shard_ids(&self) -> impl ExactSizeIterator<Item = ShardId> + use<> {
        (0..self.shards.len()).map(ShardId::new)
    }

    /// A file.
    ///
    /// # Panics
    /// If no file has that number.
    pub fn shard(&self, shard: ShardId) -> &Shard {
        &self.shards[shard.index()]
    }

    /// The bytes of the files, in the same order.
    pub fn sources(&self) -> &Sources {
        &self.sources
    }

    /// The bytes of a file.
    ///
    /// # Panics
    /// If no file has that number.
    pub fn source(&self, shard: ShardId) -> &Arc<dyn Source> {
        &self.sources[shard.index()]
    }

    /// The manifest of a dataset.
    pub fn manifest(&self) -> Option<&Arc<dyn Source>> {
        self.manifest.as_ref()
    }

    /// Fails if a file is no longer the version that was opened.
    pub fn verify(&self) -> Result<(), source::Error> {
        self.sources.iter().try_for_each(|source| source.verify())
    }

    /// The metadata of all files, sorted by key. If several files have a key, the value of the first file is kept. That
    /// of a split model is the metadata of the first split, without the keys that describe the split.
    pub fn metadata(&self) -> &[(String, MetadataValue)] {
        match &self.shards[..] {
            [one] if self.kind != ModelKind::Splits => one.header.metadata(),
            _ => &self.metadata,
        }
    }

    /// Mismatches between the index or manifest and the files, or between splits. Empty unless the model was opened
    /// leniently, or is a dataset.
    pub fn mismatches(&self) -> &SkipList {
        &self.notes.mismatches
    }

    /// Messages about other findings in an index or a manifest.
    pub fn remarks(&self) -> &[String] {
        &self.notes.remarks
    }

    /// The totals in the index.
    pub fn stated(&self) -> StatedTotals {
        self.notes.stated
    }

    /// How many shards of an index, or splits, could not be opened.
    pub fn missing(&self) -> usize {
        self.notes.missing
    }

    /// The entries that were left out. Empty unless the model was opened leniently, or is a dataset.
    pub fn skipped(&self) -> impl Iterator<Item = &SkippedEntry> {
        let in_files = self.shards.iter().flat_map(|shard| shard.header.skipped().listed());
        self.notes.mismatches.listed().iter().chain(in_files)
    }

    /// How many entries were left out, listed or not.
    pub fn left_out(&self) -> usize {
        self.notes.mismatches.total() + self.shards.iter().map(|shard| shard.header.skipped().total()).sum::<usize>()
    }

    /// Logs what users of a mount of the model should know: [`Model::report`], and which weights are not dequantized.
    pub fn report_mount(&self, source: &impl fmt::Display) {
        self.report(source);
        for note in self.quantized().notes() {
            log::warn!("{source}: {note}");
        }
    }

    /// Logs left-out entries, remarks and unknown dtypes, at most 20 lines of each. `source` names the model.
    pub fn report(&self, source: &impl fmt::Display) {
        const LINES: usize = 20;
        for skipped in self.skipped().take(LINES) {
            log::warn!("{source}: left out {}: {}", quote(&skipped.name), skipped.reason);
        }
        if let Some(more @ 1..) = self.left_out().checked_sub(LINES) {
            log::warn!("{source}: left out {more} more; see index.json");
        }
        for remark in self.remarks().iter().take(LINES) {
            log::warn!("{source}: {remark}");
        }
        let unknown: BTreeSet<_> = self.shards.iter().flat_map(|shard| shard.header.unknown_dtypes()).collect();
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
        let mut found: Vec<_> = self.shards.iter().flat_map(|shard| shard.header.size_only_dtypes()).collect();
        found.sort_unstable_by_key(|dtype| dtype.name());
        found.dedup();
        found
    }

    /// Owner, permissions and modification time of the model. Only users who may read each of its files may read it,
    /// and its time is that of the newest file. `None` for a model without files.
    pub fn stat(&self) -> Option<SourceStat> {
        let files = self.sources.iter().map(|source| source.stat());
        let files = files.reduce(|a, b| SourceStat { mtime: a.mtime.max(b.mtime), ..a.and(b) })?;
        Some(self.needed.iter().fold(files, |files, needed| files.and(*needed)))
    }

    /// The file of a stored tensor, and its index there.
    fn locate(&self, id: TensorId) -> (ShardId, usize) {
        let shard = self.first.partition_point(|first| *first <= id).saturating_sub(1);
        (ShardId::new(shard), id.index() - self.first[shard].index())
    }
}

fn merge_metadata(shards: &[Shard]) -> Vec<(String, MetadataValue)> {
    let mut merged: Vec<_> = shards.iter().flat_map(|shard| shard.header.metadata()).cloned().collect();
    // Stable, so that the first file's value of a repeated key is kept.
    merged.sort_by(|a, b| a.0.cmp(&b.0));
    merged.dedup_by(|later, kept| later.0 == kept.0);
    merged
}

/// The metadata of a split without the keys that describe the split.
fn whole_metadata(first: &Header) -> Vec<(String, MetadataValue)> {
    first.metadata().iter().filter(|(key, _)| !key.starts_with(SPLIT_PREFIX)).cloned().collect()
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

/// The data of a tensor of a file.
pub fn data_in(source: &Arc<dyn Source>, tensor: &TensorInfo) -> Data {
    let (source, range) = (source.clone(), tensor.range.clone());
    match tensor.layout {
        None => Data::Extent(Extent { source, range }),
        Some(format::TensorLayout { strides, size, word }) => {
            let layout = StridedLayout::new(tensor.shape, strides, size as usize, word.into());
            Data::Strided(StridedData { source, range, layout: Arc::new(layout) })
        }
    }
}
