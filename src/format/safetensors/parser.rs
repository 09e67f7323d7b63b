//! The rules for a safetensors header beyond the structure of its JSON.

use super::error::{self, SafetensorsError, SafetensorsFault};
use super::{METADATA, NAME};
use crate::format::dtype::Dtype;
use crate::format::header::{
    ArenaName, ArenaShape, BuildError, DtypeNumber, Header, HeaderBuilder, NewTensor, ParseMode,
};
use crate::text::brackets;
use serde::de;
use std::cmp::Ordering;
use std::ops::Range;

/// The fields of an entry, in the order in which the list form gives them.
pub(super) const FIELDS: [&str; 3] = ["dtype", "shape", "data_offsets"];

/// The state of the parser. The JSON visitor writes into the builder directly. In strict mode, a fault stops parsing.
pub(super) struct HeaderParser {
    pub builder: HeaderBuilder,
    data_start: u64,
    pub seen_metadata: bool,
    pub metadata_key: Option<String>,
    /// Name of the entry that is being read.
    entry: Option<ArenaName>,
    dtype: DtypeNumber,
    /// Index of the first dimension of the entry.
    pub shape_start: u32,
    pub offsets: [u64; 2],
    pub offsets_found: usize,
    /// The first fault of the entry that is being read, in lenient mode.
    fault: Option<SafetensorsFault>,
    /// The error that stopped parsing, in strict mode.
    pub error: Option<SafetensorsError>,
}

impl HeaderParser {
    pub fn new(mode: ParseMode, data_start: u64) -> Self {
        let mut builder = HeaderBuilder::new(mode);
        let dtype = builder.dtype_number(Dtype::U8.name());
        Self {
            builder,
            data_start,
            seen_metadata: false,
            metadata_key: None,
            entry: None,
            dtype,
            shape_start: 0,
            offsets: [0; 2],
            offsets_found: 0,
            fault: None,
            error: None,
        }
    }

    /// Records a broken rule. In strict mode, returns an error, which stops parsing.
    pub fn fault<E: de::Error>(&mut self, fault: SafetensorsFault) -> Result<(), E> {
        match (self.builder.mode(), &self.entry) {
            (ParseMode::Strict | ParseMode::Header, entry) => {
                self.error = Some(match entry {
                    Some(name) => SafetensorsError::Tensor { name: self.builder.text(name).to_owned(), fault },
                    None => SafetensorsError::Metadata { key: self.metadata_key.take(), fault },
                });
                Err(E::custom("rule broken"))
            }
            (ParseMode::Lenient, Some(_)) => {
                self.fault.get_or_insert(fault);
                Ok(())
            }
            (ParseMode::Lenient, None) => {
                let key = self.metadata_key.take();
                self.builder.skip(METADATA, || format!("{}{fault}", error::of_key(&key)));
                Ok(())
            }
        }
    }

    pub fn begin_entry(&mut self, name: ArenaName) {
        self.entry = Some(name);
        self.fault = None;
    }

    /// Name of the entry that is being read, for messages.
    pub fn entry_name(&self) -> Option<String> {
        self.entry.as_ref().map(|name| self.builder.text(name).to_owned())
    }

    pub fn set_dtype(&mut self, name: &str) {
        self.dtype = self.builder.dtype_number(name);
    }

    /// Leaves out an entry that is neither an object nor a list. Only lenient mode continues after such an entry.
    pub fn drop_entry(&mut self) {
        if let (Some(name), Some(fault)) = (self.entry.take(), self.fault.take()) {
            self.builder.skip_entry(&name, || fault.to_string());
        }
    }

    /// Checks an entry and adds it. `seen` marks the [`FIELDS`] that it has. `is_list` is set for the list form, which
    /// no writer uses, but which the official reader accepts.
    pub fn end_entry<E: de::Error>(&mut self, seen: [bool; 3], is_list: bool) -> Result<(), E> {
        let [begin, end] = self.offsets;
        let shape = self.builder.shape_from(self.shape_start);
        let absolute = (self.data_start.checked_add(begin), self.data_start.checked_add(end));
        if let Some(missing) = seen.iter().position(|seen| !seen) {
            self.fault(SafetensorsFault::Missing { field: FIELDS[missing] })?;
        } else if self.fault.is_none() {
            if let Some(fault) = self.size_fault(&shape, begin, end) {
                self.fault(fault)?;
            } else if absolute.1.is_none() {
                self.fault(SafetensorsFault::Beyond { begin, end })?;
            }
        }
        let Some(name) = self.entry.take() else { return Ok(()) };
        if let Some(fault) = self.fault.take() {
            self.builder.skip_entry(&name, || fault.to_string());
        } else if let (Some(begin), Some(end)) = absolute {
            self.builder.push(NewTensor { name, dtype: self.dtype, shape, range: begin..end, is_unusual: is_list });
        }
        Ok(())
    }

    /// The contradiction between shape, dtype and offsets, if there is one.
    fn size_fault(&self, shape: &ArenaShape, begin: u64, end: u64) -> Option<SafetensorsFault> {
        let Some(found) = end.checked_sub(begin) else { return Some(SafetensorsFault::Reversed { begin, end }) };
        let (dtype, shape) = (self.builder.dtype(self.dtype), self.builder.dims(shape));
        // In the order of the dimensions, like the official reader: [2^63, 4, 0] overflows, [0, 2^63, 4] does not.
        let elements = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
        let bits = elements.and_then(|elements| elements.checked_mul(dtype.bits().unwrap_or(1)));
        let name = || dtype.quoted();
        let Some(bits) = bits else {
            return Some(SafetensorsFault::Overflow { dtype: name(), shape: brackets(shape) });
        };
        // The width of an unknown dtype is unknown, so any size may be right.
        dtype.bits()?;
        if bits % 8 != 0 {
            return Some(SafetensorsFault::Fraction { dtype: name(), shape: brackets(shape), bits });
        }
        (bits / 8 != found).then(|| SafetensorsFault::Size {
            dtype: name(),
            shape: brackets(shape),
            expected: bits / 8,
            found,
        })
    }

    /// Checks the rules that concern all entries together.
    pub fn finish(mut self, json: Range<u64>, file_len: u64) -> Result<Header, SafetensorsError> {
        let mode = self.builder.mode();
        if mode == ParseMode::Lenient {
            let reason = |range: &Range<u64>| {
                SafetensorsFault::Outside { begin: range.start, end: range.end, len: file_len }.to_string()
            };
            self.builder.skip_outside(file_len, reason);
        }
        let data_start = json.end;
        let header = self.builder.finish(NAME, Some(json), data_start, || SafetensorsFault::Duplicate.to_string());
        let header = header.map_err(|error| match error {
            BuildError::Duplicate { name } => SafetensorsError::Tensor { name, fault: SafetensorsFault::Duplicate },
            // Not reachable: the largest header is smaller than 2^32 bytes.
            BuildError::TooLarge => SafetensorsError::HeaderTooLarge { len: data_start },
        })?;
        if mode == ParseMode::Strict {
            check_contiguous(&header, file_len)?;
        }
        Ok(header)
    }
}

/// Each tensor must begin where the one before it ends, and the last one must end with the file.
fn check_contiguous(header: &Header, file_len: u64) -> Result<(), SafetensorsError> {
    let mut expected = header.data_start();
    for tensor in header.tensors() {
        let begin = tensor.range.start;
        let fault = match begin.cmp(&expected) {
            Ordering::Equal => {
                expected = tensor.range.end;
                continue;
            }
            Ordering::Greater => SafetensorsFault::Hole { begin, expected },
            Ordering::Less => SafetensorsFault::Overlap { begin, expected },
        };
        return Err(SafetensorsError::Tensor { name: tensor.name.to_owned(), fault });
    }
    match expected.cmp(&file_len) {
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(SafetensorsError::DataCut { end: expected, len: file_len }),
        Ordering::Less => Err(SafetensorsError::TooLong { end: expected, len: file_len }),
    }
}
