//! Reading the JSON of a header: knows which value may stand where, as serde has it for the official reader, and writes into
//! the parser's arenas without a copy in between.

use super::{Error, Fault, Parser};
use crate::text::quote;
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;

/// Reads a whole header; where a rule is broken the parser holds the error, else the JSON is to blame.
pub(super) fn read(text: &str, parser: &mut Parser) -> serde_json::Result<()> {
    let mut json = serde_json::Deserializer::from_str(text);
    Value(parser, Role::Top).deserialize(&mut json)?;
    json.end()
}

/// Which value of the header is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Top,
    Metadata,
    MetadataValue,
    Entry,
    Dtype,
    /// What stands behind the name in a dtype written `{"U8": null}`, which serde takes for an enum.
    DtypeContent,
    Shape,
    Dim,
    Offsets,
    Offset,
    /// A field that nobody knows: its value must be valid JSON and is dropped.
    Ignored,
}

impl Role {
    /// The part as an error calls it, and what it should be.
    fn expectation(self) -> (&'static str, &'static str) {
        match self {
            Self::Top => ("the header", "a JSON object"),
            Self::Metadata => ("the value", "an object of strings"),
            Self::MetadataValue => ("the value", "a string"),
            Self::Entry => ("its entry", "an object with dtype, shape and data_offsets"),
            Self::Dtype => ("its dtype", "a name"),
            Self::DtypeContent => ("the value behind its dtype", "null"),
            Self::Shape => ("its shape", "a list of dimensions"),
            Self::Dim => ("a dimension of its shape", "a whole number from 0 to 2^64-1"),
            Self::Offsets => ("data_offsets", "a list of two numbers"),
            Self::Offset => ("a number in data_offsets", "a whole number from 0 to 2^64-1"),
            Self::Ignored => ("a value", "JSON"),
        }
    }
}

/// The three fields of an entry, in the order in which the array form gives them.
pub(super) const FIELDS: [(&str, Role); 3] =
    [("dtype", Role::Dtype), ("shape", Role::Shape), ("data_offsets", Role::Offsets)];

/// One value of the header, written to the parser in the way that its role asks for.
struct Value<'p>(&'p mut Parser, Role);

impl<'de> DeserializeSeed<'de> for Value<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        // Never by a typed method: the official reader takes values in without a type first, which decides what it
        // accepts (numbers must fit, strings must decode, even in fields that it does not know).
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Value<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.1.expectation().1)
    }

    fn visit_unit<E: de::Error>(self) -> Result<(), E> {
        match self.1 {
            Role::Metadata | Role::DtypeContent | Role::Ignored => Ok(()),
            role => self.0.wrong_type(role, "null"),
        }
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<(), E> {
        match self.1 {
            Role::Ignored => Ok(()),
            role => self.0.wrong_type(role, value.to_string()),
        }
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<(), E> {
        match self.1 {
            Role::Ignored => Ok(()),
            role => self.0.wrong_type(role, value.to_string()),
        }
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<(), E> {
        match self.1 {
            Role::Ignored => Ok(()),
            role => self.0.wrong_type(role, format!("{value:?}")),
        }
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<(), E> {
        match self.1 {
            Role::Dim => self.0.dims.push(value),
            Role::Offset => {
                if let Some(offset) = self.0.offsets.get_mut(self.0.offsets_found) {
                    *offset = value;
                }
            }
            Role::Ignored => {}
            role => return self.0.wrong_type(role, value.to_string()),
        }
        Ok(())
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<(), E> {
        match self.1 {
            Role::Dtype => self.0.set_dtype(value),
            Role::MetadataValue => {
                if let Some(key) = self.0.metadata_key.take() {
                    self.0.metadata.push((key, value.to_owned()));
                }
            }
            Role::Ignored => {}
            role => return self.0.wrong_type(role, format!("the text {}", quote(value))),
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let Self(parser, role) = self;
        let mut found = 0;
        let count = |part, expected, found| Fault::Count { part, expected, found };
        match role {
            Role::Shape => {
                parser.dims_from = parser.dims.len() as u32;
                while seq.next_element_seed(Value(parser, Role::Dim))?.is_some() {}
            }
            Role::Offsets => {
                parser.offsets_found = 0;
                while seq.next_element_seed(Value(parser, Role::Offset))?.is_some() {
                    parser.offsets_found += 1;
                }
                if parser.offsets_found != 2 {
                    parser.fault(count("data_offsets", 2, parser.offsets_found))?;
                }
            }
            Role::Entry => {
                let role_at = |found: usize| FIELDS.get(found).map_or(Role::Ignored, |field| field.1);
                while seq.next_element_seed(Value(parser, role_at(found)))?.is_some() {
                    found += 1;
                }
                if found != FIELDS.len() {
                    parser.fault(count("its entry", FIELDS.len(), found))?;
                }
                return parser.end_entry([true; 3], true);
            }
            role => {
                while seq.next_element_seed(Value(parser, Role::Ignored))?.is_some() {}
                if role != Role::Ignored {
                    return parser.wrong_type(role, "a list");
                }
            }
        }
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<(), A::Error> {
        match self.1 {
            Role::Top => self.0.visit_header(map),
            Role::Metadata => self.0.visit_metadata(map),
            Role::Entry => self.0.visit_entry(map),
            Role::Dtype => self.0.visit_dtype(map),
            role => {
                drain(self.0, map)?;
                match role {
                    Role::Ignored => Ok(()),
                    role => self.0.wrong_type(role, "an object"),
                }
            }
        }
    }
}

impl Parser {
    fn wrong_type<E: de::Error>(&mut self, role: Role, found: impl Into<String>) -> Result<(), E> {
        let (part, expected) = role.expectation();
        if role == Role::Top {
            self.error = Some(Error::NotAnObject { found: found.into() });
            return Err(E::custom("rule broken"));
        }
        self.fault(Fault::Type { part, expected, found: found.into() })
    }

    fn visit_header<'de, A: MapAccess<'de>>(&mut self, mut map: A) -> Result<(), A::Error> {
        loop {
            let names = &mut self.names;
            let from = names.len();
            let key = map.next_key_seed(Key(|key: &str| {
                let metadata = key == "__metadata__";
                if !metadata {
                    names.push_str(key);
                }
                metadata
            }))?;
            match key {
                None => return Ok(()),
                Some(true) => {
                    if std::mem::replace(&mut self.seen_metadata, true) {
                        self.fault(Fault::Duplicate)?;
                    }
                    map.next_value_seed(Value(self, Role::Metadata))?;
                    self.metadata_key = None;
                }
                Some(false) => {
                    self.begin_entry(from as u32..self.names.len() as u32);
                    map.next_value_seed(Value(self, Role::Entry))?;
                    if let Some(name) = self.entry.take() {
                        // The value was no object: only in lenient mode does the reading go on.
                        if let Some(fault) = self.fault.take() {
                            self.skip(&name, &fault);
                        }
                    }
                }
            }
        }
    }

    fn visit_metadata<'de, A: MapAccess<'de>>(&mut self, mut map: A) -> Result<(), A::Error> {
        while let Some(key) = map.next_key_seed(Key(str::to_owned))? {
            self.metadata_key = Some(key);
            map.next_value_seed(Value(self, Role::MetadataValue))?;
        }
        Ok(())
    }

    fn visit_entry<'de, A: MapAccess<'de>>(&mut self, mut map: A) -> Result<(), A::Error> {
        let mut seen = [false; 3];
        let field = |key: &str| FIELDS.iter().position(|field| field.0 == key);
        while let Some(field) = map.next_key_seed(Key(field))? {
            let Some(field) = field else {
                map.next_value_seed(Value(self, Role::Ignored))?;
                continue;
            };
            if std::mem::replace(&mut seen[field], true) {
                self.fault(Fault::Twice { field: FIELDS[field].0 })?;
            }
            map.next_value_seed(Value(self, FIELDS[field].1))?;
        }
        self.end_entry(seen, false)
    }

    /// serde reads a string as a variant of an enum, and `{"U8": null}` as well.
    fn visit_dtype<'de, A: MapAccess<'de>>(&mut self, mut map: A) -> Result<(), A::Error> {
        if let Some(name) = map.next_key_seed(Key(str::to_owned))? {
            map.next_value_seed(Value(self, Role::DtypeContent))?;
            if drain(self, map)? == 0 {
                self.set_dtype(&name);
                return Ok(());
            }
        }
        self.wrong_type(Role::Dtype, "an object")
    }
}

/// Reads what is left of an object and drops it; returns how many fields there were.
fn drain<'de, A: MapAccess<'de>>(parser: &mut Parser, mut map: A) -> Result<usize, A::Error> {
    let mut found = 0;
    while map.next_key_seed(Key(|_: &str| ()))?.is_some() {
        map.next_value_seed(Value(parser, Role::Ignored))?;
        found += 1;
    }
    Ok(found)
}

/// The key of an object, looked at where the JSON parser has it, without a copy.
struct Key<F>(F);

impl<'de, T, F: FnOnce(&str) -> T> DeserializeSeed<'de> for Key<F> {
    type Value = T;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<T, F: FnOnce(&str) -> T> Visitor<'_> for Key<F> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<T, E> {
        Ok((self.0)(key))
    }
}
