//! Who waits for an answer: knows whether a process is about to go away, or has gone.
//!
//! fuser does not pass FUSE_INTERRUPT on, so that a thread which waits for an answer is looked at in /proc instead: one that
//! a signal has reached, and that cannot take it before it has its answer, shows it as pending.

use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(100);

/// SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGCHLD, SIGCONT, SIGURG and SIGWINCH: signals that end nothing.
const HARMLESS: u64 = bit(19) | bit(20) | bit(21) | bit(22) | bit(17) | bit(18) | bit(23) | bit(28);

/// SIGHUP, SIGINT, SIGQUIT and SIGTERM: who handles them ends, if not at once.
const ASK_TO_END: u64 = bit(1) | bit(2) | bit(3) | bit(15);

/// A thread that waits.
#[derive(Debug)]
pub struct Reader {
    thread: u32,
    since: Instant,
    /// When to look again, in milliseconds from `since`.
    next: AtomicU64,
    left: AtomicBool,
}

impl Reader {
    /// The thread of that number, as the kernel tells it with a request; 0 where it is not known here. One that cannot be
    /// looked at, as /proc may hide those of other users, is taken to stay.
    pub fn new(thread: u32) -> Self {
        let thread = if status(thread).is_ok() { thread } else { 0 };
        Self {
            thread,
            since: Instant::now(),
            next: AtomicU64::new(EVERY.as_millis() as u64),
            left: AtomicBool::new(false),
        }
    }

    /// Whether nobody waits any more. Cheap: it looks only now and then.
    pub fn is_leaving(&self) -> bool {
        if self.left.load(Ordering::Relaxed) {
            return true;
        }
        let now = self.since.elapsed().as_millis() as u64;
        if self.thread == 0 || now < self.next.load(Ordering::Relaxed) {
            return false;
        }
        self.next.store(now + EVERY.as_millis() as u64, Ordering::Relaxed);
        let left = match status(self.thread) {
            Ok(status) => is_ending(&status),
            Err(error) => error.kind() == ErrorKind::NotFound,
        };
        self.left.store(left, Ordering::Relaxed);
        left
    }
}

fn status(thread: u32) -> io::Result<String> {
    std::fs::read_to_string(format!("/proc/{thread}/status"))
}

/// Whether a signal waits that is neither blocked nor ignored nor harmless. Of those that a program handles itself only SIGHUP,
/// SIGINT, SIGQUIT and SIGTERM count: a timer that cut each attempt short would leave it without an answer for ever.
fn is_ending(status: &str) -> bool {
    let mask = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        u64::from_str_radix(line.trim(), 16).unwrap_or(0)
    };
    let pending = mask("SigPnd:") | mask("ShdPnd:");
    pending & !mask("SigBlk:") & !mask("SigIgn:") & !HARMLESS & !(mask("SigCgt:") & !ASK_TO_END) != 0
}

const fn bit(signal: u32) -> u64 {
    1 << (signal - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_that_would_end_it_shows() {
        let caught = |pending: u64, caught: u64| format!("ShdPnd:\t{pending:016x}\nSigCgt:\t{caught:016x}\n");
        assert!(is_ending(&caught(bit(2), bit(2))) && is_ending(&caught(bit(14), 0)));
        assert!(!is_ending(&caught(bit(14), bit(14))));
        let status = |pending: u64, shared: u64, blocked: u64, ignored: u64| {
            format!(
                "Name:\tcat\nSigPnd:\t{pending:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\t{blocked:016x}\nSigIgn:\t{ignored:016x}\n"
            )
        };
        assert!(!is_ending(&status(0, 0, 0, 0)));
        assert!(is_ending(&status(0, bit(2), 0, 0)));
        assert!(is_ending(&status(bit(9), 0, 0, 0)));
        assert!(!is_ending(&status(bit(2), 0, bit(2), 0)));
        assert!(!is_ending(&status(0, bit(1), 0, bit(1))));
        assert!(!is_ending(&status(0, bit(17) | bit(28), 0, 0)));
    }

    #[test]
    fn who_is_there_is_not_leaving_and_who_is_gone_is() {
        let look_now = |thread| Reader { next: AtomicU64::new(0), ..Reader::new(thread) }.is_leaving();
        assert!(!look_now(std::process::id()));
        assert!(!look_now(0));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let reader = Reader { next: AtomicU64::new(0), ..Reader::new(child.id()) };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(reader.is_leaving());
        // Above the largest that the kernel gives: never seen, so not known to have left.
        assert!(!look_now(1 << 30));
    }
}
