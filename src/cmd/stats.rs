//! `weightfs stats`: the statistics of the values of all tensors.

use super::counted::{CountedModel, StatsFormat, StatsPrinter};
use super::counted_parts::write_share;
use super::part_files::{PartCommand, PartHead, PartWriter};
use crate::cli::StatsArgs;
use crate::cli::pattern::WantedPatterns;
use crate::opening::{NamedModels, report_unmatched};
use crate::terminal::output::to_stdout;
use std::process::ExitCode;
use weightfs::parts::WorkPart;

pub fn run_stats(args: &StatsArgs) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        let sources = [args.input.source.clone()];
        let models = NamedModels::find(&sources, &args.input.open.remote, out)?;
        let format = match () {
            () if args.json => StatsFormat::Json,
            () if args.csv => StatsFormat::Csv,
            () => StatsFormat::Table,
        };
        let wanted = WantedPatterns::new(&args.only);
        let printer = StatsPrinter { format, several: models.files.len() > 1 };
        let mut parts = args.part.map(|part| PartWriter::begin(head(part, printer, args), out)).transpose()?;
        if parts.is_none() {
            printer.begin(out)?;
        }
        let mut opened = false;
        let code = models.each(args.input.open.mode(), out, |model, location, out| {
            opened = true;
            let counted = CountedModel::new(model, location, &wanted, args);
            match &mut parts {
                Some(parts) => write_share(&counted, parts, out),
                None => printer.print(&counted.head(), &mut |take| counted.each(take), out),
            }
        })?;
        // If no model could be opened, the patterns were not tried.
        let code = if opened { report_unmatched(&wanted, &sources, code, out)? } else { code };
        if let Some(parts) = parts {
            parts.end(code != ExitCode::SUCCESS, out)?;
        }
        Ok(code)
    })
}

fn head(part: WorkPart, StatsPrinter { format, several }: StatsPrinter, args: &StatsArgs) -> PartHead {
    let command = PartCommand::Stats { format, several, stored: args.stored };
    PartHead::new(command, part, &args.only, args.input.open.lenient)
}
