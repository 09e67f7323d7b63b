//! The folders of a catalog, from the directories that were listed: gives folders and models their numbers and names.

use super::build::CatalogBuilder;
use super::claims::{ModelListing, NumberedShards};
use super::names::FolderNames;
use super::scan::{DirectoryScan, ScannedDir, ScannedItem};
use super::{Catalog, FolderItem, NamedItem, PIPELINE};
use crate::format::{self, ParseMode};
use crate::model::assemble::{checkpoint, dataset};
use crate::model::error::Error;
use crate::model::ids::FolderId;
use crate::model::recognise;
use crate::source::{self, ListedEntry, ListedKind, Location};
use std::path::Path;

impl Catalog {
    /// Scans the directory at `location`. Its models will be opened in `mode`.
    pub fn scan(location: &Location, mode: ParseMode) -> Result<Self, Error> {
        let path = location.path().unwrap_or(Path::new("")).to_owned();
        let absolute = location.absolute().map_err(|error| source::Error::Io { path, error })?;
        let mut scan = DirectoryScan::new();
        let scanned = scan.dir(&absolute, 0, false).map_err(|too_many| Error::of_set(location, too_many))?;
        if let ScannedItem::Unreadable(reason) = &scanned {
            return Err(Error::of_set(location, format!("a directory that cannot be listed: {reason}")));
        }
        let mut builder = CatalogBuilder::new(&absolute, mode, scan.dirs);
        builder.item(&absolute, scanned, FolderId::new(0), false);
        Ok(builder.catalog)
    }
}

impl CatalogBuilder {
    /// The item of the folder `parent` for what was found at `location`. `has_main` is whether a model is above, to
    /// which ONNX models and arrays belong.
    fn item(&mut self, location: &Location, scanned: ScannedItem, parent: FolderId, has_main: bool) -> FolderItem {
        match scanned {
            ScannedItem::Dir(dir) if dir.is_dataset() => self.dataset(&dir, parent),
            ScannedItem::Dir(dir) => self.directory(*dir, parent, has_main),
            ScannedItem::Elsewhere => self.link(location),
            ScannedItem::Unreadable(reason) => self.unreadable(reason, parent),
        }
    }

    fn dataset(&mut self, dir: &ScannedDir, parent: FolderId) -> FolderItem {
        dir.entries.iter().for_each(|entry| self.add_bytes(entry.len));
        let manifest = dir.location.join(dataset::MANIFEST);
        self.read_shards(&dir.location, &manifest);
        self.catalog.dirs.add_paths(&dir.location, [&manifest]);
        self.catalog.reads.push(manifest.clone());
        self.model(manifest, dir.id.0, parent)
    }

    fn directory(&mut self, dir: ScannedDir, parent: FolderId, has_main: bool) -> FolderItem {
        let number = self.folder(&dir.location, parent, dir.stat, dir.id.0);
        let listed = self.entries(dir, number, has_main);
        self.fill(number, listed);
        FolderItem::Folder(number)
    }

    /// The items of the folder that shows a directory.
    fn entries(&mut self, scanned: ScannedDir, folder: FolderId, has_main: bool) -> Vec<NamedItem> {
        let shown = scanned.shown();
        let ScannedDir { location: dir, entries, mut inner, description, store, .. } = scanned;
        let listing = ModelListing::new(&entries, self.read_files(&dir, &entries), has_main);
        let numbered = self.claim_shards(&dir, &listing);
        let set = description.as_ref().and_then(|description| self.claim_checkpoint(&dir, description));
        let mut names = FolderNames::new(&entries, |entry| listing.is_model(entry) && !listing.is_later_split(entry));
        let mut listed = Vec::new();
        for at in shown {
            let (entry, location) = (&entries[at], dir.join(&entries[at].name));
            let is_dir = entry.kind == ListedKind::Dir;
            let is_second = listing.is_second(entry) || description.is_some() && checkpoint::is_supplement(&entry.name);
            let is_claimed = self.claimed.contains(&location);
            let is_model = listing.is_model(entry) && !is_second;
            let has_data = is_claimed || is_model || format::format_stem(&entry.name).is_some();
            if has_data && !is_dir && !is_second {
                self.add_bytes(entry.len);
            }
            if entry.is_link && !is_dir && (is_model || is_claimed) {
                self.catalog.dirs.add_paths(&dir, [&location]);
            }
            let file = entry.name.clone();
            let (name, item) = if let Some(item) = inner.remove(&at) {
                let has_main = has_main || listing.has_supplement(entry);
                (names.of_file(file), self.item(&location, item, folder, has_main))
            } else if is_claimed {
                continue;
            } else if is_model {
                self.catalog.reads.push(location.clone());
                (names.of_model(file), self.model(location, entry.device, folder))
            } else {
                (names.of_file(file), self.link(&location))
            };
            listed.push(names.item(name, item));
        }
        for NumberedShards { pattern, device } in numbered {
            let item = self.model(dir.join(&pattern), device, folder);
            let name = names.of_model(pattern);
            listed.push(names.item(name, item));
        }
        let has_models = listed.iter().any(|named| matches!(named.item, FolderItem::Model(_)));
        if let Some(description) = description.filter(|description| !has_models || checkpoint::is_whole(description)) {
            self.catalog.dirs.add_paths(&dir, [&description]);
            self.catalog.reads.push(description.clone());
            let device = source::device_at(&description);
            let item = self.set_model(description, device, folder, set);
            let name = names.free("model".as_ref());
            listed.push(names.item(name, item));
        }
        if let Some(store) = store {
            listed.extend(self.store(store, folder, &mut names));
        }
        let is_index = |entry: &ListedEntry| entry.name == PIPELINE && entry.kind == ListedKind::File;
        if folder == FolderId::new(0) && entries.iter().any(is_index) {
            let name = names.free("export".as_ref());
            listed.push(names.item(name, FolderItem::Export));
        }
        if listed.iter().any(|named| matches!(named.item, FolderItem::Model(_))) {
            // Opening a quantized model reads them.
            let configs = entries.iter().filter(|entry| recognise::configs().any(|config| entry.name == config));
            let configs: Vec<Location> = configs.map(|entry| dir.join(&entry.name)).collect();
            self.catalog.dirs.add_paths(&dir, &configs);
            self.catalog.reads.extend(configs);
        }
        listed
    }
}
