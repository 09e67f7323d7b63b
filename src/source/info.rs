//! Facts about an open source, and ranges of its bytes.

use super::error::Error;
use super::stat::{FileId, SourceStat};
use std::collections::VecDeque;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::SystemTime;

/// Facts that do not change while a source is open.
#[derive(Debug, Clone)]
pub struct SourceInfo {
    /// Size in bytes.
    pub len: u64,
    pub stat: SourceStat,
    /// The absolute path where the same bytes can be opened again, if they are in a file of this machine.
    pub path: Option<PathBuf>,
    /// Identifies a file, whatever path leads to it.
    pub id: Option<FileId>,
    /// Identifies the version of a file that is not on this machine, if every change of it is noticed. The version of a
    /// file of this machine follows from its size, its times and its inode number.
    pub version: Option<[u8; 16]>,
    /// Where read-ahead ends. `None` if nothing is read ahead.
    pub ends: Option<Arc<ReadAheadEnds>>,
}

/// The offsets in bytes over which sources do not read ahead: the ends of tensors, once they are known, and the bounds
/// of ranges that are read as a whole.
#[derive(Debug, Default)]
pub struct ReadAheadEnds(RwLock<KnownEnds>);

#[derive(Debug, Default)]
struct KnownEnds {
    /// Sorted, without duplicates.
    tensors: Vec<u64>,
    /// The ranges that are read now.
    ranges: Vec<Range<u64>>,
    /// The ends of those that were read last.
    recent: VecDeque<u64>,
}

/// A range of which a reader has said that it reads all of it and nothing beside it. Nothing beside it is read ahead
/// until this is dropped.
#[derive(Debug)]
pub struct WholeRange {
    ends: Arc<ReadAheadEnds>,
    /// As it is in the list.
    range: Range<u64>,
    end: u64,
}

/// Number of ends of ranges that are remembered.
const RECENT: usize = 64;

impl ReadAheadEnds {
    /// Sets the ends of tensors, unless they are known.
    pub(super) fn set(&self, ends: impl Iterator<Item = u64>) {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if known.tensors.is_empty() {
            known.tensors.extend(ends);
            known.tensors.sort_unstable();
            known.tensors.dedup();
        }
    }

    /// Adds a range that is read as a whole. If another one ends where it starts, they are those of a reader that reads
    /// one after the other, so what follows is read ahead.
    pub(super) fn add(self: &Arc<Self>, range: Range<u64>) -> WholeRange {
        let mut known = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let KnownEnds { ranges, recent, .. } = &mut *known;
        let continues = recent.contains(&range.start) || ranges.iter().any(|other| other.end == range.start);
        let Range { start, end } = range;
        let range = start..if continues { u64::MAX } else { end };
        ranges.push(range.clone());
        WholeRange { ends: self.clone(), range, end }
    }

    /// The last end that is not after `range`, or 0, and the first one that is not before it, or `len`. `None` as long
    /// as no ends of tensors are known.
    pub(super) fn around(&self, range: &Range<u64>, len: u64) -> Option<Range<u64>> {
        let KnownEnds { tensors, ranges, .. } = &*self.0.read().unwrap_or_else(PoisonError::into_inner);
        let first = tensors.partition_point(|end| *end <= range.start);
        let start = first.checked_sub(1).and_then(|before| tensors.get(before)).copied().unwrap_or(0);
        let end = tensors.get(tensors.partition_point(|end| *end < range.end)).copied().unwrap_or(len);
        let bounds = ranges.iter().flat_map(|whole| [whole.start, whole.end]);
        let nearest = bounds.fold(start..end, |Range { start, end }, bound| {
            let before = if bound <= range.start { start.max(bound) } else { start };
            before..if bound >= range.end { end.min(bound) } else { end }
        });
        (!tensors.is_empty()).then_some(nearest)
    }
}

impl Drop for WholeRange {
    fn drop(&mut self) {
        let mut known = self.ends.0.write().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = known.ranges.iter().position(|range| *range == self.range) {
            known.ranges.swap_remove(at);
        }
        if known.recent.len() == RECENT {
            known.recent.pop_front();
        }
        known.recent.push_back(self.end);
    }
}

impl SourceInfo {
    /// For `len` bytes that are not in a file.
    pub fn anonymous(len: u64) -> Self {
        let stat = SourceStat { uid: 0, gid: 0, mode: 0o644, mtime: SystemTime::UNIX_EPOCH, ctime: (0, 0) };
        Self { len, stat, path: None, id: None, version: None, ends: None }
    }
}

/// `range` as indices into `len` bytes.
pub fn indices(range: &Range<u64>, len: u64) -> Result<Range<usize>, Error> {
    match (usize::try_from(range.start), usize::try_from(range.end)) {
        (Ok(start), Ok(end)) if start <= end && range.end <= len => Ok(start..end),
        _ => Err(Error::OutOfRange { range: range.clone(), len }),
    }
}

/// The range from the first to the last byte of the runs that fill `buf`: see [`super::Source::read_runs_at`]. Fails
/// unless it is inside of `len` bytes.
pub fn span_of_runs(buf: &[u8], run: usize, offset: u64, step: u64, len: u64) -> Result<Range<u64>, Error> {
    let before = buf.len().div_ceil(run).saturating_sub(1);
    let last = (buf.len() - before * run) as u64;
    let range = offset..offset.saturating_add(step.saturating_mul(before as u64)).saturating_add(last);
    indices(&range, len).map(|_| range)
}

/// The parts of a buffer that runs fill, and where each run starts: see [`super::Source::read_runs_at`].
pub fn each_run(buf: &mut [u8], len: usize, offset: u64, step: u64) -> impl Iterator<Item = (&mut [u8], u64)> {
    let starts = (0..).map(move |run: u64| offset.saturating_add(run.saturating_mul(step)));
    buf.chunks_mut(len).zip(starts)
}
