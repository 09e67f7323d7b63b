//! Golden files: `tests/golden/NAME.txt` contains the error or the tensor names for `NAME.safetensors`, in both modes.
//! `UPDATE_GOLDEN=1` rewrites the `.txt` files; review the changes.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::fmt::Write;
use std::path::Path;
use weightfs::format::{HeaderInput, ParseMode, parse_header};

/// The results of parsing `file` in both modes.
fn verdict(file: &[u8]) -> String {
    let mut text = String::new();
    let input = HeaderInput::with_prefix(file.len() as u64, file.to_vec());
    for (label, mode) in [("strict", ParseMode::Strict), ("lenient", ParseMode::Lenient)] {
        match parse_header(&input, mode) {
            Err(error) => writeln!(text, "{label}: {error}").unwrap(),
            Ok(header) => {
                let names: Vec<_> = header.tensors().map(|tensor| tensor.name).collect();
                writeln!(text, "{label}: ok, tensors {names:?}").unwrap();
                for skipped in header.skipped.listed() {
                    writeln!(text, "  {skipped}").unwrap();
                }
            }
        }
    }
    text
}

#[test]
fn messages_match_the_golden_files() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let update = std::env::var_os("UPDATE_GOLDEN").is_some();
    let mut files = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "safetensors") {
            continue;
        }
        files += 1;
        let file = std::fs::read(&path).unwrap();
        let verdict = verdict(&file);
        // The official reader agrees, except that it accepts a repeated name.
        let official = safetensors::SafeTensors::deserialize(&file).is_ok();
        let stem = path.file_stem().unwrap().to_str().unwrap();
        assert_eq!(
            official || stem == "name_twice",
            verdict.starts_with("strict: ok") || stem == "name_twice",
            "{stem}"
        );
        assert!(!verdict.contains(|char: char| char.is_control() && char != '\n'), "{stem}");
        if update {
            std::fs::write(path.with_extension("txt"), &verdict).unwrap();
        }
        let golden = std::fs::read_to_string(path.with_extension("txt")).unwrap_or_default();
        assert_eq!(verdict, golden, "{stem}");
    }
    assert!(files > 40, "only {files} golden files");
}
