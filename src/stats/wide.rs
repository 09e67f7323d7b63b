//! Statistics of values of 32 and 64 bits. The cells of the histogram double in width when a value lies outside, so one
//! pass is enough.

use super::real::{RealNumber, lanes, power_of_two};
use super::special::SpecialCounts;
use super::state::{BlockMoments, StatsState};
use super::summary::{BINS, TensorStats, ValueHistogram};
use super::tally::{UNIT, ValueMoments, ValueTally};
use std::ops::Range;

/// Statistics of values that have too many codes for a table.
#[derive(Debug)]
pub(super) struct WideStats<T> {
    /// Size of an element in bytes.
    bytes: usize,
    /// Decodes elements; the output has the same number.
    decode: fn(&[u8], &mut [T]),
    tally: ValueTally,
    /// The moments of the blocks that were added, in their order.
    blocks: Vec<ValueMoments>,
    grid: WideGrid<T>,
    /// Two rings of [`CELLS`] counters, because a processor stalls if it increments the same counter twice in a row.
    /// The index in a ring is the number of the cell modulo [`CELLS`]: the cells in use never span more.
    cells: Vec<u64>,
    /// Buffer for the indices of a batch of values in a ring.
    places: Vec<u32>,
    /// Buffer for the deviations of a batch of values from the middle of their range.
    deviations: Vec<f64>,
}

pub(super) const CELLS: usize = 4096;
/// Number of values in a batch, which fits into the L1 cache of a core.
pub(super) const VALUES_AT_ONCE: usize = 1024;

impl<T: RealNumber> WideStats<T> {
    pub(super) fn new(bytes: usize, decode: fn(&[u8], &mut [T])) -> Self {
        Self {
            bytes,
            decode,
            tally: ValueTally::new(),
            blocks: Vec::new(),
            grid: WideGrid::new(T::LEAST),
            cells: vec![0; 2 * CELLS],
            places: vec![0; VALUES_AT_ONCE],
            deviations: vec![0.0; VALUES_AT_ONCE],
        }
    }

    pub(super) fn add(&mut self, encoded: &[u8]) {
        let mut values = [T::default(); VALUES_AT_ONCE];
        for encoded in encoded.chunks(VALUES_AT_ONCE * self.bytes) {
            let values = &mut values[..encoded.len() / self.bytes];
            (self.decode)(encoded, values);
            if !self.add_finite(values) {
                let mut finite = 0;
                for at in 0..values.len() {
                    let value = values[at];
                    self.tally.special.count(value.into(), 1);
                    values[finite] = value;
                    finite += usize::from(value.into().is_finite());
                }
                self.add_finite(&values[..finite]);
            }
        }
    }

    /// Ends a block, which consists of the values that were added since the last one. The moments of blocks are merged
    /// only at the end, in the order of the blocks, so that they do not depend on who has counted which blocks.
    pub(super) fn end_block(&mut self) {
        self.blocks.push(std::mem::take(&mut self.tally.moments));
    }

    /// Adds values if all of them are finite; otherwise returns false and adds nothing.
    pub(super) fn add_finite(&mut self, values: &[T]) -> bool {
        let Some(first) = values.first() else { return true };
        let min = lanes(values, *first, |least, value| if value < least { value } else { least });
        let max = lanes(values, *first, |most, value| if value > most { value } else { most });
        let min = min.into_iter().fold(f64::INFINITY, |least, value| least.min(value.into()));
        let max = max.into_iter().fold(f64::NEG_INFINITY, |most, value| most.max(value.into()));
        let Some(moments) = ValueMoments::of(values, min, max, &mut self.deviations) else { return false };
        self.tally.moments.merge(&moments);
        self.tally.zeros += u64::from(values.iter().map(|value| u32::from(*value == T::default())).sum::<u32>());
        self.include(min, max);
        let [even, odd] = self.cells.as_chunks_mut::<CELLS>().0 else { return true };
        for (value, place) in values.iter().zip(&mut self.places) {
            *place = self.grid.place(*value);
        }
        let (pairs, rest) = self.places[..values.len()].as_chunks::<2>();
        for [a, b] in pairs {
            even[*a as usize % CELLS] += 1;
            odd[*b as usize % CELLS] += 1;
        }
        rest.iter().for_each(|place| even[*place as usize % CELLS] += 1);
        true
    }

    /// Widens the cells if needed, so that the grid also covers values from `min` to `max`.
    pub(super) fn include(&mut self, min: f64, max: f64) {
        if min >= self.tally.min && max <= self.tally.max {
            return;
        }
        let (used, old) = (self.used(), self.grid);
        self.tally.include(min, max);
        self.grid = self.grid.widened(self.tally.min, self.tally.max);
        if self.grid.exponent > old.exponent && !used.is_empty() {
            let cells = std::mem::replace(&mut self.cells, vec![0; 2 * CELLS]);
            self.pour(&cells, used, old);
        }
    }

    /// The cells from that of the minimum to that of the maximum.
    pub(super) fn used(&self) -> Range<i64> {
        if self.tally.min > self.tally.max {
            return 0..0;
        }
        self.grid.cell(T::narrow(self.tally.min))..self.grid.cell(T::narrow(self.tally.max)) + 1
    }

    /// Adds the counts of the `used` cells of another grid, which must not be wider than those of this one.
    pub(super) fn pour(&mut self, cells: &[u64], used: Range<i64>, grid: WideGrid<T>) {
        let doublings = (self.grid.exponent - grid.exponent).min(63);
        for cell in used {
            let from = cell as usize % CELLS;
            self.cells[(cell >> doublings) as usize % CELLS] += cells[from] + cells[from + CELLS];
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.include(other.tally.min, other.tally.max);
        self.tally.merge(&other.tally);
        self.blocks.extend_from_slice(&other.blocks);
        // Both grids have the narrowest possible cells, and this one covers both ranges, so its cells are not narrower.
        self.pour(&other.cells, other.used(), other.grid);
    }

    pub(super) fn finish(mut self) -> TensorStats {
        self.blocks.iter().for_each(|block| self.tally.moments.merge(block));
        let used = self.used();
        if self.tally.min >= self.tally.max || used.is_empty() {
            let same = [(self.tally.min, self.tally.moments.count)];
            return self.tally.finish(ValueHistogram::of(&same[..usize::from(!used.is_empty())]));
        }
        let per_bin = (used.end - used.start + BINS as i64 - 1) / BINS as i64;
        // Bins beyond the largest float64 would have no edges. As they are empty, add bins below the minimum instead.
        let beyond = (f64::MAX / self.grid.width.into()).ceil() as i64;
        let start = used.start.min(beyond.saturating_sub(BINS as i64 * per_bin));
        let [low, high] = [start, start + BINS as i64 * per_bin]
            .map(|cell| (cell as f64 * self.grid.width.into()).clamp(f64::MIN, f64::MAX));
        let mut counts = [0; BINS];
        for cell in used {
            let at = cell as usize % CELLS;
            counts[((cell - start) / per_bin) as usize] += self.cells[at] + self.cells[at + CELLS];
        }
        self.tally.finish(ValueHistogram { low, high, counts })
    }
}

impl<T: RealNumber> WideStats<T> {
    pub(super) fn state(&self) -> StatsState {
        let count = |cell: i64| {
            let at = cell as usize % CELLS;
            self.cells[at] + self.cells[at + CELLS]
        };
        let SpecialCounts { nan, pos_inf, neg_inf, .. } = self.tally.special;
        let blocks = self.blocks.iter().map(|block| BlockMoments {
            count: block.count,
            mean: block.mean.to_bits(),
            squares: block.squares.to_bits(),
            exponent: block.exponent,
        });
        StatsState {
            counts: self.used().map(|cell| (cell, count(cell))).filter(|(_, count)| *count > 0).collect(),
            zeros: self.tally.zeros,
            special: [nan, pos_inf, neg_inf],
            min: self.tally.min.to_bits(),
            max: self.tally.max.to_bits(),
            blocks: blocks.collect(),
        }
    }

    /// Continues with a state, if `count` values can have it. Call this only without values.
    pub(super) fn restore(&mut self, state: &StatsState, count: u64) -> Option<()> {
        let [nan, pos_inf, neg_inf] = state.special;
        (self.tally.zeros, self.tally.special) = (state.zeros, SpecialCounts { nan, pos_inf, neg_inf, first: None });
        let finite = state.counted(count)?;
        let blocks = state.blocks.iter().map(|block| {
            let is_possible = [0, UNIT, -UNIT].contains(&block.exponent) && block.count <= finite;
            let (mean, squares) = (f64::from_bits(block.mean), f64::from_bits(block.squares));
            is_possible.then_some(ValueMoments { count: block.count, mean, squares, exponent: block.exponent })
        });
        self.blocks = blocks.collect::<Option<_>>()?;
        let counted = self.blocks.iter().try_fold(0, |sum: u64, block| sum.checked_add(block.count))?;
        if finite == 0 {
            return (counted == 0).then_some(());
        }
        let (min, max) = (f64::from_bits(state.min), f64::from_bits(state.max));
        let is_value = |value: f64| value.is_finite() && T::narrow(value).into() == value;
        if counted != finite || !is_value(min) || !is_value(max) || min > max {
            return None;
        }
        self.include(min, max);
        let used = self.used();
        for (cell, count) in &state.counts {
            if !used.contains(cell) {
                return None;
            }
            self.cells[*cell as usize % CELLS] += count;
        }
        Some(())
    }
}

/// Cells of equal width on the whole number line; cell 0 begins at zero. The width is a power of two for exact edges.
#[derive(Debug, Clone, Copy)]
pub(super) struct WideGrid<T> {
    exponent: i32,
    width: T,
    scale: T,
}

impl<T: RealNumber> WideGrid<T> {
    pub(super) fn new(exponent: i32) -> Self {
        Self { exponent, width: T::narrow(power_of_two(exponent)), scale: T::narrow(power_of_two(-exponent)) }
    }

    /// The grid that covers `min` to `max` with [`CELLS`] cells as narrow as possible, but not narrower than now.
    pub(super) fn widened(self, min: f64, max: f64) -> Self {
        let exponent = (min.abs().max(max.abs()).to_bits() >> 52) as i32 - 1023;
        let mut grid = Self::new(self.exponent.max(exponent - T::LARGEST));
        while grid.cell(T::narrow(max)) - grid.cell(T::narrow(min)) >= CELLS as i64 {
            grid = Self::new(grid.exponent + 1);
        }
        grid
    }

    /// The number of the nearest edge, with [`RealNumber::ROUND`] added, and whether the edge is above the value.
    pub(super) fn edge(self, value: T) -> (T, bool) {
        let edge = value * self.scale + T::ROUND;
        (edge, (edge - T::ROUND) * self.width > value)
    }

    pub(super) fn cell(self, value: T) -> i64 {
        let (edge, above) = self.edge(value);
        (edge - T::ROUND).into() as i64 - i64::from(above)
    }

    /// The number of the cell modulo [`CELLS`].
    pub(super) fn place(self, value: T) -> u32 {
        let (edge, above) = self.edge(value);
        edge.low_bits().wrapping_sub(above.into()) % CELLS as u32
    }
}
