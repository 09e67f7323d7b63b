//! The models that a command is about: knows how a person names them, and goes on where one of several cannot be opened.

use super::open;
use super::output::Output;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weightfs::format::Mode;
use weightfs::model::{self, Model};

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
        open::prepare()?;
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
