//! Models in a tree of files that is not on this machine: here the tree is in memory.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests fail by panicking")]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::SystemTime;
use weightfs::format::ParseMode;
use weightfs::model::{self, OpenedModel};
use weightfs::source::{
    self, DirListing, FIRST_TREE, ListedEntry, ListedKind, Location, MemorySource, RemoteFailure, Source, SourceStat,
    SourceTree,
};

/// Files by their path, and whether they can be listed.
#[derive(Debug)]
struct Files(BTreeMap<&'static str, Vec<u8>>, bool);

impl Files {
    fn error(&self, path: &str, reason: &str) -> source::Error {
        let name = format!("{}/{path}", self.url()).into();
        source::Error::Remote { name, reason: reason.into(), failure: RemoteFailure::Lasting }
    }

    /// The paths below a directory, relative to it.
    fn below(&self, dir: &str) -> impl Iterator<Item = (&str, &Vec<u8>)> {
        let prefix = if dir.is_empty() { String::new() } else { format!("{dir}/") };
        self.0.iter().filter_map(move |(path, bytes)| Some((path.strip_prefix(&prefix)?, bytes)))
    }
}

impl SourceTree for Files {
    fn url(&self) -> &str {
        "hf://org/name"
    }

    fn device(&self) -> u64 {
        FIRST_TREE
    }

    fn len(&self, path: &str) -> Option<u64> {
        Some(self.0.get(path)?.len() as u64)
    }

    fn stat(&self) -> SourceStat {
        SourceStat { uid: 0, gid: 0, mode: 0o555, mtime: SystemTime::UNIX_EPOCH, ctime: (0, 0) }
    }

    fn open(&self, path: &str) -> Result<Arc<dyn Source>, source::Error> {
        let bytes = self.0.get(path).ok_or_else(|| self.error(path, "no such file"))?;
        Ok(Arc::new(MemorySource::new(bytes.clone())))
    }

    fn list(&self, path: &str) -> Result<DirListing, source::Error> {
        if !self.1 {
            return Err(self.error(path, "the server lists no directories"));
        }
        Ok(self.known(path))
    }

    fn known(&self, path: &str) -> DirListing {
        let mut entries: BTreeMap<&str, (ListedKind, u64)> = BTreeMap::new();
        for (path, bytes) in self.below(path) {
            match path.split_once('/') {
                Some((dir, _)) => entries.insert(dir, (ListedKind::Dir, 0)),
                None => entries.insert(path, (ListedKind::File, bytes.len() as u64)),
            };
        }
        let entry = |(name, (kind, len)): (&str, (ListedKind, u64))| ListedEntry {
            name: name.into(),
            kind,
            is_link: false,
            len,
            device: 1,
        };
        let id = (1, path.bytes().fold(7, |id, byte| id * 31 + u64::from(byte)));
        DirListing {
            id,
            parent: None,
            version: None,
            stat: self.stat(),
            entries: entries.into_iter().map(entry).collect(),
        }
    }

    fn is_dir(&self, path: &str) -> bool {
        self.1 && self.below(path).next().is_some() && !self.0.contains_key(path)
    }

    fn exists(&self, path: &str) -> bool {
        self.0.contains_key(path) || self.is_dir(path)
    }
}

fn file(name: &str) -> Vec<u8> {
    let header = format!(r#"{{"{name}":{{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}}}"#);
    [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), b"abc"].concat()
}

fn sharded() -> [(&'static str, Vec<u8>); 3] {
    let index = r#"{"weight_map": {"x": "m-1.safetensors", "y": "sub/m-2.safetensors"}}"#;
    [("m.safetensors.index.json", index.into()), ("m-1.safetensors", file("x")), ("sub/m-2.safetensors", file("y"))]
}

fn open(
    files: impl IntoIterator<Item = (&'static str, Vec<u8>)>,
    listed: bool,
    path: &str,
) -> Result<OpenedModel, String> {
    let tree = Arc::new(Files(files.into_iter().collect(), listed));
    model::open_location(&Location::in_tree(tree, path), ParseMode::Strict).map_err(|error| error.to_string())
}

fn tensors(opened: OpenedModel) -> Vec<String> {
    let OpenedModel::Model(model, _) = opened else { panic!("{opened:?}") };
    model.stored().iter().map(|tensor| model.name(tensor).to_owned()).collect()
}

#[test]
fn file_of_a_tree_is_a_model() {
    for listed in [false, true] {
        let opened = open([("dir/m.safetensors", file("x"))], listed, "dir/m.safetensors").unwrap();
        assert_eq!(tensors(opened), ["x"]);
    }
}

#[test]
fn index_of_a_tree_opens_its_shards() {
    for listed in [false, true] {
        assert_eq!(tensors(open(sharded(), listed, "m.safetensors.index.json").unwrap()), ["x", "y"]);
    }
    // The only model of a tree is that of the tree.
    assert_eq!(tensors(open(sharded(), true, "").unwrap()), ["x", "y"]);
}

#[test]
fn directories_of_a_tree_are_folders() {
    let files = [("a/one.safetensors", file("x")), ("b/c/two.safetensors", file("y")), ("README.md", b"text".into())];
    let OpenedModel::Catalog(catalog) = open(files, true, "").unwrap() else { panic!("one model") };
    let paths: Vec<_> = catalog.paths().into_keys().map(|path| path.into_os_string().into_string().unwrap()).collect();
    assert_eq!(paths, ["a/one", "b/c/two"]);
    for (_, id) in catalog.paths() {
        assert_eq!(model::open_in(&catalog, id).unwrap().stored().len(), 1);
    }
}

#[test]
fn errors_name_the_url() {
    let missing = open(sharded(), true, "sub/other.safetensors").unwrap_err();
    assert_eq!(missing, "hf://org/name/sub/other.safetensors: no such file");
    let [index, first, _] = sharded();
    let missing = open([index, first], false, "m.safetensors.index.json").unwrap_err();
    assert!(missing.starts_with("hf://org/name/m.safetensors.index.json: "), "{missing}");
    assert!(missing.contains("hf://org/name/sub/m-2.safetensors: no such file"), "{missing}");
    let broken = open([("m.safetensors", b"\x03".to_vec())], true, "m.safetensors").unwrap_err();
    assert!(broken.starts_with("hf://org/name/m.safetensors: "), "{broken}");
    let none = open([("README.md", b"text".into())], true, "").unwrap_err();
    assert!(none.starts_with("hf://org/name: a directory"), "{none}");
}
