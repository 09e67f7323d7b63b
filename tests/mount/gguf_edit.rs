//! `weightfs metadata` with GGUF files: values keep their types, and everything else keeps its bytes.

use crate::gguf::{file, number, numbers, text, texts};
use crate::support::{Scene, WEIGHTFS, python, real_file, require_fuse, run_ok};
use std::fs;
use std::path::Path;

/// A model `m.gguf` with values of many types, some of which their text does not show exactly.
fn scene() -> Scene {
    let scene = Scene::new();
    let pairs = [
        ("general.architecture", text(b"llama")),
        ("general.file_type", number(4, &7u32.to_le_bytes())),
        ("x.bool", number(7, &[2])),
        ("x.nan", number(6, &0xffc0_1234_u32.to_le_bytes())),
        ("x.f64", number(12, &0.1f64.to_le_bytes())),
        ("x.i8", number(1, &[0x80])),
        ("x.floats", numbers(6, &[f32::NAN, f32::INFINITY, -0.0, 0.1].map(f32::to_le_bytes))),
        ("x.bools", numbers(7, &[[0], [1], [5]])),
        ("x.empty", numbers(5, &[[0; 4]; 0])),
        ("x.text", text("line\n\"é\"\n".as_bytes())),
        ("tokenizer.ggml.tokens", texts(&[b"<s>", b"\xff\xfe", b"a\"b\n", "é".as_bytes()])),
    ];
    fs::write(scene.path("m.gguf"), file(&pairs, &[("t", 0, &[3], vec![7; 12]), ("u", 24, &[1], vec![9])])).unwrap();
    scene
}

#[test]
fn random_changes_agree_with_the_gguf_package() {
    let scene = Scene::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/edit.py");
    let args = [script.as_os_str(), WEIGHTFS.as_ref(), scene.dir.path().as_os_str()];
    let tried: u32 = run_ok(python().to_str().unwrap(), args).trim().parse().unwrap();
    assert!(tried > 350, "{tried}");
}

#[test]
fn vocabularies_of_llama_cpp_are_changed_and_restored() {
    for name in ["ggml-vocab-bert-bge", "ggml-vocab-llama-spm", "ggml-vocab-phi-3"] {
        let scene = Scene::new();
        let source = real_file(&format!("vocabularies/{name}.gguf"));
        let source = source.display();
        scene.ok(&format!("weightfs metadata set {source} general.name=another --force -o m.gguf"));
        scene.ok(&format!("weightfs metadata get {source} tokenizer.ggml.tokens >tokens"));
        scene.ok("weightfs metadata set m.gguf 'tokenizer.ggml.tokens:string[]=[\"x\"]'");
        assert!(scene.ok("weightfs check m.gguf").contains("elements, but there are 1 tokens"));
        scene.ok("weightfs metadata set m.gguf tokenizer.ggml.tokens <tokens");
        scene.ok(&format!(
            "weightfs metadata set m.gguf general.name=\"$(weightfs metadata get {source} general.name)\""
        ));
        scene.ok(&format!("cmp m.gguf {source}"));
        assert!(scene.ok("weightfs check m.gguf").starts_with("m.gguf: OK ("), "{name}");
    }
}

#[test]
fn values_that_a_mount_shows_can_be_written_back() {
    require_fuse!();
    let scene = scene();
    let before = fs::read(scene.path("m.gguf")).unwrap();
    let mount = scene.mount(&scene.path("m.gguf"), &[]);
    let keys = mount.list("metadata");
    assert_eq!(keys.len(), 11);
    for key in &keys {
        let shown = mount.path(format!("metadata/{key}"));
        let shown = shown.display();
        scene.ok(&format!("weightfs metadata set m.gguf {key} <{shown} --force -o out && cmp m.gguf out"));
        let value = mount.read(format!("metadata/{key}"));
        let printed = scene.ok(&format!("weightfs metadata get m.gguf {key}")).into_bytes();
        let ends_in_newline = key.ends_with('s') || key == "x.empty";
        assert_eq!(printed, if ends_in_newline { value } else { [&value[..], b"\n"].concat() }, "{key}");
    }
    // One token changes, and the others keep their bytes.
    let tokens = mount.path("metadata/tokenizer.ggml.tokens");
    scene.ok(&format!(
        "cp {} tokens && sed -i '4s/.*/\"the\"/' tokens && weightfs metadata set m.gguf tokenizer.ggml.tokens <tokens --force -o out",
        tokens.display()
    ));
    let after = fs::read(scene.path("out")).unwrap();
    assert!(after.windows(2).any(|pair| pair == b"\xff\xfe"));
    assert_eq!(scene.ok("weightfs metadata get out tokenizer.ggml.tokens | tail -n1"), "\"the\"\n");
    assert!(fs::read(scene.path("m.gguf")).unwrap() == before);
}

#[test]
fn types_are_kept_checked_and_printed() {
    let scene = scene();
    let table = [
        ("set m.gguf general.file_type=15", "- general.file_type:u32=7\n+ general.file_type:u32=15\n"),
        ("set m.gguf general.file_type:u64=7", "- general.file_type:u32=7\n+ general.file_type:u64=7\n"),
        ("set m.gguf general.file_type=7 x.bool=true x.nan=nan", ""),
        ("set m.gguf new=7", "+ new:string=7\n"),
        ("set m.gguf new:uint16=7", "+ new:u16=7\n"),
        ("set m.gguf new:string=7", "+ new:string=7\n"),
        // A colon in a key.
        ("set m.gguf new:x:string=7", "+ new:x:string=7\n"),
        ("set m.gguf new:u8:string=7", "+ new:u8:string=7\n"),
        ("set m.gguf 'new:i16[]=[1, -2]'", "+ new:i16[]=[1, -2]\n"),
        ("set m.gguf 'new:string[]=[\"a\", \"b\"]'", "+ new:string[]=[\"a\", \"b\"]\n"),
        ("set m.gguf 'new:string[]'", "+ new:string[]=[]\n"),
        ("set m.gguf new:f64=1e300 new.b:bool=false", "+ new:f64=1e+300\n+ new.b:bool=false\n"),
        ("set m.gguf x.nan=-inf", "- x.nan:f32=nan\n+ x.nan:f32=-inf\n"),
        // Keys that ggml defines get their type.
        ("set m.gguf llama.context_length=4096", "+ llama.context_length:u32=4096\n"),
        ("set m.gguf tokenizer.ggml.eos_token_id=2", "+ tokenizer.ggml.eos_token_id:u32=2\n"),
        ("set m.gguf 'general.tags=[\"a\"]'", "+ general.tags:string[]=[\"a\"]\n"),
        ("set m.gguf general.alignment=32", "+ general.alignment:u32=32\n"),
        // For an array, only the elements that change are printed.
        (
            "set m.gguf 'tokenizer.ggml.tokens=[\"<s>\", \"x\", \"a\\\"b\\n\"]'",
            "- tokenizer.ggml.tokens[1]=\"\u{fffd}\u{fffd}\"\n+ tokenizer.ggml.tokens[1]=\"x\"\n- tokenizer.ggml.tokens[3]=\"é\"\n",
        ),
        ("remove m.gguf x.bools x.i8", "- x.bools:bool[]=[false, true, true]\n- x.i8:i8=-128\n"),
    ];
    for (line, expected) in table {
        let shown = scene.ok(&format!("weightfs metadata {line} --dry-run"));
        assert_eq!(shown, expected, "{line}");
        // The change that is written is the one that was shown.
        scene.ok(&format!("weightfs metadata {line} --force -o out"));
        let code = i32::from(!expected.is_empty());
        assert_eq!(scene.sh("weightfs diff m.gguf out").code, code, "{line}");
    }
    let json: serde_json::Value = serde_json::from_str(&scene.ok("weightfs metadata get m.gguf --json")).unwrap();
    assert_eq!(json["general.file_type"], 7);
    assert_eq!(json["x.bools"], serde_json::json!([false, true, true]));
    assert_eq!(json["x.floats"], serde_json::json!([null, null, -0.0, 0.1]));
    assert_eq!(json["x.f64"], 0.1);
    assert!(scene.ok("weightfs metadata get m.gguf").contains("x.bools=[false, true, true]\nx.empty=[]\n"));
    // Values of safetensors are strings, and a colon is part of the key.
    scene.model("m.safetensors", &[], &[]);
    assert_eq!(scene.ok("weightfs metadata set m.safetensors a:u32=x --dry-run"), "+ a:u32=x\n");
}

#[test]
fn changes_that_break_the_file_are_refused() {
    let scene = scene();
    let before = fs::read(scene.path("m.gguf")).unwrap();
    let long = "k".repeat(65_536);
    let table = [
        (
            "set m.gguf general.file_type=abc",
            "\"general.file_type\" has the type u32: \"abc\" is not a whole number from 0 to 4294967295",
        ),
        ("set m.gguf general.file_type=4294967296", "\"4294967296\" is not a whole number from 0 to 4294967295"),
        ("set m.gguf general.file_type:uint=15", "\"general.file_type:uint\": \"uint\" is not a type; types are u8, "),
        ("set m.gguf x.i8=-129", "\"x.i8\" has the type i8: \"-129\" is not a whole number from -128 to 127"),
        ("set m.gguf new:u64=-1", "type u64: \"-1\" is not a whole number from 0 to 18446744073709551615"),
        ("set m.gguf x.bool=1", "\"x.bool\" has the type bool: \"1\" is neither true nor false"),
        ("set m.gguf x.nan=1e39", "\"x.nan\" has the type f32: \"1e39\" is too large"),
        ("set m.gguf x.f64=x", "\"x.f64\" has the type f64: \"x\" is not a number"),
        ("set m.gguf x.floats=[1,null,null]", "\"x.floats\" has the type f32[]: element 1: \"null\" is not a number"),
        ("set m.gguf x.bools=[1]", "\"x.bools\" has the type bool[]: element 0: \"1\" is neither true nor false"),
        (
            "set m.gguf x.empty='[1, 2.5]'",
            "\"x.empty\" has the type i32[]: element 1: \"2.5\" is not a whole number from",
        ),
        ("set m.gguf x.empty=[[1]]", "\"x.empty\" has the type i32[]: element 0: \"[1]\" is not a whole number from"),
        (
            "set m.gguf tokenizer.ggml.tokens=x",
            "\"tokenizer.ggml.tokens\" has the type string[]: element 0: \"x\" is not a JSON string",
        ),
        ("set m.gguf tokenizer.ggml.tokens='[\"x\"'", "has the type string[]: not a JSON array: EOF"),
        (
            "set m.gguf general.alignment=64",
            "\"general.alignment\" cannot change from 32 to 64: the tensors are stored",
        ),
        ("set m.gguf general.alignment=24", "metadata key \"general.alignment\": 24 is not a power of two"),
        ("set m.gguf general.alignment:i32=32", "value type 5; general.alignment must be a uint32 (type 4)"),
        ("set m.gguf :u32=1", "metadata key \"\": the key is empty"),
        (&format!("set m.gguf {long}=1"), " has 65536 bytes, and at most 65535 are allowed"),
        ("remove m.gguf general.name", "no metadata key \"general.name\""),
        ("clear m.gguf", "holds the architecture and the tokenizer, without which the model cannot be used"),
    ];
    for (line, expected) in table {
        let said = scene.sh(&format!("weightfs metadata {line}"));
        assert!(said.code == 1 && said.out.is_empty() && said.err.contains(expected), "{line}: {said:?}");
        assert!(said.err.starts_with("weightfs: m.gguf: ") && said.err.lines().count() == 1, "{line}: {said:?}");
        assert!(fs::read(scene.path("m.gguf")).unwrap() == before, "{line}");
    }
    // A header that is too long to be read again is not written.
    let line = "head -c 140000000 /dev/zero | tr '\\0' x | weightfs metadata set m.gguf new";
    let said = scene.sh(line);
    assert!(said.code == 1 && said.err.contains("at most 134217728 bytes are read"), "{said:?}");
    let said = scene.sh("printf '\\377' | weightfs metadata set m.gguf x.text");
    assert!(said.code == 1 && said.err.contains("from standard input: stream did not contain valid UTF-8"), "{said:?}");
    assert!(fs::read(scene.path("m.gguf")).unwrap() == before);
}

#[test]
fn strings_that_are_not_utf8_keep_their_bytes_when_they_move() {
    let scene = Scene::new();
    let edit = |tokens: &[&[u8]], script: &str| {
        let pairs = [("t.tokens", texts(tokens))];
        fs::write(scene.path("m.gguf"), file(&pairs, &[("t", 24, &[1], vec![9])])).unwrap();
        let line =
            format!("weightfs metadata get m.gguf t.tokens | sed '{script}' | weightfs metadata set m.gguf t.tokens");
        (scene.sh(&line), fs::read(scene.path("m.gguf")).unwrap())
    };
    let has = |bytes: &[u8], tokens: &[&[u8]]| {
        let expected = texts(tokens);
        bytes.windows(expected.len()).any(|window| window == expected)
    };
    let tokens: [&[u8]; 4] = [b"a", b"\xff", b"b", b"\xff\xfe"];
    for (script, expected) in [
        ("1d", &[&b"\xff"[..], b"b", b"\xff\xfe"][..]),
        ("2d", &[b"a", b"b", b"\xff\xfe"]),
        ("1s/.*/\"new\"\\n&/", &[b"new", b"a", b"\xff", b"b", b"\xff\xfe"]),
        ("1s/a/c/", &[b"c", b"\xff", b"b", b"\xff\xfe"]),
    ] {
        let (said, bytes) = edit(&tokens, script);
        assert!(said.code == 0 && has(&bytes, expected), "{script}: {said:?}");
    }
    // Several strings look alike: the text does not say which one has moved.
    for alike in [&b"\xfe"[..], "\u{fffd}".as_bytes()] {
        let tokens: [&[u8]; 3] = [b"a", b"\xff", alike];
        let (said, bytes) = edit(&tokens, "1d");
        assert!(said.code == 1 && said.err.contains("stands for several different strings"), "{said:?}");
        assert!(has(&bytes, &tokens));
        for (script, expected) in
            [("1s/a/c/", &[b"c", b"\xff", alike][..]), ("$s/$/\\n\"end\"/", &[b"a", b"\xff", alike, b"end"])]
        {
            let (said, bytes) = edit(&tokens, script);
            assert!(said.code == 0 && has(&bytes, expected), "{script}: {said:?}");
        }
    }
}

#[test]
fn keys_that_a_model_needs_are_removed_with_a_warning() {
    let scene = scene();
    let said = scene.sh("weightfs metadata remove m.gguf general.architecture --force -o out");
    let expected = "without general.architecture, llama.cpp and other programs cannot load the model\n";
    assert!(said.code == 0 && said.err.ends_with(expected), "{said:?}");
    let said = scene.sh("weightfs metadata clear m.gguf --force -o out");
    assert!(said.code == 0 && said.err.ends_with(expected), "{said:?}");
    assert_eq!(scene.ok("weightfs metadata get out"), "");
    scene.sh("weightfs diff --data --json m.gguf out >diff.json");
    assert_eq!(scene.ok("jq -c '.data.different' diff.json"), "[]\n");
    // One split of a model.
    let split = [("split.no", number(2, &[0, 0])), ("split.count", number(2, &[2, 0]))];
    fs::write(scene.path("split.gguf"), file(&split, &[("t", 24, &[1], vec![9])])).unwrap();
    let said = scene.sh("weightfs metadata remove split.gguf split.count");
    assert!(said.code == 0 && said.err.contains("without \"split.count\", programs cannot load"), "{said:?}");
    assert_eq!(scene.ok("weightfs metadata get split.gguf"), "split.no=0\n");
    // A split is changed alone, whether the others exist or not.
    for (no, name) in [(0, "s-00001-of-00002.gguf"), (1, "s-00002-of-00002.gguf")] {
        let keys = [("split.no", [no, 0]), ("split.count", [2, 0]), ("split.tensors.count", [2, 0])];
        let part = keys.map(|(key, value)| (key, number(2, &value)));
        fs::write(scene.path(name), file(&part, &[(name, 24, &[1], vec![9])])).unwrap();
        scene.ok(&format!("weightfs metadata set {name} general.name=new"));
        let said = scene.sh(&format!("weightfs metadata remove {name} split.count --dry-run"));
        assert!(said.code == 0 && said.err.contains("without \"split.count\""), "{said:?}");
    }
    assert_eq!(scene.ok("weightfs metadata get s-00002-of-00002.gguf"), "general.name=new\n");
    // The alignment of the data stays.
    let aligned = [("general.alignment", number(4, &64u32.to_le_bytes())), ("a", text(b"b"))];
    let mut bytes = file(&aligned, &[("t", 24, &[1], vec![9])]);
    bytes.truncate(bytes.len() - 32);
    bytes.resize(bytes.len().next_multiple_of(64), 0);
    bytes.extend([9; 64]);
    fs::write(scene.path("aligned.gguf"), bytes).unwrap();
    let said = scene.sh("weightfs metadata remove aligned.gguf general.alignment");
    assert!(said.err.contains("\"general.alignment\" cannot change from 64 to 32"), "{said:?}");
    let said = scene.sh("weightfs metadata clear aligned.gguf --force -o out");
    assert!(said.code == 0 && said.err.contains("general.alignment is kept"), "{said:?}");
    assert_eq!(scene.ok("weightfs metadata get out"), "general.alignment=64\n");
}

#[test]
fn data_stays_in_place_where_padding_allows() {
    let scene = scene();
    let header = |name: &str| -> u64 {
        let list = scene.ok(&format!("weightfs ls --json {name} | jq '.tensors[0].offset'"));
        list.trim().parse().unwrap()
    };
    let (at, before) = (header("m.gguf"), fs::read(scene.path("m.gguf")).unwrap());
    scene.ok("weightfs metadata set m.gguf general.file_type=8 x.bool=false");
    let same = fs::read(scene.path("m.gguf")).unwrap();
    assert_eq!((header("m.gguf"), same.len()), (at, before.len()));
    assert_eq!(before.iter().zip(&same).filter(|(old, new)| old != new).count(), 2);
    // The data moves by a multiple of the alignment.
    for len in 1..70 {
        let value = "x".repeat(len);
        scene.ok(&format!("weightfs metadata set m.gguf new={value} --force -o out"));
        let moved = header("out") - at;
        assert!(moved % 32 == 0 && moved <= 128, "{len}: {moved}");
        let bytes = fs::read(scene.path("out")).unwrap();
        assert!(bytes[header("out") as usize..] == same[at as usize..], "{len}");
    }
    // Without tensors there is no data, and the padding that llama.cpp writes is kept.
    let vocabulary = file(&[("a", text(b"b"))], &[]);
    fs::write(scene.path("v.gguf"), &vocabulary).unwrap();
    scene.ok("weightfs metadata set v.gguf a=xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx");
    assert_eq!(fs::read(scene.path("v.gguf")).unwrap().len() % 32, 0);
    scene.ok("weightfs metadata set v.gguf a=b");
    assert!(fs::read(scene.path("v.gguf")).unwrap() == vocabulary);
}
