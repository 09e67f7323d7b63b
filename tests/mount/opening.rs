//! Opening the models of a directory: errors that pass, and sources that are slow to answer.

use crate::gate::{FILE, Gate};
use crate::support::{Mount, Scene, pattern, require_fuse, require_root, run_ok};
use nix::libc::{EIO, EMFILE, O_DIRECT};
use safetensors::Dtype;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, symlink};
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
    require_root!();
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
fn disk_error_at_the_first_listing_is_not_cached() {
    require_root!();
    let scene = Scene::new();
    let bytes = std::fs::read(write(&scene, "model.safetensors")).unwrap();
    let gate = Gate::new(&scene.mkdir("source"), bytes);
    let dir = scene.mkdir("models");
    for name in ["first", "second"] {
        symlink(scene.path("source").join(FILE), dir.join(name).with_extension("safetensors")).unwrap();
    }
    let mount = scene.mount(&dir, &[]);
    gate.fail(true);
    // Names are listed; `ls -l` also asks for attributes.
    let listed = scene.sh(&format!("ls {0}; ls -l {0}", mount.point.display()));
    assert!(listed.out.starts_with("first\nsecond\n") && !listed.out.contains("error.txt"), "{listed:?}");
    assert_eq!(listed.err.matches("Input/output error").count(), 2, "{listed:?}");
    gate.fail(false);
    assert_listed(&scene, &mount);
    for name in ["first", "second"] {
        assert_eq!(mount.read(format!("{name}/tensors/w")), pattern(100));
        assert_eq!(mount.read(format!("{name}/metadata/key")), b"value");
    }
}

/// A tmpfs in `models` with the models `a`, `b`, `c` and `huge`, a sparse model of 256 TiB, which is more than any
/// address space. Returns the length of its only tensor. Its last bytes are those of `pattern`.
fn lay_out_huge(scene: &Scene) -> u64 {
    const LEN: u64 = 1 << 48;
    scene.ok("mkdir models mnt && mount -t tmpfs none models");
    for name in ["a", "b", "c"] {
        write(scene, &format!("models/{name}.safetensors"));
    }
    let header = format!(r#"{{"w":{{"dtype":"U8","shape":[{LEN}],"data_offsets":[0,{LEN}]}}}}"#);
    let huge = scene.raw("models/huge.safetensors", header.as_bytes(), b"");
    let end = 8 + header.len() as u64 + LEN;
    File::options().write(true).open(huge).unwrap().write_all_at(&pattern(100), end - 100).unwrap();
    LEN
}

/// The last 100 bytes of a file, read without the page cache of the mount.
fn last_bytes(path: PathBuf) -> io::Result<Vec<u8>> {
    let file = File::options().read(true).custom_flags(O_DIRECT).open(path)?;
    let mut bytes = vec![0; 100];
    file.read_exact_at(&mut bytes, file.metadata()?.len() - 100)?;
    Ok(bytes)
}

#[test]
fn model_that_cannot_be_mapped_is_served_and_closes_no_other_file() {
    require_root!();
    for limit in ["unlimited", "3000000"] {
        let scene = Scene::new();
        let len = lay_out_huge(&scene);
        scene.ok(&format!("ulimit -v {limit}; weightfs --log-file log models mnt"));
        for name in ["a", "b", "c"] {
            assert_eq!(last_bytes(scene.path(format!("mnt/{name}/tensors/w"))).unwrap(), pattern(100));
            // Only the daemon still has the mounted version.
            let bytes = std::fs::read(scene.path(format!("models/{name}.safetensors"))).unwrap();
            std::fs::write(scene.path("models/new"), [&bytes[..bytes.len() - 100], &[0; 100]].concat()).unwrap();
            scene.ok(&format!("mv models/new models/{name}.safetensors"));
        }
        assert_eq!(scene.ok("ls mnt"), "a\nb\nc\nhuge\n");
        assert_eq!(std::fs::metadata(scene.path("mnt/huge/tensors/w")).unwrap().len(), len);
        for name in ["huge", "a", "b", "c"] {
            let read = last_bytes(scene.path(format!("mnt/{name}/tensors/w")));
            assert_eq!(read.unwrap_or_else(|error| panic!("{limit}: {name}: {error}")), pattern(100));
        }
        assert_eq!(
            scene.ok("head -c 1000 mnt/huge/tensors/w | tr -d '\\0'; grep -v 'files were added' log || true"),
            ""
        );
        scene.ok("weightfs umount mnt");
        scene.wait_for_end();
    }
}

#[test]
fn replaced_models_stay_open_when_others_are_closed() {
    require_fuse!();
    let scene = Scene::new();
    scene.ok("mkdir models mnt");
    for at in 0..60 {
        write(&scene, &format!("models/m{at}.safetensors"));
    }
    // At most 16 files are open, unless they could not be opened again.
    scene.ok("ulimit -n 64; weightfs --log-file log models mnt");
    let read = |at: usize| last_bytes(scene.path(format!("mnt/m{at}/tensors/w")));
    for at in 0..4 {
        read(at).unwrap();
    }
    scene.ok("rm models/m0.safetensors; mv models/m1.safetensors elsewhere; chmod 600 models/m3.safetensors");
    scene.ok("cp elsewhere new && mv new models/m2.safetensors");
    for at in (4..60).chain(4..60).chain(0..4) {
        assert_eq!(read(at).unwrap_or_else(|error| panic!("m{at}: {error}")), pattern(100));
    }
    assert_eq!(scene.ok("cat log"), "");
    scene.ok("weightfs umount mnt");
    scene.wait_for_end();
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
    require_root!();
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
