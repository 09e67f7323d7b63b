//! Models: the files they consist of, and the tensors in them as one name space.

mod access;
mod assemble;
mod assembled;
mod beside;
mod boxes;
mod catalog;
pub mod contradictions;
mod data;
mod dequantized;
mod diff;
mod error;
mod file_tree;
mod header;
mod ids;
mod likeness;
mod linked;
mod numbers;
mod open;
mod others;
mod population;
mod prefix;
pub mod quantization;
mod quantized;
mod quiet;
mod recognise;
mod refusal;
mod table;
mod unique_names;
mod version;

pub use assemble::dataset::MANIFEST;
pub use assemble::index::index_stem;
pub use assemble::ollama::manifest_stem;
pub use assemble::split::{first_split, open_alone, remark as split_remark};
pub use assemble::{
    EXTRA, FILE_SETS, common_location, file_of, is_numbered, is_set, is_without_file, model_name, model_stem,
};
pub use catalog::{Catalog, CatalogFolder, FolderItem, NamedItem, PIPELINE};
pub use data::{BytePlace, data_in};
pub use diff::{MetadataChange, ModelDiff, TensorPartners, changes};
pub use error::{Error, LINKED};
pub use file_tree::{FileTree, TreeEntry, TreeFolder};
pub use header::{lint_file, load_header, load_more};
pub use ids::{FolderId, ModelFileId, ModelId, TensorId};
pub use likeness::find_prefix_change;
pub use numbers::TensorNumbers;
pub use open::{OpenedModel, model_files, open_below, open_in, open_location, open_model};
pub use others::{OtherFile, OtherFiles};
pub use population::TensorPopulation;
pub use prefix::PrefixChange;
pub use quantized::QuantizedWeights;
pub use recognise::configs;
pub use refusal::refused_stat;
pub use table::{
    INDEX, Model, ModelFile, ModelForm, NoteKind, StatedTotals, Tensor, find_value, is_data_hash, metadata_text,
};
pub use version::version_of;
