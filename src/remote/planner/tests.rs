//! Arbitrary sequences of events against a model of the caller, which checks every action.

use super::*;
use proptest::prelude::*;

const LIMITS: PlannerLimits = PlannerLimits {
    connections: 3,
    part_max: 8 * BLOCK,
    ahead_max: 24 * BLOCK,
    ahead_total: 32 * BLOCK,
    tickets: usize::MAX,
    timeout: Duration::from_secs(20),
    stall: Duration::from_secs(5),
};

/// Lengths of the objects. The last block of most of them is short.
const LENGTHS: [u64; 4] = [40 * BLOCK, 31 * BLOCK + 1, 100 * BLOCK - 1, 5];

#[derive(Debug, Clone)]
enum Op {
    Event(PlannerEvent),
    /// An event of one of the parts in flight.
    Progress(usize, u64),
    Finish(usize),
    Fail(usize, PartFailure),
    Wait(Duration),
}

/// The caller: what it holds, and what it still expects.
struct Caller {
    planner: Planner,
    now: Duration,
    open: BTreeSet<ObjectId>,
    present: BTreeSet<(ObjectId, u64)>,
    tickets: BTreeMap<TicketId, (ObjectId, Range<u64>)>,
    /// The object, the bytes that are missing, and the host.
    parts: BTreeMap<PartId, (ObjectId, Range<u64>)>,
    /// Blocks in which read-ahead is allowed.
    within: BTreeSet<(ObjectId, u64)>,
    asked: BTreeSet<(ObjectId, u64)>,
    failed: usize,
}

fn host(object: ObjectId) -> HostId {
    HostId(object.0 / 2)
}

fn blocks(object: ObjectId, bytes: &Range<u64>) -> Range<u64> {
    let end = bytes.end.min(LENGTHS[object.0 as usize]);
    if bytes.start < end { bytes.start / BLOCK..end.div_ceil(BLOCK) } else { 0..0 }
}

impl Caller {
    fn new(limits: PlannerLimits, seed: u64) -> Self {
        let (open, present, tickets, parts, within, asked) = Default::default();
        let planner = Planner::new(limits, seed);
        Self { planner, now: Duration::ZERO, open, present, tickets, parts, within, asked, failed: 0 }
    }

    fn apply(&mut self, op: Op) {
        let part = |caller: &Self, at: usize| caller.parts.keys().nth(at % caller.parts.len().max(1)).copied();
        match op {
            Op::Event(event) => self.event(event),
            Op::Wait(time) => self.now += time,
            Op::Progress(at, bytes) => {
                if let Some(part) = part(self, at) {
                    self.event(PlannerEvent::Received { part, bytes });
                }
            }
            Op::Finish(at) => {
                if let Some(part) = part(self, at) {
                    self.event(PlannerEvent::Finished { part });
                }
            }
            Op::Fail(at, failure) => {
                if let Some(part) = part(self, at) {
                    self.event(PlannerEvent::Failed { part, failure });
                }
            }
        }
        self.poll();
    }

    fn event(&mut self, event: PlannerEvent) {
        self.planner.handle(self.now, event.clone());
        match event {
            PlannerEvent::Opened { object, .. } => drop(self.open.insert(object)),
            PlannerEvent::Closed { object } => {
                self.open.remove(&object);
                self.present.retain(|(other, _)| *other != object);
            }
            PlannerEvent::Need { ticket, object, range, within } => {
                if !self.open.contains(&object) || self.tickets.contains_key(&ticket) {
                    // It fails at once, or it is a duplicate and ignored.
                    self.tickets.entry(ticket).or_insert((object, 0..0));
                    return;
                }
                self.within.extend(blocks(object, &within).map(|block| (object, block)));
                let blocks = blocks(object, &range);
                self.asked.extend(blocks.clone().map(|block| (object, block)));
                self.tickets.insert(ticket, (object, blocks));
            }
            PlannerEvent::Cancel { ticket } => drop(self.tickets.remove(&ticket)),
            PlannerEvent::Touched { object, range, within } => {
                self.within.extend(blocks(object, &within).map(|block| (object, block)));
                self.asked.extend(blocks(object, &range).map(|block| (object, block)));
            }
            PlannerEvent::Present { object, blocks: range } => {
                let count = LENGTHS[object.0 as usize].div_ceil(BLOCK);
                if self.open.contains(&object) {
                    self.present.extend((range.start..range.end.min(count)).map(|block| (object, block)));
                }
            }
            PlannerEvent::Evicted { object, blocks: range } => {
                self.present.retain(|(other, block)| *other != object || !range.contains(block));
            }
            PlannerEvent::Received { part, bytes } | PlannerEvent::Skipped { part, bytes } => self.receive(part, bytes),
            PlannerEvent::Finished { part } => {
                self.receive(part, u64::MAX);
                self.parts.remove(&part);
            }
            PlannerEvent::Failed { part, .. } => {
                self.failed += usize::from(self.parts.remove(&part).is_some());
            }
        }
    }

    fn receive(&mut self, part: PartId, bytes: u64) {
        let Some((object, range)) = self.parts.get_mut(&part).filter(|(_, range)| !range.is_empty()) else { return };
        let first = range.start / BLOCK;
        range.start += bytes.min(range.end - range.start);
        let end = if range.is_empty() { range.end.div_ceil(BLOCK) } else { range.start / BLOCK };
        self.present.extend((first..end).map(|block| (*object, block)));
    }

    /// Carries out all actions, and checks them.
    fn poll(&mut self) {
        while let Some(action) = self.planner.poll(self.now) {
            self.act(action);
        }
        assert!(self.planner.wake_at().is_none_or(|at| at > self.now), "it must be polled again at once");
    }

    fn act(&mut self, action: PlannerAction) {
        match action {
            PlannerAction::Fetch { part, object, range } => {
                assert!(self.open.contains(&object));
                assert!(!range.is_empty() && range.start % BLOCK == 0 && range.end <= LENGTHS[object.0 as usize]);
                assert!(range.end % BLOCK == 0 || range.end == LENGTHS[object.0 as usize]);
                assert!(range.end - range.start <= self.planner.limits.part_max);
                for (other, flying) in self.parts.values() {
                    // A block counts as received when all of it was received.
                    let first = flying.start / BLOCK * BLOCK;
                    assert!(*other != object || flying.is_empty() || flying.end <= range.start || range.end <= first);
                }
                let blocks = blocks(object, &range);
                let count = blocks.end - blocks.start;
                let all: Vec<_> = blocks.clone().map(|block| (object, block)).collect();
                assert!(all.iter().all(|block| !self.present.contains(block)), "{range:?} is present");
                let has_ticket = self.tickets.values().any(|(other, waiting)| {
                    *other == object && waiting.start < blocks.end && blocks.start < waiting.end
                });
                let beyond = all.iter().filter(|block| !self.within.contains(*block) && !self.asked.contains(*block));
                assert!(beyond.count() as u64 <= if has_ticket { count / GAP } else { 0 });
                self.parts.insert(part, (object, range));
                let same = self.parts.values().filter(|(other, _)| host(*other) == host(object));
                assert!(same.count() <= self.planner.limits.connections);
            }
            PlannerAction::Abort { part } => assert!(self.parts.remove(&part).is_some(), "{part:?} is not in flight"),
            PlannerAction::Ready { ticket } => {
                let (object, blocks) = self.tickets.remove(&ticket).expect("answered once");
                assert!(blocks.into_iter().all(|block| self.present.contains(&(object, block))));
            }
            PlannerAction::Fail { ticket, .. } => {
                self.tickets.remove(&ticket).expect("answered once");
                self.failed += 1;
            }
            PlannerAction::Trigger { object, block } => assert!(self.present.contains(&(object, block))),
        }
    }

    /// Lets the network answer everything. All tickets must be answered.
    fn finish(&mut self) {
        for _ in 0..10_000 {
            self.poll();
            if self.tickets.is_empty() && self.parts.is_empty() {
                break;
            }
            match self.parts.keys().next().copied() {
                Some(part) => self.event(PlannerEvent::Finished { part }),
                None => self.now = self.planner.wake_at().expect("what waits has a timer"),
            }
        }
        assert!(self.tickets.is_empty(), "no answer: {:?}", self.tickets);
        assert!(self.parts.is_empty());
    }

    /// Closes everything. Nothing may be left.
    fn close(&mut self) {
        for object in 0..LENGTHS.len() as u32 {
            self.event(PlannerEvent::Closed { object: ObjectId(object) });
            self.poll();
        }
        self.now += Duration::from_secs(1 << 20);
        self.poll();
        let planner = &self.planner;
        assert!(planner.objects.is_empty() && planner.tickets.is_empty() && planner.parts.is_empty());
        assert!(planner.timers.is_empty() && planner.actions.is_empty() && planner.runs.is_empty());
        for host in planner.hosts.values() {
            assert!(host.queue.is_empty() && host.ahead.is_empty());
        }
    }
}

/// Of the blocks of a part, at most one in this many lies in gaps.
const GAP: u64 = 4;

fn object() -> impl Strategy<Value = ObjectId> {
    (0..LENGTHS.len() as u32).prop_map(ObjectId)
}

fn bytes() -> impl Strategy<Value = Range<u64>> {
    let start = (0..104 * BLOCK).prop_union(0..6 * BLOCK);
    let usual = (start, 0..20 * BLOCK).prop_map(|(start, len)| start..start + len);
    let odd = prop_oneof![
        Just(0..u64::MAX),
        Just(u64::MAX..u64::MAX),
        Just(Range { start: 9, end: 3 }),
        Just(u64::MAX - 1..u64::MAX)
    ];
    prop_oneof![20 => usual, 1 => odd]
}

fn failure() -> impl Strategy<Value = PartFailure> {
    let retry = prop_oneof![
        3 => Just(Some(Duration::ZERO)),
        1 => (0..40u64).prop_map(|time| Some(Duration::from_secs(time))),
        1 => Just(None),
    ];
    retry.prop_map(|retry| PartFailure { failure: FetchFailure::transient("broken"), retry })
}

fn opened(object: ObjectId) -> PlannerEvent {
    PlannerEvent::Opened { object, len: LENGTHS[object.0 as usize], host: host(object) }
}

/// Reads one after the other, as well as anywhere.
fn need() -> impl Strategy<Value = Op> {
    let anywhere = (0..40u64, object(), bytes(), bytes());
    let anywhere = anywhere.prop_map(|(ticket, object, range, within)| (ticket, object, range, within));
    let sequential = (0..40u64, object(), 0..40u64, 1..3u64)
        .prop_map(|(ticket, object, at, len)| (ticket, object, at * 2 * BLOCK..(at + len) * 2 * BLOCK, 0..60 * BLOCK));
    prop_oneof![anywhere, sequential].prop_map(|(ticket, object, range, within)| {
        Op::Event(PlannerEvent::Need { ticket: TicketId(ticket), object, range, within })
    })
}

fn reliable() -> impl Strategy<Value = Op> {
    let blocks = || (0..100u64, 0..9u64).prop_map(|(start, len)| start..start + len);
    prop_oneof![
        8 => need(),
        2 => (0..40u64).prop_map(|ticket| Op::Event(PlannerEvent::Cancel { ticket: TicketId(ticket) })),
        2 => (object(), bytes(), bytes()).prop_map(|(object, range, within)| Op::Event(PlannerEvent::Touched { object, range, within })),
        1 => (object(), blocks()).prop_map(|(object, blocks)| Op::Event(PlannerEvent::Present { object, blocks })),
        1 => (object(), blocks()).prop_map(|(object, blocks)| Op::Event(PlannerEvent::Evicted { object, blocks })),
        8 => (any::<usize>(), 0..5 * BLOCK).prop_map(|(at, bytes)| Op::Progress(at, bytes)),
        4 => any::<usize>().prop_map(Op::Finish),
        2 => (0..100u64).prop_map(|time| Op::Wait(Duration::from_millis(time))),
    ]
}

fn hostile() -> impl Strategy<Value = Op> {
    let stale = (0..200u64).prop_map(PartId);
    prop_oneof![
        12 => reliable(),
        2 => (any::<usize>(), failure()).prop_map(|(at, failure)| Op::Fail(at, failure)),
        1 => object().prop_map(|object| Op::Event(opened(object))),
        1 => object().prop_map(|object| Op::Event(PlannerEvent::Closed { object })),
        1 => (0..30u64).prop_map(|time| Op::Wait(Duration::from_secs(time))),
        1 => (stale.clone(), any::<u64>()).prop_map(|(part, bytes)| Op::Event(PlannerEvent::Received { part, bytes })),
        1 => stale.clone().prop_map(|part| Op::Event(PlannerEvent::Finished { part })),
        1 => (stale, failure()).prop_map(|(part, failure)| Op::Event(PlannerEvent::Failed { part, failure })),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_for_any_events(
        ops in prop::collection::vec(hostile(), 1..150),
        connections in 0usize..5,
        seed in any::<u64>(),
    ) {
        let mut caller = Caller::new(PlannerLimits { connections, ..LIMITS }, seed);
        (0..3).for_each(|object| caller.event(opened(ObjectId(object))));
        ops.into_iter().for_each(|op| caller.apply(op));
        caller.finish();
        caller.close();
    }

    #[test]
    fn all_tickets_are_ready_if_nothing_fails(ops in prop::collection::vec(reliable(), 1..200)) {
        let mut caller = Caller::new(LIMITS, 1);
        (0..4).for_each(|object| caller.event(opened(ObjectId(object))));
        ops.into_iter().for_each(|op| caller.apply(op));
        caller.finish();
        prop_assert_eq!(caller.failed, 0);
        caller.close();
    }
}
