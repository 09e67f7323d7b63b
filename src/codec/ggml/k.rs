//! K types: blocks of 256 elements, in parts of 16 or 32 with a scale each.

use super::packed::{each_block, field, half, products};
use crate::codec::F32;

/// 2-bit integers; scales and minimums of 4 bits.
#[inline(always)]
pub fn q2_k(block: &[u8; 84], out: &mut [F32; 256]) {
    let (d, dmin) = (half(block, 80), half(block, 82));
    let packed: [u8; 16] = field(block, 0);
    let scales = packed.map(|packed| [d * f32::from(packed & 15); 16]);
    let mins = packed.map(|packed| [dmin * f32::from(packed >> 4); 16]);
    let factors = scales.as_flattened().iter().zip(mins.as_flattened());
    for ((q, (scale, min)), out) in twos(&field(block, 16)).iter().zip(factors).zip(out) {
        *out = (scale * f32::from(*q) - min).to_le_bytes();
    }
}

/// 3-bit integers from -4 to 3; scales of 6 bits.
#[inline(always)]
pub fn q3_k(block: &[u8; 110], out: &mut [F32; 256]) {
    let packed: [u8; 12] = field(block, 96);
    let d = half(block, 108);
    let scales = std::array::from_fn(|at| {
        let low = packed[at % 8] >> (at / 8 * 4) & 15;
        let high = packed[8 + at % 4] >> (at / 4 * 2) & 3;
        d * f32::from((low | high << 4) as i8 - 32)
    });
    let mut integers = twos(&field(block, 32));
    let highs: [u8; 32] = field(block, 0);
    for (at, row) in integers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        for (integer, high) in row.iter_mut().zip(highs) {
            // A cleared bit means that 4 is subtracted.
            *integer = (*integer | (high >> at & 1) << 2).wrapping_sub(4);
        }
    }
    products(&integers, &scales, out);
}

/// 4-bit integers; scales and minimums of 6 bits.
#[inline(always)]
pub fn q4_k(block: &[u8; 144], out: &mut [F32; 256]) {
    let (scales, mins) = scales_and_mins(block);
    let (parts, _) = out.as_chunks_mut::<32>();
    for (at, part) in parts.iter_mut().enumerate() {
        let (scale, min) = (scales[at], mins[at]);
        let shift = at % 2 * 4;
        each_block(&field::<32>(block, 16 + at / 2 * 32), part, |q| scale * f32::from(q >> shift & 15) - min);
    }
}

/// 5-bit integers; scales and minimums of 6 bits.
#[inline(always)]
pub fn q5_k(block: &[u8; 176], out: &mut [F32; 256]) {
    let (scales, mins) = scales_and_mins(block);
    let highs: [u8; 32] = field(block, 16);
    let (parts, _) = out.as_chunks_mut::<32>();
    for (at, part) in parts.iter_mut().enumerate() {
        let (scale, min) = (scales[at], mins[at]);
        let shift = at % 2 * 4;
        let mut integers: [u8; 32] = field(block, 48 + at / 2 * 32);
        for (integer, high) in integers.iter_mut().zip(highs) {
            *integer = *integer >> shift & 15 | (high >> at & 1) << 4;
        }
        each_block(&integers, part, |q| scale * f32::from(q) - min);
    }
}

/// 6-bit integers from -32 to 31; scales of 8 bits.
#[inline(always)]
pub fn q6_k(block: &[u8; 210], out: &mut [F32; 256]) {
    let d = half(block, 208);
    let scales = field::<16>(block, 192).map(|scale| d * f32::from(scale as i8));
    let mut integers = twos(&field(block, 128));
    for (at, row) in integers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        // Two rows share their bytes of low bits.
        let lows: [u8; 32] = field(block, at / 4 * 64 + at % 2 * 32);
        let shift = at / 2 % 2 * 4;
        for (integer, low) in row.iter_mut().zip(lows) {
            *integer = (low >> shift & 15 | *integer << 4).wrapping_sub(32);
        }
    }
    products(&integers, &scales, out);
}

/// 8-bit integers times a float32. The sums after them are for products only.
#[inline(always)]
pub fn q8_k(block: &[u8; 292], out: &mut [F32; 256]) {
    let d = f32::from_le_bytes(field(block, 0));
    each_block(&field::<256>(block, 4), out, |q| d * f32::from(q as i8));
}

/// The eight scales and minimums of Q4_K and Q5_K.
#[inline(always)]
fn scales_and_mins(block: &[u8]) -> ([f32; 8], [f32; 8]) {
    let (d, dmin) = (half(block, 0), half(block, 2));
    let packed: [u8; 12] = field(block, 4);
    let (mut scales, mut mins) = ([0.0; 8], [0.0; 8]);
    for at in 0..4 {
        let (scale, min, rest) = (packed[at], packed[4 + at], packed[8 + at]);
        scales[at] = d * f32::from(scale & 63);
        mins[at] = dmin * f32::from(min & 63);
        scales[4 + at] = d * f32::from(rest & 15 | scale >> 2 & 48);
        mins[4 + at] = dmin * f32::from(rest >> 4 | min >> 2 & 48);
    }
    (scales, mins)
}

/// 2-bit integers: rows of 32, four of which share the bytes of the first one.
#[inline(always)]
fn twos(packed: &[u8; 64]) -> [u8; 256] {
    let mut integers = [0; 256];
    for (at, row) in integers.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let shift = at % 4 * 2;
        for (integer, packed) in row.iter_mut().zip(&packed[at / 4 * 32..]) {
            *integer = packed >> shift & 3;
        }
    }
    integers
}
