//! `weightfs metadata`: reading and writing metadata. No data is lost, whenever the command is stopped.

use crate::gguf;
use crate::support::{Namespace, STATE, Said, Scene, WEIGHTFS, pattern, python, real_model, run_ok};
use nix::libc;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What the official reader finds: the metadata, and the bytes of each tensor.
type Found = (BTreeMap<String, String>, BTreeMap<String, Vec<u8>>);

fn read(path: &Path) -> Found {
    let bytes = std::fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&bytes).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let metadata = header.metadata().clone().unwrap_or_default().into_iter().collect();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    (metadata, tensors.iter().map(|(name, tensor)| (name.to_owned(), tensor.data().to_vec())).collect())
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| (key.to_string(), value.to_string())).collect()
}

/// The sorted names in a directory, including hidden files.
fn listed(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// A model `m.safetensors` with some metadata.
fn scene() -> Scene {
    scene_of("m.safetensors")
}

/// A model of either format with some metadata.
fn scene_of(file: &str) -> Scene {
    let scene = Scene::new();
    if file.ends_with(".gguf") {
        let tensors: [gguf::Tensor; 2] = [("big", 0, &[1000, 64], pattern(256_000)), ("b", 24, &[3], vec![1, 2, 3])];
        let pairs = [("format", "pt"), ("title", "first"), ("a=b", "c")];
        let bytes = gguf::file(&pairs.map(|(key, value)| (key, gguf::text(value.as_bytes()))), &tensors);
        std::fs::write(scene.path(file), bytes).unwrap();
        return scene;
    }
    let tensors = [("big", Dtype::F32, &[64, 1000][..], pattern(256_000)), ("b", Dtype::U8, &[3], vec![1, 2, 3])];
    scene.model("m.safetensors", &tensors, &[("format", "pt"), ("title", "first"), ("a=b", "c")]);
    scene
}

#[test]
fn keys_are_set_and_removed() {
    let scene = scene();
    let path = scene.path("m.safetensors");
    let (_, tensors) = read(&path);
    let long = "x".repeat(9000);
    let rest = [("a=b", "c"), ("format", "pt")];
    let with = |more: &[(&str, &str)]| pairs(&[&rest[..], more].concat());
    let table = [
        ("set m.safetensors title=second".to_owned(), with(&[("title", "second")])),
        ("set m.safetensors title= 'new key=a=b'".to_owned(), with(&[("title", ""), ("new key", "a=b")])),
        ("remove m.safetensors 'new key' title title".to_owned(), with(&[])),
        (format!("set m.safetensors long={long}"), with(&[("long", &long)])),
        ("set m.safetensors long=short".to_owned(), with(&[("long", "short")])),
        ("remove m.safetensors long".to_owned(), with(&[])),
        ("set m.safetensors 'é\"\\=line\nline\t'".to_owned(), with(&[("é\"\\", "line\nline\t")])),
        ("remove m.safetensors 'é\"\\'".to_owned(), with(&[])),
        ("set m.safetensors text <text".to_owned(), with(&[("text", "of a\nfile\n")])),
        ("clear m.safetensors".to_owned(), pairs(&[])),
        ("clear m.safetensors".to_owned(), pairs(&[])),
        ("set m.safetensors format=pt".to_owned(), pairs(&[("format", "pt")])),
    ];
    scene.ok("printf 'of a\\nfile\\n' >text");
    for (line, metadata) in table {
        assert_eq!(scene.ok(&format!("weightfs metadata {line}")), "", "{line}");
        assert_eq!(read(&path), (metadata, tensors.clone()), "{line}");
        assert_eq!(listed(scene.dir.path()), ["bin", "m.safetensors", "text"], "{line}");
    }
}

#[test]
fn official_package_reads_real_models_with_changed_metadata() {
    let script = "
import sys
from safetensors import safe_open
a, b, mode = sys.argv[1:]
with safe_open(a, 'numpy') as old, safe_open(b, 'numpy') as new:
    assert old.keys() == new.keys()
    for name in old.keys():
        old_tensor, new_tensor = old.get_tensor(name), new.get_tensor(name)
        assert old_tensor.dtype == new_tensor.dtype and old_tensor.shape == new_tensor.shape
        assert old_tensor.tobytes() == new_tensor.tobytes(), name
    expected = dict(old.metadata() or {})
    if mode == 'set':
        expected['modelspec.title'] = 'A title'
    elif mode == 'clear':
        expected = {}
    assert (new.metadata() or {}) == expected, new.metadata()
";
    for name in ["silero_vad_16k", "model-p2k", "hadamards"] {
        let source = real_model(name);
        let scene = Scene::new();
        for (line, mode) in [
            ("set in 'modelspec.title=A title' --force -o out", "set"),
            ("clear in --force -o out", "clear"),
            ("remove out2 modelspec.title", "same"),
        ] {
            scene.ok(&format!("ln -sf {} in && weightfs metadata {line}", source.display()));
            if mode == "set" {
                scene.ok("cp out out2");
            }
            let written = scene.path(if mode == "same" { "out2" } else { "out" });
            let python = python();
            let args = ["-c".as_ref(), script.as_ref(), source.as_os_str(), written.as_os_str(), mode.as_ref()];
            run_ok(python.to_str().unwrap(), args);
        }
        assert!(scene.ok("weightfs diff --data in out2").contains("0 different"), "{name}");
    }
}

#[test]
fn values_are_exact_in_pipes_and_escaped_on_terminals() {
    let scene = Scene::new();
    let bad = "\u{1b}[2Jtwo\nlines\u{9b}";
    scene.model("m.safetensors", &[], &[("plain", "value"), ("bad\n", bad), ("empty", "")]);
    let said = |out: &str| Said { code: 0, out: out.into(), err: String::new() };
    assert_eq!(scene.sh("weightfs metadata get m.safetensors plain"), said("value\n"));
    assert_eq!(scene.sh("weightfs metadata get m.safetensors empty"), said("\n"));
    assert_eq!(scene.sh("weightfs metadata get m.safetensors \"$(printf 'bad\\nx')\"").code, 1);
    assert_eq!(scene.sh("weightfs metadata get m.safetensors 'bad\n'"), said(&format!("{bad}\n")));
    let lines = r"bad\n=\u{1b}[2Jtwo\nlines\u{9b}";
    assert_eq!(scene.sh("weightfs metadata get m.safetensors"), said(&format!("{lines}\nempty=\nplain=value\n")));
    assert_eq!(scene.sh("weightfs metadata get m.safetensors plain 'bad\n'"), said(&format!("{lines}\nplain=value\n")));
    // script(1) provides a terminal.
    let shown =
        scene.ok("script -qec \"weightfs metadata get m.safetensors 'bad\n'\" /dev/null </dev/null | tr -d '\\r'");
    assert_eq!(shown, "\\u{1b}[2Jtwo\nlines\\u{9b}\n");
    for (line, expected) in [
        ("m.safetensors --json", serde_json::json!({"bad\n": bad, "empty": "", "plain": "value"})),
        ("m.safetensors plain --json", serde_json::json!({"plain": "value"})),
    ] {
        let out = scene.ok(&format!("weightfs metadata get {line}"));
        assert_eq!(serde_json::from_str::<serde_json::Value>(&out).unwrap(), expected);
        assert!(!out.contains('\u{9b}'));
    }
    scene.mkdir("sharded");
    scene.model("sharded/1.safetensors", &[("a", Dtype::U8, &[1], vec![1])], &[("k", "v")]);
    scene.model("sharded/2.safetensors", &[("b", Dtype::U8, &[1], vec![1])], &[("l", "w")]);
    let index = r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
    std::fs::write(scene.path("sharded/model.safetensors.index.json"), index).unwrap();
    assert_eq!(scene.ok("weightfs metadata get sharded"), "k=v\nl=w\n");
    // With several models, each line begins with the name of the model.
    scene.model("sharded/lora.safetensors", &[], &[("k", "x")]);
    assert_eq!(scene.ok("weightfs metadata get sharded k"), "lora: k=x\nmodel: k=v\n");
    let json: serde_json::Value = serde_json::from_str(&scene.ok("weightfs metadata get sharded --json")).unwrap();
    assert_eq!(json, serde_json::json!({"lora": {"k": "x"}, "model": {"k": "v", "l": "w"}}));
    scene.ok("echo text >sharded/broken.safetensors");
    let said = scene.sh("weightfs metadata get sharded l");
    assert!(said.code == 1 && said.out == "model: l=w\n" && said.err.contains("broken.safetensors: "), "{said:?}");
}

#[test]
fn waiting_for_a_value_on_a_terminal_is_announced() {
    let scene = scene();
    let line =
        "(sleep 1; printf 'two words\\n\\004') | script -qec 'weightfs metadata set m.safetensors notes' /dev/null";
    let out = scene.ok(line);
    assert!(out.contains("weightfs: type the value of \"notes\", then press Ctrl-D on an empty line\r\n"), "{out:?}");
    assert_eq!(read(&scene.path("m.safetensors")).0["notes"], "two words\n");
    // Nothing is said in a pipe.
    scene.ok("echo piped | weightfs metadata set m.safetensors notes");
}

#[test]
fn dry_run_prints_changes_and_writes_nothing() {
    let scene = scene();
    let before = scene.ok("stat -c '%i %y %s' m.safetensors; sha256sum m.safetensors");
    let table = [
        ("set m.safetensors title=second new=n format=pt", "+ new=n\n- title=first\n+ title=second\n"),
        ("set m.safetensors 'title=\u{1b}' --force -o out", "- title=first\n+ title=\\u{1b}\n"),
        ("remove m.safetensors title", "- title=first\n"),
        ("clear m.safetensors", "- a=b=c\n- format=pt\n- title=first\n"),
        ("set m.safetensors title=first", ""),
    ];
    for (line, out) in table {
        assert_eq!(scene.ok(&format!("weightfs metadata {line} --dry-run")), out, "{line}");
    }
    let large = "head -c 100000000 /dev/zero | tr '\\0' x | weightfs metadata set m.safetensors large --dry-run";
    let said = scene.sh(large);
    assert!(said.code == 1 && said.out.is_empty() && said.err.contains("at most 100000000 are allowed"), "{said:?}");
    // A command that changes no value does not write the file either.
    scene.ok("weightfs metadata set m.safetensors title=first && weightfs metadata set m.safetensors title=first --force -o ./m.safetensors");
    assert_eq!(scene.ok("stat -c '%i %y %s' m.safetensors; sha256sum m.safetensors"), before);
    assert_eq!(listed(scene.dir.path()), ["bin", "m.safetensors"]);
}

#[test]
fn owner_permissions_and_attributes_are_kept() {
    if crate::support::is_skipped(crate::support::not_root()) {
        return;
    }
    FILES.into_iter().for_each(keep_attributes);
}

fn keep_attributes(file: &str) {
    let scene = scene_of(file);
    let ok = |line: &str| scene.ok(&line.replace("FILE", file));
    // rw for the owner, r for user 4 and the group, rw as the mask.
    let acl = "0sAgAAAAEABgD/////AgAEAAQAAAAEAAQA/////xAABgD/////IAAAAP////8=";
    ok("chown 5:7 FILE && chmod 2640 FILE && setfattr -n user.note -v text FILE");
    ok(&format!(
        "setfattr -n user.empty FILE && setfattr -n trusted.x -v y FILE && setfattr -n system.posix_acl_access -v {acl} FILE"
    ));
    let attributes = "stat -c '%u:%g %a' FILE && getfattr -dm - -e hex FILE";
    let before = ok(attributes);
    assert!(before.contains("posix_acl_access") && before.contains("user.empty"), "{before}");
    let inode = scene.path(file).metadata().unwrap().ino();
    ok("weightfs metadata set FILE title=second");
    assert_eq!(ok(attributes), before);
    assert_ne!(scene.path(file).metadata().unwrap().ino(), inode);
    // The file does not get the directory's default ACL, which would give access to others.
    ok(&format!("mkdir dir && cp FILE dir && chmod 640 dir/FILE && setfattr -n system.posix_acl_default -v {acl} dir"));
    ok("touch dir/new && getfattr -n system.posix_acl_access dir/new && weightfs metadata set dir/FILE title=second");
    assert_eq!(ok("stat -c %a dir/FILE && getfattr -dm - dir/FILE"), "640\n");
    ok("rm -r dir");
    // A symbolic link stays a link.
    ok("ln -s FILE link && weightfs metadata set link title=third");
    assert!(scene.path("link").is_symlink());
    assert_eq!(ok(&format!("{attributes}; weightfs metadata get FILE title")), format!("{before}third\n"));
    // Another hard link keeps the old file.
    ok("ln FILE other");
    let said = scene.sh(&format!("weightfs metadata set {file} title=fourth"));
    let expected = format!("weightfs: {file}: has 2 hard links; only this one refers to the changed file\n");
    assert_eq!(said.err, expected);
    assert_eq!(ok("weightfs metadata get other title; weightfs metadata get FILE title"), "third\nfourth\n");
}

#[test]
fn changed_copy_goes_to_the_output_path() {
    if crate::support::is_skipped(crate::support::not_root()) {
        return;
    }
    let scene = scene();
    let path = scene.path("m.safetensors");
    scene.ok("chmod 640 m.safetensors && cp m.safetensors keep && touch old && chmod 604 old && chown 5:7 old");
    scene.ok("mkdir dir && cp m.safetensors dir && ln -s m.safetensors link && ln m.safetensors hard");
    let (_, tensors) = read(&path);
    let assert_new = |path: &Path| {
        let (metadata, found) = read(path);
        assert_eq!((metadata["title"].as_str(), found), ("second", tensors.clone()), "{}", path.display());
    };
    let set = |line: &str| scene.ok(&format!("umask 037; weightfs metadata set {line}"));
    set("m.safetensors title=second --force -o new");
    assert_new(&scene.path("new"));
    assert_eq!(scene.ok("stat -c '%a' new"), "640\n");
    set("m.safetensors title=second --force -o old");
    assert_new(&scene.path("old"));
    assert_eq!(scene.ok("stat -c '%a %u:%g' old; cmp keep m.safetensors"), "604 5:7\n");
    // A hard link of the source is replaced, and the source is unchanged.
    set("m.safetensors title=second --force -o hard");
    assert_new(&scene.path("hard"));
    scene.ok("cmp keep m.safetensors");
    // The source is a directory with one model.
    set("dir title=second");
    assert_new(&scene.path("dir/m.safetensors"));
    for out in ["m.safetensors", "./m.safetensors", "dir/../m.safetensors", "link"] {
        scene.ok("cat keep >m.safetensors");
        set(&format!("m.safetensors title=second -o {out}"));
        assert_new(&path);
        assert!(scene.path("link").is_symlink());
    }
    // A symbolic link to a missing file creates that file.
    scene.ok("mkdir elsewhere && ln -s elsewhere/first first && ln -s ../second elsewhere/first");
    set("keep title=second -o first");
    assert_new(&scene.path("second"));
    assert!(scene.path("first").is_symlink() && scene.path("elsewhere/first").is_symlink());
    // Pipes and devices get the bytes and are not replaced.
    scene.ok("weightfs metadata set keep title=second --force -o - >piped && weightfs metadata set keep title=second --force -o - | cat >piped2");
    scene.ok("mkfifo fifo && (cat fifo >piped3 & weightfs metadata set keep title=second --force -o fifo && wait)");
    scene.ok("cmp piped m.safetensors && cmp piped2 m.safetensors && cmp piped3 m.safetensors");
    scene.ok("weightfs metadata set keep title=second --force -o /dev/null && test -c /dev/null && test -p fifo");
    scene.ok("weightfs metadata set keep title=second --force -o - >>appended && cmp appended m.safetensors");
    for (line, text) in [
        ("weightfs metadata set keep title=x --force -o /dev/full", "weightfs: /dev/full: No space left on device\n"),
        ("weightfs metadata set keep title=x --force -o - >/dev/full", "weightfs: -: No space left on device\n"),
        (
            "weightfs metadata set keep title=x --dry-run >/dev/full",
            "weightfs: standard output: No space left on device\n",
        ),
        ("weightfs metadata get keep >/dev/full", "weightfs: standard output: No space left on device\n"),
    ] {
        let said = scene.sh(line);
        assert_eq!((said.code, &said.err[..]), (1, text), "{line}");
    }
    let said = scene.sh("script -qec 'weightfs metadata set keep title=x --force -o -' /dev/null </dev/null");
    assert!(said.code == 1 && said.out.contains("standard output is a terminal"), "{said:?}");
    let line = "weightfs metadata set keep title=x --force -o - | head -c 5 | wc -c; echo ${PIPESTATUS[0]}";
    assert_eq!(scene.ok(&format!("bash -c '{line}'")), "5\n1\n");
}

#[test]
fn refused_commands_leave_files_unchanged() {
    if crate::support::is_skipped(crate::support::not_root()) {
        return;
    }
    let scene = scene();
    scene.ok("head -c 9999 m.safetensors >cut.safetensors && echo text >text.safetensors && mkdir several empty && cp m.safetensors several/a.safetensors && cp m.safetensors several/b.safetensors");
    scene.mkdir("sharded");
    scene.model("sharded/1.safetensors", &[("a", Dtype::U8, &[1], vec![1])], &[]);
    std::fs::write(scene.path("sharded/m.safetensors.index.json"), r#"{"weight_map": {"a": "1.safetensors"}}"#)
        .unwrap();
    scene.ok("printf 'version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n' >lfs.safetensors");
    let tensor =
        |name, from| format!("\"{name}\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[{from},{}]}}", from + 1);
    scene.raw("twice.safetensors", format!("{{{},{}}}", tensor("t", 0), tensor("t", 1)).as_bytes(), &[1, 2]);
    scene.raw("hole.safetensors", format!("{{{},{}}}", tensor("t", 0), tensor("u", 2)).as_bytes(), &[1, 2, 3]);
    let before = scene.ok(STATE);
    let table = [
        ("clear cut.safetensors", 1, "cut.safetensors: truncated"),
        ("clear lfs.safetensors", 1, "lfs.safetensors: not a model but a Git LFS pointer"),
        ("clear twice.safetensors", 1, "twice.safetensors: "),
        ("clear hole.safetensors", 1, "hole.safetensors: "),
        ("set cut.safetensors a=b", 1, "cut.safetensors: truncated"),
        ("set text.safetensors a=b --force -o out", 1, "text.safetensors: "),
        ("set absent a=b", 1, "absent: No such file or directory"),
        ("set several a=b", 1, "several: a directory of 2 models; name one of them"),
        ("set sharded a=b", 1, "sharded: a model of several files; name one of them"),
        ("remove m.safetensors title absent", 1, "m.safetensors: no metadata key \"absent\""),
        ("remove m.safetensors title absent title", 1, "m.safetensors: no metadata key \"absent\""),
        ("get m.safetensors absent", 1, "m.safetensors: no metadata key \"absent\""),
        ("set m.safetensors a=b -o absent/out", 1, "absent/out: No such file or directory"),
        ("set m.safetensors a=b -o absent/", 1, "absent/: No such file or directory"),
        ("set m.safetensors a=b -o empty", 1, "empty: Is a directory"),
        ("set m.safetensors a b", 1, "\"b\": only one value can be read"),
        ("set m.safetensors", 2, "<KEY[=VALUE]>..."),
        ("set m.safetensors =x", 2, "'=x' for '<KEY[=VALUE]>...': the key is empty; write KEY=VALUE"),
        ("set m.safetensors title=x ''", 2, "'<KEY[=VALUE]>...': the key is empty; write KEY=VALUE"),
        ("remove m.safetensors", 2, "<KEY>..."),
        ("bogus m.safetensors", 2, "unrecognized subcommand 'bogus'"),
        ("", 2, ""),
    ];
    for (line, code, text) in table {
        let said = scene.sh(&format!("weightfs metadata {line}"));
        assert!(said.code == code && said.out.is_empty() && said.err.contains(text), "{line}: {said:?}");
        assert!(said.err.starts_with("weightfs: ") && said.err.lines().count() == 1, "{line}: {said:?}");
    }
    assert_eq!(scene.ok(STATE), before);
    // A user who may not write to the file, or not create files in its directory.
    let user = "setpriv --reuid=65534 --regid=65534 --clear-groups -- weightfs metadata";
    scene.ok("chmod 777 . && chmod 644 m.safetensors");
    let said = scene.sh(&format!("{user} set m.safetensors a=b"));
    assert_eq!(said.err, "weightfs: m.safetensors: is write-protected; -o writes a changed copy\n");
    let said = scene.sh(&format!("chmod 666 m.safetensors && cp m.safetensors kept && chmod 444 kept && {user} set m.safetensors a=b -o kept; rm kept"));
    assert_eq!(said.err, "weightfs: kept: is write-protected: Permission denied\n");
    scene.ok("chmod 755 . && chmod 666 m.safetensors");
    let said = scene.sh(&format!("{user} set m.safetensors a=b"));
    assert_eq!(said.err, "weightfs: m.safetensors: cannot create a file beside it: Permission denied\n");
    scene.ok("chmod 777 .");
    let said = scene.sh(&format!("{user} set m.safetensors a=b"));
    assert_eq!(said.err, "weightfs: m.safetensors: cannot keep its owner and group: Operation not permitted\n");
    // In a sticky directory like /tmp, other users may not replace the file.
    let before = scene.ok(
        "chmod 1777 . && cp m.safetensors mine && chmod 666 mine && stat -c '%i %a %u:%g %y' mine && sha256sum mine",
    );
    let said = scene.sh(&format!("{user} set m.safetensors a=b --force -o mine"));
    assert!(said.code == 1 && said.err.starts_with("weightfs: mine: cannot "), "{said:?}");
    assert_eq!(scene.ok("stat -c '%i %a %u:%g %y' mine && sha256sum mine && chmod 777 ."), before);
    scene.ok(&format!("{user} set m.safetensors a=b --force -o theirs && weightfs metadata get theirs a && chmod 755 . && cmp m.safetensors several/a.safetensors"));
    assert!(listed(scene.dir.path()).iter().all(|name| !name.starts_with('.')));
}

#[test]
fn full_disk_leaves_the_file_unchanged() {
    if crate::support::is_skipped(crate::support::not_root()) {
        return;
    }
    FILES.into_iter().for_each(write_to_full_disk);
}

fn write_to_full_disk(file: &str) {
    let scene = scene_of(file);
    let full =
        Namespace::new(&scene, &format!("mkdir full && mount -t tmpfs -o size=400k full full && cp {file} full"));
    let state = format!("ls -la full && sha256sum full/{file}");
    let before = full.ok(&state);
    // RLIMIT_FSIZE, at which the kernel sends SIGXFSZ, leaves the file unchanged too.
    let said = scene.sh(&format!("ulimit -f 100; weightfs metadata set {file} a=b"));
    assert_eq!((said.code, &said.err[..]), (1, &format!("weightfs: {file}: File too large\n")[..]));
    for line in ["set full/FILE a=b", "remove full/FILE title", "set FILE a=b -o full/out"] {
        let said = full.sh(&format!("weightfs metadata {}", line.replace("FILE", file)));
        assert!(said.code == 1 && said.err.ends_with(": No space left on device\n"), "{line}: {said:?}");
        assert_eq!(full.ok(&state), before, "{line}");
    }
}

/// A model of each format whose metadata can be changed.
const FILES: [&str; 2] = ["m.safetensors", "m.gguf"];

/// Size of the data of a large model.
const LARGE: usize = 24 << 20;

/// Writes a model with 24 MiB of data and a copy with a changed title, and returns the bytes of both.
fn large(scene: &Scene, file: &str) -> (Vec<u8>, Vec<u8>) {
    let names: Vec<String> = (0..24).map(|at| format!("layers.{at}.weight")).collect();
    let path = scene.path(file);
    if file.ends_with(".gguf") {
        let tensors: Vec<gguf::Tensor> =
            names.iter().map(|name| (&name[..], 30, &[1024, 512][..], pattern(1 << 20))).collect();
        let filler = vec![b'x'; (0..32).find(|len| has_room(*len, &tensors)).unwrap()];
        std::fs::write(&path, gguf::file(&titled(filler), &tensors)).unwrap();
    } else {
        let tensors: Vec<_> =
            names.iter().map(|name| (&name[..], Dtype::BF16, &[512, 1024][..], pattern(1 << 20))).collect();
        scene.model(file, &tensors, &[("title", "first")]);
    }
    let old = std::fs::read(&path).unwrap();
    scene.ok(&format!("weightfs metadata set {file} title=second --force -o changed"));
    let new = std::fs::read(scene.path("changed")).unwrap();
    assert!(new != old && new[new.len() - LARGE..] == old[old.len() - LARGE..]);
    (old, new)
}

/// Metadata with a title, and a value that changes the length of the header.
fn titled(filler: Vec<u8>) -> [(&'static str, Vec<u8>); 2] {
    [("title", gguf::text(b"first")), ("filler", gguf::text(&filler))]
}

/// Whether the padding of a header with a filler of `len` bytes has room for a title that is a byte longer.
fn has_room(len: usize, tensors: &[gguf::Tensor]) -> bool {
    let tensors: Vec<_> = tensors.iter().map(|(name, kind, dims, _)| (*name, *kind, *dims, vec![])).collect();
    let head = gguf::file(&titled(vec![b'x'; len]), &tensors).len();
    head == gguf::file(&titled(vec![b'x'; len + 1]), &tensors).len()
}

fn set_title(scene: &Scene, file: &str) -> Command {
    let mut command = Command::new(WEIGHTFS);
    command.args(["metadata", "set", file, "title=second"]).current_dir(scene.dir.path());
    command.stdin(Stdio::null());
    command
}

#[test]
fn concurrent_changes_are_all_applied() {
    FILES.into_iter().for_each(apply_concurrent_changes);
}

fn apply_concurrent_changes(file: &str) {
    let scene = Scene::new();
    large(&scene, file);
    for round in 0..10 {
        let keys: Vec<String> = (0..3).map(|at| format!("key{round}.{at}")).collect();
        let set = |key: &String| {
            let pair = format!("{key}=x");
            scene.command("weightfs").args(["metadata", "set", file, &pair]).spawn().unwrap()
        };
        for mut child in keys.iter().map(set).collect::<Vec<_>>() {
            assert!(child.wait().unwrap().success());
        }
        let found = scene.ok(&format!("weightfs metadata get {file}"));
        assert!(keys.iter().all(|key| found.contains(&format!("{key}=x\n"))), "{found}");
    }
    // A command that waits for the lock reports that and can be interrupted.
    let wait =
        "weightfs metadata set FILE late=x 2>said & until grep -q waiting said; do sleep 0.02; done; kill $!; wait $!";
    let wait = wait.replace("FILE", file);
    assert_eq!(scene.sh(&format!("flock {file} sh -c '{wait}'")).code, 1);
    let text = format!(
        "weightfs: {file}: locked by another program; waiting for it\nweightfs: interrupted; no file was written\n"
    );
    assert_eq!(scene.ok("cat said"), text);
    let copy = "flock FILE weightfs metadata set FILE late=x --force -o copy && flock FILE weightfs metadata clear --dry-run FILE";
    scene.ok(&copy.replace("FILE", file));
}

#[test]
fn kill_leaves_a_complete_file() {
    FILES.into_iter().for_each(kill_at_every_moment);
}

fn kill_at_every_moment(file: &str) {
    let scene = Scene::new();
    let path = scene.path(file);
    let (old, new) = large(&scene, file);
    let (mut killed, mut replaced, mut delay) = (0, 0, Duration::ZERO);
    // The kill comes later and later, until it is too late several times, so every phase is covered on any machine.
    while killed < 60 || replaced < 5 {
        let mut child = set_title(&scene, file).spawn().unwrap();
        let started = Instant::now();
        while started.elapsed() < delay {
            std::hint::spin_loop();
        }
        let _ = child.kill();
        let status = child.wait().unwrap();
        let found = std::fs::read(&path).unwrap();
        assert!(found == old || found == new, "after {delay:?}: neither the old file nor the new one");
        killed += usize::from(!status.success());
        if status.success() {
            assert!(found == new, "after {delay:?}: exit code 0, but not the new file");
        }
        // A file with a temporary name is complete, and may stay behind: the new file, or the old one after the
        // exchange of their names.
        for name in listed(scene.dir.path()).iter().filter(|name| name.starts_with('.')) {
            assert!(name.starts_with(&format!(".{file}.")) && name.ends_with(".weightfs-tmp"), "{name}");
            let left = std::fs::read(scene.path(name)).unwrap();
            assert!(if found == new { left == old } else { left == new }, "{name}");
            std::fs::remove_file(scene.path(name)).unwrap();
        }
        if found == new {
            replaced += 1;
            std::fs::write(&path, &old).unwrap();
            delay = delay.mul_f64(0.7);
        }
        delay = delay.mul_f64(1.08) + Duration::from_micros(200);
    }
}

#[test]
fn write_error_leaves_the_old_file() {
    FILES.into_iter().for_each(write_with_limits);
}

fn write_with_limits(file: &str) {
    let scene = Scene::new();
    let path = scene.path(file);
    let (old, new) = large(&scene, file);
    let len = new.len() as u64;
    let header = len - LARGE as u64;
    // A write beyond the limit gives EFBIG and SIGXFSZ, which ends a program by default.
    for limit in [0, 1, 7, 8, header - 1, header, header + 1, 4096, 8192, 1 << 20, len / 2, len - 4096, len - 1, len] {
        let limit_arg = format!("--fsize={limit}");
        let mut command = Command::new("prlimit");
        command.args(["--core=0", &limit_arg, WEIGHTFS, "metadata", "set", file, "title=second"]);
        let said = Said::of(command.current_dir(scene.dir.path()).stdin(Stdio::null()));
        let found = std::fs::read(&path).unwrap();
        if limit < len {
            let refused = format!("weightfs: {file}: File too large\n");
            assert_eq!((said.code, said.err), (1, refused), "{limit}");
            assert!(found == old, "{limit}");
        } else {
            assert!(said.code == 0 && found == new, "{limit}: {said:?}");
        }
        assert_eq!(listed(scene.dir.path()), ["bin", "changed", file], "{limit}");
    }
}

#[test]
fn interrupt_removes_the_named_temporary_file() {
    if crate::support::is_skipped(crate::support::not_root()) {
        return;
    }
    FILES.into_iter().for_each(interrupt);
}

fn interrupt(file: &str) {
    let scene = Scene::new();
    let path = scene.path(file);
    let (old, new) = large(&scene, file);
    // Without /proc, an unnamed file cannot get a name later, so the temporary file has one.
    let bare = Namespace::new(&scene, "mount -t tmpfs none /proc");
    let unfinished = || {
        let mut names = listed(scene.dir.path()).into_iter().filter(|name| name.starts_with('.'));
        names.next().inspect(|name| {
            assert!(name.starts_with(&format!(".{file}.")) && name.ends_with(".weightfs-tmp"), "{name}");
        })
    };
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGKILL] {
        std::fs::write(&path, &old).unwrap();
        let mut command = bare.command(&format!("exec weightfs metadata set {file} title=second"));
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let begun = Instant::now();
        while unfinished().is_none() && child.try_wait().unwrap().is_none() {
            assert!(begun.elapsed() < Duration::from_secs(60));
        }
        if child.try_wait().unwrap().is_none() {
            kill(Pid::from_raw(child.id() as i32), signal).unwrap();
        }
        let output = child.wait_with_output().unwrap();
        let found = std::fs::read(&path).unwrap();
        match output.status.code() {
            // The signal came too late.
            Some(0) => assert!(found == new && unfinished().is_none(), "{signal}"),
            Some(code) => {
                let said = String::from_utf8(output.stderr).unwrap();
                assert_eq!((code, &said[..]), (1, "weightfs: interrupted; no file was written\n"), "{signal}");
                assert!(found == old && unfinished().is_none(), "{signal}");
            }
            None => {
                assert_eq!((signal, output.status.signal()), (Signal::SIGKILL, Some(libc::SIGKILL)));
                assert!(found == old || found == new);
                unfinished().inspect(|name| std::fs::remove_file(scene.path(name)).unwrap());
            }
        }
    }
    std::fs::write(&path, &old).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
    bare.ok(&format!("weightfs metadata set {file} title=second"));
    assert!(std::fs::read(&path).unwrap() == new && unfinished().is_none());
    assert_eq!(path.metadata().unwrap().mode() & 0o7777, 0o604);
}

/// Whether the kernel supports a file system or can load its module.
fn kernel_has(kind: &str) -> bool {
    let supported = || std::fs::read_to_string("/proc/filesystems").unwrap().contains(&format!("\t{kind}\n"));
    supported()
        || Command::new("modprobe").args(["-q", kind]).status().is_ok_and(|status| status.success()) && supported()
}

#[test]
fn data_is_shared_on_file_systems_with_reflinks() {
    if crate::support::is_skipped(crate::support::not_root()) {
        return;
    }
    FILES.into_iter().for_each(share_data);
}

fn share_data(file: &str) {
    /// The bytes that both files share on the disk, as found by `weightfs diff`, which does not read them.
    fn shared(disk: &Namespace, pair: &str) -> u64 {
        let said = disk.sh(&format!("weightfs diff --data --json {pair}"));
        // The exit code is 1 because the metadata differs.
        assert_eq!((said.code, &said.err[..]), (1, ""), "{pair}");
        let said: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        assert!(said["data"]["different"].as_array().unwrap().is_empty());
        said["data"]["shared"].as_u64().unwrap()
    }
    for kind in ["xfs", "btrfs", "ext4"] {
        if !kernel_has(kind) {
            // Written directly, because the test harness hides what `eprintln!` prints in a passing test.
            let _ = writeln!(std::io::stderr(), "{kind}: skipped: this kernel does not support it");
            continue;
        }
        let scene = Scene::new();
        let (old, new) = large(&scene, file);
        // The loop device is released with its mount.
        let setup = format!(
            "mkdir fs && truncate -s 400M disk && mkfs.{kind} -q disk >mkfs.log && mount -o loop disk fs && cp {file} fs && sync -f fs"
        );
        let disk = Namespace::new(&scene, &setup);
        let used = || -> u64 {
            let found = disk.ok("sync -f fs; stat -f -c '%b %f %S' fs");
            let found: Vec<u64> = found.split_whitespace().map(|number| number.parse().unwrap()).collect();
            (found[0] - found[1]) * found[2]
        };
        let before = used();
        let long = "x".repeat(20_000);
        // Metadata that fits in the old header, that needs a longer header, and that needs a shorter one.
        disk.ok(&format!("weightfs metadata set fs/{file} title=second --force -o fs/a"));
        disk.ok(&format!("weightfs metadata set fs/{file} title={long} --force -o fs/b"));
        disk.ok("weightfs metadata clear fs/b --force -o fs/c");
        assert!(std::fs::read(scene.path(file)).unwrap() == old);
        disk.ok(&format!("cmp fs/a changed && cmp fs/{file} {file}"));
        assert_eq!(disk.ok("weightfs metadata get fs/b title").len(), long.len() + 1);
        let taken = used().saturating_sub(before);
        let data = LARGE as u64;
        for (pair, is_in_place) in
            [(format!("fs/{file} fs/a"), true), (format!("fs/{file} fs/b"), false), ("fs/b fs/c".to_owned(), false)]
        {
            let shared = shared(&disk, &pair);
            match kind {
                "ext4" => assert_eq!(shared, 0, "{kind} {pair}"),
                // The padding of a GGUF header is shorter than a block, so its data moves within a block.
                _ if file == "m.gguf" && !is_in_place => assert_eq!(shared, 0, "{kind} {pair}"),
                // All data except what shares a block with the header.
                _ => assert!((data - 4096..=data).contains(&shared), "{kind} {pair}: {shared}"),
            }
        }
        match kind {
            "ext4" => assert!(taken > 3 * data, "{kind}: {taken}"),
            _ if file == "m.gguf" => assert!((2 * data..data * 9 / 4).contains(&taken), "{kind}: {taken}"),
            _ => assert!(taken < data / 4, "{kind}: {taken}"),
        }
        // Data that is written but not yet on the disk is not shared, although the file system still reports the old
        // extent.
        if kind != "ext4" {
            disk.ok(&format!("cp --reflink=always fs/{file} fs/d && sync -f fs"));
            disk.ok("printf x | dd of=fs/d bs=1 seek=9000000 conv=notrunc status=none");
            let said = disk.sh(&format!("weightfs diff --data fs/{file} fs/d"));
            assert!(said.code == 1 && said.out.contains("data: 1 different, 23 equal; "), "{kind}: {said:?}");
        }
        // A change in place gives the same bytes as the changed copy.
        disk.ok(&format!("weightfs metadata set fs/{file} title=second && cmp fs/{file} fs/a"));
        assert!(new == std::fs::read(scene.path("changed")).unwrap());
    }
}
