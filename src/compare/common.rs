//! The common type of numbers to which the values of two dtypes are converted.

use crate::format::{Dtype, DtypeBlock};
use std::borrow::Cow;

/// The numbers to which the values of two dtypes are converted, so that they can be compared. No conversion rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum CommonNumber {
    Float32,
    Float64,
    /// Sums of two float64 numbers, which hold every float64 number and every 64-bit integer.
    Exact,
}

impl CommonNumber {
    /// The numbers that hold all values of both dtypes; `None` if a dtype is complex or unknown.
    pub fn of(a: Dtype, b: Dtype) -> Option<Self> {
        Some(Self::narrowest(a)?.max(Self::narrowest(b)?))
    }

    fn narrowest(dtype: Dtype) -> Option<Self> {
        match dtype {
            Dtype::F64 | Dtype::I32 | Dtype::U32 => Some(Self::Float64),
            Dtype::I64 | Dtype::U64 => Some(Self::Exact),
            _ => dtype.to_f32().map(|_| Self::Float32),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Exact => "exact",
        }
    }
}

/// The values of whole blocks as float32; nothing if the dtype has no such conversion.
pub(super) fn float32<'b>(dtype: Dtype, encoded: &'b [u8]) -> Cow<'b, [u8]> {
    if dtype == Dtype::F32 {
        return encoded.into();
    }
    let (Some(DtypeBlock { elements, bytes }), Some(to_f32)) = (dtype.block(), dtype.to_f32()) else {
        return Cow::Borrowed(&[]);
    };
    let mut wide = vec![0; encoded.len() / bytes as usize * elements as usize * size_of::<f32>()];
    to_f32(encoded, &mut wide);
    wide.into()
}

/// The values of whole blocks, each as the sum of two numbers: the nearest float64 number and the rest.
pub(super) fn exact(dtype: Dtype, encoded: &[u8]) -> Vec<[f64; 2]> {
    match dtype {
        Dtype::F64 => map_chunks(encoded, |bytes| [f64::from_le_bytes(bytes), 0.0]),
        Dtype::I32 => map_chunks(encoded, |bytes| [i32::from_le_bytes(bytes).into(), 0.0]),
        Dtype::U32 => map_chunks(encoded, |bytes| [u32::from_le_bytes(bytes).into(), 0.0]),
        Dtype::I64 => map_chunks(encoded, |bytes| split_integer(i64::from_le_bytes(bytes).into())),
        Dtype::U64 => map_chunks(encoded, |bytes| split_integer(u64::from_le_bytes(bytes).into())),
        _ => map_chunks(&float32(dtype, encoded), |bytes| [f32::from_le_bytes(bytes).into(), 0.0]),
    }
}

fn map_chunks<const N: usize>(encoded: &[u8], number: impl Fn([u8; N]) -> [f64; 2]) -> Vec<[f64; 2]> {
    encoded.as_chunks().0.iter().map(|bytes| number(*bytes)).collect()
}

fn split_integer(value: i128) -> [f64; 2] {
    [value as f64, (value - value as f64 as i128) as f64]
}
