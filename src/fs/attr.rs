//! What the operations of the file system return: attributes, directory entries and errors.

use crate::content;
use crate::model;
use crate::source::Stat;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::time::SystemTime;

/// Inode number.
pub type Ino = u64;

/// The inode number of the root, fixed by FUSE.
pub const ROOT: Ino = 1;

/// Preferred block size of every file, in bytes: the most that the kernel asks for at once.
pub const BLOCK_SIZE: u32 = 1 << 20;

/// Preferred block size of a directory, in bytes: libc lists in buffers of that size. A listing takes longer from 256
/// KiB on, and twice as long at 1 MiB, because every answer is then written to memory that was not touched before.
pub const DIR_BLOCK_SIZE: u32 = 128 << 10;

/// Unit of [`Statfs::blocks`] and of `st_blocks`, in bytes.
pub const SECTOR: u64 = 512;

/// Longest file name, in bytes.
pub const NAME_MAX: u32 = 255;

/// Positions of a listing before the first entry: those of `.` and `..`.
pub(super) const DOTS: u64 = 2;

/// What all files of a model have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Permission bits of files. Directories can be entered by those who may read.
    pub perm: u16,
    /// All time stamps.
    pub mtime: SystemTime,
}

/// Owners that replace those of the sources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Ownership {
    /// Numeric owner of everything.
    pub uid: Option<u32>,
    /// Numeric group of everything.
    pub gid: Option<u32>,
    /// Permission bits that nothing has.
    pub umask: u16,
}

impl Ownership {
    /// Only those may read who may read the source itself.
    pub fn of(self, stat: Stat) -> Owner {
        Owner {
            uid: self.uid.unwrap_or(stat.uid),
            gid: self.gid.unwrap_or(stat.gid),
            perm: stat.mode & 0o444 & !self.umask,
            mtime: stat.mtime,
        }
    }
}

impl Owner {
    /// Attributes of a directory. It has one link, as in btrfs, so that nobody derives the number of subdirectories
    /// from it.
    pub(super) fn dir(self, ino: Ino) -> Attr {
        Attr { kind: FileKind::Dir, perm: self.perm | self.perm >> 2, ..self.file(ino, 0, 0) }
    }

    /// Attributes of a file with one name.
    pub(super) fn file(self, ino: Ino, size: u64, blocks: u64) -> Attr {
        let Self { uid, gid, perm, mtime } = self;
        Attr { ino, kind: FileKind::File, size, blocks, nlink: 1, perm, uid, gid, mtime }
    }
}

/// What an inode is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A directory.
    Dir,
    /// A regular file.
    File,
    /// A symbolic link.
    Link,
}

/// Attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Inode number.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// Size in bytes.
    pub size: u64,
    /// Space taken, in units of [`SECTOR`].
    pub blocks: u64,
    /// Names that the inode has.
    pub nlink: u32,
    /// Permission bits.
    pub perm: u16,
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// All time stamps.
    pub mtime: SystemTime,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dentry<'a> {
    /// Inode number.
    pub ino: Ino,
    /// What it is.
    pub kind: FileKind,
    /// File name.
    pub name: Cow<'a, OsStr>,
    /// Where a listing continues after this entry.
    pub next: u64,
}

impl Dentry<'_> {
    /// Passes `.` and `..` to `add` if they come after `offset`; returns whether it had no room for them.
    pub(super) fn dots(ino: Ino, parent: Ino, offset: u64, add: &mut impl FnMut(Self) -> bool) -> bool {
        let dots = [(ino, "."), (parent, "..")].into_iter().zip(1..).skip(offset.min(DOTS) as usize);
        let dentry = |((ino, name), next)| Dentry { ino, kind: FileKind::Dir, name: OsStr::new(name).into(), next };
        dots.map(dentry).any(add)
    }
}

/// The answer to `statfs(2)`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statfs {
    /// Size of the model's files, in units of [`SECTOR`].
    pub blocks: u64,
    /// Number of tensors and metadata keys, or of models.
    pub files: u64,
}

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no such file, name or inode.
    #[error("no such file or directory")]
    NoEntry,
    /// The operation needs a directory.
    #[error("not a directory")]
    NotADirectory,
    /// The operation needs a file.
    #[error("a directory")]
    IsADirectory,
    /// The file has no attribute of that name.
    #[error("no such attribute")]
    NoAttribute,
    /// The operation needs a symbolic link.
    #[error("not a symbolic link")]
    NotALink,
    /// A model in a folder cannot be opened now.
    #[error(transparent)]
    Model(#[from] model::Error),
    /// A model in a folder is not the one that was listed.
    #[error("{model}: changed since its folder was listed; mount it again")]
    Changed {
        /// The model.
        model: String,
    },
    /// The content of a file cannot be read.
    #[error(transparent)]
    Content(#[from] content::Error),
}

impl Error {
    /// The request did not allow waiting. The same operation may succeed if it waits.
    pub fn would_block(&self) -> bool {
        matches!(self, Self::Content(content::Error::WouldBlock))
    }
}

impl From<WouldBlock> for Error {
    fn from(_: WouldBlock) -> Self {
        Self::Content(content::Error::WouldBlock)
    }
}

/// The request does not allow waiting.
pub(super) struct WouldBlock;
