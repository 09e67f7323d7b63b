//! A cache for the results of long computations. Concurrent requests for one result compute it once.

use super::id::View;
use crate::content::{Error, Request};
use lru::LruCache;
use std::collections::HashSet;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Capacity of the cache in bytes.
const KEPT_MAX: usize = 64 << 20;

/// Approximate memory of a cached result besides its bytes.
const OVERHEAD: usize = 150;

/// How often a thread that waits for another thread's result checks whether its own request was cancelled.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// Identifies a result: a file of a view, or a part of one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The number of the model in this mount.
    pub model: u32,
    /// The view.
    pub view: View,
    /// The number of the file, or of the part.
    pub item: u32,
}

/// The cached results of all models of a mount, least recently used ones evicted first.
pub struct Results {
    state: Mutex<State>,
    /// Notified when a computation ends.
    ended: Condvar,
}

struct State {
    kept: LruCache<Key, Arc<[u8]>>,
    /// Size of all cached results, including [`OVERHEAD`].
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
    /// The result for a key: the cached one, or that of `compute`. If several threads request the same result, one
    /// computes it and the others wait. If the computation fails, a waiting thread starts it again.
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
            let Some((_, evicted)) = self.kept.pop_lru() else { break };
            self.bytes -= evicted.len() + OVERHEAD;
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
    fn concurrent_requests_compute_once() {
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
    fn waiting_thread_takes_over_after_failure() {
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
    fn cancelled_request_stops_waiting() {
        let results = Results::default();
        results.lock().running.insert(key(7));
        let request = Request::cancelled_by(&|| true);
        assert!(matches!(results.get(key(7), &request, || Ok(vec![])), Err(Error::Interrupted)));
    }

    #[test]
    fn least_recently_used_results_are_evicted() {
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
