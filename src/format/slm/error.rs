//! Errors of SLM1 files, with the expected and the actual numbers.

use super::{ALIGNMENT, HEADER, MAX_HEADER};
use crate::format::input::MissingRange;
use crate::text::quote;

/// Why a file has no header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum SlmError {
    /// Not a fault of the file: add this range to the input and parse again.
    #[error(transparent)]
    Missing(#[from] MissingRange),
    #[error("SLM1 version {version}; version 1 is supported")]
    Version { version: u32 },
    #[error(
        "cut short: the {part} takes bytes {begin} to {end}, but the file ends at byte {len} (did a download stop?)"
    )]
    Cut { part: &'static str, begin: u64, end: u64, len: u64 },
    #[error("SLM1 file: the {part} ends at byte {end}; weightfs reads at most {MAX_HEADER} bytes before the data")]
    HeaderTooLarge { part: &'static str, end: u64 },
    #[error("SLM1 file: the length of the header is {len} bytes; a header has at least {HEADER}")]
    HeaderLength { len: u32 },
    #[error("SLM1 file: the field {field} of the header is 0")]
    Zero { field: &'static str },
    #[error("SLM1 file: the data begins at byte {start}, which is not a multiple of {ALIGNMENT}")]
    DataStart { start: u64 },
    #[error("SLM1 file: the {part} ends at byte {end}, but the data begins at byte {start}")]
    Order { part: &'static str, end: u64, start: u64 },
    #[error("SLM1 file: tokenizer: {fault}")]
    Tokenizer { fault: SlmFault },
    #[error("tensor {}: {fault}", quote(name))]
    Tensor { name: String, fault: SlmFault },
    #[error("cut short: the data ends at byte {end}, but the file ends at byte {len}; {} bytes missing (did a download stop?)", end - len)]
    DataCut { end: u64, len: u64 },
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum SlmFault {
    #[error("it begins with {}, which is neither BTOK nor BPE1", quote(found))]
    Kind { found: String },
    #[error("version {version}; version 1 is supported")]
    TokenizerVersion { version: u32 },
    #[error("{len} bytes, but {expected} are needed")]
    TokenizerLength { len: u64, expected: u64 },
    #[error("a vocabulary of {found} tokens, but the header gives {expected}")]
    Vocabulary { found: u32, expected: u32 },
    #[error("token {token} is not below the size of the vocabulary, {vocabulary}")]
    Token { token: u32, vocabulary: u32 },
    #[error("token {token} occurs twice")]
    TokenTwice { token: u32 },
    #[error("token {token} has no bytes")]
    TokenEmpty { token: u32 },
    #[error("merge {merge} makes token {token}, which is not in the table")]
    Merge { merge: u32, token: u32 },
    #[error("dtype {dtype} is not known")]
    Dtype { dtype: u32 },
    #[error("{rank} dimensions; SLM1 allows 1 to 4")]
    Rank { rank: u32 },
    #[error("shape {shape} has more than 2^63-1 elements or bytes")]
    Overflow { shape: String },
    #[error("shape {shape} takes {expected} bytes, but its entry gives {found}")]
    Size { shape: String, expected: u64, found: u64 },
    #[error("a block of {block} elements, but rows of {row}: {rule}")]
    Block { block: u32, row: u64, rule: &'static str },
    #[error("its hash occurs more than once")]
    Duplicate,
    #[error("its {part} end at byte {end}, but the file ends at byte {len}")]
    Outside { part: &'static str, end: u64, len: u64 },
    #[error("its {part} at byte {begin} lie before the data of the file, which begins at byte {start}")]
    Before { part: &'static str, begin: u64, start: u64 },
    #[error("its bytes {begin} to {end} belong to another tensor too")]
    Overlap { begin: u64, end: u64 },
}
