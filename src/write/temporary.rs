//! Temporary names of unfinished files, and writing names to the disk.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::Path;

/// The ending of the name of an unfinished file. Such a name begins with a dot and the final name.
pub const MARK: &str = ".weightfs-tmp";

/// The prefix of the temporary name of a file that will be called `name`.
pub(super) fn prefix(name: &OsStr) -> String {
    /// Most bytes of `name` in it, so that the whole fits.
    const NAME_MAX: usize = 200;
    let name = name.to_string_lossy();
    let cut = (0..=name.len().min(NAME_MAX)).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    format!(".{}.", &name[..cut])
}

/// Writes the names in a directory to the disk, if the file system supports that.
pub(super) fn sync_names(dir: &Path) -> io::Result<()> {
    match File::open(dir).and_then(|dir| dir.sync_all()) {
        Err(error) if !is_unsupported(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether the file system does not support an operation. An old kernel mistakes the creation of an unnamed file for
/// opening its directory.
pub(super) fn is_unsupported(error: &io::Error) -> bool {
    let unsupported = [nix::libc::EOPNOTSUPP, nix::libc::EISDIR, nix::libc::EINVAL, nix::libc::ENOENT];
    error.raw_os_error().is_some_and(|error| unsupported.contains(&error))
}
