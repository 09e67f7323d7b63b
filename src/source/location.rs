//! The location of a source.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The location of a file or a directory of models. Errors print it as the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Location {
    /// A path on this machine.
    Local(PathBuf),
}

impl From<&Path> for Location {
    fn from(path: &Path) -> Self {
        Self::Local(path.to_owned())
    }
}

impl From<PathBuf> for Location {
    fn from(path: PathBuf) -> Self {
        Self::Local(path)
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local(path) => path.display().fmt(f),
        }
    }
}

impl Location {
    /// The path, if it is on this machine.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Local(path) => Some(path),
        }
    }

    /// The last component; empty if there is none, as in `/`.
    pub fn file_name(&self) -> &OsStr {
        match self {
            Self::Local(path) => path.file_name().unwrap_or_default(),
        }
    }

    /// The directory that holds it.
    pub fn parent(&self) -> Self {
        match self {
            Self::Local(path) => Self::Local(path.parent().unwrap_or(Path::new("")).to_owned()),
        }
    }

    /// The location of the relative path `name` below this one.
    pub fn join(&self, name: impl AsRef<Path>) -> Self {
        match self {
            Self::Local(path) => Self::Local(path.join(name)),
        }
    }

    /// The same location, independent of the current directory. Symlinks are not followed.
    pub fn absolute(&self) -> io::Result<Self> {
        match self {
            Self::Local(path) => std::path::absolute(path).map(Self::Local),
        }
    }

    /// The same location without symlinks. Fails if nothing exists there.
    pub fn canonical(&self) -> io::Result<Self> {
        match self {
            Self::Local(path) => path.canonicalize().map(Self::Local),
        }
    }

    /// `inner`, an absolute location below this one, rewritten to begin with this location as the user wrote it.
    pub fn rename(&self, inner: &Self) -> Self {
        let (Self::Local(path), Self::Local(below)) = (self, inner);
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        below.strip_prefix(absolute).map_or_else(|_| inner.clone(), |relative| self.join(relative))
    }
}
