//! Opens files of trees: finds their version, and their blocks in the cache.

use super::super::cache::{BlockCache, CachedObject};
use super::super::transport::{self, ServerTree, TransportClient};
use super::kept::{KeptTree, KeptVersion, key_of};
use super::retry::retry;
use super::trouble::absent;
use crate::source::FetchFailure;
use std::fs::File;
use std::time::Duration;

/// A file that was opened.
pub(super) struct OpenedObject {
    pub version: KeptVersion,
    pub content: ObjectContent,
    /// Bytes that were received to open it.
    pub received: u64,
}

/// The bytes of a file.
pub(super) enum ObjectContent {
    /// Its blocks are in the cache, or are fetched into it.
    Blocks {
        /// `None` if it cannot be fetched.
        remote: Option<transport::ServerObject>,
        local: CachedObject,
    },
    /// A file of this machine that is complete.
    Whole { file: File, len: u64 },
}

/// Opens a file that was found earlier, and of which only the blocks in the cache can be read.
pub(super) fn open_kept(cache: &BlockCache, kept: &KeptTree, path: &str) -> Result<OpenedObject, FetchFailure> {
    let file = kept.files.get(path).ok_or_else(absent)?;
    let (Some(key), Some(version)) = (file.key(), file.version.clone()) else { return Err(absent()) };
    let local = cache.object(&key)?;
    Ok(OpenedObject { version, content: ObjectContent::Blocks { remote: None, local }, received: 0 })
}

/// Opens a file whose version is known.
pub(super) fn open_known(cache: &BlockCache, remote: transport::ServerObject) -> Result<OpenedObject, FetchFailure> {
    let version = KeptVersion::of(&remote);
    if let Some(content) = open_whole(&remote) {
        return Ok(OpenedObject { version, content, received: 0 });
    }
    let local = cache.object(&key_of(&remote))?;
    Ok(OpenedObject { version, content: ObjectContent::Blocks { remote: Some(remote), local }, received: 0 })
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
) -> Result<OpenedObject, FetchFailure> {
    let is_known = client.identity(&tree.place(path)).is_ok_and(|identity| cache.has_version(&identity));
    let first = if is_known { 1 } else { head.max(1) };
    let probed = retry(timeout, || client.probe(tree, path, first)).await;
    let (remote, head) = probed?;
    let local = cache.object(&key_of(&remote))?;
    if !is_known && head.len() as u64 == first.min(local.len()) {
        let _ = local.write(0, &head)?;
    }
    let (version, received) = (KeptVersion::of(&remote), head.len() as u64);
    Ok(OpenedObject { version, content: ObjectContent::Blocks { remote: Some(remote), local }, received })
}

/// The file in the Hugging Face cache, if it is there.
fn open_whole(remote: &transport::ServerObject) -> Option<ObjectContent> {
    let path = remote.local()?;
    let file = File::open(path).inspect_err(|error| log::info!("{}: {error}", path.display())).ok()?;
    let metadata = file.metadata().ok()?;
    (metadata.is_file() && metadata.len() == remote.len()).then_some(ObjectContent::Whole { file, len: remote.len() })
}
