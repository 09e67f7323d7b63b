//! Real mounts through /dev/fuse, read by real clients. They run as root; one user's view is tested from there.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "that is how a test fails")]

mod clients;
mod command;
mod datasets;
mod faults;
mod folders;
mod load;
mod readme;
mod reads;
mod shards;
mod support;
mod users;
mod values;
mod views;
