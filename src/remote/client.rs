//! The reading process's end of the connection to the process that fetches.

use super::location;
use super::planner::{BLOCK, PlannerLimits};
use super::protocol::{FetchCounts, FetchOptions, HEAD, WireAbout, WireChannel, WireReply, WireRequest, WireSpan};
use crate::source::{
    Error, FetchFailure, FillProcess, ReopenedSource, Source, SourceReopener, SparseParts, SparseSource, WholeFile,
    reopened_files_limit,
};
use std::collections::HashMap;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The interval in which a waiting thread checks whether its reader is gone.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// Maximum number of messages that wait to be written to the log.
const LOG_MAX: usize = 256;

/// How much longer than twice the timeout of a read a reader waits if nothing is heard of the other process.
const PATIENCE_MORE: Duration = Duration::from_secs(30);

/// The time before a message is sent again.
const SEND_AGAIN: Duration = Duration::from_millis(5);

/// Maximum size of all paths of a tree, in bytes.
const PATHS_MAX: usize = 256 << 20;

/// Maximum number of files in a tree: as many as in a scan of a local directory.
const ENTRIES_MAX: u64 = 1_000_000;

/// Maximum number of files that are opened before anyone waits for them, besides that of [`reopened_files_limit`].
/// Each one takes four descriptors.
const EARLY_MAX: usize = 200;

/// The connection. Clones are the same connection.
#[derive(Debug, Clone)]
pub struct FetchClient(Arc<ClientShared>);

#[derive(Debug)]
struct ClientShared {
    channel: WireChannel,
    state: Mutex<ClientState>,
    /// Notified when a reply has arrived, or the connection has ended.
    replied: Condvar,
    /// The thread that receives replies.
    receiver: Mutex<Option<JoinHandle<()>>>,
    /// How long a reader waits although nothing is heard of the other process. That process reports progress and ends
    /// requests that make none, unless it is stopped or its disk hangs.
    patience: Duration,
    /// Bytes that were read from files.
    served: AtomicU64,
    /// Bytes among them for which a reader had to wait.
    waited: AtomicU64,
}

#[derive(Debug, Default)]
struct ClientState {
    /// The number of the last request.
    last: u64,
    /// The requests without a reply, and the replies that nobody has taken yet.
    waiting: HashMap<u64, Option<ClientAnswer>>,
    /// The requests for files that were announced, by tree and path.
    early: HashMap<(u32, String), u64>,
    /// The size of the first request for each file that was announced and not yet opened, in bytes.
    heads: HashMap<(u32, String), u64>,
    /// The objects that the other process is still to close, because it was slow to receive messages.
    unclosed: Vec<u32>,
    /// The trees whose entries are still arriving.
    listing: HashMap<u32, ClientListing>,
    /// The counts of what was fetched so far.
    counts: FetchCounts,
    /// When the last reply came.
    heard: Option<Instant>,
    /// Whether the connection has ended.
    ended: bool,
}

#[derive(Debug)]
struct ClientListing {
    id: u64,
    about: WireAbout,
    missing: u64,
    /// Size of the paths in bytes.
    size: usize,
    entries: Vec<(String, u64)>,
}

#[derive(Debug)]
enum ClientAnswer {
    Tree(u32, WireAbout, Vec<(String, u64)>),
    Object(u32, u64, FileAttributes, Vec<OwnedFd>),
    Whole(u64, FileAttributes, Vec<OwnedFd>),
    Ready,
    Failed(FetchFailure),
}

/// The attributes of a file besides its size.
#[derive(Debug, Clone, Copy)]
pub(super) struct FileAttributes {
    /// Whether everyone may read it.
    pub is_public: bool,
    /// When it was last modified, in seconds since 1970.
    pub mtime: i64,
}

/// The files that were found at a URL.
pub(super) struct FoundSource {
    /// The number of the tree.
    pub number: u32,
    pub about: WireAbout,
    /// The paths of its files, and their sizes in bytes.
    pub entries: Vec<(String, u64)>,
}

/// The counts of what a client has read and fetched so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientTraffic {
    /// The counts of what was fetched.
    pub fetched: FetchCounts,
    /// Bytes that were read from files.
    pub served: u64,
    /// Bytes among them for which a reader had to wait.
    pub waited: u64,
}

impl ClientTraffic {
    /// As a JSON object.
    pub fn to_json(&self) -> String {
        let Self { fetched: FetchCounts { requests, bytes, busy }, served, waited } = self;
        format!(
            r#"{{"requests":{requests},"fetched_bytes":{bytes},"busy_ms":{busy},"read_bytes":{served},"waited_bytes":{waited}}}"#
        )
    }
}

impl fmt::Display for ClientTraffic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fetched: FetchCounts { requests, bytes, busy }, served, waited } = self;
        write!(
            f,
            "fetched {bytes} bytes in {requests} requests and {:.1} s; {served} bytes were read, {waited} of them after \
             waiting",
            *busy as f64 / 1000.0
        )
    }
}

impl FetchClient {
    /// Connects to the process at the other end of `channel`.
    pub fn new(channel: WireChannel, start: FetchOptions) -> io::Result<Self> {
        let timeout = start.timeout.map_or(PlannerLimits::default().timeout, Duration::from_millis);
        let patience = timeout.saturating_mul(2) + PATIENCE_MORE;
        channel.send(&WireRequest::Start(start), &[])?;
        let (state, replied, receiver, served, waited) = Default::default();
        let client = Self(Arc::new(ClientShared { channel, state, replied, receiver, patience, served, waited }));
        client.resume()?;
        Ok(client)
    }

    /// Starts the thread that receives replies.
    pub fn resume(&self) -> io::Result<()> {
        let shared = self.0.clone();
        let receiver = std::thread::Builder::new().name("remote".into()).spawn(move || shared.receive())?;
        *self.0.receiver.lock().unwrap_or_else(PoisonError::into_inner) = Some(receiver);
        Ok(())
    }

    /// Ends the thread that receives replies. Nobody may wait for a reply until [`FetchClient::resume`].
    pub fn rest(&self) {
        // If the connection has ended, so does the thread.
        let _ = self.0.channel.send(&WireRequest::Rest, &[]);
        let receiver = self.0.receiver.lock().unwrap_or_else(PoisonError::into_inner).take();
        // The thread does not panic: a panic ends the program.
        let _ = receiver.map(JoinHandle::join);
    }

    /// Finds the files at a URL, in their current version.
    pub(super) fn find(&self, url: &str) -> Result<FoundSource, Error> {
        let answer = self.0.call(|id| WireRequest::Resolve { id, url: url.to_owned() }, &|| false);
        // The URL may contain secrets, which a location does not print.
        let shown = location::RemoteLocation::parse(url).ok().flatten().map_or_else(String::new, |at| at.to_string());
        match answer.map_err(|why| why.of(&shown))? {
            ClientAnswer::Tree(number, about, entries) => Ok(FoundSource { number, about, entries }),
            _ => Err(unexpected(&shown)),
        }
    }

    /// The counts of what was read and fetched so far.
    pub fn traffic(&self) -> ClientTraffic {
        let fetched = self.0.lock().counts;
        ClientTraffic { fetched, served: self.0.served.load(Relaxed), waited: self.0.waited.load(Relaxed) }
    }

    /// Starts to open a file of a tree, without waiting for it.
    pub(super) fn announce(&self, tree: u32, path: &str, head: Option<u64>) {
        let key = (tree, path.to_owned());
        let mut state = self.0.lock();
        // Whole blocks are present or absent.
        let head = head.map_or(HEAD, |head| head.min(HEAD).next_multiple_of(BLOCK));
        state.heads.insert(key.clone(), head);
        let most = EARLY_MAX.min(reopened_files_limit() / 2);
        if state.ended || state.early.len() >= most || state.early.contains_key(&key) {
            return;
        }
        // Nobody may look for the request before it is among the early ones, so the lock is held. Sending does not
        // wait.
        let id = state.number();
        let request = WireRequest::Open { id, tree, path: path.to_owned(), head };
        if self.0.channel.try_send(&request).is_ok_and(|sent| sent) {
            state.early.insert(key, id);
        } else {
            state.waiting.remove(&id);
        }
    }

    /// Opens a file of a tree. Messages call it `name`.
    pub(super) fn open(
        &self,
        tree: u32,
        path: &str,
        name: &str,
        parts: impl FnOnce(FileAttributes) -> SparseParts,
    ) -> Result<Arc<dyn Source>, Error> {
        let key = (tree, path.to_owned());
        let mut state = self.0.lock();
        let (early, head) = (state.early.remove(&key), state.heads.remove(&key).unwrap_or(HEAD));
        drop(state);
        let request = |id| WireRequest::Open { id, tree, path: path.to_owned(), head };
        let id = early.map_or_else(|| self.0.send(request, &|| false), Ok);
        let answer = id.and_then(|id| self.0.wait(id, &|| false)).map_err(|why| why.of(name))?;
        let (first, parts) = self.source(answer, name, parts)?;
        let again =
            TreeReopener { client: self.clone(), tree, path: path.into(), name: name.into(), len: first.len(), parts };
        Ok(Arc::new(ReopenedSource::new(first, Box::new(again))?))
    }

    /// The source of an answer to [`WireRequest::Open`].
    fn source(
        &self,
        answer: ClientAnswer,
        name: &str,
        parts: impl FnOnce(FileAttributes) -> SparseParts,
    ) -> Result<(Arc<dyn Source>, SparseParts), Error> {
        match answer {
            ClientAnswer::Object(object, len, attributes, descriptors) => {
                let fill = Arc::new(FetchedObject { client: self.clone(), object, name: name.to_owned() });
                let parts = parts(attributes);
                Ok((Arc::new(SparseSource::new(name, len, descriptors, fill, parts)?), parts))
            }
            ClientAnswer::Whole(len, attributes, descriptors) => match <[OwnedFd; 1]>::try_from(descriptors) {
                Ok([data]) => {
                    let parts = parts(attributes);
                    Ok((Arc::new(WholeFile::new(name, len, data, parts)?), parts))
                }
                Err(_) => Err(unexpected(name)),
            },
            _ => Err(unexpected(name)),
        }
    }
}

/// Opens a file of a tree again.
#[derive(Debug)]
struct TreeReopener {
    client: FetchClient,
    tree: u32,
    path: Box<str>,
    /// For messages.
    name: Box<str>,
    /// Size in bytes.
    len: u64,
    parts: SparseParts,
}

impl SourceReopener for TreeReopener {
    fn open(&self, is_cancelled: &dyn Fn() -> bool) -> Result<Arc<dyn Source>, Error> {
        let Self { client, tree, path, name, len, parts } = self;
        let request = |id| WireRequest::Open { id, tree: *tree, path: path.to_string(), head: 0 };
        let answer = client.0.call(request, is_cancelled).map_err(|why| why.of(name))?;
        let (source, _) = client.source(answer, name, |_| *parts)?;
        // The other process opens the same version again.
        if source.len() == *len { Ok(source) } else { Err(unexpected(name)) }
    }
}

fn ended() -> FetchFailure {
    FetchFailure::lasting("weightfs-fetch has ended; mount it again")
}

fn interrupted() -> FetchFailure {
    FetchFailure::transient("interrupted")
}

fn unexpected(name: &str) -> Error {
    FetchFailure::lasting("weightfs-fetch sent another reply than was asked for").of(name)
}

impl ClientShared {
    fn lock(&self) -> MutexGuard<'_, ClientState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a request and waits for its reply, for as long as `is_cancelled` is false.
    fn call(
        &self,
        request: impl FnOnce(u64) -> WireRequest,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<ClientAnswer, FetchFailure> {
        self.wait(self.send(request, is_cancelled)?, is_cancelled)
    }

    /// Sends a request, and returns its number. If the other process is so slow that this would wait, tries again for
    /// as long as `is_cancelled` is false.
    fn send(
        &self,
        request: impl FnOnce(u64) -> WireRequest,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<u64, FetchFailure> {
        let mut state = self.lock();
        if state.ended {
            return Err(ended());
        }
        self.close_unclosed(&mut state);
        let id = state.number();
        drop(state);
        let request = request(id);
        loop {
            match self.channel.try_send(&request) {
                Ok(true) => return Ok(id),
                Ok(false) if is_cancelled() => {
                    self.lock().waiting.remove(&id);
                    return Err(interrupted());
                }
                Ok(false) => std::thread::sleep(SEND_AGAIN),
                Err(_) => {
                    self.end();
                    return Err(ended());
                }
            }
        }
    }

    /// Sends a message without a reply. It is dropped if the other process is slow or has ended.
    fn hint(&self, request: &WireRequest) {
        let _ = self.channel.try_send(request);
    }

    /// Waits for the reply to a request, for as long as `is_cancelled` is false.
    fn wait(&self, id: u64, is_cancelled: &dyn Fn() -> bool) -> Result<ClientAnswer, FetchFailure> {
        let started = Instant::now();
        let mut state = self.lock();
        loop {
            if state.waiting.get(&id).is_some_and(Option::is_some) {
                return match state.waiting.remove(&id).flatten() {
                    Some(ClientAnswer::Failed(failure)) => Err(failure),
                    Some(answer) => Ok(answer),
                    None => Err(ended()),
                };
            }
            if state.ended {
                return Err(ended());
            }
            if is_cancelled() {
                drop(state);
                self.cancel(id);
                return Err(interrupted());
            }
            if state.heard.map_or(started, |heard| heard.max(started)).elapsed() > self.patience {
                drop(state);
                self.cancel(id);
                let time = self.patience.as_secs();
                return Err(FetchFailure::transient(format!(
                    "weightfs-fetch has said nothing for {time} s; is it stopped?"
                )));
            }
            state = self.replied.wait_timeout(state, CHECK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Ends a request. Its reply is dropped.
    fn cancel(&self, id: u64) {
        let answer = self.lock().waiting.remove(&id).flatten();
        self.hint(&WireRequest::Cancel { id });
        if let Some(ClientAnswer::Object(object, ..)) = answer {
            self.close(object);
        }
    }

    /// Makes the other process close an object, now or before the next request.
    fn close(&self, object: u32) {
        let mut state = self.lock();
        state.unclosed.push(object);
        self.close_unclosed(&mut state);
    }

    fn close_unclosed(&self, state: &mut ClientState) {
        while let Some(object) = state.unclosed.last() {
            match self.channel.try_send(&WireRequest::Close { object: *object }) {
                Ok(false) => return,
                // If the connection has ended, everything is closed.
                Ok(true) | Err(_) => state.unclosed.pop(),
            };
        }
    }

    /// Receives replies until the connection ends, or until [`WireReply::Rested`].
    fn receive(&self) {
        // Writing a message may wait for a terminal. Replies do not wait for that; messages that are too many are lost.
        let (sender, messages) = sync_channel::<(u8, String)>(LOG_MAX);
        let write = move || messages.iter().for_each(|(level, text)| write_log(level, &text));
        let logger = std::thread::Builder::new().name("remote log".into()).spawn(write);
        self.receive_all(&sender);
        drop(sender);
        // The thread does not panic: a panic ends the program.
        let _ = logger.map(JoinHandle::join);
    }

    fn receive_all(&self, log: &SyncSender<(u8, String)>) {
        loop {
            match self.channel.receive::<WireReply>() {
                Ok(Some((WireReply::Rested, _))) => return,
                Ok(Some((WireReply::Log { level, text }, _))) => {
                    self.lock().heard = Some(Instant::now());
                    let _ = log.try_send((level, text));
                }
                Ok(Some((reply, descriptors))) => {
                    if !self.take(reply, descriptors) {
                        log::error!("weightfs-fetch sent a list of files that is too long, or that nobody asked for");
                        break;
                    }
                }
                Ok(None) => {
                    log::error!("weightfs-fetch has ended; what was not fetched yet cannot be read any more");
                    break;
                }
                Err(error) => {
                    log::error!("weightfs-fetch: {error}");
                    break;
                }
            }
        }
        self.end();
    }

    /// Takes a reply in. Returns false if it breaks the protocol.
    fn take(&self, reply: WireReply, descriptors: Vec<OwnedFd>) -> bool {
        let mut state = self.lock();
        state.heard = Some(Instant::now());
        match reply {
            WireReply::Tree { id, tree, about, entries } => {
                if entries > ENTRIES_MAX || !state.waiting.contains_key(&id) {
                    return false;
                }
                state.listing.insert(tree, ClientListing { id, about, missing: entries, size: 0, entries: Vec::new() });
                state.finish_listing(tree);
            }
            WireReply::Entries { tree, entries } => {
                if let Some(listing) = state.listing.get_mut(&tree) {
                    let Some(missing) = listing.missing.checked_sub(entries.len() as u64) else { return false };
                    listing.missing = missing;
                    listing.size += entries.iter().map(|(path, _)| path.len()).sum::<usize>();
                    if listing.size > PATHS_MAX {
                        return false;
                    }
                    listing.entries.extend(entries);
                    state.finish_listing(tree);
                }
            }
            WireReply::Object { id, object, len, is_public, mtime } => {
                // A file that was opened for a request which has ended since is closed again.
                if !state
                    .answer(id, ClientAnswer::Object(object, len, FileAttributes { is_public, mtime }, descriptors))
                {
                    state.unclosed.push(object);
                    self.close_unclosed(&mut state);
                }
            }
            WireReply::Whole { id, len, is_public, mtime } => {
                _ = state.answer(id, ClientAnswer::Whole(len, FileAttributes { is_public, mtime }, descriptors));
            }
            WireReply::Ready { id } => _ = state.answer(id, ClientAnswer::Ready),
            WireReply::Failed { id, failure } => _ = state.answer(id, ClientAnswer::Failed(failure)),
            WireReply::Counts(counts) => state.counts = counts,
            WireReply::Log { .. } | WireReply::Rested => {}
        }
        drop(state);
        self.replied.notify_all();
        true
    }

    fn end(&self) {
        self.lock().ended = true;
        self.replied.notify_all();
    }
}

/// Logs a message of the other process.
fn write_log(level: u8, text: &str) {
    let level = match level {
        1 => log::Level::Error,
        2 => log::Level::Warn,
        3 => log::Level::Info,
        _ => log::Level::Debug,
    };
    log::log!(target: "weightfs", level, "{text}");
}

impl ClientState {
    /// The number of a new request, whose reply somebody waits for.
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.waiting.insert(self.last, None);
        self.last
    }

    /// Keeps an answer for the thread that waits for it. The answer to a cancelled request is dropped; returns false
    /// then.
    fn answer(&mut self, id: u64, answer: ClientAnswer) -> bool {
        match self.waiting.get_mut(&id) {
            Some(waiting) => {
                *waiting = Some(answer);
                true
            }
            None => false,
        }
    }

    fn finish_listing(&mut self, tree: u32) {
        if self.listing.get(&tree).is_some_and(|listing| listing.missing == 0)
            && let Some(ClientListing { id, about, entries, .. }) = self.listing.remove(&tree)
        {
            _ = self.answer(id, ClientAnswer::Tree(tree, about, entries));
        }
    }
}

/// An open file of the other process.
#[derive(Debug)]
struct FetchedObject {
    client: FetchClient,
    object: u32,
    name: String,
}

impl FillProcess for FetchedObject {
    fn fill(&self, range: Range<u64>, within: Range<u64>, is_cancelled: &dyn Fn() -> bool) -> Result<(), Error> {
        let Self { client, object, name } = self;
        client.0.waited.fetch_add(range.end - range.start, Relaxed);
        let request = |id| WireRequest::Need { id, object: *object, range: span(&range), within: span(&within) };
        match client.0.call(request, is_cancelled).map_err(|why| why.of(name))? {
            ClientAnswer::Ready => Ok(()),
            _ => Err(unexpected(name)),
        }
    }

    fn touched(&self, range: Range<u64>, within: Range<u64>) {
        // If the connection has ended, nothing is fetched any more.
        let (range, within) = (span(&range), span(&within));
        self.client.0.hint(&WireRequest::Touched { object: self.object, range, within });
    }

    fn stream(&self, range: Range<u64>) -> Box<dyn Send> {
        let Self { client, object, .. } = self;
        let request = |id| WireRequest::Need { id, object: *object, range: span(&range), within: span(&(0..0)) };
        Box::new(ReplyStream { client: client.clone(), id: client.0.send(request, &|| true).ok() })
    }

    fn served(&self, bytes: u64) {
        self.client.0.served.fetch_add(bytes, Relaxed);
    }
}

/// A request whose reply nobody waits for. It is cancelled on drop.
struct ReplyStream {
    client: FetchClient,
    /// `None` if the connection has ended.
    id: Option<u64>,
}

impl Drop for ReplyStream {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.client.0.cancel(id);
        }
    }
}

impl Drop for FetchedObject {
    fn drop(&mut self) {
        self.client.0.close(self.object);
    }
}

fn span(range: &Range<u64>) -> WireSpan {
    WireSpan { start: range.start, end: range.end }
}
