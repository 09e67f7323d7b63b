//! Open files and their memory maps.

use super::error::is_out_of_descriptors;
use super::info::span_of_runs;
use super::opened::note_opened;
use super::page_cache::PageCache;
use super::pool::PooledFile;
use super::resident::ResidentBits;
use super::resolve::resolve_path;
use super::version::{FileStorage, FileVersion, VersionStatus};
use super::{Error, SourceInfo, SourceStat, each_run};
use nix::unistd::{AccessFlags, access, eaccess};
use std::borrow::Cow;
use std::fs::{File, FileType, OpenOptions};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::thread;

/// An open file. The whole file is mapped read-only if that is possible and the file system is in memory or on a local
/// disk. On other file systems, the kernel may have pages of an earlier version. The kernel reads pages of a map only
/// when it copies from them.
#[derive(Debug)]
pub(super) struct OpenFile {
    pub version: Arc<FileVersion>,
    pub file: File,
    pub storage: FileStorage,
    pub map: Option<Arc<FileMap>>,
    cached: PageCache,
}

impl OpenFile {
    /// Opens the regular file at `path`, which is absolute, and maps it if possible. Error messages show `name`.
    /// `known` is `None` when the file is opened for the first time. Later, it is an error if the file is not that of
    /// `known`.
    pub fn open(path: &Path, name: &Path, known: Option<&Arc<FileVersion>>) -> Result<Self, Error> {
        let io = |error| Error::io(name, error);
        let target = resolve_path(path, known.and_then(|known| Some(known.info.id?.0))).map_err(io)?;
        let file = open_file(&target).map_err(|error| match (error.kind(), &target) {
            // access(2) checks the permissions of the file, not the sandbox. Before the mount there is no sandbox, and
            // nothing is off limits.
            (ErrorKind::PermissionDenied, Cow::Owned(target)) if access(target, AccessFlags::R_OK).is_ok() => {
                Error::Outside { path: name.to_owned() }
            }
            _ => io(error),
        })?;
        let kind = file.metadata().map_err(io)?.file_type();
        if !kind.is_file() {
            return Err(Error::NotAFile { path: name.to_owned(), kind: describe_kind(kind) });
        }
        let storage = FileStorage::of(&file);
        let status = VersionStatus::of(&file, storage).map_err(io)?;
        let version = match known {
            None => {
                let stat = SourceStat::of(&file).map_err(io)?;
                note_opened(path, status.id);
                let (path, id) = (Some(path.to_owned()), Some(status.id));
                let info = SourceInfo { len: status.len, stat, path, id, version: None, ends: None };
                Arc::new(FileVersion::new(name.to_owned(), info, status))
            }
            Some(known) if known.is_same_file(&status) => known.clone(),
            Some(_) => return Err(Error::Replaced { path: name.to_owned() }),
        };
        let map = match storage {
            FileStorage::Memory | FileStorage::Local => FileMap::new(&file, status.len, name),
            // Its bytes can be verified only between the read and the reply, so they are read into a buffer.
            FileStorage::Remote => None,
        };
        Ok(Self { version, file, storage, map, cached: PageCache::default() })
    }

    /// Fails unless the file is still the version that was opened.
    pub fn verify(&self, range: Range<u64>) -> Result<(), Error> {
        self.version.verify(&self.file, self.storage, range)
    }

    pub fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), Error> {
        let range = span_of_runs(buf, len, offset, step, self.version.info.len)?;
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
        let SourceInfo { path: Some(path), id: Some(id), .. } = &self.version.info else { return false };
        let Ok(path) = resolve_path(path, Some(id.0)) else { return false };
        // As long as this file is open, no other file has its inode number.
        let leads_here = std::fs::metadata(&path).is_ok_and(|now| (now.dev(), now.ino()) == *id);
        leads_here
            && match open_file(&path) {
                Err(error) if is_out_of_descriptors(&error) => eaccess(&*path, AccessFlags::R_OK).is_ok(),
                opened => opened.is_ok(),
            }
    }
}

#[derive(Debug)]
pub(super) struct FileMap {
    /// For messages.
    name: PathBuf,
    map: memmap2::Mmap,
    /// The ranges that were served from the map since its pages were last released.
    resident: ResidentBits,
    _room: AddressRoom,
}

/// All maps. Their pages are released together.
static MAPS: Mutex<Vec<Weak<FileMap>>> = Mutex::new(Vec::new());

impl FileMap {
    /// Maps a file. `None` if it cannot be mapped; it is then read without a map. No other files are closed to make
    /// room for it, because it may be larger than the whole address space.
    pub fn new(file: &File, len: u64, name: &Path) -> Option<Arc<Self>> {
        let Some(room) = AddressRoom::take(len) else {
            log::debug!("{}: not mapped: there is no room in the address space", name.display());
            return None;
        };
        // SAFETY: the map is read-only, and this process never writes to the file. Another process may truncate or
        // write it. `MappedBytes` is the only access to the map, and its users pass the slice to the kernel without
        // reading it; the kernel checks each page as it copies.
        #[allow(unsafe_code)]
        let map = unsafe { memmap2::Mmap::map(file) };
        let map = map.inspect_err(|error| log::debug!("{}: not mapped: {error}", name.display())).ok()?;
        let resident = ResidentBits::new(map.len());
        let map = Arc::new(Self { name: name.to_owned(), map, resident, _room: room });
        let mut maps = MAPS.lock().unwrap_or_else(PoisonError::into_inner);
        maps.retain(|other| other.strong_count() > 0);
        maps.push(Arc::downgrade(&map));
        Some(map)
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// A part of the map, or nothing if it is outside. See [`super::Source::bytes`] for what may be done with it.
    pub fn get(&self, range: Range<usize>) -> &[u8] {
        self.map.get(range).unwrap_or_default()
    }

    /// Counts a part that was served. The thread that resets the count releases pages.
    pub fn count_served(&self, range: &Range<usize>) {
        self.resident.mark(range.start.saturating_sub(FAULT_AROUND)..range.end.saturating_add(FAULT_AROUND));
        let bytes = range.len().max(FAULT_AROUND) as u64;
        if SERVED.fetch_add(bytes, Ordering::Relaxed) + bytes >= RELEASE_EVERY
            && SERVED.swap(0, Ordering::Relaxed) >= RELEASE_EVERY
        {
            release_all();
        }
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
                log::debug!("{}: cannot release pages: {error}", self.name.display());
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

/// Bytes served from maps since their pages were last released.
static SERVED: AtomicU64 = AtomicU64::new(0);

/// After this many bytes the pages of all maps are released, so that the resident memory of the process stays small.
const RELEASE_EVERY: u64 = 16 << 20;

/// A page fault also maps the neighbouring pages that are in the page cache: `fault_around_bytes` of the kernel, 64 KiB
/// by default.
const FAULT_AROUND: usize = 64 << 10;

/// Releases the pages of all maps. A separate thread does this, because it takes about 4 % of the time of serving. If
/// that thread cannot keep up, the calling thread releases pages itself.
fn release_all() {
    static SENDER: OnceLock<Option<SyncSender<()>>> = OnceLock::new();
    let sender = SENDER.get_or_init(|| {
        let (sender, receiver) = sync_channel(1);
        let thread = thread::Builder::new().name("release".into());
        thread.spawn(move || receiver.iter().for_each(|()| release_now())).ok().map(|_| sender)
    });
    if sender.as_ref().is_none_or(|sender| sender.try_send(()).is_err()) {
        release_now();
    }
}

fn release_now() {
    let maps: Vec<_> = MAPS.lock().unwrap_or_else(PoisonError::into_inner).iter().filter_map(Weak::upgrade).collect();
    maps.iter().for_each(|map| map.release());
}

pub(super) fn open_file(path: &Path) -> io::Result<File> {
    // Without O_NONBLOCK, opening a named pipe would wait for a writer.
    OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path)
}

fn describe_kind(kind: FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() => "a block device",
        () => "a character device",
    }
}
