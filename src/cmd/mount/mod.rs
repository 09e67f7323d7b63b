//! `weightfs mount`: the steps of mounting and unmounting a model, in their order.

mod active;
mod mountpoint;
mod passed;
mod target;

use crate::cli::MountArgs;
use crate::opening::{self, ServedSource, SourceLocator};
use crate::process::daemon::{self, ForkedProcess, Readiness};
use crate::process::daemon_helper::{self, HelperFork};
use crate::process::logging::{self, reason};
use crate::process::mounts;
use crate::process::recent::RecentMessages;
use crate::process::sandbox::Sandbox;
use crate::process::sandbox::files::SandboxTask;
use crate::process::signals::EndAtOnce;
use crate::process::{descriptors, limits, signals};
use crate::terminal::output::print_line;
use active::{MountOwner, set_read_ahead, unmount_on_signal, unmount_when_closed};
use anyhow::{Context, bail};
use mountpoint::Mountpoint;
use nix::sys::signal::SigSet;
use passed::PassedDescriptors;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use target::{MountOfCaller, MountTarget, TakenMount, admits_root};
use weightfs::fs::{MountedTree, Ownership, Superblock};
use weightfs::fuse::{DEVICE, FuseSession, MountAccess, ReaderWatch, ServeOptions};
use weightfs::source::Location;
use weightfs::text::{message, printable, shell_word};
use weightfs::threads::cores;

/// Mounts a model. In the foreground, returns when the model is unmounted; otherwise when the mount is ready.
pub fn run_mount(args: &MountArgs) -> anyhow::Result<ExitCode> {
    if let Some(options) = &args.remount {
        return check_remount(args, options);
    }
    let passed = PassedDescriptors::take(args)?;
    // All threads block these signals, so no signal ends the program between two steps.
    let signals = signals::block()?;
    if args.foreground || args.fake {
        return run_daemon(args, signals, passed, None);
    }
    let (source, mountpoint) = (args.input.source.path(), args.mountpoint.as_deref());
    let named =
        [source, mountpoint, args.serving.log_file.as_deref()].into_iter().flatten().filter_map(descriptors::named);
    match daemon::fork_daemon(&signals, &named.chain(passed.numbers()).collect::<Vec<_>>())? {
        ForkedProcess::Daemon(readiness) => {
            source.and_then(descriptors::named).into_iter().for_each(descriptors::open_again);
            run_daemon(args, signals, passed, Some(readiness))
        }
        ForkedProcess::Command(mut waiting) => {
            let reported = waiting.wait()?.map(|(path, summary)| report_mounted(args, &path, &summary));
            waiting.end_on_signal();
            reported.unwrap_or_else(Ok)
        }
    }
}

/// Checks a new mount, and prints what was mounted where, and how to unmount it.
fn report_mounted(args: &MountArgs, path: &Path, summary: &str) -> anyhow::Result<ExitCode> {
    // A process other than the daemon must be able to reach the mount. A permission error does not mean that the mount
    // is dead.
    if mounts::is_dead(path) {
        bail!("{}: the daemon ended right after mounting", path.display());
    }
    // A mount point that is a descriptor is of no use to the user.
    let is_named = args.mountpoint.as_deref().is_none_or(|point| descriptors::whole_descriptor(point).is_none());
    if !args.quiet && is_named {
        let point = args.mountpoint.as_deref().or(path.file_name().map(Path::new)).unwrap_or(path);
        let (shown, word) = (point.to_string_lossy(), shell_word(point));
        print_line(&format!("{} on {} (unmount: weightfs umount {word})", printable(summary), printable(&shown)));
    }
    Ok(ExitCode::SUCCESS)
}

/// Remounts: changes nothing, and fails unless there is a mount with these long options, separated by commas. Options
/// that the kernel does not list may be those of the mount, because mount(8) adds what is in fstab.
fn check_remount(args: &MountArgs, options: &str) -> anyhow::Result<ExitCode> {
    logging::init(args.input.open.remote.verbose, args.serving.log_file.as_deref(), None)?;
    let mountpoint = args.mountpoint.as_deref().unwrap_or(Path::new(""));
    let shown = mountpoint.display();
    let path = mounts::resolve_mountpoint(mountpoint)?;
    let mount = mounts::mounted_at(&path)?.filter(|mount| mount.fstype == mounts::TYPE);
    let mount = mount.with_context(|| format!("{shown}: nothing to remount: no model is mounted here"))?;
    for option in options.split(',').filter(|option| !option.is_empty()) {
        let option = option.trim_start_matches('-');
        let (name, value) = option.split_at(option.find('=').unwrap_or(option.len()));
        let option = name.replace('-', "_") + value;
        let again = format!("unmount it (weightfs umount {}) and mount it with {option}", shell_word(mountpoint));
        let is_listed = mount.options.split(',').any(|listed| listed == option);
        if !is_listed && ["allow-other", "max-read"].contains(&name) {
            bail!("{shown}: remount cannot change a mount; {again}");
        } else if !is_listed {
            log::warn!("{shown}: remount changes nothing; if the model was mounted without {option}, {again}");
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn run_daemon(
    args: &MountArgs,
    signals: SigSet,
    passed: PassedDescriptors,
    readiness: Option<Readiness>,
) -> anyhow::Result<ExitCode> {
    let (helper, watch, recent) = match daemon_helper::fork_helper()? {
        HelperFork::Daemon(helper, watch, recent) => (helper, watch, recent),
        HelperFork::Helper(helper) => {
            // The command waits until every process has closed its write end of this pipe.
            drop(readiness);
            return helper.run();
        }
    };
    let is_recent = logging::init(args.input.open.remote.verbose, args.serving.log_file.as_deref(), Some(&recent))?;
    let report_end = readiness.as_ref().map(Readiness::report_end).transpose()?;
    // A signal ends the process at once until there is something to undo. This thread is not in the sandbox, so it ends
    // before the sandbox is entered. Signals then stay pending until another thread waits for them.
    let mut at_once =
        EndAtOnce::start(&signals, move |signal| report_end.into_iter().for_each(|report| report(signal)))?;
    limits::raise_open_files();
    limits::limit_address_space();
    limits::limit_arenas();
    // The sandbox allows no access to the control group.
    let memory = limits::memory();
    let mut locator = SourceLocator::new(&args.input.open.remote).without_sandbox(args.serving.no_sandbox);
    let PassedDescriptors { watched, device } = passed;
    let plan = MountPlan::new(args, device, &mut locator)?;
    if args.fake {
        return Ok(ExitCode::SUCCESS);
    }
    at_once.stop();
    let MountPlan { located, superblock, summary, sandbox, target } = plan;
    let mount = target.take(args, &located, &superblock, helper)?;
    let recent = is_recent.then_some(recent);
    let daemon = MountDaemon { args, located, summary, signals, watch, watched, readiness, recent, memory };
    daemon.serve(mount, MountedTree::fixed(superblock), sandbox, locator)
}

/// What is mounted, and where. Nothing is changed yet.
struct MountPlan {
    /// As on the command line.
    located: Location,
    superblock: Superblock,
    /// What is mounted, in words.
    summary: String,
    sandbox: Option<Sandbox>,
    target: MountTarget,
}

impl MountPlan {
    /// Opens the model or models, and prepares the sandbox, which opens all paths that may be read later. This must
    /// happen before the mount exists, because a link to a model may lead into the mount. `device` is the /dev/fuse
    /// that the caller has mounted.
    fn new(args: &MountArgs, device: Option<OwnedFd>, locator: &mut SourceLocator) -> anyhow::Result<Self> {
        let located = match args.input.source.path() {
            // Nothing may look at a source that lies inside the mount of the caller: it would wait for this process.
            Some(path) if device.is_some() => path.into(),
            _ => locator.locate(&args.input.source)?,
        };
        let caller = device.map(|device| MountOfCaller::new(device, args, &located)).transpose()?;
        let ownership = Ownership { uid: args.uid, gid: args.gid, umask: args.umask.unwrap_or(0) };
        let ServedSource { superblock, reads, summary } =
            opening::open_served(&located, args.input.open.mode(), args.views.shown(), ownership)?;
        let superblock = locator.show_traffic(superblock);
        let device = (threads(args) > 1).then_some(Path::new(DEVICE));
        let sandbox = (!args.serving.no_sandbox).then(|| Sandbox::new(SandboxTask::Mount, &reads, device));
        let target = match caller {
            Some(caller) => MountTarget::Caller(caller),
            None => MountTarget::Directory(Mountpoint::find(args, &located)?),
        };
        Ok(Self { located, superblock, summary, sandbox, target })
    }
}

/// The process that answers the requests of the kernel.
struct MountDaemon<'a> {
    args: &'a MountArgs,
    located: Location,
    /// What is mounted, in words.
    summary: String,
    signals: SigSet,
    watch: Arc<ReaderWatch>,
    /// The pipe or socket of `--while-open`.
    watched: Option<OwnedFd>,
    /// Present unless the daemon is in the foreground.
    readiness: Option<Readiness>,
    /// Where later messages go if there is no syslog.
    recent: Option<RecentMessages>,
    /// See [`limits::memory`].
    memory: Option<u64>,
}

impl MountDaemon<'_> {
    /// Enters the sandbox, and answers requests until the model is unmounted.
    fn serve(
        self,
        mount: TakenMount,
        tree: MountedTree,
        sandbox: Option<Sandbox>,
        mut locator: SourceLocator,
    ) -> anyhow::Result<ExitCode> {
        let TakenMount { device, mounted, read_ahead } = mount;
        let (source, owner) = (self.located.absolute()?, mounted.0.owner);
        let path = mounted.0.path.display();
        let mounted_line = format!("{source}: mounted on {path}");
        if let (Some(recent), true) = (&self.recent, self.readiness.is_some()) {
            keep_messages(recent, &mounted_line);
        }
        locator.enter(sandbox)?;
        // All threads that keep running are started after this, so they are in the sandbox.
        let session = FuseSession::new(tree, device, self.options(owner), self.watch).map_err(|error| {
            match error.raw_os_error() {
                Some(nix::libc::EPERM) if owner == MountOwner::Caller => not_mounted(&mounted.0.path),
                _ => anyhow::Error::new(error).context("the handshake with the kernel failed"),
            }
        })?;
        read_ahead.into_iter().for_each(set_read_ahead);
        let log_traffic = locator.log_traffic(&source);
        let (mount, at_end) = (mounted.0.clone(), log_traffic.clone());
        signals::start_thread("signals", move || unmount_on_signal(&self.signals, &mount, at_end))?;
        if let Some(watched) = self.watched {
            let (mount, at_end) = (mounted.0.clone(), log_traffic.clone());
            signals::start_thread("while-open", move || unmount_when_closed(&watched, &mount, at_end))?;
        }
        log::info!("{mounted_line}");
        match self.readiness {
            Some(readiness) => {
                readiness.announce(&mounted.0.path, &self.summary)?;
                logging::leave_terminal();
            }
            None => {
                let end = if owner == MountOwner::Caller { "ends it" } else { "unmounts it" };
                print_line(&printable(&format!("{} is mounted on {path}; Ctrl-C {end}", self.located)));
            }
        }
        session.run().context("lost the connection to the kernel")?;
        log_traffic();
        log::info!("{path}: unmounted");
        Ok(ExitCode::SUCCESS)
    }

    fn options(&self, owner: MountOwner) -> ServeOptions {
        let Self { args, memory, .. } = self;
        let access = match (args.allow_other || owner == MountOwner::Caller, admits_root(args)) {
            (_, true) => MountAccess::OwnerAndRoot,
            // The kernel admits those whom the caller has chosen when it mounted.
            (true, _) => MountAccess::All,
            _ => MountAccess::Owner,
        };
        let check_permissions = owner == MountOwner::Caller;
        ServeOptions { access, threads: threads(args), direct_io: args.direct_io, check_permissions, memory: *memory }
    }
}

fn not_mounted(path: &Path) -> anyhow::Error {
    let number = path.file_name().unwrap_or_default().display();
    anyhow::anyhow!("{}: this {DEVICE} is not mounted: call mount(2) with fd={number} first", path.display())
}

/// Creates the file of the last messages, which begins with `first`.
fn keep_messages(recent: &RecentMessages, first: &str) {
    match recent.start(&message(first)) {
        Ok(path) => log::info!("no syslog here; later messages go to {}", path.display()),
        Err(error) => {
            let reason = reason(&error);
            log::info!("no syslog here, and {reason}; later messages are lost (--log-file FILE keeps them)");
        }
    }
}

/// Number of threads that serve requests. More threads help several readers at a time, but not a single one.
fn threads(args: &MountArgs) -> usize {
    args.threads.map_or(cores().clamp(2, 8), usize::from)
}
