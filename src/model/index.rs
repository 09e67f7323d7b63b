//! The index of a sharded model: knows `weight_map`, and whether the shards hold what it says.
//!
//! Source: `huggingface_hub`, `serialization/_torch.py`: `{"metadata": {...}, "weight_map": {TENSOR: FILE}}`.

use super::{Error as ModelError, Kind, Model, SAFETENSORS, Shard, read_header};
use crate::format::{Mode, Skipped, quote};
use crate::source::{self, MappedFile, Source};
use rayon::prelude::*;
use serde::Deserialize;
use smallvec::SmallVec;
use std::collections::{BTreeMap, BTreeSet, HashMap};
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

#[derive(Deserialize)]
struct Index {
    weight_map: HashMap<String, String>,
}

/// Opens all shards that the index at `path` names, and holds them to it.
pub(super) fn open(path: &Path, mode: Mode) -> Result<Model, ModelError> {
    let index = read(path)?;
    let error = |error| ModelError::Index { path: path.to_owned(), error };
    let names: BTreeSet<&str> = index.weight_map.values().map(String::as_str).collect();
    if names.len() > SHARDS_MAX {
        return Err(error(Error::TooManyShards { found: names.len() }));
    }
    for name in &names {
        let refused = |why| Err(error(Error::Refused { shard: (*name).to_owned(), why }));
        if name.starts_with('/') {
            return refused("is an absolute path");
        } else if name.split('/').any(|part| part == "..") {
            return refused("leads out of the directory");
        } else if !name.ends_with(SAFETENSORS) {
            return refused("is no .safetensors file");
        }
    }
    let names: Vec<&str> = names.into_iter().collect();
    let dir = path.parent().unwrap_or(Path::new(""));
    let opened: Vec<_> = names.par_iter().map(|name| open_shard(&dir.join(name), name, mode)).collect();
    let mut mismatches = Vec::new();
    let mut shards = Vec::new();
    let mut files: HashMap<(u64, u64), &str> = HashMap::new();
    for (name, opened) in names.iter().zip(opened) {
        match opened {
            Ok((shard, file)) => {
                if let Some(other) = files.insert(file, name) {
                    return Err(error(Error::SameFile { a: other.to_owned(), b: (*name).to_owned() }));
                }
                shards.push(shard);
            }
            Err(reason) => {
                mismatches.push(Mismatch::Shard { shard: (*name).to_owned(), reason: reason.to_string() });
            }
        }
    }
    audit(&index, &mut shards, &mut mismatches);
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

fn read(path: &Path) -> Result<Index, ModelError> {
    let error = |error| ModelError::Index { path: path.to_owned(), error };
    let source = MappedFile::open(path)?;
    if source.len() > INDEX_MAX {
        return Err(error(Error::TooLong { len: source.len() }));
    }
    let mut text = vec![0; source.len() as usize];
    source.read_exact_at(&mut text, 0)?;
    serde_json::from_slice(&text).map_err(|reason| error(Error::Json { reason: reason.to_string() }))
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
fn audit(index: &Index, shards: &mut [Shard], mismatches: &mut Vec<Mismatch>) {
    let homes: BTreeMap<&str, usize> = shards.iter().enumerate().map(|(at, shard)| (&shard.name[..], at)).collect();
    let mut dropped: Vec<BTreeSet<String>> = vec![BTreeSet::new(); shards.len()];
    let names: Vec<String> = shards.iter().map(|shard| shard.name.clone()).collect();
    // Every tensor that is there: in which shards.
    let mut places: HashMap<&str, SmallVec<[usize; 1]>> = HashMap::new();
    for (at, shard) in shards.iter().enumerate() {
        for tensor in 0..shard.header.len() {
            places.entry(shard.header.name(tensor)).or_default().push(at);
        }
    }
    for (tensor, stated) in &index.weight_map {
        let (tensor_name, shard) = (tensor.clone(), stated.clone());
        match (places.remove(&tensor[..]), homes.get(&stated[..])) {
            // What a missing shard holds is told by that shard.
            (None, None) => {}
            (None, Some(_)) => mismatches.push(Mismatch::Absent { tensor: tensor_name, shard }),
            (Some(found), home) => {
                let home = home.filter(|home| found.contains(home));
                let kept = home.copied().unwrap_or(found[0]);
                if home.is_none() {
                    let found = names[kept].clone();
                    mismatches.push(Mismatch::Elsewhere { tensor: tensor_name.clone(), shard: shard.clone(), found });
                }
                for other in found.into_iter().filter(|other| *other != kept) {
                    dropped[other].insert(tensor_name.clone());
                    let (tensor, shard, other) = (tensor_name.clone(), names[kept].clone(), names[other].clone());
                    mismatches.push(Mismatch::Twice { tensor, shard, other });
                }
            }
        }
    }
    for (tensor, found) in places {
        let shard = names[found[0]].clone();
        mismatches.push(Mismatch::Unnamed { tensor: tensor.to_owned(), shard });
        for other in &found[1..] {
            dropped[*other].insert(tensor.to_owned());
        }
    }
    mismatches.sort_by(|a, b| (a.subject(), a.to_string()).cmp(&(b.subject(), b.to_string())));
    for (shard, dropped) in shards.iter_mut().zip(dropped) {
        if !dropped.is_empty() {
            shard.header.retain(|name| !dropped.contains(name));
        }
    }
}
