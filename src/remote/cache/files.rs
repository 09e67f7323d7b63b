//! The files of an object: opening, creating and removing them. All of it happens under the object's gate.

use super::about::ObjectAbout;
use super::dir::{CacheDir, file_id, names, open_dir, open_file, remove, stat_at};
use super::error::CacheError;
use super::key::{CacheKey, ObjectDirId};
use super::lock::{self, GateLock};
use super::table::{BlockTable, BootId};
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{Mode, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, unlinkat};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, SystemTime};

pub(super) const DATA: &str = "data";
pub(super) const LOCK: &str = "lock";
pub(super) const TABLE: &str = "table";

/// How long to wait for another process that opens, evicts from, or removes the same object.
const PATIENCE: Duration = Duration::from_secs(10);

/// Each failure means that another process has removed the object in the meantime.
const TRIES_MAX: usize = 1000;

/// The open files of an object.
#[derive(Debug)]
pub(super) struct ObjectFiles {
    /// Holds the lock [`lock::LockByte::Users`].
    pub users: File,
    /// Another description of the same file, for the lock [`lock::LockByte::Gate`]. Its mtime is the time of the last
    /// use.
    pub gate: File,
    /// The data file, for this process alone.
    pub bytes: File,
    /// The data file, read-only.
    pub view: File,
    pub table: BlockTable,
}

impl ObjectFiles {
    /// Opens an object, and creates it if it does not exist or is damaged.
    pub fn open(cache: &CacheDir, id: ObjectDirId, key: &CacheKey, boot: &BootId) -> Result<Self, CacheError> {
        let path = cache.path_of(id);
        for _ in 0..TRIES_MAX {
            if let Some(files) = Self::try_open(cache, &path, id, key, boot)? {
                return Ok(files);
            }
        }
        Err(CacheError::Busy { path, seconds: 0 })
    }

    /// `None` if another process has removed the object in the meantime.
    fn try_open(
        cache: &CacheDir,
        path: &Path,
        id: ObjectDirId,
        key: &CacheKey,
        boot: &BootId,
    ) -> Result<Option<Self>, CacheError> {
        let Some((dir, gate_file)) = enter_object(cache, path, id, true)? else { return Ok(None) };
        let gate = GateLock::lock(&gate_file, PATIENCE).map_err(CacheError::io(path))?;
        let busy = || CacheError::Busy { path: path.to_owned(), seconds: PATIENCE.as_secs() };
        let gate = gate.ok_or_else(busy)?;
        if !is_linked(cache, id, &gate_file).map_err(CacheError::io(path))? {
            return Ok(None);
        }
        // Read-only, because a reader that misbehaves has it too: it cannot take exclusive locks.
        let users = open_file(&dir, LOCK, OFlag::O_RDONLY).map_err(CacheError::io(path))?;
        if !lock::use_object(&users).map_err(CacheError::io(path))? {
            return Err(busy());
        }
        let (data, table) = match open_both(&dir, id, key.len, boot, cache.write_flags).map_err(CacheError::io(path))? {
            Some(both) => both,
            None => create_both(&dir, id, key.len, boot, cache.write_flags).map_err(CacheError::io(path))?,
        };
        let view = open_file(&dir, DATA, OFlag::O_RDONLY).map_err(CacheError::io(path))?;
        let about = ObjectAbout::of(key);
        let is_same = |old: &ObjectAbout| (&old.validator, old.len) == (&about.validator, about.len);
        if !ObjectAbout::read(&dir).is_some_and(|old| is_same(&old)) {
            about.write(&dir).map_err(CacheError::io(path))?;
        }
        note_use(&gate_file).map_err(CacheError::io(path))?;
        drop(gate);
        Ok(Some(Self { users, gate: gate_file, bytes: data, view, table }))
    }
}

/// Records that an object is used now.
pub(super) fn note_use(lock: &File) -> io::Result<()> {
    lock.set_modified(SystemTime::now())
}

/// Opens the directory of an object and its lock file. `None` if there is no object, or if it was just removed.
pub(super) fn enter_object(
    cache: &CacheDir,
    path: &Path,
    id: ObjectDirId,
    create: bool,
) -> Result<Option<(OwnedFd, File)>, CacheError> {
    let name = id.to_string();
    if create {
        match mkdirat(&cache.objects, &*name, Mode::S_IRWXU) {
            Ok(()) | Err(Errno::EEXIST) => {}
            Err(errno) => return Err(CacheError::io(path)(errno)),
        }
    }
    let dir = match open_dir(&cache.objects, &name) {
        Err(Errno::ENOENT) => return Ok(None),
        // Nothing else has names like this.
        Err(Errno::ENOTDIR | Errno::ELOOP) => {
            remove(&cache.objects, &name).map_err(CacheError::io(path))?;
            return Ok(None);
        }
        dir => dir.map_err(CacheError::io(path))?,
    };
    match open_file(&dir, LOCK, OFlag::O_RDWR | OFlag::O_CREAT) {
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) if is_no_file(errno) => {
            remove(&dir, LOCK).map_err(CacheError::io(path))?;
            Ok(None)
        }
        file => Ok(Some((dir, file.map_err(CacheError::io(path))?))),
    }
}

/// Whether a lock file is that of the object. Otherwise the object was removed, and may have been created again.
pub(super) fn is_linked(cache: &CacheDir, id: ObjectDirId, lock: &File) -> io::Result<bool> {
    let named = stat_at(&cache.objects, &format!("{id}/{LOCK}"))?;
    let open = fstat(lock)?;
    Ok(named.is_some_and(|named| file_id(&named) == file_id(&open)))
}

/// `None` if one of the files is missing or damaged.
fn open_both(
    dir: &OwnedFd,
    id: ObjectDirId,
    len: u64,
    boot: &BootId,
    data_flags: OFlag,
) -> io::Result<Option<(File, BlockTable)>> {
    let open = |name, flags| match open_file(dir, name, flags) {
        Err(errno) if errno == Errno::ENOENT || is_no_file(errno) => Ok(None),
        file => file.map(Some),
    };
    let (Some(data), Some(table)) = (open(DATA, data_flags)?, open(TABLE, OFlag::O_RDWR)?) else { return Ok(None) };
    if data.metadata()?.len() != len {
        return Ok(None);
    }
    let data_id = file_id(&fstat(&data)?);
    match BlockTable::open(table, id, blocks(len), data_id, boot) {
        // A bad sector.
        Err(error) if error.raw_os_error() == Some(Errno::EIO as i32) => Ok(None),
        table => Ok(table?.map(|table| (data, table))),
    }
}

/// Creates an empty object. Sessions that have the damaged files open keep them.
fn create_both(
    dir: &OwnedFd,
    id: ObjectDirId,
    len: u64,
    boot: &BootId,
    data_flags: OFlag,
) -> io::Result<(File, BlockTable)> {
    for name in [TABLE, DATA] {
        remove(dir, name)?;
    }
    let create = |name, flags| open_file(dir, name, flags | OFlag::O_CREAT | OFlag::O_EXCL);
    let data = create(DATA, data_flags)?;
    data.set_len(len)?;
    let data_id = file_id(&fstat(&data)?);
    let table = BlockTable::create(create(TABLE, OFlag::O_RDWR)?, id, blocks(len), data_id, boot)?;
    Ok((data, table))
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

/// Whether opening failed because something else than a regular file has the name.
fn is_no_file(errno: Errno) -> bool {
    matches!(errno, Errno::ELOOP | Errno::EINVAL | Errno::EISDIR | Errno::ENXIO)
}

/// The number of blocks of an object.
pub(super) fn blocks(len: u64) -> u64 {
    len.div_ceil(crate::source::pins::BLOCK)
}
