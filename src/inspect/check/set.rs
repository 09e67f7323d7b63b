//! The list of a set of files: knows what an index or a manifest promises of them beyond what a mount asks for.

use super::{Report, Rule};
use crate::format::{Mode, Skipped};
use crate::inspect::totals::{Breakdown, Totals};
use crate::model::{Error, Kind, Model, Shard, Stated};
use crate::text::quote;
use std::path::{Path, PathBuf};

/// Checks the list at `path` against its files; returns where these are.
pub(super) fn check(path: &Path, report: &mut Report) -> Result<Vec<PathBuf>, Error> {
    let name = path.to_string_lossy();
    let model = match Model::open(path, Mode::Lenient) {
        Ok(model) => model,
        Err(Error::Set { error, .. }) => {
            report.add(Rule::Format, &name, None, || error.to_string());
            return Ok(Vec::new());
        }
        Err(error) => return Err(error),
    };
    let (mismatches, more) = model.mismatches().told();
    for Skipped { name: subject, reason } in mismatches {
        report.add(Rule::Index, &name, Some(subject), || match model.kind() {
            // Without the name: a mount says it in front.
            Kind::Dataset => format!("{}: {reason}", quote(subject)),
            _ => reason.clone(),
        });
    }
    report.add_unseen(Rule::Index, more);
    for remark in model.remarks() {
        let rule = if model.kind() == Kind::Dataset { Rule::Manifest } else { Rule::IndexTwice };
        report.add(rule, &name, None, || remark.clone());
    }
    if model.kind() == Kind::Sharded {
        check_totals(&model, &name, report);
    }
    let dir = path.parent().unwrap_or(Path::new(""));
    Ok(model.shards().iter().map(|shard| dir.join(&shard.name)).collect())
}

/// Holds what an index says in numbers against the tensors, and the numbers in the names of shards against one another.
fn check_totals(model: &Model, name: &str, report: &mut Report) {
    // What is not there would be missing in every number, and that it is not there has been told.
    let stated = if model.missing() == 0 { model.stated() } else { Stated::default() };
    let Totals { nbytes, parameters, .. } = Breakdown::of(model, model.whole(), 0).all;
    for (key, stated, found) in
        [("total_size", stated.total_size, nbytes), ("total_parameters", stated.total_parameters, parameters)]
    {
        if let Some(stated) = stated.filter(|stated| *stated != found) {
            report.add(Rule::IndexTotals, name, Some(key), || {
                format!("{key} is {stated} in the index, and {found} in the files")
            });
        }
    }
    let shards = model.shards().len() + model.missing();
    let other_number = |shard: &Shard| {
        let of = number_of_shards(&shard.name).filter(|of| *of != shards as u64)?;
        Some((shard.name.clone(), of))
    };
    if let Some((shard, of)) = model.shards().iter().find_map(other_number) {
        report.add(Rule::IndexTotals, name, Some(&shard), || {
            format!("shard {} is one of {of} by its name, and the index names {shards}", quote(&shard))
        });
    }
}

/// How many there should be by the name of one, `model-00001-of-00002.safetensors`.
fn number_of_shards(name: &str) -> Option<u64> {
    let (front, of) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let number = |text: &str| text.bytes().all(|digit| digit.is_ascii_digit()).then(|| text.parse().ok()).flatten();
    let at: Option<u64> = number(front.rsplit_once(['-', '_'])?.1);
    at.and(number(of))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_say_how_many_shards_there_are() {
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
