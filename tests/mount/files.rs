//! `weightfs ls --files`, `cat` and `cp`: they show what a mount shows.

use crate::support::{Mount, Scene, files_below, pattern, real_model, require_fuse};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use safetensors::Dtype;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// A file, a real model, a sharded model, and a directory of models with another file and a broken model.
fn sources(scene: &Scene) -> Vec<PathBuf> {
    let mut sources = vec![scene.sample(), real_model("hadamards")];
    scene.mkdir("sharded");
    scene.model("sharded/1.safetensors", &[("a", Dtype::U8, &[5000], pattern(5000))], &[("format", "pt")]);
    scene.model("sharded/2.safetensors", &[("b", Dtype::I8, &[3], vec![3, 4, 5])], &[]);
    let index = r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
    fs::write(scene.path("sharded/whole.safetensors.index.json"), index).unwrap();
    scene.mkdir("all");
    scene.mkdir("all/sub");
    scene.model("all/x.safetensors", &[("a", Dtype::BF16, &[2], pattern(4))], &[]);
    scene.model("all/sub/y.safetensors", &[("b", Dtype::F16, &[2], pattern(4))], &[]);
    fs::write(scene.path("all/README.md"), "about\n").unwrap();
    fs::write(scene.path("all/half.safetensors"), "broken").unwrap();
    sources.extend([scene.path("sharded"), scene.path("all")]);
    sources
}

/// The files below a directory, by their paths in it; symlinks are followed.
fn files(dir: &Path) -> BTreeMap<String, Vec<u8>> {
    files_below(dir).into_iter().map(|(name, path)| (name, fs::read(path).unwrap())).collect()
}

/// The files of a mount.
fn shown(mount: &Mount) -> BTreeMap<String, Vec<u8>> {
    files(&mount.path(""))
}

#[test]
fn listed_and_printed_files_are_those_of_a_mount() {
    require_fuse!();
    let scene = Scene::new();
    for source in sources(&scene) {
        let expected = shown(&scene.mount(&source, &[]));
        let listed = Command::new(scene.path("bin/weightfs"))
            .args(["ls", "--files", "--recursive", "--json"])
            .arg(&source)
            .output()
            .unwrap();
        assert!(listed.status.success(), "{listed:?}");
        let listed: Value = serde_json::from_slice(&listed.stdout).unwrap();
        let sizes: BTreeMap<&str, u64> = listed["files"]
            .as_array()
            .unwrap()
            .iter()
            .map(|file| (file["path"].as_str().unwrap(), file["size"].as_u64().unwrap()))
            .collect();
        let expected_sizes = expected.iter().map(|(path, bytes)| (&**path, bytes.len() as u64)).collect();
        assert_eq!(sizes, expected_sizes, "{}", source.display());
        let printed = scene.command("weightfs").arg("cat").arg(&source).args(expected.keys()).output().unwrap();
        assert!(printed.status.success(), "{}: {}", source.display(), String::from_utf8_lossy(&printed.stderr));
        assert!(printed.stdout == expected.values().flatten().copied().collect::<Vec<_>>(), "{}", source.display());
    }
}

#[test]
fn list_of_files_is_that_of_a_directory() {
    let scene = Scene::new();
    scene.sample();
    scene.ok("cp sample.safetensors npy");
    assert_eq!(
        scene.ok("weightfs ls --files sample.safetensors metadata"),
        "SIZE  NAME\n10 B  metadata/a%2Fkey\n 0 B  metadata/empty\n 2 B  metadata/format\n"
    );
    // A path may have the name of a file here.
    let npy = scene.ok("weightfs ls --files --bytes -n --sort size sample.safetensors npy");
    assert!(npy.starts_with("3145856  npy/model.embed.weight.npy\n"), "{npy}");
    assert_eq!(npy.lines().count(), 8);
    let root = scene.ok("weightfs ls --files -n sample.safetensors");
    assert!(root.lines().any(|line| line.ends_with("-  tensors/")), "{root}");
    assert_eq!(scene.ok("weightfs ls --files -n sample.safetensors header.json").lines().count(), 1);
    let said = scene.sh("weightfs ls --files sample.safetensors nothing");
    assert_eq!((said.code, &*said.err), (1, "weightfs: sample.safetensors: nothing: no such file or directory\n"));
}

#[test]
fn a_range_of_a_file_is_printed() {
    let scene = Scene::new();
    scene.sample();
    let cat = |options: &str| scene.sh(&format!("weightfs cat {options} sample.safetensors tensors/model.layers.10"));
    for (options, range) in [
        ("", 0..7),
        ("--offset 2", 2..7),
        ("--length 3", 0..3),
        ("--offset 5 --length 1GB", 5..7),
        ("--offset 7", 7..7),
        ("--length 0", 0..0),
    ] {
        let expected = pattern(7)[range].to_vec();
        let mut command = scene.command("weightfs");
        command.arg("cat").args(options.split_whitespace());
        let found = command.args(["sample.safetensors", "tensors/model.layers.10"]).output().unwrap();
        assert_eq!(found.stdout, expected, "{options}");
    }
    let said = cat("--offset 1KiB");
    let expected =
        "weightfs: sample.safetensors: tensors/model.layers.10: offset 1024 is past the end of its 7 bytes\n";
    assert_eq!((said.code, &*said.err), (1, expected));
    assert_eq!(cat("--offset no").code, 2);
    let said = cat("--offset 1 sample.safetensors header.json");
    assert_eq!((said.code, &*said.err), (2, "weightfs: --offset and --length are for a single PATH\n"));
    for (path, error) in [
        ("tensors", "a directory"),
        ("tensors/none", "no such file or directory"),
        ("header.json/", "not a directory"),
        ("/", "a directory"),
    ] {
        let said = scene.sh(&format!("weightfs cat sample.safetensors header.json '{path}' >out; test ! -s out"));
        assert_eq!((said.code, said.err), (0, format!("weightfs: sample.safetensors: {path}: {error}\n")));
    }
    // Paths are resolved as in a mount.
    let format = scene.ok("weightfs cat sample.safetensors /tensors/..//./metadata/format");
    assert_eq!(format, "pt");
    // A reader that stops early is no error to report.
    assert_eq!(scene.sh("weightfs cat sample.safetensors tensors/model.embed.weight | head -c 1").err, "");
}

#[test]
fn copied_files_are_those_of_a_mount() {
    require_fuse!();
    let scene = Scene::new();
    for source in sources(&scene) {
        let expected = shown(&scene.mount(&source, &[]));
        scene.command("weightfs").arg("cp").arg(&source).args(["/", "out"]).status().unwrap();
        assert!(files(&scene.path("out")) == expected, "{}", source.display());
        scene.ok("rm -r out");
    }
    scene.ok("chmod 644 sample.safetensors && weightfs cp sample.safetensors npy tensors/model.layers.10 out");
    assert_eq!(fs::read(scene.path("out/model.layers.10")).unwrap(), pattern(7));
    assert_eq!(files(&scene.path("out")).len(), 1 + 8);
    // Copies have the time and the readers of the source, and their owner may write to them.
    let (source, copy) = (scene.path("sample.safetensors"), scene.path("out/npy/model.layers.10.npy"));
    let (source, copy) = (source.metadata().unwrap(), copy.metadata().unwrap());
    assert_eq!((copy.mtime(), copy.mtime_nsec()), (source.mtime(), source.mtime_nsec()));
    assert_eq!(copy.permissions().mode() & 0o7777, 0o644);
}

#[test]
fn copy_replaces_nothing_unless_forced() {
    if crate::support::is_skipped(crate::support::not_root()) {
        return;
    }
    let scene = Scene::new();
    scene.sample();
    scene.ok("mkdir out && echo mine >out/header.json");
    let said = scene.sh("weightfs cp sample.safetensors metadata header.json out");
    assert_eq!((said.code, &*said.err), (1, "weightfs: out/header.json: exists already; --force replaces it\n"));
    assert_eq!(fs::read_to_string(scene.path("out/header.json")).unwrap(), "mine\n");
    assert!(!scene.path("out/metadata").exists());
    scene.ok("weightfs cp --force sample.safetensors metadata header.json out && weightfs cat sample.safetensors header.json | cmp - out/header.json");
    // No directory on the way is a link to somewhere else.
    scene.ok("mkdir elsewhere linked && ln -s ../elsewhere linked/npy");
    assert_eq!(scene.sh("weightfs cp --force sample.safetensors npy linked").code, 1);
    assert_eq!(fs::read_dir(scene.path("elsewhere")).unwrap().count(), 0);
    let said = scene.sh("weightfs cp sample.safetensors npy");
    assert_eq!(
        (said.code, &*said.err),
        (2, "weightfs: cp needs SOURCE, at least one PATH, and DIR or FILE (see --help)\n")
    );
    // Another user could exchange unfinished files.
    if nix::unistd::geteuid().is_root() {
        scene.ok("mkdir -p theirs/.weightfs-cp && chown 12345 theirs/.weightfs-cp");
        let said = scene.sh("weightfs cp sample.safetensors npy theirs");
        let expected = "weightfs: theirs: .weightfs-cp in it is not a private directory of this user\n";
        assert_eq!((said.code, &*said.err), (1, expected));
    }
    for (paths, error) in [
        ("npy/../npy nothing out", "weightfs: sample.safetensors: nothing: no such file or directory\n"),
        ("npy header.json/x out", "weightfs: sample.safetensors: header.json/x: not a directory\n"),
    ] {
        let said = scene.sh(&format!("weightfs cp sample.safetensors {paths}"));
        assert_eq!((said.code, &*said.err), (1, error));
    }
}

/// Copies the arrays of `model.safetensors` to `out`, and kills the command once a file has its name.
fn killed_copy(scene: &Scene) {
    for _ in 0..50 {
        let mut command = scene.command("weightfs");
        command.args(["cp", "model.safetensors", "npy", "out"]).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().unwrap();
        while child.try_wait().unwrap().is_none() && !scene.path("out/npy").exists() {
            std::thread::sleep(Duration::from_micros(200));
        }
        // `env` and the program are one process.
        let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGKILL);
        child.wait().unwrap();
        if scene.path("out/.weightfs-cp").exists() {
            return;
        }
        fs::remove_dir_all(scene.path("out")).unwrap();
    }
    panic!("the copy always ended before it was killed");
}

/// Tensors of 16 MB, more than one group.
fn large(scene: &Scene, seed: u8) {
    let bytes: Vec<u8> = pattern(16 << 20).into_iter().map(|byte| byte ^ seed).collect();
    let names: Vec<String> = (0..12).map(|at| format!("t{at}")).collect();
    let tensors: Vec<_> = names.iter().map(|name| (&**name, Dtype::U8, &[16 << 20][..], bytes.clone())).collect();
    scene.model("model.safetensors", &tensors, &[]);
}

#[test]
fn killed_copy_continues() {
    let scene = Scene::new();
    large(&scene, 0);
    killed_copy(&scene);
    // The files that have their names are kept, not copied again.
    let inodes = |dir: &Path| -> BTreeMap<PathBuf, u64> {
        let entries = fs::read_dir(dir).into_iter().flatten().map(|entry| entry.unwrap());
        entries.map(|entry| (entry.path(), entry.metadata().unwrap().ino())).collect()
    };
    let before = inodes(&scene.path("out/npy"));
    scene.ok("weightfs cp model.safetensors npy out");
    let after = inodes(&scene.path("out/npy"));
    assert!(before.iter().all(|file| after.get(file.0) == Some(file.1)), "{before:?} {after:?}");
    assert_eq!(after.len(), 12);
    scene.ok("for f in out/npy/*; do weightfs cat model.safetensors npy/${f##*/} | cmp - $f || exit; done");
    assert!(!scene.path("out/.weightfs-cp").exists());
}

#[test]
fn continued_copy_has_the_bytes_of_one_version() {
    let scene = Scene::new();
    large(&scene, 0);
    killed_copy(&scene);
    fs::remove_file(scene.path("model.safetensors")).unwrap();
    large(&scene, 0x55);
    scene.ok("weightfs cp model.safetensors npy out");
    scene.ok("for f in out/npy/*; do weightfs cat model.safetensors npy/${f##*/} | cmp - $f || exit; done");
}
