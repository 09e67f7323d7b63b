//! Values of metadata.

use crate::text::write_json_string;
use serde::ser::{self, Serialize, Serializer};
use serde_json::value::RawValue;
use std::io::{self, Write};

/// The value of a metadata key: a text, and the type that it has in the file.
///
/// A string is its text. A number is its decimal text, a boolean `true` or `false`. An array has one JSON value per
/// line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    text: String,
    /// The bytes of a string that is not valid UTF-8. `text` then has replacement characters.
    exact: Option<Box<[u8]>>,
    scalar: Scalar,
    is_array: bool,
}

/// A type of single values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    /// A string.
    String,
    /// `true` or `false`.
    Bool,
    /// A signed or unsigned integer of at most 64 bits.
    Integer,
    /// A float32 number.
    F32,
    /// A float64 number.
    F64,
}

impl Value {
    /// A string.
    pub fn string(text: impl Into<String>) -> Self {
        Self { text: text.into(), exact: None, scalar: Scalar::String, is_array: false }
    }

    /// A string of these bytes, valid UTF-8 or not.
    pub fn bytes_of(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let exact = (text.as_bytes() != bytes).then(|| bytes.into());
        Self { exact, ..Self::string(text) }
    }

    /// A number or a boolean with this text.
    pub fn scalar(scalar: Scalar, text: String) -> Self {
        Self { text, exact: None, scalar, is_array: false }
    }

    /// An array. `lines` has one JSON value per line; each line ends with a newline.
    pub fn array(scalar: Scalar, lines: String) -> Self {
        Self { text: lines, exact: None, scalar, is_array: true }
    }

    /// The text. In a string that is not valid UTF-8, replacement characters stand for the invalid bytes.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The exact bytes of a string, otherwise the text.
    pub fn bytes(&self) -> &[u8] {
        self.exact.as_deref().unwrap_or(self.text.as_bytes())
    }

    /// The type, or the type of an array's elements.
    pub fn kind(&self) -> Scalar {
        self.scalar
    }

    /// Whether it is an array.
    pub fn is_array(&self) -> bool {
        self.is_array
    }

    /// Writes the value as JSON. Numbers that JSON does not have, such as NaN, become `null`.
    pub fn write_json(&self, out: &mut dyn Write) -> io::Result<()> {
        match self.scalar {
            _ if self.is_array => {
                out.write_all(b"[")?;
                for (at, line) in self.text.lines().enumerate() {
                    out.write_all(if at == 0 { b"" } else { b", " })?;
                    out.write_all(line.as_bytes())?;
                }
                out.write_all(b"]")
            }
            Scalar::String => write_json_string(&self.text, out),
            // "nan", "inf" and "-inf".
            Scalar::F32 | Scalar::F64 if self.text.contains('n') => out.write_all(b"null"),
            _ => out.write_all(self.text.as_bytes()),
        }
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::string(text)
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.scalar == Scalar::String && !self.is_array {
            return serializer.serialize_str(&self.text);
        }
        let mut json = Vec::new();
        self.write_json(&mut json).map_err(ser::Error::custom)?;
        let json = String::from_utf8(json).map_err(ser::Error::custom)?;
        RawValue::from_string(json).map_err(ser::Error::custom)?.serialize(serializer)
    }
}
