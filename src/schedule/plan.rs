//! The order of parked jobs: which one continues next, and which computation pauses for it. Starts no threads.
//!
//! Jobs that wait for a device are in the lane of that device. A lane runs a limited number of jobs, so a device that
//! hangs holds only its own lane. Computations share the cores: the class with the lowest expected cost goes first, and
//! a computation of a higher class pauses for it. Every [`OLDEST_EVERY`]th turn goes to the computation that has waited
//! longest, so that none starves. Of the jobs with the same key, one continues and the others follow it.

use crate::content::{self, ResultId, WaitFor, WaitResource};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The first class costs at most this many bytes, and each following class eight times as many.
const FIRST_CLASS: u64 = 1 << 20;

/// Number of classes. The last one has no limit.
const CLASSES: u8 = 8;

/// One in this many turns goes to the computation that has waited longest.
const OLDEST_EVERY: u64 = 4;

/// Minimum time that a computation runs after it got its turn because it had waited longest.
const SLICE: Duration = Duration::from_millis(100);

/// A computation that has not checked its request for this time counts as stalled: it probably waits for its device, so
/// its core is free for others.
const STALLED_AFTER: Duration = Duration::from_secs(1);

/// A job and what it waits for.
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
    pub ticket: Option<Arc<ComputationTicket>>,
}

/// The state that a running computation shares with the plan. The computation uses it whenever it checks its request.
#[derive(Debug)]
pub(super) struct ComputationTicket {
    /// When the plan was made.
    since: Instant,
    /// Whether the computation must call [`SchedulePlan::pause`]: it has to pause, or it counts as stalled.
    flagged: AtomicBool,
    /// When it last checked its request, in milliseconds since the plan was made.
    checked: AtomicU64,
}

impl ComputationTicket {
    /// Registers that the computation checks its request. Returns whether it must call [`SchedulePlan::pause`].
    pub fn check(&self) -> bool {
        self.checked.store(self.since.elapsed().as_millis() as u64, Ordering::Relaxed);
        self.flagged.load(Ordering::Relaxed)
    }
}

/// All jobs that wait or run. `J` is a cheap handle of a job.
#[derive(Debug)]
pub(super) struct SchedulePlan<J> {
    /// Number of threads that compute at a time.
    cores: usize,
    /// Maximum number of computations that have started and not ended.
    started_max: usize,
    since: Instant,
    /// The number of the next job or pause.
    next: u64,
    /// For each key that a job waits or runs for, the jobs that follow it.
    followers: HashMap<ResultId, Vec<PlannedTask<J>>>,
    lanes: HashMap<u64, ScheduleLane<J>>,
    /// Computations that have not started, by class and number.
    waiting: BTreeMap<(u8, u64), PlannedTask<J>>,
    /// Computations that have started, by number.
    started: BTreeMap<u64, StartedLane<J>>,
    /// Number of turns that the computations have had.
    turns: u64,
}

#[derive(Debug)]
struct ScheduleLane<J> {
    waiting: VecDeque<(u64, PlannedTask<J>)>,
    running: HashMap<u64, J>,
}

#[derive(Debug)]
struct StartedLane<J> {
    job: J,
    class: u8,
    device: Option<u64>,
    ticket: Arc<ComputationTicket>,
    /// Threads that compute, and threads that pause.
    active: usize,
    asleep: usize,
    /// The number of its pause, if it has to pause or is paused. Jobs and pauses share one sequence of numbers, so a
    /// lower number means a longer wait.
    paused: Option<u64>,
    stalled: bool,
    /// It does not pause before this time.
    until: Instant,
    /// Number of times that it was resumed.
    resumed: u64,
}

/// The next turn of the computations.
enum ComputationTurn {
    Start((u8, u64)),
    Resume(u64),
}

impl<J: Clone> SchedulePlan<J> {
    pub fn new(cores: usize, started_max: usize) -> Self {
        let started_max = started_max.max(2);
        let cores = cores.clamp(1, started_max / 2);
        let (followers, lanes, waiting, started) = Default::default();
        Self { cores, started_max, since: Instant::now(), next: 0, followers, lanes, waiting, started, turns: 0 }
    }

    /// Whether nothing waits or runs.
    pub fn is_empty(&self) -> bool {
        self.lanes.is_empty() && self.waiting.is_empty() && self.started.is_empty()
    }

    /// Parks a job.
    pub fn add(&mut self, task: PlannedTask<J>) {
        if let Some(key) = task.wait.key {
            if let Some(followers) = self.followers.get_mut(&key) {
                return followers.push(task);
            }
            self.followers.insert(key, Vec::new());
        }
        let number = self.number();
        match task.wait.need {
            WaitResource::Device(device) => {
                let lane = self.lanes.entry(device);
                let lane = lane.or_insert_with(|| ScheduleLane { waiting: VecDeque::new(), running: HashMap::new() });
                lane.waiting.push_back((number, task));
            }
            WaitResource::Cores { bytes, .. } => drop(self.waiting.insert((class(bytes), number), task)),
        }
    }

    /// The next job that waits for a device, if its lane has room.
    pub fn next_read(&mut self) -> Option<StartedJob<J>> {
        let has_room = |device: &u64, lane: &ScheduleLane<J>| {
            !lane.waiting.is_empty() && lane.running.len() < content::running_max(*device)
        };
        let lane = self.lanes.iter_mut().find_map(|(device, lane)| has_room(device, lane).then_some(lane))?;
        let (number, task) = lane.waiting.pop_front()?;
        lane.running.insert(number, task.job.clone());
        Some(StartedJob { number, task, ticket: None })
    }

    /// The next computation to start. Also resumes paused computations whose turn comes before it. If no core is free,
    /// requests that a computation of a higher class pause.
    pub fn next_computation(&mut self, now: Instant) -> Option<StartedJob<J>> {
        while self.busy() < self.cores {
            let oldest = (self.turns + 1).is_multiple_of(OLDEST_EVERY);
            let turn = if oldest { self.oldest() } else { self.shortest().map(|(_, turn)| turn) }?;
            self.turns += 1;
            let until = if oldest { now + SLICE } else { now };
            match turn {
                ComputationTurn::Start(place) => {
                    let task = self.waiting.remove(&place)?;
                    return Some(self.start(place, task, now, until));
                }
                ComputationTurn::Resume(number) => {
                    let started = self.started.get_mut(&number)?;
                    started.ticket.flagged.store(started.stalled, Ordering::Relaxed);
                    (started.paused, started.until) = (None, until);
                    started.active += std::mem::take(&mut started.asleep);
                    started.resumed += 1;
                }
            }
        }
        self.request_pause(now);
        None
    }

    fn start(
        &mut self,
        (class, number): (u8, u64),
        task: PlannedTask<J>,
        now: Instant,
        until: Instant,
    ) -> StartedJob<J> {
        let device = match task.wait.need {
            WaitResource::Cores { device, .. } => device,
            WaitResource::Device(_) => None,
        };
        let ticket = Arc::new(ComputationTicket {
            since: self.since,
            flagged: AtomicBool::new(false),
            checked: AtomicU64::new(self.clock(now)),
        });
        let started = StartedLane {
            job: task.job.clone(),
            class,
            device,
            ticket: ticket.clone(),
            active: 1,
            asleep: 0,
            paused: None,
            stalled: false,
            until,
            resumed: 0,
        };
        self.started.insert(number, started);
        StartedJob { number, task, ticket: Some(ticket) }
    }

    /// Removes a job that has run. Returns those that waited for its result; they are no longer parked.
    pub fn end(&mut self, number: u64, wait: WaitFor) -> Vec<PlannedTask<J>> {
        match wait.need {
            WaitResource::Device(device) => {
                if let Some(lane) = self.lanes.get_mut(&device) {
                    lane.running.remove(&number);
                    if lane.running.is_empty() && lane.waiting.is_empty() {
                        self.lanes.remove(&device);
                    }
                }
            }
            WaitResource::Cores { .. } => drop(self.started.remove(&number)),
        }
        wait.key.and_then(|key| self.followers.remove(&key)).unwrap_or_default()
    }

    /// Whether other jobs wait for the result of a job.
    pub fn is_followed(&self, wait: WaitFor) -> bool {
        wait.key.and_then(|key| self.followers.get(&key)).is_some_and(|followers| !followers.is_empty())
    }

    /// Milliseconds since the plan was made.
    fn clock(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.since).as_millis() as u64
    }

    /// Registers that a thread of a computation pauses. `None` if it need not pause. Otherwise the thread sleeps until
    /// [`Self::is_resumed`] returns true for the returned number.
    pub fn pause(&mut self, number: u64) -> Option<u64> {
        let started = self.started.get_mut(&number)?;
        started.stalled = false;
        started.ticket.flagged.store(started.paused.is_some(), Ordering::Relaxed);
        started.paused?;
        started.active -= 1;
        started.asleep += 1;
        Some(started.resumed)
    }

    /// Whether a computation was resumed after the pause `pause`.
    pub fn is_resumed(&self, number: u64, pause: u64) -> bool {
        self.started.get(&number).is_none_or(|started| started.resumed != pause)
    }

    /// Registers that a thread no longer pauses, although its computation was not resumed.
    pub fn leave_pause(&mut self, number: u64) {
        if let Some(started) = self.started.get_mut(&number) {
            started.asleep -= 1;
            started.active += 1;
        }
    }

    /// Lets a computation use one more thread, if a core is free and no other computation can use it.
    pub fn acquire(&mut self, number: u64) -> bool {
        let is_free = self.busy() < self.cores && self.shortest().is_none();
        match self.started.get_mut(&number).filter(|started| is_free && started.paused.is_none()) {
            Some(started) => {
                started.active += 1;
                true
            }
            None => false,
        }
    }

    /// Registers that a thread of [`Self::acquire`] has ended.
    pub fn release(&mut self, number: u64) {
        if let Some(started) = self.started.get_mut(&number) {
            started.active -= 1;
        }
    }

    /// Makes all computations call [`Self::pause`].
    pub fn flag_all(&self) {
        self.started.values().for_each(|started| started.ticket.flagged.store(true, Ordering::Relaxed));
    }

    /// Looks for computations that have stalled.
    pub fn find_stalled(&mut self, now: Instant) {
        let late = self.clock(now).saturating_sub(STALLED_AFTER.as_millis() as u64);
        for started in self.started.values_mut().filter(|started| started.active > 0 && !started.stalled) {
            if started.ticket.checked.load(Ordering::Relaxed) < late {
                started.stalled = true;
                started.ticket.flagged.store(true, Ordering::Relaxed);
            }
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
        // The first follower takes the place of the job that it followed.
        let mut keep = |task: &mut PlannedTask<J>| {
            if !is_cancelled(&task.job) {
                return true;
            }
            cancelled.push(task.job.clone());
            let Some(key) = task.wait.key else { return false };
            match followers.get_mut(&key).filter(|followers| !followers.is_empty()) {
                Some(followers) => {
                    *task = followers.remove(0);
                    true
                }
                None => {
                    followers.remove(&key);
                    false
                }
            }
        };
        self.waiting.retain(|_, task| keep(task));
        self.lanes.values_mut().for_each(|lane| lane.waiting.retain_mut(|(_, task)| keep(task)));
        self.lanes.retain(|_, lane| !lane.waiting.is_empty() || !lane.running.is_empty());
        let reading = self.lanes.values().flat_map(|lane| lane.running.values());
        let running = reading.chain(self.started.values().map(|started| &started.job));
        cancelled.extend(running.filter(|job| is_cancelled(job)).cloned());
        cancelled
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// Number of threads that compute.
    fn busy(&self) -> usize {
        self.started.values().filter(|started| !started.stalled).map(|started| started.active).sum()
    }

    /// Whether a computation may start now. The last place is reserved for the first class.
    fn may_start(&self, class: u8, task: &PlannedTask<J>) -> bool {
        let count = self.started.values().filter(|started| !started.stalled).count();
        let WaitResource::Cores { device, .. } = task.wait.need else { return false };
        let hangs = |started: &StartedLane<J>| started.stalled && device.is_some() && started.device == device;
        count + usize::from(class > 0) < self.started_max && !self.started.values().any(hangs)
    }

    /// The computation of the lowest class, and its class. One that has started goes before the others of its class.
    fn shortest(&self) -> Option<(u8, ComputationTurn)> {
        let paused = self.started.iter().filter(|(_, started)| started.paused.is_some());
        let paused = paused.map(|(number, started)| (started.class, *number)).min();
        let mut waiting = self.waiting.iter().filter(|(place, task)| self.may_start(place.0, task));
        let waiting = waiting.next().map(|(place, _)| *place);
        match (paused, waiting) {
            (Some((class, number)), waiting) if waiting.is_none_or(|waiting| class <= waiting.0) => {
                Some((class, ComputationTurn::Resume(number)))
            }
            (_, waiting) => waiting.map(|place| (place.0, ComputationTurn::Start(place))),
        }
    }

    /// The computation that has waited longest.
    fn oldest(&self) -> Option<ComputationTurn> {
        let paused = self.started.iter().filter_map(|(number, started)| Some((started.paused?, *number))).min();
        let first = |class| {
            let mut waiting = self.waiting.range((class, 0)..=(class, u64::MAX));
            waiting.find(|(_, task)| self.may_start(class, task)).map(|(place, _)| *place)
        };
        let waiting = (0..CLASSES).filter_map(first).min_by_key(|place| place.1);
        match (paused, waiting) {
            (Some((pause, number)), waiting) if waiting.is_none_or(|waiting| pause < waiting.1) => {
                Some(ComputationTurn::Resume(number))
            }
            (_, waiting) => waiting.map(ComputationTurn::Start),
        }
    }

    /// Requests that the computation of the highest class pause, if one of a lower class waits. One computation at a
    /// time is being paused.
    fn request_pause(&mut self, now: Instant) {
        let pauses = |started: &StartedLane<J>| started.paused.is_some() && started.active > 0 && !started.stalled;
        if self.started.values().any(pauses) {
            return;
        }
        let Some((class, _)) = self.shortest() else { return };
        let pause = self.number();
        let running = self.started.values_mut().filter(|started| started.paused.is_none() && !started.stalled);
        let may_pause = running.filter(|started| started.class > class && started.until <= now);
        if let Some(started) = may_pause.max_by_key(|started| started.class) {
            started.paused = Some(pause);
            started.ticket.flagged.store(true, Ordering::Relaxed);
        }
    }
}

/// The class of a computation that reads that many bytes.
fn class(bytes: u64) -> u8 {
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
        assert_eq!([0, 1 << 20, (1 << 20) + 1, 8 << 20, 1 << 40, u64::MAX].map(class), [0, 0, 1, 1, 7, 7]);
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
    fn long_computation_pauses_for_short_ones_and_is_resumed() {
        let mut plan = SchedulePlan::new(1, 8);
        add(&mut plan, 0, computation(1 << 40, 0));
        let long = plan.next_computation(NOW()).unwrap();
        let ticket = long.ticket.unwrap();
        // Another one of the same class waits.
        add(&mut plan, 1, computation(1 << 41, 1));
        assert!(plan.next_computation(NOW()).is_none() && !ticket.flagged.load(Ordering::Relaxed));
        add(&mut plan, 2, computation(4, 2));
        assert!(plan.next_computation(NOW()).is_none() && ticket.flagged.load(Ordering::Relaxed));
        let pause = plan.pause(long.number).unwrap();
        assert!(!plan.is_resumed(long.number, pause));
        let short = plan.next_computation(NOW()).unwrap();
        assert_eq!(short.task.job, 2);
        plan.end(short.number, short.task.wait);
        assert!(plan.next_computation(NOW()).is_none());
        assert!(plan.is_resumed(long.number, pause) && plan.pause(long.number).is_none());
        plan.end(long.number, long.task.wait);
        assert_eq!(run_all(&mut plan), [1]);
    }

    #[test]
    fn computation_that_waited_longest_gets_a_slice() {
        let mut plan = SchedulePlan::new(1, 8);
        for job in 0..3 {
            add(&mut plan, job, computation(1, job));
        }
        add(&mut plan, 9, computation(1 << 40, 9));
        (0..3).for_each(|_| {
            let start = plan.next_computation(NOW()).unwrap();
            plan.end(start.number, start.task.wait);
        });
        let long = plan.next_computation(NOW()).unwrap();
        assert_eq!(long.task.job, 9);
        add(&mut plan, 4, computation(1, 4));
        let is_flagged = || long.ticket.as_ref().unwrap().flagged.load(Ordering::Relaxed);
        assert!(plan.next_computation(long_ago(&plan)).is_none() && !is_flagged());
        assert!(plan.next_computation(NOW() + SLICE).is_none() && is_flagged());
    }

    fn long_ago(plan: &SchedulePlan<u32>) -> Instant {
        plan.since
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
        plan.find_stalled(NOW() + 2 * STALLED_AFTER);
        let other = plan.next_computation(NOW()).unwrap();
        assert_eq!(other.task.job, 2);
        plan.end(other.number, other.task.wait);
        assert!(plan.next_computation(NOW()).is_none());
        // It checks its request again.
        assert!(hung.ticket.unwrap().flagged.load(Ordering::Relaxed) && plan.pause(hung.number).is_none());
        plan.end(hung.number, hung.task.wait);
        assert_eq!(run_all(&mut plan), [1]);
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
        assert_eq!((0..9).filter(|_| plan.acquire(long.number)).count(), 3);
        plan.release(long.number);
        add(&mut plan, 1, computation(1 << 40, 1));
        assert!(!plan.acquire(long.number), "another computation waits");
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
            let flagged: Vec<u64> = plan
                .started
                .iter()
                .filter(|(_, one)| one.paused.is_some() && one.active > 0)
                .map(|one| *one.0)
                .collect();
            flagged.into_iter().for_each(|number| assert!(plan.pause(number).is_some()));
            assert!(plan.started.len() <= 8 && plan.busy() <= 4);
        }
        assert!(started >= 4);
    }
}
