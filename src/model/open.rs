//! Opens what a location names: a model, or a directory of models.

use super::access::{NOBODY, restrict_access};
use super::assemble::assemble_model;
use super::assemble::ollama::OllamaManifest;
use super::catalog::Catalog;
use super::error::{Error, SetError};
use super::ids::ModelId;
use super::table::Model;
use crate::format::{self, ParseMode};
use crate::source::{self, Directories, Location, SourceStat};
use std::path::PathBuf;

/// A model, or a directory of models, that a location names.
#[derive(Debug)]
pub enum OpenedModel {
    /// One model.
    Model(Box<Model>),
    /// A directory of several models, none of which is open.
    Catalog(Box<Catalog>),
}

impl OpenedModel {
    /// The files of this machine that may be opened later.
    pub fn reads(&self) -> Vec<PathBuf> {
        match self {
            Self::Model(model) => {
                let sources = model.sources().iter().chain(model.documents().iter().map(|(_, source)| source));
                sources.filter_map(|source| source.path().map(PathBuf::from)).collect()
            }
            Self::Catalog(catalog) => catalog.reads().iter().filter_map(|read| Some(read.path()?.to_owned())).collect(),
        }
    }
}

/// Opens a model, or a directory with models in it or below it. A directory whose only model lies directly in it is
/// opened as that model.
pub fn open_location(location: &Location, mode: ParseMode) -> Result<OpenedModel, Error> {
    let Some(catalog) = catalog(location, mode)? else {
        let mut model = open_model(location, mode)?;
        // The directory that holds an index, a manifest or splits is not part of the source.
        if model.form().fixed.is_some() {
            let base = model.facts().base.clone().unwrap_or_else(|| location.parent());
            restrict_access(&mut model, &base, &Directories::default());
        }
        return Ok(OpenedModel::Model(model.into()));
    };
    match catalog.only().filter(|only| catalog.is_at_top(*only)) {
        Some(only) => {
            let mut model = open_model(&location.rename(catalog.model(only)), mode)?;
            restrict_access(&mut model, location, catalog.directories());
            let dir = catalog.directories().base(location).and_then(|base| base.stat());
            model.facts_mut().needed.push(dir.map_or(NOBODY, SourceStat::search));
            Ok(OpenedModel::Model(model.into()))
        }
        None if catalog.models().len() == 0 => Err(no_model(location, &catalog)),
        None => Ok(OpenedModel::Catalog(catalog.into())),
    }
}

/// The models at a location, if it is a directory or the manifest of an Ollama store.
fn catalog(location: &Location, mode: ParseMode) -> Result<Option<Catalog>, Error> {
    if source::is_dir(location) {
        return Catalog::scan(location, mode).map(Some);
    }
    match OllamaManifest::find(location) {
        Some(manifest) => Catalog::of_manifest(&manifest, mode).map(Some),
        None => Ok(None),
    }
}

/// Opens one model: a file, the index of a sharded model, the manifest of a dataset, any split, or
/// a layer of an Ollama manifest.
pub fn open_model(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let mut model = assemble_model(location, mode)?;
    model.recognise()?;
    Ok(model)
}

/// Opens a model of a catalog. Its permissions are at most those of its files and of the directories between the folder
/// that holds it and the files. The permissions of the folder and of those above it are left out.
///
/// # Panics
/// If no model has that number.
pub fn open_in(catalog: &Catalog, model: ModelId) -> Result<Model, Error> {
    let mut opened = open_model(catalog.model(model), catalog.mode())?;
    let base = opened.facts().base.as_ref().unwrap_or(catalog.home_location(model)).clone();
    restrict_access(&mut opened, &base, catalog.directories());
    Ok(opened)
}

/// The files to open for the models at a location, as paths that begin with the location.
pub struct ModelFiles {
    /// The location itself, or files below a directory.
    pub models: Vec<Location>,
    /// Files below a directory that no mount of it shows, because the same model is there as safetensors.
    pub copies: Vec<Location>,
    /// Messages about directories that cannot be listed.
    pub unreadable: Vec<String>,
}

/// The files to open for the models at a location.
pub fn model_files(location: &Location) -> Result<ModelFiles, Error> {
    let Some(catalog) = catalog(location, ParseMode::Strict)? else {
        return Ok(ModelFiles { models: vec![location.clone()], copies: Vec::new(), unreadable: Vec::new() });
    };
    let models: Vec<Location> = catalog.models().map(|model| location.rename(catalog.model(model))).collect();
    if models.is_empty() {
        return Err(no_model(location, &catalog));
    }
    let copies = catalog.copies().iter().map(|copy| location.rename(copy)).collect();
    Ok(ModelFiles { models, copies, unreadable: catalog.unreadable().map(str::to_owned).collect() })
}

/// The error for a catalog without models.
fn no_model(location: &Location, catalog: &Catalog) -> Error {
    if !source::is_dir(location) {
        return Error::Set { location: location.clone(), error: SetError::NoModel };
    }
    let suffixes: Vec<_> = format::suffixes().collect();
    let unreadable = catalog.unreadable().next().map(|message| format!("; {message}")).unwrap_or_default();
    let found = format!("without models, whose names end in {}{unreadable}", suffixes.join(", "));
    Error::Directory { location: location.clone(), found }
}
