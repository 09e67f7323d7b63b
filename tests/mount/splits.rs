//! GGUF models of several files: the splits are one model, and their keys are compared with their names.

use crate::support::{Scene, python, require_fuse, run_ok};
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

/// Runs `splits.py`.
fn package<const N: usize>(args: [&OsStr; N]) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/splits.py");
    run_ok(python().to_str().unwrap(), std::iter::once(script.as_os_str()).chain(args));
}

/// A value of a metadata key.
#[derive(Clone, Copy)]
enum Value {
    U16(u16),
    I32(i32),
    U64(u64),
    Text(&'static str),
}
use Value::{I32, Text, U16, U64};

/// A GGUF file with these keys and with F32 tensors of one element, whose value is their number.
fn gguf(keys: &[(&str, Value)], tensors: &[&str]) -> Vec<u8> {
    let string = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let mut file = [b"GGUF".to_vec(), 3u32.to_le_bytes().to_vec()].concat();
    file.extend((tensors.len() as u64).to_le_bytes());
    file.extend((keys.len() as u64).to_le_bytes());
    for (key, value) in keys {
        file.extend(string(key));
        let (kind, bytes): (u32, Vec<u8>) = match value {
            U16(number) => (2, number.to_le_bytes().to_vec()),
            I32(number) => (5, number.to_le_bytes().to_vec()),
            Text(text) => (8, string(text)),
            U64(number) => (10, number.to_le_bytes().to_vec()),
        };
        file.extend(kind.to_le_bytes());
        file.extend(bytes);
    }
    for (at, name) in tensors.iter().enumerate() {
        file.extend(string(name));
        file.extend(1u32.to_le_bytes());
        file.extend(1u64.to_le_bytes());
        file.extend(0u32.to_le_bytes());
        file.extend((at as u64 * 32).to_le_bytes());
    }
    file.resize(file.len().next_multiple_of(32), 0);
    for at in 0..tensors.len() {
        file.extend((at as f32).to_le_bytes());
        file.resize(file.len().next_multiple_of(32), 0);
    }
    file
}

/// The keys of a split.
fn split(no: u16, count: u16, tensors: i32) -> [(&'static str, Value); 3] {
    [("split.no", U16(no)), ("split.count", U16(count)), ("split.tensors.count", I32(tensors))]
}

const NAMES: [&str; 3] = ["m-00001-of-00003.gguf", "m-00002-of-00003.gguf", "m-00003-of-00003.gguf"];

/// Writes three sound splits with one, two and one tensors to a new directory `m`.
fn sound(scene: &Scene) {
    scene.mkdir("m");
    let all: [&[&str]; 3] = [&["a"], &["b", "c"], &["d"]];
    for (at, (name, tensors)) in NAMES.iter().zip(all).enumerate() {
        let first: &[(&str, Value)] = if at == 0 { &[("general.architecture", Text("llama"))] } else { &[] };
        write(scene, name, &[first, &split(at as u16, 3, 4)[..]].concat(), tensors);
    }
}

fn write(scene: &Scene, name: &str, keys: &[(&str, Value)], tensors: &[&str]) {
    fs::write(scene.path("m").join(name), gguf(keys, tensors)).unwrap();
}

#[test]
fn splits_are_one_model_whichever_is_named() {
    require_fuse!();
    let scene = Scene::new();
    let (dir, hub, blobs) = (scene.mkdir("dir"), scene.mkdir("hub"), scene.mkdir("blobs"));
    package(["write".as_ref(), scene.dir.path().as_os_str()]);
    let files = ["tiny-00001-of-00003.gguf", "tiny-00002-of-00003.gguf", "tiny-00003-of-00003.gguf"];
    for (at, file) in files.iter().enumerate() {
        fs::rename(scene.path(file), dir.join(file)).unwrap();
        // A cache of the Hub: links to files with other names.
        fs::copy(dir.join(file), blobs.join(at.to_string())).unwrap();
        symlink(format!("../blobs/{at}"), hub.join(file)).unwrap();
    }
    let one = scene.path("one.gguf");
    let names: Vec<String> = scene.mount(&one, &[]).list("tensors");
    for source in [dir.join(files[0]), dir.join(files[2]), dir.clone(), hub.clone(), hub.join(files[1])] {
        let mount = scene.mount(&source, &[]);
        assert_eq!(mount.list("shards"), files);
        assert_eq!(mount.list("export"), ["tiny-bf16.safetensors", "tiny-f32.safetensors", "tiny-whole.gguf"]);
        package(["same".as_ref(), mount.path("export/tiny-whole.gguf").as_os_str(), one.as_os_str()]);
        assert_eq!(mount.list("tensors"), names);
        // The metadata is that of the model, and each split has its own.
        assert_eq!(mount.read("metadata/general.name"), b"Split Model");
        assert!(!mount.path("metadata/split.no").exists() && !mount.path("header.json").exists());
        let json: serde_json::Value = serde_json::from_slice(&mount.read("metadata.json")).unwrap();
        assert!(json.as_object().unwrap().keys().all(|key| !key.starts_with("split.")), "{json}");
        for (at, file) in files.iter().enumerate() {
            assert_eq!(mount.read(format!("shards/{file}/metadata/split.no")), at.to_string().as_bytes());
            let mut own = mount.list(format!("shards/{file}"));
            own.sort();
            assert_eq!(own, ["metadata", "metadata.json"]);
            assert_eq!(mount.path(format!("shards/{file}/metadata/general.name")).exists(), at == 0);
        }
        // A tensor of the last split as a file of its own has the keys of the model.
        let single = mount.read("gguf/output_norm.weight.gguf");
        assert!(single.windows(11).any(|part| part == b"Split Model"));
        let attribute = |tensor: &str| {
            let path = mount.path(format!("tensors/{tensor}"));
            String::from_utf8(xattr::get(path, "user.weightfs.shard").unwrap().unwrap()).unwrap()
        };
        assert_eq!([attribute("token_embd.weight"), attribute("output_norm.weight")], [files[0], files[2]]);
        let index: serde_json::Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
        let mut size = 0;
        for tensor in index["tensors"].as_array().unwrap() {
            let shard = fs::read(dir.join(tensor["shard"].as_str().unwrap())).unwrap();
            let bytes = mount.read(tensor["file"].as_str().unwrap());
            size += bytes.len().next_multiple_of(512);
            assert!(shard[tensor["offset"].as_u64().unwrap() as usize..].starts_with(&bytes), "{tensor}");
        }
        let tensors = fs::read_dir(mount.path("tensors")).unwrap();
        let blocks: u64 = tensors.map(|entry| entry.unwrap().metadata().unwrap().blocks()).sum();
        assert_eq!(blocks * 512, size as u64);
        scene.ok(&format!("cd {} && sha256sum --quiet -c SHA256SUMS", mount.point.display()));
        assert_eq!(mount.log(), "");
    }
}

#[test]
fn first_split_without_tensors_and_a_split_that_is_alone_are_read() {
    require_fuse!();
    let scene = Scene::new();
    package(["write".as_ref(), scene.dir.path().as_os_str()]);
    let mount = scene.mount(&scene.path("bare-00002-of-00004.gguf"), &[]);
    assert_eq!(mount.list("tensors").len(), 5);
    package(["same".as_ref(), mount.path("export/bare-whole.gguf").as_os_str(), scene.path("one.gguf").as_os_str()]);
    drop(mount);
    // The only split of one, as llama-gguf-split writes it.
    scene.mkdir("m");
    write(&scene, "n-00001-of-00001.gguf", &split(0, 1, 1), &["a"]);
    // A file with the name of a split, but without the keys.
    write(&scene, "k-00002-of-00003.gguf", &[], &["a"]);
    // A file into which splits were merged.
    write(&scene, "merged.gguf", &split(0, 0, 7), &["a"]);
    // A renamed split.
    write(&scene, "renamed.gguf", &split(1, 3, 7), &["a"]);
    let remark = "weightfs: m/k-00002-of-00003.gguf: its name says split 2 of 3, but its keys do not; it is treated \
                  as a model of its own\n";
    let renamed = "weightfs: m/renamed.gguf: its keys say that it is split 2 of 3, but its name does not \
                   (PREFIX-00001-of-00003.gguf); only its own tensors are shown\n";
    for (file, said) in [("n-00001-of-00001", ""), ("k-00002-of-00003", remark), ("merged", ""), ("renamed", renamed)] {
        let listed = scene.sh(&format!("weightfs ls --no-headings m/{file}.gguf"));
        assert_eq!((listed.code, &listed.err[..]), (0, said), "{file}");
        assert!(listed.out.ends_with(" a\n") && listed.out.lines().count() == 1, "{listed:?}");
        let checked = scene.sh(&format!("weightfs check --json m/{file}.gguf"));
        assert_eq!((checked.code, checked.out.contains("split-name")), (0, !said.is_empty()), "{checked:?}");
    }
    // In a directory, every one of them is a model, and a split has the name of its model.
    let mount = scene.mount(&scene.path("m"), &[]);
    let mut models = mount.list("");
    models.sort();
    assert_eq!(models, ["k", "merged", "n", "renamed"]);
    assert_eq!(mount.list("n/export"), ["n-bf16.safetensors", "n-f32.safetensors", "n-whole.gguf"]);
}

#[test]
fn commands_take_splits_as_one_model() {
    let scene = Scene::new();
    package(["write".as_ref(), scene.dir.path().as_os_str()]);
    for command in ["id", "summary", "ls --json", "check --json", "inspect --json"] {
        // Every split is named, and the model is read once.
        let all = scene.ok(&format!("weightfs {command} tiny-*.gguf"));
        assert_eq!(all, scene.ok(&format!("weightfs {command} tiny-00001-of-00003.gguf")), "{command}");
    }
    let hash = |file: &str| scene.ok(&format!("weightfs id {file}")).split_whitespace().next().unwrap().to_owned();
    assert_eq!(hash("tiny-00003-of-00003.gguf"), hash("one.gguf"));
    scene.ok("weightfs diff --data tiny-00002-of-00003.gguf one.gguf");
    let listed = scene.ok("weightfs ls --no-headings tiny-00003-of-00003.gguf");
    assert!(listed.contains("tiny-00001-of-00003.gguf  token_embd.weight\n"), "{listed}");
    assert!(scene.ok("weightfs inspect tiny-00003-of-00003.gguf").contains("gguf, 3 splits"));
    let checked = scene.ok("weightfs check tiny-00003-of-00003.gguf");
    assert!(checked.starts_with("tiny-00003-of-00003.gguf: OK (5 tensors, "), "{checked}");
    require_fuse!();
    // The mount point is named after the model.
    let mounted = scene.sh("weightfs tiny-00002-of-00003.gguf");
    let _unmounted = crate::support::Detached(scene.path("tiny"));
    assert!(mounted.out.contains(" on tiny (unmount: "), "{mounted:?}");
    assert_eq!(fs::read_dir(scene.path("tiny/tensors")).unwrap().count(), 5);
}

#[test]
fn splits_beside_other_models_are_one_folder() {
    require_fuse!();
    let scene = Scene::new();
    sound(&scene);
    write(&scene, "other.gguf", &[], &["x"]);
    write(&scene, "m-00001-of-00002.gguf", &split(0, 2, 2), &["x"]);
    write(&scene, "m-00004-of-00003.gguf", &split(3, 3, 4), &["x"]);
    fs::write(scene.path("m/notes.txt"), "").unwrap();
    let mount = scene.mount(&scene.path("m"), &[]);
    let mut listed = mount.list("");
    listed.sort();
    // Three models would be called `m`, so they are named after their files.
    let expected = [
        "m-00001-of-00002.gguf.error.txt",
        "m-00001-of-00003.gguf",
        "m-00004-of-00003.gguf.error.txt",
        "notes.txt",
        "other",
    ];
    assert_eq!(listed, expected);
    assert_eq!(mount.list("m-00001-of-00003.gguf/tensors"), ["a", "b", "c", "d"]);
    let said = String::from_utf8(mount.read(expected[0])).unwrap();
    let missing = "1 of the 2 splits of the model is missing: \"m-00002-of-00002.gguf\"";
    assert!(said.contains(missing) && said.lines().count() == 1, "{said}");
    let said = String::from_utf8(mount.read(expected[2])).unwrap();
    assert!(said.contains("its name says split 4 of 3, but splits are numbered from 1 to 3"), "{said}");
    drop(mount);
    // Only users who can read every split can read the model.
    let mode = |mount: &crate::support::Mount| {
        fs::metadata(mount.path("m-00001-of-00003.gguf/tensors/a")).unwrap().mode() & 0o777
    };
    assert_eq!(mode(&scene.mount(&scene.path("m"), &[])), 0o444);
    fs::set_permissions(scene.path("m").join(NAMES[1]), fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(mode(&scene.mount(&scene.path("m"), &[])), 0o400);
}

#[test]
fn faulty_splits_are_errors_and_lenient_mounts_the_rest() {
    require_fuse!();
    type Change = fn(&Scene);
    let none: &[&str] = &[];
    let cases: [(Change, &str, &[&str]); 14] = [
        (
            |scene| fs::remove_file(scene.path("m").join(NAMES[1])).unwrap(),
            "1 of the 3 splits of the model is missing: \"m-00002-of-00003.gguf\" (--lenient mounts the rest)",
            &["a", "d"],
        ),
        (
            |scene| {
                fs::remove_file(scene.path("m").join(NAMES[0])).unwrap();
                fs::remove_file(scene.path("m").join(NAMES[1])).unwrap();
            },
            "2 of the 3 splits of the model are missing: \"m-00001-of-00003.gguf\", \"m-00002-of-00003.gguf\"",
            &["d"],
        ),
        (
            |scene| {
                fs::remove_file(scene.path("m").join(NAMES[0])).unwrap();
                symlink("gone", scene.path("m").join(NAMES[0])).unwrap();
            },
            "m-00001-of-00003.gguf: a link to gone, which does not exist",
            &["b", "c", "d"],
        ),
        (
            |scene| fs::write(scene.path("m").join(NAMES[1]), "GGUF").unwrap(),
            "m-00002-of-00003.gguf: truncated: the header ",
            &["a", "d"],
        ),
        (
            |scene| write(scene, NAMES[1], &split(2, 3, 4), &["b", "c"]),
            "split \"m-00002-of-00003.gguf\": split.no is 2, but should be 1 in split 2 of 3",
            &["a", "b", "c", "d"],
        ),
        (
            |scene| write(scene, NAMES[1], &split(1, 4, 4), &["b", "c"]),
            "split \"m-00002-of-00003.gguf\": split.count is 4, but its name says 3",
            &["a", "b", "c", "d"],
        ),
        (
            |scene| write(scene, NAMES[2], &split(2, 3, 5), &["d"]),
            "split \"m-00003-of-00003.gguf\": split.tensors.count is 5, but 4 in \"m-00001-of-00003.gguf\"",
            &["a", "b", "c", "d"],
        ),
        (
            |scene| write(scene, NAMES[1], &split(1, 3, 4), &["b"]),
            "split \"m-00001-of-00003.gguf\": split.tensors.count is 4, but the splits have 3 tensors",
            &["a", "b", "d"],
        ),
        (
            |scene| write(scene, NAMES[2], &split(2, 3, 4), &["a"]),
            "tensor \"a\" is in \"m-00001-of-00003.gguf\", and also in \"m-00003-of-00003.gguf\"",
            &["a", "b", "c"],
        ),
        (
            |scene| write(scene, NAMES[0], &[], &["a"]),
            "split \"m-00001-of-00003.gguf\": it has no key split.no, and 2 more",
            &["a", "b", "c", "d"],
        ),
        (
            |scene| write(scene, NAMES[2], &[("split.count", U16(3))], &["d"]),
            "split \"m-00003-of-00003.gguf\": it has no key split.no",
            &["a", "b", "c", "d"],
        ),
        (
            |scene| write(scene, NAMES[1], &[("split.no", Text("1"))], &["b", "c"]),
            "split \"m-00002-of-00003.gguf\": its key split.no is not a whole number",
            &["a", "b", "c", "d"],
        ),
        (
            |scene| write(scene, NAMES[1], &[("split.no", I32(-1)), ("split.count", U64(u64::MAX))], &["b", "c"]),
            "split \"m-00002-of-00003.gguf\": split.no is -1, but should be 1 in split 2 of 3, and 1 more",
            &["a", "b", "c", "d"],
        ),
        (
            |scene| {
                fs::remove_file(scene.path("m").join(NAMES[1])).unwrap();
                fs::hard_link(scene.path("m").join(NAMES[0]), scene.path("m").join(NAMES[1])).unwrap();
            },
            "shards \"m-00001-of-00003.gguf\" and \"m-00002-of-00003.gguf\" are the same file",
            none,
        ),
    ];
    for (change, expected, left) in cases {
        let scene = Scene::new();
        sound(&scene);
        change(&scene);
        // The last split exists in all cases.
        let source = Path::new("m").join(NAMES[2]);
        for line in [format!("weightfs ls {}", source.display()), format!("weightfs -f {} .", source.display())] {
            let said = scene.sh(&line);
            assert!(said.code == 1 && said.err.contains(expected) && said.err.lines().count() == 1, "{said:?}");
            assert!(said.err.starts_with(&format!("weightfs: {}: ", source.display())), "{said:?}");
        }
        let checked = scene.sh(&format!("weightfs check {}", source.display()));
        assert_eq!(checked.code, 1, "{expected}: {checked:?}");
        if left.is_empty() {
            continue;
        }
        let mount = scene.mount(&scene.path(&source), &["--lenient"]);
        assert_eq!(mount.list("tensors"), left, "{expected}");
        let listed: serde_json::Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
        let skipped = listed["skipped"].as_array().unwrap();
        assert!(!skipped.is_empty() && !mount.log().is_empty(), "{expected}: {}", mount.log());
        // A copy of the tensors that are left is a sound model.
        let copy = mount.path("export/m-whole.gguf");
        let said = scene.sh(&format!("weightfs check {}", copy.display()));
        assert_eq!(said.code, 0, "{expected}: {said:?}");
    }
}

#[test]
fn splits_of_another_format_are_left_out() {
    let scene = Scene::new();
    let dir = scene.mkdir("m");
    write(&scene, "a-00001-of-00002.gguf", &split(0, 2, 2), &["one"]);
    let header = br#"{"f":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}}"#;
    let other = [&(header.len() as u64).to_le_bytes()[..], header, &[1, 2, 3, 4]].concat();
    fs::write(dir.join("a-00002-of-00002.gguf"), &other).unwrap();
    let said = scene.sh("weightfs ls m/a-00001-of-00002.gguf");
    let expected = "split \"a-00002-of-00002.gguf\": it is a safetensors file, not GGUF (--lenient mounts the rest)";
    assert!(said.code == 1 && said.err.contains(expected), "{said:?}");
    let list = "weightfs ls --lenient --json m/a-00001-of-00002.gguf 2>/dev/null | jq -c '[.tensors[].name]'";
    assert_eq!(scene.ok(list), "[\"one\"]\n");
    fs::write(dir.join("a-00001-of-00002.gguf"), other).unwrap();
    let said = scene.sh("weightfs ls --lenient m/a-00001-of-00002.gguf");
    assert!(said.code == 1 && said.err.contains("it is a safetensors file"), "{said:?}");
}
