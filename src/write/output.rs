//! An output file, which gets its name once it is complete and on the disk.

use super::error::{Error, step};
use super::place::{FoundPath, PlaceName, id, is};
use super::temporary::{is_unsupported, sync_names, try_lock};
use crate::source::{FileId, SourceStat, strerror};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, FcntlArg, OFlag, fcntl, openat};
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
    pub(super) path: PathBuf,
    pub(super) file: File,
    /// `None` if bytes are written to their destination directly.
    pub(super) target: Option<TargetName>,
}

/// The final name of a file.
#[derive(Debug)]
pub(super) struct TargetName {
    place: PlaceName,
    /// The file to be replaced. It is kept open, so that no other file gets its inode number.
    old: Option<OwnedFd>,
    /// Owner and permissions of the source of the bytes: nobody else may read them in the place of `old`.
    source: Option<SourceStat>,
    /// The name that the file has until the commit, if it has one.
    temporary: Option<TemporaryName>,
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
    pub file: File,
    /// Its device and inode number. No other file has them while this is open.
    pub id: FileId,
}

/// Whether a path means standard output: `-`, or the system's names for it. If standard output is a file, it must not
/// be replaced, because other programs may write to it too.
pub fn is_stdout(path: &Path) -> bool {
    ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"].iter().any(|name| path.as_os_str() == *name)
}

/// Opens the file `path` to append to it. A new file gets the mode 0666 less the umask. Fails for what is neither a
/// regular file nor a character device such as a terminal: opening a named pipe or writing to it would wait for a
/// reader.
///
/// Links are followed as by [`OutputFile::create`].
pub fn append(path: &Path) -> io::Result<File> {
    let place = match FoundPath::at(path)? {
        FoundPath::Dir(_) | FoundPath::Name { at: None, is_dir: true, .. } => return Err(Errno::EISDIR.into()),
        FoundPath::Unnamed(file) => return Ok(file),
        FoundPath::Name { is_dir: true, .. } => return Err(Errno::ENOTDIR.into()),
        FoundPath::Name { place, .. } => place,
    };
    let flags = OFlag::O_WRONLY | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_NONBLOCK | OFlag::O_NOCTTY;
    let not_a_file = "neither a regular file nor a terminal";
    let file = place.open(flags, 0o666).map_err(|error| match error.raw_os_error() {
        // A named pipe that nobody reads, or a socket.
        Some(nix::libc::ENXIO) => io::Error::other(not_a_file),
        _ => error,
    })?;
    let stat = fstat(&file)?;
    if !is(&stat, SFlag::S_IFREG) && !is(&stat, SFlag::S_IFCHR) {
        return Err(io::Error::other(not_a_file));
    }
    // A terminal that is slow must not lose lines.
    fcntl(&file, FcntlArg::F_SETFL(OFlag::O_APPEND))?;
    Ok(file)
}

impl OriginalFile {
    /// Opens a file for reading. Links are followed as by [`OutputFile::create`], and only once.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_once(path).map_err(Error::at(path))
    }

    fn open_once(path: &Path) -> io::Result<Self> {
        let FoundPath::Name { place, at: Some(_), is_dir: false } = FoundPath::at(path)? else {
            return Err(if path.is_dir() { Errno::EISDIR.into() } else { Errno::ENOENT.into() });
        };
        // Without O_NONBLOCK, opening a named pipe would wait for a writer.
        let file = place.open(OFlag::O_RDONLY | OFlag::O_NONBLOCK, 0)?;
        let id = id(&fstat(&file)?);
        Ok(Self { path: path.to_owned(), place, file, id })
    }

    /// Locks the file as long as this exists. EWOULDBLOCK means that another process has locked it.
    pub fn lock(&self) -> Result<(), Errno> {
        try_lock(&self.file)
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
        let old = self.file.as_fd().try_clone_to_owned().map_err(Error::at(&self.path))?;
        OutputFile::begin_at(&self.path, self.place.clone(), Some(old), 0).map_err(Error::at(&self.path))
    }
}

impl OutputFile {
    /// Starts to write the file `path`, or standard output if [`is_stdout`] is true. A file that replaces another keeps
    /// its owner, permissions and extended attributes; a new file gets `mode` less the umask.
    ///
    /// A symlink is followed if it belongs to this user, to root, or to the owner of what it leads to. Another user
    /// could otherwise choose which file is replaced.
    pub fn create(path: &Path, mode: u32) -> Result<Self, Error> {
        Self::begin(path, mode).map_err(Error::at(path))
    }

    /// Fails if the output would replace a file, unless `force`.
    pub fn check_force(&self, force: bool) -> Result<(), Error> {
        match self.replaces() {
            Some(_) if !force => Err(Error::at(&self.path)(io::Error::other("exists already; --force replaces it"))),
            _ => Ok(()),
        }
    }

    /// Lets nobody read the file who cannot read the source of its bytes, even if the file that it replaces allows
    /// that. Fails if that file belongs to such a user.
    pub fn limit_readers(&mut self, source: SourceStat) -> Result<(), Error> {
        let Some(target) = &mut self.target else { return Ok(()) };
        target.source = Some(source);
        let Some(old) = &target.old else { return Ok(()) };
        let checked = fstat(old).map_err(io::Error::from).and_then(|stat| kept_mode(&stat, target.source));
        checked.map(drop).map_err(Error::at(&self.path))
    }

    /// An open file that is written to directly. `path` is its path for messages.
    pub(super) fn direct(path: &Path, file: File) -> Self {
        Self { path: path.to_owned(), file, target: None }
    }

    /// Standard output, even if it is a terminal.
    pub fn stdout() -> io::Result<Self> {
        let file = io::stdout().as_fd().try_clone_to_owned()?.into();
        Ok(Self::direct(Path::new("standard output"), file))
    }

    fn begin(path: &Path, mode: u32) -> io::Result<Self> {
        if is_stdout(path) {
            if io::stdout().is_terminal() {
                let error = "standard output is a terminal, and a model is binary; give a file name";
                return Err(io::Error::other(error));
            }
            return Ok(Self { path: path.to_owned(), ..Self::stdout()? });
        }
        let (place, old) = match FoundPath::at(path)? {
            FoundPath::Dir(_) => return Err(Errno::EISDIR.into()),
            FoundPath::Unnamed(file) => return Ok(Self::direct(path, file)),
            FoundPath::Name { at: None, is_dir: true, .. } => return Err(Errno::ENOENT.into()),
            FoundPath::Name { is_dir: true, .. } => return Err(Errno::ENOTDIR.into()),
            FoundPath::Name { place, at, .. } => (place, at),
        };
        if let Some(at) = &old {
            let stat = fstat(at)?;
            if !is(&stat, SFlag::S_IFREG) {
                let file = place.open(OFlag::O_WRONLY, 0)?;
                // Nothing is written to a file that has taken the place of a pipe or device.
                let is_same = id(&fstat(&file)?) == id(&stat);
                return if is_same { Ok(Self::direct(path, file)) } else { Err(step(OTHER)(Errno::EEXIST)) };
            }
            place.check_writable().map_err(step("is write-protected: "))?;
        }
        Self::begin_at(path, place, old, mode)
    }

    /// Starts to write a file in an open directory, which replaces `old`. `path` is its path for messages.
    pub(super) fn begin_at(path: &Path, place: PlaceName, old: Option<OwnedFd>, mode: u32) -> io::Result<Self> {
        // Other users must not read the file before it has the permissions of the file that it replaces.
        let mode = if old.is_some() { 0o600 } else { mode & 0o777 };
        let flags = OFlag::O_RDWR | OFlag::O_TMPFILE | OFlag::O_CLOEXEC;
        let (file, temporary) = match openat(&place.dir, ".", flags, Mode::from_bits_truncate(mode)).map(File::from) {
            // The commit names the file through /proc.
            Ok(file) if proc_path(&file).exists() => (file, None),
            Err(errno) if !is_unsupported(errno) => return Err(step(BESIDE)(errno)),
            _ => {
                let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
                let (file, place) = place.temporary(|place| place.open(flags, mode)).map_err(step(BESIDE))?;
                let id = id(&fstat(&file).map_err(step(BESIDE))?);
                (file, Some(TemporaryName { place, file: id }))
            }
        };
        let target = TargetName { place, old, source: None, temporary };
        Ok(Self { path: path.to_owned(), file, target: Some(target) })
    }

    /// Device and inode number of the file that will be replaced, if there is one.
    pub fn replaces(&self) -> Option<FileId> {
        self.target.as_ref()?.old_id()
    }

    /// Syncs the data to the disk, so that the commit has less to do.
    pub fn sync(&self) -> Result<(), Error> {
        let synced = if self.target.is_some() { self.file.sync_all() } else { Ok(()) };
        synced.map_err(step(NOT_SYNCED)).map_err(Error::at(&self.path))
    }

    /// Syncs the file to the disk and gives it its name. Fails if another file has got the name meanwhile.
    pub fn commit(self) -> Result<(), Error> {
        let Some(target) = self.target else { return Ok(()) };
        target.give(&self.path, &self.file).map_err(Error::at(&self.path))
    }
}

impl TargetName {
    fn old_id(&self) -> Option<FileId> {
        self.old.as_ref().and_then(|old| fstat(old).ok()).map(|stat| id(&stat))
    }

    /// Gives a file its final name. `path` is the final name for messages.
    fn give(self, path: &Path, file: &File) -> io::Result<()> {
        let place = &self.place;
        let now = place.stat()?;
        let old = match (&now, self.old_id()) {
            (None, _) => None,
            (Some(now), Some(old)) if id(now) == old => Some((now, old)),
            _ => return Err(step(OTHER)(Errno::EEXIST)),
        };
        if let Some((stat, old)) = old {
            let opened = place.open_attributes(old).map_err(not_replaced)?;
            keep(path, &opened, stat, file, self.source)?;
        }
        file.sync_all().map_err(step(NOT_SYNCED))?;
        let new = id(&fstat(file)?);
        match (old, self.temporary) {
            (None, None) => link_file(file, place).map_err(not_replaced)?,
            (None, Some(temporary)) => place.take(&temporary.place).map_err(not_replaced)?,
            (Some((_, old)), temporary) => {
                let temporary = match temporary {
                    Some(temporary) => temporary,
                    None => {
                        let linked = place.temporary(|place| link_file(file, place));
                        TemporaryName { place: linked.map_err(step("cannot be named: "))?.1, file: new }
                    }
                };
                place.replace(old, &temporary.place, new).map_err(not_replaced)?;
            }
        }
        if !place.is(new)? {
            return Err(step(OTHER)(Errno::EEXIST));
        }
        sync_names(&place.dir).map_err(step("written, but perhaps not on the disk yet: "))
    }
}

fn not_replaced(error: io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(nix::libc::EEXIST | nix::libc::ELOOP) => step(OTHER)(Errno::EEXIST),
        _ => step("cannot be replaced: ")(error),
    }
}

/// Gives a name to an open file.
fn link_file(file: &File, place: &PlaceName) -> io::Result<()> {
    Ok(linkat(AT_FDCWD, &proc_path(file), &place.dir, &*place.name, AtFlags::AT_SYMLINK_FOLLOW)?)
}

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
/// `source`.
fn keep(path: &Path, old: &File, stat: &FileStat, new: &File, source: Option<SourceStat>) -> io::Result<()> {
    let mode = kept_mode(stat, source)?;
    let is_limited = mode != stat.st_mode & 0o7777;
    let ours = new.metadata()?;
    if (stat.st_uid, stat.st_gid) != (ours.uid(), ours.gid()) {
        fchown(new, Some(stat.st_uid), Some(stat.st_gid)).map_err(step("cannot keep its owner and group: "))?;
    }
    new.set_permissions(Permissions::from_mode(mode)).map_err(step("cannot keep its permissions: "))?;
    // Extended attributes come last, because an access control list is one of them and holds permissions.
    keep_attributes(path, old, new, is_limited).map_err(step("cannot keep its extended attributes: "))
}

/// Gives `new` the extended attributes of `old`, without access control lists if `is_limited`: they admit users and
/// groups by name.
fn keep_attributes(path: &Path, old: &File, new: &File, is_limited: bool) -> io::Result<()> {
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
            let (path, name, error) = (path.display(), name.display(), strerror(&error));
            log::warn!("{path}: the extended attribute {name} is not kept: {error}");
        }
    }
    Ok(())
}

/// Whether the kernel sets the attribute on new files itself.
fn is_system(name: &OsStr) -> bool {
    ["security.", "trusted."].iter().any(|space| name.as_encoded_bytes().starts_with(space.as_bytes()))
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
