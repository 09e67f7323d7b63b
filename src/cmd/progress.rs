//! How far a long command is: knows a bar on the terminal, and whether somebody wants it to end.

use super::mount::ending_signals;
use anyhow::Context;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use nix::sys::signal::{SigSet, Signal};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use weightfs::write;

/// A command that is done by then shows no bar.
const SILENT: Duration = Duration::from_millis(500);

/// A bar of bytes on standard error, if that is a terminal. It goes with this.
pub struct Progress {
    bar: ProgressBar,
    since: Instant,
    shown: AtomicBool,
}

impl Progress {
    /// Of something that takes `len` bytes.
    pub fn new(what: &'static str, len: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::hidden());
        let style = "{msg} {wide_bar} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        Self { bar, since: Instant::now(), shown: AtomicBool::new(false) }
    }

    /// So many bytes more are done.
    pub fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
        if self.since.elapsed() > SILENT && !self.shown.swap(true, Ordering::Relaxed) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Goes on to what has no measure.
    pub fn set_message(&self, what: &'static str) {
        self.bar.set_message(what);
        self.bar.tick();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Whether Ctrl-C or the like has come: then what was begun is taken back.
pub struct Interrupted(Arc<AtomicBool>);

impl Interrupted {
    /// Watches from now on; to be called before there are other threads. The second signal ends the program at once.
    pub fn watch() -> anyhow::Result<Self> {
        let signals = ending_signals();
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
