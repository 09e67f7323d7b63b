//! The life cycle of the daemon: all ways to end a mount under load, several mounts at once, and scarce descriptors,
//! memory and disk space.

use crate::gate::{FILE, Gate};
use crate::readers::{End, Expected, Mapped, Readers, Way};
use crate::support::{Mount, Namespace, Said, Scene, pattern, require_fuse, require_root, status, wait_until};
use nix::errno::Errno;
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use nix::libc::SIGBUS;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use safetensors::Dtype;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

/// Whether `WEIGHTFS_SOAK` is set: some tests repeat more often then.
fn is_soak() -> bool {
    std::env::var_os("WEIGHTFS_SOAK").is_some()
}

/// A model with one tensor `w` of `len` bytes, and its file name in the metadata key `name`.
fn model(scene: &Scene, name: &str, len: usize) -> PathBuf {
    scene.model(name, &[("w", Dtype::BF16, &[len / 2048, 1024], pattern(len))], &[("name", name)])
}

/// Files of a mount. Their current contents are the expected ones.
fn files(scene: &Scene, point: &Path, names: &[&str]) -> Vec<Arc<Expected>> {
    let file = |(at, name): (usize, &&str)| {
        let bytes = std::fs::read(point.join(name)).unwrap();
        let copy = scene.path(format!("expected{at}"));
        std::fs::write(&copy, &bytes).unwrap();
        Arc::new(Expected { name: name.to_string(), len: bytes.len(), bytes, copy })
    };
    names.iter().enumerate().map(file).collect()
}

/// Files of the raw, the spliced and the computed views.
const FILES: [&str; 6] = [
    "tensors/w",
    "npy/w.npy",
    "safetensors/w.safetensors",
    "export/model-whole.safetensors",
    "SHA256SUMS",
    "stats/w.json",
];

/// A scene with a model that is mounted on `mnt` in the background, and the expected contents of [`FILES`].
fn mounted() -> (Scene, Vec<Arc<Expected>>) {
    let scene = Scene::new();
    model(&scene, "model.safetensors", MIB);
    scene.ok("mkdir mnt && weightfs --log-file log model.safetensors mnt");
    let files = files(&scene, &scene.path("mnt"), &FILES);
    (scene, files)
}

/// The effect on readers of an attempt to end a mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Effect {
    /// None: the mount is in use and stays.
    Stays,
    /// None, but the mount is detached, and the daemon ends after its last reader.
    Detaches,
    /// Reads from the daemon fail.
    Ends,
}

#[test]
fn readers_are_served_or_get_an_error_when_a_mount_ends() {
    require_root!();
    use Effect::{Detaches, Ends, Stays};
    let table = [
        ("weightfs umount mnt", 1, Stays),
        ("umount mnt", 32, Stays),
        ("fusermount3 -u mnt", 1, Stays),
        ("weightfs umount --lazy mnt", 0, Detaches),
        ("umount -l mnt", 0, Detaches),
        ("fusermount3 -uz mnt", 0, Detaches),
        ("kill -INT $DAEMON", 0, Ends),
        ("kill -TERM $DAEMON", 0, Ends),
        ("kill -HUP $DAEMON", 0, Ends),
        ("kill -KILL $DAEMON", 0, Ends),
    ];
    for (line, code, effect) in table {
        let (scene, files) = mounted();
        let mut readers = Readers::start(&scene.path("mnt"), &files);
        assert_eq!(scene.sh(line).code, code, "{line}");
        if effect == Ends {
            scene.wait_for_end();
        }
        readers.round();
        if effect != Ends {
            assert_eq!((scene.daemons().len(), scene.mounts().len()), (1, usize::from(effect == Stays)), "{line}");
        }
        for (name, way, end) in readers.stop() {
            let fine = match (effect, end) {
                (Stays | Detaches, end) => end == End::Right,
                (Ends, End::Right) => way != Way::Random,
                (Ends, End::Error(errno)) => [Errno::ENOTCONN, Errno::ECONNABORTED].contains(&errno),
                (Ends, End::Signal(signal)) => signal == SIGBUS,
            };
            assert!(fine, "{line}: {name} {way:?}: {end:?}");
        }
        if effect == Stays {
            scene.ok("weightfs umount mnt");
        }
        scene.wait_for_end();
        // The model can be mounted again, also over the dead mount of a killed daemon.
        let said = scene.sh("weightfs model.safetensors mnt");
        let left = "weightfs: mnt: detached a dead mount, left by a daemon that was killed\n";
        assert_eq!(said.err, if line.contains("KILL") { left } else { "" }, "{line}");
        assert_eq!((said.code, scene.mounts().len()), (0, 1), "{line}");
        assert!(std::fs::read(scene.path("mnt/tensors/w")).unwrap() == pattern(MIB), "{line}");
    }
}

#[test]
fn daemons_of_one_source_end_independently() {
    require_root!();
    let scene = Scene::new();
    let source = model(&scene, "model.safetensors", MIB);
    let other = scene.mount(&source, &[]);
    let files = files(&scene, &other.point, &FILES);
    let mut readers = Readers::start(&other.point, &files);
    let ends: [fn(&mut Mount); 3] = [
        |mount| kill(Pid::from_raw(mount.child.id() as i32), Signal::SIGTERM).unwrap(),
        |mount| kill(Pid::from_raw(mount.child.id() as i32), Signal::SIGKILL).unwrap(),
        |mount| nix::mount::umount2(&mount.point, nix::mount::MntFlags::MNT_DETACH).unwrap(),
    ];
    for end in ends {
        let mut mount = scene.mount(&source, &[]);
        let mut beside = Readers::start(&mount.point, &files);
        beside.round();
        end(&mut mount);
        // The readers of this mount may end with errors.
        drop(beside.stop());
        mount.child.wait().unwrap();
        readers.round();
    }
    for (name, way, end) in readers.stop() {
        assert_eq!(end, End::Right, "{name} {way:?}");
    }
    assert_eq!(other.log(), "");
}

#[test]
fn stacked_mounts_are_unmounted_independently() {
    require_root!();
    let scene = Scene::new();
    for name in ["low.safetensors", "high.safetensors"] {
        model(&scene, name, MIB);
    }
    scene.ok("mkdir mnt && weightfs --log-file log low.safetensors mnt");
    let low = scene.daemons()[0];
    let shown = || scene.ok("cat mnt/metadata/name && cmp mnt/tensors/w mnt/tree/w");
    for end in ["weightfs umount mnt", "umount mnt", "kill -TERM $HIGH", "kill -KILL $HIGH; weightfs umount mnt"] {
        scene.ok("weightfs high.safetensors mnt -o nonempty");
        assert_eq!((&shown()[..], scene.mounts().len()), ("high.safetensors", 2), "{end}");
        let high = scene.daemons().into_iter().find(|pid| *pid != low).unwrap();
        // The lower daemon does not unmount anything while another mount is on top.
        kill(low, Signal::SIGTERM).unwrap();
        wait_until("the log has the reason", || {
            let log = scene.ok("cat log");
            log.ends_with("mnt: something else is mounted over it; unmount that first\n")
        });
        assert_eq!((&shown()[..], scene.mounts().len()), ("high.safetensors", 2), "{end}");
        scene.ok(&end.replace("$HIGH", &high.to_string()));
        wait_until("the daemon has ended", || scene.daemons() == [low]);
        assert_eq!((&shown()[..], scene.mounts().len()), ("low.safetensors", 1), "{end}");
        scene.ok(": >log");
    }
    // A mount on a directory of another mount.
    scene.ok("weightfs high.safetensors mnt/tree -o nonempty && cmp mnt/tree/tensors/w mnt/tensors/w");
    scene.ok("weightfs umount mnt/tree && cmp mnt/tree/w mnt/tensors/w");
    wait_until("the daemon has ended", || scene.daemons() == [low]);
    scene.ok("weightfs umount mnt");
    scene.wait_for_end();
}

#[test]
fn many_mounts_leave_nothing_behind() {
    require_fuse!();
    let count = if is_soak() { 500 } else { 100 };
    let scene = Scene::new();
    model(&scene, "model.safetensors", 4096);
    scene.mkdir("mnt");
    let list = "find . -printf '%p %M %s %l\\n' | sort";
    let before = scene.ok(list);
    let cycle = "weightfs model.safetensors mnt && cmp mnt/tensors/w mnt/tree/w && weightfs umount mnt || exit 1";
    scene.ok(&format!("for i in $(seq {count}); do {cycle}; done"));
    scene.wait_for_end();
    assert_eq!((scene.ok(list), scene.mounts()), (before, vec![]));
}

#[test]
fn signal_during_the_start_leaves_nothing_or_a_mount_that_works() {
    require_root!();
    let starts = if is_soak() { 100 } else { 40 };
    let scene = Scene::new();
    model(&scene, "model.safetensors", 4096);
    scene.ok("mkdir dev home && chown 65534 home && chmod 755 . && chmod 644 model.safetensors");
    // Users may not be permitted to open /dev/fuse of this machine.
    let namespace = Namespace::new(
        &scene,
        "mount -t tmpfs dev dev && mknod -m 666 dev/null c 1 3 && mknod -m 666 dev/fuse c 10 229
        mount --rbind dev /dev",
    );
    let user = "setpriv --reuid=65534 --regid=65534 --clear-groups --";
    let signals = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP];
    // Under nohup(1), this process ignores SIGHUP, and its children do until env(1) has started in them: a signal
    // before that would be lost.
    let is_ignored = |pid: u32| {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
        let ignored = u64::from_str_radix(ignored.trim(), 16).unwrap();
        signals.iter().any(|signal| ignored >> (*signal as u32 - 1) & 1 == 1)
    };
    let mut failures = Vec::new();
    for (user, option) in [("env", "-f"), ("env", "-v"), (user, "-f"), (user, "-v")] {
        // Without MOUNTPOINT, a directory is created.
        let mut command = namespace.command(&format!("cd home && exec {user} weightfs {option} ../model.safetensors"));
        command.stdout(Stdio::piped()).process_group(0);
        // Signals are spread over the time of a start, which depends on the machine.
        let mut usual = Duration::ZERO;
        for at in 0..starts {
            let start = Instant::now();
            let said = scene.path("said");
            let mut child = command.stderr(std::fs::File::create(&said).unwrap()).spawn().unwrap();
            wait_until("the command takes signals", || !is_ignored(child.id()));
            if at == 0 {
                let mut out = BufReader::new(child.stdout.take().unwrap());
                // In the background, this is the end of the command.
                out.read_line(&mut String::new()).unwrap();
                usual = start.elapsed();
            } else {
                std::thread::sleep(usual * 3 / 2 * at / starts);
            }
            let signal = signals[at as usize % signals.len()];
            // Ctrl-C signals the group, and kill(1) only the process.
            let pid = Pid::from_raw(child.id() as i32);
            if at % 2 == 0 { killpg(pid, signal) } else { kill(pid, signal) }.unwrap();
            let signalled = Instant::now();
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                if signalled.elapsed() > Duration::from_secs(60) {
                    // The mount of this process must not outlive the test.
                    let said = std::fs::read_to_string(&said);
                    let _ = child.kill().and_then(|()| child.wait());
                    panic!("{user} {option} does not end after {signal} {at}: {said:?}");
                }
                std::thread::sleep(Duration::from_millis(1));
            };
            let is_served = status.success() && option != "-f";
            let ends_well = status.success() || status.signal() == Some(signal as i32);
            let mount = namespace.sh(&format!("{user} ls home/model/tensors"));
            let is_mounted = namespace.mounts().iter().any(|line| line.contains("fuse.weightfs"));
            if !ends_well || [mount.out == "w\n", is_mounted] != [is_served; 2] {
                failures.push(format!("{user} {option} {signal} {at}: {status} {mount:?} {is_mounted}"));
            }
            // A dead mount fails too.
            let _ = namespace.sh("weightfs umount -l home/model; umount -l home/model");
            wait_until("every process has ended", || {
                scene.daemons().is_empty() && scene.unmounters().is_empty() && namespace.ok("ls home").is_empty()
            });
        }
    }
    assert!(failures.is_empty(), "{} of {}: {failures:#?}", failures.len(), 4 * starts);
}

#[test]
fn signal_ends_a_start_that_waits_for_a_slow_source() {
    require_root!();
    let scene = Scene::new();
    let source = model(&scene, FILE, MIB);
    let gate = Gate::new(&scene.mkdir("source"), std::fs::read(&source).unwrap());
    scene.mkdir("mnt");
    for option in ["--foreground", "--verbose"] {
        gate.close(0);
        let mut command = scene.command("weightfs");
        let mut child = command.args([option, &format!("source/{FILE}"), "mnt"]).process_group(0).spawn().unwrap();
        gate.wait_for_read();
        killpg(Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
        assert_eq!(child.wait().unwrap().signal(), Some(Signal::SIGINT as i32), "{option}");
        gate.open();
        scene.wait_for_end();
        assert_eq!(scene.ok(&format!("grep {} /proc/mounts | grep weightfs || true", scene.path("mnt").display())), "");
    }
}

#[test]
fn daemon_keeps_no_lock_or_pipe_of_the_caller() {
    require_fuse!();
    let scene = Scene::new();
    model(&scene, "model.safetensors", 4096);
    scene.ok("mkdir mnt && : >lock");
    // `cat` ends when every process has closed the pipe, and the lock is released with the last descriptor.
    let line = "(flock 9; weightfs model.safetensors mnt 7>&1 >said; flock -n lock true && echo taken) 9>lock | cat";
    assert_eq!(scene.ok(&format!("timeout 600 sh -c '{line}'")), "");
    assert_eq!(scene.ok("flock -n lock echo free && cmp mnt/tensors/w mnt/tree/w"), "free\n");
    for pid in scene.processes() {
        let inherited = scene.ok(&format!("ls -l /proc/{pid}/fd | grep lock || true"));
        assert_eq!(inherited, "");
    }
    scene.ok("weightfs umount mnt");
    scene.wait_for_end();
}

#[test]
fn source_may_be_a_descriptor_of_the_caller() {
    require_fuse!();
    let scene = Scene::new();
    scene.ok("mkdir mnt many");
    model(&scene, "many/model.safetensors", 4096);
    model(&scene, "many/other.safetensors", 4096);
    let file = "many/model.safetensors";
    for (opened, source, shown) in [
        (file, "/dev/fd/3", "tensors/w"),
        (file, "/proc/self/fd/3", "tensors/w"),
        ("many", "/dev/fd/3", "other/tensors/w"),
        ("many", "/dev/fd/3/model.safetensors", "tensors/w"),
    ] {
        // The lock on the source itself is released, too.
        scene.ok(&format!("(flock 3; weightfs {source} mnt 4>&1 >said) 3<{opened}"));
        assert_eq!(scene.ok(&format!("cat mnt/{shown} | wc -c; flock -n {opened} echo free")), "4096\nfree\n");
        scene.ok("weightfs umount mnt");
        scene.wait_for_end();
    }
}

#[test]
fn mount_ends_when_the_watched_pipe_is_closed() {
    require_fuse!();
    let scene = Scene::new();
    model(&scene, "model.safetensors", MIB);
    for watched in ["0", "9"] {
        scene.mkdir("mnt");
        let (reader, writer) = std::io::pipe().unwrap();
        let line = format!("weightfs --while-open {watched} --rmdir model.safetensors mnt 9<&0");
        Said::of(scene.command("sh").args(["-c", &line]).stdin(reader)).ok(&line);
        let mut held = File::open(scene.path("mnt/tensors/w")).unwrap();
        assert_eq!(scene.mounts().len(), 1);
        drop(writer);
        wait_until("the mount is detached", || scene.mounts().is_empty());
        // The daemon serves a file that is still open, and ends after that.
        assert_eq!(scene.daemons().len(), 1);
        let mut bytes = Vec::new();
        held.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes, pattern(MIB));
        drop(held);
        scene.wait_for_end();
        assert!(!scene.path("mnt").exists(), "--rmdir");
    }
    scene.mkdir("mnt");
    for (line, expected) in [
        ("--while-open 77 model.safetensors mnt", "weightfs: --while-open 77: Bad file descriptor\n"),
        ("--rmdir absent mnt", "weightfs: absent: No such file or directory\n"),
    ] {
        let said = scene.sh(&format!("weightfs {line}"));
        assert_eq!((said.code, &*said.err), (1, expected));
    }
    assert_eq!(scene.mounts(), [""; 0]);
}

#[test]
fn readers_get_an_error_from_a_killed_daemon_that_cannot_end() {
    require_root!();
    // With the file system that has a file for each FUSE connection, even a detached mount can be aborted.
    for (setup, detach) in [("true", "true"), ("mount -t fusectl none /sys/fs/fuse/connections", "umount -l mnt")] {
        let scene = Scene::new();
        let source = model(&scene, FILE, MIB);
        let gate = Gate::new(&scene.mkdir("source"), std::fs::read(&source).unwrap());
        scene.mkdir("mnt");
        let unmounted = "umount /sys/fs/fuse/connections 2>/dev/null || true";
        let namespace = Namespace::new(&scene, &format!("{unmounted}; {setup}"));
        namespace.ok(&format!("weightfs --log-file log source/{FILE} mnt"));
        let daemon = scene.daemons()[0];
        gate.hide_attributes();
        let mut command = namespace.command("exec cat mnt/tensors/w");
        let mut reader = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        gate.wait_for_getattr();
        namespace.ok(detach);
        kill(daemon, Signal::SIGKILL).unwrap();
        let mut code = None;
        wait_until("the reader has ended", || {
            code = reader.try_wait().unwrap();
            code.is_some()
        });
        assert_eq!(code.unwrap().code(), Some(1), "{setup}");
        wait_until("the helper process has ended", || scene.unmounters().is_empty());
        // A thread of the daemon still waits for the source.
        assert!(Path::new(&format!("/proc/{daemon}")).exists(), "{setup}");
        if detach == "true" {
            assert!(namespace.sh("ls mnt").err.contains("Transport endpoint is not connected"));
            namespace.ok("weightfs umount mnt");
        }
        gate.die();
        wait_until("the daemon has ended", || !Path::new(&format!("/proc/{daemon}")).exists());
    }
}

#[test]
fn readers_get_an_error_when_a_mount_with_a_hanging_source_is_ended() {
    require_root!();
    let scene = Scene::new();
    let source = model(&scene, FILE, MIB);
    let gate = Gate::new(&scene.mkdir("source"), std::fs::read(&source).unwrap());
    scene.mkdir("mnt");
    // As in most containers: without the files that abort connections.
    let namespace = Namespace::new(&scene, "umount /sys/fs/fuse/connections 2>/dev/null || true");
    namespace.ok(&format!("weightfs --log-file log source/{FILE} mnt"));
    let daemon = scene.daemons()[0];
    gate.hide_attributes();
    let mut reader =
        namespace.command("exec cat mnt/tensors/w").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    gate.wait_for_getattr();
    kill(daemon, Signal::SIGTERM).unwrap();
    let mut code = None;
    wait_until("the reader has ended", || {
        code = reader.try_wait().unwrap();
        code.is_some()
    });
    assert_eq!(code.unwrap().code(), Some(1));
    assert_eq!(namespace.mounts().iter().filter(|line| line.contains("fuse.weightfs")).count(), 0);
    assert!(Path::new(&format!("/proc/{daemon}")).exists(), "a thread of the daemon still waits for the source");
    gate.die();
    wait_until("the daemon has ended", || !Path::new(&format!("/proc/{daemon}")).exists());
}

/// The number of descriptors and maps of a process, and its anonymous memory in KiB.
fn held(pid: Pid) -> [usize; 3] {
    let proc = |name: &str| format!("/proc/{pid}/{name}");
    let descriptors = std::fs::read_dir(proc("fd")).unwrap().count();
    let maps = std::fs::read_to_string(proc("maps")).unwrap().lines().count();
    [descriptors, maps, status(pid, "RssAnon") as usize]
}

#[test]
fn five_hundred_models_are_served_with_64_descriptors() {
    require_fuse!();
    const MODELS: usize = 500;
    let scene = Scene::new();
    let (many, point) = (scene.mkdir("many"), scene.mkdir("mnt"));
    let header = br#"{"w":{"dtype":"U16","shape":[4],"data_offsets":[0,8]}}"#;
    let bytes = |at: usize| (at as u64 * 0x9e37_79b9).to_le_bytes();
    for at in 0..MODELS {
        let file = [&(header.len() as u64).to_le_bytes()[..], header, &bytes(at)].concat();
        std::fs::write(many.join(format!("{at}.safetensors")), file).unwrap();
    }
    scene.ok("ulimit -n 64; weightfs --log-file log many mnt");
    let daemon = scene.daemons()[0];
    let pass = |round: usize| {
        for at in (0..MODELS).map(|at| (at * 7 + round) % MODELS) {
            let read = |name: &str| std::fs::read(point.join(at.to_string()).join(name)).unwrap();
            assert_eq!(read("tensors/w"), bytes(at));
            assert_eq!(read("header.json"), header);
            assert!(read("stats/w.json").starts_with(b"{"));
            // Drops the cached pages, so that the next pass reaches the daemon.
            for name in ["tensors/w", "header.json", "stats/w.json"] {
                let file = File::open(point.join(at.to_string()).join(name)).unwrap();
                posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
            }
        }
        held(daemon)
    };
    let held: Vec<[usize; 3]> = (0..6).map(pass).collect();
    let [_, first, .., last] = held[..] else { unreachable!() };
    // Allows for one more thread, but not for growth with the 2,000 models read in between.
    let more = [4, 20, 1024];
    assert!(last[0] < 64 && (0..3).all(|at| last[at] <= first[at] + more[at]), "{first:?} {last:?}");
    scene.ok("weightfs umount mnt");
    scene.wait_for_end();
    assert_eq!(scene.ok("cat log"), "");
}

#[test]
fn full_log_disk_does_not_stop_the_mount() {
    require_root!();
    for log in ["logs/log", "/dev/full"] {
        let scene = Scene::new();
        model(&scene, "model.safetensors", MIB);
        scene.ok("mkdir mnt logs && mount -t tmpfs -o size=64k none logs && : >logs/log");
        scene.ok("dd if=/dev/zero of=logs/all status=none 2>/dev/null || true");
        assert!(scene.sh("dd if=/dev/zero of=logs/more count=1").err.contains("No space left on device"));
        assert_eq!(scene.sh(&format!("weightfs -v model.safetensors mnt --log-file {log} 2>&1")).code, 0);
        scene.ok("touch model.safetensors");
        let said = scene.sh("cat mnt/header.json; cat mnt/tensors/*; cat mnt/npy/*; cat mnt/metadata/name");
        assert_eq!(
            (&said.out[..], said.err.matches("Stale file handle").count()),
            ("model.safetensors", 3),
            "{said:?}"
        );
        assert_eq!(scene.ok("cat logs/log"), "");
        // Logging continues when there is space again.
        scene.ok("rm logs/all && weightfs umount mnt");
        scene.wait_for_end();
        if log != "/dev/full" {
            let text = scene.ok("cat logs/log");
            assert!(text.ends_with("/mnt: unmounted\n") && text.lines().count() == 1, "{text}");
        }
    }
}

#[test]
fn signal_does_not_unmount_another_mount() {
    require_root!();
    assert!(
        (0..50).any(|_| signal_after_device_number_is_reused()),
        "no signal was handled after the number was reused"
    );
}

/// Signals a daemon whose mount is gone and whose device number another mount of this test has. Returns false if no
/// mount of this test gets the number, or if the daemon ends before it handles the signal.
fn signal_after_device_number_is_reused() -> bool {
    let scene = Scene::new();
    let source = model(&scene, FILE, MIB);
    let mut first = scene.mount(&source, &["-v"]);
    let number = |point: &Path| {
        let list = std::fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = list.lines().find(|line| line.split(' ').nth(4) == point.to_str()).unwrap();
        line.split(' ').nth(2).unwrap().to_owned()
    };
    let of_first = number(&first.point);
    // While it is stopped, the daemon does not notice that its mount is gone.
    let pid = Pid::from_raw(first.child.id() as i32);
    kill(pid, Signal::SIGSTOP).unwrap();
    wait_until("the daemon is stopped", || {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap().contains(") T ")
    });
    // A process that another test has just forked holds our descriptors until it calls exec.
    wait_until("the mount is not in use", || nix::mount::umount(&first.point).is_ok());
    // The kernel gives a new mount the lowest free device number, but another process may get it first.
    let mut others: Vec<Mount> = Vec::new();
    while others.last().is_none_or(|other| number(&other.point) != of_first) {
        if others.len() == 20 {
            return false;
        }
        others.push(scene.mount(&source, &[]));
    }
    kill(pid, Signal::SIGTERM).unwrap();
    kill(pid, Signal::SIGCONT).unwrap();
    first.child.wait().unwrap();
    let other = others.pop().unwrap();
    assert!(other.path("tensors/w").exists(), "the mount of another daemon is gone: {}", first.log());
    first.log().contains("unmounting on SIGTERM")
}

/// A control group that limits the memory of its processes, page cache included. It is removed on drop.
struct Cgroup {
    dir: PathBuf,
    unified: bool,
}

impl Cgroup {
    fn new(limit: usize) -> Self {
        let name = format!("weightfs-test-{}", std::process::id());
        let unified = std::fs::read_to_string("/sys/fs/cgroup/cgroup.subtree_control");
        let unified = unified.is_ok_and(|controllers| controllers.contains("memory"));
        let root = if unified { "/sys/fs/cgroup" } else { "/sys/fs/cgroup/memory" };
        let cgroup = Self { dir: Path::new(root).join(name), unified };
        std::fs::create_dir(&cgroup.dir).unwrap();
        cgroup.write(if unified { "memory.max" } else { "memory.limit_in_bytes" }, limit);
        cgroup
    }

    fn write(&self, name: &str, value: impl ToString) {
        std::fs::write(self.dir.join(name), value.to_string()).unwrap();
    }

    fn add(&self, pid: u32) {
        self.write("cgroup.procs", pid);
    }

    /// How often the limit was reached, and how many processes were killed because of it.
    fn reached_and_killed(&self) -> (u64, u64) {
        let read = |name: &str| std::fs::read_to_string(self.dir.join(name)).unwrap();
        let field = |text: &str, name: &str| {
            let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok());
            value.unwrap_or_else(|| panic!("{name}: {text}"))
        };
        match self.unified {
            true => (field(&read("memory.events"), "max"), field(&read("memory.events"), "oom_kill")),
            false => (read("memory.failcnt").trim().parse().unwrap(), field(&read("memory.oom_control"), "oom_kill")),
        }
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Its processes are killed, but may take a moment to end.
        for _ in 0..1000 {
            if std::fs::remove_dir(&self.dir).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn mapped_model_larger_than_memory_is_read_without_oom_kill() {
    require_root!();
    const LEN: usize = 128 * MIB;
    let cgroup = Cgroup::new(48 * MIB);
    let scene = Scene::new();
    let tensor = ("w", Dtype::F32, &[LEN / 4096, 1024][..], pattern(LEN));
    let source = scene.model("model.safetensors", &[tensor], &[]);
    let point = scene.mkdir("mnt");
    // The expected bytes are on the disk too. None of these files is cached, so the control group is charged for the
    // pages that its processes read.
    let views = [("tensors/w", "raw"), ("tree/w", "raw"), ("npy/w.npy", "npy")];
    let mount = scene.mount(&source, &[]);
    for (name, copy) in &views[1..] {
        std::fs::copy(mount.path(name), scene.path(copy)).unwrap();
    }
    drop(mount);
    scene.ok("sync raw npy model.safetensors");
    scene.ok("for file in raw npy model.safetensors; do dd if=$file iflag=nocache count=0 status=none; done");
    scene.ok(&format!(
        "echo $$ >{}/cgroup.procs && exec weightfs --log-file log model.safetensors mnt",
        cgroup.dir.display()
    ));
    let files = views.map(|(name, copy)| {
        let (copy, bytes) = (scene.path(copy), Vec::new());
        let len = std::fs::metadata(&copy).unwrap().len() as usize;
        Arc::new(Expected { name: name.to_owned(), bytes, copy, len })
    });
    let mut mapped = Mapped::new();
    cgroup.add(mapped.child.id());
    mapped.start(&point, &files);
    mapped.round();
    assert_eq!(mapped.stop().into_iter().map(|ended| ended.2).collect::<Vec<_>>(), [End::Right; 3]);
    assert_eq!(scene.ok("cat log"), "");
    let (reached, killed) = cgroup.reached_and_killed();
    assert!(reached > 0 && killed == 0, "{reached} {killed}");
    scene.ok("weightfs umount mnt");
    scene.wait_for_end();
}
