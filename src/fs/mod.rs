//! The file system: directories, inode numbers, attributes and names. Does not depend on FUSE.

mod attr;
mod counter;
mod folders;
mod generations;
mod ino;
mod parked;
mod path;
mod pipeline;
mod superblock;
#[cfg(test)]
mod tests;
mod tree;
mod volume;

pub use attr::{
    Attr, BLOCK_SIZE, DIR_BLOCK_SIZE, Dentry, Error, FileKind, FileOwner, Ino, NAME_MAX, Ownership, ROOT, SECTOR,
    Statfs,
};
pub use generations::{MountedTree, TreeGeneration, TreeGenerations};
pub use parked::{ReplySlot, RequestOperation, WaitingClient, serve_request};
pub use superblock::{SERVED, Superblock, TRAFFIC};
pub use volume::TensorFile;
