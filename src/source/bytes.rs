//! Bytes that a source hands out.

use super::error::Error;
use super::map::Mapped;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes and a share of whatever keeps them in memory.
#[derive(Debug)]
pub enum Bytes {
    /// A part of the map of a file. Pass the slice to a system call; never look into it, see [`super::Source::bytes`].
    Mapped(Mapped),
    /// A part of a shared buffer.
    Shared(Arc<[u8]>, Range<usize>),
    /// A buffer of their own.
    Owned(Vec<u8>),
}

impl Bytes {
    /// Whether these are still the bytes of the version that was opened, after a system call has copied them: another
    /// process may write to the file meanwhile. `unreadable` says that the call failed with EFAULT, which happens where
    /// pages of a map cannot be read; the error then gives the reason.
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
