//! The counts of what was fetched so far.

use crate::remote::protocol::FetchCounts;
use std::time::{Duration, Instant};

/// Minimum time between two reports.
pub(super) const REPORT_EVERY: Duration = Duration::from_millis(500);

/// The counts of fetched bytes and requests, and those that were reported.
#[derive(Default)]
pub(super) struct CountedTraffic {
    /// Bytes that were received.
    pub bytes: u64,
    busy: Duration,
    busy_since: Option<Instant>,
    reported: FetchCounts,
    reported_at: Option<Instant>,
}

impl CountedTraffic {
    /// The counts to report now, after `requests` requests. `None` if nothing has changed or the last report was
    /// recent; if nothing is being fetched any more, the last change is reported at once.
    pub fn report(&mut self, is_idle: bool, requests: u64) -> Option<FetchCounts> {
        match self.busy_since {
            None if !is_idle => self.busy_since = Some(Instant::now()),
            Some(since) if is_idle => {
                self.busy += since.elapsed();
                self.busy_since = None;
            }
            _ => {}
        }
        let busy = self.busy + self.busy_since.map_or(Duration::ZERO, |since| since.elapsed());
        let counts = FetchCounts { requests, bytes: self.bytes, busy: busy.as_millis() as u64 };
        let is_due = is_idle || self.reported_at.is_none_or(|at| at.elapsed() >= REPORT_EVERY);
        let has_changed = (counts.requests, counts.bytes) != (self.reported.requests, self.reported.bytes);
        (is_due && has_changed).then(|| {
            (self.reported, self.reported_at) = (counts, Some(Instant::now()));
            counts
        })
    }
}
