//! A set of blocks, kept as its maximal ranges.

use std::collections::BTreeMap;
use std::ops::Range;

/// A set of blocks. Its size in memory depends on the number of its gaps only.
#[derive(Debug, Default)]
pub(super) struct BlockRanges {
    /// Start and end of each range. There is a gap after each range.
    map: BTreeMap<u64, u64>,
}

impl BlockRanges {
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let (mut start, mut end) = (range.start, range.end);
        // The ranges that overlap or touch the new one become part of it.
        while let Some((&first, &last)) = self.map.range(..=end).next_back().filter(|(_, last)| **last >= start) {
            (start, end) = (start.min(first), end.max(last));
            self.map.remove(&first);
        }
        self.map.insert(start, end);
    }

    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((&first, &last)) =
            self.map.range(..range.end).next_back().filter(|(_, last)| **last > range.start)
        {
            self.map.remove(&first);
            if last > range.end {
                self.map.insert(range.end, last);
            }
            if first < range.start {
                self.map.insert(first, range.start);
            }
        }
    }

    pub fn end_at(&self, block: u64) -> Option<u64> {
        self.map.range(..=block).next_back().map(|(_, end)| *end).filter(|end| *end > block)
    }

    /// The start of the first range after a block.
    pub fn next_after(&self, block: u64) -> Option<u64> {
        self.map.range(block.saturating_add(1)..).next().map(|(start, _)| *start)
    }

    /// The parts of a range that are in the set.
    pub fn ranges_in(&self, range: &Range<u64>) -> Vec<Range<u64>> {
        let first = self.map.range(..=range.start).next_back().map_or(range.start, |(start, _)| *start);
        let found = self.map.range(first..range.end.max(first));
        let found = found.map(|(start, end)| range.start.max(*start)..range.end.min(*end));
        found.filter(|range| !range.is_empty()).collect()
    }

    pub fn first_absent(&self, range: Range<u64>) -> Option<u64> {
        let block = self.end_at(range.start).unwrap_or(range.start);
        (block < range.end).then_some(block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn ranges_equal_a_table_of_blocks(ops in prop::collection::vec((any::<bool>(), 0u64..40, 0u64..12), 1..60)) {
            let (mut ranges, mut table) = (BlockRanges::default(), [false; 64]);
            for (inserts, start, len) in ops {
                let range = start..start + len;
                table[start as usize..(start + len) as usize].fill(inserts);
                if inserts { ranges.insert(range) } else { ranges.remove(range) }
                for block in 0..64usize {
                    let run = table[block..].iter().take_while(|is_there| **is_there).count();
                    prop_assert_eq!(ranges.end_at(block as u64), (run > 0).then_some((block + run) as u64));
                    let absent = (block..64).find(|at| !table[*at]).map(|at| at as u64);
                    prop_assert_eq!(ranges.first_absent(block as u64..64), absent);
                    let next = (block + 1..64).find(|at| table[*at] && !table[*at - 1]).map(|at| at as u64);
                    let within = ranges.ranges_in(&(block as u64..50)).into_iter().flatten();
                    prop_assert!(within.eq((block..50).filter(|at| table[*at]).map(|at| at as u64)));
                    prop_assert_eq!(ranges.next_after(block as u64), next);
                }
            }
        }
    }
}
