//! Differences between the headers of two models, and the tensors to compare. Does not compare data.

use super::ids::TensorId;
use super::prefix::PrefixChange;
use super::table::{Model, find_value};
use crate::format::MetadataValue;
use std::collections::BTreeSet;

/// Differences between an old model and a new one. Tensors are given by number, in ascending order.
#[derive(Debug)]
pub struct ModelDiff<'m> {
    pub added: Vec<TensorId>,
    pub removed: Vec<TensorId>,
    /// In both, with another dtype, shape or size: the tensor of the old model, and that of the new one.
    pub changed: Vec<(TensorId, TensorId)>,
    /// In both, with the same dtype, shape and size.
    pub alike: Vec<(TensorId, TensorId)>,
    /// Metadata that differs, sorted by key.
    pub metadata: Vec<MetadataChange<'m>>,
}

/// A key whose value differs. One of the two values may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MetadataChange<'m> {
    pub key: &'m str,
    pub old: Option<&'m str>,
    pub new: Option<&'m str>,
}

impl<'m> ModelDiff<'m> {
    pub fn new(old: &'m Model, new: &'m Model) -> Self {
        let mut diff = Self {
            added: Vec::new(),
            removed: Vec::new(),
            changed: Vec::new(),
            alike: Vec::new(),
            metadata: changes(old.metadata(), new.metadata()),
        };
        for id in old.logical().iter() {
            let tensor = old.tensor(id).info;
            let Some(other) = new.find(tensor.name) else {
                diff.removed.push(id);
                continue;
            };
            let found = new.tensor(other).info;
            let alike = (tensor.dtype, tensor.shape, tensor.nbytes) == (found.dtype, found.shape, found.nbytes);
            if alike { &mut diff.alike } else { &mut diff.changed }.push((id, other));
        }
        diff.added = new.logical().iter().filter(|id| old.find(new.name(*id)).is_none()).collect();
        diff
    }

    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.removed.is_empty() && self.changed.is_empty() && self.metadata.is_empty()
    }
}

/// The tensors whose numbers two models have under the same name. Quantized weights have their logical names, and their
/// companions are left out. Tensors are given by number, in ascending order; a weight is given by the tensor with its
/// codes.
#[derive(Debug, PartialEq, Eq)]
pub struct TensorPartners {
    /// In both: the tensor of the old model, and that of the new one.
    pub pairs: Vec<(TensorId, TensorId)>,
    pub added: Vec<TensorId>,
    pub removed: Vec<TensorId>,
}

impl TensorPartners {
    pub fn new(old: &Model, new: &Model) -> Self {
        let mut partners = Self { pairs: Vec::new(), added: Vec::new(), removed: Vec::new() };
        for id in old.compared() {
            let other = new.find_numbers(old.numbers(id, true).name());
            match other.filter(|other| !new.quantized.is_companion(*other)) {
                Some(other) => partners.pairs.push((id, other)),
                None => partners.removed.push(id),
            }
        }
        let mut found: Vec<TensorId> = partners.pairs.iter().map(|pair| pair.1).collect();
        found.sort_unstable();
        partners.added = new.compared().filter(|id| found.binary_search(id).is_err()).collect();
        partners
    }

    /// As these partners of the two models, after a change of the names of the removed tensors. The pairs stay.
    pub fn renamed(&self, old: &Model, new: &Model, change: &PrefixChange) -> Self {
        let mut partners = Self { pairs: self.pairs.clone(), added: Vec::new(), removed: Vec::new() };
        let mut added: BTreeSet<TensorId> = self.added.iter().copied().collect();
        for id in &self.removed {
            let other = new.find_numbers(&change.apply(old.numbers(*id, true).name()));
            match other.filter(|other| added.remove(other)) {
                Some(other) => partners.pairs.push((*id, other)),
                None => partners.removed.push(*id),
            }
        }
        partners.pairs.sort_unstable();
        partners.added = self.added.iter().copied().filter(|id| added.contains(id)).collect();
        partners
    }
}

impl Model {
    /// The tensors whose numbers are compared: all but the companions of quantized weights.
    pub fn compared(&self) -> impl Iterator<Item = TensorId> + Clone {
        self.logical().iter().filter(|id| !self.quantized.is_companion(*id))
    }
}

/// Differences between two lists of keys and values, each sorted by key.
pub fn changes<'m>(old: &'m [(String, MetadataValue)], new: &'m [(String, MetadataValue)]) -> Vec<MetadataChange<'m>> {
    let removed_or_changed = old.iter().filter_map(|(key, old)| {
        let new = find_value(new, key);
        (new != Some(old)).then_some(MetadataChange { key, old: Some(old.text()), new: new.map(MetadataValue::text) })
    });
    let added = new.iter().filter(|(key, _)| find_value(old, key).is_none());
    let added = added.map(|(key, value)| MetadataChange { key, old: None, new: Some(value.text()) });
    let mut changes: Vec<MetadataChange> = removed_or_changed.chain(added).collect();
    changes.sort_by_key(|change| change.key);
    changes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::ParseMode;
    use crate::source::MemorySource;
    use std::path::Path;
    use std::sync::Arc;

    /// A model with tensors of one-byte elements, each given as name, dtype and length.
    fn model(tensors: &[(&str, &str, usize)], metadata: &str) -> Model {
        let mut end = 0;
        let entry = |(name, dtype, len): &(&str, &str, usize)| {
            end += len;
            format!(r#","{name}":{{"dtype":"{dtype}","shape":[{len}],"data_offsets":[{},{end}]}}"#, end - len)
        };
        let entries: String = tensors.iter().map(entry).collect();
        let header = format!("{{\"__metadata__\":{metadata}{entries}}}");
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; end]].concat();
        Model::from_source(&Path::new("/m.safetensors").into(), Arc::new(MemorySource::new(file)), ParseMode::Strict)
            .unwrap()
    }

    #[test]
    fn each_tensor_and_key_is_in_one_list() {
        let old = model(
            &[("same", "U8", 3), ("gone", "U8", 1), ("dtype", "U8", 2), ("shape", "U8", 4)],
            r#"{"a":"1","b":"2","d":"4"}"#,
        );
        let new = model(
            &[("new", "I8", 1), ("shape", "U8", 5), ("same", "U8", 3), ("dtype", "I8", 2)],
            r#"{"a":"1","b":"3","c":"4"}"#,
        );
        let diff = ModelDiff::new(&old, &new);
        let names = |model: &Model, list: &[TensorId]| -> Vec<String> {
            list.iter().map(|id| model.name(*id).to_owned()).collect()
        };
        let pairs = |list: &[(TensorId, TensorId)]| -> Vec<String> {
            assert!(list.iter().all(|(a, b)| old.name(*a) == new.name(*b)));
            list.iter().map(|pair| old.name(pair.0).to_owned()).collect()
        };
        assert_eq!((names(&new, &diff.added), names(&old, &diff.removed)), (vec!["new".into()], vec!["gone".into()]));
        assert_eq!(
            (pairs(&diff.changed), pairs(&diff.alike)),
            (vec!["dtype".into(), "shape".into()], vec!["same".into()])
        );
        let change = |key, old, new| MetadataChange { key, old, new };
        let expected = [change("b", Some("2"), Some("3")), change("c", None, Some("4")), change("d", Some("4"), None)];
        assert_eq!(diff.metadata, expected);
        assert!(!diff.is_empty() && ModelDiff::new(&old, &old).is_empty());
    }

    #[test]
    fn unknown_dtype_of_another_size_is_a_change() {
        let file = |len: usize| {
            let header = format!(r#"{{"t":{{"dtype":"X4","shape":[2],"data_offsets":[0,{len}]}}}}"#);
            let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![0; len]].concat();
            Model::from_source(
                &Path::new("/m.safetensors").into(),
                Arc::new(MemorySource::new(file)),
                ParseMode::Strict,
            )
            .unwrap()
        };
        assert_eq!(ModelDiff::new(&file(1), &file(2)).changed, [(TensorId::new(0), TensorId::new(0))]);
    }
}
