//! Quantized matrices, decoded to little-endian float32 or bfloat16.
//!
//! A [`Layout`] describes where the codes, scales and zero points of a matrix are stored, and how they are combined.
//! The same decoder is used for any layout and any range of elements: [`Decoder::needs`] returns the bytes that are
//! needed of each stored tensor, and [`Decoder::decode`] computes the elements. The results are those of the libraries
//! that define the schemes, bit for bit: the same float32 operations in the same order.

mod decode;
mod faults;
mod fp8;
mod gathered;
mod groups;
mod layout;
mod needs;
mod numbers;

pub use decode::{Decoder, Mismatch, Output};
pub use faults::Faults;
pub use gathered::Gathered;
pub use layout::{Formula, Global, Grid, Layout, Number, Packing, Part, Parts, Real, Zeros};
pub use needs::Runs;

/// A float32 in little-endian order.
pub type F32 = [u8; 4];

/// A bfloat16 in little-endian order.
pub type Bf16 = [u8; 2];
