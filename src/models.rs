//! Opens the models that a command line names.

use crate::process::{limits, logging};
use crate::terminal::output::Output;
use anyhow::bail;
use std::collections::HashSet;
use std::process::ExitCode;
use weightfs::format::Mode;
use weightfs::model::{self, Catalog, Model, ModelId, Opened};
use weightfs::source::{Location, is_dir};

/// The models to open, each by its file.
pub struct Models {
    /// Named as on the command line.
    pub files: Vec<Location>,
    /// Whether searching a source for models failed. The reason was printed.
    pub failed: bool,
}

impl Models {
    /// Finds the models at `sources`: files, indexes, manifests, and directories of one model or several.
    pub fn find(sources: &[Location], out: &mut Output) -> anyhow::Result<Self> {
        prepare()?;
        let mut models = Self { files: Vec::new(), failed: false };
        let mut split = HashSet::new();
        for source in sources {
            // All splits of a model may be named, as by `*.gguf`.
            if model::first_split(source).is_some_and(|first| !split.insert(first)) {
                continue;
            }
            let complaints = match model::files(source) {
                Ok((files, unreadable)) => {
                    models.files.extend(files);
                    unreadable
                }
                Err(error) => vec![error.to_string()],
            };
            for complaint in complaints {
                models.failed = true;
                out.complain(&complaint)?;
            }
        }
        Ok(models)
    }

    /// Opens each model and passes it to `show`. Models that cannot be opened are reported, and the exit code is then
    /// 1. What was left out of damaged models is logged.
    pub fn each(
        self,
        mode: Mode,
        out: &mut Output,
        mut show: impl FnMut(&Model, &Location, &mut Output) -> anyhow::Result<()>,
    ) -> anyhow::Result<ExitCode> {
        let mut failed = self.failed;
        for file in &self.files {
            match model::open_model(file, mode) {
                Ok(model) => {
                    model.report(file);
                    show(&model, file, out)?;
                }
                Err(error) => {
                    failed = true;
                    out.complain(&error.to_string())?;
                }
            }
        }
        Ok(ExitCode::from(u8::from(failed)))
    }
}

/// The mode that `--lenient` selects.
pub fn mode(lenient: bool) -> Mode {
    if lenient { Mode::Lenient } else { Mode::Strict }
}

/// Sets up logging, and raises the limit of open files. Call this before models are opened.
pub fn prepare() -> anyhow::Result<()> {
    logging::init(false, None, None)?;
    limits::raise_open_files();
    limits::limit_address_space();
    Ok(())
}

/// Opens one model or a directory of several, and logs what was left out of a model. Unlike in a mount, the only model
/// below a directory is opened as one model wherever it lies.
pub fn any(source: &Location, mode: Mode) -> anyhow::Result<Opened> {
    prepare()?;
    let model = match model::open(source, mode)? {
        Opened::Model(model) => model,
        Opened::Catalog(catalog) => match catalog.only() {
            Some(only) => model::open_model(&source.rename(catalog.model(only)), mode)?.into(),
            None => return Ok(Opened::Catalog(catalog)),
        },
    };
    model.report(source);
    Ok(Opened::Model(model))
}

/// Opens the one model at `source`.
pub fn one(source: &Location, mode: Mode) -> anyhow::Result<Model> {
    match any(source, mode)? {
        Opened::Model(model) => Ok(*model),
        Opened::Catalog(catalog) => bail!("{}", several(source, &catalog)),
    }
}

/// Opens the one model at `source`, or a split as a model of its own.
pub fn file(source: &Location, mode: Mode) -> anyhow::Result<Model> {
    if is_dir(source) || model::first_split(source).is_none() {
        return one(source, mode);
    }
    prepare()?;
    let model = model::open_alone(source, mode)?;
    model.report(source);
    Ok(model)
}

/// The error for a directory of several models where one model is expected.
pub fn several(source: &Location, catalog: &Catalog) -> String {
    format!("{source}: a directory of {} models; name one of them", catalog.models().len())
}

/// Opens a model of a directory, and logs what was left out. Messages name the model `shown`: the path of the
/// directory, followed by the path of the model in a mount.
pub fn in_catalog(catalog: &Catalog, id: ModelId, shown: &Location) -> anyhow::Result<Model> {
    let model = model::open_model(catalog.model(id), catalog.mode())?;
    model.report(shown);
    Ok(model)
}
