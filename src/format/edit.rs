//! Changes of metadata: what is to be changed, and the beginning of a file after the change.

use super::error::Error;
use super::gguf;
use super::header::Header;
use super::metadata::ValueType;
use super::safetensors;
use crate::text::quote;

/// A change of the metadata of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetadataEdit {
    /// Sets keys.
    Set(Vec<Assignment>),
    /// Removes keys. Keys that the file does not have are ignored.
    Remove(Vec<String>),
    /// Removes all keys.
    Clear,
}

/// A key that gets a value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    /// The key.
    pub key: String,
    /// The type. `None` keeps the type of an existing key. Ignored by formats whose values are strings.
    pub value_type: Option<ValueType>,
    /// The value in the form of [`super::MetadataValue::text`]; for an array, also as a JSON array.
    pub text: String,
}

/// The beginning of a changed file, as the editor of a format returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewHead {
    /// The bytes of the changed file up to its data.
    pub bytes: Vec<u8>,
    /// The start of the data in the unchanged file, in bytes.
    pub data_start: u64,
    /// Messages for the user about the change, one line each.
    pub remarks: Vec<String>,
}

/// The beginning of a changed file, and its header.
#[derive(Debug)]
pub struct EditedHead {
    /// The beginning of the file.
    pub head: NewHead,
    /// The header. Its tensors are those of the unchanged file.
    pub header: Header,
}

/// Why metadata cannot be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EditError {
    /// The changed file would break a rule of its format.
    #[error(transparent)]
    Format(#[from] Error),
    /// A text is not a value of its type.
    #[error("{} has the type {value_type}: {}{fault}", quote(key), of_element(value_type, *element))]
    Value {
        /// The key.
        key: String,
        /// The type.
        value_type: ValueType,
        /// The element of an array that is at fault, counted from 0.
        element: Option<u64>,
        /// The fault.
        fault: ValueFault,
    },
    /// A key is too long.
    #[error("the key {} has {len} bytes, and at most {most} are allowed", quote(key))]
    LongKey {
        /// The key.
        key: String,
        /// Its length in bytes.
        len: usize,
        /// The limit in bytes.
        most: usize,
    },
    /// The format has no metadata, or its metadata cannot be changed.
    #[error(
        "metadata of {format} files cannot be changed (`weightfs export FILE OUT.safetensors` writes a copy whose metadata \
         can be changed)"
    )]
    Fixed {
        /// The name of the format.
        format: &'static str,
    },
    /// The data would have to move.
    #[error("{} cannot change from {old} to {new}: the tensors are stored at multiples of {old} bytes", quote(key))]
    Alignment {
        /// The key of the alignment.
        key: String,
        /// The alignment of the data, in bytes.
        old: u64,
        /// The alignment that the key would give.
        new: u64,
    },
    /// The changed header does not describe the tensors of the file. Only a bug in an editor causes this.
    #[error("the changed header does not describe the same tensors")]
    Tensors,
}

impl From<safetensors::SafetensorsError> for EditError {
    fn from(error: safetensors::SafetensorsError) -> Self {
        Self::Format(error.into())
    }
}

impl From<gguf::GgufError> for EditError {
    fn from(error: gguf::GgufError) -> Self {
        Self::Format(error.into())
    }
}

fn of_element(value_type: &ValueType, element: Option<u64>) -> String {
    match element {
        Some(element) if value_type.is_array => format!("element {element}: "),
        _ => String::new(),
    }
}

/// Why a text is not a value of its type.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ValueFault {
    /// Not an integer, or out of range.
    #[error("{} is not a whole number from {min} to {max}", quote(text))]
    Integer {
        /// The text.
        text: String,
        /// The smallest number.
        min: i128,
        /// The largest number.
        max: i128,
    },
    /// Not a number.
    #[error("{} is not a number", quote(text))]
    Float {
        /// The text.
        text: String,
    },
    /// Larger than the largest number of the type.
    #[error("{} is too large", quote(text))]
    Large {
        /// The text.
        text: String,
    },
    /// Neither `true` nor `false`.
    #[error("{} is neither true nor false", quote(text))]
    Bool {
        /// The text.
        text: String,
    },
    /// An element is not a string in JSON.
    #[error("{} is not a JSON string", quote(text))]
    String {
        /// The text.
        text: String,
    },
    /// A string that is not valid UTF-8 has moved, and others have the same text.
    #[error(
        "{} stands for several different strings that are not valid UTF-8; they are kept only if no element before \
         them changes, or if the array keeps its length",
        quote(text)
    )]
    Alike {
        /// The text.
        text: String,
    },
    /// The array is not valid JSON.
    #[error("not a JSON array: {reason}")]
    Array {
        /// The reason of the JSON parser.
        reason: String,
    },
}
