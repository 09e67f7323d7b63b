//! The files of one set: knows which names are let in, and opens the files side by side while their list is still read.

use super::{Error as ModelError, Mismatch, SAFETENSORS, Shard, read_header};
use crate::format::Mode;
use crate::source::{FileId, MappedFile, Source};
use crate::text::quote;
use crate::text::shorten;
use crate::threads;
use std::collections::HashMap;
use std::path::Path;

/// Longest list of files, in bytes: five times that of a model of half a million tensors.
const LIST_MAX: u64 = 300 << 20;

/// Most shards of a set.
pub(super) const SHARDS_MAX: usize = 10_000;

/// Longest name of a shard, in bytes: it is told with each of its tensors.
const NAME_MAX: usize = 1024;

/// Why a list of files cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("{len} bytes long; at most {LIST_MAX} are read")]
    TooLong { len: u64 },
    #[error("no {what}: {reason}")]
    Json { what: &'static str, reason: String },
    #[error("format version {}; weightfs knows 1", quote(found))]
    Version { found: String },
    #[error("names more than {SHARDS_MAX} shards; so many can be mounted")]
    TooManyShards,
    #[error("refused: shard {} {why}", quote(shard))]
    Refused { shard: String, why: &'static str },
    #[error("names shard {} twice", quote(shard))]
    Repeated { shard: String },
    #[error("shards {} and {} are the same file", quote(a), quote(b))]
    SameFile { a: String, b: String },
    #[error("none of its shards can be mounted: {reason}")]
    Nothing { reason: String },
}

impl Error {
    /// What a JSON parser says of a list, which may repeat what it found.
    pub(super) fn json(what: &'static str, error: &serde_json::Error) -> Self {
        const REASON_MAX: usize = 300;
        Self::Json { what, reason: shorten(&error.to_string(), REASON_MAX).into_owned() }
    }
}

/// The files of a set.
pub(super) struct Set {
    /// In the order in which they were first named.
    pub names: Vec<String>,
    /// The place of each name's file in `files`, if it could be opened.
    pub homes: Vec<Option<usize>>,
    /// Sorted by name.
    pub files: Vec<File>,
    /// Why the others could not; there are none in strict mode.
    pub broken: Vec<Mismatch>,
}

/// Numbers the names of shards in the order of their first use, and starts to open each file at once.
pub(super) struct Names<'a> {
    open: &'a mut dyn FnMut(String),
    numbers: HashMap<String, u32>,
    list: Vec<String>,
}

/// A shard and its bytes.
pub(super) type File = (Shard, Box<dyn Source>);

/// A shard and its identity, by which it is known under another name too; or why there is none.
type Opened = Result<(File, Option<FileId>), String>;

impl Names<'_> {
    /// The number of a shard; refused where the name leads elsewhere, before anything is opened by it.
    pub fn number(&mut self, name: &str) -> Result<u32, Error> {
        // Neighbours in a list are mostly of one shard.
        if self.list.last().is_some_and(|last| last == name) {
            return Ok(self.list.len() as u32 - 1);
        }
        if let Some(number) = self.numbers.get(name) {
            return Ok(*number);
        }
        check(name)?;
        let number = self.list.len();
        if number == SHARDS_MAX {
            return Err(Error::TooManyShards);
        }
        self.numbers.insert(name.to_owned(), number as u32);
        self.list.push(name.to_owned());
        (self.open)(name.to_owned());
        Ok(number as u32)
    }
}

/// Opens all shards whose names come up while `read` goes through the list at `path`.
pub(super) fn open<R>(
    path: &Path,
    mode: Mode,
    read: impl FnOnce(&mut Names) -> Result<R, Error>,
) -> Result<(R, Set), ModelError> {
    let error = |error| ModelError::Set { path: path.to_owned(), error };
    let dir = path.parent().unwrap_or(Path::new(""));
    let read = |open: &mut dyn FnMut(String)| {
        let (numbers, list) = Default::default();
        let mut names = Names { open, numbers, list };
        (read(&mut names), names.list)
    };
    let open = |name: String| -> Opened { open_shard(&dir.join(&name), name, mode).map_err(|error| error.to_string()) };
    let ((read, names), opened) = threads::stream(read, open);
    let read = read.map_err(error)?;
    let (mut files, mut broken): (Vec<(usize, File)>, Vec<Mismatch>) = Default::default();
    let mut ids: HashMap<Option<FileId>, usize> = HashMap::new();
    for (at, shard) in opened.into_iter().enumerate() {
        match shard {
            Ok((file, id)) => {
                if let Some(other) = ids.insert(id, at) {
                    return Err(error(Error::SameFile { a: names[other].clone(), b: file.0.name }));
                }
                files.push((at, file));
            }
            Err(reason) => broken.push(Mismatch::Shard { shard: names[at][..].into(), reason }),
        }
    }
    if mode == Mode::Strict && !broken.is_empty() {
        let more = broken.len() - 1;
        return Err(ModelError::Mismatch { path: path.to_owned(), mismatch: broken.swap_remove(0), more });
    }
    if let (true, Some(first)) = (files.is_empty(), broken.first()) {
        return Err(error(Error::Nothing { reason: first.to_string() }));
    }
    files.sort_by(|a, b| a.1.0.name.cmp(&b.1.0.name));
    let mut homes = vec![None; names.len()];
    for (home, (at, _)) in files.iter().enumerate() {
        homes[*at] = Some(home);
    }
    Ok((read, Set { names, homes, files: files.into_iter().map(|file| file.1).collect(), broken }))
}

/// The whole list.
pub(super) fn read_list(path: &Path) -> Result<Vec<u8>, ModelError> {
    let source = MappedFile::open(path)?;
    if source.len() > LIST_MAX {
        return Err(ModelError::Set { path: path.to_owned(), error: Error::TooLong { len: source.len() } });
    }
    let mut text = vec![0; source.len() as usize];
    source.read_exact_at(&mut text, 0)?;
    Ok(text)
}

/// Refuses names that lead elsewhere.
fn check(name: &str) -> Result<(), Error> {
    let why = if name.starts_with('/') {
        "is an absolute path"
    } else if name.split('/').any(|part| part == "..") {
        "leads out of the directory"
    } else if !name.ends_with(SAFETENSORS) {
        "is no .safetensors file"
    } else if name.len() > NAME_MAX {
        "has a longer name than any file"
    } else {
        return Ok(());
    };
    Err(Error::Refused { shard: name.to_owned(), why })
}

fn open_shard(path: &Path, name: String, mode: Mode) -> Result<(File, Option<FileId>), ModelError> {
    let source = MappedFile::open(path)?;
    let header = read_header(path, &source, mode)?;
    let id = source.id();
    Ok(((Shard { name, header }, Box::new(source)), id))
}
