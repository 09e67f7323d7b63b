//! Tensors that may form a quantized weight: codes and scales whose names fit together.

use super::config::QuantizationConfig;
use std::fmt;

/// A stored tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteTensor<'t> {
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
pub struct StoredTensors<'t> {
    /// Number of tensors.
    pub len: usize,
    /// A tensor by its number.
    pub tensor: &'t dyn Fn(usize) -> SiteTensor<'t>,
    /// The number of the tensor with a name.
    pub find: &'t dyn Fn(&str) -> Option<usize>,
    /// The data of the tensors that [`super::wanted`] names; `None` where it could not be read.
    pub contents: &'t dyn Fn(usize) -> Option<&'t [u8]>,
}

impl fmt::Debug for StoredTensors<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensors {{ len: {} }}", self.len)
    }
}

/// The endings of the names of the tensors of a weight. All names begin with the same stem.
#[derive(Debug, PartialEq, Eq)]
pub struct WeightEndings {
    /// The codes.
    pub values: &'static str,
    /// The scales.
    pub scales: &'static str,
    /// The weight.
    pub logical: &'static str,
    /// The dtypes that the codes may have.
    pub codes: CodeDtypes,
}

/// The dtypes that codes may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeDtypes {
    /// Integers, and floats of at most 8 bits.
    Narrow,
    /// Any dtype.
    Any,
    /// The block types of GGUF.
    Blocks,
}

impl CodeDtypes {
    /// Whether codes may have the dtype with this name.
    pub fn include(self, dtype: &str) -> bool {
        match (self, dtype.as_bytes()) {
            (Self::Any, _) => true,
            (Self::Narrow, [b'I' | b'U', bits @ ..]) => !bits.is_empty() && bits.iter().all(u8::is_ascii_digit),
            (Self::Narrow, [b'F', b'4' | b'6' | b'8', ..]) => dtype != "F64",
            (Self::Blocks, [b'I' | b'T', b'Q', ..] | [b'Q', b'1'..=b'9', ..]) => true,
            (Self::Blocks, _) => matches!(dtype, "MXFP4" | "NVFP4"),
            _ => false,
        }
    }
}

/// A tensor of a weight.
#[derive(Debug, Clone, Copy)]
pub struct WeightMember<'t> {
    /// The number of the tensor.
    pub index: usize,
    /// The name of the dtype.
    pub dtype: &'t str,
    /// Dimensions in elements.
    pub shape: &'t [u64],
    /// Size in bytes.
    pub bytes: u64,
}

impl WeightMember<'_> {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, dim| product.saturating_mul(*dim))
    }
}

/// Codes and scales that may belong to a weight.
#[derive(Debug)]
pub struct WeightSite<'s> {
    tensors: &'s StoredTensors<'s>,
    /// The configuration of the model.
    pub config: &'s QuantizationConfig,
    /// The common beginning of the names.
    pub stem: &'s str,
    /// The endings of the names.
    pub ending: &'static WeightEndings,
    /// The codes.
    pub values: WeightMember<'s>,
    /// The scales.
    pub scales: WeightMember<'s>,
}

impl<'s> WeightSite<'s> {
    /// Codes and scales with these numbers.
    pub fn new(
        tensors: &'s StoredTensors<'s>,
        config: &'s QuantizationConfig,
        (stem, ending): (&'s str, &'static WeightEndings),
        (values, scales): (usize, usize),
    ) -> Self {
        Self { tensors, config, stem, ending, values: member(tensors, values), scales: member(tensors, scales) }
    }

    /// The tensor whose name is the stem with this ending.
    pub fn companion(&self, ending: &str) -> Option<WeightMember<'s>> {
        (self.tensors.find)(&[self.stem, ending].concat()).map(|index| member(self.tensors, index))
    }

    /// The data of a small tensor.
    pub fn contents(&self, member: WeightMember) -> Option<&'s [u8]> {
        (self.tensors.contents)(member.index)
    }
}

fn member<'s>(tensors: &'s StoredTensors<'s>, index: usize) -> WeightMember<'s> {
    let stored = (tensors.tensor)(index);
    WeightMember { index, dtype: stored.dtype, shape: stored.shape, bytes: stored.bytes }
}
