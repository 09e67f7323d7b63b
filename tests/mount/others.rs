//! `files/`: the other files of the directory of a single model.

use crate::support::{Mount, Scene, Tensor, pattern, require_fuse, require_root};
use safetensors::Dtype;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::process::Command;

fn tensor() -> Vec<Tensor<'static>> {
    vec![("w", Dtype::F32, &[2, 3], pattern(24))]
}

/// A directory as repositories have it, with what is no part of it.
fn repository(scene: &Scene) -> PathBuf {
    for dir in ["m", "m/1_Pooling", "m/nothing", "m/.cache", "else"] {
        scene.mkdir(dir);
    }
    scene.model("m/model.safetensors", &tensor(), &[]);
    let files: [(&str, &[u8]); 8] = [
        ("m/config.json", br#"{"model_type": "llama"}"#),
        ("m/tokenizer.json", &pattern(3_000_000)),
        ("m/empty.txt", b""),
        ("m/1_Pooling/config.json", b"{}"),
        ("m/.gitattributes", b"hidden"),
        ("m/.cache/state", b"hidden"),
        ("m/training_args.bin", b"only the suffix of a model"),
        ("else/secret", b"of somebody else"),
    ];
    for (name, bytes) in files {
        fs::write(scene.path(name), bytes).unwrap();
    }
    symlink("../else/secret", scene.path("m/out.txt")).unwrap();
    symlink("tokenizer.json", scene.path("m/link.json")).unwrap();
    symlink("../else", scene.path("m/outside")).unwrap();
    scene.ok("mkfifo m/fifo && chmod 640 m/tokenizer.json && touch -d '2020-02-03 04:05:06 UTC' m/tokenizer.json");
    scene.path("m")
}

/// Sorted paths of the files below a directory of a mount.
fn found(scene: &Scene, mount: &Mount, dir: &str) -> Vec<String> {
    let said = scene.ok(&format!("cd {} && find {dir} -type f | sort", mount.point.display()));
    said.lines().map(str::to_owned).collect()
}

#[test]
fn directory_of_one_model_has_its_other_files() {
    require_fuse!();
    let scene = Scene::new();
    let dir = repository(&scene);
    let mount = scene.mount(&dir, &[]);
    let expected = [
        "files/1_Pooling/config.json",
        "files/config.json",
        "files/empty.txt",
        "files/tokenizer.json",
        "files/training_args.bin",
    ];
    assert_eq!(found(&scene, &mount, "files"), expected);
    for name in expected {
        let original = dir.join(name.strip_prefix("files/").unwrap());
        assert_eq!(mount.read(name), fs::read(&original).unwrap(), "{name}");
        let (shown, original) = (fs::metadata(mount.path(name)).unwrap(), fs::metadata(&original).unwrap());
        assert_eq!(shown.len(), original.len());
        assert_eq!((shown.mode() & 0o777, shown.uid()), (original.mode() & 0o444, original.uid()), "{name}");
        assert_eq!(shown.mtime(), original.mtime(), "{name}");
        assert_eq!(shown.blocks(), u64::from(original.len() > 0));
    }
    let ino = |path: &str| fs::metadata(mount.path(path)).unwrap().ino();
    assert_eq!((ino("files/1_Pooling/.."), ino("files/..")), (ino("files"), ino(".")));
    let written = fs::write(mount.path("files/config.json"), "x").unwrap_err();
    assert_eq!(written.raw_os_error(), Some(nix::libc::EROFS));
    assert_eq!(mount.log(), "");

    // Commands that do not mount have the same files.
    let weightfs = |line: &str| scene.ok(&format!("weightfs {line}"));
    assert_eq!(weightfs("cat m files/config.json"), fs::read_to_string(dir.join("config.json")).unwrap());
    assert!(weightfs("ls --files m files").contains("tokenizer.json"));
    weightfs("cp m files copy");
    assert_eq!(fs::read(scene.path("copy/files/1_Pooling/config.json")).unwrap(), b"{}");
    assert_eq!(fs::read(scene.path("copy/files/tokenizer.json")).unwrap(), pattern(3_000_000));
}

#[test]
fn links_lead_to_no_hidden_or_foreign_files() {
    require_fuse!();
    let scene = Scene::new();
    let dir = repository(&scene);
    scene.mkdir("m/.git");
    fs::write(dir.join(".git/config"), "url = https://user:token@host").unwrap();
    symlink(".git/config", dir.join("NOTES.md")).unwrap();
    symlink(".git", dir.join("docs")).unwrap();
    symlink("1_Pooling", dir.join("2_Alias")).unwrap();
    let expected = ["1_Pooling/config.json", "config.json", "empty.txt", "tokenizer.json", "training_args.bin"];
    let expected = expected.map(|name| format!("files/{name}"));
    assert_eq!(found(&scene, &scene.mount(&dir, &[]), "files"), expected);

    // A snapshot in the Hugging Face cache consists of links to the blobs of its repository.
    for dir in ["r", "r/blobs", "r/refs", "r/snapshots", "r/snapshots/c", "r/snapshots/c/sub"] {
        scene.mkdir(dir);
    }
    fs::rename(scene.path("m/model.safetensors"), scene.path("r/blobs/weights")).unwrap();
    for (file, text) in [("r/blobs/0", "{}"), ("r/blobs/1", "words"), ("r/refs/secret", "not a blob")] {
        fs::write(scene.path(file), text).unwrap();
    }
    let links = [
        ("model.safetensors", "../../blobs/weights"),
        ("config.json", "../../blobs/0"),
        ("sub/vocab.txt", "../../../blobs/1"),
        ("out.txt", "../../refs/secret"),
        ("through.txt", "../../blobs/../refs/secret"),
        ("elsewhere.txt", "../../../else/secret"),
    ];
    for (link, target) in links {
        symlink(target, scene.path("r/snapshots/c").join(link)).unwrap();
    }
    let mount = scene.mount(&scene.path("r/snapshots/c"), &[]);
    assert_eq!(found(&scene, &mount, "files"), ["files/config.json", "files/sub/vocab.txt"]);
    assert_eq!(mount.read("files/sub/vocab.txt"), b"words");
}

#[test]
fn neighbours_of_other_owners_are_not_shown() {
    require_root!();
    let scene = Scene::new();
    let dir = repository(&scene);
    fs::write(dir.join("token.txt"), "secret").unwrap();
    scene.ok("chmod 600 m/token.txt");
    // A new owner may read what everyone may.
    let mount = scene.mount(&dir, &["--uid", "1234"]);
    let mode = |name: &str| fs::metadata(mount.path(name)).unwrap().mode() & 0o777;
    assert_eq!([mode("files/config.json"), mode("files/token.txt"), mode("tensors/w")], [0o444, 0, 0o400]);
    drop(mount);
    // Somebody else makes the directory look like that of a model.
    scene.ok("chmod 1777 m && chown 65534 m/config.json");
    let mount = scene.mount(&dir.join("model.safetensors"), &[]);
    assert!(!mount.list("").contains(&"files".to_owned()));
    drop(mount);
    scene.ok("chown 0 m/config.json && chown 65534 m/token.txt");
    let mount = scene.mount(&dir.join("model.safetensors"), &[]);
    assert!(mount.list("files").contains(&"config.json".to_owned()));
    assert!(!mount.list("files").contains(&"token.txt".to_owned()));
}

#[test]
fn views_turn_the_other_files_off() {
    require_fuse!();
    let scene = Scene::new();
    let dir = repository(&scene);
    assert_eq!(scene.mount(&dir, &["--views=tensors,index"]).list(""), ["index.json", "tensors"]);
    assert_eq!(scene.mount(&dir, &["--views=files"]).list(""), ["files"]);
}

#[test]
fn model_that_is_named_has_the_files_beside_its_configuration() {
    require_fuse!();
    let scene = Scene::new();
    let dir = repository(&scene);
    scene.model("m/other.safetensors", &tensor(), &[]);
    fs::write(dir.join("model.safetensors.index.json"), r#"{"weight_map": {"w": "model.safetensors"}}"#).unwrap();
    for source in ["model.safetensors", "model.safetensors.index.json"] {
        let mount = scene.mount(&dir.join(source), &[]);
        let expected = ["config.json", "empty.txt", "tokenizer.json", "training_args.bin"];
        let expected = expected.map(|name| format!("files/{name}"));
        assert_eq!(found(&scene, &mount, "files"), expected, "{source}");
    }
    // Without a configuration, the directory may be anything.
    fs::remove_file(dir.join("config.json")).unwrap();
    let mount = scene.mount(&dir.join("model.safetensors"), &[]);
    assert!(!mount.list("").contains(&"files".to_owned()));
}

#[test]
fn other_files_keep_the_version_that_was_mounted() {
    require_fuse!();
    let scene = Scene::new();
    let dir = repository(&scene);
    let mount = scene.mount(&dir, &[]);
    // Another file with the same name: the mount keeps the one that it opened.
    fs::write(dir.join("new"), "{}").unwrap();
    let before = fs::read(dir.join("config.json")).unwrap();
    fs::rename(dir.join("new"), dir.join("config.json")).unwrap();
    assert_eq!(mount.read("files/config.json"), before);
    // The same file with other bytes: an error, as for tensors.
    fs::write(dir.join("tokenizer.json"), "changed").unwrap();
    let read = fs::read(mount.path("files/tokenizer.json")).unwrap_err();
    assert!([nix::libc::ESTALE, nix::libc::EIO].contains(&read.raw_os_error().unwrap()), "{read}");
    assert_eq!(mount.read("tensors/w"), pattern(24));
}

#[test]
fn directory_with_very_many_other_files_shows_some_and_says_so() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("m");
    scene.model("m/model.safetensors", &tensor(), &[]);
    (0..1010).for_each(|at| fs::write(dir.join(format!("{at:04}.txt")), at.to_string()).unwrap());
    let mount = scene.mount(&dir, &[]);
    let listed = mount.list("files");
    assert_eq!((listed.len(), &listed[999][..]), (1000, "0999.txt"));
    assert_eq!(mount.read("files/0999.txt"), b"999");
    let log = mount.log();
    assert!(log.contains("only the first 1000 files"), "{log}");
    let status = Command::new("cp").arg("-r").arg(mount.path("files")).arg(scene.path("copy")).status().unwrap();
    assert!(status.success());
}
