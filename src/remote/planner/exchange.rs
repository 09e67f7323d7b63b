//! The interface of a planner: numbers, limits, events and actions.

use crate::source::FetchFailure;
pub use crate::source::pins::BLOCK;
use std::ops::Range;
use std::time::Duration;

/// Numbers an object in a session.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u32);

/// Numbers a host in a session. Connection limits and rate limits apply to each host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// Numbers a request of the reader. Chosen by the caller, and free again once it was answered or cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(pub u64);

/// Numbers a part: one request to a host. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId(pub u64);

#[derive(Debug, Clone)]
pub struct PlannerLimits {
    /// Parts that are fetched at a time from one host.
    pub connections: usize,
    /// Maximum bytes of a part.
    pub part_max: u64,
    /// Maximum bytes fetched ahead of one reader.
    pub ahead_max: u64,
    /// Maximum bytes fetched ahead of all readers that were not read yet. Keep it well below the size of the cache.
    pub ahead_total: u64,
    /// Tickets that wait at a time. Further ones fail at once, so that a reader that asks without end costs no memory.
    pub tickets: usize,
    /// A ticket fails if nothing of what it waits for arrived for this time.
    pub timeout: Duration,
    /// A part that received nothing for this time is aborted and tried again.
    pub stall: Duration,
}

impl Default for PlannerLimits {
    fn default() -> Self {
        Self {
            connections: 16,
            part_max: 64 << 20,
            ahead_max: 1 << 30,
            ahead_total: 4 << 30,
            tickets: 1 << 14,
            timeout: Duration::from_secs(60),
            stall: Duration::from_secs(10),
        }
    }
}

/// An event. Those about unknown objects, tickets and parts are allowed and change nothing, because events and
/// actions cross on their way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlannerEvent {
    /// An object of `len` bytes, whose number is not open, can be read from now on.
    Opened { object: ObjectId, len: u64, host: HostId },
    /// An object is not read any more. Its tickets fail.
    Closed { object: ObjectId },
    /// A reader waits for the bytes `range`, cut off at the end of the object. The caller reports blocks that are
    /// present already with [`PlannerEvent::Present`] first.
    ///
    /// `within` are the bytes of the tensor. Read-ahead stays in their blocks. If it is empty, nothing is fetched
    /// ahead, and the range is fetched by as few requests as possible: it is a header.
    Need { ticket: TicketId, object: ObjectId, range: Range<u64>, within: Range<u64> },
    /// A reader does not wait any more. The ticket is not answered, unless the answer is on its way.
    Cancel { ticket: TicketId },
    /// A reader has read the bytes `range` with the block of [`PlannerAction::Trigger`]. `within` is that of
    /// [`PlannerEvent::Need`].
    Touched { object: ObjectId, range: Range<u64>, within: Range<u64> },
    /// Blocks became present otherwise than by a part, such as from an earlier session or another process.
    Present { object: ObjectId, blocks: Range<u64> },
    /// Blocks are not present any more.
    Evicted { object: ObjectId, blocks: Range<u64> },
    /// A part received this many further bytes, in order. Blocks that are complete are present.
    Received { part: PartId, bytes: u64 },
    /// This many of the next bytes of a part need not be fetched, because they are present already.
    Skipped { part: PartId, bytes: u64 },
    /// A part received all of its bytes, including any that were not reported before.
    Finished { part: PartId },
    /// A part ended early. What it received stays.
    Failed { part: PartId, failure: PartFailure },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartFailure {
    /// That of its tickets if it is not tried again.
    pub failure: FetchFailure,
    /// `None` if another try would fail as well. Otherwise the time that the host asked to wait, or zero if it did not.
    /// All parts of the host wait for that time.
    pub retry: Option<Duration>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlannerAction {
    /// Start to fetch a range: whole blocks, in bytes. The last block of the object may be short.
    Fetch { part: PartId, object: ObjectId, range: Range<u64> },
    /// Stop fetching a part. Its later events are ignored. Report blocks that it completes until it stops with
    /// [`PlannerEvent::Present`].
    Abort { part: PartId },
    /// All bytes of a ticket have arrived.
    Ready { ticket: TicketId },
    /// Some bytes of a ticket cannot be had.
    Fail { ticket: TicketId, failure: FetchFailure },
    /// Report [`PlannerEvent::Touched`] when a reader reads this block, which is present.
    Trigger { object: ObjectId, block: u64 },
}
