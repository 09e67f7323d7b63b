//! Files that another process opens. An open file takes descriptors in both processes. If too many files are open, some
//! are closed, and opened again when they are read.

use super::pool::{FilePool, FileSlot, PooledFile};
use super::{Bytes, Error, FileId, Source, SourceStat};
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// The open files of all other processes.
static POOL: FilePool<OpenedSource> = FilePool::new(DEFAULT_LIMIT);

/// A sixteenth of the usual file descriptor limit, 1024.
const DEFAULT_LIMIT: usize = 64;

/// Limits the number of open files of other processes. A read of a closed file opens it again and closes another one.
pub fn limit_reopened_files(limit: usize) {
    POOL.set_limit(limit);
}

/// The number that [`limit_reopened_files`] has set.
pub fn reopened_files_limit() -> usize {
    POOL.limit()
}

/// Opens a file that was open before, in the same version.
pub trait SourceReopener: Send + Sync + fmt::Debug {
    /// Waits for the other process, or until `is_cancelled` is true.
    fn open(&self, is_cancelled: &dyn Fn() -> bool) -> Result<Arc<dyn Source>, Error>;
}

#[derive(Debug)]
struct OpenedSource(Arc<dyn Source>);

impl PooledFile for OpenedSource {
    fn can_be_opened_again(&self) -> bool {
        true
    }
}

/// A file that another process opens. Its version is that of the first opening.
#[derive(Debug)]
pub struct ReopenedSource {
    len: u64,
    stat: SourceStat,
    id: Option<FileId>,
    slot: Arc<FileSlot<OpenedSource>>,
    reopener: Box<dyn SourceReopener>,
    /// See [`Source::set_ends`].
    ends: OnceLock<Box<[u64]>>,
}

impl ReopenedSource {
    /// `first` is the open file. `reopener` opens it again.
    pub fn new(first: Arc<dyn Source>, reopener: Box<dyn SourceReopener>) -> Result<Self, Error> {
        let (slot, ends) = Default::default();
        POOL.get(&slot, || Ok(Arc::new(OpenedSource(first.clone()))))?;
        Ok(Self { len: first.len(), stat: first.stat(), id: first.id(), slot, reopener, ends })
    }

    fn get(&self, is_cancelled: &dyn Fn() -> bool) -> Result<Arc<OpenedSource>, Error> {
        POOL.get(&self.slot, || {
            let source = self.reopener.open(is_cancelled)?;
            if let Some(ends) = self.ends.get() {
                source.set_ends(&mut ends.iter().copied());
            }
            Ok(Arc::new(OpenedSource(source)))
        })
    }
}

impl Source for ReopenedSource {
    fn len(&self) -> u64 {
        self.len
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error> {
        self.get(&|| false)?.0.bytes(range)
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        self.get(&|| false)?.0.read_exact_at(buf, offset)
    }

    fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), Error> {
        self.get(&|| false)?.0.read_runs_at(buf, len, offset, step)
    }

    fn verify(&self) -> Result<(), Error> {
        self.slot.open().map_or(Ok(()), |open| open.0.verify())
    }

    fn may_block(&self, range: &Range<u64>) -> bool {
        self.slot.open().is_none_or(|open| open.0.may_block(range))
    }

    fn prepare(&self, range: Range<u64>, is_cancelled: &dyn Fn() -> bool) -> Result<(), Error> {
        self.get(is_cancelled)?.0.prepare(range, is_cancelled)
    }

    fn stream(&self, range: Range<u64>) -> Option<Box<dyn Send>> {
        // The file stays open as long as its bytes are to be fetched.
        let open = self.get(&|| false).ok()?;
        let stream = open.0.stream(range)?;
        Some(Box::new((stream, open)))
    }

    fn set_ends(&self, ends: &mut dyn Iterator<Item = u64>) {
        let ends = self.ends.get_or_init(|| ends.collect());
        if let Some(open) = self.slot.open() {
            open.0.set_ends(&mut ends.iter().copied());
        }
    }

    fn stat(&self) -> SourceStat {
        self.stat
    }

    fn id(&self) -> Option<FileId> {
        self.id
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::MemorySource;
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts how often each file was opened.
    #[derive(Debug)]
    struct Counting(u8, Arc<AtomicUsize>);

    impl SourceReopener for Counting {
        fn open(&self, _: &dyn Fn() -> bool) -> Result<Arc<dyn Source>, Error> {
            self.1.fetch_add(1, Ordering::Relaxed);
            Ok(Arc::new(MemorySource::new(vec![self.0; 9])))
        }
    }

    #[test]
    fn only_some_files_are_open_and_all_can_be_read() {
        let count = Arc::new(AtomicUsize::new(0));
        let first = |at| -> Arc<dyn Source> { Arc::new(MemorySource::new(vec![at; 9])) };
        let weak: Vec<_> = (0..100).map(first).collect();
        let open = |(at, first): (u8, &Arc<dyn Source>)| {
            ReopenedSource::new(first.clone(), Box::new(Counting(at, count.clone()))).unwrap()
        };
        let files: Vec<_> = (0..).zip(&weak).map(open).collect();
        let is_open = || weak.iter().filter(|first| Arc::strong_count(first) > 1).count();
        assert_eq!(is_open(), DEFAULT_LIMIT, "the others were closed");
        for (at, file) in (0..).zip(&files) {
            let mut bytes = [0; 9];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!((bytes, file.len()), ([at; 9], 9));
        }
        assert!(count.load(Ordering::Relaxed) >= 100 - DEFAULT_LIMIT);
        let opened = count.load(Ordering::Relaxed);
        for _ in 0..5 {
            assert_eq!(&files[99].bytes(0..9).unwrap()[..], [99; 9]);
        }
        assert_eq!(count.load(Ordering::Relaxed), opened, "it stays open while it is read");
    }
}
