//! Counts of tensors, parameters and bytes by dtype and by module.

use crate::format::TensorInfo;
use crate::model::quantization::{QuantizedWeight, WeightClass};
use crate::model::{Model, TensorId};
use crate::natural;
use crate::units::{format_size, plural};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TensorTotals {
    pub tensors: u64,
    /// Number of elements: the products of the dimensions. A quantized weight counts with its logical dimensions, and
    /// its companions have no parameters. If packed values are not recognised, their stored elements count.
    pub parameters: u64,
    pub nbytes: u64,
}

impl TensorTotals {
    fn add(&mut self, parameters: u64, nbytes: u64) {
        self.tensors += 1;
        self.parameters = self.parameters.saturating_add(parameters);
        self.nbytes = self.nbytes.saturating_add(nbytes);
    }

    /// The part of the bytes of `all`, in percent. 0 if there are none.
    pub fn percent_of(&self, all: &Self) -> f64 {
        if all.nbytes == 0 { 0.0 } else { 100.0 * self.nbytes as f64 / all.nbytes as f64 }
    }

    /// Mean number of bits per parameter. `None` if there are no parameters.
    pub fn bits_per_weight(&self) -> Option<f64> {
        (self.parameters > 0).then(|| 8.0 * self.nbytes as f64 / self.parameters as f64)
    }
}

/// The weights of a model that are quantized in the same way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QuantizationTotal {
    pub scheme: &'static str,
    /// The type of the codes, such as `INT4`.
    pub dtype: &'static str,
    /// The scheme and its parameters in words.
    pub summary: String,
    /// Counts of weights. The size includes the companions.
    pub totals: TensorTotals,
    pub companions: u64,
    /// The roles of the companions, each once.
    pub roles: Vec<&'static str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorBreakdown<'m> {
    pub all: TensorTotals,
    /// Each dtype, the largest first.
    pub dtypes: Vec<(&'m str, TensorTotals)>,
    /// Each module, in natural order.
    pub modules: Vec<(&'m str, TensorTotals)>,
    /// Groups of quantized weights, those with the most parameters first.
    pub quantized: Vec<QuantizationTotal>,
}

impl<'m> TensorBreakdown<'m> {
    /// Counts tensors. A module is the first `depth` dotted components of a name, without the last component.
    pub fn of(model: &'m Model, tensors: impl IntoIterator<Item = TensorId>, depth: usize) -> Self {
        let mut all = TensorTotals::default();
        let (mut dtypes, mut modules) = (NamedTotals::default(), NamedTotals::default());
        let mut quantized = QuantizationTotals::default();
        for id in tensors {
            let tensor = model.tensor(id).info;
            let weight = model.quantized.weight(id);
            if let Some(weight) = weight {
                quantized.add(weight);
            }
            let (parameters, nbytes) = (parameters(model, id, &tensor, weight), tensor.nbytes);
            all.add(parameters, nbytes);
            dtypes.of(tensor.dtype.name()).add(parameters, nbytes);
            modules.of(module(tensor.name, depth)).add(parameters, nbytes);
        }
        let mut quantized = quantized.groups;
        quantized.sort_by_key(|group| Reverse(group.totals.parameters));
        let (mut dtypes, mut modules) = (dtypes.groups, modules.groups);
        dtypes.sort_by_key(|(name, totals)| (Reverse(totals.nbytes), *name));
        modules.sort_by(|a, b| natural::compare_paths(a.0, b.0));
        Self { all, dtypes, modules, quantized }
    }
}

/// What a model consists of, such as `41 tensors, 10.4 MB of BF16 and F32`. The dtypes with the most bytes come first.
pub fn summary_of(model: &Model) -> String {
    let mut dtypes = NamedTotals::default();
    let (mut tensors, mut nbytes) = (0, 0u64);
    for id in model.listed().iter() {
        let tensor = model.tensor(id).info;
        tensors += 1;
        nbytes = nbytes.saturating_add(tensor.nbytes);
        dtypes.of(tensor.dtype.name()).add(0, tensor.nbytes);
    }
    let mut dtypes = dtypes.groups;
    dtypes.sort_by_key(|(name, totals)| (Reverse(totals.nbytes), *name));
    let counted = format!("{}, {}", plural(tensors, "tensor"), format_size(nbytes));
    match &dtypes[..] {
        [] => counted,
        [(only, _)] => format!("{counted} of {only}"),
        [(first, _), (second, _)] => format!("{counted} of {first} and {second}"),
        [(first, _), (second, _), more @ ..] => {
            format!("{counted} of {first}, {second} and {} more dtypes", more.len())
        }
    }
}

/// The number of parameters of a tensor. If it has the codes of a weight, that of the weight.
fn parameters(model: &Model, id: TensorId, tensor: &TensorInfo, weight: Option<&QuantizedWeight>) -> u64 {
    match weight {
        Some(weight) => weight.class.elements(),
        None if model.quantized.is_companion(id) => 0,
        None => tensor.elements(),
    }
}

#[derive(Default)]
struct QuantizationTotals {
    groups: Vec<QuantizationTotal>,
    /// The group of each class. Formatting the summary of every weight would take longer than everything else.
    indices: HashMap<*const WeightClass, usize>,
}

impl QuantizationTotals {
    fn add(&mut self, weight: &QuantizedWeight) {
        let groups = &mut self.groups;
        let at = *self.indices.entry(Arc::as_ptr(&weight.class)).or_insert_with(|| {
            let summary = weight.class.summary();
            groups.iter().position(|group| group.summary == summary).unwrap_or_else(|| {
                let (scheme, dtype) = (weight.class.scheme, weight.class.dtype);
                let (totals, roles) = (TensorTotals::default(), Vec::new());
                groups.push(QuantizationTotal { scheme, dtype, summary, totals, companions: 0, roles });
                groups.len() - 1
            })
        });
        let group = &mut groups[at];
        group.totals.add(weight.class.elements(), weight.bytes);
        for companion in weight.companions() {
            group.companions += 1;
            let role = weight.role(companion);
            if !group.roles.contains(&role) {
                group.roles.push(role);
            }
        }
    }
}

/// The first `depth` components of a name, never including the last one.
fn module(name: &str, depth: usize) -> &str {
    match name.match_indices('.').take(depth).last() {
        Some((end, _)) => &name[..end],
        None => "",
    }
}

#[derive(Default)]
struct NamedTotals<'m> {
    groups: Vec<(&'m str, TensorTotals)>,
    indices: HashMap<&'m str, usize>,
    /// The index of the last used group, because consecutive tensors mostly belong to one group.
    last: usize,
}

impl<'m> NamedTotals<'m> {
    fn of(&mut self, name: &'m str) -> &mut TensorTotals {
        if self.groups.get(self.last).is_none_or(|group| group.0 != name) {
            let next = self.groups.len();
            self.last = *self.indices.entry(name).or_insert(next);
            if self.last == next {
                self.groups.push((name, TensorTotals::default()));
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
