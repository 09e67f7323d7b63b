//! The types of metadata values.
//!
//! Source: `gguf_metadata_value_type` in `docs/gguf.md` of ggml.

use crate::format::metadata::Scalar;

/// The number of the array type.
pub const ARRAY: u32 = 9;

/// A type, its number, and its size in bytes; 0 for strings, which have a length.
const TYPES: [(Scalar, u32, u64); 12] = [
    (Scalar::U8, 0, 1),
    (Scalar::I8, 1, 1),
    (Scalar::U16, 2, 2),
    (Scalar::I16, 3, 2),
    (Scalar::U32, 4, 4),
    (Scalar::I32, 5, 4),
    (Scalar::F32, 6, 4),
    (Scalar::Bool, 7, 1),
    (Scalar::String, 8, 0),
    (Scalar::U64, 10, 8),
    (Scalar::I64, 11, 8),
    (Scalar::F64, 12, 8),
];

/// The type with that number, and its size in bytes.
pub fn scalar(number: u32) -> Option<(Scalar, u64)> {
    TYPES.iter().find(|(_, other, _)| *other == number).map(|(scalar, _, size)| (*scalar, *size))
}

/// The number of a type.
pub fn number(scalar: Scalar) -> u32 {
    TYPES.iter().find(|(other, ..)| *other == scalar).map_or(0, |(_, number, _)| *number)
}
