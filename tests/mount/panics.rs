//! Panics: a panic in any thread ends the program at once, is reported where messages go, and leaves a dead mount that
//! a new mount can replace.

use crate::support::{Scene, require_fuse, run_ok};
use nix::sys::signal::Signal;
use std::path::Path;

/// Prefixes of thread names: threads that serve requests, and worker threads that run long computations.
const THREADS: [&str; 2] = ["fuser-", "worker"];

/// Makes a command run with a clock that fails on demand, so that Rust's standard library panics. The program needs no
/// code for this test.
fn with_panics(scene: &Scene, command: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/panic.c");
    let library = scene.path("panic.so");
    if !library.exists() {
        run_ok("cc", ["-shared".as_ref(), "-fPIC".as_ref(), "-o".as_ref(), library.as_os_str(), source.as_os_str()]);
    }
    std::fs::write(scene.path("victim"), [0; 4096]).unwrap();
    format!("export LD_PRELOAD=$PWD/panic.so WEIGHTFS_TEST_PANIC=$PWD/victim RUST_BACKTRACE=0; {command}")
}

#[test]
fn panic_ends_the_mount_and_is_logged() {
    require_fuse!();
    for thread in THREADS {
        let scene = Scene::new();
        scene.sample();
        scene.mkdir("mnt");
        let mount = with_panics(&scene, "weightfs --log-file log sample.safetensors mnt");
        scene.ok(&mount);
        scene.ok("cat mnt/header.json mnt/stats/model.layers.2.w.json");
        scene.ok(&format!("printf '{thread}' | dd of=victim conv=notrunc status=none"));
        // Requests that need no clock are still served.
        scene.ok("cat mnt/index.json");
        let said = scene.sh("cat mnt/stats/model.layers.10.w.json");
        assert!(said.code == 1 && said.out.is_empty(), "{thread}: {said:?}");
        scene.wait_for_end();
        let log = scene.ok("cat log");
        assert_eq!(log.lines().count(), 1, "{thread}: {log}");
        for part in [" ERROR [", "stopped by a bug in weightfs", &format!("thread {thread}"), "`weightfs umount`"] {
            assert!(log.contains(part), "{thread}: {part}: {log}");
        }
        // The mount point is a dead mount, not an empty directory.
        let said = scene.sh("ls mnt");
        assert!(said.code != 0 && said.err.contains("Transport endpoint is not connected"), "{thread}: {said:?}");
        scene.ok("weightfs umount mnt && rm log");
        assert_eq!(scene.ok("ls mnt"), "");
    }
}

#[test]
fn foreground_panic_is_reported_on_stderr_and_aborts() {
    require_fuse!();
    let scene = Scene::new();
    scene.sample();
    scene.mkdir("mnt");
    let mount = with_panics(&scene, "exec weightfs -f sample.safetensors mnt 2>said");
    let mut child = scene.command("sh").args(["-c", &mount]).stdout(std::process::Stdio::null()).spawn().unwrap();
    crate::support::wait_until("the model is mounted", || scene.path("mnt/tensors").exists());
    scene.ok(&format!("printf '{}' | dd of=victim conv=notrunc status=none", THREADS[1]));
    assert_ne!(scene.sh("cat mnt/stats/model.layers.10.w.json").code, 0);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::SIGABRT as i32));
    let said = scene.ok("cat said");
    assert!(said.starts_with("weightfs: stopped by a bug in weightfs") && said.lines().count() == 1, "{said}");
    // The next mount replaces the dead one.
    let said = scene.sh("weightfs sample.safetensors mnt");
    assert_eq!(
        (said.code, &said.err[..]),
        (0, "weightfs: mnt: detached a dead mount, left by a daemon that was killed\n")
    );
    scene.ok("cat mnt/stats/model.layers.10.w.json && weightfs umount mnt");
}
