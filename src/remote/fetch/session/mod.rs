//! One loop receives requests and the results of transfers, and carries out what the planner decides.

mod parts;

use super::counted::{CountedTraffic, REPORT_EVERY};
use super::kept::{keep_tree, tree_attributes};
use super::open::{self, FoundTree, ObjectContent, OpenedFile};
use super::remarks::cut_remark;
use crate::remote::cache::{BlockCache, CachedObject};
use crate::remote::planner::{BLOCK, HostId, ObjectId, PartId, Planner, PlannerEvent, PlannerLimits, TicketId};
use crate::remote::protocol::{self, HEAD, WireAbout, WireChannel, WireReply, WireRequest};
use crate::remote::transport::{ChangeCertainty, ServerObject, ServerTree, TransportClient};
use crate::source::FetchFailure;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;

const OPENING_MAX: usize = 32;

/// Maximum size of the paths in a message, in bytes: half of what a message may have.
const ENTRIES_SIZE: usize = protocol::PACKET_MAX / 2;

/// The numbers of requests are below this one. The needs for which nobody waits have numbers from here on.
const UNWAITED: u64 = 1 << 63;

/// Maximum number of inputs between two decisions of the planner.
const TURN_MAX: usize = 1024;

/// Minimum time between two writes of what is known of trees.
const KEEP_EVERY: Duration = Duration::from_secs(1);

pub(super) enum LoopInput {
    /// From the reading process.
    Request(WireRequest),
    /// The reading process has ended.
    Ended,
    /// The answer to [`WireRequest::Resolve`].
    Resolved { id: u64, found: Result<FoundTree, FetchFailure> },
    /// The answer to [`WireRequest::Open`].
    Opened { id: u64, tree: u32, path: String, head: u64, opened: Box<Result<OpenedFile, FetchFailure>> },
    /// An event of a transfer.
    Part(PlannerEvent),
}

/// A file that the reading process reads.
struct ServedObject {
    remote: Arc<ServerObject>,
    local: Arc<CachedObject>,
}

struct FetchPart {
    object: ObjectId,
    range: Range<u64>,
    abort: AbortHandle,
}

pub(super) struct FetchSession {
    channel: Arc<WireChannel>,
    client: TransportClient,
    cache: BlockCache,
    planner: Planner,
    timeout: Duration,
    ahead_total: u64,
    /// Whether the reading process has entered its sandbox. From then on it may be compromised, so only files that were
    /// known before are opened.
    is_sealed: bool,
    epoch: Instant,
    /// By their number.
    trees: Vec<FoundTree>,
    /// Without those that were closed.
    objects: HashMap<u32, ServedObject>,
    next_object: u32,
    /// The objects whose first bytes are being fetched, by the request for the file.
    opening_heads: HashMap<u64, ObjectId>,
    hosts: HashMap<String, HostId>,
    /// The hosts of which the log says that their files have no reliable version.
    unsure: HashSet<String>,
    parts: HashMap<PartId, FetchPart>,
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
        inputs: mpsc::UnboundedSender<LoopInput>,
    ) -> Self {
        let PlannerLimits { timeout, ahead_total, .. } = limits;
        let planner = Planner::new(limits, u64::from(std::process::id()));
        Self {
            channel,
            client,
            cache,
            planner,
            timeout,
            ahead_total,
            is_sealed: false,
            epoch: Instant::now(),
            trees: Vec::new(),
            objects: HashMap::new(),
            next_object: 0,
            opening_heads: HashMap::new(),
            hosts: HashMap::new(),
            unsure: HashSet::new(),
            parts: HashMap::new(),
            opening: Arc::new(Semaphore::new(OPENING_MAX)),
            inputs,
            counted: CountedTraffic::default(),
            unkept: HashSet::new(),
            kept_at: None,
        }
    }

    /// Runs until the reading process has ended.
    pub async fn run(mut self, mut taken: mpsc::UnboundedReceiver<LoopInput>) {
        loop {
            // Attempts are counted while nothing else happens.
            let report = (!self.is_idle()).then(|| self.epoch.elapsed() + REPORT_EVERY);
            let wake = [self.planner.wake_at(), report].into_iter().flatten().min();
            let input = match wake {
                Some(at) => tokio::time::timeout_at((self.epoch + at).into(), taken.recv()).await.ok(),
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
            self.report_evicted();
            while let Some(action) = self.planner.poll(self.epoch.elapsed()) {
                self.act(action);
            }
            if let Some(counts) = self.counted.report(self.is_idle(), self.client.requests()) {
                self.reply(&WireReply::Counts(counts));
            }
            if !self.unkept.is_empty() && self.kept_at.is_none_or(|at| at.elapsed() >= KEEP_EVERY) {
                self.keep();
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.parts.is_empty() && self.opening.available_permits() == OPENING_MAX
    }

    /// Keeps in the cache what is known of trees.
    fn keep(&mut self) {
        for tree in std::mem::take(&mut self.unkept) {
            if let Some(found) = self.trees.get(tree as usize) {
                keep_tree(&found.tree, &self.cache, &found.name);
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
            LoopInput::Opened { id, tree, path, head, opened } => match *opened {
                Ok(opened) => self.add_opened(id, tree, path, head, opened),
                Err(failure) => self.fail(id, failure),
            },
            LoopInput::Part(event) => {
                match &event {
                    PlannerEvent::Received { bytes, .. } => self.counted.bytes += bytes,
                    PlannerEvent::Finished { part } | PlannerEvent::Failed { part, .. } => _ = self.parts.remove(part),
                    _ => {}
                }
                self.event(event);
            }
        }
    }

    fn request(&mut self, request: WireRequest) {
        match request {
            WireRequest::Start(_) => {}
            WireRequest::Resolve { id, url } => self.resolve(id, url),
            WireRequest::Open { id, tree, path, head } => self.open(id, tree, path, head.min(HEAD)),
            WireRequest::Need { id, object, range, within } => {
                self.need(TicketId(id), ObjectId(object), range, within);
            }
            WireRequest::Touched { object, range, within } => {
                if let Some(open) = self.objects.get(&object) {
                    let end = range.end.div_ceil(BLOCK).min(open.local.blocks);
                    (range.start / BLOCK..end).for_each(|block| open.local.clear_trigger(block));
                }
                self.event(PlannerEvent::Touched { object: ObjectId(object), range, within });
            }
            WireRequest::Cancel { id } => {
                self.event(PlannerEvent::Cancel { ticket: TicketId(id) });
                if let Some(object) = self.opening_heads.remove(&id) {
                    self.close(object);
                }
            }
            WireRequest::Close { object } => self.close(ObjectId(object)),
            WireRequest::Seal => {
                self.is_sealed = true;
                self.keep();
                self.reply(&WireReply::Sealed);
            }
        }
    }

    fn resolve(&self, id: u64, url: String) {
        if self.is_sealed {
            return self.fail(id, FetchFailure::lasting("no other URL can be opened after the mount"));
        }
        let (client, cache, timeout) = (self.client.clone(), self.cache.clone(), self.timeout);
        let (inputs, opening) = (self.inputs.clone(), self.opening.clone());
        tokio::spawn(async move {
            let _permit = opening.acquire().await;
            let found = open::resolve_location(&client, &cache, &url, timeout).await;
            let _ = inputs.send(LoopInput::Resolved { id, found });
        });
    }

    fn add_tree(&mut self, id: u64, found: FoundTree) {
        let number = self.trees.len() as u32;
        let ServerTree { folder, path, files, is_complete, .. } = &*found.tree;
        let (url, attributes) = (folder.to_string(), tree_attributes(&found.tree));
        let about = WireAbout { url, path: path.clone(), is_listed: *is_complete, attributes };
        self.send(Some(id), &WireReply::Tree { id, tree: number, about, entries: files.len() as u64 }, &[]);
        let (mut entries, mut size) = (Vec::new(), 0);
        for (path, object) in files {
            size += path.len() + 20;
            entries.push((path.clone(), object.as_ref().map_or(0, |object| object.len)));
            if size > ENTRIES_SIZE {
                self.send(Some(id), &WireReply::Entries { id, entries: std::mem::take(&mut entries) }, &[]);
                size = 0;
            }
        }
        self.send(Some(id), &WireReply::Entries { id, entries }, &[]);
        self.trees.push(found);
    }

    fn open(&mut self, id: u64, tree: u32, path: String, head: u64) {
        let Some(found) = self.trees.get(tree as usize) else {
            return self.fail(id, FetchFailure::lasting("no such tree"));
        };
        if self.is_sealed && !found.tree.files.contains_key(&path) {
            return self.fail(id, FetchFailure::lasting("not found when it was mounted; mount it again"));
        }
        let (files, known) = (found.tree.clone(), found.tree.object(&path).cloned());
        let (client, cache, timeout) = (self.client.clone(), self.cache.clone(), self.timeout);
        let (inputs, opening) = (self.inputs.clone(), self.opening.clone());
        tokio::spawn(async move {
            let permit = opening.acquire().await;
            let opened = match known {
                Some(remote) => open::open_known(&cache, remote),
                None => open::probe(&client, &cache, &files, &path, head, timeout).await,
            };
            // The loop is idle when nothing is being opened any more.
            drop(permit);
            let _ = inputs.send(LoopInput::Opened { id, tree, path, head, opened: Box::new(opened) });
        });
    }

    fn add_opened(&mut self, id: u64, tree: u32, path: String, head: u64, opened: OpenedFile) {
        let OpenedFile { remote, content, received } = opened;
        self.counted.bytes += received;
        let Some(found) = self.trees.get_mut(tree as usize) else { return };
        if found.tree.object(&path).is_none() {
            Arc::make_mut(&mut found.tree).files.insert(path, Some(remote.clone()));
            self.unkept.insert(tree);
        }
        match content {
            ObjectContent::Blocks(local) => {
                let host = host_of(&found.tree.folder.to_string());
                self.add_object(id, &host, head, ServedObject { remote, local })
            }
            ObjectContent::Whole(file) => {
                let (len, attributes) = (remote.len, (&*remote).into());
                let reply = WireReply::File { id, object: None, len, attributes };
                self.send(Some(id), &reply, &[file.as_fd()]);
            }
        }
    }

    /// Numbers an object, and announces it when its first block is present: a reader asks for it next. The rest of the
    /// head is in the same request, and a reader who needs it waits for it.
    fn add_object(&mut self, id: u64, host: &str, head: u64, open: ServedObject) {
        let number = ObjectId(self.next_object);
        self.next_object += 1;
        self.warn_if_unsure(host, &open);
        let next = HostId(self.hosts.len() as u32);
        let host = *self.hosts.entry(host.to_owned()).or_insert(next);
        let len = open.local.len;
        self.objects.insert(number.0, open);
        self.event(PlannerEvent::Opened { object: number, len, host });
        let head = head.min(len);
        if head > BLOCK {
            self.need(TicketId(UNWAITED | id), number, 0..head, 0..0);
        }
        self.opening_heads.insert(id, number);
        self.need(TicketId(id), number, 0..head.min(BLOCK), 0..0);
    }

    fn close(&mut self, object: ObjectId) {
        self.event(PlannerEvent::Closed { object });
        self.objects.remove(&object.0);
    }

    /// Logs that a change on the server may go unnoticed, once for each host.
    fn warn_if_unsure(&mut self, host: &str, open: &ServedObject) {
        let noticed = match open.remote.certainty() {
            ChangeCertainty::Exact => return,
            ChangeCertainty::Date => "only a change of the date or the length is noticed",
            ChangeCertainty::Length => "only a change of the length is noticed",
        };
        if self.unsure.insert(host.to_owned()) {
            log::warn!("{}: the server gives no strong ETag: {noticed}", open.remote.version.name);
        }
    }

    fn announce(&self, id: u64, object: ObjectId) {
        let Some(open) = self.objects.get(&object.0) else { return };
        let (len, attributes) = (open.local.len, (&*open.remote).into());
        let reply = WireReply::File { id, object: Some(object.0), len, attributes };
        self.send(Some(id), &reply, &open.local.descriptors());
    }

    fn answer(&mut self, ticket: TicketId, answer: Result<(), FetchFailure>) {
        if ticket.0 >= UNWAITED {
            return;
        }
        let id = ticket.0;
        match (self.opening_heads.remove(&id), answer) {
            (None, Ok(())) => self.reply(&WireReply::Ready { id }),
            (Some(object), Ok(())) => self.announce(id, object),
            (object, Err(failure)) => {
                object.into_iter().for_each(|object| self.close(object));
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
