//! Models: the files they consist of, and the tensors in them as one name space.

mod access;
mod catalog;
mod dataset;
mod dequantized;
mod diff;
mod error;
mod header;
mod ids;
mod index;
mod numbers;
mod ollama;
mod open;
mod parts;
mod population;
pub mod quantization;
mod quantized;
mod quiet;
mod recognise;
mod refusal;
mod set;
mod split;
mod stem;
mod table;
mod unused;

pub use catalog::{Catalog, CatalogFolder, FolderItem, NamedItem};
pub use dataset::MANIFEST;
pub use diff::{MetadataChange, ModelDiff, TensorPartners, changes};
pub use error::{Error, SetError, SetMismatch};
pub use header::{lint_file, load_header, load_more};
pub use ids::{FolderId, ModelId, ShardId, TensorId};
pub use numbers::TensorNumbers;
pub use ollama::{file_of, manifest_stem};
pub use open::{OpenedModel, model_files, open_alone, open_in, open_location, open_model};
pub use population::TensorPopulation;
pub use quantized::QuantizedWeights;
pub use refusal::ModelRefusal;
pub use split::remark as split_remark;
pub use stem::{first_split, is_set, model_name, model_stem};
pub use table::{
    Model, ModelKind, Shard, StatedTotals, Tensor, TensorParts, data_in, find_value, is_data_hash, metadata_text,
};
