//! Finds what the official reader accepts in a header although the format does not define it.
//!
//! Source: `safetensors/README.md`, "Format": the header "MUST begin with a `{`", "MAY be trailing padded with
//! whitespace (0x20)", and "duplicate keys are disallowed".

use super::METADATA;
use crate::format::JsonText;
use crate::format::header::Header;
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::lint::{HeaderLint, LintKind};
use crate::text::quote;
use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::collections::HashSet;
use std::fmt;

/// Something in a header that other readers may reject.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
enum HeaderOddity {
    #[error("the header begins with {found:?}, not with '{{'")]
    Start { found: char },
    #[error("the header is padded with {found:?}, not with spaces")]
    Padding { found: char },
    #[error("__metadata__ is null, not an object")]
    NullMetadata,
    #[error("metadata key {} is repeated; readers take the last value", quote(key))]
    KeyTwice { key: String },
    #[error("tensor {}: its entry has the field {}, which the format does not have", quote(tensor), quote(field))]
    UnknownField { tensor: String, field: String },
    #[error("tensor {}: its entry is a list, not an object", quote(tensor))]
    List { tensor: String },
    #[error("tensor {}: its dtype is an object, not a name", quote(tensor))]
    DtypeObject { tensor: String },
}

impl HeaderOddity {
    /// The tensor or metadata key that is affected.
    fn subject(&self) -> Option<&str> {
        match self {
            Self::Start { .. } | Self::Padding { .. } | Self::NullMetadata => None,
            Self::KeyTwice { key: name }
            | Self::UnknownField { tensor: name, .. }
            | Self::List { tensor: name }
            | Self::DtypeObject { tensor: name } => Some(name),
        }
    }
}

/// Reports everything unusual in a header that was parsed from `input`.
pub fn lint_safetensors(
    header: &Header,
    input: &HeaderInput,
    found: &mut dyn FnMut(HeaderLint),
) -> Result<(), MissingRange> {
    let text = input.get(header.text().unwrap_or_default())?;
    // The parser rejects text that is not UTF-8.
    lint_text(str::from_utf8(text).unwrap_or_default(), &mut |oddity| {
        let (subject, message) = (oddity.subject().map(str::to_owned), oddity.to_string());
        found(HeaderLint { kind: LintKind::Unusual, subject, message });
    });
    Ok(())
}

/// Checks the text of a header, padding included.
fn lint_text(json: &str, found: &mut dyn FnMut(HeaderOddity)) {
    if let Some(first) = json.chars().next().filter(|first| *first != '{') {
        found(HeaderOddity::Start { found: first });
    }
    let padding = json.rfind('}').map_or("", |end| &json[end + 1..]);
    if let Some(char) = padding.chars().find(|char| *char != ' ') {
        found(HeaderOddity::Padding { found: char });
    }
    // The parser rejects invalid JSON.
    let _ = TopLevel(found).deserialize(&mut serde_json::Deserializer::from_str(json));
}

/// The callback for findings.
type Found<'f> = &'f mut dyn FnMut(HeaderOddity);

struct TopLevel<'f>(Found<'f>);

impl<'de> DeserializeSeed<'de> for TopLevel<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for TopLevel<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a header")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(JsonText(key)) = map.next_key()? {
            let part = if key == METADATA { LintedPart::Metadata } else { LintedPart::Entry(&key) };
            map.next_value_seed(LintedValue(&mut *self.0, part))?;
        }
        Ok(())
    }
}

/// A value of the header, and its meaning.
struct LintedValue<'f, 't>(Found<'f>, LintedPart<'t>);

/// The meaning of a value, with the name of the tensor.
#[derive(Clone, Copy)]
enum LintedPart<'t> {
    Metadata,
    Entry(&'t str),
    Dtype(&'t str),
}

impl<'de> DeserializeSeed<'de> for LintedValue<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for LintedValue<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value that the parser accepts")
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        (self.0)(HeaderOddity::NullMetadata);
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        if let LintedPart::Entry(tensor) = self.1 {
            (self.0)(HeaderOddity::List { tensor: tensor.to_owned() });
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Self(found, part) = self;
        let mut keys = HashSet::new();
        while let Some(JsonText(key)) = map.next_key()? {
            match part {
                LintedPart::Entry(tensor) if key == "dtype" => {
                    map.next_value_seed(LintedValue(&mut *found, LintedPart::Dtype(tensor)))?;
                    continue;
                }
                LintedPart::Entry(tensor) if key != "shape" && key != "data_offsets" => {
                    found(HeaderOddity::UnknownField { tensor: tensor.to_owned(), field: key.into_owned() });
                }
                LintedPart::Metadata => {
                    if !keys.insert(key.clone()) {
                        found(HeaderOddity::KeyTwice { key: key.into_owned() });
                    }
                }
                LintedPart::Entry(_) | LintedPart::Dtype(_) => {}
            }
            map.next_value::<IgnoredAny>()?;
        }
        if let LintedPart::Dtype(tensor) = part {
            found(HeaderOddity::DtypeObject { tensor: tensor.to_owned() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unusual_headers_are_reported() {
        let entry = r#""t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
        let cases = [
            (format!("{{{entry}}}   "), vec![]),
            (
                format!(r#"{{"__metadata__":{{"k":"1","a":"","k":"2","k":"3"}},{entry}}}"#),
                vec![r#"metadata key "k" is repeated; readers take the last value"#; 2],
            ),
            (format!(r#"{{"__metadata__":null,{entry}}}"#), vec!["__metadata__ is null, not an object"]),
            (format!(" {{{entry}}}"), vec!["the header begins with ' ', not with '{'"]),
            (format!("{{{entry}}} \n "), vec![r"the header is padded with '\n', not with spaces"]),
            (r#"{"t":["U8",[1],[0,1]]}"#.into(), vec![r#"tensor "t": its entry is a list, not an object"#]),
            (
                r#"{"t":{"dtype":{"U8":null},"shape":[1],"data_offsets":[0,1],"x":[{"dtype":{}}]}}"#.into(),
                vec![
                    r#"tensor "t": its dtype is an object, not a name"#,
                    r#"tensor "t": its entry has the field "x", which the format does not have"#,
                ],
            ),
        ];
        for (json, expected) in cases {
            let file = [&(json.len() as u64).to_le_bytes(), json.as_bytes(), &[0]].concat();
            assert!(safetensors::SafeTensors::deserialize(&file).is_ok(), "{json}");
            let mut found = Vec::new();
            lint_text(&json, &mut |oddity| found.push(oddity.to_string()));
            assert_eq!(found, expected, "{json}");
        }
    }
}
