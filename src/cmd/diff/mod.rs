//! `weightfs diff`: knows how two models are held side by side and what the exit code says of them.

mod report;

use crate::cli::DiffArgs;
use crate::models;
use crate::process::logging::complain;
use crate::terminal::output::{Output, pretty, to_stdout};
use crate::terminal::progress::Progress;
use anyhow::bail;
use report::Report;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weightfs::compare::{Difference, Files, Pair, differences};
use weightfs::format::Mode;
use weightfs::model::{Catalog, Diff, Model, Opened};

/// Exit codes, as those of diff(1).
const DIFFERENT: u8 = 1;
const TROUBLE: u8 = 2;

/// Compares two models: 0 they are the same, 1 they differ, 2 trouble.
pub fn run(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let mut is_same = false;
    let printed = to_stdout(|out| {
        let (same, text) = compare(args, out)?;
        is_same = same;
        out.write_all(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    });
    Ok(match printed {
        // Also where nobody has read it to the end.
        Ok(_) if is_same => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(DIFFERENT),
        Err(error) => {
            complain(&error);
            ExitCode::from(TROUBLE)
        }
    })
}

/// Whether nothing differs, and what there is to say.
fn compare(args: &DiffArgs, out: &Output) -> anyhow::Result<(bool, String)> {
    let mode = if args.lenient { Mode::Lenient } else { Mode::Strict };
    match (models::any(&args.a, mode)?, models::any(&args.b, mode)?) {
        (Opened::Model(a), Opened::Model(b)) => {
            compare_models((&args.a, &a), (&args.b, &b), args, |report| told(report, args, out))
        }
        (Opened::Catalog(a), Opened::Catalog(b)) => compare_catalogs(&a, &b, args, out),
        (Opened::Catalog(catalog), _) => bail!("{}", models::several(&args.a, &catalog)),
        (_, Opened::Catalog(catalog)) => bail!("{}", models::several(&args.b, &catalog)),
    }
}

fn told(report: &Report, args: &DiffArgs, out: &Output) -> anyhow::Result<String> {
    Ok(match (args.json, args.markdown) {
        (true, _) => pretty(report)? + "\n",
        (_, true) => report.markdown(),
        _ => report.text(out),
    })
}

/// Whether two models are the same, and what `tell` makes of the rest.
fn compare_models<T>(
    a: (&Path, &Model),
    b: (&Path, &Model),
    args: &DiffArgs,
    tell: impl FnOnce(&Report) -> anyhow::Result<T>,
) -> anyhow::Result<(bool, T)> {
    let diff = Diff::new(a.1, b.1);
    let data = if args.data { Some(compare_data(a.1, b.1, &diff)?) } else { None };
    let report = Report::new(a, b, &diff, data.as_deref());
    Ok((report.is_same(), tell(&report)?))
}

/// Compares directories of models, each model with the one that a mount shows in the same place.
fn compare_catalogs(a: &Catalog, b: &Catalog, args: &DiffArgs, out: &Output) -> anyhow::Result<(bool, String)> {
    let (places_a, places_b) = (a.places(), b.places());
    let only = |some: &BTreeMap<PathBuf, u32>, other: &BTreeMap<PathBuf, u32>| -> Vec<String> {
        let places = some.keys().filter(|place| !other.contains_key(*place));
        places.map(|place| place.to_string_lossy().into_owned()).collect()
    };
    let (removed, added) = (only(&places_a, &places_b), only(&places_b, &places_a));
    let (mut alike, mut texts, mut reports) = (0, Vec::new(), BTreeMap::new());
    for (place, number_a) in &places_a {
        let Some(number_b) = places_b.get(place) else { continue };
        let (path_a, path_b) = (args.a.join(place), args.b.join(place));
        let (of_a, of_b) = (models::in_catalog(a, *number_a, &path_a)?, models::in_catalog(b, *number_b, &path_b)?);
        let tell = |report: &Report| match args.json {
            true => Ok((String::new(), serde_json::to_value(report)?)),
            false => Ok((told(report, args, out)?, Value::Null)),
        };
        let (same, (text, report)) = compare_models((&path_a, &of_a), (&path_b, &of_b), args, tell)?;
        alike += usize::from(same);
        texts.extend((!same).then_some(text));
        reports.insert(place.to_string_lossy(), report);
    }
    let same = added.is_empty() && removed.is_empty() && alike == reports.len();
    let text = match args.json {
        true => pretty(&json!({"same": same, "added": added, "removed": removed, "models": reports}))? + "\n",
        false => report::catalogs(&removed, &added, alike, &texts, (!args.markdown).then_some(out)),
    };
    Ok((same, text))
}

/// What differs in each tensor that both have alike.
fn compare_data(a: &Model, b: &Model, diff: &Diff) -> anyhow::Result<Vec<Difference>> {
    let (files_a, files_b) = (Files::new(a.sources()), Files::new(b.sources()));
    let nbytes = |pair: &(u32, u32)| a.tensor(pair.0 as usize).0.nbytes();
    let progress = Progress::new("comparing", diff.alike.iter().map(nbytes).sum());
    let runs: Vec<_> = diff.alike.iter().map(|(of_a, of_b)| (a.runs(*of_a as usize), b.runs(*of_b as usize))).collect();
    let pairs = diff.alike.iter().zip(&runs).map(|((of_a, _), (runs_a, runs_b))| {
        let (tensor, _) = a.tensor(*of_a as usize);
        Pair::new(tensor.dtype, tensor.nbytes(), (&files_a, runs_a), (&files_b, runs_b))
    });
    let pairs: Vec<Pair> = pairs.collect();
    let found = differences(&pairs, &|bytes| progress.add(bytes))?;
    // What lies in one place was not read, so that nobody has noticed a change there.
    models::still_the_same(a)?;
    models::still_the_same(b)?;
    Ok(found)
}
