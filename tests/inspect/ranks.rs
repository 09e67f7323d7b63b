//! Checkpoints with a file of every process, as FSDP and DeepSpeed write them: directories that these programs have
//! written, and damaged copies of them.

use crate::room::Room;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// The directories that several processes have written, with the sums of all tensors beside them.
fn written() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/ranks")
}

/// A room with a copy of the directory of a case, `model`.
fn room_of(case: &str) -> Room {
    let room = Room::new();
    room.ok(&format!("cp -r {}/{case} model && chmod -R u+w model", written().display()));
    room
}

/// Replaces bytes of a file by as many others, everywhere.
fn replace(room: &Room, file: &str, from: &[u8], to: &[u8]) {
    assert_eq!(from.len(), to.len());
    let path = room.path(file);
    let mut bytes = std::fs::read(&path).unwrap();
    let found: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(from)).collect();
    assert!(!found.is_empty(), "{file}");
    for at in found {
        bytes[at..at + to.len()].copy_from_slice(to);
    }
    std::fs::write(path, bytes).unwrap();
}

/// The names, dtypes, shapes and sums of all tensors of a source.
fn sums(room: &Room, source: &str) -> BTreeSet<String> {
    let listed = room.json(&format!("weightfs ls --json '{source}'"));
    let tensors = listed[0]["tensors"].as_array().unwrap().iter();
    let found = tensors.map(|tensor| {
        let (name, dtype) = (tensor["name"].as_str().unwrap(), tensor["dtype"].as_str().unwrap());
        let sum = room.ok(&format!("weightfs cat '{source}' tensors/{name} | sha256sum"));
        format!("{name}\t{dtype}\t{}\t{}", tensor["shape"], sum.split_whitespace().next().unwrap())
    });
    found.collect()
}

/// What the tensors of a case are.
fn expected(case: &str) -> BTreeSet<String> {
    let sums = std::fs::read_to_string(written().join("sums.tsv")).unwrap();
    let found: BTreeSet<String> =
        sums.lines().filter_map(|line| Some(line.strip_prefix(case)?.strip_prefix('\t')?.to_owned())).collect();
    assert!(found.len() > 10, "{case}");
    found
}

/// The names of the tensors that `--lenient` shows, and its messages.
fn lenient(room: &Room, source: &str) -> (BTreeSet<String>, String) {
    let output = room.sh(&format!("weightfs ls --lenient {source}"));
    assert_eq!(output.code, 0, "{output:?}");
    let names = output.out.lines().skip(1).filter_map(|line| Some(line.split_whitespace().last()?.to_owned()));
    (names.collect(), output.err)
}

/// The message of `ls` for a source, which must fail.
fn refused(room: &Room, source: &str) -> String {
    let output = room.sh(&format!("weightfs ls '{source}'"));
    assert!(output.code != 0 && output.out.is_empty(), "{output:?}");
    assert_eq!(output.err.lines().count(), 1, "{output:?}");
    output.err
}

#[test]
fn files_of_fsdp_are_whole_tensors() {
    for (case, world) in [("verl", 2), ("dtensor-old", 2), ("fsdp2-tp", 4), ("fsdp1-sharded", 2)] {
        let room = room_of(case);
        let one = format!("model/model_world_size_{world}_rank_1.pt");
        let pattern = format!("model/model_world_size_{world}_rank_*.pt");
        for source in ["model", &one, &pattern] {
            assert_eq!(sums(&room, source), expected(case), "{case} {source}");
        }
        let check = room.sh("weightfs check model");
        assert!(check.out.contains(&format!("; {world} files")), "{check:?}");
        // Pickles of protocol 2 name nested classes with this function.
        let names_getattr = check.out.contains("error: the pickle names __builtin__.getattr");
        assert_eq!((check.code, names_getattr), if case == "fsdp1-sharded" { (1, true) } else { (0, false) });
        // All files of a model are named, as by a pattern of the shell.
        let listed = room.ok("weightfs ls model/*.pt");
        assert_eq!(listed.matches("DTYPE").count(), 1, "{listed}");
        let page = room.ok("weightfs inspect model");
        assert!(page.contains(&format!("an FSDP checkpoint of {world} ranks")), "{page}");
    }
}

#[test]
fn optimizer_states_of_fsdp_are_a_model_of_their_own() {
    let room = room_of("verl-adamw");
    for source in ["model/optim_world_size_2_rank_1.pt", "model/optim_world_size_2_rank_*.pt"] {
        assert_eq!(sums(&room, source), expected("verl-adamw-optimizer"), "{source}");
    }
    let page = room.ok("weightfs inspect 'model/optim_world_size_2_rank_*.pt'");
    assert!(page.contains("the optimizer states of an FSDP checkpoint of 2 ranks"), "{page}");
    // The directory has the weights, and these alone are exported.
    let listed = room.ok("weightfs ls model");
    assert!(listed.contains("0.weight") && !listed.contains("exp_avg"), "{listed}");
    room.ok("weightfs cat model optimizer/tensors/state.0.exp_avg | wc -c | grep -qx 264");
    room.ok("mkdir out && weightfs export model out && weightfs ls out/*.safetensors | grep -q 0.weight");
    // Without them, the directory is the states.
    room.ok("rm model/model_world_size_*");
    assert_eq!(sums(&room, "model"), expected("verl-adamw-optimizer"));
    // Beside other models, both are models.
    let room = room_of("verl-adamw");
    room.ok("mkdir model/other");
    room.model("model/other/model.safetensors", &[("w", safetensors::Dtype::U8, &[1], vec![7])], &[]);
    room.ok("weightfs cat model optim_world_size_2/tensors/state.0.exp_avg | wc -c | grep -qx 264");
    room.ok("weightfs cat model model_world_size_2/tensors/0.weight | wc -c | grep -qx 264");
    // FSDP1 keeps vectors of a part of all parameters, which differ although no file says so.
    let room = room_of("fsdp1-adamw");
    let error = refused(&room, "model");
    let fault = "tensor \"state.0.exp_avg\": in \"optim_world_size_2_rank_0.pt\": it is a vector without a description";
    assert!(error.contains(fault), "{error}");
    assert_eq!(lenient(&room, "model").0, ["state.0.step".to_owned()].into());
}

#[test]
fn files_of_deepspeed_are_whole_tensors() {
    for (case, model, stage) in
        [("zero2", "mp_rank_00_model_states.pt", 2), ("zero3", "zero_pp_rank_1_mp_rank_00_model_states.pt", 3)]
    {
        let room = room_of(case);
        let model = format!("model/global_step2/{model}");
        let partition = "model/global_step2/bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
        let pattern = "model/global_step2/*mp_rank_*_states.pt";
        for source in ["model", "model/global_step2", &model, partition, pattern] {
            assert_eq!(sums(&room, source), expected(case), "{case} {source}");
        }
        let check = room.sh("weightfs check model");
        assert!(check.code == 0 && check.out.contains(": OK, with "), "{check:?}");
        let page = room.ok("weightfs inspect model");
        assert!(page.contains(&format!("a DeepSpeed checkpoint of ZeRO stage {stage} and 2 ranks")), "{page}");
        room.ok("mkdir out && weightfs export model out && weightfs check out/global_step2.safetensors");
        assert_eq!(sums(&room, "out/global_step2.safetensors"), expected(case));
    }
}

#[test]
fn optimizer_states_of_deepspeed_are_a_model_of_their_own() {
    for (case, stage) in [("zero2", 2), ("zero3", 3)] {
        let room = room_of(case);
        let states = "model/global_step2/*mp_rank_*_optim_states.pt";
        assert_eq!(sums(&room, states), expected(&format!("{case}-optimizer")));
        let page = room.ok(&format!("weightfs inspect '{states}'"));
        let description = format!("the optimizer states of a DeepSpeed checkpoint of ZeRO stage {stage} and 2 ranks");
        assert!(page.contains(&description), "{page}");
        // Without a file of one process, the states are an error as the weights are.
        let partition = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
        room.ok(&format!("mv model/global_step2/{partition} ."));
        assert!(refused(&room, states).contains("1 of the 2 ranks of the model is missing"), "{case}");
        room.ok(&format!("mv {partition} model/global_step2"));
        // A state that one process does not have.
        replace(&room, &format!("model/global_step2/{partition}"), b"exp_avg_sq", b"exp_avg_xx");
        let error = refused(&room, states);
        assert!(error.contains(&format!("\"{partition}\" has no vectors of the state \"exp_avg_sq\"")), "{error}");
        assert_eq!(sums(&room, "model"), expected(case));
        let output = room.sh("weightfs cat model optimizer.error.txt");
        assert!(output.code == 0 && output.out.contains("has no vectors of the state"), "{output:?}");
    }
    // Where directories have several checkpoints, commands take the weights of each.
    let room = room_of("zero2");
    room.ok("cp -r model/global_step2 model/global_step1");
    assert!(!room.ok("weightfs ls model").contains("exp_avg"));
    room.ok("weightfs cat model global_step1/optimizer/tensors/state.norm.bias.exp_avg | wc -c | grep -qx 40");
}

#[test]
fn latest_checkpoint_is_the_model_only_if_there_is_no_other() {
    let room = room_of("zero2");
    room.ok("cp -r model/global_step2 model/global_step1");
    let listed = room.ok("weightfs ls model");
    assert!(listed.contains("global_step1/") && listed.contains("global_step2/"), "{listed}");
    room.ok("weightfs cat model global_step1/model/tensors/norm.bias | wc -c | grep -qx 40");
    room.ok("rm -r model/global_step1 && echo other > model/latest");
    room.ok("weightfs cat model global_step2/model/tensors/norm.bias | wc -c | grep -qx 40");
    room.ok("rm model/latest");
    room.ok("weightfs cat model global_step2/model/tensors/norm.bias | wc -c | grep -qx 40");
}

#[test]
fn other_files_and_models_are_kept() {
    let room = room_of("verl");
    room.ok("cp model/fsdp_config.json model/extra_state_world_size_2_rank_1.pt");
    for file in ["fsdp_config.json", "extra_state_world_size_2_rank_1.pt"] {
        room.ok(&format!("weightfs cat model files/{file} | cmp - model/{file}"));
    }
    room.ok("weightfs cat model files/huggingface/config.json | cmp - model/huggingface/config.json");
    // Each set of ranks is a model of its own.
    room.ok(&format!("cp {}/fsdp2-tp/*.pt model", written().display()));
    room.model("model/other.safetensors", &[("w", safetensors::Dtype::U8, &[1], vec![7])], &[]);
    assert_eq!(room.ok("weightfs cat model other/tensors/w"), "\u{7}");
    for (case, world, name) in [("verl", 2, "layers.1.u"), ("fsdp2-tp", 4, "layers.1.0.weight")] {
        let sum = room.ok(&format!("weightfs cat model model_world_size_{world}/tensors/{name} | sha256sum"));
        let sum = sum.split_whitespace().next().unwrap();
        assert!(expected(case).iter().any(|line| line.starts_with(&format!("{name}\t")) && line.ends_with(sum)));
    }
    // A set that is not complete is an error that names what is missing, and the others are models.
    room.ok("rm model/model_world_size_4_rank_1.pt model/model_world_size_4_rank_2.pt");
    let output = room.sh("weightfs ls model");
    let missing = "2 of the 4 ranks of the model are missing: \"model_world_size_4_rank_1.pt\", \
                   \"model_world_size_4_rank_2.pt\" (--lenient mounts the rest)";
    assert!(output.code != 0 && output.err.contains(missing), "{output:?}");
    assert!(output.out.contains("layers.1.u") && output.out.contains("other.safetensors"), "{output:?}");
    assert!(!output.out.contains("layers.1.0.weight"), "{output:?}");
}

#[test]
fn missing_ranks_are_named_and_lenient_shows_what_is_whole() {
    let room = room_of("fsdp2-tp");
    room.ok("rm model/model_world_size_4_rank_2.pt");
    let error = refused(&room, "model");
    assert!(error.contains("1 of the 4 ranks of the model is missing: \"model_world_size_4_rank_2.pt\""), "{error}");
    let (names, messages) = lenient(&room, "model");
    let whole = ["embed.weight", "head.weight", "inv_freq", "norm.bias", "norm.weight"];
    assert_eq!(names, whole.map(str::to_owned).into(), "{messages}");
    assert!(messages.contains("tensor \"layers.0.0.weight\": no part has its element [8, 0]"), "{messages}");
    let check = room.sh("weightfs check model");
    assert!(check.code != 0 && check.out.contains("model_world_size_4_rank_2.pt"), "{check:?}");
    // A file that is cut off.
    let room = room_of("verl");
    room.ok("truncate -s 9000 model/model_world_size_2_rank_1.pt");
    let error = refused(&room, "model");
    assert!(error.contains("a file is missing or broken: \"model_world_size_2_rank_1.pt\": "), "{error}");
    // Without the first rank, another one has the tensors that all have.
    room.ok("rm model/model_world_size_2_rank_1.pt");
    let (names, _) = lenient(&room, "model");
    assert_eq!(names, ["layers.0.norm.weight", "layers.1.norm.weight"].map(str::to_owned).into());
}

#[test]
fn parts_that_do_not_fit_are_refused_by_name() {
    let files = [0, 1].map(|rank| format!("model/model_world_size_2_rank_{rank}.pt"));
    let cases: [(&[u8], &[u8], &str); 4] = [
        (b"placement_types\nReplicate", b"placement_typesXX\nPartial", "its placement is Partial"),
        (b"placement_types\nShard", b"placement_types\nSharp", "placement_types.Sharp\" is not known"),
        (b"device_mesh\nDeviceMesh", b"device_mesh\nDeviceMosh", "DeviceMosh\", which is not supported"),
        (b"layers.0.wq.weight", b"layers._flat_param", "tensor \"layers._flat_param\": in \"model_world_size_2_rank_"),
    ];
    for (from, to, message) in cases {
        let room = room_of("verl");
        files.iter().for_each(|file| replace(&room, file, from, to));
        let error = refused(&room, "model");
        assert!(error.contains(message) && error.contains("in \"model_world_size_2_rank_0.pt\": "), "{error}");
        assert!(error.contains("tensor \"layers."), "{error}");
        let check = room.sh("weightfs check model");
        assert!(check.code != 0, "{check:?}");
        let (names, messages) = lenient(&room, "model");
        assert!(names.len() < 16 && messages.contains(message), "{names:?} {messages}");
    }
    // A copy of the parts of another process leaves gaps, and does not overlap.
    let room = room_of("verl");
    room.ok(&format!("cp {} {}", files[0], files[1]));
    let error = refused(&room, "model");
    assert!(error.contains("no part has its element ["), "{error}");
}

#[test]
fn checkpoints_of_deepspeed_that_are_not_read_are_refused_by_name() {
    let dir = "model/global_step2";
    for (case, line, message) in [
        (
            "zero2",
            "cp mp_rank_00_model_states.pt mp_rank_01_model_states.pt",
            "\"mp_rank_01_model_states.pt\": checkpoints of tensor",
        ),
        (
            "zero2",
            "cp mp_rank_00_model_states.pt layer_00-model_00-model_states.pt",
            "\"layer_00-model_00-model_states.pt\": checkpoints of pipelines",
        ),
        (
            "zero2",
            "cp mp_rank_00_model_states.pt expert_0_mp_rank_00_model_states.pt",
            "\"expert_0_mp_rank_00_model_states.pt\": checkpoints of pipelines",
        ),
        (
            "zero2",
            "rm mp_rank_00_model_states.pt",
            "mp_rank_00_model_states.pt is missing or broken, which describes the model",
        ),
        (
            "zero2",
            "rm bf16_zero_pp_rank_0_*",
            "1 of the 2 ranks of the model is missing: \"zero_pp_rank_0_mp_rank_00_optim_states.pt\"",
        ),
        (
            "zero2",
            "cp bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt bf16_zero_pp_rank_2_mp_rank_00_optim_states.pt",
            "a file of rank 2, although there are 2 ranks",
        ),
        (
            "zero2",
            "cp bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt zero_pp_rank_1_mp_rank_00_optim_states.pt",
            "are of rank 1",
        ),
        (
            "zero2",
            "ln -sf bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt",
            "\"bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt\" and \"bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt\" \
             are the same file",
        ),
        (
            "zero2",
            "cp bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt mp_rank_00_model_states.pt",
            "PyTorch checkpoint: it has no param_shapes",
        ),
        (
            "zero3",
            "rm bf16_zero_pp_rank_1_*",
            "ranks of the model is missing: \"zero_pp_rank_1_mp_rank_00_optim_states.pt\"",
        ),
        (
            "zero3",
            "rm zero_pp_rank_1_*",
            "ranks of the model is missing: \"zero_pp_rank_1_mp_rank_00_model_states.pt\"",
        ),
    ] {
        let room = room_of(case);
        room.ok(&format!("cd {dir} && {line}"));
        // The files of layers and experts are models of their own beside it.
        let output = room.sh(&format!("weightfs ls '{dir}/*mp_rank_*_states.pt'"));
        assert!(output.code != 0 && output.out.is_empty() && output.err.contains(message), "{line}: {output:?}");
        assert_eq!(output.err.lines().count(), 1, "{output:?}");
        let check = room.sh(&format!("weightfs check {dir}"));
        assert!(check.code != 0, "{check:?}");
    }
}

#[test]
fn lenient_shows_what_one_file_of_deepspeed_has() {
    let room = room_of("zero2");
    room.ok("rm model/global_step2/bf16_zero_pp_rank_1_*");
    let (names, messages) = lenient(&room, "model/global_step2");
    assert_eq!(names, ["inv_freq".to_owned()].into());
    assert!(messages.contains("tensor \"norm.bias\": a file of rank 1 is missing or broken"), "{messages}");
    let room = room_of("zero3");
    room.ok("rm model/global_step2/zero_pp_rank_1_*");
    let (names, messages) = lenient(&room, "model/global_step2");
    assert!(names.len() == 10 && !names.contains("embed.weight"), "{names:?}");
    assert!(messages.contains("tensor \"embed.weight\": the file of rank 1 is missing"), "{messages}");
}

#[test]
fn model_states_without_parts_are_an_ordinary_checkpoint() {
    let room = room_of("zero2");
    room.ok("rm model/global_step2/bf16_*");
    let listed = room.ok("weightfs ls model/global_step2/mp_rank_00_model_states.pt");
    assert!(listed.contains("module.embed.weight"), "{listed}");
    // If the parts are not whole, the message says how to see it.
    let room = room_of("zero2");
    room.ok("rm model/global_step2/bf16_zero_pp_rank_1_*");
    let alone = "a link with another name shows this file alone";
    assert!(refused(&room, "model/global_step2/mp_rank_00_model_states.pt").contains(alone));
    let partition = "model/global_step2/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt";
    assert!(!refused(&room, partition).contains(alone));
    room.ok("ln -s model/global_step2/mp_rank_00_model_states.pt alone.pt");
    let listed = room.ok("weightfs ls alone.pt");
    assert!(listed.contains("module.embed.weight"), "{listed}");
}

#[test]
fn ranks_of_megatron_say_why_they_are_not_joined() {
    let room = Room::new();
    let written = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/megatron");
    room.ok(&format!("cp -r {} model && chmod -R u+w model", written.display()));
    let reason = "one rank of a Megatron checkpoint (2 tensor, 1 pipeline and 1 expert parallel): no file says how its \
                  tensors were cut, so each rank is shown by itself";
    for rank in ["mp_rank_00", "mp_rank_01"] {
        let index = room.sh(&format!("weightfs cat model iter_0000100/{rank}/model_optim_rng/index.json"));
        let index: serde_json::Value = serde_json::from_str(&index.out).unwrap();
        assert_eq!(index["notes"], serde_json::json!([reason]));
        let name = "model.embedding.word_embeddings.weight";
        let found = index["tensors"].as_array().unwrap().iter().find(|tensor| tensor["name"] == name).unwrap();
        assert_eq!(found["shape"], serde_json::json!([4, 6]));
        let output = room.sh(&format!("weightfs inspect model/iter_0000100/{rank}/model_optim_rng.pt"));
        assert!(output.code == 0 && output.out.contains("pytorch, one rank of a Megatron checkpoint"), "{output:?}");
        assert!(output.err.contains(reason), "{output:?}");
    }
    // The content tells, whatever the name is. The only process has all of the model.
    room.ok("mv model/iter_0000100/mp_rank_00/model_optim_rng.pt model/other.pt");
    assert!(room.sh("weightfs inspect model/other.pt").err.contains(reason));
    replace(&room, "model/other.pt", b"checkpoint_version", b"checkpoint_versiox");
    assert!(!room.sh("weightfs inspect model/other.pt").err.contains(reason));
}

#[test]
fn files_of_other_values_are_refused_by_name() {
    let room = room_of("zero2");
    room.ok("mkdir other && cp model/global_step2/mp_rank_00_model_states.pt other/model_world_size_1_rank_0.pt");
    let error = refused(&room, "other");
    assert!(error.contains("\"model_world_size_1_rank_0.pt\": "), "{error}");
    assert!(error.contains("key \"module\" of its dict has a dict of tensors"), "{error}");
}

#[test]
fn errors_quote_no_file_that_a_link_leads_to() {
    // A tensor that no other file has, and two tensors of the same name, of which the second is a fault of one file.
    let verl = ("verl", "model/model_world_size_2_rank_1.pt");
    let zero = ("zero2", "model/global_step2/mp_rank_00_model_states.pt");
    for ((case, file), names) in [
        (verl, &["layers.0.wq.weight"][..]),
        (verl, &["layers.0.wq.weight", "layers.0.wo.weight"]),
        (zero, &["layers.0.0.weight", "layers.0.1.weight"]),
    ] {
        let room = room_of(case);
        for name in names {
            let secret = format!("{:x<1$}", "layers.0.secret.", name.len());
            replace(&room, file, name.as_bytes(), secret.as_bytes());
        }
        let error = refused(&room, "model");
        assert!(error.contains("layers.0.secret."), "{error}");
        room.ok(&format!("mv {file} private.pt && ln -s $PWD/private.pt {file}"));
        let error = refused(&room, "model");
        assert!(!error.contains("secret") && error.contains("a link leads to it"), "{error}");
    }
}
