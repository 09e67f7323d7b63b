//! Quantized matrices, decoded to little-endian float32 or bfloat16.
//!
//! A [`QuantizedLayout`] describes where the codes, scales and zero points of a matrix are stored, and how they are
//! combined. The same decoder is used for any layout and any range of elements: [`LayoutDecoder::needs`] returns the
//! bytes that are needed of each stored tensor, and [`LayoutDecoder::decode`] computes the elements. The results are
//! those of the libraries that define the schemes, bit for bit: the same float32 operations in the same order.

mod codebooks;
mod decode;
mod faults;
mod fp8;
mod gathered;
mod groups;
mod layout;
mod mixed;
mod needs;
mod numbers;
mod transposed;

pub use super::F32;
pub use decode::{DecodedOutput, LayoutDecoder, SizeMismatch};
pub use faults::CompanionFaults;
pub use gathered::GatheredParts;
pub use layout::{
    CodeNumber, CodePacking, Codebooks, DequantizeFormula, GlobalScale, MixedColumns, Parts, QuantizedLayout,
    QuantizedPart, ScaleGrid, ScaleType, ZeroPoints,
};
pub use mixed::CodeGroup;
pub use needs::ByteRuns;

/// A bfloat16 in little-endian order.
pub type Bf16 = [u8; 2];
