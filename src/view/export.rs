//! `export/`: a whole model, or some of its tensors, as one safetensors file, as stored or converted.
//!
//! The tensors of a file have the order of the official writer, by dtype and name, in which each is aligned to its
//! elements. Those of several files, and converted ones, keep the order of the source, so that long runs of it are
//! read one after the other; if they would not all be aligned, those with larger elements come first. Spaces after the
//! header align the data to a page.

use super::gguf;
use super::lines::{Out, TextLines, TextPieces, write_list};
use super::selection::{ExportTensors, numbers};
use super::values::{self, FloatDtype, ValueConversion};
use crate::content::{Content, Error, GeneratedBytes, Segment, SegmentSeries, SourceRun, TakeSegment};
use crate::format::safetensors::{MAX_HEADER, NAME as SAFETENSORS};
use crate::format::{Dtype, MetadataValue, TensorInfo, numpy};
use crate::model::quantization::COMFY_METADATA;
use crate::model::{self, FileTree, Model, ModelFileId, ModelId, PrefixChange, TensorId, TensorNumbers};
use crate::name;
use crate::text::quote;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The metadata key without which transformers and accelerate refuse a safetensors file that has metadata.
pub const FORMAT_KEY: &str = "format";

/// The value of that key for PyTorch, which all loaders accept.
pub const PYTORCH_FORMAT: &str = "pt";

/// Default alignment of the data, in bytes.
const PAGE: u64 = 4096;

/// Largest size of the data in bytes. File sizes are signed 64-bit numbers, and the header needs space too.
const DATA_MAX: u64 = (i64::MAX as u64) - 2 * MAX_HEADER;

/// A model as one file: with and without its metadata.
#[derive(Debug)]
pub struct ModelExport {
    with_metadata: Option<Content>,
    clean: Option<Content>,
    /// The first tensor that the file cannot hold.
    unfit: Option<UnfitTensor>,
    entries_len: u64,
    data_len: u64,
}

#[derive(Debug)]
struct UnfitTensor {
    name: String,
    dtype: String,
    /// Whether the file could hold the tensor if it were converted.
    needs_conversion: bool,
}

/// The bytes of a header around its entries: length and metadata before them, padding after them.
struct HeaderFrame {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl HeaderFrame {
    /// `None` if the header would exceed the limit of the official reader.
    fn new(metadata: &str, entries: u64, align: Option<u64>) -> Option<Self> {
        let used = 8 + 1 + metadata.len() as u64 + entries + 1;
        // Near the limit, padding to a page may not fit.
        let units = align.map_or([PAGE, 8], |align| [align; 2]);
        let mut starts = units.iter().filter_map(|unit| used.checked_next_multiple_of(*unit));
        let data_start = starts.find(|start| start - 8 <= MAX_HEADER)?;
        let head = [&(data_start - 8).to_le_bytes()[..], b"{", metadata.as_bytes()].concat();
        let mut tail = vec![b'}'];
        tail.resize(1 + (data_start - used) as usize, b' ');
        Some(Self { head, tail })
    }
}

/// The tensors of a file and where their data lies. The text of header entries is generated when it is read.
struct ExportEntries {
    model: Arc<Model>,
    tensors: ExportTensors,
    conversion: Option<ValueConversion>,
    names: PrefixChange,
    /// The data offset of every [`MARKED`]th tensor, in bytes from the start of the data.
    offsets: Vec<u64>,
    data_len: u64,
}

const MARKED: usize = 32;

impl ModelExport {
    /// Measures the header; reads no data. The data begins at a multiple of `align` bytes, by default on a page.
    ///
    /// With a conversion, all floating-point numbers, including those of block types, are converted. Integers, booleans
    /// and complex numbers stay as they are, unless they are the codes of a weight that is dequantized.
    pub fn new(
        model: &Arc<Model>,
        tensors: ExportTensors,
        conversion: Option<ValueConversion>,
        align: Option<u64>,
    ) -> Self {
        Self::renamed(model, tensors, conversion, align, &PrefixChange::default())
    }

    /// As [`ModelExport::new`], with a change of the names that makes no two of them the same.
    pub fn renamed(
        model: &Arc<Model>,
        tensors: ExportTensors,
        conversion: Option<ValueConversion>,
        align: Option<u64>,
        names: &PrefixChange,
    ) -> Self {
        Self::with_metadata(model, tensors, conversion, align, names, None)
    }

    /// As [`ModelExport::new`]. The metadata is this one, without hashes of data and with the format that loaders look
    /// for.
    pub fn for_loaders(
        model: &Arc<Model>,
        tensors: ExportTensors,
        conversion: Option<ValueConversion>,
        metadata: &[(String, MetadataValue)],
    ) -> Self {
        Self::with_metadata(model, tensors, conversion, None, &PrefixChange::default(), Some(metadata))
    }

    /// As [`ModelExport::renamed`], with the metadata of the model or with another one.
    fn with_metadata(
        model: &Arc<Model>,
        tensors: ExportTensors,
        conversion: Option<ValueConversion>,
        align: Option<u64>,
        names: &PrefixChange,
        other: Option<&[(String, MetadataValue)]>,
    ) -> Self {
        let (model, names, offsets, data_len) = (model.clone(), names.clone(), Vec::new(), 0);
        let mut entries = ExportEntries { model, tensors, conversion, names, offsets, data_len };
        let unfit = entries.find(|numbers| written(numbers, conversion).is_none()).map(|numbers| UnfitTensor {
            name: quote(numbers.name()),
            dtype: numbers.dtype().quoted(),
            needs_conversion: conversion.is_none() && numbers.dtype().to_f32().is_some(),
        });
        // If all tensors have the dtype already, the file has the data of the source in the same order.
        let is_any_converted =
            conversion.is_some() && entries.find(|numbers| is_converted(numbers, conversion)).is_some();
        entries.conversion = conversion.filter(|_| is_any_converted);
        // Elements that have to be gathered are not runs of a file.
        let is_series = entries.conversion.is_some() || entries.find(|numbers| numbers.tensor.is_gathered()).is_some();
        // The order of tensors in other formats does not align them in a safetensors file, and that of several files
        // of safetensors may not either.
        if entries.is_stored_file() || is_series || entries.model.format() != SAFETENSORS || !entries.is_aligned() {
            entries.sort();
        }
        let fits = entries.place() && unfit.is_none();
        let runs = if is_series { None } else { Some(entries.runs()) };
        let metadata = entries.metadata(runs.as_deref(), other);
        let data_len = entries.data_len;
        let entries = Arc::new(entries);
        let data = match runs {
            Some(runs) => Segment::Extents(entries.model.extents(runs.into(), data_len)),
            None => Segment::Series(entries.clone()),
        };
        let lines = Arc::new(TextLines::new(entries));
        let entries_len = lines.nbytes();
        let [with_metadata, clean] = [&metadata[..], ""].map(|metadata| {
            let HeaderFrame { head, tail } = HeaderFrame::new(metadata, entries_len, align).filter(|_| fits)?;
            let (head, tail) = (Segment::Literal(head.into()), Segment::Literal(tail.into()));
            Some(Content::new([head, Segment::Generated(lines.clone()), tail, data.clone()]))
        });
        Self { with_metadata, clean, unfit, entries_len, data_len }
    }

    /// The file, or `None` if there cannot be one. `clean` leaves out the metadata.
    pub fn content(&self, clean: bool) -> Option<&Content> {
        if clean { self.clean.as_ref() } else { self.with_metadata.as_ref() }
    }

    pub fn refusal(&self) -> String {
        let Self { unfit, entries_len, data_len, .. } = self;
        if let Some(UnfitTensor { name, dtype, needs_conversion }) = unfit {
            return match needs_conversion {
                true => format!("tensor {name}: safetensors has no dtype {dtype}"),
                false => format!("tensor {name}: the values of {dtype} are not known"),
            };
        }
        format!(
            "too large for a safetensors file: {entries_len} bytes of header entries (at most {MAX_HEADER} bytes of \
             header with metadata and padding), {data_len} bytes of data"
        )
    }

    /// Whether there is no file only because safetensors lacks the dtype of a tensor, which could be converted.
    pub fn needs_conversion(&self) -> bool {
        self.unfit.as_ref().is_some_and(|unfit| unfit.needs_conversion)
    }
}

/// Whether a safetensors file can hold elements of a dtype as they are stored. A dtype that is not known is one that a
/// safetensors header has named, unless it is one of NumPy's own.
pub fn can_hold(dtype: Dtype) -> bool {
    !dtype.has_scales() && !numpy::is_own(dtype)
}

/// A tensor as it appears in a file; `None` if the file cannot hold it.
pub fn written<'m>(numbers: &TensorNumbers<'m>, conversion: Option<ValueConversion>) -> Option<TensorInfo<'m>> {
    let (tensor, dtype) = (&numbers.tensor.info, numbers.dtype());
    let Some(ValueConversion { to, .. }) = conversion else { return Some(*tensor).filter(|_| can_hold(dtype)) };
    if (is_kept(dtype) || dtype == to.dtype()) && numbers.weight.is_none() {
        return Some(*tensor);
    }
    dtype.to_f32()?;
    let nbytes = numbers.elements().saturating_mul(to.size() as u64);
    let (name, dtype, shape) = (numbers.name(), to.dtype(), numbers.shape());
    Some(TensorInfo { name, dtype, shape, nbytes })
}

/// Whether every conversion keeps stored numbers of a dtype as they are.
pub fn is_kept(dtype: Dtype) -> bool {
    dtype.is_integer() || dtype == Dtype::C64
}

/// Whether the data of a tensor differs from the stored data.
fn is_converted(numbers: &TensorNumbers, conversion: Option<ValueConversion>) -> bool {
    numbers.weight.is_some() || written(numbers, conversion).is_some_and(|to| to.dtype != numbers.dtype())
}

/// The metadata of a safetensors model for a new file. `data` are the runs of its data and their total
/// length in bytes, unless it is converted. Hashes of data are kept only if a source file has the same data; they are
/// then those of that file.
fn stored_metadata<'m>(model: &'m Model, data: Option<(&[SourceRun], u64)>) -> BTreeMap<&'m str, Cow<'m, str>> {
    let same = model.file_ids().find(|shard| data.is_some_and(|data| is_data_of(model, *shard, data)));
    let hashes = same.map_or(&[][..], |shard| &model.file(shard).header.metadata);
    let hashes = hashes.iter().filter(|(key, _)| model::is_data_hash(key));
    let mut texts = texts_without_hashes(model.metadata());
    texts.extend(hashes.map(|(key, value)| (&key[..], Cow::from(value.text()))));
    texts
}

/// Metadata without hashes of data.
fn texts_without_hashes(metadata: &[(String, MetadataValue)]) -> BTreeMap<&str, Cow<'_, str>> {
    let others = metadata.iter().filter(|(key, _)| !model::is_data_hash(key));
    others.map(|(key, value)| (&key[..], value.text().into())).collect()
}

/// Whether runs of a total length in bytes are all the data of a file.
fn is_data_of(model: &Model, shard: ModelFileId, (runs, len): (&[SourceRun], u64)) -> bool {
    let start = model.file(shard).header.data_start;
    let whole = SourceRun { start: 0, source: shard.index(), offset: start };
    model.source(shard).len().checked_sub(start) == Some(len) && runs.iter().all(|run| *run == whole)
}

/// The files in `export/`.
pub type ExportTree = FileTree<ExportFile>;

/// A file in `export/`.
#[derive(Debug)]
pub enum ExportFile {
    Made(Content),
    /// Weights of a part of a pipeline, which are those of this model.
    Weights(Content, ModelId),
    /// One of the other files of the model's directory, by its number.
    Other(usize),
    /// One of the other files with another content.
    Edited(Content, usize),
}

/// The files in `export/` itself. With `dequantized`, the converted ones have the values of quantized weights. Logs a
/// warning for each that cannot be made.
pub fn export_files(model: &Arc<Model>, dequantized: bool) -> ExportTree {
    let mut tree = ExportTree::default();
    let top = tree.add_folder(0, None);
    for (name, content) in whole_files(model, dequantized) {
        tree.add_file(top, name, ExportFile::Made(content));
    }
    tree
}

fn whole_files(model: &Arc<Model>, dequantized: bool) -> Vec<(String, Content)> {
    let mut files = Vec::new();
    if gguf::has(model) {
        match gguf::file(model, ExportTensors::Whole) {
            Some(content) => files.push((export_name(model, "-whole", "gguf"), content)),
            None => log::warn!("export/: -whole skipped: too large for a file"),
        }
    } else {
        let export = ModelExport::new(model, ExportTensors::Whole, None, None);
        if export.with_metadata.is_none() {
            log::warn!("export/: skipped: {}", export.refusal());
        }
        let kinds = [("-whole", export.with_metadata), ("-clean", export.clean)];
        files.extend(
            kinds.into_iter().filter_map(|(suffix, content)| Some((export_name(model, suffix, SAFETENSORS), content?))),
        );
    }
    for (suffix, to) in [("-bf16", FloatDtype::Bf16), ("-f32", FloatDtype::F32)] {
        let conversion = Some(ValueConversion { to, dequantized });
        let export = ModelExport::new(model, ExportTensors::all(model, conversion), conversion, None);
        match export.with_metadata {
            Some(content) => files.push((export_name(model, suffix, SAFETENSORS), content)),
            None => log::warn!("export/: {suffix} skipped: {}", export.refusal()),
        }
    }
    files
}

/// The name of a file in `export/`: that of the model with a suffix. A copy in the directory of the model must not
/// overwrite a file that the mount reads, and the model itself, if it is one file, has the name without suffix.
fn export_name(model: &Model, suffix: &str, format: &str) -> String {
    let mut stem = model::model_name(model).unwrap_or_default().to_string_lossy().into_owned();
    loop {
        stem.push_str(suffix);
        let file = format!("{}.{format}", name::encode_name(&stem));
        if !model.files.iter().any(|shard| Path::new(&shard.name).ends_with(&file)) {
            return file;
        }
    }
}

impl ExportEntries {
    /// The first tensor that `is_wanted`.
    fn find(&self, is_wanted: impl Fn(&TensorNumbers) -> bool) -> Option<TensorNumbers<'_>> {
        (0..self.count()).map(|at| self.numbers(at)).find(is_wanted)
    }

    fn count(&self) -> usize {
        self.tensors.len(&self.model)
    }

    /// Whether the data of each tensor begins at a multiple of the size of its elements.
    fn is_aligned(&self) -> bool {
        let mut offset = 0u64;
        (0..self.count()).all(|at| {
            let tensor = self.written(&self.numbers(at));
            let begins = offset;
            offset = offset.saturating_add(tensor.nbytes);
            tensor.nbytes == 0 || begins.is_multiple_of(tensor.dtype.bits().unwrap_or(0).div_ceil(8).max(1))
        })
    }

    /// Whether the tensors are those of one file, as they are stored.
    fn is_stored_file(&self) -> bool {
        self.conversion.is_none() && self.model.files.len() == 1
    }

    fn sort(&mut self) {
        let mut ids: Vec<TensorId> = (0..self.count()).map(|at| self.tensors.at(&self.model, at)).collect();
        if !ids.is_sorted_by_key(|id| self.order(*id)) {
            // Stable, so that others than the tensors of a file keep their order.
            ids.sort_by_cached_key(|id| self.order(*id));
            self.tensors = ExportTensors::These(ids.into());
        }
    }

    /// What a tensor is sorted by: larger elements come first. The official writer sorts by its list of dtypes, from
    /// the last one on, and by name.
    fn order(&self, id: TensorId) -> (Reverse<(u64, Option<usize>)>, Cow<'_, str>) {
        let numbers = numbers(&self.model, id, self.conversion);
        let TensorInfo { name, dtype, .. } = self.written(&numbers);
        let bits = dtype.bits().unwrap_or(0);
        match self.is_stored_file() {
            true => (
                Reverse((bits.div_ceil(8), Dtype::SAFETENSORS.iter().position(|known| *known == dtype))),
                self.names.apply(name),
            ),
            false => (Reverse((bits, None)), "".into()),
        }
    }

    /// Places the data of the tensors one after the other. Returns whether a file can be that long: tensors of a
    /// damaged file may overlap, so their sum may exceed any file size.
    fn place(&mut self) -> bool {
        let mut fits = true;
        for at in 0..self.count() {
            if at % MARKED == 0 {
                self.offsets.push(self.data_len);
            }
            let nbytes = written(&self.numbers(at), self.conversion).map_or(0, |info| info.nbytes);
            match nbytes.checked_add(self.data_len).filter(|sum| *sum <= DATA_MAX) {
                Some(sum) => self.data_len = sum,
                None => fits = false,
            }
        }
        fits
    }

    /// The runs of all tensors, which all lie in runs.
    fn runs(&self) -> Vec<SourceRun> {
        let (mut runs, mut start) = (Vec::new(), 0u64);
        for at in 0..self.count() {
            let numbers = self.numbers(at);
            let nbytes = written(&numbers, None).map_or(0, |info| info.nbytes);
            gguf::push_data(&mut runs, start, &numbers.tensor);
            start = start.saturating_add(nbytes);
        }
        runs
    }

    /// The header entry of the metadata, that of the model or another one, with a comma if tensors follow. `runs` are
    /// those of the data, if it lies in runs.
    fn metadata(&self, runs: Option<&[SourceRun]>, other: Option<&[(String, MetadataValue)]>) -> String {
        let mut pairs = match other {
            Some(other) => texts_without_hashes(other),
            None if gguf::has(&self.model) => gguf::texts(&self.model),
            None => stored_metadata(&self.model, runs.map(|runs| (runs, self.data_len))),
        };
        if other.is_some() || self.model.format() != SAFETENSORS {
            pairs.insert(FORMAT_KEY, PYTORCH_FORMAT.into());
        }
        if self.conversion.is_some_and(|conversion| conversion.dequantized) {
            // With this key, ComfyUI would dequantize the weights again.
            pairs.remove(COMFY_METADATA);
        }
        if pairs.is_empty() {
            return String::new();
        }
        // Serializing strings cannot fail.
        let json = serde_json::to_string(&pairs).unwrap_or_default();
        format!("\"__metadata__\":{json}{}", if self.count() == 0 { "" } else { "," })
    }

    fn numbers(&self, at: usize) -> TensorNumbers<'_> {
        numbers(&self.model, self.tensors.at(&self.model, at), self.conversion)
    }

    /// A tensor as it appears in the file, or as stored if the file could not hold it. In that case there is no file.
    fn written<'m>(&self, numbers: &TensorNumbers<'m>) -> TensorInfo<'m> {
        written(numbers, self.conversion).unwrap_or(numbers.tensor.info)
    }

    fn segment(&self, numbers: &TensorNumbers) -> Segment {
        let conversion = self.conversion.filter(|_| is_converted(numbers, self.conversion));
        let converted = conversion.and_then(|ValueConversion { to, .. }| values::segment(&self.model, numbers, to));
        converted.unwrap_or_else(|| self.model.data(&numbers.tensor))
    }
}

impl TextPieces for Arc<ExportEntries> {
    fn count(&self) -> usize {
        self.tensors.len(&self.model)
    }

    /// A comma precedes every entry except the first one.
    fn write(&self, positions: Range<usize>, out: Out) -> io::Result<()> {
        let mark = positions.start / MARKED;
        let mut offset = self.offsets.get(mark).copied().unwrap_or(0);
        for at in mark * MARKED..positions.start {
            offset = offset.saturating_add(self.written(&self.numbers(at)).nbytes);
        }
        for at in positions {
            if at > 0 {
                out.write_all(b",")?;
            }
            let tensor = self.written(&self.numbers(at));
            write_entry(&TensorInfo { name: &self.names.apply(tensor.name), ..tensor }, offset, &mut *out)?;
            // The sum only overflows if the data is too large, and then the file is not shown.
            offset = offset.saturating_add(tensor.nbytes);
        }
        Ok(())
    }
}

impl SegmentSeries for ExportEntries {
    fn nbytes(&self) -> u64 {
        self.data_len
    }

    fn visit_segments(&self, part: &Range<u64>, take: &mut TakeSegment) -> Result<(), Error> {
        let mark = self.offsets.partition_point(|begins| *begins <= part.start).saturating_sub(1);
        let mut begins = self.offsets.get(mark).copied().unwrap_or(0);
        for at in mark * MARKED..self.tensors.len(&self.model) {
            if begins >= part.end {
                break;
            }
            let numbers = self.numbers(at);
            let ends = begins + self.written(&numbers).nbytes;
            if ends > part.start && ends > begins {
                take(&self.segment(&numbers), begins)?;
            }
            begins = ends;
        }
        Ok(())
    }
}

/// Writes a tensor as a header entry. `offset` is that of its data, in bytes from the start of the data.
pub fn write_entry(tensor: &TensorInfo, offset: u64, out: Out) -> io::Result<()> {
    serde_json::to_writer(&mut *out, tensor.name)?;
    out.write_all(b":{\"dtype\":")?;
    serde_json::to_writer(&mut *out, tensor.dtype.name())?;
    out.write_all(b",\"shape\":[")?;
    write_list(tensor.shape, ",", out)?;
    write!(out, "],\"data_offsets\":[{offset},{}]}}", offset.saturating_add(tensor.nbytes))
}
