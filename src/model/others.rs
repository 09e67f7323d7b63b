//! The other files of a model's directory, such as its configuration and its tokenizer, as a tree.

use crate::content::{Content, DeferredFile, Segment};
use crate::source::{Source, SourceStat};
use std::path::Path;
use std::sync::Arc;

/// The files of a directory, and of the directories below it, that are not parts of its model.
#[derive(Debug, Default)]
pub struct OtherFiles {
    files: Vec<OtherFile>,
    /// The directory itself comes first. None of them is empty.
    folders: Vec<OtherFolder>,
}

/// A file that is not a part of the model, in the version that was found first.
#[derive(Debug)]
pub struct OtherFile {
    /// Owner, and permissions of those who may also search the directories between that of the model and the file.
    pub stat: SourceStat,
    pub(super) bytes: OtherBytes,
}

#[derive(Debug)]
pub(super) enum OtherBytes {
    Local(Arc<dyn Source>),
    /// Opened when it is read.
    Remote(DeferredFile),
}

#[derive(Debug)]
pub struct OtherFolder {
    /// The folder that holds it; the first one holds itself.
    pub parent: usize,
    pub stat: SourceStat,
    /// Sorted by name.
    entries: Vec<(String, OtherEntry)>,
}

/// An entry of a folder, by its number among all files or folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherEntry {
    File(usize),
    Folder(usize),
}

impl OtherFiles {
    /// Adds an empty folder and returns its number. It does not become an entry of its parent.
    pub(super) fn add_folder(&mut self, parent: usize, stat: SourceStat) -> usize {
        self.folders.push(OtherFolder { parent, stat, entries: Vec::new() });
        self.folders.len() - 1
    }

    /// Removes the last folder if it is empty, and returns whether it is not.
    pub(super) fn drop_empty_folder(&mut self) -> bool {
        let is_empty = self.folders.last().is_some_and(|folder| folder.entries.is_empty());
        if is_empty {
            self.folders.pop();
        }
        !is_empty
    }

    /// Adds an entry to a folder. The first of two entries with the same name is kept.
    pub(super) fn insert(&mut self, folder: usize, name: String, entry: OtherEntry) {
        let folder = &mut self.folders[folder];
        if let Err(at) = folder.position(&name) {
            folder.entries.insert(at, (name, entry));
        }
    }

    pub(super) fn add_file(&mut self, folder: usize, name: String, file: OtherFile) {
        self.insert(folder, name, OtherEntry::File(self.files.len()));
        self.files.push(file);
    }

    /// Number of files.
    pub fn len(&self) -> usize {
        self.files.len()
    }

    pub fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    pub fn file(&self, number: usize) -> Option<&OtherFile> {
        self.files.get(number)
    }

    /// The folder with that number; 0 is the directory itself.
    pub fn folder(&self, number: usize) -> Option<&OtherFolder> {
        self.folders.get(number)
    }

    /// The paths of the files of this machine, which stay open.
    pub(super) fn paths(&self) -> impl Iterator<Item = &Path> {
        self.files.iter().filter_map(|file| file.local()?.path())
    }
}

impl OtherFolder {
    fn position(&self, name: &str) -> Result<usize, usize> {
        self.entries.binary_search_by(|(other, _)| other[..].cmp(name))
    }

    pub fn find(&self, name: &str) -> Option<OtherEntry> {
        self.position(name).ok().map(|at| self.entries[at].1)
    }

    /// Sorted by name.
    pub fn entries(&self) -> &[(String, OtherEntry)] {
        &self.entries
    }
}

impl OtherFile {
    pub fn content(&self) -> Content {
        match &self.bytes {
            OtherBytes::Local(source) => Segment::extent(source, 0..source.len()).into(),
            OtherBytes::Remote(file) => Content::generated(file.clone()),
        }
    }

    /// The bytes, if the file is on this machine.
    pub fn local(&self) -> Option<&Arc<dyn Source>> {
        match &self.bytes {
            OtherBytes::Local(source) => Some(source),
            OtherBytes::Remote(_) => None,
        }
    }
}
