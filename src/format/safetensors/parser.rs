//! The rules for a safetensors header beyond the structure of its JSON.

use super::{DUPLICATE, METADATA, NAME, count_bytes, misplaced, too_long};
use crate::format::dtype::Dtype;
use crate::format::error::Error;
use crate::format::header::{ArenaName, ArenaShape, DtypeNumber, Header, HeaderBuilder, NewTensor, ParseMode};
use crate::format::lint::HeaderLint;
use crate::rules::CheckRule;
use crate::text::{brackets, quote};
use serde::de;
use std::cmp::Ordering;
use std::collections::HashSet;
use std::ops::Range;

/// The fields of an entry, in the order in which the list form gives them.
pub(super) const FIELDS: [&str; 3] = ["dtype", "shape", "data_offsets"];

/// The state of the parser. The JSON visitor writes into the builder directly. In strict mode, a fault stops parsing.
#[derive(Default)]
pub(super) struct HeaderParser<'f> {
    pub builder: HeaderBuilder,
    data_start: u64,
    pub seen_metadata: bool,
    pub metadata_key: Option<String>,
    pub entry: Option<ArenaName>,
    dtype: DtypeNumber,
    pub shape_start: u32,
    pub offsets: [u64; 2],
    pub offsets_found: usize,
    /// The first fault of the entry that is being read, in lenient mode.
    pub entry_fault: Option<String>,
    /// The error that stopped parsing, in strict mode.
    pub error: Option<Error>,
    /// Gets what is unusual. Then no tensors are collected.
    lint: Option<&'f mut dyn FnMut(HeaderLint)>,
    /// The metadata keys so far, if what is unusual is searched.
    keys: HashSet<String>,
}

impl<'f> HeaderParser<'f> {
    pub fn new(mode: ParseMode, data_start: u64, lint: Option<&'f mut dyn FnMut(HeaderLint)>) -> Self {
        let mut builder = HeaderBuilder::new(mode);
        let dtype = builder.dtype_number(Dtype::U8.name());
        Self { builder, data_start, dtype, lint, ..Self::default() }
    }

    /// Records a broken rule. In strict mode, returns an error, which stops parsing.
    pub fn fault<E: de::Error>(&mut self, fault: String) -> Result<(), E> {
        let is_strict = self.builder.mode() != ParseMode::Lenient;
        match &self.entry {
            Some(name) if is_strict => {
                self.error = Some(Error::Tensor { name: self.builder.text(name).to_owned(), fault });
            }
            Some(_) => drop(self.entry_fault.get_or_insert(fault)),
            None => {
                let key = self.metadata_key.take().map_or(String::new(), |key| format!("key {}: ", quote(&key)));
                let fault = format!("{key}{fault}");
                match is_strict {
                    true => self.error = Some(Error::Broken(format!("{METADATA}: {fault}"))),
                    false => self.builder.skip(METADATA, || fault),
                }
            }
        }
        if is_strict { Err(E::custom("rule broken")) } else { Ok(()) }
    }

    /// Reports something unusual about an entry or a metadata key, if that is searched.
    pub fn note(&mut self, subject: Option<&str>, message: String) {
        if let Some(lint) = &mut self.lint {
            lint(HeaderLint::new(CheckRule::Json, subject, message));
        }
    }

    /// Reports something unusual about the entry that is being read.
    pub fn note_entry(&mut self, what: impl FnOnce() -> String) {
        if self.lint.is_some()
            && let Some(name) = self.entry_name().map(str::to_owned)
        {
            self.note(Some(&name), format!("tensor {}: {}", quote(&name), what()));
        }
    }

    pub fn begin_value(&mut self, key: String) {
        if self.lint.is_some() && !self.keys.insert(key.clone()) {
            self.note(Some(&key), format!("metadata key {} is repeated; readers take the last value", quote(&key)));
        }
        self.metadata_key = Some(key);
    }

    /// Name of the entry that is being read, for messages.
    pub fn entry_name(&self) -> Option<&str> {
        self.entry.as_ref().map(|name| self.builder.text(name))
    }

    pub fn set_dtype(&mut self, name: &str) {
        self.dtype = self.builder.dtype_number(name);
    }

    /// Leaves out an entry that is neither an object nor a list. Only lenient mode continues after such an entry.
    pub fn drop_entry(&mut self) {
        if let (Some(name), Some(fault)) = (self.entry.take(), self.entry_fault.take()) {
            self.builder.skip_entry(&name, || fault);
        }
    }

    /// Checks an entry and adds it. `seen` marks the [`FIELDS`] that it has. `is_list` is set for the list form, which
    /// no writer uses, but which the official reader accepts.
    pub fn end_entry<E: de::Error>(&mut self, seen: [bool; 3], is_list: bool) -> Result<(), E> {
        if self.lint.is_some() {
            if is_list {
                self.note_entry(|| "its entry is a list, not an object".to_owned());
            }
            self.entry = None;
            return Ok(());
        }
        let [begin, end] = self.offsets;
        let shape = self.builder.shape_from(self.shape_start);
        let absolute = (self.data_start.checked_add(begin), self.data_start.checked_add(end));
        if let Some(missing) = seen.iter().position(|seen| !seen) {
            self.fault(format!("its entry has no {}", FIELDS[missing]))?;
        } else if self.entry_fault.is_none() {
            if let Some(fault) = self.size_fault(&shape, begin, end) {
                self.fault(fault)?;
            } else if absolute.1.is_none() {
                self.fault(format!("its data_offsets [{begin}, {end}] are too large for any file"))?;
            }
        }
        let Some(name) = self.entry.take() else { return Ok(()) };
        if let Some(fault) = self.entry_fault.take() {
            self.builder.skip_entry(&name, || fault);
        } else if let (Some(begin), Some(end)) = absolute {
            self.builder.push(NewTensor { name, dtype: self.dtype, shape, range: begin..end, is_unusual: is_list });
        }
        Ok(())
    }

    /// The contradiction between shape, dtype and offsets, if there is one.
    fn size_fault(&self, shape: &ArenaShape, begin: u64, end: u64) -> Option<String> {
        let Some(found) = end.checked_sub(begin) else {
            return Some(format!("data_offsets [{begin}, {end}] end before they begin"));
        };
        let (dtype, shape) = (self.builder.dtype(self.dtype), self.builder.dims(shape));
        // In the order of the dimensions, like the official reader: [2^63, 4, 0] overflows, [0, 2^63, 4] does not.
        let elements = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
        let bits = elements.and_then(|elements| elements.checked_mul(dtype.bits().unwrap_or(1)));
        let fault = match (bits, dtype.bits()) {
            (None, _) => "is too large to count in 64 bits".to_owned(),
            // The width of an unknown dtype is unknown, so any size may be right.
            (_, None) => return None,
            (Some(bits), _) if bits % 8 != 0 => format!("takes {bits} bits, which is not a whole number of bytes"),
            (Some(bits), _) if bits / 8 == found => return None,
            (Some(bits), _) => format!("takes {} bytes, but its data_offsets span {found}", bits / 8),
        };
        Some(format!("shape {} of {} {fault}", brackets(shape), dtype.quoted()))
    }

    /// Checks the rules that concern all entries together.
    pub fn finish(mut self, json: Range<u64>, file_len: u64) -> Result<Header, Error> {
        let mode = self.builder.mode();
        if mode == ParseMode::Lenient {
            self.builder.skip_outside(file_len, |Range { start, end }| {
                format!("its data takes bytes {start} to {end}, but the file ends at byte {file_len}")
            });
        }
        let data_start = json.end;
        let mut header = self.builder.finish(NAME, Some(json), data_start, DUPLICATE)?;
        match mode {
            ParseMode::Strict => check_contiguous(&header, file_len)?,
            ParseMode::Header => {}
            ParseMode::Lenient => header.report_places(1, file_len),
        }
        Ok(header)
    }
}

/// Each tensor must begin where the one before it ends, and the last one must end with the file.
fn check_contiguous(header: &Header, file_len: u64) -> Result<(), Error> {
    let mut end = header.data_start;
    for tensor in header.tensors() {
        if let Some((_, fault)) = misplaced(tensor.range.start, end) {
            return Err(Error::Tensor { name: tensor.name.to_owned(), fault });
        }
        end = tensor.range.end;
    }
    match end.cmp(&file_len) {
        Ordering::Equal => Ok(()),
        Ordering::Greater => Err(Error::Cut(format!(
            "truncated: the data ends at byte {end}, but the file ends at byte {file_len}; {} missing (did a download \
             stop?)",
            count_bytes(end - file_len)
        ))),
        Ordering::Less => Err(Error::Broken(too_long(end, file_len))),
    }
}
