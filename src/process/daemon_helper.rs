//! The helper process outside the sandbox. It does what the sandboxed daemon cannot do: it unmounts, looks up readers
//! in /proc, and writes the file of the last messages.
//!
//! The helper is forked before the model and /dev/fuse are opened. If it held a descriptor of /dev/fuse, readers would
//! wait forever after the daemon was killed. Before the daemon enters the sandbox, it sets the one mount that the
//! helper may unmount; this cannot be changed later. The helper ends with the daemon; with `--auto-unmount`, it first
//! removes the mount of a killed daemon.
//!
//! A thread that waits for a hanging file system cannot be killed. A killed daemon with such a thread keeps /dev/fuse
//! open, so the helper then aborts the connection of the mount, and its readers get an error.

use super::descriptors::{packet_pair, receive_packet};
use super::logging::reason;
use super::mounts::{self, MountInfo};
use super::recent::{self, RecentMessages};
use super::{daemon, descriptors};
use anyhow::{Context, anyhow, bail};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::prctl::set_name;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::unistd::ForkResult;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use weightfs::fuse::{ReaderWatch, answer_reader_queries};

pub enum HelperFork {
    /// The process that answers the requests of the kernel, with its connections to the helper.
    Daemon(DaemonHelper, Arc<ReaderWatch>, RecentMessages),
    Helper(UnmountHelper),
}

/// Forks the helper. Call this while there is only one thread.
pub fn fork_helper() -> anyhow::Result<HelperFork> {
    let what = "cannot start the helper process";
    let (ours, theirs) = packet_pair().context(what)?;
    let (our_watch, their_watch) = UnixStream::pair().context(what)?;
    let (recent, messages) = recent::message_pair().context(what)?;
    // The helper blocks all signals: they are for the daemon, even if they are sent to the process group.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).context(what)?;
    let daemon = std::process::id();
    let forked = daemon::fork();
    if !matches!(forked, Ok(ForkResult::Child)) {
        before.thread_set_mask().context(what)?;
    }
    match forked.context(what)? {
        ForkResult::Parent { .. } => {
            Ok(HelperFork::Daemon(DaemonHelper(Mutex::new(ours)), ReaderWatch::new(our_watch), recent))
        }
        ForkResult::Child => {
            Ok(HelperFork::Helper(UnmountHelper { orders: theirs, questions: their_watch, messages, daemon }))
        }
    }
}

/// A message from the daemon.
#[derive(Serialize, Deserialize)]
pub enum UnmountOrder {
    /// Sets the mount that the helper may unmount. It can be set only once.
    SetTarget(UnmountTarget),
    /// Unmounts it from all its mount points, bind mounts included, and removes the directory that was created for it.
    Unmount,
    /// Removes that directory. For a mount that is gone already.
    Forget,
}

/// The answer to a message: whether the mount was in use and had to be detached, or why the order was not carried out.
type UnmountAnswer = Result<bool, String>;

/// Longest message in bytes. Each byte of a path takes up to four.
const MESSAGE_MAX: usize = 64 << 10;

/// The daemon's end of the connection.
pub struct DaemonHelper(Mutex<UnixStream>);

impl DaemonHelper {
    /// Returns whether the mount was in use and had to be detached.
    pub fn order(&self, order: &UnmountOrder) -> anyhow::Result<bool> {
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let order = serde_json::to_vec(order)?;
        let mut answer = vec![0; MESSAGE_MAX];
        let len = socket.write_all(&order).and_then(|()| receive_packet(&mut socket, &mut answer));
        match serde_json::from_slice::<UnmountAnswer>(&answer[..len.unwrap_or(0)]) {
            Ok(answer) => answer.map_err(|text| anyhow!(text)),
            Err(_) => bail!("cannot unmount: the helper process is gone (`weightfs umount` works without it)"),
        }
    }
}

/// Time in milliseconds between two checks of the daemon.
const EVERY: u16 = 2000;

/// Whether the main thread of a process has ended. Such a process is listed as a zombie, even if threads of it remain.
fn main_thread_has_ended(process: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses and may contain any character.
    stat.rsplit(|byte| *byte == b')').next().is_some_and(|rest| rest.starts_with(b" Z"))
}

/// The helper's end of the connection.
pub struct UnmountHelper {
    orders: UnixStream,
    questions: UnixStream,
    messages: UnixStream,
    /// The process id of the daemon.
    daemon: u32,
}

impl UnmountHelper {
    /// Carries out what the daemon orders, until the daemon ends.
    pub fn run(self) -> anyhow::Result<ExitCode> {
        let Self { mut orders, questions, messages, daemon } = self;
        daemon::leave_terminal(&daemon::null()?)?;
        // This is also done in the foreground, because the daemon itself keeps the inherited descriptors open.
        descriptors::close_others(&[orders.as_raw_fd(), questions.as_raw_fd(), messages.as_raw_fd()]);
        // The name in process lists. Setting it cannot fail for a valid string.
        let _ = set_name(c"weightfs-umount");
        // Unmounting may take long, so lookups of readers have their own thread. If it cannot be started, requests of
        // readers that have left are not cancelled; everything else works.
        let _ = std::thread::Builder::new().name("readers".into()).spawn(move || answer_reader_queries(questions));
        let mut helper = HelperState { messages: messages.try_clone().ok(), ..HelperState::default() };
        let recording = std::thread::Builder::new().name("messages".into());
        let recording = recording.spawn(move || recent::record_messages(messages, daemon));
        let mut message = vec![0; MESSAGE_MAX];
        while let len @ 1.. = helper.receive(&mut orders, &mut message, daemon) {
            let order = serde_json::from_slice(&message[..len]).context("malformed message");
            let answer: UnmountAnswer = order.and_then(|order| helper.obey(order)).map_err(|error| reason(&error));
            if orders.write_all(&serde_json::to_vec(&answer)?).is_err() {
                break;
            }
        }
        // The daemon has ended. If it did not unmount first, it was killed.
        if helper.target.as_ref().is_some_and(|target| target.auto_unmount) && !helper.is_gone {
            let _ = helper.obey(UnmountOrder::Unmount);
        }
        // The last messages may not be written yet.
        let _ = recording.map(JoinHandle::join);
        Ok(ExitCode::SUCCESS)
    }
}

/// The duties of the helper for the mount of its daemon.
#[derive(Default)]
struct HelperState {
    target: Option<UnmountTarget>,
    /// The file in sysfs that aborts the connection of the mount.
    abort: Option<File>,
    /// The connection with the messages of the daemon.
    messages: Option<UnixStream>,
    /// Whether the mount is gone, as far as the daemon has ordered.
    is_gone: bool,
}

impl HelperState {
    /// Waits for a message. Returns its length: 0 when the daemon has ended.
    fn receive(&mut self, orders: &mut UnixStream, message: &mut [u8], daemon: u32) -> usize {
        let mut was_ending = false;
        while poll(&mut [PollFd::new(orders.as_fd(), PollFlags::POLLIN)], EVERY) == Ok(0) {
            // The daemon closes its ends of the sockets only when its last thread has ended, and a thread may hang.
            let is_ending = main_thread_has_ended(daemon);
            if is_ending && was_ending {
                self.abort();
                let _ = self.messages.take().map(|messages| messages.shutdown(Shutdown::Both));
                return 0;
            }
            was_ending = is_ending;
        }
        receive_packet(orders, message).unwrap_or(0)
    }

    fn obey(&mut self, order: UnmountOrder) -> anyhow::Result<bool> {
        let in_use = match (order, &self.target) {
            (UnmountOrder::SetTarget(target), None) => {
                self.abort = target.abort_file();
                self.target = Some(target);
                return Ok(false);
            }
            (UnmountOrder::Unmount, Some(target)) => target.unmount()?,
            (UnmountOrder::Forget, Some(_)) => false,
            _ => bail!("unexpected message"),
        };
        if let Some(target) = self.target.as_ref().filter(|target| target.made) {
            remove_directory(Path::new(&target.path));
        }
        self.is_gone = true;
        Ok(in_use)
    }

    /// Aborts the connection to the daemon: all requests fail, and the mount stays until it is unmounted. Without the
    /// file, this works for root only, and only if the mount is not detached.
    fn abort(&mut self) {
        if self.abort.take().is_some_and(|mut file| file.write_all(b"1").is_ok()) {
            return;
        }
        let Some(ours) = self.target.as_ref().and_then(|target| target.mount.as_ref()) else { return };
        let Ok(all) = mounts::all() else { return };
        let on_top = |mount: &&MountInfo| all.iter().rfind(|other| other.path == mount.path) == Some(mount);
        if let Some(mount) = all.iter().filter(|mount| mount.is_same(ours)).find(on_top) {
            mounts::abort(&mount.path);
        }
    }
}

/// The mount that the helper may unmount.
#[derive(Serialize, Deserialize)]
pub struct UnmountTarget {
    /// The mount point: absolute, without symlinks.
    pub path: OsString,
    /// The mount, which distinguishes it from others on the same directory. `None` if mountinfo cannot be read.
    pub mount: Option<MountInfo>,
    /// Whether the directory was created for the mount.
    pub made: bool,
    /// Whether to unmount when the daemon is killed.
    pub auto_unmount: bool,
}

impl UnmountTarget {
    fn unmount(&self) -> anyhow::Result<bool> {
        let Some(ours) = &self.mount else {
            // Without mountinfo, mounts on the same directory cannot be distinguished.
            return unmount_top(Path::new(&self.path));
        };
        let all = mounts::all()?;
        let mut in_use = false;
        for (at, mount) in all.iter().enumerate().rev().filter(|(_, mount)| mount.is_same(ours)) {
            if all[at + 1..].iter().any(|above| above.path == mount.path && !above.is_same(ours)) {
                bail!("{}: something else is mounted over it; unmount that first", mount.path.display());
            }
            in_use |= unmount_top(&mount.path)?;
        }
        Ok(in_use)
    }

    /// The file in sysfs that aborts the connection of the mount. It belongs to the user who mounted. It refers to this
    /// mount even if another one has the same device number later.
    fn abort_file(&self) -> Option<File> {
        let (_, number) = self.mount.as_ref()?.device.split_once(':')?;
        let path = format!("/sys/fs/fuse/connections/{}/abort", number.parse::<u32>().ok()?);
        OpenOptions::new().write(true).open(path).ok()
    }
}

/// Removes a directory that was created for a mount.
pub fn remove_directory(path: &Path) {
    // This fails if the directory is not empty or is a mount point again: another program uses it now.
    let _ = std::fs::remove_dir(path);
}

/// Unmounts the topmost mount at `path`; returns whether it was in use and had to be detached.
fn unmount_top(path: &Path) -> anyhow::Result<bool> {
    let is_busy = mounts::unmount_mount(path, false)?;
    if is_busy {
        mounts::unmount_mount(path, true)?;
    }
    Ok(is_busy)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStringExt;

    #[test]
    fn order_round_trips_and_the_longest_one_fits() {
        let strange = OsString::from_vec(b"/a \n\xff,b".to_vec());
        let longest = OsString::from_vec(vec![0xff; 4096]);
        for (made, path) in [(true, strange), (false, longest)] {
            let (device, fstype) = ("0:41".to_owned(), mounts::TYPE.to_owned());
            let mount = MountInfo { path: "".into(), device, fstype, source: path.clone(), options: String::new() };
            for mount in [Some(mount), None] {
                let sent = UnmountTarget { path: path.clone(), mount: mount.clone(), made, auto_unmount: !made };
                let bytes = serde_json::to_vec(&UnmountOrder::SetTarget(sent)).unwrap();
                assert!(bytes.len() <= MESSAGE_MAX);
                let Ok(UnmountOrder::SetTarget(received)) = serde_json::from_slice(&bytes) else { panic!() };
                assert_eq!((received.path, received.mount), (path.clone(), mount));
                assert_eq!((received.made, received.auto_unmount), (made, !made));
            }
        }
    }

    #[test]
    fn target_is_set_only_once() {
        let target = || UnmountTarget { path: "/nowhere".into(), mount: None, made: false, auto_unmount: false };
        let mut helper = HelperState::default();
        assert!(helper.obey(UnmountOrder::Unmount).is_err() && helper.obey(UnmountOrder::Forget).is_err());
        assert!(matches!(helper.obey(UnmountOrder::SetTarget(target())), Ok(false)));
        assert!(helper.obey(UnmountOrder::SetTarget(target())).is_err());
        assert!(matches!(helper.obey(UnmountOrder::Forget), Ok(false)));
        assert!(helper.obey(UnmountOrder::SetTarget(target())).is_err());
    }
}
