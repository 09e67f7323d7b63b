//! Errors of safetensors headers, with the expected and the actual numbers.

use super::MAX_HEADER;
use crate::format::input::MissingRange;
use crate::text::quote;

/// Why a file has no header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SafetensorsError {
    /// Not a fault of the file: add this range to the input and parse again.
    #[error(transparent)]
    Missing(#[from] MissingRange),
    /// The file is shorter than the length field.
    #[error("too short: {len} bytes, but the header length alone takes 8 bytes")]
    TooShort {
        /// Bytes in the file.
        len: u64,
    },
    /// The length of the header exceeds the limit of the format.
    #[error("not safetensors: its first 8 bytes give a header of {len} bytes, and at most {MAX_HEADER} are allowed")]
    HeaderTooLarge {
        /// The length in the length field.
        len: u64,
    },
    /// The header with its new metadata would exceed the limit of the format.
    #[error("the header would have {len} bytes, and at most {MAX_HEADER} are allowed")]
    NoRoom {
        /// Bytes that the header would have.
        len: u64,
    },
    /// The file ends inside its header.
    #[error(
        "cut short: the header takes bytes 8 to {end}, but the file ends at byte {len}; at least {} missing \
         (did a download stop?)", bytes(end - len)
    )]
    HeaderCut {
        /// The expected end of the header.
        end: u64,
        /// Bytes in the file.
        len: u64,
    },
    /// The header is not text.
    #[error("the header is not UTF-8: byte {at} of the file is wrong")]
    NotUtf8 {
        /// Offset in the file.
        at: u64,
    },
    /// The header is not JSON.
    #[error("the header is not valid JSON{}: {reason}", near(entry))]
    Json {
        /// The entry that contains the error, if one does.
        entry: Option<String>,
        /// The message of the JSON parser, with line and column.
        reason: String,
    },
    /// The header is JSON, but not an object.
    #[error("the header is {found}, not a JSON object")]
    NotAnObject {
        /// Its kind.
        found: String,
    },
    /// `__metadata__` breaks a rule.
    #[error("__metadata__: {}{fault}", of_key(key))]
    Metadata {
        /// The key whose value breaks the rule, if it is one value.
        key: Option<String>,
        /// The rule that is broken.
        fault: SafetensorsFault,
    },
    /// A tensor breaks a rule.
    #[error("tensor {}: {fault}", quote(name))]
    Tensor {
        /// Its name.
        name: String,
        /// The rule that is broken.
        fault: SafetensorsFault,
    },
    /// The file ends before the data does.
    #[error(
        "cut short: the data ends at byte {end}, but the file ends at byte {len}; {} missing \
         (did a download stop? --lenient mounts the tensors that are whole)", bytes(end - len)
    )]
    DataCut {
        /// The expected end of the data.
        end: u64,
        /// Bytes in the file.
        len: u64,
    },
    /// The file has bytes after its data.
    #[error("too long: the data ends at byte {end}, but the file ends at byte {len}; {} after the data", bytes(len - end))]
    TooLong {
        /// The end of the data.
        end: u64,
        /// Bytes in the file.
        len: u64,
    },
}

/// A rule that one entry of the header breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum SafetensorsFault {
    #[error("{part} is {found}, not {expected}")]
    Type { part: &'static str, expected: &'static str, found: String },
    #[error("its entry has no {field}")]
    Missing { field: &'static str },
    #[error("its entry gives {field} twice")]
    Twice { field: &'static str },
    #[error("{part} has {found} elements, not {expected}")]
    Count { part: &'static str, expected: usize, found: usize },
    #[error("data_offsets [{begin}, {end}] end before they begin")]
    Reversed { begin: u64, end: u64 },
    #[error("shape {shape} of {dtype} is too large to count in 64 bits")]
    Overflow { dtype: String, shape: String },
    #[error("shape {shape} of {dtype} takes {bits} bits, which is not a whole number of bytes")]
    Fraction { dtype: String, shape: String, bits: u64 },
    #[error("shape {shape} of {dtype} takes {expected} bytes, but its data_offsets span {found}")]
    Size { dtype: String, shape: String, expected: u64, found: u64 },
    #[error("its data begins at byte {begin}, but the data before it ends at byte {expected}: a hole of {}", bytes(begin - expected))]
    Hole { begin: u64, expected: u64 },
    #[error("its data begins at byte {begin}, but the data before it ends at byte {expected}: {} shared", bytes(expected - begin))]
    Overlap { begin: u64, expected: u64 },
    #[error("its data takes bytes {begin} to {end}, but the file ends at byte {len}")]
    Outside { begin: u64, end: u64, len: u64 },
    #[error("its data_offsets [{begin}, {end}] are too large for any file")]
    Beyond { begin: u64, end: u64 },
    #[error("the name occurs twice in the header")]
    Duplicate,
}

fn bytes(count: u64) -> String {
    format!("{count} byte{}", if count == 1 { "" } else { "s" })
}

fn near(entry: &Option<String>) -> String {
    entry.as_ref().map_or(String::new(), |name| format!(" in the entry of {}", quote(name)))
}

pub(super) fn of_key(key: &Option<String>) -> String {
    key.as_ref().map_or(String::new(), |key| format!("key {}: ", quote(key)))
}
