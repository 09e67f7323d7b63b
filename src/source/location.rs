//! The location of a source.

use super::tree::{SourceTree, TreePath};
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The location of a file or a directory of models. Errors print it as the user wrote it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Location {
    Local(PathBuf),
    /// A path in a tree of files elsewhere.
    /// In an [`Arc`], because errors contain locations.
    Remote(Arc<TreePath>),
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
            Self::Remote(remote) => remote.fmt(f),
        }
    }
}

impl Location {
    pub fn in_tree(tree: Arc<dyn SourceTree>, path: &str) -> Self {
        Self::Remote(TreePath::new(tree, path).into())
    }

    /// The path, if it is on this machine.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Local(path) => Some(path),
            Self::Remote(_) => None,
        }
    }

    /// The last component; empty if there is none, as in `/`.
    pub fn file_name(&self) -> &OsStr {
        match self {
            Self::Local(path) => path.file_name().unwrap_or_default(),
            Self::Remote(remote) => remote.file_name().as_ref(),
        }
    }

    pub fn parent(&self) -> Self {
        match self {
            Self::Local(path) => Self::Local(path.parent().unwrap_or(Path::new("")).to_owned()),
            Self::Remote(remote) => Self::Remote(remote.parent().into()),
        }
    }

    /// The location of the relative path `name` below this one.
    pub fn join(&self, name: impl AsRef<Path>) -> Self {
        match self {
            Self::Local(path) => Self::Local(path.join(name)),
            Self::Remote(remote) => Self::Remote(remote.join(name.as_ref()).into()),
        }
    }

    /// The same location, independent of the current directory. Symlinks are not followed.
    pub fn absolute(&self) -> io::Result<Self> {
        match self {
            Self::Local(path) => std::path::absolute(path).map(Self::Local),
            Self::Remote(_) => Ok(self.clone()),
        }
    }

    /// The same location without symlinks. Fails if nothing exists there.
    pub fn canonical(&self) -> io::Result<Self> {
        match self {
            Self::Local(path) => path.canonicalize().map(Self::Local),
            Self::Remote(_) => Ok(self.clone()),
        }
    }

    /// `inner`, an absolute location below this one, rewritten to begin with this location as the user wrote it.
    pub fn rename(&self, inner: &Self) -> Self {
        let (Self::Local(path), Self::Local(below)) = (self, inner) else { return inner.clone() };
        let absolute = std::path::absolute(path).unwrap_or_else(|_| path.clone());
        below.strip_prefix(absolute).map_or_else(|_| inner.clone(), |relative| self.join(relative))
    }
}
