//! The tensors of an exported file.

use super::values::ValueConversion;
use crate::model::{Model, TensorId, TensorNumbers};
use std::sync::Arc;

/// The tensors of an export, in the order of the data.
#[derive(Debug, Clone)]
pub enum ExportTensors {
    Whole,
    These(Arc<[TensorId]>),
}

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
        let mut ids: Vec<TensorId> = model.logical().iter().collect();
        if is_dequantized(conversion) {
            ids.retain(|id| !model.quantized.is_companion(*id));
        }
        ids.retain(|id| is_wanted(&numbers(model, *id, conversion)));
        Self::These(ids.into())
    }

    /// All logical tensors, without the companions of weights that are dequantized.
    pub fn all(model: &Model, conversion: Option<ValueConversion>) -> Self {
        match is_dequantized(conversion) && !model.quantized.weights().is_empty() {
            true => Self::choose(model, conversion, |_| true),
            false => Self::Whole,
        }
    }

    pub fn len(&self, model: &Model) -> usize {
        match self {
            Self::Whole => model.logical().len(),
            Self::These(tensors) => tensors.len(),
        }
    }

    /// The tensor at a position. Panics if that is not below [`ExportTensors::len`].
    pub fn at(&self, model: &Model, position: usize) -> TensorId {
        match self {
            Self::Whole => model.logical().at(position),
            Self::These(tensors) => tensors[position],
        }
    }
}
