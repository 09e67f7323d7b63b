//! The FUSE adapter: the only file that names fuser. It converts, calls the superblock and replies; it decides nothing.

use crate::content;
use crate::fs::{self, Attr, FileKind, Superblock};
use crate::reader::{Reader, Watch};
use crate::source::{self, Bytes};
use crate::threads::Workers;
use fuser::{
    BsdFileFlags, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    InitFlags, KernelConfig, LockOwner, Notifier, OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData,
    ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs,
    ReplyWrite, ReplyXattr, Request, SessionACL, TimeOrNow, WriteFlags,
};
use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// By this name the log knows the library underneath.
pub const LOG_TARGET: &str = "fuser";

/// Over this device the kernel asks.
pub const DEVICE: &str = "/dev/fuse";

/// For ever: the tree never changes.
const TTL: Duration = Duration::from_secs(u32::MAX as u64);

/// There is one tree, and no inode number is ever used again.
const GENERATION: Generation = Generation(0);

/// Requests that the kernel may have under way for read-ahead. Its own default of 16 drops read-ahead early; and those that
/// wait for a long computation count, too, so that a folder of pictures must not use them up.
const MAX_BACKGROUND: u16 = 1024;

/// Most threads that wait for long computations.
const WORKERS: usize = 128;

/// What speeds things up, where the kernel has it. A directory is listed with attributes when the caller seems to want
/// them, so it must not be cached: from the cache it would come without.
const CAPABILITIES: InitFlags = InitFlags::FUSE_NO_OPEN_SUPPORT
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_ASYNC_DIO);

/// Who may use a mount, besides the permissions of its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// The user who mounted it.
    Owner,
    /// That user and root.
    OwnerAndRoot,
    /// Everyone.
    All,
}

/// How requests are served.
#[derive(Debug, Clone, Copy)]
pub struct Serving {
    /// Who may send them.
    pub access: Access,
    /// Threads that take them.
    pub threads: usize,
    /// Whether reads go past the page cache of the mount.
    pub direct_io: bool,
}

/// A mounted file system that is being, or about to be, served.
#[derive(Debug)]
pub struct Session(fuser::Session<FuseAdapter>);

impl Session {
    /// Shakes hands with the kernel over `device`, [`DEVICE`] opened and mounted. By `watch` it sees readers leave.
    pub fn new(superblock: Superblock, device: OwnedFd, serving: Serving, watch: Watch) -> io::Result<Self> {
        let Serving { access, threads, direct_io } = serving;
        let acl = match access {
            Access::Owner => SessionACL::Owner,
            Access::OwnerAndRoot => SessionACL::RootAndOwner,
            Access::All => SessionACL::All,
        };
        let mut config = Config::default();
        config.n_threads = Some(threads);
        // A descriptor for each thread lets them take requests side by side. It needs the device once more.
        config.clone_fd = threads > 1 && std::fs::OpenOptions::new().read(true).write(true).open(DEVICE).is_ok();
        // Root and owner only: the kernel lets everyone in and each request says whose it is, so that each must be made.
        let ttl = if access == Access::OwnerAndRoot { Duration::ZERO } else { TTL };
        let (superblock, workers) = (superblock.into(), Workers::new(WORKERS));
        let notifier = Arc::new(OnceLock::new());
        let notify = notifier.clone();
        let adapter = FuseAdapter { superblock, workers, watch, notifier: notify, ttl, direct_io, no_open: false };
        let session = fuser::Session::from_fd(adapter, device, acl, config)?;
        // Empty until now.
        let _ = notifier.set(session.notifier());
        Ok(Self(session))
    }

    /// Serves requests until the file system is unmounted and nobody uses it any more.
    pub fn run(self) -> io::Result<()> {
        self.0.run()
    }
}

#[derive(Debug)]
struct FuseAdapter {
    superblock: Arc<Superblock>,
    workers: Workers,
    watch: Watch,
    /// There once the session stands.
    notifier: Arc<OnceLock<Notifier>>,
    /// How long the kernel may believe an answer.
    ttl: Duration,
    direct_io: bool,
    /// Whether the kernel takes ENOSYS to mean that opening needs no message and keeps every cache.
    no_open: bool,
}

fn errno(error: &fs::Error) -> Errno {
    match error {
        fs::Error::NoEntry => Errno::ENOENT,
        fs::Error::NotADirectory => Errno::ENOTDIR,
        fs::Error::IsADirectory => Errno::EISDIR,
        fs::Error::NoAttribute => Errno::ENODATA,
        fs::Error::NotALink => Errno::EINVAL,
        fs::Error::Model(_) | fs::Error::Content(content::Error::Picture(_)) => Errno::EIO,
        fs::Error::Content(content::Error::Interrupted) => Errno::EINTR,
        fs::Error::Content(content::Error::Source(error)) => match error {
            source::Error::Changed { .. } | source::Error::Replaced { .. } => Errno::ESTALE,
            source::Error::Outside { .. } => Errno::EACCES,
            source::Error::Cut { .. } | source::Error::OutOfRange { .. } | source::Error::NotAFile { .. } => Errno::EIO,
            source::Error::Io { error, .. } => match error.raw_os_error() {
                // The daemon that is gone is that of the source, and the reader would take it for this one.
                None | Some(nix::libc::ENOTCONN | nix::libc::ECONNABORTED) => Errno::EIO,
                Some(errno) => Errno::from_i32(errno),
            },
        },
    }
}

fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::Dir => FileType::Directory,
        FileKind::File => FileType::RegularFile,
        FileKind::Link => FileType::Symlink,
    }
}

fn file_attr(attr: &Attr) -> FileAttr {
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

/// "There is no such name", to be remembered: inode number 0 says so with a time to live, ENOENT without.
fn no_entry() -> FileAttr {
    let (size, blocks, nlink, perm, uid, gid) = Default::default();
    file_attr(&Attr { ino: 0, kind: FileKind::File, size, blocks, nlink, perm, uid, gid, mtime: UNIX_EPOCH })
}

/// Answers a question for an extended attribute: with its size where the caller asked for that, with the bytes if they fit.
fn reply_xattr(value: Result<Vec<u8>, fs::Error>, size: u32, reply: ReplyXattr) {
    match value {
        Err(error) => reply.error(errno(&error)),
        Ok(value) if size == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
    }
}

thread_local! {
    /// Whether the kernel could not read the last answer of this thread.
    static UNREADABLE: Cell<bool> = const { Cell::new(false) };
}

/// To be told of each message of the library underneath, [`LOG_TARGET`]: that an answer did not arrive it tells the log, and
/// nobody else. The kernel has told the reader then.
pub fn heed(message: &log::Record) {
    let unreadable = io::Error::from_raw_os_error(nix::libc::EFAULT).to_string();
    if message.level() == log::Level::Error && message.args().to_string().ends_with(&unreadable) {
        UNREADABLE.set(true);
    }
}

/// Answers a read; says whether the answer was as good when it arrived as when it was made.
fn reply_read(read: Result<Bytes, fs::Error>, reply: ReplyData) -> bool {
    match read {
        Ok(bytes) => {
            UNREADABLE.set(false);
            reply.data(&bytes);
            bytes.look_again(UNREADABLE.get()).is_ok()
        }
        Err(error) => {
            reply.error(errno(&error));
            true
        }
    }
}

impl FuseAdapter {
    /// Has the kernel forget a part of a file that it may have copied while the source was written to.
    fn recall(&self, ino: INodeNo, offset: u64, size: u32) {
        let Some(notifier) = self.notifier.get().cloned() else { return };
        // In a thread of its own: the kernel waits for pages that it has asked us for. Where there is none to be had, or
        // the kernel has forgotten them already, nothing is lost.
        let recall = move || drop(notifier.inval_inode(ino, offset as i64, size.into()));
        let _ = std::thread::Builder::new().name("recall".into()).spawn(recall);
    }
}

/// Operations that would write. The kernel refuses them on a read-only mount, unless root has made it another by force.
macro_rules! refuse {
    ($($name:ident($($argument:ty),*) -> $reply:ty;)*) => {
        $(fn $name(&self, _: &Request, $(_: $argument),*, reply: $reply) {
            reply.error(Errno::EROFS);
        })*
    };
}

impl Filesystem for FuseAdapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = match self.direct_io {
            // That a file is read directly is said when it is opened.
            true => (CAPABILITIES - InitFlags::FUSE_NO_OPEN_SUPPORT) | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            false => CAPABILITIES,
        };
        let capabilities = wanted & config.capabilities();
        self.no_open = capabilities.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        // Neither can be refused: only what the kernel has is asked for, and no value is zero.
        let _ = config.add_capabilities(capabilities);
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_congestion_threshold(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.superblock.lookup(parent.0, name.as_bytes()) {
            Ok(attr) => reply.entry(&self.ttl, &file_attr(&attr), GENERATION),
            Err(fs::Error::NoEntry) => reply.entry(&self.ttl, &no_entry(), GENERATION),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.superblock.getattr(ino.0) {
            Ok(attr) => reply.attr(&self.ttl, &file_attr(&attr)),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readlink(&self, _: &Request, ino: INodeNo, reply: ReplyData) {
        match self.superblock.readlink(ino.0) {
            Ok(target) => reply.data(target),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.no_open {
            reply.error(Errno::ENOSYS);
        } else {
            let cache = if self.direct_io { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_KEEP_CACHE };
            reply.opened(FileHandle(0), cache);
        }
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        if !self.superblock.is_slow(ino.0) {
            if !reply_read(self.superblock.read(ino.0, offset, size, &|| false), reply) {
                self.recall(ino, offset, size);
            }
            return;
        }
        let (superblock, reader) = (self.superblock.clone(), Reader::new(request.pid(), &self.watch));
        self.workers.run(move || {
            reply_read(superblock.read(ino.0, offset, size, &|| reader.is_leaving()), reply);
        });
    }

    fn readdir(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        let listed = self.superblock.readdir(ino.0, offset, |entry| {
            reply.add(INodeNo(entry.ino), entry.next, file_type(entry.kind), &*entry.name)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn readdirplus(&self, _: &Request, ino: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectoryPlus) {
        let listed = self.superblock.readdir(ino.0, offset, |entry| {
            let Ok(attr) = self.superblock.getattr(entry.ino) else { return true };
            reply.add(INodeNo(entry.ino), entry.next, &*entry.name, &self.ttl, &file_attr(&attr), GENERATION)
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(errno(&error)),
        }
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        let statfs = self.superblock.statfs();
        reply.statfs(statfs.blocks, 0, 0, statfs.files, 0, fs::BLOCK_SIZE, fs::NAME_MAX, fs::SECTOR as u32);
    }

    fn getxattr(&self, _: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        reply_xattr(self.superblock.getxattr(ino.0, name.as_bytes()), size, reply);
    }

    fn listxattr(&self, _: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        reply_xattr(self.superblock.listxattr(ino.0), size, reply);
    }

    // Operations that a read-only file system has no use for: the kernel asks once, or not again for the file.

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsyncdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, _: &Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        _: fuser::IoctlFlags,
        _: u32,
        _: &[u8],
        _: u32,
        reply: ReplyIoctl,
    ) {
        reply.error(Errno::ENOTTY);
    }

    refuse! {
        setattr(INodeNo, Option<u32>, Option<u32>, Option<u32>, Option<u64>, Option<TimeOrNow>, Option<TimeOrNow>,
            Option<SystemTime>, Option<FileHandle>, Option<SystemTime>, Option<SystemTime>, Option<SystemTime>,
            Option<BsdFileFlags>) -> ReplyAttr;
        mknod(INodeNo, &OsStr, u32, u32, u32) -> ReplyEntry;
        mkdir(INodeNo, &OsStr, u32, u32) -> ReplyEntry;
        unlink(INodeNo, &OsStr) -> ReplyEmpty;
        rmdir(INodeNo, &OsStr) -> ReplyEmpty;
        symlink(INodeNo, &OsStr, &Path) -> ReplyEntry;
        rename(INodeNo, &OsStr, INodeNo, &OsStr, RenameFlags) -> ReplyEmpty;
        link(INodeNo, INodeNo, &OsStr) -> ReplyEntry;
        write(INodeNo, FileHandle, u64, &[u8], WriteFlags, OpenFlags, Option<LockOwner>) -> ReplyWrite;
        create(INodeNo, &OsStr, u32, u32, i32) -> ReplyCreate;
        setxattr(INodeNo, &OsStr, &[u8], i32, u32) -> ReplyEmpty;
        removexattr(INodeNo, &OsStr) -> ReplyEmpty;
        fallocate(INodeNo, FileHandle, u64, u64, i32) -> ReplyEmpty;
    }
}
