//! Time and memory that hostile files cost: `cargo bench --bench hostile`, as root.
//!
//! `weightfs --fake` reads each input once, in a separate process. Prints the length of the input, the time, the peak
//! memory of the process, and the peak memory divided by the length. `tests/mount/limits.rs` tests the bounds.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark fails by panicking")]

use nix::sys::resource::{UsageWho, getrusage};
use std::fs::File;
use std::io::{BufWriter, Read, Seek, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

const WEIGHTFS: &str = env!("CARGO_BIN_EXE_weightfs");

/// The longest header that weightfs accepts, in bytes.
const HEADER: usize = 100_000_000;
/// The length of the indices, in bytes: about 7,000,000 tensors.
const INDEX: usize = 238_000_000;

/// A text: `begin`, then `most` parts or as many as fit, then `end`.
struct Input {
    name: &'static str,
    begin: &'static str,
    /// Makes the part of a number.
    part: fn(usize) -> String,
    /// What separates two parts.
    comma: &'static str,
    end: &'static str,
    most: usize,
    /// An option of weightfs; empty for none.
    mode: &'static str,
}

const fn input(
    name: &'static str,
    begin: &'static str,
    part: fn(usize) -> String,
    end: &'static str,
    most: usize,
    mode: &'static str,
) -> Input {
    Input { name, begin, part, comma: ",", end, most, mode }
}

/// As many parts as fit.
const ALL: usize = usize::MAX;

const HEADERS: [Input; 15] = [
    input("10^18 elements", r#"{"a":["U8",["#, |_| "1000000000000000000".into(), "],[0,1000000000000000000]]}", 1, ""),
    Input { comma: "", ..input("nested lists in an entry", r#"{"a":{"x":"#, |_| "[".into(), "", ALL, "") },
    Input {
        comma: "",
        ..input("nested objects as metadata", r#"{"__metadata__":"#, |_| r#"{"a":"#.into(), "", ALL, "")
    },
    input("one name, 1,000,000 times", "{", |_| r#""a":["U8",[1],[0,1]]"#.into(), "}", 1_000_000, ""),
    input("the same, lenient", "{", |_| r#""a":["U8",[1],[0,1]]"#.into(), "}", 1_000_000, "--lenient"),
    input("one name, as often as fits", "{", |_| r#""":["U8",[0],[0,0]]"#.into(), "}", ALL, "--lenient"),
    input("entries that are not objects", "{", |_| r#""":1"#.into(), "}", ALL, "--lenient"),
    input("as many tensors as fit", "{", |at| format!(r#""{at:x}":["U8",[0],[0,0]]"#), "}", ALL, "--lenient"),
    input(
        "as many unknown dtypes as fit",
        "{",
        |at| format!(r#""{at:x}":["{at:x}",[0],[0,0]]"#),
        "}",
        ALL,
        "--lenient",
    ),
    input("1,000,000 metadata keys", META, |at| format!(r#""key.{at}":"value""#), "}}", 1_000_000, "--lenient"),
    input("as many metadata keys as fit", META, |at| format!(r#""{at:x}":"""#), "}}", ALL, "--lenient"),
    input("one metadata key, as often as fits", META, |_| r#""":"""#.into(), "}}", ALL, "--lenient"),
    input("a shape of rank 49 million", r#"{"a":["U8",["#, |_| "1".into(), "],[0,1]]}", ALL, ""),
    input("the same, of a wrong size", r#"{"a":["U8",["#, |_| "1".into(), ",2],[0,1]]}", ALL, ""),
    Input { comma: "", ..input("a name of dots", r#"{""#, |_| "....".into(), r#"":["U8",[1],[0,1]]}"#, ALL, "") },
];
const META: &str = r#"{"__metadata__":{"#;

const INDICES: [Input; 6] = [
    input(
        "about 7,000,000 tensors that no shard has",
        MAP,
        |at| format!(r#""{at:016}":"b.safetensors""#),
        "}}",
        7_000_000,
        "",
    ),
    input("the same, lenient", MAP, |at| format!(r#""{at:016}":"b.safetensors""#), "}}", 7_000_000, "--lenient"),
    input("names with escapes", MAP, |at| format!(r#""{at:014}\t":"b.safetensors""#), "}}", 7_000_000, "--lenient"),
    input(
        "one tensor, about 7,000,000 times",
        MAP,
        |_| r#""aaaaaaaaaaaaaaaa":"b.safetensors""#.into(),
        "}}",
        ALL,
        "--lenient",
    ),
    Input {
        comma: "",
        ..input("a string instead of a map", r#"{"weight_map":""#, |_| "\u{7f}".repeat(99), r#""}"#, ALL, "")
    },
    Input { comma: "", ..input("nested lists", r#"{"x":"#, |_| "[".repeat(99), "", ALL, "") },
];
const MAP: &str = r#"{"weight_map":{"#;

fn main() {
    let mut args = std::env::args_os().skip(1);
    if args.next().is_some_and(|arg| arg == "--measure") {
        return measure(args.collect());
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::create_dir(dir.join("mnt")).unwrap();
    println!("{:42} {:>8} {:>8} {:>9} {:>7}", "header", "MB", "s", "peak MB", "peak/MB");
    for input in &HEADERS {
        let len = file(&dir.join("model.safetensors"), input);
        report(input.name, len, dir, &[input.mode, "model.safetensors"]);
    }
    println!("index");
    std::fs::write(dir.join("b.safetensors"), b"\x02\0\0\0\0\0\0\0{}").unwrap();
    let index = "model.safetensors.index.json";
    for input in &INDICES {
        let mut out = BufWriter::new(File::create(dir.join(index)).unwrap());
        let len = write(&mut out, input, INDEX);
        drop(out);
        report(input.name, len, dir, &[input.mode, index]);
    }
    let tensors = HEADERS.iter().find(|input| input.name.starts_with("as many tensors")).unwrap();
    let len = file(&dir.join("a.safetensors"), tensors);
    std::fs::write(dir.join(index), r#"{"weight_map":{"x":"a.safetensors"}}"#).unwrap();
    report("as many tensors as fit, none in the index", len, dir, &["--lenient", index]);
}

/// Writes a file with the input as header and a byte of data; returns the length of the header in bytes.
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

/// Writes an input of at most `room` bytes; returns its length.
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

/// Runs weightfs from another process of this program, whose resource usage of children is then that of this one run.
fn report(name: &str, len: usize, dir: &Path, args: &[&str]) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--measure", "--fake"]).args(args.iter().filter(|arg| !arg.is_empty())).arg("mnt");
    let start = Instant::now();
    let output = command.current_dir(dir).output().unwrap();
    let took = start.elapsed();
    assert!(output.status.success());
    let peak: f64 = String::from_utf8(output.stdout).unwrap().trim().parse().unwrap();
    let mb = len as f64 / 1e6;
    println!("{name:42} {mb:8.1} {:8.2} {:9.1} {:7.1}", took.as_secs_f64(), peak / 1e6, peak / 1e6 / mb);
}

/// Runs weightfs and prints the peak resident memory of its process, in bytes.
fn measure(args: Vec<std::ffi::OsString>) {
    let mut child = Command::new(WEIGHTFS).args(args).stderr(Stdio::piped()).spawn().unwrap();
    let mut messages = String::new();
    child.stderr.take().unwrap().read_to_string(&mut messages).unwrap();
    let code = child.wait().unwrap().code();
    assert!(matches!(code, Some(0 | 1)), "{code:?} {messages}");
    eprint!("{messages}");
    println!("{}", getrusage(UsageWho::RUSAGE_CHILDREN).unwrap().max_rss() * 1024);
}
