//! The results of `resolve` and `probe`: a tree of remote files, and one version of one file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::validator::{ChangeCertainty, VersionValidator};
use super::{hub, store, url_file};
use crate::remote::location::RemoteLocation;

/// The files at a location, at one version where the server has versions of whole trees. What is serialized of it is
/// kept in the cache, so that its files are found offline: it has neither secrets nor what is needed to fetch files.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ServerTree {
    /// The directory that the paths are relative to. On the Hub its revision is the pinned commit.
    #[serde(rename = "url", serialize_with = "write_location", deserialize_with = "read_location")]
    pub folder: RemoteLocation,
    /// The path of the file that was asked for; empty for a directory.
    pub path: String,
    /// The location of that file, which may be written differently from a joined one.
    #[serde(skip)]
    pub(super) named: Option<RemoteLocation>,
    /// The known files by their paths. `None` for those that are not pinned yet.
    #[serde(serialize_with = "write_files", deserialize_with = "read_files")]
    pub files: ServerFiles,
    /// Whether all files are known, so that others do not exist.
    #[serde(rename = "is_listed")]
    pub is_complete: bool,
    #[serde(skip)]
    pub(super) origin: TreeOrigin,
}

pub type ServerFiles = BTreeMap<String, Option<Arc<ServerObject>>>;

/// The way to files of a tree that are not listed.
#[derive(Clone, Debug, Default)]
pub(super) enum TreeOrigin {
    /// There is none: the tree was kept in the cache.
    #[default]
    Kept,
    Hub(Arc<hub::RepoSnapshot>),
    Web,
    Store(Arc<store::StoreBucket>),
}

impl ServerTree {
    /// The tree of which only the file at `location` is known. `None` if the location names no file.
    pub(super) fn of_file(
        location: RemoteLocation,
        object: Option<Arc<ServerObject>>,
        origin: TreeOrigin,
    ) -> Option<ServerTree> {
        let (path, folder) = (location.file_name()?, location.parent()?);
        let files = BTreeMap::from([(path.clone(), object)]);
        Some(ServerTree { folder, path, named: Some(location), files, is_complete: false, origin })
    }

    /// A file that is pinned.
    pub fn object(&self, path: &str) -> Option<&Arc<ServerObject>> {
        self.files.get(path)?.as_ref()
    }

    /// The location of a file; for what is not a path, the directory.
    pub fn place(&self, path: &str) -> RemoteLocation {
        match &self.named {
            Some(named) if self.path == path => named.clone(),
            _ => self.folder.join(path).unwrap_or_else(|_| self.folder.clone()),
        }
    }
}

/// The identity of one version of a file. Holds no secrets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectVersion {
    /// Identifies the file, whatever its version and however it was addressed.
    pub identity: String,
    /// Identifies the version, as a text for comparison.
    pub validator: String,
    /// The location, for people.
    pub name: String,
    /// Whether everybody may read it: the server says so, or gave it without credentials.
    pub is_public: bool,
    /// When it was last modified, in seconds since 1970; 0 if the server does not say.
    pub mtime: i64,
}

/// One version of one remote file.
#[derive(Debug, Serialize, Deserialize)]
pub struct ServerObject {
    pub version: ObjectVersion,
    /// In bytes.
    pub len: u64,
    #[serde(skip)]
    pub(super) validator: VersionValidator,
    #[serde(skip)]
    pub(super) origin: ByteOrigin,
}

/// A file that was pinned, and its first bytes.
pub type ProbedObject = (Arc<ServerObject>, Vec<u8>);

#[derive(Debug, Default)]
pub(super) enum ByteOrigin {
    /// There is none: the object was kept in the cache.
    #[default]
    Kept,
    Hub(hub::HubFile),
    Web(url_file::UrlFile),
    Store(store::BucketFile),
}

impl ServerObject {
    pub(super) fn new(
        identity: String,
        validator: VersionValidator,
        len: u64,
        name: &RemoteLocation,
        is_public: bool,
        origin: ByteOrigin,
    ) -> Arc<ServerObject> {
        let (name, mtime) = (name.to_string(), validator.modified());
        let version = ObjectVersion { identity, validator: validator.to_string(), name, is_public, mtime };
        Arc::new(ServerObject { version, len, validator, origin })
    }

    /// The certainty that a change on the server is noticed. Below `Exact`, a mount should say so.
    pub fn certainty(&self) -> ChangeCertainty {
        match self.origin {
            ByteOrigin::Kept => ChangeCertainty::Exact,
            _ => self.validator.certainty(),
        }
    }

    /// The complete local file, if there is one in the Hugging Face cache.
    pub fn local(&self) -> Option<&Path> {
        match &self.origin {
            ByteOrigin::Hub(file) => file.local.as_deref(),
            ByteOrigin::Web(_) | ByteOrigin::Store(_) | ByteOrigin::Kept => None,
        }
    }
}

fn write_location<S: Serializer>(location: &RemoteLocation, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(location)
}

fn read_location<'de, D: Deserializer<'de>>(from: D) -> Result<RemoteLocation, D::Error> {
    let location = RemoteLocation::parse(&String::deserialize(from)?).map_err(D::Error::custom)?;
    location.ok_or_else(|| D::Error::custom("not a URL"))
}

fn write_files<S: Serializer>(files: &ServerFiles, to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(files.iter().map(|(path, object)| (path, object.as_deref())))
}

fn read_files<'de, D: Deserializer<'de>>(from: D) -> Result<ServerFiles, D::Error> {
    let files: BTreeMap<String, Option<ServerObject>> = BTreeMap::deserialize(from)?;
    Ok(files.into_iter().map(|(path, object)| (path, object.map(Arc::new))).collect())
}
