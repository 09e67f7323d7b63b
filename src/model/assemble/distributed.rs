//! A checkpoint that several processes of PyTorch have saved together as safetensors: the files
//! `shard-00001-model-00001-of-00002.safetensors` and so on in one directory, where the first number is that of the
//! process. Each file has boxes of tensors under the names of the tensors, and its metadata says where they begin.
//!
//! Source: PyTorch, `HuggingFaceStorageWriter` with `save_distributed` in `torch/distributed/checkpoint/hf_storage.py`.
//!
//! The location of such a model is the pattern of these names, `shard-*-model-*-of-00002.safetensors`. No file has that
//! name.

use super::listed::{names_beside, note_names, noted_files};
use super::set::{self, KnownFiles, SEVERAL_FILES, SHARDS_MAX, ShardSet};
use super::split::{last_number, missing_files};
use crate::format::{Header, MetadataValue, ParseMode, TensorInfo, strip_suffix};
use crate::model::assembled::TensorAssembly;
use crate::model::boxes::TensorBox;
use crate::model::error::{Error, json_fault};
use crate::model::ids::{ModelFileId, TensorId};
use crate::model::linked::is_below;
use crate::model::table::{Model, ModelAccess, ModelFile, ModelForm, NoteKind};
use crate::source::{self, Location};
use crate::text::{brackets, quote};
use crate::units::plural;
use serde::Deserialize;
use std::collections::{BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

const SUFFIX: &str = ".safetensors";

/// The part of a pattern before the number of files.
const PATTERN: &str = "shard-*-model-*";

/// The key of the metadata of a file that says where its boxes begin.
const BOXES: &str = "DCP_SHARDING_INFO";

/// What the keys begin with that describe a file and not the model.
const OWN_KEYS: &str = "DCP_";

/// Where the boxes of a file begin, by the names of their tensors.
type SavedBoxes = HashMap<String, SavedBox>;

#[derive(Deserialize)]
struct SavedBox {
    /// The index of its first element in the whole tensor.
    saved_offsets: Vec<u64>,
}

/// The numbers in the name of a file, which count from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RankedName {
    /// The number of the process.
    rank: usize,
    /// Each process has at most one file of each number.
    file: usize,
    count: usize,
}

impl RankedName {
    fn parse(name: &OsStr) -> Option<Self> {
        let (front, count) = last_number(strip_suffix(name, SUFFIX)?.as_bytes())?;
        let (front, file) = last_number(front.strip_suffix(b"-of")?)?;
        let (front, rank) = last_number(front.strip_suffix(b"-model")?)?;
        (front == b"shard" && rank > 0 && (1..=count).contains(&file)).then_some(Self { rank, file, count })
    }

    fn pattern(self) -> OsString {
        format!("{PATTERN}-of-{:05}{SUFFIX}", self.count).into()
    }
}

/// The pattern of the names of all files, from the name of one of them.
pub(in crate::model) fn pattern_of(name: &OsStr) -> Option<OsString> {
    RankedName::parse(name).map(RankedName::pattern)
}

/// The name of the model, from the pattern.
pub(in crate::model) fn stem_of(pattern: &OsStr) -> Option<OsString> {
    pattern_count(pattern).map(|_| "model".into())
}

/// The number of files of each process in a pattern.
fn pattern_count(pattern: &OsStr) -> Option<usize> {
    let (front, count) = last_number(strip_suffix(pattern, SUFFIX)?.as_bytes())?;
    (front.strip_suffix(b"-of")? == PATTERN.as_bytes()).then_some(count)
}

/// Whether a location is the pattern of the names of such files, and no file.
pub fn is_pattern(location: &Location) -> bool {
    pattern_count(location.file_name()).is_some() && !source::exists(location)
}

/// The files of the model at `location`, sorted by name.
fn files(location: &Location) -> Result<Vec<(RankedName, OsString)>, source::Error> {
    let count = pattern_count(location.file_name());
    let files = names_beside(location)?.into_iter().filter_map(|file| {
        let name = RankedName::parse(&file).filter(|name| Some(name.count) == count)?;
        Some((name, file))
    });
    let mut files: Vec<_> = files.collect();
    files.sort_by(|a, b| a.1.cmp(&b.1));
    note_names(location, files.iter().map(|(_, name)| name.clone()));
    Ok(files)
}

pub(super) fn pattern_files(location: &Location) -> KnownFiles {
    // Notes the names that are there now.
    let _ = files(location);
    noted_files(location)
}

const FORM: ModelForm = ModelForm {
    kind: "distributed",
    edit_refusal: Some(SEVERAL_FILES),
    access: ModelAccess::FilesAndDirectories,
    has_shards: true,
    shows_stored: true,
    holds_weights: true,
    notes: NoteKind::Numbers,
};

/// Opens all files whose names the pattern at `location` describes, and joins their tensors.
pub(super) fn open_distributed(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let (dir, files) = (location.parent(), files(location)?);
    let ranks: BTreeSet<usize> = files.iter().map(|(name, _)| name.rank).collect();
    let Some(last) = ranks.last().copied() else { return Err(Error::of_set(location, "no file has such a name")) };
    let numbers: BTreeSet<usize> = files.iter().map(|(name, _)| name.file).collect();
    let count = files.first().map_or(0, |(name, _)| name.count);
    let most = last.max(count).max(files.len());
    if most > SHARDS_MAX {
        return Err(Error::of_set(location, format!("has {most} ranks or files; at most {SHARDS_MAX} are opened")));
    }
    for (all, found, what) in [(last, &ranks, "ranks"), (count, &numbers, "files")] {
        let missing: Vec<String> = (1..=all).filter(|at| !found.contains(at)).map(|at| at.to_string()).collect();
        if mode != ParseMode::Lenient && !missing.is_empty() {
            return Err(Error::of_set(location, missing_files(&missing, all, what)));
        }
    }
    let ((), ShardSet { shards, unopened, mut mismatches, .. }) = set::open_shards(location, mode, |names| {
        files
            .into_iter()
            .try_for_each(|(_, name)| names.add(dir.join(&name), name.to_string_lossy().into_owned()).map(drop))
    })?;
    let saved = shards.iter().map(|shard| {
        saved_boxes(&shard.header).unwrap_or_else(|fault| {
            mismatches.push_shard(&shard.name, || format!("{}: {fault}", quote(&shard.name)));
            SavedBoxes::new()
        })
    });
    let saved: Vec<SavedBoxes> = saved.collect();
    let mut model = Model::new(location, &FORM, shards);
    let (mut assembly, mut apart) = (TensorAssembly::new(model.sources()), Vec::new());
    for parts in parts_by_name(&model) {
        if let Err(reason) = join(&model, &parts, &saved, &mut assembly) {
            let name = model.name(parts[0]);
            mismatches.push(name, || format!("tensor {}: {reason}", quote(name)));
            apart.extend(parts);
        }
    }
    let assembled = assembly.finish().map_err(|_| Error::of_set(location, "the names of its tensors are too long"))?;
    // The message may quote any of the files.
    let mismatches = mismatches.settle(location, mode).map_err(|error| {
        match model.files.iter().all(|shard| is_below(&shard.location, &dir)) {
            true => error,
            false => error.hidden(location),
        }
    })?;
    model.set_assembled(assembled, apart);
    let metadata = model.metadata().iter().filter(|(key, _)| !key.starts_with(OWN_KEYS)).cloned();
    let metadata: Vec<(String, MetadataValue)> = metadata.collect();
    let description = format!("a distributed checkpoint of {}", plural(ranks.len() as u64, "rank"));
    let first = model.files.first().map(|shard| shard.location.clone());
    let facts = &mut model.facts;
    (facts.description, facts.main_file, facts.metadata) = (description, first, Some(metadata));
    (facts.unopened, facts.mismatches) = (unopened, mismatches);
    Ok(model)
}

/// Where the boxes of a file begin. The error says what is wrong with its metadata.
fn saved_boxes(header: &Header) -> Result<SavedBoxes, String> {
    let text =
        header.value(BOXES).ok_or_else(|| format!("its metadata has no {BOXES}; name one file to see it alone"))?;
    serde_json::from_str(text.text()).map_err(|error| json_fault(BOXES, &error))
}

/// The stored tensors of each name, in the order in which the files have the names.
fn parts_by_name(model: &Model) -> Vec<Vec<TensorId>> {
    let (mut numbers, mut parts): (HashMap<&str, usize>, Vec<Vec<TensorId>>) = Default::default();
    for id in model.stored().iter() {
        let number = *numbers.entry(model.name(id)).or_insert(parts.len());
        match parts.get_mut(number) {
            Some(same) => same.push(id),
            None => parts.push(vec![id]),
        }
    }
    parts
}

/// Joins tensors of the same name to one. The error is the reason why they do not make one.
fn join(model: &Model, parts: &[TensorId], saved: &[SavedBoxes], assembly: &mut TensorAssembly) -> Result<(), String> {
    let boxes = parts.iter().map(|id| {
        let (file, stored) = model.stored_tensor(*id);
        match saved[file.index()].get(stored.name) {
            Some(SavedBox { saved_offsets }) => Ok(TensorBox { file, stored, offsets: saved_offsets }),
            None => Err(format!("the {BOXES} of {} does not name it", file_name(model, file))),
        }
    });
    let boxes = boxes.collect::<Result<Vec<TensorBox>, String>>()?;
    let TensorInfo { name, dtype, shape: first_shape, .. } = &boxes[0].stored.info;
    let mut shape = vec![0; first_shape.len()];
    for TensorBox { file, stored, offsets } in &boxes {
        let of = || file_name(model, *file);
        if stored.dtype != *dtype {
            let first = file_name(model, boxes[0].file);
            return Err(format!("it is {} in {first}, and {} in {}", dtype.quoted(), stored.dtype.quoted(), of()));
        }
        if stored.shape.len() != shape.len() || offsets.len() != shape.len() {
            let (part, offsets) = (brackets(stored.shape), brackets(offsets));
            return Err(format!("its part in {} has the shape {part} and begins at {offsets}", of()));
        }
        for (whole, (start, len)) in shape.iter_mut().zip(offsets.iter().zip(stored.shape)) {
            let end = start
                .checked_add(*len)
                .ok_or_else(|| format!("its part in {} begins at {start}, which is too far", of()))?;
            *whole = end.max(*whole);
        }
    }
    let data = assembly.join_boxes(&shape, &boxes)?;
    assembly.push(name, *dtype, &shape, data).map_err(str::to_owned)
}

fn file_name(model: &Model, file: ModelFileId) -> String {
    let ModelFile { name, .. } = model.file(file);
    quote(name).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_files_have_a_pattern() {
        let cases = [
            ("shard-00001-model-00001-of-00002.safetensors", Some("shard-*-model-*-of-00002.safetensors")),
            ("shard-00012-model-00001-of-00001.safetensors", Some("shard-*-model-*-of-00001.safetensors")),
            ("shard-100000-model-00002-of-00002.safetensors", Some("shard-*-model-*-of-00002.safetensors")),
            ("shard-00000-model-00001-of-00002.safetensors", None),
            ("shard-00001-model-00003-of-00002.safetensors", None),
            ("shard-00001-model-00000-of-00002.safetensors", None),
            ("shard-1-model-1-of-2.safetensors", None),
            ("shards-00001-model-00001-of-00002.safetensors", None),
            ("shard-00001-00001-of-00002.safetensors", None),
            ("model-00001-of-00002.safetensors", None),
            ("shard-00001-model-00001-of-00002.bin", None),
        ];
        for (name, expected) in cases {
            let pattern = pattern_of(name.as_ref());
            assert_eq!(pattern.as_deref(), expected.map(OsStr::new), "{name}");
            assert_eq!(pattern.and_then(|pattern| stem_of(&pattern)), expected.map(|_| "model".into()), "{name}");
        }
        assert_eq!(stem_of("model-*-of-00002.safetensors".as_ref()), None);
    }

    #[test]
    fn files_that_were_moved_away_are_still_known() {
        let dir = tempfile::tempdir().unwrap();
        let at = |rank: usize| dir.path().join(format!("shard-{rank:05}-model-00001-of-00001.safetensors"));
        (1..=3).for_each(|rank| std::fs::write(at(rank), "").unwrap());
        let location = Location::from(&*dir.path().join("shard-*-model-*-of-00001.safetensors"));
        assert!(is_pattern(&location) && open_distributed(&location, ParseMode::Strict).is_err());
        std::fs::rename(at(2), dir.path().join("away")).unwrap();
        let KnownFiles { main, others, .. } = pattern_files(&location);
        let found: Vec<Location> = std::iter::once(main).chain(others).collect();
        assert_eq!(found, [at(1), at(2), at(3)].map(|path| Location::from(&*path)));
    }
}
