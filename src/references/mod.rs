//! Kerchunk references: the tensors of a model as Zarr arrays whose chunks are byte ranges of its unmodified files.
//! Depends on the table of the tensors, and reads no data.
//!
//! A chunk of an uncompressed array always has its full size in bytes. So each array is cut into chunks of equal shape,
//! none of which is partial.

mod array;
mod grid;
mod node;
mod store;
#[cfg(feature = "parquet")]
mod tables;

pub use array::ZarrFormat;
pub use store::{ReferenceOptions, ReferenceStore, UnnamedFile};
