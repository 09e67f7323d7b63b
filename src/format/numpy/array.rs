//! Reads the header of one array, which may be a part of a file.

use super::descr::ArrayDescr;
use super::literal::PythonLiteral;
use super::{ELEMENT_MAX, MAGIC, MAX_HEADER};
use crate::format::error::Error;
use crate::format::header::HeaderBuilder;
use crate::format::input::{HeaderInput, number_at};
use crate::format::tensors::{c_strides, count_elements, fits};
use crate::text::{brackets, quote};
use std::ops::Range;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NumpyArray {
    /// The major version of the format.
    pub version: u8,
    pub descr: ArrayDescr,
    /// Whether the elements are in Fortran order, and that differs from C order.
    pub fortran_order: bool,
    pub shape: Vec<u64>,
    /// The range of the elements, in bytes from the start of the file. It may end beyond the file.
    pub range: Range<u64>,
}

const KEYS: [&str; 3] = ["descr", "fortran_order", "shape"];

/// Size of the magic number, the version and the longest length of a header, in bytes.
pub const FIXED: u64 = 12;

/// The version of the array that takes the bytes `part` of a file, and the range of the text of its header.
pub fn locate(input: &HeaderInput, part: &Range<u64>) -> Result<(u8, Range<u64>), Error> {
    let head = input.get(part.start..part.start.saturating_add(FIXED).min(part.end))?;
    let Some([version, _, length @ ..]) = head.strip_prefix(MAGIC) else {
        return Err(Error::Broken("it does not begin with the magic number of a NumPy array".to_owned()));
    };
    let width = match version {
        1 => 2,
        2 | 3 => 4,
        _ => {
            return Err(Error::Broken(format!("version {version} of the array format; versions 1 to 3 are supported")));
        }
    };
    let len = number_at(length, 0, width);
    let (is_there, from) = (length.len() >= width, FIXED - 4 + width as u64);
    if is_there && len > MAX_HEADER {
        return Err(Error::Broken(format!("its header has {len} bytes; weightfs reads at most {MAX_HEADER}")));
    }
    let end = part.start.saturating_add(if is_there { from + len } else { FIXED });
    if end > part.end || !is_there {
        return Err(Error::Broken(format!(
            "truncated: its header goes on to byte {end}, but it ends at byte {} (did a download stop?)",
            part.end
        )));
    }
    Ok((*version, part.start + from..end))
}

/// Reads the header of the array that takes the bytes `part` of a file. Fails with [`Error::Unsupported`] for an array
/// of Python objects.
pub fn read_array_header(input: &HeaderInput, part: &Range<u64>) -> Result<NumpyArray, Error> {
    let (version, range) = locate(input, part)?;
    let text = input.get(range.clone())?;
    // Version 3 is UTF-8, the others are Latin-1, whose characters have the same numbers in Unicode.
    let text = match version {
        3 => String::from_utf8(text.to_vec()).map_err(|_| "its header is not UTF-8".to_owned())?,
        _ => text.iter().map(|byte| char::from(*byte)).collect(),
    };
    describe_array(&text, version, range.end)
}

fn describe_array(text: &str, version: u8, data: u64) -> Result<NumpyArray, Error> {
    let parsed = PythonLiteral::parse(text);
    let parsed = parsed.map_err(|fault| format!("its header is not a Python literal: {fault}"))?;
    let PythonLiteral::Dict(pairs) = parsed else { return Err(Error::Broken("its header is not a dict".to_owned())) };
    let mut values = [&PythonLiteral::None; KEYS.len()];
    for (key, value) in KEYS.iter().zip(&mut values) {
        let found = pairs.iter().find(|(other, _)| other == key);
        *value = &found.ok_or_else(|| format!("its header has no {key}"))?.1;
    }
    if let Some((key, _)) = pairs.iter().find(|(key, _)| !KEYS.contains(&&key[..])) {
        return Err(Error::Broken(format!("its header has the unknown key {}", quote(key))));
    }
    let [descr, order, shape] = values;
    let PythonLiteral::Bool(fortran_order) = *order else {
        return Err(Error::Broken("fortran_order is neither True nor False".to_owned()));
    };
    let shape = shape.numbers().ok_or_else(|| "the shape is not a tuple of whole numbers".to_owned())?;
    let descr = ArrayDescr::new(descr)?;
    // NumPy counts in signed 64-bit numbers.
    let bytes = count_elements(&shape).and_then(|elements| fits(elements.checked_mul(descr.item)?));
    let Some(end) = bytes.and_then(|bytes| fits(data.checked_add(bytes)?)) else {
        return Err(Error::Broken(format!(
            "shape {} of {} has more than 2^63-1 elements or bytes",
            brackets(&shape),
            quote(&descr.name)
        )));
    };
    // In an array with fewer than two dimensions of several elements, both orders are the same.
    let is_one_run = shape.contains(&0) || shape.iter().filter(|dim| **dim > 1).count() < 2;
    let fortran_order = fortran_order && !is_one_run;
    // Such elements are gathered one by one, each as a whole.
    if (fortran_order || descr.swapped.is_some()) && descr.item > ELEMENT_MAX {
        return Err(Error::Broken(format!(
            "elements of {} bytes in Fortran order or with reversed bytes; at most {ELEMENT_MAX} bytes are read",
            descr.item
        )));
    }
    Ok(NumpyArray { version, descr, fortran_order, shape, range: data..end })
}

impl NumpyArray {
    pub fn push(mut self, name: &str, builder: &mut HeaderBuilder) {
        let dtype = match self.descr.known {
            Some(known) => builder.known_dtype(known),
            None => builder.dtype_number(&self.descr.name),
        };
        let is_plain = self.range.is_empty() || !self.fortran_order && self.descr.swapped.is_none();
        let tensor = builder.tensor(name, dtype, &self.shape, self.range);
        if is_plain {
            return builder.push(tensor);
        }
        if self.fortran_order {
            self.shape.reverse();
        }
        let mut strides = c_strides(&self.shape);
        if self.fortran_order {
            strides.reverse();
        }
        let word = self.descr.swapped.unwrap_or(1) as u8;
        builder.push_strided(tensor, &strides, self.descr.item as u32, word);
    }
}

/// The fault of an array whose elements take a range that ends beyond a file or an entry, which ends at byte `len`.
pub fn outside(range: &Range<u64>, len: u64) -> String {
    format!("its data takes bytes {} to {}, but the file ends at byte {len}", range.start, range.end)
}
