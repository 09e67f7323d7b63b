//! `export --part`: the shards of a model, written by several processes.

use crate::room::{Room, floats};
use safetensors::Dtype;

fn sample() -> Room {
    let room = Room::new();
    let names: Vec<String> = (0..9).map(|layer| format!("layers.{layer}.weight")).collect();
    let values = |seed: u32, count: u32| -> Vec<f32> { (0..count).map(|at| (at * seed % 1000) as f32).collect() };
    let layers =
        names.iter().zip(1u32..).map(|(name, seed)| (&name[..], Dtype::F32, &[1000][..], floats(&values(seed, 1000))));
    let others = [
        ("large", Dtype::F32, &[40, 1000][..], floats(&values(7, 40_000))),
        ("empty", Dtype::F32, &[0], vec![]),
        ("\"ü\\", Dtype::U8, &[3], vec![1, 2, 3]),
    ];
    room.model("m.safetensors", &layers.chain(others).collect::<Vec<_>>(), &[("license", "mit")]);
    room
}

#[test]
fn parts_write_the_files_of_one_run() {
    let room = sample();
    for options in ["", "--dtype bf16", "--only '*.weight' --clean --align 64"] {
        room.ok(&format!("rm -rf whole; weightfs export {options} --shard-size 9kB m.safetensors whole"));
        for parts in [1, 2, 3, 20] {
            room.ok(&format!(
                "rm -rf parts *.part
                for i in $(seq {parts}); do
                    weightfs export {options} --shard-size 9kB --part $i/{parts} m.safetensors parts > $i.part || exit
                done
                weightfs combine *.part > parts/model.safetensors.index.json
                diff -r whole parts"
            ));
        }
    }
    // The parts have equal numbers of bytes, up to a shard.
    room.ok("for i in 1 2; do weightfs export --shard-size 9kB --part $i/2 m.safetensors half$i > $i.part; done");
    let size = |dir: &str| room.ok(&format!("cat {dir}/* | wc -c")).trim().parse::<u64>().unwrap();
    assert!(size("half1").abs_diff(size("half2")) <= 180_000, "{} {}", size("half1"), size("half2"));
    // One file has no index, so nothing is printed.
    room.ok("rm -r parts; weightfs export --shard-size 1GB --part 1/1 m.safetensors parts > 1.part");
    assert_eq!(room.ok("weightfs combine 1.part; ls parts"), "model.safetensors\n");
}

#[test]
fn nothing_is_replaced_or_joined_by_mistake() {
    let room = sample();
    let export = "weightfs export --shard-size 9kB m.safetensors";
    room.ok(&format!(
        "for i in 1 2; do {export} parts --part $i/2 > $i.part; done; mkdir other; cp m.safetensors other"
    ));
    for (line, code, error) in [
        (format!("{export} parts --part 1/2 > again"), 1, "exists already; --force replaces it"),
        (format!("{export} - --part 1/2"), 1, "standard output has the part; name a directory for the files"),
        (format!("{export} none/parts --part 1/2"), 1, "weightfs: none/parts: No such file or directory"),
        (format!("{export} m.safetensors --part 1/2"), 1, "m.safetensors: File exists"),
        ("weightfs export m.safetensors parts --part 1/2".into(), 2, "--shard-size"),
        (format!("{export} parts --part 3/2"), 2, "there is no part 3 of 2"),
        ("weightfs combine 2.part".into(), 1, "1 part of 2 is missing: 1"),
        (
            format!("{export} --dtype bf16 half --part 2/2 > half.part; weightfs combine 1.part half.part"),
            1,
            "1.part and half.part were made with different options",
        ),
        (
            format!(
                "touch -d 2001-01-01 m.safetensors; {export} new --part 2/2 > new.part; weightfs combine 1.part new.part"
            ),
            1,
            "1.part and new.part are of different versions of m.safetensors",
        ),
    ] {
        let said = room.sh(&line);
        assert!(said.code == code && said.out.is_empty() && said.err.contains(error), "{line}: {said:?}");
    }
    let said = room.sh("cp m.safetensors b.safetensors; weightfs export --shard-size 9kB . parts --part 1/2");
    assert!(said.code == 1 && said.out.is_empty(), "{said:?}");
    // What was written is not affected.
    room.ok(&format!(
        "{export} whole; weightfs combine 1.part 2.part > parts/model.safetensors.index.json; diff -r whole parts"
    ));
}

/// Two of four processes are killed, and the job is started again.
#[test]
fn example_writes_with_the_processes_of_a_job() {
    let room = sample();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/clusters/bf16.sh");
    room.ok("weightfs export --dtype bf16 --shard-size 9kB m.safetensors whole");
    room.ok(&format!(
        "export SHARD_SIZE=9kB
        for rank in 0 1; do RANK=$rank WORLD_SIZE=4 {example} m.safetensors job; done
        for rank in 2 3; do timeout -s KILL 0.02 env RANK=$rank WORLD_SIZE=4 {example} m.safetensors job; done 2> killed
        for rank in 0 1 2 3; do RANK=$rank WORLD_SIZE=4 {example} m.safetensors job; done
        weightfs combine job/*.part > job/model.safetensors.index.json && rm job/*.part*
        diff -r whole job && weightfs check job > checked"
    ));
}
