//! The tensors of an exported file.

use crate::model::{Model, TensorId};
use std::sync::Arc;

/// The tensors of an export, in the order of the data.
#[derive(Debug, Clone)]
pub enum Tensors {
    /// All logical tensors of the model.
    Whole,
    /// These logical tensors only.
    These(Arc<[TensorId]>),
}

impl Tensors {
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
    /// If `position` is not below [`Tensors::len`].
    pub fn at(&self, model: &Model, position: usize) -> TensorId {
        match self {
            Self::Whole => model.logical().at(position),
            Self::These(tensors) => tensors[position],
        }
    }
}
