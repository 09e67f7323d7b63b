//! Inode numbers: how a view and a file number are packed into 64 bits, so that no state is stored per file.
//!
//! From the highest bit: 24 bits for the tree, 8 bits for the kind and 32 bits for a number within the kind. Trees are
//! numbered in groups of four: a model, and the other sets of tensors in its file. If one model is mounted, it has the
//! first group, the models beside it have the next ones, and the folder of these is the tree after the last group. If a
//! directory of models is mounted, the folders are tree 0, and the models have the groups from the second on. In the
//! tree of a model, kinds 64 to 127 are the directories of views in `shards/FILE/`, and kinds 128 to 191 are the files
//! of views, by the index of the row of the view.

use super::attr::{Ino, ROOT};
use crate::model::{FILE_SETS, ModelFileId};
use crate::view::View;

const TREE_SHIFT: u32 = 40;

/// Number of trees in a group: one for the model, and one for each other set of tensors that its file may have.
pub(super) const GROUP_TREES: u32 = 1 + FILE_SETS.len() as u32;

/// Number of tree numbers.
pub(super) const TREES_MAX: u32 = 1 << (u64::BITS - TREE_SHIFT);

const KIND_SHIFT: u32 = 32;

// The kind of the root, whose inode number is fixed by FUSE.
const ROOTS: u8 = 0;
const NODES: u8 = 1;
const SHARDS: u8 = 2;
const VIEWS: u8 = 3;
const SAMPLES: u8 = 4;
const OTHERS: u8 = 5;
const EXPORTS: u8 = 6;
const SHARD_VIEWS: u8 = 64;
const FILES: u8 = 128;
const KINDS_END: u8 = 192;

/// Splits a complete inode number into the tree and the inode number within it.
pub(super) fn split_ino(ino: Ino) -> (u32, Ino) {
    ((ino >> TREE_SHIFT) as u32, ino & ((1 << TREE_SHIFT) - 1))
}

/// The complete inode number of an inode number within a tree.
pub(super) fn join(tree: u32, ino: Ino) -> Ino {
    Ino::from(tree) << TREE_SHIFT | ino
}

/// An inode number whose tree number is increased by `trees`.
pub(super) fn shift(ino: Ino, trees: u32) -> Ino {
    let (tree, local) = split_ino(ino);
    join(tree + trees, local)
}

/// An inode number within a tree, from kind and number.
pub(super) fn pack(kind: u8, number: u32) -> Ino {
    Ino::from(kind) << KIND_SHIFT | Ino::from(number)
}

/// Kind and number of an inode number within a tree.
pub(super) fn unpack(ino: Ino) -> (u8, u32) {
    ((ino >> KIND_SHIFT) as u8, ino as u32)
}

/// The number of a directory below `tree/`, `samples/`, `files/` or `export/`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct NodeId(u32);

impl NodeId {
    pub fn new(number: u32) -> Self {
        Self(number)
    }

    pub fn number(self) -> u32 {
        self.0
    }
}

/// A decoded inode number in the tree of a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Inode {
    Dir(InodeDir),
    /// A file of a view, by its number in the view.
    File(View, u32),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum InodeDir {
    Root,
    /// The directory of a view, in the root or in the directory of a shard.
    View(View, Option<ModelFileId>),
    /// A directory in `shards/`.
    Shard(ModelFileId),
    /// A directory below that of a view: `tree/`, `samples/`, `files/` or `export/`.
    Node(View, NodeId),
}

impl InodeDir {
    /// The shard whose directory it is, or in whose directory it is.
    pub fn shard(self) -> Option<ModelFileId> {
        match self {
            Self::Shard(shard) | Self::View(_, Some(shard)) => Some(shard),
            Self::Root | Self::View(_, None) | Self::Node(..) => None,
        }
    }
}

impl Inode {
    pub fn ino(self) -> Ino {
        match self {
            Self::Dir(InodeDir::Root) => ROOT,
            Self::Dir(InodeDir::Node(View::SAMPLES, node)) => pack(SAMPLES, node.0),
            Self::Dir(InodeDir::Node(View::OTHERS, node)) => pack(OTHERS, node.0),
            Self::Dir(InodeDir::Node(View::EXPORT, node)) => pack(EXPORTS, node.0),
            Self::Dir(InodeDir::Node(_, node)) => pack(NODES, node.0),
            Self::Dir(InodeDir::Shard(shard)) => pack(SHARDS, shard.into()),
            Self::Dir(InodeDir::View(view, None)) => pack(VIEWS, view.index().into()),
            Self::Dir(InodeDir::View(view, Some(shard))) => pack(SHARD_VIEWS + view.index(), shard.into()),
            Self::File(view, number) => pack(FILES + view.index(), number),
        }
    }

    /// The inverse of [`Inode::ino`]. Does not check that the tensor, shard or node exists.
    pub fn from_ino(ino: Ino) -> Option<Self> {
        let (kind, number) = unpack(ino);
        Some(match kind {
            ROOTS if ino == ROOT => Self::Dir(InodeDir::Root),
            NODES => Self::Dir(InodeDir::Node(View::TREE, NodeId(number))),
            SAMPLES => Self::Dir(InodeDir::Node(View::SAMPLES, NodeId(number))),
            OTHERS => Self::Dir(InodeDir::Node(View::OTHERS, NodeId(number))),
            EXPORTS => Self::Dir(InodeDir::Node(View::EXPORT, NodeId(number))),
            SHARDS => Self::Dir(InodeDir::Shard(number.into())),
            VIEWS => Self::Dir(InodeDir::View(View::at(number)?, None)),
            SHARD_VIEWS..FILES => {
                let view = View::at((kind - SHARD_VIEWS).into())?;
                Self::Dir(InodeDir::View(view, Some(number.into())))
            }
            FILES..KINDS_END => Self::File(View::at((kind - FILES).into())?, number),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inode_numbers_are_unique_and_round_trip() {
        let numbered = |number: u32| {
            let views = View::all().flat_map(move |view| {
                [Inode::Dir(InodeDir::View(view, Some(number.into()))), Inode::File(view, number)]
            });
            let nodes = [View::TREE, View::SAMPLES, View::OTHERS, View::EXPORT];
            let nodes = nodes.map(|view| InodeDir::Node(view, NodeId(number)));
            let dirs = nodes.into_iter().chain([InodeDir::Shard(number.into())]).map(Inode::Dir);
            views.chain(dirs)
        };
        let roots = View::all().map(|view| Inode::Dir(InodeDir::View(view, None))).chain([Inode::Dir(InodeDir::Root)]);
        let all: Vec<Inode> = [0, 1, 7, u32::MAX].into_iter().flat_map(numbered).chain(roots).collect();
        for (at, inode) in all.iter().enumerate() {
            assert_eq!(Inode::from_ino(inode.ino()), Some(*inode));
            assert!(all[..at].iter().all(|other| other.ino() != inode.ino()));
            assert_eq!(split_ino(join(5, inode.ino())), (5, inode.ino()));
        }
        let no_view = View::all().len() as u32;
        for ino in
            [0, 2, pack(7, 0), pack(VIEWS, no_view), pack(FILES + no_view as u8, 0), pack(KINDS_END, 0), u64::MAX]
        {
            assert_eq!(Inode::from_ino(ino), None, "{ino:#x}");
        }
    }
}
