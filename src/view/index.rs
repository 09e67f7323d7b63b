//! `index.json`: a JSON object for each tensor, one per line.

use super::lines::{Out, TextLines, TextPieces, write_list};
use crate::content::{Content, Segment};
use crate::format::{SkippedEntry, SkippedKind};
use crate::model::quantization::QuantizedWeight;
use crate::model::{BytePlace, Model, ModelFileId, TensorId, TensorNumbers};
use crate::name;
use crate::text::write_json_string;
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// The directories of stored tensors in a mount. They give the path of a tensor's file.
#[derive(Debug, Clone, Copy)]
pub struct TensorDirs {
    /// The name of the directory of logical tensors in the root, if it is shown.
    pub tensors: Option<&'static str>,
    /// Whether each shard has this directory too, in `shards/FILE/`.
    pub in_shards: bool,
}

pub fn index_content(model: &Arc<Model>, dirs: TensorDirs) -> Content {
    let (mut head, mut tail) = (Vec::new(), Vec::new());
    // Writing to a vector cannot fail.
    let _ = write_head(model, &mut head).and_then(|()| write_tail(model, &mut tail));
    let lines = Arc::new(TextLines::new(IndexLines { model: model.clone(), dirs }));
    Content::new([Segment::Literal(head.into()), Segment::Generated(lines), Segment::Literal(tail.into())])
}

struct IndexLines {
    model: Arc<Model>,
    dirs: TensorDirs,
}

impl TextPieces for IndexLines {
    fn count(&self) -> usize {
        self.model.listed().len()
    }

    fn write(&self, mut lines: Range<usize>, out: Out) -> io::Result<()> {
        let listed = self.model.listed();
        lines.try_for_each(|line| {
            write_line(&self.model, Some(self.dirs), listed.at(line), out)?;
            out.write_all(if line + 1 == listed.len() { b"\n" } else { b",\n" })
        })
    }
}

/// Writes text up to a value, and the value.
fn write_member(before: &str, value: &str, out: Out) -> io::Result<()> {
    out.write_all(before.as_bytes())?;
    write_json_string(value, out)
}

fn write_head(model: &Model, out: Out) -> io::Result<()> {
    write_member("{\"source\": ", &model.location.to_string(), out)?;
    write_member(", \"format\": ", model.format(), out)?;
    let notes: Vec<String> = model.quantized.notes().chain(model.facts.remarks.iter().cloned()).collect();
    for (at, note) in notes.iter().enumerate() {
        out.write_all(if at == 0 { b", \"notes\": [" } else { b", " })?;
        write_json_string(note, out)?;
    }
    if !notes.is_empty() {
        out.write_all(b"]")?;
    }
    out.write_all(b", \"tensors\": [\n")
}

fn write_tail(model: &Model, out: Out) -> io::Result<()> {
    out.write_all(b"], \"skipped\": [")?;
    for (at, SkippedEntry { name, reason, kind }) in model.skipped().enumerate() {
        out.write_all(if at == 0 { b"\n{\"name\": " } else { b",\n{\"name\": " })?;
        write_json_string(name, out)?;
        write_member(", \"reason\": ", reason, out)?;
        out.write_all(if *kind == SkippedKind::Shown { b", \"shown\": true}" } else { b"}" })?;
    }
    out.write_all(b"]}\n")
}

/// Writes a tensor as a line of `index.json`, without the `file` member.
pub fn write_tensor(model: &Model, tensor: TensorId, out: Out) -> io::Result<()> {
    write_line(model, None, tensor, out)
}

fn write_line(model: &Model, dirs: Option<TensorDirs>, tensor: TensorId, out: Out) -> io::Result<()> {
    let tensor = model.tensor(tensor);
    let info = &tensor.info;
    write_member("{\"name\": ", info.name, out)?;
    write_member(", \"dtype\": ", info.dtype.name(), out)?;
    out.write_all(b", \"shape\": [")?;
    write_list(info.shape, ", ", out)?;
    write!(out, "], \"nbytes\": {}", info.nbytes)?;
    if let Some(dirs) = dirs {
        out.write_all(b", \"file\": ")?;
        let file = name::encode_name(info.name);
        let is_logical = model.logical().contains(tensor.id);
        match (dirs.tensors, tensor.file()) {
            (Some(dir), _) if is_logical => serde_json::to_writer(&mut *out, &format_args!("{dir}/{file}"))?,
            (Some(dir), Some(shard)) if dirs.in_shards => {
                let shard = name::encode_name(&model.file(shard).name);
                serde_json::to_writer(&mut *out, &format_args!("shards/{shard}/{dir}/{file}"))?;
            }
            _ => out.write_all(b"null")?,
        }
    }
    match tensor.stored() {
        Some((shard, stored)) => {
            out.write_all(b", ")?;
            write_extent(model, shard, stored.range.start, out)?;
            if let Some(layout) = stored.layout {
                out.write_all(b", \"strides\": [")?;
                write_list(layout.strides, ", ", out)?;
                out.write_all(if layout.word > 1 { b"], \"byte_order\": \"big\"" } else { b"]" })?;
            }
        }
        None => {
            out.write_all(b", \"extents\": [")?;
            for (at, BytePlace { file, range }) in tensor.places().into_iter().enumerate() {
                out.write_all(if at == 0 { b"{" } else { b", {" })?;
                write_extent(model, file, range.start, out)?;
                write!(out, ", \"nbytes\": {}}}", range.end - range.start)?;
            }
            out.write_all(b"]")?;
        }
    }
    if let Some(weight) = model.quantized.weight(tensor.id) {
        out.write_all(b", \"quantization\": ")?;
        write_weight(model, &TensorNumbers { tensor, weight: Some(weight) }, weight, out)?;
    } else if let Some(weight) = model.quantized.owner(tensor.id) {
        write_member(", \"companion_of\": ", model.weight_name(weight), out)?;
        write_member(", \"role\": ", weight.role(tensor.id.index()), out)?;
    }
    out.write_all(b"}")
}

fn write_weight(model: &Model, numbers: &TensorNumbers, weight: &QuantizedWeight, out: Out) -> io::Result<()> {
    let class = &weight.class;
    write_member("{\"name\": ", numbers.name(), out)?;
    out.write_all(b", \"shape\": [")?;
    write_list(numbers.shape(), ", ", out)?;
    write_member("], \"scheme\": ", class.scheme, out)?;
    write_member(", \"dtype\": ", class.dtype, out)?;
    write_member(", \"summary\": ", &class.summary(), out)?;
    write!(out, ", \"bits_per_weight\": {:.3}, \"companions\": [", weight.bits_per_weight())?;
    for (at, companion) in weight.companions().enumerate() {
        out.write_all(if at == 0 { b"" } else { b", " })?;
        write_json_string(model.name(TensorId::new(companion)), out)?;
    }
    out.write_all(b"]}")
}

fn write_extent(model: &Model, shard: ModelFileId, offset: u64, out: Out) -> io::Result<()> {
    write_member("\"shard\": ", &model.file(shard).name, out)?;
    write!(out, ", \"offset\": {offset}")
}
