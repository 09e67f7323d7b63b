//! `weightfs mount`: knows the order in which a model comes up and goes away, and leaves nothing behind.

use super::daemon::{self, Side};
use super::mounts::{self, Unmounting};
use super::reason;
use crate::cli::MountArgs;
use crate::logging;
use anyhow::{Context, bail};
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::{SigSet, Signal};
use std::ffi::OsStr;
use std::io::{self, ErrorKind, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use weightfs::format::Mode;
use weightfs::fs::{Ownership, Superblock};
use weightfs::fuse::{Access, Serving, Session};
use weightfs::model::{self, Opened};
use weightfs::name::printable;
use weightfs::source::{limit_open_files, put_off_limits};

/// Mounts a model; returns when it is unmounted, or in the background when the mount answers.
pub fn run(args: &MountArgs) -> anyhow::Result<ExitCode> {
    if args.foreground || args.fake {
        return serve(args, None);
    }
    match daemon::split()? {
        Side::Daemon(readiness) => serve(args, Some(readiness)),
        Side::Shell(waiting) => match waiting.wait()? {
            Err(code) => Ok(code),
            Ok(path) => {
                let path = Path::new(OsStr::from_bytes(&path));
                // The proof: it answers someone who is not the daemon. Without permission it has answered too.
                if mounts::is_dead(path) {
                    bail!("{}: the mount died at once", path.display());
                }
                if let (None, Some(name)) = (&args.mountpoint, path.file_name()) {
                    let name = printable(&name.to_string_lossy()).into_owned();
                    say(&format!("mounted on {name} (unmount: weightfs umount {name})"));
                }
                Ok(ExitCode::SUCCESS)
            }
        },
    }
}

/// The mount stands, whether or not there is anybody to hear of it.
fn say(line: &str) {
    let _ = writeln!(io::stdout(), "{line}");
}

fn serve(args: &MountArgs, readiness: Option<daemon::Readiness>) -> anyhow::Result<ExitCode> {
    logging::init(args.verbose, args.log_file.as_deref())?;
    let signals = ending_signals();
    start_workers(&signals)?;
    allow_descriptors();
    let superblock = open(args)?;
    let source = std::path::absolute(&args.source)?;
    let fsname = args.fsname.clone().unwrap_or_else(|| source.to_string_lossy().into_owned());
    // The kernel's list shows it as it is, but for white space.
    let fsname = printable(&fsname);
    // Before there is anything to take back: from now on a signal waits for the thread that unmounts.
    signals.thread_block()?;
    let mountpoint = Mountpoint::prepare(args)?;
    if args.fake {
        return Ok(ExitCode::SUCCESS);
    }
    put_off_limits(&mountpoint.path);
    // A mount of root's own lets root in already.
    let allow_root = args.allow_root && !nix::unistd::geteuid().is_root();
    let device = mounts::mount(&mounts::Request {
        fsname: &fsname,
        mountpoint: &mountpoint.path,
        allow_other: args.allow_other || allow_root,
        max_read: args.max_read,
    })?;
    let mut mounted = Mounted::new(mountpoint);
    let access = match (args.allow_other, allow_root) {
        (true, _) => Access::All,
        (_, true) => Access::OwnerAndRoot,
        _ => Access::Owner,
    };
    let serving = Serving { access, threads: threads(args), direct_io: args.direct_io };
    let session = Session::new(superblock, device, serving).context("the kernel did not take the mount")?;
    read_ahead(&mounted.place);
    unmount_on_signal(signals, mounted.place.clone())?;
    let path = mounted.place.path.display();
    log::info!("{}: mounted on {path}", source.display());
    match readiness {
        Some(readiness) => {
            readiness.announce(&mounted.place.path)?;
            logging::leave_terminal();
        }
        None => {
            say(&printable(&format!("{} is mounted on {path}; Ctrl-C unmounts it", args.source.display())));
        }
    }
    session.run().context("lost the connection to the kernel")?;
    log::info!("{path}: unmounted");
    mounted.gone = true;
    Ok(ExitCode::SUCCESS)
}

/// Starts the threads that read headers side by side. They inherit the mask, so that no signal ever ends the program in one
/// of them behind the back of the thread that unmounts.
fn start_workers(signals: &SigSet) -> anyhow::Result<()> {
    signals.thread_block()?;
    let started = rayon::ThreadPoolBuilder::new().build_global();
    signals.thread_unblock()?;
    started.context("cannot start threads")
}

/// Each file of a model takes a descriptor while it is held open, and the usual limit of 1,024 is there for programs that
/// use select(2).
fn allow_descriptors() {
    /// For /dev/fuse in each thread, the log, and files that are read while others are closed.
    const RESERVE: u64 = 48;
    /// Each file takes a map too, of which the kernel gives 65,530 (`vm.max_map_count`).
    const MOST: u64 = 16_384;
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE) {
        let limit = setrlimit(Resource::RLIMIT_NOFILE, hard, hard).map_or(soft, |()| hard);
        limit_open_files(limit.saturating_sub(RESERVE).clamp(4, MOST) as usize);
    }
}

/// Opens what is to be mounted, and says what of a model was left out or is not known.
fn open(args: &MountArgs) -> anyhow::Result<Superblock> {
    let mode = if args.lenient { Mode::Lenient } else { Mode::Strict };
    let opened = model::open(&args.source, mode)?;
    if let Opened::Model(model) = &opened {
        model.report(&args.source);
    }
    let ownership = Ownership { uid: args.uid, gid: args.gid, umask: args.umask.unwrap_or(0) };
    Superblock::new(opened, args.views.clone().unwrap_or_default(), ownership)
        .with_context(|| format!("{}: a model of no files", args.source.display()))
}

/// Has the kernel read ahead as much as it asks for at once, 1 MiB: by itself it would do 128 KiB. Only root may say so; for
/// others it stays as it is.
fn read_ahead(place: &Place) {
    const KIB: &str = "1024";
    let Some(device) = &place.device else { return };
    let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&path, KIB) {
        log::debug!("{path}: {error}");
    }
}

/// Enough for readers side by side. One reader alone is not faster by any of them.
fn threads(args: &MountArgs) -> usize {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    args.threads.map_or(cores.clamp(2, 8), usize::from)
}

/// A directory to mount on.
struct Mountpoint {
    /// Absolute and without symlinks.
    path: PathBuf,
    /// Whether it was made for this mount; then it goes with it.
    made: bool,
}

impl Mountpoint {
    /// Finds or makes the directory and refuses one that the mount would do harm to.
    fn prepare(args: &MountArgs) -> anyhow::Result<Self> {
        let wanted = match &args.mountpoint {
            Some(path) => path.clone(),
            None => {
                let source = &args.source;
                // A directory may be named `.` or `..`; a file is called as its user calls it, link or not.
                let source = if source.is_dir() { source.canonicalize()? } else { std::path::absolute(source)? };
                let name = if source.is_dir() { source.file_name().map(OsStr::to_owned) } else { model::stem(&source) };
                PathBuf::from(name.context("the source has no name to mount it under")?)
            }
        };
        while mounts::is_dead(&wanted) {
            let path = mounts::resolve(&wanted)?;
            match mounts::mounted_at(&path)? {
                Some(mount) if mount.fstype == mounts::TYPE => {}
                Some(mount) => bail!("{}: a dead {} mount; unmount it first", wanted.display(), mount.fstype),
                None => bail!("{}: lies in a mount whose daemon is gone", wanted.display()),
            }
            if args.fake {
                return Ok(Self { path, made: false });
            }
            mounts::unmount(&path, true)?;
            log::warn!("{}: detached the dead mount that a killed daemon had left", wanted.display());
        }
        let mut made = false;
        if args.mountpoint.is_none() && !wanted.exists() && !args.fake {
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
        mountpoint.check(args, &wanted)?;
        Ok(mountpoint)
    }

    fn check(&self, args: &MountArgs, wanted: &Path) -> anyhow::Result<()> {
        let source = args.source.canonicalize().with_context(|| args.source.display().to_string())?;
        if source.starts_with(&self.path) {
            bail!("{}: lies inside the mount point {}, which would hide it", args.source.display(), wanted.display());
        }
        let entries = std::fs::read_dir(&self.path);
        match entries.map(|mut entries| entries.next().is_some()) {
            Err(error) if error.kind() == ErrorKind::NotADirectory => {
                bail!("{}: not a directory to mount on", wanted.display())
            }
            Ok(true) if !args.nonempty => {
                bail!("{}: not empty; -o nonempty mounts over what is there", wanted.display())
            }
            // Who may not list it may still mount on it, if the kernel agrees.
            _ => {}
        }
        Ok(())
    }
}

impl Drop for Mountpoint {
    fn drop(&mut self) {
        remove_if_made(&self.path, self.made);
    }
}

/// A mount that stands. Dropped, it is taken off, unless it is known to be gone.
struct Mounted {
    place: Place,
    gone: bool,
}

/// Where a mount stands.
#[derive(Clone)]
struct Place {
    path: PathBuf,
    /// Device number of our mount, where the kernel's list can be read: another mount may stand on the same directory.
    device: Option<String>,
    /// Whether the directory was made for the mount.
    made: bool,
}

impl Mounted {
    fn new(mut mountpoint: Mountpoint) -> Self {
        let mount = mounts::mounted_at(&mountpoint.path).ok().flatten();
        let path = mountpoint.path.clone();
        let made = std::mem::take(&mut mountpoint.made);
        Self { place: Place { path, device: mount.map(|mount| mount.device), made }, gone: false }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = if self.gone { Ok(false) } else { self.place.unmount() };
        if let Err(error) = unmounted {
            log::error!("{}", reason(&error));
        }
        self.place.remove_directory();
    }
}

impl Place {
    /// Takes our mount off wherever it stands by now, bound copies and all; says whether it was in use, so that it had to be
    /// detached.
    fn unmount(&self) -> anyhow::Result<bool> {
        let Some(device) = &self.device else {
            // The kernel's list could not be read: nobody can tell what stands there.
            return take_off(&self.path);
        };
        let all = mounts::all()?;
        let mut in_use = false;
        for (at, mount) in all.iter().enumerate().rev().filter(|(_, mount)| mount.device == *device) {
            if all[at + 1..].iter().any(|above| above.path == mount.path && above.device != *device) {
                bail!("{}: something else is mounted over it; unmount that first", mount.path.display());
            }
            in_use |= take_off(&mount.path)?;
        }
        Ok(in_use)
    }

    fn remove_directory(&self) {
        remove_if_made(&self.path, self.made);
    }
}

/// Removes a directory that was made for a mount.
fn remove_if_made(path: &Path, made: bool) {
    if made {
        // Not empty, or mounted on again: then it is somebody else's by now.
        let _ = std::fs::remove_dir(path);
    }
}

/// Unmounts what is on top at `path`; says whether it was in use, so that it had to be detached.
fn take_off(path: &Path) -> anyhow::Result<bool> {
    match mounts::unmount(path, false)? {
        Unmounting::Done => Ok(false),
        Unmounting::Busy => mounts::unmount(path, true).map(|_| true),
    }
}

/// The signals that end a mount; not those that are ignored from the start, as nohup(1) has it.
fn ending_signals() -> SigSet {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = |line: &str| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok();
    let ignored = status.lines().find_map(ignored).unwrap_or(0);
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    signals.into_iter().filter(|signal| ignored >> (*signal as u32 - 1) & 1 == 0).collect()
}

/// Waits for one of `signals`, unmounts and ends the program. The session need not end by itself: the mount may have
/// users that it was detached from, by us or by `umount -l`, or a copy in another mount namespace.
fn unmount_on_signal(signals: SigSet, place: Place) -> anyhow::Result<()> {
    let wait = move || {
        while let Ok(signal) = signals.wait() {
            log::info!("{}: unmounting on {signal}", place.path.display());
            match place.unmount() {
                Ok(in_use) => {
                    if in_use {
                        log::warn!(
                            "{}: was in use; detached, and its users get errors from now on",
                            place.path.display()
                        );
                    }
                    place.remove_directory();
                    std::process::exit(0);
                }
                // Better alive than a dead mount; the next signal may find it free.
                Err(error) => log::error!("{}", reason(&error)),
            }
        }
    };
    std::thread::Builder::new().name("signals".into()).spawn(wait).context("cannot start a thread")?;
    Ok(())
}
