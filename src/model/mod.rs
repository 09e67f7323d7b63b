//! Models: the files they consist of, and the tensors in them as one name space.

mod access;
mod assemble;
mod assembled;
mod beside;
mod catalog;
pub mod contradictions;
mod dequantized;
mod diff;
mod error;
mod header;
mod ids;
mod linked;
mod numbers;
mod open;
mod others;
mod population;
pub mod quantization;
mod quantized;
mod quiet;
mod recognise;
mod refusal;
mod stem;
mod table;
mod unused;

pub use assemble::dataset::MANIFEST;
pub use assemble::is_set;
pub use assemble::numbered::is_pattern;
pub use assemble::ollama::{file_of, manifest_stem};
pub use assemble::split::{first_split, open_alone, remark as split_remark};
pub use assembled::{AssembledRuns, TensorParts};
pub use catalog::{Catalog, CatalogFolder, FolderItem, NamedItem};
pub use diff::{MetadataChange, ModelDiff, TensorPartners, changes};
pub use error::{Error, LINKED};
pub use header::{lint_file, load_header, load_more};
pub use ids::{FolderId, ModelId, ShardId, TensorId};
pub use numbers::TensorNumbers;
pub use open::{OpenedModel, model_files, open_below, open_in, open_location, open_model};
pub use others::{OtherEntry, OtherFile, OtherFiles, OtherFolder};
pub use population::TensorPopulation;
pub use quantized::QuantizedWeights;
pub use refusal::refused_stat;
pub use stem::{model_name, model_stem};
pub use table::{
    Model, ModelForm, NoteKind, Shard, StatedTotals, Tensor, data_in, find_value, is_data_hash, metadata_text,
};
