//! Reads metadata and the descriptions of tensors.

use super::cursor::GgufCursor;
use super::error::{GgufError, GgufFault};
use super::types::{self, ARRAY};
use super::{ALIGNMENT, ALIGNMENT_KEY, LENGTH_MAX, MAGIC, NAME, NAME_MAX, RANK_MAX};
use crate::format::dtype::Dtype;
use crate::format::header::{BuildError, Header, HeaderBuilder, NewTensor, ParseMode};
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::metadata::{MetadataValue, ScalarType};
use crate::text::{brackets, write_json_string};
use std::collections::HashSet;

/// Whether a file begins with the magic number.
pub fn is_gguf(input: &HeaderInput) -> Result<bool, MissingRange> {
    Ok(input.get(0..MAGIC.len() as u64)? == MAGIC)
}

/// The offset of each tensor is a multiple of this number of bytes.
pub fn alignment(header: &Header) -> u64 {
    let found = header.value(ALIGNMENT_KEY).and_then(|value| value.text().parse::<u32>().ok());
    found.filter(|found| found.is_power_of_two()).unwrap_or(ALIGNMENT).into()
}

/// Reads the header of a file.
///
/// Fails with [`GgufError::Missing`] until the header is in `input`. Allocation is bounded by the bytes in `input`,
/// never by a count or a length in the file.
pub fn parse_gguf(input: &HeaderInput, mode: ParseMode) -> Result<Header, GgufError> {
    let mut cursor = GgufCursor::new(input);
    cursor.take(MAGIC.len() as u64)?;
    let version = cursor.u32()?;
    match version {
        2 | 3 => {}
        _ if version & 0xffff == 0 && version != 0 => {
            return Err(GgufError::BigEndian { version: version.swap_bytes() });
        }
        _ => return Err(GgufError::Version { version }),
    }
    let mut reader = GgufReader { builder: HeaderBuilder::new(mode), alignment: ALIGNMENT.into(), expected: 0 };
    reader.builder.version(version);
    let (tensors, keys) = (cursor.u64()?, cursor.u64()?);
    reader.metadata(&mut cursor, keys)?;
    let mut found = Vec::new();
    for number in 0..tensors {
        found.extend(reader.tensor(&mut cursor, number)?);
    }
    reader.finish(cursor.offset(), tensors > 0, found, input.len())
}

struct GgufReader {
    builder: HeaderBuilder,
    /// In bytes.
    alignment: u64,
    /// End of the data of the tensors so far with padding, in bytes from the beginning of the data.
    expected: u64,
}

/// A tensor whose data has no place in the file yet: the start of the data is known only at the end of the header.
struct UnplacedTensor {
    tensor: NewTensor,
    /// In bytes from the beginning of the data.
    offset: u64,
    nbytes: u64,
}

impl GgufReader {
    fn is_strict(&self) -> bool {
        self.builder.mode() != ParseMode::Lenient
    }

    fn metadata(&mut self, cursor: &mut GgufCursor, keys: u64) -> Result<(), GgufError> {
        let mut seen = HashSet::new();
        for number in 0..keys {
            let error = |key: Option<&str>, fault| GgufError::Metadata { number, key: key.map(str::to_owned), fault };
            let start = cursor.offset();
            let bytes = cursor.string()?.map_err(|len| error(None, GgufFault::Length { len }))?;
            if str::from_utf8(bytes).is_err() && self.is_strict() {
                return Err(error(None, GgufFault::NotUtf8 { what: "key" }));
            }
            let key = String::from_utf8_lossy(bytes).into_owned();
            let kind = cursor.u32()?;
            let value =
                read_value(cursor, kind).map_err(|broken| broken.into_error(|fault| error(Some(&key), fault)))?;
            if key == ALIGNMENT_KEY {
                self.set_alignment(kind, &value).map_err(|fault| error(Some(&key), fault))?;
            }
            let fault = match () {
                () if key.is_empty() => Some(GgufFault::Empty),
                () if !seen.insert(key.clone()) => Some(GgufFault::Duplicate),
                () => None,
            };
            match fault {
                Some(fault) if self.is_strict() => return Err(error(Some(&key), fault)),
                Some(fault) => self.builder.skip(&key, || format!("metadata key: {fault}")),
                None => {
                    self.builder.pair(key.clone(), start..cursor.offset());
                    self.builder.metadata(key, value);
                }
            }
        }
        Ok(())
    }

    fn set_alignment(&mut self, kind: u32, value: &MetadataValue) -> Result<(), GgufFault> {
        const UINT32: u32 = 4;
        match value.text().parse::<u32>() {
            Ok(found) if kind == UINT32 && found.is_power_of_two() => self.alignment = found.into(),
            Ok(found) if kind == UINT32 => return Err(GgufFault::Alignment { found }),
            _ => return Err(GgufFault::AlignmentType { kind }),
        }
        Ok(())
    }

    /// Reads the description of a tensor. `None` if it breaks a rule and is left out.
    fn tensor(&mut self, cursor: &mut GgufCursor, number: u64) -> Result<Option<UnplacedTensor>, GgufError> {
        let error = |name: Option<&str>, fault| GgufError::Tensor {
            name: name.map_or_else(|| number.to_string(), str::to_owned),
            fault,
        };
        let bytes = cursor.string()?.map_err(|len| error(None, GgufFault::Length { len }))?;
        let lossy = String::from_utf8_lossy(bytes);
        let mut fault = None;
        if str::from_utf8(bytes).is_err() {
            fault = Some(GgufFault::NotUtf8 { what: "name" });
        } else if bytes.len() > NAME_MAX && self.is_strict() {
            fault = Some(GgufFault::LongName { len: bytes.len() });
        }
        let rank = cursor.u32()?;
        if rank > RANK_MAX {
            // The fields after so many dimensions cannot be found reliably.
            return Err(error(Some(&lossy), GgufFault::Rank { rank }));
        }
        let mut dims = Vec::with_capacity(RANK_MAX as usize);
        for _ in 0..rank {
            dims.push(cursor.u64()?);
        }
        let (kind, offset) = (cursor.u32()?, cursor.u64()?);
        let row = dims.first().copied().unwrap_or(1);
        // The file has the innermost dimension first.
        dims.reverse();
        let measured = measure(&dims, row, kind);
        let fault = fault.or_else(|| measured.as_ref().err().cloned());
        let unplaced = match (measured, fault) {
            (Ok((dtype, nbytes)), None) => {
                let start = self.builder.next_dim();
                dims.iter().for_each(|dim| self.builder.dim(*dim));
                let (name, shape) = (self.builder.name(&lossy), self.builder.shape_from(start));
                let dtype = self.builder.known_dtype(dtype);
                let tensor = NewTensor { name, dtype, shape, range: 0..0, is_unusual: false };
                UnplacedTensor { tensor, offset, nbytes }
            }
            (_, Some(fault)) if self.is_strict() => return Err(error(Some(&lossy), fault)),
            (_, fault) => {
                self.builder.skip(&lossy, || fault.map(|fault| fault.to_string()).unwrap_or_default());
                return Ok(None);
            }
        };
        if self.builder.mode() == ParseMode::Strict {
            if offset != self.expected {
                return Err(error(Some(&lossy), GgufFault::Offset { found: offset, expected: self.expected }));
            }
            let padded = unplaced.nbytes.checked_next_multiple_of(self.alignment);
            let end = padded.and_then(|padded| offset.checked_add(padded));
            let overflow = || error(Some(&lossy), GgufFault::Overflow { shape: brackets(&dims) });
            self.expected = end.ok_or_else(overflow)?;
        }
        Ok(Some(unplaced))
    }

    fn finish(mut self, end: u64, has_data: bool, found: Vec<UnplacedTensor>, len: u64) -> Result<Header, GgufError> {
        // Without tensors there is no padding.
        let data_start = if has_data { end.next_multiple_of(self.alignment) } else { end };
        let mode = self.builder.mode();
        let mut last = data_start;
        for UnplacedTensor { tensor, offset, nbytes } in found {
            let begin = data_start.saturating_add(offset);
            let end = begin.saturating_add(nbytes);
            last = last.max(end);
            if mode != ParseMode::Lenient || end <= len {
                self.builder.push(NewTensor { range: begin..end, ..tensor });
            } else {
                self.builder.skip_entry(&tensor.name, || GgufFault::Outside { begin, end, len }.to_string());
            }
        }
        if mode == ParseMode::Strict && last > len {
            return Err(GgufError::DataCut { end: last, len });
        }
        let header = self.builder.finish(NAME, None, data_start, || GgufFault::Duplicate.to_string());
        header.map_err(|error| match error {
            BuildError::Duplicate { name } => GgufError::Tensor { name, fault: GgufFault::Duplicate },
            // Not reachable: the largest header is smaller than 2^32 bytes.
            BuildError::TooLarge => GgufError::HeaderTooLarge { end },
        })
    }
}

/// The dtype of a tensor, and its size in bytes.
fn measure(shape: &[u64], row: u64, number: u32) -> Result<(Dtype<'static>, u64), GgufFault> {
    let overflow = || GgufFault::Overflow { shape: brackets(shape) };
    // ggml counts in signed 64-bit numbers, the innermost dimension first.
    let fits = |number: &u64| i64::try_from(*number).is_ok();
    let multiply = |product: u64, dim: &u64| product.checked_mul(*dim).filter(|product| fits(product) && fits(dim));
    let elements = shape.iter().rev().try_fold(1, multiply).ok_or_else(overflow)?;
    let dtype = Dtype::from_ggml(number).ok_or(GgufFault::Type { number })?;
    let block = dtype.block().ok_or(GgufFault::Type { number })?;
    if !row.is_multiple_of(block.elements) {
        return Err(GgufFault::Row { row, dtype: dtype.name(), block: block.elements });
    }
    let nbytes = (elements / block.elements).checked_mul(block.bytes).filter(fits).ok_or_else(overflow)?;
    Ok((dtype, nbytes))
}

/// Why a value cannot be read.
enum BrokenValue {
    Fault(GgufFault),
    Error(GgufError),
}

impl BrokenValue {
    fn into_error(self, error: impl FnOnce(GgufFault) -> GgufError) -> GgufError {
        match self {
            Self::Fault(fault) => error(fault),
            Self::Error(error) => error,
        }
    }
}

impl From<GgufError> for BrokenValue {
    fn from(error: GgufError) -> Self {
        Self::Error(error)
    }
}

/// Reads a value of the type with that number.
fn read_value(cursor: &mut GgufCursor, kind: u32) -> Result<MetadataValue, BrokenValue> {
    if kind == ARRAY {
        return array(cursor);
    }
    match scalar(kind)? {
        (ScalarType::String, _) => Ok(MetadataValue::bytes_of(read_string(cursor)?)),
        (scalar, size) => Ok(MetadataValue::scalar(scalar, read_number(scalar, cursor.take(size)?))),
    }
}

/// The type with that number, and its size in bytes.
fn scalar(kind: u32) -> Result<(ScalarType, u64), BrokenValue> {
    types::scalar(kind).ok_or(BrokenValue::Fault(GgufFault::ValueType { kind }))
}

fn read_string<'i>(cursor: &mut GgufCursor<'i>) -> Result<&'i [u8], BrokenValue> {
    cursor.string()?.map_err(|len| BrokenValue::Fault(GgufFault::Length { len }))
}

fn array(cursor: &mut GgufCursor) -> Result<MetadataValue, BrokenValue> {
    let (kind, len) = (cursor.u32()?, cursor.u64()?);
    if len > LENGTH_MAX {
        return Err(BrokenValue::Fault(GgufFault::Length { len }));
    }
    let mut lines = Vec::new();
    // Writing to a vector cannot fail.
    let mut add = |line: &dyn Fn(&mut Vec<u8>)| {
        line(&mut lines);
        lines.push(b'\n');
    };
    if kind == ARRAY {
        return Err(BrokenValue::Fault(GgufFault::Nested));
    }
    let (scalar, size) = scalar(kind)?;
    if scalar == ScalarType::String {
        for _ in 0..len {
            let text = String::from_utf8_lossy(read_string(cursor)?);
            add(&|lines| drop(write_json_string(&text, lines)));
        }
    } else {
        for bytes in cursor.take(size * len)?.chunks_exact(size as usize) {
            let text = element(scalar, bytes);
            add(&|lines| lines.extend_from_slice(text.as_bytes()));
        }
    }
    Ok(MetadataValue::array(scalar, String::from_utf8(lines).unwrap_or_default()))
}

/// An element of an array, a number or a boolean, as JSON. JSON has no NaN and no infinity: they become `null`.
pub fn element(scalar: ScalarType, bytes: &[u8]) -> String {
    let text = read_number(scalar, bytes);
    if scalar.is_float() && text.contains('n') { "null".to_owned() } else { text }
}

/// The text of a number or a boolean. Floating point has as many digits as are needed to read the same number again.
fn read_number(scalar: ScalarType, bytes: &[u8]) -> String {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let bits = u64::from_le_bytes(wide);
    let json = |number: serde_json::Result<String>| number.unwrap_or_default();
    match scalar {
        ScalarType::I8 => (bits as i8).to_string(),
        ScalarType::I16 => (bits as i16).to_string(),
        ScalarType::I32 => (bits as i32).to_string(),
        ScalarType::I64 => (bits as i64).to_string(),
        ScalarType::Bool => (bits != 0).to_string(),
        ScalarType::F32 => match f32::from_bits(bits as u32) {
            number if number.is_finite() => json(serde_json::to_string(&number)),
            number => special(number.into()),
        },
        ScalarType::F64 => match f64::from_bits(bits) {
            number if number.is_finite() => json(serde_json::to_string(&number)),
            number => special(number),
        },
        ScalarType::U8 | ScalarType::U16 | ScalarType::U32 | ScalarType::U64 | ScalarType::String => bits.to_string(),
    }
}

fn special(number: f64) -> String {
    if number.is_nan() { "nan".to_owned() } else { number.to_string() }
}
