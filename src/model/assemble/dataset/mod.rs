//! A dataset of safetensors-spark: reads its manifest, and joins the tensors of its shards to arrays.
//!
//! Source: `github.com/SemyonSinchenko/safetensors-spark`, `format/SPECIFICATION.md`. The manifest does not contain the
//! mode in which the dataset was written. It is inferred from the names of tensors: in batch mode every shard has the
//! same names, in key-value mode no two shards have a name in common.

mod manifest;

use super::set::{self, LIST_MAX, SEVERAL_FILES, SHARDS_MAX, SetMismatches, ShardSet};
use crate::format::{NameTable, ParseMode, TensorInfo};
use crate::model::assembled::TensorAssembly;
use crate::model::error::Error;
use crate::model::ids::{ModelFileId, TensorId};
use crate::model::quiet::QuietValue;
use crate::model::table::{DescribingFile, Model, ModelAccess, ModelForm, NoteKind};
use crate::source::Location;
use crate::text::{brackets, quote};
use crate::units::plural;
use manifest::ListedShard;
use std::collections::{BTreeSet, HashSet};

pub const MANIFEST: &str = "dataset_manifest.json";

/// The shards that the manifest at `location` names; `None` if it cannot be read.
pub(in crate::model) fn dataset_shards(location: &Location) -> Option<BTreeSet<String>> {
    let (text, _) = set::read_list(location, LIST_MAX).ok()?;
    let shards = manifest::read_manifest(&text).ok()?.shards.0;
    (shards.len() <= SHARDS_MAX).then(|| shards.into_iter().map(|shard| shard.0.shard_path).collect())
}

/// The list of tensors beside the manifest: a directory of Parquet files, as Spark writes it, or one such file.
const TENSOR_LIST: &str = "_tensor_index.parquet";

const FORM: ModelForm = ModelForm {
    kind: "dataset",
    edit_refusal: Some(SEVERAL_FILES),
    access: ModelAccess::FilesAndDirectories,
    has_shards: true,
    shows_stored: true,
    holds_weights: false,
    notes: NoteKind::Manifest,
};

/// Opens all shards that the manifest at `location` names, and joins their tensors to arrays.
pub(in crate::model) fn open_dataset(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let (text, source) = set::read_source(location, LIST_MAX)?;
    let (manifest, ShardSet { names, homes, shards, unopened, mut mismatches }) =
        set::open_shards(location, mode, |names| {
            let manifest = manifest::read_manifest(&text)?;
            if manifest.format_version.split('.').next() != Some("1") {
                return Err(format!("format version {}; weightfs supports 1", quote(&manifest.format_version)));
            }
            for (at, QuietValue(shard)) in manifest.shards.0.iter().enumerate() {
                if names.number(&shard.shard_path)? as usize != at {
                    return Err(format!("names shard {} twice", quote(&shard.shard_path)));
                }
            }
            Ok(manifest)
        })?;
    let description = format!("a dataset of {}", plural(shards.len() as u64, "shard"));
    let mut model = Model::new(location, &FORM, shards);
    let tensor_list = model.location.parent().join(TENSOR_LIST);
    let facts = &mut model.facts;
    (facts.description, facts.unopened, facts.tensor_list) = (description, unopened, Some(tensor_list));
    facts.described_by.push(DescribingFile { location: location.clone(), id: source.id(), stat: source.stat() });
    facts.documents.push((MANIFEST, source));
    // Shards are numbered by name, and joined in the order of the manifest.
    let shards: Vec<ListedShard> = names.iter().map(|name| &name[..]).zip(homes).collect();
    let first_joined = join(&mut model, &shards, &mut mismatches).map_err(|fault| Error::of_set(location, fault))?;
    model.facts.remarks = manifest::compare_manifest(&model, first_joined, &manifest, &shards);
    model.facts.mismatches = mismatches.finish();
    if first_joined.is_none() {
        let names: Vec<&str> = model.logical().iter().map(|id| model.name(id)).collect();
        if let Some(separator) = find_separator(&names) {
            model.set_separator(separator);
        }
    }
    Ok(model)
}

/// Infers the mode. In batch mode, joins the arrays. In key-value mode, the first of several tensors with the same name
/// is the logical one. All other tensors are shown only in their shard. Returns the first joined array.
fn join(
    model: &mut Model,
    shards: &[ListedShard],
    mismatches: &mut SetMismatches,
) -> Result<Option<TensorId>, &'static str> {
    let stored = model.stored();
    let mut table = NameTable::with_capacity(stored.len());
    // Pairs of the first tensor with a name and a later tensor with the same name.
    let mut others: Vec<(TensorId, TensorId)> = Vec::new();
    for id in stored.iter() {
        if !table.insert(id.index(), |index| model.name_at(index)) {
            let first = table.find(model.name(id), |index| model.name_at(index));
            others.extend(first.map(|first| (TensorId::new(first), id)));
        }
    }
    let only_in_own_file: Vec<TensorId> = others.iter().map(|other| other.1).collect();
    others.sort_unstable();
    let repeated = others.len() + others.chunk_by(|a, b| a.0 == b.0).count();
    if repeated * 2 < stored.len() || repeated == 0 {
        for (first, second) in others {
            mismatches.remark(model.name(first), || {
                let [first, second] = [first, second].map(|id| quote(&model.file(model.file_with(id)).name));
                format!("it is in {first} and in {second}; the second is in shards/ only")
            });
        }
        model.set_only_in_own_file(only_in_own_file);
        return Ok(None);
    }
    let (mut joined, mut apart, mut rest) = (TensorAssembly::new(model.sources()), Vec::new(), &others[..]);
    for first in stored.iter().filter(|id| only_in_own_file.binary_search(id).is_err()) {
        let (same, after) = rest.split_at(rest.partition_point(|other| other.0 == first));
        rest = after;
        let parts: Vec<TensorId> = std::iter::once(first).chain(same.iter().map(|other| other.1)).collect();
        if let Err(reason) = join_one(model, &parts, shards, &mut joined) {
            mismatches.push(model.name(first), || format!("{reason}; its parts are in shards/"));
            apart.extend(parts);
        }
    }
    let joined = joined.finish().map_err(|_| "the names of its tensors have more than 4 GiB")?;
    let any = !joined.table().is_empty();
    model.set_assembled(joined, apart);
    Ok(any.then(|| TensorId::new(0)))
}

/// Joins `parts`, which have the same name and ascending numbers. The error is the reason why they cannot be joined.
fn join_one(
    model: &Model,
    parts: &[TensorId],
    shards: &[ListedShard],
    joined: &mut TensorAssembly,
) -> Result<(), String> {
    let like = model.tensor(parts[0]).info;
    let Some((_, trailing)) = like.shape.split_first() else { return Err("a scalar cannot be concatenated".into()) };
    let home = quote(&model.file(model.file_with(parts[0])).name);
    // Looking the name up in each shard would be slow: there may be thousands of shards without it, and a million
    // names.
    let homes: Vec<ModelFileId> = parts.iter().map(|part| model.file_with(*part)).collect();
    let (mut rows, mut found) = (0u64, Vec::with_capacity(parts.len()));
    for (name, shard) in shards {
        let part = shard.and_then(|shard| homes.binary_search(&ModelFileId::new(shard)).ok());
        let Some(part) = part else { return Err(format!("{} does not have it", quote(name))) };
        let (file, stored) = model.stored_tensor(parts[part]);
        let TensorInfo { dtype, shape, .. } = stored.info;
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
        found.push((file, stored));
    }
    let shape = [&[rows], trailing].concat();
    let parts: Vec<_> = found.iter().map(|(file, stored)| joined.stored(*file, stored)).collect();
    joined.push(like.name, like.dtype, &shape, parts).map_err(str::to_owned)
}

/// The separators of key and column that are tried, in this order. The first is the default of the writer. The manifest
/// does not contain it.
const SEPARATORS: [&str; 12] = ["__", "::", "--", "//", "/", ":", "|", "#", "@", ".", "-", "_"];

/// The text that separates key and column in the names of all tensors. Each key must have the same columns, and nothing
/// may be empty; otherwise the separator is unknown.
fn find_separator(names: &[&str]) -> Option<&'static str> {
    names.first()?;
    SEPARATORS.into_iter().find(|separator| {
        let (mut keys, mut columns) = (HashSet::new(), HashSet::new());
        let all_split = names.iter().all(|name| match name.rsplit_once(*separator) {
            None | Some(("", _) | (_, "")) => false,
            Some((key, column)) => {
                keys.insert(key);
                columns.insert(column);
                true
            }
        });
        // Names occur once.
        all_split && keys.len().checked_mul(columns.len()) == Some(names.len())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn separators_are_found_if_every_key_has_the_same_columns() {
        for (names, expected) in [
            (&["a__x", "a__y", "b__x", "b__y"][..], Some("__")),
            (&["a::x", "b::x"], Some("::")),
            (&["a_1__x_1", "a_1__y_1"], Some("__")),
            (&["user-1.x", "user-1.y", "user-2.x", "user-2.y"], Some(".")),
            (&["a__b__x", "c__x"], Some("__")),
            (&["one"], None),
            (&[], None),
            (&["__x", "b:x"], None),
            (&["a__x", "a__y", "b__x"], None),
            (&["a__x", "b::x"], None),
        ] {
            assert_eq!(find_separator(names), expected, "{names:?}");
        }
    }
}
