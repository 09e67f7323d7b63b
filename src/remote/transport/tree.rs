//! What `resolve` and `probe` return: a tree of remote files, and one version of one file.

use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::body::Sink;
use super::error::{Error, Kind};
use super::validator::{Certainty, Validator};
use super::{hub, store, url_file};
use crate::remote::location::Location;

/// The files at a location, at one version where the server has versions of whole trees.
#[derive(Clone, Debug)]
pub struct Tree {
    pub(super) folder: Location,
    /// The path and the location of the file that was asked for. The location may be written differently from a joined
    /// one.
    pub(super) named: Option<(String, Location)>,
    pub(super) files: Vec<File>,
    pub(super) complete: bool,
    pub(super) origin: Origin,
}

/// How files of a tree are reached that are not listed.
#[derive(Clone, Debug)]
pub(super) enum Origin {
    Hub(Arc<hub::Snapshot>),
    Web,
    Store(Arc<store::Bucket>),
}

/// A file of a tree.
#[derive(Clone, Debug)]
pub struct File {
    /// The path relative to the tree.
    pub path: String,
    /// The length in bytes, if it is known without a request.
    pub len: Option<u64>,
    /// The pinned version, if it is known without a request.
    pub object: Option<Object>,
}

impl Tree {
    pub(super) fn new(
        folder: Location,
        named: Option<(String, Location)>,
        mut files: Vec<File>,
        origin: Origin,
    ) -> Tree {
        files.sort_by(|a, b| a.path.cmp(&b.path));
        files.dedup_by(|a, b| a.path == b.path);
        Tree { folder, named, files, complete: false, origin }
    }

    pub(super) fn complete(mut self, complete: bool) -> Tree {
        self.complete = complete;
        self
    }

    /// The directory that the paths are relative to. On the Hub its revision is the pinned commit.
    pub fn folder(&self) -> &Location {
        &self.folder
    }

    /// The path of the file that the location names; `None` if it names a directory.
    pub fn named(&self) -> Option<&str> {
        self.named.as_ref().map(|(path, _)| path.as_str())
    }

    /// The files that are known, sorted by path.
    pub fn files(&self) -> &[File] {
        &self.files
    }

    /// Whether all files are listed, so that others do not exist.
    pub fn is_complete(&self) -> bool {
        self.complete
    }

    /// A listed file.
    pub fn file(&self, path: &str) -> Option<&File> {
        let at = self.files.binary_search_by(|file| file.path.as_str().cmp(path)).ok()?;
        self.files.get(at)
    }

    /// The location of a file; for what is not a path, the directory.
    pub fn place(&self, path: &str) -> Location {
        match &self.named {
            Some((named, location)) if named == path => location.clone(),
            _ => self.folder.join(path).unwrap_or_else(|_| self.folder.clone()),
        }
    }
}

/// One version of one remote file.
#[derive(Clone, Debug)]
pub struct Object(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    identity: String,
    validator: Validator,
    len: u64,
    name: String,
    public: bool,
    source: Source,
}

/// Where the bytes come from.
#[derive(Debug)]
pub(super) enum Source {
    /// A complete file in the Hugging Face cache.
    Local(PathBuf),
    Hub(hub::RemoteFile),
    Web(url_file::PinnedFile),
    Store(store::RemoteFile),
}

impl Object {
    pub(super) fn new(
        identity: String,
        validator: Validator,
        len: u64,
        name: &Location,
        public: bool,
        source: Source,
    ) -> Object {
        Object(Arc::new(Inner { identity, validator, len, name: name.to_string(), public, source }))
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
    pub fn certainty(&self) -> Certainty {
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
            Source::Local(path) => Some(path),
            _ => None,
        }
    }

    pub(super) fn source(&self) -> &Source {
        &self.0.source
    }
}

/// Delivers a range of a complete local file.
pub(super) fn read_local(path: &Path, range: Range<u64>, len: u64, sink: &mut Sink<'_>) -> Result<u64, Error> {
    let failed =
        |error: std::io::Error| Error::new(Kind::Missing, format!("the file in the Hugging Face cache: {error}"));
    let file = std::fs::File::open(path).map_err(failed)?;
    if file.metadata().map_err(failed)?.len() != len {
        return Err(Error::new(Kind::Changed, "the file in the Hugging Face cache changed"));
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
