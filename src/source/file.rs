//! A local file as a source.

use super::bytes::{MapKeeper, MappedBytes};
use super::info::indices;
use super::map::OpenFile;
use super::pool::{FilePool, FileSlot};
use super::version::FileVersion;
use super::{Bytes, DiskBlock, Error, Source, SourceInfo, downloads};
use fiemap::{Fiemap, FiemapExtentFlags, FiemapFlags};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The open files of this process, at most half of the usual file descriptor limit. There is one pool, because the
/// limit applies to the process.
static POOL: FilePool<OpenFile> = FilePool::new(512);

/// Bytes up to this number are copied, and not sent from the map: a page fault, and releasing its pages later, takes
/// longer than a copy.
pub(super) const COPIED_MAX: usize = 32 << 10;

/// Limits the number of open files. To read a closed file, it is opened again and another one is closed.
pub fn limit_open_files(limit: usize) {
    POOL.set_limit(limit);
}

/// A regular file, memory-mapped where that is possible. The number of open files is limited. Closed files are opened
/// again on demand, and must then be the same file.
#[derive(Debug)]
pub struct MappedFile {
    version: Arc<FileVersion>,
    slot: Arc<FileSlot<OpenFile>>,
    pool: &'static FilePool<OpenFile>,
}

impl MappedFile {
    pub fn open(path: &Path) -> Result<Self, Error> {
        Self::open_in(path, &POOL)
    }

    fn open_in(path: &Path, pool: &'static FilePool<OpenFile>) -> Result<Self, Error> {
        let absolute = std::path::absolute(path).map_err(|error| Error::io(path, error))?;
        let slot = Arc::default();
        let open = pool.get(&slot, || OpenFile::open(&absolute, path, None)).map_err(|error| match error {
            Error::Io { error: io, path } if io.kind() == ErrorKind::NotFound => match downloads::dangling(&path) {
                Some(reason) => Error::Dangling { path, reason },
                None => Error::Io { error: io, path },
            },
            error => error,
        })?;
        Ok(Self { version: open.version.clone(), slot, pool })
    }

    /// The open file. Fails if it had to be opened again and is not the same file.
    fn get(&self) -> Result<Arc<OpenFile>, Error> {
        self.pool.get(&self.slot, || self.open_again())
    }

    fn open_again(&self) -> Result<OpenFile, Error> {
        use nix::libc::{ELOOP, ENOENT, ENOTDIR};
        let FileVersion { name, info, .. } = &*self.version;
        let path = info.path.as_deref().unwrap_or(name);
        OpenFile::open(path, name, Some(&self.version)).map_err(|error| match &error {
            Error::NotAFile { .. } | Error::Outside { .. } => Error::Replaced { path: name.clone() },
            Error::Io { error: io, .. } if matches!(io.raw_os_error(), Some(ENOENT | ENOTDIR | ELOOP)) => {
                Error::Replaced { path: name.clone() }
            }
            _ => error,
        })
    }
}

impl Source for MappedFile {
    fn info(&self) -> &SourceInfo {
        &self.version.info
    }

    fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error> {
        let indices = indices(&range, self.version.info.len)?;
        let open = self.get()?;
        let mapped = open.map.as_ref().map(|map| map.len());
        let mut bytes = Vec::new();
        // Without memory for a copy, the map still serves the reader.
        if mapped.is_none() || indices.len() <= COPIED_MAX && bytes.try_reserve_exact(indices.len()).is_ok() {
            bytes.resize(indices.len(), 0);
            open.read_runs_at(&mut bytes, indices.len().max(1), range.start, 0)?;
            return Ok(Bytes::Owned(bytes));
        }
        open.verify(range.clone())?;
        match mapped {
            Some(len) if indices.end <= len => Ok(Bytes::Mapped(MappedBytes::new(MapKeeper::File(open), indices))),
            len => Err(Error::OutOfRange { range, len: len.unwrap_or(0) as u64 }),
        }
    }

    fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), Error> {
        self.get()?.read_runs_at(buf, len, offset, step)
    }

    fn verify(&self) -> Result<(), Error> {
        self.get()?.verify(0..0)
    }

    fn may_block(&self, range: &Range<u64>) -> bool {
        // Opening a closed file may wait too.
        self.slot.open().is_none_or(|open| !open.is_in_memory(range))
    }

    fn shared_blocks(&self) -> Vec<DiskBlock> {
        let Ok(open) = self.get() else { return Vec::new() };
        // Any other flag means that the extent is not on the disk yet, is encoded there, or has no location.
        let ignored = FiemapExtentFlags::LAST | FiemapExtentFlags::MERGED;
        // SYNC first writes dirty pages to the disk: until then the extents are those of the old bytes.
        Fiemap::with_flags(&open.file, FiemapFlags::SYNC)
            .map_while(Result::ok)
            .filter(|extent| (extent.fe_flags - ignored).bits() == FiemapExtentFlags::SHARED.bits())
            .map(|extent| DiskBlock { start: extent.fe_logical, len: extent.fe_length, place: extent.fe_physical })
            .collect()
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
        let source: &dyn Source = &MappedFile::open(file.path()).unwrap();
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
        let source: &dyn Source = &MappedFile::open(file.path()).unwrap();
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
                        sources[at].read_runs_at(&mut buf, 3, 1, 0).unwrap();
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
