//! `weightfs diff`: compares two models, or two directories of models.

use crate::cli::DiffArgs;
use crate::opening::{self, SourceLocator};
use crate::process::logging::complain;
use crate::terminal::comparison::{self, ComparedTensor, ModelComparison};
use crate::terminal::deviation::{DeviationFinding, ValueDeviations};
use crate::terminal::output::{StandardOutput, pretty, to_stdout};
use crate::terminal::progress::ProgressLine;
use anyhow::bail;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use weightfs::codec::quantized::QuantizedPart;
use weightfs::compare::{
    ComparablePair, SharedFiles, StoredTensor, TensorPair, deviations, differences, have_same_bytes, obstacle,
};
use weightfs::model::{Catalog, Model, ModelDiff, ModelId, OpenedModel, Tensor, TensorId, TensorPartners};
use weightfs::source::Location;
use weightfs::view;

/// Exit codes, as in diff(1).
const DIFFERENT: u8 = 1;
const TROUBLE: u8 = 2;

/// Compares two models. The exit code is 0 if they are the same, 1 if they differ, and 2 if they cannot be compared.
pub fn run_diff(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let mut is_same = false;
    let printed = to_stdout(|out| {
        let (same, text) = compare(args, out)?;
        is_same = same;
        out.write_all(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    });
    Ok(match printed {
        // `is_same` is set before the output, so the exit code is right even if the pipe is closed.
        Ok(_) if is_same => ExitCode::SUCCESS,
        Ok(_) => ExitCode::from(DIFFERENT),
        Err(error) => {
            complain(&error);
            ExitCode::from(TROUBLE)
        }
    })
}

/// Whether nothing differs, and the text of the report.
fn compare(args: &DiffArgs, out: &StandardOutput) -> anyhow::Result<(bool, String)> {
    let mode = opening::parse_mode(args.lenient);
    opening::prepare_process()?;
    let mut locator = SourceLocator::new(&args.remote);
    let (at_a, at_b) = (&locator.locate(&args.a)?, &locator.locate(&args.b)?);
    match (opening::open_any_model(at_a, mode)?, opening::open_any_model(at_b, mode)?) {
        (OpenedModel::Model(a), OpenedModel::Model(b)) => {
            compare_models((at_a, &a), (at_b, &b), args, |report| render_diff(report, args, out))
        }
        (OpenedModel::Catalog(a), OpenedModel::Catalog(b)) => compare_catalogs((at_a, &*a), (at_b, &*b), args, out),
        (OpenedModel::Catalog(catalog), _) => bail!("{}", opening::several_models(at_a, &catalog)),
        (_, OpenedModel::Catalog(catalog)) => bail!("{}", opening::several_models(at_b, &catalog)),
    }
}

/// A report on two models.
#[derive(Serialize)]
#[serde(untagged)]
enum DiffReport<'m> {
    /// The differences of their headers and of the stored data.
    Stored(ModelComparison<'m>),
    /// The differences of their values.
    Numbers(ValueDeviations<'m>),
}

impl DiffReport<'_> {
    fn is_same(&self) -> bool {
        match self {
            Self::Stored(report) => report.is_same(),
            Self::Numbers(report) => report.is_same(),
        }
    }

    fn text(&self, out: &StandardOutput) -> String {
        match self {
            Self::Stored(report) => report.text(out),
            Self::Numbers(report) => report.text(out),
        }
    }

    fn markdown(&self) -> String {
        match self {
            Self::Stored(report) => report.markdown(),
            Self::Numbers(report) => report.markdown(),
        }
    }
}

fn render_diff(report: &DiffReport, args: &DiffArgs, out: &StandardOutput) -> anyhow::Result<String> {
    Ok(match (args.json, args.markdown) {
        (true, _) => pretty(report)? + "\n",
        (_, true) => report.markdown(),
        _ => report.text(out),
    })
}

/// Whether two models are the same, and the report as formatted by `render`.
fn compare_models<T>(
    a: (&Location, &Model),
    b: (&Location, &Model),
    args: &DiffArgs,
    render: impl FnOnce(&DiffReport) -> anyhow::Result<T>,
) -> anyhow::Result<(bool, T)> {
    let report = if args.values {
        for (location, model) in [a, b] {
            for warning in model.quantized().warnings() {
                log::warn!("{location}: not dequantized: {warning}; the stored numbers are compared");
            }
        }
        let partners = TensorPartners::new(a.1, b.1);
        let found = compare_numbers(a.1, b.1, &partners)?;
        DiffReport::Numbers(ValueDeviations::new(a, b, &partners, found))
    } else {
        let diff = ModelDiff::new(a.1, b.1);
        let data = if args.data { Some(compare_data(a.1, b.1, &diff)?) } else { None };
        DiffReport::Stored(ModelComparison::new(a, b, &diff, data.as_deref()))
    };
    Ok((report.is_same(), render(&report)?))
}

/// Compares two directories of models: each model with the one that has the same path in a mount.
fn compare_catalogs(
    (at_a, a): (&Location, &Catalog),
    (at_b, b): (&Location, &Catalog),
    args: &DiffArgs,
    out: &StandardOutput,
) -> anyhow::Result<(bool, String)> {
    let (paths_a, paths_b) = (a.paths(), b.paths());
    let only = |some: &BTreeMap<PathBuf, ModelId>, other: &BTreeMap<PathBuf, ModelId>| -> Vec<String> {
        let paths = some.keys().filter(|path| !other.contains_key(*path));
        paths.map(|path| path.to_string_lossy().into_owned()).collect()
    };
    let (removed, added) = (only(&paths_a, &paths_b), only(&paths_b, &paths_a));
    let (mut alike, mut texts, mut reports) = (0, Vec::new(), BTreeMap::new());
    for (path, id_a) in &paths_a {
        let Some(id_b) = paths_b.get(path) else { continue };
        let (path_a, path_b) = (at_a.join(path), at_b.join(path));
        let (model_a, model_b) =
            (opening::open_catalog_model(a, *id_a, &path_a)?, opening::open_catalog_model(b, *id_b, &path_b)?);
        let render_one = |report: &DiffReport| match args.json {
            true => Ok((String::new(), serde_json::to_value(report)?)),
            false => Ok((render_diff(report, args, out)?, Value::Null)),
        };
        let (same, (text, report)) = compare_models((&path_a, &model_a), (&path_b, &model_b), args, render_one)?;
        alike += usize::from(same);
        texts.extend((!same).then_some(text));
        reports.insert(path.to_string_lossy(), report);
    }
    let same = added.is_empty() && removed.is_empty() && alike == reports.len();
    let text = match args.json {
        true => pretty(&json!({"same": same, "added": added, "removed": removed, "models": reports}))? + "\n",
        false => comparison::catalogs(&removed, &added, alike, &texts, (!args.markdown).then_some(out)),
    };
    Ok((same, text))
}

/// The differences of the data of each tensor that both models have and whose values can be compared.
fn compare_data(a: &Model, b: &Model, diff: &ModelDiff) -> anyhow::Result<Vec<ComparedTensor>> {
    let (files_a, files_b) = (SharedFiles::new(a.sources()), SharedFiles::new(b.sources()));
    let pair = |(id_a, id_b): &(TensorId, TensorId)| {
        let (tensor_a, tensor_b) = (a.tensor(*id_a), b.tensor(*id_b));
        let stored_a = StoredTensor { files: &files_a, data: a.data(&tensor_a), runs: a.runs(&tensor_a) };
        let stored_b = StoredTensor { files: &files_b, data: b.data(&tensor_b), runs: b.runs(&tensor_b) };
        let (info_a, info_b) = (tensor_a.info, tensor_b.info);
        if info_a.dtype == info_b.dtype {
            return Some(TensorPair::new(info_a.dtype, info_a.nbytes(), &stored_a, &stored_b));
        }
        let side_a = (info_a.dtype, info_a.nbytes(), &stored_a);
        TensorPair::converted(side_a, (info_b.dtype, &stored_b))
    };
    let is_comparable = |(id_a, id_b): &&(TensorId, TensorId)| {
        let (info_a, info_b) = (a.tensor(*id_a).info, b.tensor(*id_b).info);
        obstacle((info_a.dtype, info_a.shape), (info_b.dtype, info_b.shape)).is_none()
    };
    let all = diff.alike.iter().chain(diff.changed.iter().filter(is_comparable));
    let (ids, pairs): (Vec<_>, Vec<TensorPair>) = all.filter_map(|ids| Some((*ids, pair(ids)?))).unzip();
    let progress = ProgressLine::new("comparing", ids.iter().map(|ids| a.tensor(ids.0).info.nbytes()).sum());
    let found = differences(&pairs, &|bytes| progress.add(bytes))?;
    // Shared blocks are not read, so a changed file may not have been detected yet.
    a.verify()?;
    b.verify()?;
    let compared = ids.into_iter().zip(&pairs).zip(found);
    Ok(compared.map(|((ids, pair), difference)| ComparedTensor { ids, common: pair.common(), difference }).collect())
}

/// Compares the numbers of each pair.
fn compare_numbers(a: &Model, b: &Model, partners: &TensorPartners) -> anyhow::Result<Vec<DeviationFinding>> {
    let numbers = |(id_a, id_b): &(TensorId, TensorId)| (a.numbers(*id_a, true), b.numbers(*id_b, true));
    let nbytes = |model: &Model, id: TensorId| {
        let weight = model.quantized().weight(id);
        weight.map_or_else(|| model.tensor(id).info.nbytes(), |weight| weight.bytes)
    };
    let sizes = partners.pairs.iter().map(|(id_a, id_b)| nbytes(a, *id_a).saturating_add(nbytes(b, *id_b)));
    let sizes: Vec<u64> = sizes.collect();
    let progress = ProgressLine::new("comparing", sizes.iter().copied().fold(0, u64::saturating_add));
    let same = are_stored_alike(a, b, partners)?;
    let mut found = Vec::with_capacity(partners.pairs.len());
    // The positions of the pairs whose numbers have to be compared.
    let (mut left, mut comparable) = (Vec::new(), Vec::new());
    for (at, pair) in partners.pairs.iter().enumerate() {
        let (of_a, of_b) = numbers(pair);
        let obstacle = obstacle((of_a.dtype(), of_a.shape()), (of_b.dtype(), of_b.shape()));
        found.push(match obstacle.filter(|_| !same[at]) {
            Some(obstacle) => DeviationFinding::NotCompared(obstacle),
            None => DeviationFinding::Same,
        });
        if !same[at] && matches!(found[at], DeviationFinding::Same) {
            left.push(at);
            comparable.push(ComparablePair { dtypes: [of_a.dtype(), of_b.dtype()], elements: of_a.elements() });
        } else {
            progress.add(sizes[at]);
        }
    }
    let open = |at: usize| {
        let (of_a, of_b) = numbers(&partners.pairs[left[at]]);
        [view::numbers(a, &of_a), view::numbers(b, &of_b)]
    };
    let advance = |at: usize, elements: u64| {
        let bytes = u128::from(sizes[left[at]]) * u128::from(elements) / u128::from(comparable[at].elements.max(1));
        progress.add(bytes as u64);
    };
    for (at, deviation) in left.iter().zip(deviations(&comparable, &open, &advance)?) {
        found[*at] = DeviationFinding::Compared(deviation);
    }
    // Shared blocks are not read, so a changed file may not have been detected yet.
    a.verify()?;
    b.verify()?;
    Ok(found)
}

/// Whether both tensors of each pair are stored in the same way and with the same bytes, including the companions. If
/// so, they have the same numbers.
fn are_stored_alike(a: &Model, b: &Model, partners: &TensorPartners) -> anyhow::Result<Vec<bool>> {
    let (files_a, files_b) = (SharedFiles::new(a.sources()), SharedFiles::new(b.sources()));
    let pair = |id_a: TensorId, id_b: TensorId| {
        let (tensor_a, tensor_b): (Tensor, Tensor) = (a.tensor(id_a), b.tensor(id_b));
        let len = tensor_a.info.nbytes();
        let stored_a = StoredTensor { files: &files_a, data: a.data(&tensor_a), runs: a.runs(&tensor_a) };
        let stored_b = StoredTensor { files: &files_b, data: b.data(&tensor_b), runs: b.runs(&tensor_b) };
        (len == tensor_b.info.nbytes()).then(|| TensorPair::new(tensor_a.info.dtype, len, &stored_a, &stored_b))
    };
    // The tensors whose bytes are to be compared; `None` if the numbers are stored in different ways.
    let stored = |(id_a, id_b): &(TensorId, TensorId)| -> Option<Vec<TensorPair>> {
        let (of_a, of_b) = (a.numbers(*id_a, true), b.numbers(*id_b, true));
        match (of_a.weight, of_b.weight) {
            (None, None) => {
                let (info_a, info_b) = (&of_a.tensor.info, &of_b.tensor.info);
                let is_alike = (info_a.dtype, info_a.shape) == (info_b.dtype, info_b.shape);
                pair(*id_a, *id_b).filter(|_| is_alike).map(|pair| vec![pair])
            }
            (Some(of_a), Some(of_b)) if of_a.class == of_b.class => {
                let parts = QuantizedPart::ALL.into_iter().map(|part| (of_a.part(part), of_b.part(part)));
                let parts = parts.filter(|parts| *parts != (None, None));
                parts.map(|(of_a, of_b)| pair(TensorId::new(of_a?), TensorId::new(of_b?))).collect()
            }
            _ => None,
        }
    };
    let (at, groups): (Vec<usize>, Vec<Vec<TensorPair>>) =
        partners.pairs.iter().enumerate().filter_map(|(at, ids)| Some((at, stored(ids)?))).unzip();
    let mut alike = vec![false; partners.pairs.len()];
    at.into_iter().zip(have_same_bytes(&groups)?).for_each(|(at, same)| alike[at] = same);
    Ok(alike)
}
