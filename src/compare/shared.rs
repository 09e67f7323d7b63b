//! Tensors as runs in files, and the parts of them that two files share on a disk.

use crate::content::{Segment, SourceRun, Sources};
use crate::source::{DiskBlock, FileId};
use crate::threads;
use std::ops::Range;

/// The files of one model, and the disk blocks that they may share with other files.
#[derive(Debug)]
pub struct SharedFiles {
    blocks: Vec<(Option<FileId>, Vec<DiskBlock>)>,
}

impl SharedFiles {
    pub fn new(sources: &Sources) -> Self {
        let blocks = threads::map_parallel(sources.len(), |at| (sources[at].id(), sources[at].shared_blocks()));
        Self { blocks }
    }
}

#[derive(Debug, Clone)]
pub struct StoredTensor<'a> {
    pub files: &'a SharedFiles,
    pub data: Segment,
    /// The runs that hold it, one after the other; empty if its elements are gathered.
    pub runs: Vec<SourceRun>,
}

/// The ranges of two tensors of `len` bytes that are not known to lie in the same place of a disk.
pub(super) fn unshared(a: &StoredTensor, b: &StoredTensor, len: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < len {
        let (side_a, side_b) = (StoredPiece::find(a, at, len), StoredPiece::find(b, at, len));
        let (same, long) = side_a.compare(&side_b);
        // Each step covers at least one byte, even if the file system reports an empty block.
        let end = at + long.clamp(1, len - at);
        match ranges.last_mut() {
            _ if same => {}
            Some(last) if last.end == at => last.end = end,
            _ => ranges.push(at..end),
        }
        at = end;
    }
    ranges
}

struct StoredPiece<'a> {
    id: Option<FileId>,
    blocks: &'a [DiskBlock],
    offset: u64,
    /// Number of bytes from there on that are contiguous in the file.
    len: u64,
}

impl<'a> StoredPiece<'a> {
    fn find(tensor: &StoredTensor<'a>, at: u64, len: u64) -> Self {
        let runs = &tensor.runs;
        let next = runs.partition_point(|run| run.start <= at);
        let end = runs.get(next).map_or(len, |run| run.start);
        let Some(run) = next.checked_sub(1).map(|last| runs[last]) else {
            return Self { id: None, blocks: &[], offset: 0, len: end - at };
        };
        let (id, blocks) = &tensor.files.blocks[run.source];
        Self { id: *id, blocks, offset: run.offset + at - run.start, len: end - at }
    }

    /// Whether both lie in the same place of a disk, and for how many bytes this is known.
    fn compare(&self, other: &Self) -> (bool, u64) {
        let len = self.len.min(other.len);
        match (self.id, other.id) {
            (Some(a), Some(b)) if a == b && self.offset == other.offset => return (true, len),
            // Places on different disks cannot be compared.
            (Some((a, _)), Some((b, _))) if a != b => return (false, len),
            _ => {}
        }
        let ((place_a, len_a), (place_b, len_b)) = (self.place(), other.place());
        (place_a.is_some() && place_a == place_b, len.min(len_a).min(len_b))
    }

    /// Its place on the disk, if that is known, and the number of bytes for which this holds.
    fn place(&self) -> (Option<u64>, u64) {
        let next = self.blocks.partition_point(|block| block.start <= self.offset);
        if let Some(block) = next.checked_sub(1).map(|last| self.blocks[last]) {
            let inside = self.offset - block.start;
            if inside < block.len {
                return (Some(block.place.wrapping_add(inside)), block.len - inside);
            }
        }
        (None, self.blocks.get(next).map_or(u64::MAX, |block| block.start - self.offset))
    }
}
