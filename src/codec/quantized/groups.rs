//! Combines the numbers of groups with their scales, and with zero points or biases.

use super::F32;
use super::layout::Formula;

/// What the numbers of a group are combined with.
#[derive(Debug, Clone, Copy, Default)]
pub struct Operands {
    /// The scale.
    pub scale: f32,
    /// The bias or the zero point.
    pub other: f32,
}

/// The number of a group, in little-endian order.
pub type Group = [u8; 4];

/// Combines numbers with the operands of their groups. The first group has `first` elements, the others `width`.
pub fn combine(formula: Formula, has_zeros: bool, out: &mut [F32], first: usize, width: usize, operands: &[Operands]) {
    match (formula, has_zeros) {
        (Formula::Scale, false) => scale(out, first, width, operands),
        (Formula::Scale, true) => shift_and_scale(out, first, width, operands),
        (Formula::Divide, _) => divide(out, first, width, operands),
        (Formula::ScaleThenAdd, _) => scale_and_add(out, first, width, operands),
        (Formula::ScaleTwice(constant), _) => scale_twice(out, first, width, operands, constant),
    }
}

/// Combines each number with the operands of its own group. A group that does not exist gives NaN.
pub fn combine_by_index(has_zeros: bool, out: &mut [F32], groups: &[Group], operands: &[Operands]) {
    if has_zeros {
        shift_and_scale_by_index(out, groups, operands);
    } else {
        scale_by_index(out, groups, operands);
    }
}

vectorised! {
    fn shift_and_scale_by_index(out: &mut [F32], groups: &[Group], operands: &[Operands]) {
        by_index(out, groups, operands, |value, operands| (value - operands.other) * operands.scale);
    }
}

vectorised! {
    fn scale_by_index(out: &mut [F32], groups: &[Group], operands: &[Operands]) {
        by_index(out, groups, operands, |value, operands| value * operands.scale);
    }
}

#[inline(always)]
fn by_index(out: &mut [F32], groups: &[Group], operands: &[Operands], combine: impl Fn(f32, Operands) -> f32 + Copy) {
    let nan = Operands { scale: f32::NAN, other: f32::NAN };
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

vectorised! {
    fn scale(out: &mut [F32], first: usize, width: usize, operands: &[Operands]) {
        each(out, first, width, operands, |value, operands| value * operands.scale);
    }
}

vectorised! {
    fn shift_and_scale(out: &mut [F32], first: usize, width: usize, operands: &[Operands]) {
        each(out, first, width, operands, |value, operands| (value - operands.other) * operands.scale);
    }
}

vectorised! {
    fn divide(out: &mut [F32], first: usize, width: usize, operands: &[Operands]) {
        each(out, first, width, operands, |value, operands| value / operands.scale);
    }
}

vectorised! {
    fn scale_and_add(out: &mut [F32], first: usize, width: usize, operands: &[Operands]) {
        each(out, first, width, operands, |value, operands| value * operands.scale + operands.other);
    }
}

vectorised! {
    fn scale_twice(out: &mut [F32], first: usize, width: usize, operands: &[Operands], constant: f32) {
        each(out, first, width, operands, |value, operands| value * operands.scale * constant);
    }
}

#[inline(always)]
fn each(
    out: &mut [F32],
    first: usize,
    width: usize,
    operands: &[Operands],
    combine: impl Fn(f32, Operands) -> f32 + Copy,
) {
    let Some((head, operands)) = operands.split_first() else { return };
    let (out, rest) = out.split_at_mut(first.min(out.len()));
    run(out, *head, combine);
    match width {
        1 => {
            for (out, operands) in rest.iter_mut().zip(operands) {
                *out = combine(f32::from_le_bytes(*out), *operands).to_le_bytes();
            }
        }
        // The compiler unrolls loops of constant length.
        16 => short::<16>(rest, operands, combine),
        32 => short::<32>(rest, operands, combine),
        _ => {
            for (out, operands) in rest.chunks_mut(width).zip(operands) {
                run(out, *operands, combine);
            }
        }
    }
}

#[inline(always)]
fn short<const N: usize>(out: &mut [F32], operands: &[Operands], combine: impl Fn(f32, Operands) -> f32 + Copy) {
    let (out, last) = out.as_chunks_mut::<N>();
    let groups = out.len();
    for (out, operands) in out.iter_mut().zip(operands) {
        run(out, *operands, combine);
    }
    if let Some(operands) = operands.get(groups) {
        run(last, *operands, combine);
    }
}

#[inline(always)]
fn run(out: &mut [F32], operands: Operands, combine: impl Fn(f32, Operands) -> f32) {
    for out in out {
        *out = combine(f32::from_le_bytes(*out), operands).to_le_bytes();
    }
}
