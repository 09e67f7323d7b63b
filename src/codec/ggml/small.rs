//! Binary and ternary types, and four-bit floating point with scales per block.

use super::packed::{BITS, each_block, field, half};
use crate::codec::F32;

/// One bit for each element: the scale if it is set, otherwise the negative scale.
#[inline(always)]
pub fn q1_0(block: &[u8; 18], out: &mut [F32; 128]) {
    let d = half(block, 0);
    let (parts, _) = out.as_chunks_mut::<8>();
    for (bits, part) in block[2..].iter().zip(parts) {
        each_block(&BITS[usize::from(*bits)].to_le_bytes(), part, |bit| {
            f32::from_bits(d.to_bits() ^ u32::from(bit ^ 1) << 31)
        });
    }
}

/// 2-bit integers from -1 to 2, times a scale.
#[inline(always)]
pub fn q2_0(block: &[u8; 18], out: &mut [F32; 64]) {
    let d = half(block, 0);
    let (fours, _) = out.as_chunks_mut::<4>();
    for (byte, four) in block[2..].iter().zip(fours) {
        for (at, out) in four.iter_mut().enumerate() {
            *out = (f32::from((byte >> (2 * at) & 3) as i8 - 1) * d).to_le_bytes();
        }
    }
}

/// Ternary digits, five in a byte, which is a fraction in base 3, times a scale.
#[inline(always)]
pub fn tq1_0(block: &[u8; 54], out: &mut [F32; 256]) {
    let d = half(block, 52);
    let mut integers = [0; 256];
    digits::<32>(field(block, 0), &mut integers[..160]);
    digits::<16>(field(block, 32), &mut integers[160..240]);
    digits::<4>(field(block, 48), &mut integers[240..]);
    each_block(&integers, out, |q| d * f32::from(q as i8));
}

/// The digits of `N` fractions, less 1: the first one of each, then the second ones, while there is room.
#[inline(always)]
fn digits<const N: usize>(mut fractions: [u8; N], integers: &mut [u8]) {
    for integers in integers.as_chunks_mut::<N>().0 {
        for (fraction, integer) in fractions.iter_mut().zip(integers) {
            // The integer part of three times the fraction.
            *integer = (u8::from(*fraction >= 86) + u8::from(*fraction >= 171)).wrapping_sub(1);
            *fraction = fraction.wrapping_mul(3);
        }
    }
}

/// Ternary digits of two bits, times a scale.
#[inline(always)]
pub fn tq2_0(block: &[u8; 66], out: &mut [F32; 256]) {
    let d = half(block, 64);
    let (parts, _) = out.as_chunks_mut::<32>();
    for (at, part) in parts.iter_mut().enumerate() {
        let shift = at % 4 * 2;
        each_block(&field::<32>(block, at / 4 * 32), part, |q| d * f32::from((q >> shift & 3) as i8 - 1));
    }
}

/// Twice the values of OCP E2M1.
const E2M1_DOUBLED: [f32; 16] =
    [0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 0.0, -1.0, -2.0, -3.0, -4.0, -6.0, -8.0, -12.0];

/// OCP E2M1 with an E8M0 scale for 32 elements.
#[inline(always)]
pub fn mxfp4(block: &[u8; 17], out: &mut [F32; 32]) {
    // Half of the scale, because the values are doubled. The scale of 255 is not NaN here.
    let scale = match block[0] {
        exponent @ 0..2 => 0x0020_0000 << exponent,
        exponent => u32::from(exponent - 1) << 23,
    };
    lookup(&E2M1_DOUBLED, f32::from_bits(scale), &field::<16>(block, 1), out);
}

/// OCP E2M1 with an unsigned E4M3 scale for 16 elements.
#[inline(always)]
pub fn nvfp4(block: &[u8; 36], out: &mut [F32; 64]) {
    let (parts, _) = out.as_chunks_mut::<16>();
    for (at, part) in parts.iter_mut().enumerate() {
        lookup(&E2M1_DOUBLED, HALF_UE4M3[usize::from(block[at])], &field::<8>(block, 4 + at * 8), part);
    }
}

/// Half the value of each E4M3 code without its sign; 0 for NaN.
static HALF_UE4M3: [f32; 256] = {
    let mut values = [0.0; 256];
    let mut code = 0;
    while code < 256 {
        let (exponent, mantissa) = (code as u32 >> 3 & 15, code as u32 & 7);
        values[code] = match exponent {
            _ if code == 0x7f => 0.0,
            // 2^-10 for each unit.
            0 => mantissa as f32 * f32::from_bits(117 << 23),
            // (8 + mantissa) * 2^(exponent - 11).
            _ => (8 + mantissa) as f32 * f32::from_bits((exponent + 116) << 23),
        };
        code += 1;
    }
    values
};

/// Writes `scale` times the value of each 4-bit code: those of the low bits of all bytes, then those of the high bits.
#[inline(always)]
pub fn lookup(values: &[f32; 16], scale: f32, bytes: &[u8], out: &mut [F32]) {
    // Sixteen products are cheaper than one for each element.
    let values = values.map(|value| (scale * value).to_le_bytes());
    let (low, high) = out.split_at_mut(bytes.len());
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = values[usize::from(byte & 15)];
        *high = values[usize::from(byte >> 4)];
    }
}
