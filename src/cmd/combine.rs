//! `weightfs combine`: joins the parts that commands print with `--part`.

use super::counted::StatsPrinter;
use super::part_files::{JoinedParts, PartCommand, PartModel, PartReader, join_parts};
use super::{counted_parts, export, sums};
use crate::cli::CombineArgs;
use crate::opening::prepare_process;
use crate::terminal::output::{StandardOutput, to_stdout};
use serde::de::DeserializeOwned;
use std::path::PathBuf;
use std::process::ExitCode;

pub fn run_combine(args: &CombineArgs) -> anyhow::Result<ExitCode> {
    prepare_process(false)?;
    let Some((first, others)) = args.parts.split_first() else { return Ok(ExitCode::SUCCESS) };
    let first = PartReader::open(first)?;
    match first.head.command {
        PartCommand::Stats { format, several, .. } => {
            let printer = StatsPrinter { format, several };
            join(first, others, |models, out| counted_parts::print_joined(models, printer, out))
        }
        PartCommand::Sums => join(first, others, sums::print_joined),
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
        for path in &failed {
            out.complain(&format!("{}: its process has reported an error", path.display()))?;
        }
        Ok(ExitCode::from(u8::from(!failed.is_empty())))
    })
}
