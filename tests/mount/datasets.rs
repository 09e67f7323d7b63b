//! Datasets of safetensors-spark: arrays joined from many shards, more than can be open at a time.

use crate::support::{Mount, Scene, Tensor, WEIGHTFS, pattern, python, require_fuse, require_root, run, run_ok};
use safetensors::Dtype;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// A shard: its file name and its tensors.
type Shard<'a> = (&'a str, Vec<Tensor<'a>>);

/// Writes the shards, and a manifest that lists them in this order. `counts` maps the file name and size of a shard to
/// the rows and bytes that the manifest gives for it.
fn dataset(scene: &Scene, shards: &[Shard], counts: impl Fn(&str, u64) -> (u64, u64)) -> PathBuf {
    let listed: Vec<_> = shards
        .iter()
        .map(|(file, tensors)| {
            let len = std::fs::metadata(scene.model(file, tensors, &[])).unwrap().len();
            let (samples, bytes) = counts(file, len);
            serde_json::json!({"shard_path": file, "samples_count": samples, "bytes": bytes})
        })
        .collect();
    let sum = |key: &str| listed.iter().map(|shard| shard[key].as_u64().unwrap()).sum::<u64>();
    let manifest = serde_json::json!({
        "format_version": "1.0", "safetensors_version": "1.0", "total_samples": sum("samples_count"),
        "total_bytes": sum("bytes"), "shards": listed,
    });
    let path = scene.path("dataset_manifest.json");
    std::fs::write(&path, serde_json::to_vec_pretty(&manifest).unwrap()).unwrap();
    path
}

/// Changes fields of a manifest.
fn change(manifest: &Path, fields: &serde_json::Value) {
    let mut json: serde_json::Value = serde_json::from_slice(&std::fs::read(manifest).unwrap()).unwrap();
    for (key, value) in fields.as_object().unwrap() {
        json[key] = value.clone();
    }
    std::fs::write(manifest, json.to_string()).unwrap();
}

/// The name of a shard as the writer gives it.
fn part(at: usize) -> String {
    format!("part-{at:05}-0000-0e8b1f5c-1d6e-4f0a-9f5e-0123456789ab.safetensors")
}

/// The counts of a shard of two rows, for [`dataset`].
fn two_rows(_: &str, len: u64) -> (u64, u64) {
    (2, len)
}

fn index(mount: &Mount) -> serde_json::Value {
    serde_json::from_slice(&mount.read("index.json")).unwrap()
}

#[test]
fn arrays_match_numpy_concatenation() {
    require_fuse!();
    let scene = Scene::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/dataset.py");
    let python = |command: &str, paths: &[&Path]| {
        let args = [script.as_os_str(), command.as_ref()].into_iter().chain(paths.iter().map(|path| path.as_os_str()));
        run_ok(python().to_str().unwrap(), args)
    };
    let dir = scene.mkdir("train");
    python("make", &[&dir]);
    for source in [dir.clone(), dir.join("dataset_manifest.json")] {
        let mount = scene.mount(&source, &[]);
        python("compare", &[&dir, &mount.point]);
        assert_eq!(mount.log(), "");
        // Parts of arrays use no blocks: du counts the data once, and at most 512 bytes more for each file.
        let data: u64 =
            mount.list("tensors").iter().map(|name| mount.read(format!("tensors/{name}")).len() as u64).sum();
        let files: u64 = run_ok("find", [mount.point.to_str().unwrap(), "-type", "f"]).lines().count() as u64;
        let used: u64 = run_ok("du", ["-s", "--block-size=1", mount.point.to_str().unwrap()])
            .split('\t')
            .next()
            .unwrap()
            .parse()
            .unwrap();
        assert!((data..data + (files + 1) * 512).contains(&used), "{used} for {data} in {files} files");
    }
}

#[test]
fn shards_in_other_orders_of_bytes_are_joined() {
    require_fuse!();
    let scene = Scene::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/dataset.py");
    let dir = scene.mkdir("mixed");
    run_ok(python().to_str().unwrap(), [script.as_os_str(), "make-mixed".as_ref(), dir.as_os_str()]);
    let mount = scene.mount(&dir, &[]);
    let compare = [script.as_os_str(), "compare-mixed".as_ref(), dir.as_os_str(), mount.point.as_os_str()];
    run_ok(python().to_str().unwrap(), compare);
    assert!(!mount.log().contains("WARN"), "{}", mount.log());
    // Commands that read the data, without a mount.
    let listed = scene.ok("weightfs ls mixed");
    assert!(listed.lines().any(|line| line.contains("gathered") && line.ends_with("f32")), "{listed}");
    scene.ok("weightfs export mixed joined.safetensors && weightfs diff --values mixed joined.safetensors");
    scene.ok("weightfs check --values joined.safetensors");
}

#[test]
fn arrays_that_cannot_be_joined_are_reported_and_stay_in_shards() {
    require_fuse!();
    let scene = Scene::new();
    let fine = |rows: usize| ("fine", Dtype::U8, if rows == 2 { &[2, 2][..] } else { &[1, 2] }, pattern(rows * 2));
    let first: Vec<Tensor> = vec![
        fine(2),
        ("dtype", Dtype::F32, &[2], pattern(8)),
        ("trailing", Dtype::U8, &[2, 3], pattern(6)),
        ("missing", Dtype::U8, &[2], pattern(2)),
        ("scalar", Dtype::U8, &[], pattern(1)),
    ];
    let second: Vec<Tensor> = vec![
        fine(2),
        ("dtype", Dtype::F64, &[2], pattern(16)),
        ("trailing", Dtype::U8, &[2, 4], pattern(8)),
        ("scalar", Dtype::U8, &[], pattern(1)),
    ];
    let shards = [("a.safetensors", first), ("b.safetensors", second)];
    let manifest = dataset(&scene, &shards, |file, len| if file == "a.safetensors" { (2, len) } else { (3, 17) });
    let outside = Scene::new();
    let mount = outside.mount(&manifest, &[]);
    assert_eq!(mount.list("tensors"), ["fine"]);
    assert_eq!(mount.read("tensors/fine"), [pattern(4), pattern(4)].concat());
    let log = mount.log();
    for message in [
        "skipped \"dtype\": it is F32 in \"a.safetensors\", and F64 in \"b.safetensors\"; its parts are in shards/",
        "skipped \"trailing\": its shape is [2, 3] in \"a.safetensors\", and [2, 4] in \"b.safetensors\"; its parts",
        "skipped \"missing\": \"b.safetensors\" does not have it; its parts are in shards/",
        "skipped \"scalar\": a scalar cannot be concatenated; its parts are in shards/",
        "\"b.safetensors\" has 2 rows, and the manifest says 3",
        "bytes, but the manifest says 17",
    ] {
        assert!(log.contains(message), "{message}: {log}");
    }
    let index = index(&mount);
    assert_eq!(index["skipped"].as_array().unwrap().len(), 4);
    // The index lists each part with its file.
    let lines = index["tensors"].as_array().unwrap();
    assert_eq!(lines.len(), 1 + 2 + 2 + 1 + 2);
    for line in lines.iter().filter(|line| line["name"] != "fine") {
        let bytes = mount.read(line["file"].as_str().unwrap());
        let shard = shards.iter().find(|shard| line["shard"] == shard.0).unwrap();
        assert_eq!(bytes, shard.1.iter().find(|tensor| line["name"] == tensor.0).unwrap().3, "{line}");
        // This part belongs to no array, so it uses blocks of its own.
        assert_eq!(std::fs::metadata(mount.path(line["file"].as_str().unwrap())).unwrap().blocks(), 1);
    }
    assert_eq!(std::fs::metadata(mount.path("tensors/fine")).unwrap().nlink(), 2);
    assert_eq!(mount.list("shards/b.safetensors/npy"), ["dtype.npy", "fine.npy", "scalar.npy", "trailing.npy"]);
}

#[test]
fn key_value_dataset_is_one_namespace() {
    require_root!();
    let scene = Scene::new();
    let tensor =
        |name: &'static str, len: usize| -> Tensor { (name, Dtype::U8, &[3], pattern(len + 3)[len..].to_vec()) };
    let shards = [
        ("b.safetensors", vec![tensor("k3__x", 3), tensor("k4__x", 4), tensor("k1__x", 5)]),
        ("a.safetensors", vec![tensor("k1__x", 1), tensor("k2__x", 2)]),
        ("c.safetensors", vec![tensor("k5__x", 6)]),
    ];
    let manifest = dataset(&scene, &shards, two_rows);
    let outside = Scene::new();
    let mount = outside.mount(&manifest, &[]);
    let mut names = mount.list("tensors");
    names.sort();
    assert_eq!(names, ["k1__x", "k2__x", "k3__x", "k4__x", "k5__x"]);
    // Two shards have k1__x. The shard whose file name sorts first is used.
    assert_eq!(mount.read("tensors/k1__x"), tensor("", 1).3);
    assert_eq!(mount.read("shards/b.safetensors/tensors/k1__x"), tensor("", 5).3);
    assert!(
        mount
            .log()
            .contains("\"k1__x\": it is in \"a.safetensors\" and in \"b.safetensors\"; the second is in shards/ only")
    );
    let inode = |path: &str| std::fs::metadata(mount.path(path)).unwrap().ino();
    assert_eq!(inode("tensors/k2__x"), inode("shards/a.safetensors/tensors/k2__x"));
    assert_ne!(inode("tensors/k1__x"), inode("shards/b.safetensors/tensors/k1__x"));
    let files: Vec<_> = index(&mount)["tensors"].as_array().unwrap().iter().map(|line| line["file"].clone()).collect();
    assert_eq!(files.len(), 6);
    assert!(files.contains(&"shards/b.safetensors/tensors/k1__x".into()), "{files:?}");
    for (view, count) in [("tensors", 5), ("tree", 5), ("npy", 5), ("f32", 5), ("safetensors", 5)] {
        assert_eq!(mount.list(view).len(), count, "{view}");
    }
    let export =
        mount.read(format!("export/{}-whole.safetensors", scene.dir.path().file_name().unwrap().to_str().unwrap()));
    assert_eq!(safetensors::SafeTensors::deserialize(&export).unwrap().len(), 5);
}

#[test]
fn samples_have_a_directory_for_each_key() {
    require_fuse!();
    let scene = Scene::new();
    let value = |key: usize, column: usize| vec![key as u8, column as u8, 7];
    let keys = ["user 2", "user 10", "a__b/c"];
    let names: Vec<[String; 2]> =
        keys.iter().map(|key| ["img", "a.b"].map(|column| format!("{key}__{column}"))).collect();
    let tensors: Vec<Vec<Tensor>> = names
        .iter()
        .enumerate()
        .map(|(key, names)| {
            let tensor = |(column, name)| -> Tensor { (name, Dtype::U8, &[3], value(key, column)) };
            names.iter().map(String::as_str).enumerate().map(tensor).collect()
        })
        .collect();
    let files = [part(0), part(1), part(2)];
    let shards: Vec<Shard> = files.iter().map(String::as_str).zip(tensors).collect();
    let manifest = dataset(&scene, &shards, |_, len| (1, len));
    let outside = Scene::new();
    let mount = outside.mount(&manifest, &[]);
    assert_eq!(mount.log(), "");
    assert_eq!(mount.list("samples"), ["a__b%2Fc", "user 2", "user 10"]);
    for (key, dir) in ["user 2", "user 10", "a__b%2Fc"].iter().enumerate() {
        assert_eq!(mount.list(format!("samples/{dir}")), ["a.b", "img"]);
        assert_eq!(mount.read(format!("samples/{dir}/img")), value(key, 0));
        assert_eq!(mount.read(format!("samples/{dir}/a.b")), value(key, 1));
    }
    // They are the files of tensors/, and each name is a link.
    let stat = |path: &str| std::fs::metadata(mount.path(path)).unwrap();
    assert_eq!(stat("samples/user 2/img").ino(), stat("tensors/user 2__img").ino());
    assert_eq!(stat("samples/user 2/img").nlink(), 4);
    let links = run_ok(
        "find",
        [mount.point.to_str().unwrap(), "-samefile", mount.path("tensors/user 2__img").to_str().unwrap()],
    );
    assert_eq!(links.lines().count(), 4, "{links}");
    for missing in ["samples/user 3", "samples/user 2/x", "samples/user 2__img", "samples/user 2/img/x"] {
        assert!(std::fs::metadata(mount.path(missing)).is_err(), "{missing}");
    }
    let parent = std::fs::metadata(mount.path("samples/user 2/..")).unwrap().ino();
    assert_eq!(parent, stat("samples").ino());
    drop(mount);

    // Another separator than the one that is found.
    let mount = outside.mount(&manifest, &["--kv-separator", "b"]);
    assert_eq!(mount.list("samples"), ["a__", "a__b%2Fc__a.", "user 2__a.", "user 10__a."]);
    assert_eq!(mount.list("samples/user 2__a."), ["%"], "the empty name");
    drop(mount);
    let source = manifest.to_str().unwrap();
    assert_eq!(run(WEIGHTFS, ["cat", source, "samples/user 2/img"]).stdout, value(0, 0));
    assert_eq!(run(WEIGHTFS, ["cat", "--kv-separator", "i", source, "samples/user 2__/mg"]).stdout, value(0, 0));
    let listed = run_ok(WEIGHTFS, ["ls", "--files", "--kv-separator", "i", source, "samples"]);
    assert!(listed.contains("user 2__"), "{listed}");

    // If the keys have other columns, nothing is guessed. Arrays have no keys.
    let other = Scene::new();
    let tensor = |name| -> Tensor { (name, Dtype::U8, &[1], vec![1]) };
    let manifest =
        dataset(&other, &[(&files[0], vec![tensor("a__x"), tensor("a__y"), tensor("b__x"), tensor("c")])], |_, len| {
            (3, len)
        });
    let views = |manifest: &Path, options: &[&str]| outside.mount(manifest, options).list("");
    assert!(!views(&manifest, &[]).contains(&"samples".to_owned()));
    let mount = outside.mount(&manifest, &["--kv-separator", "__"]);
    assert_eq!(mount.list("samples"), ["a", "b"]);
    assert_eq!(mount.list("samples/a"), ["x", "y"]);
    assert_eq!(std::fs::metadata(mount.path("tensors/c")).unwrap().nlink(), 3, "it has no key");
    drop(mount);
    let other = Scene::new();
    let manifest =
        dataset(&other, &[(&files[0], vec![tensor("a__x")]), (&files[1], vec![tensor("a__x")])], |_, len| (1, len));
    assert!(!views(&manifest, &["--kv-separator", "__"]).contains(&"samples".to_owned()));
}

#[test]
fn manifest_is_compared_with_the_files() {
    require_fuse!();
    let scene = Scene::new();
    let tensors = || -> Vec<Tensor> {
        vec![
            ("x", Dtype::F32, &[2, 3], pattern(24)),
            ("y", Dtype::U8, &[2], pattern(2)),
            ("z", Dtype::U8, &[2], pattern(2)),
        ]
    };
    let names = [part(0), part(1)];
    let manifest = dataset(&scene, &[(&names[0], tensors()), (&names[1], tensors())], two_rows);
    let outside = Scene::new();
    let log = || outside.mount(&manifest, &[]).log();
    let described = |dtype: &str, shape: &[u64]| serde_json::json!({"dtype": dtype, "shape": shape});
    let (x, y, z) = (described("F32", &[5, 3]), described("U8", &[2]), described("U8", &[2]));
    change(&manifest, &serde_json::json!({"schema": {"x": x, "y": y, "z": z}}));
    assert_eq!(log(), "", "the first dimension is that of the first batch, whose shard may be any");
    let schema = serde_json::json!({"x": described("F32", &[2, 4]), "y": described("I8", &[2]), "w": y});
    change(&manifest, &serde_json::json!({"schema": schema, "safetensors_version": "2.0"}));
    let first = format!("in \"{}\", and the schema in the manifest says", part(0));
    let found = log();
    for message in [
        format!("\"x\" is F32 [2, 3] {first} \"F32\" [2, 4]"),
        format!("\"y\" is U8 [2] {first} \"I8\" [2]"),
        "the schema in the manifest does not have \"z\"".into(),
        "the schema in the manifest has \"w\"; no shard does".into(),
        "safetensors_version is \"2.0\" in the manifest; \"1.0\" is the only one".into(),
    ] {
        assert!(found.contains(&message), "{message}: {found}");
    }
    assert_eq!(found.lines().count(), 5, "{found}");
    let check = run(WEIGHTFS, ["check", manifest.to_str().unwrap()]);
    let output = String::from_utf8(check.stdout).unwrap();
    assert!(output.contains("manifest") && output.contains("does not have \"z\""), "{output}");
    // A mistake in the schema does not hide the data.
    change(&manifest, &serde_json::json!({"schema": {"x": {"dtype": 3}}, "safetensors_version": "1.0"}));
    let found = log();
    assert!(found.contains("schema in the manifest: invalid type") && found.lines().count() == 1, "{found}");

    // The names of the writer say which task wrote a shard.
    let other = Scene::new();
    let manifest = dataset(&other, &[("a.safetensors", tensors()), (&names[1], tensors())], two_rows);
    let output = String::from_utf8(run(WEIGHTFS, ["check", manifest.to_str().unwrap()]).stdout).unwrap();
    let message = "\"a.safetensors\" is not called part-NNNNN-NNNN-UUID.safetensors";
    assert!(output.contains(message) && output.matches("is not called").count() == 1, "{output}");
}

#[test]
fn ten_thousand_shards_are_read_with_sixty_four_descriptors() {
    require_fuse!();
    const SHARDS: usize = 10_000;
    let scene = Scene::new();
    let header = br#"{"row":{"dtype":"U16","shape":[1,8],"data_offsets":[0,16]}}"#;
    let row = |at: usize| [at as u16; 8].map(u16::to_le_bytes).concat();
    let shards: Vec<_> = (0..SHARDS)
        .map(|at| {
            let file = format!("part-{at:05}.safetensors");
            scene.raw(&file, header, &row(at));
            serde_json::json!({"shard_path": file, "samples_count": 1, "bytes": 8 + header.len() + 16})
        })
        .collect();
    let manifest = serde_json::json!({"format_version": "1.0", "shards": shards});
    std::fs::write(scene.path("dataset_manifest.json"), manifest.to_string()).unwrap();
    let outside = Scene::new();
    let point = outside.mkdir("mnt");
    outside.ok(&format!("ulimit -n 64; weightfs {} {}", scene.dir.path().display(), point.display()));
    // Four concurrent readers. Each read opens some files and closes others.
    let expected: Vec<u8> = (0..SHARDS).flat_map(row).collect();
    std::thread::scope(|scope| {
        for reader in 0..4 {
            let (point, expected, row) = (&point, &expected, &row);
            scope.spawn(move || {
                for round in 0..250 {
                    let at = (round * 7919 + reader * 2503) % SHARDS;
                    let part = point.join(format!("shards/part-{at:05}.safetensors/tensors/row"));
                    assert_eq!(std::fs::read(part).unwrap(), row(at));
                }
                assert!(std::fs::read(point.join("tensors/row")).unwrap() == *expected);
            });
        }
    });
    let daemons = outside.daemons();
    let descriptors = std::fs::read_dir(format!("/proc/{}/fd", daemons[0])).unwrap().count();
    assert!(daemons.len() == 1 && descriptors < 64, "{descriptors}");
    outside.ok(&format!("weightfs umount {}", point.display()));
    outside.wait_for_end();
}

#[test]
fn incomplete_dataset_is_rejected_with_reason() {
    require_fuse!();
    let scene = Scene::new();
    let tensors = |len| vec![("x", Dtype::U8, &[2usize] as &[_], pattern(len))];
    let shards = ["a.safetensors", "b.safetensors", "c.safetensors"].map(|file| (file, tensors(2)));
    let manifest = dataset(&scene, &shards, two_rows);
    let outside = Scene::new();
    let refusal = || {
        let output = run(WEIGHTFS, ["-f".as_ref(), manifest.as_os_str(), outside.dir.path().as_os_str()]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    std::fs::remove_file(scene.path("b.safetensors")).unwrap();
    assert!(refusal().contains("a shard is missing or broken: "));
    // An array without one of its parts would be wrong, so it is not joined.
    let mount = outside.mount(&manifest, &["--lenient"]);
    assert!(mount.list("tensors").is_empty());
    assert_eq!(mount.read("shards/a.safetensors/tensors/x"), pattern(2));
    assert!(mount.log().contains("skipped \"x\": \"b.safetensors\" does not have it"), "{}", mount.log());
    drop(mount);
    let listed = |path: &str| serde_json::json!({"shard_path": path, "samples_count": 1, "bytes": 1});
    let text = |version: &str, shards: &[&str]| {
        let shards: Vec<_> = shards.iter().map(|shard| listed(shard)).collect();
        serde_json::json!({"format_version": version, "shards": shards}).to_string()
    };
    for (text, expected) in [
        (text("2.0", &["a.safetensors"]), "dataset_manifest.json: format version \"2.0\"; weightfs supports 1"),
        (text("1.0", &["a.safetensors", "a.safetensors"]), "names shard \"a.safetensors\" twice"),
        (text("1.0", &["../a.safetensors"]), "shard \"../a.safetensors\" leads out of the directory"),
        (text("1.0", &["a.parquet"]), "shard \"a.parquet\" is not a .safetensors file"),
        ("[]".into(), "not a valid dataset manifest: invalid length 0"),
        ("{\"format_version\":\"1.0\"}".into(), "not a valid dataset manifest: missing field `shards`"),
    ] {
        std::fs::write(&manifest, &text).unwrap();
        let error = refusal();
        assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
    }
}
