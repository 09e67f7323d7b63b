//! Sources of bytes: local files, memory, zeros, and files of trees elsewhere. Does not depend on what the bytes mean.

mod bytes;
mod downloads;
mod error;
mod fetched;
mod file;
mod filled;
mod info;
mod local;
mod location;
mod map;
mod memory;
mod opened;
mod page_cache;
pub mod pins;
mod pool;
mod resident;
mod resolve;
mod stat;
mod traversal;
mod tree;
mod version;

use std::fmt;
use std::ops::Range;
use std::path::Path;

pub use bytes::Bytes;
pub use downloads::{missing_download, unfinished_download};
pub use error::{Error, ErrorCause, FetchFailure, RemoteFailure, strerror};
pub use fetched::{FetchedFile, FetchedOpener, fetched_files_limit, limit_fetched_files};
pub use file::{MappedFile, limit_open_files};
pub use filled::{FillProcess, OpenFetched};
pub use info::{ReadAheadEnds, SourceInfo, WholeRange, each_run, indices, span_of_runs};
pub use local::{
    announce, device_at, exists, is_dir, len_at, list_dir, modified_at, open_beneath, open_local, stat_at, was_always,
};
pub use location::Location;
pub use map::limit_maps;
pub use memory::{MemorySource, ZeroSource};
pub use resolve::put_off_limits;
pub use stat::{DirectoryVersion, FileId, SourceStat};
pub use traversal::{Directories, Traversal, TraversalBase};
pub use tree::{DirListing, FIRST_TREE, ListedEntry, ListedKind, SourceTree, TreePath, is_tree};

/// A sequence of bytes. Reads return bytes of the version that was opened, or fail.
pub trait Source: Send + Sync + fmt::Debug {
    fn info(&self) -> &SourceInfo;

    /// The bytes of `range`, for the kernel only: pass the slice to a system call and never read it directly.
    ///
    /// Reading a page of a file that was truncated meanwhile raises SIGBUS. A system call with the same slice fails
    /// with EFAULT instead, and the reader gets EIO.
    fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error>;

    /// Fills `buf` with runs of `len` bytes, which begin at `offset` and at each multiple of `step` bytes after it.
    /// `len` is at least 1. All bytes that weightfs itself interprets are read this way.
    fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), Error>;

    /// Fails if the source is no longer the version that was opened.
    fn verify(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Whether reading `range` may wait for a device or a network.
    fn may_block(&self, _range: &Range<u64>) -> bool {
        false
    }

    /// Whether bytes are gathered from many places, so that a few long reads are much faster than many short ones.
    fn is_gathered(&self) -> bool {
        false
    }

    /// Waits until `range` can be read without waiting, or `is_cancelled` is true. Sources that only wait for a device
    /// do not wait here.
    fn prepare(&self, _range: Range<u64>, _is_cancelled: &dyn Fn() -> bool) -> Result<(), Error> {
        Ok(())
    }

    /// Starts to fetch a range from its start on, until the result is dropped. Reads of a part of it wait for that part
    /// only. `None` if nothing has to be fetched.
    fn stream(&self, _range: Range<u64>) -> Option<Box<dyn Send>> {
        None
    }

    /// The runs of bytes whose disk blocks other files may share (reflinks), as reported by the file system; sorted by
    /// their start.
    fn shared_blocks(&self) -> Vec<DiskBlock> {
        Vec::new()
    }
}

impl dyn Source + '_ {
    pub fn len(&self) -> u64 {
        self.info().len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn stat(&self) -> SourceStat {
        self.info().stat
    }

    pub fn path(&self) -> Option<&Path> {
        self.info().path.as_deref()
    }

    pub fn id(&self) -> Option<FileId> {
        self.info().id
    }

    /// Copies `buf.len()` bytes from `offset` on.
    pub fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        self.read_runs_at(buf, buf.len().max(1), offset, 0)
    }

    /// Sets the offsets in bytes where tensors end. Sources that read ahead do not read over them. The first model that
    /// is opened from a source decides.
    pub fn set_ends(&self, ends: impl Iterator<Item = u64>) {
        if let Some(known) = &self.info().ends {
            known.set(ends);
        }
    }

    /// Says that a range in bytes is read as a whole, and nothing beside it, so that nothing beside it is read ahead
    /// until the result is dropped. `None` if nothing is read ahead at all.
    pub fn read_whole(&self, range: Range<u64>) -> Option<WholeRange> {
        Some(self.info().ends.as_ref()?.add(range))
    }
}

/// A run of bytes of a file that is contiguous on the disk. Runs of two files on the same device with the same `place`
/// hold the same bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DiskBlock {
    /// In bytes from the start of the file.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// Physical offset in bytes, as reported by the file system.
    pub place: u64,
}

#[cfg(test)]
mod tests {
    use super::pins::{BLOCK, BlockMarks, PRESENT, PresentBlocks};
    use super::*;
    use std::fs::File;
    use std::io::Write;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex};

    /// Checks the contract of [`Source`].
    fn check_contract(source: &dyn Source, content: &[u8]) {
        let len = content.len() as u64;
        assert_eq!(source.len(), len);
        assert_eq!(source.is_empty(), content.is_empty());
        source.verify().unwrap();
        for start in 0..=len {
            for end in start..=len {
                let expected = &content[start as usize..end as usize];
                let bytes = source.bytes(start..end).unwrap();
                assert_eq!(&bytes[..], expected);
                bytes.verify(false).unwrap();
                let mut buf = vec![0; expected.len()];
                source.read_exact_at(&mut buf, start).unwrap();
                assert_eq!(buf, expected);
            }
        }
        for (len, step) in [(1, 0), (1, 1), (2, 3), (3, 7), (18, 0)] {
            let starts = (0..4).map(|run| run * step).take_while(|start| start + len <= content.len());
            let expected: Vec<u8> = starts.flat_map(|start| content[start..start + len].iter().copied()).collect();
            let mut buf = vec![0; expected.len()];
            source.read_runs_at(&mut buf, len, 0, step as u64).unwrap();
            assert_eq!(buf, expected, "{len} {step}");
            let outside = source.read_runs_at(&mut [0; 2], 1, 0, content.len() as u64);
            assert!(matches!(outside, Err(Error::OutOfRange { .. })));
        }
        for range in [0..len + 1, len + 1..len + 1, len..u64::MAX, u64::MAX - 1..u64::MAX] {
            assert!(matches!(source.bytes(range.clone()), Err(Error::OutOfRange { .. })), "{range:?}");
        }
        #[expect(clippy::reversed_empty_ranges)]
        let reversed = 1..0;
        assert!(matches!(source.bytes(reversed), Err(Error::OutOfRange { .. })));
        assert!(matches!(source.read_exact_at(&mut [0], len), Err(Error::OutOfRange { .. })));
        assert!(matches!(source.read_exact_at(&mut [0, 0], u64::MAX), Err(Error::OutOfRange { .. })));
    }

    /// Another process that has fetched everything, and marks blocks as present when they are needed.
    #[derive(Debug)]
    struct Filler(PresentBlocks);

    impl FillProcess for Filler {
        fn fill(&self, range: Range<u64>, _: Range<u64>, _: &dyn Fn() -> bool) -> Result<(), Error> {
            (range.start / BLOCK..range.end.div_ceil(BLOCK)).for_each(|block| _ = self.0.set(block, PRESENT));
            Ok(())
        }
        fn stream(&self, _: Range<u64>) -> Box<dyn Send> {
            Box::new(())
        }
        fn touched(&self, _: Range<u64>, _: Range<u64>) {}
        fn served(&self, _: u64) {}
    }

    fn sparse(file: &File, len: u64) -> OpenFetched {
        let blocks = len.div_ceil(BLOCK);
        let ((present, to_present), (_, marks)) =
            (PresentBlocks::create(blocks).unwrap(), BlockMarks::create(blocks).unwrap());
        let [data, lock] = [file, &tempfile::tempfile().unwrap()].map(|file| file.try_clone().unwrap().into());
        OpenFetched::sparse("x", len, vec![data, to_present, marks, lock], Box::new(Filler(present))).unwrap()
    }

    fn whole(file: &File, len: u64) -> OpenFetched {
        OpenFetched::whole("x", len, file.try_clone().unwrap().into()).unwrap()
    }

    /// Opens a file by one of the functions above.
    #[derive(Debug)]
    struct TestOpener(File, u64, fn(&File, u64) -> OpenFetched);

    impl FetchedOpener for TestOpener {
        fn open(&self, _: &dyn Fn() -> bool) -> Result<OpenFetched, Error> {
            Ok(self.2(&self.0, self.1))
        }
    }

    fn fetched(file: &File, info: SourceInfo, open: fn(&File, u64) -> OpenFetched) -> FetchedFile {
        let (first, opener) = (open(file, info.len), TestOpener(file.try_clone().unwrap(), info.len, open));
        FetchedFile::new(info, first, Box::new(opener))
    }

    #[test]
    fn every_source_meets_the_contract() {
        for content in [&b""[..], b"x", b"some bytes to read"] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(content).unwrap();
            let info = SourceInfo::anonymous(content.len() as u64);
            check_contract(&MemorySource::new(content.to_vec()), content);
            check_contract(&*open_local(&file.path().into()).unwrap(), content);
            check_contract(&fetched(file.as_file(), info.clone(), whole), content);
            check_contract(&fetched(file.as_file(), info, sparse), content);
            check_contract(&ZeroSource::new(content.len() as u64), &vec![0; content.len()]);
        }
    }

    #[test]
    fn absent_blocks_are_filled_with_what_follows_in_the_tensor() {
        /// The requests to the other process.
        type Asked = Mutex<Vec<(Range<u64>, Range<u64>)>>;

        #[derive(Debug)]
        struct Recorder(Filler, Arc<Asked>);

        impl FillProcess for Recorder {
            fn fill(&self, range: Range<u64>, within: Range<u64>, _: &dyn Fn() -> bool) -> Result<(), Error> {
                self.1.lock().unwrap().push((range.clone(), within.clone()));
                self.0.fill(range, within, &|| false)
            }
            fn stream(&self, _: Range<u64>) -> Box<dyn Send> {
                Box::new(())
            }
            fn touched(&self, _: Range<u64>, _: Range<u64>) {}
            fn served(&self, _: u64) {}
        }

        let file = tempfile::tempfile().unwrap();
        let len = 10 * BLOCK;
        file.set_len(len).unwrap();
        let (present, to_present) = PresentBlocks::create(10).unwrap();
        let (_, marks) = BlockMarks::create(10).unwrap();
        let asked = Arc::<Asked>::default();
        let descriptors =
            vec![file.try_clone().unwrap().into(), to_present, marks, tempfile::tempfile().unwrap().into()];
        let first =
            OpenFetched::sparse("x", len, descriptors, Box::new(Recorder(Filler(present), asked.clone()))).unwrap();
        let info = SourceInfo { ends: Some(Arc::default()), ..SourceInfo::anonymous(len) };
        let source: &dyn Source =
            &FetchedFile::new(info, first, Box::new(TestOpener(file.try_clone().unwrap(), len, sparse)));
        assert!(source.may_block(&(0..9)));
        source.read_exact_at(&mut [0; 9], 0).unwrap();
        source.set_ends([7 * BLOCK, 3 * BLOCK, 3 * BLOCK].into_iter());
        let bytes = source.bytes(4 * BLOCK..5 * BLOCK).unwrap();
        assert!(matches!(&bytes, Bytes::Mapped(_)) && bytes.verify(false).is_ok());
        source.prepare(8 * BLOCK..9 * BLOCK, &|| false).unwrap();
        let whole = [(); 2].map(|()| source.read_whole(5 * BLOCK..6 * BLOCK));
        source.prepare(5 * BLOCK..6 * BLOCK, &|| false).unwrap();
        source.prepare(3 * BLOCK..4 * BLOCK, &|| false).unwrap();
        drop(whole);
        let _after = source.read_whole(6 * BLOCK..7 * BLOCK - 1);
        source.prepare(6 * BLOCK..6 * BLOCK + 1, &|| false).unwrap();
        let expected = [
            (0..9, 0..0),
            (4 * BLOCK..5 * BLOCK, 3 * BLOCK..7 * BLOCK),
            (8 * BLOCK..9 * BLOCK, 7 * BLOCK..len),
            (5 * BLOCK..6 * BLOCK, 5 * BLOCK..6 * BLOCK),
            (3 * BLOCK..4 * BLOCK, 3 * BLOCK..5 * BLOCK),
            (6 * BLOCK..6 * BLOCK + 1, 6 * BLOCK..7 * BLOCK),
        ];
        assert_eq!(asked.lock().unwrap()[..], expected);
    }

    #[test]
    fn only_some_fetched_files_are_open_and_all_can_be_read() {
        /// Counts how often each file was opened.
        #[derive(Debug)]
        struct Counting(TestOpener, Arc<AtomicUsize>);

        impl FetchedOpener for Counting {
            fn open(&self, is_cancelled: &dyn Fn() -> bool) -> Result<OpenFetched, Error> {
                self.1.fetch_add(1, Ordering::Relaxed);
                self.0.open(is_cancelled)
            }
        }

        const LIMIT: usize = 64;
        let count = Arc::new(AtomicUsize::new(0));
        let files: Vec<Box<dyn Source>> = (0..100u8)
            .map(|at| {
                let mut file = tempfile::tempfile().unwrap();
                file.write_all(&[at; 9]).unwrap();
                let (first, opener) = (whole(&file, 9), TestOpener(file, 9, whole));
                let opener = Box::new(Counting(opener, count.clone()));
                Box::new(FetchedFile::new(SourceInfo::anonymous(9), first, opener)) as Box<dyn Source>
            })
            .collect();
        for (at, file) in (0..).zip(&files) {
            let mut bytes = [0; 9];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert_eq!((bytes, file.len()), ([at; 9], 9));
        }
        let opened = count.load(Ordering::Relaxed);
        assert!(opened >= 100 - LIMIT, "the others were closed");
        for _ in 0..5 {
            assert_eq!(&files[99].bytes(0..9).unwrap()[..], [99; 9]);
        }
        assert_eq!(count.load(Ordering::Relaxed), opened, "it stays open while it is read");
    }

    #[test]
    fn listing_follows_symlinks() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("dir")).unwrap();
        std::fs::write(dir.path().join("file"), "12345").unwrap();
        std::os::unix::fs::symlink("file", dir.path().join("link")).unwrap();
        std::os::unix::fs::symlink("dir", dir.path().join("link to dir")).unwrap();
        std::os::unix::fs::symlink("absent", dir.path().join("stray")).unwrap();
        let location = Location::from(dir.path());
        let mut entries = list_dir(&location).unwrap().entries;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        let found: Vec<_> =
            entries.iter().map(|entry| (entry.name.to_str().unwrap(), entry.kind, entry.is_link)).collect();
        use ListedKind::{Dir, File};
        let expected = [
            ("dir", Dir, false),
            ("file", File, false),
            ("link", File, true),
            ("link to dir", Dir, true),
            ("stray", File, true),
        ];
        assert_eq!(found, expected);
        assert_eq!((entries[1].len, entries[2].len, entries[4].len), (5, 5, 0));
        assert!(exists(&location.join("stray")) && !exists(&location.join("absent")));
        assert!(matches!(list_dir(&location.join("file")), Err(Error::Io { .. })));
    }
}
