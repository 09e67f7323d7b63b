//! The names of the files of a checkpoint of DeepSpeed ZeRO, and the patterns that stand for them.

use crate::model::assemble::listed::{names_beside, note_names, noted_files};
use crate::model::assemble::ranks::plain_number;
use crate::model::assemble::set::{self, KnownFiles, OPTIMIZER};
use crate::source::{self, Location};
use crate::text::quote;
use std::collections::HashMap;
use std::ffi::{OsStr, OsString};

/// The pattern of the names of all files.
const PATTERN: &str = "*mp_rank_*_states.pt";

/// The pattern that stands for the states of the optimizer.
pub(in crate::model::assemble) const STATES: &str = "*mp_rank_*_optim_states.pt";

/// The file with the tag of the newest checkpoint, beside the directories of all checkpoints, and its maximum size.
const LATEST: &str = "latest";
const LATEST_MAX: u64 = 1024;

/// The parts of the name of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ZeroName {
    /// Whether the file has a part of the vectors. Otherwise it describes the model.
    pub is_partition: bool,
    /// The number of the process, if it is there.
    pub rank: Option<usize>,
    /// The number of the part of the model that its tensors were cut into.
    slice: usize,
}

impl ZeroName {
    pub fn parse(name: &OsStr) -> Option<Self> {
        let text = name.to_str()?.strip_suffix("_states.pt")?;
        let (text, is_partition) = match text.strip_suffix("_optim") {
            Some(text) => (text.strip_prefix("bf16_").unwrap_or(text), true),
            None => (text.strip_suffix("_model")?, false),
        };
        let (rank, rest) = match text.strip_prefix("zero_pp_rank_") {
            Some(text) => {
                let (rank, rest) = text.split_once('_')?;
                (Some(plain_number(rank)?), rest)
            }
            None => (None, text),
        };
        let slice = rest.strip_prefix("mp_rank_")?;
        let slice = slice.parse::<u32>().ok().filter(|number| format!("{number:02}") == slice)? as usize;
        (!is_partition || rank.is_some()).then_some(Self { is_partition, rank, slice })
    }
}

/// The pattern of the names of all files, if a file of that name may belong to such a checkpoint.
pub(in crate::model) fn pattern_of(name: &OsStr) -> Option<OsString> {
    ZeroName::parse(name).map(|_| PATTERN.into())
}

/// Whether files of these names, which have the pattern, are one model. Without parts of vectors, a file is an ordinary
/// checkpoint.
pub(in crate::model::assemble) fn are_model(names: &[&OsStr]) -> bool {
    names.iter().any(|name| ZeroName::parse(name).is_some_and(|name| name.is_partition))
}

/// Whether a location is the pattern of the names of such files, and no file.
fn is_pattern(location: &Location) -> bool {
    location.file_name() == PATTERN && !source::exists(location)
}

/// Whether a location is the pattern that stands for the states of the optimizer, and no file.
pub(in crate::model::assemble) fn is_of_states(location: &Location) -> bool {
    location.file_name() == STATES && !source::exists(location)
}

/// Whether a location is the pattern, or a file of a checkpoint. If its directory cannot be listed, the other files are
/// not known, and each is an ordinary checkpoint.
pub(in crate::model) fn is_zero(location: &Location) -> bool {
    is_pattern(location) || ZeroName::parse(location.file_name()).is_some() && has_partition(location)
}

fn has_partition(location: &Location) -> bool {
    let names = names_beside(&pattern_location(location)).unwrap_or_default();
    are_model(&names.iter().map(|name| &name[..]).collect::<Vec<_>>())
}

/// The directory of the newest checkpoint, if `dir` has the checkpoints of a training.
pub(in crate::model) fn latest_in(dir: &Location) -> Option<Location> {
    let latest = dir.join(LATEST);
    if !source::exists(&latest) {
        return None;
    }
    let (text, _) = set::read_list(&latest, LATEST_MAX).ok()?;
    let tag = str::from_utf8(&text).ok()?.trim();
    let is_name = !tag.is_empty() && tag != "." && tag != ".." && !tag.contains(['/', '\0']);
    is_name.then(|| dir.join(tag))
}

/// The names of the files in a directory, sorted, and the files that belong to the checkpoint.
pub(super) struct ZeroListing {
    pub files: Vec<(ZeroName, String)>,
    /// A file of a model of another kind, which is not read.
    other: Option<String>,
}

impl ZeroListing {
    pub fn read(location: &Location) -> Result<Self, source::Error> {
        let mut names = names_beside(location)?;
        names.sort();
        let files = names.iter().filter_map(|name| Some((ZeroName::parse(name)?, name.to_str()?.to_owned())));
        let files: Vec<_> = files.collect();
        let other = names.iter().find(|name| is_of_other_kind(name)).and_then(|name| name.to_str());
        note_names(location, files.iter().map(|(_, name)| &name[..]).chain(other).map(OsString::from));
        Ok(Self { files, other: other.map(str::to_owned) })
    }

    /// The names of the files with parts of vectors by the numbers of their processes. Of the others, no two can have
    /// the same number.
    pub fn partitions(&self) -> Result<HashMap<usize, &str>, String> {
        let mut names = HashMap::new();
        let files = self.files.iter().filter(|(name, _)| name.is_partition);
        for (rank, name) in files.filter_map(|(name, file)| Some((name.rank?, &file[..]))) {
            if let Some(other) = names.insert(rank, name) {
                let (a, b) = (quote(other), quote(name));
                return Err(format!("both {a} and {b} are of rank {rank}"));
            }
        }
        Ok(names)
    }
}

/// Whether a file is one of a layer of a pipeline, or of an expert.
pub(in crate::model::assemble) fn is_of_other_kind(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let is_layer = name.starts_with("layer_") && name.contains("-model_");
    (is_layer || name.starts_with("expert_") || name.contains("_expert_")) && name.ends_with("_states.pt")
}

pub(super) fn pattern_location(location: &Location) -> Location {
    location.parent().join(PATTERN)
}

pub(in crate::model::assemble) fn zero_files(location: &Location) -> KnownFiles {
    let location = pattern_location(location);
    // Notes the names that are there now.
    let _ = ZeroListing::read(&location);
    noted_files(&location)
}

/// Fails if the checkpoint has files of kinds that are not read.
pub(super) fn check_supported(listing: &ZeroListing) -> Result<(), String> {
    if let Some((_, name)) = listing.files.iter().find(|(name, _)| name.slice > 0) {
        return Err(format!("has {}: checkpoints of tensor parallel models are not supported", quote(name)));
    }
    match &listing.other {
        Some(name) => {
            let name = quote(name);
            Err(format!("has {name}: checkpoints of pipelines and of mixtures of experts are not supported"))
        }
        None => Ok(()),
    }
}

/// The name of the model, from the pattern: that of its directory.
pub(in crate::model::assemble) fn stem_of(location: &Location) -> Option<OsString> {
    let name = location.parent().file_name().to_owned();
    match location.file_name() {
        pattern if pattern == STATES => Some(OPTIMIZER.into()),
        pattern => (pattern == PATTERN).then(|| if name.is_empty() { "model".into() } else { name }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::assemble;

    #[test]
    fn names_of_files_are_parsed() {
        let name = |is_partition, rank, slice| Some(ZeroName { is_partition, rank, slice });
        let cases = [
            ("mp_rank_00_model_states.pt", name(false, None, 0)),
            ("mp_rank_01_model_states.pt", name(false, None, 1)),
            ("zero_pp_rank_12_mp_rank_00_model_states.pt", name(false, Some(12), 0)),
            ("zero_pp_rank_0_mp_rank_00_optim_states.pt", name(true, Some(0), 0)),
            ("bf16_zero_pp_rank_3_mp_rank_02_optim_states.pt", name(true, Some(3), 2)),
            ("mp_rank_00_optim_states.pt", None),
            ("bf16_mp_rank_00_model_states.pt", None),
            ("zero_pp_rank_x_mp_rank_00_optim_states.pt", None),
            ("mp_rank_100_model_states.pt", name(false, None, 100)),
            // Files of other names than DeepSpeed writes could be of the same rank as others.
            ("mp_rank_000_model_states.pt", None),
            ("zero_pp_rank_0_mp_rank_0_optim_states.pt", None),
            ("zero_pp_rank_0_mp_rank_000_model_states.pt", None),
            ("zero_pp_rank_00_mp_rank_00_model_states.pt", None),
            ("layer_00-model_00-model_states.pt", None),
            ("model_states.pt", None),
        ];
        for (text, expected) in cases {
            assert_eq!(ZeroName::parse(text.as_ref()), expected, "{text}");
        }
        assert!(is_of_other_kind("layer_00-model_00-model_states.pt".as_ref()));
        assert!(is_of_other_kind("layer_1_expert_0_mp_rank_00_model_states.pt".as_ref()));
        assert!(is_of_other_kind("expert_0_mp_rank_00_model_states.pt".as_ref()));
        assert!(!is_of_other_kind("mp_rank_00_model_states.pt".as_ref()));
    }

    #[test]
    fn noted_names_are_read_if_the_directory_is_not_listed() {
        let dir = tempfile::tempdir().unwrap();
        let location = Location::from(&*dir.path().join("absent").join(PATTERN));
        assert!(
            ZeroListing::read(&location).is_err() && !is_zero(&location.parent().join("mp_rank_00_model_states.pt"))
        );
        let partition = "zero_pp_rank_0_mp_rank_00_optim_states.pt";
        // Its directory has no other file that is known.
        assert!(!is_zero(&location.parent().join(partition)));
        let other = "expert_0_mp_rank_00_model_states.pt";
        let beside = [other, partition, "other.pt"].map(OsStr::new);
        let (_, pattern) = assemble::pattern_of(partition.as_ref()).unwrap();
        pattern.note_files(&location, &[OsStr::new(partition)], beside.into_iter());
        let listing = ZeroListing::read(&location).unwrap();
        assert_eq!((listing.files.len(), &listing.files[0].1[..]), (1, partition));
        assert_eq!(listing.other.as_deref(), Some(other));
        assert!(is_zero(&location.parent().join(partition)));
    }
}
