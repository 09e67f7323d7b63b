//! A directory of several models: which files below it are models and which are not. Opens none of them.
//!
//! Hidden files are left out, as by `ls`. Symlinks are followed. Entries keep the names of their files, unless a name
//! holds something that a terminal would act on.

use super::error::Error;
use super::ids::{FolderId, ModelId};
use super::stem::{is_model, stem};
use super::{dataset, index};
use crate::format::{self, Mode};
use crate::name::harmless;
use crate::source::{self, Entry, EntryKind, FileId, Location, Stat};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::hash::Hash;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Most files and folders that are looked at.
const ENTRIES_MAX: usize = 1_000_000;

/// Most of them behind one link: it may lead to the root of the system.
const BEHIND_LINK_MAX: usize = 100_000;

/// Most folders inside one another.
const DEPTH_MAX: usize = 64;

/// The models below a directory, and what lies beside them. Everything is sorted by name and numbered in that order, so
/// an unchanged directory always has the same numbers.
#[derive(Debug)]
pub struct Catalog {
    mode: Mode,
    /// The directory itself comes first.
    folders: Vec<Folder>,
    models: Vec<Found>,
    links: Vec<Location>,
    unreadable: Vec<String>,
    /// The directory itself, and the links by which models lie elsewhere.
    reads: Vec<Location>,
    /// Size of all files of models, in bytes.
    bytes: u64,
}

/// A directory that holds models, or may hold some.
#[derive(Debug)]
pub struct Folder {
    /// The folder that holds it; the first folder holds itself.
    pub parent: FolderId,
    /// Owner, permissions and time of the directory.
    pub stat: Stat,
    /// Sorted by name.
    pub entries: Vec<Named>,
    /// Indices of `entries`, sorted by [`Named::error`].
    errors: Vec<usize>,
}

impl Folder {
    /// The item with that name, and whether the name is that of its error file.
    pub fn find(&self, name: &OsStr) -> Option<(Item, bool)> {
        if let Ok(at) = self.entries.binary_search_by(|entry| entry.name[..].cmp(name)) {
            return Some((self.entries[at].item, false));
        }
        let at = self.errors.binary_search_by(|at| self.entries[*at].error[..].cmp(name)).ok()?;
        Some((self.entries[self.errors[at]].item, true))
    }
}

/// An item of a folder and its names.
#[derive(Debug)]
pub struct Named {
    /// File name. No two items have the same, and none has that of an error file.
    pub name: OsString,
    /// The name of the file that says what is wrong with the item, if something is.
    pub error: OsString,
    /// The item.
    pub item: Item,
}

/// What a name in a folder leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// Another folder.
    Folder(FolderId),
    /// A model. Whether it can be opened is not known.
    Model(ModelId),
    /// A file that is no model, by its index in [`Catalog::links`].
    Link(usize),
    /// A directory that cannot be listed, by its index in [`Catalog::unreadable`].
    Unreadable(usize),
}

/// A model that was found.
#[derive(Debug)]
struct Found {
    /// The file to open.
    location: Location,
    /// The folder that holds it.
    folder: FolderId,
}

impl Catalog {
    /// Looks through the directory at `location`. Its models will be opened in `mode`.
    pub fn scan(location: &Location, mode: Mode) -> Result<Self, Error> {
        let io = |error| source::Error::Io { path: location.path().unwrap_or(Path::new("")).to_owned(), error };
        let place = location.absolute().map_err(io)?;
        let (folders, models, links, unreadable) = Default::default();
        let catalog = Self { mode, folders, models, links, unreadable, reads: vec![place.clone()], bytes: 0 };
        let (seen, claimed, depth, shown) = Default::default();
        let mut scan = Scan { catalog, seen, limit: ENTRIES_MAX, claimed, depth, shown };
        let error = |found| Err(Error::Directory { location: location.clone(), found });
        match scan.directory(&place, FolderId::new(0)) {
            Ok(Item::Unreadable(_)) => error(format!("what cannot be listed: {}", scan.catalog.unreadable.join(", "))),
            Ok(_) => Ok(scan.catalog),
            Err(TooMany) => error(format!("more than {ENTRIES_MAX} files below it")),
        }
    }

    /// How the models are opened.
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// A folder, if one has that number. The first folder is the directory itself.
    pub fn folder(&self, folder: FolderId) -> Option<&Folder> {
        self.folders.get(folder.index())
    }

    /// The numbers of the models.
    pub fn models(&self) -> impl ExactSizeIterator<Item = ModelId> + use<> {
        (0..self.models.len()).map(ModelId::new)
    }

    /// The file to open for a model.
    ///
    /// # Panics
    /// If no model has that number.
    pub fn model(&self, model: ModelId) -> &Location {
        &self.models[model.index()].location
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
                    Item::Folder(inner) => ahead.push((path.join(&entry.name), inner)),
                    Item::Model(model) => drop(paths.insert(path.join(&entry.name), model)),
                    Item::Link(_) | Item::Unreadable(_) => {}
                }
            }
        }
        paths
    }

    /// The files that are no models.
    pub fn links(&self) -> &[Location] {
        &self.links
    }

    /// Where the files of models are: directories with everything below them, and links.
    pub fn reads(&self) -> &[Location] {
        &self.reads
    }

    /// Why directories cannot be listed.
    pub fn unreadable(&self) -> &[String] {
        &self.unreadable
    }

    /// Size of all files of models, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// A walk through directories.
struct Scan {
    catalog: Catalog,
    /// The entries that were looked at.
    seen: usize,
    /// How many may be looked at.
    limit: usize,
    /// Files that an index names: they are parts of a model and no models themselves.
    claimed: Marks<Location>,
    /// Number of folders that hold the current one.
    depth: usize,
    /// The directories that were looked through: a link may lead to one of them.
    shown: Marks<FileId>,
}

/// A set that can forget what was added last.
struct Marks<T> {
    all: HashSet<T>,
    order: Vec<T>,
}

impl<T> Default for Marks<T> {
    fn default() -> Self {
        Self { all: HashSet::new(), order: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Marks<T> {
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

/// There are more entries than may be looked at.
struct TooMany;

impl Scan {
    /// The item that a directory is; `parent` holds it.
    fn directory(&mut self, location: &Location, parent: FolderId) -> Result<Item, TooMany> {
        let source::Listing { id, stat, mut entries } = match source::list(location) {
            Ok(listing) => listing,
            Err(source::Error::Io { error, .. }) => {
                return Ok(self.unreadable(location, &source::strerror(&error)));
            }
            Err(error) => return Ok(self.unreadable(location, &error.to_string())),
        };
        if !self.shown.insert(id) {
            return Ok(self.link(location));
        }
        if self.depth == DEPTH_MAX {
            return Ok(self.unreadable(location, "too many folders inside one another"));
        }
        entries.retain(|entry| !entry.name.as_bytes().starts_with(b"."));
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        self.seen += entries.len();
        if self.seen > self.limit {
            return Err(TooMany);
        }
        if entries.iter().any(|entry| entry.name == dataset::MANIFEST) {
            entries.iter().for_each(|entry| self.add_bytes(entry));
            let links = entries.iter().filter(|entry| entry.is_link).map(|entry| location.join(&entry.name));
            self.catalog.reads.extend(links);
            return Ok(self.model(location.join(dataset::MANIFEST), parent));
        }
        let number = FolderId::new(self.catalog.folders.len());
        let (listed, errors) = (Vec::new(), Vec::new());
        self.catalog.folders.push(Folder { parent, stat, entries: listed, errors });
        self.depth += 1;
        let listed = self.entries(location, number, &entries);
        self.depth -= 1;
        let mut listed = listed?;
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        let mut errors: Vec<usize> = (0..listed.len()).collect();
        errors.sort_by(|a, b| listed[*a].error.cmp(&listed[*b].error));
        let folder = &mut self.catalog.folders[number.index()];
        (folder.entries, folder.errors) = (listed, errors);
        Ok(Item::Folder(number))
    }

    /// The item that a link to a directory is. A link that leads too far is not followed.
    fn linked_directory(&mut self, location: &Location, parent: FolderId) -> Result<Item, TooMany> {
        let before = self.catalog.reads.len();
        let item = self.follow(location, parent)?;
        match item {
            Item::Folder(_) | Item::Model(_) => self.catalog.reads.push(location.clone()),
            Item::Link(_) | Item::Unreadable(_) => self.catalog.reads.truncate(before),
        }
        Ok(item)
    }

    fn follow(&mut self, location: &Location, parent: FolderId) -> Result<Item, TooMany> {
        if self.limit < ENTRIES_MAX {
            return self.directory(location, parent);
        }
        let Catalog { folders, models, links, unreadable, bytes, .. } = &self.catalog;
        let before = (folders.len(), models.len(), links.len(), unreadable.len(), *bytes, self.seen, self.depth);
        let (shown, claimed) = (self.shown.len(), self.claimed.len());
        self.limit = self.seen + BEHIND_LINK_MAX;
        let item = self.directory(location, parent);
        self.limit = ENTRIES_MAX;
        item.or_else(|TooMany| {
            let catalog = &mut self.catalog;
            catalog.folders.truncate(before.0);
            catalog.models.truncate(before.1);
            catalog.links.truncate(before.2);
            catalog.unreadable.truncate(before.3);
            (catalog.bytes, self.seen, self.depth) = (before.4, before.5, before.6);
            // What lies there may be reached in another way.
            self.shown.truncate(shown);
            self.claimed.truncate(claimed);
            Ok(self.unreadable(location, &format!("a link to more than {BEHIND_LINK_MAX} files")))
        })
    }

    fn entries(&mut self, dir: &Location, folder: FolderId, entries: &[Entry]) -> Result<Vec<Named>, TooMany> {
        for entry in entries.iter().filter(|entry| index::stem(&entry.name).is_some()) {
            // An index that cannot be read is a broken model, and claims no files.
            let shards = index::shards(&dir.join(&entry.name)).unwrap_or_default();
            // An index may name ten thousand files that do not exist.
            for shard in shards.iter().map(|shard| dir.join(shard)).filter(source::exists) {
                self.claimed.insert(shard);
            }
        }
        let mut names = Names::new(entries);
        let mut listed = Vec::new();
        // Links come last: what they lead to is shown at its real place.
        let (links, real): (Vec<&Entry>, Vec<&Entry>) = entries.iter().partition(|entry| entry.is_link);
        for entry in real.into_iter().chain(links) {
            let (location, is_dir) = (dir.join(&entry.name), entry.kind == EntryKind::Dir);
            if format::stem(&entry.name).is_some() && !is_dir {
                self.add_bytes(entry);
            }
            let is_claimed = self.claimed.contains(&location);
            let is_model = is_model(&entry.name);
            if entry.is_link && !is_dir && (is_model || is_claimed) {
                self.catalog.reads.push(location.clone());
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
                (names.of_model(file), self.model(location, folder))
            } else {
                (names.shown(file), self.link(&location))
            };
            let error = match item {
                Item::Model(_) | Item::Unreadable(_) => names.of_error(&name),
                Item::Folder(_) | Item::Link(_) => OsString::new(),
            };
            listed.push(Named { name, error, item });
        }
        Ok(listed)
    }

    fn link(&mut self, location: &Location) -> Item {
        self.catalog.links.push(location.clone());
        Item::Link(self.catalog.links.len() - 1)
    }

    fn model(&mut self, location: Location, folder: FolderId) -> Item {
        self.catalog.models.push(Found { location, folder });
        Item::Model(ModelId::new(self.catalog.models.len() - 1))
    }

    fn unreadable(&mut self, location: &Location, reason: &str) -> Item {
        self.catalog.unreadable.push(format!("{location}: {reason}"));
        Item::Unreadable(self.catalog.unreadable.len() - 1)
    }

    /// Adds a file to the size of all files of models.
    fn add_bytes(&mut self, entry: &Entry) {
        self.catalog.bytes = self.catalog.bytes.saturating_add(entry.len);
    }
}

/// The names of a folder's entries.
struct Names {
    /// The names of all files, and those that were given out.
    taken: HashSet<OsString>,
    /// The stems that two models have.
    repeated: HashSet<OsString>,
    /// By a name that was taken, the last number that was added to it.
    numbers: HashMap<OsString, u32>,
}

/// Longest part of a name that is kept in the name of its error file, in bytes.
const ERROR_STEM_MAX: usize = 230;

impl Names {
    fn new(entries: &[Entry]) -> Self {
        let mut stems = HashSet::new();
        let stem = |entry: &Entry| stem_of(&entry.name).filter(|_| is_model(&entry.name));
        let repeated = entries.iter().filter_map(stem).filter(|stem| !stems.insert(stem.clone())).collect();
        let taken = entries.iter().map(|entry| entry.name.clone()).collect();
        Self { taken, repeated, numbers: HashMap::new() }
    }

    /// A model has its stem as its name. If something else has that name, it has the name of its file.
    fn of_model(&mut self, file: OsString) -> OsString {
        let free = |stem: &OsString| !self.repeated.contains(stem) && !self.taken.contains(stem);
        let name = stem_of(&file).filter(free).unwrap_or(file);
        self.shown(name)
    }

    /// A name that nothing else has, without anything that a terminal would act on.
    fn shown(&mut self, name: OsString) -> OsString {
        match harmless(&name) {
            Cow::Borrowed(_) => {
                self.taken.insert(name.clone());
                name
            }
            Cow::Owned(name) => self.unused(|number| {
                let mut name = name.clone();
                if number > 1 {
                    name.push(format!("~{number}"));
                }
                name
            }),
        }
    }

    fn of_error(&mut self, name: &OsStr) -> OsString {
        let mut end = name.len().min(ERROR_STEM_MAX);
        while name.to_str().is_some_and(|name| !name.is_char_boundary(end)) {
            end -= 1;
        }
        self.unused(|number| {
            let ending = if number == 1 { ".error.txt".to_owned() } else { format!(".error{number}.txt") };
            OsString::from_vec([&name.as_bytes()[..end], ending.as_bytes()].concat())
        })
    }

    /// The first of the names that `name` makes of the numbers from 1 on that nothing has. It is taken from now on.
    fn unused(&mut self, name: impl Fn(u32) -> OsString) -> OsString {
        let mut unused = name(1);
        if self.taken.contains(&unused) {
            // The search continues where it ended last time: a million names may begin alike.
            let number = self.numbers.entry(unused.clone()).or_insert(1);
            while self.taken.contains(&unused) {
                *number += 1;
                unused = name(*number);
            }
        }
        self.taken.insert(unused.clone());
        unused
    }
}

fn stem_of(file: &OsStr) -> Option<OsString> {
    stem(&Path::new(file).into())
}
