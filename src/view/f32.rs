//! `f32/`: a tensor as little-endian float32.

use super::values::{self, FloatDtype};
use crate::content::Content;
use crate::format::Dtype;
use crate::model::{Model, TensorNumbers};

/// Whether a tensor is shown.
pub fn f32_shows(numbers: &TensorNumbers) -> bool {
    numbers.dtype().to_f32().is_some()
}

/// Whether the file is a link to the stored tensor. A copy would occupy the page cache twice.
pub fn is_stored(numbers: &TensorNumbers) -> bool {
    numbers.weight.is_none() && numbers.dtype() == Dtype::F32
}

/// The file of a tensor.
pub fn f32_content(model: &Model, numbers: &TensorNumbers) -> Content {
    Content::new(values::segment(model, numbers, FloatDtype::F32))
}
