//! Temporary names of unfinished files, and syncing of directories.

use nix::errno::Errno;
use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;
use nix::unistd::fsync;
use std::ffi::OsStr;
use std::io;
use std::os::fd::AsFd;

/// The suffix of temporary names. A temporary name begins with a dot and the final name.
pub const MARK: &str = ".weightfs-tmp";

/// The prefix of the temporary name of a file whose final name is `name`.
pub(super) fn prefix(name: &OsStr) -> String {
    /// Maximum number of bytes of `name` in the prefix, so that the temporary name is not too long.
    const NAME_MAX: usize = 200;
    let name = name.to_string_lossy();
    let cut = (0..=name.len().min(NAME_MAX)).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    format!(".{}.", &name[..cut])
}

/// Whether `name` is a temporary name with this prefix.
pub(super) fn is_temporary(name: &OsStr, prefix: &str) -> bool {
    let random = name.to_str().and_then(|name| name.strip_prefix(prefix)?.strip_suffix(MARK));
    random.is_some_and(|random| !random.is_empty() && random.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// Syncs the names in a directory to the disk, if the file system supports that.
pub(super) fn sync_names(dir: &impl AsFd) -> io::Result<()> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    match openat(dir, ".", flags, Mode::empty()).and_then(fsync) {
        Err(errno) if !is_unsupported(errno) => Err(errno.into()),
        _ => Ok(()),
    }
}

/// Whether an error means that the file system does not support the operation. A kernel without O_TMPFILE takes the
/// creation of an unnamed file for opening the directory (EISDIR).
pub(super) fn is_unsupported(errno: Errno) -> bool {
    [Errno::EOPNOTSUPP, Errno::EISDIR, Errno::EINVAL, Errno::ENOENT].contains(&errno)
}

/// Locks an open file or directory until all its descriptors are closed. EWOULDBLOCK means that it is locked already.
pub(super) fn try_lock(file: &impl AsFd) -> Result<(), Errno> {
    let locked = rustix::fs::flock(file, rustix::fs::FlockOperation::NonBlockingLockExclusive);
    locked.map_err(|errno| Errno::from_raw(errno.raw_os_error()))
}
