//! An open cache: what is shared by its objects and by the threads that make room.

use super::ages::Clock;
use super::dir::{CacheDir, open_file};
use super::error::Error;
use super::key::Id;
use super::partial::Partials;
use super::store::Store;
use super::table::Boot;
use nix::fcntl::OFlag;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// How a cache is used.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The maximum size in bytes.
    pub limit: Option<u64>,
    /// Identifies the time since the system was started. By default, the boot id of the kernel.
    pub boot: Option<String>,
}

/// The block cache. Clones are the same cache.
#[derive(Debug, Clone)]
pub struct Cache(pub(super) Arc<Shared>);

#[derive(Debug)]
pub(super) struct Shared {
    pub dir: CacheDir,
    pub limit: Option<u64>,
    pub boot: Boot,
    /// Taken by the process that makes room.
    pub lock: File,
    /// Taken by the thread that makes room.
    pub evicting: Mutex<()>,
    pub clock: Arc<Clock>,
    /// How many bytes may be added before the sizes of all objects are counted again.
    pub budget: AtomicU64,
    pub open: Mutex<HashMap<Id, Weak<Store>>>,
    pub partials: Mutex<Partials>,
    /// The files of which [`Cache::has_version`] has found a version.
    pub found: OnceLock<HashSet<[u8; 16]>>,
    /// The blocks that [`Cache::take_evicted`] returns, and their objects.
    pub evicted: Mutex<Vec<(Arc<Store>, Range<u64>)>>,
    /// Whether the log says already that the limit is exceeded.
    pub has_warned: AtomicBool,
}

impl Cache {
    /// Opens the cache in a directory, and creates it if it does not exist.
    ///
    /// Fails if the directory belongs to another user, or has a later layout. After this, no path is followed any more:
    /// all files are opened from descriptors of directories.
    pub fn open(dir: &Path, options: Options) -> Result<Self, Error> {
        let dir = CacheDir::create(dir)?;
        let lock = open_file(&dir.root, "lock", OFlag::O_RDWR | OFlag::O_CREAT);
        let lock = lock.map_err(Error::io(&dir.path.join("lock")))?;
        Ok(Self(Arc::new(Shared {
            dir,
            limit: options.limit,
            boot: options.boot.map_or_else(Boot::current, |id| Boot::named(&id)),
            lock,
            evicting: Mutex::default(),
            budget: AtomicU64::new(0),
            clock: Arc::new(Clock::new(options.limit)),
            open: Mutex::default(),
            partials: Mutex::default(),
            found: OnceLock::new(),
            evicted: Mutex::default(),
            has_warned: AtomicBool::new(false),
        })))
    }

    /// The objects that this process has open.
    pub(super) fn stores(&self) -> Vec<Arc<Store>> {
        let mut open = self.open_stores();
        open.retain(|_, store| store.strong_count() > 0);
        open.values().filter_map(Weak::upgrade).collect()
    }

    pub(super) fn open_stores(&self) -> MutexGuard<'_, HashMap<Id, Weak<Store>>> {
        self.0.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
