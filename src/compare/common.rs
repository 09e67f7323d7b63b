//! The common type of numbers to which the values of two dtypes are converted.

use crate::format::{Dtype, DtypeBlock};

/// The numbers to which the values of two dtypes are converted, so that they can be compared. No conversion rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommonNumber {
    /// float32.
    Float32,
    /// float64.
    Float64,
    /// Sums of two float64 numbers, which hold every float64 number and every 64-bit integer.
    Exact,
}

impl CommonNumber {
    /// The numbers that hold all values of both dtypes; `None` if a dtype is complex or unknown.
    pub fn of(a: Dtype, b: Dtype) -> Option<Self> {
        let narrowest = |dtype: Dtype| match dtype {
            Dtype::F64 | Dtype::I32 | Dtype::U32 => Some(Self::Float64),
            Dtype::I64 | Dtype::U64 => Some(Self::Exact),
            _ => dtype.to_f32().map(|_| Self::Float32),
        };
        Some(narrowest(a)?.max(narrowest(b)?))
    }

    /// The name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Exact => "exact",
        }
    }
}

/// The values of whole blocks as float32, in memory; nothing if the dtype has no such conversion.
pub(super) fn float32(dtype: Dtype, encoded: &[u8]) -> Vec<u8> {
    let mut wide = Vec::new();
    widen(dtype, encoded, &mut wide);
    wide
}

/// Replaces `wide` by the values of whole blocks as float32.
pub(super) fn widen(dtype: Dtype, encoded: &[u8], wide: &mut Vec<u8>) {
    wide.clear();
    if let (Some(DtypeBlock { elements, bytes }), Some(to_f32)) = (dtype.block(), dtype.to_f32()) {
        wide.resize(encoded.len() / bytes as usize * elements as usize * size_of::<f32>(), 0);
        to_f32(encoded, wide);
    }
}

/// The values of whole blocks, each as the sum of two numbers: the nearest float64 number and the rest.
pub(super) fn exact(dtype: Dtype, encoded: &[u8]) -> Vec<[f64; 2]> {
    fn each<const N: usize>(encoded: &[u8], number: impl Fn([u8; N]) -> [f64; 2]) -> Vec<[f64; 2]> {
        encoded.as_chunks().0.iter().map(|bytes| number(*bytes)).collect()
    }
    let integer = |value: i128| [value as f64, (value - value as f64 as i128) as f64];
    match dtype {
        Dtype::F64 => each(encoded, |bytes| [f64::from_le_bytes(bytes), 0.0]),
        Dtype::I32 => each(encoded, |bytes| [i32::from_le_bytes(bytes).into(), 0.0]),
        Dtype::U32 => each(encoded, |bytes| [u32::from_le_bytes(bytes).into(), 0.0]),
        Dtype::I64 => each(encoded, |bytes| integer(i64::from_le_bytes(bytes).into())),
        Dtype::U64 => each(encoded, |bytes| integer(u64::from_le_bytes(bytes).into())),
        _ => each(&float32(dtype, encoded), |bytes| [f32::from_le_bytes(bytes).into(), 0.0]),
    }
}
