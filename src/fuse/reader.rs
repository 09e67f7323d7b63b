//! Detection of readers that are being killed or are gone while they wait for a reply.
//!
//! fuser does not pass on FUSE_INTERRUPT. Instead, the waiting thread is looked up in /proc, which lists its pending
//! signals: a signal that arrives during the wait stays pending until the thread gets its reply. The sandboxed daemon
//! has no access to /proc, so it queries another process.

use crate::fs::WaitingClient;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
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

/// The connection to the process that can read /proc. Only one thread uses the socket, so that no other thread ever
/// waits for that process.
#[derive(Debug)]
pub struct ReaderWatch {
    state: Mutex<WatchedReaders>,
    added: Condvar,
}

#[derive(Debug, Default)]
struct WatchedReaders {
    /// The socket, until the thread that owns it is started.
    socket: Option<UnixStream>,
    /// The readers that wait for a reply, by their numbers.
    waiting: BTreeMap<u64, WatchedThread>,
    next: u64,
    /// The number of the reader with which the next round begins.
    round_from: u64,
    ended: bool,
}

#[derive(Debug, Clone)]
struct WatchedThread {
    thread: u32,
    since: Instant,
    left: Arc<AtomicBool>,
}

impl ReaderWatch {
    /// [`answer_reader_queries`] serves the other end of `socket`.
    pub fn new(socket: UnixStream) -> Arc<Self> {
        let state = WatchedReaders { socket: Some(socket), ..WatchedReaders::default() };
        Arc::new(Self { state: Mutex::new(state), added: Condvar::new() })
    }

    fn lock(&self) -> MutexGuard<'_, WatchedReaders> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a reader, and returns its number. Starts the thread that looks readers up at the first call.
    fn add(self: &Arc<Self>, thread: u32, left: &Arc<AtomicBool>) -> u64 {
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        if let Some(socket) = state.socket.take() {
            let shared = self.clone();
            let thread = std::thread::Builder::new().name("readers".into());
            if let Err(error) = thread.spawn(move || shared.watch(socket)) {
                log::warn!("cancelled reads are not detected: cannot start a thread: {error}");
                state.ended = true;
            }
        }
        if !state.ended {
            state.waiting.insert(number, WatchedThread { thread, since: Instant::now(), left: left.clone() });
            self.added.notify_one();
        }
        number
    }

    /// Looks up readers in rounds, for as long as the other process replies.
    fn watch(&self, mut socket: UnixStream) {
        // This fails only for a zero timeout.
        let _ = socket.set_read_timeout(Some(LATE));
        loop {
            std::thread::sleep(EVERY);
            let readers = self.round();
            let Ok(have_left) = look_up(&mut socket, &readers) else {
                log::warn!("cancelled reads are no longer detected: the helper process does not reply");
                let mut state = self.lock();
                (state.ended, state.waiting) = (true, BTreeMap::new());
                return;
            };
            for (reader, has_left) in readers.iter().zip(have_left) {
                reader.left.fetch_or(has_left, Ordering::Relaxed);
            }
        }
    }

    /// Waits until there are readers, and returns those of the next round.
    fn round(&self) -> Vec<WatchedThread> {
        let waited = self.added.wait_while(self.lock(), |state| state.waiting.is_empty());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        let due = state.waiting.range(state.round_from..).filter(|(_, reader)| reader.is_due()).take(BATCH);
        let (numbers, readers): (Vec<u64>, Vec<WatchedThread>) = due.map(|(at, reader)| (*at, reader.clone())).unzip();
        state.round_from = numbers.last().filter(|_| numbers.len() == BATCH).map_or(0, |last| last + 1);
        readers
    }
}

impl WatchedThread {
    fn is_due(&self) -> bool {
        self.since.elapsed() >= EVERY && !self.left.load(Ordering::Relaxed)
    }
}

/// Whether each of some readers waits no longer. Fails when the other process has closed the socket; waits for it as
/// long as it is only stopped.
fn look_up(socket: &mut UnixStream, readers: &[WatchedThread]) -> io::Result<Vec<bool>> {
    let threads: Vec<u8> = readers.iter().flat_map(|reader| reader.thread.to_le_bytes()).collect();
    // The socket has room for a batch.
    socket.write_all(&threads)?;
    let mut replies = vec![0; readers.len()];
    let (mut received, mut is_late) = (0, false);
    while received < replies.len() {
        match socket.read(&mut replies[received..]) {
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
    Ok(replies.into_iter().map(|reply| reply == 1).collect())
}

/// Replies to the queries of the [`ReaderWatch`] at the other end of `socket`, until that end is closed: a thread in
/// four bytes, whether it waits no longer in one.
pub fn answer_reader_queries(mut socket: UnixStream) {
    let mut thread = [0; 4];
    while socket.read_exact(&mut thread).is_ok() {
        let has_left = has_left(u32::from_le_bytes(thread));
        if socket.write_all(&[has_left.into()]).is_err() {
            break;
        }
    }
}

/// Whether a thread is gone, or exits as soon as it gets its reply.
fn has_left(thread: u32) -> bool {
    match std::fs::read_to_string(format!("/proc/{thread}/status")) {
        Ok(status) => is_ending(&status),
        // If /proc hides process 1, it hides the processes of other users too.
        Err(error) => error.kind() == ErrorKind::NotFound && std::fs::read_to_string("/proc/1/status").is_ok(),
    }
}

/// A thread that waits for a reply. It is looked up until this is dropped.
#[derive(Debug)]
pub(super) struct WaitingReader {
    number: u64,
    left: Arc<AtomicBool>,
    watch: Arc<ReaderWatch>,
}

impl WaitingReader {
    /// The thread with the number in the request, which is 0 if the kernel does not report it. Does not wait for the
    /// other process.
    pub fn new(thread: u32, watch: &Arc<ReaderWatch>) -> Self {
        let left = Arc::default();
        let number = if thread == 0 { 0 } else { watch.add(thread, &left) };
        Self { number, left, watch: watch.clone() }
    }

    /// Whether nobody waits for the reply any more. This is the result of the last lookup.
    fn is_leaving(&self) -> bool {
        self.left.load(Ordering::Relaxed)
    }
}

impl Drop for WaitingReader {
    fn drop(&mut self) {
        self.watch.lock().waiting.remove(&self.number);
    }
}

impl<R> WaitingClient<R> for WaitingReader {
    fn has_left(&self, _: Option<&R>) -> bool {
        self.is_leaving()
    }
}

/// Whether a signal is pending that is neither blocked nor ignored nor harmless. Of the signals that a program handles
/// itself, only SIGHUP, SIGINT, SIGQUIT and SIGTERM count. Otherwise a program with a timer would never get a reply.
fn is_ending(status: &str) -> bool {
    let pending = signal_mask(status, "SigPnd:") | signal_mask(status, "ShdPnd:");
    let [blocked, ignored, caught] = ["SigBlk:", "SigIgn:", "SigCgt:"].map(|name| signal_mask(status, name));
    pending & !blocked & !ignored & !HARMLESS & !(caught & !ASK_TO_END) != 0
}

fn signal_mask(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
    u64::from_str_radix(line.trim(), 16).unwrap_or(0)
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
        std::thread::spawn(move || answer_reader_queries(theirs));
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
        wait_until(|| watch.lock().waiting.len() == 2);
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
        assert!(watch.lock().waiting.len() <= 2);
        assert!(!reader.is_leaving() && !later.is_leaving());
        theirs.write_all(&[1]).unwrap();
        wait_until(|| reader.is_leaving());
        theirs.read_exact(&mut thread).unwrap();
        assert_eq!(u32::from_le_bytes(thread), 8);
        theirs.write_all(&[1]).unwrap();
        wait_until(|| later.is_leaving());
    }

    #[test]
    fn no_thread_is_leaving_without_watch_process() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let watch = ReaderWatch::new(ours);
        drop(theirs);
        let reader = WaitingReader::new(std::process::id(), &watch);
        wait_until(|| watch.lock().ended);
        assert!(!reader.is_leaving() && !WaitingReader::new(1, &watch).is_leaving());
        assert!(watch.lock().waiting.is_empty());
    }
}
