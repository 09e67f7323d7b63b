//! Blocks of 32 elements with one scale, and with one minimum or none.
//!
//! Blocks with integers of less than 8 bits are decoded eight at a time: first all integers are unpacked, then they are
//! multiplied. The compiler vectorises loops of that length.

use super::packed::{BITS, each_block, field, half, nibbles};
use crate::codec::F32;

/// Blocks that are decoded at a time.
const BATCH: usize = 8;

/// 4-bit integers from -8 to 7, times a scale.
#[inline(always)]
pub fn q4_0(blocks: &[u8; BATCH * 18], out: &mut [F32; BATCH * 32]) {
    scaled_legacy::<18>(blocks, &fours::<18>(blocks), 8, out);
}

/// 4-bit integers times a scale, plus a minimum.
#[inline(always)]
pub fn q4_1(blocks: &[u8; BATCH * 20], out: &mut [F32; BATCH * 32]) {
    shifted::<20>(blocks, &fours::<20>(blocks), out);
}

/// 5-bit integers from -16 to 15, times a scale.
#[inline(always)]
pub fn q5_0(blocks: &[u8; BATCH * 22], out: &mut [F32; BATCH * 32]) {
    scaled_legacy::<22>(blocks, &fives::<22>(blocks), 16, out);
}

/// 5-bit integers times a scale, plus a minimum.
#[inline(always)]
pub fn q5_1(blocks: &[u8; BATCH * 24], out: &mut [F32; BATCH * 32]) {
    shifted::<24>(blocks, &fives::<24>(blocks), out);
}

/// 8-bit integers times a scale.
#[inline(always)]
pub fn q8_0(block: &[u8; 34], out: &mut [F32; 32]) {
    let d = half(block, 0);
    each_block(&field::<32>(block, 2), out, |q| f32::from(q as i8) * d);
}

/// Integers of several blocks.
type Integers = [[u8; 32]; BATCH];

/// The 4-bit integers in the last 16 bytes of each block.
#[inline(always)]
fn fours<const IN: usize>(blocks: &[u8]) -> Integers {
    let mut integers = [[0; 32]; BATCH];
    for (block, integers) in blocks.as_chunks::<IN>().0.iter().zip(&mut integers) {
        nibbles(field(block, IN - 16), integers);
    }
    integers
}

/// 5-bit integers. Four bits of each are as in [`fours`]; the other ones are in the four bytes before them.
#[inline(always)]
fn fives<const IN: usize>(blocks: &[u8]) -> Integers {
    let mut highs = [[0; 4]; BATCH];
    for (block, highs) in blocks.as_chunks::<IN>().0.iter().zip(&mut highs) {
        *highs = field::<4>(block, IN - 20).map(|bits| BITS[usize::from(bits)]);
    }
    let mut integers = fours::<IN>(blocks);
    let (words, _) = integers.as_flattened_mut().as_chunks_mut::<8>();
    for (word, high) in words.iter_mut().zip(highs.as_flattened()) {
        *word = (u64::from_le_bytes(*word) | high << 4).to_le_bytes();
    }
    integers
}

/// Each integer less `bias`, times the scale at the beginning of its block.
#[inline(always)]
fn scaled_legacy<const IN: usize>(blocks: &[u8], integers: &Integers, bias: u8, out: &mut [F32; BATCH * 32]) {
    let mut scales = [[0.0; 32]; BATCH];
    for (block, scale) in blocks.as_chunks::<IN>().0.iter().zip(&mut scales) {
        *scale = [half(block, 0); 32];
    }
    for ((integer, scale), out) in integers.as_flattened().iter().zip(scales.as_flattened()).zip(out) {
        *out = (scale * f32::from(integer.wrapping_sub(bias) as i8)).to_le_bytes();
    }
}

/// Each integer times the scale at the beginning of its block, plus the minimum after the scale.
#[inline(always)]
fn shifted<const IN: usize>(blocks: &[u8], integers: &Integers, out: &mut [F32; BATCH * 32]) {
    let (mut scales, mut mins) = ([[0.0; 32]; BATCH], [[0.0; 32]; BATCH]);
    for (block, (scale, min)) in blocks.as_chunks::<IN>().0.iter().zip(scales.iter_mut().zip(&mut mins)) {
        *scale = [half(block, 0); 32];
        *min = [half(block, 2); 32];
    }
    let factors = scales.as_flattened().iter().zip(mins.as_flattened());
    for ((integer, (scale, min)), out) in integers.as_flattened().iter().zip(factors).zip(out) {
        *out = (scale * f32::from(*integer) + min).to_le_bytes();
    }
}
