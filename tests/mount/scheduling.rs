//! Operations that have to wait: they hold no threads while they are parked, and do not block others.

use crate::gate::{FILE, Gate};
use crate::support::{Mount, Scene, cores, pattern, require_fuse, require_root, status, threads_max, wait_until};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use safetensors::Dtype;
use std::fs::File;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// A sparse model of `count` tensors of `len` bytes each, and a tensor `small` of four bytes.
fn sparse(scene: &Scene, count: u64, len: u64) -> PathBuf {
    let entry = |at: u64| {
        format!(r#""t{at}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{},{}]}}"#, at * len, (at + 1) * len)
    };
    let entries: Vec<String> = (0..count).map(entry).collect();
    let end = count * len;
    let small = format!(r#""small":{{"dtype":"U8","shape":[4],"data_offsets":[{end},{}]}}"#, end + 4);
    let header = format!("{{{},{small}}}", entries.join(","));
    let path = scene.raw("sparse.safetensors", header.as_bytes(), b"");
    File::options().append(true).open(&path).unwrap().set_len(8 + header.len() as u64 + end + 4).unwrap();
    path
}

/// Processes that read a file each. They are killed on drop.
struct Cats(Vec<Child>);

impl Cats {
    fn read(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let cat = |path: PathBuf| {
            let mut command = Command::new("cat");
            command.arg(path).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        Self(paths.into_iter().map(cat).collect())
    }

    /// As [`Self::read`], with O_DIRECT: each process sends its own request.
    fn read_directly(paths: impl IntoIterator<Item = PathBuf>) -> Self {
        let dd = |path: PathBuf| {
            let mut command = Command::new("dd");
            command.arg(format!("if={}", path.display())).args(["iflag=direct", "bs=64K", "count=1"]);
            command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
        };
        Self(paths.into_iter().map(dd).collect())
    }

    /// Waits until every process waits for a read of the mount.
    fn wait_until_parked(&self) {
        for cat in &self.0 {
            let waits = || {
                let place = std::fs::read_to_string(format!("/proc/{}/wchan", cat.id())).unwrap_or_default();
                ["request_wait_answer", "folio_wait", "d_alloc_parallel", "fuse_", "wait_for_completion"]
                    .iter()
                    .any(|name| place.contains(name))
            };
            wait_until("a reader waits", waits);
        }
    }

    fn kill(&self) {
        for cat in &self.0 {
            kill(Pid::from_raw(cat.id() as i32), Signal::SIGKILL).unwrap();
        }
    }

    /// Waits for the end of every process, and returns how many have succeeded.
    fn wait(&mut self) -> usize {
        let mut succeeded = 0;
        for mut cat in self.0.drain(..) {
            wait_until("a reader ends", || cat.try_wait().unwrap().is_some());
            succeeded += usize::from(cat.wait().unwrap().success());
        }
        succeeded
    }
}

impl Drop for Cats {
    fn drop(&mut self) {
        // A process that waits for a hanging mount ends with the mount.
        for cat in &mut self.0 {
            let _ = cat.kill();
        }
    }
}

/// Asserts that `read` ends. If it does not, calls `release` so that the test ends.
fn answered_meanwhile(read: impl FnOnce() + Send, release: impl FnOnce()) {
    thread::scope(|scope| {
        let (sender, receiver) = channel();
        scope.spawn(move || {
            read();
            sender.send(())
        });
        let answered = receiver.recv_timeout(Duration::from_secs(60));
        if answered.is_err() {
            release();
        }
        assert!(answered.is_ok(), "the reads wait for others");
    });
}

#[test]
fn thousand_readers_of_plots_need_few_threads_and_little_memory() {
    require_fuse!();
    const TENSORS: usize = 400;
    const READERS: usize = 1000;
    let scene = Scene::new();
    let mount = scene.mount(&sparse(&scene, TENSORS as u64, 4096), &[]);
    let pid = mount.child.id();
    let read = |at: usize| {
        let file = File::open(mount.path(format!("plots/t{}.png", at % TENSORS))).unwrap();
        let mut begin = [0; 4];
        file.read_exact_at(&mut begin, 0).unwrap();
        assert_eq!(&begin[1..], b"PNG");
    };
    let mut threads = 0;
    thread::scope(|scope| {
        let readers: Vec<_> = (0..READERS).map(|at| scope.spawn(move || read(at))).collect();
        while !readers.iter().all(|reader| reader.is_finished()) {
            threads = threads.max(status(pid, "Threads"));
            thread::sleep(Duration::from_millis(1));
        }
    });
    assert!(threads <= threads_max(), "{threads} threads");
    // This includes 64 MiB of cached results, and what each core computes at the moment.
    let peak = status(pid, "VmHWM");
    assert!(peak < (144 + 8 * cores()) << 10, "{peak} kB");
    assert_eq!(mount.read("plots/t7.png").len(), 256 << 10);
    assert_eq!(mount.log(), "");
}

#[test]
fn short_computation_is_answered_while_long_ones_are_waiting() {
    require_fuse!();
    // The largest file of ext4 has 16 TiB.
    const LONG: u64 = 12;
    const READERS: u64 = 140;
    let scene = Scene::new();
    // Statistics of a tensor of 1 TiB take many minutes.
    let mount = scene.mount(&sparse(&scene, LONG, 1 << 40), &[]);
    let one = Cats::read_directly((0..READERS).map(|_| mount.path("stats/t0.json")));
    let file = |kind: &str, at, suffix| mount.path(format!("{kind}/t{}.{suffix}", at % LONG));
    let stats = Cats::read_directly((0..READERS).map(|at| file("stats", at, "json")));
    let plots = Cats::read_directly((0..READERS).map(|at| file("plots", at, "png")));
    let sums = Cats::read_directly([mount.path("SHA256SUMS")]);
    [&one, &stats, &plots, &sums].into_iter().for_each(Cats::wait_until_parked);
    let read = || {
        for file in ["stats/small.json", "plots/small.png"] {
            assert!(!mount.read(file).is_empty());
        }
    };
    answered_meanwhile(read, || [&one, &stats, &plots, &sums].into_iter().for_each(Cats::kill));
    for mut cats in [one, stats, plots, sums] {
        assert!(cats.0.iter_mut().all(|cat| cat.try_wait().unwrap().is_none()));
        let threads = status(mount.child.id(), "Threads");
        assert!(threads <= threads_max(), "{threads} threads");
        // Readers that are parked die as soon as they are killed.
        cats.kill();
        assert_eq!(cats.wait(), 0);
    }
}

/// A directory with a model `local` and links to a model on another file system, whose reads the returned gate holds
/// while it is closed.
fn local_and_remote(scene: &Scene, links: usize) -> (PathBuf, Gate) {
    let dir = scene.mkdir("models");
    let local = scene.model("models/local.safetensors", &[("w", Dtype::U8, &[3 << 20], pattern(3 << 20))], &[]);
    let gate = Gate::new(&scene.mkdir("remote"), std::fs::read(local).unwrap());
    for at in 0..links {
        symlink(scene.path("remote").join(FILE), dir.join(format!("remote{at}.safetensors"))).unwrap();
    }
    (dir, gate)
}

/// Reads the files of the local model, most of them for the first time.
fn read_local(mount: &Mount) {
    assert_eq!(mount.list("local/tensors"), ["w"]);
    for file in ["tensors/w", "index.json", "stats/w.json", "plots/w.png", "SHA256SUMS"] {
        assert!(!mount.read(Path::new("local").join(file)).is_empty(), "{file}");
    }
}

#[test]
fn hanging_model_holds_up_no_model_on_another_file_system() {
    require_root!();
    // More models than a lane has threads, and more readers of each than there are threads that serve.
    const MODELS: usize = 150;
    let scene = Scene::new();
    let (dir, gate) = local_and_remote(&scene, MODELS);
    let mount = scene.mount(&dir, &[]);
    // The gate is dropped before the mount, which cannot end while its source hangs.
    let gate = gate;
    gate.close(0);
    let mut cats = Cats::read((0..2 * MODELS).map(|at| mount.path(format!("remote{}/tensors/w", at % MODELS))));
    cats.wait_until_parked();
    gate.wait_for_read();
    let threads = status(mount.child.id(), "Threads");
    answered_meanwhile(|| read_local(&mount), || gate.open());
    assert!(cats.0.iter_mut().all(|cat| cat.try_wait().unwrap().is_none()));
    assert!(threads <= threads_max() + 16, "{threads} threads");
    gate.open();
    assert_eq!(cats.wait(), 2 * MODELS);
}

#[test]
fn listing_of_hanging_models_holds_up_no_other_file_system() {
    require_root!();
    // More than a lane has threads.
    const FOLDERS: usize = 40;
    let scene = Scene::new();
    let (dir, gate) = local_and_remote(&scene, 0);
    for at in 0..FOLDERS {
        let folder = scene.mkdir(&format!("models/folder{at}"));
        symlink(scene.path("remote").join(FILE), folder.join("remote.safetensors")).unwrap();
    }
    let mount = scene.mount(&dir, &[]);
    // It is dropped before the mount, which cannot end while its source hangs.
    let gate = gate;
    gate.close(0);
    let list = |at| Command::new("ls").arg(mount.path(format!("folder{at}"))).stdout(Stdio::null()).spawn().unwrap();
    let mut lists = Cats((0..FOLDERS).map(list).collect());
    lists.wait_until_parked();
    gate.wait_for_read();
    answered_meanwhile(|| read_local(&mount), || gate.open());
    assert!(lists.0.iter_mut().all(|list| list.try_wait().unwrap().is_none()));
    gate.open();
    assert_eq!(lists.wait(), FOLDERS);
}

#[test]
fn hanging_computation_holds_up_no_other_file_system() {
    require_root!();
    let scene = Scene::new();
    const MODELS: usize = 75;
    let (dir, gate) = local_and_remote(&scene, MODELS);
    let mount = scene.mount(&dir, &[]);
    let gate = gate;
    for at in 0..MODELS {
        assert_eq!(mount.list(format!("remote{at}/tensors")), ["w"]);
    }
    gate.close(4096);
    let path = |at: usize, file: &str| mount.path(format!("remote{at}/{file}"));
    let paths = (0..MODELS).flat_map(|at| [path(at, "stats/w.json"), path(at, "plots/w.png")]);
    let mut cats = Cats::read(paths);
    cats.wait_until_parked();
    gate.wait_for_read();
    answered_meanwhile(|| read_local(&mount), || gate.open());
    assert!(cats.0.iter_mut().all(|cat| cat.try_wait().unwrap().is_none()));
    gate.open();
    assert_eq!(cats.wait(), 2 * MODELS);
}

#[test]
fn killed_readers_of_a_hanging_model_end() {
    require_root!();
    let scene = Scene::new();
    let (dir, gate) = local_and_remote(&scene, 40);
    let mount = scene.mount(&dir, &[]);
    // The gate is dropped before the mount, which cannot end while its source hangs.
    let gate = gate;
    gate.close(0);
    let mut cats = Cats::read((0..80).map(|at| mount.path(format!("remote{}/tensors/w", at % 40))));
    cats.wait_until_parked();
    gate.wait_for_read();
    cats.kill();
    // The source still hangs.
    assert_eq!(cats.wait(), 0);
    gate.open();
    assert_eq!(mount.read("remote1/tensors/w"), pattern(3 << 20));
}

#[test]
fn stopped_helper_delays_no_read() {
    require_fuse!();
    let scene = Scene::new();
    let source = sparse(&scene, 1, 1 << 40);
    let daemon = scene.sh(&format!("mkdir mnt && weightfs {} mnt", source.display()));
    assert_eq!((daemon.code, &daemon.err[..]), (0, ""));
    let helper = scene.unmounters()[0];
    let point = scene.path("mnt");
    let mut before = Cats::read_directly([point.join("stats/t0.json")]);
    before.wait_until_parked();
    kill(helper, Signal::SIGSTOP).unwrap();
    let state = || {
        let stat = std::fs::read_to_string(format!("/proc/{helper}/stat")).unwrap();
        stat.rsplit(") ").next().unwrap().chars().next()
    };
    wait_until("the helper is stopped", || state() == Some('T'));
    let mut after = Cats::read_directly((0..100).map(|_| point.join("plots/t0.png")));
    after.wait_until_parked();
    // These reads end while the helper is stopped, and while the other readers still wait.
    for file in ["stats/small.json", "plots/small.png", "tensors/small"] {
        assert!(!std::fs::read(point.join(file)).unwrap().is_empty());
    }
    let file = File::open(point.join("tensors/t0")).unwrap();
    (0..50).for_each(|at| assert_eq!(file.read_at(&mut [1; 4096], at << 30).unwrap(), 4096));
    before.kill();
    after.kill();
    assert_eq!(state(), Some('T'));
    // Readers that are killed meanwhile end when the helper continues.
    kill(helper, Signal::SIGCONT).unwrap();
    assert_eq!((before.wait(), after.wait()), (0, 0));
    drop(file);
    scene.ok("weightfs umount mnt");
    scene.wait_for_end();
}
