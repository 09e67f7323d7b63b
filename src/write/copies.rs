//! A directory that files are copied to, with a journal, so that an interrupted copy can continue.
//!
//! While files are copied, the directory has a subdirectory [`STATE`] with unfinished files, which have numbers as
//! names, and a journal. A line of the journal says how many bytes of a file are on the disk, or that all of them are;
//! it is written after the file was synced. Only what the journal says is trusted, so neither a killed process nor a
//! power failure leaves wrong bytes. A file gets its name after the journal says that it is complete.

use super::error::Error;
use super::output::OutputFile;
use super::place::{FoundPath, PlaceName, id, is, open_dir};
use super::space;
use crate::source::FileId;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use nix::dir::Dir;
use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, mkdirat};
use nix::unistd::{UnlinkatFlags, syncfs, unlinkat};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs::{File, FileTimes};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// The directory of unfinished files.
pub const STATE: &str = ".weightfs-cp";

/// The name of the journal in it.
const JOURNAL: &str = "journal";

/// Up to this many files are synced one by one. For more, the file system is synced as a whole.
const ONE_BY_ONE_MAX: usize = 8;

/// A line of the journal.
#[derive(Debug, Serialize, Deserialize)]
struct JournalLine {
    /// The path in the directory, in Base64, because it may not be UTF-8.
    path: String,
    #[serde(flatten)]
    record: CopyRecord,
}

/// The state of a file on the disk.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct CopyRecord {
    /// The version of the source that the bytes are from.
    version: Option<String>,
    /// The name of the unfinished file.
    number: u64,
    /// Its device and inode number, which it keeps when it gets its final name.
    file: FileId,
    /// Number of bytes from the start that are on the disk; `None` if the file is complete.
    synced: Option<u64>,
}

/// A directory that files are copied to. Other processes cannot copy to it at the same time.
#[derive(Debug)]
pub struct CopyDirectory {
    /// The path as given, for messages.
    path: PathBuf,
    dir: Arc<OwnedFd>,
    state: Arc<OwnedFd>,
    journal: Mutex<File>,
    /// Keeps the lock.
    _lock: Flock<File>,
    /// The entries of the journal, by path.
    records: HashMap<Vec<u8>, CopyRecord>,
    next: AtomicU64,
    /// Whether files that exist and are not from the interrupted copy are replaced.
    force: bool,
}

/// A file to copy.
#[derive(Debug, Clone)]
pub struct FileCopy {
    /// The path in the directory.
    pub path: PathBuf,
    /// Size in bytes.
    pub len: u64,
    /// Identifies the bytes: two files of the same version have the same bytes. `None` if that is not known; a copy of
    /// such a file is not continued.
    pub version: Option<String>,
    /// Permissions, before the umask is applied.
    pub mode: u32,
    /// Time of the last modification.
    pub mtime: SystemTime,
}

/// A file that is being copied.
#[derive(Debug)]
pub struct PartialCopy<'c> {
    copy: &'c FileCopy,
    number: u64,
    file: File,
    /// Number of bytes that are already there.
    pub done: u64,
}

impl CopyDirectory {
    /// Opens or creates the directory `path`, and reads the journal of an interrupted copy. Links are followed as by
    /// [`OutputFile::create`]. With `force`, files are replaced that exist and are not from the interrupted copy.
    pub fn open(path: &Path, force: bool) -> Result<Self, Error> {
        Self::begin(path, force).map_err(|error| Error::Io { path: path.to_owned(), what: "", error })
    }

    fn begin(path: &Path, force: bool) -> io::Result<Self> {
        let dir = match FoundPath::at(path)? {
            FoundPath::Dir(dir) => dir,
            FoundPath::Name { place, at: None, .. } => {
                mkdirat(&place.dir, &*place.name, Mode::from_bits_truncate(0o777))?;
                open_dir(&place.dir, &*place.name)?
            }
            FoundPath::Name { .. } | FoundPath::Unnamed(_) => return Err(Errno::ENOTDIR.into()),
        };
        let made = mkdirat(&dir, STATE, Mode::from_bits_truncate(0o700));
        made.or_else(|errno| if errno == Errno::EEXIST { Ok(()) } else { Err(errno) })?;
        let state = open_dir(&dir, STATE)?;
        // Another user could exchange unfinished files in a directory of theirs, or in one that they may write to.
        let stat = fstat(&state)?;
        if stat.st_uid != nix::unistd::geteuid().as_raw() || stat.st_mode & 0o077 != 0 {
            return Err(io::Error::other(format!("{STATE} in it is not a private directory of this user")));
        }
        let flags = OFlag::O_RDWR | OFlag::O_APPEND | OFlag::O_CREAT | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
        let mut journal: File = openat(&state, JOURNAL, flags, Mode::from_bits_truncate(0o600))?.into();
        let lock =
            Flock::lock(journal.try_clone()?, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
                Errno::EWOULDBLOCK => io::Error::other("another process is copying to it"),
                errno => errno.into(),
            })?;
        let mut text = Vec::new();
        journal.read_to_end(&mut text)?;
        let (mut records, mut whole) = (HashMap::new(), 0);
        // The last line may be incomplete.
        for line in text.split_inclusive(|byte| *byte == b'\n').take_while(|line| line.ends_with(b"\n")) {
            let parsed = serde_json::from_slice::<JournalLine>(line).ok();
            let Some((path, record)) =
                parsed.and_then(|line| Some((BASE64_STANDARD.decode(line.path).ok()?, line.record)))
            else {
                break;
            };
            records.insert(path, record);
            whole += line.len();
        }
        journal.set_len(whole as u64)?;
        let known: HashSet<u64> = records.values().map(|record: &CopyRecord| record.number).collect();
        let (dir, state) = (Arc::new(dir), Arc::new(state));
        // Files that the journal does not name.
        for number in numbers(&state)?.into_iter().filter(|number| !known.contains(number)) {
            PlaceName { dir: state.clone(), name: number.to_string().into() }.remove()?;
        }
        let next = known.into_iter().max().map_or(0, |last| last + 1).into();
        Ok(Self { path: path.to_owned(), dir, state, journal: journal.into(), _lock: lock, records, next, force })
    }

    /// Fails if a file that is not from the interrupted copy has the name of one to copy, or if there is too little
    /// space. Returns the number of bytes of the files that are complete already.
    pub fn check(&self, copies: &[FileCopy]) -> Result<u64, Error> {
        let (mut done, mut written, mut taken) = (0u64, 0u64, Vec::new());
        for copy in copies {
            let there = self.there(copy).map_err(|error| self.error(copy, error))?;
            if there.as_ref().is_some_and(|there| is(there, SFlag::S_IFDIR)) {
                return Err(self.error(copy, Errno::EISDIR.into()));
            }
            let record = self.record(copy);
            match there {
                Some(there) if record.is_some_and(|record| is_done(copy, record, &there)) => done += copy.len,
                Some(there) if !self.force && !record.is_some_and(|record| is_ours(record, &there)) => taken.push(copy),
                _ => written += record.and_then(|record| record.synced).unwrap_or(0),
            }
        }
        if let [first, rest @ ..] = &taken[..] {
            let more = if rest.is_empty() { String::new() } else { format!(", and {} more files", rest.len()) };
            return Err(self.error(first, io::Error::other(format!("exists already{more}; --force replaces it"))));
        }
        let all = copies.iter().map(|copy| copy.len).fold(0, u64::saturating_add);
        space::check_space(&self.path, &self.dir, all.saturating_sub(done).saturating_sub(written))?;
        Ok(done)
    }

    /// Starts or continues to copy a file. `None` if it is complete.
    pub fn start<'c>(&self, copy: &'c FileCopy) -> Result<Option<PartialCopy<'c>>, Error> {
        let start = || {
            let there = self.there(copy)?;
            let record = self.record(copy).filter(|record| is_current(copy, record));
            if let Some((record, there)) = record.zip(there)
                && is_done(copy, record, &there)
            {
                return Ok(None);
            }
            if let Some(part) = record.and_then(|record| self.continued(copy, record)) {
                return Ok(Some(part));
            }
            // A new number, because the journal may say that more of the old file is there.
            let number = self.next.fetch_add(1, Ordering::Relaxed);
            let flags = OFlag::O_RDWR | OFlag::O_CREAT | OFlag::O_EXCL;
            let file = self.unfinished(number).open(flags, copy.mode)?;
            Ok(Some(PartialCopy { copy, number, file, done: 0 }))
        };
        start().map_err(|error| self.error(copy, error))
    }

    /// The unfinished file of a record, if it has as many bytes as the record says.
    fn continued<'c>(&self, copy: &'c FileCopy, record: &CopyRecord) -> Option<PartialCopy<'c>> {
        let done = record.synced.unwrap_or(copy.len);
        let mut file = self.unfinished(record.number).open(OFlag::O_RDWR, 0).ok()?;
        let stat = fstat(&file).ok()?;
        if id(&stat) != record.file || u64::try_from(stat.st_size).ok()? < done {
            return None;
        }
        file.set_len(done).ok()?;
        file.seek(SeekFrom::Start(done)).ok()?;
        Some(PartialCopy { copy, number: record.number, file, done })
    }

    /// Syncs what was written to a part so far, and records it in the journal.
    pub fn save(&self, part: &PartialCopy) -> Result<(), Error> {
        let save = || {
            part.file.sync_data()?;
            let synced = (&part.file).stream_position()?;
            self.write([(part, Some(synced))])
        };
        save().map_err(|error| self.error(part.copy, error))
    }

    /// Gives files that are complete their names.
    pub fn finish(&self, parts: &[PartialCopy]) -> Result<(), Error> {
        for part in parts {
            let times = FileTimes::new().set_modified(part.copy.mtime);
            let set = part.file.set_times(times).and_then(|()| match parts.len() {
                ..=ONE_BY_ONE_MAX => part.file.sync_all(),
                _ => Ok(()),
            });
            set.map_err(|error| self.error(part.copy, error))?;
        }
        let named = |error| Error::Io { path: self.path.clone(), what: "", error };
        if parts.len() > ONE_BY_ONE_MAX {
            syncfs(&parts[0].file).map_err(|errno| named(errno.into()))?;
        }
        self.write(parts.iter().map(|part| (part, None))).map_err(named)?;
        parts.iter().try_for_each(|part| self.name(part).map_err(|error| self.error(part.copy, error)))
    }

    fn name(&self, part: &PartialCopy) -> io::Result<()> {
        let (from, to) = (self.unfinished(part.number), PlaceName::below(&self.dir, &part.copy.path, true)?);
        let new = id(&fstat(&part.file)?);
        match to.stat()? {
            None => to.take(&from),
            Some(there) if self.force => to.replace(id(&there), &from, new),
            Some(there) if self.record(part.copy).is_some_and(|record| is_ours(record, &there)) => {
                to.replace(id(&there), &from, new)
            }
            Some(_) => Err(io::Error::other("exists now; --force replaces it")),
        }
    }

    /// Ends a copy of which all files are complete, or of which none was begun: removes the journal.
    pub fn end(self) -> Result<(), Error> {
        let end = || {
            let dir = openat(&self.state, ".", OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC, Mode::empty())?;
            syncfs(&dir)?;
            for number in numbers(&self.state)? {
                self.unfinished(number).remove()?;
            }
            unlinkat(&self.state, JOURNAL, UnlinkatFlags::NoRemoveDir)?;
            Ok(unlinkat(&self.dir, STATE, UnlinkatFlags::RemoveDir)?)
        };
        end().map_err(|error: io::Error| Error::Io { path: self.path.join(STATE), what: "", error })
    }

    /// Whether no file of an interrupted copy is known.
    pub fn is_new(&self) -> bool {
        self.records.is_empty()
    }

    /// Appends lines to the journal and syncs it.
    fn write<'p>(&self, records: impl IntoIterator<Item = (&'p PartialCopy<'p>, Option<u64>)>) -> io::Result<()> {
        let mut lines = Vec::new();
        for (PartialCopy { copy, number, file, .. }, synced) in records {
            let path = BASE64_STANDARD.encode(copy.path.as_os_str().as_bytes());
            let record = CopyRecord { version: copy.version.clone(), number: *number, file: id(&fstat(file)?), synced };
            serde_json::to_writer(&mut lines, &JournalLine { path, record })?;
            lines.push(b'\n');
        }
        let mut journal = self.journal.lock().unwrap_or_else(PoisonError::into_inner);
        let len = journal.metadata()?.len();
        let written = journal.write_all(&lines).and_then(|()| journal.sync_data());
        // Lines after an incomplete line would be ignored when the journal is read.
        written.inspect_err(|_| _ = journal.set_len(len))
    }

    fn record(&self, copy: &FileCopy) -> Option<&CopyRecord> {
        self.records.get(copy.path.as_os_str().as_bytes())
    }

    fn unfinished(&self, number: u64) -> PlaceName {
        PlaceName { dir: self.state.clone(), name: number.to_string().into() }
    }

    /// The existing file at the path of a copy, if there is one.
    fn there(&self, copy: &FileCopy) -> io::Result<Option<FileStat>> {
        match PlaceName::below(&self.dir, &copy.path, false) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            place => place?.stat(),
        }
    }

    fn error(&self, copy: &FileCopy, error: io::Error) -> Error {
        Error::Io { path: self.path.join(&copy.path), what: "", error }
    }
}

impl PartialCopy<'_> {
    /// The file to write the rest to.
    pub fn output(&self, dir: &Path) -> io::Result<OutputFile> {
        Ok(OutputFile::direct(&dir.join(&self.copy.path), self.file.try_clone()?))
    }
}

/// Whether a record is of the version to copy.
fn is_current(copy: &FileCopy, record: &CopyRecord) -> bool {
    copy.version.is_some() && record.version == copy.version
}

/// Whether the file that is there was named by the interrupted copy.
fn is_ours(record: &CopyRecord, there: &FileStat) -> bool {
    record.synced.is_none() && record.file == id(there)
}

/// Whether the file that is there is a complete copy of the right version, and was not changed.
fn is_done(copy: &FileCopy, record: &CopyRecord, there: &FileStat) -> bool {
    let since_1970 = copy.mtime.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let time = (i64::try_from(since_1970.as_secs()), i64::from(since_1970.subsec_nanos()));
    let is_unchanged =
        (Ok(there.st_mtime), there.st_mtime_nsec) == time && u64::try_from(there.st_size) == Ok(copy.len);
    is_current(copy, record) && is_ours(record, there) && is_unchanged
}

/// The names of unfinished files.
fn numbers(state: &OwnedFd) -> io::Result<Vec<u64>> {
    let flags = OFlag::O_RDONLY | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
    let mut numbers = Vec::new();
    for entry in Dir::openat(state, ".", flags, Mode::empty())?.iter() {
        numbers.extend(entry?.file_name().to_str().ok().and_then(|name| name.parse::<u64>().ok()));
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Content;

    fn copy(version: &str) -> FileCopy {
        let mtime = SystemTime::UNIX_EPOCH;
        FileCopy { path: "a/b".into(), len: 10, version: Some(version.into()), mode: 0o644, mtime }
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
        let part = copies.start(&copy).unwrap().unwrap();
        assert_eq!(part.done, 0);
        write(&part, b"01234");
        copies.save(&part).unwrap();
        write(&part, b"567");
    }

    #[test]
    fn only_bytes_that_the_journal_names_are_trusted() {
        let dir = tempfile::tempdir().unwrap();
        interrupted(dir.path());
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        let copy = copy("1");
        let part = copies.start(&copy).unwrap().unwrap();
        assert_eq!((part.done, part.file.metadata().unwrap().len()), (5, 5));
        write(&part, b"56789");
        copies.finish(&[part]).unwrap();
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

    /// As after a power failure: the journal ends in the middle of a line, or the file is shorter than it says.
    #[test]
    fn files_are_copied_again_if_the_journal_is_damaged() {
        let dir = tempfile::tempdir().unwrap();
        interrupted(dir.path());
        let journal = dir.path().join(STATE).join(JOURNAL);
        let text = std::fs::read(&journal).unwrap();
        for len in 0..text.len() {
            std::fs::write(&journal, &text[..len]).unwrap();
            std::fs::write(dir.path().join(STATE).join("7"), "left").unwrap();
            let copies = CopyDirectory::open(dir.path(), false).unwrap();
            assert!(copies.is_new() && numbers(&copies.state).unwrap().is_empty(), "{len}");
        }
        // A file that is shorter, and another file.
        for bytes in [&b"012"[..], b"0123456789"] {
            let dir = tempfile::tempdir().unwrap();
            interrupted(dir.path());
            let unfinished = dir.path().join(STATE).join("0");
            if bytes.len() > 5 {
                std::fs::rename(&unfinished, dir.path().join(STATE).join("kept")).unwrap();
            }
            std::fs::write(&unfinished, bytes).unwrap();
            let (copies, copy) = (CopyDirectory::open(dir.path(), false).unwrap(), copy("1"));
            assert_eq!(copies.start(&copy).unwrap().unwrap().done, 0);
        }
    }

    /// A file of the user is neither replaced nor taken for a copy.
    #[test]
    fn files_that_were_not_copied_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        interrupted(dir.path());
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::fs::write(dir.path().join("a/b"), "0123456789").unwrap();
        let (copies, copy) = (CopyDirectory::open(dir.path(), false).unwrap(), copy("1"));
        let error = copies.check(std::slice::from_ref(&copy)).unwrap_err().to_string();
        assert!(error.ends_with("exists already; --force replaces it"), "{error}");
        // It appears after the check.
        let part = copies.start(&copy).unwrap().unwrap();
        write(&part, b"56789");
        let error = copies.finish(&[part]).unwrap_err().to_string();
        assert!(error.ends_with("exists now; --force replaces it"), "{error}");
    }

    #[test]
    fn copied_file_that_was_changed_is_copied_again() {
        let dir = tempfile::tempdir().unwrap();
        let copy = copy("1");
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        let part = copies.start(&copy).unwrap().unwrap();
        write(&part, b"0123456789");
        copies.finish(&[part]).unwrap();
        drop(copies);
        std::fs::write(dir.path().join("a/b"), "9876543210").unwrap();
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        assert_eq!(copies.check(std::slice::from_ref(&copy)).unwrap(), 0);
        let part = copies.start(&copy).unwrap().unwrap();
        assert_eq!(part.done, 0);
        write(&part, b"0123456789");
        copies.finish(&[part]).unwrap();
        assert_eq!(std::fs::read(dir.path().join("a/b")).unwrap(), b"0123456789");
    }

    #[test]
    fn file_that_is_complete_but_not_named_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        let copy = copy("1");
        let part = copies.start(&copy).unwrap().unwrap();
        write(&part, b"0123456789");
        copies.write([(&part, None)]).unwrap();
        drop((part, copies));
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        assert_eq!(copies.check(std::slice::from_ref(&copy)).unwrap(), 0);
        let part = copies.start(&copy).unwrap().unwrap();
        assert_eq!(part.done, 10);
        copies.finish(&[part]).unwrap();
        drop(copies);
        let copies = CopyDirectory::open(dir.path(), false).unwrap();
        assert_eq!(copies.check(std::slice::from_ref(&copy)).unwrap(), 10);
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
