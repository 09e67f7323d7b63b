//! A mapped file: knows its descriptor and its map, and whether both still show what was opened.

use super::{Error, Source, Stat, check};
use std::fs::{File, Metadata, OpenOptions};
use std::ops::Range;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::SystemTime;

/// A regular file, mapped read-only as a whole. Pages are read when the kernel copies them, not before.
#[derive(Debug)]
pub struct MappedFile {
    path: PathBuf,
    file: File,
    map: memmap2::Mmap,
    opened: Version,
    stat: Stat,
    /// Whether the log has been told that the file is not what was opened.
    reported: AtomicBool,
}

/// What tells one content of a file from the next. Not ctime: chmod and link change it and leave the bytes alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    len: u64,
    /// Seconds and nanoseconds.
    mtime: (i64, i64),
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        Self { len: metadata.len(), mtime: (metadata.mtime(), metadata.mtime_nsec()) }
    }
}

impl MappedFile {
    /// Opens and maps the file at `path`; symlinks are followed.
    pub fn open(path: &Path) -> Result<Self, Error> {
        let io = |error| Error::Io { path: path.to_owned(), error };
        // Without O_NONBLOCK, opening a named pipe would wait for a writer.
        let file = OpenOptions::new().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).map_err(io)?;
        let metadata = file.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(Error::NotAFile { path: path.to_owned(), kind: kind(&metadata) });
        }
        // SAFETY: the map is read-only and nobody in this process writes to the file. Another process may cut or write
        // it; `Source::bytes` is the only way to the map and promises its callers to look at nothing: they hand the
        // slice to the kernel, which checks each page as it copies.
        #[allow(unsafe_code)]
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(io)?;
        Ok(Self {
            path: path.to_owned(),
            opened: Version::of(&metadata),
            stat: Stat {
                uid: metadata.uid(),
                gid: metadata.gid(),
                mode: (metadata.mode() & 0o7777) as u16,
                mtime: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
            },
            file,
            map,
            reported: AtomicBool::new(false),
        })
    }

    /// Refuses `range` unless the file is still what was opened; the first refusal is logged.
    fn verify(&self, range: Range<u64>) -> Result<(), Error> {
        let metadata = self.file.metadata().map_err(|error| Error::Io { path: self.path.clone(), error })?;
        let now = Version::of(&metadata);
        if now == self.opened {
            return Ok(());
        }
        let path = self.path.clone();
        let error = if range.end > now.len {
            Error::Cut { path, opened: self.opened.len, now: now.len, range }
        } else {
            Error::Changed { path }
        };
        if !self.reported.swap(true, Ordering::Relaxed) {
            log::warn!("{error}");
        }
        Err(error)
    }
}

impl Source for MappedFile {
    fn len(&self) -> u64 {
        self.opened.len
    }

    fn bytes(&self, range: Range<u64>) -> Result<&[u8], Error> {
        let indices = check(&range, self.len())?;
        self.verify(range)?;
        self.map
            .get(indices.clone())
            .ok_or(Error::OutOfRange { range: indices.start as u64..indices.end as u64, len: self.map.len() as u64 })
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error> {
        let range = offset..offset.saturating_add(buf.len() as u64);
        check(&range, self.len())?;
        let read = self.file.read_exact_at(buf, offset);
        // Checked after the bytes were read, so that what is returned is of the version that was opened.
        self.verify(range)?;
        read.map_err(|error| Error::Io { path: self.path.clone(), error })
    }

    fn stat(&self) -> Stat {
        self.stat
    }
}

fn kind(metadata: &Metadata) -> &'static str {
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a named pipe",
        () if kind.is_socket() => "a socket",
        () if kind.is_block_device() => "a block device",
        () => "a character device",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_cut_file_is_noticed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [7; 10_000]).unwrap();
        let source = MappedFile::open(file.path()).unwrap();
        assert!(source.bytes(0..10_000).is_ok());
        file.as_file().set_len(5_000).unwrap();
        assert!(matches!(source.bytes(4_000..6_000), Err(Error::Cut { opened: 10_000, now: 5_000, .. })));
        assert!(matches!(source.read_exact_at(&mut [0; 10], 6_000), Err(Error::Cut { .. })));
        // What is before the cut may have been written anew: better no bytes than those of another version.
        assert!(matches!(source.bytes(0..10), Err(Error::Changed { .. })));
    }

    #[test]
    fn a_rewritten_file_is_noticed_and_chmod_is_not() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [7; 100]).unwrap();
        let source = MappedFile::open(file.path()).unwrap();
        fs::set_permissions(file.path(), std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        assert!(source.bytes(0..100).is_ok());
        let later = SystemTime::now() + std::time::Duration::from_secs(1);
        file.as_file().set_modified(later).unwrap();
        assert!(matches!(source.bytes(0..100), Err(Error::Changed { .. })));
        assert!(matches!(source.read_exact_at(&mut [0], 0), Err(Error::Changed { .. })));
    }

    #[test]
    fn a_replaced_file_is_still_served() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, b"old").unwrap();
        let source = MappedFile::open(&path).unwrap();
        fs::write(dir.path().join("b"), b"new!").unwrap();
        fs::rename(dir.path().join("b"), &path).unwrap();
        assert_eq!(source.bytes(0..3).unwrap(), b"old");
        fs::remove_file(&path).unwrap();
        assert_eq!(source.bytes(0..3).unwrap(), b"old");
    }
}
