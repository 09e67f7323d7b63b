//! `stats`: the statistics of all tensors, as a table, as JSON and as comma-separated values.

use crate::room::{Room, floats};
use safetensors::Dtype;
use serde_json::Value;

fn sample() -> Room {
    let room = Room::new();
    let values = floats(&[1.0, 2.0, 3.0, 0.0, f32::NAN, f32::NEG_INFINITY]);
    room.model(
        "m.safetensors",
        &[
            ("a.weight", Dtype::F32, &[2, 3], values),
            ("b,\"c\"", Dtype::U8, &[4], vec![1, 3, 5, 7]),
            ("empty", Dtype::BF16, &[0, 4], vec![]),
            ("z.complex", Dtype::C64, &[1], vec![0; 8]),
        ],
        &[],
    );
    room
}

#[test]
fn table_has_the_statistics_of_every_tensor() {
    let said = sample().sh("weightfs stats m.safetensors");
    let lines: Vec<String> =
        said.out.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let expected = [
        "NAME MIN MAX MEAN STD ZEROS NAN INF",
        "a.weight 0 3 1.5 1.118034 1 1 1",
        "empty - - - - 0 0 0",
        "b,\"c\" 1 7 4 2.236068 0 0 0",
    ];
    let mut sorted = lines.clone();
    sorted.sort();
    let mut expected = expected.to_vec();
    expected.sort();
    assert_eq!((said.code, sorted), (0, expected.into_iter().map(str::to_owned).collect()), "{said:?}");
    assert!(said.err.contains("1 tensor has no statistics: \"z.complex\" of C64"), "{said:?}");
}

#[test]
fn comma_separated_values_are_exact() {
    let room = sample();
    let out = room.sh("weightfs stats --csv m.safetensors").out;
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines[0], "source,name,dtype,shape,count,zeros,nan,pos_inf,neg_inf,min,max,mean,std,abs_max");
    for line in [
        "m.safetensors,a.weight,F32,\"[2,3]\",6,1,1,0,1,0.0,3.0,1.5,1.118033988749895,3.0",
        "m.safetensors,\"b,\"\"c\"\"\",U8,[4],4,0,0,0,0,1.0,7.0,4.0,2.23606797749979,7.0",
        "m.safetensors,empty,BF16,\"[0,4]\",0,0,0,0,0,,,,,",
    ] {
        assert!(lines.contains(&line), "{line} in {out}");
    }
    assert_eq!(lines.len(), 4);
    let said = room.sh("weightfs stats --csv --json m.safetensors");
    assert_eq!(said.code, 2, "{said:?}");
}

#[test]
fn json_has_what_the_files_of_a_mount_have() {
    let room = sample();
    let out = room.sh("weightfs stats --json m.safetensors").out;
    let found: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(found["source"], "m.safetensors");
    let tensors = found["tensors"].as_array().unwrap();
    assert_eq!(tensors.len(), 3);
    for tensor in tensors {
        let mut tensor = tensor.clone();
        let fields = tensor.as_object_mut().unwrap();
        let [name, _, _] = ["name", "dtype", "shape"].map(|key| fields.remove(key).unwrap());
        let path = format!("stats/{}.json", name.as_str().unwrap());
        let file = room.ok(&format!("weightfs cat m.safetensors '{path}'"));
        assert_eq!(tensor, serde_json::from_str::<Value>(&file).unwrap(), "{name}");
    }
    assert_eq!(found["without_statistics"], serde_json::json!([{"name": "z.complex", "dtype": "C64"}]));
    // One tensor per line, so that grep can be used on it.
    assert_eq!(out.lines().filter(|line| line.contains("\"count\"")).count(), 3);
}

#[test]
fn tensors_of_all_sizes_are_counted_in_their_order() {
    let room = Room::new();
    let names: Vec<String> = (0..200).map(|at| format!("t{at:03}")).collect();
    // The 50th is counted alone, on all cores.
    let tensors: Vec<crate::room::Tensor> = (0..200u8)
        .map(|at| {
            let len = if at == 50 { 20 << 20 } else { usize::from(at) + 1 };
            let shape: &[usize] = Box::leak(Box::new([len]));
            (&names[usize::from(at)][..], Dtype::U8, shape, vec![at; len])
        })
        .collect();
    room.model("m.safetensors", &tensors, &[]);
    room.sharded("x");
    room.ok("mkdir two && mv x* two");
    let out = room.ok("weightfs stats --csv m.safetensors");
    for (at, line) in out.lines().skip(1).enumerate() {
        let fields: Vec<&str> = line.split(',').collect();
        let (name, value) = (format!("t{at:03}"), format!("{at}.0"));
        assert_eq!([fields[1], fields[2], fields[9], fields[10]], [&name, "U8", &value, &value], "{line}");
    }
    assert_eq!(out.lines().count(), 201);

    let only = room.ok("weightfs stats --csv --only 't00?' --only t199 m.safetensors");
    assert_eq!(only.lines().count(), 12);
    let missed = room.sh("weightfs stats --only 'q*' m.safetensors");
    assert!(missed.code == 1 && missed.err.contains("no tensor matches \"q*\""), "{missed:?}");
    // Several models have a title each, and one line of names.
    room.ok("cp m.safetensors two/y.safetensors");
    let both = room.ok("weightfs stats two");
    assert!(both.starts_with("two/x.safetensors.index.json:\n") && both.contains("\n\ntwo/y.safetensors:\n"), "{both}");
    assert_eq!(room.ok("weightfs stats --csv two").matches("source,name").count(), 1);
}

#[test]
fn file_that_ends_early_is_an_error() {
    let room = sample();
    room.ok("truncate -s -4 m.safetensors");
    let said = room.sh("weightfs stats m.safetensors");
    assert!(said.code == 1 && said.err.contains("m.safetensors"), "{said:?}");
}

/// Two models with tensors that are cut, in small and in large pieces.
fn large() -> Room {
    let room = Room::new();
    let noise = |len: usize, exponent: u8| -> Vec<u8> {
        let words =
            (0..len as u32 / 4).map(|at| at.wrapping_mul(0x9e37_79b1).rotate_left(13).wrapping_mul(0x85eb_ca6b));
        words
            .flat_map(|word| {
                let [a, b, c, d] = word.to_le_bytes();
                [a, b, c, d & 0x80 | exponent]
            })
            .collect()
    };
    room.model(
        "a.safetensors",
        &[
            ("embed", Dtype::F32, &[3000, 1000], noise(12_000_000, 0x3e)),
            ("empty", Dtype::BF16, &[0, 4], vec![]),
            ("half", Dtype::BF16, &[2000, 1000], noise(4_000_000, 0x3d)),
            ("wide", Dtype::F64, &[250_000], noise(2_000_000, 0x40)),
            ("z.complex", Dtype::C64, &[1], vec![0; 8]),
            ("norm", Dtype::F32, &[5], floats(&[1.0, 0.0, f32::NAN, f32::INFINITY, -3.5])),
        ],
        &[],
    );
    room.model("b.safetensors", &[("codes", Dtype::U8, &[100], (0..100).collect())], &[]);
    room
}

/// Runs a command in parts, and combines them.
fn combined(room: &Room, args: &str, parts: u32) -> String {
    let said = room.sh(&format!(
        "rm -f *.part; for i in $(seq {parts}); do weightfs stats {args} --part $i/{parts} > $i.part || exit; done
        weightfs combine *.part",
    ));
    assert_eq!(said.code, 0, "{said:?}");
    said.out
}

#[test]
fn parts_make_what_one_run_prints() {
    let room = large();
    for args in ["a.safetensors --json", "a.safetensors --csv", ".", ". --csv", "a.safetensors --only '*e*' --json"] {
        let whole = room.sh(&format!("weightfs stats {args}"));
        assert_eq!(whole.code, 0, "{whole:?}");
        for parts in [1, 2, 3, 7, 40] {
            assert!(combined(&room, args, parts) == whole.out, "{args} in {parts} parts");
        }
    }
    // What no part counts is said once.
    let said = room.sh("weightfs combine *.part");
    assert_eq!(said.err.matches("1 tensor has no statistics: \"z.complex\" of C64").count(), 1, "{said:?}");
    assert_eq!(said.err.lines().count(), 1, "{said:?}");
}

#[test]
fn statistics_do_not_depend_on_the_number_of_cores() {
    let room = large();
    let [all, one] =
        ["", "taskset -c 0 "].map(|with| room.sh(&format!("{with}weightfs stats --json a.safetensors")).out);
    assert!(all == one && all.contains("embed"));
}

#[test]
fn models_that_cannot_be_opened_are_reported_by_every_part() {
    let room = large();
    room.raw("broken.safetensors", "{", &[]);
    let whole = room.sh("weightfs stats . --csv");
    let said = room.sh("for i in 1 2; do weightfs stats . --csv --part $i/2 > $i.part; done; weightfs combine *.part");
    assert_eq!((said.code, &said.out, whole.code), (1, &whole.out, 1));
    assert_eq!(said.err.matches("broken.safetensors").count(), 2, "{said:?}");
}

#[test]
fn parts_share_the_bytes_of_a_model() {
    let room = large();
    combined(&room, "a.safetensors", 4);
    let bytes = |part: u32| -> u64 {
        let text = std::fs::read_to_string(room.path(&format!("{part}.part"))).unwrap();
        let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
        let ranges =
            lines.filter_map(|line| Some((line["item"]["range"][0].as_u64()?, line["item"]["range"][1].as_u64()?)));
        ranges.map(|(start, end)| end - start).sum()
    };
    let total: u64 = (1..=4).map(bytes).sum();
    assert_eq!(total, 18_000_020);
    // Values are counted in blocks of 768 KiB, and never less than one.
    assert!((1..=4).all(|part| bytes(part).abs_diff(total / 4) <= 768 << 10));
}

/// Two of four processes are killed, and the job is started again.
#[test]
fn example_counts_with_the_processes_of_a_job() {
    let room = large();
    let example = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/clusters/stats.sh");
    let whole = room.sh("weightfs stats a.safetensors --json").out;
    let variables =
        [("RANK", "WORLD_SIZE"), ("SLURM_PROCID", "SLURM_NTASKS"), ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS")];
    for (rank, size) in variables {
        let said = room.sh(&format!(
            "rm -rf job; mkdir job
            for rank in 0 1; do {rank}=$rank {size}=4 {example} a.safetensors job; done
            for rank in 2 3; do timeout -s KILL 0.02 env {rank}=$rank {size}=4 {example} a.safetensors job; done 2> killed
            for rank in 0 1 2 3; do {rank}=$rank {size}=4 {example} a.safetensors job; done
            weightfs combine job/*.part"
        ));
        assert!(said.code == 0 && said.out == whole, "{rank}: {said:?}");
    }
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let room = large();
    combined(&room, "a.safetensors --json", 3);
    let refused = |line: &str, error: &str| {
        let said = room.sh(line);
        assert!(said.code == 1 && said.out.is_empty() && said.err.contains(error), "{line}: {said:?}");
        assert_eq!(said.err.lines().count(), 1, "{said:?}");
    };
    refused("weightfs combine 1.part", "2 parts of 3 are missing: 2, 3");
    refused("weightfs combine 1.part 3.part", "1 part of 3 is missing: 2");
    refused("weightfs combine a.safetensors", "a.safetensors: not a part that weightfs has printed");
    refused("weightfs combine /dev/zero", "/dev/zero: not a part that weightfs has printed");
    refused("weightfs combine none.part", "weightfs: none.part: No such file or directory");
    refused("head -n -1 2.part > cut; weightfs combine 1.part cut 3.part", "cut: not a whole part: it ends in line");
    refused("head -c 3000 2.part > cut; weightfs combine 1.part cut 3.part", "cut: ");
    refused("grep -v embed 2.part > cut; weightfs combine 1.part cut 3.part", "cut: line ");
    refused(
        "sed s/embed/moved/ 2.part > cut; weightfs combine 1.part cut 3.part",
        "the pieces of \"embed\" do not fit together",
    );
    refused(
        "sed -E 's/\\[\\[-?[0-9]+,/[[-99999999999,/' 2.part > cut; weightfs combine 1.part cut 3.part",
        "the pieces of \"embed\" do not fit together",
    );
    refused(
        "weightfs stats a.safetensors --csv --part 2/3 > cut; weightfs combine 1.part cut 3.part",
        "1.part and cut were made with different options",
    );
    refused(
        "weightfs stats a.safetensors --json --part 2/4 > cut; weightfs combine 1.part cut 3.part",
        "1.part is a part of 3, but cut is a part of 4",
    );
    // Numbers that no values have.
    for change in [
        r#"s/"end":\{"lines":[0-9]+/"end":{"lines":18446744073709551615/"#,
        r#"s/"special":\[[0-9]+,[0-9]+/"special":[18446744073709551615,18446744073709551615/"#,
        r#"s/"zeros":[0-9]+/"zeros":18446744073709551615/"#,
        r#"s/"range":\[0,/"range":[1,/"#,
        r#"s/"exponent":0/"exponent":-2147483648/"#,
        r#"s/"min":[0-9]+/"min":9218868437227405313/"#,
        r#"s/"counts":\[[0-9]+,/"counts":[18446744073709551615,/"#,
        r#"s/"index":0/"index":7/"#,
    ] {
        for part in 1..=3 {
            let others = [1, 2, 3].into_iter().filter(|other| *other != part).map(|other| format!("{other}.part"));
            let others: Vec<String> = others.collect();
            let said = room.sh(&format!(
                "sed -E '{change}' {part}.part > cut; cmp -s cut {part}.part && exit 9; weightfs combine cut {}",
                others.join(" ")
            ));
            assert!(said.code == 9 || said.code == 1 && said.out.is_empty(), "{change} {part}: {said:?}");
            assert!(said.err.lines().count() == usize::from(said.code == 1) && !said.err.contains("panic"), "{said:?}");
        }
    }
    // The same part twice, also under another name.
    let said = room.sh("cp 2.part again; weightfs combine 3.part again 1.part 2.part 1.part");
    assert_eq!((said.code, said.out), (0, room.sh("weightfs stats a.safetensors --json").out));
    // The source changed between two parts.
    refused(
        "touch -d '2001-01-01' a.safetensors; weightfs stats a.safetensors --json --part 2/3 > cut
        weightfs combine 1.part cut 3.part",
        "1.part and cut are of different versions of a.safetensors",
    );
    for part in ["4/3", "0/3", "x", "1"] {
        let said = room.sh(&format!("weightfs stats a.safetensors --part {part}"));
        assert!(said.code == 2 && said.err.contains("part"), "{said:?}");
    }
}
