//! The order of parked jobs: which one continues next. Starts no threads.
//!
//! Jobs that wait for a device are in the lane of that device. A lane runs a limited number of jobs, so a device that
//! hangs holds only its own lane. Computations are in classes by their expected cost. The computations of a class may
//! use the cores as if there were none of higher classes, so that short ones do not wait for long ones: both run, and
//! the operating system divides the cores between them. Of those that may start, the lowest class goes first. Every
//! [`OLDEST_EVERY`]th turn goes to the computation that has waited longest, so that none starves. Of the jobs with the
//! same key, one continues and the others follow it.

use crate::content::{self, ResultId, WaitFor, WaitResource};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The first class costs at most this many bytes, and each following class eight times as many.
const FIRST_CLASS: u64 = 1 << 20;

/// Number of classes. The last one has no limit.
const CLASSES: u8 = 8;

/// One in this many turns goes to the computation that has waited longest.
const OLDEST_EVERY: u64 = 4;

/// A computation that has not checked its request for this time counts as stalled: it probably waits for its device, so
/// its core is free for others.
const STALLED_AFTER: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct PlannedTask<J> {
    pub job: J,
    pub wait: WaitFor,
    /// Number of times that the job has continued.
    pub turns: u8,
}

/// A job that continues now.
#[derive(Debug)]
pub(super) struct StartedJob<J> {
    /// Identifies the running job.
    pub number: u64,
    pub task: PlannedTask<J>,
    /// `None` unless the job computes.
    pub clock: Option<Arc<ComputationClock>>,
}

/// When a running computation last checked its request.
#[derive(Debug)]
pub(super) struct ComputationClock {
    started: Instant,
    /// In milliseconds since the start.
    checked: AtomicU64,
}

impl ComputationClock {
    pub fn check(&self) {
        self.checked.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    fn is_stalled(&self, now: Instant) -> bool {
        let checked = self.started + Duration::from_millis(self.checked.load(Ordering::Relaxed));
        now.saturating_duration_since(checked) > STALLED_AFTER
    }
}

/// All jobs that wait or run. `J` is a cheap handle of a job.
#[derive(Debug)]
pub(super) struct SchedulePlan<J> {
    /// Number of threads that compute at a time for a class and those below it.
    cores: usize,
    /// Maximum number of computations that have started and not ended. Those that have stalled are not counted.
    started_max: usize,
    /// The number of the next job.
    next: u64,
    /// For each key that a job waits or runs for, the jobs that follow it.
    followers: HashMap<ResultId, Vec<PlannedTask<J>>>,
    /// Jobs that wait for each device, with their numbers.
    lanes: HashMap<u64, VecDeque<(u64, PlannedTask<J>)>>,
    /// Jobs that read from a device, by number, with its device.
    reading: HashMap<u64, (u64, J)>,
    /// Computations that have not started, by class and number.
    waiting: BTreeMap<(u8, u64), PlannedTask<J>>,
    /// Computations that have started, by number.
    started: BTreeMap<u64, StartedComputation<J>>,
    /// Number of turns that the computations have had.
    turns: u64,
}

#[derive(Debug)]
struct StartedComputation<J> {
    job: J,
    class: u8,
    device: Option<u64>,
    clock: Arc<ComputationClock>,
    threads: usize,
}

impl<J: Clone> SchedulePlan<J> {
    pub fn new(cores: usize, started_max: usize) -> Self {
        let started_max = started_max.max(2);
        let cores = cores.clamp(1, started_max / 2);
        let (followers, lanes, reading, waiting, started) = Default::default();
        Self { cores, started_max, next: 0, followers, lanes, reading, waiting, started, turns: 0 }
    }

    /// Whether nothing waits or runs.
    pub fn is_empty(&self) -> bool {
        let is_reading = !self.reading.is_empty() || !self.lanes.values().all(VecDeque::is_empty);
        !is_reading && self.waiting.is_empty() && self.started.is_empty()
    }

    /// Parks a job.
    pub fn add(&mut self, task: PlannedTask<J>) {
        if let Some(key) = task.wait.key {
            if let Some(followers) = self.followers.get_mut(&key) {
                return followers.push(task);
            }
            self.followers.insert(key, Vec::new());
        }
        self.next += 1;
        match task.wait.need {
            WaitResource::Device(device) => self.lanes.entry(device).or_default().push_back((self.next, task)),
            WaitResource::Cores { bytes, .. } => drop(self.waiting.insert((class_of(bytes), self.next), task)),
        }
    }

    /// The next job that waits for a device, if its lane has room.
    pub fn next_read(&mut self) -> Option<StartedJob<J>> {
        let mut devices = self.lanes.iter().filter(|(_, lane)| !lane.is_empty()).map(|(device, _)| *device);
        let device = devices.find(|device| self.running(*device) < content::running_max(*device))?;
        let (number, task) = self.lanes.get_mut(&device)?.pop_front()?;
        self.reading.insert(number, (device, task.job.clone()));
        Some(StartedJob { number, task, clock: None })
    }

    /// Number of jobs that read from a device.
    fn running(&self, device: u64) -> usize {
        self.reading.values().filter(|(other, _)| *other == device).count()
    }

    /// The next computation, if one may start.
    pub fn next_computation(&mut self, now: Instant) -> Option<StartedJob<J>> {
        let is_turn_of_oldest = (self.turns + 1).is_multiple_of(OLDEST_EVERY);
        let mut places = (0..CLASSES).filter_map(|class| self.startable(class, now));
        let place = if is_turn_of_oldest { places.min_by_key(|place| place.1) } else { places.next() }?;
        let task = self.waiting.remove(&place)?;
        let WaitResource::Cores { device, .. } = task.wait.need else { return None };
        self.turns += 1;
        let (class, number) = place;
        let clock = Arc::new(ComputationClock { started: now, checked: AtomicU64::new(0) });
        let started = StartedComputation { job: task.job.clone(), class, device, clock: clock.clone(), threads: 1 };
        self.started.insert(number, started);
        Some(StartedJob { number, task, clock: Some(clock) })
    }

    /// The place of the first computation of a class that may start now. The last place of all is reserved for the
    /// first class.
    fn startable(&self, class: u8, now: Instant) -> Option<(u8, u64)> {
        let (mut count, mut threads) = (usize::from(class > 0), 0);
        for running in self.started.values().filter(|started| !started.clock.is_stalled(now)) {
            count += 1;
            threads += if running.class <= class { running.threads } else { 0 };
        }
        if threads >= self.cores || count >= self.started_max {
            return None;
        }
        let mut waiting = self.waiting.range((class, 0)..=(class, u64::MAX));
        waiting.find(|(_, task)| !self.hangs(task.wait.need, now)).map(|(place, _)| *place)
    }

    /// Whether a computation that has stalled reads from the same device.
    fn hangs(&self, need: WaitResource, now: Instant) -> bool {
        let WaitResource::Cores { device: Some(device), .. } = need else { return false };
        self.started.values().any(|started| started.device == Some(device) && started.clock.is_stalled(now))
    }

    /// Removes a job that has run. Returns those that waited for its result; they are no longer parked.
    pub fn end(&mut self, number: u64, wait: WaitFor) -> Vec<PlannedTask<J>> {
        match wait.need {
            WaitResource::Device(_) => drop(self.reading.remove(&number)),
            WaitResource::Cores { .. } => drop(self.started.remove(&number)),
        }
        wait.key.and_then(|key| self.followers.remove(&key)).unwrap_or_default()
    }

    /// Whether other jobs wait for the result of a job.
    pub fn is_followed(&self, wait: WaitFor) -> bool {
        wait.key.and_then(|key| self.followers.get(&key)).is_some_and(|followers| !followers.is_empty())
    }

    /// Lets a computation use one more thread, if a core is free and no other computation can use it.
    pub fn acquire(&mut self, number: u64, now: Instant) -> bool {
        let running = self.started.values().filter(|started| !started.clock.is_stalled(now));
        let is_free = running.map(|started| started.threads).sum::<usize>() < self.cores
            && (0..CLASSES).all(|class| self.startable(class, now).is_none());
        let started = self.started.get_mut(&number).filter(|_| is_free);
        started.map(|started| started.threads += 1).is_some()
    }

    /// Registers that a thread of [`Self::acquire`] has ended.
    pub fn release(&mut self, number: u64) {
        if let Some(started) = self.started.get_mut(&number) {
            started.threads -= 1;
        }
    }

    /// Returns the cancelled jobs. Those that are not running are removed.
    pub fn remove_cancelled(&mut self, is_cancelled: impl Fn(&J) -> bool) -> Vec<J> {
        let mut cancelled = Vec::new();
        for followers in self.followers.values_mut() {
            let parted = followers.extract_if(.., |task| is_cancelled(&task.job));
            cancelled.extend(parted.map(|task| task.job));
        }
        let followers = &mut self.followers;
        self.waiting.retain(|_, task| keep_or_replace(task, followers, &is_cancelled, &mut cancelled));
        for lane in self.lanes.values_mut() {
            lane.retain_mut(|(_, task)| keep_or_replace(task, followers, &is_cancelled, &mut cancelled));
        }
        self.lanes.retain(|_, lane| !lane.is_empty());
        let reading = self.reading.values().map(|(_, job)| job);
        let running = reading.chain(self.started.values().map(|started| &started.job));
        cancelled.extend(running.filter(|job| is_cancelled(job)).cloned());
        cancelled
    }
}

/// Whether a job waits on. If it is cancelled, its first follower takes its place.
fn keep_or_replace<J: Clone>(
    task: &mut PlannedTask<J>,
    followers: &mut HashMap<ResultId, Vec<PlannedTask<J>>>,
    is_cancelled: &impl Fn(&J) -> bool,
    cancelled: &mut Vec<J>,
) -> bool {
    if !is_cancelled(&task.job) {
        return true;
    }
    cancelled.push(task.job.clone());
    let Some(key) = task.wait.key else { return false };
    match followers.get_mut(&key) {
        Some(followers) if !followers.is_empty() => {
            *task = followers.remove(0);
            true
        }
        _ => {
            followers.remove(&key);
            false
        }
    }
}

/// The class of a computation that reads that many bytes.
fn class_of(bytes: u64) -> u8 {
    (0..CLASSES - 1).find(|class| bytes <= FIRST_CLASS << (3 * class)).unwrap_or(CLASSES - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: fn() -> Instant = Instant::now;

    fn computation(bytes: u64, key: u32) -> WaitFor {
        let key = Some(ResultId { model: 0, kind: 0, item: key });
        WaitFor { need: WaitResource::Cores { bytes, device: Some(7) }, key }
    }

    fn read(device: u64) -> WaitFor {
        WaitFor { need: WaitResource::Device(device), key: None }
    }

    fn add(plan: &mut SchedulePlan<u32>, job: u32, wait: WaitFor) {
        plan.add(PlannedTask { job, wait, turns: 0 });
    }

    /// Starts, runs and ends computations until none is left. Returns them in the order of their starts.
    fn run_all(plan: &mut SchedulePlan<u32>) -> Vec<u32> {
        let mut order = Vec::new();
        while let Some(start) = plan.next_computation(NOW()) {
            order.push(start.task.job);
            order.extend(plan.end(start.number, start.task.wait).into_iter().map(|task| task.job));
        }
        assert!(plan.is_empty());
        order
    }

    #[test]
    fn cheap_computations_go_first_and_equal_ones_in_order() {
        let mut plan = SchedulePlan::new(1, 8);
        for (job, mib) in [(1, 1 << 20), (2, 1), (3, 300), (4, 0), (5, 300), (6, 1)] {
            add(&mut plan, job, computation(mib << 20, job));
        }
        // The fourth turn goes to the one that has waited longest.
        assert_eq!(run_all(&mut plan), [2, 4, 6, 1, 3, 5]);
        assert_eq!([0, 1 << 20, (1 << 20) + 1, 8 << 20, 1 << 40, u64::MAX].map(class_of), [0, 0, 1, 1, 7, 7]);
    }

    #[test]
    fn no_computation_starves() {
        let mut plan = SchedulePlan::new(1, 8);
        add(&mut plan, 0, computation(1 << 40, 0));
        let mut at = 1;
        let started = (0..20).position(|_| {
            for _ in 0..3 {
                add(&mut plan, at, computation(1, at));
                at += 1;
            }
            let start = plan.next_computation(NOW()).unwrap();
            plan.end(start.number, start.task.wait);
            start.task.job == 0
        });
        assert_eq!(started, Some(3));
    }

    #[test]
    fn short_computation_starts_while_long_ones_use_all_cores() {
        let mut plan = SchedulePlan::new(2, 8);
        (0..4).for_each(|job| add(&mut plan, job, computation(1 << 40, job)));
        let long: Vec<_> = std::iter::from_fn(|| plan.next_computation(NOW())).collect();
        assert_eq!(long.len(), 2, "the others are of the same class");
        add(&mut plan, 4, computation(4, 4));
        add(&mut plan, 5, computation(300 << 20, 5));
        let mut others = std::iter::from_fn(|| plan.next_computation(NOW())).collect::<Vec<_>>();
        others.sort_by_key(|start| start.task.job);
        assert_eq!(others.iter().map(|start| start.task.job).collect::<Vec<_>>(), [4, 5]);
        // A computation of a higher class may use the cores that those of lower classes do not use.
        others
            .into_iter()
            .chain(long.into_iter().take(1))
            .for_each(|start| _ = plan.end(start.number, start.task.wait));
        assert!([2, 3].contains(&plan.next_computation(NOW()).unwrap().task.job));
        assert!(plan.next_computation(NOW()).is_none());
    }

    #[test]
    fn computation_that_waited_longest_is_started_while_short_ones_wait() {
        let mut plan = SchedulePlan::new(1, 8);
        for job in 0..3 {
            add(&mut plan, job, computation(1, job));
        }
        add(&mut plan, 9, computation(1 << 40, 9));
        (0..3).for_each(|_| {
            let start = plan.next_computation(NOW()).unwrap();
            plan.end(start.number, start.task.wait);
        });
        add(&mut plan, 4, computation(1, 4));
        assert_eq!(plan.next_computation(NOW()).unwrap().task.job, 9);
        // The short one does not wait for it.
        assert_eq!(plan.next_computation(NOW()).unwrap().task.job, 4);
    }

    #[test]
    fn jobs_with_the_same_key_follow_one() {
        let mut plan = SchedulePlan::new(2, 8);
        (0..5).for_each(|job| add(&mut plan, job, computation(1, 7)));
        let start = plan.next_computation(NOW()).unwrap();
        assert!(plan.next_computation(NOW()).is_none() && plan.is_followed(start.task.wait));
        let followers = plan.end(start.number, start.task.wait);
        assert_eq!(followers.iter().map(|task| task.job).collect::<Vec<_>>(), [1, 2, 3, 4]);
        // If the first one has failed, the next one takes its place.
        followers.into_iter().for_each(|task| plan.add(task));
        let start = plan.next_computation(NOW()).unwrap();
        assert_eq!((start.task.job, plan.end(start.number, start.task.wait).len()), (1, 3));
        assert!(plan.is_empty());
    }

    #[test]
    fn hanging_device_holds_only_its_lane() {
        let mut plan = SchedulePlan::new(1, 8);
        (0..100).for_each(|job| add(&mut plan, job, read(1)));
        let hung: Vec<_> = std::iter::from_fn(|| plan.next_read()).collect();
        assert_eq!(hung.len(), content::running_max(0));
        (100..103).for_each(|job| add(&mut plan, job, read(2)));
        let other: Vec<_> = std::iter::from_fn(|| plan.next_read()).collect();
        assert_eq!(other.iter().map(|start| start.task.job).collect::<Vec<_>>(), [100, 101, 102]);
        plan.end(hung[3].number, hung[3].task.wait);
        assert_eq!(plan.next_read().unwrap().task.job, content::running_max(0) as u32);
    }

    #[test]
    fn stalled_computation_leaves_its_core_but_no_other_starts_on_its_device() {
        let mut plan = SchedulePlan::new(1, 8);
        add(&mut plan, 0, computation(1, 0));
        add(&mut plan, 1, computation(1, 1));
        let elsewhere = WaitFor { need: WaitResource::Cores { bytes: 1 << 30, device: Some(8) }, key: None };
        add(&mut plan, 2, elsewhere);
        let hung = plan.next_computation(NOW()).unwrap();
        assert!(plan.next_computation(NOW()).is_none());
        let later = NOW() + 2 * STALLED_AFTER;
        let other = plan.next_computation(later).unwrap();
        assert_eq!(other.task.job, 2);
        plan.end(other.number, other.task.wait);
        assert!(plan.next_computation(later).is_none());
        // It checks its request again, and uses the core.
        add(&mut plan, 3, elsewhere);
        std::thread::sleep(Duration::from_millis(5));
        let late = NOW() + STALLED_AFTER - Duration::from_millis(2);
        hung.clock.unwrap().check();
        assert!(plan.next_computation(late).is_none());
        plan.end(hung.number, hung.task.wait);
        assert_eq!(run_all(&mut plan), [1, 3]);
    }

    #[test]
    fn cancelled_jobs_are_removed_and_replaced_by_their_followers() {
        let mut plan = SchedulePlan::new(1, 8);
        add(&mut plan, 0, computation(1, 0));
        let running = plan.next_computation(NOW()).unwrap();
        (1..4).for_each(|job| add(&mut plan, job, computation(1, 9)));
        (4..6).for_each(|job| add(&mut plan, job, read(1)));
        add(&mut plan, 6, computation(1, 0));
        let mut cancelled = plan.remove_cancelled(|job| [0, 1, 2, 4, 6].contains(job));
        cancelled.sort_unstable();
        assert_eq!(cancelled, [0, 1, 2, 4, 6]);
        assert!(!plan.is_followed(running.task.wait));
        assert_eq!(plan.next_read().unwrap().task.job, 5);
        assert!(plan.next_read().is_none());
        plan.end(running.number, running.task.wait);
        assert_eq!(plan.next_computation(NOW()).unwrap().task.job, 3);
    }

    #[test]
    fn threads_and_started_computations_are_bounded() {
        let mut plan = SchedulePlan::new(4, 8);
        add(&mut plan, 0, computation(1 << 40, 0));
        let long = plan.next_computation(NOW()).unwrap();
        // A single computation gets all cores.
        assert_eq!((0..9).filter(|_| plan.acquire(long.number, NOW())).count(), 3);
        plan.release(long.number);
        add(&mut plan, 1, computation(1 << 40, 1));
        assert!(!plan.acquire(long.number, NOW()), "another computation waits");
        assert_eq!(plan.next_computation(NOW()).unwrap().task.job, 1);
        // However many classes there are, the number of started computations is bounded.
        let mut plan = SchedulePlan::new(4, 8);
        let mut started = 0;
        for job in 0..1000u32 {
            add(&mut plan, job, computation(1 << (60 - job % 60), job));
            while let Some(start) = plan.next_computation(NOW()) {
                started += 1;
                assert!(start.task.job < 1000);
            }
            let threads = |class| plan.started.values().filter(|one| one.class == class).map(|one| one.threads).sum();
            assert!(plan.started.len() <= 8 && (0..CLASSES).map(threads).all(|threads: usize| threads <= 4));
        }
        assert!(started >= 4);
    }
}
