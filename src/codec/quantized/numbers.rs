//! Codes to numbers: the number that a code represents, before it is scaled.

use super::F32;
use super::layout::{CodeNumber, CodePacking, ScaleType};
use crate::codec::elements::{self, E2M1, E4M3, E8M0, ToF32, widen_f16};

/// The numbers of two codes in a byte.
type Pairs = [[F32; 2]; 256];

/// The numbers of all codes of at most 4 bits.
type Table = [f32; 16];

#[derive(Debug)]
pub enum CodeDecoder {
    /// Numbers of 8 bits or more.
    Bytes(ToF32),
    /// Two codes in a byte.
    Pairs(Box<Pairs>),
    /// Integers in a stream of bits.
    Integers(CodeInteger),
    /// Integers in 32-bit words, as many as fit into a word.
    Words(CodeInteger),
    /// 4-bit codes, one of which is at a given place in each byte or word.
    Nibbles(Table),
    /// Integers of 1 to 4 bits, one of which is at a given place in each byte or, of 3 bits, in each word.
    Fields(CodeInteger),
    /// [`super::Codebooks`] and [`super::MixedColumns`] are decoded elsewhere.
    None,
}

/// The conversion of a code to an integer: its bits are flipped by `flip`, then `minus` is subtracted.
#[derive(Debug, Clone, Copy)]
pub struct CodeInteger {
    bits: u32,
    flip: u8,
    minus: u8,
}

impl CodeInteger {
    fn new(number: CodeNumber, bits: u32) -> Self {
        let half = 1 << (bits - 1);
        let (flip, minus) = match number {
            CodeNumber::Signed => (half, half),
            CodeNumber::Offset => (0, half),
            _ => (0, 0),
        };
        Self { bits, flip, minus }
    }

    #[inline(always)]
    fn value(self, code: u8) -> f32 {
        f32::from(i16::from(code ^ self.flip) - i16::from(self.minus))
    }
}

impl CodeDecoder {
    /// The decoder for codes that are packed like this. `map` is [`super::QuantizedPart::Map`].
    pub fn new(packing: CodePacking, number: CodeNumber, map: &[u8]) -> Self {
        let integer = CodeInteger::new(number, packing.bits().min(8));
        match packing {
            CodePacking::Words { .. } => Self::Words(integer),
            CodePacking::RowPairs | CodePacking::Across => Self::Nibbles(code_table(number, map)),
            CodePacking::Codebooks(_) | CodePacking::MixedDown(_) => Self::None,
            CodePacking::HighFirst { .. } => Self::Pairs(pairs(&code_table(number, map), true)),
            CodePacking::Stream { bits: 4, .. } | CodePacking::Down { bits: 4 } => {
                Self::Pairs(pairs(&code_table(number, map), false))
            }
            CodePacking::Stream { bits: 8, .. } | CodePacking::Down { bits: 8 } => Self::Bytes(match number {
                CodeNumber::E4M3 => e4m3,
                CodeNumber::E5M2 => e5m2,
                CodeNumber::E4M3Fnuz => elements::f8_e4m3_fnuz,
                CodeNumber::E5M2Fnuz => elements::f8_e5m2_fnuz,
                CodeNumber::Signed => signed,
                CodeNumber::Offset => offset,
                CodeNumber::Unsigned | CodeNumber::E2M1 | CodeNumber::Map | CodeNumber::Packed => unsigned,
            }),
            CodePacking::RowParts { .. } => Self::Fields(integer),
            CodePacking::Numbers { number, .. } => Self::Bytes(match number {
                ScaleType::F32 => elements::f32,
                ScaleType::F16 => elements::f16,
                ScaleType::Bf16 => elements::bf16,
                ScaleType::E8M0 => elements::f8_e8m0,
                ScaleType::E4M3 => e4m3,
                ScaleType::Nested { .. } => unsigned,
            }),
            CodePacking::Stream { .. } | CodePacking::Down { .. } => Self::Integers(integer),
        }
    }

    /// Decodes whole units of codes.
    fn decode(&self, bytes: &[u8], out: &mut [F32]) {
        match self {
            Self::Bytes(decode) => decode(bytes, out.as_flattened_mut()),
            Self::Pairs(table) => expand(table, bytes, out),
            Self::Integers(integer) => match integer.bits {
                1 => stream::<1>(*integer, bytes, out),
                2 => stream::<2>(*integer, bytes, out),
                3 => stream::<3>(*integer, bytes, out),
                5 => stream::<5>(*integer, bytes, out),
                6 => stream::<6>(*integer, bytes, out),
                _ => stream::<7>(*integer, bytes, out),
            },
            Self::Words(integer) => words(*integer, bytes, out),
            Self::Nibbles(_) | Self::Fields(_) | Self::None => {}
        }
    }

    /// Decodes codes from the `skipped`-th code of a unit on. `bytes` begins with that unit; bytes after the last code
    /// may be missing.
    pub fn decode_from(&self, packing: CodePacking, bytes: &[u8], skipped: usize, out: &mut [F32]) {
        let (codes, size) = packing.unit();
        let (codes, size) = (codes as usize, size as usize);
        let (mut bytes, mut out) = (bytes, out);
        let mut unit = [[0; 4]; 32];
        if skipped > 0 {
            let head = (codes - skipped).min(out.len());
            self.one(&bytes[..size.min(bytes.len())], size, &mut unit[..codes]);
            out[..head].copy_from_slice(&unit[skipped..skipped + head]);
            (bytes, out) = (&bytes[size.min(bytes.len())..], &mut out[head..]);
        }
        let whole = (out.len() / codes).min(bytes.len() / size);
        let (body, tail) = out.split_at_mut(whole * codes);
        self.decode(&bytes[..whole * size], body);
        // At most two units are left: one that the end of the row cuts, and one that the end of the range cuts.
        for (bytes, tail) in bytes[whole * size..].chunks(size).zip(tail.chunks_mut(codes)) {
            self.one(bytes, size, &mut unit[..codes]);
            tail.copy_from_slice(&unit[..tail.len()]);
        }
    }

    /// Decodes a unit of `size` bytes, of which the last ones may be missing.
    fn one(&self, bytes: &[u8], size: usize, out: &mut [F32]) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        self.decode(&padded[..size], out);
    }

    /// Decodes the code at bit `shift` of each byte.
    pub fn nibbles_of_bytes(&self, bytes: &[u8], shift: u32, out: &mut [F32]) {
        if let Self::Nibbles(table) = self {
            for (byte, out) in bytes.iter().zip(out) {
                *out = table[usize::from(byte >> shift & 15)].to_le_bytes();
            }
        }
    }

    /// Decodes the integer at bit `shift` of each byte or word.
    pub fn fields(&self, bytes: &[u8], shift: u32, out: &mut [F32]) {
        match self {
            Self::Fields(integer) if integer.bits == 3 => fields_of_words(*integer, bytes, shift, out),
            Self::Fields(integer) => fields_of_bytes(*integer, bytes, shift, out),
            _ => {}
        }
    }

    /// Decodes the code at bit `shift` of each word. The codes are integers without a sign.
    pub fn nibbles_of_words(&self, bytes: &[u8], shift: u32, out: &mut [F32]) {
        nibbles(bytes, shift, out);
        if let Self::Nibbles(table) = self
            && table[1..] != UNSIGNED[1..]
        {
            for (word, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
                *out = table[(u32::from_le_bytes(*word) >> shift & 15) as usize].to_le_bytes();
            }
        }
    }
}

const UNSIGNED: Table = [0., 1., 2., 3., 4., 5., 6., 7., 8., 9., 10., 11., 12., 13., 14., 15.];

fn code_table(number: CodeNumber, map: &[u8]) -> Table {
    let mut table = [0.0; 16];
    match number {
        CodeNumber::E2M1 => table = E2M1,
        CodeNumber::Map => {
            for (number, bytes) in table.iter_mut().zip(map.as_chunks::<4>().0) {
                *number = f32::from_le_bytes(*bytes);
            }
        }
        _ => {
            let integer = CodeInteger::new(number, 4);
            for (code, number) in (0..).zip(&mut table) {
                *number = integer.value(code);
            }
        }
    }
    table
}

fn pairs(table: &Table, high_first: bool) -> Box<Pairs> {
    let table = table.map(f32::to_le_bytes);
    let mut pairs = Box::new([[[0; 4]; 2]; 256]);
    for (byte, pair) in pairs.iter_mut().enumerate() {
        let (low, high) = (table[byte & 15], table[byte >> 4]);
        *pair = if high_first { [high, low] } else { [low, high] };
    }
    pairs
}

fn expand(table: &Pairs, bytes: &[u8], out: &mut [F32]) {
    for (byte, pair) in bytes.iter().zip(out.as_chunks_mut::<2>().0) {
        *pair = table[usize::from(*byte)];
    }
}

/// Eight codes in `BITS` bytes, or four codes of 2 bits in a byte.
fn stream<const BITS: usize>(integer: CodeInteger, bytes: &[u8], out: &mut [F32]) {
    if BITS == 2 {
        for (byte, four) in bytes.iter().zip(out.as_chunks_mut::<4>().0) {
            for (at, out) in four.iter_mut().enumerate() {
                *out = integer.value(byte >> (2 * at) & 3).to_le_bytes();
            }
        }
        return;
    }
    for (bytes, eight) in bytes.as_chunks::<BITS>().0.iter().zip(out.as_chunks_mut::<8>().0) {
        let mut padded = [0; 8];
        padded[..BITS].copy_from_slice(bytes);
        let word = u64::from_le_bytes(padded);
        for (at, out) in eight.iter_mut().enumerate() {
            *out = integer.value((word >> (BITS * at)) as u8 & ((1 << BITS) - 1)).to_le_bytes();
        }
    }
}

fn words(integer: CodeInteger, bytes: &[u8], out: &mut [F32]) {
    let bits = integer.bits;
    for (word, codes) in bytes.as_chunks::<4>().0.iter().zip(out.chunks_mut(32 / bits as usize)) {
        let mut word = u32::from_le_bytes(*word);
        for out in codes {
            *out = integer.value((word & ((1 << bits) - 1)) as u8).to_le_bytes();
            word >>= bits;
        }
    }
}

vectorised! {
    /// The 4 bits at `shift` of each word.
    fn nibbles(bytes: &[u8], shift: u32, out: &mut [F32]) {
        for (word, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
            *out = ((u32::from_le_bytes(*word) >> shift & 15) as f32).to_le_bytes();
        }
    }
}

vectorised! {
    fn fields_of_bytes(integer: CodeInteger, bytes: &[u8], shift: u32, out: &mut [F32]) {
        for (byte, out) in bytes.iter().zip(out) {
            *out = integer.value(byte >> shift & ((1 << integer.bits) - 1)).to_le_bytes();
        }
    }
}

vectorised! {
    fn fields_of_words(integer: CodeInteger, bytes: &[u8], shift: u32, out: &mut [F32]) {
        for (word, out) in bytes.as_chunks::<4>().0.iter().zip(out) {
            let code = u32::from_le_bytes(*word) >> shift & ((1 << integer.bits) - 1);
            *out = integer.value(code as u8).to_le_bytes();
        }
    }
}

vectorised! {
    fn e4m3(bytes: &[u8], out: &mut [u8]) {
        for (code, out) in bytes.iter().zip(out.as_chunks_mut::<4>().0) {
            *out = widen_e4m3(*code).to_le_bytes();
        }
    }
}

/// Widens E4M3. It has no branches, so that the compiler vectorises it, and no operation has a subnormal operand, which
/// would be slow.
#[inline(always)]
pub(super) fn widen_e4m3(code: u8) -> f32 {
    let code = u32::from(code);
    let sign = (code & 0x80) << 24;
    let rest = (code & 0x7f) << 20;
    // The bias of the exponent changes from 7 to 127.
    let normal = rest + (120 << 23);
    // A subnormal is built as a normal float32 that is too large by the smallest normal E4M3.
    let subnormal = (f32::from_bits(rest + (121 << 23)) - f32::from_bits(121 << 23)).to_bits();
    let value = if rest < 8 << 20 { subnormal } else { normal };
    f32::from_bits(sign | if rest == 0x7f << 20 { 0x7fc0_0000 } else { value })
}

vectorised! {
    /// OCP E5M2, the upper half of float16.
    fn e5m2(bytes: &[u8], out: &mut [u8]) {
        for (code, out) in bytes.iter().zip(out.as_chunks_mut::<4>().0) {
            *out = widen_f16(u16::from(*code) << 8).to_le_bytes();
        }
    }
}

vectorised! {
    fn signed(bytes: &[u8], out: &mut [u8]) {
        elements::i8(bytes, out);
    }
}

vectorised! {
    fn unsigned(bytes: &[u8], out: &mut [u8]) {
        elements::u8(bytes, out);
    }
}

vectorised! {
    fn offset(bytes: &[u8], out: &mut [u8]) {
        for (code, out) in bytes.iter().zip(out.as_chunks_mut::<4>().0) {
            *out = f32::from((*code ^ 0x80) as i8).to_le_bytes();
        }
    }
}

/// Passes `count` numbers to `take`. They are `step` bytes apart.
#[inline(always)]
pub(super) fn widen(real: ScaleType, bytes: &[u8], step: usize, mut take: impl FnMut(usize, f32), count: usize) {
    macro_rules! each {
        ($width:literal, $widen:expr) => {
            for at in 0..count {
                let Some(bytes) = bytes[at * step..].first_chunk::<$width>() else { return };
                take(at, $widen(*bytes));
            }
        };
    }
    match real {
        ScaleType::F32 => each!(4, f32::from_le_bytes),
        ScaleType::F16 => each!(2, |bytes| widen_f16(u16::from_le_bytes(bytes))),
        ScaleType::Bf16 => each!(2, |bytes| f32::from_bits(u32::from(u16::from_le_bytes(bytes)) << 16)),
        ScaleType::E8M0 => each!(1, |[code]: [u8; 1]| E8M0[usize::from(code)]),
        ScaleType::E4M3 => each!(1, |[code]: [u8; 1]| E4M3[usize::from(code)]),
        ScaleType::Nested { .. } => {}
    }
}
