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

/// File name of the index.
const INDEX: &str = "model.safetensors.index.json";

/// The tensors of each shard.
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

    /// The file name of each shard and its tensors.
    pub fn files(&self) -> impl Iterator<Item = (String, &[TensorId])> {
        let name = |at: usize| match self.count() {
            1 => "model.safetensors".to_owned(),
            count => format!("model-{:05}-of-{count:05}.safetensors", at + 1),
        };
        self.files.iter().enumerate().map(move |(at, tensors)| (name(at), &tensors[..]))
    }

    /// File name and text of the index. A single shard has none.
    pub fn index(&self, model: &Model) -> Option<(&'static str, String)> {
        if self.count() == 1 {
            return None;
        }
        let numbers = |id: &TensorId| numbers(model, *id, self.conversion);
        let sum = |part: &dyn Fn(&TensorNumbers) -> u64| -> u64 {
            self.files.iter().flatten().map(|id| part(&numbers(id))).fold(0, u64::saturating_add)
        };
        let (parameters, nbytes) =
            (sum(&|numbers| numbers.elements()), sum(&|numbers| nbytes(numbers, self.conversion)));
        let files: Vec<_> = self.files().collect();
        let entries = files.iter().flat_map(|(file, tensors)| tensors.iter().map(move |id| (*id, file)));
        let weight_map: BTreeMap<&str, &String> = entries.map(|(id, file)| (numbers(&id).name(), file)).collect();
        // Serializing strings and numbers cannot fail.
        let metadata = json!({"total_parameters": parameters, "total_size": nbytes});
        let text =
            serde_json::to_string_pretty(&json!({"metadata": metadata, "weight_map": weight_map})).unwrap_or_default();
        // Python's json module escapes everything except printable ASCII.
        Some((INDEX, escape_json(&text, |char| !matches!(char, ' '..='~')) + "\n"))
    }
}
