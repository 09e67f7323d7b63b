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
use weightfs::write::{self, OutputFile, is_stdout};

/// Size of a chunk in bytes.
const CHUNK: u64 = 64 << 20;

/// Number of tensors without references that are named in the warning.
const NAMED: usize = 3;

pub fn run_references(args: &ReferencesArgs) -> anyhow::Result<ExitCode> {
    let out = args.out.as_deref().filter(|out| !is_stdout(out));
    if let Some(out) = out.filter(|out| out.extension().is_some_and(|suffix| suffix.eq_ignore_ascii_case("parquet"))) {
        bail!("{}: references are written only as JSON; name a .json file", out.display());
    }
    let (source, opened) = opening::open_source(&args.input)?;
    let model = match opened {
        OpenedModel::Model(model) => model,
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
            let done = write_file(&references, &model, &source, out, args.force);
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
            Err(error) => {
                let text = error.to_string();
                self.failure.get_or_insert(error);
                Err(io::Error::other(text))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
