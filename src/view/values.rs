//! The values of tensors: as a segment of a file, and read piece by piece.

use crate::codec::{bf16, f16};
use crate::content::{BlockDecoder, Content, DecodedData, Error, ReadRequest, SecondStep, Segment};
use crate::format::Dtype;
use crate::model::{Model, TensorNumbers};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// Approximate number of bytes that are read at a time.
const AT_ONCE: u64 = 768 << 10;

/// A dtype that values are converted to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum FloatDtype {
    Bf16,
    F16,
    F32,
}

impl FloatDtype {
    pub fn dtype(self) -> Dtype<'static> {
        match self {
            Self::Bf16 => Dtype::BF16,
            Self::F16 => Dtype::F16,
            Self::F32 => Dtype::F32,
        }
    }

    /// Its name in the configuration of a model.
    pub fn torch_name(self) -> &'static str {
        match self {
            Self::Bf16 => "bfloat16",
            Self::F16 => "float16",
            Self::F32 => "float32",
        }
    }

    /// Size of an element in bytes.
    pub fn size(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 2,
            Self::F32 => 4,
        }
    }

    /// The decoder from another dtype, if there is one.
    pub fn decoder(self, from: Dtype) -> Option<BlockDecoder> {
        let (block, to_f32) = (from.block()?, from.to_f32()?);
        let (block_in, elements) = (block.bytes as usize, block.elements as usize);
        let block_out = elements * self.size();
        let then = |convert| Some(SecondStep { block: elements * size_of::<f32>(), convert });
        let (decode, then) = match (self, from, from.to_bf16()) {
            (Self::F32, ..) => (to_f32, None),
            (Self::Bf16, _, Some(to_bf16)) => (to_bf16, None),
            (Self::Bf16, _, None) => (to_f32, then(bf16::from_f32)),
            (Self::F16, Dtype::F32, _) => (f16::from_f32 as fn(&[u8], &mut [u8]), None),
            // Two steps would round twice.
            (Self::F16, Dtype::F64, _) => (f16::from_f64 as fn(&[u8], &mut [u8]), None),
            (Self::F16, ..) => (to_f32, then(f16::from_f32)),
        };
        Some(BlockDecoder { block_in, block_out, decode, then })
    }
}

/// A conversion of all numbers of an export.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ValueConversion {
    pub to: FloatDtype,
    /// Whether quantized weights are dequantized. Otherwise their stored numbers are converted.
    pub dequantized: bool,
}

/// The numbers of a tensor or of a weight in a dtype, or its stored bytes if they have that dtype already. `None` if
/// the numbers are not known.
pub fn segment(model: &Model, numbers: &TensorNumbers, float: FloatDtype) -> Option<Segment> {
    let (data, dtype) = match (numbers.weight, float) {
        (Some(weight), FloatDtype::F16) => (model.dequantized(weight, false)?, Dtype::F32),
        (Some(weight), _) => return model.dequantized(weight, float == FloatDtype::Bf16),
        (None, _) => (model.data(&numbers.tensor), numbers.dtype()),
    };
    if dtype == float.dtype() {
        return Some(data);
    }
    let decoder = float.decoder(dtype)?;
    Some(Segment::Decoded(DecodedData { data, decoder }.into()))
}

/// The numbers of a tensor or of a weight in their own dtype, [`TensorNumbers::dtype`].
pub fn own(model: &Model, numbers: &TensorNumbers) -> Content {
    match numbers.weight {
        Some(_) => Content::new(segment(model, numbers, FloatDtype::F32)),
        None => model.data(&numbers.tensor).into(),
    }
}

/// Whether `f32/` shows a tensor.
pub fn f32_shows(numbers: &TensorNumbers) -> bool {
    numbers.dtype().to_f32().is_some()
}

/// Whether the file in `f32/` is a link to the stored tensor. A copy would occupy the page cache twice.
pub fn is_stored_f32(numbers: &TensorNumbers) -> bool {
    numbers.weight.is_none() && numbers.dtype() == Dtype::F32
}

/// The size in bytes of as many whole blocks as fit into [`AT_ONCE`], at least one.
pub fn step(dtype: Dtype) -> u64 {
    let block = dtype.block().map_or(1, |block| block.bytes);
    (AT_ONCE / block).max(1) * block
}

/// Passes the bytes of `part` to `take`, at most `step` at a time. Fails if the request is cancelled.
pub fn each_value(
    content: &Content,
    mut part: Range<u64>,
    step: u64,
    request: &ReadRequest,
    mut take: impl FnMut(&[u8]),
) -> Result<(), Error> {
    let mut piece = Vec::new();
    while part.start < part.end {
        request.check()?;
        let end = part.end.min(part.start + step);
        content.copy(part.start..end, request, &mut piece)?;
        take(&piece);
        part.start = end;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{MemorySource, Source};
    use std::sync::Arc;

    #[test]
    fn step_has_whole_blocks() {
        for dtype in Dtype::ALL {
            let block = dtype.block().unwrap().bytes;
            assert!(step(*dtype).is_multiple_of(block) && step(*dtype) > AT_ONCE - block, "{dtype}");
        }
        assert_eq!(step(Dtype::Unknown("x")), AT_ONCE);
    }

    #[test]
    fn each_byte_is_passed_once_and_cancellation_stops() {
        let bytes: Vec<u8> = (0..=255).collect();
        let source: Arc<dyn Source> = Arc::new(MemorySource::new(bytes.clone()));
        let data = Content::from(Segment::extent(&source, 10..250));
        let mut taken = Vec::new();
        let mut sizes = Vec::new();
        let take = |piece: &[u8]| {
            sizes.push(piece.len());
            taken.extend_from_slice(piece);
        };
        each_value(&data, 5..240, 100, &ReadRequest::WAIT, take).unwrap();
        assert_eq!((sizes, &taken[..]), (vec![100, 100, 35], &bytes[15..250]));
        let cancelled = ReadRequest::WAIT.cancelled_by(&|| true);
        assert!(matches!(each_value(&data, 0..240, 100, &cancelled, |_| panic!()), Err(Error::Interrupted)));
    }
}
