//! The pages of `weightfs serve` in a headless Chromium.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests fail by panicking")]

mod browser;
#[path = "../servers/lifetime.rs"]
mod lifetime;
mod pages;
mod server;
