//! The models of an Ollama store: each manifest becomes a folder, with a model for each layer that holds weights.

use super::build::CatalogBuilder;
use super::names::FolderNames;
use super::scan::{DirectoryScan, FoundManifest, ScannedStore};
use super::{Catalog, FolderItem, NamedItem};
use crate::format::ParseMode;
use crate::model::access::{NOBODY, needed_for};
use crate::model::assemble::ollama::{self, OllamaLayer, OllamaManifest};
use crate::model::error::Error;
use crate::model::ids::FolderId;
use crate::source::{self, FileId, Location, SourceStat};
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::Path;

impl Catalog {
    /// The models of a manifest of an Ollama store, and its other files. Their paths are those in the whole store.
    pub(in crate::model) fn of_manifest(manifest: &OllamaManifest, mode: ParseMode) -> Result<Self, Error> {
        // In a store, a manifest that cannot be read becomes an error file.
        manifest.read()?;
        let path = manifest.location.path().unwrap_or(Path::new("")).to_owned();
        let absolute = manifest.absolute().and_then(|manifest| Ok((source::stat_at(&manifest.location)?.1, manifest)));
        let (stat, manifest) = absolute.map_err(|error| source::Error::Io { path: path.clone(), error })?;
        let mut scan = DirectoryScan::new();
        let added = scan.dirs.add_base(&manifest.store);
        added.map_err(|error| source::Error::Io { path, error })?;
        let manifests = scan.read_manifests(vec![manifest.clone()]);
        let manifests = manifests.map_err(|too_many| Error::of_set(&manifest.location, too_many))?;
        let store = ScannedStore { manifests, unreadable: Vec::new() };
        let mut builder = CatalogBuilder::new(&manifest.store, mode, scan.dirs);
        let device = source::device_at(&manifest.location);
        let top = builder.folder(&manifest.location, FolderId::new(0), shown_as_folder(stat), device);
        let listed = builder.store(store, top, &mut FolderNames::empty());
        builder.fill(top, listed);
        Ok(builder.catalog)
    }
}

impl CatalogBuilder {
    /// The models of an Ollama store, as items of the folder that shows the store.
    pub fn store(&mut self, store: ScannedStore, folder: FolderId, names: &mut FolderNames) -> Vec<NamedItem> {
        let mut listed = Vec::new();
        for (name, reason) in store.unreadable {
            let item = self.unreadable(reason, folder);
            let name = names.free(&name);
            listed.push(names.item(name, item));
        }
        let manifests: Vec<&OllamaManifest> = store.manifests.iter().map(|found| &found.manifest).collect();
        let mut sorted: Vec<(&[OsString], &FoundManifest)> =
            ollama::mount_paths(&manifests).into_iter().zip(&store.manifests).collect();
        sorted.sort_by(|a, b| a.0.cmp(b.0));
        listed.extend(self.arrange(&sorted, 0, folder, names));
        listed
    }

    /// The items of a folder that shows the paths of these manifests from the component at `depth` on.
    fn arrange(
        &mut self,
        found: &[(&[OsString], &FoundManifest)],
        depth: usize,
        folder: FolderId,
        names: &mut FolderNames,
    ) -> Vec<NamedItem> {
        let mut listed = Vec::new();
        for group in found.chunk_by(|a, b| a.0[depth] == b.0[depth]) {
            let (path, first) = group[0];
            let name = names.free(&path[depth]);
            let item = if path.len() == depth + 1 {
                self.tag(first, folder)
            } else {
                // A folder may show several directories, of models of the same name in two namespaces.
                let dirs = group.iter().map(|(path, found)| found.manifest.ancestor(path.len() - depth - 1));
                let dirs: BTreeMap<String, Location> = dirs.map(|dir| (dir.to_string(), dir)).collect();
                let stats = dirs.values().map(|dir| self.directory_in(&first.manifest.store, dir));
                let stat = stats.reduce(SourceStat::and).unwrap_or(NOBODY);
                // The group has at least one manifest.
                let dir = dirs.into_values().next().unwrap_or_else(|| first.manifest.location.clone());
                let inner = self.folder(&dir, folder, stat, source::device_at(&dir));
                let items = self.arrange(group, depth + 1, inner, &mut FolderNames::empty());
                self.fill(inner, items);
                FolderItem::Folder(inner)
            };
            listed.push(names.item(name, item));
        }
        listed
    }

    /// The permissions `own` of what was found with a number at `location` in a store, restricted to users who can
    /// search the directories between the store and `location`.
    fn reached(
        &mut self,
        store: &Location,
        location: &Location,
        (id, own): (Option<FileId>, SourceStat),
    ) -> SourceStat {
        let dirs = &mut self.catalog.dirs;
        dirs.add_paths(store, [location]);
        let needed = needed_for(&dirs.base(store), location, id).unwrap_or(Some(NOBODY));
        needed.map_or(own, |needed| own.and(needed))
    }

    /// As [`CatalogBuilder::reached`], for a directory.
    fn directory_in(&mut self, store: &Location, dir: &Location) -> SourceStat {
        let found = self.catalog.dirs.base(dir).and_then(|base| Ok((base.id(), base.stat()?)));
        found.map_or(NOBODY, |found| self.reached(store, dir, found))
    }

    fn tag(&mut self, FoundManifest { manifest, read }: &FoundManifest, parent: FolderId) -> FolderItem {
        let OllamaManifest { location, store, .. } = manifest;
        let found = match read {
            Ok((_, file)) => Ok((file.id, file.stat)),
            // The reason may quote a file that was read before.
            Err(_) => source::stat_at(location).map(|(id, stat)| match source::was_always(location, id) {
                true => (id, stat),
                false => (id, NOBODY),
            }),
        };
        let (id, stat) = match found {
            Ok(found) => found,
            Err(error) => return self.unreadable(format!("{location}: {}", source::strerror(&error)), parent),
        };
        let stat = self.reached(store, location, (id, shown_as_folder(stat)));
        let folder = self.folder(location, parent, stat, source::device_at(location));
        self.catalog.reads.push(location.clone());
        let (mut names, mut listed) = (FolderNames::empty(), Vec::new());
        match read {
            Ok((layers, _)) => {
                for layer in layers {
                    let item = self.layer(manifest, layer, folder);
                    let name = names.free(OsStr::new(&layer.name));
                    listed.push(names.item(name, item));
                }
                let (name, item) = (names.free("manifest.json".as_ref()), self.link(location));
                listed.push(names.item(name, item));
            }
            Err(error) => {
                let item = self.unreadable(error.to_string(), folder);
                listed.push(names.item("manifest".into(), item));
            }
        }
        self.fill(folder, listed);
        FolderItem::Folder(folder)
    }

    fn layer(&mut self, manifest: &OllamaManifest, layer: &OllamaLayer, folder: FolderId) -> FolderItem {
        let OllamaManifest { location, store, .. } = manifest;
        let blob = layer.path(store);
        let len = blob.as_ref().and_then(source::len_at);
        match (blob, layer.fault(len)) {
            (blob, _) if layer.is_model => {
                let device = blob.as_ref().map_or(0, source::device_at);
                if let (Some(blob), Some(len)) = (blob, len) {
                    self.catalog.dirs.add_paths(store, [&blob]);
                    self.catalog.reads.push(blob.clone());
                    // Several models may have a layer in common.
                    if self.claimed.insert(blob) {
                        self.add_bytes(len);
                    }
                }
                self.model(location.join(&layer.name), device, folder)
            }
            (Some(blob), None) => self.link(&blob),
            (_, fault) => self.unreadable(format!("{location}: {}", fault.unwrap_or_default()), folder),
        }
    }
}

/// The permissions of a folder whose names are the content of a file with this `stat`.
fn shown_as_folder(stat: SourceStat) -> SourceStat {
    let readers = stat.mode & 0o444;
    SourceStat { mode: readers | readers >> 2, ..stat }
}
