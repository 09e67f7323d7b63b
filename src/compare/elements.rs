//! The elements of two tensors of the same dtype, and the distances of their values.

use super::common::float32;
use crate::format::{Dtype, DtypeBlock};

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct ValueDifference {
    /// Number of elements with different bits, or with different values if the dtypes differ.
    pub elements: u64,
    /// Number of these that are infinite or NaN in either tensor. They have no distance.
    pub not_finite: u64,
    /// The largest distance between two values; for complex values the magnitude of their difference.
    pub max_abs: f64,
    /// The largest distance relative to the larger magnitude of the two values: from 0 to 2.
    pub max_rel: f64,
}

impl ValueDifference {
    pub(super) fn merge(self, other: Self) -> Self {
        Self {
            elements: self.elements + other.elements,
            not_finite: self.not_finite + other.not_finite,
            max_abs: self.max_abs.max(other.max_abs),
            max_rel: self.max_rel.max(other.max_rel),
        }
    }

    /// Counts a pair of elements with different bits. `distance` is absolute and relative; `None` if one is not finite.
    fn add(&mut self, distance: Option<(f64, f64)>) {
        self.elements += 1;
        match distance {
            Some((abs, rel)) => {
                self.max_abs = self.max_abs.max(abs);
                self.max_rel = self.max_rel.max(rel);
            }
            None => self.not_finite += 1,
        }
    }

    /// Counts a pair of elements if they differ, without a branch. The distance of float32 numbers cannot overflow
    /// float64.
    #[inline(always)]
    fn add_if(&mut self, differs: bool, a: f64, b: f64) {
        let is_finite = a.is_finite() & b.is_finite();
        let distance = if differs & is_finite { (a - b).abs() } else { 0.0 };
        let relative = if distance == 0.0 { 0.0 } else { distance / a.abs().max(b.abs()) };
        self.elements += u64::from(differs);
        self.not_finite += u64::from(differs & !is_finite);
        self.max_abs = if distance > self.max_abs { distance } else { self.max_abs };
        self.max_rel = if relative > self.max_rel { relative } else { self.max_rel };
    }
}

/// Compares float32 numbers. 0.0 and -0.0 are equal, and so are all NaN. There is no branch, because it would be
/// unpredictable.
pub(super) fn compare_floats(a: &[u8], b: &[u8], values: &mut ValueDifference) {
    let mut found = *values;
    float_pairs(a, b).for_each(|(a, b)| found.add_if((a != b) & !(a.is_nan() & b.is_nan()), a, b));
    *values = found;
}

fn float_pairs(a: &[u8], b: &[u8]) -> impl Iterator<Item = (f64, f64)> {
    let pairs = a.as_chunks::<4>().0.iter().zip(b.as_chunks::<4>().0);
    pairs.map(|(a, b)| (f32::from_le_bytes(*a).into(), f32::from_le_bytes(*b).into()))
}

/// Compares sums of float64 numbers. 0.0 and -0.0 are equal, and so are all NaN.
pub(super) fn compare_exact(a: &[[f64; 2]], b: &[[f64; 2]], values: &mut ValueDifference) {
    for (a, b) in a.iter().zip(b) {
        if a != b && !(a[0].is_nan() && b[0].is_nan()) {
            values.add(sum_distance(*a, *b));
        }
    }
}

pub(super) fn differing_bits(a: &[u8], b: &[u8]) -> u64 {
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let words = a.iter().zip(b).map(|(a, b)| (u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b)).count_ones());
    let rest = rest_a.iter().zip(rest_b).map(|(a, b)| (a ^ b).count_ones());
    words.chain(rest).map(u64::from).sum()
}

pub(super) fn compare_values(dtype: Dtype, a: &[u8], b: &[u8], values: &mut ValueDifference) {
    match dtype {
        Dtype::F32 => each_wide::<4>((a, b), (a, b), values),
        Dtype::F64 => each_element(a, b, values, |a, b| float_distance(f64::from_le_bytes(a), f64::from_le_bytes(b))),
        Dtype::I32 => each_element(a, b, values, |a, b| float_distance(i32::from_le_bytes(a), i32::from_le_bytes(b))),
        Dtype::U32 => each_element(a, b, values, |a, b| float_distance(u32::from_le_bytes(a), u32::from_le_bytes(b))),
        Dtype::I64 => each_element(a, b, values, |a, b| {
            let (a, b) = (i64::from_le_bytes(a), i64::from_le_bytes(b));
            integer_distance(a.abs_diff(b), a.unsigned_abs().max(b.unsigned_abs()))
        }),
        Dtype::U64 => each_element(a, b, values, |a, b| {
            let (a, b) = (u64::from_le_bytes(a), u64::from_le_bytes(b));
            integer_distance(a.abs_diff(b), a.max(b))
        }),
        Dtype::C64 => each_element(a, b, values, complex_distance),
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

/// Compares elements of `N` bytes by the float32 of each. There is no branch, because it would be unpredictable.
fn each_wide<const N: usize>(raw: (&[u8], &[u8]), wide: (&[u8], &[u8]), values: &mut ValueDifference) {
    let raw = raw.0.as_chunks::<N>().0.iter().zip(raw.1.as_chunks::<N>().0);
    let mut found = *values;
    raw.zip(float_pairs(wide.0, wide.1)).for_each(|((raw_a, raw_b), (a, b))| found.add_if(raw_a != raw_b, a, b));
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

/// The distance of two numbers that float64 can represent.
fn float_distance<T: Into<f64>>(a: T, b: T) -> Option<(f64, f64)> {
    sum_distance([a.into(), 0.0], [b.into(), 0.0])
}

fn sum_distance([a, rest_a]: [f64; 2], [b, rest_b]: [f64; 2]) -> Option<(f64, f64)> {
    let (distance, scale) = ((a - b + (rest_a - rest_b)).abs(), a.abs().max(b.abs()));
    (a.is_finite() && b.is_finite()).then(|| relative(distance, scale, || (a / scale - b / scale).abs()))
}

fn integer_distance(distance: u64, scale: u64) -> Option<(f64, f64)> {
    Some((distance as f64, distance as f64 / scale as f64))
}

fn complex_distance(a: [u8; 8], b: [u8; 8]) -> Option<(f64, f64)> {
    let [[a_re, a_im], [b_re, b_im]] = [a, b].map(|bytes| complex_parts(&bytes));
    let finite = [a_re, a_im, b_re, b_im].iter().all(|part| part.is_finite());
    let distance = (a_re - b_re).hypot(a_im - b_im);
    let scale = a_re.hypot(a_im).max(b_re.hypot(b_im));
    finite.then(|| relative(distance, scale, || distance / scale))
}

/// The real and the imaginary part of a complex number: little-endian float32, the real part first.
pub(super) fn complex_parts(bytes: &[u8; 8]) -> [f64; 2] {
    [0, 1].map(|part| f64::from(f32::from_le_bytes(bytes.as_chunks().0[part])))
}

/// A distance, absolute and relative to `scale`. `scaled` computes the latter if `distance` overflowed to infinity.
fn relative(distance: f64, scale: f64, scaled: impl Fn() -> f64) -> (f64, f64) {
    // 0.0 and -0.0 have the distance 0, and 0 / 0 would be NaN.
    let rel = if distance == 0.0 { 0.0 } else { distance / scale };
    (distance, if distance.is_finite() { rel } else { scaled() })
}
