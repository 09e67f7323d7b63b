//! The file system: knows directories, inode numbers, attributes and names, and nothing of FUSE.
//!
//! It is one volume, the tree of a model; or folders with such a volume for each model in them. The tree never
//! changes, so there are no lookup counts and nothing is stored for a file: an inode number says which view of which tensor
//! it is.

mod folders;
mod inode;
mod layout;
#[cfg(test)]
mod tests;
mod tree;
mod volume;

use crate::content::{self, Interrupted};
use crate::model::Opened;
use crate::source::{Bytes, Stat};
use folders::Folders;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::sync::Arc;
use std::time::SystemTime;
use volume::Volume;

pub use layout::{Shown, UnknownView};

/// Inode number.
pub type Ino = u64;

/// The inode number of the root, fixed by FUSE.
pub const ROOT: Ino = 1;

/// Preferred block size of every file, in bytes: as much as the kernel asks for at once.
pub const BLOCK_SIZE: u32 = 1 << 20;

/// Preferred block size of a directory, in bytes: libc lists by so much at once. From 256 KiB on a listing takes longer, twice
/// as long at 1 MiB, because every answer is then written to memory that was not touched before.
pub const DIR_BLOCK_SIZE: u32 = 128 << 10;

/// Unit of [`Statfs::blocks`] and of `st_blocks`, in bytes.
pub const SECTOR: u64 = 512;

/// Longest file name, in bytes.
pub const NAME_MAX: u32 = 255;

/// What every file of the mount has in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Permission bits of files; directories can be entered by who may read.
    pub perm: u16,
    /// Time of every time stamp.
    pub mtime: SystemTime,
}

/// What a mount says of owners in place of the sources.
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
    /// Nobody may read what the source itself would not let them read.
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
    /// Attributes of a directory. One link, as btrfs has it: nobody may conclude from it how many directories are inside.
    fn dir(self, ino: Ino) -> Attr {
        Attr { kind: FileKind::Dir, perm: self.perm | self.perm >> 2, ..self.file(ino, 0, 0) }
    }

    /// Attributes of a file of one name.
    fn file(self, ino: Ino, size: u64, blocks: u64) -> Attr {
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

/// Attributes of a file or directory.
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
    /// Time of every time stamp.
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
    /// Where a listing goes on after this entry.
    pub next: u64,
}

impl Dentry<'_> {
    /// Hands `.` and `..` to `add` as far as they come after `offset`; says whether it had no room for them.
    fn dots(ino: Ino, parent: Ino, offset: u64, add: &mut impl FnMut(Self) -> bool) -> bool {
        let dots = [(ino, "."), (parent, "..")].into_iter().zip(1..).skip(offset.min(DOTS) as usize);
        let dentry = |((ino, name), next)| Dentry { ino, kind: FileKind::Dir, name: OsStr::new(name).into(), next };
        dots.map(dentry).any(add)
    }
}

/// What `statfs(2)` tells.
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
    /// A directory was needed.
    #[error("not a directory")]
    NotADirectory,
    /// A file was needed.
    #[error("a directory")]
    IsADirectory,
    /// The file has no attribute of that name.
    #[error("no such attribute")]
    NoAttribute,
    /// A symbolic link was needed.
    #[error("not a symbolic link")]
    NotALink,
    /// The model of a directory cannot be opened any more.
    #[error("{0}")]
    Model(String),
    /// The content cannot be had.
    #[error(transparent)]
    Content(#[from] content::Error),
}

/// Offsets of a listing before the first entry: `.` and `..` come first.
const DOTS: u64 = 2;

/// The whole mounted file system.
#[derive(Debug)]
pub struct Superblock {
    root: Root,
}

#[derive(Debug)]
enum Root {
    Volume(Box<Volume>),
    Folders(Box<Folders>),
}

/// What an inode number belongs to.
enum Tree<'s> {
    Volume(&'s Volume),
    Folders(&'s Folders),
}

impl Superblock {
    /// A file system of what was opened, which shows what `shown` says. `None` for a model of no files.
    pub fn new(opened: Opened, shown: Shown, ownership: Ownership) -> Option<Self> {
        let root = match opened {
            Opened::Model(model) => {
                let owner = ownership.of(model.stat()?);
                Root::Volume(Volume::new(*model, shown, owner, Arc::default(), 0, ROOT).into())
            }
            Opened::Catalog(catalog) => Root::Folders(Folders::new(catalog, shown, ownership).into()),
        };
        Some(Self { root })
    }

    /// The file or directory called `name` in the directory `parent`.
    pub fn lookup(&self, parent: Ino, name: &[u8]) -> Result<Attr, Error> {
        match self.tree(parent)? {
            (Tree::Volume(volume), parent) => volume.lookup(parent, name),
            (Tree::Folders(folders), parent) => folders.lookup(parent, name),
        }
    }

    /// Attributes of an inode. The size is exact and tells nothing that would need the data of a tensor.
    pub fn getattr(&self, ino: Ino) -> Result<Attr, Error> {
        if let Some((folders, model)) = self.model_root(ino) {
            return folders.model_attr(model);
        }
        match self.tree(ino)? {
            (Tree::Volume(volume), ino) => volume.getattr(ino),
            (Tree::Folders(folders), ino) => folders.getattr(ino),
        }
    }

    /// Hands the entries of a directory to `add`, from `offset` on, until it returns true: then it had no room for the
    /// entry.
    ///
    /// Offsets are places in the directory, which never changes: they stay good for the life of the mount.
    pub fn readdir<'s>(&'s self, ino: Ino, offset: u64, add: impl FnMut(Dentry<'s>) -> bool) -> Result<(), Error> {
        match self.tree(ino)? {
            (Tree::Volume(volume), ino) => volume.readdir(ino, offset, add),
            (Tree::Folders(folders), ino) => folders.readdir(ino, offset, add),
        }
    }

    /// The bytes of a file from `offset` on: `size` of them, fewer only at its end.
    ///
    /// They may lie in the map of a source: see [`crate::source::Source::bytes`]. A read that takes long looks at times
    /// whether it was `interrupted`.
    pub fn read<'s>(
        &'s self,
        ino: Ino,
        offset: u64,
        size: u32,
        interrupted: Interrupted<'s>,
    ) -> Result<Bytes<'s>, Error> {
        match self.tree(ino)? {
            (Tree::Volume(volume), ino) => volume.read(ino, offset, size, interrupted),
            (Tree::Folders(folders), ino) => folders.read(ino, offset, size),
        }
    }

    /// Whether reading a file may take long, because it is computed from the data of tensors.
    pub fn is_slow(&self, ino: Ino) -> bool {
        inode::is_slow(ino)
    }

    /// Where a symbolic link leads.
    pub fn readlink(&self, ino: Ino) -> Result<&[u8], Error> {
        match self.tree(ino)? {
            (Tree::Volume(_), _) => Err(Error::NotALink),
            (Tree::Folders(folders), ino) => folders.readlink(ino),
        }
    }

    /// The value of an extended attribute.
    pub fn getxattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>, Error> {
        if self.model_root(ino).is_some() {
            return Err(Error::NoAttribute);
        }
        match self.tree(ino)? {
            (Tree::Volume(volume), ino) => volume.getxattr(ino, name),
            (Tree::Folders(_), _) => Err(Error::NoAttribute),
        }
    }

    /// The names of the extended attributes of an inode, each ended by NUL.
    pub fn listxattr(&self, ino: Ino) -> Result<Vec<u8>, Error> {
        if self.model_root(ino).is_some() {
            return Ok(Vec::new());
        }
        match self.tree(ino)? {
            (Tree::Volume(volume), ino) => volume.listxattr(ino),
            (Tree::Folders(_), _) => Ok(Vec::new()),
        }
    }

    /// Size of the whole.
    pub fn statfs(&self) -> Statfs {
        match &self.root {
            Root::Volume(volume) => volume.statfs(),
            Root::Folders(folders) => folders.statfs(),
        }
    }

    /// The model of which an inode is the root: to tell of that, it need not be open.
    fn model_root(&self, ino: Ino) -> Option<(&Folders, u32)> {
        match &self.root {
            Root::Folders(folders) => Some((folders, Folders::root_of(ino)?)),
            Root::Volume(_) => None,
        }
    }

    /// The tree to which an inode number belongs, and what the number is there.
    fn tree(&self, ino: Ino) -> Result<(Tree<'_>, Ino), Error> {
        let (tree, local) = inode::split(ino);
        match &self.root {
            Root::Volume(volume) if tree == 0 => Ok((Tree::Volume(volume), local)),
            Root::Volume(_) => Err(Error::NoEntry),
            Root::Folders(folders) => match tree.checked_sub(1) {
                None => Ok((Tree::Folders(folders), local)),
                Some(model) => Ok((Tree::Volume(folders.volume(model)?), local)),
            },
        }
    }
}
