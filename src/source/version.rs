//! The version of a file: which file it is, and whether it was written to. Does not read its bytes.

use super::error::Error;
use super::storage::FileStorage;
use rustix::fs::{AtFlags, Statx, StatxFlags, makedev, statx};
use std::fs::{File, Metadata};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::UNIX_EPOCH;

/// Device and inode number of a file.
pub type FileId = (u64, u64);

/// Seconds and nanoseconds since 1970.
type Time = (i64, u32);

/// The version of a file that was opened.
#[derive(Debug)]
pub(super) struct FileVersion {
    /// The path as the user wrote it, for messages.
    pub path: PathBuf,
    /// The absolute path, so that the file can be opened again.
    pub target: PathBuf,
    pub id: FileId,
    pub len: u64,
    /// The ctime is not compared: chmod and link change it, but not the bytes.
    mtime: Time,
    /// `None` if the file system does not record when a file is created.
    btime: Option<Time>,
    /// The ctime when the file was last closed, or opened for the first time. `None` if its last name was already
    /// removed, so that no path can lead to it any more.
    ctime: Mutex<Option<Time>>,
}

/// The attributes of a file that identify a version.
#[derive(Debug, Clone, Copy)]
pub(super) struct VersionStatus {
    id: FileId,
    len: u64,
    links: u64,
    mtime: Time,
    ctime: Time,
    btime: Option<Time>,
}

impl From<&Metadata> for VersionStatus {
    fn from(metadata: &Metadata) -> Self {
        // No file system has times before 1970 for files that it creates.
        let created = metadata.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        Self {
            id: (metadata.dev(), metadata.ino()),
            len: metadata.len(),
            links: metadata.nlink(),
            mtime: (metadata.mtime(), metadata.mtime_nsec() as u32),
            ctime: (metadata.ctime(), metadata.ctime_nsec() as u32),
            btime: created.map(|since| (since.as_secs() as i64, since.subsec_nanos())),
        }
    }
}

impl From<Statx> for VersionStatus {
    fn from(found: Statx) -> Self {
        let created = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        Self {
            id: (makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino),
            len: found.stx_size,
            links: found.stx_nlink.into(),
            mtime: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            ctime: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
            btime: created.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec)),
        }
    }
}

impl VersionStatus {
    /// The attributes of an open file. A file system that caches attributes is made to fetch them, because fstat(2)
    /// would give those of an earlier version.
    pub fn of(file: &File, storage: FileStorage) -> io::Result<Self> {
        match storage {
            FileStorage::Memory | FileStorage::Local => Ok(Self::from(&file.metadata()?)),
            FileStorage::Remote => Self::query(file, AtFlags::STATX_FORCE_SYNC),
        }
    }

    fn query(file: &File, sync: AtFlags) -> io::Result<Self> {
        let wanted = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        Ok(statx(file, "", AtFlags::EMPTY_PATH | sync, wanted)?.into())
    }
}

impl FileVersion {
    /// `path` is for messages.
    pub fn new(path: &Path, target: &Path, now: VersionStatus) -> Self {
        let VersionStatus { id, len, mtime, ctime, btime, .. } = now;
        Self { path: path.to_owned(), target: target.to_owned(), id, len, mtime, btime, ctime: Mutex::new(Some(ctime)) }
    }

    /// Fails unless `file` is still this version. If `range` ends past the current end, the error is [`Error::Cut`].
    pub fn verify(&self, file: &File, storage: FileStorage, range: Range<u64>) -> Result<(), Error> {
        let now = VersionStatus::of(file, storage).map_err(|error| self.io(error))?;
        if now.len == self.len && now.mtime == self.mtime {
            return Ok(());
        }
        let path = self.path.clone();
        Err(match range.end > now.len {
            true => Error::Cut { path, opened: self.len, now: now.len, range },
            false => Error::Changed { path },
        })
    }

    /// Whether a file that was opened again is the same file, of this version or another one. A new file may get the
    /// inode number of a deleted one, and may have the same size and modification time.
    pub fn is_same_file(&self, now: &VersionStatus) -> bool {
        if now.id != self.id {
            return false;
        }
        match (self.btime, now.btime) {
            (Some(then), Some(now)) => then == now,
            // A file that was written to is recognised by its size and modification time. A chmod of a closed file
            // cannot be told from another file.
            (None, None) => now.len != self.len || now.mtime != self.mtime || *self.ctime() == Some(now.ctime),
            _ => false,
        }
    }

    /// Records what identifies `file` after it was closed. Call this just before it is closed.
    pub fn note_close(&self, file: &File) {
        if self.btime.is_some() {
            return;
        }
        // Cached attributes suffice. If they are outdated, later reads give ESTALE, which is safe.
        if let Ok(now) = VersionStatus::query(file, AtFlags::STATX_DONT_SYNC) {
            *self.ctime() = (now.links > 0).then_some(now.ctime);
        }
    }

    pub fn io(&self, error: io::Error) -> Error {
        Error::Io { path: self.path.clone(), error }
    }

    fn ctime(&self) -> MutexGuard<'_, Option<Time>> {
        self.ctime.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
