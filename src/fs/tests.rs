//! The superblock over memory, against a plain map of paths.

use super::*;
use crate::format::Mode;
use crate::model::Model;
use crate::name;
use crate::source::Memory;
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

/// A file of these tensors, each of as many bytes as its place tells, and this metadata.
fn superblock(names: &[String], metadata: &[(String, String)], shown: Shown) -> Superblock {
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
    let model = Model::from_source(Path::new("/m.safetensors"), Box::new(Memory::new(file)), Mode::Strict).unwrap();
    Superblock::new(Opened::Model(model.into()), shown, Ownership::default()).unwrap()
}

fn model(superblock: &Superblock) -> &Model {
    match &superblock.root {
        Root::Volume(volume) => volume.model(),
        Root::Folders(_) => panic!("several models"),
    }
}

fn list(superblock: &Superblock, ino: Ino, offset: u64) -> Vec<Dentry<'_>> {
    let mut entries = Vec::new();
    superblock
        .readdir(ino, offset, |entry| {
            entries.push(entry);
            false
        })
        .unwrap();
    entries
}

/// Every path below `ino` with its inode number, whether it is a directory, and its bytes.
fn walk(superblock: &Superblock, ino: Ino, path: &str, found: &mut BTreeMap<String, (Ino, Option<Vec<u8>>)>) {
    let entries = list(superblock, ino, 0);
    assert_eq!((&*entries[0].name, entries[0].ino), (OsStr::new("."), ino));
    assert_eq!(&*entries[1].name, "..");
    // A listing may be taken up after any entry, and says what it would have said.
    for (at, entry) in entries.iter().enumerate() {
        assert_eq!(list(superblock, ino, entry.next), entries[at + 1..]);
    }
    for entry in &entries[2..] {
        let below = format!("{path}/{}", entry.name.to_str().unwrap());
        let attr = superblock.lookup(ino, entry.name.as_encoded_bytes()).unwrap();
        assert_eq!((attr.ino, attr.kind), (entry.ino, entry.kind), "{below}");
        assert_eq!(superblock.getattr(entry.ino).unwrap(), attr);
        let bytes = if entry.kind == FileKind::Dir {
            assert_eq!(list(superblock, entry.ino, 0)[1].ino, ino, "{below}/..");
            walk(superblock, entry.ino, &below, found);
            None
        } else {
            // What is computed has tests of its own, and takes long.
            let size = if superblock.is_slow(entry.ino) { 0 } else { u32::MAX };
            let bytes = superblock.read(entry.ino, 0, size, &|| false).unwrap().to_vec();
            assert!(size == 0 || bytes.len() as u64 == attr.size);
            Some(bytes)
        };
        assert_eq!(found.insert(below, (entry.ino, bytes)), None);
    }
}

/// Where a tensor stands in `tree/`, told the long way.
fn tree_path(name: &str, names: &[String]) -> String {
    let components: Vec<_> = name.split('.').map(name::encode).collect();
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
    fn the_tree_is_what_a_plain_map_says(names in names(), keys in names()) {
        let metadata: Vec<_> = keys.iter().enumerate().map(|(at, key)| (key.clone(), format!("value {at}"))).collect();
        let superblock = superblock(&names, &metadata, Shown::default());
        let mut found = BTreeMap::new();
        walk(&superblock, ROOT, "", &mut found);
        let mut expected: BTreeMap<String, Vec<u8>> = BTreeMap::new();
        for (at, name) in names.iter().enumerate() {
            let bytes = vec![at as u8; at % 5];
            prop_assert_eq!(expected.insert(format!("/tensors/{}", name::encode(name)), bytes.clone()), None);
            prop_assert_eq!(expected.insert(tree_path(name, &names), bytes), None);
            // Every tensor has its file in the views beside.
            let endings =
                [("npy", ".npy"), ("f32", ".f32"), ("safetensors", ".safetensors"), ("stats", ".json"), ("plots", ".png")];
            for (dir, ending) in endings {
                let path = format!("/{dir}/{}{ending}", name::encode(name));
                prop_assert!(found.contains_key(&path), "{}", path);
            }
            // Both are one inode.
            let flat = found[&format!("/tensors/{}", name::encode(name))].0;
            prop_assert_eq!(found[&tree_path(name, &names)].0, flat);
            prop_assert_eq!(superblock.getxattr(flat, b"user.weightfs.name").unwrap(), name.as_bytes());
        }
        for (key, value) in &metadata {
            expected.insert(format!("/metadata/{}", name::encode(key)), value.clone().into_bytes());
        }
        let files: BTreeMap<_, _> = found.iter()
            .filter(|(path, _)| ["/tensors/", "/tree/", "/metadata/"].iter().any(|dir| path.starts_with(dir)))
            .filter_map(|(path, (_, bytes))| Some((path.clone(), bytes.clone()?)))
            .collect();
        prop_assert!(files == expected, "{:?} and not {:?}", files.keys(), expected.keys());
        // No two files share a number but the two names of a tensor, nor do two directories.
        let inos: HashSet<Ino> = found.values().map(|found| found.0).collect();
        prop_assert_eq!(inos.len(), found.len() - names.len());
        // The same file mounted again has the same numbers.
        let again = self::superblock(&names, &metadata, Shown::default());
        let mut found_again = BTreeMap::new();
        walk(&again, ROOT, "", &mut found_again);
        prop_assert!(found_again == found);
    }

    #[test]
    fn index_json_lists_every_tensor(names in names(), ranges in prop::collection::vec((0u64..6000, 0u32..900), 8)) {
        let superblock = superblock(&names, &[], Shown::default());
        let ino = superblock.lookup(ROOT, b"index.json").unwrap().ino;
        let whole = superblock.read(ino, 0, u32::MAX, &|| false).unwrap().to_vec();
        for (offset, size) in ranges {
            let from = (offset as usize).min(whole.len());
            let to = (from + size as usize).min(whole.len());
            prop_assert_eq!(&superblock.read(ino, offset, size, &|| false).unwrap()[..], &whole[from..to]);
        }
        let index: serde_json::Value = serde_json::from_slice(&whole).unwrap();
        prop_assert_eq!(&index["source"], "/m.safetensors");
        let listed = index["tensors"].as_array().unwrap();
        prop_assert_eq!(listed.len(), names.len());
        for (at, entry) in listed.iter().enumerate() {
            let (tensor, _) = model(&superblock).tensor(at);
            let file = format!("tensors/{}", name::encode(tensor.name));
            let expected = serde_json::json!({
                "name": tensor.name, "dtype": "U8", "shape": tensor.shape, "nbytes": tensor.nbytes(), "file": file,
                "shard": model(&superblock).shards()[0].name, "offset": tensor.range.start,
            });
            prop_assert_eq!(entry, &expected);
        }
        // One tensor a line: a name with a newline in it is escaped.
        prop_assert_eq!(whole.iter().filter(|byte| **byte == b'\n').count(), names.len() + 2);
    }
}

fn strings<const N: usize>(names: [&str; N]) -> Vec<String> {
    names.map(str::to_owned).to_vec()
}

fn listed(superblock: &Superblock, path: &[&str]) -> Vec<String> {
    let ino = path.iter().fold(ROOT, |ino, name| superblock.lookup(ino, name.as_bytes()).unwrap().ino);
    list(superblock, ino, 2).into_iter().map(|entry| entry.name.to_str().unwrap().to_owned()).collect()
}

#[test]
fn layers_come_in_natural_order() {
    let names =
        strings(["l.10.w", "l.2.w", "l.1.w", "l.x", "l.1", "l.02.w", "l.18446744073709551617.w", "w10b", "w9b", "w9a"]);
    let superblock = superblock(&names, &[], Shown::default());
    assert_eq!(listed(&superblock, &["tree", "l"]), ["1%", "1", "02", "2", "10", "18446744073709551617", "x"]);
    assert_eq!(listed(&superblock, &["tree"]), ["l", "w9a", "w9b", "w10b"]);
    // The flat view is in the order of the data.
    assert_eq!(listed(&superblock, &["tensors"]), names);
}

#[test]
fn names_that_stand_for_nothing_are_not_found() {
    let superblock = superblock(&strings(["a", "a.b", "c/d", ""]), &[("k".into(), "v".into())], Shown::default());
    let dir = |name: &str| superblock.lookup(ROOT, name.as_bytes()).unwrap().ino;
    let cases: [(Ino, &[&str]); 4] = [
        (ROOT, &["tensor", "tensors%", "", ".", "..", "index.json%"]),
        (dir("tensors"), &["b", "a%", "a.", "c/d", "c%2fd", "%%", "a.b.c", "%~0123456789abcdef"]),
        (dir("tree"), &["b", "c", "a%%", "%%", "c%2Fd%", "a.b"]),
        (dir("metadata"), &["K", "k%", "v"]),
    ];
    for (ino, names) in cases {
        for name in names {
            assert!(matches!(superblock.lookup(ino, name.as_bytes()), Err(Error::NoEntry)), "{name}");
        }
    }
    assert!(matches!(superblock.lookup(dir("tensors"), b"\xff"), Err(Error::NoEntry)));
    assert!(matches!(superblock.lookup(dir("index.json"), b"a"), Err(Error::NotADirectory)));
    assert!(matches!(superblock.read(dir("tensors"), 0, 1, &|| false), Err(Error::IsADirectory)));
    for ino in [0, 999, 1 << 40 | 7, 2 << 40 | 1, 3 << 40 | 1, 20 << 40 | 4, u64::MAX] {
        assert!(matches!(superblock.getattr(ino), Err(Error::NoEntry)), "{ino:#x}");
    }
}

#[test]
fn attributes_tell_the_tensor() {
    let superblock = superblock(&strings(["x", "y.z"]), &[], Shown::default());
    let tensors = superblock.lookup(ROOT, b"tensors").unwrap().ino;
    let ino = superblock.lookup(tensors, b"y.z").unwrap().ino;
    let names = String::from_utf8(superblock.listxattr(ino).unwrap()).unwrap();
    let values: HashMap<&str, String> = names
        .split_terminator('\0')
        .map(|name| (name, String::from_utf8(superblock.getxattr(ino, name.as_bytes()).unwrap()).unwrap()))
        .collect();
    let offset = model(&superblock).tensor(1).0.range.start.to_string();
    let expected = [
        ("user.weightfs.name", "y.z"),
        ("user.weightfs.dtype", "U8"),
        ("user.weightfs.shape", "[1]"),
        ("user.weightfs.nbytes", "1"),
        ("user.weightfs.offset", &offset),
        ("user.weightfs.shard", "m.safetensors"),
    ];
    assert_eq!(values, expected.map(|(name, value)| (name, value.to_owned())).into_iter().collect());
    assert!(matches!(superblock.getxattr(ino, b"user.other"), Err(Error::NoAttribute)));
    assert!(matches!(superblock.getxattr(ROOT, b"user.weightfs.name"), Err(Error::NoAttribute)));
    assert_eq!(superblock.listxattr(tensors).unwrap(), b"");
}

#[test]
fn only_chosen_views_are_shown() {
    let shown = |names: &[&str]| Shown::only(names.iter().copied()).unwrap();
    let superblock = |names: &[&str]| superblock(&strings(["a"]), &[], shown(names));
    assert_eq!(listed(&superblock(&["tensors", "metadata"]), &[]), ["metadata", "metadata.json", "tensors"]);
    assert!(matches!(superblock(&["tree"]).lookup(ROOT, b"tensors"), Err(Error::NoEntry)));
    for (names, links) in [(&["tree"][..], 1), (&["tensors"], 1), (&["tensors", "tree"], 2)] {
        let superblock = superblock(names);
        let dir = superblock.lookup(ROOT, names[0].as_bytes()).unwrap().ino;
        assert_eq!(superblock.lookup(dir, b"a").unwrap().nlink, links);
    }
    // index.json names no file that is not there.
    let superblock = superblock(&["index"]);
    let ino = superblock.lookup(ROOT, b"index.json").unwrap().ino;
    let index: serde_json::Value =
        serde_json::from_slice(&superblock.read(ino, 0, u32::MAX, &|| false).unwrap()).unwrap();
    assert!(index["tensors"][0]["file"].is_null());
    let unknown = Shown::only(["tensor"]).unwrap_err().to_string();
    assert_eq!(
        unknown,
        "no view is called \"tensor\"; there are sums, manifest, export, f32, header, index, metadata, npy, plots, safetensors, shards, stats, tensors, tree"
    );
}

#[test]
fn permissions_follow_the_source() {
    for (mode, file, dir) in [(0o644, 0o444, 0o555), (0o600, 0o400, 0o500), (0o4750, 0o440, 0o550), (0o222, 0, 0)] {
        let stat = Stat { uid: 5, gid: 6, mode, mtime: SystemTime::UNIX_EPOCH };
        let mut superblock = superblock(&strings(["a"]), &[], Shown::default());
        let Root::Volume(volume) = &mut superblock.root else { panic!("several models") };
        volume.owner = Ownership::default().of(stat);
        let root = superblock.getattr(ROOT).unwrap();
        assert_eq!((root.perm, root.uid, root.gid), (dir, 5, 6));
        assert_eq!(superblock.lookup(ROOT, b"header.json").unwrap().perm, file);
    }
}

#[test]
fn a_name_of_more_directories_than_a_path_can_have_is_not_in_the_tree() {
    let name = |dots: usize| format!("{}x", "a.".repeat(dots));
    let names = strings([&name(2047), &name(2048), &".".repeat(1_000_000)]);
    let superblock = superblock(&names, &[], Shown::default());
    let tensors = superblock.lookup(ROOT, b"tensors").unwrap().ino;
    let links: Vec<u32> =
        list(&superblock, tensors, 2).iter().map(|entry| superblock.getattr(entry.ino).unwrap().nlink).collect();
    assert_eq!(links, [2, 1, 1]);
    let mut ino = superblock.lookup(ROOT, b"tree").unwrap().ino;
    for _ in 0..2047 {
        assert_eq!(list(&superblock, ino, 2).len(), 1);
        ino = superblock.lookup(ino, b"a").unwrap().ino;
    }
    assert_eq!(superblock.lookup(ino, b"x").unwrap().nlink, 2);
    assert!(matches!(superblock.lookup(ino, b"a"), Err(Error::NoEntry)));
}

#[test]
fn attributes_that_the_kernel_could_not_carry_are_left_out() {
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
        let model = Model::from_source(Path::new("/m.safetensors"), Box::new(Memory::new(file)), Mode::Strict).unwrap();
        let superblock = Superblock::new(Opened::Model(model.into()), Shown::default(), Ownership::default()).unwrap();
        let tensors = superblock.lookup(ROOT, b"tensors").unwrap().ino;
        let ino = list(&superblock, tensors, 2)[0].ino;
        let listed = String::from_utf8(superblock.listxattr(ino).unwrap()).unwrap();
        let found: Vec<&str> =
            listed.split_terminator('\0').map(|name| name.strip_prefix("user.weightfs.").unwrap()).collect();
        assert_eq!(found.join(" "), format!("{expected} nbytes offset shard"));
        for attribute in found {
            let value = superblock.getxattr(ino, format!("user.weightfs.{attribute}").as_bytes()).unwrap();
            assert!(value.len() <= 65_536, "{attribute}");
        }
    }
}
