//! MOUNTPOINT `/dev/fd/N`: a /dev/fuse that the caller has opened and mounted, as in containers.

use crate::support::{Namespace, Scene, require_root, run_ok, wait_until};
use nix::sys::signal::{Signal, kill};
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::Stdio;

/// Runs a command as a user other than root, without supplementary groups.
const USER: &str = "setpriv --reuid=65534 --regid=65534 --clear-groups --";

/// A scene with the sample, an empty directory `mnt`, and the program `premount`, all of which users can reach.
fn scene() -> Scene {
    let scene = Scene::new();
    scene.sample();
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/premount.c");
    run_ok("cc", [source.as_os_str(), "-o".as_ref(), scene.path("premount").as_os_str()]);
    scene.ok("chmod 755 . && chmod 644 sample.safetensors && mkdir mnt");
    scene
}

#[test]
fn mount_of_the_caller_is_served_until_the_caller_unmounts_it() {
    require_root!();
    let scene = scene();
    for threads in ["1", "4"] {
        let line = format!("./premount mnt default_permissions weightfs --threads {threads} sample.safetensors @");
        assert_eq!(scene.ok(&line), "");
        let mounts = scene.mounts();
        assert!(mounts.len() == 1 && mounts[0].starts_with("premounted "), "{mounts:?}");
        scene.ok("(cd mnt && sha256sum --quiet -c SHA256SUMS) && weightfs umount mnt");
        scene.wait_for_end();
        assert!(scene.path("mnt").exists());
    }
    // The daemon never unmounts: with its end, readers get an error, and the mount stays.
    let mut command = scene.command("./premount");
    command.args(["mnt", "default_permissions", "weightfs", "-f", "sample.safetensors", "@"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(
        line.starts_with("sample.safetensors is mounted on /dev/fd/") && line.ends_with("; Ctrl-C ends it\n"),
        "{line}"
    );
    let held = File::open(scene.path("mnt/tensors/model.embed.weight")).unwrap();
    kill(scene.daemons()[0], Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(scene.mounts().len(), 1);
    wait_until("the mount is dead", || nix::sys::statvfs::statvfs(&scene.path("mnt")).is_err());
    drop(held);
    scene.ok("umount mnt");
}

#[test]
fn mount_of_the_caller_ends_with_a_watched_pipe() {
    require_root!();
    let scene = scene();
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = scene.command("./premount");
    command.args(["mnt", "default_permissions", "weightfs", "--while-open=0", "sample.safetensors", "@"]);
    assert!(command.stdin(reader).stdout(Stdio::null()).status().unwrap().success());
    drop(command);
    scene.ok("ls mnt/tensors");
    drop(writer);
    scene.wait_for_end();
    scene.ok("umount mnt");
}

/// The caller may have mounted without `default_permissions`.
#[test]
fn permissions_of_the_source_are_checked_whatever_the_options_of_the_caller() {
    require_root!();
    let scene = scene();
    for (mode, readable) in [("600", false), ("644", true)] {
        scene.ok(&format!("chmod {mode} sample.safetensors"));
        scene.ok("./premount mnt allow_other weightfs sample.safetensors @");
        let read = scene.sh(&format!("{USER} cat mnt/header.json"));
        assert_eq!(read.code == 0, readable, "{mode}: {read:?}");
        scene.ok("cat mnt/header.json && weightfs umount mnt");
        scene.wait_for_end();
    }
}

#[test]
fn caller_decides_who_is_admitted() {
    require_root!();
    let scene = scene();
    for (options, admitted) in [("default_permissions", false), ("default_permissions,allow_other", true)] {
        // The options of the mount that a caller such as mount.fuse3 repeats have no effect.
        let line =
            format!("./premount mnt {options} weightfs -o ro,allow_other,fsname=x,nonempty sample.safetensors @");
        scene.ok(&line);
        assert_eq!(scene.sh(&format!("{USER} cat mnt/index.json")).code == 0, admitted, "{options}");
        scene.ok("weightfs umount mnt");
        scene.wait_for_end();
    }
}

#[test]
fn user_serves_a_mount_in_a_user_namespace() {
    require_root!();
    let scene = scene();
    scene.ok("mkdir -p dev && chmod 755 dev");
    let device = "mount -t tmpfs dev dev && mknod -m 666 dev/fuse c 10 229 && mount --bind dev/fuse /dev/fuse";
    let namespace = Namespace::new(&scene, device);
    // Without fusermount3, and without any privilege outside of the namespace.
    let tried = namespace.sh(&format!("{USER} unshare --user --map-root-user --mount true"));
    if tried.code != 0 {
        assert!(tried.err.contains("unshare failed"), "{tried:?}");
        eprintln!("skipped: no user namespaces here");
        return;
    }
    let read = "cd mnt && sha256sum --quiet -c SHA256SUMS && cd .. && umount mnt";
    for mount in ["weightfs sample.safetensors mnt", "./premount mnt default_permissions weightfs sample.safetensors @"]
    {
        let script = format!("{mount} >said && {read}");
        let script = script.replace(">said", ">/dev/null");
        namespace.ok(&format!("{USER} unshare --user --map-root-user --mount --propagation slave sh -ec '{script}'"));
        scene.wait_for_end();
    }
}

#[test]
fn mount_fuse3_passes_its_mount() {
    require_root!();
    let scene = scene();
    // The files beside the model are looked for in the directory of the mount point, which does not answer yet.
    scene.ok("mkdir helpers && cp -P bin/* helpers && echo '{}' >config.json");
    // mount(8) looks for helpers only in /sbin. It runs mount.fuse3, which mounts, drops its privileges, and runs the
    // program with the same options.
    let sbin = "sbin=$(readlink -f /sbin)\nmount -t overlay o -o lowerdir=$PWD/helpers:$sbin $sbin";
    let namespace = Namespace::new(&scene, sbin);
    let line = "mount -t fuse.weightfs -o drop_privileges,allow_other,x-foo $PWD/sample.safetensors $PWD/mnt >said";
    namespace.ok(line);
    let mounts = namespace.mounts();
    assert!(mounts.len() == 1 && mounts[0].contains(",allow_other"), "{mounts:?}");
    namespace.ok("(cd mnt && sha256sum --quiet -c SHA256SUMS) && cmp config.json mnt/files/config.json && umount mnt");
    scene.wait_for_end();
}

#[test]
fn unusable_descriptors_are_named() {
    require_root!();
    let scene = scene();
    for (line, expected) in [
        ("weightfs sample.safetensors /dev/fd/77", "weightfs: /dev/fd/77: Bad file descriptor\n"),
        (
            "weightfs sample.safetensors /dev/fd/5 5<sample.safetensors",
            "weightfs: /dev/fd/5: neither a directory nor an open /dev/fuse\n",
        ),
        (
            "weightfs sample.safetensors /dev/fd/5 5<>/dev/fuse",
            "weightfs: /dev/fd/5: this /dev/fuse is not mounted: call mount(2) with fd=5 first\n",
        ),
        (
            "weightfs --rmdir sample.safetensors /dev/fd/5 5<>/dev/fuse",
            "weightfs: option rmdir: /dev/fd/5 is mounted already, so whoever mounted it has to unmount it\n",
        ),
    ] {
        let said = scene.sh(line);
        assert_eq!((said.code, &*said.err), (1, expected), "{line}");
    }
    assert_eq!(scene.processes(), []);
    // A descriptor of a directory is that directory.
    scene.ok("weightfs sample.safetensors /dev/fd/5 5<mnt >said && ls mnt/tensors && weightfs umount mnt");
    // The source would be hidden by the mount, so opening it would wait for this very process.
    scene.ok("cp sample.safetensors mnt/inside.safetensors");
    let said = scene.sh("timeout 60 ./premount mnt default_permissions weightfs mnt/inside.safetensors @");
    assert!(said.code == 1 && said.err.contains(": lies inside the mount point "), "{said:?}");
    scene.ok("umount mnt");
}
