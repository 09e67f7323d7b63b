//! Kept listings: what a location led to when it was last resolved, so that its files are found without a network.
//!
//! The name of a file is the SHA-256 of the location. The file has the SHA-256 of location and listing, then the
//! listing. Its mtime is the time of the last use.

use super::BlockCache;
use super::dir::{CacheDir, names, open_file, remove, stat_at};
use super::error::CacheError;
use super::files::note_use;
use super::lock::GateLock;
use nix::errno::Errno;
use nix::fcntl::{OFlag, renameat};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The directory of the listings.
const DIRECTORY: &str = "listings";

/// Held by the process that changes the directory.
const LOCK: &str = "lock";

/// The name of the file while it is written. Only the holder of the lock writes.
const TEMPORARY: &str = "new";

/// Maximum size of a listing in bytes: that of a tree of some 100,000 files.
const LEN_MAX: usize = 64 << 20;

/// Maximum size of all listings in bytes. The least recently used ones are removed first.
const TOTAL_MAX: u64 = 256 << 20;

/// The time limit for waiting for another process that keeps a listing.
const PATIENCE: Duration = Duration::from_secs(10);

type Hash = [u8; 32];

/// A number of kept listings.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptListings {
    /// Their number.
    pub count: usize,
    /// Their size in bytes.
    pub bytes: u64,
}

impl KeptListings {
    fn add(&mut self, kept: &KeptListing) {
        self.count += 1;
        self.bytes = self.bytes.saturating_add(kept.bytes);
    }
}

/// A kept listing.
#[derive(Debug)]
struct KeptListing {
    /// The name of its file.
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
    pub fn keep_listing(&self, location: &str, listing: &[u8]) -> Result<(), CacheError> {
        self.with_room(|| self.try_keep_listing(location, listing))
    }

    fn try_keep_listing(&self, location: &str, listing: &[u8]) -> Result<(), CacheError> {
        let cache = &self.0.dir;
        let path = cache.path.join(DIRECTORY);
        let dir = cache.subdirectory(DIRECTORY, true)?.ok_or(Errno::ENOENT).map_err(CacheError::io(&path))?;
        let lock = open_lock(&dir, &path)?;
        let _gate = enter_listings(&lock, &path)?;
        let name = listing_name(location);
        if listing.len() > LEN_MAX {
            remove(&dir, &name).map_err(CacheError::io(&path))?;
            let (name, len) = (format!("the listing of {location}"), listing.len() as u64);
            return Err(CacheError::TooLarge { name, len, max: LEN_MAX as u64 });
        }
        // What a process that was killed has left.
        remove(&dir, TEMPORARY).map_err(CacheError::io(&path))?;
        let written = write_listing(&dir, &name, &checksum(location, listing), listing);
        if written.is_err() {
            // A full disk should get its space back.
            _ = remove(&dir, TEMPORARY);
        }
        written.map_err(CacheError::io(&path))?;
        trim(&dir, &name).map_err(CacheError::io(&path))
    }

    /// The listing that was kept for a location. `None` if none was, if it is damaged, or if it cannot be read.
    pub fn kept_listing(&self, location: &str) -> Option<Vec<u8>> {
        let dir = self.0.dir.subdirectory(DIRECTORY, false).ok()??;
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

/// Number of listings of a cache.
pub(super) fn count_listings(cache: &CacheDir) -> Result<KeptListings, CacheError> {
    let mut found = KeptListings::default();
    if let Some(dir) = cache.subdirectory(DIRECTORY, false)? {
        let kept = all(&dir).map_err(CacheError::io(&cache.path.join(DIRECTORY)))?;
        kept.iter().for_each(|kept| found.add(kept));
    }
    Ok(found)
}

/// Removes the listings that `is_unwanted` accepts by the time of their last use. With `dry_run`, only counts them.
pub(super) fn remove_all(
    cache: &CacheDir,
    is_unwanted: impl Fn(SystemTime) -> bool,
    dry_run: bool,
) -> Result<KeptListings, CacheError> {
    let mut removed = KeptListings::default();
    let Some(dir) = cache.subdirectory(DIRECTORY, false)? else { return Ok(removed) };
    let path = cache.path.join(DIRECTORY);
    let lock = open_lock(&dir, &path)?;
    let _gate = enter_listings(&lock, &path)?;
    for kept in all(&dir).map_err(CacheError::io(&path))?.iter().filter(|kept| is_unwanted(kept.last_use)) {
        if !dry_run {
            remove(&dir, &kept.name).map_err(CacheError::io(&path))?;
        }
        removed.add(kept);
    }
    Ok(removed)
}

fn open_lock(dir: &OwnedFd, path: &Path) -> Result<File, CacheError> {
    open_file(dir, LOCK, OFlag::O_RDWR | OFlag::O_CREAT).map_err(CacheError::io(path))
}

/// Waits for the other processes that change the directory.
fn enter_listings<'a>(lock: &'a File, path: &Path) -> Result<GateLock<'a>, CacheError> {
    let gate = GateLock::lock(lock, PATIENCE).map_err(CacheError::io(path))?;
    gate.ok_or_else(|| CacheError::Busy { path: path.to_owned(), seconds: PATIENCE.as_secs() })
}

fn write_listing(dir: &OwnedFd, name: &str, checksum: &Hash, listing: &[u8]) -> io::Result<()> {
    let mut file = open_file(dir, TEMPORARY, OFlag::O_WRONLY | OFlag::O_CREAT | OFlag::O_EXCL)?;
    file.write_all(checksum)?;
    file.write_all(listing)?;
    match renameat(dir, TEMPORARY, dir, name) {
        // Nothing of weightfs makes directories here.
        Err(Errno::EISDIR) => {
            remove(dir, name)?;
            Ok(renameat(dir, TEMPORARY, dir, name)?)
        }
        renamed => Ok(renamed?),
    }
}

/// Removes the least recently used listings until the rest is small enough, but not the one called `new`.
fn trim(dir: &OwnedFd, new: &str) -> io::Result<()> {
    let mut kept = all(dir)?;
    let mut total = kept.iter().fold(0, |sum: u64, kept| sum.saturating_add(kept.bytes));
    kept.sort_by_key(|kept| kept.last_use);
    for kept in kept.iter().filter(|kept| kept.name != new) {
        if total <= TOTAL_MAX {
            break;
        }
        remove(dir, &kept.name)?;
        total -= kept.bytes;
    }
    Ok(())
}

fn all(dir: &OwnedFd) -> io::Result<Vec<KeptListing>> {
    let mut kept = Vec::new();
    for name in names(dir)?.into_iter().filter(|name| name.len() == 2 * size_of::<Hash>()) {
        if let Some(stat) = stat_at(dir, &name)? {
            let since = Duration::new(stat.st_mtime.try_into().unwrap_or_default(), stat.st_mtime_nsec as u32);
            let last_use = SystemTime::UNIX_EPOCH + since;
            kept.push(KeptListing { name, bytes: stat.st_size as u64, last_use });
        }
    }
    Ok(kept)
}

fn listing_name(location: &str) -> String {
    Sha256::digest(location).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Depends on the location too, so that a file with the name of another one is not taken for it.
fn checksum(location: &str, listing: &[u8]) -> Hash {
    let location = Sha256::digest(location);
    Sha256::new_with_prefix(location).chain_update(listing).finalize().into()
}
