//! One file a command, and what the mounting ones share.

mod daemon;
mod mounts;

pub mod mount;
pub mod umount;
