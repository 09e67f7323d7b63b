//! The block cache: versions of remote files, kept in local sparse files that several processes share. Has no network.
//!
//! ```text
//! $XDG_CACHE_HOME/weightfs/     0700, owned by the user
//!   layout                      the number of this layout
//!   CACHEDIR.TAG                tells backup programs to leave the directory out
//!   lock                        held while room is made
//!   objects/IDENTITY-VERSION/   hashes of the key; an *object*
//!     data                      a sparse file of the size of the remote file
//!     table                     checksum and stamp of each block: see `table`
//!     about.json                name, validator and size, for people
//!     lock                      which sessions use the object: see `lock`; its mtime is the time of the last use
//!   listings/LOCATION           what a location led to when it was last resolved: see `listings`
//! ```
//!
//! **Crashes.** A block's bytes are written before its entry in the table, and its entry is removed before its bytes
//! are. After `kill -9` the page cache has both in this order. After a loss of power the disk may have any of them, so
//! entries that were written before the system was started are compared with the bytes before they are used. Nothing
//! waits for a local disk.
//!
//! **Readers** are other processes: see [`crate::source::pins`].
//!
//! **Several processes** may use one object, and fetch the same block at the same time, because they write the same
//! bytes. Only the sole user of an object evicts blocks from it.

mod about;
mod ages;
mod contents;
mod dir;
mod error;
mod evict;
mod files;
mod incoming;
mod key;
mod listings;
mod lock;
mod object;
mod partial;
mod room;
mod session;
mod store;
mod table;

pub use contents::{CacheContents, CacheEntry, FreedObject, PruneOptions, PruneOutcome, default_limit};
pub use dir::default_dir;
pub use error::CacheError;
pub use incoming::IncomingBytes;
pub use key::CacheKey;
pub use listings::KeptListings;
pub use object::{CachedObject, EvictedBlocks, HeldBlocks, ReaderDescriptors, WriteOutcome};
pub use room::MadeRoom;
pub use session::{BlockCache, CacheOptions};
