//! Errors of writing an output file.

use crate::content;
use crate::source::strerror;
use std::io;
use std::path::{Path, PathBuf};

/// An output file was not written. An existing file is unchanged.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: {}", path.display(), strerror(error))]
    Io { path: PathBuf, error: io::Error },
    #[error(
        "{}: needs {needed} bytes, but only {available} bytes are available there; free {} bytes or write elsewhere",
        path.display(), needed.saturating_sub(*available)
    )]
    Full { path: PathBuf, needed: u64, available: u64 },
    #[error(transparent)]
    Content(#[from] content::Error),
    #[error("a source file was truncated while it was copied: {missing} bytes are missing")]
    Short { missing: u64 },
    /// The caller has stopped the operation, usually because of a signal.
    #[error("interrupted; no file was written")]
    Interrupted,
}

impl Error {
    /// Adds the path of the output to an error.
    pub(super) fn at<E: Into<io::Error>>(path: &Path) -> impl FnOnce(E) -> Self {
        |error| Self::Io { path: path.to_owned(), error: error.into() }
    }
}

/// Adds the failed step to an error whose reason alone is not clear.
pub(super) fn step<E: Into<io::Error>>(what: &'static str) -> impl FnOnce(E) -> io::Error {
    move |error| {
        let error = error.into();
        io::Error::new(error.kind(), format!("{what}{}", strerror(&error)))
    }
}
