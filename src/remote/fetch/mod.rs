//! The process that fetches. It has access to the network, the credentials and the cache only; no model is parsed here.

mod counted;
mod kept;
mod open;
mod remarks;
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
use tokio::sync::mpsc;

/// The process that fetches, after its start. There is no thread yet, so that a sandbox can be entered.
pub struct Fetcher {
    channel: Arc<WireChannel>,
    start: FetchOptions,
    first: WireRequest,
    options: transport::TransportOptions,
    cache: Result<BlockCache, String>,
    whole_url: fn(String) -> String,
}

impl Fetcher {
    /// Waits for the first messages of the reading process, and opens the cache. `None` if that process has ended.
    /// From now on, messages of the log are sent to it. `whole_url` adds the secrets to a URL.
    pub fn accept(channel: WireChannel, whole_url: fn(String) -> String) -> io::Result<Option<Self>> {
        let start = match channel.receive::<WireRequest>()? {
            None => return Ok(None),
            Some((WireRequest::Start(start), _)) if start.version == protocol::VERSION => start,
            Some(_) => return Err(io::Error::other("the program was replaced while it ran; start it again")),
        };
        let Some((first, _)) = channel.receive::<WireRequest>()? else { return Ok(None) };
        let first = first.with_url(whole_url);
        let channel = Arc::new(channel);
        remarks::send_to(channel.clone());
        let (defaults, timeout) = (transport::TransportOptions::default(), start.timeout());
        let options = transport::TransportOptions {
            offline: start.offline,
            token_file: start.token_file.as_ref().map(PathBuf::from),
            redirects_to: start.redirects_to.clone(),
            connect_timeout: defaults.connect_timeout.min(timeout),
            idle_timeout: defaults.idle_timeout.min(timeout),
            ..defaults
        };
        let cache = open_cache(&start);
        Ok(Some(Self { channel, start, first, options, cache, whole_url }))
    }

    /// The directory that it changes in a sandbox. `None` without a cache, which means that all requests are refused,
    /// and if there is to be no sandbox.
    pub fn sandbox_dir(&self) -> Option<&Path> {
        self.cache.as_ref().ok().filter(|_| !self.start.no_sandbox).map(BlockCache::path)
    }

    /// The files, and the directories with all that is below them, that are read besides the cache.
    pub fn reads(&self) -> Vec<PathBuf> {
        transport::transport_reads(&self.options)
    }

    /// Why a program must be run to get credentials, if so. The first location decides.
    pub fn program(&self) -> Option<String> {
        let WireRequest::Resolve { url, .. } = &self.first else { return None };
        transport::credential_program(&self.options, &RemoteLocation::parse(url).ok()??)
    }

    pub fn serve(self) -> io::Result<()> {
        let Self { channel, start, first, options, cache, whole_url } = self;
        let in_memory = cache.as_ref().ok().filter(|cache| cache.path() == cache::memory_dir()).cloned();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("fetch").build()?;
        let (inputs, taken) = mpsc::unbounded_channel();
        let (receiving, sender) = (channel.clone(), inputs.clone());
        let session = {
            let _entered = runtime.enter();
            cache.and_then(|cache| {
                let client = transport::TransportClient::new(options).map_err(|error| error.to_string())?;
                let limits = limits(&start, cache.limit());
                Ok(FetchSession::new(channel.clone(), client, cache, limits, inputs))
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
                    Ok(Some((request, _))) => LoopInput::Request(request.with_url(whole_url)),
                    Ok(None) | Err(_) => LoopInput::Ended,
                };
                let ends = matches!(input, LoopInput::Ended);
                if sender.send(input).is_err() || ends {
                    return;
                }
            }
        })?;
        runtime.block_on(session.run(taken));
        // This ends the transfers, which use blocks.
        drop(runtime);
        if let Some(Err(error)) = in_memory.map(|cache| cache.clear()) {
            log::debug!("{error}");
        }
        Ok(())
    }
}

/// The least size of a cache, in bytes. The blocks of all reads at a time must fit in.
const SIZE_MIN: u64 = 8 << 20;

/// Maximum size in bytes of the blocks in memory, if the disk of the cache is too small.
const IN_MEMORY_MAX: u64 = 64 << 20;

fn open_cache(start: &FetchOptions) -> Result<BlockCache, String> {
    let mut dir = cache::default_dir().ok_or("no cache: neither XDG_CACHE_HOME nor HOME is an absolute path")?;
    let cached = |dir: &Path| Some(BlockCache::list(dir).ok()?.cached());
    let size_of = |dir: &Path| cache::default_limit(dir, cached(dir)?);
    let (mut limit, memory) = (size_of(&dir), cache::memory_dir());
    if limit.is_some_and(|size| size < SIZE_MIN)
        && let Some(size) = size_of(&memory).filter(|size| *size >= SIZE_MIN)
    {
        log::warn!("{}: the disk is too small for a cache; nothing that is fetched is kept", dir.display());
        (dir, limit) = (memory, Some(size.min(IN_MEMORY_MAX)));
    }
    let limit = start.cache_size.or(limit);
    let options = cache::CacheOptions { limit, ..cache::CacheOptions::default() };
    BlockCache::open(&dir, options).map_err(|error| error.to_string())
}

/// The limits of the planner, with a cache of at most `size` bytes.
fn limits(start: &FetchOptions, size: Option<u64>) -> PlannerLimits {
    let mut limits = PlannerLimits { timeout: start.timeout(), ..PlannerLimits::default() };
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
            WireRequest::Seal => channel.send(&WireReply::Sealed, &[])?,
            WireRequest::Start(_)
            | WireRequest::Touched { .. }
            | WireRequest::Cancel { .. }
            | WireRequest::Close { .. } => {}
        }
        next = channel.receive::<WireRequest>()?.map(|(request, _)| request);
    }
    Ok(())
}
