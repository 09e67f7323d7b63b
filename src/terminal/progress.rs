//! Progress bars.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, stderr};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Time after which a progress bar appears. Short commands show none.
const BAR_AFTER: Duration = Duration::from_millis(500);

/// Time after which a command says that it waits for a server.
#[cfg(feature = "remote")]
const CONNECTING_AFTER: Duration = Duration::from_secs(1);

/// Time after which the bar is drawn again, so that its times are right even while nothing advances.
const REDRAWN: Duration = Duration::from_millis(250);

const COUNTING: &str = "{msg} {wide_bar} {decimal_bytes} of {decimal_total_bytes}, {decimal_bytes_per_sec}, {eta} left";

/// The bar during work whose duration is unknown.
const WAITING: &str = "{msg} {wide_bar} {decimal_bytes} of {decimal_total_bytes}, {elapsed}";

/// A progress bar on standard error, if that is a terminal. It disappears when this is dropped.
pub struct ProgressLine {
    bar: ProgressBar,
    what: &'static str,
    _shown: Option<DrawingThread>,
}

impl ProgressLine {
    /// Starts a bar of `len` bytes, labelled `what`.
    pub fn new(what: &'static str, len: u64) -> Self {
        let bar = ProgressBar::with_draw_target(Some(len), ProgressDrawTarget::hidden());
        bar.set_style(style(COUNTING));
        bar.set_message(what);
        let shown = DrawingThread::start(bar.clone(), BAR_AFTER, |_| true);
        Self { bar, what, _shown: shown }
    }

    pub fn add(&self, bytes: u64) {
        self.bar.inc(bytes);
    }

    /// Runs work that writes to the terminal, without the bar.
    pub fn suspend<R>(&self, work: impl FnOnce() -> R) -> R {
        self.bar.suspend(work)
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

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Shows on standard error, if that is a terminal, that a command waits for the first answer of `server`. `attempts`
/// gives the number of requests that were sent, and `None` once one was answered.
#[cfg(feature = "remote")]
pub fn show_connecting(server: String, attempts: impl Fn() -> Option<u64> + Send + 'static) -> Option<DrawingThread> {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden());
    bar.set_style(style("{msg}"));
    DrawingThread::start(bar, CONNECTING_AFTER, move |bar| {
        let Some(attempt) = attempts() else { return false };
        bar.set_message(format!("connecting to {server} ... (attempt {}, Ctrl-C stops)", attempt.max(1)));
        true
    })
}

/// Draws a bar on a thread of its own, because the program may be waiting for a disk or a server. The bar disappears
/// when this is dropped.
pub struct DrawingThread {
    /// Drawing ends when this is dropped.
    sender: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl DrawingThread {
    /// Starts to draw after a while, and updates the bar before each time until `update` returns false. `None` without
    /// a terminal or a thread.
    fn start(
        bar: ProgressBar,
        after: Duration,
        update: impl Fn(&ProgressBar) -> bool + Send + 'static,
    ) -> Option<Self> {
        if !stderr().is_terminal() {
            return None;
        }
        let (sender, dropped) = channel();
        let thread = Builder::new().name("progress".into());
        let thread = thread.spawn(move || {
            let mut pause = after;
            while dropped.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) && update(&bar) {
                bar.set_draw_target(ProgressDrawTarget::stderr());
                bar.tick();
                pause = REDRAWN;
            }
            bar.finish_and_clear();
        });
        Some(Self { sender: Some(sender), thread: Some(thread.ok()?) })
    }
}

impl Drop for DrawingThread {
    fn drop(&mut self) {
        self.sender = None;
        // A panic of that thread ends the process.
        self.thread.take().map(JoinHandle::join);
    }
}
