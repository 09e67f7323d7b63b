//! Reads the JSON of a header. Accepts the same types of values as serde does for the official reader.
//!
//! Names and dimensions go from the JSON parser into the arenas of the header without an intermediate copy.

use super::parser::{FIELDS, HeaderParser};
use super::{DUPLICATE, LENGTH, MAX_HEADER, METADATA, count_bytes, not_json};
use crate::format::error::Error;
use crate::format::header::{ArenaName, Header, ParseMode};
use crate::format::input::HeaderInput;
use crate::text::quote;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt::{self, Display};
use std::iter;

/// Reads the header of a file.
///
/// Fails with [`Error::Missing`] until the header is in `input`. Allocation is bounded by the bytes in `input`, and
/// never by a length field.
pub fn parse_safetensors(input: &HeaderInput, mode: ParseMode) -> Result<Header, Error> {
    let file_len = input.len();
    let Some((length, _)) = input.get(0..LENGTH)?.split_first_chunk() else {
        return Err(Error::Broken(format!("too short: {file_len} bytes, but the header length alone takes 8 bytes")));
    };
    let len = u64::from_le_bytes(*length);
    if len > MAX_HEADER {
        return Err(Error::Broken(format!(
            "not safetensors: its first 8 bytes give a header of {len} bytes, and at most {MAX_HEADER} are allowed"
        )));
    }
    let json = LENGTH..LENGTH + len;
    if json.end > file_len {
        return Err(Error::Cut(format!(
            "truncated: the header takes bytes 8 to {}, but the file ends at byte {file_len}; at least {} missing (did \
             a download stop?)",
            json.end,
            count_bytes(json.end - file_len)
        )));
    }
    let text = str::from_utf8(input.get(json.clone())?).map_err(|error| {
        Error::Broken(format!(
            "the header is not UTF-8: byte {} of the file is wrong",
            LENGTH as usize + error.valid_up_to()
        ))
    })?;
    let mut parser = HeaderParser::new(mode, json.end, None);
    read_json(text, &mut parser)?;
    parser.finish(json, file_len)
}

pub(super) fn read_json(text: &str, parser: &mut HeaderParser) -> Result<(), Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let read = HeaderValue(parser, ValueRole::Top).deserialize(&mut reader).and_then(|()| reader.end());
    // If a rule is broken, the parser holds the error. Otherwise the JSON is not valid.
    read.map_err(|error| parser.error.take().unwrap_or_else(|| not_json(parser.entry_name(), &error)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueRole {
    Top,
    Metadata,
    MetadataValue,
    Entry,
    Dtype,
    /// The value in a dtype written as `{"U8": null}`, which serde accepts for an enum.
    DtypeContent,
    Shape,
    Dim,
    Offsets,
    Offset,
    /// The value of an unknown field. It must be valid JSON and is dropped.
    Ignored,
}

impl ValueRole {
    /// The name of the part in error messages, and the expected value.
    fn expectation(self) -> (&'static str, &'static str) {
        match self {
            Self::Top => ("the header", "a JSON object"),
            Self::Metadata => ("the value", "an object of strings"),
            Self::MetadataValue => ("the value", "a string"),
            Self::Entry => ("its entry", "an object with dtype, shape and data_offsets"),
            Self::Dtype => ("its dtype", "a name"),
            Self::DtypeContent => ("the value in its dtype object", "null"),
            Self::Shape => ("its shape", "a list of dimensions"),
            Self::Dim => ("a dimension of its shape", "a whole number from 0 to 2^64-1"),
            Self::Offsets => ("data_offsets", "a list of two numbers"),
            Self::Offset => ("a number in data_offsets", "a whole number from 0 to 2^64-1"),
            Self::Ignored => ("a value", "JSON"),
        }
    }
}

/// The roles of the values of [`FIELDS`].
const ROLES: [ValueRole; FIELDS.len()] = [ValueRole::Dtype, ValueRole::Shape, ValueRole::Offsets];

/// One value of the header. Its role decides how it is passed to the parser.
struct HeaderValue<'p, 'f>(&'p mut HeaderParser<'f>, ValueRole);

impl HeaderValue<'_, '_> {
    /// Fails unless the value is ignored. `found` is the value for messages.
    fn refuse<E: de::Error>(self, found: impl Display) -> Result<(), E> {
        match self.1 {
            ValueRole::Ignored => Ok(()),
            role => self.0.wrong_type(role, found),
        }
    }
}

impl<'de> DeserializeSeed<'de> for HeaderValue<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        // No typed method is used, because the official reader first reads values without a type: even in unknown
        // fields, numbers must be in range and strings must decode.
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for HeaderValue<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1.expectation().1)
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        match self.1 {
            ValueRole::Metadata => self.0.note(None, format!("{METADATA} is null, not an object")),
            ValueRole::DtypeContent => {}
            _ => return self.refuse("null"),
        }
        Ok(())
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        self.refuse(value)
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        self.refuse(value)
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<(), E> {
        self.refuse(format_args!("{value:?}"))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        match self.1 {
            ValueRole::Dim => self.0.builder.dim(value),
            ValueRole::Offset => {
                if let Some(offset) = self.0.offsets.get_mut(self.0.offsets_found) {
                    *offset = value;
                }
            }
            _ => return self.refuse(value),
        }
        Ok(())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<(), E> {
        match self.1 {
            ValueRole::Dtype => self.0.set_dtype(value),
            ValueRole::MetadataValue => {
                if let Some(key) = self.0.metadata_key.take() {
                    self.0.builder.metadata(key, value.into());
                }
            }
            ValueRole::Ignored => {}
            role => return self.0.wrong_type(role, format_args!("the string {}", quote(value))),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Self(parser, role) = self;
        let mut found = 0;
        match role {
            ValueRole::Shape => {
                parser.shape_start = parser.builder.next_dim();
                while seq.next_element_seed(HeaderValue(parser, ValueRole::Dim))?.is_some() {}
            }
            ValueRole::Offsets => {
                parser.offsets_found = 0;
                while seq.next_element_seed(HeaderValue(parser, ValueRole::Offset))?.is_some() {
                    parser.offsets_found += 1;
                }
                if parser.offsets_found != 2 {
                    parser.fault(format!("data_offsets has {} elements, not 2", parser.offsets_found))?;
                }
            }
            ValueRole::Entry => {
                for role in ROLES.into_iter().chain(iter::repeat(ValueRole::Ignored)) {
                    if seq.next_element_seed(HeaderValue(parser, role))?.is_none() {
                        break;
                    }
                    found += 1;
                }
                if found != FIELDS.len() {
                    parser.fault(format!("its entry has {found} elements, not {}", FIELDS.len()))?;
                }
                return parser.end_entry([true; 3], true);
            }
            role => {
                while seq.next_element_seed(HeaderValue(parser, ValueRole::Ignored))?.is_some() {}
                return HeaderValue(parser, role).refuse("a list");
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        match self.1 {
            ValueRole::Top => self.0.visit_header(map),
            ValueRole::Metadata => self.0.visit_metadata(map),
            ValueRole::Entry => self.0.visit_entry(map),
            ValueRole::Dtype => self.0.visit_dtype(map),
            role => {
                drain(self.0, map)?;
                HeaderValue(self.0, role).refuse("an object")
            }
        }
    }
}

impl HeaderParser<'_> {
    fn wrong_type<E: de::Error>(&mut self, role: ValueRole, found: impl Display) -> Result<(), E> {
        let (part, expected) = role.expectation();
        if role == ValueRole::Top {
            self.error = Some(Error::Broken(format!("{part} is {found}, not {expected}")));
            return Err(E::custom("rule broken"));
        }
        self.fault(format!("{part} is {found}, not {expected}"))
    }

    fn visit_header<'de, A: MapAccess<'de>>(&mut self, mut map: A) -> Result<(), A::Error> {
        loop {
            let builder = &mut self.builder;
            let key: Option<Option<ArenaName>> =
                map.next_key_seed(HeaderKey(|key: &str| (key != METADATA).then(|| builder.name(key))))?;
            match key {
                None => return Ok(()),
                Some(None) => {
                    if std::mem::replace(&mut self.seen_metadata, true) {
                        self.fault(DUPLICATE.to_owned())?;
                    }
                    map.next_value_seed(HeaderValue(self, ValueRole::Metadata))?;
                    self.metadata_key = None;
                }
                Some(Some(name)) => {
                    (self.entry, self.entry_fault) = (Some(name), None);
                    self.shape_start = self.builder.next_dim();
                    map.next_value_seed(HeaderValue(self, ValueRole::Entry))?;
                    self.drop_entry();
                }
            }
        }
    }

    fn visit_metadata<'de, A: MapAccess<'de>>(&mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(HeaderKey(str::to_owned))? {
            self.begin_value(key);
            map.next_value_seed(HeaderValue(self, ValueRole::MetadataValue))?;
        }
        Ok(())
    }

    fn visit_entry<'de, A: MapAccess<'de>>(&mut self, mut map: A) -> Result<(), A::Error> {
        let mut seen = [false; 3];
        while let Some(field) = map.next_key_seed(HeaderKey(|key: &str| self.field(key)))? {
            let Some(field) = field else {
                map.next_value_seed(HeaderValue(self, ValueRole::Ignored))?;
                continue;
            };
            if std::mem::replace(&mut seen[field], true) {
                self.fault(format!("its entry gives {} twice", FIELDS[field]))?;
            }
            map.next_value_seed(HeaderValue(self, ROLES[field]))?;
        }
        self.end_entry(seen, false)
    }

    /// The number of a field of an entry in [`FIELDS`].
    fn field(&mut self, key: &str) -> Option<usize> {
        let field = FIELDS.iter().position(|field| *field == key);
        if field.is_none() {
            self.note_entry(|| format!("its entry has the field {}, which the format does not have", quote(key)));
        }
        field
    }

    /// serde accepts `{"U8": null}` for a variant of an enum, like the string `"U8"`.
    fn visit_dtype<'de, A: MapAccess<'de>>(&mut self, mut map: A) -> Result<(), A::Error> {
        if let Some(name) = map.next_key_seed(HeaderKey(str::to_owned))? {
            map.next_value_seed(HeaderValue(self, ValueRole::DtypeContent))?;
            if drain(self, map)? == 0 {
                self.set_dtype(&name);
                self.note_entry(|| "its dtype is an object, not a name".to_owned());
                return Ok(());
            }
        }
        self.wrong_type(ValueRole::Dtype, "an object")
    }
}

/// Reads the rest of an object and drops it. Returns the number of fields.
fn drain<'de, A: MapAccess<'de>>(parser: &mut HeaderParser, mut map: A) -> Result<usize, A::Error> {
    let mut found = 0;
    while map.next_key_seed(HeaderKey(|_: &str| ()))?.is_some() {
        map.next_value_seed(HeaderValue(parser, ValueRole::Ignored))?;
        found += 1;
    }
    Ok(found)
}

/// The key of an object. The function gets the string of the JSON parser, without a copy.
struct HeaderKey<F>(F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for HeaderKey<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for HeaderKey<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<T, E> {
        Ok((self.0)(key))
    }
}
