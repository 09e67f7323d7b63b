//! Reads the header of one array, which may be a part of a file.

use super::descr::ArrayDescr;
use super::error::NumpyFault;
use super::literal::{self, PythonLiteral};
use super::{ELEMENT_MAX, MAGIC, MAX_HEADER};
use crate::format::header::{ArenaName, HeaderBuilder, NewTensor};
use crate::format::input::{HeaderInput, MissingRange};
use crate::text::brackets;
use std::ops::Range;

/// An array, as its header describes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumpyArray {
    /// The major version of the format.
    pub version: u8,
    /// The dtype.
    pub descr: ArrayDescr,
    /// Whether the elements are in Fortran order, and that differs from C order.
    pub fortran_order: bool,
    /// Dimensions in elements.
    pub shape: Vec<u64>,
    /// The range of the elements, in bytes from the start of the file. It may end beyond the file.
    pub range: Range<u64>,
}

/// Size of the magic number, the version and the longest length of a header, in bytes.
pub const FIXED: u64 = 12;

/// The version of the array that takes the bytes `part` of a file, and the range of the text of its header.
pub fn locate(input: &HeaderInput, part: &Range<u64>) -> Result<Result<(u8, Range<u64>), NumpyFault>, MissingRange> {
    let at = |from: u64, len: u64| part.start.saturating_add(from)..part.start.saturating_add(from + len).min(part.end);
    let head = input.get(at(0, FIXED))?;
    let Some([version, _, length @ ..]) = head.strip_prefix(MAGIC) else { return Ok(Err(NumpyFault::Magic)) };
    let (from, len) = match (version, length) {
        (1, [a, b, ..]) => (10, u64::from(u16::from_le_bytes([*a, *b]))),
        (2 | 3, [a, b, c, d]) => (12, u64::from(u32::from_le_bytes([*a, *b, *c, *d]))),
        (1..=3, _) => return Ok(Err(NumpyFault::HeaderCut { end: part.start.saturating_add(12), len: part.end })),
        _ => return Ok(Err(NumpyFault::Version { version: *version })),
    };
    if len > MAX_HEADER {
        return Ok(Err(NumpyFault::LongHeader { len }));
    }
    let end = part.start.saturating_add(from + len);
    if end > part.end {
        return Ok(Err(NumpyFault::HeaderCut { end, len: part.end }));
    }
    Ok(Ok((*version, part.start + from..end)))
}

/// Reads the header of the array that takes the bytes `part` of a file.
pub fn read_array_header(
    input: &HeaderInput,
    part: &Range<u64>,
) -> Result<Result<NumpyArray, NumpyFault>, MissingRange> {
    let (version, range) = match locate(input, part)? {
        Ok(found) => found,
        Err(fault) => return Ok(Err(fault)),
    };
    let text = input.get(range.clone())?;
    // Version 3 is UTF-8, the others are Latin-1, whose characters have the same numbers in Unicode.
    let text = match version {
        3 => match String::from_utf8(text.to_vec()) {
            Ok(text) => text,
            Err(_) => return Ok(Err(NumpyFault::NotUtf8)),
        },
        _ => text.iter().map(|byte| char::from(*byte)).collect(),
    };
    Ok(describe_array(&text, version, range.end))
}

fn describe_array(text: &str, version: u8, data: u64) -> Result<NumpyArray, NumpyFault> {
    let parsed = PythonLiteral::parse(text)
        .map_err(|literal::LiteralFault { at, reason }| NumpyFault::Literal { at, reason })?;
    let PythonLiteral::Dict(pairs) = parsed else { return Err(NumpyFault::NoDict) };
    let value = |key: &'static str| {
        let found = pairs.iter().find(|(other, _)| other == key).map(|(_, value)| value);
        found.ok_or(NumpyFault::NoKey { key })
    };
    let (descr, order, shape) = (value("descr")?, value("fortran_order")?, value("shape")?);
    if let Some((key, _)) = pairs.iter().find(|(key, _)| !["descr", "fortran_order", "shape"].contains(&&key[..])) {
        return Err(NumpyFault::Key { key: key.clone() });
    }
    let PythonLiteral::Bool(fortran_order) = *order else { return Err(NumpyFault::Order) };
    let PythonLiteral::Tuple(dims) = shape else { return Err(NumpyFault::Shape) };
    let dim =
        |dim: &PythonLiteral| if let PythonLiteral::Integer(dim) = dim { Ok(*dim) } else { Err(NumpyFault::Shape) };
    let shape = dims.iter().map(dim).collect::<Result<Vec<u64>, _>>()?;
    let descr = ArrayDescr::new(descr)?;
    // NumPy counts in signed 64-bit numbers.
    let fits = |number: &u64| i64::try_from(*number).is_ok();
    let multiply = |product: u64, dim: &u64| product.checked_mul(*dim).filter(|product| fits(product) && fits(dim));
    let elements = shape.iter().try_fold(1, multiply);
    let bytes = elements.and_then(|elements| elements.checked_mul(descr.item)).filter(fits);
    let end = bytes.and_then(|bytes| data.checked_add(bytes)).filter(fits);
    let Some(end) = end else {
        return Err(NumpyFault::Overflow { shape: brackets(&shape), descr: descr.name });
    };
    // In an array with fewer than two dimensions of several elements, both orders are the same.
    let is_one_run = shape.contains(&0) || shape.iter().filter(|dim| **dim > 1).count() < 2;
    let fortran_order = fortran_order && !is_one_run;
    // Such elements are gathered one by one, each as a whole.
    if (fortran_order || descr.swapped.is_some()) && descr.item > ELEMENT_MAX {
        return Err(NumpyFault::Wide { size: descr.item });
    }
    Ok(NumpyArray { version, descr, fortran_order, shape, range: data..end })
}

impl NumpyArray {
    /// Adds the array to a header.
    pub fn push(self, name: ArenaName, builder: &mut HeaderBuilder) {
        let start = builder.next_dim();
        self.shape.iter().for_each(|dim| builder.dim(*dim));
        let shape = builder.shape_from(start);
        let dtype = match self.descr.known {
            Some(known) => builder.known_dtype(known),
            None => builder.dtype_number(&self.descr.name),
        };
        let tensor = NewTensor { name, dtype, shape, range: self.range, is_unusual: false };
        if tensor.range.is_empty() || !self.fortran_order && self.descr.swapped.is_none() {
            return builder.push(tensor);
        }
        let start = builder.next_dim();
        strides(&self.shape, self.fortran_order).into_iter().for_each(|stride| builder.dim(stride));
        let strides = builder.shape_from(start);
        let word = self.descr.swapped.unwrap_or(1) as u8;
        builder.push_strided(tensor, &strides, self.descr.item as u32, word);
    }
}

/// The distance of neighbours along each dimension, in elements. No dimension is 0.
fn strides(shape: &[u64], fortran_order: bool) -> Vec<u64> {
    let mut stride = 1;
    let mut next = |dim: &u64| {
        let before = stride;
        stride *= dim;
        before
    };
    match fortran_order {
        true => shape.iter().map(next).collect(),
        false => {
            let mut strides: Vec<u64> = shape.iter().rev().map(&mut next).collect();
            strides.reverse();
            strides
        }
    }
}
