//! Rounding of float32 and float64 to IEEE half precision: to nearest, ties to even. Values beyond its range become
//! infinite. NaN becomes a quiet NaN of the same sign.

use super::bf16::{map_rounded, to_odd};

/// The least magnitude that becomes infinite: the middle between the largest half float, 65504, and the next power of
/// two.
pub const INFINITE_FROM: f64 = 65520.0;

vectorised! {
    /// Rounds little-endian float32. The output must have exactly 2 bytes per element.
    pub fn from_f32(input: &[u8], output: &mut [u8]) {
        map_rounded(input, output, |bytes| round(u32::from_le_bytes(bytes)));
    }
}

vectorised! {
    /// Rounds little-endian float64 once. The output must have exactly 2 bytes per element.
    pub fn from_f64(input: &[u8], output: &mut [u8]) {
        map_rounded(input, output, |bytes| round(to_odd(f64::from_le_bytes(bytes))));
    }
}

/// Rounds the bits of a float32. Has no branches, so that the compiler vectorises it.
///
/// Source: F. Giesen, `float_to_half_fast3_rtne`.
#[inline(always)]
fn round(bits: u32) -> u16 {
    /// The bits of 2^16, from which on all numbers become infinite.
    const INFINITE: u32 = 0x4780_0000;
    /// The bits of 2^-14, the least normal half float.
    const NORMAL: u32 = 0x3880_0000;
    /// The difference between the biases of the exponents of float32 and half floats, at the place of the exponent.
    const REBIAS: u32 = (127 - 15) << 23;
    let magnitude = bits & 0x7fff_ffff;
    // Adds one to the upper bits if the lower 13 bits are above the middle, or at the middle and the upper bits odd.
    let normal = magnitude.wrapping_sub(REBIAS).wrapping_add(0xfff + (magnitude >> 13 & 1)) >> 13;
    // The last bit of a number from 0.5 to 1 is the last bit of a subnormal half float, so the addition rounds to it.
    let subnormal = (f32::from_bits(magnitude) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let special = if magnitude > f32::INFINITY.to_bits() { 0x7e00 } else { 0x7c00 };
    let finite = if magnitude < NORMAL { subnormal } else { normal };
    let rounded = if magnitude >= INFINITE { special } else { finite };
    (bits >> 16 & 0x8000 | rounded) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(convert: fn(&[u8], &mut [u8]), input: &[u8], elements: usize) -> Vec<u16> {
        let mut output = vec![0; elements * 2];
        convert(input, &mut output);
        output.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn float32_rounds_as_in_the_crate_half() {
        // Around every upper half: the ends, the middle of half floats, and their neighbours.
        let lows = [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff, 0x2fff, 0x3000, 0x3001, 0x8000, 0xf000, 0xf001, 0xffff];
        let bits: Vec<u32> = (0..1u32 << 16).flat_map(|high| lows.map(|low| high << 16 | low)).collect();
        let input: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        for (bits, found) in bits.iter().zip(converted(from_f32, &input, bits.len())) {
            let value = f32::from_bits(*bits);
            let expected = half::f16::from_f32(value).to_bits();
            let expected = if value.is_nan() { expected & 0x8000 | 0x7e00 } else { expected };
            assert_eq!(found, expected, "{bits:#010x}");
            let is_infinite = found & 0x7fff == 0x7c00 && value.is_finite();
            assert_eq!(is_infinite, value.is_finite() && f64::from(value.abs()) >= INFINITE_FROM, "{bits:#010x}");
        }
    }

    #[test]
    fn float64_rounds_once() {
        // The middle between two half floats and its neighbours, which are the same number as float32.
        for code in 0..0x7c00u16 {
            let value = |code: u16| if code == 0x7c00 { 65536.0 } else { half::f16::from_bits(code).to_f64() };
            let middle = (value(code) + value(code + 1)) / 2.0;
            let even = code + (code & 1);
            let numbers = [middle.next_down(), middle, middle.next_up(), -middle.next_up(), value(code)];
            let input: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
            let expected = [code, even, code + 1, (code + 1) | 0x8000, code];
            assert_eq!(converted(from_f64, &input, numbers.len()), expected, "{middle:e}");
        }
        let numbers = [f64::NAN, -f64::NAN, f64::INFINITY, 1e300, -1e300, 1e-300, -5e-324];
        let input: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        let expected = [0x7e00, 0xfe00, 0x7c00, 0x7c00, 0xfc00, 0, 0x8000];
        assert_eq!(converted(from_f64, &input, numbers.len()), expected);
    }
}
