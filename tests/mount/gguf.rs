//! GGUF files, written and read by the gguf package.

use crate::support::{Mount, Scene, WEIGHTFS, real_file, require_fuse, run_ok};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// A scene with the files that `ggml.py` writes.
pub fn scene() -> Scene {
    let scene = Scene::new();
    gguf(["write".as_ref(), scene.dir.path().as_os_str()]);
    scene
}

/// Runs `ggml.py`.
fn gguf<const N: usize>(args: [&OsStr; N]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/ggml.py");
    let args = std::iter::once(script.as_os_str()).chain(args);
    run_ok(crate::support::python().to_str().unwrap(), args)
}

fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

/// A metadata value: a string.
pub fn text(text: &[u8]) -> Vec<u8> {
    [&8u32.to_le_bytes()[..], &string(text)].concat()
}

/// A metadata value: a number of the type with that number.
pub fn number(kind: u32, bytes: &[u8]) -> Vec<u8> {
    [&kind.to_le_bytes()[..], bytes].concat()
}

/// A metadata value: an array of numbers of the type with that number.
pub fn numbers<const N: usize>(kind: u32, elements: &[[u8; N]]) -> Vec<u8> {
    let head = [9u32.to_le_bytes(), kind.to_le_bytes()].concat();
    [&head[..], &(elements.len() as u64).to_le_bytes(), &elements.concat()].concat()
}

/// A metadata value: an array of strings.
pub fn texts(elements: &[&[u8]]) -> Vec<u8> {
    let head = [9u32.to_le_bytes(), 8u32.to_le_bytes()].concat();
    let len = (elements.len() as u64).to_le_bytes();
    let elements: Vec<u8> = elements.iter().flat_map(|element| string(element)).collect();
    [&head[..], &len, &elements].concat()
}

/// A tensor to write: name, number of its type, dimensions with the innermost one first, bytes.
pub type Tensor<'a> = (&'a str, u32, &'a [u64], Vec<u8>);

/// A file with the default alignment.
pub fn file(pairs: &[(&str, Vec<u8>)], tensors: &[Tensor]) -> Vec<u8> {
    let number = |number: usize| (number as u64).to_le_bytes();
    let mut file = [&b"GGUF\x03\0\0\0"[..], &number(tensors.len()), &number(pairs.len())].concat();
    for (key, value) in pairs {
        file.extend([&string(key.as_bytes())[..], value].concat());
    }
    let mut data = Vec::new();
    for (name, kind, dims, bytes) in tensors {
        file.extend(string(name.as_bytes()));
        file.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| file.extend(dim.to_le_bytes()));
        file.extend(kind.to_le_bytes());
        file.extend(number(data.len()));
        data.extend(bytes);
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    [file, data].concat()
}

/// A GGUF file with 151,644 tokens, a tensor of type F16, and one of type Q4_0.
pub fn tokens() -> Vec<u8> {
    let mut tokens: Vec<String> = (0..151_643).map(|token| format!("t{token}")).collect();
    tokens.push("<|endoftext|>".into());
    let tokens: Vec<&[u8]> = tokens.iter().map(|token| token.as_bytes()).collect();
    let tensors: [Tensor; 2] =
        [("output_norm.weight", 1, &[4], vec![0; 8]), ("blk.0.ffn_up.weight", 2, &[32], vec![0; 18])];
    file(&[("tokenizer.ggml.tokens", texts(&tokens))], &tensors)
}

#[test]
fn every_type_is_decoded_like_the_gguf_package() {
    require_fuse!();
    let scene = scene();
    // Numbers of keys, of tensors, and of tensors that the package dequantizes.
    for (name, counts) in [("types", "12 33 24"), ("aligned", "2 4 0")] {
        let source = scene.path(format!("{name}.gguf"));
        let mount = scene.mount(&source, &[]);
        assert_eq!(check(&source, &mount.point), counts, "{name}");
    }
}

/// Compares a mounted model with what the gguf package reads from its file, and returns the numbers of its keys, of its
/// tensors, and of those whose values are compared.
fn check(source: &Path, point: &Path) -> String {
    gguf(["check".as_ref(), source.as_os_str(), point.as_os_str()]).trim().to_owned()
}

#[test]
fn real_model_is_read_like_the_gguf_package_reads_it() {
    require_fuse!();
    let scene = Scene::new();
    let source = real_file("gemma-3-270m.gguf");
    let mount = scene.mount(&source, &[]);
    assert_eq!(check(&source, &mount.point), "33 236 22");
    // A token by its number: lines are counted from 1.
    let token = format!("sed -n 106p {}", mount.path("metadata/tokenizer.ggml.tokens").display());
    assert_eq!(scene.ok(&token), "\"<start_of_turn>\"\n");
    let page = scene.ok(&format!("weightfs inspect {}", source.display()));
    for line in
        ["  Name                 Gemma 3 270m", "  Quantization         Q4_K - Medium", "  BOS            2  \"<bos>\""]
    {
        assert!(page.lines().any(|found| found == line), "{line}\n{page}");
    }
}

#[test]
fn real_vocabularies_are_read_like_the_gguf_package_reads_them() {
    // One of each kind: WordPiece, byte pairs and SentencePiece. The package takes seconds for each.
    const COMPARED: [&str; 3] = ["ggml-vocab-bert-bge", "ggml-vocab-deepseek-coder", "ggml-vocab-llama-spm"];
    require_fuse!();
    let scene = Scene::new();
    let models = real_file("vocabularies");
    let mount = scene.mount(&models, &[]);
    let names = mount.list("");
    assert!(names.len() >= 19, "{names:?}");
    for name in &names {
        assert!(mount.list(format!("{name}/tensors")).is_empty());
    }
    for name in COMPARED {
        let source = models.join(format!("{name}.gguf"));
        let counts = check(&source, &mount.path(name));
        assert!(counts.ends_with(" 0 0"), "{name}: {counts}");
        let object = scene.ok(&format!("weightfs inspect --json {}", source.display()));
        let object: serde_json::Value = serde_json::from_str(&object).unwrap();
        let tokenizer = &object["gguf"]["tokenizer"];
        assert!(tokenizer["tokens"].as_u64().unwrap() > 10_000, "{name}: {tokenizer}");
        let special = ["bos", "eos", "unk", "pad"].map(|name| &tokenizer[name]["token"]);
        assert!(special.iter().any(|token| token.is_string()), "{name}: {tokenizer}");
    }
}

#[test]
fn metadata_keeps_exact_text_and_types() {
    require_fuse!();
    let scene = scene();
    let mount = scene.mount(&scene.path("types.gguf"), &[]);
    let read = |key: &str| String::from_utf8(mount.read(format!("metadata/{key}"))).unwrap();
    let expected = [
        ("general.architecture", "llama"),
        ("llama.context_length", "4096"),
        ("tokenizer.chat_template", "{{ x }}\nline\n"),
        ("tokenizer.ggml.tokens", "\"<s>\"\n\"a\\\"b\"\n\"\\n\"\n\"é\"\n\"\"\n"),
        ("x.bool", "true"),
        ("x.f32", "0.1"),
        ("x.f64", "-2.25e-300"),
        ("x.floats", "0.5\n1e-7\n"),
        ("x.i8", "-3"),
        ("x.nan", "nan"),
        ("x.numbers", "1\n-2\n3\n"),
        ("x.u64", "18446744073709551615"),
    ];
    for (key, text) in expected {
        assert_eq!(read(key), text, "{key}");
    }
    let json: serde_json::Value = serde_json::from_slice(&mount.read("metadata.json")).unwrap();
    assert_eq!(json.as_object().unwrap().len(), expected.len());
    assert_eq!(json["x.u64"], u64::MAX);
    assert_eq!(json["tokenizer.ggml.tokens"][1], "a\"b");
    assert_eq!(json["x.nan"], serde_json::Value::Null);
    assert_eq!(json["x.bool"], true);
    // The n-th line is the n-th token.
    assert_eq!(scene.ok(&format!("sed -n 4p {}", mount.path("metadata/tokenizer.ggml.tokens").display())), "\"é\"\n");
    // There is no header as text, and no safetensors file of the stored blocks.
    assert!(!mount.path("header.json").exists() && mount.path("safetensors/plain.F32.safetensors").exists());
    assert!(!mount.path("safetensors/blocks.Q4_0.safetensors").exists());
    let exports = ["types-bf16.safetensors", "types-f32.safetensors", "types-whole.gguf"];
    assert_eq!(mount.list("export"), exports);
}

#[test]
fn last_tensor_may_lack_padding() {
    require_fuse!();
    let scene = scene();
    let (whole, cut) = (scene.path("types.gguf"), scene.path("cut.gguf"));
    let bytes = fs::read(&whole).unwrap();
    // The last tensor ends before the end of the file.
    let padded = scene.mount(&whole, &[]);
    let index: serde_json::Value = serde_json::from_slice(&padded.read("index.json")).unwrap();
    let last = index["tensors"].as_array().unwrap().last().unwrap();
    let end = (last["offset"].as_u64().unwrap() + last["nbytes"].as_u64().unwrap()) as usize;
    assert!(end < bytes.len());
    fs::write(&cut, &bytes[..end]).unwrap();
    let mount = scene.mount(&cut, &[]);
    let name = last["name"].as_str().unwrap();
    let read = |mount: &Mount| mount.read(format!("tensors/{name}"));
    assert_eq!(read(&mount), read(&padded));
    // The copy has the padding that the source lacks.
    let export = mount.read("export/cut-whole.gguf");
    assert_eq!(export.len() % 32, 0);
    // One byte less is an error with the numbers.
    fs::write(&cut, &bytes[..end - 1]).unwrap();
    let said = scene.sh("weightfs ls cut.gguf");
    let expected = format!("the data ends at byte {end}, but the file ends at byte {}; 1 bytes missing", end - 1);
    assert!(said.code == 1 && said.err.contains(&expected), "{said:?}");
}

#[test]
fn values_are_compared_with_those_of_safetensors_exactly() {
    let scene = Scene::new();
    let said = gguf(["diff".as_ref(), WEIGHTFS.as_ref(), scene.dir.path().as_os_str()]);
    // The tensors without and with a difference, and the one with another shape.
    assert_eq!(said.trim(), r#"1 29 [{"name": "plain.F16", "reason": "the shapes differ"}]"#);
    let text = scene.sh("weightfs diff --data types.gguf values.safetensors").out;
    assert!(text.contains("blocks.Q4_0") && text.contains("8 of 3,264 elements; "), "{text}");
    // Two files with the same type.
    let same = scene.sh("cp types.gguf copy.gguf && weightfs diff --data types.gguf copy.gguf");
    assert!(same.code == 0 && same.out.contains("data: 0 different, 33 equal\n"), "{same:?}");
}

#[test]
fn check_reports_missing_and_contradictory_keys() {
    let scene = Scene::new();
    let integer = |value: u32| number(4, &value.to_le_bytes());
    let tokens = || ("tokenizer.ggml.tokens", texts(&[b"<s>", b"</s>"]));
    let complete = || {
        vec![
            ("general.architecture", text(b"llama")),
            ("general.quantization_version", integer(2)),
            ("llama.context_length", integer(4096)),
            ("llama.embedding_length", integer(32)),
            ("llama.block_count", integer(1)),
            ("llama.feed_forward_length", numbers(4, &[[1, 0, 0, 0]])),
            ("llama.attention.head_count", number(10, &[1, 0, 0, 0, 0, 0, 0, 0])),
            ("llama.attention.layer_norm_rms_epsilon", number(6, &1e-5f32.to_le_bytes())),
            ("tokenizer.ggml.model", text(b"llama")),
            tokens(),
            ("tokenizer.ggml.scores", numbers(6, &[[0; 4]; 2])),
        ]
    };
    let other = |architecture: &str| {
        let mut pairs = complete();
        pairs[0].1 = text(architecture.as_bytes());
        pairs
    };
    let quantized = || vec![("token_embd.weight", 2, &[32u64, 2][..], vec![1; 36])];
    let check = |pairs: &[(&str, Vec<u8>)], tensors: &[Tensor]| -> Vec<String> {
        fs::write(scene.path("m.gguf"), file(pairs, tensors)).unwrap();
        let said = scene.sh("weightfs check --json m.gguf");
        assert_eq!((said.code, &said.err[..]), (0, ""));
        let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        let findings = report["findings"].as_array().unwrap();
        findings
            .iter()
            .map(|finding| {
                assert_eq!((&finding["severity"], &finding["rule"]), (&"warning".into(), &"gguf-keys".into()));
                finding["message"].as_str().unwrap().to_owned()
            })
            .collect()
    };
    assert_eq!(check(&complete(), &quantized()), [""; 0]);
    // Each key that is left out is reported, except arrays that may be missing.
    for at in 0..complete().len() {
        let mut pairs = complete();
        let (key, _) = pairs.remove(at);
        let found = check(&pairs, &quantized());
        match key {
            "tokenizer.ggml.scores" => assert_eq!(found, [""; 0]),
            _ => assert_eq!(found, [format!("metadata key {key:?} is missing")]),
        }
    }
    let tensor = |name| vec![(name, 0, &[2u64][..], vec![1; 8])];
    let mut typed = complete();
    typed[4].1 = text(b"1");
    typed[10].1 = numbers(6, &[[0; 4]; 3]);
    let expected = [
        "metadata key \"llama.block_count\" has the type string, but must be an integer",
        "metadata key \"tokenizer.ggml.scores\" has 3 elements, but there are 2 tokens",
    ];
    assert_eq!(check(&typed, &quantized()), expected);
    let missing = |keys: &[&str]| keys.iter().map(|key| format!("metadata key {key:?} is missing")).collect::<Vec<_>>();
    // Of architectures without a list of their own, only the keys of every model are needed.
    let keys = ["qwen3.context_length", "qwen3.embedding_length", "qwen3.block_count"];
    assert_eq!(check(&other("qwen3"), &quantized()), missing(&keys));
    // Files that are not language models: projectors, adapters, image models, vocabularies, later splits.
    let architecture = |name: &str| ("general.architecture", text(name.as_bytes()));
    assert_eq!(check(&[architecture("clip")], &tensor("token_embd.weight")), [""; 0]);
    assert_eq!(check(&[architecture("flux")], &tensor("double_blocks.0.img_attn.qkv.weight")), [""; 0]);
    assert_eq!(
        check(&[architecture("llama"), ("general.type", text(b"adapter"))], &tensor("token_embd.weight")),
        [""; 0]
    );
    assert_eq!(check(&[("general.type", text(b"imatrix"))], &tensor("blk.0.attn_q.weight.in_sum2")), [""; 0]);
    assert_eq!(check(&[architecture("llama"), tokens()], &[]), [""; 0]);
    assert_eq!(check(&[("split.no", number(2, &[1, 0]))], &quantized()), [""; 0]);
    assert_eq!(check(&[("split.no", number(2, &[0, 0]))], &tensor("t")), missing(&["general.architecture"]));
    let without_tokens = [architecture("llama"), ("tokenizer.ggml.model", text(b"no_vocab"))];
    assert!(!check(&without_tokens, &quantized()).contains(&missing(&["tokenizer.ggml.tokens"])[0]));
}

#[test]
fn check_finds_nothing_in_real_files() {
    let scene = Scene::new();
    let models = [real_file("vocabularies"), real_file("gemma-3-270m.gguf")];
    let models = models.map(|path| path.display().to_string()).join(" ");
    let said = scene.sh(&format!("weightfs check --json {models}"));
    assert_eq!((said.code, &said.err[..]), (0, ""));
    let reports: Vec<serde_json::Value> =
        serde_json::Deserializer::from_str(&said.out).into_iter().map(Result::unwrap).collect();
    assert_eq!(reports.len(), 20);
    for report in reports {
        assert_eq!(report["findings"], serde_json::json!([]), "{}", report["source"]);
    }
}
