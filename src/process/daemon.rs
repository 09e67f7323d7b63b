//! Forking the daemon. The command returns to the shell when the daemon is ready or has failed.

use super::{descriptors, secrets, signals};
use anyhow::{Context, bail};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::signalfd::SignalFd;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, setsid};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, PipeReader, PipeWriter, Read, Write, pipe};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

pub enum ForkedProcess {
    /// The process that the shell waits for.
    Command(ReadinessWait),
    /// The process that answers the requests of the kernel.
    Daemon(Readiness),
}

/// The command's end of the pipe from the daemon.
///
/// The daemon sends either the path of the mount and what it shows, each with a final NUL, or NUL and the number of the
/// signal that ends it. If it ends without a message, it has printed the reason.
pub struct ReadinessWait {
    pipe: PipeReader,
    received: Vec<u8>,
    is_closed: bool,
    child: Pid,
    pending: SignalFd,
}

/// The daemon's end of the pipe. If it is closed without a message, the daemon has failed.
pub struct Readiness {
    pipe: PipeWriter,
    null: File,
}

/// Forks the daemon, and closes the descriptors that it inherited, except the standard streams and `kept`. Call this
/// while there is only one thread, and `signals` are blocked.
pub fn fork_daemon(signals: &SigSet, kept: &[RawFd]) -> anyhow::Result<ForkedProcess> {
    let (reader, writer) = pipe().context("cannot create a pipe")?;
    // The daemon cannot open it later, in the sandbox.
    let null = null()?;
    match fork().context("cannot go to the background")? {
        ForkResult::Parent { child } => {
            let pending = signals::pending(signals)?;
            let (received, is_closed) = Default::default();
            Ok(ForkedProcess::Command(ReadinessWait { pipe: reader, received, is_closed, child, pending }))
        }
        ForkResult::Child => {
            drop(reader);
            let secrets: Vec<RawFd> = secrets::socket_number().into_iter().collect();
            descriptors::close_others(&[kept, &secrets, &[writer.as_raw_fd(), null.as_raw_fd()]].concat());
            Ok(ForkedProcess::Daemon(Readiness { pipe: writer, null }))
        }
    }
}

/// fork(2). Call this while there is only one thread.
pub fn fork() -> nix::Result<ForkResult> {
    // SAFETY: `cmd::mount::run_mount` and `probe::ask` fork before anything in this program starts a thread. So no lock
    // is held by a thread that does not exist in the child.
    #[allow(unsafe_code)]
    unsafe {
        nix::unistd::fork()
    }
}

pub fn null() -> anyhow::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null").context("/dev/null")
}

/// Leaves the terminal and the current directory, and redirects the standard streams to `null`. Signals from the
/// terminal do not reach this process any more, and programs that read its output do not wait for it.
pub fn leave_terminal(null: &File) -> anyhow::Result<()> {
    setsid().context("cannot leave the terminal's session")?;
    std::env::set_current_dir("/").context("cannot leave the directory")?;
    // The descriptors are replaced, not closed, so that no other file gets their numbers.
    dup2_stdin(null)?;
    dup2_stdout(null)?;
    dup2_stderr(null)?;
    Ok(())
}

impl ReadinessWait {
    /// Waits for the daemon. Returns the path and the summary that it announced, or its exit code if it failed and has
    /// printed the reason. If a signal arrives, ends the daemon and this process.
    pub fn wait(&mut self) -> anyhow::Result<Result<(PathBuf, String), ExitCode>> {
        while !self.is_closed {
            if let Some(signal) = self.receive(PollTimeout::NONE)? {
                self.end_both(signal);
            }
            if let Some(signal) = self.ended_by() {
                signals::end_by(signal);
            }
            let mut fields = self.received.split(|byte| *byte == 0);
            if let (Some(path), Some(summary), Some([])) = (fields.next(), fields.next(), fields.next()) {
                let path = PathBuf::from(OsString::from_vec(path.to_vec()));
                return Ok(Ok((path, String::from_utf8_lossy(summary).into_owned())));
            }
        }
        match waitpid(self.child, None).context("cannot wait for the background process")? {
            WaitStatus::Exited(_, code) => Ok(Err(ExitCode::from(u8::try_from(code).unwrap_or(1)))),
            WaitStatus::Signaled(_, signal, _) => {
                bail!("the background process was killed by {signal} before the mount was ready")
            }
            _ => bail!("the background process died before the mount was ready"),
        }
    }

    /// If a signal has arrived, ends the daemon and this process. Call this last, so that such a command leaves no
    /// mount.
    pub fn end_on_signal(&mut self) {
        if let Some(signal) = signals::take(&self.pending) {
            self.end_both(signal);
        }
    }

    /// Passes a signal to the daemon, waits for its end or for a second signal, and ends by the same signal.
    fn end_both(&mut self, signal: Signal) -> ! {
        // The child is not reaped yet, so no other process has its number.
        let _ = kill(self.child, signal);
        while waitpid(self.child, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive) {
            if self.is_closed {
                std::thread::sleep(Duration::from_millis(1));
            }
            let timeout = if self.is_closed { 0u8 } else { 10 };
            // A thread of the daemon may still wait for a source when nothing is mounted any more.
            if self.receive(timeout.into()).map_or(true, |second| second.is_some()) || self.ended_by().is_some() {
                break;
            }
        }
        signals::end_by(signal)
    }

    /// The signal that ends the daemon before it has mounted anything, if it has sent one.
    fn ended_by(&self) -> Option<Signal> {
        let [0, signal] = self.received[..] else { return None };
        Signal::try_from(i32::from(signal)).ok()
    }

    /// Waits until the daemon sends something or closes its end of the pipe. Returns a signal that arrives.
    fn receive(&mut self, timeout: PollTimeout) -> anyhow::Result<Option<Signal>> {
        let mut polled = [self.pending.as_fd(), self.pipe.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let _ = poll(&mut polled, timeout);
        let is_sent = polled[1].any() == Some(true);
        if let Some(signal) = signals::take(&self.pending) {
            return Ok(Some(signal));
        }
        if is_sent {
            let mut part = [0; 4096];
            match self.pipe.read(&mut part) {
                Ok(len) => {
                    self.is_closed = len == 0;
                    self.received.extend_from_slice(&part[..len]);
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error).context("cannot read from the background process"),
            }
        }
        Ok(None)
    }
}

impl Readiness {
    /// A function that reports to the waiting process which signal ends this one. Call it only if nothing is mounted.
    pub fn report_end(&self) -> io::Result<impl FnOnce(Signal) + Send + use<>> {
        let mut pipe = self.pipe.try_clone()?;
        Ok(move |signal: Signal| drop(pipe.write_all(&[0, signal as u8])))
    }

    /// Leaves the terminal, and sends `path` and what was mounted in words to the waiting process.
    pub fn announce(mut self, path: &Path, summary: &str) -> anyhow::Result<()> {
        leave_terminal(&self.null)?;
        // No path contains NUL.
        let message = [path.as_os_str().as_bytes(), summary.as_bytes(), b""].join(&0);
        self.pipe.write_all(&message).context("the waiting command is gone")
    }
}
