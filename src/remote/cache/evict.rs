//! Evicting blocks of one object: of one that this process uses, or of one that nobody uses.

use super::ages::SEGMENT;
use super::dir::{CacheDir, open_file};
use super::error::CacheError;
use super::files::{DATA, TABLE, blocks, enter_object, is_linked, remove_object};
use super::key::ObjectDirId;
use super::lock::{self, GateLock};
use super::store::ObjectStorage;
use super::table;
use crate::source::pins::{BLOCK, BlockMarks, PRESENT, TRIGGER};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, OFlag, fallocate};
use nix::unistd::{Whence, lseek64};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::PoisonError;
use std::time::Duration;

/// Number of blocks of an unused object that are examined together, from its end: 256 MiB.
const WINDOW: u64 = 64 * SEGMENT;

/// Number of times that a write to a full disk is tried again after something was evicted.
pub(super) const TRIES_MAX: usize = 8;

/// An object that only this process uses, and that nobody else opens as long as this exists.
#[derive(Debug)]
pub(super) struct SoleObject<'a> {
    store: &'a ObjectStorage,
    _gate: GateLock<'a>,
}

impl<'a> SoleObject<'a> {
    /// `None` if others use the object too: this process cannot see which blocks they read. Also `None` if the
    /// file system has no holes.
    pub fn of(store: &'a ObjectStorage) -> io::Result<Option<Self>> {
        // Others hold the gate for a short time only: when they open the object, after which they are users.
        let Some(gate) = GateLock::lock(&store.files.gate, Duration::from_millis(100))? else { return Ok(None) };
        let is_sole = !lock::is_used(&store.files.users)? && can_punch(&store.files.bytes, store.blocks)?;
        Ok(is_sole.then_some(Self { store, _gate: gate }))
    }

    /// The segments that occupy the disk, which includes bytes that are not in the table.
    pub fn segments(&self) -> io::Result<Vec<u64>> {
        let mut segments = Vec::new();
        let bytes = SEGMENT * BLOCK;
        let mut at = 0;
        while let Some(start) = next_data(&self.store.files.bytes, at)? {
            let end = seek(&self.store.files.bytes, start, Whence::SeekHole)?.unwrap_or(self.store.len);
            let run = start / bytes..end.div_ceil(bytes);
            segments.extend(run.clone());
            at = run.end * bytes;
        }
        Ok(segments)
    }

    /// Evicts those blocks of a segment that are not pinned. Returns the number of freed bytes, and adds what was
    /// evicted to `evicted`.
    pub fn evict(&self, segment: u64, evicted: &mut Vec<Range<u64>>) -> io::Result<u64> {
        let first = segment * SEGMENT;
        self.store.evict(first..(first + SEGMENT).min(self.store.blocks), evicted)
    }

    /// Frees what a failed write has left of blocks that are absent. With other users, the bytes of an absent block may
    /// be those that another process has just written and does not have in the table yet.
    pub fn discard(&self, all: Range<u64>) -> io::Result<()> {
        let store = self.store;
        let _changing = store.changing.write().unwrap_or_else(PoisonError::into_inner);
        for (block, entry) in all.clone().zip(store.files.table.read(all)?) {
            if !entry.exists() && !store.present.has(block..block + 1) {
                punch(&store.files.bytes, bytes_of(&(block..block + 1)))?;
            }
        }
        Ok(())
    }

    /// Frees space that is allocated and has no bytes: what a crash leaves of transfers. It is not among
    /// [`SoleObject::segments`]. Returns the number of freed bytes.
    pub fn free_allocated(&self) -> io::Result<u64> {
        let store = self.store;
        let file = &store.files.bytes;
        let _changing = store.changing.write().unwrap_or_else(PoisonError::into_inner);
        let before = occupied(file)?;
        let mut at = 0;
        while at < store.len {
            let data = next_data(file, at)?;
            punch(file, at..data.unwrap_or(store.blocks * BLOCK))?;
            at = data.map_or(Ok(None), |data| seek(file, data, Whence::SeekHole))?.unwrap_or(store.len);
        }
        Ok(before.saturating_sub(occupied(file)?))
    }
}

impl ObjectStorage {
    /// Evicts those of the blocks that are not pinned. Returns the number of freed bytes.
    fn evict(&self, all: Range<u64>, evicted: &mut Vec<Range<u64>>) -> io::Result<u64> {
        let _changing = self.changing.write().unwrap_or_else(PoisonError::into_inner);
        // Blocks that are pinned already stay present all the time, so that their readers do not have to ask again.
        let clear = |block| self.marks.is_unpinned(block).then(|| self.present.clear(block, PRESENT));
        let states: Vec<Option<u8>> = all.clone().map(clear).collect();
        let state = |block: u64| states.get((block - all.start) as usize).copied().flatten();
        let restore = |block: u64| _ = self.present.set(block, state(block).unwrap_or_default() & PRESENT);
        // From here on, either a reader sees that a block is absent, or this sees its pin.
        BlockMarks::fence();
        let mut runs: Vec<Range<u64>> = Vec::new();
        for block in all.clone().filter(|&block| state(block).is_some()) {
            match runs.last_mut() {
                _ if !self.marks.is_unpinned(block) => restore(block),
                Some(run) if run.end == block => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        let mut freed = 0;
        for run in runs {
            if let Err(error) = self.files.table.clear(run.clone()) {
                // The bytes are still there.
                (run.start..all.end).for_each(restore);
                return Err(error);
            }
            let were_present = run.clone().filter(|&block| state(block).is_some_and(|state| state & PRESENT != 0));
            were_present.for_each(|block| _ = self.present.clear(block, TRIGGER));
            evicted.push(run.clone());
            let before = occupied(&self.files.bytes)?;
            punch(&self.files.bytes, bytes_of(&run))?;
            freed += before.saturating_sub(occupied(&self.files.bytes)?);
        }
        Ok(freed)
    }
}

/// The outcome of evicting an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum EvictOutcome {
    /// Blocks at its end were evicted: this many bytes.
    Shortened(u64),
    /// It was removed, and had this many bytes.
    Removed(u64),
    /// It is in use.
    InUse,
    /// Another process has removed it.
    Gone,
}

/// Evicts `want` bytes of an object that nobody uses, from its end, because programs read the start of a file first.
/// Removes the object if it has no more than that, or only space that was allocated in vain. With `dry_run`, nothing
/// changes, and the result is the same.
pub(super) fn evict_unused(
    cache: &CacheDir,
    id: ObjectDirId,
    want: u64,
    dry_run: bool,
) -> Result<EvictOutcome, CacheError> {
    let path = cache.path_of(id);
    let io = CacheError::io(&path);
    let Some((dir, gate_file)) = enter_object(cache, &path, id, false)? else { return Ok(EvictOutcome::Gone) };
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
    let blocks = blocks(data.metadata()?.len());
    let Ok(table) = open_file(dir, TABLE, OFlag::O_RDWR) else { return Ok(None) };
    if table.metadata()?.len() != table::table_size(blocks) || !can_punch(data, blocks)? {
        return Ok(None);
    }
    let (mut end, mut freed) = (blocks, 0);
    while end > 0 && freed < want {
        let window = (end - 1) / WINDOW * WINDOW..end;
        let mut segments: Vec<u64> = Vec::new();
        let mut at = window.start;
        while at < window.end
            && let Some(byte) = next_data(data, at * BLOCK)?.filter(|byte| *byte < window.end * BLOCK)
        {
            segments.push(byte / BLOCK / SEGMENT);
            at = (byte / BLOCK / SEGMENT + 1) * SEGMENT;
        }
        for segment in segments.into_iter().rev() {
            let run = segment * SEGMENT..((segment + 1) * SEGMENT).min(blocks);
            let bytes = allocated(data, bytes_of(&run))?;
            if !dry_run {
                table::clear(&table, run.clone())?;
                punch(data, bytes_of(&run))?;
            }
            freed += bytes;
            if freed >= want {
                break;
            }
        }
        end = window.start;
    }
    Ok(Some(freed))
}

fn bytes_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start * BLOCK..blocks.end * BLOCK
}

/// Replaces bytes by a hole. The hole may end after the end of the file, so that the last page is freed too.
fn punch(file: &File, bytes: Range<u64>) -> io::Result<()> {
    let Range { start, end } = bytes;
    if start >= end {
        return Ok(());
    }
    let flags = FallocateFlags::FALLOC_FL_PUNCH_HOLE | FallocateFlags::FALLOC_FL_KEEP_SIZE;
    loop {
        match fallocate(file, flags, offset(start), offset(end - start)) {
            Err(Errno::EINTR) => {}
            punched => return Ok(punched?),
        }
    }
}

/// Whether the file system has holes. A hole after the end of the file changes nothing.
fn can_punch(file: &File, blocks: u64) -> io::Result<bool> {
    match punch(file, bytes_of(&(blocks..blocks + 1))) {
        Err(error) if error.raw_os_error() == Some(Errno::EOPNOTSUPP as i32) => Ok(false),
        punched => punched.map(|()| true),
    }
}

/// The first byte from `from` on that occupies the disk.
fn next_data(file: &File, from: u64) -> io::Result<Option<u64>> {
    seek(file, from, Whence::SeekData)
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

/// Number of bytes of `range` that occupy the disk.
fn allocated(file: &File, range: Range<u64>) -> io::Result<u64> {
    let (mut at, mut sum) = (range.start, 0);
    while let Some(start) = next_data(file, at)?.filter(|start| *start < range.end) {
        at = seek(file, start, Whence::SeekHole)?.unwrap_or(range.end).min(range.end);
        sum += at - start;
        if at >= range.end {
            break;
        }
    }
    Ok(sum)
}

fn offset(at: u64) -> i64 {
    i64::try_from(at).unwrap_or(i64::MAX)
}
