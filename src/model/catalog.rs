//! A directory of several models: finds which files below it are models. Does not open the models.
//!
//! Each manifest of an Ollama store becomes a folder, with a model for each layer that holds weights.
//!
//! Hidden files are left out, as by `ls`. Symlinks are followed. Entries are named after their files; terminal control
//! characters and bytes that are not UTF-8 are escaped.

use super::access::NOBODY;
use super::assemble::ollama::{self, OllamaManifest};
use super::assemble::split::SplitName;
use super::assemble::{self, dataset, index};
use super::error::Error;
use super::ids::{FolderId, ModelId};
use super::recognise;
use super::stem::{is_model, model_stem};
use super::unused::UsedNames;
use crate::format::numpy::is_array;
use crate::format::pytorch::preferred;
use crate::format::{self, ParseMode};
use crate::name::harmless;
use crate::source::{self, Directories, FileId, ListedEntry, ListedKind, Location, SourceStat};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::hash::Hash;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Maximum number of files and folders in a scan.
const ENTRIES_MAX: usize = 1_000_000;

/// Maximum number of files and folders behind one symlink. A symlink may lead to the root directory.
const BEHIND_LINK_MAX: usize = 100_000;

/// Maximum depth of nested folders.
const DEPTH_MAX: usize = 64;

/// The models below a directory, and the other files there. Numbers are assigned in a fixed order of names, so an
/// unchanged directory always has the same numbers.
#[derive(Debug)]
pub struct Catalog {
    mode: ParseMode,
    /// The directory itself comes first.
    folders: Vec<CatalogFolder>,
    models: Vec<FoundModel>,
    links: Vec<Location>,
    /// Files of models that are there in another format too.
    copies: Vec<Location>,
    unreadable: Vec<UnreadableDir>,
    dirs: Directories,
    /// The directory itself.
    top: Location,
    /// The files of models.
    reads: Vec<Location>,
    /// Size of all files of models, in bytes.
    bytes: u64,
}

/// A directory, with or without models.
#[derive(Debug)]
pub struct CatalogFolder {
    /// The directory.
    pub location: Location,
    /// The folder that holds it; the first folder holds itself.
    pub parent: FolderId,
    /// Owner, permissions and modification time of the directory.
    pub stat: SourceStat,
    /// The number of its device or file system.
    pub device: u64,
    /// Sorted by name.
    pub entries: Vec<NamedItem>,
    /// Indices of `entries`, sorted by [`NamedItem::error`].
    errors: Vec<usize>,
}

impl CatalogFolder {
    /// The item with that name, and whether the name is that of its error file.
    pub fn find(&self, name: &OsStr) -> Option<(FolderItem, bool)> {
        if let Ok(at) = self.entries.binary_search_by(|entry| entry.name[..].cmp(name)) {
            return Some((self.entries[at].item, false));
        }
        let at = self.errors.binary_search_by(|at| self.entries[*at].error[..].cmp(name)).ok()?;
        Some((self.entries[self.errors[at]].item, true))
    }
}

/// An item of a folder and its names.
#[derive(Debug)]
pub struct NamedItem {
    /// File name. It differs from the names of all other items and error files.
    pub name: OsString,
    /// Name of the file that reports an error of the item; empty for folders and links, which have no such file.
    pub error: OsString,
    /// The item.
    pub item: FolderItem,
}

/// The target of a name in a folder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FolderItem {
    /// Another folder.
    Folder(FolderId),
    /// A model, which was not opened yet.
    Model(ModelId),
    /// A file that is not a model, or a directory that is shown elsewhere, by its index in [`Catalog::links`].
    Link(usize),
    /// A directory that cannot be listed, by its index in [`Catalog::unreadable`].
    Unreadable(usize),
}

/// A directory that cannot be listed.
#[derive(Debug)]
struct UnreadableDir {
    message: String,
    /// The folder that holds it.
    folder: FolderId,
}

/// A model that was found.
#[derive(Debug)]
struct FoundModel {
    /// The file to open.
    location: Location,
    /// The number of its device or file system.
    device: u64,
    /// The folder that holds it.
    folder: FolderId,
}

impl Catalog {
    /// Scans the directory at `location`. Its models will be opened in `mode`.
    pub fn scan(location: &Location, mode: ParseMode) -> Result<Self, Error> {
        let io = |error| source::Error::Io { path: location.path().unwrap_or(Path::new("")).to_owned(), error };
        let absolute = location.absolute().map_err(io)?;
        let mut scan = CatalogScan::new(&absolute, mode);
        let error = |found| Err(Error::Directory { location: location.clone(), found });
        match scan.directory(&absolute, FolderId::new(0)) {
            Ok(FolderItem::Unreadable(_)) => {
                error(format!("that cannot be listed: {}", scan.catalog.unreadable().collect::<Vec<_>>().join(", ")))
            }
            Ok(_) => Ok(scan.catalog),
            Err(TooMany) => error(format!("with more than {ENTRIES_MAX} files below it")),
        }
    }

    /// The models of a manifest of an Ollama store, and its other files. Their paths are those in the whole store.
    pub(super) fn of_manifest(manifest: &OllamaManifest, mode: ParseMode) -> Result<Self, Error> {
        // In a store, a manifest that cannot be read becomes an error file.
        manifest.read()?;
        let path = || manifest.location.path().unwrap_or(Path::new("")).to_owned();
        let io = |error| source::Error::Io { path: path(), error };
        let manifest = manifest.absolute().map_err(io)?;
        let stat = source::stat_at(&manifest.location).map_err(io)?;
        let mut scan = CatalogScan::new(&manifest.store, mode);
        let device = source::device_at(&manifest.location);
        let top = scan.folder(&manifest.location, FolderId::new(0), shown_as_folder(stat), device);
        let error = |found| Err(Error::Directory { location: manifest.location.clone(), found });
        match scan.manifests(vec![manifest.clone()], top, &mut FolderNames::empty()) {
            Ok(listed) => scan.fill(top, listed),
            Err(TooMany) => return error(format!("with more than {ENTRIES_MAX} files below it")),
        }
        Ok(scan.catalog)
    }

    /// The mode in which the models are opened.
    pub fn mode(&self) -> ParseMode {
        self.mode
    }

    /// A folder, if one has that number. The first folder is the directory itself.
    pub fn folder(&self, folder: FolderId) -> Option<&CatalogFolder> {
        self.folders.get(folder.index())
    }

    /// The numbers of the models.
    pub fn models(&self) -> impl ExactSizeIterator<Item = ModelId> + use<> {
        (0..self.models.len()).map(ModelId::new)
    }

    /// The number of the model, if there is only one.
    pub fn only(&self) -> Option<ModelId> {
        (self.models.len() == 1).then(|| ModelId::new(0))
    }

    /// Whether the file of a model lies in the directory itself, and not in a directory below it.
    ///
    /// # Panics
    /// If no model has that number.
    pub fn is_at_top(&self, model: ModelId) -> bool {
        self.model(model).parent() == self.top
    }

    /// The file to open for a model.
    ///
    /// # Panics
    /// If no model has that number.
    pub fn model(&self, model: ModelId) -> &Location {
        &self.models[model.index()].location
    }

    /// The number of the device or file system of a model's file.
    ///
    /// # Panics
    /// If no model has that number.
    pub fn device(&self, model: ModelId) -> u64 {
        self.models[model.index()].device
    }

    /// The folder that holds a model.
    ///
    /// # Panics
    /// If no model has that number.
    pub fn home(&self, model: ModelId) -> FolderId {
        self.models[model.index()].folder
    }

    /// The path of each model in a mount, sorted, and its number.
    pub fn paths(&self) -> BTreeMap<PathBuf, ModelId> {
        let mut paths = BTreeMap::new();
        let mut ahead = vec![(PathBuf::new(), FolderId::new(0))];
        while let Some((path, folder)) = ahead.pop() {
            for entry in self.folder(folder).iter().flat_map(|folder| &folder.entries) {
                match entry.item {
                    FolderItem::Folder(inner) => ahead.push((path.join(&entry.name), inner)),
                    FolderItem::Model(model) => drop(paths.insert(path.join(&entry.name), model)),
                    FolderItem::Link(_) | FolderItem::Unreadable(_) => {}
                }
            }
        }
        paths
    }

    /// The files that are not models, and the directories that are shown elsewhere.
    pub fn links(&self) -> &[Location] {
        &self.links
    }

    /// The files that opening a model may read: models, indices and manifests, and the shards that these name.
    pub fn reads(&self) -> &[Location] {
        &self.reads
    }

    /// The files of models that are not shown, because the same model is there as safetensors. Shards are not listed if
    /// their index is.
    pub fn copies(&self) -> &[Location] {
        &self.copies
    }

    /// Messages about directories that cannot be listed.
    pub fn unreadable(&self) -> impl Iterator<Item = &str> {
        self.unreadable.iter().map(|unreadable| &unreadable.message[..])
    }

    /// The message about a directory that cannot be listed, and the folder that holds it.
    pub fn unreadable_at(&self, at: usize) -> Option<(&str, FolderId)> {
        self.unreadable.get(at).map(|unreadable| (&unreadable.message[..], unreadable.folder))
    }

    /// The directories that were scanned or that symlinks lead through.
    pub(super) fn directories(&self) -> &Directories {
        &self.dirs
    }

    /// The directory itself.
    pub(super) fn location(&self) -> &Location {
        &self.top
    }

    /// The directory of the folder that holds a model.
    ///
    /// # Panics
    /// If no model has that number.
    pub(super) fn home_location(&self, model: ModelId) -> &Location {
        // The directory of a dataset has no folder.
        self.folder(self.home(model)).map_or(self.location(), |folder| &folder.location)
    }

    /// Size of all files of models, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// The state of a scan.
struct CatalogScan {
    catalog: Catalog,
    /// Number of entries found so far.
    seen: usize,
    /// Maximum of `seen`.
    limit: usize,
    /// Files that an index names, and all but the first split of a model. They are shards of a model, not models.
    claimed: RevocableSet<Location>,
    /// Number of folders that hold the current one.
    depth: usize,
    /// The directories scanned so far. A symlink may lead to one of them again.
    shown: RevocableSet<FileId>,
}

/// A set from which the elements that were added last can be removed.
struct RevocableSet<T> {
    all: HashSet<T>,
    order: Vec<T>,
}

impl<T> Default for RevocableSet<T> {
    fn default() -> Self {
        Self { all: HashSet::new(), order: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> RevocableSet<T> {
    /// Adds a mark; returns whether it is new.
    fn insert(&mut self, mark: T) -> bool {
        let is_new = self.all.insert(mark.clone());
        if is_new {
            self.order.push(mark);
        }
        is_new
    }

    fn contains(&self, mark: &T) -> bool {
        self.all.contains(mark)
    }

    fn len(&self) -> usize {
        self.order.len()
    }

    fn truncate(&mut self, len: usize) {
        for mark in self.order.drain(len..) {
            self.all.remove(&mark);
        }
    }
}

/// There are more entries than the limit.
struct TooMany;

impl CatalogScan {
    fn new(top: &Location, mode: ParseMode) -> Self {
        let (folders, models, links, copies, unreadable, dirs, reads) = Default::default();
        let top = top.clone();
        let catalog = Catalog { mode, folders, models, links, copies, unreadable, dirs, top, reads, bytes: 0 };
        let (seen, claimed, depth, shown) = Default::default();
        Self { catalog, seen, limit: ENTRIES_MAX, claimed, depth, shown }
    }

    /// Adds an empty folder.
    fn folder(&mut self, location: &Location, parent: FolderId, stat: SourceStat, device: u64) -> FolderId {
        let number = FolderId::new(self.catalog.folders.len());
        let (entries, errors, location) = (Vec::new(), Vec::new(), location.clone());
        self.catalog.folders.push(CatalogFolder { location, parent, stat, device, entries, errors });
        number
    }

    /// Sets the entries of a folder.
    fn fill(&mut self, folder: FolderId, mut listed: Vec<NamedItem>) {
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        let mut errors: Vec<usize> = (0..listed.len()).collect();
        errors.sort_by(|a, b| listed[*a].error.cmp(&listed[*b].error));
        let folder = &mut self.catalog.folders[folder.index()];
        (folder.entries, folder.errors) = (listed, errors);
    }

    /// Scans a directory in the folder `parent` and returns its item.
    fn directory(&mut self, location: &Location, parent: FolderId) -> Result<FolderItem, TooMany> {
        let source::DirListing { id, stat, mut entries } = match source::list_dir(location) {
            Ok(listing) => listing,
            Err(source::Error::Io { error, .. }) => {
                return Ok(self.unreadable(location, parent, &source::strerror(&error)));
            }
            Err(error) => return Ok(self.unreadable(location, parent, &error.to_string())),
        };
        if !self.shown.insert(id) {
            return Ok(self.link(location));
        }
        self.catalog.dirs.add(id, stat);
        if self.depth == DEPTH_MAX {
            return Ok(self.unreadable(location, parent, "folders are nested too deeply"));
        }
        entries.retain(|entry| !entry.name.as_bytes().starts_with(b"."));
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        self.seen += entries.len();
        if self.seen > self.limit {
            return Err(TooMany);
        }
        if entries.iter().any(|entry| entry.name == dataset::MANIFEST) {
            entries.iter().for_each(|entry| self.add_bytes(entry));
            let manifest = location.join(dataset::MANIFEST);
            let mut files = assemble::known_files(&manifest).others;
            files.retain(source::exists);
            files.push(manifest.clone());
            self.catalog.dirs.add_paths(location, &files);
            files.pop();
            self.catalog.reads.extend(files);
            return Ok(self.model(manifest, id.0, parent));
        }
        let number = self.folder(location, parent, stat, id.0);
        self.depth += 1;
        let listed = self.entries(location, number, &entries);
        self.depth -= 1;
        self.fill(number, listed?);
        Ok(FolderItem::Folder(number))
    }

    /// Scans the directory behind a symlink and returns its item. A symlink to too many files is not followed.
    fn linked_directory(&mut self, location: &Location, parent: FolderId) -> Result<FolderItem, TooMany> {
        let before = self.catalog.reads.len();
        let dir = location.parent();
        self.catalog.dirs.add_paths(&dir, [location]);
        let item = self.follow(location, parent)?;
        if let FolderItem::Folder(folder) = item {
            // In the mount, the folder does not lie below the directories on the path of the link, so it also gets
            // their restrictions.
            let traversal = self.catalog.dirs.base(&dir).and_then(|mut base| base.traverse(location));
            let needed = traversal.map_or(Some(NOBODY), |traversal| traversal.stat);
            let folder = &mut self.catalog.folders[folder.index()];
            folder.stat = needed.map_or(folder.stat, |needed| folder.stat.and(needed));
        }
        if matches!(item, FolderItem::Link(_) | FolderItem::Unreadable(_)) {
            self.catalog.reads.truncate(before);
        }
        Ok(item)
    }

    fn follow(&mut self, location: &Location, parent: FolderId) -> Result<FolderItem, TooMany> {
        if self.limit < ENTRIES_MAX {
            return self.directory(location, parent);
        }
        let Catalog { folders, models, links, unreadable, bytes, .. } = &self.catalog;
        let before = (folders.len(), models.len(), links.len(), unreadable.len(), *bytes, self.seen, self.depth);
        let (shown, claimed, copies) = (self.shown.len(), self.claimed.len(), self.catalog.copies.len());
        self.limit = self.seen + BEHIND_LINK_MAX;
        let item = self.directory(location, parent);
        self.limit = ENTRIES_MAX;
        item.or_else(|TooMany| {
            let catalog = &mut self.catalog;
            catalog.folders.truncate(before.0);
            catalog.models.truncate(before.1);
            catalog.links.truncate(before.2);
            catalog.copies.truncate(copies);
            catalog.unreadable.truncate(before.3);
            (catalog.bytes, self.seen, self.depth) = (before.4, before.5, before.6);
            // The directories there may be reached by another path.
            self.shown.truncate(shown);
            self.claimed.truncate(claimed);
            Ok(self.unreadable(location, parent, &format!("a link to more than {BEHIND_LINK_MAX} files")))
        })
    }

    fn entries(
        &mut self,
        dir: &Location,
        folder: FolderId,
        entries: &[ListedEntry],
    ) -> Result<Vec<NamedItem>, TooMany> {
        let later_splits = later_splits(entries);
        // The same model as safetensors is preferred, so that a directory with both is one model. `entries` is sorted.
        let is_there = |name: &OsString| entries.binary_search_by(|entry| entry.name.cmp(name)).is_ok();
        let is_copy = |entry: &ListedEntry| preferred(&entry.name).is_some_and(|names| names.iter().any(is_there));
        // Arrays beside a model belong to it, such as a mean or a vocabulary.
        let is_main = |entry: &ListedEntry| {
            entry.kind == ListedKind::File && is_model(&entry.name) && !is_array(&entry.name) && !is_copy(entry)
        };
        let has_main = entries.iter().any(is_main);
        let is_second = |entry: &ListedEntry| is_copy(entry) || has_main && is_array(&entry.name);
        let copies = entries.iter().filter(|entry| entry.kind == ListedKind::File && is_model(&entry.name));
        let copies: Vec<Location> = copies.filter(|entry| is_copy(entry)).map(|entry| dir.join(&entry.name)).collect();
        let shards: HashSet<Location> = copies.iter().flat_map(|copy| assemble::known_files(copy).others).collect();
        self.catalog.copies.extend(copies.into_iter().filter(|copy| !shards.contains(copy)));
        for (at, entry) in entries.iter().enumerate() {
            if later_splits.contains(&at) {
                self.claimed.insert(dir.join(&entry.name));
                self.catalog.reads.push(dir.join(&entry.name));
            }
            if index::index_stem(&entry.name).is_none() || is_second(entry) {
                continue;
            }
            // An index may name ten thousand files that do not exist. It claims no files outside of its directory. An
            // index that cannot be read is a broken model, and claims no files.
            let mut files = assemble::known_files(&dir.join(&entry.name)).others;
            files.retain(source::exists);
            // Their directories may be hidden, and are not scanned then.
            self.catalog.dirs.add_paths(dir, &files);
            for file in &files {
                self.claimed.insert(file.clone());
            }
            self.catalog.reads.extend(files);
        }
        let mut names = FolderNames::new(entries, &later_splits);
        let mut listed = Vec::new();
        let is_store = ollama::is_store(entries);
        // Symlinks come last, so that their targets are shown at their real paths.
        let (links, real): (Vec<&ListedEntry>, Vec<&ListedEntry>) = entries.iter().partition(|entry| entry.is_link);
        for entry in real.into_iter().chain(links) {
            if is_store && (entry.name == ollama::MANIFESTS || entry.name == ollama::BLOBS) {
                continue;
            }
            let (location, is_dir) = (dir.join(&entry.name), entry.kind == ListedKind::Dir);
            if format::format_stem(&entry.name).is_some() && !is_dir && !is_second(entry) {
                self.add_bytes(entry);
            }
            let is_claimed = self.claimed.contains(&location);
            let is_model = is_model(&entry.name) && !is_second(entry);
            if entry.is_link && !is_dir && (is_model || is_claimed) {
                self.catalog.dirs.add_paths(dir, [&location]);
            }
            let file = entry.name.clone();
            let (name, item) = if is_dir {
                let item = match entry.is_link {
                    true => self.linked_directory(&location, folder)?,
                    false => self.directory(&location, folder)?,
                };
                (names.shown(file), item)
            } else if is_claimed {
                continue;
            } else if is_model {
                (names.of_model(file), self.model(location, entry.device, folder))
            } else {
                (names.shown(file), self.link(&location))
            };
            let error = match item {
                FolderItem::Model(_) | FolderItem::Unreadable(_) => names.of_error(&name),
                FolderItem::Folder(_) | FolderItem::Link(_) => OsString::new(),
            };
            listed.push(NamedItem { name, error, item });
        }
        if is_store {
            listed.extend(self.store(dir, folder, &mut names)?);
        }
        if listed.iter().any(|named| matches!(named.item, FolderItem::Model(_))) {
            // Opening a quantized model reads them.
            let configs = entries.iter().filter(|entry| recognise::configs().any(|config| entry.name == config));
            let configs: Vec<Location> = configs.map(|entry| dir.join(&entry.name)).collect();
            self.catalog.dirs.add_paths(dir, &configs);
            self.catalog.reads.extend(configs);
        }
        Ok(listed)
    }

    /// The models of an Ollama store, as entries of the folder that shows the store.
    fn store(
        &mut self,
        store: &Location,
        folder: FolderId,
        names: &mut FolderNames,
    ) -> Result<Vec<NamedItem>, TooMany> {
        let (mut found, mut listed, mut ahead) = (Vec::new(), Vec::new(), vec![Vec::new()]);
        while let Some(parts) = ahead.pop() {
            let dir = parts.iter().fold(store.join(ollama::MANIFESTS), |dir: Location, part: &OsString| dir.join(part));
            let source::DirListing { id, stat, entries } = match source::list_dir(&dir) {
                Ok(listing) => listing,
                Err(error) => {
                    let reason = match error {
                        source::Error::Io { error, .. } => source::strerror(&error),
                        error => error.to_string(),
                    };
                    let name = names.free(dir.file_name());
                    let error = names.of_error(&name);
                    listed.push(NamedItem { name, error, item: self.unreadable(&dir, folder, &reason) });
                    continue;
                }
            };
            self.catalog.dirs.add(id, stat);
            self.count(entries.len())?;
            for entry in entries.into_iter().filter(|entry| !entry.name.as_bytes().starts_with(b".")) {
                let is_dir = entry.kind == ListedKind::Dir;
                let parts: Vec<OsString> = parts.iter().cloned().chain([entry.name]).collect();
                match <[OsString; ollama::PARTS]>::try_from(parts) {
                    Ok(parts) if !is_dir => found.push(OllamaManifest::new(store, parts)),
                    Err(parts) if is_dir => ahead.push(parts),
                    // Ollama has no other files there.
                    Ok(_) | Err(_) => {}
                }
            }
        }
        listed.extend(self.manifests(found, folder, names)?);
        Ok(listed)
    }

    /// Counts entries that were found.
    fn count(&mut self, entries: usize) -> Result<(), TooMany> {
        self.seen += entries;
        if self.seen > self.limit { Err(TooMany) } else { Ok(()) }
    }

    /// The models of manifests, as entries of a folder.
    fn manifests(
        &mut self,
        found: Vec<OllamaManifest>,
        folder: FolderId,
        names: &mut FolderNames,
    ) -> Result<Vec<NamedItem>, TooMany> {
        let mut is_long = vec![false; found.len()];
        let path = |at: usize, is_long: &[bool]| match is_long[at] {
            true => found[at].long_path(),
            false => found[at].short_path(),
        };
        // If a path leads through another model, both get their long paths, which have the same length.
        loop {
            let all: HashMap<&[OsString], usize> = (0..found.len()).map(|at| (path(at, &is_long), at)).collect();
            let through = |at: usize| {
                let path = path(at, &is_long);
                (1..path.len()).filter_map(|len| all.get(&path[..len]).copied()).chain([at]).collect::<Vec<_>>()
            };
            let clashes = (0..found.len()).map(through).filter(|clash| clash.len() > 1).flatten();
            let clashes: Vec<usize> = clashes.filter(|at| !is_long[*at]).collect();
            if clashes.is_empty() {
                break;
            }
            clashes.into_iter().for_each(|at| is_long[at] = true);
        }
        let mut sorted: Vec<(&[OsString], &OllamaManifest)> =
            found.iter().enumerate().map(|(at, manifest)| (path(at, &is_long), manifest)).collect();
        sorted.sort_by(|a, b| a.0.cmp(b.0));
        self.arrange(&sorted, 0, folder, names)
    }

    /// The entries of a folder that shows the paths of these manifests from the component at `depth` on.
    fn arrange(
        &mut self,
        found: &[(&[OsString], &OllamaManifest)],
        depth: usize,
        folder: FolderId,
        names: &mut FolderNames,
    ) -> Result<Vec<NamedItem>, TooMany> {
        let mut listed = Vec::new();
        for group in found.chunk_by(|a, b| a.0[depth] == b.0[depth]) {
            let (path, manifest) = group[0];
            let name = names.free(&path[depth]);
            let item = if path.len() == depth + 1 {
                self.tag(manifest, folder)?
            } else {
                // A folder may show several directories, of models of the same name in two namespaces.
                let dirs = group.iter().map(|(path, manifest)| manifest.ancestor(path.len() - depth - 1));
                let dirs: BTreeSet<Location> = dirs.collect();
                let stats = dirs.iter().map(|dir| self.reached(&manifest.store, dir, None));
                let stat = stats.reduce(SourceStat::and).unwrap_or(NOBODY);
                // The group has at least one manifest.
                let dir = dirs.into_iter().next().unwrap_or_else(|| manifest.location.clone());
                let inner = self.folder(&dir, folder, stat, source::device_at(&dir));
                let entries = self.arrange(group, depth + 1, inner, &mut FolderNames::empty())?;
                self.fill(inner, entries);
                FolderItem::Folder(inner)
            };
            let error = match item {
                FolderItem::Unreadable(_) => names.of_error(&name),
                _ => OsString::new(),
            };
            listed.push(NamedItem { name, error, item });
        }
        Ok(listed)
    }

    /// The permissions of a directory in a store, or `own` if it is given, restricted to users who can search the
    /// directories between the store and `location`.
    fn reached(&mut self, store: &Location, location: &Location, own: Option<SourceStat>) -> SourceStat {
        let dirs = &mut self.catalog.dirs;
        dirs.add_paths(store, [location]);
        let own = own.or_else(|| dirs.base(location).and_then(|base| base.stat()).ok());
        let traversal = dirs.base(store).and_then(|mut base| base.traverse(location));
        match (own, traversal) {
            (Some(own), Ok(traversal)) => traversal.stat.map_or(own, |needed| own.and(needed)),
            (own, _) => own.map_or(NOBODY, |own| own.and(NOBODY)),
        }
    }

    /// The folder with the layers of a manifest.
    fn tag(&mut self, manifest: &OllamaManifest, parent: FolderId) -> Result<FolderItem, TooMany> {
        let OllamaManifest { location, store, .. } = manifest;
        let stat = match source::stat_at(location) {
            Ok(stat) => shown_as_folder(stat),
            Err(error) => return Ok(self.unreadable(location, parent, &source::strerror(&error))),
        };
        let stat = self.reached(store, location, Some(stat));
        let folder = self.folder(location, parent, stat, source::device_at(location));
        self.catalog.reads.push(location.clone());
        let layers = match manifest.read() {
            Ok((layers, _)) => layers,
            Err(error) => {
                self.catalog.unreadable.push(UnreadableDir { message: error.to_string(), folder });
                let item = FolderItem::Unreadable(self.catalog.unreadable.len() - 1);
                self.fill(
                    folder,
                    vec![NamedItem { name: "manifest".into(), error: "manifest.error.txt".into(), item }],
                );
                return Ok(FolderItem::Folder(folder));
            }
        };
        self.count(layers.len())?;
        let (mut names, mut listed) = (FolderNames::empty(), Vec::new());
        for layer in layers {
            let blob = layer.path(store);
            let len = blob.as_ref().and_then(source::len_at);
            let item = match blob {
                blob if layer.is_model => {
                    if let (Some(blob), Some(len)) = (&blob, len) {
                        self.catalog.dirs.add_paths(store, [blob]);
                        self.catalog.reads.push(blob.clone());
                        // Several models may have a layer in common.
                        let is_new = self.claimed.insert(blob.clone());
                        self.catalog.bytes = self.catalog.bytes.saturating_add(if is_new { len } else { 0 });
                    }
                    let device = blob.as_ref().map_or(0, source::device_at);
                    self.catalog.models.push(FoundModel { location: location.join(&layer.name), device, folder });
                    FolderItem::Model(ModelId::new(self.catalog.models.len() - 1))
                }
                Some(blob) if layer.fault(len).is_none() => self.link(&blob),
                _ => {
                    let reason = layer.fault(len).map(|fault| fault.to_string()).unwrap_or_default();
                    self.unreadable(location, folder, &reason)
                }
            };
            let name = names.free(OsStr::new(&layer.name));
            let error = if matches!(item, FolderItem::Link(_)) { OsString::new() } else { names.of_error(&name) };
            listed.push(NamedItem { name, error, item });
        }
        let (name, item) = (names.free("manifest.json".as_ref()), self.link(location));
        listed.push(NamedItem { name, error: OsString::new(), item });
        self.fill(folder, listed);
        Ok(FolderItem::Folder(folder))
    }

    fn link(&mut self, location: &Location) -> FolderItem {
        self.catalog.links.push(location.clone());
        FolderItem::Link(self.catalog.links.len() - 1)
    }

    fn model(&mut self, location: Location, device: u64, folder: FolderId) -> FolderItem {
        self.catalog.reads.push(location.clone());
        self.catalog.models.push(FoundModel { location, device, folder });
        FolderItem::Model(ModelId::new(self.catalog.models.len() - 1))
    }

    fn unreadable(&mut self, location: &Location, folder: FolderId, reason: &str) -> FolderItem {
        self.catalog.unreadable.push(UnreadableDir { message: format!("{location}: {reason}"), folder });
        FolderItem::Unreadable(self.catalog.unreadable.len() - 1)
    }

    /// Adds a file to the size of all files of models.
    fn add_bytes(&mut self, entry: &ListedEntry) {
        self.catalog.bytes = self.catalog.bytes.saturating_add(entry.len);
    }
}

/// The permissions of a folder whose names are the content of a file with this `stat`.
fn shown_as_folder(stat: SourceStat) -> SourceStat {
    let readers = stat.mode & 0o444;
    SourceStat { mode: readers | readers >> 2, ..stat }
}

/// The indices of the splits that are not the first file of their model.
fn later_splits(entries: &[ListedEntry]) -> HashSet<usize> {
    let splits = entries.iter().enumerate().filter(|(_, entry)| entry.kind == ListedKind::File);
    let splits = splits.filter_map(|(at, entry)| Some((at, SplitName::parse(&entry.name)?)));
    let mut models = HashSet::new();
    // Entries are sorted by name. The numbers of the splits of a model have the same number of digits.
    splits.filter(|(_, split)| split.is_in_range() && !models.insert(split.model())).map(|(at, _)| at).collect()
}

/// The names of a folder's entries.
struct FolderNames {
    /// The names of all files, and those that were assigned.
    unused: UsedNames<OsString>,
    /// The stems that several models have.
    repeated: HashSet<OsString>,
}

/// Maximum length of the part of a name that is kept in the name of its error file, in bytes.
const ERROR_STEM_MAX: usize = 230;

impl FolderNames {
    /// For a folder without other entries.
    fn empty() -> Self {
        Self::new(&[], &HashSet::new())
    }

    /// `later_splits` are the indices of entries that get no name.
    fn new(entries: &[ListedEntry], later_splits: &HashSet<usize>) -> Self {
        let mut stems = HashSet::new();
        let stem = |entry: &ListedEntry| stem_of(&entry.name).filter(|_| is_model(&entry.name));
        let named = entries.iter().enumerate().filter(|(at, _)| !later_splits.contains(at)).map(|(_, entry)| entry);
        let repeated = named.filter_map(stem).filter(|stem| !stems.insert(stem.clone())).collect();
        Self { unused: UsedNames::new(entries.iter().map(|entry| entry.name.clone())), repeated }
    }

    /// The name of a model: its stem, or the name of its file if something else has the stem as its name.
    fn of_model(&mut self, file: OsString) -> OsString {
        let free = |stem: &OsString| !self.repeated.contains(stem) && !self.unused.is_taken(stem);
        let name = stem_of(&file).filter(free).unwrap_or(file);
        self.shown(name)
    }

    /// A name that nothing else has, escaped by [`harmless`].
    fn shown(&mut self, name: OsString) -> OsString {
        match harmless(&name) {
            Cow::Borrowed(_) => {
                self.unused.insert(name.clone());
                name
            }
            Cow::Owned(name) => self.free(&name),
        }
    }

    /// As [`FolderNames::shown`], for a name that may be taken.
    fn free(&mut self, name: &OsStr) -> OsString {
        let name = harmless(name).into_owned();
        self.unused.take(|number| {
            let mut name = name.clone();
            if number > 1 {
                name.push(format!("~{number}"));
            }
            name
        })
    }

    fn of_error(&mut self, name: &OsStr) -> OsString {
        let mut end = name.len().min(ERROR_STEM_MAX);
        while name.to_str().is_some_and(|name| !name.is_char_boundary(end)) {
            end -= 1;
        }
        self.unused.take(|number| {
            let ending = if number == 1 { ".error.txt".to_owned() } else { format!(".error{number}.txt") };
            OsString::from_vec([&name.as_bytes()[..end], ending.as_bytes()].concat())
        })
    }
}

fn stem_of(file: &OsStr) -> Option<OsString> {
    model_stem(&Path::new(file).into())
}
