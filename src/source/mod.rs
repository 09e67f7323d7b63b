//! Sources of bytes: local files, memory, zeros, and files of trees elsewhere. Does not depend on what the bytes mean.

mod bytes;
mod error;
mod file;
mod filled;
mod listing;
mod local;
mod location;
mod map;
mod memory;
mod page_cache;
pub mod pins;
mod pool;
mod reopened;
mod resident;
mod resolve;
mod sparse;
mod stat;
mod storage;
mod traversal;
mod tree;
mod version;
mod whole;
mod zeros;

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::time::SystemTime;

pub use bytes::Bytes;
pub use error::{Error, ErrorCause, FetchFailure, RemoteFailure, strerror};
pub use file::{MappedFile, limit_open_files};
pub use listing::{DirListing, ListedEntry, ListedKind};
pub use local::{announce, device_at, exists, is_dir, len_at, list_dir, modified_at, open_local, stat_at};
pub use location::Location;
pub use map::limit_maps;
pub use memory::MemorySource;
pub use reopened::{ReopenedSource, SourceReopener, limit_reopened_files, reopened_files_limit};
pub use resolve::put_off_limits;
pub use sparse::{FillProcess, SparseParts, SparseSource};
pub use traversal::{Directories, Traversal, TraversalBase};
pub use tree::{FIRST_TREE, SourceTree, TreePath, is_tree};
pub use version::FileId;
pub use whole::WholeFile;
pub use zeros::ZeroSource;

/// A sequence of bytes. Reads return bytes of the version that was opened, or fail.
pub trait Source: Send + Sync + fmt::Debug {
    /// Size in bytes when the source was opened.
    fn len(&self) -> u64;

    /// Whether there are no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of `range`, for the kernel only: pass the slice to a system call and never read it directly.
    ///
    /// Reading a page of a file that was truncated meanwhile raises SIGBUS. A system call with the same slice fails
    /// with EFAULT instead, and the reader gets EIO.
    fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error>;

    /// Copies `buf.len()` bytes from `offset` on. All bytes that weightfs itself interprets are read this way.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error>;

    /// Fills `buf` with runs of `len` bytes, which begin at `offset` and at each multiple of `step` bytes after it.
    /// `len` is at least 1.
    fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), Error> {
        map::each_run(buf, len, offset, step).try_for_each(|(buf, start)| self.read_exact_at(buf, start))
    }

    /// Fails if the source is no longer the version that was opened.
    fn verify(&self) -> Result<(), Error>;

    /// Whether reading `range` may wait for a device or a network.
    fn may_block(&self, range: &Range<u64>) -> bool;

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

    /// Offsets in bytes where tensors end. Sources that read ahead do not read over them.
    fn set_ends(&self, _ends: &mut dyn Iterator<Item = u64>) {}

    /// Owner, permissions and modification time.
    fn stat(&self) -> SourceStat;

    /// The absolute path where the same bytes can be opened again, if they are in a file of this machine.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// Identifies a file, whatever path leads to it.
    fn id(&self) -> Option<FileId> {
        None
    }

    /// The runs of bytes whose disk blocks other files may share (reflinks), as reported by the file system; sorted by
    /// their start.
    fn shared_blocks(&self) -> Vec<DiskBlock> {
        Vec::new()
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

/// The attributes that the files of a mount inherit from a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SourceStat {
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Permission bits, the lower twelve of `st_mode`.
    pub mode: u16,
    /// Time of the last modification.
    pub mtime: SystemTime,
    /// When the bytes or the attributes of a file of this machine were last changed, in seconds and nanoseconds since
    /// 1970; zeros for others. Unlike the modification time, no program can set it.
    pub ctime: (i64, i64),
}

/// `range` as indices into `len` bytes.
fn indices(range: &Range<u64>, len: u64) -> Result<Range<usize>, Error> {
    let whole = || Some(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?);
    let inside = range.start <= range.end && range.end <= len;
    inside.then(whole).flatten().ok_or(Error::OutOfRange { range: range.clone(), len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

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

    #[test]
    fn every_source_meets_the_contract() {
        for content in [&b""[..], b"x", b"some bytes to read"] {
            check_contract(&MemorySource::new(content.to_vec()), content);
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(content).unwrap();
            check_contract(&*open_local(&file.path().into()).unwrap(), content);
            check_contract(&ZeroSource::new(content.len() as u64), &vec![0; content.len()]);
        }
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
