//! The models without weights of a catalog, such as the states of an optimizer, which are shown beside the only one
//! with weights.

use super::build::CatalogBuilder;
use super::names::FolderNames;
use super::{Catalog, FolderItem, NamedItem};
use crate::model::assemble;
use crate::model::ids::{FolderId, ModelId};

impl Catalog {
    /// The models without weights in one folder, beside the only one with weights, `main`. `None` if there are none.
    pub(in crate::model) fn into_sets(self, main: ModelId) -> Option<Self> {
        let dir = self.model(main).parent();
        // The states of two trainings have the names of their files.
        let beside = self.models.iter().filter(|found| found.set.is_some() && found.location.parent() == dir).count();
        let mut builder = CatalogBuilder::of(self);
        let mut names = FolderNames::empty();
        let models = builder.catalog.models.iter_mut().enumerate().map(|(at, found)| (ModelId::new(at), found));
        let sets = models.filter(|(model, _)| *model != main).filter_map(|(model, found)| {
            let set = found.set?;
            let own = assemble::model_stem(&found.location).filter(|_| beside != 1 || found.location.parent() != dir);
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
