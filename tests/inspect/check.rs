//! `check`: findings in sound files, in damaged files, and in valid files that are unusual.

use crate::room::{Output, Room, Tensor, floats};
use safetensors::Dtype;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::path::Path;
use weightfs::format::{HeaderInput, ParseMode, parse_header};

/// Runs `check --json` with these arguments. Returns the findings as `severity rule`, and their messages.
fn found(room: &Room, line: &str) -> (Vec<String>, Vec<String>) {
    let objects = room.json(&format!("weightfs check --json {line}"));
    let findings = objects.iter().flat_map(|object| object["findings"].as_array().unwrap());
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    findings
        .map(|finding| (format!("{} {}", text(finding, "severity"), text(finding, "rule")), text(finding, "message")))
        .unzip()
}

fn entry(name: &str, dtype: &str, shape: &[u64], begin: u64, end: u64) -> String {
    format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
}

/// A header of these entries, padded so that the data begins at a multiple of 8.
fn header(entries: &[String]) -> String {
    let mut json = format!("{{{}}}", entries.join(","));
    while json.len() % 8 != 0 {
        json.push(' ');
    }
    json
}

#[test]
fn sound_file_is_reported_as_sound() {
    let room = Room::new();
    room.model(
        "m.safetensors",
        &[("a", Dtype::F32, &[2], floats(&[1.0, 2.0])), ("b", Dtype::BF16, &[1], vec![0; 2])],
        &[],
    );
    let output = room.sh("weightfs check m.safetensors");
    let line = "m.safetensors: OK (2 tensors, 10 B; data aligned to 8 bytes)\n";
    assert_eq!(output, Output { code: 0, out: line.into(), err: "".into() });
    let line = "m.safetensors: OK (2 tensors, 10 B; data aligned to 8 bytes; all values finite)\n";
    assert_eq!(room.ok("weightfs check --values m.safetensors"), line);
    assert_eq!(room.ok("weightfs check --quiet m.safetensors"), "");
    let object = json!({"source": "m.safetensors", "ok": true, "errors": 0, "warnings": 0, "notes": 0, "files": 1, "tensors": 2,
        "nbytes": 10, "alignment": 8, "values": false, "unsearched": 0, "verified": [], "findings": []});
    assert_eq!(room.json("weightfs check --json m.safetensors"), [object]);
}

#[test]
fn every_error_in_a_file_is_reported() {
    let room = Room::new();
    let entries = [
        entry("a", "F32", &[2], 0, 8),
        entry("gap", "F32", &[1], 16, 20),
        entry("over", "F32", &[2], 16, 24),
        entry("size", "F32", &[3], 24, 32),
        entry("far", "U8", &[100], 24, 124),
        entry("a", "F32", &[2], 24, 32),
        r#""__metadata__":{"k":5}"#.to_owned(),
        r#""none":{"dtype":"U8","shape":[1]}"#.to_owned(),
    ];
    room.raw("m.safetensors", &header(&entries), &[0; 40]);
    let (rules, messages) = found(&room, "m.safetensors");
    let expected = [
        ("entry", "__metadata__: key \"k\": the value is 5, not a string"),
        ("entry", "tensor \"size\": shape [3] of F32 takes 12 bytes, but its data_offsets span 8"),
        ("entry", "tensor \"none\": its entry has no data_offsets"),
        ("entry", "tensor \"far\": its data takes bytes "),
        ("entry", "tensor \"a\": the name occurs twice in the header"),
        ("hole", "tensor \"gap\": its data begins at byte "),
        ("hole", "too long: the data ends at byte "),
        ("overlap", "tensor \"over\": its data begins at byte "),
    ];
    let all = || format!("{rules:?}\n{}", messages.join("\n"));
    for (rule, message) in expected {
        let reported =
            rules.iter().zip(&messages).any(|(r, m)| *r == format!("error {rule}") && m.starts_with(message));
        assert!(reported, "{rule}: {message}\n{}", all());
    }
    // The last entry of `a` counts, so the data of its first entry is a hole too.
    assert_eq!(rules.iter().filter(|rule| rule.starts_with("error")).count(), expected.len(), "{}", all());
    let output = room.sh("weightfs check m.safetensors");
    assert_eq!((output.code, &output.err[..]), (1, ""), "{output:?}");
    assert!(output.out.lines().all(|line| line.starts_with("m.safetensors: ")), "{output:?}");
    assert!(output.out.ends_with("m.safetensors: 8 errors (3 tensors, 20 B; data aligned to 8 bytes)\n"), "{output:?}");
    // A hole may be the data of a tensor that is skipped.
    let twice = [entry("a", "U8", &[8], 0, 8), entry("a", "U8", &[8], 8, 16)];
    room.raw("twice.safetensors", &header(&twice), &[0; 16]);
    let (rules, messages) = found(&room, "twice.safetensors");
    assert_eq!(rules, ["error entry", "error hole"]);
    assert!(messages[1].ends_with(": a hole of 8 bytes, which may belong to a tensor that is skipped"), "{messages:?}");
    // One error of a tensor does not hide another.
    let (cut, empty) = (entry("a", "U8", &[8], 0, 8), entry("a", "U8", &[0], 0, 0));
    let part = entry("a", "F4", &[], 0, 0);
    for (both, reason) in
        [([&cut, &empty], "but the file ends"), ([&part, &empty], "4 bits"), ([&part, &part], "4 bits")]
    {
        room.raw("both.safetensors", &header(&both.map(String::clone)), &[]);
        let (rules, messages) = found(&room, "both.safetensors");
        let count = |part: &str| messages.iter().filter(|message| message.contains(part)).count();
        assert!(count("the name occurs twice") == 1 && count(reason) + 1 == rules.len(), "{messages:?}");
    }
    // Two invalid metadata values are not a repeated tensor name.
    room.raw("metadata.safetensors", r#"{"__metadata__":{"a":1,"b":2}}  "#, &[]);
    assert_eq!(found(&room, "metadata.safetensors").0, ["error entry"; 2]);
    let hole = [entry("a", "U8", &[8], 0, 8), entry("b", "U8", &[8], 16, 24)];
    room.raw("hole.safetensors", &header(&hole), &[0; 25]);
    let (rules, messages) = found(&room, "hole.safetensors");
    assert_eq!(rules, ["error hole"; 2]);
    assert!(
        messages[0].ends_with(": a hole of 8 bytes") && messages[1].ends_with("; 1 byte after the data"),
        "{messages:?}"
    );
}

#[test]
fn truncated_file_is_not_reported_as_too_long() {
    let room = Room::new();
    let entries = [entry("a", "U8", &[8], 0, 8), entry("b", "U8", &[8], 8, 16), entry("c", "U8", &[8], 16, 24)];
    room.raw("m.safetensors", &header(&entries), &[0; 10]);
    let (rules, messages) = found(&room, "m.safetensors");
    assert_eq!(rules, ["error format", "error entry", "error entry"]);
    assert!(messages[0].starts_with("truncated: the data ends at byte ") && messages[0].contains("; 14 bytes missing"));
    assert!(messages[1].starts_with("tensor \"b\": its data takes bytes "), "{messages:?}");
}

#[test]
fn verdict_matches_strict_parser_on_golden_files() {
    let room = Room::new();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut broken = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        let Ok(golden) = std::fs::read_to_string(path.with_extension("txt")) else { continue };
        let path = path.with_extension("safetensors");
        let code = room.sh(&format!("weightfs check --quiet --values '{}'", path.display())).code;
        let is_sound = golden.starts_with("strict: ok");
        assert_eq!(code, i32::from(!is_sound), "{}", path.display());
        broken += u32::from(!is_sound);
    }
    assert!(broken > 30, "{broken}");
}

#[test]
fn verdict_matches_strict_parser_on_mutated_headers() {
    let room = Room::new();
    let paths = room.mutations();
    let reports = room.json("weightfs check --json --values *.safetensors");
    assert_eq!(reports.len(), paths.len());
    let mut sound = 0;
    for report in reports {
        let file = std::fs::read(room.path(report["source"].as_str().unwrap())).unwrap();
        let is_sound = parse_header(&HeaderInput::with_prefix(file.len() as u64, file), ParseMode::Strict).is_ok();
        assert_eq!(report["ok"], is_sound, "{report:#}");
        assert_eq!(report["errors"] == 0, is_sound, "{report:#}");
        sound += usize::from(is_sound);
    }
    assert!((20..paths.len() - 20).contains(&sound), "{sound} of {}", paths.len());
}

#[test]
fn valid_but_unusual_files_get_warnings() {
    let room = Room::new();
    // Name, header, data, expected findings, beginning of the first message.
    type Case<'c> = (&'c str, String, &'c [u8], &'c [&'c str], &'c str);
    let cases: [Case; 9] = [
        (
            "unaligned",
            header(&[entry("pad", "U8", &[3], 0, 3), entry("x", "F32", &[1], 3, 7), entry("y", "BF16", &[1], 7, 9)]),
            &[0; 9],
            &["warning unaligned", "warning unaligned"],
            "tensor \"x\": its F32 data begins at byte ",
        ),
        // Elements of eight bits or fewer need no alignment.
        (
            "narrow",
            header(&[entry("pad", "U8", &[3], 0, 3), entry("x", "F8_E4M3", &[1], 3, 4), entry("y", "F4", &[2], 4, 5)]),
            &[0; 5],
            &[],
            "",
        ),
        (
            "unpadded",
            format!("{{{}}}", [entry("x", "U8", &[1], 0, 1)].join(",")),
            &[0; 1],
            &["warning data-start"],
            "the data begins at byte 61, which is not a multiple of 8",
        ),
        (
            "dtype",
            header(&[entry("x", "X4", &[4], 0, 2)]),
            &[0; 2],
            &["warning unknown-dtype"],
            "dtype \"X4\" is unknown",
        ),
        (
            "packed",
            header(&[entry("x", "I4", &[4], 0, 2)]),
            &[0; 2],
            &["warning unknown-dtype"],
            "dtype I4: only its size is known, because no known writer defines how elements are packed",
        ),
        (
            "twice",
            header(&[r#""__metadata__":{"format":"pt","k":"1","k":"2"}"#.into()]),
            &[],
            &["warning json"],
            "metadata key \"k\" is repeated; readers take the last value",
        ),
        (
            "field",
            header(&[r#""x":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"sparse":true}"#.into()]),
            &[0; 1],
            &["warning json"],
            "tensor \"x\": its entry has the field \"sparse\", which the format does not have",
        ),
        ("empty", "{}      ".into(), &[], &[], ""),
        ("newline", "{}     \n".into(), &[], &["warning json"], r"the header is padded with '\n', not with spaces"),
    ];
    for (name, header, data, rules, message) in cases {
        room.raw(&format!("{name}.safetensors"), &header, data);
        let (found, messages) = found(&room, &format!("{name}.safetensors"));
        assert_eq!(found, rules, "{name}");
        assert!(messages.first().is_none_or(|first| first.starts_with(message)), "{messages:?}");
        assert_eq!(room.sh(&format!("weightfs check {name}.safetensors")).code, 0, "{name}");
        let code = room.sh(&format!("weightfs check --fail-on-warning {name}.safetensors")).code;
        assert_eq!(code, i32::from(!rules.is_empty()), "{name}");
    }
    let out = room.ok("weightfs check unaligned.safetensors");
    assert!(out.contains("bytemuck") && out.contains("OK, with 2 warnings ("), "{out}");
    // The official writer aligns every tensor.
    let room = Room::new();
    room.model("m.safetensors", &[("a", Dtype::U8, &[3], vec![0; 3]), ("b", Dtype::F64, &[1], vec![0; 8])], &[]);
    assert_eq!(found(&room, "m.safetensors").0, [""; 0]);
}

#[test]
fn nan_and_infinity_are_located() {
    let room = Room::new();
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let mut large = vec![0.5f32; 700_000];
    large[699_999] = nan;
    large[400_123] = nan;
    large[5] = -inf;
    let half = |values: &[f32]| values.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect::<Vec<u8>>();
    let brain =
        |values: &[f32]| values.iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect::<Vec<u8>>();
    let doubles = [f64::MAX, 0.0, f64::NAN].map(f64::to_le_bytes).concat();
    room.model(
        "m.safetensors",
        &[
            ("large", Dtype::F32, &[700, 1000], floats(&large)),
            ("double", Dtype::F64, &[3], doubles),
            ("half", Dtype::F16, &[2, 2], half(&[1.0, 65504.0, inf, -inf])),
            ("brain", Dtype::BF16, &[1], brain(&[nan])),
            ("fine", Dtype::BF16, &[2], brain(&[half::bf16::MAX.to_f32(), -1.0])),
            ("eight", Dtype::F8_E4M3, &[3], vec![0x7e, 0x7f, 0xff]),
            ("eight2", Dtype::F8_E5M2, &[3], vec![0x7c, 0x7b, 0xfc]),
            ("mask", Dtype::I64, &[1], vec![0xff; 8]),
            ("bytes", Dtype::U8, &[2], vec![0xff; 2]),
            ("complex", Dtype::C64, &[2], floats(&[0.0, 1.0, nan, -inf])),
            ("scalar", Dtype::F32, &[], floats(&[inf])),
            ("none", Dtype::F32, &[0], vec![]),
        ],
        &[],
    );
    assert_eq!(found(&room, "m.safetensors").0, [""; 0]);
    let (rules, mut messages) = found(&room, "--values m.safetensors");
    let mut expected = [
        "tensor \"large\": 2 NaN, 1 -Inf among 700000 elements, the first at [0, 5]",
        "tensor \"double\": 1 NaN among 3 elements, the first at [2]",
        "tensor \"half\": 1 +Inf, 1 -Inf among 4 elements, the first at [1, 0]",
        "tensor \"brain\": 1 NaN among 1 element, the first at [0]",
        "tensor \"eight\": 2 NaN among 3 elements, the first at [1]",
        "tensor \"eight2\": 1 +Inf, 1 -Inf among 3 elements, the first at [0]",
        "tensor \"complex\": 1 NaN, 1 -Inf among the 4 parts of 2 elements, the first at [1]",
        "tensor \"scalar\": 1 +Inf among 1 element, the first at []",
    ];
    expected.sort_unstable();
    messages.sort_unstable();
    assert_eq!(messages, expected);
    let nans = ["error nan"; 5].into_iter().chain(["warning infinite"; 3]);
    assert_eq!(rules, nans.collect::<Vec<_>>());
    assert_eq!(room.sh("weightfs check --values m.safetensors").code, 1);
    // The position of an element is abbreviated if it has very many dimensions.
    room.model("deep.safetensors", &[("a", Dtype::F32, &[1; 5000], floats(&[nan]))], &[]);
    let (_, messages) = found(&room, "--values deep.safetensors");
    assert!(messages[0].len() < 200 && messages[0].ends_with(", 0, ... 5000 dimensions]"), "{messages:?}");
    // Files whose values cannot be read are not reported as finite.
    room.raw("broken.safetensors", "{", &[]);
    room.raw("none.safetensors", "{}      ", &[]);
    room.raw("cut.safetensors", &header(&[entry("a", "U8", &[1], 0, 1), entry("b", "F32", &[1], 1, 5)]), &[0; 4]);
    let out = room.sh("weightfs check --values broken.safetensors none.safetensors cut.safetensors").out;
    assert!(!out.contains("finite"), "{out}");
    // Only the first of several overlapping tensors is scanned. A scan of all of them would read 10,000 times the size
    // of the file.
    let len = 1 << 22;
    let whole = |at: usize| entry(&format!("w{at}"), "F32", &[len / 4], 0, len);
    let mut entries: Vec<String> = (0..10_000).map(whole).collect();
    entries.push(entry("behind", "F32", &[1], len, len + 4));
    let data = [vec![0; len as usize - 4], floats(&[nan, inf])].concat();
    room.raw("overlap.safetensors", &header(&entries), &data);
    let [ref object] = room.json("weightfs check --json --values overlap.safetensors")[..] else { panic!() };
    let others = object["findings"].as_array().unwrap().iter().filter(|finding| finding["rule"] != "overlap");
    let messages: Vec<&str> = others.map(|finding| finding["message"].as_str().unwrap()).collect();
    let (first, second) =
        ("1 NaN among 1048576 elements, the first at [1048575]", "1 +Inf among 1 element, the first at [0]");
    assert_eq!(messages, [format!("tensor \"w0\": {first}"), format!("tensor \"behind\": {second}")]);
    // Infinity alone is not an error.
    room.model("inf.safetensors", &[("a", Dtype::F32, &[1], floats(&[inf]))], &[]);
    assert_eq!(room.sh("weightfs check --values inf.safetensors").code, 0);
    assert_eq!(room.sh("weightfs check --values --fail-on-warning inf.safetensors").code, 1);
}

#[test]
fn hashes_in_metadata_are_verified() {
    let room = Room::new();
    // Longer than one read, and not a multiple of it.
    let bytes: Vec<u8> = (0..5_000_001u32).map(|at| (at.wrapping_mul(7919) >> 8) as u8).collect();
    let hash: String =
        Sha256::digest([&floats(&[f32::NAN])[..], &bytes].concat()).iter().map(|byte| format!("{byte:02x}")).collect();
    let tensors =
        || [("a", Dtype::U8, &[5_000_001usize][..], bytes.clone()), ("nan", Dtype::F32, &[1], floats(&[f32::NAN]))];
    let spec = |hash: &str| {
        [
            ("format", "pt".to_owned()),
            ("modelspec.architecture", "stable-diffusion-v1/lora".to_owned()),
            ("modelspec.implementation", "diffusers".to_owned()),
            ("modelspec.resolution", "512x512".to_owned()),
            ("modelspec.sai_model_spec", "1.0.1".to_owned()),
            ("modelspec.title", "A".to_owned()),
            ("modelspec.hash_sha256", hash.to_owned()),
            ("sshs_model_hash", hash.trim_start_matches("0x").to_owned()),
        ]
    };
    let write = |name: &str, hash: &str| {
        let metadata = spec(hash);
        let metadata: Vec<_> = metadata.iter().map(|(key, value)| (*key, &value[..])).collect();
        room.model(name, &tensors(), &metadata);
    };
    write("right.safetensors", &format!("0x{hash}"));
    assert_eq!(found(&room, "right.safetensors").0, [""; 0]);
    let verified = |file: &str, key: &str| json!({"file": file, "key": key});
    let both = |file| json!([verified(file, "modelspec.hash_sha256"), verified(file, "sshs_model_hash")]);
    assert_eq!(room.json("weightfs check --json right.safetensors")[0]["verified"], both("right.safetensors"));
    assert!(
        room.ok("weightfs check right.safetensors")
            .contains("; modelspec.hash_sha256 verified; sshs_model_hash verified)")
    );
    // With --values too, which reads the same bytes in another way.
    let [ref object] = room.json("weightfs check --json --values right.safetensors")[..] else { panic!() };
    assert_eq!((&object["verified"], &object["errors"]), (&both("right.safetensors"), &json!(1)));
    // One byte is changed.
    let mut changed = std::fs::read(room.path("right.safetensors")).unwrap();
    let last = changed.len() - 1;
    changed[last] ^= 1;
    std::fs::write(room.path("changed.safetensors"), changed).unwrap();
    for options in ["", "--values"] {
        let (rules, messages) = found(&room, &format!("{options} changed.safetensors"));
        assert_eq!(rules[..2], ["error hash"; 2], "{options}");
        let message = format!("metadata \"modelspec.hash_sha256\" is {hash}, but the SHA-256 of the data is ");
        assert!(messages[0].starts_with(&message), "{messages:?}");
    }
    assert_eq!(room.sh("weightfs check changed.safetensors").code, 1);
    assert_eq!(room.sh("weightfs check --no-data changed.safetensors").code, 0);
    // Upper case without 0x violates ModelSpec, but the hash is right.
    write("upper.safetensors", &hash.to_uppercase());
    assert_eq!(found(&room, "upper.safetensors").0, ["warning modelspec"]);
    assert_eq!(room.json("weightfs check --json upper.safetensors")[0]["verified"].as_array().unwrap().len(), 2);
    // For a model of several files, each key is reported once.
    for name in ["s-00001-of-00002.safetensors", "s-00002-of-00002.safetensors"] {
        let tensors: [(&str, Dtype, &[usize], Vec<u8>); 1] = [(&name[..7], Dtype::U8, &[0], vec![])];
        let hash: String = Sha256::digest([]).iter().map(|byte| format!("{byte:02x}")).collect();
        room.model(name, &tensors, &[("format", "pt"), ("sshs_model_hash", &hash)]);
    }
    let index =
        json!({"weight_map": {"s-00001": "s-00001-of-00002.safetensors", "s-00002": "s-00002-of-00002.safetensors"}});
    std::fs::write(room.path("s.safetensors.index.json"), index.to_string()).unwrap();
    let out = room.ok("weightfs check s.safetensors.index.json");
    assert!(out.ends_with("OK (2 tensors, 0 B; 2 files; sshs_model_hash verified of 2 files)\n"), "{out}");
    // The value is not a hash.
    write("none.safetensors", "None");
    assert_eq!(found(&room, "none.safetensors").0, ["warning modelspec"]);
}

/// Bytes of weights of any dtype: none is zero, and no value is infinite or NaN.
fn weights(len: usize) -> Vec<u8> {
    (0..len as u32).map(|at| (at.wrapping_mul(7919) >> 8) as u8 & 0x3f | 1).collect()
}

#[test]
fn tensors_of_zeros_are_noted_and_do_not_make_a_model_unsound() {
    let room = Room::new();
    // A LoRA before training: each up matrix is zero. The last one is large and at the end of the file.
    room.model(
        "lora.safetensors",
        &[
            ("a.alpha", Dtype::F16, &[], vec![0; 2]),
            ("a.lora_down.weight", Dtype::F16, &[4, 64], weights(512)),
            ("a.lora_up.weight", Dtype::F16, &[64, 4], vec![0; 512]),
            ("b.bias", Dtype::F16, &[3], vec![0; 6]),
            ("b.lora_down.weight", Dtype::F16, &[16, 64], weights(2048)),
            ("b.lora_up.weight", Dtype::F16, &[65536, 16], vec![0; 2 << 20]),
        ],
        &[],
    );
    let expected = "\
lora.safetensors: note: tensor \"a.lora_up.weight\": all 512 bytes are zero
lora.safetensors: note: tensor \"b.bias\": all 6 bytes are zero
lora.safetensors: note: tensor \"b.lora_up.weight\": all 2097152 bytes are zero
    (normal for biases, and for matrices that are zero before training, such as those of a LoRA)
lora.safetensors: OK, with 3 notes (6 tensors, 2.10 MB; data aligned to 2 bytes; all values finite)
";
    assert_eq!(room.ok("weightfs check --values --fail-on-warning lora.safetensors"), expected);
    let [ref object] = room.json("weightfs check --json --values lora.safetensors")[..] else { panic!() };
    assert_eq!((&object["ok"], &object["warnings"], &object["notes"]), (&json!(true), &json!(0), &json!(3)));
    let subjects: Vec<_> = object["findings"].as_array().unwrap().iter().map(|found| &found["subject"]).collect();
    assert_eq!(subjects, ["a.lora_up.weight", "b.bias", "b.lora_up.weight"]);
    // Integers and unknown dtypes too; large tensors, which are read in pieces; one value that is not zero is enough.
    let mut nearly = vec![0; 5_000_000];
    nearly[2_500_001] = 1;
    room.model(
        "integers.safetensors",
        &[
            ("large", Dtype::U8, &[5_000_000], vec![0; 5_000_000]),
            ("nearly", Dtype::U8, &[5_000_000], nearly),
            ("z", Dtype::U8, &[8], weights(8)),
        ],
        &[],
    );
    let (rules, messages) = found(&room, "--values integers.safetensors");
    assert_eq!(
        (rules, &messages[0][..]),
        (vec!["note zero".to_owned()], "tensor \"large\": all 5000000 bytes are zero")
    );
    for dtype in ["I4", "X4"] {
        room.raw("unknown.safetensors", &header(&[entry("x", dtype, &[4], 0, 2)]), &[0; 2]);
        assert_eq!(found(&room, "--values unknown.safetensors").0, ["warning unknown-dtype", "note zero"], "{dtype}");
    }
}

#[test]
fn zeros_at_the_end_of_the_data_are_an_unfinished_download() {
    let room = Room::new();
    const MIB: usize = 1 << 20;
    let tensors = || {
        [("a", Dtype::F32, &[1024usize, 512][..], weights(2 * MIB)), ("b", Dtype::F32, &[1024, 512], weights(2 * MIB))]
    };
    room.model("whole.safetensors", &tensors(), &[]);
    let whole = std::fs::read(room.path("whole.safetensors")).unwrap();
    let data_start = whole.len() - 4 * MIB;
    let cut = |kept: usize| {
        let mut file = whole.clone();
        file[data_start + kept..].fill(0);
        std::fs::write(room.path("cut.safetensors"), file).unwrap();
        found(&room, "--values cut.safetensors")
    };
    assert_eq!(found(&room, "--values whole.safetensors").0, [""; 0]);
    // In the middle of a tensor, also at the end of a row, and with whole tensors behind it.
    for (kept, tensor) in [(3_000_001, "b"), (MIB, "a"), (2 * MIB + 2048, "b")] {
        let (rules, messages) = cut(kept);
        let zeros = 4 * MIB - kept;
        let percent = zeros as f64 / 4.0 / MIB as f64 * 100.0;
        let expected = format!(
            "the last {zeros} of 4194304 bytes of the data ({percent:.1} %) are zero, from byte {} of the file, in tensor \"{tensor}\"",
            data_start + kept
        );
        assert_eq!((rules, messages), (vec!["error zero-end".to_owned()], vec![expected]));
    }
    let output = room.sh("weightfs check --values cut.safetensors");
    assert!(output.code == 1 && output.out.contains("(probably an unfinished download or copy: fetch the file again)"));
    assert_eq!(room.sh("weightfs check cut.safetensors").code, 0, "without --values, data is not read");
    // Nothing but zeros.
    let (rules, messages) = cut(0);
    assert_eq!(
        (rules, &messages[..]),
        (vec!["error zero-end".into()], &["all 4194304 bytes of the data are zero".into()][..])
    );
    // A tensor of zeros is no sign of that, whatever its neighbour ends in, and neither is a short run.
    for kept in [2 * MIB, 2 * MIB - 400, 2 * MIB - 4] {
        assert_eq!(cut(kept).0, ["note zero"], "{kept}");
    }
    assert_eq!(cut(3 * MIB + 1).0, [""; 0]);
    // Unless they are most of the model.
    let tensors = ["a", "b", "c", "d"].map(|name| (name, Dtype::F32, &[1024usize, 256][..], weights(MIB)));
    room.model("four.safetensors", &tensors, &[]);
    room.ok("head -c -3145728 four.safetensors >cut.safetensors && truncate -r four.safetensors cut.safetensors");
    let (rules, messages) = found(&room, "--values cut.safetensors");
    assert!(
        rules == ["error zero-end"]
            && messages[0].starts_with("the last 3145728 of 4194304 bytes of the data (75.0 %)")
    );
    // Rows of padding at the end of an embedding, and integers of any kind.
    let mut padded = weights(40 * MIB);
    padded[38 * MIB..].fill(0);
    room.model("padded.safetensors", &[("e", Dtype::BF16, &[20 << 10, 1024], padded.clone())], &[]);
    assert_eq!(found(&room, "--values padded.safetensors").0, [""; 0]);
    padded[37 * MIB + 1..].fill(0);
    room.model("masks.safetensors", &[("masks", Dtype::U8, &[40, MIB], padded)], &[]);
    assert_eq!(found(&room, "--values masks.safetensors").0, [""; 0]);
    room.model("ids.safetensors", &[("ids", Dtype::I64, &[1000], vec![0; 8000])], &[]);
    assert_eq!(found(&room, "--values ids.safetensors").0, ["note zero"]);
}

#[test]
fn metadata_conventions_are_checked() {
    let room = Room::new();
    let tensors = [("a", Dtype::U8, &[1usize][..], vec![0])];
    room.model(
        "m.safetensors",
        &tensors,
        &[
            ("format", "pt"),
            ("modelspec.title", "A model"),
            ("modelspec.resolution", "large"),
            ("modelspec.date", "yesterday"),
            ("ss_tag_frequency", "{broken"),
            ("ss_network_args", "None"),
            ("sshs_model_hash", "abc"),
        ],
    );
    let (rules, messages) = found(&room, "m.safetensors");
    assert_eq!(rules, [["warning modelspec"; 5].as_slice(), &["warning kohya"; 2]].concat());
    let expected = [
        "metadata \"modelspec.sai_model_spec\": missing, but every model must have it",
        "metadata \"modelspec.architecture\": missing, but every model must have it",
        "metadata \"modelspec.implementation\": missing, but every model must have it",
        "metadata \"modelspec.date\": is \"yesterday\", but should be an ISO 8601 date, such as 2023-07-16",
        "metadata \"modelspec.resolution\": is \"large\", but should be WIDTHxHEIGHT, such as 1024x1024",
    ];
    assert_eq!(messages[..5], expected);
    assert!(messages[5].starts_with("metadata \"ss_tag_frequency\": not valid JSON: "), "{messages:?}");
}

#[test]
fn shards_are_checked_against_index_and_manifest() {
    let room = Room::new();
    room.sharded("s");
    let line = "s.safetensors.index.json: OK (3 tensors, 30 B; 2 files; data aligned to 8 bytes)\n";
    assert_eq!(room.ok("weightfs check s.safetensors.index.json"), line);
    // The totals in the index differ from those of the files.
    room.ok("sed 's/30/31/; s/: *9/: 8/' s.safetensors.index.json >t.safetensors.index.json");
    let (rules, messages) = found(&room, "t.safetensors.index.json");
    assert_eq!(rules, ["warning index-totals"; 2]);
    let mut messages = messages;
    messages.sort();
    assert_eq!(
        messages,
        [
            "total_parameters is 8 in the index, but 9 in the files",
            "total_size is 31 in the index, but 30 in the files"
        ]
    );
    // A tensor in another shard, one that the index does not list, one that no shard has, and a missing shard.
    let index = json!({"metadata": {"total_size": "many"}, "weight_map": {
        "a.0.w": "s-00002-of-00002.safetensors", "b.w": "s-00002-of-00002.safetensors",
        "c.w": "s-00001-of-00002.safetensors", "d.w": "gone.safetensors",
    }});
    std::fs::write(room.path("u.safetensors.index.json"), index.to_string()).unwrap();
    let (rules, messages) = found(&room, "u.safetensors.index.json");
    assert_eq!(rules[..4], ["error index"; 4]);
    let expected = [
        "a shard is missing or broken: gone.safetensors: No such file or directory",
        "tensor \"a.0.w\" should be in \"s-00002-of-00002.safetensors\", but is in \"s-00001-of-00002.safetensors\"",
        "tensor \"a.1.w\" is in \"s-00001-of-00002.safetensors\", but the index does not name it",
        "tensor \"c.w\" should be in \"s-00001-of-00002.safetensors\", but no shard has it",
        "shard \"s-00001-of-00002.safetensors\" is one of 2 by its name, but the index names 3",
    ];
    assert_eq!(messages, expected);
    // For a missing shard, its absence is reported, but not its missing tensors.
    room.ok("mkdir lost && cp s-00001-of-00002.safetensors s.safetensors.index.json lost");
    assert_eq!(found(&room, "lost").0, ["error index"]);
    // A tensor that the index names twice.
    room.ok(r#"sed 's/"weight_map":{/&"b.w":"s-00001-of-00002.safetensors",/' s.safetensors.index.json >r.safetensors.index.json"#);
    let (rules, messages) = found(&room, "r.safetensors.index.json");
    let twice = "1 entry occurs again later in the index; the last one is used";
    assert_eq!((&rules[..], &messages[0][..]), (&["warning index-twice".to_owned()][..], twice));
    // A tensor in two shards.
    room.ok("cp s-00002-of-00002.safetensors s-00003-of-00003.safetensors");
    let index = json!({"weight_map": {
        "a.0.w": "s-00001-of-00002.safetensors", "a.1.w": "s-00001-of-00002.safetensors",
        "b.w": "s-00002-of-00002.safetensors", "c.w": "s-00003-of-00003.safetensors",
    }});
    std::fs::write(room.path("w.safetensors.index.json"), index.to_string()).unwrap();
    let (rules, messages) = found(&room, "w.safetensors.index.json");
    assert_eq!(rules, ["error index", "error index", "warning index-totals"], "{messages:?}");
    let twice = "tensor \"b.w\" is in \"s-00002-of-00002.safetensors\" as the index says, and also in \"s-00003-of-00003.safetensors\"";
    assert_eq!(messages[0], twice);
    assert_eq!(messages[2], "shard \"s-00001-of-00002.safetensors\" is one of 2 by its name, but the index names 3");
    // An error in a shard is reported with the name of that shard.
    let nan: [(&str, Dtype, &[usize], Vec<u8>); 1] = [("b.w", Dtype::F32, &[4], floats(&[0.0, f32::NAN, 0.0, 0.0]))];
    room.model("s-00002-of-00002.safetensors", &nan, &[("modelspec.title", "x")]);
    let output = room.sh("weightfs check --values s.safetensors.index.json");
    assert!(output.out.starts_with("s-00002-of-00002.safetensors: error: tensor \"b.w\": 1 NaN"), "{output:?}");
    room.raw(
        "s-00001-of-00002.safetensors",
        &header(&[entry("a.0.w", "F32", &[2], 0, 8), entry("a.1.w", "BF16", &[3], 9, 15)]),
        &[0; 15],
    );
    let (rules, _) = found(&room, "s.safetensors.index.json");
    assert!(rules.contains(&"error hole".to_owned()), "{rules:?}");
    // Not an index.
    std::fs::write(room.path("v.safetensors.index.json"), "{}").unwrap();
    assert_eq!(found(&room, "v.safetensors.index.json").0, ["error format"]);

    room.dataset("set");
    let output = room.ok("weightfs check set");
    let sound = "OK, with 2 warnings (2 tensors, 12 B; 2 files; data aligned to 8 bytes)\n";
    assert!(output.ends_with(sound) && output.matches("is not called part-").count() == 2, "{output}");
    room.ok(r#"sed -i 's/"samples_count":2/"samples_count":3/; s/"total_samples":4/"total_samples":9/' set/dataset_manifest.json"#);
    let (rules, messages) = found(&room, "set");
    assert_eq!(rules, ["warning manifest"; 4], "{messages:?}");
    let expected = [
        "\"x.safetensors\" has 2 rows, and the manifest says 3",
        "total_samples is 9 in the manifest, and its shards add up to 5",
    ];
    assert_eq!(messages[..2], expected);
}

#[test]
fn dataset_shards_are_checked_against_each_other() {
    let room = Room::new();
    room.dataset("set");
    // In key-value mode, a tensor name may be in one shard only.
    let byte = |name| (name, Dtype::U8, &[1usize][..], vec![0]);
    room.model("set/x.safetensors", &["a", "b", "c"].map(byte), &[]);
    room.model("set/y.safetensors", &["a", "d", "e"].map(byte), &[]);
    let (rules, messages) = found(&room, "set");
    let twice = "\"a\": it is in \"x.safetensors\" and in \"y.safetensors\"; the second is in shards/ only";
    assert_eq!((&rules[0][..], &messages[0][..]), ("error index", twice));
    assert!(rules[1..].iter().all(|rule| rule == "warning manifest"), "{rules:?}");
    // In batch mode, all parts of an array have the same dtype.
    let rows = |dtype, bytes| ("images", dtype, &[2usize, 3][..], vec![0; bytes]);
    room.model("set/x.safetensors", &[rows(Dtype::U8, 6), byte("a")], &[]);
    room.model("set/y.safetensors", &[rows(Dtype::F32, 24), byte("a")], &[]);
    let (rules, messages) = found(&room, "set");
    let apart = "\"images\": it is U8 in \"x.safetensors\", and F32 in \"y.safetensors\"; its parts are in shards/";
    assert_eq!((&rules[0][..], &messages[0][..]), ("error index", apart), "{messages:?}");
}

#[test]
fn exit_code_distinguishes_broken_from_unreadable() {
    let room = Room::new();
    room.model("m.safetensors", &[("a", Dtype::U8, &[1], vec![0])], &[]);
    room.ok("mkdir all all/sub && cp m.safetensors all && cp m.safetensors all/sub && echo text >text.safetensors; mkfifo pipe");
    room.ok("echo GGUF0000000 >model.gguf; : >empty.safetensors");
    let cases = [
        ("m.safetensors", 0),
        ("all", 0),
        ("m.safetensors all", 0),
        ("text.safetensors", 1),
        ("model.gguf", 1),
        ("empty.safetensors", 1),
        ("m.safetensors text.safetensors", 1),
        ("absent", 2),
        ("pipe", 2),
        ("m.safetensors absent text.safetensors", 2),
        ("all/sub/..", 0),
        ("", 2),
        ("--bogus m.safetensors", 2),
        ("--values --no-data m.safetensors", 2),
        ("--quiet --json m.safetensors", 2),
    ];
    for (line, code) in cases {
        let output = room.sh(&format!("weightfs check {line}"));
        assert_eq!(output.code, code, "{line}: {output:?}");
        assert_eq!(output.err.lines().count(), usize::from(code == 2), "{line}: {output:?}");
    }
    let (rules, messages) = found(&room, "model.gguf empty.safetensors");
    assert_eq!(rules, ["error format"; 2]);
    assert!(messages[0].contains("GGUF") && messages[1].contains("empty"), "{messages:?}");
}

#[test]
fn file_changed_during_check_is_an_error() {
    // A sparse file so large that it changes before the check ends.
    let len = 20_000_000_000u64;
    let header = format!(r#"{{"a":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{len}]}}}}    "#, len / 4);
    for change in ["touch m.safetensors", "truncate -s 1000 m.safetensors"] {
        let room = Room::new();
        room.raw("m.safetensors", &header, &[]);
        room.ok(&format!("truncate -s {} m.safetensors", 8 + header.len() as u64 + len));
        // Waits until the process has at least five mappings, and a little longer, so that the check is running when
        // the file changes.
        let line = format!(
            "weightfs check --values m.safetensors & while [ $(grep -c . /proc/$!/maps) -lt 5 ]; do :; done; sleep 0.2; {change}; wait $!"
        );
        let output = room.sh(&line);
        let err = "weightfs: m.safetensors: changed while it was checked\n";
        assert_eq!((output.code, &output.out[..], &output.err[..]), (2, "", err), "{change}");
    }
}

#[test]
fn excess_findings_of_a_kind_are_counted() {
    let room = Room::new();
    let entries: Vec<String> = std::iter::once(entry("pad", "U8", &[1], 0, 1))
        .chain((0..1500).map(|at| entry(&format!("t{at}"), "F32", &[1], 1 + at * 4, 5 + at * 4)))
        .collect();
    room.raw("m.safetensors", &header(&entries), &[0; 6001]);
    let out = room.ok("weightfs check m.safetensors");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 13, "{out}");
    assert_eq!(lines[10], "m.safetensors: warning: 1490 more of this kind");
    assert!(lines[12].starts_with("m.safetensors: OK, with 1,500 warnings (1,501 tensors, "), "{out}");
    let [ref object] = room.json("weightfs check --json m.safetensors")[..] else { panic!() };
    assert_eq!((&object["warnings"], object["findings"].as_array().unwrap().len()), (&json!(1500), 1000));
}

/// The name of a shard as safetensors-spark gives it.
fn part(at: usize) -> String {
    format!("part-0000{at}-0000-0e8b1f5c-1d6e-4f0a-9f5e-0123456789ab.safetensors")
}

/// Writes a dataset `set` of two shards of four rows, the second of which ends in `padding` rows of zeros.
fn dataset(room: &Room, padding: usize) {
    std::fs::create_dir_all(room.path("set/_tensor_index.parquet")).unwrap();
    let shards = [0, 1].map(|at| {
        let full = if at == 1 { 4 - padding } else { 4 };
        let rows = |size: usize| [vec![7; full * size], vec![0; (4 - full) * size]].concat();
        let name = format!("set/{}", part(at));
        let tensors: [Tensor; 3] = [
            ("images", Dtype::U8, &[4, 3], rows(3)),
            ("labels", Dtype::I64, &[4], rows(8)),
            ("scores", Dtype::F32, &[4], rows(4)),
        ];
        room.model(&name, &tensors, &[]);
        let bytes = std::fs::metadata(room.path(&name)).unwrap().len();
        json!({"shard_path": part(at), "samples_count": 4, "bytes": bytes})
    });
    let manifest = json!({"format_version": "1.0", "shards": shards});
    std::fs::write(room.path("set/dataset_manifest.json"), manifest.to_string()).unwrap();
}

/// Copies a file of `tests/inspect/index` into the index of tensors of the dataset.
#[cfg(feature = "parquet")]
fn index(room: &Room, file: &str) {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/inspect/index").join(file);
    std::fs::copy(from, room.path(&format!("set/_tensor_index.parquet/part-{file}"))).unwrap();
}

#[test]
fn padded_rows_of_a_dataset_are_notes() {
    let room = Room::new();
    dataset(&room, 0);
    assert_eq!(found(&room, "--values set").0, [] as [&str; 0]);
    dataset(&room, 3);
    assert_eq!(found(&room, "set").0, [] as [&str; 0], "the data is not searched");
    let (rules, messages) = found(&room, "--values set");
    assert_eq!(rules, ["note padding"]);
    assert_eq!(messages, [format!("the last 3 of 4 rows of \"{}\" are zero in all arrays", part(1))]);
}

#[cfg(feature = "parquet")]
#[test]
fn index_of_tensors_is_compared_with_the_shards() {
    let room = Room::new();
    dataset(&room, 0);
    index(&room, "first.snappy.parquet");
    index(&room, "second.parquet");
    // Files that Spark adds.
    for other in ["_SUCCESS", ".part-second.parquet.crc", "_common_metadata.parquet"] {
        std::fs::write(room.path(&format!("set/_tensor_index.parquet/{other}")), "x").unwrap();
    }
    assert_eq!(found(&room, "set").0, [] as [&str; 0]);

    // A row for each difference.
    let image: Tensor = ("images", Dtype::U8, &[4, 4], vec![7; 16]);
    let label: Tensor = ("labels", Dtype::F64, &[4], vec![7; 32]);
    let other: Tensor = ("other", Dtype::U8, &[4], vec![7; 4]);
    room.model(&format!("set/{}", part(1)), &[image, label, other], &[]);
    let mut messages = found(&room, "set").1;
    messages.retain(|message| message.contains("_tensor_index.parquet"));
    messages.sort();
    let second = part(1);
    assert_eq!(
        messages,
        [
            format!("\"images\" is U8 [4, 4] in \"{second}\", and _tensor_index.parquet says \"U8\" [4, 3]"),
            format!("\"labels\" is F64 [4] in \"{second}\", and _tensor_index.parquet says \"I64\" [4]"),
            format!("_tensor_index.parquet does not have \"other\" in \"{second}\""),
            format!("_tensor_index.parquet has \"scores\" in \"{second}\", which does not have it"),
        ]
    );

    // An index of one file, of one shard, twice.
    dataset(&room, 0);
    index(&room, "first.snappy.parquet");
    std::fs::rename(room.path("set/_tensor_index.parquet/part-second.parquet"), room.path("second")).unwrap();
    index(&room, "second.zstd.parquet");
    let (rules, messages) = found(&room, "set");
    assert_eq!(rules, ["warning tensor-index"]);
    assert!(messages[0].contains("part-second.zstd.parquet: it is damaged, or no index of tensors: "), "{messages:?}");
    std::fs::remove_dir_all(room.path("set/_tensor_index.parquet")).unwrap();
    std::fs::rename(room.path("second"), room.path("set/_tensor_index.parquet")).unwrap();
    std::fs::remove_file(room.path(&format!("set/{}", part(1)))).unwrap();
    let (rules, messages) = found(&room, "--no-data set");
    // The tensors of the first shard are in no index, and the other one is missing.
    let expected = ["error index", "warning tensor-index", "warning tensor-index", "warning tensor-index"];
    assert_eq!(rules, expected, "{messages:?}");
    assert!(messages[1..].iter().all(|message| message.contains("does not have")), "{messages:?}");
}

/// The library panics on many damaged files, in a process of its own.
#[cfg(feature = "parquet")]
#[test]
fn damaged_index_of_tensors_is_a_warning() {
    let room = Room::new();
    dataset(&room, 0);
    index(&room, "second.parquet");
    let path = room.path("set/_tensor_index.parquet/part-second.parquet");
    let file = std::fs::read(&path).unwrap();
    // The footer lies at the end.
    for at in (0..file.len()).rev().step_by(37).chain((file.len() - 300..file.len()).step_by(11)) {
        let mut damaged = file.clone();
        damaged[at] ^= 0xff;
        std::fs::write(&path, damaged).unwrap();
        let (rules, messages) = found(&room, "--no-data set");
        assert!(!rules.is_empty() && rules.iter().all(|rule| rule == "warning tensor-index"), "{at}: {messages:?}");
    }
    std::fs::write(&path, "").unwrap();
    assert_eq!(found(&room, "--no-data set").0, ["warning tensor-index"]);
}
