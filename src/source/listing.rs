//! The entries of a directory.

use super::{FileId, SourceStat};
use std::ffi::OsString;

/// A directory and its entries.
#[derive(Debug)]
pub struct DirListing {
    /// Identifies the directory, whatever path leads to it.
    pub id: FileId,
    /// Its owner, permissions and modification time.
    pub stat: SourceStat,
    /// The entries, in no particular order.
    pub entries: Vec<ListedEntry>,
}

/// An entry of a directory.
#[derive(Debug, Clone)]
pub struct ListedEntry {
    /// The file name.
    pub name: OsString,
    /// Its kind; symlinks are followed.
    pub kind: ListedKind,
    /// Whether it is a symlink.
    pub is_link: bool,
    /// Size in bytes; symlinks are followed. 0 for a broken symlink.
    pub len: u64,
    /// The number of its device or file system; symlinks are followed. 0 for a broken symlink.
    pub device: u64,
}

/// The kind of the target of a directory entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ListedKind {
    /// A directory.
    Dir,
    /// Anything else.
    File,
}
