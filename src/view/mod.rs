//! Views of a model: the names and contents of the files in a mount. The directory tree is built in `fs`.

mod export;
mod gguf;
mod hf;
mod id;
mod index;
mod lines;
mod metadata;
mod npy;
mod overflow;
mod pipeline;
mod plots;
mod results;
mod selection;
mod shards;
mod single;
mod stats;
mod sums;
mod table;
#[cfg(test)]
mod tests;
mod values;
mod views;

pub use export::{ExportFile, ExportTree, ModelExport};
pub use gguf::{file as gguf_file, push_data as push_runs};
pub use hf::CONFIG_MAX;
pub use id::{ShownViews, View};
pub use index::write_tensor;
pub use overflow::{OverflowingTensor, find_overflows, overflow_bytes};
pub use pipeline::{PipelinePart, pipeline_index, pipeline_parts, pipeline_tree};
pub use results::CachedResults;
pub use selection::ExportTensors;
pub use shards::{IndexedShard, ShardTensors, index_text};
pub use stats::{has_statistics, part_stats, read_whole_part, stats_blocks, tensor_stats};
pub use sums::{stored_path, sum_line, tensor_sum};
pub use table::{UnknownView, ViewFile, ViewFiles, names, shown_views};
pub use values::{FloatDtype, ValueConversion, own as numbers};
pub use views::{ModelViews, wait_for_tables};
