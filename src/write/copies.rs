//! A directory that files are copied to, such that an interrupted copy can continue.
//!
//! While files are copied, the directory has a private subdirectory [`STATE`]. A file in it is named by the hash of its
//! path and version and by the number of its bytes that are on the disk: it is renamed after each sync. Only what these
//! names say is trusted, so neither a killed process nor a power failure leaves wrong bytes. A complete file keeps its
//! name there as a second link, by which a later run recognises the file at the final path, also where the user has
//! changed it. On a file system without hard links, such a file is taken for one of the user.

use super::bytes::check_space;
use super::dir::dir_entries;
use super::error::Error;
use super::output::OutputFile;
use super::place::{FoundPath, PlaceName, id, is, open_dir};
use super::temporary::try_lock;
use crate::source::FileId;
use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, syncfs, unlinkat};
use sha2::{Digest, Sha256};
use std::collections::{HashMap, HashSet};
use std::fs::{File, FileTimes};
use std::io::{self, Seek, SeekFrom};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

/// The directory of unfinished files.
pub const STATE: &str = ".weightfs-cp";

/// The suffix of a file that is no longer trusted, because it was changed after it was complete.
const OLD: &str = "old";

/// The suffix of the second link of a complete file, until it gets the final name.
const LINK: &str = "link";

/// Up to this many files are synced one by one. For more, the file system is synced as a whole.
const ONE_BY_ONE_MAX: usize = 8;

/// A directory that files are copied to. Other processes cannot copy to it at the same time.
#[derive(Debug)]
pub struct CopyDirectory {
    /// The path as given, for messages.
    path: PathBuf,
    dir: Arc<OwnedFd>,
    /// Locked.
    state: Arc<OwnedFd>,
    /// The files of an interrupted copy, by key: the number of bytes that are on the disk, and the attributes.
    found: HashMap<String, (u64, FileStat)>,
    /// All files of the interrupted copy.
    ours: HashSet<FileId>,
    /// Whether files that exist and are not from the interrupted copy are replaced.
    force: bool,
}

/// A file to copy.
#[derive(Debug, Clone)]
pub struct FileCopy {
    /// The path in the directory.
    pub path: PathBuf,
    pub len: u64,
    /// Identifies the bytes: two files of the same version have the same bytes. `None` if that is not known; a copy of
    /// such a file is not continued.
    pub version: Option<String>,
    /// Permissions, before the umask is applied.
    pub mode: u32,
    pub mtime: SystemTime,
    /// The first part of the name of the file in [`STATE`].
    key: String,
}

/// A file that is being copied.
#[derive(Debug)]
pub struct PartialCopy<'c> {
    copy: &'c FileCopy,
    /// Its name in [`STATE`].
    place: PlaceName,
    file: File,
    /// Number of bytes that are already there.
    pub done: u64,
}

impl FileCopy {
    pub fn new(path: PathBuf, len: u64, version: Option<String>, mode: u32, mtime: SystemTime) -> Self {
        let digest = Sha256::digest(format!("{path:?} {version:?}"));
        let key = digest.iter().fold(String::new(), |key, byte| key + &format!("{byte:02x}"));
        Self { path, len, version, mode, mtime, key }
    }

    /// Whether a complete copy still has its size and time.
    fn is_unchanged(&self, stat: &FileStat) -> bool {
        let since_1970 = self.mtime.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let time = (i64::try_from(since_1970.as_secs()), i64::from(since_1970.subsec_nanos()));
        let is_same = (Ok(stat.st_mtime), stat.st_mtime_nsec) == time && u64::try_from(stat.st_size) == Ok(self.len);
        is_same && self.version.is_some()
    }
}

impl CopyDirectory {
    /// Opens or creates the directory `path`, and finds the files of an interrupted copy. Links are followed as by
    /// [`OutputFile::create`]. With `force`, files are replaced that exist and are not from the interrupted copy.
    pub fn open(path: &Path, force: bool) -> Result<Self, Error> {
        Self::begin(path, force).map_err(Error::at(path))
    }

    fn begin(path: &Path, force: bool) -> io::Result<Self> {
        let dir = Arc::new(match FoundPath::at(path)? {
            FoundPath::Dir(dir) => dir,
            FoundPath::Name { place, at: None, .. } => {
                mkdirat(&place.dir, &*place.name, Mode::from_bits_truncate(0o777))?;
                open_dir(&place.dir, &*place.name)?
            }
            FoundPath::Name { .. } | FoundPath::Unnamed(_) => return Err(Errno::ENOTDIR.into()),
        });
        let made = mkdirat(&dir, STATE, Mode::from_bits_truncate(0o700));
        made.or_else(|errno| if errno == Errno::EEXIST { Ok(()) } else { Err(errno) })?;
        let state = PlaceName { dir: dir.clone(), name: STATE.into() }.open(OFlag::O_RDONLY | OFlag::O_DIRECTORY, 0)?;
        // Another user could exchange unfinished files in a directory of theirs, or in one that they may write to.
        let stat = fstat(&state)?;
        if stat.st_uid != nix::unistd::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(io::Error::other(format!("{STATE} in it is not a private directory of this user")));
        }
        try_lock(&state).map_err(|errno| match errno {
            Errno::EWOULDBLOCK => io::Error::other("another process is copying to it"),
            errno => errno.into(),
        })?;
        let (path, state) = (path.to_owned(), Arc::new(state.into()));
        let (found, ours) = Default::default();
        let mut copies = Self { path, dir, state, found, ours, force };
        copies.find_interrupted()?;
        Ok(copies)
    }

    fn find_interrupted(&mut self) -> io::Result<()> {
        for name in dir_entries(&self.state)? {
            let name = name.to_string_lossy();
            let place = self.unnamed(&name);
            let Some(stat) = place.stat()? else { continue };
            self.ours.insert(id(&stat));
            match name.split_once('.') {
                Some((_, LINK)) => place.remove()?,
                Some((key, synced)) => {
                    self.found.extend(synced.parse().ok().map(|synced| (key.to_owned(), (synced, stat))))
                }
                None => {}
            }
        }
        Ok(())
    }

    /// Fails if a file that is not from the interrupted copy has the name of one to copy, or if there is too little
    /// space. Returns the number of bytes of the files that are complete already.
    pub fn check<'c>(&self, copies: impl Iterator<Item = &'c FileCopy>) -> Result<u64, Error> {
        let (mut done, mut needed, mut taken) = (0u64, 0u64, Vec::new());
        for copy in copies {
            match self.there(copy).map_err(|error| self.error(copy, error))? {
                Some(there) if is(&there, SFlag::S_IFDIR) => return Err(self.error(copy, Errno::EISDIR.into())),
                Some(there) if self.is_done(copy, &there) => done = done.saturating_add(copy.len),
                Some(there) if !self.may_replace(&there) => taken.push(copy),
                _ => needed = needed.saturating_add(copy.len - self.trusted(copy).unwrap_or(0)),
            }
        }
        if let [first, rest @ ..] = &taken[..] {
            let more = if rest.is_empty() { String::new() } else { format!(", and {} more files", rest.len()) };
            return Err(self.error(first, io::Error::other(format!("exists already{more}; --force replaces it"))));
        }
        check_space(&self.path, &self.dir, needed)?;
        Ok(done)
    }

    /// Starts or continues to copy a file. `None` if it is complete.
    pub fn start<'c>(&self, copy: &'c FileCopy) -> Result<Option<PartialCopy<'c>>, Error> {
        self.begin_file(copy).map_err(|error| self.error(copy, error))
    }

    fn begin_file<'c>(&self, copy: &'c FileCopy) -> io::Result<Option<PartialCopy<'c>>> {
        if self.there(copy)?.is_some_and(|there| self.is_done(copy, &there)) {
            return Ok(None);
        }
        let key = &copy.key;
        if let Some(done) = self.trusted(copy) {
            let place = self.unnamed(&format!("{key}.{done}"));
            let mut file = place.open(OFlag::O_RDWR, 0)?;
            if file.metadata()?.len() >= done {
                file.set_len(done)?;
                file.seek(SeekFrom::Start(done))?;
                return Ok(Some(PartialCopy { copy, place, file, done }));
            }
        }
        if let Some((synced, _)) = self.found.get(key) {
            let place = self.unnamed(&format!("{key}.{synced}"));
            match *synced == copy.len {
                // By this link, the file at the final path is still recognised.
                true => _ = place.rename_to(&format!("{key}.{OLD}"))?,
                false => place.remove()?,
            }
        }
        let place = self.unnamed(&format!("{key}.0"));
        let file = place.open(OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL, copy.mode)?;
        Ok(Some(PartialCopy { copy, place, file, done: 0 }))
    }

    /// The number of bytes that are on the disk of a file that can be continued, or is complete.
    fn trusted(&self, copy: &FileCopy) -> Option<u64> {
        let (synced, stat) = self.found.get(&copy.key).filter(|_| copy.version.is_some())?;
        (*synced < copy.len || copy.is_unchanged(stat)).then_some(*synced)
    }

    /// Syncs what was written to a part so far, so that a later run can continue after it.
    pub fn save(&self, part: &mut PartialCopy) -> Result<(), Error> {
        part.sync().map_err(|error| self.error(part.copy, error))
    }

    /// Gives files that are complete their names.
    pub fn finish(&self, parts: Vec<PartialCopy>) -> Result<(), Error> {
        let is_small = parts.len() <= ONE_BY_ONE_MAX;
        for part in &parts {
            let set = part.file.set_times(FileTimes::new().set_modified(part.copy.mtime));
            let synced = set.and_then(|()| if is_small { part.file.sync_all() } else { Ok(()) });
            synced.map_err(|error| self.error(part.copy, error))?;
        }
        if let Some(first) = parts.first().filter(|_| !is_small) {
            syncfs(&first.file).map_err(|errno| self.error(first.copy, errno.into()))?;
        }
        parts.into_iter().try_for_each(|part| self.name(&part).map_err(|error| self.error(part.copy, error)))
    }

    /// Gives a file that is on the disk its final name.
    fn name(&self, part: &PartialCopy) -> io::Result<()> {
        let key = &part.copy.key;
        let complete = part.place.rename_to(&format!("{key}.{}", part.copy.len))?;
        let link = self.unnamed(&format!("{key}.{LINK}"));
        let from = if complete.link_to(&link).is_ok() { link } else { complete };
        let (to, new) = (PlaceName::below(&self.dir, &part.copy.path, true)?, id(&fstat(&part.file)?));
        match to.stat()? {
            None => to.take(&from),
            Some(there) if self.may_replace(&there) => to.replace(id(&there), &from, new),
            Some(_) => Err(io::Error::other("exists now; --force replaces it")),
        }
    }

    /// Ends a copy of which all files are complete: only they remain.
    pub fn end(self) -> Result<(), Error> {
        self.remove_state().map_err(Error::at(&self.path.join(STATE)))
    }

    fn remove_state(&self) -> io::Result<()> {
        syncfs(&self.state)?;
        for name in dir_entries(&self.state)? {
            self.unnamed(&name.to_string_lossy()).remove()?;
        }
        Ok(unlinkat(&self.dir, STATE, UnlinkatFlags::RemoveDir)?)
    }

    /// A file in [`STATE`].
    fn unnamed(&self, name: &str) -> PlaceName {
        PlaceName { dir: self.state.clone(), name: name.into() }
    }

    /// The existing file at the path of a copy, if there is one.
    fn there(&self, copy: &FileCopy) -> io::Result<Option<FileStat>> {
        match PlaceName::below(&self.dir, &copy.path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            place => place?.stat(),
        }
    }

    /// Whether the file that is there is a complete copy of the right version, and was not changed.
    fn is_done(&self, copy: &FileCopy, there: &FileStat) -> bool {
        let found = self.found.get(&copy.key);
        found.is_some_and(|(synced, stat)| *synced == copy.len && id(stat) == id(there)) && copy.is_unchanged(there)
    }

    fn may_replace(&self, there: &FileStat) -> bool {
        self.force || self.ours.contains(&id(there))
    }

    fn error(&self, copy: &FileCopy, error: io::Error) -> Error {
        Error::at(&self.path.join(&copy.path))(error)
    }
}

impl Drop for CopyDirectory {
    /// If no file was begun, nothing is left behind.
    fn drop(&mut self) {
        let _ = unlinkat(&self.dir, STATE, UnlinkatFlags::RemoveDir);
    }
}

impl PartialCopy<'_> {
    /// The file to write the rest to.
    pub fn output(&self, dir: &Path) -> io::Result<OutputFile> {
        Ok(OutputFile::direct(&dir.join(&self.copy.path), self.file.try_clone()?))
    }

    fn sync(&mut self) -> io::Result<()> {
        self.file.sync_data()?;
        let synced = self.file.stream_position()?;
        self.place = self.place.rename_to(&format!("{}.{synced}", self.copy.key))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Content;

    fn copy(version: &str) -> FileCopy {
        FileCopy::new("a/b".into(), 10, Some(version.into()), 0o644, SystemTime::UNIX_EPOCH)
    }

    /// Writes bytes to a part.
    fn write(part: &PartialCopy, bytes: &[u8]) {
        let content = Content::literal(bytes.to_vec());
        part.output(Path::new("")).unwrap().write_content(&content, &mut |_| true).unwrap();
    }

    /// Copies half of a file and saves it, and then more, which is not saved.
    fn interrupted(dir: &Path) {
        let copies = CopyDirectory::open(dir, false).unwrap();
        let copy = copy("1");
        let mut part = copies.start(&copy).unwrap().unwrap();
        assert_eq!(part.done, 0);
        write(&part, b"01234");
        copies.save(&mut part).unwrap();
        write(&part, b"567");
    }

    #[test]
    fn only_bytes_that_are_on_the_disk_are_trusted() {
        let dir = tempfile::tempdir().unwrap();
        interrupted(dir.path());
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        let copy = copy("1");
        let part = copies.start(&copy).unwrap().unwrap();
        assert_eq!((part.done, part.file.metadata().unwrap().len()), (5, 5));
        write(&part, b"56789");
        copies.finish(vec![part]).unwrap();
        assert!(copies.end().is_ok());
        assert_eq!(std::fs::read(dir.path().join("a/b")).unwrap(), b"0123456789");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn bytes_of_another_version_are_not_continued() {
        let dir = tempfile::tempdir().unwrap();
        interrupted(dir.path());
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        let copy = copy("2");
        let part = copies.start(&copy).unwrap().unwrap();
        assert_eq!((part.done, part.file.metadata().unwrap().len()), (0, 0));
    }

    /// As after a power failure on a file system that loses bytes even after a sync.
    #[test]
    fn file_that_is_shorter_than_its_name_says_is_copied_again() {
        let dir = tempfile::tempdir().unwrap();
        interrupted(dir.path());
        let copy = copy("1");
        let unfinished = dir.path().join(STATE).join(format!("{}.5", copy.key));
        std::fs::write(&unfinished, "012").unwrap();
        std::fs::write(dir.path().join(STATE).join("stray"), "left").unwrap();
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        let part = copies.start(&copy).unwrap().unwrap();
        assert_eq!((part.done, part.file.metadata().unwrap().len()), (0, 0));
        write(&part, b"0123456789");
        copies.finish(vec![part]).unwrap();
        copies.end().unwrap();
        assert_eq!(std::fs::read(dir.path().join("a/b")).unwrap(), b"0123456789");
        assert!(!dir.path().join(STATE).exists());
    }

    /// Bytes that were written after the last sync, and perhaps not in order, have no effect.
    #[test]
    fn bytes_after_those_on_the_disk_are_written_again() {
        let dir = tempfile::tempdir().unwrap();
        interrupted(dir.path());
        let copy = copy("1");
        std::fs::write(dir.path().join(STATE).join(format!("{}.5", copy.key)), "01234\0\0\0\0\0").unwrap();
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        let part = copies.start(&copy).unwrap().unwrap();
        assert_eq!((part.done, part.file.metadata().unwrap().len()), (5, 5));
    }

    /// A file of the user is neither replaced nor taken for a copy.
    #[test]
    fn files_that_were_not_copied_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        interrupted(dir.path());
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/b"), "0123456789").unwrap();
        let (copies, copy) = (CopyDirectory::open(dir.path(), false).unwrap(), copy("1"));
        let error = copies.check([&copy].into_iter()).unwrap_err().to_string();
        assert!(error.ends_with("exists already; --force replaces it"), "{error}");
        // It appears after the check.
        let part = copies.start(&copy).unwrap().unwrap();
        write(&part, b"56789");
        let error = copies.finish(vec![part]).unwrap_err().to_string();
        assert!(error.ends_with("exists now; --force replaces it"), "{error}");
    }

    #[test]
    fn copied_file_that_was_changed_is_copied_again() {
        let dir = tempfile::tempdir().unwrap();
        let copy = copy("1");
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        let part = copies.start(&copy).unwrap().unwrap();
        write(&part, b"0123456789");
        copies.finish(vec![part]).unwrap();
        drop(copies);
        std::fs::write(dir.path().join("a/b"), "9876543210").unwrap();
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        assert_eq!(copies.check([&copy].into_iter()).unwrap(), 0);
        let part = copies.start(&copy).unwrap().unwrap();
        assert_eq!(part.done, 0);
        write(&part, b"0123456789");
        copies.finish(vec![part]).unwrap();
        assert_eq!(std::fs::read(dir.path().join("a/b")).unwrap(), b"0123456789");
    }

    #[test]
    fn file_that_is_complete_but_not_named_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        let copy = copy("1");
        let part = copies.start(&copy).unwrap().unwrap();
        write(&part, b"0123456789");
        copies.finish(vec![part]).unwrap();
        std::fs::remove_file(dir.path().join("a/b")).unwrap();
        drop(copies);
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        assert_eq!(copies.check([&copy].into_iter()).unwrap(), 0);
        let part = copies.start(&copy).unwrap().unwrap();
        assert_eq!(part.done, 10);
        copies.finish(vec![part]).unwrap();
        drop(copies);
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        assert_eq!(copies.check([&copy].into_iter()).unwrap(), 10);
        assert!(copies.start(&copy).unwrap().is_none());
        assert_eq!(std::fs::read(dir.path().join("a/b")).unwrap(), b"0123456789");
    }

    #[test]
    fn two_processes_do_not_copy_to_the_same_directory() {
        let dir = tempfile::tempdir().unwrap();
        let _first = CopyDirectory::open(dir.path(), false).unwrap();
        let error = CopyDirectory::open(dir.path(), false).unwrap_err().to_string();
        assert!(error.ends_with("another process is copying to it"), "{error}");
    }
}
