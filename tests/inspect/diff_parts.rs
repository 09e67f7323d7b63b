//! `diff --values --part`: the values of two models, compared by several processes.

use crate::room::{Output, Room, floats};
use safetensors::Dtype;

const FP8: &str = r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}"#;

/// Bytes without a pattern. The highest byte of each element has one of few values, so that floats are small.
fn noise(elements: u32, size: u32, seed: u32, high: u8) -> Vec<u8> {
    let byte = |at: u32| ((at ^ seed).wrapping_mul(2_654_435_761) >> 24) as u8;
    (0..elements * size).map(|at| if at % size == size - 1 { high ^ byte(at) & 0x81 } else { byte(at) }).collect()
}

/// Two models, `a` and `b`. `large` and `alike` have more elements than one process compares as a whole.
fn sample() -> Room {
    let room = Room::new();
    room.ok("mkdir a b");
    let alike = ("alike", Dtype::U8, &[9, 1 << 20][..], noise(9 << 20, 1, 3, 0));
    room.model(
        "a/model.safetensors",
        &[
            ("large", Dtype::BF16, &[13, 1 << 20], noise(13 << 20, 2, 0, 0x3d)),
            alike.clone(),
            ("m.weight", Dtype::F32, &[256, 256], noise(65536, 4, 0, 0x3e)),
            ("norm", Dtype::F32, &[5], floats(&[1.0, f32::NAN, f32::NAN, f32::INFINITY, -3.5])),
            ("empty", Dtype::F32, &[0, 4], vec![]),
            ("shaped", Dtype::F32, &[2], vec![0; 8]),
            ("complex", Dtype::C64, &[2], floats(&[1.0, f32::INFINITY, 2.0, 3.0])),
            ("gone", Dtype::F32, &[2], vec![0; 8]),
        ],
        &[],
    );
    room.model(
        "b/model.safetensors",
        &[
            ("large", Dtype::F8_E5M2, &[13, 1 << 20], noise(13 << 20, 1, 1, 0x35)),
            alike,
            ("m.weight", Dtype::F8_E4M3, &[256, 256], noise(65536, 1, 2, 0x35)),
            ("m.weight_scale_inv", Dtype::F32, &[2, 2], floats(&[0.5, 1.0, 0.25, 3.0])),
            ("norm", Dtype::F32, &[5], floats(&[1.5, f32::NAN, 0.0, f32::NEG_INFINITY, -3.5])),
            ("empty", Dtype::F32, &[0, 4], vec![]),
            ("shaped", Dtype::F32, &[3], vec![0; 12]),
            ("complex", Dtype::C64, &[2], floats(&[1.0, f32::INFINITY, 2.5, 3.0])),
            ("new", Dtype::F16, &[1], vec![0; 2]),
        ],
        &[],
    );
    std::fs::write(room.path("b/config.json"), FP8).unwrap();
    room
}

/// Compares in parts, none of which fails, and combines them.
fn combined(room: &Room, args: &str, parts: u32) -> Output {
    room.sh(&format!(
        "rm -f *.part; for i in $(seq {parts}); do weightfs diff --values {args} --part $i/{parts} > $i.part || exit 9; done
        weightfs combine *.part",
    ))
}

#[test]
fn parts_find_the_differences_of_one_run() {
    let room = sample();
    for format in ["", "--json", "--markdown"] {
        let whole = room.sh(&format!("weightfs diff --values a b {format}"));
        assert!(whole.code == 1 && whole.err.is_empty() && whole.out.contains("large"), "{whole:?}");
        for parts in [1, 3, 7] {
            assert_eq!(combined(&room, &format!("a b {format}"), parts), whole, "{format} in {parts} parts");
        }
    }
    // Several parts have pieces of the large tensors.
    let having = |name: &str| room.ok(&format!("grep -l '\"name\":\"{name}\"' *.part | wc -l")).trim().parse::<u32>();
    assert!(having("large").unwrap() >= 3 && having("alike").unwrap() >= 2);
    let same = combined(&room, "b b", 3);
    assert_eq!(same, room.sh("weightfs diff --values b b"));
    assert!(same.code == 0 && same.out.contains("0 different, 8 equal"), "{same:?}");
}

#[test]
fn directories_are_compared_in_parts() {
    let room = Room::new();
    room.ok("mkdir x y");
    let model = |name: &str, values: &[f32]| {
        room.model(name, &[("w", Dtype::F32, &[values.len()], floats(values))], &[]);
    };
    model("x/p.safetensors", &[1.0, 2.0]);
    model("y/p.safetensors", &[1.0, 2.5]);
    for name in ["x/q", "y/q", "x/old", "y/new"] {
        model(&format!("{name}.safetensors"), &[3.0]);
    }
    for format in ["", "--json", "--markdown"] {
        let whole = room.sh(&format!("weightfs diff --values x y {format}"));
        assert!(whole.code == 1 && whole.err.is_empty() && whole.out.contains("old"), "{whole:?}");
        for parts in [1, 2, 5] {
            assert_eq!(combined(&room, &format!("x y {format}"), parts), whole, "{format} in {parts} parts");
        }
    }
}

#[test]
fn parts_of_other_comparisons_are_refused() {
    let room = sample();
    let whole = combined(&room, "a b", 3);
    let said = room.sh("cp 2.part again; weightfs combine 3.part again 1.part 2.part 1.part");
    assert_eq!(said, whole);
    let diff = "weightfs diff --values a b";
    for (line, error) in [
        ("weightfs combine 3.part".into(), "2 parts of 3 are missing: 1, 2"),
        (
            format!("{diff} --json --part 2/3 > cut; weightfs combine 1.part cut 3.part"),
            "1.part and cut were made with different options",
        ),
        (
            format!("{diff} --part 2/4 > cut; weightfs combine 1.part cut 3.part"),
            "1.part is a part of 3, but cut is a part of 4",
        ),
        ("weightfs stats a --part 2/3 > cut; weightfs combine 1.part cut".into(), "different options"),
        ("weightfs combine 1.part lost".into(), "weightfs: lost: No such file or directory"),
        ("head -n -1 2.part > cut; weightfs combine 1.part cut 3.part".into(), "cut: not a whole part"),
        ("sed s/large/moved/ 2.part > cut; weightfs combine 1.part cut 3.part".into(), "do not fit together"),
        (
            "touch -d 2001-01-01 b/model.safetensors
            weightfs diff --values a b --part 2/3 > cut; weightfs combine 1.part cut 3.part"
                .into(),
            "1.part and cut are of different versions of a and b",
        ),
    ] {
        room.fails_with(&line, 2, error);
    }
    // Numbers that no comparison has.
    for change in [
        r#"s/"len":[0-9]+/"len":5/"#,
        r#"s/"index":0/"index":1/"#,
        r#"s/"index":0/"index":18446744073709551615/"#,
        r#"s/"counts":\[[0-9]+/"counts":[18446744073709551615/"#,
        r#"s/"range":\[[0-9]+,[0-9]+/"range":[18446744073709551615,1/"#,
        r#"s/"shape":\[13/"shape":[18446744073709551615/"#,
        r#"s/"compared":\[\{/"compared":[{"counts":[0,0,0,0],"nan":[0,0],"infinite":[0,0],"sums":[0,0,0,0,0]},{/"#,
        r#"s/"items":[0-9]+/"items":18446744073709551615/"#,
    ] {
        let said = room.sh(&format!(
            "for i in 1 2 3; do sed -E '{change}' $i.part > $i.cut; done
            cmp -s 1.part 1.cut && exit 9; weightfs combine 1.cut 2.cut 3.cut"
        ));
        assert!(said.code == 2 && said.out.is_empty() && said.err.lines().count() == 1, "{change}: {said:?}");
    }
    let said = room.sh("weightfs diff a b --part 1/2");
    assert!(said.code == 2 && said.err.contains("--values"), "{said:?}");
}
