//! Counts of tensors, parameters and bytes by dtype and by module.

use crate::format::TensorInfo;
use crate::model::{Model, TensorId};
use crate::natural;
use std::cmp::Reverse;
use std::collections::HashMap;

/// Counts of a group of tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Number of tensors.
    pub tensors: u64,
    /// Number of elements: the products of the dimensions. Several values that are packed into one element count once.
    pub parameters: u64,
    /// Size in bytes.
    pub nbytes: u64,
}

impl Totals {
    fn add(&mut self, tensor: &TensorInfo) {
        self.tensors += 1;
        self.parameters = self.parameters.saturating_add(tensor.elements());
        self.nbytes = self.nbytes.saturating_add(tensor.nbytes());
    }
}

/// Counts of tensors by dtype and by module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Breakdown<'m> {
    /// All tensors.
    pub all: Totals,
    /// Each dtype, the largest first.
    pub dtypes: Vec<(&'m str, Totals)>,
    /// Each module, in natural order.
    pub modules: Vec<(&'m str, Totals)>,
}

impl<'m> Breakdown<'m> {
    /// Counts tensors. A module is the first `depth` dotted components of a name, without the last component.
    pub fn of(model: &'m Model, tensors: impl IntoIterator<Item = TensorId>, depth: usize) -> Self {
        let mut all = Totals::default();
        let (mut dtypes, mut modules) = (Groups::default(), Groups::default());
        for id in tensors {
            let tensor = model.tensor(id).info;
            all.add(&tensor);
            dtypes.of(tensor.dtype.name()).add(&tensor);
            modules.of(module(tensor.name, depth)).add(&tensor);
        }
        let (mut dtypes, mut modules) = (dtypes.groups, modules.groups);
        dtypes.sort_by_key(|(name, totals)| (Reverse(totals.nbytes), *name));
        modules.sort_by(|a, b| natural::compare_paths(a.0, b.0));
        Self { all, dtypes, modules }
    }
}

/// The first `depth` components of a name, never including the last one.
fn module(name: &str, depth: usize) -> &str {
    match name.match_indices('.').take(depth).last() {
        Some((end, _)) => &name[..end],
        None => "",
    }
}

/// Counts by name.
#[derive(Default)]
struct Groups<'m> {
    groups: Vec<(&'m str, Totals)>,
    indices: HashMap<&'m str, usize>,
    /// The index of the last used group, because consecutive tensors mostly belong to one group.
    last: usize,
}

impl<'m> Groups<'m> {
    fn of(&mut self, name: &'m str) -> &mut Totals {
        if self.groups.get(self.last).is_none_or(|group| group.0 != name) {
            let next = self.groups.len();
            self.last = *self.indices.entry(name).or_insert(next);
            if self.last == next {
                self.groups.push((name, Totals::default()));
            }
        }
        &mut self.groups[self.last].1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn module_is_a_prefix_of_components() {
        let cases = [
            ("model.layers.0.w", 1, "model"),
            ("model.layers.0.w", 2, "model.layers"),
            ("model.layers.0.w", 9, "model.layers.0"),
            ("model.layers.0.w", 0, ""),
            ("w", 1, ""),
            ("", 1, ""),
            (".w", 1, ""),
            ("a..w", 2, "a."),
        ];
        for (name, depth, expected) in cases {
            assert_eq!(module(name, depth), expected, "{name} {depth}");
        }
    }
}
