//! Opens the file or lists the directory at a location.

use super::resolve::resolve_path;
use super::{DirListing, Error, ListedEntry, ListedKind, Location, MappedFile, Source, SourceStat};
use std::fs::{Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Opens the file at a location; symlinks are followed.
pub fn open_local(location: &Location) -> Result<Arc<dyn Source>, Error> {
    match location {
        Location::Local(path) => Ok(Arc::new(MappedFile::open(path)?)),
        Location::Remote(remote) => remote.tree().open(remote.path()),
    }
}

/// Starts to open a file that will be opened soon, if opening it takes time for which others need not wait. `head` is
/// how many bytes at its start are likely to be read first, if that can be told.
pub fn announce(location: &Location, head: Option<u64>) {
    if let Location::Remote(remote) = location {
        remote.tree().announce(remote.path(), head);
    }
}

/// Whether a location is a directory; symlinks are followed.
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

/// Size in bytes of the regular file at a location, if there is one; symlinks are followed.
pub fn len_at(location: &Location) -> Option<u64> {
    match location {
        Location::Local(path) => std::fs::metadata(path).ok().filter(Metadata::is_file).map(|found| found.len()),
        Location::Remote(remote) => remote.tree().len(remote.path()),
    }
}

/// The device number of the file at a location; symlinks are followed. 0 if there is no file.
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
    let resolved = resolve_path(path, None).transpose()?;
    std::fs::metadata(resolved.as_deref().unwrap_or(path))?.modified().map(Some)
}

/// Owner, permissions and modification time of the file at a location, which must be readable; symlinks are followed.
pub fn stat_at(location: &Location) -> io::Result<SourceStat> {
    let path = match location {
        Location::Local(path) => path,
        Location::Remote(remote) => return Ok(remote.tree().stat()),
    };
    let resolved = resolve_path(path, None).transpose()?;
    let path = resolved.as_deref().unwrap_or(path);
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    SourceStat::of(&OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?)
}

/// Owner, permissions and modification time of a directory, which need not be readable.
pub(super) fn directory_stat(path: &Path, metadata: &Metadata) -> SourceStat {
    let opened = OpenOptions::new().read(true).custom_flags(nix::libc::O_DIRECTORY).open(path);
    let stat = opened.ok().and_then(|opened| {
        let now = opened.metadata().ok()?;
        ((now.dev(), now.ino()) == (metadata.dev(), metadata.ino())).then(|| SourceStat::of(&opened).ok())?
    });
    // The attribute of a directory that is not readable can be read by its path, but not in the sandbox.
    stat.unwrap_or_else(|| SourceStat::new(metadata, xattr::get(path, super::stat::ACL)))
}

/// Lists the directory at a location.
pub fn list_dir(location: &Location) -> Result<DirListing, Error> {
    let path = match location {
        Location::Local(path) => path,
        Location::Remote(remote) => return remote.tree().list(remote.path()),
    };
    let io = |error| Error::Io { path: path.clone(), error };
    let metadata = std::fs::metadata(path).map_err(io)?;
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let entry = entry.map_err(io)?;
        let target = std::fs::metadata(entry.path()).ok();
        entries.push(ListedEntry {
            name: entry.file_name(),
            kind: if target.as_ref().is_some_and(|target| target.is_dir()) {
                ListedKind::Dir
            } else {
                ListedKind::File
            },
            is_link: entry.file_type().is_ok_and(|kind| kind.is_symlink()),
            len: target.as_ref().map_or(0, Metadata::len),
            device: target.map_or(0, |target| target.dev()),
        });
    }
    let stat = directory_stat(path, &metadata);
    Ok(DirListing { id: (metadata.dev(), metadata.ino()), stat, entries })
}
