//! One file a command, and what they share.

mod daemon;
mod models;
mod mounts;
mod open;
mod output;
mod progress;
mod totals;
mod unmounter;
mod wanted;

pub mod check;
pub mod diff;
pub mod export;
pub mod id;
pub mod inspect;
pub mod ls;
pub mod metadata;
pub mod mount;
pub mod summary;
pub mod umount;

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;
use weightfs::name::message;
use weightfs::source::strerror;
use weightfs::write;

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

/// The exit code of a command that writes data. That its reader has seen enough it need not be told.
fn written(done: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
    let is_unheard =
        |error: &write::Error| matches!(error, write::Error::Io { error, .. } if error.kind() == ErrorKind::BrokenPipe);
    match done {
        Err(error) if error.downcast_ref().is_some_and(is_unheard) => Ok(ExitCode::FAILURE),
        done => done.map(|()| ExitCode::SUCCESS),
    }
}
