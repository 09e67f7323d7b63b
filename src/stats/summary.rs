//! The statistics of a tensor and their JSON form.

use super::real::power_of_two;
use serde_json::json;

/// Number of bins of a histogram.
pub const BINS: usize = 64;

/// Length in bytes of the statistics as JSON. It is constant, so that the size of a file does not depend on the values.
pub const JSON_LEN: usize = 2048;

/// Statistics of the values of a tensor. `min` to `abs_max` are those of the finite values, and `None` if there are
/// none.
#[derive(Debug, Clone, PartialEq)]
pub struct Stats {
    /// Number of elements.
    pub count: u64,
    /// How many are zero, of either sign.
    pub zeros: u64,
    /// How many are not a number.
    pub nan: u64,
    /// How many are positive infinity.
    pub pos_inf: u64,
    /// How many are negative infinity.
    pub neg_inf: u64,
    /// The smallest value.
    pub min: Option<f64>,
    /// The largest value.
    pub max: Option<f64>,
    /// The mean value.
    pub mean: Option<f64>,
    /// The standard deviation of the whole population, like `np.std`.
    pub std: Option<f64>,
    /// The largest magnitude.
    pub abs_max: Option<f64>,
    /// The distribution of the finite values.
    pub histogram: Histogram,
}

/// The number of values in each of [`BINS`] bins of equal width. A bin includes its lower edge but not its upper one;
/// the last bin includes both.
///
/// For elements of at most 16 bits, and if all values are equal, `low`, `high` and the counts are those of
/// `np.histogram` over the float64 values. For wider elements, `low` is the last edge of the fine grid at or below the
/// minimum, and `high` exceeds the maximum by at most about a thirtieth of the range (more if the values differ only by
/// a few units in the last place). Every edge is then a multiple of a power of two, and the counts are exact for these
/// edges. An edge beyond the largest float64 is given as the largest float64. Without finite values everything is zero.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// The lower edge of the first bin.
    pub low: f64,
    /// The upper edge of the last bin.
    pub high: f64,
    /// Number of values in each bin.
    pub counts: [u64; BINS],
}

impl Histogram {
    /// The histogram of finite values and their numbers of occurrences, with the edges and the rounding of NumPy.
    pub(super) fn of(values: &[(f64, u64)]) -> Self {
        let mut counts = [0; BINS];
        let mut low = values.iter().fold(f64::INFINITY, |low, (value, _)| low.min(*value)) + 0.0;
        let mut high = values.iter().fold(f64::NEG_INFINITY, |high, (value, _)| high.max(*value)) + 0.0;
        if values.is_empty() {
            return Self { low: 0.0, high: 0.0, counts };
        }
        if low == high {
            // NumPy uses 0.5. Where that is too small to separate the bins, use the smallest value that does.
            let half = (low.abs() * power_of_two(-47)).max(0.5);
            (low, high) = ((low - half).max(f64::MIN), (high + half).min(f64::MAX));
        }
        let step = (high - low) / BINS as f64;
        let edge = |at: usize| if at == BINS { high } else { at as f64 * step + low };
        for (value, times) in values {
            let mut bin = (((value - low) / (high - low) * BINS as f64) as usize).min(BINS - 1);
            if *value < edge(bin) {
                bin -= 1;
            } else if bin < BINS - 1 && *value >= edge(bin + 1) {
                bin += 1;
            }
            counts[bin] += times;
        }
        Self { low, high, counts }
    }
}

impl Stats {
    /// The statistics as [`JSON_LEN`] bytes of JSON, padded with spaces before the final line feed. Values that are
    /// missing or NaN are null.
    pub fn to_json(&self) -> Vec<u8> {
        let Self { count, zeros, nan, pos_inf, neg_inf, min, max, mean, std, abs_max, histogram } = self;
        let Histogram { low, high, counts } = histogram;
        let fraction = |of: &u64| json!(*of as f64 / *count as f64);
        let text = format!(
            r#"{{"count": {count}, "zeros": {zeros}, "nan": {nan}, "pos_inf": {pos_inf}, "neg_inf": {neg_inf},
"fractions": {{"zeros": {}, "nan": {}, "pos_inf": {}, "neg_inf": {}}},
"min": {}, "max": {}, "mean": {}, "std": {}, "abs_max": {},
"histogram": {{"low": {}, "high": {}, "counts": {}}}}}"#,
            fraction(zeros),
            fraction(nan),
            fraction(pos_inf),
            fraction(neg_inf),
            json!(min),
            json!(max),
            json!(mean),
            json!(std),
            json!(abs_max),
            json!(low),
            json!(high),
            json!(&counts[..]),
        );
        let mut bytes = text.into_bytes();
        bytes.resize(JSON_LEN - 1, b' ');
        bytes.push(b'\n');
        bytes
    }
}
