//! Progress bars.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Time after which the bar appears. Short commands show none.
const SILENT: Duration = Duration::from_millis(500);

/// Time after which the bar is drawn again, so that its times are right even while nothing advances.
const REDRAWN: Duration = Duration::from_millis(250);

/// The bar while bytes are counted.
const COUNTING: &str = "{msg} {wide_bar} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";

/// The bar during work whose duration is unknown.
const WAITING: &str = "{msg} {wide_bar} {decimal_bytes} of {decimal_total_bytes}, {elapsed}";

/// A progress bar on standard error, if that is a terminal. It disappears when this is dropped.
pub struct ProgressLine {
    bar: ProgressBar,
    what: &'static str,
    /// Shows the bar until the sender is dropped.
    shown: Option<(Sender<()>, JoinHandle<()>)>,
}

impl ProgressLine {
    /// Starts a bar of `len` bytes, labelled `what`.
    pub fn new(what: &'static str, len: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::hidden());
        bar.set_style(style(COUNTING));
        bar.set_message(what);
        let shown = if stderr().is_terminal() { show(bar.clone()) } else { None };
        Self { bar, what, shown }
    }

    /// Advances the bar.
    pub fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Runs work that is not counted in bytes, under a label of its own.
    pub fn during<R>(&self, what: &'static str, work: impl FnOnce() -> R) -> R {
        self.bar.set_style(style(WAITING));
        self.bar.set_message(what);
        let done = work();
        self.bar.set_style(style(COUNTING));
        self.bar.set_message(self.what);
        done
    }
}

impl Drop for ProgressLine {
    fn drop(&mut self) {
        if let Some((sender, shown)) = self.shown.take() {
            drop(sender);
            // A panic of that thread ends the process.
            let _ = shown.join();
        }
        self.bar.finish_and_clear();
    }
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Shows the bar after a while, on a thread of its own: the program may be waiting for a disk then.
fn show(bar: ProgressBar) -> Option<(Sender<()>, JoinHandle<()>)> {
    let (sender, dropped) = channel();
    let is_over = move |time| dropped.recv_timeout(time) != Err(RecvTimeoutError::Timeout);
    let draw = move || {
        if is_over(SILENT) {
            return;
        }
        bar.set_draw_target(ProgressDrawTarget::stderr());
        while !is_over(REDRAWN) {
            bar.tick();
        }
    };
    // Without a thread, there is no bar.
    Some((sender, Builder::new().name("progress".into()).spawn(draw).ok()?))
}
