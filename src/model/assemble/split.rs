//! The splits of a GGUF model: the files `PREFIX-00001-of-00003.gguf` and so on in one directory.
//!
//! Source: llama.cpp, `llama_split_path` in `src/llama.cpp`, `src/llama-model-loader.cpp` and `tools/gguf-split`. The
//! first split has the metadata of the model. Three more keys describe a split: `split.no` counts from 0,
//! `split.count` is the number of splits, and `split.tensors.count` the number of tensors in all of them. llama.cpp
//! needs `split.no` in every split, and the other two in the first.

use super::set::{self, File, ShardSet};
use crate::format::gguf::{self, SPLIT_NUMBER_KEY as NO, SPLIT_PREFIX};
use crate::format::{Header, KEPT_MAX, MetadataValue, ParseMode};
use crate::model::error::{Error, SHARDS_MAX, SetError, SetMismatch};
use crate::model::table::{Model, ModelForm, ModelNotes, NoteKind, Shard};
use crate::source::{self, Location};
use crate::text::quote;
use crate::units::plural;
use std::collections::{HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;

/// Suffix of the file names.
const SUFFIX: &[u8] = b".gguf";

/// Minimum number of digits of a number in a file name.
const DIGITS: usize = 5;

/// The number of splits. It is 0 in a file into which all splits were merged.
const COUNT: &str = "split.count";

/// The number of tensors in all splits.
const TENSORS: &str = "split.tensors.count";

/// The parts of the file name of a split.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(in crate::model) struct SplitName<'n> {
    prefix: &'n [u8],
    /// Counts from 1.
    number: usize,
    count: usize,
}

impl<'n> SplitName<'n> {
    /// Parses a file name. `None` if it is not that of a split. The number may exceed the number of splits.
    pub fn parse(name: &'n OsStr) -> Option<Self> {
        let (rest, count) = last_number(name.as_bytes().strip_suffix(SUFFIX)?)?;
        let (prefix, number) = last_number(rest.strip_suffix(b"-of")?)?;
        (!prefix.is_empty() && count > 0).then_some(Self { prefix, number, count })
    }

    /// The name of the model.
    pub fn stem(&self) -> OsString {
        OsStr::from_bytes(self.prefix).to_owned()
    }

    /// The part of the name that all splits of one model share.
    pub fn model(&self) -> (&'n [u8], usize) {
        (self.prefix, self.count)
    }

    /// Whether there is a split of that number.
    pub fn is_in_range(&self) -> bool {
        (1..=self.count).contains(&self.number)
    }

    /// The file names of all splits, in their order, at most as many as a model may have.
    fn names(&self) -> impl Iterator<Item = OsString> {
        let Self { prefix, count, .. } = *self;
        (1..=count.min(SHARDS_MAX)).map(move |number| {
            let end = format!("-{number:0DIGITS$}-of-{count:0DIGITS$}");
            OsString::from_vec([prefix, end.as_bytes(), SUFFIX].concat())
        })
    }
}

/// The number after the last `-`, as `%05d` prints it, and the text before that.
fn last_number(text: &[u8]) -> Option<(&[u8], usize)> {
    let at = text.iter().rposition(|byte| *byte == b'-')?;
    let digits = &text[at + 1..];
    let is_number = digits.iter().all(u8::is_ascii_digit);
    let is_padded = digits.len() == DIGITS || digits.len() > DIGITS && digits[0] != b'0';
    let number = (is_number && is_padded).then(|| str::from_utf8(digits).ok()?.parse::<u32>().ok())??;
    Some((&text[..at], number as usize))
}

/// The locations of the other splits of the model at `location`, whether they exist or not. Empty if `location` is not
/// that of a split.
pub(in crate::model) fn other_splits(location: &Location) -> impl Iterator<Item = Location> {
    let split = SplitName::parse(location.file_name()).filter(SplitName::is_in_range);
    let names: Vec<OsString> = split.iter().flat_map(SplitName::names).collect();
    let own = location.file_name().to_owned();
    let dir = location.parent();
    names.into_iter().filter(move |name| *name != own).map(move |name| dir.join(name))
}

/// The first split that exists of the model whose split is at `location`; `None` if it is not a split.
pub(in crate::model) fn first_split_value(location: &Location) -> Option<Location> {
    let split = SplitName::parse(location.file_name()).filter(SplitName::is_in_range)?;
    split.names().map(|name| location.parent().join(name)).find(source::exists)
}

/// GGUF files whose names say that they are splits of one model.
const FORM: ModelForm = ModelForm {
    kind: "splits",
    fixed: Some("a model of several files; name one of them"),
    has_shards: true,
    shows_stored: false,
    holds_weights: true,
    notes: NoteKind::Splits,
};

/// Opens all splits of the model whose split is at `location`, and compares their keys with their names.
///
/// A file that has the name but not the keys of a split is a model of its own if there are no other splits.
pub(in crate::model) fn open_splits(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let Some(split) = SplitName::parse(location.file_name()) else { return open_alone(location, mode) };
    let SplitName { number, count, .. } = split;
    let error = |error| Error::Set { location: location.clone(), error };
    if !split.is_in_range() {
        let refused = SetError::SplitNumber { number, count };
        if mode != ParseMode::Lenient {
            return Err(error(refused));
        }
        let mut model = open_alone(location, mode)?;
        model.facts_mut().notes.remarks.push(format!("{refused}; only its own tensors are shown"));
        return Ok(model);
    }
    other_splits(location).for_each(|other| source::announce(&other, Some(set::HEAD_MIN)));
    if !other_splits(location).any(|other| source::exists(&other)) {
        let mut model = open_alone(location, mode)?;
        let stated = model.shards().first().map(|shard| split_integer(&shard.header, COUNT));
        if let Some(SplitValue::Absent | SplitValue::Number(0 | 1)) = stated {
            if count > 1 {
                model.facts_mut().notes.remarks.push(format!(
                    "its name says split {number} of {count}, but its keys do not; it is treated as a model of its own"
                ));
            }
            return Ok(model);
        }
    }
    if count > SHARDS_MAX {
        return Err(error(SetError::TooManyShards));
    }
    let dir = location.parent();
    let locations: Vec<(Location, String)> =
        split.names().map(|name| (dir.join(&name), name.to_string_lossy().into_owned())).collect();
    if mode != ParseMode::Lenient {
        let missing = locations.iter().filter(|(location, _)| !source::exists(location));
        let names: Vec<String> = missing.map(|(_, name)| name.clone()).collect();
        if !names.is_empty() {
            return Err(Error::Mismatch {
                location: location.clone(),
                mismatch: SetMismatch::Splits { names, count },
                more: 0,
            });
        }
    }
    let ((), ShardSet { homes, files, broken, mut unopened, .. }) = set::open_shards(location, mode, |names| {
        locations.into_iter().try_for_each(|(location, name)| names.add(location, name).map(drop))
    })?;
    if number != 1 {
        log::info!("{location}: split {number} of {count}; the whole model is opened");
    }
    let mut mismatches = broken;
    let numbers = (1..).zip(&homes).filter_map(|(number, home)| home.map(|_| number));
    let (mut kept, mut shards, mut sources): (Vec<usize>, Vec<Shard>, Vec<_>) = Default::default();
    for (number, (shard, source)) in numbers.zip(files) {
        let format = shard.header.format();
        if format == gguf::NAME {
            kept.push(number);
            shards.push(shard);
            sources.push(source);
        } else {
            let reason = format!("it is a {format} file, not GGUF");
            mismatches.push(SetMismatch::Split { shard: shard.name.into(), reason });
            unopened.extend(source.path().map(Location::from));
        }
    }
    let missing = count - shards.len();
    audit_keys(&kept, count, &shards, &mut mismatches);
    let more = drop_duplicates(&mut shards, &mut mismatches);
    if let (true, Some(first)) = (shards.is_empty(), mismatches.first()) {
        return Err(error(SetError::Nothing { reason: first.to_string() }));
    }
    let mismatches = set::settle(location, mode, mismatches, more)?;
    let files: Vec<File> = shards.into_iter().zip(sources).collect();
    let description = plural(files.len() as u64, "split");
    let mut model = Model::new(location, &FORM, files);
    let metadata = model.shards().first().map(|first| whole_metadata(&first.header));
    let facts = model.facts_mut();
    facts.notes = ModelNotes { mismatches, missing, ..ModelNotes::default() };
    (facts.description, facts.unopened, facts.metadata) = (description, unopened, metadata);
    Ok(model)
}

/// Opens a file as a model of its own, even if it is a split of one.
pub fn open_alone(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    Model::from_source(location, source::open_local(location)?, mode)
}

/// The metadata of a split without the keys that describe the split.
fn whole_metadata(first: &Header) -> Vec<(String, MetadataValue)> {
    first.metadata().iter().filter(|(key, _)| !key.starts_with(SPLIT_PREFIX)).cloned().collect()
}

/// A message about a file that has the keys but not the name of a split.
pub fn remark(header: &Header) -> Option<String> {
    let (SplitValue::Number(count @ 2..), no) = (split_integer(header, COUNT), split_integer(header, NO)) else {
        return None;
    };
    let number = match no {
        SplitValue::Number(no) => format!("split {} of {count}", no.saturating_add(1)),
        _ => format!("one of {count} splits"),
    };
    Some(format!(
        "its keys say that it is {number}, but its name does not (PREFIX-00001-of-{count:0DIGITS$}.gguf); \
         only its own tensors are shown"
    ))
}

/// The value of a key of a split.
#[derive(Debug, PartialEq, Eq)]
enum SplitValue {
    Absent,
    Number(i128),
    /// Not a whole number.
    Other,
}

fn split_integer(header: &Header, key: &str) -> SplitValue {
    match header.value(key) {
        None => SplitValue::Absent,
        Some(value) if value.kind().is_integer() && !value.is_array() => {
            value.text().parse().map_or(SplitValue::Other, SplitValue::Number)
        }
        Some(_) => SplitValue::Other,
    }
}

/// Compares the keys of the splits with the numbers in their names. `numbers` are those of `shards`.
fn audit_keys(numbers: &[usize], count: usize, shards: &[Shard], mismatches: &mut Vec<SetMismatch>) {
    let mut total: Option<(i128, &str)> = None;
    for (shard, number) in shards.iter().zip(numbers) {
        let Shard { name, header, .. } = shard;
        let mut add = |reason: String| mismatches.push(SetMismatch::Split { shard: name[..].into(), reason });
        let is_first = *number == 1;
        for (key, is_needed) in [(NO, true), (COUNT, is_first), (TENSORS, is_first)] {
            match split_integer(header, key) {
                SplitValue::Absent if is_needed => add(format!("it has no key {key}")),
                SplitValue::Other => add(format!("its key {key} is not a whole number")),
                SplitValue::Number(found) if key == NO && found != *number as i128 - 1 => {
                    add(format!("{key} is {found}, but should be {} in split {number} of {count}", number - 1))
                }
                SplitValue::Number(found) if key == COUNT && found != count as i128 => {
                    add(format!("{key} is {found}, but its name says {count}"));
                }
                SplitValue::Number(found) if key == TENSORS => match total {
                    Some((total, other)) if total != found => {
                        add(format!("{key} is {found}, but {total} in {}", quote(other)));
                    }
                    Some(_) => {}
                    None => total = Some((found, name)),
                },
                SplitValue::Absent | SplitValue::Number(_) => {}
            }
        }
    }
    // If tensors are missing because of another fault, that is reported already.
    let is_whole = shards.len() == count && shards.iter().all(|shard| shard.header.skipped().total() == 0);
    let found: usize = shards.iter().map(|shard| shard.header.len()).sum();
    if let Some((total, name)) = total.filter(|(total, _)| is_whole && *total != found as i128) {
        let reason = format!("{TENSORS} is {total}, but the splits have {found} tensors");
        mismatches.push(SetMismatch::Split { shard: name.into(), reason });
    }
}

/// Keeps each tensor only in the first split that has it. Returns how many mismatches there are in addition to those
/// that are listed.
fn drop_duplicates(shards: &mut [Shard], mismatches: &mut Vec<SetMismatch>) -> usize {
    let names: Vec<Arc<str>> = shards.iter().map(|shard| Arc::from(&shard.name[..])).collect();
    let (mut more, mut dropped) = (0, vec![HashSet::new(); shards.len()]);
    let mut homes: HashMap<&str, usize> = HashMap::new();
    for (at, shard) in shards.iter().enumerate() {
        for tensor in (0..shard.header.len()).map(|index| shard.header.name(index)) {
            let kept = *homes.entry(tensor).or_insert(at);
            if kept == at {
                continue;
            }
            dropped[at].insert(tensor.to_owned());
            if mismatches.len() < KEPT_MAX {
                let (shard, other) = (names[kept].clone(), names[at].clone());
                mismatches.push(SetMismatch::Twice { tensor: tensor.to_owned(), shard, other, stated: false });
            } else {
                more += 1;
            }
        }
    }
    for (shard, dropped) in shards.iter_mut().zip(dropped) {
        if !dropped.is_empty() {
            shard.header.retain(|name| !dropped.contains(name));
        }
    }
    more
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_of_splits_are_parsed() {
        let parse = |name: &'static str| {
            let split = SplitName::parse(name.as_ref())?;
            Some((str::from_utf8(split.prefix).unwrap(), split.number, split.count))
        };
        let cases = [
            ("a-00001-of-00003.gguf", Some(("a", 1, 3))),
            ("a-b-00002-of-00002-00003-of-00003.gguf", Some(("a-b-00002-of-00002", 3, 3))),
            ("a-00004-of-00003.gguf", Some(("a", 4, 3))),
            ("a-00000-of-00003.gguf", Some(("a", 0, 3))),
            ("a-100000-of-100000.gguf", Some(("a", 100_000, 100_000))),
            ("a-00001-of-00000.gguf", None),
            ("-00001-of-00003.gguf", None),
            ("a-1-of-3.gguf", None),
            ("a-000001-of-000003.gguf", None),
            ("a-00001-of-99999999999.gguf", None),
            ("a-00001-of-00003.safetensors", None),
            ("a-0000x-of-00003.gguf", None),
            ("a_00001-of-00003.gguf", None),
            ("a-00001-00003.gguf", None),
        ];
        for (name, expected) in cases {
            assert_eq!(parse(name), expected, "{name}");
            let split = SplitName::parse(name.as_ref()).filter(SplitName::is_in_range);
            let again = split.as_ref().and_then(|split| split.names().nth(split.number - 1));
            assert!(again.is_none_or(|again| again == name), "{name}");
        }
        let others: Vec<Location> = other_splits(&std::path::Path::new("dir/a-00002-of-00003.gguf").into()).collect();
        assert_eq!(
            others.iter().map(Location::to_string).collect::<Vec<_>>(),
            ["dir/a-00001-of-00003.gguf", "dir/a-00003-of-00003.gguf"]
        );
    }
}
