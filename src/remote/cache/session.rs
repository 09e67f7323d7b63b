//! An open cache: what is shared by its objects and by the threads that make room.

use super::ages::AgeClock;
use super::dir::{CacheDir, open_file};
use super::error::CacheError;
use super::key::ObjectDirId;
use super::partial::PartialBlocks;
use super::store::ObjectStorage;
use super::table::BootId;
use nix::fcntl::OFlag;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Options of a cache.
#[derive(Debug, Clone, Default)]
pub struct CacheOptions {
    /// The maximum size in bytes.
    pub limit: Option<u64>,
    /// Identifies the time since the system was started. By default, the boot id of the kernel.
    pub boot: Option<String>,
}

/// The block cache. Clones are the same cache.
#[derive(Debug, Clone)]
pub struct BlockCache(pub(super) Arc<CacheShared>);

#[derive(Debug)]
pub(super) struct CacheShared {
    pub dir: CacheDir,
    pub limit: Option<u64>,
    pub boot: BootId,
    /// Taken by the process that makes room.
    pub lock: File,
    /// Taken by the thread that makes room.
    pub evicting: Mutex<()>,
    pub clock: Arc<AgeClock>,
    /// Number of bytes that may be added before the sizes of all objects are counted again.
    pub budget: AtomicU64,
    pub open: Mutex<HashMap<ObjectDirId, Weak<ObjectStorage>>>,
    pub partials: Mutex<PartialBlocks>,
    /// The files of which [`BlockCache::has_version`] has found a version.
    pub found: OnceLock<HashSet<[u8; 16]>>,
    /// The blocks that [`BlockCache::take_evicted`] returns, and their objects.
    pub evicted: Mutex<Vec<(Arc<ObjectStorage>, Range<u64>)>>,
    /// Whether the log says already that the limit is exceeded.
    pub has_warned: AtomicBool,
}

impl BlockCache {
    /// Opens the cache in a directory, and creates it if it does not exist.
    ///
    /// Fails if the directory belongs to another user, or has a later layout. After this, no path is followed any more:
    /// all files are opened from descriptors of directories.
    pub fn open(dir: &Path, options: CacheOptions) -> Result<Self, CacheError> {
        let dir = CacheDir::create(dir)?;
        let lock = open_file(&dir.root, "lock", OFlag::O_RDWR | OFlag::O_CREAT);
        let lock = lock.map_err(CacheError::io(&dir.path.join("lock")))?;
        Ok(Self(Arc::new(CacheShared {
            dir,
            limit: options.limit,
            boot: options.boot.map_or_else(BootId::current, |id| BootId::named(&id)),
            lock,
            evicting: Mutex::default(),
            budget: AtomicU64::new(0),
            clock: Arc::new(AgeClock::new(options.limit)),
            open: Mutex::default(),
            partials: Mutex::default(),
            found: OnceLock::new(),
            evicted: Mutex::default(),
            has_warned: AtomicBool::new(false),
        })))
    }

    /// The objects that this process has open.
    pub(super) fn stores(&self) -> Vec<Arc<ObjectStorage>> {
        let mut open = self.open_stores();
        open.retain(|_, store| store.strong_count() > 0);
        open.values().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn open_stores(&self) -> MutexGuard<'_, HashMap<ObjectDirId, Weak<ObjectStorage>>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
