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

pub use config::{QuantizationConfig, parse_config};
pub use schemes::{QuantizationScheme, SCHEMES, SchemeParameters};
pub use site::{SiteTensor, StoredTensors, WeightEndings};
pub use warnings::{ProblemKind, ProblemPlace, WeightWarning};

use crate::codec::quantized::{Parts, QuantizedLayout, QuantizedPart};
use schemes::{FoundWeight, NeededData};
use site::{CodeDtypes, WeightSite};
use std::collections::HashMap;
use std::sync::Arc;
use warnings::{WeightRefusal, WeightWarnings};

/// A weight that is stored as codes and companions.
#[derive(Debug, Clone)]
pub struct QuantizedWeight {
    /// The scheme, shape and layout, which other weights of the model may share.
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

/// Marks a part that a weight does not have.
const NO_TENSOR: u32 = u32::MAX;

/// The description that weights of a model share if they have the same scheme, shape and layout.
#[derive(Debug, PartialEq)]
pub struct WeightClass {
    /// Their scheme.
    pub scheme: &'static QuantizationScheme,
    /// The type of the codes for users, such as `INT4`.
    pub dtype: &'static str,
    /// Logical dimensions in elements, outermost first.
    pub shape: Vec<u64>,
    /// The formula of the values.
    pub layout: QuantizedLayout,
    /// The parameters of the scheme, for users.
    pub parameters: SchemeParameters,
}

impl QuantizedWeight {
    /// The number of the tensor of a part, if the weight has that part.
    pub fn part(&self, part: QuantizedPart) -> Option<usize> {
        Some(self.parts[part as usize]).filter(|tensor| *tensor != NO_TENSOR).map(|tensor| tensor as usize)
    }

    /// The number of the tensor of each part.
    pub fn parts(&self) -> Parts<Option<usize>> {
        QuantizedPart::ALL.map(|part| self.part(part))
    }

    /// The numbers of all tensors of the weight except that of the codes.
    pub fn companions(&self) -> impl Iterator<Item = usize> {
        let parts = QuantizedPart::ALL
            .into_iter()
            .filter(|part| *part != QuantizedPart::Values)
            .filter_map(|part| self.part(part));
        parts.chain(self.others.iter().map(|other| *other as usize))
    }

    /// The role of a companion: the name of the part, or [`QuantizedWeight::OTHER`] if the values do not depend on it.
    pub fn role(&self, companion: usize) -> &'static str {
        QuantizedPart::ALL
            .into_iter()
            .find(|part| self.part(*part) == Some(companion))
            .map_or(Self::OTHER, QuantizedPart::name)
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
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.layout.elements()
    }

    /// The scheme and its parameters in words.
    pub fn summary(&self) -> String {
        let SchemeParameters { block: [rows, cols], asymmetric, act_order, nested, smoothed, .. } = self.parameters;
        let is = |count: u64, all: u64| count >= all;
        let scales = match (is(rows, self.layout.rows), is(cols, self.layout.cols)) {
            (true, true) => "one scale".to_owned(),
            (_, true) if rows == 1 => "a scale per row".to_owned(),
            (true, _) if cols == 1 => "a scale per column".to_owned(),
            _ if rows == 1 => format!("groups of {cols}"),
            _ => format!("blocks of {rows} x {cols}"),
        };
        let mut summary = format!("{}: {}, {scales}", self.scheme.name, self.dtype);
        let words = [
            (asymmetric, "asymmetric"),
            (act_order, "act-order"),
            (nested, "nested"),
            (smoothed, "smoothed for the activations"),
        ];
        for (_, word) in words.iter().filter(|(is, _)| *is) {
            summary.push_str(", ");
            summary.push_str(word);
        }
        summary
    }
}

/// The quantized weights of a model.
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
    /// The weight whose codes are in a tensor.
    pub fn of(&self, values: usize) -> Option<&QuantizedWeight> {
        Some(&self.weights[self.position(values)?])
    }

    fn position(&self, values: usize) -> Option<usize> {
        self.weights.binary_search_by_key(&values, |weight| weight.values).ok()
    }
}

/// The ending of the name of a scale for each column, by which a weight was multiplied before it was quantized.
const SMOOTHING: &str = ".pre_quant_scale";

/// The key of the metadata under which ComfyUI describes the quantization of each layer.
pub const COMFY_METADATA: &str = "_quantization_metadata";

/// Largest sum of the sizes of the tensors that [`wanted`] names, in bytes: some hundred thousand descriptions.
pub const CONTENTS_MAX: u64 = 64 << 20;

/// The numbers of the small tensors whose data [`recognise_weights`] needs, in order: shapes, and descriptions as JSON.
/// Such tensors are only read if they belong to codes. `has` returns whether there is a tensor with a name.
///
/// # Errors
/// If these tensors are larger than [`CONTENTS_MAX`] together. The error is a warning for users; no weight of the model
/// is recognised then.
pub fn wanted<'t>(
    tensors: impl Iterator<Item = SiteTensor<'t>>,
    has: impl Fn(&str) -> bool,
) -> Result<Vec<usize>, WeightWarning> {
    let (mut wanted, mut sum) = (Vec::new(), 0);
    for (index, stored) in tensors.enumerate() {
        let is_wanted = |kind: &NeededData| {
            ends_with(stored.name, kind.ending) && stored.bytes <= kind.max && {
                let stem = stored.name.strip_suffix(kind.ending).unwrap_or_default();
                has(&[stem, kind.values].concat())
            }
        };
        if !schemes::CONTENTS.iter().any(is_wanted) {
            continue;
        }
        sum += stored.bytes;
        if sum > CONTENTS_MAX {
            let mut warnings = WeightWarnings::default();
            let found = format!("more than {} MiB", CONTENTS_MAX >> 20);
            let refusal = WeightRefusal::new("descriptions of weights that are too large", found);
            warnings.add(None, refusal, (index, stored.name));
            return Err(warnings.finish().swap_remove(0));
        }
        wanted.push(index);
    }
    Ok(wanted)
}

/// Finds the quantized weights of a model. Takes time proportional to the number of tensors.
pub fn recognise_weights<'t>(tensors: &'t StoredTensors<'t>, config: &'t QuantizationConfig) -> RecognisedWeights {
    let mut weights: Vec<QuantizedWeight> = Vec::new();
    let mut warnings = WeightWarnings::default();
    // The codes and the scales of weights that were refused.
    let mut refused: Vec<(usize, usize)> = Vec::new();
    let mut codes: Vec<usize> = Vec::new();
    let mut others: Vec<(usize, &'static str)> = Vec::new();
    let mut markers: Vec<usize> = Vec::new();
    let (mut name, mut classes) = (String::new(), WeightClasses::default());
    for index in 0..tensors.len {
        let stored = (tensors.tensor)(index);
        if is_codes(&stored, config) {
            codes.push(index);
        }
        if let Some(ending) = schemes::OTHERS.iter().find(|ending| ends_with(stored.name, ending)) {
            others.push((index, *ending));
        }
        if ends_with(stored.name, schemes::MARKER) && is_marker(stored.name) {
            markers.push(index);
        }
        match with_scales(index, &stored, tensors, config, &mut name) {
            None => {}
            Some(Ok(mut weight)) => {
                classes.share(&mut weight);
                weights.push(weight);
            }
            Some(Err((_, values, _))) => refused.push((values, index)),
        }
    }
    weights.sort_by_key(|weight| weight.values);
    let ambiguous = ambiguous(&mut weights, tensors, &mut warnings);
    let mut recognised = RecognisedWeights { weights, markers, warnings: Vec::new() };
    for (values, scales) in &refused {
        // Other scales of the same codes may have been recognised.
        if recognised.of(*values).is_none()
            && let Some(Err((scheme, values, refusal))) =
                with_scales(*scales, &(tensors.tensor)(*scales), tensors, config, &mut name)
        {
            warnings.add(scheme, refusal, (values, (tensors.tensor)(values).name));
        }
    }
    let mut refused: Vec<usize> = refused.into_iter().map(|(values, _)| values).chain(ambiguous).collect();
    refused.sort_unstable();
    for (index, ending) in others {
        let stored = (tensors.tensor)(index);
        for values in schemes::VALUES {
            name.clear();
            name.push_str(stored.name.strip_suffix(ending).unwrap_or_default());
            name.push_str(values);
            let weight = (tensors.find)(&name).and_then(|values| recognised.position(values));
            if let Some(weight) = weight.map(|at| &mut recognised.weights[at])
                && !weight.parts.contains(&(index as u32))
            {
                weight.others.push(index as u32);
                if ending == SMOOTHING {
                    let WeightClass { scheme, dtype, ref shape, layout, parameters } = *weight.class;
                    let parameters = SchemeParameters { smoothed: true, ..parameters };
                    weight.class = Arc::new(WeightClass { scheme, dtype, shape: shape.clone(), layout, parameters });
                    classes.share(weight);
                }
            }
        }
    }
    for index in codes {
        if recognised.of(index).is_none() && refused.binary_search(&index).is_err() {
            let stored = (tensors.tensor)(index);
            warnings.add(None, WeightRefusal::missing("codes without scales", stored.dtype), (index, stored.name));
        }
    }
    config.unknown(|reason, name| warnings.add_general(&WeightRefusal::new(reason, name)));
    RecognisedWeights { warnings: warnings.finish(), ..recognised }
}

/// Whether a tensor says that the model is quantized.
fn is_marker(name: &str) -> bool {
    name.strip_suffix(schemes::MARKER).is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
}

/// Removes weights whose codes have two kinds of scales, and weights of the same name, from weights that are sorted by
/// their codes. Returns the numbers of their codes.
fn ambiguous(weights: &mut Vec<QuantizedWeight>, tensors: &StoredTensors, warnings: &mut WeightWarnings) -> Vec<usize> {
    let name = |at: usize| (tensors.tensor)(at).name;
    let mut removed = Vec::new();
    for same in weights.chunk_by(|a, b| a.values == b.values).filter(|same| same.len() > 1) {
        let scales: Vec<&str> =
            same.iter().filter_map(|weight| Some(name(weight.part(QuantizedPart::Scales)?))).collect();
        let refusal = WeightRefusal::mismatch("codes with two kinds of scales", scales.join(", "));
        warnings.add(None, refusal, (same[0].values, name(same[0].values)));
        removed.push(same[0].values);
    }
    let mut named: Vec<&QuantizedWeight> = weights.iter().filter(|weight| weight.name.is_some()).collect();
    // Stable, so that the first warning names the first codes.
    named.sort_by_key(|weight| weight.name.as_deref());
    for same in named.chunk_by(|a, b| a.name == b.name).filter(|same| same[0].values != same[same.len() - 1].values) {
        for weight in same {
            let found = weight.name.as_deref().unwrap_or_default();
            let refusal = WeightRefusal::mismatch("codes of two weights of the same name", found);
            warnings.add(None, refusal, (weight.values, name(weight.values)));
            removed.push(weight.values);
        }
    }
    removed.sort_unstable();
    weights.retain(|weight| removed.binary_search(&weight.values).is_err());
    removed
}

/// A weight that is not recognised: the scheme, if it is known, the number of the tensor with the codes, and the
/// reason.
type Refused = (Option<&'static str>, usize, WeightRefusal);

/// The weight whose scales are in a tensor. `None` if the tensor does not contain scales. `name` is a buffer.
fn with_scales<'t>(
    index: usize,
    stored: &SiteTensor<'t>,
    tensors: &'t StoredTensors<'t>,
    config: &'t QuantizationConfig,
    name: &mut String,
) -> Option<Result<QuantizedWeight, Refused>> {
    let mut unknown = None;
    for scheme in SCHEMES.iter().chain(schemes::UNDECODED) {
        for ending in scheme.endings.iter().filter(|ending| ends_with(stored.name, ending.scales)) {
            let Some(stem) = stored.name.strip_suffix(ending.scales) else { continue };
            name.clear();
            name.push_str(stem);
            name.push_str(ending.values);
            let Some(values) = (tensors.find)(name).filter(|values| *values != index) else { continue };
            let site = WeightSite::new(tensors, config, (stem, ending), (values, index));
            if !ending.codes.include(site.values.dtype) {
                continue;
            }
            unknown = Some(values);
            let found = (scheme.recognise)(&site);
            match found.and_then(|found| found.map(|found| complete_weights(found, &site, scheme)).transpose()) {
                Ok(None) => {}
                Ok(Some(weight)) => return Some(Ok(weight)),
                Err(refusal) => return Some(Err((Some(scheme.name), values, refusal))),
            }
        }
    }
    unknown.map(|values| Err((None, values, WeightRefusal::new("scales of no known scheme", stored.name))))
}

/// Completes a weight with what does not depend on the scheme, and checks the sizes.
fn complete_weights(
    found: FoundWeight,
    site: &WeightSite,
    scheme: &'static QuantizationScheme,
) -> Result<QuantizedWeight, WeightRefusal> {
    let ending = site.ending;
    let FoundWeight { dtype, shape, parts, layout, mut parameters } = found;
    let sizes = parts.map(|part| part.map_or(0, |part| part.bytes));
    layout.check(&sizes).map_err(|reason| WeightRefusal::mismatch("tensors that do not fit together", reason))?;
    let name = (ending.logical != ending.values).then(|| [site.stem, ending.logical].concat());
    if let Some(name) = name.as_ref().filter(|_| site.companion(ending.logical).is_some()) {
        return Err(WeightRefusal::new("a logical name that another tensor has", name));
    }
    parameters.bits = layout.packing.bits();
    Ok(QuantizedWeight {
        class: Arc::new(WeightClass { scheme, dtype, shape, layout, parameters }),
        values: site.values.index,
        name: name.map(String::into_boxed_str),
        parts: parts.map(|part| part.map_or(NO_TENSOR, |part| part.index as u32)),
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

/// Whether a name has an ending. Most names do not, and comparing the last two bytes first skips them quickly.
#[inline]
fn ends_with(name: &str, ending: &str) -> bool {
    name.as_bytes().last_chunk::<2>() == ending.as_bytes().last_chunk::<2>() && name.ends_with(ending)
}

/// Whether a tensor must have scales: it has a name that only codes have, or it is a weight of a dtype that only codes
/// have in a model whose configuration says that it is quantized.
fn is_codes(stored: &SiteTensor, config: &QuantizationConfig) -> bool {
    match config.is_quantized() {
        true => is_named_codes(stored) || may_be_codes(stored),
        // Without a configuration, masks and blocks of other data may have such names.
        false => is_named_codes(stored) && !stored.name.ends_with("blocks"),
    }
}

/// Whether a tensor has a name that only codes have.
fn is_named_codes(stored: &SiteTensor) -> bool {
    let endings: &[&str] = match stored.dtype {
        "I32" => &[".qweight", ".weight_packed"],
        "U8" => &["_blocks", ".blocks", ".weight_packed"],
        _ => &[],
    };
    stored.bytes > 0 && endings.iter().any(|ending| stored.name.ends_with(ending))
}

/// Whether a tensor is a matrix of weights with a dtype that usually only codes have.
fn may_be_codes(stored: &SiteTensor) -> bool {
    stored.bytes > 0
        && stored.shape.len() > 1
        && CodeDtypes::Narrow.include(stored.dtype)
        && stored.name.ends_with(".weight")
}

/// Whether a model may be quantized, so that its configuration must be read. Fast, because few names are those of
/// scales.
pub fn may_be_quantized<'t>(
    tensors: impl Iterator<Item = SiteTensor<'t>>,
    find: impl Fn(&str) -> Option<SiteTensor<'t>>,
) -> bool {
    let endings = || SCHEMES.iter().chain(schemes::UNDECODED).flat_map(|scheme| scheme.endings);
    let has_codes = |stored: &SiteTensor| {
        let fits = |ending: &WeightEndings| {
            let Some(stem) = stored.name.strip_suffix(ending.scales) else { return false };
            let values = find(&[stem, ending.values].concat()).filter(|values| values.name != stored.name);
            values.is_some_and(|values| ending.codes.include(values.dtype))
        };
        endings().any(|ending| ends_with(stored.name, ending.scales) && fits(ending))
    };
    let mut tensors = tensors;
    tensors.any(|stored| has_codes(&stored) || is_named_codes(&stored) || may_be_codes(&stored))
}
