//! The tools of all decoders of blocks: fields of a block, packed integers, and tables that unpack several at a time.

use crate::codec::F32;
use crate::codec::elements::widen_f16;

/// Decodes each `IN` bytes to `OUT` elements with `decode`. Fewer bytes at the end are decoded as if zeros followed.
#[inline(always)]
pub fn map_packed<const IN: usize, const OUT: usize>(
    input: &[u8],
    output: &mut [u8],
    decode: impl Fn(&[u8; IN], &mut [F32; OUT]),
) {
    let (input, last_in) = input.as_chunks::<IN>();
    let (output, last_out) = output.as_chunks_mut::<4>().0.as_chunks_mut::<OUT>();
    for (block, out) in input.iter().zip(output) {
        decode(block, out);
    }
    if !last_out.is_empty() {
        let (mut block, mut out) = ([0; IN], [[0; 4]; OUT]);
        block[..last_in.len()].copy_from_slice(last_in);
        decode(&block, &mut out);
        last_out.copy_from_slice(&out[..last_out.len()]);
    }
}

/// The `N` bytes at `at`.
#[inline(always)]
pub fn field<const N: usize>(block: &[u8], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&block[at..at + N]);
    bytes
}

#[inline(always)]
pub fn half(block: &[u8], at: usize) -> f32 {
    widen_f16(u16::from_le_bytes(field(block, at)))
}

/// The low four bits of 16 bytes, then their high four bits.
#[inline(always)]
pub fn nibbles(bytes: [u8; 16], integers: &mut [u8; 32]) {
    let (low, high) = integers.split_at_mut(16);
    for ((byte, low), high) in bytes.iter().zip(low).zip(high) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

#[inline(always)]
pub fn each_block(bytes: &[u8], out: &mut [F32], value: impl Fn(u8) -> f32) {
    for (byte, out) in bytes.iter().zip(out) {
        *out = value(*byte).to_le_bytes();
    }
}

/// Up to eight 8-bit integers, the first one in the lowest byte.
pub type Eights<const N: usize> = [u64; N];

/// Expands codes of `bits` bits, of which there are `count` in each number, to the `values` that they stand for.
pub const fn expand<const N: usize>(values: &[i8], bits: usize, count: usize, codes: &[u16; N]) -> Eights<N> {
    let mut expanded = [0; N];
    let mut at = 0;
    while at < N {
        let mut element = 0;
        while element < count {
            let value = values[(codes[at] >> (bits * element) & ((1 << bits) - 1)) as usize] as u8;
            expanded[at] |= (value as u64) << (8 * element);
            element += 1;
        }
        at += 1;
    }
    expanded
}

/// Multiplies each of 256 signed integers by the scale of its group of 16.
#[inline(always)]
pub fn products(integers: &[u8; 256], scales: &[f32; 16], out: &mut [F32; 256]) {
    let scales = scales.map(|scale| [scale; 16]);
    for ((integer, scale), out) in integers.iter().zip(scales.as_flattened()).zip(out) {
        *out = (scale * f32::from(*integer as i8)).to_le_bytes();
    }
}

/// Each bit of a byte as a byte, 0 or 1.
pub static BITS: Eights<256> = {
    let mut bits = [0; 256];
    let mut code = 0;
    while code < 256 {
        let mut bit = 0;
        while bit < 8 {
            bits[code] |= ((code as u64 >> bit) & 1) << (8 * bit);
            bit += 1;
        }
        code += 1;
    }
    bits
};

/// Negates each of eight integers whose bit in `signs` is set. No integer is 0.
#[inline(always)]
pub fn negate(integers: u64, signs: u8) -> u64 {
    let bits = BITS[usize::from(signs)];
    // The two's complement of each byte. Without a 0 among the bytes, no carry crosses to the next byte.
    (integers ^ bits.wrapping_mul(0xff)) + bits
}

/// The sign byte of the IQ types for a 7-bit code: the eighth sign makes the number of signs even.
#[inline(always)]
pub fn signs(code: u32) -> u8 {
    let seven = code as u8 & 127;
    seven | (seven.count_ones() as u8 & 1) << 7
}

/// Writes `scale` times each of eight signed integers.
#[inline(always)]
pub fn scaled_packed(integers: u64, scale: f32, out: &mut [F32; 8]) {
    for (integer, out) in integers.to_le_bytes().iter().zip(out) {
        *out = (scale * f32::from(*integer as i8)).to_le_bytes();
    }
}
