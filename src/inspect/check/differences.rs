//! The findings about a model that is compared with a reference.

use super::like::{LikeTensor, Likeness, OtherDtype, OtherShape};
use super::report::CheckReport;
use crate::format::gguf;
use crate::model::Model;
use crate::rules::CheckRule;
use crate::text::{brackets, quote};
use crate::units::plural;
use std::collections::BTreeMap;

/// The tensor that a model may lack if its embedding has the same weights.
const OUTPUT: &str = "lm_head.weight";

/// Adds the differences to the report on a model, which has this name in messages. If no names agree, they do not count
/// one by one.
pub(super) fn report_likeness(
    likeness: &Likeness,
    (name, model): (&str, &Model),
    reference: &Model,
    report: &mut CheckReport,
) {
    let of = &likeness.reference;
    if let Some(prefix) = &likeness.prefix {
        report.add(CheckRule::NamePrefix, name, None, || prefix.text(model.compared().count(), of));
    }
    let (missing, unexpected) = (&likeness.missing, &likeness.unexpected);
    if !missing.is_empty() && missing.len() == likeness.tensors && !unexpected.is_empty() {
        let formats = [model.format(), reference.format()];
        report.add(CheckRule::OtherNames, name, None, || {
            let why = match formats.iter().filter(|format| **format == gguf::NAME).count() {
                1 => format!("{} and {} name tensors differently", formats[0], formats[1]),
                _ => format!("the first are {} and {}", quote(&unexpected[0].name), quote(&missing[0].name)),
            };
            let names = plural(unexpected.len() as u64, "name");
            let wanted = plural(missing.len() as u64, "name");
            format!("none of the {names} is among the {wanted} of {of}: {why}")
        });
        return;
    }
    let is_tied = model.ties_embeddings() || reference.ties_embeddings();
    for (lists, rule, says) in [
        (missing, CheckRule::MissingTensor, format!("missing; {of} has")),
        (unexpected, CheckRule::UnexpectedTensor, format!("not in {of};")),
    ] {
        for LikeTensor { name: tensor, dtype, shape } in lists {
            let is_output = tensor.strip_suffix(OUTPUT).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
            let rule = if is_tied && is_output { CheckRule::TiedEmbedding } else { rule };
            report.add(rule, name, Some(tensor), || {
                format!("tensor {}: {says} {dtype} {}", quote(tensor), brackets(shape))
            });
        }
    }
    for OtherShape { name: tensor, shape, reference, transposed } in &likeness.shapes {
        report.add(CheckRule::OtherShape, name, Some(tensor), || {
            let end = if *transposed { ", the transpose" } else { "" };
            format!("tensor {}: shape {}; {of} has {}{end}", quote(tensor), brackets(shape), brackets(reference))
        });
    }
    let mut dtypes: BTreeMap<(&str, &str, bool), Vec<&str>> = BTreeMap::new();
    for OtherDtype { name: tensor, dtype, reference, quantized } in &likeness.dtypes {
        dtypes.entry((dtype, reference, *quantized)).or_default().push(tensor);
    }
    for ((dtype, reference, quantized), tensors) in dtypes {
        let rule = if quantized { CheckRule::OtherScheme } else { CheckRule::OtherDtype };
        report.add(rule, name, Some(tensors[0]), || {
            let which = match tensors.len() {
                1 => format!("tensor {}", quote(tensors[0])),
                count => format!("{}, the first {}", plural(count as u64, "tensor"), quote(tensors[0])),
            };
            format!("{which}: {dtype}; {of} has {reference}")
        });
    }
}
