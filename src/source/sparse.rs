//! A local file that another process fills when its bytes are needed.

use super::file::COPIED_MAX;
use super::filled::FillingMap;
use super::page_cache::PageCache;
use super::pins::{self, MissingBlocks, PinnedBlocks, PinnedReader};
use super::{Bytes, Error, FileId, RemoteFailure, Source, SourceStat, indices};
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

/// The process that fills a file.
pub trait FillProcess: Send + Sync + fmt::Debug {
    /// Waits until a range is present, or `is_cancelled` is true. Bytes of `within` after the range may be added too,
    /// because they are likely to be read next. If `within` is empty, the range is needed at once and nothing after it.
    fn fill(&self, range: Range<u64>, within: Range<u64>, is_cancelled: &dyn Fn() -> bool) -> Result<(), Error>;

    /// Starts to add a range from its start on, until the result is dropped.
    fn stream(&self, range: Range<u64>) -> Box<dyn Send>;

    /// Reports the read of a range that contains a block at which read-ahead is to be extended.
    fn touched(&self, range: Range<u64>, within: Range<u64>);

    /// Reports that bytes were read.
    fn served(&self, bytes: u64);
}

/// A file that another process fills. Its blocks are present while they are read.
#[derive(Debug)]
pub struct SparseSource {
    /// For messages.
    name: PathBuf,
    len: u64,
    data: Arc<FillingMap>,
    cached: PageCache,
    reader: Arc<PinnedReader>,
    fill: Arc<dyn FillProcess>,
    parts: SparseParts,
    /// The ends of tensors, sorted: read-ahead does not go further.
    ends: OnceLock<Box<[u64]>>,
}

/// The attributes of a file that another process fills.
#[derive(Debug, Clone, Copy)]
pub struct SparseParts {
    /// Identifies the file.
    pub id: FileId,
    /// Owner, permissions and modification time.
    pub stat: SourceStat,
}

impl SparseSource {
    /// `descriptors` are those of the data, of the map of present blocks, of the marks of readers, and of the lock.
    pub fn new(
        name: &str,
        len: u64,
        descriptors: Vec<OwnedFd>,
        fill: Arc<dyn FillProcess>,
        parts: SparseParts,
    ) -> Result<Self, Error> {
        let failed = |reason: String| Error::Remote { name: name.into(), reason, failure: RemoteFailure::Lasting };
        let Ok([data, present, marks, lock]) = <[OwnedFd; 4]>::try_from(descriptors) else {
            return Err(failed("weightfs-fetch sent other descriptors than were asked for".into()));
        };
        let file = pins::data(data, len).map_err(|error| failed(error.to_string()))?;
        let reader = PinnedReader::open(len, present, marks, lock).map_err(|error| failed(error.to_string()))?;
        let (cached, ends) = Default::default();
        let data = FillingMap::new(name, len, file);
        Ok(Self { name: name.into(), len, data, cached, reader, fill, parts, ends })
    }

    /// The tensor, or what else lies between two ends, that holds `range`. Empty as long as the header is read.
    fn within(&self, range: &Range<u64>) -> Range<u64> {
        let Some(ends) = self.ends.get() else { return 0..0 };
        let first = ends.partition_point(|end| *end <= range.start);
        let start = first.checked_sub(1).and_then(|before| ends.get(before)).copied().unwrap_or(0);
        let after = ends.partition_point(|end| *end < range.end);
        start..ends.get(after).copied().unwrap_or(self.len)
    }

    /// Waits until all blocks of `range` are present, and pins them.
    fn pin(&self, range: &Range<u64>, is_cancelled: &dyn Fn() -> bool) -> Result<PinnedBlocks, Error> {
        /// How often blocks may be evicted again before they were pinned.
        const TRIES_MAX: usize = 16;
        let mut missing: MissingBlocks = match self.reader.pin(range.clone()) {
            Ok(pinned) => return Ok(self.touch(pinned, range)),
            Err(missing) => missing,
        };
        for _ in 0..TRIES_MAX {
            self.fill.fill(range.clone(), self.within(range), is_cancelled)?;
            match missing.retry() {
                Ok(pinned) => return Ok(self.touch(pinned, range)),
                Err(still) => missing = still,
            }
        }
        let reason = "the blocks were evicted from the cache before they were read; a larger --cache-size helps".into();
        Err(Error::Remote { name: self.name.clone(), reason, failure: RemoteFailure::Transient })
    }

    /// Reports a read of a block at which read-ahead is to be extended.
    fn touch(&self, pinned: PinnedBlocks, range: &Range<u64>) -> PinnedBlocks {
        if pinned.has_trigger() {
            self.fill.touched(range.clone(), self.within(range));
        }
        pinned
    }

    fn io(&self, error: io::Error) -> Error {
        Error::Io { path: self.name.clone(), error }
    }
}

impl Source for SparseSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error> {
        let indices = indices(&range, self.len)?;
        let mut pinned = self.pin(&range, &|| false)?;
        self.fill.served(range.end - range.start);
        if indices.len() > COPIED_MAX {
            match self.data.part(indices, pinned) {
                Ok(part) => return Ok(Bytes::Filled(part)),
                Err(unmapped) => pinned = unmapped,
            }
        }
        let bytes = Bytes::read(&self.data.file, range).map_err(|error| self.io(error));
        drop(pinned);
        bytes
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        indices(&range, self.len)?;
        let _pinned = self.pin(&range, &|| false)?;
        self.fill.served(buf.len() as u64);
        self.data.file.read_exact_at(buf, offset).map_err(|error| self.io(error))
    }

    fn verify(&self) -> Result<(), Error> {
        Ok(())
    }

    fn may_block(&self, range: &Range<u64>) -> bool {
        self.reader.pin(range.clone()).is_err() || !self.cached.has(&self.data.file, range)
    }

    fn prepare(&self, range: Range<u64>, is_cancelled: &dyn Fn() -> bool) -> Result<(), Error> {
        self.pin(&range, is_cancelled).map(drop)
    }

    fn stream(&self, range: Range<u64>) -> Option<Box<dyn Send>> {
        Some(self.fill.stream(range.start..range.end.min(self.len)))
    }

    fn set_ends(&self, ends: &mut dyn Iterator<Item = u64>) {
        let mut ends: Vec<u64> = ends.collect();
        ends.sort_unstable();
        ends.dedup();
        // The first model that is opened from this file decides.
        let _ = self.ends.set(ends.into());
    }

    fn stat(&self) -> SourceStat {
        self.parts.stat
    }

    fn id(&self) -> Option<FileId> {
        Some(self.parts.id)
    }
}
