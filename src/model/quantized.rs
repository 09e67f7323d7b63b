//! The quantized weights of a model, by tensor and by name.

use super::ids::TensorId;
use super::quantization::{QuantizedWeight, RecognisedWeights, WeightWarning};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The quantized weights of a model.
#[derive(Debug)]
pub struct QuantizedWeights {
    number: u64,
    /// Sorted by the number of the tensor with the codes.
    weights: Vec<QuantizedWeight>,
    /// The weights whose names are not those of tensors, by name.
    named: Vec<u32>,
    /// The companions, sorted, each with the index of its weight.
    companions: Vec<(TensorId, u32)>,
    /// Tensors that say that the model is quantized, and belong to no single weight.
    markers: Vec<TensorId>,
    warnings: Vec<WeightWarning>,
}

impl Default for QuantizedWeights {
    fn default() -> Self {
        Self::new(RecognisedWeights::default())
    }
}

impl QuantizedWeights {
    pub(super) fn new(RecognisedWeights { weights, markers, warnings }: RecognisedWeights) -> Self {
        let mut named: Vec<u32> = (0..weights.len() as u32).filter(|at| weights[*at as usize].name.is_some()).collect();
        named.sort_by(|a, b| weights[*a as usize].name.cmp(&weights[*b as usize].name));
        let companions = (0..).zip(&weights);
        let companions = companions.flat_map(|(at, weight): (u32, _)| weight.companions().map(move |id| (id, at)));
        let mut companions: Vec<_> = companions.map(|(id, at)| (TensorId::new(id), at)).collect();
        companions.sort_unstable();
        companions.dedup_by_key(|companion| companion.0);
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // A marker of a model whose weights are not recognised is kept with them.
        let markers = markers.into_iter().filter(|_| !weights.is_empty()).map(TensorId::new).collect();
        Self { number, weights, named, companions, markers, warnings }
    }

    /// A number that is unique to this model in the process.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The weights, sorted by the numbers of the tensors with their codes.
    pub fn weights(&self) -> &[QuantizedWeight] {
        &self.weights
    }

    /// The weight whose codes are in a tensor.
    pub fn weight(&self, codes: TensorId) -> Option<&QuantizedWeight> {
        let at = self.weights.binary_search_by_key(&codes.index(), |weight| weight.values).ok()?;
        Some(&self.weights[at])
    }

    /// The weight of a companion.
    pub fn owner(&self, companion: TensorId) -> Option<&QuantizedWeight> {
        let at = self.companions.binary_search_by_key(&companion, |companion| companion.0).ok()?;
        Some(&self.weights[self.companions[at].1 as usize])
    }

    /// Whether a tensor means nothing without the codes: a companion, or a marker.
    pub fn is_companion(&self, tensor: TensorId) -> bool {
        self.owner(tensor).is_some() || self.markers.contains(&tensor)
    }

    /// The tensor with the codes of the weight called `name`, if no tensor has that name.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        let name_of = |at: &u32| self.weights[*at as usize].name.as_deref().unwrap_or_default();
        let at = self.named.binary_search_by(|at| name_of(at).cmp(name)).ok()?;
        Some(TensorId::new(self.weights[self.named[at] as usize].values))
    }

    /// Warnings about tensors that look quantized and were not recognised.
    pub fn warnings(&self) -> &[WeightWarning] {
        &self.warnings
    }

    /// The number of weights of each scheme, the most frequent first, in words; `None` if there are none.
    pub fn summary(&self) -> Option<String> {
        let mut counts: Vec<(String, usize)> = Vec::new();
        let mut at: HashMap<String, usize> = HashMap::new();
        for weight in &self.weights {
            let at = *at.entry(weight.class.summary()).or_insert_with_key(|summary| {
                counts.push((summary.clone(), 0));
                counts.len() - 1
            });
            counts[at].1 += 1;
        }
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let one = |(summary, count): &(String, usize)| {
            format!("{count} {} ({summary})", if *count == 1 { "weight" } else { "weights" })
        };
        (!counts.is_empty()).then(|| counts.iter().map(one).collect::<Vec<_>>().join("; "))
    }

    /// Follows a warning about an unknown method in the configuration, if the model has weights of known schemes.
    const DEQUANTIZED_NEVERTHELESS: &str =
        "weights whose codes and scales match a known scheme are dequantized nevertheless";

    /// The messages for users about tensors that were not recognised.
    pub fn notes(&self) -> impl Iterator<Item = String> {
        let note = |warning: &WeightWarning| match warning.example.is_empty() && !self.weights.is_empty() {
            true => format!("{warning}; {}", Self::DEQUANTIZED_NEVERTHELESS),
            false => format!("not dequantized: {warning}; {NOT_DEQUANTIZED}"),
        };
        self.warnings.iter().map(note)
    }
}

/// The consequence for weights that look quantized and were not recognised.
const NOT_DEQUANTIZED: &str =
    "npy/, f32/, stats/, plots/ and converted exports show the stored numbers, which are not the weights";
