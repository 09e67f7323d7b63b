//! The planner through its public interface: single situations, and whole jobs over simulated networks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::single_range_in_vec_init, reason = "lists of ranges are compared, some of which have one")]

mod jobs;
mod predictions;
mod simulation;
mod situations;
