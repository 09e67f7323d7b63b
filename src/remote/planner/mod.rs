//! Plans which byte ranges of remote objects to fetch next. Has no network, files, clock or threads: the caller
//! reports events with their time, and carries out actions.
//!
//! A reader that finds absent blocks sends [`PlannerEvent::Need`] with a ticket, and the planner answers each ticket
//! once, with [`PlannerAction::Ready`] or [`PlannerAction::Fail`]. Blocks are fetched in *parts*, one request each. No
//! block is in two parts at a time. A part is chosen only when a connection is free, so whatever was asked for in the
//! meantime and lies near is in the same part. Tickets go first, by age. Read-ahead gets most of the connections that
//! they leave.

mod dispatch;
mod events;
mod exchange;
mod host;
mod object;
mod parts;
mod ranges;
mod runs;
#[cfg(test)]
mod tests;

use crate::source::FetchFailure;
pub use exchange::{
    BLOCK, HostId, ObjectId, PartFailure, PartId, PlannerAction, PlannerEvent, PlannerLimits, TicketId,
};
use host::PlannedHost;
pub use host::back_off;
use object::PlannedObject;
use runs::ReadRuns;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::time::Duration;

/// The planner of one session. Each call takes O(log n) time in the number of tickets, plus the number of runs and of
/// parts, which are bounded, and of actions that it causes. Memory is bounded by what tickets wait for, by what is in
/// flight, and by the number of gaps between present blocks.
#[derive(Debug, Default)]
pub struct Planner {
    limits: PlannerLimits,
    random: u64,
    objects: BTreeMap<ObjectId, PlannedObject>,
    hosts: BTreeMap<HostId, PlannedHost>,
    tickets: BTreeMap<TicketId, PlannerTicket>,
    parts: BTreeMap<PartId, PlannedPart>,
    runs: ReadRuns,
    timers: BTreeSet<(Duration, PlannerTimer)>,
    /// The actions for the caller, apart from the parts that it starts.
    actions: VecDeque<PlannerAction>,
    /// The number of the next part, or the age of the next ticket.
    next: u64,
}

/// A request of the reader that was not answered.
#[derive(Debug)]
struct PlannerTicket {
    object: ObjectId,
    blocks: Range<u64>,
    /// Whether its blocks are fetched by one request.
    is_single: bool,
    /// Its place in the queue: older tickets have lower numbers.
    age: u64,
    since: Duration,
    timer: Duration,
}

/// One request to a host. It holds its blocks from its start until all of them are present, or it is given up.
#[derive(Debug, Default)]
struct PlannedPart {
    object: ObjectId,
    host: HostId,
    /// The blocks that it has yet to receive.
    blocks: Range<u64>,
    /// Bytes received of the first one of them.
    partial: u64,
    /// The offset that tries had reached when progress was last made. Only what lies beyond it is progress: a
    /// connection that always breaks inside the same block makes none.
    reached: u64,
    /// Whether it has a connection. A failed part waits for its retry.
    is_running: bool,
    /// Whether its connection counts as one that fetches ahead.
    is_ahead: bool,
    /// Tries that received nothing, in sequence.
    failures: u32,
    /// That of the try before this one.
    last_failure: Option<FetchFailure>,
    started: Duration,
    /// When bytes arrived first, and how many have arrived since.
    first: Option<Duration>,
    received: u64,
    /// When bytes arrived last, or when the first try started.
    progress_at: Duration,
    /// When it is checked for a stall, or tried again.
    timer: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum PlannerTimer {
    /// Check whether the ticket has timed out.
    Ticket(TicketId),
    /// Check whether a running part has stalled, or retry a failed one.
    Part(PartId),
    /// The pause of the host ends.
    Host(HostId),
}

impl Planner {
    /// Changes [`PlannerLimits::ahead_total`].
    pub fn limit_ahead(&mut self, total: u64) {
        self.limits.ahead_total = total;
    }

    /// A planner without objects. The seed makes the delays before retries differ between sessions.
    pub fn new(limits: PlannerLimits, seed: u64) -> Self {
        let limits = PlannerLimits { connections: limits.connections.max(1), ..limits };
        Self { limits, random: seed, ..Self::default() }
    }

    /// The next action. Call it until it returns `None`, after all events that are at hand were taken in.
    pub fn poll(&mut self, now: Duration) -> Option<PlannerAction> {
        while let Some((_, timer)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.pop_first();
            match timer {
                PlannerTimer::Ticket(ticket) => self.check_ticket(ticket, now),
                PlannerTimer::Part(part) => self.check_part(part, now),
                PlannerTimer::Host(_) => {}
            }
        }
        self.actions.pop_front().or_else(|| self.next_part(now))
    }

    /// When [`Self::poll`] must be called again if there is no event before.
    pub fn wake_at(&self) -> Option<Duration> {
        self.timers.first().map(|(at, _)| *at)
    }

    /// The parts of a host that have a connection.
    fn running(&self, host: HostId) -> impl Iterator<Item = &PlannedPart> {
        self.parts.values().filter(move |part| part.host == host && part.is_running)
    }

    /// Bytes of the blocks that running parts have yet to receive.
    pub fn in_flight(&self) -> u64 {
        let running = self.parts.values().filter(|part| part.is_running);
        running.map(|part| (part.blocks.end - part.blocks.start) * BLOCK).sum()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// A random number (SplitMix64).
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.random ^ (self.random >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
