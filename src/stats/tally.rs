//! What is known of values besides a histogram: counts, extremes, mean and deviation.

use super::real::{Real, lanes, power_of_two};
use super::summary::{Histogram, Stats};

/// What is known of values besides the histogram.
#[derive(Debug, Clone)]
pub(super) struct Tally {
    pub(super) zeros: u64,
    pub(super) nan: u64,
    pub(super) pos_inf: u64,
    pub(super) neg_inf: u64,
    /// Over the finite values; above `max` if there are none.
    pub(super) min: f64,
    pub(super) max: f64,
    pub(super) moments: Moments,
}

impl Tally {
    pub(super) fn new() -> Self {
        let (min, max) = (f64::INFINITY, f64::NEG_INFINITY);
        Self { zeros: 0, nan: 0, pos_inf: 0, neg_inf: 0, min, max, moments: Moments::default() }
    }

    /// Counts a value if it is not finite.
    pub(super) fn set_aside(&mut self, value: f64, times: u64) {
        self.nan += times * u64::from(value.is_nan());
        self.pos_inf += times * u64::from(value == f64::INFINITY);
        self.neg_inf += times * u64::from(value == f64::NEG_INFINITY);
    }

    pub(super) fn include(&mut self, min: f64, max: f64) {
        // Zero has no sign here.
        self.min = self.min.min(min) + 0.0;
        self.max = self.max.max(max) + 0.0;
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.zeros += other.zeros;
        self.nan += other.nan;
        self.pos_inf += other.pos_inf;
        self.neg_inf += other.neg_inf;
        self.include(other.min, other.max);
        self.moments.merge(&other.moments);
    }

    pub(super) fn finish(self, histogram: Histogram) -> Stats {
        let Self { zeros, nan, pos_inf, neg_inf, min, max, moments } = self;
        let unit = power_of_two(moments.exponent);
        let finite = |value: f64| (moments.count > 0).then_some(value);
        Stats {
            count: moments.count + nan + pos_inf + neg_inf,
            zeros,
            nan,
            pos_inf,
            neg_inf,
            min: finite(min),
            max: finite(max),
            mean: finite((moments.mean * unit).max(min).min(max)),
            std: finite(((moments.squares / moments.count as f64).sqrt() * unit).min(f64::MAX)),
            abs_max: finite(min.abs().max(max.abs())),
            histogram,
        }
    }
}

/// Number, mean and squared deviations from the mean, in units of a power of two that keeps squares from overflow and
/// underflow.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Moments {
    pub(super) count: u64,
    pub(super) mean: f64,
    pub(super) squares: f64,
    pub(super) exponent: i32,
}

/// Exponents up to which squares, and sums of as many as there can be, are numbers.
pub(super) const SAFE: i32 = 450;
/// Exponent of the units for values beyond that.
pub(super) const UNIT: i32 = 600;

impl Moments {
    /// Of values from `min` to `max`; `None` if not all are finite. `apart` has room for as many.
    pub(super) fn of<T: Real>(values: &[T], min: f64, max: f64, apart: &mut [f64]) -> Option<Self> {
        let largest = min.abs().max(max.abs());
        let exponent = match largest {
            _ if largest > power_of_two(SAFE) => UNIT,
            _ if largest < power_of_two(-SAFE) && largest > 0.0 => -UNIT,
            _ => 0,
        };
        // The middle is near enough to the mean for the squares to lose almost nothing.
        let scale = power_of_two(-exponent);
        let center = min * scale / 2.0 + max * scale / 2.0;
        let apart = &mut apart[..values.len()];
        apart.iter_mut().zip(values).for_each(|(apart, value)| *apart = (*value).into() * scale - center);
        let rest = lanes(apart, 0.0, |sum, apart| sum + apart).iter().sum::<f64>();
        let squares = lanes(apart, 0.0, |sum, apart| sum + apart * apart).iter().sum::<f64>();
        let n = values.len() as f64;
        let (mean, squares) = (center + rest / n, squares - rest * rest / n);
        squares.is_finite().then_some(Self { count: values.len() as u64, mean, squares: squares.max(0.0), exponent })
    }

    /// By the method of Chan, Golub and LeVeque.
    pub(super) fn merge(&mut self, other: &Self) {
        if self.count == 0 || other.count == 0 {
            *self = if self.count == 0 { *other } else { *self };
            return;
        }
        let exponent = self.exponent.max(other.exponent);
        let (a, b) = (self.in_units(exponent), other.in_units(exponent));
        let count = a.count + b.count;
        let (ours, theirs) = (a.count as f64, b.count as f64 / count as f64);
        let apart = b.mean - a.mean;
        let squares = a.squares + b.squares + apart * apart * ours * theirs;
        *self = Self { count, mean: a.mean + apart * theirs, squares, exponent };
    }

    /// The same in units no smaller than now.
    pub(super) fn in_units(self, exponent: i32) -> Self {
        let factor = if exponent > self.exponent { power_of_two((self.exponent - exponent).max(-1022)) } else { 1.0 };
        Self { mean: self.mean * factor, squares: self.squares * factor * factor, exponent, ..self }
    }
}
