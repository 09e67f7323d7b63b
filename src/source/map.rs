//! Memory maps of open files, and the check that a file is still the version that was opened.

use super::error::Error;
use super::pool::Pool;
use super::resident::Resident;
use super::resolve::resolve;
use nix::unistd::{AccessFlags, access};
use std::borrow::Cow;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::{Deref, Range};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;

/// Device and inode number of a file.
pub type FileId = (u64, u64);

/// The version of a file that was opened.
#[derive(Debug)]
pub(super) struct Version {
    /// The path as the user wrote it, for messages.
    pub path: PathBuf,
    pub id: FileId,
    pub len: u64,
    /// Seconds and nanoseconds. The ctime is not compared: chmod and link change it, but not the bytes.
    mtime: (i64, i64),
}

impl Version {
    pub fn new(path: &Path, metadata: &Metadata) -> Self {
        let mtime = (metadata.mtime(), metadata.mtime_nsec());
        Self { path: path.to_owned(), id: (metadata.dev(), metadata.ino()), len: metadata.len(), mtime }
    }

    /// Fails unless `file` is still this version. If `range` ends past the current end, the error is [`Error::Cut`].
    pub fn verify(&self, file: &File, range: Range<u64>) -> Result<(), Error> {
        let now = file.metadata().map_err(|error| self.io(error))?;
        if now.len() == self.len && (now.mtime(), now.mtime_nsec()) == self.mtime {
            return Ok(());
        }
        let path = self.path.clone();
        Err(match range.end > now.len() {
            true => Error::Cut { path, opened: self.len, now: now.len(), range },
            false => Error::Changed { path },
        })
    }

    pub fn io(&self, error: io::Error) -> Error {
        Error::Io { path: self.path.clone(), error }
    }
}

/// An open file, mapped read-only as a whole. The kernel reads pages only when it copies from them.
#[derive(Debug)]
pub(super) struct Map {
    pub version: Arc<Version>,
    pub file: File,
    map: memmap2::Mmap,
    /// The pool that holds the file. The pages of all its maps are released together.
    pool: &'static Pool<Map>,
    /// What was served from the map since its pages were last released.
    resident: Resident,
}

impl Map {
    /// Opens and maps the regular file at `target`. Errors name it `path`. The first time, `version` is `None`.
    pub fn open(
        target: &Path,
        path: &Path,
        version: Option<&Arc<Version>>,
        pool: &'static Pool<Self>,
    ) -> Result<(Self, Metadata), Error> {
        let io = |error| Error::Io { path: path.to_owned(), error };
        let (resolved, is_mounted) = match resolve(target) {
            Some(resolved) => (Cow::Owned(resolved.map_err(io)?), true),
            None => (Cow::Borrowed(target), false),
        };
        // Without O_NONBLOCK, opening a named pipe would wait for a writer.
        let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(&resolved);
        let file = file.map_err(|error| match error.kind() {
            // access(2) checks the permissions of the file, not the sandbox. Before the mount there is no sandbox.
            ErrorKind::PermissionDenied if is_mounted && access(&*resolved, AccessFlags::R_OK).is_ok() => {
                Error::Outside { path: path.to_owned() }
            }
            _ => io(error),
        })?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(Error::NotAFile { path: path.to_owned(), kind: kind(&metadata) });
        }
        // SAFETY: the map is read-only, and this process never writes to the file. Another process may truncate or
        // write it. `Mapped` is the only access to the map, and its users pass the slice to the kernel without reading
        // it; the kernel checks each page as it copies.
        #[allow(unsafe_code)]
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        let version = version.cloned().unwrap_or_else(|| Arc::new(Version::new(path, &metadata)));
        let resident = Resident::new(map.len());
        Ok((Self { version, file, map, pool, resident }, metadata))
    }

    /// Size of the map in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Removes the map's pages from the page table of this process. They stay in the page cache.
    fn release(&self) {
        self.resident.take(|range| {
            // SAFETY: the next access to a page of a read-only file map loads it from the file again.
            #[allow(unsafe_code)]
            let released = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
            if let Err(error) = released {
                log::debug!("{}: cannot release pages: {error}", self.version.path.display());
            }
        });
    }
}

/// Bytes served from maps since pages were last released, over all files.
static SERVED: AtomicU64 = AtomicU64::new(0);

/// After this many bytes the pages of all maps are released, so that the resident memory of the process stays small.
const RELEASE_EVERY: u64 = 16 << 20;

/// A page fault also maps the neighbouring pages that are in the page cache: `fault_around_bytes` of the kernel, 64 KiB
/// by default.
const FAULT_AROUND: usize = 64 << 10;

/// Releases the pages of all maps in a pool. A separate thread does this, because it takes about 4 % of the time of
/// serving. If that thread cannot keep up, the calling thread releases pages itself.
fn release_all(pool: &'static Pool<Map>) {
    static SENDER: OnceLock<Option<SyncSender<&'static Pool<Map>>>> = OnceLock::new();
    let release = |pool: &Pool<Map>| pool.open_files().iter().for_each(|map| map.release());
    let start = || {
        let (sender, receiver) = sync_channel::<&'static Pool<Map>>(1);
        let thread = thread::Builder::new().name("release".into());
        thread.spawn(move || receiver.iter().for_each(release)).ok().map(|_| sender)
    };
    let sender = SENDER.get_or_init(start).as_ref();
    if sender.is_none_or(|sender| sender.try_send(pool).is_err()) {
        release(pool);
    }
}

/// A part of a map, with a reference that keeps the file mapped.
#[derive(Debug)]
pub struct Mapped {
    map: Arc<Map>,
    range: Range<usize>,
}

impl Mapped {
    /// `range` must be inside the map.
    pub(super) fn new(map: Arc<Map>, range: Range<usize>) -> Self {
        Self { map, range }
    }

    /// See [`super::Bytes::verify`].
    pub(super) fn verify(&self, unreadable: bool) -> Result<(), Error> {
        let Map { version, file, .. } = &*self.map;
        let range = self.range.start as u64..self.range.end as u64;
        if !unreadable {
            return version.verify(file, range);
        }
        // EFAULT does not give the cause. Reading the same bytes gives its errno.
        let read = file.read_exact_at(&mut vec![0; self.range.len()], range.start);
        version.verify(file, range)?;
        Err(version.io(read.err().unwrap_or_else(|| nix::errno::Errno::EIO.into())))
    }
}

impl Deref for Mapped {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map.map.get(self.range.clone()).unwrap_or_default()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let Range { start, end } = self.range;
        self.map.resident.mark(start.saturating_sub(FAULT_AROUND)..end.saturating_add(FAULT_AROUND));
        let mapped = self.range.len().max(FAULT_AROUND) as u64;
        // Only the thread that resets the count starts the release.
        if SERVED.fetch_add(mapped, Ordering::Relaxed) + mapped >= RELEASE_EVERY
            && SERVED.swap(0, Ordering::Relaxed) >= RELEASE_EVERY
        {
            release_all(self.map.pool);
        }
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
