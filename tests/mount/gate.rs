//! A FUSE file system that the test itself serves, so that the test controls when and how reads are answered.

use crate::support::wait_until;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEntry, ReplyOpen, Request,
};
use nix::mount::{MntFlags, umount2};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

/// Name of its only file.
pub const FILE: &str = "model.safetensors";

/// A mounted file system of one file. Unmounted on drop.
pub struct Gate {
    point: PathBuf,
    served: Arc<Mutex<Served>>,
    _session: BackgroundSession,
}

struct Served {
    bytes: Vec<u8>,
    mtime: SystemTime,
    /// Reads of bytes at or after this offset are held.
    closed_from: u64,
    held: Vec<(u64, u32, ReplyData)>,
    /// Whether requests for attributes are held.
    hides_attributes: bool,
    held_attributes: Vec<(INodeNo, ReplyAttr)>,
    failing: bool,
    /// How long the kernel keeps attributes. If it is not zero, the kernel also keeps bytes when the file is opened.
    ttl: Duration,
}

impl Gate {
    /// Mounts a file of `bytes` with an old modification time.
    pub fn new(point: &Path, bytes: Vec<u8>) -> Self {
        Self::with_ttl(point, bytes, Duration::ZERO)
    }

    /// The same, but the kernel keeps attributes and bytes for ever, as if the file never changed.
    pub fn caching(point: &Path, bytes: Vec<u8>) -> Self {
        Self::with_ttl(point, bytes, Duration::from_secs(u32::MAX.into()))
    }

    fn with_ttl(point: &Path, bytes: Vec<u8>, ttl: Duration) -> Self {
        let mtime = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        let (held, hides_attributes, held_attributes, failing) = Default::default();
        let closed_from = u64::MAX;
        let served = Served { bytes, mtime, closed_from, held, hides_attributes, held_attributes, failing, ttl };
        let served = Arc::new(Mutex::new(served));
        let mut config = Config::default();
        if !ttl.is_zero() {
            // Otherwise the time of the last access, and with it all attributes, is requested again after each read.
            config.mount_options.push(MountOption::RO);
        }
        let session = fuser::spawn_mount(Server(served.clone()), point, &config).unwrap();
        Self { point: point.to_owned(), served, _session: session }
    }

    /// Holds every read that touches a byte at or after `offset`.
    pub fn close(&self, offset: u64) {
        self.served.lock().unwrap().closed_from = offset;
    }

    /// Waits until a read is held.
    pub fn wait_for_read(&self) {
        wait_until("the source is read", || !self.served.lock().unwrap().held.is_empty());
    }

    /// Holds every request for attributes. A process that waits for the reply cannot be killed.
    pub fn hide_attributes(&self) {
        self.served.lock().unwrap().hides_attributes = true;
    }

    /// Waits until a request for attributes is held.
    pub fn wait_for_getattr(&self) {
        wait_until("the attributes are read", || !self.served.lock().unwrap().held_attributes.is_empty());
    }

    /// Sets whether reads fail with EIO.
    pub fn fail(&self, failing: bool) {
        self.served.lock().unwrap().failing = failing;
    }

    /// Changes the bytes and the modification time of the file.
    pub fn write(&self, change: impl FnOnce(&mut [u8])) {
        let mut served = self.served.lock().unwrap();
        change(&mut served.bytes);
        served.mtime += Duration::from_secs(1);
    }

    /// Answers the held requests, and holds no more.
    pub fn open(&self) {
        let mut served = self.served.lock().unwrap();
        (served.closed_from, served.hides_attributes) = (u64::MAX, false);
        for (ino, reply) in std::mem::take(&mut served.held_attributes) {
            reply.attr(&Duration::ZERO, &served.attr(ino));
        }
        for (offset, size, reply) in std::mem::take(&mut served.held) {
            reply.data(served.range(offset, size));
        }
    }

    /// Aborts the FUSE connection while the file system is in use.
    pub fn die(&self) {
        // Unmounting fails if the mount is in use, but the kernel aborts the connection before it checks that.
        let _ = umount2(&self.point, MntFlags::MNT_FORCE);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // A held read would block unmounting.
        self.die();
    }
}

impl Served {
    fn range(&self, offset: u64, size: u32) -> &[u8] {
        let from = self.bytes.len().min(offset as usize);
        &self.bytes[from..self.bytes.len().min(from + size as usize)]
    }

    fn attr(&self, ino: INodeNo) -> FileAttr {
        let (kind, perm, size) = match ino {
            INodeNo::ROOT => (FileType::Directory, 0o755, 0),
            _ => (FileType::RegularFile, 0o644, self.bytes.len() as u64),
        };
        let (atime, mtime, ctime, crtime) = (self.mtime, self.mtime, self.mtime, self.mtime);
        let (blocks, nlink, uid, gid, rdev, blksize, flags) = (size.div_ceil(512), 1, 0, 0, 0, 4096, 0);
        FileAttr { ino, size, blocks, atime, mtime, ctime, crtime, kind, perm, nlink, uid, gid, rdev, blksize, flags }
    }
}

struct Server(Arc<Mutex<Served>>);

impl Filesystem for Server {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let served = self.0.lock().unwrap();
        match name == FILE {
            true => reply.entry(&served.ttl, &served.attr(INodeNo(2)), Generation(0)),
            false => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let mut served = self.0.lock().unwrap();
        match served.hides_attributes {
            true => served.held_attributes.push((ino, reply)),
            false => reply.attr(&served.ttl, &served.attr(ino)),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let keeps = !self.0.lock().unwrap().ttl.is_zero();
        reply.opened(FileHandle(0), if keeps { FopenFlags::FOPEN_KEEP_CACHE } else { FopenFlags::empty() });
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut served = self.0.lock().unwrap();
        if served.failing {
            reply.error(Errno::EIO);
        } else if offset + u64::from(size) > served.closed_from {
            served.held.push((offset, size, reply));
        } else {
            reply.data(served.range(offset, size));
        }
    }
}
