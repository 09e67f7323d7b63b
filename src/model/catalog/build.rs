//! A catalog while it is made: its lists, and what was claimed so far.

use super::{Catalog, CatalogFolder, FolderItem, FoundModel, NamedItem};
use crate::format::ParseMode;
use crate::model::assemble;
use crate::model::ids::{FolderId, ModelId};
use crate::source::{Directories, Location, SourceStat};
use std::collections::HashSet;

pub(super) struct CatalogBuilder {
    pub catalog: Catalog,
    /// Files that an index names, and all but the first split of a model. They are shards of a model, not models.
    pub claimed: HashSet<Location>,
    /// Number of files that were read to find out what they are.
    pub read: usize,
}

impl CatalogBuilder {
    /// `dirs` are the directories that were listed at or below `top`, or that symlinks lead through.
    pub fn new(top: &Location, mode: ParseMode, dirs: Directories) -> Self {
        let (folders, models, links, copies, unreadable, others, reads) = Default::default();
        let top = top.clone();
        let catalog = Catalog {
            mode,
            top,
            folders,
            models,
            links,
            copies,
            unreadable,
            others,
            lacks_others: false,
            dirs,
            reads,
            bytes: 0,
        };
        Self::of(catalog)
    }

    pub fn of(catalog: Catalog) -> Self {
        Self { catalog, claimed: HashSet::new(), read: 0 }
    }

    pub fn folder(&mut self, location: &Location, parent: FolderId, stat: SourceStat, device: u64) -> FolderId {
        let (entries, errors, location) = (Vec::new(), Vec::new(), location.clone());
        self.catalog.folders.push(CatalogFolder { location, parent, stat, device, entries, errors });
        FolderId::new(self.catalog.folders.len() - 1)
    }

    pub fn fill(&mut self, folder: FolderId, mut listed: Vec<NamedItem>) {
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        let mut errors: Vec<usize> = (0..listed.len()).collect();
        errors.sort_by(|a, b| listed[*a].error.cmp(&listed[*b].error));
        let folder = &mut self.catalog.folders[folder.index()];
        (folder.entries, folder.errors) = (listed, errors);
    }

    pub fn model(&mut self, location: Location, device: u64, folder: FolderId) -> FolderItem {
        let set = assemble::set_name(&location);
        self.set_model(location, device, folder, set)
    }

    /// As [`CatalogBuilder::model`], if what the model belongs to is known.
    pub fn set_model(
        &mut self,
        location: Location,
        device: u64,
        folder: FolderId,
        set: Option<&'static str>,
    ) -> FolderItem {
        self.catalog.models.push(FoundModel { location, device, folder, set });
        FolderItem::Model(ModelId::new(self.catalog.models.len() - 1))
    }

    pub fn link(&mut self, location: &Location) -> FolderItem {
        self.catalog.links.push(location.clone());
        FolderItem::Link(self.catalog.links.len() - 1)
    }

    pub fn unreadable(&mut self, message: String, folder: FolderId) -> FolderItem {
        self.catalog.unreadable.push((message, folder));
        FolderItem::Unreadable(self.catalog.unreadable.len() - 1)
    }

    pub fn add_bytes(&mut self, len: u64) {
        self.catalog.bytes = self.catalog.bytes.saturating_add(len);
    }
}
