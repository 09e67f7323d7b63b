//! IQ types: groups of four or eight magnitudes from a codebook, with signs, or 4-bit codes of unequal steps.

use super::grids;
use super::packed::{field, half, negate, scaled_packed, signs};
use super::small::lookup;
use crate::codec::F32;

/// 2.06 bits: groups of eight of 256, signs of 7 bits.
#[inline(always)]
pub fn iq2_xxs(block: &[u8; 66], out: &mut [F32; 256]) {
    let d = half(block, 0);
    let (parts, _) = out.as_chunks_mut::<32>();
    for (at, part) in parts.iter_mut().enumerate() {
        let codes: [u8; 4] = field(block, 2 + at * 8);
        let rest = u32::from_le_bytes(field(block, 6 + at * 8));
        let scale = d * (0.5 + (rest >> 28) as f32) * 0.25;
        for (group, (code, out)) in codes.iter().zip(part.as_chunks_mut::<8>().0).enumerate() {
            scaled_packed(negate(grids::IQ2_XXS[usize::from(*code)], signs(rest >> (7 * group))), scale, out);
        }
    }
}

/// 2.31 bits: groups of eight of 512, signs of 7 bits.
#[inline(always)]
pub fn iq2_xs(block: &[u8; 74], out: &mut [F32; 256]) {
    let d = half(block, 0);
    let (groups, _) = out.as_chunks_mut::<8>();
    for (at, out) in groups.iter_mut().enumerate() {
        let code = u16::from_le_bytes(field(block, 2 + at * 2));
        let scale = d * (0.5 + nibble(&block[66..], at / 2)) * 0.25;
        scaled_packed(negate(grids::IQ2_XS[usize::from(code & 511)], signs(u32::from(code >> 9))), scale, out);
    }
}

/// 2.56 bits: groups of eight of 1024, signs of 8 bits.
#[inline(always)]
pub fn iq2_s(block: &[u8; 82], out: &mut [F32; 256]) {
    let d = half(block, 0);
    let (groups, _) = out.as_chunks_mut::<8>();
    for (at, out) in groups.iter_mut().enumerate() {
        let high = usize::from(block[66 + at / 4] >> (at % 4 * 2) & 3) << 8;
        let scale = d * (0.5 + nibble(&block[74..], at / 2)) * 0.25;
        scaled_packed(negate(grids::IQ2_S[usize::from(block[2 + at]) | high], block[34 + at]), scale, out);
    }
}

/// 3.06 bits: groups of four of 256, signs of 7 bits for eight.
#[inline(always)]
pub fn iq3_xxs(block: &[u8; 98], out: &mut [F32; 256]) {
    let d = half(block, 0);
    let (parts, _) = out.as_chunks_mut::<32>();
    for (at, part) in parts.iter_mut().enumerate() {
        let codes: [u8; 8] = field(block, 2 + at * 8);
        let rest = u32::from_le_bytes(field(block, 66 + at * 4));
        let scale = d * (0.5 + (rest >> 28) as f32) * 0.5;
        let (pairs, _) = codes.as_chunks::<2>();
        for (group, (pair, out)) in pairs.iter().zip(part.as_chunks_mut::<8>().0).enumerate() {
            let [first, second] = pair.map(|code| grids::IQ3_XXS[usize::from(code)]);
            scaled_packed(negate(first | second << 32, signs(rest >> (7 * group))), scale, out);
        }
    }
}

/// 3.44 bits: groups of four of 512, signs of 8 bits for eight.
#[inline(always)]
pub fn iq3_s(block: &[u8; 110], out: &mut [F32; 256]) {
    let d = half(block, 0);
    let (groups, _) = out.as_chunks_mut::<8>();
    for (at, out) in groups.iter_mut().enumerate() {
        let high = usize::from(block[66 + at / 4] >> (at % 4 * 2) & 3);
        let [first, second] = [(2 * at, high & 1), (2 * at + 1, high >> 1)]
            .map(|(at, high)| grids::IQ3_S[usize::from(block[2 + at]) | high << 8]);
        let scale = d * (1.0 + 2.0 * nibble(&block[106..], at / 4));
        scaled_packed(negate(first | second << 32, block[74 + at]), scale, out);
    }
}

/// The distance of the values of IQ1 types from -1, 0 and 1, up or down.
const DELTA: f32 = 0.125;

/// 1.56 bits: groups of eight of 2048.
#[inline(always)]
pub fn iq1_s(block: &[u8; 50], out: &mut [F32; 256]) {
    let d = half(block, 0);
    let (groups, _) = out.as_chunks_mut::<8>();
    for (at, out) in groups.iter_mut().enumerate() {
        let rest = u16::from_le_bytes(field(block, 34 + at / 4 * 2));
        let scale = d * f32::from(2 * (rest >> 12 & 7) + 1);
        let delta = if rest & 0x8000 == 0 { DELTA } else { -DELTA };
        let high = usize::from(rest >> (at % 4 * 3) & 7) << 8;
        shifted(grids::IQ1[usize::from(block[2 + at]) | high], delta, scale, out);
    }
}

/// 1.75 bits: groups of eight of 2048.
#[inline(always)]
pub fn iq1_m(block: &[u8; 56], out: &mut [F32; 256]) {
    let scales: [u16; 4] = std::array::from_fn(|at| u16::from_le_bytes(field(block, 48 + at * 2)));
    // The highest four bits of each are a part of the scale of the block.
    let parts = scales.iter().enumerate();
    let d = crate::codec::elements::widen_f16(parts.fold(0, |d, (at, part)| d | part >> 12 << (4 * at)));
    let (groups, _) = out.as_chunks_mut::<8>();
    for (at, out) in groups.iter_mut().enumerate() {
        let scale = d * f32::from(2 * (scales[at / 8] >> (at / 2 % 4 * 3) & 7) + 1);
        let rest = block[32 + at / 2] >> (at % 2 * 4);
        let delta = if rest & 8 == 0 { DELTA } else { -DELTA };
        shifted(grids::IQ1[usize::from(block[at]) | usize::from(rest & 7) << 8], delta, scale, out);
    }
}

/// The values of the codes of IQ4 types.
const IQ4: [f32; 16] =
    [-127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0];

/// 4-bit codes of unequal steps, one scale for 32.
#[inline(always)]
pub fn iq4_nl(block: &[u8; 18], out: &mut [F32; 32]) {
    lookup(&IQ4, half(block, 0), &field::<16>(block, 2), out);
}

/// 4-bit codes of unequal steps; scales of 6 bits.
#[inline(always)]
pub fn iq4_xs(block: &[u8; 136], out: &mut [F32; 256]) {
    let d = half(block, 0);
    let high = u16::from_le_bytes(field(block, 2));
    let (parts, _) = out.as_chunks_mut::<32>();
    for (at, part) in parts.iter_mut().enumerate() {
        let low = block[4 + at / 2] >> (at % 2 * 4) & 15;
        let scale = (low | ((high >> (2 * at) & 3) as u8) << 4) as i8 - 32;
        lookup(&IQ4, d * f32::from(scale), &field::<16>(block, 8 + at * 16), part);
    }
}

/// The 4-bit integer at `at`, two in a byte, the low one first.
#[inline(always)]
fn nibble(bytes: &[u8], at: usize) -> f32 {
    f32::from(bytes[at / 2] >> (at % 2 * 4) & 15)
}

/// Writes `scale` times the sum of `delta` and each of eight signed integers.
#[inline(always)]
fn shifted(integers: u64, delta: f32, scale: f32, out: &mut [F32; 8]) {
    for (integer, out) in integers.to_le_bytes().iter().zip(out) {
        *out = (scale * (f32::from(*integer as i8) + delta)).to_le_bytes();
    }
}
