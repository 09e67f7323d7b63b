//! E4M3 codes, scaled and rounded to bfloat16 in one step.
//!
//! A code is a sign, four bits of exponent and three bits of mantissa. Rounding a product does not depend on a power of
//! two in it, as long as the result is neither subnormal nor infinite. So the products of a scale with the eight
//! mantissas give all others: the exponent of the code is added to that of the product. The products with the
//! subnormal codes are a second table of eight.

use super::Bf16;
use super::groups::GroupOperands;
use super::numbers::widen_e4m3;
use crate::codec::bf16;
#[cfg(target_arch = "x86_64")]
use crate::codec::elements::E4M3;

/// Scales for which all products are normal bfloat16 numbers: the smallest code is 2^-9, the largest one 448.
#[cfg(target_arch = "x86_64")]
const SCALES: std::ops::RangeInclusive<f32> = 1e-34..=1e35;

/// The products of a scale with the codes 8 to 15 (exponent 1), and with the codes 0 to 7 (subnormals), as the low and
/// the high bytes of bfloat16 numbers. The exponent of the first eight is less by 1, so that the exponent of the code
/// can be added.
#[cfg(target_arch = "x86_64")]
type Products = [[u8; 16]; 2];

/// Inlined, so that it is compiled for the vectors of its caller. For a scale that is not one of [`SCALES`], the result
/// has no meaning.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn products(scale: f32) -> Products {
    let mut rounded = [0; 16];
    let (normal, subnormal) = rounded.split_at_mut(8);
    for (product, value) in normal.iter_mut().zip(&E4M3[8..16]) {
        *product = bf16::round((value * scale).to_bits()).wrapping_sub(1 << 7);
    }
    for (product, value) in subnormal.iter_mut().zip(&E4M3[..8]) {
        *product = bf16::round((value * scale).to_bits());
    }
    [rounded.map(|product| product as u8), rounded.map(|product| (product >> 8) as u8)]
}

/// Multiplies codes by the scales of their groups, and rounds the products to bfloat16. The first group has `first`
/// elements, the others `width`.
pub fn to_bf16(codes: &[u8], out: &mut [Bf16], first: usize, width: usize, operands: &[GroupOperands]) {
    let (mut codes, mut out, mut count) = (codes, out, first);
    for operands in operands {
        let here = count.min(out.len());
        let (group, rest) = codes.split_at(here);
        let (products, rest_out) = out.split_at_mut(here);
        one_group(group, products, operands.scale);
        (codes, out, count) = (rest, rest_out, width);
    }
}

/// For smaller groups, computing the tables takes longer than they save.
#[cfg(target_arch = "x86_64")]
const GROUP_MIN: usize = 64;

fn one_group(codes: &[u8], out: &mut [Bf16], scale: f32) {
    #[cfg(target_arch = "x86_64")]
    if codes.len() >= GROUP_MIN && SCALES.contains(&scale) && is_x86_feature_detected!("avx2") {
        let (whole, rest) = codes.as_chunks::<32>();
        let (out, rest_out) = out.as_chunks_mut::<32>();
        // SAFETY: the processor has AVX2, which is all that the function requires.
        #[allow(unsafe_code)]
        unsafe {
            shuffled(whole, out, scale);
        }
        return one_by_one(rest, rest_out, scale);
    }
    one_by_one(codes, out, scale);
}

vectorised! {
    fn one_by_one(codes: &[u8], out: &mut [Bf16], scale: f32) {
        for (code, out) in codes.iter().zip(out) {
            *out = product(*code, scale).to_le_bytes();
        }
    }
}

/// The product of a code and a scale. The sign of a NaN product is that of the code. Otherwise it would depend on the
/// order of the operands, which the compiler chooses.
#[inline(always)]
fn product(code: u8, scale: f32) -> u16 {
    let product = widen_e4m3(code) * scale;
    let nan = u32::from(code & 0x80) << 24 | 0x7fc0_0000;
    bf16::round(if product.is_nan() { nan } else { product.to_bits() })
}

/// 32 codes at a time: a byte shuffle looks up the products of all of them.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn shuffled(codes: &[[u8; 32]], out: &mut [[Bf16; 32]], scale: f32) {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_loadu_si128, _mm256_add_epi16, _mm256_and_si256, _mm256_andnot_si256,
        _mm256_broadcastsi128_si256, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_or_si256, _mm256_permute2x128_si256,
        _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_slli_epi16, _mm256_storeu_si256,
        _mm256_unpackhi_epi8, _mm256_unpacklo_epi8,
    };
    // SAFETY: both arrays have 16 bytes, and the loads need no alignment.
    #[allow(unsafe_code)]
    let [low, high] =
        unsafe { products(scale).each_ref().map(|bytes| _mm_loadu_si128(bytes.as_ptr().cast::<__m128i>())) };
    let (low, high) = (_mm256_broadcastsi128_si256(low), _mm256_broadcastsi128_si256(high));
    let zero = _mm256_setzero_si256();
    let every = |byte: u8| _mm256_set1_epi8(byte as i8);
    let (mantissas, exponents, signs) = (every(0x07), every(0x78), every(0x80));
    let (magnitudes, eight, quiet) = (every(0x7f), every(8), every(0xc0));
    for (codes, out) in codes.iter().zip(out) {
        // SAFETY: the array has 32 bytes, and the load needs no alignment.
        #[allow(unsafe_code)]
        let codes = unsafe { _mm256_loadu_si256(codes.as_ptr().cast::<__m256i>()) };
        let exponent = _mm256_and_si256(codes, exponents);
        let is_subnormal = _mm256_cmpeq_epi8(exponent, zero);
        let at = _mm256_or_si256(_mm256_and_si256(codes, mantissas), _mm256_and_si256(is_subnormal, eight));
        let is_nan = _mm256_cmpeq_epi8(_mm256_and_si256(codes, magnitudes), magnitudes);
        // If the highest bit of an index is set, the shuffle gives 0. NaN then has only the bits that are set below,
        // which are those of a rounded NaN.
        let at = _mm256_or_si256(at, is_nan);
        let exponent = _mm256_andnot_si256(is_nan, exponent);
        let (low, high) = (_mm256_shuffle_epi8(low, at), _mm256_shuffle_epi8(high, at));
        let high_bits = _mm256_or_si256(_mm256_and_si256(codes, signs), _mm256_and_si256(is_nan, magnitudes));
        let low_bits = _mm256_and_si256(is_nan, quiet);
        let half = |products: __m256i, exponent: __m256i, bits: __m256i| {
            _mm256_or_si256(_mm256_add_epi16(products, _mm256_slli_epi16::<4>(exponent)), bits)
        };
        let first = half(
            _mm256_unpacklo_epi8(low, high),
            _mm256_unpacklo_epi8(exponent, zero),
            _mm256_unpacklo_epi8(low_bits, high_bits),
        );
        let second = half(
            _mm256_unpackhi_epi8(low, high),
            _mm256_unpackhi_epi8(exponent, zero),
            _mm256_unpackhi_epi8(low_bits, high_bits),
        );
        // The halves of each 16 bytes are next to each other.
        let ordered =
            [_mm256_permute2x128_si256::<0x20>(first, second), _mm256_permute2x128_si256::<0x31>(first, second)];
        for (vector, out) in ordered.into_iter().zip(out.as_chunks_mut::<16>().0) {
            // SAFETY: the array has 32 bytes, and the store needs no alignment.
            #[allow(unsafe_code)]
            unsafe {
                _mm256_storeu_si256(out.as_mut_ptr().cast::<__m256i>(), vector);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_are_those_of_float32_rounded_once() {
        let mut bits = 1u32;
        let mut scales =
            vec![0.0, -0.0, 1.0, -1.0, 1e-34, 1e35, 9e-35, 1.1e35, f32::NAN, f32::INFINITY, 1e-45, f32::MAX];
        scales.extend((0..4000).map(|_| {
            bits = bits.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            f32::from_bits(bits)
        }));
        // All codes at all places of a vector, and a rest.
        let codes: Vec<u8> = (0..293u32).map(|at| at as u8).collect();
        for scale in scales {
            let mut out = vec![[0xaa; 2]; codes.len()];
            to_bf16(&codes, &mut out, 5, 288, &[scale; 2].map(|scale| GroupOperands { scale, other: 0.0 }));
            for (code, out) in codes.iter().zip(out) {
                let expected = product(*code, scale);
                let found = u16::from_le_bytes(out);
                assert_eq!(found, expected, "{code:#x} {scale:e}");
            }
        }
    }
}
