//! The interface of a planner: numbers, limits, events and actions.

use std::ops::Range;
use std::time::Duration;

/// Objects are fetched, stored and marked as present in blocks of this many bytes.
pub const BLOCK: u64 = 64 << 10;

/// Numbers an object in a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId(pub u32);

/// Numbers a host in a session. Connection limits and rate limits apply to each host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(pub u32);

/// Numbers a request of the reader. Chosen by the caller, and free again once it was answered or cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TicketId(pub u64);

/// Numbers a part: one request to a host. Never used twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PartId(pub u64);

/// Limits of a planner.
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

/// What happened. Events about unknown objects, tickets and parts are allowed and change nothing, because events and
/// actions cross on their way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlannerEvent {
    /// An object can be read from now on. `len` is in bytes.
    Opened {
        /// A number that is not open.
        object: ObjectId,
        /// Length in bytes.
        len: u64,
        /// The host that it is fetched from.
        host: HostId,
    },
    /// An object is not read any more. Its tickets fail.
    Closed {
        /// The object.
        object: ObjectId,
    },
    /// A reader waits for bytes. The caller reports blocks that are present already with [`PlannerEvent::Present`]
    /// first.
    Need {
        /// The number by which it is answered.
        ticket: TicketId,
        /// The object.
        object: ObjectId,
        /// The bytes that it waits for. The end of the object cuts them off.
        range: Range<u64>,
        /// The bytes of the tensor. Read-ahead stays in their blocks. If it is empty, nothing is fetched ahead, and the
        /// range is fetched by as few requests as possible: it is a header.
        within: Range<u64>,
    },
    /// A reader does not wait any more. The ticket is not answered, unless the answer is on its way.
    Cancel {
        /// The ticket.
        ticket: TicketId,
    },
    /// A reader has read a range with the block of [`PlannerAction::Trigger`].
    Touched {
        /// The object.
        object: ObjectId,
        /// The bytes that it has read.
        range: Range<u64>,
        /// As in [`PlannerEvent::Need`].
        within: Range<u64>,
    },
    /// Blocks became present otherwise than by a part, such as from an earlier session or another process.
    Present {
        /// The object.
        object: ObjectId,
        /// Numbers of blocks.
        blocks: Range<u64>,
    },
    /// Blocks are not present any more.
    Evicted {
        /// The object.
        object: ObjectId,
        /// Numbers of blocks.
        blocks: Range<u64>,
    },
    /// A part received further bytes, in order. Blocks that are complete are present.
    Received {
        /// The part.
        part: PartId,
        /// Number of bytes since the last such event.
        bytes: u64,
    },
    /// The next bytes of a part need not be fetched, because they are present already.
    Skipped {
        /// The part.
        part: PartId,
        /// Number of bytes beyond those reported before.
        bytes: u64,
    },
    /// A part received all of its bytes, including any that were not reported before.
    Finished {
        /// The part.
        part: PartId,
    },
    /// A part ended early. What it received stays.
    Failed {
        /// The part.
        part: PartId,
        /// Whether another try makes sense.
        failure: PartFailure,
    },
}

/// Why a part failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PartFailure {
    /// Another try may succeed.
    Transient {
        /// The time that the host asked to wait. All parts of the host wait.
        retry_after: Option<Duration>,
    },
    /// Another try would fail as well.
    Final,
}

/// The actions that a planner asks of its caller.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PlannerAction {
    /// Start to fetch a range.
    Fetch {
        /// The number of the new part.
        part: PartId,
        /// The object.
        object: ObjectId,
        /// Whole blocks, in bytes. The last block of the object may be short.
        range: Range<u64>,
    },
    /// Stop fetching a part. Its later events are ignored. Report blocks that it completes until it stops with
    /// [`PlannerEvent::Present`].
    Abort {
        /// The part.
        part: PartId,
    },
    /// All bytes of a ticket have arrived.
    Ready {
        /// The ticket.
        ticket: TicketId,
    },
    /// Some bytes of a ticket cannot be had.
    Fail {
        /// The ticket.
        ticket: TicketId,
        /// Why.
        why: TicketFailure,
    },
    /// Report [`PlannerEvent::Touched`] when a reader reads this block, which is present.
    Trigger {
        /// The object.
        object: ObjectId,
        /// Number of the block.
        block: u64,
    },
}

/// Why a ticket failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TicketFailure {
    /// This part failed for good.
    Part(PartId),
    /// Nothing arrived for the time of [`PlannerLimits::timeout`].
    TimedOut {
        /// The last part that failed for this ticket, if one did.
        last: Option<PartId>,
    },
    /// The object is not open.
    NotOpen,
    /// As many tickets wait as [`PlannerLimits::tickets`] allows.
    TooMany,
}
