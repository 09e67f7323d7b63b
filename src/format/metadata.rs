//! Values of metadata.

use crate::text::write_json_string;
use serde::ser::{self, Serialize, Serializer};
use serde_json::value::RawValue;
use std::fmt;
use std::io::{self, Write};

/// The value of a metadata key: a text, and the type that it has in the file.
///
/// A string is its text. A number is its decimal text, a boolean `true` or `false`. An array has one JSON value per
/// line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetadataValue {
    text: String,
    /// The bytes of a string that is not valid UTF-8. `text` then has replacement characters.
    exact: Option<Box<[u8]>>,
    scalar: ScalarType,
    is_array: bool,
}

/// A type of single values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of Rust's types")]
pub enum ScalarType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    U64,
    I64,
    F64,
}

impl ScalarType {
    /// Every type with its name, and its name in the documentation of GGUF.
    const NAMES: [(Self, &'static str, &'static str); 12] = [
        (Self::U8, "u8", "uint8"),
        (Self::I8, "i8", "int8"),
        (Self::U16, "u16", "uint16"),
        (Self::I16, "i16", "int16"),
        (Self::U32, "u32", "uint32"),
        (Self::I32, "i32", "int32"),
        (Self::F32, "f32", "float32"),
        (Self::Bool, "bool", "bool"),
        (Self::String, "string", "string"),
        (Self::U64, "u64", "uint64"),
        (Self::I64, "i64", "int64"),
        (Self::F64, "f64", "float64"),
    ];

    /// The name: `u32`.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(scalar, ..)| *scalar == self).map_or("", |(_, name, _)| name)
    }

    /// Whether it is the string type.
    pub fn is_string(self) -> bool {
        self == Self::String
    }

    /// Whether it is an integer type.
    pub fn is_integer(self) -> bool {
        !matches!(self, Self::F32 | Self::F64 | Self::Bool | Self::String)
    }

    /// Whether it is a floating-point type.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

/// The type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueType {
    /// The type, or the type of an array's elements.
    pub scalar: ScalarType,
    /// Whether it is an array.
    pub is_array: bool,
}

impl ValueType {
    /// Reads a type: `u32` or `uint32`, and `string[]` for an array of strings.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, is_array) = text.strip_suffix("[]").map_or((text, false), |name| (name, true));
        let found = ScalarType::NAMES.iter().find(|(_, short, long)| [*short, *long].contains(&name));
        found.map(|(scalar, ..)| Self { scalar: *scalar, is_array })
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.scalar.name(), if self.is_array { "[]" } else { "" })
    }
}

impl MetadataValue {
    /// A string.
    pub fn string(text: impl Into<String>) -> Self {
        Self { text: text.into(), exact: None, scalar: ScalarType::String, is_array: false }
    }

    /// A string of these bytes, valid UTF-8 or not.
    pub fn bytes_of(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let exact = (text.as_bytes() != bytes).then(|| bytes.into());
        Self { exact, ..Self::string(text) }
    }

    /// A number or a boolean with this text.
    pub fn scalar(scalar: ScalarType, text: String) -> Self {
        Self { text, exact: None, scalar, is_array: false }
    }

    /// An array. `lines` has one JSON value per line; each line ends with a newline.
    pub fn array(scalar: ScalarType, lines: String) -> Self {
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
    pub fn kind(&self) -> ScalarType {
        self.scalar
    }

    /// The type.
    pub fn value_type(&self) -> ValueType {
        ValueType { scalar: self.scalar, is_array: self.is_array }
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
            ScalarType::String => write_json_string(&self.text, out),
            // "nan", "inf" and "-inf".
            scalar if scalar.is_float() && self.text.contains('n') => out.write_all(b"null"),
            _ => out.write_all(self.text.as_bytes()),
        }
    }
}

impl From<&str> for MetadataValue {
    fn from(text: &str) -> Self {
        Self::string(text)
    }
}

impl Serialize for MetadataValue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.scalar == ScalarType::String && !self.is_array {
            return serializer.serialize_str(&self.text);
        }
        let mut json = Vec::new();
        self.write_json(&mut json).map_err(ser::Error::custom)?;
        let json = String::from_utf8(json).map_err(ser::Error::custom)?;
        RawValue::from_string(json).map_err(ser::Error::custom)?.serialize(serializer)
    }
}
