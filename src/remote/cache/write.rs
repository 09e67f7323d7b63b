//! Adding bytes to an object as they arrive.

use super::error::{CacheError, CacheResult};
use super::object::{CachedObject, runs};
use crate::remote::lock_mutex;
use crate::source::pins::BLOCK;
use nix::fcntl::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Number of bytes that are added at once.
const ADD_MAX: u64 = 1 << 20;

/// Number of bytes that are allocated at once. It bounds what a crash leaves of a transfer.
const STEP: u64 = 1 << 20;

impl CachedObject {
    /// Adds bytes that were fetched, and returns the blocks that they complete. Each block becomes present when all of
    /// its bytes are there.
    ///
    /// Parts of blocks are kept in memory, 8 MiB at most over all objects; beyond that, the oldest part is dropped.
    /// [`CachedObject::has`] says what is there in the end. If the disk is full, other blocks are evicted first: see
    /// [`super::BlockCache::take_evicted`]. After an error, blocks of these bytes are absent unless
    /// [`CachedObject::has`] reports them.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> CacheResult<Range<u64>> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        if range.end > self.len {
            return Err(CacheError::OutOfRange { name: self.name.clone(), range, len: self.len });
        }
        let mut completed = 0..0;
        let mut rest = bytes;
        while !rest.is_empty() {
            let at = range.end - rest.len() as u64;
            let (block, within) = (at / BLOCK, (at % BLOCK) as usize);
            let size = self.size_of(block);
            let whole = self.whole_blocks(at, rest.len());
            let (now, later) = rest.split_at(if whole > 0 { whole } else { rest.len().min(size - within) });
            rest = later;
            if whole > 0 {
                self.add(block, now)?;
            } else {
                let complete = lock_mutex(&self.cache.0.partials).add(self.id, block, size, within, now);
                let Some(complete) = complete else { continue };
                self.add(block, &complete)?;
            }
            if completed.is_empty() {
                completed.start = block;
            }
            completed.end = (range.end - rest.len() as u64).div_ceil(BLOCK);
        }
        Ok(completed)
    }

    /// Number of bytes from the start of an absent block on that are in memory already. The rest may be written next.
    pub fn held(&self, block: u64) -> u64 {
        lock_mutex(&self.cache.0.partials).held(self.id, block) as u64
    }

    /// The size of the whole blocks at the start of `len` bytes from `at` on, [`ADD_MAX`] at most.
    fn whole_blocks(&self, at: u64, len: usize) -> usize {
        let len = (len as u64).min(ADD_MAX);
        let whole = if at + len == self.len { len } else { len / BLOCK * BLOCK };
        if at.is_multiple_of(BLOCK) { whole as usize } else { 0 }
    }

    /// Adds whole blocks. Evicts others if the disk is full.
    fn add(&self, first: u64, bytes: &[u8]) -> CacheResult<()> {
        let blocks = first..first + (bytes.len() as u64).div_ceil(BLOCK);
        // The blocks just added must not be what is evicted next. If one has too many pins, it is not evicted anyway.
        let is_pinned = self.marks.pin(blocks.clone());
        let added = self.cache.with_room(bytes.len() as u64, || {
            let added = self.write_absent(blocks.clone(), bytes);
            if added.is_err() {
                self.discard(blocks.clone());
            }
            added.map_err(CacheError::io(&self.path))
        });
        if is_pinned {
            self.marks.unpin(blocks);
        }
        added?;
        self.cache.note_added(bytes.len() as u64);
        Ok(())
    }

    /// Writes the bytes of those blocks that are absent. After an error, blocks are absent unless all of their bytes
    /// were written.
    fn write_absent(&self, blocks: Range<u64>, bytes: &[u8]) -> io::Result<()> {
        let _changing = self.reading();
        let first = blocks.start;
        for run in runs(blocks.filter(|&block| !self.present.has(block..block + 1))) {
            let [start, end] = [run.start, run.end].map(|block| ((block - first) * BLOCK) as usize);
            let bytes = &bytes[start..end.min(bytes.len())];
            self.files.bytes.write_all_at(bytes, run.start * BLOCK)?;
            let crcs: Vec<u32> = bytes.chunks(BLOCK as usize).map(crc32fast::hash).collect();
            self.files.table.write(run.start, &crcs)?;
            self.set_present(run);
        }
        self.note_use();
        Ok(())
    }

    /// Takes the bytes of a range as they arrive. It may begin after the bytes of its first block that
    /// [`CachedObject::held`] counts.
    pub fn incoming(&self, range: Range<u64>) -> IncomingBytes<'_> {
        let Range { start, end } = range;
        IncomingBytes { object: self, at: start, end: end.min(self.len), allocated: Some(start) }
    }
}

/// The bytes of one transfer, in their order.
///
/// Disk space is allocated ahead of them: ext4 takes two thirds of the processor time for bytes that are written to
/// allocated space. What was allocated in vain is freed on drop, unless another process uses the object too. After a
/// crash it stays allocated until its blocks are fetched, or the object is removed.
#[derive(Debug)]
pub struct IncomingBytes<'a> {
    object: &'a CachedObject,
    /// The offset of the next bytes.
    at: u64,
    end: u64,
    /// The end of what is allocated. `None` if that is not possible: the disk is full, or the file system cannot do it.
    allocated: Option<u64>,
}

impl IncomingBytes<'_> {
    /// Adds the next bytes, as [`CachedObject::write`] does.
    pub fn write(&mut self, bytes: &[u8]) -> CacheResult<Range<u64>> {
        let end = self.at.saturating_add(bytes.len() as u64);
        if let Some(from) = self.allocated.filter(|allocated| *allocated < end.min(self.end)) {
            let to = end.max(from.saturating_add(STEP)).min(self.end);
            // If it fails, the bytes are written nevertheless, and that error counts.
            self.allocated = allocate(&self.object.files.bytes, from..to).is_ok().then_some(to);
        }
        let completed = self.object.write(self.at, bytes)?;
        self.at = end;
        Ok(completed)
    }
}

impl Drop for IncomingBytes<'_> {
    fn drop(&mut self) {
        let rest = self.at / BLOCK..self.allocated.unwrap_or_default().div_ceil(BLOCK);
        if !rest.is_empty() && !self.object.present.has(rest.clone()) {
            self.object.discard(rest);
        }
    }
}

/// Allocates disk space for bytes that lie within the file. What they read as does not change.
fn allocate(file: &File, bytes: Range<u64>) -> io::Result<()> {
    let [start, len] = [bytes.start, bytes.end - bytes.start].map(|at| i64::try_from(at).unwrap_or(i64::MAX));
    Ok(fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, start, len)?)
}
