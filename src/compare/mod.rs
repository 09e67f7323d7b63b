//! Differences between two tensors of the same shape. Bytes that both files share on disk are not read. Tensors of
//! different dtypes are compared by their values.
//!
//! Numbers are compared in another way: how far those of one tensor deviate from those of the other.

mod common;
mod deviation;
mod difference;
mod elements;
mod numbers;
mod pair;
mod shared;
#[cfg(test)]
mod tests;

pub use common::Common;
pub use deviation::Deviation;
pub use difference::{Difference, Values};
pub use numbers::{Comparable, deviations};
pub use pair::{Pair, differences, have_same_bytes, obstacle};
pub use shared::{Files, Stored};
