//! Results of long computations: keeps the last ones, and computes each only once at a time.

use super::id::View;
use crate::content::{Error, Request};
use lru::LruCache;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Most bytes of results that are kept.
const KEPT_MAX: usize = 64 << 20;

/// What a kept result takes besides its bytes, about.
const OVERHEAD: usize = 150;

/// How often a thread that waits for another one's result checks whether its own request was cancelled.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// A result: a file of a view, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The number of the model in this mount.
    pub model: u32,
    /// The view.
    pub view: View,
    /// The number of the file, or of its part.
    pub item: u32,
}

/// The last results of all models of a mount.
pub struct Results {
    state: Mutex<State>,
    /// Notified when a computation ends.
    ended: Condvar,
}

struct State {
    kept: LruCache<Key, Arc<[u8]>>,
    /// Size of everything that is kept.
    bytes: usize,
    running: HashSet<Key>,
}

impl Default for Results {
    fn default() -> Self {
        let state = State { kept: LruCache::unbounded(), bytes: 0, running: HashSet::new() };
        Self { state: Mutex::new(state), ended: Condvar::new() }
    }
}

impl Results {
    /// The result for a key, from `compute` unless it is kept. If several threads want the same result, one computes it
    /// and the others wait. If that one gives up, another one takes over.
    pub fn get(
        &self,
        key: Key,
        request: &Request,
        compute: impl FnOnce() -> Result<Vec<u8>, Error>,
    ) -> Result<Arc<[u8]>, Error> {
        let mut state = self.lock();
        loop {
            if let Some(kept) = state.kept.get(&key) {
                return Ok(kept.clone());
            }
            if state.running.insert(key) {
                break;
            }
            drop(self.ended.wait_timeout(state, CHECK_EVERY));
            request.check()?;
            state = self.lock();
        }
        drop(state);
        let result = compute();
        let mut state = self.lock();
        state.running.remove(&key);
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

    fn key(item: u32) -> Key {
        Key { model: 0, view: View::new(3), item }
    }

    #[test]
    fn threads_that_want_the_same_result_compute_it_once() {
        let (results, computed) = (Results::default(), AtomicUsize::new(0));
        let compute = || {
            computed.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(Duration::from_millis(20));
            Ok(vec![1, 2, 3])
        };
        std::thread::scope(|scope| {
            for _ in 0..10 {
                scope.spawn(|| assert_eq!(results.get(key(7), &Request::WAIT, compute).unwrap()[..], [1, 2, 3]));
            }
        });
        assert_eq!(computed.into_inner(), 1);
    }

    #[test]
    fn a_waiting_thread_takes_over_when_the_first_one_gives_up() {
        let (results, begun) = (Results::default(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let give_up = || {
                    begun.store(true, Ordering::Relaxed);
                    std::thread::sleep(Duration::from_millis(30));
                    Err(Error::Interrupted)
                };
                assert!(matches!(results.get(key(7), &Request::WAIT, give_up), Err(Error::Interrupted)));
            });
            while !begun.load(Ordering::Relaxed) {
                std::thread::yield_now();
            }
            assert_eq!(results.get(key(7), &Request::WAIT, || Ok(vec![9])).unwrap()[..], [9]);
        });
    }

    #[test]
    fn a_waiting_thread_ends_when_its_request_is_cancelled() {
        let results = Results::default();
        results.lock().running.insert(key(7));
        let request = Request::cancelled_by(&|| true);
        assert!(matches!(results.get(key(7), &request, || Ok(vec![])), Err(Error::Interrupted)));
    }

    #[test]
    fn the_oldest_results_are_dropped() {
        let results = Results::default();
        let computed = AtomicUsize::new(0);
        let get = |item| {
            let compute = || {
                computed.fetch_add(1, Ordering::Relaxed);
                Ok(vec![0; 1 << 20])
            };
            results.get(key(item), &Request::WAIT, compute).unwrap();
        };
        (0..100).for_each(get);
        assert!(results.lock().bytes <= KEPT_MAX);
        (90..100).for_each(get);
        assert_eq!(computed.load(Ordering::Relaxed), 100);
        get(0);
        assert_eq!(computed.load(Ordering::Relaxed), 101);
    }
}
