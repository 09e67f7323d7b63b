//! The state that requests share, the log of faults, and how results become values of fuser.

use super::reader::ReaderWatch;
use crate::content::{self, ReadRequest, WaitFor, WaitResource};
use crate::fs::{self, Attr, FileKind, MountedTree};
use crate::model;
use crate::schedule::{ScheduledJob, Scheduler};
use crate::source::{self, ErrorCause, RemoteFailure};
use fuser::{Errno, FileAttr, FileType, INodeNo, Notifier};
use std::collections::HashSet;
use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

/// The lane of the scheduler for notifications to the kernel. No device has this number.
const NOTIFICATIONS: u64 = u64::MAX;

/// State that requests share with parked operations.
#[derive(Debug)]
pub(super) struct AdapterState {
    pub tree: MountedTree,
    pub scheduler: Scheduler,
    pub watch: Arc<ReaderWatch>,
    pub faults: FaultLog,
    /// Set once the session exists.
    pub notifier: OnceLock<Notifier>,
    /// The time for which the kernel may cache a reply.
    pub ttl: Duration,
}

fn errno(error: &fs::Error) -> Errno {
    match error {
        fs::Error::NoEntry => Errno::ENOENT,
        fs::Error::NotADirectory => Errno::ENOTDIR,
        fs::Error::IsADirectory => Errno::EISDIR,
        fs::Error::NoAttribute => Errno::ENODATA,
        fs::Error::NotALink => Errno::EINVAL,
        fs::Error::Stale => Errno::ESTALE,
        fs::Error::Model(model::Error::Source(error)) => source_errno(error),
        fs::Error::Changed { .. } | fs::Error::Model(_) => Errno::EIO,
        fs::Error::Content(error) => match error {
            content::Error::Source(error) => source_errno(error),
            content::Error::Compute(_) => Errno::EIO,
            content::Error::Interrupted => Errno::EINTR,
            content::Error::WouldBlock(_) => Errno::EAGAIN,
            content::Error::NoMemory => Errno::ENOMEM,
        },
    }
}

fn source_errno(error: &source::Error) -> Errno {
    match error {
        source::Error::Changed { .. } | source::Error::Replaced { .. } => Errno::ESTALE,
        source::Error::Remote { failure: RemoteFailure::Changed, .. } => Errno::ESTALE,
        source::Error::Remote { .. } | source::Error::Cut { .. } => Errno::EIO,
        source::Error::OutOfRange { .. } | source::Error::NotAFile { .. } | source::Error::Dangling { .. } => {
            Errno::EIO
        }
        source::Error::Outside { .. } => Errno::EACCES,
        source::Error::Io { error, .. } => match error.raw_os_error() {
            // The source is on a FUSE mount whose daemon is gone. A reader that got these errors would conclude that
            // the daemon of this mount is gone.
            None | Some(nix::libc::ENOTCONN | nix::libc::ECONNABORTED) => Errno::EIO,
            // While it lists a directory, libc treats ENOENT as the end of the directory.
            Some(nix::libc::ENOENT) => Errno::EIO,
            Some(errno) => Errno::from_i32(errno),
        },
    }
}

pub(super) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Dir => FileType::Directory,
        FileKind::File => FileType::RegularFile,
        FileKind::Link => FileType::Symlink,
    }
}

pub(super) fn file_attr(attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(attr.ino),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.mtime,
        mtime: attr.mtime,
        ctime: attr.mtime,
        crtime: attr.mtime,
        kind: file_type(attr.kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: 0,
        blksize: if attr.kind == FileKind::Dir { fs::DIR_BLOCK_SIZE } else { fs::BLOCK_SIZE },
        flags: 0,
    }
}

pub(super) const NO_ATTR: Attr =
    Attr { ino: 0, kind: FileKind::File, size: 0, blocks: 0, nlink: 0, perm: 0, uid: 0, gid: 0, mtime: UNIX_EPOCH };

impl AdapterState {
    /// The errno of a failed operation. Logs the fault if it is new.
    pub(super) fn errno(&self, error: &fs::Error) -> Errno {
        self.faults.log(error);
        errno(error)
    }
}

/// Drops a range of a file from the page cache of the kernel.
pub(super) struct PageRecall {
    state: Arc<AdapterState>,
    ino: INodeNo,
    /// In bytes.
    range: Range<u64>,
}

impl PageRecall {
    /// Sends the notification on a thread of the scheduler, because it waits for pages that the kernel is still reading
    /// from this process.
    pub(super) fn park(state: &Arc<AdapterState>, ino: INodeNo, range: Range<u64>) {
        let wait = WaitFor { need: WaitResource::Device(NOTIFICATIONS), key: None };
        state.scheduler.park(Arc::new(Self { state: state.clone(), ino, range }), wait);
    }
}

impl ScheduledJob for PageRecall {
    fn run(&self, _: &ReadRequest) -> Option<WaitFor> {
        if let Some(notifier) = self.state.notifier.get() {
            // An error means that the kernel has no pages of the file any more.
            let Range { start, end } = self.range;
            let _ = notifier.inval_inode(self.ino, start as i64, (end - start) as i64);
        }
        None
    }
}

/// The faults that have been logged. Each fault of a file is logged once, however many reads fail because of it. A
/// fault is identified by its file and cause, or else by its message.
#[derive(Debug, Default)]
pub(super) struct FaultLog(Mutex<HashSet<(PathBuf, Option<ErrorCause>)>>);

impl FaultLog {
    /// Logs an error of a request, unless it has been logged before or is not a fault of the source.
    fn log(&self, error: &fs::Error) {
        match error {
            fs::Error::Content(content::Error::Source(error)) => self.log_source(error),
            fs::Error::Model(_) | fs::Error::Changed { .. } => self.log_once((error.to_string().into(), None), error),
            _ => {}
        }
    }

    /// Logs an error of a source, unless it has been logged before.
    pub(super) fn log_source(&self, error: &source::Error) {
        let fault = match error.fault() {
            Some((path, cause)) => (path.to_owned(), Some(cause)),
            None => (error.to_string().into(), None),
        };
        self.log_once(fault, error);
    }

    fn log_once(&self, fault: (PathBuf, Option<ErrorCause>), error: &impl fmt::Display) {
        if self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(fault) {
            log::warn!("{error}");
        }
    }
}
