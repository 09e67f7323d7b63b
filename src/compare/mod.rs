//! Differences between two tensors of the same shape. Bytes that both files share on disk are not read. Tensors of
//! different dtypes are compared by their values.
//!
//! [`deviations`] is a separate comparison, of the numbers of two tensors: it computes errors such as the root mean
//! square, and does not depend on how the numbers are stored.

mod common;
mod deviation;
mod difference;
mod elements;
mod numbers;
mod pair;
mod shared;
#[cfg(test)]
mod tests;

pub use common::CommonNumber;
pub use deviation::Deviation;
pub use difference::{TensorDifference, ValueDifference};
pub use numbers::{ComparablePair, deviations};
pub use pair::{TensorPair, differences, have_same_bytes, obstacle};
pub use shared::{SharedFiles, StoredTensor};
