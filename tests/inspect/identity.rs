//! `id` and `summary`: their hash equals that of weight-inspect for every file that both accept.

use crate::room::Room;
use safetensors::Dtype;
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

fn golden() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

/// The recorded results of weight-inspect: file names and summaries.
fn vectors() -> Vec<(String, String)> {
    let list = std::fs::read_to_string(golden().join("weight-inspect/weight-inspect.txt")).unwrap();
    let line = |line: &str| {
        let (name, rest) = line.split_once(' ')?;
        let is_here = name.ends_with(".safetensors") || name == "kv.gguf" && rest.trim().starts_with("gguf,");
        is_here.then(|| (name.to_owned(), rest.trim().to_owned()))
    };
    list.lines().filter_map(line).collect()
}

#[test]
fn recorded_weight_inspect_summaries_match() {
    let room = Room::new();
    let dir = golden().join("weight-inspect");
    let vectors = vectors();
    assert_eq!(vectors.len(), 5);
    for (name, summary) in vectors {
        let output = room.sh(&format!("weightfs summary '{}'", dir.join(&name).display()));
        match &name[..] {
            // The official reader and weightfs refuse metadata values that are not strings.
            "num.safetensors" => assert!(output.code == 1 && output.err.contains("not a string"), "{output:?}"),
            // weight-inspect refuses this file. The expected text follows its rules.
            "empty_t.safetensors" => {
                let text = r#"{"format":"safetensors","metadata":{},"tensors":{"a":{"name":"a","dtype":"f32","shape":[0],"byte_length":0}}}"#;
                assert_eq!(output.out, format!("safetensors,N/A,1,0,{}\n", hex(text)));
            }
            _ => assert_eq!(output.out, format!("{summary}\n"), "{name}"),
        }
    }
}

fn hex(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The text that weight-inspect hashes, built as in its `src/safetensors/mod.rs` and `src/types.rs`: from a tree of
/// JSON values. `None` for a file that it refuses.
fn canonical(file: &[u8]) -> Option<String> {
    let length = u64::from_le_bytes(file.get(..8)?.try_into().ok()?) as usize;
    let header: Value = serde_json::from_slice(file.get(8..)?.get(..length)?).ok()?;
    let (mut metadata, mut tensors) = (BTreeMap::new(), BTreeMap::new());
    for (key, value) in header.as_object()? {
        if key == "__metadata__" {
            for (key, value) in value.as_object().into_iter().flatten() {
                metadata.insert(key.clone(), Value::from(format!("\"{}\"", escape(value.as_str()?))));
            }
        } else if let Some(entry) = value.as_object() {
            let dtype = entry.get("dtype")?.as_str()?.to_lowercase();
            let shape = entry.get("shape")?.as_array()?;
            let offsets = entry.get("data_offsets")?.as_array()?;
            let length = offsets.get(1)?.as_u64()?.checked_sub(offsets.first()?.as_u64()?)?;
            let text = format!(
                r#"{{"name":{},"dtype":{},"shape":{},"byte_length":{length}}}"#,
                Value::from(key.clone()),
                Value::from(dtype),
                Value::from(shape.clone())
            );
            tensors.insert(key.clone(), text);
        }
    }
    let join = |pairs: Vec<String>| pairs.join(",");
    let metadata = metadata.iter().map(|(key, value)| format!("{}:{value}", Value::from(key.clone()))).collect();
    let tensors = tensors.iter().map(|(key, text)| format!("{}:{text}", Value::from(key.clone()))).collect();
    Some(format!(r#"{{"format":"safetensors","metadata":{{{}}},"tensors":{{{}}}}}"#, join(metadata), join(tensors)))
}

fn escape(value: &str) -> String {
    let escape = |char: char| match char {
        '"' | '\\' => format!("\\{char}"),
        '\n' => "\\n".into(),
        '\r' => "\\r".into(),
        '\t' => "\\t".into(),
        char if char.is_ascii_control() => format!("\\u{:04x}", char as u32),
        char => char.into(),
    };
    value.chars().map(escape).collect()
}

#[test]
fn hash_matches_weight_inspect_on_accepted_files() {
    let room = Room::new();
    let nasty: String = (0..=0x7f).map(char::from).chain("重み é \u{2028} 🦀".chars()).collect();
    room.model(
        "nasty.safetensors",
        &[
            (&nasty, Dtype::BF16, &[1], vec![0; 2]),
            ("b.10", Dtype::F8_E4M3, &[2, 1], vec![0; 2]),
            ("b.2", Dtype::F32, &[], vec![0; 4]),
            ("", Dtype::I64, &[0, 3], vec![]),
        ],
        &[("key", &nasty), (&nasty, ""), ("z", "1"), ("é", "\u{7f}\u{80}")],
    );
    // Special cases of weight-inspect: it ignores an entry that is a list, lower-cases an unknown dtype, and counts a
    // repeated key once.
    room.raw(
        "special.safetensors",
        r#"{"a":["U8",[1],[0,1]],"b":{"dtype":"Ä4","shape":[7],"data_offsets":[1,2],"more":[{}]},"__metadata__":{"k":"1","k":"2"}}"#,
        &[0; 2],
    );
    room.raw("null.safetensors", r#"{"__metadata__":null}  "#, &[]);
    let mut files: Vec<_> = ["nasty", "special", "null"].map(|name| room.path(&format!("{name}.safetensors"))).into();
    let entries = std::fs::read_dir(golden()).unwrap().map(|entry| entry.unwrap().path());
    files.extend(entries.filter(|path| path.extension().is_some_and(|ending| ending == "safetensors")));
    files.extend(room.mutations());
    let arguments: Vec<String> = files.iter().map(|file| format!("'{}'", file.display())).collect();
    let output = room.sh(&format!("weightfs summary {}", arguments.join(" ")));
    let mut compared = 0;
    for line in output.out.lines() {
        let [_, _, _, _, hash, file] = line.split(',').collect::<Vec<_>>()[..] else { panic!("{line}") };
        if let Some(canonical) = canonical(&std::fs::read(file).unwrap()) {
            assert_eq!(hash, hex(&canonical), "{file}");
            compared += 1;
        }
    }
    // Both refuse most of the mutations.
    assert!(compared > 30, "{compared}");
}

#[test]
fn output_matches_weight_inspect() {
    let room = Room::new();
    std::fs::copy(golden().join("weight-inspect/a.safetensors"), room.path("a.safetensors")).unwrap();
    let hash = "6bae05fcb917e9e1ab5651a69ccfa941be5e253ff2e32495f9e6261a05059809";
    let text = format!(
        "Structural identity
──────────────────
ID:        wi:safetensors:0:6bae05fc
Stable:    yes (machine independent)
Includes:  header, tensor names, shapes, dtypes
Excludes:  raw weight bytes

format: Safetensors
structural_hash: {hash}
tensor_count: 2
metadata_count: 3
"
    );
    assert_eq!(room.ok("weightfs id a.safetensors"), text);
    let expected = serde_json::json!({
        "schema": 1, "format": "safetensors", "structural_hash": hash, "tensor_count": 2, "metadata_count": 3,
    });
    assert_eq!(room.json("weightfs id --json a.safetensors"), [expected]);
    // With several files, each result has the name of its file.
    room.ok("mkdir dir && cp a.safetensors dir/b.safetensors && cp a.safetensors dir/c.safetensors");
    let line = |name| format!("safetensors,N/A,2,3,{hash},{name}\n");
    let lines = [line("dir/b.safetensors"), line("dir/c.safetensors")].concat();
    assert_eq!(room.ok("weightfs summary dir"), lines);
    assert_eq!(room.ok("weightfs id dir"), format!("dir/b.safetensors:\n{text}\ndir/c.safetensors:\n{text}"));
    let sources: Vec<_> =
        room.json("weightfs id --json dir a.safetensors").iter().map(|id| id["source"].clone()).collect();
    assert_eq!(sources, ["dir/b.safetensors", "dir/c.safetensors", "a.safetensors"]);
    // An unreadable file does not affect the others.
    room.ok("echo text >dir/broken.safetensors");
    let output = room.sh("weightfs summary dir absent");
    assert_eq!((output.code, output.out), (1, [line("dir/b.safetensors"), line("dir/c.safetensors")].concat()));
    let messages: Vec<&str> = output.err.lines().collect();
    assert!(messages[0].starts_with("weightfs: dir/broken.safetensors: too short: 5 bytes"), "{messages:?}");
    assert_eq!(messages[1], "weightfs: absent: No such file or directory");
}

#[test]
fn sharded_model_and_joined_file_have_equal_hashes() {
    let room = Room::new();
    room.sharded("m");
    let tensors: [(&str, Dtype, &[usize], Vec<u8>); 3] = [
        ("b.w", Dtype::F32, &[4], vec![0; 16]),
        ("a.0.w", Dtype::F32, &[2], vec![0; 8]),
        ("a.1.w", Dtype::BF16, &[3], vec![0; 6]),
    ];
    room.model("one.safetensors", &tensors, &[("format", "pt")]);
    let one = room.ok("weightfs summary one.safetensors");
    assert_eq!(room.ok("weightfs summary m.safetensors.index.json"), one);
    room.dataset("set");
    room.model("joined.safetensors", &[("images", Dtype::U8, &[4, 3], vec![0; 12])], &[]);
    assert_eq!(room.ok("weightfs summary set"), room.ok("weightfs summary joined.safetensors"));
}
