//! Detects files of other formats by their first bytes, so that the error message can give a hint.

use super::input::{number_at, take_varint};
use crate::text::quote;

const CONVERT_GGML: &str = " (convert it with llama.cpp's tools)";

const CONVERT: &str = " (load it with torch.load(..., weights_only=True) and save it with safetensors.torch.save_file)";

const CONVERT_KERAS: &str =
    " (load it with keras.models.load_model or h5py, and save its arrays with safetensors.numpy.save_file)";

/// The remedy for text in place of a model.
const NO_MODEL: &str = " (if it should be a model, the download failed; read the text with `cat`)";

/// Offset of a magic number, the magic number, the format that it identifies, and a hint for the user.
const MAGICS: [(usize, &[u8], &str, &str); 20] = [
    (0, b"GGML", "a GGML file, older than GGUF", CONVERT_GGML),
    // The numbers "ggml", "ggmf" and "ggjt" in little-endian order.
    (0, b"lmgg", "a GGML file, older than GGUF", CONVERT_GGML),
    (0, b"fmgg", "a GGML file, older than GGUF", CONVERT_GGML),
    (0, b"tjgg", "a GGML file, older than GGUF", CONVERT_GGML),
    (0, b"MZqFpD", "a llamafile, a program with a GGUF model in it", " (unpack the model with `unzip FILE '*.gguf'`)"),
    (0, b"PK\x05\x06", "an empty zip archive", ""),
    (0, b"\x1f\x8b", "gzip data", " (unpack it with gunzip first)"),
    (0, b"\x28\xb5\x2f\xfd", "zstd data", " (unpack it with unzstd first)"),
    (0, b"\xfd7zXZ\0", "xz data", " (unpack it with unxz first)"),
    (0, b"BZh", "bzip2 data", " (unpack it with bunzip2 first)"),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7-Zip archive", " (unpack it first)"),
    (257, b"ustar", "a tar archive", " (unpack it first)"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, such as the weights of a Keras model (.h5, .hdf5)", CONVERT_KERAS),
    (4, b"TFL3", "a TensorFlow Lite model", ""),
    (0, b"PAR1", "a Parquet file", ""),
    (0, b"\x89PNG\r\n\x1a\n", "a PNG picture", ""),
    (0, b"\xff\xd8\xff", "a JPEG picture", ""),
    (0, b"%PDF-", "a PDF document", ""),
    (0, b"\x7fELF", "a program (ELF)", ""),
    (0, b"#!", "a script", ""),
];

/// Beginnings of texts in lower case, what they identify, and a hint for the user.
const TEXTS: [(&str, &str, &str); 5] = [
    ("<!doctype html", "an HTML page", " (the server may have sent a login or error page)"),
    ("<html", "an HTML page", " (the server may have sent a login or error page)"),
    ("<?xml", "an XML document", " (the server may have sent an error page)"),
    ("{\"error\"", "a JSON error message", " (the download failed; read the message with `cat`)"),
    ("{\"message\"", "a JSON error message", " (the download failed; read the message with `cat`)"),
];

/// The number 0x1950a86a20f9469cfc6c in a pickle, with which a file begins that torch before 1.6 has written.
/// Source: `torch/serialization.py`, `MAGIC_NUMBER`.
const LEGACY_TORCH: [u8; 13] = [0x8a, 10, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19, b'.'];

/// The entries of a tar archive that torch before 0.1.10 has written.
const TAR_TORCH: [&[u8]; 4] = [b"sys_info\0", b"pickle\0", b"tensors\0", b"storages\0"];

/// The magic numbers of the formats that weightfs reads and that have one.
const OWN_MAGICS: [&[u8]; 4] = [b"PK\x03\x04", b"GGUF", b"SLM1", b"\x93NUMPY"];

/// Maximum number of bytes that `detect_foreign` looks at.
pub const PREFIX: u64 = 512;

/// Number of bytes of the header of a member of a tar archive.
pub const TAR_BLOCK: usize = 512;

/// Maximum number of bytes that [`may_be_model`] and `is_tar_torch` look at: the header of times, the times, and the
/// header of the member that has them.
pub const TAR_PREFIX: u64 = 3 * TAR_BLOCK as u64;

/// Identifies a file of a format that weightfs does not read, with a hint for the user: "gzip data (unpack it with
/// gunzip first)". `prefix` has its first [`PREFIX`] bytes.
///
/// Use it only for files that failed to parse: a valid header length can look like a magic number.
pub fn detect_foreign(prefix: &[u8]) -> Option<String> {
    if prefix.is_empty() {
        return Some("empty (a download may not have started)".to_owned());
    }
    // Its length can begin with a magic number.
    if is_safetensors(prefix) {
        return None;
    }
    if let Some(pointer) = lfs_pointer(prefix) {
        return Some(pointer);
    }
    let text = detect_text(prefix);
    let (name, hint) = if let Some(archive) = detect_zip(prefix) {
        archive
    } else if let Some((_, _, name, hint)) =
        MAGICS.iter().find(|(at, magic, ..)| prefix.get(*at..).is_some_and(|rest| rest.starts_with(magic)))
    {
        (*name, *hint)
    } else if let [0x80, 2..=5, b'}' | b']' | b'(' | b'c' | b'X' | b'\x8a' | b'\x95', ..] = prefix {
        // A pickle of protocol 2 to 5 begins with PROTO, mostly followed by EMPTY_DICT, EMPTY_LIST, MARK, GLOBAL,
        // BINUNICODE, LONG1 or FRAME.
        ("a Python pickle, such as an old PyTorch checkpoint (.pt, .bin)", CONVERT)
    } else if let Some((name, hint)) = &text {
        (&name[..], *hint)
    } else if prefix.len() >= 64 && prefix.iter().all(|byte| *byte == 0) {
        ("filled with zeros", " (the first bytes may not be downloaded yet)")
    } else {
        return None;
    };
    Some(format!("{name}{hint}"))
}

/// Entries of an archive that torch.export.save has written, without the directory that newer versions put them into.
/// Sources: `torch/_export/serde/serialize.py`, and `torch/export/pt2_archive/constants.py`.
const EXPORTED: [&str; 4] =
    ["archive_format", "models/model.json", "serialized_exported_program.json", "serialized_state_dict.pt"];

const EXPORTED_PROGRAM: &str = "a program that torch.export has written (.pt2)";

const CONVERT_EXPORTED: &str =
    " (load it with torch.export.load, and save its state_dict with safetensors.torch.save_file)";

/// Whether an entry with this name is one of a program of torch.export.
fn is_exported(name: &[u8]) -> bool {
    let member = name.splitn(2, |byte| *byte == b'/').nth(1).unwrap_or_default();
    EXPORTED.iter().any(|exported| [name, member].contains(&exported.as_bytes()))
}

/// Identifies a program of torch.export by the names of the entries of an archive.
pub fn detect_exported<'n>(mut names: impl Iterator<Item = &'n str>) -> Option<String> {
    names
        .any(|name| is_exported(name.as_bytes()))
        .then(|| format!("the archive is {EXPORTED_PROGRAM}{CONVERT_EXPORTED}"))
}

/// What to do with an archive whose entries cannot be read in place.
pub const PACK_AGAIN: &str = "unpack it with unzip, and pack it again with `zip -0 -D -r`";

pub fn archive_after(bytes: u64) -> String {
    format!(
        "a zip archive after {bytes} bytes of something else (torch.load and numpy.load do not read it either; \
         {PACK_AGAIN})"
    )
}

/// Whether a zip archive may follow what a file begins with: a program that unpacks it, or something unknown.
pub fn may_precede_archive(prefix: &[u8]) -> bool {
    let is_program = [&b"\x7fELF"[..], b"#!"].iter().any(|magic| prefix.starts_with(magic));
    is_program || detect_foreign(prefix).is_none() && !is_safetensors(prefix)
}

/// Whether a file begins like safetensors: a length below 4 GiB, then a JSON object.
fn is_safetensors(prefix: &[u8]) -> bool {
    matches!(prefix, [_, _, _, _, 0, 0, 0, 0, header @ ..] if header.trim_ascii_start().starts_with(b"{"))
}

/// Whether a file whose suffix many programs use can be a model, or should be one: its download has failed. `prefix`
/// has its first [`TAR_PREFIX`] bytes.
pub fn may_be_model(prefix: &[u8]) -> bool {
    let is_tar = is_tar_torch(prefix);
    let prefix = &prefix[..prefix.len().min(PREFIX as usize)];
    let is_own = OWN_MAGICS.iter().any(|magic| prefix.starts_with(magic)) || is_safetensors(prefix);
    let is_torch = is_tar
        || TAR_TORCH.iter().any(|name| prefix.starts_with(name))
        || matches!(prefix, [0x80, 2..=5, b'}' | b']' | b'(' | b'c' | b'X' | b'\x8a' | b'\x95', ..]);
    let is_failed = || prefix.is_empty() || lfs_pointer(prefix).is_some() || detect_text(prefix).is_some();
    is_own || is_torch || is_failed()
}

/// Whether a file begins like one that torch before 1.6 has written.
pub fn is_legacy_torch(prefix: &[u8]) -> bool {
    match prefix {
        // FRAME, whose length has 8 bytes.
        [0x80, 4..=5, 0x95, _, _, _, _, _, _, _, _, rest @ ..] | [0x80, 2..=5, rest @ ..] => {
            rest.starts_with(&LEGACY_TORCH)
        }
        _ => false,
    }
}

/// Whether a file begins like one that torch before 0.1.10 has written. `prefix` has its first [`PREFIX`] bytes, or its
/// first [`TAR_PREFIX`] bytes if [`has_tar_times`] holds.
pub fn is_tar_torch(prefix: &[u8]) -> bool {
    let header = if has_tar_times(prefix) { prefix.get(2 * TAR_BLOCK..).unwrap_or_default() } else { prefix };
    header.get(257..262) == Some(b"ustar") && TAR_TORCH.iter().any(|name| header.starts_with(name))
}

/// Whether a tar archive begins with the times of its first member, which Python writes in more detail than its header
/// has them.
pub fn has_tar_times(prefix: &[u8]) -> bool {
    prefix.get(257..262) == Some(b"ustar") && matches!(prefix.get(156), Some(b'x' | b'g'))
}

/// Whether Python takes the first block of a file for the header of a tar archive: whether its checksum is right.
/// Source: `Lib/tarfile.py` of CPython, `TarInfo.frombuf`, `nti` and `calc_chksums`.
pub fn is_tar_header(block: &[u8]) -> bool {
    if block.len() < TAR_BLOCK {
        return false;
    }
    let field = &block[148..156];
    let found = match field[0] {
        0x80 | 0xff => field[1..].iter().fold(0, |number, byte| number << 8 | i64::from(*byte)),
        _ => {
            let text = field.split(|byte| *byte == 0).next().unwrap_or_default();
            let text = String::from_utf8_lossy(text).replace('_', "");
            let digits = text.trim().trim_start_matches("0o").trim_start_matches("0O");
            i64::from_str_radix(digits, 8).unwrap_or(0)
        }
    };
    let signed: i64 = block.iter().map(|byte| i64::from(byte.cast_signed())).sum();
    let in_field: i64 = field.iter().map(|byte| i64::from(byte.cast_signed())).sum();
    found == tar_checksum(block) as i64 || found == signed - in_field + 8 * i64::from(b' ')
}

/// The sum of the bytes of a header, of which those of the checksum count as spaces.
pub fn tar_checksum(block: &[u8]) -> u64 {
    let bytes = block.iter().enumerate();
    bytes.map(|(at, byte)| if (148..156).contains(&at) { u64::from(b' ') } else { (*byte).into() }).sum()
}

/// Detects the pointer, a text of three lines, that Git LFS leaves in place of a file that was not fetched.
/// Source: the Git LFS specification, docs/spec.md, "The Pointer".
fn lfs_pointer(prefix: &[u8]) -> Option<String> {
    let text = prefix.strip_prefix(b"version https://git-lfs.github.com/spec/")?;
    let text = String::from_utf8_lossy(text);
    let size = text.lines().find_map(|line| line.strip_prefix("size ")?.parse::<u64>().ok());
    let size = size.map_or(String::new(), |size| format!(" to a file of {size} bytes"));
    Some(format!("a Git LFS pointer{size} (fetch the file itself with `git lfs pull`)"))
}

/// Distinguishes zip archives by their first member: torch.save writes `STEM/data.pkl`, and Keras `metadata.json`,
/// whose text names its version and is not compressed.
/// Source: APPNOTE.TXT of PKWARE, 4.3.7, "Local file header".
fn detect_zip(prefix: &[u8]) -> Option<(&'static str, &'static str)> {
    const NAME_LEN: usize = 26;
    const NAME: usize = 30;
    prefix.strip_prefix(b"PK\x03\x04")?;
    let name = prefix.get(NAME..).unwrap_or_default();
    let name = &name[..name.len().min(number_at(prefix, NAME_LEN, 2) as usize)];
    let member = name.splitn(2, |byte| *byte == b'/').nth(1).unwrap_or_default();
    let by_torch = [&b"data.pkl"[..], b"constants.pkl", b"version", b"byteorder", b".format_version"];
    const KERAS: &[u8] = b"\"keras_version\"";
    let by_keras = name == b"metadata.json" && prefix.windows(KERAS.len()).any(|part| part == KERAS);
    let is_torch = by_torch.contains(&member) || member.starts_with(b"data/") || member.starts_with(b"code/");
    Some(match () {
        () if is_exported(name) => (EXPORTED_PROGRAM, CONVERT_EXPORTED),
        () if is_torch => ("a PyTorch checkpoint (.pt, .bin)", CONVERT),
        () if by_keras => ("a Keras model (.keras)", CONVERT_KERAS),
        () => ("a zip archive", " (unpack it with unzip first)"),
    })
}

/// Whether a file begins with fields of an ONNX `ModelProto`, of which the version is the first.
/// Sources: `onnx/onnx.proto`, and "Encoding" of the documentation of Protocol Buffers.
pub fn is_onnx(prefix: &[u8]) -> bool {
    let mut rest = prefix;
    if is_safetensors(prefix) {
        return false;
    }
    // ir_version, which was 3 in the first release.
    if next_varint(&mut rest) != Some(1 << 3)
        || !next_varint(&mut rest).is_some_and(|version| (1..100).contains(&version))
    {
        return false;
    }
    let mut fields = 0;
    while let (Some(tag), Some(value)) = (next_varint(&mut rest), next_varint(&mut rest)) {
        match (tag >> 3, tag & 7) {
            // The graph, or an operator set: all fields before it were sound.
            (7 | 8, 2) if value > 0 => return true,
            // model_version.
            (5, 0) => {}
            // Metadata, training and functions.
            (14 | 20 | 25, 2) => rest = rest.get(value as usize..).unwrap_or_default(),
            // Names, versions, a domain and a description.
            (2 | 3 | 4 | 6, 2) => {
                let text = &rest[..rest.len().min(value as usize)];
                if text.iter().any(|byte| byte.is_ascii_control() && !byte.is_ascii_whitespace()) {
                    return false;
                }
                rest = &rest[text.len()..];
            }
            _ => return false,
        }
        fields += 1;
    }
    fields > 0 && prefix.len() as u64 == PREFIX
}

/// The next number of variable size.
fn next_varint(rest: &mut &[u8]) -> Option<u64> {
    let (number, len) = take_varint(rest)?;
    *rest = &rest[len..];
    Some(number)
}

/// Identifies a file of text. Anything shorter than the length field of a header is too short to tell.
fn detect_text(prefix: &[u8]) -> Option<(String, &'static str)> {
    const SHOWN: usize = 60;
    let begin = prefix.trim_ascii_start();
    let known = TEXTS
        .iter()
        .find(|(text, ..)| begin.get(..text.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(text.as_bytes())));
    if let Some((_, name, hint)) = known {
        return Some(((*name).to_owned(), hint));
    }
    let is_json = begin.starts_with(b"{");
    let kind = if is_json { "JSON text" } else { "text" };
    let text = match str::from_utf8(prefix) {
        // The last character may be cut.
        Err(error) if error.error_len().is_none() => str::from_utf8(&prefix[..error.valid_up_to()]),
        text => text,
    };
    let text = text.unwrap_or_default();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_shown = |char: char| !char.is_control() || "\t\n\r".contains(char);
    if text.len() < 8 || words.is_empty() || !text.chars().all(is_shown) {
        return is_json.then(|| (kind.to_owned(), NO_MODEL));
    }
    let shown: String = words.chars().take(SHOWN).collect();
    let more = if shown.len() < words.len() || prefix.len() as u64 == PREFIX { "..." } else { "" };
    Some((format!("{kind}, {}{more}", quote(&shown)), NO_MODEL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_other_programs_are_no_models() {
        let ctranslate2 = b"\x06\0\0\0\x10\0TransformerSpec\0";
        let core_ml = b"\x0a\0\0\0\x02\0\0\0\0\0\0\0";
        for other in [&ctranslate2[..], core_ml, &[0; 64], b"lmgg\0\x7d\0\0", b"\x12\x34\x56\x78\xff\xfe\0\0"] {
            assert!(!may_be_model(other), "{other:?}");
        }
        let failed: [&[u8]; 3] = [b"", b"version https://git-lfs.github.com/spec/v1\n", b"<!DOCTYPE html>"];
        for model in failed.into_iter().chain([&b"PK\x03\x04\0\0"[..], b"\x80\x02\x8a\x0a", b"GGUF", b"\x80\x02}q\0"]) {
            assert!(may_be_model(model), "{model:?}");
        }
    }

    #[test]
    fn onnx_models_are_recognised() {
        let documented = [b"\x08\x0a\x12\x04onnx\x32\xff\x7f", &[b'd'; 600][..]].concat();
        let graph = b"\x08\x07\x12\x07pytorch\x1a\x051.9.0:\x80\x10";
        for prefix in [&graph[..], b"\x08\x0a:\xff\xff\x03", &documented[..PREFIX as usize]] {
            assert!(is_onnx(prefix), "{prefix:?}");
        }
        // Bytes that only begin like an ONNX model.
        let others: [&[u8]; 7] = [
            b"\x08\x07",
            b"\x08\x07\x12\x07\0\0\0\0\0\0\0",
            b"\x08\0:\x01",
            b"\x08\x07\x7a\x01",
            b"\x08\xff",
            b"",
            b"\x08\x0a:\x01\0\0\0\0{}",
        ];
        for bytes in others {
            assert!(!is_onnx(bytes), "{bytes:?}");
        }
    }

    #[test]
    fn old_checkpoints_of_torch_are_recognised() {
        let legacy = |head: &[u8]| is_legacy_torch(&[head, &LEGACY_TORCH].concat());
        assert!(legacy(b"\x80\x02") && legacy(b"\x80\x04\x95\x0d\0\0\0\0\0\0\0"));
        assert!(!legacy(b"") && !is_legacy_torch(b"\x80\x02\x8a\x0a"));
        let tar = |name: &[u8]| is_tar_torch(&[name, &[0; 248], b"ustar\0"].concat());
        assert!(tar(b"sys_info\0") && !tar(b"sys_infos"));
        // After the times that tarfile.add of Python writes.
        let header = |name: &[u8], kind: u8| {
            let mut header = [0; TAR_BLOCK];
            header[..name.len()].copy_from_slice(name);
            header[156] = kind;
            header[257..262].copy_from_slice(b"ustar");
            header
        };
        let times = |name| [header(b"././@PaxHeader", b'x'), [b'1'; TAR_BLOCK], header(name, b'0')].concat();
        for (name, expected) in [(&b"sys_info"[..], true), (b"readme", false)] {
            let prefix = times(name);
            assert_eq!((is_tar_torch(&prefix), may_be_model(&prefix)), (expected, expected));
            assert!(!is_tar_torch(&prefix[..TAR_BLOCK]));
        }
    }

    #[test]
    fn foreign_formats_are_detected() {
        let lfs = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 4976698672\n";
        let tar: &[u8] = &[&[b'a'; 257][..], b"ustar\0"].concat();
        let zip =
            |name: &str| [b"PK\x03\x04", &[0; 22][..], &[name.len() as u8, 0, 0, 0], name.as_bytes(), b"\x80"].concat();
        let (torch, other) = (zip("archive/data.pkl"), zip("docs/data.pkl.txt"));
        let keras = [zip("metadata.json"), b"{\"keras_version\": \"3.4.1\"}".to_vec()].concat();
        let (config, metadata) = (zip("config.json"), zip("metadata.json"));
        let long = "word ".repeat(200);
        let cases: [(&[u8], &str); 26] = [
            (&config, "a zip archive (unpack it with unzip first)"),
            (&metadata, "a zip archive (unpack it with unzip first)"),
            (b"", "empty (a download may not have started)"),
            (lfs, "a Git LFS pointer to a file of 4976698672 bytes (fetch the file itself with `git lfs pull`)"),
            (b"PK\x03\x04\0\0", "a zip archive (unpack it with unzip first)"),
            (&torch, "a PyTorch checkpoint (.pt, .bin) (load it with torch.load"),
            (&keras, "a Keras model (.keras) (load it with keras.models.load_model"),
            (
                b"\x89HDF\r\n\x1a\n\0",
                "an HDF5 file, such as the weights of a Keras model (.h5, .hdf5) (load it with keras",
            ),
            (&other, "a zip archive (unpack it with unzip first)"),
            (b"\x80\x02}q\0", "a Python pickle"),
            (b"\x80\x04\x95\x10\0", "a Python pickle"),
            (b"\x1f\x8b\x08", "gzip data"),
            (b"lmgg\x00\x7d\0\0", "a GGML file, older than GGUF (convert it with llama.cpp's tools)"),
            (b"fmgg\x01\0\0\0", "a GGML file, older than GGUF (convert it with llama.cpp's tools)"),
            (b"tjgg\x03\0\0\0", "a GGML file, older than GGUF (convert it with llama.cpp's tools)"),
            (b"\n<!DOCTYPE html><html>", "an HTML page"),
            (b"<HTML>", "an HTML page"),
            (b"{\"error\":\"Entry not found\"}", "a JSON error message"),
            (b"{\"a\":1}", "JSON text"),
            (b"Invalid username or password.\n", "text, \"Invalid username or password.\" (if it should be a model"),
            (b"{\"statusCode\":\n 404}", "JSON text, \"{\\\"statusCode\\\": 404}\" (if it should be a model"),
            (b"[ \"gated\",\n\ttrue ]", "text, \"[ \\\"gated\\\", true ]\" (if"),
            ("Accès refusé".as_bytes(), "text, \"Accès refusé\" (if"),
            (&long.as_bytes()[..PREFIX as usize], "text, \"word word word"),
            (tar, "a tar archive"),
            (&[0; 64], "filled with zeros"),
        ];
        for (prefix, expected) in cases {
            let found = detect_foreign(prefix).unwrap();
            assert!(found.starts_with(expected), "{found}");
        }
        // The length in the second one begins with the magic number of gzip.
        for safetensors in [&b"\x10\0\0\0\0\0\0\0{}"[..], b"\x1f\x8b\x01\0\0\0\0\0{\""] {
            assert_eq!(detect_foreign(safetensors), None);
        }
    }
}
