//! The models of a catalog that belong to another one, such as the states of an optimizer and averages of the weights.
//! They are shown beside the only other model.

use super::build::CatalogBuilder;
use super::names::FolderNames;
use super::{Catalog, FolderItem, FoundModel, NamedItem};
use crate::model::assemble::entries::{AVERAGE, has_word};
use crate::model::assemble::{self, OPTIMIZER, checkpoint};
use crate::model::ids::{FolderId, ModelId};
use crate::source::Location;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

/// The beginning of the names of files and directories that are kept as names of folders. No view has such a name.
const KEPT: &[u8] = b"optim";

impl Catalog {
    /// The model whose name says that it is an average, and the only other one with weights, which is in the directory
    /// itself or is one of the directories there.
    pub(in crate::model) fn named_average(&self) -> Option<(ModelId, ModelId)> {
        let [first, second] = self.weights().try_into().ok()?;
        let (average, other) = match [first, second].map(|model| self.is_named_average(model)) {
            [true, false] => (first, second),
            [false, true] => (second, first),
            _ => return None,
        };
        (self.place(other) == self.top).then_some((average, other))
    }

    /// Whether the name of a file in the directory, or of a directory in it or a file there, has the word `ema`.
    fn is_named_average(&self, model: ModelId) -> bool {
        let (file, dir) = (self.model(model), self.model(model).parent());
        let is_named = |location: &Location| has_word(&location.file_name().to_string_lossy(), AVERAGE);
        match dir == self.top {
            true => is_named(file),
            false => dir.parent() == self.top && (is_named(file) || is_named(&dir)),
        }
    }

    pub(in crate::model) fn set_average(&mut self, model: ModelId) {
        self.models[model.index()].set = Some(AVERAGE);
    }

    /// Whether a model is a directory in that of the catalog, and others belong to it.
    pub(in crate::model) fn has_sets(&self, main: ModelId) -> bool {
        self.place(main) == self.top && self.models.iter().any(|found| found.set.is_some())
    }

    fn place(&self, model: ModelId) -> Location {
        self.models[model.index()].place(&self.top)
    }

    /// The models that belong to the only other one, `main`, in one folder. `None` if there are none. The names `taken`
    /// are those of the folders of sets in its file.
    pub(in crate::model) fn into_sets<'n>(self, main: ModelId, taken: impl Iterator<Item = &'n OsStr>) -> Option<Self> {
        let (place, top) = (self.place(main), self.top.clone());
        let is_beside = |found: &FoundModel| found.place(&top) == place;
        let states = self.models.iter().filter(|found| found.set == Some(OPTIMIZER));
        let has_several = states.filter(|found| is_beside(found)).count() > 1;
        let mut builder = CatalogBuilder::of(self);
        let mut names = FolderNames::empty();
        taken.for_each(|name| drop(names.free(name)));
        let models = builder.catalog.models.iter_mut().enumerate().map(|(at, found)| (ModelId::new(at), found));
        let sets = models.filter(|(model, _)| *model != main).filter_map(|(model, found)| {
            let set = found.set?;
            // Those of two trainings have the names of their files.
            let has_own = set == OPTIMIZER && (has_several || !is_beside(found));
            let own = assemble::model_stem(&found.location).filter(|own| has_own && own.as_bytes().starts_with(KEPT));
            let name = names.free(own.as_deref().unwrap_or(set.as_ref()));
            // The directories on the way to it restrict who may read it.
            found.folder = FolderId::new(0);
            Some(names.item(name, FolderItem::Model(model)))
        });
        let sets: Vec<NamedItem> = sets.collect();
        if sets.is_empty() {
            return None;
        }
        builder.fill(FolderId::new(0), sets);
        Some(builder.catalog)
    }
}

impl FoundModel {
    /// The directory that holds the model, which may be a directory itself, unless that is `top`.
    fn place(&self, top: &Location) -> Location {
        let dir = self.location.parent();
        if dir != *top && checkpoint::is_whole(&self.location) { dir.parent() } else { dir }
    }
}
