//! The last messages of a daemon that has neither syslog nor a log file: a file in the runtime directory.
//!
//! The daemon creates the file before it enters the sandbox. After that it may not cut or remove files, so it sends
//! each message to the helper process, which writes the file. The file begins with a line that says what is mounted
//! where, and is named after the process id of the daemon. It is removed at the unmount if there were no messages.

use super::descriptors::{MessageWriter, packet_pair, receive_packet};
use anyhow::{Context, bail};
use nix::unistd::geteuid;
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use weightfs::text::message;

/// Largest size of the file. If a message would exceed it, the older half is dropped.
const LEN_MAX: usize = 64 << 10;

/// Maximum number of files of ended daemons that are kept.
const ENDED_MAX: usize = 8;

/// Longest message. The rest of a longer one is lost.
const MESSAGE_MAX: usize = 16 << 10;

const SUFFIX: &str = "log";

/// The daemon's end of the connection to the helper.
pub struct RecentMessages(UnixStream);

/// The first packet, which says that the file exists.
const START: &[u8] = b"s";

/// Connects the daemon with its helper. Each packet after the first one is a message.
pub fn message_pair() -> anyhow::Result<(RecentMessages, UnixStream)> {
    let (ours, theirs) = packet_pair()?;
    // A message is lost if the helper is too slow. The daemon never waits for it.
    ours.set_nonblocking(true)?;
    Ok((RecentMessages(ours), theirs))
}

impl RecentMessages {
    /// Creates the file of this process with the line `first`, and returns its path. Later messages are kept.
    pub fn start(&self, first: &str) -> anyhow::Result<PathBuf> {
        let dir = directory()?;
        remove_old(&dir);
        let path = recent_path(&dir, std::process::id());
        // The file of an earlier process with the same id.
        let _ = std::fs::remove_file(&path);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        file.and_then(|mut file| writeln!(file, "{first}")).with_context(|| path.display().to_string())?;
        self.writer()?.write_all(START).context("the helper process is gone")?;
        Ok(path)
    }

    pub fn writer(&self) -> io::Result<MessageWriter> {
        self.0.try_clone().map(|socket| MessageWriter(socket.into()))
    }
}

/// The file with the last messages of the daemon of a mount, if it is of this user and has one.
pub fn find_recent(mountpoint: &Path) -> Option<PathBuf> {
    let ending = message(&format!(": mounted on {}", mountpoint.display()));
    let files = std::fs::read_dir(directory_path().ok()?).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    files.filter(|path| !is_of_ended_daemon(path)).find(|path| {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        text.lines().next().is_some_and(|first| first.ends_with(&ending))
    })
}

/// The private directory of the files: in /run for root, in $XDG_RUNTIME_DIR for other users.
fn directory_path() -> anyhow::Result<PathBuf> {
    let parent = match std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        _ if geteuid().is_root() => PathBuf::from("/run"),
        Some(dir) if dir.is_absolute() => dir,
        _ => bail!("XDG_RUNTIME_DIR is not set"),
    };
    Ok(parent.join("weightfs"))
}

/// Creates the directory unless it exists.
fn directory() -> anyhow::Result<PathBuf> {
    let dir = directory_path()?;
    let found = match DirBuilder::new().mode(0o700).create(&dir) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => dir.symlink_metadata(),
    };
    let found = found.with_context(|| dir.display().to_string())?;
    if !found.is_dir() || found.uid() != geteuid().as_raw() || found.mode() & 0o022 != 0 {
        bail!("{}: not a directory that only its owner can write to", dir.display());
    }
    Ok(dir)
}

fn recent_path(dir: &Path, daemon: u32) -> PathBuf {
    dir.join(daemon.to_string()).with_extension(SUFFIX)
}

/// Removes the files of daemons that have ended, except the newest.
fn remove_old(dir: &Path) {
    let paths = std::fs::read_dir(dir).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let old = paths.filter(|path| is_of_ended_daemon(path));
    let mut old: Vec<_> = old.filter_map(|path| Some((path.symlink_metadata().ok()?.modified().ok()?, path))).collect();
    old.sort();
    for (_, path) in old.iter().rev().skip(ENDED_MAX) {
        let _ = std::fs::remove_file(path);
    }
}

fn is_of_ended_daemon(path: &Path) -> bool {
    let id = path.file_stem().and_then(|stem| stem.to_str()?.parse::<u32>().ok());
    path.extension().is_some_and(|extension| extension == SUFFIX)
        && id.is_some_and(|id| !Path::new("/proc").join(id.to_string()).exists())
}

/// Writes the messages that the process `daemon` sends to its file, until it ends. The helper is not in the sandbox, so
/// it takes no path from the daemon.
pub fn record_messages(messages: UnixStream, daemon: u32) {
    record_to(messages, || Some(recent_path(&directory().ok()?, daemon)));
}

fn record_to(mut messages: UnixStream, path: impl Fn() -> Option<PathBuf>) {
    let mut packet = [0; MESSAGE_MAX];
    // The daemon has just created the file. If it is gone already, there is nothing to keep.
    let Ok(1..) = receive_packet(&mut messages, &mut packet) else { return };
    let Some(mut file) = path().and_then(|path| MessageFile::open(path).ok()) else { return };
    while let Ok(len @ 1..) = receive_packet(&mut messages, &mut packet) {
        file.add(&packet[..len]);
    }
    file.finish();
}

struct MessageFile {
    path: PathBuf,
    file: File,
    /// The first line, which is never dropped.
    first: Vec<u8>,
    kept: Vec<u8>,
}

impl MessageFile {
    fn open(path: PathBuf) -> io::Result<Self> {
        let mut file = OpenOptions::new().read(true).write(true).custom_flags(nix::libc::O_NOFOLLOW).open(&path)?;
        let mut first = Vec::new();
        file.read_to_end(&mut first)?;
        Ok(Self { path, file, first, kept: Vec::new() })
    }

    /// Adds a message. If the file cannot be written, the message is lost.
    fn add(&mut self, message: &[u8]) {
        let before = self.kept.len();
        self.kept.extend_from_slice(message);
        if !message.ends_with(b"\n") {
            self.kept.push(b'\n');
        }
        let _ = match self.first.len() + self.kept.len() > LEN_MAX {
            true => self.rewrite(),
            false => self.file.write_all(&self.kept[before..]),
        };
    }

    /// Drops the older messages, and writes the file anew.
    fn rewrite(&mut self) -> io::Result<()> {
        let half = self.kept.len().saturating_sub(LEN_MAX / 2);
        let line = self.kept[half..].iter().position(|byte| *byte == b'\n').map_or(0, |end| half + end + 1);
        self.kept.drain(..line);
        self.file.set_len(0)?;
        self.file.rewind()?;
        self.file.write_all(&self.first)?;
        self.file.write_all(&self.kept)
    }

    /// Removes the file if there were no messages.
    fn finish(self) {
        if self.kept.is_empty() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(dir: &Path) -> MessageFile {
        let path = dir.join("1.log");
        std::fs::write(&path, "first\n").unwrap();
        MessageFile::open(path).unwrap()
    }

    #[test]
    fn last_messages_are_kept_in_a_file_of_bounded_size() {
        let dir = tempfile::tempdir().unwrap();
        let mut record = record(dir.path());
        for at in 0..10_000 {
            record.add(format!("message {at}\n").as_bytes());
            assert!(std::fs::metadata(&record.path).unwrap().len() <= LEN_MAX as u64);
        }
        record.add(b"without a line feed");
        let path = record.path.clone();
        record.finish();
        let text = std::fs::read_to_string(path).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines[0], lines[lines.len() - 1]), ("first", "without a line feed"));
        let kept: Vec<usize> = lines[1..lines.len() - 1]
            .iter()
            .map(|line| line.strip_prefix("message ").unwrap().parse().unwrap())
            .collect();
        assert_eq!(*kept.last().unwrap(), 9_999);
        assert!(kept.len() > 1000 && kept.windows(2).all(|pair| pair[0] + 1 == pair[1]), "{}", kept.len());
    }

    #[test]
    fn file_without_messages_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        record(dir.path()).finish();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn few_files_of_ended_daemons_are_kept() {
        let dir = tempfile::tempdir().unwrap();
        let running = dir.path().join(std::process::id().to_string()).with_extension(SUFFIX);
        std::fs::write(&running, "").unwrap();
        std::fs::write(dir.path().join("other.log"), "").unwrap();
        // Process ids do not exceed 2^22.
        for id in 5_000_000..5_000_020 {
            std::fs::write(dir.path().join(id.to_string()).with_extension(SUFFIX), "").unwrap();
        }
        remove_old(dir.path());
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), ENDED_MAX + 2);
        assert!(running.exists() && dir.path().join("other.log").exists());
    }

    #[test]
    fn messages_arrive_in_order_and_their_end_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("1.log");
        std::fs::write(&path, "first\n").unwrap();
        let (recent, received) = message_pair().unwrap();
        let at = path.clone();
        let recording = std::thread::spawn(move || record_to(received, || Some(at.clone())));
        let mut messages = recent.writer().unwrap();
        for message in [START, b"a\n", b"", b"b\n"] {
            messages.write_all(message).unwrap();
        }
        drop((recent, messages));
        recording.join().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first\na\nb\n");
    }
}
