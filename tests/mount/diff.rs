//! `weightfs diff`: its reports, its exit codes, and statistics that match those of NumPy.

use crate::support::{Scene, pattern, python, real_model, run_ok};
use crate::views::zoo;
use safetensors::Dtype;
use std::path::Path;

/// Two models with every kind of difference, and beside them copies, links, small models and invalid files.
fn scene() -> Scene {
    let scene = Scene::new();
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let same = ("layers.0.same", Dtype::U8, &[5000][..], pattern(5000));
    scene.model(
        "a.safetensors",
        &[
            same.clone(),
            ("layers.0.w", Dtype::F32, &[2, 2], floats(&[1.0, 2.0, 3.0, f32::NAN])),
            ("gone", Dtype::BF16, &[3], pattern(6)),
            ("head", Dtype::BF16, &[2, 3], pattern(12)),
        ],
        &[("format", "pt"), ("title", "first"), ("old", "1")],
    );
    scene.model(
        "b.safetensors",
        &[
            same.clone(),
            ("layers.0.w", Dtype::F32, &[2, 2], floats(&[1.0, 2.5, -3.0, 1.0])),
            ("new", Dtype::I8, &[4], pattern(4)),
            ("head", Dtype::F16, &[3, 3], pattern(18)),
        ],
        &[("format", "pt"), ("title", "sec\u{1b}[31mond"), ("added", "line\nline")],
    );
    scene.model("data.safetensors", &[("t", Dtype::U8, &[3], vec![1, 2, 3])], &[]);
    scene.model("other.safetensors", &[("t", Dtype::U8, &[3], vec![1, 2, 4])], &[]);
    scene.ok("cp a.safetensors copy.safetensors && ln a.safetensors hard.safetensors && ln -s a.safetensors soft");
    scene.ok("mkdir several one && cp data.safetensors one && cp data.safetensors other.safetensors several");
    scene.ok("echo no model at all >text.safetensors && head -c 900 a.safetensors >cut.safetensors");
    scene
}

#[test]
fn exit_code_is_0_if_same_1_if_different_2_on_error() {
    let scene = scene();
    let table = [
        ("diff a.safetensors a.safetensors", 0, "tensors: 0 added, 0 removed, 0 changed, 4 unchanged\n"),
        ("diff a.safetensors copy.safetensors", 0, "metadata: 0 added, 0 removed, 0 changed, 3 unchanged\n"),
        ("diff --data a.safetensors copy.safetensors", 0, "data: 0 different, 4 equal\n"),
        ("diff --data a.safetensors hard.safetensors", 0, "5.03 kB of 5.03 kB are shared on disk and were not read\n"),
        ("diff --data soft hard.safetensors", 0, "were not read\n"),
        ("diff one data.safetensors --data", 0, "data: 0 different, 1 equal\n"),
        ("diff a.safetensors b.safetensors", 1, "tensors: 1 added, 1 removed, 1 changed, 2 unchanged\n"),
        ("diff data.safetensors other.safetensors", 0, "1 unchanged\n"),
        ("diff data.safetensors other.safetensors --data", 1, "data: 1 different, 0 equal\n"),
        ("diff --json data.safetensors other.safetensors --data", 1, "\"max_abs\": 1.0"),
        ("diff --markdown data.safetensors other.safetensors --data", 1, "| `t` | 1 of 3 elements, "),
        ("diff --lenient a.safetensors cut.safetensors", 1, ""),
        ("diff --help", 0, "Usage: weightfs diff [OPTIONS] <A> <B>"),
    ];
    for (line, code, text) in table {
        let output = scene.sh(&format!("weightfs {line}"));
        assert!(output.code == code && output.out.contains(text), "{line}: {output:?}");
        assert!(output.err.is_empty() || line.contains("--lenient"), "{line}: {output:?}");
    }
    let table = [
        ("diff a.safetensors absent", "absent: No such file or directory"),
        ("diff text.safetensors a.safetensors", "text.safetensors: "),
        ("diff a.safetensors cut.safetensors", "cut.safetensors: truncated"),
        ("diff a.safetensors several", "several: a directory of 2 models; name one of them"),
        ("diff a.safetensors /dev/null", "/dev/null: a character device, not a regular file"),
        ("diff a.safetensors", "were not provided: <B>"),
        ("diff a.safetensors a.safetensors --json --markdown", "cannot be used with"),
        ("diff a.safetensors a.safetensors >/dev/full", "standard output: No space left on device"),
    ];
    for (line, text) in table {
        let output = scene.sh(&format!("weightfs {line}"));
        assert!(output.code == 2 && output.out.is_empty() && output.err.contains(text), "{line}: {output:?}");
        assert!(output.err.starts_with("weightfs: ") && output.err.lines().count() == 1, "{line}: {output:?}");
    }
}

#[test]
fn text_json_and_markdown_report_the_same_differences() {
    let scene = scene();
    let text = r#"a.safetensors  4 tensors, 5.03 kB
b.safetensors  4 tensors, 5.04 kB

tensors: 1 added, 1 removed, 1 changed, 2 unchanged
- gone  BF16 [3], 6 B
+ new  I8 [4], 4 B
~ head  BF16 [2, 3], 12 B -> F16 [3, 3], 18 B

metadata: 1 added, 1 removed, 1 changed, 1 unchanged
- "old"  "1"
+ "added"  "line\nline"
~ "title"  "first" -> "sec\u{1b}[31mond"

data: 1 different, 1 equal, 1 not compared
~ layers.0.w  3 of 4 elements, BITS bits; largest difference 6, relative 2; 1 infinite or NaN in either model
? head  not compared: the shapes differ
"#;
    let bits = [(2f32, 2.5f32), (3.0, -3.0), (f32::NAN, 1.0)].map(|(a, b)| (a.to_bits() ^ b.to_bits()).count_ones());
    let bits: u32 = bits.iter().sum();
    let output = scene.sh("weightfs diff --data a.safetensors b.safetensors");
    assert_eq!(output.out, text.replace("BITS", &bits.to_string()));
    let output = scene.sh("weightfs diff --data --json a.safetensors b.safetensors");
    let json: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    let expected = serde_json::json!({
        "same": false,
        "a": {"source": "a.safetensors", "tensors": 4, "nbytes": 5034},
        "b": {"source": "b.safetensors", "tensors": 4, "nbytes": 5038},
        "tensors": {
            "added": [{"name": "new", "dtype": "I8", "shape": [4], "nbytes": 4}],
            "removed": [{"name": "gone", "dtype": "BF16", "shape": [3], "nbytes": 6}],
            "changed": [{
                "name": "head",
                "a": {"dtype": "BF16", "shape": [2, 3], "nbytes": 12},
                "b": {"dtype": "F16", "shape": [3, 3], "nbytes": 18},
            }],
            "alike": 2,
        },
        "metadata": {
            "added": {"added": "line\nline"},
            "removed": {"old": "1"},
            "changed": {"title": {"a": "first", "b": "sec\u{1b}[31mond"}},
            "alike": 1,
        },
        "data": {
            "equal": 1,
            "equal_as": {},
            "nbytes": 5016,
            "shared": 0,
            "different": [{
                "name": "layers.0.w", "dtype": "F32", "shape": [2, 2], "nbytes": 16, "elements": 4,
                "bits_different": bits, "elements_different": 3, "not_finite": 1, "max_abs": 6.0, "max_rel": 2.0,
            }],
            "not_compared": [{"name": "head", "reason": "the shapes differ"}],
        },
    });
    assert_eq!(json, expected);
    let output = scene.sh("weightfs diff --json a.safetensors b.safetensors");
    assert!(serde_json::from_str::<serde_json::Value>(&output.out).unwrap().get("data").is_none());
    let markdown = r#"# `a.safetensors` and `b.safetensors`

| | a | b |
|---|---|---|
| source | `a.safetensors` | `b.safetensors` |
| size | 4 tensors, 5.03 kB | 4 tensors, 5.04 kB |

## Tensors

1 added, 1 removed, 1 changed, 2 unchanged

| | tensor | dtype, shape and size |
|---|---|---|
| removed | `gone` | `BF16 [3], 6 B` |
| added | `new` | `I8 [4], 4 B` |
| changed | `head` | `BF16 [2, 3], 12 B -> F16 [3, 3], 18 B` |

## Metadata

1 added, 1 removed, 1 changed, 1 unchanged

| | key | value |
|---|---|---|
| removed | `old` | `"1"` |
| added | `added` | `"line\nline"` |
| changed | `title` | `"first" -> "sec\u{1b}[31mond"` |
"#;
    assert_eq!(scene.sh("weightfs diff --markdown a.safetensors b.safetensors").out, markdown);
}

#[test]
fn tensors_of_different_dtypes_are_compared_by_value() {
    let scene = Scene::new();
    let floats = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let brains = |values: &[f32]| {
        values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect::<Vec<u8>>()
    };
    let integers = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
    let odd = (1i64 << 53) + 1;
    let complex = ("complex", Dtype::C64, &[1][..], vec![0; 8]);
    scene.model(
        "a.safetensors",
        &[
            complex,
            ("equal", Dtype::F32, &[2], floats(&[1.5, -2.0])),
            ("ids", Dtype::I64, &[2], integers(&[odd, 7])),
            ("near", Dtype::F32, &[2, 2], floats(&[1.0, 1.001, f32::NAN, 4.0])),
            ("same", Dtype::I64, &[1], integers(&[odd])),
            ("shape", Dtype::F32, &[2], floats(&[0.0, 0.0])),
            ("wide", Dtype::F64, &[1], 0.1f64.to_le_bytes().to_vec()),
        ],
        &[],
    );
    scene.model(
        "b.safetensors",
        &[
            ("complex", Dtype::F32, &[1], vec![0; 4]),
            ("equal", Dtype::BF16, &[2], brains(&[1.5, -2.0])),
            ("ids", Dtype::F64, &[2], [odd as f64, 7.0].map(f64::to_le_bytes).concat()),
            ("near", Dtype::BF16, &[2, 2], brains(&[1.0, 1.001, 3.0, 4.0])),
            ("same", Dtype::U64, &[1], integers(&[odd])),
            ("shape", Dtype::BF16, &[2, 1], brains(&[0.0, 0.0])),
            ("wide", Dtype::F32, &[1], floats(&[0.1])),
        ],
        &[],
    );
    let output = scene.sh("weightfs diff --data a.safetensors b.safetensors");
    let (_, data) = output.out.split_once("\n\ndata: ").unwrap();
    let expected = "\
3 different, 2 equal (1 exactly, 1 as float32), 2 not compared
~ ids  I64 and F64, exactly: 1 of 2 elements; largest difference 1, relative 1.110e-16
~ wide  F64 and F32, as float64: 1 of 1 element; largest difference 1.490e-9, relative 1.490e-8
~ near  F32 and BF16, as float32: 2 of 4 elements; largest difference 0.001, relative 0.000999; 1 infinite or NaN in either model
? complex  not compared: only one of them is complex
? shape  not compared: the shapes differ
";
    assert_eq!((output.code, data), (1, expected));
    let output = scene.sh("weightfs diff --data --json a.safetensors b.safetensors");
    let json: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    let data = &json["data"];
    assert_eq!((&data["equal"], &data["equal_as"]), (&2.into(), &serde_json::json!({"exact": 1, "float32": 1})));
    let not_compared = serde_json::json!([
        {"name": "complex", "reason": "only one of them is complex"}, {"name": "shape", "reason": "the shapes differ"},
    ]);
    assert_eq!(data["not_compared"], not_compared);
    let near = &data["different"][2];
    let named = ["name", "dtype", "compared_as", "elements", "elements_different", "not_finite", "bits_different"];
    let found: Vec<_> = named.iter().map(|key| near[key].clone()).collect();
    assert_eq!(serde_json::json!(found), serde_json::json!(["near", "F32", "float32", 4, 2, 1, null]));
    assert_eq!(near["b"], serde_json::json!({"dtype": "BF16", "shape": [2, 2], "nbytes": 8}));
    let output = scene.sh("weightfs diff --data --markdown a.safetensors b.safetensors");
    assert!(output.out.contains("| `near` | F32 and BF16, as float32: 2 of 4 elements; "), "{output:?}");
    assert!(output.out.ends_with("| `shape` | not compared: the shapes differ |\n"), "{output:?}");
    // Nothing that is not compared counts as equal.
    let output = scene.sh("weightfs export --force --only shape a.safetensors c && weightfs export --force --only shape b.safetensors d && weightfs diff --data c d");
    assert!(output.code == 1 && output.out.contains("\ndata: 0 different, 0 equal, 1 not compared\n"), "{output:?}");
}

#[test]
fn statistics_match_numpy() {
    let scene = Scene::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/diff.py");
    let weightfs = Path::new(crate::support::WEIGHTFS);
    for (source, tensors) in [(zoo(&scene), 25), (real_model("silero_vad_16k"), 15)] {
        let changed = scene.path("changed.safetensors");
        let output = run_ok(python().to_str().unwrap(), [&script, weightfs, &source, &changed]);
        // A tensor of a few bytes may stay unchanged.
        let differ: usize = output.strip_suffix(" tensors differ\n").unwrap().parse().unwrap();
        assert!((tensors - 3..=tensors).contains(&differ), "{output}");
    }
}

#[test]
fn datasets_and_sharded_models_are_compared_as_one_model() {
    let scene = Scene::new();
    let rows = |at: u8| vec![at; 3 * 4096];
    scene.mkdir("data");
    for (at, file) in ["data/x.safetensors", "data/y.safetensors"].iter().enumerate() {
        scene.model(file, &[("images", Dtype::U8, &[3, 4096], rows(at as u8))], &[]);
    }
    let bytes = scene.path("data/x.safetensors").metadata().unwrap().len();
    let listed = |file| serde_json::json!({"shard_path": file, "samples_count": 3, "bytes": bytes});
    let manifest =
        serde_json::json!({"format_version": "1.0", "shards": [listed("x.safetensors"), listed("y.safetensors")]});
    std::fs::write(scene.path("data/dataset_manifest.json"), manifest.to_string()).unwrap();
    let whole = [rows(0), rows(1)].concat();
    scene.model("whole.safetensors", &[("images", Dtype::U8, &[6, 4096], whole.clone())], &[]);
    assert!(scene.ok("weightfs diff --data data whole.safetensors").ends_with("data: 0 different, 1 equal\n"));
    let mut other = whole;
    other[4 * 4096 + 5] = 9;
    scene.model("other.safetensors", &[("images", Dtype::U8, &[6, 4096], other)], &[]);
    let output =
        scene.sh("weightfs diff --data data whole.safetensors >/dev/null; weightfs diff --data other.safetensors data");
    assert!(
        output.code == 1 && output.out.contains("images  1 of 24,576 elements, 1 bit; largest difference 8"),
        "{output:?}"
    );
    scene.mkdir("sharded");
    scene.model("sharded/1.safetensors", &[("a", Dtype::U8, &[2], vec![1, 2])], &[("k", "v")]);
    scene.model("sharded/2.safetensors", &[("b", Dtype::U8, &[3], vec![3, 4, 5])], &[("k", "v")]);
    let index = r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
    std::fs::write(scene.path("sharded/model.safetensors.index.json"), index).unwrap();
    let tensors = [("b", Dtype::U8, &[3][..], vec![3, 4, 5]), ("a", Dtype::U8, &[2], vec![1, 2])];
    scene.model("one.safetensors", &tensors, &[("k", "v")]);
    scene.ok("weightfs diff --data sharded one.safetensors && weightfs diff --data one.safetensors sharded/model.safetensors.index.json");
}

#[test]
fn report_has_no_terminal_control_characters() {
    let scene = Scene::new();
    let bad = "\u{1b}]0;title\u{7}\u{9b}2J\n|`\u{202e}";
    scene.model(
        "a.safetensors",
        &[(bad, Dtype::U8, &[1], vec![1]), ("gone\r", Dtype::U8, &[1], vec![1])],
        &[(bad, bad)],
    );
    scene.model(
        "b.safetensors",
        &[(bad, Dtype::U8, &[1], vec![2]), ("new\u{8}", Dtype::U8, &[1], vec![1])],
        &[(bad, "")],
    );
    let header = "{\"t\":{\"dtype\":\"\u{9b}2J\",\"shape\":[1],\"data_offsets\":[0,1]}}";
    scene.raw("c.safetensors", header.as_bytes(), b"x");
    let is_control = |char: char| char != '\n' && (char.is_control() || char == '\u{202e}');
    for line in [
        "a.safetensors b.safetensors --data",
        "a.safetensors b.safetensors --markdown --data",
        "a.safetensors c.safetensors",
        "a.safetensors b.safetensors --values",
        "a.safetensors b.safetensors --values --markdown",
        "a.safetensors b.safetensors --values --json",
        "a.safetensors c.safetensors --values",
    ] {
        let output = scene.sh(&format!("weightfs diff {line}"));
        assert!(
            output.code == 1 && !output.out.contains(is_control) && !output.err.contains(is_control),
            "{line}: {output:?}"
        );
    }
    let output = scene.sh("weightfs diff --json --data a.safetensors b.safetensors");
    assert!(!output.out.contains(is_control), "{output:?}");
    let json: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!(json["data"]["different"][0]["name"], bad);
}

#[test]
fn closed_pipe_is_not_an_error() {
    let scene = Scene::new();
    // More output than a pipe buffer holds.
    let names: Vec<String> = (0..5000).map(|at| format!("model.layers.{at}.self_attn.q_proj.weight")).collect();
    let tensors: Vec<_> = names.iter().map(|name| (&name[..], Dtype::U8, &[0][..], vec![])).collect();
    scene.model("many.safetensors", &tensors, &[]);
    scene.model("none.safetensors", &[], &[]);
    for form in ["", "--json", "--markdown"] {
        let line = format!(
            "weightfs diff {form} many.safetensors none.safetensors | head -n 2 >/dev/null; echo ${{PIPESTATUS[0]}}"
        );
        assert_eq!(scene.ok(&format!("bash -c '{line}'")), "1\n", "{form}");
    }
}

#[test]
fn directories_of_models_are_compared_by_path() {
    let scene = scene();
    scene.ok(
        "mkdir -p old/sub new/sub && cp a.safetensors old/same.safetensors && cp a.safetensors new/same.safetensors",
    );
    scene.ok("cp data.safetensors old/sub/other.safetensors && cp other.safetensors new/sub/other.safetensors");
    scene.ok("cp a.safetensors old/sub/head.safetensors && cp b.safetensors new/sub/head.safetensors");
    scene.ok("cp data.safetensors old/gone.safetensors && cp data.safetensors new/sub/added.safetensors && echo x >new/readme.md");
    let output = scene.sh("weightfs diff old new");
    let (models, head) = output.out.split_once("\n\n").unwrap();
    assert_eq!(models, "models: 1 added, 1 removed, 1 changed, 2 unchanged\n- gone\n+ sub/added");
    assert!(output.code == 1 && head.starts_with("old/sub/head  4 tensors, "), "{output:?}");
    let output = scene.sh("weightfs diff --data --json old new");
    let json: serde_json::Value = serde_json::from_str(&output.out).unwrap();
    assert_eq!((&json["added"], &json["removed"]), (&serde_json::json!(["sub/added"]), &serde_json::json!(["gone"])));
    let same = |path: &str| json["models"][path]["same"].as_bool().unwrap();
    assert_eq!(["same", "sub/other", "sub/head"].map(same), [true, false, false]);
    assert!(
        scene.sh("weightfs diff --markdown old new").out.contains("\n| removed | `gone` |\n| added | `sub/added` |\n")
    );
    scene.ok("weightfs diff --data old old");
    scene.ok("echo text >new/sub/head.safetensors");
    let output = scene.sh("weightfs diff old new");
    assert!(output.code == 2 && output.err.starts_with("weightfs: "), "{output:?}");
}
