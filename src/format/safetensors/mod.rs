//! The safetensors header.
//!
//! A file is a 64-bit little-endian length N, N bytes of JSON, then the data. The rules are those of the official
//! crate, version 0.8.0, and both accept the same files, with two deliberate differences: a repeated tensor name is an
//! error here, and an unknown dtype is not.

mod damage;
mod edit;
mod error;
mod lint;
mod parser;
mod reader;

pub use damage::safetensors_damage;
pub use edit::edit_safetensors;
pub use error::{SafetensorsError, SafetensorsFault};
pub use lint::lint_safetensors;
pub use reader::parse_safetensors;

/// Name of the format in headers and messages.
pub const NAME: &str = "safetensors";

/// Maximum size of the JSON in bytes, inclusive.
pub const MAX_HEADER: u64 = 100_000_000;

/// The key of the metadata in the header. It is not a tensor.
const METADATA: &str = "__metadata__";

/// Size of the length field before the JSON, in bytes.
const LENGTH: u64 = 8;
