//! The statistics of a tensor and their JSON form.

use super::real::power_of_two;
use serde_json::{Value, json};

pub const BINS: usize = 64;

/// The JSON text before the counts of the histogram. `#` stands for a number of elements and `~` for another number.
const HEAD: &str = r#"{
  "count": #, "zeros": #,
  "nan": #, "pos_inf": #, "neg_inf": #,
  "fractions": {
    "zeros": ~, "nan": ~,
    "pos_inf": ~, "neg_inf": ~
  },
  "min": ~, "max": ~,
  "mean": ~, "std": ~,
  "abs_max": ~,
  "histogram": {
    "low": ~, "high": ~,
    "counts": [
"#;

const TAIL: &str = "
    ]
  }
}
";

const INDENT: &str = "      ";

/// Length of the longest float64 in JSON.
const FLOAT_LEN: usize = 24;

/// Number of digits of the largest number in the statistics of `count` elements.
fn digits(count: u64) -> usize {
    count.checked_ilog10().unwrap_or(0) as usize + 1
}

/// Counts on a line of the histogram, so that the line fits into 80 columns.
fn counts_in_line(digits: usize) -> usize {
    match digits {
        0..=7 => 8,
        8..=16 => 4,
        _ => 2,
    }
}

/// Length in bytes of the statistics of `count` elements as JSON. It does not depend on their values, so that the size
/// of a file is known before they are read.
pub fn json_len(count: u64) -> usize {
    let digits = digits(count);
    let [numbers, floats] = [b'#', b'~'].map(|kind| HEAD.bytes().filter(|byte| *byte == kind).count());
    let lines = BINS / counts_in_line(digits);
    // Each number but the last is followed by a comma, and by a space or the end of a line.
    let counts = lines * INDENT.len() + BINS * digits + (BINS - 1) * 2;
    HEAD.len() + numbers * (digits - 1) + floats * (FLOAT_LEN - 1) + counts + TAIL.len()
}

/// Statistics of the values of a tensor. `min` to `abs_max` are those of the finite values, and `None` if there are
/// none.
#[derive(Debug, Clone, PartialEq)]
pub struct TensorStats {
    /// Number of elements.
    pub count: u64,
    /// Number of zeros, of either sign.
    pub zeros: u64,
    pub nan: u64,
    pub pos_inf: u64,
    pub neg_inf: u64,
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub mean: Option<f64>,
    /// The standard deviation of the whole population, like `np.std`.
    pub std: Option<f64>,
    pub abs_max: Option<f64>,
    pub histogram: ValueHistogram,
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
pub struct ValueHistogram {
    pub low: f64,
    pub high: f64,
    pub counts: [u64; BINS],
}

impl ValueHistogram {
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
        for (value, times) in values {
            let mut bin = (((value - low) / (high - low) * BINS as f64) as usize).min(BINS - 1);
            if *value < bin as f64 * step + low {
                bin -= 1;
            } else if bin < BINS - 1 && *value >= (bin + 1) as f64 * step + low {
                bin += 1;
            }
            counts[bin] += times;
        }
        Self { low, high, counts }
    }
}

impl TensorStats {
    /// The statistics as [`json_len`] bytes of JSON. Values that are missing or NaN are null. Lines are padded at their
    /// ends to their greatest possible lengths, which does not show on a terminal of 80 columns.
    pub fn to_json(&self) -> Vec<u8> {
        let Self { count, zeros, nan, pos_inf, neg_inf, min, max, mean, std, abs_max, histogram } = self;
        let ValueHistogram { low, high, counts } = histogram;
        let digits = digits(*count);
        let mut numbers = [count, zeros, nan, pos_inf, neg_inf].into_iter();
        let fractions = [zeros, nan, pos_inf, neg_inf].map(|of| json!(*of as f64 / *count as f64));
        let others = [json!(min), json!(max), json!(mean), json!(std), json!(abs_max), json!(low), json!(high)];
        let mut floats = fractions.iter().chain(&others);
        let mut text = String::with_capacity(json_len(*count));
        for line in HEAD.lines() {
            let mut width = text.len();
            for char in line.chars() {
                let (number, most) = match char {
                    '#' => (numbers.next().map(u64::to_string), digits),
                    '~' => (floats.next().map(Value::to_string), FLOAT_LEN),
                    _ => (Some(char.to_string()), 1),
                };
                text.push_str(&number.unwrap_or_default());
                width += most;
            }
            text.extend(std::iter::repeat_n(' ', width.saturating_sub(text.len())));
            text.push('\n');
        }
        for (at, counts) in counts.chunks(counts_in_line(digits)).enumerate() {
            let counts: Vec<String> = counts.iter().map(|count| format!("{count:>digits$}")).collect();
            text += &format!("{}{INDENT}{}", if at == 0 { "" } else { ",\n" }, counts.join(", "));
        }
        text.push_str(TAIL);
        text.into_bytes()
    }
}
