//! The safetensors header.
//!
//! A file is a 64-bit little-endian length N, N bytes of JSON, then the data. Every rule is that of the official crate,
//! version 0.8.0, and the verdict on every file is the same, with two deliberate differences: a repeated tensor name is
//! an error here, and a dtype that the crate does not know is not.

mod damage;
mod edit;
mod error;
mod lint;
mod parser;
mod reader;

pub use damage::damage;
pub use edit::with_metadata;
pub use error::{Error, Fault};
pub use lint::lint;
pub use reader::parse;

/// As headers and messages call the format.
pub const NAME: &str = "safetensors";

/// The most bytes of a header, inclusive.
pub const MAX_HEADER: u64 = 100_000_000;

/// The key of the metadata, which is not a tensor.
const METADATA: &str = "__metadata__";

/// Bytes of the length before the JSON.
const LENGTH: u64 = 8;
