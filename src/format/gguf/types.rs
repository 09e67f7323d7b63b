//! The types of metadata values.
//!
//! Source: `gguf_metadata_value_type` in `docs/gguf.md` of ggml.

use crate::format::metadata::ScalarType;

/// The number of the array type.
pub const ARRAY: u32 = 9;

/// A type, its number, and its size in bytes; 0 for strings, which have a length.
const TYPES: [(ScalarType, u32, u64); 12] = [
    (ScalarType::U8, 0, 1),
    (ScalarType::I8, 1, 1),
    (ScalarType::U16, 2, 2),
    (ScalarType::I16, 3, 2),
    (ScalarType::U32, 4, 4),
    (ScalarType::I32, 5, 4),
    (ScalarType::F32, 6, 4),
    (ScalarType::Bool, 7, 1),
    (ScalarType::String, 8, 0),
    (ScalarType::U64, 10, 8),
    (ScalarType::I64, 11, 8),
    (ScalarType::F64, 12, 8),
];

/// The type with that number, and its size in bytes.
pub fn scalar(number: u32) -> Option<(ScalarType, u64)> {
    TYPES.iter().find(|(_, other, _)| *other == number).map(|(scalar, _, size)| (*scalar, *size))
}

/// The number of a type.
pub fn type_number(scalar: ScalarType) -> u32 {
    TYPES.iter().find(|(other, ..)| *other == scalar).map_or(0, |(_, number, _)| *number)
}
