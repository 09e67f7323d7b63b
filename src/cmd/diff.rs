//! `weightfs diff`: compares two models, or two directories of models.

use crate::cli::DiffArgs;
use crate::opening::{self, SourceLocator};
use crate::terminal::comparison::{ComparedTensor, ModelComparison};
use crate::terminal::deviation::{DeviationFinding, ValueDeviations};
use crate::terminal::output::{StandardOutput, pretty, to_stdout};
use crate::terminal::progress::ProgressLine;
use crate::terminal::report;
use anyhow::bail;
use serde::Serialize;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use weightfs::codec::quantized::QuantizedPart;
use weightfs::compare::{
    ComparablePair, SharedFiles, StoredTensor, TensorPair, deviations, differences, have_same_bytes, obstacle,
};
use weightfs::model::{Catalog, Model, ModelDiff, ModelId, OpenedModel, TensorId, TensorPartners};
use weightfs::source::Location;
use weightfs::view;

const COMPARING: &str = "comparing";

/// Compares two models. The exit code is 0 if they are the same, and 1 if they differ.
pub fn run_diff(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    let mut is_same = false;
    let printed = to_stdout(|out| {
        let (same, text) = compare(args, out)?;
        is_same = same;
        out.write_all(text.as_bytes())?;
        Ok(ExitCode::SUCCESS)
    });
    // `is_same` is set before the output, so the exit code is right even if the pipe is closed.
    printed.map(|_| ExitCode::from(u8::from(!is_same)))
}

/// Whether nothing differs, and the text of the report.
fn compare(args: &DiffArgs, out: &StandardOutput) -> anyhow::Result<(bool, String)> {
    let mut locator = SourceLocator::for_command(&args.open.remote)?;
    let (at_a, a) = &locator.open(&args.a, args.open.mode())?;
    let (at_b, b) = &locator.open(&args.b, args.open.mode())?;
    match (a, b) {
        (OpenedModel::Model(a), OpenedModel::Model(b)) => {
            let report = compare_models((at_a, a), (at_b, b), args)?;
            Ok((report.is_same(), report.render(args, out)?))
        }
        (OpenedModel::Catalog(a), OpenedModel::Catalog(b)) => compare_catalogs((at_a, a), (at_b, b), args, out),
        (OpenedModel::Catalog(catalog), _) => bail!("{}", opening::several_models(at_a, catalog)),
        (_, OpenedModel::Catalog(catalog)) => bail!("{}", opening::several_models(at_b, catalog)),
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum DiffReport<'m> {
    /// The differences of their headers and of the stored data.
    Stored(ModelComparison<'m>),
    /// The differences of their values.
    Values(ValueDeviations<'m>),
}

impl DiffReport<'_> {
    fn is_same(&self) -> bool {
        match self {
            Self::Stored(report) => report.same,
            Self::Values(report) => report.same,
        }
    }

    fn render(&self, args: &DiffArgs, out: &StandardOutput) -> anyhow::Result<String> {
        if args.json {
            return Ok(pretty(self)? + "\n");
        }
        let page = match self {
            Self::Stored(report) => report.page(),
            Self::Values(report) => report.page(),
        };
        Ok(if args.markdown { page.markdown() } else { page.text(out) })
    }
}

fn compare_models<'m>(
    a: (&Location, &'m Model),
    b: (&Location, &'m Model),
    args: &DiffArgs,
) -> anyhow::Result<DiffReport<'m>> {
    if !args.values {
        let diff = ModelDiff::new(a.1, b.1);
        let data = if args.data { Some(compare_data(a.1, b.1, &diff)?) } else { None };
        return Ok(DiffReport::Stored(ModelComparison::new(a, b, &diff, data.as_deref())));
    }
    for (location, model) in [a, b] {
        for warning in model.quantized.warnings() {
            log::warn!("{location}: not dequantized: {warning}; the stored numbers are compared");
        }
    }
    let partners = TensorPartners::new(a.1, b.1);
    let found = compare_numbers(a.1, b.1, &partners)?;
    Ok(DiffReport::Values(ValueDeviations::new(a, b, &partners, found)))
}

/// Compares two directories of models: each model with the one that has the same path in a mount.
fn compare_catalogs(
    (at_a, a): (&Location, &Catalog),
    (at_b, b): (&Location, &Catalog),
    args: &DiffArgs,
    out: &StandardOutput,
) -> anyhow::Result<(bool, String)> {
    let (paths_a, paths_b) = (a.paths(), b.paths());
    let (removed, added) = (paths_without(&paths_a, &paths_b), paths_without(&paths_b, &paths_a));
    let (mut alike, mut texts, mut reports) = (0, Vec::new(), BTreeMap::new());
    let mut same = added.is_empty() && removed.is_empty();
    for (path, id_a) in &paths_a {
        let Some(id_b) = paths_b.get(path) else { continue };
        let (path_a, path_b) = (at_a.join(path), at_b.join(path));
        let model_a = opening::open_catalog_model(a, *id_a, &path_a)?;
        let model_b = opening::open_catalog_model(b, *id_b, &path_b)?;
        let report = compare_models((&path_a, &model_a), (&path_b, &model_b), args)?;
        if args.json {
            reports.insert(path.to_string_lossy(), serde_json::to_value(&report)?);
        } else if !report.is_same() {
            texts.push(report.render(args, out)?);
        }
        alike += usize::from(report.is_same());
        same &= report.is_same();
    }
    let text = match args.json {
        true => pretty(&json!({"same": same, "added": added, "removed": removed, "models": reports}))? + "\n",
        false => report::catalogs(&removed, &added, alike, &texts, (!args.markdown).then_some(out)),
    };
    Ok((same, text))
}

fn paths_without(paths: &BTreeMap<PathBuf, ModelId>, others: &BTreeMap<PathBuf, ModelId>) -> Vec<String> {
    let paths = paths.keys().filter(|path| !others.contains_key(*path));
    paths.map(|path| path.to_string_lossy().into_owned()).collect()
}

/// A model whose stored tensors are compared.
struct StoredSide<'m> {
    model: &'m Model,
    files: SharedFiles,
}

impl<'m> StoredSide<'m> {
    fn new(model: &'m Model) -> Self {
        Self { model, files: SharedFiles::new(model.sources()) }
    }

    fn stored(&self, id: TensorId) -> StoredTensor<'_> {
        let tensor = self.model.tensor(id);
        let mut runs = Vec::new();
        view::push_runs(&mut runs, 0, &tensor);
        StoredTensor { files: &self.files, data: self.model.data(&tensor), runs }
    }
}

/// The differences of the data of each tensor that both models have and whose values can be compared.
fn compare_data(a: &Model, b: &Model, diff: &ModelDiff) -> anyhow::Result<Vec<ComparedTensor>> {
    let (side_a, side_b) = (StoredSide::new(a), StoredSide::new(b));
    let (mut compared, mut pairs, mut nbytes) = (Vec::new(), Vec::new(), 0);
    for ids in diff.alike.iter().chain(&diff.changed) {
        let (info_a, info_b) = (a.tensor(ids.0).info, b.tensor(ids.1).info);
        let (side_of_a, side_of_b) = ((info_a.dtype, info_a.shape), (info_b.dtype, info_b.shape));
        if side_of_a != side_of_b && obstacle(side_of_a, side_of_b).is_some() {
            continue;
        }
        let (stored_a, stored_b) = (side_a.stored(ids.0), side_b.stored(ids.1));
        let pair = match info_a.dtype == info_b.dtype {
            true => Some(TensorPair::new(info_a.dtype, info_a.nbytes, &stored_a, &stored_b)),
            false => TensorPair::converted((info_a.dtype, info_a.nbytes, &stored_a), (info_b.dtype, &stored_b)),
        };
        if let Some(pair) = pair {
            compared.push(*ids);
            pairs.push(pair);
            nbytes += info_a.nbytes;
        }
    }
    let progress = ProgressLine::new(COMPARING, nbytes);
    let found = differences(&pairs, &|bytes| progress.add(bytes))?;
    // Shared blocks are not read, so a changed file may not have been detected yet.
    a.verify()?;
    b.verify()?;
    let compared = compared.into_iter().zip(&pairs).zip(found);
    Ok(compared.map(|((ids, pair), difference)| ComparedTensor { ids, common: pair.common, difference }).collect())
}

fn compare_numbers(a: &Model, b: &Model, partners: &TensorPartners) -> anyhow::Result<Vec<DeviationFinding>> {
    let sizes = partners.pairs.iter().map(|(id_a, id_b)| stored_size(a, *id_a).saturating_add(stored_size(b, *id_b)));
    let sizes: Vec<u64> = sizes.collect();
    let progress = ProgressLine::new(COMPARING, sizes.iter().copied().fold(0, u64::saturating_add));
    let same = are_stored_alike(a, b, partners)?;
    let mut found = Vec::with_capacity(partners.pairs.len());
    // The positions of the pairs whose numbers have to be compared.
    let (mut left, mut comparable) = (Vec::new(), Vec::new());
    for (at, (id_a, id_b)) in partners.pairs.iter().enumerate() {
        let (of_a, of_b) = (a.numbers(*id_a, true), b.numbers(*id_b, true));
        let obstacle = obstacle((of_a.dtype(), of_a.shape()), (of_b.dtype(), of_b.shape()));
        if same[at] || obstacle.is_some() {
            progress.add(sizes[at]);
        } else {
            left.push(at);
            comparable.push(ComparablePair { dtypes: [of_a.dtype(), of_b.dtype()], elements: of_a.elements() });
        }
        found.push(obstacle.filter(|_| !same[at]).map_or(DeviationFinding::Same, DeviationFinding::NotCompared));
    }
    let compared = deviations(
        &comparable,
        &|at| {
            let (id_a, id_b) = partners.pairs[left[at]];
            [view::numbers(a, &a.numbers(id_a, true)), view::numbers(b, &b.numbers(id_b, true))]
        },
        &|at, elements| {
            let (bytes, all) = (u128::from(sizes[left[at]]), comparable[at].elements.max(1));
            progress.add((bytes * u128::from(elements) / u128::from(all)) as u64);
        },
    )?;
    for (at, deviation) in left.iter().zip(compared) {
        found[*at] = DeviationFinding::Compared(deviation);
    }
    // Shared blocks are not read, so a changed file may not have been detected yet.
    a.verify()?;
    b.verify()?;
    Ok(found)
}

/// The size of a tensor, with the companions of a quantized weight.
fn stored_size(model: &Model, id: TensorId) -> u64 {
    model.quantized.weight(id).map_or_else(|| model.tensor(id).info.nbytes, |weight| weight.bytes)
}

/// Whether both tensors of each pair are stored in the same way and with the same bytes, including the companions. If
/// so, they have the same numbers.
fn are_stored_alike(a: &Model, b: &Model, partners: &TensorPartners) -> anyhow::Result<Vec<bool>> {
    let (side_a, side_b) = (StoredSide::new(a), StoredSide::new(b));
    let pairs = partners.pairs.iter().enumerate();
    let comparable = pairs.filter_map(|(at, ids)| Some((at, same_way(&side_a, &side_b, *ids)?)));
    let (at, groups): (Vec<usize>, Vec<Vec<TensorPair>>) = comparable.unzip();
    let mut alike = vec![false; partners.pairs.len()];
    at.into_iter().zip(have_same_bytes(&groups)?).for_each(|(at, same)| alike[at] = same);
    Ok(alike)
}

/// The tensors whose bytes are to be compared; `None` if the numbers are stored in different ways.
fn same_way<'m>(
    a: &StoredSide<'m>,
    b: &StoredSide<'m>,
    (id_a, id_b): (TensorId, TensorId),
) -> Option<Vec<TensorPair<'m>>> {
    let (of_a, of_b) = (a.model.numbers(id_a, true), b.model.numbers(id_b, true));
    match (of_a.weight, of_b.weight) {
        (None, None) => {
            let (info_a, info_b) = (&of_a.tensor.info, &of_b.tensor.info);
            let is_alike = (info_a.dtype, info_a.shape) == (info_b.dtype, info_b.shape);
            Some(vec![same_size(a, b, (id_a, id_b)).filter(|_| is_alike)?])
        }
        (Some(of_a), Some(of_b)) if of_a.class == of_b.class => {
            let parts = QuantizedPart::ALL.into_iter().map(|part| (of_a.part(part), of_b.part(part)));
            let parts = parts.filter(|parts| *parts != (None, None));
            parts.map(|(part_a, part_b)| same_size(a, b, (TensorId::new(part_a?), TensorId::new(part_b?)))).collect()
        }
        _ => None,
    }
}

fn same_size<'m>(a: &StoredSide<'m>, b: &StoredSide<'m>, ids: (TensorId, TensorId)) -> Option<TensorPair<'m>> {
    let (info_a, info_b) = (a.model.tensor(ids.0).info, b.model.tensor(ids.1).info);
    let len = info_a.nbytes;
    (len == info_b.nbytes).then(|| TensorPair::new(info_a.dtype, len, &a.stored(ids.0), &b.stored(ids.1)))
}
