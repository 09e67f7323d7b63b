//! Threads: parallel loops over all cores, and a bounded set of worker threads for requests that take long.
//!
//! All threads of the library are started here. A parallel loop starts its own threads and joins them before it
//! returns. In a shared pool, short work would wait behind long work, and a pool thread that waits for a result could
//! pick up a job that waits for the same result.

use std::cmp::Ordering;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The number of cores that this process may use, within the limits of its control group. Looked up once, at the first
/// call.
pub fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Number of helper threads of all running parallel loops. It never exceeds the number of cores.
static HELPERS: AtomicUsize = AtomicUsize::new(0);

/// Runs `work` for each number below `count` on all cores, and returns the results in order.
pub fn map<R: Send>(count: usize, work: impl Fn(usize) -> R + Sync) -> Vec<R> {
    match count {
        0 | 1 => (0..count).map(work).collect(),
        _ => run(count - 1, |send| (0..count).for_each(send), work).1,
    }
}

/// Runs `work` on all cores for each job that `produce` sends, while it is still producing. Returns what `produce`
/// returns, and the results in the order of the jobs.
pub fn stream<J: Send, R: Send, P>(
    produce: impl FnOnce(&mut dyn FnMut(J)) -> P,
    work: impl Fn(J) -> R + Sync,
) -> (P, Vec<R>) {
    run(usize::MAX, produce, work)
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
fn run<J: Send, R: Send, P>(
    helpers: usize,
    produce: impl FnOnce(&mut dyn FnMut(J)) -> P,
    work: impl Fn(J) -> R + Sync,
) -> (P, Vec<R>) {
    let (sender, jobs) = channel::<(usize, J)>();
    let (jobs, done) = (Mutex::new(jobs), Mutex::new(Vec::new()));
    let take = || {
        while let Some((number, job)) = next(&jobs) {
            let result = work(job);
            done.lock().unwrap_or_else(PoisonError::into_inner).push((number, result));
        }
    };
    let help = || {
        take();
        HELPERS.fetch_sub(1, Relaxed);
    };
    let produced = std::thread::scope(|scope| {
        for _ in 0..helpers.min(cores() - 1) {
            // The calling thread works too, so the loop finishes even if no thread can be started.
            if HELPERS.fetch_add(1, Relaxed) >= cores()
                || std::thread::Builder::new().name("parallel".into()).spawn_scoped(scope, help).is_err()
            {
                HELPERS.fetch_sub(1, Relaxed);
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
        take();
        produced
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_unstable_by_key(|(number, _)| *number);
    (produced, done.into_iter().map(|(_, result)| result).collect())
}

/// The next job, or `None` if the sender was dropped. The lock is held only while waiting, not while the job runs.
fn next<J>(jobs: &Mutex<Receiver<J>>) -> Option<J> {
    jobs.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// Threads for jobs that may take long. They are started when needed and take jobs in the order of arrival.
#[derive(Debug)]
pub struct Workers {
    sender: Sender<Job>,
    receiver: Arc<Mutex<Receiver<Job>>>,
    started: AtomicUsize,
    /// Number of jobs that wait or run.
    pending: Arc<AtomicUsize>,
    max: usize,
}

type Job = Box<dyn FnOnce() + Send>;

impl Workers {
    /// At most `max` threads.
    pub fn new(max: usize) -> Self {
        let (sender, receiver) = channel();
        let (started, pending) = Default::default();
        Self { sender, receiver: Arc::new(Mutex::new(receiver)), started, pending, max }
    }

    /// Runs `job` on a worker, or on the calling thread if no worker can be started.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let pending = self.pending.fetch_add(1, Relaxed) + 1;
        let started = self.started.load(Relaxed);
        if pending > started && started < self.max {
            let (receiver, pending) = (self.receiver.clone(), self.pending.clone());
            let thread = std::thread::Builder::new().name("worker".into());
            let serve = move || {
                while let Some(job) = next(&receiver) {
                    job();
                    pending.fetch_sub(1, Relaxed);
                }
            };
            match thread.spawn(serve) {
                Ok(_) => drop(self.started.fetch_add(1, Relaxed)),
                Err(error) => log::warn!("cannot start more than {started} worker threads: {error}"),
            }
        }
        if self.started.load(Relaxed) == 0 {
            self.pending.fetch_sub(1, Relaxed);
            return job();
        }
        if let Err(refused) = self.sender.send(Box::new(job)) {
            (refused.0)();
        }
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
            assert_eq!(map(count, |at| at * 2), (0..count).map(|at| at * 2).collect::<Vec<_>>());
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
        let sums = map(50, |a| map(50, |b| a * b).iter().sum::<usize>());
        assert_eq!(sums, (0..50).map(|a| a * 1225).collect::<Vec<_>>());
    }

    #[test]
    fn short_jobs_do_not_wait_for_long_ones() {
        let workers = Workers::new(3);
        let (sender, receiver) = channel();
        let (hold, held) = channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..2 {
            let held = held.clone();
            workers.run(move || assert!(held.lock().unwrap().recv().is_err()));
        }
        for at in 0..100 {
            let sender = sender.clone();
            workers.run(move || sender.send(at).unwrap());
        }
        let done: Vec<i32> = (0..100).map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
        assert_eq!(done, (0..100).collect::<Vec<_>>());
        assert_eq!(workers.started.load(Relaxed), 3);
        drop(hold);
    }

    #[test]
    fn caller_runs_the_job_if_there_are_no_workers() {
        let (sender, receiver) = channel();
        Workers::new(0).run(move || sender.send(7).unwrap());
        assert_eq!(receiver.recv(), Ok(7));
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
