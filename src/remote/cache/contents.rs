//! The objects of a cache: lists them, and removes those that are no longer wanted.

use super::BlockCache;
use super::about::ObjectAbout;
use super::dir::{CacheDir, open_dir, open_file, stat_at};
use super::error::CacheError;
use super::evict::{EvictOutcome, evict_unused};
use super::files::{DATA, LOCK};
use super::key::{ObjectDirId, file_hash};
use super::listings::{self, KeptListings};
use super::lock;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::statvfs::statvfs;
use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// An object in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheEntry {
    /// The name of its directory.
    pub id: String,
    /// Its name, for people. `None` if the description is damaged; it is repaired when the object is next used.
    pub name: Option<String>,
    /// Identifies the version of the file. `None` if the description is damaged.
    pub validator: Option<String>,
    /// Size of the file in bytes.
    pub len: u64,
    /// Number of bytes that are present, rounded to blocks of the file system.
    pub present: u64,
    /// When it was used last. Up to a minute earlier than that if a process was killed.
    pub last_use: SystemTime,
    /// Whether a process uses it now.
    pub in_use: bool,
}

/// The objects of a cache.
#[derive(Debug, Default)]
pub struct CacheContents {
    /// The objects, the most recently used first.
    pub entries: Vec<CacheEntry>,
    /// The kept listings.
    pub listings: KeptListings,
    /// The files in the directory of objects that are not objects. They are left alone.
    pub unknown: Vec<PathBuf>,
    /// Why other objects cannot be described.
    pub failed: Vec<CacheError>,
}

impl CacheContents {
    /// Number of bytes of all objects that are present.
    pub fn cached(&self) -> u64 {
        self.entries.iter().map(|entry| entry.present).fold(0, u64::saturating_add)
    }
}

/// The size that a cache in `dir` may have if the user sets no limit, in bytes: half of what is free or in the cache,
/// which has `cached` bytes. `None` if that is unknown.
pub fn default_limit(dir: &Path, cached: u64) -> Option<u64> {
    // The directory may not exist yet.
    let stat = dir.ancestors().find_map(|dir| statvfs(dir).ok())?;
    let free = stat.blocks_available().saturating_mul(stat.fragment_size());
    Some(free.saturating_add(cached) / 2)
}

/// The objects to remove from a cache. Objects in use are kept in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PruneOptions {
    /// Removes what was used least recently until this many bytes are left. With 0, empty objects and all kept listings
    /// are removed too.
    pub size: Option<u64>,
    /// Removes objects and kept listings that were last used before this time.
    pub unused_since: Option<SystemTime>,
    /// Counts what would be removed, and removes nothing.
    pub dry_run: bool,
}

/// The bytes that were freed of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreedObject {
    /// The object before that.
    pub entry: CacheEntry,
    /// The number of bytes.
    pub bytes: u64,
    /// Whether it was removed. Otherwise blocks at its end were.
    pub is_removed: bool,
}

/// The outcome of [`BlockCache::prune`].
#[derive(Debug, Default)]
pub struct PruneOutcome {
    /// The bytes that were freed, the least recently used object first.
    pub objects: Vec<FreedObject>,
    /// The removed listings.
    pub listings: KeptListings,
    /// Number of bytes of objects that are left.
    pub left: u64,
    /// Objects that were not touched because they are in use.
    pub in_use: Vec<CacheEntry>,
    /// Why other objects were not touched.
    pub failed: Vec<CacheError>,
}

impl PruneOutcome {
    /// Number of bytes of objects that were freed.
    pub fn freed(&self) -> u64 {
        self.objects.iter().fold(0, |sum, freed| sum.saturating_add(freed.bytes))
    }

    /// Number of objects that were removed.
    pub fn removed(&self) -> usize {
        self.objects.iter().filter(|freed| freed.is_removed).count()
    }
}

/// The size of an object on the disk.
#[derive(Debug)]
pub(super) struct ObjectSize {
    pub id: ObjectDirId,
    pub bytes: u64,
    pub last_use: SystemTime,
}

impl BlockCache {
    /// Lists a cache. One that does not exist is empty.
    pub fn list(dir: &Path) -> Result<CacheContents, CacheError> {
        let mut contents = CacheContents::default();
        let Some(dir) = CacheDir::open(dir)? else { return Ok(contents) };
        let names = dir.names()?.into_iter();
        contents.unknown =
            names.filter(|name| ObjectDirId::parse(name).is_none()).map(|name| dir.path_of(name)).collect();
        contents.unknown.sort();
        let mut all = sizes(&dir, |_| true, &mut contents.failed)?;
        all.sort_by_key(|size| Reverse(size.last_use));
        contents.entries = cache_entries(&dir, &all, &mut contents.failed);
        contents.listings = listings::count_listings(&dir)?;
        Ok(contents)
    }

    /// The versions of a file in the cache, the most recently used first. `identity` is that of their keys.
    /// [`CacheEntry::present`] is 0 for those without blocks.
    pub fn versions(&self, identity: &str) -> Result<Vec<CacheEntry>, CacheError> {
        let file = file_hash(identity);
        let mut failed = Vec::new();
        let mut versions = sizes(&self.0.dir, |id| id.file == file, &mut failed)?;
        versions.sort_by_key(|size| Reverse(size.last_use));
        let versions = cache_entries(&self.0.dir, &versions, &mut failed);
        log_all(&failed);
        Ok(versions)
    }

    /// Whether the cache had a version of a file when this was first asked.
    pub fn has_version(&self, identity: &str) -> bool {
        let found = self.0.found.get_or_init(|| {
            // Without the names, the first bytes are fetched although they may be present.
            let names = self.0.dir.names().unwrap_or_default();
            names.iter().filter_map(|name| Some(ObjectDirId::parse(name)?.file)).collect()
        });
        found.contains(&file_hash(identity))
    }

    /// Removes what is not wanted from a cache. One that does not exist is empty.
    pub fn prune(dir: &Path, pruning: &PruneOptions) -> Result<PruneOutcome, CacheError> {
        let mut pruned = PruneOutcome::default();
        let Some(dir) = CacheDir::open(dir)? else { return Ok(pruned) };
        let is_old = |last_use: SystemTime| pruning.unused_since.is_some_and(|since| last_use < since);
        let all = pruning.size == Some(0);
        let mut sizes_before = sizes(&dir, |_| true, &mut pruned.failed)?;
        sizes_before.sort_by_key(|size| size.last_use);
        let before = total(&sizes_before);
        let excess = before.saturating_sub(pruning.size.unwrap_or(u64::MAX));
        let mut freed = 0;
        for size in sizes_before {
            let want = match excess.saturating_sub(freed) {
                _ if all || is_old(size.last_use) => u64::MAX,
                0 => break,
                lacking => lacking,
            };
            let Some(entry) = entry_or(&dir, &size, &mut pruned.failed) else { continue };
            let mut note = |bytes, is_removed| {
                freed += bytes;
                pruned.objects.push(FreedObject { entry: entry.clone(), bytes, is_removed });
            };
            match evict_unused(&dir, size.id, want, pruning.dry_run) {
                Ok(EvictOutcome::Removed(bytes)) => note(bytes, true),
                Ok(EvictOutcome::Shortened(bytes)) => note(bytes, false),
                Ok(EvictOutcome::InUse) => pruned.in_use.push(CacheEntry { in_use: true, ..entry }),
                Ok(EvictOutcome::Gone) => {}
                Err(error) => pruned.failed.push(error),
            }
        }
        pruned.listings = listings::remove_all(&dir, |last_use| all || is_old(last_use), pruning.dry_run)?;
        pruned.left = match pruning.dry_run {
            true => before.saturating_sub(freed),
            false => total(&sizes(&dir, |_| true, &mut Vec::new())?),
        };
        Ok(pruned)
    }
}

pub(super) fn total(sizes: &[ObjectSize]) -> u64 {
    sizes.iter().fold(0, |sum, size| sum.saturating_add(size.bytes))
}

/// The sizes of all objects: two system calls for each. Objects that cannot be read are logged and left out.
pub(super) fn sizes_of_all(dir: &CacheDir) -> Result<Vec<ObjectSize>, CacheError> {
    let mut failed = Vec::new();
    let sizes = sizes(dir, |_| true, &mut failed)?;
    log_all(&failed);
    Ok(sizes)
}

fn log_all(failed: &[CacheError]) {
    failed.iter().for_each(|error| log::debug!("cannot describe a part of the cache: {error}"));
}

/// The sizes of some objects. Adds to `failed` why others cannot be read.
fn sizes(
    dir: &CacheDir,
    is_wanted: impl Fn(&ObjectDirId) -> bool,
    failed: &mut Vec<CacheError>,
) -> Result<Vec<ObjectSize>, CacheError> {
    let mut sizes = Vec::new();
    for id in dir.names()?.iter().filter_map(|name| ObjectDirId::parse(name)).filter(is_wanted) {
        let size = || {
            let stat = |file| stat_at(&dir.objects, &format!("{id}/{file}"));
            let bytes = stat(DATA)?.map_or(0, |stat| stat.st_blocks as u64 * 512);
            let since = stat(LOCK)?.map_or(Duration::ZERO, |stat| {
                Duration::new(stat.st_mtime.try_into().unwrap_or_default(), stat.st_mtime_nsec as u32)
            });
            Ok::<_, Errno>(ObjectSize { id, bytes, last_use: SystemTime::UNIX_EPOCH + since })
        };
        match size() {
            Ok(size) => sizes.push(size),
            Err(errno) => failed.push(CacheError::io(&dir.path_of(id))(errno)),
        }
    }
    Ok(sizes)
}

fn cache_entries(dir: &CacheDir, sizes: &[ObjectSize], failed: &mut Vec<CacheError>) -> Vec<CacheEntry> {
    sizes.iter().filter_map(|size| entry_or(dir, size, failed)).collect()
}

/// `None` if the object was removed in the meantime, or cannot be described.
fn entry_or(dir: &CacheDir, size: &ObjectSize, failed: &mut Vec<CacheError>) -> Option<CacheEntry> {
    entry(dir, size).unwrap_or_else(|error| {
        failed.push(error);
        None
    })
}

/// `None` if the object was removed in the meantime.
fn entry(dir: &CacheDir, size: &ObjectSize) -> Result<Option<CacheEntry>, CacheError> {
    let id = size.id.to_string();
    let path = dir.path_of(&id);
    let at = match open_dir(&dir.objects, &id) {
        Err(Errno::ENOENT) => return Ok(None),
        Err(Errno::ENOTDIR | Errno::ELOOP) => return Err(CacheError::NotADirectory { path }),
        at => at.map_err(CacheError::io(&path))?,
    };
    let about = ObjectAbout::read(&at);
    let len = stat_at(&at, DATA).map_err(CacheError::io(&path))?.map_or(0, |stat| stat.st_size as u64);
    let in_use = open_file(&at, LOCK, OFlag::O_RDONLY).is_ok_and(|file| lock::is_used(&file).unwrap_or(false));
    let (name, validator) = about.map(|about| (about.name, about.validator)).unzip();
    let present = size.bytes.min(len);
    Ok(Some(CacheEntry { id, name, validator, len, present, last_use: size.last_use, in_use }))
}
