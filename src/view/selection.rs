//! The tensors of an exported file.

use super::values::ValueConversion;
use crate::model::{Model, TensorId, TensorNumbers};
use std::sync::Arc;

/// The tensors of an export, in the order of the data.
#[derive(Debug, Clone)]
pub enum ExportTensors {
    /// All logical tensors of the model.
    Whole,
    /// These logical tensors only.
    These(Arc<[TensorId]>),
}

/// A tensor as it is exported.
pub fn numbers(model: &Model, tensor: TensorId, conversion: Option<ValueConversion>) -> TensorNumbers<'_> {
    model.numbers(tensor, is_dequantized(conversion))
}

fn is_dequantized(conversion: Option<ValueConversion>) -> bool {
    conversion.is_some_and(|conversion| conversion.dequantized)
}

impl ExportTensors {
    /// The logical tensors for whose numbers `is_wanted` is true. Companions of weights that are dequantized are left
    /// out.
    pub fn choose(
        model: &Model,
        conversion: Option<ValueConversion>,
        is_wanted: impl Fn(&TensorNumbers) -> bool,
    ) -> Self {
        let is_part = |id: TensorId| is_dequantized(conversion) && model.quantized().is_companion(id);
        let is_chosen = |id: &TensorId| !is_part(*id) && is_wanted(&numbers(model, *id, conversion));
        Self::These(model.logical().iter().filter(is_chosen).collect())
    }

    /// All logical tensors, without the companions of weights that are dequantized.
    pub fn all(model: &Model, conversion: Option<ValueConversion>) -> Self {
        match is_dequantized(conversion) && !model.quantized().weights().is_empty() {
            true => Self::choose(model, conversion, |_| true),
            false => Self::Whole,
        }
    }

    /// Number of tensors.
    pub fn len(&self, model: &Model) -> usize {
        match self {
            Self::Whole => model.logical().len(),
            Self::These(tensors) => tensors.len(),
        }
    }

    /// The tensor at a position.
    ///
    /// # Panics
    /// If `position` is not below [`ExportTensors::len`].
    pub fn at(&self, model: &Model, position: usize) -> TensorId {
        match self {
            Self::Whole => model.logical().at(position),
            Self::These(tensors) => tensors[position],
        }
    }
}
