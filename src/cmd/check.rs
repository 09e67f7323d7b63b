//! `weightfs check`: prints the findings of `inspect::check`.

use super::check_parts::{CHECKING, write_share};
use super::check_report::{CheckPrinter, TROUBLE};
use super::part_files::{PartCommand, PartHead, PartWriter};
use crate::cli::CheckArgs;
use crate::cli::source::SourceArg;
use crate::opening::{self, NamedModel, NamedModels, SourceLocator};
#[cfg(feature = "parquet")]
use crate::process::parquet::rows as index_rows;
use crate::terminal::output::to_stdout;
use crate::terminal::progress::ProgressLine;
use std::process::ExitCode;
use weightfs::format::ParseMode;
#[cfg(not(feature = "parquet"))]
use weightfs::inspect::check::IndexRow;
use weightfs::inspect::check::{CheckReport, ModelCheck, ReferenceModel};
use weightfs::model::{Error, Model, OpenedModel};
use weightfs::parts::WorkPart;
#[cfg(not(feature = "parquet"))]
use weightfs::source::Source;
use weightfs::source::{self, Location};

/// Checks each model. The exit code is 0 if all are sound, 1 if an error was found, and 2 if something could not be
/// read; of a part, it is 0 or 2.
pub fn run_check(args: &CheckArgs) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        let mut locator = SourceLocator::for_command(&args.input.remote)?;
        let reference = args.like.as_ref().map(|source| open_reference(source, &mut locator)).transpose()?;
        let models = NamedModels::find_with(&mut locator, &args.input.sources, out)?;
        let NamedModels { files, copies, failed, mut connecting } = models;
        if args.sha256.is_some() && files.len() + copies.len() > 1 {
            anyhow::bail!("--sha256 is for one file, not for {} models; {SUMS}", files.len() + copies.len());
        }
        let printer = CheckPrinter::of(args);
        let mut parts = args.part.map(|part| PartWriter::begin(head(part, printer, args), out)).transpose()?;
        let mut code = if failed { TROUBLE } else { 0 };
        // Programs may load a file that no mount shows.
        for NamedModel { location, top } in files.iter().chain(&copies) {
            let like = reference.as_ref().map(|(name, model)| ReferenceModel { name, model });
            let opened = open_source(location, top.as_ref(), like, args)?;
            drop(connecting.take());
            let source = location.to_string();
            let checked = match (opened, &mut parts) {
                (Ok(check), Some(parts)) => {
                    prepare(check, args).and_then(|check| write_share(&check, source, parts, out))
                }
                (Ok(check), None) => {
                    read_source(check, args).map(|mut report| printer.print(&mut report, &source, out))
                }
                (Err(error), _) => Err(error),
            };
            match checked {
                Ok(printed) => code = code.max(printed?),
                Err(error) => {
                    code = TROUBLE;
                    out.complain(&reason(&error))?;
                }
            }
        }
        if let Some(parts) = parts {
            parts.end(code != 0, out)?;
        }
        Ok(ExitCode::from(code))
    })
}

fn head(part: WorkPart, printer: CheckPrinter, args: &CheckArgs) -> PartHead {
    PartHead::new(PartCommand::Check { printer, sha256: args.sha256.clone() }, part, &[], false)
}

/// The message about a check that could not be completed.
fn reason(error: &Error) -> String {
    match error {
        Error::Source(source::Error::Cut { path, .. } | source::Error::Changed { path }) => {
            format!("{}: changed while it was checked", path.display())
        }
        other => other.to_string(),
    }
}

/// The advice to users who have several sums.
const SUMS: &str = "to check several, put their sums into a file SHA256SUMS beside them";

/// The name of the model of `--like`, and the model.
fn open_reference(source: &SourceArg, locator: &mut SourceLocator) -> anyhow::Result<(String, Model)> {
    let (location, opened) = locator.open(source, ParseMode::Strict)?;
    match opened {
        OpenedModel::Model(model, _) => Ok((location.to_string(), *model)),
        OpenedModel::Catalog(catalog) => anyhow::bail!("{}", opening::several_models(&location, &catalog)),
    }
}

/// Opens a model. Fails if it has several files and the command line has a sum for one.
fn open_source(
    location: &Location,
    top: Option<&Location>,
    reference: Option<ReferenceModel>,
    args: &CheckArgs,
) -> anyhow::Result<Result<ModelCheck, Error>> {
    let mut check = match ModelCheck::open(location, top, reference) {
        Ok(check) => check,
        Err(error) => return Ok(Err(error)),
    };
    if let Some(Err(files)) = args.sha256.clone().map(|sum| check.expect_sum(sum)) {
        anyhow::bail!("{location}: --sha256 is for one file, and this model has {files}; {SUMS}");
    }
    Ok(Ok(check))
}

/// Does what comes before the data is read.
fn prepare(mut check: ModelCheck, args: &CheckArgs) -> Result<ModelCheck, Error> {
    check.compare_index(index_rows)?;
    if !args.no_data {
        check.find_sums();
    }
    Ok(check)
}

fn read_source(check: ModelCheck, args: &CheckArgs) -> Result<CheckReport, Error> {
    let mut check = prepare(check, args)?;
    if !args.no_data {
        let progress = ProgressLine::new(CHECKING, check.bytes_to_read(args.values));
        check.read(args.values, &|bytes| progress.add(bytes))?;
    }
    Ok(check.into_report())
}

/// Reads no index of tensors.
#[cfg(not(feature = "parquet"))]
fn index_rows(_: &dyn Source, _: &mut dyn FnMut(&IndexRow) -> bool) -> Result<(), String> {
    Err("it is not read, because this weightfs was built without support for Parquet".into())
}
