//! Tests of the superblock, mostly on in-memory files. The reference is a map from paths to contents.

use super::*;
use crate::content::{Error as ContentError, ReadRequest, WaitFor, WaitResource};
use crate::format::ParseMode;
use crate::model::{self, Model, OpenedModel};
use crate::name;
use crate::source::{self, Bytes, Location, MemorySource, Source, SourceInfo, SourceStat};
use crate::view::{self, ShownViews};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsStr;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

/// Operations that may wait.
impl Superblock {
    fn find(&self, parent: Ino, name: &str) -> Result<Attr, Error> {
        self.lookup(parent, name.as_bytes(), &ReadRequest::WAIT)
    }

    fn attr(&self, ino: Ino) -> Result<Attr, Error> {
        self.getattr(ino, &ReadRequest::WAIT)
    }

    fn read(&self, ino: Ino, range: Range<u64>) -> Result<Vec<u8>, Error> {
        Ok(self.open(ino, &ReadRequest::WAIT)?.read(range, &ReadRequest::WAIT)?.to_vec())
    }
}

/// A mounted file with these tensors and this metadata. The tensor at index `i` has `i % 5` bytes of value `i`.
fn superblock(names: &[String], metadata: &[(String, String)], shown: ShownViews) -> Superblock {
    let mut data = Vec::new();
    let mut members = Vec::new();
    if !metadata.is_empty() {
        let object: BTreeMap<_, _> = metadata.iter().cloned().collect();
        members.push(format!("\"__metadata__\":{}", serde_json::to_string(&object).unwrap()));
    }
    for (at, name) in names.iter().enumerate() {
        let from = data.len();
        data.resize(from + at % 5, at as u8);
        let name = serde_json::to_string(name).unwrap();
        let shape = data.len() - from;
        members.push(format!(r#"{name}:{{"dtype":"U8","shape":[{shape}],"data_offsets":[{from},{}]}}"#, data.len()));
    }
    let header = format!("{{{}}}", members.join(","));
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &data].concat();
    mount(MemorySource::new(file), shown)
}

fn mount(source: impl Source + 'static, shown: ShownViews) -> Superblock {
    let location = Location::from(Path::new("/m.safetensors"));
    let model = Model::from_source(&location, Arc::new(source), ParseMode::Strict).unwrap();
    Superblock::new(OpenedModel::Model(model.into(), None), shown, Ownership::default()).unwrap()
}

fn list(superblock: &Superblock, ino: Ino, offset: u64) -> Vec<Dentry<'_>> {
    let mut entries = Vec::new();
    superblock
        .readdir(ino, offset, &ReadRequest::WAIT, |entry| {
            entries.push(entry);
            false
        })
        .unwrap();
    entries
}

/// Collects every path below `ino` with its inode number and, unless it is a directory, its bytes.
fn walk(superblock: &Superblock, ino: Ino, path: &str, found: &mut BTreeMap<String, (Ino, Option<Vec<u8>>)>) {
    let entries = list(superblock, ino, 0);
    assert_eq!((&*entries[0].name, entries[0].ino), (OsStr::new("."), ino));
    assert_eq!(&*entries[1].name, "..");
    // A listing that continues after any entry returns the rest of the entries.
    for (at, entry) in entries.iter().enumerate() {
        assert_eq!(list(superblock, ino, entry.next), entries[at + 1..]);
    }
    for entry in &entries[2..] {
        let below = format!("{path}/{}", entry.name.to_str().unwrap());
        let attr = superblock.lookup(ino, entry.name.as_encoded_bytes(), &ReadRequest::WAIT).unwrap();
        assert_eq!((attr.ino, attr.kind), (entry.ino, entry.kind), "{below}");
        assert_eq!(superblock.attr(entry.ino).unwrap(), attr);
        let bytes = if entry.kind == FileKind::Dir {
            assert_eq!(list(superblock, entry.ino, 0)[1].ino, ino, "{below}/..");
            walk(superblock, entry.ino, &below, found);
            None
        } else {
            let content = superblock.open(entry.ino, &ReadRequest::WAIT).unwrap();
            assert_eq!(content.len(), attr.size);
            // Files that need a pass over the data are slow and have their own tests.
            let read = content.read(0..1, &ReadRequest::NOWAIT);
            let is_slow =
                matches!(read, Err(ContentError::WouldBlock(WaitFor { need: WaitResource::Cores { .. }, .. })));
            let bytes = if is_slow { Vec::new() } else { superblock.read(entry.ino, 0..u64::MAX).unwrap() };
            assert!(is_slow || bytes.len() as u64 == attr.size);
            Some(bytes)
        };
        assert_eq!(found.insert(below, (entry.ino, bytes)), None);
    }
}

/// The path of a tensor in `tree/`, by a simple reference implementation.
fn tree_path(name: &str, names: &[String]) -> String {
    let components: Vec<_> = name.split('.').map(name::encode_name).collect();
    let beside = names.iter().any(|other| other.strip_prefix(name).is_some_and(|rest| rest.starts_with('.')));
    format!("/tree/{}{}", components.join("/"), if beside { "%" } else { "" })
}

fn names() -> impl Strategy<Value = Vec<String>> {
    let component =
        prop::sample::select(vec!["", "a", "b", "layers", "0", "1", "01", "2", "10", "A", "/", "%", "é", "\n"]);
    let long = ("[ab]", 100usize..400).prop_map(|(char, times)| char.repeat(times));
    let component = prop_oneof![12 => component.prop_map(str::to_owned), 1 => long];
    let name = prop::collection::vec(component, 1..5).prop_map(|components| components.join("."));
    prop::collection::hash_set(name, 0..24).prop_map(|names| names.into_iter().collect())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn mount_matches_reference_map(names in names(), keys in names()) {
        let metadata: Vec<_> = keys.iter().enumerate().map(|(at, key)| (key.clone(), format!("value {at}"))).collect();
        let superblock = superblock(&names, &metadata, ShownViews::default());
        let mut found = BTreeMap::new();
        walk(&superblock, ROOT, "", &mut found);
        let mut expected: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for (at, name) in names.iter().enumerate() {
            let bytes = vec![at as u8; at % 5];
            prop_assert_eq!(expected.insert(format!("/tensors/{}", name::encode_name(name)), bytes.clone()), None);
            prop_assert_eq!(expected.insert(tree_path(name, &names), bytes), None);
            // Every tensor has a file in the other views.
            let endings =
                [("npy", ".npy"), ("f32", ".f32"), ("safetensors", ".safetensors"), ("stats", ".json"), ("plots", ".png")];
            for (dir, ending) in endings {
                let path = format!("/{dir}/{}{ending}", name::encode_name(name));
                prop_assert!(found.contains_key(&path), "{}", path);
            }
            // Both paths have the same inode.
            let flat = found[&format!("/tensors/{}", name::encode_name(name))].0;
            prop_assert_eq!(found[&tree_path(name, &names)].0, flat);
            prop_assert_eq!(superblock.getxattr(flat, b"user.weightfs.name", &ReadRequest::WAIT).unwrap(), name.as_bytes());
        }
        for (key, value) in &metadata {
            expected.insert(format!("/metadata/{}", name::encode_name(key)), value.clone().into_bytes());
        }
        let files: BTreeMap<_, _> = found.iter()
            .filter(|(path, _)| ["/tensors/", "/tree/", "/metadata/"].iter().any(|dir| path.starts_with(dir)))
            .filter_map(|(path, (_, bytes))| Some((path.clone(), bytes.clone()?)))
            .collect();
        prop_assert!(files == expected, "found {:?}, expected {:?}", files.keys(), expected.keys());
        // Inode numbers are unique, except that the two paths of a tensor share one.
        let inos: HashSet<Ino> = found.values().map(|found| found.0).collect();
        prop_assert_eq!(inos.len(), found.len() - names.len());
        // The same file gets the same inode numbers in another mount.
        let again = self::superblock(&names, &metadata, ShownViews::default());
        let mut found_again = BTreeMap::new();
        walk(&again, ROOT, "", &mut found_again);
        prop_assert!(found_again == found);
    }

    #[test]
    fn index_json_lists_every_tensor(names in names(), ranges in prop::collection::vec((0u64..6000, 0u64..900), 8)) {
        let superblock = superblock(&names, &[], ShownViews::default());
        let ino = superblock.find(ROOT, "index.json").unwrap().ino;
        let whole = superblock.read(ino, 0..u64::MAX).unwrap();
        for (offset, size) in ranges {
            let (from, to) = (offset.min(whole.len() as u64), (offset + size).min(whole.len() as u64));
            prop_assert_eq!(&superblock.read(ino, offset..offset + size).unwrap(), &whole[from as usize..to as usize]);
        }
        let index: serde_json::Value = serde_json::from_slice(&whole).unwrap();
        prop_assert_eq!(&index["source"], "/m.safetensors");
        let listed = index["tensors"].as_array().unwrap();
        prop_assert_eq!(listed.len(), names.len());
        let mut end = None;
        for (at, entry) in listed.iter().enumerate() {
            let name = entry["name"].as_str().unwrap();
            let len = names.iter().position(|other| other == name).unwrap() % 5;
            let offset = entry["offset"].as_u64().unwrap();
            let expected = serde_json::json!({
                "name": name, "dtype": "U8", "shape": [len], "nbytes": len,
                "file": format!("tensors/{}", name::encode_name(name)), "shard": "m.safetensors", "offset": offset,
            });
            prop_assert_eq!(entry, &expected);
            // Entries are in the order of the data, without gaps.
            prop_assert!(end.is_none_or(|end| end == offset), "{at}");
            end = Some(offset + len as u64);
        }
        // Each line has one tensor, because newlines in names are escaped.
        prop_assert_eq!(whole.iter().filter(|byte| **byte == b'\n').count(), names.len() + 2);
    }
}

fn strings<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}

fn listed(superblock: &Superblock, path: &[&str]) -> Vec<String> {
    let ino = path.iter().fold(ROOT, |ino, name| superblock.find(ino, name).unwrap().ino);
    list(superblock, ino, 2).into_iter().map(|entry| entry.name.to_str().unwrap().to_owned()).collect()
}

#[test]
fn tree_is_in_natural_order() {
    let names =
        strings(["l.10.w", "l.2.w", "l.1.w", "l.x", "l.1", "l.02.w", "l.18446744073709551617.w", "w10b", "w9b", "w9a"]);
    let superblock = superblock(&names, &[], ShownViews::default());
    assert_eq!(listed(&superblock, &["tree", "l"]), ["1%", "1", "02", "2", "10", "18446744073709551617", "x"]);
    assert_eq!(listed(&superblock, &["tree"]), ["l", "w9a", "w9b", "w10b"]);
    // `tensors/` is in the order of the data.
    assert_eq!(listed(&superblock, &["tensors"]), names);
}

#[test]
fn unknown_names_and_inodes_are_not_found() {
    let superblock = superblock(&strings(["a", "a.b", "c/d", ""]), &[("k".into(), "v".into())], ShownViews::default());
    let dir = |name: &str| superblock.find(ROOT, name).unwrap().ino;
    let cases: [(Ino, &[&str]); 4] = [
        (ROOT, &["tensor", "tensors%", "", ".", "..", "index.json%"]),
        (dir("tensors"), &["b", "a%", "a.", "c/d", "c%2fd", "%%", "a.b.c", "%~0123456789abcdef"]),
        (dir("tree"), &["b", "c", "a%%", "%%", "c%2Fd%", "a.b"]),
        (dir("metadata"), &["K", "k%", "v"]),
    ];
    for (ino, names) in cases {
        for name in names {
            assert!(matches!(superblock.find(ino, name), Err(Error::NoEntry)), "{name}");
        }
    }
    assert!(matches!(superblock.lookup(dir("tensors"), b"\xff", &ReadRequest::WAIT), Err(Error::NoEntry)));
    assert!(matches!(superblock.find(dir("index.json"), "a"), Err(Error::NotADirectory)));
    assert!(matches!(superblock.read(dir("tensors"), 0..1), Err(Error::IsADirectory)));
    for ino in [0, 999, 1 << 40 | 7, 2 << 40 | 1, 3 << 40 | 1, 20 << 40 | 4, u64::MAX] {
        assert!(matches!(superblock.attr(ino), Err(Error::NoEntry)), "{ino:#x}");
    }
}

#[test]
fn xattrs_describe_tensor() {
    let superblock = superblock(&strings(["x", "y.z"]), &[], ShownViews::default());
    let tensors = superblock.find(ROOT, "tensors").unwrap().ino;
    let ino = superblock.find(tensors, "y.z").unwrap().ino;
    let names = String::from_utf8(superblock.listxattr(ino, &ReadRequest::WAIT).unwrap()).unwrap();
    let values: HashMap<&str, String> = names
        .split_terminator('\0')
        .map(|name| {
            (name, String::from_utf8(superblock.getxattr(ino, name.as_bytes(), &ReadRequest::WAIT).unwrap()).unwrap())
        })
        .collect();
    let offset = (superblock.find(ROOT, "header.json").unwrap().size + 8).to_string();
    let expected = [
        ("user.weightfs.name", "y.z"),
        ("user.weightfs.dtype", "U8"),
        ("user.weightfs.shape", "[1]"),
        ("user.weightfs.nbytes", "1"),
        ("user.weightfs.offset", &offset),
        ("user.weightfs.shard", "m.safetensors"),
    ];
    assert_eq!(values, expected.map(|(name, value)| (name, value.to_owned())).into_iter().collect());
    assert!(matches!(superblock.getxattr(ino, b"user.other", &ReadRequest::WAIT), Err(Error::NoAttribute)));
    assert!(matches!(superblock.getxattr(ROOT, b"user.weightfs.name", &ReadRequest::WAIT), Err(Error::NoAttribute)));
    assert_eq!(superblock.listxattr(tensors, &ReadRequest::WAIT).unwrap(), b"");
}

#[test]
fn only_selected_views_are_shown() {
    let shown = |names: &[&str]| view::shown_views(names.iter().copied()).unwrap();
    let superblock = |names: &[&str]| superblock(&strings(["a"]), &[], shown(names));
    assert_eq!(listed(&superblock(&["tensors", "metadata"]), &[]), ["metadata", "metadata.json", "tensors"]);
    assert!(matches!(superblock(&["tree"]).find(ROOT, "tensors"), Err(Error::NoEntry)));
    for (names, links) in [(&["tree"][..], 1), (&["tensors"], 1), (&["tensors", "tree"], 2)] {
        let superblock = superblock(names);
        let dir = superblock.find(ROOT, names[0]).unwrap().ino;
        assert_eq!(superblock.find(dir, "a").unwrap().nlink, links);
    }
    // index.json only names files that exist in the mount.
    let superblock = superblock(&["index"]);
    let ino = superblock.find(ROOT, "index.json").unwrap().ino;
    let index: serde_json::Value = serde_json::from_slice(&superblock.read(ino, 0..u64::MAX).unwrap()).unwrap();
    assert!(index["tensors"][0]["file"].is_null());
}

/// An in-memory source with configurable attributes that may be slow.
#[derive(Debug)]
struct Fake {
    memory: MemorySource,
    info: SourceInfo,
    is_slow: bool,
}

impl Fake {
    fn new(names: &[&str]) -> Self {
        let entries: Vec<String> =
            names.iter().map(|name| format!(r#""{name}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#)).collect();
        let header = format!("{{{}}}", entries.join(","));
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
        let stat = SourceStat { uid: 5, gid: 6, mode: 0o644, mtime: SystemTime::UNIX_EPOCH, ctime: (0, 0) };
        let info = SourceInfo { stat, ..SourceInfo::anonymous(file.len() as u64) };
        Self { memory: MemorySource::new(file), info, is_slow: false }
    }
}

impl Source for Fake {
    fn info(&self) -> &SourceInfo {
        &self.info
    }
    fn bytes(&self, range: Range<u64>) -> Result<Bytes, source::Error> {
        self.memory.bytes(range)
    }
    fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), source::Error> {
        self.memory.read_runs_at(buf, len, offset, step)
    }
    fn may_block(&self, _: &Range<u64>) -> bool {
        self.is_slow
    }
}

#[test]
fn permissions_follow_source() {
    for (mode, file, dir) in [(0o644, 0o444, 0o555), (0o600, 0o400, 0o500), (0o4750, 0o440, 0o550), (0o222, 0, 0)] {
        let mut source = Fake::new(&["a"]);
        source.info.stat.mode = mode;
        let superblock = mount(source, ShownViews::default());
        let root = superblock.attr(ROOT).unwrap();
        assert_eq!((root.perm, root.uid, root.gid), (dir, 5, 6));
        assert_eq!(superblock.find(ROOT, "header.json").unwrap().perm, file);
    }
}

#[test]
fn only_data_reads_wait_for_slow_source() {
    let mut source = Fake::new(&["a", "b.c"]);
    source.is_slow = true;
    let superblock = mount(source, ShownViews::default());
    let request = &ReadRequest::NOWAIT;
    let header = superblock.lookup(ROOT, b"header.json", request).unwrap();
    let content = superblock.open(header.ino, request).unwrap();
    assert!(matches!(content.read(0..8, request), Err(ContentError::WouldBlock(_))));
    assert_eq!(content.read(0..8, &ReadRequest::WAIT).unwrap().len(), 8);
    // Names and attributes do not need the source after it is open.
    for dir in ["tensors", "tree", "npy", "export", "metadata"] {
        let dir = superblock.lookup(ROOT, dir.as_bytes(), request).unwrap();
        superblock.readdir(dir.ino, 0, request, |entry| superblock.getattr(entry.ino, request).is_err()).unwrap();
    }
}

#[test]
fn large_tables_are_made_only_if_request_may_wait() {
    let names: Vec<String> = (0..20_000).map(|at| format!("layers.{at}.w")).collect();
    let superblock = superblock(&names, &[], ShownViews::default());
    let request = &ReadRequest::NOWAIT;
    let blocks = |result: Result<Attr, Error>| result.is_err_and(|error| error.would_block());
    assert!(blocks(superblock.lookup(ROOT, b"index.json", request)));
    assert!(blocks(superblock.lookup(ROOT, b"SHA256SUMS", request)));
    let tree = superblock.lookup(ROOT, b"tree", request).unwrap().ino;
    assert!(blocks(superblock.lookup(tree, b"layers", request)));
    let mut entries = 0;
    let mut add = |_: Dentry<'_>| {
        entries += 1;
        false
    };
    assert!(superblock.readdir(tree, 0, request, &mut add).is_err_and(|error| error.would_block()));
    assert_eq!(entries, 0);
    // Requests do not wait for a table that exists.
    for (dir, name) in [(ROOT, "index.json"), (ROOT, "SHA256SUMS"), (tree, "layers")] {
        let attr = superblock.find(dir, name).unwrap();
        assert_eq!(superblock.lookup(dir, name.as_bytes(), request).unwrap(), attr);
    }
    let tensors = superblock.lookup(ROOT, b"tensors", request).unwrap().ino;
    assert!(superblock.lookup(tensors, b"layers.7.w", request).is_ok());
}

/// A directory with two models.
fn folder(dir: &Path) -> Superblock {
    for name in ["a", "b"] {
        let header = r#"{"t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#;
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), b"x"].concat();
        std::fs::write(dir.join(format!("{name}.safetensors")), file).unwrap();
    }
    let opened = model::open_location(&dir.into(), ParseMode::Strict).unwrap();
    Superblock::new(opened, ShownViews::default(), Ownership::default()).unwrap()
}

#[test]
fn models_are_opened_only_if_request_may_wait() {
    let dir = tempfile::tempdir().unwrap();
    let superblock = folder(dir.path());
    let request = &ReadRequest::NOWAIT;
    let blocks = |result: Result<Attr, Error>| result.is_err_and(|error| error.would_block());
    assert!(blocks(superblock.lookup(ROOT, b"a", request)));
    assert!(superblock.readdir(ROOT, 0, request, |_| panic!()).is_err_and(|error| error.would_block()));
    assert_eq!(listed(&superblock, &[]), ["a", "b"]);
    let a = superblock.lookup(ROOT, b"a", request).unwrap().ino;
    // The verdict is available, but the model is not open.
    assert!(blocks(superblock.lookup(a, b"tensors", request)));
    let tensors = superblock.find(a, "tensors").unwrap().ino;
    let tensor = superblock.lookup(tensors, b"t", request).unwrap().ino;
    assert_eq!(superblock.read(tensor, 0..9).unwrap(), b"x");
    let b = superblock.find(ROOT, "b").unwrap().ino;
    assert!(matches!(superblock.lookup(b, b"header.json", request), Err(error) if error.would_block()));
}

/// The scheduler lets an operation wait for a few things only, one after the other.
#[test]
fn parts_of_a_pipeline_are_opened_in_one_wait() {
    let dir = tempfile::tempdir().unwrap();
    let header = r#"{"t":{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}"#;
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes()].concat();
    let parts: Vec<String> = (0..10).map(|part| format!("part{part}")).collect();
    for part in &parts {
        std::fs::create_dir(dir.path().join(part)).unwrap();
        std::fs::write(dir.path().join(part).join("config.json"), "{}").unwrap();
        std::fs::write(dir.path().join(part).join("diffusion_pytorch_model.safetensors"), &file).unwrap();
    }
    let index: Vec<String> = parts.iter().map(|part| format!(r#""{part}": ["diffusers", "A"]"#)).collect();
    std::fs::write(dir.path().join("model_index.json"), format!("{{{}}}", index.join(","))).unwrap();
    let opened = model::open_location(&dir.path().into(), ParseMode::Strict).unwrap();
    let superblock = Superblock::new(opened, ShownViews::default(), Ownership::default()).unwrap();
    let export = superblock.find(ROOT, "export").unwrap().ino;
    let (mut request, mut waits) = (ReadRequest::NOWAIT, 0);
    let folder = loop {
        match superblock.lookup(export, b"hf-bf16", &request) {
            Ok(folder) => break folder.ino,
            Err(error) => request = ReadRequest::only(error.waits_for().unwrap()),
        }
        waits += 1;
    };
    // One for the file of parts if it is not in the page cache, and one for all parts.
    assert!((1..=2).contains(&waits), "{waits}");
    let part = superblock.find(folder, "part9").unwrap().ino;
    assert!(superblock.find(part, "diffusion_pytorch_model.safetensors").is_ok());
}

#[test]
fn model_changed_after_listing_is_not_opened() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let superblock = folder(dir.path());
    let a = superblock.find(ROOT, "a").unwrap().ino;
    let path = dir.path().join("a.safetensors");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    for _ in 0..2 {
        let error = superblock.find(a, "tensors").unwrap_err();
        assert!(matches!(&error, Error::Changed { .. }), "{error}");
    }
    // The failure is not cached.
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(superblock.find(a, "tensors").is_ok());
}

#[test]
fn too_deep_names_are_left_out_of_tree() {
    let name = |dots: usize| format!("{}x", "a.".repeat(dots));
    let names = strings([&name(2047), &name(2048), &".".repeat(1_000_000)]);
    let superblock = superblock(&names, &[], ShownViews::default());
    let tensors = superblock.find(ROOT, "tensors").unwrap().ino;
    let links: Vec<u32> =
        list(&superblock, tensors, 2).iter().map(|entry| superblock.attr(entry.ino).unwrap().nlink).collect();
    assert_eq!(links, [2, 1, 1]);
    let mut ino = superblock.find(ROOT, "tree").unwrap().ino;
    for _ in 0..2047 {
        assert_eq!(list(&superblock, ino, 2).len(), 1);
        ino = superblock.find(ino, "a").unwrap().ino;
    }
    assert_eq!(superblock.find(ino, "x").unwrap().nlink, 2);
    assert!(matches!(superblock.find(ino, "a"), Err(Error::NoEntry)));
}

#[test]
fn oversized_xattrs_are_left_out() {
    for (name, shape, expected) in [
        (65_536, 10, "name dtype shape"),
        (65_537, 10, "dtype shape"),
        (1, 30_000, "name dtype"),
        (1, 21_845, "name dtype shape"),
    ] {
        let names = ["n".repeat(name)];
        let shape = vec!["1"; shape].join(",");
        let header = format!(r#"{{"{}":{{"dtype":"U8","shape":[{shape}],"data_offsets":[0,1]}}}}"#, names[0]);
        let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), b"x"].concat();
        let superblock = mount(MemorySource::new(file), ShownViews::default());
        let tensors = superblock.find(ROOT, "tensors").unwrap().ino;
        let ino = list(&superblock, tensors, 2)[0].ino;
        let listed = String::from_utf8(superblock.listxattr(ino, &ReadRequest::WAIT).unwrap()).unwrap();
        let found: Vec<&str> =
            listed.split_terminator('\0').map(|name| name.strip_prefix("user.weightfs.").unwrap()).collect();
        assert_eq!(found.join(" "), format!("{expected} nbytes offset shard"));
        for attribute in found {
            let value =
                superblock.getxattr(ino, format!("user.weightfs.{attribute}").as_bytes(), &ReadRequest::WAIT).unwrap();
            assert!(value.len() <= 65_536, "{attribute}");
        }
    }
}

/// A tree with one tensor `w` of these bytes.
fn tree_of(bytes: &[u8]) -> Superblock {
    let header = format!(r#"{{"w":{{"dtype":"U8","shape":[{0}],"data_offsets":[0,{0}]}}}}"#, bytes.len());
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), bytes].concat();
    mount(MemorySource::new(file), ShownViews::default())
}

/// The inode number in the mount of `tensors/w`.
fn mounted_w(mounted: &MountedTree) -> Ino {
    let generations = mounted.generations();
    let tree = generations.current();
    tree.mounted_ino(tree.resolve(b"tensors/w", &ReadRequest::WAIT).unwrap().ino)
}

fn read_mounted(mounted: &MountedTree, ino: Ino) -> Result<Vec<u8>, Error> {
    let generations = mounted.generations();
    let (tree, ino) = generations.find(ino)?;
    tree.read(ino, 0..u64::MAX)
}

#[test]
fn a_replaced_tree_serves_its_open_files_and_nothing_else() {
    let mounted = MountedTree::replaceable(tree_of(b"one"));
    let one = mounted_w(&mounted);
    mounted.opened(one).unwrap();
    mounted.replace(tree_of(b"two")).unwrap();
    let two = mounted_w(&mounted);
    assert_ne!(one, two);
    assert_eq!(read_mounted(&mounted, one).unwrap(), b"one");
    assert_eq!(read_mounted(&mounted, two).unwrap(), b"two");
    assert!(matches!(mounted.opened(one), Err(Error::Stale)));
    assert!(matches!(mounted.generations().find_current(one), Err(Error::Stale)));
    // A tree without open files is dropped when it is replaced, and one with open files when the last one is closed.
    mounted.replace(tree_of(b"three")).unwrap();
    assert!(matches!(read_mounted(&mounted, two), Err(Error::Stale)));
    assert_eq!(mounted.len_in_use(), 2);
    mounted.closed(one);
    assert!(matches!(read_mounted(&mounted, one), Err(Error::Stale)));
    assert_eq!(mounted.len_in_use(), 1);
    assert_eq!(read_mounted(&mounted, mounted_w(&mounted)).unwrap(), b"three");
}

#[test]
fn inode_numbers_are_reused_only_when_no_tree_in_use_has_them() {
    let mounted = MountedTree::replaceable(tree_of(b"first"));
    let first = mounted_w(&mounted);
    mounted.opened(first).unwrap();
    let limit = ino::TREES_MAX;
    // The current tree ends at the limit, so that numbering starts again; number 0 is in use.
    mounted.replace_at(tree_of(b"last"), limit - 1..limit);
    let last = mounted_w(&mounted);
    mounted.replace(tree_of(b"next")).unwrap();
    let next = mounted_w(&mounted);
    assert!(first != next && last != next);
    assert_eq!(read_mounted(&mounted, first).unwrap(), b"first");
    assert_eq!(read_mounted(&mounted, next).unwrap(), b"next");
    // Numbers of the generation count on, so the kernel can tell them apart.
    assert_eq!(mounted.generations().current().number(), 2);
}
