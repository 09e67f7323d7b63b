//! Writing to an output file: from memory, from a content, or from another file. Also checks the free space.

use super::error::Error;
use super::output::OutputFile;
use crate::content::{self, Content, ReadRequest};
use nix::errno::Errno;
use nix::fcntl::{FallocateFlags, fallocate};
use nix::sys::statvfs::fstatvfs;
use nix::unistd::geteuid;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::Path;

/// Bytes that are written between two progress reports.
const AT_ONCE: u64 = 8 << 20;

/// Bytes that are copied between two progress reports, a multiple of every block size. It is larger, because the kernel
/// may share blocks instead of copying them, which takes no time.
const COPIED_AT_ONCE: u64 = 64 << 20;

/// Block size for sharing. The block size of a file system is this or a divisor of it.
const BLOCK: u64 = 4096;

/// Receives the number of bytes written since the last call, and returns whether to go on.
pub type Progress<'a> = &'a mut dyn FnMut(u64) -> bool;

impl OutputFile {
    /// Reserves space for `len` bytes, so that a full disk is detected at the start.
    pub fn reserve(&mut self, len: u64) -> Result<(), Error> {
        if len == 0 || self.target.is_none() {
            return Ok(());
        }
        check_space(&self.path, &self.file, len)?;
        let full = [Errno::ENOSPC, Errno::EDQUOT, Errno::EFBIG];
        match fallocate(&self.file, FallocateFlags::empty(), 0, i64::try_from(len).unwrap_or(i64::MAX)) {
            Err(errno) if full.contains(&errno) => Err(Error::at(&self.path)(errno)),
            // Other errors are ignored: not every file system supports fallocate.
            _ => Ok(()),
        }
    }

    pub fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        self.file.write_all(bytes).map_err(Error::at(&self.path))
    }

    pub fn write_content(&mut self, content: &Content, progress: Progress) -> Result<(), Error> {
        self.write_range(content, 0..content.len(), progress)
    }

    /// Writes a range of bytes of a content, which must not go past its end.
    pub fn write_range(&mut self, content: &Content, range: Range<u64>, progress: Progress) -> Result<(), Error> {
        let Range { start: mut at, end } = range;
        while at < end {
            let bytes = content.read(at..end.min(at + AT_ONCE), &ReadRequest::WAIT)?;
            let written = self.file.write_all(&bytes);
            // EFAULT means that mapped pages of a source cannot be read; `verify` returns the reason. It also fails if
            // the source has changed, because bytes of another version may have been written then.
            let unreadable = written.as_ref().is_err_and(|error| error.raw_os_error() == Some(nix::libc::EFAULT));
            bytes.verify(unreadable).map_err(content::Error::from)?;
            written.map_err(Error::at(&self.path))?;
            at += bytes.len() as u64;
            if !progress(bytes.len() as u64) {
                return Err(Error::Interrupted);
            }
        }
        Ok(())
    }

    /// Copies a range of another file. The kernel shares the blocks if the file system supports it and both ranges
    /// begin at the same offset within a block.
    pub fn copy(&mut self, mut from: &File, range: Range<u64>, progress: Progress) -> Result<(), Error> {
        from.seek(SeekFrom::Start(range.start)).map_err(Error::at(&self.path))?;
        let mut at = range.start;
        while at < range.end {
            // The first piece ends at a block boundary.
            let end =
                (at / BLOCK * BLOCK).saturating_add(if at.is_multiple_of(BLOCK) { COPIED_AT_ONCE } else { BLOCK });
            let end = end.min(range.end);
            let mut piece = io::Read::take(from, end - at);
            let copied = io::copy(&mut piece, &mut self.file).map_err(Error::at(&self.path))?;
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

/// Fails if the file system of the open file `on` has fewer than `needed` bytes available. `path` is the output, for
/// the message. Bytes that the file system would share or compress count in full.
pub(super) fn check_space(path: &Path, on: &impl AsFd, needed: u64) -> Result<(), Error> {
    match available(on) {
        Some(available) if needed > available => Err(Error::Full { path: path.to_owned(), needed, available }),
        _ => Ok(()),
    }
}

/// The space in bytes that this process may use, if the file system reports it.
fn available(on: &impl AsFd) -> Option<u64> {
    let stat = fstatvfs(on).ok().filter(|stat| stat.blocks() > 0)?;
    // Some blocks may be reserved for root.
    let blocks = if geteuid().is_root() { stat.blocks_free() } else { stat.blocks_available() };
    blocks.checked_mul(stat.fragment_size())
}
