//! Where a source lies.

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// The place of a file or a directory of models. Errors name it as its user wrote it.
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

    /// The last component; empty where there is none, as in `/`.
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

    /// What lies below it under a relative name.
    pub fn join(&self, name: impl AsRef<Path>) -> Self {
        match self {
            Self::Local(path) => Self::Local(path.join(name)),
        }
    }

    /// The same place, independent of the current directory. Links are not followed.
    pub fn absolute(&self) -> io::Result<Self> {
        match self {
            Self::Local(path) => std::path::absolute(path).map(Self::Local),
        }
    }

    /// The same place without links. Fails if nothing is there.
    pub fn canonical(&self) -> io::Result<Self> {
        match self {
            Self::Local(path) => path.canonicalize().map(Self::Local),
        }
    }

    /// The place of `inner`, which lies below the absolute form of this place, in terms of this place.
    pub fn rename(&self, inner: &Self) -> Self {
        let (Self::Local(path), Self::Local(below)) = (self, inner);
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        below.strip_prefix(absolute).map_or_else(|_| inner.clone(), |relative| self.join(relative))
    }
}
