//! Who waits for an answer: knows whether a process is about to go away, or has gone.
//!
//! fuser does not pass FUSE_INTERRUPT on, so that a thread which waits for an answer is looked at in /proc instead: one that
//! a signal has reached, and that cannot take it before it has its answer, shows it as pending. The daemon has no /proc in
//! its sandbox, and asks a process that has.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two looks.
const EVERY: Duration = Duration::from_millis(100);

/// SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGCHLD, SIGCONT, SIGURG and SIGWINCH: signals that end nothing.
const HARMLESS: u64 = bit(19) | bit(20) | bit(21) | bit(22) | bit(17) | bit(18) | bit(23) | bit(28);

/// SIGHUP, SIGINT, SIGQUIT and SIGTERM: who handles them ends, if not at once.
const ASK_TO_END: u64 = bit(1) | bit(2) | bit(3) | bit(15);

/// Longest wait for the other process: it answers at once, or it is not there.
const ANSWER: Duration = Duration::from_secs(10);

/// What shows of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sight {
    Staying,
    /// It ends as soon as it has its answer.
    Ending,
    Gone,
    /// It cannot be looked at.
    Hidden,
}

impl Sight {
    /// Each by its number.
    const ALL: [Self; 4] = [Self::Staying, Self::Ending, Self::Gone, Self::Hidden];
}

/// The way to a process that looks at threads.
#[derive(Debug, Clone)]
pub struct Watch(Arc<Mutex<Option<UnixStream>>>);

impl Watch {
    /// Over `socket`, at the other end of which is [`answer`].
    pub fn new(socket: UnixStream) -> Self {
        // Refused only for a time of nothing.
        let _ = socket.set_read_timeout(Some(ANSWER));
        Self(Arc::new(Mutex::new(Some(socket))))
    }

    /// Asks for a thread. Short, and never in the way of what serves the mount: who answers does nothing else.
    fn look(&self, thread: u32) -> Sight {
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(stream) = socket.as_mut() else { return Sight::Hidden };
        let mut number = [0];
        match stream.write_all(&thread.to_le_bytes()).and_then(|()| stream.read_exact(&mut number)) {
            Ok(()) => Sight::ALL.get(usize::from(number[0])).copied().unwrap_or(Sight::Hidden),
            Err(_) => {
                log::warn!(
                    "readers who leave are not noticed any more: the process that looks at them does not answer"
                );
                // An answer that comes now would be taken for that to the next question.
                *socket = None;
                Sight::Hidden
            }
        }
    }
}

/// Looks at the threads for which a [`Watch`] at the other end of `socket` asks, until that end is closed.
pub fn answer(mut socket: UnixStream) {
    let mut thread = [0; 4];
    while socket.read_exact(&mut thread).is_ok() {
        let sight = look(u32::from_le_bytes(thread));
        if socket.write_all(&[sight as u8]).is_err() {
            break;
        }
    }
}

fn look(thread: u32) -> Sight {
    match std::fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(status) if is_ending(&status) => Sight::Ending,
        Ok(_) => Sight::Staying,
        Err(error) if error.kind() == ErrorKind::NotFound => Sight::Gone,
        Err(_) => Sight::Hidden,
    }
}

/// A thread that waits.
#[derive(Debug)]
pub struct Reader {
    watch: Watch,
    thread: u32,
    since: Instant,
    /// When to look again, in milliseconds from `since`.
    next: AtomicU64,
    left: AtomicBool,
}

impl Reader {
    /// The thread of that number, as the kernel tells it with a request; 0 where it is not known here. One that cannot be
    /// looked at, as /proc may hide those of other users, is taken to stay.
    pub fn new(thread: u32, watch: &Watch) -> Self {
        let is_seen = thread != 0 && matches!(watch.look(thread), Sight::Staying | Sight::Ending);
        Self {
            watch: watch.clone(),
            thread: if is_seen { thread } else { 0 },
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
        let left = matches!(self.watch.look(self.thread), Sight::Ending | Sight::Gone);
        self.left.store(left, Ordering::Relaxed);
        left
    }
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
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || answer(theirs));
        let watch = Watch::new(ours);
        let look_now = |thread| Reader { next: AtomicU64::new(0), ..Reader::new(thread, &watch) }.is_leaving();
        assert!(!look_now(std::process::id()));
        assert!(!look_now(0));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let reader = Reader { next: AtomicU64::new(0), ..Reader::new(child.id(), &watch) };
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(reader.is_leaving());
        // Above the largest that the kernel gives: never seen, so not known to have left.
        assert!(!look_now(1 << 30));
    }

    #[test]
    fn where_nobody_answers_everybody_stays() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let watch = Watch::new(ours);
        let asking = std::thread::spawn({
            let watch = watch.clone();
            move || Reader { next: AtomicU64::new(0), ..Reader::new(std::process::id(), &watch) }
        });
        // It answers once, that the thread is there.
        theirs.read_exact(&mut [0; 4]).unwrap();
        theirs.write_all(&[Sight::Staying as u8]).unwrap();
        let reader = asking.join().unwrap();
        drop(theirs);
        assert!(!reader.is_leaving());
        assert_eq!(watch.look(1), Sight::Hidden);
    }
}
