//! A name in an open directory. All steps of writing a file start from that directory, so that a user who can rename
//! directories on the path cannot redirect a later step.

use super::temporary::{MARK, prefix};
use crate::source::FileId;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat, mkdirat};
use nix::sys::statfs::{PROC_SUPER_MAGIC, fstatfs};
use nix::unistd::{AccessFlags, UnlinkatFlags, faccessat, geteuid, linkat, unlinkat};
use rustix::fs::RenameFlags;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path};
use std::sync::Arc;

/// As in Linux.
const LINKS_MAX: usize = 40;

/// Maximum number of temporary names that are tried.
const TRIES_MAX: u32 = 1 << 16;

/// The target of a path.
#[derive(Debug)]
pub(super) enum FoundPath {
    Dir(OwnedFd),
    /// A name that is not in use, or that of something else than a directory.
    Name {
        place: PlaceName,
        /// Keeps what has the name open, so that no other file gets its inode number.
        at: Option<OwnedFd>,
        /// Whether the path ends in a slash, so that it can only be that of a directory.
        is_dir: bool,
    },
    /// An open pipe or another object that has a name in /proc only.
    Unnamed(File),
}

/// A name in an open directory.
#[derive(Debug, Clone)]
pub(super) struct PlaceName {
    pub dir: Arc<OwnedFd>,
    pub name: OsString,
}

impl FoundPath {
    /// Follows a path one name at a time. Symlinks in it are followed too, unless a link belongs to another user who
    /// is neither root nor the owner of what the link leads to: that user could choose which file is replaced.
    pub fn at(path: &Path) -> io::Result<Self> {
        let mut ahead: Vec<OsString> = names_from_end(path).collect();
        // Only the end of the path matters: the other names must be those of directories anyway.
        let mut is_dir = ends_in_slash(path);
        if ahead.is_empty() {
            return Err(Errno::ENOENT.into());
        }
        let mut dir = open_dir(AT_FDCWD, ".")?;
        let mut owners: Vec<u32> = Vec::new();
        while let Some(name) = ahead.pop() {
            match open_dir(&dir, &*name) {
                Err(Errno::ENOENT) if ahead.is_empty() => {
                    check_links(&owners, fstat(&dir)?.st_uid)?;
                    let place = PlaceName { dir: Arc::new(dir), name };
                    return Ok(Self::Name { place, at: None, is_dir });
                }
                Err(Errno::ENOTDIR | Errno::ELOOP) => {}
                next => {
                    dir = next?;
                    continue;
                }
            }
            let at = open_at(&dir, &name)?;
            let stat = fstat(&at)?;
            if !is(&stat, SFlag::S_IFLNK) {
                if !ahead.is_empty() {
                    return Err(Errno::ENOTDIR.into());
                }
                check_links(&owners, stat.st_uid)?;
                let place = PlaceName { dir: Arc::new(dir), name };
                return Ok(Self::Name { place, at: Some(at), is_dir });
            }
            if owners.len() == LINKS_MAX {
                return Err(Errno::ELOOP.into());
            }
            let target = readlinkat(&at, "")?;
            if is_unnamed(&dir, &target) && ahead.is_empty() {
                // The process that holds it belongs to the owner of this link. Another user could choose a process of
                // root here, or exchange the descriptor for another one at any time.
                owners.push(stat.st_uid);
                check_links(&owners, geteuid().as_raw())?;
                let flags = OFlag::O_WRONLY | OFlag::O_CLOEXEC;
                return Ok(Self::Unnamed(openat(&dir, &*name, flags, Mode::empty())?.into()));
            }
            owners.push(stat.st_uid);
            is_dir |= ahead.is_empty() && ends_in_slash(target.as_ref());
            ahead.extend(names_from_end(target.as_ref()));
        }
        check_links(&owners, fstat(&dir)?.st_uid)?;
        Ok(Self::Dir(dir))
    }
}

fn ends_in_slash(path: &Path) -> bool {
    let path = path.as_os_str().as_bytes();
    path.ends_with(b"/") || path.ends_with(b"/.")
}

fn names_from_end(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().rev().map(|component| component.as_os_str().to_owned())
}

impl PlaceName {
    /// The place of a file at a relative path in a directory; a symlink on the way is not followed. With `create`,
    /// directories on the way are created.
    pub fn below(dir: &Arc<OwnedFd>, relative: &Path, create: bool) -> io::Result<Self> {
        let mut names: Vec<&OsStr> = Vec::new();
        for component in relative.components() {
            match component {
                Component::Normal(name) => names.push(name),
                _ => return Err(Errno::EINVAL.into()),
            }
        }
        let name = names.pop().ok_or(Errno::EINVAL)?.to_owned();
        let mut dir = dir.clone();
        for name in names {
            let made = if create { mkdirat(&dir, name, Mode::from_bits_truncate(0o777)) } else { Ok(()) };
            match made {
                Ok(()) | Err(Errno::EEXIST) => dir = Arc::new(open_dir(&dir, name)?),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(Self { dir, name })
    }

    /// The attributes of the file that has the name now, if there is one; a symlink is not followed.
    pub fn stat(&self) -> io::Result<Option<FileStat>> {
        match fstatat(&self.dir, &*self.name, AtFlags::AT_SYMLINK_NOFOLLOW) {
            Err(Errno::ENOENT) => Ok(None),
            stat => Ok(Some(stat?)),
        }
    }

    /// Whether the name is that of this file now.
    pub fn is(&self, file: FileId) -> io::Result<bool> {
        Ok(self.stat()?.is_some_and(|stat| id(&stat) == file))
    }

    /// Whether both are the same name in the same directory.
    pub fn is_same(&self, other: &Self) -> bool {
        let dirs = (fstat(&self.dir), fstat(&other.dir));
        self.name == other.name && matches!(dirs, (Ok(dir), Ok(other)) if id(&dir) == id(&other))
    }

    /// Opens the file that has the name; a symlink is not followed.
    pub fn open(&self, flags: OFlag, mode: u32) -> io::Result<File> {
        let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        Ok(openat(&self.dir, &*self.name, flags, Mode::from_bits_truncate(mode))?.into())
    }

    /// Opens the file if it is still `file`, to read its attributes. This needs permission to read or to write.
    pub fn open_attributes(&self, file: FileId) -> io::Result<File> {
        // Without O_NONBLOCK, opening a pipe that has taken the name would wait for a writer.
        let read = self.open(OFlag::O_RDONLY | OFlag::O_NONBLOCK, 0);
        let opened = read.or_else(|error| self.open(OFlag::O_WRONLY | OFlag::O_NONBLOCK, 0).map_err(|_| error))?;
        if id(&fstat(&opened)?) != file { Err(Errno::EEXIST.into()) } else { Ok(opened) }
    }

    /// Fails unless this user may write to the file. A rename needs only permissions of the directory, but a
    /// write-protected file must not be replaced.
    pub fn check_writable(&self) -> io::Result<()> {
        let flags = AtFlags::AT_EACCESS | AtFlags::AT_SYMLINK_NOFOLLOW;
        Ok(faccessat(&self.dir, &*self.name, AccessFlags::W_OK, flags)?)
    }

    /// Calls `make` with temporary names in the same directory, until it does not fail because the name is in use.
    pub fn temporary<T>(&self, make: impl FnMut(&Self) -> io::Result<T>) -> io::Result<(T, Self)> {
        temporary(&self.dir, &prefix(&self.name), make)
    }

    /// renameat2(2). With glibc, this calls its function, which tests/mount/race.c intercepts.
    #[cfg(target_env = "gnu")]
    fn rename(&self, to: &Self, flags: RenameFlags) -> nix::Result<()> {
        let flags = nix::fcntl::RenameFlags::from_bits_retain(flags.bits());
        nix::fcntl::renameat2(&self.dir, &*self.name, &to.dir, &*to.name, flags)
    }

    /// renameat2(2). musl has no function for it.
    #[cfg(not(target_env = "gnu"))]
    fn rename(&self, to: &Self, flags: RenameFlags) -> nix::Result<()> {
        let renamed = rustix::fs::renameat_with(&self.dir, &*self.name, &to.dir, &*to.name, flags);
        renamed.map_err(|error| Errno::from_raw(error.raw_os_error()))
    }

    /// Gives this name to the file that has the name `from` in the same directory. The name must not be in use.
    pub fn take(&self, from: &Self) -> io::Result<()> {
        match from.rename(self, RenameFlags::NOREPLACE) {
            Err(errno) if is_unsupported(errno) => match self.stat()? {
                Some(_) => Err(Errno::EEXIST.into()),
                None => Ok(nix::fcntl::renameat(&from.dir, &*from.name, &self.dir, &*self.name)?),
            },
            taken => Ok(taken?),
        }
    }

    /// Replaces the file `old`, which has this name, by the file `new`, which has the name `from`. Fails if another
    /// file has the name; that file then keeps it.
    ///
    /// The two names are exchanged, so that `old` can be checked before it is removed.
    pub fn replace(&self, old: FileId, from: &Self, new: FileId) -> io::Result<()> {
        match from.rename(self, RenameFlags::EXCHANGE) {
            Err(errno) if is_unsupported(errno) => {
                if !self.is(old)? {
                    return Err(Errno::EEXIST.into());
                }
                nix::fcntl::renameat(&from.dir, &*from.name, &self.dir, &*self.name)?;
                if self.is(new)? { Ok(()) } else { Err(Errno::EEXIST.into()) }
            }
            exchanged => {
                exchanged?;
                if self.is(new)? && from.is(old)? {
                    return from.remove();
                }
                from.rename(self, RenameFlags::EXCHANGE)?;
                Err(Errno::EEXIST.into())
            }
        }
    }

    /// Gives the file another name in the same directory, which may replace a file there.
    pub fn rename_to(&self, name: &str) -> io::Result<Self> {
        let to = Self { dir: self.dir.clone(), name: name.into() };
        nix::fcntl::renameat(&self.dir, &*self.name, &to.dir, &*to.name)?;
        Ok(to)
    }

    /// Gives the file a second name, which must not be in use.
    pub fn link_to(&self, to: &Self) -> io::Result<()> {
        Ok(linkat(&self.dir, &*self.name, &to.dir, &*to.name, AtFlags::empty())?)
    }

    pub fn remove(&self) -> io::Result<()> {
        Ok(unlinkat(&self.dir, &*self.name, UnlinkatFlags::NoRemoveDir)?)
    }
}

/// Calls `make` with temporary names in a directory, until it does not fail because the name is in use.
pub(super) fn temporary<T>(
    dir: &Arc<OwnedFd>,
    prefix: &str,
    mut make: impl FnMut(&PlaceName) -> io::Result<T>,
) -> io::Result<(T, PlaceName)> {
    let random = RandomState::new();
    for at in 0..TRIES_MAX {
        let name = format!("{prefix}{:08x}{MARK}", random.hash_one(at) as u32);
        let place = PlaceName { dir: dir.clone(), name: name.into() };
        match make(&place) {
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            made => return Ok((made?, place)),
        }
    }
    Err(Errno::EEXIST.into())
}

pub(super) fn id(stat: &FileStat) -> FileId {
    (stat.st_dev, stat.st_ino)
}

/// Whether the file type is `kind`.
pub(super) fn is(stat: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits()) == kind
}

/// Opens a directory that other paths start from; a symlink is not followed.
pub(super) fn open_dir<P: ?Sized + nix::NixPath>(dir: impl AsFd, name: &P) -> Result<OwnedFd, Errno> {
    // With O_DIRECTORY, opening an automount point mounts its file system.
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    openat(dir, name, flags, Mode::empty())
}

/// Opens whatever has the name, without access to its content; a symlink is not followed.
fn open_at(dir: impl AsFd, name: &OsStr) -> Result<OwnedFd, Errno> {
    openat(dir, name, OFlag::O_PATH | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC, Mode::empty())
}

/// Whether a link in `dir` is one of those by which /proc lists open files without a name: `pipe:[123]`.
fn is_unnamed(dir: &OwnedFd, target: &OsStr) -> bool {
    let looks_like = !target.as_bytes().starts_with(b"/") && target.as_bytes().windows(2).any(|pair| pair == b":[");
    looks_like && fstatfs(dir).is_ok_and(|stat| stat.filesystem_type() == PROC_SUPER_MAGIC)
}

/// Fails if a symlink of one of these owners may not be followed to something that belongs to `target`.
fn check_links(owners: &[u32], target: u32) -> io::Result<()> {
    let ours = geteuid().as_raw();
    match owners.iter().find(|owner| ![0, ours, target].contains(owner)) {
        Some(owner) => Err(io::Error::other(format!(
            "a symbolic link of user {owner} leads to a file or directory of user {target}; give the path without the \
             link"
        ))),
        None => Ok(()),
    }
}

/// Whether the file system or the kernel does not support the flags of renameat2(2).
fn is_unsupported(errno: Errno) -> bool {
    [Errno::EINVAL, Errno::ENOSYS, Errno::EOPNOTSUPP].contains(&errno)
}
