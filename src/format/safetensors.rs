//! The safetensors header: knows its JSON and its rules, and keeps the file-relative `data_offsets` to itself.
//!
//! A file is a 64-bit little-endian length N, N bytes of JSON, then the data. Source of every rule: the official crate,
//! version 0.8.0, whose verdict this parser shares on every file, with two deliberate differences: a tensor name that
//! stands twice is an error here, and a dtype that the crate does not know is none.

use super::{Dtype, Header, NameTable, Record, Skipped, dtype, quote, span};
use serde::de::{self, DeserializeSeed, Deserializer, MapAccess, SeqAccess, Visitor};
use std::collections::HashMap;
use std::fmt;
use std::ops::Range;

/// The most bytes that a header may have, inclusive.
pub const MAX_HEADER: u64 = 100_000_000;

/// Bytes of the length in front of the JSON.
const LENGTH: u64 = 8;

/// How to take a file that breaks the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Mode {
    /// The first broken rule is an error.
    #[default]
    Strict,
    /// What breaks a rule is skipped; tensors that lie inside the file are kept, even where they overlap or leave holes.
    Lenient,
}

/// Why a file has no header.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not an error of the file: parse again with at least this many bytes of it.
    #[error("the first {needed} bytes are needed")]
    Incomplete {
        /// Bytes from the start of the file; never more than it has.
        needed: u64,
    },
    /// Fewer bytes than the length itself takes.
    #[error("too short: {len} bytes, and a safetensors file begins with 8 that give the length of its header")]
    TooShort {
        /// Bytes in the file.
        len: u64,
    },
    /// A length beyond the limit of the format.
    #[error("not safetensors: its first 8 bytes give a header of {len} bytes, and at most {MAX_HEADER} are allowed")]
    HeaderTooLarge {
        /// The length that the file gives.
        len: u64,
    },
    /// The file ends inside its header.
    #[error(
        "cut short: the header takes bytes 8 to {end}, but the file ends at byte {len}; at least {} missing \
         (did a download stop?)", bytes(end - len)
    )]
    HeaderCut {
        /// Where the header should end.
        end: u64,
        /// Bytes in the file.
        len: u64,
    },
    /// The header is not text.
    #[error("the header is not UTF-8: byte {at} of the file is wrong")]
    NotUtf8 {
        /// Offset in the file.
        at: u64,
    },
    /// The header is not JSON.
    #[error("the header is not valid JSON{}: {reason}", near(entry))]
    Json {
        /// The entry in which it breaks, if it does so in one.
        entry: Option<String>,
        /// What the JSON parser says, with line and column.
        reason: String,
    },
    /// The header is JSON of another shape.
    #[error("the header is {found}, not a JSON object")]
    NotAnObject {
        /// What it is.
        found: String,
    },
    /// `__metadata__` breaks a rule.
    #[error("__metadata__: {}{fault}", of_key(key))]
    Metadata {
        /// The key, where one is to blame.
        key: Option<String>,
        /// The rule.
        fault: Fault,
    },
    /// A tensor breaks a rule.
    #[error("tensor {}: {fault}", quote(name))]
    Tensor {
        /// Its name.
        name: String,
        /// The rule.
        fault: Fault,
    },
    /// The file ends before the data does.
    #[error(
        "cut short: the data ends at byte {end}, but the file at byte {len}; {} missing \
         (did a download stop? --lenient mounts the tensors that are whole)", bytes(end - len)
    )]
    DataCut {
        /// Where the data should end.
        end: u64,
        /// Bytes in the file.
        len: u64,
    },
    /// The file goes on after its data.
    #[error("too long: the data ends at byte {end}, but the file at byte {len}; {} of no tensor", bytes(len - end))]
    TooLong {
        /// Where the data ends.
        end: u64,
        /// Bytes in the file.
        len: u64,
    },
}

/// A rule that one entry of the header breaks.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Fault {
    #[error("{part} is {found}, not {expected}")]
    Type { part: &'static str, expected: &'static str, found: String },
    #[error("its entry has no {field}")]
    Missing { field: &'static str },
    #[error("its entry gives {field} twice")]
    Twice { field: &'static str },
    #[error("{part} has {found} elements, not {expected}")]
    Count { part: &'static str, expected: usize, found: usize },
    #[error("data_offsets [{begin}, {end}] end before they begin")]
    Reversed { begin: u64, end: u64 },
    #[error("shape {} of {dtype} is too large to count in 64 bits", brackets(shape))]
    Overflow { dtype: String, shape: Vec<u64> },
    #[error("shape {} of {dtype} takes {bits} bits, which is no whole number of bytes", brackets(shape))]
    Fraction { dtype: String, shape: Vec<u64>, bits: u64 },
    #[error("shape {} of {dtype} takes {expected} bytes, but its data_offsets span {found}", brackets(shape))]
    Size { dtype: String, shape: Vec<u64>, expected: u64, found: u64 },
    #[error("its data begins at byte {begin}, but the data before it ends at byte {expected}: {} of no tensor between", bytes(begin - expected))]
    Hole { begin: u64, expected: u64 },
    #[error("its data begins at byte {begin}, but the data before it ends at byte {expected}: {} shared", bytes(expected - begin))]
    Overlap { begin: u64, expected: u64 },
    #[error("its data takes bytes {begin} to {end}, but the file ends at byte {len}")]
    Outside { begin: u64, end: u64, len: u64 },
    #[error("its data_offsets [{begin}, {end}] are beyond any file")]
    Beyond { begin: u64, end: u64 },
    #[error("the name stands twice in the header")]
    Duplicate,
}

/// Reads the header from `prefix`, the first bytes of a file of `file_len` bytes.
///
/// Asks for more with [`Error::Incomplete`] where the header is longer than `prefix`. Memory follows `prefix`, never a
/// number in it.
pub fn parse(prefix: &[u8], file_len: u64, mode: Mode) -> Result<Header, Error> {
    if file_len < LENGTH {
        return Err(Error::TooShort { len: file_len });
    }
    let Some((length, rest)) = prefix.split_first_chunk() else {
        return Err(Error::Incomplete { needed: LENGTH });
    };
    let len = u64::from_le_bytes(*length);
    if len > MAX_HEADER {
        return Err(Error::HeaderTooLarge { len });
    }
    let json = LENGTH..LENGTH + len;
    if json.end > file_len {
        return Err(Error::HeaderCut { end: json.end, len: file_len });
    }
    let Some(text) = rest.get(..len as usize) else {
        return Err(Error::Incomplete { needed: json.end });
    };
    let text = str::from_utf8(text).map_err(|error| Error::NotUtf8 { at: LENGTH + error.valid_up_to() as u64 })?;
    let mut parser = Parser::new(mode, json.end);
    let mut json_reader = serde_json::Deserializer::from_str(text);
    if let Err(error) = Value(&mut parser, Role::Top).deserialize(&mut json_reader).and_then(|()| json_reader.end()) {
        return Err(parser.error.take().unwrap_or_else(|| Error::Json {
            entry: parser.entry.as_ref().map(|name| parser.names[span(name)].to_owned()),
            reason: error.to_string(),
        }));
    }
    parser.finish(json, file_len)
}

/// Which value of the header is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
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
const FIELDS: [(&str, Role); 3] = [("dtype", Role::Dtype), ("shape", Role::Shape), ("data_offsets", Role::Offsets)];

/// What has been read so far. The visitor writes into the arenas directly, and a fault ends the reading in strict mode.
struct Parser {
    mode: Mode,
    data_start: u64,
    names: String,
    dims: Vec<u64>,
    records: Vec<Record>,
    unknown_dtypes: Vec<String>,
    unknown_index: HashMap<String, u32>,
    metadata: Vec<(String, String)>,
    skipped: Vec<Skipped>,
    seen_metadata: bool,
    metadata_key: Option<String>,
    /// Name of the entry being read, as a place in `names`.
    entry: Option<Range<u32>>,
    dtype: u32,
    dims_from: u32,
    offsets: [u64; 2],
    offsets_found: usize,
    /// What broke first in the entry being read (lenient mode).
    fault: Option<Fault>,
    /// What ended the reading (strict mode).
    error: Option<Error>,
}

impl Parser {
    fn new(mode: Mode, data_start: u64) -> Self {
        Self {
            mode,
            data_start,
            names: String::new(),
            dims: Vec::new(),
            records: Vec::new(),
            unknown_dtypes: Vec::new(),
            unknown_index: HashMap::new(),
            metadata: Vec::new(),
            skipped: Vec::new(),
            seen_metadata: false,
            metadata_key: None,
            entry: None,
            dtype: 0,
            dims_from: 0,
            offsets: [0; 2],
            offsets_found: 0,
            fault: None,
            error: None,
        }
    }

    /// Takes note of a broken rule; an error ends the reading.
    fn fault<E: de::Error>(&mut self, fault: Fault) -> Result<(), E> {
        match (self.mode, &self.entry) {
            (Mode::Strict, Some(name)) => {
                self.error = Some(Error::Tensor { name: self.names[span(name)].to_owned(), fault });
                Err(E::custom("rule broken"))
            }
            (Mode::Strict, None) => {
                self.error = Some(Error::Metadata { key: self.metadata_key.take(), fault });
                Err(E::custom("rule broken"))
            }
            (Mode::Lenient, Some(_)) => {
                self.fault.get_or_insert(fault);
                Ok(())
            }
            (Mode::Lenient, None) => {
                let reason = format!("{}{fault}", of_key(&self.metadata_key.take()));
                self.skipped.push(Skipped { name: "__metadata__".to_owned(), reason });
                Ok(())
            }
        }
    }

    fn wrong_type<E: de::Error>(&mut self, role: Role, found: impl Into<String>) -> Result<(), E> {
        let (part, expected) = role.expectation();
        if role == Role::Top {
            self.error = Some(Error::NotAnObject { found: found.into() });
            return Err(E::custom("rule broken"));
        }
        self.fault(Fault::Type { part, expected, found: found.into() })
    }

    fn begin_entry(&mut self, name: Range<u32>) {
        self.entry = Some(name);
        self.fault = None;
    }

    fn set_dtype(&mut self, name: &str) {
        self.dtype = match dtype::KNOWN.iter().position(|known| known.1 == name) {
            Some(known) => known as u32,
            None => match self.unknown_index.get(name) {
                Some(index) => *index,
                None => {
                    let index = (dtype::KNOWN.len() + self.unknown_dtypes.len()) as u32;
                    self.unknown_index.insert(name.to_owned(), index);
                    self.unknown_dtypes.push(name.to_owned());
                    index
                }
            },
        };
    }

    /// Checks what an entry says of itself and keeps it; `seen` tells which of [`FIELDS`] it gave.
    fn end_entry<E: de::Error>(&mut self, seen: [bool; 3]) -> Result<(), E> {
        let [begin, end] = self.offsets;
        let dims = self.dims_from..self.dims.len() as u32;
        let absolute = (self.data_start.checked_add(begin), self.data_start.checked_add(end));
        if let Some(missing) = seen.iter().position(|seen| !seen) {
            self.fault(Fault::Missing { field: FIELDS[missing].0 })?;
        } else if self.fault.is_none() {
            if let Some(fault) = self.size_fault(span(&dims), begin, end) {
                self.fault(fault)?;
            } else if absolute.1.is_none() {
                self.fault(Fault::Beyond { begin, end })?;
            }
        }
        let Some(name) = self.entry.take() else { return Ok(()) };
        if let Some(fault) = self.fault.take() {
            self.skip(&name, &fault);
        } else if let (Some(begin), Some(end)) = absolute {
            self.records.push(Record { range: begin..end, name, dims, dtype: self.dtype });
        }
        Ok(())
    }

    /// Why shape, dtype and offsets do not go together.
    fn size_fault(&self, dims: Range<usize>, begin: u64, end: u64) -> Option<Fault> {
        let Some(found) = end.checked_sub(begin) else { return Some(Fault::Reversed { begin, end }) };
        let dtype = match dtype::KNOWN.get(self.dtype as usize) {
            Some(known) => known.0,
            None => Dtype::Unknown(&self.unknown_dtypes[self.dtype as usize - dtype::KNOWN.len()]),
        };
        let shape = &self.dims[dims];
        // In the order of the dimensions, as the official reader multiplies: [2^63, 4, 0] overflows, [0, 2^63, 4] does not.
        let elements = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
        let bits = elements.and_then(|elements| elements.checked_mul(dtype.bits().unwrap_or(1)));
        let name = || dtype.name().to_owned();
        let Some(bits) = bits else { return Some(Fault::Overflow { dtype: name(), shape: shape.to_vec() }) };
        // The width of an unknown dtype is unknown, so that any size may be right.
        dtype.bits()?;
        if bits % 8 != 0 {
            return Some(Fault::Fraction { dtype: name(), shape: shape.to_vec(), bits });
        }
        (bits / 8 != found).then(|| Fault::Size { dtype: name(), shape: shape.to_vec(), expected: bits / 8, found })
    }

    fn skip(&mut self, name: &Range<u32>, fault: &Fault) {
        self.skipped.push(Skipped { name: self.names[span(name)].to_owned(), reason: fault.to_string() });
    }

    /// Checks what the entries say together.
    fn finish(mut self, json: Range<u64>, file_len: u64) -> Result<Header, Error> {
        if self.mode == Mode::Lenient {
            self.skip_outside(file_len);
        }
        // Stable, so that tensors without data keep the order of the header.
        self.records.sort_by_key(|record| (record.range.start, record.range.end));
        let by_name = match (self.enter_names(), self.mode) {
            (Ok(by_name), _) => by_name,
            (Err(repeated), Mode::Strict) => {
                let name = self.names[span(&self.records[repeated].name)].to_owned();
                return Err(Error::Tensor { name, fault: Fault::Duplicate });
            }
            (Err(_), Mode::Lenient) => {
                self.skip_repeated();
                // Nothing repeats any more: the table of an error would be empty, and none of the names found.
                self.enter_names().unwrap_or_else(|_| NameTable::with_capacity(0))
            }
        };
        if self.mode == Mode::Strict {
            self.check_contiguous(file_len)?;
        }
        // Stable, so that of a repeated key the last value can be kept, as the official reader does.
        self.metadata.sort_by(|a, b| a.0.cmp(&b.0));
        self.metadata.dedup_by(|later, kept| {
            let same = later.0 == kept.0;
            if same {
                std::mem::swap(later, kept);
            }
            same
        });
        self.names.shrink_to_fit();
        self.dims.shrink_to_fit();
        self.records.shrink_to_fit();
        self.metadata.shrink_to_fit();
        Ok(Header {
            json,
            metadata: self.metadata,
            names: self.names,
            dims: self.dims,
            unknown_dtypes: self.unknown_dtypes,
            records: self.records,
            by_name,
            skipped: self.skipped,
        })
    }

    /// A table of all names, or the first record whose name another one has.
    fn enter_names(&self) -> Result<NameTable, usize> {
        let mut by_name = NameTable::with_capacity(self.records.len());
        for index in 0..self.records.len() {
            if !by_name.insert(index as u32, |index| &self.names[span(&self.records[index as usize].name)]) {
                return Err(index);
            }
        }
        Ok(by_name)
    }

    /// Each tensor must begin where the one before it ended, and the last must end with the file.
    fn check_contiguous(&self, file_len: u64) -> Result<(), Error> {
        let mut expected = self.data_start;
        for record in &self.records {
            let begin = record.range.start;
            let fault = match begin.cmp(&expected) {
                std::cmp::Ordering::Equal => {
                    expected = record.range.end;
                    continue;
                }
                std::cmp::Ordering::Greater => Fault::Hole { begin, expected },
                std::cmp::Ordering::Less => Fault::Overlap { begin, expected },
            };
            return Err(Error::Tensor { name: self.names[span(&record.name)].to_owned(), fault });
        }
        match expected.cmp(&file_len) {
            std::cmp::Ordering::Equal => Ok(()),
            std::cmp::Ordering::Greater => Err(Error::DataCut { end: expected, len: file_len }),
            std::cmp::Ordering::Less => Err(Error::TooLong { end: expected, len: file_len }),
        }
    }

    fn skip_outside(&mut self, len: u64) {
        let (inside, outside) =
            std::mem::take(&mut self.records).into_iter().partition(|record| record.range.end <= len);
        self.records = inside;
        for Record { range, name, .. } in outside {
            self.skip(&name, &Fault::Outside { begin: range.start, end: range.end, len });
        }
    }

    /// Of the records with one name the last in the header stays, as the official reader has it.
    fn skip_repeated(&mut self) {
        let mut records = std::mem::take(&mut self.records);
        // Names lie in the arena in the order of the header.
        records.sort_by(|a, b| {
            self.names[span(&a.name)].cmp(&self.names[span(&b.name)]).then(b.name.start.cmp(&a.name.start))
        });
        let mut repeated = Vec::new();
        records.dedup_by(|later, kept| {
            let same = self.names[span(&later.name)] == self.names[span(&kept.name)];
            if same {
                repeated.push(later.name.clone());
            }
            same
        });
        records.sort_by_key(|record| (record.range.start, record.range.end, record.name.start));
        self.records = records;
        for name in &repeated {
            self.skip(name, &Fault::Duplicate);
        }
    }
}

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
                return parser.end_entry([true; 3]);
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
        self.end_entry(seen)
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

fn bytes(count: u64) -> String {
    format!("{count} byte{}", if count == 1 { "" } else { "s" })
}

fn near(entry: &Option<String>) -> String {
    entry.as_ref().map_or(String::new(), |name| format!(" in the entry of {}", quote(name)))
}

fn of_key(key: &Option<String>) -> String {
    key.as_ref().map_or(String::new(), |key| format!("key {}: ", quote(key)))
}

/// A shape as NumPy writes it in a list, cut where it is longer than any real one.
fn brackets(shape: &[u64]) -> String {
    const SHOWN: usize = 16;
    let dims: Vec<String> = shape.iter().take(SHOWN).map(u64::to_string).collect();
    let more = if shape.len() > SHOWN { format!(", ... {} dimensions", shape.len()) } else { String::new() };
    format!("[{}{more}]", dims.join(", "))
}
