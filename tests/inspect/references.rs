//! `references`: the JSON object, the ranges of its chunks, and what cannot be referenced.

use crate::room::{Room, floats};
use safetensors::Dtype;
use serde_json::{Map, Value, json};
use std::fs;
use std::ops::Range;

fn sample() -> Room {
    let room = Room::new();
    room.model(
        "m.safetensors",
        &[
            ("layers.0.weight", Dtype::F32, &[6, 4], floats(&(0..24).map(|at| at as f32).collect::<Vec<_>>())),
            ("layers.0", Dtype::BF16, &[2], vec![1; 4]),
            ("layers.1.bias", Dtype::I16, &[], vec![7, 0]),
            ("none", Dtype::U8, &[0, 4], vec![]),
        ],
        &[("format", "pt"), ("text", "\u{1b} \"{{x}}\"")],
    );
    room
}

/// The member `refs` of an output.
fn references(out: &str) -> Map<String, Value> {
    let Value::Object(mut found) = serde_json::from_str(out).unwrap() else { panic!("{out}") };
    assert_eq!(found["version"], 1);
    assert_eq!(found.len(), 2);
    let Some(Value::Object(refs)) = found.remove("refs") else { panic!("{out}") };
    refs
}

/// The JSON document at a key.
fn document(refs: &Map<String, Value>, key: &str) -> Value {
    serde_json::from_str(refs[key].as_str().unwrap()).unwrap()
}

/// The URL and the range of each chunk of an array, in the order of the ranges.
fn chunks(refs: &Map<String, Value>, prefix: &str) -> Vec<(String, Range<u64>)> {
    let chunks = refs.iter().filter(|(key, value)| key.starts_with(prefix) && value.is_array());
    let mut chunks: Vec<_> = chunks
        .map(|(_, place)| {
            let [url, offset, len] = [0, 1, 2].map(|at| &place[at]);
            let offset = offset.as_u64().unwrap();
            (url.as_str().unwrap().to_owned(), offset..offset + len.as_u64().unwrap())
        })
        .collect();
    chunks.sort_by_key(|(url, range)| (url.clone(), range.start));
    chunks
}

#[test]
fn groups_arrays_and_chunks_are_those_of_zarr_3() {
    let room = sample();
    let out = room.ok("weightfs references --chunk 40 m.safetensors");
    let refs = references(&out);
    let mut keys: Vec<&str> = refs.keys().map(|key| &**key).collect();
    keys.sort_unstable();
    assert_eq!(
        keys,
        [
            "layers/0%/c/0",
            "layers/0%/zarr.json",
            "layers/0/weight/c/0/0",
            "layers/0/weight/c/1/0",
            "layers/0/weight/c/2/0",
            "layers/0/weight/zarr.json",
            "layers/0/zarr.json",
            "layers/1/bias/c",
            "layers/1/bias/zarr.json",
            "layers/1/zarr.json",
            "layers/zarr.json",
            "none/zarr.json",
            "zarr.json",
        ]
    );
    assert_eq!(
        document(&refs, "layers/0/weight/zarr.json"),
        json!({
            "zarr_format": 3, "node_type": "array", "shape": [6, 4], "data_type": "float32", "fill_value": 0.0,
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [2, 4]}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [{"name": "bytes", "configuration": {"endian": "little"}}],
            "dimension_names": ["dim0_6", "dim1_4"], "attributes": {"name": "layers.0.weight", "dtype": "F32"},
        })
    );
    let small = document(&refs, "layers/0%/zarr.json");
    let attributes = json!({"name": "layers.0", "dtype": "BF16", "weightfs_dtype": "BF16"});
    assert_eq!((&small["data_type"], &small["attributes"]), (&json!("uint16"), &attributes));
    assert_eq!(document(&refs, "layers/zarr.json"), json!({"zarr_format": 3, "node_type": "group", "attributes": {}}));
    let root = document(&refs, "zarr.json");
    let consolidated = root["consolidated_metadata"]["metadata"].as_object().unwrap();
    assert_eq!(consolidated.len(), 7);
    for (path, node) in consolidated {
        assert_eq!(*node, document(&refs, &format!("{path}/zarr.json")));
    }
    let root = root["attributes"].clone();
    let path = fs::canonicalize(room.path("m.safetensors")).unwrap();
    let size = fs::metadata(&path).unwrap().len();
    assert_eq!(root["format"], "safetensors");
    assert_eq!(root["metadata"], json!({"format": "pt", "text": "\u{1b} \"{{x}}\""}));
    assert_eq!(root["skipped"], json!([]));
    assert_eq!(root["versions"][0]["url"], format!("file://{}", path.display()));
    assert_eq!(root["versions"][0]["size"], size);
    assert!(root["versions"][0]["mtime"].as_str().unwrap().ends_with('Z'), "{root}");
}

#[test]
fn chunks_cover_the_bytes_of_all_tensors_exactly() {
    let room = sample();
    for options in ["", "--chunk 1", "--chunk 40", "--flat --chunk 16", "--zarr 2 --chunk 33", "--zarr 2 --flat"] {
        let refs = references(&room.ok(&format!("weightfs references {options} m.safetensors")));
        let chunks = chunks(&refs, "");
        let header = fs::read(room.path("m.safetensors")).unwrap();
        let mut at = 8 + u64::from_le_bytes(header[..8].try_into().unwrap());
        for (_, range) in &chunks {
            assert_eq!(range.start, at, "{options}");
            at = range.end;
        }
        assert_eq!(at, header.len() as u64, "{options}");
    }
}

#[test]
fn format_2_and_flat_names() {
    let room = sample();
    let refs = references(&room.ok("weightfs references --zarr 2 --flat --chunk 40 m.safetensors"));
    let mut keys: Vec<&str> = refs.keys().map(|key| &**key).filter(|key| key.starts_with("layers.0.")).collect();
    keys.sort_unstable();
    let weight = ["/.zarray", "/.zattrs", "/0.0", "/1.0", "/2.0"].map(|key| format!("layers.0.weight{key}"));
    assert_eq!(keys, weight);
    assert_eq!(
        document(&refs, "layers.0.weight/.zarray"),
        json!({
            "zarr_format": 2, "shape": [6, 4], "chunks": [2, 4], "dtype": "<f4", "order": "C", "fill_value": null,
            "compressor": null, "filters": null, "dimension_separator": ".",
        })
    );
    assert_eq!(document(&refs, ".zgroup"), json!({"zarr_format": 2}));
    let consolidated = document(&refs, ".zmetadata")["metadata"].as_object().unwrap().clone();
    assert_eq!(consolidated.len(), 10);
    for (key, node) in consolidated {
        assert_eq!(node, document(&refs, &key));
    }
    assert!(refs.contains_key("layers.1.bias/0") && refs.contains_key("layers.0/0"));
    assert_eq!(refs.keys().filter(|key| key.ends_with(".zgroup")).count(), 1);
}

#[test]
fn joined_arrays_are_cut_where_their_parts_begin() {
    let room = Room::new();
    room.dataset("data");
    let refs = references(&room.ok("weightfs references data"));
    assert_eq!(document(&refs, "images/zarr.json")["chunk_grid"]["configuration"]["chunk_shape"], json!([2, 3]));
    let chunks = chunks(&refs, "images/c/");
    assert_eq!(chunks.len(), 2);
    for ((url, range), name) in chunks.iter().zip(["x", "y"]) {
        assert!(url.ends_with(&format!("/data/{name}.safetensors")), "{url}");
        let file = fs::read(url.strip_prefix("file://").unwrap()).unwrap();
        assert_eq!(file[range.start as usize..range.end as usize], [0, 1, 2, 3, 4, 5]);
    }
    // The shards of a model.
    room.sharded("s");
    let refs = references(&room.ok("weightfs references s.safetensors.index.json"));
    let root = document(&refs, "zarr.json");
    assert_eq!(root["attributes"]["versions"].as_array().unwrap().len(), 2);
    assert!(refs["b/w/c/0"][0].as_str().unwrap().ends_with("/s-00002-of-00002.safetensors"));
}

#[test]
fn tensors_that_cannot_be_referenced_are_named() {
    let room = Room::new();
    let header = r#"{"a":{"dtype":"F4","shape":[2],"data_offsets":[0,1]},"b":{"dtype":"X9","shape":[1],
        "data_offsets":[1,2]},"c":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},"p":{"dtype":"U8",
        "shape":[1000003],"data_offsets":[3,1000006]}}"#;
    room.raw("m.safetensors", header, &vec![0; 1_000_006]);
    let said = room.sh("weightfs references --chunk 1000 m.safetensors");
    assert_eq!(said.code, 0, "{said:?}");
    let expected = [
        ("a", "an element of F4 is not a whole byte"),
        ("b", "unknown dtype \"X9\""),
        ("p", "it would have more than 1000000 chunks"),
    ];
    let skipped = document(&references(&said.out), "zarr.json")["attributes"]["skipped"].clone();
    assert_eq!(skipped, json!(expected.map(|(name, reason)| json!({"name": name, "reason": reason}))));
    let line = "m.safetensors: 3 of 4 tensors left out: \"a\": an element of F4 is not a whole byte; \"b\": ";
    assert!(said.err.contains(line), "{said:?}");
    // Nothing is left.
    let said = room.sh("weightfs references --only a --only b m.safetensors -o none.json");
    assert!(said.code == 1 && said.err.contains("no tensor can be referenced, of 2 tensors: \"a\": "), "{said:?}");
    assert!(!room.path("none.json").exists());
}

#[test]
fn output_replaces_a_file_only_with_force() {
    let room = sample();
    let out = room.ok("weightfs references m.safetensors");
    assert_eq!(room.ok("weightfs references m.safetensors -o refs.json"), "");
    assert_eq!(fs::read_to_string(room.path("refs.json")).unwrap(), out);
    fs::write(room.path("refs.json"), "mine").unwrap();
    let said = room.sh("weightfs references m.safetensors -o refs.json");
    assert!(said.code == 1 && said.err.contains("refs.json: exists already; --force replaces it"), "{said:?}");
    assert_eq!(fs::read_to_string(room.path("refs.json")).unwrap(), "mine");
    room.ok("weightfs references --force --out refs.json m.safetensors");
    assert_eq!(fs::read_to_string(room.path("refs.json")).unwrap(), out);
    let model = fs::read(room.path("m.safetensors")).unwrap();
    let said = room.sh("weightfs references --force --out m.safetensors m.safetensors");
    assert!(said.code == 1 && said.err.contains("m.safetensors: part of the source"), "{said:?}");
    assert_eq!(fs::read(room.path("m.safetensors")).unwrap(), model);
}

#[test]
fn errors_are_one_line_and_write_nothing() {
    let room = sample();
    room.ok("mkdir several && cp m.safetensors several/a.safetensors && cp m.safetensors several/b.safetensors");
    room.ok("cp m.safetensors \"$(printf 'x\\377.safetensors')\" && head -c 50 m.safetensors >cut.safetensors");
    for (arguments, code, error) in [
        ("several -o out.json", 1, "several: a directory of 2 models; name one of them"),
        ("x*.safetensors -o out.json", 1, "its path is not UTF-8"),
        ("cut.safetensors -o out.json", 1, "cut.safetensors: "),
        ("--only 'q*' m.safetensors -o out.json", 1, "no tensor matches \"q*\""),
        ("m.safetensors -o none/out.json", 1, "none/out.json: "),
        ("--zarr 4 m.safetensors", 2, "not a whole number from 2 to 3"),
        ("--chunk 0 m.safetensors", 2, "must be more than 0 bytes"),
        ("m.safetensors -o https://host/out.json", 2, "a path is needed here"),
    ] {
        let said = room.sh(&format!("weightfs references {arguments}"));
        let is_line = said.err.lines().count() == 1 && said.err.contains(error);
        assert!(said.code == code && is_line && said.out.is_empty(), "{arguments}: {said:?}");
    }
    let written = fs::read_dir(room.path(".")).unwrap().map(|entry| entry.unwrap().file_name());
    let written: Vec<_> = written.filter(|name| name.to_string_lossy().contains("out.")).collect();
    assert!(written.is_empty(), "{written:?}");
    // A closed pipe.
    assert_eq!(room.sh("weightfs references m.safetensors | head -c 1").code, 0);
}

#[cfg(feature = "parquet")]
#[test]
fn directories_that_fsspec_does_not_read_are_refused() {
    let room = sample();
    room.ok("mkdir full.parquet && touch full.parquet/file");
    let needed = "Parquet references have format 2 of Zarr and no groups; add --flat --zarr 2, or name a .json file";
    for (arguments, error) in [
        ("-o out.parquet", needed),
        ("--flat -o out.parq", needed),
        ("--zarr 2 -o out.parquet", needed),
        ("--zarr 2 --flat -o out.json.parquet", "fsspec does not read Parquet references whose path contains .json; "),
        ("--zarr 2 --flat -o 'out{}.parquet'", "fsspec does not read Parquet references whose path contains {; "),
        ("--zarr 2 --flat --force -o out.parquet", "out.parquet: --force replaces files only; "),
        ("--zarr 2 --flat -o full.parquet", "full.parquet: Directory not empty"),
    ] {
        let said = room.sh(&format!("weightfs references m.safetensors {arguments}"));
        assert!(said.code == 1 && said.err.contains(error) && said.err.lines().count() == 1, "{arguments}: {said:?}");
    }
    assert_eq!(room.ok("ls -d out* 2>/dev/null; ls full.parquet"), "file\n");
}
