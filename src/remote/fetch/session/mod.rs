//! One loop receives requests and the results of transfers, and carries out what the planner decides.

mod parts;

use super::counted::CountedTraffic;
use super::find::{FoundTree, resolve_location};
use super::kept::KeptVersion;
use super::open::{self, ObjectContent, OpenedObject};
use super::remarks::cut_remark;
use super::trouble::TransferFailure;
use crate::remote::cache::{self, BlockCache, CachedObject, EvictedBlocks};
use crate::remote::planner::{BLOCK, HostId, ObjectId, PartId, Planner, PlannerEvent, PlannerLimits, TicketId};
use crate::remote::protocol::{self, HEAD, WireAbout, WireChannel, WireReply, WireRequest};
use crate::remote::transport::{self, ChangeCertainty, TransportClient};
use crate::source::FetchFailure;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;

/// Maximum number of files that are opened at a time.
const OPENING_MAX: usize = 32;

/// Maximum size of the paths in a message, in bytes: half of what a message may have.
const ENTRIES_SIZE: usize = protocol::PACKET_MAX / 2;

/// The numbers of requests are below this one. The loop's own needs have numbers from here on.
const OWN: u64 = 1 << 63;

/// The numbers of own needs for which nobody waits are from here on.
const UNWAITED: u64 = OWN | 1 << 62;

/// Maximum number of inputs between two decisions of the planner.
const TURN_MAX: usize = 1024;

/// Number of failures of parts that are kept for the tickets that fail because of them.
const FAILURES_MAX: u64 = 1024;

/// Minimum time between two writes of what is known of trees.
const KEEP_EVERY: Duration = Duration::from_secs(1);

/// The inputs of the loop.
pub(super) enum LoopInput {
    Request(WireRequest),
    /// The reading process has ended.
    Ended,
    Resolved {
        id: u64,
        found: Result<FoundTree, FetchFailure>,
    },
    Opened {
        id: u64,
        tree: u32,
        path: String,
        head: u64,
        opened: Box<Result<OpenedObject, FetchFailure>>,
    },
    Received {
        part: PartId,
        bytes: u64,
        evicted: Vec<EvictedBlocks>,
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
        failure: TransferFailure,
    },
}

/// A file that the reading process reads.
struct OpenObject {
    version: KeptVersion,
    /// `None` if it cannot be fetched.
    remote: Option<transport::ServerObject>,
    local: CachedObject,
}

/// A part that is being fetched.
struct FetchPart {
    object: ObjectId,
    range: Range<u64>,
    abort: AbortHandle,
    /// Bytes that are still to be written.
    missing: u64,
}

/// The state of the loop.
pub(super) struct FetchSession {
    channel: Arc<WireChannel>,
    client: TransportClient,
    cache: BlockCache,
    planner: Planner,
    timeout: Duration,
    ahead_total: u64,
    offline: bool,
    /// Whether the reading process has entered its sandbox. From then on it may be compromised, so only files that were
    /// known before are opened.
    is_sealed: bool,
    epoch: Instant,
    /// By their number.
    trees: Vec<FoundTree>,
    /// Without those that were closed.
    objects: HashMap<u32, OpenObject>,
    /// The number of the next object.
    next_object: u32,
    /// The requests for files of which the first bytes are being fetched, and the object, by the ticket.
    opening_heads: HashMap<TicketId, (u64, ObjectId)>,
    hosts: HashMap<String, HostId>,
    /// The hosts of which the log says that their files have no reliable version.
    unsure: HashSet<String>,
    parts: HashMap<PartId, FetchPart>,
    /// The requests for files that are being probed.
    probing: HashSet<u64>,
    /// Why parts failed, as long as a ticket may fail for it.
    failures: HashMap<PartId, FetchFailure>,
    opening: Arc<Semaphore>,
    inputs: mpsc::UnboundedSender<LoopInput>,
    counted: CountedTraffic,
    /// The trees of which more is known than what the cache keeps, and when it was kept last.
    unkept: HashSet<u32>,
    kept_at: Option<Instant>,
}

impl FetchSession {
    /// Call this in the runtime of the loop.
    pub fn new(
        channel: Arc<WireChannel>,
        client: TransportClient,
        cache: BlockCache,
        limits: PlannerLimits,
        offline: bool,
        inputs: mpsc::UnboundedSender<LoopInput>,
    ) -> Self {
        let PlannerLimits { timeout, ahead_total, .. } = limits;
        let planner = Planner::new(limits, u64::from(std::process::id()));
        let (trees, objects, opening_heads, hosts, unsure) = Default::default();
        let (parts, probing, failures, counted) = Default::default();
        let (epoch, opening) = (Instant::now(), Arc::new(Semaphore::new(OPENING_MAX)));
        Self {
            channel,
            client,
            cache,
            planner,
            timeout,
            ahead_total,
            offline,
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
            failures,
            opening,
            inputs,
            counted,
            unkept: HashSet::new(),
            kept_at: None,
        }
    }

    /// Runs until the reading process has ended.
    pub async fn run(mut self, mut taken: mpsc::UnboundedReceiver<LoopInput>) {
        loop {
            let wake = self.planner.wake_at().map(|at| tokio::time::Instant::from_std(self.epoch + at));
            let input = match wake {
                Some(at) => tokio::time::timeout_at(at, taken.recv()).await.ok(),
                None => Some(taken.recv().await),
            };
            match input {
                Some(None | Some(LoopInput::Ended)) => return self.keep(),
                Some(Some(input)) => self.take(input),
                None => {}
            }
            // Inputs that have arrived already are handled before the planner decides.
            for _ in 0..TURN_MAX {
                let Ok(input) = taken.try_recv() else { break };
                if matches!(input, LoopInput::Ended) {
                    return self.keep();
                }
                self.take(input);
            }
            let evicted = self.cache.take_evicted();
            self.forget(evicted);
            while let Some(action) = self.planner.poll(self.epoch.elapsed()) {
                self.act(action);
            }
            let is_idle = self.parts.is_empty() && self.probing.is_empty();
            if let Some(counts) = self.counted.report(is_idle, self.client.requests()) {
                self.reply(&WireReply::Counts(counts));
            }
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

    fn event(&mut self, event: PlannerEvent) {
        self.planner.handle(self.epoch.elapsed(), event);
    }

    /// Sends a reply. If the other side is gone, the loop ends soon.
    fn reply(&self, reply: &WireReply) {
        self.send(None, reply, &[]);
    }

    /// Sends a reply and descriptors. If the reply makes no message, the request `id` fails, so that nobody waits for
    /// it.
    fn send(&self, id: Option<u64>, reply: &WireReply, beside: &[BorrowedFd]) {
        let Err(error) = self.channel.send(reply, beside) else { return };
        if error.raw_os_error().is_none() {
            log::error!("a message to the reading process cannot be sent: {error}");
            if let Some(id) = id {
                let failure = FetchFailure::lasting("weightfs-fetch cannot describe it");
                let _ = self.channel.send(&WireReply::Failed { id, failure }, &[]);
            }
        }
    }

    fn fail(&self, id: u64, mut failure: FetchFailure) {
        cut_remark(&mut failure.reason);
        self.reply(&WireReply::Failed { id, failure });
    }

    fn take(&mut self, input: LoopInput) {
        match input {
            LoopInput::Ended => {}
            LoopInput::Request(request) => self.request(request),
            LoopInput::Resolved { id, found: Ok(found) } => self.add_tree(id, found),
            LoopInput::Resolved { id, found: Err(failure) } => self.fail(id, failure),
            LoopInput::Opened { id, tree, path, head, opened } => {
                self.probing.remove(&id);
                match *opened {
                    Ok(opened) => self.add_opened(id, tree, path, head, opened),
                    Err(failure) => self.fail(id, failure),
                }
            }
            LoopInput::Received { part, bytes, evicted } => {
                if let Some(running) = self.parts.get_mut(&part) {
                    running.missing = running.missing.saturating_sub(bytes);
                }
                self.forget(evicted);
                self.counted.bytes += bytes;
                self.event(PlannerEvent::Received { part, bytes });
            }
            LoopInput::Skipped { part, bytes } => {
                if let Some(running) = self.parts.get_mut(&part) {
                    running.missing = running.missing.saturating_sub(bytes);
                }
                self.event(PlannerEvent::Skipped { part, bytes });
            }
            LoopInput::Finished { part } => {
                self.parts.remove(&part);
                self.event(PlannerEvent::Finished { part });
            }
            LoopInput::Failed { part, failure } => {
                self.parts.remove(&part);
                self.failures.retain(|old, _| old.0 + FAILURES_MAX > part.0);
                self.failures.insert(part, failure.failure);
                self.event(PlannerEvent::Failed { part, failure: failure.part });
            }
        }
    }

    fn request(&mut self, request: WireRequest) {
        match request {
            WireRequest::Start(_) => {}
            WireRequest::Resolve { id, url } => self.resolve(id, url),
            WireRequest::Open { id, tree, path, head } => self.open(id, tree, path, head.min(HEAD)),
            WireRequest::Need { id, object, range, within } => {
                let (range, within) = (range.start..range.end, within.start..within.end);
                self.need(TicketId(id), ObjectId(object), range, within);
            }
            WireRequest::Touched { object, range, within } => {
                let (range, within) = (range.start..range.end, within.start..within.end);
                if let Some(open) = self.objects.get(&object) {
                    let end = range.end.div_ceil(BLOCK).min(open.local.blocks());
                    (range.start / BLOCK..end).for_each(|block| open.local.clear_trigger(block));
                }
                self.event(PlannerEvent::Touched { object: ObjectId(object), range, within });
            }
            WireRequest::Cancel { id } => self.event(PlannerEvent::Cancel { ticket: TicketId(id) }),
            WireRequest::Close { object } => {
                self.event(PlannerEvent::Closed { object: ObjectId(object) });
                self.objects.remove(&object);
            }
            WireRequest::Rest => {
                self.is_sealed = true;
                self.keep();
                self.reply(&WireReply::Rested);
            }
        }
    }

    fn resolve(&self, id: u64, url: String) {
        if self.is_sealed {
            return self.fail(id, FetchFailure::lasting("no other URL can be opened after the mount"));
        }
        let (client, cache, inputs) = (self.client.clone(), self.cache.clone(), self.inputs.clone());
        let (timeout, offline) = (self.timeout, self.offline);
        tokio::spawn(async move {
            let found = resolve_location(&client, &cache, &url, timeout, offline).await;
            let _ = inputs.send(LoopInput::Resolved { id, found });
        });
    }

    fn add_tree(&mut self, id: u64, found: FoundTree) {
        let number = self.trees.len() as u32;
        let kept = &found.kept;
        let about = WireAbout {
            url: kept.url.clone(),
            path: kept.path.clone(),
            is_listed: kept.is_listed,
            is_public: kept.is_public(),
            mtime: kept.mtime(),
        };
        self.send(Some(id), &WireReply::Tree { id, tree: number, about, entries: kept.files.len() as u64 }, &[]);
        let mut entries = Vec::new();
        let mut size = 0;
        for (path, file) in &kept.files {
            size += path.len() + 20;
            entries.push((path.clone(), file.len));
            if size > ENTRIES_SIZE {
                let entries = std::mem::take(&mut entries);
                self.send(Some(id), &WireReply::Entries { tree: number, entries }, &[]);
                size = 0;
            }
        }
        if !entries.is_empty() {
            self.send(Some(id), &WireReply::Entries { tree: number, entries }, &[]);
        }
        self.trees.push(found);
    }

    fn open(&mut self, id: u64, tree: u32, path: String, head: u64) {
        let Some(found) = self.trees.get(tree as usize) else {
            return self.fail(id, FetchFailure::lasting("no such tree"));
        };
        if self.is_sealed && !found.kept.files.contains_key(&path) {
            return self.fail(id, FetchFailure::lasting("not found when it was mounted; mount it again"));
        }
        let Some(live) = found.tree.clone() else {
            let opened = Box::new(open::open_kept(&self.cache, &found.kept, &path));
            let _ = self.inputs.send(LoopInput::Opened { id, tree, path, head, opened });
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
            let _ = inputs.send(LoopInput::Opened { id, tree, path, head, opened: Box::new(opened) });
        });
    }

    fn add_opened(&mut self, id: u64, tree: u32, path: String, head: u64, opened: OpenedObject) {
        let OpenedObject { version, content, received } = opened;
        self.counted.bytes += received;
        let mut host = String::new();
        if let Some(found) = self.trees.get_mut(tree as usize) {
            host = host_of(&found.kept.url);
            if let ObjectContent::Blocks { remote: Some(remote), .. } = &content {
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
            ObjectContent::Blocks { remote, local } => {
                self.add_object(id, &host, head, OpenObject { version, remote, local })
            }
            ObjectContent::Whole { file, len } => {
                let KeptVersion { is_public, mtime, .. } = version;
                self.send(Some(id), &WireReply::Whole { id, len, is_public, mtime }, &[file.as_fd()]);
            }
        }
    }

    /// Numbers an object, and announces it when its first block is present: a reader asks for it next. The rest of the
    /// head is in the same request, and a reader who needs it waits for it.
    fn add_object(&mut self, id: u64, host: &str, head: u64, open: OpenObject) {
        let number = ObjectId(self.next_object);
        self.next_object += 1;
        self.warn_if_unsure(host, &open);
        let next = HostId(self.hosts.len() as u32);
        let host = *self.hosts.entry(host.to_owned()).or_insert(next);
        let len = open.local.len();
        self.objects.insert(number.0, open);
        self.event(PlannerEvent::Opened { object: number, len, host });
        let head = head.min(len);
        if head > BLOCK {
            self.need(TicketId(UNWAITED | id), number, 0..head, 0..0);
        }
        let ticket = TicketId(OWN | id);
        self.opening_heads.insert(ticket, (id, number));
        self.need(ticket, number, 0..head.min(BLOCK), 0..0);
    }

    /// Logs that a change on the server may go unnoticed, once for each host.
    fn warn_if_unsure(&mut self, host: &str, open: &OpenObject) {
        let Some(remote) = &open.remote else { return };
        let noticed = match remote.certainty() {
            ChangeCertainty::Exact => return,
            ChangeCertainty::Date => "only a change of the date or the length is noticed",
            ChangeCertainty::Length => "only a change of the length is noticed",
        };
        if self.unsure.insert(host.to_owned()) {
            log::warn!("{}: the server gives no strong ETag: {noticed}", remote.name());
        }
    }

    /// Sends the descriptors of an object.
    fn announce(&self, id: u64, object: ObjectId) {
        let Some(open) = self.objects.get(&object.0) else { return };
        match open.local.descriptors() {
            Ok(cache::ReaderDescriptors { data, present, marks, lock }) => {
                let beside = [data.as_fd(), present.as_fd(), marks.as_fd(), lock.as_fd()];
                let KeptVersion { is_public, mtime, .. } = open.version;
                let reply = WireReply::Object { id, object: object.0, len: open.local.len(), is_public, mtime };
                self.send(Some(id), &reply, &beside);
            }
            Err(error) => self.fail(id, FetchFailure::transient(error.to_string())),
        }
    }

    /// Answers the request of a ticket.
    fn answer(&mut self, ticket: TicketId, answer: Result<(), FetchFailure>) {
        if ticket.0 >= UNWAITED {
            return;
        }
        match (self.opening_heads.remove(&ticket), answer) {
            (None, Ok(())) => self.reply(&WireReply::Ready { id: ticket.0 }),
            (None, Err(failure)) => self.fail(ticket.0, failure),
            (Some((id, object)), Ok(())) => self.announce(id, object),
            (Some((id, object)), Err(failure)) => {
                self.event(PlannerEvent::Closed { object });
                self.objects.remove(&object.0);
                self.fail(id, failure);
            }
        }
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
