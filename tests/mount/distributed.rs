//! Checkpoints that several processes have saved: the boxes of each tensor are joined.

use crate::support::{Mount, Scene, WEIGHTFS, files_below, python, require_fuse, require_root, run, run_ok};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

fn script(command: &str, dir: &Path) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/rank_files.py");
    run_ok(python().to_str().unwrap(), [script.as_os_str(), command.as_ref(), dir.as_os_str()])
}

/// The checkpoint that PyTorch has written: two processes, each with two files.
fn written_by_pytorch() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/distributed")
}

/// Copies that checkpoint to a directory.
pub fn copy(to: &Path) {
    for entry in std::fs::read_dir(written_by_pytorch()).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn checkpoint_of_pytorch_is_mounted_as_whole_tensors() {
    require_fuse!();
    let scene = Scene::new();
    let mount = scene.mount(&written_by_pytorch(), &[]);
    let index: serde_json::Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
    let mut found: Vec<String> = index["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|tensor| {
            let (name, shape) = (tensor["name"].as_str().unwrap(), tensor["shape"].to_string().replace(',', ", "));
            let sum = run_ok("sha256sum", [mount.path(format!("tensors/{name}"))]);
            format!("{name}\t{shape}\t{}\n", sum.split_whitespace().next().unwrap())
        })
        .collect();
    found.sort();
    assert_eq!(found.concat(), script("sums", &written_by_pytorch()));
    assert_eq!(found.len(), 9);
    // What each process has saved is there too.
    assert_eq!(mount.list("shards").len(), 4);
    assert_eq!(mount.read("shards/shard-00002-model-00002-of-00002.safetensors/tensors/layers.0.u").len(), 20);
    assert_eq!(mount.read("metadata/format"), b"pt");
    assert_eq!(mount.list("metadata"), ["format"]);
    assert_eq!(mount.log(), "");
}

/// Asserts that all files below a directory of two mounts are equal, and returns how many there are.
pub fn assert_equal_files(a: &Mount, b: &Mount, view: &str) -> usize {
    let (found, expected) = (files_below(&a.path(view)), files_below(&b.path(view)));
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{view}");
    for (name, path) in &found {
        assert!(std::fs::read(path).unwrap() == std::fs::read(&expected[name]).unwrap(), "{view}/{name}");
    }
    found.len()
}

/// Asserts that reads of any length from any place of the tensors of two mounts are equal.
pub fn assert_equal_reads(mount: &Mount, expected: &Mount) {
    for name in mount.list("tensors") {
        let expected = expected.read(format!("tensors/{name}"));
        let opened = std::fs::File::open(mount.path(format!("tensors/{name}"))).unwrap();
        for at in 0..64usize {
            let from = expected.len() * at / 64;
            let len = (at * at * 97 + 1).min(expected.len() - from);
            let mut read = vec![0; len];
            opened.read_exact_at(&mut read, from as u64).unwrap();
            assert!(read == expected[from..from + len], "{name} {from} {len}");
        }
    }
}

#[test]
fn every_view_of_boxes_is_that_of_the_whole_model() {
    require_fuse!();
    let (scene, whole) = (Scene::new(), Scene::new());
    let dir = scene.mkdir("data");
    script("write", &dir);
    let (saved, file) = (dir.join("saved"), dir.join("whole.safetensors"));
    let (mount, expected) = (scene.mount(&saved, &[]), whole.mount(&file, &[]));
    for view in ["tensors", "npy", "f32", "safetensors", "stats"] {
        assert!(assert_equal_files(&mount, &expected, view) >= 8, "{view}");
    }
    assert_equal_reads(&mount, &expected);
    // Commands, with the pattern as the name of the model too.
    let pattern = saved.join("shard-*-model-*-of-00002.safetensors");
    let paths = [pattern.as_os_str(), file.as_os_str()];
    run_ok(WEIGHTFS, ["diff".as_ref(), "--values".as_ref(), paths[0], paths[1]]);
    run_ok(WEIGHTFS, ["check".as_ref(), "--values".as_ref(), saved.as_os_str()]);
    let exported = scene.path("exported.safetensors");
    run_ok(WEIGHTFS, ["export".as_ref(), saved.as_os_str(), exported.as_os_str()]);
    run_ok(WEIGHTFS, ["diff".as_ref(), "--values".as_ref(), exported.as_os_str(), file.as_os_str()]);
    let exported = std::fs::read(exported).unwrap();
    assert!(exported == mount.read("export/model-whole.safetensors"));
    let cat = run(WEIGHTFS, ["cat".as_ref(), pattern.as_os_str(), "tensors/columns".as_ref()]);
    assert!(cat.stdout == expected.read("tensors/columns"));
    // One file alone shows what one process has saved.
    let alone = Scene::new();
    let alone = alone.mount(&saved.join("shard-00002-model-00001-of-00002.safetensors"), &[]);
    assert_eq!(alone.read("tensors/rows").len(), 250 * 70 * 4);
    assert_eq!((mount.log(), alone.log()), (String::new(), String::new()));
}

/// The message of a refused checkpoint.
fn refusal(dir: &Path, args: &[&str]) -> String {
    let scene = Scene::new();
    let point = scene.mkdir("mnt");
    let args = args.iter().map(AsRef::as_ref).chain(["-f".as_ref(), dir.as_os_str(), point.as_os_str()]);
    let output = run(WEIGHTFS, args);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

/// Replaces a text in a file by one of the same length.
fn replace(file: &Path, old: &str, new: &str) {
    assert_eq!(old.len(), new.len());
    let mut bytes = std::fs::read(file).unwrap();
    let at = bytes.windows(old.len()).position(|window| window == old.as_bytes()).unwrap();
    bytes[at..at + new.len()].copy_from_slice(new.as_bytes());
    std::fs::write(file, bytes).unwrap();
}

/// Removes a file of a rank.
fn remove(dir: &Path, rank: u32, file: u32) {
    std::fs::remove_file(dir.join(format!("shard-{rank:05}-model-{file:05}-of-00002.safetensors"))).unwrap();
}

#[test]
fn incomplete_checkpoints_are_refused() {
    require_fuse!();
    const FILE: &str = "shard-00002-model-00002-of-00002.safetensors";
    type Change = fn(&Path);
    let cases: [(Change, &str, &str); 9] = [
        (
            |dir| [1, 2].into_iter().for_each(|file| remove(dir, 1, file)),
            "1 of the 2 ranks of the model is missing: \"1\"",
            "layers.0.norm.weight",
        ),
        (|dir| remove(dir, 1, 2), "tensor \"layers.0.conv.weight\": no part has its element [0, 0, 0, 0]", "plain"),
        (
            |dir| replace(&dir.join(FILE), "\\\"saved_offsets\\\": [6]", "\\\"saved_offsets\\\": [5]"),
            "tensor \"layers.0.u\": two parts have its element [5]",
            "plain",
        ),
        (
            |dir| replace(&dir.join(FILE), "\\\"saved_offsets\\\": [7, 0]", "\\\"saved_offsets\\\": [7, 1]"),
            "tensor \"layers.0.emb.weight\": no part has its element [7, 0]",
            "layers.0.u",
        ),
        (
            |dir| replace(&dir.join(FILE), "\\\"saved_offsets\\\": [7, 0]", "\\\"saved_offsets\\\": [7   ]"),
            "tensor \"layers.0.emb.weight\": its part in \"shard-00002-model-00002-of-00002.safetensors\" has the shape \
             [6, 3] and begins at [7]",
            "layers.0.u",
        ),
        (
            |dir| replace(&dir.join(FILE), "\\\"layers.0.u\\\"", "\\\"layers.0.x\\\""),
            "tensor \"layers.0.u\": the DCP_SHARDING_INFO of \"shard-00002-model-00002-of-00002.safetensors\" does not \
             name it",
            "layers.0.emb.weight",
        ),
        (
            |dir| [1, 2].into_iter().for_each(|rank| remove(dir, rank, 1)),
            "1 of the 2 files of the model is missing: \"1\"",
            "layers.0.u",
        ),
        (
            |dir| replace(&dir.join(FILE), "DCP_SHARDING_INFO", "DCP_SHARDING_none"),
            "\"shard-00002-model-00002-of-00002.safetensors\": its metadata has no DCP_SHARDING_INFO",
            "plain",
        ),
        (
            |dir| replace(&dir.join(FILE), "\\\"saved_offsets\\\": [6]", "\\\"saved_offsets\\\": {6]"),
            "\"shard-00002-model-00002-of-00002.safetensors\": not a valid DCP_SHARDING_INFO",
            "plain",
        ),
    ];
    for (change, message, left) in cases {
        let scene = Scene::new();
        let dir = scene.mkdir("checkpoint");
        copy(&dir);
        change(&dir);
        let refused = refusal(&dir, &[]);
        assert!(refused.contains(message) && refused.contains("--lenient"), "{refused}\n{message}");
        // The rest is shown on demand, and says what is left out.
        let lenient = Scene::new();
        let lenient = lenient.mount(&dir, &["--lenient"]);
        assert!(lenient.list("tensors").iter().any(|name| name == left), "{message}");
        assert!(message.starts_with("1 of") || lenient.log().contains(message), "{}\n{message}", lenient.log());
    }
}

/// The directories that processes have written with a file of each, with the sums of all tensors beside them.
fn written_by_ranks() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/ranks")
}

/// The directories that accelerate (`fsdp`) and Trainer of transformers (`plain`) have written, with the sums beside
/// them.
fn written_by_trainer() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/trainer")
}

/// Asserts that a directory of a mount has the tensors of a case, and returns how many there are.
fn assert_sums(mount: &Mount, view: &str, case: &str) -> usize {
    let sums =
        [written_by_ranks(), written_by_trainer()].map(|dir| std::fs::read_to_string(dir.join("sums.tsv")).unwrap());
    let mut names = Vec::new();
    for line in sums.iter().flat_map(|sums| sums.lines()).filter_map(|line| line.strip_prefix(case)?.strip_prefix('\t'))
    {
        let [name, .., sum] = line.split('\t').collect::<Vec<_>>()[..] else { panic!("{line}") };
        let found = run_ok("sha256sum", [mount.path(format!("{view}/{name}"))]);
        assert_eq!(found.split_whitespace().next(), Some(sum), "{case} {name}");
        names.push(name.to_owned());
    }
    names.sort();
    let mut listed = mount.list(view);
    listed.sort();
    assert_eq!(listed, names, "{case}");
    names.len()
}

#[test]
fn optimizer_states_are_a_folder_beside_the_weights() {
    require_fuse!();
    let scene = Scene::new();
    let mount = scene.mount(&written_by_ranks().join("verl-adamw"), &[]);
    assert_eq!(assert_sums(&mount, "tensors", "verl-adamw"), 7);
    assert_eq!(assert_sums(&mount, "optimizer/tensors", "verl-adamw-optimizer"), 21);
    let names = mount.list("");
    assert!(names.contains(&"optimizer".to_owned()) && names.contains(&"npy".to_owned()), "{names:?}");
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    assert_eq!(mount.list("files"), [0, 1].map(|rank| format!("extra_state_world_size_2_rank_{rank}.pt")));
    assert!(mount.read("optimizer/index.json").starts_with(b"{"));
    assert_eq!(mount.list("optimizer/npy").len(), 21);
    assert_eq!(mount.log(), "");
}

#[test]
fn checkpoint_of_several_directories_has_the_weights_in_the_root() {
    require_fuse!();
    for (case, weights, states) in [("fsdp", 6, 18), ("plain", 4, 12)] {
        let scene = Scene::new();
        let mount = scene.mount(&written_by_trainer().join(case), &[]);
        assert_eq!(assert_sums(&mount, "tensors", case), weights);
        assert_eq!(assert_sums(&mount, "optimizer/tensors", &format!("{case}-optimizer")), states);
        let files: &[&str] =
            if case == "fsdp" { &["trainer_state.json"] } else { &["scheduler.pt", "trainer_state.json"] };
        assert_eq!(mount.list("files"), files);
        assert!(!mount.path("pytorch_model_fsdp_0").exists() && !mount.path("optimizer_0").exists());
        let size: u64 = if case == "fsdp" { 20_629 + 42_005 + 9526 + 9462 } else { 484 + 4835 };
        let blocks = run_ok("stat", ["-f".as_ref(), "-c".as_ref(), "%b".as_ref(), mount.path("").as_os_str()]);
        assert_eq!(blocks.trim(), size.div_ceil(512).to_string());
        assert_eq!(mount.log(), "");
    }
    // Several of a training are one folder each.
    let scene = Scene::new();
    let mount = scene.mount(&written_by_trainer(), &[]);
    assert_eq!(assert_sums(&mount, "fsdp/pytorch_model_fsdp_0/model/tensors", "fsdp"), 6);
    assert_eq!(assert_sums(&mount, "fsdp/optimizer_0/model/tensors", "fsdp-optimizer"), 18);
    assert_eq!(assert_sums(&mount, "plain/model/tensors", "plain"), 4);
    drop(mount);
    // The entries of the root need several buffers.
    let written = written_by_trainer().join("fsdp");
    scene.ok(&format!("cp -r {} model && chmod -R u+w model", written.display()));
    scene.ok("cd model && for at in $(seq 40); do cp -r optimizer_0 optimizer_$(printf %0200d $at); done");
    let mount = scene.mount(&scene.path("model"), &[]);
    let names = mount.list("");
    assert_eq!(names.iter().filter(|name| name.starts_with("optimizer_")).count(), 41);
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "{names:?}");
    assert!(names.contains(&"tensors".to_owned()) && names.contains(&"SHA256SUMS".to_owned()));
}

#[test]
fn optimizer_states_of_deepspeed_have_the_shapes_of_the_parameters() {
    require_fuse!();
    for (case, states, count) in [("zero2", "zero2-optimizer", 20), ("zero3", "zero3-optimizer", 18)] {
        let scene = Scene::new();
        let mount = scene.mount(&written_by_ranks().join(case), &[]);
        assert_eq!(assert_sums(&mount, "tensors", case), 11);
        assert_eq!(assert_sums(&mount, "optimizer/tensors", states), count);
        assert_eq!(mount.log(), "");
    }
}

#[test]
fn optimizer_states_that_cannot_be_joined_are_an_error_file() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("checkpoint");
    for entry in std::fs::read_dir(written_by_ranks().join("verl-adamw")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
    }
    std::fs::remove_file(dir.join("optim_world_size_2_rank_1.pt")).unwrap();
    let mount = scene.mount(&dir, &[]);
    assert_eq!(assert_sums(&mount, "tensors", "verl-adamw"), 7);
    let error = String::from_utf8(mount.read("optimizer.error.txt")).unwrap();
    assert!(error.contains("1 of the 2 ranks of the model is missing: \"optim_world_size_2_rank_1.pt\""), "{error}");
    assert!(!mount.path("optimizer").exists());
    assert!(mount.log().contains("optim_world_size_2_rank_1.pt"), "{}", mount.log());
}

#[test]
fn optimizer_states_have_their_own_permissions_and_names() {
    require_root!();
    let scene = Scene::new();
    let written = written_by_ranks().join("verl-adamw");
    scene.ok(&format!("cp -r {} checkpoint && chmod 755 . && chmod -R u=rwX,go=rX checkpoint", written.display()));
    scene.ok("chmod 600 checkpoint/optim_* && mkdir mnt && weightfs -o allow_other checkpoint mnt");
    let user = "setpriv --reuid=65534 --regid=65534 --clear-groups --";
    let weights = scene.sh(&format!("{user} sh -c 'cat mnt/tensors/*' | wc -c"));
    let listed = scene.sh(&format!("{user} ls mnt/optimizer/tensors"));
    let states = scene.sh(&format!("{user} sh -c 'cat mnt/optimizer/tensors/state.0.exp_avg'"));
    scene.ok("weightfs umount mnt");
    assert!(weights.err.is_empty() && weights.out.trim() != "0", "{weights:?}");
    assert!(states.code != 0 && states.out.is_empty() && states.err.contains("Permission denied"), "{states:?}");
    assert!(listed.code != 0 && listed.out.is_empty(), "{listed:?}");
    scene.wait_for_end();
    // The states of another training, which cannot be joined.
    scene.ok("cp checkpoint/optim_world_size_2_rank_0.pt checkpoint/optim_world_size_1_rank_0.pt");
    let mount = scene.mount(&scene.path("checkpoint"), &[]);
    let names = mount.list("");
    assert!(names.contains(&"optim_world_size_2".to_owned()) && !names.contains(&"optimizer".to_owned()), "{names:?}");
    assert!(names.contains(&"optim_world_size_1.error.txt".to_owned()), "{names:?}");
    assert_eq!(assert_sums(&mount, "optim_world_size_2/tensors", "verl-adamw-optimizer"), 21);
}

#[test]
fn files_of_every_rank_are_mounted_as_whole_tensors() {
    require_fuse!();
    let written = written_by_ranks();
    for case in ["fsdp2-tp", "fsdp1-sharded", "verl", "zero2", "zero3"] {
        let scene = Scene::new();
        let mount = scene.mount(&written.join(case), &[]);
        assert!(assert_sums(&mount, "tensors", case) > 10, "{case}");
    }
    // Beside other models, each set of ranks is a folder.
    let scene = Scene::new();
    let mount = scene.mount(&written, &[]);
    assert!(mount.list("verl/model_world_size_2/tensors").len() == 16);
    assert!(mount.list("zero3/global_step2/model/tensors").len() == 11);
    assert!(mount.list("zero3/global_step2/optimizer/tensors").len() == 18);
    assert_eq!(mount.log(), "");
}
