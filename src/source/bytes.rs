//! Bytes that a source returns.

use super::error::Error;
use super::map::Mapped;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes, with a reference to what keeps them in memory.
#[derive(Debug)]
pub enum Bytes {
    /// A part of a file map. Pass the slice to a system call and never read it directly, see [`super::Source::bytes`].
    Mapped(Mapped),
    /// A part of a shared buffer.
    Shared(Arc<[u8]>, Range<usize>),
    /// A buffer that is not shared.
    Owned(Vec<u8>),
}

impl Bytes {
    /// Fails unless the bytes that a system call has copied are those of the version that was opened: another process
    /// may have written to the file. `unreadable` is true if the call failed with EFAULT, which happens if pages of a
    /// map cannot be read; the error then gives the reason.
    pub fn verify(&self, unreadable: bool) -> Result<(), Error> {
        match self {
            Self::Mapped(mapped) => mapped.verify(unreadable),
            Self::Shared(..) | Self::Owned(_) => Ok(()),
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(mapped) => mapped,
            Self::Shared(bytes, range) => bytes.get(range.clone()).unwrap_or_default(),
            Self::Owned(bytes) => bytes,
        }
    }
}
