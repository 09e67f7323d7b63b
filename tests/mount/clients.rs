//! Reads mounts with coreutils, jq, tar, rsync, fio and Python, and compares the results with those of the official
//! Python package `safetensors`.

use crate::support::{Mount, Scene, Tensor, pattern, python, real_model, require_fuse, require_root, run_ok};
use nix::fcntl::OFlag;
use safetensors::{Dtype, SafeTensors};
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::Barrier;

/// Root of the repository, where scripts/test installs what these tests need.
const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Selects the views of the file's own bytes. views.rs tests the derived views.
const PLAIN: &[&str] = &["--views", "header,index,metadata,tensors,tree"];

/// The real models, each with its numbers of tensors and metadata keys.
pub const REAL: [(&str, &str); 4] =
    [("silero_vad_16k", "15 0"), ("model-p2k", "26 4"), ("hadamards", "66 66"), ("all-minilm", "104 1")];

/// Defines the shell function `each`, which runs a command for every file `$f` in a fixed order. It leaves out tree/,
/// which holds hard links to the files of tensors/.
const EACH: &str = r#"each() {
    find header.json metadata tensors -type f -print0 | sort -z | while IFS= read -rd '' f; do eval "$1"; done
}
"#;

/// Scripts that must print the same in a mount as in a directory of ordinary files. Their arguments are the entries
/// that both have. `$DIRECT` is an input flag of dd: `direct` in the mount.
const SAME: &[&str] = &[
    r#"find "$@" -type f -printf '%p %s %n %m %U %G %T@\n' | sort"#,
    r#"find "$@" -type d -printf '%p %m %U %G %T@\n' | sort"#,
    r#"ls -lAR --time-style=full-iso "$@" | grep '^-' | tr -s ' '"#,
    r#"find "$@" -type f | wc -l; find "$@" -type d | wc -l; find "$@" -empty | sort"#,
    r#"find "$@" -type f -size -2 | sort; find "$@" -type f -size +100k | sort"#,
    r#"each 'echo "$f"; find tree -samefile "$f" | sort'"#,
    r#"find "$@" -type f -exec sha256sum {} + | sort"#,
    r#"each 'cat "$f"' | cksum"#,
    r#"each 'dd if="$f" bs=4097 status=none' | cksum"#,
    r#"each 'dd if="$f" bs=4097 skip=1 count=3 status=none 2>&1 || echo $?' | cksum"#,
    r#"each 'dd if="$f" bs=3001 iflag=skip_bytes,count_bytes skip=511 count=10001 status=none || echo $?' | cksum"#,
    r#"each 'dd if="$f" bs=64K iflag=$DIRECT status=none' | cksum"#,
    r#"each 'dd if="$f" bs=4097 iflag=$DIRECT,skip_bytes skip=1 count=99 status=none 2>&1 || echo $?' | cksum"#,
    r#"each 'head -c 4097 "$f"; head -c -4095 "$f"; tail -c 5001 "$f"; tail -c +130000 "$f"' | cksum"#,
    r#"each 'hexdump -C -s 3 -n 9999 "$f"; od -An -v -tx2 -N 4099 "$f"' | cksum"#,
    r#"each 'cmp "$f" "$PLAIN/$f"'; for dir in metadata tensors tree; do diff -r "$dir" "$PLAIN/$dir"; done; echo same"#,
];

/// Ways to copy a whole mount.
const COPIES: &[&str] = &[
    r#"cp -a "$MOUNT" copy"#,
    r#"cp -a --sparse=always "$MOUNT" copy"#,
    r#"rsync -aH "$MOUNT/" copy"#,
    r#"mkdir copy; tar --format=posix -cf - -C "$MOUNT" . | tar -xpf - -C copy"#,
    r#"mkdir copy; tar --format=posix -cSf - -C "$MOUNT" . | tar -xpf - -C copy"#,
];

/// Checks `index.json`, `header.json` and `metadata.json` with jq and grep, and each tensor file with cmp.
const JSON: &str = r#"
jq -e --arg source "$SOURCE" '
    keys_unsorted == ["source", "format", "tensors", "skipped"]
    and .source == $source and .format == "safetensors" and .skipped == []
    and all(.tensors[]; keys_unsorted == ["name", "dtype", "shape", "nbytes", "file", "shard", "offset"])
' index.json
jq -e --slurpfile index index.json '
    del(.__metadata__) | to_entries
    | map({name: .key, dtype: .value.dtype, shape: .value.shape, nbytes: (.value.data_offsets | .[1] - .[0])})
    | sort == ($index[0].tensors | map({name, dtype, shape, nbytes}) | sort)
' header.json
jq -e --slurpfile header header.json '. == ($header[0].__metadata__ // {})' metadata.json
grep '"offset"' index.json | sed 's/,$//' | jq -se --slurpfile index index.json '. == $index[0].tensors'
jq -r '.tensors[] | .offset, .nbytes, .file' index.json > "$OUT"
while read -r offset && read -r nbytes && IFS= read -r file; do
    cmp -i "$offset:0" -n "$nbytes" "$SOURCE" "$file"
    [ "$(stat -c %s "$file")" = "$nbytes" ]
done < "$OUT"
"#;

/// Runs a script in `dir`. `$PYTHON` is the interpreter with the official package, `$OFFICIAL` is `official.py`.
fn try_bash(dir: &Path, env: &[(&str, &Path)], script: &str) -> Output {
    let output = Command::new("bash")
        .args(["-euo", "pipefail", "-c", &format!("{EACH}{script}")])
        .args(["bash", "header.json", "metadata", "tensors", "tree"])
        .current_dir(dir)
        .env("LC_ALL", "C.UTF-8")
        .env("PYTHON", python())
        .env("OFFICIAL", Path::new(ROOT).join("tests/mount/official.py"))
        .envs(env.iter().copied())
        .output()
        .unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("command not found"), "{stderr}: run scripts/test to install it");
    output
}

/// Runs a script that must succeed. Returns its standard output.
fn bash(dir: &Path, env: &[(&str, &Path)], script: &str) -> String {
    let output = try_bash(dir, env, script);
    let [stdout, stderr] = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned());
    assert!(output.status.success(), "{}, {}: {script}\n{stdout}{stderr}", dir.display(), output.status);
    stdout
}

/// A model with one tensor of each dtype of the official package.
fn every_dtype(scene: &Scene) -> PathBuf {
    let names: Vec<&str> =
        "BOOL F4 F6_E2M3 F6_E3M2 U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 \
                            I32 U32 F32 C64 F64 I64 U64"
            .split(' ')
            .collect();
    let tensors = names.iter().map(|name| {
        let dtype: Dtype = serde_json::from_value((*name).into()).unwrap();
        let bytes = if dtype == Dtype::BOOL { vec![1; 24] } else { pattern(24 * dtype.bitsize() / 8) };
        (*name, dtype, &[3, 8][..], bytes)
    });
    scene.model("dtypes.safetensors", &tensors.collect::<Vec<_>>(), &[])
}

/// Names that are unsafe in a file system, a shell or a terminal, each with the file name that it must get.
fn hostile_names() -> Vec<(String, String)> {
    let long = |len, digits: &str| ("x".repeat(len), format!("{}%~{digits}", "x".repeat(222)));
    [
        ("", "%"),
        (".", "%2E"),
        ("..", "%2E%2E"),
        ("...", "..."),
        ("../../etc/passwd", "..%2F..%2Fetc%2Fpasswd"),
        ("/absolute", "%2Fabsolute"),
        ("a", "a"),
        ("a.b", "a.b"),
        ("a.", "a."),
        (".a", ".a"),
        ("a..b", "a..b"),
        ("A", "A"),
        ("a.B", "a.B"),
        ("a%", "a%25"),
        ("a%2Fb", "a%252Fb"),
        ("a/b", "a%2Fb"),
        ("new\nline", "new%0Aline"),
        ("tab\tesc\u{1b}[31m del\u{7f} nul\0", "tab%09esc%1B[31m del%7F nul%00"),
        (" -rf *?'\"\\$(x)`x` ", " -rf *?'\"\\$(x)`x` "),
        ("--help", "--help"),
        ("\u{202e}重み🦀\u{85}\u{feff}", "\u{202e}重み🦀\u{85}\u{feff}"),
        ("\u{e9}", "\u{e9}"),
        ("e\u{301}", "e\u{301}"),
    ]
    .map(|(name, file)| (name.to_owned(), file.to_owned()))
    .into_iter()
    // The digits are the beginning of the name's SHA-256.
    .chain([long(65_536, "1f8745f0d2d1387e"), long(65_535, "09ab7495d3e61a76")])
    .collect()
}

/// A model in which every tensor and metadata key has a hostile name. The content of each is its file name.
fn hostile(scene: &Scene) -> PathBuf {
    let names = hostile_names();
    let shapes: Vec<[usize; 1]> = names.iter().map(|(_, file)| [file.len()]).collect();
    let tensors = names.iter().zip(&shapes);
    let tensors = tensors.map(|((name, file), shape)| (&name[..], Dtype::U8, &shape[..], file.clone().into_bytes()));
    let metadata: Vec<_> = names.iter().map(|(name, file)| (&name[..], &file[..])).collect();
    scene.model("hostile.safetensors", &tensors.collect::<Vec<_>>(), &metadata)
}

/// Calls `test` for each model, generated or real, with its numbers of tensors and metadata keys.
fn each_model(test: impl Fn(&Scene, &Path, &Mount, &str)) {
    let counts = format!("{0} {0}", hostile_names().len());
    type Make = Box<dyn Fn(&Scene) -> PathBuf>;
    let mut models: Vec<(Make, &str)> =
        vec![(Box::new(Scene::sample), "8 3"), (Box::new(every_dtype), "22 0"), (Box::new(hostile), &counts)];
    for (name, counts) in REAL {
        models.push((Box::new(|_| real_model(name)), counts));
    }
    for (make, counts) in models {
        let scene = Scene::new();
        let source = make(&scene);
        let mount = scene.mount(&source, PLAIN);
        test(&scene, &source, &mount, counts);
        assert_eq!(mount.log(), "");
    }
}

#[test]
fn mount_matches_official_python_package() {
    require_fuse!();
    each_model(|scene, source, mount, counts| {
        let env = [("SOURCE", source), ("MOUNT", &mount.point)];
        let printed = bash(scene.dir.path(), &env, r#"exec "$PYTHON" "$OFFICIAL" check "$SOURCE" "$MOUNT""#);
        assert_eq!(printed.trim(), counts);
    });
}

#[test]
fn coreutils_output_matches_ordinary_files() {
    require_root!();
    each_model(|scene, source, mount, _| {
        let plain = scene.mkdir("plain");
        bash(&plain, &[("SOURCE", source)], r#"exec "$PYTHON" "$OFFICIAL" extract "$SOURCE" ."#);
        // Two scripts read every byte of the models with most files. What the others show depends on the kinds of files
        // only, and each starts a process for every file.
        let is_large = ["all-minilm", "hadamards"].iter().any(|name| source.ends_with(format!("{name}.safetensors")));
        let scripts =
            SAME.iter().filter(|script| !is_large || script.contains("sha256sum") || script.contains("diff -r"));
        for script in scripts {
            let print = |dir: &Path, flag: &str| bash(dir, &[("PLAIN", &plain), ("DIRECT", Path::new(flag))], script);
            let printed = print(&mount.point, "direct");
            assert!(!printed.is_empty(), "{script}");
            assert!(printed == print(&plain, "fullblock"), "{script}\n{printed}");
        }
    });
}

#[test]
fn copies_are_equal_and_keep_hard_links() {
    require_fuse!();
    each_model(|scene, _, mount, _| {
        for copy in COPIES {
            let script = format!(
                "{copy}; diff -r \"$MOUNT\" copy; rsync -aHnci --delete \"$MOUNT/\" copy; chmod -R u+w copy; rm -rf copy"
            );
            assert_eq!(bash(scene.dir.path(), &[("MOUNT", &mount.point)], &script), "", "{copy}");
        }
    });
}

#[test]
fn jq_and_grep_find_every_tensor() {
    require_fuse!();
    each_model(|scene, source, mount, _| {
        bash(&mount.point, &[("SOURCE", source), ("OUT", &scene.path("out"))], JSON);
    });
    let scene = Scene::new();
    let mount = scene.mount(&scene.sample(), &[]);
    let lines = bash(&mount.point, &[], "grep -F '\"name\": \"model.layers.10' index.json | cut -d , -f 1,2");
    assert_eq!(lines.lines().count(), 2, "{lines}");
}

#[test]
fn mlx_loads_a_model_of_a_mount() {
    require_fuse!();
    let scene = Scene::new();
    let source = real_model("all-minilm");
    let mount = scene.mount(&source, &[]);
    let script = "
import sys, mlx.core as mx, numpy
found, expected = map(mx.load, sys.argv[1:])
assert found.keys() == expected.keys() and len(found) > 100
assert all(numpy.array_equal(numpy.array(found[name]), numpy.array(expected[name])) for name in found)
";
    let found = mount.path("export/all-minilm-whole.safetensors");
    run_ok(python().to_str().unwrap(), ["-c", script, found.to_str().unwrap(), source.to_str().unwrap()]);
}

/// Programs that compare trees decide by size and time, so the second run of a copy reads nothing.
#[test]
fn programs_that_walk_a_mount_read_nothing_for_nothing() {
    require_fuse!();
    let scene = Scene::new();
    let model = scene.mkdir("m").join("model.safetensors");
    std::fs::copy(real_model("silero_vad_16k"), &model).unwrap();
    std::fs::write(model.with_file_name("config.json"), r#"{"model_type": "llama"}"#).unwrap();
    let served = r#"getfattr --only-values -n user.weightfs.served ."#;
    let walk = "du -s; du -sb; ls -lR; find -newer header.json -size +1k; find -name '*.bin' -o -perm /222; stat -f .";
    let archive = r#"tar -cf "$SCENE/tar" --no-check-device -g "$SCENE/snapshot" export"#;
    let copies = [
        ("rsync", r#"rsync -aH "$SCENE/$1/" "$SCENE/rsync""#, r#"rsync -aHi "$SCENE/$1/" "$SCENE/rsync""#),
        ("cp", r#"cp -a "$SCENE/$1/export" "$SCENE/cp""#, r#"cp -au "$SCENE/$1/export/." "$SCENE/cp""#),
        ("tar", archive, archive),
    ];
    for (name, first, second) in copies {
        let copy = |mount: &Mount, script: &str| {
            let script = script.replace("$SCENE/$1", mount.point.to_str().unwrap());
            bash(&mount.point, &[("SCENE", &scene.path("."))], &script)
        };
        let mount = scene.mount(&scene.path("m"), &[]);
        copy(&mount, walk);
        assert_eq!(copy(&mount, served), "0", "{name}");
        copy(&mount, first);
        let (read, total) = (copy(&mount, served), model.metadata().unwrap().len());
        assert!(read.parse::<u64>().unwrap() > total, "{name}: {read}");
        drop(mount);
        let mount = scene.mount(&scene.path("m"), &[]);
        let said = copy(&mount, second);
        assert_eq!((said.as_str(), copy(&mount, served).as_str()), ("", "0"), "{name}");
    }
}

/// Programs that stay in one file system do not enter mounts.
#[test]
fn programs_that_stay_in_one_file_system_leave_a_mount_out() {
    require_fuse!();
    let scene = Scene::new();
    let mount = scene.mount(&scene.sample(), &[]);
    let name = mount.point.file_name().unwrap().to_str().unwrap();
    let other = Scene::new();
    let copy = other.path("copy");
    let copy = copy.display();
    for (script, expected) in [
        (format!("find . -xdev | grep {name}$"), format!("./{name}\n")),
        (format!("tar -c --one-file-system . 2>/dev/null | tar -t | grep {name}/"), format!("./{name}/\n")),
        (format!("cp -ax . {copy} && ls {copy}/{name} && rm -r {copy}"), String::new()),
        (format!("rsync -ax ./ {copy} && ls {copy}/{name}"), String::new()),
    ] {
        assert_eq!(scene.ok(&script), expected, "{script}");
    }
}

#[test]
fn du_counts_data_once_and_df_reports_source_size() {
    require_fuse!();
    each_model(|_, source, mount, _| {
        let whole = std::fs::read(source).unwrap();
        let tensors = SafeTensors::deserialize(&whole).unwrap().tensors();
        let data: usize = tensors.iter().map(|(_, tensor)| tensor.data().len().div_ceil(512)).sum();
        let du = |script: &str| -> Vec<usize> {
            bash(&mount.point, &[], script).lines().map(|line| line.trim().parse().unwrap()).collect()
        };
        assert_eq!(du("du -s -B512 tensors tree | cut -f 1"), [data, 0]);
        assert_eq!(du("du -s -B512 tree tensors | cut -f 1"), [data, 0]);
        assert_eq!(du("du -sl -B512 tree tensors | cut -f 1"), [data, data]);
        let all = du("du -s -B512 | cut -f 1; find -type f | wc -l");
        assert!((data..=data + all[1]).contains(&all[0]), "{all:?}");
        let size = whole.len().div_ceil(512);
        assert_eq!(du("df -B512 --output=size,used,avail . | tail -n 1 | xargs -n 1"), [size, size, 0]);
        assert_eq!(du("stat -f -c '%b %f %a %S %l' . | xargs -n 1"), [size, 0, 0, 512, 255]);
        // Files have a larger preferred block size (st_blksize) than directories.
        assert_eq!(du("stat -c %o header.json tensors"), [1 << 20, 128 << 10]);
        assert!(bash(&mount.point, &[], "findmnt -fno OPTIONS -T .").starts_with("ro,"));
    });
}

#[test]
fn hexdump_od_and_getfattr_show_values_and_attributes() {
    require_fuse!();
    let scene = Scene::new();
    let values = [1.0f32, -2.0, 0.5, f32::NAN, f32::INFINITY, 1e-3];
    let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
    let source = scene.model("known.safetensors", &[("known", Dtype::F32, &[2, 3], bytes)], &[]);
    let offset = std::fs::metadata(&source).unwrap().len() - 24;
    let mount = scene.mount(&source, &[]);
    let attributes = format!(
        "# file: known\nuser.weightfs.dtype=\"F32\"\nuser.weightfs.name=\"known\"\nuser.weightfs.nbytes=\"24\"\n\
         user.weightfs.offset=\"{offset}\"\nuser.weightfs.shape=\"[2, 3]\"\n\
         user.weightfs.shard=\"known.safetensors\"\n\n"
    );
    let hexdump = "00000000  00 00 80 3f 00 00 00 c0  00 00 00 3f 00 00 c0 7f  |...?.......?....|\n\
                   00000010  00 00 80 7f 6f 12 83 3a                           |....o..:|\n00000018\n";
    let cases = [
        ("hexdump -C known", hexdump),
        ("od -An -tf4 known | xargs", "1 -2 0.5 nan inf 0.001\n"),
        ("od -Ad -tx4 -j 20 known", "0000020 3a83126f\n0000024\n"),
        ("getfattr -d known", &attributes),
        ("getfattr --only-values -n user.weightfs.shape known", "[2, 3]"),
        ("getfattr -d ../header.json ../index.json ..", ""),
    ];
    for (script, expected) in cases {
        assert_eq!(bash(&mount.path("tensors"), &[], script), expected, "{script}");
    }
}

/// fio writes blocks with checksums and offsets to an ordinary file, then reads and verifies them in a mounted tensor.
#[test]
fn fio_verifies_its_blocks_in_mounted_tensor() {
    require_fuse!();
    let scene = Scene::new();
    let layout = "fio --name=layout --filename=plain --size=24m --rw=write --bs=4k --verify=crc32c --do_verify=0";
    bash(scene.dir.path(), &[], layout);
    let mut blocks = std::fs::read(scene.path("plain")).unwrap();
    assert_eq!(blocks.len(), 24 << 20);
    let mount = |name: &str, blocks: &[u8]| {
        // The five bytes of `a` put `blocks` at an odd offset in the file.
        let tensors = [("a", Dtype::U8, &[5][..], vec![0; 5]), ("blocks", Dtype::U8, &[24 << 20], blocks.to_vec())];
        scene.mount(&scene.model(name, &tensors, &[]), &[])
    };
    let intact = mount("intact.safetensors", &blocks);
    blocks[(13 << 20) + 777] ^= 1;
    let corrupt = mount("corrupt.safetensors", &blocks);
    blocks[(13 << 20) + 777] ^= 1;
    // Every block is intact, but two are swapped.
    let (a, b) = blocks[8192..16384].split_at_mut(4096);
    a.swap_with_slice(b);
    let swapped = mount("swapped.safetensors", &blocks);
    let cases = [
        ("4k", "psync --direct=0 --numjobs=1"),
        ("12k", "psync --direct=0 --numjobs=4"),
        ("64k", "libaio --iodepth=16 --direct=1 --numjobs=1"),
        ("1m", "psync --direct=1 --numjobs=2"),
        ("8k", "mmap --direct=0 --numjobs=1"),
    ];
    for (block_size, engine) in cases {
        let verify = format!(
            "fio --readonly --name=verify --filename=tensors/blocks --size=24m --rw=randread --bs={block_size} \
             --ioengine={engine} --verify=crc32c --verify_interval=4k --verify_fatal=1 --verify_state_save=0 \
             --group_reporting --output-format=json"
        );
        let jobs = engine.rsplit('=').next().unwrap();
        let read = bash(&intact.point, &[], &format!("{verify} | jq '.jobs[0].read.io_bytes / (24 * 1024 * 1024)'"));
        assert_eq!(read.trim(), jobs, "{verify}");
        for (mount, error) in [(&corrupt, "verify failed at file"), (&swapped, "bad header offset")] {
            let output = try_bash(&mount.point, &[], &verify);
            let stderr = String::from_utf8_lossy(&output.stderr);
            assert!(!output.status.success() && stderr.contains(error), "{verify}: {stderr}");
        }
    }
}

#[test]
fn sixteen_readers_with_different_block_sizes_read_every_byte() {
    require_fuse!();
    let scene = Scene::new();
    let source = real_model("all-minilm");
    let whole = std::fs::read(&source).unwrap();
    let tensors = SafeTensors::deserialize(&whole).unwrap().tensors();
    let mount = scene.mount(&source, &[]);
    let sizes =
        [511, 4096, 4097, 12_345, 65_536, 131_071, 131_072, 131_073, 1_000_003, 1 << 20, (1 << 20) + 1, 5 << 20];
    let direct = [4096, 99_999, 1 << 17, 3 << 20];
    let readers = sizes.map(|size| (size, 0)).into_iter().chain(direct.map(|size| (size, OFlag::O_DIRECT.bits())));
    let start = Barrier::new(sizes.len() + direct.len());
    std::thread::scope(|scope| {
        for (number, (size, flags)) in readers.enumerate() {
            let (tensors, mount, start) = (&tensors, &mount, &start);
            scope.spawn(move || {
                let mut block = vec![0; size];
                start.wait();
                for at in 0..tensors.len() {
                    // Readers begin at different tensors, and every second one goes backwards.
                    let at = (at + number / 2 * 7) % tensors.len();
                    let (name, tensor) = &tensors[if number % 2 == 0 { at } else { tensors.len() - 1 - at }];
                    let path = mount.path(format!("tensors/{name}"));
                    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).unwrap();
                    for (index, expected) in tensor.data().chunks(size).enumerate() {
                        let read = file.read_at(&mut block, (index * size) as u64).unwrap();
                        assert!(block[..read] == *expected, "{name}: block {index} of {size} bytes");
                    }
                    assert_eq!(file.read_at(&mut block, tensor.data().len() as u64).unwrap(), 0);
                }
            });
        }
    });
    assert_eq!(mount.log(), "");
}

#[test]
fn remount_keeps_inode_numbers_and_order() {
    require_fuse!();
    each_model(|scene, source, mount, _| {
        let list =
            |mount: &Mount| bash(&mount.point, &[], "cksum *.json; ls -aRUi; find -printf '%i %y %n %s %b %P\\n'");
        let first = list(mount);
        for _ in 0..2 {
            assert!(list(&scene.mount(source, PLAIN)) == first);
        }
        assert!(list(mount) == first);
    });
}

#[test]
fn layers_are_listed_in_natural_order() {
    require_fuse!();
    let scene = Scene::new();
    let names = [10, 2, 101, 1, 0, 11, 9, 100].map(|layer| format!("model.layers.{layer}.w"));
    let tensors: Vec<Tensor> = names.iter().map(|name| (&name[..], Dtype::U8, &[1][..], vec![0])).collect();
    let mount = scene.mount(&scene.model("layers.safetensors", &tensors, &[]), &[]);
    assert_eq!(bash(&mount.path("tree/model/layers"), &[], "ls -U | xargs"), "0 1 2 9 10 11 100 101\n");
    let mount = scene.mount(&real_model("all-minilm"), &[]);
    assert_eq!(bash(&mount.path("tree/encoder/layer"), &[], "ls -U | xargs"), "0 1 2 3 4 5\n");
}

#[test]
fn find_lists_hostile_names_as_encoded_file_names() {
    require_fuse!();
    let scene = Scene::new();
    let mount = scene.mount(&hostile(&scene), &[]);
    let mut expected: Vec<String> = hostile_names().into_iter().map(|(_, file)| file).collect();
    expected.sort();
    for dir in ["tensors", "metadata"] {
        let found = bash(&mount.path(dir), &[], "find -mindepth 1 -printf '%P\\0'");
        let mut found: Vec<&str> = found.split_terminator('\0').collect();
        found.sort_unstable();
        assert_eq!(found, expected, "{dir}");
        // The content of each file is its own name.
        let checked =
            r#"find -type f -print0 | while IFS= read -rd '' f; do [ "./$(cat "$f")" = "$f" ]; echo; done | wc -l"#;
        assert_eq!(bash(&mount.path(dir), &[], checked).trim(), expected.len().to_string());
    }
}
