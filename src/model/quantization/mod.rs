//! Recognises quantized weights: which stored tensors make up a weight, and how.
//!
//! The companions of the codes decide, by their names, types and shapes. The configuration of the model says what they
//! leave open. Nothing is guessed: a weight that could be read in two ways is not recognised, and there is a warning.

mod config;
mod schemes;
mod site;
mod warnings;

pub use config::Config;
pub use schemes::{Parameters, SCHEMES, Scheme};
pub use site::{Ending, Stored, Tensors};
pub use warnings::{Place, Problem, Warning};

use crate::codec::quantized::{Layout, Part, Parts};
use schemes::Found;
use site::Site;
use std::collections::HashMap;
use std::sync::Arc;
use warnings::{Refusal, Warnings};

/// A weight that is stored as codes and companions.
#[derive(Debug, Clone)]
pub struct Weight {
    /// What it has in common with other weights of the model.
    pub class: Arc<Class>,
    /// The number of the tensor with the codes.
    pub values: usize,
    /// The logical name, if it is not that of the tensor with the codes.
    pub name: Option<Box<str>>,
    /// The number of the tensor of each part, or [`NO_TENSOR`].
    parts: Parts<u32>,
    /// The numbers of other tensors that belong to the weight, such as scales of activations.
    others: Vec<u32>,
    /// Size in bytes of the codes and of all companions.
    pub bytes: u64,
}

/// Stands for a part that a weight does not have.
const NO_TENSOR: u32 = u32::MAX;

/// What the weights of a model that have the same scheme and shape have in common.
#[derive(Debug, PartialEq)]
pub struct Class {
    /// How they are quantized.
    pub scheme: &'static Scheme,
    /// The type of the codes for users, such as `INT4`.
    pub dtype: &'static str,
    /// Logical dimensions in elements, outermost first.
    pub shape: Vec<u64>,
    /// How the values are computed.
    pub layout: Layout,
    /// For users.
    pub parameters: Parameters,
}

impl Weight {
    /// The number of the tensor of a part, if the weight has that part.
    pub fn part(&self, part: Part) -> Option<usize> {
        Some(self.parts[part as usize]).filter(|tensor| *tensor != NO_TENSOR).map(|tensor| tensor as usize)
    }

    /// The number of the tensor of each part.
    pub fn parts(&self) -> Parts<Option<usize>> {
        Part::ALL.map(|part| self.part(part))
    }

    /// The numbers of all tensors of the weight except that of the codes.
    pub fn companions(&self) -> impl Iterator<Item = usize> {
        let parts = Part::ALL.into_iter().filter(|part| *part != Part::Values).filter_map(|part| self.part(part));
        parts.chain(self.others.iter().map(|other| *other as usize))
    }

    /// What a companion is to the weight: the name of the part, or [`Weight::OTHER`] if the values do not depend on it.
    pub fn role(&self, companion: usize) -> &'static str {
        Part::ALL.into_iter().find(|part| self.part(*part) == Some(companion)).map_or(Self::OTHER, Part::name)
    }

    /// The role of companions on which the values do not depend, such as scales of activations.
    pub const OTHER: &str = "other";

    /// Stored bits for each element, companions included; 0 if there are no elements.
    pub fn bits_per_weight(&self) -> f64 {
        let elements = self.class.elements();
        if elements == 0 { 0.0 } else { self.bytes as f64 * 8.0 / elements as f64 }
    }
}

impl Class {
    /// Number of elements.
    pub fn elements(&self) -> u64 {
        self.layout.elements()
    }

    /// The scheme and its parameters in words.
    pub fn summary(&self) -> String {
        let Parameters { block: [rows, cols], asymmetric, act_order, nested, smoothed, .. } = self.parameters;
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
pub struct Recognised {
    /// Sorted by the number of the tensor with the codes.
    pub weights: Vec<Weight>,
    /// What could not be recognised.
    pub warnings: Vec<Warning>,
}

impl Recognised {
    /// The weight whose codes are in a tensor.
    pub fn of(&self, values: usize) -> Option<&Weight> {
        Some(&self.weights[self.position(values)?])
    }

    fn position(&self, values: usize) -> Option<usize> {
        self.weights.binary_search_by_key(&values, |weight| weight.values).ok()
    }
}

/// How the name of a scale for each column ends by which a weight was multiplied before it was quantized.
const SMOOTHING: &str = ".pre_quant_scale";

/// The key of the metadata under which ComfyUI describes the quantization of each layer.
pub const COMFY_METADATA: &str = "_quantization_metadata";

/// Largest tensor that [`wanted`] names, in bytes.
const CONTENTS_MAX: u64 = 64 << 10;

/// The numbers of the small tensors whose data [`recognise`] needs: shapes, and descriptions as JSON.
pub fn wanted<'t>(tensors: impl Iterator<Item = Stored<'t>>) -> Vec<usize> {
    let is_wanted = |stored: &Stored| {
        let is_wanted = schemes::CONTENTS.iter().any(|ending| stored.name.ends_with(ending))
            || stored.name.contains(schemes::QUANT_STATE);
        is_wanted && stored.bytes <= CONTENTS_MAX
    };
    tensors.enumerate().filter(|(_, stored)| is_wanted(stored)).map(|(index, _)| index).collect()
}

/// Finds the quantized weights of a model. Takes time proportional to the number of tensors.
pub fn recognise<'t>(tensors: &'t Tensors<'t>, config: &'t Config) -> Recognised {
    let mut weights: Vec<Weight> = Vec::new();
    let mut warnings = Warnings::default();
    let mut refused: Vec<usize> = Vec::new();
    let mut codes: Vec<usize> = Vec::new();
    let mut others: Vec<(usize, &'static str)> = Vec::new();
    let (mut name, mut classes) = (String::new(), Classes::default());
    for index in 0..tensors.len {
        let stored = (tensors.tensor)(index);
        if is_codes(&stored, config) {
            codes.push(index);
        }
        if let Some(ending) = schemes::OTHERS.iter().find(|ending| ends_with(stored.name, ending)) {
            others.push((index, *ending));
        }
        match with_scales(index, &stored, tensors, config, &mut name) {
            None => {}
            Some(Ok(mut weight)) => {
                classes.share(&mut weight);
                weights.push(weight);
            }
            Some(Err((scheme, values, refusal))) => {
                warnings.add(scheme, refusal, (values, (tensors.tensor)(values).name));
                refused.push(values);
            }
        }
    }
    weights.sort_by_key(|weight| weight.values);
    weights.dedup_by_key(|weight| weight.values);
    refused.sort_unstable();
    let mut recognised = Recognised { weights, warnings: Vec::new() };
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
                    let Class { scheme, dtype, ref shape, layout, parameters } = *weight.class;
                    let parameters = Parameters { smoothed: true, ..parameters };
                    weight.class = Arc::new(Class { scheme, dtype, shape: shape.clone(), layout, parameters });
                    classes.share(weight);
                }
            }
        }
    }
    for index in codes {
        if recognised.of(index).is_none() && refused.binary_search(&index).is_err() {
            let stored = (tensors.tensor)(index);
            warnings.add(None, Refusal::missing("codes without scales", stored.dtype), (index, stored.name));
        }
    }
    config.unknown(|reason, name| warnings.add_general(&Refusal::new(reason, name)));
    Recognised { warnings: warnings.finish(), ..recognised }
}

/// A weight that is not recognised: the scheme, if it is known, the number of the tensor with the codes, and the reason.
type Refused = (Option<&'static str>, usize, Refusal);

/// The weight to which a tensor is the scales. `None` if it is no scales. `name` is a buffer.
fn with_scales<'t>(
    index: usize,
    stored: &Stored<'t>,
    tensors: &'t Tensors<'t>,
    config: &'t Config,
    name: &mut String,
) -> Option<Result<Weight, Refused>> {
    let mut unknown = None;
    for scheme in SCHEMES.iter().chain([&schemes::UNKNOWN]) {
        for ending in scheme.endings.iter().filter(|ending| ends_with(stored.name, ending.scales)) {
            let Some(stem) = stored.name.strip_suffix(ending.scales) else { continue };
            name.clear();
            name.push_str(stem);
            name.push_str(ending.values);
            let Some(values) = (tensors.find)(name).filter(|values| *values != index) else { continue };
            let site = Site::new(tensors, config, (stem, ending), (values, index));
            if !(ending.any_dtype || is_code(site.values.dtype)) {
                continue;
            }
            unknown = Some(values);
            let found = (scheme.recognise)(&site);
            match found.and_then(|found| found.map(|found| complete(found, &site, scheme)).transpose()) {
                Ok(None) => {}
                Ok(Some(weight)) => return Some(Ok(weight)),
                Err(refusal) => return Some(Err((Some(scheme.name), values, refusal))),
            }
        }
    }
    unknown.map(|values| Err((None, values, Refusal::new("scales of no known scheme", stored.name))))
}

/// Adds what all schemes have in common, and checks the sizes.
fn complete(found: Found, site: &Site, scheme: &'static Scheme) -> Result<Weight, Refusal> {
    let ending = site.ending;
    let Found { dtype, shape, parts, layout, mut parameters } = found;
    let sizes = parts.map(|part| part.map_or(0, |part| part.bytes));
    layout.check(&sizes).map_err(|reason| Refusal::mismatch("parts of a wrong size", reason))?;
    let name = (ending.logical != ending.values).then(|| [site.stem, ending.logical].concat());
    if let Some(name) = name.as_ref().filter(|_| site.companion(ending.logical).is_some()) {
        return Err(Refusal::new("a name that is taken", name));
    }
    parameters.bits = layout.packing.bits();
    Ok(Weight {
        class: Arc::new(Class { scheme, dtype, shape, layout, parameters }),
        values: site.values.index,
        name: name.map(String::into_boxed_str),
        parts: parts.map(|part| part.map_or(NO_TENSOR, |part| part.index as u32)),
        others: Vec::new(),
        bytes: sizes.iter().fold(0, |sum, size| sum.saturating_add(*size)),
    })
}

/// Lets weights of equal classes share one.
#[derive(Default)]
struct Classes(HashMap<Vec<u64>, Vec<Arc<Class>>>);

impl Classes {
    /// Number of classes of a shape that are compared. Scales of bitsandbytes have an offset that is part of the class.
    const COMPARED: usize = 8;

    fn share(&mut self, weight: &mut Weight) {
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

/// Whether a name ends so. Most names do not, and comparing the last two bytes first is the fastest way to skip them.
#[inline]
fn ends_with(name: &str, ending: &str) -> bool {
    name.as_bytes().last_chunk::<2>() == ending.as_bytes().last_chunk::<2>() && name.ends_with(ending)
}

/// Whether a tensor must have scales: it has a name that only codes have, or the configuration says that the weights
/// are quantized, and it is a weight of a type that no other weights have.
fn is_codes(stored: &Stored, config: &Config) -> bool {
    is_named_codes(stored) || config.is_quantized() && may_be_codes(stored)
}

/// Whether a tensor has a name that only codes have.
fn is_named_codes(stored: &Stored) -> bool {
    let endings: &[&str] = match stored.dtype {
        "I32" => &[".qweight", ".weight_packed"],
        "U8" => &["_blocks", ".blocks", ".weight_packed"],
        _ => &[],
    };
    stored.bytes > 0 && endings.iter().any(|ending| stored.name.ends_with(ending))
}

/// Whether a tensor is a matrix of weights of a type that usually only codes have.
fn may_be_codes(stored: &Stored) -> bool {
    stored.bytes > 0 && stored.shape.len() > 1 && is_code(stored.dtype) && stored.name.ends_with(".weight")
}

/// Whether elements may be codes: integers, and floats of at most 8 bits.
fn is_code(dtype: &str) -> bool {
    match dtype.as_bytes() {
        [b'I' | b'U', bits @ ..] => !bits.is_empty() && bits.iter().all(u8::is_ascii_digit),
        [b'F', b'4' | b'6' | b'8', ..] => !matches!(dtype, "F64"),
        _ => false,
    }
}

/// Whether a model may be quantized, so that its configuration matters. Fast: most names are not those of scales.
pub fn may_be_quantized<'t>(
    tensors: impl Iterator<Item = Stored<'t>>,
    find: impl Fn(&str) -> Option<Stored<'t>>,
) -> bool {
    let endings = || SCHEMES.iter().chain([&schemes::UNKNOWN]).flat_map(|scheme| scheme.endings);
    let has_codes = |stored: &Stored| {
        let fits = |ending: &Ending| {
            let Some(stem) = stored.name.strip_suffix(ending.scales) else { return false };
            let values = find(&[stem, ending.values].concat()).filter(|values| values.name != stored.name);
            values.is_some_and(|values| ending.any_dtype || is_code(values.dtype))
        };
        endings().any(|ending| ends_with(stored.name, ending.scales) && fits(ending))
    };
    let mut tensors = tensors;
    tensors.any(|stored| has_codes(&stored) || is_named_codes(&stored) || may_be_codes(&stored))
}
