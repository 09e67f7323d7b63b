//! Opens the file or lists the directory at a location. Symlinks are followed.

use super::map::open_file;
use super::opened::{self, note_opened};
use super::resolve::resolve_path;
use super::stat::id_of;
use super::{
    DirListing, DirectoryVersion, Error, FileId, ListedEntry, ListedKind, Location, MappedFile, Source, SourceStat,
};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags, makedev, openat, readlinkat, statx};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
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
/// `None` if there is no regular file, if a part of the path is a symlink, or if `top` does not have the number that is
/// given with it.
pub fn open_beneath(top: (&Path, Option<FileId>), path: &Path) -> Result<Option<ReachedFile>, Error> {
    let (top, id) = top;
    let failed = |error: io::Error| Error::io(&top.join(path), error);
    let (parents, Some(name)) = (path.parent().unwrap_or(Path::new("")), path.file_name()) else { return Ok(None) };
    let mut dir = open_file(&resolve_path(top, None).map_err(failed)?).map_err(failed)?;
    if id.is_some() && id != Some(id_of(&dir).map_err(failed)?) {
        return Ok(None);
    }
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

/// The number and the attributes of a file, which must be readable. Those of a file in a tree are those of the tree.
pub fn stat_at(location: &Location) -> io::Result<(Option<FileId>, SourceStat)> {
    match location {
        Location::Local(path) => {
            let path = std::path::absolute(path)?;
            let file = open_file(&resolve_path(&path, None)?)?;
            note_opened(&path, id_of(&file)?);
            Ok((Some(id_of(&file)?), SourceStat::of(&file)?))
        }
        Location::Remote(remote) => Ok((None, remote.tree().stat())),
    }
}

/// Whether no other file than the one with this number was opened at a location. True if none was.
pub fn was_always(location: &Location, id: Option<FileId>) -> bool {
    location.path().is_none_or(|path| opened::was_always(path, id))
}

pub fn list_dir(location: &Location) -> Result<DirListing, Error> {
    match location {
        Location::Local(path) => list_local(path).map_err(|error| Error::io(path, error)),
        Location::Remote(remote) => remote.tree().list(remote.path()),
    }
}

fn list_local(path: &Path) -> io::Result<DirListing> {
    // Another process may exchange names at any time, so all of this is about one open directory.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let dir = File::from(openat(CWD, path, flags, Mode::empty())?);
    let mut entries = Vec::new();
    for entry in Dir::read_from(&dir)? {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        if name == "." || name == ".." {
            continue;
        }
        // No request is sent to the daemon of a mount whose mount point is here: it may be this process.
        let flags = match entry.file_type() {
            FileType::RegularFile => AtFlags::empty(),
            _ => AtFlags::STATX_DONT_SYNC,
        };
        let target = statx(&dir, name, flags, StatxFlags::TYPE | StatxFlags::SIZE).ok();
        let kind = target.map(|target| FileType::from_raw_mode(target.stx_mode.into()));
        let is_link = match entry.file_type() {
            FileType::Unknown => readlinkat(&dir, name, Vec::new()).is_ok(),
            kind => kind == FileType::Symlink,
        };
        entries.push(ListedEntry {
            name: name.to_owned(),
            kind: if kind == Some(FileType::Directory) { ListedKind::Dir } else { ListedKind::File },
            is_link,
            len: target.map_or(0, |target| target.stx_size),
            device: target.map_or(0, |target| makedev(target.stx_dev_major, target.stx_dev_minor)),
        });
    }
    // Not if the directory can be listed, but not searched.
    let parent = openat(&dir, "..", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok();
    let parent = parent.map(|parent| id_of(&parent.into())).transpose()?;
    let version = Some(DirectoryVersion::of(&dir)?);
    Ok(DirListing { id: id_of(&dir)?, parent, version, stat: SourceStat::of(&dir)?, entries })
}
