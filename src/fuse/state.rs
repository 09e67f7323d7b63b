//! What all requests share, and how results become replies of fuser.

use super::faults::FaultLog;
use super::reader::ReaderWatch;
use crate::content::{self, ReadRequest, WaitFor, WaitResource};
use crate::fs::{self, Attr, FileKind, Superblock};
use crate::model;
use crate::schedule::{ScheduledJob, Scheduler};
use crate::source::{self, Bytes, RemoteFailure};
use fuser::{Errno, FileAttr, FileType, Generation, INodeNo, Notifier, ReplyData, ReplyEntry, ReplyXattr};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, UNIX_EPOCH};

/// Inode numbers are never reused.
pub(super) const GENERATION: Generation = Generation(0);

/// The lane of the scheduler for notifications to the kernel. No device has this number.
const NOTIFICATIONS: u64 = u64::MAX;

/// State that requests share with parked operations.
#[derive(Debug)]
pub(super) struct AdapterState {
    pub superblock: Superblock,
    pub scheduler: Scheduler,
    pub watch: ReaderWatch,
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
        fs::Error::Model(model::Error::Source(error)) => source_errno(error),
        fs::Error::Changed { .. } | fs::Error::Model(_) => Errno::EIO,
        fs::Error::Content(error) => match error {
            content::Error::Source(error) => source_errno(error),
            content::Error::Compute(_) => Errno::EIO,
            content::Error::Interrupted => Errno::EINTR,
            content::Error::TimedOut => Errno::ETIMEDOUT,
            content::Error::WouldBlock(_) => Errno::EAGAIN,
            content::Error::NoMemory => Errno::ENOMEM,
        },
    }
}

fn source_errno(error: &source::Error) -> Errno {
    match error {
        source::Error::Changed { .. } | source::Error::Replaced { .. } => Errno::ESTALE,
        source::Error::Remote { failure: RemoteFailure::Changed, .. } => Errno::ESTALE,
        source::Error::Remote { .. } => Errno::EIO,
        source::Error::Outside { .. } => Errno::EACCES,
        source::Error::Cut { .. } | source::Error::OutOfRange { .. } | source::Error::NotAFile { .. } => Errno::EIO,
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

/// The reply for a name that does not exist: inode number 0. The kernel caches this reply, but not an ENOENT error.
fn no_entry() -> FileAttr {
    file_attr(&NO_ATTR)
}

/// Empty attributes.
pub(super) const NO_ATTR: Attr =
    Attr { ino: 0, kind: FileKind::File, size: 0, blocks: 0, nlink: 0, perm: 0, uid: 0, gid: 0, mtime: UNIX_EPOCH };

/// Replies with an extended attribute: its size if `size` is 0, otherwise its bytes if they fit into `size`.
pub(super) fn reply_xattr(value: Result<Vec<u8>, Errno>, size: u32, reply: ReplyXattr) {
    match value {
        Err(errno) => reply.error(errno),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
    }
}

impl AdapterState {
    /// The errno of a failed operation. Logs the fault if it is new.
    pub(super) fn errno(&self, error: &fs::Error) -> Errno {
        self.faults.log(error);
        errno(error)
    }

    /// Replies to a read. Returns false if the source has changed since it was opened, so that the kernel may have
    /// copied bytes of another version.
    pub(super) fn reply_read(&self, read: Result<Bytes, fs::Error>, reply: ReplyData) -> bool {
        let bytes = match read {
            Ok(bytes) => bytes,
            Err(error) => {
                reply.error(self.errno(&error));
                return true;
            }
        };
        // This comes first, so that a reader who has received bytes finds them counted.
        self.superblock.count_served(bytes.len());
        // fuser does not return the result of writing the reply. But that is the last system call here, so errno holds
        // its error. EFAULT means that the kernel could not read the bytes and returned EIO to the reader.
        nix::errno::Errno::clear();
        reply.data(&bytes);
        let unreadable = nix::errno::Errno::last() == nix::errno::Errno::EFAULT;
        match bytes.verify(unreadable) {
            Ok(()) => true,
            Err(error) => {
                self.faults.log_source(&error);
                false
            }
        }
    }

    /// Drops a range of a file from the page cache, because its source has changed. The notification waits for pages
    /// that the kernel is still reading from this process, so a thread of the scheduler sends it.
    pub(super) fn recall(self: &Arc<Self>, ino: INodeNo, range: &Range<u64>) {
        let recall = PageRecall { state: self.clone(), ino, range: range.clone() };
        self.scheduler.park(Arc::new(recall), WaitFor { need: WaitResource::Device(NOTIFICATIONS), key: None });
    }

    /// Replies to a lookup.
    pub(super) fn reply_entry(&self, found: Result<Attr, fs::Error>, reply: ReplyEntry) {
        match found {
            Ok(attr) => reply.entry(&self.ttl, &file_attr(&attr), GENERATION),
            Err(fs::Error::NoEntry) => reply.entry(&self.ttl, &no_entry(), GENERATION),
            Err(error) => reply.error(self.errno(&error)),
        }
    }
}

/// Sends a notification to the kernel.
struct PageRecall {
    state: Arc<AdapterState>,
    ino: INodeNo,
    /// In bytes.
    range: Range<u64>,
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

    fn is_cancelled(&self) -> bool {
        false
    }

    fn cancel(&self) {}
}
