//! A pool of open files: limits their number, and selects the file to close to make room for another one.

use super::error::{Error, is_shortage};
use arc_swap::ArcSwapOption;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// The slot of one file, which is open or closed.
#[derive(Debug)]
pub(super) struct Slot<T> {
    open: ArcSwapOption<T>,
    /// Whether the file was used since the pool last considered closing it.
    used: AtomicBool,
}

impl<T> Default for Slot<T> {
    fn default() -> Self {
        Self { open: ArcSwapOption::empty(), used: AtomicBool::new(false) }
    }
}

impl<T> Slot<T> {
    #[cfg(test)]
    pub fn is_held(&self) -> bool {
        self.open.load().is_some()
    }
}

/// The slots whose files are open; the next candidate for closing is at the front.
#[derive(Debug)]
pub(super) struct Pool<T> {
    limit: AtomicUsize,
    slots: Mutex<VecDeque<Weak<Slot<T>>>>,
}

impl<T> Pool<T> {
    pub const fn new(limit: usize) -> Self {
        Self { limit: AtomicUsize::new(limit), slots: Mutex::new(VecDeque::new()) }
    }

    /// Sets the maximum number of open files. It is at least one.
    pub fn set_limit(&self, limit: usize) {
        self.limit.store(limit.max(1), Ordering::Relaxed);
    }

    /// The file of a slot. If it is open, this takes no lock and allocates nothing; otherwise it is opened with `open`.
    ///
    /// The file stays open for as long as the caller keeps what is returned, even if the pool closes its slot.
    pub fn get(&self, slot: &Arc<Slot<T>>, open: impl Fn() -> Result<Arc<T>, Error>) -> Result<Arc<T>, Error> {
        // All threads share this flag. Writing it only when it changes keeps it in the cache of every core.
        if !slot.used.load(Ordering::Relaxed) {
            slot.used.store(true, Ordering::Relaxed);
        }
        if let Some(open) = slot.open.load_full() {
            return Ok(open);
        }
        while self.lock().len() >= self.limit.load(Ordering::Relaxed) && self.close_one() {}
        let opened = loop {
            match open() {
                // Other parts of the process use descriptors or maps too: close one file and try again.
                Err(Error::Io { error, .. }) if is_shortage(&error) && self.close_one() => {}
                opened => break opened?,
            }
        };
        slot.open.store(Some(opened.clone()));
        self.lock().push_back(Arc::downgrade(slot));
        Ok(opened)
    }

    /// The files that are open now.
    pub fn open_files(&self) -> Vec<Arc<T>> {
        self.lock().iter().filter_map(|slot| slot.upgrade()?.open.load_full()).collect()
    }

    /// Closes the first file that was not used since the pool last considered it. Returns false if none is open.
    fn close_one(&self) -> bool {
        let mut slots = self.lock();
        // After two rounds no slot is marked as used, unless readers keep marking it.
        for _ in 0..=2 * slots.len() {
            let Some(first) = slots.pop_front() else { return false };
            let Some(slot) = first.upgrade() else { return true };
            if slot.used.swap(false, Ordering::Relaxed) {
                slots.push_back(first);
            } else {
                slot.open.store(None);
                return true;
            }
        }
        false
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<Weak<Slot<T>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
