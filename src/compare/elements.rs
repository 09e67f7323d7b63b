//! The elements of two tensors of the same dtype, and the distances of their values.

use super::common::float32;
use super::difference::ValueDifference;
use crate::format::{Dtype, DtypeBlock};

/// Compares float32 numbers. 0.0 and -0.0 are equal, and so are all NaN.
///
/// There is no branch, because it would be unpredictable.
pub(super) fn compare_floats(a: &[u8], b: &[u8], values: &mut ValueDifference) {
    let mut found = *values;
    for (a, b) in a.as_chunks::<4>().0.iter().zip(b.as_chunks::<4>().0) {
        let [a, b] = [a, b].map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
        let differs = (a != b) & !(a.is_nan() & b.is_nan());
        found.add_if(differs, a, b);
    }
    *values = found;
}

/// Compares sums of float64 numbers. 0.0 and -0.0 are equal, and so are all NaN.
pub(super) fn compare_exact(a: &[[f64; 2]], b: &[[f64; 2]], values: &mut ValueDifference) {
    for (a, b) in a.iter().zip(b) {
        if a != b && !(a[0].is_nan() && b[0].is_nan()) {
            values.add(sum(*a, *b));
        }
    }
}

pub(super) fn differing_bits(a: &[u8], b: &[u8]) -> u64 {
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let words = a.iter().zip(b).map(|(a, b)| (u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b)).count_ones());
    let rest = rest_a.iter().zip(rest_b).map(|(a, b)| (a ^ b).count_ones());
    words.chain(rest).map(u64::from).sum()
}

/// Compares the elements of whole blocks.
pub(super) fn compare_values(dtype: Dtype, a: &[u8], b: &[u8], values: &mut ValueDifference) {
    match dtype {
        Dtype::F32 => each_wide::<4>((a, b), (a, b), values),
        Dtype::F64 => each_element(a, b, values, |a, b| double(f64::from_le_bytes(a), f64::from_le_bytes(b))),
        Dtype::I32 => {
            each_element(a, b, values, |a, b| double(i32::from_le_bytes(a).into(), i32::from_le_bytes(b).into()))
        }
        Dtype::U32 => {
            each_element(a, b, values, |a, b| double(u32::from_le_bytes(a).into(), u32::from_le_bytes(b).into()))
        }
        Dtype::I64 => each_element(a, b, values, |a, b| {
            let (a, b) = (i64::from_le_bytes(a), i64::from_le_bytes(b));
            compare_integers(a.abs_diff(b), a.unsigned_abs().max(b.unsigned_abs()))
        }),
        Dtype::U64 => each_element(a, b, values, |a, b| {
            let (a, b) = (u64::from_le_bytes(a), u64::from_le_bytes(b));
            compare_integers(a.abs_diff(b), a.max(b))
        }),
        Dtype::C64 => each_element(a, b, values, complex),
        _ => compare_widened(dtype, a, b, values),
    }
}

/// Compares elements whose values float32 can represent.
fn compare_widened(dtype: Dtype, a: &[u8], b: &[u8], values: &mut ValueDifference) {
    let Some(DtypeBlock { elements, bytes }) = dtype.block() else { return };
    let (wide_a, wide_b) = (float32(dtype, a), float32(dtype, b));
    match (elements, bytes) {
        (1, 1) => each_wide::<1>((a, b), (&wide_a, &wide_b), values),
        (1, 2) => each_wide::<2>((a, b), (&wide_a, &wide_b), values),
        // Elements that share bytes are compared as float32: different codes have different float32 bits.
        _ => each_wide::<4>((&wide_a, &wide_b), (&wide_a, &wide_b), values),
    }
}

/// Compares elements of `N` bytes by the float32 of each.
///
/// There is no branch, because it would be unpredictable.
fn each_wide<const N: usize>(raw: (&[u8], &[u8]), wide: (&[u8], &[u8]), values: &mut ValueDifference) {
    let raw = raw.0.as_chunks::<N>().0.iter().zip(raw.1.as_chunks::<N>().0);
    let wide = wide.0.as_chunks::<4>().0.iter().zip(wide.1.as_chunks::<4>().0);
    let mut found = *values;
    for ((raw_a, raw_b), (a, b)) in raw.zip(wide) {
        let [a, b] = [a, b].map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
        found.add_if(raw_a != raw_b, a, b);
    }
    *values = found;
}

fn each_element<const N: usize>(
    a: &[u8],
    b: &[u8],
    values: &mut ValueDifference,
    distance: impl Fn([u8; N], [u8; N]) -> Option<(f64, f64)>,
) {
    let elements = a.as_chunks::<N>().0.iter().zip(b.as_chunks::<N>().0);
    elements.filter(|(a, b)| a != b).for_each(|(a, b)| values.add(distance(*a, *b)));
}

/// The distance of two float64 numbers.
fn double(a: f64, b: f64) -> Option<(f64, f64)> {
    sum([a, 0.0], [b, 0.0])
}

/// The distance of two sums of float64 numbers.
fn sum([a, rest_a]: [f64; 2], [b, rest_b]: [f64; 2]) -> Option<(f64, f64)> {
    let (distance, scale) = ((a - b + (rest_a - rest_b)).abs(), a.abs().max(b.abs()));
    (a.is_finite() && b.is_finite()).then(|| relative(distance, scale, || (a / scale - b / scale).abs()))
}

fn compare_integers(distance: u64, scale: u64) -> Option<(f64, f64)> {
    Some((distance as f64, distance as f64 / scale as f64))
}

fn complex(a: [u8; 8], b: [u8; 8]) -> Option<(f64, f64)> {
    let part = |bytes: &[u8; 8], at: usize| f64::from(f32::from_le_bytes(bytes.as_chunks().0[at]));
    let [(a_re, a_im), (b_re, b_im)] = [a, b].map(|bytes| (part(&bytes, 0), part(&bytes, 1)));
    let finite = [a_re, a_im, b_re, b_im].iter().all(|part| part.is_finite());
    let distance = (a_re - b_re).hypot(a_im - b_im);
    let scale = a_re.hypot(a_im).max(b_re.hypot(b_im));
    finite.then(|| relative(distance, scale, || distance / scale))
}

/// A distance, absolute and relative to `scale`. `scaled` computes the latter if `distance` overflowed to infinity.
fn relative(distance: f64, scale: f64, scaled: impl Fn() -> f64) -> (f64, f64) {
    // 0.0 and -0.0 have the distance 0, and 0 / 0 would be NaN.
    let rel = if distance == 0.0 { 0.0 } else { distance / scale };
    (distance, if distance.is_finite() { rel } else { scaled() })
}
