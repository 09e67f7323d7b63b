//! The files of an object: opening, creating and removing them. All of it happens under the object's gate.

use super::dir::{CacheDir, file_id, make_dir, names, open_dir, open_file, remove, replace_file, stat_at};
use super::error::{CacheError, CacheResult};
use super::key::{CacheKey, ObjectDirId};
use super::lock::{self, GateLock};
use super::table::BlockTable;
use crate::source::pins::BLOCK;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::fstat;
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::time::SystemTime;

pub(super) const DATA: &str = "data";
pub(super) const LOCK: &str = "lock";
pub(super) const TABLE: &str = "table";
const ABOUT: &str = "about.json";

/// Keys are shorter than this, also with their characters escaped.
const ABOUT_MAX: u64 = 64 << 10;

/// Each failure means that another process has removed the object in the meantime.
const TRIES_MAX: usize = 1000;

#[derive(Debug)]
pub(super) struct ObjectFiles {
    /// Marks the object as used. Read-only, because a reader that misbehaves has it too: it cannot lock exclusively.
    pub users: File,
    /// Another description of the same file, for [`GateLock`]. Its mtime is the time of the last use.
    pub gate: File,
    /// The data file, for this process alone.
    pub bytes: File,
    /// The data file, read-only.
    pub view: File,
    pub table: BlockTable,
}

impl ObjectFiles {
    /// Opens an object, and creates it if it does not exist or is damaged.
    pub fn open(cache: &CacheDir, id: ObjectDirId, key: &CacheKey, boot: &[u8]) -> CacheResult<Self> {
        let path = cache.path_of(id);
        for _ in 0..TRIES_MAX {
            let Some((dir, gate)) = enter_object(cache, id, true).map_err(CacheError::io(&path))? else { continue };
            let _held = GateLock::wait(&gate, &path)?;
            if is_linked(cache, id, &gate).map_err(CacheError::io(&path))? {
                return Self::open_entered(cache, &dir, &gate, id, key, boot).map_err(CacheError::io(&path));
            }
        }
        Err(CacheError::Busy { path, seconds: 0 })
    }

    fn open_entered(
        cache: &CacheDir,
        dir: &OwnedFd,
        gate: &File,
        id: ObjectDirId,
        key: &CacheKey,
        boot: &[u8],
    ) -> io::Result<Self> {
        let users = open_file(dir, LOCK, OFlag::O_RDONLY)?;
        lock::use_object(&users)?;
        let (bytes, table) = match open_both(cache, dir, id, key.len, boot, OFlag::empty()) {
            Err(error) if is_damaged(&error) => {
                // Sessions that have the damaged files open keep them.
                remove(dir, TABLE)?;
                remove(dir, DATA)?;
                open_both(cache, dir, id, key.len, boot, OFlag::O_CREAT | OFlag::O_EXCL)?
            }
            both => both?,
        };
        let view = open_file(dir, DATA, OFlag::O_RDONLY)?;
        if read_about(dir).is_none_or(|old| (&old.validator, old.len) != (&key.validator, key.len)) {
            replace_file(dir, ABOUT, "about.new", &[&serde_json::to_vec_pretty(key)?])?;
        }
        note_use(gate)?;
        Ok(Self { users, gate: gate.try_clone()?, bytes, view, table })
    }
}

/// Reads the description of an object: its key without the identity, for people and for `--offline`. `None` if there is
/// none, or a damaged one; no cached bytes are lost then.
pub(super) fn read_about(dir: &OwnedFd) -> Option<CacheKey> {
    let mut text = Vec::new();
    open_file(dir, ABOUT, OFlag::O_RDONLY).ok()?.take(ABOUT_MAX).read_to_end(&mut text).ok()?;
    serde_json::from_slice(&text).ok()
}

pub(super) fn note_use(lock: &File) -> io::Result<()> {
    lock.set_modified(SystemTime::now())
}

/// Opens the directory of an object and its lock file. `None` if there is no object, or if it was just removed.
pub(super) fn enter_object(cache: &CacheDir, id: ObjectDirId, create: bool) -> io::Result<Option<(OwnedFd, File)>> {
    let name = id.to_string();
    if create {
        make_dir(&cache.objects, &*name)?;
    }
    let dir = match open_dir(&cache.objects, &name) {
        Err(Errno::ENOENT) => return Ok(None),
        // Nothing else has names like this.
        Err(Errno::ENOTDIR | Errno::ELOOP) => {
            remove(&cache.objects, &name)?;
            return Ok(None);
        }
        dir => dir?,
    };
    match open_file(&dir, LOCK, OFlag::O_RDWR | OFlag::O_CREAT) {
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) if is_damaged(&errno.into()) => {
            remove(&dir, LOCK)?;
            Ok(None)
        }
        file => Ok(Some((dir, file?))),
    }
}

/// Whether a lock file is that of the object. Otherwise the object was removed, and may have been created again.
pub(super) fn is_linked(cache: &CacheDir, id: ObjectDirId, lock: &File) -> io::Result<bool> {
    let named = stat_at(&cache.objects, &format!("{id}/{LOCK}"))?;
    let open = fstat(lock)?;
    Ok(named.is_some_and(|named| file_id(&named) == file_id(&open)))
}

/// Opens the data file and the table. With `O_CREAT` in `more`, creates them without blocks.
fn open_both(
    cache: &CacheDir,
    dir: &OwnedFd,
    id: ObjectDirId,
    len: u64,
    boot: &[u8],
    more: OFlag,
) -> io::Result<(File, BlockTable)> {
    let data = open_file(dir, DATA, cache.write_flags | more)?;
    let table = open_file(dir, TABLE, OFlag::O_RDWR | more)?;
    if more.contains(OFlag::O_CREAT) {
        data.set_len(len)?;
        BlockTable::create(&table, id, len.div_ceil(BLOCK))?;
    } else if data.metadata()?.len() != len {
        return Err(ErrorKind::InvalidData.into());
    }
    let data_id = file_id(&fstat(&data)?);
    Ok((data, BlockTable::open(table, id, len.div_ceil(BLOCK), data_id, boot)?))
}

/// Removes an object whose gate this process holds, and which nobody uses. The lock file is removed last: until then,
/// others wait for the gate.
pub(super) fn remove_object(cache: &CacheDir, dir: &OwnedFd, id: ObjectDirId) -> io::Result<()> {
    // Without its table, an object is empty.
    remove(dir, TABLE)?;
    for name in names(dir)?.iter().filter(|name| *name != LOCK) {
        remove(dir, name)?;
    }
    remove(dir, LOCK)?;
    match unlinkat(&cache.objects, &*id.to_string(), UnlinkatFlags::RemoveDir) {
        // Another process has begun to create the object again.
        Ok(()) | Err(Errno::ENOENT | Errno::ENOTEMPTY | Errno::EEXIST) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Whether something else than a regular file has the name, or whether the file is missing or damaged. EIO is a bad
/// sector.
fn is_damaged(error: &io::Error) -> bool {
    use Errno::{EINVAL, EIO, EISDIR, ELOOP, ENOENT, ENXIO};
    let errno = error.raw_os_error().map(Errno::from_raw);
    error.kind() == ErrorKind::InvalidData
        || errno.is_some_and(|errno| [EINVAL, EIO, EISDIR, ELOOP, ENOENT, ENXIO].contains(&errno))
}
