//! Quantized models: what `inspect` and `ls` say about weights and their companions.

use crate::pipes::on_terminal;
use crate::room::{Room, Tensor, floats};
use safetensors::Dtype;
use serde_json::{Value, json};

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
}
