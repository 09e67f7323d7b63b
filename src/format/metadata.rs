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

/// Defines the types of single values with their names, their names in the documentation of GGUF, their numbers in GGUF
/// files, and their sizes there in bytes; 0 for strings, which have a length.
macro_rules! scalar_types {
    ($($scalar:ident $name:literal $gguf:literal $number:literal $size:literal;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum ScalarType {
            $($scalar,)*
        }

        impl ScalarType {
            const ROWS: &'static [(Self, &'static str, &'static str, u32, u64)] =
                &[$((Self::$scalar, $name, $gguf, $number, $size)),*];
        }
    };
}

// Source: `gguf_metadata_value_type` in `docs/gguf.md` of ggml.
scalar_types! {
    U8 "u8" "uint8" 0 1;
    I8 "i8" "int8" 1 1;
    U16 "u16" "uint16" 2 2;
    I16 "i16" "int16" 3 2;
    U32 "u32" "uint32" 4 4;
    I32 "i32" "int32" 5 4;
    F32 "f32" "float32" 6 4;
    Bool "bool" "bool" 7 1;
    String "string" "string" 8 0;
    U64 "u64" "uint64" 10 8;
    I64 "i64" "int64" 11 8;
    F64 "f64" "float64" 12 8;
}

impl ScalarType {
    pub fn name(self) -> &'static str {
        Self::ROWS[self as usize].1
    }

    pub(super) fn gguf_number(self) -> u32 {
        Self::ROWS[self as usize].3
    }

    pub(super) fn gguf_size(self) -> u64 {
        Self::ROWS[self as usize].4
    }

    pub(super) fn from_gguf(number: u32) -> Option<Self> {
        Self::ROWS.iter().find(|row| row.3 == number).map(|row| row.0)
    }

    pub fn is_string(self) -> bool {
        self == Self::String
    }

    pub fn is_integer(self) -> bool {
        !matches!(self, Self::F32 | Self::F64 | Self::Bool | Self::String)
    }

    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F64)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ValueType {
    pub scalar: ScalarType,
    pub is_array: bool,
}

impl ValueType {
    /// Reads a type: `u32` or `uint32`, and `string[]` for an array of strings.
    pub fn parse(text: &str) -> Option<Self> {
        let (name, is_array) = text.strip_suffix("[]").map_or((text, false), |name| (name, true));
        let found = ScalarType::ROWS.iter().find(|(_, short, long, ..)| [*short, *long].contains(&name));
        found.map(|(scalar, ..)| Self { scalar: *scalar, is_array })
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.scalar.name(), if self.is_array { "[]" } else { "" })
    }
}

impl MetadataValue {
    pub fn string(text: impl Into<String>) -> Self {
        Self { text: text.into(), exact: None, scalar: ScalarType::String, is_array: false }
    }

    /// A string of these bytes, valid UTF-8 or not.
    pub fn bytes_of(bytes: &[u8]) -> Self {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let exact = (text.as_bytes() != bytes).then(|| bytes.into());
        Self { exact, ..Self::string(text) }
    }

    pub fn scalar(scalar: ScalarType, text: String) -> Self {
        Self { text, exact: None, scalar, is_array: false }
    }

    /// An array. `lines` has one JSON value per line; each line ends with a newline.
    pub fn array(scalar: ScalarType, lines: Vec<u8>) -> Self {
        let text = String::from_utf8(lines).unwrap_or_default();
        Self { text, exact: None, scalar, is_array: true }
    }

    /// The text. In a string that is not valid UTF-8, replacement characters stand for the invalid bytes.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The exact bytes of a string, otherwise the text.
    pub fn bytes(&self) -> &[u8] {
        self.exact.as_deref().unwrap_or(self.text.as_bytes())
    }

    pub fn kind(&self) -> ScalarType {
        self.scalar
    }

    pub fn value_type(&self) -> ValueType {
        ValueType { scalar: self.scalar, is_array: self.is_array }
    }

    pub fn is_array(&self) -> bool {
        self.is_array
    }

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
            scalar => out.write_all(json_text(scalar, &self.text).as_bytes()),
        }
    }
}

/// The text of a floating-point number: `nan`, `inf`, `-inf`, or as many digits as are needed to read the same number
/// again.
pub(super) fn float_text<T: Copy + Into<f64> + Serialize>(number: T) -> String {
    match number.into() {
        wide if wide.is_finite() => serde_json::to_string(&number).unwrap_or_default(),
        wide if wide.is_nan() => "nan".to_owned(),
        wide => wide.to_string(),
    }
}

/// Adds a value to the lines of [`MetadataValue::array`].
pub(super) fn push_line(scalar: ScalarType, text: &str, lines: &mut Vec<u8>) {
    match scalar {
        // Writing to a vector cannot fail.
        ScalarType::String => drop(write_json_string(text, lines)),
        scalar => lines.extend(json_text(scalar, text).as_bytes()),
    }
    lines.push(b'\n');
}

/// The text of a number or a boolean as JSON, which has no NaN and no infinity: they become `null`.
pub(super) fn json_text(scalar: ScalarType, text: &str) -> &str {
    if scalar.is_float() && text.contains('n') { "null" } else { text }
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
