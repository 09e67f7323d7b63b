//! Opens the file or lists the directory at a location.

use super::resolve::resolve;
use super::{Error, FileId, Location, MappedFile, Source, Stat};
use std::ffi::OsString;
use std::fs::{Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Opens the file at a location; symlinks are followed.
pub fn open(location: &Location) -> Result<Arc<dyn Source>, Error> {
    let Location::Local(path) = location;
    Ok(Arc::new(MappedFile::open(path)?))
}

/// Whether a location is a directory; symlinks are followed.
pub fn is_dir(location: &Location) -> bool {
    let Location::Local(path) = location;
    path.is_dir()
}

/// Whether anything exists at a location, even a broken symlink.
pub fn exists(location: &Location) -> bool {
    let Location::Local(path) = location;
    path.symlink_metadata().is_ok()
}

/// Size in bytes of the regular file at a location, if there is one; symlinks are followed.
pub fn len_at(location: &Location) -> Option<u64> {
    let Location::Local(path) = location;
    std::fs::metadata(path).ok().filter(Metadata::is_file).map(|found| found.len())
}

/// The device number of the file at a location; symlinks are followed. 0 if there is no file.
pub fn device_at(location: &Location) -> u64 {
    let Location::Local(path) = location;
    std::fs::metadata(path).map_or(0, |found| found.dev())
}

/// A directory and its entries.
#[derive(Debug)]
pub struct Listing {
    /// Identifies the directory, whatever path leads to it.
    pub id: FileId,
    /// Its owner, permissions and modification time.
    pub stat: Stat,
    /// The entries, in no particular order.
    pub entries: Vec<Entry>,
}

/// An entry of a directory.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The file name.
    pub name: OsString,
    /// What it is; symlinks are followed.
    pub kind: EntryKind,
    /// Whether it is a symlink.
    pub is_link: bool,
    /// Size in bytes; symlinks are followed. 0 for a broken symlink.
    pub len: u64,
    /// The number of its device or file system; symlinks are followed. 0 for a broken symlink.
    pub device: u64,
}

/// What an entry of a directory leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A directory.
    Dir,
    /// Anything else.
    File,
}

/// When something at a location was last modified. Fails inside the directory that is off limits.
pub fn modified_at(location: &Location) -> io::Result<SystemTime> {
    let Location::Local(path) = location;
    let resolved = resolve(path, None).transpose()?;
    std::fs::metadata(resolved.as_deref().unwrap_or(path))?.modified()
}

/// Owner, permissions and modification time of the file at a location, which must be readable; symlinks are followed.
pub fn stat_at(location: &Location) -> io::Result<Stat> {
    let Location::Local(path) = location;
    let resolved = resolve(path, None).transpose()?;
    let path = resolved.as_deref().unwrap_or(path);
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    Stat::of(&OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)?)
}

/// Owner, permissions and modification time of a directory, which need not be readable.
pub(super) fn directory_stat(path: &Path, metadata: &Metadata) -> Stat {
    let opened = OpenOptions::new().read(true).custom_flags(nix::libc::O_DIRECTORY).open(path);
    let stat = opened.ok().and_then(|opened| {
        let now = opened.metadata().ok()?;
        ((now.dev(), now.ino()) == (metadata.dev(), metadata.ino())).then(|| Stat::of(&opened).ok())?
    });
    // The attribute of a directory that is not readable can be read by its path, but not in the sandbox.
    stat.unwrap_or_else(|| Stat::new(metadata, xattr::get(path, super::stat::ACL)))
}

/// Lists the directory at a location.
pub fn list(location: &Location) -> Result<Listing, Error> {
    let Location::Local(path) = location;
    let io = |error| Error::Io { path: path.clone(), error };
    let metadata = std::fs::metadata(path).map_err(io)?;
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(path).map_err(io)? {
        let entry = entry.map_err(io)?;
        let target = std::fs::metadata(entry.path()).ok();
        entries.push(Entry {
            name: entry.file_name(),
            kind: if target.as_ref().is_some_and(|target| target.is_dir()) { EntryKind::Dir } else { EntryKind::File },
            is_link: entry.file_type().is_ok_and(|kind| kind.is_symlink()),
            len: target.as_ref().map_or(0, Metadata::len),
            device: target.map_or(0, |target| target.dev()),
        });
    }
    let stat = directory_stat(path, &metadata);
    Ok(Listing { id: (metadata.dev(), metadata.ino()), stat, entries })
}
