//! `weightfs export`: writes a model, some of its tensors, or a directory of models to files.

use super::part_files::{PartCommand, PartHead, PartModel, PartWriter};
use crate::cli::pattern::{WantedPatterns, unmatched};
use crate::cli::{self, ExportArgs, FormatArg};
use crate::opening;
use crate::process::logging::complain;
use crate::process::signals::InterruptFlag;
use crate::terminal::output::{StandardOutput, to_stdout, written};
use crate::terminal::progress::ProgressLine;
use anyhow::{Context, bail};
use bytesize::ByteSize;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;
use std::slice;
use std::sync::Arc;
use weightfs::content::{Content, ReadRequest};
use weightfs::format::{self, gguf};
use weightfs::model::quantization::COMFY_METADATA;
use weightfs::model::{self, Catalog, Model, OpenedModel, PrefixChange};
use weightfs::parts::WorkPart;
use weightfs::source::{self, Location};
use weightfs::text::quote;
use weightfs::units::{grouped, plural};
use weightfs::view::{
    ExportTensors, FloatDtype, IndexedShard, ModelExport, OverflowingTensor, ShardTensors, ValueConversion,
    find_overflows, gguf_file, index_text, overflow_bytes,
};
use weightfs::write::{OutputDir, OutputFile, is_stdout};

/// Permissions of the files of a model without source files, before the umask is applied.
const MODE: u32 = 0o666;

const CHECKING: &str = "checking the range";
const WRITING: &str = "writing";
const SYNCING: &str = "syncing";

/// Maximum number of files of one model that a mount accepts.
const SHARDS_MAX: usize = 10_000;

/// Writes a model as one file or as several.
pub fn run_export(args: &ExportArgs) -> anyhow::Result<ExitCode> {
    let (source, opened) = opening::open_source(&args.input)?;
    if let Some(part) = args.part {
        return to_stdout(|out| {
            let job = ExportJob::new(args, source)?;
            match opened {
                OpenedModel::Model(model, _) => job.part(&Arc::new(*model), part, out)?,
                OpenedModel::Catalog(catalog) => bail!("{}", opening::several_models(&job.source, &catalog)),
            }
            Ok(ExitCode::SUCCESS)
        });
    }
    let job = ExportJob::new(args, source)?;
    written(match opened {
        OpenedModel::Model(model, _) => job.one(&Arc::new(*model)),
        OpenedModel::Catalog(catalog) => job.several(&catalog),
    })
}

struct ExportJob<'a> {
    args: &'a ExportArgs,
    source: Location,
    wanted: WantedPatterns<'a>,
    names: PrefixChange,
    interrupted: InterruptFlag,
}

impl<'a> ExportJob<'a> {
    fn new(args: &'a ExportArgs, source: Location) -> anyhow::Result<Self> {
        let [strip, prepend] = [&args.strip, &args.prepend].map(|prefix| prefix.clone().unwrap_or_default());
        let names = PrefixChange { strip, prepend };
        let wanted = WantedPatterns::new(&args.only);
        Ok(Self { args, source, wanted, names, interrupted: InterruptFlag::watch()? })
    }
}

impl ExportJob<'_> {
    fn one(self, model: &Arc<Model>) -> anyhow::Result<()> {
        let (source, out) = (&self.source, &self.args.out);
        let is_dir = out.is_dir() && !is_stdout(out);
        let named = if is_dir || self.args.shard_size.is_some() { None } else { self.named_format()? };
        let format = self.format(model, named, source)?;
        self.warn_quantized(model, source);
        let tensors = self.choose(model, source)?;
        self.all_matched()?;
        if let Some(size) = self.args.shard_size {
            let dir = self.directory()?;
            let nbytes = self.measure(model, &tensors, format, source)?;
            self.warn_infinite(model, &tensors, source)?;
            let progress = self.start(&dir, nbytes)?;
            self.write_shards(model, &tensors, size, source, (&dir, "".as_ref()), &progress)?;
            model.verify()?;
            self.interrupted.check()?;
            return Ok(progress.during(SYNCING, || dir.commit())?);
        }
        let path = if is_dir {
            let stem = model::model_name(model).context("the source has no name to write it under")?;
            out.join(file_name(stem, format))
        } else {
            out.clone()
        };
        let output = self.create(model, &tensors, format, &path)?;
        let content = self.content(model, tensors.clone(), format, source)?;
        self.warn_infinite(model, &tensors, source)?;
        let progress = ProgressLine::new(WRITING, content.len());
        let output = self.fill(output, &content, &progress)?;
        model.verify()?;
        self.finish(output, &progress)
    }

    /// Writes the files of a part of the shards, and prints what `combine` needs for the index.
    fn part(self, model: &Arc<Model>, part: WorkPart, out: &mut StandardOutput) -> anyhow::Result<()> {
        let (source, args) = (&self.source, self.args);
        let size = args.shard_size.context("--part divides the files that --shard-size makes")?;
        if is_stdout(&args.out) {
            bail!("standard output has the part; name a directory for the files");
        }
        let format = self.format(model, None, source)?;
        self.warn_quantized(model, source);
        let tensors = self.choose(model, source)?;
        self.all_matched()?;
        let shards = self.shards(model, &tensors, size, source)?;
        let files: Vec<(String, ExportTensors)> =
            shards.files().map(|(name, tensors)| (name, ExportTensors::These(tensors.into()))).collect();
        let contents = files.iter().map(|(_, tensors)| self.content(model, tensors.clone(), format, source));
        let contents = contents.collect::<anyhow::Result<Vec<Content>>>()?;
        if let Err(error) = fs::create_dir(&args.out)
            && !args.out.is_dir()
        {
            // As an I/O error, it would be taken for one of standard output.
            bail!("{}: {}", args.out.display(), source::strerror(&error));
        }
        let (conversion, align, clean, names) = (self.conversion(), args.align, args.clean, self.names.clone());
        let command = PartCommand::Export { conversion, shard_size: size.as_u64(), align, clean, names };
        let mut parts = PartWriter::begin(PartHead::new(command, part, &args.only, args.input.open.lenient), out)?;
        let whole = PartModel::new(source.to_string(), model, files.len(), Vec::new());
        let share = parts.begin_model(whole, out)?.shares_whole(contents.iter().map(Content::len));
        for at in &share {
            self.warn_infinite(model, &files[*at].1, source)?;
        }
        let progress = ProgressLine::new(WRITING, share.iter().map(|at| contents[*at].len()).sum());
        for at in share {
            let (name, tensors) = &files[at];
            let output = self.create(model, tensors, format, &args.out.join(name))?;
            let output = self.fill(output, &contents[at], &progress)?;
            model.verify()?;
            self.finish(output, &progress)?;
            parts.write_item(PartShard { index: at, shard: shards.indexed(model, at) }, out)?;
        }
        parts.end(false, out)
    }

    /// The tensors to write. Fails if the change of the names does not apply to them.
    fn choose(&self, model: &Model, source: &Location) -> anyhow::Result<ExportTensors> {
        let tensors = match self.args.only.is_empty() {
            true => ExportTensors::all(model, self.conversion()),
            false => ExportTensors::choose(model, self.conversion(), |numbers| self.wanted.matches(numbers.name())),
        };
        if !self.names.is_empty() && !is_empty(&tensors) {
            self.check_names(model, &tensors, source)?;
        }
        Ok(tensors)
    }

    /// Fails if no name begins with the prefix of `--strip`, if two tensors get the same name, or if the metadata has
    /// names that would not be changed. Warns of names in the configuration.
    fn check_names(&self, model: &Model, tensors: &ExportTensors, source: &Location) -> anyhow::Result<()> {
        let is_dequantized = self.conversion().is_some_and(|conversion| conversion.dequantized);
        let ids = (0..tensors.len(model)).map(|at| tensors.at(model, at));
        let names = ids.map(|id| model.numbers(id, is_dequantized).name());
        if self.args.strip.is_some() && !names.clone().any(|name| self.names.applies_to(name)) {
            bail!("{source}: --strip {}: no name begins with it", quote(&self.names.strip));
        }
        if let Some([a, b]) = self.names.clash(names) {
            let name = quote(&self.names.apply(a));
            bail!("{source}: tensors {} and {} would both be {name}", quote(a), quote(b));
        }
        if !is_dequantized && !self.args.clean && model::metadata_text(model.metadata(), COMFY_METADATA).is_some() {
            bail!("{source}: {COMFY_METADATA} in the metadata has names of layers, which are not changed; add --clean");
        }
        if !is_dequantized && let Some(layer) = model.configured_layer(&self.names) {
            let layer = quote(layer);
            log::warn!(
                "{source}: the quantization in config.json names layer {layer}, whose name changes; change it too"
            );
        }
        Ok(())
    }

    /// The format that the suffix of the output names. Fails if that is not one that is written, or not the one of
    /// `--format`.
    fn named_format(&self) -> anyhow::Result<Option<FormatArg>> {
        let out = &self.args.out;
        let name = out.file_name().unwrap_or_default().to_string_lossy().to_ascii_lowercase();
        let Some(suffix) = format::suffixes().find(|suffix| name.ends_with(suffix)) else { return Ok(None) };
        let written = [FormatArg::Safetensors, FormatArg::Gguf];
        let named = written.into_iter().find(|format| format.suffix() == suffix);
        if named.is_none() || self.args.format.is_some_and(|format| Some(format) != named) {
            let wanted = self.args.format.map_or(".safetensors or .gguf", FormatArg::suffix);
            bail!("{}: would not be what the suffix {suffix} says; name a {wanted} file", out.display());
        }
        Ok(named)
    }

    /// The format to write. `named` is the one that the name of the output gives, because a file should be what its
    /// name says. Fails if the model cannot be written in it, or if options do not apply to it.
    fn format(&self, model: &Model, named: Option<FormatArg>, source: &Location) -> anyhow::Result<FormatArg> {
        let own = if model.format() == gguf::NAME { FormatArg::Gguf } else { FormatArg::Safetensors };
        let args = self.args;
        let converted = args.dtype.map(|_| FormatArg::Safetensors);
        let format = args.format.or(named).or(converted).unwrap_or(own);
        if format == FormatArg::Safetensors {
            return Ok(format);
        }
        if own != format {
            bail!("{source}: only GGUF models can be written as GGUF; write a .safetensors file");
        }
        let given = [
            ("--dtype", args.dtype.is_some()),
            ("--shard-size", args.shard_size.is_some()),
            ("--align", args.align.is_some()),
            ("--clean", args.clean),
            ("--strip", args.strip.is_some()),
            ("--prepend", args.prepend.is_some()),
        ];
        match given.into_iter().find(|given| given.1) {
            Some(("--dtype", _)) => bail!("--dtype writes safetensors files, not GGUF"),
            Some((option, _)) => bail!("{option} is for safetensors files; add --dtype bf16 or --format safetensors"),
            None => Ok(format),
        }
    }

    /// Warns if the converted numbers are not the weights.
    fn warn_quantized(&self, model: &Model, source: &Location) {
        for note in model.quantized.notes().filter(|_| self.args.dtype.is_some()) {
            log::warn!("{source}: {note}");
        }
    }

    /// Warns about the tensors with finite values that the conversion makes infinite.
    fn warn_infinite(&self, model: &Model, tensors: &ExportTensors, source: &Location) -> anyhow::Result<()> {
        let Some(conversion) = self.conversion().filter(|conversion| conversion.to == FloatDtype::F16) else {
            return Ok(());
        };
        let progress = ProgressLine::new(CHECKING, overflow_bytes(model, tensors, conversion));
        let is_cancelled = || self.interrupted.is_set();
        let request = ReadRequest::WAIT.cancelled_by(&is_cancelled);
        let found = find_overflows(model, tensors, conversion, &request, |bytes| progress.add(bytes));
        self.interrupted.check()?;
        for OverflowingTensor { name, infinite, elements } in found? {
            let (name, infinite, elements) = (quote(&name), grouped(infinite), plural(elements, "value"));
            log::warn!("{source}: tensor {name}: {infinite} of {elements} beyond the range of F16 become infinite");
        }
        Ok(())
    }

    /// The conversion of the numbers; `None` if they are not converted.
    fn conversion(&self) -> Option<ValueConversion> {
        let to = match self.args.dtype? {
            cli::FloatArg::Bf16 => FloatDtype::Bf16,
            cli::FloatArg::F16 => FloatDtype::F16,
            cli::FloatArg::F32 => FloatDtype::F32,
        };
        Some(ValueConversion { to, dequantized: !self.args.stored })
    }

    /// Fails if the output at `path` would replace a file of the source and lose some of its content.
    fn spare_source(
        &self,
        model: &Model,
        tensors: &ExportTensors,
        format: FormatArg,
        path: &Path,
        output: &OutputFile,
    ) -> anyhow::Result<()> {
        let Some(replaced) = output.replaces() else { return Ok(()) };
        let is_part = model.sources().iter().any(|part| part.id() == Some(replaced));
        let main = model.main_file().path().and_then(|path| fs::metadata(path).ok());
        if !is_part && main.map(|main| (main.dev(), main.ino())) != Some(replaced) {
            return Ok(());
        }
        // A layer of an Ollama model is stored under its hash, and an export may have another one.
        if model.form.edit_refusal.is_some() {
            bail!("{}: part of the source {}; name another file", path.display(), self.source);
        }
        if self.args.dtype.is_some() || model.format() == gguf::NAME && format != FormatArg::Gguf {
            bail!("{}: the source itself, which would be converted; name another file", path.display());
        }
        let (all, tensors) = (model.logical().len(), tensors.len(model));
        if tensors < all || model.left_out() > 0 {
            let all = all + model.left_out();
            bail!(
                "{}: the source itself, which would keep {tensors} of {all} tensors; name another file",
                path.display()
            );
        }
        if model.skipped().next().is_some() {
            bail!("{}: the source itself, which is damaged; name another file", path.display());
        }
        if !self.names.is_empty() {
            bail!("{}: the source itself, whose names would change; name another file", path.display());
        }
        if self.args.clean && !model.metadata().is_empty() {
            bail!("{}: the source itself, which would lose its metadata; name another file", path.display());
        }
        Ok(())
    }

    /// Fails if a pattern has matched no tensor.
    fn all_matched(&self) -> anyhow::Result<()> {
        match self.wanted.unmatched().first() {
            Some(pattern) => bail!("{}", unmatched(slice::from_ref(&self.source), pattern)),
            None => Ok(()),
        }
    }

    fn directory(&self) -> anyhow::Result<OutputDir> {
        if is_stdout(&self.args.out) {
            bail!("several files cannot go to standard output; name a directory");
        }
        Ok(OutputDir::create(&self.args.out)?)
    }

    /// Starts to write `nbytes` bytes to a directory.
    fn start(&self, dir: &OutputDir, nbytes: u64) -> anyhow::Result<ProgressLine> {
        dir.check_space(nbytes)?;
        Ok(ProgressLine::new(WRITING, nbytes))
    }

    /// Writes each model of a directory to the path that it would have in a mount.
    fn several(self, catalog: &Catalog) -> anyhow::Result<()> {
        let dir = self.directory()?;
        let nbytes = self.measure_each(catalog)?;
        self.all_matched()?;
        let progress = self.start(&dir, nbytes)?;
        self.write_each(catalog, &dir, &progress)?;
        self.interrupted.check()?;
        Ok(progress.during(SYNCING, || dir.commit())?)
    }

    /// The size of all files to write for the models of a directory. This opens every model, so that a broken one, and
    /// values that become infinite, are found before anything is written.
    fn measure_each(&self, catalog: &Catalog) -> anyhow::Result<u64> {
        let mut sum = 0u64;
        for (path, id) in catalog.paths() {
            self.interrupted.check()?;
            let model = match model::open_in(catalog, id) {
                // This is reported when the other models are written.
                Err(_) if self.args.input.open.lenient => continue,
                model => Arc::new(model?),
            };
            let source = self.source.join(&path);
            let tensors = self.choose(&model, &source)?;
            if !is_empty(&tensors) {
                let format = self.format(&model, None, &source)?;
                sum = sum.saturating_add(self.measure(&model, &tensors, format, &source)?);
                self.warn_infinite(&model, &tensors, &source)?;
            }
        }
        Ok(sum)
    }

    fn write_each(&self, catalog: &Catalog, into: &OutputDir, progress: &ProgressLine) -> anyhow::Result<()> {
        let mut readable = false;
        for (path, id) in catalog.paths() {
            let source = self.source.join(&path);
            let model = match opening::open_catalog_model(catalog, id, &source) {
                // The other models are still written.
                Err(error) if self.args.input.open.lenient => {
                    complain(&error);
                    continue;
                }
                model => Arc::new(model?),
            };
            readable = true;
            let tensors = self.choose(&model, &source)?;
            if is_empty(&tensors) {
                continue;
            }
            self.warn_quantized(&model, &source);
            let (dir, name) = (path.parent().unwrap_or(&path), path.file_name().unwrap_or_default());
            if let Some(size) = self.args.shard_size {
                self.write_shards(&model, &tensors, size, &source, (into, &path), progress)?;
            } else {
                let format = self.format(&model, None, &source)?;
                let content = self.content(&model, tensors, format, &source)?;
                let output = into.file(&dir.join(file_name(name.to_owned(), format)), export_mode(&model))?;
                self.finish(self.fill(output, &content, progress)?, progress)?;
            }
            model.verify()?;
        }
        if !readable {
            bail!("{}: no model in it can be read", self.source);
        }
        Ok(())
    }

    /// The size of all files to write for a model. Fails if they are too large or too many.
    fn measure(
        &self,
        model: &Arc<Model>,
        tensors: &ExportTensors,
        format: FormatArg,
        source: &Location,
    ) -> anyhow::Result<u64> {
        let Some(size) = self.args.shard_size else {
            return Ok(self.content(model, tensors.clone(), format, source)?.len());
        };
        let shards = self.shards(model, tensors, size, source)?;
        // Tensors of damaged files may overlap.
        shards.files().try_fold(0u64, |sum, (_, tensors)| {
            let content = self.content(model, ExportTensors::These(tensors.into()), format, source)?;
            Ok(sum.saturating_add(content.len()))
        })
    }

    /// The tensors of each file to write. Fails if these are too many files.
    fn shards(
        &self,
        model: &Model,
        tensors: &ExportTensors,
        size: ByteSize,
        source: &Location,
    ) -> anyhow::Result<ShardTensors> {
        let shards = ShardTensors::new(model, tensors, self.conversion(), size.as_u64()).renamed(self.names.clone());
        match shards.count() {
            ..=SHARDS_MAX => Ok(shards),
            count => bail!("{source}: {count} files of {size} each; a mount accepts at most {SHARDS_MAX}"),
        }
    }

    fn content(
        &self,
        model: &Arc<Model>,
        tensors: ExportTensors,
        format: FormatArg,
        source: &Location,
    ) -> anyhow::Result<Content> {
        if format == FormatArg::Gguf {
            return gguf_file(model, tensors).with_context(|| format!("{source}: too large for a file"));
        }
        let export = ModelExport::renamed(model, tensors, self.conversion(), self.args.align, &self.names);
        match export.content(self.args.clean) {
            Some(content) => Ok(content.clone()),
            None if export.needs_conversion() => {
                bail!("{source}: {}; use --dtype bf16 or --dtype f32, or write a .gguf file", export.refusal())
            }
            None => bail!("{source}: {}", export.refusal()),
        }
    }

    /// Writes a model as several files and their index to a directory below the output directory.
    fn write_shards(
        &self,
        model: &Arc<Model>,
        tensors: &ExportTensors,
        size: ByteSize,
        source: &Location,
        (into, dir): (&OutputDir, &Path),
        progress: &ProgressLine,
    ) -> anyhow::Result<()> {
        let shards = self.shards(model, tensors, size, source)?;
        for (name, tensors) in shards.files() {
            let content = self.content(model, ExportTensors::These(tensors.into()), FormatArg::Safetensors, source)?;
            let output = into.file(&dir.join(name), export_mode(model))?;
            self.finish(self.fill(output, &content, progress)?, progress)?;
        }
        if let Some((name, text)) = shards.index(model) {
            let mut output = into.file(&dir.join(name), export_mode(model))?;
            output.write(text.as_bytes())?;
            output.commit()?;
        }
        Ok(())
    }

    /// Creates a file outside of an [`OutputDir`]. Fails if it would replace a file of the source, or without `--force`
    /// any other file.
    fn create(
        &self,
        model: &Model,
        tensors: &ExportTensors,
        format: FormatArg,
        path: &Path,
    ) -> anyhow::Result<OutputFile> {
        let mut output = OutputFile::create(path, export_mode(model))?;
        if let Some(source) = model.stat() {
            output.limit_readers(source)?;
        }
        self.spare_source(model, tensors, format, path, &output)?;
        output.check_force(self.args.force)?;
        Ok(output)
    }

    /// Writes the content of a file, which gets its name in [`ExportJob::finish`].
    fn fill(&self, mut output: OutputFile, content: &Content, progress: &ProgressLine) -> anyhow::Result<OutputFile> {
        output.reserve(content.len())?;
        output.write_content(content, &mut |bytes| {
            progress.add(bytes);
            !self.interrupted.is_set()
        })?;
        Ok(output)
    }

    /// Syncs a file and gives it its name.
    fn finish(&self, output: OutputFile, progress: &ProgressLine) -> anyhow::Result<()> {
        self.interrupted.check()?;
        Ok(progress.during(SYNCING, || output.commit())?)
    }
}

/// A file that a part of an export has written.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct PartShard {
    index: usize,
    shard: IndexedShard,
}

/// Prints the index of the shards of all parts. A single one has none.
pub(super) fn print_joined(models: Vec<(PartModel, Vec<PartShard>)>, out: &mut StandardOutput) -> anyhow::Result<()> {
    for (model, mut files) in models {
        files.sort_by_key(|file| file.index);
        model.check_whole(files.iter().map(|file| file.index))?;
        let shards: Vec<IndexedShard> = files.into_iter().map(|file| file.shard).collect();
        out.write_all(index_text(&shards).unwrap_or_default().as_bytes())?;
    }
    Ok(())
}

fn is_empty(tensors: &ExportTensors) -> bool {
    matches!(tensors, ExportTensors::These(tensors) if tensors.is_empty())
}

/// Permissions of new files, before the umask is applied: those that all files of the source have, as with cp(1).
pub(super) fn export_mode(model: &Model) -> u32 {
    let modes = model.sources().iter().map(|source| u32::from(source.stat().mode));
    modes.reduce(|a, b| a & b).unwrap_or(MODE)
}

fn file_name(mut stem: OsString, format: FormatArg) -> OsString {
    stem.push(format.suffix());
    stem
}
