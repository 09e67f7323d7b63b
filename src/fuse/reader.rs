//! Detection of readers that are being killed or are gone while they wait for a reply.
//!
//! fuser does not pass on FUSE_INTERRUPT. Instead, the waiting thread is looked up in /proc, which lists its pending
//! signals: a signal that arrives during the wait stays pending until the thread gets its reply. The sandboxed daemon
//! has no access to /proc, so it queries another process.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time between two lookups of a thread.
const EVERY: Duration = Duration::from_millis(100);

/// SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGCHLD, SIGCONT, SIGURG and SIGWINCH: signals that do not end a process.
const HARMLESS: u64 = bit(19) | bit(20) | bit(21) | bit(22) | bit(17) | bit(18) | bit(23) | bit(28);

/// SIGHUP, SIGINT, SIGQUIT and SIGTERM: a process that handles them usually exits.
const ASK_TO_END: u64 = bit(1) | bit(2) | bit(3) | bit(15);

/// Timeout for the other process, which replies at once unless it is gone.
const ANSWER: Duration = Duration::from_secs(10);

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It waits for its reply.
    Staying,
    /// It exits as soon as it gets its reply.
    Ending,
    Gone,
    /// Unknown: /proc may hide the processes of other users.
    Hidden,
}

impl State {
    /// The states, indexed by their number on the socket.
    const ALL: [Self; 4] = [Self::Staying, Self::Ending, Self::Gone, Self::Hidden];
}

/// The connection to the process that can read /proc.
#[derive(Debug, Clone)]
pub struct Watch(Arc<Mutex<Option<UnixStream>>>);

impl Watch {
    /// Uses `socket`; [`answer`] serves the other end.
    pub fn new(socket: UnixStream) -> Self {
        // This fails only for a zero timeout.
        let _ = socket.set_read_timeout(Some(ANSWER));
        Self(Arc::new(Mutex::new(Some(socket))))
    }

    /// The state of a thread.
    fn look(&self, thread: u32) -> State {
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(stream) = socket.as_mut() else { return State::Hidden };
        let mut number = [0];
        match stream.write_all(&thread.to_le_bytes()).and_then(|()| stream.read_exact(&mut number)) {
            Ok(()) => State::ALL.get(usize::from(number[0])).copied().unwrap_or(State::Hidden),
            Err(_) => {
                log::warn!("cancelled reads are no longer detected: the helper process does not reply");
                // A late reply would be taken for the reply to the next query.
                *socket = None;
                State::Hidden
            }
        }
    }
}

/// Replies to the queries of the [`Watch`] at the other end of `socket`, until that end is closed.
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
        // If /proc hides process 1, it hides the processes of other users too.
        Err(error) if error.kind() == ErrorKind::NotFound && status(1).is_ok() => State::Gone,
        Err(_) => State::Hidden,
    }
}

/// A thread that waits for a reply.
#[derive(Debug)]
pub(super) struct Reader {
    watch: Watch,
    thread: u32,
    since: Instant,
    looked: Mutex<Looked>,
}

/// The result of the lookups of a thread.
#[derive(Debug, Default)]
struct Looked {
    /// Time of the next lookup, relative to `since`.
    next: Duration,
    left: bool,
}

impl Reader {
    /// The thread with the number in the request, which is 0 if the kernel does not report it. Sends no query yet.
    pub fn new(thread: u32, watch: &Watch) -> Self {
        Self { watch: watch.clone(), thread, since: Instant::now(), looked: Mutex::default() }
    }

    /// Whether nobody waits for the reply any more. Queries the other process at most every [`EVERY`].
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
/// itself, only SIGHUP, SIGINT, SIGQUIT and SIGTERM count. Otherwise a program with a timer would never get a reply.
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
    fn pending_fatal_signal_is_detected() {
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
    fn exited_thread_is_leaving() {
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
        // The next lookup comes after a delay.
        let deadline = Instant::now() + Duration::from_secs(60);
        while !reader.is_leaving() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(Reader::new(child.id(), &watch).is_leaving());
    }

    #[test]
    fn no_thread_is_leaving_without_watch_process() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let watch = Watch::new(ours);
        drop(theirs);
        assert!(!Reader::new(std::process::id(), &watch).is_leaving());
        assert_eq!(watch.look(1), State::Hidden);
    }
}
