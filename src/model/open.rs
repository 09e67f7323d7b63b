//! Opens what a location names: a model, or a directory of models.

use super::access::{NOBODY, restrict_access, restrict_description};
use super::assemble::ollama::OllamaManifest;
use super::assemble::{self, KnownFiles, assemble_model};
use super::beside::{FILES, files_beside, files_in};
use super::catalog::Catalog;
use super::error::Error;
use super::ids::ModelId;
use super::linked::is_below;
use super::others::local_paths;
use super::table::{Model, ModelAccess};
use crate::format::{self, ParseMode};
use crate::source::{self, Directories, Location, SourceStat};
use std::collections::HashSet;
use std::mem;
use std::path::{Path, PathBuf};

/// A model, or a directory of models, that a location names.
#[derive(Debug)]
pub enum OpenedModel {
    /// A model, and those that belong to it, such as the states of an optimizer, in one folder.
    Model(Box<Model>, Option<Box<Catalog>>),
    /// A directory of several models, none of which is open.
    Catalog(Box<Catalog>),
}

impl OpenedModel {
    /// The files of this machine that may be opened later.
    pub fn reads(&self) -> Vec<PathBuf> {
        match self {
            Self::Model(model, sets) => {
                let sets = sets.iter().flat_map(|sets| &sets.reads).filter_map(|read| read.path());
                let sources = model.sources().iter().chain(model.facts.documents.iter().map(|(_, source)| source));
                let parts = sources.filter_map(|source| source.path());
                parts.chain(local_paths(&model.facts.others)).chain(sets).map(PathBuf::from).collect()
            }
            Self::Catalog(catalog) => {
                let models = catalog.reads.iter().filter_map(|read| read.path());
                models.chain(local_paths(&catalog.others)).map(PathBuf::from).collect()
            }
        }
    }
}

/// Opens a model, or a directory with models in it or below it. A directory whose only model lies directly in it is
/// opened as that model, and so is one whose only model is the latest checkpoint of DeepSpeed, or a directory beside
/// states. Models that belong to it, such as the states of an optimizer, are shown beside it.
pub fn open_location(location: &Location, mode: ParseMode) -> Result<OpenedModel, Error> {
    let Some(mut catalog) = catalog(location, mode)? else {
        let mut model = open_model(location, mode)?;
        let dirs = Directories::default();
        // The directory that holds an index, a manifest or splits is not part of the source.
        let base = dirs.base(&model.facts.base.clone().unwrap_or_else(|| location.parent()));
        match model.form.access {
            ModelAccess::File => restrict_description(&mut model, &base)?,
            ModelAccess::FilesAndDirectories => restrict_access(&mut model, &base)?,
        }
        model.facts.others = files_beside(&model);
        return Ok(OpenedModel::Model(model.into(), None));
    };
    match catalog.only().filter(|only| is_direct(&catalog, *only)) {
        Some(only) => {
            let mut model = open_below(Some(&catalog.top), &location.rename(catalog.model(only)), mode)?;
            let base = catalog.dirs.base(location);
            restrict_access(&mut model, &base)?;
            let dir = base.and_then(|base| base.stat());
            model.facts.needed.push(dir.map_or(NOBODY, SourceStat::search));
            (model.facts.others, _) = files_in(&catalog, FILES);
            let taken = model.facts.sets.iter().map(|set| set.location.file_name());
            let sets = catalog.into_sets(only, taken).map(Box::new);
            Ok(OpenedModel::Model(model.into(), sets))
        }
        None if catalog.models().len() == 0 => Err(no_model(location, &catalog)),
        None => {
            if catalog.is_pipeline() {
                (catalog.others, catalog.lacks_others) = files_in(&catalog, "export/hf/");
            }
            Ok(OpenedModel::Catalog(catalog.into()))
        }
    }
}

/// Whether a model lies directly in the directory of a catalog, is the newest of those there, or is one of the
/// directories of which a checkpoint consists.
fn is_direct(catalog: &Catalog, model: ModelId) -> bool {
    let location = catalog.model(model);
    location.parent() == catalog.top || assemble::is_latest(location, &catalog.top) || catalog.has_sets(model)
}

/// The models at a location, if it is a directory or the manifest of an Ollama store.
fn catalog(location: &Location, mode: ParseMode) -> Result<Option<Catalog>, Error> {
    if source::is_dir(location) {
        let mut catalog = Catalog::scan(location, mode)?;
        if let Some((average, other)) = catalog.named_average()
            && are_alike(&catalog, [average, other])?
        {
            catalog.set_average(average);
        }
        return Ok(Some(catalog));
    }
    match OllamaManifest::find(location) {
        Some(manifest) => Catalog::of_manifest(&manifest, mode).map(Some),
        None => Ok(None),
    }
}

/// Whether two models have the same tensors, whatever the values and dtypes are. Opens both, unless a link leads out of
/// the directory: what is there may be private. Fails only if one of them can be opened later.
fn are_alike(catalog: &Catalog, models: [ModelId; 2]) -> Result<bool, Error> {
    let mut tensors = Vec::new();
    for location in models.map(|model| catalog.model(model)) {
        if !is_quoted(location, Some(&catalog.top)) {
            return Ok(false);
        }
        let model = match open_below(Some(&catalog.top), location, catalog.mode()) {
            Err(error) if error.is_transient() => return Err(error),
            Err(_) => return Ok(false),
            Ok(model) => model,
        };
        let infos = model.logical().iter().map(|id| model.tensor(id).info);
        tensors.push(infos.map(|info| (info.name.to_owned(), info.shape.to_vec())).collect::<HashSet<_>>());
    }
    Ok(tensors[0] == tensors[1])
}

/// Whether messages may quote the files of a model: they lie below `top` or, without it, below their own directory.
fn is_quoted(location: &Location, top: Option<&Location>) -> bool {
    let KnownFiles { main, others, base, .. } = assemble::known_files(location);
    let top = top.cloned().or(base).unwrap_or_else(|| main.parent());
    [&main].into_iter().chain(&others).all(|file| is_below(file, &top))
}

/// Opens one model: a file, a set of tensors in a file, the index of a sharded model, the manifest of a dataset, any
/// split, or a layer of an Ollama manifest.
pub fn open_model(location: &Location, mode: ParseMode) -> Result<Model, Error> {
    open_below(None, location, mode)
}

/// Opens a model that was found below the directory `top`. Without `top`, the user named the model itself, whose files
/// lie in its directory or in its store. The error quotes nothing of files that links lead to from there.
pub fn open_below(top: Option<&Location>, location: &Location, mode: ParseMode) -> Result<Model, Error> {
    let error = match assemble_model(location, mode).and_then(recognise_sets) {
        Err(error) if error.quotes() => match location.path().and_then(source::unfinished_download) {
            Some(reason) => return Err(Error::of_set(location, reason)),
            None => error,
        },
        opened => return opened,
    };
    Err(if is_quoted(location, top) { error } else { error.hidden(location) })
}

/// Recognises the quantized weights of a model, and of the other sets in its file.
fn recognise_sets(mut model: Model) -> Result<Model, Error> {
    model.recognise()?;
    let mut sets = mem::take(&mut model.facts.sets);
    for set in &mut sets {
        set.recognise()?;
        // The sets have the permissions of the model.
        model.facts.described_by.append(&mut set.facts.described_by);
    }
    model.facts.sets = sets;
    Ok(model)
}

/// Opens a model of a catalog. Its permissions are at most those of its files and of the directories between the folder
/// that holds it and the files. The permissions of the folder and of those above it are left out.
pub fn open_in(catalog: &Catalog, model: ModelId) -> Result<Model, Error> {
    let mut opened = open_below(Some(&catalog.top), catalog.model(model), catalog.mode())?;
    let base = opened.facts.base.as_ref().unwrap_or(catalog.home_location(model)).clone();
    let path = base.path().unwrap_or(Path::new("")).to_owned();
    let base = catalog.dirs.base(&base).map_err(|error| source::Error::Io { path, error })?;
    restrict_access(&mut opened, &Ok(base))?;
    Ok(opened)
}

/// The files to open for the models at a location, as paths that begin with the location.
pub struct ModelFiles {
    /// Those that do not belong to others. If there are none, all.
    pub models: Vec<Location>,
    /// The directory below which the models were found, if the location names one.
    pub top: Option<Location>,
    /// Files below a directory that no mount of it shows, because the same model is there as safetensors.
    pub copies: Vec<Location>,
    /// Messages about directories that cannot be listed.
    pub unreadable: Vec<String>,
}

pub fn model_files(location: &Location) -> Result<ModelFiles, Error> {
    let Some(catalog) = catalog(location, ParseMode::Strict)? else {
        return Ok(ModelFiles {
            models: vec![location.clone()],
            top: None,
            copies: Vec::new(),
            unreadable: Vec::new(),
        });
    };
    let models: Vec<Location> =
        catalog.weights().into_iter().map(|model| location.rename(catalog.model(model))).collect();
    if models.is_empty() {
        return Err(no_model(location, &catalog));
    }
    let copies = catalog.copies.iter().map(|copy| location.rename(copy)).collect();
    let top = Some(catalog.top.clone());
    Ok(ModelFiles { models, top, copies, unreadable: catalog.unreadable().map(str::to_owned).collect() })
}

fn no_model(location: &Location, catalog: &Catalog) -> Error {
    if !source::is_dir(location) {
        return Error::of_set(location, "names no layer with a model");
    }
    let suffixes: Vec<_> = format::suffixes().collect();
    let unreadable = catalog.unreadable().next().map(|message| format!("; {message}")).unwrap_or_default();
    let suffixes = suffixes.join(", ");
    let hint = location.path().and_then(source::missing_download).unwrap_or_default();
    Error::of_set(location, format!("a directory without models, whose names end in {suffixes}{unreadable}{hint}"))
}
