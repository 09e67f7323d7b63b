//! `npy/`: a tensor as a NumPy array file.
//!
//! Layout: magic, version, header length, a Python dict padded with spaces so that the data begins at a multiple of 64
//! bytes, and a newline. Source: NumPy Enhancement Proposal 1 and `numpy/lib/format.py`.

use super::values::{self, FloatDtype};
use crate::content::{Content, Segment};
use crate::format::{Dtype, numpy};
use crate::model::{Model, TensorNumbers};
use std::fmt::Write;

const MAGIC: &[u8] = b"\x93NUMPY";

/// The data begins at a multiple of this many bytes.
const ALIGNMENT: usize = 64;

/// Largest rank of a tensor that is shown. The header is generated for each read, so it must stay small. NumPy supports
/// at most 64 dimensions.
const RANK_MAX: usize = 8192;

pub fn npy_shows(numbers: &TensorNumbers) -> bool {
    let is_array = numbers.dtype().to_f32().is_some() || stored(numbers).is_some();
    is_array && numbers.shape().len() <= RANK_MAX
}

/// NumPy's name of the stored elements, if NumPy has their dtype. Elements of a NumPy file that no other format has,
/// such as texts and records, have that name.
fn stored<'m>(numbers: &TensorNumbers<'m>) -> Option<&'m str> {
    match numbers.dtype() {
        _ if numbers.weight.is_some() => None,
        Dtype::Unknown(name) => {
            let bytes = numpy::element_size(name)?.checked_mul(numbers.elements());
            Some(name).filter(|_| bytes == Some(numbers.tensor.info.nbytes))
        }
        known => known.numpy(),
    }
}

/// The array file of a tensor: a header, then the stored bytes if NumPy has the dtype, otherwise float32.
pub fn npy_content(model: &Model, numbers: &TensorNumbers) -> Content {
    let (descr, data) = match stored(numbers) {
        Some(descr) => (descr, Some(model.data(&numbers.tensor))),
        None => ("<f4", values::segment(model, numbers, FloatDtype::F32)),
    };
    let Some(data) = data else { return Content::new([]) };
    Content::new([Segment::Literal(header(descr, numbers.shape()).into()), data])
}

/// Everything before the data. Arrays are in C order.
fn header(descr: &str, shape: &[u64]) -> Vec<u8> {
    // The description of a record is a list.
    let quote = if descr.starts_with('[') { "" } else { "'" };
    let mut dict = format!("{{'descr': {quote}{descr}{quote}, 'fortran_order': False, 'shape': (");
    for dim in shape {
        // Writing to a string cannot fail.
        let _ = write!(dict, "{dim}, ");
    }
    match shape {
        [] => {}
        // A Python tuple of one element keeps its comma.
        [_] => dict.truncate(dict.len() - 1),
        _ => dict.truncate(dict.len() - 2),
    }
    dict.push_str("), }");
    // The header length has 16 bits in version 1.0 and 32 in 2.0, which shapes of thousands of dimensions need.
    let v1 = MAGIC.len() + 2 + size_of::<u16>();
    let v2 = MAGIC.len() + 2 + size_of::<u32>();
    let mut header = MAGIC.to_vec();
    let end = match u16::try_from(padded_len(&dict, v1)) {
        Ok(length) => {
            header.extend([1, 0]);
            header.extend(length.to_le_bytes());
            v1 + usize::from(length)
        }
        Err(_) => {
            header.extend([2, 0]);
            header.extend((padded_len(&dict, v2) as u32).to_le_bytes());
            v2 + padded_len(&dict, v2)
        }
    };
    header.extend(dict.as_bytes());
    header.resize(end - 1, b' ');
    header.push(b'\n');
    header
}

/// Length of the rest of a header after `prefix` bytes: the dictionary, spaces and a newline.
fn padded_len(dict: &str, prefix: usize) -> usize {
    (prefix + dict.len() + 1).next_multiple_of(ALIGNMENT) - prefix
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_match_numpy() {
        let dict = |shape: &[u64]| {
            let header = header("<f4", shape);
            assert_eq!(header.len() % ALIGNMENT, 0);
            assert_eq!(header[..8], *b"\x93NUMPY\x01\x00");
            assert_eq!(usize::from(u16::from_le_bytes([header[8], header[9]])), header.len() - 10);
            assert_eq!(header.last(), Some(&b'\n'));
            String::from_utf8(header[10..].to_vec()).unwrap().trim_end().to_owned()
        };
        assert_eq!(dict(&[]), "{'descr': '<f4', 'fortran_order': False, 'shape': (), }");
        assert_eq!(dict(&[3]), "{'descr': '<f4', 'fortran_order': False, 'shape': (3,), }");
        assert_eq!(dict(&[0, 12]), "{'descr': '<f4', 'fortran_order': False, 'shape': (0, 12), }");
        assert_eq!(header("<f4", &[3, 4]).len(), 128);
        let record = header("[('a', '<f4')]", &[2]);
        assert!(record[10..].starts_with(b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2,), }"));
        let large = header("|u1", &[1; 40_000]);
        assert_eq!((large[6], large.len() % ALIGNMENT), (2, 0));
        assert_eq!(u32::from_le_bytes([large[8], large[9], large[10], large[11]]) as usize, large.len() - 12);
    }
}
