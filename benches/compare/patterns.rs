//! The patterns: what is done to a mount, what is measured, and the targets of weightfs.

use crate::inputs::{Input, Random};
use crate::systems::{Mounted, Site, System, end, processes, unmount_daemon, within};
use Against::{Limit, Native, Squashfuse, Tensors};
use Bound::{AtLeast, AtMost};
use System::{Before, FuseZip, Ratarmount, User, Weightfs};
use anyhow::{Context, ensure};
use nix::libc::O_DIRECT;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A workload, and the rows of its results.
pub struct Pattern {
    pub input: Kind,
    /// The directory of a weightfs mount that is read.
    pub view: &'static str,
    /// Options for weightfs.
    pub args: &'static [&'static str],
    pub systems: &'static [System],
    pub rows: &'static [Row],
    pub run: Run,
}

/// The input of a pattern; see [`Inputs`](crate::inputs::Inputs).
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Model,
    Half,
    Tiny,
}

pub struct Row {
    pub name: &'static str,
    pub unit: Unit,
    pub targets: &'static [Target],
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// 10^9 bytes per second. Decoded views count bytes of output.
    GBs,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// 10^6 bytes.
    MB,
}

/// A value that weightfs should reach.
pub struct Target {
    pub against: Against,
    pub bound: Bound,
}

/// What a value of weightfs is divided by.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Against {
    /// The same row of native files.
    Native,
    /// The same row of squashfuse.
    Squashfuse,
    /// The second row of the same pattern: tensors/, read alternately with the view.
    Tensors,
    /// Nothing: the bound is for the value itself.
    Limit,
    /// The same row of the build given with `--before`.
    Build,
}

/// A bound for a ratio.
#[derive(Clone, Copy)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    /// Whether `ratio` meets the bound, relaxed by the factor `margin`, which is at most 1.
    pub fn holds(self, ratio: f64, margin: f64) -> bool {
        match self {
            AtLeast(bound) => ratio >= bound * margin,
            AtMost(bound) => ratio <= bound / margin,
        }
    }
}

/// How a pattern is run. Each run gives one value for each row.
pub enum Run {
    /// A function, on a fresh mount.
    On(fn(&Dir) -> anyhow::Result<Vec<f64>>),
    /// A shell script that mounts and reads.
    Shell,
}

const fn row(name: &'static str, unit: Unit, targets: &'static [Target]) -> Row {
    Row { name, unit, targets }
}

const fn to(against: Against, bound: Bound) -> Target {
    Target { against, bound }
}

const WEIGHTFS: &[System] = &[Weightfs, Before, User];
const DIRECT: &[System] = &[System::Native, Weightfs, Before, User];
const DAEMONS: &[System] = &[Weightfs, Before, User, System::Squashfuse, Ratarmount, FuseZip];

/// A pattern on every system that reads `tensors/` of the model.
const fn model(rows: &'static [Row], run: fn(&Dir) -> anyhow::Result<Vec<f64>>) -> Pattern {
    let (input, view, args, systems, run) = (Kind::Model, "tensors", &[], &System::ALL, Run::On(run));
    Pattern { input, view, args, systems, rows, run }
}

/// A pattern on every system that reads `tensors/` of the tiny model.
const fn tiny(rows: &'static [Row], run: fn(&Dir) -> anyhow::Result<Vec<f64>>) -> Pattern {
    Pattern { input: Kind::Tiny, ..model(rows, run) }
}

/// A pattern that reads a view and tensors/ of the same mount alternately, file by file, so that noise affects both.
const fn view(view: &'static str, rows: &'static [Row; 2]) -> Pattern {
    Pattern { view, systems: WEIGHTFS, ..model(rows, |dir| dir.alternate(&dir.path.with_file_name("tensors"))) }
}

pub const PATTERNS: &[Pattern] = &[
    model(
        &[
            row("first read, 128 KiB", Unit::GBs, &[to(Native, AtLeast(0.42)), to(Squashfuse, AtLeast(1.5))]),
            row("re-read, 128 KiB", Unit::GBs, &[to(Native, AtLeast(0.65)), to(Squashfuse, AtLeast(1.0))]),
        ],
        |dir| Ok(vec![dir.sequential(128 << 10)?, dir.sequential(128 << 10)?]),
    ),
    model(&[row("first read, largest tensor", Unit::GBs, &[])], |dir| {
        Ok(vec![Dir { files: vec![dir.largest()?.clone()], ..dir.clone() }.sequential(128 << 10)?])
    }),
    model(&[row("first read, 1 MiB", Unit::GBs, &[]), row("re-read, 1 MiB", Unit::GBs, &[])], |dir| {
        Ok(vec![dir.sequential(1 << 20)?, dir.sequential(1 << 20)?])
    }),
    Pattern {
        args: &["--direct-io"],
        systems: DIRECT,
        ..model(&[row("--direct-io, 1 MiB", Unit::GBs, &[to(Native, AtLeast(0.60))])], |dir| {
            Ok(vec![dir.sequential(1 << 20)?])
        })
    },
    model(&[row("O_DIRECT, 8 MiB", Unit::GBs, &[to(Native, AtLeast(0.90))])], |dir| {
        Ok(vec![dir.rate(|dir| dir.files.iter().try_for_each(|file| file.read(8 << 20, O_DIRECT)))?])
    }),
    model(&[row("first read, mmap", Unit::GBs, &[to(Squashfuse, AtLeast(1.3))])], |dir| Ok(vec![dir.scan()?])),
    model(&[row("first read, 2 readers", Unit::GBs, &[to(Squashfuse, AtLeast(1.5))])], |dir| Ok(vec![dir.readers(2)?])),
    model(&[row("first read, 4 readers", Unit::GBs, &[])], |dir| Ok(vec![dir.readers(4)?])),
    model(&[row("random 4 KiB read", Unit::Us, &[to(Squashfuse, AtMost(0.6))])], |dir| Ok(vec![dir.random()?])),
    tiny(&[row("list all", Unit::Ms, &[to(Squashfuse, AtMost(1.5))])], |dir| Ok(vec![dir.list()?])),
    tiny(&[row("list and stat all", Unit::Ms, &[to(Squashfuse, AtMost(0.12))])], |dir| Ok(vec![dir.stat()?])),
    tiny(&[row("open-read-close all", Unit::Ms, &[to(Squashfuse, AtMost(0.6))])], |dir| Ok(vec![dir.open()?])),
    Pattern {
        run: Run::Shell,
        ..model(&[row("mount and read 1 byte", Unit::Ms, &[to(Limit, AtMost(10.0))])], |_| Ok(Vec::new()))
    },
    Pattern {
        input: Kind::Half,
        ..view(
            "npy",
            &[
                row("npy/, F16 model", Unit::GBs, &[to(Tensors, AtLeast(0.95))]),
                row("tensors/ with npy/, F16", Unit::GBs, &[]),
            ],
        )
    },
    view("npy", &[row("npy/, BF16 as float32", Unit::GBs, &[]), row("tensors/ with npy/", Unit::GBs, &[])]),
    view(
        "f32",
        &[
            row("f32/, BF16 as float32", Unit::GBs, &[to(Tensors, AtLeast(0.60))]),
            row("tensors/ with f32/", Unit::GBs, &[]),
        ],
    ),
    view("safetensors", &[row("safetensors/", Unit::GBs, &[]), row("tensors/ with safetensors/", Unit::GBs, &[])]),
    view("export", &[row("export/", Unit::GBs, &[]), row("tensors/ with export/", Unit::GBs, &[])]),
    Pattern {
        systems: DAEMONS,
        ..model(&[row("model, peak", Unit::MB, &[]), row("model, idle", Unit::MB, &[])], |dir| {
            dir.memory(|| dir.readers(4))
        })
    },
    Pattern {
        systems: DAEMONS,
        ..tiny(&[row("tiny tensors, peak", Unit::MB, &[]), row("tiny tensors, idle", Unit::MB, &[])], |dir| {
            dir.memory(|| dir.stat())
        })
    },
];

/// A file, and its length in bytes.
#[derive(Clone)]
pub struct Entry {
    path: PathBuf,
    len: u64,
}

/// The directory that a pattern reads.
#[derive(Clone)]
pub struct Dir {
    pub path: PathBuf,
    /// The process ID of the daemon; `None` for native files.
    pub pid: Option<u32>,
    /// The files, sorted by name. Empty for the tiny model, of which listing is what is measured.
    pub files: Vec<Entry>,
}

impl Dir {
    pub fn new(path: PathBuf, pid: Option<u32>, kind: Kind) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        if kind != Kind::Tiny {
            for entry in std::fs::read_dir(&path).with_context(|| path.display().to_string())? {
                let entry = entry?;
                // In export/, this file has the same tensors again.
                if !entry.file_name().to_string_lossy().ends_with("-clean.safetensors") {
                    files.push(Entry { path: entry.path(), len: entry.metadata()?.len() });
                }
            }
            files.sort_by(|one, other| one.path.cmp(&other.path));
        }
        Ok(Self { path, pid, files })
    }

    fn largest(&self) -> anyhow::Result<&Entry> {
        self.files.iter().max_by_key(|file| file.len).context("no files")
    }

    /// The bytes of all files divided by the time that `read` takes, in GB/s.
    fn rate(&self, read: impl FnOnce(&Self) -> anyhow::Result<()>) -> anyhow::Result<f64> {
        let start = Instant::now();
        read(self)?;
        let took = start.elapsed();
        Ok(self.files.iter().map(|file| file.len).sum::<u64>() as f64 / took.as_nanos() as f64)
    }

    /// GB/s for one reader of all files, in blocks of `block` bytes.
    fn sequential(&self, block: usize) -> anyhow::Result<f64> {
        self.rate(|dir| dir.files.iter().try_for_each(|file| file.read(block, 0)))
    }

    /// GB/s for the files of this directory and of `other`, read alternately.
    fn alternate(&self, other: &Path) -> anyhow::Result<Vec<f64>> {
        let other = Self::new(other.to_owned(), self.pid, Kind::Model)?;
        let dirs = [self, &other];
        let mut took = [Duration::ZERO; 2];
        for at in 0..self.files.len().max(other.files.len()) {
            for turn in [at % 2, 1 - at % 2] {
                let Some(file) = dirs[turn].files.get(at) else { continue };
                let start = Instant::now();
                file.read(128 << 10, 0)?;
                took[turn] += start.elapsed();
            }
        }
        let rate = |(dir, took): (&&Self, &Duration)| {
            dir.files.iter().map(|file| file.len).sum::<u64>() as f64 / took.as_nanos() as f64
        };
        Ok(dirs.iter().zip(&took).map(rate).collect())
    }

    /// GB/s for `count` threads, each of which reads a part of the files.
    fn readers(&self, count: usize) -> anyhow::Result<f64> {
        self.rate(|dir| {
            thread::scope(|scope| {
                let reader = |number| {
                    move || dir.files.iter().skip(number).step_by(count).try_for_each(|file| file.read(128 << 10, 0))
                };
                let threads: Vec<_> = (0..count).map(|number| scope.spawn(reader(number))).collect();
                threads
                    .into_iter()
                    .try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a reader panicked")))
            })
        })
    }

    /// GB/s for adding up all 64-bit words of all files through memory maps.
    fn scan(&self) -> anyhow::Result<f64> {
        self.rate(|dir| {
            for file in &dir.files {
                let map = map(&file.path)?;
                let words = map.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_le_bytes));
                std::hint::black_box(words.fold(0, u64::wrapping_add));
            }
            Ok(())
        })
    }

    /// Microseconds for a read of 4 KiB at a random offset of the largest file; no offset is read twice.
    fn random(&self) -> anyhow::Result<f64> {
        const READS: usize = 10_000;
        let largest = self.largest()?;
        let mut pages: Vec<u64> = (0..largest.len / 4096).collect();
        let mut random = Random(7);
        let reads = READS.min(pages.len() / 2);
        for at in 0..reads {
            let other = at + (random.next() % (pages.len() - at) as u64) as usize;
            pages.swap(at, other);
        }
        let file = File::open(&largest.path)?;
        let mut buffer = [0; 4096];
        let start = Instant::now();
        pages[..reads].iter().try_for_each(|page| file.read_exact_at(&mut buffer, page * 4096))?;
        Ok(start.elapsed().as_nanos() as f64 / 1e3 / reads as f64)
    }

    /// Milliseconds for listing the directory.
    fn list(&self) -> anyhow::Result<f64> {
        let start = Instant::now();
        let names = std::fs::read_dir(&self.path)?.try_fold(0, |count, entry| entry.map(|_| count + 1))?;
        ensure!(names > 0, "an empty directory");
        Ok(ms(start))
    }

    /// Milliseconds for `stat` of each name as soon as it is listed, as `ls -l` does.
    fn stat(&self) -> anyhow::Result<f64> {
        let start = Instant::now();
        for entry in std::fs::read_dir(&self.path)? {
            entry?.metadata()?;
        }
        Ok(ms(start))
    }

    /// Milliseconds for listing all names and then opening, reading and closing each file, as `cat *` does.
    fn open(&self) -> anyhow::Result<f64> {
        let start = Instant::now();
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(&self.path)? {
            paths.push(entry?.path());
        }
        let mut buffer = [0; 4096];
        for path in paths {
            let read = File::open(path)?.read(&mut buffer)?;
            ensure!(read == 64, "read {read} of 64 bytes of a tensor");
        }
        Ok(ms(start))
    }

    /// Anonymous memory of the daemon, in MB: the peak during `work`, and the value 0.2 s after it.
    fn memory(&self, work: impl FnOnce() -> anyhow::Result<f64>) -> anyhow::Result<Vec<f64>> {
        let pid = self.pid.context("no daemon")?;
        let done = AtomicBool::new(false);
        thread::scope(|scope| {
            let sampler = scope.spawn(|| {
                let mut peak = 0f64;
                while !done.load(Ordering::Relaxed) {
                    peak = peak.max(anonymous(pid)?);
                    thread::sleep(Duration::from_millis(2));
                }
                anyhow::Ok(peak)
            });
            let worked = work();
            done.store(true, Ordering::Relaxed);
            let peak = sampler.join().unwrap_or_else(|_| anyhow::bail!("the sampler panicked"))?;
            worked?;
            thread::sleep(Duration::from_millis(200));
            let settled = anonymous(pid)?;
            Ok(vec![peak.max(settled), settled])
        })
    }
}

impl Entry {
    /// Reads the file in blocks of `block` bytes, into a buffer of the thread.
    fn read(&self, block: usize, flags: i32) -> anyhow::Result<()> {
        const ALIGNED: usize = 4096;
        thread_local! {
            static BUFFER: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(vec![1; (8 << 20) + ALIGNED]);
        }
        BUFFER.with_borrow_mut(|buffer| {
            let start = buffer.as_ptr().align_offset(ALIGNED);
            let buffer = &mut buffer[start..start + block];
            let mut file = OpenOptions::new().read(true).custom_flags(flags).open(&self.path)?;
            let mut rest = self.len;
            while rest > 0 {
                let read = file.read(buffer)?;
                ensure!(read > 0, "{}: ends early", self.path.display());
                rest = rest.saturating_sub(read as u64);
            }
            Ok(())
        })
    }
}

#[allow(unsafe_code, reason = "mapping a file is unsafe")]
pub fn map(path: &Path) -> anyhow::Result<memmap2::Mmap> {
    // SAFETY: the caller passes an input or a file of a mount of it; nothing writes to the inputs.
    Ok(unsafe { memmap2::Mmap::map(&File::open(path)?)? })
}

/// Resident anonymous memory of a process, in MB.
fn anonymous(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon in its status")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0 / 1e6)
}

/// Milliseconds since `start`.
fn ms(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64 / 1e6
}

/// The result of one run of a pattern.
pub enum Outcome {
    /// A value for each row.
    Values(Vec<f64>),
    /// Not finished within the limit.
    Over,
}

/// Runs a pattern once on one system, with a fresh mount and the source in the page cache.
pub fn measure(
    pattern: &Pattern,
    system: System,
    input: &Input,
    site: &Site,
    limit: Duration,
) -> anyhow::Result<Outcome> {
    input.warm(system)?;
    let run = match pattern.run {
        Run::Shell => return shell(system, input, site, limit),
        Run::On(run) => run,
    };
    let mounted = Mounted::new(site, system, input, pattern.args, limit)?;
    let (path, pid) = (mounted.point.join(system.dir(pattern.view)), mounted.pid());
    let give_up = || pid.into_iter().for_each(end);
    let values = within(limit, give_up, || {
        system.become_its_user()?;
        run(&Dir::new(path, pid, pattern.input)?)
    });
    Ok(values?.map_or(Outcome::Over, Outcome::Values))
}

/// Milliseconds for a shell that mounts and reads one byte, less those of a shell that does nothing.
fn shell(system: System, input: &Input, site: &Site, limit: Duration) -> anyhow::Result<Outcome> {
    const FILE: &str = "lm_head.weight";
    let point = site.point(system)?;
    let time = |script: &str| -> anyhow::Result<f64> {
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        system.as_its_user(&mut command);
        let start = Instant::now();
        let status = command.status()?;
        let took = ms(start);
        ensure!(status.success(), "sh: {status}");
        Ok(took)
    };
    let script = match system.command(site, input, &point, &[], false) {
        None => format!("head -c 1 {}", quoted(&input.native().join(FILE))),
        Some(command) => {
            let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
            let words: Vec<_> = words.into_iter().map(|word| quoted(Path::new(word))).collect();
            let file = point.join(system.dir("tensors")).join(FILE);
            format!("{} && head -c 1 {}", words.join(" "), quoted(&file))
        }
    };
    let mut idle = [time("true")?, time("true")?, time("true")?];
    idle.sort_by(f64::total_cmp);
    let give_up = || processes(&point).into_iter().for_each(end);
    let took = within(limit, give_up, || time(&script));
    if system != System::Native {
        unmount_daemon(&point);
    }
    Ok(took?.map_or(Outcome::Over, |took| Outcome::Values(vec![took - idle[1]])))
}

/// The path as a word of a shell script.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// Milliseconds to open a file: with the official crate, with the Python package, and by mounting it with weightfs and,
/// if given, the other build, until `stat` of the mount point answers.
pub fn open_header(header: &Path, python: &Path, site: &Site) -> Vec<anyhow::Result<f64>> {
    let official = || {
        let start = Instant::now();
        // Mapped, as in `safe_open`.
        let map = map(header)?;
        let (_, metadata) = safetensors::SafeTensors::read_metadata(&map)?;
        ensure!(!metadata.offset_keys().is_empty(), "no tensors");
        Ok(ms(start))
    };
    let package = || {
        let script = "import sys, time\nfrom safetensors import safe_open\nstart = time.perf_counter()\n\
            with safe_open(sys.argv[1], 'numpy') as file: assert file.keys()\n\
            print((time.perf_counter() - start) * 1000)";
        let output = Command::new(python).args(["-c", script]).arg(header).output()?;
        ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Ok(String::from_utf8(output.stdout)?.trim().parse()?)
    };
    let mount = |system: System| {
        let point = site.point(system)?;
        let device = || std::fs::metadata(&point).map(|found| std::os::unix::fs::MetadataExt::dev(&found));
        let empty = device()?;
        let mut command = Command::new(system.weightfs());
        command.arg("-f").arg(header).arg(&point).stdin(Stdio::null()).stdout(Stdio::null());
        let start = Instant::now();
        let mut child = command.spawn()?;
        while device().map_or_else(|error| error.kind() != ErrorKind::NotFound, |device| device == empty) {
            if let Some(status) = child.try_wait()? {
                anyhow::bail!("weightfs ended without mounting: {status}");
            }
            thread::sleep(Duration::from_micros(200));
        }
        let took = ms(start);
        unmount_daemon(&point);
        child.wait()?;
        Ok(took)
    };
    let mut opened = vec![official(), package(), mount(Weightfs)];
    if Before.is_available() {
        opened.push(mount(Before));
    }
    opened
}
