//! `weightfs diff`: compares two models, or two directories of models.

use super::diff_parts::{compare_whole, write_share};
use super::diff_report::{DiffFormat, DiffReport, DiffReports, LoneModels, print_report};
use super::diff_values::{COMPARING, ComparedValues, StoredSide};
use super::part_files::{PartCommand, PartHead, PartWriter};
use crate::cli::DiffArgs;
use crate::opening::{self, SourceLocator};
use crate::terminal::comparison::{ComparedTensor, ModelComparison};
use crate::terminal::deviation::DeviationOutline;
use crate::terminal::output::{StandardOutput, to_stdout};
use crate::terminal::progress::ProgressLine;
use anyhow::bail;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use weightfs::compare::{TensorPair, differences, obstacle};
use weightfs::model::{Model, ModelDiff, ModelId, OpenedModel, TensorPartners};
use weightfs::parts::WorkPart;
use weightfs::source::Location;

/// Compares two models. The exit code is 0 if they are the same, and 1 if they differ; of a part, it is 0.
pub fn run_diff(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    match args.part {
        None => print_report(|out| compare(args, out)),
        Some(part) => to_stdout(|out| print_part(args, part, out).map(|()| ExitCode::SUCCESS)),
    }
}

/// Whether nothing differs, and the text of the report.
fn compare(args: &DiffArgs, out: &StandardOutput) -> anyhow::Result<(bool, String)> {
    let sources = ComparedSources::open(args)?;
    let mut reports = DiffReports::new(DiffFormat::of(args), sources.lone.clone());
    sources.each(&mut |path, a, b| reports.add(path, &compare_models(a, b, args)?, out))?;
    reports.render(out)
}

/// Prints a part of the comparison of the values.
fn print_part(args: &DiffArgs, part: WorkPart, out: &mut StandardOutput) -> anyhow::Result<()> {
    let sources = ComparedSources::open(args)?;
    let command = PartCommand::Diff { format: DiffFormat::of(args), lone: sources.lone.clone() };
    let mut parts = PartWriter::begin(PartHead::new(command, part, &[], args.open.lenient), out)?;
    sources.each(&mut |path, a, b| {
        warn_of_codes([a, b]);
        let partners = TensorPartners::new(a.1, b.1);
        let outline = DeviationOutline::new(a, b, &partners);
        let values = ComparedValues { a: a.1, b: b.1, partners: &partners };
        write_share(&values, path, outline, &mut parts, out)
    })?;
    parts.end(false, out)
}

/// A model and its location.
type LocatedModel<'m> = (&'m Location, &'m Model);

/// The two models or directories of models of the command line.
struct ComparedSources<'a> {
    a: (Location, OpenedModel),
    b: (Location, OpenedModel),
    /// The models that only one directory has; `None` if both sources are models.
    lone: Option<LoneModels>,
    /// Remote sources are read with its client.
    _locator: SourceLocator<'a>,
}

impl<'a> ComparedSources<'a> {
    fn open(args: &'a DiffArgs) -> anyhow::Result<Self> {
        let mut locator = SourceLocator::for_command(&args.open.remote)?;
        let a = locator.open(&args.a, args.open.mode())?;
        let b = locator.open(&args.b, args.open.mode())?;
        let lone = match (&a.1, &b.1) {
            (OpenedModel::Model(..), OpenedModel::Model(..)) => None,
            (OpenedModel::Catalog(of_a), OpenedModel::Catalog(of_b)) => {
                let (paths_a, paths_b) = (of_a.paths(), of_b.paths());
                let (added, removed) = (paths_without(&paths_b, &paths_a), paths_without(&paths_a, &paths_b));
                Some(LoneModels { added, removed })
            }
            (OpenedModel::Catalog(catalog), _) => bail!("{}", opening::several_models(&a.0, catalog)),
            (_, OpenedModel::Catalog(catalog)) => bail!("{}", opening::several_models(&b.0, catalog)),
        };
        Ok(Self { a, b, lone, _locator: locator })
    }

    /// Passes both models on, or each model of the first directory with the one that has the same path in a mount of
    /// the second. The path is empty if the sources are models.
    fn each(
        &self,
        take: &mut dyn FnMut(String, LocatedModel, LocatedModel) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let ((at_a, a), (at_b, b)) = (&self.a, &self.b);
        match (a, b) {
            (OpenedModel::Model(a, _), OpenedModel::Model(b, _)) => take(String::new(), (at_a, a), (at_b, b)),
            (OpenedModel::Catalog(a), OpenedModel::Catalog(b)) => {
                let paths_b = b.paths();
                for (path, id_a) in &a.paths() {
                    let Some(id_b) = paths_b.get(path) else { continue };
                    let (path_a, path_b) = (at_a.join(path), at_b.join(path));
                    let model_a = opening::open_catalog_model(a, *id_a, &path_a)?;
                    let model_b = opening::open_catalog_model(b, *id_b, &path_b)?;
                    take(path.to_string_lossy().into_owned(), (&path_a, &model_a), (&path_b, &model_b))?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn paths_without(paths: &BTreeMap<PathBuf, ModelId>, others: &BTreeMap<PathBuf, ModelId>) -> Vec<String> {
    let paths = paths.keys().filter(|path| !others.contains_key(*path));
    paths.map(|path| path.to_string_lossy().into_owned()).collect()
}

fn compare_models<'m>(a: LocatedModel<'m>, b: LocatedModel<'m>, args: &DiffArgs) -> anyhow::Result<DiffReport<'m>> {
    if !args.values {
        let diff = ModelDiff::new(a.1, b.1);
        let data = if args.data { Some(compare_data(a.1, b.1, &diff)?) } else { None };
        return Ok(DiffReport::Stored(ModelComparison::new(a, b, &diff, data.as_deref())));
    }
    warn_of_codes([a, b]);
    let partners = TensorPartners::new(a.1, b.1);
    let outline = DeviationOutline::new(a, b, &partners);
    Ok(DiffReport::Values(compare_whole(&ComparedValues { a: a.1, b: b.1, partners: &partners }, outline)?))
}

/// Warns of tensors that look quantized but cannot be dequantized.
fn warn_of_codes(models: [LocatedModel; 2]) {
    for (location, model) in models {
        for warning in model.quantized.warnings() {
            log::warn!("{location}: not dequantized: {warning}; the stored numbers are compared");
        }
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
