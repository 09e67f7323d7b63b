//! A model that a test describes: tensors under other names, some rows of them, and several of them joined. Only builds
//! with debug assertions have it. What it makes looks like any other model to everything outside of this directory.

use super::set::{self, KnownFiles, LIST_MAX, SEVERAL_FILES, ShardSet};
use crate::format::{ParseMode, strip_suffix};
use crate::model::assembled::{SourcePart, TensorAssembly};
use crate::model::error::Error;
use crate::model::ids::ModelFileId;
use crate::model::table::{DescribingFile, Model, ModelAccess, ModelForm, NoteKind};
use crate::source::Location;
use serde::Deserialize;
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};

#[derive(Deserialize)]
struct Recipe {
    tensors: Vec<RecipeTensor>,
}

#[derive(Deserialize)]
struct RecipeTensor {
    name: String,
    /// Whether the parts get a new first dimension, instead of being joined along the first one.
    is_stack: bool,
    parts: Vec<RecipePart>,
}

#[derive(Deserialize)]
struct RecipePart {
    /// A file beside the recipe.
    file: String,
    tensor: String,
    /// The first row and the end of the rows; all rows if this is left out.
    rows: Option<(u64, u64)>,
}

const FORM: ModelForm = ModelForm {
    kind: "recipe",
    edit_refusal: Some(SEVERAL_FILES),
    access: ModelAccess::FilesAndDirectories,
    has_shards: true,
    shows_stored: false,
    holds_weights: true,
    notes: NoteKind::Index,
};

pub(super) fn is_recipe(location: &Location) -> bool {
    strip_suffix(location.file_name(), ".recipe").is_some()
}

pub(super) fn stem(name: &OsStr) -> Option<OsString> {
    strip_suffix(name, ".recipe").map(OsStr::to_owned)
}

pub(super) fn recipe_files(location: &Location) -> KnownFiles {
    let recipe = read_recipe(location).ok();
    let files = recipe.iter().flat_map(|(recipe, _)| recipe.files());
    KnownFiles::with(location, files.map(|file| location.parent().join(file)).collect())
}

fn read_recipe(location: &Location) -> Result<(Recipe, DescribingFile), Error> {
    let (text, described_by) = set::read_list(location, LIST_MAX)?;
    let recipe = serde_json::from_slice(&text).map_err(|error| Error::of_set(location, error))?;
    Ok((recipe, described_by))
}

impl Recipe {
    fn files(&self) -> BTreeSet<&str> {
        self.tensors.iter().flat_map(|tensor| &tensor.parts).map(|part| &part.file[..]).collect()
    }
}

pub(super) fn open_recipe(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let (recipe, described_by) = read_recipe(location)?;
    let dir = location.parent();
    let ((), ShardSet { shards, unopened, .. }) = set::open_shards(location, mode, |names| {
        recipe.files().iter().try_for_each(|file| names.add(dir.join(file), (*file).to_owned()).map(drop))
    })?;
    let mut model = Model::new(location, &FORM, shards);
    let mut assembly = TensorAssembly::new(model.sources());
    for tensor in &recipe.tensors {
        push(&model, tensor, &mut assembly).map_err(|fault| Error::of_set(location, fault))?;
    }
    let assembled = assembly.finish().map_err(|error| Error::of_set(location, error))?;
    model.set_assembled(assembled, Vec::new());
    (model.facts.unopened, model.facts.description) = (unopened, "a recipe".into());
    model.facts.described_by.push(described_by);
    Ok(model)
}

fn push(model: &Model, tensor: &RecipeTensor, assembly: &mut TensorAssembly) -> Result<(), String> {
    let mut parts: Vec<SourcePart> = Vec::new();
    let (mut rows, mut like) = (0, None);
    for part in &tensor.parts {
        let lacks = || format!("{} has no such rows of {}", part.file, part.tensor);
        let file = model.files.iter().position(|file| file.name == part.file).ok_or_else(lacks)?;
        let header = &model.files[file].header;
        let stored = header.tensor(header.find(&part.tensor).ok_or_else(lacks)?);
        let (len, trailing) = stored.info.shape.split_first().ok_or_else(lacks)?;
        let (start, end) = part.rows.unwrap_or((0, *len));
        let row = stored.info.nbytes / len.max(&1);
        if start > end
            || end > *len
            || *like.get_or_insert((stored.info.dtype, trailing)) != (stored.info.dtype, trailing)
        {
            return Err(lacks());
        }
        let (source, range) = assembly.stored(ModelFileId::new(file), &stored);
        parts.push((source, range.start + start * row..range.start + end * row));
        rows += end - start;
    }
    let (dtype, trailing) = like.ok_or_else(|| format!("{} has no parts", tensor.name))?;
    let shape = match tensor.is_stack {
        true => [&[parts.len() as u64, rows / parts.len() as u64], trailing].concat(),
        false => [&[rows], trailing].concat(),
    };
    assembly.push(&tensor.name, dtype, &shape, parts).map_err(str::to_owned)
}
