//! The numbers of a tensor: those that are stored, or those of the quantized weight whose codes the tensor has.

use super::ids::TensorId;
use super::quantization::QuantizedWeight;
use super::table::{Model, Tensor};
use crate::format::Dtype;

/// The numbers of a tensor: those that are stored, or those of the quantized weight whose codes the tensor has.
#[derive(Debug, Clone)]
pub struct TensorNumbers<'m> {
    /// The tensor; of a weight, the one with the codes.
    pub tensor: Tensor<'m>,
    /// The weight, if the numbers are not the stored ones.
    pub weight: Option<&'m QuantizedWeight>,
}

impl<'m> TensorNumbers<'m> {
    pub fn name(&self) -> &'m str {
        self.weight.and_then(|weight| weight.name.as_deref()).unwrap_or(self.tensor.info.name)
    }

    /// The logical dimensions in elements, outermost first.
    pub fn shape(&self) -> &'m [u64] {
        self.weight.map_or(self.tensor.info.shape, |weight| &weight.class.shape)
    }

    pub fn elements(&self) -> u64 {
        self.weight.map_or_else(|| self.tensor.info.elements(), |weight| weight.class.elements())
    }

    /// The dtype that holds the numbers exactly: float32 for a quantized weight.
    pub fn dtype(&self) -> Dtype<'m> {
        if self.weight.is_some() { Dtype::F32 } else { self.tensor.info.dtype }
    }
}

impl Model {
    /// The numbers of a tensor: with `dequantized`, those of the weight whose codes it has, otherwise the stored ones.
    pub fn numbers(&self, id: TensorId, dequantized: bool) -> TensorNumbers<'_> {
        TensorNumbers { tensor: self.tensor(id), weight: self.quantized.weight(id).filter(|_| dequantized) }
    }

    pub fn weight_name<'m>(&'m self, weight: &'m QuantizedWeight) -> &'m str {
        weight.name.as_deref().unwrap_or_else(|| self.name(TensorId::new(weight.values)))
    }

    /// The tensor whose numbers have a name, if weights are dequantized: the codes of the weight with this logical
    /// name, or the tensor with this name.
    pub fn find_numbers(&self, name: &str) -> Option<TensorId> {
        let stored = |id: &TensorId| self.quantized.weight(*id).is_none_or(|weight| weight.name.is_none());
        self.quantized.find(name).or_else(|| self.find(name).filter(stored))
    }
}
