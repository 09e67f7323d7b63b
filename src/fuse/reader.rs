//! Detection of readers that are being killed or are gone while they wait for a reply.
//!
//! fuser does not pass on FUSE_INTERRUPT. Instead, the waiting thread is looked up in /proc, which lists its pending
//! signals: a signal that arrives during the wait stays pending until the thread gets its reply. The sandboxed daemon
//! has no access to /proc, so it queries another process.

use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Time between two rounds of lookups, and time that a reader waits before it is first looked up.
const EVERY: Duration = Duration::from_millis(100);

/// Maximum number of readers that are looked up in a round. A lookup takes about 50 microseconds in the other process.
const BATCH: usize = 128;

/// SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU, SIGCHLD, SIGCONT, SIGURG and SIGWINCH: signals that do not end a process.
const HARMLESS: u64 = bit(19) | bit(20) | bit(21) | bit(22) | bit(17) | bit(18) | bit(23) | bit(28);

/// SIGHUP, SIGINT, SIGQUIT and SIGTERM: a process that handles them usually exits.
const ASK_TO_END: u64 = bit(1) | bit(2) | bit(3) | bit(15);

/// After this time without a reply, the log says that the other process does not reply.
const LATE: Duration = Duration::from_secs(10);

/// The state of a thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadState {
    /// It waits for its reply.
    Staying,
    /// It exits as soon as it gets its reply.
    Ending,
    Gone,
    /// Unknown: /proc may hide the processes of other users.
    Hidden,
}

impl ThreadState {
    /// The states, indexed by their number on the socket.
    const ALL: [Self; 4] = [Self::Staying, Self::Ending, Self::Gone, Self::Hidden];
}

/// The connection to the process that can read /proc. Only one thread uses the socket, so that no other thread ever
/// waits for that process.
#[derive(Debug, Clone)]
pub struct ReaderWatch(Arc<WatchShared>);

#[derive(Debug)]
struct WatchShared {
    state: Mutex<WatchedThreads>,
    /// Notified when there is a reader to look up.
    added: Condvar,
}

#[derive(Debug, Default)]
struct WatchedThreads {
    /// The socket, until the thread that owns it is started.
    socket: Option<UnixStream>,
    /// The readers that wait for a reply. Each round begins where the last one ended.
    readers: Vec<Weak<WaitingThread>>,
    next: usize,
    /// The number of readers at which those that have their reply are forgotten. Rounds forget them too, but a round
    /// may wait for the other process.
    forget_at: usize,
    /// Whether lookups have ended.
    ended: bool,
}

/// A thread that waits for a reply.
#[derive(Debug)]
struct WaitingThread {
    thread: u32,
    since: Instant,
    left: AtomicBool,
}

impl ReaderWatch {
    /// Uses `socket`; [`answer`] serves the other end.
    pub fn new(socket: UnixStream) -> Self {
        let state = WatchedThreads { socket: Some(socket), ..WatchedThreads::default() };
        Self(Arc::new(WatchShared { state: Mutex::new(state), added: Condvar::new() }))
    }

    /// Registers a reader. Starts the thread that looks readers up at the first call.
    fn add(&self, reader: &Arc<WaitingThread>) {
        let mut state = self.0.lock();
        if state.ended {
            return;
        }
        if let Some(socket) = state.socket.take() {
            let shared = self.0.clone();
            let thread = std::thread::Builder::new().name("readers".into());
            if let Err(error) = thread.spawn(move || shared.watch(socket)) {
                log::warn!("cancelled reads are not detected: cannot start a thread: {error}");
                state.ended = true;
                return;
            }
        }
        if state.readers.len() >= state.forget_at {
            state.forget();
            state.forget_at = 2 * state.readers.len().max(BATCH);
        }
        state.readers.push(Arc::downgrade(reader));
        self.0.added.notify_one();
    }
}

impl WatchedThreads {
    /// Removes the readers that have their reply.
    fn forget(&mut self) {
        let is_waiting = |reader: &Weak<WaitingThread>| reader.strong_count() > 0;
        self.next = self.readers[..self.next].iter().filter(|reader| is_waiting(reader)).count();
        self.readers.retain(is_waiting);
    }
}

impl WatchShared {
    fn lock(&self) -> MutexGuard<'_, WatchedThreads> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks up readers in rounds, for as long as the other process replies.
    fn watch(&self, mut socket: UnixStream) {
        // This fails only for a zero timeout.
        let _ = socket.set_read_timeout(Some(LATE));
        loop {
            std::thread::sleep(EVERY);
            let readers = self.round();
            match look_up(&mut socket, &readers) {
                Ok(states) => {
                    for (reader, state) in readers.iter().zip(states) {
                        if matches!(state, ThreadState::Ending | ThreadState::Gone) {
                            reader.left.store(true, Ordering::Relaxed);
                        }
                    }
                }
                Err(_) => {
                    log::warn!("cancelled reads are no longer detected: the helper process does not reply");
                    let mut state = self.lock();
                    (state.ended, state.readers) = (true, Vec::new());
                    return;
                }
            }
        }
    }

    /// Waits until there are readers, and returns those of the next round.
    fn round(&self) -> Vec<Arc<WaitingThread>> {
        let mut state = self.lock();
        loop {
            state.forget();
            if !state.readers.is_empty() {
                break;
            }
            state = self.added.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        let is_due = |reader: &WaitingThread| reader.since.elapsed() >= EVERY && !reader.left.load(Ordering::Relaxed);
        let mut round = Vec::new();
        while round.len() < BATCH && state.next < state.readers.len() {
            round.extend(state.readers[state.next].upgrade().filter(|reader| is_due(reader)));
            state.next += 1;
        }
        if state.next == state.readers.len() {
            state.next = 0;
        }
        round
    }
}

/// The states of some readers. Fails when the other process has closed the socket; waits for it as long as it is only
/// stopped.
fn look_up(socket: &mut UnixStream, readers: &[Arc<WaitingThread>]) -> io::Result<Vec<ThreadState>> {
    let threads: Vec<u8> = readers.iter().flat_map(|reader| reader.thread.to_le_bytes()).collect();
    // The socket has room for a batch.
    socket.write_all(&threads)?;
    let mut numbers = vec![0; readers.len()];
    let (mut received, mut is_late) = (0, false);
    while received < numbers.len() {
        match socket.read(&mut numbers[received..]) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(len) => received += len,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if !is_late {
                    log::warn!("cancelled reads are not detected at present: the helper process does not reply");
                }
                is_late = true;
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    let state = |number: &u8| ThreadState::ALL.get(usize::from(*number)).copied().unwrap_or(ThreadState::Hidden);
    Ok(numbers.iter().map(state).collect())
}

/// Replies to the queries of the [`ReaderWatch`] at the other end of `socket`, until that end is closed.
pub fn answer(mut socket: UnixStream) {
    let mut thread = [0; 4];
    while socket.read_exact(&mut thread).is_ok() {
        let state = look(u32::from_le_bytes(thread));
        if socket.write_all(&[state as u8]).is_err() {
            break;
        }
    }
}

fn look(thread: u32) -> ThreadState {
    let status = |thread: u32| std::fs::read_to_string(format!("/proc/{thread}/status"));
    match status(thread) {
        Ok(status) if is_ending(&status) => ThreadState::Ending,
        Ok(_) => ThreadState::Staying,
        // If /proc hides process 1, it hides the processes of other users too.
        Err(error) if error.kind() == ErrorKind::NotFound && status(1).is_ok() => ThreadState::Gone,
        Err(_) => ThreadState::Hidden,
    }
}

/// A thread that waits for a reply. It is looked up until this is dropped.
#[derive(Debug)]
pub(super) struct WaitingReader(Arc<WaitingThread>);

impl WaitingReader {
    /// The thread with the number in the request, which is 0 if the kernel does not report it. Does not wait for the
    /// other process.
    pub fn new(thread: u32, watch: &ReaderWatch) -> Self {
        let waiting = Arc::new(WaitingThread { thread, since: Instant::now(), left: AtomicBool::new(false) });
        if thread != 0 {
            watch.add(&waiting);
        }
        Self(waiting)
    }

    /// Whether nobody waits for the reply any more. This is the result of the last lookup.
    pub fn is_leaving(&self) -> bool {
        self.0.left.load(Ordering::Relaxed)
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

    fn wait_until(done: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !done() {
            assert!(Instant::now() < deadline);
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn exited_threads_are_leaving() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        std::thread::spawn(move || answer(theirs));
        let watch = ReaderWatch::new(ours);
        let staying = [std::process::id(), 0].map(|thread| WaitingReader::new(thread, &watch));
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        // More than fit into a round.
        let readers: Vec<_> = (0..3 * BATCH).map(|_| WaitingReader::new(child.id(), &watch)).collect();
        assert!(!readers.iter().any(WaitingReader::is_leaving));
        child.kill().unwrap();
        child.wait().unwrap();
        wait_until(|| readers.iter().all(WaitingReader::is_leaving));
        assert!(!staying.iter().any(WaitingReader::is_leaving));
        // Readers that have got their reply are removed.
        drop(readers);
        let last = WaitingReader::new(child.id(), &watch);
        wait_until(|| last.is_leaving());
        wait_until(|| watch.0.lock().readers.len() == 2);
    }

    #[test]
    fn late_answers_are_used() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let watch = ReaderWatch::new(ours);
        let reader = WaitingReader::new(7, &watch);
        // The other process has received the query and does not answer.
        let mut thread = [0; 4];
        theirs.read_exact(&mut thread).unwrap();
        assert_eq!(u32::from_le_bytes(thread), 7);
        let later = WaitingReader::new(8, &watch);
        // Readers that get their reply meanwhile take no memory.
        (0..100_000).for_each(|_| drop(WaitingReader::new(9, &watch)));
        assert!(watch.0.lock().readers.len() <= 2 * BATCH);
        assert!(!reader.is_leaving() && !later.is_leaving());
        theirs.write_all(&[ThreadState::Gone as u8]).unwrap();
        wait_until(|| reader.is_leaving());
        theirs.read_exact(&mut thread).unwrap();
        assert_eq!(u32::from_le_bytes(thread), 8);
        theirs.write_all(&[ThreadState::Ending as u8]).unwrap();
        wait_until(|| later.is_leaving());
    }

    #[test]
    fn no_thread_is_leaving_without_watch_process() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let watch = ReaderWatch::new(ours);
        drop(theirs);
        let reader = WaitingReader::new(std::process::id(), &watch);
        wait_until(|| watch.0.lock().ended);
        assert!(!reader.is_leaving() && !WaitingReader::new(1, &watch).is_leaving());
        assert!(watch.0.lock().readers.is_empty());
    }
}
