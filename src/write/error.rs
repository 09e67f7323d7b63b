//! Why a file was not written.

use crate::content;
use crate::source::strerror;
use std::io;
use std::path::PathBuf;

/// Why a file was not written. An existing file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An error of the operating system.
    #[error("{}: {what}{}", path.display(), strerror(error))]
    Io {
        /// The file to be written.
        path: PathBuf,
        /// What failed, if the reason alone does not tell.
        what: &'static str,
        /// The reason.
        error: io::Error,
    },
    /// The bytes cannot be read.
    #[error(transparent)]
    Content(#[from] content::Error),
    /// A file ended early while it was copied.
    #[error("cut short while it was copied: {missing} bytes are gone")]
    Short {
        /// Number of bytes that were missing.
        missing: u64,
    },
    /// A signal has arrived.
    #[error("interrupted; no file was written")]
    Interrupted,
}
