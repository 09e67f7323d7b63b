//! Checks an index or a manifest against its files, and splits against each other.

use super::report::CheckReport;
use super::{dataset, quantized};
use crate::format::{SkippedEntry, onnx, pytorch};
use crate::inspect::totals::{TensorBreakdown, TensorTotals};
use crate::model::{Error, Model, NoteKind, StatedTotals};
use crate::rules::CheckRule;
use crate::source::Location;
use crate::text::quote;

/// Checks the index or manifest at `location` against its files, or the split there against the other splits. `opened`
/// is the model in lenient mode. Returns the model, if there is one, and the locations of the files.
pub(super) fn check_set(
    location: &Location,
    opened: Result<Model, Error>,
    report: &mut CheckReport,
) -> Result<(Option<Model>, Vec<Location>), Error> {
    let name = location.to_string();
    let model = match opened {
        Ok(model) => model,
        Err(Error::Set { fault, .. }) => {
            report.add(CheckRule::Format, &name, None, || fault);
            return Ok((None, Vec::new()));
        }
        // A file that is called a split, but has no other splits.
        Err(Error::Format { .. }) => return Ok((None, vec![location.clone()])),
        Err(error) => return Err(error),
    };
    let kind = model.form.notes;
    let (mismatch_rule, remark_rule) = match kind {
        NoteKind::Index => (CheckRule::Index, CheckRule::IndexTwice),
        NoteKind::Manifest => (CheckRule::Index, CheckRule::Manifest),
        NoteKind::Numbers => (CheckRule::Index, CheckRule::NoIndex),
        NoteKind::Splits => (CheckRule::Split, CheckRule::SplitName),
    };
    let (mismatches, more) = model.facts.mismatches.kept();
    for SkippedEntry { name: subject, reason, .. } in mismatches {
        report.add(mismatch_rule, &name, Some(subject), || match kind {
            // The reason does not contain the subject.
            NoteKind::Manifest => format!("{}: {reason}", quote(subject)),
            NoteKind::Index | NoteKind::Numbers | NoteKind::Splits => reason.clone(),
        });
    }
    report.add_unseen(mismatch_rule, more);
    for remark in &model.facts.remarks {
        report.add(remark_rule, &name, None, || remark.clone());
    }
    check_totals(&model, &name, report);
    if kind == NoteKind::Manifest {
        dataset::check_names(&model, &name, report);
    }
    quantized::check_recognition(&model, &name, model.facts.unopened.is_empty(), report);
    if [pytorch::DISTCP, onnx::NAME].contains(&model.format()) {
        count_assembled(&model, report);
    }
    let names = model.files.iter().map(|shard| shard.location.clone()).collect();
    Ok((Some(model), names))
}

/// Counts the tensors of a model that are in no header of a file. Their values are not searched.
fn count_assembled(model: &Model, report: &mut CheckReport) {
    let headers: Vec<_> = model.files.iter().map(|file| &file.header).filter(|header| !header.is_empty()).collect();
    let is_described = |id| headers.iter().any(|header| header.find(model.name(id)).is_some());
    for id in model.logical().iter().filter(|id| !is_described(*id)) {
        report.tensors += 1;
        report.unsearched += 1;
        report.nbytes = report.nbytes.saturating_add(model.tensor(id).info.nbytes);
    }
}

/// Compares the totals of an index with the tensors, and the numbers in the names of shards with the number of shards.
fn check_totals(model: &Model, name: &str, report: &mut CheckReport) {
    // If a shard is missing, all totals are wrong. The missing shard has been reported already.
    let stated = if model.facts.unopened.is_empty() { model.facts.stated } else { StatedTotals::default() };
    let TensorTotals { nbytes, parameters, .. } = TensorBreakdown::of(model, model.logical().iter(), 0).all;
    // Some writers count the stored elements of quantized weights.
    let elements = model.logical().iter().map(|id| model.tensor(id).info.elements()).fold(0, u64::saturating_add);
    for (key, stated, found, or) in [
        ("total_size", stated.total_size, nbytes, nbytes),
        ("total_parameters", stated.total_parameters, parameters, elements),
    ] {
        if let Some(stated) = stated.filter(|stated| *stated != found && *stated != or) {
            report.add(CheckRule::IndexTotals, name, Some(key), || {
                format!("{key} is {stated} in the index, but {found} in the files")
            });
        }
    }
    let Some(shards) = model.facts.stated.shards else { return };
    let mut named = model.files.iter().filter_map(|shard| Some((&shard.name, number_of_shards(&shard.name)?)));
    if let Some((shard, of)) = named.find(|(_, of)| *of != shards as u64) {
        report.add(CheckRule::IndexTotals, name, Some(shard), || {
            format!("shard {} is one of {of} by its name, but the index names {shards}", quote(shard))
        });
    }
}

/// The number of shards in a name such as `model-00001-of-00002.safetensors`.
pub(super) fn number_of_shards(name: &str) -> Option<u64> {
    let (front, of) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (_, at) = front.rsplit_once(['-', '_'])?;
    // parse() also accepts a sign.
    let is_number = [at, of].iter().all(|text| text.bytes().all(|digit| digit.is_ascii_digit()));
    at.parse::<u64>().ok().filter(|_| is_number).and(of.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_shards_is_parsed_from_name() {
        let cases = [
            ("model-00001-of-00002.safetensors", Some(2)),
            ("dir/model_00001-of-00030.safetensors", Some(30)),
            ("model.safetensors", None),
            ("model-1-of-x.safetensors", None),
            ("model-of-2.safetensors", None),
            ("-1-of-.safetensors", None),
            ("best-of-5.safetensors", None),
        ];
        for (name, expected) in cases {
            assert_eq!(number_of_shards(name), expected, "{name}");
        }
    }
}
