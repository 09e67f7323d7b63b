//! Why the cache cannot be used.

use crate::source::pins;
use nix::errno::Errno;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Why the cache cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The directory was written by a later version of weightfs.
    #[error("{}: has cache layout {found}, and this weightfs can use up to {known}: use a newer weightfs or another \
        directory", path.display())]
    Layout {
        /// The file that states the layout.
        path: PathBuf,
        /// The layout of the directory.
        found: u64,
        /// The latest layout that this program can use.
        known: u64,
    },
    /// The directory belongs to another user.
    #[error("{}: belongs to user {owner}, and weightfs runs as user {user}: use another directory", path.display())]
    NotOwned {
        /// The directory.
        path: PathBuf,
        /// The user id of its owner.
        owner: u32,
        /// The effective user id of this process.
        user: u32,
    },
    /// A symbolic link on the path belongs to another user.
    #[error("{}: a symbolic link of user {owner}, which is not followed: use another directory", path.display())]
    Link {
        /// The link.
        path: PathBuf,
        /// The user id of its owner.
        owner: u32,
    },
    /// Something on the path is not a directory.
    #[error("{}: not a directory", path.display())]
    NotADirectory {
        /// The path.
        path: PathBuf,
    },
    /// Another process holds the lock of an object for too long. It may have been stopped by a signal.
    #[error("{}: in use by another process for more than {seconds} s", path.display())]
    Busy {
        /// The directory of the object.
        path: PathBuf,
        /// The time for which this process has waited.
        seconds: u64,
    },
    /// The disk is full, and evicting blocks did not make room.
    #[error("{}: the disk of the cache is full, and none of the cached blocks can be evicted: {error}", path.display())]
    Full {
        /// The file that was written to.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// Another program has changed the size of a data file.
    #[error("{}: changed from {len} to {now} bytes while it was in use; the next mount empties it", path.display())]
    Resized {
        /// The data file.
        path: PathBuf,
        /// The size of the object in bytes.
        len: u64,
        /// The size of the file in bytes.
        now: u64,
    },
    /// The bytes are not inside the object.
    #[error("{name}: bytes {}..{} of an object of {len} bytes", range.start, range.end)]
    OutOfRange {
        /// The name of the object.
        name: String,
        /// The bytes.
        range: Range<u64>,
        /// The size of the object in bytes.
        len: u64,
    },
    /// A URL that may contain a secret. Its text is not shown.
    #[error("the {field} of an object is a URL with a query, a fragment or credentials, which the cache does not keep")]
    Secret {
        /// The field of the key.
        field: &'static str,
    },
    /// A text is too long.
    #[error("the {field} of an object has {len} bytes, which is more than {max}")]
    TooLong {
        /// The field of the key.
        field: &'static str,
        /// Its size in bytes.
        len: usize,
        /// The maximum in bytes.
        max: usize,
    },
    /// The size of an object is not that of a real file.
    #[error("{name}: {len} bytes; the cache takes files of up to {max}")]
    TooLarge {
        /// The name of the object.
        name: String,
        /// Its size in bytes.
        len: u64,
        /// The maximum in bytes.
        max: u64,
    },
    /// Memory cannot be shared with the reader.
    #[error(transparent)]
    Shared(#[from] pins::PinsError),
    /// An error of the operating system.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
}

impl CacheError {
    /// Converts errors about `path`.
    pub(super) fn io<E: Into<io::Error>>(path: &Path) -> impl Fn(E) -> Self + '_ {
        |error| Self::Io { path: path.to_owned(), error: error.into() }
    }
}

/// Whether the disk, or the user's quota, is full.
pub(super) fn is_full(error: &io::Error) -> bool {
    let codes = [Errno::ENOSPC, Errno::EDQUOT];
    error.raw_os_error().is_some_and(|code| codes.contains(&Errno::from_raw(code)))
}
