//! The directories on the path to a file: only users who may search all of them can read the file.
//!
//! Another process may exchange names at any time, for directories or symlinks. So each directory is opened in the one
//! before, and what a path leads to is known by its number, which callers compare with that of the file they opened.

use super::opened::was_always;
use super::resolve::{LINKS_MAX, check_limits, push_components};
use super::stat::{ACL, id_of};
use super::{DirListing, DirectoryVersion, FileId, Location, SourceStat};
use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
use rustix::io::Errno;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// Directories and their permissions. The sandbox may not allow reading the access control list of a directory later,
/// so those that a mount needs are added before.
#[derive(Debug, Default, Clone)]
pub struct Directories {
    stats: HashMap<FileId, SourceStat>,
    /// The absolute path of the first directory that was added. The others are below it.
    top: Option<PathBuf>,
    /// The directories that were listed, by their absolute paths.
    listed: HashMap<PathBuf, DirectoryVersion>,
}

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
    reached: ReachedPath,
    /// The numbers of the directories that do not count: the directory and those above it.
    above: Vec<FileId>,
    /// The last device that was found not to be off limits.
    allowed: Cell<Option<u64>>,
}

/// The directories between a directory and a file.
#[derive(Debug)]
pub struct Traversal {
    /// The permissions for those who may search all of these directories. `None` if there are no directories between.
    pub stat: Option<SourceStat>,
    /// The file that the path leads to. `None` in a tree, where names are not exchanged.
    pub target: Option<FileId>,
}

impl Directories {
    /// Adds the directory at `location`, which was listed. If another one takes its place later,
    /// paths from it count from the first directory that was added, with all directories on the way.
    pub fn add(&mut self, location: &Location, listing: &DirListing) {
        self.stats.insert(listing.id, listing.stat);
        if let Some(version) = listing.version {
            self.add_version(location, version);
        }
    }

    fn add_version(&mut self, location: &Location, version: DirectoryVersion) {
        if let Some(Ok(path)) = location.path().map(absolute) {
            self.top.get_or_insert_with(|| path.clone());
            self.listed.insert(path, version);
        }
    }

    /// As [`Directories::add`], for a directory that was not listed.
    pub fn add_base(&mut self, location: &Location) -> io::Result<()> {
        let TraversalBase::Local(base) = self.base(location)? else { return Ok(()) };
        let (id, stat) = (base.reached.id, self.stat(&base.reached.file, base.reached.id)?);
        let version = DirectoryVersion::of(&base.reached.file)?;
        self.stats.insert(id, stat);
        self.add_version(location, version);
        Ok(())
    }

    /// The number of the directory that was listed at `location`.
    pub fn listed(&self, location: &Location) -> Option<FileId> {
        self.listed.get(&absolute(location.path()?).ok()?).map(|listed| listed.id)
    }

    /// Adds the directories on the paths from the directory `from` to each of `to`.
    pub fn add_paths<'l>(&mut self, from: &Location, to: impl IntoIterator<Item = &'l Location>) {
        let Some(Ok(base)) = from.path().map(|from| self.local_base(from)) else { return };
        let mut walked = HashMap::new();
        for to in to.into_iter().filter_map(Location::path) {
            // Directories that cannot be searched now are missing later too.
            let _ = base.walk(to, &mut |dir, id| {
                walked.entry(id).or_insert_with(|| directory_stat(dir));
                Ok(())
            });
        }
        for (id, stat) in walked {
            if let Ok(stat) = stat {
                self.stats.entry(id).or_insert(stat);
            }
        }
    }

    /// The directory at `from`, or the first one that was added, if another directory was listed at `from`.
    pub fn base(&self, from: &Location) -> io::Result<TraversalBase<'_>> {
        match from {
            Location::Local(path) => self.local_base(path).map(TraversalBase::Local),
            Location::Remote(remote) => Ok(TraversalBase::Remote(remote.tree().stat())),
        }
    }

    fn local_base(&self, path: &Path) -> io::Result<LocalBase<'_>> {
        let (path, allowed) = (absolute(path)?, Cell::default());
        let reached = ReachedPath::root()?.follow(&path, &allowed, &mut |_, _| Ok(()))?;
        let is_other = match self.listed.get(&path) {
            Some(listed) => *listed != DirectoryVersion::of(&reached.file)?,
            None => false,
        };
        let above = match &self.top {
            // In the mount, its folder has the permissions of another directory.
            Some(top) if is_other && *top != path => return self.local_base(top),
            _ if is_other => Vec::new(),
            _ => directories_above(&reached.file)?,
        };
        Ok(LocalBase { dirs: self, path, reached, above, allowed })
    }

    fn stat(&self, dir: &File, id: FileId) -> io::Result<SourceStat> {
        match self.stats.get(&id) {
            // It may be another directory, which got the number of one that is gone.
            Some(known) => Ok(known.and(SourceStat::new(&dir.metadata()?, Ok(None)))),
            None => directory_stat(dir),
        }
    }
}

impl Traversal {
    /// Whether the path leads to the file with this number, as far as it is known.
    pub fn leads_to(&self, id: Option<FileId>) -> bool {
        self.target.is_none() || self.target == id
    }
}

impl TraversalBase<'_> {
    /// The number of the directory. `None` in a tree.
    pub fn id(&self) -> Option<FileId> {
        match self {
            Self::Local(base) => Some(base.reached.id),
            Self::Remote(_) => None,
        }
    }

    pub fn stat(&self) -> io::Result<SourceStat> {
        match self {
            Self::Local(base) => base.dirs.stat(&base.reached.file, base.reached.id),
            Self::Remote(stat) => Ok(*stat),
        }
    }

    /// The directories on the path to a file, without the starting directory and those above it.
    pub fn traverse(&self, to: &Location) -> io::Result<Traversal> {
        match (self, to) {
            (Self::Local(base), Location::Local(to)) => base.traverse(to),
            (Self::Remote(stat), Location::Remote(_)) => Ok(Traversal { stat: Some(stat.search()), target: None }),
            _ => Err(io::Error::other("no path leads there")),
        }
    }

    /// Whether a file lies in the directory or below it, after following symlinks, and no other file was opened under
    /// its name: what was read then lies there too.
    pub fn holds(&self, file: &Location) -> io::Result<bool> {
        match (self, file.path()) {
            (Self::Local(base), Some(file)) => base.holds(file),
            (Self::Local(_), None) => Ok(false),
            (Self::Remote(_), _) => Ok(true),
        }
    }
}

impl LocalBase<'_> {
    fn traverse(&self, to: &Path) -> io::Result<Traversal> {
        let mut stat: Option<SourceStat> = None;
        let reached = self.walk(to, &mut |dir, id| {
            if !self.above.contains(&id) {
                let found = self.dirs.stat(dir, id)?.search();
                stat = Some(stat.map_or(found, |stat| stat.and(found)));
            }
            Ok(())
        })?;
        Ok(Traversal { stat, target: Some(reached.id) })
    }

    fn holds(&self, file: &Path) -> io::Result<bool> {
        let mut dir = self.reached.file.try_clone()?;
        let reached = self.walk(file, &mut |last, _| {
            dir = last.try_clone()?;
            Ok(())
        })?;
        let is_inside = reached.id == self.reached.id || directories_above(&dir)?.contains(&self.reached.id);
        Ok(is_inside && was_always(file, Some(reached.id)))
    }

    /// Passes the directories on the path to `to` to `visit`, in which some may be repeated.
    fn walk(&self, to: &Path, visit: &mut VisitDirectory) -> io::Result<ReachedPath> {
        let to = absolute(to)?;
        let below = to.strip_prefix(&self.path).map_err(io::Error::other)?;
        self.reached.follow(below, &self.allowed, visit)
    }
}

type VisitDirectory<'v> = dyn FnMut(&File, FileId) -> io::Result<()> + 'v;

/// What a path leads to. As long as it is open, no other file gets its number.
#[derive(Debug)]
struct ReachedPath {
    /// Opened only for its attributes and for what is in it.
    file: File,
    id: FileId,
    /// Its absolute path, without symlinks.
    real: PathBuf,
}

impl ReachedPath {
    fn root() -> io::Result<Self> {
        Self::open(CWD, "/".as_ref(), "/".into())
    }

    /// Opens what has a name in a directory, also a symlink.
    fn open(dir: impl AsFd, name: &OsStr, real: PathBuf) -> io::Result<Self> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // A file system that is mounted when it is needed is mounted only for a directory.
        let opened = match openat(&dir, name, flags | OFlags::DIRECTORY, Mode::empty()) {
            Err(Errno::NOTDIR) => openat(&dir, name, flags, Mode::empty()),
            opened => opened,
        };
        let file = File::from(opened?);
        Ok(Self { id: id_of(&file)?, file, real })
    }

    /// Follows `path` from this directory, and symlinks on the way, without entering what is off limits; see
    /// [`check_limits`] for `allowed`. Passes each directory in which a name is looked up to `visit`.
    fn follow(&self, path: &Path, allowed: &Cell<Option<u64>>, visit: &mut VisitDirectory) -> io::Result<Self> {
        let mut reached = Self { file: self.file.try_clone()?, id: self.id, real: self.real.clone() };
        let (mut ahead, mut links) = (Vec::new(), 0);
        push_components(&mut ahead, path);
        while let Some(name) = ahead.pop() {
            visit(&reached.file, reached.id)?;
            let mut real = reached.real.join(&name);
            if name == ".." {
                real = reached.real.parent().unwrap_or(&reached.real).to_owned();
            }
            let mut device = allowed.get();
            check_limits(&reached.file, &name, &real, &mut device)?;
            allowed.set(device);
            match readlinkat(&reached.file, &name, Vec::new()) {
                Ok(_) if links == LINKS_MAX => return Err(Errno::LOOP.into()),
                Ok(target) => {
                    links += 1;
                    push_components(&mut ahead, Path::new(&OsString::from_vec(target.into_bytes())));
                }
                Err(Errno::INVAL) => reached = Self::open(&reached.file, &name, real)?,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(reached)
    }
}

/// The absolute path of a directory. It may have symlinks.
fn absolute(path: &Path) -> io::Result<PathBuf> {
    // The parent of a bare file name is empty.
    std::path::absolute(Path::new(".").join(path))
}

/// The numbers of a directory and of those above it.
fn directories_above(dir: &File) -> io::Result<Vec<FileId>> {
    let mut found = vec![id_of(dir)?];
    let mut dir = dir.try_clone()?;
    loop {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        dir = openat(&dir, "..", flags, Mode::empty())?.into();
        match id_of(&dir)? {
            // The root directory holds itself.
            id if found.last() == Some(&id) => return Ok(found),
            id => found.push(id),
        }
    }
}

/// The attributes of an open directory, which need not be readable.
pub(super) fn directory_stat(dir: &File) -> io::Result<SourceStat> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match openat(dir, ".", flags, Mode::empty()) {
        Ok(readable) => SourceStat::of(&readable.into()),
        // The access control list of a directory that is not readable can be read by its path, but not in the sandbox.
        Err(_) => {
            let path = format!("/proc/self/fd/{}", dir.as_raw_fd());
            Ok(SourceStat::new(&dir.metadata()?, xattr::get_deref(path, ACL)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    #[test]
    fn directories_between_are_those_that_names_are_looked_up_in() {
        let scene = tempfile::tempdir().unwrap();
        let path = |name: &str| scene.path().canonicalize().unwrap().join(name);
        for (dir, mode) in [("top", 0o755), ("top/a", 0o741), ("top/a/b", 0o755), ("else", 0o710), ("else/c", 0o700)] {
            fs::create_dir(path(dir)).unwrap();
            fs::set_permissions(path(dir), Permissions::from_mode(mode)).unwrap();
        }
        for file in ["top/file", "top/a/b/file", "else/c/file"] {
            fs::write(path(file), "").unwrap();
        }
        symlink("a/b/../b/file", path("top/inner")).unwrap();
        symlink("../else/c/file", path("top/outer")).unwrap();
        symlink(path("top/outer"), path("top/absolute")).unwrap();
        symlink("loop", path("top/loop")).unwrap();
        symlink("top", path("link")).unwrap();
        let dirs = Directories::default();
        for top in ["top", "link", "top/a/.."] {
            let base = dirs.base(&path(top).into()).unwrap();
            let found = |name: &str| base.traverse(&path(top).join(name).into()).unwrap();
            for (name, target, mode, is_inside) in [
                ("file", "top/file", None, true),
                ("a/b/file", "top/a/b/file", Some(0o707), true),
                ("inner", "top/a/b/file", Some(0o707), true),
                ("outer", "else/c/file", Some(0o700), false),
                ("absolute", "else/c/file", Some(0o700), false),
                ("", "top", None, true),
            ] {
                let Traversal { stat, target: id } = found(name);
                assert_eq!(stat.map(|stat| stat.mode), mode, "{top} {name}");
                assert_eq!(base.holds(&path(top).join(name).into()).unwrap(), is_inside, "{top} {name}");
                assert_eq!(id.unwrap(), id_of(&File::open(path(target)).unwrap()).unwrap(), "{top} {name}");
            }
            let error = |name: &str| base.traverse(&path(top).join(name).into()).unwrap_err().raw_os_error();
            assert_eq!(error("loop"), Some(nix::libc::ELOOP));
            assert_eq!(error("absent/file"), Some(nix::libc::ENOENT));
            assert_eq!(error("file/x"), Some(nix::libc::ENOTDIR));
        }
    }

    #[test]
    fn directory_in_the_place_of_a_listed_one_counts_with_those_on_the_way() {
        let scene = tempfile::tempdir().unwrap();
        let path = |name: &str| scene.path().join(name);
        let make = |name: &str, mode: u32| {
            fs::create_dir(path(name)).unwrap();
            fs::set_permissions(path(name), Permissions::from_mode(mode)).unwrap();
        };
        for name in ["top", "top/a", "top/a/b"] {
            make(name, 0o755);
        }
        let mut dirs = Directories::default();
        for name in ["top", "top/a", "top/a/b"] {
            dirs.add_base(&path(name).into()).unwrap();
        }
        let needed = |name: &str| {
            let base = dirs.base(&path(name).into()).unwrap();
            let found = base.traverse(&path("top/a/b/file").into()).unwrap();
            (base.id() == dirs.listed(&path(name).into()), found.stat.map(|stat| stat.mode))
        };
        fs::write(path("top/a/b/file"), "").unwrap();
        assert_eq!(["top", "top/a", "top/a/b"].map(needed), [(true, Some(0o777)), (true, Some(0o777)), (true, None)]);
        // A directory that was listed has other permissions now, or another one has its number.
        fs::set_permissions(path("top/a/b"), Permissions::from_mode(0o700)).unwrap();
        assert_eq!(needed("top/a").1, Some(0o700));
        assert_eq!(needed("top/a/b"), (false, Some(0o700)));
        // Another directory.
        fs::rename(path("top/a/b"), path("c")).unwrap();
        make("top/a/b", 0o755);
        fs::write(path("top/a/b/file"), "").unwrap();
        assert_eq!(needed("top/a/b"), (false, Some(0o777)));
        fs::rename(path("top"), path("d")).unwrap();
        for name in ["top", "top/a", "top/a/b"] {
            make(name, 0o711);
        }
        fs::write(path("top/a/b/file"), "").unwrap();
        fs::set_permissions(path("top"), Permissions::from_mode(0o700)).unwrap();
        assert_eq!(needed("top"), (false, Some(0o700)));
    }
}
