//! Every format through every view and every command: the same model in each format, compared with the same model as
//! safetensors. `formats.py` writes them.

use crate::support::{Mount, Namespace, Scene, files_below, python, require_fuse, require_root, run_ok};
use safetensors::SafeTensors;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A model, and what must be found in it.
struct Row {
    source: &'static str,
    /// Its directory in a mount of the directory with several models.
    name: &'static str,
    format: &'static str,
    /// Models as safetensors in `want/`: with the stored tensors, and with their values.
    stored: &'static str,
    values: &'static str,
    /// What `metadata set` says.
    refusal: &'static str,
}

const fn row(source: &'static str, name: &'static str, format: &'static str, refusal: &'static str) -> Row {
    Row { source, name, format, stored: "model", values: "model", refusal }
}

const FIXED: &str = "files cannot be changed (`weightfs export FILE OUT.safetensors` writes a copy";

const SEVERAL: &str = "a model of several files; name one of them";

const ROWS: [Row; 7] = [
    row("models/strided.pt", "strided", "pytorch", FIXED),
    row("models/sharded", "sharded/pytorch_model", "pytorch", SEVERAL),
    row("models/script.pt", "script", "pytorch", FIXED),
    row("arrays/arrays.npz", "arrays", "npz", FIXED),
    Row { stored: "one", values: "one", ..row("arrays/one.npy", "one", "npy", FIXED) },
    Row { stored: "codes", values: "numbers", ..row("models/tiny.slm", "tiny", "slm1", FIXED) },
    row("models/dataset", "dataset", "safetensors", SEVERAL),
];

type Files = BTreeMap<String, Vec<u8>>;

/// Writes the files of `formats.py`.
pub fn write(dir: &Path) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/formats.py");
    run_ok(python().to_str().unwrap(), [&script, dir]);
}

/// A scene with the files of `formats.py`.
pub fn written() -> Scene {
    let scene = Scene::new();
    write(scene.dir.path());
    scene
}

/// The models in [`written`].
#[cfg_attr(not(feature = "serve"), expect(dead_code, reason = "for servers"))]
pub fn sources() -> impl Iterator<Item = &'static str> {
    ROWS.iter().map(|row| row.source)
}

/// Runs `test` for all rows at the same time, each with some empty directories.
fn for_each<const N: usize>(scene: &Scene, test: impl Fn(&Row, [PathBuf; N]) + Sync) {
    let points: Vec<_> = ROWS.iter().map(|_| [(); N].map(|()| scene.mount_point())).collect();
    let test = &test;
    std::thread::scope(|scope| {
        ROWS.iter().zip(points).for_each(|(row, points)| drop(scope.spawn(move || test(row, points))));
    });
}

/// The files below a directory, by their paths in it. Pictures take long to draw, so they are read only if `plots` is
/// true, and otherwise empty.
fn files(dir: &Path, plots: bool) -> Files {
    let read = |(name, path): (String, PathBuf)| {
        let is_read = plots || path.extension().is_none_or(|extension| extension != "png");
        (name, if is_read { fs::read(path).unwrap() } else { Vec::new() })
    };
    files_below(dir).into_iter().map(read).collect()
}

/// The files of a directory of a mount.
fn in_dir<'f>(files: &'f Files, dir: &str) -> BTreeMap<&'f str, &'f [u8]> {
    files.iter().filter_map(|(path, bytes)| Some((path.strip_prefix(dir)?, &bytes[..]))).collect()
}

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).unwrap()
}

/// What an index says about each tensor, except where it is.
fn tensors(index: &Value) -> BTreeMap<&str, [&Value; 3]> {
    let lines = index["tensors"].as_array().unwrap().iter();
    lines.map(|line| (line["name"].as_str().unwrap(), ["dtype", "shape", "nbytes"].map(|key| &line[key]))).collect()
}

/// Compares the tensors of two safetensors files.
fn same_tensors(found: &[u8], expected: &[u8], what: &str) {
    let (found, expected) = (SafeTensors::deserialize(found).unwrap(), SafeTensors::deserialize(expected).unwrap());
    assert_eq!(found.len(), expected.len(), "{what}");
    for (name, tensor) in expected.tensors() {
        assert!(found.tensor(&name).unwrap() == tensor, "{what}: {name}");
    }
}

/// The export of a kind, whatever the name of the model is.
fn export<'f>(files: &'f Files, kind: &str) -> &'f [u8] {
    let suffix = format!("-{kind}.safetensors");
    in_dir(files, "export/").into_iter().find(|(name, _)| name.ends_with(&suffix)).unwrap().1
}

#[test]
fn every_view_of_every_format_is_that_of_safetensors() {
    require_fuse!();
    let scene = written();
    // What is expected, by the name of the file.
    let want: BTreeMap<&str, Files> = ["model", "one", "codes", "numbers"]
        .map(|name| {
            let mount = scene.mount(&scene.path(format!("want/{name}.safetensors")), &["--stored"]);
            (name, files(&mount.point, true))
        })
        .into();
    for_each(&scene, |row, points: [_; 2]| {
        let (source, stored, numbers) = (row.source, &want[row.stored], &want[row.values]);
        let mount = Mount::new(&scene.path(source), &points[0], &[]);
        let found = files(&mount.point, true);
        let same = |dir: &str, expected: &Files| {
            let (found, expected) = (in_dir(&found, dir), in_dir(expected, dir));
            assert!(!found.is_empty() && found.keys().eq(expected.keys()), "{source} {dir}: {:?}", found.keys());
            for (name, bytes) in found {
                assert!(bytes == expected[name], "{source} {dir}{name}");
            }
        };
        for dir in ["tensors/", "tree/", "safetensors/"] {
            same(dir, stored);
        }
        // The companions of quantized weights are shown as they are stored.
        let values: Files = stored.clone().into_iter().chain(numbers.clone()).collect();
        for dir in ["npy/", "f32/"] {
            same(dir, &values);
        }
        // Titles of quantized weights say how they are quantized.
        if row.stored == row.values {
            same("plots/", &values);
        }
        for (name, bytes) in in_dir(&found, "stats/") {
            let (found, expected) = (json(bytes), json(&values[&format!("stats/{name}")]));
            for key in ["count", "min", "max", "mean", "std", "zeros", "nan", "histogram"] {
                assert_eq!(found[key], expected[key], "{source} {name}: {key}");
            }
        }
        assert_eq!(in_dir(&found, "plots/").len(), in_dir(&found, "stats/").len(), "{source}");
        let (index, expected) = (json(&found["index.json"]), json(&stored["index.json"]));
        assert_eq!(tensors(&index), tensors(&expected), "{source}");
        assert_eq!(index["format"], row.format, "{source}");
        scene.ok(&format!("cd '{}' && sha256sum --quiet -c SHA256SUMS", mount.point.display()));
        let metadata = json(&found["metadata.json"]);
        assert_eq!(metadata.as_object().unwrap().len(), in_dir(&found, "metadata/").len(), "{source}");
        for (kind, expected) in [("whole", stored), ("clean", stored), ("bf16", numbers), ("f32", numbers)] {
            same_tensors(export(&found, kind), export(expected, kind), &format!("{source} {kind}"));
        }
        // The stored numbers. A sound file has the same files with `--lenient`.
        let mount = Mount::new(&scene.path(source), &points[1], &["--stored", "--lenient"]);
        let found = files(&mount.point, false);
        for dir in ["tensors/", "npy/", "f32/"] {
            assert!(in_dir(&found, dir) == in_dir(stored, dir), "{source} {dir}");
        }
    });
    // Several models in one mount.
    for dir in ["models", "arrays"] {
        let mount = scene.mount(&scene.path(dir), &["--lenient"]);
        let all = files(&mount.point, false);
        for row in ROWS.iter().filter(|row| row.source.starts_with(dir)) {
            for dir in ["tensors/", "tree/", "safetensors/"] {
                let found = in_dir(&all, &format!("{}/{dir}", row.name));
                assert!(found == in_dir(&want[row.stored], dir), "{}: {:?}", row.name, found.keys());
            }
        }
    }
}

#[test]
fn every_command_reads_every_format() {
    require_root!();
    let scene = written();
    for_each(&scene, |row, [point]| {
        let mount = Mount::new(&scene.path(row.source), &point, &[]);
        let shown = files(&mount.point, false);
        let status = json(Namespace::new(&scene, "").ok("weightfs status --json").as_bytes());
        let point = point.to_str().unwrap();
        assert!(status["mounts"].as_array().unwrap().iter().any(|mount| mount["mountpoint"] == point), "{status}");
        commands(&scene, row, &shown);
        // Commands that change a file.
        for line in ["set SOURCE a=b", "clear -o out SOURCE"] {
            let said = scene.sh(&format!("weightfs metadata {}", line.replace("SOURCE", row.source)));
            assert!(said.code == 1 && said.err.contains(row.refusal) && said.err.lines().count() == 1, "{said:?}");
        }
    });
}

/// Runs every command that reads a model. `shown` are the files of its mount.
fn commands(scene: &Scene, row: &Row, shown: &Files) {
    let (source, sh, ok) = (row.source, |line: &str| scene.sh(line), |line: &str| scene.ok(line));
    let want = |name: &str| format!("want/{name}.safetensors");
    let (stored, values, out) = (want(row.stored), want(row.values), format!("out-{}", row.name.replace('/', "-")));
    let index = json(&shown["index.json"]);
    let count = tensors(&index).len();
    assert_eq!(ok(&format!("weightfs ls -n {source}")).lines().count(), count, "{source}");
    let listed = json(ok(&format!("weightfs ls --json {source}")).as_bytes());
    assert_eq!(tensors(&listed), tensors(&index), "{source}");
    assert!(ok(&format!("weightfs ls --totals {source}")).contains("F32"), "{source}");
    let listed = json(ok(&format!("weightfs ls --files -R --json {source}")).as_bytes());
    let paths = listed["files"].as_array().unwrap().iter().map(|file| file["path"].as_str().unwrap());
    assert_eq!(paths.collect::<BTreeSet<_>>(), shown.keys().map(String::as_str).collect(), "{source}");
    ok(&format!("weightfs cp {source} tensors export stats {out}"));
    let copied = files(&scene.path(&out), false);
    assert!(copied.len() > 2 * count, "{source}: {:?}", copied.keys());
    copied.iter().for_each(|(path, bytes)| assert!(shown[path] == *bytes, "{source}: cp {path}"));
    let printed = scene.path(format!("{out}.cat"));
    for dir in ["tensors/", "npy/", "stats/"] {
        for (path, bytes) in shown.iter().filter(|(path, _)| path.starts_with(dir)).take(2) {
            ok(&format!("weightfs cat {source} {path} >{}", printed.display()));
            assert!(fs::read(&printed).unwrap() == *bytes, "{source}: cat {path}");
        }
    }
    let page = ok(&format!("weightfs inspect {source}"));
    assert!(page.lines().any(|line| line.starts_with("  Format ") && line.contains(row.format)), "{page}");
    let page = json(ok(&format!("weightfs inspect --json {source}")).as_bytes());
    assert!(page.to_string().contains(row.format), "{page}");
    let hash = ok(&format!("weightfs id {source}"));
    let summary = ok(&format!("weightfs summary {source}"));
    assert!(summary.starts_with(&format!("{},", row.format)), "{summary}");
    let hash = hash.split_whitespace().last().unwrap();
    assert!(summary.contains(&format!(",{count},")) && summary.contains(hash), "{summary} {hash}");
    for option in ["", "--values", "--no-data"] {
        let said = sh(&format!("weightfs check {option} {source}"));
        assert!(said.code == 0 && said.out.contains(": OK"), "{source}: {said:?}");
        assert_eq!(said.out.contains("all values finite"), option == "--values", "{said:?}");
    }
    let said = sh(&format!("weightfs export --force --format gguf {source} {out}.gguf"));
    assert!(said.code == 1 && said.err.contains("only GGUF models can be written as GGUF"), "{said:?}");
    ok(&format!("weightfs export --force --shard-size 100B {source} {out}.parts"));
    let said = sh(&format!("weightfs diff --data {out}.parts {stored}"));
    assert!(said.out.ends_with(&format!("\ndata: 0 different, {count} equal\n")), "{said:?}");
    let said = sh(&format!("weightfs diff --data {source} {stored}"));
    assert!(said.out.contains(&format!("0 changed, {count} unchanged")), "{said:?}");
    assert!(said.out.ends_with(&format!("\ndata: 0 different, {count} equal\n")), "{said:?}");
    let said = sh(&format!("weightfs diff {source} {stored}"));
    assert!(said.code < 2 && said.out.contains("0 added, 0 removed, 0 changed"), "{said:?}");
    assert!(ok(&format!("weightfs diff --values {source} {values}")).contains("values: 0 different, "), "{source}");
    for (options, command, expected) in [("", "--data", &stored), ("--dtype f32", "--values", &values)] {
        let out = format!("{out}.safetensors");
        ok(&format!("weightfs export --force {options} {source} {out}"));
        let said = sh(&format!("weightfs diff {command} {out} {expected}"));
        assert!(said.code < 2 && said.out.contains(": 0 different, "), "{said:?}");
        fs::remove_file(scene.path(out)).unwrap();
    }
    let metadata = json(ok(&format!("weightfs metadata get --json {source}")).as_bytes());
    assert_eq!(metadata, json(&shown["metadata.json"]), "{source}");
}
