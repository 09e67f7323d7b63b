//! A model: knows which files it consists of and what tensors they hold; opens them and drives the parsers.

use crate::format::{self, Header, Mode, TensorInfo, safetensors};
use crate::source::{self, MappedFile, Source};
use std::path::{Path, PathBuf};

/// A model of one file.
#[derive(Debug)]
pub struct Model {
    path: PathBuf,
    shard: Shard,
}

/// One file of a model.
#[derive(Debug)]
pub struct Shard {
    /// File name, without directories.
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
    /// A directory, and not a file.
    #[error("{}: a directory; name a .safetensors file in it", path.display())]
    Directory {
        /// What was named.
        path: PathBuf,
    },
}

/// How much of a file is read at first: most headers are shorter.
const FIRST_READ: u64 = 64 << 10;

impl Model {
    /// Opens the file at `path` and reads its header.
    pub fn open(path: &Path, mode: Mode) -> Result<Self, Error> {
        if path.is_dir() {
            return Err(Error::Directory { path: path.to_owned() });
        }
        Self::from_source(path, Box::new(MappedFile::open(path)?), mode)
    }

    /// Reads the header of `source`, which errors call `path`.
    pub fn from_source(path: &Path, source: Box<dyn Source>, mode: Mode) -> Result<Self, Error> {
        let name = path.file_name().map_or(String::new(), |name| name.to_string_lossy().into_owned());
        let header = read_header(path, &*source, mode)?;
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { path, shard: Shard { name, source, header } })
    }

    /// The file that the model was opened from, as an absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of tensors.
    pub fn len(&self) -> usize {
        self.shard.header.len()
    }

    /// Whether there are no tensors.
    pub fn is_empty(&self) -> bool {
        self.shard.header.is_empty()
    }

    /// The tensor at `index`, in the order of the data, and the file that it lies in.
    ///
    /// # Panics
    /// Where `index` is not below [`Model::len`].
    pub fn tensor(&self, index: usize) -> (TensorInfo<'_>, &Shard) {
        (self.shard.header.tensor(index), &self.shard)
    }

    /// The one file.
    pub fn shard(&self) -> &Shard {
        &self.shard
    }

    /// The header of the one file.
    pub fn header(&self) -> &Header {
        &self.shard.header
    }
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
