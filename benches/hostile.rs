//! What hostile files cost: `cargo bench --bench hostile`, as root.
//!
//! Each input is read once without being mounted, in a process of its own; printed are its length, how long that took,
//! the most memory that the process had, and that in lengths of the input. The bounds are in `tests/mount/limits.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark may stop")]
#![allow(missing_docs, reason = "a program of its own")]

use nix::sys::resource::{UsageWho, getrusage};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const WEIGHTFS: &str = env!("CARGO_BIN_EXE_weightfs");

/// Longest header that is read, and the longest index in round numbers.
const HEADER: usize = 100_000_000;
const INDEX: usize = 238_000_000;

/// What is written: `begin`, then as many parts as wanted or as there is room for, then `end`.
struct Input {
    what: &'static str,
    begin: &'static str,
    /// A part by its number.
    part: fn(usize) -> String,
    comma: &'static str,
    end: &'static str,
    most: usize,
    /// The options with which it is read.
    mode: &'static str,
}

const fn input(
    what: &'static str,
    begin: &'static str,
    part: fn(usize) -> String,
    end: &'static str,
    most: usize,
    mode: &'static str,
) -> Input {
    Input { what, begin, part, comma: ",", end, most, mode }
}

const ALL: usize = usize::MAX;

/// Headers.
const HEADERS: [Input; 15] = [
    input("10^18 elements", r#"{"a":["U8",["#, |_| "1000000000000000000".into(), "],[0,1000000000000000000]]}", 1, ""),
    Input { comma: "", ..input("nested lists in an entry", r#"{"a":{"x":"#, |_| "[".into(), "", ALL, "") },
    Input {
        comma: "",
        ..input("nested objects as metadata", r#"{"__metadata__":"#, |_| r#"{"a":"#.into(), "", ALL, "")
    },
    input("a million times one name", "{", |_| r#""a":["U8",[1],[0,1]]"#.into(), "}", 1_000_000, ""),
    input("the same, lenient", "{", |_| r#""a":["U8",[1],[0,1]]"#.into(), "}", 1_000_000, "--lenient"),
    input("one name as often as there is room", "{", |_| r#""":["U8",[0],[0,0]]"#.into(), "}", ALL, "--lenient"),
    input("entries that are numbers", "{", |_| r#""":1"#.into(), "}", ALL, "--lenient"),
    input("as many tensors as there is room", "{", |at| format!(r#""{at:x}":["U8",[0],[0,0]]"#), "}", ALL, "--lenient"),
    input("as many unknown dtypes", "{", |at| format!(r#""{at:x}":["{at:x}",[0],[0,0]]"#), "}", ALL, "--lenient"),
    input("a million keys", META, |at| format!(r#""key.{at}":"value""#), "}}", 1_000_000, "--lenient"),
    input("as many keys as there is room", META, |at| format!(r#""{at:x}":"""#), "}}", ALL, "--lenient"),
    input("one key as often as there is room", META, |_| r#""":"""#.into(), "}}", ALL, "--lenient"),
    input("a shape of rank 49 million", r#"{"a":["U8",["#, |_| "1".into(), "],[0,1]]}", ALL, ""),
    input("the same of a wrong size", r#"{"a":["U8",["#, |_| "1".into(), ",2],[0,1]]}", ALL, ""),
    Input { comma: "", ..input("a name of dots", r#"{""#, |_| "....".into(), r#"":["U8",[1],[0,1]]}"#, ALL, "") },
];
const META: &str = r#"{"__metadata__":{"#;

/// Indices.
const INDICES: [Input; 6] = [
    input("7,000,000 tensors of no shard", MAP, |at| format!(r#""{at:016}":"b.safetensors""#), "}}", 7_000_000, ""),
    input("the same, lenient", MAP, |at| format!(r#""{at:016}":"b.safetensors""#), "}}", 7_000_000, "--lenient"),
    input("names with escapes", MAP, |at| format!(r#""{at:014}\t":"b.safetensors""#), "}}", 7_000_000, "--lenient"),
    input(
        "7,000,000 times one tensor",
        MAP,
        |_| r#""aaaaaaaaaaaaaaaa":"b.safetensors""#.into(),
        "}}",
        ALL,
        "--lenient",
    ),
    Input { comma: "", ..input("a text for a map", r#"{"weight_map":""#, |_| "\u{7f}".repeat(99), r#""}"#, ALL, "") },
    Input { comma: "", ..input("nested lists", r#"{"x":"#, |_| "[".repeat(99), "", ALL, "") },
];
const MAP: &str = r#"{"weight_map":{"#;

fn main() {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == "--measure") {
        return measure(words.collect());
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::create_dir(dir.join("mnt")).unwrap();
    println!("{:42} {:>8} {:>8} {:>9} {:>7}", "header", "MB", "s", "peak MB", "times");
    for input in &HEADERS {
        let len = file(&dir.join("model.safetensors"), input);
        report(input.what, len, dir, &[input.mode, "model.safetensors"]);
    }
    println!("index");
    std::fs::write(dir.join("b.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let index = "model.safetensors.index.json";
    for input in &INDICES {
        let mut out = BufWriter::new(File::create(dir.join(index)).unwrap());
        let len = write(&mut out, input, INDEX);
        drop(out);
        report(input.what, len, dir, &[input.mode, index]);
    }
    let tensors = HEADERS.iter().find(|input| input.what.starts_with("as many tensors")).unwrap();
    let len = file(&dir.join("a.safetensors"), tensors);
    std::fs::write(dir.join(index), r#"{"weight_map":{"x":"a.safetensors"}}"#).unwrap();
    report("as many tensors, none of which it names", len, dir, &["--lenient", index]);
}

/// Writes a file with that header and a byte of data; returns the length of the header.
fn file(path: &Path, input: &Input) -> usize {
    let mut out = BufWriter::new(File::create(path).unwrap());
    out.write_all(&[0; 8]).unwrap();
    let len = write(&mut out, input, HEADER);
    out.write_all(&[0]).unwrap();
    out.rewind().unwrap();
    out.write_all(&(len as u64).to_le_bytes()).unwrap();
    out.flush().unwrap();
    len
}

fn write(out: &mut BufWriter<File>, input: &Input, room: usize) -> usize {
    let mut len = input.begin.len() + input.end.len();
    out.write_all(input.begin.as_bytes()).unwrap();
    for at in 0..input.most {
        let part = [if at == 0 { "" } else { input.comma }, &(input.part)(at)].concat();
        if len + part.len() > room {
            break;
        }
        out.write_all(part.as_bytes()).unwrap();
        len += part.len();
    }
    out.write_all(input.end.as_bytes()).unwrap();
    len
}

/// Has another process of this program call weightfs: what it says of its children is of that one call.
fn report(what: &str, len: usize, dir: &Path, words: &[&str]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--measure", "--fake"]).args(words.iter().filter(|word| !word.is_empty())).arg("mnt");
    let start = Instant::now();
    let output = command.current_dir(dir).output().unwrap();
    let took = start.elapsed();
    assert!(output.status.success());
    let peak: f64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let mb = len as f64 / 1e6;
    println!("{what:42} {mb:8.1} {:8.2} {:9.1} {:7.1}", took.as_secs_f64(), peak / 1e6, peak / 1e6 / mb);
}

fn measure(words: Vec<std::ffi::OsString>) {
    let mut child = Command::new(WEIGHTFS).args(words).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let code = child.wait().unwrap().code();
    assert!(matches!(code, Some(0 | 1)), "{code:?} {said}");
    eprint!("{said}");
    println!("{}", getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss() * 1024);
}
