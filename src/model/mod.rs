//! Models: the files they consist of, and the tensors in them as one name space.

mod access;
mod catalog;
mod dataset;
mod diff;
mod error;
mod header;
mod ids;
mod index;
mod ollama;
mod open;
mod parts;
mod population;
mod quantization;
mod quiet;
mod refusal;
mod set;
mod split;
mod stem;
mod table;
mod unused;

pub use catalog::{Catalog, Folder, Item, Named};
pub use dataset::MANIFEST;
pub use diff::{Change, Diff, changes};
pub use error::{Error, Mismatch, SetError};
pub use header::{load, load_more};
pub use ids::{FolderId, ModelId, ShardId, TensorId};
pub use ollama::{file_of, manifest_stem};
pub use open::{Opened, files, open, open_alone, open_in, open_model};
pub use population::Population;
pub use quantization::{NOT_DEQUANTIZED, Quantized};
pub use refusal::Refusal;
pub use split::remark as split_remark;
pub use stem::{first_split, is_set, name_of, stem};
pub use table::{Kind, Model, Parts, Shard, Stated, Tensor, find_value, is_data_hash, value};
