//! Tensors that may form a quantized weight: codes and scales whose names fit together.

use super::config::QuantizationConfig;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SiteTensor<'t> {
    pub index: usize,
    pub name: &'t str,
    /// The name of the dtype in safetensors.
    pub dtype: &'t str,
    /// Dimensions in elements, outermost first.
    pub shape: &'t [u64],
    pub bytes: u64,
}

impl SiteTensor<'_> {
    pub fn elements(&self) -> u64 {
        self.shape.iter().fold(1, |product: u64, dim| product.saturating_mul(*dim))
    }
}

pub trait StoredTensors {
    fn count(&self) -> usize;

    fn tensor(&self, index: usize) -> SiteTensor<'_>;

    /// The number of the tensor with a name.
    fn find(&self, name: &str) -> Option<usize>;

    /// The data of a tensor that [`super::wanted`] names; `None` if it was not read.
    fn contents(&self, index: usize) -> Option<&[u8]>;
}

/// The endings of the names of the tensors of a weight. All names begin with the same stem.
#[derive(Debug, PartialEq, Eq)]
pub struct WeightEndings {
    pub values: &'static str,
    pub scales: &'static str,
    pub logical: &'static str,
    pub codes: CodeDtypes,
}

/// The dtypes that codes may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CodeDtypes {
    /// Integers, and floats of at most 8 bits.
    Narrow,
    Any,
    /// Any, but floats of more bits are only codes if a scheme recognises them.
    AnyKnown,
    /// The block types of GGUF.
    Blocks,
}

impl CodeDtypes {
    pub fn include(self, dtype: &str) -> bool {
        match (self, dtype.as_bytes()) {
            (Self::Any | Self::AnyKnown, _) => true,
            (Self::Narrow, [b'I' | b'U', bits @ ..]) => !bits.is_empty() && bits.iter().all(u8::is_ascii_digit),
            (Self::Narrow, [b'F', b'4' | b'6' | b'8', ..]) => dtype != "F64",
            (Self::Blocks, [b'I' | b'T', b'Q', ..] | [b'Q', b'1'..=b'9', ..]) => true,
            (Self::Blocks, _) => matches!(dtype, "MXFP4" | "NVFP4"),
            _ => false,
        }
    }
}

/// Codes and scales that may belong to a weight.
pub struct WeightSite<'s> {
    pub tensors: &'s dyn StoredTensors,
    pub config: &'s QuantizationConfig,
    /// The common beginning of the names.
    pub stem: &'s str,
    pub ending: &'static WeightEndings,
    pub values: SiteTensor<'s>,
    pub scales: SiteTensor<'s>,
}

impl<'s> WeightSite<'s> {
    /// The tensor whose name is the stem with this ending.
    pub fn companion(&self, ending: &str) -> Option<SiteTensor<'s>> {
        self.tensors.find(&[self.stem, ending].concat()).map(|index| self.tensors.tensor(index))
    }

    pub fn contents(&self, tensor: SiteTensor) -> Option<&'s [u8]> {
        self.tensors.contents(tensor.index)
    }
}
