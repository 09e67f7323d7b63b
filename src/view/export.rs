//! `export/`: a whole model, or some of its tensors, as one safetensors file.
//!
//! Tensors keep the order of the source; the official writer would sort them by dtype and name. So the data of each
//! source file is one run and is read as fast as a single tensor. Spaces after the header align the data to a page.

use super::gguf;
use super::lines::{Lines, Out, STRIDE, write_list};
use super::metadata::Object;
use crate::content::{Content, Data, Run, Segment};
use crate::format::safetensors::MAX_HEADER;
use crate::format::{TensorInfo, Value};
use crate::model::{self, Model, Parts, ShardId, TensorId};
use crate::name;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// Default alignment of the data, in bytes.
const PAGE: u64 = 4096;

/// Largest size of the data in bytes. File sizes are signed 64-bit numbers, and the header needs space too.
const DATA_MAX: u64 = (i64::MAX as u64) - 2 * MAX_HEADER;

/// The tensors of an export, in the order of the data.
#[derive(Debug, Clone)]
pub enum Tensors {
    /// All logical tensors of the model.
    Whole,
    /// These logical tensors only.
    These(Arc<[TensorId]>),
}

impl Tensors {
    /// Number of tensors.
    pub fn len(&self, model: &Model) -> usize {
        match self {
            Self::Whole => model.logical().len(),
            Self::These(tensors) => tensors.len(),
        }
    }

    /// The tensor at a position.
    ///
    /// # Panics
    /// If `position` is not below [`Tensors::len`].
    pub fn at(&self, model: &Model, position: usize) -> TensorId {
        match self {
            Self::Whole => model.logical().at(position),
            Self::These(tensors) => tensors[position],
        }
    }
}

/// A model as one file: with and without its metadata.
#[derive(Debug)]
pub struct Export {
    with_metadata: Option<Content>,
    clean: Option<Content>,
    /// Length of all header entries in bytes.
    entries_len: u64,
    data_len: u64,
}

/// The bytes of a header around its entries: length and metadata before them, padding after them.
struct Frame {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl Frame {
    /// `None` if the header would exceed the limit of the official reader.
    fn new(metadata: &str, entries: u64, align: Option<u64>) -> Option<Self> {
        let used = 8 + 1 + metadata.len() as u64 + entries + 1;
        let fits = |data_start: &u64| data_start - 8 <= MAX_HEADER;
        // Near the limit, padding to a page may not fit.
        let units = align.map_or([PAGE, 8], |align| [align; 2]);
        let data_start = units.iter().filter_map(|unit| used.checked_next_multiple_of(*unit)).find(fits)?;
        let head = [&(data_start - 8).to_le_bytes()[..], b"{", metadata.as_bytes()].concat();
        let mut tail = vec![b'}'];
        tail.resize(1 + (data_start - used) as usize, b' ');
        Some(Self { head, tail })
    }
}

/// The entries of a header. Their text is generated when it is read.
struct Entries {
    model: Arc<Model>,
    tensors: Tensors,
    /// The data offset of every [`STRIDE`]th tensor, in bytes from the start of the data.
    offsets: Vec<u64>,
}

impl Export {
    /// Measures the header; reads no data. The data begins at a multiple of `align` bytes, by default on a page.
    pub fn new(model: &Arc<Model>, tensors: Tensors, align: Option<u64>) -> Self {
        let count = tensors.len(model);
        let (mut offsets, mut data_len, mut fits) = (Vec::new(), 0u64, true);
        let mut runs = Runs::default();
        for at in 0..count {
            if at % STRIDE == 0 {
                offsets.push(data_len);
            }
            let tensor = model.tensor(tensors.at(model, at));
            match tensor.parts {
                Parts::One(shard) => runs.push(data_len, shard.index(), tensor.info.range.clone()),
                Parts::Many(parts) => {
                    for (part, len) in Run::with_lengths(parts, tensor.info.nbytes()) {
                        runs.push(data_len + part.start, part.source, part.offset..part.offset + len);
                    }
                }
            }
            // Tensors of a damaged file may overlap, so their sum may exceed any file size.
            let sum = tensor.info.nbytes().checked_add(data_len).filter(|sum| *sum <= DATA_MAX);
            fits &= sum.is_some();
            data_len = sum.unwrap_or(data_len);
        }
        let metadata = match &metadata(model, &runs.runs, data_len)[..] {
            [] => String::new(),
            pairs => {
                // Serializing strings cannot fail.
                let json = serde_json::to_string(&Object(pairs)).unwrap_or_default();
                format!("\"__metadata__\":{json}{}", if count == 0 { "" } else { "," })
            }
        };
        let entries = Arc::new(Entries { model: model.clone(), tensors, offsets });
        let lines = Arc::new(Lines::new(count, |positions, out| entries.write(positions, out)));
        let data = Data::Extents(model.extents(runs.runs.into(), data_len));
        let content = |metadata: &str| {
            let Frame { head, tail } = Frame::new(metadata, lines.len(), align).filter(|_| fits)?;
            let entries = entries.clone();
            Some(Content::new([
                Segment::Literal(head.into()),
                lines.segment(move |positions, out| entries.write(positions, out)),
                Segment::Literal(tail.into()),
                Segment::Data(data.clone()),
            ]))
        };
        Self { with_metadata: content(&metadata), clean: content(""), entries_len: lines.len(), data_len }
    }

    /// The file, or `None` if it would be too large. `clean` leaves out the metadata.
    pub fn content(&self, clean: bool) -> Option<&Content> {
        if clean { self.clean.as_ref() } else { self.with_metadata.as_ref() }
    }

    /// Why the model cannot be exported as one file.
    pub fn refusal(&self) -> String {
        let Self { entries_len, data_len, .. } = self;
        format!(
            "too large for a safetensors file: {entries_len} bytes of header entries (at most {MAX_HEADER} bytes of \
             header with metadata and padding), {data_len} bytes of data"
        )
    }
}

/// The metadata of a file whose data consists of `runs`, `len` bytes in total, sorted by key. Hashes of data are kept
/// only if a source file has the same data; they are then those of that file.
fn metadata<'m>(model: &'m Model, runs: &[Run], len: u64) -> Vec<&'m (String, Value)> {
    let has_same_data = |shard: &ShardId| {
        let start = model.shard(*shard).header.data_start();
        let is_all = model.source(*shard).len().checked_sub(start) == Some(len);
        is_all && runs.iter().all(|run| (run.start, run.source, run.offset) == (0, shard.index(), start))
    };
    let same = model.shard_ids().find(has_same_data);
    let hashes = same.map_or(&[][..], |shard| model.shard(shard).header.metadata());
    let hashes = hashes.iter().filter(|(key, _)| model::is_data_hash(key));
    let mut metadata: Vec<_> = model.metadata().iter().filter(|(key, _)| !model::is_data_hash(key)).collect();
    metadata.extend(hashes);
    metadata.sort_by_key(|(key, _)| key);
    metadata
}

/// The files in `export/` and their names. Logs a warning if the model is too large for one.
pub fn files(model: &Arc<Model>) -> Vec<(String, Content)> {
    let stem = model::stem(model.location()).unwrap_or_default();
    // A copy in the directory of the model must not overwrite a file that the mount reads. The model itself, if it is
    // one file, has the name without suffix.
    let is_source = |file: &str| model.shards().iter().any(|shard| Path::new(&shard.name).ends_with(file));
    let name = |suffix, format| {
        let mut stem = stem.to_string_lossy().into_owned();
        loop {
            stem.push_str(suffix);
            let file = format!("{}.{format}", name::encode(&stem));
            if !is_source(&file) {
                return file;
            }
        }
    };
    if gguf::has(model) {
        return gguf::whole(model).map(|content| (name("-whole", "gguf"), content)).into_iter().collect();
    }
    let export = Export::new(model, Tensors::Whole, None);
    if export.with_metadata.is_none() {
        log::warn!("export/: left out: {}", export.refusal());
    }
    let files = [("-whole", export.with_metadata), ("-clean", export.clean)];
    files.into_iter().filter_map(|(suffix, content)| Some((name(suffix, "safetensors"), content?))).collect()
}

/// Runs of bytes. Adjacent runs are merged.
#[derive(Default)]
struct Runs {
    runs: Vec<Run>,
    /// Where the last run ends: source and offset.
    end: Option<(usize, u64)>,
}

impl Runs {
    fn push(&mut self, start: u64, source: usize, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        if self.end != Some((source, range.start)) {
            self.runs.push(Run { start, source, offset: range.start });
        }
        self.end = Some((source, range.end));
    }
}

impl Entries {
    /// Writes the entries at `positions`. A comma precedes every entry except the one at position 0.
    fn write(&self, positions: Range<usize>, out: Out) -> io::Result<()> {
        let info = |at| self.model.tensor(self.tensors.at(&self.model, at)).info;
        let stride = positions.start / STRIDE;
        let mut offset = self.offsets.get(stride).copied().unwrap_or(0);
        for at in stride * STRIDE..positions.start {
            offset = offset.saturating_add(info(at).nbytes());
        }
        for at in positions {
            if at > 0 {
                out.write_all(b",")?;
            }
            let tensor = info(at);
            write_entry(&tensor, offset, &mut *out)?;
            // The sum only overflows if the data is too large, and then the file is not shown.
            offset = offset.saturating_add(tensor.nbytes());
        }
        Ok(())
    }
}

/// Writes a tensor as a header entry. `offset` is that of its data, in bytes from the start of the data.
pub fn write_entry(tensor: &TensorInfo, offset: u64, out: Out) -> io::Result<()> {
    serde_json::to_writer(&mut *out, tensor.name)?;
    out.write_all(b":{\"dtype\":")?;
    serde_json::to_writer(&mut *out, tensor.dtype.name())?;
    out.write_all(b",\"shape\":[")?;
    write_list(tensor.shape, ",", out)?;
    write!(out, "],\"data_offsets\":[{offset},{}]}}", offset.saturating_add(tensor.nbytes()))
}
