//! The process that fetches. It has access to the network, the credentials and the cache only; no model is parsed here.

mod counted;
mod find;
mod kept;
mod open;
mod remarks;
mod retry;
mod session;
mod trouble;

use super::cache::{self, BlockCache};
use super::location::RemoteLocation;
use super::planner::PlannerLimits;
use super::protocol::{self, FetchOptions, WireChannel, WireReply, WireRequest};
use super::transport;
use crate::source::FetchFailure;
use session::{FetchSession, LoopInput};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// The process that fetches, after its start. There is no thread yet, so that a sandbox can be entered.
pub struct Fetcher {
    channel: Arc<WireChannel>,
    start: FetchOptions,
    /// The first request after the start.
    first: WireRequest,
    options: transport::TransportOptions,
    cache: Result<OpenCache, String>,
}

struct OpenCache {
    cache: BlockCache,
    dir: PathBuf,
    /// In bytes.
    limit: Option<u64>,
}

impl Fetcher {
    /// Waits for the first messages of the reading process, and opens the cache. `None` if that process has ended.
    /// From now on, messages of the log are sent to it.
    pub fn accept(channel: WireChannel) -> io::Result<Option<Self>> {
        let start = match channel.receive::<WireRequest>()? {
            None => return Ok(None),
            Some((WireRequest::Start(start), _)) if start.version == protocol::VERSION => start,
            Some(_) => return Err(io::Error::other("the program was replaced while it ran; start it again")),
        };
        let Some((first, _)) = channel.receive::<WireRequest>()? else { return Ok(None) };
        let channel = Arc::new(channel);
        remarks::send_to(channel.clone());
        let (defaults, timeout) = (transport::TransportOptions::default(), timeout(&start));
        let options = transport::TransportOptions {
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
        transport::transport_reads(&self.options)
    }

    /// Whether the user turned the sandbox off.
    pub fn has_no_sandbox(&self) -> bool {
        self.start.no_sandbox
    }

    /// Why a program must be run to get credentials, if so. The first location decides.
    pub fn program(&self) -> Option<String> {
        let WireRequest::Resolve { url, .. } = &self.first else { return None };
        transport::credential_program(&self.options, &RemoteLocation::parse(url).ok()??)
    }

    /// Serves the reading process until it ends.
    pub fn serve(self) -> io::Result<()> {
        let Self { channel, start, first, options, cache } = self;
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("fetch").build()?;
        let (inputs, taken) = mpsc::unbounded_channel();
        let (receiving, sender) = (channel.clone(), inputs.clone());
        let session = {
            let _entered = runtime.enter();
            cache.and_then(|OpenCache { cache, limit, .. }| {
                let client = transport::TransportClient::new(options).map_err(|error| error.to_string())?;
                Ok(FetchSession::new(channel.clone(), client, cache, limits(&start, limit), start.offline, inputs))
            })
        };
        let session = match session {
            Ok(session) => session,
            Err(reason) => return refuse(&channel, first, &reason),
        };
        // This does not fail, because the loop has the other end.
        let _ = sender.send(LoopInput::Request(first));
        std::thread::Builder::new().name("requests".into()).spawn(move || {
            loop {
                let input = match receiving.receive::<WireRequest>() {
                    Ok(Some((request, _))) => LoopInput::Request(request),
                    Ok(None) | Err(_) => LoopInput::Ended,
                };
                let ends = matches!(input, LoopInput::Ended);
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
    fn new(start: &FetchOptions) -> Result<Self, String> {
        let dir = cache::default_dir();
        let dir = dir.ok_or("no cache: neither XDG_CACHE_HOME nor HOME is an absolute path")?;
        let cached = || Some(BlockCache::list(&dir).ok()?.cached());
        let limit = start.cache_size.or_else(|| cache::default_limit(&dir, cached()?));
        let options = cache::CacheOptions { limit, ..cache::CacheOptions::default() };
        let cache = BlockCache::open(&dir, options).map_err(|error| error.to_string())?;
        Ok(Self { cache, dir, limit })
    }
}

/// After this time without success, a read fails.
fn timeout(start: &FetchOptions) -> Duration {
    start.timeout.map_or(PlannerLimits::default().timeout, Duration::from_millis)
}

/// The limits of the planner, with a cache of at most `size` bytes.
fn limits(start: &FetchOptions, size: Option<u64>) -> PlannerLimits {
    let mut limits = PlannerLimits { timeout: timeout(start), ..PlannerLimits::default() };
    if let Some(size) = size {
        limits.ahead_total = limits.ahead_total.min(size / 4);
        limits.ahead_max = limits.ahead_max.min(size / 8);
    }
    limits
}

/// Answers all requests with an error.
fn refuse(channel: &WireChannel, first: WireRequest, reason: &str) -> io::Result<()> {
    let mut next = Some(first);
    while let Some(request) = next {
        match request {
            WireRequest::Resolve { id, .. } | WireRequest::Open { id, .. } | WireRequest::Need { id, .. } => {
                channel.send(&WireReply::Failed { id, failure: FetchFailure::lasting(reason) }, &[])?;
            }
            WireRequest::Rest => channel.send(&WireReply::Rested, &[])?,
            WireRequest::Start(_)
            | WireRequest::Touched { .. }
            | WireRequest::Cancel { .. }
            | WireRequest::Close { .. } => {}
        }
        next = channel.receive::<WireRequest>()?.map(|(request, _)| request);
    }
    Ok(())
}
