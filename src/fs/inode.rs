//! Inode numbers: knows how "which view of which tensor" is a number and back, so that nothing need be stored.
//!
//! The upper bits say what kind of inode it is, the lower 40 which one. Kind 0 holds the fixed directories, of which the
//! root has the number that FUSE gives it; kinds 1 to 7 the directories of `tree/` and `shards/`; kind 16 and up the files, view by view.

use super::{Ino, ROOT};
use crate::view::View;

const KIND_SHIFT: u32 = 40;
const FIXED: u64 = 0;
const TREE_NODES: u64 = 1;
const SHARDS: u64 = 2;
const SHARD_METADATA: u64 = 3;
/// By view: 4 to 7.
const SHARD_FLATS: [(u64, View); 4] = [(4, View::Raw), (5, View::Npy), (6, View::F32), (7, View::Single)];
const FILES: u64 = 16;

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
const DIRS: [Dir; 9] = [
    Dir::Root,
    Dir::Metadata,
    Dir::Flat(View::Raw),
    Dir::Tree,
    Dir::Flat(View::Npy),
    Dir::Flat(View::F32),
    Dir::Flat(View::Single),
    Dir::Export,
    Dir::Shards,
];

impl Dir {
    pub fn ino(self) -> Ino {
        Inode::Dir(self).ino()
    }
}

impl Inode {
    pub fn ino(self) -> Ino {
        let (kind, number) = match self {
            Self::Dir(Dir::TreeNode(node)) => (TREE_NODES, node.into()),
            Self::Dir(Dir::Shard(shard)) => (SHARDS, shard.into()),
            Self::Dir(Dir::ShardMetadata(shard)) => (SHARD_METADATA, shard.into()),
            Self::Dir(Dir::ShardFlat(view, shard)) => {
                (SHARD_FLATS.iter().find(|flat| flat.1 == view).map_or(0, |flat| flat.0), shard.into())
            }
            // Each fixed directory is in the list, as a test shows.
            Self::Dir(dir) => (FIXED, ROOT + DIRS.iter().position(|fixed| *fixed == dir).unwrap_or(0) as u64),
            Self::File(FileRef { view, item }) => (FILES + view as u64, item.into()),
        };
        kind << KIND_SHIFT | number
    }

    /// The inverse of [`Inode::ino`]; whether there is such a tensor is not known here.
    pub fn from_ino(ino: Ino) -> Option<Self> {
        let number = ino & ((1 << KIND_SHIFT) - 1);
        match ino >> KIND_SHIFT {
            FIXED => DIRS.get(usize::try_from(number.checked_sub(ROOT)?).ok()?).copied().map(Self::Dir),
            TREE_NODES => Some(Self::Dir(Dir::TreeNode(number.try_into().ok()?))),
            SHARDS => Some(Self::Dir(Dir::Shard(number.try_into().ok()?))),
            SHARD_METADATA => Some(Self::Dir(Dir::ShardMetadata(number.try_into().ok()?))),
            kind if kind < FILES => {
                let (_, view) = SHARD_FLATS.iter().find(|flat| flat.0 == kind)?;
                Some(Self::Dir(Dir::ShardFlat(*view, number.try_into().ok()?)))
            }
            kind => {
                let view = *View::ALL.get(usize::try_from(kind.checked_sub(FILES)?).ok()?)?;
                Some(Self::File(FileRef { view, item: number.try_into().ok()? }))
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
        for ino in [0, 10, 8 << KIND_SHIFT, 15 << KIND_SHIFT, u64::MAX, 1 << KIND_SHIFT | 1 << 39, 27 << KIND_SHIFT] {
            assert_eq!(Inode::from_ino(ino), None, "{ino:#x}");
        }
    }
}
