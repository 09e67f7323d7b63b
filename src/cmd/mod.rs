//! One file a command, and what the mounting ones share.

mod daemon;
mod mounts;
mod unmounter;

pub mod mount;
pub mod umount;

use std::io;
use weightfs::source::strerror;

/// An error and what caused it, in one line and in the words that other tools use.
pub fn reason(error: &anyhow::Error) -> String {
    let text = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<io::Error>() {
        Some(error) => strerror(error),
        None => cause.to_string(),
    };
    error.chain().map(text).collect::<Vec<_>>().join(": ")
}
