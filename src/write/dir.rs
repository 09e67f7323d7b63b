//! An output directory, which gets its name once everything in it is on the disk.

use super::bytes::check_space;
use super::error::Error;
use super::output::OutputFile;
use super::place::{FoundPath, PlaceName, id, is, open_dir, temporary};
use super::temporary::{is_temporary, prefix, sync_names, try_lock};
use crate::source::strerror;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag};
use nix::sys::stat::{Mode, SFlag, fchmod, fstat, fstatat, mkdirat};
use nix::unistd::{UnlinkatFlags, geteuid, unlinkat};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The permissions of a temporary directory. A directory with other permissions is not removed as the leftover of an
/// interrupted export, because another user may be able to give any directory such a name.
const UNFINISHED: u32 = 0o1700;

/// Maximum depth of the directories in an output directory. It is that of a directory of models, and one more for the
/// shards of a model.
const DEPTH_MAX: usize = 66;

/// An output directory that is being written. It is removed if it is dropped before the commit. If the process is
/// killed, a directory remains whose name begins with a dot and ends in [`super::MARK`]; the next output to the same
/// path removes it.
#[derive(Debug)]
pub struct OutputDir {
    /// The path as given, for messages.
    path: PathBuf,
    target: TargetDir,
    /// The name of the temporary directory: beside the target, or in it if the target exists.
    unfinished: PlaceName,
    /// The temporary directory, locked if the file system supports it: one that is not locked is a leftover.
    opened: File,
    /// The permissions that the directory gets if it is new.
    mode: Mode,
    is_committed: bool,
}

#[derive(Debug)]
enum TargetDir {
    /// A directory that exists. It was empty at the start.
    Dir(Arc<OwnedFd>),
    /// A name that is not in use.
    Name(PlaceName),
}

impl OutputDir {
    /// Starts to write the directory `path`. An existing directory must be empty, and keeps its attributes. Links are
    /// followed as by [`OutputFile::create`].
    pub fn create(path: &Path) -> Result<Self, Error> {
        Self::begin(path).map_err(Error::at(path))
    }

    fn begin(path: &Path) -> io::Result<Self> {
        let shown = std::path::absolute(path)?;
        let (target, parent, prefix) = match FoundPath::at(path)? {
            FoundPath::Dir(dir) => {
                let dir = Arc::new(dir);
                let prefix = prefix(shown.file_name().unwrap_or_default());
                let (inside, others) = leftovers(&dir, &prefix)?;
                if others > 0 {
                    return Err(Errno::ENOTEMPTY.into());
                }
                inside.iter().for_each(|leftover| remove_leftover(&dir, leftover, &shown));
                // Others may belong to an export that is still running.
                if !dir_entries(&dir)?.is_empty() {
                    return Err(Errno::ENOTEMPTY.into());
                }
                let beside = open_dir(&dir, "..")?;
                (TargetDir::Dir(dir), Arc::new(beside), prefix)
            }
            FoundPath::Name { place, at: None, .. } => {
                let (parent, prefix) = (place.dir.clone(), prefix(&place.name));
                (TargetDir::Name(place), parent, prefix)
            }
            FoundPath::Name { .. } | FoundPath::Unnamed(_) => return Err(Errno::ENOTDIR.into()),
        };
        let (beside, _) = leftovers(&parent, &prefix).unwrap_or_default();
        let above = shown.parent().unwrap_or(Path::new("/"));
        beside.iter().for_each(|leftover| remove_leftover(&parent, leftover, above));
        let holder = match &target {
            TargetDir::Dir(dir) => dir,
            TargetDir::Name(_) => &parent,
        };
        let ((opened, mode), unfinished) = temporary(holder, &prefix, |place| {
            mkdirat(&place.dir, &*place.name, Mode::from_bits_truncate(0o777))?;
            claim(place).inspect_err(|_| _ = unlinkat(&place.dir, &*place.name, UnlinkatFlags::RemoveDir))
        })?;
        Ok(Self { path: path.to_owned(), target, unfinished, opened, mode, is_committed: false })
    }

    /// Fails if the file system has fewer than `needed` bytes available.
    pub fn check_space(&self, needed: u64) -> Result<(), Error> {
        check_space(&self.path, &self.opened, needed)
    }

    /// Starts to write a new file at a relative path in the directory. Directories on the way to it are created.
    pub fn file(&self, relative: &Path, mode: u32) -> Result<OutputFile, Error> {
        let path = self.path.join(relative);
        let dir = self.opened.as_fd().try_clone_to_owned();
        let place = dir.and_then(|dir| PlaceName::below(&Arc::new(dir), relative, true));
        place.and_then(|place| OutputFile::begin_at(&path, place, None, mode)).map_err(Error::at(&path))
    }

    /// Gives the temporary directory the name of the target. If the target exists, the entries are moved into it, in
    /// the order of their names.
    pub fn commit(mut self) -> Result<(), Error> {
        self.finish().map_err(Error::at(&self.path))
    }

    fn finish(&mut self) -> io::Result<()> {
        let dir = &self.opened;
        sync(dir)?;
        match &self.target {
            TargetDir::Dir(target) => {
                self.move_into(target)?;
                sync_names(target)
            }
            TargetDir::Name(place) => {
                fchmod(dir, self.mode)?;
                place.take(&self.unfinished)?;
                // Another user may have exchanged the temporary directory for something else.
                if !place.is(id(&fstat(dir)?))? {
                    return Err(Errno::EEXIST.into());
                }
                self.is_committed = true;
                sync_names(&place.dir)
            }
        }
    }

    fn move_into(&self, target: &Arc<OwnedFd>) -> io::Result<()> {
        let dir = &self.opened;
        let mut names = dir_entries(dir)?;
        // In this order, an index comes after the shards that it names.
        names.sort();
        let places: Vec<_> = names.into_iter().map(|name| PlaceName { dir: target.clone(), name }).collect();
        // The directory was empty at the start.
        for place in &places {
            if place.stat()?.is_some() {
                return Err(Errno::ENOTEMPTY.into());
            }
        }
        let from = Arc::new(dir.as_fd().try_clone_to_owned()?);
        places.iter().try_for_each(|place| place.take(&PlaceName { dir: from.clone(), name: place.name.clone() }))
    }
}

/// The temporary directories with this prefix in a directory, and the number of its other entries.
fn leftovers(dir: &OwnedFd, prefix: &str) -> io::Result<(Vec<OsString>, usize)> {
    let (found, others): (Vec<_>, Vec<_>) = dir_entries(dir)?.into_iter().partition(|name| {
        is_temporary(name, prefix)
            && fstatat(dir, &**name, AtFlags::AT_SYMLINK_NOFOLLOW).is_ok_and(|stat| is(&stat, SFlag::S_IFDIR))
    });
    Ok((found, others.len()))
}

pub(super) fn dir_entries(dir: &impl AsFd) -> io::Result<Vec<OsString>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut names = Vec::new();
    for entry in Dir::openat(dir, ".", flags, Mode::empty())?.iter() {
        let name = OsStr::from_bytes(entry?.file_name().to_bytes()).to_owned();
        if name != "." && name != ".." {
            names.push(name);
        }
    }
    Ok(names)
}

/// Opens and locks the temporary directory that this process has created. Also returns the permissions that it got from
/// the umask.
fn claim(place: &PlaceName) -> io::Result<(File, Mode)> {
    // With this error, another name is tried.
    let taken = io::Error::from(ErrorKind::AlreadyExists);
    let dir = match place.open(OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Err(taken),
        opened => opened?,
    };
    // Another process may just have taken it for a leftover. Not every file system supports locks.
    if try_lock(&dir) == Err(Errno::EWOULDBLOCK) {
        return Err(taken);
    }
    let stat = fstat(&dir)?;
    // Everything in this directory will be removed if the export fails, so it must be the new directory and not one
    // that another user has moved to this name.
    if !place.is(id(&stat))? || !dir_entries(&dir)?.is_empty() {
        return Err(taken);
    }
    fchmod(&dir, Mode::from_bits_truncate(UNFINISHED))?;
    Ok((dir, Mode::from_bits_truncate(stat.st_mode)))
}

/// Removes a temporary directory of an export that was killed, and logs this; logs its path if it cannot be removed.
/// `shown` is the path of the directory that holds it.
fn remove_leftover(holder: &Arc<OwnedFd>, name: &OsStr, shown: &Path) {
    let place = PlaceName { dir: holder.clone(), name: name.to_owned() };
    let removed = place.open(OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0).and_then(|opened| {
        try_lock(&opened)?;
        let stat = fstat(&opened)?;
        if !dir_entries(&opened)?.is_empty() {
            if stat.st_uid != geteuid().as_raw() || stat.st_mode & 0o7777 != UNFINISHED {
                return Err(Errno::EPERM.into());
            }
            remove_all(&opened, 0)?;
        }
        Ok(unlinkat(holder, name, UnlinkatFlags::RemoveDir)?)
    });
    let shown = shown.join(name);
    let shown = shown.display();
    match removed {
        Ok(()) => log::warn!("{shown}: removed; an interrupted export had left it behind"),
        // Its export is still running, or another one has just removed it.
        Err(error) if [ErrorKind::WouldBlock, ErrorKind::NotFound].contains(&error.kind()) => {}
        Err(error) => {
            let error = strerror(&error);
            log::warn!("{shown}: perhaps left behind by an interrupted export; it cannot be removed: {error}");
        }
    }
}

/// Removes everything in a directory, which is `depth` directories below the first one.
fn remove_all(dir: &impl AsFd, depth: usize) -> io::Result<()> {
    if depth > DEPTH_MAX {
        return Err(Errno::ELOOP.into());
    }
    for name in dir_entries(dir)? {
        match unlinkat(dir, &*name, UnlinkatFlags::NoRemoveDir) {
            Err(Errno::EISDIR) => {
                remove_all(&open_dir(dir, &*name)?, depth + 1)?;
                unlinkat(dir, &*name, UnlinkatFlags::RemoveDir)?;
            }
            removed => removed?,
        }
    }
    Ok(())
}

/// Syncs a directory and the directories below it, so that the names in them are on the disk.
fn sync(dir: &impl AsFd) -> io::Result<()> {
    for name in dir_entries(dir)? {
        match open_dir(dir, &*name) {
            Ok(inner) => sync(&inner)?,
            Err(Errno::ENOTDIR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
    sync_names(dir)
}

impl Drop for OutputDir {
    fn drop(&mut self) {
        if self.is_committed {
            return;
        }
        let dir = &self.opened;
        let _ = remove_all(dir, 0);
        // Another user may have given the name to something else, which is kept unless it is an empty directory.
        let _ = unlinkat(&self.unfinished.dir, &*self.unfinished.name, UnlinkatFlags::RemoveDir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    /// Whether the temporary directory has its name.
    fn is_there(output: &OutputDir) -> bool {
        output.unfinished.stat().unwrap().is_some_and(|stat| is(&stat, SFlag::S_IFDIR))
    }

    #[test]
    fn leftover_of_killed_export_is_removed_and_others_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let target = at("out");
        let kept = [".out.b.abcdef.weightfs-tmp", ".other.abcdef.weightfs-tmp", ".out.abcdef", ".out..weightfs-tmp"];
        for name in kept.iter().chain(&[".out.abcdef.weightfs-tmp"]) {
            fs::create_dir_all(at(name).join("sub")).unwrap();
            fs::write(at(name).join("sub/file"), "x").unwrap();
            fs::set_permissions(at(name), Permissions::from_mode(UNFINISHED)).unwrap();
        }
        // Another user may be able to give a directory such a name, but not these permissions.
        fs::create_dir_all(at(".out.moved.weightfs-tmp/sub")).unwrap();
        fs::write(at(".out.ghijkl.weightfs-tmp"), "a file").unwrap();
        std::os::unix::fs::symlink(at(kept[0]), at(".out.mnopqr.weightfs-tmp")).unwrap();
        // The directory of a running export is kept too.
        let running = OutputDir::create(&target).unwrap();
        let output = OutputDir::create(&target).unwrap();
        assert!(!at(".out.abcdef.weightfs-tmp").exists());
        assert!(kept.iter().all(|name| at(name).join("sub/file").exists()));
        assert!(is_there(&running) && at(".out.mnopqr.weightfs-tmp").is_symlink());
        assert!(at(".out.moved.weightfs-tmp/sub").is_dir());
        drop((running, output));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), kept.len() + 3);
        // In a target that exists, a leftover does not count as content, but a running export does.
        fs::create_dir_all(target.join(".out.abcdef.weightfs-tmp/sub")).unwrap();
        fs::set_permissions(target.join(".out.abcdef.weightfs-tmp"), Permissions::from_mode(UNFINISHED)).unwrap();
        let running = OutputDir::create(&target).unwrap();
        assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
        assert!(OutputDir::create(&target).unwrap_err().to_string().ends_with("out: Directory not empty"));
        assert!(is_there(&running));
        // Nothing is removed from a target that has content.
        drop(running);
        fs::create_dir(target.join(".out.abcdef.weightfs-tmp")).unwrap();
        fs::write(target.join("mine"), "x").unwrap();
        OutputDir::create(&target).unwrap_err();
        assert_eq!(fs::read_dir(&target).unwrap().count(), 2);
    }

    #[test]
    fn files_created_before_commit_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let output = OutputDir::create(dir.path()).unwrap();
        for name in ["a", "b"] {
            let mut file = output.file(name.as_ref(), 0o666).unwrap();
            file.write(b"new").unwrap();
            file.commit().unwrap();
        }
        fs::write(dir.path().join("b"), "mine").unwrap();
        output.commit().unwrap_err();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        assert_eq!(fs::read(dir.path().join("b")).unwrap(), b"mine");
    }
}
