//! Opens the models that a command line names.

use crate::cli::{RemoteArgs, SourceArg};
#[cfg(feature = "remote")]
use crate::process::fetcher;
use crate::process::logging::reason;
use crate::process::sandbox::Sandbox;
use crate::process::{limits, logging};
use crate::terminal::output::Output;
use anyhow::{Context, bail};
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use weightfs::content::{Content, Request};
use weightfs::format::Mode;
use weightfs::fs::{Attr, Ownership, Superblock};
use weightfs::model::{self, Catalog, Model, ModelId, Opened};
#[cfg(feature = "remote")]
use weightfs::remote::Client;
#[cfg(feature = "remote")]
use weightfs::remote::protocol::{Start, VERSION};
use weightfs::source::{Location, is_dir};
use weightfs::view::Shown;

/// The models to open, each by its file.
pub struct Models {
    /// Named as on the command line.
    pub files: Vec<Location>,
    /// The files of the same models in another format.
    pub copies: Vec<Location>,
    /// Whether searching a source for models failed. The reason was printed.
    pub failed: bool,
}

impl Models {
    /// Finds the models at `sources`: files, indexes, manifests, and directories of one model or several.
    pub fn find(sources: &[SourceArg], remote: &RemoteArgs, out: &mut Output) -> anyhow::Result<Self> {
        prepare()?;
        let mut models = Self { files: Vec::new(), copies: Vec::new(), failed: false };
        let mut split = HashSet::new();
        let mut locator = Locator::new(remote);
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
            let complaints = match model::files(source) {
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

/// Finds what SOURCE arguments name. The process that fetches is started for the first URL.
pub struct Locator<'a> {
    #[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "there are no remote sources"))]
    remote: &'a RemoteArgs,
    #[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "there are no remote sources"))]
    no_sandbox: bool,
    #[cfg(feature = "remote")]
    client: Option<Client>,
}

impl<'a> Locator<'a> {
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
                    None => fetcher::start(start(self.remote, self.no_sandbox)?)?,
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
            enter(sandbox);
            return client.resume().context("cannot start a thread");
        }
        enter(sandbox);
        Ok(())
    }
}

fn enter(sandbox: Option<Sandbox>) {
    let Some(sandbox) = sandbox else { return log::info!("no sandbox") };
    let enforced = sandbox.enter();
    log::info!("sandbox: {enforced}");
    for missing in enforced.missing() {
        log::warn!("incomplete sandbox: {missing}");
    }
}

/// The options of the process that fetches.
#[cfg(feature = "remote")]
fn start(remote: &RemoteArgs, no_sandbox: bool) -> anyhow::Result<Start> {
    // The process may have another current directory.
    let token_file = remote.token_file.as_deref().map(std::path::absolute).transpose()?;
    Ok(Start {
        version: VERSION,
        offline: remote.offline,
        timeout: remote.timeout.map(|seconds| u64::from(seconds) * 1000),
        cache_size: remote.cache_size.map(|size| size.0),
        token_file: token_file.map(|path| path.to_string_lossy().into_owned()),
        no_sandbox,
    })
}

/// The location of the only SOURCE of a command.
pub fn locate(source: &SourceArg, remote: &RemoteArgs) -> anyhow::Result<Location> {
    prepare()?;
    Locator::new(remote).locate(source)
}

/// The files that a mount of `opened` shows.
pub fn superblock(opened: Opened, source: &Location, shown: Shown, ownership: Ownership) -> anyhow::Result<Superblock> {
    Superblock::new(opened, shown, ownership).with_context(|| format!("{source}: a model without files"))
}

/// The files of a source, as a mount would show them, for commands that do not mount.
pub struct Files {
    /// The source, for messages.
    pub source: Location,
    /// The files.
    pub superblock: Superblock,
}

impl Files {
    /// Opens a source.
    pub fn open(source: &SourceArg, remote: &RemoteArgs, lenient: bool, shown: Shown) -> anyhow::Result<Self> {
        let source = locate(source, remote)?;
        let opened = model::open(&source, mode(lenient))?;
        if let Opened::Model(model) = &opened {
            model.report(&source);
        }
        let superblock = superblock(opened, &source, shown, Ownership::default())?;
        Ok(Self { source, superblock })
    }

    /// The file or directory at a path of the mount.
    pub fn find(&self, path: &Path) -> anyhow::Result<Attr> {
        let found = self.superblock.resolve(path.as_os_str().as_bytes(), &Request::WAIT);
        found.with_context(|| self.name(path))
    }

    /// The content of a file at a path of the mount.
    pub fn content(&self, path: &Path) -> anyhow::Result<Content> {
        let ino = self.find(path)?.ino;
        self.superblock.open(ino, &Request::WAIT).with_context(|| self.name(path))
    }

    /// The name of a file in messages.
    pub fn name(&self, path: &Path) -> String {
        format!("{}: {}", self.source, path.display())
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
