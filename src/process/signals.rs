//! Signals that end a command.

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weightfs::write;

/// The signals that end a command, except those that were ignored when the program started, as under nohup(1).
pub fn ending() -> SigSet {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = |line: &str| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok();
    let ignored = status.lines().find_map(ignored).unwrap_or(0);
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    signals.into_iter().filter(|signal| ignored >> (*signal as u32 - 1) & 1 == 0).collect()
}

/// Whether a signal has arrived that ends the command. The command then undoes its work in progress.
pub struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    /// Starts to watch for signals. Call this before other threads are started, because they inherit the signal mask.
    /// The second signal ends the program at once.
    pub fn watch() -> anyhow::Result<Self> {
        let signals = ending();
        signals.thread_block()?;
        // A write beyond the file size limit (RLIMIT_FSIZE) then fails with EFBIG instead of ending the program.
        SigSet::from(Signal::SIGXFSZ).thread_block()?;
        let flag = Arc::new(AtomicBool::new(false));
        let seen = flag.clone();
        let wait = move || {
            while let Ok(signal) = signals.wait() {
                if seen.swap(true, Ordering::Relaxed) {
                    std::process::exit(128 + signal as i32);
                }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(wait).context("cannot start a thread")?;
        Ok(Self(flag))
    }

    /// Whether a signal has arrived.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if a signal has arrived.
    pub fn check(&self) -> Result<(), write::Error> {
        if self.is_set() { Err(write::Error::Interrupted) } else { Ok(()) }
    }
}
