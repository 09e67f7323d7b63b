//! The name of a model from its file name.

use super::assemble::split::SplitName;
use super::assemble::{checkpoint, dataset, index, pattern_stem};
use super::table::Model;
use crate::format;
use crate::source::Location;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// The name of the model in a file: the file name without the suffix of its format and the number of a split, or the
/// name of the directory of a dataset or of a distributed checkpoint.
pub fn model_stem(location: &Location) -> Option<OsString> {
    let name = location.file_name();
    let is_named = |name: &OsStr| !name.is_empty();
    if name == dataset::MANIFEST || checkpoint::is_description(name) {
        return Some(location.parent().file_name().to_owned()).filter(|name| is_named(name));
    }
    if let Some(split) = SplitName::parse(name) {
        return Some(split.stem());
    }
    if let Some(stem) = pattern_stem(name) {
        return Some(stem);
    }
    let single = format::format_stem(name).filter(|stem| is_named(stem)).or_else(|| Path::new(name).file_stem());
    let json = || index::json_stem(name).filter(|stem| is_named(stem));
    index::index_stem(name).or_else(json).or_else(|| single.map(OsStr::to_owned))
}

pub fn model_name(model: &Model) -> Option<OsString> {
    model.facts.name.clone().or_else(|| model_stem(&model.location))
}

/// Whether a file of that name is a model, or should be one.
pub(super) fn is_model(name: &OsStr) -> bool {
    format::format_stem(name).is_some() || index::index_stem(name).is_some()
}
