//! Going to the background: knows how the shell gets its prompt back only once the work is done that it waits for.

use anyhow::Context;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stderr, dup2_stdin, dup2_stdout, setsid};
use std::fs::{File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Read, Write, pipe};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

/// Which of the two processes this is.
pub enum Side {
    /// The one that the shell waits for.
    Shell(Waiting),
    /// The one that will serve.
    Daemon(Readiness),
}

/// Waits for the daemon to be ready.
pub struct Waiting {
    pipe: PipeReader,
    child: Pid,
}

/// Tells the shell's side that the daemon is ready. Dropped without that, it tells that it failed.
pub struct Readiness {
    pipe: PipeWriter,
    null: File,
}

/// Splits the process in two. Must be called while there is one thread only.
pub fn split() -> anyhow::Result<Side> {
    let (reader, writer) = pipe().context("cannot make a pipe")?;
    // Opened while everything may be.
    let null = null()?;
    match fork().context("cannot go to the background")? {
        ForkResult::Parent { child } => Ok(Side::Shell(Waiting { pipe: reader, child })),
        ForkResult::Child => Ok(Side::Daemon(Readiness { pipe: writer, null })),
    }
}

/// fork(2). Must be called while there is one thread only.
pub fn fork() -> nix::Result<ForkResult> {
    // SAFETY: nothing in this program starts a thread before `cmd::mount::run` has split off what it needs, which is the
    // only caller and makes the calls first of all. So the child has no lock that another thread held and may go on as usual.
    #[allow(unsafe_code)]
    unsafe {
        nix::unistd::fork()
    }
}

/// /dev/null.
pub fn null() -> anyhow::Result<File> {
    OpenOptions::new().read(true).write(true).open("/dev/null").context("/dev/null")
}

/// Lets go of the terminal and of the directory: no Ctrl-C and no hang-up comes from there any more, and nobody who reads
/// what this process and others print waits for it.
pub fn leave_terminal(null: &File) -> anyhow::Result<()> {
    setsid().context("cannot leave the terminal's session")?;
    std::env::set_current_dir("/").context("cannot leave the directory")?;
    // The descriptors stay open, so that no later file gets their numbers.
    dup2_stdin(null)?;
    dup2_stdout(null)?;
    dup2_stderr(null)?;
    Ok(())
}

impl Waiting {
    /// Returns what the daemon said when it was ready, or, where it failed, with which code; it printed why.
    pub fn wait(mut self) -> anyhow::Result<Result<Vec<u8>, ExitCode>> {
        let mut said = Vec::new();
        self.pipe.read_to_end(&mut said).context("cannot hear from the background")?;
        if !said.is_empty() {
            return Ok(Ok(said));
        }
        match waitpid(self.child, None).context("cannot wait for the background")? {
            WaitStatus::Exited(_, code) => Ok(Err(ExitCode::from(u8::try_from(code).unwrap_or(1)))),
            WaitStatus::Signaled(_, signal, _) => {
                anyhow::bail!("the background process was killed by {signal} before the mount was ready")
            }
            _ => anyhow::bail!("the background process died before the mount was ready"),
        }
    }
}

impl Readiness {
    /// Goes to the background, then says `path` to the waiting side.
    pub fn announce(mut self, path: &Path) -> anyhow::Result<()> {
        leave_terminal(&self.null)?;
        self.pipe.write_all(path.as_os_str().as_bytes()).context("the command that waits is gone")
    }
}
