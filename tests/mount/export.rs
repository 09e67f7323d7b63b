//! `weightfs export`: it writes what the mount shows, completely or not at all.

use crate::support::{
    Namespace, STATE, Scene, WEIGHTFS, pattern, python, real_model, require_fuse, require_root, run_ok,
};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use safetensors::{Dtype, SafeTensors};
use sha2::{Digest, Sha256};
use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A dataset, a sharded model and single files, some of them real models.
fn sources(scene: &Scene) -> Vec<PathBuf> {
    let mut sources = vec![scene.sample()];
    sources.extend(["silero_vad_16k", "model-p2k", "hadamards"].map(real_model));
    scene.mkdir("sharded");
    scene.model("sharded/1.safetensors", &[("a", Dtype::U8, &[5000], pattern(5000))], &[("format", "pt")]);
    scene.model("sharded/2.safetensors", &[("b", Dtype::I8, &[3], vec![3, 4, 5])], &[("other", "x")]);
    let index = r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
    std::fs::write(scene.path("sharded/whole.safetensors.index.json"), index).unwrap();
    sources.extend([scene.path("sharded"), scene.path("sharded/whole.safetensors.index.json")]);
    scene.mkdir("data");
    for (at, file) in ["data/x.safetensors", "data/y.safetensors"].iter().enumerate() {
        let rows = vec![at as u8; 3 * 4096];
        scene.model(file, &[("images", Dtype::U8, &[3, 4096], rows), ("labels", Dtype::I64, &[3], pattern(24))], &[]);
    }
    let bytes = scene.path("data/x.safetensors").metadata().unwrap().len();
    let listed = |file| serde_json::json!({"shard_path": file, "samples_count": 3, "bytes": bytes});
    let shards = [listed("x.safetensors"), listed("y.safetensors")];
    let manifest = serde_json::json!({"format_version": "1.0", "shards": shards});
    std::fs::write(scene.path("data/dataset_manifest.json"), manifest.to_string()).unwrap();
    sources.push(scene.path("data"));
    sources
}

/// Sorted names in a directory, including hidden ones.
fn listed(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

#[test]
fn exported_file_equals_file_in_mount() {
    require_fuse!();
    let scene = Scene::new();
    for source in sources(&scene) {
        let out = Scene::new();
        let mount = out.mount(&source, &[]);
        let exports = mount.list("export");
        out.mkdir("dir");
        out.ok(&format!(
            "weightfs export --force {0} out && weightfs export --force --clean {0} clean && weightfs export --force {0} dir",
            source.display()
        ));
        let whole = exports.iter().find(|name| name.ends_with("-whole.safetensors")).unwrap();
        let clean = exports.iter().find(|name| name.ends_with("-clean.safetensors")).unwrap();
        assert!(
            std::fs::read(out.path("out")).unwrap() == mount.read(format!("export/{whole}")),
            "{}",
            source.display()
        );
        assert!(
            std::fs::read(out.path("clean")).unwrap() == mount.read(format!("export/{clean}")),
            "{}",
            source.display()
        );
        // In a directory, the file is named after the model.
        let named = whole.replace("-whole", "");
        assert_eq!(listed(&out.path("dir")), [&named[..]]);
        out.ok(&format!("cmp out dir/{named} && weightfs export --force {0} - | cmp - out", source.display()));
    }
}

/// SHA-256 of `bytes` in hexadecimal digits.
fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The metadata keys of a file, read by the official crate.
fn metadata_keys(path: &Path) -> Vec<String> {
    let file = std::fs::read(path).unwrap();
    let (_, header) = SafeTensors::read_metadata(&file).unwrap();
    let mut keys: Vec<String> = header.metadata().iter().flatten().map(|(key, _)| key.clone()).collect();
    keys.sort();
    keys
}

#[test]
fn hashes_of_other_data_are_not_exported() {
    require_fuse!();
    let scene = Scene::new();
    let (a, b) = (pattern(5000), pattern(3000));
    let write = |name: &str, tensors: &[(&str, &[u8])], other: &[(&str, &str)]| {
        let hash = sha256(&tensors.iter().map(|tensor| tensor.1).collect::<Vec<_>>().concat());
        let spec = format!("0x{hash}");
        let hashes = [("modelspec.hash_sha256", &spec[..]), ("sshs_model_hash", &hash), ("sshs_legacy_hash", "12ab")];
        let tensors: Vec<_> =
            tensors.iter().map(|(name, bytes)| (*name, Dtype::U8, [bytes.len()], bytes.to_vec())).collect();
        let tensors: Vec<_> =
            tensors.iter().map(|(name, dtype, shape, bytes)| (*name, *dtype, &shape[..], bytes.clone())).collect();
        scene.model(name, &tensors, &[&hashes[..], other].concat());
    };
    let all = ["modelspec.hash_sha256", "sshs_legacy_hash", "sshs_model_hash", "title"];
    let keys = |name: &str| metadata_keys(&scene.path(name));
    let verified = |name: &str| scene.sh(&format!("weightfs check {name}")).out.matches("_hash verified").count();
    write("m.safetensors", &[("a", &a), ("b", &b)], &[("title", "x")]);
    // The same data.
    scene.ok(
        "weightfs export --force m.safetensors out && weightfs export --force --only '*' --align 8 m.safetensors only",
    );
    scene.ok("weightfs export --force --shard-size 1GB m.safetensors one");
    for name in ["out", "only", "one/model.safetensors"] {
        assert_eq!((keys(name), verified(name)), (all.map(str::to_owned).to_vec(), 1), "{name}");
    }
    // Some of the data.
    scene.ok("weightfs export --force --only a m.safetensors a && weightfs export --force --shard-size 5kB m.safetensors parts");
    for name in ["a", "parts/model-00001-of-00002.safetensors", "parts/model-00002-of-00002.safetensors"] {
        assert_eq!(keys(name), ["title"], "{name}");
    }
    // Nothing remains of metadata that consists of hashes.
    write("bare.safetensors", &[("a", &a), ("b", &b)], &[]);
    scene.ok(
        "weightfs export --force --only a bare.safetensors a && weightfs export --force --clean bare.safetensors clean",
    );
    assert!(scene.sh("grep -q __metadata__ a").code == 1 && keys("clean").is_empty());
    // Each shard has a hash of its own data, and their data together has none.
    scene.mkdir("sharded");
    write("sharded/1.safetensors", &[("a", &a)], &[("title", "x")]);
    write("sharded/2.safetensors", &[("b", &b)], &[("title", "x")]);
    let index = r#"{"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}"#;
    std::fs::write(scene.path("sharded/model.safetensors.index.json"), index).unwrap();
    let mount = scene.mount(&scene.path("sharded"), &[]);
    let whole = mount.list("export").into_iter().find(|name| name.contains("-whole")).unwrap();
    std::fs::write(scene.path("whole.safetensors"), mount.read(format!("export/{whole}"))).unwrap();
    drop(mount);
    scene.ok("weightfs export --force sharded joined && cmp joined whole.safetensors");
    assert_eq!((keys("joined"), verified("joined")), (vec!["title".to_owned()], 0));
    // The new shards have the data of the old ones, and so their hashes.
    scene.ok("weightfs export --force --shard-size 5kB sharded same && weightfs export --force --only b sharded b");
    assert_eq!(keys("same/model-00002-of-00002.safetensors"), all);
    assert!(scene.ok("weightfs check same").contains("; sshs_model_hash verified of 2 files"));
    assert_eq!((keys("b"), verified("b")), (all.map(str::to_owned).to_vec(), 1));
    // No export is unsound.
    scene.ok("weightfs check --quiet a b clean joined one only out parts same whole.safetensors");
}

#[test]
fn export_keeps_mode_of_source() {
    let scene = Scene::new();
    scene.sample();
    for (umask, mode, expected) in [
        ("022", "600", "600"),
        ("022", "640", "640"),
        ("022", "664", "644"),
        ("022", "444", "444"),
        ("077", "644", "600"),
        ("000", "4755", "755"),
    ] {
        scene.ok(&format!(
            "chmod {mode} sample.safetensors && umask {umask} && rm -f out && weightfs export --force sample.safetensors out"
        ));
        assert_eq!(scene.ok("stat -c %a out"), format!("{expected}\n"), "{umask} {mode}");
        scene.ok(&format!("umask {umask} && rm -f cp && cp sample.safetensors cp"));
        assert_eq!(scene.ok("stat -c %a cp"), format!("{expected}\n"), "cp: {umask} {mode}");
    }
    // Of several sources, only what all of them permit; the index of new shards too.
    scene.ok("chmod 664 sample.safetensors && umask 022 && weightfs export --force --shard-size 1MB sample.safetensors parts");
    scene.ok("chmod 640 parts/*1-of-* && chmod 604 parts/*2-of-* && umask 022 && weightfs export --force parts joined");
    scene.ok("umask 022 && weightfs export --force --shard-size 2MB parts again && mkdir dir && cp -p parts/*1-of-* dir/a.safetensors");
    assert_eq!(scene.ok("stat -c %a joined again/* | sort -u"), "600\n");
    scene.ok("cp -p parts/*2-of-* dir/b.safetensors && umask 022 && weightfs export --force dir each");
    assert_eq!(scene.ok("stat -c %a each/*"), "640\n604\n");
    // A file that is replaced keeps its mode, as far as the source may be read.
    for (source, expected) in [("644", "664"), ("640", "660"), ("600", "600")] {
        scene.ok(&format!("chmod {source} sample.safetensors && touch old && chmod 664 old"));
        scene.ok("weightfs export --force sample.safetensors old");
        assert_eq!(scene.ok("stat -c %a old"), format!("{expected}\n"), "{source}");
    }
}

#[test]
fn only_and_align_options_select_tensors_and_alignment() {
    let scene = Scene::new();
    scene.sample();
    let original = std::fs::read(scene.path("sample.safetensors")).unwrap();
    let original = SafeTensors::deserialize(&original).unwrap();
    let all = [
        "",
        "..",
        "empty",
        "model.embed.weight",
        "model.layers.10",
        "model.layers.10.w",
        "model.layers.2.w",
        "slash/and%percent",
    ];
    let table: [(&str, &[&str], u64); 8] = [
        ("--only 'model.*'", &["model.embed.weight", "model.layers.10", "model.layers.10.w", "model.layers.2.w"], 4096),
        ("--only '*.w'", &["model.layers.10.w", "model.layers.2.w"], 4096),
        ("--only 'model.layers.?.w' --align 8", &["model.layers.2.w"], 8),
        ("--only '*embed*' --only '*slash*' --align 65536", &["model.embed.weight", "slash/and%percent"], 65536),
        (
            "--only 'model.layers.[0-9]*' --only ..",
            &["..", "model.layers.10", "model.layers.10.w", "model.layers.2.w"],
            4096,
        ),
        ("--only '' --only empty --clean", &["", "empty"], 4096),
        ("--only '*' --align 1048576", &all, 1 << 20),
        ("--align 64", &all, 64),
    ];
    for (options, names, align) in table {
        assert_eq!(scene.ok(&format!("weightfs export --force {options} sample.safetensors out")), "");
        let written = std::fs::read(scene.path("out")).unwrap();
        let (len, header) = SafeTensors::read_metadata(&written).unwrap();
        assert_eq!((len as u64 + 8) % align, 0, "{options}");
        assert_eq!(header.metadata().is_some(), !options.contains("--clean"), "{options}");
        let found = SafeTensors::deserialize(&written).unwrap();
        let mut found_names = found.names();
        found_names.sort();
        assert_eq!(found_names, names, "{options}");
        for (name, tensor) in found.iter() {
            let expected = original.tensor(name).unwrap();
            assert!(
                (tensor.dtype(), tensor.shape(), tensor.data())
                    == (expected.dtype(), expected.shape(), expected.data()),
                "{name}"
            );
        }
    }
}

#[test]
fn sharded_export_matches_transformers_layout() {
    require_fuse!();
    let script = "
import json, os, sys
sys.dont_write_bytecode = True
from safetensors import safe_open
folder, source, most = sys.argv[1], sys.argv[2], int(sys.argv[3])
text = open(f'{folder}/model.safetensors.index.json').read()
index = json.loads(text)
assert text == json.dumps(index, indent=2, sort_keys=True) + '\\n'
assert list(index) == ['metadata', 'weight_map'] and list(index['metadata']) == ['total_parameters', 'total_size']
files = sorted(set(index['weight_map'].values()))
assert files == [f'model-{at + 1:05}-of-{len(files):05}.safetensors' for at in range(len(files))], files
assert sorted(os.listdir(folder)) == sorted([*files, 'model.safetensors.index.json'])
total = 0
with safe_open(source, 'numpy') as whole:
    names = set(whole.keys())
    assert set(index['weight_map']) == names
    for file in files:
        with safe_open(f'{folder}/{file}', 'numpy') as part:
            assert part.metadata() == whole.metadata()
            sizes = []
            for name in part.keys():
                assert index['weight_map'][name] == file
                a, b = part.get_tensor(name), whole.get_tensor(name)
                assert a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes(), name
                sizes.append(a.nbytes)
                names.discard(name)
            assert sum(sizes) <= most or len([size for size in sizes if size]) == 1, sizes
            total += sum(sizes)
assert not names and total == index['metadata']['total_size']
print(len(files))
";
    let scene = Scene::new();
    for (name, size, bytes, files) in [
        ("hadamards", "300kB", 300_000, 4..=66),
        ("silero_vad_16k", "0.25MiB", 262_144, 3..=8),
        ("model-p2k", "1MB", 1_000_000, 4..=9),
    ] {
        let source = real_model(name);
        scene.ok(&format!("weightfs export --force --shard-size {size} {} {name}", source.display()));
        let folder = scene.path(name);
        let args = ["-c".as_ref(), script.as_ref(), folder.as_os_str(), source.as_os_str()];
        let bytes = bytes.to_string();
        let printed = run_ok(python().to_str().unwrap(), [&args[..], &[bytes.as_ref()]].concat());
        assert!(files.contains(&printed.trim().parse().unwrap()), "{name}: {printed}");
        assert!(scene.ok(&format!("weightfs diff --data {name} {}", source.display())).contains("data: 0 different"));
        // The shards in one file have the tensors of the original, in the order of the shards.
        scene.ok(&format!("weightfs export --force {name} {name}.one"));
        let difference = scene.ok(&format!("weightfs diff --data {name}.one {}", source.display()));
        assert!(difference.contains("data: 0 different"), "{difference}");
    }
    // Names of all kinds, read by the official package.
    let names = ["", "é", "重み", "😀", "\u{ffff}", "\u{7f}", "\u{1}\n\t\u{8}", "\"\\/", "a.10", "a.2", "B"];
    let tensors: Vec<_> = names.iter().map(|name| (*name, Dtype::U8, &[3][..], vec![1, 2, 3])).collect();
    let source = scene.model("names.safetensors", &tensors, &[("é", "重み\n")]);
    scene.ok("weightfs export --force --shard-size 7 names.safetensors names");
    let folder = scene.path("names");
    let args = ["-c".as_ref(), script.as_ref(), folder.as_os_str(), source.as_os_str(), "7".as_ref()];
    assert_eq!(run_ok(python().to_str().unwrap(), args), "6\n");
    let mount = scene.mount(&folder, &[]);
    assert_eq!(mount.list("tensors").len(), names.len());
    drop(mount);
    // A single shard gets no index. An existing empty directory is accepted.
    scene.mkdir("one");
    scene.ok(&format!(
        "weightfs export --force --shard-size 1GB --only '*weight*' {} one",
        real_model("silero_vad_16k").display()
    ));
    assert_eq!(listed(&scene.path("one")), ["model.safetensors"]);
}

#[test]
fn output_can_be_file_link_pipe_or_directory() {
    if crate::support::is_skipped(crate::support::not_root()) {
        return;
    }
    let scene = Scene::new();
    scene.sample();
    scene.ok("chmod 644 sample.safetensors");
    scene.ok("weightfs export --force sample.safetensors keep && cp keep old && chmod 604 old && chown 5:7 old && setfattr -n user.note -v x old");
    scene.ok("ln -s old link && umask 027 && weightfs export --force sample.safetensors link && weightfs export --force sample.safetensors new");
    let found =
        scene.ok("stat -c '%a %u:%g' old new; getfattr --only-values -n user.note old; cmp old keep; test -L link");
    assert_eq!(found, "604 5:7\n640 0:0\nx");
    // The source itself is replaced, not written to.
    scene.ok("cp sample.safetensors mine.safetensors && weightfs export --force mine.safetensors mine.safetensors && cmp mine.safetensors keep");
    scene.ok("weightfs export --force sample.safetensors /dev/null && test -c /dev/null");
    scene.ok("mkfifo fifo && (cat fifo >read & weightfs export --force sample.safetensors fifo && wait) && cmp read keep && test -p fifo");
    // Paths of standard output and of unnamed pipes.
    scene.ok("weightfs export --force sample.safetensors /dev/stdout | cmp - keep && weightfs export --force sample.safetensors /dev/fd/5 5>&1 >/dev/null | cmp - keep");
    scene.ok("{ echo head; weightfs export --force sample.safetensors /dev/stdout; echo tail; } >out");
    scene.ok("{ echo head; cat keep; echo tail; } | cmp - out");
    let line = "weightfs export --force sample.safetensors - | head -c 5 | wc -c; echo ${PIPESTATUS[0]}";
    assert_eq!(scene.ok(&format!("bash -c '{line}'")), "5\n1\n");
    scene.ok("umask 027 && weightfs export --force --shard-size 1MB sample.safetensors parts");
    assert_eq!(scene.ok("stat -c %a parts parts/model-00001-of-00003.safetensors"), "750\n640\n");
    // An empty directory is filled and not replaced, even if it is a working directory or is given by a symlink.
    scene.ok("mkdir empty other && chmod 711 empty && ln -s other to && cd empty && weightfs export --force --shard-size 1MB ../sample.safetensors . && test -e model.safetensors.index.json");
    scene.ok("weightfs export --force --shard-size 1MB sample.safetensors to && diff -r empty other && diff -r parts other && test -L to");
    assert_eq!(scene.ok("stat -c %a empty; find empty other | wc -l"), "711\n10\n");
    // export does not write to a terminal, which script(1) provides.
    let output = scene.sh("script -qec 'weightfs export --force sample.safetensors -' /dev/null </dev/null");
    assert!(output.code == 1 && output.out.contains("standard output is a terminal"), "{output:?}");
}

#[test]
fn failed_export_leaves_nothing_behind() {
    if crate::support::is_skipped(crate::support::not_root()) {
        return;
    }
    let scene = Scene::new();
    scene.sample();
    scene.ok("head -c 3000000 sample.safetensors >cut.safetensors && mkdir several full && cp sample.safetensors several/a.safetensors && cp sample.safetensors several/b.safetensors && echo old >old");
    let table = [
        ("sample.safetensors absent/", 1, "absent/: No such file or directory"),
        ("sample.safetensors absent/out", 1, "absent/out: No such file or directory"),
        ("cut.safetensors out", 1, "cut.safetensors: truncated"),
        ("several old", 1, "old: Not a directory"),
        ("several -", 1, "several files cannot go to standard output; name a directory"),
        ("sample.safetensors - --shard-size 1MB", 1, "several files cannot go to standard output; name a directory"),
        ("parts parts/model-00002-of-00003.safetensors", 1, "part of the source parts; name another file"),
        ("parts link", 1, "part of the source parts; name another file"),
        ("parts parts/model.safetensors.index.json", 1, "part of the source parts; name another file"),
        ("data data/dataset_manifest.json", 1, "part of the source data; name another file"),
        (
            "--only 'model.embed.*' sample.safetensors sample.safetensors",
            1,
            "sample.safetensors: the source itself, which would keep 1 of ",
        ),
        (
            "--only 'model.embed.*' sample.safetensors .",
            1,
            "./sample.safetensors: the source itself, which would keep 1 of ",
        ),
        (
            "--only 'model.embed.*' alone alone",
            1,
            "alone/sample.safetensors: the source itself, which would keep 1 of ",
        ),
        ("--only 'model.embed.*' sample.safetensors second", 1, "second: the source itself, which would keep 1 of "),
        ("--clean sample.safetensors .", 1, "the source itself, which would lose its metadata; name another file"),
        ("several several", 1, "several: Directory not empty"),
        ("several out --only nothing", 1, "several: no tensor matches \"nothing\""),
        ("sample.safetensors out --only nothing", 1, "sample.safetensors: no tensor matches \"nothing\""),
        ("sample.safetensors out --only '*' --only nothing", 1, "no tensor matches \"nothing\""),
        ("sample.safetensors out --only '['", 2, "'['"),
        ("sample.safetensors out --align 100", 2, "not a power of two from 8 to 67108864"),
        ("sample.safetensors out --align 4", 2, "not a power of two from 8 to 67108864"),
        ("sample.safetensors out --shard-size much", 2, "'much'"),
        ("sample.safetensors out --shard-size 0", 2, "'0'"),
        ("sample.safetensors several --shard-size 1GB", 1, "several: Directory not empty"),
        ("sample.safetensors old --shard-size 1GB", 1, "old: Not a directory"),
        ("sample.safetensors", 2, "<OUT>"),
    ];
    scene.ok("weightfs export --force --shard-size 1MB sample.safetensors parts && ln -s parts/model-00001-of-00003.safetensors link");
    sources(&scene);
    scene.ok("mkdir alone && cp sample.safetensors alone && ln -s sample.safetensors second");
    let before = scene.ok(STATE);
    for (line, code, text) in table {
        let output = scene.sh(&format!("weightfs export --force {line}"));
        assert!(output.code == code && output.out.is_empty() && output.err.contains(text), "{line}: {output:?}");
        assert!(output.err.starts_with("weightfs: ") && output.err.lines().count() == 1, "{line}: {output:?}");
    }
    assert_eq!(scene.ok(STATE), before);
    let full = Namespace::new(&scene, "mount -t tmpfs -o size=2m full full && echo old >full/old");
    let before = full.ok("ls -la full && cat full/old");
    let size = scene.path("sample.safetensors").metadata().unwrap().len();
    for line in
        ["sample.safetensors full/out", "sample.safetensors full/old", "--shard-size 1MB sample.safetensors full/parts"]
    {
        let output = full.sh(&format!("weightfs export --force {line}"));
        let numbers: Vec<u64> = output.err.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [needed, available, missing] = numbers[..] else { panic!("{output:?}") };
        let expected = format!(
            "weightfs: {}: needs {needed} bytes, but only {available} bytes are available there; \
             free {missing} bytes or write elsewhere\n",
            line.split(' ').next_back().unwrap()
        );
        assert_eq!((output.code, &output.err), (1, &expected), "{line}");
        // The headers are counted too, and the directory for several files takes space itself.
        assert!((size..size + 40_000).contains(&needed) && needed == available + missing, "{output:?}");
        assert!((2 << 20) - available <= 8192, "{output:?}");
        assert_eq!(full.ok("ls -la full && cat full/old").replace("total", ""), before.replace("total", ""), "{line}");
    }
    // `ulimit -f` makes writing fail.
    let before = scene.ok(STATE);
    for (line, file) in [
        ("sample.safetensors out", "out"),
        ("sample.safetensors sample.safetensors", "sample.safetensors"),
        ("--shard-size 1MB sample.safetensors new", "new/model-00001-of-00003.safetensors"),
        ("several new", "new/a.safetensors"),
    ] {
        let output = scene.sh(&format!("ulimit -f 8; weightfs export --force {line}"));
        assert_eq!((output.code, output.err), (1, format!("weightfs: {file}: File too large\n")), "{line}");
    }
    assert_eq!(scene.ok(STATE), before);
    // --lenient exports the intact tensors of a damaged file, but does not replace that file.
    let output = scene.sh("weightfs export --force --lenient cut.safetensors cut.safetensors");
    assert!(
        output.code == 1 && output.err.contains("cut.safetensors: the source itself, which would keep "),
        "{output:?}"
    );
    assert_eq!(scene.ok(STATE), before);
    let output = scene.sh("weightfs export --force --lenient cut.safetensors rescued");
    assert!(output.code == 0 && output.err.contains("skipped \"model.embed.weight\""), "{output:?}");
    let rescued = std::fs::read(scene.path("rescued")).unwrap();
    assert!(SafeTensors::deserialize(&rescued).unwrap().len() < 8);
}

/// A model `m.safetensors` of 24 MiB.
fn large() -> Scene {
    let scene = Scene::new();
    let tensors: Vec<String> = (0..24).map(|at| format!("layers.{at}.weight")).collect();
    let tensor = |name| (name, Dtype::BF16, &[512, 1024][..], pattern(1 << 20));
    scene.model("m.safetensors", &tensors.iter().map(|name| tensor(&name[..])).collect::<Vec<_>>(), &[]);
    scene
}

#[test]
fn source_changed_during_export_is_an_error() {
    let scene = large();
    scene.ok("cp m.safetensors keep");
    for (line, text) in [
        ("cat keep >m.safetensors", "m.safetensors: written to since it was opened"),
        ("truncate -s 100000 m.safetensors", "m.safetensors: truncated from 2516"),
    ] {
        scene.ok("cp keep m.safetensors");
        let mut command = scene.command("weightfs");
        command.args(["export", "m.safetensors", "-"]).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = child.stdout.take().unwrap();
        // The export has begun to write from the mapped source, and now waits for the pipe.
        out.read_exact(&mut vec![0; 9 << 20]).unwrap();
        scene.ok(line);
        out.read_to_end(&mut Vec::new()).unwrap();
        let output = child.wait_with_output().unwrap();
        let stderr = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.code() == Some(1) && stderr.contains(text), "{line}: {stderr}");
    }
}

#[test]
fn interrupted_export_keeps_old_file_whole() {
    let scene = large();
    scene.ok("weightfs export --force m.safetensors expected && weightfs export --force --shard-size 3MB m.safetensors parts");
    let expected = std::fs::read(scene.path("expected")).unwrap();
    let parts = listed(&scene.path("parts"));
    assert_eq!(parts.len(), 13);
    let signals = [Signal::SIGKILL, Signal::SIGINT, Signal::SIGTERM, Signal::SIGKILL];
    let (mut stopped, mut done, mut delay) = (0, 0, Duration::ZERO);
    while stopped < 32 || done < 2 {
        let signal = signals[(stopped + done) % signals.len()];
        let sharded = (stopped + done) / signals.len() % 2 == 1;
        // Whether the output directory exists before the export.
        let exists = (stopped + done) / signals.len() % 4 == 3;
        if exists {
            scene.mkdir("new");
        }
        std::fs::write(scene.path("out"), "old").unwrap();
        let mut command = Command::new("env");
        command.args(["--default-signal=HUP,INT,TERM", WEIGHTFS, "export", "m.safetensors"]);
        command.args(if sharded { &["new", "--shard-size=3MB"][..] } else { &["out"] });
        let mut child =
            command.current_dir(scene.dir.path()).stdin(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let started = Instant::now();
        while started.elapsed() < delay {
            std::hint::spin_loop();
        }
        let _ = kill(Pid::from_raw(child.id() as i32), signal);
        let success = child.wait().unwrap().success();
        let out = std::fs::read(scene.path("out")).unwrap();
        assert!(out == b"old" || out == expected, "{signal} after {delay:?}");
        assert!(!success || sharded || out == expected, "{signal} after {delay:?}");
        if scene.path("new").exists() {
            let mut found = listed(&scene.path("new"));
            assert!(exists && signal == Signal::SIGKILL || found.iter().all(|name| !name.starts_with('.')));
            found.retain(|name| !name.starts_with('.'));
            // The index is written last: if it is there, every shard is.
            let is_part = found.is_empty() || signal == Signal::SIGKILL && found.last() != parts.last();
            assert!(found == parts || exists && !success && is_part, "{signal} after {delay:?}: {found:?}");
            for part in &found {
                let (a, b) = (scene.path("new").join(part), scene.path("parts").join(part));
                assert!(std::fs::read(a).unwrap() == std::fs::read(b).unwrap(), "{signal} after {delay:?}");
            }
            std::fs::remove_dir_all(scene.path("new")).unwrap();
        } else {
            assert!(!success || !sharded, "{signal} after {delay:?}");
        }
        for name in listed(scene.dir.path()).iter().filter(|name| name.starts_with('.')) {
            // Only SIGKILL may leave temporary files, which their suffix marks.
            assert!(signal == Signal::SIGKILL && name.ends_with(".weightfs-tmp"), "{signal} {name}");
            let path = scene.path(name);
            if path.is_dir() { std::fs::remove_dir_all(path).unwrap() } else { std::fs::remove_file(path).unwrap() }
        }
        if success {
            done += 1;
            delay = delay.mul_f64(0.6);
        } else {
            stopped += 1;
        }
        delay = delay.mul_f64(1.15) + Duration::from_micros(300);
    }
}

/// Makes a command sync slowly: each call of fsync(2) takes 0.3 seconds longer.
fn with_slow_sync(scene: &Scene, command: &str) -> String {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/slow.c");
    let library = scene.path("slow.so");
    run_ok("cc", ["-shared".as_ref(), "-fPIC".as_ref(), "-o".as_ref(), library.as_os_str(), source.as_os_str()]);
    format!("LD_PRELOAD=$PWD/slow.so {command}")
}

#[test]
fn progress_of_sharded_export_is_of_the_whole_and_shows_syncing() {
    let scene = Scene::new();
    scene.sample();
    scene.ok("mkdir dir && cp sample.safetensors dir/a.safetensors && cp sample.safetensors dir/b.safetensors");
    for (line, files) in [
        ("export --shard-size 1MB sample.safetensors parts", "parts/*.safetensors"),
        ("export dir several", "several/*.safetensors"),
    ] {
        let line = with_slow_sync(&scene, &format!("weightfs {line}"));
        let shown = scene.ok(&format!("TERM=xterm script -qec 'stty cols 120 && {line}' /dev/null </dev/null"));
        let sizes = scene.ok(&format!("stat -c %s {files}"));
        let whole: u64 = sizes.lines().map(|size| size.parse::<u64>().unwrap()).sum();
        let whole = indicatif::DecimalBytes(whole).to_string();
        let totals: BTreeSet<&str> = shown.split(" of ").skip(1).filter_map(|part| part.split(',').next()).collect();
        assert_eq!(totals, [&whole[..]].into(), "{shown:?}");
        assert!(shown.contains("syncing "), "{shown:?}");
    }
}

#[test]
fn leftover_of_killed_export_is_removed_by_the_next() {
    let scene = Scene::new();
    scene.sample();
    for exists in [false, true] {
        if exists {
            scene.mkdir("parts");
        }
        let line = with_slow_sync(&scene, "exec weightfs export --force --shard-size 1MB sample.safetensors parts");
        let mut child = scene.command("sh").args(["-c", &line]).spawn().unwrap();
        let leftovers = "find . -path '*/.parts.*.weightfs-tmp/*1-of-*'";
        crate::support::wait_until("the first shard is written", || !scene.ok(leftovers).is_empty());
        child.kill().unwrap();
        child.wait().unwrap();
        let output = scene.sh("weightfs export --force --shard-size 1MB sample.safetensors parts");
        assert!(output.code == 0 && output.err.lines().count() == 1, "{exists}: {output:?}");
        assert!(output.err.starts_with("weightfs: ") && output.err.contains("/.parts."), "{exists}: {output:?}");
        assert!(output.err.ends_with(".weightfs-tmp: removed; an interrupted export had left it behind\n"));
        assert_eq!(scene.ok("find . -name '.*.weightfs-tmp'; ls -A parts | wc -l; rm -r parts"), "4\n");
    }
}

#[test]
fn hundred_thousand_tensors_are_exported() {
    let scene = Scene::new();
    let count = 100_000;
    let entry = |at: usize| {
        format!("\"model.layers.{at}.w\":{{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[{at},{}]}}", at + 1)
    };
    let header = format!("{{{}}}", (0..count).map(entry).collect::<Vec<_>>().join(","));
    scene.raw("many.safetensors", header.as_bytes(), &pattern(count));
    scene.ok(
        "weightfs export --force many.safetensors out && weightfs export --force --only '*7.w' --shard-size 4KB many.safetensors parts",
    );
    let index = std::fs::read(scene.path("parts/model.safetensors.index.json")).unwrap();
    let index: serde_json::Value = serde_json::from_slice(&index).unwrap();
    let map = index["weight_map"].as_object().unwrap();
    let files: BTreeSet<&str> = map.values().map(|file| file.as_str().unwrap()).collect();
    assert_eq!((map.len(), files.len()), (count / 10, 3));
    assert!(scene.ok("weightfs diff --data many.safetensors out").contains("100,000 unchanged"));
    let output = scene.sh("weightfs diff --data parts many.safetensors");
    assert!(
        output.code == 1 && output.out.contains("90,000 added") && output.out.contains("0 different, 10,000 equal")
    );
}

#[test]
fn directory_of_models_is_exported_as_mounted() {
    let scene = Scene::new();
    scene.sample();
    scene.ok("mkdir -p all/sub/deep && cp sample.safetensors all/one.safetensors && cp sample.safetensors all/sub/deep/two.safetensors");
    scene.model("all/sub/other.safetensors", &[("t", Dtype::U8, &[3], vec![1, 2, 3])], &[]);
    scene.ok("echo text >all/readme.txt && weightfs export --force all out && weightfs export --force sample.safetensors keep");
    let files = "find out -type f | sort; cmp out/one.safetensors keep; cmp out/sub/deep/two.safetensors keep";
    assert_eq!(scene.ok(files), "out/one.safetensors\nout/sub/deep/two.safetensors\nout/sub/other.safetensors\n");
    scene.ok("weightfs diff --data all out && weightfs export --force all --only '*.embed.*' --shard-size 1MB some");
    assert_eq!(
        scene.ok("find some -type f | sort"),
        "some/one/model.safetensors\nsome/sub/deep/two/model.safetensors\n"
    );
    // One broken model makes the export fail, unless --lenient is given.
    scene.ok("echo text >all/sub/broken.safetensors");
    let output = scene.sh("weightfs export --force all new");
    assert!(output.code == 1 && output.err.contains("all/sub/broken.safetensors: "), "{output:?}");
    assert_eq!(scene.ok("ls -A"), "all\nbin\nkeep\nout\nsample.safetensors\nsome\n");
    let output = scene.sh("weightfs export --force --lenient all new && diff -r out new");
    assert!(output.code == 0 && output.err.contains("all/sub/broken.safetensors: "), "{output:?}");
    // --lenient fails too if no model can be read.
    let output = scene.sh("mkdir bad && echo text >bad/a.safetensors && echo text >bad/b.safetensors && weightfs export --force --lenient bad none");
    assert!(output.code == 1 && output.err.ends_with("weightfs: bad: no model in it can be read\n"), "{output:?}");
    assert_eq!(scene.ok("ls -A"), "all\nbad\nbin\nkeep\nnew\nout\nsample.safetensors\nsome\n");
}

#[test]
fn replaced_file_is_read_by_nobody_who_cannot_read_the_source() {
    require_root!();
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
    let scene = Scene::new();
    let mode = |name: &str, mode| {
        std::fs::set_permissions(scene.path(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    scene.model("private.safetensors", &[("w", Dtype::U8, &[100], pattern(100))], &[]);
    mode("private.safetensors", 0o600);
    std::os::unix::fs::symlink("private.safetensors", scene.path("m.safetensors")).unwrap();
    for name in ["theirs.safetensors", "ours.safetensors"] {
        std::fs::write(scene.path(name), "old").unwrap();
        mode(name, 0o644);
    }
    chown(scene.path("theirs.safetensors"), Some(65534), Some(65534)).unwrap();
    let export = |to: &str| {
        let paths = [scene.path("m.safetensors"), scene.path(to)];
        Command::new(WEIGHTFS).args(["export", "--force"]).args(paths).output().unwrap()
    };
    let refused = export("theirs.safetensors");
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && message.contains("belongs to user 65534, who may not read"), "{message}");
    assert_eq!(std::fs::read(scene.path("theirs.safetensors")).unwrap(), b"old");
    assert!(export("ours.safetensors").status.success());
    assert_eq!(scene.path("ours.safetensors").metadata().unwrap().mode() & 0o777, 0o600);

    // Nothing changes if everyone may read the source.
    mode("private.safetensors", 0o644);
    assert!(export("theirs.safetensors").status.success());
    let theirs = scene.path("theirs.safetensors").metadata().unwrap();
    assert_eq!((theirs.uid(), theirs.mode() & 0o777), (65534, 0o644));
}
