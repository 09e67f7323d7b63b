//! Hostile names and values in files and arguments: messages, logs and listings never print terminal controls.

use crate::support::{Scene, pattern, require_fuse};
use safetensors::Dtype;
use serde_json::json;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::symlink;
use std::path::Path;

/// A colour sequence, a bell, line breaks, C1 controls, direction marks, line and paragraph separators, zero-width
/// characters and a tag character.
const EVIL: &str =
    "\u{1b}[31m\u{7}\r\n\t\u{7f}\u{85}\u{9b}2J\u{202e}\u{2066}\u{200f}\u{61c}\u{2028}\u{2029}\u{200b}\u{feff}\u{e0041}";

/// Whether a character is forbidden in messages.
fn is_evil(char: char) -> bool {
    char.is_control() || !char.is_ascii() && EVIL.contains(char)
}

/// Whether a character is forbidden in file names. Names may hold any character beyond ASCII.
fn is_evil_in_names(char: char) -> bool {
    char.is_ascii_control()
}

/// Checks that every line satisfies `begins`, is shorter than 11,000 bytes and holds no forbidden character.
fn assert_messages(text: &[u8], begins: impl Fn(&str) -> bool, case: &str) {
    let text = std::str::from_utf8(text).unwrap_or_else(|error| panic!("{case}: {error}"));
    let lines: Vec<&str> = text.strip_suffix('\n').unwrap_or_else(|| panic!("{case}: {text:?}")).split('\n').collect();
    for line in lines {
        assert!(begins(line) && !line.contains(is_evil), "{case}: {line:?}");
        assert!(line.len() < 11_000, "{case}: a line of {} bytes", line.len());
    }
}

/// Checks that no name in a directory holds a forbidden character. Returns the names.
fn assert_names(dir: &Path) -> Vec<OsString> {
    let names: Vec<OsString> = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    for name in &names {
        let text = name.to_str().unwrap_or_else(|| panic!("{name:?}"));
        assert!(!text.contains(is_evil_in_names), "{text:?}");
        assert!(std::fs::symlink_metadata(dir.join(name)).is_ok(), "{text:?}");
    }
    names
}

/// `text` as a JSON string.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).unwrap()
}

/// Runs the program. Returns its exit code and standard error.
fn run(scene: &Scene, args: &[OsString]) -> (i32, Vec<u8>) {
    let _ = std::fs::remove_file(scene.path("log"));
    let output = scene.command("weightfs").args(args).output().unwrap();
    assert!(output.stdout.is_empty());
    (output.status.code().unwrap(), output.stderr)
}

/// Writes the files of a case. Returns the arguments of the call and its exit code.
type Make = fn(&Scene, &str) -> (Vec<OsString>, i32);

/// Writes a file with this header. Returns the arguments that read it without mounting it.
fn file(scene: &Scene, header: &str, mode: &str) -> Vec<OsString> {
    scene.raw("model.safetensors", header.as_bytes(), &[7; 4]);
    args(&["--fake", mode, "model.safetensors", "mnt"])
}

/// Writes an index with this text beside a shard.
fn index(scene: &Scene, text: &str, mode: &str) -> Vec<OsString> {
    scene.model("a.safetensors", &[("a", Dtype::U8, &[2], pattern(2))], &[]);
    std::fs::write(scene.path("model.safetensors.index.json"), text).unwrap();
    args(&["--fake", mode, "model.safetensors.index.json", "mnt"])
}

/// Writes a manifest with this text beside two shards. `evil` is the dtype in the second shard.
fn manifest(scene: &Scene, text: &str, evil: &str) -> Vec<OsString> {
    let dtype = quoted(evil);
    scene.raw("a.safetensors", br#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}"#, &[1; 2]);
    scene.raw(
        "b.safetensors",
        format!(r#"{{"x":{{"dtype":{dtype},"shape":[2],"data_offsets":[0,2]}}}}"#).as_bytes(),
        &[1; 2],
    );
    std::fs::write(scene.path("dataset_manifest.json"), text).unwrap();
    args(&["--fake", "--lenient", "dataset_manifest.json", "mnt"])
}

fn args(args: &[&str]) -> Vec<OsString> {
    args.iter().filter(|arg| !arg.is_empty()).map(OsString::from).collect()
}

const STRICT: &str = "";
const LENIENT: &str = "--lenient";

/// Places in a file that hold a string of any length.
const IN_FILES: [(&str, Make); 27] = [
    ("tensor", |s, evil| {
        (file(s, &format!(r#"{{{}:{{"dtype":"U8","shape":[3],"data_offsets":[0,4]}}}}"#, quoted(evil)), STRICT), 1)
    }),
    ("tensor left out", |s, evil| {
        (file(s, &format!(r#"{{{}:{{"dtype":"U8","shape":[3],"data_offsets":[0,4]}}}}"#, quoted(evil)), LENIENT), 0)
    }),
    ("tensor twice", |s, evil| {
        let entry = format!(r#"{}:{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#, quoted(evil));
        (file(s, &format!("{{{entry},{entry}}}"), STRICT), 1)
    }),
    ("tensor twice, left out", |s, evil| {
        let entry = format!(r#"{}:{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}"#, quoted(evil));
        (file(s, &format!("{{{entry},{entry}}}"), LENIENT), 0)
    }),
    ("invalid JSON in an entry", |s, evil| (file(s, &format!(r#"{{{}:{{"dtype":}}}}"#, quoted(evil)), STRICT), 1)),
    ("an entry that is a string", |s, evil| (file(s, &format!(r#"{{"a":{}}}"#, quoted(evil)), STRICT), 1)),
    ("a header that is a string", |s, evil| (file(s, &quoted(evil), STRICT), 1)),
    ("a shape that is a string", |s, evil| {
        (file(s, &format!(r#"{{"a":{{"dtype":"U8","shape":[{}],"data_offsets":[0,4]}}}}"#, quoted(evil)), LENIENT), 0)
    }),
    ("dtype", |s, evil| {
        (file(s, &format!(r#"{{"a":{{"dtype":{},"shape":[3],"data_offsets":[0,4]}}}}"#, quoted(evil)), STRICT), 0)
    }),
    ("dtype of too many elements", |s, evil| {
        let shape = "[9223372036854775808,4]";
        (file(s, &format!(r#"{{"a":{{"dtype":{},"shape":{shape},"data_offsets":[0,4]}}}}"#, quoted(evil)), STRICT), 1)
    }),
    ("key", |s, evil| (file(s, &format!(r#"{{"__metadata__":{{{}:1}}}}"#, quoted(evil)), STRICT), 1)),
    ("key left out", |s, evil| (file(s, &format!(r#"{{"__metadata__":{{{}:1}}}}"#, quoted(evil)), LENIENT), 0)),
    ("index: tensor", |s, evil| (index(s, &json!({"weight_map": {evil: "a.safetensors"}}).to_string(), STRICT), 1)),
    ("index: tensor left out", |s, evil| {
        (index(s, &json!({"weight_map": {evil: "a.safetensors"}}).to_string(), LENIENT), 0)
    }),
    ("index: shard", |s, evil| {
        let shard = format!("{evil}.safetensors");
        (index(s, &json!({"weight_map": {"a": "a.safetensors", "b": shard}}).to_string(), STRICT), 1)
    }),
    ("index: absolute shard", |s, evil| {
        (index(s, &json!({"weight_map": {"a": format!("/{evil}.safetensors")}}).to_string(), STRICT), 1)
    }),
    ("index: shard elsewhere", |s, evil| {
        (index(s, &json!({"weight_map": {"a": format!("{evil}/../a.safetensors")}}).to_string(), LENIENT), 1)
    }),
    ("index: shard of another kind", |s, evil| (index(s, &json!({"weight_map": {"a": evil}}).to_string(), STRICT), 1)),
    ("index: a string as map", |s, evil| (index(s, &json!({"weight_map": evil}).to_string(), STRICT), 1)),
    ("index: a string", |s, evil| (index(s, &quoted(evil), STRICT), 1)),
    ("manifest: version", |s, evil| (manifest(s, &json!({"format_version": evil, "shards": []}).to_string(), evil), 1)),
    ("manifest: shard", |s, evil| {
        let shards = json!([{"shard_path": format!("{evil}.safetensors"), "samples_count": 1, "bytes": 1}]);
        (manifest(s, &json!({"format_version": "1", "shards": shards}).to_string(), evil), 1)
    }),
    ("manifest: shards are a string", |s, evil| {
        (manifest(s, &json!({"format_version": "1", "shards": evil}).to_string(), evil), 1)
    }),
    ("manifest: a shard is a string", |s, evil| {
        (manifest(s, &json!({"format_version": "1", "shards": [evil]}).to_string(), evil), 1)
    }),
    ("manifest: a number is a string", |s, evil| {
        let shards = json!([{"shard_path": "a.safetensors", "samples_count": evil, "bytes": 1}]);
        (manifest(s, &json!({"format_version": "1", "shards": shards}).to_string(), evil), 1)
    }),
    ("manifest: a string", |s, evil| (manifest(s, &quoted(evil), evil), 1)),
    ("dataset: dtype", |s, evil| {
        let shard = |name: &str| json!({"shard_path": name, "samples_count": 1, "bytes": 1});
        let shards = [shard("a.safetensors"), shard("b.safetensors")];
        (manifest(s, &json!({"format_version": "1", "shards": shards}).to_string(), evil), 0)
    }),
];

#[test]
fn strings_from_files_are_escaped_in_messages() {
    require_fuse!();
    let evils = [
        format!("{EVIL}\0{EVIL}"),
        "\u{1b}]0;x".repeat(200_000),
        "\u{202e}重".repeat(200_000),
        "x".repeat(1 << 20),
        format!("{}\n{EVIL}", "x".repeat(119)),
    ];
    for (case, make) in IN_FILES {
        for evil in &evils {
            let scene = Scene::new();
            scene.mkdir("mnt");
            let (mut args, code) = make(&scene, evil);
            args.insert(0, "--log-file=log".into());
            let (found, stderr) = run(&scene, &args);
            let case = format!("{case} ({} bytes)", evil.len());
            assert_eq!(found, code, "{case}: {}", String::from_utf8_lossy(&stderr).escape_debug());
            assert_messages(&stderr, |line| line.starts_with("weightfs: "), &case);
            // The log has the warnings too.
            let log = std::fs::read(scene.path("log")).unwrap();
            if code == 0 {
                let begins = |line: &str| line.starts_with("20") && line[20..].starts_with(" WARN  [");
                assert_messages(&log, begins, &case);
            }
        }
    }
}

#[test]
fn paths_and_arguments_are_escaped_in_messages() {
    require_fuse!();
    let scene = Scene::new();
    scene.sample();
    scene.mkdir("mnt");
    // File names can hold any byte except NUL and slash.
    let evils =
        [OsString::from(EVIL), OsString::from_vec([b"\xff\xc2\x1b[31m\n".as_slice(), EVIL.as_bytes()].concat())];
    for evil in evils {
        let with = |before: &str, after: &str| [OsStr::new(before), &evil, OsStr::new(after)].into_iter().collect();
        let one = |word: &str| OsString::from(word);
        let model: OsString = with("", ".safetensors");
        let full: OsString = with("full", "");
        std::fs::write(scene.path(&model), b"no model").unwrap();
        std::fs::create_dir_all(scene.path(&full).join("x")).unwrap();
        let calls: [(Vec<OsString>, i32); 17] = [
            (vec![evil.clone(), one("mnt")], 1),
            (vec![evil.clone()], 1),
            (vec![model.clone(), one("mnt")], 1),
            (vec![full.clone(), one("mnt")], 1),
            (vec![one("sample.safetensors"), evil.clone()], 1),
            (vec![one("sample.safetensors"), full.clone()], 1),
            (vec![one("sample.safetensors"), model.clone()], 2),
            (vec![one("sample.safetensors"), one("mnt"), evil.clone()], 2),
            (vec![one("sample.safetensors"), one("mnt"), one("--log-file"), with("absent/", "")], 1),
            (vec![one("sample.safetensors"), one("mnt"), one("-o"), evil.clone()], 2),
            (vec![one("sample.safetensors"), one("mnt"), one("-o"), with("uid=", "")], 2),
            (vec![one("sample.safetensors"), one("mnt"), with("--views=", "")], 2),
            (vec![one("sample.safetensors"), one("mnt"), with("--uid=", "")], 2),
            (vec![one("sample.safetensors"), one("mnt"), with("--", "")], 2),
            (vec![one("umount"), evil.clone()], 1),
            (vec![one("umount"), full.clone()], 1),
            (vec![one("x".repeat(100_000).as_str()), one("mnt")], 1),
        ];
        for (args, code) in calls {
            let (found, stderr) = run(&scene, &args);
            let case = format!("{args:?}");
            assert_eq!(found, code, "{case}: {}", String::from_utf8_lossy(&stderr).escape_debug());
            assert_messages(&stderr, |line| line.starts_with("weightfs: "), &case);
        }
    }
}

/// A name for each character of [`EVIL`], and names that hold all of them.
fn evil_names() -> Vec<String> {
    let mut names: Vec<String> = EVIL.chars().map(|char| format!("a.{char}b")).collect();
    names.extend([EVIL.to_owned(), format!("{EVIL}.{EVIL}.\0"), EVIL.repeat(10), "\u{9b}".repeat(1 << 19)]);
    names.sort();
    names.dedup();
    names
}

#[test]
fn names_in_a_mount_have_no_ascii_control_characters() {
    require_fuse!();
    let scene = Scene::new();
    let names = evil_names();
    let members = names
        .iter()
        .enumerate()
        .map(|(at, name)| format!(r#"{}:{{"dtype":"U8","shape":[1],"data_offsets":[{at},{}]}}"#, quoted(name), at + 1));
    let mut members: Vec<String> = members.collect();
    let metadata: serde_json::Map<_, _> =
        names.iter().map(|name| (name.clone(), format!("data:{name};base64,{EVIL}").into())).collect();
    members.push(format!("\"__metadata__\":{}", serde_json::Value::from(metadata)));
    let odd = format!(r#""odd":{{"dtype":{},"shape":[0],"data_offsets":[{1},{1}]}}"#, quoted(EVIL), names.len());
    members.push(odd);
    let bytes: Vec<u8> = (0..names.len() as u8).collect();
    let header = format!("{{{}}}", members.join(","));
    // The name of the file itself is hostile too.
    let source = scene.raw(&format!("{EVIL}.safetensors"), header.as_bytes(), &bytes);
    let mount = scene.mount(&source, &[]);
    let mut dirs = vec![mount.point.clone()];
    let mut files = 0;
    while let Some(dir) = dirs.pop() {
        for name in assert_names(&dir) {
            let path = dir.join(name);
            if path.is_dir() {
                dirs.push(path);
            } else {
                files += 1;
            }
        }
    }
    // Each name has a file in tensors, tree, metadata, npy, f32, safetensors, stats and plots.
    assert!(files > 8 * names.len(), "{files}");
    for (dir, ending) in [("tensors", ""), ("npy", ".npy"), ("stats", ".json")] {
        assert_eq!(
            mount.list(dir).iter().filter(|name| *name != &format!("odd{ending}")).count(),
            names.len(),
            "{dir}"
        );
    }
    // Other characters are unchanged.
    for char in EVIL.chars().filter(|char| !char.is_ascii()) {
        assert!(mount.list("tensors").iter().any(|name| name.contains(char)), "{char:?}");
    }
    // The JSON files hold the exact names.
    let index = mount.read("index.json");
    let listed: serde_json::Value = serde_json::from_slice(&index).unwrap();
    for (at, tensor) in listed["tensors"].as_array().unwrap().iter().enumerate().take(names.len()) {
        assert_eq!(tensor["name"], names[at]);
        assert_eq!(mount.read(tensor["file"].as_str().unwrap()), [at as u8]);
    }
    let metadata: std::collections::BTreeMap<String, String> =
        serde_json::from_slice(&mount.read("metadata.json")).unwrap();
    assert_eq!(metadata.keys().cloned().collect::<Vec<_>>(), names);
    for (key, value) in &metadata {
        assert_eq!(mount.read(format!("metadata/{}", weightfs::name::encode_name(key))), value.as_bytes());
    }
    for text in ["index.json", "metadata.json", "SHA256SUMS"] {
        let text = String::from_utf8(mount.read(text)).unwrap();
        assert!(!text.contains(|char| char != '\n' && is_evil_in_names(char)), "{text:.300}");
    }
    // /proc/mounts holds the name of the source, in which the kernel escapes only white space and backslashes.
    let list = std::fs::read_to_string("/proc/mounts").unwrap();
    let line = list.lines().find(|line| line.contains(mount.point.to_str().unwrap())).unwrap();
    assert!(!line.contains(is_evil) && line.contains(r"\134u{1b}[31m"), "{line:?}");
    assert_messages(mount.log().as_bytes(), |line| line.starts_with("weightfs: "), "log");
}

#[test]
fn hostile_file_names_in_folder_are_escaped() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("models");
    let bytes = |name: &[u8]| OsString::from_vec(name.to_vec());
    let evil = bytes(EVIL.as_bytes());
    let ending = |name: &OsStr, ending: &str| dir.join([name, OsStr::new(ending)].into_iter().collect::<OsString>());
    let one = std::fs::read(scene.model("one", &[("w", Dtype::U8, &[3], pattern(3))], &[])).unwrap();
    let write = |path: &Path, content: &[u8]| std::fs::write(path, content).unwrap();
    write(&ending(&evil, ".safetensors"), &one);
    write(&ending(&evil, ".txt"), b"a link");
    write(&ending(OsStr::new("broken\n\u{1b}[2J"), ".safetensors"), b"broken");
    write(&ending(&bytes(b"raw \xff\xfe"), ".safetensors"), &one);
    write(&ending(&bytes(b"\x9b\x9b"), ".txt"), b"raw");
    write(&ending(OsStr::new("\u{1b}"), ""), b"escape");
    write(&ending(OsStr::new("%1B"), ""), b"literal");
    write(&ending(OsStr::new("50%20 \u{200d}é"), ".safetensors"), &one);
    write(
        &ending(OsStr::new("torn\u{202e}"), ".safetensors.index.json"),
        b"{\"weight_map\":{\"\xc2\x9b\":\"\xc2\x9b\"}}",
    );
    let long = "重".repeat(80);
    write(&ending(OsStr::new(&long), ".safetensors"), b"broken");
    std::fs::create_dir(dir.join("sub\rdir")).unwrap();
    write(&dir.join("sub\rdir").join("in\tner.safetensors"), &one);
    symlink("nowhere\u{1b}[31m\n", dir.join("dangling\u{7}.safetensors")).unwrap();
    let mount = scene.mount(&dir, &[]);
    let mut names: Vec<String> =
        assert_names(&mount.point).into_iter().map(|name| name.into_string().unwrap()).collect();
    names.sort();
    let encoded = "%1B[31m%07%0D%0A%09%7F%C2%85%C2%9B2J%E2%80%AE%E2%81%A6%E2%80%8F%D8%9C%E2%80%A8%E2%80%A9\u{200b}\u{feff}\u{e0041}";
    let mut expected = [
        encoded,
        &format!("{encoded}.txt"),
        "broken%0A%1B[2J.error.txt",
        "raw %FF%FE",
        "%9B%9B.txt",
        "%1B",
        "%1B~2",
        // A harmless name is kept.
        "50%20 \u{200d}é",
        "torn%E2%80%AE.error.txt",
        &format!("{}.error.txt", "重".repeat(76)),
        "sub%0Ddir",
        "dangling%07.error.txt",
    ];
    expected.sort_unstable();
    assert_eq!(names, expected);
    for model in [encoded, "raw %FF%FE", "50%20 \u{200d}é", "sub%0Ddir/in%09ner"] {
        assert_eq!(mount.read(format!("{model}/tensors/w")), pattern(3), "{model}");
    }
    for (link, content) in
        [(&*format!("{encoded}.txt"), "a link"), ("%9B%9B.txt", "raw"), ("%1B", "literal"), ("%1B~2", "escape")]
    {
        assert_eq!(mount.read(link), content.as_bytes(), "{link}");
    }
    for error in names.iter().filter(|name| name.ends_with(".error.txt")) {
        assert_messages(&mount.read(error), |_| true, error);
    }
    let log = mount.log();
    assert_eq!(log.lines().count(), 4, "{log}");
    assert_messages(log.as_bytes(), |line| line.starts_with("weightfs: "), "log");
    // Names inside the models are escaped too.
    for dir in ["tensors", "metadata", "export"] {
        assert_names(&mount.path(encoded).join(dir));
    }
    assert_names(&mount.path("sub%0Ddir"));
}
