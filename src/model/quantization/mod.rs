//! Recognises quantized weights: which stored tensors belong to a weight, and how its values are computed from them.
//! Does not read files.
//!
//! A scheme is recognised by the names, dtypes and shapes of the codes and their companions. The configuration of the
//! model supplies only what these leave open. Nothing is guessed: a weight that could be decoded in two ways is not
//! recognised, and there is a warning.

mod config;
mod schemes;
mod site;
mod warnings;

pub use config::{QuantizationConfig, parse_config, quantization_in};
pub use schemes::{QuantizationScheme, SCHEMES, SchemeParameters};
pub use site::{SiteTensor, StoredTensors, WeightEndings};
pub use warnings::{ProblemKind, ProblemPlace, WeightRefusal, WeightWarning, add_warning};

use crate::codec::quantized::{CodePacking, Parts, QuantizedLayout, QuantizedPart, ScaleType};
use schemes::FoundWeight;
use site::{CodeDtypes, WeightSite};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// A weight that is stored as codes and companions.
#[derive(Debug, Clone)]
pub struct QuantizedWeight {
    pub class: Arc<WeightClass>,
    /// The number of the tensor with the codes.
    pub values: usize,
    /// The logical name, if it is not that of the tensor with the codes.
    pub name: Option<Box<str>>,
    /// The number of the tensor of each part, or [`NO_TENSOR`].
    parts: Parts<u32>,
    /// The numbers of other tensors that belong to the weight, such as scales of activations.
    others: Vec<u32>,
    /// Size in bytes of the codes and of the companions that the values depend on.
    pub bytes: u64,
}

const NO_TENSOR: u32 = u32::MAX;

/// The description that weights of a model share if they have the same scheme, shape and layout.
#[derive(Debug, Clone, PartialEq)]
pub struct WeightClass {
    pub scheme: &'static str,
    /// The type of the codes for users, such as `INT4`.
    pub dtype: &'static str,
    /// Logical dimensions in elements, outermost first.
    pub shape: Vec<u64>,
    pub layout: QuantizedLayout,
    pub parameters: SchemeParameters,
}

impl QuantizedWeight {
    /// The number of the tensor of a part, if the weight has that part.
    pub fn part(&self, part: QuantizedPart) -> Option<usize> {
        self.parts()[part as usize]
    }

    /// The number of the tensor with the zero points, if all of them must be in the middle of the codes: there are some
    /// although the configuration says that the codes are symmetric.
    pub fn symmetric_zeros(&self) -> Option<usize> {
        self.part(QuantizedPart::Zeros).filter(|_| !self.class.parameters.asymmetric && self.class.elements() > 0)
    }

    pub fn parts(&self) -> Parts<Option<usize>> {
        self.parts.map(|tensor| (tensor != NO_TENSOR).then_some(tensor as usize))
    }

    /// The numbers of all tensors of the weight except that of the codes.
    pub fn companions(&self) -> impl Iterator<Item = usize> {
        let parts = self.parts().into_iter().flatten().filter(|tensor| *tensor != self.values);
        parts.chain(self.others.iter().map(|other| *other as usize))
    }

    /// The role of a companion: the name of the part, or [`QuantizedWeight::OTHER`] if the values do not depend on it.
    pub fn role(&self, companion: usize) -> &'static str {
        let part = QuantizedPart::ALL.into_iter().find(|part| self.part(*part) == Some(companion));
        part.map_or(Self::OTHER, QuantizedPart::name)
    }

    /// The role of companions on which the values do not depend, such as scales of activations.
    pub const OTHER: &str = "other";

    /// Stored bits for each element, including the companions that the values depend on; 0 if there are no elements.
    pub fn bits_per_weight(&self) -> f64 {
        let elements = self.class.elements();
        if elements == 0 { 0.0 } else { self.bytes as f64 * 8.0 / elements as f64 }
    }
}

impl WeightClass {
    pub fn elements(&self) -> u64 {
        self.layout.elements()
    }

    /// The scheme and its parameters in words.
    pub fn summary(&self) -> String {
        let SchemeParameters { block: [rows, cols], group, asymmetric, act_order, nested, smoothed, .. } =
            self.parameters;
        let scales = match (rows >= self.layout.rows, cols >= self.layout.cols) {
            _ if group.is_some() => format!("groups of {}", group.unwrap_or_default()),
            (true, true) => "one scale".to_owned(),
            (_, true) if rows == 1 => "a scale per row".to_owned(),
            (true, _) if cols == 1 => "a scale per column".to_owned(),
            _ if rows == 1 => format!("groups of {cols}"),
            _ => format!("blocks of {rows} x {cols}"),
        };
        let mut summary = format!("{}: {}, {scales}", self.scheme, self.dtype);
        let words = [
            (asymmetric, ", asymmetric"),
            (act_order, ", act-order"),
            (nested, ", nested"),
            (smoothed, ", smoothed for the activations"),
        ];
        words.into_iter().filter(|(is, _)| *is).for_each(|(_, word)| summary.push_str(word));
        summary
    }
}

#[derive(Debug, Default)]
pub struct RecognisedWeights {
    /// Sorted by the number of the tensor with the codes.
    pub weights: Vec<QuantizedWeight>,
    /// The numbers of tensors that describe the quantization of the model, and belong to no single weight.
    pub markers: Vec<usize>,
    /// Problems with tensors or the configuration that could not be recognised.
    pub warnings: Vec<WeightWarning>,
}

impl RecognisedWeights {
    /// The index of the weight whose codes are in a tensor.
    pub fn position(&self, values: usize) -> Option<usize> {
        self.weights.binary_search_by_key(&values, |weight| weight.values).ok()
    }
}

/// The ending of the name of a scale for each column, by which a weight was multiplied before it was quantized.
const SMOOTHING: &str = ".pre_quant_scale";

/// The key of the metadata under which ComfyUI describes the quantization of each layer.
pub const COMFY_METADATA: &str = "_quantization_metadata";

/// Largest sum of the sizes of the tensors that [`wanted`] names, in bytes. Bounds memory. The orders of the columns of
/// EXL2 have 76 MiB in a model of 405 billion parameters.
pub const CONTENTS_MAX: u64 = 128 << 20;

/// Largest number of these tensors. Bounds the reads, because each is read by itself. HQQ has up to nine for a weight.
pub const CONTENTS_COUNT_MAX: usize = 1 << 20;

/// The numbers of the small tensors whose data [`recognise_weights`] needs, in order: shapes, descriptions as JSON, and
/// orders of columns. Such tensors are only read if they belong to codes. If they are larger than [`CONTENTS_MAX`]
/// together, or more than [`CONTENTS_COUNT_MAX`], the error is a warning for users; no weight of the model is
/// recognised then.
pub fn wanted(tensors: &dyn StoredTensors) -> Result<Vec<usize>, Vec<WeightWarning>> {
    let (mut wanted, mut sum) = (Vec::new(), 0);
    for stored in all_tensors(tensors) {
        let is_wanted = schemes::contents().any(|(ending, values, max)| {
            stored.bytes <= max
                && stem_before(stored.name, ending).is_some_and(|stem| tensors.find(&[stem, values].concat()).is_some())
        });
        if !is_wanted {
            continue;
        }
        sum += stored.bytes;
        let refusal = if sum > CONTENTS_MAX {
            let found = format!("more than {} MiB", CONTENTS_MAX >> 20);
            Some(WeightRefusal::unknown("descriptions of weights that are too large", found))
        } else if wanted.len() >= CONTENTS_COUNT_MAX {
            let found = format!("more than {CONTENTS_COUNT_MAX}");
            Some(WeightRefusal::unknown("too many descriptions of weights", found))
        } else {
            None
        };
        if let Some(refusal) = refusal {
            let mut warnings = Vec::new();
            add_warning(&mut warnings, None, refusal, Some((stored.index, stored.name)));
            return Err(warnings);
        }
        wanted.push(stored.index);
    }
    Ok(wanted)
}

pub fn all_tensors(tensors: &dyn StoredTensors) -> impl Iterator<Item = SiteTensor<'_>> {
    (0..tensors.count()).map(|index| tensors.tensor(index))
}

/// Finds the quantized weights of a model. Takes time proportional to the number of tensors.
pub fn recognise_weights(tensors: &dyn StoredTensors, config: &QuantizationConfig) -> RecognisedWeights {
    let mut found = RecognisedWeights::default();
    // The codes and the scales of weights that were refused.
    let mut refused: Vec<(usize, usize)> = Vec::new();
    let mut codes: Vec<usize> = Vec::new();
    let mut others: Vec<(usize, &'static str, &'static [&'static str])> = Vec::new();
    let (mut name, mut classes) = (String::new(), WeightClasses::default());
    for stored in all_tensors(tensors) {
        let index = stored.index;
        if is_codes(&stored, tensors, config) {
            codes.push(index);
        }
        for (endings, values) in schemes::OTHERS {
            let other = endings.iter().find(|ending| stem_before(stored.name, ending).is_some());
            others.extend(other.map(|ending| (index, *ending, *values)));
        }
        if stem_before(stored.name, schemes::MARKER).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.')) {
            found.markers.push(index);
        }
        match with_scales(stored, tensors, config, &mut name) {
            None => {}
            Some(Ok(mut weight)) => {
                classes.share(&mut weight);
                found.weights.push(weight);
            }
            Some(Err((_, values, _))) => refused.push((values.index, index)),
        }
    }
    found.weights.sort_by_key(|weight| weight.values);
    let ambiguous = remove_ambiguous(&mut found, tensors);
    for (values, scales) in &refused {
        // Other scales of the same codes may have been recognised.
        if found.position(*values).is_none()
            && let Some(Err((scheme, values, refusal))) =
                with_scales(tensors.tensor(*scales), tensors, config, &mut name)
        {
            add_warning(&mut found.warnings, scheme, refusal, Some((values.index, values.name)));
        }
    }
    let mut refused: Vec<usize> = refused.into_iter().map(|(values, _)| values).chain(ambiguous).collect();
    refused.sort_unstable();
    for (index, ending, values) in others {
        let stem = tensors.tensor(index).name.strip_suffix(ending).unwrap_or_default();
        for values in values {
            let values = find_name(tensors, &mut name, stem, values);
            let Some(at) = values.and_then(|values| found.position(values)) else { continue };
            let weight = &mut found.weights[at];
            if weight.parts.contains(&(index as u32)) {
                continue;
            }
            weight.others.push(index as u32);
            if ending == SMOOTHING {
                Arc::make_mut(&mut weight.class).parameters.smoothed = true;
                classes.share(weight);
            }
        }
    }
    codes.retain(|index| found.position(*index).is_none() && refused.binary_search(index).is_err());
    for stored in codes.into_iter().map(|index| tensors.tensor(index)) {
        let refusal = WeightRefusal::missing("codes without scales", stored.dtype);
        add_warning(&mut found.warnings, None, refusal, Some((stored.index, stored.name)));
    }
    if let Some(scheme) = config.undecoded()
        && !found.warnings.iter().any(|warning| warning.scheme == Some(scheme))
    {
        let method = config.text("quant_method").unwrap_or_default();
        add_warning(&mut found.warnings, Some(scheme), WeightRefusal::unknown(schemes::NOT_DECODED, method), None);
    }
    for refusal in config.unknown() {
        add_warning(&mut found.warnings, None, refusal, None);
    }
    found
}

/// The number of the tensor whose name is a stem with an ending. `name` is a buffer.
fn find_name(tensors: &dyn StoredTensors, name: &mut String, stem: &str, ending: &str) -> Option<usize> {
    name.clear();
    name.push_str(stem);
    name.push_str(ending);
    tensors.find(name)
}

/// Removes weights whose codes have two kinds of scales, and weights of the same name, from weights that are sorted by
/// their codes. Returns the numbers of their codes.
fn remove_ambiguous(found: &mut RecognisedWeights, tensors: &dyn StoredTensors) -> Vec<usize> {
    let RecognisedWeights { weights, warnings, .. } = found;
    let mut removed = Vec::new();
    for same in weights.chunk_by(|a, b| a.values == b.values).filter(|same| same.len() > 1) {
        let scales = same.iter().filter_map(|weight| weight.part(QuantizedPart::Scales));
        let scales: Vec<&str> = scales.map(|scales| tensors.tensor(scales).name).collect();
        let refusal = WeightRefusal::mismatch("codes with two kinds of scales", scales.join(", "));
        add_warning(warnings, None, refusal, Some((same[0].values, tensors.tensor(same[0].values).name)));
        removed.push(same[0].values);
    }
    let mut named: Vec<&QuantizedWeight> = weights.iter().filter(|weight| weight.name.is_some()).collect();
    // Stable, so that the first warning names the first codes.
    named.sort_by_key(|weight| weight.name.as_deref());
    for same in named.chunk_by(|a, b| a.name == b.name).filter(|same| same[0].values != same[same.len() - 1].values) {
        for weight in same {
            let found = weight.name.as_deref().unwrap_or_default();
            let refusal = WeightRefusal::mismatch("codes of two weights of the same name", found);
            add_warning(warnings, None, refusal, Some((weight.values, tensors.tensor(weight.values).name)));
            removed.push(weight.values);
        }
    }
    removed.sort_unstable();
    weights.retain(|weight| removed.binary_search(&weight.values).is_err());
    removed
}

/// A weight that is not recognised: the scheme, if it is known, the codes, and the reason.
type Refused<'t> = (Option<&'static str>, SiteTensor<'t>, WeightRefusal);

/// The weight whose scales are in a tensor. `None` if the tensor does not contain scales. `name` is a buffer.
fn with_scales<'t>(
    scales: SiteTensor<'t>,
    tensors: &'t dyn StoredTensors,
    config: &'t QuantizationConfig,
    name: &mut String,
) -> Option<Result<QuantizedWeight, Refused<'t>>> {
    let mut unknown = None;
    for (scheme, ending) in schemes::all_endings() {
        let Some(stem) = stem_before(scales.name, ending.scales) else { continue };
        let values = find_name(tensors, name, stem, ending.values).filter(|values| *values != scales.index);
        let Some(values) = values.map(|values| tensors.tensor(values)) else { continue };
        if !ending.codes.include(values.dtype) {
            continue;
        }
        if ending.codes != CodeDtypes::AnyKnown || CodeDtypes::Narrow.include(values.dtype) {
            unknown = Some(values);
        }
        let site = WeightSite { tensors, config, stem, ending, values, scales };
        let found = (scheme.recognise)(&site).and_then(|found| {
            let found = found.map(|found| complete_weight(found, &site, scheme.name));
            found.transpose()
        });
        match found {
            Ok(None) => {}
            Ok(Some(weight)) => return Some(Ok(weight)),
            Err(refusal) => return Some(Err((Some(scheme.name), values, refusal))),
        }
    }
    Some(Err((None, unknown?, WeightRefusal::unknown("scales of no known scheme", scales.name))))
}

/// Completes a weight with what does not depend on the scheme, and checks the sizes.
fn complete_weight(
    found: FoundWeight,
    site: &WeightSite,
    scheme: &'static str,
) -> Result<QuantizedWeight, WeightRefusal> {
    let ending = site.ending;
    let FoundWeight { dtype, shape, parts, layout, asymmetric, act_order, group } = found;
    let sizes = parts.map(|part| part.map_or(0, |(_, bytes)| bytes));
    layout.check(&sizes).map_err(|reason| WeightRefusal::mismatch("tensors that do not fit together", reason))?;
    let name = (ending.logical != ending.values).then(|| [site.stem, ending.logical].concat());
    if let Some(name) = name.as_ref().filter(|_| site.companion(ending.logical).is_some()) {
        return Err(WeightRefusal::unknown("a logical name that another tensor has", name));
    }
    let block = layout.grid.block();
    let nested =
        matches!(layout.scale, ScaleType::Nested { .. }) || matches!(layout.packing, CodePacking::MixedDown(_));
    let parameters = SchemeParameters { block, group, asymmetric, act_order, nested, smoothed: false };
    Ok(QuantizedWeight {
        class: Arc::new(WeightClass { scheme, dtype, shape, layout, parameters }),
        values: site.values.index,
        name: name.map(String::into_boxed_str),
        parts: parts.map(|part| part.map_or(NO_TENSOR, |(index, _)| index as u32)),
        others: Vec::new(),
        bytes: sizes.iter().fold(0, |sum, size| sum.saturating_add(*size)),
    })
}

/// The classes of the weights so far, so that weights of equal classes share one.
#[derive(Default)]
struct WeightClasses(HashMap<Vec<u64>, Vec<Arc<WeightClass>>>);

impl WeightClasses {
    /// Number of classes of a shape that are compared. A bound is needed because quantized scales of bitsandbytes have
    /// an offset, so that almost every weight may have its own class.
    const COMPARED: usize = 8;

    fn share(&mut self, weight: &mut QuantizedWeight) {
        let classes = match self.0.get_mut(&weight.class.shape) {
            Some(classes) => classes,
            None => self.0.entry(weight.class.shape.clone()).or_default(),
        };
        match classes.iter().rev().take(Self::COMPARED).find(|class| ***class == *weight.class) {
            Some(class) => weight.class = class.clone(),
            None => classes.push(weight.class.clone()),
        }
    }
}

/// The part of a name before an ending. Most names do not have it, and comparing the last two bytes first skips them
/// quickly.
#[inline]
fn stem_before<'n>(name: &'n str, ending: &str) -> Option<&'n str> {
    if name.as_bytes().last_chunk::<2>() != ending.as_bytes().last_chunk::<2>() {
        return None;
    }
    name.strip_suffix(ending)
}

/// Whether a tensor must have scales: it has a name that only codes have, or it is a weight of a dtype that only codes
/// have in a model whose configuration says that it is quantized.
fn is_codes(stored: &SiteTensor, tensors: &dyn StoredTensors, config: &QuantizationConfig) -> bool {
    let is_named = is_named_codes(stored, tensors);
    match config.is_quantized {
        true => is_named || may_be_codes(stored) || config.is_aqlm() && codes_of_codebooks(stored).is_some(),
        // Without a configuration, masks and blocks of other data may have such names.
        false => is_named && !stored.name.ends_with("blocks"),
    }
}

/// Whether a tensor has a name that only codes have, or that only codes have beside tensors of other names.
fn is_named_codes(stored: &SiteTensor, tensors: &dyn StoredTensors) -> bool {
    let endings: &[&str] = match stored.dtype {
        "I32" => &[".qweight", ".weight_packed", ".W_q", ".q_weight"],
        "U8" => &["_blocks", ".blocks", ".weight_packed", ".W_q"],
        _ => &[],
    };
    let is_beside =
        |stem: &str, endings: &[&str]| endings.iter().any(|ending| tensors.find(&[stem, ending].concat()).is_some());
    stored.bytes > 0
        && (endings.iter().any(|ending| stored.name.ends_with(ending))
            || codes_of_codebooks(stored).is_some_and(|stem| is_beside(stem, &[".codebooks"]))
            || codes_as_floats(stored).is_some_and(|stem| is_beside(stem, &[".packing", ".nbits"])))
}

/// The stem of the name of a tensor that may have codes of AQLM.
fn codes_of_codebooks<'t>(stored: &SiteTensor<'t>) -> Option<&'t str> {
    stem_before(stored.name, ".codes").filter(|_| matches!(stored.dtype, "I8" | "I16"))
}

/// The stem of the name of a tensor that may have codes of HQQ in the dtype of floats.
fn codes_as_floats<'t>(stored: &SiteTensor<'t>) -> Option<&'t str> {
    stem_before(stored.name, ".W_q").filter(|_| matches!(stored.dtype, "F16" | "BF16" | "F32"))
}

/// Whether a tensor is a matrix of weights with a dtype that usually only codes have.
fn may_be_codes(stored: &SiteTensor) -> bool {
    stored.bytes > 0
        && stored.shape.len() > 1
        && CodeDtypes::Narrow.include(stored.dtype)
        && stored.name.ends_with(".weight")
}

/// Whether a model may be quantized, so that its configuration must be read. Fast, because few names end like those of
/// scales.
pub fn may_be_quantized(tensors: &dyn StoredTensors) -> bool {
    // By the last two bytes of the names of scales.
    let mut by_end: BTreeMap<Option<&[u8; 2]>, Vec<&WeightEndings>> = BTreeMap::new();
    for (_, ending) in schemes::all_endings() {
        by_end.entry(ending.scales.as_bytes().last_chunk()).or_default().push(ending);
    }
    all_tensors(tensors).any(|stored| {
        let has_codes = by_end.get(&stored.name.as_bytes().last_chunk()).into_iter().flatten().any(|ending| {
            let values = stored
                .name
                .strip_suffix(ending.scales)
                .and_then(|stem| tensors.find(&[stem, ending.values].concat()))
                .filter(|values| *values != stored.index);
            values.is_some_and(|values| ending.codes.include(tensors.tensor(values).dtype))
        });
        has_codes || is_named_codes(&stored, tensors) || may_be_codes(&stored)
    })
}
