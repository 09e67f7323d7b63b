//! The quantized weights of a model, by tensor and by name.

use super::ids::TensorId;
use super::quantization::{ProblemKind, QuantizedWeight, RecognisedWeights, WeightWarning};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// The quantized weights of a model, and tables to find them.
#[derive(Debug)]
pub struct QuantizedWeights {
    number: u64,
    found: RecognisedWeights,
    /// The weights whose names are not those of tensors, by name.
    named: Vec<u32>,
    companions: Vec<(usize, u32)>,
}

impl Default for QuantizedWeights {
    fn default() -> Self {
        Self::new(RecognisedWeights::default())
    }
}

impl QuantizedWeights {
    pub(super) fn new(found: RecognisedWeights) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let weights = &found.weights;
        let mut named: Vec<u32> = (0..weights.len() as u32).filter(|at| weights[*at as usize].name.is_some()).collect();
        named.sort_by(|a, b| weights[*a as usize].name.cmp(&weights[*b as usize].name));
        let companions = (0..).zip(weights);
        let companions = companions.flat_map(|(at, weight): (u32, _)| weight.companions().map(move |id| (id, at)));
        let mut companions: Vec<_> = companions.collect();
        companions.sort_unstable();
        companions.dedup_by_key(|companion| companion.0);
        Self { number, found, named, companions }
    }

    /// A number that is unique to this model in the process.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// The weights, sorted by the numbers of the tensors with their codes.
    pub fn weights(&self) -> &[QuantizedWeight] {
        &self.found.weights
    }

    /// The weight whose codes are in a tensor.
    pub fn weight(&self, codes: TensorId) -> Option<&QuantizedWeight> {
        Some(&self.weights()[self.found.position(codes.index())?])
    }

    pub fn owner(&self, companion: TensorId) -> Option<&QuantizedWeight> {
        let at = self.companions.binary_search_by_key(&companion.index(), |companion| companion.0).ok()?;
        Some(&self.weights()[self.companions[at].1 as usize])
    }

    /// Whether a tensor means nothing without the codes: a companion, or a marker. A marker of a model whose weights
    /// are not recognised is kept with them.
    pub fn is_companion(&self, tensor: TensorId) -> bool {
        let is_marker = !self.weights().is_empty() && self.found.markers.contains(&tensor.index());
        is_marker || self.owner(tensor).is_some()
    }

    /// The tensor with the codes of the weight called `name`, if no tensor has that name.
    pub fn find(&self, name: &str) -> Option<TensorId> {
        let weights = self.weights();
        let at = self.named.binary_search_by_key(&Some(name), |at| weights[*at as usize].name.as_deref()).ok()?;
        Some(TensorId::new(weights[self.named[at] as usize].values))
    }

    pub fn warnings(&self) -> &[WeightWarning] {
        &self.found.warnings
    }

    /// The number of weights of each scheme, the most frequent first, in words; `None` if there are none.
    pub fn summary(&self) -> Option<String> {
        let mut counts: Vec<(String, usize)> = Vec::new();
        let mut at: HashMap<String, usize> = HashMap::new();
        for weight in self.weights() {
            let at = *at.entry(weight.class.summary()).or_insert_with_key(|summary| {
                counts.push((summary.clone(), 0));
                counts.len() - 1
            });
            counts[at].1 += 1;
        }
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let words = counts.into_iter().map(|(summary, count)| match count {
            1 => format!("1 weight ({summary})"),
            _ => format!("{count} weights ({summary})"),
        });
        let words: Vec<String> = words.collect();
        (!words.is_empty()).then(|| words.join("; "))
    }

    pub fn notes(&self) -> impl Iterator<Item = String> {
        self.warnings().iter().map(|warning| match warning.problem {
            ProblemKind::Contradiction => format!("{warning}; {CONTRADICTION}"),
            _ if warning.example.is_empty() && !self.weights().is_empty() => {
                format!("{warning}; {DEQUANTIZED_NEVERTHELESS}")
            }
            _ => format!("not dequantized: {warning}; {NOT_DEQUANTIZED}"),
        })
    }
}

/// The consequence of a contradiction between the configuration and the tensors.
const CONTRADICTION: &str = "dequantized values may be wrong";

/// Follows a warning about an unknown method in the configuration, if the model has weights of known schemes.
const DEQUANTIZED_NEVERTHELESS: &str =
    "weights whose codes and scales match a known scheme are dequantized nevertheless";

/// The consequence for weights that look quantized and were not recognised.
const NOT_DEQUANTIZED: &str =
    "npy/, f32/, stats/, plots/ and converted exports show the stored numbers, which are not the weights";
