//! The side of the process that reads blocks.

use super::BLOCK;
use super::area::{BlockMarks, PinsError, PresentBlocks};
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// The file of the data, whose descriptor comes from the owner. A descriptor of something else, such as a pipe or a
/// directory, gives an error here.
pub fn data(descriptor: OwnedFd, len: u64) -> Result<File, PinsError> {
    let file = File::from(descriptor);
    match file.metadata() {
        Ok(found) if found.is_file() && found.len() >= len => Ok(file),
        _ => Err(PinsError(format!("not a file of {len} bytes"))),
    }
}

/// Reads of a file that another process fills and evicts.
#[derive(Debug)]
pub struct PinnedReader {
    present: PresentBlocks,
    marks: BlockMarks,
    blocks: u64,
    /// Holds a lock for as long as this process may read the file, also after its owner has died. A new owner evicts
    /// nothing as long as an earlier one, or its reader, has the lock.
    _lock: OwnedFd,
}

impl PinnedReader {
    /// `len` is the size of the file in bytes. The descriptors come from the owner. The sizes and seals of the areas
    /// are checked, so that a wrong descriptor gives an error here and no SIGBUS later.
    pub fn open(len: u64, present: OwnedFd, marks: OwnedFd, lock: OwnedFd) -> Result<Arc<Self>, PinsError> {
        let blocks = len.div_ceil(BLOCK);
        let present = PresentBlocks::open(present, blocks)?;
        Ok(Arc::new(Self { present, marks: BlockMarks::open(marks, blocks)?, blocks, _lock: lock }))
    }

    /// Pins the blocks of the bytes `range`. The bytes may be read as long as the result exists. What is past the end
    /// of the file is ignored. Takes no lock, and allocates nothing.
    pub fn pin(self: &Arc<Self>, range: Range<u64>) -> Result<PinnedBlocks, MissingBlocks> {
        let end = range.end.div_ceil(BLOCK).min(self.blocks);
        let blocks = (range.start / BLOCK).min(end)..end;
        MissingBlocks { blocks, pins: PinnedBlocks { reader: self.clone(), blocks: 0..0 } }.retry()
    }
}

/// Blocks that are pinned until this is dropped. If they are present, they stay so.
#[derive(Debug)]
#[must_use = "the blocks may be evicted as soon as this is dropped"]
pub struct PinnedBlocks {
    reader: Arc<PinnedReader>,
    blocks: Range<u64>,
}

impl PinnedBlocks {
    /// Whether one of the blocks is a trigger. If so, report the read to the owner.
    pub fn has_trigger(&self) -> bool {
        self.reader.present.has_trigger(self.blocks.clone())
    }
}

impl Drop for PinnedBlocks {
    fn drop(&mut self) {
        self.reader.marks.unpin(self.blocks.clone());
    }
}

/// Blocks of which some are absent. Those that are present, or become present, stay so as long as this exists. Keep it
/// while the owner fetches the rest, then call [`MissingBlocks::retry`]. Dropping it cancels the read.
#[derive(Debug)]
#[must_use = "what is fetched for this read may be evicted as soon as this is dropped"]
pub struct MissingBlocks {
    blocks: Range<u64>,
    /// Pins of all blocks, or of none if one block has too many pins.
    pins: PinnedBlocks,
}

impl MissingBlocks {
    /// All blocks of the read.
    pub fn blocks(&self) -> Range<u64> {
        self.blocks.clone()
    }

    /// The blocks that are absent now.
    pub fn absent(&self) -> impl Iterator<Item = u64> {
        self.blocks().filter(|&block| !self.pins.reader.present.has(block..block + 1))
    }

    /// Checks again whether all blocks are present. If not, ask the owner again: it may have tried to evict a block
    /// just when it was pinned.
    pub fn retry(mut self) -> Result<PinnedBlocks, Self> {
        if !self.are_present() {
            return Err(self);
        }
        // The bytes are read after the states. The owner has written the bytes before the states.
        fence(Ordering::Acquire);
        self.pins.reader.marks.set_used(self.blocks);
        Ok(self.pins)
    }

    /// Whether all blocks are pinned and present.
    fn are_present(&mut self) -> bool {
        let PinnedBlocks { reader, blocks: pinned } = &mut self.pins;
        if *pinned != self.blocks {
            if !reader.marks.pin(self.blocks.clone()) {
                return false;
            }
            *pinned = self.blocks.clone();
        }
        reader.present.has(self.blocks.clone())
    }
}
