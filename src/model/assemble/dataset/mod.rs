//! A dataset of safetensors-spark: reads its manifest, and joins the tensors of its shards to arrays.
//!
//! Source: `github.com/SemyonSinchenko/safetensors-spark`, `format/SPECIFICATION.md`. The manifest does not contain the
//! mode in which the dataset was written. It is inferred from the names of tensors: in batch mode every shard has the
//! same names, in key-value mode no two shards have a name in common.

mod manifest;
mod samples;

use super::set::{self, ShardSet};
use crate::format::{NameTable, ParseMode, SkipList, SkippedEntry, TensorInfo};
use crate::model::assembled::{AssemblyTooLarge, TensorAssembly};
use crate::model::error::{Error, LIST_MAX, SHARDS_MAX, SetError};
use crate::model::ids::{ShardId, TensorId};
use crate::model::quiet::QuietValue;
use crate::model::table::{Model, ModelForm, NoteKind};
use crate::source::{self, Location};
use crate::text::{brackets, quote};
use crate::units::plural;
use manifest::ListedShard;
use std::collections::BTreeSet;

/// File name of a manifest.
pub const MANIFEST: &str = "dataset_manifest.json";

/// The shards that the manifest at `location` names; `None` if it cannot be read.
pub(in crate::model) fn dataset_shards(location: &Location) -> Option<BTreeSet<String>> {
    let (text, _) = set::read_list(location, LIST_MAX).ok()?;
    let shards = manifest::read_manifest(&text).ok()?.shards.0;
    (shards.len() <= SHARDS_MAX).then(|| shards.into_iter().map(|shard| shard.0.shard_path).collect())
}

/// The list of tensors beside the manifest: a directory of Parquet files, as Spark writes it, or one such file.
const TENSOR_LIST: &str = "_tensor_index.parquet";

/// A manifest of safetensors-spark and the shards that it names.
const FORM: ModelForm = ModelForm {
    kind: "dataset",
    fixed: Some("a model of several files; name one of them"),
    has_shards: true,
    shows_stored: true,
    holds_weights: false,
    notes: NoteKind::Manifest,
};

/// Opens all shards that the manifest at `location` names, and joins their tensors to arrays.
pub(in crate::model) fn open_dataset(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let (text, stat) = set::read_list(location, LIST_MAX)?;
    let (manifest, ShardSet { names, homes, files, broken, unopened }) = set::open_shards(location, mode, |names| {
        let manifest = manifest::read_manifest(&text)?;
        if manifest.format_version.split('.').next() != Some("1") {
            return Err(SetError::Version { found: manifest.format_version });
        }
        for (at, QuietValue(shard)) in manifest.shards.0.iter().enumerate() {
            if names.number(&shard.shard_path)? as usize != at {
                return Err(SetError::Repeated { shard: shard.shard_path.clone() });
            }
        }
        Ok(manifest)
    })?;
    let mut skipped = SkipList::default();
    broken.iter().for_each(|broken| skipped.push(|| broken.skipped()));
    let mut model = Model::new(location, &FORM, files);
    let description = format!("a dataset of {}", plural(model.shards().len() as u64, "shard"));
    let facts = model.facts_mut();
    (facts.description, facts.unopened) = (description, unopened);
    facts.described_by.push(stat);
    facts.documents.push((MANIFEST, source::open_local(location)?));
    facts.tensor_list = Some(facts.location.parent().join(TENSOR_LIST));
    // Shards are numbered by name, and joined in the order of the manifest.
    let shards: Vec<ListedShard> = names.iter().map(|name| &name[..]).zip(homes).collect();
    let error = |error| Error::Set { location: location.clone(), error };
    let first_joined = join(&mut model, &shards, &mut skipped).map_err(error)?;
    let remarks = manifest::compare_manifest(&model, first_joined, &manifest, &shards);
    if first_joined.is_none() {
        let names: Vec<&str> = model.logical().iter().map(|id| model.name(id)).collect();
        if let Some(separator) = samples::separator(&names) {
            model.set_separator(separator);
        }
    }
    let notes = &mut model.facts_mut().notes;
    (notes.mismatches, notes.remarks) = (skipped.finish(), remarks);
    Ok(model)
}

/// Infers the mode. In batch mode, joins the arrays. In key-value mode, the first of several tensors with the same name
/// is the logical one. All other tensors are shown only in their shard. Returns the first joined array.
fn join(model: &mut Model, shards: &[ListedShard], skipped: &mut SkipList) -> Result<Option<TensorId>, SetError> {
    let stored = model.stored();
    let mut table = NameTable::with_capacity(stored.len());
    // Pairs of the first tensor with a name and a later tensor with the same name.
    let mut others: Vec<(TensorId, TensorId)> = Vec::new();
    for id in stored.iter() {
        let name = |index| model.name(TensorId::new(index));
        if !table.insert(id.index(), name) {
            others.extend(table.find(model.name(id), name).map(|first| (TensorId::new(first), id)));
        }
    }
    let aside: Vec<TensorId> = others.iter().map(|other| other.1).collect();
    others.sort_unstable();
    let repeated = others.len() + others.chunk_by(|a, b| a.0 == b.0).count();
    if repeated * 2 < stored.len() || repeated == 0 {
        let shard = |id| quote(&model.shard(model.shard_of(id)).name);
        for (first, second) in others {
            let reason =
                || format!("it is in {} and in {}; the second is in shards/ only", shard(first), shard(second));
            skipped.push(|| SkippedEntry::new(model.name(first), reason()));
        }
        model.set_aside(aside);
        return Ok(None);
    }
    let (mut joined, mut apart, mut rest) = (TensorAssembly::new(), Vec::new(), &others[..]);
    for first in stored.iter().filter(|id| aside.binary_search(id).is_err()) {
        let (same, after) = rest.split_at(rest.partition_point(|other| other.0 == first));
        rest = after;
        let parts = || std::iter::once(first).chain(same.iter().map(|other| other.1));
        if let Err(reason) = join_one(model, first, parts(), shards, &mut joined) {
            apart.extend(parts());
            let reason = format!("{reason}; its parts are in shards/");
            skipped.push(|| SkippedEntry::new(model.name(first), reason));
        }
    }
    let joined = joined.finish().map_err(|_| SetError::TooManyNames)?;
    let any = !joined.table().is_empty();
    model.set_assembled(joined, apart);
    Ok(any.then(|| TensorId::new(0)))
}

/// Joins `parts`, which have the name of the tensor `first` and ascending numbers. The error is the reason why they
/// cannot be joined.
fn join_one(
    model: &Model,
    first: TensorId,
    parts: impl Iterator<Item = TensorId>,
    shards: &[ListedShard],
    joined: &mut TensorAssembly,
) -> Result<(), String> {
    let like = model.tensor(first).info;
    let Some((_, trailing)) = like.shape.split_first() else { return Err("a scalar cannot be concatenated".into()) };
    let home = quote(&model.shard(model.shard_of(first)).name);
    // Looking the name up in each shard would be slow: there may be thousands of shards without it, and a million
    // names.
    let parts: Vec<(ShardId, TensorId)> = parts.map(|id| (model.shard_of(id), id)).collect();
    let part_in = |shard: ShardId| parts.binary_search_by_key(&shard, |part| part.0).ok().map(|at| parts[at].1);
    let (mut rows, mut ranges) = (0u64, Vec::with_capacity(parts.len()));
    for (name, shard) in shards {
        let part = shard.and_then(|shard| Some((shard, part_in(ShardId::new(shard))?)));
        let Some((shard, part)) = part else { return Err(format!("{} does not have it", quote(name))) };
        let TensorInfo { dtype, shape, range, layout, .. } = model.tensor(part).info;
        // A shard may be of another format than its name says.
        if layout.is_some() {
            return Err(format!("its elements in {} are not in C order and little-endian", quote(name)));
        }
        if dtype != like.dtype {
            let (like, dtype) = (like.dtype.quoted(), dtype.quoted());
            return Err(format!("it is {like} in {home}, and {dtype} in {}", quote(name)));
        }
        let Some((count, _)) = shape.split_first().filter(|(_, rest)| *rest == trailing) else {
            let (like, shape) = (brackets(like.shape), brackets(shape));
            return Err(format!("its shape is {like} in {home}, and {shape} in {}", quote(name)));
        };
        rows =
            rows.checked_add(*count).ok_or_else(|| format!("it would be too long with its part in {}", quote(name)))?;
        ranges.push((shard, range));
    }
    let shape = [&[rows], trailing].concat();
    joined.push(like.name, like.dtype, &shape, ranges).map_err(|AssemblyTooLarge| "it would be too long".to_owned())
}
