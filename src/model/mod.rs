//! A model: knows which files it consists of and what tensors they hold; opens them and drives the parsers.

mod catalog;
mod dataset;
mod diff;
mod index;
mod set;

use crate::format::{self, Header, Mode, NameTable, SkipList, Skipped, TensorInfo, safetensors};
use crate::source::{self, MappedFile, Run, Source, Stat};
use crate::text::quote;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub use catalog::{Catalog, Entry, Folder, Item};
pub use dataset::MANIFEST;
pub use diff::{Change, Diff, changes};
pub use index::{Mismatch, Stated};

/// All tensors of one file, or of the many files of one model as one name space.
///
/// Tensors are numbered through: first the arrays that are joined from several shards, by name; then those of the files, shard
/// by shard in the order of their names, each in the order of its data. The name space is that of the first
/// [`Model::len`] of them.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    kind: Kind,
    shards: Vec<Shard>,
    /// The bytes of the shards, each at its shard's place.
    sources: Vec<Box<dyn Source>>,
    joined: Vec<Joined>,
    /// How many tensors are in the name space of the whole.
    len: usize,
    /// Tensors that are in their shard only, in rising order.
    aside: Vec<u32>,
    /// The number of the first tensor of each shard.
    first: Vec<u32>,
    /// Of all shards, where there are several and somebody asks; one finds its names by itself.
    by_name: OnceLock<NameTable>,
    /// `dataset_manifest.json`, of a dataset.
    manifest: Option<Box<dyn Source>>,
    /// Of all shards, where there are several.
    metadata: Vec<(String, String)>,
    /// What the index and the files do not agree on.
    mismatches: SkipList,
    /// What else should be said of it.
    remarks: Vec<String>,
    /// What the index says in numbers.
    stated: Stated,
    /// Shards of the index that could not be opened.
    missing: usize,
}

/// What a model was opened from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One file.
    File,
    /// An index and the shards that it names.
    Sharded,
    /// A manifest and the shards that it names.
    Dataset,
}

/// Where the data of a tensor is.
#[derive(Debug, Clone, Copy)]
pub enum Place<'a> {
    /// In one shard, by its number.
    Shard(usize),
    /// In several, one run after the other.
    Runs(&'a [Run]),
}

/// Tensors of several shards as one, concatenated along the first dimension.
#[derive(Debug)]
struct Joined {
    /// The number of the first of them: it has the name and the dtype of all.
    like: u32,
    shape: Vec<u64>,
    runs: Vec<Run>,
    nbytes: u64,
}

/// One file of a model.
#[derive(Debug)]
pub struct Shard {
    /// File name; of a shard as the index or the manifest gives it.
    pub name: String,
    /// What it holds.
    pub header: Header,
}

/// Why a model cannot be opened; the message names the file.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error(transparent)]
    Source(#[from] source::Error),
    /// Its header cannot be used.
    #[error("{}: {error}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: format::Error,
    },
    /// The index of a sharded model or the manifest of a dataset cannot be used.
    #[error("{}: {error}", path.display())]
    Set {
        /// The index or manifest.
        path: PathBuf,
        /// What is wrong with it.
        error: set::Error,
    },
    /// The index and the shards do not agree.
    #[error("{}: {mismatch}{} (--lenient mounts the rest)", path.display(), and_more(*more))]
    Mismatch {
        /// The index or manifest.
        path: PathBuf,
        /// The first of all.
        mismatch: Mismatch,
        /// How many there are besides.
        more: usize,
    },
    /// A directory that is not one model.
    #[error("{}: a directory with {found}", path.display())]
    Directory {
        /// What was named.
        path: PathBuf,
        /// What it holds.
        found: String,
    },
}

fn and_more(more: usize) -> String {
    if more == 0 { String::new() } else { format!(", and {more} more") }
}

/// How much of a file is read at first: most headers are shorter.
const FIRST_READ: u64 = 64 << 10;

/// What the name of a file of tensors ends in.
const SAFETENSORS: &str = ".safetensors";

/// What the model in a file is called: the file's name without what those of its kind end in, or of a dataset its
/// directory's.
pub fn stem(path: &Path) -> Option<OsString> {
    let name = path.file_name()?;
    if name == MANIFEST {
        return path.parent()?.file_name().map(OsStr::to_owned);
    }
    let single = || {
        let stem = name.as_bytes().strip_suffix(SAFETENSORS.as_bytes()).filter(|stem| !stem.is_empty())?;
        Some(OsStr::from_bytes(stem).to_owned())
    };
    index::stem(name).or_else(single).or_else(|| path.file_stem().map(OsStr::to_owned))
}

/// The value of a key of metadata, which is sorted by key.
pub fn value<'m>(metadata: &'m [(String, String)], key: &str) -> Option<&'m str> {
    let at = metadata.binary_search_by(|(other, _)| other[..].cmp(key)).ok()?;
    Some(&metadata[at].1)
}

/// Whether the file at `path` is the list of a set of files, by its name: the index of a sharded model or the manifest of a
/// dataset.
pub fn is_set(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name == MANIFEST || index::stem(name).is_some())
}

/// The files by which the models at `path` are opened, and why there may be more below it: the path itself, or those of a
/// directory, called as `path` calls it.
pub fn files(path: &Path) -> Result<(Vec<PathBuf>, Vec<String>), Error> {
    if !path.is_dir() {
        return Ok((vec![path.to_owned()], Vec::new()));
    }
    let catalog = Catalog::scan(path, Mode::Strict)?;
    if catalog.models().len() == 0 {
        return Err(none_in(path));
    }
    let files = catalog.models().map(|model| called_as(path, model)).collect();
    Ok((files, catalog.unreadable().to_vec()))
}

fn none_in(path: &Path) -> Error {
    Error::Directory { path: path.to_owned(), found: "no .safetensors file in it".into() }
}

/// A file below `dir` by the name that was given for that, so that errors call it so.
fn called_as(dir: &Path, file: &Path) -> PathBuf {
    let root = std::path::absolute(dir).unwrap_or_else(|_| dir.to_owned());
    file.strip_prefix(root).map_or_else(|_| file.to_owned(), |relative| dir.join(relative))
}

/// What is at a path.
#[derive(Debug)]
pub enum Opened {
    /// One model.
    Model(Box<Model>),
    /// A directory with several, none of which is open.
    Catalog(Catalog),
}

impl Opened {
    /// What is opened later, or once more: files, and directories of which all below may be.
    pub fn reads(&self) -> Vec<PathBuf> {
        match self {
            Self::Model(model) => {
                let sources = model.sources.iter().chain(&model.manifest);
                sources.filter_map(|source| source.path().map(Path::to_owned)).collect()
            }
            Self::Catalog(catalog) => catalog.reads().to_vec(),
        }
    }
}

/// Opens what is at `path`: a model, or a directory with one or several of them below it.
pub fn open(path: &Path, mode: Mode) -> Result<Opened, Error> {
    if !path.is_dir() {
        return Ok(Opened::Model(Model::open(path, mode)?.into()));
    }
    let catalog = Catalog::scan(path, mode)?;
    let first = catalog.models().next().map(Path::to_owned);
    match first.filter(|_| catalog.models().len() < 2) {
        Some(one) => Ok(Opened::Model(Model::open(&called_as(path, &one), mode)?.into())),
        None if catalog.models().len() == 0 => Err(none_in(path)),
        None => Ok(Opened::Catalog(catalog)),
    }
}

impl Model {
    /// Opens the model at `path`: a file, the index of a sharded model, or the manifest of a dataset.
    pub fn open(path: &Path, mode: Mode) -> Result<Self, Error> {
        let name = path.file_name().unwrap_or_default();
        if name == MANIFEST {
            return dataset::open(path, mode);
        }
        if index::stem(name).is_some() {
            return index::open(path, mode);
        }
        Self::from_source(path, Box::new(MappedFile::open(path)?), mode)
    }

    /// Reads the header of `source`, which errors call `path`.
    pub fn from_source(path: &Path, source: Box<dyn Source>, mode: Mode) -> Result<Self, Error> {
        let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        let header = read_header(path, &*source, mode)?;
        Ok(Self::new(path, Kind::File, vec![(Shard { name, header }, source)], SkipList::default()))
    }

    fn new(path: &Path, kind: Kind, files: Vec<(Shard, Box<dyn Source>)>, mismatches: SkipList) -> Self {
        let (shards, sources): (Vec<Shard>, Vec<_>) = files.into_iter().unzip();
        let count = |next: &mut u32, shard: &Shard| {
            let first = *next;
            *next += shard.header.len() as u32;
            Some(first)
        };
        let first = shards.iter().scan(0, count).collect();
        let len = shards.iter().map(|shard| shard.header.len()).sum();
        let metadata = if shards.len() > 1 { merge_metadata(&shards) } else { Vec::new() };
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let (joined, aside, by_name, manifest, remarks, stated, missing) = Default::default();
        Self {
            path,
            kind,
            shards,
            sources,
            joined,
            len,
            aside,
            first,
            by_name,
            manifest,
            metadata,
            mismatches,
            remarks,
            stated,
            missing,
        }
    }

    /// Makes the name space that of arrays which are joined from tensors of the shards; `aside` are those of which none is.
    fn number_joined(&mut self, mut joined: Vec<Joined>, mut aside: Vec<u32>) {
        let by = joined.len() as u32;
        joined.iter_mut().for_each(|joined| joined.like += by);
        aside.iter_mut().for_each(|aside| *aside += by);
        aside.sort_unstable();
        self.first.iter_mut().for_each(|first| *first += by);
        (self.len, self.joined, self.aside) = (joined.len(), joined, aside);
    }

    /// What the model was opened from, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is one file or many.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Number of tensors in the name space of the whole.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// How many tensors have a number: those of the whole, and those that are in their shard only.
    pub fn numbered(&self) -> usize {
        self.joined.len() + self.shards.iter().map(|shard| shard.header.len()).sum::<usize>()
    }

    /// The numbers of the tensors of a shard.
    pub fn tensors_of(&self, shard: usize) -> Range<usize> {
        let first = self.first[shard] as usize;
        first..first + self.shards[shard].header.len()
    }

    /// The numbers of the tensors that are part of the whole.
    pub fn whole(&self) -> impl Iterator<Item = u32> {
        (0..self.len as u32).filter(|at| !self.is_aside(*at as usize))
    }

    /// The numbers of all tensors that are not parts of joined ones: those of the whole, and those in their shard only.
    pub fn listed(&self) -> impl Iterator<Item = u32> {
        let behind = self.aside.partition_point(|at| (*at as usize) < self.len);
        (0..self.len as u32).chain(self.aside[behind..].iter().copied())
    }

    /// Tensors that are in no way part of the whole, in rising order: found in their shard only.
    pub fn aside(&self) -> &[u32] {
        &self.aside
    }

    /// Whether the tensor numbered `index` is one of those.
    pub fn is_aside(&self, index: usize) -> bool {
        self.aside.binary_search(&(index as u32)).is_ok()
    }

    /// The tensor numbered `index` and the place of its data. That of joined tensors is in `range` counted from its own
    /// beginning.
    ///
    /// # Panics
    /// Where `index` is not below [`Model::numbered`].
    pub fn tensor(&self, index: usize) -> (TensorInfo<'_>, Place<'_>) {
        if let Some(Joined { like, shape, runs, nbytes }) = self.joined.get(index) {
            return (TensorInfo { shape, range: 0..*nbytes, ..self.tensor(*like as usize).0 }, Place::Runs(runs));
        }
        let (shard, index) = self.locate(index);
        (self.shards[shard].header.tensor(index), Place::Shard(shard))
    }

    /// The runs in which the data of the tensor numbered `index` lies; where it has none, one of no bytes may stand for it.
    ///
    /// # Panics
    /// Where `index` is not below [`Model::numbered`].
    pub fn runs(&self, index: usize) -> Cow<'_, [Run]> {
        match self.tensor(index) {
            (_, Place::Runs(runs)) => runs.into(),
            (TensorInfo { range, .. }, Place::Shard(shard)) => {
                vec![Run { start: 0, source: shard as u32, offset: range.start }].into()
            }
        }
    }

    /// The name of the tensor numbered `index`.
    ///
    /// # Panics
    /// Where `index` is not below [`Model::numbered`].
    pub fn name(&self, index: usize) -> &str {
        let index = self.joined.get(index).map_or(index, |joined| joined.like as usize);
        let (shard, index) = self.locate(index);
        self.shards[shard].header.name(index)
    }

    /// Whether the entry of the tensor numbered `index` is a list, which only some readers take. No joined one is.
    ///
    /// # Panics
    /// Where `index` is not below [`Model::numbered`].
    pub fn is_list(&self, index: usize) -> bool {
        self.joined.len() <= index && {
            let (shard, index) = self.locate(index);
            self.shards[shard].header.is_list(index)
        }
    }

    /// The number of the tensor that is called `name` in the whole.
    pub fn find(&self, name: &str) -> Option<usize> {
        if let (Kind::File, [one]) = (self.kind, &self.shards[..]) {
            return one.header.find(name);
        }
        let table = || {
            let mut table = NameTable::with_capacity(self.len);
            for at in self.whole().map(|at| at as usize) {
                table.insert(at as u32, |at| self.name(at as usize));
            }
            table
        };
        self.by_name.get_or_init(table).find(name, |at| self.name(at as usize)).map(|at| at as usize)
    }

    /// The number of the tensor that is called `name` in a shard.
    pub fn find_in(&self, shard: usize, name: &str) -> Option<usize> {
        self.shards[shard].header.find(name).map(|at| self.first[shard] as usize + at)
    }

    /// The files, in the order of their names.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// The bytes of the files, each at the place of its shard.
    pub fn sources(&self) -> &[Box<dyn Source>] {
        &self.sources
    }

    /// The manifest of a dataset.
    pub fn manifest(&self) -> Option<&dyn Source> {
        self.manifest.as_deref()
    }

    /// `__metadata__` of all files, sorted by key. Of a key that several files have, the first file's value stands.
    pub fn metadata(&self) -> &[(String, String)] {
        match &self.shards[..] {
            [one] => one.header.metadata(),
            _ => &self.metadata,
        }
    }

    /// What the index or the manifest and the files do not agree on, by what is left out for it: empty unless the model was
    /// opened leniently, or is a dataset.
    pub fn mismatches(&self) -> &SkipList {
        &self.mismatches
    }

    /// What else should be said of an index or a manifest.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// What the index says in numbers.
    pub fn stated(&self) -> Stated {
        self.stated
    }

    /// How many shards of an index could not be opened.
    pub fn missing(&self) -> usize {
        self.missing
    }

    /// What was left out, and what the index and the files do not agree on: empty unless the model was opened leniently.
    pub fn skipped(&self) -> impl Iterator<Item = &Skipped> {
        self.mismatches.listed().iter().chain(self.shards.iter().flat_map(|shard| shard.header.skipped()))
    }

    /// How many of these there are, listed or not.
    pub fn left_out(&self) -> usize {
        self.mismatches.total() + self.shards.iter().map(|shard| shard.header.left_out()).sum::<usize>()
    }

    /// Logs what was left out and what is not known, and no more than a screen of it.
    pub fn report(&self, source: &Path) {
        const LINES: usize = 20;
        let source = source.display();
        for skipped in self.skipped().take(LINES) {
            log::warn!("{source}: left out {}: {}", quote(&skipped.name), skipped.reason);
        }
        if let Some(more @ 1..) = self.left_out().checked_sub(LINES) {
            log::warn!("{source}: left out {more} more; see index.json");
        }
        for remark in self.remarks.iter().take(LINES) {
            log::warn!("{source}: {remark}");
        }
        let unknown: BTreeSet<_> = self.shards.iter().flat_map(|shard| shard.header.unknown_dtypes()).collect();
        for dtype in unknown.iter().take(LINES) {
            log::warn!("{source}: unknown dtype {}: such tensors are shown as raw bytes", quote(dtype));
        }
    }

    /// Owner, permissions and time of the whole: nobody may read it who may not read each of its files, and it is as young
    /// as the youngest.
    pub fn stat(&self) -> Option<Stat> {
        self.sources.iter().map(|source| source.stat()).reduce(|a, b| {
            let same_owner = (a.uid, a.gid) == (b.uid, b.gid);
            let both = a.mode & b.mode;
            // Of files of different owners only those are sure to be allowed to read who are neither.
            let mode = if same_owner { both } else { both & 0o007 | (both & 0o007) << 3 | (both & 0o007) << 6 };
            Stat { mode, mtime: a.mtime.max(b.mtime), ..a }
        })
    }

    /// The shard of a tensor and its number there.
    fn locate(&self, index: usize) -> (usize, usize) {
        let shard = self.first.partition_point(|first| *first as usize <= index).saturating_sub(1);
        (shard, index - self.first[shard] as usize)
    }
}

fn merge_metadata(shards: &[Shard]) -> Vec<(String, String)> {
    let mut merged: Vec<_> = shards.iter().flat_map(|shard| shard.header.metadata()).cloned().collect();
    // Stable, so that of a repeated key the first file's value stays.
    merged.sort_by(|a, b| a.0.cmp(&b.0));
    merged.dedup_by(|later, kept| later.0 == kept.0);
    merged
}

fn read_header(path: &Path, source: &dyn Source, mode: Mode) -> Result<Header, Error> {
    let mut prefix = Vec::new();
    let mut needed = source.len().min(FIRST_READ);
    loop {
        let have = prefix.len();
        prefix.resize(needed as usize, 0);
        source.read_exact_at(&mut prefix[have..], have as u64)?;
        match format::parse(&prefix, source.len(), mode) {
            Ok(header) => return Ok(header),
            // More than there was: the parser never asks for less, nor for more than the file has.
            Err(format::Error::Safetensors(safetensors::Error::Incomplete { needed: more })) if more > needed => {
                needed = more;
            }
            Err(error) => return Err(Error::Format { path: path.to_owned(), error }),
        }
    }
}
