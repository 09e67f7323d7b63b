//! When the segments of an object were last used, to evict the least recently used ones first. Time is counted in
//! generations: a new one begins whenever a part of the limit was added to the cache.

use crate::source::pins::BlockMarks;
use std::ops::Range;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Blocks are evicted together: 4 MiB. Punching as many single holes takes much longer.
pub(super) const SEGMENT: u64 = 64;

/// Number of generations in which as many bytes are added as the limit of the cache allows.
const GENERATIONS: u64 = 16;

/// The length of a generation in bytes, if there is no limit.
const LENGTH: u64 = 1 << 30;

/// The generations of a cache.
#[derive(Debug)]
pub(super) struct AgeClock {
    /// The bytes that were added in this generation.
    added: AtomicU64,
    length: u64,
    now: AtomicU32,
}

impl AgeClock {
    pub fn new(limit: Option<u64>) -> Self {
        let length = limit.map_or(LENGTH, |limit| limit / GENERATIONS).max(1);
        Self { added: AtomicU64::new(0), length, now: AtomicU32::new(1) }
    }

    /// The number of this generation. 0 is the time before the cache was opened.
    pub fn now(&self) -> u32 {
        self.now.load(Ordering::Relaxed)
    }

    /// Counts added bytes. Whether the generation should end.
    pub fn add(&self, bytes: u64) -> bool {
        self.added.fetch_add(bytes, Ordering::Relaxed) + bytes >= self.length
    }

    /// Begins a new generation.
    pub fn advance(&self) {
        self.added.store(0, Ordering::Relaxed);
        self.now.fetch_add(1, Ordering::Relaxed);
    }
}

/// The generation in which each segment was last used, in this session: 4 bytes for 4 MiB.
#[derive(Debug)]
pub(super) struct SegmentAges(Vec<AtomicU32>);

impl SegmentAges {
    pub fn new(blocks: u64) -> Self {
        Self((0..blocks.div_ceil(SEGMENT)).map(|_| AtomicU32::new(0)).collect())
    }

    /// 0 if the segment was not used in this session.
    pub fn get(&self, segment: u64) -> u32 {
        self.at(segment).map_or(0, |age| age.load(Ordering::Relaxed))
    }

    /// Notes that blocks have become present.
    pub fn note(&self, blocks: Range<u64>, now: u32) {
        for segment in blocks.start / SEGMENT..blocks.end.div_ceil(SEGMENT) {
            if let Some(age) = self.at(segment) {
                age.store(now, Ordering::Relaxed);
            }
        }
    }

    /// Notes which segments the reader has used since the last call. Those without present blocks are not looked at,
    /// because a look at shared memory allocates it.
    pub fn collect(&self, marks: &BlockMarks, now: u32) {
        for (segment, age) in (0..).zip(&self.0) {
            if age.load(Ordering::Relaxed) != 0 && marks.take_used(segment * SEGMENT..(segment + 1) * SEGMENT) {
                age.store(now, Ordering::Relaxed);
            }
        }
    }

    fn at(&self, segment: u64) -> Option<&AtomicU32> {
        self.0.get(usize::try_from(segment).ok()?)
    }
}
