//! Threads: parallel loops over all cores.
//!
//! A parallel loop starts its own threads and joins them before it returns. In a shared pool, short work would wait
//! behind long work, and a pool thread that waits for a result could pick up a job that waits for the same result.

use std::cell::RefCell;
use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The number of cores that this process may use, within the limits of its control group. Looked up once, at the first
/// call.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Decides how many helper threads parallel loops start beside the calling thread.
pub trait HelperThreads: Send + Sync {
    /// Whether one more helper may start. Call `release` when it has ended.
    fn acquire(&self) -> bool;
    fn release(&self);
}

/// The helpers of loops outside of [`with_helpers`]. Their number never exceeds the number of cores.
#[derive(Debug)]
struct FreeHelpers(AtomicUsize);

impl HelperThreads for FreeHelpers {
    fn acquire(&self) -> bool {
        self.0.fetch_update(Relaxed, Relaxed, |started| (started < cores()).then_some(started + 1)).is_ok()
    }

    fn release(&self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

static FREE: FreeHelpers = FreeHelpers(AtomicUsize::new(0));

thread_local! {
    static COUNTED: RefCell<Option<Arc<dyn HelperThreads>>> = const { RefCell::new(None) };
}

/// Runs `work` on this thread. Parallel loops in it start helpers only as `helpers` permits.
pub fn with_helpers<R>(helpers: Arc<dyn HelperThreads>, work: impl FnOnce() -> R) -> R {
    let before = COUNTED.replace(Some(helpers));
    let result = work();
    COUNTED.set(before);
    result
}

/// Runs `work` for each number below `count` on all cores, and returns the results in order.
pub fn map_parallel<R: Send>(count: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    match count {
        0 | 1 => (0..count).map(work).collect(),
        _ => run_helpers(count - 1, |send| (0..count).for_each(send), work).1,
    }
}

/// Runs `work` on all cores for each job that `produce` sends, while it is still producing. Returns what `produce`
/// returns, and the results in the order of the jobs.
pub fn stream<J: Send, R: Send, P>(
    produce: impl FnOnce(&mut dyn FnMut(J)) -> P,
    work: impl Fn(J) -> R + Sync,
) -> (P, Vec<R>) {
    run_helpers(usize::MAX, produce, work)
}

/// Sorts like [`slice::sort_by`], on all cores.
pub fn sort_by<T: Send>(items: &mut [T], compare: impl Fn(&T, &T) -> Ordering + Sync) {
    /// Sorting fewer items is faster than starting a thread.
    const PART_MIN: usize = 1 << 13;
    let part = items.len().div_ceil(cores());
    if cores() > 1 && part >= PART_MIN {
        stream(|send| items.chunks_mut(part).for_each(send), |part| part.sort_by(&compare));
    }
    // The standard sort finds the sorted parts and merges them.
    items.sort_by(compare);
}

/// Runs jobs with at most `helpers` threads beside the calling one.
fn run_helpers<J: Send, R: Send, P>(
    helpers: usize,
    produce: impl FnOnce(&mut dyn FnMut(J)) -> P,
    work: impl Fn(J) -> R + Sync,
) -> (P, Vec<R>) {
    let (sender, jobs) = channel::<(usize, J)>();
    let (jobs, done) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    let counted = COUNTED.with_borrow(Clone::clone);
    let counted: &dyn HelperThreads = counted.as_deref().unwrap_or(&FREE);
    let produced = std::thread::scope(|scope| {
        for _ in 0..helpers.min(cores() - 1) {
            // The calling thread works too, so the loop finishes even if no thread can be started.
            if !counted.acquire() {
                break;
            }
            let helper = std::thread::Builder::new().name("parallel".into()).spawn_scoped(scope, || {
                run_jobs(&jobs, &work, &done);
                counted.release();
            });
            if helper.is_err() {
                counted.release();
                break;
            }
        }
        let mut sent = 0;
        let produced = produce(&mut |job| {
            // The receiver outlives the scope.
            let _ = sender.send((sent, job));
            sent += 1;
        });
        drop(sender);
        run_jobs(&jobs, &work, &done);
        produced
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(number, _)| *number);
    (produced, done.into_iter().map(|(_, result)| result).collect())
}

/// Runs jobs until the sender was dropped. The lock is held only while this thread waits for a job.
fn run_jobs<J, R>(jobs: &Mutex<Receiver<(usize, J)>>, work: &impl Fn(J) -> R, done: &Mutex<Vec<(usize, R)>>) {
    loop {
        let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok((number, job)) = next else { return };
        let result = work(job);
        done.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::Duration;

    #[test]
    fn results_are_in_the_order_of_the_jobs() {
        for count in [0, 1, 2, 1000] {
            assert_eq!(map_parallel(count, |at| at * 2), (0..count).map(|at| at * 2).collect::<Vec<_>>());
        }
        let words = ["a", "bb", "", "cccc"];
        let (sent, lengths) = stream(
            |send| {
                words.iter().for_each(|word| send(word));
                words.len()
            },
            str::len,
        );
        assert_eq!((sent, lengths), (4, vec![1, 2, 0, 4]));
    }

    #[test]
    fn jobs_run_while_more_are_produced() {
        if cores() < 2 {
            return;
        }
        let (sender, receiver) = channel();
        let (sender, receiver) = (Mutex::new(sender), receiver);
        // Other tests may use all helper threads for a moment.
        let ran_early = || {
            let (first, _) = stream(
                |send| {
                    send(7);
                    receiver.recv_timeout(Duration::from_millis(100))
                },
                |job| sender.lock().unwrap().send(job).unwrap(),
            );
            first == Ok(7)
        };
        assert!((0..600).any(|_| ran_early()));
    }

    #[test]
    fn nested_loops_finish() {
        let sums = map_parallel(50, |a| map_parallel(50, |b| a * b).iter().sum::<usize>());
        assert_eq!(sums, (0..50).map(|a| a * 1225).collect::<Vec<_>>());
    }

    #[test]
    fn helpers_of_a_loop_are_counted() {
        struct Counted(AtomicUsize, AtomicUsize);

        impl HelperThreads for Counted {
            fn acquire(&self) -> bool {
                self.0.fetch_add(1, Relaxed) < 1
            }
            fn release(&self) {
                self.1.fetch_add(1, Relaxed);
            }
        }

        let counted = Arc::new(Counted(AtomicUsize::new(0), AtomicUsize::new(0)));
        let sums = with_helpers(counted.clone(), || map_parallel(100, |at| at));
        assert_eq!(sums, (0..100).collect::<Vec<_>>());
        let acquired = counted.0.load(Relaxed).min(1);
        assert_eq!((acquired, counted.1.load(Relaxed)), ((cores() - 1).min(1), acquired));
        map_parallel(100, |at| at);
        assert_eq!(counted.1.load(Relaxed), acquired);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 20, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn sorts_like_the_standard_library(mut items in prop::collection::vec((0u8..50, any::<u32>()), 0..60_000)) {
            let mut expected = items.clone();
            expected.sort_by_key(|item| item.0);
            sort_by(&mut items, |a, b| a.0.cmp(&b.0));
            prop_assert_eq!(items, expected);
        }
    }
}
