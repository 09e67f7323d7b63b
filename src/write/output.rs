//! An output file, which gets its name once it is complete and on the disk.

use super::error::Error;
use super::place::{FoundPath, PlaceName, id, is};
use super::temporary::{is_unsupported, sync_names};
use crate::source::{FileId, SourceStat, strerror};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use nix::unistd::linkat;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions};
use std::io::{self, IsTerminal};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};
use xattr::FileExt;

/// Error context: a file cannot be created in the directory of the output file.
const BESIDE: &str = "cannot create a file beside it: ";

/// Error context: data cannot be written to the disk.
const NOT_SYNCED: &str = "cannot be written to the disk: ";

/// Error context: the name is that of another file than at the start.
const OTHER: &str = "something else is there now: ";

/// An output file that is being written. If it is dropped before the commit, nothing remains.
///
/// If the file system supports it, the file has no name at first, so that nothing remains even if the process is
/// killed. Otherwise it has a temporary name that ends in [`super::MARK`]. Pipes and devices are written to directly.
#[derive(Debug)]
pub struct OutputFile {
    /// The path as given, for messages.
    path: PathBuf,
    file: File,
    stage: OutputStage,
}

/// The place of the bytes until the commit.
#[derive(Debug)]
enum OutputStage {
    /// In a file without a name.
    Unnamed(TargetName),
    /// In a file with a temporary name.
    Named(TargetName, TemporaryName),
    /// At their destination.
    Direct,
}

/// The final name of a file.
#[derive(Debug)]
struct TargetName {
    place: PlaceName,
    /// The file to be replaced. It is kept open, so that no other file gets its inode number.
    old: Option<OwnedFd>,
    /// Owner and permissions of the source of the bytes: nobody else may read them in the place of `old`.
    source: Option<SourceStat>,
}

/// A temporary name of a file. It is removed on drop if it is still that of the file.
#[derive(Debug)]
struct TemporaryName {
    place: PlaceName,
    file: FileId,
}

impl Drop for TemporaryName {
    fn drop(&mut self) {
        if self.place.is(self.file).unwrap_or(false) {
            let _ = self.place.remove();
        }
    }
}

/// A file that is read, and then perhaps replaced by an [`OutputFile`].
#[derive(Debug)]
pub struct OriginalFile {
    /// The path as given, for messages.
    path: PathBuf,
    place: PlaceName,
    file: File,
    id: FileId,
}

/// Whether a path means standard output: `-`, or the system's names for it. If standard output is a file, it must not
/// be replaced, because other programs may write to it too.
pub fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path.as_os_str() == *name)
}

/// Opens the file `path` to append to it. A new file gets the mode 0666 less the umask.
///
/// Links are followed as by [`OutputFile::create`].
pub fn append(path: &Path) -> io::Result<File> {
    match FoundPath::at(path)? {
        FoundPath::Dir(_) => Err(Errno::EISDIR.into()),
        FoundPath::Unnamed(file) => Ok(file),
        FoundPath::Name { at: None, is_dir: true, .. } => Err(Errno::EISDIR.into()),
        FoundPath::Name { is_dir: true, .. } => Err(Errno::ENOTDIR.into()),
        FoundPath::Name { place, .. } => place.open(OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT, 0o666),
    }
}

impl OriginalFile {
    /// Opens a file for reading. Links are followed as by [`OutputFile::create`], and only once.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let open = || {
            let FoundPath::Name { place, at: Some(_), is_dir: false } = FoundPath::at(path)? else {
                return Err(io::Error::from(match path.is_dir() {
                    true => Errno::EISDIR,
                    false => Errno::ENOENT,
                }));
            };
            // Without O_NONBLOCK, opening a named pipe would wait for a writer.
            let file = place.open(OFlag::O_RDONLY | OFlag::O_NONBLOCK, 0)?;
            let id = id(&fstat(&file)?);
            Ok(Self { path: path.to_owned(), place, file, id })
        };
        open().map_err(|error| Error::Io { path: path.to_owned(), what: "", error })
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Its device and inode number. No other file has them while this is open.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Whether the file still has its name.
    pub fn is_current(&self) -> bool {
        self.place.is(self.id).unwrap_or(false)
    }

    /// Whether a path leads to the same name of the file. Two hard links of a file are not the same name.
    pub fn is_at(&self, path: &Path) -> bool {
        matches!(FoundPath::at(path), Ok(FoundPath::Name { place, .. }) if place.is_same(&self.place))
    }

    /// Whether this user may write to the file.
    pub fn is_writable(&self) -> bool {
        self.place.check_writable().is_ok()
    }

    /// Starts to write a file that replaces this one.
    pub fn replace(&self) -> Result<OutputFile, Error> {
        let begin = || {
            let old = self.file.as_fd().try_clone_to_owned().map_err(|error| ("", error))?;
            OutputFile::begin_at(&self.path, TargetName { place: self.place.clone(), old: Some(old), source: None }, 0)
        };
        begin().map_err(|(what, error)| Error::Io { path: self.path.clone(), what, error })
    }
}

impl OutputFile {
    /// Starts to write the file `path`, or standard output if [`is_stdout`] is true. A file that replaces another keeps
    /// its owner, permissions and extended attributes; a new file gets `mode` less the umask.
    ///
    /// A symlink is followed if it belongs to this user, to root, or to the owner of what it leads to. Another user
    /// could otherwise choose which file is replaced.
    pub fn create(path: &Path, mode: u32) -> Result<Self, Error> {
        Self::begin(path, mode).map_err(|(what, error)| Error::Io { path: path.to_owned(), what, error })
    }

    /// Lets nobody read the file who cannot read the source of its bytes, even if the file that it replaces allows
    /// that. Fails if that file belongs to such a user.
    pub fn limit_readers(&mut self, source: SourceStat) -> Result<(), Error> {
        let (OutputStage::Unnamed(target) | OutputStage::Named(target, _)) = &mut self.stage else { return Ok(()) };
        target.source = Some(source);
        let checked = match &target.old {
            None => Ok(()),
            Some(old) => fstat(old).map_err(io::Error::from).and_then(|stat| kept_mode(&stat, target.source).map(drop)),
        };
        checked.map_err(|error| self.error("", error))
    }

    /// An open file that is written to directly. `path` is its path for messages.
    pub(super) fn direct(path: &Path, file: File) -> Self {
        Self { path: path.to_owned(), file, stage: OutputStage::Direct }
    }

    /// Standard output, even if it is a terminal.
    pub fn stdout() -> io::Result<Self> {
        let file = io::stdout().as_fd().try_clone_to_owned()?.into();
        Ok(Self::direct(Path::new("standard output"), file))
    }

    /// Starts to write a new file in an open directory. `path` is its path for messages.
    pub(super) fn create_at(path: &Path, place: PlaceName, mode: u32) -> Result<Self, Error> {
        let target = TargetName { place, old: None, source: None };
        Self::begin_at(path, target, mode).map_err(|(what, error)| Error::Io { path: path.to_owned(), what, error })
    }

    fn begin(path: &Path, mode: u32) -> Result<Self, (&'static str, io::Error)> {
        let direct = |file| Ok(Self { path: path.to_owned(), file, stage: OutputStage::Direct });
        let plain = |error: io::Error| ("", error);
        let failed = |errno: Errno| Err(("", errno.into()));
        if is_stdout(path) {
            if io::stdout().is_terminal() {
                return Err((
                    "",
                    io::Error::other("standard output is a terminal, and a model is binary; give a file name"),
                ));
            }
            let output = Self::stdout().map_err(plain)?;
            return Ok(Self { path: path.to_owned(), ..output });
        }
        let (place, old) = match FoundPath::at(path).map_err(plain)? {
            FoundPath::Dir(_) => return failed(Errno::EISDIR),
            FoundPath::Unnamed(file) => return direct(file),
            FoundPath::Name { at: None, is_dir: true, .. } => return failed(Errno::ENOENT),
            FoundPath::Name { is_dir: true, .. } => return failed(Errno::ENOTDIR),
            FoundPath::Name { place, at, .. } => (place, at),
        };
        if let Some(at) = &old {
            let stat = fstat(at).map_err(|errno| ("", errno.into()))?;
            if !is(&stat, SFlag::S_IFREG) {
                let file = place.open(OFlag::O_WRONLY, 0).map_err(plain)?;
                let opened = fstat(&file).map_err(|errno| ("", errno.into()))?;
                // Nothing is written to a file that has taken the place of a pipe or device.
                return if id(&opened) == id(&stat) { direct(file) } else { Err((OTHER, Errno::EEXIST.into())) };
            }
            place.check_writable().map_err(|error| ("is write-protected: ", error))?;
        }
        Self::begin_at(path, TargetName { place, old, source: None }, mode)
    }

    fn begin_at(path: &Path, target: TargetName, mode: u32) -> Result<Self, (&'static str, io::Error)> {
        let output = |file, stage| Self { path: path.to_owned(), file, stage };
        // Other users must not read the file before it has the permissions of the file that it replaces.
        let mode = if target.old.is_some() { 0o600 } else { mode & 0o777 };
        let flags = OFlag::O_RDWR | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
        match openat(&target.place.dir, ".", flags, Mode::from_bits_truncate(mode)).map(File::from) {
            // The commit names the file through /proc.
            Ok(file) if proc_path(&file).exists() => Ok(output(file, OutputStage::Unnamed(target))),
            Err(errno) if !is_unsupported(errno) => Err((BESIDE, errno.into())),
            _ => {
                let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
                let made = target.place.temporary(|place| place.open(flags, mode));
                let (file, place) = made.map_err(|error| (BESIDE, error))?;
                let file_id = id(&fstat(&file).map_err(|errno| (BESIDE, errno.into()))?);
                Ok(output(file, OutputStage::Named(target, TemporaryName { place, file: file_id })))
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
        matches!(self.stage, OutputStage::Direct)
    }

    /// Device and inode number of the file that will be replaced, if there is one.
    pub fn replaces(&self) -> Option<FileId> {
        match &self.stage {
            OutputStage::Unnamed(target) | OutputStage::Named(target, _) => target.old_id(),
            OutputStage::Direct => None,
        }
    }

    /// Syncs the data to the disk, so that the commit has less to do.
    pub fn sync(&self) -> Result<(), Error> {
        match self.stage {
            OutputStage::Direct => Ok(()),
            _ => self.file.sync_all().map_err(|error| self.error(NOT_SYNCED, error)),
        }
    }

    /// Syncs the file to the disk and gives it its name. Fails if another file has got the name meanwhile.
    pub fn commit(self) -> Result<(), Error> {
        let Self { path, file, stage } = self;
        let committed = match stage {
            OutputStage::Direct => Ok(()),
            OutputStage::Unnamed(target) => target.give(&path, &file, None),
            OutputStage::Named(target, temporary) => target.give(&path, &file, Some(temporary)),
        };
        committed.map_err(|(what, error)| Error::Io { path, what, error })
    }

    pub(super) fn error(&self, what: &'static str, error: io::Error) -> Error {
        Error::Io { path: self.path.clone(), what, error }
    }
}

impl TargetName {
    fn old_id(&self) -> Option<FileId> {
        self.old.as_ref().and_then(|old| fstat(old).ok()).map(|stat| id(&stat))
    }

    /// Gives a file its final name. `path` is the final name for messages, and `temporary` the name that the file has
    /// now, if it has one. An error includes the failed step.
    fn give(
        &self,
        path: &Path,
        file: &File,
        temporary: Option<TemporaryName>,
    ) -> Result<(), (&'static str, io::Error)> {
        let place = &self.place;
        let step = |what: &'static str| move |error: io::Error| (what, error);
        let other = |error: io::Error| match error.raw_os_error() {
            Some(nix::libc::EEXIST | nix::libc::ELOOP) => (OTHER, Errno::EEXIST.into()),
            _ => ("cannot be replaced: ", error),
        };
        let now = place.stat().map_err(step(""))?;
        let old = match (&now, self.old_id()) {
            (None, _) => None,
            (Some(now), Some(old)) if id(now) == old => Some((now, old)),
            _ => return Err((OTHER, Errno::EEXIST.into())),
        };
        if let Some((stat, old)) = old {
            let opened = place.open_attributes(old).map_err(other)?;
            keep(path, &opened, stat, file, self.source)?;
        }
        file.sync_all().map_err(step(NOT_SYNCED))?;
        let new = id(&fstat(file).map_err(|errno| ("", errno.into()))?);
        let link = |place: &PlaceName| {
            Ok(linkat(AT_FDCWD, &proc_path(file), &place.dir, &*place.name, AtFlags::AT_SYMLINK_FOLLOW)?)
        };
        match (old, temporary) {
            (None, None) => link(place).map_err(other)?,
            (None, Some(temporary)) => place.take(&temporary.place).map_err(other)?,
            (Some((_, old)), temporary) => {
                let temporary = match temporary {
                    Some(temporary) => temporary,
                    None => {
                        let ((), place) = place.temporary(link).map_err(step("cannot be named: "))?;
                        TemporaryName { place, file: new }
                    }
                };
                place.replace(old, &temporary.place, new).map_err(other)?;
            }
        }
        if !place.is(new).map_err(step(""))? {
            return Err((OTHER, Errno::EEXIST.into()));
        }
        sync_names(&place.dir).map_err(step("written, but perhaps not on the disk yet: "))
    }
}

/// The path of an open file in /proc.
fn proc_path(file: &File) -> PathBuf {
    format!("/proc/self/fd/{}", file.as_raw_fd()).into()
}

/// The permissions of a file that replaces one with the attributes `old`: those of `old`, except for the group and the
/// others if they cannot read `source`. Fails if the owner of `old` cannot.
fn kept_mode(old: &FileStat, source: Option<SourceStat>) -> io::Result<u32> {
    let mode = old.st_mode & 0o7777;
    let Some(source) = source.filter(|source| source.mode & 0o004 == 0) else { return Ok(mode) };
    if old.st_uid != source.uid && old.st_uid != 0 {
        let error = format!(
            "belongs to user {}, who may not read the source (owner {}, permissions {:04o}); name another file",
            old.st_uid, source.uid, source.mode
        );
        return Err(io::Error::new(io::ErrorKind::PermissionDenied, error));
    }
    let group_reads = source.mode & 0o040 != 0 && old.st_gid == source.gid;
    Ok(mode & if group_reads { !0o007 } else { !0o077 })
}

/// Gives `new` the owner, permissions and extended attributes of the file `old`. Nobody can read `new` who cannot read
/// `source`. An error includes the failed step.
fn keep(
    path: &Path,
    old: &File,
    stat: &FileStat,
    new: &File,
    source: Option<SourceStat>,
) -> Result<(), (&'static str, io::Error)> {
    let mode = kept_mode(stat, source).map_err(|error| ("", error))?;
    let is_limited = mode != stat.st_mode & 0o7777;
    let ours = new.metadata().map_err(|error| ("", error))?;
    if (stat.st_uid, stat.st_gid) != (ours.uid(), ours.gid()) {
        let failed = |error| ("cannot keep its owner and group: ", error);
        fchown(new, Some(stat.st_uid), Some(stat.st_gid)).map_err(failed)?;
    }
    new.set_permissions(Permissions::from_mode(mode)).map_err(|error| ("cannot keep its permissions: ", error))?;
    // Extended attributes come last, because an access control list is one of them and holds permissions.
    keep_attributes(path, old, new, is_limited).map_err(|error| ("cannot keep its extended attributes: ", error))
}

/// Gives `new` the extended attributes of `old`, without access control lists if `is_limited`: they admit users and
/// groups by name.
fn keep_attributes(path: &Path, old: &File, new: &File, is_limited: bool) -> io::Result<()> {
    // The kernel sets these attributes on new files itself.
    let is_system = |name: &OsStr| {
        ["security.", "trusted."].iter().any(|space| name.as_encoded_bytes().starts_with(space.as_bytes()))
    };
    let names: Vec<OsString> = match old.list_xattr() {
        Err(error) if error.raw_os_error() == Some(nix::libc::EOPNOTSUPP) => return Ok(()),
        names => names?.filter(|name| !is_limited || name != "system.posix_acl_access").collect(),
    };
    // The directory may give new files a default access control list that admits other users.
    for name in new.list_xattr()?.filter(|name| !names.contains(name) && !is_system(name)) {
        new.remove_xattr(name)?;
    }
    for name in names {
        let Some(value) = old.get_xattr(&name)? else { continue };
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
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn link_created_before_commit_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (path, other) = (dir.path().join("file"), dir.path().join("other"));
        fs::write(&path, "old").unwrap();
        fs::write(&other, "other").unwrap();
        let mut output = OutputFile::create(&path, 0o666).unwrap();
        output.write(b"new").unwrap();
        fs::remove_file(&path).unwrap();
        symlink(&other, &path).unwrap();
        assert!(output.commit().unwrap_err().to_string().contains("something else is there now"));
        assert!(path.is_symlink() && fs::read_dir(&dir).unwrap().count() == 2);
    }
}
