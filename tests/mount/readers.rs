//! Readers for tests in which something happens meanwhile: of three kinds, each comparing every byte that it gets.

use crate::support::{python, wait_until};
use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::libc::O_DIRECT;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

/// A file of a mount and what it must hold.
#[derive(Debug)]
pub struct Expected {
    /// Its path in the mount.
    pub name: String,
    pub bytes: Vec<u8>,
    /// A file that holds the same, for readers that are other programs.
    pub copy: PathBuf,
    /// Bytes from its beginning that are read.
    pub len: usize,
}

/// How a reader ended. That it got other bytes than it should ends the test.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was told to, and every byte had been right.
    Right,
    Error(Errno),
    /// Killed by a signal, as a reader of a map is that gets an error.
    Signal(i32),
}

impl End {
    /// What a reader may get of a file whose source has failed: an error that is no part of the file, or SIGBUS.
    pub fn is_error(self) -> bool {
        [Self::Error(Errno::EIO), Self::Error(Errno::ESTALE), Self::Signal(nix::libc::SIGBUS)].contains(&self)
    }
}

/// A kind of reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// In blocks from the beginning to the end, through the page cache of the mount, which it empties after each round.
    Sequential,
    /// Pieces of odd sizes at odd places, past the page cache, so that the daemon is asked each time.
    Random,
    /// A map, in a process of its own.
    Mapped,
}

/// Which reader of which file, and how it ended.
pub type Ended = (String, Way, End);

/// A reader of each kind for each of some files, all at work, round and round.
pub struct Readers {
    stop: Arc<AtomicBool>,
    threads: Vec<Thread>,
    mapped: Mapped,
}

struct Thread {
    name: String,
    way: Way,
    /// Twice the number of rounds that it has ended, and one more within a round.
    rounds: Arc<AtomicUsize>,
    handle: JoinHandle<End>,
}

impl Readers {
    /// Starts them; returns when each has got bytes, or an error.
    pub fn start(point: &Path, files: &[Arc<Expected>]) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let thread = |file: &Arc<Expected>, way: Way| {
            let (path, file, stop) = (point.join(&file.name), file.clone(), stop.clone());
            let rounds = Arc::new(AtomicUsize::new(0));
            let (name, counted) = (file.name.clone(), rounds.clone());
            let handle = std::thread::spawn(move || {
                let flags = if way == Way::Random { O_DIRECT } else { 0 };
                let opened = File::options().read(true).custom_flags(flags).open(path).unwrap();
                match read(&opened, &file, way, &counted, &stop) {
                    Ok(()) => End::Right,
                    Err(errno) => End::Error(errno),
                }
            });
            Thread { name, way, rounds, handle }
        };
        let ways = [Way::Sequential, Way::Random];
        let threads = files.iter().flat_map(|file| ways.map(|way| thread(file, way))).collect();
        let mut mapped = Mapped::new();
        mapped.start(point, files);
        let readers = Self { stop, threads, mapped };
        wait_until("every reader has got bytes", || {
            readers.threads.iter().all(|thread| thread.handle.is_finished() || thread.rounds() > 0)
        });
        readers
    }

    /// Returns when each that has not ended has begun and ended a whole round since.
    pub fn round(&mut self) {
        let seen: Vec<usize> = self.threads.iter().map(Thread::rounds).collect();
        self.mapped.round();
        // The round that is under way may have begun before.
        wait_until("every reader has read once more", || {
            let mut threads = self.threads.iter().zip(&seen);
            threads.all(|(thread, seen)| thread.handle.is_finished() || thread.rounds() >= (seen | 1) + 3)
        });
    }

    /// Stops them; says how each ended.
    pub fn stop(mut self) -> Vec<Ended> {
        self.stop.store(true, Ordering::Relaxed);
        let mut ended = self.mapped.stop();
        ended.extend(std::mem::take(&mut self.threads).into_iter().map(|thread| {
            let end = thread.handle.join().unwrap_or_else(|_| panic!("{} {:?}", thread.name, thread.way));
            (thread.name, thread.way, end)
        }));
        ended
    }

    /// Has each read everything at least once; says how each ended.
    pub fn once(point: &Path, files: &[Arc<Expected>]) -> Vec<Ended> {
        let mut readers = Self::start(point, files);
        readers.round();
        readers.stop()
    }
}

impl Drop for Readers {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Thread {
    fn rounds(&self) -> usize {
        self.rounds.load(Ordering::Relaxed)
    }
}

/// Reads until told to stop.
fn read(opened: &File, file: &Expected, way: Way, rounds: &AtomicUsize, stop: &AtomicBool) -> Result<(), Errno> {
    const BLOCK: usize = 128 << 10;
    let mut state = file.len as u64 | 1;
    // Each piece from the beginning to the end, or as many pieces somewhere.
    let mut piece = |at: usize| {
        if way == Way::Sequential {
            return (at * BLOCK, BLOCK);
        }
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        ((state >> 33) as usize % file.len, 1 + (state >> 40) as usize % BLOCK)
    };
    let mut bytes = vec![0; BLOCK];
    for round in 1.. {
        for at in 0..file.len.div_ceil(BLOCK) {
            let (mut offset, size) = piece(at);
            let end = file.len.min(offset + size);
            while offset < end {
                let len = opened
                    .read_at(&mut bytes[..end - offset], offset as u64)
                    .map_err(|error| Errno::from_raw(error.raw_os_error().unwrap()))?;
                assert_ne!(len, 0, "{} ends at {offset}", file.name);
                assert!(bytes[..len] == file.bytes[offset..offset + len], "{} {way:?}, at {offset}", file.name);
                offset += len;
            }
            rounds.store(round * 2 - 1, Ordering::Relaxed);
        }
        rounds.store(round * 2, Ordering::Relaxed);
        if stop.load(Ordering::Relaxed) {
            break;
        }
        posix_fadvise(opened, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
    }
    Ok(())
}

/// Readers of maps: `mapped.py` and its children, which end with it.
pub struct Mapped {
    pub child: Child,
    names: Vec<String>,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Mapped {
    /// The program, with nothing to read yet.
    pub fn new() -> Self {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/mapped.py");
        let mut command = Command::new(python());
        command.arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, names: Vec::new(), input, output }
    }

    /// As [`Readers::start`].
    pub fn start(&mut self, point: &Path, files: &[Arc<Expected>]) {
        self.names = files.iter().map(|file| file.name.clone()).collect();
        let line = |file: &Arc<Expected>| {
            format!("{}\t{}\t{}\n", point.join(&file.name).display(), file.copy.display(), file.len)
        };
        self.say(&(files.iter().map(line).collect::<String>() + "\n"));
        assert_eq!(self.line(), "reading\n");
    }

    fn say(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// As [`Readers::round`].
    pub fn round(&mut self) {
        self.say("\n");
        assert_eq!(self.line(), "done\n");
    }

    /// As [`Readers::stop`].
    pub fn stop(&mut self) -> Vec<Ended> {
        drop(self.input.take());
        let names = std::mem::take(&mut self.names);
        let end = |name: String| {
            let end = match self.line().trim_end() {
                "right" => End::Right,
                said => End::Signal(said.parse().unwrap_or_else(|_| panic!("{name} mapped: {said}"))),
            };
            (name, Way::Mapped, end)
        };
        names.into_iter().map(end).collect()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
