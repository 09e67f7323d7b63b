//! Changes of metadata: what is to be changed, and the beginning of a file after the change.

use super::metadata::ValueType;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MetadataEdit {
    Set(Vec<Assignment>),
    /// Removes keys. Keys that the file does not have are ignored.
    Remove(Vec<String>),
    Clear,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Assignment {
    pub key: String,
    /// The type. `None` keeps the type of an existing key. Ignored by formats whose values are strings.
    pub value_type: Option<ValueType>,
    /// The value in the form of [`super::MetadataValue::text`]; for an array, also as a JSON array.
    pub text: String,
}

/// The beginning of a changed file, as the editor of a format returns it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewHead {
    pub bytes: Vec<u8>,
    /// The start of the data in the unchanged file, in bytes.
    pub data_start: u64,
    /// Messages for the user about the change, one line each.
    pub remarks: Vec<String>,
}
