//! Distributed checkpoints with a file `.metadata`: directories that PyTorch and Megatron have written, and damaged
//! copies of them.

use crate::room::Room;
use std::path::{Path, PathBuf};

/// The directories that several processes have written, with the sums of all tensors beside them.
fn written() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/dcp")
}

/// Copies the files of a checkpoint.
fn copy(room: &Room, case: &str, to: &str) -> PathBuf {
    let dir = room.path(to);
    std::fs::create_dir(&dir).unwrap();
    for entry in std::fs::read_dir(written().join(case)).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    dir
}

/// Replaces bytes of the description in a directory by as many others, everywhere.
fn replace(dir: &Path, from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let path = dir.join(".metadata");
    let mut bytes = std::fs::read(&path).unwrap();
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(from.len()).position(|window| window == from) {
        at += found;
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    assert!(at > 0);
    std::fs::write(path, bytes).unwrap();
}

/// The directory of a case. The checkpoint of old classes has the data of another one.
fn room_of(case: &str) -> Room {
    let room = Room::new();
    let dir = copy(&room, case, "model");
    for entry in std::fs::read_dir(written().join("fsdp")).unwrap().filter(|_| case == "old") {
        let path = entry.unwrap().path();
        if path.extension().is_some() {
            std::fs::copy(&path, dir.join(path.file_name().unwrap())).unwrap();
        }
    }
    room
}

/// Name, dtype, shape and SHA-256 of each tensor of a model, sorted.
pub fn sums_of(room: &Room, source: &str) -> Vec<String> {
    let listed = room.json(&format!("weightfs ls --json {source}"));
    let tensors = listed[0]["tensors"].as_array().unwrap().iter();
    let found = tensors.map(|tensor| {
        let (name, dtype) = (tensor["name"].as_str().unwrap(), tensor["dtype"].as_str().unwrap());
        let file = name.replace('/', "%2F");
        let output = room.sh(&format!("set -o pipefail; weightfs cat {source} tensors/{file} | sha256sum"));
        assert!(output.code == 0, "{output:?}");
        let shape = tensor["shape"].to_string();
        format!("{name}\t{dtype}\t{shape}\t{}", output.out.split_whitespace().next().unwrap())
    });
    let mut found: Vec<String> = found.collect();
    found.sort();
    found
}

#[test]
fn checkpoints_are_whole_tensors() {
    let sums = std::fs::read_to_string(written().join("sums.tsv")).unwrap();
    for case in ["2d", "fsdp", "fsdp2-tp", "megatron", "old", "plain"] {
        let room = room_of(case);
        let expected = sums.lines().filter_map(|line| line.strip_prefix(&format!("{case}\t")));
        let mut expected: Vec<String> = expected.map(str::to_owned).collect();
        expected.sort();
        assert!(expected.len() >= 3, "{case}");
        for source in ["model", "model/.metadata"] {
            assert_eq!(sums_of(&room, source), expected, "{case}");
        }
        let check = room.ok("weightfs check model");
        assert!(check.contains(": OK (") && check.contains(&format!("{} tensors", expected.len())), "{check}");
    }
}

#[test]
fn overview_names_the_checkpoint() {
    let room = room_of("plain");
    let page = room.ok("weightfs inspect model");
    assert!(page.contains("a distributed checkpoint of 1 file, without 5 other objects"), "{page}");
    // The model is named after its directory.
    room.ok("mkdir out && weightfs export model out");
    assert_eq!(room.ok("ls out"), "model.safetensors\n");
    // Among other models, the directory is one model too.
    room.model("other.safetensors", &[("w", safetensors::Dtype::U8, &[1], vec![0])], &[]);
    let listed = room.ok("weightfs ls .");
    assert!(listed.contains("model") && !listed.contains("distcp"), "{listed}");
}

#[test]
fn other_files_and_models_of_the_directory_are_kept() {
    let room = room_of("megatron");
    room.ok("mkdir model/huggingface && echo tokens > model/huggingface/tokenizer.json");
    room.ok("weightfs cat model files/common.pt | cmp - model/common.pt");
    assert_eq!(room.ok("weightfs cat model files/huggingface/tokenizer.json"), "tokens\n");
    // With another model, the directory is one of two models.
    room.model("model/other.safetensors", &[("w", safetensors::Dtype::U8, &[1], vec![7])], &[]);
    assert_eq!(room.ok("weightfs cat model other/tensors/w"), "\u{7}");
    let listed = room.json("weightfs ls --json model/.metadata");
    let name = listed[0]["tensors"][0]["name"].as_str().unwrap();
    room.ok(&format!(
        "weightfs cat model model/tensors/{name} > a && weightfs cat model/.metadata tensors/{name} | cmp - a"
    ));
    // A save that is not finished is not in the way of it.
    room.ok("mv model/.metadata model/.metadata.tmp");
    assert_eq!(room.ok("weightfs cat model tensors/w"), "\u{7}");
}

/// Runs `ls` for a directory, which must fail, and returns the message.
fn refused(room: &Room, dir: &str) -> String {
    let output = room.sh(&format!("weightfs ls {dir}"));
    assert!(output.code != 0 && output.out.is_empty(), "{output:?}");
    output.err
}

#[test]
fn missing_and_cut_files_are_refused_by_name() {
    let room = Room::new();
    let dir = copy(&room, "fsdp", "missing");
    std::fs::remove_file(dir.join("__1_0.distcp")).unwrap();
    let error = refused(&room, "missing");
    assert!(error.contains("a file is missing or broken") && error.contains("__1_0.distcp"), "{error}");
    let lenient = room.sh("weightfs ls --lenient missing");
    assert!(lenient.code == 0 && !lenient.out.is_empty(), "{lenient:?}");
    assert!(lenient.err.contains("__1_0.distcp"), "{lenient:?}");
    let check = room.sh("weightfs check missing");
    assert!(check.code != 0 && check.out.contains("__1_0.distcp"), "{check:?}");

    let dir = copy(&room, "fsdp", "cut");
    let path = dir.join("__2_0.distcp");
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
    let error = refused(&room, "cut");
    let end = format!("go beyond the end of the file, which has {} bytes", bytes.len() - 10);
    assert!(error.contains("in \"__2_0.distcp\"") && error.contains(&end) && error.contains("tensor \""), "{error}");
    // The directory of an archive is damaged, then its pickle.
    for (at, what) in [(bytes.len() - 20, "zip archive"), (0, "zip archive")] {
        let mut broken = bytes.clone();
        broken[at] ^= 0x55;
        std::fs::write(&path, &broken).unwrap();
        let output = room.sh("weightfs ls cut");
        assert!(output.code == 0 || output.err.contains(what), "{output:?}");
    }
}

#[test]
fn descriptions_that_do_not_fit_are_refused() {
    let room = Room::new();
    let cases: [(&[u8], &[u8], &str); 5] = [
        (b"__1_0.distcp", b"../../secret", "the path \"../../secret\" leads out of the directory"),
        (b"__1_0.distcp", b"__0_0.distcp", "has bytes of a part of \""),
        (b"_get_layout", b"_get_system", "\"torch.serialization._get_system\", which distributed checkpoints"),
        (b"float32", b"float64", "in .metadata"),
        (b"storage_data", b"storage_dada", "an object of \"Metadata\" has no field storage_data"),
    ];
    for (at, (from, to, expected)) in cases.into_iter().enumerate() {
        let name = format!("case{at}");
        replace(&copy(&room, "fsdp", &name), from, to);
        let error = refused(&room, &name);
        assert!(error.contains(expected), "{error}\n{expected}");
        let check = room.sh(&format!("weightfs check {name}"));
        assert!(check.code != 0, "{check:?}");
    }
}

#[test]
fn unfinished_saves_are_refused_by_name() {
    let room = Room::new();
    for (name, expected) in [
        (".metadata.tmp", "the save of this distributed checkpoint is unfinished"),
        ("__0.metadata", "describes only what one process saved"),
    ] {
        let dir = copy(&room, "fsdp", name.trim_start_matches('.'));
        std::fs::rename(dir.join(".metadata"), dir.join(name)).unwrap();
        let error = refused(&room, name.trim_start_matches('.'));
        assert!(error.contains(expected) && error.contains(&format!("/{name}: ")), "{error}");
    }
    let error = refused(&room, "metadata.tmp/__0_0.distcp");
    assert!(error.contains("name the directory with its file .metadata instead"), "{error}");
}
