//! Tensors of ONNX: their dtypes, and the places of their data.

use crate::format::dtype::{Dtype, DtypeBlock};
use crate::format::input::{HeaderInput, MissingRange};
use crate::format::tensors::{count_elements, fits, too_large};
use crate::text::quote;
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of dimensions.
const RANK_MAX: usize = 64;

/// Maximum length of the name of another file, in bytes.
const LOCATION_MAX: usize = 1024;

/// The field that has the values of a dtype unless they are in `raw_data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ValueField {
    Floats,
    Doubles,
    Int32,
    Int64,
    Uint64,
}

/// The number of a dtype, its name, its size in bits, and the field of its values.
/// Source: `TensorProto.DataType` in `onnx/onnx.proto`.
const TYPES: [(u64, &str, u64, ValueField); 27] = [
    (1, "F32", 32, ValueField::Floats),
    (2, "U8", 8, ValueField::Int32),
    (3, "I8", 8, ValueField::Int32),
    (4, "U16", 16, ValueField::Int32),
    (5, "I16", 16, ValueField::Int32),
    (6, "I32", 32, ValueField::Int32),
    (7, "I64", 64, ValueField::Int64),
    (9, "BOOL", 8, ValueField::Int32),
    (10, "F16", 16, ValueField::Int32),
    (11, "F64", 64, ValueField::Doubles),
    (12, "U32", 32, ValueField::Uint64),
    (13, "U64", 64, ValueField::Uint64),
    (14, "C64", 64, ValueField::Floats),
    (15, "C128", 128, ValueField::Doubles),
    (16, "BF16", 16, ValueField::Int32),
    (17, "F8_E4M3", 8, ValueField::Int32),
    (18, "F8_E4M3FNUZ", 8, ValueField::Int32),
    (19, "F8_E5M2", 8, ValueField::Int32),
    (20, "F8_E5M2FNUZ", 8, ValueField::Int32),
    (21, "U4", 4, ValueField::Int32),
    (22, "I4", 4, ValueField::Int32),
    (23, "F4", 4, ValueField::Int32),
    (24, "F8_E8M0", 8, ValueField::Int32),
    (25, "U2", 2, ValueField::Int32),
    (26, "I2", 2, ValueField::Int32),
    (27, "F6_E2M3", 6, ValueField::Int32),
    (28, "F6_E3M2", 6, ValueField::Int32),
];

const STRINGS: u64 = 8;

/// The value of `data_location` for data in another file.
const EXTERNAL: u64 = 1;

/// A tensor, as its name and its message say.
#[derive(Debug, Default)]
pub struct OnnxTensor {
    /// The whole name.
    pub name: String,
    /// Whether a later tensor has the name too, which is an error.
    pub is_repeated: bool,
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    pub nbytes: u64,
    pub data: OnnxData,
}

#[derive(Debug)]
pub enum OnnxData {
    /// A part of the file, in bytes from its start.
    Range(Range<u64>),
    Decoded(Arc<[u8]>),
    External(ExternalData),
    /// It cannot be shown although the file is sound, for this reason.
    LeftOut(&'static str),
    /// A broken rule.
    Fault(String),
}

impl Default for OnnxData {
    fn default() -> Self {
        Self::Range(0..0)
    }
}

/// The place of data in another file, in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExternalData {
    /// Relative to the directory of the model, without `..`.
    pub location: String,
    pub offset: u64,
    /// `None` if it reaches to the end of that file.
    pub len: Option<u64>,
}

impl OnnxTensor {
    /// The dtype of a header. One whose elements do not fill whole bytes has no values.
    pub fn known_dtype(&self) -> Dtype<'static> {
        let dtype = Dtype::from_name(self.dtype);
        let is_whole = |block: DtypeBlock| {
            self.nbytes.is_multiple_of(block.bytes) && {
                let elements = count_elements(&self.shape);
                elements.is_some_and(|elements| elements.is_multiple_of(block.elements))
            }
        };
        if dtype.block().is_some_and(is_whole) { dtype } else { Dtype::Unknown(self.dtype) }
    }
}

/// The fields of a message of a tensor, as far as they were read.
#[derive(Debug, Default)]
pub struct TensorFields {
    pub name: String,
    pub dims: Vec<u64>,
    pub data_type: u64,
    pub is_segment: bool,
    pub location: u64,
    pub raw: Option<Range<u64>>,
    /// The places of numbers of fixed size: `float_data` and `double_data`.
    pub floats: Vec<Range<u64>>,
    pub doubles: Vec<Range<u64>>,
    /// Numbers of variable size: `int32_data`, `int64_data` and `uint64_data`.
    pub int32: Vec<u64>,
    pub int64: Vec<u64>,
    pub uint64: Vec<u64>,
    pub external: ExternalFields,
    /// Number of the parts of `floats` or `doubles` that are known to be there, if they are copied.
    ready: usize,
}

/// The entries of `external_data` that say where the data is. The last of repeated ones counts.
#[derive(Debug, Default)]
pub struct ExternalFields {
    location: Option<String>,
    offset: Option<String>,
    length: Option<String>,
}

impl ExternalFields {
    pub fn set(&mut self, (key, value): (String, String)) {
        match &key[..] {
            "location" => self.location = Some(value),
            "offset" => self.offset = Some(value),
            "length" => self.length = Some(value),
            _ => {}
        }
    }
}

impl TensorFields {
    /// The tensor of these fields, still without its whole name. `at` is where its message begins. Fails if bytes are
    /// missing that are decoded.
    pub fn finish(&mut self, at: u64, input: &HeaderInput) -> Result<OnnxTensor, MissingRange> {
        let mut tensor = OnnxTensor::default();
        tensor.data = match self.data(&mut tensor, at, input)? {
            Ok(data) => data,
            Err(fault) => OnnxData::Fault(fault),
        };
        Ok(tensor)
    }

    /// The data. Sets dtype, shape and size of the tensor, as far as they are sound.
    fn data(
        &mut self,
        tensor: &mut OnnxTensor,
        at: u64,
        input: &HeaderInput,
    ) -> Result<Result<OnnxData, String>, MissingRange> {
        let Some((_, dtype, bits, field)) = TYPES.iter().find(|row| row.0 == self.data_type) else {
            return Ok(match self.data_type {
                STRINGS => Ok(OnnxData::LeftOut("its elements are strings")),
                other => Err(format!("its dtype has the number {other}, which is not known")),
            });
        };
        tensor.dtype = dtype;
        if self.is_segment {
            return Ok(Err("it is stored in segments, which is not supported".to_owned()));
        }
        if self.dims.len() > RANK_MAX {
            return Ok(Err(format!("it has {} dimensions; at most {RANK_MAX} are supported", self.dims.len())));
        }
        if let Some(dim) = self.dims.iter().map(|dim| dim.cast_signed()).find(|dim| *dim < 0) {
            return Ok(Err(format!("its dimension {dim} is negative")));
        }
        tensor.shape = self.dims.clone();
        // Each number has an element, or a byte of small elements.
        let width = (*bits / 8).max(1);
        let bits = count_elements(&self.dims).and_then(|elements| fits(elements.checked_mul(*bits)?));
        let Some(nbytes) = bits.map(|bits| bits.div_ceil(8)) else { return Ok(Err(too_large(&self.dims))) };
        tensor.nbytes = nbytes;
        if self.location == EXTERNAL {
            return Ok(self.external_data(nbytes).map(OnnxData::External));
        }
        let wrong = |has: u64| Ok(Err(format!("its data has {has} bytes, but dtype and shape give {nbytes}")));
        if let Some(raw) = &self.raw {
            let len = raw.end - raw.start;
            return if len == nbytes { Ok(Ok(OnnxData::Range(raw.clone()))) } else { wrong(len) };
        }
        let places = match field {
            ValueField::Floats => &self.floats,
            ValueField::Doubles => &self.doubles,
            ValueField::Int32 => return Ok(decoded(&self.int32, width, nbytes)),
            ValueField::Int64 => return Ok(decoded(&self.int64, width, nbytes)),
            ValueField::Uint64 => return Ok(decoded(&self.uint64, width, nbytes)),
        };
        let len = places.iter().fold(0, |len, range| len + (range.end - range.start));
        match &places[..] {
            _ if len != nbytes => wrong(len),
            [] => Ok(Ok(OnnxData::Range(at..at))),
            [range] => Ok(Ok(OnnxData::Range(range.clone()))),
            parts => {
                // The parser starts again for each that is missing.
                let parts = parts.to_vec();
                while let Some(part) = parts.get(self.ready) {
                    input.get(part.clone())?;
                    self.ready += 1;
                }
                let mut bytes = Vec::with_capacity(len as usize);
                for part in parts {
                    bytes.extend_from_slice(input.get(part)?);
                }
                Ok(Ok(OnnxData::Decoded(bytes.into())))
            }
        }
    }

    fn external_data(&self, nbytes: u64) -> Result<ExternalData, String> {
        let ExternalFields { location, offset, length } = &self.external;
        let number = |key: &str, value: &Option<String>| {
            let Some(text) = value else { return Ok(None) };
            let is_decimal = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse().ok().filter(|_| is_decimal).and_then(fits);
            number.map(Some).ok_or_else(|| format!("the {key} of its external data is {}", quote(text)))
        };
        let location = location.as_deref().unwrap_or_default();
        check_location(location)?;
        let (offset, len) = (number("offset", offset)?.unwrap_or(0), number("length", length)?);
        if let Some(len) = len.filter(|len| *len != nbytes) {
            return Err(format!("its data in {} has {len} bytes, but dtype and shape give {nbytes}", quote(location)));
        }
        Ok(ExternalData { location: location.to_owned(), offset, len })
    }
}

/// The numbers in little-endian order, `width` bytes of each.
fn decoded(numbers: &[u64], width: u64, nbytes: u64) -> Result<OnnxData, String> {
    let count = numbers.len() as u64;
    if count.checked_mul(width) != Some(nbytes) {
        return Err(format!("its data has {count} numbers, but dtype and shape give {nbytes} bytes"));
    }
    let bytes = numbers.iter().flat_map(|number| number.to_le_bytes().into_iter().take(width as usize));
    Ok(OnnxData::Decoded(bytes.collect()))
}

/// Fails unless a path of external data stays in the directory of the model.
fn check_location(location: &str) -> Result<(), String> {
    if location.len() > LOCATION_MAX {
        let len = location.len();
        return Err(format!("the location of its external data has {len} bytes; at most {LOCATION_MAX} are read"));
    }
    let fault = match () {
        () if location.is_empty() => "is empty",
        () if location.contains('\0') => "has a NUL character",
        () if location.starts_with('/') => "is absolute",
        () if location.split('/').any(|part| part == "..") => "leads out of the directory",
        () if location.split('/').all(|part| part.is_empty() || part == ".") => "names no file",
        () => return Ok(()),
    };
    Err(format!("the location {} of its external data {fault}", quote(location)))
}
