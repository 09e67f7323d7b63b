//! A model of one file.

use super::set::OPTIMIZER;
use super::split;
use crate::format::{Header, ParseMode, format_stem, pytorch};
use crate::model::error::Error;
use crate::model::header;
use crate::model::table::{Model, ModelFile, ModelForm};
use crate::source::{self, Location, Source};
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::Arc;

impl Model {
    /// Reads the header of a model of one file. Does not look for several sets of tensors in it.
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
        Ok(Self::new(location, form, vec![read_file(location, file, source, mode)?]))
    }
}

/// Reads the header of `file`. Errors name it `location`.
pub(super) fn read_file(
    location: &Location,
    file: &Location,
    source: Arc<dyn Source>,
    mode: ParseMode,
) -> Result<ModelFile, Error> {
    let name = file.file_name().to_string_lossy().into_owned();
    let header = header::read_header(location, &*source, mode)?;
    Ok(ModelFile { name, location: file.clone(), header, source })
}

/// Adds remarks about a file that is a split of a model, or a rank of a Megatron checkpoint.
pub(super) fn add_remarks(model: &mut Model) {
    let header = model.files.first().map(|file| &file.header);
    let (split, rank) = (header.and_then(split::remark), header.and_then(megatron_remark));
    if rank.is_some() {
        model.facts.description = "one rank of a Megatron checkpoint".to_owned();
    }
    model.facts.remarks.extend(split.into_iter().chain(rank));
}

/// Whether a name is one under which transformers (`optimizer.pt`) and accelerate (`optimizer.bin`, `optimizer_1.bin`)
/// save the state of an optimizer.
pub(in crate::model) fn is_of_states(name: &OsStr) -> bool {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    match name.to_str().and_then(|name| name.strip_prefix(OPTIMIZER)) {
        Some(".pt" | ".bin") => true,
        Some(rest) => rest.strip_prefix('_').and_then(|rest| rest.strip_suffix(".bin")).is_some_and(is_number),
        None => false,
    }
}

/// Whether the file at a location has the state dict of an optimizer, and nothing else. Reads its header.
pub(in crate::model) fn has_states(location: &Location) -> bool {
    let Ok(source) = source::open_local(location) else { return false };
    header::read_header(location, &*source, ParseMode::Lenient).is_ok_and(|header| {
        let keys = header.metadata.iter().map(|(key, _)| &key[..]);
        pytorch::states_start(header.tensors().map(|tensor| tensor.info.name).chain(keys)).is_some()
    })
}

/// Why a file of one of several processes of Megatron-LM is a model of its own.
///
/// Source: Megatron-LM, `megatron/training/checkpointing.py`.
fn megatron_remark(header: &Header) -> Option<String> {
    header.value("checkpoint_version")?;
    let size = |kind: &str| header.value_text(&format!("args.{kind}_model_parallel_size")).parse::<u32>().ok();
    let (tensor, pipeline, expert) = (size("tensor")?, size("pipeline")?, size("expert").unwrap_or(1));
    (tensor > 1 || pipeline > 1 || expert > 1).then(|| {
        format!(
            "one rank of a Megatron checkpoint ({tensor} tensor, {pipeline} pipeline and {expert} expert parallel): no file \
             says how its tensors were cut, so each rank is shown by itself"
        )
    })
}

/// A file name without the suffix of its format, or without any.
pub(super) fn stem(name: &OsStr) -> Option<OsString> {
    let stem = format_stem(name).filter(|stem| !stem.is_empty());
    stem.or_else(|| Path::new(name).file_stem()).map(OsStr::to_owned)
}
