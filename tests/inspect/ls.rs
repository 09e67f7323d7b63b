//! `ls`: the tensors that it lists, their order and their columns.

use crate::room::{Output, Room};
use safetensors::Dtype;
use serde_json::{Value, json};

fn sample() -> Room {
    let room = Room::new();
    room.model(
        "m.safetensors",
        &[
            ("model.layers.10.w", Dtype::BF16, &[600, 1000], vec![0; 1_200_000]),
            ("model.layers.2.w", Dtype::BF16, &[3, 5], vec![0; 30]),
            ("model.embed.weight", Dtype::F32, &[2, 3], vec![0; 24]),
            ("lm_head.weight", Dtype::F32, &[], vec![0; 4]),
            ("position", Dtype::I64, &[0], vec![]),
        ],
        &[("format", "pt")],
    );
    room
}

/// The last column of each line.
fn names(out: &str) -> Vec<&str> {
    out.lines().map(|line| line.rsplit("  ").next().unwrap()).collect()
}

#[test]
fn tensors_are_listed_with_dtype_shape_size_and_offset() {
    let room = sample();
    let header = u64::from_le_bytes(std::fs::read(room.path("m.safetensors")).unwrap()[..8].try_into().unwrap()) + 8;
    // The official writer orders the data by dtype, then by name.
    let at = |after: u64| header + after;
    let expected = format!(
        "DTYPE  SHAPE         SIZE  OFFSET   NAME
F32    []             4 B  {:<7}  lm_head.weight
F32    [2,3]         24 B  {:<7}  model.embed.weight
BF16   [3,5]         30 B  {:<7}  model.layers.2.w
BF16   [600,1000]  1.20 MB  {:<7}  model.layers.10.w
I64    [0]            0 B  {:<7}  position
",
        at(0),
        at(4),
        at(1_200_028),
        at(28),
        at(0)
    );
    // SIZE and OFFSET are aligned to the right, unlike in the text above, so only words are compared.
    let words = |text: &str| {
        text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect::<Vec<Vec<_>>>()
    };
    let out = room.ok("weightfs ls m.safetensors");
    assert_eq!(words(&out), words(&expected));
    let width = out.lines().next().unwrap().find("NAME").unwrap();
    assert!(out.lines().all(|line| line.as_bytes()[width - 1] == b' ' && line.as_bytes()[width] != b' '), "{out}");
    let bytes = room.ok("weightfs ls --bytes --no-headings m.safetensors 'model.layers.10*'");
    assert_eq!(bytes, format!("BF16  [600,1000]  1200000  {}  model.layers.10.w\n", at(28)));
    assert_eq!(room.ok("weightfs ls -bn m.safetensors position lm_head.weight | wc -l"), "2\n");
}

#[test]
fn tensors_are_sorted_and_filtered() {
    let room = sample();
    let natural = ["lm_head.weight", "model.embed.weight", "model.layers.2.w", "model.layers.10.w", "position"];
    let reversed: Vec<&str> = natural.iter().rev().copied().collect();
    let by_size = ["model.layers.10.w", "model.layers.2.w", "model.embed.weight", "lm_head.weight", "position"];
    let by_offset = ["position", "lm_head.weight", "model.embed.weight", "model.layers.10.w", "model.layers.2.w"];
    let cases: [(&str, &[&str]); 11] = [
        ("", &natural),
        ("--sort name", &natural),
        ("-r", &reversed),
        ("--sort size", &by_size),
        ("--sort=offset", &by_offset),
        ("--sort offset '*.w' --reverse", &["model.layers.2.w", "model.layers.10.w"]),
        ("'*'", &natural),
        ("'*.weight'", &["lm_head.weight", "model.embed.weight"]),
        ("'*.weight' position", &["lm_head.weight", "model.embed.weight", "position"]),
        ("'model.layers.?.w'", &["model.layers.2.w"]),
        ("'*[0-1]*'", &["model.layers.10.w"]),
    ];
    for (options, expected) in cases {
        let out = room.ok(&format!("weightfs ls -n m.safetensors {options}"));
        assert_eq!(names(&out), expected, "{options}");
    }
}

#[test]
fn tensors_are_sorted_by_several_keys() {
    let room = Room::new();
    room.model(
        "m.safetensors",
        &[
            ("a.2", Dtype::F32, &[2, 3], vec![0; 24]),
            ("a.10", Dtype::F32, &[2, 3], vec![0; 24]),
            ("b", Dtype::BF16, &[2, 3], vec![0; 12]),
            ("c", Dtype::F16, &[12], vec![0; 24]),
            ("d", Dtype::F32, &[], vec![0; 4]),
            ("e", Dtype::F8_E4M3, &[10, 2], vec![0; 20]),
        ],
        &[],
    );
    // The official writer sorts the data by width and name.
    let by_offset = ["a.10", "a.2", "d", "b", "c", "e"];
    assert_eq!(names(&room.ok("weightfs ls -n --sort offset m.safetensors")), by_offset);
    let cases: [(&str, &[&str]); 13] = [
        ("dtype", &["b", "e", "c", "a.10", "a.2", "d"]),
        ("dtype,name", &["b", "e", "c", "a.2", "a.10", "d"]),
        ("dtype,shape", &["b", "e", "c", "d", "a.10", "a.2"]),
        ("dtype,shape,name", &["b", "e", "c", "d", "a.2", "a.10"]),
        ("dtype,-shape,name", &["b", "e", "c", "a.2", "a.10", "d"]),
        ("-dtype,shape,-offset", &["d", "a.2", "a.10", "c", "e", "b"]),
        ("shape", &["d", "a.10", "a.2", "b", "e", "c"]),
        ("-shape,name", &["c", "e", "a.2", "a.10", "b", "d"]),
        ("size,name", &["a.2", "a.10", "c", "e", "b", "d"]),
        ("-size,-name", &["d", "b", "e", "c", "a.10", "a.2"]),
        ("-offset", &["e", "c", "b", "d", "a.2", "a.10"]),
        ("offset,-name", &by_offset),
        ("size,offset --reverse", &["d", "b", "e", "c", "a.2", "a.10"]),
    ];
    for (keys, expected) in cases {
        assert_eq!(names(&room.ok(&format!("weightfs ls -n --sort {keys} m.safetensors"))), expected, "{keys}");
        let list = &room.json(&format!("weightfs ls --json --sort {keys} m.safetensors"))[0]["tensors"];
        let listed: Vec<&str> = list.as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
        assert_eq!(listed, expected, "{keys}");
    }
    room.ok("cp m.safetensors n.safetensors");
    let out = room.ok("weightfs ls -n --sort=-dtype,name m.safetensors n.safetensors 'a.*' b");
    assert_eq!(names(&out), ["m.safetensors:", "a.2", "a.10", "b", "", "n.safetensors:", "a.2", "a.10", "b"]);
    let files = room.ok("weightfs ls -n --files --sort size,-name m.safetensors tensors");
    assert_eq!(names(&files), ["tensors/c", "tensors/a.10", "tensors/a.2", "tensors/e", "tensors/b", "tensors/d"]);
}

#[test]
fn totals_count_matching_tensors_only() {
    let room = sample();
    let out = room.ok("weightfs ls --totals m.safetensors");
    let expected = "\
DTYPE  TENSORS  PARAMETERS     SIZE    SHARE
BF16         2        600K  1.20 MB  100.0 %
F32          2           7     28 B    0.0 %
I64          1           0      0 B    0.0 %
total        5        600K  1.20 MB  100.0 %

MODULE   TENSORS  PARAMETERS     SIZE    SHARE
(none)         1           0      0 B    0.0 %
lm_head        1           1      4 B    0.0 %
model          3        600K  1.20 MB  100.0 %
total          5        600K  1.20 MB  100.0 %
";
    assert_eq!(out, expected);
    let out = room.ok("weightfs ls --totals --depth 2 --bytes m.safetensors '*.w' '*.weight'");
    let expected = "\
DTYPE  TENSORS  PARAMETERS     SIZE    SHARE
BF16         2      600015  1200030  100.0 %
F32          2           7       28    0.0 %
total        4      600022  1200058  100.0 %

MODULE        TENSORS  PARAMETERS     SIZE    SHARE
lm_head             1           1        4    0.0 %
model.embed         1           6       24    0.0 %
model.layers        2      600015  1200030  100.0 %
total               4      600022  1200058  100.0 %
";
    assert_eq!(out, expected);
}

#[test]
fn json_has_one_line_per_tensor_and_exact_numbers() {
    let room = sample();
    let out = room.ok("weightfs ls --json m.safetensors 'model.*'");
    let [ref object] = room.json("weightfs ls --json m.safetensors 'model.*'")[..] else { panic!("{out}") };
    assert_eq!(out.lines().filter(|line| line.starts_with("{\"name\": \"model.")).count(), 3);
    assert_eq!((&object["source"], &object["skipped"]), (&json!("m.safetensors"), &json!([])));
    let first = json!({"name": "model.embed.weight", "dtype": "F32", "shape": [2, 3], "nbytes": 24,
        "shard": "m.safetensors", "offset": object["tensors"][0]["offset"]});
    assert_eq!(object["tensors"][0], first);
    let group = |key: &str, name: &str, tensors, parameters, nbytes| json!({key: name, "tensors": tensors, "parameters": parameters, "nbytes": nbytes});
    let totals = json!({"tensors": 3, "parameters": 600_021, "nbytes": 1_200_054,
        "bits_per_weight": 8.0 * 1_200_054.0 / 600_021.0, "quantized": [],
        "dtypes": [group("dtype", "BF16", 2, 600_015, 1_200_030), group("dtype", "F32", 1, 6, 24)],
        "modules": [group("module", "model", 3, 600_021, 1_200_054)]});
    assert_eq!(object["totals"], totals);
    for empty in ["--totals", "nothing"] {
        assert_eq!(room.json(&format!("weightfs ls --json m.safetensors {empty}"))[0]["tensors"], json!([]));
    }
    // Integers of more than 53 bits are exact too.
    let dim = (1u64 << 63) - 1;
    room.raw("huge.safetensors", &format!(r#"{{"a":{{"dtype":"U8","shape":[0,{dim}],"data_offsets":[0,0]}}}}"#), &[]);
    assert_eq!(room.json("weightfs ls --json huge.safetensors")[0]["tensors"][0]["shape"], json!([0, dim]));
}

#[test]
fn unmatched_pattern_is_an_error() {
    let room = sample();
    room.model("n.safetensors", &[("n", Dtype::U8, &[1], vec![0])], &[]);
    room.ok("mkdir all && cp *.safetensors all");
    let error = |source: &str, pattern: &str| {
        let is_part = !pattern.contains('*');
        let hint = if is_part { format!("; for a part of a name, use \"*{pattern}*\"") } else { String::new() };
        format!("weightfs: {source}: no tensor matches \"{pattern}\"{hint}\n")
    };
    // Arguments, listed names, standard error.
    let cases: [(&str, &[&str], String); 6] = [
        ("m.safetensors weight", &[], error("m.safetensors", "weight")),
        ("--totals m.safetensors '*.x'", &[], error("m.safetensors", "*.x")),
        ("m.safetensors x position y", &["position"], error("m.safetensors", "x") + &error("m.safetensors", "y")),
        ("m.safetensors $'\\xe2\\x80\\xae'", &[], error("m.safetensors", r"\u{202e}")),
        // A match in one of several models is enough.
        ("all n", &["all/n.safetensors:", "n"], String::new()),
        ("all nowhere", &[], error("all", "nowhere")),
    ];
    for (line, expected, err) in cases {
        let output = room.sh(&format!("weightfs ls -n {line}"));
        assert_eq!(names(&output.out), expected, "{line}");
        assert_eq!((output.code, &output.err), (i32::from(!err.is_empty()), &err), "{line}");
    }
    // No unmatched pattern is reported for a file that cannot be opened. Several patterns may match the same tensor.
    let output = room.sh("echo x >broken.safetensors; weightfs ls broken.safetensors n");
    assert!(output.code == 1 && !output.err.contains("matches"), "{output:?}");
    assert_eq!(names(&room.ok("weightfs ls -n m.safetensors '*' position 'pos*'")).len(), 5);
}

#[test]
fn several_sources_are_listed_one_after_the_other() {
    let room = sample();
    room.model("n.safetensors", &[("n", Dtype::U8, &[1], vec![0]), ("position", Dtype::U8, &[1], vec![0])], &[]);
    let out = room.ok("weightfs ls -n n.safetensors m.safetensors 'pos*' n");
    assert_eq!(names(&out), ["n.safetensors:", "n", "position", "", "m.safetensors:", "position"]);
    assert_eq!(room.ok("weightfs ls -n *.safetensors | grep -c position"), "2\n");
    assert_eq!(room.json("weightfs ls --json n.safetensors m.safetensors").len(), 2);
    let output = room.sh("weightfs ls -n n.safetensors absent.safetensors m.safetensors");
    let err = "weightfs: n.safetensors and 1 more: no tensor matches \"absent.safetensors\"\n";
    assert_eq!((output.code, &output.err[..]), (1, err));
    // A broken source does not affect the others.
    let output = room.sh("head -c 9 n.safetensors >x.safetensors; weightfs ls -n x.safetensors m.safetensors");
    assert_eq!((output.code, names(&output.out).len()), (1, 6), "{output:?}");
}

#[test]
fn unusual_dtypes_and_empty_model_are_listed() {
    let room = Room::new();
    let header = concat!(
        r#"{"c":{"dtype":"C64","shape":[2],"data_offsets":[0,16]},"f4":{"dtype":"F4","shape":[2,4],"data_offsets":[16,20]},"#,
        r#""f6":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[20,23]},"#,
        r#""i4":{"dtype":"I4\u001b[31m","shape":[2],"data_offsets":[23,24]},"none":{"dtype":"F32","shape":[3,0],"data_offsets":[24,24]}}"#
    );
    room.raw("m.safetensors", header, &[0; 24]);
    let output = room.sh("weightfs ls -bn m.safetensors | tr -s ' '");
    let at = 8 + header.len();
    let expected = format!(
        "C64 [2] 16 {} c\nF4 [2,4] 4 {} f4\nF6_E2M3 [4] 3 {} f6\nI4\\u{{1b}}[31m [2] 1 {} i4\nF32 [3,0] 0 {} none\n",
        at,
        at + 16,
        at + 20,
        at + 23,
        at + 24
    );
    assert_eq!(output.out, expected);
    assert!(!output.err.contains('\u{1b}'), "{output:?}");
    let totals = &room.json("weightfs ls --json --totals m.safetensors")[0]["totals"];
    assert_eq!((&totals["parameters"], &totals["nbytes"]), (&json!(16), &json!(24)));
    room.raw("empty.safetensors", "{}", &[]);
    assert_eq!(room.ok("weightfs ls empty.safetensors"), "DTYPE  SHAPE  SIZE  OFFSET  NAME\n");
    let total = "total        0           0   0 B  0.0 %\n";
    assert!(room.ok("weightfs ls --totals empty.safetensors").contains(total));
    assert_eq!(room.json("weightfs ls --json empty.safetensors")[0]["tensors"], json!([]));
}

#[test]
fn every_kind_of_source_is_listed() {
    let room = sample();
    room.sharded("s");
    room.dataset("set");
    let out = room.ok("weightfs ls -n s.safetensors.index.json | tr -s ' '");
    let lines: Vec<Vec<&str>> = out.lines().map(|line| line.split(' ').collect()).collect();
    assert_eq!(lines[0][..4], ["F32", "[2]", "8", "B"]);
    assert_eq!(lines[0][5..], ["s-00001-of-00002.safetensors", "a.0.w"]);
    assert_eq!(lines[2][5..], ["s-00002-of-00002.safetensors", "b.w"]);
    assert_eq!(room.ok("weightfs ls -n set"), "U8  [4,3]     12 B  -  2 parts  images\n");
    let array = &room.json("weightfs ls --json set/dataset_manifest.json")[0]["tensors"][0];
    assert_eq!((&array["shape"], array["extents"].as_array().unwrap().len()), (&json!([4, 3]), 2));
    // The models of a folder are listed one after the other. A broken one does not affect the others.
    room.ok("mkdir -p all/sub && cp m.safetensors all && cp set/x.safetensors all/sub && echo text >all/n.safetensors");
    let output = room.sh("weightfs ls -n all '*es' position");
    let names: Vec<&str> = output.out.lines().map(|line| line.rsplit("  ").next().unwrap()).collect();
    assert_eq!(
        (output.code, names),
        (1, vec!["all/m.safetensors:", "position", "", "all/sub/x.safetensors:", "images"])
    );
    assert!(output.err.starts_with("weightfs: all/n.safetensors: too short: 5 bytes"), "{output:?}");
    let sources: Vec<Value> =
        room.json("weightfs ls --json all").into_iter().map(|model| model["source"].clone()).collect();
    assert_eq!(sources, ["all/m.safetensors", "all/sub/x.safetensors"]);
    // A directory with one model is listed as that model.
    assert_eq!(room.ok("weightfs ls -n all/sub").lines().count(), 1);
}

#[test]
fn errors_are_one_line() {
    let room = sample();
    room.ok("head -c 1000 m.safetensors >cut.safetensors; mkdir empty");
    let cases = [
        ("weightfs ls absent", 1, "absent: No such file or directory"),
        ("weightfs ls empty", 1, "empty: a directory without models, whose names end in .safetensors, "),
        ("weightfs ls cut.safetensors", 1, "cut.safetensors: truncated: "),
        ("weightfs ls", 2, "SOURCE"),
        ("weightfs ls m.safetensors '[a'", 2, "'[a' for '[SOURCE|PATTERN]...'"),
        (
            "weightfs ls m.safetensors --sort dtype,colour",
            2,
            "'colour' for '--sort <KEY[,KEY...]>' [possible values: name, dtype, shape, size, offset]",
        ),
        ("weightfs ls m.safetensors --sort ''", 2, "[possible values: name, dtype, shape, size, offset]"),
        ("weightfs ls --files m.safetensors --sort size,dtype", 1, "--files sorts by name, size or offset"),
        ("weightfs ls m.safetensors --depth x", 2, "'x' for '--depth <N>': not a whole number from 0"),
        ("weightfs ls --bogus m.safetensors", 2, "'--bogus'"),
    ];
    for (line, code, message) in cases {
        let output = room.sh(line);
        assert!(output.code == code && output.out.is_empty() && output.err.contains(message), "{line}: {output:?}");
        assert_eq!(output.err.lines().count(), 1, "{line}: {output:?}");
    }
    let Output { code, out, err } = room.sh("weightfs ls -n --lenient cut.safetensors");
    assert_eq!((code, names(&out)), (0, vec!["lm_head.weight", "model.embed.weight", "position"]));
    assert_eq!(err.matches("skipped").count(), 2, "{err}");
    let skipped = &room.json("weightfs ls --json --lenient cut.safetensors")[0]["skipped"];
    assert_eq!(skipped.as_array().unwrap().len(), 2);
}

#[test]
fn hostile_names_are_escaped_for_people_and_exact_in_json() {
    let room = Room::new();
    let long = "重".repeat(2000);
    let hostile = ["\u{1b}[31mred\u{7}", "line\nbreak", "\u{202e}right", "", " ", &long];
    let tensors: Vec<_> = hostile.iter().map(|name| (*name, Dtype::U8, &[1usize][..], vec![0])).collect();
    room.model("\u{1b}]0;m.safetensors", &tensors, &[]);
    let room_ls = |options: &str| room.ok(&format!("weightfs ls {options} *m.safetensors"));
    let out = room_ls("-n");
    assert!(!out.chars().any(|char| char.is_control() && char != '\n') && !out.contains('\u{202e}'), "{out:?}");
    assert_eq!(out.lines().count(), hostile.len());
    for shown in [r"\u{1b}[31mred\u{7}", r"line\nbreak", r"\u{202e}right", &long] {
        assert!(out.lines().any(|line| line.ends_with(shown)), "{shown}");
    }
    let object = &room.json("weightfs ls --json *m.safetensors")[0];
    let mut listed: Vec<&str> =
        object["tensors"].as_array().unwrap().iter().map(|t| t["name"].as_str().unwrap()).collect();
    let mut expected = hostile;
    listed.sort_unstable();
    expected.sort_unstable();
    assert_eq!(listed, expected);
    assert!(!room_ls("--totals").contains('\u{1b}'));
}
