//! `weightfs summary`: prints the line that weight-inspect prints for scripts.

use super::id::version;
use crate::cli::SummaryArgs;
use crate::models::Models;
use crate::terminal::output::to_stdout;
use std::io::Write;
use std::process::ExitCode;
use weightfs::format::Mode;
use weightfs::inspect::Identity;
use weightfs::text::printable;

/// Prints one line for each model.
pub fn run(args: &SummaryArgs) -> anyhow::Result<ExitCode> {
    to_stdout(|out| {
        let models = Models::find(&args.sources, &args.remote, out)?;
        let several = models.files.len() > 1;
        models.each(Mode::Header, out, |model, location, out| {
            let Identity { hash, tensors, metadata } = Identity::of(model);
            let file = if several { format!(",{}", printable(&location.to_string())) } else { String::new() };
            let version = version(model).map_or("N/A".to_owned(), |version| version.to_string());
            Ok(writeln!(out, "{},{version},{tensors},{metadata},{hash}{file}", model.format())?)
        })
    })
}
