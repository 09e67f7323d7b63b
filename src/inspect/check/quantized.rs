//! Checks quantized weights: whether they are recognised, and whether the numbers in their companions are usable.

use super::findings::index;
use super::report::CheckReport;
use crate::codec::quantized::{
    CodeNumber, CodePacking, Codebooks, CompanionFaults, DequantizeFormula, GlobalScale, QuantizedLayout,
    QuantizedPart, ScaleGrid, ScaleType, ZeroPoints,
};
use crate::content::ReadRequest;
use crate::format::{HeaderTensor, TensorInfo};
use crate::model::contradictions::{SAMPLE_BYTES, ZeroPointFaults};
use crate::model::quantization::{ProblemKind, ProblemPlace, QuantizedWeight, WeightWarning};
use crate::model::{Error, Model, TensorId};
use crate::rules::CheckRule;
use crate::text::quote;
use crate::threads;
use std::collections::HashSet;
use std::ops::Range;

/// Maximum number of bytes that are read at a time. A multiple of the size of any scale.
const AT_ONCE: u64 = 1 << 20;

/// Number of tensors that are read before their findings are reported.
const TENSORS_AT_ONCE: usize = 1024;

/// Reports tensors that look quantized and are not recognised. If `is_whole` is false, the model is only a part of one,
/// and missing companions are not reported.
pub(super) fn check_recognition(model: &Model, name: &str, is_whole: bool, report: &mut CheckReport) {
    let quantized = &model.quantized;
    // If the scheme is unknown, it is also unknown which companions there must be.
    let mut unknown = quantized.warnings().iter().filter(|warning| warning.problem == ProblemKind::Unknown);
    let is_known = unknown.all(|warning| !warning.places.is_empty());
    for (warning, note) in quantized.warnings().iter().zip(quantized.notes()) {
        let WeightWarning { problem, scheme, reason, count, ref places, .. } = *warning;
        match problem {
            ProblemKind::Missing if !is_whole => continue,
            ProblemKind::Missing if scheme.is_some() || is_known => {}
            ProblemKind::Mismatch => {}
            ProblemKind::Contradiction => {
                report.add(CheckRule::QuantizationConfig, name, None, || note);
                continue;
            }
            ProblemKind::Missing | ProblemKind::Unknown => {
                report.add(CheckRule::Quantized, name, None, || note);
                continue;
            }
        }
        for ProblemPlace { tensor, found } in places {
            let tensor = model.name(TensorId::new(*tensor));
            let scheme = scheme.map_or(String::new(), |scheme| format!(" ({scheme})"));
            report.add(CheckRule::Companion, name, Some(tensor), || {
                format!("tensor {}{scheme}: {reason} ({found})", quote(tensor))
            });
        }
        report.add_unseen(CheckRule::Companion, count - places.len());
    }
}

/// Whether the numbers of a tensor of a file are not those of its dtype to search for NaN: it is a companion of a
/// weight, so that [`read_companion`] reports its faults, or it has codes of integers in a float dtype.
pub(super) fn is_searched_elsewhere(model: &Model, tensor: &HeaderTensor) -> bool {
    let id = model.find(tensor.name);
    let id = id.filter(|id| model.tensor(*id).stored().is_some_and(|(_, stored)| stored.range == tensor.range));
    let Some(id) = id else { return false };
    if let Some(weight) = model.quantized.weight(id)
        && !tensor.dtype.is_integer()
        && has_integers(&weight.class.layout)
    {
        return true;
    }
    let owner = model.quantized.owner(id);
    owner.is_some_and(|weight| QuantizedPart::ALL.iter().any(|part| weight.part(*part) == Some(id.index())))
}

/// Whether the codes are integers, so that any bits are valid, whatever the dtype of their tensor is.
fn has_integers(layout: &QuantizedLayout) -> bool {
    match layout.number {
        CodeNumber::Unsigned | CodeNumber::Signed | CodeNumber::Offset | CodeNumber::Map => true,
        CodeNumber::Packed => matches!(layout.packing, CodePacking::Codebooks(_)),
        _ => false,
    }
}

/// The sizes of the companions that [`read_companion`] processes, in bytes.
pub(super) fn companion_lens(model: &Model) -> Vec<u64> {
    checked(model).map(|companion| model.tensor(companion.tensor).info.nbytes).collect()
}

/// The sizes of the tensors that [`read_zero_points`] processes, in bytes.
pub(super) fn zero_point_lens(model: &Model) -> Vec<u64> {
    symmetric_zeros(model).map(|(_, zeros)| model.tensor(zeros).info.nbytes).collect()
}

/// A companion whose numbers are checked.
struct CheckedCompanion<'m> {
    weight: &'m QuantizedWeight,
    part: QuantizedPart,
    tensor: TensorId,
}

impl<'m> CheckedCompanion<'m> {
    fn info(&self, model: &'m Model) -> TensorInfo<'m> {
        model.tensor(self.tensor).info
    }
}

/// The companions of all weights whose numbers are checked, each once.
fn checked(model: &Model) -> impl Iterator<Item = CheckedCompanion<'_>> {
    let mut seen = HashSet::new();
    let all = model.quantized.weights().iter().filter(|weight| weight.class.elements() > 0);
    let all = all.flat_map(|weight| QuantizedPart::ALL.into_iter().map(move |part| (weight, part)));
    all.filter_map(move |(weight, part)| {
        companion_number(&weight.class.layout, part)?;
        let tensor = TensorId::new(weight.part(part)?);
        seen.insert(tensor).then_some(CheckedCompanion { weight, part, tensor })
    })
}

/// The type of the numbers of a part; `None` if they can have any value, such as integer zero points and codes. For a
/// group index, a type of the same size.
fn companion_number(layout: &QuantizedLayout, part: QuantizedPart) -> Option<ScaleType> {
    let is_mixed = matches!(layout.packing, CodePacking::MixedDown(_));
    match part {
        QuantizedPart::Scales if is_mixed => None,
        QuantizedPart::NestedScales if is_mixed => Some(ScaleType::F16),
        QuantizedPart::Scales => Some(layout.scale).filter(|scale| !matches!(scale, ScaleType::Nested { .. })),
        QuantizedPart::Biases => Some(layout.bias),
        QuantizedPart::Map => match layout.packing {
            CodePacking::Codebooks(Codebooks { number, .. }) => Some(number),
            _ => Some(ScaleType::F32),
        },
        QuantizedPart::Global | QuantizedPart::NestedScales | QuantizedPart::NestedMap | QuantizedPart::GroupIndex => {
            Some(ScaleType::F32)
        }
        QuantizedPart::Zeros => match layout.zeros {
            ZeroPoints::Numbers(number) => Some(number),
            _ => None,
        },
        // Recognition has checked the last two.
        QuantizedPart::Values | QuantizedPart::CodeGroups | QuantizedPart::Permutation => None,
    }
}

/// Reads some of the companions of quantized weights and reports numbers that make values wrong. `names` are the names
/// of the files in messages.
pub(super) fn read_companion(
    (model, names): (&Model, &[String]),
    some: &Range<usize>,
    report: &mut CheckReport,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<(), Error> {
    let all: Vec<CheckedCompanion> = checked(model).take(some.end).skip(some.start).collect();
    for some in all.chunks(TENSORS_AT_ONCE) {
        let found = threads::map_parallel(some.len(), |at| faults(model, &some[at], advance));
        for (companion, faults) in some.iter().zip(found) {
            let file = model.tensor(companion.tensor).first_file().and_then(|file| names.get(file.index()));
            report_faults(model, companion, &faults?, file.or(names.first()).map_or("", |name| name), report);
        }
    }
    Ok(())
}

fn faults(
    model: &Model,
    companion: &CheckedCompanion,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<CompanionFaults, Error> {
    let (layout, mut faults) = (&companion.weight.class.layout, CompanionFaults::default());
    let tensor = model.tensor(companion.tensor);
    let Some(real) = companion_number(layout, companion.part) else { return Ok(faults) };
    let (data, len) = (model.data(&tensor), tensor.info.nbytes);
    let mut buf = Vec::new();
    for start in (0..len).step_by(AT_ONCE as usize) {
        let end = len.min(start + AT_ONCE);
        buf.resize((end - start) as usize, 0);
        data.fill(&mut buf, start, &ReadRequest::WAIT)?;
        let part = match companion.part {
            QuantizedPart::GroupIndex => CompanionFaults::of_index(layout.grid.groups(), &buf),
            _ => CompanionFaults::of_scales(real, &buf),
        };
        faults.merge(&part, start / real.bytes());
        advance(end - start);
    }
    Ok(faults)
}

/// The weights whose zero points must all be in the middle of the codes, each with the tensor of its zero points.
/// Weights that already have a warning from opening the model are left out.
fn symmetric_zeros(model: &Model) -> impl Iterator<Item = (&QuantizedWeight, TensorId)> {
    let contradictions = model.quantized.warnings().iter().filter(|one| one.problem == ProblemKind::Contradiction);
    let reported: HashSet<usize> = contradictions.flat_map(|one| &one.places).map(|place| place.tensor).collect();
    let weights = model.quantized.weights().iter().filter(move |weight| !reported.contains(&weight.values));
    weights.filter_map(|weight| Some((weight, TensorId::new(weight.symmetric_zeros()?))))
}

/// Reads some of the zero points of weights that are symmetric by the configuration, and reports those that are not in
/// the middle of the codes. `names` are the names of the files in messages.
pub(super) fn read_zero_points(
    (model, names): (&Model, &[String]),
    some: &Range<usize>,
    report: &mut CheckReport,
    advance: &(dyn Fn(u64) + Sync),
) -> Result<(), Error> {
    let all = symmetric_zeros(model).take(some.end).skip(some.start);
    let all: Vec<(&QuantizedWeight, TensorId)> = all.collect();
    for some in all.chunks(TENSORS_AT_ONCE) {
        let found = threads::map_parallel(some.len(), |at| zero_point_faults(model, some[at], advance));
        for ((weight, zeros), faults) in some.iter().zip(found) {
            let (faults, tensor) = (faults?, model.tensor(*zeros));
            let Some(found) = faults.found(&weight.class.layout) else { continue };
            let file = tensor.first_file().and_then(|file| names.get(file.index())).or(names.first());
            let (name, ZeroPointFaults { wrong, total, .. }) = (tensor.info.name, faults);
            report.add(CheckRule::QuantizationConfig, file.map_or("", |name| name), Some(name), || {
                let (name, of) = (quote(name), quote(model.weight_name(weight)));
                let verb = if total == 1 { "zero point is" } else { "zero points are" };
                format!(
                    "tensor {name}: {wrong} of {total} {verb} not in the middle of the codes ({found}), although the \
                     configuration says that {of} is symmetric"
                )
            });
        }
    }
    Ok(())
}

fn zero_point_faults(
    model: &Model,
    (weight, zeros): (&QuantizedWeight, TensorId),
    advance: &(dyn Fn(u64) + Sync),
) -> Result<ZeroPointFaults, Error> {
    let (tensor, mut faults, mut buf) = (model.tensor(zeros), ZeroPointFaults::default(), Vec::new());
    let (data, len) = (model.data(&tensor), tensor.info.nbytes);
    for start in (0..len).step_by(AT_ONCE as usize) {
        buf.resize((len - start).min(AT_ONCE) as usize, 0);
        data.fill(&mut buf, start, &ReadRequest::WAIT)?;
        faults.look_at(&weight.class.layout, start / SAMPLE_BYTES, &buf);
        advance(buf.len() as u64);
    }
    Ok(faults)
}

/// The name of a number of a part, in singular and plural.
fn called(part: QuantizedPart) -> [&'static str; 2] {
    match part {
        QuantizedPart::Values => ["code", "codes"],
        QuantizedPart::Scales => ["scale", "scales"],
        QuantizedPart::Zeros => ["zero point", "zero points"],
        QuantizedPart::Biases => ["bias", "biases"],
        QuantizedPart::GroupIndex => ["column", "columns"],
        QuantizedPart::Global => ["global scale", "global scales"],
        QuantizedPart::Map => ["value of a code", "values of codes"],
        QuantizedPart::NestedScales => ["scale of scales", "scales of scales"],
        QuantizedPart::CodeGroups => ["group", "groups"],
        QuantizedPart::Permutation => ["place", "places"],
        QuantizedPart::NestedMap => ["value of a quantized scale", "values of quantized scales"],
    }
}

/// Number of the numbers of a part that have a fault, with the verb.
fn faulty_numbers(part: QuantizedPart, count: u64, total: u64) -> String {
    let [one, many] = called(part);
    match (count, total) {
        (1, 1) => format!("the {one} is"),
        (1, _) => format!("1 of {total} {many} is"),
        _ if count == total => format!("all {total} {many} are"),
        _ => format!("{count} of {total} {many} are"),
    }
}

fn report_faults(
    model: &Model,
    companion: &CheckedCompanion,
    faults: &CompanionFaults,
    file: &str,
    report: &mut CheckReport,
) {
    let CheckedCompanion { weight, part, .. } = *companion;
    let CompanionFaults { zero, not_finite, no_group, is_unused, first } = *faults;
    let layout = &weight.class.layout;
    let info = companion.info(model);
    let (name, total) = (quote(info.name), info.elements());
    let of = quote(model.weight_name(weight));
    let at = index(info.shape, first.unwrap_or(0));
    let first = if total > 1 { format!(", the first at {at}") } else { String::new() };
    if part == QuantizedPart::GroupIndex {
        if no_group > 0 && !is_unused {
            report.add(CheckRule::GroupIndex, file, Some(info.name), || {
                format!(
                    "tensor {name}: {no_group} of {total} columns of {} have groups that do not exist{first}; there \
                     are {} groups",
                    of,
                    layout.grid.groups()
                )
            });
        }
        return;
    }
    if not_finite > 0 {
        report.add(CheckRule::Scale, file, Some(info.name), || {
            let wrong = faulty_numbers(part, not_finite, total);
            format!("tensor {name}: {wrong} infinite or NaN{first}, and so are values of {of}")
        });
    }
    let divides = match part {
        QuantizedPart::Scales => layout.formula == DequantizeFormula::Divide,
        QuantizedPart::Global => matches!(layout.global, GlobalScale::Over { .. }),
        _ => false,
    };
    // With a bias, a scale of 0 is normal: all values of the group are equal.
    let multiplies = matches!(part, QuantizedPart::Scales | QuantizedPart::Global)
        && layout.formula != DequantizeFormula::ScaleThenAdd;
    // Incomplete tiles are padded with zeros.
    let is_padded = matches!(layout.grid, ScaleGrid::Tiled { .. });
    let zeros = faulty_numbers(part, zero, total);
    if zero > 0 && divides {
        report.add(CheckRule::Scale, file, Some(info.name), || {
            let them = if total == 1 { "it" } else { "them" };
            format!("tensor {name}: {zeros} zero, and the scheme divides by {them}: values of {of} are not finite")
        });
    } else if zero > 0 && multiplies && zero == total {
        report.add(CheckRule::ZeroWeight, file, Some(info.name), || {
            format!("tensor {name}: {zeros} zero, and so are all values of {of}")
        });
    } else if zero > 0 && multiplies && !is_padded {
        report.add(CheckRule::ZeroScale, file, Some(info.name), || {
            format!("tensor {name}: {zeros} zero, and so are the values of {of} in their groups")
        });
    }
}
