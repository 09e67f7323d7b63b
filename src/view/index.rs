//! `index.json`: knows how tensors are listed as JSON, and where in the text each of them stands, without keeping it.
//!
//! One line a tensor. The text of a million tensors takes 200 MB, so only the place of every 256th line is kept, and
//! lines are written when they are read.

use crate::content::{Content, Generated, Segment};
use crate::model::Model;
use crate::name;
use rayon::prelude::*;
use std::borrow::Cow;
use std::io::{self, Write};
use std::ops::Range;

/// Lines between two kept places.
const STRIDE: usize = 256;

/// The parts of `index.json`.
#[derive(Debug)]
pub struct Index {
    head: String,
    /// Where every [`STRIDE`]th line begins, in bytes from the first; the last entry is where the lines end.
    places: Vec<u64>,
    tail: String,
    tensors_dir: Option<&'static str>,
}

impl Index {
    /// Measures every line. `tensors_dir` is the directory of the raw tensors in the mount, if it is shown.
    pub fn new(model: &Model, tensors_dir: Option<&'static str>) -> Self {
        let source = json(&model.path().to_string_lossy());
        let head = format!("{{\"source\": {source}, \"format\": \"safetensors\", \"tensors\": [\n");
        let skipped: Vec<String> = model
            .header()
            .skipped()
            .iter()
            .map(|skipped| format!("\n{{\"name\": {}, \"reason\": {}}}", json(&skipped.name), json(&skipped.reason)))
            .collect();
        let tail = format!("], \"skipped\": [{}]}}\n", skipped.join(","));
        let mut index = Self { head, places: vec![0], tail, tensors_dir };
        index.places = index.measure(model);
        index
    }

    /// Where every [`STRIDE`]th line begins. A million lines take a while, so that every core measures a part.
    fn measure(&self, model: &Model) -> Vec<u64> {
        let stride = |first: usize| {
            let mut length = Length::default();
            for tensor in first..model.len().min(first + STRIDE) {
                let _ = self.write_line(model, tensor, &mut length);
            }
            length.0
        };
        let firsts: Vec<usize> = (0..model.len()).step_by(STRIDE).collect();
        let mut places = vec![0];
        places.par_extend(firsts.into_par_iter().map(stride));
        for at in 1..places.len() {
            places[at] += places[at - 1];
        }
        places
    }

    /// The file.
    pub fn content<'a>(&'a self, model: &'a Model) -> Content<'a> {
        Content::new([
            Segment::Literal(Cow::Borrowed(self.head.as_bytes())),
            Segment::Generated(Generated {
                len: self.places.last().copied().unwrap_or(0),
                write: Box::new(|range, out| self.write_lines(model, range, out)),
            }),
            Segment::Literal(Cow::Borrowed(self.tail.as_bytes())),
        ])
    }

    fn write_lines(&self, model: &Model, range: Range<u64>, out: &mut Vec<u8>) {
        let first = self.places.partition_point(|place| *place <= range.start).saturating_sub(1);
        let mut place = self.places[first];
        let mut line = Vec::new();
        for tensor in first * STRIDE..model.len() {
            if place >= range.end {
                break;
            }
            line.clear();
            let _ = self.write_line(model, tensor, &mut line);
            let len = line.len() as u64;
            let from = range.start.saturating_sub(place).min(len) as usize;
            let to = (range.end - place).min(len) as usize;
            out.extend_from_slice(&line[from..to]);
            place += len;
        }
    }

    /// Writes the line of one tensor. Only `out` can fail, and those that are used here do not.
    fn write_line<W: Write>(&self, model: &Model, tensor: usize, mut out: W) -> io::Result<()> {
        let (info, shard) = model.tensor(tensor);
        out.write_all(b"{\"name\": ")?;
        serde_json::to_writer(&mut out, info.name)?;
        out.write_all(b", \"dtype\": ")?;
        serde_json::to_writer(&mut out, info.dtype.name())?;
        out.write_all(b", \"shape\": [")?;
        for (at, dim) in info.shape.iter().enumerate() {
            write!(out, "{}{dim}", if at == 0 { "" } else { ", " })?;
        }
        write!(out, "], \"nbytes\": {}, \"file\": ", info.nbytes())?;
        match self.tensors_dir {
            Some(dir) => serde_json::to_writer(&mut out, &format_args!("{dir}/{}", name::encode(info.name)))?,
            None => out.write_all(b"null")?,
        }
        out.write_all(b", \"shard\": ")?;
        serde_json::to_writer(&mut out, &shard.name)?;
        write!(out, ", \"offset\": {}}}", info.range.start)?;
        out.write_all(if tensor + 1 == model.len() { b"\n" } else { b",\n" })
    }
}

/// Takes text and keeps its length only.
#[derive(Default)]
struct Length(u64);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A string as JSON, which cannot fail.
fn json(text: &str) -> String {
    serde_json::to_string(text).unwrap_or_default()
}
