//! The process that fetches. It has access to the network, the credentials and the cache only; no model is parsed here.
//! One loop receives requests and the results of transfers, and carries out what the planner decides.

mod kept;
mod open;
mod remarks;
mod retry;
mod trouble;

use super::cache::{self, Cache, Evicted, Object, Written};
use super::location::{Location, ParseError};
use super::planner::{Action, BLOCK, Event, HostId, Limits, ObjectId, PartId, Planner, TicketId, Why};
use super::protocol::{self, About, Channel, Counts, Failed, HEAD, Reply, Request, Start};
use super::transport::{self, Certainty, Client, Kind, Tree};
use kept::{Kept, Version};
use open::{Content, Opened};
use remarks::cut;
use retry::retry;
use std::collections::{HashMap, HashSet};
use std::io;
use std::ops::{ControlFlow, Range};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use trouble::Trouble;

/// Maximum number of files that are opened at a time.
const OPENING_MAX: usize = 32;

/// Maximum size of the paths in a message, in bytes: half of what a message may have.
const ENTRIES_SIZE: usize = protocol::PACKET_MAX / 2;

/// The numbers of requests are below this one. The loop's own needs have numbers from here on.
const OWN: u64 = 1 << 63;

/// Maximum number of inputs between two decisions of the planner.
const TURN_MAX: usize = 1024;

/// How many reasons of failed parts are kept for the tickets that fail because of them.
const TROUBLES_MAX: u64 = 1024;

/// Minimum time between two writes of what is known of trees.
const KEEP_EVERY: Duration = Duration::from_secs(1);

/// Minimum time between two reports of what was fetched.
const REPORT_EVERY: Duration = Duration::from_millis(500);

/// What the loop receives.
enum Input {
    Request(Request),
    /// The reading process has ended.
    Ended,
    Resolved {
        id: u64,
        found: Result<Found, Trouble>,
    },
    Opened {
        id: u64,
        tree: u32,
        path: String,
        head: u64,
        opened: Box<Result<Opened, Trouble>>,
    },
    Received {
        part: PartId,
        bytes: u64,
        evicted: Vec<Evicted>,
    },
    /// Bytes of a part that are in the cache already.
    Skipped {
        part: PartId,
        bytes: u64,
    },
    Finished {
        part: PartId,
    },
    Failed {
        part: PartId,
        trouble: Trouble,
    },
}

/// What a location leads to.
struct Found {
    /// `None` if it was found in the cache only.
    tree: Option<Arc<Tree>>,
    kept: Kept,
    /// The name under which it is kept.
    name: String,
    /// The files that the listing of the tree does not contain, as they were found when they were opened.
    opened: HashMap<String, transport::Object>,
}

/// A file that the reading process reads.
struct Open {
    version: Version,
    /// `None` if it cannot be fetched.
    remote: Option<transport::Object>,
    local: Object,
}

/// A part that is being fetched.
struct Part {
    object: ObjectId,
    range: Range<u64>,
    abort: AbortHandle,
    /// Bytes that are still to be written.
    missing: u64,
}

struct Session {
    channel: Arc<Channel>,
    client: Client,
    cache: Cache,
    planner: Planner,
    timeout: Duration,
    ahead_total: u64,
    offline: bool,
    /// Whether the reading process has entered its sandbox. From then on it may be compromised, so only files that were
    /// known before are opened.
    is_sealed: bool,
    epoch: Instant,
    /// By their number.
    trees: Vec<Found>,
    /// Without those that were closed.
    objects: HashMap<u32, Open>,
    /// The number of the next object.
    next_object: u32,
    /// The requests for files of which the first bytes are being fetched, and the object, by the ticket.
    opening_heads: HashMap<TicketId, (u64, ObjectId)>,
    hosts: HashMap<String, HostId>,
    /// The hosts of which the log says that their files have no reliable version.
    unsure: HashSet<String>,
    parts: HashMap<PartId, Part>,
    /// The requests for files that are being probed.
    probing: HashSet<u64>,
    /// Why parts failed, as long as a ticket may fail for it.
    troubles: HashMap<PartId, (Failed, String)>,
    opening: Arc<Semaphore>,
    inputs: mpsc::UnboundedSender<Input>,
    counted: Counted,
    /// The trees of which more is known than what the cache keeps, and when it was kept last.
    unkept: HashSet<u32>,
    kept_at: Option<Instant>,
}

/// What was fetched, and what of it was reported.
#[derive(Default)]
struct Counted {
    bytes: u64,
    busy: Duration,
    busy_since: Option<Instant>,
    reported: Counts,
    reported_at: Option<Instant>,
}

/// The process that fetches, after its start. There is no thread yet, so that a sandbox can be entered.
pub struct Fetcher {
    channel: Arc<Channel>,
    start: Start,
    /// The first request after the start.
    first: Request,
    options: transport::Options,
    cache: Result<OpenCache, String>,
}

struct OpenCache {
    cache: Cache,
    dir: PathBuf,
    /// In bytes.
    limit: Option<u64>,
}

impl Fetcher {
    /// Waits for the first messages of the reading process, and opens the cache. `None` if that process has ended.
    /// From now on, messages of the log are sent to it.
    pub fn accept(channel: Channel) -> io::Result<Option<Self>> {
        let start = match channel.receive::<Request>()? {
            None => return Ok(None),
            Some((Request::Start(start), _)) if start.version == protocol::VERSION => start,
            Some(_) => return Err(io::Error::other("the program was replaced while it ran; start it again")),
        };
        let Some((first, _)) = channel.receive::<Request>()? else { return Ok(None) };
        let channel = Arc::new(channel);
        remarks::send_to(channel.clone());
        let (defaults, timeout) = (transport::Options::default(), timeout(&start));
        let options = transport::Options {
            offline: start.offline,
            token_file: start.token_file.as_ref().map(PathBuf::from),
            connect_timeout: defaults.connect_timeout.min(timeout),
            idle_timeout: defaults.idle_timeout.min(timeout),
            ..defaults
        };
        let cache = OpenCache::new(&start);
        Ok(Some(Self { channel, start, first, options, cache }))
    }

    /// The directory of the cache, if there is one.
    pub fn cache_dir(&self) -> Option<&Path> {
        self.cache.as_ref().ok().map(|open| &*open.dir)
    }

    /// The files, and the directories with all that is below them, that are read besides the cache.
    pub fn reads(&self) -> Vec<PathBuf> {
        transport::reads(&self.options)
    }

    /// Whether the user turned the sandbox off.
    pub fn has_no_sandbox(&self) -> bool {
        self.start.no_sandbox
    }

    /// Why a program must be run to get credentials, if so. The first location decides.
    pub fn program(&self) -> Option<String> {
        let Request::Resolve { url, .. } = &self.first else { return None };
        transport::program(&self.options, &Location::parse(url).ok()??)
    }

    /// Serves the reading process until it ends.
    pub fn serve(self) -> io::Result<()> {
        let Self { channel, start, first, options, cache } = self;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("fetch").build()?;
        let (inputs, taken) = mpsc::unbounded_channel();
        let (receiving, sender) = (channel.clone(), inputs.clone());
        let session = {
            let _entered = runtime.enter();
            cache.and_then(|cache| Session::new(channel.clone(), &start, options, cache, inputs))
        };
        let session = match session {
            Ok(session) => session,
            Err(reason) => return refuse(&channel, first, &reason),
        };
        // This does not fail, because the loop has the other end.
        let _ = sender.send(Input::Request(first));
        std::thread::Builder::new().name("requests".into()).spawn(move || {
            loop {
                let input = match receiving.receive::<Request>() {
                    Ok(Some((request, _))) => Input::Request(request),
                    Ok(None) | Err(_) => Input::Ended,
                };
                let ends = matches!(input, Input::Ended);
                if sender.send(input).is_err() || ends {
                    return;
                }
            }
        })?;
        runtime.block_on(session.run(taken));
        Ok(())
    }
}

impl OpenCache {
    fn new(start: &Start) -> Result<Self, String> {
        let dir = cache::default_dir();
        let dir = dir.ok_or("no cache: neither XDG_CACHE_HOME nor HOME is an absolute path")?;
        let cached = || Some(Cache::list(&dir).ok()?.cached());
        let limit = start.cache_size.or_else(|| cache::default_limit(&dir, cached()?));
        let options = cache::Options { limit, ..cache::Options::default() };
        let cache = Cache::open(&dir, options).map_err(|error| error.to_string())?;
        Ok(Self { cache, dir, limit })
    }
}

/// After this time without success, a read fails.
fn timeout(start: &Start) -> Duration {
    start.timeout.map_or(Limits::default().timeout, Duration::from_millis)
}

/// Answers all requests with an error.
fn refuse(channel: &Channel, first: Request, reason: &str) -> io::Result<()> {
    let mut next = Some(first);
    while let Some(request) = next {
        match request {
            Request::Resolve { id, .. } | Request::Open { id, .. } | Request::Need { id, .. } => {
                channel.send(&Reply::Failed { id, failure: Failed::Lasting, reason: reason.to_owned() }, &[])?;
            }
            Request::Rest => channel.send(&Reply::Rested, &[])?,
            Request::Start(_) | Request::Touched { .. } | Request::Cancel { .. } | Request::Close { .. } => {}
        }
        next = channel.receive::<Request>()?.map(|(request, _)| request);
    }
    Ok(())
}

impl Session {
    fn new(
        channel: Arc<Channel>,
        start: &Start,
        options: transport::Options,
        OpenCache { cache, limit, .. }: OpenCache,
        inputs: mpsc::UnboundedSender<Input>,
    ) -> Result<Self, String> {
        let timeout = timeout(start);
        let mut limits = Limits { timeout, ..Limits::default() };
        let client = Client::new(options).map_err(|error| error.to_string())?;
        if let Some(size) = limit {
            limits.ahead_total = limits.ahead_total.min(size / 4);
            limits.ahead_max = limits.ahead_max.min(size / 8);
        }
        let ahead_total = limits.ahead_total;
        let planner = Planner::new(limits, u64::from(std::process::id()));
        let (trees, objects, opening_heads, hosts, unsure) = Default::default();
        let (parts, probing, troubles, counted) = Default::default();
        let (epoch, opening) = (Instant::now(), Arc::new(Semaphore::new(OPENING_MAX)));
        Ok(Self {
            channel,
            client,
            cache,
            planner,
            timeout,
            ahead_total,
            offline: start.offline,
            is_sealed: false,
            epoch,
            trees,
            objects,
            next_object: 0,
            opening_heads,
            hosts,
            unsure,
            parts,
            probing,
            troubles,
            opening,
            inputs,
            counted,
            unkept: HashSet::new(),
            kept_at: None,
        })
    }

    async fn run(mut self, mut taken: mpsc::UnboundedReceiver<Input>) {
        loop {
            let wake = self.planner.wake_at().map(|at| tokio::time::Instant::from_std(self.epoch + at));
            let input = match wake {
                Some(at) => tokio::time::timeout_at(at, taken.recv()).await.ok(),
                None => Some(taken.recv().await),
            };
            match input {
                Some(None | Some(Input::Ended)) => return self.keep(),
                Some(Some(input)) => self.take(input),
                None => {}
            }
            // Inputs that have arrived already are handled before the planner decides.
            for _ in 0..TURN_MAX {
                let Ok(input) = taken.try_recv() else { break };
                if matches!(input, Input::Ended) {
                    return self.keep();
                }
                self.take(input);
            }
            let evicted = self.cache.take_evicted();
            self.forget(evicted);
            while let Some(action) = self.planner.poll(self.epoch.elapsed()) {
                self.act(action);
            }
            self.report();
            if !self.unkept.is_empty() && self.kept_at.is_none_or(|at| at.elapsed() >= KEEP_EVERY) {
                self.keep();
            }
        }
    }

    /// Keeps in the cache what is known of trees.
    fn keep(&mut self) {
        for tree in std::mem::take(&mut self.unkept) {
            if let Some(found) = self.trees.get(tree as usize) {
                found.kept.keep(&self.cache, &found.name);
            }
        }
        self.kept_at = Some(Instant::now());
    }

    /// Reports what was fetched, if that has changed: at once if nothing is being fetched any more.
    fn report(&mut self) {
        let (is_idle, counted) = (self.parts.is_empty() && self.probing.is_empty(), &mut self.counted);
        match counted.busy_since {
            None if !is_idle => counted.busy_since = Some(Instant::now()),
            Some(since) if is_idle => {
                counted.busy += since.elapsed();
                counted.busy_since = None;
            }
            _ => {}
        }
        let busy = counted.busy + counted.busy_since.map_or(Duration::ZERO, |since| since.elapsed());
        let counts = Counts { requests: self.client.requests(), bytes: counted.bytes, busy: busy.as_millis() as u64 };
        let is_due = is_idle || counted.reported_at.is_none_or(|at| at.elapsed() >= REPORT_EVERY);
        let has_changed = (counts.requests, counts.bytes) != (counted.reported.requests, counted.reported.bytes);
        if is_due && has_changed {
            (counted.reported, counted.reported_at) = (counts, Some(Instant::now()));
            self.reply(&Reply::Counts(counts));
        }
    }

    fn event(&mut self, event: Event) {
        self.planner.handle(self.epoch.elapsed(), event);
    }

    /// Sends a reply. If the other side is gone, the loop ends soon.
    fn reply(&self, reply: &Reply) {
        self.send(None, reply, &[]);
    }

    /// Sends a reply and descriptors. If the reply makes no message, the request `id` fails, so that nobody waits for
    /// it.
    fn send(&self, id: Option<u64>, reply: &Reply, beside: &[BorrowedFd]) {
        let Err(error) = self.channel.send(reply, beside) else { return };
        if error.raw_os_error().is_none() {
            log::error!("a message to the reading process cannot be sent: {error}");
            if let Some(id) = id {
                let reason = "weightfs-fetch cannot describe it".to_owned();
                let _ = self.channel.send(&Reply::Failed { id, failure: Failed::Lasting, reason }, &[]);
            }
        }
    }

    fn fail(&self, id: u64, failure: Failed, mut reason: String) {
        cut(&mut reason);
        self.reply(&Reply::Failed { id, failure, reason });
    }

    fn take(&mut self, input: Input) {
        match input {
            Input::Ended => {}
            Input::Request(request) => self.request(request),
            Input::Resolved { id, found: Ok(found) } => self.add_tree(id, found),
            Input::Resolved { id, found: Err(trouble) } => self.fail(id, trouble.failed(), trouble.reason()),
            Input::Opened { id, tree, path, head, opened } => {
                self.probing.remove(&id);
                match *opened {
                    Ok(opened) => self.add_opened(id, tree, path, head, opened),
                    Err(trouble) => self.fail(id, trouble.failed(), trouble.reason()),
                }
            }
            Input::Received { part, bytes, evicted } => {
                if let Some(running) = self.parts.get_mut(&part) {
                    running.missing = running.missing.saturating_sub(bytes);
                }
                self.forget(evicted);
                self.counted.bytes += bytes;
                self.event(Event::Received { part, bytes });
            }
            Input::Skipped { part, bytes } => {
                if let Some(running) = self.parts.get_mut(&part) {
                    running.missing = running.missing.saturating_sub(bytes);
                }
                self.event(Event::Skipped { part, bytes });
            }
            Input::Finished { part } => {
                self.parts.remove(&part);
                self.event(Event::Finished { part });
            }
            Input::Failed { part, trouble } => {
                self.parts.remove(&part);
                self.troubles.retain(|old, _| old.0 + TROUBLES_MAX > part.0);
                self.troubles.insert(part, (trouble.failed(), trouble.reason()));
                self.event(Event::Failed { part, failure: trouble.failure() });
            }
        }
    }

    fn request(&mut self, request: Request) {
        match request {
            Request::Start(_) => {}
            Request::Resolve { id, url } => self.resolve(id, url),
            Request::Open { id, tree, path, head } => self.open(id, tree, path, head.min(HEAD)),
            Request::Need { id, object, range, within } => {
                let (range, within) = (range.start..range.end, within.start..within.end);
                self.need(TicketId(id), ObjectId(object), range, within);
            }
            Request::Touched { object, range, within } => {
                let (range, within) = (range.start..range.end, within.start..within.end);
                if let Some(open) = self.objects.get(&object) {
                    let end = range.end.div_ceil(BLOCK).min(open.local.blocks());
                    (range.start / BLOCK..end).for_each(|block| open.local.clear_trigger(block));
                }
                self.event(Event::Touched { object: ObjectId(object), range, within });
            }
            Request::Cancel { id } => self.event(Event::Cancel { ticket: TicketId(id) }),
            Request::Close { object } => {
                self.event(Event::Closed { object: ObjectId(object) });
                self.objects.remove(&object);
            }
            Request::Rest => {
                self.is_sealed = true;
                self.keep();
                self.reply(&Reply::Rested);
            }
        }
    }

    fn resolve(&self, id: u64, url: String) {
        if self.is_sealed {
            return self.fail(id, Failed::Lasting, "no other URL can be opened after the mount".into());
        }
        let (client, cache, inputs) = (self.client.clone(), self.cache.clone(), self.inputs.clone());
        let (timeout, offline) = (self.timeout, self.offline);
        tokio::spawn(async move {
            let found = resolve(&client, &cache, &url, timeout, offline).await;
            let _ = inputs.send(Input::Resolved { id, found });
        });
    }

    fn add_tree(&mut self, id: u64, found: Found) {
        let number = self.trees.len() as u32;
        let kept = &found.kept;
        let about = About {
            url: kept.url.clone(),
            path: kept.path.clone(),
            is_listed: kept.is_listed,
            is_public: kept.is_public(),
            mtime: kept.mtime(),
        };
        self.send(Some(id), &Reply::Tree { id, tree: number, about, entries: kept.files.len() as u64 }, &[]);
        let mut entries = Vec::new();
        let mut size = 0;
        for (path, file) in &kept.files {
            size += path.len() + 20;
            entries.push((path.clone(), file.len));
            if size > ENTRIES_SIZE {
                let entries = std::mem::take(&mut entries);
                self.send(Some(id), &Reply::Entries { tree: number, entries }, &[]);
                size = 0;
            }
        }
        if !entries.is_empty() {
            self.send(Some(id), &Reply::Entries { tree: number, entries }, &[]);
        }
        self.trees.push(found);
    }

    fn open(&mut self, id: u64, tree: u32, path: String, head: u64) {
        let Some(found) = self.trees.get(tree as usize) else {
            return self.fail(id, Failed::Lasting, "no such tree".into());
        };
        if self.is_sealed && !found.kept.files.contains_key(&path) {
            return self.fail(id, Failed::Lasting, "not found when it was mounted; mount it again".into());
        }
        let Some(live) = found.tree.clone() else {
            let opened = Box::new(open::open_kept(&self.cache, &found.kept, &path));
            let _ = self.inputs.send(Input::Opened { id, tree, path, head, opened });
            return;
        };
        let listed = live.file(&path).and_then(|file| file.object.as_ref());
        let known = listed.or_else(|| found.opened.get(&path)).cloned();
        let (client, cache, timeout) = (self.client.clone(), self.cache.clone(), self.timeout);
        let (inputs, opening) = (self.inputs.clone(), self.opening.clone());
        if known.is_none() {
            self.probing.insert(id);
        }
        tokio::spawn(async move {
            let _permit = opening.acquire().await;
            let opened = match known {
                Some(remote) => open::open_known(&cache, remote),
                None => open::probe(&client, &cache, &live, &path, head, timeout).await,
            };
            let _ = inputs.send(Input::Opened { id, tree, path, head, opened: Box::new(opened) });
        });
    }

    fn add_opened(&mut self, id: u64, tree: u32, path: String, head: u64, opened: Opened) {
        let Opened { version, content, received } = opened;
        self.counted.bytes += received;
        let mut host = String::new();
        if let Some(found) = self.trees.get_mut(tree as usize) {
            host = host_of(&found.kept.url);
            if let Content::Blocks { remote: Some(remote), .. } = &content {
                if found.kept.add(&path, remote) {
                    self.unkept.insert(tree);
                }
                let listed = found.tree.as_ref().and_then(|tree| tree.file(&path)?.object.as_ref());
                if listed.is_none() {
                    found.opened.insert(path, remote.clone());
                }
            }
        }
        match content {
            Content::Blocks { remote, local } => self.add_object(id, &host, head, Open { version, remote, local }),
            Content::Whole { file, len } => {
                let Version { is_public, mtime, .. } = version;
                self.send(Some(id), &Reply::Whole { id, len, is_public, mtime }, &[file.as_fd()]);
            }
        }
    }

    /// Numbers an object, and announces it when its first bytes are present: a reader asks for them next.
    fn add_object(&mut self, id: u64, host: &str, head: u64, open: Open) {
        let number = ObjectId(self.next_object);
        self.next_object += 1;
        self.warn_if_unsure(host, &open);
        let next = HostId(self.hosts.len() as u32);
        let host = *self.hosts.entry(host.to_owned()).or_insert(next);
        let len = open.local.len();
        self.objects.insert(number.0, open);
        self.event(Event::Opened { object: number, len, host });
        let ticket = TicketId(OWN | id);
        self.opening_heads.insert(ticket, (id, number));
        self.need(ticket, number, 0..head.min(len), 0..0);
    }

    /// Logs that a change on the server may go unnoticed, once for each host.
    fn warn_if_unsure(&mut self, host: &str, open: &Open) {
        let Some(remote) = &open.remote else { return };
        let noticed = match remote.certainty() {
            Certainty::Exact => return,
            Certainty::Date => "only a change of the date or the length is noticed",
            Certainty::Length => "only a change of the length is noticed",
        };
        if self.unsure.insert(host.to_owned()) {
            log::warn!("{}: the server gives no strong ETag: {noticed}", remote.name());
        }
    }

    /// Sends the descriptors of an object.
    fn announce(&self, id: u64, object: ObjectId) {
        let Some(open) = self.objects.get(&object.0) else { return };
        match open.local.descriptors() {
            Ok(cache::Descriptors { data, present, marks, lock }) => {
                let beside = [data.as_fd(), present.as_fd(), marks.as_fd(), lock.as_fd()];
                let Version { is_public, mtime, .. } = open.version;
                let reply = Reply::Object { id, object: object.0, len: open.local.len(), is_public, mtime };
                self.send(Some(id), &reply, &beside);
            }
            Err(error) => self.fail(id, Failed::Transient, error.to_string()),
        }
    }

    /// Which blocks are in the cache is reported to the planner first, so that it fetches what is absent and nothing
    /// else. It may be wrong about a block that was evicted before the end of its transfer was handled.
    fn need(&mut self, ticket: TicketId, object: ObjectId, range: Range<u64>, within: Range<u64>) {
        if let Err(error) = self.report_blocks(object, &range) {
            return self.answer(ticket, Err((Failed::Transient, error.to_string())));
        }
        self.event(Event::Need { ticket, object, range, within });
    }

    /// Reports to the planner which blocks of a range are in the cache, and which are not.
    fn report_blocks(&mut self, object: ObjectId, range: &Range<u64>) -> Result<(), cache::Error> {
        let Some(open) = self.objects.get(&object.0) else { return Ok(()) };
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK).min(open.local.blocks());
        let mut at = blocks.start;
        for present in open.local.has(blocks.clone())? {
            self.event(Event::Evicted { object, blocks: at..present.start });
            at = present.end;
            self.event(Event::Present { object, blocks: present });
        }
        self.event(Event::Evicted { object, blocks: at..blocks.end });
        Ok(())
    }

    fn forget(&mut self, evicted: Vec<Evicted>) {
        for Evicted { object, blocks } in evicted {
            let found = self.objects.iter().filter(|(_, open)| open.local == object);
            let numbers: Vec<u32> = found.map(|(number, _)| *number).collect();
            for number in numbers {
                self.event(Event::Evicted { object: ObjectId(number), blocks: blocks.clone() });
            }
        }
    }

    /// Answers the request of a ticket.
    fn answer(&mut self, ticket: TicketId, answer: Result<(), (Failed, String)>) {
        match (self.opening_heads.remove(&ticket), answer) {
            (None, Ok(())) => self.reply(&Reply::Ready { id: ticket.0 }),
            (None, Err((failure, reason))) => self.fail(ticket.0, failure, reason),
            (Some((id, object)), Ok(())) => self.announce(id, object),
            (Some((id, object)), Err((failure, reason))) => {
                self.event(Event::Closed { object });
                self.objects.remove(&object.0);
                self.fail(id, failure, reason);
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Fetch { part, object, range } => self.fetch(part, object, range),
            Action::Abort { part } => {
                if let Some(Part { object, range, abort, .. }) = self.parts.remove(&part) {
                    abort.abort();
                    // What it has completed stays. An error here is an error of the next read.
                    let _ = self.report_blocks(object, &range);
                }
            }
            Action::Ready { ticket } => self.answer(ticket, Ok(())),
            Action::Fail { ticket, why } => {
                let failed = match why {
                    Why::Part(part) => self.trouble(part),
                    Why::TimedOut { last } => {
                        let last = last.map(|part| format!(": {}", self.trouble(part).1)).unwrap_or_default();
                        (Failed::Transient, format!("nothing arrived for {} s{last}", self.timeout.as_secs_f32()))
                    }
                    Why::NotOpen => (Failed::Lasting, "not open".into()),
                    Why::TooMany => (Failed::Transient, "too many reads wait already".into()),
                };
                self.answer(ticket, Err(failed));
            }
            Action::Trigger { object, block } => {
                if let Some(open) = self.objects.get(&object.0) {
                    open.local.set_trigger(block);
                }
            }
        }
    }

    fn trouble(&self, part: PartId) -> (Failed, String) {
        self.troubles.get(&part).cloned().unwrap_or((Failed::Transient, "the transfer failed".into()))
    }

    fn fetch(&mut self, part: PartId, object: ObjectId, range: Range<u64>) {
        let Some(Open { remote, local, .. }) = self.objects.get(&object.0) else { return };
        let (remote, local) = (remote.clone(), local.clone());
        let (client, inputs) = (self.client.clone(), self.inputs.clone());
        let missing = range.end - range.start;
        let pending: u64 = self.parts.values().map(|part| part.missing).sum();
        match self.cache.make_room(pending + missing) {
            Ok(room) => {
                // Without room, nothing is fetched ahead.
                self.planner.limit_ahead(if room.lacking > 0 { 0 } else { self.ahead_total });
                self.forget(room.evicted);
            }
            Err(error) => log::warn!("{error}"),
        }
        let wanted = range.clone();
        let task = tokio::spawn(async move {
            let Some(remote) = remote else {
                let _ = inputs.send(Input::Failed { part, trouble: Trouble::Absent });
                return;
            };
            let transferred = transfer(&client, &remote, &local, part, range, &inputs).await;
            let _ = inputs.send(match transferred {
                Ok(()) => Input::Finished { part },
                Err(trouble) => Input::Failed { part, trouble },
            });
        });
        self.parts.insert(part, Part { object, range: wanted, abort: task.abort_handle(), missing });
    }
}

/// Fetches the absent blocks of a part, and reports the bytes of all of its blocks in their order.
async fn transfer(
    client: &Client,
    remote: &transport::Object,
    local: &Object,
    part: PartId,
    range: Range<u64>,
    inputs: &mpsc::UnboundedSender<Input>,
) -> Result<(), Trouble> {
    let send = |input| match inputs.send(input) {
        Ok(()) => ControlFlow::Continue(()),
        Err(_) => ControlFlow::Break(()),
    };
    let present = local.has(range.start / BLOCK..range.end.div_ceil(BLOCK)).map_err(Trouble::Cache)?;
    let present = present.into_iter().map(|blocks| blocks.start * BLOCK..(blocks.end * BLOCK).min(range.end));
    let mut at = range.start;
    for present in present.chain(std::iter::once(range.end..range.end)) {
        let mut trouble = None;
        if at < present.start {
            // A connection that broke inside a block has left the start of the block.
            let held = local.held(at / BLOCK);
            if held > 0 && send(Input::Skipped { part, bytes: held }).is_continue() {
                at += held;
            }
            client
                .fetch(remote, at..present.start, &mut |bytes| match local.write(at, bytes) {
                    Ok(Written { evicted, .. }) => {
                        at += bytes.len() as u64;
                        send(Input::Received { part, bytes: bytes.len() as u64, evicted })
                    }
                    Err(error) => {
                        trouble = Some(Trouble::Cache(error));
                        ControlFlow::Break(())
                    }
                })
                .await
                .map_err(Trouble::Transport)?;
        }
        if let Some(trouble) = trouble {
            return Err(trouble);
        }
        if send(Input::Skipped { part, bytes: present.end - present.start }).is_break() {
            return Ok(());
        }
        at = present.end;
    }
    Ok(())
}

/// Finds out what is at a URL. Offline, that is what was found earlier, or what the Hugging Face cache has.
async fn resolve(
    client: &Client,
    cache: &Cache,
    url: &str,
    timeout: Duration,
    offline: bool,
) -> Result<Found, Trouble> {
    let invalid = |error: ParseError| Trouble::Transport(error.into());
    let location = Location::parse(url).map_err(invalid)?.ok_or(Trouble::Absent)?;
    let name = kept::name_of(client, &location);
    let found_earlier =
        || Kept::find(cache, &name).map(|kept| Found { tree: None, kept, name: name.clone(), opened: HashMap::new() });
    let resolved = retry(timeout, || client.resolve(&location)).await;
    match resolved.map_err(|error| (error.kind(), error)) {
        Ok(tree) if offline => {
            // A repository of which the Hugging Face cache has some files. Offline, there are no others.
            let kept = Kept { is_listed: true, ..Kept::of(&tree) };
            Ok(Found { tree: Some(Arc::new(tree)), kept, name, opened: HashMap::new() })
        }
        Ok(tree) => {
            let kept = Kept::of(&tree);
            if kept.is_listed || kept.files.values().all(|file| file.version.is_some()) {
                kept.keep(cache, &name);
            }
            Ok(Found { tree: Some(Arc::new(tree)), kept, name, opened: HashMap::new() })
        }
        Err((Kind::Offline, error)) => found_earlier().ok_or(Trouble::Transport(error)),
        Err((Kind::Transient { .. }, error)) if found_earlier().is_some() => {
            Err(Trouble::Transport(error.and("--offline reads what was fetched before")))
        }
        Err((_, error)) => Err(Trouble::Transport(error)),
    }
}

/// Scheme and host of a URL. Connection limits and rate limits apply to each of them.
fn host_of(url: &str) -> String {
    match url.split_once("://") {
        // All repositories are on the same host.
        Some(("hf", _)) | None => "hf".into(),
        Some((scheme, rest)) => format!("{scheme}://{}", rest.split('/').next().unwrap_or_default()),
    }
}
