//! The ways to make a model. Each is a module that opens files and returns a [`Model`]. Whatever else it knows is data
//! of the model, so that nothing else asks how a model was made.

pub(super) mod checkpoint;
pub(super) mod dataset;
pub(super) mod distributed;
mod file;
pub(super) mod index;
pub(super) mod numbered;
pub(super) mod ollama;
pub(super) mod set;
pub(super) mod split;

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
}

/// The first that claims a location opens it.
const ASSEMBLERS: [Assembler; 8] = [
    Assembler {
        claims: |location| location.file_name() == dataset::MANIFEST,
        open: dataset::open_dataset,
        files: |location| KnownFiles::with_shards(location, dataset::dataset_shards(location)),
    },
    Assembler {
        claims: |location| checkpoint::is_description(location.file_name()),
        open: checkpoint::open_checkpoint,
        files: checkpoint::checkpoint_files,
    },
    Assembler {
        claims: index::is_index,
        open: index::open_index,
        files: |location| KnownFiles::with_shards(location, index::index_shards(location)),
    },
    Assembler {
        claims: |location| split::SplitName::parse(location.file_name()).is_some(),
        open: split::open_splits,
        files: |location| KnownFiles::with(location, split::other_splits(location).collect()),
    },
    Assembler {
        claims: |location| ollama::OllamaManifest::of_layer(location).is_some(),
        open: ollama::open_layer,
        files: ollama::layer_files,
    },
    Assembler {
        claims: distributed::is_pattern,
        open: distributed::open_distributed,
        files: distributed::pattern_files,
    },
    Assembler { claims: numbered::is_pattern, open: numbered::open_numbered, files: numbered::pattern_files },
    Assembler { claims: |_| true, open: file::open_file, files: |location| KnownFiles::with(location, Vec::new()) },
];

/// Whether a location is that of the index of a sharded model, the manifest of a dataset, the description of a
/// distributed checkpoint, the pattern of the names of shards, or a split.
pub fn is_set(location: &Location) -> bool {
    location.file_name() == dataset::MANIFEST
        || checkpoint::is_description(location.file_name())
        || index::is_index(location)
        || split::SplitName::parse(location.file_name()).is_some()
        || is_pattern(location)
}

/// Whether a location is no file, but the pattern of the names of the files of a model.
pub fn is_pattern(location: &Location) -> bool {
    distributed::is_pattern(location) || numbered::is_pattern(location)
}

/// The pattern of the names of the files of a model that has no index, from the name of one of them.
pub(super) fn pattern_of(name: &OsStr) -> Option<OsString> {
    distributed::pattern_of(name).or_else(|| Some(numbered::NumberedName::parse(name)?.pattern()))
}

/// The name of a model, from the pattern of the names of its files.
pub(super) fn pattern_stem(pattern: &OsStr) -> Option<OsString> {
    distributed::stem_of(pattern).or_else(|| numbered::NumberedName::stem_of(pattern))
}

fn assembler(location: &Location) -> &'static Assembler {
    let [others @ .., file] = &ASSEMBLERS;
    others.iter().find(|assembler| (assembler.claims)(location)).unwrap_or(file)
}

pub(super) fn assemble_model(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    (assembler(location).open)(location, mode)
}

pub(super) fn known_files(location: &Location) -> KnownFiles {
    (assembler(location).files)(location)
}
