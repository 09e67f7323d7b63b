//! One file a command, and what they share.

mod daemon;
mod models;
mod mounts;
mod output;
mod progress;
mod totals;
mod unmounter;
mod wanted;

pub mod check;
pub mod id;
pub mod inspect;
pub mod ls;
pub mod mount;
pub mod summary;
pub mod umount;

use std::io::{self, Write};
use weightfs::name::message;
use weightfs::source::strerror;

/// Says what went wrong.
pub fn complain(error: &anyhow::Error) {
    // Where standard error is closed there is nobody to tell, and the exit code says it too.
    let _ = writeln!(io::stderr(), "weightfs: {}", message(&reason(error)));
}

/// An error and what caused it, in one line and in the words that other tools use.
pub fn reason(error: &anyhow::Error) -> String {
    let text = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<io::Error>() {
        Some(error) => strerror(error),
        None => cause.to_string(),
    };
    error.chain().map(text).collect::<Vec<_>>().join(": ")
}
