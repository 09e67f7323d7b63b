//! `inspect`: the overview of a model, for people and as JSON.

use crate::pipes::{on_terminal, on_terminal_in};
use crate::room::{Room, Tensor};
use safetensors::Dtype;
use serde_json::json;

fn lora() -> Room {
    let room = Room::new();
    let tags = r#"{"10_cat": {"cat": 40, "fur": 9}}"#;
    let thumbnail = format!("data:image/jpeg;base64,{}", "A".repeat(4000));
    room.model(
        "lora.safetensors",
        &[
            ("lora_unet_a.lora_down.weight", Dtype::F16, &[8, 320], vec![0; 5120]),
            ("lora_unet_a.lora_up.weight", Dtype::F16, &[320, 8], vec![0; 5120]),
            ("lora_unet_a.alpha", Dtype::F32, &[], vec![0; 4]),
        ],
        &[
            ("modelspec.title", "Cats\u{1b}[31m"),
            ("modelspec.architecture", "stable-diffusion-v1/lora"),
            ("modelspec.sai_model_spec", "1.0.1"),
            ("modelspec.thumbnail", &thumbnail),
            ("modelspec.custom", "mine"),
            ("ss_network_dim", "8"),
            ("ss_network_alpha", "4.0"),
            ("ss_network_args", r#"{"conv_dim": "4"}"#),
            ("ss_network_dropout", "None"),
            ("ss_max_grad_norm", "1.0"),
            ("ss_dataset_dirs", r#"{"10_cat": {"n_repeats": 10, "img_count": 40}}"#),
            ("ss_tag_frequency", tags),
            ("ss_training_started_at", "1700000000.5"),
            ("ss_training_finished_at", "1700003725.25"),
            ("sshs_model_hash", "abc"),
            ("format", "pt"),
        ],
    );
    room
}

#[test]
fn page_summarizes_a_model() {
    let room = lora();
    let size = std::fs::metadata(room.path("lora.safetensors")).unwrap().len();
    let hash = room.ok("weightfs summary lora.safetensors");
    let hash = hash.trim_end().rsplit(',').next().unwrap();
    let out = room.ok("weightfs inspect lora.safetensors");
    let header = size - 10244;
    let expected = format!(
        r#"lora.safetensors: stable-diffusion-v1/lora, 5.12K parameters, F16, {:.1} kB
  Format           safetensors
  Size             {:.1} kB ({},{:03} bytes), {:.2} kB of it header
  Tensors          3
  Parameters       5.12K (5,121)
  Dtypes           F16 10.2 kB in 2 tensors
                   F32 4 B in 1 tensor
  Modules          lora_unet_a 10.2 kB in 3 tensors
  Largest          lora_unet_a.lora_down.weight  F16 [8, 320]  5.12 kB
  Structural hash  {hash}
ModelSpec
  Title              Cats\u{{1b}}[31m
  Architecture       stable-diffusion-v1/lora
  Thumbnail          data:image/jpeg;base64,AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA... (4.02 kB)
  ModelSpec version  1.0.1
  and 1 more key (--all)
Training (kohya sd-scripts)
  Rank                 8
  Alpha                4.0
  Network arguments    {{"conv_dim": "4"}}
  SHA-256 of the data  abc
  and 5 more keys (--all)
Training data
  Started   2023-11-14T22:13:20Z
  Finished  2023-11-14T23:15:25Z (took 1 h 02 min)
  Folders   10_cat: 40 images times 10
  Tags      2, most often cat (40), fur (9)
Metadata
  format  pt
"#,
        size as f64 / 1e3,
        size as f64 / 1e3,
        size / 1000,
        size % 1000,
        header as f64 / 1e3,
    );
    assert_eq!(out, expected);
    let all = room.ok("weightfs inspect --all lora.safetensors");
    for line in ["  Dropout              None", "  modelspec.custom   mine", "  ss_max_grad_norm           1.0"] {
        let (key, value) = line.trim().rsplit_once("  ").unwrap();
        assert!(all.lines().any(|l| l.trim().starts_with(key.trim()) && l.ends_with(value)), "{line}\n{all}");
    }
    assert!(!all.contains("--all"), "{all}");
    let tags = r#"  ss_tag_frequency         {"10_cat": {"cat": 40, "fur": 9}}"#;
    assert!(all.lines().any(|line| line == tags), "{all}");
    // Keys that cannot be summarized are counted, and a section without keys has no heading.
    room.model("few.safetensors", &[], &[("ss_bucket_info", "{")]);
    let out = room.ok("weightfs inspect few.safetensors");
    assert!(out.ends_with("Training (kohya sd-scripts)\n  and 1 more key (--all)\n"), "{out}");
    room.model("none.safetensors", &[], &[("ss_seed", "None")]);
    let out = room.ok("weightfs inspect none.safetensors");
    assert!(!out.contains("Training"), "{out}");
}

/// The first line of a page, without the size of the files.
fn first_line(room: &Room, source: &str) -> String {
    let out = room.ok(&format!("weightfs inspect {source}"));
    out.lines().next().unwrap().rsplit_once(", ").unwrap().0.to_owned()
}

#[test]
fn first_line_says_what_the_model_is() {
    let room = Room::new();
    let weights: [Tensor; 2] =
        [("a.w", Dtype::BF16, &[1000, 8], vec![0; 16000]), ("a.norm", Dtype::F32, &[8], vec![0; 32])];
    room.ok("mkdir plain bert sdxl odd peft");
    room.model("plain/model.safetensors", &weights, &[]);
    assert_eq!(first_line(&room, "plain"), "plain/model.safetensors: safetensors, 8.01K parameters, BF16");
    // The configuration beside the model names the network.
    for (dir, config, expected) in [
        ("bert", r#"{"model_type": "bert"}"#, "bert 8.01K"),
        ("sdxl", r#"{"_class_name": "UNet2DConditionModel"}"#, "UNet2DConditionModel 8.01K"),
        ("odd", r#"{"model_type": "a\u001b[31m"}"#, "safetensors, 8.01K parameters"),
        ("odd", r#"{"model_type": 7}"#, "safetensors, 8.01K parameters"),
        ("odd", "{", "safetensors, 8.01K parameters"),
    ] {
        room.model(&format!("{dir}/model.safetensors"), &weights, &[]);
        std::fs::write(room.path(&format!("{dir}/config.json")), config).unwrap();
        assert_eq!(first_line(&room, dir), format!("{dir}/model.safetensors: {expected}, BF16"), "{config}");
    }
    let summary = &room.json("weightfs inspect --json bert")[0]["summary"];
    assert_eq!((&summary["architecture"], &summary["size_label"]), (&json!("bert"), &json!(null)));
    assert_eq!((&summary["weights"], &summary["parameters"]), (&json!("BF16"), &json!(8008)));
    // A pipe instead of the configuration is not waited for.
    room.ok("rm odd/config.json; mkfifo odd/config.json");
    let output = room.sh("timeout 20 weightfs inspect odd");
    assert!(output.code == 0 && output.out.contains(": safetensors, 8.01K parameters, BF16"), "{output:?}");
    let factors: [Tensor; 2] = [
        ("base_model.model.q.lora_A.weight", Dtype::F32, &[4, 8], vec![0; 128]),
        ("base_model.model.q.lora_B.weight", Dtype::F32, &[8, 4], vec![0; 128]),
    ];
    room.model("peft/adapter_model.safetensors", &factors, &[]);
    let expected = "peft/adapter_model.safetensors: safetensors LoRA, 64 parameters, F32";
    assert_eq!(first_line(&room, "peft"), expected);
    assert_eq!(room.json("weightfs inspect --json peft")[0]["summary"]["lora"], true);
}

#[test]
fn first_line_fits_on_a_terminal() {
    let room = lora();
    let text = "stable-diffusion-v1/lora, 5.12K parameters, F16";
    let wide = on_terminal(&room, 80, "inspect lora.safetensors");
    assert!(wide.starts_with(&format!("lora.safetensors: {text}, ")), "{wide}");
    let narrow = on_terminal(&room, 50, "inspect lora.safetensors");
    assert!(narrow.starts_with(&format!("lora.safetensors:\n  {text},\n  15.1 kB\n  Format")), "{narrow}");
    assert!(narrow.lines().take(3).all(|line| line.len() <= 50), "{narrow}");
}

#[test]
fn terminal_shows_bars_and_a_pipe_does_not() {
    let room = Room::new();
    let weights: [Tensor; 3] = [
        ("b.x", Dtype::BF16, &[2000], vec![0; 4000]),
        ("a.x", Dtype::F32, &[250], vec![0; 1000]),
        ("c.x", Dtype::U8, &[1], vec![0]),
    ];
    room.model("m", &weights, &[]);
    for command in ["inspect m", "ls --totals m"] {
        let plain = room.ok(&format!("weightfs {command}"));
        assert!(plain.is_ascii() && !plain.contains('#'), "{plain}");
        // The locale of the tests is C.
        for (locale, full, quarter, least) in [
            ("", "#".repeat(24), "#".repeat(6), String::new()),
            ("LC_ALL=C.UTF-8 ", "█".repeat(24), "█".repeat(6), "▏".to_owned()),
            ("LC_ALL= LC_CTYPE=en_US.utf8 ", "█".repeat(24), "█".repeat(6), "▏".to_owned()),
        ] {
            let shown = on_terminal_in(&room, locale, 80, command);
            let of = |name: &str| -> Vec<String> {
                let rows = shown.lines().filter(|line| line.split_whitespace().any(|word| word == name));
                rows.map(|row| row.chars().filter(|char| "#█▏".contains(*char)).collect()).collect()
            };
            for (dtype, module, bar) in [("BF16", "b", &full), ("F32", "a", &quarter), ("U8", "c", &least)] {
                assert!(of(dtype).contains(bar) && of(module).contains(bar), "{dtype} {locale}\n{shown}");
            }
            let mut with_bars = shown.lines().filter(|line| line.ends_with(['#', '█', '▏']));
            assert!(with_bars.all(|line| line.chars().count() <= 80), "{shown}");
            assert!(!of("total").iter().any(|bar| !bar.is_empty()), "{shown}");
            // Without the bars, the lines are those of a pipe.
            let rows = shown.lines().map(|line| line.trim_end_matches(['#', '█', '▏']).trim_end().to_owned() + "\n");
            assert_eq!(rows.collect::<String>(), plain, "{locale}");
        }
    }
    let narrow = on_terminal(&room, 40, "ls --totals m");
    assert!(!narrow.contains('#'), "{narrow}");
}

#[test]
fn json_values_are_complete() {
    let room = lora();
    let [ref object] = room.json("weightfs inspect --json lora.safetensors")[..] else { panic!() };
    assert_eq!(object["metadata"]["modelspec.thumbnail"].as_str().unwrap().len(), 4023);
    assert_eq!(object["metadata"]["modelspec.title"], "Cats\u{1b}[31m");
    assert_eq!(object["metadata"].as_object().unwrap().len(), 16);
    assert_eq!((&object["kind"], &object["totals"]["parameters"]), (&json!("file"), &json!(5121)));
    assert_eq!(
        object["training"]["folders"],
        json!([{"name": "10_cat", "images": 40, "repeats": 10, "regularisation": false}])
    );
    assert_eq!((&object["training"]["seconds"], &object["left_out"]), (&json!(3725), &json!(0)));
    let data_start = object["files"][0]["data_start"].as_u64().unwrap();
    assert_eq!(object["files"][0]["nbytes"], data_start + 10244);
}

#[test]
fn models_of_several_files_are_summarized() {
    let room = Room::new();
    room.sharded("s");
    let out = room.ok("weightfs inspect s.safetensors.index.json");
    assert!(out.contains("  Format           safetensors, 2 shards by an index\n"), "{out}");
    assert!(
        out.contains("\nShards\n  s-00001-of-00002.safetensors  ")
            && out.contains(" in 1 tensor\nMetadata\n  format  pt\n"),
        "{out}"
    );
    room.dataset("set");
    let out = room.ok("weightfs inspect set");
    assert!(out.contains("safetensors, a dataset of 2 shards\n") && out.contains("  Parameters       12\n"), "{out}");
    // Several sources, one of them broken.
    room.ok("echo text >text.safetensors");
    let output = room.sh("weightfs inspect set text.safetensors s.safetensors.index.json");
    assert_eq!((output.code, output.err.lines().count()), (1, 1), "{output:?}");
    let titles = output.out.lines().filter(|line| line.contains(".json: "));
    let titles: Vec<&str> = titles.map(|line| line.rsplit_once(", ").unwrap().0).collect();
    let expected = [
        "set/dataset_manifest.json: safetensors dataset, 1 tensor, U8",
        "s.safetensors.index.json: safetensors, 9 parameters, F32 and BF16, 26.7 bits per weight",
    ];
    assert_eq!(titles, expected);
    assert_eq!(room.json("weightfs inspect --json set s.safetensors.index.json").len(), 2);
}

#[test]
fn empty_model_is_shown_and_truncated_model_needs_lenient() {
    let room = Room::new();
    room.raw("empty.safetensors", "{}      ", &[]);
    let out = room.ok("weightfs inspect empty.safetensors");
    assert!(out.contains("  Tensors          0\n") && !out.contains("Largest"), "{out}");
    room.model("m.safetensors", &[("a", Dtype::F32, &[2], vec![0; 8]), ("b", Dtype::U8, &[9], vec![0; 9])], &[]);
    room.ok("head -c -1 m.safetensors >cut.safetensors");
    let output = room.sh("weightfs inspect cut.safetensors");
    assert_eq!((output.code, output.out.len()), (1, 0), "{output:?}");
    let output = room.sh("weightfs inspect --lenient cut.safetensors");
    assert!(
        output.code == 0 && output.out.contains("  Skipped          1\n") && output.err.contains("skipped \"b\""),
        "{output:?}"
    );
}

#[test]
fn dtypes_without_values_are_named_in_one_line() {
    let room = Room::new();
    let entry = |name: &str, dtype: &str, at: usize| {
        format!(r#""{name}":{{"dtype":"{dtype}","shape":[4,2],"data_offsets":[{at},{}]}}"#, at + 4)
    };
    let i2 = r#""c":{"dtype":"I2","shape":[4],"data_offsets":[8,9]}"#;
    room.raw("m.safetensors", &format!("{{{},{},{i2}}}", entry("a", "U4", 0), entry("b", "I4", 4)), &[0; 9]);
    let out = room.sh("weightfs inspect m.safetensors").out;
    let lines: Vec<&str> = out.lines().filter(|line| line.contains("Stored only")).collect();
    assert_eq!(lines, ["  Stored only      I2, I4, U4: no known writer defines how values are packed"], "{out}");
    // A packed element is one parameter.
    let [ref object] = room.json("weightfs inspect --json m.safetensors")[..] else { panic!() };
    assert_eq!((&object["stored_only"], &object["totals"]["parameters"]), (&json!(["I2", "I4", "U4"]), &json!(20)));
    room.model("plain.safetensors", &[("x", Dtype::F32, &[1], vec![0; 4])], &[]);
    assert_eq!(room.json("weightfs inspect --json plain.safetensors")[0]["stored_only"], json!([]));
    assert!(!room.ok("weightfs inspect plain.safetensors").contains("Stored only"));
}

/// A GGUF file with these metadata values, each with the number of its type, and two tensors: 64 weights of type Q8_0
/// and 2 of type F32.
pub fn gguf(pairs: &[(&str, u32, Vec<u8>)]) -> Vec<u8> {
    let mut file = b"GGUF\x03\0\0\0\x02\0\0\0\0\0\0\0".to_vec();
    file.extend((pairs.len() as u64).to_le_bytes());
    for (key, kind, value) in pairs {
        file.extend([text(key), kind.to_le_bytes().to_vec(), value.clone()].concat());
    }
    for (name, dim, kind, offset) in [("blk.0.ffn_up.weight", 64u64, 8u32, 0u64), ("output_norm.weight", 2, 0, 96)] {
        let dims = [1u32.to_le_bytes().to_vec(), dim.to_le_bytes().to_vec()].concat();
        file.extend([text(name), dims, kind.to_le_bytes().to_vec(), offset.to_le_bytes().to_vec()].concat());
    }
    file.resize(file.len().next_multiple_of(32) + 128, 0);
    file
}

/// A string as GGUF files have it.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat()
}

/// An array of strings as GGUF files have it.
fn texts(texts: &[&str]) -> Vec<u8> {
    let elements = texts.iter().flat_map(|element| text(element));
    8u32.to_le_bytes().into_iter().chain((texts.len() as u64).to_le_bytes()).chain(elements).collect()
}

const U32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

#[test]
fn dataset_of_gguf_files_is_exported_with_its_data() {
    let room = Room::new();
    room.ok("mkdir set");
    // A manifest names files that end in .safetensors, and the content decides.
    let shards = [("a.safetensors", 0u8), ("b.safetensors", 100)].map(|(name, first)| {
        let mut file = gguf(&[]);
        let start = file.len() - 128;
        file[start..].iter_mut().zip(first..).for_each(|(byte, value)| *byte = value);
        std::fs::write(room.path(&format!("set/{name}")), &file).unwrap();
        json!({"shard_path": name, "samples_count": 64, "bytes": file.len()})
    });
    let manifest = json!({"format_version": "1.0", "safetensors_version": "1.0", "shards": shards});
    std::fs::write(room.path("set/dataset_manifest.json"), manifest.to_string()).unwrap();
    room.ok("weightfs export set out.gguf");
    for tensor in ["blk.0.ffn_up.weight", "output_norm.weight"] {
        room.ok(&format!("cmp <(weightfs cat set tensors/{tensor}) <(weightfs cat out.gguf tensors/{tensor})"));
        room.ok(&format!("weightfs cat set gguf/{tensor}.gguf >one.gguf"));
        room.ok(&format!("cmp <(weightfs cat set tensors/{tensor}) <(weightfs cat one.gguf tensors/{tensor})"));
    }
    let joined = room.ok("weightfs cat set tensors/output_norm.weight | od -An -v -tu1 -w16");
    let bytes: Vec<u8> = joined.split_whitespace().map(|byte| byte.parse().unwrap()).collect();
    assert_eq!(bytes, (96..104).chain(196..204).collect::<Vec<u8>>());
}

#[test]
fn gguf_page_shows_architecture_types_and_tokenizer() {
    let room = Room::new();
    let number = |number: u32| number.to_le_bytes().to_vec();
    let heads = [&U32.to_le_bytes()[..], &2u64.to_le_bytes(), &8u32.to_le_bytes(), &4u32.to_le_bytes()].concat();
    let file = gguf(&[
        ("general.architecture", STRING, text("qwen3moe")),
        ("general.name", STRING, text("Tiny\u{1b}[31m")),
        ("general.size_label", STRING, text("66")),
        ("general.type", STRING, text("model")),
        ("general.license", STRING, text("apache-2.0")),
        ("general.file_type", U32, number(7)),
        ("qwen3moe.context_length", U32, number(40960)),
        ("qwen3moe.embedding_length", U32, number(64)),
        ("qwen3moe.block_count", U32, number(2)),
        ("qwen3moe.attention.head_count", U32, number(8)),
        ("qwen3moe.attention.head_count_kv", ARRAY, heads),
        ("qwen3moe.expert_count", U32, number(128)),
        ("qwen3moe.rope.freq_base", 6, 1e6f32.to_le_bytes().to_vec()),
        ("tokenizer.ggml.model", STRING, text("gpt2")),
        ("tokenizer.ggml.pre", STRING, text("qwen2")),
        ("tokenizer.ggml.tokens", ARRAY, texts(&["<unk>", "<|im_end|>\u{202e}", "a"])),
        ("tokenizer.ggml.bos_token_id", U32, number(9)),
        ("tokenizer.ggml.eos_token_id", U32, number(1)),
        ("tokenizer.ggml.unknown_token_id", U32, number(0)),
        ("tokenizer.chat_template", STRING, text("\n{%- if tools %}\u{1b}]0;x\u{7}\n{{ x }}")),
    ]);
    std::fs::write(room.path("tiny.gguf"), &file).unwrap();
    let out = room.ok("weightfs inspect tiny.gguf");
    let hash = room.ok("weightfs summary tiny.gguf");
    let hash = hash.trim_end().rsplit(',').next().unwrap();
    let expected = format!(
        r#"tiny.gguf: qwen3moe 66, Q8_0, 9.2 bits per weight, {:.2} kB
  Format           gguf
  Size             {:.2} kB ({},{:03} bytes), {:.2} kB of it header
  Tensors          2
  Parameters       66
  Modules          blk 68 B in 1 tensor
                   output_norm 8 B in 1 tensor
  Largest          blk.0.ffn_up.weight  Q8_0 [64]  68 B
  Structural hash  {hash}
Network
  Architecture      qwen3moe
  Name              Tiny\u{{1b}}[31m
  Size label        66
  Type              model
  License           apache-2.0
  Context length    40960
  Embedding length  64
  Layers            2
  Heads             8
  KV heads          [8, 4]
  Experts           128
  Quantization      Q8_0
Types
  TYPE   TENSORS  PARAMETERS  SIZE    SHARE  BITS PER WEIGHT
  Q8_0         1          64  68 B   89.5 %             8.50
  F32          1           2   8 B   10.5 %            32.00
  total        2          66  76 B  100.0 %             9.21
Tokenizer
  Model          gpt2
  Pre-tokenizer  qwen2
  Tokens         3
  BOS            9
  EOS            1  "<|im_end|>\u{{202e}}"
  UNK            0  "<unk>"
  Chat template  30 B, begins with {{%- if tools %}}\u{{1b}}]0;x\u{{7}}
Metadata
  qwen3moe.rope.freq_base  1000000.0
"#,
        file.len() as f64 / 1e3,
        file.len() as f64 / 1e3,
        file.len() / 1000,
        file.len() % 1000,
        (file.len() - 128) as f64 / 1e3,
    );
    assert_eq!(out, expected);
    // With --all, keys that the page shows elsewhere are listed too.
    let all = room.ok("weightfs inspect --all tiny.gguf");
    assert!(all.lines().any(|line| line.trim_start().starts_with("tokenizer.ggml.tokens  ")), "{all}");
    let [ref object] = room.json("weightfs inspect --json tiny.gguf")[..] else { panic!() };
    let expected = json!({
        "architecture": "qwen3moe", "name": "Tiny\u{1b}[31m", "size_label": "66", "type": "model",
        "license": "apache-2.0", "context_length": 40960, "embedding_length": 64, "layers": 2, "heads": 8,
        "kv_heads": [8, 4], "experts": 128, "file_type": {"number": 7, "name": "Q8_0"},
        "types": [
            {"type": "Q8_0", "tensors": 1, "parameters": 64, "nbytes": 68, "share": 68.0 / 76.0, "bits_per_weight": 8.5},
            {"type": "F32", "tensors": 1, "parameters": 2, "nbytes": 8, "share": 8.0 / 76.0, "bits_per_weight": 32.0},
        ],
        "tokenizer": {
            "model": "gpt2", "pre": "qwen2", "tokens": 3,
            "bos": {"id": 9, "token": null}, "eos": {"id": 1, "token": "<|im_end|>\u{202e}"},
            "unk": {"id": 0, "token": "<unk>"},
        },
        "chat_template": {"nbytes": 30, "first_line": "{%- if tools %}\u{1b}]0;x\u{7}"},
    });
    assert_eq!(object["gguf"], expected);
    let summary = json!({
        "text": out.lines().next().unwrap().strip_prefix("tiny.gguf: ").unwrap(), "architecture": "qwen3moe",
        "size_label": "66", "lora": false, "dataset": false, "weights": "Q8_0", "parameters": 66,
        "bits_per_weight": 8.0 * 76.0 / 66.0, "nbytes": file.len(),
    });
    assert_eq!(object["summary"], summary);
}

#[test]
fn gguf_keys_that_are_missing_or_of_another_type_are_left_out() {
    let room = Room::new();
    let number = |number: u32| number.to_le_bytes().to_vec();
    std::fs::write(room.path("bare.gguf"), gguf(&[("x", U32, number(1))])).unwrap();
    let out = room.ok("weightfs inspect bare.gguf");
    assert!(out.contains("  Dtypes           Q8_0 68 B in 1 tensor\n") && out.ends_with("Metadata\n  x  1\n"), "{out}");
    assert!(!out.contains("Network") && !out.contains("Tokenizer"), "{out}");
    assert!(room.json("weightfs inspect --json bare.gguf")[0]["gguf"].is_null());
    let wrong = gguf(&[
        ("general.architecture", STRING, text("llama")),
        ("general.file_type", U32, number(1000)),
        ("general.name", U32, number(5)),
        ("llama.context_length", STRING, text("4096")),
        ("tokenizer.ggml.tokens", STRING, text("a")),
        ("tokenizer.ggml.eos_token_id", U32, number(0)),
        ("tokenizer.chat_template", ARRAY, texts(&["a"])),
    ]);
    std::fs::write(room.path("wrong.gguf"), wrong).unwrap();
    // A safetensors file that was made of a GGUF file has some of its keys.
    room.ok("weightfs export --dtype bf16 wrong.gguf made.safetensors");
    let made = &room.json("weightfs inspect --json made.safetensors")[0];
    assert!(made["gguf"].is_null() && made["metadata"]["general.architecture"] == "llama", "{made}");
    assert!(!room.ok("weightfs inspect made.safetensors").contains("Network"));
    let out = room.ok("weightfs inspect wrong.gguf");
    let section = "Network\n  Architecture  llama\n  Quantization  1000 (unknown)\nTypes\n";
    assert!(out.contains(section) && out.contains("Tokenizer\n  EOS  0\nMetadata\n  general.name"), "{out}");
    let object = &room.json("weightfs inspect --json wrong.gguf")[0]["gguf"];
    assert_eq!(object["file_type"], json!({"number": 1000, "name": null}));
    assert_eq!(object["tokenizer"], json!({"eos": {"id": 0, "token": null}}));
    assert!(object.get("name").is_none() && object.get("context_length").is_none(), "{object}");
}
