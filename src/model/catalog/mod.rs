//! A directory of several models, none of which is open: its folders, the models in them, and the other files there.

mod build;
mod claims;
mod folders;
mod names;
mod scan;
mod sets;
mod store;

use super::assemble::OPTIMIZER;
use super::assemble::entries::AVERAGE;
use super::ids::{FolderId, ModelId};
use super::others::OtherFiles;
use crate::format::ParseMode;
use crate::source::{Directories, Location, SourceStat};
use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

/// The file of a pipeline of diffusers that names its parts, each in a folder of its own.
pub const PIPELINE: &str = "model_index.json";

/// The models below a directory, and the other files there. Numbers are assigned in a fixed order of names, so an
/// unchanged directory always has the same numbers. Functions panic if no model has the given number.
#[derive(Debug)]
pub struct Catalog {
    mode: ParseMode,
    pub(super) top: Location,
    /// The directory itself comes first.
    folders: Vec<CatalogFolder>,
    models: Vec<FoundModel>,
    links: Vec<Location>,
    /// The files of models that are not shown, because the same model is there as safetensors. Shards are not listed if
    /// their index is.
    pub(super) copies: Vec<Location>,
    /// Messages about directories that cannot be listed, and the folders that hold these.
    unreadable: Vec<(String, FolderId)>,
    /// The files of a pipeline of diffusers that are not parts of its models. Empty if the directory is none.
    pub(super) others: OtherFiles,
    /// Whether some of these were left out because they are too many.
    pub lacks_others: bool,
    /// The directories that were scanned or that symlinks lead through.
    pub(super) dirs: Directories,
    /// The files that opening a model may read: models, indices and manifests, and the shards that these name.
    pub(super) reads: Vec<Location>,
    bytes: u64,
}

/// A directory, with or without models.
#[derive(Debug)]
pub struct CatalogFolder {
    pub location: Location,
    /// The folder that holds it; the first folder holds itself.
    pub parent: FolderId,
    pub stat: SourceStat,
    /// The number of its device or file system.
    pub device: u64,
    /// Sorted by name.
    pub entries: Vec<NamedItem>,
    /// Indices of `entries`, sorted by [`NamedItem::error`].
    errors: Vec<usize>,
}

impl CatalogFolder {
    pub fn models(&self) -> impl Iterator<Item = ModelId> {
        self.entries.iter().filter_map(|entry| match entry.item {
            FolderItem::Model(model) => Some(model),
            _ => None,
        })
    }

    /// The item with that name, and whether the name is that of its error file.
    pub fn find(&self, name: &OsStr) -> Option<(FolderItem, bool)> {
        if let Ok(at) = self.entries.binary_search_by(|entry| entry.name[..].cmp(name)) {
            return Some((self.entries[at].item, false));
        }
        let at = self.errors.binary_search_by(|at| self.entries[*at].error[..].cmp(name)).ok()?;
        Some((self.entries[self.errors[at]].item, true))
    }
}

#[derive(Debug)]
pub struct NamedItem {
    /// File name. It differs from the names of all other items and error files.
    pub name: OsString,
    /// Name of the file that reports an error of the item; empty for folders and links, which have no such file.
    pub error: OsString,
    pub item: FolderItem,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderItem {
    Folder(FolderId),
    Model(ModelId),
    /// A file that is not a model, or a directory that is shown elsewhere, by its index in [`Catalog::links`].
    Link(usize),
    /// The directory `export` of a pipeline of diffusers, in the first folder.
    Export,
    /// A directory that cannot be listed, by its index in [`Catalog::unreadable`].
    Unreadable(usize),
}

#[derive(Debug)]
struct FoundModel {
    location: Location,
    /// The number of its device or file system.
    device: u64,
    folder: FolderId,
    /// The name of the folder that shows it beside the weights, if it belongs to these.
    set: Option<&'static str>,
}

impl Catalog {
    pub fn mode(&self) -> ParseMode {
        self.mode
    }

    /// A folder, if one has that number. The first folder is the directory itself.
    pub fn folder(&self, folder: FolderId) -> Option<&CatalogFolder> {
        self.folders.get(folder.index())
    }

    pub fn models(&self) -> impl ExactSizeIterator<Item = ModelId> + use<> {
        (0..self.models.len()).map(ModelId::new)
    }

    /// The models that commands take: those with weights. If there are none, all.
    pub fn weights(&self) -> Vec<ModelId> {
        self.without(&[OPTIMIZER])
    }

    /// The only model that does not belong to another one.
    pub fn only(&self) -> Option<ModelId> {
        self.without(&[OPTIMIZER, AVERAGE]).try_into().ok().map(|[only]: [ModelId; 1]| only)
    }

    /// The models that are not of these sets. If there are none, all.
    fn without(&self, sets: &[&str]) -> Vec<ModelId> {
        let is_other = |model: &ModelId| self.models[model.index()].set.is_none_or(|set| !sets.contains(&set));
        match self.models().any(|model| is_other(&model)) {
            true => self.models().filter(is_other).collect(),
            false => self.models().collect(),
        }
    }

    pub fn model(&self, model: ModelId) -> &Location {
        &self.models[model.index()].location
    }

    pub fn device(&self, model: ModelId) -> u64 {
        self.models[model.index()].device
    }

    pub fn home(&self, model: ModelId) -> FolderId {
        self.models[model.index()].folder
    }

    pub(super) fn home_location(&self, model: ModelId) -> &Location {
        // The directory of a dataset has no folder.
        self.folder(self.home(model)).map_or(&self.top, |folder| &folder.location)
    }

    /// The path of each of [`Catalog::weights`] in a mount, sorted, and its number.
    pub fn paths(&self) -> BTreeMap<PathBuf, ModelId> {
        let (mut paths, weights): (_, HashSet<ModelId>) = (BTreeMap::new(), self.weights().into_iter().collect());
        let mut ahead = vec![(PathBuf::new(), FolderId::new(0))];
        while let Some((path, folder)) = ahead.pop() {
            for entry in self.folder(folder).iter().flat_map(|folder| &folder.entries) {
                match entry.item {
                    FolderItem::Folder(inner) => ahead.push((path.join(&entry.name), inner)),
                    FolderItem::Model(model) if weights.contains(&model) => {
                        paths.insert(path.join(&entry.name), model);
                    }
                    FolderItem::Model(_) | FolderItem::Link(_) | FolderItem::Export | FolderItem::Unreadable(_) => {}
                }
            }
        }
        paths
    }

    /// Whether the directory is a pipeline of diffusers.
    pub fn is_pipeline(&self) -> bool {
        let top = self.folder(FolderId::new(0));
        top.is_some_and(|top| top.entries.iter().any(|entry| entry.item == FolderItem::Export))
    }

    /// The files of a pipeline of diffusers that are not parts of its models.
    pub fn others(&self) -> &OtherFiles {
        &self.others
    }

    /// The files that are not models, and the directories that are shown elsewhere.
    pub fn links(&self) -> &[Location] {
        &self.links
    }

    pub fn unreadable(&self) -> impl Iterator<Item = &str> {
        self.unreadable.iter().map(|(message, _)| &message[..])
    }

    pub fn unreadable_at(&self, at: usize) -> Option<(&str, FolderId)> {
        self.unreadable.get(at).map(|(message, folder)| (&message[..], *folder))
    }

    /// Size of all files of models, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}
