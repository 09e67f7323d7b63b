//! The models that a command works on: opens what the command line names, one model or several.

use crate::process::{limits, logging};
use crate::terminal::output::Output;
use anyhow::bail;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weightfs::format::Mode;
use weightfs::model::{self, Catalog, Model, Opened};

/// The files by which models are opened, and whether all that was asked for is among them.
pub struct Models {
    /// As the command line calls them.
    pub files: Vec<PathBuf>,
    /// Whether something could not be looked through; that was said.
    pub failed: bool,
}

impl Models {
    /// Finds what `sources` mean: files, indices, manifests, and directories of one model or several.
    pub fn find(sources: &[PathBuf], out: &mut Output) -> anyhow::Result<Self> {
        prepare()?;
        let mut models = Self { files: Vec::new(), failed: false };
        for source in sources {
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

    /// Opens each and hands it to `show`; says which cannot be opened, and fails then. A damaged one is opened if `lenient`
    /// says so, and what is left out of it said.
    pub fn each(
        self,
        lenient: bool,
        out: &mut Output,
        mut show: impl FnMut(&Model, &Path, &mut Output) -> anyhow::Result<()>,
    ) -> anyhow::Result<ExitCode> {
        let mut failed = self.failed;
        for file in &self.files {
            match Model::open(file, if lenient { Mode::Lenient } else { Mode::Strict }) {
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

/// What opening models wants done before: messages have where to go, and many files may be open.
pub fn prepare() -> anyhow::Result<()> {
    logging::init(false, None)?;
    limits::raise_open_files();
    Ok(())
}

/// Opens what is at `source`, and says what of a model was left out or is not known.
pub fn any(source: &Path, mode: Mode) -> anyhow::Result<Opened> {
    prepare()?;
    let opened = model::open(source, mode)?;
    if let Opened::Model(model) = &opened {
        model.report(source);
    }
    Ok(opened)
}

/// Opens the one model at `source`.
pub fn one(source: &Path, mode: Mode) -> anyhow::Result<Model> {
    match any(source, mode)? {
        Opened::Model(model) => Ok(*model),
        Opened::Catalog(catalog) => bail!("{}", several(source, &catalog)),
    }
}

/// What is wrong with a directory of models where one is wanted.
pub fn several(source: &Path, catalog: &Catalog) -> String {
    format!("{}: a directory of {} models; name one of them", source.display(), catalog.models().len())
}

/// Opens one of several models, which its user calls `source` and its place there.
pub fn in_catalog(catalog: &Catalog, number: u32, source: &Path) -> anyhow::Result<Model> {
    let model = catalog.open(number)?;
    model.report(source);
    Ok(model)
}

/// Fails if a file of the model is not what was opened any more.
pub fn still_the_same(model: &Model) -> anyhow::Result<()> {
    for source in model.sources() {
        source.bytes(0..0)?;
    }
    Ok(())
}
