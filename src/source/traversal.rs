//! The directories on the path to a file: only users who may search all of them can read the file.

use super::local::directory_stat;
use super::resolve::follow_from;
use super::{FileId, Location, SourceStat};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Directories and their permissions. The sandbox may not allow reading the access control list of a directory later,
/// so those that a mount needs are added before.
#[derive(Debug, Default, Clone)]
pub struct Directories(HashMap<FileId, SourceStat>);

/// A directory from which paths start. They lead to files below it, or through symlinks to files elsewhere.
#[derive(Debug)]
pub enum TraversalBase<'d> {
    Local(LocalBase<'d>),
    /// A directory in a tree. Permissions are those of the whole tree.
    Remote(SourceStat),
}

#[derive(Debug)]
pub struct LocalBase<'d> {
    dirs: &'d Directories,
    /// The absolute path of the directory.
    path: PathBuf,
    /// The same without symlinks.
    real: PathBuf,
    /// The permissions of directories on paths that were followed before.
    found: HashMap<PathBuf, SourceStat>,
}

/// The directories between a directory and a file.
#[derive(Debug)]
pub struct Traversal {
    /// The permissions for those who may search all of these directories. `None` if there are no directories between.
    pub stat: Option<SourceStat>,
    /// Whether the file lies in the directory or below it, after following symlinks.
    pub is_inside: bool,
}

impl Directories {
    pub fn add(&mut self, id: FileId, stat: SourceStat) {
        self.0.insert(id, stat);
    }

    /// Adds the directories on the paths from the directory `from` to each of `to`.
    pub fn add_paths<'l>(&mut self, from: &Location, to: impl IntoIterator<Item = &'l Location>) {
        let Some(Ok(base)) = from.path().map(|from| self.local_base(from)) else { return };
        let walked: BTreeSet<PathBuf> =
            to.into_iter().filter_map(|to| base.walk(to.path()?).ok()).flat_map(|traversed| traversed.0).collect();
        for dir in walked {
            if let Ok(metadata) = std::fs::metadata(&dir) {
                let id = (metadata.dev(), metadata.ino());
                self.0.entry(id).or_insert_with(|| directory_stat(&dir, &metadata));
            }
        }
    }

    pub fn base(&self, from: &Location) -> io::Result<TraversalBase<'_>> {
        match from {
            Location::Local(path) => self.local_base(path).map(TraversalBase::Local),
            Location::Remote(remote) => Ok(TraversalBase::Remote(remote.tree().stat())),
        }
    }

    fn local_base(&self, path: &Path) -> io::Result<LocalBase<'_>> {
        // The parent of a bare file name is empty.
        let path = std::path::absolute(Path::new(".").join(path))?;
        let real = follow_from(Path::new("/"), &path, &mut |_| ())?;
        Ok(LocalBase { dirs: self, path, real, found: HashMap::new() })
    }

    fn stat(&self, dir: &Path) -> io::Result<SourceStat> {
        let metadata = std::fs::metadata(dir)?;
        let known = self.0.get(&(metadata.dev(), metadata.ino())).copied();
        Ok(known.unwrap_or_else(|| directory_stat(dir, &metadata)))
    }
}

impl TraversalBase<'_> {
    pub fn stat(&self) -> io::Result<SourceStat> {
        match self {
            Self::Local(base) => base.dirs.stat(&base.real),
            Self::Remote(stat) => Ok(*stat),
        }
    }

    /// The directories on the path to a file, without the starting directory and those above it.
    pub fn traverse(&mut self, to: &Location) -> io::Result<Traversal> {
        match (self, to) {
            (Self::Local(base), Location::Local(to)) => base.traverse(to),
            (Self::Remote(stat), Location::Remote(_)) => Ok(Traversal { stat: Some(stat.search()), is_inside: true }),
            _ => Err(io::Error::other("no path leads there")),
        }
    }
}

impl LocalBase<'_> {
    fn traverse(&mut self, to: &Path) -> io::Result<Traversal> {
        let (dirs, target) = self.walk(to)?;
        let mut combined: Option<SourceStat> = None;
        for dir in dirs.into_iter().filter(|dir| !self.real.starts_with(dir)) {
            let stat = match self.found.get(&dir) {
                Some(stat) => *stat,
                None => self.dirs.stat(&dir)?.search(),
            };
            self.found.insert(dir, stat);
            combined = Some(combined.map_or(stat, |combined| combined.and(stat)));
        }
        Ok(Traversal { stat: combined, is_inside: target.starts_with(&self.real) })
    }

    /// The real paths of the directories on the path to `to`, and of `to` itself.
    fn walk(&self, to: &Path) -> io::Result<(BTreeSet<PathBuf>, PathBuf)> {
        let to = std::path::absolute(to)?;
        let below = to.strip_prefix(&self.path).map_err(io::Error::other)?;
        let mut dirs = BTreeSet::new();
        let target = follow_from(&self.real, below, &mut |dir| _ = dirs.insert(dir.to_owned()))?;
        Ok((dirs, target))
    }
}
