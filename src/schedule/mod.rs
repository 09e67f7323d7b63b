//! The scheduler: parks operations that have to wait, and continues them on few threads. Does not depend on FUSE.
//!
//! A parked job holds no thread. Jobs that wait for a device continue on threads of that device's lane. Computations
//! continue on a few threads for each core, at a lower priority. `plan` decides which job is next.

mod plan;

use crate::content::{ReadRequest, WaitFor};
use crate::threads::{self, HelperThreads};
use plan::{PlannedTask, SchedulePlan, StartedJob};
use std::cell::Cell;
use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// An operation that has to wait.
pub trait ScheduledJob: Send + Sync {
    /// Continues the operation. Returns what it has to wait for if `request` does not allow that. Otherwise, the
    /// operation has ended.
    fn run(&self, request: &ReadRequest) -> Option<WaitFor>;

    /// Whether nobody waits for the result any more.
    fn is_cancelled(&self) -> bool {
        false
    }

    /// Ends the operation without a result, unless it has ended. May be called while it runs.
    fn cancel(&self) {}
}

type Shared = Arc<dyn ScheduledJob>;

/// Time between two checks for cancelled jobs and stalled computations.
const CHECK_EVERY: Duration = Duration::from_millis(100);

/// The time for which a thread without a job waits for one.
const IDLE: Duration = Duration::from_secs(5);

/// After this many turns, a job may wait for everything. Otherwise, a job that needs two resources which are never
/// available at the same time would be parked again for ever.
const TURNS_MAX: u8 = 8;

/// Memory that a computation may take, in bytes: pixels, buffers, and freed memory that the allocator keeps.
const MEMORY_EACH: u64 = 16 << 20;

/// Share of the memory limit of the process that computations may take.
const MEMORY_SHARE: u64 = 4;

/// The nice value of threads that compute, so that reads that need no computation go first.
const NICE: i32 = 10;

thread_local! {
    /// Whether the priority of this thread was lowered. It cannot be raised again.
    static LOWERED: Cell<bool> = const { Cell::new(false) };
}

/// Continues parked jobs. Its threads end when it is dropped.
pub struct Scheduler(Arc<SchedulerInner>);

struct SchedulerInner {
    state: Mutex<SchedulerState>,
    /// Notified when a thread without a job gets one, by kind of thread.
    ready: [Condvar; 2],
    parked: Condvar,
    closed: AtomicBool,
}

struct SchedulerState {
    plan: SchedulePlan<Shared>,
    pools: [ThreadPool; 2],
    checks: bool,
}

#[derive(Default)]
struct ThreadPool {
    ready: VecDeque<StartedJob<Shared>>,
    threads: usize,
    idle: usize,
    /// Number of threads that were needed and could not be started, since the thread that checks parked jobs has tried
    /// again.
    missing: usize,
    /// Whether it was logged that a thread could not be started.
    warned: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadKind {
    /// Waits for devices.
    Reading,
    Computing,
}

impl Scheduler {
    /// Computes on `cores` threads at a time. `memory` is the memory limit of the process in bytes, if there is one.
    pub fn new(cores: usize, memory: Option<u64>) -> Self {
        let room = memory.map_or(u64::MAX, |memory| memory / MEMORY_SHARE / MEMORY_EACH);
        let started_max = usize::try_from(room).unwrap_or(usize::MAX).min(4 * cores.max(1));
        let plan = SchedulePlan::new(cores, started_max);
        let state = Mutex::new(SchedulerState { plan, pools: Default::default(), checks: false });
        let (ready, parked, closed) = Default::default();
        Self(Arc::new(SchedulerInner { state, ready, parked, closed }))
    }

    /// Parks a job until it can continue. If no thread can be started, the job runs on this thread.
    pub fn park(&self, job: Arc<dyn ScheduledJob>, wait: WaitFor) {
        self.0.park(PlannedTask { job, wait, turns: 0 });
    }
}

impl Drop for Scheduler {
    fn drop(&mut self) {
        // The lock is taken so that no thread is about to wait without having seen this.
        let state = self.0.lock();
        self.0.closed.store(true, Ordering::Relaxed);
        drop(state);
        self.0.ready.iter().chain([&self.0.parked]).for_each(Condvar::notify_all);
    }
}

impl fmt::Debug for Scheduler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scheduler")
    }
}

impl SchedulerInner {
    fn lock(&self) -> MutexGuard<'_, SchedulerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    fn park(self: &Arc<Self>, task: PlannedTask<Shared>) {
        let mut state = self.lock();
        if self.is_closed() {
            return;
        }
        state.plan.add(task);
        if !state.checks {
            let inner = self.clone();
            let thread = std::thread::Builder::new().name("schedule".into()).spawn(move || inner.check());
            state.checks = thread.is_ok();
        }
        self.parked.notify_one();
        self.dispatch(state);
    }

    /// Gives every job that can continue to a thread.
    fn dispatch(self: &Arc<Self>, mut guard: MutexGuard<SchedulerState>) {
        if self.is_closed() {
            return;
        }
        let SchedulerState { plan, pools, checks } = &mut *guard;
        while let Some(start) = plan.next_read().or_else(|| plan.next_computation(Instant::now())) {
            let kind = if start.clock.is_some() { ThreadKind::Computing } else { ThreadKind::Reading };
            pools[kind as usize].ready.push_back(start);
            self.wake_or_spawn(kind, &mut pools[kind as usize]);
        }
        if LOWERED.get() && *checks {
            return;
        }
        // If no thread could be started, this thread runs the jobs.
        let pools = pools.iter_mut().filter(|pool| pool.threads == 0);
        let alone: Vec<StartedJob<Shared>> = pools.flat_map(|pool| pool.ready.drain(..)).collect();
        drop(guard);
        alone.into_iter().for_each(|start| self.perform(start));
    }

    /// Wakes or starts a thread for the job that was added last.
    fn wake_or_spawn(self: &Arc<Self>, kind: ThreadKind, pool: &mut ThreadPool) {
        if pool.idle >= pool.ready.len() {
            return self.ready[kind as usize].notify_one();
        }
        if kind == ThreadKind::Reading && LOWERED.get() {
            // A thread that this thread starts would also have a lower priority. The thread that checks parked jobs
            // starts it instead.
            pool.missing += 1;
            return;
        }
        let inner = self.clone();
        match std::thread::Builder::new().name("worker".into()).spawn(move || inner.work(kind)) {
            Ok(_) => pool.threads += 1,
            // A thread that runs takes the job later, unless one can be started before that.
            Err(error) => {
                pool.missing += 1;
                if !std::mem::replace(&mut pool.warned, true) {
                    log::warn!("cannot start more than {} worker threads: {error}", pool.threads);
                }
            }
        }
    }

    /// Runs jobs until there are none for a while.
    fn work(self: &Arc<Self>, kind: ThreadKind) {
        if kind == ThreadKind::Computing {
            lower_priority();
        }
        let mut state = self.lock();
        loop {
            if let Some(start) = state.pools[kind as usize].ready.pop_front() {
                drop(state);
                self.perform(start);
                state = self.lock();
                continue;
            }
            if self.is_closed() {
                break;
            }
            state.pools[kind as usize].idle += 1;
            let waited = self.ready[kind as usize].wait_timeout(state, IDLE);
            let (woken, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = woken;
            state.pools[kind as usize].idle -= 1;
            if timeout.timed_out() && state.pools[kind as usize].ready.is_empty() {
                break;
            }
        }
        state.pools[kind as usize].threads -= 1;
    }

    /// Continues a job, and then those that waited for its result.
    fn perform(self: &Arc<Self>, start: StartedJob<Shared>) {
        let StartedJob { number, task: PlannedTask { job, wait, turns }, clock } = start;
        let request = if turns < TURNS_MAX { ReadRequest::only(wait) } else { ReadRequest::WAIT };
        let next = match &clock {
            Some(clock) => {
                let helpers = Arc::new(CountedHelpers { inner: self.clone(), number });
                threads::with_helpers(helpers, || {
                    job.run(&request.cancelled_by(&|| {
                        clock.check();
                        self.is_abandoned(&job, wait)
                    }))
                })
            }
            None => job.run(&request.cancelled_by(&|| job.is_cancelled())),
        };
        let mut state = self.lock();
        let followers = state.plan.end(number, wait);
        if let Some(wait) = next {
            state.plan.add(PlannedTask { job, wait, turns: turns.saturating_add(1) });
        }
        self.dispatch(state);
        for PlannedTask { job, turns, .. } in followers {
            // The result is available now, unless the job failed. In that case, the first follower makes it.
            if let Some(wait) = job.run(&ReadRequest::NOWAIT) {
                self.park(PlannedTask { job, wait, turns });
            }
        }
    }

    /// Whether a computation should end because nobody waits for its result any more.
    fn is_abandoned(&self, job: &Shared, wait: WaitFor) -> bool {
        self.is_closed() || job.is_cancelled() && !self.lock().plan.is_followed(wait)
    }

    /// Removes cancelled jobs, and starts those for which a stalled computation makes room, until the scheduler is
    /// dropped.
    fn check(self: &Arc<Self>) {
        let mut state = self.lock();
        while !self.is_closed() {
            if state.plan.is_empty() {
                state = self.parked.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let cancelled = state.plan.remove_cancelled(|job| job.is_cancelled());
            for kind in [ThreadKind::Reading, ThreadKind::Computing] {
                let pool = &mut state.pools[kind as usize];
                let missing = std::mem::take(&mut pool.missing).min(pool.ready.len());
                (0..missing).for_each(|_| self.wake_or_spawn(kind, pool));
            }
            self.dispatch(state);
            cancelled.iter().for_each(|job| job.cancel());
            drop(cancelled);
            std::thread::sleep(CHECK_EVERY);
            state = self.lock();
        }
    }
}

/// Counts the helper threads of a computation as its threads.
struct CountedHelpers {
    inner: Arc<SchedulerInner>,
    number: u64,
}

impl HelperThreads for CountedHelpers {
    fn acquire(&self) -> bool {
        self.inner.lock().plan.acquire(self.number, Instant::now())
    }

    fn release(&self) {
        let mut state = self.inner.lock();
        state.plan.release(self.number);
        self.inner.dispatch(state);
    }
}

/// Lowers the priority of the calling thread, and of the threads that it starts. Without the permission for it, the
/// priority stays as it is.
fn lower_priority() {
    LOWERED.set(true);
    // SAFETY: setpriority takes no pointers. On Linux, 0 is the calling thread.
    #[allow(unsafe_code)]
    let _ = unsafe { nix::libc::setpriority(nix::libc::PRIO_PROCESS, 0, NICE) };
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{self, Error, ResultId, WaitResource};
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    /// The state of a job that runs until `go` is set.
    #[derive(Default)]
    struct Held {
        go: AtomicBool,
        runs: AtomicUsize,
        left: AtomicBool,
        cancels: AtomicUsize,
        done: AtomicBool,
    }

    /// A job of a test. The function is what it does in its turn.
    struct Test<F>(Arc<Held>, F);

    impl<F: Fn(&Held, &ReadRequest) -> Result<(), Error> + Send + Sync> ScheduledJob for Test<F> {
        fn run(&self, request: &ReadRequest) -> Option<WaitFor> {
            match (self.1)(&self.0, request) {
                Err(Error::WouldBlock(wait)) => return Some(wait),
                _ => self.0.done.store(true, Ordering::SeqCst),
            }
            None
        }

        fn is_cancelled(&self) -> bool {
            self.0.left.load(Ordering::SeqCst)
        }

        fn cancel(&self) {
            self.0.cancels.fetch_add(1, Ordering::SeqCst);
        }
    }

    fn park(
        scheduler: &Scheduler,
        wait: WaitFor,
        run: impl Fn(&Held, &ReadRequest) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Arc<Held> {
        let held = Arc::new(Held::default());
        scheduler.park(Arc::new(Test(held.clone(), run)), wait);
        held
    }

    /// Checks the request until `go` is set.
    fn hold(wait: WaitFor) -> impl Fn(&Held, &ReadRequest) -> Result<(), Error> {
        move |held, request| {
            request.wait(wait)?;
            held.runs.fetch_add(1, Ordering::SeqCst);
            while !held.go.load(Ordering::SeqCst) {
                request.check()?;
                std::thread::yield_now();
            }
            Ok(())
        }
    }

    fn computation(bytes: u64, item: u32) -> WaitFor {
        WaitFor { need: WaitResource::Cores { bytes, device: None }, key: Some(ResultId { model: 0, kind: 0, item }) }
    }

    fn wait_until(done: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn is_done(held: &Held) -> bool {
        held.done.load(Ordering::SeqCst)
    }

    fn runs(held: &Held) -> usize {
        held.runs.load(Ordering::SeqCst)
    }

    #[test]
    fn short_computations_run_while_long_ones_do() {
        let scheduler = Scheduler::new(2, None);
        let long: Vec<_> = (0..140)
            .map(|item| park(&scheduler, computation(1 << 40, item), hold(computation(1 << 40, item))))
            .collect();
        wait_until(|| long.iter().filter(|held| runs(held) > 0).count() == 2);
        for item in 1000..1100 {
            let short = park(&scheduler, computation(4, item), |_, request| request.check());
            wait_until(|| is_done(&short));
        }
        let state = scheduler.0.lock();
        let threads: usize = state.pools.iter().map(|pool| pool.threads).sum();
        // A computation that says nothing for a second leaves its core, and its thread waits.
        assert!(threads <= 16, "{threads}");
        drop(state);
        long.iter().for_each(|held| held.go.store(true, Ordering::SeqCst));
        wait_until(|| long.iter().all(|held| is_done(held)));
        wait_until(|| scheduler.0.lock().plan.is_empty());
    }

    #[test]
    fn one_job_makes_the_result_and_the_next_one_takes_over() {
        let scheduler = Scheduler::new(2, None);
        let wait = computation(1, 7);
        let (made, leads) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let jobs: Vec<_> = (0..3000)
            .map(|_| {
                let (made, leads) = (made.clone(), leads.clone());
                park(&scheduler, wait, move |held, request| {
                    if made.load(Ordering::SeqCst) {
                        return Ok(());
                    }
                    request.wait(wait)?;
                    held.runs.fetch_add(1, Ordering::SeqCst);
                    // The first two fail, but not before there are followers.
                    std::thread::sleep(Duration::from_millis(20));
                    if leads.fetch_add(1, Ordering::SeqCst) < 2 {
                        return Err(Error::NoMemory);
                    }
                    made.store(true, Ordering::SeqCst);
                    Ok(())
                })
            })
            .collect();
        wait_until(|| jobs.iter().all(|held| is_done(held)));
        assert_eq!(jobs.iter().map(|held| runs(held)).sum::<usize>(), 3);
    }

    #[test]
    fn cancelled_jobs_are_answered_while_they_are_parked_and_while_they_hang() {
        let scheduler = Scheduler::new(1, None);
        let read = WaitFor { need: WaitResource::Device(1), key: None };
        // Like reads of a device that hangs, these jobs do not check their requests.
        let hang = |held: &Held, _: &ReadRequest| {
            held.runs.fetch_add(1, Ordering::SeqCst);
            while !held.go.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            Ok(())
        };
        let hung: Vec<_> = (0..content::running_max(0) + 5).map(|_| park(&scheduler, read, hang)).collect();
        wait_until(|| hung.iter().filter(|held| runs(held) == 1).count() == content::running_max(0));
        let other = park(&scheduler, WaitFor { need: WaitResource::Device(2), key: None }, |_, _| Ok(()));
        wait_until(|| is_done(&other));
        hung.iter().for_each(|held| held.left.store(true, Ordering::SeqCst));
        wait_until(|| hung.iter().all(|held| held.cancels.load(Ordering::SeqCst) > 0));
        hung.iter().for_each(|held| held.go.store(true, Ordering::SeqCst));
        wait_until(|| scheduler.0.lock().plan.is_empty());
        assert_eq!(hung.iter().filter(|held| runs(held) == 1).count(), content::running_max(0));
    }

    #[test]
    fn cancelled_computation_goes_on_for_its_followers_only() {
        let scheduler = Scheduler::new(1, None);
        let wait = computation(1 << 40, 3);
        let (first, second) = (park(&scheduler, wait, hold(wait)), park(&scheduler, wait, |_, _| Ok(())));
        wait_until(|| runs(&first) == 1);
        first.left.store(true, Ordering::SeqCst);
        wait_until(|| first.cancels.load(Ordering::SeqCst) > 1);
        assert!(!is_done(&first) && !is_done(&second));
        second.left.store(true, Ordering::SeqCst);
        wait_until(|| is_done(&first) && second.cancels.load(Ordering::SeqCst) == 1);
    }

    #[test]
    fn threads_end_with_the_scheduler() {
        let scheduler = Scheduler::new(2, None);
        let wait = computation(1 << 40, 0);
        let held = park(&scheduler, wait, hold(wait));
        let parked: Vec<_> = (0..10).map(|_| park(&scheduler, wait, hold(wait))).collect();
        wait_until(|| runs(&held) == 1);
        let inner = scheduler.0.clone();
        drop(scheduler);
        wait_until(|| inner.lock().pools.iter().all(|pool| pool.threads == 0));
        assert!(is_done(&held) && parked.iter().all(|held| !is_done(held) || runs(held) == 1));
    }

    #[test]
    fn memory_limit_bounds_started_computations() {
        let scheduler = Scheduler::new(64, Some(256 << 20));
        let jobs: Vec<_> = (0..100)
            .map(|item| {
                park(&scheduler, computation(1 << (item % 50), item), hold(computation(1 << (item % 50), item)))
            })
            .collect();
        wait_until(|| jobs.iter().any(|held| runs(held) == 1));
        std::thread::sleep(2 * CHECK_EVERY);
        assert!(jobs.iter().filter(|held| runs(held) == 1).count() <= 4);
        jobs.iter().for_each(|held| held.go.store(true, Ordering::SeqCst));
        wait_until(|| jobs.iter().all(|held| is_done(held)));
    }
}
