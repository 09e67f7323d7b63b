//! Open files and their memory maps.

use super::error::{Error, is_out_of_descriptors};
use super::page_cache::PageCache;
use super::pool::{FilePool, PooledFile};
use super::resident::ResidentBits;
use super::resolve::resolve_path;
use super::storage::FileStorage;
use super::version::{FileVersion, VersionStatus};
use nix::unistd::{AccessFlags, access, eaccess};
use std::borrow::Cow;
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::{Deref, Range};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread;

/// An open file. The whole file is mapped read-only if that is possible and the file system is in memory or on a local
/// disk. On other file systems, the kernel may have pages of an earlier version. The kernel reads pages of a map only
/// when it copies from them.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub version: Arc<FileVersion>,
    pub file: File,
    pub storage: FileStorage,
    pub map: Option<FileMap>,
    cached: PageCache,
    /// The pool that holds the file. The pages of all its maps are released together.
    pool: &'static FilePool<OpenFile>,
}

impl OpenFile {
    /// Opens the regular file at `target`, and maps it if possible. Error messages show `path`. `version` is `None`
    /// when the file is opened for the first time. Later, it is an error if the file is not that of `version`.
    pub fn open(
        target: &Path,
        path: &Path,
        version: Option<&Arc<FileVersion>>,
        pool: &'static FilePool<Self>,
    ) -> Result<Self, Error> {
        let io = |error| Error::Io { path: path.to_owned(), error };
        let (resolved, is_mounted) = match resolve_path(target, version.map(|version| version.id.0)) {
            Some(resolved) => (Cow::Owned(resolved.map_err(io)?), true),
            None => (Cow::Borrowed(target), false),
        };
        let file = open_file(&resolved).map_err(|error| match error.kind() {
            // access(2) checks the permissions of the file, not the sandbox. Before the mount there is no sandbox.
            ErrorKind::PermissionDenied if is_mounted && access(&*resolved, AccessFlags::R_OK).is_ok() => {
                Error::Outside { path: path.to_owned() }
            }
            _ => io(error),
        })?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(Error::NotAFile { path: path.to_owned(), kind: map_kind(&metadata) });
        }
        let storage = FileStorage::of(&file);
        let status = match storage {
            FileStorage::Memory | FileStorage::Local => VersionStatus::from(&metadata),
            FileStorage::Remote => VersionStatus::of(&file, storage).map_err(io)?,
        };
        let version = match version {
            None => Arc::new(FileVersion::new(path, target, status)),
            Some(version) if version.is_same_file(&status) => version.clone(),
            Some(_) => return Err(Error::Replaced { path: path.to_owned() }),
        };
        let map = match storage {
            FileStorage::Memory | FileStorage::Local => FileMap::new(&file, metadata.len(), path),
            // Its bytes can be verified only between the read and the reply, so they are read into a buffer.
            FileStorage::Remote => None,
        };
        Ok(Self { version, file, storage, map, cached: PageCache::default(), pool })
    }

    /// Fails unless the file is still the version that was opened.
    pub fn verify(&self, range: Range<u64>) -> Result<(), Error> {
        self.version.verify(&self.file, self.storage, range)
    }

    /// Fills `buf` with the bytes from `offset` on, which must be inside the file.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        self.read_runs_at(buf, buf.len().max(1), offset, 0)
    }

    /// Fills `buf` with runs of `len` bytes, `step` bytes apart, which must be inside the file.
    pub fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), Error> {
        let range = offset..end_of_runs(buf, len, offset, step);
        let read = each_run(buf, len, offset, step).try_for_each(|(buf, start)| self.file.read_exact_at(buf, start));
        // Checked after the reads, so that the bytes are of the version that was opened.
        self.verify(range)?;
        read.map_err(|error| self.version.io(error))
    }

    /// Whether the bytes of `range` can be read without waiting.
    pub fn is_in_memory(&self, range: &Range<u64>) -> bool {
        match self.storage {
            FileStorage::Memory => true,
            FileStorage::Local => self.cached.has(&self.file, range),
            // The check that the file has not changed may wait.
            FileStorage::Remote => false,
        }
    }
}

impl Drop for OpenFile {
    fn drop(&mut self) {
        self.version.note_close(&self.file);
    }
}

impl PooledFile for OpenFile {
    fn can_be_opened_again(&self) -> bool {
        let FileVersion { target, id, .. } = &*self.version;
        let resolved = resolve_path(target, Some(id.0)).unwrap_or_else(|| Ok(target.clone()));
        // As long as this file is open, no other file has its inode number.
        let leads_here = |path: &PathBuf| std::fs::metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == *id);
        let is_readable = |path: &Path| match open_file(path) {
            Err(error) if is_out_of_descriptors(&error) => eaccess(path, AccessFlags::R_OK).is_ok(),
            opened => opened.is_ok(),
        };
        resolved.is_ok_and(|path| leads_here(&path) && is_readable(&path))
    }
}

/// A map of a whole file.
#[derive(Debug)]
pub(super) struct FileMap {
    map: memmap2::Mmap,
    /// What was served from the map since its pages were last released.
    resident: ResidentBits,
    _room: AddressRoom,
}

impl FileMap {
    /// Maps a file. `None` if it cannot be mapped; it is then read without a map. No other files are closed to make
    /// room for it, because it may be larger than the whole address space.
    pub fn new(file: &File, len: u64, path: &Path) -> Option<Self> {
        let Some(room) = AddressRoom::take(len) else {
            log::debug!("{}: not mapped: there is no room in the address space", path.display());
            return None;
        };
        // SAFETY: the map is read-only, and this process never writes to the file. Another process may truncate or
        // write it. `MappedBytes` and `Filled` are the only access to the map, and their users pass the slice to the
        // kernel without reading it; the kernel checks each page as it copies.
        #[allow(unsafe_code)]
        let map = unsafe { memmap2::Mmap::map(file) };
        let map = map.inspect_err(|error| log::debug!("{}: not mapped: {error}", path.display())).ok()?;
        let resident = ResidentBits::new(map.len());
        Some(Self { map, resident, _room: room })
    }

    /// Size of the map in bytes.
    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// A part of the map, or nothing if it is outside. See [`super::Source::bytes`] for what may be done with it.
    pub fn get(&self, range: Range<usize>) -> &[u8] {
        self.map.get(range).unwrap_or_default()
    }

    /// Notes that a part was served.
    pub fn mark(&self, range: &Range<usize>) {
        self.resident.mark(range.start.saturating_sub(FAULT_AROUND)..range.end.saturating_add(FAULT_AROUND));
    }

    /// Removes the map's pages from the page table of this process. They stay in the page cache.
    pub fn release(&self, path: &Path) {
        self.resident.take(|range| {
            // SAFETY: the next access to a page of a read-only file map loads it from the file again.
            #[allow(unsafe_code)]
            let released = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
            if let Err(error) = released {
                log::debug!("{}: cannot release pages: {error}", path.display());
            }
        });
    }
}

/// The number of all maps, and their total size in bytes. Both are limited, because the heap and the stacks of threads
/// need address space too, and a failed allocation ends the program.
static TAKEN: (AtomicUsize, AtomicU64) = (AtomicUsize::new(0), AtomicU64::new(0));

/// Half of what the kernel allows by default: 65,530 maps (`vm.max_map_count`), and 128 TiB.
static LIMITS: (AtomicUsize, AtomicU64) = (AtomicUsize::new(1 << 15), AtomicU64::new(ROOM_MAX));

const ROOM_MAX: u64 = 1 << 46;

/// Limits the number of maps and their total size in bytes. A file that would exceed a limit is not mapped.
pub fn limit_maps(maps: usize, bytes: u64) {
    LIMITS.0.store(maps, Ordering::Relaxed);
    LIMITS.1.store(bytes.min(ROOM_MAX), Ordering::Relaxed);
}

/// A part of the address space, which is returned on drop.
#[derive(Debug)]
struct AddressRoom(u64);

impl AddressRoom {
    fn take(len: u64) -> Option<Self> {
        let maps = TAKEN.0.fetch_add(1, Ordering::Relaxed) + 1;
        let bytes = TAKEN.1.fetch_add(len, Ordering::Relaxed).saturating_add(len);
        let room = Self(len);
        (maps <= LIMITS.0.load(Ordering::Relaxed) && bytes <= LIMITS.1.load(Ordering::Relaxed)).then_some(room)
    }
}

impl Drop for AddressRoom {
    fn drop(&mut self) {
        TAKEN.0.fetch_sub(1, Ordering::Relaxed);
        TAKEN.1.fetch_sub(self.0, Ordering::Relaxed);
    }
}

/// Bytes served from the maps of files of this machine.
static SERVED: ServedBytes = ServedBytes(AtomicU64::new(0));

/// After this many bytes the pages of all maps are released, so that the resident memory of the process stays small.
const RELEASE_EVERY: u64 = 16 << 20;

/// Bytes served from maps since their pages were last released.
#[derive(Debug)]
pub(super) struct ServedBytes(pub AtomicU64);

impl ServedBytes {
    /// Counts a part of a map that was served. Returns whether the caller has to release pages now: only the thread
    /// that resets the count does.
    pub fn add(&self, len: usize) -> bool {
        let mapped = len.max(FAULT_AROUND) as u64;
        self.0.fetch_add(mapped, Ordering::Relaxed) + mapped >= RELEASE_EVERY
            && self.0.swap(0, Ordering::Relaxed) >= RELEASE_EVERY
    }
}

/// A page fault also maps the neighbouring pages that are in the page cache: `fault_around_bytes` of the kernel, 64 KiB
/// by default.
const FAULT_AROUND: usize = 64 << 10;

/// Releases the pages of all maps in a pool. A separate thread does this, because it takes about 4 % of the time of
/// serving. If that thread cannot keep up, the calling thread releases pages itself.
fn release_all(pool: &'static FilePool<OpenFile>) {
    static SENDER: OnceLock<Option<SyncSender<&'static FilePool<OpenFile>>>> = OnceLock::new();
    let release_one = |open: &Arc<OpenFile>| open.map.iter().for_each(|map| map.release(&open.version.path));
    let release = move |pool: &FilePool<OpenFile>| pool.open_files().iter().for_each(release_one);
    let start = || {
        let (sender, receiver) = sync_channel::<&'static FilePool<OpenFile>>(1);
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
pub struct MappedBytes {
    /// The file, which is mapped.
    open: Arc<OpenFile>,
    range: Range<usize>,
}

impl MappedBytes {
    /// `open` must be mapped, and `range` must be inside the map.
    pub(super) fn new(open: Arc<OpenFile>, range: Range<usize>) -> Self {
        Self { open, range }
    }

    /// See [`super::Bytes::verify`].
    pub(super) fn verify(&self, unreadable: bool) -> Result<(), Error> {
        let range = self.range.start as u64..self.range.end as u64;
        if !unreadable {
            return self.open.verify(range);
        }
        // EFAULT does not give the cause. Reading the same bytes gives its errno.
        self.open.read_exact_at(&mut vec![0; self.range.len()], range.start)?;
        Err(self.open.version.io(nix::errno::Errno::EIO.into()))
    }
}

impl Deref for MappedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.open.map.as_ref().map_or(&[], |map| map.get(self.range.clone()))
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        if let Some(map) = &self.open.map {
            map.mark(&self.range);
        }
        if SERVED.add(self.range.len()) {
            release_all(self.open.pool);
        }
    }
}

fn open_file(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)
}

fn map_kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() => "a block device",
        () => "a character device",
    }
}

/// The parts of a buffer that runs of equal length and distance fill, and where each run starts: see
/// [`super::Source::read_runs_at`].
pub(super) fn each_run(buf: &mut [u8], len: usize, offset: u64, step: u64) -> impl Iterator<Item = (&mut [u8], u64)> {
    let starts = (0..).map(move |run: u64| offset.saturating_add(run.saturating_mul(step)));
    buf.chunks_mut(len).zip(starts)
}

/// The end of the last of such runs.
pub(super) fn end_of_runs(buf: &[u8], len: usize, offset: u64, step: u64) -> u64 {
    let before = buf.len().div_ceil(len).saturating_sub(1);
    let last = (buf.len() - before * len) as u64;
    offset.saturating_add(step.saturating_mul(before as u64)).saturating_add(last)
}
