//! Parts of the comparison of the values of two models, which are printed with `--part` and joined.

use super::diff_report::{DiffFormat, DiffReport, DiffReports, LoneModels};
use super::diff_values::{ComparedValues, PairPiece, PieceFinding};
use super::part_files::{PartModel, PartWriter, are_gapless};
use crate::terminal::deviation::{DeviationFinding, DeviationOutline, PairedTensor, ValueDeviations};
use crate::terminal::output::StandardOutput;
use anyhow::bail;
use serde::{Deserialize, Serialize};
use weightfs::compare::{DEVIATION_STEP, Deviation, DeviationState};
use weightfs::parts::WorkPart;
use weightfs::text::quote;
use weightfs::units::plural;

/// What a part has of two models. The outline comes before all tensors.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum ComparedLine {
    Outline(Box<OutlineLine>),
    Piece(Box<PieceLine>),
}

/// The headers of two models. One of the parts has it.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct OutlineLine {
    /// The path of both models in their directories.
    path: String,
    outline: DeviationOutline,
}

/// A tensor of both models, or a range of its elements.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PieceLine {
    index: usize,
    tensor: PairedTensor,
    range: (u64, u64),
    /// The end of the range of the whole tensor.
    len: u64,
    found: LineFinding,
}

#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum LineFinding {
    Same,
    NotCompared(String),
    /// One for every [`DEVIATION_STEP`] elements.
    Compared(Vec<DeviationState>),
}

impl ComparedLine {
    /// The index of what it is about, and the range of it.
    fn place(&self) -> (usize, (u64, u64)) {
        match self {
            Self::Outline(_) => (0, (0, 0)),
            Self::Piece(piece) => (piece.index.saturating_add(1), piece.range),
        }
    }
}

/// Compares and prints the share of a part in the values of two models.
pub(super) fn write_share(
    values: &ComparedValues,
    path: String,
    outline: DeviationOutline,
    parts: &mut PartWriter,
    out: &mut StandardOutput,
) -> anyhow::Result<()> {
    let model = PartModel::of_models(outline.sources(), &[values.a, values.b], values.partners.pairs.len() + 1);
    let part = parts.begin_model(model, out)?;
    if part.number == 1 {
        parts.write_item(ComparedLine::Outline(Box::new(OutlineLine { path, outline })), out)?;
    }
    for (PairPiece { pair, range, len, .. }, found) in values.compare(part)? {
        let tensor = PairedTensor::new(values.a, values.b, values.partners.pairs[pair]);
        let found = match found {
            PieceFinding::Same => LineFinding::Same,
            PieceFinding::NotCompared(reason) => LineFinding::NotCompared(reason),
            PieceFinding::Compared(found) => LineFinding::Compared(found.iter().map(DeviationState::of).collect()),
        };
        let piece = PieceLine { index: pair, tensor, range: (range.start, range.end), len, found };
        parts.write_item(ComparedLine::Piece(Box::new(piece)), out)?;
    }
    Ok(())
}

/// The report on the values of two models, which one process compares.
pub(super) fn compare_whole(values: &ComparedValues, outline: DeviationOutline) -> anyhow::Result<ValueDeviations> {
    let found = values.compare(WorkPart::WHOLE)?.into_iter().map(|(piece, found)| {
        let finding = match found {
            PieceFinding::Same => DeviationFinding::Same,
            PieceFinding::NotCompared(reason) => DeviationFinding::NotCompared(reason),
            PieceFinding::Compared(found) => DeviationFinding::Compared(merge_in_order(found)),
        };
        (PairedTensor::new(values.a, values.b, values.partners.pairs[piece.pair]), finding)
    });
    Ok(ValueDeviations::new(outline, found.collect()))
}

fn merge_in_order(deviations: impl IntoIterator<Item = Deviation>) -> Deviation {
    deviations.into_iter().fold(Deviation::default(), Deviation::merge)
}

/// Whether nothing differs, and the text that one process without `--part` prints.
pub(super) fn render_joined(
    models: Vec<(PartModel, Vec<ComparedLine>)>,
    format: DiffFormat,
    lone: Option<LoneModels>,
    out: &StandardOutput,
) -> anyhow::Result<(bool, String)> {
    if lone.is_none() && models.len() != 1 {
        bail!("the parts are those of two models, but have {}", plural(models.len() as u64, "pair"));
    }
    let mut reports = DiffReports::new(format, lone);
    for (model, lines) in models {
        let (path, report) = combine_model(&model, lines)?;
        reports.add(path, &DiffReport::Values(report), out)?;
    }
    reports.render(out)
}

/// The report on two models and their path, from the lines in all parts.
fn combine_model(model: &PartModel, mut lines: Vec<ComparedLine>) -> anyhow::Result<(String, ValueDeviations)> {
    lines.sort_by_key(ComparedLine::place);
    model.check_whole(lines.chunk_by(|a, b| a.place().0 == b.place().0).map(|same| same[0].place().0))?;
    let (mut outlines, mut pieces): (Vec<OutlineLine>, Vec<PieceLine>) = Default::default();
    for line in lines {
        match line {
            ComparedLine::Outline(line) => outlines.push(*line),
            ComparedLine::Piece(line) => pieces.push(*line),
        }
    }
    let (Some(OutlineLine { path, outline }), true) = (outlines.pop(), outlines.is_empty()) else {
        bail!("{}: several parts have its headers", model.source);
    };
    let mut found = Vec::new();
    for same in pieces.chunk_by(|a, b| a.index == b.index) {
        let tensor = &same[0].tensor;
        let Some(finding) = combine_pieces(same) else {
            bail!("{}: the pieces of {} do not fit together", model.source, quote(&tensor.name));
        };
        found.push((tensor.clone(), finding));
    }
    Ok((path, ValueDeviations::new(outline, found)))
}

/// The result for a tensor from its pieces, in their order. `None` if they are not those of one tensor.
fn combine_pieces(pieces: &[PieceLine]) -> Option<DeviationFinding> {
    let first = pieces.first()?;
    let are_of_one = pieces.iter().all(|piece| (&piece.tensor, piece.len) == (&first.tensor, first.len));
    if !are_of_one || !are_gapless(pieces.iter().map(|piece| piece.range), first.len) {
        return None;
    }
    match pieces {
        [PieceLine { found: LineFinding::Same, .. }] => return Some(DeviationFinding::Same),
        [PieceLine { found: LineFinding::NotCompared(reason), .. }] => {
            return Some(DeviationFinding::NotCompared(reason.clone()));
        }
        _ => {}
    }
    let elements = first.tensor.shape.iter().try_fold(1, |count: u64, dim| count.checked_mul(*dim))?;
    let mut all = Vec::new();
    for PieceLine { range: (start, end), found, .. } in pieces {
        let LineFinding::Compared(states) = found else { return None };
        let (count, rest) = (end.checked_sub(*start)?, start % DEVIATION_STEP);
        if rest != 0 || states.len() as u64 != count.div_ceil(DEVIATION_STEP) {
            return None;
        }
        for (state, before) in states.iter().zip((0..count).step_by(DEVIATION_STEP as usize)) {
            all.push(state.deviation(DEVIATION_STEP.min(count - before))?);
        }
    }
    (elements == first.len).then(|| DeviationFinding::Compared(merge_in_order(all)))
}
