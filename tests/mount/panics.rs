//! A fault of the program itself: a panic in any thread ends it at once, is told where messages go, and leaves nothing
//! that a new mount could not replace.

use crate::support::{Scene, require_fuse, run_ok};
use nix::sys::signal::Signal;
use std::path::Path;

/// Threads that serve requests, and those that compute what takes long; by the beginning of their names.
const THREADS: [&str; 2] = ["fuser-", "worker"];

/// A command that runs with a clock which fails on demand. Rust's standard library panics when the kernel has no time
/// for it: so the program is the one that is installed, with nothing in it for the test.
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
fn a_panic_in_any_thread_ends_the_mount_and_the_log_says_so() {
    require_fuse!();
    for thread in THREADS {
        let scene = Scene::new();
        scene.sample();
        scene.mkdir("mnt");
        let mount = with_panics(&scene, "weightfs --log-file log sample.safetensors mnt");
        scene.ok(&mount);
        scene.ok("cat mnt/header.json mnt/stats/model.layers.2.w.json");
        scene.ok(&format!("printf '{thread}' | dd of=victim conv=notrunc status=none"));
        // What needs no clock is still served.
        scene.ok("cat mnt/index.json");
        let said = scene.sh("cat mnt/stats/model.layers.10.w.json");
        assert!(said.code == 1 && said.out.is_empty(), "{thread}: {said:?}");
        scene.wait_for_end();
        let log = scene.ok("cat log");
        assert_eq!(log.lines().count(), 1, "{thread}: {log}");
        for part in
            [" ERROR [", "weightfs ends because of a bug in it", &format!("thread {thread}"), "`weightfs umount`"]
        {
            assert!(log.contains(part), "{thread}: {part}: {log}");
        }
        // It is dead to see for everyone, and not an empty directory.
        let said = scene.sh("ls mnt");
        assert!(said.code != 0 && said.err.contains("Transport endpoint is not connected"), "{thread}: {said:?}");
        scene.ok("weightfs umount mnt && rm log");
        assert_eq!(scene.ok("ls mnt"), "");
    }
}

#[test]
fn in_the_foreground_a_panic_is_told_on_the_terminal_and_by_the_exit_status() {
    require_fuse!();
    let scene = Scene::new();
    scene.sample();
    scene.mkdir("mnt");
    let mount = with_panics(&scene, "exec weightfs -f sample.safetensors mnt 2>said");
    let mut child = scene.command("sh").args(["-c", &mount]).stdout(std::process::Stdio::null()).spawn().unwrap();
    crate::support::wait_until("it is mounted", || scene.path("mnt/tensors").exists());
    scene.ok(&format!("printf '{}' | dd of=victim conv=notrunc status=none", THREADS[1]));
    assert_ne!(scene.sh("cat mnt/stats/model.layers.10.w.json").code, 0);
    use std::os::unix::process::ExitStatusExt;
    assert_eq!(child.wait().unwrap().signal(), Some(Signal::SIGABRT as i32));
    let said = scene.ok("cat said");
    assert!(said.starts_with("weightfs: weightfs ends because of a bug in it") && said.lines().count() == 1, "{said}");
    // The next mount takes its place.
    let said = scene.sh("weightfs sample.safetensors mnt");
    assert_eq!(
        (said.code, &said.err[..]),
        (0, "weightfs: mnt: detached a dead mount, left by a daemon that was killed\n")
    );
    scene.ok("cat mnt/stats/model.layers.10.w.json && weightfs umount mnt");
}
