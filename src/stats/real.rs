//! The number types for computing with values of 32 and 64 bits, and folds that the compiler vectorises.

use std::array;
use std::ops::{Add, Mul, Sub};

/// A number type for computing with values of 32 or 64 bits.
pub(super) trait RealNumber:
    Copy + Default + PartialOrd + Into<f64> + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self>
{
    /// Adding and subtracting this constant rounds a number to an integer, if it is small enough. The low bits of the
    /// sum are those of the integer.
    const ROUND: Self;
    /// Exponent of the largest numbers that are rounded with [`Self::ROUND`].
    const LARGEST: i32;
    /// Exponent of the smallest normal number.
    const LEAST: i32;
    /// Converts a number that this type represents exactly.
    fn narrow(value: f64) -> Self;
    fn low_bits(self) -> u32;
}

macro_rules! real {
    ($($type:ident $round:literal $largest:literal;)*) => {$(
        impl RealNumber for $type {
            const ROUND: Self = $round;
            const LARGEST: i32 = $largest;
            const LEAST: i32 = Self::MIN_EXP - 1;
            fn narrow(value: f64) -> Self {
                value as Self
            }
            fn low_bits(self) -> u32 {
                self.to_bits() as u32
            }
        }
    )*};
}

real! {
    f32 12_582_912.0 20;
    f64 6_755_399_441_055_744.0 49;
}

/// Number of independent folds, so that the compiler vectorises them.
pub(super) const LANES: usize = 8;

/// Folds values in [`LANES`] lanes.
pub(super) fn lanes<T: Copy, A: Copy>(values: &[T], start: A, fold: impl Fn(A, T) -> A) -> [A; LANES] {
    let mut lanes = [start; LANES];
    let (groups, rest) = values.as_chunks::<LANES>();
    for group in groups {
        lanes = array::from_fn(|at| fold(lanes[at], group[at]));
    }
    lanes.iter_mut().zip(rest).for_each(|(lane, value)| *lane = fold(*lane, *value));
    lanes
}

/// 2 to the power of `exponent`, which must be that of a normal number.
pub(super) fn power_of_two(exponent: i32) -> f64 {
    f64::from_bits(((exponent + 1023) as u64) << 52)
}
