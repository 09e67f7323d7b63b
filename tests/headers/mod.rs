//! Headers for tests: generates valid and broken headers from arbitrary bytes, and compares with the official reader.

pub mod official;

use arbitrary::{Result, Unstructured};
use std::borrow::Cow;

/// Unexpected JSON values, including unusual forms that serde accepts and invalid JSON.
const ODD_VALUES: &[&str] = &[
    "null",
    "true",
    "0",
    "-0",
    "-1",
    "1.0",
    "1e2",
    "1e999999",
    "-1e999999",
    "18446744073709551615",
    "18446744073709551616",
    "9223372036854775808",
    "\"\"",
    "\"U8\"",
    "\"x\"",
    r#""\u0041""#,
    r#""\ud800""#,
    r#""\ud83d\ude00""#,
    "\"\t\"",
    r#""\x""#,
    "[]",
    "{}",
    "[0]",
    "[0,1]",
    "[0,1,2]",
    "[[0,1]]",
    r#"{"a":1}"#,
    r#"{"U8":null}"#,
    r#"{"U8":{}}"#,
    r#"{"U8":[]}"#,
    r#"{"U8":1}"#,
    r#"{"U8":null,"U8":null}"#,
    r#"{"I4":null}"#,
    r#"{"\u0055\u0038":null}"#,
    r#"["U8",[2],[0,2]]"#,
    r#"{"dtype":"U8","shape":[],"data_offsets":[0,1]}"#,
    "01",
    "+1",
    ".5",
    "1.",
    "NaN",
    "[1,]",
    "{,}",
    "'a'",
    "tru",
];

/// Names as written in JSON.
const ODD_NAMES: &[&str] = &[
    "",
    ".",
    "..",
    "/",
    "a/b",
    "a.b",
    "a",
    r"\u0061",
    r"\u0000",
    r"\ud83d\ude00",
    r"\ud800",
    "__metadata__",
    r"\u005f_metadata__",
    "日本",
    "dtype",
    "a\u{7f}",
    r"\n",
    "\n",
];

/// Dtypes and their widths in bits. The official crate does not support the last four.
const DTYPES: &[(&str, u64)] = &[
    ("U8", 8),
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
    ("I4", 4),
    ("U4", 4),
    ("I2", 2),
    ("f32", 32),
];

const HUGE_DIMS: &[u64] = &[8, 1 << 31, 1 << 32, 1 << 60, 1 << 61, 1 << 63, u64::MAX];

/// Whitespace before and after a header, and characters that are not whitespace in JSON.
const SPACES: &[&str] = &["", "", "", " ", "\n", "\t", "\r", "   ", "\0", "\u{feff}"];

/// True in one of `times` cases; false if no bytes are left.
pub fn once_in(times: u32, bytes: &mut Unstructured) -> Result<bool> {
    Ok(bytes.int_in_range(1..=times)? == times)
}

/// An unexpected JSON value, or one that is nested about as deeply as serde_json allows.
pub fn odd_value(bytes: &mut Unstructured) -> Result<Cow<'static, str>> {
    if !once_in(13, bytes)? {
        return Ok((*bytes.choose(ODD_VALUES)?).into());
    }
    // The recursion limit of serde_json is 128.
    let depth = bytes.int_in_range(120..=131)?;
    let (open, inner, close) = if bytes.arbitrary()? { ("[", "", "]") } else { (r#"{"a":"#, "1", "}") };
    Ok([&open.repeat(depth), inner, &close.repeat(depth)].concat().into())
}

fn name(bytes: &mut Unstructured) -> Result<Cow<'static, str>> {
    match bytes.int_in_range(0..=15)? {
        0..=12 => {}
        13..=14 => return Ok((*bytes.choose(ODD_NAMES)?).into()),
        // Around the maximum length of a file name.
        _ => return Ok(bytes.choose(&["a", "/", "重", "b.", "a%"])?.repeat(bytes.int_in_range(60..=260)?).into()),
    }
    let mut name = String::new();
    for part in 0..=bytes.int_in_range(0..=2)? {
        if part > 0 {
            name.push('.');
        }
        for _ in 0..=bytes.int_in_range(0..=1)? {
            name.push(char::from(*bytes.choose(b"abcdefghijklmnop0123456789")?));
        }
    }
    Ok(name.into())
}

/// An entry of a header. Its size and offsets are computed to match; `form` may then break something.
struct Entry {
    name: Cow<'static, str>,
    dtype: (&'static str, u64),
    shape: Vec<u64>,
    form: Form,
    extra: Option<Cow<'static, str>>,
}

enum Form {
    Object,
    Array,
    EnumDtype,
    /// The field with this index has another value.
    Odd(usize, Cow<'static, str>),
    /// The whole entry is another value.
    OddEntry(Cow<'static, str>),
    Missing(usize),
    Twice(usize),
    FourElements,
    /// The begin and end offsets are moved by these numbers of bytes.
    Moved(i64, i64),
}

impl Form {
    fn new(bytes: &mut Unstructured) -> Result<Self> {
        Ok(match bytes.int_in_range(0..=36)? {
            0..=23 => Self::Object,
            24..=26 => Self::Array,
            27..=28 => Self::EnumDtype,
            29..=30 => Self::Odd(bytes.choose_index(3)?, odd_value(bytes)?),
            31 => Self::OddEntry(odd_value(bytes)?),
            32 => Self::Missing(bytes.choose_index(3)?),
            33 => Self::Twice(bytes.choose_index(3)?),
            34 => Self::FourElements,
            _ => Self::Moved(bytes.int_in_range(-3..=3)?, bytes.int_in_range(-3..=3)?),
        })
    }
}

impl Entry {
    fn new(bytes: &mut Unstructured) -> Result<Self> {
        let (name, dtype) = (name(bytes)?, *bytes.choose(DTYPES)?);
        let mut shape = Vec::new();
        for _ in 0..bytes.int_in_range(0..=3)? {
            let huge = once_in(21, bytes)?;
            shape.push(if huge { *bytes.choose(HUGE_DIMS)? } else { bytes.int_in_range(0..=4)? });
        }
        let form = Form::new(bytes)?;
        let extra = if once_in(10, bytes)? { Some(odd_value(bytes)?) } else { None };
        Ok(Self { name, dtype, shape, form, extra })
    }

    /// The entry as JSON and the offset at which its data ends.
    fn render(&self, begin: u64) -> (String, u64) {
        let bits = self.shape.iter().try_fold(self.dtype.1, |bits, dim| bits.checked_mul(*dim)).unwrap_or(8);
        let end = begin.saturating_add(bits / 8);
        let offsets = match self.form {
            Form::Moved(by, to) => [begin.saturating_add_signed(by), end.saturating_add_signed(to)],
            _ => [begin, end],
        };
        let mut values =
            [format!("{:?}", self.dtype.0), format!("{:?}", self.shape), format!("[{},{}]", offsets[0], offsets[1])];
        if matches!(self.form, Form::EnumDtype) {
            values[0] = format!("{{{:?}:null}}", self.dtype.0);
        }
        if let Form::Odd(field, value) = &self.form {
            values[*field] = value.to_string();
        }
        let mut fields: Vec<String> = ["dtype", "shape", "data_offsets"]
            .iter()
            .zip(&values)
            .map(|(key, value)| format!("{key:?}:{value}"))
            .collect();
        match self.form {
            Form::Missing(field) => drop(fields.remove(field)),
            Form::Twice(field) => fields.push(fields[field].clone()),
            _ => {}
        }
        if let Some(extra) = &self.extra {
            fields.insert(0, format!("\"extra\":{extra}"));
        }
        let value = match &self.form {
            Form::Array => format!("[{}]", values.join(",")),
            Form::FourElements => format!("[{},0]", values.join(",")),
            Form::OddEntry(value) => value.to_string(),
            _ => format!("{{{}}}", fields.join(",")),
        };
        (format!("\"{}\":{value}", self.name), end)
    }
}

/// A header and the number of bytes of data after it. The number is sometimes off by up to 2.
pub fn header(bytes: &mut Unstructured) -> Result<(Vec<u8>, usize)> {
    let metadata = match bytes.int_in_range(0..=9)? {
        0..=5 => None,
        6..=7 => Some(r#"{"format":"pt","b":"\u0000","a":"data:image/png;base64,eHl6","format":"np"}"#.into()),
        8 => Some(odd_value(bytes)?),
        _ => Some(format!("{{\"k\":{}}}", odd_value(bytes)?).into()),
    };
    let (mut end, mut members) = (0, Vec::new());
    for _ in 0..bytes.int_in_range(0..=5)? {
        let (member, next) = Entry::new(bytes)?.render(end);
        members.push(member);
        end = next;
    }
    if !members.is_empty() {
        // Entries need not be in the order of the data.
        let by = bytes.choose_index(members.len())?;
        members.rotate_left(by);
    }
    if let Some(metadata) = metadata {
        members.insert(bytes.choose_index(members.len() + 1)?, format!("\"__metadata__\":{metadata}"));
    }
    let (before, after) = (bytes.choose(SPACES)?, bytes.choose(SPACES)?);
    let off = if once_in(13, bytes)? { bytes.int_in_range(-2..=2)? } else { 0 };
    let data = if end < 1 << 20 { end as usize } else { 16 };
    Ok((format!("{before}{{{}}}{after}", members.join(",")).into_bytes(), data.saturating_add_signed(off)))
}

/// Inserts, replaces or removes one byte anywhere in the text.
pub fn mutate(bytes: &mut Unstructured, text: &mut Vec<u8>) -> Result<()> {
    let likely = bytes.arbitrary()?;
    let byte = if likely { *bytes.choose(b"{}[]\",:0123456789-.eE\\ \n\tutfn_")? } else { bytes.arbitrary()? };
    match (bytes.int_in_range(0..=2)?, text.len()) {
        (0, _) | (_, 0) => text.insert(bytes.choose_index(text.len() + 1)?, byte),
        (1, len) => text[bytes.choose_index(len)?] = byte,
        (_, len) => drop(text.remove(bytes.choose_index(len)?)),
    }
    Ok(())
}
