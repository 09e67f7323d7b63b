//! Progress bars.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Time after which the bar appears. Short commands show none.
const SILENT: Duration = Duration::from_millis(500);

/// A progress bar on standard error, if that is a terminal. It disappears when this is dropped.
pub struct Progress {
    bar: ProgressBar,
    since: Instant,
    shown: AtomicBool,
}

impl Progress {
    /// Starts a bar of `len` bytes, labelled `what`.
    pub fn new(what: &'static str, len: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::hidden());
        let style = "{msg} {wide_bar} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";
        bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.set_message(what);
        Self { bar, since: Instant::now(), shown: AtomicBool::new(false) }
    }

    /// Advances the bar.
    pub fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
        if self.since.elapsed() > SILENT && !self.shown.swap(true, Ordering::Relaxed) {
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
    }

    /// Replaces the label, for work that is not counted in bytes.
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
