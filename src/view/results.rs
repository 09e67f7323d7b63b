//! Results of long computations: knows which are kept and which are under way, not how they are computed.

use super::View;
use crate::content::{Error, Interrupted};
use lru::LruCache;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most bytes that are kept.
const KEPT_MAX: usize = 64 << 20;

/// What a kept result takes besides its bytes, about.
const OVERHEAD: usize = 150;

/// How long one who waits for another's result takes to see that nobody waits for his own.
const PATIENCE: Duration = Duration::from_millis(100);

/// A file of a view of one of the models; of some files, a part.
pub(super) type Key = (u32, View, u32);

/// What was computed last, of all models of a mount.
pub struct Results {
    state: Mutex<State>,
    /// Something is not under way any more.
    ended: Condvar,
}

struct State {
    kept: LruCache<Key, Arc<[u8]>>,
    /// Of all that is kept.
    bytes: usize,
    under_way: HashSet<Key>,
}

impl Default for Results {
    fn default() -> Self {
        let state = State { kept: LruCache::unbounded(), bytes: 0, under_way: HashSet::new() };
        Self { state: Mutex::new(state), ended: Condvar::new() }
    }
}

impl Results {
    /// The result of that key, from `compute` unless it is kept. Of several who want it one computes, and the others wait; if
    /// he gives up, another one takes over.
    pub(super) fn get(
        &self,
        key: Key,
        interrupted: Interrupted,
        compute: impl FnOnce() -> Result<Vec<u8>, Error>,
    ) -> Result<Arc<[u8]>, Error> {
        let mut state = self.lock();
        loop {
            if let Some(kept) = state.kept.get(&key) {
                return Ok(kept.clone());
            }
            if state.under_way.insert(key) {
                break;
            }
            drop(self.ended.wait_timeout(state, PATIENCE));
            if interrupted() {
                return Err(Error::Interrupted);
            }
            state = self.lock();
        }
        drop(state);
        let result = compute();
        let mut state = self.lock();
        state.under_way.remove(&key);
        let result = result.map(|bytes| state.keep(key, bytes.into()));
        self.ended.notify_all();
        result
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keep(&mut self, key: Key, result: Arc<[u8]>) -> Arc<[u8]> {
        self.bytes += result.len() + OVERHEAD;
        self.kept.put(key, result.clone());
        while self.bytes > KEPT_MAX {
            let Some((_, oldest)) = self.kept.pop_lru() else { break };
            self.bytes -= oldest.len() + OVERHEAD;
        }
        result
    }
}

impl fmt::Debug for Results {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Results")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    const KEY: Key = (0, View::Stats, 7);

    #[test]
    fn ten_who_want_the_same_compute_it_once() {
        let (results, computed) = (Results::default(), AtomicUsize::new(0));
        let compute = || {
            computed.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
            Ok(vec![1, 2, 3])
        };
        std::thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| assert_eq!(results.get(KEY, &|| false, compute).unwrap()[..], [1, 2, 3]));
            }
        });
        assert_eq!(computed.into_inner(), 1);
    }

    #[test]
    fn who_waits_takes_over_when_the_first_gives_up() {
        let (results, begun) = (Results::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let gives_up = || {
                    begun.store(true, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(30));
                    Err(Error::Interrupted)
                };
                assert!(matches!(results.get(KEY, &|| true, gives_up), Err(Error::Interrupted)));
            });
            while !begun.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            assert_eq!(results.get(KEY, &|| false, || Ok(vec![9])).unwrap()[..], [9]);
        });
    }

    #[test]
    fn who_waits_may_leave() {
        let results = Results::default();
        results.lock().under_way.insert(KEY);
        assert!(matches!(results.get(KEY, &|| true, || Ok(vec![])), Err(Error::Interrupted)));
    }

    #[test]
    fn the_oldest_give_way() {
        let results = Results::default();
        let computed = AtomicUsize::new(0);
        let get = |item| {
            let compute = || {
                computed.fetch_add(1, Ordering::Relaxed);
                Ok(vec![0; 1 << 20])
            };
            results.get((0, View::Plot, item), &|| false, compute).unwrap();
        };
        (0..100).for_each(get);
        assert!(results.lock().bytes <= KEPT_MAX);
        (90..100).for_each(get);
        assert_eq!(computed.load(Ordering::Relaxed), 100);
        get(0);
        assert_eq!(computed.load(Ordering::Relaxed), 101);
    }
}
