//! Blocks of a sparse file that one process fills and evicts while another one reads them. Does not know where the
//! bytes come from, or where they are stored.
//!
//! The *owner* writes blocks into the file, punches holes where it evicts them, and records in [`PresentBlocks`] which
//! blocks are there. The [`PinnedReader`] has a read-only map of `PresentBlocks`, and counts in [`BlockMarks`] its
//! reads in progress. Both areas are memory that the owner creates and whose descriptors it sends to the reader.
//!
//! | | first step | second step | otherwise |
//! |---|---|---|---|
//! | Reader, before it reads | pins the blocks | reads if all are present | waits for the owner |
//! | Owner, before it evicts | marks them as absent | evicts those without pins | marks them as present |
//!
//! Each side first writes its own area and then looks at that of the other, with a SeqCst fence in between. At least
//! one of them sees what the other one wrote, so a block that is read is never a hole. The reader keeps its pins while
//! it waits. What was fetched for it is therefore not evicted before it was read.

mod area;
mod reader;

pub use area::{BlockMarks, PinsError, PresentBlocks};
pub use reader::{MissingBlocks, PinnedBlocks, PinnedReader, data};

/// Size of a block in bytes. The last block of a file may be shorter.
pub const BLOCK: u64 = 64 << 10;

/// A state of a block, as a bit: the file has its bytes.
pub const PRESENT: u16 = 1;

/// A state of a block, as a bit: reading the block is reported to the owner, which then fetches what follows.
pub const TRIGGER: u16 = 2;
