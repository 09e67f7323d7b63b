//! Errors of NumPy files, with the expected and the actual numbers.

use super::{ELEMENT_MAX, MAX_HEADER};
use crate::format::input::MissingRange;
use crate::format::zip;
use crate::text::quote;

/// Why a file has no header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NumpyError {
    /// Not a fault of the file: add this range to the input and parse again.
    #[error(transparent)]
    Missing(#[from] MissingRange),
    /// The header of the only array breaks a rule.
    #[error("NumPy array: {0}")]
    Array(NumpyFault),
    /// The archive breaks a rule.
    #[error(transparent)]
    Zip(zip::ZipFault),
    /// The headers of arrays are too far apart.
    #[error("{arrays} arrays, whose headers are too far apart to be read (save at most 1000 large arrays in a file)")]
    TooMany {
        /// Number of arrays.
        arrays: usize,
    },
    /// An array breaks a rule.
    #[error("tensor {}: {fault}", quote(name))]
    Tensor {
        /// Its name.
        name: String,
        /// The rule that is broken.
        fault: NumpyFault,
    },
    /// The file ends before the data does.
    #[error("cut short: the data ends at byte {end}, but the file ends at byte {len}; {} bytes missing (did a download stop?)", end - len)]
    DataCut {
        /// End of the data.
        end: u64,
        /// Bytes in the file.
        len: u64,
    },
}

/// A broken rule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages describe the variants")]
pub enum NumpyFault {
    #[error("it does not begin with the magic number of a NumPy array")]
    Magic,
    #[error("version {version} of the array format; versions 1 to 3 are supported")]
    Version { version: u8 },
    #[error("cut short: its header goes on to byte {end}, but it ends at byte {len} (did a download stop?)")]
    HeaderCut { end: u64, len: u64 },
    #[error("its header has {len} bytes; weightfs reads at most {MAX_HEADER}")]
    LongHeader { len: u64 },
    #[error("its header is not UTF-8")]
    NotUtf8,
    #[error("its header is not a Python literal: {reason} at character {at}")]
    Literal { at: usize, reason: &'static str },
    #[error("its header is not a dict")]
    NoDict,
    #[error("its header has no {key}")]
    NoKey { key: &'static str },
    #[error("its header has the unknown key {}", quote(key))]
    Key { key: String },
    #[error("fortran_order is neither True nor False")]
    Order,
    #[error("the shape is not a tuple of whole numbers")]
    Shape,
    #[error("dtype {} is not known", quote(descr))]
    Dtype { descr: String },
    #[error(
        "Python objects, which are stored as a pickle that weightfs does not run (load it with numpy.load(..., \
         allow_pickle=True) if you trust its origin, and save an array of numbers)"
    )]
    Objects,
    #[error("shape {shape} of {} has more than 2^63-1 elements or bytes", quote(descr))]
    Overflow { shape: String, descr: String },
    #[error("elements of {size} bytes in Fortran order or with reversed bytes; at most {ELEMENT_MAX} bytes are read")]
    Wide { size: u64 },
    #[error("{fault} (load it with numpy.load, and save it with numpy.savez, which does not compress)")]
    Packed { fault: String },
    #[error("{fault}")]
    Entry { fault: String },
    #[error("its name occurs more than once")]
    Duplicate,
    #[error("its data takes bytes {begin} to {end}, but the file ends at byte {len}")]
    Outside { begin: u64, end: u64, len: u64 },
}

impl From<zip::ZipError> for NumpyError {
    fn from(error: zip::ZipError) -> Self {
        match error {
            zip::ZipError::Missing(missing) => Self::Missing(missing),
            zip::ZipError::Fault(fault) => Self::Zip(fault),
        }
    }
}
