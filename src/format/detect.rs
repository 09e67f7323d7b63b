//! Detects files of other formats by their first bytes, so that the error message can give a hint.

use std::fmt;

/// A file of a format that weightfs does not read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Foreign {
    /// The format with its article: "a zip archive".
    name: String,
    /// What the user can do, if anything.
    hint: Option<&'static str>,
}

/// Offset of a magic number, the magic number, the format that it identifies, and a hint for the user.
const MAGICS: [(usize, &[u8], &str, Option<&str>); 23] = [
    (0, b"GGUF", "a GGUF file", Some("weightfs reads safetensors; GGUF has its own tools, such as gguf-dump")),
    (0, b"GGML", "a GGML file, older than GGUF", Some("convert it with llama.cpp's tools")),
    (0, b"lmgg", "a GGML file, older than GGUF", Some("convert it with llama.cpp's tools")),
    (0, b"tjgg", "a GGML file, older than GGUF", Some("convert it with llama.cpp's tools")),
    (0, b"PK\x03\x04", "a zip archive, such as a PyTorch checkpoint (.pt, .bin)", Some(CONVERT)),
    (0, b"PK\x05\x06", "an empty zip archive", None),
    (0, b"\x1f\x8b", "gzip data", Some("unpack it with gunzip first")),
    (0, b"\x28\xb5\x2f\xfd", "zstd data", Some("unpack it with unzstd first")),
    (0, b"\xfd7zXZ\0", "xz data", Some("unpack it with unxz first")),
    (0, b"BZh", "bzip2 data", Some("unpack it with bunzip2 first")),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", Some("unpack it first")),
    (257, b"ustar", "a tar archive", Some("unpack it first")),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, such as a Keras model (.h5)", Some("convert it to safetensors first")),
    (0, b"\x93NUMPY", "a NumPy array (.npy)", Some("open it with numpy.load")),
    (4, b"TFL3", "a TensorFlow Lite model", None),
    (0, b"\x08\x07\x12", "an ONNX model", None),
    (0, b"\x08\x08\x12", "an ONNX model", None),
    (0, b"PAR1", "a Parquet file", None),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG picture", None),
    (0, b"\xff\xd8\xff", "a JPEG picture", None),
    (0, b"%PDF-", "a PDF document", None),
    (0, b"\x7fELF", "a program (ELF)", None),
    (0, b"#!", "a script", None),
];

const CONVERT: &str = "load it with torch.load(..., weights_only=True) and save it with safetensors.torch.save_file";

/// Maximum number of bytes that [`Foreign::detect`] looks at.
pub const PREFIX: u64 = 512;

impl Foreign {
    /// Identifies the format of a file by its first `PREFIX` bytes.
    ///
    /// Use it only for files that failed to parse: a valid header length can look like a magic number.
    pub fn detect(prefix: &[u8]) -> Option<Self> {
        let other = |name: &str, hint| Some(Self { name: name.to_owned(), hint });
        if prefix.is_empty() {
            return other("empty", Some("a download may not have started"));
        }
        if let [_, _, _, _, 0, 0, 0, 0, header @ ..] = prefix {
            // safetensors: a length below 4 GiB, then a JSON object. Such a length can begin with a magic number.
            if header.trim_ascii_start().starts_with(b"{") {
                return None;
            }
        }
        if let Some(pointer) = lfs_pointer(prefix) {
            return Some(pointer);
        }
        if let Some((_, _, name, hint)) =
            MAGICS.iter().find(|(at, magic, ..)| prefix.get(*at..).is_some_and(|rest| rest.starts_with(magic)))
        {
            return other(name, *hint);
        }
        // A pickle of protocol 2 to 5 begins with PROTO, mostly followed by EMPTY_DICT, EMPTY_LIST, MARK, GLOBAL,
        // BINUNICODE, LONG1 or FRAME.
        if let [0x80, 2..=5, b'}' | b']' | b'(' | b'c' | b'X' | b'\x8a' | b'\x95', ..] = prefix {
            return other("a Python pickle, such as an old PyTorch checkpoint (.pt, .bin)", Some(CONVERT));
        }
        let text = prefix.trim_ascii_start();
        let begins =
            |word: &str| text.get(..word.len()).is_some_and(|start| start.eq_ignore_ascii_case(word.as_bytes()));
        if begins("<!doctype html") || begins("<html") {
            return other("an HTML page", Some("the server may have sent a login or error page"));
        }
        if begins("<?xml") {
            return other("an XML document", Some("the server may have sent an error page"));
        }
        if begins("{\"error\"") || begins("{\"message\"") {
            return other("a JSON error message", Some("the download failed; read the message with `cat`"));
        }
        if begins("{") {
            return other("JSON text", None);
        }
        if prefix.len() >= 64 && prefix.iter().all(|byte| *byte == 0) {
            return other("filled with zeros", Some("the first bytes may not be downloaded yet"));
        }
        None
    }
}

/// Detects the pointer, a text of three lines, that Git LFS leaves in place of a file that was not fetched.
/// Source: the Git LFS specification, docs/spec.md, "The Pointer".
fn lfs_pointer(prefix: &[u8]) -> Option<Foreign> {
    let text = prefix.strip_prefix(b"version https://git-lfs.github.com/spec/")?;
    let text = String::from_utf8_lossy(text);
    let size = text.lines().find_map(|line| line.strip_prefix("size ")?.parse::<u64>().ok());
    let size = size.map_or(String::new(), |size| format!(" to a file of {size} bytes"));
    Some(Foreign { name: format!("a Git LFS pointer{size}"), hint: Some("fetch the file itself with `git lfs pull`") })
}

impl fmt::Display for Foreign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hint {
            None => f.write_str(&self.name),
            Some(hint) => write!(f, "{} ({hint})", self.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_formats_are_detected() {
        let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n";
        let tar: &[u8] = &[&[b'a'; 257][..], b"ustar\0"].concat();
        let cases: [(&[u8], &str); 13] = [
            (b"", "empty (a download may not have started)"),
            (lfs, "a Git LFS pointer to a file of 4976698672 bytes (fetch the file itself with `git lfs pull`)"),
            (b"GGUF\x03\0\0\0", "a GGUF file"),
            (b"PK\x03\x04\0\0", "a zip archive"),
            (b"\x80\x02}q\0", "a Python pickle"),
            (b"\x80\x04\x95\x10\0", "a Python pickle"),
            (b"\x1f\x8b\x08", "gzip data"),
            (b"\n<!DOCTYPE html><html>", "an HTML page"),
            (b"<HTML>", "an HTML page"),
            (b"{\"error\":\"Entry not found\"}", "a JSON error message"),
            (b"{\"a\":1}", "JSON text"),
            (tar, "a tar archive"),
            (&[0; 64], "filled with zeros"),
        ];
        for (prefix, expected) in cases {
            let found = Foreign::detect(prefix).unwrap().to_string();
            assert!(found.starts_with(expected), "{found}");
        }
        // The length in the second one begins with the magic number of gzip.
        for safetensors in [&b"\x10\0\0\0\0\0\0\0{}"[..], b"\x1f\x8b\x01\0\0\0\0\0{\""] {
            assert_eq!(Foreign::detect(safetensors), None);
        }
    }
}
