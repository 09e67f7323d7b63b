//! Shards without an index: the files `PREFIX-00001-of-00003.safetensors` and so on in one directory. Only their names
//! tell that they are one model.
//!
//! The location of such a model is the pattern of these names, `PREFIX-*-of-00003.safetensors`. No file has that name.

use super::set::{self, KnownFiles, SEVERAL_FILES, SHARDS_MAX, ShardSet};
use super::split::missing_files;
use crate::format::{ParseMode, format_stem, strip_suffix};
use crate::model::error::Error;
use crate::model::table::{Model, ModelAccess, ModelForm, NoteKind};
use crate::source::{self, Location};
use crate::units::plural;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Minimum number of digits of a number in a file name.
const DIGITS: usize = 5;

const OF: &[u8] = b"-of-";

/// The formats whose numbered files are shards of a model. Numbered files of others are arrays, the parts of ranks, or
/// splits.
const SUFFIXES: [&str; 3] = [".safetensors", ".sft", ".bin"];

/// The parts of the file name of a shard, or of the pattern of such names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::model) struct NumberedName<'n> {
    /// All before the number, with the separator.
    before: &'n [u8],
    /// `None` in a pattern.
    number: Option<usize>,
    count: usize,
    /// All after the number: `-of-00003.safetensors`.
    after: &'n [u8],
    width: usize,
}

impl<'n> NumberedName<'n> {
    /// Parses the name of a shard or a pattern. `None` for other names, also for GGUF splits.
    fn parse_any(name: &'n OsStr) -> Option<Self> {
        SUFFIXES.iter().find(|suffix| strip_suffix(name, suffix).is_some())?;
        let bytes = name.as_bytes();
        let of = bytes.windows(OF.len()).rposition(|window| window == OF)?;
        let (front, after) = bytes.split_at(of);
        let count = after.get(OF.len()..)?;
        let count = &count[..count.iter().take_while(|byte| byte.is_ascii_digit()).count()];
        let is_ended = after.get(OF.len() + count.len()) == Some(&b'.');
        let digits = front.iter().rev().take_while(|byte| byte.is_ascii_digit()).count();
        let (before, number) = match front {
            [before @ .., b'*'] => (before, None),
            _ => (&front[..front.len() - digits], Some(&front[front.len() - digits..])),
        };
        let number = match number {
            Some(number) if number.len() == count.len() => Some(parse_number(number)?),
            Some(_) => return None,
            None => None,
        };
        let is_separated = before.len() > 1 && (before.ends_with(b"-") || before.ends_with(b"_"));
        let (count, width) = (parse_number(count)?, count.len());
        let is_numbered = is_ended && is_separated && count > 1 && number.is_none_or(|at| (1..=count).contains(&at));
        is_numbered.then_some(Self { before, number, count, after, width })
    }

    /// Parses the name of one of several shards.
    pub fn parse(name: &'n OsStr) -> Option<Self> {
        Self::parse_any(name).filter(|name| name.number.is_some())
    }

    /// Parses the name of a location that is a pattern and no file.
    fn of_pattern(location: &'n Location) -> Option<Self> {
        let pattern = Self::parse_any(location.file_name()).filter(|name| name.number.is_none())?;
        Some(pattern).filter(|_| !source::exists(location))
    }

    pub fn pattern(&self) -> OsString {
        OsString::from_vec([self.before, b"*", self.after].concat())
    }

    /// The name of the model, from the pattern: its prefix, and the variant that follows the numbers.
    pub fn stem_of(pattern: &OsStr) -> Option<OsString> {
        let name = NumberedName::parse_any(pattern).filter(|name| name.number.is_none())?;
        let stem = format_stem(pattern)?.as_bytes();
        let variant = stem.get(name.before.len() + 1 + OF.len() + name.width..)?;
        Some(OsString::from_vec([&name.before[..name.before.len() - 1], variant].concat()))
    }

    /// The file names of all shards, in their order, at most as many as a model may have.
    fn names(&self) -> impl Iterator<Item = OsString> {
        let Self { before, count, after, width, .. } = *self;
        (1..=count.min(SHARDS_MAX))
            .map(move |number| OsString::from_vec([before, format!("{number:0width$}").as_bytes(), after].concat()))
    }
}

fn parse_number(digits: &[u8]) -> Option<usize> {
    let digits = str::from_utf8(digits).ok().filter(|digits| (DIGITS..=9).contains(&digits.len()))?;
    digits.parse().ok()
}

/// The pattern of the names of all shards, from the name of one of them.
pub(super) fn pattern_of(name: &OsStr) -> Option<OsString> {
    NumberedName::parse(name).map(|name| name.pattern())
}

/// Whether a location is the pattern of the names of shards.
pub fn is_pattern(location: &Location) -> bool {
    NumberedName::of_pattern(location).is_some()
}

/// The locations of all shards of a pattern, whether they exist or not.
fn shards(location: &Location) -> Vec<Location> {
    let dir = location.parent();
    NumberedName::of_pattern(location).iter().flat_map(NumberedName::names).map(|name| dir.join(name)).collect()
}

pub(super) fn pattern_files(location: &Location) -> KnownFiles {
    let mut shards = shards(location);
    let first = shards.iter().position(source::exists).unwrap_or_default();
    let main = if shards.is_empty() { location.clone() } else { shards.remove(first) };
    KnownFiles::with(&main, shards)
}

const FORM: ModelForm = ModelForm {
    kind: "sharded",
    edit_refusal: Some(SEVERAL_FILES),
    access: ModelAccess::FilesAndDirectories,
    has_shards: true,
    shows_stored: false,
    holds_weights: true,
    notes: NoteKind::Numbers,
};

/// Opens all shards whose names the pattern at `location` describes.
pub(super) fn open_numbered(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let listed = shards(location);
    let count = NumberedName::of_pattern(location).map_or(0, |name| name.count);
    if count > SHARDS_MAX {
        return Err(Error::of_set(location, set::too_many_shards()));
    }
    let named = |location: &Location| location.file_name().to_string_lossy().into_owned();
    let missing: Vec<String> = listed.iter().filter(|shard| !source::exists(shard)).map(named).collect();
    if mode != ParseMode::Lenient && !missing.is_empty() {
        return Err(Error::of_set(location, missing_files(&missing, count, "shards")));
    }
    let first = listed.iter().find(|shard| source::exists(shard)).cloned();
    let ((), ShardSet { mut shards, unopened, mut mismatches, .. }) = set::open_shards(location, mode, |names| {
        listed.into_iter().try_for_each(|shard| {
            let name = named(&shard);
            names.add(shard, name).map(drop)
        })
    })?;
    set::keep_one_each(&mut shards, &mut mismatches, &|_, _| false, &mut |_, _, _| {});
    let mismatches = mismatches.settle(location, mode)?;
    let description = format!("{} without an index", plural(shards.len() as u64, "shard"));
    let mut model = Model::new(location, &FORM, shards);
    let facts = &mut model.facts;
    (facts.description, facts.main_file) = (description, first);
    (facts.unopened, facts.mismatches) = (unopened, mismatches);
    facts.remarks.push(format!("no index names these {count} shards; the numbers in their names make them one model"));
    Ok(model)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_shards_have_a_pattern_and_a_stem() {
        let cases = [
            ("model-00001-of-00003.safetensors", Some(("model-*-of-00003.safetensors", "model"))),
            ("m-00002-of-00002.fp16.safetensors", Some(("m-*-of-00002.fp16.safetensors", "m.fp16"))),
            ("model_00001-of-00030.SAFETENSORS", Some(("model_*-of-00030.SAFETENSORS", "model"))),
            ("pytorch_model-00001-of-00002.bin", Some(("pytorch_model-*-of-00002.bin", "pytorch_model"))),
            ("model-00004-of-00003.safetensors", None),
            ("model-00000-of-00003.safetensors", None),
            ("model-00001-of-00001.safetensors", None),
            ("model-1-of-3.safetensors", None),
            ("model-00001-of-000003.safetensors", None),
            ("best-of-00005.safetensors", None),
            ("00001-of-00003.safetensors", None),
            ("_00001-of-00003.safetensors", None),
            ("m-00001-of-00003.npy", None),
            ("rank-00001-of-00008.pt", None),
            ("m-00001-of-00003.gguf", None),
            ("m-00001-of-00003.txt", None),
            ("m-00001-of-00003", None),
        ];
        for (name, expected) in cases {
            let pattern = pattern_of(name.as_ref());
            let found = pattern.as_ref().and_then(|pattern| Some((pattern.to_str()?, NumberedName::stem_of(pattern)?)));
            let found = found.as_ref().and_then(|(pattern, stem)| Some((*pattern, stem.to_str()?)));
            assert_eq!(found, expected, "{name}");
        }
        let name = NumberedName::parse("a-00002-of-00003.safetensors".as_ref()).unwrap();
        assert_eq!(name.names().nth(2).unwrap(), "a-00003-of-00003.safetensors");
    }
}
