//! Checks that the code keeps to the layers that `src/lib.rs` describes. Here a layer is a top-level module.
//!
//! Every path in the code (`use crate::a::{b, c::D}`, `super::f()`) is resolved to the file that defines the item,
//! through the re-exports of `mod.rs` files. Unit tests are left out.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Each layer of the library, and the layers that it uses.
const LIBRARY: &[(&str, &[&str])] = &[
    ("text", &[]),
    ("name", &["text"]),
    ("natural", &[]),
    ("threads", &[]),
    ("units", &[]),
    ("kept", &[]),
    ("parts", &[]),
    ("rules", &[]),
    ("source", &[]),
    ("remote", &["source"]),
    ("content", &["kept", "source"]),
    ("codec", &[]),
    ("format", &["codec", "rules", "text"]),
    ("model", &["codec", "content", "format", "kept", "name", "source", "text", "threads", "units"]),
    ("stats", &["codec", "format"]),
    ("plot", &["stats", "units"]),
    ("compare", &["content", "format", "source", "threads"]),
    ("write", &["content", "source"]),
    ("view", &["codec", "content", "format", "kept", "model", "name", "plot", "source", "stats", "text", "threads"]),
    (
        "inspect",
        &[
            "codec", "content", "format", "model", "natural", "parts", "rules", "source", "stats", "text", "threads",
            "units",
        ],
    ),
    ("references", &["format", "model", "name", "source", "text"]),
    ("schedule", &["content", "threads"]),
    ("fs", &["content", "model", "name", "natural", "schedule", "source", "text", "threads", "view"]),
    ("fuse", &["content", "fs", "model", "schedule", "source", "threads"]),
    ("serve", &["content", "fs", "inspect", "model", "natural", "schedule", "source", "text", "threads", "units"]),
];

/// Each layer of the binary, and the layers of the binary that it uses. All of them may use the library.
const BINARY: &[(&str, &[&str])] = &[
    ("cli", &[]),
    ("terminal", &[]),
    ("process", &[]),
    ("opening", &["cli", "process", "terminal"]),
    ("cmd", &["cli", "opening", "process", "terminal"]),
    ("main", &["cli", "cmd", "process"]),
];

/// Strings that only these files may contain, outside of comments.
const ONLY_IN: &[(&str, &[&str])] = &[
    ("fuser::", &["src/fuse/"]),
    ("clap::", &["src/cli/", "src/cmd/write_docs.rs"]),
    ("landlock::", &["src/process/sandbox/"]),
    ("seccompiler::", &["src/process/sandbox/"]),
    ("use parquet::", &["src/process/parquet.rs", "src/references/tables.rs"]),
    ("ab_glyph::", &["src/plot/"]),
    ("tokio::", &["src/remote/fetch", "src/remote/transport/", "src/serve/"]),
    ("hyper_util::", &["src/serve/"]),
    ("reqwest::", &["src/remote/transport/"]),
    ("object_store::", &["src/remote/transport/store/"]),
    ("postcard::", &["src/remote/protocol.rs"]),
    ("anyhow::", &["src/main.rs", "src/opening.rs", "src/cli/", "src/cmd/", "src/process/", "src/terminal/"]),
    (
        "#[allow(unsafe_code)]",
        &[
            "src/codec/mod.rs",
            "src/codec/quantized/fp8.rs",
            "src/source/map.rs",
            "src/source/page_cache.rs",
            "src/source/pins/area.rs",
            "src/schedule/mod.rs",
            "src/process/daemon.rs",
            "src/process/descriptors.rs",
            "src/process/limits.rs",
            "src/process/mounts.rs",
            "src/process/sandbox/refused.rs",
        ],
    ),
];

/// The type names that several layers define, each layer at most once, and why.
const ONE_PER_LAYER: &[(&str, &str)] = &[("Error", "it is written with its layer, as in `source::Error`")];

/// A path to a module, from the root of its crate: `["fs", "tree"]`.
type Module = Vec<String>;

/// A source file.
struct File {
    path: PathBuf,
    text: String,
    module: Module,
    /// Its tokens without unit tests.
    tokens: Vec<TokenTree>,
}

/// A path as written in the code: `["crate", "fs", "Attr"]`. A path in a public `use` is an export.
struct Named {
    path: Vec<String>,
    alias: Option<String>,
    imported: bool,
    exported: bool,
}

/// Pairs in which the first uses the second.
type Edges<T> = BTreeSet<(T, T)>;

/// The library or the binary.
struct Crate {
    files: Vec<File>,
    modules: BTreeSet<Module>,
    /// The path to which each export leads, by the exporting module and the exported name.
    exports: BTreeMap<(Module, String), Vec<String>>,
}

impl Crate {
    /// Reads the files of `layers`.
    fn read(layers: &[(&str, &[&str])]) -> Self {
        let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let mut files = Vec::new();
        for path in rust_files(&src) {
            let relative = path.strip_prefix(&src).unwrap().with_extension("");
            let mut module: Module =
                relative.components().map(|part| part.as_os_str().to_str().unwrap().to_owned()).collect();
            if module.last().is_some_and(|last| last == "mod") {
                module.pop();
            }
            if !layers.iter().any(|layer| layer.0 == module[0]) || module.last().is_some_and(|last| last == "tests") {
                continue;
            }
            // `main.rs` is the root of the binary.
            module.retain(|part| part != "main");
            let text = std::fs::read_to_string(&path).unwrap();
            let tokens = without_tests(text.parse().unwrap());
            files.push(File { path, text, module, tokens });
        }
        let modules = files.iter().map(|file| file.module.clone()).collect();
        let mut read = Self { files, modules, exports: BTreeMap::new() };
        for file in &read.files {
            for named in paths(&file.tokens).into_iter().filter(|named| named.exported) {
                let (item, mut path) = (named.path.last().unwrap().clone(), named.path.clone());
                if path[0] != "crate" && path[0] != "super" {
                    path.insert(0, "self".to_owned());
                }
                read.exports.insert((file.module.clone(), named.alias.unwrap_or(item)), path);
            }
        }
        read
    }

    /// The module to which a path in `module` leads, and whether it names an item there. `None` outside the crate.
    fn resolve(&self, module: &Module, path: &[String], depth: usize) -> Option<(Module, bool)> {
        assert!(depth < 16, "too many re-exports: {path:?}");
        let mut at = match path[0].as_str() {
            "crate" => Vec::new(),
            "self" => module.clone(),
            "super" => module[..module.len().checked_sub(1)?].to_vec(),
            _ => return None,
        };
        let mut rest = &path[1..];
        while let Some((first, after)) = rest.split_first() {
            if first == "super" {
                at.pop();
            } else {
                let child = [&at[..], std::slice::from_ref(first)].concat();
                if !self.modules.contains(&child) && !self.modules.iter().any(|module| module.starts_with(&child)) {
                    break;
                }
                at = child;
            }
            rest = after;
        }
        let Some(item) = rest.first() else { return Some((at, false)) };
        match self.exports.get(&(at.clone(), item.clone())) {
            Some(export) => self.resolve(&at, export, depth + 1),
            None => Some((at, true)),
        }
    }

    /// The pairs of modules in which the first uses an item of the second, and the same pairs of layers.
    fn edges(&self) -> (Edges<Module>, Edges<String>) {
        let (mut modules, mut layers) = (BTreeSet::new(), BTreeSet::new());
        for file in &self.files {
            let named = paths(&file.tokens);
            // Modules that an import or a declaration binds to a name.
            let mut bound: BTreeMap<String, Module> = BTreeMap::new();
            let children =
                self.modules.iter().filter(|module| module.split_last().is_some_and(|(_, up)| up == file.module));
            bound.extend(children.map(|child| (child.last().unwrap().clone(), child.clone())));
            for import in named.iter().filter(|named| named.imported) {
                if let Some((module, false)) = self.resolve(&file.module, &import.path, 0) {
                    bound.insert(import.alias.clone().unwrap_or_else(|| import.path.last().unwrap().clone()), module);
                }
            }
            let used = words(&file.tokens);
            // An export is a use only if the file also uses the item.
            for named in named.iter().filter(|named| !named.exported || used.contains(named.path.last().unwrap())) {
                let mut path = named.path.clone();
                if let Some(module) = bound.get(&path[0]) {
                    let from_root = std::iter::once("crate".to_owned()).chain(module.iter().cloned());
                    path = from_root.chain(path[1..].iter().cloned()).collect();
                }
                let Some((module, is_item)) = self.resolve(&file.module, &path, 0) else { continue };
                let layer = |module: &Module| module.first().cloned().unwrap_or_else(|| "main".to_owned());
                if layer(&file.module) != layer(&module) {
                    layers.insert((layer(&file.module), layer(&module)));
                }
                if is_item && module != file.module {
                    modules.insert((file.module.clone(), module));
                }
            }
        }
        (modules, layers)
    }
}

fn rust_files(dir: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(rust_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The tokens without the items that have `#[cfg(test)]`.
fn without_tests(tokens: TokenStream) -> Vec<TokenTree> {
    let mut kept = Vec::new();
    let mut tokens = tokens.into_iter().peekable();
    while let Some(token) = tokens.next() {
        let is_attribute = matches!(&token, TokenTree::Punct(punct) if punct.as_char() == '#');
        let is_test = matches!(tokens.peek(), Some(TokenTree::Group(group)) if group.to_string().replace(' ', "") == "[cfg(test)]");
        if !(is_attribute && is_test) {
            kept.push(token);
            continue;
        }
        for token in tokens.by_ref().skip(1) {
            match token {
                TokenTree::Punct(punct) if punct.as_char() == ';' => break,
                TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => break,
                _ => {}
            }
        }
    }
    kept
}

/// All paths of at least two parts, also inside token groups, and all paths of `use` statements with braces expanded.
fn paths(tokens: &[TokenTree]) -> Vec<Named> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < tokens.len() {
        match &tokens[at] {
            TokenTree::Ident(word) if *word == "use" => {
                // `pub use`, `pub(crate) use`.
                let before = tokens[..at].iter().rev().find(|token| !matches!(token, TokenTree::Group(_)));
                let exported = matches!(before, Some(TokenTree::Ident(word)) if *word == "pub");
                let end = tokens[at..].iter().position(is(';')).map_or(tokens.len(), |end| at + end);
                expand(&tokens[at + 1..end], &[], exported, &mut found);
                at = end;
            }
            TokenTree::Ident(first) => {
                let mut path = vec![first.to_string()];
                while tokens.get(at + 1).is_some_and(is(':')) && tokens.get(at + 2).is_some_and(is(':')) {
                    let Some(TokenTree::Ident(next)) = tokens.get(at + 3) else { break };
                    path.push(next.to_string());
                    at += 3;
                }
                if path.len() > 1 {
                    found.push(Named { path, alias: None, imported: false, exported: false });
                }
            }
            TokenTree::Group(group) => found.extend(paths(&group.stream().into_iter().collect::<Vec<_>>())),
            _ => {}
        }
        at += 1;
    }
    found
}

/// All identifiers outside of `use` and `mod` statements.
fn words(tokens: &[TokenTree]) -> BTreeSet<String> {
    let (mut found, mut in_use) = (BTreeSet::new(), false);
    for token in tokens {
        match token {
            TokenTree::Ident(word) if *word == "use" || *word == "mod" => in_use = true,
            TokenTree::Punct(punct) if punct.as_char() == ';' => in_use = false,
            _ if in_use => {}
            TokenTree::Ident(word) => drop(found.insert(word.to_string())),
            TokenTree::Group(group) => found.extend(words(&group.stream().into_iter().collect::<Vec<_>>())),
            _ => {}
        }
    }
    found
}

/// The names of all structs, enums, unions and traits that are defined in `tokens`, also inside token groups.
fn defined_types(tokens: &[TokenTree]) -> Vec<String> {
    let mut found = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        match (token, tokens.get(at + 1)) {
            (TokenTree::Ident(word), Some(TokenTree::Ident(name)))
                if ["struct", "enum", "union", "trait"].contains(&word.to_string().as_str()) =>
            {
                found.push(name.to_string());
            }
            (TokenTree::Group(group), _) => {
                found.extend(defined_types(&group.stream().into_iter().collect::<Vec<_>>()));
            }
            _ => {}
        }
    }
    found
}

fn is(char: char) -> impl Fn(&TokenTree) -> bool {
    move |token| matches!(token, TokenTree::Punct(punct) if punct.as_char() == char)
}

/// Appends the paths of a `use` statement to `found`. Braces may be nested.
fn expand(tokens: &[TokenTree], prefix: &[String], exported: bool, found: &mut Vec<Named>) {
    for part in tokens.split(is(',')) {
        let (mut path, mut alias, mut renamed) = (prefix.to_vec(), None, false);
        let mut is_group = false;
        for token in part {
            match token {
                TokenTree::Ident(word) if *word == "as" => renamed = true,
                TokenTree::Ident(word) if renamed => alias = Some(word.to_string()),
                TokenTree::Ident(word) if *word == "self" && !prefix.is_empty() => {}
                TokenTree::Ident(word) => path.push(word.to_string()),
                TokenTree::Group(group) => {
                    expand(&group.stream().into_iter().collect::<Vec<_>>(), &path, exported, found);
                    is_group = true;
                }
                _ => {}
            }
        }
        if !is_group && path.len() > prefix.len().min(1) {
            found.push(Named { path, alias, imported: true, exported });
        }
    }
}

/// A chain of modules that ends with its first one, if there is a cycle.
fn cycle(edges: &Edges<Module>) -> Option<Vec<String>> {
    fn visit(
        at: &Module,
        edges: &Edges<Module>,
        chain: &mut Vec<Module>,
        done: &mut BTreeSet<Module>,
    ) -> Option<Vec<String>> {
        if let Some(start) = chain.iter().position(|before| before == at) {
            return Some(chain[start..].iter().chain([at]).map(|module| module.join("::")).collect());
        }
        if !done.insert(at.clone()) {
            return None;
        }
        chain.push(at.clone());
        let next = edges.iter().filter(|edge| edge.0 == *at);
        let found = next.into_iter().find_map(|(_, to)| visit(to, edges, chain, done));
        chain.pop();
        found
    }
    let mut done = BTreeSet::new();
    edges.iter().find_map(|(from, _)| visit(from, edges, &mut Vec::new(), &mut done))
}

#[test]
fn layers_use_exactly_what_the_tables_allow() {
    for (table, name) in [(LIBRARY, "library"), (BINARY, "binary")] {
        let (_, found) = Crate::read(table).edges();
        let allowed: BTreeSet<(String, String)> =
            table.iter().flat_map(|(from, to)| to.iter().map(|to| (from.to_string(), to.to_string()))).collect();
        let forbidden: Vec<_> = found.difference(&allowed).collect();
        let unused: Vec<_> = allowed.difference(&found).collect();
        assert!(forbidden.is_empty() && unused.is_empty(), "{name}: not allowed {forbidden:?}, not used {unused:?}");
    }
}

#[test]
fn modules_have_no_cyclic_dependencies() {
    for table in [LIBRARY, BINARY] {
        let (edges, _) = Crate::read(table).edges();
        assert!(edges.len() > 20, "too few uses were found: {edges:?}");
        if let Some(cycle) = cycle(&edges) {
            panic!("cyclic dependency: {}", cycle.join(" -> "));
        }
    }
}

#[test]
fn each_type_name_is_defined_once() {
    let mut definitions: BTreeMap<String, Vec<(String, PathBuf)>> = BTreeMap::new();
    for file in [LIBRARY, BINARY].into_iter().flat_map(|table| Crate::read(table).files) {
        let layer = file.module.first().cloned().unwrap_or_else(|| "main".to_owned());
        for name in defined_types(&file.tokens) {
            definitions.entry(name).or_default().push((layer.clone(), file.path.clone()));
        }
    }
    assert!(definitions.len() > 500, "too few types were found: {}", definitions.len());
    for (name, places) in definitions {
        let layers: BTreeSet<&String> = places.iter().map(|(layer, _)| layer).collect();
        let may_repeat = ONE_PER_LAYER.iter().any(|(allowed, _)| *allowed == name) && layers.len() == places.len();
        assert!(places.len() == 1 || may_repeat, "{name} is defined more than once: {places:?}");
    }
}

#[test]
fn all_files_belong_to_a_layer() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let layers: BTreeSet<&str> = LIBRARY.iter().chain(BINARY).map(|layer| layer.0).chain(["lib"]).collect();
    for entry in std::fs::read_dir(&src).unwrap() {
        let path = entry.unwrap().path();
        let layer = path.file_stem().unwrap().to_str().unwrap();
        assert!(layers.contains(layer), "{layer} is missing in the tables of layers");
    }
}

#[test]
fn library_does_not_mention_clap() {
    for file in Crate::read(LIBRARY).files {
        assert!(!file.text.contains("clap"), "{} mentions clap", file.path.display());
    }
}

#[test]
fn restricted_strings_stay_in_their_files() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for path in rust_files(&root.join("src")) {
        let file = path.strip_prefix(root).unwrap().to_str().unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        let code: Vec<&str> = text.lines().filter(|line| !line.trim_start().starts_with("//")).collect();
        for (word, homes) in ONLY_IN {
            let is_named = code.iter().any(|line| line.contains(word));
            assert!(!is_named || homes.iter().any(|home| file.starts_with(home)), "{file} must not contain {word}");
        }
    }
}

#[test]
fn modules_of_several_files_have_a_mod_file() {
    for path in rust_files(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src")) {
        assert!(!path.with_extension("").is_dir(), "{} has a folder of the same name: use mod.rs", path.display());
    }
}

#[test]
fn nested_paths_and_cycles_are_found() {
    let text = "use crate::{a::{self, b::{C, D as E}}, f}; pub use g::H; fn i() { crate::j::k(super::l::M) }";
    let tokens: Vec<TokenTree> = text.parse::<TokenStream>().unwrap().into_iter().collect();
    let found: Vec<String> = paths(&tokens).iter().map(|named| named.path.join("::")).collect();
    assert_eq!(
        found,
        ["crate::a", "crate::a::b::C", "crate::a::b::D", "crate::f", "g::H", "crate::j::k", "super::l::M"]
    );
    let module = |name: &str| vec![name.to_owned()];
    let edge = |a: &str, b: &str| (module(a), module(b));
    assert_eq!(cycle(&[edge("a", "b"), edge("b", "c"), edge("c", "b")].into()).unwrap(), ["b", "c", "b"]);
    assert_eq!(cycle(&[edge("a", "b"), edge("b", "c"), edge("a", "c")].into()), None);
}
