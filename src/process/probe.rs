//! Asks the daemons of mounts whether they answer, and for extended attributes. A process that waits for a daemon
//! cannot always be killed, so another process asks, and this one waits for it for a limited time.

use super::mounts::MountInfo;
use super::{daemon, descriptors};
use anyhow::Context;
use nix::errno::Errno;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::sys::statvfs::statvfs;
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::ForkResult;
use serde::{Deserialize, Serialize};
use std::io::{BufRead, BufReader, ErrorKind, PipeReader, PipeWriter, Write, pipe};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum DaemonHealth {
    Alive,
    Dead,
    /// It does not answer within [`PATIENCE`].
    #[default]
    Silent,
    /// Unknown: the mount is for another user, so the kernel does not ask the daemon.
    Private,
    /// Unknown: another mount covers this one.
    Covered,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeAnswer {
    pub health: DaemonHealth,
    /// The values of the attributes of the root that were asked for. `None` for those that it does not have.
    pub attributes: Vec<Option<Vec<u8>>>,
    pub is_private: bool,
}

/// The time limit for the answers of all daemons together. They answer from memory.
const PATIENCE: Duration = Duration::from_secs(5);

/// Longest value of an attribute that weightfs writes, in bytes. The daemon may be another program.
const VALUE_MAX: usize = 4 << 10;

/// Stack of a thread that asks, in bytes. It makes a few system calls.
const STACK: usize = 128 << 10;

/// Asks the daemons of `mounts`, some of `all`, for `attributes`. Call this while there is only one thread.
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
            collect_answers(reader, &mut answers);
            // If the process cannot be killed, it is left behind.
            let _ = kill(child, Signal::SIGKILL);
            let _ = waitpid(child, Some(WaitPidFlag::WNOHANG));
            Ok(answers)
        }
        ForkResult::Child => {
            descriptors::close_others(&[writer.as_raw_fd(), null.as_raw_fd()]);
            // This process may outlive the command, and whoever reads the command's output must not wait for it.
            if set_pdeathsig(Signal::SIGKILL).is_ok() && daemon::leave_terminal(&null).is_ok() {
                ask_all(&asked, attributes, &Mutex::new(writer));
            }
            std::process::exit(0);
        }
    }
}

/// Sends each answer as a line. The threads that wait for a daemon end with this process, or with that daemon.
fn ask_all(asked: &[(usize, PathBuf)], attributes: &[&str], writer: &Mutex<PipeWriter>) {
    std::thread::scope(|scope| {
        for (at, path) in asked {
            // Without the thread, this daemon counts as silent.
            let _ = std::thread::Builder::new().stack_size(STACK).spawn_scoped(scope, move || {
                let Ok(mut line) = serde_json::to_vec(&(at, answer(path, attributes))) else { return };
                line.push(b'\n');
                // If the command has ended, nobody needs the answer.
                let _ = writer.lock().unwrap_or_else(PoisonError::into_inner).write_all(&line);
            });
        }
    });
}

/// Waits for the daemon of the mount at `path`.
fn answer(path: &Path, attributes: &[&str]) -> ProbeAnswer {
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
fn collect_answers(reader: PipeReader, answers: &mut [ProbeAnswer]) {
    let deadline = Instant::now() + PATIENCE;
    let (sender, lines) = mpsc::channel();
    // The thread ends with the process that asks, or with this one.
    let receiving = std::thread::Builder::new()
        .spawn(move || BufReader::new(reader).split(b'\n').map_while(Result::ok).all(|line| sender.send(line).is_ok()));
    while receiving.is_ok()
        && let Ok(line) = lines.recv_timeout(deadline.saturating_duration_since(Instant::now()))
    {
        // The last line may be incomplete.
        if let Ok((at, answer)) = serde_json::from_slice::<(usize, ProbeAnswer)>(&line)
            && let Some(place) = answers.get_mut(at)
        {
            *place = answer;
        }
    }
}
