//! A file that is being written: knows that it stands under its name only when it is whole and on the disk.

use super::{Error, is_unsupported, prefix, sync_names};
use crate::source::strerror;
use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::{AccessFlags, eaccess, linkat};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, Metadata, OpenOptions, Permissions};
use std::io::{self, ErrorKind, IsTerminal};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use tempfile::{Builder, TempPath};
use xattr::FileExt;

/// What the name of a file that is not finished ends in. It begins with a dot and the name that it will have.
pub const MARK: &str = ".weightfs-tmp";

/// What was tried where a directory takes no file.
const BESIDE: &str = "no file can be made beside it: ";

/// What was tried where bytes do not reach the disk.
const NOT_SYNCED: &str = "cannot be brought to the disk: ";

/// A file that is being written. Dropped before it is committed it leaves nothing.
///
/// It has no name at first where the file system can do that, so that nothing stays even of a process that is killed; else one
/// that ends in [`MARK`]. A pipe or a device has nothing to replace, and gets the bytes as they come.
#[derive(Debug)]
pub struct Output {
    /// As it was given, for messages.
    path: PathBuf,
    file: File,
    place: Place,
}

#[derive(Debug)]
enum Place {
    /// A file without a name, that will stand at `target`.
    Unnamed { target: Target },
    /// One with a name, which it loses when this is dropped.
    Named { name: TempPath, target: Target },
    /// Where the bytes are to go.
    Direct,
}

/// Where a file will stand, links followed.
#[derive(Debug)]
struct Target {
    dir: PathBuf,
    name: OsString,
}

/// Whether a path means standard output: `-`, or a name that the system has for it. To replace the file behind such a name
/// would take away what others have written there, or will.
pub fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path.as_os_str() == *name)
}

impl Output {
    /// Begins a file that will stand at `path`, or goes to standard output where [`is_stdout`] says so. Links are followed; what is
    /// replaced passes owner, permissions and extended attributes on, and a new file gets `mode` less the umask.
    pub fn create(path: &Path, mode: u32) -> Result<Self, Error> {
        Self::begin(path, mode).map_err(|(what, error)| Error::Io { path: path.to_owned(), what, error })
    }

    fn begin(path: &Path, mode: u32) -> Result<Self, (&'static str, io::Error)> {
        let output = |file, place| Self { path: path.to_owned(), file, place };
        let plain = |error| ("", error);
        if is_stdout(path) {
            let stdout = io::stdout();
            if stdout.is_terminal() {
                return Err((
                    "",
                    io::Error::other("standard output is a terminal, and a model is no text; name a file"),
                ));
            }
            return Ok(output(stdout.as_fd().try_clone_to_owned().map_err(plain)?.into(), Place::Direct));
        }
        // By the path as it was given: /dev/fd/63 leads to a pipe that has no other name.
        match fs::metadata(path).as_ref().map(Metadata::file_type) {
            Ok(kind) if kind.is_dir() => return Err(plain(nix::errno::Errno::EISDIR.into())),
            Ok(kind) if !kind.is_file() => {
                return Ok(output(OpenOptions::new().write(true).open(path).map_err(plain)?, Place::Direct));
            }
            _ => {}
        }
        let target = Target::find(path).map_err(plain)?;
        let old = target.old().map_err(plain)?;
        // The directory alone decides who may replace it; but who protects a file means it.
        if old.is_some() {
            eaccess(&target.path(), AccessFlags::W_OK).map_err(|errno| ("may not be written to: ", errno.into()))?;
        }
        // Nobody may read it before it has the permissions of what it replaces.
        let mode = if old.is_some() { 0o600 } else { mode & 0o777 };
        let unnamed =
            OpenOptions::new().read(true).write(true).mode(mode).custom_flags(nix::libc::O_TMPFILE).open(&target.dir);
        match unnamed {
            // It gets its name by way of /proc.
            Ok(file) if proc_path(&file).exists() => Ok(output(file, Place::Unnamed { target })),
            Err(error) if !is_unsupported(&error) => Err((BESIDE, error)),
            _ => {
                let open =
                    |path: &Path| OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(path);
                let (file, name) = target.temporary(open).map_err(|error| (BESIDE, error))?;
                Ok(output(file, Place::Named { name, target }))
            }
        }
    }

    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether the bytes go where they belong as they come.
    pub fn is_direct(&self) -> bool {
        matches!(self.place, Place::Direct)
    }

    /// Brings what was written to the disk: so much less is left to do at the end.
    pub fn sync(&self) -> Result<(), Error> {
        match self.place {
            Place::Direct => Ok(()),
            _ => self.file.sync_all().map_err(|error| self.error(NOT_SYNCED, error)),
        }
    }

    /// Puts the file under its name, when all of it is on the disk.
    pub fn commit(self) -> Result<(), Error> {
        let Self { path, file, place } = self;
        let failed = |what: &'static str| {
            let path = &path;
            move |error: io::Error| Error::Io { path: path.clone(), what, error }
        };
        let (target, name) = match place {
            Place::Direct => return Ok(()),
            Place::Unnamed { target } => (target, None),
            Place::Named { name, target } => (target, Some(name)),
        };
        if let Some(old) = target.old().map_err(failed(""))? {
            if !old.is_file() {
                return Err(failed("something else stands there now: ")(nix::errno::Errno::EEXIST.into()));
            }
            keep(&target.path(), &old, &file).map_err(|(what, error)| failed(what)(error))?;
        }
        file.sync_all().map_err(failed(NOT_SYNCED))?;
        let link = |name: &Path| Ok(linkat(AT_FDCWD, &proc_path(&file), AT_FDCWD, name, AtFlags::AT_SYMLINK_FOLLOW)?);
        let name = match name {
            Some(name) => name,
            None => target.temporary(link).map_err(failed("cannot be named: "))?.1,
        };
        name.persist(target.path()).map_err(|kept| failed("cannot be replaced: ")(kept.error))?;
        sync_names(&target.dir).map_err(failed("written, but not yet on the disk for sure: "))
    }

    pub(super) fn error(&self, what: &'static str, error: io::Error) -> Error {
        Error::Io { path: self.path.clone(), what, error }
    }
}

impl Target {
    /// Where a file would stand, links followed.
    fn find(path: &Path) -> io::Result<Self> {
        let place = match path.canonicalize() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // Only a directory can be meant, and there is none.
                if [&b"/"[..], b"/."].iter().any(|end| path.as_os_str().as_encoded_bytes().ends_with(end)) {
                    return Err(error);
                }
                let name = path.file_name().ok_or(nix::errno::Errno::EISDIR)?;
                let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let place = dir.canonicalize()?.join(name);
                match fs::read_link(&place) {
                    // To what is not there yet. There is no circle of links: that is another error.
                    Ok(link) => return Self::find(&place.with_file_name(link)),
                    Err(_) => place,
                }
            }
            place => place?,
        };
        match (place.parent(), place.file_name()) {
            (Some(dir), Some(name)) => Ok(Self { dir: dir.to_owned(), name: name.to_owned() }),
            _ => Err(nix::errno::Errno::EISDIR.into()),
        }
    }

    /// What stands there now. Links were followed before: one that has come since is somebody's who wants a file to look like
    /// another.
    fn old(&self) -> io::Result<Option<Metadata>> {
        match fs::symlink_metadata(self.path()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            metadata => metadata.map(Some),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Makes something under a name that nothing else has.
    fn temporary<T>(&self, make: impl FnMut(&Path) -> io::Result<T>) -> io::Result<(T, TempPath)> {
        Ok(Builder::new().prefix(&prefix(&self.name)).suffix(MARK).make_in(&self.dir, make)?.into_parts())
    }
}

/// The name by which the kernel knows an open file.
fn proc_path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Gives `new` the owner, permissions and extended attributes of the file at `path`; or says what cannot be had, and why.
fn keep(path: &Path, old: &Metadata, new: &File) -> Result<(), (&'static str, io::Error)> {
    let ours = new.metadata().map_err(|error| ("", error))?;
    if (old.uid(), old.gid()) != (ours.uid(), ours.gid()) {
        let failed = |error| ("cannot keep its owner and group: ", error);
        fchown(new, Some(old.uid()), Some(old.gid())).map_err(failed)?;
    }
    let mode = Permissions::from_mode(old.mode() & 0o7777);
    new.set_permissions(mode).map_err(|error| ("cannot keep its permissions: ", error))?;
    // After these: an access control list is an attribute, and holds permissions too.
    keep_attributes(path, new).map_err(|error| ("cannot keep its extended attributes: ", error))
}

fn keep_attributes(path: &Path, new: &File) -> io::Result<()> {
    // What the system itself keeps there, it gives to new files too.
    let is_system = |name: &OsStr| {
        ["security.", "trusted."].iter().any(|space| name.as_encoded_bytes().starts_with(space.as_bytes()))
    };
    let names: Vec<OsString> = match xattr::list(path) {
        Err(error) if error.raw_os_error() == Some(nix::libc::EOPNOTSUPP) => return Ok(()),
        names => names?.collect(),
    };
    // The directory may give its new files an access control list that lets others in.
    for name in new.list_xattr()?.filter(|name| !names.contains(name) && !is_system(name)) {
        new.remove_xattr(name)?;
    }
    for name in names {
        let Some(value) = xattr::get(path, &name)? else { continue };
        if new.get_xattr(&name).is_ok_and(|found| found.as_ref() == Some(&value)) {
            continue;
        }
        if let Err(error) = new.set_xattr(&name, &value) {
            if !is_system(&name) {
                return Err(error);
            }
            log::warn!("{}: the attribute {} is not kept: {}", path.display(), name.display(), strerror(&error));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_link_that_came_meanwhile_lends_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("file"), dir.path().join("other"));
        fs::write(&path, "old").unwrap();
        fs::write(&other, "other").unwrap();
        let mut output = Output::create(&path, 0o666).unwrap();
        output.write(b"new").unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        assert!(output.commit().unwrap_err().to_string().contains("something else stands there now"));
        assert!(path.is_symlink() && fs::read_dir(&dir).unwrap().count() == 2);
    }
}
