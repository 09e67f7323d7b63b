//! The adapter between fuser and the superblock.

use super::operations::{
    GetattrOperation, LookupOperation, ReadOperation, ReaddirOperation, ReaddirplusOperation, XattrOperation,
};
use super::reader::{ReaderWatch, WaitingReader};
use super::state::AdapterState;
use crate::content::{OperationPlan, ReadRequest};
use crate::fs::{self, MountedTree, ROOT, RequestOperation, Superblock};
use crate::schedule::Scheduler;
use crate::threads::cores;
use fuser::{
    BsdFileFlags, Config, Errno, FileHandle, Filesystem, FopenFlags, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, RenameFlags, ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty,
    ReplyEntry, ReplyIoctl, ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, SessionACL, TimeOrNow,
    WriteFlags,
};
use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// The target of fuser's own log messages.
pub const LOG_TARGET: &str = "fuser";

pub const DEVICE: &str = "/dev/fuse";

/// A tree is immutable, so names and attributes do not expire. A notification ends them when it is replaced.
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
    OwnerAndRoot,
    All,
}

#[derive(Debug, Clone, Copy)]
pub struct ServeOptions {
    pub access: MountAccess,
    pub threads: usize,
    /// Whether reads bypass the page cache of the mount.
    pub direct_io: bool,
    /// Whether the kernel is asked to check the permissions of files, even if it was mounted without
    /// `default_permissions`.
    pub check_permissions: bool,
    /// The memory limit of the process in bytes, if there is one.
    pub memory: Option<u64>,
}

#[derive(Debug)]
pub struct FuseSession {
    session: fuser::Session<FuseAdapter>,
    state: Arc<AdapterState>,
}

impl FuseSession {
    /// Does the handshake with the kernel over `device`, the mounted descriptor of [`DEVICE`]. `watch` detects readers
    /// that no longer wait.
    pub fn new(tree: MountedTree, device: OwnedFd, serving: ServeOptions, watch: Arc<ReaderWatch>) -> io::Result<Self> {
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
        let scheduler = Scheduler::new(cores(), memory);
        let state = Arc::new(AdapterState { tree, scheduler, watch, faults, notifier, ttl });
        let adapter = FuseAdapter { state: state.clone(), direct_io, check_permissions, no_open: false };
        let session = fuser::Session::from_fd(adapter, device, acl, config)?;
        // The cell is empty, so this cannot fail.
        let _ = state.notifier.set(session.notifier());
        Ok(Self { session, state })
    }

    /// Until the file system is unmounted and nobody uses it any more.
    pub fn run(self) -> io::Result<()> {
        self.session.run()
    }

    pub fn replacer(&self) -> TreeReplacer {
        TreeReplacer(self.state.clone())
    }
}

/// Replaces the tree of a mount.
#[derive(Debug, Clone)]
pub struct TreeReplacer(Arc<AdapterState>);

impl TreeReplacer {
    /// Makes `superblock` the tree of the mount. When this returns, all names lead to it; files that are open keep the
    /// tree in which they were opened. Do not call this on a thread that serves requests: the kernel waits for the
    /// lookups that it has sent.
    ///
    /// Fails if a root cannot be listed, or if all inode numbers are in use.
    pub fn replace(&self, superblock: Superblock) -> Result<(), fs::Error> {
        let state = &self.0;
        let mut names = root_names(&superblock)?;
        names.extend(root_names(state.tree.generations().current())?);
        state.tree.replace(superblock)?;
        let Some(notifier) = state.notifier.get() else { return Ok(()) };
        // All other inodes of the replaced tree are below these entries. The kernel forgets entries of the root that do
        // not exist too, as the new tree may have them. An error means that the kernel knows no such entry.
        for name in names {
            let _ = notifier.inval_entry(INodeNo(ROOT), &name);
        }
        // Without a range of pages, this is about the attributes only.
        let _ = notifier.inval_inode(INodeNo(ROOT), -1, 0);
        Ok(())
    }

    /// Number of trees that are in use: the current one, and replaced ones with open files.
    pub fn trees_in_use(&self) -> usize {
        self.0.tree.len_in_use()
    }
}

fn root_names(superblock: &Superblock) -> Result<BTreeSet<OsString>, fs::Error> {
    let mut names = BTreeSet::new();
    superblock.readdir(ROOT, 0, &ReadRequest::WAIT, |entry| {
        names.insert(entry.name.into_owned());
        false
    })?;
    Ok(names)
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
        fs::serve_request(&state.scheduler, state, operation, reply, || {
            WaitingReader::new(request.pid(), &state.watch)
        });
    }

    fn reply_open(&self, ino: INodeNo, flags: FopenFlags, reply: ReplyOpen) {
        match self.state.tree.opened(ino.0) {
            Ok(()) => reply.opened(FileHandle(0), flags),
            Err(error) => reply.error(self.state.errno(&error)),
        }
    }
}

/// Operations that always fail with the same error.
macro_rules! refuse {
    ($errno:ident $($name:ident($($argument:ty),*) -> $reply:ty;)*) => {
        $(fn $name(&self, _: &fuser::Request, $(_: $argument),*, reply: $reply) {
            reply.error(Errno::$errno);
        })*
    };
}

impl Filesystem for FuseAdapter {
    fn init(&mut self, _: &fuser::Request, config: &mut KernelConfig) -> io::Result<()> {
        // Direct I/O is set in the reply to open, and a tree that may be replaced counts its open files. So the kernel
        // has to send open requests then.
        let mut wanted = CAPABILITIES;
        wanted.set(InitFlags::FUSE_NO_OPEN_SUPPORT, !self.direct_io && !self.state.tree.is_replaceable());
        wanted.set(InitFlags::FUSE_DIRECT_IO_ALLOW_MMAP, self.direct_io);
        // With access control lists, the kernel always checks permissions. No file here has a list.
        wanted.set(InitFlags::FUSE_POSIX_ACL, self.check_permissions);
        let capabilities = wanted & config.capabilities();
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
        let generations = self.state.tree.generations();
        match generations.find(ino.0).and_then(|(tree, ino)| tree.readlink(ino)) {
            Ok(target) => reply.data(target),
            Err(error) => reply.error(self.state.errno(&error)),
        }
    }

    fn open(&self, _: &fuser::Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        if self.no_open {
            return reply.error(Errno::ENOSYS);
        }
        let cache = if self.direct_io { FopenFlags::FOPEN_DIRECT_IO } else { FopenFlags::FOPEN_KEEP_CACHE };
        self.reply_open(ino, cache, reply);
    }

    fn release(
        &self,
        _: &fuser::Request,
        ino: INodeNo,
        _: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.state.tree.closed(ino.0);
        reply.ok();
    }

    fn opendir(&self, _: &fuser::Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        self.reply_open(ino, FopenFlags::empty(), reply);
    }

    fn releasedir(&self, _: &fuser::Request, ino: INodeNo, _: FileHandle, _: OpenFlags, reply: ReplyEmpty) {
        self.state.tree.closed(ino.0);
        reply.ok();
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
        self.serve(request, ReadOperation { ino, range, plan: OperationPlan::default() }, reply);
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
        let statfs = self.state.tree.generations().current().statfs();
        reply.statfs(statfs.blocks, 0, 0, statfs.files, 0, fs::BLOCK_SIZE, fs::NAME_MAX, fs::SECTOR as u32);
    }

    fn getxattr(&self, request: &fuser::Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        self.serve(request, XattrOperation { ino: ino.0, name: Some(name.as_bytes().to_vec()), size }, reply);
    }

    fn listxattr(&self, request: &fuser::Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        self.serve(request, XattrOperation { ino: ino.0, name: None, size }, reply);
    }

    // A read-only file system does not need these. After ENOSYS, the kernel does not send them again.
    refuse! {
        ENOSYS
        flush(INodeNo, FileHandle, LockOwner) -> ReplyEmpty;
        fsync(INodeNo, FileHandle, bool) -> ReplyEmpty;
        fsyncdir(INodeNo, FileHandle, bool) -> ReplyEmpty;
        lseek(INodeNo, FileHandle, i64, i32) -> ReplyLseek;
    }

    refuse! {
        ENOTTY
        ioctl(INodeNo, FileHandle, fuser::IoctlFlags, u32, &[u8], u32) -> ReplyIoctl;
    }

    // The kernel itself rejects these, unless root has remounted the file system read-write.
    refuse! {
        EROFS
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
