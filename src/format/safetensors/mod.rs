//! The safetensors header.
//!
//! A file is a 64-bit little-endian length N, N bytes of JSON, then the data. The rules are those of the official
//! crate, version 0.8.0, and both accept the same files, with two deliberate differences: a repeated tensor name is an
//! error here, and an unknown dtype is not.

mod edit;
mod lint;
mod parser;
mod reader;

use super::error::Error;
use crate::rules::CheckRule;
use crate::text::quote;
use std::cmp::Ordering;

pub use edit::edit_safetensors;
pub use lint::{lint_safetensors, safetensors_damage};
pub use reader::parse_safetensors;

pub const NAME: &str = "safetensors";

/// Maximum size of the JSON in bytes, inclusive.
pub const MAX_HEADER: u64 = 100_000_000;

/// The key of the metadata in the header. It is not a tensor.
const METADATA: &str = "__metadata__";

/// Size of the length field before the JSON, in bytes.
const LENGTH: u64 = 8;

/// The fault of an entry whose name another entry has too.
const DUPLICATE: &str = "the name occurs twice in the header";

/// A header that is not JSON. `entry` is the entry that contains the error, if one does.
fn not_json(entry: Option<&str>, error: &serde_json::Error) -> Error {
    let near = entry.map_or(String::new(), |name| format!(" in the entry of {}", quote(name)));
    Error::Broken(format!("the header is not valid JSON{near}: {error}"))
}

/// The fault of a tensor that begins at byte `begin`, unless the data before it ends there.
fn misplaced(begin: u64, expected: u64) -> Option<(CheckRule, String)> {
    let (kind, how) = match begin.cmp(&expected) {
        Ordering::Equal => return None,
        Ordering::Greater => (CheckRule::Hole, format!("a hole of {}", count_bytes(begin - expected))),
        Ordering::Less => (CheckRule::Overlap, format!("{} shared", count_bytes(expected - begin))),
    };
    Some((kind, format!("its data begins at byte {begin}, but the data before it ends at byte {expected}: {how}")))
}

/// The fault of a file of `len` bytes whose data ends at byte `end`.
fn too_long(end: u64, len: u64) -> String {
    format!(
        "too long: the data ends at byte {end}, but the file ends at byte {len}; {} after the data",
        count_bytes(len - end)
    )
}

fn count_bytes(count: u64) -> String {
    format!("{count} byte{}", if count == 1 { "" } else { "s" })
}
