//! An object, as its users see it.

use super::ages::SEGMENT;
use super::error::{CacheError, is_full};
use super::evict::{SoleObject, TRIES_MAX};
use super::key::{CacheKey, ObjectDirId};
use super::session::BlockCache;
use super::store::ObjectStorage;
use crate::source::pins::{BLOCK, PRESENT, TRIGGER};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, PoisonError, Weak};

/// One version of one remote file, in the cache. Clones are the same object.
#[derive(Debug, Clone)]
pub struct CachedObject {
    pub(super) cache: BlockCache,
    pub(super) store: Arc<ObjectStorage>,
}

impl PartialEq for CachedObject {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.store, &other.store)
    }
}

impl Eq for CachedObject {}

/// What a reader needs: see [`crate::source::pins::PinnedReader`].
#[derive(Debug)]
pub struct ReaderDescriptors {
    /// The data file, read-only.
    pub data: OwnedFd,
    /// Which blocks are present. The receiver cannot write to it.
    pub present: OwnedFd,
    /// The reader's pins.
    pub marks: OwnedFd,
    /// Keeps the object in use until the reader closes it.
    pub lock: OwnedFd,
}

/// The blocks that were evicted from an object that is in use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EvictedBlocks {
    /// The object.
    pub object: CachedObject,
    /// The blocks, some of which may have been absent.
    pub blocks: Range<u64>,
}

/// The outcome of [`CachedObject::write`].
#[derive(Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct WriteOutcome {
    /// The blocks that the bytes completed. They are present.
    pub blocks: Range<u64>,
    /// The blocks that were evicted because the disk was full.
    pub evicted: Vec<EvictedBlocks>,
}

/// Blocks that are not evicted as long as this exists.
#[derive(Debug)]
#[must_use = "the blocks may be evicted as soon as this is dropped"]
pub struct HeldBlocks {
    store: Arc<ObjectStorage>,
    blocks: Range<u64>,
}

impl Drop for HeldBlocks {
    fn drop(&mut self) {
        self.store.marks.unpin(self.blocks.clone());
    }
}

impl BlockCache {
    /// Opens an object, and creates it if it does not exist. It is in use until all clones are dropped and all readers
    /// have closed their descriptors.
    ///
    /// The time that this takes does not depend on the size of the object: its block table is read when it is used. If
    /// the disk is full, others are evicted: see [`BlockCache::take_evicted`].
    pub fn object(&self, key: &CacheKey) -> Result<CachedObject, CacheError> {
        key.check()?;
        let id = ObjectDirId::of(key);
        let known = |open: &HashMap<ObjectDirId, Weak<ObjectStorage>>| open.get(&id).and_then(Weak::upgrade);
        if let Some(store) = known(&self.open_stores()) {
            return Ok(CachedObject { cache: self.clone(), store });
        }
        let new = self.with_room(|| ObjectStorage::open(&self.0.dir, id, key, &self.0.boot, &self.0.clock))?;
        let new = Arc::new(new);
        let mut open = self.open_stores();
        // Another thread may have opened it in the meantime.
        let store = known(&open).unwrap_or_else(|| {
            open.insert(id, Arc::downgrade(&new));
            new
        });
        drop(open);
        Ok(CachedObject { cache: self.clone(), store })
    }
}

/// Number of blocks that are added at once: 1 MiB.
const ADD_MAX: u64 = 16;

impl CachedObject {
    /// Size in bytes.
    pub fn len(&self) -> u64 {
        self.store.len
    }

    /// Whether there are no bytes at all.
    pub fn is_empty(&self) -> bool {
        self.store.len == 0
    }

    /// The number of blocks.
    pub fn blocks(&self) -> u64 {
        self.store.blocks
    }

    /// The data file, read-only. Its size is that of the object, with holes where blocks are absent.
    pub fn data(&self) -> &File {
        &self.store.files.view
    }

    /// Duplicates the descriptors for the reader.
    pub fn descriptors(&self) -> Result<ReaderDescriptors, CacheError> {
        let store = &self.store;
        let duplicate =
            |descriptor: &dyn AsFd| descriptor.as_fd().try_clone_to_owned().map_err(CacheError::io(&store.path));
        Ok(ReaderDescriptors {
            data: duplicate(&store.files.view)?,
            present: duplicate(&store.areas.0)?,
            marks: duplicate(&store.areas.1)?,
            lock: duplicate(&store.files.users)?,
        })
    }

    /// The runs of present blocks among `blocks`, in order. Also finds blocks that another process has fetched.
    ///
    /// Blocks that were written before the system was last started are compared with their checksums here, which reads
    /// them from the disk. If they differ, they are absent.
    pub fn has(&self, blocks: Range<u64>) -> Result<Vec<Range<u64>>, CacheError> {
        self.store.has(blocks)
    }

    /// Whether all blocks are in the block table. Those of an earlier start of the system are not verified.
    pub fn complete(&self) -> Result<bool, CacheError> {
        self.store.is_complete()
    }

    /// Adds bytes that were fetched. Each block becomes present when all of its bytes are there.
    ///
    /// Parts of blocks are kept in memory, 8 MiB at most over all objects; beyond that, the oldest part is dropped.
    /// [`CachedObject::has`] says what is there in the end. If the disk is full, other blocks are evicted first. After
    /// an error, blocks of these bytes are absent unless [`CachedObject::has`] reports them.
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<WriteOutcome, CacheError> {
        let range = offset..offset.saturating_add(bytes.len() as u64);
        if range.end > self.store.len {
            return Err(CacheError::OutOfRange { name: self.store.name.clone(), range, len: self.store.len });
        }
        let mut written = WriteOutcome::default();
        let mut rest = bytes;
        let mut at = offset;
        while !rest.is_empty() {
            let (block, within) = (at / BLOCK, (at % BLOCK) as usize);
            let size = self.store.size_of(block);
            let (first, step) = if within == 0 && rest.len() >= size {
                let step = self.whole_blocks(at, rest.len());
                self.add(block, &rest[..step], &mut written.evicted)?;
                (block, step)
            } else {
                let step = rest.len().min(size - within);
                let mut partials = self.cache.0.partials.lock().unwrap_or_else(PoisonError::into_inner);
                let complete = partials.add(self.store.id, block, size, within, &rest[..step]);
                drop(partials);
                let Some(complete) = complete else {
                    (at, rest) = (at + step as u64, &rest[step..]);
                    continue;
                };
                self.add(block, &complete, &mut written.evicted)?;
                (block, step)
            };
            (at, rest) = (at + step as u64, &rest[step..]);
            if written.blocks.is_empty() {
                written.blocks.start = first;
            }
            written.blocks.end = at.div_ceil(BLOCK);
        }
        Ok(written)
    }

    /// How many bytes from the start of an absent block on are in memory already. The rest may be written next.
    pub fn held(&self, block: u64) -> u64 {
        let mut partials = self.cache.0.partials.lock().unwrap_or_else(PoisonError::into_inner);
        partials.held(self.store.id, block) as u64
    }

    /// The size of the whole blocks at the start of `len` bytes from `at` on, 1 MiB at most.
    fn whole_blocks(&self, at: u64, len: usize) -> usize {
        let len = (len as u64).min(ADD_MAX * BLOCK);
        let is_end = at + len == self.store.len;
        (if is_end { len } else { len / BLOCK * BLOCK }) as usize
    }

    /// Adds whole blocks. Evicts others if the disk is full.
    fn add(&self, first: u64, bytes: &[u8], evicted: &mut Vec<EvictedBlocks>) -> Result<(), CacheError> {
        let blocks = first..first + (bytes.len() as u64).div_ceil(BLOCK);
        // The blocks just added must not be what is evicted next.
        let _held = self.hold(blocks.clone());
        let mut tries = 0;
        loop {
            let error = match self.store.add(first, bytes) {
                Ok(()) => {
                    self.cache.note_added(bytes.len() as u64);
                    return Ok(());
                }
                Err(error) if is_full(&error) => error,
                Err(error) => return Err(CacheError::io(&self.store.path)(error)),
            };
            let discarded =
                SoleObject::of(&self.store).and_then(|sole| sole.map_or(Ok(()), |sole| sole.discard(blocks.clone())));
            if let Err(error) = discarded {
                log::debug!("{}: cannot free what was written: {error}", self.store.path.display());
            }
            let room = self.cache.evict((SEGMENT * BLOCK).max(bytes.len() as u64))?;
            evicted.extend(room.evicted);
            tries += 1;
            if room.freed == 0 || tries > TRIES_MAX {
                return Err(CacheError::Full { path: self.store.path.clone(), error });
            }
        }
    }

    /// Keeps blocks from being evicted, whether they are present now or not. The reader's pins do the same for its
    /// pending reads, so this is only for reads of this process itself.
    pub fn hold(&self, blocks: Range<u64>) -> HeldBlocks {
        let blocks = blocks.start.min(self.store.blocks)..blocks.end.min(self.store.blocks);
        // It is refused if a block has 32,767 pins. Such a block is not evicted now.
        let blocks = if self.store.marks.pin(blocks.clone()) { blocks } else { 0..0 };
        HeldBlocks { store: self.store.clone(), blocks }
    }

    /// Reads bytes of blocks that are present, for this process itself. Fails if some are absent.
    pub fn read_exact_at(&self, buffer: &mut [u8], offset: u64) -> Result<(), CacheError> {
        let end = offset.saturating_add(buffer.len() as u64);
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        if end > self.store.len {
            let (name, len) = (self.store.name.clone(), self.store.len);
            return Err(CacheError::OutOfRange { name, range: offset..end, len });
        }
        let _held = self.hold(blocks.clone());
        self.has(blocks.clone())?;
        if !self.store.present.has(blocks) {
            return Err(CacheError::io(&self.store.path)(io::Error::new(io::ErrorKind::NotFound, "not in the cache")));
        }
        self.data().read_exact_at(buffer, offset).map_err(CacheError::io(&self.store.path))
    }

    /// Makes a block a trigger: the reader reports when it reads the block. The block need not be present yet.
    pub fn set_trigger(&self, block: u64) {
        self.store.present.set(block, TRIGGER);
    }

    /// Undoes [`CachedObject::set_trigger`], when the report has come.
    pub fn clear_trigger(&self, block: u64) {
        self.store.present.clear(block, TRIGGER);
    }

    /// Whether a block is known to be present, without looking into the block table.
    pub fn is_present(&self, block: u64) -> bool {
        self.store.present.state(block) & PRESENT != 0
    }
}
