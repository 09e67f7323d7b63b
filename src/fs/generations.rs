//! The tree of a mount and its replacement: names lead to the newest tree, and open files keep theirs.
//!
//! Each tree of a mount is a generation. Its inode numbers begin at its own tree number, so a number never means a file
//! of two generations. Only the root has the same number in all of them.

use super::attr::{Error, Ino, ROOT};
use super::ino;
use super::superblock::Superblock;
use arc_swap::{ArcSwap, Guard};
use std::ops::{Deref, Range};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// One tree of a mount.
#[derive(Debug)]
pub struct TreeGeneration {
    superblock: Superblock,
    /// Counts the trees that the mount has had, from 0.
    number: u64,
    /// The tree numbers in the inode numbers of this generation.
    trees: Range<u32>,
    /// Number of open files and directories. Only counted if the tree can be replaced.
    opened: AtomicU64,
}

impl Deref for TreeGeneration {
    type Target = Superblock;

    fn deref(&self) -> &Superblock {
        &self.superblock
    }
}

impl TreeGeneration {
    /// The number of the generation. It is never reused.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// The inode number in the mount of an inode of this tree.
    pub fn mounted_ino(&self, ino: Ino) -> Ino {
        if ino == ROOT { ROOT } else { ino::shift(ino, self.trees.start) }
    }

    fn is_open(&self) -> bool {
        self.opened.load(Ordering::Relaxed) > 0
    }
}

/// The generations of a mount that are in use, oldest first. The last one is the current tree.
#[derive(Debug)]
pub struct TreeGenerations(Vec<Arc<TreeGeneration>>);

impl TreeGenerations {
    /// The tree that names lead to.
    pub fn current(&self) -> &TreeGeneration {
        // There is always a last one.
        &self.0[self.0.len() - 1]
    }

    /// The generation of an inode number of the mount, and the number in its tree. Fails with [`Error::Stale`] if that
    /// generation is no longer in use.
    pub fn find(&self, ino: Ino) -> Result<(&TreeGeneration, Ino), Error> {
        if ino == ROOT {
            return Ok((self.current(), ROOT));
        }
        let (tree, local) = ino::split_ino(ino);
        let generation = self.0.iter().rev().find(|generation| generation.trees.contains(&tree)).ok_or(Error::Stale)?;
        Ok((generation, ino::join(tree - generation.trees.start, local)))
    }

    /// As [`TreeGenerations::find`], for an operation that follows a name or opens a file. Replaced trees refuse these,
    /// so that the kernel looks the path up again.
    pub fn find_current(&self, ino: Ino) -> Result<(&TreeGeneration, Ino), Error> {
        let (generation, local) = self.find(ino)?;
        if generation.number == self.current().number { Ok((generation, local)) } else { Err(Error::Stale) }
    }

    /// The first of `len` tree numbers that no generation uses, if there are any: `next` if possible.
    fn free_trees(&self, next: u32, len: u32) -> Option<Range<u32>> {
        let starts = [next, 0].into_iter().chain(self.0.iter().map(|generation| generation.trees.end));
        let mut ranges = starts.filter_map(|start| Some(start..start.checked_add(len)?));
        ranges.find(|range| {
            let mut in_use = self.0.iter().map(|generation| &generation.trees);
            range.end <= ino::TREES_MAX && in_use.all(|used| range.end <= used.start || used.end <= range.start)
        })
    }
}

/// The tree of a mount, which may be replaced.
#[derive(Debug)]
pub struct MountedTree {
    /// Readers take no lock.
    generations: ArcSwap<TreeGenerations>,
    /// Held while the list of generations changes, and while a file is opened or closed.
    changing: Mutex<()>,
    is_replaceable: bool,
}

impl MountedTree {
    /// A tree that is never replaced.
    pub fn fixed(superblock: Superblock) -> Self {
        Self::new(superblock, false)
    }

    /// A tree that [`MountedTree::replace`] may replace. The opened and closed files must be reported with
    /// [`MountedTree::opened`] and [`MountedTree::closed`].
    pub fn replaceable(superblock: Superblock) -> Self {
        Self::new(superblock, true)
    }

    fn new(superblock: Superblock, is_replaceable: bool) -> Self {
        let trees = 0..superblock.trees();
        let first = TreeGeneration { superblock, number: 0, trees, opened: AtomicU64::new(0) };
        let generations = ArcSwap::from_pointee(TreeGenerations(vec![Arc::new(first)]));
        Self { generations, changing: Mutex::new(()), is_replaceable }
    }

    pub fn is_replaceable(&self) -> bool {
        self.is_replaceable
    }

    /// The generations that are in use now.
    pub fn generations(&self) -> Guard<Arc<TreeGenerations>> {
        self.generations.load()
    }

    /// Number of generations that are in use: 1, and the replaced ones with open files.
    pub fn len_in_use(&self) -> usize {
        self.generations().0.len()
    }

    /// Counts an opened file or directory. Until it is closed, its generation stays in use. Fails with [`Error::Stale`]
    /// if the inode is not in the current tree.
    pub fn opened(&self, ino: Ino) -> Result<(), Error> {
        if self.is_replaceable && ino != ROOT {
            let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            self.generations().find_current(ino)?.0.opened.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    pub fn closed(&self, ino: Ino) {
        if self.is_replaceable && ino != ROOT {
            let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
            let generations = self.generations();
            let Ok((generation, _)) = generations.find(ino) else { return };
            let last = generation.opened.fetch_sub(1, Ordering::Relaxed) == 1;
            if last && generation.number != generations.current().number {
                self.keep_in_use(generations.0.iter().cloned());
            }
        }
    }

    /// Makes `superblock` the current tree. Open files keep the tree in which they were opened. The new tree continues
    /// the count of served bytes. Fails with [`Error::Stale`] if all inode numbers are in use.
    ///
    /// # Panics
    ///
    /// In debug builds, if the tree is not replaceable.
    pub fn replace(&self, mut superblock: Superblock) -> Result<(), Error> {
        debug_assert!(self.is_replaceable, "a fixed tree is never replaced");
        let _changing = self.changing.lock().unwrap_or_else(PoisonError::into_inner);
        let generations = self.generations();
        let current = generations.current();
        superblock.continue_counts_of(current);
        let trees = generations.free_trees(current.trees.end, superblock.trees()).ok_or(Error::Stale)?;
        self.append(&generations, superblock, trees);
        Ok(())
    }

    /// Makes `superblock` the current tree, with these tree numbers. The caller holds the lock.
    fn append(&self, generations: &TreeGenerations, superblock: Superblock, trees: Range<u32>) {
        let number = generations.current().number + 1;
        let next = TreeGeneration { superblock, number, trees, opened: AtomicU64::new(0) };
        self.keep_in_use(generations.0.iter().cloned().chain([Arc::new(next)]));
    }

    /// Makes `superblock` the current tree, with these tree numbers, for tests.
    #[cfg(test)]
    pub(super) fn replace_at(&self, superblock: Superblock, trees: Range<u32>) {
        self.append(&self.generations(), superblock, trees);
    }

    /// Stores the list of those of `generations` that are in use. The last one is the current tree.
    fn keep_in_use(&self, generations: impl Iterator<Item = Arc<TreeGeneration>>) {
        let mut list: Vec<_> = generations.collect();
        let current = list.last().map(|current| current.number);
        list.retain(|generation| Some(generation.number) == current || generation.is_open());
        self.generations.store(Arc::new(TreeGenerations(list)));
    }
}
