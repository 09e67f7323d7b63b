//! The parts of a map that were served since its pages were last released. Does not depend on the map itself.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Smallest size of a part, in bytes: what one page table maps.
const PART: usize = 2 << 20;

/// Maximum number of parts. A larger file has larger parts.
const PARTS_MAX: usize = 1 << 16;

/// One bit for each part of a map. Releasing only the parts that were served keeps the cost independent of the size of
/// the map: Linux before 6.14 keeps empty page tables, and releasing a range walks all of its page tables.
#[derive(Debug)]
pub(super) struct ResidentBits {
    len: usize,
    /// Bytes in a part.
    part: usize,
    bits: Box<[AtomicU64]>,
}

impl ResidentBits {
    /// For a map of `len` bytes, of which no part was served.
    pub fn new(len: usize) -> Self {
        let part = len.div_ceil(PARTS_MAX).next_power_of_two().max(PART);
        let words = len.div_ceil(part).div_ceil(64);
        Self { len, part, bits: (0..words).map(|_| AtomicU64::new(0)).collect() }
    }

    /// Marks the parts that hold `range`, in bytes. Bytes after the map are ignored.
    pub fn mark(&self, range: Range<usize>) {
        for part in range.start / self.part..range.end.min(self.len).div_ceil(self.part) {
            let Some(word) = self.bits.get(part / 64) else { return };
            let bit = 1 << (part % 64);
            // All threads share the word: writing it only when it changes keeps it in every core's cache.
            if word.load(Ordering::Relaxed) & bit == 0 {
                word.fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Removes all marks, and passes the bytes of each run of marked parts to `each`.
    pub fn take(&self, mut each: impl FnMut(Range<usize>)) {
        for (at, word) in self.bits.iter().enumerate() {
            if word.load(Ordering::Relaxed) == 0 {
                continue;
            }
            let mut bits = word.swap(0, Ordering::Relaxed);
            while bits != 0 {
                let start = bits.trailing_zeros();
                let run = (bits >> start).trailing_ones();
                bits &= u64::MAX.checked_shl(start + run).unwrap_or(0);
                let first = 64 * at + start as usize;
                each(first * self.part..self.len.min((first + run as usize) * self.part));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(resident: &ResidentBits) -> Vec<Range<usize>> {
        let mut ranges = Vec::new();
        resident.take(|range| ranges.push(range));
        ranges
    }

    #[test]
    fn marked_parts_are_taken_once() {
        let resident = ResidentBits::new(200 * PART);
        for range in
            [5..6, 3 * PART - 1..3 * PART + 1, 62 * PART..130 * PART, 150 * PART..150 * PART, 199 * PART..300 * PART]
        {
            resident.mark(range);
        }
        let expected = [(0, 1), (2, 4), (62, 64), (64, 128), (128, 130), (199, 200)];
        assert_eq!(taken(&resident), expected.map(|(start, end)| start * PART..end * PART));
        assert!(taken(&resident).is_empty());
        resident.mark(7 * PART..8 * PART);
        assert_eq!(taken(&resident).into_iter().next(), Some(7 * PART..8 * PART));
    }

    #[test]
    fn number_of_parts_is_bounded() {
        for len in [0, 1, PART, PART + 1, PARTS_MAX * PART, 700_000_000_000, 1 << 48] {
            let resident = ResidentBits::new(len);
            assert!(resident.bits.len() <= PARTS_MAX / 64 && resident.bits.len() * 64 * resident.part >= len, "{len}");
            resident.mark(0..len);
            let total: usize = taken(&resident).iter().map(Range::len).sum();
            assert_eq!(total, len);
        }
    }
}
