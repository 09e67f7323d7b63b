//! An output file, which gets its name once it is complete and on the disk.

use super::error::Error;
use super::temporary::{MARK, is_unsupported, prefix, sync_names};
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

/// Error context: a file cannot be created in the directory of the output file.
const BESIDE: &str = "cannot create a file beside it: ";

/// Error context: data cannot be written to the disk.
const NOT_SYNCED: &str = "cannot be written to the disk: ";

/// An output file that is being written. If it is dropped before the commit, nothing remains.
///
/// If the file system supports it, the file has no name at first, so that nothing remains even if the process is
/// killed. Otherwise it has a temporary name that ends in [`MARK`]. Pipes and devices are written to directly.
#[derive(Debug)]
pub struct Output {
    /// The path as given, for messages.
    path: PathBuf,
    file: File,
    stage: Stage,
}

/// Where the bytes are until the commit.
#[derive(Debug)]
enum Stage {
    /// In a file without a name.
    Unnamed { target: Destination },
    /// In a file with a temporary name. The file is removed on drop.
    Named { name: TempPath, target: Destination },
    /// At their destination.
    Direct,
}

/// The final place of a file, after following links.
#[derive(Debug)]
struct Destination {
    dir: PathBuf,
    name: OsString,
}

/// Whether a path means standard output: `-`, or the system's names for it. If standard output is a file, it must not
/// be replaced, because other programs may write to it too.
pub fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path.as_os_str() == *name)
}

impl Output {
    /// Starts to write the file `path`, or standard output if [`is_stdout`] is true. Links are followed. A file that
    /// replaces another keeps its owner, permissions and extended attributes; a new file gets `mode` less the umask.
    pub fn create(path: &Path, mode: u32) -> Result<Self, Error> {
        Self::begin(path, mode).map_err(|(what, error)| Error::Io { path: path.to_owned(), what, error })
    }

    fn begin(path: &Path, mode: u32) -> Result<Self, (&'static str, io::Error)> {
        let output = |file, stage| Self { path: path.to_owned(), file, stage };
        let plain = |error| ("", error);
        if is_stdout(path) {
            let stdout = io::stdout();
            if stdout.is_terminal() {
                return Err((
                    "",
                    io::Error::other("standard output is a terminal, and a model is binary; give a file name"),
                ));
            }
            return Ok(output(stdout.as_fd().try_clone_to_owned().map_err(plain)?.into(), Stage::Direct));
        }
        // The path must not be resolved first: /dev/fd/63 may be a pipe that has no other name.
        match fs::metadata(path).as_ref().map(Metadata::file_type) {
            Ok(kind) if kind.is_dir() => return Err(plain(nix::errno::Errno::EISDIR.into())),
            Ok(kind) if !kind.is_file() => {
                return Ok(output(OpenOptions::new().write(true).open(path).map_err(plain)?, Stage::Direct));
            }
            _ => {}
        }
        let target = Destination::find(path).map_err(plain)?;
        let old = target.old().map_err(plain)?;
        // The kernel only checks the permissions of the directory, but a write-protected file must not be replaced.
        if old.is_some() {
            eaccess(&target.path(), AccessFlags::W_OK).map_err(|errno| ("is write-protected: ", errno.into()))?;
        }
        // Other users must not read the file before it has the permissions of the file that it replaces.
        let mode = if old.is_some() { 0o600 } else { mode & 0o777 };
        let unnamed =
            OpenOptions::new().read(true).write(true).mode(mode).custom_flags(nix::libc::O_TMPFILE).open(&target.dir);
        match unnamed {
            // The commit names the file through /proc.
            Ok(file) if proc_path(&file).exists() => Ok(output(file, Stage::Unnamed { target })),
            Err(error) if !is_unsupported(&error) => Err((BESIDE, error)),
            _ => {
                let open =
                    |path: &Path| OpenOptions::new().read(true).write(true).create_new(true).mode(mode).open(path);
                let (file, name) = target.temporary(open).map_err(|error| (BESIDE, error))?;
                Ok(output(file, Stage::Named { name, target }))
            }
        }
    }

    /// The file to write to.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// The path as given.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether bytes are written to their destination directly.
    pub fn is_direct(&self) -> bool {
        matches!(self.stage, Stage::Direct)
    }

    /// Syncs the data to the disk, so that the commit has less to do.
    pub fn sync(&self) -> Result<(), Error> {
        match self.stage {
            Stage::Direct => Ok(()),
            _ => self.file.sync_all().map_err(|error| self.error(NOT_SYNCED, error)),
        }
    }

    /// Syncs the file to the disk and gives it its name.
    pub fn commit(self) -> Result<(), Error> {
        let Self { path, file, stage } = self;
        let failed = |what: &'static str| {
            let path = &path;
            move |error: io::Error| Error::Io { path: path.clone(), what, error }
        };
        let (target, name) = match stage {
            Stage::Direct => return Ok(()),
            Stage::Unnamed { target } => (target, None),
            Stage::Named { name, target } => (target, Some(name)),
        };
        if let Some(old) = target.old().map_err(failed(""))? {
            if !old.is_file() {
                return Err(failed("something else is there now: ")(nix::errno::Errno::EEXIST.into()));
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
        sync_names(&target.dir).map_err(failed("written, but perhaps not on the disk yet: "))
    }

    pub(super) fn error(&self, what: &'static str, error: io::Error) -> Error {
        Error::Io { path: self.path.clone(), what, error }
    }
}

impl Destination {
    /// The destination of a path, after following links.
    fn find(path: &Path) -> io::Result<Self> {
        let path = match path.canonicalize() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                // The path means a directory that does not exist.
                if [&b"/"[..], b"/."].iter().any(|end| path.as_os_str().as_encoded_bytes().ends_with(end)) {
                    return Err(error);
                }
                let name = path.file_name().ok_or(nix::errno::Errno::EISDIR)?;
                let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let path = dir.canonicalize()?.join(name);
                match fs::read_link(&path) {
                    // The target of the link does not exist yet. A loop of links gives another error.
                    Ok(link) => return Self::find(&path.with_file_name(link)),
                    Err(_) => path,
                }
            }
            path => path?,
        };
        match (path.parent(), path.file_name()) {
            (Some(dir), Some(name)) => Ok(Self { dir: dir.to_owned(), name: name.to_owned() }),
            _ => Err(nix::errno::Errno::EISDIR.into()),
        }
    }

    /// The metadata of the file to be replaced, if there is one. A link that was created after [`Destination::find`] is
    /// not followed, because it may be an attack that redirects to another file.
    fn old(&self) -> io::Result<Option<Metadata>> {
        match fs::symlink_metadata(self.path()) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            metadata => metadata.map(Some),
        }
    }

    fn path(&self) -> PathBuf {
        self.dir.join(&self.name)
    }

    /// Calls `make` with a temporary path that is not in use.
    fn temporary<T>(&self, make: impl FnMut(&Path) -> io::Result<T>) -> io::Result<(T, TempPath)> {
        Ok(Builder::new().prefix(&prefix(&self.name)).suffix(MARK).make_in(&self.dir, make)?.into_parts())
    }
}

/// The path of an open file in /proc.
fn proc_path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// Gives `new` the owner, permissions and extended attributes of the file at `path`. An error includes the failed step.
fn keep(path: &Path, old: &Metadata, new: &File) -> Result<(), (&'static str, io::Error)> {
    let ours = new.metadata().map_err(|error| ("", error))?;
    if (old.uid(), old.gid()) != (ours.uid(), ours.gid()) {
        let failed = |error| ("cannot keep its owner and group: ", error);
        fchown(new, Some(old.uid()), Some(old.gid())).map_err(failed)?;
    }
    let mode = Permissions::from_mode(old.mode() & 0o7777);
    new.set_permissions(mode).map_err(|error| ("cannot keep its permissions: ", error))?;
    // Extended attributes come last, because an access control list is one of them and holds permissions.
    keep_attributes(path, new).map_err(|error| ("cannot keep its extended attributes: ", error))
}

fn keep_attributes(path: &Path, new: &File) -> io::Result<()> {
    // The kernel sets these attributes on new files itself.
    let is_system = |name: &OsStr| {
        ["security.", "trusted."].iter().any(|space| name.as_encoded_bytes().starts_with(space.as_bytes()))
    };
    let names: Vec<OsString> = match xattr::list(path) {
        Err(error) if error.raw_os_error() == Some(nix::libc::EOPNOTSUPP) => return Ok(()),
        names => names?.collect(),
    };
    // The directory may give new files a default access control list that admits other users.
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
            log::warn!(
                "{}: the extended attribute {} is not kept: {}",
                path.display(),
                name.display(),
                strerror(&error)
            );
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn link_created_before_commit_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("file"), dir.path().join("other"));
        fs::write(&path, "old").unwrap();
        fs::write(&other, "other").unwrap();
        let mut output = Output::create(&path, 0o666).unwrap();
        output.write(b"new").unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        assert!(output.commit().unwrap_err().to_string().contains("something else is there now"));
        assert!(path.is_symlink() && fs::read_dir(&dir).unwrap().count() == 2);
    }
}
