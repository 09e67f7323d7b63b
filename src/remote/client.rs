//! The reading process's end of the connection to the process that fetches.

use super::location;
use super::lock_mutex;
use super::planner::BLOCK;
use super::protocol::{
    FetchCounts, FetchOptions, HEAD, WireAbout, WireAttributes, WireChannel, WireReply, WireRequest,
};
use crate::source::{
    Error, FetchFailure, FetchedFile, FetchedOpener, FileId, FillProcess, OpenFetched, Source, SourceInfo, SourceStat,
    fetched_files_limit,
};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, UNIX_EPOCH};

/// The interval in which a waiting thread checks whether its reader is gone.
const CHECK_EVERY: Duration = Duration::from_millis(50);

/// Maximum number of messages that wait to be written to the log.
const LOG_MAX: usize = 256;

/// The time beyond twice the timeout of a read for which a reader waits if nothing is heard of the other process.
const PATIENCE_MORE: Duration = Duration::from_secs(30);

/// The time before a message is sent again.
const SEND_AGAIN: Duration = Duration::from_millis(5);

/// Maximum size of all paths of a tree, in bytes.
const PATHS_MAX: usize = 256 << 20;

/// Maximum number of files in a tree: as many as in a scan of a local directory.
const ENTRIES_MAX: u64 = 1_000_000;

/// Maximum number of files that are opened before anyone waits for them, besides that of [`fetched_files_limit`].
/// Each one takes four descriptors.
const EARLY_MAX: usize = 200;

/// Clones are the same connection.
#[derive(Debug, Clone)]
pub struct FetchClient(Arc<ClientShared>);

#[derive(Debug)]
struct ClientShared {
    channel: WireChannel,
    state: Mutex<ClientState>,
    /// Notified when a reply has arrived, or the connection has ended.
    replied: Condvar,
    receiver: Mutex<Option<JoinHandle<()>>>,
    /// The time for which a reader waits although nothing is heard of the other process. That process reports progress
    /// and ends requests that make none, unless it is stopped or its disk hangs.
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
    counts: FetchCounts,
    /// When the last reply came.
    heard: Option<Instant>,
    ended: bool,
}

type FetchResult<T> = Result<T, FetchFailure>;

/// The reply to a request, with what came beside it and after it.
#[derive(Debug)]
struct ClientAnswer {
    reply: WireReply,
    descriptors: Vec<OwnedFd>,
    /// The entries of [`WireReply::Tree`] that have arrived, and the size of their paths in bytes.
    entries: Vec<(String, u64)>,
    size: usize,
}

/// The counts of what a client has read and fetched so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClientTraffic {
    pub fetched: FetchCounts,
    /// Bytes that were read from files.
    pub served: u64,
    /// Bytes among them for which a reader had to wait.
    pub waited: u64,
}

impl ClientTraffic {
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
        let seconds = *busy as f64 / 1000.0;
        write!(f, "fetched {bytes} bytes in {requests} requests and {seconds:.1} s; ")?;
        write!(f, "{served} bytes were read, {waited} of them after waiting")
    }
}

impl FetchClient {
    pub fn new(channel: WireChannel, start: FetchOptions) -> io::Result<Self> {
        let patience = start.timeout().saturating_mul(2) + PATIENCE_MORE;
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
        *lock_mutex(&self.0.receiver) = Some(receiver);
        Ok(())
    }

    /// Ends the thread that receives replies. Nobody may wait for a reply until [`FetchClient::resume`].
    pub fn rest(&self) {
        // If the connection has ended, so does the thread.
        let _ = self.0.channel.send(&WireRequest::Seal, &[]);
        let receiver = lock_mutex(&self.0.receiver).take();
        // The thread does not panic: a panic ends the program.
        let _ = receiver.map(JoinHandle::join);
    }

    /// Finds the files at a URL, in their current version. Returns the number of their tree, and their paths and sizes.
    pub(super) fn find(&self, url: &str) -> Result<(u32, WireAbout, BTreeMap<String, u64>), Error> {
        let answer = self.0.call(|id| WireRequest::Resolve { id, url: url.to_owned() }, &|| false);
        // The URL may contain secrets, which a location does not print.
        let shown = location::RemoteLocation::parse(url).ok().flatten().map_or_else(String::new, |at| at.to_string());
        match answer.map_err(|why| why.of(&shown))? {
            ClientAnswer { reply: WireReply::Tree { tree, about, .. }, entries, .. } => {
                Ok((tree, about, entries.into_iter().collect()))
            }
            _ => Err(unexpected(&shown)),
        }
    }

    /// The number of requests that were sent to servers, as far as reported. `None` once bytes of a file have arrived.
    pub fn attempts(&self) -> Option<u64> {
        let counts = self.0.lock().counts;
        (counts.bytes == 0).then_some(counts.requests)
    }

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
        let most = EARLY_MAX.min(fetched_files_limit() / 2);
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

    /// Opens a file of a tree. Messages call it `name`, and `id` identifies it.
    pub(super) fn open(&self, tree: u32, path: &str, name: &str, id: FileId) -> Result<Arc<dyn Source>, Error> {
        let key = (tree, path.to_owned());
        let mut state = self.0.lock();
        let (early, head) = (state.early.remove(&key), state.heads.remove(&key).unwrap_or(HEAD));
        drop(state);
        let request = |id| WireRequest::Open { id, tree, path: path.to_owned(), head };
        let number = early.map_or_else(|| self.0.send(request, &|| false), Ok);
        let answer = number.and_then(|number| self.0.wait(number, &|| false)).map_err(|why| why.of(name))?;
        let (first, len, attributes) = self.opened(answer, name)?;
        let opener = TreeOpener { client: self.clone(), tree, path: path.into(), name: name.into(), len };
        let (stat, version) = (attributes.stat(), attributes.version);
        let info = SourceInfo { len, stat, path: None, id: Some(id), version, ends: Some(Arc::default()) };
        Ok(Arc::new(FetchedFile::new(info, first, Box::new(opener))))
    }

    /// The file of an answer to [`WireRequest::Open`], its size in bytes, and its attributes.
    fn opened(&self, answer: ClientAnswer, name: &str) -> Result<(OpenFetched, u64, WireAttributes), Error> {
        let ClientAnswer { reply, descriptors, .. } = answer;
        let WireReply::File { object, len, attributes, .. } = reply else { return Err(unexpected(name)) };
        if let Some(object) = object {
            let fill = Box::new(FetchedObject { client: self.clone(), object, name: name.to_owned() });
            return Ok((OpenFetched::sparse(name, len, descriptors, fill)?, len, attributes));
        }
        let [data] = <[OwnedFd; 1]>::try_from(descriptors).map_err(|_| unexpected(name))?;
        Ok((OpenFetched::whole(name, len, data)?, len, attributes))
    }
}

#[derive(Debug)]
struct TreeOpener {
    client: FetchClient,
    tree: u32,
    path: Box<str>,
    name: Box<str>,
    /// Size in bytes.
    len: u64,
}

impl FetchedOpener for TreeOpener {
    fn open(&self, is_cancelled: &dyn Fn() -> bool) -> Result<OpenFetched, Error> {
        let Self { client, tree, path, name, len } = self;
        let request = |id| WireRequest::Open { id, tree: *tree, path: path.to_string(), head: 0 };
        let answer = client.0.call(request, is_cancelled).map_err(|why| why.of(name))?;
        let (open, found, _) = client.opened(answer, name)?;
        // The other process opens the same version again.
        if found == *len { Ok(open) } else { Err(unexpected(name)) }
    }
}

impl WireAttributes {
    /// The attributes of a file of the user who reads it.
    pub(super) fn stat(self) -> SourceStat {
        let (uid, gid) = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
        let mtime = u64::try_from(self.mtime).ok().and_then(|at| UNIX_EPOCH.checked_add(Duration::from_secs(at)));
        let mode = if self.is_public { 0o444 } else { 0o400 };
        SourceStat { uid, gid, mode, mtime: mtime.unwrap_or(UNIX_EPOCH), ctime: (0, 0) }
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
        lock_mutex(&self.state)
    }

    /// Sends a request and waits for its reply, for as long as `is_cancelled` is false.
    fn call(
        &self,
        request: impl FnOnce(u64) -> WireRequest,
        is_cancelled: &dyn Fn() -> bool,
    ) -> FetchResult<ClientAnswer> {
        self.wait(self.send(request, is_cancelled)?, is_cancelled)
    }

    /// Sends a request, and returns its number. If the other process is so slow that this would wait, tries again for
    /// as long as `is_cancelled` is false.
    fn send(&self, request: impl FnOnce(u64) -> WireRequest, is_cancelled: &dyn Fn() -> bool) -> FetchResult<u64> {
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

    /// Waits for the reply to a request, for as long as `is_cancelled` is false.
    fn wait(&self, id: u64, is_cancelled: &dyn Fn() -> bool) -> FetchResult<ClientAnswer> {
        let started = Instant::now();
        let mut state = self.lock();
        let failure = loop {
            match state.take_answer(id) {
                Some(ClientAnswer { reply: WireReply::Failed { failure, .. }, .. }) => return Err(failure),
                Some(answer) => return Ok(answer),
                None => {}
            }
            if state.ended {
                return Err(ended());
            }
            if is_cancelled() {
                break interrupted();
            }
            if state.heard.map_or(started, |heard| heard.max(started)).elapsed() > self.patience {
                let seconds = self.patience.as_secs();
                let why = format!("weightfs-fetch has said nothing for {seconds} s; is it stopped?");
                break FetchFailure::transient(why);
            }
            state = self.replied.wait_timeout(state, CHECK_EVERY).unwrap_or_else(PoisonError::into_inner).0;
        };
        drop(state);
        self.cancel(id);
        Err(failure)
    }

    /// Ends a request. Its reply is dropped.
    fn cancel(&self, id: u64) {
        let answer = self.lock().waiting.remove(&id).flatten();
        // If the other process is slow, its answer is dropped.
        let _ = self.channel.try_send(&WireRequest::Cancel { id });
        if let Some(WireReply::File { object: Some(object), .. }) = answer.map(|answer| answer.reply) {
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

    /// Receives replies until the connection ends, or until [`WireReply::Sealed`].
    fn receive(&self) {
        // Writing a message may wait for a terminal. Replies do not wait for that; messages that are too many are lost.
        let (sender, messages) = sync_channel::<(u8, String)>(LOG_MAX);
        let logger = std::thread::Builder::new().name("remote log".into()).spawn(move || {
            for (level, text) in messages {
                let level = log::Level::iter().nth(usize::from(level).saturating_sub(1)).unwrap_or(log::Level::Debug);
                log::log!(target: "weightfs", level, "{text}");
            }
        });
        self.receive_all(&sender);
        drop(sender);
        // The thread does not panic: a panic ends the program.
        let _ = logger.map(JoinHandle::join);
    }

    fn receive_all(&self, log: &SyncSender<(u8, String)>) {
        loop {
            match self.channel.receive::<WireReply>() {
                Ok(Some((WireReply::Sealed, _))) => return,
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
        match &reply {
            WireReply::Tree { id, entries, .. } => {
                if *entries > ENTRIES_MAX || !state.answer(*id, reply, descriptors) {
                    return false;
                }
            }
            WireReply::Entries { id, entries } => {
                if let Some(Some(answer)) = state.waiting.get_mut(id) {
                    answer.size += entries.iter().map(|(path, _)| path.len()).sum::<usize>();
                    answer.entries.extend_from_slice(entries);
                    if answer.missing().is_none() || answer.size > PATHS_MAX {
                        return false;
                    }
                }
            }
            WireReply::File { id, object, .. } => {
                let object = *object;
                let is_wanted = state.answer(*id, reply, descriptors);
                // A file that was opened for a request which has ended since is closed again.
                if let Some(object) = object.filter(|_| !is_wanted) {
                    state.unclosed.push(object);
                    self.close_unclosed(&mut state);
                }
            }
            WireReply::Ready { id } | WireReply::Failed { id, .. } => _ = state.answer(*id, reply, descriptors),
            WireReply::Counts(counts) => state.counts = *counts,
            WireReply::Log { .. } | WireReply::Sealed => {}
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

impl ClientAnswer {
    /// The number of entries that are still to arrive. `None` if there are too many.
    fn missing(&self) -> Option<u64> {
        let all = if let WireReply::Tree { entries, .. } = self.reply { entries } else { 0 };
        all.checked_sub(self.entries.len() as u64)
    }
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
    fn answer(&mut self, id: u64, reply: WireReply, descriptors: Vec<OwnedFd>) -> bool {
        let answer = ClientAnswer { reply, descriptors, entries: Vec::new(), size: 0 };
        self.waiting.get_mut(&id).map(|waiting| *waiting = Some(answer)).is_some()
    }

    /// The answer to a request, if all of it has arrived.
    fn take_answer(&mut self, id: u64) -> Option<ClientAnswer> {
        self.waiting.get(&id)?.as_ref().filter(|answer| answer.missing() == Some(0))?;
        self.waiting.remove(&id)?
    }
}

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
        let request = |id| WireRequest::Need { id, object: *object, range: range.clone(), within: within.clone() };
        match client.0.call(request, is_cancelled).map_err(|why| why.of(name))?.reply {
            WireReply::Ready { .. } => Ok(()),
            _ => Err(unexpected(name)),
        }
    }

    fn touched(&self, range: Range<u64>, within: Range<u64>) {
        // If the other process is slow or has ended, nothing more is fetched ahead.
        let _ = self.client.0.channel.try_send(&WireRequest::Touched { object: self.object, range, within });
    }

    fn stream(&self, range: Range<u64>) -> Box<dyn Send> {
        let Self { client, object, .. } = self;
        let request = |id| WireRequest::Need { id, object: *object, range: range.clone(), within: 0..0 };
        // If the connection has ended, nothing is fetched.
        Box::new(client.0.send(request, &|| true).ok().map(|id| ReplyStream { client: client.clone(), id }))
    }

    fn served(&self, bytes: u64) {
        self.client.0.served.fetch_add(bytes, Relaxed);
    }
}

/// A request whose reply nobody waits for. It is cancelled on drop.
struct ReplyStream {
    client: FetchClient,
    id: u64,
}

impl Drop for ReplyStream {
    fn drop(&mut self) {
        self.client.0.cancel(self.id);
    }
}

impl Drop for FetchedObject {
    fn drop(&mut self) {
        self.client.0.close(self.object);
    }
}
