//! Statistics that another process has counted: of a whole tensor, or of a part that others continue with.
//!
//! Floating-point numbers are kept as their bits, because JSON has no NaN, and reading decimals may round.

use super::summary::{BINS, TensorStats, ValueHistogram};
use serde::{Deserialize, Serialize};

/// What was counted of a part of a tensor.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StatsState {
    /// The number of occurrences of each code, or of finite values in each cell of the grid; none is zero.
    pub(super) counts: Vec<(i64, u64)>,
    pub(super) zeros: u64,
    /// The numbers of NaN, positive infinity and negative infinity.
    pub(super) special: [u64; 3],
    /// The bits of a float64.
    pub(super) min: u64,
    pub(super) max: u64,
    pub(super) blocks: Vec<BlockMoments>,
}

/// The moments of the finite values of a block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct BlockMoments {
    pub count: u64,
    /// The bits of a float64.
    pub mean: u64,
    pub squares: u64,
    pub exponent: i32,
}

impl StatsState {
    /// The number of values that were counted in codes or cells. `None` unless `count` values can have this state.
    pub(super) fn counted(&self, count: u64) -> Option<u64> {
        let counted = self.counts.iter().try_fold(0, |sum: u64, (_, count)| sum.checked_add(*count))?;
        let total = self.special.into_iter().try_fold(counted, u64::checked_add)?;
        (total == count && self.zeros <= counted).then_some(counted)
    }
}

/// The statistics of a whole tensor.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FinishedState {
    /// The numbers of elements, zeros, NaN, positive and negative infinity.
    counts: [u64; 5],
    /// The bits of minimum, maximum, mean, standard deviation and largest magnitude.
    values: [Option<u64>; 5],
    /// The bits of the edges of the histogram.
    edges: [u64; 2],
    bins: Vec<u64>,
}

impl FinishedState {
    pub fn of(stats: &TensorStats) -> Self {
        let TensorStats { count, zeros, nan, pos_inf, neg_inf, min, max, mean, std, abs_max, histogram } = stats;
        Self {
            counts: [*count, *zeros, *nan, *pos_inf, *neg_inf],
            values: [min, max, mean, std, abs_max].map(|value| value.map(f64::to_bits)),
            edges: [histogram.low, histogram.high].map(f64::to_bits),
            bins: histogram.counts.to_vec(),
        }
    }

    /// `None` if `elements` values cannot have these statistics.
    pub fn stats(&self, elements: u64) -> Option<TensorStats> {
        let [count, zeros, nan, pos_inf, neg_inf] = self.counts;
        let [min, max, mean, std, abs_max] = self.values.map(|value| value.map(f64::from_bits));
        let [low, high] = self.edges.map(f64::from_bits);
        let counts: [u64; BINS] = self.bins[..].try_into().ok()?;
        let finite = counts.iter().try_fold(0, |sum: u64, count| sum.checked_add(*count))?;
        let total = [nan, pos_inf, neg_inf].into_iter().try_fold(finite, u64::checked_add)?;
        let is_possible = total == count && count == elements && zeros <= finite;
        let histogram = ValueHistogram { low, high, counts };
        is_possible.then_some(TensorStats {
            count,
            zeros,
            nan,
            pos_inf,
            neg_inf,
            min,
            max,
            mean,
            std,
            abs_max,
            histogram,
        })
    }
}
