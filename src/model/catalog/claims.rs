//! Finds out which files of a directory are models, and which are parts of one. Does not open the models.

use super::build::CatalogBuilder;
use crate::format::{self, onnx};
use crate::model::assemble::numbered::NumberedName;
use crate::model::assemble::split::SplitName;
use crate::model::assemble::{self, FilePattern, KnownFiles, file, index};
use crate::model::linked::is_below;
use crate::source::{self, ListedEntry, ListedKind, Location};
use std::collections::{BTreeMap, HashSet};
use std::ffi::{OsStr, OsString};

/// Maximum number of files of this machine that are read to find out what they are. Further files are classified by
/// their names.
const READ_MAX: usize = 10_000;

/// As [`READ_MAX`], of files on servers.
const FETCHED_MAX: usize = 64;

/// Maximum number of files that are read to find out whether they have the state of an optimizer.
const STATES_MAX: usize = 16;

impl CatalogBuilder {
    /// Finds out what the files of a directory are whose names do not tell.
    pub fn read_files(&mut self, dir: &Location, entries: &[ListedEntry]) -> ReadFiles {
        let plain = self.plain_files(dir, entries);
        let indices = self.json_indices(dir, entries);
        ReadFiles { plain, indices, states: self.state_files(dir, entries) }
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

    /// The files in the directory of the catalog that have the state of an optimizer, by their positions. Only those
    /// whose names say so are read.
    fn state_files(&mut self, dir: &Location, entries: &[ListedEntry]) -> HashSet<usize> {
        let is_named = |entry: &ListedEntry| entry.kind == ListedKind::File && file::is_of_states(&entry.name);
        let named = entries.iter().enumerate().filter(|(_, entry)| *dir == self.catalog.top && is_named(entry));
        let named: Vec<_> = named.take(STATES_MAX).collect();
        named
            .into_iter()
            .filter(|(_, entry)| self.may_read(dir, entry) && file::has_states(&dir.join(&entry.name)))
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
    pub fn claim_shards(&mut self, dir: &Location, listing: &ModelListing) -> Vec<NumberedShards> {
        let copies: Vec<Location> = listing.copies().map(|entry| dir.join(&entry.name)).collect();
        let shards: HashSet<Location> = copies.iter().flat_map(|copy| assemble::known_files(copy).others).collect();
        self.catalog.copies.extend(copies.into_iter().filter(|copy| !shards.contains(copy)));
        for (at, entry) in listing.entries.iter().enumerate() {
            if listing.later_splits.contains(&at) {
                let split = dir.join(&entry.name);
                self.claimed.insert(split.clone());
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
                self.claimed.extend(shards);
            }
        }
        self.claim_numbered(dir, listing)
    }

    /// Claims the shards that no index names and that have numbers in their names.
    fn claim_numbered(&mut self, dir: &Location, listing: &ModelListing) -> Vec<NumberedShards> {
        let mut found: BTreeMap<OsString, (&FilePattern, Vec<&ListedEntry>)> = BTreeMap::new();
        for entry in listing.models().filter(|entry| !listing.is_second(entry)) {
            if let Some((name, pattern)) = assemble::pattern_of(&entry.name) {
                found.entry(name).or_insert((pattern, Vec::new())).1.push(entry);
            }
        }
        let mut numbered = Vec::new();
        for (name, (pattern, entries)) in found {
            let shards: Vec<Location> = entries.iter().map(|entry| dir.join(&entry.name)).collect();
            let names: Vec<&OsStr> = entries.iter().map(|entry| &entry.name[..]).collect();
            // If an index names some of them, the others are models of their own.
            if pattern.are_model(&names) && !shards.iter().any(|shard| self.claimed.contains(shard)) {
                self.catalog.dirs.add_paths(dir, &shards);
                self.catalog.reads.extend(shards.iter().cloned());
                self.claimed.extend(shards);
                let beside = listing.entries.iter().map(|entry| &entry.name[..]);
                pattern.note_files(&dir.join(&name), &names, beside);
                let device = entries.first().map_or(0, |entry| entry.device);
                numbered.extend(pattern.also.map(|also| NumberedShards { pattern: also.into(), device }));
                numbered.push(NumberedShards { pattern: name, device });
            }
        }
        numbered
    }

    /// Claims the description of a distributed checkpoint, and the files that it names. Returns the name of the folder
    /// that shows the model beside the weights, if it belongs to these.
    pub fn claim_checkpoint(&mut self, dir: &Location, description: &Location) -> Option<&'static str> {
        let KnownFiles { others, set, .. } = assemble::known_files(description);
        let parts = self.read_parts(dir, others);
        self.claimed.extend(parts);
        self.claimed.insert(description.clone());
        // What a link out of the directory leads to may be private.
        set.filter(|_| is_below(description, &self.catalog.top))
    }

    /// Adds the shards that the index or manifest at `main` names to the files that may be read, and returns them.
    pub fn read_shards(&mut self, dir: &Location, main: &Location) -> Vec<Location> {
        self.read_parts(dir, assemble::known_files(main).others)
    }

    /// As [`CatalogBuilder::read_shards`], of the files that were named.
    fn read_parts(&mut self, dir: &Location, mut shards: Vec<Location>) -> Vec<Location> {
        // An index may name ten thousand files that do not exist.
        shards.retain(source::exists);
        // Their directories may be hidden, and are not scanned then.
        self.catalog.dirs.add_paths(dir, &shards);
        self.catalog.reads.extend(shards.iter().cloned());
        shards
    }
}

/// Whether a file that has the suffix of a model is none.
fn is_plain(location: &Location) -> bool {
    let Ok(source) = source::open_local(location) else { return false };
    let mut prefix = vec![0; source.len().min(format::SNIFFED_PREFIX) as usize];
    source.read_exact_at(&mut prefix, 0).is_ok() && !format::may_be_model(&prefix)
}

/// A model whose shards no index names.
pub(super) struct NumberedShards {
    /// The file name of its location.
    pub pattern: OsString,
    /// The number of the device or file system of its first shard.
    pub device: u64,
}

/// The files whose content was read to find out what they are, by their positions.
pub(super) struct ReadFiles {
    /// Those that have only the suffix of a model.
    plain: HashSet<usize>,
    /// The indices that are not called so.
    indices: HashSet<usize>,
    /// The states of optimizers.
    states: HashSet<usize>,
}

/// The entries of a directory, and which of them are parts of other models.
pub(super) struct ModelListing<'e> {
    /// Sorted by name.
    entries: &'e [ListedEntry],
    /// The indices of the splits that are not the first file of their model.
    later_splits: HashSet<usize>,
    read: ReadFiles,
    /// Whether there are other models than arrays, ONNX models and copies, here or above.
    has_main: bool,
}

impl<'e> ModelListing<'e> {
    /// `has_main` is whether there is a model above, to which those here belong that are secondary.
    pub fn new(entries: &'e [ListedEntry], read: ReadFiles, has_main: bool) -> Self {
        let splits = entries.iter().enumerate().filter(|(_, entry)| entry.kind == ListedKind::File);
        let splits = splits.filter_map(|(at, entry)| Some((at, SplitName::parse(&entry.name)?)));
        let mut models = HashSet::new();
        // Entries are sorted by name. The numbers of the splits of a model have the same number of digits.
        let later = splits.filter(|(_, split)| split.is_in_range() && !models.insert(split.model()));
        let later_splits = later.map(|(at, _)| at).collect();
        let listing = Self { entries, later_splits, read, has_main };
        let is_main = |entry: &ListedEntry| {
            !format::is_secondary(&entry.name) && !listing.is_copy(entry) && !listing.has(&listing.read.states, entry)
        };
        let has_main = has_main || listing.models().any(is_main);
        Self { has_main, ..listing }
    }

    fn position(&self, entry: &ListedEntry) -> Option<usize> {
        self.entries.binary_search_by(|other| other.name.cmp(&entry.name)).ok()
    }

    fn has(&self, files: &HashSet<usize>, entry: &ListedEntry) -> bool {
        self.position(entry).is_some_and(|at| files.contains(&at))
    }

    /// Whether a file is a model, or should be one.
    pub fn is_model(&self, entry: &ListedEntry) -> bool {
        let is_named = format::format_stem(&entry.name).is_some() || index::index_stem(&entry.name).is_some();
        let ReadFiles { plain, indices, states } = &self.read;
        is_named && !self.has(plain, entry) || self.has(indices, entry) || self.has(states, entry)
    }

    fn is_index(&self, at: usize) -> bool {
        index::index_stem(&self.entries[at].name).is_some() || self.read.indices.contains(&at)
    }

    pub fn is_later_split(&self, entry: &ListedEntry) -> bool {
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

    /// Whether a directory has the main model in other forms.
    pub fn has_supplement(&self, entry: &ListedEntry) -> bool {
        self.has_main && entry.name.eq_ignore_ascii_case(onnx::FOLDER)
    }

    /// Whether a file is a copy, an ONNX model that was made of another one, or an array beside a model, which belongs
    /// to it, such as a mean or a vocabulary.
    pub fn is_second(&self, entry: &ListedEntry) -> bool {
        self.is_copy(entry) || self.has_main && format::is_secondary(&entry.name)
    }
}
