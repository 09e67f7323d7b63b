//! The index of a sharded model: reads its `weight_map`, and compares it with the shards.
//!
//! Source: `huggingface_hub`, `serialization/_torch.py`: `{"metadata": {...}, "weight_map": {TENSOR: FILE}}`.

use super::set::{self, LIST_MAX, SEVERAL_FILES, SHARDS_MAX, ShardSet};
use super::split::last_number;
use crate::format::{JsonText, ParseMode, format_stem, strip_suffix};
use crate::model::error::{Error, json_fault};
use crate::model::table::{DescribingFile, INDEX, Model, ModelAccess, ModelForm, NoteKind, StatedTotals};
use crate::source::{self, Location};
use crate::text::quote;
use crate::threads;
use crate::units::plural;
use hashbrown::DefaultHashBuilder;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, Unexpected, Visitor};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::hash::BuildHasher;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::atomic::{AtomicBool, Ordering};

/// The parts of an index's file name that tell the format of the shards.
const FORMATS: [&str; 2] = ["safetensors", "bin"];

/// How much of a JSON file is searched for a `weight_map`, in bytes. Little metadata precedes it.
const SEARCHED: u64 = 64 << 10;

/// A tensor and the number of the shard that it should be in.
type Entry<'t> = (Cow<'t, str>, u32);

/// Deserialises an index, or the `weight_map` in it, and numbers the shards in the order of their first use.
struct IndexVisitor<'r> {
    /// Takes the names of a tensor and of its shard, and returns the number of the shard.
    number: &'r mut dyn FnMut(&str, &str) -> Result<u32, String>,
    /// Why a shard was refused. The JSON parser would add a position to it.
    refused: &'r mut Option<String>,
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
                let number = number(&tensor.0, &set::plain_path(&shard.0)).map_err(|error| {
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
                stated.is_object = text.starts_with('{');
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

fn read_index<'t>(
    text: &'t [u8],
    number: &mut dyn FnMut(&str, &str) -> Result<u32, String>,
) -> Result<(Vec<Entry<'t>>, StatedTotals), String> {
    let (mut refused, mut stated) = Default::default();
    let reader = IndexVisitor { number, refused: &mut refused, stated: &mut stated, in_map: false };
    let mut json = serde_json::Deserializer::from_slice(text);
    let entries = reader.deserialize(&mut json).and_then(|entries| json.end().map(|()| (entries, stated)));
    entries.map_err(|error| refused.unwrap_or_else(|| json_fault("index of a sharded model", &error)))
}

/// The shards that the index at `location` names; `None` if it cannot be read.
pub(in crate::model) fn index_shards(location: &Location) -> Option<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    let (text, _) = set::read_list(location, LIST_MAX).ok()?;
    let read = read_index(&text, &mut |_, name| {
        if !names.contains(name) {
            names.insert(name.to_owned());
        }
        if names.len() > SHARDS_MAX { Err(set::too_many_shards()) } else { Ok(0) }
    });
    read.ok().map(|_| names)
}

/// The name of the model, from the file name of its index; `None` for other file names. transformers names the index of
/// a variant `model.safetensors.index.fp16.json`, and diffusers `model.safetensors.fp16.index.json`.
pub fn index_stem(name: &OsStr) -> Option<OsString> {
    let parts: Vec<&[u8]> = name.as_bytes().split(|byte| *byte == b'.').collect();
    let is = |part: &[u8], word: &str| part.eq_ignore_ascii_case(word.as_bytes());
    let at = parts.iter().rposition(|part| FORMATS.iter().any(|format| is(part, format)))?;
    let variant = match parts[at + 1..] {
        [index, json] if is(index, "index") && is(json, "json") => None,
        [index, variant, json] if is(index, "index") && is(json, "json") => Some(variant),
        [variant, index, json] if is(index, "index") && is(json, "json") => Some(variant),
        _ => return None,
    };
    let stem = parts[..at].join(&b'.');
    let is_named = !stem.is_empty() && variant.is_none_or(|variant| !variant.is_empty());
    let variant = variant.map_or(Vec::new(), |variant| [b".", variant].concat());
    is_named.then(|| OsString::from_vec([stem, variant].concat()))
}

/// The name of the model, from the name of an index or of another JSON file; `None` for other file names.
pub(super) fn stem(name: &OsStr) -> Option<OsString> {
    index_stem(name).or_else(|| json_stem(name).filter(|stem| !stem.is_empty()))
}

/// The name of the model, from the name of a JSON file that has a `weight_map`; `None` for other file names.
pub(in crate::model) fn json_stem(name: &OsStr) -> Option<OsString> {
    let stem = strip_suffix(name, ".json")?;
    Some(strip_suffix(stem, ".index").unwrap_or(stem).to_owned())
}

/// Whether a file is an index: by its name, or because it is a JSON file with a `weight_map`.
pub(in crate::model) fn is_index(location: &Location) -> bool {
    let name = location.file_name();
    index_stem(name).is_some() || strip_suffix(name, ".json").is_some() && has_weight_map(location)
}

/// Whether a JSON file has a `weight_map` that names files which weightfs reads: those of TensorFlow and Flax have one,
/// too. Only its first bytes are searched.
pub(in crate::model) fn has_weight_map(location: &Location) -> bool {
    const KEY: &[u8] = b"\"weight_map\"";
    const ENDS: [&[u8]; 3] = [b".safetensors\"", b".sft\"", b".bin\""];
    let Ok(source) = source::open_local(location) else { return false };
    let mut text = vec![0; source.len().min(SEARCHED) as usize];
    if source.read_exact_at(&mut text, 0).is_err() || !set::without_mark(&text).trim_ascii_start().starts_with(b"{") {
        return false;
    }
    let Some(at) = text.windows(KEY.len()).position(|window| window == KEY) else { return false };
    ENDS.iter().any(|end| text[at..].windows(end.len()).any(|window| window.eq_ignore_ascii_case(end)))
}

/// Whether an index cannot be read now, whatever is in it. It may be readable later.
pub(in crate::model) fn is_unreadable(location: &Location) -> bool {
    matches!(set::read_list(location, LIST_MAX), Err(Error::Source(_)))
}

/// Whether a file has the name that libraries give to a shard of the model with this index, such as
/// `model-00001-of-00002.safetensors`.
pub(in crate::model) fn is_usual_shard(index: &OsStr, file: &OsStr) -> bool {
    let numbered = format_stem(file).and_then(|stem| {
        let (rest, _) = last_number(stem.as_bytes())?;
        let (prefix, _) = last_number(rest.strip_suffix(b"-of")?)?;
        Some(OsStr::from_bytes(prefix).to_owned())
    });
    numbered.is_some() && numbered == index_stem(index)
}

const FORM: ModelForm = ModelForm {
    kind: "sharded",
    edit_refusal: Some(SEVERAL_FILES),
    access: ModelAccess::FilesAndDirectories,
    has_shards: true,
    shows_stored: false,
    holds_weights: true,
    notes: NoteKind::Index,
};

/// Opens all shards that the index at `location` names, and compares them with the index.
pub(in crate::model) fn open_index(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let (text, source) = set::read_source(location, LIST_MAX)?;
    let ((entries, stated), mut set) = set::open_shards(location, mode, |names| {
        read_index(&text, &mut |tensor, shard| names.number_with(tensor, shard))
    })?;
    let named = entries.len();
    let entries = last_of_each(entries);
    let repeated = named - entries.len();
    audit(&entries, &mut set);
    drop(entries);
    // Python reads no byte order mark.
    let is_readable = stated.is_object && source.len() == text.len() as u64;
    drop(text);
    let mismatches = set.mismatches.settle(location, mode)?;
    let description = format!("{} by an index", plural(set.shards.len() as u64, "shard"));
    let mut model = Model::new(location, &FORM, set.shards);
    let facts = &mut model.facts;
    (facts.description, facts.unopened, facts.mismatches) = (description, set.unopened, mismatches);
    facts.stated = StatedTotals { shards: Some(set.names.len()), ..stated };
    facts.described_by.push(DescribingFile { location: location.clone(), id: source.id(), stat: source.stat() });
    if is_readable {
        facts.documents.push((INDEX, source));
    }
    if repeated > 0 {
        let occur = if repeated == 1 { "entry occurs" } else { "entries occur" };
        facts.remarks.push(format!("{repeated} {occur} again later in the index; the last one is used"));
    }
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
    let hashes =
        parts(&entries, |part| part.iter().map(|(tensor, _)| hasher.hash_one(&tensor[..])).collect::<Vec<_>>());
    let mut hashes = hashes.concat();
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
/// the first.
///
/// Nothing is allocated for a tensor that matches.
fn audit<'t>(entries: &[Entry<'t>], set: &mut ShardSet) {
    let ShardSet { names, homes, shards, mismatches, .. } = set;
    // Whether each tensor of each shard is in the shard that the index names.
    let stated = shards.iter().map(|shard| (0..shard.header.len()).map(|_| AtomicBool::new(false)).collect());
    let stated: Vec<Vec<AtomicBool>> = stated.collect();
    // The other tensors that the index names, and their shards.
    let absent = parts(entries, |part| {
        let absent = part.iter().filter(|(tensor, shard)| {
            let home = homes[*shard as usize];
            let found = home.and_then(|home| Some(&stated[home][shards[home].header.find(tensor)?]));
            found.map(|found| found.store(true, Ordering::Relaxed)).is_none()
        });
        absent.cloned().collect::<Vec<_>>()
    });
    let mut absent: HashMap<Cow<'t, str>, u32> = absent.into_iter().flatten().collect();
    let is_stated = &|shard: usize, tensor: usize| stated[shard][tensor].load(Ordering::Relaxed);
    set::keep_one_each(shards, mismatches, is_stated, &mut |tensor, found, mismatches| {
        let shard = absent.remove(tensor);
        mismatches.remark(tensor, || match shard.map(|shard| quote(&names[shard as usize])) {
            Some(shard) => format!("tensor {} should be in {shard}, but is in {}", quote(tensor), quote(found)),
            None => format!("tensor {} is in {}, but the index does not name it", quote(tensor), quote(found)),
        });
    });
    // For a missing shard one message is enough.
    for (tensor, shard) in absent.into_iter().filter(|(_, shard)| homes[*shard as usize].is_some()) {
        let shard = quote(&names[shard as usize]);
        mismatches.push(&tensor, || format!("tensor {} should be in {shard}, but no shard has it", quote(&tensor)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_indices_give_the_names_of_models() {
        let cases = [
            ("model.safetensors.index.json", Some("model")),
            ("model.safetensors.index.fp16.json", Some("model.fp16")),
            ("model.safetensors.fp16.index.json", Some("model.fp16")),
            ("a.b.SafeTensors.Index.JSON", Some("a.b")),
            ("pytorch_model.bin.index.json", Some("pytorch_model")),
            (".safetensors.index.json", None),
            ("model.safetensors.index..json", None),
            ("model.safetensors.a.b.index.json", None),
            ("model.safetensors.index.json.bak", None),
            ("model.safetensors.json", None),
            ("weights.index.json", None),
        ];
        for (name, expected) in cases {
            assert_eq!(index_stem(name.as_ref()), expected.map(OsString::from), "{name}");
        }
        assert_eq!(json_stem("weights.index.json".as_ref()), Some("weights".into()));
        assert_eq!(json_stem("map.JSON".as_ref()), Some("map".into()));
    }
}
