//! Kept listings: what a location led to when it was last resolved, so that its files are found without a network.
//!
//! The name of a file is the SHA-256 of the location. The file has the SHA-256 of location and listing, then the
//! listing. Its mtime is the time of the last use.

use super::BlockCache;
use super::dir::{CacheDir, modified, names, open_file, remove, replace_file, stat_at, subdirectory};
use super::error::{CacheError, CacheResult};
use super::files::note_use;
use super::lock::GateLock;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use sha2::{Digest, Sha256};
use std::cmp::Reverse;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::SystemTime;

const DIRECTORY: &str = "listings";

/// Held by the process that changes the directory.
const LOCK: &str = "lock";

/// The name of a listing while it is written.
const TEMPORARY: &str = "new";

/// Maximum size of a listing in bytes: that of a tree of some 100,000 files.
const LEN_MAX: usize = 64 << 20;

/// Maximum size of all listings in bytes. The least recently used ones are removed first.
const TOTAL_MAX: u64 = 256 << 20;

type Hash = [u8; 32];

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptListings {
    pub count: usize,
    /// Their size in bytes.
    pub bytes: u64,
}

#[derive(Debug)]
struct KeptListing {
    name: String,
    bytes: u64,
    last_use: SystemTime,
}

impl BlockCache {
    /// Keeps what a location leads to, in place of what was kept for it before. `location` is the text that names the
    /// location later; only its hash is stored. The caller keeps secrets out of both.
    ///
    /// A listing of more than 64 MiB is an error, and nothing is kept for the location then. If all listings have more
    /// than 256 MiB together, those that were used least recently are removed. If the disk is full, objects are
    /// evicted: see [`BlockCache::take_evicted`].
    pub fn keep_listing(&self, location: &str, listing: &[u8]) -> CacheResult<()> {
        self.with_room(0, || self.try_keep_listing(location, listing))
    }

    fn try_keep_listing(&self, location: &str, listing: &[u8]) -> CacheResult<()> {
        let cache = &self.0.dir;
        let path = cache.path.join(DIRECTORY);
        let dir = subdirectory(&cache.root, &cache.path, DIRECTORY, true)?
            .ok_or(Errno::ENOENT)
            .map_err(CacheError::io(&path))?;
        let lock = open_lock(&dir, &path)?;
        let _gate = GateLock::wait(&lock, &path)?;
        let name = listing_name(location);
        if listing.len() > LEN_MAX {
            remove(&dir, &name).map_err(CacheError::io(&path))?;
            let (name, len) = (format!("the listing of {location}"), listing.len() as u64);
            return Err(CacheError::TooLarge { name, len, max: LEN_MAX as u64 });
        }
        let written = replace_file(&dir, &name, TEMPORARY, &[&checksum(location, listing), listing]);
        if written.is_err() {
            // A full disk should get its space back.
            _ = remove(&dir, TEMPORARY);
        }
        written.map_err(CacheError::io(&path))?;
        // The least recently used ones are removed until the rest is small enough.
        let mut total: u64 = 0;
        let is_excess = |kept: &KeptListing| {
            total = total.saturating_add(kept.bytes);
            total > TOTAL_MAX && kept.name != name
        };
        remove_some(&dir, is_excess, false).map(drop).map_err(CacheError::io(&path))
    }

    /// The listing that was kept for a location. `None` if none was, if it is damaged, or if it cannot be read.
    pub fn kept_listing(&self, location: &str) -> Option<Vec<u8>> {
        let cache = &self.0.dir;
        let dir = subdirectory(&cache.root, &cache.path, DIRECTORY, false).ok()??;
        let mut file = open_file(&dir, &listing_name(location), OFlag::O_RDONLY).ok()?;
        let mut found: Hash = Hash::default();
        file.read_exact(&mut found).ok()?;
        let mut listing = Vec::new();
        Read::by_ref(&mut file).take(LEN_MAX as u64 + 1).read_to_end(&mut listing).ok()?;
        if listing.len() > LEN_MAX || checksum(location, &listing) != found {
            return None;
        }
        // Without this, it is removed earlier than it should be.
        _ = note_use(&file);
        Some(listing)
    }
}

/// Removes the listings that `is_unwanted` accepts by the time of their last use. With `dry_run`, only counts them.
pub(super) fn remove_listings(
    cache: &CacheDir,
    is_unwanted: impl Fn(SystemTime) -> bool,
    dry_run: bool,
) -> CacheResult<KeptListings> {
    let Some(dir) = subdirectory(&cache.root, &cache.path, DIRECTORY, false)? else { return Ok(Default::default()) };
    let path = cache.path.join(DIRECTORY);
    let lock = if dry_run { None } else { Some(open_lock(&dir, &path)?) };
    let _gate = lock.as_ref().map(|lock| GateLock::wait(lock, &path)).transpose()?;
    remove_some(&dir, |kept| is_unwanted(kept.last_use), dry_run).map_err(CacheError::io(&path))
}

/// Removes listings, the most recently used ones first.
fn remove_some(
    dir: &OwnedFd,
    mut is_unwanted: impl FnMut(&KeptListing) -> bool,
    dry_run: bool,
) -> io::Result<KeptListings> {
    let mut all = Vec::new();
    for name in names(dir)?.into_iter().filter(|name| name.len() == 2 * size_of::<Hash>()) {
        if let Some(stat) = stat_at(dir, &name)? {
            all.push(KeptListing { name, bytes: stat.st_size as u64, last_use: modified(&stat) });
        }
    }
    all.sort_by_key(|kept| Reverse(kept.last_use));
    let mut removed = KeptListings::default();
    for kept in all.iter().filter(|kept| is_unwanted(kept)) {
        if !dry_run {
            remove(dir, &kept.name)?;
        }
        removed.count += 1;
        removed.bytes = removed.bytes.saturating_add(kept.bytes);
    }
    Ok(removed)
}

fn open_lock(dir: &OwnedFd, path: &Path) -> CacheResult<File> {
    open_file(dir, LOCK, OFlag::O_RDWR | OFlag::O_CREAT).map_err(CacheError::io(path))
}

fn listing_name(location: &str) -> String {
    Sha256::digest(location).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Depends on the location too, so that a file with the name of another one is not taken for it.
fn checksum(location: &str, listing: &[u8]) -> Hash {
    let location = Sha256::digest(location);
    Sha256::new_with_prefix(location).chain_update(listing).finalize().into()
}
