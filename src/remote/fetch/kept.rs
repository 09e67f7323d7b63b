//! What a location led to when it was last resolved. It is kept in the cache, so that its files are found offline.

use super::super::cache::{BlockCache, CacheKey};
use super::super::location::{RemoteLocation, check_path};
use super::super::transport::{ServerObject, ServerTree, TransportClient};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// A tree without what is needed to fetch it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptTree {
    /// The URL of the tree without secrets.
    pub url: String,
    /// The path in the tree that the location leads to; empty for the tree itself.
    pub path: String,
    /// Whether all files of the tree are known.
    pub is_listed: bool,
    /// By their path.
    pub files: BTreeMap<String, KeptFile>,
}

/// A file of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptFile {
    /// Size in bytes.
    pub len: u64,
    /// `None` if it was not found out.
    pub version: Option<KeptVersion>,
}

/// A version of a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptVersion {
    pub identity: String,
    pub validator: String,
    pub name: String,
    pub is_public: bool,
    /// When it was last modified, in seconds since 1970.
    pub mtime: i64,
}

impl KeptVersion {
    /// The version of an object.
    pub fn of(object: &ServerObject) -> Self {
        let CacheKey { identity, validator, name, .. } = key_of(object);
        Self { identity, validator, name, is_public: object.is_public(), mtime: object.modified() }
    }
}

impl KeptFile {
    /// The key of the file in the cache, if its version is known.
    pub fn key(&self) -> Option<CacheKey> {
        let KeptVersion { identity, validator, name, .. } = self.version.clone()?;
        Some(CacheKey { identity, validator, len: self.len, name })
    }
}

impl KeptTree {
    /// The facts about a tree.
    pub fn of(tree: &ServerTree) -> Self {
        let file = |file: &super::super::transport::TreeFile| {
            let len = file.len.or(file.object.as_ref().map(ServerObject::len)).unwrap_or_default();
            (file.path.clone(), KeptFile { len, version: file.object.as_ref().map(KeptVersion::of) })
        };
        Self {
            url: tree.folder().to_string(),
            path: tree.named().unwrap_or_default().to_owned(),
            is_listed: tree.is_complete(),
            // The reading process refuses other paths.
            files: tree.files().iter().filter(|file| check_path(&file.path).is_ok()).map(file).collect(),
        }
    }

    /// Whether everyone may read all files.
    pub fn is_public(&self) -> bool {
        self.files.values().all(|file| file.version.as_ref().is_some_and(|version| version.is_public))
    }

    /// When a file was last modified, in seconds since 1970.
    pub fn mtime(&self) -> i64 {
        self.files.values().filter_map(|file| Some(file.version.as_ref()?.mtime)).max().unwrap_or_default()
    }

    /// Adds a file that was opened. Returns whether anything has changed.
    pub fn add(&mut self, path: &str, object: &ServerObject) -> bool {
        let file = KeptFile { len: object.len(), version: Some(KeptVersion::of(object)) };
        self.files.insert(path.to_owned(), file.clone()).is_none_or(|before| before != file)
    }

    /// Keeps it in the cache under a name. If that fails, `--offline` does not find it.
    pub fn keep(&self, cache: &BlockCache, name: &str) {
        let kept = serde_json::to_vec(self).map_err(|error| error.to_string());
        if let Err(error) = kept.and_then(|text| cache.keep_listing(name, &text).map_err(|error| error.to_string())) {
            log::info!("{}: not kept for --offline: {error}", self.url);
        }
    }

    /// The listing that is kept under a name.
    pub fn find(cache: &BlockCache, name: &str) -> Option<Self> {
        serde_json::from_slice(&cache.kept_listing(name)?).ok()
    }
}

/// The name of an object, for people. URLs that differ only in their queries get different names, without the query.
fn name_with_query(object: &ServerObject) -> String {
    match object.identity().split_once(" sha256=").and_then(|(_, hash)| hash.get(..8)) {
        Some(hash) => format!("{} (query {hash})", object.name()),
        None => object.name().to_owned(),
    }
}

/// The name under which the cache keeps what a location led to. URLs that differ only in a signature share it.
pub(super) fn kept_name(client: &TransportClient, location: &RemoteLocation) -> String {
    format!("{location} {}", client.identity(location).unwrap_or_default())
}

/// The key of a file in the cache.
pub(super) fn key_of(object: &ServerObject) -> CacheKey {
    CacheKey {
        identity: object.identity().to_owned(),
        validator: object.validator(),
        len: object.len(),
        name: name_with_query(object),
    }
}
