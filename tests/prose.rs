//! Rules for comments and documentation that a program can check.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fs;
use std::path::{Path, PathBuf};

/// The most columns of a line of a comment.
const COLUMNS: usize = 120;

/// Files with one of these extensions, or without an extension, below a directory of the repository.
fn files(dir: &str, extensions: &[&str]) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut dirs = vec![Path::new(env!("CARGO_MANIFEST_DIR")).join(dir)];
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).unwrap() {
            let path = entry.unwrap().path();
            let extension = path.extension().map_or("", |extension| extension.to_str().unwrap());
            let is_output = ["target", "corpus", "artifacts"].iter().any(|name| path.ends_with(name));
            if path.is_dir() && !is_output {
                dirs.push(path);
            } else if path.is_file() && extensions.contains(&extension) {
                found.push(path);
            }
        }
    }
    assert!(!found.is_empty(), "{dir}");
    found
}

/// The source files and scripts of the repository.
fn sources() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for dir in ["src", "tests", "benches", "fuzz"] {
        found.extend(files(dir, &["rs", "py", "c"]));
    }
    found.extend(files("scripts", &[""]));
    found
}

fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found = files("docs", &["md", "1"]);
    found.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|name| root.join(name)));
    found
}

#[test]
fn lines_of_comments_keep_to_120_columns() {
    for path in sources() {
        let is_c = path.extension().is_some_and(|extension| extension == "rs" || extension == "c");
        let mark = if is_c { "//" } else { "#" };
        for (at, line) in fs::read_to_string(&path).unwrap().lines().enumerate() {
            let is_comment = line.trim_start().starts_with(mark);
            let columns = line.chars().count();
            assert!(!is_comment || columns <= COLUMNS, "{}:{}: {columns} columns", path.display(), at + 1);
        }
    }
}

#[test]
fn readme_and_contributing_are_short() {
    for (name, most) in [("README.md", 160), ("CONTRIBUTING.md", 40)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        let lines = fs::read_to_string(path).unwrap().lines().count();
        assert!(lines <= most, "{name}: {lines} lines");
    }
}

#[test]
fn files_that_the_documentation_links_to_exist() {
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let path = page.parent().unwrap().join(link.split('#').next().unwrap());
            assert!(link.starts_with("https://") || path.exists(), "{}: {link}", page.display());
        }
    }
}

/// The programs of the tests in `tests/` that the documentation names.
const ROOMS: [&str; 10] =
    ["allocations", "cache", "fetching", "gguf", "inspect", "mount", "planner", "quantized", "sandbox", "transport"];

#[test]
fn tests_that_the_documentation_names_exist() {
    let tests: String = files("tests", &["rs"]).iter().map(|path| fs::read_to_string(path).unwrap()).collect();
    let mut named = 0;
    for page in pages() {
        let text = fs::read_to_string(&page).unwrap();
        // Odd parts are between backquotes.
        let quoted = text.split('`').skip(1).step_by(2);
        for name in quoted.filter(|quoted| ROOMS.iter().any(|room| quoted.starts_with(&format!("{room}::")))) {
            let last = name.rsplit("::").next().unwrap();
            let is_there = ["fn {}(", "mod {};"].iter().any(|form| tests.contains(&form.replace("{}", last)));
            assert!(is_there, "{}: there is no test {name}", page.display());
            named += 1;
        }
    }
    assert!(named > 30, "{named}");
}
