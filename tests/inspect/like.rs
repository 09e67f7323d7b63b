//! `check --like`: names, shapes and dtypes of a model beside those of another one, and the prefixes that `export`
//! changes.

use crate::inspect::gguf;
use crate::room::{Room, Tensor, floats};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::path::Path;

/// The names of a small model.
const NAMES: [&str; 5] =
    ["embed_tokens.weight", "layers.0.mlp.weight", "layers.0.mlp.bias", "layers.1.mlp.weight", "layers.1.mlp.bias"];

/// Writes a file with tensors of these names, each with its position in its shape.
fn write(room: &Room, file: &str, names: &[String]) {
    let tensors = names.iter().enumerate().map(|(at, name)| {
        let shape: &[usize] = &[[1, 2], [2, 2], [3, 2], [4, 2], [5, 2], [6, 2], [7, 2]][at];
        (&name[..], Dtype::F32, shape, vec![0x3f; shape[0] * 8])
    });
    room.model(file, &tensors.collect::<Vec<Tensor>>(), &[]);
}

/// The names of the model after a prefix.
fn prefixed(prefix: &str) -> Vec<String> {
    NAMES.iter().map(|name| format!("{prefix}{name}")).collect()
}

/// The exit code and the lines of `check --like` without the last one and without hints, and that last line.
fn check(room: &Room, line: &str) -> (i32, Vec<String>, String) {
    let output = room.sh(&format!("weightfs check --like {line}"));
    assert_eq!(output.err, "", "{output:?}");
    let mut lines: Vec<String> =
        output.out.lines().filter(|line| !line.starts_with("    (")).map(str::to_owned).collect();
    let last = lines.pop().unwrap();
    (output.code, lines, last)
}

/// Runs the command at the end of the only line of a report, with `OUT` replaced, and returns the line.
fn follow(room: &Room, line: &str, out: &str) -> String {
    let (code, lines, last) = check(room, line);
    let [ref found] = lines[..] else { panic!("{lines:?}") };
    assert!(code == 1 && last.contains("after the change of the prefix"), "{code} {last}");
    let command = &found[found.find(": weightfs export ").unwrap() + 2..];
    room.ok(&command.replace(" OUT", &format!(" {out}")));
    found.clone()
}

#[test]
fn model_like_the_reference_is_reported_as_sound() {
    let room = Room::new();
    write(&room, "a.safetensors", &prefixed(""));
    write(&room, "b.safetensors", &prefixed(""));
    let line =
        "b.safetensors: OK (5 tensors, 120 B; data aligned to 8 bytes; has 5 of the 5 tensors of a.safetensors)\n";
    assert_eq!(room.ok("weightfs check --like a.safetensors b.safetensors"), line);
    let [ref object] = room.json("weightfs check --json --like a.safetensors b.safetensors")[..] else { panic!() };
    let like = json!({
        "reference": "a.safetensors", "tensors": 5, "alike": 5, "prefix": null, "missing": [], "unexpected": [],
        "shapes": [], "dtypes": [],
    });
    assert_eq!((&object["like"], &object["ok"], &object["findings"]), (&like, &json!(true), &json!([])));
    // Each source is compared, and what else is wrong with it is reported too.
    room.raw("broken.safetensors", r#"{"x":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}} "#, &[0; 4]);
    let output = room.sh("weightfs check --like a.safetensors a.safetensors b.safetensors broken.safetensors");
    assert_eq!(output.out.lines().filter(|line| line.contains(": OK (")).count(), 2, "{output:?}");
    assert!(output.code == 1 && output.out.contains("broken.safetensors: error: tensor \"x\": shape"), "{output:?}");
}

#[test]
fn prefix_is_named_with_the_command_that_changes_it() {
    let room = Room::new();
    write(&room, "ref.safetensors", &prefixed(""));
    for (at, (prefix, option)) in [
        ("module.", "--strip module."),
        ("module._orig_mod.", "--strip module._orig_mod."),
        ("odd name's.", r"--strip 'odd name'\''s.'"),
        ("-x.", "--strip -x."),
    ]
    .into_iter()
    .enumerate()
    {
        write(&room, "m.safetensors", &prefixed(prefix));
        let found = follow(&room, "ref.safetensors m.safetensors", &format!("{at}.safetensors"));
        let expected = format!(
            "m.safetensors: error: all 5 names agree with ref.safetensors without the prefix {prefix:?}: weightfs \
             export {option} m.safetensors OUT"
        );
        assert_eq!(found, expected);
        let (code, lines, _) = check(&room, &format!("ref.safetensors {at}.safetensors"));
        assert_eq!((code, lines), (0, vec![]), "{prefix}");
        room.ok(&format!("weightfs diff --data ref.safetensors {at}.safetensors"));
    }
    // The reference has the prefix.
    write(&room, "wrapped.safetensors", &prefixed("model."));
    let found = follow(&room, "wrapped.safetensors ref.safetensors", "model.safetensors");
    let expected = "ref.safetensors: error: all 5 names agree with wrapped.safetensors with the prefix \"model.\": \
                    weightfs export --prepend model. ref.safetensors OUT";
    assert_eq!(found, expected);
    assert_eq!(check(&room, "wrapped.safetensors model.safetensors").0, 0);
    // A component within the names: the module below the model was compiled.
    write(&room, "compiled.safetensors", &prefixed("model._orig_mod."));
    let found = follow(&room, "wrapped.safetensors compiled.safetensors", "compiled-out.safetensors");
    let expected = "compiled.safetensors: error: all 5 names agree with wrapped.safetensors with the prefix \
                    \"model.\" in place of \"model._orig_mod.\": weightfs export --strip model._orig_mod. --prepend \
                    model. compiled.safetensors OUT";
    assert_eq!(found, expected);
    assert_eq!(check(&room, "wrapped.safetensors compiled-out.safetensors").0, 0);
    let [ref object] = room.json("weightfs check --json --like wrapped.safetensors compiled.safetensors")[..] else {
        panic!()
    };
    let prefix = json!({
        "strip": "model._orig_mod.", "prepend": "model.", "names": 5, "spoiled": 0,
        "command": "weightfs export --strip model._orig_mod. --prepend model. compiled.safetensors OUT",
    });
    assert_eq!(object["like"]["prefix"], prefix);
    // The name of the file is not UTF-8.
    room.ok("cp compiled.safetensors $'it\\'s \\xff.safetensors'");
    follow(&room, "wrapped.safetensors $'it\\'s \\xff.safetensors'", "named.safetensors");
    assert_eq!(check(&room, "wrapped.safetensors named.safetensors").0, 0);
    // A model of one tensor.
    write(&room, "one.safetensors", &["module.w".to_owned()]);
    write(&room, "one-ref.safetensors", &["w".to_owned()]);
    let found = follow(&room, "one-ref.safetensors one.safetensors", "one-out.safetensors");
    assert!(
        found.contains(": the only name agrees with one-ref.safetensors without the prefix \"module.\": "),
        "{found}"
    );
}

#[test]
fn names_that_agree_without_the_prefix_stay() {
    let room = Room::new();
    let with_output = |prefix: &str| [prefixed(prefix), vec!["lm_head.weight".to_owned()]].concat();
    write(&room, "ref.safetensors", &with_output("model."));
    write(&room, "m.safetensors", &with_output(""));
    let (code, lines, last) = check(&room, "ref.safetensors m.safetensors");
    let expected = "m.safetensors: error: 5 of 6 names agree with ref.safetensors with the prefix \"model.\"; 1 other \
                    name agrees without the change, and export would change it too";
    assert_eq!((code, lines), (1, vec![expected.to_owned()]));
    assert!(last.ends_with("has 6 of the 6 tensors of ref.safetensors, after the change of the prefix)"), "{last}");
    let [ref object] = room.json("weightfs check --json --like ref.safetensors m.safetensors")[..] else { panic!() };
    let prefix = json!({"strip": "", "prepend": "model.", "names": 5, "spoiled": 1, "command": null});
    assert_eq!(object["like"]["prefix"], prefix);
    assert_eq!((&object["like"]["missing"], &object["like"]["unexpected"]), (&json!([]), &json!([])));
    // The other way round there is a command, which spares the output layer.
    follow(&room, "m.safetensors ref.safetensors", "o.safetensors");
    assert_eq!(check(&room, "m.safetensors o.safetensors").0, 0);
}

#[test]
fn few_names_are_no_prefix() {
    let room = Room::new();
    // One pair of names among many that agree is a coincidence.
    let with = |name: &str| [prefixed(""), vec![name.to_owned()]].concat();
    write(&room, "ref.safetensors", &with("norm.weight"));
    write(&room, "m.safetensors", &with("encoder.norm.weight"));
    let (_, lines, _) = check(&room, "ref.safetensors m.safetensors");
    let expected = [
        "m.safetensors: error: tensor \"norm.weight\": missing; ref.safetensors has F32 [6, 2]",
        "m.safetensors: error: tensor \"encoder.norm.weight\": not in ref.safetensors; F32 [6, 2]",
    ];
    assert_eq!(lines, expected);
    // Two of five are not most.
    write(&room, "a.safetensors", &["a.w", "b.w", "c.x", "d.x", "e.x"].map(str::to_owned));
    write(&room, "b.safetensors", &["m.a.w", "m.b.w", "m.c.y", "m.d.y", "m.e.y"].map(str::to_owned));
    let (_, lines, _) = check(&room, "a.safetensors b.safetensors");
    assert!(lines.len() == 1 && lines[0].contains("none of the 5 names is among the 5 names of "), "{lines:?}");
}

#[test]
fn one_of_two_copies_is_found_by_its_prefix() {
    let room = Room::new();
    let three = |prefix: &str| -> Vec<String> { NAMES[..3].iter().map(|name| format!("{prefix}{name}")).collect() };
    write(&room, "ref.safetensors", &three(""));
    write(&room, "m.safetensors", &[three("student."), three("teacher.")].concat());
    let (_, lines, _) = check(&room, "ref.safetensors m.safetensors");
    let expected = "m.safetensors: error: 3 of 6 names agree with ref.safetensors without the prefix \"student.\": \
                    weightfs export --strip student. m.safetensors OUT";
    assert_eq!(lines[0], expected);
    assert_eq!(lines[1..].iter().filter(|line| line.contains("tensor \"teacher.")).count(), 3, "{lines:?}");
    assert_eq!(lines.len(), 4, "{lines:?}");
}

#[test]
fn long_names_of_a_hostile_reference_cost_little() {
    let room = Room::new();
    let entry = |name: &str| format!(r#""{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
    let names: Vec<String> = (0..20_000).map(|at| entry(&format!("a{at}"))).collect();
    room.raw("m.safetensors", &format!("{{{}}}", names.join(",")), &[]);
    room.raw("ref.safetensors", &format!("{{{}}}", entry(&format!("{}.a0", "x".repeat(10 << 20)))), &[]);
    let (code, lines, _) = check(&room, "ref.safetensors m.safetensors");
    assert_eq!(code, 1);
    let expected = "none of the 20,000 names is among the 1 name of ";
    assert!(lines.iter().any(|line| line.contains(expected)), "{} lines", lines.len());
    assert!(!lines.iter().any(|line| line.contains("weightfs export")), "{} lines", lines.len());
}

#[test]
fn prefix_of_some_names_is_named_and_the_rest_is_reported() {
    let room = Room::new();
    let mut names = prefixed("model.");
    names.push("lm_head.weight".into());
    write(&room, "ref.safetensors", &names);
    let mut names = prefixed("model._orig_mod.");
    names.extend(["lm_head.weight".into(), "extra.weight".into()]);
    write(&room, "m.safetensors", &names);
    let (code, lines, last) = check(&room, "ref.safetensors m.safetensors");
    let expected = [
        "m.safetensors: error: 5 of 7 names agree with ref.safetensors with the prefix \"model.\" in place of \
         \"model._orig_mod.\": weightfs export --strip model._orig_mod. --prepend model. m.safetensors OUT",
        "m.safetensors: error: tensor \"extra.weight\": not in ref.safetensors; F32 [7, 2]",
    ];
    assert_eq!((code, &lines[..]), (1, &expected.map(str::to_owned)[..]));
    let facts = "; has 6 of the 6 tensors of ref.safetensors, after the change of the prefix)";
    assert!(last.starts_with("m.safetensors: 2 errors (7 tensors, ") && last.ends_with(facts), "{last}");
    // One layer instead of another one is not a prefix.
    write(&room, "a.safetensors", &[0, 1, 2, 3].map(|layer| format!("layers.{layer}.mlp.weight")));
    write(&room, "b.safetensors", &[1, 2, 3, 4].map(|layer| format!("layers.{layer}.mlp.weight")));
    let (_, lines, _) = check(&room, "a.safetensors b.safetensors");
    let starts = ["tensor \"layers.0.mlp.weight\": missing; ", "tensor \"layers.4.mlp.weight\": not in "];
    for start in starts {
        assert!(lines.iter().any(|line| line.contains(start)), "{lines:?}");
    }
    assert!(!lines.iter().any(|line| line.contains("weightfs export")), "{lines:?}");
    // A prefix whose removal gives two tensors the same name is none.
    let names = ["a.w", "b.w", "module.a.w", "module.b.w", "module.c.w", "module.d.w"].map(str::to_owned);
    write(&room, "twice.safetensors", &names);
    write(&room, "once.safetensors", &["a.w", "b.w", "c.w", "d.w"].map(str::to_owned));
    let (_, lines, _) = check(&room, "once.safetensors twice.safetensors");
    assert!(!lines.iter().any(|line| line.contains("weightfs export")), "{lines:?}");
}

#[test]
fn every_difference_is_reported() {
    let room = Room::new();
    let zeros = |count: usize| vec![0x3c; count];
    let reference: [Tensor; 6] = [
        ("a.weight", Dtype::F32, &[2, 3], zeros(24)),
        ("b.weight", Dtype::F32, &[2, 3], zeros(24)),
        ("embed.weight", Dtype::F32, &[32_064, 2], zeros(32_064 * 8)),
        ("gone.weight", Dtype::F32, &[2], zeros(8)),
        ("half.0.weight", Dtype::F32, &[2], zeros(8)),
        ("half.1.weight", Dtype::F32, &[2], zeros(8)),
    ];
    room.model("ref.safetensors", &reference, &[]);
    let model: [Tensor; 6] = [
        ("a.weight", Dtype::F32, &[2, 3], zeros(24)),
        ("b.weight", Dtype::F32, &[3, 2], zeros(24)),
        ("embed.weight", Dtype::F32, &[32_000, 2], zeros(32_000 * 8)),
        ("half.0.weight", Dtype::BF16, &[2], zeros(4)),
        ("half.1.weight", Dtype::BF16, &[2], zeros(4)),
        ("new.weight", Dtype::F16, &[], zeros(2)),
    ];
    room.model("m.safetensors", &model, &[]);
    let (code, lines, last) = check(&room, "ref.safetensors m.safetensors");
    let expected = [
        "error: tensor \"gone.weight\": missing; ref.safetensors has F32 [2]",
        "error: tensor \"new.weight\": not in ref.safetensors; F16 []",
        "error: tensor \"b.weight\": shape [3, 2]; ref.safetensors has [2, 3], the transpose",
        "error: tensor \"embed.weight\": shape [32000, 2]; ref.safetensors has [32064, 2]",
        "note: 2 tensors, the first \"half.0.weight\": BF16; ref.safetensors has F32",
    ];
    assert_eq!((code, lines), (1, expected.iter().map(|line| format!("m.safetensors: {line}")).collect()));
    assert!(last.starts_with("m.safetensors: 4 errors, 1 note ("), "{last}");
    assert!(last.ends_with("; has 3 of the 6 tensors of ref.safetensors)"), "{last}");
    let [ref object] = room.json("weightfs check --json --like ref.safetensors m.safetensors")[..] else { panic!() };
    let like = json!({
        "reference": "ref.safetensors", "tensors": 6, "alike": 3, "prefix": null,
        "missing": [{"name": "gone.weight", "dtype": "F32", "shape": [2]}],
        "unexpected": [{"name": "new.weight", "dtype": "F16", "shape": []}],
        "shapes": [
            {"name": "b.weight", "shape": [3, 2], "reference": [2, 3], "transposed": true},
            {"name": "embed.weight", "shape": [32_000, 2], "reference": [32_064, 2], "transposed": false},
        ],
        "dtypes": [
            {"name": "half.0.weight", "dtype": "BF16", "reference": "F32", "quantized": false},
            {"name": "half.1.weight", "dtype": "BF16", "reference": "F32", "quantized": false},
        ],
    });
    assert_eq!(object["like"], like);
    assert_eq!((&object["errors"], &object["notes"]), (&json!(4), &json!(1)));
    // Other dtypes alone are a note.
    room.ok("weightfs export --dtype bf16 ref.safetensors bf16.safetensors");
    let (code, lines, last) = check(&room, "ref.safetensors bf16.safetensors");
    let note = "bf16.safetensors: note: 6 tensors, the first \"a.weight\": BF16; ref.safetensors has F32";
    assert_eq!((code, lines), (0, vec![note.to_owned()]), "{last}");
    let hints = room.sh("weightfs check --like ref.safetensors m.safetensors").out;
    for hint in [
        "(load_state_dict fails; with strict=False it leaves these parameters of the model as they are)",
        "(load_state_dict fails; with strict=False it ignores them)",
        "(load_state_dict fails, with strict=False too)",
        "(load_state_dict converts values to the dtype of the model)",
    ] {
        assert!(hints.contains(hint), "{hints}");
    }
    // PyTorch takes one element for a parameter without dimensions, and nothing else.
    for (shape, expected) in [(&[1][..], 0), (&[2], 1), (&[1, 1], 1)] {
        let count = shape.iter().product::<usize>();
        room.model("scale.safetensors", &[("scale", Dtype::F32, shape, zeros(4 * count))], &[]);
        room.model("number.safetensors", &[("scale", Dtype::F32, &[], zeros(4))], &[]);
        assert_eq!(check(&room, "number.safetensors scale.safetensors").0, expected, "{shape:?}");
        assert_eq!(check(&room, "scale.safetensors number.safetensors").0, 1, "{shape:?}");
    }
}

#[test]
fn tensors_have_their_own_names_beside_a_prefix() {
    let room = Room::new();
    let zeros = |count: usize| vec![0x3c; count];
    let reference: [Tensor; 4] = [
        ("a", Dtype::F32, &[2], zeros(8)),
        ("b", Dtype::F32, &[3], zeros(12)),
        ("c", Dtype::F32, &[2], zeros(8)),
        ("gone", Dtype::F32, &[2], zeros(8)),
    ];
    room.model("ref.safetensors", &reference, &[]);
    let model: [Tensor; 4] = [
        ("module.a", Dtype::F32, &[2], zeros(8)),
        ("module.b", Dtype::F32, &[2], zeros(8)),
        ("module.c", Dtype::BF16, &[2], zeros(4)),
        ("module.new", Dtype::F32, &[2], zeros(8)),
    ];
    room.model("m.safetensors", &model, &[]);
    let (code, lines, last) = check(&room, "ref.safetensors m.safetensors");
    let expected = [
        "error: 3 of 4 names agree with ref.safetensors without the prefix \"module.\": weightfs export --strip module. \
         m.safetensors OUT",
        "error: tensor \"gone\": missing; ref.safetensors has F32 [2]",
        "error: tensor \"module.new\": not in ref.safetensors; F32 [2]",
        "error: tensor \"module.b\": shape [2]; ref.safetensors has [3]",
        "note: tensor \"module.c\": BF16; ref.safetensors has F32",
    ];
    assert_eq!((code, lines), (1, expected.iter().map(|line| format!("m.safetensors: {line}")).collect()));
    assert!(last.ends_with("has 2 of the 4 tensors of ref.safetensors, after the change of the prefix)"), "{last}");
    let [ref object] = room.json("weightfs check --json --like ref.safetensors m.safetensors")[..] else { panic!() };
    let names = ["missing", "unexpected", "shapes", "dtypes"].map(|list| object["like"][list][0]["name"].clone());
    assert_eq!(names, ["gone", "module.new", "module.b", "module.c"]);
}

#[test]
fn long_lists_are_cut_in_text_and_whole_in_json() {
    let room = Room::new();
    let names = |count: usize| (0..count).map(|at| format!("layers.{at}.weight")).collect::<Vec<String>>();
    let header = |names: &[String]| {
        let entry = |name: &String| format!(r#""{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#);
        format!("{{{}}}", names.iter().map(entry).collect::<Vec<_>>().join(","))
    };
    room.raw("ref.safetensors", &header(&names(2500)), &[]);
    room.raw("m.safetensors", &header(&names(3)), &[]);
    let (code, lines, _) = check(&room, "ref.safetensors m.safetensors");
    let missing = lines.iter().filter(|line| line.contains(": missing; ref.safetensors has U8 [0]")).count();
    assert!(code == 1 && missing == 10, "{lines:?}");
    assert!(lines.contains(&"m.safetensors: error: 2487 more of this kind".to_owned()), "{lines:?}");
    let [ref object] = room.json("weightfs check --json --like ref.safetensors m.safetensors")[..] else { panic!() };
    let missing = object["like"]["missing"].as_array().unwrap();
    let expected = names(2500).split_off(3);
    let mut found: Vec<&str> = missing.iter().map(|tensor| tensor["name"].as_str().unwrap()).collect();
    found.sort_unstable();
    let mut expected: Vec<&str> = expected.iter().map(|name| &name[..]).collect();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

#[test]
fn quantized_weights_have_their_logical_names_and_shapes() {
    let room = Room::new();
    let ints = |values: Vec<i32>| -> Vec<u8> { values.into_iter().flat_map(i32::to_le_bytes).collect() };
    let gptq: [Tensor; 5] = [
        ("module.l.0.q.qweight", Dtype::I32, &[8, 64], ints((0..512).collect())),
        ("module.l.0.q.qzeros", Dtype::I32, &[2, 8], ints(vec![0x7777_7777; 16])),
        ("module.l.0.q.scales", Dtype::F16, &[2, 64], [0, 0x3c].repeat(128)),
        ("module.l.0.q.g_idx", Dtype::I32, &[64], ints((0..64).map(|at| at / 32).collect())),
        ("module.norm.weight", Dtype::F16, &[64], [0, 0x3c].repeat(64)),
    ];
    let config = r#"{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true}}"#;
    for dir in ["m", "stripped"] {
        std::fs::create_dir(room.path(dir)).unwrap();
        std::fs::write(room.path(dir).join("config.json"), config).unwrap();
    }
    room.model("m/model.safetensors", &gptq, &[]);
    let plain: [Tensor; 2] =
        [("l.0.q.weight", Dtype::F16, &[64, 64], vec![0; 8192]), ("norm.weight", Dtype::F16, &[64], vec![0; 128])];
    room.model("ref.safetensors", &plain, &[]);
    let (code, lines, _) = check(&room, "ref.safetensors m");
    let expected = [
        "m/model.safetensors: error: all 2 names agree with ref.safetensors without the prefix \"module.\": weightfs \
         export --strip module. m/model.safetensors OUT",
        "m/model.safetensors: note: tensor \"module.l.0.q.weight\": GPTQ INT4; ref.safetensors has F16",
    ];
    assert_eq!((code, &lines[..]), (1, &expected.map(str::to_owned)[..]));
    let output = room.sh("weightfs check --like ref.safetensors m");
    let hint = "(quantized weights are stored as other tensors, which load_state_dict needs as they are: `weightfs export \
                --dtype` dequantizes them)";
    assert!(output.out.contains(hint) && !output.out.contains("load_state_dict converts"), "{output:?}");
    // The names of all stored tensors are changed, and those of dequantized weights too.
    room.ok("weightfs export --strip module. m/model.safetensors stripped/model.safetensors");
    let (code, lines, _) = check(&room, "ref.safetensors stripped");
    assert!(code == 0 && lines.len() == 1 && lines[0].contains(": note: tensor \"l.0.q.weight\": GPTQ"), "{lines:?}");
    assert_eq!(room.ok("weightfs ls stripped | grep -c module; true"), "0\n");
    room.ok("weightfs export --strip module. --dtype f16 m plain.safetensors");
    assert_eq!(check(&room, "ref.safetensors plain.safetensors").1, [] as [&str; 0]);
    // A layer in the configuration does not follow.
    let config = r#"{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true,
                     "modules_to_not_convert": ["head", "module.norm"]}}"#;
    std::fs::write(room.path("m/config.json"), config).unwrap();
    let output = room.sh("weightfs export --strip module. m/model.safetensors named.safetensors");
    let warning = "the quantization in config.json names layer \"module.norm\", whose name changes; change it too";
    assert!(output.code == 0 && output.err.contains(warning), "{output:?}");
    let output = room.sh("weightfs export --strip module. --dtype f16 m/model.safetensors floats.safetensors");
    assert!(output.code == 0 && !output.err.contains("config.json names"), "{output:?}");
}

#[test]
fn output_layer_that_is_tied_to_the_embedding_may_be_missing() {
    let room = Room::new();
    let mut names = vec!["embed_tokens.weight".to_owned()];
    write(&room, "m.safetensors", &names);
    names.push("lm_head.weight".into());
    write(&room, "ref.safetensors", &names);
    assert_eq!(check(&room, "ref.safetensors m.safetensors").0, 1);
    for (config, code) in [
        (json!({"tie_word_embeddings": false}), 1),
        (json!({}), 1),
        (json!({"text_config": {"tie_word_embeddings": true}}), 0),
        (json!({"tie_word_embeddings": true}), 0),
    ] {
        std::fs::write(room.path("config.json"), config.to_string()).unwrap();
        assert_eq!(check(&room, "ref.safetensors m.safetensors").0, code, "{config}");
    }
    let (_, lines, _) = check(&room, "ref.safetensors m.safetensors");
    assert_eq!(lines, ["m.safetensors: note: tensor \"lm_head.weight\": missing; ref.safetensors has F32 [2, 2]"]);
    let output = room.sh("weightfs check --like ref.safetensors m.safetensors").out;
    assert!(output.contains("load_state_dict needs strict=False)"), "{output}");
    let (code, lines, _) = check(&room, "m.safetensors ref.safetensors");
    assert_eq!(
        (code, lines),
        (0, vec!["ref.safetensors: note: tensor \"lm_head.weight\": not in m.safetensors; F32 [2, 2]".to_owned()])
    );
}

#[test]
fn checkpoints_of_training_are_compared_with_other_formats() {
    let room = Room::new();
    let checkpoints = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints");
    let checkpoints = checkpoints.display();
    room.ok(&format!("cp -r {checkpoints}/dcp/fsdp dcp; cp {checkpoints}/legacy/plain.pth .; chmod -R u+w dcp"));
    room.ok(&format!("cp -r {checkpoints}/ranks/verl verl; chmod -R u+w verl"));
    for source in ["dcp", "plain.pth", "verl"] {
        room.ok(&format!("weightfs export {source} {source}.safetensors"));
        let (code, lines, _) = check(&room, &format!("{source} {source}.safetensors"));
        assert_eq!((code, lines), (0, vec![]), "{source}");
        // PyTorch files have warnings of their own.
        let output = room.sh(&format!("weightfs check --quiet --like {source}.safetensors {source}"));
        assert_eq!(output.code, 0, "{source}: {output:?}");
        room.ok(&format!("weightfs export --prepend module. {source} wrapped-{source}.safetensors"));
        let found =
            follow(&room, &format!("{source} wrapped-{source}.safetensors"), &format!("{source}-2.safetensors"));
        assert!(found.contains(" without the prefix \"module.\": "), "{found}");
        room.ok(&format!("weightfs diff --data {source}.safetensors {source}-2.safetensors"));
    }
}

#[test]
fn names_of_other_formats_are_not_translated() {
    let room = Room::new();
    room.ok("weightfs demo sample.safetensors");
    std::fs::write(room.path("m.gguf"), gguf(&[])).unwrap();
    let (code, lines, _) = check(&room, "sample.safetensors m.gguf");
    assert!(
        code == 1 && lines.iter().any(|line| line.contains("gguf and safetensors name tensors differently")),
        "{lines:?}"
    );
    // A prefix is named also if `export` does not change it.
    write(&room, "ref.safetensors", &["model.blk.0.ffn_up.weight", "model.output_norm.weight"].map(str::to_owned));
    let (_, lines, _) = check(&room, "ref.safetensors m.gguf");
    assert_eq!(lines[0], "m.gguf: error: all 2 names agree with ref.safetensors with the prefix \"model.\"");
    write(&room, "a.safetensors", &["a.x".to_owned()]);
    write(&room, "b.safetensors", &["b.y".to_owned(), "c.y".to_owned()]);
    let (code, lines, _) = check(&room, "a.safetensors b.safetensors");
    let expected = "b.safetensors: error: none of the 2 names is among the 1 name of a.safetensors: the first are \
                    \"b.y\" and \"a.x\"";
    assert_eq!((code, lines), (1, vec![expected.to_owned()]));
    let [ref object] = room.json("weightfs check --json --like a.safetensors b.safetensors")[..] else { panic!() };
    let count = |list: &Value| list.as_array().unwrap().len();
    assert_eq!((count(&object["like"]["missing"]), count(&object["like"]["unexpected"])), (1, 2));
}

#[test]
fn references_that_cannot_be_used_are_refused_in_a_line() {
    let room = Room::new();
    write(&room, "m.safetensors", &prefixed(""));
    room.ok("mkdir several && cp m.safetensors several/a.safetensors && cp m.safetensors several/b.safetensors");
    std::fs::write(room.path("broken.safetensors"), [255; 9]).unwrap();
    for (line, error) in [
        ("--like several m.safetensors", "weightfs: several: a directory of 2 models; name one of them\n"),
        ("--like none.safetensors m.safetensors", "weightfs: none.safetensors: "),
        ("--like broken.safetensors m.safetensors", "weightfs: broken.safetensors: "),
        ("--like m.safetensors --values --part 1/2 m.safetensors", "cannot be used with"),
    ] {
        room.fails_with(&format!("weightfs check {line}"), 2, error);
    }
}

#[test]
fn export_changes_the_prefix_of_names() {
    let room = Room::new();
    let tensors: [Tensor; 4] = [
        ("m.b", Dtype::F32, &[1], floats(&[1.0])),
        ("m.a", Dtype::F32, &[1], floats(&[2.0])),
        ("b", Dtype::F32, &[1], floats(&[3.0])),
        ("half", Dtype::F16, &[1], vec![0; 2]),
    ];
    room.model("m.safetensors", &tensors, &[("format", "pt")]);
    for (line, error) in [
        ("--strip module. m.safetensors o.safetensors", "m.safetensors: --strip \"module.\": no name begins with it"),
        ("--strip m. m.safetensors o.safetensors", "m.safetensors: tensors \"m.b\" and \"b\" would both be \"b\""),
        ("--strip m. --only b m.safetensors o.safetensors", "--strip \"m.\": no name begins with it"),
    ] {
        room.fails_with(&format!("weightfs export {line}"), 1, error);
    }
    let error = "m.safetensors: the source itself, whose names would change; name another file";
    room.fails_with("weightfs export --prepend n. --force m.safetensors m.safetensors", 1, error);
    room.fails_with("weightfs export --strip '' m.safetensors o.safetensors", 2, "--strip");
    room.ok("weightfs export --strip m. --prepend n. m.safetensors n.safetensors");
    let names = |file: &str| -> Vec<String> {
        let listed = room.json(&format!("weightfs ls --json {file}"));
        let tensors = listed[0]["tensors"].as_array().unwrap().iter();
        tensors.map(|tensor| tensor["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(names("n.safetensors"), ["b", "half", "n.a", "n.b"]);
    assert_eq!(room.ok("weightfs cat n.safetensors tensors/n.a | od -An -tf4").trim(), "2");
    // The order is that of the new names, as in the official writer.
    room.ok("weightfs export --strip m. --prepend a. --clean m.safetensors a.safetensors");
    let bytes = std::fs::read(room.path("a.safetensors")).unwrap();
    let header = &bytes[8..8 + usize::from(bytes[0]) + 256 * usize::from(bytes[1])];
    let entries = String::from_utf8_lossy(header);
    let places = ["a.a", "a.b", "b", "half"].map(|name| entries.find(&format!("{name:?}")).unwrap());
    assert!(places.is_sorted(), "{entries}");
    // Shards and their index have the new names, and so do those of several processes.
    room.ok("weightfs export --prepend x. --shard-size 8B m.safetensors whole
        for i in 1 2; do weightfs export --prepend x. --shard-size 8B --part $i/2 m.safetensors parts > $i.part; done
        weightfs combine 1.part 2.part > parts/model.safetensors.index.json
        diff -r whole parts");
    let mut found = names("whole");
    found.sort();
    assert_eq!(found, ["x.b", "x.half", "x.m.a", "x.m.b"]);
    room.ok("weightfs export --prepend y. --shard-size 8B --part 2/2 m.safetensors other > 2.part");
    let output = room.sh("weightfs combine 1.part 2.part");
    assert_eq!(output.code, 1, "{output:?}");
}
