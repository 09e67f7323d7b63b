//! Files in folders, as a tree that is kept in memory.

use crate::source::SourceStat;

/// Files in folders. Both are numbered in the order in which they were added.
#[derive(Debug)]
pub struct FileTree<F> {
    files: Vec<F>,
    /// The first one holds all others.
    folders: Vec<TreeFolder>,
}

#[derive(Debug)]
pub struct TreeFolder {
    /// The folder that holds it; the first one holds itself.
    pub parent: usize,
    /// Owner and permissions, unless they are those of the model.
    pub stat: Option<SourceStat>,
    /// Sorted by name.
    entries: Vec<(String, TreeEntry)>,
}

/// An entry of a folder, by its number among all files or folders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TreeEntry {
    File(usize),
    Folder(usize),
}

impl<F> Default for FileTree<F> {
    fn default() -> Self {
        Self { files: Vec::new(), folders: Vec::new() }
    }
}

impl<F> FileTree<F> {
    /// Adds an empty folder and returns its number. It does not become an entry of its parent.
    pub fn add_folder(&mut self, parent: usize, stat: Option<SourceStat>) -> usize {
        self.folders.push(TreeFolder { parent, stat, entries: Vec::new() });
        self.folders.len() - 1
    }

    /// Removes the last folder if it is empty, and returns whether it is not.
    pub fn drop_empty_folder(&mut self) -> bool {
        let is_empty = self.folders.last().is_some_and(|folder| folder.entries.is_empty());
        if is_empty {
            self.folders.pop();
        }
        !is_empty
    }

    /// Adds an entry to a folder. The first of two entries with the same name is kept.
    pub fn insert(&mut self, folder: usize, name: String, entry: TreeEntry) {
        let folder = &mut self.folders[folder];
        if let Err(at) = folder.position(&name) {
            folder.entries.insert(at, (name, entry));
        }
    }

    pub fn add_file(&mut self, folder: usize, name: String, file: F) {
        self.insert(folder, name, TreeEntry::File(self.files.len()));
        self.files.push(file);
    }

    pub fn files(&self) -> &[F] {
        &self.files
    }

    pub fn file(&self, number: usize) -> Option<&F> {
        self.files.get(number)
    }

    /// The folder with that number; 0 is the one that holds all others.
    pub fn folder(&self, number: usize) -> Option<&TreeFolder> {
        self.folders.get(number)
    }
}

impl TreeFolder {
    fn position(&self, name: &str) -> Result<usize, usize> {
        self.entries.binary_search_by(|(other, _)| other[..].cmp(name))
    }

    pub fn find(&self, name: &str) -> Option<TreeEntry> {
        self.position(name).ok().map(|at| self.entries[at].1)
    }

    /// Sorted by name.
    pub fn entries(&self) -> &[(String, TreeEntry)] {
        &self.entries
    }
}
