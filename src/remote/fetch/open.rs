//! Opens files of trees: finds their version, and their blocks in the cache.

use super::super::cache::{Cache, Object};
use super::super::transport::{self, Client, Tree};
use super::kept::{Kept, Version, key_of};
use super::retry::retry;
use super::trouble::Trouble;
use std::fs::File;
use std::time::Duration;

/// A file that was opened.
pub(super) struct Opened {
    pub version: Version,
    pub content: Content,
    /// Bytes that were received to open it.
    pub received: u64,
}

/// The bytes of a file.
pub(super) enum Content {
    /// Its blocks are in the cache, or are fetched into it.
    Blocks {
        /// `None` if it cannot be fetched.
        remote: Option<transport::Object>,
        local: Object,
    },
    /// A file of this machine that is complete.
    Whole { file: File, len: u64 },
}

/// Opens a file that was found earlier, and of which only the blocks in the cache can be read.
pub(super) fn open_kept(cache: &Cache, kept: &Kept, path: &str) -> Result<Opened, Trouble> {
    let file = kept.files.get(path).ok_or(Trouble::Absent)?;
    let (Some(key), Some(version)) = (file.key(), file.version.clone()) else { return Err(Trouble::Absent) };
    let local = cache.object(&key).map_err(Trouble::Cache)?;
    Ok(Opened { version, content: Content::Blocks { remote: None, local }, received: 0 })
}

/// Opens a file whose version is known.
pub(super) fn open_known(cache: &Cache, remote: transport::Object) -> Result<Opened, Trouble> {
    let version = Version::of(&remote);
    if let Some(content) = whole(&remote) {
        return Ok(Opened { version, content, received: 0 });
    }
    let local = cache.object(&key_of(&remote)).map_err(Trouble::Cache)?;
    Ok(Opened { version, content: Content::Blocks { remote: Some(remote), local }, received: 0 })
}

/// Finds out the version of a file that the listing of its tree does not contain, and opens it. One request, which also
/// fetches the first `head` bytes unless the cache has some version of the file.
pub(super) async fn probe(
    client: &Client,
    cache: &Cache,
    tree: &Tree,
    path: &str,
    head: u64,
    timeout: Duration,
) -> Result<Opened, Trouble> {
    let is_known = client.identity(&tree.place(path)).is_ok_and(|identity| cache.has_version(&identity));
    let first = if is_known { 1 } else { head.max(1) };
    let probed = retry(timeout, || client.probe(tree, path, first)).await;
    let (remote, head) = probed.map_err(Trouble::Transport)?;
    let local = cache.object(&key_of(&remote)).map_err(Trouble::Cache)?;
    if !is_known && head.len() as u64 == first.min(local.len()) {
        let _ = local.write(0, &head).map_err(Trouble::Cache)?;
    }
    let (version, received) = (Version::of(&remote), head.len() as u64);
    Ok(Opened { version, content: Content::Blocks { remote: Some(remote), local }, received })
}

/// The file in the Hugging Face cache, if it is there.
fn whole(remote: &transport::Object) -> Option<Content> {
    let path = remote.local()?;
    let file = File::open(path).inspect_err(|error| log::info!("{}: {error}", path.display())).ok()?;
    let metadata = file.metadata().ok()?;
    (metadata.is_file() && metadata.len() == remote.len()).then_some(Content::Whole { file, len: remote.len() })
}
