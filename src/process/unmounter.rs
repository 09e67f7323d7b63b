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

use super::logging::reason;
use super::mounts::{self, MountInfo, UnmountOutcome};
use super::recent::{self, MessageRecorder, RecentMessages};
use super::{daemon, descriptors};
use anyhow::{Context, anyhow, bail};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::prctl::set_name;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, socketpair};
use nix::unistd::ForkResult;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;
use weightfs::fuse::{ReaderWatch, answer};

/// One of the two processes after the fork.
pub enum UnmounterFork {
    /// The process that serves the mount, with its connections to the helper.
    Daemon(Unmounter, ReaderWatch, RecentMessages),
    /// The helper.
    Helper(UnmountHelper),
}

/// Forks the helper. Call this while there is only one thread.
pub fn fork_unmounter() -> anyhow::Result<UnmounterFork> {
    let what = "cannot start the helper process";
    // Each packet is a message. An empty packet is the end of the connection.
    let (ours, theirs) =
        socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC).context(what)?;
    let (our_watch, their_watch) = UnixStream::pair().context(what)?;
    let (recent, recorder) = recent::pair().context(what)?;
    // The helper blocks all signals: they are for the daemon, even if they are sent to the process group.
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).context(what)?;
    let daemon = std::process::id();
    let forked = daemon::fork();
    if !matches!(forked, Ok(ForkResult::Child)) {
        before.thread_set_mask().context(what)?;
    }
    match forked.context(what)? {
        ForkResult::Parent { .. } => Ok(UnmounterFork::Daemon(
            Unmounter { orders: Mutex::new(ours.into()) },
            ReaderWatch::new(our_watch),
            recent,
        )),
        ForkResult::Child => {
            Ok(UnmounterFork::Helper(UnmountHelper { orders: theirs.into(), questions: their_watch, recorder, daemon }))
        }
    }
}

// The first byte of a message from the daemon. The bytes of a [`UnmountTarget`] follow `MOUNTED`.
const MOUNTED: u8 = b'm';
const UNMOUNT: u8 = b'u';
const FORGET: u8 = b'f';

// The first byte of an answer. The reason follows `FAILED`.
const DONE: u8 = b'd';
const DETACHED: u8 = b'l';
const FAILED: u8 = b'e';

/// Longest message in bytes: two paths and a few short fields.
const MESSAGE_MAX: usize = 16 << 10;

/// The daemon's end of the connection.
pub struct Unmounter {
    orders: Mutex<UnixStream>,
}

impl Unmounter {
    /// Sets the mount that the helper may unmount. It can be set only once.
    pub fn set_target(&self, target: &UnmountTarget) -> anyhow::Result<()> {
        self.order(&[&[MOUNTED], &target.to_bytes()[..]].concat()).map(drop)
    }

    /// Unmounts the mount from all its current mount points, including bind mounts, and removes the directory that was
    /// created for it. Returns whether it was in use and had to be detached.
    pub fn unmount(&self) -> anyhow::Result<bool> {
        self.order(&[UNMOUNT])
    }

    /// Removes the directory that was created for the mount. Call this if the mount is gone already.
    pub fn forget(&self) -> anyhow::Result<()> {
        self.order(&[FORGET]).map(drop)
    }

    fn order(&self, order: &[u8]) -> anyhow::Result<bool> {
        let mut socket = self.orders.lock().unwrap_or_else(PoisonError::into_inner);
        let mut answer = [0; MESSAGE_MAX];
        let len = socket.write_all(order).and_then(|()| receive_request(&mut socket, &mut answer));
        match answer.get(..len.unwrap_or(0)) {
            Some([DONE]) => Ok(false),
            Some([DETACHED]) => Ok(true),
            Some([FAILED, text @ ..]) => Err(anyhow!("{}", String::from_utf8_lossy(text))),
            _ => bail!("cannot unmount: the helper process is gone (`weightfs umount` works without it)"),
        }
    }
}

/// Time in milliseconds between two checks of the daemon.
const EVERY: u16 = 2000;

/// The event that the helper waits for.
enum UnmounterEvent {
    /// A message of this length.
    Order(usize),
    /// The daemon has ended.
    Ended,
    /// The daemon has been killed, but a thread cannot end.
    Stuck,
}

fn wait(orders: &mut UnixStream, message: &mut [u8], daemon: u32) -> UnmounterEvent {
    let mut was_ending = false;
    loop {
        if poll(&mut [PollFd::new(orders.as_fd(), PollFlags::POLLIN)], EVERY) != Ok(0) {
            return match receive_request(orders, message) {
                Ok(len @ 1..) => UnmounterEvent::Order(len),
                _ => UnmounterEvent::Ended,
            };
        }
        // The socket is closed only when the last thread has ended.
        let is_ending = main_thread_has_ended(daemon);
        if is_ending && was_ending {
            return UnmounterEvent::Stuck;
        }
        was_ending = is_ending;
    }
}

/// Whether the main thread of a process has ended. Such a process is listed as a zombie, even if threads of it remain.
fn main_thread_has_ended(process: u32) -> bool {
    let stat = std::fs::read(format!("/proc/{process}/stat")).unwrap_or_default();
    // The state follows the name, which is in parentheses and may contain any character.
    stat.rsplit(|byte| *byte == b')').next().is_some_and(|rest| rest.starts_with(b" Z"))
}

fn receive_request(socket: &mut UnixStream, message: &mut [u8]) -> io::Result<usize> {
    loop {
        match socket.read(message) {
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            received => return received,
        }
    }
}

/// The helper's end of the connection.
pub struct UnmountHelper {
    orders: UnixStream,
    questions: UnixStream,
    recorder: MessageRecorder,
    /// The process id of the daemon.
    daemon: u32,
}

impl UnmountHelper {
    /// Serves the daemon until it ends.
    pub fn serve(self) -> anyhow::Result<ExitCode> {
        let Self { mut orders, questions, recorder, daemon } = self;
        daemon::leave_terminal(&daemon::null()?)?;
        // This is also done in the foreground, because the daemon itself keeps the inherited descriptors open.
        descriptors::close_others(&[orders.as_raw_fd(), questions.as_raw_fd(), recorder.as_raw_fd()]);
        // The name in process lists. Setting it cannot fail for a valid string.
        let _ = set_name(c"weightfs-umount");
        // Unmounting may take long, so lookups of readers have their own thread. If it cannot be started, requests of
        // readers that have left are not cancelled; everything else works.
        let _ = std::thread::Builder::new().name("readers".into()).spawn(move || answer(questions));
        let messages = recorder.connection();
        let recording = std::thread::Builder::new().name("messages".into()).spawn(move || recorder.record(daemon));
        let (mut target, mut unmounted, mut abort): (Option<UnmountTarget>, _, _) = (None, false, None);
        let mut message = [0; MESSAGE_MAX];
        loop {
            let len = match wait(&mut orders, &mut message, daemon) {
                UnmounterEvent::Order(len) => len,
                UnmounterEvent::Ended => break,
                UnmounterEvent::Stuck => {
                    target.iter().for_each(|target| target.abort(abort.take()));
                    // The daemon cannot close its end of the socket, so the recording would not end.
                    let _ = messages.map(|messages| messages.shutdown(Shutdown::Both));
                    break;
                }
            };
            let done = match (&message[..len], &target) {
                ([MOUNTED, bytes @ ..], None) => {
                    target = UnmountTarget::from_bytes(bytes);
                    abort = target.as_ref().and_then(UnmountTarget::abort_file);
                    target.as_ref().map(|_| false).ok_or_else(|| anyhow!("malformed message"))
                }
                ([UNMOUNT], Some(target)) => target.unmount().inspect(|_| {
                    target.remove_directory();
                    unmounted = true;
                }),
                ([FORGET], Some(target)) => {
                    target.remove_directory();
                    unmounted = true;
                    Ok(false)
                }
                _ => Err(anyhow!("unexpected message")),
            };
            let answer = match done {
                Ok(false) => vec![DONE],
                Ok(true) => vec![DETACHED],
                Err(error) => [&[FAILED], reason(&error).as_bytes()].concat(),
            };
            if orders.write_all(&answer).is_err() {
                break;
            }
        }
        // The daemon has ended. If it did not unmount first, it was killed.
        if let Some(target) = target.filter(|target: &UnmountTarget| target.auto_unmount && !unmounted)
            && target.unmount().is_ok()
        {
            target.remove_directory();
        }
        // The last messages may not be written yet.
        let _ = recording.map(JoinHandle::join);
        Ok(ExitCode::SUCCESS)
    }
}

/// A flag that is set, in the bytes of a [`UnmountTarget`].
const SET: &[u8] = b"set";

/// The mount that the helper may unmount.
pub struct UnmountTarget {
    /// The mount point: absolute, without symlinks.
    pub path: PathBuf,
    /// The mount, which distinguishes it from others on the same directory. `None` if mountinfo cannot be read.
    pub mount: Option<MountInfo>,
    /// Whether the directory was created for the mount.
    pub made: bool,
    /// Whether to unmount when the daemon is killed.
    pub auto_unmount: bool,
}

impl UnmountTarget {
    /// The fields, separated by NUL, which none of them can contain.
    fn to_bytes(&self) -> Vec<u8> {
        let flag = |set: bool| if set { SET } else { b"" };
        let mut fields = vec![flag(self.made), flag(self.auto_unmount), self.path.as_os_str().as_bytes()];
        if let Some(MountInfo { path: _, device, fstype, source, options: _ }) = &self.mount {
            fields.extend([device.as_bytes(), fstype.as_bytes(), source.as_bytes()]);
        }
        fields.join(&0)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let fields: Vec<&[u8]> = bytes.split(|byte| *byte == 0).collect();
        let [made, auto_unmount, path, ref mount @ ..] = fields[..] else { return None };
        let path = PathBuf::from(OsString::from_vec(path.to_vec()));
        let mount = match *mount {
            [device, fstype, source] => {
                let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
                let (device, fstype, source) = (text(device), text(fstype), source.to_vec());
                let source = OsString::from_vec(source);
                Some(MountInfo { path: path.clone(), device, fstype, source, options: String::new() })
            }
            _ => None,
        };
        Some(Self { path, mount, made: made == SET, auto_unmount: auto_unmount == SET })
    }

    fn unmount(&self) -> anyhow::Result<bool> {
        let Some(ours) = &self.mount else {
            // Without mountinfo, mounts on the same directory cannot be distinguished.
            return unmount_top(&self.path);
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

    /// Aborts the connection to the daemon: all requests fail, and the mount stays until it is unmounted. Without
    /// `file`, this works for root only, and only if the mount is not detached.
    fn abort(&self, file: Option<File>) {
        if file.is_some_and(|mut file| file.write_all(b"1").is_ok()) {
            return;
        }
        let (Ok(all), Some(ours)) = (mounts::all(), &self.mount) else { return };
        let on_top = |mount: &&MountInfo| all.iter().rfind(|other| other.path == mount.path) == Some(mount);
        if let Some(mount) = all.iter().filter(|mount| mount.is_same(ours)).find(on_top) {
            mounts::abort(&mount.path);
        }
    }

    fn remove_directory(&self) {
        if self.made {
            remove_directory(&self.path);
        }
    }
}

/// Removes a directory that was created for a mount.
pub fn remove_directory(path: &Path) {
    // This fails if the directory is not empty or is a mount point again: another program uses it now.
    let _ = std::fs::remove_dir(path);
}

/// Unmounts the topmost mount at `path`; returns whether it was in use and had to be detached.
fn unmount_top(path: &Path) -> anyhow::Result<bool> {
    match mounts::unmount_mount(path, false)? {
        UnmountOutcome::Done => Ok(false),
        UnmountOutcome::Busy => mounts::unmount_mount(path, true).map(|_| true),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_round_trips_through_bytes() {
        let strange = OsString::from_vec(b"/a \n\xff,b".to_vec());
        let mount = MountInfo {
            path: strange.clone().into(),
            device: "0:41".into(),
            fstype: mounts::TYPE.into(),
            source: strange.clone(),
            options: String::new(),
        };
        for (made, mount) in [(true, Some(mount)), (false, None)] {
            let sent = UnmountTarget { path: strange.clone().into(), mount: mount.clone(), made, auto_unmount: !made };
            let received = UnmountTarget::from_bytes(&sent.to_bytes()).unwrap();
            assert_eq!((received.path, received.mount), (sent.path, mount));
            assert_eq!((received.made, received.auto_unmount), (made, !made));
        }
        assert!(UnmountTarget::from_bytes(b"set").is_none());
    }
}
