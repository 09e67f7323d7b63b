//! Where bytes come from: knows files and memory, and nothing of what the bytes mean.

mod file;
mod memory;
mod pool;

use std::fmt;
use std::fs::Metadata;
use std::io;
use std::ops::{Deref, Range};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

pub use file::{MappedFile, put_off_limits};
pub use memory::Memory;
pub use pool::limit_open_files;

/// A fixed run of bytes that stays what it was when it was opened, or says that it did not.
pub trait Source: Send + Sync + fmt::Debug {
    /// Length in bytes at the time of opening.
    fn len(&self) -> u64;

    /// Whether there are no bytes at all.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The bytes of `range`, for the kernel only: hand the slice to a system call, never look into it.
    ///
    /// Looking into a page of a file that was cut meanwhile raises SIGBUS, while a system call given the same slice
    /// fails with EFAULT, which the reader sees as EIO.
    fn bytes(&self, range: Range<u64>) -> Result<Bytes<'_>, Error>;

    /// Copies `buf.len()` bytes from `offset` on: the door for everything that weightfs itself must see.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Error>;

    /// Who owns the bytes and since when they stand.
    fn stat(&self) -> Stat;

    /// Where they may be opened once more, if they lie in a file.
    fn path(&self) -> Option<&Path> {
        None
    }

    /// By what a file is known under all its names.
    fn id(&self) -> Option<FileId> {
        None
    }

    /// The bytes that lie on a disk where those of another file lie too (reflinks), as far as the file system tells; sorted by
    /// where they begin.
    fn shared_blocks(&self) -> Vec<Block> {
        Vec::new()
    }
}

/// Device and inode number of a file.
pub type FileId = (u64, u64);

/// Bytes of a file in one run on a disk. Files of one device that have the same place there have the same bytes in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// In bytes from the start of the file.
    pub start: u64,
    /// Length in bytes.
    pub len: u64,
    /// In bytes from the start of what the file system calls a disk.
    pub place: u64,
}

/// A run of bytes, and what keeps them where they are.
#[derive(Debug, Clone)]
pub enum Bytes<'a> {
    /// In memory that outlives them.
    Borrowed(&'a [u8]),
    /// In the map of a file, which stays for as long as they do.
    Mapped(file::Mapped<'a>),
    /// Their own.
    Owned(Vec<u8>),
}

impl Bytes<'_> {
    /// Whether they are the source's own still, now that a system call has had them: a file may be written to while the
    /// kernel copies. Where it could not read them (EFAULT) it keeps the reason to itself, and `unreadable` finds it out.
    /// The first error of each cause is logged.
    pub fn look_again(&self, unreadable: bool) -> Result<(), Error> {
        match self {
            Self::Mapped(mapped) => mapped.look_again(unreadable),
            Self::Borrowed(_) | Self::Owned(_) => Ok(()),
        }
    }
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Mapped(mapped) => mapped,
            Self::Owned(bytes) => bytes,
        }
    }
}

/// One of several runs of bytes in sources that are read as one: it goes on until the next one starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// In bytes from the start of the whole.
    pub start: u64,
    /// Number of the source.
    pub source: u32,
    /// In bytes from the start of the source.
    pub offset: u64,
}

impl Run {
    /// Each of `runs`, which are `len` bytes together, with its length in bytes.
    pub fn with_lengths(runs: &[Self], len: u64) -> impl Iterator<Item = (Self, u64)> {
        let ends = runs.iter().skip(1).map(|next| next.start).chain([len]);
        runs.iter().zip(ends).map(|(run, end)| (*run, end - run.start))
    }
}

/// What the files made from a source inherit from it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Numeric owner.
    pub uid: u32,
    /// Numeric group.
    pub gid: u32,
    /// Permission bits, the lower twelve of `st_mode`.
    pub mode: u16,
    /// Last modification.
    pub mtime: SystemTime,
}

impl Stat {
    /// That of a file or directory.
    pub fn of(metadata: &Metadata) -> Self {
        Self {
            uid: metadata.uid(),
            gid: metadata.gid(),
            mode: (metadata.mode() & 0o7777) as u16,
            mtime: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
        }
    }
}

/// Why bytes cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The range lies past the end that the file has now.
    #[error("{}: cut from {opened} to {now} bytes since it was opened; bytes {}..{} are gone", path.display(), range.start, range.end)]
    Cut {
        /// The file.
        path: PathBuf,
        /// Bytes when it was opened.
        opened: u64,
        /// Bytes now.
        now: u64,
        /// What was asked for.
        range: Range<u64>,
    },
    /// The file is not the one that was opened any more.
    #[error("{}: written to since it was opened; mount it again", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
    },
    /// The file gave way to others that were read, and by its name there is another one now, or none.
    #[error("{}: gone or replaced while too many files were open to hold it; mount it again", path.display())]
    Replaced {
        /// The file.
        path: PathBuf,
    },
    /// The permissions of the file would let it be read, but the sandbox does not.
    #[error("{}: not among the files that were there when it was mounted, and no other is opened; mount it again", path.display())]
    Outside {
        /// The file.
        path: PathBuf,
    },
    /// The range was never part of the source.
    #[error("bytes {}..{} of a source of {len} bytes", range.start, range.end)]
    OutOfRange {
        /// What was asked for.
        range: Range<u64>,
        /// Bytes in the source.
        len: u64,
    },
    /// Something that is no regular file: a directory, a pipe, a device.
    #[error("{}: {kind}, not a regular file", path.display())]
    NotAFile {
        /// What was named.
        path: PathBuf,
        /// What it is.
        kind: &'static str,
    },
    /// The operating system's own reason.
    #[error("{}: {}", path.display(), strerror(error))]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        error: io::Error,
    },
}

/// The text of an operating system error without Rust's "(os error N)".
pub fn strerror(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

/// `range` as indices into `len` bytes, or why not.
fn check(range: &Range<u64>, len: u64) -> Result<Range<usize>, Error> {
    let whole = || Some(usize::try_from(range.start).ok()?..usize::try_from(range.end).ok()?);
    let inside = range.start <= range.end && range.end <= len;
    inside.then(whole).flatten().ok_or(Error::OutOfRange { range: range.clone(), len })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// One contract for both sources.
    fn contract(source: &dyn Source, content: &[u8]) {
        let len = content.len() as u64;
        assert_eq!(source.len(), len);
        assert_eq!(source.is_empty(), content.is_empty());
        for start in 0..=len {
            for end in start..=len {
                let expected = &content[start as usize..end as usize];
                assert_eq!(&source.bytes(start..end).unwrap()[..], expected);
                let mut buf = vec![0; expected.len()];
                source.read_exact_at(&mut buf, start).unwrap();
                assert_eq!(buf, expected);
            }
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
    fn both_sources_keep_the_contract() {
        for content in [&b""[..], b"x", b"some bytes to read"] {
            contract(&Memory::new(content.to_vec()), content);
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(content).unwrap();
            contract(&MappedFile::open(file.path()).unwrap(), content);
        }
    }

    #[test]
    fn os_errors_read_like_those_of_other_tools() {
        let error = MappedFile::open("/no/such/file".as_ref()).unwrap_err();
        assert_eq!(error.to_string(), "/no/such/file: No such file or directory");
        let error = MappedFile::open("/tmp".as_ref()).unwrap_err();
        assert_eq!(error.to_string(), "/tmp: a directory, not a regular file");
    }
}
