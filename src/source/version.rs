//! The version of a file: which file it is, and whether it was written to. Does not read its bytes.

use super::{Error, FileId, SourceInfo};
use rustix::fs::{AtFlags, StatxFlags, fstatfs, makedev, statx};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Seconds and nanoseconds since 1970.
type Time = (i64, u32);

#[derive(Debug)]
pub(super) struct FileVersion {
    /// The path as the user wrote it, for messages.
    pub name: PathBuf,
    pub info: SourceInfo,
    status: VersionStatus,
    /// The ctime when the file was last closed, or opened for the first time. `None` if its last name was already
    /// removed, so that no path can lead to it any more.
    ctime: Mutex<Option<Time>>,
}

#[derive(Debug, Clone, Copy)]
pub(super) struct VersionStatus {
    pub id: FileId,
    pub len: u64,
    links: u32,
    mtime: Time,
    /// chmod and link change it, but not the bytes.
    ctime: Time,
    /// `None` if the file system does not record when a file is created.
    btime: Option<Time>,
}

impl VersionStatus {
    /// The attributes of an open file. A file system that caches attributes is made to fetch them, because fstat(2)
    /// would give those of an earlier version.
    pub fn of(file: &File, storage: FileStorage) -> io::Result<Self> {
        Self::query(file, if storage == FileStorage::Remote { AtFlags::STATX_FORCE_SYNC } else { AtFlags::empty() })
    }

    fn query(file: &File, sync: AtFlags) -> io::Result<Self> {
        let found = statx(file, "", AtFlags::EMPTY_PATH | sync, StatxFlags::BASIC_STATS | StatxFlags::BTIME)?;
        let has_btime = found.stx_mask & StatxFlags::BTIME.bits() != 0;
        Ok(Self {
            id: (makedev(found.stx_dev_major, found.stx_dev_minor), found.stx_ino),
            len: found.stx_size,
            links: found.stx_nlink,
            mtime: (found.stx_mtime.tv_sec, found.stx_mtime.tv_nsec),
            ctime: (found.stx_ctime.tv_sec, found.stx_ctime.tv_nsec),
            btime: has_btime.then_some((found.stx_btime.tv_sec, found.stx_btime.tv_nsec)),
        })
    }
}

impl FileVersion {
    pub fn new(name: PathBuf, info: SourceInfo, status: VersionStatus) -> Self {
        Self { name, info, status, ctime: Mutex::new(Some(status.ctime)) }
    }

    /// Fails unless `file` is still this version. If `range` ends past the current end, the error is [`Error::Cut`].
    pub fn verify(&self, file: &File, storage: FileStorage, range: Range<u64>) -> Result<(), Error> {
        let now = VersionStatus::of(file, storage).map_err(|error| self.io(error))?;
        if self.has_bytes_of(&now) {
            return Ok(());
        }
        let path = self.name.clone();
        Err(match range.end > now.len {
            true => Error::Cut { path, opened: self.status.len, now: now.len, range },
            false => Error::Changed { path },
        })
    }

    fn has_bytes_of(&self, now: &VersionStatus) -> bool {
        now.len == self.status.len && now.mtime == self.status.mtime
    }

    /// Whether a file that was opened again is the same file, of this version or another one. A new file may get the
    /// inode number of a deleted one, and may have the same size and modification time.
    pub fn is_same_file(&self, now: &VersionStatus) -> bool {
        if now.id != self.status.id {
            return false;
        }
        match (self.status.btime, now.btime) {
            (Some(then), Some(now)) => then == now,
            // A file that was written to is recognised by its size and modification time. A chmod of a closed file
            // cannot be told from another file.
            (None, None) => !self.has_bytes_of(now) || *self.ctime() == Some(now.ctime),
            _ => false,
        }
    }

    /// Records what identifies `file` after it was closed. Call this just before it is closed.
    pub fn note_close(&self, file: &File) {
        if self.status.btime.is_some() {
            return;
        }
        // Cached attributes suffice. If they are outdated, later reads give ESTALE, which is safe.
        if let Ok(now) = VersionStatus::query(file, AtFlags::STATX_DONT_SYNC) {
            *self.ctime() = (now.links > 0).then_some(now.ctime);
        }
    }

    pub fn io(&self, error: io::Error) -> Error {
        Error::io(&self.name, error)
    }

    fn ctime(&self) -> MutexGuard<'_, Option<Time>> {
        self.ctime.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FileStorage {
    /// In memory: reading a file never waits.
    Memory,
    /// On a disk of this machine. The kernel has the current attributes of an open file.
    Local,
    /// On another machine, or served by another program. The kernel may have attributes and bytes of an earlier
    /// version, and any operation may wait for ever.
    Remote,
}

/// Values of `f_type` of file systems that keep their files in memory.
const IN_MEMORY: &[u32] = &[
    0x0102_1994, // tmpfs
    0x8584_58f6, // ramfs
];

/// Values of `f_type` of file systems on local disks, from `linux/magic.h` and the sources of the file systems.
const ON_DISK: &[u32] = &[
    0x0000_ef53, // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0xca45_1a4e, // bcachefs
    0xf2f5_2010, // f2fs
    0x2fc1_2fc1, // ZFS
    0x794c_7630, // overlayfs
    0xe0f5_e1e2, // EROFS
    0x7371_7368, // squashfs
    0x0000_9660, // ISO 9660
    0x1501_3346, // UDF
    0x0000_4d44, // FAT
    0x2011_bab0, // exFAT
    0x7366_746e, // ntfs3
    0x3153_464a, // JFS
    0x5265_4973, // ReiserFS
    0x0000_3434, // NILFS
    0x0000_482b, // HFS+
];

impl FileStorage {
    /// Unknown file systems count as remote, which is slower but always right.
    pub fn of(file: &File) -> Self {
        match fstatfs(file).map(|found| found.f_type as u32) {
            Ok(kind) if IN_MEMORY.contains(&kind) => Self::Memory,
            Ok(kind) if ON_DISK.contains(&kind) => Self::Local,
            _ => Self::Remote,
        }
    }
}
