//! A model: knows which files it consists of and what tensors they hold; opens them and drives the parsers.

mod index;

use crate::format::{self, Header, Mode, NameTable, Skipped, TensorInfo, safetensors};
use crate::source::{self, MappedFile, Source, Stat};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

pub use index::Mismatch;

/// All tensors of one file, or of the many files of one model as one name space.
///
/// Tensors are numbered through: shard by shard in the order of their names, each in the order of its data.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    kind: Kind,
    shards: Vec<Shard>,
    /// The number of the first tensor of each shard.
    first: Vec<u32>,
    /// Of all shards, where there are several; one finds its names by itself.
    by_name: NameTable,
    metadata: Vec<(String, String)>,
    /// What the index and the files do not agree on.
    mismatches: Vec<Skipped>,
}

/// What a model was opened from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One file.
    File,
    /// An index and the shards that it names.
    Sharded,
}

/// One file of a model.
#[derive(Debug)]
pub struct Shard {
    /// File name; of a shard as the index gives it.
    pub name: String,
    /// Its bytes.
    pub source: Box<dyn Source>,
    /// What they hold.
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
    /// The index of a sharded model cannot be used.
    #[error("{}: {error}", path.display())]
    Index {
        /// The index.
        path: PathBuf,
        /// What is wrong with it.
        error: index::Error,
    },
    /// The index and the shards do not agree.
    #[error("{}: {mismatch}{} (--lenient mounts the rest)", path.display(), and_more(*more))]
    Mismatch {
        /// The index.
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

/// What the name of an index ends in.
const INDEX: &str = ".safetensors.index.json";

/// What the name of a file of tensors ends in.
const SAFETENSORS: &str = ".safetensors";

/// What the model in a file is called: the file's name without what those of its kind end in.
pub fn stem(path: &Path) -> Option<&OsStr> {
    let name = path.file_name()?.as_bytes();
    let stem = [INDEX, SAFETENSORS].iter().find_map(|ending| name.strip_suffix(ending.as_bytes()));
    stem.filter(|stem| !stem.is_empty()).map(OsStr::from_bytes).or_else(|| path.file_stem())
}

impl Model {
    /// Opens what is at `path`: a file, the index of a sharded model, or a directory with one model in it.
    pub fn open(path: &Path, mode: Mode) -> Result<Self, Error> {
        if path.is_dir() {
            return Self::open_directory(path, mode);
        }
        if path.as_os_str().as_encoded_bytes().ends_with(INDEX.as_bytes()) {
            return index::open(path, mode);
        }
        Self::from_source(path, Box::new(MappedFile::open(path)?), mode)
    }

    /// Reads the header of `source`, which errors call `path`.
    pub fn from_source(path: &Path, source: Box<dyn Source>, mode: Mode) -> Result<Self, Error> {
        let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        let header = read_header(path, &*source, mode)?;
        Ok(Self::new(path, Kind::File, vec![Shard { name, source, header }], Vec::new()))
    }

    /// The one index in a directory, or else the one file.
    fn open_directory(path: &Path, mode: Mode) -> Result<Self, Error> {
        let io = |error| source::Error::Io { path: path.to_owned(), error };
        let names = std::fs::read_dir(path).map_err(io)?.collect::<Result<Vec<_>, _>>().map_err(io)?;
        let ending = |end: &str| -> Vec<PathBuf> {
            let ends = |name: &OsStr| name.as_encoded_bytes().ends_with(end.as_bytes());
            names.iter().filter(|entry| ends(&entry.file_name())).map(|entry| entry.path()).collect()
        };
        match (&ending(INDEX)[..], &ending(SAFETENSORS)[..]) {
            ([one], _) | ([], [one]) => Self::open(one, mode),
            ([], []) => Err(Error::Directory { path: path.to_owned(), found: "no .safetensors file in it".into() }),
            (indices, files) => {
                let found =
                    format!("{} indices and {} .safetensors files in it; name one of them", indices.len(), files.len());
                Err(Error::Directory { path: path.to_owned(), found })
            }
        }
    }

    fn new(path: &Path, kind: Kind, shards: Vec<Shard>, mismatches: Vec<Skipped>) -> Self {
        let count = |next: &mut u32, shard: &Shard| {
            let first = *next;
            *next += shard.header.len() as u32;
            Some(first)
        };
        let first = shards.iter().scan(0, count).collect();
        let metadata = merge_metadata(&shards);
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let mut model = Self { path, kind, shards, first, by_name: NameTable::with_capacity(0), metadata, mismatches };
        if model.shards.len() != 1 {
            let mut by_name = NameTable::with_capacity(model.len());
            for at in 0..model.len() {
                // A name that two shards have is a mismatch, and only one of them has been kept.
                by_name.insert(at as u32, |at| model.name(at as usize));
            }
            model.by_name = by_name;
        }
        model
    }

    /// What the model was opened from, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is one file or many.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.first.last().map_or(0, |first| *first as usize) + self.shards.last().map_or(0, |shard| shard.header.len())
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The tensor numbered `index` and the file that it lies in.
    ///
    /// # Panics
    /// Where `index` is not below [`Model::len`].
    pub fn tensor(&self, index: usize) -> (TensorInfo<'_>, &Shard) {
        let (shard, index) = self.locate(index);
        let shard = &self.shards[shard];
        (shard.header.tensor(index), shard)
    }

    /// The name of the tensor numbered `index`.
    ///
    /// # Panics
    /// Where `index` is not below [`Model::len`].
    pub fn name(&self, index: usize) -> &str {
        let (shard, index) = self.locate(index);
        self.shards[shard].header.name(index)
    }

    /// The number of the tensor called `name`.
    pub fn find(&self, name: &str) -> Option<usize> {
        match &self.shards[..] {
            [one] => one.header.find(name),
            _ => self.by_name.find(name, |at| self.name(at as usize)).map(|at| at as usize),
        }
    }

    /// The files, in the order of their names.
    pub fn shards(&self) -> &[Shard] {
        &self.shards
    }

    /// `__metadata__` of all files, sorted by key. Of a key that several files have, the first file's value stands.
    pub fn metadata(&self) -> &[(String, String)] {
        &self.metadata
    }

    /// What was left out, and what the index and the files do not agree on: empty unless the model was opened leniently.
    pub fn skipped(&self) -> impl Iterator<Item = &Skipped> {
        self.mismatches.iter().chain(self.shards.iter().flat_map(|shard| shard.header.skipped()))
    }

    /// Owner, permissions and time of the whole: nobody may read it who may not read each of its files, and it is as young
    /// as the youngest.
    pub fn stat(&self) -> Option<Stat> {
        self.shards.iter().map(|shard| shard.source.stat()).reduce(|a, b| {
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
