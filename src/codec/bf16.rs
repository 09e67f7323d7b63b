//! Rounding of float32 and float64 to bfloat16: to nearest, ties to even. NaN becomes a quiet NaN of the same sign.
//!
//! The results for float32 are those of `ml_dtypes`. float64 is rounded once: `ml_dtypes` rounds it to float32 first,
//! so some of its results are one unit in the last place off.

/// Rounds whole blocks of elements to bfloat16. The output must have exactly 2 bytes per element.
pub type ToBf16 = fn(&[u8], &mut [u8]);

vectorised! {
    /// Rounds little-endian float32. The output must have exactly 2 bytes per element.
    pub fn from_f32(input: &[u8], output: &mut [u8]) {
        map_rounded(input, output, |bytes| round(u32::from_le_bytes(bytes)));
    }
}

vectorised! {
    /// Rounds little-endian float64. The output must have exactly 2 bytes per element.
    pub fn from_f64(input: &[u8], output: &mut [u8]) {
        map_rounded(input, output, |bytes| round(to_odd(f64::from_le_bytes(bytes))));
    }
}

/// Rounds each element to two bytes. Inlined, so that it is compiled for the vectors of its caller.
#[inline(always)]
pub(super) fn map_rounded<const N: usize>(input: &[u8], output: &mut [u8], round: impl Fn([u8; N]) -> u16) {
    let (output, _) = output.as_chunks_mut::<2>();
    for (input, output) in input.as_chunks::<N>().0.iter().zip(output) {
        *output = round(*input).to_le_bytes();
    }
}

/// Rounds the bits of a float32. Has no branches, so that the compiler vectorises it.
#[inline(always)]
pub(super) fn round(bits: u32) -> u16 {
    // Adds one to the upper 16 bits if the lower 16 bits are above the middle, or at the middle and the upper bits odd.
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let quiet = bits & 0x8000_0000 | 0x7fc0_0000;
    let kept = if f32::from_bits(bits).is_nan() { quiet } else { rounded };
    (kept >> 16) as u16
}

/// Rounds to odd: a value between two float32 numbers becomes the one whose last bit is set. The result is halfway
/// between two bfloat16 numbers, or two half floats, only if the value is, so rounding it again gives the same as
/// rounding the value once. Returns the bits.
///
/// Source: S. Boldo and G. Melquiond, "Emulation of FMA and Correctly Rounded Sums: Proved Algorithms Using Rounding to
/// Odd", IEEE Transactions on Computers 57 (2008).
#[inline(always)]
pub(super) fn to_odd(value: f64) -> u32 {
    let nearest = value as f32;
    let (bits, back) = (nearest.to_bits(), f64::from(nearest));
    let is_kept = back == value || value.is_nan() || bits & 1 == 1;
    let step = if back.abs() > value.abs() { u32::MAX } else { 1 };
    if is_kept { bits } else { bits.wrapping_add(step) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn converted(convert: fn(&[u8], &mut [u8]), input: &[u8], elements: usize) -> Vec<u16> {
        let mut output = vec![0; elements * 2];
        convert(input, &mut output);
        output.as_chunks().0.iter().map(|bytes| u16::from_le_bytes(*bytes)).collect()
    }

    /// The value of a bfloat16. The code of infinity has the next power of two as its value: numbers that are nearer to
    /// that than to the largest finite bfloat16 round to infinity.
    fn value(code: u16) -> f64 {
        match code {
            0x7f80 => 2f64.powi(128),
            _ => f64::from(f32::from_bits(u32::from(code) << 16)),
        }
    }

    /// The nearest bfloat16 by search and comparison of exact distances.
    fn nearest(number: f64) -> u16 {
        let sign = if number.is_sign_negative() { 0x8000 } else { 0 };
        let magnitude = number.abs();
        if number.is_nan() {
            return sign | 0x7fc0;
        }
        // Codes of non-negative numbers are in the order of their values.
        let (mut low, mut high) = (0u16, 0x7f80);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if value(middle) <= magnitude { low = middle } else { high = middle }
        }
        // The differences are exact, or so unequal that rounding them does not change which one is smaller.
        let (below, above) = (magnitude - value(low), value(high) - magnitude);
        let is_even = low & 1 == 0;
        sign | if below < above || below == above && is_even { low } else { high }
    }

    fn check_f32(bits: impl Iterator<Item = u32>) {
        let bits: Vec<u32> = bits.collect();
        let input: Vec<u8> = bits.iter().flat_map(|bits| bits.to_le_bytes()).collect();
        for (bits, found) in bits.iter().zip(converted(from_f32, &input, bits.len())) {
            assert_eq!(found, nearest(f32::from_bits(*bits).into()), "{bits:#010x}");
        }
    }

    /// All 2^32 patterns take minutes: `cargo test --release --lib bf16 -- --ignored`.
    #[test]
    #[ignore = "takes minutes"]
    fn every_float32_rounds_to_the_nearest() {
        (0..1u32 << 12).for_each(|high| check_f32((0..1 << 20).map(|low| high << 20 | low)));
    }

    #[test]
    fn float32_rounds_to_the_nearest() {
        // Around every upper half: the ends, the middle, and their neighbours.
        let lows = [0, 1, 2, 0x7ffe, 0x7fff, 0x8000, 0x8001, 0xfffe, 0xffff];
        (0..=u16::MAX).step_by(1 << 10).for_each(|first| {
            let highs = u32::from(first)..u32::from(first) + (1 << 10);
            check_f32(highs.flat_map(|high| lows.map(|low| high << 16 | low)));
        });
        check_f32((0..1u32 << 20).map(|at| at.wrapping_mul(2_654_435_761)));
    }

    #[test]
    fn float64_rounds_once() {
        let tiny = 2f64.powi(-40);
        // Rounding to float32 first gives a tie in the first two cases, and then another result.
        assert_eq!(nearest(1.0 + 2f64.powi(-8) + tiny), 0x3f81);
        let mut numbers = vec![1.0 + 2f64.powi(-8) + tiny, 1.0 + 3.0 * 2f64.powi(-8) - tiny];
        numbers.extend([0.0, f64::NAN, f64::INFINITY, 1e300, 1e-300, f64::MIN_POSITIVE, 5e-324, f32::MAX.into()]);
        for code in 0..0x7f80 {
            let (low, high) = (value(code), value(code + 1));
            let middle = low + (high - low) / 2.0;
            for number in [low, middle] {
                numbers.extend([number, number.next_up(), number.next_down(), number * (1.0 + tiny)]);
            }
        }
        numbers.extend((0..1u64 << 18).map(|at| f64::from_bits(at.wrapping_mul(0x9e37_79b9_7f4a_7c15))));
        numbers.extend(numbers.clone().iter().map(|number| -number));
        let input: Vec<u8> = numbers.iter().flat_map(|number| number.to_le_bytes()).collect();
        for (number, found) in numbers.iter().zip(converted(from_f64, &input, numbers.len())) {
            assert_eq!(found, nearest(*number), "{number:e}");
        }
    }

    #[test]
    fn nan_is_quiet_and_keeps_its_sign() {
        for (bits, expected) in
            [(0x7f80_0001, 0x7fc0), (0xff80_0001, 0xffc0), (0x7fff_ffff, 0x7fc0), (u32::MAX, 0xffc0)]
        {
            assert_eq!(converted(from_f32, &u32::to_le_bytes(bits), 1), [expected]);
            let wide = f64::from_bits(u64::from(bits & 0x8000_0000) << 32 | 0x7ff0_0000_0000_0001);
            assert_eq!(converted(from_f64, &wide.to_le_bytes(), 1), [expected]);
        }
    }
}
