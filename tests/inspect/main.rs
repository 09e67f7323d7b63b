//! The commands that do not mount: what they print of models that the official crate wrote, and how they end.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "that is how a test fails")]

mod check;
mod hostile;
mod identity;
mod inspect;
mod ls;
mod pipes;
mod room;
