//! The block cache: versions of remote files, kept in local sparse files that several processes share. Has no network.
//!
//! docs/remote.md describes the files and what they promise. Briefly: each version of a remote file, an *object*, has a
//! sparse data file, a table of checksums, and a lock file, whose mtime is the time of the last use.
//!
//! **Crashes.** A block's bytes are written before its entry in the table, and its entry is removed before its bytes
//! are. After `kill -9` the page cache has both in this order. After a loss of power the disk may have any of them, so
//! entries that were written before the system was started are compared with the bytes before they are used. Nothing
//! waits for a local disk.
//!
//! **Readers** are other processes: see [`crate::source::pins`]. **Several processes** may use one object, and fetch
//! the same block at the same time, because they write the same bytes. Only the sole user of an object evicts blocks
//! from it.

mod contents;
mod dir;
mod error;
mod evict;
mod files;
mod key;
mod listings;
mod lock;
mod object;
mod partial;
mod room;
mod table;
mod write;

pub use contents::{CacheContents, CacheEntry, FreedObject, PruneOptions, PruneOutcome, default_limit};
pub use dir::{default_dir, memory_dir};
pub use error::CacheError;
pub use key::CacheKey;
pub use listings::KeptListings;
pub use object::{BlockCache, CacheOptions, CachedObject};
pub use room::MadeRoom;
pub use write::IncomingBytes;
