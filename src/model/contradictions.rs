//! Contradictions between the configuration of a model and its tensors. The weights are dequantized as their tensors
//! and the configuration say, and there is a warning, because the values may be wrong.

use super::quantization::{
    QuantizationConfig, RecognisedWeights, StoredTensors, WeightRefusal, add_warning, all_tensors,
};
use crate::codec::quantized::{CodeNumber, QuantizedLayout, QuantizedPart, ZeroPoints};
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

/// Number of weights whose first zero points are read when a model is opened: one program has written all of them.
const SAMPLES: usize = 3;

/// Size of the zero points of a sample in bytes: one word, which has the zero points of neighbouring rows.
pub const SAMPLE_BYTES: u64 = 4;

/// Schemes of compressed-tensors, whose weights have zero points unless the configuration says that they are symmetric.
const WITH_ZEROS: [&str; 2] = ["pack-quantized", "int-quantized"];

/// Some weights whose zero points must be in the middle of the codes, by their positions, with the numbers of the
/// tensors of [`SAMPLE_BYTES`] or more bytes whose first bytes [`check_sample`] takes.
pub fn zero_point_samples(found: &RecognisedWeights, tensors: &dyn StoredTensors) -> Vec<(usize, usize)> {
    let all = (0..).zip(&found.weights).filter_map(|(at, weight)| Some((at, weight.symmetric_zeros()?)));
    let all: Vec<_> = all.filter(|(_, zeros)| tensors.tensor(*zeros).bytes >= SAMPLE_BYTES).collect();
    let places: HashSet<usize> = (0..SAMPLES).map(|at| all.len().saturating_sub(1) * at / (SAMPLES - 1)).collect();
    (0..).zip(all).filter_map(|(at, sample)| places.contains(&at).then_some(sample)).collect()
}

/// Adds a warning if the zero points in the first bytes of their tensor are not in the middle of the codes.
pub fn check_sample(found: &mut RecognisedWeights, at: usize, bytes: &[u8], tensors: &dyn StoredTensors) {
    let weight = &found.weights[at];
    let mut faults = ZeroPointFaults::default();
    faults.look_at(&weight.class.layout, 0, bytes);
    let (Some(wrong), name) = (faults.found(&weight.class.layout), tensors.tensor(weight.values).name) else { return };
    let refusal = WeightRefusal::contradiction(NOT_IN_THE_MIDDLE, wrong);
    add_warning(&mut found.warnings, Some(weight.class.scheme), refusal, Some((weight.values, name)));
}

const NOT_IN_THE_MIDDLE: &str = "symmetric by the configuration, but zero points are not in the middle of the codes";

/// Zero points that are not in the middle of the codes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ZeroPointFaults {
    pub wrong: u64,
    pub total: u64,
    /// The least and the greatest of the wrong ones.
    range: Option<(i32, i32)>,
}

impl ZeroPointFaults {
    /// Looks at zero points: `bytes` of their tensor from the word `first` on. A word has the zero points of
    /// neighbouring rows. If their width does not divide 32, only those in the first word of a group are looked at.
    pub fn look_at(&mut self, layout: &QuantizedLayout, first: u64, bytes: &[u8]) {
        let (bits, along, add, offset) = match layout.zeros {
            ZeroPoints::None | ZeroPoints::Numbers(_) => return,
            ZeroPoints::Bytes => return bytes.iter().for_each(|zero| self.add(i32::from(*zero as i8), layout)),
            ZeroPoints::Packed { bits, along, add, offset, .. } => (bits, along, add, offset),
        };
        // Number of words with the zero points of a group.
        let words = (layout.rows * u64::from(bits)).div_ceil(32).max(1);
        for (at, word) in (first..).zip(bytes.as_chunks().0) {
            let word = u32::from_le_bytes(*word);
            let start = 32 * if along == 1 { at % words } else { at / along };
            // Programs differ in how numbers continue in the next word.
            if start > 0 && 32 % bits != 0 {
                continue;
            }
            for from in (0..=32 - bits).step_by(bits as usize) {
                // The stream of a group ends with unused bits.
                if (start + u64::from(from)) / u64::from(bits) < layout.rows {
                    let zero = (word >> from).wrapping_add(add) & ((1 << bits) - 1);
                    self.add(zero as i32 - offset as i32, layout);
                }
            }
        }
    }

    fn add(&mut self, zero: i32, layout: &QuantizedLayout) {
        self.total += 1;
        if zero != middle(layout) {
            self.wrong += 1;
            let (least, greatest) = self.range.unwrap_or((zero, zero));
            self.range = Some((least.min(zero), greatest.max(zero)));
        }
    }

    /// What was found, in words; `None` if all zero points are in the middle of the codes.
    pub fn found(&self, layout: &QuantizedLayout) -> Option<String> {
        let (least, greatest) = self.range?;
        let middle = middle(layout);
        let zeros = if least == greatest { least.to_string() } else { format!("{least} to {greatest}") };
        // GPTQ has two ways to store zero points, which differ by one.
        let other = match layout.zeros {
            _ if least != greatest || self.wrong < self.total => None,
            ZeroPoints::Packed { add: 1, .. } if least == middle + 1 => Some("gptq_v2"),
            ZeroPoints::Packed { add: 0, offset: 0, .. } if least == middle - 1 => Some("gptq"),
            _ => None,
        };
        let hint = other.map_or(String::new(), |format| format!("; they fit the checkpoint format {format}"));
        Some(format!("{zeros} instead of {middle}{hint}"))
    }
}

/// The zero point of symmetric codes.
fn middle(layout: &QuantizedLayout) -> i32 {
    match layout.number {
        CodeNumber::Unsigned => 1 << (layout.packing.bits() - 1),
        _ => 0,
    }
}

/// Adds warnings about what the configuration says and the tensors do not have.
pub fn add_contradictions(found: &mut RecognisedWeights, tensors: &dyn StoredTensors, config: &QuantizationConfig) {
    let RecognisedWeights { weights, warnings, .. } = &mut *found;
    if config.symmetry() == Some(false) {
        for weight in weights.iter().filter(|weight| WITH_ZEROS.contains(&weight.class.scheme)) {
            if weight.part(QuantizedPart::Zeros).is_none() {
                let reason = "asymmetric by the configuration, but there are no zero points";
                let refusal = WeightRefusal::contradiction(reason, "they are taken as 0");
                let codes = (weight.values, tensors.tensor(weight.values).name);
                add_warning(warnings, Some(weight.class.scheme), refusal, Some(codes));
            }
        }
    }
    add_unmatched_overrides(found, tensors, config);
}

/// Adds a warning about layers that have parameters of their own in the configuration and no tensors, although a
/// quantized layer of nearly that name has some. Without such a layer, the entry is normal: a file may have a part of a
/// model.
fn add_unmatched_overrides(found: &mut RecognisedWeights, tensors: &dyn StoredTensors, config: &QuantizationConfig) {
    let named: HashSet<String> = config.overrides().filter(|layer| layer.len() <= NAME_MAX).collect();
    if named.is_empty() {
        return;
    }
    let mut unmatched: BTreeSet<&str> = named.iter().map(String::as_str).collect();
    for stored in all_tensors(tensors) {
        for layer in layers(stored.name) {
            unmatched.remove(layer);
        }
    }
    let mut tails: HashMap<String, Vec<&str>> = HashMap::new();
    for layer in unmatched {
        let same = tails.entry(tail(layer)).or_default();
        // Entries of several layers with the same end are compared with each weight.
        if same.len() < SAME_TAIL_MAX {
            same.push(layer);
        }
    }
    let mut similar: BTreeMap<&str, &str> = BTreeMap::new();
    for weight in found.weights.iter().filter(|_| !tails.is_empty()) {
        for layer in layers(tensors.tensor(weight.values).name).filter(|layer| !named.contains(*layer)) {
            for other in tails.get(&tail(layer)).into_iter().flatten().filter(|other| are_similar(other, layer)) {
                similar.entry(other).or_insert(layer);
            }
        }
    }
    for (layer, existing) in similar {
        let reason = "the configuration has parameters for a layer that has no tensors, and a similar name has some";
        let refusal = WeightRefusal::contradiction(reason, format!("{layer}; {existing}"));
        add_warning(&mut found.warnings, None, refusal, None);
    }
}

/// Longest name that is compared with the layers of the configuration, in bytes, and the number of its components.
/// Names in models are shorter. They bound the time for hostile files.
const NAME_MAX: usize = 1024;
const COMPONENTS_MAX: usize = 32;

/// Maximum number of layers of the configuration with the same [`tail`] that are compared.
const SAME_TAIL_MAX: usize = 16;

/// The modules that a tensor is in, and the tensor itself: all beginnings of its name that end before a dot or at the
/// end. None of a name that is longer than those in models.
pub fn layers(name: &str) -> impl Iterator<Item = &str> {
    let ends = name.match_indices('.').map(|(at, _)| at).chain([name.len()]);
    ends.take(if name.len() <= NAME_MAX { COMPONENTS_MAX } else { 0 }).map(|end| &name[..end])
}

/// The part of the name of a layer that other programs keep: from its first number on, or its last part if it has none.
/// A name that ends with its first number keeps the part before it too, such as `layers.0`.
fn tail(layer: &str) -> String {
    let parts = split_layer(layer).1;
    parts.join(".").to_lowercase()
}

/// The components of the name of a layer before its tail, and those of the tail.
fn split_layer(layer: &str) -> (Vec<&str>, Vec<&str>) {
    let mut parts: Vec<&str> = layer.split(['.', '/']).collect();
    let is_number = |part: &&str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let last = parts.len() - 1;
    let from = parts.iter().position(is_number).map_or(last, |at| if at < last { at } else { at.saturating_sub(1) });
    let tail = parts.split_off(from);
    (parts, tail)
}

/// Whether two names of layers with the same tail can be names of the same layer: one has all components of the other.
fn are_similar(a: &str, b: &str) -> bool {
    let [a, b] = [a, b].map(|layer| split_layer(layer).0);
    let contains = |all: &[&str], some: &[&str]| some.iter().all(|part| all.contains(part));
    contains(&a, &b) || contains(&b, &a)
}
