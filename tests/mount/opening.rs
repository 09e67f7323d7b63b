//! Opening the models of a directory: errors that pass, and sources that are slow to answer.

use crate::gate::{FILE, Gate};
use crate::support::{Mount, Scene, pattern, require_fuse, run_ok};
use nix::libc::{EIO, EMFILE};
use safetensors::Dtype;
use std::io;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

/// Writes a model of 100 bytes.
fn write(scene: &Scene, name: &str) -> PathBuf {
    scene.model(name, &[("w", Dtype::U8, &[100], pattern(100))], &[("key", "value")])
}

/// Errors of the ways to reach a model that has not been opened.
fn errors(mount: &Mount, model: &str) -> [Option<i32>; 3] {
    let code = |result: io::Result<()>| result.unwrap_err().raw_os_error();
    [
        code(std::fs::metadata(mount.path(model)).map(drop)),
        code(std::fs::read_dir(mount.path(model)).map(drop)),
        code(std::fs::read(mount.path(format!("{model}/tensors/w"))).map(drop)),
    ]
}

/// Asserts that both models are listed as directories, and that no error file is.
fn assert_listed(scene: &Scene, mount: &Mount) {
    let listed = scene.sh(&format!("ls -lp {} 2>/dev/null", mount.point.display()));
    let names: Vec<&str> = listed.out.lines().skip(1).filter_map(|line| line.split(' ').next_back()).collect();
    assert_eq!(names, ["first/", "second/"], "{listed:?}");
}

#[test]
fn disk_error_while_opening_a_model_gives_eio_and_is_not_cached() {
    require_fuse!();
    let scene = Scene::new();
    let bytes = std::fs::read(write(&scene, "model.safetensors")).unwrap();
    let gate = Gate::new(&scene.mkdir("source"), bytes);
    let dir = scene.mkdir("models");
    for name in ["first", "second"] {
        symlink(scene.path("source").join(FILE), dir.join(name).with_extension("safetensors")).unwrap();
    }
    let mount = scene.mount(&dir, &[]);
    gate.fail(true);
    for _ in 0..2 {
        assert_eq!(errors(&mount, "first"), [Some(EIO); 3]);
        assert!(!mount.path("first.error.txt").exists());
    }
    gate.fail(false);
    assert_listed(&scene, &mount);
    for name in ["first", "second"] {
        assert_eq!(mount.read(format!("{name}/tensors/w")), pattern(100));
    }
}

#[test]
fn lack_of_descriptors_while_opening_a_model_gives_emfile_and_is_not_cached() {
    require_fuse!();
    let scene = Scene::new();
    scene.mkdir("models");
    write(&scene, "models/first.safetensors");
    write(&scene, "models/second.safetensors");
    let mount = scene.mount(&scene.path("models"), &[]);
    let pid = mount.child.id();
    let limit = |soft: u32| run_ok("prlimit", ["--pid", &pid.to_string(), &format!("--nofile={soft}:")]);
    let most = run_ok("prlimit", ["--pid", &pid.to_string(), "--nofile", "--output=SOFT", "--noheadings"]);
    let lowest_free = (0..).find(|fd| !PathBuf::from(format!("/proc/{pid}/fd/{fd}")).is_symlink()).unwrap();
    limit(lowest_free);
    for _ in 0..2 {
        assert_eq!(errors(&mount, "first"), [Some(EMFILE); 3]);
        assert!(!mount.path("first.error.txt").exists());
    }
    assert_listed(&scene, &mount);
    limit(most.trim().parse().unwrap());
    for name in ["first", "second"] {
        assert_eq!(mount.read(format!("{name}/tensors/w")), pattern(100));
    }
    assert_listed(&scene, &mount);
}

#[test]
fn models_that_are_slow_to_open_do_not_block_other_models() {
    require_fuse!();
    const SLOW: usize = 16;
    let scene = Scene::new();
    let dir = scene.mkdir("models");
    let bytes = std::fs::read(write(&scene, "models/other.safetensors")).unwrap();
    let gate = Gate::new(&scene.mkdir("source"), bytes);
    for at in 0..SLOW {
        symlink(scene.path("source").join(FILE), dir.join(format!("slow{at}.safetensors"))).unwrap();
    }
    let mount = scene.mount(&dir, &[]);
    assert!(mount.path("other/tensors").exists());
    gate.close(0);
    thread::scope(|scope| {
        // More lookups than there are threads that serve, and a listing that needs all headers.
        let mount = &mount;
        let lookup = |at| scope.spawn(move || std::fs::metadata(mount.path(format!("slow{at}"))).is_ok());
        let lookups: Vec<_> = (0..SLOW).map(lookup).collect();
        let listing = scope.spawn(|| mount.list("").len());
        gate.wait_for_read();
        let (sender, receiver) = channel();
        scope.spawn(move || {
            let read = [mount.read("other/tensors/w"), mount.read("other/metadata/key")];
            sender.send((read, mount.list("other/tensors")))
        });
        let answered = receiver.recv_timeout(Duration::from_secs(60));
        let waiting = lookups.iter().filter(|lookup| !lookup.is_finished()).count();
        gate.open();
        let (read, listed) = answered.expect("the other model is served meanwhile");
        assert_eq!((read, listed), ([pattern(100), b"value".to_vec()], vec!["w".to_owned()]));
        assert_eq!(waiting, SLOW, "all lookups wait for the source");
        assert!(lookups.into_iter().all(|lookup| lookup.join().unwrap()));
        assert_eq!(listing.join().unwrap(), SLOW + 1);
    });
}
