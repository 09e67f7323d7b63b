//! The ways to make a model. Each is a module that opens files and returns a [`Model`]. Whatever else it knows is data
//! of the model, so that nothing else asks how a model was made.

pub(super) mod checkpoint;
pub(super) mod dataset;
pub(super) mod distributed;
pub(super) mod entries;
pub(super) mod file;
pub(super) mod index;
mod listed;
pub(super) mod numbered;
pub(super) mod ollama;
mod onnx;
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
pub use entries::{EXTRA, FILE_SETS};
pub(super) use set::KnownFiles;
pub(super) use set::OPTIMIZER;
use std::ffi::{OsStr, OsString};

struct Assembler {
    /// Whether a location is made a model in this way.
    claims: fn(&Location) -> bool,
    open: fn(&Location, ParseMode) -> Result<Model, Error>,
    /// The files of the model at a location, as far as they are known before it is opened.
    files: fn(&Location) -> KnownFiles,
    /// The name of the model, if the file name of its location is one of this kind. Looks at no file.
    stem: fn(&Location) -> Option<OsString>,
    /// For models whose location is a pattern of the names of their files.
    pattern: Option<FilePattern>,
    /// The first of the files that name the same model as a location, if there may be several.
    first_file: fn(&Location) -> Option<Location>,
    /// The directory of the newest model, if a directory has several that follow each other.
    latest_in: fn(&Location) -> Option<Location>,
    /// The name of the folder that shows the model beside the weights, if it belongs to these.
    set: fn(&Location) -> Option<&'static str>,
    /// Whether there is a file at the location.
    is_file: bool,
    /// Whether the model may have several files that are named by the location.
    is_set: bool,
}

/// The location of a model that no file describes: a pattern of the names of its files.
pub(super) struct FilePattern {
    /// The pattern, from the name of one of the files.
    of: fn(&OsStr) -> Option<OsString>,
    /// Whether files of these names, which have the same pattern, are a model.
    are_model: fn(&[&OsStr]) -> bool,
    /// The pattern that stands for the other tensors in these files, if they are a model of their own.
    pub also: Option<&'static str>,
    /// Whether only their directory names the files, and for each file beside them whether it tells what they are.
    listed_with: Option<fn(&OsStr) -> bool>,
}

/// The files are known from the pattern.
const COUNTED: FilePattern = FilePattern { of: |_| None, are_model: |_| true, also: None, listed_with: None };

/// One file that is a model.
const FILE: Assembler = Assembler {
    claims: |_| true,
    open: entries::open_file,
    files: |location| KnownFiles::with(location, Vec::new()),
    stem: |location| file::stem(location.file_name()),
    pattern: None,
    first_file: |_| None,
    latest_in: |_| None,
    set: |location| file::is_of_states(location.file_name()).then_some(OPTIMIZER),
    is_file: true,
    is_set: false,
};

/// Several files. Each row has at least the first four fields.
const SET: Assembler = Assembler { set: |_| None, is_set: true, ..FILE };

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
        first_file: split::first_split,
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
        pattern: Some(FilePattern { of: distributed::pattern_of, listed_with: Some(|_| false), ..COUNTED }),
        is_file: false,
        ..SET
    },
    Assembler {
        claims: ranks::is_of_ranks,
        open: ranks::open_ranks,
        files: ranks::rank_files,
        stem: |location| ranks::stem_of(location.file_name()),
        pattern: Some(FilePattern { of: ranks::pattern_of, ..COUNTED }),
        set: ranks::set_of,
        is_file: false,
        ..SET
    },
    Assembler {
        claims: zero::is_of_states,
        open: zero::open_all,
        files: zero::zero_files,
        stem: |_| None,
        set: |location| (location.file_name() == zero::STATES).then_some(OPTIMIZER),
        is_file: false,
        ..SET
    },
    Assembler {
        claims: zero::is_zero,
        open: zero::open_zero,
        files: zero::zero_files,
        stem: zero::stem_of,
        pattern: Some(FilePattern {
            of: zero::pattern_of,
            are_model: zero::are_model,
            also: Some(zero::STATES),
            listed_with: Some(zero::is_of_other_kind),
        }),
        latest_in: zero::latest_in,
        is_file: false,
        ..SET
    },
    Assembler {
        claims: numbered::is_pattern,
        open: numbered::open_numbered,
        files: numbered::pattern_files,
        stem: |location| numbered::NumberedName::stem_of(location.file_name()),
        pattern: Some(FilePattern { of: numbered::pattern_of, ..COUNTED }),
        is_file: false,
        ..SET
    },
    Assembler {
        claims: entries::is_set_in_file,
        open: entries::open_set,
        files: |location| KnownFiles::with(&location.parent(), Vec::new()),
        stem: entries::stem_of_set,
        is_file: false,
        ..FILE
    },
    Assembler { claims: onnx::is_onnx, open: onnx::open_onnx, files: onnx::onnx_files, stem: |_| None, ..SET },
    FILE,
];

/// The name of the directory that holds a location, if the location names a model that is a directory.
fn directory_name(location: &Location, is_named: bool) -> Option<OsString> {
    let name = location.parent().file_name().to_owned();
    (is_named && !name.is_empty()).then_some(name)
}

/// Whether a location names several files: it is that of the index of a sharded model, the manifest of a dataset, the
/// description of a distributed checkpoint, the pattern of the names of shards, a split, a file of one rank, or an ONNX
/// model, which may name other files.
pub fn is_set(location: &Location) -> bool {
    assembler(location).is_set
}

/// Whether a location names a model although it is not that of a file: it is the pattern of the names of its files, a
/// layer of an Ollama manifest, or a set of tensors in a file.
pub fn is_without_file(location: &Location) -> bool {
    !assembler(location).is_file
}

/// The file name of the location of a model that no file describes, from the name of one of its files.
pub(super) fn pattern_of(name: &OsStr) -> Option<(OsString, &'static FilePattern)> {
    let mut patterns = ASSEMBLERS.iter().filter_map(|assembler| assembler.pattern.as_ref());
    patterns.find_map(|pattern| Some(((pattern.of)(name)?, pattern)))
}

impl FilePattern {
    /// Whether files of these names, which have the pattern, are a model.
    pub fn are_model(&self, names: &[&OsStr]) -> bool {
        (self.are_model)(names)
    }

    /// Notes the names of the files of a model if only its directory names them, so that they are known when it can no
    /// longer be listed. `beside` are all names there.
    pub fn note_files<'n>(&self, location: &Location, names: &[&'n OsStr], beside: impl Iterator<Item = &'n OsStr>) {
        if let Some(is_listed_too) = self.listed_with {
            let names = names.iter().copied().chain(beside.filter(|name| is_listed_too(name)));
            listed::note_names(location, names.map(OsStr::to_owned));
        }
    }
}

/// Whether a file name is that of one of several shards, or of a split.
pub fn is_numbered(name: &OsStr) -> bool {
    numbered::NumberedName::parse(name).is_some() || split::SplitName::parse(name).is_some()
}

/// The file that has the bytes of a model of one file: the blob of a layer, the file of a set, or the location itself.
pub fn file_of(location: &Location) -> Result<Location, Error> {
    ollama::blob_of(location).unwrap_or_else(|| Ok(known_files(location).main))
}

/// A location that all files have in common whose names lead to the same model: its first split, or the pattern of the
/// names of its files. `None` if a file is a model of its own.
pub fn common_location(location: &Location) -> Option<Location> {
    let Assembler { pattern, first_file, .. } = assembler(location);
    let pattern = pattern.as_ref().and_then(|pattern| (pattern.of)(location.file_name()));
    pattern.map(|pattern| location.parent().join(pattern)).or_else(|| first_file(location))
}

/// Whether a model is the newest of those in the directory `top`.
pub(super) fn is_latest(model: &Location, top: &Location) -> bool {
    (assembler(model).latest_in)(top).is_some_and(|latest| latest == model.parent())
}

/// The name of the folder that shows the model at a location beside the weights, such as `optimizer`, if the location
/// tells that it belongs to these.
pub(super) fn set_name(location: &Location) -> Option<&'static str> {
    ASSEMBLERS.iter().find_map(|assembler| (assembler.set)(location))
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
