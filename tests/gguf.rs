//! The verdict of the GGUF parser is that of the gguf package and of ggml's rules together, for random headers and for
//! headers with random bytes changed. `verdicts.py` runs the package.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

#[path = "../fuzz/src/gguf.rs"]
mod target;

use std::collections::HashMap;
use std::path::Path;
use std::process::Command;
use weightfs::format::{Dtype, Error, Header, HeaderInput, ParseMode, gguf, lint_header, parse_header};

/// Random numbers, the same in each run.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 33) as usize % end
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }
}

fn string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

/// The bytes of a value of one of the types.
fn value(random: &mut Random, kind: u32, out: &mut Vec<u8>) {
    let size = match kind {
        8 => return string(out, random.pick(&[&b""[..], b"text", "é\n".as_bytes(), b"\xff\xfe"])),
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        _ => 8,
    };
    out.extend((0..size).map(|_| random.below(256) as u8));
}

/// A file, mostly a valid one.
fn file(random: &mut Random) -> Vec<u8> {
    let (keys, tensors) = (random.below(4), random.below(4));
    let alignment = random.pick(&[32u32, 32, 32, 8, 64, 1, 24]);
    let mut out = b"GGUF".to_vec();
    out.extend(random.pick(&[3u32, 3, 3, 3, 2, 1, 4, 0x0300_0000]).to_le_bytes());
    out.extend((tensors as u64).to_le_bytes());
    out.extend((keys as u64 + u64::from(alignment != 32)).to_le_bytes());
    if alignment != 32 {
        string(&mut out, b"general.alignment");
        out.extend(random.pick(&[4u32, 4, 4, 4, 5]).to_le_bytes());
        out.extend(alignment.to_le_bytes());
    }
    for at in 0..keys {
        let key = format!("key.{}", if random.below(20) == 0 { 0 } else { at });
        string(&mut out, if random.below(40) == 0 { b"" } else { key.as_bytes() });
        let kind = random.pick(&[0u32, 1, 2, 3, 4, 5, 6, 7, 8, 8, 9, 9, 10, 11, 12, 13]);
        out.extend(kind.to_le_bytes());
        if kind == 9 {
            let (kind, len) = (random.pick(&[0u32, 4, 6, 8, 8, 9, 12]), random.below(4));
            out.extend(kind.to_le_bytes());
            out.extend((len as u64).to_le_bytes());
            (0..len).for_each(|_| value(random, kind, &mut out));
        } else {
            value(random, kind, &mut out);
        }
    }
    let mut end = 0u64;
    for at in 0..tensors {
        let name = match random.below(30) {
            0 => "n".repeat(64),
            1 => "n".repeat(300),
            2 => "t.0".to_owned(),
            _ => format!("t.{at}"),
        };
        string(&mut out, name.as_bytes());
        let kind = random.pick(&[0u32, 0, 1, 2, 3, 8, 12, 14, 19, 24, 28, 30, 39, 40, 41, 4, 99]);
        let block = Dtype::from_ggml(kind).and_then(Dtype::block);
        let row = block.map_or(1, |block| block.elements) * random.pick(&[0, 1, 1, 2, 3]);
        let mut dims = vec![row + u64::from(random.below(20) == 0)];
        (0..random.pick(&[0, 0, 1, 2, 3, 4, 5])).for_each(|_| dims.push(random.pick(&[1, 2, 3, 0])));
        if random.below(30) == 0 {
            dims.clear();
        }
        out.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend((end + if random.below(20) == 0 { 32 } else { 0 }).to_le_bytes());
        let elements: u64 = dims.iter().product();
        let nbytes = block.map_or(0, |block| elements / block.elements * block.bytes);
        end = (end + nbytes).next_multiple_of(alignment.into());
    }
    let changes = random.pick(&[0, 0, 1, 2]);
    for _ in 0..changes {
        let at = random.below(out.len());
        out[at] = random.pick(&[0, 1, 2, 255, 128, 32, 8, 9, 63, 64]);
    }
    out.resize(out.len().next_multiple_of(alignment as usize), 0);
    out.resize(out.len() + end as usize, 7);
    if random.below(20) == 0 {
        out.truncate(random.below(out.len()));
    }
    out
}

/// Parses a file as the program does: adds what is missing until nothing is.
fn read(file: &[u8], mode: ParseMode) -> Result<Header, Error> {
    let mut input = HeaderInput::new(file.len() as u64);
    loop {
        match parse_header(&input, mode) {
            Err(Error::Missing(missing)) => {
                let (start, end) = (missing.0.start as usize, missing.0.end as usize);
                assert!(end <= file.len() && start < end);
                input.add(missing.0.start, file[start..end].to_vec());
            }
            parsed => return parsed,
        }
    }
}

/// Whether NumPy can multiply the dimensions other than 0 and the size of any element.
fn fits_numpy(shape: &[u64]) -> bool {
    let mut dims = shape.iter().filter(|dim| **dim > 0);
    dims.try_fold(512u64, |product, dim| product.checked_mul(*dim)).is_some_and(|product| product <= i64::MAX as u64)
}

#[test]
fn verdicts_are_those_of_the_gguf_package_and_of_ggml() {
    const FILES: usize = 4000;
    let python = Path::new(env!("CARGO_MANIFEST_DIR")).join(".venv/bin/python");
    let python = std::env::var_os("WEIGHTFS_PYTHON").map_or(python, Into::into);
    assert!(python.exists(), "{} is missing: run scripts/test, which installs it", python.display());
    let dir = tempfile::tempdir().unwrap();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let files: Vec<_> = (0..FILES).map(|_| file(&mut random)).collect();
    for (at, file) in files.iter().enumerate() {
        std::fs::write(dir.path().join(format!("{at:05}")), file).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/verdicts.py");
    let output = Command::new(python).arg(script).arg(dir.path()).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let verdicts: HashMap<usize, bool> = said
        .lines()
        .map(|line| {
            let fields: Vec<&str> = line.split(' ').collect();
            (fields[0].parse().unwrap(), fields[1] == "True")
        })
        .collect();
    assert_eq!(verdicts.len(), FILES);
    let (mut accepted, mut wrong) = (0, Vec::new());
    for (at, file) in files.iter().enumerate() {
        let ours = read(file, ParseMode::Strict);
        accepted += usize::from(ours.is_ok());
        // The checks of the fuzz target, on files with values of every type.
        assert!(!file.starts_with(&gguf::MAGIC) || target::run(file) == ours.is_ok(), "{at}");
        // The package has another size for Q8_1 than ggml, does not have Q2_0, and fails for a scalar of type BF16, and
        // for an array without elements of which NumPy cannot multiply the other dimensions.
        let is_exception = |header: &Header| {
            header.tensors().any(|tensor| match tensor.dtype {
                _ if tensor.elements() == 0 && !fits_numpy(tensor.shape) => true,
                Dtype::BF16 => tensor.shape.is_empty(),
                dtype => matches!(dtype, Dtype::Q8_1 | Dtype::Q2_0),
            })
        };
        // The package reads a file that ends before the data would begin, if no tensor has data.
        let is_short = matches!(&ours, Err(Error::Cut(_)));
        if ours.is_ok() != verdicts[&at] && !is_short && !ours.as_ref().is_ok_and(is_exception) {
            wrong.push(format!(
                "{at}: {:?} but {}: {}",
                ours.map(|header| header.len()),
                verdicts[&at],
                file.escape_ascii()
            ));
        }
        // Lenient mode keeps everything that strict mode accepts, and only what lies in the file.
        if let Ok(lenient) = read(file, ParseMode::Lenient) {
            assert!(lenient.tensors().all(|tensor| tensor.range.end <= file.len() as u64));
        } else {
            assert!(!verdicts[&at], "{at}");
        }
    }
    assert!(wrong.is_empty(), "{} of {FILES}:\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
    assert!((FILES / 10..FILES * 9 / 10).contains(&accepted), "{accepted}");
}

/// A header with these counts, and the bytes after them.
fn header(tensors: u64, keys: u64, rest: &[u8]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend(tensors.to_le_bytes());
    out.extend(keys.to_le_bytes());
    out.extend(rest);
    out
}

#[test]
fn errors_name_the_key_or_the_tensor_and_the_numbers() {
    let tensor = |name: &str, dims: &[u64], kind: u32, offset: u64| {
        let mut out = Vec::new();
        string(&mut out, name.as_bytes());
        out.extend((dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
        out.extend(kind.to_le_bytes());
        out.extend(offset.to_le_bytes());
        out
    };
    let key = |key: &str, rest: &[u8]| {
        let mut out = Vec::new();
        string(&mut out, key.as_bytes());
        out.extend(rest);
        out
    };
    let alignment = |kind: u8, value: u8| key(gguf::ALIGNMENT_KEY, &[kind, 0, 0, 0, value, 0, 0, 0]);
    let mut big_endian = header(0, 0, b"");
    big_endian[4..8].reverse();
    let mut first = header(0, 0, b"");
    first[4] = 1;
    let long = [&u64::MAX.to_le_bytes()[..], b"x"].concat();
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (b"GGUF\x03\0".to_vec(), "truncated: the header goes on to byte 8 at least, but the file ends at byte 6"),
        (first, "GGUF version 1; versions 2 and 3 are supported (convert it with llama.cpp's tools)"),
        (big_endian, "GGUF version 3 in big-endian order; only little-endian files are supported"),
        (header(0, 1, &long), "metadata key number 0: a length of 18446744073709551615, and at most 1073741824"),
        (header(0, 1, &key("k", &[13, 0, 0, 0])), "metadata key \"k\": value type 13 does not exist"),
        (header(0, 1, &key("", &[0, 0, 0, 0, 7])), "metadata key \"\": the key is empty"),
        (header(0, 1, &alignment(4, 24)), "metadata key \"general.alignment\": 24 is not a power of two"),
        (
            header(0, 1, &alignment(5, 32)),
            "metadata key \"general.alignment\": value type 5; general.alignment must be",
        ),
        (
            header(0, 1, &key("k", &[9, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0])),
            "metadata key \"k\": an array of arrays",
        ),
        (header(1, 0, &tensor("t", &[7], 2, 0)), "tensor \"t\": rows of 7 elements, but Q4_0 has blocks of 32"),
        (header(1, 0, &tensor("t", &[7], 99, 0)), "tensor \"t\": ggml type 99 is not known"),
        (
            header(1, 0, &tensor("t", &[7], 4, 0)),
            "ggml type 4, Q4_2, was removed from ggml (quantize the original model",
        ),
        (
            header(1, 0, &tensor("t", &[32], 33, 0)),
            "tensor \"t\": ggml type 33, Q4_0_8_8, was removed from ggml (use a file of the same model as Q4_0, which",
        ),
        (
            header(1, 0, &tensor("t", &[32], 36, 0)),
            "ggml type 36, IQ4_NL_4_4, was removed from ggml (use a file of the same",
        ),
        (header(1, 0, &tensor("t", &[1; 65], 0, 0)), "tensor \"t\": 65 dimensions, and at most 64 are read"),
        (header(1, 0, &tensor("t", &[1 << 62, 2], 0, 0)), "tensor \"t\": shape [2, 4611686018427387904] has more than"),
        (
            header(1, 0, &tensor("t", &[1], 0, 32)),
            "tensor \"t\": its data begins at offset 32, but the tensors before it",
        ),
        (header(1, 0, &tensor("t", &[3], 0, 0)), "truncated: the data ends at byte 76, but the file ends at byte 57"),
        (
            header(2, 0, &[tensor("t", &[0], 0, 0), tensor("t", &[0], 0, 0), vec![0; 6]].concat()),
            "tensor \"t\": occurs more than once",
        ),
    ];
    for (file, message) in cases {
        let error = read(&file, ParseMode::Strict).unwrap_err().to_string();
        assert!(error.contains(message), "{error}\n{message}");
    }
}

/// A tensor of this name, these dimensions and this offset, without its data.
fn described(name: &str, dims: &[u64], offset: u64) -> Vec<u8> {
    let mut out = Vec::new();
    string(&mut out, name.as_bytes());
    out.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|dim| out.extend(dim.to_le_bytes()));
    out.extend([0; 4]);
    out.extend(offset.to_le_bytes());
    out
}

#[test]
fn limits_of_ggml_are_warnings() {
    let (most, long) = ("n".repeat(63), "n".repeat(64));
    let infos = [described(&most, &[2, 1, 1, 1], 0), described(&long, &[2, 2, 1, 4, 8], 32)].concat();
    let mut file = header(2, 0, &infos);
    file.resize(file.len().next_multiple_of(32) + 32 + 512, 0);
    let header = read(&file, ParseMode::Strict).unwrap();
    let shapes: Vec<&[u64]> = header.tensors().map(|tensor| tensor.shape).collect();
    assert_eq!(shapes, [&[1, 1, 1, 2][..], &[8, 4, 1, 2, 2]]);
    let mut found = Vec::new();
    lint_header(&header, &HeaderInput::with_prefix(file.len() as u64, file), &mut |lint| found.push(lint)).unwrap();
    let found: Vec<&str> = found.iter().map(|lint| &lint.message[..]).filter(|lint| lint.contains("ggml")).collect();
    let [name, rank] = found[..] else { panic!("{found:?}") };
    assert!(name.ends_with(": a name of 64 bytes; ggml loads at most 63"), "{name}");
    assert!(rank.ends_with(": 5 dimensions; ggml loads at most 4"), "{rank}");
}

#[test]
fn memory_follows_the_file_and_not_its_counts() {
    // A billion elements, tensors and keys are claimed, and a few bytes are there.
    let array = [&[1, 0, 0, 0, 0, 0, 0, 0, b'k', 9, 0, 0, 0, 8, 0, 0, 0][..], &(1u64 << 30).to_le_bytes()].concat();
    for file in
        [header(1 << 30, 0, b""), header(0, 1 << 30, b""), header(0, 1, &array), header(u64::MAX, u64::MAX, b"")]
    {
        let error = read(&file, ParseMode::Strict).unwrap_err();
        assert!(matches!(&error, Error::Cut(message) if message.contains("the header goes on to byte")), "{error}");
    }
}
