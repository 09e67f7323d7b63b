//! A model of one file.

use super::split;
use crate::format::{ParseMode, format_stem};
use crate::model::error::Error;
use crate::model::header;
use crate::model::table::{Model, ModelFile, ModelForm};
use crate::source::{self, Location, Source};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

impl Model {
    /// Reads the header of a model of one file.
    pub fn from_source(location: &Location, source: Arc<dyn Source>, mode: ParseMode) -> Result<Self, Error> {
        Self::from_file(location, &ModelForm::FILE, location, source, mode)
    }

    /// Reads the header of the model at `location`, whose bytes are in `file`.
    pub(super) fn from_file(
        location: &Location,
        form: &'static ModelForm,
        file: &Location,
        source: Arc<dyn Source>,
        mode: ParseMode,
    ) -> Result<Self, Error> {
        let name = file.file_name().to_string_lossy().into_owned();
        let header = header::read_header(location, &*source, mode)?;
        let shard = ModelFile { name, location: file.clone(), header, source };
        Ok(Self::new(location, form, vec![shard]))
    }
}

/// Opens a file that no other assembler knows.
pub(super) fn open_file(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let mut model = Model::from_source(location, source::open_local(location)?, mode)?;
    let remark = model.files.first().and_then(|shard| split::remark(&shard.header));
    model.facts.remarks.extend(remark);
    Ok(model)
}

/// A file name without the suffix of its format, or without any.
pub(super) fn stem(name: &OsStr) -> Option<OsString> {
    let stem = format_stem(name).filter(|stem| !stem.is_empty());
    stem.or_else(|| Path::new(name).file_stem()).map(OsStr::to_owned)
}
