//! Opens the file or lists the directory at a location. Symlinks are followed.

use super::map::open_file;
use super::resolve::resolve_path;
use super::{DirListing, Error, ListedEntry, ListedKind, Location, MappedFile, Source, SourceStat};
use rustix::fs::{Mode, OFlags, openat};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

pub fn open_local(location: &Location) -> Result<Arc<dyn Source>, Error> {
    match location {
        Location::Local(path) => Ok(Arc::new(MappedFile::open(path)?)),
        Location::Remote(remote) => remote.tree().open(remote.path()),
    }
}

/// A file, and the permissions of those who may search the directories on the way to it, if there are any.
pub type ReachedFile = (Arc<dyn Source>, Option<SourceStat>);

/// Opens the file at `path` below the directory `top`, following no symlinks between them. Another process may exchange
/// names at any time, so each directory is opened in the one before, and the result is the file that was found there.
///
/// `None` if there is no regular file, or if a part of the path is a symlink.
pub fn open_beneath(top: &Path, path: &Path) -> Result<Option<ReachedFile>, Error> {
    let failed = |error: io::Error| Error::io(&top.join(path), error);
    let (parents, Some(name)) = (path.parent().unwrap_or(Path::new("")), path.file_name()) else { return Ok(None) };
    let mut dir = open_file(&resolve_path(top, None).map_err(failed)?).map_err(failed)?;
    let mut needed: Option<SourceStat> = None;
    for parent in parents.components() {
        let Some(next) = open_in(&dir, parent.as_os_str(), OFlags::DIRECTORY).map_err(failed)? else { return Ok(None) };
        let stat = SourceStat::of(&next).map_err(failed)?.search();
        needed = Some(needed.map_or(stat, |needed| needed.and(stat)));
        dir = next;
    }
    let Some(file) = open_in(&dir, name, OFlags::empty()).map_err(failed)? else { return Ok(None) };
    let metadata = file.metadata().map_err(failed)?;
    if !metadata.is_file() {
        return Ok(None);
    }
    // As long as the file is open, no other one gets its number.
    let source = open_local(&Location::Local(top.join(path)))?;
    let is_same = source.id() == Some((metadata.dev(), metadata.ino()));
    Ok(is_same.then_some((source, needed)))
}

/// Opens an entry of a directory. `None` if it is a symlink, or not of the kind that `flags` demand.
fn open_in(dir: &File, name: &OsStr, flags: OFlags) -> io::Result<Option<File>> {
    let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    match openat(dir, name, flags, Mode::empty()) {
        Ok(opened) => Ok(Some(opened.into())),
        Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// See [`super::SourceTree::announce`]. Local files are opened at once.
pub fn announce(location: &Location, head: Option<u64>) {
    if let Location::Remote(remote) = location {
        remote.tree().announce(remote.path(), head);
    }
}

pub fn is_dir(location: &Location) -> bool {
    match location {
        Location::Local(path) => path.is_dir(),
        Location::Remote(remote) => remote.tree().is_dir(remote.path()),
    }
}

/// Whether anything exists at a location, even a broken symlink.
pub fn exists(location: &Location) -> bool {
    match location {
        Location::Local(path) => path.symlink_metadata().is_ok(),
        Location::Remote(remote) => remote.tree().exists(remote.path()),
    }
}

/// Size in bytes of the regular file at a location, if there is one.
pub fn len_at(location: &Location) -> Option<u64> {
    match location {
        Location::Local(path) => std::fs::metadata(path).ok().filter(Metadata::is_file).map(|found| found.len()),
        Location::Remote(remote) => remote.tree().len(remote.path()),
    }
}

/// 0 if there is no file.
pub fn device_at(location: &Location) -> u64 {
    match location {
        Location::Local(path) => std::fs::metadata(path).map_or(0, |found| found.dev()),
        Location::Remote(remote) => remote.tree().device(),
    }
}

/// When something at a location was last modified; `None` if it cannot change, because the location is in a tree.
/// Fails inside the directory that is off limits.
pub fn modified_at(location: &Location) -> io::Result<Option<SystemTime>> {
    let Some(path) = location.path() else { return Ok(None) };
    std::fs::metadata(resolve_path(path, None)?)?.modified().map(Some)
}

/// The file must be readable.
pub fn stat_at(location: &Location) -> io::Result<SourceStat> {
    match location {
        Location::Local(path) => SourceStat::of(&open_file(&resolve_path(path, None)?)?),
        Location::Remote(remote) => Ok(remote.tree().stat()),
    }
}

/// The directory need not be readable.
pub(super) fn directory_stat(path: &Path, metadata: &Metadata) -> SourceStat {
    let opened = OpenOptions::new().read(true).custom_flags(nix::libc::O_DIRECTORY).open(path);
    let stat = opened.ok().and_then(|opened| {
        let now = opened.metadata().ok()?;
        ((now.dev(), now.ino()) == (metadata.dev(), metadata.ino())).then(|| SourceStat::of(&opened).ok())?
    });
    // The attribute of a directory that is not readable can be read by its path, but not in the sandbox.
    stat.unwrap_or_else(|| SourceStat::new(metadata, xattr::get(path, super::stat::ACL)))
}

pub fn list_dir(location: &Location) -> Result<DirListing, Error> {
    match location {
        Location::Local(path) => list_local(path).map_err(|error| Error::io(path, error)),
        Location::Remote(remote) => remote.tree().list(remote.path()),
    }
}

fn list_local(path: &Path) -> io::Result<DirListing> {
    let metadata = std::fs::metadata(path)?;
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        let target = std::fs::metadata(entry.path()).ok();
        let is_dir = target.as_ref().is_some_and(Metadata::is_dir);
        entries.push(ListedEntry {
            name: entry.file_name(),
            kind: if is_dir { ListedKind::Dir } else { ListedKind::File },
            is_link: entry.file_type().is_ok_and(|kind| kind.is_symlink()),
            len: target.as_ref().map_or(0, Metadata::len),
            device: target.map_or(0, |target| target.dev()),
        });
    }
    Ok(DirListing { id: (metadata.dev(), metadata.ino()), stat: directory_stat(path, &metadata), entries })
}
