//! Why bytes cannot be read.

use serde::{Deserialize, Serialize};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{}: truncated from {opened} to {now} bytes since it was opened; bytes {}..{} are gone", path.display(), range.start, range.end)]
    Cut { path: PathBuf, opened: u64, now: u64, range: Range<u64> },
    #[error("{}: written to since it was opened; mount it again", path.display())]
    Changed { path: PathBuf },
    /// The path now leads to another file or to none.
    #[error("{}: removed or replaced after it was closed to stay below the limit of open files; mount it again", path.display())]
    Replaced { path: PathBuf },
    /// The permissions of the file allow reading it, but the sandbox does not.
    #[error("{}: not one of the files that were mounted, and the sandbox allows no others; mount it again", path.display())]
    Outside { path: PathBuf },
    #[error("bytes {}..{} of a source of {len} bytes", range.start, range.end)]
    OutOfRange { range: Range<u64>, len: u64 },
    /// `kind` has an article: "a directory".
    #[error("{}: {kind}, not a regular file", path.display())]
    NotAFile { path: PathBuf, kind: &'static str },
    /// A link leads to no file.
    #[error("{}: {reason}", path.display())]
    Dangling {
        path: PathBuf,
        /// Where it leads to, and how to get the file if it was not downloaded.
        reason: String,
    },
    /// A file that is not on this machine cannot be read.
    #[error("{}: {reason}", name.display())]
    Remote {
        /// The location of the file as the user wrote it, without secrets.
        name: PathBuf,
        /// The reason, with the numbers, and a remedy where there is one.
        reason: String,
        failure: RemoteFailure,
    },
    #[error("{}: {}", path.display(), strerror(error))]
    Io { path: PathBuf, error: io::Error },
}

/// The prospects of another attempt after a file that is not on this machine could not be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum RemoteFailure {
    /// The version that was opened is gone.
    Changed,
    /// The network or the server failed; another attempt may succeed.
    Transient,
    /// The server wants credentials, or refuses those that were sent.
    Refused,
    /// The server sends whole files only.
    WholeOnly,
    /// Another attempt fails too, for another reason.
    Lasting,
}

/// Why a file that is not on this machine cannot be opened or read, without its name. The process that fetches sends
/// it to the one that reads.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchFailure {
    pub failure: RemoteFailure,
    /// The reason, with the numbers, and a remedy where there is one.
    pub reason: String,
}

impl FetchFailure {
    pub fn transient(reason: impl Into<String>) -> Self {
        Self { failure: RemoteFailure::Transient, reason: reason.into() }
    }

    pub fn lasting(reason: impl Into<String>) -> Self {
        Self { failure: RemoteFailure::Lasting, reason: reason.into() }
    }

    pub fn of(self, name: &str) -> Error {
        Error::Remote { name: name.into(), reason: self.reason, failure: self.failure }
    }
}

/// The cause of an error. One cause can give several errors: a truncated file gives one error for the missing bytes and
/// another one for the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorCause {
    /// The file is not the one that was opened.
    Version,
    /// The system is out of descriptors or memory.
    Shortage,
    Io,
}

impl Error {
    pub(super) fn io(path: &Path, error: io::Error) -> Self {
        Self::Io { path: path.to_owned(), error }
    }

    /// The file that failed, and the cause. `None` for [`Error::OutOfRange`].
    pub fn fault(&self) -> Option<(&Path, ErrorCause)> {
        match self {
            Self::Cut { path, .. }
            | Self::Changed { path }
            | Self::Replaced { path }
            | Self::Outside { path }
            | Self::NotAFile { path, .. } => Some((path, ErrorCause::Version)),
            Self::Remote { name, failure: RemoteFailure::Changed, .. } => Some((name, ErrorCause::Version)),
            Self::Remote { name, .. } => Some((name, ErrorCause::Io)),
            Self::Io { path, error }
                if is_out_of_descriptors(error) || error.raw_os_error() == Some(nix::libc::ENOMEM) =>
            {
                Some((path, ErrorCause::Shortage))
            }
            Self::Io { path, .. } | Self::Dangling { path, .. } => Some((path, ErrorCause::Io)),
            Self::OutOfRange { .. } => None,
        }
    }

    /// Whether the same operation may succeed later although the file does not change: the system is out of a resource,
    /// or a device or a network does not respond.
    pub fn is_transient(&self) -> bool {
        use nix::libc::{EACCES, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, ENXIO, EPERM};
        match self {
            Self::Remote { failure, .. } => *failure == RemoteFailure::Transient,
            Self::Io { error, .. } => {
                let lasting = [EACCES, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, ENXIO, EPERM];
                error.raw_os_error().is_some_and(|errno| !lasting.contains(&errno))
            }
            _ => false,
        }
    }
}

/// Whether a file can be opened after another one is closed.
pub(super) fn is_out_of_descriptors(error: &io::Error) -> bool {
    use nix::libc::{EMFILE, ENFILE};
    error.raw_os_error().is_some_and(|errno| [EMFILE, ENFILE].contains(&errno))
}

/// The text of an operating system error without Rust's "(os error N)".
pub fn strerror(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}
