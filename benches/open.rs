//! Time to open a model, and memory of the daemon: `cargo bench --bench open`, as root.
//!
//! Each round measures, with the source in the page cache: the official crate parses a header of a million tensors;
//! weightfs mounts the same file until `stat` answers, opens it without mounting, and lists its tensors; weightfs
//! mounts a small and a very large file. Prints medians of [`RUNS`] rounds with minimum and maximum, and ratios.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails by panicking")]

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const WEIGHTFS: &str = env!("CARGO_BIN_EXE_weightfs");
const RUNS: usize = 7;

fn main() {
    let dir = tempfile::tempdir().unwrap();
    let million = dir.path().join("million.safetensors");
    let small = dir.path().join("small.safetensors");
    let sparse = dir.path().join("sparse.safetensors");
    let header = write(&million, 1_000_000, 4);
    write(&small, 4, 4);
    write(&sparse, 4, 125_000_000_000);
    println!(
        "header of 1,000,000 tensors: {:.1} MB; medians of {RUNS} [minimum, maximum]; source cache warm",
        header as f64 / 1e6
    );

    let [mut official, mut mount, mut list, mut fake, mut ls, mut mount_small, mut mount_sparse]: [Times; 7] =
        Default::default();
    let mut anonymous = 0;
    for _ in 0..RUNS {
        let bytes = std::fs::read(&million).unwrap();
        let start = Instant::now();
        let parsed = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
        official.add(start);
        drop((parsed, bytes));
        let (mounted, took) = Mounted::new(&million, dir.path());
        mount.0.push(took);
        let start = Instant::now();
        let output = Command::new("ls").arg("-f").arg(mounted.point.join("tensors")).output().unwrap();
        list.add(start);
        assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 1_000_002);
        // The daemon builds these on demand; they count as memory, too.
        for file in ["tree", "index.json", "metadata.json"] {
            std::fs::metadata(mounted.point.join(file)).unwrap();
        }
        std::fs::read_dir(mounted.point.join("tree")).unwrap().for_each(drop);
        anonymous = anonymous.max(mounted.anonymous());
        drop(mounted);
        let start = Instant::now();
        let done = Command::new(WEIGHTFS).args(["mount", "--fake"]).arg(&million).arg(dir.path().join("mnt")).status();
        fake.add(start);
        assert!(done.unwrap().success());
        let start = Instant::now();
        let output = Command::new(WEIGHTFS).arg("ls").arg(&million).stderr(Stdio::inherit()).output().unwrap();
        ls.add(start);
        assert_eq!(output.stdout.iter().filter(|byte| **byte == b'\n').count(), 1_000_001);
        mount_small.0.push(Mounted::new(&small, dir.path()).1);
        mount_sparse.0.push(Mounted::new(&sparse, dir.path()).1);
    }
    // A name, the times, and the times that the ratio is to.
    let rows = [
        ("official crate: parse the header", &official, &official),
        ("weightfs mount, until stat answers", &mount, &official),
        ("ls -f of 1,000,000 names in the mount", &list, &official),
        ("weightfs mount --fake: read the header", &fake, &official),
        ("weightfs ls, to a pipe", &ls, &fake),
        ("weightfs mount, a file of 4 tensors", &mount_small, &mount_small),
        ("weightfs mount, a sparse file of 500 GB", &mount_sparse, &mount_small),
    ];
    for (name, times, against) in rows {
        let ratio = times.median().as_secs_f64() / against.median().as_secs_f64();
        println!("{name:42} {times}   x {ratio:.3}");
    }
    println!(
        "anonymous memory of the daemon with 1,000,000 tensors, after listing tensors/ and tree/: {:.1} MB",
        anonymous as f64 / 1e6
    );
}

/// Writes a sparse file of `count` tensors of `size` bytes each; returns the length of its header in bytes.
fn write(path: &Path, count: u64, size: u64) -> usize {
    let mut header = String::from("{\"__metadata__\":{\"format\":\"pt\"}");
    for tensor in 0..count {
        header += &format!(
            ",\"layers.{}.experts.{}.w\":{{\"dtype\":\"F32\",\"shape\":[{}],\"data_offsets\":[{},{}]}}",
            tensor / 1000,
            tensor % 1000,
            size / 4,
            tensor * size,
            (tensor + 1) * size
        );
    }
    header.push('}');
    let mut file = File::create(path).unwrap();
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    file.set_len(8 + header.len() as u64 + count * size).unwrap();
    header.len()
}

#[derive(Default)]
struct Times(Vec<Duration>);

impl Times {
    fn add(&mut self, start: Instant) {
        self.0.push(start.elapsed());
    }

    fn sorted(&self) -> Vec<Duration> {
        let mut sorted = self.0.clone();
        sorted.sort();
        sorted
    }

    fn median(&self) -> Duration {
        self.sorted()[self.0.len() / 2]
    }
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ms = |time: &Duration| time.as_secs_f64() * 1e3;
        let sorted = self.sorted();
        write!(f, "{:8.1} ms [{:.1}, {:.1}]", ms(&self.median()), ms(&sorted[0]), ms(&sorted[sorted.len() - 1]))
    }
}

/// A mount served by a child process.
struct Mounted {
    point: std::path::PathBuf,
    child: Child,
}

impl Mounted {
    /// Mounts `source`; returns the time until `stat` of the mount point is answered by the mount.
    fn new(source: &Path, dir: &Path) -> (Self, Duration) {
        let point = dir.join("mnt");
        std::fs::create_dir_all(&point).unwrap();
        let empty = std::fs::metadata(&point).unwrap();
        let start = Instant::now();
        let child = Command::new(WEIGHTFS).arg("-f").arg(source).arg(&point).stdout(Stdio::null()).spawn().unwrap();
        let mounted = Self { point, child };
        // The device number of the mount point changes when it is mounted.
        use std::os::unix::fs::MetadataExt;
        while std::fs::metadata(&mounted.point).unwrap().dev() == empty.dev() {
            std::thread::sleep(Duration::from_micros(200));
        }
        (mounted, start.elapsed())
    }

    /// Anonymous memory of the daemon, in bytes.
    fn anonymous(&self) -> u64 {
        let rollup = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", self.child.id())).unwrap();
        let line = rollup.lines().find(|line| line.starts_with("Anonymous:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = Command::new(WEIGHTFS).arg("umount").arg(&self.point).status();
        let _ = self.child.wait();
    }
}
