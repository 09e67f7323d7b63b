//! The splits of a GGUF model: the files `PREFIX-00001-of-00003.gguf` and so on in one directory.
//!
//! Source: llama.cpp, `llama_split_path` in `src/llama.cpp`, `src/llama-model-loader.cpp` and `tools/gguf-split`. The
//! first split has the metadata of the model. Three more keys describe a split: `split.no` counts from 0,
//! `split.count` is the number of splits, and `split.tensors.count` the number of tensors in all of them. llama.cpp
//! needs `split.no` in every split, and the other two in the first.

use super::set::{self, SEVERAL_FILES, SHARDS_MAX, SetMismatches, ShardSet};
use crate::format::gguf::{self, SPLIT_NUMBER_KEY as NO, SPLIT_PREFIX};
use crate::format::{Header, MetadataValue, ParseMode, strip_suffix};
use crate::model::error::{Error, LENIENT};
use crate::model::table::{Model, ModelAccess, ModelFile, ModelForm, NoteKind};
use crate::source::{self, Location};
use crate::text::{first_of, quote};
use crate::units::plural;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

const SUFFIX: &str = ".gguf";

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
    /// `.gguf`, possibly in upper case.
    suffix: &'n [u8],
}

impl<'n> SplitName<'n> {
    /// Parses a file name. `None` if it is not that of a split. The number may exceed the number of splits.
    pub fn parse(name: &'n OsStr) -> Option<Self> {
        let stem = strip_suffix(name, SUFFIX)?.as_bytes();
        let suffix = &name.as_bytes()[stem.len()..];
        let (rest, count) = last_number(stem)?;
        let (prefix, number) = last_number(rest.strip_suffix(b"-of")?)?;
        (!prefix.is_empty() && count > 0).then_some(Self { prefix, number, count, suffix })
    }

    pub fn stem(&self) -> OsString {
        OsStr::from_bytes(self.prefix).to_owned()
    }

    /// The part of the name that all splits of one model share.
    pub fn model(&self) -> (&'n [u8], usize) {
        (self.prefix, self.count)
    }

    pub fn is_in_range(&self) -> bool {
        (1..=self.count).contains(&self.number)
    }

    /// The file names of all splits, in their order, at most as many as a model may have.
    fn names(&self) -> impl Iterator<Item = OsString> {
        let Self { prefix, count, suffix, .. } = *self;
        (1..=count.min(SHARDS_MAX)).map(move |number| {
            let end = format!("-{number:0DIGITS$}-of-{count:0DIGITS$}");
            OsString::from_vec([prefix, end.as_bytes(), suffix].concat())
        })
    }
}

/// The number after the last `-`, as `%05d` prints it, and the text before that.
pub(super) fn last_number(text: &[u8]) -> Option<(&[u8], usize)> {
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
pub fn first_split(location: &Location) -> Option<Location> {
    let split = SplitName::parse(location.file_name()).filter(SplitName::is_in_range)?;
    split.names().map(|name| location.parent().join(name)).find(source::exists)
}

const FORM: ModelForm = ModelForm {
    kind: "splits",
    edit_refusal: Some(SEVERAL_FILES),
    access: ModelAccess::FilesAndDirectories,
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
    if !split.is_in_range() {
        let refused = format!("its name says split {number} of {count}, but splits are numbered from 1 to {count}");
        if mode != ParseMode::Lenient {
            return Err(Error::of_set(location, format!("{refused}{LENIENT}")));
        }
        let mut model = open_alone(location, mode)?;
        model.facts.remarks.push(format!("{refused}; only its own tensors are shown"));
        return Ok(model);
    }
    other_splits(location).for_each(|other| source::announce(&other, Some(set::HEAD_MIN)));
    if !other_splits(location).any(|other| source::exists(&other)) {
        let mut model = open_alone(location, mode)?;
        let stated = model.files.first().map(|shard| split_integer(&shard.header, COUNT));
        if let Some(SplitValue::Absent | SplitValue::Number(0 | 1)) = stated {
            if count > 1 {
                model.facts.remarks.push(format!(
                    "its name says split {number} of {count}, but its keys do not; it is treated as a model of its own"
                ));
            }
            return Ok(model);
        }
    }
    if count > SHARDS_MAX {
        return Err(Error::of_set(location, set::too_many_shards()));
    }
    let dir = location.parent();
    let locations: Vec<(Location, String)> =
        split.names().map(|name| (dir.join(&name), name.to_string_lossy().into_owned())).collect();
    if mode != ParseMode::Lenient {
        let missing = locations.iter().filter(|(location, _)| !source::exists(location));
        let missing: Vec<&str> = missing.map(|(_, name)| &name[..]).collect();
        if !missing.is_empty() {
            return Err(Error::of_set(location, missing_files(&missing, count, "splits")));
        }
    }
    let ((), ShardSet { mut shards, mut unopened, mut mismatches, .. }) = set::open_shards(location, mode, |names| {
        locations.into_iter().try_for_each(|(location, name)| names.add(location, name).map(drop))
    })?;
    if number != 1 {
        log::info!("{location}: split {number} of {count}; the whole model is opened");
    }
    shards.retain(|ModelFile { name, location, header, .. }| {
        let is_gguf = header.format == gguf::NAME;
        if !is_gguf {
            mismatches.push(name, || format!("split {}: it is a {} file, not GGUF", quote(name), header.format));
            unopened.push(location.clone());
        }
        is_gguf
    });
    audit_keys(count, &shards, &mut mismatches);
    set::keep_one_each(&mut shards, &mut mismatches, &|_, _| false, &mut |_, _, _| {});
    if shards.is_empty() {
        mismatches.refuse_nothing(location, "shards")?;
    }
    let mismatches = mismatches.settle(location, mode)?;
    let (description, metadata) = (plural(shards.len() as u64, "split"), whole_metadata(&shards));
    let mut model = Model::new(location, &FORM, shards);
    let facts = &mut model.facts;
    (facts.description, facts.metadata) = (description, metadata);
    (facts.unopened, facts.mismatches) = (unopened, mismatches);
    Ok(model)
}

/// The message about files that are missing from a model of `count` files, which are `splits` or `shards`.
pub(super) fn missing_files<N: AsRef<str>>(names: &[N], count: usize, files: &str) -> String {
    let (missing, are) = (names.len(), if names.len() == 1 { "is" } else { "are" });
    let shown = first_of(names.iter().map(|name| quote(name.as_ref())), missing);
    format!("{missing} of the {count} {files} of the model {are} missing: {shown}{LENIENT}")
}

/// Opens a file as a model of its own, even if it is a split of one.
pub fn open_alone(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    Model::from_source(location, source::open_local(location)?, mode)
}

/// The metadata of the first split without the keys that describe the split.
fn whole_metadata(shards: &[ModelFile]) -> Option<Vec<(String, MetadataValue)>> {
    let metadata = shards.first()?.header.metadata.iter();
    Some(metadata.filter(|(key, _)| !key.starts_with(SPLIT_PREFIX)).cloned().collect())
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

fn audit_keys(count: usize, shards: &[ModelFile], mismatches: &mut SetMismatches) {
    let mut total: Option<(i128, &str)> = None;
    for ModelFile { name, header, .. } in shards {
        let Some(SplitName { number, .. }) = SplitName::parse(name.as_ref()) else { continue };
        let is_first = number == 1;
        for (key, is_needed) in [(NO, true), (COUNT, is_first), (TENSORS, is_first)] {
            let reason = match split_integer(header, key) {
                SplitValue::Absent if is_needed => format!("it has no key {key}"),
                SplitValue::Other => format!("its key {key} is not a whole number"),
                SplitValue::Number(found) if key == NO && found != number as i128 - 1 => {
                    format!("{key} is {found}, but should be {} in split {number} of {count}", number - 1)
                }
                SplitValue::Number(found) if key == COUNT && found != count as i128 => {
                    format!("{key} is {found}, but its name says {count}")
                }
                SplitValue::Number(found) if key == TENSORS => match *total.get_or_insert((found, name)) {
                    (total, other) if total != found => format!("{key} is {found}, but {total} in {}", quote(other)),
                    _ => continue,
                },
                SplitValue::Absent | SplitValue::Number(_) => continue,
            };
            mismatches.remark(name, || format!("split {}: {reason}", quote(name)));
        }
    }
    // If tensors are missing because of another fault, that is reported already.
    let is_whole = shards.len() == count && shards.iter().all(|shard| shard.header.skipped.left_out() == 0);
    let found: usize = shards.iter().map(|shard| shard.header.len()).sum();
    if let Some((total, name)) = total.filter(|(total, _)| is_whole && *total != found as i128) {
        mismatches.remark(name, || {
            format!("split {}: {TENSORS} is {total}, but the splits have {found} tensors", quote(name))
        });
    }
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
            ("a-00002-of-00003.GGUF", Some(("a", 2, 3))),
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
