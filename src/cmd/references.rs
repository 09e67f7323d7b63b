//! `weightfs references`: writes Kerchunk references of the tensors of a model.

use super::export::export_mode;
use crate::cli::ReferencesArgs;
use crate::cli::pattern::{WantedPatterns, unmatched};
use crate::cli::source::{SourceArg, masked_url};
use crate::opening;
use crate::process::signals::InterruptFlag;
use crate::terminal::output::{to_stdout, written};
use anyhow::bail;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::slice;
use weightfs::model::{Model, OpenedModel};
use weightfs::references::{ReferenceOptions, ReferenceStore, ZarrFormat};
use weightfs::source::Location;
use weightfs::text::quote;
use weightfs::units::plural;
#[cfg(feature = "parquet")]
use weightfs::write::OutputDir;
use weightfs::write::{self, OutputFile, is_stdout};

/// Size of a chunk in bytes.
const CHUNK: u64 = 64 << 20;

/// Number of tensors without references that are named in the warning.
const NAMED: usize = 3;

pub fn run_references(args: &ReferencesArgs) -> anyhow::Result<ExitCode> {
    let out = args.out.as_deref().filter(|out| !is_stdout(out));
    let tables = out.filter(|out| is_tables(out));
    if let Some(out) = tables {
        check_tables(out, args)?;
    }
    let (source, opened) = opening::open_source(&args.input)?;
    let model = match opened {
        OpenedModel::Model(model, _) => model,
        OpenedModel::Catalog(catalog) => bail!("{}", opening::several_models(&source, &catalog)),
    };
    let options = ReferenceOptions {
        format: if args.zarr == 2 { ZarrFormat::V2 } else { ZarrFormat::V3 },
        is_flat: args.flat,
        chunk: args.chunk.map_or(CHUNK, |size| size.as_u64()),
    };
    let wanted = WantedPatterns::new(&args.only);
    let references = ReferenceStore::new(&model, options, |name| wanted.matches(name))?;
    if let Some(pattern) = wanted.unmatched().first() {
        bail!("{}", unmatched(slice::from_ref(&source), pattern));
    }
    if references.is_empty()
        && let Some((name, reason)) = references.left_out().next()
    {
        let count = plural(references.left_out().len() as u64, "tensor");
        bail!("{source}: no tensor can be referenced, of {count}: {}: {reason}", quote(name));
    }
    match out {
        Some(out) => {
            let done = match tables {
                Some(out) => write_directory(&references, &model, out),
                None => write_file(&references, &model, &source, out, args.force),
            };
            if done.is_ok() {
                warn(&references, &source, args);
            }
            written(done)
        }
        None => {
            warn(&references, &source, args);
            to_stdout(|out| {
                references.write(out)?;
                out.flush()?;
                model.verify()?;
                Ok(ExitCode::SUCCESS)
            })
        }
    }
}

/// Logs which tensors have no references, and what readers have to add.
fn warn(references: &ReferenceStore, source: &Location, args: &ReferencesArgs) {
    if let SourceArg::Url(url) = &args.input.source
        && masked_url(url, "").is_some_and(|masked| masked != *url)
    {
        log::warn!("{source}: the references have neither the user nor the query of the URL, which may be secret");
    }
    let count = references.left_out().len();
    if count == 0 {
        return;
    }
    let named = references.left_out().take(NAMED).map(|(name, reason)| format!("{}: {reason}", quote(name)));
    let named = named.collect::<Vec<_>>().join("; ");
    let more = if count > NAMED { format!("; {} more", count - NAMED) } else { String::new() };
    let all = plural((references.len() + count) as u64, "tensor");
    log::warn!("{source}: {count} of {all} left out: {named}{more}");
}

/// Whether fsspec reads references with this name as a directory of Parquet tables.
fn is_tables(out: &Path) -> bool {
    let suffixes = ["parquet", "parq"];
    out.extension().is_some_and(|suffix| suffixes.iter().any(|known| suffix.eq_ignore_ascii_case(known)))
}

/// Fails if references cannot be written as a directory of Parquet tables.
fn check_tables(out: &Path, args: &ReferencesArgs) -> anyhow::Result<()> {
    let path = std::path::absolute(out).unwrap_or_else(|_| out.to_owned());
    let (path, out) = (path.to_string_lossy(), out.display());
    if cfg!(not(feature = "parquet")) {
        bail!("{out}: this build writes references only as JSON; name a .json file");
    }
    if args.zarr != 2 || !args.flat {
        bail!(
            "{out}: Parquet references have format 2 of Zarr and no groups; add --flat --zarr 2, or name a .json file"
        );
    }
    if let Some(text) = [".json", "{", "}"].into_iter().find(|text| path.contains(text)) {
        bail!("{out}: fsspec does not read Parquet references whose path contains {text}; name another directory");
    }
    if args.force {
        bail!("{out}: --force replaces files only; Parquet references are a directory, which must be new or empty");
    }
    Ok(())
}

#[cfg(not(feature = "parquet"))]
fn write_directory(_: &ReferenceStore, _: &Model, out: &Path) -> anyhow::Result<()> {
    bail!("{}: this build writes references only as JSON", out.display())
}

/// Writes the directory of Parquet references.
#[cfg(feature = "parquet")]
fn write_directory(references: &ReferenceStore, model: &Model, path: &Path) -> anyhow::Result<()> {
    let interrupted = InterruptFlag::watch()?;
    let (dir, mut failure) = (OutputDir::create(path)?, None);
    let done = references.write_tables(&mut |file, bytes| {
        let written = interrupted.check().and_then(|()| {
            let mut output = dir.file(file, export_mode(model))?;
            output.write(bytes)?;
            output.commit()
        });
        written.map_err(|error| kept(&mut failure, error))
    });
    if let Some(failure) = failure {
        return Err(failure.into());
    }
    done?;
    model.verify()?;
    interrupted.check()?;
    Ok(dir.commit()?)
}

/// Keeps an error, and returns its message as an `io::Error`, which is all that a writer can return.
fn kept(failure: &mut Option<write::Error>, error: write::Error) -> io::Error {
    let text = error.to_string();
    failure.get_or_insert(error);
    io::Error::other(text)
}

fn write_file(
    references: &ReferenceStore,
    model: &Model,
    source: &Location,
    path: &Path,
    force: bool,
) -> anyhow::Result<()> {
    let interrupted = InterruptFlag::watch()?;
    let mut output = OutputFile::create(path, export_mode(model))?;
    if let Some(stat) = model.stat() {
        output.limit_readers(stat)?;
    }
    if let Some(replaced) = output.replaces() {
        let main = model.main_file().path().and_then(|path| fs::metadata(path).ok());
        let is_main = main.is_some_and(|main| (main.dev(), main.ino()) == replaced);
        if is_main || model.sources().iter().any(|part| part.id() == Some(replaced)) {
            bail!("{}: part of the source {source}; name another file", path.display());
        }
    }
    output.check_force(force)?;
    let mut writer = FileWriter { output, interrupted: &interrupted, failure: None };
    let done = {
        let mut buffered = BufWriter::with_capacity(1 << 20, &mut writer);
        references.write(&mut buffered).and_then(|()| buffered.flush())
    };
    if let Some(failure) = writer.failure {
        return Err(failure.into());
    }
    done?;
    model.verify()?;
    interrupted.check()?;
    Ok(writer.output.commit()?)
}

/// Writes to an output file, and keeps the error.
struct FileWriter<'i> {
    output: OutputFile,
    interrupted: &'i InterruptFlag,
    failure: Option<write::Error>,
}

impl Write for FileWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.interrupted.check().and_then(|()| self.output.write(bytes)) {
            Ok(()) => Ok(bytes.len()),
            Err(error) => Err(kept(&mut self.failure, error)),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
