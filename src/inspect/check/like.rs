//! Compares a model with a reference of the same architecture, as `load_state_dict` of PyTorch does: by the names and
//! shapes of tensors.

use crate::format::gguf;
use crate::model::quantization::COMFY_METADATA;
use crate::model::{self, Model, PrefixChange, TensorId, TensorNumbers, TensorPartners, find_prefix_change};
use crate::source::Location;
use crate::text::{quote, shell_text, shell_word};
use crate::units::{grouped, plural};
use serde::Serialize;
use std::borrow::Cow;

/// The model with which others are compared, and its name in messages.
#[derive(Debug, Clone, Copy)]
pub struct ReferenceModel<'m> {
    pub name: &'m str,
    pub model: &'m Model,
}

/// How a model differs from a reference. Tensors have the names that they have in their own model, also if a change of
/// names is found. Quantized weights have their logical names and shapes. All lists are in the order of the tensors.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Likeness {
    pub reference: String,
    /// The number of tensors of the reference.
    pub tensors: usize,
    /// The number of tensors of the reference that the model has with the same shape.
    pub alike: usize,
    /// The change of names after which the rest is found, of those names that do not agree without it.
    pub prefix: Option<ExplainedPrefix>,
    pub missing: Vec<LikeTensor>,
    pub unexpected: Vec<LikeTensor>,
    pub shapes: Vec<OtherShape>,
    pub dtypes: Vec<OtherDtype>,
}

/// A change of names by which a model becomes like the reference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExplainedPrefix {
    #[serde(flatten)]
    pub change: PrefixChange,
    /// The number of names that agree after the change only.
    pub names: usize,
    /// The number of names that agree without the change and that it would change too.
    pub spoiled: usize,
    /// The command that writes a model with the changed names; `None` if it would spoil names or be refused.
    pub command: Option<String>,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LikeTensor {
    pub name: String,
    pub dtype: String,
    pub shape: Vec<u64>,
}

/// A tensor with another shape in the reference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OtherShape {
    pub name: String,
    pub shape: Vec<u64>,
    pub reference: Vec<u64>,
    /// Whether one shape is the other one in reverse order.
    pub transposed: bool,
}

/// A tensor with another dtype in the reference.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OtherDtype {
    pub name: String,
    pub dtype: String,
    pub reference: String,
    /// Whether one of the two is quantized.
    pub quantized: bool,
}

impl Likeness {
    /// Compares the model at `location`.
    pub(super) fn new(location: &Location, model: &Model, reference: ReferenceModel) -> Self {
        let other = reference.model;
        let plain = TensorPartners::new(model, other);
        let (prefix, partners) = match find_prefix_change(model, other, &plain) {
            Some((change, partners)) => {
                let names = partners.pairs.len() - plain.pairs.len();
                let agreeing = plain.pairs.iter().map(|pair| model.numbers(pair.0, true).name());
                let spoiled = agreeing.filter(|name| change.applies_to(name)).count();
                let command = if spoiled == 0 { export_command(&change, location, model) } else { None };
                (Some(ExplainedPrefix { change, names, spoiled, command }), partners)
            }
            None => (None, plain),
        };
        let (mut shapes, mut dtypes) = (Vec::new(), Vec::new());
        for (id, in_reference) in &partners.pairs {
            let (numbers, wanted) = (model.numbers(*id, true), other.numbers(*in_reference, true));
            let (shape, reference) = (numbers.shape(), wanted.shape());
            // PyTorch takes the one element of a vector for a parameter without dimensions.
            if shape != reference && (shape, reference) != (&[1], &[]) {
                let transposed = shape.iter().eq(reference.iter().rev());
                let (shape, reference) = (shape.to_vec(), reference.to_vec());
                shapes.push(OtherShape { name: numbers.name().to_owned(), shape, reference, transposed });
            }
            let (dtype, reference) = (stored_dtype(model, *id), stored_dtype(other, *in_reference));
            if dtype != reference {
                let quantized = is_quantized(&numbers) || is_quantized(&wanted);
                let (dtype, reference) = (dtype.into_owned(), reference.into_owned());
                dtypes.push(OtherDtype { name: numbers.name().to_owned(), dtype, reference, quantized });
            }
        }
        Self {
            reference: reference.name.to_owned(),
            tensors: other.compared().count(),
            alike: partners.pairs.len() - shapes.len(),
            prefix,
            missing: partners.added.iter().map(|id| LikeTensor::new(other, *id)).collect(),
            unexpected: partners.removed.iter().map(|id| LikeTensor::new(model, *id)).collect(),
            shapes,
            dtypes,
        }
    }

    /// The result in a few words.
    pub fn summary(&self) -> String {
        let Self { reference, tensors, alike, prefix, .. } = self;
        let changed = if prefix.is_some() { ", after the change of the prefix" } else { "" };
        let tensors = plural(*tensors as u64, "tensor");
        format!("has {} of the {tensors} of {reference}{changed}", grouped(*alike as u64))
    }
}

impl ExplainedPrefix {
    /// How many names of a model with `tensors` tensors agree with the reference after the change.
    pub(super) fn text(&self, tensors: usize, reference: &str) -> String {
        let Self { change: PrefixChange { strip, prepend }, names, spoiled, command } = self;
        let which = match (*names, tensors) {
            (1, 1) => "the only name agrees".to_owned(),
            (1, _) => format!("1 of {} agrees", plural(tensors as u64, "name")),
            (names, _) if names == tensors => format!("all {} agree", plural(tensors as u64, "name")),
            _ => format!("{} of {} agree", grouped(*names as u64), plural(tensors as u64, "name")),
        };
        let how = match (&strip[..], &prepend[..]) {
            ("", _) => format!("with the prefix {}", quote(prepend)),
            (_, "") => format!("without the prefix {}", quote(strip)),
            _ => format!("with the prefix {} in place of {}", quote(prepend), quote(strip)),
        };
        let end = match (command, spoiled) {
            (Some(command), _) => format!(": {command}"),
            (None, 0) => String::new(),
            (None, 1) => "; 1 other name agrees without the change, and export would change it too".to_owned(),
            (None, some) => {
                let some = grouped(*some as u64);
                format!("; {some} other names agree without the change, and export would change them too")
            }
        };
        format!("{which} with {reference} {how}{end}")
    }
}

impl LikeTensor {
    fn new(model: &Model, id: TensorId) -> Self {
        let numbers = model.numbers(id, true);
        let (name, dtype) = (numbers.name().to_owned(), stored_dtype(model, id).into_owned());
        Self { name, dtype, shape: numbers.shape().to_vec() }
    }
}

/// The dtype of a tensor; of a quantized weight, the scheme and the type of its codes.
fn stored_dtype(model: &Model, id: TensorId) -> Cow<'_, str> {
    let numbers = model.numbers(id, true);
    match numbers.weight {
        Some(weight) => format!("{} {}", weight.class.scheme, weight.class.dtype).into(),
        None => numbers.dtype().name().into(),
    }
}

/// Whether a tensor is a quantized weight, or has the dtype of blocks with scales.
fn is_quantized(numbers: &TensorNumbers) -> bool {
    numbers.weight.is_some() || numbers.dtype().has_scales()
}

/// The command that changes the names of the model at `location`; `None` if `export` refuses it.
fn export_command(change: &PrefixChange, location: &Location, model: &Model) -> Option<String> {
    if model.format() == gguf::NAME || model::metadata_text(model.metadata(), COMFY_METADATA).is_some() {
        return None;
    }
    let options = [("--strip", &change.strip), ("--prepend", &change.prepend)];
    let options = options.into_iter().filter(|(_, prefix)| !prefix.is_empty());
    let options: String = options.map(|(option, prefix)| format!("{option} {} ", shell_text(prefix))).collect();
    let source = location.path().map_or_else(|| shell_text(&location.to_string()), shell_word);
    Some(format!("weightfs export {options}{source} OUT"))
}
