//! `weightfs combine`: joins the parts that commands print with `--part`.

use super::check_report::{CheckPrinter, TROUBLE};
use super::counted::StatsPrinter;
use super::diff_report::{DiffFormat, LoneModels, print_report};
use super::part_files::{JoinedParts, PartCommand, PartModel, PartReader, join_parts};
use super::{check_parts, counted_parts, diff_parts, export, sums};
use crate::cli::CombineArgs;
use crate::opening::prepare_process;
use crate::process::logging::complain;
use crate::terminal::output::{StandardOutput, to_stdout};
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::process::ExitCode;

pub fn run_combine(args: &CombineArgs) -> anyhow::Result<ExitCode> {
    prepare_process(false)?;
    let Some((first, others)) = args.parts.split_first() else { return Ok(ExitCode::SUCCESS) };
    let first = PartReader::open(first)?;
    match first.head.command.clone() {
        PartCommand::Stats { format, several, .. } => {
            let printer = StatsPrinter { format, several };
            join(first, others, |models, out| counted_parts::print_joined(models, printer, out))
        }
        PartCommand::Sums => join(first, others, sums::print_joined),
        PartCommand::Diff { format, lone } => with_failure(join_diff(first, others, format, lone)),
        PartCommand::Check { printer, .. } => with_failure(join_check(first, others, printer)),
        PartCommand::Export { .. } => join(first, others, export::print_joined),
    }
}

/// Prints all parts together, and names those whose processes have reported an error.
fn join<T: DeserializeOwned + PartialEq>(
    first: PartReader,
    others: &[PathBuf],
    print: impl FnOnce(Vec<(PartModel, Vec<T>)>, &mut StandardOutput) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    let JoinedParts { models, failed } = join_parts(first, others)?;
    to_stdout(|out| {
        print(models, out)?;
        complain_of(&failed, out)?;
        Ok(ExitCode::from(u8::from(!failed.is_empty())))
    })
}

/// Prints the differences that all parts have together.
fn join_diff(
    first: PartReader,
    others: &[PathBuf],
    format: DiffFormat,
    lone: Option<LoneModels>,
) -> anyhow::Result<ExitCode> {
    let models = join_parts(first, others)?.models;
    print_report(|out| diff_parts::render_joined(models, format, lone, out))
}

/// Prints the findings that all parts have together.
fn join_check(first: PartReader, others: &[PathBuf], printer: CheckPrinter) -> anyhow::Result<ExitCode> {
    let JoinedParts { models, failed } = join_parts(first, others)?;
    to_stdout(|out| {
        let code = check_parts::print_joined(models, printer, !failed.is_empty(), out)?;
        complain_of(&failed, out)?;
        Ok(ExitCode::from(code))
    })
}

/// Reports an error with the exit code of `weightfs diff` and `weightfs check`.
fn with_failure(joined: anyhow::Result<ExitCode>) -> anyhow::Result<ExitCode> {
    joined.or_else(|error| {
        complain(&error);
        Ok(ExitCode::from(TROUBLE))
    })
}

/// Names the parts whose processes have reported an error.
fn complain_of(failed: &[PathBuf], out: &mut StandardOutput) -> anyhow::Result<()> {
    for path in failed {
        out.complain(&format!("{}: its process has reported an error", path.display()))?;
    }
    Ok(())
}
