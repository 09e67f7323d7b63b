//! Open files of another process: their data on this machine, and what is needed to have blocks filled.

use super::error::{Error, FetchFailure};
use super::map::FileMap;
use super::page_cache::PageCache;
use super::pins::{self, PinnedReader};
use super::pool::PooledFile;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

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

/// A file that another process has opened.
#[derive(Debug)]
pub struct OpenFetched {
    /// For messages.
    pub(super) name: PathBuf,
    pub(super) file: File,
    pub(super) filling: Option<FilledBlocks>,
    cached: PageCache,
}

/// The blocks of a file that are present only while they are read.
#[derive(Debug)]
pub(super) struct FilledBlocks {
    pub reader: Arc<PinnedReader>,
    pub fill: Box<dyn FillProcess>,
    pub map: Option<Arc<FileMap>>,
}

impl OpenFetched {
    /// A file of which all bytes are present, and that nobody changes: one that is named by the hash of its content.
    pub fn whole(name: &str, len: u64, data: OwnedFd) -> Result<Self, Error> {
        let file = pins::data(data, len).map_err(|error| FetchFailure::lasting(error.to_string()).of(name))?;
        Ok(Self { name: name.into(), file, filling: None, cached: PageCache::default() })
    }

    /// A file that is filled. `descriptors` are those of the data, of the map of present blocks, of the marks of
    /// readers, and of the lock.
    pub fn sparse(name: &str, len: u64, descriptors: Vec<OwnedFd>, fill: Box<dyn FillProcess>) -> Result<Self, Error> {
        let Ok([data, present, marks, lock]) = <[OwnedFd; 4]>::try_from(descriptors) else {
            return Err(FetchFailure::lasting("weightfs-fetch sent other descriptors than were asked for").of(name));
        };
        let whole = Self::whole(name, len, data)?;
        let reader = PinnedReader::open(len, present, marks, lock)
            .map_err(|error| FetchFailure::lasting(error.to_string()).of(name))?;
        let map = FileMap::new(&whole.file, len, name.as_ref());
        Ok(Self { filling: Some(FilledBlocks { reader, fill, map }), ..whole })
    }

    /// Whether the bytes of `range` can be read without waiting.
    pub(super) fn is_in_memory(&self, range: &Range<u64>) -> bool {
        self.filling.as_ref().is_none_or(|filling| filling.reader.pin(range.clone()).is_ok())
            && self.cached.has(&self.file, range)
    }
}

impl PooledFile for OpenFetched {
    fn can_be_opened_again(&self) -> bool {
        true
    }
}
