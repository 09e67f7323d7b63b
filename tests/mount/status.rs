//! What `weightfs status` says of mounts, and how it treats mounts whose daemon is dead, stopped, or another program.

use crate::support::{Mount, Namespace, Scene, detach, require_root};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A namespace without the mounts of other tests. A daemon there that does not answer would delay every command.
fn alone(scene: &Scene) -> Namespace<'_> {
    Namespace::new(scene, "")
}

/// What `weightfs status --json` says of the mount at a path.
fn status(alone: &Namespace, point: &Path) -> Value {
    let list: Value = serde_json::from_str(&alone.ok("weightfs status --json")).unwrap();
    let mounts = list["mounts"].as_array().unwrap();
    mounts.iter().find(|shown| shown["mountpoint"] == point.to_str().unwrap()).unwrap().clone()
}

/// Reads a file past the page cache of the mount, from which the kernel may drop pages at any time. Returns its size.
fn read_direct(mount: &Mount, name: &str) -> u64 {
    let mut file = OpenOptions::new().read(true).custom_flags(nix::libc::O_DIRECT).open(mount.path(name)).unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap() as u64
}

#[test]
fn served_bytes_are_what_readers_received() {
    require_root!();
    let scene = Scene::new();
    let mount = scene.mount(&scene.sample(), &[]);
    let alone = alone(&scene);
    let served = || status(&alone, &mount.point)["served_bytes"].as_u64().unwrap();
    assert_eq!(served(), 0);
    let tensor = read_direct(&mount, "tensors/model.embed.weight");
    assert_eq!((tensor, served()), (3 << 20, 3 << 20));
    let header = read_direct(&mount, "header.json");
    assert_eq!(served(), tensor + header);
    // Reads by several threads at the same time.
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| read_direct(&mount, "npy/model.embed.weight.npy"));
        }
    });
    let npy = mount.path("npy/model.embed.weight.npy").metadata().unwrap().len();
    assert_eq!(served(), tensor + header + 4 * npy);
    // The first of these reads fills the page cache.
    mount.read("tensors/model.embed.weight");
    assert!(served() >= 2 * tensor + header + 4 * npy);

    let shown = status(&alone, &mount.point);
    assert_eq!((&shown["daemon"], &shown["remote"]), (&"alive".into(), &Value::Null));
    let line = alone.ok("weightfs status");
    assert!(line.lines().any(|line| line.contains(mount.point.to_str().unwrap()) && line.contains(" MB")), "{line}");
    // Programs that copy attributes do not copy the figures.
    let listed: Vec<_> = xattr::list(&mount.point).unwrap().collect();
    assert!(listed.is_empty(), "{listed:?}");
}

#[test]
fn a_dead_mount_is_named_with_the_remedy() {
    require_root!();
    let scene = Scene::new();
    let mut mount = scene.mount(&scene.sample(), &[]);
    mount.child.kill().unwrap();
    mount.child.wait().unwrap();
    let alone = alone(&scene);
    let shown = status(&alone, &mount.point);
    assert_eq!((&shown["daemon"], &shown["served_bytes"]), (&"dead".into(), &Value::Null));
    let point = mount.point.to_str().unwrap();
    let remedy = format!("{point}: dead: its daemon has ended (weightfs umount {point})");
    let text = alone.ok("weightfs status");
    assert!(text.contains(&remedy), "{text}");
    alone.ok(&format!("weightfs umount {point}"));
    assert!(!alone.ok("weightfs status").contains(point));
}

#[test]
fn a_stopped_daemon_does_not_stop_status() {
    require_root!();
    let scene = Scene::new();
    let mount = scene.mount(&scene.sample(), &[]);
    let alone = alone(&scene);
    let daemon = Pid::from_raw(mount.child.id().try_into().unwrap());
    kill(daemon, Signal::SIGSTOP).unwrap();
    let stopped = status(&alone, &mount.point);
    let doctor = alone.sh("weightfs doctor");
    kill(daemon, Signal::SIGCONT).unwrap();
    assert_eq!((&stopped["daemon"], &stopped["served_bytes"]), (&"silent".into(), &Value::Null));
    let finding = format!("{}: its daemon does not answer", mount.point.display());
    assert!(doctor.out.contains(&finding), "{doctor:?}");
    assert_eq!(status(&alone, &mount.point)["daemon"], "alive");
}

/// A mount of another program, which says that it is weightfs. It receives requests and never replies, so a process
/// that waits for it cannot even be killed.
struct Hung {
    point: PathBuf,
    device: File,
}

impl Hung {
    fn new(point: PathBuf, fstype: &str, source: &str) -> Self {
        std::fs::create_dir(&point).unwrap();
        let mut device = OpenOptions::new().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        mount(Some(source), &point, Some(fstype), MsFlags::empty(), Some(options.as_str())).unwrap();
        let hung = Self { point, device: device.try_clone().unwrap() };
        // The reply to FUSE_INIT, from linux/fuse.h: size, errno and number of the request, version 7.31, and zeros.
        let mut request = vec![0; 64 << 10];
        assert!(device.read(&mut request).unwrap() > 16);
        let mut reply = [80_u32.to_le_bytes(), [0; 4]].concat();
        reply.extend_from_slice(&request[8..16]);
        reply.extend([7_u32.to_le_bytes(), 31_u32.to_le_bytes()].concat());
        reply.resize(80, 0);
        device.write_all(&reply).unwrap();
        hung
    }

    /// Receives requests in a thread until the mount is gone, and counts them.
    fn receive(&self, count: &'static AtomicUsize) {
        let mut device = self.device.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut request = vec![0; 64 << 10];
            while device.read(&mut request).is_ok() {
                count.fetch_add(1, SeqCst);
            }
        });
        // A command that waits for the mount makes the test fail, and does not stop it.
        let point = self.point.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(60));
            let _ = umount2(&point, MntFlags::MNT_FORCE);
        });
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        // This ends the connection, and with it all requests.
        let _ = umount2(&self.point, MntFlags::MNT_FORCE);
        detach(&self.point);
    }
}

#[test]
fn mounts_of_other_programs_neither_stop_status_nor_control_the_terminal() {
    require_root!();
    static PRETENDER: AtomicUsize = AtomicUsize::new(0);
    static FOREIGN: AtomicUsize = AtomicUsize::new(0);
    let scene = Scene::new();
    // A line break, a colour, the reversal of the text direction, and a space without width.
    let name = "evil\n\u{1b}[31mred\u{202e}txt\u{200b} end";
    let pretender = Hung::new(scene.path(name), "fuse.weightfs", name);
    pretender.receive(&PRETENDER);
    let foreign = Hung::new(scene.path("foreign"), "fuse.other", "other");
    foreign.receive(&FOREIGN);
    let other = scene.mount(&scene.sample(), &[]);
    let alone = alone(&scene);
    // All at the same time: each waits for five seconds.
    let start = Instant::now();
    alone.ok("{ timeout 60 weightfs status >1 2>&1 & timeout 60 weightfs status | cat >2 &
        timeout 60 weightfs doctor >3 2>&1 & timeout 60 weightfs status --json >4 && wait; }");
    assert!(start.elapsed() < Duration::from_secs(50));
    let said = |number: &str| std::fs::read_to_string(scene.path(number)).unwrap();
    for number in ["1", "2", "3", "4"] {
        let is_bad = |char: char| (char.is_control() && char != '\n') || char == '\u{202e}';
        assert!(said(number).contains("evil") && !said(number).contains(is_bad), "{number}: {:?}", said(number));
    }
    let list: Value = serde_json::from_str(&said("4")).unwrap();
    let shown = |point: &Path| {
        let mut mounts = list["mounts"].as_array().unwrap().iter();
        mounts.find(|shown| shown["mountpoint"] == point.to_str().unwrap()).unwrap()
    };
    let silent = shown(&pretender.point);
    assert_eq!((&silent["daemon"], &silent["source"]), (&"silent".into(), &name.into()));
    assert_eq!(shown(&other.point)["daemon"], "alive");
    // The mount was asked, so processes wait for it now that cannot be killed. Mounts of other types are not asked.
    assert!(PRETENDER.load(SeqCst) > 0);
    assert_eq!(FOREIGN.load(SeqCst), 0);
}

#[test]
fn a_covered_mount_is_not_asked() {
    require_root!();
    let scene = Scene::new();
    let mount = scene.mount(&scene.sample(), &[]);
    let inside = Namespace::new(&scene, &format!("mount -t tmpfs none {}", mount.point.display()));
    let list: Value = serde_json::from_str(&inside.ok("weightfs status --json")).unwrap();
    let shown =
        list["mounts"].as_array().unwrap().iter().find(|shown| shown["mountpoint"] == mount.point.to_str().unwrap());
    assert_eq!((&shown.unwrap()["daemon"], &shown.unwrap()["served_bytes"]), (&"covered".into(), &Value::Null));
    assert!(inside.ok("weightfs status").contains(&format!("{}: another mount covers it", mount.point.display())));
}

#[test]
fn the_table_fits_the_terminal() {
    require_root!();
    let scene = Scene::new();
    scene.sample();
    // These paths have the same length wherever the temporary directory is.
    let long = format!("/mnt/{}", "a-directory-with-a-long-name/".repeat(4));
    let setup = format!("mount -t tmpfs none /mnt; mkdir -p {long} /mnt/point; cp sample.safetensors {long}");
    let inside = Namespace::new(&scene, &setup);
    inside.ok(&format!("weightfs {long}sample.safetensors /mnt/point"));
    for columns in [80, 120, 300] {
        let line =
            format!("NO_COLOR=1 script -qec 'stty rows 25 cols {columns}; weightfs status' /dev/null </dev/null");
        let shown = inside.ok(&line).replace('\r', "");
        let table: Vec<&str> = shown.lines().take_while(|line| !line.is_empty()).collect();
        let row = table.iter().find(|line| line.starts_with("/mnt/point")).unwrap();
        assert_eq!(row.contains('…'), columns < 300, "{shown}");
        let widest = table.iter().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= columns, "{columns}: {shown}");
    }
    inside.ok("weightfs umount /mnt/point");
    scene.wait_for_end();
}
