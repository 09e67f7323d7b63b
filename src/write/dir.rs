//! An output directory, which gets its name once everything in it is on the disk.

use super::error::Error;
use super::space;
use super::temporary::{MARK, is_temporary, prefix, sync_names};
use crate::source::strerror;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::unistd::geteuid;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// An output directory that is being written. It is removed if it is dropped before the commit. If the process is
/// killed, a directory remains whose name begins with a dot and ends in [`MARK`]; the next output to the same path
/// removes it.
#[derive(Debug)]
pub struct OutputDir {
    /// The path as given, for messages.
    path: PathBuf,
    /// The absolute path of the directory.
    target: PathBuf,
    /// Whether the directory exists already. It is empty then.
    exists: bool,
    /// The temporary directory: beside the target, or in it if the target exists.
    unfinished: PathBuf,
    /// The temporary directory, locked if the file system supports it: one that is not locked is a leftover.
    opened: Claimed,
}

/// An open temporary directory.
#[derive(Debug)]
enum Claimed {
    Locked(Flock<File>),
    Unlocked(File),
}

impl OutputDir {
    /// Starts to write the directory `path`. An existing directory must be empty, and keeps its attributes.
    pub fn create(path: &Path) -> Result<Self, Error> {
        Self::begin(path).map_err(|error| Error::Io { path: path.to_owned(), what: "", error })
    }

    fn begin(path: &Path) -> io::Result<Self> {
        let target = std::path::absolute(path)?;
        let prefix = prefix(target.file_name().unwrap_or_default());
        let exists = match leftovers(&target, &prefix) {
            Ok((_, 1..)) => return Err(Errno::ENOTEMPTY.into()),
            Ok((inside, 0)) => {
                inside.iter().for_each(|leftover| remove_leftover(leftover));
                true
            }
            Err(error) if error.kind() == ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        // What remains may belong to an export that is still running.
        if exists && fs::read_dir(&target)?.next().is_some() {
            return Err(Errno::ENOTEMPTY.into());
        }
        let parent = target.parent().ok_or(Errno::EINVAL)?;
        let (beside, _) = leftovers(parent, &prefix).unwrap_or_default();
        beside.iter().for_each(|leftover| remove_leftover(leftover));
        let (opened, unfinished) = tempfile::Builder::new()
            .prefix(&prefix)
            .suffix(MARK)
            .make_in(if exists { &target } else { parent }, |path| {
                DirBuilder::new().create(path)?;
                claim(path).inspect_err(|_| _ = fs::remove_dir(path))
            })?
            .into_parts();
        // TempPath would remove a file, but not a directory.
        let unfinished = unfinished.keep().map_err(|kept| kept.error)?;
        Ok(Self { path: path.to_owned(), target, exists, unfinished, opened })
    }

    /// Fails if the file system has fewer than `needed` bytes available.
    pub fn check_space(&self, needed: u64) -> Result<(), Error> {
        let opened = match &self.opened {
            Claimed::Locked(lock) => lock,
            Claimed::Unlocked(opened) => opened,
        };
        space::check(&self.path, opened, needed)
    }

    /// The temporary directory to write to.
    pub fn unfinished(&self) -> &Path {
        &self.unfinished
    }

    /// Replaces the temporary path in an error by the final path.
    pub fn rename_error(&self, mut error: Error) -> Error {
        if let Error::Io { path, .. } | Error::Full { path, .. } = &mut error
            && let Ok(rest) = path.strip_prefix(&self.unfinished)
        {
            *path = self.path.join(rest);
        }
        error
    }

    /// Renames the temporary directory to the target. If the target exists, the entries are moved into it, in the order
    /// of their names.
    pub fn commit(self) -> Result<(), Error> {
        let error = |error| Error::Io { path: self.path.clone(), what: "", error };
        sync(&self.unfinished).map_err(error)?;
        if self.exists {
            self.move_in().map_err(error)?;
        } else {
            fs::rename(&self.unfinished, &self.target).map_err(error)?;
        }
        let holder = if self.exists { &self.target } else { self.target.parent().unwrap_or(Path::new("/")) };
        sync_names(holder).map_err(error)
    }

    fn move_in(&self) -> io::Result<()> {
        let mut names =
            fs::read_dir(&self.unfinished)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        // In this order, an index comes after the shards that it names.
        names.sort();
        // The directory was empty at the start.
        if names.iter().any(|name| self.target.join(name).symlink_metadata().is_ok()) {
            return Err(Errno::ENOTEMPTY.into());
        }
        for name in names {
            fs::rename(self.unfinished.join(&name), self.target.join(&name))?;
        }
        Ok(())
    }
}

/// The temporary directories with this prefix in a directory, and the number of its other entries.
fn leftovers(dir: &Path, prefix: &str) -> io::Result<(Vec<PathBuf>, usize)> {
    let (mut found, mut others) = (Vec::new(), 0);
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if is_temporary(&entry.file_name(), prefix) && entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.push(entry.path());
        } else {
            others += 1;
        }
    }
    Ok((found, others))
}

/// Opens and locks the temporary directory that this process has created at `path`.
fn claim(path: &Path) -> io::Result<Claimed> {
    // With this error, another name is tried.
    let taken = || io::Error::from(ErrorKind::AlreadyExists);
    let opened = open_dir(path).map_err(|error| if error.kind() == ErrorKind::NotFound { taken() } else { error })?;
    match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
        Ok(lock) if path.symlink_metadata().is_ok() => Ok(Claimed::Locked(lock)),
        // Another process has just taken it for a leftover.
        Ok(_) | Err((_, Errno::EWOULDBLOCK)) => Err(taken()),
        Err((opened, _)) => Ok(Claimed::Unlocked(opened)),
    }
}

fn open_dir(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(nix::libc::O_DIRECTORY | nix::libc::O_NOFOLLOW).open(path)
}

/// Removes a temporary directory of an export that was killed, and logs this; logs its path if it cannot be removed.
fn remove_leftover(path: &Path) {
    let shown = path.display();
    let removed = open_dir(path).and_then(|opened| {
        if opened.metadata()?.uid() != geteuid().as_raw() {
            return Err(Errno::EPERM.into());
        }
        match Flock::lock(opened, FlockArg::LockExclusiveNonblock) {
            Ok(lock) => fs::remove_dir_all(path).map(|()| drop(lock)),
            Err((_, errno)) => Err(errno.into()),
        }
    });
    match removed {
        Ok(()) => log::warn!("{shown}: removed; an interrupted export had left it behind"),
        // Its export is still running, or another one has just removed it.
        Err(error) if [ErrorKind::WouldBlock, ErrorKind::NotFound].contains(&error.kind()) => {}
        Err(error) => log::warn!(
            "{shown}: perhaps left behind by an interrupted export; it cannot be removed: {}",
            strerror(&error)
        ),
    }
}

/// Syncs a directory and the directories below it, so that the names in them are on the disk.
fn sync(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync(&entry.path())?;
        }
    }
    sync_names(dir)
}

impl Drop for OutputDir {
    fn drop(&mut self) {
        // After the commit, there is nothing to remove.
        let _ = fs::remove_dir_all(&self.unfinished);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leftover_of_killed_export_is_removed_and_others_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let target = at("out");
        let kept = [".out.b.abcdef.weightfs-tmp", ".other.abcdef.weightfs-tmp", ".out.abcdef", ".out..weightfs-tmp"];
        for name in kept.iter().chain(&[".out.abcdef.weightfs-tmp"]) {
            fs::create_dir_all(at(name).join("sub")).unwrap();
            fs::write(at(name).join("sub/file"), "x").unwrap();
        }
        fs::write(at(".out.ghijkl.weightfs-tmp"), "a file").unwrap();
        std::os::unix::fs::symlink(at(kept[0]), at(".out.mnopqr.weightfs-tmp")).unwrap();
        // The directory of a running export is kept too.
        let running = OutputDir::create(&target).unwrap();
        let output = OutputDir::create(&target).unwrap();
        assert!(!at(".out.abcdef.weightfs-tmp").exists());
        assert!(kept.iter().all(|name| at(name).join("sub/file").exists()));
        assert!(running.unfinished().is_dir() && at(".out.mnopqr.weightfs-tmp").is_symlink());
        drop((running, output));
        assert_eq!(fs::read_dir(&dir).unwrap().count(), kept.len() + 2);
        // In a target that exists, a leftover does not count as content, but a running export does.
        fs::create_dir_all(target.join(".out.abcdef.weightfs-tmp/sub")).unwrap();
        let running = OutputDir::create(&target).unwrap();
        assert_eq!(fs::read_dir(&target).unwrap().count(), 1);
        assert!(OutputDir::create(&target).unwrap_err().to_string().ends_with("out: Directory not empty"));
        assert!(running.unfinished().is_dir());
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
            fs::write(output.unfinished().join(name), "new").unwrap();
        }
        fs::write(dir.path().join("b"), "mine").unwrap();
        output.commit().unwrap_err();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        assert_eq!(fs::read(dir.path().join("b")).unwrap(), b"mine");
    }
}
