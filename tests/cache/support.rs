//! What the tests share.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};
use tempfile::TempDir;
use weightfs::remote::cache::{
    BlockCache, CacheEntry, CacheError, CacheKey, CacheOptions, CachedObject, PruneOptions, PruneOutcome,
};
use weightfs::source::pins::{BLOCK, PinnedReader};

/// A temporary directory for one test.
///
/// A process that is started has all descriptors of this one until it executes its program, and objects of other tests
/// stay in use for that time. For this reason, a test that starts processes runs alone.
pub struct Dir {
    dir: TempDir,
    is_alone: bool,
}

/// The number of directories of running tests, or [`ALONE`].
static RUNNING: Mutex<usize> = Mutex::new(0);
static ENDED: Condvar = Condvar::new();
const ALONE: usize = usize::MAX;

pub fn tempdir() -> Dir {
    let mut running = lock_until(|running| running != ALONE);
    *running += 1;
    Dir { dir: TempDir::new().unwrap(), is_alone: false }
}

/// A directory for a test that starts processes.
pub fn tempdir_alone() -> Dir {
    let mut running = lock_until(|running| running == 0);
    *running = ALONE;
    Dir { dir: TempDir::new().unwrap(), is_alone: true }
}

fn lock_until(is_free: impl Fn(usize) -> bool) -> MutexGuard<'static, usize> {
    let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
    ENDED.wait_while(running, |running| !is_free(*running)).unwrap_or_else(PoisonError::into_inner)
}

impl Dir {
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        let mut running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        *running = if self.is_alone { 0 } else { *running - 1 };
        ENDED.notify_all();
    }
}

/// A number that looks random.
pub fn hash(a: u64, b: u64) -> u64 {
    let mut x = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.wrapping_add(0x1234_5678_9abc_def1);
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53_u64] {
        x = (x ^ (x >> 32)).wrapping_mul(factor);
    }
    x ^ (x >> 29)
}

/// A sequence of numbers that look random.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(1);
        hash(self.0, 77)
    }

    pub fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

/// The bytes of an object: the same for each process that has the number of the object.
pub fn content(object: u64, range: Range<u64>) -> Vec<u8> {
    let words = range.start / 8..range.end.div_ceil(8);
    let bytes: Vec<u8> = words.clone().flat_map(|word| hash(object, word).to_le_bytes()).collect();
    let start = (range.start - words.start * 8) as usize;
    bytes[start..start + (range.end - range.start) as usize].to_vec()
}

pub fn key(object: u64, len: u64) -> CacheKey {
    CacheKey {
        identity: format!("https://host/identity-{object}.safetensors"),
        validator: format!("\"etag-{object}\""),
        len,
        name: format!("object {object}"),
    }
}

pub fn open(dir: &Path) -> BlockCache {
    BlockCache::open(dir, CacheOptions::default()).unwrap()
}

/// Opens a cache as if the system had been started with this boot id.
pub fn open_in_boot(dir: &Path, boot: &str) -> BlockCache {
    BlockCache::open(dir, CacheOptions { boot: Some(boot.into()), limit: None }).unwrap()
}

pub fn open_with_limit(dir: &Path, limit: u64) -> BlockCache {
    BlockCache::open(dir, CacheOptions { limit: Some(limit), boot: None }).unwrap()
}

pub fn bytes_of(object: &CachedObject, blocks: Range<u64>) -> Range<u64> {
    blocks.start * BLOCK..(blocks.end * BLOCK).min(object.len)
}

/// Writes blocks of the object number `number`.
pub fn fill(object: &CachedObject, number: u64, blocks: Range<u64>) {
    let range = bytes_of(object, blocks.clone());
    assert_eq!(object.write(range.start, &content(number, range)).unwrap(), blocks);
}

pub fn all(object: &CachedObject) -> Vec<Range<u64>> {
    object.has(0..object.blocks).unwrap()
}

/// The number of present blocks, after comparing all of their bytes.
pub fn verify(object: &CachedObject, number: u64) -> u64 {
    let mut count = 0;
    for run in all(object) {
        for block in run {
            let range = bytes_of(object, block..block + 1);
            let mut found = vec![0; (range.end - range.start) as usize];
            object.data().read_exact_at(&mut found, range.start).unwrap();
            assert!(found == content(number, range), "block {block} of object {number} has other bytes");
            count += 1;
        }
    }
    count
}

/// The descriptors of the data, of the map of present blocks, of the marks of readers, and of the lock.
pub fn descriptors(object: &CachedObject) -> [OwnedFd; 4] {
    object.descriptors().map(|descriptor| descriptor.try_clone_to_owned().unwrap())
}

pub fn reader(object: &CachedObject) -> Arc<PinnedReader> {
    let [_, present, marks, lock] = descriptors(object);
    PinnedReader::open(object.len, present, marks, lock).unwrap()
}

/// Whether a reader finds a block without asking the process that has opened the object.
pub fn is_present(object: &CachedObject, block: u64) -> bool {
    reader(object).pin(bytes_of(object, block..block + 1)).is_ok()
}

/// The only file called `name` of the only object in the cache.
pub fn file(dir: &Path, name: &str) -> PathBuf {
    let mut objects: Vec<_> =
        std::fs::read_dir(dir.join("objects")).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(objects.len(), 1);
    objects.remove(0).join(name)
}

/// Removes what was used least recently until `size` bytes are left.
pub fn prune(dir: &Path, size: u64) -> Result<PruneOutcome, CacheError> {
    BlockCache::prune(dir, &PruneOptions { size: Some(size), ..PruneOptions::default() })
}

/// Removes everything that is not in use.
pub fn clear(dir: &Path) -> Result<PruneOutcome, CacheError> {
    prune(dir, 0)
}

/// Sets the time of the last use of the only object that `is_wanted` accepts.
pub fn set_last_use(dir: &Path, is_wanted: impl Fn(&CacheEntry) -> bool, seconds_ago: u64) {
    let list: Vec<_> = BlockCache::list(dir).unwrap().entries.into_iter().filter(is_wanted).collect();
    assert_eq!(list.len(), 1, "{list:?}");
    let lock = dir.join("objects").join(&list[0].id).join("lock");
    let lock = std::fs::File::options().write(true).open(lock).unwrap();
    lock.set_modified(SystemTime::now() - Duration::from_secs(seconds_ago)).unwrap();
}

/// A process that runs one test of this program, which is killed on drop.
pub struct Process(pub Child);

impl Process {
    /// `test` must be ignored when it is not asked for.
    pub fn start(test: &str, job: &str) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--ignored", "--nocapture", "--test-threads=1"]).env("CACHE_TEST_JOB", job);
        Self(command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits for the end, and returns what was printed.
    pub fn finish(mut self) -> String {
        let mut text = String::new();
        std::io::Read::read_to_string(self.0.stdout.as_mut().unwrap(), &mut text).unwrap();
        let status = self.0.wait().unwrap();
        assert!(status.success(), "{status}: {text}");
        assert!(text.contains("1 passed"), "{text}");
        text
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

/// The words of the job, in a process that `Process::start` has started.
pub fn job() -> Vec<String> {
    std::env::var("CACHE_TEST_JOB").unwrap().split('\n').map(str::to_owned).collect()
}
