//! The size of the cache: limiting it over all objects and processes.

use super::contents::{sizes_of_all, total};
use super::error::{CacheError, CacheResult, is_full};
use super::evict::{EvictOutcome, SoleObject, evict_unused};
use super::lock::GateLock;
use super::object::{BlockCache, CachedObject, SEGMENT};
use crate::remote::lock_mutex;
use crate::source::pins::BLOCK;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Number of times that something is tried again on a full disk after something was evicted.
const TRIES_MAX: usize = 8;

#[derive(Debug, Default)]
pub struct MadeRoom {
    pub freed: u64,
    /// The number of bytes that could not be freed, because they are being read or used by other processes.
    pub lacking: u64,
}

impl BlockCache {
    /// Evicts what was used least recently, so that `bytes` more can be added without exceeding the limit. `bytes` is
    /// the sum of all that is still to be written, of parts in progress too.
    ///
    /// Objects that nobody uses are evicted first, then blocks of the objects of this process that nobody else uses.
    /// Blocks that are being read, or were fetched for a pending read, are kept. If [`MadeRoom::lacking`] is not 0, the
    /// limit will be exceeded; pending reads may go on nevertheless, read-ahead should not.
    pub fn make_room(&self, bytes: u64) -> CacheResult<MadeRoom> {
        let Some(limit) = self.0.limit else { return Ok(MadeRoom::default()) };
        if bytes < self.0.budget.load(Ordering::Relaxed) {
            return Ok(MadeRoom::default());
        }
        let size = self.size()?;
        // Three more processes may add as much at the same time.
        self.0.budget.store(limit.saturating_sub(size) / 4, Ordering::Relaxed);
        self.open_objects().iter().for_each(|object| object.collect_uses());
        let excess = |size: u64| size.saturating_add(bytes).saturating_sub(limit);
        if excess(size) == 0 {
            return Ok(MadeRoom::default());
        }
        // More than needed, because the objects of a large cache should not be looked at for each part that is fetched.
        self.evicting(excess, limit / 64)
    }

    /// Evicts at least `bytes` bytes if possible, as [`BlockCache::make_room`] does.
    pub fn evict(&self, bytes: u64) -> CacheResult<MadeRoom> {
        self.evicting(|_| bytes, 0)
    }

    /// Attempts what needs `bytes` bytes on the disk, or a little more, until the disk has them: after each failure,
    /// evicts what was used least recently.
    pub(super) fn with_room<T>(&self, bytes: u64, attempt: impl Fn() -> CacheResult<T>) -> CacheResult<T> {
        let mut tries = 0;
        loop {
            let (path, error) = match attempt() {
                Err(CacheError::Io { path, error }) if is_full(&error) => (path, error),
                done => return done,
            };
            tries += 1;
            if self.evict(bytes.max(SEGMENT * BLOCK))?.freed == 0 || tries > TRIES_MAX {
                return Err(CacheError::Full { path, error });
            }
        }
    }

    /// The blocks that were evicted since the last call from objects that this process uses. Some may have been absent.
    pub fn take_evicted(&self) -> Vec<(Arc<CachedObject>, Range<u64>)> {
        let evicted = std::mem::take(&mut *lock_mutex(&self.0.evicted));
        let objects = lock_mutex(&self.0.open);
        evicted.into_iter().filter_map(|(id, blocks)| Some((objects.get(&id)?.upgrade()?, blocks))).collect()
    }

    pub fn limit(&self) -> Option<u64> {
        self.0.limit
    }

    pub fn size(&self) -> CacheResult<u64> {
        Ok(total(&sizes_of_all(&self.0.dir)?.0))
    }

    /// Counts bytes that were added to the cache.
    pub(super) fn note_added(&self, bytes: u64) {
        let less = |budget: u64| Some(budget.saturating_sub(bytes));
        _ = self.0.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Evicts the bytes that are `needed` at the current size of the cache, and if there are any, `at_least` this many.
    fn evicting(&self, needed: impl Fn(u64) -> u64, at_least: u64) -> CacheResult<MadeRoom> {
        let shared = &*self.0;
        let _evicting = lock_mutex(&shared.evicting);
        // Two processes that need room at the same time must not both make it. One that was stopped by a signal must
        // not stop others.
        let _gate = GateLock::lock(&shared.lock, Duration::from_secs(1)).map_err(CacheError::io(&shared.dir.path))?;
        let (mut sizes, _) = sizes_of_all(&shared.dir)?;
        // Another process may have made room in the meantime.
        let needed = needed(total(&sizes));
        let wanted = if needed == 0 { 0 } else { needed.max(at_least) };
        let mut freed = 0;
        sizes.sort_by_key(|size| size.last_use);
        let objects = self.open_objects();
        for size in sizes.iter().filter(|size| !objects.iter().any(|object| object.id == size.id)) {
            if freed >= wanted {
                break;
            }
            match evict_unused(&shared.dir, size.id, wanted - freed, false) {
                Ok(EvictOutcome::Shortened(bytes) | EvictOutcome::Removed(bytes)) => freed += bytes,
                Ok(EvictOutcome::InUse | EvictOutcome::Gone) => {}
                // Others may make room instead.
                Err(error) => log::warn!("cannot evict: {error}"),
            }
        }
        freed += evict_used(&objects, wanted.saturating_sub(freed));
        let lacking = needed.saturating_sub(freed);
        if lacking > 0 && shared.limit.is_some() && !shared.has_warned.swap(true, Ordering::Relaxed) {
            log::warn!(
                "{}: the limit of the cache cannot be kept: {lacking} bytes cannot be evicted, because they are being read \
                 or used by other processes; a larger --cache-size helps",
                shared.dir.path.display(),
            );
        }
        Ok(MadeRoom { freed, lacking })
    }
}

/// Evicts segments of objects of this process, the least recently used first, and frees space that was allocated in
/// vain in the end. Returns the number of freed bytes, which is less than `wanted` if there is nothing more to free.
fn evict_used(objects: &[Arc<CachedObject>], wanted: u64) -> u64 {
    let mut freed = 0;
    if wanted == 0 {
        return freed;
    }
    let mut soles = Vec::new();
    let mut segments = Vec::new();
    for object in objects {
        match SoleObject::of(object).and_then(|sole| sole.map(|sole| Ok((sole.segments()?, sole))).transpose()) {
            Ok(Some((found, sole))) => {
                object.collect_uses();
                segments.extend(found.into_iter().map(|segment| (object.last_use(segment), soles.len(), segment)));
                soles.push((object, sole));
            }
            Ok(None) => {}
            Err(error) => log::warn!("cannot evict: {}: {error}", object.path.display()),
        }
    }
    segments.sort_unstable();
    let evictions = segments.into_iter().map(|(_, index, segment)| (index, Some(segment)));
    for (index, segment) in evictions.chain((0..soles.len()).map(|index| (index, None))) {
        let Some((object, sole)) = soles.get(index).filter(|_| freed < wanted) else { break };
        let done = segment.map_or_else(|| sole.discard(0..object.blocks), |segment| sole.evict(segment));
        match done {
            Ok(bytes) => freed += bytes,
            Err(error) => log::warn!("cannot evict: {}: {error}", object.path.display()),
        }
    }
    freed
}
