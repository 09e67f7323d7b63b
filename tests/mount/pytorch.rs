//! PyTorch checkpoints. `pytorch.py` writes and reads them without PyTorch.

use crate::support::{Mount, Scene, python, real_file, require_fuse, run_ok};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

/// Runs `pytorch.py`.
pub fn script<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/pytorch.py").into_os_string();
    let args = args.into_iter().map(|arg| arg.as_ref().to_owned());
    run_ok(python().to_str().unwrap(), std::iter::once(script).chain(args))
}

/// A directory with the files that `pytorch.py` writes.
fn written(scene: &Scene) -> PathBuf {
    let dir = scene.mkdir("torch");
    script([OsStr::new("write"), dir.as_os_str()]);
    dir
}

/// Writes `views.pt` again, with another name of an entry in the local header, and also in the directory if `count` is
/// greater than 1.
fn rename(scene: &Scene, path: &str, count: usize) {
    let (name, other) = (b"archive/data/2", b"archive/data/X");
    let mut bytes = fs::read(scene.path("torch/views.pt")).unwrap();
    let places: Vec<usize> = (0..bytes.len()).filter(|at| bytes[*at..].starts_with(name)).take(count).collect();
    places.iter().for_each(|at| bytes[*at..at + other.len()].copy_from_slice(other));
    fs::write(scene.path(path), bytes).unwrap();
}

/// The bytes of all files in some directories of a mount.
pub fn files(mount: &Mount, dirs: &[&str]) -> BTreeMap<String, Vec<u8>> {
    let names = |dir: &&str| mount.list(*dir).into_iter().map(move |name| format!("{dir}/{name}")).collect::<Vec<_>>();
    let paths: Vec<String> = dirs.iter().flat_map(names).collect();
    paths.into_iter().map(|path| (path.clone(), mount.read(&path))).collect()
}

#[test]
fn views_are_those_of_the_same_model_as_safetensors() {
    require_fuse!();
    let scene = Scene::new();
    let dir = written(&scene);
    let views = ["tensors", "f32", "npy", "safetensors", "stats", "plots"];
    let expected = scene.mount(&dir.join("views.safetensors"), &[]);
    let expected = files(&expected, &views);
    assert!(expected.len() > 15 * 5, "{}", expected.len());
    for name in [
        "views.pt",
        "plain.pt",
        "aligned.pt",
        "big.pt",
        "protocol5.pt",
        "training.ckpt",
        "resumed.ckpt",
        "pytorch_model.bin.index.json",
    ] {
        let mount = scene.mount(&dir.join(name), &[]);
        let found = files(&mount, &views);
        assert!(found.keys().eq(expected.keys()), "{name}: {:?}", found.keys());
        for (path, bytes) in &found {
            assert!(*bytes == expected[path], "{name}: {path}");
        }
        // A part of a tensor whose elements are gathered, from the middle of an element on.
        let whole = &expected["tensors/transposed"];
        let mut part = vec![0; 1001];
        let file = fs::File::open(mount.path("tensors/transposed")).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&file, &mut part, 54_321).unwrap();
        assert!(part == whole[54_321..][..1001], "{name}");
    }
}

#[test]
fn converted_models_are_equal() {
    require_fuse!();
    let scene = Scene::new();
    written(&scene);
    for name in ["views.pt", "big.pt", "plain.pt", "training.ckpt", "pytorch_model.bin.index.json"] {
        let out = scene.ok(&format!("weightfs diff --data torch/{name} torch/views.safetensors || true"));
        assert!(out.contains("0 added, 0 removed, 0 changed, 15 unchanged"), "{name}: {out}");
        assert!(out.ends_with("\ndata: 0 different, 15 equal\n"), "{name}: {out}");
        scene.ok(&format!("weightfs export --force torch/{name} out.safetensors && weightfs check out.safetensors"));
        let out = scene.ok("weightfs diff --data out.safetensors torch/views.safetensors || true; rm out.safetensors");
        assert!(out.ends_with("\ndata: 0 different, 15 equal\n"), "{name}: {out}");
    }
    // A tensor that differs is found in gathered data too.
    scene.ok(
        "cp torch/views.pt torch/other.pt && printf '\\x01' | dd of=torch/other.pt bs=1 conv=notrunc status=none \
         seek=$(($(weightfs ls --json torch/views.pt | tr '}' '\\n' | grep '\"transposed\"' | \
         sed 's/.*\"offset\": *\\([0-9]*\\).*/\\1/') + 2000))",
    );
    let out = scene.ok("weightfs diff --data torch/other.pt torch/views.safetensors || true");
    assert!(out.contains("1 different, 14 equal") && out.contains("transposed"), "{out}");
}

#[test]
fn metadata_and_commands() {
    require_fuse!();
    let scene = Scene::new();
    written(&scene);
    let out = scene.ok("weightfs inspect torch/resumed.ckpt");
    for line in [
        "  epoch                            3",
        "  losses                           [1.5, 2, 3]",
        "  optimizer.param_groups.0.params  [0, 1]",
        "  Format           pytorch, the weights (the file also has optimizer)",
        "  tags                             [\"a\", \"b\"]",
    ] {
        assert!(out.contains(&format!("{line}\n")), "{out}");
    }
    let out = scene.ok("weightfs ls torch/resumed.ckpt");
    assert!(out.contains(" weight\n") && !out.contains("exp_avg"), "{out}");
    assert!(scene.ok("weightfs ls torch/resumed.ckpt/optimizer").ends_with(" state.0.exp_avg\n"));
    let said = scene.sh("weightfs metadata set torch/views.pt a=b");
    assert!(said.code == 1 && said.err.contains("views.pt: metadata of pytorch files cannot be changed"), "{said:?}");
    assert_eq!(scene.ok("weightfs id torch/views.pt | wc -l"), scene.ok("weightfs id torch/views.safetensors | wc -l"));
}

#[test]
fn check_reports_code_and_does_not_run_it() {
    require_fuse!();
    let scene = Scene::new();
    written(&scene);
    let marker = Path::new("/tmp/weightfs-was-here");
    let said = scene.sh("weightfs check torch/evil.pt");
    assert!(said.code == 1, "{said:?}");
    assert!(said.out.contains("evil.pt: error: the pickle names posix.system, which can run code"), "{said:?}");
    assert!(
        said.out.contains("evil.pt: warning: the pickle names pytorch_lightning.utilities.AttributeDict"),
        "{said:?}"
    );
    let out = scene.ok("weightfs inspect torch/evil.pt");
    assert!(out.contains("  evil   <posix.system>\n"), "{out}");
    let mount = scene.mount(&scene.path("torch/evil.pt"), &[]);
    assert_eq!(mount.list("tensors").len(), 15);
    assert!(!marker.exists());
    // A local header that differs from the directory.
    rename(&scene, "torch/renamed.pt", 1);
    let said = scene.sh("weightfs check torch/renamed.pt");
    assert!(said.code == 1 && said.out.contains("archive/data/X"), "{said:?}");
}

#[test]
fn check_searches_the_values_of_gathered_tensors() {
    let scene = Scene::new();
    let write = "
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, sys.argv[1])
import numpy as np
import pytorch
pytorch.prepare()
numbers = np.ones(3000 * 2000, np.float32)
numbers[2 * 2000 + 7] = np.nan
numbers[2999 * 2000 + 1999] = -np.inf
storage = pytorch.Storage('FloatStorage', numbers)
transposed = pytorch.View(storage, 0, (2000, 3000), (1, 2000))
gap = pytorch.View(storage, 2 * 2000 + 6, (2, 2), (2, 4))
many = pytorch.View(storage, 0, (2**40,), (0,))
zero = pytorch.View(pytorch.Storage('FloatStorage', np.zeros(8, np.float32)), 0, (2, 2), (1, 4))
for order in 'little', 'big':
    path = f'{sys.argv[2]}/{order}.pt'
    pytorch.save(path, dict(transposed=transposed, zero=zero), byteorder=order.encode())
pytorch.save(f'{sys.argv[2]}/sound.pt', dict(gap=gap, many=many))
";
    let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    run_ok(
        python().to_str().unwrap(),
        ["-c".as_ref(), write.as_ref(), tests.as_os_str(), scene.dir.path().as_os_str()],
    );
    for order in ["little", "big"] {
        let said = scene.sh(&format!("weightfs check --values {order}.pt"));
        let nan = "error: tensor \"transposed\": 1 NaN, 1 -Inf among 6000000 elements, the first at [7, 2]\n";
        assert!(said.code == 1 && said.out.contains(nan), "{said:?}");
        assert!(said.out.contains("tensor \"zero\": all 16 bytes are zero"), "{said:?}");
    }
    // The elements between those of a tensor are not a part of it.
    let said = scene.ok("weightfs check --values sound.pt");
    assert!(said.contains("values of 1 tensor not searched, all others finite"), "{said}");
}

#[test]
fn folders_and_damaged_files() {
    require_fuse!();
    let scene = Scene::new();
    let dir = written(&scene);
    scene.ok(
        "mkdir both && cp torch/views.safetensors both/model.safetensors && cp torch/views.pt both/pytorch_model.bin && \
         cp torch/views.pt both/optimizer.pt && cp torch/views.pt both/training_args.bin && echo >both/mean.npy",
    );
    // The same model as safetensors is preferred, and neither what a trainer writes beside it nor an array is a model.
    let mount = scene.mount(&scene.path("both"), &[]);
    assert_eq!(mount.list("tensors").len(), 15);
    drop(mount);
    // `check` looks into both, because programs can load either.
    scene.ok("cp torch/evil.pt both/pytorch_model.bin");
    let said = scene.sh("weightfs check both");
    assert!(said.code == 1 && said.out.contains("both/model.safetensors: OK"), "{said:?}");
    assert!(said.out.contains("both/pytorch_model.bin: error: the pickle names posix.system"), "{said:?}");
    scene.ok("mkdir shards && cp torch/views.safetensors shards/model.safetensors && \
         cp torch/pytorch_model.bin.index.json torch/pytorch_model-*.bin shards");
    let out = scene.ok("weightfs check shards");
    assert!(out.contains("shards/pytorch_model.bin.index.json: OK") && !out.contains("00001"), "{out}");
    let mount = scene.mount(&dir, &[]);
    let listed = mount.list("");
    for name in ["views", "big", "training", "pytorch_model"] {
        assert!(listed.iter().any(|listed| listed.starts_with(name)), "{listed:?}");
    }
    assert!(!listed.iter().any(|name| name.contains("00001-of")), "{listed:?}");
    drop(mount);
    // A storage that is missing: one tensor is left out.
    rename(&scene, "torch/lost.pt", usize::MAX);
    let said = scene.sh("weightfs ls torch/lost.pt");
    assert!(
        said.code == 1 && said.err.contains("tensor \"transposed\": its storage \"data/2\" is not in the archive"),
        "{said:?}"
    );
    let said = scene.sh("weightfs check torch/lost.pt");
    assert!(said.out.ends_with("lost.pt: 1 error (14 tensors, 13.2 kB; data aligned to 4 bytes)\n"), "{said:?}");
    let mount = scene.mount(&scene.path("torch/lost.pt"), &["--lenient"]);
    assert_eq!(mount.list("tensors").len(), 14);
    // Shards of a model: one that is missing, and one that is damaged.
    scene.ok("mkdir part && cp torch/pytorch_model* part && \
         head -c 2000 torch/pytorch_model-00002-of-00002.bin >part/pytorch_model-00002-of-00002.bin");
    for (change, tensors, reason) in [
        ("true", 9, "the end of the archive is missing or broken"),
        ("rm part/pytorch_model-00002-of-00002.bin", 7, "No such file or directory"),
    ] {
        scene.ok(change);
        let said = scene.sh("weightfs ls part/pytorch_model.bin.index.json");
        assert!(said.code == 1 && said.err.contains("pytorch_model-00002-of-00002.bin"), "{said:?}");
        let mount = scene.mount(&scene.path("part/pytorch_model.bin.index.json"), &["--lenient"]);
        assert_eq!(mount.list("tensors").len(), tensors, "{change}");
        let index: serde_json::Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
        let skipped = index["skipped"].to_string();
        assert!(skipped.contains("00002-of-00002.bin") && skipped.contains(reason), "{skipped}");
    }
    // Archives after other bytes, with offsets from the start of the archive and from the start of the file.
    let rewrite = "import sys, zipfile; old = zipfile.ZipFile(sys.argv[1]); new = zipfile.ZipFile(sys.argv[2], 'a'); \
                   [new.writestr(name, old.read(name)) for name in old.namelist()]; new.close()";
    scene.ok("printf '#!/bin/sh\\nexit\\n' | tee torch/files.pt torch/archive.pt > /dev/null && \
              cat torch/plain.pt >> torch/archive.pt");
    let paths = [scene.path("torch/plain.pt"), scene.path("torch/files.pt")].map(|path| path.into_os_string());
    run_ok(python().to_str().unwrap(), ["-c".into(), rewrite.into()].into_iter().chain(paths));
    // Other containers are named.
    scene.ok("head -c 200000 torch/views.pt > torch/cut.pt; cat torch/views.pt torch/plain.pt > torch/__0_0.distcp");
    for (name, expected) in [
        ("archive.pt", "archive.pt: not a model but a zip archive after 15 bytes of something else (torch.load and"),
        ("files.pt", "files.pt: not a model but a zip archive after 15 bytes of something else (torch.load and"),
        ("cut.pt", "no directory in the last 65536 bytes of 200000: the file is truncated"),
        ("__0_0.distcp", "name the directory with its file .metadata instead"),
    ] {
        let said = scene.sh(&format!("weightfs ls torch/{name}"));
        assert!(said.code == 1 && said.err.contains(expected), "{said:?}");
    }
}

#[test]
fn real_checkpoints_are_read_as_by_python() {
    require_fuse!();
    let dir = real_file("pytorch");
    let files: Vec<PathBuf> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 4, "{files:?}");
    let mut args = vec![PathBuf::from("read")];
    args.extend(files.iter().cloned());
    let mut expected: BTreeMap<String, BTreeMap<String, serde_json::Value>> = BTreeMap::new();
    for line in script(args).lines() {
        let [path, name, rest @ ..] = &serde_json::from_str::<Vec<serde_json::Value>>(line).unwrap()[..] else {
            panic!("{line}")
        };
        let (path, name) = (path.as_str().unwrap().to_owned(), name.as_str().unwrap().to_owned());
        expected.entry(path).or_default().insert(name, rest.to_vec().into());
    }
    let scene = Scene::new();
    for (path, expected) in expected {
        let mount = scene.mount(Path::new(&path), &[]);
        let mut found: BTreeMap<String, serde_json::Value> = BTreeMap::new();
        for set in ["", "optimizer/"].into_iter().filter(|set| mount.path(format!("{set}index.json")).exists()) {
            let index: serde_json::Value = serde_json::from_slice(&mount.read(format!("{set}index.json"))).unwrap();
            let dir = mount.path(format!("{set}tensors"));
            let sums = scene.ok(&format!("cd {} && sha256sum -- *", dir.display()));
            let sums: BTreeMap<&str, &str> =
                sums.lines().map(|line| line.split_once("  ").unwrap()).map(|(sum, name)| (name, sum)).collect();
            for tensor in index["tensors"].as_array().unwrap() {
                let name = tensor["name"].as_str().unwrap();
                found.insert(format!("{set}{name}"), serde_json::json!([tensor["dtype"], tensor["shape"], sums[name]]));
            }
        }
        assert!(found == expected, "{path}");
    }
}

#[test]
fn files_of_old_versions_are_mounted() {
    require_fuse!();
    let scene = Scene::new();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/legacy");
    for (case, view) in [("plain", "t"), ("tar", "n")] {
        let out = scene.path(format!("{case}.safetensors"));
        let source = dir.join(format!("{case}.pth"));
        scene.ok(&format!("weightfs export {} {}", source.display(), out.display()));
        let [found, expected] =
            [&source, &out].map(|model| files(&scene.mount(model, &[]), &["tensors", "f32", "npy"]));
        assert!(found == expected && found.contains_key(&format!("tensors/{view}")), "{case}");
    }
}

#[test]
fn tar_archives_of_python_are_mounted() {
    require_fuse!();
    let scene = Scene::new();
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/legacy/tar.pth");
    let program = "import os, sys, tarfile
made, out, folder = sys.argv[1:]
tarfile.open(made).extractall(folder)
with tarfile.open(out, 'w:', format=tarfile.PAX_FORMAT) as archive:
    for name in ['sys_info', 'pickle', 'tensors', 'storages']:
        os.utime(os.path.join(folder, name), (1480000000.25, 1480000000.75))
        archive.add(os.path.join(folder, name), arcname=name)
";
    let [out, folder] = ["out/model.bin", "members"].map(|name| scene.path(name));
    fs::create_dir(scene.path("out")).unwrap();
    run_ok(
        python().to_str().unwrap(),
        [OsStr::new("-c"), program.as_ref(), made.as_ref(), out.as_ref(), folder.as_ref()],
    );
    assert!(fs::read(&out).unwrap().starts_with(b"././@PaxHeader\0"));
    // In a directory, the first bytes decide whether a file with this suffix is a model.
    let [found, expected] = [&scene.path("out"), &made].map(|model| files(&scene.mount(model, &[]), &["tensors"]));
    assert!(found == expected && !found.is_empty());
}
