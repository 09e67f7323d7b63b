//! Computes statistics in one pass over the bytes of a tensor.
//!
//! Mean and standard deviation are computed in float64. Elements of at most 16 bits are counted by code, and the
//! statistics follow from the counts. Wider elements are counted in a fine grid whose cells widen with the range of
//! values; the grid becomes the histogram. Blocks with scales are decoded and then counted as float32.

use super::codes::CodeCounts;
use super::state::StatsState;
use super::summary::TensorStats;
use super::wide::WideStats;
use crate::codec::elements::ToF32;
use crate::format::{Dtype, DtypeBlock};

/// Whether there are statistics for elements of `dtype`. There are none for C64, whose elements are pairs of numbers,
/// and for dtypes that cannot be decoded.
pub fn has(dtype: Dtype) -> bool {
    dtype.to_f32().is_some()
        && (is_wide(dtype) || dtype.has_scales() || dtype.bits().is_some_and(|bits| bits <= CODE_BITS_MAX))
}

/// Elements of at most this many bits are counted by code.
const CODE_BITS_MAX: u64 = 16;

/// Whether elements are counted by value, not by code.
fn is_wide(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F32 | Dtype::F64 | Dtype::I32 | Dtype::U32 | Dtype::I64 | Dtype::U64)
}

/// The statistics of the values that were added so far: those of a tensor or a part of it.
#[derive(Debug)]
pub struct StatsAccumulator(ValuesKind);

#[derive(Debug)]
enum ValuesKind {
    Codes(CodeCounts),
    Single(WideStats<f32>),
    Double(WideStats<f64>),
    Blocks(BlockStats),
}

#[derive(Debug)]
struct BlockStats {
    block: DtypeBlock,
    to_f32: ToF32,
    /// Buffer for decoded values.
    decoded: Vec<u8>,
    wide: WideStats<f32>,
}

impl StatsAccumulator {
    /// An accumulator without values; `None` if [`has`] returns false.
    pub fn new(dtype: Dtype) -> Option<Self> {
        Some(Self(match dtype {
            Dtype::F32 => ValuesKind::Single(WideStats::new(4, decode_f32)),
            Dtype::F64 => double(8, |i, o| map_values(i, o, f64::from_le_bytes)),
            Dtype::I32 => double(4, |i, o| map_values(i, o, |bytes| i32::from_le_bytes(bytes).into())),
            Dtype::U32 => double(4, |i, o| map_values(i, o, |bytes| u32::from_le_bytes(bytes).into())),
            Dtype::I64 => double(8, |i, o| map_values(i, o, |bytes| i64::from_le_bytes(bytes) as f64)),
            Dtype::U64 => double(8, |i, o| map_values(i, o, |bytes| u64::from_le_bytes(bytes) as f64)),
            _ if dtype.has_scales() => {
                let (block, to_f32, decoded) = (dtype.block()?, dtype.to_f32()?, Vec::new());
                ValuesKind::Blocks(BlockStats { block, to_f32, decoded, wide: WideStats::new(4, decode_f32) })
            }
            _ if has(dtype) => ValuesKind::Codes(CodeCounts::new(dtype)?),
            _ => return None,
        }))
    }

    /// Adds encoded values: whole blocks of elements. The result depends a little on which values are added at a time,
    /// but not on which accumulator they are added to.
    pub fn add(&mut self, encoded: &[u8]) {
        match &mut self.0 {
            ValuesKind::Codes(codes) => codes.add(encoded),
            ValuesKind::Single(wide) => {
                wide.add(encoded);
                wide.end_block();
            }
            ValuesKind::Double(wide) => {
                wide.add(encoded);
                wide.end_block();
            }
            ValuesKind::Blocks(BlockStats { block, to_f32, decoded, wide }) => {
                block.decode_each(*to_f32, encoded, decoded, |values| wide.add(values));
                wide.end_block();
            }
        }
    }

    /// What was counted, for another process.
    pub fn state(&self) -> StatsState {
        match &self.0 {
            ValuesKind::Codes(codes) => codes.state(),
            ValuesKind::Single(wide) | ValuesKind::Blocks(BlockStats { wide, .. }) => wide.state(),
            ValuesKind::Double(wide) => wide.state(),
        }
    }

    /// Continues with what another process has counted. `None` if the dtype has no statistics, or if `count` values
    /// cannot have this state.
    pub fn restore(dtype: Dtype, state: &StatsState, count: u64) -> Option<Self> {
        let mut restored = Self::new(dtype)?;
        match &mut restored.0 {
            ValuesKind::Codes(codes) => codes.restore(state, count)?,
            ValuesKind::Single(wide) | ValuesKind::Blocks(BlockStats { wide, .. }) => wide.restore(state, count)?,
            ValuesKind::Double(wide) => wide.restore(state, count)?,
        }
        Some(restored)
    }

    /// Adds the values of the next part, which must have the same dtype.
    pub fn merge(&mut self, other: &Self) {
        match (&mut self.0, &other.0) {
            (ValuesKind::Codes(codes), ValuesKind::Codes(other)) => codes.merge(other),
            (ValuesKind::Single(wide), ValuesKind::Single(other)) => wide.merge(other),
            (ValuesKind::Double(wide), ValuesKind::Double(other)) => wide.merge(other),
            (ValuesKind::Blocks(blocks), ValuesKind::Blocks(other)) => blocks.wide.merge(&other.wide),
            _ => debug_assert!(false, "merged parts must have the same dtype"),
        }
    }

    pub fn finish(self) -> TensorStats {
        match self.0 {
            ValuesKind::Codes(codes) => codes.finish(),
            ValuesKind::Single(wide) => wide.finish(),
            ValuesKind::Double(wide) => wide.finish(),
            ValuesKind::Blocks(blocks) => blocks.wide.finish(),
        }
    }
}

fn double(bytes: usize, decode: fn(&[u8], &mut [f64])) -> ValuesKind {
    ValuesKind::Double(WideStats::new(bytes, decode))
}

fn decode_f32(input: &[u8], output: &mut [f32]) {
    map_values(input, output, f32::from_le_bytes);
}

fn map_values<const N: usize, T>(input: &[u8], output: &mut [T], decode: impl Fn([u8; N]) -> T) {
    for (input, output) in input.as_chunks::<N>().0.iter().zip(output) {
        *output = decode(*input);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::{BINS, FinishedState, ValueHistogram, json_len};
    use proptest::prelude::*;

    /// All dtypes that have statistics.
    fn numbers() -> Vec<Dtype<'static>> {
        Dtype::ALL.iter().copied().filter(|dtype| has(*dtype)).collect()
    }

    /// Bytes of a block of elements.
    fn group(dtype: Dtype) -> usize {
        dtype.block().unwrap().bytes as usize
    }

    fn values(dtype: Dtype, encoded: &[u8]) -> Vec<f64> {
        fn each<const N: usize>(encoded: &[u8], decode: impl Fn([u8; N]) -> f64) -> Vec<f64> {
            encoded.as_chunks().0.iter().map(|bytes| decode(*bytes)).collect()
        }
        match dtype {
            Dtype::F64 => each(encoded, f64::from_le_bytes),
            Dtype::I64 => each(encoded, |bytes| i64::from_le_bytes(bytes) as f64),
            Dtype::U64 => each(encoded, |bytes| u64::from_le_bytes(bytes) as f64),
            Dtype::I32 => each(encoded, |bytes| i32::from_le_bytes(bytes).into()),
            Dtype::U32 => each(encoded, |bytes| u32::from_le_bytes(bytes).into()),
            _ => {
                let DtypeBlock { elements, bytes } = dtype.block().unwrap();
                let mut output = vec![0; encoded.len() / bytes as usize * elements as usize * 4];
                dtype.to_f32().unwrap()(encoded, &mut output);
                each(&output, |bytes| f32::from_le_bytes(bytes).into())
            }
        }
    }

    fn stats(dtype: Dtype, encoded: &[u8]) -> TensorStats {
        let mut accumulator = StatsAccumulator::new(dtype).unwrap();
        accumulator.add(encoded);
        accumulator.finish()
    }

    fn close(found: Option<f64>, expected: f64, size: f64) -> bool {
        found.is_some_and(|found| (found - expected).abs() <= size * 1e-12)
    }

    /// Compares with naive statistics, computed value by value.
    fn check(dtype: Dtype, encoded: &[u8]) {
        let found = stats(dtype, encoded);
        let all = values(dtype, encoded);
        let finite: Vec<f64> = all.iter().copied().filter(|value| value.is_finite()).collect();
        let count = |is: fn(&f64) -> bool| all.iter().filter(|value| is(value)).count() as u64;
        assert_eq!(found.count, all.len() as u64, "{dtype}");
        assert_eq!(found.zeros, count(|value| *value == 0.0), "{dtype}");
        assert_eq!(found.nan, count(|value| value.is_nan()), "{dtype}");
        assert_eq!(found.pos_inf, count(|value| *value == f64::INFINITY), "{dtype}");
        assert_eq!(found.neg_inf, count(|value| *value == f64::NEG_INFINITY), "{dtype}");
        let ValueHistogram { low, high, counts } = &found.histogram;
        assert_eq!(counts.iter().sum::<u64>(), finite.len() as u64, "{dtype}");
        if finite.is_empty() {
            assert_eq!((found.min, found.max, found.mean, found.std, found.abs_max), (None, None, None, None, None));
            return;
        }
        let min = finite.iter().copied().fold(f64::INFINITY, f64::min);
        let max = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        assert_eq!((found.min, found.max), (Some(min), Some(max)), "{dtype}");
        assert_eq!(found.abs_max, Some(min.abs().max(max.abs())), "{dtype}");
        // In units of the largest magnitude, so that sums and squares do not overflow.
        let unit = if found.abs_max == Some(0.0) { 1.0 } else { found.abs_max.unwrap() };
        let n = finite.len() as f64;
        let mean = finite.iter().map(|value| value / unit).sum::<f64>() / n;
        let mean = mean + finite.iter().map(|value| value / unit - mean).sum::<f64>() / n;
        let std = (finite.iter().map(|value| (value / unit - mean).powi(2)).sum::<f64>() / n).sqrt();
        // Subnormal numbers are rounded more coarsely.
        let size = unit.max(1e-300);
        assert!(close(found.mean, mean * unit, size), "{dtype} {:?} {}", found.mean, mean * unit);
        assert!(close(found.std, std * unit, size), "{dtype} {:?} {}", found.std, std * unit);
        assert!(*low <= min && max <= *high, "{dtype}");
        // The edges as NumPy computes them, but without overflow.
        let step = high / 64.0 - low / 64.0;
        let edge = |at: usize| match at as f64 * step {
            far if far.is_finite() => far + low,
            _ => 32.0 * step + low + (at as f64 - 32.0) * step,
        };
        let mut expected = [0; BINS];
        for value in &finite {
            let bin = (1..BINS).take_while(|at| *value >= edge(*at)).count();
            expected[bin] += 1;
        }
        assert_eq!(*counts, expected, "{dtype} {low} {high}");
    }

    #[test]
    fn all_dtypes_but_complex_and_unknown_have_statistics() {
        assert!(numbers().into_iter().all(|dtype| has(dtype) && StatsAccumulator::new(dtype).is_some()));
        for dtype in [Dtype::C64, Dtype::I4, Dtype::U4, Dtype::I2, Dtype::Unknown("x")] {
            assert!(!has(dtype) && StatsAccumulator::new(dtype).is_none());
        }
    }

    #[test]
    fn all_codes_of_small_dtypes_match_naive_statistics() {
        let codes: Vec<u8> = (0..=u16::MAX).flat_map(|code| (code ^ 0x5aa5).to_le_bytes()).collect();
        for dtype in numbers() {
            for len in [codes.len(), 3 * 5 * 8 * 100, 24, 0] {
                check(dtype, &codes[..len / (3 * 8) * 3 * 8]);
            }
        }
    }

    #[test]
    fn special_values_match_naive_statistics() {
        let (inf, nan, tiny) = (f64::INFINITY, f64::NAN, f64::from_bits(1));
        let lists: [&[f64]; 16] = [
            &[nan],
            &[nan, inf, -inf],
            &[-inf, 1.0, nan, 2.0],
            &[0.0, -0.0],
            &[-0.0; 5],
            &[f64::MAX],
            &[f64::MAX, f64::MIN],
            &[f64::MAX, f64::MAX, f64::MAX, 1e308],
            &[1e308, -1e308, 1.0, tiny],
            &[tiny],
            &[tiny, -tiny, 3.0 * tiny],
            &[-tiny, 0.0, 1.0, 2.0, 1e300, -1e300],
            &[1.0, 1.0 + f64::EPSILON],
            // Their bins would exceed the largest float64.
            &[-1.7e308, 1.79e308, tiny, -tiny, 1.0, 1e307, 3e307, 5e307, 1e308],
            &[-1.79e308, 1.6e308, f64::MAX, 1e200, -1e200, 7e307],
            &[1e6, 1e6 + 1e-3, 1e6 + 2e-3, inf],
        ];
        for list in lists {
            // Within one batch, and over several batches of different kinds of values.
            for times in [1, 1500] {
                let doubles: Vec<u8> =
                    list.iter().flat_map(|value| [*value; 1500][..times].to_vec()).flat_map(f64::to_le_bytes).collect();
                check(Dtype::F64, &doubles);
                let singles: Vec<u8> = list
                    .iter()
                    .flat_map(|value| [*value as f32; 1500][..times].to_vec())
                    .flat_map(f32::to_le_bytes)
                    .collect();
                check(Dtype::F32, &singles);
            }
        }
        let singles = [f32::MAX, f32::MIN, f32::from_bits(1), -f32::from_bits(1), 0.0, 1.0];
        check(Dtype::F32, &singles.map(f32::to_le_bytes).concat());
        check(Dtype::I64, &[i64::MIN, i64::MAX, 0, -1].map(i64::to_le_bytes).concat());
        check(Dtype::U64, &[u64::MAX, u64::MAX - 1].map(u64::to_le_bytes).concat());
    }

    #[test]
    fn histogram_edges_of_constant_values_match_numpy() {
        for (dtype, bytes) in [(Dtype::F32, &7f32.to_le_bytes()[..]), (Dtype::I8, &[7][..])] {
            let ValueHistogram { low, high, counts } = stats(dtype, bytes).histogram;
            assert_eq!((low, high, counts[32]), (6.5, 7.5, 1));
        }
    }

    #[test]
    fn histogram_of_wide_values_is_tight() {
        let encoded: Vec<u8> = (0..10_000).flat_map(|at| ((at as f32 - 3000.0) * 1e-5).to_le_bytes()).collect();
        let ValueHistogram { low, high, .. } = stats(Dtype::F32, &encoded).histogram;
        let (min, max) = (-0.03, 0.06999);
        assert!(high - low < (max - min) * 31.0 / 30.0, "{low} {high}");
    }

    #[test]
    fn json_length_depends_only_on_the_number_of_elements() {
        let worst = f64::from_bits(0x8010_0000_0000_0001);
        let longest = TensorStats {
            count: u64::MAX,
            zeros: u64::MAX / 3,
            nan: u64::MAX / 3,
            pos_inf: u64::MAX / 3,
            neg_inf: u64::MAX / 3,
            min: Some(worst),
            max: Some(worst),
            mean: Some(worst),
            std: Some(worst),
            abs_max: Some(worst),
            histogram: ValueHistogram { low: worst, high: worst, counts: [u64::MAX; BINS] },
        };
        for count in [1_000_000, 9_999_999, 10_000_000, 1 << 40] {
            let histogram = ValueHistogram { counts: [count; BINS], ..longest.histogram.clone() };
            let (zeros, nan, pos_inf, neg_inf) = (count, count, count, count);
            let huge = TensorStats { count, zeros, nan, pos_inf, neg_inf, histogram, ..longest.clone() };
            assert_eq!(huge.to_json().len(), json_len(count));
        }
        let of_length = |len: usize| stats(Dtype::F32, &vec![0; 4 * len]);
        let some = [0, 1, 9, 10, 99, 12_345].map(of_length);
        for stats in some.into_iter().chain([longest, stats(Dtype::F4, &[0x72])]) {
            let bytes = stats.to_json();
            assert_eq!((bytes.len(), bytes.last()), (json_len(stats.count), Some(&b'\n')));
            let text = str::from_utf8(&bytes).unwrap();
            let is_realistic = stats.count < u64::MAX;
            assert!(!is_realistic || text.lines().all(|line| line.len() <= 80), "a line does not fit: {text}");
            let shown = text.lines().filter(|line| !line.trim().is_empty()).count();
            assert_eq!((text.lines().count(), text.lines().any(|line| line.is_empty())), (shown, false), "{text}");
            let json: serde_json::Value = serde_json::from_str(text).unwrap();
            assert_eq!(json["count"].as_u64(), Some(stats.count));
            assert_eq!(json["min"].as_f64(), stats.min);
            assert_eq!(json["std"].as_f64(), stats.std);
            assert_eq!(json["histogram"]["low"].as_f64(), Some(stats.histogram.low));
            assert_eq!(json["histogram"]["counts"].as_array().unwrap().len(), BINS);
            assert_eq!(json["fractions"]["zeros"].is_null(), stats.count == 0);
        }
    }

    proptest! {
        #[test]
        fn random_bytes_match_naive_statistics(
            dtype in prop::sample::select(numbers()), bytes in prop::collection::vec(any::<u8>(), 0..20_000),
        ) {
            let group = group(dtype);
            check(dtype, &bytes[..bytes.len() / group * group]);
        }

        #[test]
        fn values_of_similar_size_match_naive_statistics(
            base in any::<f64>(), offsets in prop::collection::vec(-1e3..1e3, 0..2500), size in -40..40,
        ) {
            let encode = |offset: &f64| (base + offset * 10f64.powi(size)).to_le_bytes();
            check(Dtype::F64, &offsets.iter().flat_map(encode).collect::<Vec<u8>>());
            let encode = |offset: &f64| ((base + offset * 10f64.powi(size)) as f32).to_le_bytes();
            check(Dtype::F32, &offsets.iter().flat_map(encode).collect::<Vec<u8>>());
        }

        #[test]
        /// Bit for bit, also if they were counted by other processes.
        fn merged_parts_equal_the_whole(
            dtype in prop::sample::select(numbers()),
            parts in prop::collection::vec(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..500), 0..4), 0..4),
            are_near in any::<bool>(),
        ) {
            let elements = |bytes: usize| (bytes / group(dtype)) as u64 * dtype.block().unwrap().elements;
            let mut whole = StatsAccumulator::new(dtype).unwrap();
            let mut merged = StatsAccumulator::new(dtype).unwrap();
            for blocks in &parts {
                let mut part = StatsAccumulator::new(dtype).unwrap();
                for bytes in blocks {
                    let mut bytes = bytes[..bytes.len() / group(dtype) * group(dtype)].to_vec();
                    if are_near && dtype == Dtype::F32 {
                        bytes.chunks_exact_mut(4).for_each(|value| value[3] = 0x3f);
                    }
                    whole.add(&bytes);
                    part.add(&bytes);
                }
                let state = serde_json::to_string(&part.state()).unwrap();
                let count = blocks.iter().map(|bytes| elements(bytes.len())).sum();
                let state = serde_json::from_str(&state).unwrap();
                prop_assert!(StatsAccumulator::restore(dtype, &state, count + 1).is_none());
                merged.merge(&StatsAccumulator::restore(dtype, &state, count).unwrap());
            }
            let (merged, whole) = (merged.finish(), whole.finish());
            let found = FinishedState::of(&merged);
            prop_assert_eq!(&found, &FinishedState::of(&whole));
            prop_assert_eq!(found.stats(whole.count + 1), None);
            prop_assert_eq!(FinishedState::of(&found.stats(whole.count).unwrap()), found);
        }
    }
}
