//! Conversion of elements to little-endian float32: exact if float32 can represent the value, otherwise rounded to
//! nearest, ties to even.
//!
//! Sources: OCP 8-bit Floating Point Specification 1.0 (E5M2, E4M3), OCP Microscaling Formats 1.0 (E8M0, E2M3, E3M2,
//! E2M1), "8-bit Numerical Formats for Deep Neural Networks", arXiv 2206.02915 (FNUZ). The first of the packed elements
//! is in the low bits of the first byte, as in PyTorch's `float4_e2m1fn_x2`.

/// Decodes whole blocks of elements to float32. The output must have exactly 4 bytes per element.
pub type ToF32 = fn(&[u8], &mut [u8]);

/// 0 becomes 0, any other byte 1.
pub fn bool(input: &[u8], output: &mut [u8]) {
    map_elements(input, output, |[byte]: [u8; 1]| f32::from(u8::from(byte != 0)));
}

/// Defines functions that convert each element of a Rust number type.
macro_rules! numbers {
    ($($name:ident $type:ty;)*) => {$(
        #[doc = concat!("Elements of `", stringify!($type), "`.")]
        pub fn $name(input: &[u8], output: &mut [u8]) {
            map_elements(input, output, |bytes: [u8; size_of::<$type>()]| <$type>::from_le_bytes(bytes) as f32);
        }
    )*};
}

numbers! {
    u8 u8;
    i8 i8;
    u16 u16;
    i16 i16;
    u32 u32;
    i32 i32;
    u64 u64;
    i64 i64;
    f64 f64;
}

pub fn f32(input: &[u8], output: &mut [u8]) {
    output.copy_from_slice(input);
}

/// bfloat16: the upper half of a float32.
pub fn bf16(input: &[u8], output: &mut [u8]) {
    map_elements(input, output, |bytes: [u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16));
}

pub fn f16(input: &[u8], output: &mut [u8]) {
    map_elements(input, output, |bytes: [u8; 2]| widen_f16(u16::from_le_bytes(bytes)));
}

/// Defines functions that look up each byte in a table, as float32 and as bfloat16, which represents all these values
/// exactly.
macro_rules! bytes {
    ($($name:ident $to_bf16:ident $table:ident $doc:literal;)*) => {$(
        #[doc = $doc]
        pub fn $name(input: &[u8], output: &mut [u8]) {
            map_elements(input, output, |[code]: [u8; 1]| $table[usize::from(code)]);
        }

        #[doc = $doc]
        pub fn $to_bf16(input: &[u8], output: &mut [u8]) {
            static UPPER: [[u8; 2]; 256] = upper(&$table);
            for (code, output) in input.iter().zip(output.as_chunks_mut::<2>().0) {
                *output = UPPER[usize::from(*code)];
            }
        }
    )*};
}

bytes! {
    f8_e5m2 f8_e5m2_to_bf16 E5M2 "OCP E5M2.";
    f8_e4m3 f8_e4m3_to_bf16 E4M3 "OCP E4M3, which has no infinity.";
    f8_e8m0 f8_e8m0_to_bf16 E8M0 "OCP E8M0: powers of two and NaN.";
    f8_e4m3_fnuz f8_e4m3_fnuz_to_bf16 E4M3_FNUZ "E4M3 without infinity and negative zero.";
    f8_e5m2_fnuz f8_e5m2_fnuz_to_bf16 E5M2_FNUZ "E5M2 without infinity and negative zero.";
}

/// The upper halves of float32, in little-endian order.
const fn upper(values: &[f32; 256]) -> [[u8; 2]; 256] {
    let mut halves = [[0; 2]; 256];
    let mut code = 0;
    while code < 256 {
        halves[code] = ((values[code].to_bits() >> 16) as u16).to_le_bytes();
        code += 1;
    }
    halves
}

/// OCP E2M3, four elements in three bytes.
pub fn f6_e2m3(input: &[u8], output: &mut [u8]) {
    map_sixes(input, output, &E2M3);
}

/// OCP E3M2, four elements in three bytes.
pub fn f6_e3m2(input: &[u8], output: &mut [u8]) {
    map_sixes(input, output, &E3M2);
}

/// OCP E2M1, two elements in a byte.
pub fn f4(input: &[u8], output: &mut [u8]) {
    let (output, _) = output.as_chunks_mut::<4>();
    for (byte, [low, high]) in input.iter().zip(output.as_chunks_mut::<2>().0) {
        *low = E2M1[usize::from(byte & 15)].to_le_bytes();
        *high = E2M1[usize::from(byte >> 4)].to_le_bytes();
    }
}

fn map_elements<const N: usize>(input: &[u8], output: &mut [u8], widen: impl Fn([u8; N]) -> f32) {
    let (input, _) = input.as_chunks::<N>();
    let (output, _) = output.as_chunks_mut::<4>();
    for (input, output) in input.iter().zip(output) {
        *output = widen(*input).to_le_bytes();
    }
}

/// Four elements in three bytes.
fn map_sixes(input: &[u8], output: &mut [u8], values: &[f32; 64]) {
    let (output, _) = output.as_chunks_mut::<4>();
    for ([a, b, c], four) in input.as_chunks::<3>().0.iter().zip(output.as_chunks_mut::<4>().0) {
        let bits = u32::from_le_bytes([*a, *b, *c, 0]);
        for (at, element) in four.iter_mut().enumerate() {
            *element = values[(bits >> (6 * at) & 63) as usize].to_le_bytes();
        }
    }
}

/// Widens float16. Has no branches, so that the compiler vectorises it, and computes with no subnormal float32, which
/// some processors handle slowly.
pub(super) fn widen_f16(code: u16) -> f32 {
    let sign = u32::from(code & 0x8000) << 16;
    let rest = u32::from(code & 0x7fff) << 13;
    let exponent = rest & 0x7c00 << 13;
    // The bias of the exponent changes from 15 to 127.
    let normal = rest + (112 << 23);
    let special = rest + (224 << 23);
    // A subnormal half is built as a normal float32 that is too large by the smallest normal half.
    let subnormal = (f32::from_bits(rest + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let value = if exponent == 0 { subnormal } else { normal };
    f32::from_bits(sign | if exponent == 0x7c00 << 13 { special } else { value })
}

/// The codes of a small float that are not numbers.
#[derive(Clone, Copy, PartialEq)]
enum SpecialCodes {
    /// As in IEEE 754: the highest exponent means infinity or NaN.
    Ieee,
    /// All ones after the sign bit mean NaN; there is no infinity.
    AllOnes,
    /// The code of negative zero means NaN; there is no infinity.
    MinusZero,
    /// Every code is a number.
    Finite,
}

static E5M2: [f32; 256] = element_table(2, 15, 7, SpecialCodes::Ieee);
pub(super) static E4M3: [f32; 256] = element_table(3, 7, 7, SpecialCodes::AllOnes);
static E5M2_FNUZ: [f32; 256] = element_table(2, 16, 7, SpecialCodes::MinusZero);
static E4M3_FNUZ: [f32; 256] = element_table(3, 8, 7, SpecialCodes::MinusZero);
static E2M3: [f32; 64] = element_table(3, 1, 5, SpecialCodes::Finite);
static E3M2: [f32; 64] = element_table(2, 3, 5, SpecialCodes::Finite);
pub(super) static E2M1: [f32; 16] = element_table(1, 1, 3, SpecialCodes::Finite);
pub(super) static E8M0: [f32; 256] = {
    let mut values = [f32::NAN; 256];
    let mut code = 0;
    while code < 255 {
        values[code] = power_of_two(code as i32 - 127);
        code += 1;
    }
    values
};

/// The values of all codes of a float with `mantissa` mantissa bits, the exponent bias `bias`, and the sign at bit
/// `sign`.
const fn element_table<const N: usize>(mantissa: u32, bias: i32, sign: u32, special: SpecialCodes) -> [f32; N] {
    let mut values = [0.0; N];
    let mut code = 0;
    while code < N {
        let magnitude = code as u32 & ((1 << sign) - 1);
        let negative = code >> sign == 1;
        let exponent = (magnitude >> mantissa) as i32;
        let fraction = magnitude & ((1 << mantissa) - 1);
        let top = (1 << (sign - mantissa)) - 1;
        let value = match special {
            SpecialCodes::Ieee if exponent == top && fraction == 0 => f32::INFINITY,
            SpecialCodes::Ieee if exponent == top => f32::NAN,
            SpecialCodes::AllOnes if magnitude == (1 << sign) - 1 => f32::NAN,
            SpecialCodes::MinusZero if negative && magnitude == 0 => f32::NAN,
            _ if exponent == 0 => fraction as f32 * power_of_two(1 - bias - mantissa as i32),
            _ => (fraction + (1 << mantissa)) as f32 * power_of_two(exponent - bias - mantissa as i32),
        };
        values[code] = if negative { -value } else { value };
        code += 1;
    }
    values
}

/// 2 to the power of `exponent`, from -149 to 127.
const fn power_of_two(exponent: i32) -> f32 {
    if exponent < -126 {
        f32::from_bits(1 << (exponent + 149))
    } else {
        f32::from_bits(((exponent + 127) as u32) << 23)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(to_f32: ToF32, input: &[u8], elements: usize) -> Vec<f32> {
        let mut output = vec![0; elements * 4];
        to_f32(input, &mut output);
        output.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn all_halves_match_the_half_crate() {
        for code in 0..=u16::MAX {
            let cases: [(ToF32, f32); 2] =
                [(f16, half::f16::from_bits(code).to_f32()), (bf16, half::bf16::from_bits(code).to_f32())];
            for (to_f32, expected) in cases {
                let [found] = decode(to_f32, &code.to_le_bytes(), 1)[..] else { panic!() };
                assert!(found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(), "{code:#06x}");
            }
        }
    }

    #[test]
    fn edge_codes_have_the_specified_values() {
        let cases: [(ToF32, u8, f32); 14] = [
            (f8_e4m3, 0x7e, 448.0),
            (f8_e4m3, 0x01, 0.001953125),
            (f8_e5m2, 0x7b, 57344.0),
            (f8_e5m2, 0xfc, f32::NEG_INFINITY),
            (f8_e4m3_fnuz, 0x7f, 240.0),
            (f8_e4m3_fnuz, 0x80, f32::NAN),
            (f8_e5m2_fnuz, 0x7f, 57344.0),
            (f8_e8m0, 0, 5.877_472e-39),
            (f8_e8m0, 254, 1.701_411_8e38),
            (f8_e8m0, 255, f32::NAN),
            (bool, 0, 0.0),
            (bool, 2, 1.0),
            (i8, 0x80, -128.0),
            (u8, 0x80, 128.0),
        ];
        for (to_f32, code, expected) in cases {
            let [found] = decode(to_f32, &[code], 1)[..] else { panic!() };
            assert!(found == expected || found.is_nan() && expected.is_nan(), "{code:#x} {found} {expected}");
        }
        assert_eq!(decode(f4, &[0x72, 0xf1], 4), [1.0, 6.0, 0.5, -6.0]);
        assert_eq!(decode(f6_e2m3, &[0x5f, 0x00, 0x84], 4), [7.5, 0.125, 0.0, -0.125]);
        assert_eq!(decode(f6_e3m2, &[0b00_011111, 0, 0], 4), [28.0, 0.0, 0.0, 0.0]);
        // Ties round to even.
        assert_eq!(decode(u32, &16_777_217u32.to_le_bytes(), 1), [16_777_216.0]);
        assert_eq!(decode(i64, &(-16_777_219i64).to_le_bytes(), 1), [-16_777_220.0]);
        assert_eq!(decode(f64, &1e300f64.to_le_bytes(), 1), [f32::INFINITY]);
    }
}
