//! The index of a sharded model: knows `weight_map`, and whether the shards hold what it says.
//!
//! Source: `huggingface_hub`, `serialization/_torch.py`: `{"metadata": {...}, "weight_map": {TENSOR: FILE}}`.

use super::{Error as ModelError, Kind, Model, SAFETENSORS, Shard, read_header};
use crate::format::{Mode, Skipped, quote};
use crate::source::{self, MappedFile, Source};
use rayon::prelude::*;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Longest index, in bytes: five times that of a model of half a million tensors.
const INDEX_MAX: u64 = 300 << 20;

/// Most shards: each keeps a descriptor and a map.
const SHARDS_MAX: usize = 10_000;

/// Why an index cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    #[error("an index of {len} bytes; at most {INDEX_MAX} are read")]
    TooLong { len: u64 },
    #[error("no index of a sharded model: {reason}")]
    Json { reason: String },
    #[error("names {found} shards; at most {SHARDS_MAX} can be mounted")]
    TooManyShards { found: usize },
    #[error("refused: shard {} {why}", quote(shard))]
    Refused { shard: String, why: &'static str },
    #[error("shards {} and {} are the same file", quote(a), quote(b))]
    SameFile { a: String, b: String },
    #[error("none of its shards can be mounted")]
    Nothing,
}

/// A point on which the index and the shards do not agree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the messages say it")]
pub enum Mismatch {
    #[error("a shard is missing or broken: {reason}")]
    Shard { shard: String, reason: String },
    #[error("tensor {} should be in {}, but no shard has it", quote(tensor), quote(shard))]
    Absent { tensor: String, shard: String },
    #[error("tensor {} should be in {}, but is in {}", quote(tensor), quote(shard), quote(found))]
    Elsewhere { tensor: String, shard: String, found: String },
    #[error("tensor {} is in {}, but the index does not name it", quote(tensor), quote(shard))]
    Unnamed { tensor: String, shard: String },
    #[error("tensor {} is in {} as the index says, and in {} too", quote(tensor), quote(shard), quote(other))]
    Twice { tensor: String, shard: String, other: String },
}

impl Mismatch {
    /// The tensor or shard that is to blame.
    fn subject(&self) -> &str {
        match self {
            Self::Shard { shard, .. } => shard,
            Self::Absent { tensor, .. }
            | Self::Elsewhere { tensor, .. }
            | Self::Unnamed { tensor, .. }
            | Self::Twice { tensor, .. } => tensor,
        }
    }
}

/// The text of `weight_map`. It names every tensor, so that it is gone through twice and never kept.
#[derive(Deserialize)]
struct Index<'t> {
    #[serde(borrow)]
    weight_map: &'t RawValue,
}

/// A string as it lies in the text, where nothing in it is escaped.
#[derive(Deserialize)]
struct Text<'t>(#[serde(borrow)] Cow<'t, str>);

/// Hands each tensor and its shard to a closure.
struct Entries<F>(F);

impl<'de, F: FnMut(&str, &str)> Visitor<'de> for Entries<F> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensor and file names")
    }

    fn visit_map<A: MapAccess<'de>>(mut self, mut map: A) -> Result<(), A::Error> {
        while let Some((tensor, shard)) = map.next_entry::<Text, Text>()? {
            (self.0)(&tensor.0, &shard.0);
        }
        Ok(())
    }
}

/// Calls `visit` with each tensor and the shard that it should be in.
fn each_entry(map: &RawValue, visit: impl FnMut(&str, &str)) -> Result<(), serde_json::Error> {
    serde_json::Deserializer::from_str(map.get()).deserialize_map(Entries(visit))
}

/// Opens all shards that the index at `path` names, and holds them to it.
pub(super) fn open(path: &Path, mode: Mode) -> Result<Model, ModelError> {
    let error = |error| ModelError::Index { path: path.to_owned(), error };
    let json = |reason: serde_json::Error| error(Error::Json { reason: reason.to_string() });
    let text = read(path)?;
    let index: Index = serde_json::from_slice(&text).map_err(json)?;
    let mut names: BTreeSet<String> = BTreeSet::new();
    each_entry(index.weight_map, |_, shard| {
        if !names.contains(shard) {
            names.insert(shard.to_owned());
        }
    })
    .map_err(json)?;
    let names: Vec<String> = names.into_iter().collect();
    check(&names).map_err(error)?;
    let dir = path.parent().unwrap_or(Path::new(""));
    let opened: Vec<_> = names.par_iter().map(|name| open_shard(&dir.join(name), name, mode)).collect();
    let mut mismatches = Vec::new();
    let mut shards = Vec::new();
    let mut files: HashMap<(u64, u64), &str> = HashMap::new();
    for (name, opened) in names.iter().zip(opened) {
        match opened {
            Ok((shard, file)) => {
                if let Some(other) = files.insert(file, name) {
                    return Err(error(Error::SameFile { a: other.to_owned(), b: name.clone() }));
                }
                shards.push(shard);
            }
            Err(reason) => mismatches.push(Mismatch::Shard { shard: name.clone(), reason: reason.to_string() }),
        }
    }
    audit(index.weight_map, &mut shards, &mut mismatches).map_err(json)?;
    if mode == Mode::Strict && !mismatches.is_empty() {
        let more = mismatches.len() - 1;
        return Err(ModelError::Mismatch { path: path.to_owned(), mismatch: mismatches.swap_remove(0), more });
    }
    if shards.is_empty() && !names.is_empty() {
        return Err(error(Error::Nothing));
    }
    let skipped = |mismatch: &Mismatch| Skipped { name: mismatch.subject().to_owned(), reason: mismatch.to_string() };
    Ok(Model::new(path, Kind::Sharded, shards, mismatches.iter().map(skipped).collect()))
}

fn read(path: &Path) -> Result<Vec<u8>, ModelError> {
    let source = MappedFile::open(path)?;
    if source.len() > INDEX_MAX {
        let error = Error::TooLong { len: source.len() };
        return Err(ModelError::Index { path: path.to_owned(), error });
    }
    let mut text = vec![0; source.len() as usize];
    source.read_exact_at(&mut text, 0)?;
    Ok(text)
}

/// Refuses names that lead elsewhere, before any of them is opened.
fn check(names: &[String]) -> Result<(), Error> {
    if names.len() > SHARDS_MAX {
        return Err(Error::TooManyShards { found: names.len() });
    }
    for name in names {
        let why = if name.starts_with('/') {
            "is an absolute path"
        } else if name.split('/').any(|part| part == "..") {
            "leads out of the directory"
        } else if !name.ends_with(SAFETENSORS) {
            "is no .safetensors file"
        } else {
            continue;
        };
        return Err(Error::Refused { shard: name.clone(), why });
    }
    Ok(())
}

/// A shard, and the device and inode number that tell whether it is another one by a second name.
fn open_shard(path: &Path, name: &str, mode: Mode) -> Result<(Shard, (u64, u64)), ModelError> {
    let source = MappedFile::open(path)?;
    let io = |error| source::Error::Io { path: path.to_owned(), error };
    let metadata = std::fs::metadata(path).map_err(io)?;
    let header = read_header(path, &source, mode)?;
    Ok((Shard { name: name.to_owned(), source: Box::new(source), header }, (metadata.dev(), metadata.ino())))
}

/// Compares both ways, and leaves each tensor in one shard only: the one that the index names, or else the first.
///
/// Nothing is allocated for a tensor about which both agree.
fn audit(map: &RawValue, shards: &mut [Shard], mismatches: &mut Vec<Mismatch>) -> Result<(), serde_json::Error> {
    let homes: HashMap<&str, usize> = shards.iter().enumerate().map(|(at, shard)| (&shard.name[..], at)).collect();
    let mut stated: Vec<Vec<bool>> = shards.iter().map(|shard| vec![false; shard.header.len()]).collect();
    // What the shard that the index names does not have, and that shard.
    let mut absent: HashMap<String, String> = HashMap::new();
    each_entry(map, |tensor, shard| {
        let home = homes.get(shard).copied();
        match home.and_then(|home| Some((home, shards[home].header.find(tensor)?))) {
            Some((home, found)) => stated[home][found] = true,
            None => drop(absent.insert(tensor.to_owned(), shard.to_owned())),
        }
    })?;
    let mut dropped: Vec<HashSet<String>> = vec![HashSet::new(); shards.len()];
    // Made only where there is something to look up.
    let at_home = LazyCell::new(|| {
        let mut homes: HashMap<&str, usize> = HashMap::new();
        for (at, shard) in shards.iter().enumerate() {
            let tensors = (0..shard.header.len()).filter(|tensor| stated[at][*tensor]);
            homes.extend(tensors.map(|tensor| (shard.header.name(tensor), at)));
        }
        homes
    });
    // Tensors where the index does not say that they are, and the first shard that has them.
    let mut strays: HashMap<&str, usize> = HashMap::new();
    for (at, shard) in shards.iter().enumerate() {
        for tensor in (0..shard.header.len()).filter(|tensor| !stated[at][*tensor]) {
            let name = shard.header.name(tensor);
            let kept = at_home.get(name).or_else(|| strays.get(name)).copied();
            let owned = || (name.to_owned(), shard.name.clone());
            match kept {
                Some(kept) => {
                    dropped[at].insert(name.to_owned());
                    let ((tensor, other), shard) = (owned(), shards[kept].name.clone());
                    mismatches.push(Mismatch::Twice { tensor, shard, other });
                }
                None => {
                    strays.insert(name, at);
                    let (tensor, found) = owned();
                    mismatches.push(match absent.remove(name) {
                        Some(shard) => Mismatch::Elsewhere { tensor, shard, found },
                        None => Mismatch::Unnamed { tensor, shard: found },
                    });
                }
            }
        }
    }
    // What a missing shard holds is told by that shard.
    let absent = absent.into_iter().filter(|(_, shard)| homes.contains_key(&shard[..]));
    mismatches.extend(absent.map(|(tensor, shard)| Mismatch::Absent { tensor, shard }));
    // Missing shards first: they explain the most.
    mismatches.sort_by_key(|mismatch| (!matches!(mismatch, Mismatch::Shard { .. }), mismatch.subject().to_owned()));
    for (shard, dropped) in shards.iter_mut().zip(dropped) {
        if !dropped.is_empty() {
            shard.header.retain(|name| !dropped.contains(name));
        }
    }
    Ok(())
}
