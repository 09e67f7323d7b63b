//! Errors of writing an output file.

use crate::content;
use crate::source::strerror;
use std::io;
use std::path::PathBuf;

/// An output file was not written. An existing file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the operating system.
    #[error("{}: {what}{}", path.display(), strerror(error))]
    Io {
        /// The file to be written.
        path: PathBuf,
        /// The failed step, if the reason alone is not clear.
        what: &'static str,
        /// The reason.
        error: io::Error,
    },
    /// The file system has too little space.
    #[error(
        "{}: needs {needed} bytes, but only {available} bytes are available there; free {} bytes or write elsewhere",
        path.display(), needed.saturating_sub(*available)
    )]
    Full {
        /// The file or directory to be written.
        path: PathBuf,
        /// Size of what is to be written.
        needed: u64,
        /// Available space.
        available: u64,
    },
    /// The bytes cannot be read.
    #[error(transparent)]
    Content(#[from] content::Error),
    /// A file ended early while it was copied.
    #[error("a source file was truncated while it was copied: {missing} bytes are missing")]
    Short {
        /// Number of bytes that were missing.
        missing: u64,
    },
    /// The caller has stopped the operation, usually because of a signal.
    #[error("interrupted; no file was written")]
    Interrupted,
}
