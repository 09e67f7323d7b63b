//! A dataset of safetensors-spark: knows its manifest, and which tensors of its shards are parts of one array.
//!
//! Source: `github.com/SemyonSinchenko/safetensors-spark`, `format/SPECIFICATION.md`. The manifest does not say in which mode
//! the dataset was written, but the names do: in batch mode every shard has the same ones, in key-value mode none has
//! another's.

use super::set::{self, Error, Set};
use super::{Error as ModelError, Joined, Kind, Mismatch, Model, Place};
use crate::format::{Mode, NameTable, Skipped, TensorInfo, quote};
use crate::source::{MappedFile, Run};
use serde::Deserialize;
use std::path::Path;

/// File name of a manifest.
pub const MANIFEST: &str = "dataset_manifest.json";

/// What is used of a manifest.
#[derive(Deserialize)]
struct Manifest {
    format_version: String,
    shards: Vec<Listed>,
}

/// A shard as the manifest has it.
#[derive(Deserialize)]
struct Listed {
    /// Relative to the manifest.
    shard_path: String,
    /// Rows, padding included.
    samples_count: u64,
    /// Size of the whole file.
    bytes: u64,
}

/// Opens all shards that the manifest at `path` names, and joins what belongs together.
pub(super) fn open(path: &Path, mode: Mode) -> Result<Model, ModelError> {
    let text = set::read_list(path)?;
    let (listed, Set { names, homes, files, broken }) = set::open(path, mode, |names| {
        let json = |error: serde_json::Error| Error::Json { what: "manifest of a dataset", reason: error.to_string() };
        let manifest: Manifest = serde_json::from_slice(&text).map_err(json)?;
        if manifest.format_version.split('.').next() != Some("1") {
            return Err(Error::Version { found: manifest.format_version });
        }
        for (at, shard) in manifest.shards.iter().enumerate() {
            if names.number(&shard.shard_path)? as usize != at {
                return Err(Error::Repeated { shard: shard.shard_path.clone() });
            }
        }
        Ok(manifest.shards)
    })?;
    drop(text);
    let skipped = broken.iter().map(Mismatch::skipped).collect();
    let mut model = Model::new(path, Kind::Dataset, files, skipped);
    model.manifest = Some(Box::new(MappedFile::open(path)?));
    // Shards are numbered by name, and joined in the order of the manifest.
    let shards: Vec<Part> = names.iter().map(|name| &name[..]).zip(homes).collect();
    join(&mut model, &shards);
    compare(&mut model, &listed, &shards);
    Ok(model)
}

/// A shard in the order of the manifest: its name, and its number if it is there.
type Part<'n> = (&'n str, Option<usize>);

/// Finds out the mode, and joins the arrays of batch mode; of a name that two shards have in key-value mode the first
/// stands for the whole. What is left is in the shards.
fn join(model: &mut Model, shards: &[Part]) {
    let mut table = NameTable::with_capacity(model.len());
    // How many other tensors have the name of each.
    let mut others = vec![0u32; model.len()];
    let mut aside = Vec::new();
    for at in 0..model.len() as u32 {
        let name = |at: u32| model.name(at as usize);
        if !table.insert(at, name) {
            aside.push(at);
            if let Some(first) = table.find(name(at), name) {
                others[first as usize] += 1;
            }
        }
    }
    let repeated: usize = others.iter().filter(|others| **others > 0).map(|others| *others as usize + 1).sum();
    if repeated * 2 < model.len() || repeated == 0 {
        let report = |at: &u32| {
            let name = model.name(*at as usize);
            let shard = |at: usize| quote(&model.shards[model.locate(at).0].name);
            let first = table.find(name, |at| model.name(at as usize)).unwrap_or(*at);
            let (first, second) = (shard(first as usize), shard(*at as usize));
            let reason = format!("it is in {first} and in {second}; the second is in shards/ only");
            Skipped { name: name.to_owned(), reason }
        };
        let reports: Vec<Skipped> = aside.iter().map(report).collect();
        model.mismatches.extend(reports);
        model.aside = aside;
        return;
    }
    let is_first = |at: &u32| aside.binary_search(at).is_err();
    let (mut joined, mut apart) = (Vec::new(), Vec::new());
    for first in (0..model.len() as u32).filter(is_first) {
        match join_one(model, first, shards) {
            Ok(array) => joined.push(array),
            Err(reason) => {
                let name = model.name(first as usize).to_owned();
                let parts = (0..model.shards.len()).filter_map(|shard| model.find_in(shard, &name));
                apart.extend(parts.map(|at| at as u32));
                let reason = format!("{reason}; its parts are in shards/");
                model.mismatches.push(Skipped { name, reason });
            }
        }
    }
    model.number_joined(joined, apart);
}

/// The array of which the tensor numbered `first` is a part, or why there is none.
fn join_one(model: &Model, first: u32, shards: &[Part]) -> Result<Joined, String> {
    let (like, place) = model.tensor(first as usize);
    let Some((_, trailing)) = like.shape.split_first() else { return Err("a scalar cannot be concatenated".into()) };
    let Place::Shard(home) = place else { return Err("joined already".into()) };
    let home = quote(&model.shards[home].name);
    let (mut rows, mut nbytes, mut runs) = (0u64, 0u64, Vec::with_capacity(shards.len()));
    for (name, shard) in shards {
        let part = shard.and_then(|shard| Some((shard, model.find_in(shard, like.name)?)));
        let Some((shard, part)) = part else { return Err(format!("{} does not have it", quote(name))) };
        let (TensorInfo { dtype, shape, range, .. }, _) = model.tensor(part);
        if dtype != like.dtype {
            return Err(format!("it is {} in {home}, and {dtype} in {}", like.dtype, quote(name)));
        }
        let Some((count, _)) = shape.split_first().filter(|(_, rest)| *rest == trailing) else {
            return Err(format!("its shape is {:?} in {home}, and {shape:?} in {}", like.shape, quote(name)));
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
fn compare(model: &mut Model, listed: &[Listed], shards: &[Part]) {
    for (listed, (name, shard)) in listed.iter().zip(shards) {
        let Some(shard) = *shard else { continue };
        let len = model.sources[shard].len();
        if len != listed.bytes {
            model.remarks.push(format!("{} has {len} bytes, and the manifest says {}", quote(name), listed.bytes));
        }
        let rows = model.joined.first().and_then(|joined| {
            let part = model.find_in(shard, model.name(joined.like as usize))?;
            model.tensor(part).0.shape.first().copied()
        });
        if let Some(rows) = rows.filter(|rows| *rows != listed.samples_count) {
            let said = listed.samples_count;
            model.remarks.push(format!("{} has {rows} rows, and the manifest says {said}", quote(name)));
        }
    }
}
