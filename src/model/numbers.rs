//! The numbers that a tensor means.

use super::quantization::Weight;
use super::table::Tensor;
use crate::format::Dtype;

/// A tensor as numbers: what it stores, or the quantized weight whose codes it has.
#[derive(Debug, Clone)]
pub struct Numbers<'m> {
    /// The tensor; of a weight, the one with the codes.
    pub tensor: Tensor<'m>,
    /// The weight, if the numbers are not the stored ones.
    pub weight: Option<&'m Weight>,
}

impl<'m> Numbers<'m> {
    /// What a tensor stores, quantized or not.
    pub fn stored(tensor: Tensor<'m>) -> Self {
        Self { tensor, weight: None }
    }

    /// The logical name.
    pub fn name(&self) -> &'m str {
        self.weight.and_then(|weight| weight.name.as_deref()).unwrap_or(self.tensor.info.name)
    }

    /// The logical dimensions in elements, outermost first.
    pub fn shape(&self) -> &'m [u64] {
        self.weight.map_or(self.tensor.info.shape, |weight| &weight.class.shape)
    }

    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.weight.map_or_else(|| self.tensor.info.elements(), |weight| weight.class.elements())
    }

    /// The dtype that holds the numbers exactly: float32 for a quantized weight.
    pub fn dtype(&self) -> Dtype<'m> {
        if self.weight.is_some() { Dtype::F32 } else { self.tensor.info.dtype }
    }
}
