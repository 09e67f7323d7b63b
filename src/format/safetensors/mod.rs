//! The safetensors header: knows its JSON and its rules, and keeps the file-relative `data_offsets` to itself.
//!
//! A file is a 64-bit little-endian length N, N bytes of JSON, then the data. Source of every rule: the official crate,
//! version 0.8.0, whose verdict this parser shares on every file, with two deliberate differences: a tensor name that
//! stands twice is an error here, and a dtype that the crate does not know is none.

mod edit;
mod error;
mod lint;
mod reader;

use super::{Dtype, Header, NameTable, Record, SkipList, Skipped, dtype, span};
use crate::text::brackets;
use reader::FIELDS;
use serde::de;
use std::ops::Range;

pub use edit::with_metadata;
pub use error::{Error, Fault};
pub use lint::{Oddity, lint};

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
    if let Err(error) = reader::read(text, &mut parser) {
        return Err(parser.error.take().unwrap_or_else(|| Error::Json {
            entry: parser.entry.as_ref().map(|name| parser.names[span(name)].to_owned()),
            reason: error.to_string(),
        }));
    }
    parser.finish(json, file_len)
}

/// What has been read so far. The visitor writes into the arenas directly, and a fault ends the reading in strict mode.
struct Parser {
    mode: Mode,
    data_start: u64,
    names: String,
    dims: Vec<u64>,
    records: Vec<Record>,
    unknown_dtypes: Vec<String>,
    /// Places in `unknown_dtypes`.
    unknown_index: NameTable,
    metadata: Vec<(String, String)>,
    skipped: SkipList,
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
            unknown_index: NameTable::with_capacity(0),
            metadata: Vec::new(),
            skipped: SkipList::default(),
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
                let key = self.metadata_key.take();
                let reason = || format!("{}{fault}", error::of_key(&key));
                self.skipped.push(|| Skipped { name: "__metadata__".to_owned(), reason: reason() });
                Ok(())
            }
        }
    }

    fn begin_entry(&mut self, name: Range<u32>) {
        self.entry = Some(name);
        self.fault = None;
    }

    fn set_dtype(&mut self, name: &str) {
        let known = dtype::KNOWN.iter().position(|known| known.1 == name);
        let place = known.unwrap_or_else(|| {
            let unknown = &mut self.unknown_dtypes;
            let found = self.unknown_index.find(name, |at| &unknown[at as usize]);
            let at = found.unwrap_or_else(|| {
                unknown.push(name.to_owned());
                let at = unknown.len() as u32 - 1;
                self.unknown_index.insert(at, |at| &unknown[at as usize]);
                at
            });
            dtype::KNOWN.len() + at as usize
        });
        self.dtype = place as u32;
    }

    /// Checks what an entry says of itself and keeps it; `seen` tells which of [`FIELDS`] it gave, `is_list` its form.
    fn end_entry<E: de::Error>(&mut self, seen: [bool; 3], is_list: bool) -> Result<(), E> {
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
            self.records.push(Record { range: begin..end, name, dims, dtype: self.dtype, is_list });
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
        let name = || dtype.quoted();
        let Some(bits) = bits else { return Some(Fault::Overflow { dtype: name(), shape: brackets(shape) }) };
        // The width of an unknown dtype is unknown, so that any size may be right.
        dtype.bits()?;
        if bits % 8 != 0 {
            return Some(Fault::Fraction { dtype: name(), shape: brackets(shape), bits });
        }
        (bits / 8 != found).then(|| Fault::Size { dtype: name(), shape: brackets(shape), expected: bits / 8, found })
    }

    fn skip(&mut self, name: &Range<u32>, fault: &Fault) {
        let names = &self.names;
        self.skipped.push(|| Skipped { name: names[span(name)].to_owned(), reason: fault.to_string() });
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
            skipped: self.skipped.finish(),
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
