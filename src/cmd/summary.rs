//! `weightfs summary`: prints the line that weight-inspect prints for scripts.

use crate::cli::SummaryArgs;
use crate::models::Models;
use crate::terminal::output::to_stdout;
use std::io::Write;
use std::process::ExitCode;
use weightfs::inspect::Identity;
use weightfs::text::printable;

/// Prints one line for each model.
pub fn run(args: &SummaryArgs) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        let models = Models::find(&args.sources, out)?;
        let several = models.files.len() > 1;
        models.each(false, out, |model, location, out| {
            let Identity { hash, tensors, metadata } = Identity::of(model);
            let file = if several { format!(",{}", printable(&location.to_string())) } else { String::new() };
            Ok(writeln!(out, "{},N/A,{tensors},{metadata},{hash}{file}", model.format())?)
        })
    })
}
