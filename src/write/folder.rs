//! A directory that is being written: knows that what is in it stands under its name only when all of it is on the disk.

use super::{Error, MARK, prefix, sync_names};
use nix::errno::Errno;
use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// A directory that is being written. Dropped before it is committed it leaves nothing, unless the process is killed: then one
/// stays whose name begins with a dot and ends in [`MARK`].
#[derive(Debug)]
pub struct Folder {
    /// As it was given, for messages.
    path: PathBuf,
    /// Where it will stand, or stands already: empty.
    target: PathBuf,
    is_there: bool,
    /// Where what will be in it stands now: beside it, or in it.
    place: PathBuf,
}

impl Folder {
    /// Begins a directory that will stand at `path`, where there is none yet or an empty one, which keeps all that it is.
    pub fn create(path: &Path) -> Result<Self, Error> {
        Self::begin(path).map_err(|error| Error::Io { path: path.to_owned(), what: "", error })
    }

    fn begin(path: &Path) -> io::Result<Self> {
        let is_there = match fs::read_dir(path).map(|mut entries| entries.next().is_some()) {
            Ok(true) => return Err(Errno::ENOTEMPTY.into()),
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            found => found.is_ok(),
        };
        let target = std::path::absolute(path)?;
        let parent = if is_there { Some(&*target) } else { target.parent() };
        let unfinished = tempfile::Builder::new()
            .prefix(&prefix(target.file_name().unwrap_or_default()))
            .suffix(MARK)
            .make_in(parent.ok_or(Errno::EINVAL)?, |path| DirBuilder::new().create(path))?;
        // What tempfile would remove is a file.
        let place = unfinished.into_temp_path().keep().map_err(|kept| kept.error)?;
        Ok(Self { path: path.to_owned(), target, is_there, place })
    }

    /// Where to write what will be in it.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// An error of a file in it, named as it would have stood.
    pub fn place_error(&self, mut error: Error) -> Error {
        if let Error::Io { path, .. } = &mut error
            && let Ok(rest) = path.strip_prefix(&self.place)
        {
            *path = self.path.join(rest);
        }
        error
    }

    /// Puts what was written under its name; into a directory that is there already, entry by entry in the order of their names.
    pub fn commit(self) -> Result<(), Error> {
        let error = |error| Error::Io { path: self.path.clone(), what: "", error };
        sync(&self.place).map_err(error)?;
        if self.is_there {
            self.move_in().map_err(error)?;
        } else {
            fs::rename(&self.place, &self.target).map_err(error)?;
        }
        let holder = if self.is_there { &self.target } else { self.target.parent().unwrap_or(Path::new("/")) };
        sync_names(holder).map_err(error)
    }

    fn move_in(&self) -> io::Result<()> {
        let mut names =
            fs::read_dir(&self.place)?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>()?;
        // An index comes after the files that it names.
        names.sort();
        // It was empty when this began.
        if names.iter().any(|name| self.target.join(name).symlink_metadata().is_ok()) {
            return Err(Errno::ENOTEMPTY.into());
        }
        for name in names {
            fs::rename(self.place.join(&name), self.target.join(&name))?;
        }
        Ok(())
    }
}

/// Brings the names in a directory and in those below it to the disk.
fn sync(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync(&entry.path())?;
        }
    }
    sync_names(dir)
}

impl Drop for Folder {
    fn drop(&mut self) {
        // Gone, once it has its name.
        let _ = fs::remove_dir_all(&self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_came_meanwhile_stays() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(dir.path()).unwrap();
        for name in ["a", "b"] {
            fs::write(folder.place().join(name), "new").unwrap();
        }
        fs::write(dir.path().join("b"), "mine").unwrap();
        folder.commit().unwrap_err();
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        assert_eq!(fs::read(dir.path().join("b")).unwrap(), b"mine");
    }
}
