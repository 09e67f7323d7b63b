//! The patterns: knows what is done to a mount, what of it is measured, and what weightfs is to reach.

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

/// What is done to a mount, and the rows that come of it.
pub struct Pattern {
    pub input: Kind,
    /// The directory that is read.
    pub view: &'static str,
    /// Options of weightfs.
    pub args: &'static [&'static str],
    pub systems: &'static [System],
    pub rows: &'static [Row],
    pub run: Run,
}

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
    /// 10^9 bytes a second.
    GBs,
    Us,
    Ms,
    MB,
}

/// What weightfs is to reach.
pub struct Target {
    pub against: Against,
    pub bound: Bound,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Against {
    /// The same row of native files.
    Native,
    /// The same row of squashfuse.
    Squashfuse,
    /// The second row of the same pattern: tensors/, read by turns with the view.
    Tensors,
    /// Nothing: the value itself is bounded.
    Limit,
    /// The same row of the build given with `--before`.
    Build,
}

#[derive(Clone, Copy)]
pub enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

impl Bound {
    pub fn holds(self, ratio: f64, margin: f64) -> bool {
        match self {
            AtLeast(bound) => ratio >= bound * margin,
            AtMost(bound) => ratio <= bound / margin,
        }
    }
}

/// How a pattern is run: each gives a value for each of its rows.
pub enum Run {
    /// On a fresh mount.
    On(fn(&Place) -> anyhow::Result<Vec<f64>>),
    /// From the shell, which mounts.
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

/// A pattern of the whole model in `tensors/`.
const fn model(rows: &'static [Row], run: fn(&Place) -> anyhow::Result<Vec<f64>>) -> Pattern {
    let (input, view, args, systems, run) = (Kind::Model, "tensors", &[], &System::ALL, Run::On(run));
    Pattern { input, view, args, systems, rows, run }
}

const fn tiny(rows: &'static [Row], run: fn(&Place) -> anyhow::Result<Vec<f64>>) -> Pattern {
    Pattern { input: Kind::Tiny, ..model(rows, run) }
}

/// A view, and tensors/ on the same mount: file by file and by turns, so that what slows the machine slows both.
const fn view(view: &'static str, rows: &'static [Row; 2]) -> Pattern {
    Pattern { view, systems: WEIGHTFS, ..model(rows, |place| place.beside(&place.dir.with_file_name("tensors"))) }
}

pub const PATTERNS: &[Pattern] = &[
    model(
        &[
            row("first read, 128 KiB", Unit::GBs, &[to(Native, AtLeast(0.42)), to(Squashfuse, AtLeast(1.5))]),
            row("re-read, 128 KiB", Unit::GBs, &[to(Native, AtLeast(0.65)), to(Squashfuse, AtLeast(1.0))]),
        ],
        |place| Ok(vec![place.sequential(128 << 10)?, place.sequential(128 << 10)?]),
    ),
    model(&[row("first, largest tensor", Unit::GBs, &[])], |place| {
        Ok(vec![Place { files: vec![place.largest()?.clone()], ..place.clone() }.sequential(128 << 10)?])
    }),
    model(&[row("first read, 1 MiB", Unit::GBs, &[]), row("re-read, 1 MiB", Unit::GBs, &[])], |place| {
        Ok(vec![place.sequential(1 << 20)?, place.sequential(1 << 20)?])
    }),
    Pattern {
        args: &["--direct-io"],
        systems: DIRECT,
        ..model(&[row("--direct-io, 1 MiB", Unit::GBs, &[to(Native, AtLeast(0.60))])], |place| {
            Ok(vec![place.sequential(1 << 20)?])
        })
    },
    model(&[row("O_DIRECT, 8 MiB", Unit::GBs, &[to(Native, AtLeast(0.90))])], |place| {
        Ok(vec![place.rate(|place| place.files.iter().try_for_each(|file| file.read(8 << 20, O_DIRECT)))?])
    }),
    model(&[row("mmap scan, first", Unit::GBs, &[to(Squashfuse, AtLeast(1.3))])], |place| Ok(vec![place.scan()?])),
    model(&[row("two readers, total", Unit::GBs, &[to(Squashfuse, AtLeast(1.5))])], |place| {
        Ok(vec![place.readers(2)?])
    }),
    model(&[row("four readers, total", Unit::GBs, &[])], |place| Ok(vec![place.readers(4)?])),
    model(&[row("4 KiB random, first", Unit::Us, &[to(Squashfuse, AtMost(0.6))])], |place| Ok(vec![place.random()?])),
    tiny(&[row("list all", Unit::Ms, &[to(Squashfuse, AtMost(1.5))])], |place| Ok(vec![place.list()?])),
    tiny(&[row("list and stat all", Unit::Ms, &[to(Squashfuse, AtMost(0.12))])], |place| Ok(vec![place.stat()?])),
    tiny(&[row("open-read-close all", Unit::Ms, &[to(Squashfuse, AtMost(0.6))])], |place| Ok(vec![place.open()?])),
    Pattern {
        run: Run::Shell,
        ..model(&[row("mount, 1st byte (sh)", Unit::Ms, &[to(Limit, AtMost(10.0))])], |_| Ok(Vec::new()))
    },
    Pattern {
        input: Kind::Half,
        ..view(
            "npy",
            &[
                row("npy/, of an F16 model", Unit::GBs, &[to(Tensors, AtLeast(0.95))]),
                row("tensors/ beside npy/ of F16", Unit::GBs, &[]),
            ],
        )
    },
    view("npy", &[row("npy/, widened, output", Unit::GBs, &[]), row("tensors/ beside npy/", Unit::GBs, &[])]),
    view(
        "f32",
        &[
            row("f32/, widened, output", Unit::GBs, &[to(Tensors, AtLeast(0.60))]),
            row("tensors/ beside f32/", Unit::GBs, &[]),
        ],
    ),
    view("safetensors", &[row("safetensors/", Unit::GBs, &[]), row("tensors/ beside safetensors/", Unit::GBs, &[])]),
    view("export", &[row("export/", Unit::GBs, &[]), row("tensors/ beside export/", Unit::GBs, &[])]),
    Pattern {
        systems: DAEMONS,
        ..model(&[row("model, peak", Unit::MB, &[]), row("model, settled", Unit::MB, &[])], |place| {
            place.memory(|| place.readers(4))
        })
    },
    Pattern {
        systems: DAEMONS,
        ..tiny(&[row("tiny tensors, peak", Unit::MB, &[]), row("tiny tensors, settled", Unit::MB, &[])], |place| {
            place.memory(|| place.stat())
        })
    },
];

/// A file and its length.
#[derive(Clone)]
pub struct Entry {
    path: PathBuf,
    len: u64,
}

/// Where a pattern is run.
#[derive(Clone)]
pub struct Place {
    pub dir: PathBuf,
    pub pid: Option<u32>,
    /// What is there, sorted by name; nothing where looking would be what is measured.
    pub files: Vec<Entry>,
}

impl Place {
    pub fn new(dir: PathBuf, pid: Option<u32>, kind: Kind) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        if kind != Kind::Tiny {
            for entry in std::fs::read_dir(&dir).with_context(|| dir.display().to_string())? {
                let entry = entry?;
                // The same bytes once more, in export/.
                if !entry.file_name().to_string_lossy().ends_with("-clean.safetensors") {
                    files.push(Entry { path: entry.path(), len: entry.metadata()?.len() });
                }
            }
            files.sort_by(|one, other| one.path.cmp(&other.path));
        }
        Ok(Self { dir, pid, files })
    }

    fn largest(&self) -> anyhow::Result<&Entry> {
        self.files.iter().max_by_key(|file| file.len).context("no files")
    }

    /// Bytes of all files over the time that `read` takes, in GB/s.
    fn rate(&self, read: impl FnOnce(&Self) -> anyhow::Result<()>) -> anyhow::Result<f64> {
        let start = Instant::now();
        read(self)?;
        let took = start.elapsed();
        Ok(self.files.iter().map(|file| file.len).sum::<u64>() as f64 / took.as_nanos() as f64)
    }

    fn sequential(&self, block: usize) -> anyhow::Result<f64> {
        self.rate(|place| place.files.iter().try_for_each(|file| file.read(block, 0)))
    }

    /// GB/s of the files here and of those in another directory, read by turns.
    fn beside(&self, other: &Path) -> anyhow::Result<Vec<f64>> {
        let other = Self::new(other.to_owned(), self.pid, Kind::Model)?;
        let places = [self, &other];
        let mut took = [Duration::ZERO; 2];
        for at in 0..self.files.len().max(other.files.len()) {
            for turn in [at % 2, 1 - at % 2] {
                let Some(file) = places[turn].files.get(at) else { continue };
                let start = Instant::now();
                file.read(128 << 10, 0)?;
                took[turn] += start.elapsed();
            }
        }
        let rate = |(place, took): (&&Self, &Duration)| {
            place.files.iter().map(|file| file.len).sum::<u64>() as f64 / took.as_nanos() as f64
        };
        Ok(places.iter().zip(&took).map(rate).collect())
    }

    /// Every file is read by one of so many readers.
    fn readers(&self, count: usize) -> anyhow::Result<f64> {
        self.rate(|place| {
            thread::scope(|scope| {
                let reader = |number| {
                    move || place.files.iter().skip(number).step_by(count).try_for_each(|file| file.read(128 << 10, 0))
                };
                let threads: Vec<_> = (0..count).map(|number| scope.spawn(reader(number))).collect();
                threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| anyhow::bail!("a reader")))
            })
        })
    }

    /// Adds up all words of all files through maps.
    fn scan(&self) -> anyhow::Result<f64> {
        self.rate(|place| {
            for file in &place.files {
                let map = map(&file.path)?;
                let words = map.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_le_bytes));
                std::hint::black_box(words.fold(0, u64::wrapping_add));
            }
            Ok(())
        })
    }

    /// Microseconds for 4 KiB at a place in the largest file that was not read before.
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

    fn list(&self) -> anyhow::Result<f64> {
        let start = Instant::now();
        let names = std::fs::read_dir(&self.dir)?.try_fold(0, |count, entry| entry.map(|_| count + 1))?;
        ensure!(names > 0, "nothing there");
        Ok(ms(start))
    }

    /// As `ls -l` does it: each name is asked for when it is read.
    fn stat(&self) -> anyhow::Result<f64> {
        let start = Instant::now();
        for entry in std::fs::read_dir(&self.dir)? {
            entry?.metadata()?;
        }
        Ok(ms(start))
    }

    /// As `cat *` does it: all names, then one file after the other.
    fn open(&self) -> anyhow::Result<f64> {
        let start = Instant::now();
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(&self.dir)? {
            paths.push(entry?.path());
        }
        let mut buffer = [0; 4096];
        for path in paths {
            let read = File::open(path)?.read(&mut buffer)?;
            ensure!(read == 64, "{read} bytes of a tensor of 64");
        }
        Ok(ms(start))
    }

    /// Most memory of its own that the daemon has meanwhile, and what it has in the end, in MB.
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
            let peak = sampler.join().unwrap_or_else(|_| anyhow::bail!("the sampler"))?;
            worked?;
            thread::sleep(Duration::from_millis(200));
            let settled = anonymous(pid)?;
            Ok(vec![peak.max(settled), settled])
        })
    }
}

impl Entry {
    /// Reads the file by blocks, through a buffer that each thread has.
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
                ensure!(read > 0, "{}: cut", self.path.display());
                rest = rest.saturating_sub(read as u64);
            }
            Ok(())
        })
    }
}

#[allow(unsafe_code, reason = "a memory map")]
fn map(path: &Path) -> anyhow::Result<memmap2::Mmap> {
    // SAFETY: nobody writes to the inputs.
    Ok(unsafe { memmap2::Mmap::map(&File::open(path)?)? })
}

/// Memory of a process that no file backs, in MB.
fn anonymous(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).context("no RssAnon")?;
    Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? * 1024.0 / 1e6)
}

fn ms(start: Instant) -> f64 {
    start.elapsed().as_nanos() as f64 / 1e6
}

/// What a measurement came to.
pub enum Outcome {
    Values(Vec<f64>),
    /// Not done within the limit.
    Over,
}

/// Runs a pattern once on one system, mounted for it.
pub fn measure(
    pattern: &Pattern,
    system: System,
    input: &Input,
    site: &Site,
    limit: Duration,
) -> anyhow::Result<Outcome> {
    input.heat(system)?;
    let run = match pattern.run {
        Run::Shell => return shell(system, input, site, limit),
        Run::On(run) => run,
    };
    let mounted = Mounted::new(site, system, input, pattern.args, limit)?;
    let (dir, pid) = (mounted.point.join(system.dir(pattern.view)), mounted.pid());
    let give_up = || pid.into_iter().for_each(end);
    let values = within(limit, give_up, || {
        system.become_its_user()?;
        run(&Place::new(dir, pid, pattern.input)?)
    });
    Ok(values?.map_or(Outcome::Over, Outcome::Values))
}

/// Milliseconds for a shell that mounts and reads one byte, less those of one that does nothing.
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
    let mut nothing = [time("true")?, time("true")?, time("true")?];
    nothing.sort_by(f64::total_cmp);
    let give_up = || processes(&point).into_iter().for_each(end);
    let took = within(limit, give_up, || time(&script));
    if system != System::Native {
        unmount_daemon(&point);
    }
    Ok(took?.map_or(Outcome::Over, |took| Outcome::Values(vec![took - nothing[1]])))
}

fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', r"'\''"))
}

/// Milliseconds until the header of a file is known: to the official crate, to the Python package, to who asks a mount.
pub fn open_header(header: &Path, python: &Path, site: &Site) -> Vec<anyhow::Result<f64>> {
    let official = || {
        let start = Instant::now();
        // As `safe_open` does it.
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
                anyhow::bail!("weightfs did not mount: {status}");
            }
            thread::sleep(Duration::from_micros(200));
        }
        let took = ms(start);
        unmount_daemon(&point);
        child.wait()?;
        Ok(took)
    };
    let mut opened = vec![official(), package(), mount(Weightfs)];
    if Before.is_here() {
        opened.push(mount(Before));
    }
    opened
}
