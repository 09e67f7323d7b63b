//! Real mounts through /dev/fuse, read by real clients. The tests run as root and also run commands as other users.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod access;
mod arrays;
mod clients;
mod command;
mod completion;
mod converted;
mod dask;
mod datasets;
mod described;
mod deviations;
mod diff;
mod distributed;
mod doctor;
mod export;
mod fault_table;
mod faults;
mod files;
mod folders;
mod formats;
mod gate;
mod gguf;
mod gguf_edit;
mod hf;
mod hostile;
mod lifecycle;
mod limits;
mod load;
mod memory;
mod metadata;
mod ollama;
mod onnx;
mod opening;
mod others;
mod panics;
mod premounted;
mod pytorch;
mod quantized;
mod races;
mod readers;
mod readme;
mod reads;
mod recipes;
mod references;
#[cfg(feature = "remote")]
mod remote;
mod replaced;
mod sandbox;
mod scheduling;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "remote")]
#[path = "../servers/mod.rs"]
mod servers;
mod shards;
mod shown;
mod slm;
mod splits;
mod status;
mod support;
mod training;
mod users;
mod values;
#[path = "../quantized/cases.rs"]
mod vectors;
mod views;
