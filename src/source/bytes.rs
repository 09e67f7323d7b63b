//! Bytes that a source returns.

use super::error::Error;
use super::filled::OpenFetched;
use super::map::{FileMap, OpenFile};
use super::pins::PinnedBlocks;
use rustix::buffer::spare_capacity;
use rustix::io::{Errno, pread};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::ops::{Deref, Range};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Bytes, with a reference to what keeps them in memory.
#[derive(Debug)]
pub enum Bytes {
    /// A part of a file map. Pass the slice to a system call and never read it directly, see [`super::Source::bytes`].
    Mapped(MappedBytes),
    Shared(Arc<[u8]>, Range<usize>),
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

#[derive(Debug)]
pub struct MappedBytes {
    keeper: MapKeeper,
    range: Range<usize>,
}

#[derive(Debug)]
pub(super) enum MapKeeper {
    /// A file of this machine, which is mapped.
    File(Arc<OpenFile>),
    /// A file that is filled. Its blocks are not evicted as long as they are pinned.
    Filled { open: Arc<OpenFetched>, map: Arc<FileMap>, _pinned: PinnedBlocks },
}

impl MappedBytes {
    /// `range` must be inside the map.
    pub(super) fn new(keeper: MapKeeper, range: Range<usize>) -> Self {
        Self { keeper, range }
    }

    fn map(&self) -> Option<&FileMap> {
        match &self.keeper {
            MapKeeper::File(open) => open.map.as_deref(),
            MapKeeper::Filled { map, .. } => Some(map),
        }
    }

    /// See [`Bytes::verify`]. EFAULT does not give the cause; reading the same bytes gives its errno.
    fn verify(&self, unreadable: bool) -> Result<(), Error> {
        let range = self.range.start as u64..self.range.end as u64;
        let eio = nix::errno::Errno::EIO;
        match &self.keeper {
            MapKeeper::File(open) if !unreadable => open.verify(range),
            MapKeeper::File(open) => {
                open.read_runs_at(&mut vec![0; self.range.len()], self.range.len().max(1), range.start, 0)?;
                Err(open.version.io(eio.into()))
            }
            // Nobody changes blocks that are present.
            MapKeeper::Filled { .. } if !unreadable => Ok(()),
            MapKeeper::Filled { open, .. } => {
                let read = open.file.read_exact_at(&mut vec![0; self.range.len()], range.start);
                Err(Error::io(&open.name, read.err().unwrap_or_else(|| eio.into())))
            }
        }
    }
}

impl Deref for MappedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.map().map_or(&[], |map| map.get(self.range.clone()))
    }
}

impl Drop for MappedBytes {
    fn drop(&mut self) {
        if let Some(map) = self.map() {
            map.count_served(&self.range);
        }
    }
}
