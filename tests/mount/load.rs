//! Load tests: many concurrent readers of every kind on every view, each byte compared with the expected one, and
//! directories of a million entries.
//!
//! The readers are processes with several threads. Each thread picks random files and reads them in random ways.

use crate::support::{Mount, Scene, cores, pattern, python, require_fuse, run_ok, status, threads_max};
use memmap2::{Mmap, UncheckedAdvice};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::libc::O_DIRECT;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How a file is read.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
enum Way {
    /// From beginning to end, block by block.
    Whole,
    /// At random offsets.
    Random,
    /// At random offsets with O_DIRECT, so that every read reaches the daemon.
    Direct,
    /// At random offsets of a map that all threads of the process share.
    Map,
}

/// The parameters of a process of readers.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Orders {
    mount: PathBuf,
    /// A directory of ordinary files with the expected contents of the mount.
    expected: PathBuf,
    ways: Vec<Way>,
    threads: u64,
    /// How many files a thread reads, unless `seconds` are over first.
    files: u64,
    seconds: u64,
    seed: u64,
}

/// The environment variable that holds the [`Orders`] as JSON.
const ORDERS: &str = "WEIGHTFS_TEST_READERS";

/// The prefix of the line with the numbers of files read and bytes compared.
const COMPARED: &str = "readers compared ";

/// An entry of the expected directory.
struct Entry {
    /// Relative to the root of the mount.
    path: PathBuf,
    expected: OnceLock<Mmap>,
    map: OnceLock<Mmap>,
}

/// Reproducible pseudorandom numbers (SplitMix64). Source: Steele, Lea, Flood, "Fast splittable pseudorandom number
/// generators".
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % end as u64) as usize
    }

    fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// A process of readers. The first panic ends it.
#[test]
#[ignore = "started by the other tests of this module"]
fn readers() {
    let orders = std::env::var(ORDERS).expect("the tests of this module set the orders");
    let orders: Orders = serde_json::from_str(&orders).unwrap();
    let default = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        default(panic);
        std::process::exit(1);
    }));
    let groups = groups(&orders.expected);
    let end = Instant::now() + Duration::from_secs(orders.seconds);
    let (files, bytes) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..orders.threads {
            let mut random = Random(orders.seed << 32 | thread);
            let (orders, groups, files, bytes) = (&orders, &groups, &files, &bytes);
            scope.spawn(move || {
                for _ in (0..orders.files).take_while(|_| Instant::now() < end) {
                    let group = &groups[random.below(groups.len())];
                    let entry = &group[random.below(group.len())];
                    bytes.fetch_add(entry.check(orders, &mut random) as u64, Ordering::Relaxed);
                    files.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    println!("{COMPARED}{} {}", files.into_inner(), bytes.into_inner());
}

/// Everything in `expected`, including directories, grouped by the first two path components: each view of each model
/// is read equally often, however many files it has.
fn groups(expected: &Path) -> Vec<Vec<Entry>> {
    let mut groups: BTreeMap<PathBuf, Vec<Entry>> = BTreeMap::new();
    let mut ahead = vec![PathBuf::new()];
    while let Some(path) = ahead.pop() {
        if expected.join(&path).is_dir() {
            ahead.extend(names(&expected.join(&path)).into_iter().map(|name| path.join(name)));
        }
        let entry = Entry { path, expected: OnceLock::new(), map: OnceLock::new() };
        groups.entry(entry.path.components().take(2).collect()).or_default().push(entry);
    }
    groups.into_values().collect()
}

/// The names in a directory, sorted.
fn names(dir: &Path) -> Vec<OsString> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// The extended attributes in the `user.` namespace.
fn attributes(path: &Path) -> BTreeMap<String, Vec<u8>> {
    let names = xattr::list(path).unwrap().map(|name| name.into_string().unwrap());
    let value = |name: String| {
        let value = xattr::get(path, &name).unwrap().unwrap();
        (name, value)
    };
    names.filter(|name| name.starts_with("user.")).map(value).collect()
}

fn map(file: &File) -> Mmap {
    // SAFETY: no test writes to these files. If the mount of a mapped file fails, SIGBUS ends this process, and the
    // test that started it fails.
    #[allow(unsafe_code)]
    unsafe { Mmap::map(file) }.unwrap()
}

/// Makes the kernel drop the cached pages of a file that are not in use.
fn forget(file: &File, map: Option<&Mmap>) {
    if let Some(map) = map {
        // SAFETY: this is a shared map of an unchanging file, so a dropped page is read again with the same bytes.
        #[allow(unsafe_code)]
        unsafe { map.unchecked_advise(UncheckedAdvice::DontNeed) }.unwrap();
    }
    posix_fadvise(file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
}

impl Entry {
    /// Reads the entry in one of the ways and compares the bytes. Returns their number.
    fn check(&self, orders: &Orders, random: &mut Random) -> usize {
        let (path, plain) = (orders.mount.join(&self.path), orders.expected.join(&self.path));
        let shown = self.path.display();
        if plain.is_dir() {
            assert_eq!(names(&path), names(&plain), "{shown}");
            return 0;
        }
        if plain.is_symlink() {
            assert_eq!(std::fs::read_link(&path).unwrap(), std::fs::read_link(&plain).unwrap(), "{shown}");
            return 0;
        }
        let way = random.one(&orders.ways);
        let flags = if matches!(way, Way::Direct) { O_DIRECT } else { 0 };
        let open = |path: &Path, flags| File::options().read(true).custom_flags(flags).open(path);
        let mut file = open(&path, flags).unwrap_or_else(|error| panic!("{shown}: {error}"));
        let expected = self.expected.get_or_init(|| map(&open(&plain, 0).unwrap()));
        assert_eq!(file.metadata().unwrap().len(), expected.len() as u64, "{shown}");
        if random.below(8) == 0 {
            assert_eq!(attributes(&path), attributes(&plain), "{shown}");
        }
        let mapped = matches!(way, Way::Map).then(|| self.map.get_or_init(|| map(&file)));
        if random.below(4) == 0 {
            forget(&file, mapped);
        }
        let same = |found: &[u8], at: usize| {
            let part = expected.get(at..at + found.len()).unwrap_or_default();
            if found != part {
                let differs = found.iter().zip(part).position(|(found, expected)| found != expected);
                panic!("{shown}, {way:?}: {} bytes at {at} differ from index {differs:?} on", found.len());
            }
            found.len()
        };
        let fail = |error| -> usize { panic!("{shown}, {way:?}: {error}") };
        if let Way::Whole = way {
            let mut block = vec![0; random.one(&[511, 4096, 65_536, 100_000, 1 << 20])];
            let mut at = 0;
            while let read @ 1.. = file.read(&mut block).unwrap_or_else(fail) {
                at += same(&block[..read], at);
            }
            assert_eq!(at, expected.len(), "{shown}");
            return at;
        }
        let mut buf = vec![0; 1 << 20];
        let part = |_| {
            let at = random.below(expected.len() + 1);
            let most = random.one(&[4096, 1 << 17, 1 << 20]);
            let size = (random.below(most) + 1).min(expected.len() - at);
            match mapped {
                Some(map) => same(&map[at..at + size], at),
                None => {
                    assert_eq!(file.read_at(&mut buf[..size], at as u64).unwrap_or_else(fail), size, "{shown} at {at}");
                    same(&buf[..size], at)
                }
            }
        };
        (0..8).map(part).sum()
    }
}

/// Starts a process of readers for each of the orders and calls `meanwhile` repeatedly while they run. Returns the
/// numbers of files read and bytes compared. Panics if a process runs longer than `limit`.
fn load(scene: &Scene, orders: &[Orders], limit: Duration, mut meanwhile: impl FnMut()) -> [u64; 2] {
    let log = |at| scene.path(format!("readers{at}.log"));
    let start = |(at, orders): (usize, &Orders)| {
        let out = File::create(log(at)).unwrap();
        let mut command = scene.command(std::env::current_exe().unwrap().to_str().unwrap());
        command.args(["--exact", "load::readers", "--ignored", "--nocapture"]);
        command.env(ORDERS, serde_json::to_string(orders).unwrap());
        command.stdout(out.try_clone().unwrap()).stderr(out).spawn().unwrap()
    };
    let mut children: Vec<Child> = orders.iter().enumerate().map(start).collect();
    let output = |at| std::fs::read_to_string(log(at)).unwrap();
    let begun = Instant::now();
    // On a panic, the daemons are killed first and then the readers, which may be blocked until then.
    loop {
        let ended: Vec<_> = children.iter_mut().map(|child| child.try_wait().unwrap()).collect();
        if let Some(at) = ended.iter().position(|status| status.is_some_and(|status| !status.success())) {
            panic!("{:?}: {}", ended[at], output(at));
        }
        if ended.iter().all(Option::is_some) {
            break;
        }
        let hang = ended.iter().filter(|status| status.is_none()).count();
        assert!(begun.elapsed() < limit, "{hang} of {} processes hang", children.len());
        meanwhile();
        std::thread::sleep(Duration::from_millis(100));
    }
    let counts = |at| {
        let output = output(at);
        let line = output.split_once(COMPARED).unwrap().1.lines().next().unwrap();
        line.split(' ').map(|count| count.parse().unwrap()).collect::<Vec<u64>>()
    };
    (0..children.len()).map(counts).fold([0, 0], |sum, counts| [sum[0] + counts[0], sum[1] + counts[1]])
}

/// The current resource usage of a daemon.
#[derive(Debug, Clone, Copy)]
struct Usage {
    /// Anonymous memory, in KiB.
    memory: u64,
    descriptors: u64,
    threads: u64,
}

impl Usage {
    fn of(mount: &Mount) -> Self {
        let pid = mount.child.id();
        let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count() as u64;
        Self { memory: status(pid, "RssAnon"), descriptors, threads: status(pid, "Threads") }
    }

    /// The maximum of each field.
    fn max(self, other: Self) -> Self {
        Self {
            memory: self.memory.max(other.memory),
            descriptors: self.descriptors.max(other.descriptors),
            threads: self.threads.max(other.threads),
        }
    }
}

/// Asserts that a daemon uses no more in the second half of the time than in the first. The first fifth is left out,
/// because the daemon fills its caches then.
fn assert_flat(usages: &[Usage]) {
    let (first, second) = usages[usages.len() / 5..].split_at(usages.len() * 2 / 5);
    let median = |part: &[Usage], of: fn(&Usage) -> u64| {
        let mut values: Vec<_> = part.iter().map(of).collect();
        values.sort_unstable();
        values[values.len() / 2]
    };
    type Of = fn(&Usage) -> u64;
    let table: [(&str, Of, u64); 3] = [
        ("KiB of memory", |usage| usage.memory, 4096),
        ("descriptors", |usage| usage.descriptors, 4),
        ("threads", |usage| usage.threads, 4),
    ];
    for (resource, of, more) in table {
        let (before, after) = (median(first, of), median(second, of));
        assert!(after <= before + before / 10 + more, "{resource}: {before}, then {after}");
    }
}

/// The number of bytes that a daemon has written, which are mostly replies.
fn written(mount: &Mount) -> u64 {
    let io = std::fs::read_to_string(format!("/proc/{}/io", mount.child.id())).unwrap();
    io.lines().find_map(|line| line.strip_prefix("wchar: ")).unwrap().parse().unwrap()
}

/// `WEIGHTFS_SOAK=SECONDS cargo test --test mount soak -- --nocapture` runs for that time and prints the usage of the
/// daemons each minute. The usage must not grow.
#[test]
fn soak_of_every_view() {
    require_fuse!();
    const MODELS: [&str; 3] = ["single", "sharded", "dataset"];
    let seconds = std::env::var("WEIGHTFS_SOAK")
        .ok()
        .map(|seconds| seconds.parse().expect("WEIGHTFS_SOAK must be a number of seconds"));
    let scene = Scene::new();
    let (models, expected) = (scene.path("models"), scene.path("expected"));
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/load.py");
    // A long run has more plots than a daemon caches.
    let count = if seconds.is_some() { "300" } else { "40" };
    let args = [script.as_os_str(), models.as_os_str(), expected.as_os_str(), count.as_ref()];
    run_ok(python().to_str().unwrap(), args);
    // Computed files must equal those that a single reader gets. Other tests check that these are right.
    let alone = scene.mount(&models, &[]);
    let point = alone.point.display();
    for model in MODELS {
        scene.ok(&format!("cp -r {point}/{model}/stats {point}/{model}/plots expected/{model}"));
    }
    scene.ok(&format!("diff -r expected {point}"));
    drop(alone);

    let mounts = [scene.mount(&models, &[]), scene.mount(&models, &["--direct-io", "--threads=8"])];
    let order = |at: usize| Orders {
        mount: mounts[at % 2].point.clone(),
        expected: expected.clone(),
        ways: vec![Way::Whole, Way::Random, Way::Direct, Way::Map],
        threads: 8,
        files: seconds.map_or(20, |_| u64::MAX),
        seconds: seconds.unwrap_or(u32::MAX.into()),
        seed: at as u64,
    };
    let orders: Vec<Orders> = (0..8).map(order).collect();
    let begun = Instant::now();
    let (mut usages, mut minutes) = ([Vec::new(), Vec::new()], 0);
    let compared = load(&scene, &orders, Duration::from_secs(seconds.unwrap_or(0) + 300), || {
        let now = mounts.each_ref().map(Usage::of);
        usages.iter_mut().zip(now).for_each(|(usages, now)| usages.push(now));
        if begun.elapsed().as_secs() / 60 > minutes {
            minutes += 1;
            println!("after {minutes} min: {now:?}");
        }
    });
    let [files, bytes] = compared;
    println!("{files} files read, {bytes} bytes compared in {:?}", begun.elapsed());
    for (mount, usages) in mounts.iter().zip(&usages) {
        assert_eq!(mount.log(), "");
        assert_eq!(mount.list("").len(), MODELS.len() + 1);
        let most = usages.iter().copied().reduce(Usage::max).unwrap();
        println!("{} bytes written; at most {most:?}", written(mount));
        // The daemon caches 64 MiB of results, and every core may compute others.
        assert!(most.memory < (224 + 16 * cores()) << 10, "{most:?}");
        assert!(most.descriptors < 100 && most.threads <= threads_max(), "{most:?}");
        if seconds.is_some() {
            assert_flat(usages);
        }
    }
}

/// Regression test for a hang of other FUSE daemons: threads fault one map, with read-ahead, while others read the file
/// and pages are dropped.
#[test]
fn many_processes_fault_one_map_without_deadlock() {
    require_fuse!();
    const LEN: usize = 100 << 20;
    let scene = Scene::new();
    // There is only one tensor, so its file in safetensors/ is equal to the source.
    let header = format!(r#"{{"t":{{"dtype":"U8","shape":[{LEN}],"data_offsets":[0,{LEN}]}}}}"#);
    let padded = format!("{header:<0$}", header.len().next_multiple_of(8));
    let source = scene.raw("model.safetensors", padded.as_bytes(), &pattern(LEN));
    std::fs::hard_link(&source, scene.mkdir("expected").join("t.safetensors")).unwrap();
    // The second mount has only one thread that serves requests.
    for args in [&[][..], &["--threads=1"]] {
        let mount = scene.mount(&source, args);
        let order = |(ways, threads, files), seed| Orders {
            mount: mount.path("safetensors"),
            expected: scene.path("expected"),
            ways: vec![ways],
            threads,
            files,
            seconds: u32::MAX.into(),
            seed,
        };
        let [faulting, reading] = [(Way::Map, 16, 25), (Way::Whole, 4, 4)];
        let orders = [faulting, faulting, faulting, faulting, reading];
        let orders: Vec<Orders> = orders.into_iter().zip(0..).map(|(kind, seed)| order(kind, seed)).collect();
        let begun = Instant::now();
        let [files, bytes] = load(&scene, &orders, Duration::from_secs(120), || {});
        let written_bytes = written(&mount);
        println!("{files} reads, {bytes} bytes compared, {written_bytes} bytes written in {:?}", begun.elapsed());
        // Not all of it came from the page cache.
        assert!(written_bytes > 3 * LEN as u64, "{written_bytes}");
        assert_eq!(mount.log(), "");
    }
}

/// A sparse file of `count` tensors of one byte, and their names in the order of the data.
fn many(scene: &Scene, count: usize) -> (PathBuf, Vec<String>) {
    let names: Vec<String> = (0..count).map(|at| format!("layers.{}.x{}", at % 1000, at / 1000)).collect();
    let entry = |(at, name): (usize, &String)| {
        format!(r#""{name}":{{"dtype":"U8","shape":[1],"data_offsets":[{at},{}]}}"#, at + 1)
    };
    let entries: Vec<String> = names.iter().enumerate().map(entry).collect();
    let path = scene.raw("many.safetensors", format!("{{{}}}", entries.join(",")).as_bytes(), &[]);
    let len = std::fs::metadata(&path).unwrap().len() + count as u64;
    File::options().write(true).open(&path).unwrap().set_len(len).unwrap();
    (path, names)
}

/// Eight processes list directories of a million entries, and two more seek in one.
#[test]
fn million_entries_are_listed_concurrently() {
    require_fuse!();
    const COUNT: usize = 1_000_000;
    let scene = Scene::new();
    let (source, names) = many(&scene, COUNT);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), COUNT);
    let mount = scene.mount(&source, &[]);
    // Seeks back to positions that telldir has returned, while the other processes list too.
    let seek = r#"
        my (@names, %places);
        opendir my $dir, $ARGV[0] or die $!;
        while (defined(my $name = readdir $dir)) {
            push @names, $name;
            $places{@names} = telldir $dir if @names % 9973 == 0;
        }
        for my $at (sort { $a * 7919 % 1000003 <=> $b * 7919 % 1000003 } keys %places) {
            seekdir $dir, $places{$at};
            my $name = readdir $dir;
            die "$at: $name, not $names[$at]" if $name ne $names[$at];
        }
        print scalar @names, " ", scalar keys %places;"#;
    let before = Usage::of(&mount);
    println!("{before:?}");
    std::thread::scope(|scope| {
        let path = |dir: &str| mount.path(dir).display().to_string();
        for _ in 0..2 {
            let path = path("tensors");
            scope.spawn(move || assert_eq!(run_ok("perl", ["-e", seek, &path]), "1000002 100"));
        }
        let dirs = [("tensors", ""), ("npy", ".npy"), ("f32", ".f32"), ("safetensors", ".safetensors")];
        let dirs = dirs.into_iter().chain([("stats", ".json"), ("plots", ".png"), ("tensors", ""), ("tensors", "")]);
        for (dir, suffix) in dirs {
            let (names, path) = (&names, path(dir));
            scope.spawn(move || {
                let listing = run_ok("ls", ["-f", &path]);
                // Every name is listed exactly once.
                assert!(listing.lines().take(2).eq([".", ".."]), "{dir}");
                let listed = listing.lines().skip(2).map(|line| line.strip_suffix(suffix).unwrap());
                assert!(listed.eq(names), "{dir}");
            });
        }
    });
    let after = Usage::of(&mount);
    // Threads that wait for other requests have stacks, too.
    assert!(after.memory < before.memory + (32 << 10), "{before:?}, then {after:?}");
    assert_eq!(mount.list("tree/layers").len(), 1000);
    assert_eq!(mount.list("tree/layers/999").len(), 1000);
    assert_eq!(mount.log(), "");
}
