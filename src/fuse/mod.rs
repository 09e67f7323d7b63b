//! FUSE: the only room that names fuser. It converts, calls the superblock and replies; it decides nothing.

mod adapter;
mod faults;
mod reader;

pub use adapter::{Access, DEVICE, LOG_TARGET, Serving, Session};
pub use reader::{Watch, answer};
