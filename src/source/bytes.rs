//! Bytes that a source returns.

use super::error::Error;
use super::filled::FilledBytes;
use super::map::MappedBytes;
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes, with a reference to what keeps them in memory.
#[derive(Debug)]
pub enum Bytes {
    /// A part of a file map. Pass the slice to a system call and never read it directly, see [`super::Source::bytes`].
    Mapped(MappedBytes),
    /// A part of the map of a file that another process fills. The same applies.
    Filled(FilledBytes),
    /// A part of a shared buffer.
    Shared(Arc<[u8]>, Range<usize>),
    /// A buffer that is not shared.
    Owned(Vec<u8>),
}

impl Bytes {
    /// Reads a range of a file into a buffer of its own, which is not filled with zeros first.
    pub(super) fn read(file: &File, range: Range<u64>) -> io::Result<Self> {
        let len = usize::try_from(range.end - range.start).map_err(io::Error::other)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(len).map_err(|_| io::Error::from(Errno::NOMEM))?;
        while bytes.len() < len {
            let at = range.start + bytes.len() as u64;
            match pread(file, spare_capacity(&mut bytes), at) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        // The capacity may be larger than what was asked for.
        bytes.truncate(len);
        Ok(Self::Owned(bytes))
    }

    /// Fails unless the bytes that a system call has copied are those of the version that was opened: another process
    /// may have written to the file. `unreadable` is true if the call failed with EFAULT, which happens if pages of a
    /// map cannot be read; the error then gives the reason.
    pub fn verify(&self, unreadable: bool) -> Result<(), Error> {
        match self {
            Self::Mapped(mapped) => mapped.verify(unreadable),
            Self::Filled(filled) => filled.verify(unreadable),
            Self::Shared(..) | Self::Owned(_) => Ok(()),
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Mapped(mapped) => mapped,
            Self::Filled(filled) => filled,
            Self::Shared(bytes, range) => bytes.get(range.clone()).unwrap_or_default(),
            Self::Owned(bytes) => bytes,
        }
    }
}
