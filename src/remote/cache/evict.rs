//! Evicting blocks of one object: of one that this process uses, or of one that nobody uses.

use super::dir::{CacheDir, open_file};
use super::error::{CacheError, CacheResult};
use super::files::{DATA, TABLE, enter_object, is_linked, remove_object};
use super::key::ObjectDirId;
use super::lock::{self, GateLock};
use super::object::{CachedObject, LOOKUP, SEGMENT, runs};
use super::table::{clear_blocks, table_size};
use crate::remote::lock_mutex;
use crate::source::pins::{BLOCK, BlockMarks, PRESENT, TRIGGER};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use nix::unistd::{Whence, lseek64};
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::time::Duration;

/// An object that only this process uses, and that nobody else opens as long as this exists.
#[derive(Debug)]
pub(super) struct SoleObject<'a> {
    object: &'a CachedObject,
    _gate: GateLock<'a>,
}

impl<'a> SoleObject<'a> {
    /// `None` if others use the object too: this process cannot see which blocks they read. Also `None` if the
    /// file system has no holes.
    pub fn of(object: &'a CachedObject) -> io::Result<Option<Self>> {
        // Others hold the gate for a short time only: when they open the object, after which they are users.
        let Some(gate) = GateLock::lock(&object.files.gate, Duration::from_millis(100))? else { return Ok(None) };
        let is_sole = !lock::is_used(&object.files.users)? && can_punch(&object.files.bytes, object.blocks)?;
        Ok(is_sole.then_some(Self { object, _gate: gate }))
    }

    /// The segments that have bytes on the disk, also if they are not in the table.
    pub fn segments(&self) -> io::Result<Vec<u64>> {
        Ok(segments_on_disk(&self.object.files.bytes)?.into_keys().collect())
    }

    /// Evicts those blocks of a segment that are not pinned. Returns the number of freed bytes.
    pub fn evict(&self, segment: u64) -> io::Result<u64> {
        let CachedObject { files, present, marks, .. } = self.object;
        let _changing = self.object.changing();
        let all = segment * SEGMENT..((segment + 1) * SEGMENT).min(self.object.blocks);
        // Blocks that are pinned already stay present all the time, so that their readers do not have to ask again.
        let unpinned = all.filter(|&block| marks.is_unpinned(block));
        let cleared: Vec<(u64, u16)> = unpinned.map(|block| (block, present.clear(block, PRESENT))).collect();
        // From here on, either a reader sees that a block is absent, or this sees its pin.
        BlockMarks::fence();
        let (evicted, pinned): (Vec<_>, Vec<_>) = cleared.into_iter().partition(|(block, _)| marks.is_unpinned(*block));
        pinned.into_iter().for_each(|(block, state)| _ = present.set(block, state & PRESENT));
        let mut freed = 0;
        for run in runs(evicted.into_iter().map(|(block, _)| block)) {
            // If this fails, the bytes are still there, and are found again.
            files.table.clear(run.clone())?;
            run.clone().for_each(|block| _ = present.clear(block, TRIGGER));
            lock_mutex(&self.object.cache.0.evicted).push((self.object.id, run.clone()));
            freed += punch(&files.bytes, bytes_of(&run))?;
        }
        Ok(freed)
    }

    /// Frees what absent blocks occupy. With other users, the bytes of an absent block may be those that another
    /// process has just written and does not have in the table yet. Returns the number of freed bytes.
    pub fn discard(&self, all: Range<u64>) -> io::Result<u64> {
        let CachedObject { files, present, .. } = self.object;
        let _changing = self.object.changing();
        let mut freed = 0;
        for from in all.clone().step_by(LOOKUP as usize) {
            let part = from..(from + LOOKUP).min(all.end);
            let entries = part.clone().zip(files.table.read(part)?);
            let absent = entries.filter(|(block, entry)| *entry == 0 && !present.has(*block..block + 1));
            for run in runs(absent.map(|(block, _)| block)) {
                freed += punch(&files.bytes, bytes_of(&run))?;
            }
        }
        Ok(freed)
    }
}

impl CachedObject {
    /// Frees what absent blocks occupy, unless others use the object.
    pub(super) fn discard(&self, blocks: Range<u64>) {
        let discarded = SoleObject::of(self).and_then(|sole| sole.map_or(Ok(0), |sole| sole.discard(blocks)));
        if let Err(error) = discarded {
            log::debug!("{}: cannot free what was allocated: {error}", self.path.display());
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictOutcome {
    /// Blocks at its end were evicted: this many bytes.
    Shortened(u64),
    /// It was removed, and had this many bytes.
    Removed(u64),
    InUse,
    /// Another process has removed it.
    Gone,
}

/// Evicts `want` bytes of an object that nobody uses, from its end, because programs read the start of a file first.
/// Removes the object if it has no more than that, or only space that was allocated in vain. With `dry_run`, nothing
/// changes, and the result is the same.
pub(super) fn evict_unused(cache: &CacheDir, id: ObjectDirId, want: u64, dry_run: bool) -> CacheResult<EvictOutcome> {
    let path = cache.path_of(id);
    let io = CacheError::io(&path);
    let Some((dir, gate_file)) = enter_object(cache, id, false).map_err(&io)? else { return Ok(EvictOutcome::Gone) };
    let Some(_gate) = GateLock::lock(&gate_file, Duration::ZERO).map_err(&io)? else { return Ok(EvictOutcome::InUse) };
    if !is_linked(cache, id, &gate_file).map_err(&io)? {
        return Ok(EvictOutcome::Gone);
    }
    if lock::is_used(&gate_file).map_err(&io)? {
        return Ok(EvictOutcome::InUse);
    }
    let data = open_file(&dir, DATA, OFlag::O_RDWR).ok();
    let size = data.as_ref().and_then(|data| occupied(data).ok()).unwrap_or_default();
    if let Some(data) = data.filter(|_| size > want)
        && let Some(freed) = shorten(&dir, &data, want, dry_run).map_err(&io)?
        && (1..size).contains(&freed)
    {
        return Ok(EvictOutcome::Shortened(freed));
    }
    if !dry_run {
        remove_object(cache, &dir, id).map_err(&io)?;
    }
    Ok(EvictOutcome::Removed(size))
}

/// Evicts blocks at the end of an object. `None` if that is not possible: the object is damaged, or the file system has
/// no holes.
fn shorten(dir: &OwnedFd, data: &File, want: u64, dry_run: bool) -> io::Result<Option<u64>> {
    let blocks = data.metadata()?.len().div_ceil(BLOCK);
    let Ok(table) = open_file(dir, TABLE, OFlag::O_RDWR) else { return Ok(None) };
    if table.metadata()?.len() != table_size(blocks) || !can_punch(data, blocks)? {
        return Ok(None);
    }
    let mut freed = 0;
    for (segment, bytes) in segments_on_disk(data)?.into_iter().rev() {
        if freed >= want {
            break;
        }
        if !dry_run {
            let run = segment * SEGMENT..((segment + 1) * SEGMENT).min(blocks);
            clear_blocks(&table, run.clone())?;
            punch(data, bytes_of(&run))?;
        }
        freed += bytes;
    }
    Ok(Some(freed))
}

fn bytes_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start * BLOCK..blocks.end * BLOCK
}

/// Replaces bytes by a hole. The hole may end after the end of the file, so that the last page is freed too. Returns
/// the number of freed bytes.
fn punch(file: &File, bytes: Range<u64>) -> io::Result<u64> {
    let before = occupied(file)?;
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    loop {
        match fallocate(file, flags, offset(bytes.start), offset(bytes.end - bytes.start)) {
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
            Ok(()) => return Ok(before.saturating_sub(occupied(file)?)),
        }
    }
}

/// Whether the file system has holes. A hole after the end of the file changes nothing.
fn can_punch(file: &File, blocks: u64) -> io::Result<bool> {
    match punch(file, bytes_of(&(blocks..blocks + 1))) {
        Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => Ok(false),
        punched => punched.map(|_| true),
    }
}

/// The segments that have bytes on the disk, and how many. Allocated space without bytes does not count.
fn segments_on_disk(file: &File) -> io::Result<BTreeMap<u64, u64>> {
    let mut segments = BTreeMap::new();
    let mut at = 0;
    while let Some(start) = seek(file, at, Whence::SeekData)?
        && let Some(end) = seek(file, start, Whence::SeekHole)?
    {
        at = start;
        while at < end {
            let segment = at / BLOCK / SEGMENT;
            let next = end.min((segment + 1) * SEGMENT * BLOCK);
            *segments.entry(segment).or_default() += next - at;
            at = next;
        }
    }
    Ok(segments)
}

fn seek(file: &File, from: u64, whence: Whence) -> io::Result<Option<u64>> {
    match lseek64(file, offset(from), whence) {
        Err(Errno::ENXIO) => Ok(None),
        found => Ok(Some(found? as u64)),
    }
}

/// Number of bytes that a file occupies on the disk.
fn occupied(file: &File) -> io::Result<u64> {
    Ok(file.metadata()?.blocks() * 512)
}

fn offset(at: u64) -> i64 {
    i64::try_from(at).unwrap_or(i64::MAX)
}
