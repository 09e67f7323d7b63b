//! Errors of GGUF headers, with the expected and the actual numbers.

use super::{ALIGNMENT_KEY, LENGTH_MAX, MAX_HEADER, NAME_MAX, RANK_MAX};
use crate::format::input::MissingRange;
use crate::text::quote;

/// Why a file has no header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgufError {
    /// Not a fault of the file: add this range to the input and parse again.
    #[error(transparent)]
    Missing(#[from] MissingRange),
    /// The version is not supported.
    #[error("GGUF version {version}; versions 2 and 3 are supported{}", if *version == 1 { " (convert it with llama.cpp's tools)" } else { "" })]
    Version {
        /// The version in the file.
        version: u32,
    },
    /// The file is in big-endian order.
    #[error(
        "GGUF version {version} in big-endian order; only little-endian files are supported (gguf_convert_endian.py of the gguf package converts it)"
    )]
    BigEndian {
        /// The version in the file.
        version: u32,
    },
    /// The file ends inside its header.
    #[error(
        "cut short: the header goes on to byte {end} at least, but the file ends at byte {len} (did a download stop?)"
    )]
    HeaderCut {
        /// The expected end of the field that is cut.
        end: u64,
        /// Bytes in the file.
        len: u64,
    },
    /// The header exceeds the limit of weightfs.
    #[error("the header goes on to byte {end} at least, and at most {MAX_HEADER} bytes are read")]
    HeaderTooLarge {
        /// The expected end of the first field beyond the limit.
        end: u64,
    },
    /// A metadata key breaks a rule.
    #[error("metadata key {}{fault}", of_key(key, *number))]
    Metadata {
        /// Its position in the file, from 0.
        number: u64,
        /// The key, if it could be read.
        key: Option<String>,
        /// The rule that is broken.
        fault: GgufFault,
    },
    /// A tensor breaks a rule.
    #[error("tensor {}: {fault}", quote(name))]
    Tensor {
        /// Its name, or its number if it has no name.
        name: String,
        /// The rule that is broken.
        fault: GgufFault,
    },
    /// The file ends before the data does.
    #[error("cut short: the data ends at byte {end}, but the file ends at byte {len}; {} bytes missing (did a download stop?)", end - len)]
    DataCut {
        /// End of the last tensor.
        end: u64,
        /// Bytes in the file.
        len: u64,
    },
}

fn of_key(key: &Option<String>, number: u64) -> String {
    match key {
        Some(key) => format!("{}: ", quote(key)),
        None => format!("number {number}: "),
    }
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GgufFault {
    /// The same name or key occurs again.
    #[error("occurs more than once")]
    Duplicate,
    /// A key is empty.
    #[error("the key is empty")]
    Empty,
    /// A name or a key is not text.
    #[error("the {what} is not UTF-8")]
    NotUtf8 {
        /// "name" or "key".
        what: &'static str,
    },
    /// A string or an array exceeds the limit of ggml.
    #[error("a length of {len}, and at most {LENGTH_MAX} is allowed")]
    Length {
        /// The length.
        len: u64,
    },
    /// The type of a value does not exist.
    #[error("value type {kind} does not exist")]
    ValueType {
        /// The number of the type.
        kind: u32,
    },
    /// An array of arrays.
    #[error("an array of arrays, which ggml does not allow")]
    Nested,
    /// The alignment has the wrong type.
    #[error("value type {kind}; {ALIGNMENT_KEY} must be a uint32 (type 4)")]
    AlignmentType {
        /// The number of the type.
        kind: u32,
    },
    /// The alignment is not a power of two.
    #[error("{found} is not a power of two")]
    Alignment {
        /// The value.
        found: u32,
    },
    /// A name is longer than ggml allows.
    #[error("a name of {len} bytes; ggml allows {NAME_MAX}")]
    LongName {
        /// Its length in bytes.
        len: usize,
    },
    /// There are too many dimensions.
    #[error("{rank} dimensions; ggml allows {RANK_MAX}")]
    Rank {
        /// The number of dimensions.
        rank: u32,
    },
    /// The number of elements or bytes does not fit into 63 bits.
    #[error("shape {shape} has more than 2^63-1 elements or bytes")]
    Overflow {
        /// The shape, outermost dimension first.
        shape: String,
    },
    /// The type does not exist.
    #[error("ggml type {number} is not known")]
    Type {
        /// The number of the type.
        number: u32,
    },
    /// A row is not a whole number of blocks.
    #[error("rows of {row} elements, but {dtype} has blocks of {block}")]
    Row {
        /// Elements in a row, the innermost dimension.
        row: u64,
        /// The type.
        dtype: &'static str,
        /// Elements in a block.
        block: u64,
    },
    /// The data is not where the tensors before it end.
    #[error("its data begins at offset {found}, but the tensors before it end at {expected}")]
    Offset {
        /// The offset in the file, from the beginning of the data.
        found: u64,
        /// Its expected start.
        expected: u64,
    },
    /// The data lies outside the file.
    #[error("its data is at bytes {begin} to {end}, but the file ends at byte {len}")]
    Outside {
        /// Begin of the data, in bytes from the start of the file.
        begin: u64,
        /// End of the data.
        end: u64,
        /// Bytes in the file.
        len: u64,
    },
}
