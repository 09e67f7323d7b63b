//! Statistics of elements of at most 16 bits, computed exactly from the number of occurrences of each code.

use super::state::StatsState;
use super::summary::{TensorStats, ValueHistogram};
use super::tally::{ValueMoments, ValueTally};
use crate::codec::elements::ToF32;
use crate::format::{Dtype, DtypeBlock};

/// The number of occurrences of each code of an element.
#[derive(Debug)]
pub(super) struct CodeCounts {
    block: DtypeBlock,
    to_f32: ToF32,
    /// Width of an element in bits: 16, 8, 6 or 4.
    bits: usize,
    /// Two tables of the number of occurrences of each word. A word is 16 bits of elements, or two elements of 6 bits.
    /// There are two tables because a processor stalls if it increments the same counter twice in a row.
    words: Vec<u32>,
    /// Upper bound of the number of words in the tables: the bytes counted since they were cleared.
    counted: usize,
    /// Number of elements that are no longer in the tables, by code.
    codes: Vec<u64>,
}

pub(super) const WORDS: usize = 1 << 16;
/// Maximum number of bytes that are counted at a time: a multiple of 3 and 8, the bytes of a loop iteration.
pub(super) const COUNTED_AT_ONCE: usize = 3 << 20;

impl CodeCounts {
    /// `None` for dtypes whose elements have no whole number of bits or cannot be decoded.
    pub(super) fn new(dtype: Dtype) -> Option<Self> {
        let (block, to_f32, bits) = (dtype.block()?, dtype.to_f32()?, dtype.bits()? as usize);
        Some(Self { block, to_f32, bits, words: vec![0; 2 * WORDS], counted: 0, codes: vec![0; 1 << bits] })
    }

    pub(super) fn add(&mut self, encoded: &[u8]) {
        for encoded in encoded.chunks(COUNTED_AT_ONCE) {
            if self.counted > u32::MAX as usize - COUNTED_AT_ONCE {
                self.codes = self.by_code();
                self.words.fill(0);
                self.counted = 0;
            }
            self.counted += encoded.len();
            let [even, odd] = self.words.as_chunks_mut::<WORDS>().0 else { return };
            if self.bits == 6 {
                for [a, b, c] in encoded.as_chunks::<3>().0 {
                    let bits = u32::from_le_bytes([*a, *b, *c, 0]) as usize;
                    even[bits & 0xfff] += 1;
                    odd[bits >> 12 & 0xfff] += 1;
                }
                continue;
            }
            let (groups, rest) = encoded.as_chunks::<8>();
            for group in groups {
                let bits = u64::from_le_bytes(*group) as usize;
                even[bits & 0xffff] += 1;
                odd[bits >> 16 & 0xffff] += 1;
                even[bits >> 32 & 0xffff] += 1;
                odd[bits >> 48] += 1;
            }
            let bits = rest.iter().rev().fold(0, |bits, byte| bits << 8 | usize::from(*byte));
            count_codes(&mut self.codes, bits, rest.len() * 8 / self.bits, self.bits, 1);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.codes.iter_mut().zip(other.by_code()).for_each(|(count, other)| *count += other);
    }

    pub(super) fn state(&self) -> StatsState {
        let codes = self.by_code().into_iter().enumerate().filter(|(_, times)| *times > 0);
        StatsState { counts: codes.map(|(code, times)| (code as i64, times)).collect(), ..StatsState::default() }
    }

    /// Continues with a state, if `count` values can have it. Call this only without values.
    pub(super) fn restore(&mut self, state: &StatsState, count: u64) -> Option<()> {
        state.counted(count).filter(|counted| *counted == count)?;
        state.counts.iter().try_for_each(|(code, times)| {
            *self.codes.get_mut(usize::try_from(*code).ok()?)? += times;
            Some(())
        })
    }

    /// The number of occurrences of each code.
    pub(super) fn by_code(&self) -> Vec<u64> {
        let mut codes = self.codes.clone();
        let elements = if self.bits == 6 { 2 } else { 16 / self.bits };
        for (at, &times) in self.words.iter().enumerate().filter(|(_, times)| **times > 0) {
            count_codes(&mut codes, at % WORDS, elements, self.bits, times.into());
        }
        codes
    }

    pub(super) fn finish(self) -> TensorStats {
        let mut tally = ValueTally::new();
        let mut finite = Vec::new();
        for (code, times) in self.by_code().into_iter().enumerate().filter(|(_, times)| *times > 0) {
            let value = self.value(code);
            if value.is_finite() {
                finite.push((value, times));
                tally.include(value, value);
            }
            tally.zeros += if value == 0.0 { times } else { 0 };
            tally.special.count(value, times);
        }
        let finite_count = finite.iter().map(|(_, times)| times).sum();
        let n = finite_count as f64;
        // A second pass, relative to the first mean, corrects its rounding error.
        let center = sum_of(&finite, |value| value) / n;
        let rest = sum_of(&finite, |value| value - center);
        let squares = sum_of(&finite, |value| (value - center) * (value - center)) - rest * rest / n;
        tally.moments = ValueMoments { count: finite_count, mean: center + rest / n, squares, exponent: 0 };
        tally.finish(ValueHistogram::of(&finite))
    }

    pub(super) fn value(&self, code: usize) -> f64 {
        let mut block = [0; 16];
        let DtypeBlock { elements, bytes } = self.block;
        (self.to_f32)(&code.to_le_bytes()[..bytes as usize], &mut block[..elements as usize * size_of::<f32>()]);
        f32::from_le_bytes([block[0], block[1], block[2], block[3]]).into()
    }
}

/// Adds `times` to the count of each code in `word`: `elements` codes of `bits` bits, from the low bits on.
fn count_codes(codes: &mut [u64], word: usize, elements: usize, bits: usize, times: u64) {
    for at in 0..elements {
        codes[word >> (at * bits) & ((1 << bits) - 1)] += times;
    }
}

/// The sum of a term over values and their numbers of occurrences.
fn sum_of(values: &[(f64, u64)], term: impl Fn(f64) -> f64) -> f64 {
    values.iter().map(|(value, times)| term(*value) * *times as f64).sum()
}
