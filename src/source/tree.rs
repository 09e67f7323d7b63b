//! Files that are not on this machine, such as those of a repository on a server, and paths to them.

use super::{DirectoryVersion, Error, FileId, Source, SourceStat};
use std::ffi::OsString;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

/// Files that are not on this machine, in the version that was found first. Paths are relative to the tree, with `/`
/// between components; the path of the tree itself is empty.
pub trait SourceTree: Send + Sync + fmt::Debug {
    /// The place of the tree as the user wrote it, without secrets such as a signature. It identifies the tree.
    fn url(&self) -> &str;

    /// The name of the tree, such as that of a repository: the last component of its URL, without a revision.
    fn name(&self) -> &str {
        self.url().trim_end_matches('/').rsplit('/').next().unwrap_or_default()
    }

    /// The place of a file or directory of the tree, as a user can give it.
    fn place(&self, path: &str) -> String {
        match path {
            "" => self.url().to_owned(),
            path => format!("{}/{path}", self.url().trim_end_matches('/')),
        }
    }

    fn open(&self, path: &str) -> Result<Arc<dyn Source>, Error>;

    /// Starts to open a file that will be opened soon, without waiting for it. `head` is how many bytes at its start
    /// are likely to be read first, if that can be told.
    fn announce(&self, _path: &str, _head: Option<u64>) {}

    /// Lists a directory. An error if the tree cannot be listed, as most HTTP servers cannot.
    fn list(&self, path: &str) -> Result<DirListing, Error>;

    /// What is known of a directory without asking the server. The directory may have other entries.
    fn known(&self, path: &str) -> DirListing;

    fn device(&self) -> u64;

    /// Size in bytes of the file at a path, if it is known.
    fn len(&self, path: &str) -> Option<u64>;

    /// Owner, permissions and modification time of all directories.
    fn stat(&self) -> SourceStat;

    fn is_dir(&self, path: &str) -> bool;

    fn exists(&self, path: &str) -> bool;
}

#[derive(Debug)]
pub struct DirListing {
    /// Identifies the directory, whatever path leads to it.
    pub id: FileId,
    /// Identifies the directory that holds it, if that is known. In a tree it is not.
    pub parent: Option<FileId>,
    /// `None` in a tree, where directories do not change.
    pub version: Option<DirectoryVersion>,
    pub stat: SourceStat,
    /// In no particular order.
    pub entries: Vec<ListedEntry>,
}

/// An entry of a directory. All but the name and `is_link` are those of the target of a symlink.
#[derive(Debug, Clone)]
pub struct ListedEntry {
    pub name: OsString,
    pub kind: ListedKind,
    pub is_link: bool,
    /// Size in bytes. 0 for a broken symlink.
    pub len: u64,
    /// The number of its device or file system. 0 for a broken symlink.
    pub device: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedKind {
    Dir,
    /// Anything else.
    File,
}

/// Trees have numbers like devices, from this one on. Numbers of devices are below 2^32 in Linux.
pub const FIRST_TREE: u64 = 1 << 32;

/// Whether the number of a device is that of a tree.
pub fn is_tree(device: u64) -> bool {
    (FIRST_TREE..FIRST_TREE << 1).contains(&device)
}

/// A path in a tree.
#[derive(Debug)]
pub struct TreePath {
    tree: Arc<dyn SourceTree>,
    path: Box<str>,
}

impl TreePath {
    pub(super) fn new(tree: Arc<dyn SourceTree>, path: &str) -> Self {
        Self { tree, path: path.into() }
    }

    pub fn tree(&self) -> &dyn SourceTree {
        &*self.tree
    }

    /// Relative to the tree.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The last component, or the name of the tree itself.
    pub(super) fn file_name(&self) -> &str {
        match self.path() {
            "" => self.tree().name(),
            path => path.rsplit('/').next().unwrap_or_default(),
        }
    }

    /// The directory that holds it; the tree itself if there is none.
    pub(super) fn parent(&self) -> Self {
        self.at(self.path().rsplit_once('/').map_or("", |(dir, _)| dir))
    }

    pub(super) fn join(&self, name: &Path) -> Self {
        let name = name.to_string_lossy();
        match self.path() {
            "" => self.at(&name),
            path => self.at(&format!("{path}/{name}")),
        }
    }

    fn at(&self, path: &str) -> Self {
        Self::new(self.tree.clone(), path)
    }

    fn key(&self) -> (&str, &str) {
        (self.tree().url(), self.path())
    }
}

impl fmt::Display for TreePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.tree().place(self.path()))
    }
}

impl PartialEq for TreePath {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for TreePath {}

impl Hash for TreePath {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.key().hash(state);
    }
}
