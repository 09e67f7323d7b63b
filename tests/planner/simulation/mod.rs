//! A deterministic simulation of jobs over a network: a discrete-event model without threads and clocks.
//!
//! `network` models connections, `job` describes what readers do, `world` runs a job with the planner, and `naive` runs
//! it over one connection for each open file.

pub mod job;
pub mod naive;
pub mod network;
pub mod world;

use std::time::Duration;

/// What a job took.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    pub time: Duration,
    pub requests: u64,
    /// Bytes that the server sent.
    pub bytes: u64,
    /// The most connections that were used at a time.
    pub connections: usize,
    /// Times of the answers to each reader's accesses.
    pub answers: Vec<Vec<Duration>>,
    /// Accesses that failed.
    pub failed: u64,
}

impl Outcome {
    pub fn seconds(&self) -> f64 {
        self.time.as_secs_f64()
    }
}

/// A generator of random numbers (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub fn chance(&mut self, probability: f64) -> bool {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64 <= probability - f64::EPSILON
    }

    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, (self.next() % (at as u64 + 1)) as usize);
        }
    }
}
