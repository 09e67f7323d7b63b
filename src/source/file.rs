//! A local file as a source.

use super::map::end_of_runs;
use super::map::{MappedBytes, OpenFile};
use super::pool::{FilePool, FileSlot};
use super::version::{FileId, FileVersion};
use super::{Bytes, DiskBlock, Error, Source, SourceStat, indices};
use fiemap::{Fiemap, FiemapExtent, FiemapExtentFlags, FiemapFlags};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The open files of this process. There is one pool, because the file descriptor limit applies to the process.
static POOL: FilePool<OpenFile> = FilePool::new(DEFAULT_LIMIT);

/// Half of the usual file descriptor limit, 1024.
const DEFAULT_LIMIT: usize = 512;

/// Bytes up to this number are copied, and not sent from the map: a page fault, and releasing its pages later, takes
/// longer than a copy.
pub(super) const COPIED_MAX: usize = 32 << 10;

/// Limits the number of open files. To read a closed file, it is opened again and another one is closed.
pub fn limit_open_files(limit: usize) {
    POOL.set_limit(limit);
}

/// A regular file, memory-mapped where that is possible.
///
/// The number of open files is limited. Closed files are opened again on demand, and must then be the same file.
#[derive(Debug)]
pub struct MappedFile {
    /// Absolute, so that the file can be opened again.
    path: PathBuf,
    version: Arc<FileVersion>,
    stat: SourceStat,
    slot: Arc<FileSlot<OpenFile>>,
    pool: &'static FilePool<OpenFile>,
}

impl MappedFile {
    /// Opens and maps the file at `path`; symlinks are followed.
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_in(path, &POOL)
    }

    fn open_in(path: &Path, pool: &'static FilePool<OpenFile>) -> Result<Self, Error> {
        let io = |error| Error::Io { path: path.to_owned(), error };
        let absolute = std::path::absolute(path).map_err(io)?;
        let slot = Arc::default();
        let first = || Ok(Arc::new(OpenFile::open(&absolute, path, None, pool)?));
        let open = pool.get(&slot, first)?;
        let stat = SourceStat::of(&open.file).map_err(io)?;
        Ok(Self { path: absolute, version: open.version.clone(), stat, slot, pool })
    }

    /// The open file. Fails if it had to be opened again and is not the same file.
    fn get(&self) -> Result<Arc<OpenFile>, Error> {
        self.pool.get(&self.slot, || self.open_again())
    }

    fn open_again(&self) -> Result<Arc<OpenFile>, Error> {
        use nix::libc::{ELOOP, ENOENT, ENOTDIR};
        let FileVersion { target, path, .. } = &*self.version;
        let replaced = || Error::Replaced { path: path.clone() };
        match OpenFile::open(target, path, Some(&self.version), self.pool) {
            Ok(open) => Ok(Arc::new(open)),
            Err(Error::NotAFile { .. } | Error::Outside { .. }) => Err(replaced()),
            Err(Error::Io { error, .. }) if matches!(error.raw_os_error(), Some(ENOENT | ENOTDIR | ELOOP)) => {
                Err(replaced())
            }
            Err(error) => Err(error),
        }
    }
}

impl Source for MappedFile {
    fn len(&self) -> u64 {
        self.version.len
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error> {
        let indices = indices(&range, self.len())?;
        let open = self.get()?;
        let copy = |mut bytes: Vec<u8>| {
            bytes.resize(indices.len(), 0);
            open.read_exact_at(&mut bytes, range.start)?;
            Ok(Bytes::Owned(bytes))
        };
        let Some(map) = &open.map else { return copy(Vec::new()) };
        let mut bytes = Vec::new();
        // Without memory for a copy, the map still serves the reader.
        if indices.len() <= COPIED_MAX && bytes.try_reserve_exact(indices.len()).is_ok() {
            return copy(bytes);
        }
        open.verify(range.clone())?;
        if indices.end > map.len() {
            return Err(Error::OutOfRange { range, len: map.len() as u64 });
        }
        Ok(Bytes::Mapped(MappedBytes::new(open, indices)))
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        indices(&(offset..offset.saturating_add(buf.len() as u64)), self.len())?;
        self.get()?.read_exact_at(buf, offset)
    }

    fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), Error> {
        indices(&(offset..end_of_runs(buf, len, offset, step)), self.len())?;
        self.get()?.read_runs_at(buf, len, offset, step)
    }

    fn verify(&self) -> Result<(), Error> {
        self.get()?.verify(0..0)
    }

    fn may_block(&self, range: &Range<u64>) -> bool {
        // Opening a closed file may wait too.
        self.slot.open().is_none_or(|open| !open.is_in_memory(range))
    }

    fn stat(&self) -> SourceStat {
        self.stat
    }

    fn path(&self) -> Option<&Path> {
        Some(&self.path)
    }

    fn id(&self) -> Option<FileId> {
        Some(self.version.id)
    }

    fn shared_blocks(&self) -> Vec<DiskBlock> {
        let Ok(open) = self.get() else { return Vec::new() };
        let shared = |extent: &FiemapExtent| {
            // Any other flag means that the extent is not on the disk yet, is encoded there, or has no location.
            let rest = extent.fe_flags - (FiemapExtentFlags::LAST | FiemapExtentFlags::MERGED);
            rest.bits() == FiemapExtentFlags::SHARED.bits()
        };
        // SYNC first writes dirty pages to the disk: until then the extents are those of the old bytes.
        let extents = Fiemap::with_flags(&open.file, FiemapFlags::SYNC).map_while(Result::ok).filter(shared);
        let block = |extent: FiemapExtent| DiskBlock {
            start: extent.fe_logical,
            len: extent.fe_length,
            place: extent.fe_physical,
        };
        extents.map(block).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::time::{Duration, SystemTime};

    #[test]
    fn truncated_file_is_an_error() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [7; 10_000]).unwrap();
        let source = MappedFile::open(file.path()).unwrap();
        assert!(source.bytes(0..10_000).is_ok() && source.verify().is_ok());
        file.as_file().set_len(5_000).unwrap();
        assert!(matches!(source.bytes(4_000..6_000), Err(Error::Cut { opened: 10_000, now: 5_000, .. })));
        assert!(matches!(source.read_exact_at(&mut [0; 10], 6_000), Err(Error::Cut { .. })));
        // The remaining bytes may have been rewritten: an error is better than bytes of another version.
        assert!(matches!(source.bytes(0..10), Err(Error::Changed { .. })));
        assert!(matches!(source.verify(), Err(Error::Changed { .. })));
    }

    #[test]
    fn modified_file_is_an_error_but_chmod_is_not() {
        // More than is copied.
        const LEN: usize = COPIED_MAX + 1;
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), vec![7; LEN]).unwrap();
        let source = MappedFile::open(file.path()).unwrap();
        fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let bytes = source.bytes(0..LEN as u64).unwrap();
        assert!(bytes.verify(false).is_ok());
        file.as_file().set_modified(SystemTime::now() + Duration::from_secs(1)).unwrap();
        assert!(matches!(source.bytes(0..LEN as u64), Err(Error::Changed { .. })));
        assert!(matches!(source.read_exact_at(&mut [0], 0), Err(Error::Changed { .. })));
        // These bytes were returned before the change.
        assert!(matches!(bytes.verify(false), Err(Error::Changed { .. })));
    }

    #[test]
    fn replaced_file_keeps_its_old_bytes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, b"old").unwrap();
        let source = MappedFile::open(&path).unwrap();
        fs::write(dir.path().join("b"), b"new!").unwrap();
        fs::rename(dir.path().join("b"), &path).unwrap();
        assert_eq!(&source.bytes(0..3).unwrap()[..], b"old");
        fs::remove_file(&path).unwrap();
        assert_eq!(&source.bytes(0..3).unwrap()[..], b"old");
    }

    #[test]
    fn open_files_are_limited_and_all_files_stay_readable() {
        let pool: &'static FilePool<OpenFile> = Box::leak(Box::new(FilePool::new(3)));
        let dir = tempfile::tempdir().unwrap();
        let path = |at: usize| dir.path().join(at.to_string());
        let mut sources = Vec::new();
        for at in 0..20 {
            fs::write(path(at), [at as u8; 5000]).unwrap();
            sources.push(MappedFile::open_in(&path(at), pool).unwrap());
        }
        let held = || sources.iter().filter(|source| source.slot.open().is_some()).count();
        assert_eq!(held(), 3);
        // Bytes that were returned stay valid when their file is closed.
        let kept: Vec<_> = sources.iter().map(|source| source.bytes(10..20).unwrap()).collect();
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let sources = &sources;
                scope.spawn(move || {
                    for round in 0..500 {
                        let at = (round * 7 + thread * 5) % sources.len();
                        assert_eq!(&sources[at].bytes(0..5000).unwrap()[..], [at as u8; 5000]);
                        let mut buf = [99; 3];
                        sources[at].read_exact_at(&mut buf, 1).unwrap();
                        assert_eq!(buf, [at as u8; 3]);
                    }
                });
            }
        });
        // Each concurrent thread may hold one more.
        assert!((1..=3 + 4).contains(&held()), "{}", held());
        for (at, bytes) in kept.iter().enumerate() {
            assert_eq!(&bytes[..], [at as u8; 10]);
        }
        // A closed file must be the same file when it is opened again.
        let closed = sources.iter().position(|source| source.slot.open().is_none()).unwrap();
        fs::rename(path((closed + 1) % 20), path(closed)).unwrap();
        assert!(matches!(sources[closed].bytes(0..1), Err(Error::Replaced { .. })));
        fs::remove_file(path(closed)).unwrap();
        assert!(matches!(sources[closed].bytes(0..1), Err(Error::Replaced { .. })));
    }

    #[test]
    fn error_messages_give_the_path_and_the_reason() {
        let error = MappedFile::open("/no/such/file".as_ref()).unwrap_err();
        assert_eq!(error.to_string(), "/no/such/file: No such file or directory");
        assert!(!error.is_transient());
        let error = MappedFile::open("/tmp".as_ref()).unwrap_err();
        assert_eq!(error.to_string(), "/tmp: a directory, not a regular file");
        assert!(!error.is_transient());
    }
}
