//! The block cache, through its public interface, with real files and real processes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]
#![allow(clippy::single_range_in_vec_init, reason = "runs of blocks are ranges")]

mod basics;
mod contents;
mod crash;
mod damage;
mod directory;
mod full;
mod listings;
mod model;
mod power;
mod processes;
mod room;
mod support;
