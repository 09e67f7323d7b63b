//! Signals that end a command.

use anyhow::Context;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal, raise};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use std::io::{PipeReader, PipeWriter, pipe};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use weightfs::write;

/// The signals that end a command, except those that were ignored when the program started, as under nohup(1).
fn ending() -> SigSet {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0);
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    signals.into_iter().filter(|signal| ignored >> (*signal as u32 - 1) & 1 == 0).collect()
}

/// Blocks the signals that end a command, and returns them. Call this before other threads are started, because they
/// inherit the signal mask, and before fork(2), for the same reason.
pub fn block() -> anyhow::Result<SigSet> {
    let signals = ending();
    signals.thread_block().context("cannot block signals")?;
    Ok(signals)
}

/// A descriptor that is readable while one of the blocked `signals` is pending in this process. Reading does not wait.
pub fn pending(signals: &SigSet) -> anyhow::Result<SignalFd> {
    let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
    SignalFd::with_flags(signals, flags).context("cannot receive signals")
}

/// Takes a pending signal, if there is one.
pub fn take(pending: &SignalFd) -> Option<Signal> {
    let info = pending.read_signal().ok()??;
    Signal::try_from(info.ssi_signo as i32).ok()
}

/// Ends this process by a signal, as if the signal were not blocked.
pub fn end_by(signal: Signal) -> ! {
    let _ = SigSet::from(signal).thread_unblock();
    let _ = raise(signal);
    std::process::exit(128 + signal as i32)
}

pub fn start_thread(name: &str, work: impl FnOnce() + Send + 'static) -> anyhow::Result<JoinHandle<()>> {
    std::thread::Builder::new().name(name.into()).spawn(work).context("cannot start a thread")
}

/// A thread that ends the process when a blocked signal arrives, as long as there is nothing to undo.
///
/// Threads that wait for a slow source do not delay the end, because the signal ends the whole process.
pub struct EndAtOnce(Option<(PipeWriter, JoinHandle<()>)>);

impl EndAtOnce {
    /// Starts the thread. It calls `before` with the signal, and then ends the process by that signal.
    pub fn start(signals: &SigSet, before: impl FnOnce(Signal) + Send + 'static) -> anyhow::Result<Self> {
        let pending = pending(signals)?;
        let (stopped, stop) = pipe().context("cannot create a pipe")?;
        let thread = start_thread("signals", move || end_on_signal(&pending, &stopped, before))?;
        Ok(Self(Some((stop, thread))))
    }

    /// Ends the thread. A signal that arrives from here on stays pending.
    pub fn stop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            // If the thread has received a signal, this process ends here.
            let _ = thread.join();
        }
    }
}

/// Ends the process by a signal that arrives before the other end of `stopped` is closed. Calls `before` first.
fn end_on_signal(pending: &SignalFd, stopped: &PipeReader, before: impl FnOnce(Signal)) {
    loop {
        let mut polled = [pending.as_fd(), stopped.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
        let _ = poll(&mut polled, PollTimeout::NONE);
        // If a signal has arrived as well, it stays pending.
        if polled[1].any() != Some(false) {
            return;
        }
        if let Some(signal) = take(pending) {
            before(signal);
            end_by(signal);
        }
    }
}

impl Drop for EndAtOnce {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Whether a signal has arrived that ends the command. The command then undoes its work in progress.
pub struct InterruptFlag(Arc<AtomicBool>);

impl InterruptFlag {
    /// Starts to watch for signals. Call this before other threads are started, because they inherit the signal mask.
    /// The second signal ends the program at once.
    pub fn watch() -> anyhow::Result<Self> {
        let signals = block()?;
        // A write beyond the file size limit (RLIMIT_FSIZE) then fails with EFBIG instead of ending the program.
        SigSet::from(Signal::SIGXFSZ).thread_block()?;
        let flag = Arc::new(AtomicBool::new(false));
        let seen = flag.clone();
        start_thread("signals", move || {
            while let Ok(signal) = signals.wait() {
                if seen.swap(true, Ordering::Relaxed) {
                    std::process::exit(128 + signal as i32);
                }
            }
        })?;
        Ok(Self(flag))
    }

    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if a signal has arrived.
    pub fn check(&self) -> Result<(), write::Error> {
        if self.is_set() { Err(write::Error::Interrupted) } else { Ok(()) }
    }
}
