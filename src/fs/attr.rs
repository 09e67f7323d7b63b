//! Results of file system operations: attributes, directory entries and errors.

use crate::content::{self, WaitFor};
use crate::model;
use crate::source::SourceStat;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::time::SystemTime;

pub type Ino = u64;

/// The inode number of the root, fixed by FUSE.
pub const ROOT: Ino = 1;

/// Preferred block size of files, in bytes: the size of the largest read request of the kernel.
pub const BLOCK_SIZE: u32 = 1 << 20;

/// Preferred block size of directories, in bytes. libc lists directories with a buffer of this size. Listings are
/// slower from 256 KiB on, and take twice as long at 1 MiB, because each reply is then written to memory not touched
/// before.
pub const DIR_BLOCK_SIZE: u32 = 128 << 10;

/// Unit of [`Statfs::blocks`] and `st_blocks`, in bytes.
pub const SECTOR: u64 = 512;

/// Longest file name, in bytes.
pub const NAME_MAX: u32 = 255;

/// Number of directory positions before the first entry: `.` and `..`.
pub(super) const DOTS: u64 = 2;

/// Attributes that all files of a model share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileOwner {
    pub uid: u32,
    pub gid: u32,
    /// Permission bits of files. Directories also have the execute bit for everyone who may read.
    pub perm: u16,
    /// The value of all timestamps.
    pub mtime: SystemTime,
}

/// Overrides for the owner and permissions of the sources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ownership {
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    /// Permission bits that are cleared on all files.
    pub umask: u16,
}

impl Ownership {
    /// The owner of files whose source has this `stat`. Files have at most the read permissions of their source.
    pub fn of(self, stat: SourceStat) -> FileOwner {
        FileOwner {
            uid: self.uid.unwrap_or(stat.uid),
            gid: self.gid.unwrap_or(stat.gid),
            perm: stat.mode & 0o444 & !self.umask,
            mtime: stat.mtime,
        }
    }

    /// The owner of a folder that shows a directory with this `stat`. Its permission bits include those to search the
    /// directory: a user who may only list it sees names, but cannot open anything.
    pub fn of_folder(self, stat: SourceStat) -> FileOwner {
        FileOwner { perm: stat.mode & 0o555 & !self.umask, ..self.of(stat) }
    }

    /// As [`Ownership::of`], for a file or directory that the user did not name: a new owner or group may read it only
    /// if everyone may.
    pub(super) fn of_unnamed(self, stat: SourceStat, of: fn(Self, SourceStat) -> FileOwner) -> FileOwner {
        let for_all = stat.mode & 0o7;
        let to_owner = if self.uid.is_some() { for_all << 6 } else { 0o700 };
        let to_group = if self.gid.is_some() { for_all << 3 } else { 0o070 };
        of(self, SourceStat { mode: stat.mode & (to_owner | to_group | 0o007), ..stat })
    }
}

impl FileOwner {
    /// Attributes of a folder, see [`Ownership::of_folder`].
    pub(super) fn folder(self, ino: Ino) -> Attr {
        Attr { kind: FileKind::Dir, ..self.file(ino, 0, 0) }
    }

    /// Attributes of a directory. The link count is 1, as in btrfs, so that programs do not derive the number of
    /// subdirectories from it.
    pub(super) fn dir(self, ino: Ino) -> Attr {
        Attr { kind: FileKind::Dir, perm: self.perm | self.perm >> 2, ..self.file(ino, 0, 0) }
    }

    /// Attributes of a file with one link.
    pub(super) fn file(self, ino: Ino, size: u64, blocks: u64) -> Attr {
        let Self { uid, gid, perm, mtime } = self;
        Attr { ino, kind: FileKind::File, size, blocks, nlink: 1, perm, uid, gid, mtime }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    Dir,
    File,
    Link,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    pub ino: Ino,
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Space used, in units of [`SECTOR`].
    pub blocks: u64,
    pub nlink: u32,
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    /// The value of all timestamps.
    pub mtime: SystemTime,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dentry<'a> {
    pub ino: Ino,
    pub kind: FileKind,
    pub name: Cow<'a, OsStr>,
    /// The offset at which a listing continues after this entry.
    pub next: u64,
}

impl<'a> Dentry<'a> {
    /// Passes `.` and `..` to `add` if they come after `offset`. Returns true if `add` had no room for them.
    pub(super) fn dots(ino: Ino, parent: Ino, offset: u64, add: &mut impl FnMut(Self) -> bool) -> bool {
        [(ino, ".", 1), (parent, "..", 2)].into_iter().any(|(ino, name, next)| {
            next > offset && add(Dentry { ino, kind: FileKind::Dir, name: OsStr::new(name).into(), next })
        })
    }

    /// Passes what comes after `offset` to `add` until that has no room: `.`, `..`, and those of `entries` that `show`
    /// does not leave out.
    pub(super) fn list<E>(
        (ino, parent): (Ino, Ino),
        entries: &'a [E],
        offset: u64,
        add: &mut impl FnMut(Self) -> bool,
        show: impl Fn(&'a E) -> Option<(Ino, FileKind, &'a OsStr)>,
    ) {
        if Self::dots(ino, parent, offset, add) {
            return;
        }
        for (at, entry) in entries.iter().enumerate().skip(offset.saturating_sub(DOTS) as usize) {
            let Some((ino, kind, name)) = show(entry) else { continue };
            if add(Dentry { ino, kind, name: name.into(), next: at as u64 + DOTS + 1 }) {
                break;
            }
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statfs {
    /// Size of the model's files, in units of [`SECTOR`].
    pub blocks: u64,
    /// Number of tensors and metadata keys in a model, or number of models.
    pub files: u64,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("no such file or directory")]
    NoEntry,
    #[error("not a directory")]
    NotADirectory,
    #[error("a directory")]
    IsADirectory,
    #[error("no such attribute")]
    NoAttribute,
    #[error("not a symbolic link")]
    NotALink,
    /// The inode belongs to a tree that was replaced, and that no open file uses any more.
    #[error("the tree was replaced since this file was looked up")]
    Stale,
    /// A model in a folder cannot be opened at present.
    #[error(transparent)]
    Model(#[from] model::Error),
    #[error("{model}: changed since its folder was listed; mount it again")]
    Changed { model: String },
    #[error(transparent)]
    Content(#[from] content::Error),
}

impl Error {
    /// Whether the operation failed only because its request must not wait.
    pub fn would_block(&self) -> bool {
        self.waits_for().is_some()
    }

    /// The wait that the operation needs, if it failed only because its request does not allow that wait.
    pub fn waits_for(&self) -> Option<WaitFor> {
        match self {
            Self::Content(content::Error::WouldBlock(wait)) => Some(*wait),
            _ => None,
        }
    }
}
