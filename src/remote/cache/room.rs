//! The size of the cache: limiting it over all objects and processes.

use super::ages::SEGMENT;
use super::contents::{ObjectSize, sizes_of_all, total};
use super::error::{CacheError, is_full};
use super::evict::{EvictOutcome, SoleObject, TRIES_MAX, evict_unused};
use super::lock::GateLock;
use super::object::{CachedObject, EvictedBlocks};
use super::session::BlockCache;
use super::store::ObjectStorage;
use crate::source::pins::BLOCK;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// The result of making room.
#[derive(Debug, Default)]
pub struct MadeRoom {
    /// The number of bytes that were freed.
    pub freed: u64,
    /// The number of bytes that could not be freed, because they are being read or used by other processes.
    pub lacking: u64,
    /// The blocks that were evicted from the objects of this process.
    pub evicted: Vec<EvictedBlocks>,
}

impl BlockCache {
    /// Evicts what was used least recently, so that `bytes` more can be added without exceeding the limit. `bytes` is
    /// the sum of all that is still to be written, of parts in progress too.
    ///
    /// Objects that nobody uses are evicted first, then blocks of the objects of this process that nobody else uses.
    /// Blocks that are being read, or were fetched for a pending read, are kept. If [`MadeRoom::lacking`] is not 0, the
    /// limit will be exceeded; pending reads may go on nevertheless, read-ahead should not.
    pub fn make_room(&self, bytes: u64) -> Result<MadeRoom, CacheError> {
        let Some(limit) = self.0.limit else { return Ok(MadeRoom::default()) };
        if bytes < self.0.budget.load(Ordering::Relaxed) {
            return Ok(MadeRoom::default());
        }
        let excess = |sizes: &[ObjectSize]| total(sizes).saturating_add(bytes).saturating_sub(limit);
        let sizes = sizes_of_all(&self.0.dir)?;
        // Three more processes may add as much at the same time.
        self.0.budget.store(limit.saturating_sub(total(&sizes)) / 4, Ordering::Relaxed);
        if excess(&sizes) == 0 {
            return Ok(MadeRoom::default());
        }
        // More than needed, because the objects of a large cache should not be looked at for each part that is fetched.
        self.evicting(excess, limit / 64)
    }

    /// Evicts at least `bytes` bytes if possible, as [`BlockCache::make_room`] does.
    pub fn evict(&self, bytes: u64) -> Result<MadeRoom, CacheError> {
        self.evicting(|_| bytes, 0)
    }

    /// Attempts what needs a little space on the disk, until the disk has it: after each failure, evicts what was used
    /// least recently.
    pub(super) fn with_room<T>(&self, attempt: impl Fn() -> Result<T, CacheError>) -> Result<T, CacheError> {
        let mut tries = 0;
        loop {
            let (path, error) = match attempt() {
                Err(CacheError::Io { path, error }) if is_full(&error) => (path, error),
                done => return done,
            };
            let room = self.evict(SEGMENT * BLOCK)?;
            let evicted = room.evicted.into_iter().map(|EvictedBlocks { object, blocks }| (object.store, blocks));
            self.0.evicted.lock().unwrap_or_else(PoisonError::into_inner).extend(evicted);
            tries += 1;
            if room.freed == 0 || tries > TRIES_MAX {
                return Err(CacheError::Full { path, error });
            }
        }
    }

    /// What was evicted from objects of this process to open another one or to keep a listing, since the last call.
    pub fn take_evicted(&self) -> Vec<EvictedBlocks> {
        let evicted = std::mem::take(&mut *self.0.evicted.lock().unwrap_or_else(PoisonError::into_inner));
        let object = |store| CachedObject { cache: self.clone(), store };
        evicted.into_iter().map(|(store, blocks)| EvictedBlocks { object: object(store), blocks }).collect()
    }

    /// Number of bytes in the cache.
    pub fn size(&self) -> Result<u64, CacheError> {
        Ok(total(&sizes_of_all(&self.0.dir)?))
    }

    /// The limit of the size in bytes.
    pub fn limit(&self) -> Option<u64> {
        self.0.limit
    }

    /// Counts bytes that were added to the cache, which is the time by which the last use is measured.
    pub(super) fn note_added(&self, bytes: u64) {
        let less = |budget: u64| Some(budget.saturating_sub(bytes));
        _ = self.0.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        if self.0.clock.add(bytes) {
            self.stores().iter().for_each(|store| store.collect_uses());
            self.0.clock.advance();
        }
    }

    fn evicting(&self, needed: impl Fn(&[ObjectSize]) -> u64, at_least: u64) -> Result<MadeRoom, CacheError> {
        let shared = &*self.0;
        let _evicting = shared.evicting.lock().unwrap_or_else(PoisonError::into_inner);
        // Two processes that need room at the same time must not both make it. One that was stopped by a signal must
        // not stop others.
        let _gate = GateLock::lock(&shared.lock, Duration::from_secs(1)).map_err(CacheError::io(&shared.dir.path))?;
        let mut sizes = sizes_of_all(&shared.dir)?;
        let needed = needed(&sizes);
        // Another process may have made room in the meantime.
        let wanted = if needed == 0 { 0 } else { needed.max(at_least) };
        let mut room = MadeRoom::default();
        sizes.sort_by_key(|size| size.last_use);
        let stores = self.stores();
        for size in sizes {
            if room.freed >= wanted {
                break;
            }
            if stores.iter().any(|store| store.id == size.id) {
                continue;
            }
            match evict_unused(&shared.dir, size.id, wanted - room.freed, false) {
                Ok(EvictOutcome::Shortened(bytes) | EvictOutcome::Removed(bytes)) => room.freed += bytes,
                Ok(EvictOutcome::InUse | EvictOutcome::Gone) => {}
                // Others may make room instead.
                Err(error) => log::warn!("cannot evict: {error}"),
            }
        }
        if room.freed < wanted {
            self.evict_used(&stores, wanted, &mut room);
        }
        room.lacking = needed.saturating_sub(room.freed);
        if room.lacking > 0 && shared.limit.is_some() && !shared.has_warned.swap(true, Ordering::Relaxed) {
            log::warn!(
                "{}: the limit of the cache cannot be kept: {} bytes cannot be evicted, because they are being read or used \
                 by other processes; a larger --cache-size helps",
                shared.dir.path.display(),
                room.lacking
            );
        }
        Ok(room)
    }

    /// Evicts segments of the objects of this process, the least recently used first.
    fn evict_used(&self, stores: &[Arc<ObjectStorage>], wanted: u64, room: &mut MadeRoom) {
        let mut soles = Vec::new();
        let mut segments = Vec::new();
        for store in stores {
            let found =
                SoleObject::of(store).and_then(|sole| sole.map(|sole| Ok((sole.segments()?, sole))).transpose());
            match found {
                Ok(Some((found, sole))) => {
                    store.collect_uses();
                    let age = |segment| (store.ages.get(segment), soles.len(), segment);
                    segments.extend(found.into_iter().map(age));
                    soles.push((store, sole));
                }
                Ok(None) => {}
                Err(error) => log::warn!("cannot evict: {}: {error}", store.path.display()),
            }
        }
        segments.sort_unstable();
        for (_, index, segment) in segments {
            if room.freed >= wanted {
                break;
            }
            let Some((store, sole)) = soles.get(index) else { break };
            let mut runs = Vec::new();
            let freed = sole.evict(segment, &mut runs);
            let object = CachedObject { cache: self.clone(), store: Arc::clone(store) };
            room.evicted.extend(runs.into_iter().map(|blocks| EvictedBlocks { object: object.clone(), blocks }));
            match freed {
                Ok(freed) => room.freed += freed,
                Err(error) => log::warn!("cannot evict: {}: {error}", store.path.display()),
            }
        }
        for (store, sole) in &soles {
            if room.freed >= wanted {
                break;
            }
            match sole.free_allocated() {
                Ok(freed) => room.freed += freed,
                Err(error) => log::warn!("cannot evict: {}: {error}", store.path.display()),
            }
        }
    }
}
