//! Errors of PyTorch checkpoints, with the expected and the actual numbers.

use super::pickle::BrokenPickle;
use super::{PICKLE_MAX, RANK_MAX};
use crate::format::input::MissingRange;
use crate::format::zip;
use crate::text::quote;

/// Why a file has no header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PytorchError {
    /// Not a fault of the file: add this range to the input and parse again.
    #[error(transparent)]
    Missing(#[from] MissingRange),
    /// The archive breaks a rule.
    #[error("PyTorch checkpoint: {0}")]
    Zip(#[from] zip::ZipFault),
    /// The archive has no pickle.
    #[error("PyTorch checkpoint: no entry data.pkl in the zip archive (was the program that saved it interrupted?)")]
    NoPickle,
    /// The archive has several.
    #[error("PyTorch checkpoint: both {} and {} could be the pickle", quote(a), quote(b))]
    Pickles {
        /// A pickle.
        a: String,
        /// Another one.
        b: String,
    },
    /// The pickle is too long.
    #[error("PyTorch checkpoint: data.pkl has {size} bytes; weightfs reads at most {PICKLE_MAX}")]
    LongPickle {
        /// Its size in bytes.
        size: u64,
    },
    /// The byte order is none.
    #[error("PyTorch checkpoint: the entry byteorder is neither \"little\" nor \"big\"")]
    ByteOrder,
    /// The pickle cannot be read.
    #[error("PyTorch checkpoint: {0}")]
    Pickle(#[from] BrokenPickle),
    /// The pickle is nested or shared too much.
    #[error("PyTorch checkpoint: {what}, at {}", quote(path))]
    Limit {
        /// The quantity that is too large.
        what: &'static str,
        /// The path to the value.
        path: String,
    },
    /// A tensor breaks a rule.
    #[error("tensor {}: {fault}", quote(name))]
    Tensor {
        /// Its name.
        name: String,
        /// The rule that is broken.
        fault: PytorchFault,
    },
}

impl From<zip::ZipError> for PytorchError {
    fn from(error: zip::ZipError) -> Self {
        match error {
            zip::ZipError::Missing(missing) => Self::Missing(missing),
            zip::ZipError::Fault(fault) => Self::Zip(fault),
        }
    }
}

/// A broken rule of a tensor.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum PytorchFault {
    #[error("{function} has arguments that torch does not write")]
    Arguments { function: String },
    #[error("its storage is not a storage of the file")]
    Storage,
    #[error("storage class {} is not known", quote(class))]
    Class { class: String },
    #[error("dtype {} is not known", quote(dtype))]
    Dtype { dtype: String },
    #[error("several elements of {dtype} share a byte, which is not supported")]
    Packed { dtype: String },
    #[error("its storage {} is not in the archive", quote(entry))]
    NoEntry { entry: String },
    #[error("{0}")]
    Entry(#[from] zip::ZipFault),
    #[error("its storage {} has {size} bytes, but {numel} elements of {width} bytes", quote(entry))]
    Size { entry: String, size: u64, numel: u64, width: u32 },
    #[error("{rank} dimensions; torch has at most {RANK_MAX}")]
    Dimensions { rank: usize },
    #[error("shape {shape} has {rank} dimensions, but there are {strides} strides")]
    Rank { shape: String, rank: usize, strides: usize },
    #[error("shape {shape} or strides {strides}: a number is negative")]
    Negative { shape: String, strides: String },
    #[error("shape {shape} of {dtype} is larger than 2^63-1 bytes")]
    Overflow { shape: String, dtype: &'static str },
    #[error(
        "shape {shape} with strides {strides} from element {offset} on needs {needed} elements, but its storage has \
         {numel}"
    )]
    Beyond { shape: String, strides: String, offset: u64, needed: u64, numel: u64 },
    #[error("it is a {what} view of its storage, so that its values differ from the bytes (save tensor.{method}())")]
    Lazy { what: &'static str, method: &'static str },
    #[error("strides {strides} of pairs of 4-bit numbers are not supported")]
    StridedPairs { strides: String },
    #[error("a dict on the path to it has the same key twice")]
    Duplicate,
}
