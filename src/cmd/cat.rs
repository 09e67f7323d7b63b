//! `weightfs cat`: writes files of a mount to standard output, without mounting.

use crate::cli::CatArgs;
use crate::opening::SourceFiles;
use crate::terminal::output::written;
use anyhow::{Context, bail};
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;
use weightfs::view::ShownViews;
use weightfs::write::OutputFile;

pub fn run_cat(args: &CatArgs) -> anyhow::Result<ExitCode> {
    written(write_content(args))
}

fn write_content(args: &CatArgs) -> anyhow::Result<()> {
    let files = SourceFiles::open(&args.input, args.numbers.shown(ShownViews::default()))?;
    let mut found = Vec::new();
    for path in &args.paths {
        let content = files.content(path)?;
        let range = range(args, content.len()).with_context(|| files.name(path))?;
        found.push((path, content, range));
    }
    let mut output = OutputFile::stdout().context("standard output")?;
    for (path, content, range) in found {
        let done = output.write_range(&content, range, &mut |_| true);
        done.map_err(|error| named(error, &files, path))?;
    }
    Ok(())
}

/// The bytes to write of a file of `len` bytes.
fn range(args: &CatArgs, len: u64) -> anyhow::Result<Range<u64>> {
    let start = args.offset.map_or(0, |offset| offset.0);
    if start > len {
        bail!("offset {start} is past the end of its {len} bytes");
    }
    Ok(start..args.length.map_or(len, |length| len.min(start.saturating_add(length.0))))
}

/// Adds the name of a file to an error that is not one of standard output.
fn named(error: weightfs::write::Error, files: &SourceFiles, path: &Path) -> anyhow::Error {
    match error {
        error @ weightfs::write::Error::Io { .. } => error.into(),
        error => anyhow::Error::new(error).context(files.name(path)),
    }
}
