//! A mapped file: knows its descriptor and its map while they are held, and whether they still show what was opened.

use super::pool::{POOL, Pool, Slot, is_lack};
use super::{Block, Bytes, Error, FileId, Source, Stat, check};
use fiemap::{Fiemap, FiemapExtent, FiemapExtentFlags, FiemapFlags};
use nix::unistd::{AccessFlags, access};
use std::borrow::Cow;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::{Deref, Range};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

/// A regular file, mapped read-only as a whole. Pages are read when the kernel copies them, not before.
///
/// Of very many files only some are held open. The others are opened again when they are read, and must then be the same.
#[derive(Debug)]
pub struct MappedFile {
    /// As it was given, for messages.
    path: PathBuf,
    /// From the root, to find it again.
    place: PathBuf,
    slot: Arc<Slot>,
    pool: &'static Pool,
    opened: Version,
    id: FileId,
    stat: Stat,
    /// The causes of errors that the log has been told of, by their bits.
    reported: AtomicU8,
}

/// Why reads fail. The log is told once of each, however many reads it spoils and in whatever way: a file that is cut gives
/// one error for what is gone and another for the rest, and a file system that dies gives several.
#[derive(Debug, Clone, Copy)]
#[repr(u8)]
enum Cause {
    /// The file is not what was opened.
    Version = 1,
    /// There was no descriptor or no memory to open it again.
    Lack = 2,
    /// It cannot be read.
    Io = 4,
}

impl Cause {
    fn of(error: &Error) -> Self {
        match error {
            Error::Io { error, .. } if is_lack(error) => Self::Lack,
            Error::Io { .. } => Self::Io,
            _ => Self::Version,
        }
    }
}

/// A file that is held open.
#[derive(Debug)]
pub(super) struct Open {
    file: File,
    map: memmap2::Mmap,
}

/// A part of a map, which stays for as long as this does.
#[derive(Debug, Clone)]
pub struct Mapped<'a> {
    of: &'a MappedFile,
    open: Arc<Open>,
    range: Range<usize>,
}

impl Mapped<'_> {
    /// As [`Bytes::look_again`].
    pub(super) fn look_again(&self, unreadable: bool) -> Result<(), Error> {
        let range = self.range.start as u64..self.range.end as u64;
        if !unreadable {
            return self.of.verify(&self.open.file, range);
        }
        // Once more, by the way that tells the reason.
        self.of.read_exact_at(&mut vec![0; self.range.len()], range.start)?;
        Err(self.of.report(self.of.io(nix::errno::Errno::EIO.into())))
    }
}

impl Deref for Mapped<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // Made by `MappedFile::bytes` only, which has looked whether the map has it.
        self.open.map.get(self.range.clone()).unwrap_or_default()
    }
}

/// What tells one content of a file from the next. Not ctime: chmod and link change it and leave the bytes alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    len: u64,
    /// Seconds and nanoseconds.
    mtime: (i64, i64),
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        Self { len: metadata.len(), mtime: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

impl MappedFile {
    /// Opens and maps the file at `path`; symlinks are followed.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_in(path, &POOL)
    }

    fn open_in(path: &Path, pool: &'static Pool) -> Result<Self, Error> {
        let io = |error| Error::Io { path: path.to_owned(), error };
        let place = std::path::absolute(path).map_err(io)?;
        let slot = Arc::default();
        let open = pool.get(&slot, || map(path))?;
        let metadata = open.file.metadata().map_err(io)?;
        Ok(Self {
            path: path.to_owned(),
            place,
            slot,
            pool,
            opened: Version::of(&metadata),
            id: (metadata.dev(), metadata.ino()),
            stat: Stat::of(&metadata),
            reported: AtomicU8::new(0),
        })
    }

    /// The file, opened again where it is not held.
    fn hold(&self) -> Result<Arc<Open>, Error> {
        let replaced = || Error::Replaced { path: self.path.clone() };
        let again = || {
            let open = map(&self.place)?;
            let metadata = open.file.metadata().map_err(|error| self.io(error))?;
            if (metadata.dev(), metadata.ino()) != self.id {
                return Err(replaced());
            }
            Ok(open)
        };
        self.pool.get(&self.slot, again).map_err(|error| {
            let gone = [nix::libc::ENOENT, nix::libc::ENOTDIR, nix::libc::ELOOP];
            self.report(match error {
                Error::NotAFile { .. } | Error::Outside { .. } => replaced(),
                Error::Io { error, .. } if error.raw_os_error().is_some_and(|error| gone.contains(&error)) => {
                    replaced()
                }
                other => other,
            })
        })
    }

    /// Refuses `range` unless the file is still what was opened.
    fn verify(&self, file: &File, range: Range<u64>) -> Result<(), Error> {
        let metadata = file.metadata().map_err(|error| self.report(self.io(error)))?;
        let now = Version::of(&metadata);
        if now == self.opened {
            return Ok(());
        }
        let path = self.path.clone();
        Err(self.report(if range.end > now.len {
            Error::Cut { path, opened: self.opened.len, now: now.len, range }
        } else {
            Error::Changed { path }
        }))
    }

    /// Logs the first error of each cause, and returns it.
    fn report(&self, error: Error) -> Error {
        let cause = Cause::of(&error) as u8;
        if self.reported.fetch_or(cause, Ordering::Relaxed) & cause == 0 {
            log::warn!("{error}");
        }
        error
    }

    fn io(&self, error: std::io::Error) -> Error {
        Error::Io { path: self.path.clone(), error }
    }
}

/// Where nothing may be opened: the mount itself, of which the daemon must not ask anything.
static OFF_LIMITS: OnceLock<PathBuf> = OnceLock::new();

/// Opens nothing below `dir` any more, not even through a link. A second directory is not taken.
pub fn put_off_limits(dir: &Path) {
    let _ = OFF_LIMITS.set(dir.to_owned());
}

/// Most links on the way to a file, as in Linux.
const LINKS_MAX: usize = 40;

/// Follows the links of a path without a look at what is below `off_limits`.
fn resolve(path: &Path, off_limits: &Path) -> io::Result<PathBuf> {
    let mut ahead: Vec<OsString> = Vec::new();
    let push = |ahead: &mut Vec<OsString>, path: &Path| {
        ahead.extend(path.components().rev().map(|component| component.as_os_str().to_owned()));
    };
    push(&mut ahead, &std::path::absolute(path)?);
    let (mut place, mut links) = (PathBuf::from("/"), 0);
    while let Some(component) = ahead.pop() {
        if component == ".." {
            place.pop();
            continue;
        }
        let next = place.join(component);
        if next.starts_with(off_limits) {
            return Err(io::Error::other("lies inside the mount itself"));
        }
        match std::fs::read_link(&next) {
            Ok(_) if links == LINKS_MAX => return Err(nix::errno::Errno::ELOOP.into()),
            Ok(target) => {
                links += 1;
                push(&mut ahead, &target);
            }
            Err(error) if error.kind() == ErrorKind::InvalidInput => place = next,
            Err(error) => return Err(error),
        }
    }
    Ok(place)
}

/// Opens and maps a regular file.
fn map(path: &Path) -> Result<Open, Error> {
    let io = |error| Error::Io { path: path.to_owned(), error };
    let (place, is_mounted) = match OFF_LIMITS.get() {
        Some(off_limits) => (Cow::Owned(resolve(path, off_limits).map_err(io)?), true),
        None => (Cow::Borrowed(path), false),
    };
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&place);
    let file = file.map_err(|error| match error.kind() {
        // access(2) asks for the permissions of the file alone; before the mount stands there is no sandbox.
        ErrorKind::PermissionDenied if is_mounted && access(&*place, AccessFlags::R_OK).is_ok() => {
            Error::Outside { path: path.to_owned() }
        }
        _ => io(error),
    })?;
    let metadata = file.metadata().map_err(io)?;
    if !metadata.is_file() {
        return Err(Error::NotAFile { path: path.to_owned(), kind: kind(&metadata) });
    }
    // SAFETY: the map is read-only and nobody in this process writes to the file. Another process may cut or write
    // it; `Source::bytes` is the only way to the map and promises its callers to look at nothing: they hand the
    // slice to the kernel, which checks each page as it copies.
    #[allow(unsafe_code)]
    let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
    Ok(Open { file, map })
}

impl Source for MappedFile {
    fn len(&self) -> u64 {
        self.opened.len
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes<'_>, Error> {
        let indices = check(&range, self.len())?;
        let open = self.hold()?;
        self.verify(&open.file, range.clone())?;
        if indices.end > open.map.len() {
            return Err(Error::OutOfRange { range, len: open.map.len() as u64 });
        }
        Ok(Bytes::Mapped(Mapped { of: self, open, range: indices }))
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        check(&range, self.len())?;
        let open = self.hold()?;
        let read = open.file.read_exact_at(buf, offset);
        // Checked after the bytes were read, so that what is returned is of the version that was opened.
        self.verify(&open.file, range)?;
        read.map_err(|error| self.report(self.io(error)))
    }

    fn stat(&self) -> Stat {
        self.stat
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.place)
    }

    fn id(&self) -> Option<FileId> {
        Some(self.id)
    }

    fn shared_blocks(&self) -> Vec<Block> {
        let Ok(open) = self.hold() else { return Vec::new() };
        let shared = |extent: &FiemapExtent| {
            // What has another mark is not on the disk yet, in another form there, or nowhere.
            let rest = extent.fe_flags - (FiemapExtentFlags::LAST | FiemapExtentFlags::MERGED);
            rest.bits() == FiemapExtentFlags::SHARED.bits()
        };
        // What was written and is not on the disk yet is written there first: until then the place is that of the old bytes.
        let extents = Fiemap::with_flags(&open.file, FiemapFlags::SYNC).map_while(Result::ok).filter(shared);
        let block =
            |extent: FiemapExtent| Block { start: extent.fe_logical, len: extent.fe_length, place: extent.fe_physical };
        extents.map(block).collect()
    }
}

fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() => "a block device",
        () => "a character device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::SystemTime;

    #[test]
    fn no_way_leads_into_what_is_off_limits() {
        use std::os::unix::fs::symlink;
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().canonicalize().unwrap().join(name);
        for name in ["a", "a/b", "mnt"] {
            fs::create_dir(path(name)).unwrap();
        }
        fs::write(path("a/b/file"), "").unwrap();
        fs::write(path("mnt/file"), "").unwrap();
        symlink("../a/b", path("a/link")).unwrap();
        symlink(path("a/link/file"), path("absolute")).unwrap();
        symlink("a/link/../../mnt/file", path("into")).unwrap();
        symlink("loop", path("loop")).unwrap();
        let resolved = |name: &str| resolve(&path(name), &path("mnt"));
        assert_eq!(resolved("absolute").unwrap(), path("a/b/file"));
        assert_eq!(resolved("a/link/file").unwrap(), path("a/b/file"));
        for name in ["into", "mnt", "mnt/file", "mnt/absent"] {
            assert_eq!(resolved(name).unwrap_err().to_string(), "lies inside the mount itself", "{name}");
        }
        assert_eq!(resolved("loop").unwrap_err().raw_os_error(), Some(nix::libc::ELOOP));
        assert_eq!(resolved("absent/file").unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_cut_file_is_noticed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [7; 10_000]).unwrap();
        let source = MappedFile::open(file.path()).unwrap();
        assert!(source.bytes(0..10_000).is_ok());
        file.as_file().set_len(5_000).unwrap();
        assert!(matches!(source.bytes(4_000..6_000), Err(Error::Cut { opened: 10_000, now: 5_000, .. })));
        assert!(matches!(source.read_exact_at(&mut [0; 10], 6_000), Err(Error::Cut { .. })));
        // What is before the cut may have been written anew: better no bytes than those of another version.
        assert!(matches!(source.bytes(0..10), Err(Error::Changed { .. })));
    }

    #[test]
    fn a_rewritten_file_is_noticed_and_chmod_is_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [7; 100]).unwrap();
        let source = MappedFile::open(file.path()).unwrap();
        fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        assert!(source.bytes(0..100).is_ok());
        let later = SystemTime::now() + std::time::Duration::from_secs(1);
        file.as_file().set_modified(later).unwrap();
        assert!(matches!(source.bytes(0..100), Err(Error::Changed { .. })));
        assert!(matches!(source.read_exact_at(&mut [0], 0), Err(Error::Changed { .. })));
    }

    #[test]
    fn a_replaced_file_is_still_served() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, b"old").unwrap();
        let source = MappedFile::open(&path).unwrap();
        fs::write(dir.path().join("b"), b"new!").unwrap();
        fs::rename(dir.path().join("b"), &path).unwrap();
        assert_eq!(&source.bytes(0..3).unwrap()[..], b"old");
        fs::remove_file(&path).unwrap();
        assert_eq!(&source.bytes(0..3).unwrap()[..], b"old");
    }

    #[test]
    fn only_so_many_files_are_held_and_all_can_be_read() {
        let pool: &'static Pool = Box::leak(Box::new(Pool::new(3)));
        let dir = tempfile::tempdir().unwrap();
        let path = |at: usize| dir.path().join(at.to_string());
        let mut sources = Vec::new();
        for at in 0..20 {
            fs::write(path(at), [at as u8; 5000]).unwrap();
            sources.push(MappedFile::open_in(&path(at), pool).unwrap());
        }
        let held = || sources.iter().filter(|source| source.slot.is_held()).count();
        assert_eq!(held(), 3);
        // What was handed out before stays when its file is closed, whoever reads what meanwhile.
        let kept: Vec<_> = sources.iter().map(|source| source.bytes(10..20).unwrap()).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let sources = &sources;
                scope.spawn(move || {
                    for round in 0..500 {
                        let at = (round * 7 + thread * 5) % sources.len();
                        assert_eq!(&sources[at].bytes(0..5000).unwrap()[..], [at as u8; 5000]);
                        let mut buf = [99; 3];
                        sources[at].read_exact_at(&mut buf, 1).unwrap();
                        assert_eq!(buf, [at as u8; 3]);
                    }
                });
            }
        });
        // One more for each thread that came at the same time.
        assert!((1..=3 + 4).contains(&held()), "{}", held());
        for (at, bytes) in kept.iter().enumerate() {
            assert_eq!(&bytes[..], [at as u8; 10]);
        }
        // A file that is closed must be the same when it is opened again.
        let closed = sources.iter().position(|source| !source.slot.is_held()).unwrap();
        fs::rename(path((closed + 1) % 20), path(closed)).unwrap();
        assert!(matches!(sources[closed].bytes(0..1), Err(Error::Replaced { .. })));
        fs::remove_file(path(closed)).unwrap();
        assert!(matches!(sources[closed].bytes(0..1), Err(Error::Replaced { .. })));
    }
}
