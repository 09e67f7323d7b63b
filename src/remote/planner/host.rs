//! One host: its connections, what waits for one, what a request to it costs, and when to try again after a failure.

use super::runs::RunKey;
use super::{BLOCK, TicketId};
use crate::source::FetchFailure;
use std::collections::BTreeSet;
use std::time::Duration;

const COST: std::ops::RangeInclusive<u64> = 4 * BLOCK..=64 * BLOCK;

/// The delay before the first retry. Each further one doubles it.
const BACK_OFF: Duration = Duration::from_millis(100);

/// Maximum delay before a retry, unless the host asks for a longer one.
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// Requests to one host share its connections, and its rate limits.
#[derive(Debug, Default)]
pub(super) struct PlannedHost {
    /// Tickets that wait for blocks which no part fetches, by age.
    pub queue: BTreeSet<(u64, TicketId)>,
    /// Runs with blocks to fetch ahead, and the last one that had its turn.
    pub ahead: BTreeSet<RunKey>,
    pub ahead_last: RunKey,
    /// No part starts before this time.
    pub paused_until: Duration,
    /// When bytes of this host last arrived.
    pub progress_at: Duration,
    /// Failures since bytes last arrived.
    pub failures: u32,
    pub last_failure: Option<FetchFailure>,
    /// Time from a request to its first byte.
    latency: Duration,
    /// Bytes per second of one connection.
    bandwidth: u64,
}

impl PlannedHost {
    /// The first requests find out the latency and bandwidth. Until then they are assumed to be those of the Hub as
    /// seen from another continent.
    pub fn unmeasured() -> Self {
        Self { latency: Duration::from_millis(100), bandwidth: 40 << 20, ..Self::default() }
    }

    /// The bytes that a connection could have received in the time that a request takes to be answered. A gap smaller
    /// than this is cheaper to fetch than to skip, and a part smaller than this is not worth a request of its own.
    pub fn request_cost(&self) -> u64 {
        let bytes = u128::from(self.bandwidth) * self.latency.as_micros() / 1_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX).clamp(*COST.start(), *COST.end())
    }

    /// Registers the time that a request took until its first byte.
    pub fn observe_latency(&mut self, latency: Duration) {
        self.latency = (self.latency * 3 + latency) / 4;
    }

    /// Registers how long a part took after its first byte. Short parts say nothing about the bandwidth.
    pub fn observe_bandwidth(&mut self, bytes: u64, time: Duration) {
        if bytes >= *COST.start() {
            let bandwidth = u128::from(bytes) * 1_000_000 / time.as_micros().max(1);
            let bandwidth = u64::try_from(bandwidth).unwrap_or(u64::MAX).min(u64::MAX / 8);
            self.bandwidth = (self.bandwidth * 3 + bandwidth) / 4;
        }
    }
}

/// The delay before another try after a number of failures in sequence. It is random between half and all of the
/// doubled value, so that parts and mounts that failed together do not come back together.
pub fn back_off(failures: u32, random: u64) -> Duration {
    let delay = BACK_OFF.saturating_mul(1 << failures.saturating_sub(1).min(16)).min(BACK_OFF_MAX);
    delay / 2 + (delay / 2).mul_f64((random % 1024) as f64 / 1024.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit_and_vary() {
        for failures in 0..70u32 {
            let most = BACK_OFF.saturating_mul(1 << failures.saturating_sub(1).min(20)).min(BACK_OFF_MAX);
            for random in [0, 1, 77, 1023, u64::MAX] {
                let delay = back_off(failures, random);
                assert!(most / 2 <= delay && delay <= most, "{failures}, {random}: {delay:?}");
            }
        }
        assert_ne!(back_off(3, 5), back_off(3, 500));
    }

    #[test]
    fn request_costs_what_was_observed_within_bounds() {
        let mut host = PlannedHost::unmeasured();
        for _ in 0..50 {
            host.observe_latency(Duration::from_millis(30));
            host.observe_bandwidth(1 << 20, Duration::from_millis(20));
        }
        let ideal = (1 << 20) * 30 / 20;
        assert!(host.request_cost().abs_diff(ideal) < ideal / 20, "{}", host.request_cost());
        host.observe_bandwidth(u64::MAX, Duration::ZERO);
        host.observe_latency(Duration::from_secs(1 << 40));
        assert_eq!(host.request_cost(), *COST.end());
        for _ in 0..200 {
            host.observe_latency(Duration::ZERO);
            host.observe_bandwidth(1 << 20, Duration::from_secs(1000));
        }
        assert_eq!(host.request_cost(), *COST.start());
    }
}
