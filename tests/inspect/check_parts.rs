//! `check --values --part`: the checks of several processes.

use crate::room::{Output, Room, Tensor, floats};
use safetensors::Dtype;

const FP8: &str = r#"{"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}}"#;

/// Float32 numbers, all 1 but those at these places.
fn ones(len: usize, others: &[(usize, f32)]) -> Vec<u8> {
    let mut values = vec![1.0; len];
    others.iter().for_each(|(at, value)| values[*at] = *value);
    floats(&values)
}

/// Models with findings of every kind: `model`, `quantized`, a set of shards, and a broken file.
fn sample() -> Room {
    let room = Room::new();
    let names: Vec<String> = (0..1100).map(|at| format!("small.{at}")).collect();
    let mut tensors: Vec<Tensor> =
        names.iter().map(|name| (&name[..], Dtype::F32, &[2][..], floats(&[f32::NAN, 1.0]))).collect();
    let wide = ones(3 << 20, &[(5, f32::INFINITY), (1 << 20, f32::NEG_INFINITY), ((3 << 20) - 1, f32::INFINITY)]);
    tensors.extend([
        ("wide", Dtype::F32, &[3, 1 << 20][..], wide),
        ("zero", Dtype::F32, &[600_000], vec![0; 2_400_000]),
        ("complex", Dtype::C64, &[1], floats(&[f32::NAN, f32::NAN])),
        ("last", Dtype::F16, &[10], vec![1; 20]),
    ]);
    room.model("model.safetensors", &tensors, &[("modelspec.hash_sha256", &format!("0x{}", "0".repeat(64)))]);
    // A download that has not finished.
    let cut = [ones(500_000, &[(499_999, f32::NAN)]), vec![0; 2_000_000]].concat();
    room.model("cut.safetensors", &[("a", Dtype::F32, &[1000, 1000], cut), ("b", Dtype::F32, &[9], vec![0; 36])], &[]);
    room.ok("mkdir quantized empty");
    room.model(
        "quantized/model.safetensors",
        &[
            ("m.weight", Dtype::F8_E4M3, &[256, 256], vec![0x38; 65536]),
            ("m.weight_scale_inv", Dtype::F32, &[2, 2], floats(&[0.0, 1.0, f32::NAN, 1.0])),
            ("n.weight", Dtype::F8_E4M3, &[128, 128], vec![0x38; 16384]),
            ("n.weight_scale_inv", Dtype::F32, &[1, 1], floats(&[f32::INFINITY])),
        ],
        &[],
    );
    std::fs::write(room.path("quantized/config.json"), FP8).unwrap();
    room.sharded("sharded");
    room.raw("broken.safetensors", r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}}"#, &[0; 9]);
    room.model("good.safetensors", &[("w", Dtype::F32, &[2], floats(&[1.0, 2.0]))], &[]);
    room.ok(
        "sha256sum good.safetensors cut.safetensors | sed 's/^[0-9a-f]\\{8\\}\\(.*cut\\)/00000000\\1/' > SHA256SUMS",
    );
    room
}

/// Checks in parts, none of which fails, and combines them.
fn combined(room: &Room, args: &str, parts: u32) -> Output {
    room.sh(&format!(
        "rm -f *.part
        for i in $(seq {parts}); do weightfs check --values {args} --part $i/{parts} > $i.part || exit 9; done
        weightfs combine *.part",
    ))
}

#[test]
fn parts_find_what_one_run_finds() {
    let room = sample();
    for args in [
        "model.safetensors",
        "cut.safetensors --json",
        "quantized",
        ".",
        ". --json",
        ". --quiet",
        "good.safetensors",
        "sharded.safetensors.index.json --json",
        "sharded.safetensors.index.json --fail-on-warning",
        "good.safetensors --sha256 0000000000000000000000000000000000000000000000000000000000000000",
    ] {
        let whole = room.sh(&format!("weightfs check --values {args}"));
        assert!(whole.code <= 1 && whole.err.is_empty(), "{args}: {whole:?}");
        for parts in [1, 3, 7] {
            let said = combined(&room, args, parts);
            assert!(said == whole, "{args} in {parts} parts: {said:?}\n{whole:?}");
        }
    }
    let whole = room.sh("weightfs check --values model.safetensors").out;
    assert!(whole.contains("1091 more of this kind") && whole.contains("the first at [0, 5]"), "{whole}");
    // Two parts have pieces of the large tensor, and the third one hashes the file.
    combined(&room, "model.safetensors", 3);
    assert_eq!(room.ok("grep -l '\"name\":\"wide\"' *.part"), "1.part\n2.part\n");
}

#[test]
fn parts_of_other_checks_are_refused() {
    let room = sample();
    let whole = combined(&room, "cut.safetensors", 3);
    let check = "weightfs check --values cut.safetensors";
    assert_eq!(room.sh("cp 2.part again; weightfs combine 3.part again 1.part 2.part 1.part"), whole);
    for (line, error) in [
        ("weightfs combine 3.part".to_owned(), "2 parts of 3 are missing: 1, 2"),
        (format!("{check} --json --part 2/3 > cut; weightfs combine 1.part cut 3.part"), "different options"),
        (format!("{check} --part 2/4 > cut; weightfs combine 1.part cut 3.part"), "cut is a part of 4"),
        ("head -n -1 2.part > cut; weightfs combine 1.part cut 3.part".into(), "cut: not a whole part"),
        (
            format!(
                "touch -d 2001-01-01 cut.safetensors; {check} --part 2/3 > cut; weightfs combine 1.part cut 3.part"
            ),
            "1.part and cut are of different versions of cut.safetensors",
        ),
    ] {
        room.fails_with(&line, 2, error);
    }
    // Numbers that no check finds: one line says so, or they are counted as they are.
    for change in [
        r#"s/"units":\[[0-9]+,/"units":[18446744073709551615,/"#,
        r#"s/"items":[0-9]+/"items":18446744073709551615/"#,
        r#"s/"nan":[0-9]+/"nan":18446744073709551615/"#,
        r#"s/"tensors":[0-9]+/"tensors":18446744073709551615/"#,
        r#"s/"shape":\[[0-9]+/"shape":[0/"#,
        r#"s/"zero":[0-9]+/"zero":18446744073709551615/"#,
        r#"s/"rule":"[a-z-]+"/"rule":"none"/"#,
    ] {
        let said = room.sh(&format!(
            "for i in 1 2 3; do sed -E '{change}' $i.part > $i.cut; done
            weightfs combine 1.cut 2.cut 3.cut"
        ));
        let is_refused = said.code == 2 && said.out.is_empty() && said.err.lines().count() == 1;
        assert!(is_refused || said.code == 1 && said.err.is_empty(), "{change}: {said:?}");
    }
    for (options, named) in [("", "--values"), ("--no-data", "--no-data")] {
        let said = room.sh(&format!("weightfs check {options} cut.safetensors --part 1/2"));
        assert!(said.code == 2 && said.out.is_empty() && said.err.contains(named), "{said:?}");
    }
}

#[test]
fn models_that_cannot_be_read_are_reported_by_every_part() {
    let room = sample();
    room.ok("mkdir lone; cp good.safetensors lone; ln -s nowhere lone/gone.safetensors");
    let args = "lone/good.safetensors lone/gone.safetensors";
    let whole = room.sh(&format!("weightfs check --values {args}"));
    let said = room.sh(&format!(
        "for i in 1 2; do weightfs check --values {args} --part $i/2 > $i.part; echo $? >> codes; done
        weightfs combine *.part"
    ));
    assert_eq!((said.code, &said.out, whole.code), (2, &whole.out, 2), "{said:?}");
    assert_eq!(room.ok("cat codes"), "2\n2\n");
}
