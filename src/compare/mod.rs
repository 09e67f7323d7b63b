//! Differences between two tensors of the same shape. Bytes that both files share on disk are not read. Tensors of
//! different dtypes are compared by their values.

mod common;
mod difference;
mod elements;
mod pair;
mod shared;
#[cfg(test)]
mod tests;

pub use common::Common;
pub use difference::{Difference, Values};
pub use pair::{Pair, differences, obstacle};
pub use shared::{Files, Stored};
