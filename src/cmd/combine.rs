//! `weightfs combine`: joins the parts that commands print with `--part`.

use super::counted::StatsPrinter;
use super::part_files::{JoinedParts, PartCommand, PartReader, join_parts};
use super::{counted_parts, export, sums};
use crate::cli::CombineArgs;
use crate::opening::prepare_process;
use crate::terminal::output::{StandardOutput, to_stdout};
use std::path::PathBuf;
use std::process::ExitCode;

pub fn run_combine(args: &CombineArgs) -> anyhow::Result<ExitCode> {
    prepare_process(false)?;
    let Some((first, others)) = args.parts.split_first() else { return Ok(ExitCode::SUCCESS) };
    let first = PartReader::open(first)?;
    match first.head.command {
        PartCommand::Stats { format, several, .. } => {
            let JoinedParts { models, failed } = join_parts(first, others)?;
            printed(&failed, |out| counted_parts::print_joined(models, StatsPrinter { format, several }, out))
        }
        PartCommand::Sums => {
            let JoinedParts { models, failed } = join_parts(first, others)?;
            printed(&failed, |out| sums::print_joined(models, out))
        }
        PartCommand::Export { .. } => {
            let JoinedParts { models, failed } = join_parts(first, others)?;
            printed(&failed, |out| export::print_joined(models, out))
        }
    }
}

/// Prints what was joined, and names the parts whose processes have reported an error.
fn printed(
    failed: &[PathBuf],
    print: impl FnOnce(&mut StandardOutput) -> anyhow::Result<()>,
) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        print(out)?;
        for path in failed {
            out.complain(&format!("{}: its process has reported an error", path.display()))?;
        }
        Ok(ExitCode::from(u8::from(!failed.is_empty())))
    })
}
