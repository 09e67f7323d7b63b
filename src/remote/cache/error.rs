//! Why the cache cannot be used.

use crate::source::pins;
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The directory was written by a later version of weightfs.
    #[error("{}: has cache layout {found}, and this weightfs can use up to {known}: use a newer weightfs or another \
        directory", path.display())]
    Layout { path: PathBuf, found: u64, known: u64 },
    #[error("{}: belongs to user {owner}, and weightfs runs as user {user}: use another directory", path.display())]
    NotOwned { path: PathBuf, owner: u32, user: u32 },
    #[error("{}: a symbolic link of user {owner}, which is not followed: use another directory", path.display())]
    Link { path: PathBuf, owner: u32 },
    #[error("{}: not a directory", path.display())]
    NotADirectory { path: PathBuf },
    /// Another process holds a lock for too long. It may have been stopped by a signal.
    #[error("{}: in use by another process for more than {seconds} s", path.display())]
    Busy { path: PathBuf, seconds: u64 },
    #[error("{}: the disk of the cache is full, and none of the cached blocks can be evicted: {error}", path.display())]
    Full { path: PathBuf, error: io::Error },
    /// Another program has changed the size of a data file.
    #[error("{}: changed from {len} to {now} bytes while it was in use; the next mount empties it", path.display())]
    Resized { path: PathBuf, len: u64, now: u64 },
    #[error("{name}: bytes {}..{} of an object of {len} bytes", range.start, range.end)]
    OutOfRange { name: String, range: Range<u64>, len: u64 },
    /// Does not show the text.
    #[error("the {field} of an object is a URL with a query, a fragment or credentials, which the cache does not keep")]
    Secret { field: &'static str },
    #[error("the {field} of an object has {len} bytes, which is more than {max}")]
    TooLong { field: &'static str, len: usize, max: usize },
    #[error("{name}: {len} bytes; the cache takes files of up to {max}")]
    TooLarge { name: String, len: u64, max: u64 },
    /// Memory cannot be shared with the reader.
    #[error(transparent)]
    Shared(#[from] pins::PinsError),
    #[error("{}: {error}", path.display())]
    Io { path: PathBuf, error: io::Error },
}

pub type CacheResult<T> = Result<T, CacheError>;

impl CacheError {
    /// Converts errors about `path`.
    pub(super) fn io<E: Into<io::Error>>(path: &Path) -> impl Fn(E) -> Self + '_ {
        |error| Self::Io { path: path.to_owned(), error: error.into() }
    }
}

/// Whether the disk, or the user's quota, is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}
