//! Asks the daemons of mounts whether they answer, and for extended attributes. A process that waits for a daemon
//! cannot always be killed, so another process asks, and this one waits for it for a limited time.

use super::mounts::MountInfo;
use super::{daemon, descriptors};
use anyhow::Context;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{ForkResult, Pid};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Whether the daemon of a mount answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DaemonHealth {
    Alive,
    /// It is gone.
    Dead,
    /// It does not answer within [`PATIENCE`].
    #[default]
    Silent,
    /// Unknown: the mount is for another user, so the kernel does not ask the daemon.
    Private,
    /// Unknown: another mount covers this one.
    Covered,
}

/// The state of the daemon of a mount.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeAnswer {
    pub health: DaemonHealth,
    /// The values of the attributes of the root that were asked for. `None` for those that it does not have.
    pub attributes: Vec<Option<Vec<u8>>>,
    /// Whether this user may not read them.
    pub is_private: bool,
}

/// The time limit for the answers of all daemons together. They answer from memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest value of an attribute that weightfs writes, in bytes. The daemon may be another program.
const VALUE_MAX: usize = 4 << 10;

/// Stack of a thread that asks, in bytes. It makes a few system calls.
const STACK: usize = 128 << 10;

/// Asks the daemons of `mounts`, some of `all` mounts, for `attributes`. The answers are in the order of `mounts`. Call
/// this while there is only one thread.
pub fn ask(mounts: &[MountInfo], all: &[MountInfo], attributes: &[&str]) -> anyhow::Result<Vec<ProbeAnswer>> {
    let mut answers: Vec<ProbeAnswer> = mounts.iter().map(|_| ProbeAnswer::default()).collect();
    let mut asked = Vec::new();
    for (at, mount) in mounts.iter().enumerate() {
        // The daemon of a mount on top may be that of another program.
        if all.iter().rfind(|other| other.path == mount.path).is_some_and(|top| top.device != mount.device) {
            answers[at].health = DaemonHealth::Covered;
        } else {
            asked.push((at, mount.path.clone()));
        }
    }
    if asked.is_empty() {
        return Ok(answers);
    }
    let (reader, writer) = pipe().context("cannot create a pipe")?;
    let null = daemon::null()?;
    match daemon::fork().context("cannot start a process that asks the mounts")? {
        ForkResult::Parent { child } => {
            drop(writer);
            collect(reader, &mut answers);
            end(child);
            Ok(answers)
        }
        ForkResult::Child => {
            descriptors::close_others(&[writer.as_raw_fd(), null.as_raw_fd()]);
            // This process may outlive the command, and whoever reads the command's output must not wait for it.
            if set_pdeathsig(Signal::SIGKILL).is_ok() && daemon::leave_terminal(&null).is_ok() {
                ask_all(asked, attributes, writer);
            }
            std::process::exit(0);
        }
    }
}

/// Sends each answer as a line. The threads that wait for a daemon end with this process, or with that daemon.
fn ask_all(asked: Vec<(usize, PathBuf)>, attributes: &[&str], writer: PipeWriter) {
    let attributes: Arc<[String]> = attributes.iter().map(|name| (*name).to_owned()).collect();
    let writer = Arc::new(Mutex::new(writer));
    let mut threads = Vec::new();
    for (at, path) in asked {
        let (attributes, writer) = (attributes.clone(), writer.clone());
        let work = move || {
            let Ok(mut line) = serde_json::to_vec(&(at, answer(&path, &attributes))) else { return };
            line.push(b'\n');
            // If the command has ended, nobody needs the answer.
            let _ = writer.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
        };
        // Without the thread, this daemon counts as silent.
        threads.extend(std::thread::Builder::new().stack_size(STACK).spawn(work));
    }
    for thread in threads {
        let _ = thread.join();
    }
}

/// Waits for the daemon of the mount at `path`.
fn answer(path: &Path, attributes: &[String]) -> ProbeAnswer {
    // stat(2) is not used, because the kernel may answer it from its cache.
    let health = match statvfs(path) {
        Err(Errno::ENOTCONN) => DaemonHealth::Dead,
        Err(Errno::EACCES) => DaemonHealth::Private,
        // An error is an answer too.
        _ => DaemonHealth::Alive,
    };
    let mut answer = ProbeAnswer { health, attributes: Vec::new(), is_private: health == DaemonHealth::Private };
    if health == DaemonHealth::Alive {
        for name in attributes {
            let value = xattr::get(path, name);
            answer.is_private |= value.as_ref().is_err_and(|error| error.kind() == ErrorKind::PermissionDenied);
            answer.attributes.push(value.ok().flatten().filter(|value| value.len() <= VALUE_MAX));
        }
    }
    answer
}

/// Receives answers until all have arrived or the time is up.
fn collect(mut reader: PipeReader, answers: &mut [ProbeAnswer]) {
    let deadline = Instant::now() + PATIENCE;
    let mut received = Vec::new();
    let mut part = [0; 64 << 10];
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let mut polled = [PollFd::new(reader.as_fd(), PollFlags::POLLIN)];
        match poll(&mut polled, PollTimeout::try_from(left).unwrap_or(PollTimeout::ZERO)) {
            Err(Errno::EINTR) => continue,
            Ok(1..) => {}
            _ => break,
        }
        match reader.read(&mut part) {
            Ok(0) => break,
            Ok(len) => received.extend_from_slice(&part[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    // The last line may be incomplete.
    for line in received.split(|byte| *byte == b'\n') {
        if let Ok((at, answer)) = serde_json::from_slice::<(usize, ProbeAnswer)>(line)
            && let Some(place) = answers.get_mut(at)
        {
            *place = answer;
        }
    }
}

/// Ends the process that asks. If it cannot be killed, it is left behind.
fn end(child: Pid) {
    let _ = kill(child, Signal::SIGKILL);
    let _ = waitpid(child, Some(WaitPidFlag::WNOHANG));
}
