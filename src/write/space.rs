//! Free space on a file system.

use super::error::Error;
use nix::sys::statvfs::fstatvfs;
use nix::unistd::geteuid;
use std::os::fd::AsFd;
use std::path::Path;

/// Fails if the file system of the open file `on` has fewer than `needed` bytes available. `path` is the output, for
/// the message. Bytes that the file system would share or compress count in full.
pub(super) fn check_space(path: &Path, on: &impl AsFd, needed: u64) -> Result<(), Error> {
    let available = available(on).unwrap_or(u64::MAX);
    if needed > available {
        return Err(Error::Full { path: path.to_owned(), needed, available });
    }
    Ok(())
}

/// The space in bytes that this process may use, if the file system reports it.
fn available(on: &impl AsFd) -> Option<u64> {
    let stat = fstatvfs(on).ok().filter(|stat| stat.blocks() > 0)?;
    // Some blocks may be reserved for root.
    let blocks = if geteuid().is_root() { stat.blocks_free() } else { stat.blocks_available() };
    blocks.checked_mul(stat.fragment_size())
}
