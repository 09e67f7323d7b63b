//! A pool of open files: limits their number, and selects the file to close to make room for another one.

use super::error::{Error, is_out_of_descriptors};
use arc_swap::ArcSwapOption;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

#[derive(Debug)]
pub(super) struct FileSlot<T> {
    open: ArcSwapOption<T>,
    /// Whether the file was used since the pool last considered closing it.
    used: AtomicBool,
}

impl<T> Default for FileSlot<T> {
    fn default() -> Self {
        Self { open: ArcSwapOption::empty(), used: AtomicBool::new(false) }
    }
}

impl<T> FileSlot<T> {
    /// The file, if it is open. Takes no lock and allocates nothing.
    pub fn open(&self) -> Option<Arc<T>> {
        self.open.load_full()
    }
}

pub(super) trait PooledFile {
    /// Whether the file could be opened again if it were closed now.
    fn can_be_opened_again(&self) -> bool;
}

#[derive(Debug)]
pub(super) struct FilePool<T> {
    limit: AtomicUsize,
    slots: Mutex<OpenSlots<T>>,
}

#[derive(Debug)]
struct OpenSlots<T> {
    /// The next candidate for closing is at the front.
    candidates: VecDeque<Weak<FileSlot<T>>>,
    /// Files that stay open, because they could not be opened again when they were to be closed.
    kept: Vec<Weak<FileSlot<T>>>,
}

impl<T: PooledFile> FilePool<T> {
    pub const fn new(limit: usize) -> Self {
        let slots = OpenSlots { candidates: VecDeque::new(), kept: Vec::new() };
        Self { limit: AtomicUsize::new(limit), slots: Mutex::new(slots) }
    }

    /// Sets the maximum number of open files. It is at least one.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit.max(1), Ordering::Relaxed);
    }

    pub fn limit(&self) -> usize {
        self.limit.load(Ordering::Relaxed)
    }

    /// The file of a slot. If it is open, this takes no lock and allocates nothing; otherwise it is opened with `open`.
    /// It stays open for as long as the caller keeps what is returned, even if the pool closes its slot.
    pub fn get(&self, slot: &Arc<FileSlot<T>>, open: impl Fn() -> Result<T, Error>) -> Result<Arc<T>, Error> {
        // All threads share this flag. Writing it only when it changes keeps it in the cache of every core.
        if !slot.used.load(Ordering::Relaxed) {
            slot.used.store(true, Ordering::Relaxed);
        }
        if let Some(open) = slot.open() {
            return Ok(open);
        }
        self.make_room();
        loop {
            match open() {
                // Other parts of the process use descriptors too: close one file and try again.
                Err(Error::Io { error, .. }) if is_out_of_descriptors(&error) && self.close_one() => {}
                opened => return Ok(self.hold(slot, opened?)),
            }
        }
    }

    /// Adds a file that is open.
    pub fn insert(&self, slot: &Arc<FileSlot<T>>, open: T) {
        self.make_room();
        self.hold(slot, open);
    }

    fn make_room(&self) {
        while self.open_count() >= self.limit() && self.close_one() {}
    }

    fn hold(&self, slot: &Arc<FileSlot<T>>, open: T) -> Arc<T> {
        let open = Arc::new(open);
        slot.open.store(Some(open.clone()));
        self.lock().candidates.push_back(Arc::downgrade(slot));
        open
    }

    fn open_count(&self) -> usize {
        let slots = self.lock();
        slots.candidates.len() + slots.kept.len()
    }

    /// Closes the first file that was not used since the pool last considered it, and that can be opened again. Returns
    /// false if there is none.
    fn close_one(&self) -> bool {
        while let Some(slot) = self.candidate() {
            let Some(held) = slot.upgrade() else { return true };
            // This may wait for a disk, so the lock is not held.
            if held.open().is_none_or(|open| open.can_be_opened_again()) {
                held.open.store(None);
                return true;
            }
            let mut slots = self.lock();
            slots.kept.retain(|slot| slot.strong_count() > 0);
            slots.kept.push(slot);
        }
        false
    }

    /// Takes the first file that was not used since the pool last considered it.
    fn candidate(&self) -> Option<Weak<FileSlot<T>>> {
        let candidates = &mut self.lock().candidates;
        // After two rounds no slot is marked as used, unless readers keep marking it.
        for _ in 0..=2 * candidates.len() {
            let first = candidates.pop_front()?;
            if first.upgrade().is_none_or(|slot| !slot.used.swap(false, Ordering::Relaxed)) {
                return Some(first);
            }
            candidates.push_back(first);
        }
        None
    }

    fn lock(&self) -> MutexGuard<'_, OpenSlots<T>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
