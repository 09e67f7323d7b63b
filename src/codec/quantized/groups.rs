//! Combines the numbers of groups with their scales, and with zero points or biases.

use super::F32;
use super::layout::DequantizeFormula;

/// The operands that the numbers of a group are combined with.
#[derive(Debug, Clone, Copy, Default)]
pub struct GroupOperands {
    pub scale: f32,
    /// The bias or the zero point.
    pub other: f32,
}

/// The number of a group, in little-endian order.
pub type Group = [u8; 4];

/// Combines numbers with the operands of their groups. The first group has `first` elements, the others `width`.
pub fn combine(
    formula: DequantizeFormula,
    has_zeros: bool,
    out: &mut [F32],
    first: usize,
    width: usize,
    operands: &[GroupOperands],
) {
    match (formula, has_zeros) {
        (DequantizeFormula::Scale, false) => scale(out, first, width, operands),
        (DequantizeFormula::Scale, true) => shift_and_scale(out, first, width, operands),
        (DequantizeFormula::Divide, _) => divide(out, first, width, operands),
        (DequantizeFormula::ScaleThenAdd, _) => scale_and_add(out, first, width, operands),
        (DequantizeFormula::ScaleTwice(constant), _) => scale_twice(out, first, width, operands, constant),
    }
}

/// Combines each number with the operands of its own group. A group that does not exist gives NaN.
pub fn combine_by_index(has_zeros: bool, out: &mut [F32], groups: &[Group], operands: &[GroupOperands]) {
    if has_zeros {
        shift_and_scale_by_index(out, groups, operands);
    } else {
        scale_by_index(out, groups, operands);
    }
}

vectorised! {
    fn shift_and_scale_by_index(out: &mut [F32], groups: &[Group], operands: &[GroupOperands]) {
        by_index(out, groups, operands, |value, operands| (value - operands.other) * operands.scale);
    }
}

vectorised! {
    fn scale_by_index(out: &mut [F32], groups: &[Group], operands: &[GroupOperands]) {
        by_index(out, groups, operands, |value, operands| value * operands.scale);
    }
}

#[inline(always)]
fn by_index(
    out: &mut [F32],
    groups: &[Group],
    operands: &[GroupOperands],
    combine: impl Fn(f32, GroupOperands) -> f32 + Copy,
) {
    let nan = GroupOperands { scale: f32::NAN, other: f32::NAN };
    let find = |group: &Group| operands.get(u32::from_le_bytes(*group) as usize).copied().unwrap_or(nan);
    let (eights, rest) = out.as_chunks_mut::<8>();
    let (groups_of_eights, groups_of_rest) = groups.as_chunks::<8>();
    for (eight, groups) in eights.iter_mut().zip(groups_of_eights) {
        // First the loads, then the arithmetic, which the compiler vectorises.
        let operands = groups.each_ref().map(find);
        for (out, operands) in eight.iter_mut().zip(operands) {
            *out = combine(f32::from_le_bytes(*out), operands).to_le_bytes();
        }
    }
    for (out, group) in rest.iter_mut().zip(groups_of_rest) {
        *out = combine(f32::from_le_bytes(*out), find(group)).to_le_bytes();
    }
}

/// Defines functions that combine each number with the operands of its group.
macro_rules! formulas {
    ($($name:ident = $combine:expr;)*) => {$(
        vectorised! {
            fn $name(out: &mut [F32], first: usize, width: usize, operands: &[GroupOperands]) {
                each_group(out, first, width, operands, $combine);
            }
        }
    )*};
}

formulas! {
    scale = |value, operands| value * operands.scale;
    shift_and_scale = |value, operands| (value - operands.other) * operands.scale;
    divide = |value, operands| value / operands.scale;
    scale_and_add = |value, operands| value * operands.scale + operands.other;
}

vectorised! {
    fn scale_twice(out: &mut [F32], first: usize, width: usize, operands: &[GroupOperands], constant: f32) {
        each_group(out, first, width, operands, |value, operands| value * operands.scale * constant);
    }
}

#[inline(always)]
fn each_group(
    out: &mut [F32],
    first: usize,
    width: usize,
    operands: &[GroupOperands],
    combine: impl Fn(f32, GroupOperands) -> f32 + Copy,
) {
    let Some((head, operands)) = operands.split_first() else { return };
    let (out, rest) = out.split_at_mut(first.min(out.len()));
    decode_run(out, *head, combine);
    match width {
        1 => {
            for (out, operands) in rest.iter_mut().zip(operands) {
                *out = combine(f32::from_le_bytes(*out), *operands).to_le_bytes();
            }
        }
        // The compiler unrolls loops of constant length.
        16 => short_group::<16>(rest, operands, combine),
        32 => short_group::<32>(rest, operands, combine),
        _ => {
            for (out, operands) in rest.chunks_mut(width).zip(operands) {
                decode_run(out, *operands, combine);
            }
        }
    }
}

#[inline(always)]
fn short_group<const N: usize>(
    out: &mut [F32],
    operands: &[GroupOperands],
    combine: impl Fn(f32, GroupOperands) -> f32 + Copy,
) {
    let (out, last) = out.as_chunks_mut::<N>();
    let groups = out.len();
    for (out, operands) in out.iter_mut().zip(operands) {
        decode_run(out, *operands, combine);
    }
    if let Some(operands) = operands.get(groups) {
        decode_run(last, *operands, combine);
    }
}

#[inline(always)]
fn decode_run(out: &mut [F32], operands: GroupOperands, combine: impl Fn(f32, GroupOperands) -> f32) {
    for out in out {
        *out = combine(f32::from_le_bytes(*out), operands).to_le_bytes();
    }
}
