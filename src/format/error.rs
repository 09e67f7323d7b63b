//! The error of a file that has no usable header.

use super::input::MissingRange;
use crate::text::quote;

/// The reason why a file has no usable header. The messages have the expected and the actual numbers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a fault of the file: add this range to the input and parse again.
    #[error(transparent)]
    Missing(#[from] MissingRange),
    /// The file is of a format that weightfs does not read.
    #[error("not a model but {0}")]
    Foreign(String),
    /// The file ends before its header or its data does.
    #[error("{0}")]
    Cut(String),
    /// The file exceeds a limit of weightfs.
    #[error("{0}")]
    Limit(String),
    /// A part of a sound file that weightfs cannot show.
    #[error("{0}")]
    Unsupported(String),
    #[error("tensor {}: {fault}", quote(name))]
    Tensor { name: String, fault: String },
    #[error("metadata key {}: {fault}", quote(key))]
    Key { key: String, fault: String },
    #[error("{0}")]
    Broken(String),
    /// The metadata cannot be changed in this way.
    #[error("{0}")]
    Refused(String),
}

impl Error {
    /// A file of `len` bytes whose data ends at byte `end`.
    pub(super) fn data_cut(end: u64, len: u64) -> Self {
        Self::Cut(format!(
            "truncated: the data ends at byte {end}, but the file ends at byte {len}; {} bytes missing (did a download \
             stop?)",
            end - len
        ))
    }

    /// Puts the message about a part of a file into another error, such as one that names the tensor.
    pub(super) fn map_part(self, into: impl FnOnce(String) -> Self) -> Self {
        match self {
            Self::Broken(fault) | Self::Unsupported(fault) => into(fault),
            other => other,
        }
    }

    /// The message about a part of a file, unless more of the file is needed.
    pub(super) fn fault(self) -> Result<String, MissingRange> {
        match self {
            Self::Missing(missing) => Err(missing),
            other => Ok(other.to_string()),
        }
    }

    /// The tensor that breaks a rule, if one does.
    pub fn tensor(&self) -> Option<&str> {
        match self {
            Self::Tensor { name, .. } => Some(name),
            _ => None,
        }
    }
}

/// Why the lenient parser leaves out a metadata key. Its name does not say that it is not a tensor.
pub(super) fn key_reason(fault: &str) -> String {
    format!("metadata key: {fault}")
}

impl From<String> for Error {
    /// A broken rule, as the end of a message.
    fn from(fault: String) -> Self {
        Self::Broken(fault)
    }
}
