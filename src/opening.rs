//! Opens the models that a command line names.

use crate::cli::{RemoteArgs, SourceArg};
#[cfg(feature = "remote")]
use crate::process::fetcher;
use crate::process::logging::reason;
use crate::process::sandbox::Sandbox;
use crate::process::{limits, logging};
use crate::terminal::output::StandardOutput;
use anyhow::{Context, bail};
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use weightfs::content::{Content, ReadRequest};
use weightfs::format::ParseMode;
use weightfs::fs::{Attr, Ownership, Superblock};
use weightfs::model::{self, Catalog, Model, ModelId, OpenedModel};
#[cfg(feature = "remote")]
use weightfs::remote::FetchClient;
#[cfg(feature = "remote")]
use weightfs::remote::protocol::{FetchOptions, VERSION};
use weightfs::source::{Location, is_dir};
use weightfs::view::ShownViews;

/// The models to open, each by its file.
pub struct NamedModels {
    /// Named as on the command line.
    pub files: Vec<Location>,
    /// The files of the same models in another format.
    pub copies: Vec<Location>,
    /// Whether searching a source for models failed. The reason was printed.
    pub failed: bool,
}

impl NamedModels {
    /// Finds the models at `sources`: files, indexes, manifests, and directories of one model or several.
    pub fn find(sources: &[SourceArg], remote: &RemoteArgs, out: &mut StandardOutput) -> anyhow::Result<Self> {
        prepare_process()?;
        let mut models = Self { files: Vec::new(), copies: Vec::new(), failed: false };
        let mut split = HashSet::new();
        let mut locator = SourceLocator::new(remote);
        for source in sources {
            let source = &match locator.locate(source) {
                Ok(source) => source,
                Err(error) => {
                    models.failed = true;
                    out.complain(&reason(&error))?;
                    continue;
                }
            };
            // All splits of a model may be named, as by `*.gguf`.
            if model::first_split(source).is_some_and(|first| !split.insert(first)) {
                continue;
            }
            let complaints = match model::model_files(source) {
                Ok(found) => {
                    models.files.extend(found.models);
                    models.copies.extend(found.copies);
                    found.unreadable
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
        mode: ParseMode,
        out: &mut StandardOutput,
        mut show: impl FnMut(&Model, &Location, &mut StandardOutput) -> anyhow::Result<()>,
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

/// Finds what SOURCE arguments name. The process that fetches is started for the first URL.
pub struct SourceLocator<'a> {
    #[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "there are no remote sources"))]
    remote: &'a RemoteArgs,
    #[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "there are no remote sources"))]
    no_sandbox: bool,
    #[cfg(feature = "remote")]
    client: Option<FetchClient>,
}

impl<'a> SourceLocator<'a> {
    /// Starts no process yet.
    pub fn new(remote: &'a RemoteArgs) -> Self {
        Self {
            remote,
            no_sandbox: false,
            #[cfg(feature = "remote")]
            client: None,
        }
    }

    /// With `no_sandbox`, the process that fetches enters no sandbox.
    pub fn without_sandbox(self, no_sandbox: bool) -> Self {
        Self { no_sandbox, ..self }
    }

    /// The location of a SOURCE.
    #[cfg(feature = "remote")]
    pub fn locate(&mut self, source: &SourceArg) -> anyhow::Result<Location> {
        match source {
            SourceArg::Path(path) => Ok(path.clone().into()),
            SourceArg::Url(url) => {
                let client = match self.client.take() {
                    Some(client) => client,
                    None => fetcher::start_fetcher(fetch_options(self.remote, self.no_sandbox)?)?,
                };
                Ok(self.client.insert(client).resolve(url)?)
            }
        }
    }

    /// The location of a SOURCE.
    #[cfg(not(feature = "remote"))]
    pub fn locate(&mut self, source: &SourceArg) -> anyhow::Result<Location> {
        match source {
            SourceArg::Path(path) => Ok(path.clone().into()),
            SourceArg::Url(_) => bail!("this weightfs was built without remote sources"),
        }
    }

    /// Adds what is read and fetched to the attributes of a file system, if the process that fetches was started.
    pub fn show_traffic(&self, superblock: Superblock) -> Superblock {
        #[cfg(feature = "remote")]
        if let Some(client) = self.client.clone() {
            return superblock.with_traffic(move || client.traffic().to_json());
        }
        superblock
    }

    /// A function that logs what was read and fetched, if the process that fetches was started.
    pub fn log_traffic(&self, source: &Location) -> impl Fn() + Send + Clone + use<> {
        #[cfg(feature = "remote")]
        let (client, source) = (self.client.clone(), source.clone());
        #[cfg(not(feature = "remote"))]
        let _ = source;
        move || {
            #[cfg(feature = "remote")]
            if let Some(client) = &client {
                log::info!("{source}: {}", client.traffic());
            }
        }
    }

    /// Enters the sandbox while no thread of this process runs for remote sources. Logs which parts of it are not
    /// enforced.
    pub fn enter(&self, sandbox: Option<Sandbox>) -> anyhow::Result<()> {
        #[cfg(feature = "remote")]
        if let Some(client) = &self.client {
            client.rest();
            enter_sandbox(sandbox);
            return client.resume().context("cannot start a thread");
        }
        enter_sandbox(sandbox);
        Ok(())
    }
}

fn enter_sandbox(sandbox: Option<Sandbox>) {
    let Some(sandbox) = sandbox else { return log::info!("no sandbox") };
    let enforced = sandbox.enter();
    log::info!("sandbox: {enforced}");
    for missing in enforced.missing() {
        log::warn!("incomplete sandbox: {missing}");
    }
}

/// The options of the process that fetches.
#[cfg(feature = "remote")]
fn fetch_options(remote: &RemoteArgs, no_sandbox: bool) -> anyhow::Result<FetchOptions> {
    // The process may have another current directory.
    let token_file = remote.token_file.as_deref().map(std::path::absolute).transpose()?;
    Ok(FetchOptions {
        version: VERSION,
        offline: remote.offline,
        timeout: remote.timeout.map(|seconds| u64::from(seconds) * 1000),
        cache_size: remote.cache_size.map(|size| size.0),
        token_file: token_file.map(|path| path.to_string_lossy().into_owned()),
        no_sandbox,
    })
}

/// The location of the only SOURCE of a command.
pub fn locate_source(source: &SourceArg, remote: &RemoteArgs) -> anyhow::Result<Location> {
    prepare_process()?;
    SourceLocator::new(remote).locate(source)
}

/// The files that a mount of `opened` shows.
pub fn new_superblock(
    opened: OpenedModel,
    source: &Location,
    shown: ShownViews,
    ownership: Ownership,
) -> anyhow::Result<Superblock> {
    Superblock::new(opened, shown, ownership).with_context(|| format!("{source}: a model without files"))
}

/// The files of a source, as a mount would show them, for commands that do not mount.
pub struct SourceFiles {
    /// The source, for messages.
    pub source: Location,
    /// The files.
    pub superblock: Superblock,
}

impl SourceFiles {
    /// Opens a source.
    pub fn open(source: &SourceArg, remote: &RemoteArgs, lenient: bool, shown: ShownViews) -> anyhow::Result<Self> {
        let source = locate_source(source, remote)?;
        let opened = model::open_location(&source, parse_mode(lenient))?;
        if let OpenedModel::Model(model) = &opened {
            model.report(&source);
        }
        let superblock = new_superblock(opened, &source, shown, Ownership::default())?;
        Ok(Self { source, superblock })
    }

    /// The file or directory at a path of the mount.
    pub fn find(&self, path: &Path) -> anyhow::Result<Attr> {
        let found = self.superblock.resolve(path.as_os_str().as_bytes(), &ReadRequest::WAIT);
        found.with_context(|| self.name(path))
    }

    /// The content of a file at a path of the mount.
    pub fn content(&self, path: &Path) -> anyhow::Result<Content> {
        let ino = self.find(path)?.ino;
        self.superblock.open(ino, &ReadRequest::WAIT).with_context(|| self.name(path))
    }

    /// The name of a file in messages.
    pub fn name(&self, path: &Path) -> String {
        format!("{}: {}", self.source, path.display())
    }
}

/// The mode that `--lenient` selects.
pub fn parse_mode(lenient: bool) -> ParseMode {
    if lenient { ParseMode::Lenient } else { ParseMode::Strict }
}

/// Sets up logging, and raises the limit of open files. Call this before models are opened.
pub fn prepare_process() -> anyhow::Result<()> {
    logging::init(false, None, None)?;
    limits::raise_open_files();
    limits::limit_address_space();
    Ok(())
}

/// Opens one model or a directory of several, and logs what was left out of a model. Unlike in a mount, the only model
/// below a directory is opened as one model wherever it lies.
pub fn open_any_model(source: &Location, mode: ParseMode) -> anyhow::Result<OpenedModel> {
    prepare_process()?;
    let model = match model::open_location(source, mode)? {
        OpenedModel::Model(model) => model,
        OpenedModel::Catalog(catalog) => match catalog.only() {
            Some(only) => model::open_model(&source.rename(catalog.model(only)), mode)?.into(),
            None => return Ok(OpenedModel::Catalog(catalog)),
        },
    };
    model.report(source);
    Ok(OpenedModel::Model(model))
}

/// Opens the one model at `source`.
pub fn open_one_model(source: &Location, mode: ParseMode) -> anyhow::Result<Model> {
    match open_any_model(source, mode)? {
        OpenedModel::Model(model) => Ok(*model),
        OpenedModel::Catalog(catalog) => bail!("{}", several_models(source, &catalog)),
    }
}

/// Opens the one model at `source`, or a split as a model of its own.
pub fn open_model_file(source: &Location, mode: ParseMode) -> anyhow::Result<Model> {
    if is_dir(source) || model::first_split(source).is_none() {
        return open_one_model(source, mode);
    }
    prepare_process()?;
    let model = model::open_alone(source, mode)?;
    model.report(source);
    Ok(model)
}

/// The error for a directory of several models where one model is expected.
pub fn several_models(source: &Location, catalog: &Catalog) -> String {
    format!("{source}: a directory of {} models; name one of them", catalog.models().len())
}

/// Opens a model of a directory, and logs what was left out. Messages name the model `shown`: the path of the
/// directory, followed by the path of the model in a mount.
pub fn open_catalog_model(catalog: &Catalog, id: ModelId, shown: &Location) -> anyhow::Result<Model> {
    let model = model::open_model(catalog.model(id), catalog.mode())?;
    model.report(shown);
    Ok(model)
}
