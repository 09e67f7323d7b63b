//! The target of a location when it was last resolved. It is kept in the cache, so that its files are found offline.

use super::super::cache::{BlockCache, CacheKey};
use super::super::location::RemoteLocation;
use super::super::protocol::WireAttributes;
use super::super::transport::{ChangeCertainty, ObjectVersion, ServerObject, ServerTree, TransportClient};
use sha2::{Digest, Sha256};

/// Whether everyone may read all files of a tree, and when one of them was last modified.
pub(super) fn tree_attributes(tree: &ServerTree) -> WireAttributes {
    let versions = tree.files.values().map(|object| object.as_ref().map(|object| &object.version));
    WireAttributes {
        is_public: versions.clone().all(|version| version.is_some_and(|version| version.is_public)),
        mtime: versions.flatten().map(|version| version.mtime).max().unwrap_or_default(),
        version: None,
    }
}

/// Keeps a tree in the cache under a name. If that fails, `--offline` does not find it.
pub(super) fn keep_tree(tree: &ServerTree, cache: &BlockCache, name: &str) {
    let kept = serde_json::to_vec(tree).map_err(|error| error.to_string());
    if let Err(error) = kept.and_then(|text| cache.keep_listing(name, &text).map_err(|error| error.to_string())) {
        log::info!("{}: not kept for --offline: {error}", tree.folder);
    }
}

pub(super) fn find_kept(cache: &BlockCache, name: &str) -> Option<ServerTree> {
    serde_json::from_slice(&cache.kept_listing(name)?).ok()
}

/// The name under which the cache keeps what a location led to. URLs that differ only in a signature share it.
pub(super) fn kept_name(client: &TransportClient, location: &RemoteLocation) -> String {
    format!("{location} {}", client.identity(location).unwrap_or_default())
}

impl From<&ServerObject> for WireAttributes {
    fn from(object: &ServerObject) -> Self {
        let ObjectVersion { identity, validator, is_public, mtime, .. } = &object.version;
        let version = (object.certainty() == ChangeCertainty::Exact).then(|| {
            let hash = Sha256::new_with_prefix(format!("{identity}\n{validator}")).finalize();
            *hash.first_chunk().unwrap_or(&[0; 16])
        });
        Self { is_public: *is_public, mtime: *mtime, version }
    }
}

/// The key of a file in the cache. Its name is for people: URLs that differ only in their queries get different names,
/// without the query.
pub(super) fn cache_key(object: &ServerObject) -> CacheKey {
    let ObjectVersion { identity, validator, name, .. } = object.version.clone();
    let name = match identity.split_once(" sha256=").and_then(|(_, hash)| hash.get(..8)) {
        Some(hash) => format!("{name} (query {hash})"),
        None => name,
    };
    CacheKey { identity, validator, len: object.len, name }
}
