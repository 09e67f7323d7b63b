//! Bytes of an object that arrive in order: allocates disk space ahead of them.

use super::error::CacheError;
use super::evict::SoleObject;
use super::object::{CachedObject, WriteOutcome};
use crate::source::pins::BLOCK;
use nix::fcntl::{FallocateFlags, fallocate};
use std::fs::File;
use std::io;
use std::ops::Range;

/// Number of bytes that are allocated at once: 1 MiB. It bounds what a crash leaves of a transfer.
const STEP: u64 = 1 << 20;

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

impl CachedObject {
    /// Takes the bytes of a range as they arrive. It may begin after the bytes of its first block that
    /// [`CachedObject::held`] counts.
    pub fn incoming(&self, range: Range<u64>) -> IncomingBytes<'_> {
        let Range { start, end } = range;
        IncomingBytes { object: self, at: start, end: end.min(self.len()), allocated: Some(start) }
    }
}

impl IncomingBytes<'_> {
    /// Adds the next bytes, as [`CachedObject::write`] does.
    pub fn write(&mut self, bytes: &[u8]) -> Result<WriteOutcome, CacheError> {
        let end = self.at.saturating_add(bytes.len() as u64);
        if let Some(from) = self.allocated.filter(|allocated| *allocated < end.min(self.end)) {
            let to = end.max(from.saturating_add(STEP)).min(self.end);
            // If it fails, the bytes are written nevertheless, and that error counts.
            self.allocated = allocate(&self.object.store.files.bytes, from..to).is_ok().then_some(to);
        }
        let written = self.object.write(self.at, bytes)?;
        self.at = end;
        Ok(written)
    }
}

impl Drop for IncomingBytes<'_> {
    fn drop(&mut self) {
        let Some(allocated) = self.allocated else { return };
        let store = &self.object.store;
        let rest = self.at / BLOCK..allocated.div_ceil(BLOCK);
        if rest.is_empty() || store.present.has(rest.clone()) {
            return;
        }
        let discarded = SoleObject::of(store).and_then(|sole| sole.map_or(Ok(()), |sole| sole.discard(rest)));
        if let Err(error) = discarded {
            log::debug!("{}: cannot free what was allocated: {error}", store.path.display());
        }
    }
}

/// Allocates disk space for bytes that lie within the file. What they read as does not change.
fn allocate(file: &File, bytes: Range<u64>) -> io::Result<()> {
    let offset = |at: u64| i64::try_from(at).unwrap_or(i64::MAX);
    let (start, len) = (offset(bytes.start), offset(bytes.end - bytes.start));
    Ok(fallocate(file, FallocateFlags::FALLOC_FL_KEEP_SIZE, start, len)?)
}
