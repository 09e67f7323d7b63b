//! `weightfs summary`: prints the line that weight-inspect prints for scripts.

use crate::cli::SummaryArgs;
use crate::opening::NamedModels;
use crate::terminal::output::to_stdout;
use std::io::Write;
use std::process::ExitCode;
use weightfs::format::ParseMode;
use weightfs::inspect::ModelIdentity;
use weightfs::text::printable;

pub fn run_summary(args: &SummaryArgs) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        let models = NamedModels::find(&args.input.sources, &args.input.remote, out)?;
        let several = models.files.len() > 1;
        models.each(ParseMode::Header, out, |model, location, out| {
            let ModelIdentity { hash, tensors, metadata } = ModelIdentity::of(model);
            let file = if several { format!(",{}", printable(&location.to_string())) } else { String::new() };
            let version = model.format_version().map_or("N/A".to_owned(), |version| version.to_string());
            Ok(writeln!(out, "{},{version},{tensors},{metadata},{hash}{file}", model.format())?)
        })
    })
}
