//! A dataset of safetensors-spark: knows its manifest, and which tensors of its shards are parts of one array.
//!
//! Source: `github.com/SemyonSinchenko/safetensors-spark`, `format/SPECIFICATION.md`. The manifest does not say in which mode
//! the dataset was written, but the names do: in batch mode every shard has the same ones, in key-value mode none has
//! another's.

use super::set::{self, Error, Set};
use super::{Error as ModelError, Joined, Kind, Model, Place};
use crate::format::{Mode, NameTable, SkipList, Skipped, TensorInfo};
use crate::source::{MappedFile, Run};
use crate::text::{brackets, quote};
use serde::Deserialize;
use serde::de::value::{MapAccessDeserializer, SeqAccessDeserializer};
use serde::de::{Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;
use std::path::Path;

/// File name of a manifest.
pub const MANIFEST: &str = "dataset_manifest.json";

/// What is used of a manifest.
#[derive(Deserialize)]
struct Manifest {
    format_version: String,
    total_samples: Option<Quiet<u64>>,
    total_bytes: Option<Quiet<u64>>,
    shards: Quiet<Vec<Quiet<Listed>>>,
}

/// A shard as the manifest has it.
#[derive(Deserialize)]
struct Listed {
    /// Relative to the manifest.
    shard_path: String,
    /// Rows, padding included.
    samples_count: Quiet<u64>,
    /// Size of the whole file.
    bytes: Quiet<u64>,
}

/// A value that is no text. The error does not repeat a text that stands in its place, which may be as long as the file.
struct Quiet<T>(T);

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Quiet<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(QuietVisitor(PhantomData)).map(Self)
    }
}

struct QuietVisitor<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> Visitor<'de> for QuietVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a whole number, a list or an object")
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<T, E> {
        Err(E::custom("a text stands where there should be none"))
    }

    fn visit_u64<E: serde::de::Error>(self, value: u64) -> Result<T, E> {
        T::deserialize(value.into_deserializer())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, seq: A) -> Result<T, A::Error> {
        T::deserialize(SeqAccessDeserializer::new(seq))
    }

    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        T::deserialize(MapAccessDeserializer::new(map))
    }
}

/// Opens all shards that the manifest at `path` names, and joins what belongs together.
pub(super) fn open(path: &Path, mode: Mode) -> Result<Model, ModelError> {
    let text = set::read_list(path)?;
    let (manifest, Set { names, homes, files, broken }) = set::open(path, mode, |names| {
        let manifest: Quiet<Manifest> =
            serde_json::from_slice(&text).map_err(|error| Error::json("manifest of a dataset", &error))?;
        let manifest = manifest.0;
        if manifest.format_version.split('.').next() != Some("1") {
            return Err(Error::Version { found: manifest.format_version });
        }
        for (at, Quiet(shard)) in manifest.shards.0.iter().enumerate() {
            if names.number(&shard.shard_path)? as usize != at {
                return Err(Error::Repeated { shard: shard.shard_path.clone() });
            }
        }
        Ok(manifest)
    })?;
    drop(text);
    let mut skipped = SkipList::default();
    broken.iter().for_each(|broken| skipped.push(|| broken.skipped()));
    let mut model = Model::new(path, Kind::Dataset, files, SkipList::default());
    model.manifest = Some(Box::new(MappedFile::open(path)?));
    // Shards are numbered by name, and joined in the order of the manifest.
    let shards: Vec<Part> = names.iter().map(|name| &name[..]).zip(homes).collect();
    join(&mut model, &shards, &mut skipped);
    model.mismatches = skipped.finish();
    compare(&mut model, &manifest, &shards);
    Ok(model)
}

/// A shard in the order of the manifest: its name, and its number if it is there.
type Part<'n> = (&'n str, Option<usize>);

/// Finds out the mode, and joins the arrays of batch mode; of a name that two shards have in key-value mode the first
/// stands for the whole. What is left is in the shards.
fn join(model: &mut Model, shards: &[Part], skipped: &mut SkipList) {
    let mut table = NameTable::with_capacity(model.len());
    // Tensors whose name one before them has, each behind the first of its name.
    let mut others: Vec<(u32, u32)> = Vec::new();
    for at in 0..model.len() as u32 {
        let name = |at: u32| model.name(at as usize);
        if !table.insert(at, name) {
            others.extend(table.find(name(at), name).map(|first| (first, at)));
        }
    }
    let aside: Vec<u32> = others.iter().map(|other| other.1).collect();
    others.sort_unstable();
    let repeated = others.len() + others.chunk_by(|a, b| a.0 == b.0).count();
    if repeated * 2 < model.len() || repeated == 0 {
        let shard = |at: u32| quote(&model.shards[model.locate(at as usize).0].name);
        for (first, second) in others {
            let reason =
                || format!("it is in {} and in {}; the second is in shards/ only", shard(first), shard(second));
            skipped.push(|| Skipped { name: model.name(first as usize).to_owned(), reason: reason() });
        }
        model.aside = aside;
    } else {
        let (mut joined, mut apart, mut rest) = (Vec::new(), Vec::new(), &others[..]);
        for first in (0..model.len() as u32).filter(|at| aside.binary_search(at).is_err()) {
            let (same, after) = rest.split_at(rest.partition_point(|other| other.0 == first));
            rest = after;
            let parts = || std::iter::once(first).chain(same.iter().map(|other| other.1));
            match join_one(model, first, parts(), shards) {
                Ok(array) => joined.push(array),
                Err(reason) => {
                    apart.extend(parts());
                    let reason = format!("{reason}; its parts are in shards/");
                    skipped.push(|| Skipped { name: model.name(first as usize).to_owned(), reason });
                }
            }
        }
        model.number_joined(joined, apart);
    }
}

/// The array of all `parts`, which have the name of the tensor numbered `first` and rising numbers; or why there is none.
fn join_one(model: &Model, first: u32, parts: impl Iterator<Item = u32>, shards: &[Part]) -> Result<Joined, String> {
    let (like, place) = model.tensor(first as usize);
    let Some((_, trailing)) = like.shape.split_first() else { return Err("a scalar cannot be concatenated".into()) };
    let Place::Shard(home) = place else { return Err("joined already".into()) };
    let home = quote(&model.shards[home].name);
    // Not looked up in each shard: there may be thousands that have nothing, and a million names.
    let parts: Vec<(usize, u32)> = parts.map(|at| (model.locate(at as usize).0, at)).collect();
    let part_in = |shard: usize| parts.binary_search_by_key(&shard, |part| part.0).ok().map(|at| parts[at].1);
    let (mut rows, mut nbytes, mut runs) = (0u64, 0u64, Vec::with_capacity(parts.len()));
    for (name, shard) in shards {
        let part = shard.and_then(|shard| Some((shard, part_in(shard)?)));
        let Some((shard, part)) = part else { return Err(format!("{} does not have it", quote(name))) };
        let (TensorInfo { dtype, shape, range, .. }, _) = model.tensor(part as usize);
        if dtype != like.dtype {
            let (like, dtype) = (like.dtype.quoted(), dtype.quoted());
            return Err(format!("it is {like} in {home}, and {dtype} in {}", quote(name)));
        }
        let Some((count, _)) = shape.split_first().filter(|(_, rest)| *rest == trailing) else {
            let (like, shape) = (brackets(like.shape), brackets(shape));
            return Err(format!("its shape is {like} in {home}, and {shape} in {}", quote(name)));
        };
        let len = range.end - range.start;
        if len > 0 {
            runs.push(Run { start: nbytes, source: shard as u32, offset: range.start });
        }
        let too_long = || format!("it would be too long with its part in {}", quote(name));
        rows = rows.checked_add(*count).ok_or_else(too_long)?;
        nbytes = nbytes.checked_add(len).filter(|sum| *sum <= i64::MAX as u64).ok_or_else(too_long)?;
    }
    Ok(Joined { like: first, shape: [&[rows], trailing].concat(), runs, nbytes })
}

/// Holds the files against what the manifest says of them. Nothing is left out for it: the headers say what is there.
fn compare(model: &mut Model, manifest: &Manifest, shards: &[Part]) {
    for (Quiet(listed), (name, shard)) in manifest.shards.0.iter().zip(shards) {
        let Some(shard) = *shard else { continue };
        let len = model.sources[shard].len();
        let Listed { bytes: Quiet(bytes), samples_count: Quiet(samples), .. } = listed;
        if len != *bytes {
            model.remarks.push(format!("{} has {len} bytes, and the manifest says {bytes}", quote(name)));
        }
        let rows = model.joined.first().and_then(|joined| {
            let part = model.find_in(shard, model.name(joined.like as usize))?;
            model.tensor(part).0.shape.first().copied()
        });
        if let Some(rows) = rows.filter(|rows| rows != samples) {
            let plural = if rows == 1 { "" } else { "s" };
            model.remarks.push(format!("{} has {rows} row{plural}, and the manifest says {samples}", quote(name)));
        }
    }
    let Manifest { total_samples, total_bytes, shards, .. } = manifest;
    let sum = |part: fn(&Listed) -> u64| shards.0.iter().map(|Quiet(listed)| part(listed)).fold(0, u64::saturating_add);
    for (key, stated, sum) in [
        ("total_samples", total_samples, sum(|shard| shard.samples_count.0)),
        ("total_bytes", total_bytes, sum(|shard| shard.bytes.0)),
    ] {
        if let Some(Quiet(stated)) = stated.as_ref().filter(|stated| stated.0 != sum) {
            model.remarks.push(format!("{key} is {stated} in the manifest, and its shards add up to {sum}"));
        }
    }
}
