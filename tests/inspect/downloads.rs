//! Files that were downloaded: the cache of the Hugging Face Hub, and the sums that files must have.

use crate::room::{Room, floats};
use safetensors::Dtype;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// A model of one tensor, and its SHA-256.
fn model(room: &Room, path: &str) -> String {
    room.model(path, &[("a", Dtype::F32, &[2], floats(&[1.0, 2.0]))], &[("format", "pt")]);
    Sha256::digest(fs::read(room.path(path)).unwrap()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A repository in a cache of the Hub, with one snapshot that has no files, and the path of that.
fn repository(room: &Room) -> (PathBuf, PathBuf) {
    let dir = room.path("hf/hub/models--org--name");
    let snapshot = dir.join("snapshots").join(COMMIT);
    for dir in [&snapshot, &dir.join("blobs"), &dir.join("refs")] {
        fs::create_dir_all(dir).unwrap();
    }
    fs::write(dir.join("refs/main"), COMMIT).unwrap();
    (dir, snapshot)
}

#[test]
fn what_was_not_downloaded_is_named_with_the_command_that_does() {
    let room = Room::new();
    let (dir, snapshot) = repository(&room);
    let failure = |args: &str| {
        let said = room.sh(&format!("weightfs {args}"));
        assert_eq!((said.code != 0, said.out.as_str(), said.err.lines().count()), (true, "", 1), "{said:?}");
        said.err
    };
    let (repo, at) = ("hf/hub/models--org--name", format!("hf/hub/models--org--name/snapshots/{COMMIT}"));
    // Without weights, and for those of a dataset.
    fs::write(snapshot.join("config.json"), "{}").unwrap();
    fs::create_dir(snapshot.join("sub")).unwrap();
    let command = format!("; if the weights were not downloaded: `hf download org/name --revision {COMMIT}`\n");
    for verb in ["ls", "check", "inspect", "mount"] {
        let found = failure(&format!("{verb} {at}"));
        assert!(found.starts_with(&format!("weightfs: {at}: a directory without models, whose names end")), "{found}");
        assert!(found.ends_with(&command), "{found}");
    }
    let command = format!("`hf download org/name --include 'sub/*' --revision {COMMIT}`\n");
    assert!(failure(&format!("ls {at}/sub")).ends_with(&command));
    assert!(failure(&format!("ls {repo}")).ends_with("; if the weights were not downloaded: `hf download org/name`\n"));
    fs::create_dir_all(room.path("datasets--a--b/snapshots/x")).unwrap();
    fs::create_dir_all(room.path("datasets--a--b/refs")).unwrap();
    let expected = "`hf download a/b --repo-type dataset --revision x`\n";
    assert!(failure("ls datasets--a--b/snapshots/x").ends_with(expected));
    // Names that a shell or the command would take for something else give no command, and neither do directories that
    // only have a similar name.
    for name in ["models--a;touch x;--b", "models---x--y", "models--$(id)--b"] {
        fs::create_dir_all(room.path(name).join("snapshots/x")).unwrap();
        fs::create_dir_all(room.path(name).join("blobs")).unwrap();
        assert!(!failure(&format!("ls '{name}/snapshots/x'")).contains("hf download"), "{name}");
    }
    fs::create_dir_all(room.path("models--backup/x")).unwrap();
    assert!(!failure("ls models--backup/x").contains("download"));
    // A link to a file that is missing, or whose download has not ended.
    symlink("../../blobs/abc", snapshot.join("model.safetensors")).unwrap();
    let command = format!(" (to download it: `hf download org/name model.safetensors --revision {COMMIT}`)\n");
    for source in [at.clone(), format!("{at}/model.safetensors")] {
        let missing = "not downloaded: a link to ../../blobs/abc, which does not exist";
        assert_eq!(failure(&format!("ls {source}")), format!("weightfs: {at}/model.safetensors: {missing}{command}"));
    }
    fs::write(dir.join("blobs/abc.4711.incomplete"), "12345").unwrap();
    let unfinished = format!("not downloaded completely: blobs/abc.4711.incomplete has 5 bytes{command}");
    assert_eq!(failure(&format!("ls {at}")), format!("weightfs: {at}/model.safetensors: {unfinished}"));
    let blob = format!("{repo}/blobs/abc.4711.incomplete");
    let expected = format!("weightfs: {blob}: not downloaded completely (to continue: `hf download org/name`)\n");
    assert_eq!(failure(&format!("ls {blob}")), expected);
    // Elsewhere, a link has no command.
    symlink("gone/x", room.path("l.safetensors")).unwrap();
    let expected = "weightfs: l.safetensors: a link to gone/x, which does not exist\n";
    assert_eq!(failure("ls l.safetensors"), expected);
}

#[test]
#[cfg(feature = "remote")]
fn cache_of_the_hub_is_read_offline() {
    let room = Room::new();
    let (dir, snapshot) = repository(&room);
    let sum = model(&room, "hf/x.safetensors");
    fs::rename(room.path("hf/x.safetensors"), dir.join("blobs").join(&sum)).unwrap();
    symlink(format!("../../blobs/{sum}"), snapshot.join("model.safetensors")).unwrap();
    let run = |args: &str| room.sh(&format!("export HF_HOME=$PWD/hf XDG_CACHE_HOME=$PWD/cache; {args}"));
    let sources = ["hf://org/name", "https://huggingface.co/org/name", "hf://org/name/model.safetensors"];
    for offline in ["HF_HUB_OFFLINE=1 weightfs ls", "TRANSFORMERS_OFFLINE=1 weightfs ls", "weightfs ls --offline"] {
        for source in sources {
            let said = run(&format!("{offline} {source}"));
            assert_eq!((said.code, said.err.as_str()), (0, ""), "{offline} {source}");
            assert!(said.out.contains("[2]"), "{said:?}");
        }
        let said = run(&format!("{offline} hf://org/name/other.safetensors"));
        let expected = "weightfs is offline, and other.safetensors is not in the Hugging Face cache\n";
        assert!(said.code == 1 && said.err.ends_with(expected), "{said:?}");
    }
    // A branch that is not known by name.
    for (revision, name) in [("@v1", "v1"), ("", "main")] {
        fs::remove_file(dir.join("refs/main")).ok();
        let said = run(&format!("HF_HUB_OFFLINE=1 HF_ENDPOINT=http://other weightfs ls hf://org/name{revision}"));
        let expected = format!(
            "weightfs is offline, and revision {name} is not in the Hugging Face cache; the cache has hf://org/name@{COMMIT}\n"
        );
        assert!(said.code == 1 && said.err.ends_with(&expected), "{said:?}");
    }
    assert_eq!(run(&format!("HF_HUB_OFFLINE=1 weightfs ls hf://org/name@{COMMIT}")).code, 0);
}

#[test]
fn sums_of_whole_files_are_verified() {
    let room = Room::new();
    let sum = model(&room, "m.safetensors");
    let verified = |args: &str| {
        let [ref object] = room.json(&format!("weightfs check --json {args}"))[..] else { panic!("{args}") };
        (object["verified"].clone(), object["findings"].clone())
    };
    let one = |key: &str| json!([{"file": "m.safetensors", "key": key}]);
    assert_eq!(verified("m.safetensors"), (json!([]), json!([])));
    for form in [sum.clone(), sum.to_uppercase(), format!("sha256:{sum}")] {
        let expected = (one("SHA-256 (--sha256)"), json!([]));
        assert_eq!(verified(&format!("--sha256 {form} m.safetensors")), expected);
    }
    // The list that sha256sum writes, also with names in other directories and of other files.
    room.ok("sha256sum m.safetensors >SHA256SUMS && echo 0000 >>SHA256SUMS && sha256sum SHA256SUMS >>SHA256SUMS");
    for args in ["m.safetensors", "--values m.safetensors", "."] {
        let (keys, findings) = verified(args);
        assert_eq!((keys[0]["key"].as_str(), findings), (Some("SHA-256 (SHA256SUMS)"), json!([])), "{args}");
    }
    assert!(room.ok("weightfs check m.safetensors").contains("SHA-256 (SHA256SUMS) verified"));
    assert_eq!(verified("--no-data m.safetensors").0, json!([]));
    // Each byte counts: those of the header, of the data, and of the end.
    let bytes = fs::read(room.path("m.safetensors")).unwrap();
    let other = |sum: &str| sum.replace(&sum[..1], if sum.starts_with('0') { "1" } else { "0" });
    for at in [bytes.len() - 12, bytes.len() - 1] {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        fs::write(room.path("m.safetensors"), &changed).unwrap();
        let said = room.sh("weightfs check m.safetensors");
        assert!(said.code == 1 && said.out.contains("m.safetensors: error: the SHA-256 of the file is "), "{said:?}");
        assert!(said.out.contains(&format!("but SHA256SUMS says {sum}\n    (the download broke")), "{said:?}");
    }
    fs::write(room.path("m.safetensors"), &bytes).unwrap();
    let (keys, findings) = verified(&format!("--sha256 {} m.safetensors", other(&sum)));
    assert_eq!((keys, findings[0]["rule"].as_str()), (one("SHA-256 (SHA256SUMS)"), Some("file-hash")));
    // The names of blobs in a cache of the Hub and in a store of Ollama.
    for (name, link) in [(sum.clone(), "a.safetensors"), (format!("sha256-{sum}"), "b.safetensors")] {
        fs::create_dir_all(room.path("cache/blobs")).unwrap();
        fs::write(room.path("cache/blobs").join(&name), &bytes).unwrap();
        symlink(format!("blobs/{name}"), room.path("cache").join(link)).unwrap();
        for file in [format!("cache/{link}"), format!("cache/blobs/{name}")] {
            assert_eq!(verified(&file).0, json!([{"file": file, "key": "SHA-256 (its name in blobs/)"}]));
        }
        fs::write(room.path("cache/blobs").join(&name), [&bytes[..bytes.len() - 1], b"x"].concat()).unwrap();
        assert_eq!(verified(&format!("cache/{link}")).1[0]["rule"], "file-hash");
    }
}

#[test]
fn sums_that_cannot_be_compared_are_reported() {
    let room = Room::new();
    let sum = model(&room, "a.safetensors");
    model(&room, "b.safetensors");
    let failure = |args: &str| {
        let said = room.sh(&format!("weightfs check {args}"));
        assert_eq!((said.code, said.out.as_str(), said.err.lines().count()), (2, "", 1), "{said:?}");
        said.err
    };
    let advice = "; to check several, put their sums into a file SHA256SUMS beside them\n";
    let expected = format!("weightfs: --sha256 is for one file, not for 2 models{advice}");
    assert_eq!(failure(&format!("--sha256 {sum} a.safetensors b.safetensors")), expected);
    let index = json!({"weight_map": {"a": "a.safetensors", "b": "b.safetensors"}}).to_string();
    room.model("b.safetensors", &[("b", Dtype::F32, &[1], floats(&[1.0]))], &[]);
    fs::write(room.path("m.safetensors.index.json"), index).unwrap();
    let expected =
        format!("weightfs: m.safetensors.index.json: --sha256 is for one file, and this model has 2{advice}");
    assert_eq!(failure(&format!("--sha256 {sum} m.safetensors.index.json")), expected);
    assert!(failure("--sha256 12 a.safetensors").contains("a SHA-256 has 64 hexadecimal digits"));
    // A list that cannot be read, or that has no line for the file, is a note: the file itself may be good.
    let note = |list: &str| {
        room.ok(&format!("rm -rf SHA256SUMS; {list}"));
        let out = room.ok("weightfs check a.safetensors");
        assert!(out.contains("OK, with 1 note"), "{list}: {out}");
        assert!(room.ok("weightfs check --no-data a.safetensors").contains("safetensors: OK ("), "{list}");
        out
    };
    assert!(note("mkdir SHA256SUMS").contains("SHA256SUMS cannot be read: "));
    assert!(note("ln -s nowhere SHA256SUMS").contains("SHA256SUMS: a link to nowhere, which does not exist"));
    let line = "a.safetensors: note: SHA256SUMS has no line for the file, so it is not compared\n";
    assert!(note("sha256sum b.safetensors >SHA256SUMS").starts_with(line));
    assert!(note(&format!("printf '{sum}  a.safetensors' | iconv -t UTF-16 >SHA256SUMS")).starts_with(line));
    // A byte order mark is no part of the first sum.
    room.ok(&format!("printf '\\xef\\xbb\\xbf{sum}  a.safetensors\\n' >SHA256SUMS"));
    assert!(room.ok("weightfs check a.safetensors").contains("SHA-256 (SHA256SUMS) verified"));
}
