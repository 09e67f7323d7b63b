//! Memory use on hostile files: a claimed size costs nothing, and the content costs at most a small multiple of its
//! length.

use crate::support::{Said, Scene, require_fuse, status};
use std::path::PathBuf;

const MIB: usize = 1 << 20;

/// Approximate length of the inputs. `cargo bench --bench hostile` measures the time for inputs of full length.
const LEN: usize = 12 * MIB;

/// Opens a source of `len` bytes without mounting it. RLIMIT_DATA, which counts private writable memory, touched or
/// not, is `times * len` plus what any file needs.
fn read(scene: &Scene, len: usize, times: usize, words: &str) -> Said {
    // There is a thread with a stack for each core.
    let cores = std::thread::available_parallelism().unwrap().get();
    let bytes = (32 + 4 * cores) * MIB + times * len;
    std::fs::create_dir_all(scene.path("mnt")).unwrap();
    scene.sh(&format!("ulimit -d {} && exec weightfs --fake {words} mnt", bytes / 1024))
}

/// A JSON object of about `LEN` bytes. `part` returns the member of a given number.
fn long(part: impl Fn(usize) -> String) -> String {
    let mut header = String::with_capacity(LEN + 100);
    let mut at = 0;
    while header.len() < LEN {
        header.push(if at == 0 { '{' } else { ',' });
        header += &part(at);
        at += 1;
    }
    header + "}"
}

fn file(scene: &Scene, header: &str) -> PathBuf {
    scene.raw("model.safetensors", header.as_bytes(), &[0])
}

#[test]
fn claimed_sizes_cost_no_memory() {
    require_fuse!();
    const MANY: u64 = 1_000_000_000_000_000_000;
    let entry = |dtype: &str, shape: &str, end: u64| {
        format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#)
    };
    let cases = [
        (entry("U8", "[1000000000000000000]", MANY), "truncated: the data ends at byte 1000000000000000"),
        (entry("U8", "[1000000000000000000]", 1), "takes 1000000000000000000 bytes, but its data_offsets span 1"),
        (entry("F64", "[1000000000,1000000000]", 8 * MANY), "is too large to count in 64 bits"),
        (entry("F64", "[4294967296,4294967296]", 1), "is too large to count in 64 bits"),
        (entry("I4", "[1000000000000000000]", 1), "takes 500000000000000000 bytes, but its data_offsets span 1"),
        (entry("X4", "[1]", u64::MAX), "are too large for any file"),
        (entry("X4", "[1000000000000000000]", MANY), "truncated: the data ends at byte 1000000000000000"),
    ];
    for (header, expected) in cases {
        let scene = Scene::new();
        file(&scene, &header);
        let said = read(&scene, header.len(), 1, "model.safetensors");
        assert!(said.code == 1 && said.err.contains(expected), "{said:?}");
        let said = read(&scene, header.len(), 1, "--lenient model.safetensors");
        assert!(said.code == 0 && said.err.contains("skipped \"a\": "), "{said:?}");
    }
    // A shape without elements is valid, whatever its other dimensions are.
    let scene = Scene::new();
    let header = r#"{"a":{"dtype":"F64","shape":[1000000000000000000,0,5],"data_offsets":[0,0]}}"#;
    let source = scene.raw("model.safetensors", header.as_bytes(), &[]);
    let mount = scene.mount(&source, &[]);
    for file in ["npy/a.npy", "stats/a.json", "plots/a.png", "f32/a.f32", "tensors/a"] {
        assert!(mount.read(file).len() < MIB, "{file}");
    }
    // The length of the header is also only a claim.
    for length in [u64::MAX, 100_000_001, 100_000_000] {
        std::fs::write(&source, length.to_le_bytes()).unwrap();
        assert_eq!(read(&scene, 8, 1, "model.safetensors").code, 1);
    }
}

#[test]
fn long_header_costs_a_small_multiple_of_its_length() {
    require_fuse!();
    let nested = |open: &str| open.repeat(LEN / open.len());
    let inside = |value: &str| format!(r#"{{"a":{{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":{value}"#);
    let ones = "1,".repeat(LEN / 2);
    // Header, mode, memory as a multiple of its length, exit code, part of standard error.
    let cases: [(String, &str, usize, i32, &str); 18] = [
        (nested("["), "", 2, 1, "recursion limit exceeded"),
        (nested(r#"{"a":"#), "", 2, 1, "recursion limit exceeded"),
        (nested(r#"{"a":"#), "--lenient", 2, 1, "recursion limit exceeded"),
        (inside(&nested("[")), "", 2, 1, "recursion limit exceeded"),
        (inside(&nested(r#"{"b":"#)), "--lenient", 2, 1, "recursion limit exceeded"),
        (format!(r#"{{"__metadata__":{{"k":{}"#, nested("[")), "", 2, 1, "recursion limit exceeded"),
        (long(|_| r#""a":["U8",[1],[0,1]]"#.into()), "", 10, 1, "tensor \"a\": the name occurs twice"),
        (long(|_| r#""a":["U8",[1],[0,1]]"#.into()), "--lenient", 12, 0, "skipped \"a\": the name occurs twice"),
        (long(|_| r#""":1"#.into()), "", 2, 1, "its entry is 1, not an object"),
        (long(|_| r#""":1"#.into()), "--lenient", 6, 0, "more; see index.json"),
        (long(|at| format!(r#""{at}":["U8",[0],[0,0]]"#)), "", 10, 1, "too long"),
        (long(|at| format!(r#""{at}":["U8",[0],[0,0]]"#)), "--lenient", 10, 0, ""),
        (long(|at| format!(r#""{at}":["{at}",[0],[0,0]]"#)), "--lenient", 16, 0, "unknown dtype"),
        (format!(r#"{{"a":["U8",[{ones}1],[0,1]]}}"#), "", 8, 0, ""),
        (format!(r#"{{"a":["U8",[{ones}2],[0,1]]}}"#), "", 8, 1, "1, ... 6291457 dimensions] of U8 takes 2 bytes"),
        (format!(r#"{{"__metadata__":{}}}"#, long(|at| format!(r#""{at}":"""#))), "--lenient", 20, 0, ""),
        (format!(r#"{{"__metadata__":{}}}"#, long(|_| r#""":"""#.into())), "--lenient", 20, 0, ""),
        (format!(r#"{{"__metadata__":{}}}"#, long(|_| r#""":1"#.into())), "--lenient", 6, 0, "more; see index.json"),
    ];
    for (header, mode, times, code, expected) in cases {
        let scene = Scene::new();
        file(&scene, &header);
        let said = read(&scene, header.len(), times, &format!("{mode} model.safetensors"));
        let case = format!("{}... {mode}", &header[..100]);
        assert!(said.code == code && said.err.contains(expected), "{case}: {said:?}");
        assert!(said.err.lines().count() <= 22, "{case}: {said:?}");
    }
}

#[test]
fn long_index_costs_a_small_multiple_of_its_length() {
    require_fuse!();
    let evil = "\u{7f}".repeat(LEN);
    let map = |part: &dyn Fn(usize) -> String| format!(r#"{{"weight_map":{}}}"#, long(part));
    let index = "model.safetensors.index.json";
    let manifest = "dataset_manifest.json";
    let deep = format!("./{}a.safetensors", "./".repeat(500));
    // File, its text, mode, memory as a multiple of its length, exit code, part of standard error.
    let cases: [(&str, String, &str, usize, i32, &str); 12] = [
        (
            index,
            map(&|at| format!(r#""{at}":"b.safetensors""#)),
            "",
            8,
            1,
            "should be in \"b.safetensors\", but no shard",
        ),
        (index, map(&|at| format!(r#""{at}":"b.safetensors""#)), "--lenient", 8, 0, "more; see index.json"),
        (index, map(&|at| format!(r#""{at}\t":"b.safetensors""#)), "--lenient", 12, 0, "more; see index.json"),
        (index, map(&|_| r#""x":"b.safetensors""#.into()), "--lenient", 8, 0, "but no shard has it"),
        (index, map(&|at| format!(r#""{at}":"{at}.safetensors""#)), "--lenient", 4, 1, "names more than 10000 shards"),
        (index, format!(r#"{{"weight_map":{{"x":"{deep}"}}}}"#), "--lenient", 12, 0, "more; see index.json"),
        (index, format!(r#"{{"weight_map":"{evil}"}}"#), "", 4, 1, "invalid type: a string, expected an object of"),
        (index, format!(r#""{evil}""#), "", 4, 1, "invalid type: a string, expected an object with a weight_map"),
        (index, "[".repeat(LEN), "", 2, 1, "invalid type: sequence"),
        (index, format!(r#"{{"x":{}"#, "[".repeat(LEN)), "", 4, 1, "EOF while parsing"),
        (manifest, format!(r#"{{"format_version":"1","shards":"{evil}"}}"#), "", 4, 1, "unexpected string"),
        (manifest, format!(r#"{{"format_version":"{evil}","shards":[]}}"#), "", 4, 1, "weightfs supports 1"),
    ];
    let scene = Scene::new();
    scene.raw("b.safetensors", b"{}", &[]);
    // Hundreds of thousands of tensors that no index lists, in a shard with a long path.
    let shard = long(|at| format!(r#""t{at}":["U8",[0],[0,0]]"#));
    scene.raw("a.safetensors", shard.as_bytes(), &[]);
    for (name, text, mode, times, code, expected) in cases {
        std::fs::write(scene.path(name), &text).unwrap();
        let len = if text.contains(&deep) { shard.len() } else { text.len() };
        let said = read(&scene, len, times, &format!("{mode} {name}"));
        let case = format!("{name}: {}... {mode}", &text[..60]);
        assert!(said.code == code && said.err.contains(expected), "{case}: {said:?}");
        assert!(said.err.lines().count() <= 22 && said.err.len() < 50_000, "{case}: {said:?}");
    }
}

/// The peak memory in bytes (VmHWM) of a mount whose files and directories `names` are listed and read.
fn peak_memory(scene: &Scene, header: &str, names: &[&str]) -> usize {
    let mount = scene.mount(&file(scene, header), &["--lenient"]);
    for name in names {
        let path = mount.path(name);
        let mut command = scene.command("sh");
        let line = r#"ls -ld "$1"; getfattr --absolute-names -d "$1"; if [ -f "$1" ]; then tail -c 1000 "$1"; else ls -U "$1"; fi >/dev/null"#;
        let said = Said::of(command.args(["-c", line, "sh"]).arg(&path));
        assert_eq!((said.code, &said.err[..]), (0, ""), "{}", path.display());
    }
    1024 * status(mount.child.id(), "VmHWM") as usize
}

#[test]
fn hostile_mount_costs_a_small_multiple_of_its_header() {
    require_fuse!();
    let ones = "1,".repeat(LEN / 2);
    let dots = ".".repeat(LEN / 2);
    let entry = |name: &str, shape: &str| format!(r#"{{"{name}":["U8",[{shape}],[0,1]]}}"#);
    // Header, memory as a multiple of its length, paths.
    let cases: [(String, usize, &[&str]); 3] = [
        (
            entry("a", &format!("{ones}1")),
            16,
            &["", "index.json", "tensors/a", "plots/a.png", "stats/a.json", "npy", "tree", "export"],
        ),
        (entry(&dots, "1"), 16, &["", "index.json", "tensors", "tree", "export", "safetensors"]),
        (long(|_| r#""":1"#.into()), 8, &["", "index.json"]),
    ];
    for (header, times, names) in cases {
        let scene = Scene::new();
        let peak = peak_memory(&scene, &header, names);
        let most = 64 * MIB + times * header.len();
        assert!(peak < most, "{peak} bytes for {}...", &header[..60]);
    }
}
