//! `weightfs export`: knows how a model, a part of it, or a directory of models becomes files on a disk.

use crate::cli::ExportArgs;
use crate::cli::pattern::{Wanted, unmatched};
use crate::models;
use crate::process::logging::complain;
use crate::process::signals::Interrupted;
use crate::terminal::output::written;
use crate::terminal::progress::Progress;
use anyhow::{Context, bail};
use bytesize::ByteSize;
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use weightfs::format::Mode;
use weightfs::model::{self, Catalog, Kind, Model, Opened};
use weightfs::source::Bytes;
use weightfs::view::{Export, Shards, Tensors};
use weightfs::write::{self, Folder, Output, is_stdout};

/// Permissions of new files, less the umask.
const MODE: u32 = 0o666;

/// Most files of one model: so many can be mounted again.
const SHARDS_MAX: usize = 10_000;

/// Writes a model as one file or as several.
pub fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let export = Exporting { args, wanted: Wanted::new(&args.only), interrupted: Interrupted::watch()? };
    let mode = if args.lenient { Mode::Lenient } else { Mode::Strict };
    written(match models::any(&args.source, mode)? {
        Opened::Model(model) => export.one(&model),
        Opened::Catalog(catalog) => export.several(&catalog),
    })
}

/// What is asked for, and whether it still is.
struct Exporting<'a> {
    args: &'a ExportArgs,
    wanted: Wanted<'a>,
    interrupted: Interrupted,
}

impl Exporting<'_> {
    fn one(self, model: &Model) -> anyhow::Result<()> {
        let (source, out) = (&self.args.source, &self.args.out);
        let numbers = self.choose(model);
        self.all_matched()?;
        if let Some(size) = self.args.shard_size {
            let folder = self.folder()?;
            let written = self.write_shards(model, numbers, size, source, folder.place());
            written.map_err(|error| placed(&folder, error))?;
            models::still_the_same(model)?;
            self.interrupted.check()?;
            return Ok(folder.commit()?);
        }
        let path = if out.is_dir() && !is_stdout(out) {
            let stem = model::stem(model.path()).context("the source has no name to write it under")?;
            out.join(file_name(stem))
        } else {
            out.clone()
        };
        self.spare_source(model, numbers.as_deref(), &path)?;
        let written = self.write_file(model, tensors(numbers), source, &path)?;
        models::still_the_same(model)?;
        written.finish(&self.interrupted)
    }

    /// The tensors that are asked for, where not all are.
    fn choose(&self, model: &Model) -> Option<Vec<u32>> {
        let is_wanted = |at: &u32| self.wanted.matches(model.name(*at as usize));
        (!self.args.only.is_empty()).then(|| model.whole().filter(is_wanted).collect())
    }

    /// Fails if a file at `path` would replace something of the source that it has not in it. Standard output replaces nothing.
    fn spare_source(&self, model: &Model, numbers: Option<&[u32]>, path: &Path) -> anyhow::Result<()> {
        let id = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let Some(replaced) = id(path).filter(|_| !is_stdout(path)) else { return Ok(()) };
        let is_part = model.sources().iter().any(|part| part.id() == Some(replaced));
        // Of several files the model's own is the index or the manifest.
        if !is_part && id(model.path()) != Some(replaced) {
            return Ok(());
        }
        if model.kind() != Kind::File {
            bail!("{}: a part of {}, which would be none without it", path.display(), self.args.source.display());
        }
        let all = model.whole().count();
        let tensors = numbers.map_or(all, <[u32]>::len);
        if tensors < all || model.left_out() > 0 {
            let all = all + model.left_out();
            bail!(
                "{}: the source itself, which would keep {tensors} of {all} tensors; name another file",
                path.display()
            );
        }
        if self.args.clean && !model.metadata().is_empty() {
            bail!("{}: the source itself, which would lose its metadata; name another file", path.display());
        }
        Ok(())
    }

    /// Fails if a pattern has matched nothing.
    fn all_matched(&self) -> anyhow::Result<()> {
        match self.wanted.unmatched().first() {
            Some(pattern) => bail!("{}", unmatched(&self.args.source, pattern)),
            None => Ok(()),
        }
    }

    /// Where several files go.
    fn folder(&self) -> anyhow::Result<Folder> {
        if is_stdout(&self.args.out) {
            bail!("several files cannot go to standard output; name a directory");
        }
        Ok(Folder::create(&self.args.out)?)
    }

    /// Writes each model of a directory to the place where a mount shows it.
    fn several(self, catalog: &Catalog) -> anyhow::Result<()> {
        let folder = self.folder()?;
        self.write_each(catalog, folder.place()).map_err(|error| placed(&folder, error))?;
        self.all_matched()?;
        self.interrupted.check()?;
        Ok(folder.commit()?)
    }

    fn write_each(&self, catalog: &Catalog, into: &Path) -> anyhow::Result<()> {
        let mut readable = false;
        for (place, number) in catalog.places() {
            let (source, path) = (self.args.source.join(&place), into.join(&place));
            let model = match models::in_catalog(catalog, number, &source) {
                // The others are no worse for it.
                Err(error) if self.args.lenient => {
                    complain(&error);
                    continue;
                }
                model => model?,
            };
            readable = true;
            let numbers = self.choose(&model);
            if numbers.as_ref().is_some_and(Vec::is_empty) {
                continue;
            }
            let (dir, name) = (path.parent().unwrap_or(&path), path.file_name().unwrap_or_default());
            if let Some(size) = self.args.shard_size {
                fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
                self.write_shards(&model, numbers, size, &source, &path)?;
            } else {
                fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
                let written =
                    self.write_file(&model, tensors(numbers), &source, &dir.join(file_name(name.to_owned())))?;
                written.finish(&self.interrupted)?;
            }
            models::still_the_same(&model)?;
        }
        if !readable {
            bail!("{}: no model in it can be read", self.args.source.display());
        }
        Ok(())
    }

    /// Writes files of one model, and their index, to the directory at `place`.
    fn write_shards(
        &self,
        model: &Model,
        numbers: Option<Vec<u32>>,
        size: ByteSize,
        source: &Path,
        place: &Path,
    ) -> anyhow::Result<()> {
        let shards = Shards::new(model, &numbers.unwrap_or_else(|| model.whole().collect()), size.as_u64());
        if shards.count() > SHARDS_MAX {
            let count = shards.count();
            bail!("{}: {count} files of {size}, and at most {SHARDS_MAX} can be mounted again", source.display());
        }
        for (name, numbers) in shards.files() {
            let written = self.write_file(model, Tensors::These(numbers.to_vec()), source, &place.join(name))?;
            written.finish(&self.interrupted)?;
        }
        if let Some((name, text)) = shards.index(model) {
            let mut output = Output::create(&place.join(name), MODE)?;
            output.write(text.as_bytes())?;
            output.commit()?;
        }
        Ok(())
    }

    /// Writes a file, which has no name yet.
    fn write_file(&self, model: &Model, tensors: Tensors, source: &Path, path: &Path) -> anyhow::Result<Written> {
        let (export, clean) = (Export::new(model, tensors, self.args.align), self.args.clean);
        let Some(len) = export.content(model, clean).map(|content| content.len()) else {
            bail!("{}: {}", source.display(), export.refusal());
        };
        let progress = Progress::new("writing", len);
        let mut output = Output::create(path, MODE)?;
        output.reserve(len)?;
        let read = |offset, size| match export.content(model, clean) {
            Some(content) => content.read_at(offset, size),
            None => Ok(Bytes::Borrowed(&[])),
        };
        output.write_content(len, read, &mut |bytes| {
            progress.add(bytes);
            !self.interrupted.is_set()
        })?;
        Ok(Written { output, progress })
    }
}

/// A file that is written and has no name yet.
struct Written {
    output: Output,
    progress: Progress,
}

impl Written {
    fn finish(self, interrupted: &Interrupted) -> anyhow::Result<()> {
        self.progress.set_message("to the disk");
        interrupted.check()?;
        Ok(self.output.commit()?)
    }
}

/// An error as its user knows the place: what is not finished stands under another name.
fn placed(folder: &Folder, error: anyhow::Error) -> anyhow::Error {
    error.downcast().map_or_else(|other| other, |error: write::Error| folder.place_error(error).into())
}

fn tensors(numbers: Option<Vec<u32>>) -> Tensors {
    numbers.map_or(Tensors::Whole, Tensors::These)
}

fn file_name(mut stem: OsString) -> OsString {
    stem.push(".safetensors");
    stem
}
