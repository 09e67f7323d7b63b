//! A place where a quantized weight may be: codes and scales whose names fit together.

use super::schemes::Ending;
use super::{Config, Tensors};

/// A tensor of a weight.
#[derive(Debug, Clone, Copy)]
pub struct Member<'t> {
    /// The number of the tensor.
    pub index: usize,
    /// The name of the dtype.
    pub dtype: &'t str,
    /// Dimensions in elements.
    pub shape: &'t [u64],
    /// Size in bytes.
    pub bytes: u64,
}

impl Member<'_> {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, dim| product.saturating_mul(*dim))
    }
}

/// Codes and scales.
#[derive(Debug)]
pub struct Site<'s> {
    tensors: &'s Tensors<'s>,
    /// The configuration of the model.
    pub config: &'s Config,
    /// What the names begin with.
    pub stem: &'s str,
    /// How the names end.
    pub ending: &'static Ending,
    /// The codes.
    pub values: Member<'s>,
    /// The scales.
    pub scales: Member<'s>,
}

impl<'s> Site<'s> {
    /// The tensors with these numbers.
    pub fn new(
        tensors: &'s Tensors<'s>,
        config: &'s Config,
        (stem, ending): (&'s str, &'static Ending),
        (values, scales): (usize, usize),
    ) -> Self {
        Self { tensors, config, stem, ending, values: member(tensors, values), scales: member(tensors, scales) }
    }

    /// The tensor whose name is that of the weight with another ending.
    pub fn companion(&self, ending: &str) -> Option<Member<'s>> {
        (self.tensors.find)(&[self.stem, ending].concat()).map(|index| member(self.tensors, index))
    }

    /// The data of a small tensor.
    pub fn contents(&self, member: Member) -> Option<Vec<u8>> {
        (self.tensors.contents)(member.index)
    }
}

fn member<'s>(tensors: &'s Tensors<'s>, index: usize) -> Member<'s> {
    let stored = (tensors.tensor)(index);
    Member { index, dtype: stored.dtype, shape: stored.shape, bytes: stored.bytes }
}
