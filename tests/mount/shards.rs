//! Sharded models: the tensors of all shards as one model, checked against the index.

use crate::support::{Mount, Scene, Tensor, WEIGHTFS, pattern, require_fuse, run, run_ok};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};

/// Three shards. The tensors of a layer are in different shards.
fn shards() -> [(&'static str, Vec<Tensor<'static>>); 3] {
    [
        (
            "model-00001-of-00003.safetensors",
            vec![("l.2.w", Dtype::F32, &[3], pattern(12)), ("l.10.w", Dtype::BF16, &[5], pattern(10))],
        ),
        (
            "model-00002-of-00003.safetensors",
            vec![("l.2.b", Dtype::I8, &[4097], pattern(4097)), ("empty", Dtype::F16, &[0], vec![])],
        ),
        ("model-00003-of-00003.safetensors", vec![("l.1.w", Dtype::F64, &[2, 2], pattern(32))]),
    ]
}

/// Writes the shards and their index, whose map of tensors `change` may modify. Returns the path of the index.
fn sharded(scene: &Scene, change: impl FnOnce(&mut BTreeMap<String, String>)) -> PathBuf {
    let mut map = BTreeMap::new();
    for (at, (file, tensors)) in shards().iter().enumerate() {
        scene.model(file, tensors, &[("format", "pt"), ("part", &at.to_string())]);
        map.extend(tensors.iter().map(|tensor| (tensor.0.to_owned(), file.to_string())));
    }
    change(&mut map);
    let index = serde_json::json!({"metadata": {"total_size": 4151}, "weight_map": map});
    let path = scene.path("model.safetensors.index.json");
    std::fs::write(&path, serde_json::to_vec_pretty(&index).unwrap()).unwrap();
    path
}

/// Asserts that the mount has all tensors in every view.
fn assert_complete(mount: &Mount) {
    let export = mount.read("export/model-whole.safetensors");
    let (_, metadata) = SafeTensors::read_metadata(&export).unwrap();
    assert_eq!(metadata.metadata().as_ref().unwrap().len(), 2);
    let export = SafeTensors::deserialize(&export).unwrap();
    assert_eq!(export.len(), 5);
    for (_, tensors) in shards() {
        for (name, dtype, shape, bytes) in tensors {
            assert!(mount.read(format!("tensors/{name}")) == bytes, "{name}");
            let tensor = export.tensor(name).unwrap();
            assert_eq!((tensor.dtype(), tensor.shape(), tensor.data()), (dtype, shape, &bytes[..]), "{name}");
            let single = mount.read(format!("safetensors/{name}.safetensors"));
            assert!(SafeTensors::deserialize(&single).unwrap().tensor(name).unwrap().data() == bytes, "{name}");
        }
    }
    assert_eq!(mount.list("tree/l"), ["1", "2", "10"]);
    assert_eq!(mount.list("tree/l/2"), ["b", "w"]);
}

#[test]
fn shards_are_mounted_as_one_model() {
    require_fuse!();
    let scene = Scene::new();
    let index = sharded(&scene, |_| {});
    // The source is the index, its directory, or a snapshot as in the Hugging Face cache: links to files with other
    // names.
    let cache = Scene::new();
    let snapshot = cache.mkdir("snapshot");
    let blobs = cache.mkdir("blobs");
    for (at, file) in shards().iter().map(|shard| shard.0).chain(["model.safetensors.index.json"]).enumerate() {
        std::fs::copy(scene.path(file), blobs.join(at.to_string())).unwrap();
        symlink(format!("../blobs/{at}"), snapshot.join(file)).unwrap();
    }
    for source in [&index, &scene.dir.path().to_owned(), &snapshot, &snapshot.join("model.safetensors.index.json")] {
        // The mount point is outside of the source directory.
        let outside = Scene::new();
        let mount = outside.mount(source, &[]);
        assert_complete(&mount);
        let mut root = mount.list("");
        root.sort();
        assert!(root.contains(&"shards".to_owned()) && !root.contains(&"header.json".to_owned()), "{root:?}");
        assert_eq!(mount.list("shards"), shards().map(|shard| shard.0));
        for (at, (file, _)) in shards().iter().enumerate() {
            assert_eq!(mount.read(format!("shards/{file}/metadata/part")), at.to_string().as_bytes());
            let whole = std::fs::read(scene.path(file)).unwrap();
            let header = mount.read(format!("shards/{file}/header.json"));
            assert!(
                whole[8..].starts_with(&header)
                    && header.len() as u64 == u64::from_le_bytes(whole[..8].try_into().unwrap())
            );
        }
        // If several shards have a metadata key, the value of the first shard counts.
        assert_eq!(mount.read("metadata/part"), b"0");
        let index: serde_json::Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
        for tensor in index["tensors"].as_array().unwrap() {
            let shard = std::fs::read(scene.path(tensor["shard"].as_str().unwrap())).unwrap();
            let bytes = mount.read(tensor["file"].as_str().unwrap());
            assert!(shard[tensor["offset"].as_u64().unwrap() as usize..].starts_with(&bytes), "{tensor}");
        }
        assert_eq!(mount.log(), "");
    }
}

#[test]
fn official_package_reads_the_export() {
    require_fuse!();
    let scene = Scene::new();
    let mount = Scene::new();
    let mount = mount.mount(&sharded(&scene, |_| {}), &[]);
    let script = "
import glob, sys
from safetensors import safe_open
from safetensors.numpy import load_file
export = safe_open(sys.argv[1], framework='numpy')
names = set()
for shard in glob.glob(sys.argv[2] + '/model-*.safetensors'):
    one = safe_open(shard, framework='numpy')
    for name in one.keys():
        names.add(name)
        if name != 'l.10.w':
            assert (export.get_tensor(name) == one.get_tensor(name)).all(), name
assert set(export.keys()) == names, names";
    let python = crate::support::python();
    let paths = [mount.path("export/model-whole.safetensors"), scene.dir.path().to_owned()];
    run_ok(python.to_str().unwrap(), ["-c".as_ref(), script.as_ref(), paths[0].as_os_str(), paths[1].as_os_str()]);
}

/// The error message of `weightfs` for an index that it refuses.
fn refusal(index: &Path) -> String {
    let scene = Scene::new();
    let output = run(WEIGHTFS, ["-f".as_ref(), index.as_os_str(), scene.mkdir("mnt").as_os_str()]);
    assert_eq!(output.status.code(), Some(1));
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn index_mismatches_are_errors_and_lenient_mounts_the_rest() {
    require_fuse!();
    const FIRST: &str = "model-00001-of-00003.safetensors";
    type Change = fn(&Scene) -> PathBuf;
    let cases: [(Change, &str, usize); 5] = [
        (
            |scene| {
                let index = sharded(scene, |_| {});
                std::fs::remove_file(scene.path(FIRST)).unwrap();
                index
            },
            "a shard is missing or broken: ",
            3,
        ),
        (
            |scene| sharded(scene, |map| drop(map.insert("ghost".into(), FIRST.into()))),
            "tensor \"ghost\" should be in \"model-00001-of-00003.safetensors\", but no shard has it",
            5,
        ),
        (
            |scene| sharded(scene, |map| drop(map.remove("l.1.w").map(|shard| map.insert("empty".into(), shard)))),
            "tensor \"empty\" should be in \"model-00003-of-00003.safetensors\", but is in \"model-00002-of-00003.safetensors\", and 1 more",
            5,
        ),
        (
            |scene| sharded(scene, |map| drop(map.remove("l.2.w"))),
            "tensor \"l.2.w\" is in \"model-00001-of-00003.safetensors\", but the index does not name it",
            5,
        ),
        (
            |scene| {
                let index = sharded(scene, |_| {});
                scene.model(
                    FIRST,
                    &[
                        ("l.2.w", Dtype::F32, &[3], pattern(12)),
                        ("l.10.w", Dtype::BF16, &[5], pattern(10)),
                        ("l.1.w", Dtype::U8, &[1], vec![9]),
                    ],
                    &[],
                );
                index
            },
            "tensor \"l.1.w\" is in \"model-00003-of-00003.safetensors\" as the index says, and also in \"model-00001-of-00003.safetensors\"",
            5,
        ),
    ];
    for (make, expected, left) in cases {
        let scene = Scene::new();
        let index = make(&scene);
        let said = refusal(&index);
        assert!(said.contains(expected) && said.lines().count() == 1, "{said}");
        let outside = Scene::new();
        let mount = outside.mount(&index, &["--lenient"]);
        assert_eq!(mount.list("tensors").len(), left, "{expected}");
        assert!(mount.log().contains(expected.split(", and 1 more").next().unwrap()), "{}", mount.log());
        let listed: serde_json::Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
        assert!(!listed["skipped"].as_array().unwrap().is_empty());
        if mount.list("tensors").contains(&"l.1.w".to_owned()) {
            assert_eq!(std::fs::metadata(mount.path("tensors/l.1.w")).unwrap().size(), 32);
        }
    }
}

#[test]
fn hostile_indexes_are_refused_with_a_reason() {
    require_fuse!();
    let scene = Scene::new();
    let index = sharded(&scene, |_| {});
    std::fs::hard_link(scene.path(shards()[0].0), scene.path("twin.safetensors")).unwrap();
    symlink("loop.safetensors", scene.path("loop.safetensors")).unwrap();
    scene.mkdir("dir.safetensors");
    let map = |shards: &[&str]| {
        let pairs: Vec<_> =
            shards.iter().enumerate().map(|(at, shard)| format!("\"t{at}\":{}", serde_json::json!(shard))).collect();
        format!("{{\"weight_map\":{{{}}}}}", pairs.join(","))
    };
    let many: Vec<String> = (0..100_000).map(|at| format!("{at}.safetensors")).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let cases = [
        (map(&["/etc/passwd.safetensors"]), "shard \"/etc/passwd.safetensors\" is an absolute path"),
        (map(&["../x.safetensors"]), "shard \"../x.safetensors\" leads out of the directory"),
        (map(&["model.bin"]), "shard \"model.bin\" is not a .safetensors file"),
        (map(&["loop.safetensors"]), "loop.safetensors: Too many levels of symbolic links"),
        (map(&["dir.safetensors"]), "dir.safetensors: a directory, not a regular file"),
        (
            map(&[shards()[0].0, "twin.safetensors"]),
            "shards \"model-00001-of-00003.safetensors\" and \"twin.safetensors\" are the same file",
        ),
        (map(&many), "names more than 10000 shards, which is the maximum"),
        ("{\"weight_map\":3}".to_owned(), "not a valid index of a sharded model: invalid type"),
        ("{}".to_owned(), "not a valid index of a sharded model: missing field `weight_map`"),
        (map(&["\u{1b}[2J.safetensors"]), "a shard is missing or broken"),
    ];
    for (text, expected) in cases {
        std::fs::write(&index, &text).unwrap();
        let said = refusal(&index);
        assert!(said.contains(expected), "{said}");
        assert!(!said.trim_end().contains(char::is_control), "{said:?}");
    }
    let empty = Scene::new();
    assert!(refusal(empty.dir.path()).contains("a directory without models, whose names end in .safetensors"));
}
