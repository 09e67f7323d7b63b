//! An object that is in use: which blocks it has, and how blocks are added. Evicting them is in `evict`.

use super::ages::{AgeClock, SegmentAges};
use super::dir::CacheDir;
use super::error::CacheError;
use super::files::{DATA, ObjectFiles, blocks, note_use};
use super::key::{CacheKey, ObjectDirId};
use super::table::BootId;
use crate::source::pins::{BLOCK, BlockMarks, PRESENT, PresentBlocks};
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Instant;

/// Number of entries of the table that are read at once: 8 KiB, for 64 MiB of the object.
const LOOKUP: u64 = 1024;

/// The time of the last use is recorded after this many seconds.
const NOTE_EVERY: u64 = 60;

/// An object that this process uses.
#[derive(Debug)]
pub(super) struct ObjectStorage {
    pub id: ObjectDirId,
    pub name: String,
    pub len: u64,
    pub blocks: u64,
    /// The directory of the object, for messages.
    pub path: PathBuf,
    pub files: ObjectFiles,
    pub present: PresentBlocks,
    pub marks: BlockMarks,
    /// The descriptors of `present` and `marks`.
    pub areas: (OwnedFd, OwnedFd),
    /// Read by those who add blocks, written by those who evict them.
    pub changing: RwLock<()>,
    pub ages: SegmentAges,
    clock: Arc<AgeClock>,
    opened: Instant,
    /// Seconds from `opened` to the last recorded use.
    noted: AtomicU64,
}

impl ObjectStorage {
    pub fn open(
        cache: &CacheDir,
        id: ObjectDirId,
        key: &CacheKey,
        boot: &BootId,
        clock: &Arc<AgeClock>,
    ) -> Result<Self, CacheError> {
        let blocks = blocks(key.len);
        let (present, present_area) = PresentBlocks::create(blocks)?;
        let (marks, marks_area) = BlockMarks::create(blocks)?;
        Ok(Self {
            id,
            name: key.name.clone(),
            len: key.len,
            blocks,
            path: cache.path_of(id),
            files: ObjectFiles::open(cache, id, key, boot)?,
            present,
            marks,
            areas: (present_area, marks_area),
            changing: RwLock::new(()),
            ages: SegmentAges::new(blocks),
            clock: clock.clone(),
            opened: Instant::now(),
            noted: AtomicU64::new(0),
        })
    }

    /// Makes blocks present. `bytes` begin at the start of the block `first` and contain whole blocks.
    ///
    /// After an error, blocks are absent unless all of their bytes were written.
    pub fn add(&self, first: u64, bytes: &[u8]) -> io::Result<()> {
        let _changing = self.reading();
        let size = BLOCK as usize;
        let mut at = 0;
        while at * size < bytes.len() {
            let has = |at: usize| self.present.has(first + at as u64..first + at as u64 + 1);
            let start = at;
            while at * size < bytes.len() && !has(at) {
                at += 1;
            }
            let run = &bytes[start * size..(at * size).min(bytes.len())];
            if run.is_empty() {
                at += 1;
                continue;
            }
            let block = first + start as u64;
            self.files.bytes.write_all_at(run, block * BLOCK)?;
            let crcs: Vec<u32> = run.chunks(size).map(crc32fast::hash).collect();
            self.files.table.write(block, &crcs)?;
            let added = block..block + crcs.len() as u64;
            // What was just fetched must not be evicted first.
            self.ages.note(added.clone(), self.clock.now());
            added.for_each(|block| _ = self.present.set(block, PRESENT));
        }
        self.note_use();
        Ok(())
    }

    /// The runs of present blocks among `wanted`. Looks for blocks that are in the table, because they were fetched by
    /// an earlier session or by another process. Those of an earlier start of the system are verified.
    pub fn has(&self, wanted: Range<u64>) -> Result<Vec<Range<u64>>, CacheError> {
        let wanted = wanted.start.min(self.blocks)..wanted.end.min(self.blocks);
        if !self.present.has(wanted.clone()) {
            self.check_size()?;
            let _changing = self.reading();
            let mut from = wanted.start / LOOKUP * LOOKUP;
            while from < wanted.end {
                let part = from..(from + LOOKUP).min(self.blocks);
                if !self.present.has(part.start.max(wanted.start)..part.end.min(wanted.end)) {
                    self.look_up(part, &wanted).map_err(CacheError::io(&self.path))?;
                }
                from += LOOKUP;
            }
            self.note_use();
        }
        let mut runs: Vec<Range<u64>> = Vec::new();
        for block in wanted.filter(|&block| self.present.has(block..block + 1)) {
            match runs.last_mut() {
                Some(run) if run.end == block => run.end += 1,
                _ => runs.push(block..block + 1),
            }
        }
        Ok(runs)
    }

    /// Marks blocks that are in the table as present. What must be verified is left out unless it is wanted.
    fn look_up(&self, part: Range<u64>, wanted: &Range<u64>) -> io::Result<()> {
        let entries = self.files.table.read(part.clone())?;
        let mut buffer = Vec::new();
        let found = |block: u64| {
            self.ages.note(block..block + 1, self.clock.now());
            self.present.set(block, PRESENT);
        };
        for (block, entry) in part.zip(entries) {
            if !entry.exists() || self.present.has(block..block + 1) {
                continue;
            }
            if self.files.table.is_current(block, entry) {
                found(block);
            } else if wanted.contains(&block) {
                if self.is_intact(block, entry.crc, &mut buffer) {
                    // Later sessions need not verify it again, if this can be written.
                    _ = self.files.table.write(block, &[entry.crc]);
                    found(block);
                } else {
                    log::info!("{}: block {block} was lost or damaged; it is fetched again", self.name);
                    _ = self.files.table.clear(block..block + 1);
                }
            }
        }
        Ok(())
    }

    /// Whether the bytes in the data file have this checksum.
    fn is_intact(&self, block: u64, crc: u32, buffer: &mut Vec<u8>) -> bool {
        buffer.resize(self.size_of(block), 0);
        self.files.bytes.read_exact_at(buffer, block * BLOCK).is_ok() && crc32fast::hash(buffer) == crc
    }

    /// Size of a block in bytes.
    pub fn size_of(&self, block: u64) -> usize {
        self.len.saturating_sub(block.saturating_mul(BLOCK)).min(BLOCK) as usize
    }

    /// Whether the table has an entry for each block.
    pub fn is_complete(&self) -> Result<bool, CacheError> {
        self.check_size()?;
        // 1 MiB at a time.
        const PART: u64 = 1 << 17;
        let mut from = 0;
        while from < self.blocks {
            let part = from..(from + PART).min(self.blocks);
            let entries = self.files.table.read(part).map_err(CacheError::io(&self.path))?;
            if !entries.iter().all(|entry| entry.exists()) {
                return Ok(false);
            }
            from += PART;
        }
        Ok(true)
    }

    /// Notes what the reader has used since the last call.
    pub fn collect_uses(&self) {
        self.ages.collect(&self.marks, self.clock.now());
    }

    /// A truncated data file lacks blocks that the table still has. Extending it again would add zeros that a reader
    /// could see, so the object cannot be used any more in this session.
    fn check_size(&self) -> Result<(), CacheError> {
        let path = self.path.join(DATA);
        let now = self.files.bytes.metadata().map_err(CacheError::io(&path))?.len();
        if now == self.len { Ok(()) } else { Err(CacheError::Resized { path, len: self.len, now }) }
    }

    fn reading(&self) -> RwLockReadGuard<'_, ()> {
        self.changing.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn note_use(&self) {
        let now = self.opened.elapsed().as_secs();
        if now >= self.noted.load(Ordering::Relaxed) + NOTE_EVERY {
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

impl Drop for ObjectStorage {
    fn drop(&mut self) {
        self.note_use_now();
    }
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
        let cache = CacheDir::create(dir.path()).unwrap();
        let key = CacheKey { identity: "a".into(), validator: "b".into(), len: 700_000_000_000, name: "c".into() };
        let open = |boot: &str| {
            ObjectStorage::open(
                &cache,
                ObjectDirId::of(&key),
                &key,
                &BootId::named(boot),
                &Arc::new(AgeClock::new(None)),
            )
            .unwrap()
        };
        let store = open("one");
        let crcs: Vec<u32> = (0..store.blocks as u32).collect();
        store.files.table.write(0, &crcs).unwrap();
        drop((store, crcs));
        for boot in ["one", "two"] {
            let start = Instant::now();
            let store = open(boot);
            println!(
                "boot {boot}: open {:?}, {} blocks, {} KiB of shared memory",
                start.elapsed(),
                store.blocks,
                shared_kib()
            );
            let start = Instant::now();
            store.has(1_000_000..1_000_016).unwrap();
            println!("  first has of 1 MiB: {:?}, {} KiB", start.elapsed(), shared_kib());
            let start = Instant::now();
            let is_complete = store.is_complete().unwrap();
            println!("  complete: {is_complete} after {:?}", start.elapsed());
            // In the other boot, blocks are compared with bytes that were never written.
            assert_eq!(is_complete, boot == "one");
            if boot == "one" {
                let start = Instant::now();
                assert_eq!(store.has(0..store.blocks).unwrap().len(), 1);
                println!("  has of all: {:?}, {} KiB", start.elapsed(), shared_kib());
                let start = Instant::now();
                assert!(store.marks.pin(0..store.blocks));
                store.marks.set_used(0..store.blocks);
                println!("  all pinned and used: {:?}, {} KiB", start.elapsed(), shared_kib());
            }
        }
    }
}
