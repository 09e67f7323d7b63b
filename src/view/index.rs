//! `index.json`: knows how tensors are listed as JSON, one a line.

use super::lines::{Lines, Out, write_list};
use crate::content::{Content, Segment};
use crate::model::Model;
use crate::name;
use std::borrow::Cow;
use std::io;
use std::ops::Range;

/// The parts of `index.json`.
#[derive(Debug)]
pub struct Index {
    head: String,
    lines: Lines,
    tail: String,
    tensors_dir: Option<&'static str>,
}

impl Index {
    /// Measures every line. `tensors_dir` is the directory of the raw tensors in the mount, if it is shown.
    pub fn new(model: &Model, tensors_dir: Option<&'static str>) -> Self {
        let source = json(&model.path().to_string_lossy());
        let head = format!("{{\"source\": {source}, \"format\": \"safetensors\", \"tensors\": [\n");
        let skipped: Vec<String> = model
            .skipped()
            .map(|skipped| format!("\n{{\"name\": {}, \"reason\": {}}}", json(&skipped.name), json(&skipped.reason)))
            .collect();
        let tail = format!("], \"skipped\": [{}]}}\n", skipped.join(","));
        let lines = Lines::new(model.len(), |tensors, out| write_lines(model, tensors_dir, tensors, out));
        Self { head, lines, tail, tensors_dir }
    }

    /// The file.
    pub fn content<'a>(&'a self, model: &'a Model) -> Content<'a> {
        Content::new([
            Segment::Literal(Cow::Borrowed(self.head.as_bytes())),
            self.lines.segment(|tensors, out| write_lines(model, self.tensors_dir, tensors, out)),
            Segment::Literal(Cow::Borrowed(self.tail.as_bytes())),
        ])
    }
}

fn write_lines(model: &Model, tensors_dir: Option<&str>, mut tensors: Range<usize>, out: Out) -> io::Result<()> {
    tensors.try_for_each(|tensor| write_line(model, tensors_dir, tensor, out))
}

fn write_line(model: &Model, tensors_dir: Option<&str>, tensor: usize, out: Out) -> io::Result<()> {
    let (info, shard) = model.tensor(tensor);
    out.write_all(b"{\"name\": ")?;
    serde_json::to_writer(&mut *out, info.name)?;
    out.write_all(b", \"dtype\": ")?;
    serde_json::to_writer(&mut *out, info.dtype.name())?;
    out.write_all(b", \"shape\": [")?;
    write_list(info.shape, ", ", out)?;
    write!(out, "], \"nbytes\": {}, \"file\": ", info.nbytes())?;
    match tensors_dir {
        Some(dir) => serde_json::to_writer(&mut *out, &format_args!("{dir}/{}", name::encode(info.name)))?,
        None => out.write_all(b"null")?,
    }
    out.write_all(b", \"shard\": ")?;
    serde_json::to_writer(&mut *out, &shard.name)?;
    write!(out, ", \"offset\": {}}}", info.range.start)?;
    out.write_all(if tensor + 1 == model.len() { b"\n" } else { b",\n" })
}

/// A string as JSON, which cannot fail.
fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}
