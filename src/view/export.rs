//! `export/`: knows a whole model, or some of its tensors, as one safetensors file with a header of our own.
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

/// The data begins at a multiple of this many bytes, unless something else is asked for.
const PAGE: u64 = 4096;

/// More data than any file system takes as one file, with room for a header: file sizes are signed.
const DATA_MAX: u64 = (i64::MAX as u64) - 2 * MAX_HEADER;

/// Which tensors an export has.
#[derive(Debug)]
pub enum Tensors {
    /// All of the model.
    Whole,
    /// Those of these numbers, in this order; none of them is aside.
    These(Vec<u32>),
}

impl Tensors {
    /// Number of places in which a tensor may stand.
    fn places(&self, model: &Model) -> usize {
        match self {
            Self::Whole => model.len(),
            Self::These(numbers) => numbers.len(),
        }
    }

    /// The tensor in a place, if one stands there; in the first one does.
    fn at<'m>(&self, model: &'m Model, place: usize) -> Option<(TensorInfo<'m>, Place<'m>)> {
        match self {
            Self::Whole => (!model.is_aside(place)).then(|| model.tensor(place)),
            Self::These(numbers) => Some(model.tensor(numbers[place] as usize)),
        }
    }
}

/// The tables behind both exports, with metadata and without.
#[derive(Debug)]
pub struct Export {
    tensors: Tensors,
    with_metadata: Option<Frame>,
    clean: Option<Frame>,
    entries: Lines,
    /// Where the data of the tensor in every [`STRIDE`]th place begins, in bytes from the first.
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
    fn new(metadata: &str, entries: u64, align: Option<u64>) -> Option<Self> {
        let used = 8 + 1 + metadata.len() as u64 + entries + 1;
        let fits = |data_start: &u64| data_start - 8 <= MAX_HEADER;
        // Near the limit there is no room for a page of spaces.
        let units = align.map_or([PAGE, 8], |align| [align; 2]);
        let data_start = units.iter().filter_map(|unit| used.checked_next_multiple_of(*unit)).find(fits)?;
        let head = [&(data_start - 8).to_le_bytes()[..], b"{", metadata.as_bytes()].concat();
        let mut tail = vec![b'}'];
        tail.resize(1 + (data_start - used) as usize, b' ');
        Some(Self { head, tail })
    }
}

impl Export {
    /// Measures the header. Of the data only its places are looked at. It begins at a multiple of `align` bytes, by default
    /// on a page.
    pub fn new(model: &Model, tensors: Tensors, align: Option<u64>) -> Self {
        let places = tensors.places(model);
        let metadata = match model.metadata() {
            [] => String::new(),
            pairs => {
                // Strings as keys and values cannot fail to be JSON.
                let json = serde_json::to_string(&metadata::Object(pairs)).unwrap_or_default();
                format!("\"__metadata__\":{json}{}", if places == 0 { "" } else { "," })
            }
        };
        let (mut offsets, mut data_len, mut fits) = (Vec::new(), 0u64, true);
        let mut runs = Runs::default();
        for at in 0..places {
            if at % STRIDE == 0 {
                offsets.push(data_len);
            }
            let Some((tensor, place)) = tensors.at(model, at) else { continue };
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
        let entries = Lines::new(places, |places, out| write_entries(model, &tensors, &offsets, places, out));
        let frame = |metadata| Frame::new(metadata, entries.len(), align).filter(|_| fits);
        let (with_metadata, clean) = (frame(&metadata), frame(""));
        Self { tensors, with_metadata, clean, entries, offsets, runs, data_len }
    }

    /// The file, if there can be one; `clean` leaves the metadata out.
    pub fn content<'a>(&'a self, model: &'a Model, clean: bool) -> Option<Content<'a>> {
        let frame = if clean { &self.clean } else { &self.with_metadata }.as_ref()?;
        Some(Content::new([
            Segment::Literal(Cow::Borrowed(&frame.head)),
            self.entries.segment(|places, out| write_entries(model, &self.tensors, &self.offsets, places, out)),
            Segment::Literal(Cow::Borrowed(&frame.tail)),
            Segment::Data(Data::Extents(Extents { sources: model.sources(), runs: &self.runs, len: self.data_len })),
        ]))
    }

    /// Why there can be no file, where there is none.
    pub fn refusal(&self) -> String {
        let (entries, data) = (self.entries.len(), self.data_len);
        format!(
            "more than a safetensors file may have: {entries} bytes of header besides the metadata (at most {MAX_HEADER} \
             with it and what aligns the data), {data} bytes of data"
        )
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

/// The entries of a run of places, with commas between those of all.
fn write_entries(model: &Model, tensors: &Tensors, offsets: &[u64], places: Range<usize>, out: Out) -> io::Result<()> {
    let from = places.start / STRIDE * STRIDE;
    let before = (from..places.start).filter_map(|at| Some(tensors.at(model, at)?.0.nbytes()));
    let mut offset = before.fold(offsets.get(places.start / STRIDE).copied().unwrap_or(0), u64::saturating_add);
    for at in places {
        // The first of all is never aside.
        let Some((tensor, _)) = tensors.at(model, at) else { continue };
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
