//! Runs a job with the planner. Checks on the way that no block is fetched twice at a time.

use super::Outcome;
use super::job::{Access, Job, MOUNT, Reader};
use super::network::{Network, Report, Wire};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;
use weightfs::remote::planner::{
    BLOCK, HostId, ObjectId, PartFailure, PartId, Planner, PlannerAction, PlannerEvent, PlannerLimits, TicketId,
};
use weightfs::source::FetchFailure;

struct Running {
    reader: Reader,
    issued: usize,
    consumed: usize,
    has_arrived: Vec<bool>,
    /// When the program has taken the bytes of the access that it reads now.
    busy_until: Option<Duration>,
    answers: Vec<Duration>,
}

pub struct World {
    now: Duration,
    planner: Planner,
    wire: Wire,
    readers: Vec<Running>,
    present: BTreeSet<(u32, u64)>,
    triggers: BTreeSet<(u32, u64)>,
    parts: BTreeMap<PartId, (u32, Range<u64>)>,
    tickets: BTreeMap<TicketId, (usize, usize)>,
    ticket: u64,
    outcome: Outcome,
}

/// Runs a job, at most for an hour of its time.
pub fn run(job: &Job, network: &Network, limits: &PlannerLimits) -> Outcome {
    let mut planner = Planner::new(limits.clone(), 1);
    for (object, len) in job.objects.iter().enumerate() {
        let opened = PlannerEvent::Opened { object: ObjectId(object as u32), len: *len, host: HostId(0) };
        planner.handle(Duration::ZERO, opened);
    }
    let running = |reader: &Reader| {
        let count = reader.accesses.len();
        let (reader, answers) = (reader.clone(), vec![Duration::ZERO; count]);
        Running { reader, issued: 0, consumed: 0, has_arrived: vec![false; count], busy_until: None, answers }
    };
    let (present, triggers, parts, tickets) = Default::default();
    let mut world = World {
        now: Duration::ZERO,
        planner,
        wire: Wire::new(network.clone(), 3),
        readers: job.readers.iter().map(running).collect(),
        present,
        triggers,
        parts,
        tickets,
        ticket: 0,
        outcome: Outcome::default(),
    };
    world.run();
    world.outcome
}

impl World {
    fn run(&mut self) {
        loop {
            (0..self.readers.len()).for_each(|at| self.read(at));
            while let Some(action) = self.planner.poll(self.now) {
                self.act(action);
            }
            if self.readers.iter().all(|running| running.consumed == running.reader.accesses.len()) {
                break;
            }
            let readers = self.readers.iter().flat_map(|running| {
                let start = Some(running.reader.start).filter(|start| *start > self.now);
                running.busy_until.into_iter().chain(start)
            });
            let wire = self.wire.next_at();
            let next = readers.chain(wire).chain(self.planner.wake_at()).min();
            let next = next.expect("a job that is not done has an event").max(self.now);
            assert!(next < Duration::from_secs(3600), "the job does not end");
            self.now = next;
            if wire == Some(next)
                && let Some((id, report)) = self.wire.advance()
            {
                self.report(PartId(id), report);
            }
        }
        self.outcome.time = self.now;
        // What is in flight when the job ends is fetched as well.
        let rest: u64 = self.parts.values().map(|(_, range)| range.end - range.start).sum();
        self.outcome.bytes = self.wire.sent + rest;
        self.outcome.requests = self.wire.total_requests;
        self.outcome.connections = self.wire.most;
        self.outcome.answers = self.readers.iter().map(|running| running.answers.clone()).collect();
    }

    /// Lets a reader take what arrived, and read on.
    fn read(&mut self, at: usize) {
        loop {
            let now = self.now;
            let running = &mut self.readers[at];
            if now < running.reader.start {
                return;
            }
            if running.busy_until.is_some_and(|until| until <= now) {
                running.busy_until = None;
                running.consumed += 1;
            }
            let consumed = running.consumed;
            if running.busy_until.is_none() && running.has_arrived.get(consumed) == Some(&true) {
                let range = &running.reader.accesses[consumed].range;
                let time = Duration::from_secs_f64((range.end - range.start) as f64 / MOUNT);
                running.busy_until = Some(now + time.max(Duration::from_nanos(1)));
            }
            let next = running.reader.accesses.get(running.issued).cloned();
            let may_issue = |access: &Access| {
                running.issued < consumed + running.reader.depth && (!access.is_dependent || running.issued == consumed)
            };
            let Some(access) = next.filter(may_issue) else { return };
            let index = running.issued;
            running.issued += 1;
            self.issue(at, index, &access);
        }
    }

    fn issue(&mut self, reader: usize, index: usize, access: &Access) {
        let (now, object) = (self.now, ObjectId(access.object));
        let blocks = access.range.start / BLOCK..access.range.end.div_ceil(BLOCK);
        let triggers = blocks.clone().filter(|block| self.triggers.remove(&(access.object, *block))).count();
        if triggers > 0 {
            let (range, within) = (access.range.clone(), access.within.clone());
            self.planner.handle(now, PlannerEvent::Touched { object, range, within });
        }
        let mut absent = blocks.filter(|block| !self.present.contains(&(access.object, *block)));
        let Some(first) = absent.next() else {
            return self.arrive(reader, index);
        };
        let end = absent.next_back().unwrap_or(first) + 1;
        let range = access.range.start.max(first * BLOCK)..access.range.end.min(end * BLOCK);
        self.ticket += 1;
        let ticket = TicketId(self.ticket);
        self.tickets.insert(ticket, (reader, index));
        self.planner.handle(now, PlannerEvent::Need { ticket, object, range, within: access.within.clone() });
    }

    fn arrive(&mut self, reader: usize, index: usize) {
        self.readers[reader].has_arrived[index] = true;
        self.readers[reader].answers[index] = self.now;
    }

    fn act(&mut self, action: PlannerAction) {
        match action {
            PlannerAction::Fetch { part, object, range } => {
                for (other, flying) in self.parts.values() {
                    let overlaps = flying.start < range.end && range.start < flying.end;
                    assert!(*other != object.0 || !overlaps, "{flying:?} is in flight, and so is {range:?}");
                }
                self.wire.request(self.now, part.0, range.end - range.start);
                self.parts.insert(part, (object.0, range));
            }
            PlannerAction::Abort { part } => {
                self.wire.abort(part.0);
                self.parts.remove(&part);
            }
            PlannerAction::Ready { ticket } => {
                let (reader, index) = self.tickets.remove(&ticket).expect("a ticket is answered once");
                let access = &self.readers[reader].reader.accesses[index];
                let mut blocks = access.range.start / BLOCK..access.range.end.div_ceil(BLOCK);
                assert!(blocks.all(|block| self.present.contains(&(access.object, block))), "{access:?} is not there");
                self.arrive(reader, index);
                self.read(reader);
            }
            PlannerAction::Fail { ticket, .. } => {
                let (reader, index) = self.tickets.remove(&ticket).expect("a ticket is answered once");
                self.outcome.failed += 1;
                self.arrive(reader, index);
                self.read(reader);
            }
            PlannerAction::Trigger { object, block } => {
                self.triggers.insert((object.0, block));
            }
        }
    }

    fn report(&mut self, part: PartId, report: Report) {
        let now = self.now;
        match report {
            Report::Received(bytes) => {
                let Some((object, range)) = self.parts.get_mut(&part) else { return };
                let start = range.start;
                range.start += bytes;
                // A short block at the end counts when the part is finished.
                let end = if range.is_empty() { range.end.div_ceil(BLOCK) } else { range.start / BLOCK };
                self.present.extend((start / BLOCK..end).map(|block| (*object, block)));
                self.planner.handle(now, PlannerEvent::Received { part, bytes });
                if self.wire.end(now, part.0) {
                    self.parts.remove(&part);
                    self.planner.handle(now, PlannerEvent::Finished { part });
                }
            }
            Report::Reset => self.fail(part, None),
            Report::Refused(time) => self.fail(part, Some(time)),
        }
    }

    fn fail(&mut self, part: PartId, retry_after: Option<Duration>) {
        self.parts.remove(&part);
        let failure = FetchFailure::transient("the connection broke");
        let failure = PartFailure { failure, retry: Some(retry_after.unwrap_or_default()) };
        self.planner.handle(self.now, PlannerEvent::Failed { part, failure });
    }
}
