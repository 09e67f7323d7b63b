//! The fuzz targets, independent of a fuzzer. Each makes an input of its kind from arbitrary bytes, runs weightfs on
//! it, and compares the result with a simple model. A finding is a panic, of weightfs or of the comparison.
//!
//! Each `run` returns whether its input was valid. `tests/fuzz.rs` calls them, too.
#![allow(clippy::unwrap_used, clippy::panic, reason = "targets report findings by panicking")]

pub mod commands;
pub mod content;
pub mod gguf;
pub mod header;
#[path = "../../tests/headers/mod.rs"]
mod headers;
pub mod index;
pub mod location;
pub mod manifest;
pub mod mount;
pub mod names;
pub mod numpy;
pub mod ollama;
pub mod onnx;
pub mod options;
pub mod protocol;
pub mod pytorch;
pub mod quantized;
mod shards;
pub mod slm;
