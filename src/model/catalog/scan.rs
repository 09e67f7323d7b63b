//! Scans a directory: finds which files below it are models. Does not open the models.
//!
//! Hidden files are left out, as by `ls`. Symlinks are followed.

use super::names::FolderNames;
use super::{Catalog, CatalogFolder, FolderItem, FoundModel, NamedItem};
use crate::format::{self, ParseMode};
use crate::model::access::{NOBODY, needed_for};
use crate::model::assemble::numbered::NumberedName;
use crate::model::assemble::split::SplitName;
use crate::model::assemble::{self, checkpoint, dataset, index, ollama};
use crate::model::error::Error;
use crate::model::ids::{FolderId, ModelId};
use crate::model::linked::is_below;
use crate::model::recognise;
use crate::model::stem::is_model;
use crate::source::{self, Directories, FileId, ListedEntry, ListedKind, Location, SourceStat};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

const ENTRIES_MAX: usize = 1_000_000;

/// Maximum number of files and folders behind one symlink. A symlink may lead to the root directory.
const BEHIND_LINK_MAX: usize = 100_000;

const DEPTH_MAX: usize = 64;

/// Maximum number of files of this machine that are read to find out what they are. Further files are classified by
/// their names.
const READ_MAX: usize = 10_000;

/// As [`READ_MAX`], of files on servers.
const FETCHED_MAX: usize = 64;

impl Catalog {
    /// Scans the directory at `location`. Its models will be opened in `mode`.
    pub fn scan(location: &Location, mode: ParseMode) -> Result<Self, Error> {
        let path = location.path().unwrap_or(Path::new("")).to_owned();
        let absolute = location.absolute().map_err(|error| source::Error::Io { path, error })?;
        let mut scan = CatalogScan::new(&absolute, mode);
        match scan.directory(&absolute, FolderId::new(0), false) {
            Ok(FolderItem::Unreadable(_)) => {
                let reasons: Vec<&str> = scan.catalog.unreadable().collect();
                Err(Error::of_set(location, format!("a directory that cannot be listed: {}", reasons.join(", "))))
            }
            Ok(_) => Ok(scan.catalog),
            Err(too_many) => Err(Error::of_set(location, too_many)),
        }
    }
}

pub(super) struct CatalogScan {
    pub catalog: Catalog,
    seen: usize,
    /// Maximum of `seen`.
    limit: usize,
    /// Number of folders that hold the current one.
    depth: usize,
    /// Files that an index names, and all but the first split of a model, numbered in the order in which they were
    /// found. They are shards of a model, not models.
    claimed: HashMap<Location, usize>,
    /// Number of files that were read to find out what they are.
    read: usize,
    /// The directories scanned so far, numbered in this order. A symlink may lead to one of them again.
    shown: HashMap<FileId, usize>,
}

pub(super) struct TooMany;

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a directory with more than {ENTRIES_MAX} files below it")
    }
}

impl CatalogScan {
    pub fn new(top: &Location, mode: ParseMode) -> Self {
        let (folders, models, links, copies, unreadable, reads) = Default::default();
        let (top, dirs) = (top.clone(), Directories::default());
        let catalog = Catalog { mode, top, folders, models, links, copies, unreadable, dirs, reads, bytes: 0 };
        let (claimed, shown) = Default::default();
        Self { catalog, seen: 0, limit: ENTRIES_MAX, depth: 0, claimed, read: 0, shown }
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
        self.catalog.models.push(FoundModel { location, device, folder });
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

    pub fn count(&mut self, entries: usize) -> Result<(), TooMany> {
        self.seen += entries;
        if self.seen > self.limit { Err(TooMany) } else { Ok(()) }
    }

    /// Marks a file as a part of a model. Returns whether it was not one before.
    pub fn claim(&mut self, file: Location) -> bool {
        let number = self.claimed.len();
        *self.claimed.entry(file).or_insert(number) == number
    }

    pub fn add_bytes(&mut self, len: u64) {
        self.catalog.bytes = self.catalog.bytes.saturating_add(len);
    }

    /// Scans a directory in the folder `parent` and returns its item.
    fn directory(&mut self, location: &Location, parent: FolderId, is_link: bool) -> Result<FolderItem, TooMany> {
        let mut listing = match source::list_dir(location) {
            Ok(listing) => listing,
            Err(error) => return Ok(self.unreadable(listing_fault(location, error), parent)),
        };
        let (id, stat, mut entries) = (listing.id, listing.stat, std::mem::take(&mut listing.entries));
        let holder = self.catalog.dirs.listed(&location.parent());
        if !is_link && listing.parent.is_some() && holder.is_some() && listing.parent != holder {
            return Ok(self.unreadable(format!("{location}: replaced while it was listed; mount it again"), parent));
        }
        if self.shown.contains_key(&id) {
            return Ok(self.link(location));
        }
        self.shown.insert(id, self.shown.len());
        self.catalog.dirs.add(location, &listing);
        if self.depth == DEPTH_MAX {
            return Ok(self.unreadable(format!("{location}: folders are nested too deeply"), parent));
        }
        let description = checkpoint::description_in(&entries).map(|name| location.join(name));
        entries.retain(|entry| !entry.name.as_bytes().starts_with(b"."));
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        self.count(entries.len())?;
        if entries.iter().any(|entry| entry.name == dataset::MANIFEST) {
            entries.iter().for_each(|entry| self.add_bytes(entry.len));
            let manifest = location.join(dataset::MANIFEST);
            self.read_shards(location, &manifest);
            self.catalog.dirs.add_paths(location, [&manifest]);
            self.catalog.reads.push(manifest.clone());
            return Ok(self.model(manifest, id.0, parent));
        }
        let number = self.folder(location, parent, stat, id.0);
        self.depth += 1;
        let listed = self.entries(location, number, &entries, description.as_ref());
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
        match item {
            FolderItem::Folder(folder) => {
                // In the mount, the folder does not lie below the directories on the path of the link, so it also gets
                // their restrictions.
                let dirs = &self.catalog.dirs;
                let needed = needed_for(&dirs.base(&dir), location, dirs.listed(location)).unwrap_or(Some(NOBODY));
                let folder = &mut self.catalog.folders[folder.index()];
                folder.stat = needed.map_or(folder.stat, |needed| folder.stat.and(needed));
            }
            FolderItem::Model(_) => {}
            FolderItem::Link(_) | FolderItem::Unreadable(_) => self.catalog.reads.truncate(before),
        }
        Ok(item)
    }

    fn follow(&mut self, location: &Location, parent: FolderId) -> Result<FolderItem, TooMany> {
        if self.limit < ENTRIES_MAX {
            return self.directory(location, parent, true);
        }
        let Catalog { folders, models, links, copies, unreadable, bytes, .. } = &self.catalog;
        let before = (folders.len(), models.len(), links.len(), copies.len(), unreadable.len());
        let (bytes, seen, depth) = (*bytes, self.seen, self.depth);
        let (shown, claimed) = (self.shown.len(), self.claimed.len());
        self.limit = self.seen + BEHIND_LINK_MAX;
        let item = self.directory(location, parent, true);
        self.limit = ENTRIES_MAX;
        item.or_else(|TooMany| {
            let catalog = &mut self.catalog;
            catalog.folders.truncate(before.0);
            catalog.models.truncate(before.1);
            catalog.links.truncate(before.2);
            catalog.copies.truncate(before.3);
            catalog.unreadable.truncate(before.4);
            (catalog.bytes, self.seen, self.depth) = (bytes, seen, depth);
            // The directories there may be reached by another path.
            self.shown.retain(|_, number| *number < shown);
            self.claimed.retain(|_, number| *number < claimed);
            Ok(self.unreadable(format!("{location}: a link to more than {BEHIND_LINK_MAX} files"), parent))
        })
    }

    /// The items of the folder that shows the directory at `dir` with these entries, which are sorted. `checkpoint` is
    /// the description of a distributed checkpoint there.
    fn entries(
        &mut self,
        dir: &Location,
        folder: FolderId,
        entries: &[ListedEntry],
        checkpoint: Option<&Location>,
    ) -> Result<Vec<NamedItem>, TooMany> {
        let listing = ModelListing::new(entries, self.plain_files(dir, entries), self.json_indices(dir, entries));
        let numbered = self.claim_shards(dir, &listing);
        if let Some(description) = checkpoint {
            self.read_shards(dir, description).into_iter().for_each(|part| _ = self.claim(part));
            self.claim(description.clone());
        }
        let mut names = FolderNames::new(entries, |entry| listing.is_model(entry) && !listing.is_later_split(entry));
        let mut listed = Vec::new();
        let is_store = ollama::is_store(entries);
        // Symlinks come last, so that their targets are shown at their real paths.
        let (links, real): (Vec<&ListedEntry>, Vec<&ListedEntry>) = entries.iter().partition(|entry| entry.is_link);
        for entry in real.into_iter().chain(links) {
            if is_store && (entry.name == ollama::MANIFESTS || entry.name == ollama::BLOBS) {
                continue;
            }
            let (location, is_dir) = (dir.join(&entry.name), entry.kind == ListedKind::Dir);
            let is_second = listing.is_second(entry) || checkpoint.is_some() && checkpoint::is_supplement(&entry.name);
            let is_claimed = self.claimed.contains_key(&location);
            if (is_claimed || format::format_stem(&entry.name).is_some()) && !is_dir && !is_second {
                self.add_bytes(entry.len);
            }
            let is_model = listing.is_model(entry) && !is_second;
            if entry.is_link && !is_dir && (is_model || is_claimed) {
                self.catalog.dirs.add_paths(dir, [&location]);
            }
            let file = entry.name.clone();
            let (name, item) = if is_dir {
                let item = match entry.is_link {
                    true => self.linked_directory(&location, folder)?,
                    false => self.directory(&location, folder, false)?,
                };
                (names.of_file(file), item)
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
        if let Some(description) = checkpoint.filter(|description| !has_models || checkpoint::is_whole(description)) {
            self.catalog.dirs.add_paths(dir, [description]);
            self.catalog.reads.push(description.clone());
            let item = self.model(description.clone(), source::device_at(description), folder);
            let name = names.free("model".as_ref());
            listed.push(names.item(name, item));
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

    /// The files that have only the suffix of a model, by their indices. The first bytes of files are read whose suffix
    /// many programs use.
    fn plain_files(&mut self, dir: &Location, entries: &[ListedEntry]) -> HashSet<usize> {
        let is_shared = |entry: &ListedEntry| {
            entry.kind == ListedKind::File
                && format::format_stem(&entry.name).is_some()
                && format::is_shared_suffix(&entry.name)
                && NumberedName::parse(&entry.name).is_none()
        };
        let shared = entries.iter().enumerate().filter(|(_, entry)| is_shared(entry));
        shared
            .filter(|(_, entry)| self.may_read(dir, entry) && is_plain(&dir.join(&entry.name)))
            .map(|(at, _)| at)
            .collect()
    }

    /// The JSON files whose names are not those of indices and that have a `weight_map`, by their positions. Only those
    /// beside models are read, and on servers only those whose names suggest it.
    fn json_indices(&mut self, dir: &Location, entries: &[ListedEntry]) -> HashSet<usize> {
        if !entries.iter().any(|entry| entry.kind == ListedKind::File && format::format_stem(&entry.name).is_some()) {
            return HashSet::new();
        }
        let is_remote = dir.path().is_none();
        let is_json = |entry: &ListedEntry| {
            entry.kind == ListedKind::File
                && index::index_stem(&entry.name).is_none()
                && index::json_stem(&entry.name).is_some()
                && (!is_remote || entry.name.to_string_lossy().to_ascii_lowercase().ends_with(".index.json"))
        };
        let json = entries.iter().enumerate().filter(|(_, entry)| is_json(entry));
        json.filter(|(_, entry)| self.may_read(dir, entry) && index::has_weight_map(&dir.join(&entry.name)))
            .map(|(at, _)| at)
            .collect()
    }

    /// Whether one more file of a directory may be read to find out what it is. What a link out of the directory leads
    /// to may be private, and the listing would tell something about it.
    fn may_read(&mut self, dir: &Location, entry: &ListedEntry) -> bool {
        if entry.is_link && !is_below(&dir.join(&entry.name), &self.catalog.top) {
            return false;
        }
        let most = if dir.path().is_some() { READ_MAX } else { FETCHED_MAX };
        self.read += 1;
        self.read <= most
    }

    /// Claims the shards of the models in a directory, and lists the files that are there in another format too.
    /// Returns the models whose shards no index names.
    fn claim_shards(&mut self, dir: &Location, listing: &ModelListing) -> Vec<NumberedShards> {
        let copies: Vec<Location> = listing.copies().map(|entry| dir.join(&entry.name)).collect();
        let shards: HashSet<Location> = copies.iter().flat_map(|copy| assemble::known_files(copy).others).collect();
        self.catalog.copies.extend(copies.into_iter().filter(|copy| !shards.contains(copy)));
        for (at, entry) in listing.entries.iter().enumerate() {
            if listing.later_splits.contains(&at) {
                let split = dir.join(&entry.name);
                self.claim(split.clone());
                self.catalog.reads.push(split);
            }
            // An index claims no files outside of its directory. A damaged one is a broken model, and claims no files.
            if listing.is_index(at) && !listing.is_second(entry) {
                let main = dir.join(&entry.name);
                let mut shards = self.read_shards(dir, &main);
                if shards.is_empty() && index::is_unreadable(&main) {
                    let usual = listing.entries.iter().filter(|file| index::is_usual_shard(&entry.name, &file.name));
                    shards.extend(usual.map(|file| dir.join(&file.name)));
                    self.catalog.reads.extend(shards.iter().cloned());
                }
                shards.into_iter().for_each(|shard| _ = self.claim(shard));
            }
        }
        self.claim_numbered(dir, listing)
    }

    /// Claims the shards that no index names and that have numbers in their names.
    fn claim_numbered(&mut self, dir: &Location, listing: &ModelListing) -> Vec<NumberedShards> {
        let mut found: BTreeMap<OsString, Vec<&ListedEntry>> = BTreeMap::new();
        for entry in listing.models().filter(|entry| !listing.is_second(entry)) {
            if let Some(pattern) = assemble::pattern_of(&entry.name) {
                found.entry(pattern).or_default().push(entry);
            }
        }
        let mut numbered = Vec::new();
        for (pattern, entries) in found {
            let shards: Vec<Location> = entries.iter().map(|entry| dir.join(&entry.name)).collect();
            // If an index names some of them, the others are models of their own.
            if !shards.iter().any(|shard| self.claimed.contains_key(shard)) {
                self.catalog.dirs.add_paths(dir, &shards);
                self.catalog.reads.extend(shards.iter().cloned());
                shards.into_iter().for_each(|shard| _ = self.claim(shard));
                numbered.push(NumberedShards { pattern, device: entries.first().map_or(0, |entry| entry.device) });
            }
        }
        numbered
    }

    /// Adds the shards that the index or manifest at `main` names to the files that may be read, and returns them.
    fn read_shards(&mut self, dir: &Location, main: &Location) -> Vec<Location> {
        let mut shards = assemble::known_files(main).others;
        // An index may name ten thousand files that do not exist.
        shards.retain(source::exists);
        // Their directories may be hidden, and are not scanned then.
        self.catalog.dirs.add_paths(dir, &shards);
        self.catalog.reads.extend(shards.iter().cloned());
        shards
    }
}

pub(super) fn listing_fault(dir: &Location, error: source::Error) -> String {
    match error {
        source::Error::Io { error, .. } => format!("{dir}: {}", source::strerror(&error)),
        error => format!("{dir}: {error}"),
    }
}

/// Whether a file that has the suffix of a model is none.
fn is_plain(location: &Location) -> bool {
    let Ok(source) = source::open_local(location) else { return false };
    let mut prefix = vec![0; source.len().min(format::SNIFFED_PREFIX) as usize];
    source.read_exact_at(&mut prefix, 0).is_ok() && !format::may_be_model(&prefix)
}

/// A model whose shards no index names.
struct NumberedShards {
    /// The file name of its location.
    pattern: OsString,
    /// The number of the device or file system of its first shard.
    device: u64,
}

/// The entries of a directory, and which of them are parts of other models.
struct ModelListing<'e> {
    /// Sorted by name.
    entries: &'e [ListedEntry],
    /// The indices of the splits that are not the first file of their model.
    later_splits: HashSet<usize>,
    /// The indices of the files that have only the suffix of a model.
    plain: HashSet<usize>,
    /// The positions of the indices that are recognised by their content only.
    json: HashSet<usize>,
    /// Whether there are other models than arrays and copies.
    has_main: bool,
}

impl<'e> ModelListing<'e> {
    fn new(entries: &'e [ListedEntry], plain: HashSet<usize>, json: HashSet<usize>) -> Self {
        let splits = entries.iter().enumerate().filter(|(_, entry)| entry.kind == ListedKind::File);
        let splits = splits.filter_map(|(at, entry)| Some((at, SplitName::parse(&entry.name)?)));
        let mut models = HashSet::new();
        // Entries are sorted by name. The numbers of the splits of a model have the same number of digits.
        let later = splits.filter(|(_, split)| split.is_in_range() && !models.insert(split.model()));
        let later_splits = later.map(|(at, _)| at).collect();
        let listing = Self { entries, later_splits, plain, json, has_main: false };
        let has_main = listing.models().any(|entry| !format::is_secondary(&entry.name) && !listing.is_copy(entry));
        Self { has_main, ..listing }
    }

    fn position(&self, entry: &ListedEntry) -> Option<usize> {
        self.entries.binary_search_by(|other| other.name.cmp(&entry.name)).ok()
    }

    /// Whether a file is a model, or should be one.
    fn is_model(&self, entry: &ListedEntry) -> bool {
        let has = |files: &HashSet<usize>| self.position(entry).is_some_and(|at| files.contains(&at));
        is_model(&entry.name) && !has(&self.plain) || has(&self.json)
    }

    fn is_index(&self, at: usize) -> bool {
        index::index_stem(&self.entries[at].name).is_some() || self.json.contains(&at)
    }

    fn is_later_split(&self, entry: &ListedEntry) -> bool {
        self.position(entry).is_some_and(|at| self.later_splits.contains(&at))
    }

    fn models(&self) -> impl Iterator<Item = &'e ListedEntry> {
        self.entries.iter().filter(|entry| entry.kind == ListedKind::File && self.is_model(entry))
    }

    fn copies(&self) -> impl Iterator<Item = &'e ListedEntry> {
        self.models().filter(|entry| self.is_copy(entry))
    }

    /// Whether the same model is there as safetensors, which is preferred, so that a directory with both is one model.
    fn is_copy(&self, entry: &ListedEntry) -> bool {
        let preferred = format::preferred_names(&entry.name);
        preferred.into_iter().flatten().any(|name| self.entries.binary_search_by(|entry| entry.name.cmp(&name)).is_ok())
    }

    /// Whether a file is a copy, or an array beside a model, which belongs to it, such as a mean or a vocabulary.
    fn is_second(&self, entry: &ListedEntry) -> bool {
        self.is_copy(entry) || self.has_main && format::is_secondary(&entry.name)
    }
}
