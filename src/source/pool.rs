//! The files that are held open: knows how many may be, and which one gives way to the next.

use super::Error;
use super::file::Open;
use arc_swap::ArcSwapOption;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Where a file is held open, or is not.
#[derive(Debug, Default)]
pub(super) struct Slot {
    open: ArcSwapOption<Open>,
    /// Whether it was read since the pool last thought of closing it.
    used: AtomicBool,
}

#[cfg(test)]
impl Slot {
    pub fn is_held(&self) -> bool {
        self.open.load().is_some()
    }
}

/// Slots that hold a file, the one to think of first in front. Descriptors are a thing of the whole process, and so is this.
#[derive(Debug)]
pub(super) struct Pool {
    limit: AtomicUsize,
    slots: Mutex<VecDeque<Weak<Slot>>>,
}

/// The one of the process.
pub(super) static POOL: Pool = Pool::new(DEFAULT_LIMIT);

/// Half of the descriptors that a process usually has.
const DEFAULT_LIMIT: usize = 512;

/// Holds at most so many files open; one that is read when it is not is opened again, and another one is closed.
pub fn limit_open_files(limit: usize) {
    POOL.limit.store(limit.max(1), Ordering::Relaxed);
}

impl Pool {
    pub const fn new(limit: usize) -> Self {
        Self { limit: AtomicUsize::new(limit), slots: Mutex::new(VecDeque::new()) }
    }

    /// The file of a slot: neither a lock nor an allocation while it is held open, else by `open`.
    ///
    /// It stays open for as long as anybody has what is returned, in the pool or not.
    pub fn get(&self, slot: &Arc<Slot>, open: impl Fn() -> Result<Open, Error>) -> Result<Arc<Open>, Error> {
        // Written only where it changes something: it is shared by all threads.
        if !slot.used.load(Ordering::Relaxed) {
            slot.used.store(true, Ordering::Relaxed);
        }
        if let Some(open) = slot.open.load_full() {
            return Ok(open);
        }
        self.make_room();
        let opened = loop {
            match open() {
                // Somebody else has taken what there was: give back what we can.
                Err(Error::Io { error, .. }) if is_lack(&error) && self.close_one() => {}
                opened => break Arc::new(opened?),
            }
        };
        slot.open.store(Some(opened.clone()));
        self.lock().push_back(Arc::downgrade(slot));
        Ok(opened)
    }

    fn make_room(&self) {
        while self.lock().len() >= self.limit.load(Ordering::Relaxed) && self.close_one() {}
    }

    /// Closes the first file that was not read since it was last thought of; says whether there was any to close.
    fn close_one(&self) -> bool {
        let mut slots = self.lock();
        // Twice around: by then each has lost its mark, unless readers are as quick.
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

    fn lock(&self) -> MutexGuard<'_, VecDeque<Weak<Slot>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the system had no more descriptors or maps to give.
pub(super) fn is_lack(error: &io::Error) -> bool {
    let lacks = [nix::libc::EMFILE, nix::libc::ENFILE, nix::libc::ENOMEM];
    error.raw_os_error().is_some_and(|error| lacks.contains(&error))
}
