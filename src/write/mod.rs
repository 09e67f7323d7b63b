//! Files on a disk: knows how bytes get there as a whole or not at all, and nothing of what they mean.

mod folder;
mod output;

use crate::content;
use crate::source::{Bytes, strerror};
use nix::fcntl::{FallocateFlags, fallocate};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

pub use folder::Folder;
pub use output::{MARK, Output, is_stdout};

/// Bytes that are written between two reports of progress.
const AT_ONCE: u32 = 8 << 20;

/// Bytes that are copied between two reports: the kernel may share them in no time. A multiple of every block size.
const COPIED_AT_ONCE: u64 = 64 << 20;

/// A file system shares whole blocks of this size, or of a smaller one that divides it.
const BLOCK: u64 = 4096;

/// Hears how many bytes were written since the last time, and says whether to go on.
pub type Progress<'a> = &'a mut dyn FnMut(u64) -> bool;

/// Why a file was not written. What was there before is still there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The operating system's own reason.
    #[error("{}: {what}{}", path.display(), strerror(error))]
    Io {
        /// The file that was to be written.
        path: PathBuf,
        /// What was tried, if the reason alone does not say it.
        what: &'static str,
        /// The reason.
        error: io::Error,
    },
    /// The bytes cannot be had.
    #[error(transparent)]
    Content(#[from] content::Error),
    /// A file that is copied ended before it should.
    #[error("cut short while it was copied: {missing} bytes are gone")]
    Short {
        /// Bytes that were not there.
        missing: u64,
    },
    /// Somebody wants it to end.
    #[error("interrupted; no file was written")]
    Interrupted,
}

/// What the name begins with that something has until it gets its own, `name`.
fn prefix(name: &OsStr) -> String {
    /// Longest part of the name that stays, in bytes: there is room for what stands around it.
    const NAME_MAX: usize = 200;
    let name = name.to_string_lossy();
    let cut = (0..=name.len().min(NAME_MAX)).rev().find(|at| name.is_char_boundary(*at)).unwrap_or(0);
    format!(".{}.", &name[..cut])
}

/// Brings the names in a directory to the disk, unless the file system knows better.
fn sync_names(dir: &Path) -> io::Result<()> {
    match File::open(dir).and_then(|dir| dir.sync_all()) {
        Err(error) if !is_unsupported(&error) => Err(error),
        _ => Ok(()),
    }
}

/// Whether it was the file system that cannot do it. An old kernel takes a file without a name for its directory.
fn is_unsupported(error: &io::Error) -> bool {
    let unsupported = [nix::libc::EOPNOTSUPP, nix::libc::EISDIR, nix::libc::EINVAL, nix::libc::ENOENT];
    error.raw_os_error().is_some_and(|error| unsupported.contains(&error))
}

impl Output {
    /// Takes room for `len` bytes, so that a full disk shows at once and not at the end.
    pub fn reserve(&mut self, len: u64) -> Result<(), Error> {
        if len == 0 || self.is_direct() {
            return Ok(());
        }
        let full = [nix::errno::Errno::ENOSPC, nix::errno::Errno::EDQUOT, nix::errno::Errno::EFBIG];
        match fallocate(self.file(), FallocateFlags::empty(), 0, i64::try_from(len).unwrap_or(i64::MAX)) {
            Err(errno) if full.contains(&errno) => Err(self.error("", errno.into())),
            // Not every file system can.
            _ => Ok(()),
        }
    }

    /// Writes bytes.
    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file().write_all(bytes).map_err(|error| self.error("", error))
    }

    /// Writes the `len` bytes of which `read` gives any part.
    pub fn write_content<'c>(
        &mut self,
        len: u64,
        read: impl Fn(u64, u32) -> Result<Bytes<'c>, content::Error>,
        progress: Progress,
    ) -> Result<(), Error> {
        let mut at = 0;
        while at < len {
            let bytes = read(at, AT_ONCE)?;
            // Of a file that was cut meanwhile the kernel finds nothing in the map; then the next read says it better.
            if let Err(error) = self.file().write_all(&bytes) {
                read(at, AT_ONCE)?;
                return Err(self.error("", error));
            }
            at += bytes.len() as u64;
            if !progress(bytes.len() as u64) {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    /// Writes a range of another file. The kernel shares the blocks where both files are on a file system that can and have
    /// them at the same place within a block; else it copies them.
    pub fn copy(&mut self, mut from: &File, range: Range<u64>, progress: Progress) -> Result<(), Error> {
        from.seek(SeekFrom::Start(range.start)).map_err(|error| self.error("", error))?;
        let mut at = range.start;
        while at < range.end {
            // The first piece ends where blocks begin.
            let end =
                (at / BLOCK * BLOCK).saturating_add(if at.is_multiple_of(BLOCK) { COPIED_AT_ONCE } else { BLOCK });
            let end = end.min(range.end);
            let mut piece = io::Read::take(from, end - at);
            let copied = io::copy(&mut piece, &mut self.file()).map_err(|error| self.error("", error))?;
            if copied < end - at {
                return Err(Error::Short { missing: range.end - at - copied });
            }
            at = end;
            if !progress(copied) {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }
}
