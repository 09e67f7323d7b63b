//! The index of a sharded model: reads its `weight_map`, and compares it with the shards.
//!
//! Source: `huggingface_hub`, `serialization/_torch.py`: `{"metadata": {...}, "weight_map": {TENSOR: FILE}}`.

use super::set::{self, File, ShardSet};
use crate::format::{JsonText, KEPT_MAX, ParseMode};
use crate::model::error::{Error, LIST_MAX, SHARDS_MAX, SetError, SetMismatch};
use crate::model::table::{Model, ModelForm, ModelNotes, NoteKind, Shard, StatedTotals};
use crate::source::Location;
use crate::threads;
use crate::units::plural;
use hashbrown::DefaultHashBuilder;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Unexpected, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::cell::LazyCell;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::hash::BuildHasher;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The part of an index's file name between the stem and `.json`, without a variant, by the format of the shards.
const INDICES: [&str; 2] = [".safetensors.index", ".bin.index"];

/// A tensor and the number of the shard that it should be in.
type Entry<'t> = (Cow<'t, str>, u32);

/// Deserialises an index, or the `weight_map` in it, and numbers the shards in the order of their first use.
struct IndexVisitor<'r> {
    /// Takes the names of a tensor and of its shard, and returns the number of the shard.
    number: &'r mut dyn FnMut(&str, &str) -> Result<u32, SetError>,
    /// Why a shard was refused. An error of the JSON parser cannot contain this value.
    refused: &'r mut Option<SetError>,
    stated: &'r mut StatedTotals,
    in_map: bool,
}

impl<'de> DeserializeSeed<'de> for IndexVisitor<'_> {
    type Value = Vec<Entry<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        // `deserialize_map` is not used: if the file has a string there, its error would quote all of that string.
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for IndexVisitor<'_> {
    type Value = Vec<Entry<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.in_map { "an object of tensor and file names" } else { "an object with a weight_map" })
    }

    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Self::Value, E> {
        Err(E::invalid_type(Unexpected::Other("a string"), &self))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Self { number, refused, stated, in_map } = self;
        if in_map {
            let mut entries = Vec::new();
            while let Some((tensor, shard)) = map.next_entry::<JsonText, JsonText>()? {
                let number = number(&tensor.0, &shard.0).map_err(|error| {
                    *refused = Some(error);
                    A::Error::custom("refused")
                })?;
                entries.push((tensor.0, number));
            }
            return Ok(entries);
        }
        let mut entries = None;
        while let Some(key) = map.next_key::<JsonText>()? {
            if key.0 == "metadata" {
                // Any value is accepted, because only `check` uses it.
                let text = map.next_value::<&RawValue>()?.get();
                *stated = serde_json::from_str(text).unwrap_or_default();
            } else if key.0 != "weight_map" {
                map.next_value::<IgnoredAny>()?;
            } else if entries.is_some() {
                return Err(A::Error::duplicate_field("weight_map"));
            } else {
                entries = Some(map.next_value_seed(IndexVisitor { number, refused, stated, in_map: true })?);
            }
        }
        entries.ok_or_else(|| A::Error::missing_field("weight_map"))
    }
}

/// Reads an index.
fn read_index<'t>(
    text: &'t [u8],
    number: &mut dyn FnMut(&str, &str) -> Result<u32, SetError>,
) -> Result<(Vec<Entry<'t>>, StatedTotals), SetError> {
    let (mut refused, mut stated) = Default::default();
    let reader = IndexVisitor { number, refused: &mut refused, stated: &mut stated, in_map: false };
    let mut json = serde_json::Deserializer::from_slice(text);
    let entries = reader.deserialize(&mut json).and_then(|entries| json.end().map(|()| (entries, stated)));
    entries.map_err(|error| refused.unwrap_or_else(|| SetError::json("index of a sharded model", &error)))
}

/// The shards that the index at `location` names; `None` if it cannot be read.
pub(in crate::model) fn index_shards(location: &Location) -> Option<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let number = &mut |_: &str, name: &str| {
        if !names.contains(name) {
            if names.len() == SHARDS_MAX {
                return Err(SetError::TooManyShards);
            }
            names.insert(name.to_owned());
        }
        Ok(0)
    };
    read_index(&set::read_list(location, LIST_MAX).ok()?.0, number).ok()?;
    Some(names)
}

/// The name of the model, from the file name of its index; `None` for other file names. transformers and diffusers name
/// the index of a variant `model.safetensors.index.fp16.json`.
pub(in crate::model) fn index_stem(name: &OsStr) -> Option<OsString> {
    let name = name.as_bytes().strip_suffix(b".json")?;
    let (stem, variant) = INDICES.iter().find_map(|index| {
        let at = name.windows(index.len()).rposition(|window| window == index.as_bytes())?;
        Some((&name[..at], &name[at + index.len()..]))
    })?;
    let is_variant = variant.is_empty() || (variant.len() > 1 && variant[0] == b'.' && !variant[1..].contains(&b'.'));
    (is_variant && !stem.is_empty()).then(|| OsString::from_vec([stem, variant].concat()))
}

/// An index and the shards that it names.
const FORM: ModelForm = ModelForm {
    kind: "sharded",
    fixed: Some("a model of several files; name one of them"),
    has_shards: true,
    shows_stored: false,
    holds_weights: true,
    notes: NoteKind::Index,
};

/// Opens all shards that the index at `location` names, and compares them with the index.
pub(in crate::model) fn open_index(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let (text, stat) = set::read_list(location, LIST_MAX)?;
    let ((entries, stated), ShardSet { names, homes, files, broken, unopened }) =
        set::open_shards(location, mode, |names| {
            read_index(&text, &mut |tensor, shard| names.number_with(tensor, shard))
        })?;
    let (mut shards, sources): (Vec<Shard>, Vec<_>) = files.into_iter().unzip();
    let missing = broken.len();
    let mut mismatches = broken;
    let named = entries.len();
    let entries = last_of_each(entries);
    let repeated = named - entries.len();
    let more = audit(&entries, &names, &homes, &mut shards, &mut mismatches);
    drop(entries);
    drop(text);
    let mismatches = set::settle(location, mode, mismatches, more)?;
    let mut remarks = Vec::new();
    if repeated > 0 {
        let occur = if repeated == 1 { "entry occurs" } else { "entries occur" };
        remarks.push(format!("{repeated} {occur} again later in the index; the last one is used"));
    }
    let files: Vec<File> = shards.into_iter().zip(sources).collect();
    let description = format!("{} by an index", plural(files.len() as u64, "shard"));
    let stated = StatedTotals { shards: Some(files.len() + missing), ..stated };
    let mut model = Model::new(location, &FORM, files);
    let facts = model.facts_mut();
    facts.notes = ModelNotes { mismatches, remarks, stated, missing };
    (facts.description, facts.unopened) = (description, unopened);
    facts.described_by.push(stat);
    Ok(model)
}

/// Runs `work` on chunks of the entries, on all cores.
fn parts<'t, R: Send>(entries: &[Entry<'t>], work: impl Fn(&[Entry<'t>]) -> R + Sync) -> Vec<R> {
    const PART: usize = 1 << 14;
    let parts: Vec<&[Entry]> = entries.chunks(PART).collect();
    threads::map_parallel(parts.len(), |at| work(parts[at]))
}

/// The last entry of each tensor, which is the one that Python keeps.
fn last_of_each(mut entries: Vec<Entry>) -> Vec<Entry> {
    let hasher = DefaultHashBuilder::default();
    let hash = |part: &[Entry]| part.iter().map(|(tensor, _)| hasher.hash_one(&tensor[..])).collect::<Vec<u64>>();
    let mut hashes = parts(&entries, hash).concat();
    threads::sort_by(&mut hashes, u64::cmp);
    // A table of all names is built only if two names have the same hash.
    if hashes.windows(2).any(|pair| pair[0] == pair[1]) {
        entries.reverse();
        let mut seen = HashSet::new();
        entries.retain(|(tensor, _)| seen.insert(tensor.clone()));
    }
    entries
}

/// Compares the index with the shards, and keeps each tensor in one shard only: the one that the index names, or else
/// the first. Returns how many mismatches there are in addition to those that are listed.
///
/// Nothing is allocated for a tensor that matches.
fn audit<'t>(
    entries: &[Entry<'t>],
    names: &[String],
    homes: &[Option<usize>],
    shards: &mut [Shard],
    mismatches: &mut Vec<SetMismatch>,
) -> usize {
    let names: Vec<Arc<str>> = names.iter().map(|name| Arc::from(&name[..])).collect();
    let files: Vec<Arc<str>> = shards.iter().map(|shard| Arc::from(&shard.name[..])).collect();
    let mut more = 0;
    let mut add = |mismatch| if mismatches.len() < KEPT_MAX { mismatches.push(mismatch) } else { more += 1 };
    let unmarked = |shard: &Shard| (0..shard.header.len()).map(|_| AtomicBool::new(false)).collect();
    let stated: Vec<Vec<AtomicBool>> = shards.iter().map(unmarked).collect();
    let is_absent = |(tensor, shard): &Entry| {
        let Some(home) = homes[*shard as usize] else { return true };
        let found = shards[home].header.find(tensor);
        if let Some(found) = found {
            stated[home][found].store(true, Ordering::Relaxed);
        }
        found.is_none()
    };
    // The tensors that are not in the shard that the index names, and that shard.
    let absent = parts(entries, |part| part.iter().filter(|entry| is_absent(entry)).cloned().collect::<Vec<_>>());
    let mut absent: HashMap<Cow<'t, str>, u32> = absent.into_iter().flatten().collect();
    let stated: Vec<Vec<bool>> =
        stated.into_iter().map(|shard| shard.into_iter().map(AtomicBool::into_inner).collect()).collect();
    let mut dropped: Vec<HashSet<String>> = vec![HashSet::new(); shards.len()];
    // The shards of the tensors that are in the shard that the index names. Built only if it is needed.
    let at_home = LazyCell::new(|| {
        let mut homes: HashMap<&str, usize> = HashMap::new();
        for (at, shard) in shards.iter().enumerate() {
            let tensors = (0..shard.header.len()).filter(|tensor| stated[at][*tensor]);
            homes.extend(tensors.map(|tensor| (shard.header.name(tensor), at)));
        }
        homes
    });
    // Tensors that are not in the shard that the index names, and the first shard that has each.
    let mut strays: HashMap<&str, usize> = HashMap::new();
    for (at, shard) in shards.iter().enumerate() {
        for tensor in (0..shard.header.len()).filter(|tensor| !stated[at][*tensor]) {
            let name = shard.header.name(tensor);
            let kept = at_home.get(name).or_else(|| strays.get(name)).copied();
            let owned = || (name.to_owned(), files[at].clone());
            match kept {
                Some(kept) => {
                    dropped[at].insert(name.to_owned());
                    let ((tensor, other), shard) = (owned(), files[kept].clone());
                    let stated = at_home.contains_key(name);
                    add(SetMismatch::Twice { tensor, shard, other, stated });
                }
                None => {
                    strays.insert(name, at);
                    let (tensor, found) = owned();
                    add(match absent.remove(name) {
                        Some(shard) => SetMismatch::Elsewhere { tensor, shard: names[shard as usize].clone(), found },
                        None => SetMismatch::Unnamed { tensor, shard: found },
                    });
                }
            }
        }
    }
    // For a missing shard one message is enough.
    absent.retain(|_, shard| homes[*shard as usize].is_some());
    for (tensor, shard) in absent {
        add(SetMismatch::Absent { tensor: tensor.into_owned(), shard: names[shard as usize].clone() });
    }
    for (shard, dropped) in shards.iter_mut().zip(dropped) {
        if !dropped.is_empty() {
            shard.header.retain(|name| !dropped.contains(name));
        }
    }
    more
}
