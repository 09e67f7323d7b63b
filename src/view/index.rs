//! `index.json`: knows how tensors are listed as JSON, one a line.

use super::lines::{Lines, Out, write_list};
use crate::content::{Content, Run, Segment};
use crate::format::Skipped;
use crate::model::{Model, Place};
use crate::name;
use crate::text::write_json_string;
use std::borrow::Cow;
use std::io;
use std::ops::Range;

/// The parts of `index.json`.
#[derive(Debug)]
pub struct Index {
    head: Vec<u8>,
    lines: Lines,
    tail: Vec<u8>,
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
        let (mut head, mut tail) = (Vec::new(), Vec::new());
        // A vector cannot refuse text.
        let _ = write_head(model, &mut head).and_then(|()| write_tail(model, &mut tail));
        let lines = Lines::new(count(model), |tensors, out| write_lines(model, dirs, tensors, out));
        Self { head, lines, tail, dirs }
    }

    /// The file.
    pub fn content<'a>(&'a self, model: &'a Model) -> Content<'a> {
        Content::new([
            Segment::Literal(Cow::Borrowed(&self.head)),
            self.lines.segment(|tensors, out| write_lines(model, self.dirs, tensors, out)),
            Segment::Literal(Cow::Borrowed(&self.tail)),
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

fn write_head(model: &Model, out: Out) -> io::Result<()> {
    out.write_all(b"{\"source\": ")?;
    write_json_string(&model.path().to_string_lossy(), out)?;
    out.write_all(b", \"format\": \"safetensors\", \"tensors\": [\n")
}

fn write_tail(model: &Model, out: Out) -> io::Result<()> {
    out.write_all(b"], \"skipped\": [")?;
    for (at, Skipped { name, reason }) in model.skipped().enumerate() {
        out.write_all(if at == 0 { b"\n{\"name\": " } else { b",\n{\"name\": " })?;
        write_json_string(name, out)?;
        out.write_all(b", \"reason\": ")?;
        write_json_string(reason, out)?;
        out.write_all(b"}")?;
    }
    out.write_all(b"]}\n")
}

fn write_lines(model: &Model, dirs: Dirs, mut lines: Range<usize>, out: Out) -> io::Result<()> {
    lines.try_for_each(|line| {
        let tensor = behind(model).get(line.wrapping_sub(model.len())).map_or(line, |at| *at as usize);
        write_line(model, Some(dirs), tensor, out)?;
        out.write_all(if line + 1 == count(model) { b"\n" } else { b",\n" })
    })
}

/// A tensor as a line of `index.json`, without the file that it has in a mount.
pub fn write_tensor(model: &Model, tensor: usize, out: Out) -> io::Result<()> {
    write_line(model, None, tensor, out)
}

fn write_line(model: &Model, dirs: Option<Dirs>, tensor: usize, out: Out) -> io::Result<()> {
    let (info, place) = model.tensor(tensor);
    out.write_all(b"{\"name\": ")?;
    write_json_string(info.name, out)?;
    out.write_all(b", \"dtype\": ")?;
    write_json_string(info.dtype.name(), out)?;
    out.write_all(b", \"shape\": [")?;
    write_list(info.shape, ", ", out)?;
    write!(out, "], \"nbytes\": {}", info.nbytes())?;
    if let Some(dirs) = dirs {
        out.write_all(b", \"file\": ")?;
        write_file(model, dirs, tensor, out)?;
    }
    let shards = model.shards();
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

/// Where the file of a tensor is in the mount.
fn write_file(model: &Model, dirs: Dirs, tensor: usize, out: Out) -> io::Result<()> {
    let (info, place) = model.tensor(tensor);
    let file = name::encode(info.name);
    match place {
        Place::Shard(shard) if dirs.shards && model.is_aside(tensor) => {
            let shard = name::encode(&model.shards()[shard].name);
            serde_json::to_writer(&mut *out, &format_args!("shards/{shard}/tensors/{file}"))?;
        }
        _ if dirs.tensors && !model.is_aside(tensor) => {
            serde_json::to_writer(&mut *out, &format_args!("tensors/{file}"))?;
        }
        _ => out.write_all(b"null")?,
    }
    Ok(())
}

fn write_place(shard: &str, offset: u64, out: Out) -> io::Result<()> {
    out.write_all(b"\"shard\": ")?;
    write_json_string(shard, out)?;
    write!(out, ", \"offset\": {offset}")
}
