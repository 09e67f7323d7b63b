//! `weightfs combine`: joins the parts that commands print with `--part`.

use super::counted::StatsPrinter;
use super::part_files::{PartCommand, PartReader, join_parts};
use super::{counted_parts, sums};
use crate::cli::CombineArgs;
use crate::opening::prepare_process;
use crate::terminal::output::to_stdout;
use std::process::ExitCode;

pub fn run_combine(args: &CombineArgs) -> anyhow::Result<ExitCode> {
    prepare_process(false)?;
    let Some((first, others)) = args.parts.split_first() else { return Ok(ExitCode::SUCCESS) };
    let first = PartReader::open(first)?;
    to_stdout(|out| {
        let failed = match first.head.command {
            PartCommand::Stats { format, several, .. } => {
                let joined = join_parts(first, others)?;
                let failed = joined.failed;
                counted_parts::print_joined(joined, StatsPrinter { format, several }, out)?;
                failed
            }
            PartCommand::Sums => {
                let joined = join_parts(first, others)?;
                let failed = joined.failed;
                sums::print_joined(joined, out)?;
                failed
            }
        };
        Ok(ExitCode::from(u8::from(failed)))
    })
}
