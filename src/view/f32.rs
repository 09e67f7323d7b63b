//! `f32/`: a tensor as little-endian float32.

use super::values::{self, Float};
use crate::content::Content;
use crate::format::{Dtype, TensorInfo};
use crate::model::{Model, Tensor};

/// Whether a tensor is shown.
pub fn shows(tensor: &TensorInfo) -> bool {
    tensor.dtype.to_f32().is_some()
}

/// Whether the file is a link to the stored tensor. A copy would occupy the page cache twice.
pub fn is_stored(tensor: &TensorInfo) -> bool {
    tensor.dtype == Dtype::F32
}

/// The file of a tensor.
pub fn content(model: &Model, tensor: &Tensor) -> Content {
    Content::new(values::segment(model, tensor, Float::F32))
}
