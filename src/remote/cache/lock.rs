//! Locks between processes: on bytes of a lock file, for an open file description.
//!
//! | byte | shared | exclusive |
//! |---|---|---|
//! | [`LockByte::Users`] | by each session that uses the object | never |
//! | [`LockByte::Gate`] | never | to open, create, evict from, or remove the object |
//!
//! Such a lock lasts until the last descriptor of the open file description is closed. The process that fetches passes
//! the descriptor that holds `Users` to its reader, so that the object stays in use if one of the two processes dies.
//! `GateLock` has a description of its own, which no other process has.

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use std::fs::File;
use std::io;
use std::thread;
use std::time::{Duration, Instant};

/// The file that is locked.
#[derive(Debug, Clone, Copy)]
pub(super) enum LockByte {
    /// Held as long as an object is in use.
    Users = 0,
    /// Held for a short time.
    Gate = 1,
}

fn lock(kind: libc::c_int, byte: LockByte) -> libc::flock {
    libc::flock { l_type: kind as _, l_whence: libc::SEEK_SET as _, l_start: byte as _, l_len: 1, l_pid: 0 }
}

/// Locks without waiting. Returns false if another open file description has a lock that excludes this one.
fn try_lock(file: &File, kind: libc::c_int, byte: LockByte) -> io::Result<bool> {
    match fcntl(file, FcntlArg::F_OFD_SETLK(&lock(kind, byte))) {
        Ok(_) => Ok(true),
        Err(Errno::EAGAIN | Errno::EACCES) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Marks an object as in use until the open file description is closed.
pub(super) fn use_object(file: &File) -> io::Result<bool> {
    try_lock(file, libc::F_RDLCK, LockByte::Users)
}

/// Whether an object is in use by others than the holder of `file`.
pub(super) fn is_used(file: &File) -> io::Result<bool> {
    let mut found = lock(libc::F_WRLCK, LockByte::Users);
    fcntl(file, FcntlArg::F_OFD_GETLK(&mut found))?;
    Ok(i32::from(found.l_type) != libc::F_UNLCK)
}

/// The exclusive lock of [`LockByte::Gate`], released on drop.
#[derive(Debug)]
pub(super) struct GateLock<'a>(&'a File);

impl<'a> GateLock<'a> {
    /// Waits `patience` at most. A holder that was stopped by a signal must not make others hang.
    pub fn lock(file: &'a File, patience: Duration) -> io::Result<Option<Self>> {
        let start = Instant::now();
        let mut pause = Duration::from_micros(100);
        while !try_lock(file, libc::F_WRLCK, LockByte::Gate)? {
            if start.elapsed() >= patience {
                return Ok(None);
            }
            thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(20));
        }
        Ok(Some(Self(file)))
    }
}

impl Drop for GateLock<'_> {
    fn drop(&mut self) {
        if let Err(error) = try_lock(self.0, libc::F_UNLCK, LockByte::Gate) {
            log::warn!("cannot release a lock of the cache: {error}");
        }
    }
}
