//! Whether the process that waits for an answer is still there.
//!
//! fuser does not pass FUSE_INTERRUPT on. A waiting thread is looked up in /proc instead: a signal that has reached it,
//! and that it cannot take before it has its answer, is shown as pending. The daemon has no /proc in its sandbox, and
//! asks a process that has.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two look-ups of one thread.
const EVERY: Duration = Duration::from_millis(100);

/// SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGCHLD, SIGCONT, SIGURG and SIGWINCH: signals that do not end a process.
const HARMLESS: u64 = bit(19) | bit(20) | bit(21) | bit(22) | bit(17) | bit(18) | bit(23) | bit(28);

/// SIGHUP, SIGINT, SIGQUIT and SIGTERM: a process that handles them usually ends.
const ASK_TO_END: u64 = bit(1) | bit(2) | bit(3) | bit(15);

/// Longest wait for the other process, which answers at once or is gone.
const ANSWER: Duration = Duration::from_secs(10);

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Staying,
    /// It ends as soon as it has its answer.
    Ending,
    Gone,
    /// Not known: /proc may hide the processes of other users.
    Hidden,
}

impl State {
    /// Each state at its number.
    const ALL: [Self; 4] = [Self::Staying, Self::Ending, Self::Gone, Self::Hidden];
}

/// The connection to a process that can look into /proc.
#[derive(Debug, Clone)]
pub struct Watch(Arc<Mutex<Option<UnixStream>>>);

impl Watch {
    /// Uses `socket`; [`answer`] serves the other end.
    pub fn new(socket: UnixStream) -> Self {
        // Only a time of zero is refused.
        let _ = socket.set_read_timeout(Some(ANSWER));
        Self(Arc::new(Mutex::new(Some(socket))))
    }

    /// The state of a thread. The other process does nothing else, so the answer comes at once.
    fn look(&self, thread: u32) -> State {
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(stream) = socket.as_mut() else { return State::Hidden };
        let mut number = [0];
        match stream.write_all(&thread.to_le_bytes()).and_then(|()| stream.read_exact(&mut number)) {
            Ok(()) => State::ALL.get(usize::from(number[0])).copied().unwrap_or(State::Hidden),
            Err(_) => {
                log::warn!(
                    "readers who leave are not noticed any more: the process that looks at them does not answer"
                );
                // A late answer would be taken for the answer to the next question.
                *socket = None;
                State::Hidden
            }
        }
    }
}

/// Answers the questions of the [`Watch`] at the other end of `socket`, until that end is closed.
pub fn answer(mut socket: UnixStream) {
    let mut thread = [0; 4];
    while socket.read_exact(&mut thread).is_ok() {
        let state = look(u32::from_le_bytes(thread));
        if socket.write_all(&[state as u8]).is_err() {
            break;
        }
    }
}

fn look(thread: u32) -> State {
    let status = |thread: u32| std::fs::read_to_string(format!("/proc/{thread}/status"));
    match status(thread) {
        Ok(status) if is_ending(&status) => State::Ending,
        Ok(_) => State::Staying,
        // If /proc hides the first process, it hides others too.
        Err(error) if error.kind() == ErrorKind::NotFound && status(1).is_ok() => State::Gone,
        Err(_) => State::Hidden,
    }
}

/// A thread that waits for an answer.
#[derive(Debug)]
pub(super) struct Reader {
    watch: Watch,
    thread: u32,
    since: Instant,
    looked: Mutex<Looked>,
}

/// What is known about a thread.
#[derive(Debug, Default)]
struct Looked {
    /// When to look next, after `since`.
    next: Duration,
    left: bool,
}

impl Reader {
    /// The thread with that number in the request; 0 if the kernel does not tell. Nothing is asked yet.
    pub fn new(thread: u32, watch: &Watch) -> Self {
        Self { watch: watch.clone(), thread, since: Instant::now(), looked: Mutex::default() }
    }

    /// Whether nobody waits for the answer any more. Asks the other process only now and then.
    pub fn is_leaving(&self) -> bool {
        let now = self.since.elapsed();
        let mut looked = self.looked.lock().unwrap_or_else(PoisonError::into_inner);
        if self.thread != 0 && !looked.left && now >= looked.next {
            looked.next = now + EVERY;
            looked.left = matches!(self.watch.look(self.thread), State::Ending | State::Gone);
        }
        looked.left
    }
}

/// Whether a signal is pending that is neither blocked nor ignored nor harmless. Of the signals that a program handles
/// itself, only SIGHUP, SIGINT, SIGQUIT and SIGTERM count: otherwise a program with a timer would never get an answer.
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
    fn a_pending_signal_that_would_end_the_thread_is_found() {
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
    fn a_thread_that_is_gone_has_left() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || answer(theirs));
        let watch = Watch::new(ours);
        assert!(!Reader::new(std::process::id(), &watch).is_leaving());
        assert!(!Reader::new(0, &watch).is_leaving());
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let reader = Reader::new(child.id(), &watch);
        assert!(!reader.is_leaving());
        child.kill().unwrap();
        child.wait().unwrap();
        // The next look comes after a while.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !reader.is_leaving() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(Reader::new(child.id(), &watch).is_leaving());
    }

    #[test]
    fn without_answers_every_thread_stays() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let watch = Watch::new(ours);
        drop(theirs);
        assert!(!Reader::new(std::process::id(), &watch).is_leaving());
        assert_eq!(watch.look(1), State::Hidden);
    }
}
