//! Finds out what a location leads to, and opens its files: their versions, and their blocks in the cache.

use super::kept::{cache_key, find_kept, keep_tree, kept_name};
use crate::remote::cache::{BlockCache, CachedObject};
use crate::remote::location::RemoteLocation;
use crate::remote::planner::back_off;
use crate::remote::transport::{ErrorKind, ServerObject, ServerTree, TransportClient, TransportError};
use crate::source::FetchFailure;
use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// The files that a location leads to, and the name under which the cache keeps them.
pub struct FoundTree {
    pub tree: Arc<ServerTree>,
    pub name: String,
}

/// Time for which the first request is repeated while no server has answered anything. There is then no network, or no
/// such server.
const FIRST_CONTACT: Duration = Duration::from_secs(4);

/// Finds out what is at a URL. Offline, that is what was found earlier, or what the Hugging Face cache has.
pub async fn resolve_location(
    client: &TransportClient,
    cache: &BlockCache,
    url: &str,
    timeout: Duration,
) -> Result<FoundTree, FetchFailure> {
    let location = RemoteLocation::parse(url).map_err(TransportError::from)?;
    let location = location.ok_or_else(|| FetchFailure::lasting("not a URL"))?;
    let name = kept_name(client, &location);
    let resolved = retry(client, timeout, || client.resolve(&location)).await;
    let tree = match resolved.map_err(|error| (error.kind, error)) {
        // A repository of which the Hugging Face cache has some files. Offline, there are no others.
        Ok(mut tree) if client.is_offline_for(&location) => {
            // What was found before at the same commit, and may be in the cache of blocks.
            let kept = find_kept(cache, &name).filter(|kept| !tree.is_complete && kept.folder == tree.folder);
            for (path, file) in kept.into_iter().flat_map(|kept| kept.files) {
                tree.files.entry(path).or_insert(file);
            }
            tree.is_complete = true;
            tree
        }
        Ok(tree) => {
            if tree.is_complete || tree.files.values().all(Option::is_some) {
                keep_tree(&tree, cache, &name);
            }
            tree
        }
        Err((ErrorKind::Offline, error)) => find_kept(cache, &name).ok_or(error)?,
        Err((ErrorKind::Transient { .. }, error))
            if find_kept(cache, &name).is_some() || client.is_downloaded(&location) =>
        {
            return Err(error.and("--offline reads what was fetched before").into());
        }
        Err((_, error)) => return Err(error.into()),
    };
    Ok(FoundTree { tree: Arc::new(tree), name })
}

pub(super) struct OpenedFile {
    pub remote: Arc<ServerObject>,
    pub content: ObjectContent,
    /// Bytes that were received to open it.
    pub received: u64,
}

pub(super) enum ObjectContent {
    /// Its blocks are in the cache, or are fetched into it.
    Blocks(Arc<CachedObject>),
    /// A file of this machine that is complete.
    Whole(File),
}

pub(super) fn open_known(cache: &BlockCache, remote: Arc<ServerObject>) -> Result<OpenedFile, FetchFailure> {
    let content = match open_whole(&remote) {
        Some(file) => ObjectContent::Whole(file),
        None => ObjectContent::Blocks(cache.object(&cache_key(&remote))?),
    };
    Ok(OpenedFile { remote, content, received: 0 })
}

/// Finds out the version of a file that the listing of its tree does not contain, and opens it. One request, which also
/// fetches the first `head` bytes unless the cache has some version of the file.
pub(super) async fn probe(
    client: &TransportClient,
    cache: &BlockCache,
    tree: &ServerTree,
    path: &str,
    head: u64,
    timeout: Duration,
) -> Result<OpenedFile, FetchFailure> {
    let is_known = client.identity(&tree.place(path)).is_ok_and(|identity| cache.has_version(&identity));
    let first = if is_known { 1 } else { head.max(1) };
    let (remote, head) = retry(client, timeout, || client.probe(tree, path, first)).await?;
    let local = cache.object(&cache_key(&remote))?;
    if !is_known && head.len() as u64 == first.min(local.len) {
        let _ = local.write(0, &head)?;
    }
    Ok(OpenedFile { remote, content: ObjectContent::Blocks(local), received: head.len() as u64 })
}

/// The file in the Hugging Face cache, if it is there.
fn open_whole(remote: &ServerObject) -> Option<File> {
    let path = remote.local()?;
    let file = File::open(path).inspect_err(|error| log::info!("{}: {error}", path.display())).ok()?;
    let metadata = file.metadata().ok()?;
    (metadata.is_file() && metadata.len() == remote.len).then_some(file)
}

/// Attempts until one succeeds or fails for good, or `timeout` would pass before the next one.
async fn retry<T, F>(client: &TransportClient, timeout: Duration, attempt: impl Fn() -> F) -> Result<T, TransportError>
where
    F: Future<Output = Result<T, TransportError>>,
{
    let (started, mut failures) = (Instant::now(), 0);
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let ErrorKind::Transient { retry_after } = error.kind else { return Err(error) };
        failures += 1;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let wait = retry_after.unwrap_or_else(|| back_off(failures, now.subsec_micros().into()));
        let limit = if client.has_answer() { timeout } else { timeout.min(FIRST_CONTACT) };
        if started.elapsed() + wait > limit {
            return Err(error);
        }
        log::info!("{error}; the next attempt is in {:.1} s", wait.as_secs_f64());
        tokio::time::sleep(wait).await;
    }
}
