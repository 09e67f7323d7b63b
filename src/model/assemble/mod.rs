//! The ways to make a model. Each is a module that opens files and returns a [`Model`]. Whatever else it knows is data
//! of the model, so that nothing else asks how a model was made.

pub(super) mod checkpoint;
pub(super) mod dataset;
pub(super) mod distributed;
mod file;
pub(super) mod index;
mod listed;
pub(super) mod numbered;
pub(super) mod ollama;
pub(super) mod ranks;
#[cfg(debug_assertions)]
mod recipe;
pub(super) mod set;
pub(super) mod split;
pub(super) mod zero;

use super::error::Error;
use super::table::Model;
use crate::format::ParseMode;
use crate::source::Location;
pub(super) use set::KnownFiles;
use std::ffi::{OsStr, OsString};

struct Assembler {
    /// Whether a location is made a model in this way.
    claims: fn(&Location) -> bool,
    open: fn(&Location, ParseMode) -> Result<Model, Error>,
    /// The files of the model at a location, as far as they are known before it is opened.
    files: fn(&Location) -> KnownFiles,
    /// The name of the model, if the file name of its location is one of this kind. Looks at no file.
    stem: fn(&Location) -> Option<OsString>,
    /// The file name of the location of a model without an index, from the name of one of its files.
    pattern_of: fn(&OsStr) -> Option<OsString>,
    /// Whether there is a file at the location.
    is_file: bool,
    /// Whether the model may have several files that are named by the location.
    is_set: bool,
}

/// One file that is a model.
const FILE: Assembler = Assembler {
    claims: |_| true,
    open: file::open_file,
    files: |location| KnownFiles::with(location, Vec::new()),
    stem: |location| file::stem(location.file_name()),
    pattern_of: |_| None,
    is_file: true,
    is_set: false,
};

/// Several files. Each row has at least the first four fields.
const SET: Assembler = Assembler { is_set: true, ..FILE };

/// The first that claims a location opens it.
const ASSEMBLERS: &[Assembler] = &[
    #[cfg(debug_assertions)]
    Assembler {
        claims: recipe::is_recipe,
        open: recipe::open_recipe,
        files: recipe::recipe_files,
        stem: |location| recipe::stem(location.file_name()),
        ..SET
    },
    Assembler {
        claims: |location| location.file_name() == dataset::MANIFEST,
        open: dataset::open_dataset,
        files: |location| KnownFiles::with_shards(location, dataset::dataset_shards(location)),
        stem: |location| directory_name(location, location.file_name() == dataset::MANIFEST),
        ..SET
    },
    Assembler {
        claims: |location| checkpoint::is_description(location.file_name()),
        open: checkpoint::open_checkpoint,
        files: checkpoint::checkpoint_files,
        stem: |location| directory_name(location, checkpoint::is_description(location.file_name())),
        ..SET
    },
    Assembler {
        claims: index::is_index,
        open: index::open_index,
        files: |location| KnownFiles::with_shards(location, index::index_shards(location)),
        stem: |location| index::stem(location.file_name()),
        ..SET
    },
    Assembler {
        claims: |location| split::SplitName::parse(location.file_name()).is_some(),
        open: split::open_splits,
        files: |location| KnownFiles::with(location, split::other_splits(location).collect()),
        stem: |location| Some(split::SplitName::parse(location.file_name())?.stem()),
        ..SET
    },
    Assembler {
        claims: |location| ollama::OllamaManifest::of_layer(location).is_some(),
        open: ollama::open_layer,
        files: ollama::layer_files,
        stem: |_| None,
        is_file: false,
        ..FILE
    },
    Assembler {
        claims: distributed::is_pattern,
        open: distributed::open_distributed,
        files: distributed::pattern_files,
        stem: |location| distributed::stem_of(location.file_name()),
        pattern_of: distributed::pattern_of,
        is_file: false,
        ..SET
    },
    Assembler {
        claims: ranks::is_of_ranks,
        open: ranks::open_ranks,
        files: ranks::rank_files,
        stem: |location| ranks::stem_of(location.file_name()),
        pattern_of: ranks::pattern_of,
        is_file: false,
        ..SET
    },
    Assembler {
        claims: zero::is_zero,
        open: zero::open_zero,
        files: zero::zero_files,
        stem: zero::stem_of,
        pattern_of: zero::pattern_of,
        is_file: false,
        ..SET
    },
    Assembler {
        claims: numbered::is_pattern,
        open: numbered::open_numbered,
        files: numbered::pattern_files,
        stem: |location| numbered::NumberedName::stem_of(location.file_name()),
        pattern_of: |name| Some(numbered::NumberedName::parse(name)?.pattern()),
        is_file: false,
        ..SET
    },
    FILE,
];

/// The name of the directory that holds a location, if the location names a model that is a directory.
fn directory_name(location: &Location, is_named: bool) -> Option<OsString> {
    let name = location.parent().file_name().to_owned();
    (is_named && !name.is_empty()).then_some(name)
}

/// Whether a location names several files: it is that of the index of a sharded model, the manifest of a dataset, the
/// description of a distributed checkpoint, the pattern of the names of shards, a split, or a file of one rank.
pub fn is_set(location: &Location) -> bool {
    assembler(location).is_set
}

/// Whether a location names a model although it is not that of a file: it is the pattern of the names of its files, or
/// a layer of an Ollama manifest.
pub fn is_without_file(location: &Location) -> bool {
    !assembler(location).is_file
}

/// The file name of the location of a model without an index, from the name of one of its files.
pub(super) fn pattern_of(name: &OsStr) -> Option<OsString> {
    ASSEMBLERS.iter().find_map(|assembler| (assembler.pattern_of)(name))
}

/// Whether a file name is that of one of several shards, or of a split.
pub fn is_numbered(name: &OsStr) -> bool {
    numbered::NumberedName::parse(name).is_some() || split::SplitName::parse(name).is_some()
}

/// Notes the names of the files of a model without an index, if only its directory names them, so that they are known
/// when it can no longer be listed. `beside` are all names there.
pub(super) fn note_files<'n>(
    location: &Location,
    names: impl Iterator<Item = &'n OsStr>,
    beside: impl Iterator<Item = &'n OsStr>,
) {
    let pattern = location.file_name();
    if zero::is_pattern_name(pattern) {
        let names = names.chain(beside.filter(|name| zero::is_of_other_kind(name)));
        listed::note_names(location, names.map(OsStr::to_owned));
    } else if distributed::stem_of(pattern).is_some() {
        listed::note_names(location, names.map(OsStr::to_owned));
    }
}

/// Whether files of these names, which have a pattern, are one model.
pub(super) fn are_model<'n>(pattern: &OsStr, names: impl Iterator<Item = &'n OsStr>) -> bool {
    zero::are_model(pattern, names)
}

/// A location that all files have in common whose names lead to the same model: its first split, or the pattern of the
/// names of its files. `None` if a file is a model of its own.
pub fn common_location(location: &Location) -> Option<Location> {
    let pattern = (assembler(location).pattern_of)(location.file_name());
    pattern.map(|pattern| location.parent().join(pattern)).or_else(|| split::first_split(location))
}

/// The name of the model at a location: the file name without the suffix of its format and the number of a split, or
/// the name of the directory of a dataset, of a distributed checkpoint or of one of DeepSpeed. Looks at no file.
pub fn model_stem(location: &Location) -> Option<OsString> {
    ASSEMBLERS.iter().find_map(|assembler| (assembler.stem)(location))
}

pub fn model_name(model: &Model) -> Option<OsString> {
    model.facts.name.clone().or_else(|| model_stem(&model.location))
}

fn assembler(location: &Location) -> &'static Assembler {
    ASSEMBLERS.iter().find(|assembler| (assembler.claims)(location)).unwrap_or(&FILE)
}

pub(super) fn assemble_model(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    (assembler(location).open)(location, mode)
}

pub(super) fn known_files(location: &Location) -> KnownFiles {
    (assembler(location).files)(location)
}
