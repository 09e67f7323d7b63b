//! `gguf/`: a tensor as a complete GGUF file; and a whole model as one GGUF file, for `export/`.
//!
//! The metadata is copied from the source byte for byte, in the same order.

use super::lines::{Out, TextLines, TextPieces};
use super::selection::ExportTensors;
use crate::content::{Content, Extents, Segment, SourceRun};
use crate::format::gguf::{
    ALIGNMENT_KEY, MAGIC, METADATA_START, NAME, SHAPE_PREFIX, SPLIT_PREFIX, alignment, stored_shape,
};
use crate::format::{Header, MetadataValue, TensorInfo};
use crate::model::{BytePlace, Model, ModelFile, Tensor, TensorId, TensorNumbers};
use crate::source::{Source, ZeroSource};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

pub fn has(model: &Model) -> bool {
    model.format() == NAME
}

pub fn gguf_shows(numbers: &TensorNumbers) -> bool {
    numbers.tensor.info.dtype.ggml().is_some() && !numbers.tensor.is_gathered()
}

/// A file that holds only this tensor, under its own name, with the `general.*` metadata of the first file, and with
/// its shape if that is in the metadata.
pub fn gguf_content(model: &Model, tensor: &Tensor) -> Content {
    let Some(ModelFile { header, .. }) = model.files.first() else { return Content::new([]) };
    let pairs = header.pairs.iter().filter(|(key, _)| {
        key.starts_with("general.") || key.strip_prefix(SHAPE_PREFIX).is_some_and(|name| name == tensor.info.name)
    });
    let mut builder = GgufBuilder::new(model, header, pairs.map(|(_, range)| range.clone()));
    builder.tensor(model, tensor.id);
    let mut info = Vec::new();
    // Writing to a vector cannot fail.
    let _ = write_info(header, &tensor.info, 0, &mut info);
    builder.finish(model, header, 1, Segment::Literal(info.into()))
}

/// Tensors of a model in one file, with the metadata of the first file except the keys that describe a split. `None`
/// if it would be too large for a file: tensors of damaged files may overlap.
pub fn file(model: &Arc<Model>, tensors: ExportTensors) -> Option<Content> {
    let header = &model.files.first()?.header;
    let pairs = header.pairs.iter().filter(|(key, _)| !key.starts_with(SPLIT_PREFIX));
    let mut builder = GgufBuilder::new(model, header, pairs.map(|(_, range)| range.clone()));
    let count = tensors.len(model);
    let offsets: Option<Vec<u64>> = (0..count).map(|at| builder.tensor(model, tensors.at(model, at))).collect();
    let offsets = offsets?;
    let lines = Arc::new(TextLines::new(TensorInfos { model: model.clone(), tensors, offsets }));
    let content = builder.finish(model, header, count as u64, Segment::Generated(lines));
    Some(content).filter(|content| content.len() <= LEN_MAX)
}

struct TensorInfos {
    model: Arc<Model>,
    tensors: ExportTensors,
    /// The offset of each tensor, in bytes from the beginning of the data.
    offsets: Vec<u64>,
}

impl TextPieces for TensorInfos {
    fn count(&self) -> usize {
        self.offsets.len()
    }

    fn write(&self, mut positions: Range<usize>, out: Out) -> io::Result<()> {
        positions.try_for_each(|at| {
            let tensor = self.model.tensor(self.tensors.at(&self.model, at));
            let Some(ModelFile { header, .. }) = self.model.files.first() else { return Ok(()) };
            write_info(header, &tensor.info, self.offsets[at], out)
        })
    }
}

/// The metadata for a safetensors file, which has only strings. The tokenizer, long arrays, and keys that describe the
/// layout or the quantization of the GGUF file are left out.
pub fn texts(model: &Model) -> BTreeMap<&str, Cow<'_, str>> {
    let kept = model.metadata().iter().filter(|(key, value)| !is_left_out(key, value));
    kept.map(|(key, value)| (&key[..], text_value(value))).collect()
}

fn is_left_out(key: &str, value: &MetadataValue) -> bool {
    ["tokenizer.", SPLIT_PREFIX].iter().any(|prefix| key.starts_with(prefix))
        || LAYOUT.contains(&key)
        || value.is_array() && value.text().len() > ARRAY_MAX
}

/// A value as a string; an array as JSON.
fn text_value(value: &MetadataValue) -> Cow<'_, str> {
    match value.is_array() {
        // Serializing to memory cannot fail.
        true => serde_json::to_string(value).unwrap_or_default().into(),
        false => value.text().into(),
    }
}

/// Keys that are left out: those that describe the layout or the quantization of a GGUF file.
const LAYOUT: [&str; 3] = [ALIGNMENT_KEY, "general.file_type", "general.quantization_version"];

/// Length of the longest array, as text, that is kept as metadata of a safetensors file, in bytes.
const ARRAY_MAX: usize = 4 << 10;

const LEN_MAX: u64 = i64::MAX as u64;

struct GgufBuilder {
    pairs: Vec<SourceRun>,
    pairs_len: u64,
    pair_count: u64,
    /// The data, with padding after each tensor.
    data: Vec<SourceRun>,
    data_len: u64,
    alignment: u64,
    /// The index of the source of padding, after those of the model.
    zeros: usize,
}

impl GgufBuilder {
    fn new(model: &Model, header: &Header, pairs: impl Iterator<Item = Range<u64>>) -> Self {
        let (mut runs, mut len, mut count) = (Vec::new(), 0, 0);
        for range in pairs {
            push_run(&mut runs, len, 0, range.clone());
            len += range.end - range.start;
            count += 1;
        }
        Self {
            pairs: runs,
            pairs_len: len,
            pair_count: count,
            data: Vec::new(),
            data_len: 0,
            alignment: alignment(header),
            zeros: model.files.len(),
        }
    }

    /// Adds the data of a tensor and its padding. Returns its offset, in bytes from the beginning of the data. `None`
    /// if the data would be too large, or is not that of a type of GGUF.
    fn tensor(&mut self, model: &Model, id: TensorId) -> Option<u64> {
        let (tensor, offset) = (model.tensor(id), self.data_len);
        // A shard may be of another format.
        if tensor.info.dtype.ggml().is_none() || tensor.is_gathered() {
            return None;
        }
        let end = offset.checked_add(tensor.info.nbytes)?;
        self.data_len = end.checked_next_multiple_of(self.alignment).filter(|len| *len <= LEN_MAX)?;
        push_data(&mut self.data, offset, &tensor);
        push_run(&mut self.data, end, self.zeros, 0..self.data_len - end);
        Some(offset)
    }

    /// The file: `infos` describes its tensors.
    fn finish(self, model: &Model, header: &Header, tensors: u64, infos: Segment) -> Content {
        let mut head = MAGIC.to_vec();
        head.extend(header.version.unwrap_or(3).to_le_bytes());
        head.extend(tensors.to_le_bytes());
        head.extend(self.pair_count.to_le_bytes());
        let end = METADATA_START + self.pairs_len + infos.len();
        // The alignment can be up to 2^31 bytes.
        let zeros: Arc<dyn Source> = Arc::new(ZeroSource::new(self.alignment));
        let padding = Segment::extent(&zeros, 0..end.next_multiple_of(self.alignment) - end);
        let sources = model.sources().iter().cloned().chain([zeros]).collect();
        Content::new([
            Segment::Literal(head.into()),
            Segment::Extents(model.extents(self.pairs.into(), self.pairs_len)),
            infos,
            padding,
            Segment::Extents(Extents::new(sources, self.data.into(), self.data_len)),
        ])
    }
}

/// Adds the runs that hold the data of a tensor.
pub fn push_data(runs: &mut Vec<SourceRun>, mut start: u64, tensor: &Tensor) {
    for BytePlace { file, range } in tensor.places() {
        let len = range.end - range.start;
        push_run(runs, start, file.index(), range);
        // The caller may find out later that the file would be too large.
        start = start.saturating_add(len);
    }
}

/// Adds a run. Adjacent runs are merged.
pub fn push_run(runs: &mut Vec<SourceRun>, start: u64, source: usize, range: Range<u64>) {
    let continues =
        runs.last().is_some_and(|last| last.source == source && last.offset + (start - last.start) == range.start);
    if !range.is_empty() && !continues {
        runs.push(SourceRun { start, source, offset: range.start });
    }
}

/// Writes the description of a tensor in a file with the metadata of `header`. `offset` is that of its data, in bytes
/// from the beginning of the data.
fn write_info(header: &Header, tensor: &TensorInfo, offset: u64, out: Out) -> io::Result<()> {
    out.write_all(&(tensor.name.len() as u64).to_le_bytes())?;
    out.write_all(tensor.name.as_bytes())?;
    let shape = stored_shape(header, tensor);
    out.write_all(&(shape.len() as u32).to_le_bytes())?;
    for dim in shape.iter().rev() {
        out.write_all(&dim.to_le_bytes())?;
    }
    out.write_all(&tensor.dtype.ggml().unwrap_or_default().to_le_bytes())?;
    out.write_all(&offset.to_le_bytes())
}
