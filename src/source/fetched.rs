//! Files that another process fetches. An open file takes descriptors in both processes. If too many files are open,
//! some are closed, and opened again when they are read.

use super::bytes::{MapKeeper, MappedBytes};
use super::file::COPIED_MAX;
use super::filled::{FilledBlocks, OpenFetched};
use super::info::{indices, span_of_runs};
use super::pins::PinnedBlocks;
use super::pool::{FilePool, FileSlot};
use super::{Bytes, Error, RemoteFailure, Source, SourceInfo, each_run};
use std::fmt;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

/// The open files of all other processes, at most a sixteenth of the usual file descriptor limit.
static POOL: FilePool<OpenFetched> = FilePool::new(64);

/// Limits the number of open files of other processes. A read of a closed file opens it again and closes another one.
pub fn limit_fetched_files(limit: usize) {
    POOL.set_limit(limit);
}

/// The number that [`limit_fetched_files`] has set.
pub fn fetched_files_limit() -> usize {
    POOL.limit()
}

/// Opens a file that was open before, in the same version.
pub trait FetchedOpener: Send + Sync + fmt::Debug {
    /// Waits for the other process, or until `is_cancelled` is true.
    fn open(&self, is_cancelled: &dyn Fn() -> bool) -> Result<OpenFetched, Error>;
}

/// A file that another process fetches. Its version is that of the first opening.
#[derive(Debug)]
pub struct FetchedFile {
    /// For messages.
    name: PathBuf,
    info: SourceInfo,
    slot: Arc<FileSlot<OpenFetched>>,
    opener: Box<dyn FetchedOpener>,
}

impl FetchedFile {
    /// `opener` opens the file again.
    pub fn new(info: SourceInfo, first: OpenFetched, opener: Box<dyn FetchedOpener>) -> Self {
        let (name, slot) = (first.name.clone(), Arc::default());
        POOL.insert(&slot, first);
        Self { name, info, slot, opener }
    }

    fn open(&self, is_cancelled: &dyn Fn() -> bool) -> Result<Arc<OpenFetched>, Error> {
        POOL.get(&self.slot, || self.opener.open(is_cancelled))
    }

    /// The tensor, or what else lies between two ends, that holds `range`. Empty as long as the header is read.
    fn within(&self, range: &Range<u64>) -> Range<u64> {
        self.info.ends.as_ref().and_then(|ends| ends.around(range, self.info.len)).unwrap_or(0..0)
    }

    /// Waits until all blocks of `range` are present, and pins them. `None` if all bytes of the file are present.
    fn pin(
        &self,
        open: &OpenFetched,
        range: &Range<u64>,
        is_cancelled: &dyn Fn() -> bool,
    ) -> Result<Option<PinnedBlocks>, Error> {
        /// Number of times that blocks may be evicted again before they were pinned.
        const TRIES_MAX: usize = 16;
        let Some(FilledBlocks { reader, fill, .. }) = &open.filling else { return Ok(None) };
        let mut pinned = reader.pin(range.clone());
        for _ in 0..=TRIES_MAX {
            match pinned {
                Ok(pinned) => {
                    if pinned.has_trigger() {
                        fill.touched(range.clone(), self.within(range));
                    }
                    return Ok(Some(pinned));
                }
                Err(missing) => {
                    fill.fill(range.clone(), self.within(range), is_cancelled)?;
                    pinned = missing.retry();
                }
            }
        }
        let reason = "the blocks were evicted from the cache before they were read; a larger --cache-size helps".into();
        Err(Error::Remote { name: self.name.clone(), reason, failure: RemoteFailure::Transient })
    }

    /// As [`Self::pin`], for a read that happens now.
    fn pin_now(&self, open: &OpenFetched, range: &Range<u64>) -> Result<Option<PinnedBlocks>, Error> {
        let pinned = self.pin(open, range, &|| false)?;
        open.filling.iter().for_each(|filling| filling.fill.served(range.end - range.start));
        Ok(pinned)
    }
}

impl Source for FetchedFile {
    fn info(&self) -> &SourceInfo {
        &self.info
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error> {
        let indices = indices(&range, self.info.len)?;
        let open = self.open(&|| false)?;
        let pinned = self.pin_now(&open, &range)?;
        let map = open.filling.as_ref().and_then(|filling| filling.map.clone());
        match (pinned, map) {
            (Some(pinned), Some(map)) if indices.len() > COPIED_MAX && indices.end <= map.len() => {
                let keeper = MapKeeper::Filled { open, map, _pinned: pinned };
                Ok(Bytes::Mapped(MappedBytes::new(keeper, indices)))
            }
            // The pins are kept until the bytes are read.
            (_pinned, _) => Bytes::read(&open.file, range).map_err(|error| Error::io(&self.name, error)),
        }
    }

    fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), Error> {
        span_of_runs(buf, len, offset, step, self.info.len)?;
        let open = self.open(&|| false)?;
        each_run(buf, len, offset, step).try_for_each(|(buf, start)| {
            let _pinned = self.pin_now(&open, &(start..start + buf.len() as u64))?;
            open.file.read_exact_at(buf, start).map_err(|error| Error::io(&self.name, error))
        })
    }

    fn may_block(&self, range: &Range<u64>) -> bool {
        self.slot.open().is_none_or(|open| !open.is_in_memory(range))
    }

    fn prepare(&self, range: Range<u64>, is_cancelled: &dyn Fn() -> bool) -> Result<(), Error> {
        let open = self.open(is_cancelled)?;
        self.pin(&open, &range, is_cancelled).map(drop)
    }

    fn stream(&self, range: Range<u64>) -> Option<Box<dyn Send>> {
        // The file stays open as long as its bytes are to be fetched.
        let open = self.open(&|| false).ok()?;
        let stream = open.filling.as_ref()?.fill.stream(range.start..range.end.min(self.info.len));
        Some(Box::new((stream, open)))
    }
}
