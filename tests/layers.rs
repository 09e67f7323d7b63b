//! Holds the code to the layers that `src/lib.rs` declares.
#![allow(clippy::unwrap_used, clippy::panic, reason = "that is how a test fails")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// Each layer with those that it may name. The binary's rooms may name one another and the library from outside.
const EDGES: [(&str, &[&str]); 23] = [
    ("format", &[]),
    ("source", &[]),
    ("name", &[]),
    ("natural", &[]),
    ("content", &["source"]),
    ("widen", &["content", "format"]),
    ("model", &["format", "source", "name"]),
    ("stats", &["content", "format", "widen"]),
    ("compare", &["content", "source", "format", "widen"]),
    ("write", &["content", "source"]),
    ("plot", &["format", "stats"]),
    ("view", &["content", "model", "format", "name", "widen", "stats", "plot", "workers"]),
    ("inspect", &["format", "model", "natural", "source", "stats", "workers"]),
    ("fs", &["view", "content", "model", "format", "source", "name", "natural", "workers"]),
    ("workers", &[]),
    ("reader", &[]),
    ("sandbox", &[]),
    ("fuse", &["fs", "content", "source", "workers", "reader"]),
    ("main", &["cli", "cmd", "docs", "logging"]),
    ("docs", &["cli"]),
    ("cmd", &["cli", "logging"]),
    ("cli", &[]),
    ("logging", &[]),
];

/// What only these files may name.
const ONLY_IN: [(&str, &[&str]); 7] = [
    ("fuser::", &["src/fuse.rs"]),
    ("clap::", &["src/cli/", "src/docs.rs"]),
    ("landlock::", &["src/sandbox.rs"]),
    ("seccompiler::", &["src/sandbox.rs"]),
    ("plotters::", &["src/plot.rs", "src/plot/"]),
    ("anyhow::", &["src/main.rs", "src/cli/", "src/logging.rs", "src/cmd/"]),
    ("#[allow(unsafe_code)]", &["src/source/file.rs", "src/cmd/daemon.rs"]),
];

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else {
            found.push(path);
        }
    }
    found
}

/// The code of a file without its comments and its tests.
fn code(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let text = text.split("\nmod tests {").next().unwrap_or_default();
    text.lines().filter(|line| !line.trim_start().starts_with("//")).collect::<Vec<_>>().join("\n")
}

/// The layers that `code` names by `crate::`.
fn named(code: &str) -> BTreeSet<&str> {
    code.split("crate::")
        .skip(1)
        .flat_map(|rest| match rest.strip_prefix('{') {
            Some(group) => group.split('}').next().unwrap_or_default().split(',').collect(),
            None => vec![rest],
        })
        .map(|item| item.trim().split(|char: char| !char.is_alphanumeric() && char != '_').next().unwrap_or_default())
        .filter(|layer| !layer.is_empty())
        .collect()
}

#[test]
fn no_layer_knows_those_above_it() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = BTreeSet::new();
    for path in sources(&src) {
        let relative = path.strip_prefix(&src).unwrap();
        let layer = relative.components().next().unwrap().as_os_str().to_str().unwrap().trim_end_matches(".rs");
        if layer == "lib" || relative.ends_with("tests.rs") {
            continue;
        }
        let (_, allowed) = EDGES.iter().find(|edge| edge.0 == layer).unwrap_or_else(|| panic!("{layer} has no edges"));
        for named in named(&code(&path)) {
            assert!(named == layer || allowed.contains(&named), "{} names {named}", relative.display());
            seen.insert((layer.to_owned(), named.to_owned()));
        }
    }
    // The rule is about something: the edges that a read goes along were seen.
    for edge in [("fuse", "fs"), ("fs", "view"), ("view", "content"), ("content", "source"), ("model", "format")] {
        assert!(seen.contains(&(edge.0.to_owned(), edge.1.to_owned())), "{edge:?}");
    }
}

#[test]
fn what_belongs_to_one_file_stays_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for path in sources(&root.join("src")) {
        let file = path.strip_prefix(root).unwrap().to_str().unwrap();
        let code = code(&path);
        for (word, homes) in ONLY_IN {
            assert!(!code.contains(word) || homes.iter().any(|home| file.starts_with(home)), "{file} names {word}");
        }
    }
}
