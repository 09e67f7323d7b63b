//! `export/`: a whole model, or some of its tensors, as one safetensors file, as stored or converted.
//!
//! Tensors keep the order of the source; the official writer would sort them by dtype and name. So the data of each
//! source file is one run and is read as fast as a single tensor. Spaces after the header align the data to a page.
//! If tensors are converted or gathered, or come from another format, those with larger elements come first, so that
//! each tensor is aligned to its elements.

use super::gguf;
use super::lines::{Out, TextLines, write_list};
use super::metadata::MetadataObject;
use super::selection::{ExportTensors, numbers};
use super::values::{self, FloatDtype, ValueConversion};
use crate::content::{Content, Data, Segment, SegmentSeries, SourceRun};
use crate::format::safetensors::{MAX_HEADER, NAME as SAFETENSORS};
use crate::format::{Dtype, MetadataValue, TensorInfo, numpy};
use crate::model::quantization::COMFY_METADATA;
use crate::model::{self, Model, ShardId, TensorId, TensorNumbers, TensorParts};
use crate::name;
use crate::text::quote;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::io;
use std::ops::{ControlFlow, Range};
use std::path::Path;
use std::sync::Arc;

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
    /// Length of all header entries in bytes.
    entries_len: u64,
    data_len: u64,
}

/// A tensor that a file cannot hold.
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
        let fits = |data_start: &u64| data_start - 8 <= MAX_HEADER;
        // Near the limit, padding to a page may not fit.
        let units = align.map_or([PAGE, 8], |align| [align; 2]);
        let data_start = units.iter().filter_map(|unit| used.checked_next_multiple_of(*unit)).find(fits)?;
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
    /// The data offset of every [`MARKED`]th tensor, in bytes from the start of the data.
    offsets: Vec<u64>,
}

/// Distance between tensors whose offsets are kept.
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
        let count = tensors.len(model);
        let number = |at| numbers(model, tensors.at(model, at), conversion);
        let unfit = (0..count).map(number).find(|numbers| written(numbers, conversion).is_none());
        let unfit = unfit.map(|numbers| UnfitTensor {
            name: quote(numbers.name()),
            dtype: numbers.dtype().quoted(),
            needs_conversion: conversion.is_none() && numbers.dtype().to_f32().is_some(),
        });
        // If all tensors have the dtype already, the file has the data of the source in the same order.
        let conversion = conversion.filter(|_| (0..count).any(|at| is_converted(&number(at), conversion)));
        // Elements that have to be gathered are not runs of a file.
        let is_series = conversion.is_some() || (0..count).any(|at| number(at).tensor.info.layout.is_some());
        // The order of tensors in other formats does not align them in a safetensors file.
        let is_same_order = !is_series && model.format() == SAFETENSORS;
        let tensors = if is_same_order { tensors } else { aligned(model, tensors, conversion) };
        let (mut offsets, mut data_len, mut fits) = (Vec::new(), 0u64, unfit.is_none());
        let mut runs = MergedRuns::default();
        for at in 0..count {
            if at % MARKED == 0 {
                offsets.push(data_len);
            }
            let numbers = numbers(model, tensors.at(model, at), conversion);
            let nbytes = written(&numbers, conversion).map_or(0, |info| info.nbytes());
            match numbers.tensor.parts {
                _ if is_series => {}
                TensorParts::One(shard) => runs.push(data_len, shard.index(), numbers.tensor.info.range),
                TensorParts::Many(parts) => {
                    for (part, len) in parts.iter() {
                        runs.push(data_len + part.start, part.source, part.offset..part.offset + len);
                    }
                }
            }
            // Tensors of a damaged file may overlap, so their sum may exceed any file size.
            let sum = nbytes.checked_add(data_len).filter(|sum| *sum <= DATA_MAX);
            fits &= sum.is_some();
            data_len = sum.unwrap_or(data_len);
        }
        let mut pairs = match gguf::has(model) {
            true => gguf::texts(model).into_iter().map(Cow::Owned).collect(),
            false if is_series => stored_metadata(model, None),
            false => stored_metadata(model, Some((&runs.runs, data_len))),
        };
        if conversion.is_some_and(|conversion| conversion.dequantized) {
            // With this key, ComfyUI would dequantize the weights again.
            pairs.retain(|pair| pair.0 != COMFY_METADATA);
        }
        let metadata = match &pairs[..] {
            [] => String::new(),
            pairs => {
                let pairs: Vec<&(String, MetadataValue)> = pairs.iter().map(|pair| &**pair).collect();
                // Serializing strings cannot fail.
                let json = serde_json::to_string(&MetadataObject(&pairs)).unwrap_or_default();
                format!("\"__metadata__\":{json}{}", if count == 0 { "" } else { "," })
            }
        };
        let entries = Arc::new(ExportEntries { model: model.clone(), tensors, conversion, offsets });
        let lines = Arc::new(TextLines::new(count, |positions, out| entries.write(positions, out)));
        let data = match is_series {
            false => Segment::Data(Data::Extents(model.extents(runs.runs.into(), data_len))),
            true => {
                let entries = entries.clone();
                Segment::Series(SegmentSeries {
                    len: data_len,
                    visit: Arc::new(move |offset, take| entries.visit(offset, take)),
                })
            }
        };
        let content = |metadata: &str| {
            let HeaderFrame { head, tail } = HeaderFrame::new(metadata, lines.len(), align).filter(|_| fits)?;
            let entries = entries.clone();
            Some(Content::new([
                Segment::Literal(head.into()),
                lines.segment(move |positions, out| entries.write(positions, out)),
                Segment::Literal(tail.into()),
                data.clone(),
            ]))
        };
        let (with_metadata, clean) = (content(&metadata), content(""));
        Self { with_metadata, clean, unfit, entries_len: lines.len(), data_len }
    }

    /// The file, or `None` if there cannot be one. `clean` leaves out the metadata.
    pub fn content(&self, clean: bool) -> Option<&Content> {
        if clean { self.clean.as_ref() } else { self.with_metadata.as_ref() }
    }

    /// Why the model cannot be exported as one file.
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

/// A tensor as it appears in a file; `None` if the file cannot hold it. The length of `range` is the size of the data
/// in that file.
pub fn written<'m>(numbers: &TensorNumbers<'m>, conversion: Option<ValueConversion>) -> Option<TensorInfo<'m>> {
    let (tensor, dtype) = (&numbers.tensor.info, numbers.dtype());
    let Some(ValueConversion { to, .. }) = conversion else { return Some(tensor.clone()).filter(|_| can_hold(dtype)) };
    let is_kept = dtype.is_integer() || dtype == Dtype::C64 || dtype == to.dtype();
    if is_kept && numbers.weight.is_none() {
        return Some(tensor.clone());
    }
    dtype.to_f32()?;
    let nbytes = numbers.elements().saturating_mul(to.size() as u64);
    let (name, dtype, shape) = (numbers.name(), to.dtype(), numbers.shape());
    Some(TensorInfo { name, dtype, shape, range: 0..nbytes, layout: None })
}

/// Whether the data of a tensor differs from the stored data.
fn is_converted(numbers: &TensorNumbers, conversion: Option<ValueConversion>) -> bool {
    numbers.weight.is_some() || written(numbers, conversion).is_some_and(|to| to.dtype != numbers.dtype())
}

/// The same tensors, those with larger elements first.
fn aligned(model: &Model, tensors: ExportTensors, conversion: Option<ValueConversion>) -> ExportTensors {
    let size = |id: &TensorId| {
        let dtype = written(&numbers(model, *id, conversion), conversion).map(|info| info.dtype);
        Reverse(dtype.and_then(Dtype::bits).unwrap_or(0))
    };
    let ids = (0..tensors.len(model)).map(|at| tensors.at(model, at));
    if ids.clone().is_sorted_by_key(|id| size(&id)) {
        return tensors;
    }
    let mut ids: Vec<TensorId> = ids.collect();
    // Stable, so that tensors of the same size keep their order.
    ids.sort_by_key(size);
    ExportTensors::These(ids.into())
}

/// The metadata of a safetensors model for a new file, sorted by key. `data` are the runs of its data and their total
/// length in bytes, unless it is converted. Hashes of data are kept only if a source file has the same data; they are
/// then those of that file.
fn stored_metadata<'m>(model: &'m Model, data: Option<(&[SourceRun], u64)>) -> Vec<Cow<'m, (String, MetadataValue)>> {
    let has_same_data = |shard: &ShardId| {
        let start = model.shard(*shard).header.data_start();
        let is_all = |len| model.source(*shard).len().checked_sub(start) == Some(len);
        let is_its = |run: &SourceRun| (run.start, run.source, run.offset) == (0, shard.index(), start);
        data.is_some_and(|(runs, len)| is_all(len) && runs.iter().all(is_its))
    };
    let same = model.shard_ids().find(has_same_data);
    let hashes = same.map_or(&[][..], |shard| model.shard(shard).header.metadata());
    let hashes = hashes.iter().filter(|(key, _)| model::is_data_hash(key));
    let others = model.metadata().iter().filter(|(key, _)| !model::is_data_hash(key));
    let mut metadata: Vec<_> = others.chain(hashes).map(Cow::Borrowed).collect();
    metadata.sort_by(|a, b| a.0.cmp(&b.0));
    metadata
}

/// The files in `export/` and their names. With `dequantized`, the converted ones have the values of quantized weights.
/// Logs a warning for each that cannot be made.
pub fn export_files(model: &Arc<Model>, dequantized: bool) -> Vec<(String, Content)> {
    let stem = model::model_name(model).unwrap_or_default();
    // A copy in the directory of the model must not overwrite a file that the mount reads. The model itself, if it is
    // one file, has the name without suffix.
    let is_source = |file: &str| model.shards().iter().any(|shard| Path::new(&shard.name).ends_with(file));
    let name = |suffix, format| {
        let mut stem = stem.to_string_lossy().into_owned();
        loop {
            stem.push_str(suffix);
            let file = format!("{}.{format}", name::encode_name(&stem));
            if !is_source(&file) {
                return file;
            }
        }
    };
    let mut files = Vec::new();
    if gguf::has(model) {
        match gguf::file(model, ExportTensors::Whole) {
            Some(content) => files.push((name("-whole", "gguf"), content)),
            None => log::warn!("export/: -whole left out: too large for a file"),
        }
    } else {
        let export = ModelExport::new(model, ExportTensors::Whole, None, None);
        if export.with_metadata.is_none() {
            log::warn!("export/: left out: {}", export.refusal());
        }
        let kinds = [("-whole", export.with_metadata), ("-clean", export.clean)];
        files.extend(kinds.into_iter().filter_map(|(suffix, content)| Some((name(suffix, SAFETENSORS), content?))));
    }
    for (suffix, to) in [("-bf16", FloatDtype::Bf16), ("-f32", FloatDtype::F32)] {
        let conversion = Some(ValueConversion { to, dequantized });
        let export = ModelExport::new(model, ExportTensors::all(model, conversion), conversion, None);
        match export.with_metadata {
            Some(content) => files.push((name(suffix, SAFETENSORS), content)),
            None => log::warn!("export/: {suffix} left out: {}", export.refusal()),
        }
    }
    files
}

/// Runs of bytes. Adjacent runs are merged.
#[derive(Default)]
struct MergedRuns {
    runs: Vec<SourceRun>,
    /// Where the last run ends: source and offset.
    end: Option<(usize, u64)>,
}

impl MergedRuns {
    fn push(&mut self, start: u64, source: usize, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if self.end != Some((source, range.start)) {
            self.runs.push(SourceRun { start, source, offset: range.start });
        }
        self.end = Some((source, range.end));
    }
}

impl ExportEntries {
    fn numbers(&self, at: usize) -> TensorNumbers<'_> {
        numbers(&self.model, self.tensors.at(&self.model, at), self.conversion)
    }

    /// A tensor as it appears in the file, or as stored if the file could not hold it. In that case there is no file.
    fn written<'m>(&self, numbers: &TensorNumbers<'m>) -> TensorInfo<'m> {
        written(numbers, self.conversion).unwrap_or_else(|| numbers.tensor.info.clone())
    }

    /// Writes the entries at `positions`. A comma precedes every entry except the one at position 0.
    fn write(&self, positions: Range<usize>, out: Out) -> io::Result<()> {
        let info = |at| self.written(&self.numbers(at));
        let mark = positions.start / MARKED;
        let mut offset = self.offsets.get(mark).copied().unwrap_or(0);
        for at in mark * MARKED..positions.start {
            offset = offset.saturating_add(info(at).nbytes());
        }
        for at in positions {
            if at > 0 {
                out.write_all(b",")?;
            }
            let tensor = info(at);
            write_entry(&tensor, offset, &mut *out)?;
            // The sum only overflows if the data is too large, and then the file is not shown.
            offset = offset.saturating_add(tensor.nbytes());
        }
        Ok(())
    }

    /// Visits the data of the tensors from the one that contains the byte at `offset` on.
    fn visit(&self, offset: u64, take: &mut dyn FnMut(&Segment, u64) -> ControlFlow<()>) {
        let mark = self.offsets.partition_point(|begins| *begins <= offset).saturating_sub(1);
        let mut begins = self.offsets.get(mark).copied().unwrap_or(0);
        for at in mark * MARKED..self.tensors.len(&self.model) {
            let numbers = self.numbers(at);
            let ends = begins + self.written(&numbers).nbytes();
            if ends > offset {
                let conversion = self.conversion.filter(|_| is_converted(&numbers, self.conversion));
                let segment =
                    conversion.and_then(|ValueConversion { to, .. }| values::segment(&self.model, &numbers, to));
                let segment = segment.unwrap_or_else(|| Segment::Data(self.model.data(&numbers.tensor)));
                if take(&segment, begins).is_break() {
                    return;
                }
            }
            begins = ends;
        }
    }
}

/// Writes a tensor as a header entry. `offset` is that of its data, in bytes from the start of the data.
pub fn write_entry(tensor: &TensorInfo, offset: u64, out: Out) -> io::Result<()> {
    serde_json::to_writer(&mut *out, tensor.name)?;
    out.write_all(b":{\"dtype\":")?;
    serde_json::to_writer(&mut *out, tensor.dtype.name())?;
    out.write_all(b",\"shape\":[")?;
    write_list(tensor.shape, ",", out)?;
    write!(out, "],\"data_offsets\":[{offset},{}]}}", offset.saturating_add(tensor.nbytes()))
}
