//! Locks between processes: on bytes of a lock file, for an open file description.
//!
//! | byte | shared | exclusive |
//! |---|---|---|
//! | `USERS` | by each session that uses the object | never |
//! | `GATE` | never | to open, create, evict from, or remove the object |
//!
//! Such a lock lasts until the last descriptor of the open file description is closed. The process that fetches passes
//! the descriptor that holds `USERS` to its reader, so that the object stays in use if one of the two processes dies.
//! `GateLock` has a description of its own, which no other process has.

use super::error::{CacheError, CacheResult};
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;
use std::io;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// The longest wait for another process that opens, changes or removes the same object, or the listings.
const PATIENCE: Duration = Duration::from_secs(10);

const USERS: libc::off_t = 0;
const GATE: libc::off_t = 1;

fn lock(kind: libc::c_int, byte: libc::off_t) -> libc::flock {
    libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: byte, l_len: 1, l_pid: 0 }
}

/// Marks an object as in use until the open file description is closed.
pub(super) fn use_object(file: &File) -> io::Result<()> {
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock(libc::F_RDLCK, USERS)))?;
    Ok(())
}

/// Whether an object is in use by others than the holder of `file`.
pub(super) fn is_used(file: &File) -> io::Result<bool> {
    let mut found = lock(libc::F_WRLCK, USERS);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

/// The exclusive lock of `GATE`, released on drop.
#[derive(Debug)]
pub(super) struct GateLock<'a>(&'a File);

impl<'a> GateLock<'a> {
    /// Waits for [`PATIENCE`] at most. `path` is that of what is locked.
    pub fn wait(file: &'a File, path: &Path) -> CacheResult<Self> {
        let gate = Self::lock(file, PATIENCE).map_err(CacheError::io(path))?;
        gate.ok_or_else(|| CacheError::Busy { path: path.to_owned(), seconds: PATIENCE.as_secs() })
    }

    /// Waits `patience` at most. A holder that was stopped by a signal must not make others hang.
    pub fn lock(file: &'a File, patience: Duration) -> io::Result<Option<Self>> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(100);
        loop {
            match fcntl(file, FcntlArg::F_OFD_SETLK(&lock(libc::F_WRLCK, GATE))) {
                Ok(_) => return Ok(Some(Self(file))),
                // Another open file description has it.
                Err(Errno::EAGAIN | Errno::EACCES) if start.elapsed() >= patience => return Ok(None),
                Err(Errno::EAGAIN | Errno::EACCES) => thread::sleep(pause),
                Err(errno) => return Err(errno.into()),
            }
            pause = (pause * 2).min(Duration::from_millis(20));
        }
    }
}

impl Drop for GateLock<'_> {
    fn drop(&mut self) {
        if let Err(error) = fcntl(self.0, FcntlArg::F_OFD_SETLK(&lock(libc::F_UNLCK, GATE))) {
            log::warn!("cannot release a lock of the cache: {error}");
        }
    }
}
