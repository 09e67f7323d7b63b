//! The adapter between fuser and the superblock.

use super::operations::{
    GetattrOperation, GetxattrOperation, ListxattrOperation, LookupOperation, ReadOperation, ReaddirOperation,
    ReaddirplusOperation,
};
use super::reader::{ReaderWatch, WaitingReader};
use super::state::AdapterState;
use crate::fs::{self, RequestOperation, Superblock};
use crate::schedule::Scheduler;
use crate::threads::cores;
use fuser::{
    BsdFileFlags, Config, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, SessionACL, TimeOrNow,
    WriteFlags,
};
use std::ffi::OsStr;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

/// The target of fuser's own log messages.
pub const LOG_TARGET: &str = "fuser";

/// The device through which the kernel sends requests.
pub const DEVICE: &str = "/dev/fuse";

/// The tree is immutable, so attributes never expire.
const TTL: Duration = Duration::from_secs(u32::MAX as u64);

/// Maximum number of background requests, such as read-ahead, that the kernel may have in flight. With fuser's default
/// of 16, the kernel drops read-ahead early. Reads of files that take long to compute count too. If they reached this
/// number, the read-ahead of all other readers would wait for them. The kernel has a lower limit for mounts of users.
const MAX_BACKGROUND: u16 = u16::MAX;

/// Capabilities that are requested if the kernel has them. READDIRPLUS_AUTO lists a directory with attributes when the
/// caller seems to need them. FUSE_NO_OPENDIR_SUPPORT is left out: the kernel would cache listings, and cached listings
/// have no attributes.
const CAPABILITIES: InitFlags = InitFlags::FUSE_NO_OPEN_SUPPORT
    .union(InitFlags::FUSE_DO_READDIRPLUS)
    .union(InitFlags::FUSE_READDIRPLUS_AUTO)
    .union(InitFlags::FUSE_PARALLEL_DIROPS)
    .union(InitFlags::FUSE_CACHE_SYMLINKS)
    .union(InitFlags::FUSE_ASYNC_DIO);

/// The users who may access a mount. File permissions apply in addition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MountAccess {
    /// The user who mounted the file system.
    Owner,
    /// The user who mounted the file system, and root.
    OwnerAndRoot,
    /// All users.
    All,
}

/// Options for serving requests.
#[derive(Debug, Clone, Copy)]
pub struct ServeOptions {
    /// The users who may send requests.
    pub access: MountAccess,
    /// Number of threads that receive requests.
    pub threads: usize,
    /// Whether reads bypass the page cache of the mount.
    pub direct_io: bool,
    /// Whether the kernel is asked to check the permissions of files, even if it was mounted without
    /// `default_permissions`.
    pub check_permissions: bool,
    /// The memory limit of the process in bytes, if there is one.
    pub memory: Option<u64>,
}

/// A mounted file system and its connection to the kernel.
#[derive(Debug)]
pub struct FuseSession(fuser::Session<FuseAdapter>);

impl FuseSession {
    /// Does the handshake with the kernel over `device`, the mounted descriptor of [`DEVICE`]. `watch` detects readers
    /// that no longer wait.
    pub fn new(superblock: Superblock, device: OwnedFd, serving: ServeOptions, watch: ReaderWatch) -> io::Result<Self> {
        let ServeOptions { access, threads, direct_io, check_permissions, memory } = serving;
        let acl = match access {
            MountAccess::Owner => SessionACL::Owner,
            MountAccess::OwnerAndRoot => SessionACL::RootAndOwner,
            MountAccess::All => SessionACL::All,
        };
        let mut config = Config::default();
        config.n_threads = Some(threads);
        // With its own descriptor of the device, each thread receives requests independently. fuser opens the device
        // again for each thread, so this process must have permission to do that.
        config.clone_fd = threads > 1 && std::fs::OpenOptions::new().read(true).write(true).open(DEVICE).is_ok();
        // For `OwnerAndRoot`, the kernel admits all users and fuser checks the user of each request. Names and
        // attributes in the kernel's cache would bypass that check.
        let ttl = if access == MountAccess::OwnerAndRoot { Duration::ZERO } else { TTL };
        let (faults, notifier) = Default::default();
        let state = Arc::new(AdapterState {
            superblock,
            scheduler: Scheduler::new(cores(), memory),
            watch,
            faults,
            notifier,
            ttl,
        });
        let adapter = FuseAdapter { state: state.clone(), direct_io, check_permissions, no_open: false };
        let session = fuser::Session::from_fd(adapter, device, acl, config)?;
        // The cell is empty, so this cannot fail.
        let _ = state.notifier.set(session.notifier());
        Ok(Self(session))
    }

    /// Serves requests until the file system is unmounted and nobody uses it any more.
    pub fn run(self) -> io::Result<()> {
        self.0.run()
    }
}

#[derive(Debug)]
struct FuseAdapter {
    state: Arc<AdapterState>,
    direct_io: bool,
    check_permissions: bool,
    /// Whether open is answered with ENOSYS: the kernel then sends no more open requests and keeps the page cache.
    no_open: bool,
}

impl FuseAdapter {
    /// Runs an operation on this thread, and replies with its result. If it has to wait, it is parked together with the
    /// reader, and runs again when it can continue.
    fn serve<O>(&self, request: &fuser::Request, operation: O, reply: O::Reply)
    where
        O: RequestOperation<AdapterState, Reply: 'static> + 'static,
    {
        let state = &self.state;
        let reader = || WaitingReader::new(request.pid(), &state.watch);
        fs::serve_request(&state.scheduler, state, operation, reply, reader);
    }
}

/// Operations that write. The kernel itself rejects them, unless root has remounted the file system read-write.
macro_rules! refuse {
    ($($name:ident($($argument:ty),*) -> $reply:ty;)*) => {
        $(fn $name(&self, _: &fuser::Request, $(_: $argument),*, reply: $reply) {
            reply.error(Errno::EROFS);
        })*
    };
}

impl Filesystem for FuseAdapter {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = match self.direct_io {
            // Direct I/O is set in the reply to open, so the kernel has to send open requests.
            true => (CAPABILITIES - InitFlags::FUSE_NO_OPEN_SUPPORT) | InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP,
            false => CAPABILITIES,
        };
        // With access control lists, the kernel always checks permissions. No file here has a list.
        let lists = if self.check_permissions { InitFlags::FUSE_POSIX_ACL } else { InitFlags::empty() };
        let capabilities = (wanted | lists) & config.capabilities();
        self.no_open = capabilities.contains(InitFlags::FUSE_NO_OPEN_SUPPORT);
        // These do not fail: only capabilities of the kernel are requested, and no value is zero.
        let _ = config.add_capabilities(capabilities);
        let _ = config.set_max_background(MAX_BACKGROUND);
        let _ = config.set_congestion_threshold(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, request: &fuser::Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        self.serve(request, LookupOperation { parent: parent.0, name: name.as_bytes().to_vec() }, reply);
    }

    fn getattr(&self, request: &fuser::Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.serve(request, GetattrOperation { ino: ino.0 }, reply);
    }

    fn readlink(&self, _: &fuser::Request, ino: INodeNo, reply: ReplyData) {
        match self.state.superblock.readlink(ino.0) {
            Ok(target) => reply.data(target),
            Err(error) => reply.error(self.state.errno(&error)),
        }
    }

    fn open(&self, _: &fuser::Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.no_open {
            reply.error(Errno::ENOSYS);
        } else {
            let cache = if self.direct_io { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_KEEP_CACHE };
            reply.opened(FileHandle(0), cache);
        }
    }

    fn read(
        &self,
        request: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let range = offset..offset.saturating_add(size.into());
        self.serve(request, ReadOperation { ino, range, content: OnceLock::new() }, reply);
    }

    fn readdir(&self, request: &fuser::Request, ino: INodeNo, _: FileHandle, offset: u64, reply: ReplyDirectory) {
        self.serve(request, ReaddirOperation { ino: ino.0, offset }, reply);
    }

    fn readdirplus(
        &self,
        request: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        reply: ReplyDirectoryPlus,
    ) {
        self.serve(request, ReaddirplusOperation { ino: ino.0, offset }, reply);
    }

    fn statfs(&self, _: &fuser::Request, _: INodeNo, reply: ReplyStatfs) {
        let statfs = self.state.superblock.statfs();
        reply.statfs(statfs.blocks, 0, 0, statfs.files, 0, fs::BLOCK_SIZE, fs::NAME_MAX, fs::SECTOR as u32);
    }

    fn getxattr(&self, request: &fuser::Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.serve(request, GetxattrOperation { ino: ino.0, name: name.as_bytes().to_vec(), size }, reply);
    }

    fn listxattr(&self, request: &fuser::Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.serve(request, ListxattrOperation { ino: ino.0, size }, reply);
    }

    // Operations that a read-only file system does not need. After ENOSYS, the kernel does not send them again.

    fn flush(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsync(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn fsyncdir(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn lseek(&self, _: &fuser::Request, _: INodeNo, _: FileHandle, _: i64, _: i32, reply: ReplyLseek) {
        reply.error(Errno::ENOSYS);
    }

    fn ioctl(
        &self,
        _: &fuser::Request,
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
