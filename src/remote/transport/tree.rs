//! The results of `resolve` and `probe`: a tree of remote files, and one version of one file.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::body::Sink;
use super::error::{ErrorKind, TransportError};
use super::validator::{ChangeCertainty, VersionValidator};
use super::{hub, store, url_file};
use crate::remote::location::RemoteLocation;

/// The files at a location, at one version where the server has versions of whole trees.
#[derive(Clone, Debug)]
pub struct ServerTree {
    pub(super) folder: RemoteLocation,
    /// The path and the location of the file that was asked for. The location may be written differently from a joined
    /// one.
    pub(super) named: Option<(String, RemoteLocation)>,
    pub(super) files: Vec<TreeFile>,
    pub(super) complete: bool,
    pub(super) origin: TreeOrigin,
}

/// The way to files of a tree that are not listed.
#[derive(Clone, Debug)]
pub(super) enum TreeOrigin {
    Hub(Arc<hub::RepoSnapshot>),
    Web,
    Store(Arc<store::StoreBucket>),
}

/// A file of a tree.
#[derive(Clone, Debug)]
pub struct TreeFile {
    /// The path relative to the tree.
    pub path: String,
    /// The length in bytes, if it is known without a request.
    pub len: Option<u64>,
    /// The pinned version, if it is known without a request.
    pub object: Option<ServerObject>,
}

impl ServerTree {
    pub(super) fn new(
        folder: RemoteLocation,
        named: Option<(String, RemoteLocation)>,
        mut files: Vec<TreeFile>,
        origin: TreeOrigin,
    ) -> ServerTree {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files.dedup_by(|a, b| a.path == b.path);
        ServerTree { folder, named, files, complete: false, origin }
    }

    pub(super) fn complete(mut self, complete: bool) -> ServerTree {
        self.complete = complete;
        self
    }

    /// The directory that the paths are relative to. On the Hub its revision is the pinned commit.
    pub fn folder(&self) -> &RemoteLocation {
        &self.folder
    }

    /// The path of the file that the location names; `None` if it names a directory.
    pub fn named(&self) -> Option<&str> {
        self.named.as_ref().map(|(path, _)| path.as_str())
    }

    /// The files that are known, sorted by path.
    pub fn files(&self) -> &[TreeFile] {
        &self.files
    }

    /// Whether all files are listed, so that others do not exist.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// A listed file.
    pub fn file(&self, path: &str) -> Option<&TreeFile> {
        let at = self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok()?;
        self.files.get(at)
    }

    /// The location of a file; for what is not a path, the directory.
    pub fn place(&self, path: &str) -> RemoteLocation {
        match &self.named {
            Some((named, location)) if named == path => location.clone(),
            _ => self.folder.join(path).unwrap_or_else(|_| self.folder.clone()),
        }
    }
}

/// One version of one remote file.
#[derive(Clone, Debug)]
pub struct ServerObject(Arc<ServerObjectInner>);

#[derive(Debug)]
struct ServerObjectInner {
    identity: String,
    validator: VersionValidator,
    len: u64,
    name: String,
    public: bool,
    source: ByteOrigin,
}

/// The origin of the bytes.
#[derive(Debug)]
pub(super) enum ByteOrigin {
    /// A complete file in the Hugging Face cache.
    Local(PathBuf),
    Hub(hub::HubFile),
    Web(url_file::PinnedFile),
    Store(store::BucketFile),
}

impl ServerObject {
    pub(super) fn new(
        identity: String,
        validator: VersionValidator,
        len: u64,
        name: &RemoteLocation,
        public: bool,
        source: ByteOrigin,
    ) -> ServerObject {
        ServerObject(Arc::new(ServerObjectInner { identity, validator, len, name: name.to_string(), public, source }))
    }

    /// Which file it is, whatever its version and however it was addressed. Holds no secrets.
    pub fn identity(&self) -> &str {
        &self.0.identity
    }

    /// Which version it is, as a text for comparison.
    pub fn validator(&self) -> String {
        self.0.validator.to_string()
    }

    /// How surely a change on the server is noticed. Below `Exact`, a mount should say so.
    pub fn certainty(&self) -> ChangeCertainty {
        self.0.validator.certainty()
    }

    /// When it was last modified, in seconds since 1970; 0 if the server does not say.
    pub fn modified(&self) -> i64 {
        self.0.validator.modified()
    }

    /// The length in bytes.
    pub fn len(&self) -> u64 {
        self.0.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.0.len == 0
    }

    /// The location, for people. Holds no secrets.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether everybody may read it: the server says so, or gave it without credentials.
    pub fn is_public(&self) -> bool {
        self.0.public
    }

    /// The complete local file, if there is one in the Hugging Face cache.
    pub fn local(&self) -> Option<&Path> {
        match &self.0.source {
            ByteOrigin::Local(path) => Some(path),
            _ => None,
        }
    }

    pub(super) fn source(&self) -> &ByteOrigin {
        &self.0.source
    }
}

/// Delivers a range of a complete local file.
pub(super) fn read_local(path: &Path, range: Range<u64>, len: u64, sink: &mut Sink<'_>) -> Result<u64, TransportError> {
    let failed = |error: std::io::Error| {
        TransportError::new(ErrorKind::Missing, format!("the file in the Hugging Face cache: {error}"))
    };
    let file = std::fs::File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() != len {
        return Err(TransportError::new(ErrorKind::Changed, "the file in the Hugging Face cache changed"));
    }
    let mut piece = vec![0; 256 << 10];
    let mut at = range.start;
    while at < range.end {
        let size = piece.len().min(usize::try_from(range.end - at).unwrap_or(usize::MAX));
        file.read_exact_at(&mut piece[..size], at).map_err(|error| failed(error).after(at - range.start))?;
        at += size as u64;
        if sink(&piece[..size]).is_break() {
            break;
        }
    }
    Ok(at - range.start)
}
