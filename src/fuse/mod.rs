//! The FUSE layer: converts fuser requests into superblock operations and replies. No other module uses fuser.

mod adapter;
mod faults;
mod reader;

pub use adapter::{Access, DEVICE, LOG_TARGET, Serving, Session};
pub use reader::{Watch, answer};
