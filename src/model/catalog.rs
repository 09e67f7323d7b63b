//! A directory of several models: knows which files below it are models and which are not, and opens none of them.
//!
//! Hidden files are left out, as `ls` does. Symlinks are followed. Names are those of the files, unless they would do harm to a
//! terminal.

use super::{Error, MANIFEST, Mode, Model, SAFETENSORS, index, stem};
use crate::name::harmless;
use crate::source::{self, Stat};
use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, Metadata};
use std::hash::Hash;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most files and folders that are looked at.
const ENTRIES_MAX: usize = 1_000_000;

/// Most of them behind one link: it may lead to the root of the system.
const BEHIND_LINK_MAX: usize = 100_000;

/// Most folders inside one another.
const DEPTH_MAX: usize = 64;

/// The models below a directory, and what lies beside them. All is sorted by name and numbered in that order, so that the
/// numbers of an unchanged directory are always the same.
#[derive(Debug)]
pub struct Catalog {
    mode: Mode,
    /// The directory itself first.
    folders: Vec<Folder>,
    models: Vec<Found>,
    links: Vec<PathBuf>,
    unreadable: Vec<String>,
    /// The directory itself, and the links by which models lie elsewhere.
    reads: Vec<PathBuf>,
    /// Size of all files of models, in bytes.
    bytes: u64,
}

/// A directory that has models in it, or might have.
#[derive(Debug)]
pub struct Folder {
    /// The number of the one that holds it; the first one's own.
    pub parent: u32,
    /// What the directory itself says.
    pub stat: Stat,
    /// Sorted by name.
    pub entries: Vec<Entry>,
    /// Places in `entries`, sorted by [`Entry::error`].
    errors: Vec<u32>,
}

impl Folder {
    /// What has that name, and whether it is the name of its error.
    pub fn find(&self, name: &OsStr) -> Option<(Item, bool)> {
        if let Ok(at) = self.entries.binary_search_by(|entry| entry.name[..].cmp(name)) {
            return Some((self.entries[at].item, false));
        }
        let error = |at: &u32| self.entries[*at as usize].error[..].cmp(name);
        let at = self.errors.binary_search_by(error).ok()?;
        Some((self.entries[self.errors[at] as usize].item, true))
    }
}

/// A name in a folder.
#[derive(Debug)]
pub struct Entry {
    /// File name; no two entries have the same, and none has that of an error.
    pub name: OsString,
    /// The name of the file that says what is wrong with it, if something is.
    pub error: OsString,
    /// What has it.
    pub item: Item,
}

/// What a name in a folder leads to, by its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Item {
    /// Another folder.
    Folder(u32),
    /// A model, of which it is not known whether it can be opened.
    Model(u32),
    /// A file that is no model.
    Link(u32),
    /// A directory that cannot be listed.
    Unreadable(u32),
}

/// A model that was found.
#[derive(Debug)]
struct Found {
    /// The file by which it is opened.
    path: PathBuf,
    /// The folder that it lies in.
    folder: u32,
}

impl Catalog {
    /// Looks through the directory at `path`.
    pub fn scan(path: &Path, mode: Mode) -> Result<Self, Error> {
        let place = std::path::absolute(path).map_err(|error| source::Error::Io { path: path.to_owned(), error })?;
        let (folders, models, links, unreadable) = Default::default();
        let catalog = Self { mode, folders, models, links, unreadable, reads: vec![place.clone()], bytes: 0 };
        let (seen, claimed, depth, shown) = Default::default();
        let mut scan = Scan { catalog, seen, limit: ENTRIES_MAX, claimed, depth, shown };
        let error = |found| Err(Error::Directory { path: path.to_owned(), found });
        match scan.directory(&place, 0) {
            Ok(Item::Unreadable(_)) => error(format!("what cannot be listed: {}", scan.catalog.unreadable.join(", "))),
            Ok(_) => Ok(scan.catalog),
            Err(TooMany) => error(format!("more than {ENTRIES_MAX} files below it")),
        }
    }

    /// The folder of that number.
    ///
    /// # Panics
    /// Where there are not so many.
    pub fn folder(&self, number: u32) -> &Folder {
        &self.folders[number as usize]
    }

    /// Number of folders.
    pub fn folders(&self) -> usize {
        self.folders.len()
    }

    /// The file by which each model is opened.
    pub fn models(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.models.iter().map(|found| &*found.path)
    }

    /// Where a mount shows each model, from its root, and the model's number; sorted by where.
    pub fn places(&self) -> BTreeMap<PathBuf, u32> {
        let mut places = BTreeMap::new();
        let mut ahead = vec![(PathBuf::new(), 0)];
        while let Some((path, folder)) = ahead.pop() {
            for entry in self.folders.get(folder as usize).iter().flat_map(|folder| &folder.entries) {
                match entry.item {
                    Item::Folder(inner) => ahead.push((path.join(&entry.name), inner)),
                    Item::Model(model) => drop(places.insert(path.join(&entry.name), model)),
                    Item::Link(_) | Item::Unreadable(_) => {}
                }
            }
        }
        places
    }

    /// The number of the folder that holds a model.
    pub fn home(&self, model: u32) -> u32 {
        self.models[model as usize].folder
    }

    /// Opens a model.
    pub fn open(&self, model: u32) -> Result<Model, Error> {
        Model::open(&self.models[model as usize].path, self.mode)
    }

    /// Where the files are that are no models.
    pub fn links(&self) -> &[PathBuf] {
        &self.links
    }

    /// Where the files of models are: in these directories and below, and behind these links.
    pub fn reads(&self) -> &[PathBuf] {
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
    seen: usize,
    /// How many may be seen.
    limit: usize,
    /// Files that an index names: parts of a model and none themselves.
    claimed: Marks<PathBuf>,
    /// Folders that hold the one that is being looked through.
    depth: usize,
    /// Device and inode number of the directories that were looked through: a link may lead to one of them.
    shown: Marks<(u64, u64)>,
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
    /// Adds a mark; says whether it is new.
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

/// There are more files than may be seen.
struct TooMany;

impl Scan {
    /// What the directory at `path` is; `parent` is the number of the folder that holds it.
    fn directory(&mut self, path: &Path, parent: u32) -> Result<Item, TooMany> {
        let list = || -> io::Result<(Metadata, Vec<DirEntry>)> {
            Ok((std::fs::metadata(path)?, std::fs::read_dir(path)?.collect::<io::Result<_>>()?))
        };
        let (metadata, mut entries) = match list() {
            Ok(listed) => listed,
            Err(error) => return Ok(self.unreadable(path, &source::strerror(&error))),
        };
        if !self.shown.insert((metadata.dev(), metadata.ino())) {
            return Ok(self.link(path));
        }
        if self.depth == DEPTH_MAX {
            return Ok(self.unreadable(path, "too many folders inside one another"));
        }
        entries.retain(|entry| !entry.file_name().as_bytes().starts_with(b"."));
        entries.sort_by_key(DirEntry::file_name);
        self.seen += entries.len();
        if self.seen > self.limit {
            return Err(TooMany);
        }
        if entries.iter().any(|entry| entry.file_name() == MANIFEST) {
            entries.iter().for_each(|entry| self.weigh(&entry.path()));
            self.catalog.reads.extend(entries.iter().filter(|entry| is_link(entry)).map(DirEntry::path));
            return Ok(self.model(path.join(MANIFEST), parent));
        }
        let number = self.catalog.folders.len() as u32;
        let (stat, listed, errors) = (Stat::of(&metadata), Vec::new(), Vec::new());
        self.catalog.folders.push(Folder { parent, stat, entries: listed, errors });
        self.depth += 1;
        let listed = self.entries(path, number, &entries);
        self.depth -= 1;
        let mut listed = listed?;
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        let mut errors: Vec<u32> = (0..listed.len() as u32).collect();
        errors.sort_by(|a, b| listed[*a as usize].error.cmp(&listed[*b as usize].error));
        let folder = &mut self.catalog.folders[number as usize];
        (folder.entries, folder.errors) = (listed, errors);
        Ok(Item::Folder(number))
    }

    /// What the directory is to which a link at `path` leads; one that leads too far is not followed.
    fn linked_directory(&mut self, path: &Path, parent: u32) -> Result<Item, TooMany> {
        let before = self.catalog.reads.len();
        let item = self.follow(path, parent)?;
        match item {
            Item::Folder(_) | Item::Model(_) => self.catalog.reads.push(path.to_owned()),
            Item::Link(_) | Item::Unreadable(_) => self.catalog.reads.truncate(before),
        }
        Ok(item)
    }

    fn follow(&mut self, path: &Path, parent: u32) -> Result<Item, TooMany> {
        if self.limit < ENTRIES_MAX {
            return self.directory(path, parent);
        }
        let Catalog { folders, models, links, unreadable, bytes, .. } = &self.catalog;
        let before = (folders.len(), models.len(), links.len(), unreadable.len(), *bytes, self.seen, self.depth);
        let (shown, claimed) = (self.shown.len(), self.claimed.len());
        self.limit = self.seen + BEHIND_LINK_MAX;
        let item = self.directory(path, parent);
        self.limit = ENTRIES_MAX;
        item.or_else(|TooMany| {
            let catalog = &mut self.catalog;
            catalog.folders.truncate(before.0);
            catalog.models.truncate(before.1);
            catalog.links.truncate(before.2);
            catalog.unreadable.truncate(before.3);
            (catalog.bytes, self.seen, self.depth) = (before.4, before.5, before.6);
            // What lies there may be reached by another way.
            self.shown.truncate(shown);
            self.claimed.truncate(claimed);
            Ok(self.unreadable(path, &format!("a link to more than {BEHIND_LINK_MAX} files")))
        })
    }

    fn entries(&mut self, dir: &Path, folder: u32, entries: &[DirEntry]) -> Result<Vec<Entry>, TooMany> {
        for entry in entries.iter().filter(|entry| index::stem(&entry.file_name()).is_some()) {
            // One that cannot be read is a broken model, and claims nothing.
            let shards = index::shards(&entry.path()).unwrap_or_default();
            // It may name ten thousand that are not there.
            for path in shards.iter().map(|shard| dir.join(shard)).filter(|path| path.symlink_metadata().is_ok()) {
                self.claimed.insert(path);
            }
        }
        let mut names = Names::new(entries);
        let mut listed = Vec::new();
        // Links last: what they lead to is shown where it really is.
        let (links, real): (Vec<&DirEntry>, Vec<&DirEntry>) = entries.iter().partition(|entry| is_link(entry));
        for (entry, is_link) in
            real.into_iter().map(|entry| (entry, false)).chain(links.into_iter().map(|entry| (entry, true)))
        {
            let (path, file) = (entry.path(), entry.file_name());
            let is_dir = path.is_dir();
            let is_file = file.as_bytes().ends_with(SAFETENSORS.as_bytes()) && !is_dir;
            if is_file {
                self.weigh(&path);
            }
            let is_claimed = self.claimed.contains(&path);
            let is_model = is_model(&file);
            if is_link && !is_dir && (is_model || is_claimed) {
                self.catalog.reads.push(path.clone());
            }
            let (name, item) = if is_dir {
                let item = if is_link { self.linked_directory(&path, folder)? } else { self.directory(&path, folder)? };
                (names.shown(file), item)
            } else if is_claimed {
                continue;
            } else if is_model {
                (names.of_model(&path, file), self.model(path, folder))
            } else {
                (names.shown(file), self.link(&path))
            };
            let error = match item {
                Item::Model(_) | Item::Unreadable(_) => names.of_error(&name),
                Item::Folder(_) | Item::Link(_) => OsString::new(),
            };
            listed.push(Entry { name, error, item });
        }
        Ok(listed)
    }

    fn link(&mut self, path: &Path) -> Item {
        self.catalog.links.push(path.to_owned());
        Item::Link(self.catalog.links.len() as u32 - 1)
    }

    fn model(&mut self, path: PathBuf, folder: u32) -> Item {
        self.catalog.models.push(Found { path, folder });
        Item::Model(self.catalog.models.len() as u32 - 1)
    }

    fn unreadable(&mut self, path: &Path, reason: &str) -> Item {
        self.catalog.unreadable.push(format!("{}: {reason}", path.display()));
        Item::Unreadable(self.catalog.unreadable.len() as u32 - 1)
    }

    /// Adds a file of a model to the size of all.
    fn weigh(&mut self, path: &Path) {
        let len = path.metadata().map_or(0, |metadata| metadata.len());
        self.catalog.bytes = self.catalog.bytes.saturating_add(len);
    }
}

fn is_link(entry: &DirEntry) -> bool {
    entry.file_type().is_ok_and(|kind| kind.is_symlink())
}

/// Whether a file of that name is a model, or ought to be.
fn is_model(file: &OsStr) -> bool {
    file.as_bytes().ends_with(SAFETENSORS.as_bytes()) || index::stem(file).is_some()
}

/// The names of a folder as they are given out.
struct Names {
    /// Those of all files, and those that were given.
    taken: HashSet<OsString>,
    /// Stems that two models have.
    twice: HashSet<OsString>,
    /// The last number of names that were taken without one.
    numbers: HashMap<OsString, u32>,
}

/// Longest part of a name that stays in that of its error, in bytes.
const ERROR_STEM_MAX: usize = 230;

impl Names {
    fn new(entries: &[DirEntry]) -> Self {
        let mut stems = HashSet::new();
        let stem = |entry: &DirEntry| stem(&entry.path()).filter(|_| is_model(&entry.file_name()));
        let twice = entries.iter().filter_map(stem).filter(|stem| !stems.insert(stem.clone())).collect();
        let taken = entries.iter().map(DirEntry::file_name).collect();
        Self { taken, twice, numbers: HashMap::new() }
    }

    /// A model is called by its stem, unless something else is; then by its file, as nothing else is.
    fn of_model(&mut self, path: &Path, file: OsString) -> OsString {
        let free = |stem: &OsString| !self.twice.contains(stem) && !self.taken.contains(stem);
        let name = stem(path).filter(free).unwrap_or(file);
        self.shown(name)
    }

    /// The name of a file or stem that nothing else has: its own, unless that would do harm.
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

    /// The first of the names that `name` makes of the numbers from 1 on that nothing has. Now it is taken.
    fn unused(&mut self, name: impl Fn(u32) -> OsString) -> OsString {
        let mut unused = name(1);
        if self.taken.contains(&unused) {
            // Where the search ended last time: there may be a million that begin alike.
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
