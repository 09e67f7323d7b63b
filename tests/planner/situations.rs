//! What the planner does in single situations, through its public interface.
use std::ops::Range;
use std::time::Duration;
use weightfs::remote::planner::{
    BLOCK, HostId, ObjectId, PartFailure, PartId, Planner, PlannerAction, PlannerEvent, PlannerLimits, TicketId,
};
use weightfs::source::FetchFailure;

const A: ObjectId = ObjectId(0);
const B: ObjectId = ObjectId(1);
const MIB: u64 = 1 << 20;
/// What is fetched ahead of a reader beyond four times what it has read, as long as nothing was measured.
const LEAD: u64 = 16 * MIB;

struct Caller {
    planner: Planner,
    now: Duration,
}

impl Caller {
    /// Two objects of 1 GiB and 100 bytes on two hosts.
    fn new(connections: usize) -> Self {
        let limits = PlannerLimits { connections, ..PlannerLimits::default() };
        let mut caller = Self { planner: Planner::new(limits, 1), now: Duration::ZERO };
        for (object, host) in [(A, HostId(0)), (B, HostId(1))] {
            caller.handle(PlannerEvent::Opened { object, len: (1 << 30) + 100, host });
        }
        caller
    }

    fn handle(&mut self, event: PlannerEvent) {
        self.planner.handle(self.now, event);
    }

    fn poll(&mut self) -> Vec<PlannerAction> {
        std::iter::from_fn(|| self.planner.poll(self.now)).collect()
    }

    fn after(&mut self, time: Duration) -> Vec<PlannerAction> {
        self.now += time;
        self.poll()
    }

    fn event(&mut self, event: PlannerEvent) -> Vec<PlannerAction> {
        self.handle(event);
        self.poll()
    }

    /// A read that is not sequential.
    fn queue(&mut self, ticket: u64, range: Range<u64>) {
        let ticket = TicketId(ticket);
        self.handle(PlannerEvent::Need { ticket, object: A, within: range.clone(), range });
    }

    fn need(&mut self, ticket: u64, range: Range<u64>) -> Vec<PlannerAction> {
        self.queue(ticket, range);
        self.poll()
    }

    fn read(&mut self, ticket: u64, range: Range<u64>, within: Range<u64>) -> Vec<PlannerAction> {
        let ticket = TicketId(ticket);
        self.event(PlannerEvent::Need { ticket, object: A, range, within })
    }
}

fn fetches(actions: &[PlannerAction]) -> Vec<(PartId, Range<u64>)> {
    let fetch = |action: &PlannerAction| match action {
        PlannerAction::Fetch { part, range, .. } => Some((*part, range.clone())),
        _ => None,
    };
    actions.iter().filter_map(fetch).collect()
}

fn ranges(actions: &[PlannerAction]) -> Vec<Range<u64>> {
    fetches(actions).into_iter().map(|(_, range)| range).collect()
}

/// The failure of a part that may be tried again, at once or when the host allows it.
fn transient(part: PartId, wait: Duration) -> PlannerEvent {
    let failure = FetchFailure::transient(format!("{part:?} broke"));
    PlannerEvent::Failed { part, failure: PartFailure { failure, retry: Some(wait) } }
}

fn ready(ticket: u64) -> PlannerAction {
    PlannerAction::Ready { ticket: TicketId(ticket) }
}

#[test]
fn tickets_for_the_same_blocks_wait_for_one_part() {
    let mut caller = Caller::new(4);
    let first = fetches(&caller.need(1, 10..100));
    assert_eq!(first.iter().map(|part| part.1.clone()).collect::<Vec<_>>(), [0..BLOCK]);
    assert!(caller.need(2, 5..BLOCK).is_empty());
    assert_eq!(caller.event(PlannerEvent::Received { part: first[0].0, bytes: BLOCK - 1 }), []);
    assert_eq!(caller.event(PlannerEvent::Received { part: first[0].0, bytes: 1 }), [ready(1), ready(2)]);
    assert_eq!(caller.event(PlannerEvent::Finished { part: first[0].0 }), []);
    assert_eq!(caller.need(3, 0..BLOCK), [ready(3)]);
}

#[test]
fn short_last_block_is_fetched_whole_and_reads_past_the_end_are_cut() {
    let mut caller = Caller::new(4);
    let parts = fetches(&caller.need(1, (1 << 30) + 7..u64::MAX));
    assert_eq!(parts[0].1, 1 << 30..(1 << 30) + 100);
    assert_eq!(caller.event(PlannerEvent::Received { part: parts[0].0, bytes: 100 }), [ready(1)]);
    assert_eq!(caller.need(2, u64::MAX - 1..u64::MAX), [ready(2)]);
}

#[test]
fn ticket_of_an_object_that_is_not_open_fails() {
    let mut caller = Caller::new(4);
    let failure = FetchFailure::lasting("not open");
    let need = PlannerEvent::Need { ticket: TicketId(1), object: ObjectId(9), range: 0..1, within: 0..1 };
    assert_eq!(caller.event(need), [PlannerAction::Fail { ticket: TicketId(1), failure: failure.clone() }]);
    let parts = fetches(&caller.need(2, 0..1));
    let closed = caller.event(PlannerEvent::Closed { object: A });
    assert_eq!(
        closed,
        [PlannerAction::Fail { ticket: TicketId(2), failure }, PlannerAction::Abort { part: parts[0].0 }]
    );
}

#[test]
fn further_tickets_fail_while_too_many_wait() {
    let mut caller = Caller::new(1);
    let most = PlannerLimits::default().tickets as u64;
    for ticket in 0..most {
        let at = ticket % 1000 * BLOCK;
        assert!(!caller.need(ticket, at..at + 1).iter().any(|action| matches!(action, PlannerAction::Fail { .. })));
    }
    let failure = FetchFailure::transient("too many reads wait already");
    let refused = [PlannerAction::Fail { ticket: TicketId(most), failure: failure.clone() }];
    assert_eq!(caller.need(most, 0..1), refused);
    assert_eq!(caller.event(PlannerEvent::Cancel { ticket: TicketId(most - 1) }), []);
    assert_ne!(caller.need(most, 0..1), refused);
    assert_eq!(caller.need(most + 1, 0..1), [PlannerAction::Fail { ticket: TicketId(most + 1), failure }]);
}

#[test]
fn needs_that_wait_for_a_connection_become_one_part() {
    let mut caller = Caller::new(1);
    let first = fetches(&caller.need(0, 900 * MIB..900 * MIB + 1));
    // Scattered, but without gaps.
    for at in [3, 1, 0, 2u64] {
        caller.queue(at + 1, at * 8 * BLOCK..(at + 1) * 8 * BLOCK);
    }
    let actions = caller.event(PlannerEvent::Finished { part: first[0].0 });
    assert_eq!(ranges(&actions), [24 * BLOCK..32 * BLOCK], "the oldest ticket, and what follows it");
    let actions = caller.event(PlannerEvent::Finished { part: fetches(&actions)[0].0 });
    assert_eq!(ranges(&actions), [8 * BLOCK..24 * BLOCK]);
}

#[test]
fn small_gaps_are_fetched_and_large_ones_are_not() {
    let mut caller = Caller::new(1);
    let first = fetches(&caller.need(0, 900 * MIB..900 * MIB + 1));
    // A gap of one block after three, and one of two after three.
    caller.queue(1, 0..3 * BLOCK);
    caller.queue(2, 4 * BLOCK..7 * BLOCK);
    caller.queue(3, 9 * BLOCK..12 * BLOCK);
    let actions = caller.event(PlannerEvent::Finished { part: first[0].0 });
    assert_eq!(ranges(&actions), [0..7 * BLOCK]);
    let actions = caller.event(PlannerEvent::Finished { part: fetches(&actions)[0].0 });
    assert_eq!(ranges(&actions), [9 * BLOCK..12 * BLOCK]);
    // A gap that takes longer to fetch than a request.
    caller.queue(4, 100 * MIB..200 * MIB);
    caller.queue(5, 205 * MIB..206 * MIB);
    let mut at = fetches(&actions)[0].0;
    let mut last = 0..0;
    while last.end < 200 * MIB {
        let actions = caller.event(PlannerEvent::Finished { part: at });
        (at, last) = fetches(&actions)[0].clone();
        assert!(last.end <= 200 * MIB, "{last:?}");
    }
}

#[test]
fn large_need_is_split_evenly_among_the_connections() {
    let mut caller = Caller::new(8);
    let actions = caller.need(1, 0..32 * MIB);
    let lens: Vec<_> = ranges(&actions).iter().map(|range| range.end - range.start).collect();
    assert_eq!(lens, [4 * MIB; 8]);
    // Something small is not split.
    let mut caller = Caller::new(8);
    assert_eq!(ranges(&caller.need(1, 0..MIB + BLOCK)), [0..MIB + BLOCK]);
}

#[test]
fn first_bytes_of_a_tensor_cost_one_block() {
    let mut caller = Caller::new(8);
    assert_eq!(ranges(&caller.read(1, 5..100, 5..900 * MIB)), [0..BLOCK]);
}

#[test]
fn read_ahead_grows_with_the_reader_and_ends_with_the_tensor() {
    let mut caller = Caller::new(8);
    let within = 10..50 * MIB;
    // What the reader has read, and what was fetched.
    let (mut at, mut end) = (MIB, 0);
    let mut actions = caller.read(1, 10..at, within.clone());
    let mut steps = 0;
    while end < within.end {
        let mut triggers = vec![];
        while !actions.is_empty() {
            let parts = fetches(&actions);
            end = parts.iter().map(|part| part.1.end).fold(end, u64::max);
            triggers.extend(actions.iter().filter_map(|action| match action {
                PlannerAction::Trigger { block, .. } => Some(block * BLOCK),
                _ => None,
            }));
            parts.iter().for_each(|(part, _)| caller.handle(PlannerEvent::Finished { part: *part }));
            actions = caller.poll();
        }
        assert!(end <= within.end && end - at <= 4 * at + LEAD, "{at} {end}");
        if end < within.end {
            assert!(at <= triggers[0], "{at} {triggers:?}");
            for block in triggers {
                at = block + BLOCK;
                actions = caller.event(PlannerEvent::Touched { object: A, range: block..at, within: within.clone() });
                if !actions.is_empty() {
                    break;
                }
            }
            assert!(!actions.is_empty() && at < end - (end - at) / 4, "the read-ahead must be extended in time");
            steps += 1;
        }
    }
    assert_eq!(end, within.end.div_ceil(BLOCK) * BLOCK, "the last block of the tensor, and nothing after it");
    assert!((2..8).contains(&steps), "{steps}");
}

#[test]
fn rest_of_a_tensor_that_is_no_longer_than_the_lead_is_fetched_too() {
    // The first read, and the end of what is then fetched of a tensor of this size.
    let end = |read: Range<u64>, tensor: u64| {
        let ranges = ranges(&Caller::new(64).read(1, read, 0..tensor));
        ranges.iter().map(|range| range.end).max().unwrap()
    };
    let first = 2 * BLOCK;
    assert_eq!(end(0..first, 2 * LEAD), 2 * LEAD);
    assert_eq!(end(0..first, 3 * LEAD), first + 4 * first + LEAD);
    assert_eq!(end(0..1, 2 * LEAD), BLOCK, "a look at the first bytes costs one block");
    // A reader that does not begin at the start may want a few rows.
    assert_eq!(end(BLOCK..BLOCK + first, 2 * LEAD), BLOCK + first);
}

#[test]
fn a_connection_is_kept_free_from_read_ahead() {
    let mut caller = Caller::new(4);
    let parts = fetches(&caller.read(1, 0..64 * MIB, 0..900 * MIB));
    assert_eq!(parts.len(), 4);
    let mut actions: Vec<_> =
        parts.iter().flat_map(|part| caller.event(PlannerEvent::Finished { part: part.0 })).collect();
    actions.retain(|action| matches!(action, PlannerAction::Fetch { .. }));
    assert_eq!(actions.len(), 3, "{actions:?}");
    assert_eq!(ranges(&caller.need(2, 950 * MIB..950 * MIB + 1)).len(), 1);
}

#[test]
fn cancelled_ticket_aborts_only_what_nobody_needs() {
    let mut caller = Caller::new(4);
    let cancel = |ticket| PlannerEvent::Cancel { ticket: TicketId(ticket) };
    let parts = fetches(&caller.need(1, 0..MIB));
    caller.need(2, 100..200);
    assert_eq!(caller.event(cancel(1)), []);
    assert_eq!(caller.event(cancel(2)), [PlannerAction::Abort { part: parts[0].0 }]);
    assert_eq!(caller.event(cancel(2)), []);
    // What is nearly done is received, as the connection would be lost.
    let parts = fetches(&caller.need(3, 0..MIB));
    caller.event(PlannerEvent::Received { part: parts[0].0, bytes: MIB - 5 });
    assert_eq!(caller.event(cancel(3)), []);
    caller.event(PlannerEvent::Finished { part: parts[0].0 });
    assert_eq!(caller.need(4, 0..MIB), [ready(4)]);
    // A reader that has gone needs no read-ahead either.
    let parts = fetches(&caller.read(5, 100 * MIB..140 * MIB, 100 * MIB..900 * MIB));
    let aborted = caller.event(cancel(5));
    assert_eq!(aborted.len(), parts.len(), "{aborted:?}");
    assert!(aborted.iter().all(|action| matches!(action, PlannerAction::Abort { .. })));
}

#[test]
fn reset_is_resumed_at_the_first_missing_block() {
    let mut caller = Caller::new(4);
    let parts = fetches(&caller.need(1, 0..MIB));
    caller.event(PlannerEvent::Received { part: parts[0].0, bytes: 3 * BLOCK + 9 });
    assert_eq!(caller.event(transient(parts[0].0, Duration::ZERO)), []);
    // Its blocks are still reserved.
    assert_eq!(caller.need(2, 4 * BLOCK..5 * BLOCK), []);
    let again = fetches(&caller.after(Duration::from_millis(100)));
    assert_eq!(again[0].1, 3 * BLOCK..MIB);
    assert_ne!(again[0].0, parts[0].0);
    assert_eq!(caller.event(PlannerEvent::Finished { part: parts[0].0 }), [], "the old part has ended");
    assert_eq!(caller.event(PlannerEvent::Finished { part: again[0].0 }), [ready(1), ready(2)]);
}

#[test]
fn retry_after_pauses_all_parts_of_that_host_only() {
    let mut caller = Caller::new(4);
    let parts = fetches(&caller.need(1, 0..1));
    let running = fetches(&caller.need(2, 9 * MIB..9 * MIB + 1));
    assert_eq!(caller.event(transient(parts[0].0, Duration::from_secs(7))), []);
    assert_eq!(caller.need(3, 5 * MIB..6 * MIB), []);
    let other = PlannerEvent::Need { ticket: TicketId(4), object: B, range: 0..1, within: 0..0 };
    assert_eq!(fetches(&caller.event(other)).len(), 1);
    assert_eq!(caller.event(PlannerEvent::Finished { part: running[0].0 }), [ready(2)]);
    assert_eq!(caller.after(Duration::from_millis(6999)), []);
    assert!(caller.planner.wake_at().unwrap() <= Duration::from_millis(7200));
    assert_eq!(fetches(&caller.after(Duration::from_millis(201))).len(), 2);
}

#[test]
fn final_failure_reaches_exactly_the_tickets_of_the_part() {
    let mut caller = Caller::new(2);
    let parts = fetches(&caller.need(1, 0..4 * BLOCK));
    caller.need(2, 2 * BLOCK..3 * BLOCK);
    let other = fetches(&caller.need(3, 9 * MIB..10 * MIB));
    assert_eq!(caller.event(PlannerEvent::Received { part: parts[0].0, bytes: 3 * BLOCK }), [ready(2)]);
    let failure = FetchFailure::lasting("the file is gone");
    let failed = PartFailure { failure: failure.clone(), retry: None };
    let actions = caller.event(PlannerEvent::Failed { part: parts[0].0, failure: failed });
    assert_eq!(actions, [PlannerAction::Fail { ticket: TicketId(1), failure }]);
    assert_eq!(caller.event(PlannerEvent::Finished { part: other[0].0 }), [ready(3)]);
    // A failure is not remembered.
    assert_eq!(ranges(&caller.need(4, 3 * BLOCK..4 * BLOCK)), [3 * BLOCK..4 * BLOCK]);
}

#[test]
fn ticket_times_out_without_progress_and_not_with_it() {
    let mut caller = Caller::new(4);
    let mut part = fetches(&caller.need(1, 0..20 * BLOCK))[0].0;
    for _ in 0..19 {
        // Slow, but alive.
        assert_eq!(caller.after(Duration::from_secs(9)), []);
        caller.event(PlannerEvent::Received { part, bytes: BLOCK });
    }
    let mut tries = 0;
    let end = caller.now + Duration::from_secs(60);
    let failed = loop {
        caller.now = caller.planner.wake_at().unwrap();
        let actions = caller.poll();
        if let Some(PlannerAction::Fail { ticket, failure }) =
            actions.iter().find(|action| matches!(action, PlannerAction::Fail { .. }))
        {
            break (*ticket, failure.clone());
        }
        for (next, _) in fetches(&actions) {
            (part, tries) = (next, tries + 1);
            caller.handle(transient(part, Duration::ZERO));
        }
    };
    assert_eq!(caller.now, end);
    let why = FetchFailure::transient(format!("nothing arrived for 60 s: {part:?} broke"));
    assert_eq!(failed, (TicketId(1), why));
    assert!((10..=30).contains(&tries), "{tries}");
    assert_eq!(caller.after(Duration::from_secs(60)), []);
    assert_eq!(caller.planner.wake_at(), None);
}

#[test]
fn ticket_times_out_while_bytes_drip() {
    let mut caller = Caller::new(4);
    let mut part = fetches(&caller.need(1, 0..BLOCK))[0].0;
    for second in 1..60 {
        // One byte in each, also from the connections that replace those that have stalled.
        if let Some((next, _)) = fetches(&caller.after(Duration::from_secs(1))).first() {
            part = *next;
        }
        assert_eq!(caller.event(PlannerEvent::Received { part, bytes: 1 }), [], "{second}");
    }
    let failed = caller.after(Duration::from_secs(1));
    assert!(matches!(failed[0], PlannerAction::Fail { ticket: TicketId(1), .. }), "{failed:?}");
}

#[test]
fn stalled_part_is_aborted_and_tried_again() {
    let mut caller = Caller::new(4);
    let part = fetches(&caller.need(1, 0..BLOCK))[0].0;
    assert_eq!(caller.after(Duration::from_millis(9999)), []);
    assert_eq!(caller.after(Duration::from_millis(1)), [PlannerAction::Abort { part }]);
    let again = fetches(&caller.after(Duration::from_millis(100)));
    assert_eq!(again[0].1, 0..BLOCK);
}

#[test]
fn host_that_is_down_is_not_asked_for_each_ticket() {
    let mut caller = Caller::new(4);
    let mut running: Vec<_> = (0..1000).flat_map(|at| fetches(&caller.need(at, at * MIB..at * MIB + 1))).collect();
    let mut tries = 0;
    while caller.now < Duration::from_secs(30) {
        tries += running.len();
        running.drain(..).for_each(|(part, _)| caller.handle(transient(part, Duration::ZERO)));
        running = fetches(&caller.poll());
        if running.is_empty() {
            caller.now = caller.planner.wake_at().unwrap();
            running = fetches(&caller.poll());
        }
    }
    assert!((10..120).contains(&tries), "{tries}");
}

#[test]
fn read_ahead_that_nobody_waits_for_is_not_tried_forever() {
    let mut caller = Caller::new(4);
    let mut parts = fetches(&caller.read(1, 0..2 * MIB, 0..8 * MIB));
    let mut tries = 0;
    while tries < 100 {
        for (part, range) in parts.drain(..) {
            let event = if range.start < 2 * MIB {
                PlannerEvent::Finished { part }
            } else {
                tries += 1;
                transient(part, Duration::ZERO)
            };
            caller.handle(event);
        }
        parts = fetches(&caller.poll());
        if parts.is_empty() {
            let Some(at) = caller.planner.wake_at() else { break };
            caller.now = at;
            parts = fetches(&caller.poll());
        }
    }
    assert!((3..20).contains(&tries), "{tries}");
    // The reader is served when it comes there.
    assert!(!fetches(&caller.read(2, 7 * MIB..8 * MIB, 0..8 * MIB)).is_empty());
}

#[test]
fn blocks_of_another_process_are_not_fetched() {
    let mut caller = Caller::new(4);
    caller.handle(PlannerEvent::Present { object: A, blocks: 2..4 });
    assert_eq!(ranges(&caller.need(1, 0..6 * BLOCK)), [0..2 * BLOCK, 4 * BLOCK..6 * BLOCK]);
    assert_eq!(caller.event(PlannerEvent::Present { object: A, blocks: 0..9 }), [ready(1)]);
    caller.handle(PlannerEvent::Evicted { object: A, blocks: 2..3 });
    assert_eq!(ranges(&caller.need(2, 0..6 * BLOCK)), [2 * BLOCK..3 * BLOCK]);
}

#[test]
fn idle_reader_gives_its_read_ahead_up() {
    let limits = PlannerLimits { connections: 4, ahead_total: 64 * MIB, ..PlannerLimits::default() };
    let mut caller = Caller { planner: Planner::new(limits, 1), now: Duration::ZERO };
    caller.handle(PlannerEvent::Opened { object: A, len: 1 << 30, host: HostId(0) });
    let first = fetches(&caller.read(1, 0..32 * MIB, 0..500 * MIB));
    // The budget is used up. The first reader still reads, so the second one gets nothing ahead.
    let second = |caller: &mut Caller, ticket| {
        let at = 500 * MIB + (ticket - 2) * 4 * MIB;
        caller.read(ticket, at..at + 4 * MIB, 500 * MIB..1000 * MIB)
    };
    assert!(ranges(&second(&mut caller, 2)).iter().all(|range| range.end <= 504 * MIB));
    caller.now += Duration::from_secs(3);
    let actions = second(&mut caller, 3);
    assert!(actions.iter().any(|action| matches!(action, PlannerAction::Abort { .. })), "{first:?} {actions:?}");
    assert!(ranges(&actions).iter().any(|range| range.end > 508 * MIB), "{actions:?}");
}

#[test]
fn read_ahead_that_is_evicted_is_not_fetched_again() {
    let mut caller = Caller::new(1);
    let mut parts = fetches(&caller.read(1, 0..100 * MIB, 0..900 * MIB));
    let mut bytes = 0;
    for _ in 0..100 {
        for (part, range) in parts.drain(..) {
            bytes += range.end.saturating_sub(range.start.max(100 * MIB));
            caller.handle(PlannerEvent::Finished { part });
            caller.handle(PlannerEvent::Evicted { object: A, blocks: 1600..range.end / BLOCK });
        }
        parts = fetches(&caller.poll());
    }
    assert_eq!(bytes, 400 * MIB + LEAD, "each block of the window once");
}

#[test]
fn connections_that_always_break_inside_a_block_time_out() {
    let mut caller = Caller::new(4);
    let mut actions = caller.need(1, 0..2 * BLOCK);
    for _ in 0..1000 {
        for action in std::mem::take(&mut actions) {
            match action {
                PlannerAction::Fetch { part, .. } => {
                    caller.handle(PlannerEvent::Received { part, bytes: BLOCK / 2 });
                    caller.handle(transient(part, Duration::ZERO));
                }
                PlannerAction::Fail { failure, .. } => {
                    return assert!(failure.reason.starts_with("nothing arrived for 60 s"), "{failure:?}");
                }
                other => panic!("{other:?}"),
            }
        }
        caller.now = caller.now.max(caller.planner.wake_at().unwrap());
        actions = caller.poll();
    }
    panic!("no end after {:?}", caller.now);
}
