//! Splitting a model into shards: their sizes and names, and the index file that transformers writes.
//!
//! Source: `huggingface_hub`, `serialization/_base.py` and `_torch.py`. The names are those of `save_pretrained`.

use super::export::written;
use super::selection::{ExportTensors, numbers};
use super::values::ValueConversion;
use crate::model::{Model, TensorId, TensorNumbers};
use crate::text::escape_json;
use serde_json::json;
use std::collections::BTreeMap;

const INDEX: &str = "model.safetensors.index.json";

#[derive(Debug)]
pub struct ShardTensors {
    files: Vec<Vec<TensorId>>,
    conversion: Option<ValueConversion>,
}

/// Size of the data of a tensor in bytes, in a converted file.
fn nbytes(numbers: &TensorNumbers, conversion: Option<ValueConversion>) -> u64 {
    written(numbers, conversion).map_or(numbers.tensor.info.nbytes(), |written| written.nbytes())
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
        Self { files, conversion }
    }

    /// Number of shards, at least one.
    pub fn count(&self) -> usize {
        self.files.len()
    }

    pub fn files(&self) -> impl Iterator<Item = (String, &[TensorId])> {
        let count = self.count();
        self.files.iter().enumerate().map(move |(at, tensors)| {
            let name = match count {
                1 => "model.safetensors".to_owned(),
                _ => format!("model-{:05}-of-{count:05}.safetensors", at + 1),
            };
            (name, &tensors[..])
        })
    }

    /// File name and text of the index. A single shard has none.
    pub fn index(&self, model: &Model) -> Option<(&'static str, String)> {
        if self.count() == 1 {
            return None;
        }
        let (mut parameters, mut size, mut weight_map) = (0u64, 0u64, BTreeMap::new());
        for (file, tensors) in self.files() {
            for id in tensors {
                let numbers = numbers(model, *id, self.conversion);
                parameters = parameters.saturating_add(numbers.elements());
                size = size.saturating_add(nbytes(&numbers, self.conversion));
                weight_map.insert(numbers.name(), file.clone());
            }
        }
        // Serializing strings and numbers cannot fail.
        let metadata = json!({"total_parameters": parameters, "total_size": size});
        let text =
            serde_json::to_string_pretty(&json!({"metadata": metadata, "weight_map": weight_map})).unwrap_or_default();
        // Python's json module escapes everything except printable ASCII.
        Some((INDEX, escape_json(&text, |char| !matches!(char, ' '..='~')) + "\n"))
    }
}
