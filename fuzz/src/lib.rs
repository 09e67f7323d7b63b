//! What the fuzz targets do, without a fuzzer: each makes an input of its kind out of any bytes, runs it, and panics
//! where weightfs does, or where it does not do what a plainer model of it says. `tests/fuzz.rs` runs them too.
//!
//! Each says whether its input was a sound one.
#![allow(clippy::unwrap_used, clippy::panic, reason = "that is how a finding is told")]

pub mod content;
pub mod header;
#[path = "../../tests/headers/mod.rs"]
mod headers;
pub mod index;
pub mod manifest;
pub mod mount;
pub mod names;
pub mod options;
mod shards;
