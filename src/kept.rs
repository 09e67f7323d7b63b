//! A cache that is bounded in bytes.

use lru::LruCache;
use std::fmt;
use std::hash::Hash;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Values by their keys. If they exceed the capacity, those that were used least recently are dropped.
pub struct KeptValues<K: Hash + Eq, V> {
    state: Mutex<KeptState<K, V>>,
    /// In bytes.
    capacity: usize,
    /// The size of a value in bytes, including what the cache itself needs.
    size: fn(&V) -> usize,
}

struct KeptState<K: Hash + Eq, V> {
    cache: LruCache<K, V>,
    /// Size of all values.
    bytes: usize,
}

impl<K: Hash + Eq, V: Clone> KeptValues<K, V> {
    /// An empty cache for `capacity` bytes. `size` is the size of a value, including what the cache itself needs.
    pub fn new(capacity: usize, size: fn(&V) -> usize) -> Self {
        Self { state: Mutex::new(KeptState { cache: LruCache::unbounded(), bytes: 0 }), capacity, size }
    }

    pub fn find(&self, key: &K) -> Option<V> {
        self.lock().cache.get(key).cloned()
    }

    /// Whether there is a value for a key. Does not count as a use.
    pub fn contains(&self, key: &K) -> bool {
        self.lock().cache.contains(key)
    }

    pub fn keep(&self, key: K, value: V) {
        self.put(&mut self.lock(), key, value);
    }

    /// The value for a key. If there is none, this one is added.
    pub fn find_or_keep(&self, key: K, value: V) -> V {
        let mut state = self.lock();
        if let Some(found) = state.cache.get(&key) {
            return found.clone();
        }
        self.put(&mut state, key, value.clone());
        value
    }

    fn put(&self, state: &mut KeptState<K, V>, key: K, value: V) {
        state.bytes += (self.size)(&value);
        if let Some(before) = state.cache.put(key, value) {
            state.bytes -= (self.size)(&before);
        }
        while state.bytes > self.capacity {
            let Some((_, dropped)) = state.cache.pop_lru() else { break };
            state.bytes -= (self.size)(&dropped);
        }
    }

    fn lock(&self) -> MutexGuard<'_, KeptState<K, V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K: Hash + Eq, V> fmt::Debug for KeptValues<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Kept {{ capacity: {} }}", self.capacity)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_were_used_least_recently_are_dropped_first() {
        let kept = KeptValues::new(100, |size: &usize| *size);
        (0..10).for_each(|key| kept.keep(key, 10));
        assert_eq!(kept.find(&0), Some(10));
        kept.keep(10, 15);
        let left: Vec<i32> = (0..=10).filter(|key| kept.contains(key)).collect();
        assert_eq!(left, [0, 3, 4, 5, 6, 7, 8, 9, 10]);
        // A value that replaces another one gives back its room.
        kept.keep(10, 20);
        assert!(kept.contains(&3) && kept.find(&10) == Some(20));
        assert_eq!((kept.find_or_keep(10, 21), kept.find_or_keep(12, 2)), (20, 2));
        // A value that exceeds the capacity is not kept.
        kept.keep(11, 101);
        assert_eq!((0..=11).filter(|key| kept.contains(key)).count(), 0);
    }
}
