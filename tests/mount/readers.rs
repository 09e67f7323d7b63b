//! Concurrent readers of three kinds, for tests that disturb a mount. Each reader compares every byte that it gets.

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

/// A file of a mount and its expected contents.
#[derive(Debug)]
pub struct Expected {
    /// Its path in the mount.
    pub name: String,
    pub bytes: Vec<u8>,
    /// A file with the same bytes, for readers in other processes.
    pub copy: PathBuf,
    /// How many bytes are read, from the beginning.
    pub len: usize,
}

/// How a reader ended. Wrong bytes fail the test instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// It was stopped, and every byte was right.
    Right,
    Error(Errno),
    /// It was killed by a signal, as a reader of a map is on an error.
    Signal(i32),
}

impl End {
    /// Whether a source that has failed may end a reader this way: EIO, ESTALE or SIGBUS.
    pub fn is_error(self) -> bool {
        [Self::Error(Errno::EIO), Self::Error(Errno::ESTALE), Self::Signal(nix::libc::SIGBUS)].contains(&self)
    }
}

/// A kind of reader.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// In blocks from beginning to end, through the page cache, which is dropped after each round.
    Sequential,
    /// In pieces of random size at random offsets, with O_DIRECT, so that every read reaches the daemon.
    Random,
    /// Through a map, in a separate process.
    Mapped,
}

/// The file name and the kind of a reader, and how it ended.
pub type Ended = (String, Way, End);

/// A reader of each kind for each file. They read in rounds until they are stopped.
pub struct Readers {
    stop: Arc<AtomicBool>,
    threads: Vec<Thread>,
    mapped: Mapped,
}

struct Thread {
    name: String,
    way: Way,
    /// Twice the number of completed rounds, plus one within a round.
    rounds: Arc<AtomicUsize>,
    handle: JoinHandle<End>,
}

impl Readers {
    /// Starts the readers and waits until each has got bytes or an error.
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

    /// Waits until each reader that has not ended has begun and completed a round.
    pub fn round(&mut self) {
        let seen: Vec<usize> = self.threads.iter().map(Thread::rounds).collect();
        self.mapped.round();
        // The current round does not count, because it may have begun before this call.
        wait_until("every reader has read once more", || {
            let mut threads = self.threads.iter().zip(&seen);
            threads.all(|(thread, seen)| thread.handle.is_finished() || thread.rounds() >= (seen | 1) + 3)
        });
    }

    /// Stops the readers and returns how each ended.
    pub fn stop(mut self) -> Vec<Ended> {
        self.stop.store(true, Ordering::Relaxed);
        let mut ended = self.mapped.stop();
        ended.extend(std::mem::take(&mut self.threads).into_iter().map(|thread| {
            let end = thread.handle.join().unwrap_or_else(|_| panic!("{} {:?}", thread.name, thread.way));
            (thread.name, thread.way, end)
        }));
        ended
    }

    /// Reads every file at least once in each way and returns how each reader ended.
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

/// Reads rounds until `stop` is set.
fn read(opened: &File, file: &Expected, way: Way, rounds: &AtomicUsize, stop: &AtomicBool) -> Result<(), Errno> {
    const BLOCK: usize = 128 << 10;
    let mut state = file.len as u64 | 1;
    // Offset and size: the block of this number, or a random piece.
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
    /// Starts the program without files to read.
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
        self.send(&(files.iter().map(line).collect::<String>() + "\n"));
        assert_eq!(self.line(), "reading\n");
    }

    fn send(&mut self, text: &str) {
        self.input.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line
    }

    /// As [`Readers::round`].
    pub fn round(&mut self) {
        self.send("\n");
        assert_eq!(self.line(), "done\n");
    }

    /// As [`Readers::stop`].
    pub fn stop(&mut self) -> Vec<Ended> {
        drop(self.input.take());
        let names = std::mem::take(&mut self.names);
        let end = |name: String| {
            let end = match self.line().trim_end() {
                "right" => End::Right,
                text => End::Signal(text.parse().unwrap_or_else(|_| panic!("{name} mapped: {text}"))),
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
