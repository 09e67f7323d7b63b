//! `index.json`: knows how tensors are listed as JSON, and where in the text each of them stands, without keeping it.
//!
//! One line a tensor. The text of a million tensors takes 200 MB, so only the place of every 256th line is kept, and
//! lines are written when they are read.

use crate::content::{Content, Generated, Segment};
use crate::model::Model;
use crate::name;
use serde::Serialize;
use std::borrow::Cow;
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
        let mut line = Vec::new();
        let mut place = 0;
        for tensor in 0..model.len() {
            line.clear();
            index.write_line(model, tensor, &mut line);
            place += line.len() as u64;
            if (tensor + 1) % STRIDE == 0 || tensor + 1 == model.len() {
                index.places.push(place);
            }
        }
        index
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
            self.write_line(model, tensor, &mut line);
            let len = line.len() as u64;
            let from = range.start.saturating_sub(place).min(len) as usize;
            let to = (range.end - place).min(len) as usize;
            out.extend_from_slice(&line[from..to]);
            place += len;
        }
    }

    fn write_line(&self, model: &Model, tensor: usize, out: &mut Vec<u8>) {
        let (info, shard) = model.tensor(tensor);
        let file = self.tensors_dir.map(|dir| format!("{dir}/{}", name::encode(info.name)));
        let dims: Vec<String> = info.shape.iter().map(u64::to_string).collect();
        let last = tensor + 1 == model.len();
        out.extend_from_slice(
            format!(
                "{{\"name\": {}, \"dtype\": {}, \"shape\": [{}], \"nbytes\": {}, \"file\": {}, \"shard\": {}, \"offset\": {}}}{}\n",
                json(info.name),
                json(info.dtype.name()),
                dims.join(", "),
                info.nbytes(),
                json(&file),
                json(&shard.name),
                info.range.start,
                if last { "" } else { "," },
            )
            .as_bytes(),
        );
    }
}

/// A string, or none, as JSON. Neither can fail.
fn json<T: Serialize + ?Sized>(value: &T) -> String {
    serde_json::to_string(value).unwrap_or_default()
}
