//! Directories of a training in which models belong to another one: the states of an optimizer, as Trainer of
//! transformers and accelerate write them, and averages of the weights.

use crate::room::Room;

/// A room with a copy of a directory that one of these programs has written, `model`.
fn room_of(case: &str) -> Room {
    let room = Room::new();
    let written = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints/trainer");
    room.ok(&format!("cp -r {written}/{case} model && chmod -R u+w model"));
    room
}

/// The sum of the bytes of a tensor.
fn sum(room: &Room, model: &str, path: &str) -> String {
    room.ok(&format!("weightfs cat {model} {path} | sha256sum"))
}

#[test]
fn states_are_recognised_by_their_content() {
    let room = room_of("plain");
    let alone = sum(&room, "model/optimizer.pt", "tensors/state.0.exp_avg");
    assert_eq!(sum(&room, "model", "optimizer/tensors/state.0.exp_avg"), alone);
    let listed = room.ok("weightfs ls model");
    assert!(listed.contains("fc.weight") && !listed.contains("exp_avg"), "{listed}");
    room.ok("weightfs check model");
    room.ok("weightfs export model out.safetensors && weightfs diff --values out.safetensors model/model.safetensors");
    // The names of accelerate, of which there may be several.
    room.ok("mv model/optimizer.pt model/optimizer.bin");
    assert_eq!(sum(&room, "model", "optimizer/tensors/state.0.exp_avg"), alone);
    room.ok("cp model/optimizer.bin model/optimizer_1.bin");
    assert_eq!(sum(&room, "model", "optimizer_1/tensors/state.0.exp_avg"), alone);
    // Something else under such a name is one of the other files.
    room.ok(
        "rm model/optimizer* && cp model/scheduler.pt model/optimizer.pt && weightfs cat model files/optimizer.pt >got",
    );
    room.ok("cmp got model/scheduler.pt");
    room.ok("echo nothing >model/optimizer.pt && weightfs cat model files/optimizer.pt | grep -qx nothing");
    // A link out of the directory is not followed to find out.
    let room = room_of("plain");
    room.ok("mv model/optimizer.pt . && ln -s ../optimizer.pt model/optimizer.pt");
    assert!(room.sh("weightfs cat model optimizer/tensors/state.0.exp_avg").code != 0);
    // Without weights, the states are the model.
    let room = room_of("plain");
    room.ok("rm model/model.safetensors");
    assert_eq!(sum(&room, "model", "tensors/state.0.exp_avg"), alone);
}

#[test]
fn directories_of_weights_and_states_are_one_checkpoint() {
    let room = room_of("fsdp");
    let weights = sum(&room, "model/pytorch_model_fsdp_0", "tensors/model.0.weight");
    let states = sum(&room, "model/optimizer_0", "tensors/optimizer.state.0.weight.exp_avg");
    assert_eq!(sum(&room, "model", "tensors/model.0.weight"), weights);
    assert_eq!(sum(&room, "model", "optimizer/tensors/optimizer.state.0.weight.exp_avg"), states);
    room.ok("weightfs export model out.safetensors");
    assert_eq!(sum(&room, "out.safetensors", "tensors/model.0.weight"), weights);
    // The names of the directories do not count.
    room.ok("mv model/optimizer_0 model/a && mv model/pytorch_model_fsdp_0 model/b");
    assert_eq!(sum(&room, "model", "tensors/model.0.weight"), weights);
    assert_eq!(sum(&room, "model", "optimizer/tensors/optimizer.state.0.weight.exp_avg"), states);
    // States that cannot be opened do not hide the weights.
    room.ok("mv model/a/__1_0.distcp . && weightfs ls model | grep -q model.0.weight");
    let error = room.sh("weightfs cat model optimizer/tensors/optimizer.state.0.weight.exp_avg");
    assert!(error.code != 0 && error.err.contains("__1_0.distcp"), "{error:?}");
    room.ok("mv __1_0.distcp model/a");
    // Of several states, those with other names have numbers. None hides a view.
    room.ok("cp -r model/a model/tensors");
    assert_eq!(sum(&room, "model", "optimizer~2/tensors/optimizer.state.0.weight.exp_avg"), states);
    assert_eq!(sum(&room, "model", "tensors/model.0.weight"), weights);
    room.ok("rm -r model/tensors");
    // With two of weights, each directory is a folder.
    room.ok("cp -r model/b model/c");
    assert_eq!(sum(&room, "model", "b/model/tensors/model.0.weight"), weights);
    assert_eq!(sum(&room, "model", "a/model/tensors/optimizer.state.0.weight.exp_avg"), states);
    // A checkpoint in the directory itself has states beside it.
    room.ok("rm -r model/c && mv model/b/.metadata model/b/* model && rmdir model/b && mv model/a model/optimizer_0");
    assert_eq!(sum(&room, "model", "optimizer/tensors/optimizer.state.0.weight.exp_avg"), states);
    // A checkpoint alone in a directory is one that others may follow.
    room.ok("rm -r model/optimizer_0 && mkdir model/b && mv model/.metadata model/*.distcp model/b");
    assert_eq!(sum(&room, "model", "b/model/tensors/model.0.weight"), weights);
}

#[test]
fn averages_are_a_folder_beside_the_weights() {
    let room = room_of("plain");
    let weights = sum(&room, "model", "tensors/fc.weight");
    room.ok("weightfs export --dtype bf16 model ema.safetensors");
    let average = sum(&room, "ema.safetensors", "tensors/fc.weight");
    assert_ne!(weights, average);
    for name in ["model_ema.safetensors", "EMA-1.safetensors", "ema/model.safetensors"] {
        room.ok(&format!("mkdir -p model/ema && cp ema.safetensors model/{name}"));
        assert_eq!(sum(&room, "model", "tensors/fc.weight"), weights, "{name}");
        assert_eq!(sum(&room, "model", "ema/tensors/fc.weight"), average, "{name}");
        room.ok("weightfs cat model optimizer/tensors/state.0.exp_avg >states");
        room.ok(&format!("weightfs ls model | grep -q fc.weight && rm model/{name}"));
    }
    // `check` takes both.
    room.ok("cp ema.safetensors model/ema.safetensors && weightfs check model | grep -q ema.safetensors");
    room.ok("rm model/ema.safetensors");
    // A link out of the directory, a part of another word, and a model with other tensors, are models like others.
    room.ok("weightfs export --prepend x. ema.safetensors other.safetensors");
    for (name, command) in [
        ("schema.safetensors", "cp ema.safetensors"),
        ("ema.safetensors", "cp other.safetensors"),
        ("model_ema.safetensors", "ln -s ../ema.safetensors"),
    ] {
        room.ok(&format!("{command} model/{name}"));
        let error = room.sh("weightfs cat model tensors/fc.weight");
        assert!(error.code != 0, "{error:?}");
        assert_eq!(sum(&room, "model", "model/tensors/fc.weight"), weights, "{name}");
        room.ok(&format!("rm model/{name}"));
    }
}

/// A room with the files of training that have several sets, in the directory `model`.
fn room_of_files() -> Room {
    let room = Room::new();
    let written = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/checkpoints/one-file");
    room.ok(&format!("cp -r {written} model && chmod -R u+w model"));
    room
}

#[test]
fn commands_take_the_weights_of_a_file_or_a_set() {
    let room = room_of_files();
    let inside = sum(&room, "model/average.pt", "ema/tensors/0.weight");
    assert_eq!(sum(&room, "model/average.pt/ema", "tensors/0.weight"), inside);
    assert_eq!(sum(&room, "model", "average/ema/tensors/0.weight"), inside);
    let listed = room.ok("weightfs ls model/lightning.ckpt");
    assert!(listed.contains(" head.weight\n") && !listed.contains("exp_avg"), "{listed}");
    let inspected = room.ok("weightfs inspect model/lightning.ckpt");
    assert!(inspected.contains("pytorch, the weights (the file also has optimizer and extra)"), "{inspected}");
    let inspected = room.ok("weightfs inspect model/lightning.ckpt/extra");
    assert!(inspected.contains("pytorch, extra of a file with several sets of tensors"), "{inspected}");
    // Files of their own, named after the set.
    room.ok("mkdir out && weightfs export model/lightning.ckpt out/a.safetensors");
    room.ok("weightfs diff --values out/a.safetensors model/lightning.ckpt");
    room.ok("weightfs export model/lightning.ckpt/optimizer out/b.safetensors");
    room.ok("weightfs diff --values out/b.safetensors model/lightning.ckpt/optimizer");
    room.ok("weightfs cp model/average.pt/ema export/average-ema-whole.safetensors out && weightfs check out/average*");
    let differ = room.sh("weightfs diff --values model/average.pt model/average.pt/ema");
    assert!(differ.code == 1 && differ.out.contains("values: 4 different, 0 equal"), "{differ:?}");
    // `check` reads the whole file.
    for source in ["model/average.pt", "model/average.pt/ema", "model/tutorial.pt/extra"] {
        room.ok(&format!("weightfs check {source}"));
    }
    // The file cannot be replaced by one of its sets.
    room.ok("cp model/average.pt model/a.safetensors");
    for source in ["model/a.safetensors", "model/a.safetensors/ema"] {
        let said = room.sh(&format!("weightfs export --force {source} model/a.safetensors"));
        assert!(said.code != 0 && said.err.contains("model/a.safetensors: part of the source"), "{said:?}");
        let said = room.sh(&format!("weightfs metadata set {source} a=b"));
        assert!(said.code != 0 && said.err.contains("the file has several sets of tensors"), "{said:?}");
    }
}

#[test]
fn sets_that_a_file_does_not_have_are_refused() {
    let room = room_of_files();
    for (path, fault) in [
        ("average.pt/extra", "the file has no set of tensors \"extra\""),
        ("average.pt/tensors", "Not a directory"),
        ("missing.pt/optimizer", "no such file or directory"),
    ] {
        let said = room.sh(&format!("weightfs ls model/{path}"));
        assert!(said.code != 0 && said.err.to_lowercase().contains(&fault.to_lowercase()), "{said:?}");
    }
    // A directory that has the name of a file of training.
    room.ok("mkdir x.pt && cp model/tutorial.pt x.pt/optimizer && weightfs ls x.pt/optimizer | grep -q 1.weight");
}
