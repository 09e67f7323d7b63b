//! A file of which all bytes are on this machine, known by its descriptor only.

use super::page_cache::PageCache;
use super::pins;
use super::{Bytes, Error, FileId, RemoteFailure, Source, SourceStat, SparseParts, indices};
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// An open file that nobody changes: one that is named by the hash of its content.
#[derive(Debug)]
pub struct WholeFile {
    /// For messages.
    name: PathBuf,
    len: u64,
    file: File,
    cached: PageCache,
    parts: SparseParts,
}

impl WholeFile {
    /// A file of `len` bytes, whose descriptor comes from another process.
    pub fn new(name: &str, len: u64, data: OwnedFd, parts: SparseParts) -> Result<Self, Error> {
        let failed = |error: pins::PinsError| {
            let reason = error.to_string();
            Error::Remote { name: name.into(), reason, failure: RemoteFailure::Lasting }
        };
        let file = pins::data(data, len).map_err(failed)?;
        Ok(Self { name: name.into(), len, file, cached: PageCache::default(), parts })
    }
}

impl Source for WholeFile {
    fn len(&self) -> u64 {
        self.len
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error> {
        indices(&range, self.len)?;
        Bytes::read(&self.file, range).map_err(|error| Error::Io { path: self.name.clone(), error })
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        indices(&(offset..offset.saturating_add(buf.len() as u64)), self.len)?;
        self.file.read_exact_at(buf, offset).map_err(|error| Error::Io { path: self.name.clone(), error })
    }

    fn verify(&self) -> Result<(), Error> {
        Ok(())
    }

    fn may_block(&self, range: &Range<u64>) -> bool {
        !self.cached.has(&self.file, range)
    }

    fn stat(&self) -> SourceStat {
        self.parts.stat
    }

    fn id(&self) -> Option<FileId> {
        Some(self.parts.id)
    }
}
