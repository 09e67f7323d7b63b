//! Commands that do not mount: their output for models written by the official crate, and their exit codes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[cfg(feature = "remote")]
mod cache;
mod check;
mod check_parts;
mod checkpoints;
mod demo;
mod diff_parts;
mod downloads;
mod export_parts;
mod hostile;
mod identity;
mod inspect;
mod legacy;
mod like;
mod ls;
mod onnx;
mod pickles;
mod pipes;
mod published;
mod quantized;
mod ranks;
mod references;
mod room;
mod sets;
mod stats;
mod sums;
