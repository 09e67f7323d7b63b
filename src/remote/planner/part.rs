//! A part: the state of one request to a host.

use super::{HostId, ObjectId, PartId};
use std::ops::Range;
use std::time::Duration;

/// One request to a host. It holds its blocks from its start until all of them are present, or it is given up.
#[derive(Debug)]
pub(super) struct PlannedPart {
    pub object: ObjectId,
    pub host: HostId,
    /// The blocks that it has yet to receive.
    pub blocks: Range<u64>,
    /// Bytes received of the first one of them.
    pub partial: u64,
    /// The most that any try has received of it. Only more than that is progress: a connection that always breaks
    /// inside the same block makes none.
    pub partial_max: u64,
    /// Whether it has a connection. A failed part waits for its retry.
    pub is_running: bool,
    /// Whether its connection counts as one that fetches ahead.
    pub is_ahead: bool,
    /// Tries that received nothing, in sequence.
    pub failures: u32,
    /// The part that it continues.
    pub last: Option<PartId>,
    pub started: Duration,
    /// When bytes arrived first, and how many have arrived since.
    pub first: Option<Duration>,
    pub received: u64,
    /// When bytes arrived last, or when the first try started.
    pub progress_at: Duration,
    pub timer: Duration,
}
