//! An output directory, which gets its name once everything in it is on the disk.

use super::error::Error;
use super::temporary::{MARK, prefix, sync_names};
use nix::errno::Errno;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// An output directory that is being written. It is removed if it is dropped before the commit. If the process is
/// killed, a directory remains whose name begins with a dot and ends in [`MARK`].
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
}

impl OutputDir {
    /// Starts to write the directory `path`. An existing directory must be empty, and keeps its attributes.
    pub fn create(path: &Path) -> Result<Self, Error> {
        Self::begin(path).map_err(|error| Error::Io { path: path.to_owned(), what: "", error })
    }

    fn begin(path: &Path) -> io::Result<Self> {
        let exists = match fs::read_dir(path).map(|mut entries| entries.next().is_some()) {
            Ok(true) => return Err(Errno::ENOTEMPTY.into()),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            found => found.is_ok(),
        };
        let target = std::path::absolute(path)?;
        let parent = if exists { Some(&*target) } else { target.parent() };
        let unfinished = tempfile::Builder::new()
            .prefix(&prefix(target.file_name().unwrap_or_default()))
            .suffix(MARK)
            .make_in(parent.ok_or(Errno::EINVAL)?, |path| DirBuilder::new().create(path))?;
        // TempPath would remove a file, but not a directory.
        let unfinished = unfinished.into_temp_path().keep().map_err(|kept| kept.error)?;
        Ok(Self { path: path.to_owned(), target, exists, unfinished })
    }

    /// The temporary directory to write to.
    pub fn unfinished(&self) -> &Path {
        &self.unfinished
    }

    /// Replaces the temporary path in an error by the final path.
    pub fn rename_error(&self, mut error: Error) -> Error {
        if let Error::Io { path, .. } = &mut error
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
