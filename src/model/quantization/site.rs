//! A place where a quantized weight may be: codes and scales whose names fit together.

use super::config::Config;
use std::fmt;

/// A stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stored<'t> {
    /// The name.
    pub name: &'t str,
    /// The name of the dtype in safetensors.
    pub dtype: &'t str,
    /// Dimensions in elements, outermost first.
    pub shape: &'t [u64],
    /// Size in bytes.
    pub bytes: u64,
}

/// The stored tensors of a model.
pub struct Tensors<'t> {
    /// Number of tensors.
    pub len: usize,
    /// A tensor by its number.
    pub tensor: &'t dyn Fn(usize) -> Stored<'t>,
    /// The number of the tensor with a name.
    pub find: &'t dyn Fn(&str) -> Option<usize>,
    /// The data of the tensors that [`wanted`] names; `None` where it could not be read.
    pub contents: &'t dyn Fn(usize) -> Option<Vec<u8>>,
}

impl fmt::Debug for Tensors<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensors {{ len: {} }}", self.len)
    }
}

/// How the names of the tensors of a weight end. What comes before is the same.
#[derive(Debug, PartialEq, Eq)]
pub struct Ending {
    /// The codes.
    pub values: &'static str,
    /// The scales.
    pub scales: &'static str,
    /// The weight.
    pub logical: &'static str,
    /// Whether the codes may be stored as elements of any type, also of one that usually is not quantized.
    pub any_dtype: bool,
}

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
