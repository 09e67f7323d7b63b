//! Forking the daemon. The command returns to the shell when the daemon is ready or has failed.

use anyhow::Context;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, setsid};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// One of the two processes after the fork.
pub enum Forked {
    /// The process that the shell waits for.
    Command(Waiting),
    /// The process that serves the mount.
    Daemon(Readiness),
}

/// The command's end of the pipe from the daemon.
pub struct Waiting {
    pipe: PipeReader,
    child: Pid,
}

/// The daemon's end of the pipe. If it is closed without a message, the daemon has failed.
pub struct Readiness {
    pipe: PipeWriter,
    null: File,
}

/// Forks the daemon. Call this while there is only one thread.
pub fn split() -> anyhow::Result<Forked> {
    let (reader, writer) = pipe().context("cannot create a pipe")?;
    // The daemon cannot open it later, in the sandbox.
    let null = null()?;
    match fork().context("cannot go to the background")? {
        ForkResult::Parent { child } => Ok(Forked::Command(Waiting { pipe: reader, child })),
        ForkResult::Child => Ok(Forked::Daemon(Readiness { pipe: writer, null })),
    }
}

/// fork(2). Call this while there is only one thread.
pub fn fork() -> nix::Result<ForkResult> {
    // SAFETY: only `cmd::mount::run` forks, before anything in this program starts a thread. So no lock is held by a
    // thread that does not exist in the child.
    #[allow(unsafe_code)]
    unsafe {
        nix::unistd::fork()
    }
}

/// Opens /dev/null.
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

impl Waiting {
    /// Waits for the daemon. Returns the path and the remark that it announced, or its exit code if it failed and has
    /// printed the reason.
    pub fn wait(mut self) -> anyhow::Result<Result<(PathBuf, String), ExitCode>> {
        let mut message = Vec::new();
        self.pipe.read_to_end(&mut message).context("cannot read from the background process")?;
        if let Some(end) = message.iter().position(|byte| *byte == 0) {
            let remark = String::from_utf8_lossy(&message[end + 1..]).into_owned();
            message.truncate(end);
            return Ok(Ok((PathBuf::from(OsString::from_vec(message)), remark)));
        }
        match waitpid(self.child, None).context("cannot wait for the background process")? {
            WaitStatus::Exited(_, code) => Ok(Err(ExitCode::from(u8::try_from(code).unwrap_or(1)))),
            WaitStatus::Signaled(_, signal, _) => {
                anyhow::bail!("the background process was killed by {signal} before the mount was ready")
            }
            _ => anyhow::bail!("the background process died before the mount was ready"),
        }
    }
}

impl Readiness {
    /// Leaves the terminal, and then sends `path` and a remark for the user to the waiting process. The remark may be
    /// empty.
    pub fn announce(mut self, path: &Path, remark: &str) -> anyhow::Result<()> {
        leave_terminal(&self.null)?;
        // No path contains NUL.
        let message = [path.as_os_str().as_bytes(), remark.as_bytes()].join(&0);
        self.pipe.write_all(&message).context("the waiting command is gone")
    }
}
