//! Splitting a model into shards: their sizes and names, and the index file that transformers writes.
//!
//! Source: `huggingface_hub`, `serialization/_base.py` and `_torch.py`. The names are those of `save_pretrained`.

use super::export::written;
use super::selection::{ExportTensors, numbers};
use super::values::ValueConversion;
use crate::model::{Model, PrefixChange, TensorId, TensorNumbers};
use crate::text::escape_json;
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::collections::BTreeMap;

const INDEX: &str = "model.safetensors.index.json";

#[derive(Debug)]
pub struct ShardTensors {
    files: Vec<Vec<TensorId>>,
    conversion: Option<ValueConversion>,
    names: PrefixChange,
}

/// Size of the data of a tensor in bytes, in a converted file.
fn nbytes(numbers: &TensorNumbers, conversion: Option<ValueConversion>) -> u64 {
    written(numbers, conversion).map_or(numbers.tensor.info.nbytes, |written| written.nbytes)
}

impl ShardTensors {
    /// Splits tensors, in this order, into shards of at most `max` bytes of data each. A larger tensor gets a shard of
    /// its own. The shards will be converted like this.
    pub fn new(model: &Model, tensors: &ExportTensors, conversion: Option<ValueConversion>, max: u64) -> Self {
        let (mut files, mut held) = (vec![Vec::new()], 0u64);
        for position in 0..tensors.len(model) {
            let id = tensors.at(model, position);
            let nbytes = nbytes(&numbers(model, id, conversion), conversion);
            held = held.saturating_add(nbytes);
            if held > max && files.last().is_some_and(|file| !file.is_empty()) {
                files.push(Vec::new());
                held = nbytes;
            }
            if let Some(file) = files.last_mut() {
                file.push(id);
            }
        }
        Self { files, conversion, names: PrefixChange::default() }
    }

    /// The same shards, with a change of the names that makes no two of them the same.
    pub fn renamed(self, names: PrefixChange) -> Self {
        Self { names, ..self }
    }

    /// Number of shards, at least one.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    pub fn files(&self) -> impl Iterator<Item = (String, &[TensorId])> {
        let count = self.count();
        self.files.iter().enumerate().map(move |(at, tensors)| (shard_name("model", at, count), &tensors[..]))
    }

    /// What the index says about the shard at a position of [`ShardTensors::files`].
    pub fn indexed(&self, model: &Model, at: usize) -> IndexedShard {
        let Some((file, tensors)) = self.files().nth(at) else { return IndexedShard::default() };
        let mut shard = IndexedShard::new(model, file, tensors.iter().copied(), self.conversion);
        for name in &mut shard.tensors {
            *name = self.names.apply(name).into_owned();
        }
        shard
    }

    /// File name and text of the index. A single shard has none.
    pub fn index(&self, model: &Model) -> Option<(&'static str, String)> {
        let shards: Vec<IndexedShard> = (0..self.count()).map(|at| self.indexed(model, at)).collect();
        index_text(&shards).map(|text| (INDEX, text))
    }
}

/// A shard in the index.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexedShard {
    pub file: String,
    /// The number of elements of all tensors.
    parameters: u64,
    /// The size of the data of all tensors in bytes.
    size: u64,
    tensors: Vec<String>,
}

impl IndexedShard {
    /// The shard `file`, which has these tensors, converted like this.
    pub fn new(
        model: &Model,
        file: String,
        tensors: impl Iterator<Item = TensorId>,
        conversion: Option<ValueConversion>,
    ) -> Self {
        let mut shard = Self { file, ..Self::default() };
        for id in tensors {
            let numbers = numbers(model, id, conversion);
            shard.parameters = shard.parameters.saturating_add(numbers.elements());
            shard.size = shard.size.saturating_add(nbytes(&numbers, conversion));
            shard.tensors.push(numbers.name().to_owned());
        }
        shard
    }
}

/// The name of the file at a position among `count` files of weights.
pub fn shard_name(stem: &str, at: usize, count: usize) -> String {
    match count {
        1 => format!("{stem}.safetensors"),
        _ => format!("{stem}-{:05}-of-{count:05}.safetensors", at + 1),
    }
}

/// The text of the index of all shards of a model. A single shard has none.
pub fn index_text(shards: &[IndexedShard]) -> Option<String> {
    (shards.len() != 1).then(|| index_json(shards))
}

/// The text of an index of these shards.
pub fn index_json(shards: &[IndexedShard]) -> String {
    let parameters = shards.iter().map(|shard| shard.parameters).fold(0, u64::saturating_add);
    let size = shards.iter().map(|shard| shard.size).fold(0, u64::saturating_add);
    let files = shards.iter().flat_map(|shard| shard.tensors.iter().map(|tensor| (&tensor[..], &shard.file[..])));
    let weight_map: BTreeMap<&str, &str> = files.collect();
    let metadata = json!({"total_parameters": parameters, "total_size": size});
    // Serializing strings and numbers cannot fail.
    let text =
        serde_json::to_string_pretty(&json!({"metadata": metadata, "weight_map": weight_map})).unwrap_or_default();
    // Python's json module escapes everything except printable ASCII.
    escape_json(&text, |char| !matches!(char, ' '..='~')) + "\n"
}
