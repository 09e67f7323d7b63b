//! The directory of the cache: who may own it, and which layout it has. All later steps start from its descriptor, and
//! follow no symbolic links.

use super::error::{CacheError, CacheResult};
use nix::NixPath;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat, readlinkat, renameat};
use nix::sys::stat::{FileStat, Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::sys::statfs::fstatfs;
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Component, Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The layout that this program writes. It also reads all earlier ones, of which there are none yet.
const LAYOUT: u64 = 1;

/// Maximum number of symbolic links in a path, as in Linux.
const LINKS_MAX: usize = 40;

/// Values of `f_type` of file systems on local disks and in memory, from `linux/magic.h` and their sources. After a
/// write has succeeded, the page cache has the bytes until they are on the disk.
const LOCAL: &[u32] = &[
    0x0000_ef53, // ext2, ext3, ext4
    0x5846_5342, // XFS
    0x9123_683e, // btrfs
    0xca45_1a4e, // bcachefs
    0xf2f5_2010, // f2fs
    0x2fc1_2fc1, // ZFS
    0x794c_7630, // overlayfs
    0x0102_1994, // tmpfs
];

#[derive(Debug)]
pub(super) struct CacheDir {
    pub path: PathBuf,
    pub root: OwnedFd,
    /// Contains one directory for each object.
    pub objects: OwnedFd,
    /// The flags for writing data files. On file systems that are not local, a write can succeed and its bytes be
    /// lost later without a loss of power: for lack of space, or with the connection. There, each write waits.
    pub write_flags: OFlag,
}

impl CacheDir {
    /// Opens the cache, and with `create` creates it if necessary. `None` if it does not exist.
    pub fn open(path: &Path, create: bool) -> CacheResult<Option<Self>> {
        let Some(root) = walk_path(path, create)? else { return Ok(None) };
        let root = open_dir(&root, ".").map_err(CacheError::io(path))?;
        let stat = check_owner(&root, path)?;
        // This also takes the permissions to all that is below it away from others.
        if stat.st_mode & 0o7777 != 0o700 {
            fchmod(&root, Mode::S_IRWXU).map_err(CacheError::io(path))?;
        }
        check_layout(&root, path, create)?;
        // Programs that make backups leave out directories with this file. The cache works without it.
        if create && let Err(error) = write_tag(&root) {
            log::debug!("{}: no CACHEDIR.TAG: {error}", path.display());
        }
        let Some(objects) = subdirectory(&root, path, "objects", create)? else { return Ok(None) };
        let kind = fstatfs(&objects).map_err(CacheError::io(&path.join("objects")))?.filesystem_type().0 as u32;
        let write_flags = if LOCAL.contains(&kind) { OFlag::O_RDWR } else { OFlag::O_RDWR | OFlag::O_DSYNC };
        Ok(Some(Self { path: path.to_owned(), root, objects, write_flags }))
    }

    pub fn path_of(&self, id: impl std::fmt::Display) -> PathBuf {
        self.path.join("objects").join(id.to_string())
    }

    pub fn names(&self) -> CacheResult<Vec<String>> {
        names(&self.objects).map_err(CacheError::io(&self.path.join("objects")))
    }
}

/// `$XDG_CACHE_HOME/weightfs`, or `~/.cache/weightfs`. `None` without an absolute path to any of them.
pub fn default_dir() -> Option<PathBuf> {
    let cache = absolute_path("XDG_CACHE_HOME").or_else(|| Some(absolute_path("HOME")?.join(".cache")))?;
    Some(cache.join("weightfs"))
}

/// A directory in memory, for a cache whose disk is too small.
pub fn memory_dir() -> PathBuf {
    Path::new("/dev/shm").join(format!("weightfs-{}", geteuid()))
}

fn absolute_path(variable: &str) -> Option<PathBuf> {
    std::env::var_os(variable).map(PathBuf::from).filter(|path| path.is_absolute())
}

/// Follows a path one name at a time, so that the owner of each symbolic link is checked. `None` if it does not exist.
fn walk_path(path: &Path, create: bool) -> CacheResult<Option<OwnedFd>> {
    const FLAGS: OFlag = OFlag::O_PATH.union(OFlag::O_NOFOLLOW).union(OFlag::O_CLOEXEC);
    let mut dir = open_dir(AT_FDCWD, ".").map_err(CacheError::io(path))?;
    // The names still to follow, the next one last.
    let mut ahead = names_of(path);
    // The path since the last link, for messages.
    let mut seen = PathBuf::new();
    let mut links = 0;
    while let Some(name) = ahead.pop() {
        seen.push(&name);
        let opened = match openat(&dir, &*name, FLAGS, Mode::empty()) {
            Err(Errno::ENOENT) if create => {
                make_dir(&dir, &*name).and_then(|()| openat(&dir, &*name, FLAGS, Mode::empty()))
            }
            Err(Errno::ENOENT) => return Ok(None),
            opened => opened,
        };
        let at = opened.map_err(CacheError::io(&seen))?;
        let stat = fstat(&at).map_err(CacheError::io(&seen))?;
        if is(&stat, SFlag::S_IFDIR) {
            dir = at;
        } else if is(&stat, SFlag::S_IFLNK) {
            if stat.st_uid != geteuid().as_raw() && stat.st_uid != 0 {
                return Err(CacheError::Link { path: seen, owner: stat.st_uid });
            }
            links += 1;
            if links > LINKS_MAX {
                return Err(CacheError::io(path)(Errno::ELOOP));
            }
            let target = readlinkat(&at, "").map_err(CacheError::io(&seen))?;
            seen.pop();
            ahead.extend(names_of(Path::new(&target)));
        } else {
            return Err(CacheError::NotADirectory { path: seen });
        }
    }
    Ok(Some(dir))
}

/// The names of a path in reverse order.
fn names_of(path: &Path) -> Vec<OsString> {
    let names = path.components().filter(|component| *component != Component::CurDir);
    names.rev().map(|component| component.as_os_str().to_owned()).collect()
}

/// Opens a directory in that of the cache, which has this path. `None` if it does not exist.
pub(super) fn subdirectory(root: &OwnedFd, path: &Path, name: &str, create: bool) -> CacheResult<Option<OwnedFd>> {
    let path = path.join(name);
    if create {
        make_dir(root, name).map_err(CacheError::io(&path))?;
    }
    let opened = match open_dir(root, name) {
        Err(Errno::ENOENT) if !create => return Ok(None),
        Err(Errno::ENOTDIR | Errno::ELOOP) => return Err(CacheError::NotADirectory { path }),
        opened => opened.map_err(CacheError::io(&path))?,
    };
    check_owner(&opened, &path)?;
    Ok(Some(opened))
}

/// Creates a directory for the user alone, unless there is one.
pub(super) fn make_dir<P: ?Sized + NixPath>(dir: &OwnedFd, name: &P) -> nix::Result<()> {
    match mkdirat(dir, name, Mode::S_IRWXU) {
        Err(Errno::EEXIST) => Ok(()),
        made => made,
    }
}

fn check_owner(dir: &OwnedFd, path: &Path) -> CacheResult<FileStat> {
    let stat = fstat(dir).map_err(CacheError::io(path))?;
    let user = geteuid().as_raw();
    if stat.st_uid != user {
        return Err(CacheError::NotOwned { path: path.to_owned(), owner: stat.st_uid, user });
    }
    Ok(stat)
}

/// Reads the number of the layout. A file without a number was not written completely.
fn check_layout(dir: &OwnedFd, path: &Path, create: bool) -> CacheResult<()> {
    let file_path = path.join("layout");
    let flags = if create { OFlag::O_RDWR | OFlag::O_CREAT } else { OFlag::O_RDONLY };
    let mut file = match open_file(dir, "layout", flags) {
        Err(Errno::ENOENT) => return Ok(()),
        file => file.map_err(CacheError::io(&file_path))?,
    };
    let mut text = String::new();
    // Bytes that are no text are not a number either.
    _ = Read::by_ref(&mut file).take(64).read_to_string(&mut text);
    match text.trim().parse::<u64>() {
        Ok(found) if found > LAYOUT => Err(CacheError::Layout { path: file_path, found, known: LAYOUT }),
        Ok(_) => Ok(()),
        Err(_) if create => file
            .set_len(0)
            .and_then(|()| file.write_all_at(format!("{LAYOUT}\n").as_bytes(), 0))
            .map_err(CacheError::io(&file_path)),
        Err(_) => Ok(()),
    }
}

/// See <https://bford.info/cachedir/>.
fn write_tag(dir: &OwnedFd) -> io::Result<()> {
    match open_file(dir, "CACHEDIR.TAG", OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL) {
        Err(Errno::EEXIST) => Ok(()),
        file => file?.write_all(b"Signature: 8a477f597d28d172789f06886806bc55\n# The cache of weightfs.\n"),
    }
}

fn is(stat: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(stat.st_mode) & SFlag::S_IFMT == kind
}

pub(super) fn file_id(stat: &FileStat) -> (u64, u64) {
    (stat.st_dev as _, stat.st_ino as _)
}

pub(super) fn open_dir<D: AsFd>(dir: D, name: &str) -> nix::Result<OwnedFd> {
    openat(dir, name, OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_RDONLY | OFlag::O_CLOEXEC, Mode::empty())
}

/// Opens a regular file, without following a symbolic link. A file that is created has the permissions 0600.
pub(super) fn open_file<D: AsFd>(dir: D, name: &str, flags: OFlag) -> nix::Result<File> {
    // Without O_NONBLOCK, opening a named pipe would wait.
    let flags = flags | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let file = openat(dir, name, flags, Mode::S_IRUSR | Mode::S_IWUSR)?;
    if is(&fstat(&file)?, SFlag::S_IFREG) { Ok(file.into()) } else { Err(Errno::EINVAL) }
}

/// The attributes of what has a name. `None` if nothing has.
pub(super) fn stat_at<D: AsFd>(dir: D, name: &str) -> nix::Result<Option<FileStat>> {
    match fstatat(dir, name, AtFlags::AT_SYMLINK_NOFOLLOW) {
        Err(Errno::ENOENT | Errno::ENOTDIR) => Ok(None),
        stat => stat.map(Some),
    }
}

/// The names in a directory. Names that are not UTF-8 are left out; the cache has none.
pub(super) fn names(dir: &OwnedFd) -> io::Result<Vec<String>> {
    let mut listing = Dir::from_fd(open_dir(dir, ".")?)?;
    let mut names = Vec::new();
    for entry in listing.iter() {
        if let Ok(name) = entry?.file_name().to_str()
            && name != "."
            && name != ".."
        {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

pub(super) fn modified(stat: &FileStat) -> SystemTime {
    let since = Duration::new(stat.st_mtime.try_into().unwrap_or_default(), stat.st_mtime_nsec as u32);
    SystemTime::UNIX_EPOCH + since
}

/// Writes a file that is complete as soon as it has its name. Only one process at a time may do so; `temporary` is the
/// name until then, which a process that was killed may have left.
pub(super) fn replace_file(dir: &OwnedFd, name: &str, temporary: &str, parts: &[&[u8]]) -> io::Result<()> {
    remove(dir, temporary)?;
    let mut file = open_file(dir, temporary, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL)?;
    parts.iter().try_for_each(|part| file.write_all(part))?;
    match renameat(dir, temporary, dir, name) {
        // Nothing of weightfs makes directories here.
        Err(Errno::EISDIR) => {
            remove(dir, name)?;
            Ok(renameat(dir, temporary, dir, name)?)
        }
        renamed => Ok(renamed?),
    }
}

/// Removes a name if it is in use. An empty directory is removed too.
pub(super) fn remove<D: AsFd>(dir: D, name: &str) -> io::Result<()> {
    let removed = match unlinkat(&dir, name, UnlinkatFlags::NoRemoveDir) {
        Err(Errno::EISDIR) => unlinkat(&dir, name, UnlinkatFlags::RemoveDir),
        removed => removed,
    };
    match removed {
        Ok(()) | Err(Errno::ENOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}
