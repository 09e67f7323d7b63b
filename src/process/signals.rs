//! Signals: which of them end the program, and whether one has arrived.

use anyhow::Context;
use nix::sys::signal::{SigSet, Signal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use weightfs::write;

/// The signals that end a command; not those that are ignored from the start, as nohup(1) has it.
pub fn ending() -> SigSet {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = |line: &str| u64::from_str_radix(line.strip_prefix("SigIgn:")?.trim(), 16).ok();
    let ignored = status.lines().find_map(ignored).unwrap_or(0);
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    signals.into_iter().filter(|signal| ignored >> (*signal as u32 - 1) & 1 == 0).collect()
}

/// Whether Ctrl-C or the like has come: then what was begun is taken back.
pub struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    /// Watches from now on; to be called before there are other threads. The second signal ends the program at once.
    pub fn watch() -> anyhow::Result<Self> {
        let signals = ending();
        signals.thread_block()?;
        // A file may be larger than the user's limit: the write then says so, where the signal would end the program.
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

    /// Whether one has come.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Fails if one has come.
    pub fn check(&self) -> Result<(), write::Error> {
        if self.is_set() { Err(write::Error::Interrupted) } else { Ok(()) }
    }
}
