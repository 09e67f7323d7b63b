//! The FUSE layer: converts fuser requests into superblock operations and replies. No other module uses fuser.

mod adapter;
mod operations;
mod reader;
mod state;

pub use adapter::{DEVICE, FuseSession, LOG_TARGET, MountAccess, ServeOptions, TreeReplacer};
pub use reader::{ReaderWatch, answer_reader_queries};
