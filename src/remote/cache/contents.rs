//! The objects of a cache: lists them, and removes those that are no longer wanted.

use super::BlockCache;
use super::dir::{CacheDir, modified, open_dir, open_file, stat_at};
use super::error::{CacheError, CacheResult};
use super::evict::{EvictOutcome, evict_unused};
use super::files::{DATA, LOCK, read_about};
use super::key::{ObjectDirId, file_hash};
use super::listings::{self, KeptListings};
use super::lock;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::statvfs::statvfs;
use std::cmp::Reverse;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheEntry {
    /// The name of its directory.
    pub id: String,
    /// Its name, for people. `None` if the description is damaged; it is repaired when the object is next used.
    pub name: Option<String>,
    /// Identifies the version of the file. `None` if the description is damaged.
    pub validator: Option<String>,
    pub len: u64,
    /// Number of bytes that are present, rounded to blocks of the file system.
    pub present: u64,
    /// When it was used last. Up to a minute earlier than that if a process was killed.
    pub last_use: SystemTime,
    pub in_use: bool,
}

#[derive(Debug, Default)]
pub struct CacheContents {
    /// The objects, the most recently used first.
    pub entries: Vec<CacheEntry>,
    pub listings: KeptListings,
    /// The files in the directory of objects that are not objects. They are left alone.
    pub unknown: Vec<PathBuf>,
    pub failed: Vec<CacheError>,
}

impl CacheContents {
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
    pub dry_run: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FreedObject {
    /// The object before that.
    pub entry: CacheEntry,
    pub bytes: u64,
    /// Whether it was removed. Otherwise blocks at its end were.
    pub is_removed: bool,
}

#[derive(Debug, Default)]
pub struct PruneOutcome {
    /// The objects of which something was freed, the least recently used first.
    pub objects: Vec<FreedObject>,
    pub listings: KeptListings,
    /// Number of bytes of objects that are left.
    pub left: u64,
    pub in_use: Vec<CacheEntry>,
    pub failed: Vec<CacheError>,
}

impl PruneOutcome {
    pub fn freed(&self) -> u64 {
        self.objects.iter().fold(0, |sum, freed| sum.saturating_add(freed.bytes))
    }

    pub fn removed(&self) -> usize {
        self.objects.iter().filter(|freed| freed.is_removed).count()
    }
}

#[derive(Debug)]
pub(super) struct ObjectSize {
    pub id: ObjectDirId,
    pub bytes: u64,
    pub last_use: SystemTime,
}

impl BlockCache {
    /// Lists a cache. One that does not exist is empty.
    pub fn list(dir: &Path) -> CacheResult<CacheContents> {
        let mut contents = CacheContents::default();
        let Some(dir) = CacheDir::open(dir, false)? else { return Ok(contents) };
        let unknown = dir.names()?.into_iter().filter(|name| ObjectDirId::parse(name).is_none());
        contents.unknown = unknown.map(|name| dir.path_of(name)).collect();
        contents.unknown.sort();
        let (mut sizes, failed) = sizes_of_all(&dir)?;
        contents.failed = failed;
        sizes.sort_by_key(|size| Reverse(size.last_use));
        contents.entries = sizes.iter().filter_map(|size| describe(&dir, size, &mut contents.failed)).collect();
        contents.listings = listings::remove_listings(&dir, |_| true, true)?;
        Ok(contents)
    }

    /// Whether the cache had a version of a file when this was first asked. `identity` is that of its keys.
    pub fn has_version(&self, identity: &str) -> bool {
        let found = self.0.found.get_or_init(|| {
            // Without the names, the first bytes are fetched although they may be present.
            let names = self.0.dir.names().unwrap_or_default();
            names.iter().filter_map(|name| Some(ObjectDirId::parse(name)?.file)).collect()
        });
        found.contains(&file_hash(identity))
    }

    /// Removes what is not wanted from a cache. One that does not exist is empty.
    pub fn prune(dir: &Path, pruning: &PruneOptions) -> CacheResult<PruneOutcome> {
        CacheDir::open(dir, false)?.map_or_else(|| Ok(PruneOutcome::default()), |dir| prune_in(&dir, pruning))
    }

    /// Removes all files that no other process uses.
    pub fn clear(&self) -> CacheResult<PruneOutcome> {
        prune_in(&self.0.dir, &PruneOptions { size: Some(0), unused_since: Some(SystemTime::now()), dry_run: false })
    }
}

fn prune_in(dir: &CacheDir, pruning: &PruneOptions) -> CacheResult<PruneOutcome> {
    let mut pruned = PruneOutcome::default();
    let (mut sizes, failed) = sizes_of_all(dir)?;
    pruned.failed = failed;
    sizes.sort_by_key(|size| size.last_use);
    let before = total(&sizes);
    let excess = before.saturating_sub(pruning.size.unwrap_or(u64::MAX));
    for size in sizes {
        let want = match excess.saturating_sub(pruned.freed()) {
            _ if pruning.is_unwanted(size.last_use) => u64::MAX,
            0 => break,
            lacking => lacking,
        };
        let Some(entry) = describe(dir, &size, &mut pruned.failed) else { continue };
        let (bytes, is_removed) = match evict_unused(dir, size.id, want, pruning.dry_run) {
            Ok(EvictOutcome::Removed(bytes)) => (bytes, true),
            Ok(EvictOutcome::Shortened(bytes)) => (bytes, false),
            Ok(EvictOutcome::Gone) => continue,
            Ok(EvictOutcome::InUse) => {
                pruned.in_use.push(CacheEntry { in_use: true, ..entry });
                continue;
            }
            Err(error) => {
                pruned.failed.push(error);
                continue;
            }
        };
        pruned.objects.push(FreedObject { entry, bytes, is_removed });
    }
    pruned.listings = listings::remove_listings(dir, |last_use| pruning.is_unwanted(last_use), pruning.dry_run)?;
    pruned.left = match pruning.dry_run {
        true => before.saturating_sub(pruned.freed()),
        false => total(&sizes_of_all(dir)?.0),
    };
    Ok(pruned)
}

impl PruneOptions {
    /// Whether something is removed whatever the size of the cache is.
    fn is_unwanted(&self, last_use: SystemTime) -> bool {
        self.size == Some(0) || self.unused_since.is_some_and(|since| last_use < since)
    }
}

pub(super) fn total(sizes: &[ObjectSize]) -> u64 {
    sizes.iter().fold(0, |sum, size| sum.saturating_add(size.bytes))
}

/// The sizes of all objects: two system calls for each. Also returns why some cannot be read.
pub(super) fn sizes_of_all(dir: &CacheDir) -> CacheResult<(Vec<ObjectSize>, Vec<CacheError>)> {
    let (mut sizes, mut failed) = (Vec::new(), Vec::new());
    for id in dir.names()?.iter().filter_map(|name| ObjectDirId::parse(name)) {
        match size_of(dir, id) {
            Ok(size) => sizes.push(size),
            Err(errno) => failed.push(CacheError::io(&dir.path_of(id))(errno)),
        }
    }
    failed.iter().for_each(|error| log::debug!("cannot describe a part of the cache: {error}"));
    Ok((sizes, failed))
}

fn size_of(dir: &CacheDir, id: ObjectDirId) -> nix::Result<ObjectSize> {
    let bytes = stat_at(&dir.objects, &format!("{id}/{DATA}"))?.map_or(0, |stat| stat.st_blocks as u64 * 512);
    let last_use =
        stat_at(&dir.objects, &format!("{id}/{LOCK}"))?.map_or(SystemTime::UNIX_EPOCH, |stat| modified(&stat));
    Ok(ObjectSize { id, bytes, last_use })
}

/// `None` if the object was removed in the meantime, or cannot be described, which is added to `failed`.
fn describe(dir: &CacheDir, size: &ObjectSize, failed: &mut Vec<CacheError>) -> Option<CacheEntry> {
    describe_object(dir, size).unwrap_or_else(|error| {
        failed.push(error);
        None
    })
}

fn describe_object(dir: &CacheDir, size: &ObjectSize) -> CacheResult<Option<CacheEntry>> {
    let id = size.id.to_string();
    let path = dir.path_of(&id);
    let at = match open_dir(&dir.objects, &id) {
        Err(Errno::ENOENT) => return Ok(None),
        Err(Errno::ENOTDIR | Errno::ELOOP) => return Err(CacheError::NotADirectory { path }),
        at => at.map_err(CacheError::io(&path))?,
    };
    let len = stat_at(&at, DATA).map_err(CacheError::io(&path))?.map_or(0, |stat| stat.st_size as u64);
    let in_use = open_file(&at, LOCK, OFlag::O_RDONLY).is_ok_and(|file| lock::is_used(&file).unwrap_or(false));
    let (name, validator) = read_about(&at).map(|about| (about.name, about.validator)).unzip();
    let present = size.bytes.min(len);
    Ok(Some(CacheEntry { id, name, validator, len, present, last_use: size.last_use, in_use }))
}
