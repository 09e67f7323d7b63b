//! Hostile names and values: terminal control characters, huge lengths and huge counts. No command prints them raw.

use crate::room::Room;
use serde_json::json;

/// A colour escape, a bell, line ends, a tab, right-to-left text, a line separator, DEL and C1 control characters.
const HOSTILE: &str = "\u{1b}[31m\u{7}\r\n\t\u{202e}\u{2028}\u{7f}\u{9b}2J\u{85}";

/// Two files with hostile headers. Their names contain `HOSTILE` too.
fn room() -> Room {
    let room = Room::new();
    let long = "k".repeat(70_000);
    let header = json!({
        "__metadata__": {
            HOSTILE: HOSTILE, "": "", &long: &long, "modelspec.title": HOSTILE, format!("modelspec.{HOSTILE}"): HOSTILE,
            "modelspec.resolution": HOSTILE, "modelspec.thumbnail": &long, format!("ss_{HOSTILE}"): HOSTILE,
            "ss_dataset_dirs": json!({HOSTILE: {"n_repeats": 1, "img_count": u64::MAX}}).to_string(),
            "ss_tag_frequency": json!({HOSTILE: {HOSTILE: u64::MAX, "b": 1}, "c": {HOSTILE: 5}}).to_string(),
            "ss_network_args": HOSTILE, "sshs_model_hash": HOSTILE, "ss_training_started_at": "1e300",
        },
        HOSTILE: {"dtype": HOSTILE, "shape": [3], "data_offsets": [0, 3], HOSTILE: HOSTILE},
        format!("{long}.x"): {"dtype": &long, "shape": vec![1; 5000], "data_offsets": [3, 4]},
        format!("{HOSTILE}.{HOSTILE}"): {"dtype": "F32", "shape": [0], "data_offsets": [4, 4]},
    });
    room.raw(&format!("{HOSTILE}m.safetensors"), &header.to_string(), &[0; 4]);
    // A file in which hardly any entry is valid.
    let header = json!({
        "__metadata__": {HOSTILE: 5},
        HOSTILE: {"dtype": HOSTILE, "shape": [3], "data_offsets": [0, 30]},
        format!("{HOSTILE}2"): {"dtype": "U8", "shape": [2, HOSTILE], "data_offsets": [0, 2]},
        "left": {"dtype": "U8", "shape": [2], "data_offsets": [1, 3]},
    });
    room.raw(&format!("{HOSTILE}n.safetensors"), &header.to_string(), &[0; 4]);
    room
}

const COMMANDS: [&str; 12] = [
    "ls",
    "ls --lenient",
    "ls --totals --lenient --depth 2",
    "ls --json --lenient",
    "inspect --lenient",
    "inspect --all --lenient",
    "inspect --json --lenient",
    "id",
    "id --json",
    "summary",
    "check --values",
    "check --json --values",
];

#[test]
fn control_characters_never_reach_the_terminal() {
    let room = room();
    for command in COMMANDS {
        let output = room.sh(&format!("weightfs {command} ."));
        let is_unsafe = |char: char| {
            char != '\n' && (char.is_control() || matches!(char, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}'))
        };
        for text in [&output.out, &output.err] {
            assert!(!text.contains(is_unsafe), "{command}: {}", text.escape_debug());
        }
        // Each message is one line.
        assert!(output.err.lines().all(|line| line.starts_with("weightfs: ")), "{command}: {}", output.err);
        assert!(output.out.contains("m.safetensors"), "{command}: {output:?}");
    }
}

#[test]
fn json_keeps_names_and_values_exact() {
    let room = room();
    let [ref m, ref n] = room.json("weightfs ls --json --lenient .")[..] else { panic!() };
    let name = |at: usize| m["tensors"][at]["name"].as_str().unwrap();
    let long = "k".repeat(70_000);
    assert_eq!([name(0), name(1), name(2)], [HOSTILE, &format!("{HOSTILE}.{HOSTILE}"), &format!("{long}.x")]);
    assert_eq!(m["source"], format!("./{HOSTILE}m.safetensors"));
    assert_eq!((&m["tensors"][0]["dtype"], &m["totals"]["modules"][1]["module"]), (&json!(HOSTILE), &json!(HOSTILE)));
    assert_eq!((&n["tensors"][0]["name"], n["skipped"].as_array().unwrap().len()), (&json!("left"), 4));
    let [ref m, _] = room.json("weightfs inspect --json --lenient .")[..] else { panic!() };
    assert_eq!((&m["metadata"][HOSTILE], &m["metadata"][&long]), (&json!(HOSTILE), &json!(long)));
    assert_eq!(m["training"]["folders"][0]["name"], HOSTILE);
    assert_eq!(m["training"]["frequent_tags"][0][0], HOSTILE.trim());
    let reports = room.json("weightfs check --json .");
    for report in reports {
        let findings = report["findings"].as_array().unwrap();
        assert!(findings.iter().any(|finding| finding["subject"] == HOSTILE), "{report:#}");
        assert!(findings.iter().all(|finding| finding["file"] == report["source"]), "{report:#}");
    }
}

#[test]
fn output_for_people_is_short() {
    let room = room();
    for options in ["", "--all"] {
        let out = room.sh(&format!("weightfs inspect --lenient {options} .")).out;
        assert!(out.lines().all(|line| line.len() < 250) && out.len() < 10_000, "{out}");
    }
    let out = room.sh("weightfs check .").out;
    assert!(out.lines().all(|line| line.len() < 1000), "{out}");
}

#[test]
fn errors_quote_no_file_that_a_link_leads_to() {
    let room = Room::new();
    let snapshot = "repo/snapshots/1";
    room.sh(&format!(
        "mkdir -p up main far else {snapshot}/unet repo/blobs store/blobs store/manifests/a/b/c bare/snapshots/1
        echo 'root:secret and more words' >secret; cp secret else/m.safetensors
        ln -s ../secret up/s.safetensors; ln -s ../secret main/m.safetensors; ln -s ../else far/dir
        printf '[\"root:secret\"]' >json; ln -s ../../../../../json store/manifests/a/b/c/tag
        ln -s ../json main/n.safetensors.index.json
        cp secret repo/blobs/5; ln -s ../../blobs/5 {snapshot}/s.safetensors
        ln -s ../../../blobs/5 {snapshot}/unet/m.safetensors; ln -s ../../../secret bare/snapshots/1/m.safetensors"
    ));
    let index = json!({"weight_map": {"w": "s.safetensors"}}).to_string();
    for dir in ["up", snapshot] {
        std::fs::write(room.path(dir).join("model.safetensors.index.json"), &index).unwrap();
    }
    let hidden = [
        "up",
        "up/model.safetensors.index.json",
        "main",
        "main/m.safetensors",
        "main/n.safetensors.index.json",
        "far",
        "store/manifests/a/b/c/tag",
        "bare/snapshots/1",
    ];
    let own = ["else/m.safetensors", "far/dir/m.safetensors"];
    for command in ["ls", "ls --lenient", "check", "inspect", "inspect --lenient", "id", "summary", "ls --files"] {
        let said = |source: &str, environment: &str| {
            let said = room.sh(&format!("{environment} weightfs {command} {source}"));
            // The files of directories of models are listed although the models are broken.
            assert!(said.code > 0 || command == "ls --files", "{command} {source}: {said:?}");
            said.out + &said.err
        };
        for source in hidden {
            let text = said(source, "");
            assert!(!text.contains("root:"), "{command} {source}: {text}");
            assert!(text.contains("a link leads to it") || command == "ls --files", "{command} {source}: {text}");
        }
        let text = said("model.safetensors.index.json", "cd up;");
        assert!(!text.contains("root:") && text.contains("a link leads to it"), "{command}: {text}");
        assert!(said("main/m.safetensors", "RUST_LOG=info").contains("root:secret"), "{command}");
        // The links of a snapshot in the Hugging Face cache lead to files of its repository.
        let unet = format!("{snapshot}/unet/m.safetensors");
        let index = format!("{snapshot}/model.safetensors.index.json");
        assert!(said("s.safetensors", &format!("cd {snapshot};")).contains("root:secret"), "{command}");
        for source in own.into_iter().chain([&*unet, &index]) {
            let text = said(source, "");
            assert!(text.contains("root:secret"), "{command} {source}: {text}");
        }
    }
}
