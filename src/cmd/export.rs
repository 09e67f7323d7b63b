//! `weightfs export`: writes a model, some of its tensors, or a directory of models to files.

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
use std::sync::Arc;
use weightfs::model::{self, Catalog, Kind, Model, Opened, TensorId};
use weightfs::source::Location;
use weightfs::view::{Export, Shards, Tensors};
use weightfs::write::{self, Output, OutputDir, is_stdout};

/// Permissions of the files of a model without source files, before the umask is applied.
const MODE: u32 = 0o666;

/// Maximum number of files of one model that a mount accepts.
const SHARDS_MAX: usize = 10_000;

/// Writes a model as one file or as several.
pub fn run(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let job = Job { args, wanted: Wanted::new(&args.only), interrupted: Interrupted::watch()? };
    written(match models::any(&args.source, models::mode(args.lenient))? {
        Opened::Model(model) => job.one(&Arc::new(*model)),
        Opened::Catalog(catalog) => job.several(&catalog),
    })
}

/// An export in progress.
struct Job<'a> {
    args: &'a ExportArgs,
    wanted: Wanted<'a>,
    interrupted: Interrupted,
}

impl Job<'_> {
    fn one(self, model: &Arc<Model>) -> anyhow::Result<()> {
        let (source, out) = (&self.args.source, &self.args.out);
        let tensors = self.choose(model);
        self.all_matched()?;
        if let Some(size) = self.args.shard_size {
            let dir = self.directory()?;
            let written = self.write_shards(model, &tensors, size, source, dir.unfinished());
            written.map_err(|error| rename_error(&dir, error))?;
            model.verify()?;
            self.interrupted.check()?;
            return Ok(dir.commit()?);
        }
        let path = if out.is_dir() && !is_stdout(out) {
            let stem = model::stem(model.location()).context("the source has no name to write it under")?;
            out.join(file_name(stem))
        } else {
            out.clone()
        };
        self.spare_source(model, &tensors, &path)?;
        let written = self.write_file(model, tensors, source, &path)?;
        model.verify()?;
        written.finish(&self.interrupted)
    }

    /// The tensors to write.
    fn choose(&self, model: &Model) -> Tensors {
        let is_wanted = |id: &TensorId| self.wanted.matches(model.name(*id));
        match self.args.only.is_empty() {
            true => Tensors::Whole,
            false => Tensors::These(model.logical().iter().filter(is_wanted).collect()),
        }
    }

    /// Fails if the output at `path` would replace a file of the source and lose some of its content.
    fn spare_source(&self, model: &Model, tensors: &Tensors, path: &Path) -> anyhow::Result<()> {
        let id = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let Some(replaced) = id(path).filter(|_| !is_stdout(path)) else { return Ok(()) };
        let is_part = model.sources().iter().any(|part| part.id() == Some(replaced));
        // The location of a model of several files is the index or the manifest.
        if !is_part && model.location().path().and_then(id) != Some(replaced) {
            return Ok(());
        }
        if model.kind() != Kind::File {
            bail!("{}: part of the source {}; name another file", path.display(), self.args.source);
        }
        let (all, tensors) = (model.logical().len(), tensors.len(model));
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

    /// Fails if a pattern has matched no tensor.
    fn all_matched(&self) -> anyhow::Result<()> {
        match self.wanted.unmatched().first() {
            Some(pattern) => bail!("{}", unmatched(&self.args.source, pattern)),
            None => Ok(()),
        }
    }

    /// Creates the output directory for several files.
    fn directory(&self) -> anyhow::Result<OutputDir> {
        if is_stdout(&self.args.out) {
            bail!("several files cannot go to standard output; name a directory");
        }
        Ok(OutputDir::create(&self.args.out)?)
    }

    /// Writes each model of a directory to the path that it would have in a mount.
    fn several(self, catalog: &Catalog) -> anyhow::Result<()> {
        let dir = self.directory()?;
        self.write_each(catalog, dir.unfinished()).map_err(|error| rename_error(&dir, error))?;
        self.all_matched()?;
        self.interrupted.check()?;
        Ok(dir.commit()?)
    }

    fn write_each(&self, catalog: &Catalog, into: &Path) -> anyhow::Result<()> {
        let mut readable = false;
        for (path, id) in catalog.paths() {
            let (source, path) = (self.args.source.join(&path), into.join(&path));
            let model = match models::in_catalog(catalog, id, &source) {
                // The other models are still written.
                Err(error) if self.args.lenient => {
                    complain(&error);
                    continue;
                }
                model => Arc::new(model?),
            };
            readable = true;
            let tensors = self.choose(&model);
            if matches!(&tensors, Tensors::These(tensors) if tensors.is_empty()) {
                continue;
            }
            let (dir, name) = (path.parent().unwrap_or(&path), path.file_name().unwrap_or_default());
            if let Some(size) = self.args.shard_size {
                fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
                self.write_shards(&model, &tensors, size, &source, &path)?;
            } else {
                fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
                let written = self.write_file(&model, tensors, &source, &dir.join(file_name(name.to_owned())))?;
                written.finish(&self.interrupted)?;
            }
            model.verify()?;
        }
        if !readable {
            bail!("{}: no model in it can be read", self.args.source);
        }
        Ok(())
    }

    /// Writes a model as several files and their index to the directory `dir`.
    fn write_shards(
        &self,
        model: &Arc<Model>,
        tensors: &Tensors,
        size: ByteSize,
        source: &Location,
        dir: &Path,
    ) -> anyhow::Result<()> {
        let shards = Shards::new(model, tensors, size.as_u64());
        if shards.count() > SHARDS_MAX {
            let count = shards.count();
            bail!("{source}: {count} files of {size} each; a mount accepts at most {SHARDS_MAX}");
        }
        for (name, tensors) in shards.files() {
            let written = self.write_file(model, Tensors::These(tensors.into()), source, &dir.join(name))?;
            written.finish(&self.interrupted)?;
        }
        if let Some((name, text)) = shards.index(model) {
            let mut output = Output::create(&dir.join(name), mode(model))?;
            output.write(text.as_bytes())?;
            output.commit()?;
        }
        Ok(())
    }

    /// Writes the content of a file. The file gets its name when [`Written::finish`] is called.
    fn write_file(
        &self,
        model: &Arc<Model>,
        tensors: Tensors,
        source: &Location,
        path: &Path,
    ) -> anyhow::Result<Written> {
        let export = Export::new(model, tensors, self.args.align);
        let Some(content) = export.content(self.args.clean) else { bail!("{source}: {}", export.refusal()) };
        let progress = Progress::new("writing", content.len());
        let mut output = Output::create(path, mode(model))?;
        output.reserve(content.len())?;
        output.write_content(content, &mut |bytes| {
            progress.add(bytes);
            !self.interrupted.is_set()
        })?;
        Ok(Written { output, progress })
    }
}

/// A file whose content is written, but which has no name yet.
struct Written {
    output: Output,
    progress: Progress,
}

impl Written {
    fn finish(self, interrupted: &Interrupted) -> anyhow::Result<()> {
        self.progress.set_message("syncing");
        interrupted.check()?;
        Ok(self.output.commit()?)
    }
}

/// Permissions of new files, before the umask is applied: those that all files of the source have, as with cp(1).
fn mode(model: &Model) -> u32 {
    let modes = model.sources().iter().map(|source| u32::from(source.stat().mode));
    modes.reduce(|a, b| a & b).unwrap_or(MODE)
}

/// The error with the path that the user gave instead of the temporary path.
fn rename_error(dir: &OutputDir, error: anyhow::Error) -> anyhow::Error {
    error.downcast().map_or_else(|other| other, |error: write::Error| dir.rename_error(error).into())
}

fn file_name(mut stem: OsString) -> OsString {
    stem.push(".safetensors");
    stem
}
