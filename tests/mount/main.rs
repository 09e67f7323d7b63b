//! Real mounts through /dev/fuse, read by real clients. They run as root; one user's view is tested from there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "that is how a test fails")]

mod clients;
mod command;
mod datasets;
mod diff;
mod export;
mod fault_table;
mod faults;
mod folders;
mod gate;
mod hostile;
mod lifecycle;
mod limits;
mod load;
mod metadata;
mod panics;
mod readers;
mod readme;
mod reads;
mod sandbox;
mod shards;
mod support;
mod users;
mod values;
mod views;
