//! Opens files of trees: finds their version, and their blocks in the cache.

use super::super::cache::{Cache, Object};
use super::super::transport::{self, Client, Tree};
use super::kept::{Kept, Version, key_of};
use super::retry::retry;
use super::trouble::Trouble;
use std::fs::File;
use std::time::Duration;

/// What is fetched of a file when it is opened, in bytes. Most headers are shorter.
pub(super) const HEAD: u64 = 512 << 10;

/// A file that was opened.
pub(super) struct Opened {
    pub version: Version,
    pub content: Content,
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
    Ok(Opened { version, content: Content::Blocks { remote: None, local } })
}

/// Opens a file of a tree. What a listing does not contain is found out with one request, which also fetches the first
/// bytes unless the cache has them.
pub(super) async fn open(
    client: &Client,
    cache: &Cache,
    tree: &Tree,
    path: &str,
    timeout: Duration,
) -> Result<Opened, Trouble> {
    if let Some(remote) = tree.file(path).and_then(|file| file.object.clone()) {
        let version = Version::of(&remote);
        if let Some(content) = whole(&remote) {
            return Ok(Opened { version, content });
        }
        let local = cache.object(&key_of(&remote)).map_err(Trouble::Cache)?;
        return Ok(Opened { version, content: Content::Blocks { remote: Some(remote), local } });
    }
    // If the version of the file is known, only the version is asked for.
    let versions = client.identity(&tree.place(path)).ok().and_then(|identity| cache.versions(&identity).ok());
    let is_known = versions.is_some_and(|versions| !versions.is_empty());
    let first = if is_known { 1 } else { HEAD };
    let probed = retry(timeout, || client.probe(tree, path, first)).await;
    let (remote, head) = probed.map_err(Trouble::Transport)?;
    let local = cache.object(&key_of(&remote)).map_err(Trouble::Cache)?;
    if head.len() as u64 == HEAD.min(local.len()) {
        let _ = local.write(0, &head).map_err(Trouble::Cache)?;
    }
    Ok(Opened { version: Version::of(&remote), content: Content::Blocks { remote: Some(remote), local } })
}

/// The file in the Hugging Face cache, if it is there.
fn whole(remote: &transport::Object) -> Option<Content> {
    let path = remote.local()?;
    let file = File::open(path).inspect_err(|error| log::info!("{}: {error}", path.display())).ok()?;
    let metadata = file.metadata().ok()?;
    (metadata.is_file() && metadata.len() == remote.len()).then_some(Content::Whole { file, len: remote.len() })
}
