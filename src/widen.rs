//! Widening: knows how the elements of each dtype become float32, exactly where float32 can hold them.
//!
//! Sources: OCP 8-bit Floating Point Specification 1.0 (E5M2, E4M3), OCP Microscaling Formats 1.0 (E8M0, E2M3, E3M2, E2M1),
//! "8-bit Numerical Formats for Deep Neural Networks", arXiv 2206.02915 (FNUZ). Packed elements begin with the low bits
//! of the first byte, as in PyTorch's `float4_e2m1fn_x2`.

use crate::content::Decoder;
use crate::format::Dtype;

/// How elements of `dtype` become little-endian float32: integers and F64 by rounding to nearest, ties to even, BOOL as 0
/// and 1, all others exactly. `None` for C64, which is no single number, and for unknown dtypes.
pub fn to_f32(dtype: Dtype) -> Option<Decoder> {
    Some(match dtype {
        Dtype::Bool => each(1, |i, o| map(i, o, |[byte]: [u8; 1]| f32::from(u8::from(byte != 0)))),
        Dtype::U8 => each(1, |i, o| map(i, o, |[byte]: [u8; 1]| f32::from(byte))),
        Dtype::I8 => each(1, |i, o| map(i, o, |bytes: [u8; 1]| f32::from(i8::from_le_bytes(bytes)))),
        Dtype::U16 => each(2, |i, o| map(i, o, |bytes: [u8; 2]| f32::from(u16::from_le_bytes(bytes)))),
        Dtype::I16 => each(2, |i, o| map(i, o, |bytes: [u8; 2]| f32::from(i16::from_le_bytes(bytes)))),
        Dtype::U32 => each(4, |i, o| map(i, o, |bytes: [u8; 4]| u32::from_le_bytes(bytes) as f32)),
        Dtype::I32 => each(4, |i, o| map(i, o, |bytes: [u8; 4]| i32::from_le_bytes(bytes) as f32)),
        Dtype::U64 => each(8, |i, o| map(i, o, |bytes: [u8; 8]| u64::from_le_bytes(bytes) as f32)),
        Dtype::I64 => each(8, |i, o| map(i, o, |bytes: [u8; 8]| i64::from_le_bytes(bytes) as f32)),
        Dtype::F64 => each(8, |i, o| map(i, o, |bytes: [u8; 8]| f64::from_le_bytes(bytes) as f32)),
        Dtype::F32 => each(4, |i, o| o.copy_from_slice(i)),
        // The upper half of a float32 is a bfloat16.
        Dtype::BF16 => {
            each(2, |i, o| map(i, o, |bytes: [u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)))
        }
        Dtype::F16 => each(2, |i, o| map(i, o, |bytes: [u8; 2]| widen_f16(u16::from_le_bytes(bytes)))),
        Dtype::F8E5M2 => each(1, |i, o| map(i, o, |[code]: [u8; 1]| E5M2[usize::from(code)])),
        Dtype::F8E4M3 => each(1, |i, o| map(i, o, |[code]: [u8; 1]| E4M3[usize::from(code)])),
        Dtype::F8E8M0 => each(1, |i, o| map(i, o, |[code]: [u8; 1]| E8M0[usize::from(code)])),
        Dtype::F8E4M3Fnuz => each(1, |i, o| map(i, o, |[code]: [u8; 1]| E4M3_FNUZ[usize::from(code)])),
        Dtype::F8E5M2Fnuz => each(1, |i, o| map(i, o, |[code]: [u8; 1]| E5M2_FNUZ[usize::from(code)])),
        Dtype::F6E2M3 => Decoder { group_in: 3, group_out: 16, decode: |i, o| map_sixes(i, o, &E2M3) },
        Dtype::F6E3M2 => Decoder { group_in: 3, group_out: 16, decode: |i, o| map_sixes(i, o, &E3M2) },
        Dtype::F4 => Decoder { group_in: 1, group_out: 8, decode: map_nibbles },
        Dtype::C64 | Dtype::Unknown(_) => return None,
    })
}

/// A decoder of elements of whole bytes.
fn each(bytes: usize, decode: fn(&[u8], &mut [u8])) -> Decoder {
    Decoder { group_in: bytes, group_out: 4, decode }
}

fn map<const N: usize>(input: &[u8], output: &mut [u8], widen: impl Fn([u8; N]) -> f32) {
    let (input, _) = input.as_chunks::<N>();
    let (output, _) = output.as_chunks_mut::<4>();
    for (input, output) in input.iter().zip(output) {
        *output = widen(*input).to_le_bytes();
    }
}

/// Two elements a byte.
fn map_nibbles(input: &[u8], output: &mut [u8]) {
    let (output, _) = output.as_chunks_mut::<4>();
    for (byte, [low, high]) in input.iter().zip(output.as_chunks_mut::<2>().0) {
        *low = E2M1[usize::from(byte & 15)].to_le_bytes();
        *high = E2M1[usize::from(byte >> 4)].to_le_bytes();
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

/// Without a branch, so that the compiler can do many at once, and without a subnormal float32, which some processors are
/// slow to multiply.
fn widen_f16(code: u16) -> f32 {
    let sign = u32::from(code & 0x8000) << 16;
    let rest = u32::from(code & 0x7fff) << 13;
    let exponent = rest & 0x7c00 << 13;
    // The exponent's bias is 127 in place of 15.
    let normal = rest + (112 << 23);
    let special = rest + (224 << 23);
    // A subnormal as a normal number that is too large by the smallest normal half.
    let subnormal = (f32::from_bits(rest + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let value = if exponent == 0 { subnormal } else { normal };
    f32::from_bits(sign | if exponent == 0x7c00 << 13 { special } else { value })
}

/// What the codes of a small float mean besides numbers.
#[derive(Clone, Copy, PartialEq)]
enum Special {
    /// As in IEEE 754: the highest exponent is infinity and NaN.
    Ieee,
    /// NaN is all ones behind the sign, and there is no infinity.
    AllOnes,
    /// NaN is what would be minus zero, and there is no infinity.
    MinusZero,
    /// Numbers only.
    Finite,
}

static E5M2: [f32; 256] = table(2, 15, 7, Special::Ieee);
static E4M3: [f32; 256] = table(3, 7, 7, Special::AllOnes);
static E5M2_FNUZ: [f32; 256] = table(2, 16, 7, Special::MinusZero);
static E4M3_FNUZ: [f32; 256] = table(3, 8, 7, Special::MinusZero);
static E2M3: [f32; 64] = table(3, 1, 5, Special::Finite);
static E3M2: [f32; 64] = table(2, 3, 5, Special::Finite);
static E2M1: [f32; 16] = table(1, 1, 3, Special::Finite);
static E8M0: [f32; 256] = {
    let mut values = [f32::NAN; 256];
    let mut code = 0;
    while code < 255 {
        values[code] = power_of_two(code as i32 - 127);
        code += 1;
    }
    values
};

/// The values of all codes of a float of `mantissa` bits below an exponent of that `bias`, the sign being bit `sign`.
const fn table<const N: usize>(mantissa: u32, bias: i32, sign: u32, special: Special) -> [f32; N] {
    let mut values = [0.0; N];
    let mut code = 0;
    while code < N {
        let magnitude = code as u32 & ((1 << sign) - 1);
        let negative = code >> sign == 1;
        let exponent = (magnitude >> mantissa) as i32;
        let fraction = magnitude & ((1 << mantissa) - 1);
        let top = (1 << (sign - mantissa)) - 1;
        let value = match special {
            Special::Ieee if exponent == top && fraction == 0 => f32::INFINITY,
            Special::Ieee if exponent == top => f32::NAN,
            Special::AllOnes if magnitude == (1 << sign) - 1 => f32::NAN,
            Special::MinusZero if negative && magnitude == 0 => f32::NAN,
            _ if exponent == 0 => fraction as f32 * power_of_two(1 - bias - mantissa as i32),
            _ => (fraction + (1 << mantissa)) as f32 * power_of_two(exponent - bias - mantissa as i32),
        };
        values[code] = if negative { -value } else { value };
        code += 1;
    }
    values
}

/// 2 to the `exponent`, which is at least -149 and at most 127.
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

    fn widen(dtype: Dtype, input: &[u8]) -> Vec<f32> {
        let decoder = to_f32(dtype).unwrap();
        let mut output = vec![0; input.len() / decoder.group_in * decoder.group_out];
        (decoder.decode)(input, &mut output);
        output.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    #[test]
    fn every_half_is_what_the_half_crate_says() {
        for code in 0..=u16::MAX {
            for (dtype, expected) in
                [(Dtype::F16, half::f16::from_bits(code).to_f32()), (Dtype::BF16, half::bf16::from_bits(code).to_f32())]
            {
                let [found] = widen(dtype, &code.to_le_bytes())[..] else { panic!() };
                assert!(
                    found.to_bits() == expected.to_bits() || found.is_nan() && expected.is_nan(),
                    "{dtype} {code:#06x}"
                );
            }
        }
    }

    #[test]
    fn numbers_at_the_edges() {
        let cases: [(Dtype, u8, f32); 14] = [
            (Dtype::F8E4M3, 0x7e, 448.0),
            (Dtype::F8E4M3, 0x01, 0.001953125),
            (Dtype::F8E5M2, 0x7b, 57344.0),
            (Dtype::F8E5M2, 0xfc, f32::NEG_INFINITY),
            (Dtype::F8E4M3Fnuz, 0x7f, 240.0),
            (Dtype::F8E4M3Fnuz, 0x80, f32::NAN),
            (Dtype::F8E5M2Fnuz, 0x7f, 57344.0),
            (Dtype::F8E8M0, 0, 5.877_472e-39),
            (Dtype::F8E8M0, 254, 1.701_411_8e38),
            (Dtype::F8E8M0, 255, f32::NAN),
            (Dtype::Bool, 0, 0.0),
            (Dtype::Bool, 2, 1.0),
            (Dtype::I8, 0x80, -128.0),
            (Dtype::U8, 0x80, 128.0),
        ];
        for (dtype, code, expected) in cases {
            let [found] = widen(dtype, &[code])[..] else { panic!() };
            assert!(found == expected || found.is_nan() && expected.is_nan(), "{dtype} {code:#x} {found}");
        }
        assert_eq!(widen(Dtype::F4, &[0x72, 0xf1]), [1.0, 6.0, 0.5, -6.0]);
        assert_eq!(widen(Dtype::F6E2M3, &[0x5f, 0x00, 0x84]), [7.5, 0.125, 0.0, -0.125]);
        assert_eq!(widen(Dtype::F6E3M2, &[0b00_011111, 0, 0]), [28.0, 0.0, 0.0, 0.0]);
        // Ties go to the even neighbour.
        assert_eq!(widen(Dtype::U32, &16_777_217u32.to_le_bytes()), [16_777_216.0]);
        assert_eq!(widen(Dtype::I64, &(-16_777_219i64).to_le_bytes()), [-16_777_220.0]);
        assert_eq!(widen(Dtype::F64, &1e300f64.to_le_bytes()), [f32::INFINITY]);
        assert!(to_f32(Dtype::C64).is_none() && to_f32(Dtype::Unknown("I4")).is_none());
    }
}
