//! `export/`: knows the whole model as one safetensors file with a header of our own.
//!
//! The tensors keep the order that they have in the source, and are not sorted anew as the official writer does (by dtype,
//! then name): the data is then one run of each file, whole, and is read at the speed of a tensor. Spaces behind the
//! header make the data begin on a page.

use super::lines::{Lines, Out, STRIDE};
use super::metadata;
use crate::content::{Content, Extents, Run, Segment};
use crate::format::TensorInfo;
use crate::model::Model;
use std::borrow::Cow;
use std::io;
use std::ops::Range;

/// The data begins at a multiple of this many bytes.
const PAGE: u64 = 4096;

/// The tables behind both exports, with metadata and without.
#[derive(Debug)]
pub struct Export {
    with_metadata: Frame,
    clean: Frame,
    entries: Lines,
    /// Where the data of every [`STRIDE`]th tensor begins, in bytes from the first.
    offsets: Vec<u64>,
    /// The data, neighbours joined: one run for each shard, unless it is damaged.
    runs: Vec<Run>,
    data_len: u64,
}

/// What stands around the entries in a header: the length and the metadata before them, the padding after them.
#[derive(Debug)]
struct Frame {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Frame {
    fn new(metadata: &str, entries: u64) -> Self {
        let used = 8 + 1 + metadata.len() as u64 + entries + 1;
        let data_start = used.next_multiple_of(PAGE);
        let head = [&(data_start - 8).to_le_bytes()[..], b"{", metadata.as_bytes()].concat();
        let mut tail = vec![b'}'];
        tail.resize(1 + (data_start - used) as usize, b' ');
        Self { head, tail }
    }
}

impl Export {
    /// Measures the header. Of the data only its places are looked at.
    pub fn new(model: &Model) -> Self {
        let metadata = match model.metadata() {
            [] => String::new(),
            pairs => {
                // Strings as keys and values cannot fail to be JSON.
                let json = serde_json::to_string(&metadata::sorted(pairs)).unwrap_or_default();
                format!("\"__metadata__\":{json}{}", if model.is_empty() { "" } else { "," })
            }
        };
        let (mut offsets, mut runs, mut data_len, mut tensors) = (Vec::new(), Vec::new(), 0, 0);
        for (source, shard) in (0..).zip(model.shards()) {
            let mut end = None;
            for tensor in shard.header.tensors() {
                if tensors % STRIDE == 0 {
                    offsets.push(data_len);
                }
                tensors += 1;
                if tensor.nbytes() > 0 {
                    if end != Some(tensor.range.start) {
                        runs.push(Run { start: data_len, source, offset: tensor.range.start });
                    }
                    end = Some(tensor.range.end);
                    data_len += tensor.nbytes();
                }
            }
        }
        let entries = Lines::new(model.len(), |tensors, out| write_entries(model, &offsets, tensors, out));
        let with_metadata = Frame::new(&metadata, entries.len());
        Self { with_metadata, clean: Frame::new("", entries.len()), entries, offsets, runs, data_len }
    }

    /// The file; `clean` leaves the metadata out.
    pub fn content<'a>(&'a self, model: &'a Model, clean: bool) -> Content<'a> {
        let frame = if clean { &self.clean } else { &self.with_metadata };
        Content::new([
            Segment::Literal(Cow::Borrowed(&frame.head)),
            self.entries.segment(|tensors, out| write_entries(model, &self.offsets, tensors, out)),
            Segment::Literal(Cow::Borrowed(&frame.tail)),
            Segment::Extents(Extents {
                source: Box::new(|shard| &*model.shards()[shard as usize].source),
                runs: &self.runs,
                len: self.data_len,
            }),
        ])
    }
}

/// The entries of a run of tensors, with commas between all of the model's.
fn write_entries(model: &Model, offsets: &[u64], tensors: Range<usize>, out: Out) -> io::Result<()> {
    let mut offset = offsets.get(tensors.start / STRIDE).copied().unwrap_or(0);
    for at in tensors {
        let (tensor, _) = model.tensor(at);
        if at > 0 {
            out.write_all(b",")?;
        }
        write_entry(&tensor, offset, &mut *out)?;
        offset += tensor.nbytes();
    }
    Ok(())
}

/// A tensor as a header has it, with its data `offset` bytes from the first.
pub fn write_entry(tensor: &TensorInfo, offset: u64, out: Out) -> io::Result<()> {
    serde_json::to_writer(&mut *out, tensor.name)?;
    out.write_all(b":{\"dtype\":")?;
    serde_json::to_writer(&mut *out, tensor.dtype.name())?;
    out.write_all(b",\"shape\":[")?;
    for (at, dim) in tensor.shape.iter().enumerate() {
        write!(out, "{}{dim}", if at == 0 { "" } else { "," })?;
    }
    write!(out, "],\"data_offsets\":[{offset},{}]}}", offset + tensor.nbytes())
}
