//! Lists the directories below one. What their files are is found out later, in `claims`.
//!
//! Hidden files are left out, as by `ls`. Symlinks are followed.

use crate::model::access::{NOBODY, needed_for};
use crate::model::assemble::ollama::{self, OllamaLayer, OllamaManifest};
use crate::model::assemble::{checkpoint, dataset};
use crate::model::error::Error;
use crate::model::table::DescribingFile;
use crate::source::{self, Directories, FileId, ListedEntry, ListedKind, Location, SourceStat};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::OsStrExt;

const ENTRIES_MAX: usize = 1_000_000;

/// Maximum number of files and folders behind one symlink. A symlink may lead to the root directory.
const BEHIND_LINK_MAX: usize = 100_000;

const DEPTH_MAX: usize = 64;

/// A directory as it was listed, with the directories below it.
pub(super) struct ScannedDir {
    pub location: Location,
    pub id: FileId,
    /// Behind a symlink, restricted to users who can search the directories on its path.
    pub stat: SourceStat,
    /// Sorted by name, without hidden ones.
    pub entries: Vec<ListedEntry>,
    /// The directories among the entries that are shown, by their positions. Those of a dataset are not.
    pub inner: HashMap<usize, ScannedItem>,
    /// The description of a distributed checkpoint, which is hidden.
    pub description: Option<Location>,
    /// The manifests, if the directory is an Ollama store.
    pub store: Option<ScannedStore>,
}

pub(super) enum ScannedItem {
    Dir(Box<ScannedDir>),
    /// A directory that is shown elsewhere.
    Elsewhere,
    /// A directory that cannot be listed, and why.
    Unreadable(String),
}

/// The manifests of an Ollama store.
pub(super) struct ScannedStore {
    pub manifests: Vec<FoundManifest>,
    /// The names of directories of manifests that cannot be listed, and why.
    pub unreadable: Vec<(OsString, String)>,
}

pub(super) struct FoundManifest {
    pub manifest: OllamaManifest,
    pub read: Result<(Vec<OllamaLayer>, DescribingFile), Error>,
}

impl ScannedDir {
    pub fn is_dataset(&self) -> bool {
        self.entries.iter().any(|entry| entry.name == dataset::MANIFEST)
    }

    /// The positions of the entries that are shown. Symlinks come last, so that their targets are shown at their real
    /// paths.
    pub fn shown(&self) -> impl Iterator<Item = usize> + use<> {
        let is_store = ollama::is_store(&self.entries);
        let is_shown = |at: &usize| {
            let name = &self.entries[*at].name;
            !(is_store && (name == ollama::MANIFESTS || name == ollama::BLOBS))
        };
        let (links, real): (Vec<usize>, Vec<usize>) =
            (0..self.entries.len()).filter(is_shown).partition(|at| self.entries[*at].is_link);
        real.into_iter().chain(links)
    }
}

pub(super) struct DirectoryScan {
    /// The directories that were listed or that symlinks lead through.
    pub dirs: Directories,
    /// Number of files and folders.
    seen: usize,
    /// Maximum of `seen`.
    limit: usize,
    /// The directories scanned so far, numbered in this order. A symlink may lead to one of them again.
    shown: HashMap<FileId, usize>,
}

pub(super) struct TooMany;

impl fmt::Display for TooMany {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a directory with more than {ENTRIES_MAX} files below it")
    }
}

impl DirectoryScan {
    pub fn new() -> Self {
        Self { dirs: Directories::default(), seen: 0, limit: ENTRIES_MAX, shown: HashMap::new() }
    }

    pub fn count(&mut self, entries: usize) -> Result<(), TooMany> {
        self.seen += entries;
        if self.seen > self.limit { Err(TooMany) } else { Ok(()) }
    }

    /// Lists the directory at `location`, which lies below `depth` others, and those below it.
    pub fn dir(&mut self, location: &Location, depth: usize, is_link: bool) -> Result<ScannedItem, TooMany> {
        let mut listing = match source::list_dir(location) {
            Ok(listing) => listing,
            Err(error) => return Ok(ScannedItem::Unreadable(listing_fault(location, error))),
        };
        let holder = self.dirs.listed(&location.parent());
        if !is_link && listing.parent.is_some() && holder.is_some() && listing.parent != holder {
            let fault = format!("{location}: replaced while it was listed; mount it again");
            return Ok(ScannedItem::Unreadable(fault));
        }
        let (id, number) = (listing.id, self.shown.len());
        if *self.shown.entry(id).or_insert(number) != number {
            return Ok(ScannedItem::Elsewhere);
        }
        self.dirs.add(location, &listing);
        if depth == DEPTH_MAX {
            return Ok(ScannedItem::Unreadable(format!("{location}: folders are nested too deeply")));
        }
        let (stat, mut entries) = (listing.stat, std::mem::take(&mut listing.entries));
        let description = checkpoint::description_in(&entries).map(|name| location.join(name));
        entries.retain(|entry| !entry.name.as_bytes().starts_with(b"."));
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        self.count(entries.len())?;
        let (location, inner) = (location.clone(), HashMap::new());
        let mut dir = ScannedDir { location, id, stat, entries, inner, description, store: None };
        if !dir.is_dataset() {
            self.descend(&mut dir, depth + 1)?;
        }
        Ok(ScannedItem::Dir(dir.into()))
    }

    fn descend(&mut self, dir: &mut ScannedDir, depth: usize) -> Result<(), TooMany> {
        for at in dir.shown() {
            let ListedEntry { name, kind, is_link, .. } = &dir.entries[at];
            let location = match kind {
                ListedKind::Dir => dir.location.join(name),
                ListedKind::File => continue,
            };
            let item = if *is_link { self.link(&location, depth)? } else { self.dir(&location, depth, false)? };
            dir.inner.insert(at, item);
        }
        if ollama::is_store(&dir.entries) {
            dir.store = Some(self.store(&dir.location)?);
        }
        Ok(())
    }

    /// Finds and reads the manifests of the store at a location.
    fn store(&mut self, store: &Location) -> Result<ScannedStore, TooMany> {
        let (mut found, mut unreadable, mut ahead) = (Vec::new(), Vec::new(), vec![Vec::new()]);
        while let Some(parts) = ahead.pop() {
            let dir = parts.iter().fold(store.join(ollama::MANIFESTS), |dir: Location, part: &OsString| dir.join(part));
            let mut listing = match source::list_dir(&dir) {
                Ok(listing) => listing,
                Err(error) => {
                    unreadable.push((dir.file_name().to_owned(), listing_fault(&dir, error)));
                    continue;
                }
            };
            self.dirs.add(&dir, &listing);
            self.count(listing.entries.len())?;
            listing.entries.retain(|entry| !entry.name.as_bytes().starts_with(b"."));
            for entry in listing.entries {
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
        Ok(ScannedStore { manifests: self.read_manifests(found)?, unreadable })
    }

    pub fn read_manifests(&mut self, found: Vec<OllamaManifest>) -> Result<Vec<FoundManifest>, TooMany> {
        let mut manifests = Vec::new();
        for manifest in found {
            let read = manifest.read();
            self.count(read.as_ref().map_or(0, |(layers, _)| layers.len()))?;
            manifests.push(FoundManifest { manifest, read });
        }
        Ok(manifests)
    }

    /// Lists the directory behind a symlink.
    fn link(&mut self, location: &Location, depth: usize) -> Result<ScannedItem, TooMany> {
        let parent = location.parent();
        self.dirs.add_paths(&parent, [location]);
        let mut item = self.follow(location, depth)?;
        if let ScannedItem::Dir(dir) = &mut item {
            // In the mount, the folder does not lie below the directories on the path of the link, so it also gets
            // their restrictions.
            let needed = needed_for(&self.dirs.base(&parent), location, Some(dir.id)).unwrap_or(Some(NOBODY));
            dir.stat = needed.map_or(dir.stat, |needed| dir.stat.and(needed));
        }
        Ok(item)
    }

    /// As [`DirectoryScan::dir`]. A symlink to too many files is not followed.
    fn follow(&mut self, location: &Location, depth: usize) -> Result<ScannedItem, TooMany> {
        if self.limit < ENTRIES_MAX {
            return self.dir(location, depth, true);
        }
        let (seen, shown) = (self.seen, self.shown.len());
        self.limit = self.seen + BEHIND_LINK_MAX;
        let item = self.dir(location, depth, true);
        self.limit = ENTRIES_MAX;
        item.or_else(|TooMany| {
            self.seen = seen;
            // The directories there may be reached by another path.
            self.shown.retain(|_, number| *number < shown);
            Ok(ScannedItem::Unreadable(format!("{location}: a link to more than {BEHIND_LINK_MAX} files")))
        })
    }
}

fn listing_fault(dir: &Location, error: source::Error) -> String {
    match error {
        source::Error::Io { error, .. } => format!("{dir}: {}", source::strerror(&error)),
        error => format!("{dir}: {error}"),
    }
}
