//! Ways of reading one large file: which calls, how many bytes at a time, by how many threads, on one descriptor or
//! several. `scripts/bench --reads` measures each on native files, weightfs and squashfuse.

use crate::Args;
use crate::inputs::{Input, Random, make_once, make_squashfs, tensor, write_model};
use crate::patterns::map;
use crate::report::median;
use crate::systems::{Mounted, Site, System, end, within};
use anyhow::{Context, bail, ensure};
use nix::errno::Errno;
use nix::libc;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{IoSliceMut, Read, Seek, SeekFrom};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// A way of reading a file.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    call: Call,
    /// Bytes of each call.
    block: usize,
    threads: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Call {
    /// `pread`, all threads on one descriptor.
    Shared,
    /// `pread`, each thread on a descriptor of its own.
    Own,
    /// `readv` into eight buffers.
    Vectored,
    /// `splice` into a pipe, and from there to /dev/null.
    Splice,
    /// As `cp` to a file in memory. `copy_file_range` fails between two file systems, so this is `sendfile`.
    Copy,
    /// A memory map whose words are added up, each thread in a stripe of its own.
    Map,
    /// A byte of each of some pages of a memory map, in random order.
    Faults,
    /// `O_DIRECT` by libaio, sixteen calls in flight.
    Direct,
}

/// A part of a file, in bytes.
pub struct Target {
    pub path: PathBuf,
    pub range: Range<u64>,
}

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Number of pages that [`Call::Faults`] reads.
const FAULTS: u64 = 4096;

impl Way {
    pub const fn pread(block: usize, threads: usize) -> Self {
        Self { call: Call::Shared, block, threads }
    }

    pub const fn map(threads: usize) -> Self {
        Self { call: Call::Map, block: 0, threads }
    }

    fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for block in [4 * KIB, 128 * KIB, MIB, 8 * MIB] {
            all.push(Self::pread(block, 1));
            for threads in [2, 8] {
                all.extend([Call::Shared, Call::Own].map(|call| Self { call, block, threads }));
            }
        }
        all.extend([Call::Vectored, Call::Splice, Call::Copy].map(|call| Self { call, block: MIB, threads: 1 }));
        all.extend([Self::map(1), Self::map(8), Self { call: Call::Faults, block: 0, threads: 1 }]);
        all.extend([MIB, 8 * MIB].map(|block| Self { call: Call::Direct, block, threads: 1 }));
        all
    }

    fn name(self) -> String {
        let block =
            if self.block < MIB { format!("{} KiB", self.block / KIB) } else { format!("{} MiB", self.block / MIB) };
        let threads = if self.threads == 1 { String::new() } else { format!(", {} threads", self.threads) };
        match self.call {
            Call::Shared if self.threads == 1 => format!("pread, {block}"),
            Call::Shared => format!("pread, {block}{threads}, one descriptor"),
            Call::Own => format!("pread, {block}{threads}, own descriptors"),
            Call::Vectored => format!("readv, {block} in 8 buffers"),
            Call::Splice => format!("splice, {block}"),
            Call::Copy => "copy to memory".into(),
            Call::Map if self.threads == 1 => "memory map, in order".into(),
            Call::Map => format!("memory map{threads} in stripes"),
            Call::Faults => "memory map, random pages".into(),
            Call::Direct => format!("O_DIRECT, {block}, 16 in flight"),
        }
    }

    /// Reads the target, and returns the speed in GB/s.
    pub fn read(self, target: &Target) -> anyhow::Result<f64> {
        let start = Instant::now();
        let bytes = match self.call {
            Call::Shared | Call::Own => self.share(target),
            Call::Vectored => self.vectored(target),
            Call::Splice => self.splice(target),
            Call::Copy => copy(target),
            Call::Map => self.scan(target),
            Call::Faults => fault(target),
            Call::Direct => return self.direct(target),
        }?;
        Ok(bytes as f64 / start.elapsed().as_nanos() as f64)
    }

    /// Runs `work` in each thread, with its number.
    fn in_threads(self, work: impl Fn(usize) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
        thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = (0..self.threads).map(|number| scope.spawn(move || work(number))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| bail!("a reader panicked")))
        })
    }

    /// Each thread takes the next block that nobody has taken.
    fn share(self, target: &Target) -> anyhow::Result<u64> {
        let shared = File::open(&target.path)?;
        let next = AtomicU64::new(target.range.start);
        self.in_threads(|_| {
            let own = if self.call == Call::Own { Some(File::open(&target.path)?) } else { None };
            let file = own.as_ref().unwrap_or(&shared);
            let mut buffer = vec![1; self.block];
            loop {
                let at = next.fetch_add(self.block as u64, Ordering::Relaxed);
                if at >= target.range.end {
                    return Ok(());
                }
                let len = self.block.min((target.range.end - at) as usize);
                file.read_exact_at(&mut buffer[..len], at)?;
            }
        })?;
        Ok(target.len())
    }

    fn vectored(self, target: &Target) -> anyhow::Result<u64> {
        let mut file = target.opened()?;
        let mut buffer = vec![1; self.block];
        let mut rest = target.len();
        while rest > 0 {
            let mut parts: Vec<_> = buffer.chunks_mut(self.block / 8).map(IoSliceMut::new).collect();
            let read = file.read_vectored(&mut parts)?;
            ensure!(read > 0, "{}: ends early", target.path.display());
            rest = rest.saturating_sub(read as u64);
        }
        Ok(target.len())
    }

    fn splice(self, target: &Target) -> anyhow::Result<u64> {
        let file = target.opened()?;
        let (from, to) = std::io::pipe()?;
        let null = File::options().write(true).open("/dev/null")?;
        // SAFETY: the call has no pointer.
        #[allow(unsafe_code)]
        Errno::result(unsafe { libc::fcntl(to.as_raw_fd(), libc::F_SETPIPE_SZ, self.block as libc::c_int) })?;
        let mut rest = target.len();
        while rest > 0 {
            let read = splice(file.as_raw_fd(), to.as_raw_fd(), self.block)?;
            ensure!(read > 0, "{}: ends early", target.path.display());
            let mut inside = read;
            while inside > 0 {
                inside -= splice(from.as_raw_fd(), null.as_raw_fd(), inside)?;
            }
            rest = rest.saturating_sub(read as u64);
        }
        Ok(target.len())
    }

    fn scan(self, target: &Target) -> anyhow::Result<u64> {
        let map = map(&target.path)?;
        let bytes = &map[target.range.start as usize..target.range.end as usize];
        let stripe = bytes.len().div_ceil(self.threads).next_multiple_of(4096);
        self.in_threads(|number| {
            let own = bytes.chunks(stripe).nth(number).unwrap_or_default();
            let words = own.chunks_exact(8).filter_map(|word| word.try_into().ok().map(u64::from_le_bytes));
            std::hint::black_box(words.fold(0, u64::wrapping_add));
            Ok(())
        })?;
        Ok(target.len())
    }

    fn direct(self, target: &Target) -> anyhow::Result<f64> {
        let mut fio = Command::new("fio");
        fio.args(["--name=reads", "--readonly", "--rw=read", "--direct=1", "--ioengine=libaio", "--iodepth=16"]);
        fio.args(["--output-format=json", "--allow_file_create=0", "--invalidate=0"]);
        fio.arg(format!("--filename={}", target.path.display())).arg(format!("--bs={}", self.block));
        let output = fio.arg(format!("--size={}", target.len())).output().context("fio")?;
        ensure!(output.status.success(), "fio: {}", String::from_utf8_lossy(&output.stderr));
        let said: Value = serde_json::from_slice(&output.stdout)?;
        let speed = said["jobs"][0]["read"]["bw_bytes"].as_f64().context("fio tells no speed")?;
        Ok(speed / 1e9)
    }
}

impl Target {
    fn whole(path: PathBuf) -> anyhow::Result<Self> {
        let len = std::fs::metadata(&path).with_context(|| path.display().to_string())?.len();
        Ok(Self { path, range: 0..len })
    }

    fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn opened(&self) -> anyhow::Result<File> {
        let mut file = File::open(&self.path)?;
        file.seek(SeekFrom::Start(self.range.start))?;
        Ok(file)
    }
}

fn splice(from: i32, to: i32, len: usize) -> anyhow::Result<usize> {
    let null = std::ptr::null_mut();
    // SAFETY: no offsets are passed, so the kernel accesses no memory of ours.
    #[allow(unsafe_code)]
    let moved = Errno::result(unsafe { libc::splice(from, null, to, null, len, 0) })?;
    Ok(moved as usize)
}

fn copy(target: &Target) -> anyhow::Result<u64> {
    let mut copy = tempfile::tempfile_in("/dev/shm")?;
    Ok(std::io::copy(&mut target.opened()?.take(target.len()), &mut copy)?)
}

fn fault(target: &Target) -> anyhow::Result<u64> {
    const PAGE: u64 = 4096;
    let map = map(&target.path)?;
    let mut random = Random(11);
    let pages = target.len() / PAGE;
    let mut sum = 0u64;
    for _ in 0..FAULTS {
        sum += u64::from(map[(target.range.start + random.next() % pages * PAGE) as usize]);
    }
    std::hint::black_box(sum);
    Ok(FAULTS * PAGE)
}

/// In which caches the bytes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum State {
    /// In none.
    Cold,
    /// In the page cache of the source.
    First,
    /// In that of the mount, too.
    Again,
}

const SYSTEMS: [System; 4] = [System::Native, System::Weightfs, System::Before, System::Squashfuse];

const TENSOR: &str = "model.embed_tokens.weight";

/// The time after which a way is given up.
const PATIENCE: Duration = Duration::from_secs(60);

type Samples = BTreeMap<(usize, System, State), Vec<f64>>;

/// Measures all ways, or those whose names contain `--only`, and prints a table.
pub fn run(args: &Args, cache: &Path, site: &Site, rounds: usize, machine: &str) -> anyhow::Result<ExitCode> {
    let input = ready(cache, args.quick)?;
    let ways = Way::all();
    let is_wanted = |way: &Way| args.only.as_ref().is_none_or(|text| way.name().contains(text.as_str()));
    let mut samples = Samples::new();
    for round in 0..rounds {
        for (number, way) in ways.iter().enumerate().filter(|(_, way)| is_wanted(way)) {
            eprint!("\r\x1b[Kround {}/{rounds}: {}", round + 1, way.name());
            for turn in 0..SYSTEMS.len() {
                let system = SYSTEMS[(turn + round) % SYSTEMS.len()];
                if !system.is_available() {
                    continue;
                }
                for (state, speed) in measure(*way, system, &input, site)? {
                    samples.entry((number, system, state)).or_default().push(speed);
                }
            }
        }
    }
    eprint!("\r\x1b[K");
    print(&ways, &samples, rounds, machine);
    if let Some(path) = &args.json {
        std::fs::write(path, format!("{:#}\n", json(&ways, &samples))).with_context(|| path.display().to_string())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// A model of one tensor of 512 MB, or of 67 MB, its bytes as a file, and a squashfs of that.
fn ready(cache: &Path, quick: bool) -> anyhow::Result<Input> {
    let rows = if quick { 8192 } else { 65_536 };
    let dir = cache.join(if quick { "reads-quick-1" } else { "reads-1" });
    make_once(&dir, 3 * rows * 8192, |partial| {
        let input = Input(partial.to_owned());
        std::fs::create_dir(input.native())?;
        write_model(&input.model(), &[tensor(TENSOR.into(), "BF16", 2, &[rows, 4096])], Some(&input.native()))?;
        make_squashfs(&input)
    })?;
    Ok(Input(dir))
}

/// One read in each state. The caches are dropped only for root.
fn measure(way: Way, system: System, input: &Input, site: &Site) -> anyhow::Result<Vec<(State, f64)>> {
    let read = |mounted: &Mounted| -> anyhow::Result<f64> {
        let target = Target::whole(mounted.point.join(system.dir("tensors")).join(TENSOR))?;
        let give_up = || mounted.pid().into_iter().for_each(end);
        within(PATIENCE, give_up, || way.read(&target))?.with_context(|| format!("over {} s", PATIENCE.as_secs()))
    };
    let mut found = Vec::new();
    if nix::unistd::geteuid().is_root() {
        let mounted = Mounted::new(site, system, input, &[], PATIENCE)?;
        nix::unistd::sync();
        std::fs::write("/proc/sys/vm/drop_caches", "3")?;
        found.push((State::Cold, read(&mounted)?));
    }
    input.warm(system)?;
    let mounted = Mounted::new(site, system, input, &[], PATIENCE)?;
    found.push((State::First, read(&mounted)?));
    if system != System::Native {
        found.push((State::Again, read(&mounted)?));
    }
    Ok(found)
}

/// The median of the ratios to native files, of each round.
fn ratio(samples: &Samples, number: usize, system: System, state: State) -> Option<f64> {
    let base = if state == State::Cold { State::Cold } else { State::First };
    let (ours, native) = (samples.get(&(number, system, state))?, samples.get(&(number, System::Native, base))?);
    median(ours.iter().zip(native).map(|(ours, native)| ours / native).collect())
}

fn print(ways: &[Way], samples: &Samples, rounds: usize, machine: &str) {
    println!("{machine}; medians of {rounds} rounds. cold: the bytes are on the disk. first: in the page cache of the");
    println!("source. again: in that of the mount. Native files in GB/s, others divided by native files.");
    println!();
    println!(
        "{:40} {:^13}{}",
        "",
        "native",
        systems(samples).map(|system| format!(" {:^20}", system.name())).collect::<String>()
    );
    let heads: String = systems(samples).map(|_| "   cold  first  again").collect();
    println!("{:40} {:>6} {:>6}{heads}", "", "cold", "cached");
    for (number, way) in ways.iter().enumerate() {
        let native = |state| samples.get(&(number, System::Native, state)).and_then(|speeds| median(speeds.clone()));
        let Some(cached) = native(State::First) else { continue };
        let mut line = format!("{:40} {} {}", way.name(), shown(native(State::Cold)), shown(Some(cached)));
        for system in systems(samples) {
            for state in [State::Cold, State::First, State::Again] {
                line += &format!(" {}", shown(ratio(samples, number, system, state)));
            }
        }
        println!("{line}");
    }
}

fn shown(value: Option<f64>) -> String {
    value.map_or_else(|| " ".repeat(6), |value| format!("{value:6.2}"))
}

/// The systems that were measured beside native files.
fn systems(samples: &Samples) -> impl Iterator<Item = System> + '_ {
    SYSTEMS.into_iter().skip(1).filter(|system| samples.keys().any(|(_, measured, _)| measured == system))
}

fn json(ways: &[Way], samples: &Samples) -> Value {
    let speeds = samples.iter().map(|((number, system, state), speeds)| {
        json!({"way": ways[*number].name(), "system": system.name(), "state": format!("{state:?}").to_lowercase(),
            "gb_per_s": speeds})
    });
    Value::Array(speeds.collect())
}
