//! Inode numbers: knows how "which view of which tensor" is a number and back, so that nothing need be stored.
//!
//! The lower 32 bits say which one it is of its kind, the 8 above them of which kind, the upper 24 in which tree: 0 is the tree
//! of the only model, or that of the folders, and 1 and up are those of the models in them. In the tree of a model, kind 0 holds the fixed directories, of which the
//! root has the number that FUSE gives it; kinds 1 to 7 the directories of `tree/` and `shards/`; kind 16 and up the files, view by view.

use super::{Ino, ROOT};
use crate::view::View;

const TREE_SHIFT: u32 = 40;
const KIND_SHIFT: u32 = 32;
const FIXED: u64 = 0;
const TREE_NODES: u64 = 1;
const SHARDS: u64 = 2;
const SHARD_METADATA: u64 = 3;
/// By view: 4 to 7.
const SHARD_FLATS: [(u64, View); 4] = [(4, View::Raw), (5, View::Npy), (6, View::F32), (7, View::Single)];
const FILES: u64 = 16;

/// The tree of an inode number, and the number in there.
pub(super) fn split(ino: Ino) -> (u32, Ino) {
    ((ino >> TREE_SHIFT) as u32, ino & ((1 << TREE_SHIFT) - 1))
}

/// What is added to the numbers of a tree.
pub(super) fn base(tree: u32) -> Ino {
    Ino::from(tree) << TREE_SHIFT
}

/// An inode number in a tree.
pub(super) fn number(kind: u64, number: u32) -> Ino {
    kind << KIND_SHIFT | Ino::from(number)
}

/// The kind of an inode in a tree, and which one it is.
pub(super) fn parts(ino: Ino) -> (u64, u32) {
    (ino >> KIND_SHIFT, ino as u32)
}

/// Whether it is the number of a file that is computed from the data of tensors.
pub(super) fn is_slow(ino: Ino) -> bool {
    matches!(Inode::from_ino(split(ino).1), Some(Inode::File(file)) if file.view.is_slow())
}

/// What an inode number means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inode {
    Dir(Dir),
    File(FileRef),
}

/// A directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Dir {
    Root,
    Metadata,
    /// One file for each tensor, in the flat: `tensors/` and those beside it.
    Flat(View),
    Tree,
    Export,
    Shards,
    /// A directory in `shards/`, by the number of the shard.
    Shard(u32),
    /// `metadata/` in there.
    ShardMetadata(u32),
    /// `tensors/` in there, and those beside it.
    ShardFlat(View, u32),
    /// A directory below `tree/`, by its number.
    TreeNode(u32),
}

/// A file: one of those that a view has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileRef {
    pub view: View,
    /// A tensor, a metadata key, or 0 where the view has one file only.
    pub item: u32,
}

/// The fixed directories, each at its number below the root's.
const DIRS: [Dir; 11] = [
    Dir::Root,
    Dir::Metadata,
    Dir::Flat(View::Raw),
    Dir::Tree,
    Dir::Flat(View::Npy),
    Dir::Flat(View::F32),
    Dir::Flat(View::Single),
    Dir::Export,
    Dir::Shards,
    Dir::Flat(View::Stats),
    Dir::Flat(View::Plot),
];

impl Dir {
    pub fn ino(self) -> Ino {
        Inode::Dir(self).ino()
    }
}

impl Inode {
    pub fn ino(self) -> Ino {
        let (kind, which) = match self {
            Self::Dir(Dir::TreeNode(node)) => (TREE_NODES, node),
            Self::Dir(Dir::Shard(shard)) => (SHARDS, shard),
            Self::Dir(Dir::ShardMetadata(shard)) => (SHARD_METADATA, shard),
            Self::Dir(Dir::ShardFlat(view, shard)) => {
                (SHARD_FLATS.iter().find(|flat| flat.1 == view).map_or(0, |flat| flat.0), shard)
            }
            // Each fixed directory is in the list, as a test shows.
            Self::Dir(dir) => (FIXED, ROOT as u32 + DIRS.iter().position(|fixed| *fixed == dir).unwrap_or(0) as u32),
            Self::File(FileRef { view, item }) => (FILES + view as u64, item),
        };
        number(kind, which)
    }

    /// The inverse of [`Inode::ino`]; whether there is such a tensor is not known here.
    pub fn from_ino(ino: Ino) -> Option<Self> {
        let (kind, number) = parts(ino);
        match kind {
            FIXED => DIRS.get(number.checked_sub(ROOT as u32)? as usize).copied().map(Self::Dir),
            TREE_NODES => Some(Self::Dir(Dir::TreeNode(number))),
            SHARDS => Some(Self::Dir(Dir::Shard(number))),
            SHARD_METADATA => Some(Self::Dir(Dir::ShardMetadata(number))),
            kind if kind < FILES => {
                let (_, view) = SHARD_FLATS.iter().find(|flat| flat.0 == kind)?;
                Some(Self::Dir(Dir::ShardFlat(*view, number)))
            }
            kind => {
                let view = *View::ALL.get(usize::try_from(kind - FILES).ok()?)?;
                Some(Self::File(FileRef { view, item: number }))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_go_there_and_back() {
        let numbered = |number| {
            let flats = SHARD_FLATS.map(|flat| Dir::ShardFlat(flat.1, number));
            [Dir::TreeNode(number), Dir::Shard(number), Dir::ShardMetadata(number)].into_iter().chain(flats)
        };
        let nodes = [0, 1, u32::MAX].into_iter().flat_map(numbered).map(Inode::Dir);
        let files =
            View::ALL.into_iter().flat_map(|view| [0, 7, u32::MAX].map(|item| Inode::File(FileRef { view, item })));
        let all: Vec<Inode> = DIRS.map(Inode::Dir).into_iter().chain(nodes).chain(files).collect();
        for (at, inode) in all.iter().enumerate() {
            assert_eq!(Inode::from_ino(inode.ino()), Some(*inode));
            assert!(all[..at].iter().all(|other| other.ino() != inode.ino()));
        }
        assert_eq!(Inode::Dir(Dir::Root).ino(), ROOT);
        for ino in [0, 12, 8 << KIND_SHIFT, 15 << KIND_SHIFT, u64::MAX, 30 << KIND_SHIFT] {
            assert_eq!(Inode::from_ino(ino), None, "{ino:#x}");
        }
    }
}
