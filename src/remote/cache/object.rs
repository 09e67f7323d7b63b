//! An open cache, and its objects that are in use: which of their blocks are present. `write` adds blocks, and `evict`
//! removes them.

use super::dir::{CacheDir, open_file};
use super::error::{CacheError, CacheResult};
use super::files::{DATA, ObjectFiles, note_use};
use super::key::{CacheKey, ObjectDirId};
use super::partial::PartialBlocks;
use super::table::boot_id;
use crate::remote::lock_mutex;
use crate::source::pins::{BLOCK, BlockMarks, PRESENT, PresentBlocks, TRIGGER};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard, Weak};
use std::time::Instant;

/// Number of entries of the table that are read at once: 8 KiB, for 64 MiB of the object.
pub(super) const LOOKUP: u64 = 1024;

/// Blocks are evicted together: 4 MiB. Punching as many single holes takes much longer.
pub(super) const SEGMENT: u64 = 64;

/// The time of the last use is recorded after this many nanoseconds.
const NOTE_EVERY: u64 = 60_000_000_000;

#[derive(Debug, Clone, Default)]
pub struct CacheOptions {
    pub limit: Option<u64>,
    /// Identifies the time since the system was started. By default, the boot id of the kernel.
    pub boot: Option<String>,
}

/// The block cache. Clones are the same cache.
#[derive(Debug, Clone)]
pub struct BlockCache(pub(super) Arc<CacheShared>);

#[derive(Debug)]
pub(super) struct CacheShared {
    pub dir: CacheDir,
    pub limit: Option<u64>,
    pub boot: Vec<u8>,
    /// Taken by the process that makes room.
    pub lock: File,
    /// Taken by the thread that makes room.
    pub evicting: Mutex<()>,
    opened: Instant,
    /// Number of bytes that may be added before the sizes of all objects are counted again.
    pub budget: AtomicU64,
    pub open: Mutex<HashMap<ObjectDirId, Weak<CachedObject>>>,
    pub partials: Mutex<PartialBlocks>,
    /// The files of which [`BlockCache::has_version`] has found a version.
    pub found: OnceLock<HashSet<u128>>,
    pub evicted: Mutex<Vec<(ObjectDirId, Range<u64>)>>,
    /// Whether the log says already that the limit is exceeded.
    pub has_warned: AtomicBool,
}

impl BlockCache {
    /// Opens the cache in a directory, and creates it if it does not exist.
    ///
    /// Fails if the directory belongs to another user, or has a later layout. After this, no path is followed any more:
    /// all files are opened from descriptors of directories.
    pub fn open(dir: &Path, options: CacheOptions) -> CacheResult<Self> {
        let dir = CacheDir::open(dir, true)?.ok_or(Errno::ENOENT).map_err(CacheError::io(dir))?;
        let lock = open_file(&dir.root, "lock", OFlag::O_RDWR | OFlag::O_CREAT);
        let lock = lock.map_err(CacheError::io(&dir.path.join("lock")))?;
        Ok(Self(Arc::new(CacheShared {
            dir,
            limit: options.limit,
            boot: options.boot.map_or_else(boot_id, String::into_bytes),
            lock,
            evicting: Mutex::default(),
            opened: Instant::now(),
            budget: AtomicU64::new(0),
            open: Mutex::default(),
            partials: Mutex::default(),
            found: OnceLock::new(),
            evicted: Mutex::default(),
            has_warned: AtomicBool::new(false),
        })))
    }

    pub fn path(&self) -> &Path {
        &self.0.dir.path
    }

    /// The time since the cache was opened, in nanoseconds, at least 1.
    pub(super) fn now(&self) -> u64 {
        self.0.opened.elapsed().as_nanos() as u64 + 1
    }

    pub(super) fn open_objects(&self) -> Vec<Arc<CachedObject>> {
        let mut open = lock_mutex(&self.0.open);
        open.retain(|_, object| object.strong_count() > 0);
        open.values().filter_map(Weak::upgrade).collect()
    }

    /// Opens an object, and creates it if it does not exist.
    ///
    /// The time that this takes does not depend on the size of the object: its block table is read when it is used. If
    /// the disk is full, others are evicted: see [`BlockCache::take_evicted`].
    pub fn object(&self, key: &CacheKey) -> CacheResult<Arc<CachedObject>> {
        key.check()?;
        let id = ObjectDirId::of(key);
        let find = |open: &HashMap<_, Weak<_>>| open.get(&id).and_then(Weak::upgrade);
        if let Some(object) = find(&lock_mutex(&self.0.open)) {
            return Ok(object);
        }
        let new = Arc::new(self.with_room(0, || CachedObject::open(self, id, key))?);
        let mut open = lock_mutex(&self.0.open);
        // Another thread may have opened it in the meantime.
        if let Some(object) = find(&open) {
            return Ok(object);
        }
        open.insert(id, Arc::downgrade(&new));
        Ok(new)
    }
}

/// One version of one remote file, in the cache. It is in use until it is dropped and all readers have closed their
/// descriptors.
#[derive(Debug)]
pub struct CachedObject {
    pub(super) cache: BlockCache,
    pub(super) id: ObjectDirId,
    pub(super) name: String,
    /// Size in bytes.
    pub len: u64,
    pub blocks: u64,
    pub(super) path: PathBuf,
    pub(super) files: ObjectFiles,
    pub(super) present: PresentBlocks,
    pub(super) marks: BlockMarks,
    /// The descriptors of `present` and `marks`.
    areas: (OwnedFd, OwnedFd),
    /// Read by those who add blocks, written by those who evict them.
    changing: RwLock<()>,
    /// When each segment was last used, by [`BlockCache::now`]; 0 if it was not used in this session.
    pub(super) uses: Vec<AtomicU64>,
    /// When the last use was recorded in the file system.
    noted: AtomicU64,
}

impl CachedObject {
    fn open(cache: &BlockCache, id: ObjectDirId, key: &CacheKey) -> CacheResult<Self> {
        let blocks = key.len.div_ceil(BLOCK);
        let (present, present_area) = PresentBlocks::create(blocks)?;
        let (marks, marks_area) = BlockMarks::create(blocks)?;
        Ok(Self {
            cache: cache.clone(),
            id,
            name: key.name.clone(),
            len: key.len,
            blocks,
            path: cache.0.dir.path_of(id),
            files: ObjectFiles::open(&cache.0.dir, id, key, &cache.0.boot)?,
            present,
            marks,
            areas: (present_area, marks_area),
            changing: RwLock::new(()),
            uses: (0..blocks.div_ceil(SEGMENT)).map(|_| AtomicU64::new(0)).collect(),
            noted: AtomicU64::new(cache.now()),
        })
    }

    pub(super) fn size_of(&self, block: u64) -> usize {
        self.len.saturating_sub(block.saturating_mul(BLOCK)).min(BLOCK) as usize
    }

    /// The data file, read-only. Its size is that of the object, with holes where blocks are absent.
    pub fn data(&self) -> &File {
        &self.files.view
    }

    /// The descriptors that [`crate::source::OpenFetched`] needs: of the data file, of the map of present blocks, to
    /// which the receiver cannot write, of the marks of readers, and of a lock that keeps the object in use until the
    /// receiver closes it.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 4] {
        [self.files.view.as_fd(), self.areas.0.as_fd(), self.areas.1.as_fd(), self.files.users.as_fd()]
    }

    /// The runs of present blocks among `wanted`, in order. Looks for blocks that are in the table, because they were
    /// fetched by an earlier session or by another process.
    ///
    /// Blocks that were written before the system was last started are compared with their checksums here, which reads
    /// them from the disk. If they differ, they are absent.
    pub fn has(&self, wanted: Range<u64>) -> CacheResult<Vec<Range<u64>>> {
        let wanted = wanted.start.min(self.blocks)..wanted.end.min(self.blocks);
        if !self.present.has(wanted.clone()) {
            self.check_size()?;
            let _changing = self.reading();
            for from in (wanted.start / LOOKUP * LOOKUP..wanted.end).step_by(LOOKUP as usize) {
                let part = from..(from + LOOKUP).min(self.blocks);
                if !self.present.has(part.start.max(wanted.start)..part.end.min(wanted.end)) {
                    self.look_up(part, &wanted).map_err(CacheError::io(&self.path))?;
                }
            }
            self.note_use();
        }
        Ok(runs(wanted.filter(|&block| self.present.has(block..block + 1))))
    }

    /// Marks blocks that are in the table as present. What must be verified is left out unless it is wanted.
    fn look_up(&self, part: Range<u64>, wanted: &Range<u64>) -> io::Result<()> {
        let entries = self.files.table.read(part.clone())?;
        let mut buffer = Vec::new();
        for (block, entry) in part.zip(entries) {
            if entry == 0 || self.present.has(block..block + 1) {
                continue;
            }
            let crc = entry as u32;
            if entry != self.files.table.current(block, crc) {
                if !wanted.contains(&block) {
                    continue;
                }
                if !self.is_intact(block, crc, &mut buffer) {
                    log::info!("{}: block {block} was lost or damaged; it is fetched again", self.name);
                    _ = self.files.table.clear(block..block + 1);
                    continue;
                }
                // Later sessions need not verify it again, if this can be written.
                _ = self.files.table.write(block, &[crc]);
            }
            self.set_present(block..block + 1);
        }
        Ok(())
    }

    fn is_intact(&self, block: u64, crc: u32, buffer: &mut Vec<u8>) -> bool {
        buffer.resize(self.size_of(block), 0);
        self.files.bytes.read_exact_at(buffer, block * BLOCK).is_ok() && crc32fast::hash(buffer) == crc
    }

    /// Marks blocks as present, and as used: what was just found or fetched must not be evicted first.
    pub(super) fn set_present(&self, blocks: Range<u64>) {
        let now = self.cache.now();
        for block in blocks {
            if let Some(used) = self.uses.get((block / SEGMENT) as usize) {
                used.store(now, Ordering::Relaxed);
            }
            self.present.set(block, PRESENT);
        }
    }

    /// Notes what the reader has used since the last call. Segments without present blocks are not looked at, because a
    /// look at shared memory allocates it.
    pub(super) fn collect_uses(&self) {
        for (segment, used) in (0..).zip(&self.uses) {
            let blocks = segment * SEGMENT..(segment + 1) * SEGMENT;
            if used.load(Ordering::Relaxed) != 0 && self.marks.take_used(blocks) {
                used.store(self.cache.now(), Ordering::Relaxed);
            }
        }
    }

    /// When a segment was last used, by [`BlockCache::now`]; 0 if it was not used in this session.
    pub(super) fn last_use(&self, segment: u64) -> u64 {
        self.uses.get(segment as usize).map_or(0, |used| used.load(Ordering::Relaxed))
    }

    /// Makes a block a trigger: the reader reports when it reads the block. The block need not be present yet.
    pub fn set_trigger(&self, block: u64) {
        self.present.set(block, TRIGGER);
    }

    /// Undoes [`CachedObject::set_trigger`], when the report has come.
    pub fn clear_trigger(&self, block: u64) {
        self.present.clear(block, TRIGGER);
    }

    /// A truncated data file lacks blocks that the table still has. Extending it again would add zeros that a reader
    /// could see, so the object cannot be used any more in this session.
    fn check_size(&self) -> CacheResult<()> {
        let path = self.path.join(DATA);
        let now = self.files.bytes.metadata().map_err(CacheError::io(&path))?.len();
        if now == self.len { Ok(()) } else { Err(CacheError::Resized { path, len: self.len, now }) }
    }

    pub(super) fn reading(&self) -> RwLockReadGuard<'_, ()> {
        self.changing.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn changing(&self) -> RwLockWriteGuard<'_, ()> {
        self.changing.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note_use(&self) {
        let now = self.cache.now();
        if now >= self.noted.load(Ordering::Relaxed).saturating_add(NOTE_EVERY) {
            self.noted.store(now, Ordering::Relaxed);
            self.note_use_now();
        }
    }

    fn note_use_now(&self) {
        if let Err(error) = note_use(&self.files.gate) {
            log::debug!("{}: the time of the last use is not recorded: {error}", self.path.display());
        }
    }
}

impl Drop for CachedObject {
    fn drop(&mut self) {
        self.note_use_now();
    }
}

/// The runs of numbers in a sequence that ascends.
pub(super) fn runs(blocks: impl Iterator<Item = u64>) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some(run) if run.end == block => run.end += 1,
            _ => runs.push(block..block + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shared_kib() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find(|line| line.starts_with("RssShmem")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse().unwrap()
    }

    /// `cargo test --release --lib full_table -- --ignored --nocapture`
    #[test]
    #[ignore = "a measurement"]
    fn full_table_of_700_gb_opens_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let key = CacheKey { identity: "a".into(), validator: "b".into(), len: 700_000_000_000, name: "c".into() };
        let open = |boot: &str| {
            let options = CacheOptions { boot: Some(boot.into()), limit: None };
            BlockCache::open(dir.path(), options).unwrap().object(&key).unwrap()
        };
        let object = open("one");
        let crcs: Vec<u32> = (0..object.blocks as u32).collect();
        object.files.table.write(0, &crcs).unwrap();
        drop((object, crcs));
        for boot in ["one", "two"] {
            let start = Instant::now();
            let object = open(boot);
            println!(
                "boot {boot}: open {:?}, {} blocks, {} KiB of shared memory",
                start.elapsed(),
                object.blocks,
                shared_kib()
            );
            let start = Instant::now();
            // In the other boot, blocks are compared with bytes that were never written.
            assert_eq!(object.has(1_000_000..1_000_016).unwrap().len(), usize::from(boot == "one"));
            println!("  first has of 1 MiB: {:?}, {} KiB", start.elapsed(), shared_kib());
            if boot == "one" {
                let start = Instant::now();
                assert_eq!(object.has(0..object.blocks).unwrap().len(), 1);
                println!("  has of all: {:?}, {} KiB", start.elapsed(), shared_kib());
                let start = Instant::now();
                assert!(object.marks.pin(0..object.blocks));
                object.marks.set_used(0..object.blocks);
                println!("  all pinned and used: {:?}, {} KiB", start.elapsed(), shared_kib());
            }
        }
    }
}
