//! Finds NaN and infinity, without the other statistics.

use crate::format::Dtype;
use serde::{Deserialize, Serialize};
use std::array;
use std::sync::LazyLock;

/// Counts of values that are not finite. The two parts of a C64 element count as separate values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SpecialCounts {
    pub nan: u64,
    pub pos_inf: u64,
    pub neg_inf: u64,
    /// Index of the first element with such a value.
    pub first: Option<u64>,
}

/// Searches elements with sign, exponent and fraction as in IEEE 754. `$inf` is the code of positive infinity; larger
/// magnitudes are NaN.
macro_rules! search_words {
    ($word:ty, $encoded:expr, $inf:literal) => {
        search(
            $encoded.as_chunks().0,
            |bytes| <$word>::from_le_bytes(*bytes) & (<$word>::MAX >> 1) >= $inf,
            |bytes| match <$word>::from_le_bytes(*bytes) {
                $inf => f32::INFINITY,
                word if word & (<$word>::MAX >> 1) == $inf => f32::NEG_INFINITY,
                word if word & (<$word>::MAX >> 1) > $inf => f32::NAN,
                _ => 0.0,
            },
        )
    };
}

impl SpecialCounts {
    /// Counts the special values in `encoded`, which holds whole elements of `dtype`. `None` if the dtype has only
    /// finite numbers or is unknown.
    pub fn of(dtype: Dtype, encoded: &[u8]) -> Option<Self> {
        Some(match dtype {
            Dtype::F16 => search_words!(u16, encoded, 0x7c00),
            Dtype::BF16 => search_words!(u16, encoded, 0x7f80),
            Dtype::F32 => search_words!(u32, encoded, 0x7f80_0000),
            Dtype::F64 => search_words!(u64, encoded, 0x7ff0_0000_0000_0000),
            Dtype::C64 => {
                let parts: Self = search_words!(u32, encoded, 0x7f80_0000);
                Self { first: parts.first.map(|part| part / 2), ..parts }
            }
            _ if dtype.has_scales() => return Self::of_blocks(dtype, encoded),
            _ => {
                let values = &VALUES[EIGHT_BITS.iter().position(|eight| *eight == dtype)?];
                search(
                    encoded.as_chunks().0,
                    |[byte]| !values[usize::from(*byte)].is_finite(),
                    |[byte]| values[usize::from(*byte)],
                )
            }
        })
    }

    /// Blocks with scales are searched for the values that they decode to.
    fn of_blocks(dtype: Dtype, encoded: &[u8]) -> Option<Self> {
        let (block, to_f32) = (dtype.block()?, dtype.to_f32()?);
        let (mut found, mut before) = (Self::default(), 0);
        block.decode_each(to_f32, encoded, &mut Vec::new(), |values| {
            if let Some(specials) = Self::of(Dtype::F32, values) {
                found.merge(&specials, before);
            }
            before += (values.len() / size_of::<f32>()) as u64;
        });
        Some(found)
    }

    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Adds the counts of another part of the same tensor. That part begins at the element with index `elements`.
    pub fn merge(&mut self, other: &Self, elements: u64) {
        self.nan = self.nan.saturating_add(other.nan);
        self.pos_inf = self.pos_inf.saturating_add(other.pos_inf);
        self.neg_inf = self.neg_inf.saturating_add(other.neg_inf);
        let other = other.first.map(|first| first.saturating_add(elements));
        self.first = self.first.into_iter().chain(other).min();
    }

    /// Counts a value that occurs `times` times, if it is not finite. Does not set `first`.
    pub(super) fn count(&mut self, value: f64, times: u64) {
        self.nan += times * u64::from(value.is_nan());
        self.pos_inf += times * u64::from(value == f64::INFINITY);
        self.neg_inf += times * u64::from(value == f64::NEG_INFINITY);
    }
}

/// Number of elements that are checked at a time. Nearly always all of them are finite.
const AT_ONCE: usize = 1024;

/// Counts special elements. `value` is any finite number for an element that is finite; it is called only for elements
/// of blocks that contain a special one.
fn search<const N: usize>(
    elements: &[[u8; N]],
    is_special: impl Fn(&[u8; N]) -> bool,
    value: impl Fn(&[u8; N]) -> f32,
) -> SpecialCounts {
    let mut found = SpecialCounts::default();
    for (block, elements) in elements.chunks(AT_ONCE).enumerate() {
        // A loop without an early exit is vectorised.
        if !elements.iter().fold(false, |any, element| any | is_special(element)) {
            continue;
        }
        if found.first.is_none() {
            found.first = elements.iter().position(&is_special).map(|at| (block * AT_ONCE + at) as u64);
        }
        elements.iter().for_each(|element| found.count(value(element).into(), 1));
    }
    found
}

/// The dtypes whose codes are looked up in a table.
const EIGHT_BITS: [Dtype<'static>; 5] =
    [Dtype::F8E5M2, Dtype::F8E4M3, Dtype::F8E8M0, Dtype::F8E4M3Fnuz, Dtype::F8E5M2Fnuz];

/// The value of each code of the dtypes in [`EIGHT_BITS`].
static VALUES: LazyLock<[[f32; 256]; 5]> = LazyLock::new(|| {
    EIGHT_BITS.map(|dtype| {
        array::from_fn(|code| {
            let mut value = [0; 4];
            if let Some(to_f32) = dtype.to_f32() {
                to_f32(&[code as u8], &mut value);
            }
            f32::from_le_bytes(value)
        })
    })
});

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stats::StatsAccumulator;
    use proptest::prelude::*;

    const FLOATS: [Dtype<'static>; 9] = [
        Dtype::F8E5M2,
        Dtype::F8E4M3,
        Dtype::F8E8M0,
        Dtype::F8E4M3Fnuz,
        Dtype::F8E5M2Fnuz,
        Dtype::F16,
        Dtype::BF16,
        Dtype::F32,
        Dtype::F64,
    ];

    fn check(dtype: Dtype, encoded: &[u8]) {
        let found = SpecialCounts::of(dtype, encoded).unwrap();
        let mut all = StatsAccumulator::new(dtype).unwrap();
        all.add(encoded);
        let all = all.finish();
        assert_eq!((found.nan, found.pos_inf, found.neg_inf), (all.nan, all.pos_inf, all.neg_inf), "{dtype}");
        let width = dtype.bits().unwrap() as usize / 8;
        let first = encoded.chunks(width).position(|element| !SpecialCounts::of(dtype, element).unwrap().is_empty());
        assert_eq!(found.first, first.map(|at| at as u64), "{dtype}");
        // Two parts, merged in reverse order.
        let middle = encoded.len() / width / 3 * width;
        let mut merged = SpecialCounts::default();
        merged.merge(&SpecialCounts::of(dtype, &encoded[middle..]).unwrap(), (middle / width) as u64);
        merged.merge(&SpecialCounts::of(dtype, &encoded[..middle]).unwrap(), 0);
        assert_eq!(merged, found, "{dtype}");
    }

    #[test]
    fn all_codes_of_small_dtypes_match_the_accumulator() {
        let codes: Vec<u8> = (0..=u16::MAX).flat_map(|code| (code ^ 0x1234).to_le_bytes()).collect();
        for dtype in FLOATS {
            check(dtype, &codes);
            check(dtype, &[]);
        }
    }

    #[test]
    fn blocks_with_scales_are_searched_by_value() {
        // Scales: 1.0, infinity with a quantum of each sign, NaN.
        let block = |scale: [u8; 2], nibbles: u8| [&scale[..], &[nibbles; 16]].concat();
        let blocks = [block([0, 0x3c], 0x99), block([0, 0x7c], 0x79), block([1, 0x7c], 0x99)].concat();
        let found = SpecialCounts::of(Dtype::Q4_0, &blocks).unwrap();
        assert_eq!(found, SpecialCounts { nan: 32, pos_inf: 16, neg_inf: 16, first: Some(32) });
        // More than is decoded at a time.
        let many = [block([0, 0x3c], 0x99).repeat(5000), block([1, 0x7c], 0x99)].concat();
        assert_eq!(SpecialCounts::of(Dtype::Q4_0, &many).unwrap().first, Some(5000 * 32));
        assert_eq!(SpecialCounts::of(Dtype::Q8_1, &[0xff; 36]), None);
    }

    #[test]
    fn only_dtypes_with_special_values_are_searched() {
        let dtype = Dtype::from_name;
        for name in
            ["BOOL", "F4", "F6_E2M3", "F6_E3M2", "U8", "I8", "I16", "U16", "I32", "U32", "I64", "U64", "I4", "x"]
        {
            assert_eq!(SpecialCounts::of(dtype(name), &[0xff; 16]), None, "{name}");
        }
        let parts = [1.0, f32::NAN, 2.0, 3.0, f32::NEG_INFINITY, f32::INFINITY].map(f32::to_le_bytes).concat();
        let expected = SpecialCounts { nan: 1, pos_inf: 1, neg_inf: 1, first: Some(0) };
        assert_eq!(SpecialCounts::of(Dtype::C64, &parts), Some(expected));
        assert_eq!(SpecialCounts::of(Dtype::C64, &parts[8..]).unwrap().first, Some(1));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn random_wide_values_match_the_accumulator(bits in prop::collection::vec(prop_oneof![
            8 => any::<u64>(),
            1 => Just(f64::NAN.to_bits()),
            1 => Just(u64::from(f32::INFINITY.to_bits()) << 32 | 0xff80_0000),
            1 => Just(f64::NEG_INFINITY.to_bits()),
            100 => Just(0),
        ], 0..3000)) {
            let bytes: Vec<u8> = bits.into_iter().flat_map(u64::to_le_bytes).collect();
            check(Dtype::F32, &bytes);
            check(Dtype::F64, &bytes);
        }
    }
}
