//! Opens the models that a command line names.

use crate::cli::pattern::{WantedPatterns, unmatched};
use crate::cli::source::{RemoteArgs, SourceArg, SourceArgs};
#[cfg(feature = "remote")]
use crate::process::fetcher;
use crate::process::logging::reason;
use crate::process::sandbox::Sandbox;
use crate::process::{limits, logging};
use crate::terminal::output::StandardOutput;
use crate::terminal::progress::DrawingThread;
#[cfg(feature = "remote")]
use crate::terminal::progress::show_connecting;
use anyhow::{Context, bail};
use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weightfs::content::{Content, ReadRequest};
use weightfs::format::ParseMode;
use weightfs::fs::{Attr, Ownership, Superblock};
use weightfs::inspect::summary_of;
use weightfs::model::{self, Catalog, Model, ModelId, OpenedModel};
#[cfg(feature = "remote")]
use weightfs::remote::FetchClient;
#[cfg(feature = "remote")]
use weightfs::remote::location::RemoteLocation;
#[cfg(feature = "remote")]
use weightfs::remote::protocol::{FetchOptions, VERSION};
use weightfs::source::{Location, is_dir};
use weightfs::units::plural;
use weightfs::view::ShownViews;

/// The models to open, each by its file.
pub struct NamedModels {
    /// Named as on the command line.
    pub files: Vec<NamedModel>,
    /// The files of the same models in another format.
    pub copies: Vec<NamedModel>,
    /// Whether searching a source for models failed. The reason was printed.
    pub failed: bool,
    /// Shown until the first model was opened, which may be the first contact with a server.
    pub connecting: Option<DrawingThread>,
}

pub struct NamedModel {
    pub location: Location,
    /// The directory below which it was found, if the command line names that.
    pub top: Option<Location>,
}

impl NamedModels {
    /// Finds the models at `sources`: files, indexes, manifests, and directories of one model or several.
    pub fn find(sources: &[SourceArg], remote: &RemoteArgs, out: &mut StandardOutput) -> anyhow::Result<Self> {
        Self::find_with(&mut SourceLocator::for_command(remote)?, sources, out)
    }

    /// As [`NamedModels::find`].
    pub fn find_with(
        locator: &mut SourceLocator,
        sources: &[SourceArg],
        out: &mut StandardOutput,
    ) -> anyhow::Result<Self> {
        let mut models = Self { files: Vec::new(), copies: Vec::new(), failed: false, connecting: None };
        let mut split = HashSet::new();
        for source in sources {
            let complaints = match locator.locate(source) {
                // All files of a model may be named, as by `*.gguf`.
                Ok(source) if model::common_location(&source).is_some_and(|common| !split.insert(common)) => continue,
                Ok(source) => match model::model_files(&source) {
                    Ok(found) => {
                        let named = |location| NamedModel { location, top: found.top.clone() };
                        models.files.extend(found.models.into_iter().map(named));
                        models.copies.extend(found.copies.into_iter().map(named));
                        found.unreadable
                    }
                    Err(error) => vec![error.to_string()],
                },
                Err(error) => vec![reason(&error)],
            };
            if !complaints.is_empty() {
                locator.connecting = None;
            }
            for complaint in complaints {
                models.failed = true;
                out.complain(&complaint)?;
            }
        }
        models.connecting = locator.connecting.take();
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
        let Self { files, mut failed, mut connecting, .. } = self;
        for NamedModel { location, top } in &files {
            let opened = model::open_below(top.as_ref(), location, mode);
            drop(connecting.take());
            match opened {
                Ok(model) => {
                    model.report(location);
                    show(&model, location, out)?;
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

/// Reports the patterns that have matched no tensor of `sources`. The exit code is then 1, otherwise `code`.
pub fn report_unmatched(
    wanted: &WantedPatterns,
    sources: &[SourceArg],
    code: ExitCode,
    out: &mut StandardOutput,
) -> anyhow::Result<ExitCode> {
    let missed = wanted.unmatched();
    for pattern in &missed {
        out.complain(&unmatched(sources, pattern))?;
    }
    Ok(if missed.is_empty() { code } else { ExitCode::FAILURE })
}

/// Finds what SOURCE arguments name. The process that fetches is started for the first URL.
pub struct SourceLocator<'a> {
    #[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "there are no remote sources"))]
    remote: &'a RemoteArgs,
    #[cfg_attr(not(feature = "remote"), expect(dead_code, reason = "there are no remote sources"))]
    no_sandbox: bool,
    #[cfg(feature = "remote")]
    client: Option<FetchClient>,
    /// Says what is being waited for, until this is dropped or a sandbox is entered.
    connecting: Option<DrawingThread>,
}

impl<'a> SourceLocator<'a> {
    pub fn new(remote: &'a RemoteArgs) -> Self {
        Self {
            remote,
            no_sandbox: false,
            #[cfg(feature = "remote")]
            client: None,
            connecting: None,
        }
    }

    /// For a command that reads sources and ends: also sets up logging, and raises the limit of open files.
    pub fn for_command(remote: &'a RemoteArgs) -> anyhow::Result<Self> {
        prepare_process(remote.verbose)?;
        Ok(Self::new(remote))
    }

    /// With `no_sandbox`, the process that fetches enters no sandbox.
    pub fn without_sandbox(self, no_sandbox: bool) -> Self {
        Self { no_sandbox, ..self }
    }

    pub fn locate(&mut self, source: &SourceArg) -> anyhow::Result<Location> {
        match source {
            SourceArg::Path(path) => {
                // The directory is searched only for what is missing: it may be large or far away.
                if is_missing(path)
                    && !model::is_without_file(&path.clone().into())
                    && let Some(meant) = similar_source(path)
                {
                    bail!("{}: no such file or directory; did you mean {meant}?", path.display());
                }
                Ok(path.clone().into())
            }
            #[cfg(feature = "remote")]
            SourceArg::Url(url) => {
                let client = match self.client.take() {
                    Some(client) => client,
                    None => fetcher::start_fetcher(fetch_options(self.remote, self.no_sandbox)?)?,
                };
                let waiting = client.clone();
                self.connecting = show_connecting(server_name(url)?, move || waiting.attempts());
                resolve_url(self.client.insert(client), url)
            }
            #[cfg(not(feature = "remote"))]
            SourceArg::Url(_) => bail!("this weightfs was built without remote sources"),
        }
    }

    /// Opens one model or a directory of several, and logs what was left out of a model. Unlike in a mount, the only
    /// model below a directory is opened as one model wherever it lies.
    pub fn open(&mut self, source: &SourceArg, mode: ParseMode) -> anyhow::Result<(Location, OpenedModel)> {
        let location = self.locate(source)?;
        let opened = open_any_model(&location, mode)?;
        Ok((location, opened))
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
    pub fn enter(&mut self, sandbox: Option<Sandbox>) -> anyhow::Result<()> {
        self.connecting = None;
        #[cfg(feature = "remote")]
        self.client.iter().for_each(FetchClient::rest);
        match sandbox {
            Some(sandbox) => sandbox.enter().log(""),
            None => log::info!("no sandbox"),
        }
        #[cfg(feature = "remote")]
        self.client.iter().try_for_each(FetchClient::resume).context("cannot start a thread")?;
        Ok(())
    }
}

/// The location that a URL names: that of files on a server, or of a set of tensors in one of them.
#[cfg(feature = "remote")]
fn resolve_url(client: &FetchClient, url: &str) -> anyhow::Result<Location> {
    let is_model = |file: &str| Path::new(file).file_name().and_then(weightfs::format::format_stem).is_some();
    let set = url.rsplit_once('/').filter(|(file, set)| model::FILE_SETS.contains(set) && is_model(file));
    Ok(match set {
        Some((file, set)) => client.resolve(file)?.join(set),
        None => client.resolve(url)?,
    })
}

/// The server that a URL leads to, for people.
#[cfg(feature = "remote")]
fn server_name(url: &str) -> anyhow::Result<String> {
    Ok(match RemoteLocation::parse(url)? {
        Some(RemoteLocation::Hub(_)) | None => "the Hugging Face Hub".into(),
        Some(RemoteLocation::Web(web)) => web.url().authority().rsplit('@').next().unwrap_or_default().into(),
        Some(RemoteLocation::Store(store)) => format!("{}://{}", store.kind.scheme(), store.bucket),
    })
}

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
        redirects_to: remote.allow_redirects_to.clone(),
        no_sandbox,
    })
}

/// The word that is most similar to `word`, by a Jaro-Winkler similarity of more than `least`.
pub fn most_similar<S: AsRef<str>>(word: &str, others: impl Iterator<Item = S>, least: f64) -> Option<S> {
    let rated =
        others.map(|other| (strsim::jaro_winkler(word, other.as_ref()), other)).filter(|(rate, _)| *rate > least);
    rated.max_by(|(a, _), (b, _)| a.total_cmp(b)).map(|(_, other)| other)
}

/// Whether nothing has this path, not even a symlink that leads nowhere.
pub fn is_missing(path: &Path) -> bool {
    path.symlink_metadata().is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// What a path that does not exist may be meant for: a file beside it with a similar name, or a repository of the Hub.
fn similar_source(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let beside =
        std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    if let Some(other) = most_similar(name, beside, 0.9) {
        return Some(path.with_file_name(other).display().to_string());
    }
    let is_part =
        |part: &str| !part.is_empty() && part.bytes().all(|c| c.is_ascii_alphanumeric() || b"-_.".contains(&c));
    let (organisation, repository) = path.to_str()?.split_once('/')?;
    let is_repository =
        !organisation.starts_with('.') && is_part(organisation) && is_part(repository) && is_missing(dir);
    is_repository.then(|| format!("hf://{organisation}/{repository}"))
}

/// Opens the only source of a command, as [`SourceLocator::open`] does.
pub fn open_source(input: &SourceArgs) -> anyhow::Result<(Location, OpenedModel)> {
    SourceLocator::for_command(&input.open.remote)?.open(&input.source, input.open.mode())
}

/// The files that a mount of a source shows.
pub struct ServedSource {
    pub superblock: Superblock,
    /// All files that may be read.
    pub reads: Vec<PathBuf>,
    /// What the source is, for people, such as `104 tensors, 90.9 MB of F32`.
    pub summary: String,
}

pub fn open_served(
    source: &Location,
    mode: ParseMode,
    shown: ShownViews,
    ownership: Ownership,
) -> anyhow::Result<ServedSource> {
    let opened = model::open_location(source, mode)?;
    let summary = match &opened {
        OpenedModel::Model(model, _) => {
            model.report_mount(source);
            summary_of(model)
        }
        OpenedModel::Catalog(catalog) => {
            let models = plural(catalog.models().len() as u64, "model");
            log::info!("{source}: a snapshot of the directory, {models}; files added later will not appear");
            models
        }
    };
    let reads = opened.reads();
    let superblock = new_superblock(opened, source, shown, ownership)?;
    if source.path().is_none() {
        superblock.open_all();
    }
    Ok(ServedSource { superblock, reads, summary })
}

fn new_superblock(
    opened: OpenedModel,
    source: &Location,
    shown: ShownViews,
    ownership: Ownership,
) -> anyhow::Result<Superblock> {
    Superblock::new(opened, shown, ownership).with_context(|| format!("{source}: a model without files"))
}

/// The files of a source, as a mount would show them, for commands that do not mount.
pub struct SourceFiles {
    pub source: Location,
    pub superblock: Superblock,
}

impl SourceFiles {
    pub fn open(input: &SourceArgs, shown: ShownViews) -> anyhow::Result<Self> {
        let mut locator = SourceLocator::for_command(&input.open.remote)?;
        let source = locator.locate(&input.source)?;
        let opened = model::open_location(&source, input.open.mode())?;
        if let OpenedModel::Model(model, _) = &opened {
            model.report(&source);
        }
        let superblock = new_superblock(opened, &source, shown, Ownership::default())?;
        Ok(Self { source, superblock })
    }

    /// The files of a local source, of which damaged parts are skipped in silence.
    pub fn of_path(path: &Path) -> anyhow::Result<Self> {
        let source = Location::from(path);
        let opened = model::open_location(&source, ParseMode::Lenient)?;
        let superblock = new_superblock(opened, &source, ShownViews::default(), Ownership::default())?;
        Ok(Self { source, superblock })
    }

    /// The file or directory at a path of the mount.
    pub fn find(&self, path: &Path) -> anyhow::Result<Attr> {
        let resolve = |path: &Path| self.superblock.resolve(path.as_os_str().as_bytes(), &ReadRequest::WAIT);
        let found = resolve(path);
        let tensor = Path::new("tensors").join(path);
        if found.is_err() && resolve(&tensor).is_ok() {
            bail!("{}: no such file or directory; did you mean {}?", self.name(path), tensor.display());
        }
        found.with_context(|| self.name(path))
    }

    /// The content of a file at a path of the mount.
    pub fn content(&self, path: &Path) -> anyhow::Result<Content> {
        let ino = self.find(path)?.ino;
        self.superblock.open(ino, &ReadRequest::WAIT).with_context(|| self.name(path))
    }

    pub fn name(&self, path: &Path) -> String {
        format!("{}: {}", self.source, path.display())
    }
}

/// Sets up logging, and raises the limit of open files. Call this before models are opened.
pub fn prepare_process(verbose: bool) -> anyhow::Result<()> {
    logging::init(verbose, None, None)?;
    limits::raise_open_files();
    limits::limit_address_space();
    Ok(())
}

fn open_any_model(source: &Location, mode: ParseMode) -> anyhow::Result<OpenedModel> {
    let model = match model::open_location(source, mode)? {
        OpenedModel::Model(model, _) => model,
        OpenedModel::Catalog(catalog) => match catalog.only() {
            Some(only) => model::open_below(Some(source), &source.rename(catalog.model(only)), mode)?.into(),
            None => return Ok(OpenedModel::Catalog(catalog)),
        },
    };
    model.report(source);
    Ok(OpenedModel::Model(model, None))
}

/// Opens the one model at `source`, or a split as a model of its own.
pub fn open_model_file(source: &Location, mode: ParseMode) -> anyhow::Result<Model> {
    prepare_process(false)?;
    if !is_dir(source) && model::first_split(source).is_some() {
        let model = model::open_alone(source, mode)?;
        model.report(source);
        return Ok(model);
    }
    match open_any_model(source, mode)? {
        OpenedModel::Model(model, _) => Ok(*model),
        OpenedModel::Catalog(catalog) => bail!("{}", several_models(source, &catalog)),
    }
}

/// The error for a directory of several models where one model is expected.
pub fn several_models(source: &Location, catalog: &Catalog) -> String {
    format!("{source}: a directory of {} models; name one of them", catalog.weights().len())
}

/// Opens a model of a directory, and logs what was left out. Messages name the model `shown`: the path of the
/// directory, followed by the path of the model in a mount.
pub fn open_catalog_model(catalog: &Catalog, id: ModelId, shown: &Location) -> anyhow::Result<Model> {
    let model = model::open_in(catalog, id)?;
    model.report(shown);
    Ok(model)
}
