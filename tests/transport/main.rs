//! Locations and transports against real servers on loopback. `scripts/servers` installs them.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "../servers/mod.rs"]
mod servers;

mod child;
mod clouds;
mod hub;
mod odd;
mod s3;
mod support;
mod web;
