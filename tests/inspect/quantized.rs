//! Quantized models: what `inspect`, `ls` and `check` say about weights and their companions.

use crate::pipes::on_terminal;
use crate::room::{Room, Tensor, floats};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::path::Path;

const GPTQ: &str = r#"{"quantization_config": {"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": true}}"#;

fn repeated(bytes: [u8; 2], times: usize) -> Vec<u8> {
    bytes.repeat(times)
}

fn ints(values: impl IntoIterator<Item = i32>) -> Vec<u8> {
    values.into_iter().flat_map(i32::to_le_bytes).collect()
}

/// A weight of 64 rows and 64 columns in GPTQ, and a norm. The scales are 1.
fn gptq() -> Vec<Tensor<'static>> {
    vec![
        ("l.0.q.qweight", Dtype::I32, &[8, 64], ints(0..512)),
        ("l.0.q.qzeros", Dtype::I32, &[2, 8], ints([0x7777_7777; 16])),
        ("l.0.q.scales", Dtype::F16, &[2, 64], repeated([0, 0x3c], 128)),
        ("l.0.q.g_idx", Dtype::I32, &[64], ints((0..64).map(|at| at / 32))),
        ("norm.weight", Dtype::F16, &[64], repeated([0, 0x3c], 64)),
    ]
}

/// A weight of 256 rows and 256 columns in blocks of 128 x 128, with these scales.
fn fp8(scales: [f32; 4]) -> Vec<Tensor<'static>> {
    vec![
        ("m.weight", Dtype::F8_E4M3, &[256, 256], vec![0x38; 65536]),
        ("m.weight_scale_inv", Dtype::F32, &[2, 2], floats(&scales)),
    ]
}

/// Writes a model into a directory of its own, with a configuration.
fn write(room: &Room, dir: &str, config: &str, tensors: &[Tensor]) {
    std::fs::create_dir_all(room.path(dir)).unwrap();
    std::fs::write(room.path(dir).join("config.json"), config).unwrap();
    room.model(&format!("{dir}/model.safetensors"), tensors, &[]);
}

#[test]
fn page_says_how_weights_are_quantized() {
    let room = Room::new();
    write(&room, "m", GPTQ, &gptq());
    let lines = "
  Parameters       4.16K (4,160), 5.29 bits per weight
  Quantization     GPTQ: INT4, groups of 32
                     1 weight: 4.10K parameters in 2.62 kB, 5.12 bits each
                     3 companions: scales, zero points, group index
";
    let out = room.ok("weightfs inspect m");
    assert!(out.contains(lines), "{out}");
    let first = "m/model.safetensors: safetensors, 4.16K parameters, GPTQ INT4, 5.3 bits per weight, ";
    assert!(out.starts_with(first), "{out}");
    let shown = on_terminal(&room, 80, "inspect m");
    assert!(shown.contains(lines) && lines.lines().all(|line| line.len() <= 80), "{shown}");
    // On a narrow terminal, the roles take several lines.
    let narrow = on_terminal(&room, 50, "inspect m");
    let folded = "
                     3 companions: scales, zero
                     points, group index
";
    assert!(narrow.contains(folded), "{narrow}");
    let [ref object] = room.json("weightfs inspect --json m")[..] else { panic!() };
    let kind = json!({
        "scheme": "GPTQ", "dtype": "INT4", "summary": "GPTQ: INT4, groups of 32", "weights": 1, "parameters": 4096,
        "nbytes": 2624, "bits_per_weight": 5.125, "companions": 3, "roles": ["scales", "zero points", "group index"],
    });
    let totals = &object["totals"];
    assert_eq!((&totals["parameters"], &totals["quantized"]), (&json!(4160), &json!([kind])));
    assert_eq!(totals["bits_per_weight"], json!(8.0 * 2752.0 / 4160.0));
    let quantization = json!({
        "weights": 1, "companions": 3, "summary": "1 weight (GPTQ: INT4, groups of 32)", "notes": [],
    });
    assert_eq!(object["quantization"], quantization);
    // Other models have no such lines.
    room.model("plain.safetensors", &[("logit_scale", Dtype::F32, &[], vec![0; 4])], &[]);
    let plain = room.ok("weightfs inspect plain.safetensors");
    assert!(plain.contains("  Parameters       1\n") && !plain.contains("Quantization"), "{plain}");
    let [ref plain] = room.json("weightfs inspect --json plain.safetensors")[..] else { panic!() };
    assert_eq!((&plain["quantization"], &plain["totals"]["quantized"]), (&Value::Null, &json!([])));
}

#[test]
fn lists_count_logical_parameters() {
    let room = Room::new();
    write(&room, "m", GPTQ, &gptq());
    let out = room.ok("weightfs ls --totals m/model.safetensors");
    let expected = "\
DTYPE  TENSORS  PARAMETERS     SIZE    SHARE
I32          3       4.10K  2.37 kB   86.0 %
F16          2          64    384 B   14.0 %
total        5       4.16K  2.75 kB  100.0 %

MODULE  TENSORS  PARAMETERS     SIZE    SHARE
l             4       4.10K  2.62 kB   95.3 %
norm          1          64    128 B    4.7 %
total         5       4.16K  2.75 kB  100.0 %

QUANTIZATION              WEIGHTS  PARAMETERS     SIZE  BITS
GPTQ: INT4, groups of 32        1       4.10K  2.62 kB  5.12
";
    assert_eq!(out, expected);
    let shown = on_terminal(&room, 80, "ls m/model.safetensors");
    let last: Vec<&str> = shown.lines().rev().take(3).collect();
    let expected = [
        "5.29 bits per weight: 1 weight (GPTQ: INT4, groups of 32)",
        "modules: l 2.62 kB, norm 128 B",
        "5 tensors, 4.16K parameters, 2.75 kB: I32 2.37 kB, F16 384 B",
    ];
    assert_eq!(last, expected, "{shown}");
    let [ref object] = room.json("weightfs ls --json m/model.safetensors")[..] else { panic!() };
    let tensor = |name: &str| {
        object["tensors"].as_array().unwrap().iter().find(|tensor| tensor["name"] == name).unwrap().clone()
    };
    assert_eq!(tensor("l.0.q.qweight")["quantization"]["name"], "l.0.q.weight");
    assert_eq!(tensor("l.0.q.scales")["companion_of"], "l.0.q.weight");
    assert!(tensor("norm.weight")["companion_of"].is_null() && tensor("norm.weight")["quantization"].is_null());
    // Without the codes, there are no parameters.
    let [ref object] = room.json("weightfs ls --json m/model.safetensors '*.scales'")[..] else { panic!() };
    assert_eq!((&object["totals"]["parameters"], &object["totals"]["bits_per_weight"]), (&json!(0), &Value::Null));
}

#[test]
fn unknown_schemes_are_named_and_counted_as_stored() {
    let room = Room::new();
    let tensors: [Tensor; 2] =
        [("a.weight", Dtype::I8, &[2, 4], vec![1; 8]), ("a.weight_scales", Dtype::F32, &[3], floats(&[1.0, 1.0, 1.0]))];
    write(&room, "m", r#"{"quantization_config": {"quant_method": "eetq"}}"#, &tensors);
    let lines = "
  Parameters       11
  Not recognised   scales of no known scheme (a.weight_scales), such as \"a.weight\"
                   a quantization method that is not known (eetq)
                   their stored elements are counted as parameters
";
    let out = room.ok("weightfs inspect m");
    assert!(out.contains(lines), "{out}");
    let [ref object] = room.json("weightfs inspect --json m")[..] else { panic!() };
    assert_eq!((&object["quantization"]["weights"], &object["totals"]["parameters"]), (&json!(0), &json!(11)));
    assert_eq!(object["quantization"]["notes"].as_array().unwrap().len(), 2);
    let (rules, messages) = found(&room, "--fail-on-warning m");
    assert_eq!(rules, ["note quantized", "note quantized"]);
    assert!(messages[0].contains("scales of no known scheme") && messages[1].contains("eetq"), "{messages:?}");
}

/// Runs `check --json` with these arguments. Returns the findings as `severity rule`, and their messages.
fn found(room: &Room, line: &str) -> (Vec<String>, Vec<String>) {
    let findings = findings(room, line);
    let text = |finding: &Value, key: &str| finding[key].as_str().unwrap().to_owned();
    let rule = |finding: &Value| format!("{} {}", text(finding, "severity"), text(finding, "rule"));
    findings.iter().map(|finding| (rule(finding), text(finding, "message"))).unzip()
}

fn findings(room: &Room, line: &str) -> Vec<Value> {
    let [ref object] = room.json(&format!("weightfs check --json {line}"))[..] else { panic!("{line}") };
    object["findings"].as_array().unwrap().clone()
}

#[test]
fn companions_that_are_missing_or_do_not_fit_are_findings() {
    let room = Room::new();
    write(&room, "whole", GPTQ, &gptq());
    assert_eq!(found(&room, "--values whole").0, [""; 0]);
    let without = |name: &str| gptq().into_iter().filter(|tensor| !tensor.0.ends_with(name)).collect::<Vec<_>>();
    let with = |name: &'static str, dtype, shape: &'static [usize], bytes: usize| {
        [without(name), vec![(name, dtype, shape, vec![0; bytes])]].concat()
    };
    let codes = "tensor \"l.0.q.qweight\"";
    let cases = [
        (without("qzeros"), format!("{codes} (GPTQ): a tensor that is missing (qzeros)")),
        (without("scales"), format!("{codes}: codes without scales (I32)")),
        (
            with("l.0.q.qzeros", Dtype::I32, &[3, 8], 96),
            format!("{codes} (GPTQ): a companion with a wrong dtype or shape (qzeros: I32 [3, 8])"),
        ),
        (
            with("l.0.q.g_idx", Dtype::I32, &[63], 252),
            format!("{codes} (GPTQ): codes of a wrong shape ([8, 64] for 63 columns)"),
        ),
    ];
    for (tensors, message) in cases {
        write(&room, "m", GPTQ, &tensors);
        let findings = findings(&room, "m");
        let [ref finding] = findings[..] else { panic!("{message}: {findings:?}") };
        let expected = json!({
            "severity": "warning", "rule": "companion", "file": "m/model.safetensors", "subject": "l.0.q.qweight",
            "message": message,
        });
        assert_eq!(*finding, expected);
        assert_eq!(room.sh("weightfs check m").code, 0);
        assert_eq!(room.sh("weightfs check --fail-on-warning m").code, 1);
    }
    // Every weight is named, not only the first.
    let names: Vec<String> = (0..20).map(|at| format!("l.{at}.qweight")).collect();
    let codes: Vec<Tensor> = names.iter().map(|name| (&name[..], Dtype::I32, &[8, 64][..], ints(0..512))).collect();
    write(&room, "many", GPTQ, &codes);
    let findings = findings(&room, "many");
    assert_eq!(findings.len(), 20);
    assert!(names.iter().all(|name| findings.iter().any(|finding| finding["subject"] == **name)), "{findings:?}");
    // The companions of a shard that is checked by itself may be in another one.
    let (codes, others): (Vec<Tensor>, Vec<Tensor>) =
        gptq().into_iter().partition(|tensor| tensor.0.ends_with(".qweight"));
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    std::fs::create_dir(room.path("parts")).unwrap();
    std::fs::write(room.path("parts/config.json"), GPTQ).unwrap();
    room.model(&format!("parts/{}", shards[0]), &codes, &[]);
    room.model(&format!("parts/{}", shards[1]), &others, &[]);
    assert_eq!(found(&room, &format!("--values parts/{}", shards[0])).0, [""; 0]);
    // So may those of a model without one of its shards.
    let map = |tensors: &[Tensor], shard: &str| {
        tensors.iter().map(|tensor| (tensor.0.to_owned(), json!(shard))).collect::<Vec<_>>()
    };
    let map: serde_json::Map<_, _> = [map(&codes, shards[0]), map(&others, shards[1])].concat().into_iter().collect();
    let index = json!({"weight_map": map}).to_string();
    std::fs::write(room.path("parts/model.safetensors.index.json"), index).unwrap();
    assert_eq!(found(&room, "--values parts/model.safetensors.index.json").0, [""; 0]);
    std::fs::remove_file(room.path("parts").join(shards[1])).unwrap();
    let (rules, messages) = found(&room, "parts/model.safetensors.index.json");
    assert!(!rules.is_empty() && rules.iter().all(|rule| rule == "error index"), "{messages:?}");
}

#[test]
fn scales_that_spoil_values_are_errors_that_name_the_weight() {
    let room = Room::new();
    write(&room, "good", "{}", &fp8([1.0, 2.0, 3.0, 4.0]));
    assert_eq!(found(&room, "--values good").0, [""; 0]);
    assert!(room.ok("weightfs check --values good").contains("all values finite"));
    write(&room, "bad", "{}", &fp8([1.0, 0.0, f32::NAN, f32::INFINITY]));
    // Without --values, no data is read.
    assert_eq!(found(&room, "bad").0, [""; 0]);
    let (rules, messages) = found(&room, "--values bad");
    let expected = [
        "tensor \"m.weight_scale_inv\": 2 of 4 scales are infinite or NaN, the first at [1, 0], and so are values of \"m.weight\"",
        "tensor \"m.weight_scale_inv\": 1 of 4 scales is zero, and so are the values of \"m.weight\" in their groups",
    ];
    assert_eq!(
        (rules, messages),
        (vec!["error scale".into(), "note zero-scale".into()], expected.map(String::from).to_vec())
    );
    assert_eq!(room.sh("weightfs check --values bad").code, 1);
    assert!(!room.sh("weightfs check --values bad").out.contains("all values finite"));
    write(&room, "zero", "{}", &fp8([0.0; 4]));
    let (rules, messages) = found(&room, "--values zero");
    assert_eq!(rules, ["warning zero-weight"]);
    assert_eq!(
        messages,
        ["tensor \"m.weight_scale_inv\": all 4 scales are zero, and so are all values of \"m.weight\""]
    );
    // The codes themselves are searched as before.
    let mut codes = fp8([1.0; 4]);
    codes[0].3[77] = 0x7f;
    write(&room, "codes", "{}", &codes);
    assert_eq!(found(&room, "--values codes").0, ["error nan"]);
}

/// Weights of 64 rows and 64 columns in GPTQ, and the words of their zero points.
fn gptq_with_zeros(layers: &'static [&str; 5], zeros: [u32; 5]) -> Vec<Tensor<'static>> {
    let layers = layers.iter().zip(zeros).flat_map(|(layer, zeros)| {
        let name = |ending: &str| -> &'static str { format!("{layer}.{ending}").leak() };
        [
            (name("qweight"), Dtype::I32, &[8, 64][..], ints(0..512)),
            (name("qzeros"), Dtype::I32, &[2, 8], ints([zeros as i32; 16])),
            (name("scales"), Dtype::F16, &[2, 64], repeated([0, 0x3c], 128)),
        ]
    });
    layers.collect()
}

/// Symmetric codes have their zero point in the middle. If it is not there, the configuration is wrong, such as that of
/// GPTQ about the two ways to store zero points, and so are all values.
#[test]
fn zero_points_that_contradict_the_configuration_are_warned_about() {
    let room = Room::new();
    let config = |format: &str| GPTQ.replace("\"bits\"", &format!("\"checkpoint_format\": \"{format}\", \"bits\""));
    let layers = &["a", "b", "c", "d", "e"];
    for (format, zeros) in [("gptq", 0x7777_7777), ("gptq_v2", 0x8888_8888)] {
        write(&room, "good", &config(format), &gptq_with_zeros(layers, [zeros; 5]));
        assert_eq!(found(&room, "--values good").0, [""; 0], "{format}");
    }
    // The three weights that are looked at are one finding; with --values, the other two are looked at too.
    for (format, zeros, wrong) in [
        ("gptq", 0x8888_8888, "(9 instead of 8; they fit the checkpoint format gptq_v2)"),
        ("gptq_v2", 0x7777_7777, "(7 instead of 8; they fit the checkpoint format gptq)"),
        ("gptq", 0x5a5a_5a5a, "(6 to 11 instead of 8)"),
    ] {
        write(&room, "bad", &config(format), &gptq_with_zeros(layers, [zeros; 5]));
        let note = format!(
            "GPTQ: symmetric by the configuration, but zero points are not in the middle of the codes {wrong}, such as \
             \"a.qweight\", 3 tensors; dequantized values may be wrong"
        );
        let expected = (vec!["warning quantization-config".to_owned()], vec![note.clone()]);
        assert_eq!(found(&room, "bad"), expected);
        let (rules, messages) = found(&room, "--values bad");
        let others = ["b", "d"].map(|layer| {
            format!(
                "tensor \"{layer}.qzeros\": 128 of 128 zero points are not in the middle of the codes {wrong}, although the \
                 configuration says that \"{layer}.weight\" is symmetric"
            )
        });
        assert_eq!((rules.len(), &messages[..1], &messages[1..]), (3, &[note.clone()][..], &others[..]));
        let index: Value = serde_json::from_str(&room.ok("weightfs cat bad index.json")).unwrap();
        assert_eq!(index["notes"], json!([note]));
        let [ref object] = room.json("weightfs inspect --json bad")[..] else { panic!() };
        assert_eq!(object["quantization"]["notes"], json!([note]));
        let page = room.ok("weightfs inspect bad");
        assert!(
            page.contains("\n  Doubtful values  GPTQ: symmetric by the configuration") && !page.contains("Not rec")
        );
    }
    // One weight of another program.
    let mut zeros = [0x7777_7777; 5];
    zeros[3] = 0x8777_7777;
    write(&room, "one", &config("gptq"), &gptq_with_zeros(layers, zeros));
    assert_eq!(found(&room, "one").0, [""; 0]);
    let (rules, messages) = found(&room, "--values one");
    assert_eq!(rules, ["warning quantization-config"]);
    assert!(
        messages[0].contains("\"d.qzeros\": 16 of 128") && messages[0].contains("(9 instead of 8)"),
        "{messages:?}"
    );
    // Asymmetric ones may have any zero points.
    let asymmetric = GPTQ.replace("true", "false");
    write(&room, "free", &asymmetric, &gptq_with_zeros(layers, [0x1234_5678; 5]));
    assert_eq!(found(&room, "--values free").0, [""; 0]);
}

#[test]
fn symmetry_of_compressed_tensors_is_compared_with_the_zero_points() {
    let room = Room::new();
    let config = |symmetric: &str| {
        let group = format!(r#"{{"weights": {{"num_bits": 8, "symmetric": {symmetric}}}}}"#);
        format!(
            r#"{{"quantization_config": {{"quant_method": "compressed-tensors", "format": "int-quantized",
                "config_groups": {{"group_0": {group}}}}}}}"#
        )
    };
    let plain: [Tensor; 2] =
        [("m.weight", Dtype::I8, &[4, 4], vec![1; 16]), ("m.weight_scale", Dtype::F32, &[4, 1], floats(&[1.0; 4]))];
    let with = |zero: u8| [&plain[..], &[("m.weight_zero_point", Dtype::I8, &[4, 1][..], vec![zero; 4])]].concat();
    write(&room, "m", &config("true"), &plain);
    assert_eq!(found(&room, "--values m").0, [""; 0]);
    write(&room, "m", &config("false"), &with(3));
    assert_eq!(found(&room, "--values m").0, [""; 0]);
    // Old versions also store the zero points of symmetric weights.
    write(&room, "m", &config("true"), &with(0));
    assert_eq!(found(&room, "--values m").0, [""; 0]);
    write(&room, "m", &config("true"), &with(3));
    let (rules, messages) = found(&room, "--values m");
    assert_eq!(rules, ["warning quantization-config"]);
    assert!(messages[0].contains("not in the middle of the codes (3 instead of 0)"), "{messages:?}");
    write(&room, "m", &config("false"), &plain);
    let (rules, messages) = found(&room, "--values m");
    assert_eq!(rules, ["warning quantization-config"]);
    let expected = "int-quantized: asymmetric by the configuration, but there are no zero points (they are taken as 0), such as \
                    \"m.weight\"; dequantized values may be wrong";
    assert_eq!(messages, [expected]);
}

/// A layer that has other parameters is found by its name. If the name has changed, it is decoded with those of the
/// model.
#[test]
fn parameters_of_layers_that_have_no_tensors_are_warned_about() {
    let room = Room::new();
    let mlx = |layer: &str| -> Vec<Tensor> {
        let name = |ending: &str| -> &'static str { format!("{layer}.{ending}").leak() };
        vec![
            (name("weight"), Dtype::U32, &[2, 8], vec![1; 64]),
            (name("scales"), Dtype::F16, &[2, 1], vec![0; 4]),
            (name("biases"), Dtype::F16, &[2, 1], vec![0; 4]),
        ]
    };
    let plain: [Tensor; 1] = [("vision_tower.layers.0.mlp.down", Dtype::F16, &[2], vec![0; 4])];
    let tensors =
        [mlx("language_model.model.layers.0.mlp.gate"), mlx("language_model.lm_head"), plain.to_vec()].concat();
    let own = r#"{"group_size": 32, "bits": 8}"#;
    let config = |layers: &[&str]| {
        let layers: String = layers.iter().map(|layer| format!(", \"{layer}\": {own}")).collect();
        format!(r#"{{"quantization": {{"group_size": 64, "bits": 4, "x.lm_head": false{layers}}}}}"#)
    };
    let warning = |layer: &str, existing: &str| {
        format!(
            "the configuration has parameters for a layer that has no tensors, and a similar name has some ({layer}; \
             {existing}); dequantized values may be wrong"
        )
    };
    // Layers of another file, of another part of a model, and layers that are not quantized.
    for other in [
        "language_model.model.layers.7.mlp.gate",
        "audio_tower.layers.0.mlp.gate",
        "vision_tower.model.layers.0.mlp.gate",
        "model.vision_tower.layers.0.mlp.down",
    ] {
        write(&room, "m", &config(&[other]), &tensors);
        assert_eq!(found(&room, "m").0, [""; 0], "{other}");
    }
    for wrong in ["model.layers.0.mlp.gate", "model.language_model.layers.0.mlp.gate", "lm_head"] {
        write(&room, "m", &config(&[wrong]), &tensors);
        let (rules, messages) = found(&room, "m");
        assert_eq!(rules, ["warning quantization-config"], "{wrong}");
        let existing = if wrong == "lm_head" { "lm_head" } else { "model.layers.0.mlp.gate" };
        assert_eq!(messages, [warning(wrong, &format!("language_model.{existing}"))]);
    }
    write(&room, "m", &config(&["model.layers.0.mlp.gate", "lm_head"]), &tensors);
    assert!(found(&room, "m").1[0].contains("language_model.lm_head), and 1 more;"));
    // The other programs, whose keys may be regular expressions.
    let with = |layers: &str| GPTQ.replace("\"bits\"", &format!("{layers}, \"lm_head\": false, \"bits\""));
    let head: [Tensor; 1] = [("x.lm_head.weight", Dtype::F16, &[2], vec![0; 4])];
    let tensors = [gptq(), head.to_vec()].concat();
    for (layers, right) in [
        (r#""dynamic": {"+:model\\.l\\.0\\.q": {"bits": 8}}"#, r#""dynamic": {"+:l\\.0\\.q": {"bits": 8}}"#),
        (r#""dynamic": {"+:model\\.l\\.0\\.q": {"bits": 8}}"#, r#""dynamic": {"+:.*\\.l\\.0\\.q": {"bits": 8}}"#),
        (r#""extra_config": {"model.l.0.q": {"bits": 8}}"#, r#""extra_config": {"l.0.q": {"bits": 8}}"#),
        (r#""quantized_layers": {"model.l.0.q": {"bits": 8}}"#, r#""quantized_layers": {"l.0.q": {"bits": 8}}"#),
    ] {
        write(&room, "m", &with(layers), &tensors);
        let (rules, messages) = found(&room, "m");
        assert_eq!(
            (rules, messages),
            (vec!["warning quantization-config".to_owned()], vec![warning("model.l.0.q", "l.0.q")])
        );
        write(&room, "m", &with(right), &tensors);
        assert_eq!(found(&room, "m").0, [""; 0], "{right}");
    }
}

/// The time for a name does not grow with the number of its components, and an entry of another file costs nothing.
#[test]
fn long_names_are_not_compared_with_the_configuration() {
    let room = Room::new();
    let long: &'static str = ("a.".repeat(200_000) + "b").leak();
    let tensors = [gptq(), vec![(long, Dtype::U8, &[1], vec![0])]].concat();
    let config = GPTQ.replace("\"bits\"", r#""dynamic": {"x.1.y": {}}, "bits""#);
    write(&room, "m", &config, &tensors);
    assert_eq!(found(&room, "m").0, [""; 0]);
}

#[test]
fn scales_in_another_shard_are_checked() {
    let room = Room::new();
    let tensors = fp8([1.0, f32::NAN, 1.0, 1.0]);
    room.model("s-1.safetensors", &tensors[..1], &[]);
    room.model("s-2.safetensors", &tensors[1..], &[]);
    let index = json!({"weight_map": {"m.weight": "s-1.safetensors", "m.weight_scale_inv": "s-2.safetensors"}});
    std::fs::write(room.path("s.safetensors.index.json"), index.to_string()).unwrap();
    assert_eq!(found(&room, "s.safetensors.index.json").0, [""; 0]);
    let findings = findings(&room, "--values s.safetensors.index.json");
    let [ref finding] = findings[..] else { panic!("{findings:?}") };
    let place = (&finding["rule"], &finding["file"], &finding["subject"]);
    assert_eq!(place, (&json!("scale"), &json!("s-2.safetensors"), &json!("m.weight_scale_inv")));
}

#[test]
fn numbers_of_every_kind_of_companion_are_checked() {
    let room = Room::new();
    // A group that does not exist. An index with -1 is not used.
    let mut tensors = gptq();
    tensors[3].3[5 * 4] = 2;
    write(&room, "m", GPTQ, &tensors);
    let (rules, messages) = found(&room, "--values m");
    assert_eq!(rules, ["error group-index"]);
    let expected = "tensor \"l.0.q.g_idx\": 1 of 64 columns of \"l.0.q.weight\" have groups that do not exist, the first at [5]; \
                    there are 2 groups";
    assert_eq!(messages, [expected]);
    tensors[3].3[63 * 4..].fill(0xff);
    write(&room, "m", GPTQ, &tensors);
    assert_eq!(found(&room, "--values m").0, [""; 0]);

    // A scheme that divides by its global scale.
    let config = r#"{"quantization_config": {"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"}}"#;
    let nvfp4 = |scale: u8, global: f32| -> Vec<Tensor> {
        vec![
            ("m.weight_packed", Dtype::U8, &[16, 16], vec![0x21; 256]),
            ("m.weight_scale", Dtype::F8_E4M3, &[16, 2], vec![scale; 32]),
            ("m.weight_global_scale", Dtype::F32, &[1], floats(&[global])),
        ]
    };
    let cases = [
        (nvfp4(0x38, 1.0), &[""; 0][..], ""),
        (
            nvfp4(0x38, 0.0),
            &["error scale"],
            "the global scale is zero, and the scheme divides by it: values of \"m.weight\" are not finite",
        ),
        (
            nvfp4(0x38, f32::NAN),
            &["error scale"],
            "the global scale is infinite or NaN, and so are values of \"m.weight\"",
        ),
        (nvfp4(0x7f, 1.0), &["error scale"], "all 32 scales are infinite or NaN, the first at [0, 0]"),
    ];
    for (tensors, rules, part) in cases {
        write(&room, "m", config, &tensors);
        let found = found(&room, "--values m");
        assert!(found.0 == rules && found.1.iter().all(|message| message.contains(part)), "{found:?}");
    }

    // Scales of a byte are powers of two or NaN.
    let mxfp4 = |scale: u8| -> Vec<Tensor> {
        vec![
            ("e.up_blocks", Dtype::U8, &[1, 2, 1, 16], vec![0x21; 32]),
            ("e.up_scales", Dtype::U8, &[1, 2, 1], vec![127, scale]),
        ]
    };
    write(&room, "m", r#"{"quantization_config": {"quant_method": "mxfp4"}}"#, &mxfp4(0));
    assert_eq!(found(&room, "--values m").0, [""; 0]);
    write(&room, "m", r#"{"quantization_config": {"quant_method": "mxfp4"}}"#, &mxfp4(255));
    let (rules, messages) = found(&room, "--values m");
    assert_eq!(rules, ["error scale"]);
    assert!(messages[0].contains("1 of 2 scales is infinite or NaN, the first at [0, 1, 0]"), "{messages:?}");

    // Scales that are quantized themselves: their own scales are checked.
    let state = br#"{"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[8,8],"nested_blocksize":256,"nested_offset":0.5}"#;
    let len = [state.len()];
    let nested = |scale: f32| -> Vec<Tensor> {
        vec![
            ("m.weight", Dtype::U8, &[32, 1], vec![0x21; 32]),
            ("m.weight.absmax", Dtype::U8, &[1], vec![0]),
            ("m.weight.nested_absmax", Dtype::F32, &[1], floats(&[scale])),
            ("m.weight.nested_quant_map", Dtype::F32, &[256], floats(&[0.25; 256])),
            ("m.weight.quant_map", Dtype::F32, &[16], floats(&[0.5; 16])),
        ]
    };
    for (scale, rules) in [(1.0, &[""; 0][..]), (f32::INFINITY, &["error scale"])] {
        let mut tensors = nested(scale);
        tensors.push(("m.weight.quant_state.bitsandbytes__nf4", Dtype::U8, &len, state.to_vec()));
        write(&room, "m", "{}", &tensors);
        let (found, messages) = found(&room, "--values m");
        assert_eq!(found, rules, "{messages:?}");
        assert!(
            messages.iter().all(|message| message.contains("the scale of scales is infinite or NaN")),
            "{messages:?}"
        );
    }

    // A scale of 0 with a bias is a group of equal values.
    let mlx = |bias: u16| -> Vec<Tensor> {
        vec![
            ("m.weight", Dtype::U32, &[2, 8], vec![0x21; 64]),
            ("m.scales", Dtype::F16, &[2, 1], vec![0; 4]),
            ("m.biases", Dtype::F16, &[2, 1], bias.to_le_bytes().repeat(2)),
        ]
    };
    for (bias, rules) in [(0x3c00, &[""; 0][..]), (0x7c00, &["error scale"])] {
        write(&room, "m", r#"{"quantization": {"group_size": 64, "bits": 4}}"#, &mlx(bias));
        assert_eq!(found(&room, "--values m").0, rules);
    }
}

/// Tensors of schemes that are recognised and not decoded are shown as stored, and a note says so.
#[test]
fn schemes_that_are_not_decoded_are_notes() {
    let room = Room::new();
    let tensors: [Tensor; 2] =
        [("m.trellis", Dtype::I16, &[1, 1, 48], vec![0x21; 96]), ("m.suh", Dtype::F16, &[16], repeated([0, 0x3c], 16))];
    write(&room, "m", r#"{"quantization_config": {"quant_method": "exl3"}}"#, &tensors);
    let (rules, messages) = found(&room, "m");
    assert_eq!(rules, ["note quantized"]);
    let expected =
        "not dequantized: EXL3: a scheme that is recognised, not dequantized (m.suh), such as \"m.trellis\"; ";
    assert!(messages[0].starts_with(expected), "{messages:?}");
    let index: Value = serde_json::from_str(&room.ok("weightfs cat m index.json")).unwrap();
    assert!(index["notes"][0].as_str().unwrap().starts_with(expected), "{index}");
    assert_eq!(room.ok("weightfs cat m tensors/m.trellis").len(), 96);
}

/// The files have been written by the library, with the sum of the values that it computes.
#[test]
fn weights_of_hqq_have_the_values_of_the_library() {
    let written = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/hqq");
    let sums = std::fs::read_to_string(written.join("sums.tsv")).unwrap();
    let kinds = [("4bit-axis1", "INT4", 5.0), ("3bit-axis0", "INT3", 4.5)];
    assert_eq!(sums.lines().count(), kinds.len());
    for (case, dtype, bits) in kinds {
        let room = Room::new();
        let source = written.join(case).join("model.safetensors").display().to_string();
        let expected = sums.lines().find_map(|line| line.strip_prefix(case)).unwrap();
        let sum = room.ok(&format!("weightfs cat {source} f32/layer.weight.f32 | sha256sum"));
        let sum = sum.split_whitespace().next().unwrap();
        assert_eq!(format!("\tlayer.weight\tF32\t[24,128]\t{sum}"), expected);
        let [ref object] = room.json(&format!("weightfs inspect --json {source}"))[..] else { panic!() };
        let kind = &object["totals"]["quantized"][0];
        let summary = format!("HQQ: {dtype}, groups of 64, asymmetric");
        assert_eq!((&kind["summary"], &kind["parameters"]), (&json!(summary), &json!(3072)));
        // The codes of a group, and two floats.
        let stored = kind["nbytes"].as_u64().unwrap();
        assert_eq!(stored as f64 * 8.0 / 3072.0, bits);
        let listed = room.ok(&format!("weightfs ls {source}"));
        assert!(listed.contains("layer.W_q"), "{listed}");
        let (rules, messages) = found(&room, &format!("--values {source}"));
        assert_eq!(rules, [""; 0], "{messages:?}");
    }
}

/// Codes that are stored as floats may have the bits of NaN, which is no fault of them.
#[test]
fn codes_in_a_float_dtype_are_not_searched_for_nan() {
    let room = Room::new();
    let state = br#"{"quant_type":"nf4","blocksize":64,"dtype":"float16","shape":[8,8]}"#;
    let len = [state.len()];
    let bitsandbytes: [Tensor; 4] = [
        ("m.weight", Dtype::BF16, &[16, 1], vec![0xff; 32]),
        ("m.weight.absmax", Dtype::F32, &[1], floats(&[1.0])),
        ("m.weight.quant_map", Dtype::F32, &[16], floats(&[0.5; 16])),
        ("m.weight.quant_state.bitsandbytes__nf4", Dtype::U8, &len, state.to_vec()),
    ];
    let hqq = |is_scaled: bool| -> Vec<Tensor> {
        let mut tensors: Vec<Tensor> = vec![
            ("m.W_q", Dtype::F16, &[2, 2], vec![0xff; 8]),
            ("m.zero", Dtype::F32, &[4, 1], floats(&[0.5; 4])),
            ("m.nbits", Dtype::I32, &[], ints([4])),
            ("m.group_size", Dtype::I32, &[], ints([4])),
            ("m.axis", Dtype::I32, &[], ints([1])),
            ("m.shape", Dtype::I64, &[2], [2i64, 8].iter().flat_map(|dim| dim.to_le_bytes()).collect()),
            ("m.packing", Dtype::U8, &[7], b"4bit_u8".to_vec()),
            ("m.view_as_float", Dtype::U8, &[], vec![1]),
        ];
        if is_scaled {
            tensors.push(("m.scale", Dtype::F32, &[4, 1], floats(&[1.0; 4])));
        }
        tensors
    };
    for (tensors, scheme) in [(&bitsandbytes[..], "bitsandbytes"), (&hqq(true), "HQQ")] {
        write(&room, "m", "{}", tensors);
        assert!(room.ok("weightfs inspect m").contains(scheme));
        let (rules, messages) = found(&room, "--values m");
        assert_eq!(rules, [""; 0], "{messages:?}");
    }
    // Without their scales, nothing says that they are codes of a known scheme.
    write(&room, "m", "{}", &hqq(false));
    let (rules, _) = found(&room, "--values m");
    assert!(rules.contains(&"error nan".to_owned()) && rules.len() > 1, "{rules:?}");
    // NaN of FP8 is NaN in the values.
    let mut tensors = fp8([1.0; 4]);
    tensors[0].3[77] = 0x7f;
    write(&room, "m", "{}", &tensors);
    assert_eq!(found(&room, "--values m").0, ["error nan"]);
}

/// A number of a codebook that is not finite spoils the values of its code.
#[test]
fn codebooks_of_aqlm_are_checked() {
    let room = Room::new();
    for (number, rules) in [([0, 0x3c], &[""; 0][..]), ([0, 0x7c], &["error scale"])] {
        let mut books = repeated([0, 0x3c], 256 * 8);
        books[2 * 9..2 * 10].copy_from_slice(&number);
        let tensors: [Tensor; 3] = [
            ("m.codes", Dtype::I8, &[2, 4, 1], vec![1; 8]),
            ("m.codebooks", Dtype::F16, &[1, 256, 1, 8], books),
            ("m.scales", Dtype::F16, &[2, 1, 1, 1], repeated([0, 0x3c], 2)),
        ];
        write(&room, "m", r#"{"quantization_config": {"quant_method": "aqlm"}}"#, &tensors);
        let (found, messages) = found(&room, "--values m");
        let part = "tensor \"m.codebooks\": 1 of 2048 values of codes is infinite or NaN, the first at [0, 1, 0, 1]";
        assert!(found == rules && messages.iter().all(|message| message.contains(part)), "{messages:?}");
    }
}

/// The largest scales of EXL2 must be finite, and its order of the columns a permutation.
#[test]
fn tensors_of_exl2_are_checked() {
    let room = Room::new();
    let of_scale = "tensor \"m.q_scale_max\": 1 of 2 scales of scales is infinite or NaN, the first at [1], and so are \
                    values of \"m.weight\"";
    let of_order =
        "tensor \"m.q_weight\" (EXL2): a list that is not a permutation (q_invperm: 7 at 15 of 16 occurs twice)";
    for (scale, last, rules, part) in [
        ([0, 0x3c], 15, &[""; 0][..], ""),
        ([0, 0x7e], 15, &["error scale"], of_scale),
        ([0, 0x3c], 7, &["warning companion"], of_order),
    ] {
        let tensors: [Tensor; 5] = [
            ("m.q_weight", Dtype::I32, &[2, 32], vec![0x35; 256]),
            ("m.q_scale", Dtype::I32, &[2, 4], vec![0x11; 32]),
            ("m.q_groups", Dtype::I16, &[4], vec![4, 0, 0, 0, 3, 0, 1, 0]),
            ("m.q_scale_max", Dtype::F16, &[2], [[0, 0x3c], scale].concat()),
            ("m.q_invperm", Dtype::I32, &[16], ints((0..15).chain([last]))),
        ];
        write(&room, "m", r#"{"quantization_config": {"quant_method": "exl2"}}"#, &tensors);
        let (found, messages) = found(&room, "--values m");
        assert!(found == rules && messages.iter().all(|message| message.contains(part)), "{found:?} {messages:?}");
    }
}

/// A scale or a zero point that is not finite spoils the values of its group.
#[test]
fn scales_and_zero_points_of_hqq_are_checked() {
    let room = Room::new();
    let hqq = |scale: f32, zero: f32| -> Vec<Tensor> {
        vec![
            ("m.W_q", Dtype::U8, &[2, 4], vec![0x21; 8]),
            ("m.scale", Dtype::F32, &[4, 1], floats(&[1.0, scale, 1.0, 1.0])),
            ("m.zero", Dtype::F32, &[4, 1], floats(&[0.0, zero, 0.0, 0.0])),
            ("m.nbits", Dtype::I32, &[], ints([4])),
            ("m.group_size", Dtype::I32, &[], ints([4])),
            ("m.axis", Dtype::I32, &[], ints([1])),
            ("m.shape", Dtype::I64, &[2], [2i64, 8].iter().flat_map(|dim| dim.to_le_bytes()).collect()),
            ("m.packing", Dtype::U8, &[7], b"4bit_u8".to_vec()),
        ]
    };
    let infinite = f32::INFINITY;
    for (scale, zero, rules, part) in [
        (1.0, 0.5, &[""; 0][..], ""),
        (infinite, 0.5, &["error scale"], "tensor \"m.scale\": 1 of 4 scales is infinite or NaN, the first at [1, 0]"),
        (
            1.0,
            f32::NAN,
            &["error scale"],
            "tensor \"m.zero\": 1 of 4 zero points is infinite or NaN, the first at [1, 0]",
        ),
        (0.0, 0.0, &["note zero-scale"], "tensor \"m.scale\": 1 of 4 scales is zero"),
    ] {
        write(&room, "m", r#"{"quantization_config": {"quant_method": "hqq"}}"#, &hqq(scale, zero));
        let (found, messages) = found(&room, "--values m");
        assert!(found == rules && messages.iter().all(|message| message.contains(part)), "{messages:?}");
    }
}
