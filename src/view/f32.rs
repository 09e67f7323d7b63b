//! `f32/`: a tensor as little-endian float32.

use super::values::{self, Float};
use crate::content::Content;
use crate::format::Dtype;
use crate::model::{Model, Numbers};

/// Whether a tensor is shown.
pub fn shows(numbers: &Numbers) -> bool {
    numbers.dtype().to_f32().is_some()
}

/// Whether the file is a link to the stored tensor. A copy would occupy the page cache twice.
pub fn is_stored(numbers: &Numbers) -> bool {
    numbers.weight.is_none() && numbers.dtype() == Dtype::F32
}

/// The file of a tensor.
pub fn content(model: &Model, numbers: &Numbers) -> Content {
    Content::new(values::segment(model, numbers, Float::F32))
}
