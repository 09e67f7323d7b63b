//! The statistics of values except the histogram.

use super::real::{RealNumber, lanes, power_of_two};
use super::special::SpecialCounts;
use super::summary::{TensorStats, ValueHistogram};

#[derive(Debug, Clone)]
pub(super) struct ValueTally {
    pub(super) zeros: u64,
    pub(super) special: SpecialCounts,
    /// Over the finite values; above `max` if there are none.
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) moments: ValueMoments,
}

impl ValueTally {
    pub(super) fn new() -> Self {
        let (special, moments) = Default::default();
        Self { zeros: 0, special, min: f64::INFINITY, max: f64::NEG_INFINITY, moments }
    }

    pub(super) fn include(&mut self, min: f64, max: f64) {
        // Adding 0.0 turns -0.0 into 0.0.
        self.min = self.min.min(min) + 0.0;
        self.max = self.max.max(max) + 0.0;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.zeros += other.zeros;
        self.special.merge(&other.special, 0);
        self.include(other.min, other.max);
        self.moments.merge(&other.moments);
    }

    pub(super) fn finish(self, histogram: ValueHistogram) -> TensorStats {
        let Self { zeros, special: SpecialCounts { nan, pos_inf, neg_inf, .. }, min, max, moments } = self;
        let unit = power_of_two(moments.exponent);
        let finite = [
            min,
            max,
            (moments.mean * unit).max(min).min(max),
            ((moments.squares / moments.count as f64).sqrt() * unit).min(f64::MAX),
            min.abs().max(max.abs()),
        ];
        let [min, max, mean, std, abs_max] = finite.map(|value| (moments.count > 0).then_some(value));
        TensorStats {
            count: moments.count + nan + pos_inf + neg_inf,
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
        }
    }
}

/// Number, mean and sum of the squared deviations from the mean, in units of 2 to the power of `exponent`, which is
/// chosen such that squares neither overflow nor underflow.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ValueMoments {
    pub(super) count: u64,
    pub(super) mean: f64,
    pub(super) squares: f64,
    pub(super) exponent: i32,
}

/// If exponents have at most this magnitude, squares and sums of squares neither overflow nor underflow.
pub(super) const SAFE: i32 = 450;
/// Exponent of the units for larger values; negated for smaller ones.
pub(super) const UNIT: i32 = 600;

impl ValueMoments {
    /// The moments of values from `min` to `max`; `None` if not all are finite. `deviations` is a buffer for at least
    /// as many values.
    pub(super) fn of<T: RealNumber>(values: &[T], min: f64, max: f64, deviations: &mut [f64]) -> Option<Self> {
        let largest = min.abs().max(max.abs());
        let exponent = match largest {
            _ if largest > power_of_two(SAFE) => UNIT,
            _ if largest < power_of_two(-SAFE) && largest > 0.0 => -UNIT,
            _ => 0,
        };
        // The middle of the range is close enough to the mean that the squares lose almost no precision.
        let scale = power_of_two(-exponent);
        let center = min * scale / 2.0 + max * scale / 2.0;
        let deviations = &mut deviations[..values.len()];
        deviations.iter_mut().zip(values).for_each(|(deviation, value)| *deviation = (*value).into() * scale - center);
        let rest = lanes(deviations, 0.0, |sum, deviation| sum + deviation).iter().sum::<f64>();
        let squares = lanes(deviations, 0.0, |sum, deviation| sum + deviation * deviation).iter().sum::<f64>();
        let n = values.len() as f64;
        let (mean, squares) = (center + rest / n, squares - rest * rest / n);
        squares.is_finite().then_some(Self { count: values.len() as u64, mean, squares: squares.max(0.0), exponent })
    }

    /// Merges by the method of Chan, Golub and LeVeque.
    pub(super) fn merge(&mut self, other: &Self) {
        if self.count == 0 || other.count == 0 {
            *self = if self.count == 0 { *other } else { *self };
            return;
        }
        let exponent = self.exponent.max(other.exponent);
        let (a, b) = (self.in_units(exponent), other.in_units(exponent));
        let count = a.count + b.count;
        let (ours, theirs) = (a.count as f64, b.count as f64 / count as f64);
        let delta = b.mean - a.mean;
        let squares = a.squares + b.squares + delta * delta * ours * theirs;
        *self = Self { count, mean: a.mean + delta * theirs, squares, exponent };
    }

    /// The same moments in units of another exponent, which must not be smaller.
    pub(super) fn in_units(self, exponent: i32) -> Self {
        let factor = if exponent > self.exponent { power_of_two((self.exponent - exponent).max(-1022)) } else { 1.0 };
        Self { mean: self.mean * factor, squares: self.squares * factor * factor, exponent, ..self }
    }
}
