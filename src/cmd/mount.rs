//! `weightfs mount`: the steps of mounting and unmounting a model, in their order.

use crate::cli::MountArgs;
use crate::opening::{self, ServedSource, SourceLocator};
use crate::process::daemon::{self, ForkedProcess};
use crate::process::daemon_helper::{self, DaemonHelper, HelperFork, UnmountOrder, UnmountTarget, remove_directory};
use crate::process::logging::{self, reason};
use crate::process::mounts::{self, MountInfo, MountRequest};
use crate::process::recent::RecentMessages;
use crate::process::sandbox::Sandbox;
use crate::process::sandbox::files::SandboxTask;
use crate::process::signals::EndAtOnce;
use crate::process::{descriptors, limits, signals};
use crate::terminal::output::print_line;
use anyhow::{Context, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use weightfs::fs::{MountedTree, Ownership, Superblock};
use weightfs::fuse::{DEVICE, FuseSession, MountAccess, ServeOptions};
use weightfs::model;
use weightfs::source::{self, Location, put_off_limits};
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

/// Descriptors that the caller passes to the daemon.
struct PassedDescriptors {
    /// The pipe or socket of `--while-open`.
    watched: Option<OwnedFd>,
    /// The /dev/fuse that is the MOUNTPOINT.
    device: Option<OwnedFd>,
}

impl PassedDescriptors {
    /// Call this before this process opens any file, as [`descriptors::duplicate`] requires.
    fn take(args: &MountArgs) -> anyhow::Result<Self> {
        let watched = args.while_open.map(|fd| descriptors::take(fd).with_context(|| format!("--while-open {fd}")));
        let watched = watched.transpose()?;
        let device = args.mountpoint.as_deref().map(|path| Self::device(path, args)).transpose()?.flatten();
        Ok(Self { watched, device })
    }

    /// The /dev/fuse that `mountpoint` names, unless it names a directory.
    fn device(mountpoint: &Path, args: &MountArgs) -> anyhow::Result<Option<OwnedFd>> {
        let Some(descriptor) = descriptors::whole_descriptor(mountpoint) else { return Ok(None) };
        let shown = mountpoint.display();
        let passed = descriptors::duplicate(descriptor).and_then(|passed| File::from(passed).metadata());
        let passed = passed.with_context(|| shown.to_string())?;
        if passed.is_dir() {
            return Ok(None);
        } else if !descriptors::is_fuse_device(&passed) {
            bail!("{shown}: neither a directory nor an open {DEVICE}");
        }
        if let Some((_, option)) =
            [(args.rmdir, "rmdir"), (args.auto_unmount, "auto_unmount")].iter().find(|(is, _)| *is)
        {
            bail!("option {option}: {shown} is mounted already, so whoever mounted it has to unmount it");
        }
        // The caller's descriptor is closed only after these checks, because it may be something else.
        let device = descriptors::take(descriptor).with_context(|| shown.to_string())?;
        descriptors::make_blocking(&device).with_context(|| shown.to_string())?;
        Ok(Some(device))
    }

    fn numbers(&self) -> impl Iterator<Item = RawFd> {
        self.watched.iter().chain(&self.device).map(AsRawFd::as_raw_fd)
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
    readiness: Option<daemon::Readiness>,
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
    let report_end = readiness.as_ref().map(daemon::Readiness::report_end).transpose()?;
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
    let PassedDescriptors { watched, device: passed } = passed;
    let located = match args.input.source.path() {
        // Nothing may look at a source that lies inside the mount of the caller: it would wait for this process.
        Some(path) if passed.is_some() => path.into(),
        _ => locator.locate(&args.input.source)?,
    };
    let mounted_before = passed.is_some();
    let caller = passed.map(|device| MountOfCaller::new(device, args, &located)).transpose()?;
    let (superblock, sandbox, summary) = open_source(args, &located)?;
    let superblock = locator.show_traffic(superblock);
    let source = located.absolute()?;
    // A mount by root always admits root.
    let allow_root = args.allow_root && !nix::unistd::geteuid().is_root();
    let (device, mounted, read_ahead) = match caller {
        Some(_) if args.fake => return Ok(ExitCode::SUCCESS),
        Some(caller) => {
            at_once.stop();
            caller.take_over(helper)?
        }
        None => {
            let mountpoint = Mountpoint::prepare(args, &located, &mut at_once)?;
            if args.fake {
                return Ok(ExitCode::SUCCESS);
            }
            at_once.stop();
            put_off_limits(&mountpoint.path, source.path(), mounts::TYPE);
            if mountpoint.made {
                superblock.ignore_changes_of(&Location::from(&*mountpoint.path).parent());
            }
            let fsname = args.fsname.clone().unwrap_or_else(|| source.to_string());
            let device = mounts::mount(&MountRequest {
                // The kernel does not escape control characters in /proc/mounts, except white space.
                fsname: &printable(&fsname),
                mountpoint: &mountpoint.path,
                allow_other: args.allow_other || allow_root,
                max_read: args.max_read,
            })?;
            let (mounted, read_ahead) = ActiveMount::new(mountpoint, &device, helper, args.auto_unmount)?;
            (device, mounted, read_ahead)
        }
    };
    let access = match (args.allow_other || mounted_before, allow_root) {
        (_, true) => MountAccess::OwnerAndRoot,
        // The kernel admits those whom the caller has chosen when it mounted.
        (true, _) => MountAccess::All,
        _ => MountAccess::Owner,
    };
    let (threads, direct_io) = (threads(args), args.direct_io);
    let serving = ServeOptions { access, threads, direct_io, check_permissions: mounted_before, memory };
    let mounted_line = format!("{source}: mounted on {}", mounted.0.path.display());
    if readiness.is_some() && is_recent {
        keep_messages(&recent, &mounted_line);
    }
    locator.enter(sandbox)?;
    // All threads that keep running are started after this, so they are in the sandbox.
    let session =
        FuseSession::new(MountedTree::fixed(superblock), device, serving, watch).map_err(|error| {
            match error.raw_os_error() {
                Some(nix::libc::EPERM) if mounted_before => not_mounted(&mounted.0.path),
                _ => anyhow::Error::new(error).context("the handshake with the kernel failed"),
            }
        })?;
    if let Some(file) = read_ahead {
        set_read_ahead(file);
    }
    let log_traffic = locator.log_traffic(&source);
    let (mount, at_end) = (mounted.0.clone(), log_traffic.clone());
    signals::start_thread("signals", move || unmount_on_signal(&signals, &mount, at_end))?;
    if let Some(watched) = watched {
        let (mount, at_end) = (mounted.0.clone(), log_traffic.clone());
        signals::start_thread("while-open", move || unmount_when_closed(&watched, &mount, at_end))?;
    }
    let path = mounted.0.path.display();
    log::info!("{mounted_line}");
    match readiness {
        Some(readiness) => {
            readiness.announce(&mounted.0.path, &summary)?;
            logging::leave_terminal();
        }
        None => {
            let end = if mounted_before { "ends it" } else { "unmounts it" };
            print_line(&printable(&format!("{located} is mounted on {path}; Ctrl-C {end}")));
        }
    }
    session.run().context("lost the connection to the kernel")?;
    log_traffic();
    log::info!("{path}: unmounted");
    Ok(ExitCode::SUCCESS)
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

/// Opens the model or models, and prepares the sandbox. Also returns what they are in words. Preparing the sandbox
/// opens all paths that may be read later. This must happen before the mount exists, because a link to a model may lead
/// into the mount.
fn open_source(args: &MountArgs, source: &Location) -> anyhow::Result<(Superblock, Option<Sandbox>, String)> {
    let ownership = Ownership { uid: args.uid, gid: args.gid, umask: args.umask.unwrap_or(0) };
    let served = opening::open_served(source, args.input.open.mode(), args.views.shown(), ownership)?;
    let ServedSource { superblock, reads, summary } = served;
    let device = (threads(args) > 1).then_some(Path::new(DEVICE));
    let sandbox = (!args.serving.no_sandbox).then(|| Sandbox::new(SandboxTask::Mount, &reads, device));
    Ok((superblock, sandbox, summary))
}

/// The file in sysfs that sets the read-ahead of the mount. Only root may write to it. It must be opened before the
/// sandbox is entered, and written after the FUSE handshake.
fn read_ahead(device: &str) -> Option<File> {
    let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
    OpenOptions::new().write(true).open(&path).inspect_err(|error| log::debug!("{path}: {error}")).ok()
}

/// Sets the read-ahead to 1 MiB, the size of the largest read request. The default of the kernel is 128 KiB.
fn set_read_ahead(mut file: File) {
    const KIB: &[u8] = b"1024";
    if let Err(error) = file.write_all(KIB) {
        log::debug!("read-ahead: {error}");
    }
}

/// Number of threads that serve requests. More threads help several readers at a time, but not a single one.
fn threads(args: &MountArgs) -> usize {
    args.threads.map_or(cores().clamp(2, 8), usize::from)
}

struct Mountpoint {
    /// Absolute and without symlinks.
    path: PathBuf,
    /// Whether it is removed with the mount, because it was created for it, or because of --rmdir.
    made: bool,
}

impl Mountpoint {
    /// Finds or creates the directory. Stops `at_once` before it creates one. Fails if a mount there would hide files.
    fn prepare(args: &MountArgs, source: &Location, at_once: &mut EndAtOnce) -> anyhow::Result<Self> {
        let wanted = match &args.mountpoint {
            Some(path) => path.clone(),
            None => default_mountpoint(source)?,
        };
        while mounts::is_dead(&wanted) {
            let path = mounts::resolve_mountpoint(&wanted)?;
            match mounts::mounted_at(&path)? {
                Some(mount) if mount.fstype == mounts::TYPE => {}
                Some(mount) => bail!("{}: a dead {} mount; unmount it first", wanted.display(), mount.fstype),
                None => bail!("{}: lies in a mount whose daemon is gone", wanted.display()),
            }
            if args.fake {
                return Ok(Self { path, made: false });
            }
            mounts::unmount_mount(&path, true)?;
            log::warn!("{}: detached a dead mount, left by a daemon that was killed", wanted.display());
        }
        let mut made = args.rmdir && !args.fake;
        if args.mountpoint.is_none() && !wanted.exists() && !args.fake {
            at_once.stop();
            std::fs::create_dir(&wanted)
                .with_context(|| format!("cannot make the mount point {}", wanted.display()))?;
            made = true;
        }
        let path = match wanted.canonicalize() {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                bail!("{}: no such directory to mount on; make it first", wanted.display())
            }
            path => path.with_context(|| wanted.display().to_string())?,
        };
        let mountpoint = Self { path, made };
        mountpoint.check(args, source, &wanted)?;
        Ok(mountpoint)
    }

    fn check(&self, args: &MountArgs, source: &Location, wanted: &Path) -> anyhow::Result<()> {
        let shown = wanted.display();
        if !args.nonempty
            && let Some(mount) = mounts::mounted_at(&self.path)?.filter(|mount| mount.fstype == mounts::TYPE)
        {
            let source = mount.source.to_string_lossy();
            bail!("{shown}: already mounted here: {source} (unmount: weightfs umount {})", shell_word(wanted));
        }
        // A layer of an Ollama manifest has a location below that of the manifest, which is a file.
        let real = source.canonical().or_else(|_| source.parent().canonical());
        let real = real.with_context(|| source.to_string())?;
        let hides_source = real.path().is_some_and(|real| real.starts_with(&self.path));
        // Without a MOUNTPOINT, the user did not choose the directory that is in the way.
        let hint = args.mountpoint.is_none().then(|| {
            let source = source.path().map_or_else(|| source.to_string(), shell_word);
            format!("give an empty directory as MOUNTPOINT (`weightfs {source} MOUNTPOINT`)")
        });
        match (&hint, hides_source) {
            (Some(hint), true) => bail!("{source}: {hint}: the default, ./{shown}, would hide the source"),
            (None, true) => bail!("{source}: lies inside the mount point {shown}, which would hide it"),
            (_, false) => {}
        }
        let entries = std::fs::read_dir(&self.path);
        match entries.map(|mut entries| entries.next().is_some()) {
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                let hint = hint.map(|hint| format!("; {hint}")).unwrap_or_default();
                bail!("{shown}: not a directory to mount on{hint}")
            }
            Ok(true) if !args.nonempty => {
                let hint = hint.map(|hint| format!("{hint}, or ")).unwrap_or_default();
                bail!("{shown}: not empty; {hint}use --nonempty to mount over its contents")
            }
            // A user who cannot list the directory may still be permitted to mount on it.
            _ => {}
        }
        Ok(())
    }
}

/// The default mount point of a source: a directory in the current directory, named after the source.
fn default_mountpoint(source: &Location) -> anyhow::Result<PathBuf> {
    let name = if source::is_dir(source) {
        // The path of a directory may be `.` or `..`, so it is resolved.
        Some(source.canonical()?.file_name().to_owned()).filter(|name| !name.is_empty())
    } else {
        // The path of a file is not resolved: a link keeps its own name.
        let source = source.absolute()?;
        model::manifest_stem(&source).or_else(|| model::model_stem(&source))
    };
    Ok(name.context("the source has no name to mount it under")?.into())
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        if self.made {
            remove_directory(&self.path);
        }
    }
}

/// A mount that the caller of this program has made, and unmounts itself.
struct MountOfCaller {
    /// The MOUNTPOINT argument, `/dev/fd/N`.
    path: PathBuf,
    device: OwnedFd,
    /// The mount, if this process can see it.
    mount: Option<MountInfo>,
}

impl MountOfCaller {
    /// Takes the device that the caller has passed. This process must not access the mount before the session has
    /// started: the access would wait for this process itself.
    fn new(device: OwnedFd, args: &MountArgs, source: &Location) -> anyhow::Result<Self> {
        let path = args.mountpoint.clone().unwrap_or_default();
        let mount = mounts::mounted_through(&device);
        let dir = mount.as_ref().map_or(&path, |mount| &mount.path);
        let source = source.absolute()?;
        if source.path().is_some_and(|source| source.starts_with(dir)) {
            bail!("{source}: lies inside the mount point {}, which hides it", dir.display());
        }
        put_off_limits(dir, source.path(), mounts::TYPE);
        Ok(Self { path, device, mount })
    }

    /// The device, the connection, and the file that sets the read-ahead.
    fn take_over(self, helper: DaemonHelper) -> anyhow::Result<(OwnedFd, ActiveMount, Option<File>)> {
        let Self { path, device, mount } = self;
        let read_ahead = mount.and_then(|mount| read_ahead(&mount.device));
        let copy = device.try_clone().context(DEVICE)?;
        let connection = MountConnection { path, device: copy, helper, is_ours: false };
        Ok((device, ActiveMount(Arc::new(connection)), read_ahead))
    }
}

fn not_mounted(path: &Path) -> anyhow::Error {
    let number = path.file_name().unwrap_or_default().display();
    anyhow::anyhow!("{}: this {DEVICE} is not mounted: call mount(2) with fd={number} first", path.display())
}

/// The mount of this daemon. It is unmounted when this is dropped.
struct ActiveMount(Arc<MountConnection>);

/// The connection of the daemon to its mount.
struct MountConnection {
    path: PathBuf,
    /// /dev/fuse.
    device: OwnedFd,
    helper: DaemonHelper,
    /// Whether this program has mounted it, and has to unmount it.
    is_ours: bool,
}

impl ActiveMount {
    /// Takes over a new mount. Also returns the file that sets its read-ahead.
    fn new(
        mut mountpoint: Mountpoint,
        device: &OwnedFd,
        helper: DaemonHelper,
        auto_unmount: bool,
    ) -> anyhow::Result<(Self, Option<File>)> {
        let path = mountpoint.path.clone();
        let all = mounts::all().unwrap_or_default().into_iter();
        let mount = all.rev().find(|mount| mount.path == path && mount.fstype == mounts::TYPE);
        let read_ahead = mount.as_ref().and_then(|mount| read_ahead(&mount.device));
        let connected = device.try_clone().context(DEVICE).and_then(|device| {
            let made = mountpoint.made;
            let target = UnmountTarget { path: path.clone().into(), mount, made, auto_unmount };
            helper.order(&UnmountOrder::SetTarget(target))?;
            Ok(Self(Arc::new(MountConnection { path: path.clone(), device, helper, is_ours: true })))
        });
        match connected {
            Ok(mounted) => {
                // From here on, the directory is removed with the mount.
                mountpoint.made = false;
                Ok((mounted, read_ahead))
            }
            Err(error) => {
                // This process can unmount, because it is not in the sandbox yet.
                mounts::unmount_mount(&path, true)?;
                Err(error)
            }
        }
    }
}

impl Drop for ActiveMount {
    fn drop(&mut self) {
        if let Err(error) = self.0.unmount() {
            log::error!("{}", reason(&error));
        }
    }
}

impl MountConnection {
    /// Unmounts, and removes the directory if it was created for the mount. Returns whether the mount was in use and
    /// had to be detached.
    fn unmount(&self) -> anyhow::Result<bool> {
        if !self.is_ours {
            // The kernel aborts the connection when this program has ended and the caller has closed its copies.
            Ok(false)
        } else if self.is_connected() {
            self.helper.order(&UnmountOrder::Unmount)
        } else {
            // It was unmounted by another program. A new mount may have its device number now.
            self.helper.order(&UnmountOrder::Forget)
        }
    }

    /// Whether the file system still exists, mounted anywhere or detached but in use. As long as it does, its device
    /// number is not reused.
    fn is_connected(&self) -> bool {
        !is_closed(&self.device, PollTimeout::ZERO)
    }
}

/// Waits for one of `signals`, unmounts and ends the program. The session does not always end by itself: the mount may
/// be detached but in use, or may also exist in another mount namespace. `at_end` is called before the program ends.
fn unmount_on_signal(signals: &SigSet, mount: &MountConnection, at_end: impl Fn()) {
    let path = mount.path.display();
    while let Ok(signal) = signals.wait() {
        log::info!("{path}: {} on {signal}", if mount.is_ours { "unmounting" } else { "ending" });
        match mount.unmount() {
            Ok(in_use) => {
                if in_use {
                    log::warn!("{path}: was in use and is detached; its users get errors from now on");
                }
                at_end();
                if in_use || !mount.is_ours {
                    descriptors::disconnect_and_exit();
                }
                // The threads of the session close their descriptors themselves, perhaps at this moment.
                std::process::exit(0);
            }
            // The daemon keeps serving, because the mount would be dead otherwise. The next signal tries again.
            Err(error) => log::error!("{}", reason(&error)),
        }
    }
}

/// Unmounts when the other end of `watched`, a pipe or a socket, is closed. A mount that is in use is detached, and the
/// program ends after its last user. If the caller has mounted it, the program ends at once, after `at_end`.
fn unmount_when_closed(watched: &OwnedFd, mount: &MountConnection, at_end: impl Fn()) {
    let path = mount.path.display();
    // poll(2) always reports POLLHUP and POLLERR, so no event is requested.
    while !is_closed(watched, PollTimeout::NONE) {}
    log::info!("{path}: ending, because the other end of --while-open is closed");
    match mount.unmount() {
        Ok(_) if mount.is_ours => {}
        Ok(_) => {
            at_end();
            descriptors::disconnect_and_exit();
        }
        Err(error) => log::error!("{}", reason(&error)),
    }
}

/// Waits until the other end of a descriptor is closed, or an error or the timeout ends the wait. Returns whether it is
/// closed. The other end of /dev/fuse is the mounted file system.
fn is_closed(descriptor: &OwnedFd, timeout: PollTimeout) -> bool {
    let mut polled = [PollFd::new(descriptor.as_fd(), PollFlags::empty())];
    let _ = poll(&mut polled, timeout);
    polled[0].any() == Some(true)
}
