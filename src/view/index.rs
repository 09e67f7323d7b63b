//! `index.json`: knows how tensors are listed as JSON, one a line.

use super::lines::{Lines, Out, write_list};
use crate::content::{Content, Run, Segment};
use crate::model::{Model, Place};
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
    dirs: Dirs,
}

/// Which directories of tensors the mount has, so that a line can say where its file is.
#[derive(Debug, Clone, Copy)]
pub struct Dirs {
    /// `tensors/`.
    pub tensors: bool,
    /// `shards/FILE/tensors/`.
    pub shards: bool,
}

impl Index {
    /// Measures every line.
    pub fn new(model: &Model, dirs: Dirs) -> Self {
        let source = json(&model.path().to_string_lossy());
        let head = format!("{{\"source\": {source}, \"format\": \"safetensors\", \"tensors\": [\n");
        let skipped: Vec<String> = model
            .skipped()
            .map(|skipped| format!("\n{{\"name\": {}, \"reason\": {}}}", json(&skipped.name), json(&skipped.reason)))
            .collect();
        let tail = format!("], \"skipped\": [{}]}}\n", skipped.join(","));
        let lines = Lines::new(count(model), |tensors, out| write_lines(model, dirs, tensors, out));
        Self { head, lines, tail, dirs }
    }

    /// The file.
    pub fn content<'a>(&'a self, model: &'a Model) -> Content<'a> {
        Content::new([
            Segment::Literal(Cow::Borrowed(self.head.as_bytes())),
            self.lines.segment(|tensors, out| write_lines(model, self.dirs, tensors, out)),
            Segment::Literal(Cow::Borrowed(self.tail.as_bytes())),
        ])
    }
}

/// The tensors that are no part of the whole and have numbers behind it; those with numbers in between are met on the way.
fn behind(model: &Model) -> &[u32] {
    &model.aside()[model.aside().partition_point(|at| (*at as usize) < model.len())..]
}

/// Number of lines: of the whole, and of what is in a shard only.
fn count(model: &Model) -> usize {
    model.len() + behind(model).len()
}

fn write_lines(model: &Model, dirs: Dirs, mut lines: Range<usize>, out: Out) -> io::Result<()> {
    lines.try_for_each(|line| {
        write_line(
            model,
            dirs,
            behind(model).get(line.wrapping_sub(model.len())).map_or(line, |at| *at as usize),
            out,
        )?;
        out.write_all(if line + 1 == count(model) { b"\n" } else { b",\n" })
    })
}

fn write_line(model: &Model, dirs: Dirs, tensor: usize, out: Out) -> io::Result<()> {
    let (info, place) = model.tensor(tensor);
    out.write_all(b"{\"name\": ")?;
    serde_json::to_writer(&mut *out, info.name)?;
    out.write_all(b", \"dtype\": ")?;
    serde_json::to_writer(&mut *out, info.dtype.name())?;
    out.write_all(b", \"shape\": [")?;
    write_list(info.shape, ", ", out)?;
    write!(out, "], \"nbytes\": {}, \"file\": ", info.nbytes())?;
    let (file, shards) = (name::encode(info.name), model.shards());
    match place {
        Place::Shard(shard) if dirs.shards && model.is_aside(tensor) => {
            let shard = name::encode(&shards[shard].name);
            serde_json::to_writer(&mut *out, &format_args!("shards/{shard}/tensors/{file}"))?;
        }
        _ if dirs.tensors && !model.is_aside(tensor) => {
            serde_json::to_writer(&mut *out, &format_args!("tensors/{file}"))?;
        }
        _ => out.write_all(b"null")?,
    }
    match place {
        Place::Shard(shard) => {
            out.write_all(b", ")?;
            write_place(&shards[shard].name, info.range.start, out)?;
        }
        Place::Runs(runs) => {
            out.write_all(b", \"extents\": [")?;
            for (at, (run, len)) in Run::with_lengths(runs, info.nbytes()).enumerate() {
                out.write_all(if at == 0 { b"{" } else { b", {" })?;
                write_place(&shards[run.source as usize].name, run.offset, out)?;
                write!(out, ", \"nbytes\": {len}}}")?;
            }
            out.write_all(b"]")?;
        }
    }
    out.write_all(b"}")
}

fn write_place(shard: &str, offset: u64, out: Out) -> io::Result<()> {
    out.write_all(b"\"shard\": ")?;
    serde_json::to_writer(&mut *out, shard)?;
    write!(out, ", \"offset\": {offset}")
}

/// A string as JSON, which cannot fail.
fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}
