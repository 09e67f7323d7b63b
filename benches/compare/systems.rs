//! The systems: how each is mounted, awaited and unmounted. No mount or process outlives the program.

use crate::inputs::Input;
use anyhow::{Context, bail};
use nix::errno::Errno;
use nix::libc;
use nix::mount::{MntFlags, umount2};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::{Pid, geteuid};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::{Duration, Instant};

pub const WEIGHTFS: &str = env!("CARGO_BIN_EXE_weightfs");

/// Another build of weightfs to compare with.
pub static BEFORE: OnceLock<PathBuf> = OnceLock::new();

/// The second user: the user ID of `nobody`, which exists on every system and owns nothing.
const NOBODY: u32 = 65534;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum System {
    Native,
    Weightfs,
    /// Another build of weightfs, given with `--before`.
    Before,
    /// weightfs, mounted and read by a second user.
    User,
    Squashfuse,
    Ratarmount,
    FuseZip,
}

impl System {
    pub const ALL: [Self; 7] =
        [Self::Native, Self::Weightfs, Self::Before, Self::User, Self::Squashfuse, Self::Ratarmount, Self::FuseZip];

    pub fn name(self) -> &'static str {
        match self {
            Self::Native => "native",
            Self::Weightfs => "weightfs",
            Self::Before => "before",
            Self::User => "by user",
            Self::Squashfuse => "squash",
            Self::Ratarmount => "ratar",
            Self::FuseZip => "fuse-zip",
        }
    }

    pub fn is_weightfs(self) -> bool {
        matches!(self, Self::Weightfs | Self::Before | Self::User)
    }

    /// Whether it can be measured: [`Self::User`] requires root, and [`Self::Before`] requires `--before`.
    pub fn is_available(self) -> bool {
        match self {
            Self::User => geteuid().is_root(),
            Self::Before => BEFORE.get().is_some(),
            _ => true,
        }
    }

    /// The weightfs program to run.
    pub fn weightfs(self) -> &'static Path {
        BEFORE.get().filter(|_| self == Self::Before).map_or(Path::new(WEIGHTFS), PathBuf::as_path)
    }

    /// The directory of the tensors, relative to the mount point; `view` applies to weightfs only.
    pub fn dir(self, view: &str) -> &str {
        if self.is_weightfs() { view } else { "" }
    }

    /// The command that mounts `input` on `point`; `None` for native files.
    pub fn command(self, site: &Site, input: &Input, point: &Path, args: &[&str], foreground: bool) -> Option<Command> {
        let mut command = match self {
            Self::Native => return None,
            Self::Weightfs | Self::Before | Self::User => Command::new(self.weightfs()),
            Self::Squashfuse => Command::new("squashfuse_ll"),
            Self::Ratarmount => Command::new(&site.ratarmount),
            Self::FuseZip => Command::new("fuse-zip"),
        };
        if foreground {
            command.arg("-f");
        }
        match self {
            Self::Native => {}
            Self::Weightfs | Self::Before | Self::User => drop(command.args(args).arg(input.model())),
            Self::Squashfuse => drop(command.arg(input.squashfs())),
            Self::Ratarmount => drop(command.arg("--index-file").arg(input.tar_index()).arg(input.tar())),
            Self::FuseZip => drop(command.arg("-r").arg(input.zip())),
        }
        command.arg(point);
        self.as_its_user(&mut command);
        Some(command)
    }

    /// Makes `command` run as the user who owns the mount.
    pub fn as_its_user(self, command: &mut Command) {
        if self == Self::User {
            command.uid(NOBODY).gid(NOBODY);
        }
    }

    /// Changes this thread to the user who owns the mount, permanently.
    pub fn become_its_user(self) -> anyhow::Result<()> {
        if self == Self::User {
            // The libc functions would change every thread, and the other threads must stay root.
            let call = |number, arguments: [u32; 3]| {
                let [a, b, c] = arguments;
                // SAFETY: the arguments are numbers, or null with a length of 0: the kernel accesses no memory of ours.
                #[allow(unsafe_code)]
                Errno::result(unsafe { libc::syscall(number, a, b, c) })
            };
            call(libc::SYS_setgroups, [0; 3])?;
            call(libc::SYS_setresgid, [NOBODY; 3])?;
            call(libc::SYS_setresuid, [NOBODY; 3])?;
        }
        Ok(())
    }
}

/// A temporary directory for mount points. Daemons are found by its path, which is in the command line of each.
pub struct Site {
    dir: PathBuf,
    /// A temporary directory on the disk of the inputs. It is removed with all that it contains, so nothing is mounted
    /// in it.
    pub scratch: PathBuf,
    pub ratarmount: PathBuf,
}

impl Site {
    /// Makes the directories, one of them in `cache`, and a thread that cleans them up on SIGINT, SIGTERM and SIGHUP.
    /// Must be called before any thread is started, because threads inherit the signal mask.
    pub fn new(cache: &Path, ratarmount: PathBuf) -> anyhow::Result<Self> {
        let mut signals = SigSet::empty();
        [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].into_iter().for_each(|signal| signals.add(signal));
        signals.thread_block()?;
        let dir = tempfile::Builder::new().prefix("weightfs-bench-").tempdir()?.keep();
        std::fs::set_permissions(&dir, std::os::unix::fs::PermissionsExt::from_mode(0o755))?;
        std::fs::create_dir_all(cache)?;
        let scratch = tempfile::Builder::new().prefix("scratch-").tempdir_in(cache)?.keep();
        let doomed = (dir.clone(), scratch.clone());
        thread::spawn(move || {
            let _ = signals.wait();
            // A daemon that was killed by the first pass may have mounted before it died.
            sweep(&doomed.0, &doomed.1);
            sweep(&doomed.0, &doomed.1);
            std::process::exit(130);
        });
        Ok(Self { dir, scratch, ratarmount })
    }

    /// The mount point of a system; made if missing.
    pub fn point(&self, system: System) -> anyhow::Result<PathBuf> {
        let name = format!("{system:?}").to_lowercase();
        let is_new = !self.dir.join(&name).exists();
        let point = self.named(&name)?;
        if is_new && system == System::User {
            std::os::unix::fs::chown(&point, Some(NOBODY), Some(NOBODY))?;
        }
        Ok(point)
    }

    /// The mount point with this name; made if missing.
    pub fn named(&self, name: &str) -> anyhow::Result<PathBuf> {
        let point = self.dir.join(name);
        if !point.exists() {
            std::fs::create_dir(&point)?;
        }
        Ok(point)
    }

    /// The file with the messages of the last daemon.
    pub fn log(&self) -> PathBuf {
        self.dir.join("log")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        sweep(&self.dir, &self.scratch);
    }
}

/// Unmounts everything under `dir`, kills all processes with `dir` or `scratch` in their command line, and removes
/// both.
fn sweep(dir: &Path, scratch: &Path) {
    for point in mounts().filter(|point| point.starts_with(dir)) {
        unmount(&point);
    }
    processes(dir).into_iter().chain(processes(scratch)).for_each(end);
    let _ = std::fs::remove_dir_all(scratch);
    let _ = std::fs::remove_file(dir.join("log"));
    // Not recursively: the entries are mount points, and empty when they are unmounted.
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let _ = std::fs::remove_dir(entry.path());
    }
    let _ = std::fs::remove_dir(dir);
}

/// All mount points, in the order of the mount table.
pub fn mounts() -> impl Iterator<Item = PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let points: Vec<_> = table.lines().filter_map(|line| Some(line.split(' ').nth(4)?.into())).collect();
    points.into_iter()
}

/// The IDs of processes with `path` in their command line.
pub fn processes(path: &Path) -> Vec<u32> {
    let has_path =
        |cmdline: Vec<u8>| cmdline.windows(path.as_os_str().len()).any(|part| part == path.as_os_str().as_bytes());
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(has_path)).collect()
}

pub fn unmount(point: &Path) {
    if geteuid().is_root() {
        if umount2(point, MntFlags::empty()).is_err() {
            let _ = umount2(point, MntFlags::MNT_DETACH);
        }
    } else {
        let _ = Command::new("fusermount3").args([OsStr::new("-uz"), point.as_os_str()]).status();
    }
}

/// Unmounts, and waits until the daemon has exited; kills it after 5 s. The daemon need not be a child.
pub fn unmount_daemon(point: &Path) {
    unmount(point);
    let start = Instant::now();
    while !processes(point).is_empty() {
        if start.elapsed() > Duration::from_secs(5) {
            processes(point).into_iter().for_each(end);
            return;
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// A mount that is served by a child process.
pub struct Mounted {
    pub point: PathBuf,
    child: Option<Child>,
}

impl Mounted {
    /// Mounts, and waits until the mount table shows it. Native files need no mount.
    pub fn new(site: &Site, system: System, input: &Input, args: &[&str], limit: Duration) -> anyhow::Result<Self> {
        let point = site.point(system)?;
        let Some(mut command) = system.command(site, input, &point, args, true) else {
            return Ok(Self { point: input.native(), child: None });
        };
        let log = site.log();
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?).process_group(0);
        let child = command.spawn().with_context(|| command.get_program().display().to_string())?;
        let mut mounted = Self { point, child: Some(child) };
        let start = Instant::now();
        while !mounts().any(|mount| mount == mounted.point) {
            if let Some(status) = mounted.child.as_mut().map(Child::try_wait).transpose()?.flatten() {
                let log = std::fs::read_to_string(log)?;
                bail!("the daemon ended without mounting, {status}: {}", log.lines().last().unwrap_or_default());
            }
            if start.elapsed() > limit {
                bail!("not mounted after {} s", limit.as_secs());
            }
            thread::sleep(Duration::from_millis(1));
        }
        Ok(mounted)
    }

    /// The process ID of the daemon.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(child) = &mut self.child else { return };
        if mounts().any(|mount| mount == self.point) {
            unmount(&self.point);
        }
        // A daemon exits when it is unmounted. One that has not mounted yet must be killed.
        let start = Instant::now();
        while matches!(child.try_wait(), Ok(None)) {
            if start.elapsed() > Duration::from_secs(2) {
                let _ = child.kill();
                let _ = child.wait();
                break;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs `job` in a new thread. After `limit`, calls `give_up`, which must make `job` end, and returns `None`.
pub fn within<T: Send>(
    limit: Duration,
    give_up: impl Fn(),
    job: impl FnOnce() -> anyhow::Result<T> + Send,
) -> anyhow::Result<Option<T>> {
    thread::scope(|scope| {
        let (done, result) = mpsc::channel();
        scope.spawn(move || drop(done.send(job())));
        match result.recv_timeout(limit) {
            Ok(result) => result.map(Some),
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("a measurement panicked"),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                give_up();
                Ok(None)
            }
        }
    })
}

/// Kills a process with SIGKILL.
pub fn end(pid: u32) {
    let _ = kill(Pid::from_raw(pid as i32), Signal::SIGKILL);
}

/// Runs a program that must succeed.
pub fn run(command: &mut Command) -> anyhow::Result<()> {
    let status = command.status().with_context(|| command.get_program().display().to_string())?;
    if !status.success() {
        bail!("{}: {status}", command.get_program().display());
    }
    Ok(())
}
