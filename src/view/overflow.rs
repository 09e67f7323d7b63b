//! Finds the values that a conversion to half floats makes infinite.

use super::selection::{ExportTensors, numbers};
use super::values::{self, FloatDtype, ValueConversion};
use crate::codec::f16::INFINITE_FROM;
use crate::content::{Content, Error, ReadRequest};
use crate::format::Dtype;
use crate::model::{Model, TensorNumbers};

/// A tensor with finite values that become infinite.
#[derive(Debug, Clone, PartialEq)]
pub struct OverflowingTensor {
    pub name: String,
    /// Number of such values.
    pub infinite: u64,
    /// Number of all values.
    pub elements: u64,
}

/// Dtypes whose values are all in the range of half floats.
const WITHIN: [Dtype; 5] = [Dtype::F16, Dtype::F8E5M2, Dtype::F8E4M3, Dtype::F8E4M3Fnuz, Dtype::F8E5M2Fnuz];

/// The tensors of an export to half floats that have values beyond their range. Reads the values of all tensors that
/// are converted and may have such values; none for another conversion. Calls `read` with the bytes of each piece.
pub fn find_overflows(
    model: &Model,
    tensors: &ExportTensors,
    conversion: ValueConversion,
    request: &ReadRequest,
    mut read: impl FnMut(u64),
) -> Result<Vec<OverflowingTensor>, Error> {
    let mut found = Vec::new();
    for at in 0..tensors.len(model) {
        let numbers = numbers(model, tensors.at(model, at), Some(conversion));
        let Some((content, count)) = values_to_check(model, &numbers, conversion.to) else { continue };
        let mut infinite = 0;
        values::each_value(&content, 0..content.len(), values::step(Dtype::F64), request, |piece| {
            infinite += count(piece);
            read(piece.len() as u64);
        })?;
        if infinite > 0 {
            found.push(OverflowingTensor { name: numbers.name().to_owned(), infinite, elements: numbers.elements() });
        }
    }
    Ok(found)
}

/// The size in bytes of what [`find_overflows`] reads.
pub fn overflow_bytes(model: &Model, tensors: &ExportTensors, conversion: ValueConversion) -> u64 {
    let contents = (0..tensors.len(model)).filter_map(|at| {
        let numbers = numbers(model, tensors.at(model, at), Some(conversion));
        values_to_check(model, &numbers, conversion.to)
    });
    contents.map(|(content, _)| content.len()).fold(0, u64::saturating_add)
}

/// Counts the values in bytes that become infinite.
type CountInfinite = fn(&[u8]) -> u64;

/// The values of a tensor as float64 or float32, if some of them may become infinite.
fn values_to_check(model: &Model, numbers: &TensorNumbers, to: FloatDtype) -> Option<(Content, CountInfinite)> {
    let dtype = numbers.dtype();
    if to != FloatDtype::F16 {
        return None;
    }
    match numbers.weight {
        None if dtype.is_integer() || dtype == Dtype::C64 || WITHIN.contains(&dtype) => None,
        None if dtype == Dtype::F64 => Some((model.data(&numbers.tensor).into(), count_f64)),
        _ => Some((values::segment(model, numbers, FloatDtype::F32)?.into(), count_f32)),
    }
}

fn count_f32(bytes: &[u8]) -> u64 {
    let values = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    values.filter(|value| value.is_finite() && value.abs() >= INFINITE_FROM as f32).count() as u64
}

fn count_f64(bytes: &[u8]) -> u64 {
    let values = bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes));
    values.filter(|value| value.is_finite() && value.abs() >= INFINITE_FROM).count() as u64
}
