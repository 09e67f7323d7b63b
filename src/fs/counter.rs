//! A counter to which many threads add at the same time, and which is seldom read.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};

/// Number of threads that can add without waiting for each other's cache line.
const CELLS: usize = 16;

/// A sum. Each thread adds to one of several cells, because threads that add to the same one slow each other down.
#[derive(Debug, Default)]
pub(super) struct ShardedCounter([CounterCell; CELLS]);

/// Two cache lines, because processors fetch them in pairs.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CounterCell(AtomicU64);

thread_local! {
    static INDEX: usize = {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        NEXT.fetch_add(1, Relaxed) % CELLS
    };
}

impl ShardedCounter {
    pub fn add(&self, number: u64) {
        let index = INDEX.with(|index| *index);
        self.0[index].0.fetch_add(number, Relaxed);
    }

    pub fn sum(&self) -> u64 {
        self.0.iter().map(|cell| cell.0.load(Relaxed)).fold(0, u64::wrapping_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_of_all_threads_are_summed() {
        let counter = ShardedCounter::default();
        std::thread::scope(|scope| {
            for number in 0..2 * CELLS as u64 + 1 {
                let counter = &counter;
                scope.spawn(move || (0..1000).for_each(|_| counter.add(number)));
            }
        });
        assert_eq!(counter.sum(), 1000 * (0..2 * CELLS as u64 + 1).sum::<u64>());
    }
}
