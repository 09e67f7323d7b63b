//! `weightfs mount`: knows the order in which a model comes up and goes away, and leaves nothing behind.

use crate::cli::MountArgs;
use crate::process::daemon::{self, Side};
use crate::process::logging::{self, reason};
use crate::process::mounts::{self, Mount};
use crate::process::sandbox::Sandbox;
use crate::process::unmounter::{self, Place, Unmounter, remove_directory};
use crate::process::{limits, signals};
use anyhow::{Context, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::SigSet;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use weightfs::format::Mode;
use weightfs::fs::{Ownership, Superblock};
use weightfs::fuse::{Access, DEVICE, Serving, Session};
use weightfs::model::{self, Opened};
use weightfs::source::put_off_limits;
use weightfs::text::printable;
use weightfs::threads::cores;

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
    let (unmounter, watch) = match unmounter::split()? {
        unmounter::Side::Daemon(unmounter, watch) => (unmounter, watch),
        unmounter::Side::Outside(outside) => {
            // Else the shell's side would wait for this process, too.
            drop(readiness);
            return outside.serve();
        }
    };
    logging::init(args.verbose, args.log_file.as_deref())?;
    let signals = signals::ending();
    limits::raise_open_files();
    let (superblock, sandbox) = open(args)?;
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
    let (mounted, read_ahead) = Mounted::new(mountpoint, &device, unmounter)?;
    let access = match (args.allow_other, allow_root) {
        (true, _) => Access::All,
        (_, true) => Access::OwnerAndRoot,
        _ => Access::Owner,
    };
    let serving = Serving { access, threads: threads(args), direct_io: args.direct_io };
    enter(sandbox);
    // Every thread that lives on is started from here on, in the sandbox.
    let session = Session::new(superblock, device, serving, watch).context("the kernel did not take the mount")?;
    if let Some(file) = read_ahead {
        set_read_ahead(file);
    }
    unmount_on_signal(signals, mounted.0.clone())?;
    let path = mounted.0.path.display();
    log::info!("{}: mounted on {path}", source.display());
    match readiness {
        Some(readiness) => {
            readiness.announce(&mounted.0.path)?;
            logging::leave_terminal();
        }
        None => {
            say(&printable(&format!("{} is mounted on {path}; Ctrl-C unmounts it", args.source.display())));
        }
    }
    session.run().context("lost the connection to the kernel")?;
    log::info!("{path}: unmounted");
    Ok(ExitCode::SUCCESS)
}

/// Gives up what serving does not need, and logs what the kernel makes of it.
fn enter(sandbox: Option<Sandbox>) {
    let Some(sandbox) = sandbox else { return log::info!("no sandbox") };
    let enforced = sandbox.enter();
    log::info!("sandbox: {enforced}");
    for missing in enforced.missing() {
        log::warn!("not in the sandbox: {missing}");
    }
}

/// Opens what is to be mounted, and says what of a model was left out or is not known. With it comes the sandbox in which it
/// can be served: made before the mount stands, as a link to a model may lead into that.
fn open(args: &MountArgs) -> anyhow::Result<(Superblock, Option<Sandbox>)> {
    let mode = if args.lenient { Mode::Lenient } else { Mode::Strict };
    let opened = model::open(&args.source, mode)?;
    if let Opened::Model(model) = &opened {
        model.report(&args.source);
    }
    let device = (threads(args) > 1).then_some(Path::new(DEVICE));
    let sandbox = (!args.no_sandbox).then(|| Sandbox::new(&opened.reads(), device));
    let ownership = Ownership { uid: args.uid, gid: args.gid, umask: args.umask.unwrap_or(0) };
    let superblock = Superblock::new(opened, args.views.clone().unwrap_or_default(), ownership)
        .with_context(|| format!("{}: a model of no files", args.source.display()))?;
    Ok((superblock, sandbox))
}

/// The file that says how much the kernel reads ahead; only root may write it. Written to once the kernel has been told of the
/// rest.
fn read_ahead(device: &str) -> Option<File> {
    let path = format!("/sys/class/bdi/{device}/read_ahead_kb");
    OpenOptions::new().write(true).open(&path).inspect_err(|error| log::debug!("{path}: {error}")).ok()
}

/// Has the kernel read ahead as much as it asks for at once, 1 MiB: by itself it would do 128 KiB.
fn set_read_ahead(mut file: File) {
    const KIB: &[u8] = b"1024";
    if let Err(error) = file.write_all(KIB) {
        log::debug!("read-ahead: {error}");
    }
}

/// Enough for readers side by side. One reader alone is not faster by any of them.
fn threads(args: &MountArgs) -> usize {
    args.threads.map_or(cores().clamp(2, 8), usize::from)
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
        if self.made {
            remove_directory(&self.path);
        }
    }
}

/// A mount that stands. Dropped, it is taken off.
struct Mounted(Arc<Standing>);

/// What the daemon has of its mount.
struct Standing {
    path: PathBuf,
    /// /dev/fuse.
    device: OwnedFd,
    unmounter: Unmounter,
}

impl Mounted {
    /// Takes over what was just mounted; with it comes the file that says how much the kernel reads ahead.
    fn new(mut mountpoint: Mountpoint, device: &OwnedFd, unmounter: Unmounter) -> anyhow::Result<(Self, Option<File>)> {
        let path = mountpoint.path.clone();
        let ours = |mount: &Mount| mount.path == path && mount.fstype == mounts::TYPE;
        let mount = mounts::all().ok().and_then(|all| all.into_iter().rfind(ours));
        let read_ahead = mount.as_ref().and_then(|mount| read_ahead(&mount.device));
        let told = device.try_clone().context(DEVICE).and_then(|device| {
            unmounter.stands(&Place { path: path.clone(), mount, made: mountpoint.made })?;
            Ok(Self(Arc::new(Standing { path: path.clone(), device, unmounter })))
        });
        match told {
            Ok(mounted) => {
                // The directory goes with the mount from now on.
                mountpoint.made = false;
                Ok((mounted, read_ahead))
            }
            Err(error) => {
                // This process is still free to do it.
                mounts::unmount(&path, true)?;
                Err(error)
            }
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.0.unmount() {
            log::error!("{}", reason(&error));
        }
    }
}

impl Standing {
    /// Takes our mount off and its directory away, if that was made for it; says whether it was in use, so that it had to be
    /// detached.
    fn unmount(&self) -> anyhow::Result<bool> {
        if self.is_connected() {
            self.unmounter.unmount()
        } else {
            // Taken off by somebody else: what has its number in the list by now is another.
            self.unmounter.forget().map(|()| false)
        }
    }

    /// Whether the kernel still has the file system, mounted somewhere or detached and in use. Only while it has, no other one is
    /// given its number.
    fn is_connected(&self) -> bool {
        let mut polled = [PollFd::new(self.device.as_fd(), PollFlags::empty())];
        let _ = poll(&mut polled, PollTimeout::ZERO);
        !polled[0].revents().unwrap_or(PollFlags::empty()).contains(PollFlags::POLLERR)
    }
}

/// Waits for one of `signals`, unmounts and ends the program. The session need not end by itself: the mount may have
/// users that it was detached from, by us or by `umount -l`, or a copy in another mount namespace.
fn unmount_on_signal(signals: SigSet, mount: Arc<Standing>) -> anyhow::Result<()> {
    let wait = move || {
        let path = mount.path.display();
        while let Ok(signal) = signals.wait() {
            log::info!("{path}: unmounting on {signal}");
            match mount.unmount() {
                Ok(in_use) => {
                    if in_use {
                        log::warn!("{path}: was in use; detached, and its users get errors from now on");
                    }
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
