//! A directory of several models: knows which files below it are models and which are not, and opens none of them.
//!
//! Hidden files are left out, as `ls` does. Symlinks are followed.

use super::{Error, MANIFEST, Mode, Model, SAFETENSORS, index, stem};
use crate::source::{self, Stat};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fs::{DirEntry, Metadata};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Most files and folders that are looked at.
const ENTRIES_MAX: usize = 1_000_000;

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
}

/// A name in a folder.
#[derive(Debug)]
pub struct Entry {
    /// File name.
    pub name: OsString,
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
        let (folders, models, links, unreadable) = Default::default();
        let catalog = Self { mode, folders, models, links, unreadable, bytes: 0 };
        let (seen, claimed, ancestors) = Default::default();
        let mut scan = Scan { catalog, root: path, seen, claimed, ancestors };
        let place = std::path::absolute(path).map_err(|error| source::Error::Io { path: path.to_owned(), error })?;
        if let Item::Unreadable(_) = scan.directory(&place, 0)? {
            let found = format!("what cannot be listed: {}", scan.catalog.unreadable.join(", "));
            return Err(Error::Directory { path: path.to_owned(), found });
        }
        Ok(scan.catalog)
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
struct Scan<'p> {
    catalog: Catalog,
    /// As it was named, for messages.
    root: &'p Path,
    seen: usize,
    /// Files that an index names: parts of a model and none themselves.
    claimed: HashSet<PathBuf>,
    /// Device and inode number of the directories that are being looked through: a symlink may lead back to one.
    ancestors: Vec<(u64, u64)>,
}

impl Scan<'_> {
    /// What the directory at `path` is; `parent` is the number of the folder that holds it.
    fn directory(&mut self, path: &Path, parent: u32) -> Result<Item, Error> {
        let list = || -> io::Result<(Metadata, Vec<DirEntry>)> {
            Ok((std::fs::metadata(path)?, std::fs::read_dir(path)?.collect::<io::Result<_>>()?))
        };
        let (metadata, mut entries) = match list() {
            Ok(listed) => listed,
            Err(error) => return Ok(self.unreadable(path, &source::strerror(&error))),
        };
        let id = (metadata.dev(), metadata.ino());
        if self.ancestors.contains(&id) {
            return Ok(self.unreadable(path, "a symlink that leads back to where it is"));
        }
        if self.ancestors.len() == DEPTH_MAX {
            return Ok(self.unreadable(path, "too many folders inside one another"));
        }
        entries.retain(|entry| !entry.file_name().as_bytes().starts_with(b"."));
        entries.sort_by_key(DirEntry::file_name);
        self.seen += entries.len();
        if self.seen > ENTRIES_MAX {
            let found = format!("more than {ENTRIES_MAX} files below it");
            return Err(Error::Directory { path: self.root.to_owned(), found });
        }
        if entries.iter().any(|entry| entry.file_name() == MANIFEST) {
            entries.iter().for_each(|entry| self.weigh(&entry.path()));
            return Ok(self.model(path.join(MANIFEST), parent));
        }
        let number = self.catalog.folders.len() as u32;
        self.catalog.folders.push(Folder { parent, stat: Stat::of(&metadata), entries: Vec::new() });
        self.ancestors.push(id);
        let listed = self.entries(path, number, &entries);
        self.ancestors.pop();
        self.catalog.folders[number as usize].entries = listed?;
        Ok(Item::Folder(number))
    }

    fn entries(&mut self, dir: &Path, folder: u32, entries: &[DirEntry]) -> Result<Vec<Entry>, Error> {
        for entry in entries.iter().filter(|entry| index::stem(&entry.file_name()).is_some()) {
            // One that cannot be read is a broken model, and claims nothing.
            let shards = index::shards(&entry.path()).unwrap_or_default();
            self.claimed.extend(shards.iter().map(|shard| dir.join(shard)));
        }
        let files: HashSet<OsString> = entries.iter().map(DirEntry::file_name).collect();
        let mut stems = HashSet::new();
        let twice: HashSet<OsString> =
            entries.iter().filter_map(|entry| stem(&entry.path())).filter(|stem| !stems.insert(stem.clone())).collect();
        // A model is called by its stem, unless something else is.
        let name = |path: &Path, file: OsString| {
            let error = |stem: &OsStr| error_name(stem);
            let free =
                |stem: &OsString| !twice.contains(stem) && !files.contains(stem) && !files.contains(&error(stem));
            stem(path).filter(free).unwrap_or(file)
        };
        let mut listed = Vec::new();
        for entry in entries {
            let (path, file) = (entry.path(), entry.file_name());
            let is_dir = path.is_dir();
            let is_file = file.as_bytes().ends_with(SAFETENSORS.as_bytes()) && !is_dir;
            if is_file {
                self.weigh(&path);
            }
            let (name, item) = if is_dir {
                match self.directory(&path, folder)? {
                    item @ Item::Unreadable(_) => (error_name(&file), item),
                    item => (file, item),
                }
            } else if self.claimed.contains(&path) {
                continue;
            } else if is_file || index::stem(&file).is_some() {
                (name(&path, file), self.model(path, folder))
            } else {
                self.catalog.links.push(path);
                (file, Item::Link(self.catalog.links.len() as u32 - 1))
            };
            listed.push(Entry { name, item });
        }
        listed.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(listed)
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

/// The name of the file that says why there is nothing by a name.
pub fn error_name(name: &OsStr) -> OsString {
    let mut name = name.to_owned();
    name.push(".error.txt");
    name
}
