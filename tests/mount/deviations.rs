//! `weightfs diff --values`: errors that match those of NumPy, whatever the scheme, the format and the dtype.

use crate::quantized::write_case;
use crate::support::{Scene, WEIGHTFS, python, run_ok};
use crate::vectors::cases;
use safetensors::Dtype;
use serde_json::{Value, json};
use std::fs;
use std::path::Path;

/// Runs `deviations.py`.
fn script(action: &str, argument: &Path) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/deviations.py");
    run_ok(python().to_str().unwrap(), [script.as_path(), action.as_ref(), WEIGHTFS.as_ref(), argument])
}

#[test]
fn errors_of_every_scheme_match_numpy() {
    let scene = Scene::new();
    let cases = cases();
    let mut jobs = Vec::new();
    for case in &cases {
        let [one, sharded] = ["one", "sharded"].map(|kind| scene.path(format!("{}/{kind}", case.name)));
        write_case(&one, case, false);
        write_case(&sharded, case, true);
        let expected = &case.expected.tensors[0];
        let values = scene.path(format!("{}/values", case.name));
        fs::write(&values, &expected.data).unwrap();
        let (name, shape) = (&expected.name, &expected.shape);
        // Biases, and a scale of the cache of keys.
        let is_other = |name: &str| ["bias", "k_scale"].iter().any(|other| name.ends_with(other));
        let others = case.file.tensors.iter().filter(|tensor| is_other(&tensor.name)).count();
        jobs.push(json!({
            "one": one, "sharded": sharded, "values": values, "name": name, "shape": shape, "others": others,
        }));
    }
    let list = scene.path("jobs.json");
    fs::write(&list, json!(jobs).to_string()).unwrap();
    let empty = cases.iter().filter(|case| case.expected.tensors[0].data.is_empty()).count();
    assert_eq!(script("schemes", &list), format!("{} models differ\n", cases.len() - empty));
}

#[test]
fn errors_of_large_tensors_do_not_depend_on_the_number_of_cores() {
    let scene = Scene::new();
    assert_eq!(script("large", scene.dir.path()), "2 tensors differ\n");
}

/// Two models with every kind of difference between numbers.
fn scene() -> Scene {
    let scene = Scene::new();
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let brains = |values: &[f32]| {
        values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect::<Vec<u8>>()
    };
    let doubles = |values: &[f64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let (nan, inf, odd) = (f32::NAN, f32::INFINITY, (1i64 << 53) + 1);
    let integers = [odd, 7].map(i64::to_le_bytes).concat();
    scene.model(
        "a.safetensors",
        &[
            ("bits", Dtype::U8, &[3], vec![1, 2, 3]),
            ("complex", Dtype::C64, &[2], floats(&[1.0, 2.0, 0.0, 0.0])),
            ("equal", Dtype::F32, &[3], floats(&[1.5, -0.0, nan])),
            ("gone", Dtype::BF16, &[3], brains(&[0.0; 3])),
            ("ids", Dtype::I64, &[2], integers),
            ("part", Dtype::C64, &[1], vec![0; 8]),
            ("shape", Dtype::F32, &[2], floats(&[0.0; 2])),
            ("special", Dtype::F32, &[4], floats(&[nan, inf, 1.0, 0.0])),
            ("w", Dtype::F32, &[2, 2], floats(&[1.0, 2.0, 3.0, 4.0])),
            ("zeros", Dtype::F32, &[2], floats(&[0.0; 2])),
        ],
        &[("format", "pt")],
    );
    scene.model(
        "b.safetensors",
        &[
            ("bits", Dtype::U8, &[3], vec![1, 2, 3]),
            ("complex", Dtype::C64, &[2], floats(&[1.0, 2.0, 3.0, 4.0])),
            ("equal", Dtype::BF16, &[3], brains(&[1.5, 0.0, -nan])),
            ("ids", Dtype::F64, &[2], doubles(&[odd as f64, 7.0])),
            ("new", Dtype::I8, &[4], vec![0; 4]),
            ("part", Dtype::F32, &[1], vec![0; 4]),
            ("shape", Dtype::F32, &[2, 1], floats(&[0.0; 2])),
            ("special", Dtype::F32, &[4], floats(&[nan, -inf, nan, 0.0])),
            ("w", Dtype::BF16, &[2, 2], brains(&[1.0, 2.0, 3.0, 5.0])),
            ("zeros", Dtype::BF16, &[2], brains(&[0.0, 2.0])),
        ],
        &[("format", "np"), ("title", "x")],
    );
    scene
}

const TEXT: &str = "\
a.safetensors  10 tensors, 26 parameters, 109 B
b.safetensors  10 tensors, 27 parameters, 85 B

values: 5 different, 2 equal, 2 not compared, 1 only in a, 1 only in b

TENSOR                A     B   REL RMS    RMS  MAX ABS    COSINE
special             F32   F32         0      0        0         -
zeros               F32  BF16       inf   1.41        2         -
complex             C64   C64      2.24   3.54        5  0.408248
w                   F32  BF16     0.183    0.5        1  0.993999
ids                 I64   F64  1.11e-16  0.707        1  1.000000
total of 5 tensors             6.18e-16   1.68        5  1.000000

- gone  BF16 [3], 6 B
+ new  I8 [4], 4 B
? part  not compared: only one of them is complex
? shape  not compared: the shapes differ
! special  NaN: 1 in a, 2 in b; infinite: 1 in a, 1 in b; 3 elements excluded from the errors, 2 of them differ
";

#[test]
fn text_json_and_markdown_report_the_same_errors() {
    let scene = scene();
    for options in ["--values", "--data --values"] {
        let output = scene.sh(&format!("weightfs diff {options} a.safetensors b.safetensors"));
        assert_eq!((output.code, &output.out[..], &output.err[..]), (1, TEXT, ""));
    }
    let output = scene.sh("weightfs diff --values --json a.safetensors b.safetensors");
    let report: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((output.code, &report["same"]), (1, &json!(false)));
    assert_eq!(report["a"], json!({"source": "a.safetensors", "tensors": 10, "elements": 26, "nbytes": 109}));
    let values = &report["values"];
    assert_eq!(values["equal"], 2);
    assert_eq!(values["added"], json!([{"name": "new", "shape": [4], "dtype": "I8", "nbytes": 4}]));
    assert_eq!(values["removed"], json!([{"name": "gone", "shape": [3], "dtype": "BF16", "nbytes": 6}]));
    let not_compared = [("part", "only one of them is complex"), ("shape", "the shapes differ")];
    let not_compared = not_compared.map(|(name, reason)| json!({"name": name, "reason": reason}));
    assert_eq!(values["not_compared"], json!(not_compared));
    let different = values["different"].as_array().unwrap();
    let names: Vec<&str> = different.iter().map(|entry| entry["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["special", "zeros", "complex", "w", "ids"]);
    let special = json!({
        "name": "special", "shape": [4], "a": {"dtype": "F32", "nbytes": 16}, "b": {"dtype": "F32", "nbytes": 16},
        "elements": 4, "elements_different": 2, "max_abs": 0.0, "rms": 0.0, "relative_rms": 0.0, "cosine": null,
        "not_finite": 3, "not_finite_different": 2, "nan": {"a": 1, "b": 2}, "infinite": {"a": 1, "b": 1},
    });
    assert_eq!(different[0], special);
    let numbers = |entry: &Value| ["max_abs", "rms", "relative_rms", "cosine"].map(|key| entry[key].clone());
    assert_eq!(numbers(&different[1]), [json!(2.0), json!(2f64.sqrt()), Value::Null, Value::Null]);
    assert_eq!(numbers(&different[3])[..3], [json!(1.0), json!(0.5), json!((1f64 / 30.0).sqrt())]);
    let total = &values["total"];
    assert_eq!(
        (&total["tensors"], &total["elements"], &total["elements_different"]),
        (&json!(5), &json!(14), &json!(6))
    );
    let markdown = scene.sh("weightfs diff --values --markdown a.safetensors b.safetensors").out;
    let begin = "# `a.safetensors` and `b.safetensors`\n\n| | a | b |\n|---|---|---|\n";
    assert!(markdown.starts_with(begin), "{markdown}");
    let end = "\n\n5 different, 2 equal, 2 not compared, 1 only in a, 1 only in b

| tensor | a | b | relative RMS | RMS | max abs | cosine |
|---|---|---|---|---|---|---|
| `special` | F32 | F32 | 0 | 0 | 0 | - |
| `zeros` | F32 | BF16 | inf | 1.41 | 2 | - |
| `complex` | C64 | C64 | 2.24 | 3.54 | 5 | 0.408248 |
| `w` | F32 | BF16 | 0.183 | 0.5 | 1 | 0.993999 |
| `ids` | I64 | F64 | 1.11e-16 | 0.707 | 1 | 1.000000 |
| total of 5 tensors |  |  | 6.18e-16 | 1.68 | 5 | 1.000000 |

| | tensor | |
|---|---|---|
| removed | `gone` | `BF16 [3], 6 B` |
| added | `new` | `I8 [4], 4 B` |
| not compared | `part` | not compared: only one of them is complex |
| not compared | `shape` | not compared: the shapes differ |
| not finite | `special` | NaN: 1 in a, 2 in b; infinite: 1 in a, 1 in b; 3 elements excluded from the errors, 2 of them differ |
";
    assert!(markdown.ends_with(end), "{markdown}");
}

#[test]
fn exit_code_is_0_if_all_values_are_equal() {
    let scene = scene();
    let unknown = |name, byte| {
        let header = r#"{"t":{"dtype":"X9","shape":[1],"data_offsets":[0,1]}}"#;
        scene.raw(name, header.as_bytes(), &[byte]);
    };
    unknown("x.safetensors", 1);
    unknown("y.safetensors", 1);
    unknown("z.safetensors", 2);
    scene.ok("cp a.safetensors copy.safetensors && ln a.safetensors hard.safetensors");
    // Dtypes, metadata and names of files do not count.
    scene.ok("weightfs export --force --only equal a.safetensors e.safetensors");
    scene.ok("weightfs export --force --only equal b.safetensors f.safetensors");
    scene.ok("weightfs export --force --only w a.safetensors w.safetensors");
    scene.ok("mkdir old new && cp a.safetensors old/m.safetensors && cp a.safetensors new/m.safetensors");
    scene.ok("cp w.safetensors old/n.safetensors && cp e.safetensors new/n.safetensors");
    let table = [
        ("a.safetensors a.safetensors", 0, "values: 0 different, 10 equal\n"),
        ("a.safetensors copy.safetensors", 0, "values: 0 different, 10 equal\n"),
        ("a.safetensors hard.safetensors", 0, "values: 0 different, 10 equal\n"),
        ("e.safetensors f.safetensors", 0, "values: 0 different, 1 equal\n"),
        ("e.safetensors a.safetensors", 1, "values: 0 different, 1 equal, 9 only in b\n"),
        ("e.safetensors w.safetensors", 1, "; no name is in both models, and names are not translated\n"),
        ("x.safetensors y.safetensors", 0, "values: 0 different, 1 equal\n"),
        ("x.safetensors z.safetensors", 1, "? t  not compared: dtype \"X9\" is unknown\n"),
        ("old new", 1, "models: 0 added, 0 removed, 1 changed, 1 unchanged\n\nold/n "),
        ("--json old old", 0, "\"same\": true"),
    ];
    for (line, code, text) in table {
        let output = scene.sh(&format!("weightfs diff --values {line}"));
        assert!(output.code == code && output.out.contains(text), "{line}: {output:?}");
    }
    let output = scene.sh("weightfs diff --values a.safetensors absent");
    assert!(output.code == 2 && output.err.starts_with("weightfs: "), "{output:?}");
}

#[test]
fn table_fits_a_terminal() {
    let scene = Scene::new();
    let name = format!("model.layers.10.{}.weight", "block_sparse_moe.experts.7".repeat(4));
    scene.model("a.safetensors", &[(&name, Dtype::F32, &[1], 1f32.to_le_bytes().to_vec())], &[]);
    scene.model("b.safetensors", &[(&name, Dtype::F16, &[1], vec![0, 0])], &[]);
    let line = "script -qec 'stty rows 25 cols 80; weightfs diff --values a.safetensors b.safetensors' /dev/null";
    let shown = scene.sh(line).out;
    let row = shown.lines().find(|line| line.starts_with("model.lay")).unwrap().trim_end();
    assert!(row.chars().count() <= 80 && row.contains('…') && row.contains("  F32  F16 "), "{shown}");
    // A pipe gets the whole name.
    assert!(scene.sh("weightfs diff --values a.safetensors b.safetensors").out.contains(&name));
}

#[test]
fn what_is_not_dequantized_is_reported() {
    let scene = Scene::new();
    let names = ["w.weight", "w.weight_scale_inv"];
    let tensors = [
        (names[0], Dtype::F8_E4M3, &[2, 2][..], vec![1, 2, 3, 4]),
        // No scheme has scales of this shape.
        (names[1], Dtype::F32, &[7, 1, 3], vec![0; 84]),
    ];
    scene.model("a.safetensors", &tensors, &[]);
    scene.ok("cp a.safetensors b.safetensors");
    let output = scene.sh("weightfs diff --values a.safetensors b.safetensors");
    assert_eq!(output.code, 0);
    for file in ["a", "b"] {
        let begin = format!("{file}.safetensors: not dequantized: ");
        let line = output.err.lines().find(|line| line.contains(&begin)).unwrap_or_else(|| panic!("{output:?}"));
        assert!(line.ends_with("; the stored numbers are compared"), "{line}");
    }
    let output = scene.sh("weightfs diff --values --json a.safetensors b.safetensors");
    let report: Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(report["a"]["not_dequantized"].as_array().unwrap().len(), 1);
}

#[test]
fn weights_are_compared_with_their_companions() {
    let scene = Scene::new();
    let codes = ("w.weight", Dtype::F8_E4M3, &[2, 2][..], vec![0x38, 0x40, 0xb8, 0]);
    let scale = |name, scale: f32| (name, Dtype::F32, &[][..], scale.to_le_bytes().to_vec());
    let brains = [1f32, 2.0, -1.0, 0.0].map(|value| half::bf16::from_f32(value).to_le_bytes()).concat();
    scene.model("one.safetensors", &[codes.clone(), scale("w.weight_scale", 1.0)], &[]);
    scene.model("two.safetensors", &[codes.clone(), scale("w.weight_scale", 2.0)], &[]);
    let inputs = [codes, scale("w.weight_scale", 1.0), scale("w.input_scale", 3.0)];
    scene.model("inputs.safetensors", &inputs, &[]);
    // Here the scale is a tensor like any other.
    let plain = [("w.weight", Dtype::BF16, &[2, 2][..], brains), scale("w.weight_scale", 1.0)];
    scene.model("plain.safetensors", &plain, &[]);
    let table = [
        ("one two", 1, "w.weight           F8_E4M3  F8_E4M3        1  1.22        2  1.000000\n"),
        ("one inputs", 0, "values: 0 different, 1 equal\n"),
        ("plain one", 1, "values: 0 different, 1 equal, 1 only in a\n\n- w.weight_scale  F32 [], 4 B\n"),
        ("inputs plain", 1, "values: 0 different, 1 equal, 1 only in b\n\n+ w.weight_scale  F32 [], 4 B\n"),
    ];
    for (models, code, text) in table {
        let (a, b) = models.split_once(' ').unwrap();
        let output = scene.sh(&format!("weightfs diff --values {a}.safetensors {b}.safetensors"));
        assert!(output.code == code && output.out.contains(text) && output.err.is_empty(), "{models}: {output:?}");
    }
    let output = scene.sh("weightfs diff --values --json one.safetensors plain.safetensors");
    let report: Value = serde_json::from_str(&output.out).unwrap();
    let tensors = ["a", "b"].map(|side| report[side]["tensors"].as_u64().unwrap());
    assert_eq!(tensors, [1, 2]);
}
