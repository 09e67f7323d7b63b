//! `export/`: knows the whole model as one safetensors file with a header of our own.
//!
//! The tensors keep the order that they have in the source, and are not sorted anew as the official writer does (by dtype,
//! then name): the data is then one run of each file, whole, and is read at the speed of a tensor. Spaces behind the
//! header make the data begin on a page.

use super::lines::{Lines, Out, STRIDE, write_list};
use super::metadata;
use crate::content::{Content, Data, Extents, Run, Segment};
use crate::format::TensorInfo;
use crate::format::safetensors::MAX_HEADER;
use crate::model::{Model, Place};
use std::borrow::Cow;
use std::io;
use std::ops::Range;

/// The data begins at a multiple of this many bytes.
const PAGE: u64 = 4096;

/// More data than any file system takes as one file, with room for a header: file sizes are signed.
const DATA_MAX: u64 = (i64::MAX as u64) - 2 * MAX_HEADER;

/// The tables behind both exports, with metadata and without.
#[derive(Debug)]
pub struct Export {
    with_metadata: Option<Frame>,
    clean: Option<Frame>,
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
    /// `None` where no reader would take a header of that length.
    fn new(metadata: &str, entries: u64) -> Option<Self> {
        let used = 8 + 1 + metadata.len() as u64 + entries + 1;
        let fits = |data_start: &u64| data_start - 8 <= MAX_HEADER;
        // Near the limit there is no room for a page of spaces.
        let data_start = [PAGE, 8].map(|unit| used.next_multiple_of(unit)).into_iter().find(fits)?;
        let head = [&(data_start - 8).to_le_bytes()[..], b"{", metadata.as_bytes()].concat();
        let mut tail = vec![b'}'];
        tail.resize(1 + (data_start - used) as usize, b' ');
        Some(Self { head, tail })
    }
}

impl Export {
    /// Measures the header. Of the data only its places are looked at.
    pub fn new(model: &Model) -> Self {
        let metadata = match model.metadata() {
            [] => String::new(),
            pairs => {
                // Strings as keys and values cannot fail to be JSON.
                let json = serde_json::to_string(&metadata::Object(pairs)).unwrap_or_default();
                format!("\"__metadata__\":{json}{}", if model.is_empty() { "" } else { "," })
            }
        };
        let (mut offsets, mut data_len, mut fits) = (Vec::new(), 0u64, true);
        let mut runs = Runs::default();
        for at in 0..model.len() {
            if at % STRIDE == 0 {
                offsets.push(data_len);
            }
            if model.is_aside(at) {
                continue;
            }
            let (tensor, place) = model.tensor(at);
            match place {
                Place::Shard(shard) => runs.push(data_len, shard as u32, tensor.range.clone()),
                Place::Runs(parts) => {
                    for (part, len) in Run::with_lengths(parts, tensor.nbytes()) {
                        runs.push(data_len + part.start, part.source, part.offset..part.offset + len);
                    }
                }
            }
            // Tensors of a damaged file may overlap, so that there is more than any file can hold.
            let sum = tensor.nbytes().checked_add(data_len).filter(|sum| *sum <= DATA_MAX);
            fits &= sum.is_some();
            data_len = sum.unwrap_or(data_len);
        }
        let runs = runs.runs;
        let entries = Lines::new(model.len(), |tensors, out| write_entries(model, &offsets, tensors, out));
        let frame = |metadata| Frame::new(metadata, entries.len()).filter(|_| fits);
        let (with_metadata, clean) = (frame(&metadata), frame(""));
        if with_metadata.is_none() {
            log::warn!(
                "export/: left out what no reader would take: {} bytes of header, {data_len} of data",
                entries.len()
            );
        }
        Self { with_metadata, clean, entries, offsets, runs, data_len }
    }

    /// The file, if there can be one; `clean` leaves the metadata out.
    pub fn content<'a>(&'a self, model: &'a Model, clean: bool) -> Option<Content<'a>> {
        let frame = if clean { &self.clean } else { &self.with_metadata }.as_ref()?;
        Some(Content::new([
            Segment::Literal(Cow::Borrowed(&frame.head)),
            self.entries.segment(|tensors, out| write_entries(model, &self.offsets, tensors, out)),
            Segment::Literal(Cow::Borrowed(&frame.tail)),
            Segment::Data(Data::Extents(Extents { sources: model.sources(), runs: &self.runs, len: self.data_len })),
        ]))
    }
}

/// Runs of bytes, neighbours joined.
#[derive(Default)]
struct Runs {
    runs: Vec<Run>,
    /// Where the last one ends: its source, and the offset there.
    end: Option<(u32, u64)>,
}

impl Runs {
    fn push(&mut self, start: u64, source: u32, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if self.end != Some((source, range.start)) {
            self.runs.push(Run { start, source, offset: range.start });
        }
        self.end = Some((source, range.end));
    }
}

/// The entries of a run of tensors, with commas between all of the model's.
fn write_entries(model: &Model, offsets: &[u64], tensors: Range<usize>, out: Out) -> io::Result<()> {
    let from = tensors.start / STRIDE * STRIDE;
    let shown = |at: &usize| !model.is_aside(*at);
    let before = (from..tensors.start).filter(shown).map(|at| model.tensor(at).0.nbytes());
    let mut offset = before.fold(offsets.get(tensors.start / STRIDE).copied().unwrap_or(0), u64::saturating_add);
    for at in tensors.filter(shown) {
        let (tensor, _) = model.tensor(at);
        // The first of all is never aside.
        if at > 0 {
            out.write_all(b",")?;
        }
        write_entry(&tensor, offset, &mut *out)?;
        // Beyond the most that a file may have nothing is shown of it.
        offset = offset.saturating_add(tensor.nbytes());
    }
    Ok(())
}

/// A tensor as a header has it, with its data `offset` bytes from the first.
pub fn write_entry(tensor: &TensorInfo, offset: u64, out: Out) -> io::Result<()> {
    serde_json::to_writer(&mut *out, tensor.name)?;
    out.write_all(b":{\"dtype\":")?;
    serde_json::to_writer(&mut *out, tensor.dtype.name())?;
    out.write_all(b",\"shape\":[")?;
    write_list(tensor.shape, ",", out)?;
    write!(out, "],\"data_offsets\":[{offset},{}]}}", offset.saturating_add(tensor.nbytes()))
}
