//! Faults under a mount: sources that are cut, rewritten or replaced, readers that are killed, and attempts to write.

use crate::gate::{FILE, Gate};
use crate::support::{Mount, Scene, pattern, python, require_fuse, require_root, wait_until};
use nix::errno::Errno;
use nix::libc::O_DIRECT;
use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;

const MIB: usize = 1 << 20;
const TENSORS: usize = 4;
/// Offset of the data: page-aligned, so that page boundaries of the file are page boundaries of the tensors.
const DATA: usize = 4096;

/// A model of [`TENSORS`] tensors of 1 MiB, with an old modification time that every write changes.
fn model(scene: &Scene) -> PathBuf {
    let path = sparse(scene, TENSORS, MIB);
    File::options().write(true).open(&path).unwrap().write_all_at(&pattern(TENSORS * MIB), DATA as u64).unwrap();
    scene.ok("touch -d 2001-02-03 model.safetensors && cp -p model.safetensors same");
    scene.ok(r"(head -c 4096 same && tail -c +4097 same | tr '\0-\376' '\1-\377') >other");
    path
}

/// A model `model.safetensors` of tensors `t0`, `t1`... of `len` zeros each.
fn sparse(scene: &Scene, tensors: usize, len: usize) -> PathBuf {
    let tensor = |at: usize| {
        format!(r#""t{at}":{{"dtype":"U8","shape":[{len}],"data_offsets":[{},{}]}}"#, at * len, (at + 1) * len)
    };
    let header = format!("{{{}}}", (0..tensors).map(tensor).collect::<Vec<_>>().join(","));
    let path = scene.raw("model.safetensors", format!("{header:<0$}", DATA - 8).as_bytes(), &[]);
    File::options().write(true).open(&path).unwrap().set_len((DATA + tensors * len) as u64).unwrap();
    path
}

/// Reads one page of a file.
fn page(path: impl AsRef<Path>, offset: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0; 4096];
    let file = File::open(path).unwrap();
    let read = file.read_at(&mut bytes, offset as u64).map_err(|error| Errno::from_raw(error.raw_os_error().unwrap()));
    read.map(|len| bytes[..len].to_vec())
}

/// Mounts `source` and reads the first page of `t0` into the page cache.
fn mount_and_cache(scene: &Scene, source: &Path) -> (Mount, Vec<u8>) {
    // After each reply the daemon checks the source again, and drops the page from the cache if the source has changed.
    // A single thread does this before it answers the next request, which is `list`.
    let mount = scene.mount(source, &["--threads=1"]);
    let seen = page(mount.path("tensors/t0"), 0).unwrap();
    assert_eq!(mount.list("metadata"), [""; 0]);
    (mount, seen)
}

/// Checks that everything that needs no byte of the source still works.
fn assert_alive(mount: &mut Mount, index: &[u8]) {
    assert!(mount.child.try_wait().unwrap().is_none());
    assert_eq!(mount.list("tensors"), ["t0", "t1", "t2", "t3"]);
    assert_eq!(std::fs::metadata(mount.path("tree/t3")).unwrap().len(), MIB as u64);
    assert!(mount.read("index.json") == index);
    assert_eq!(mount.read("metadata.json"), b"{}\n");
}

#[test]
fn truncated_source_gives_errors_and_mount_stays_alive() {
    require_fuse!();
    use Errno::{EIO, ESTALE};
    // The new size of the file, and the errors for header.json and the first and last pages of t1, t2 and t3.
    let table = [
        (0, EIO, [EIO; 6]),
        (7, EIO, [EIO; 6]),
        (DATA - 1, EIO, [EIO; 6]),
        (DATA, ESTALE, [EIO; 6]),
        (DATA + MIB, ESTALE, [EIO; 6]),
        (DATA + MIB * 3 / 2, ESTALE, [ESTALE, EIO, EIO, EIO, EIO, EIO]),
        (DATA + MIB * 3 - 4095, ESTALE, [ESTALE, ESTALE, ESTALE, EIO, EIO, EIO]),
        (DATA + MIB * 4 - 1, ESTALE, [ESTALE, ESTALE, ESTALE, ESTALE, ESTALE, EIO]),
    ];
    for (end, header, expected) in table {
        let scene = Scene::new();
        let source = model(&scene);
        let (mut mount, seen) = mount_and_cache(&scene, &source);
        let index = scene.mount(&source, &[]).read("index.json");
        File::options().write(true).open(&source).unwrap().set_len(end as u64).unwrap();
        // The last page is read first: it is gone in every case, and only the first failure is logged.
        let pages = [(3, MIB - 4096), (3, 0), (2, MIB - 4096), (2, 0), (1, MIB - 4096), (1, 0)];
        let mut found =
            pages.map(|(tensor, offset)| page(mount.path(format!("tensors/t{tensor}")), offset).unwrap_err());
        found.reverse();
        assert_eq!((found, page(mount.path("header.json"), 0)), (expected, Err(header)), "{end}");
        for view in
            ["tree/t3", "npy/t3.npy", "f32/t3.f32", "safetensors/t3.safetensors", "export/model-whole.safetensors"]
        {
            let last = std::fs::metadata(mount.path(view)).unwrap().len() as usize - 1;
            assert_eq!(page(mount.path(view), last / 4096 * 4096), Err(EIO), "{view} {end}");
        }
        // The page in the page cache is still right.
        assert!(page(mount.path("tensors/t0"), 0).is_ok_and(|bytes| bytes == seen));
        assert_alive(&mut mount, &index);
        let (log, len) = (mount.log(), DATA + TENSORS * MIB);
        let beginning =
            format!("weightfs: {}: truncated from {len} to {end} bytes since it was opened; bytes ", source.display());
        assert!(log.starts_with(&beginning) && log.lines().count() == 1, "{log}");
    }
}

#[test]
fn modified_source_gives_estale() {
    require_fuse!();
    let writers = [
        "printf x | dd of=model.safetensors bs=1 seek=3000000 conv=notrunc status=none",
        "cat same >model.safetensors",
        "cp other model.safetensors",
        "echo more >>model.safetensors",
        "truncate -s +1M model.safetensors",
        "touch model.safetensors",
        "touch -d 1999-01-01 model.safetensors",
    ];
    for line in writers {
        let scene = Scene::new();
        let source = model(&scene);
        let (mut mount, seen) = mount_and_cache(&scene, &source);
        let index = scene.mount(&source, &[]).read("index.json");
        scene.ok(line);
        thread::scope(|scope| {
            for reader in 0..4 {
                let mount = &mount;
                scope.spawn(move || {
                    for at in 0..25 {
                        let found = page(mount.path(format!("tensors/t{}", 1 + at % 3)), (at + reader) * 8192);
                        assert_eq!(found, Err(Errno::ESTALE), "{line}");
                    }
                });
            }
        });
        let views = [
            "tree/t1",
            "npy/t1.npy",
            "f32/t1.f32",
            "safetensors/t1.safetensors",
            "export/model-whole.safetensors",
            "header.json",
        ];
        for view in views {
            // Not the first page, which may be a generated header.
            let middle = std::fs::metadata(mount.path(view)).unwrap().len() as usize / 2;
            assert_eq!(page(mount.path(view), middle / 4096 * 4096), Err(Errno::ESTALE), "{view} {line}");
        }
        assert!(page(mount.path("tensors/t0"), 0).is_ok_and(|bytes| bytes == seen), "{line}");
        assert_alive(&mut mount, &index);
        let message = format!("weightfs: {}: written to since it was opened; mount it again\n", source.display());
        assert_eq!(mount.log(), message, "{line}");
    }
}

#[test]
fn background_daemon_logs_modified_source_once() {
    require_fuse!();
    let scene = Scene::new();
    model(&scene);
    scene.ok("mkdir mnt && weightfs model.safetensors mnt --log-file log && touch model.safetensors");
    let output = scene.sh("cat mnt/header.json; cat mnt/tensors/*; ls mnt/tensors");
    assert_eq!(
        (&output.out[..], output.err.matches("Stale file handle").count()),
        ("t0\nt1\nt2\nt3\n", 5),
        "{output:?}"
    );
    let log = scene.ok("cat log");
    assert!(log.ends_with(": written to since it was opened; mount it again\n") && log.lines().count() == 1, "{log}");
}

#[test]
fn changes_that_keep_the_bytes_do_not_affect_mount() {
    require_root!();
    let lines = [
        "chmod 000 model.safetensors",
        "chown 65534:65534 model.safetensors",
        "ln model.safetensors link",
        "setfattr -n user.seen -v 1 model.safetensors",
        "touch -a model.safetensors",
        ": >>model.safetensors",
        "cat model.safetensors >/dev/null",
        "mv model.safetensors elsewhere",
        "mv same model.safetensors",
        "cp other new && mv new model.safetensors",
        "cp --remove-destination other model.safetensors",
        "rm model.safetensors",
        "rm model.safetensors && mkfifo model.safetensors",
    ];
    let whole = pattern(TENSORS * MIB);
    for line in lines {
        let scene = Scene::new();
        let source = model(&scene);
        let mount = scene.mount(&source, &[]);
        scene.ok(line);
        for (at, expected) in whole.chunks(MIB).enumerate() {
            assert!(mount.read(format!("tensors/t{at}")) == expected, "{line}");
        }
        assert_eq!(mount.read("header.json").len(), DATA - 8, "{line}");
        if line.contains("other") {
            // The new file can be mounted too, and each mount serves its own file.
            let new = scene.mount(&source, &[]).read("tensors/t1");
            assert!(
                new == std::fs::read(&source).unwrap()[DATA + MIB..][..MIB] && new != whole[MIB..][..MIB],
                "{line}"
            );
        }
        assert_eq!(mount.log(), "", "{line}");
    }
}

#[test]
fn truncation_during_reads_gives_errors_never_wrong_bytes() {
    require_fuse!();
    let whole = pattern(TENSORS * MIB);
    for chunk in [MIB, 256 << 10, 4096] {
        let scene = Scene::new();
        let source = model(&scene);
        let mut mount = scene.mount(&source, &[]);
        let index = scene.mount(&source, &[]).read("index.json");
        let (started, starts) = mpsc::channel();
        thread::scope(|scope| {
            for reader in 0..TENSORS {
                // O_DIRECT bypasses the page cache: each read is a request to the daemon. Reads repeat until one fails.
                let path = mount.path(format!("tensors/t{reader}"));
                let file = File::options().read(true).custom_flags(O_DIRECT).open(path).unwrap();
                let (expected, started) = (&whole[reader * MIB..][..MIB], started.clone());
                scope.spawn(move || {
                    let mut bytes = vec![0; chunk];
                    for offset in (0..MIB).step_by(chunk).cycle() {
                        match file.read_at(&mut bytes, offset as u64) {
                            Ok(len) => {
                                assert!(bytes[..len] == expected[offset..][..chunk], "t{reader} at {offset}: {len}")
                            }
                            Err(error) => {
                                let errno = Errno::from_raw(error.raw_os_error().unwrap());
                                assert!(matches!(errno, Errno::EIO | Errno::ESTALE), "{errno}");
                                return;
                            }
                        }
                        // Only the first few messages are received.
                        let _ = started.send(());
                    }
                });
            }
            for _ in 0..TENSORS {
                starts.recv().unwrap();
            }
            File::options().write(true).open(&source).unwrap().set_len((DATA + MIB) as u64).unwrap();
        });
        assert_alive(&mut mount, &index);
        assert_eq!(mount.log().lines().count(), 1);
    }
}

#[test]
fn read_during_modification_of_a_fuse_source_gives_estale() {
    require_root!();
    let scene = Scene::new();
    let model = std::fs::read(model(&scene)).unwrap();
    let point = scene.mkdir("source");
    let gate = Gate::new(&point, model);
    let mut mount = scene.mount(&point.join(FILE), &[]);
    let index = scene.mount(&point.join(FILE), &[]).read("index.json");
    let (t2, middle) = (mount.path("tensors/t2"), MIB / 2);
    gate.close((DATA + 2 * MIB) as u64);
    thread::scope(|scope| {
        let reader = scope.spawn(|| page(&t2, middle));
        gate.wait_for_read();
        gate.write(|bytes| bytes[DATA..].fill(0));
        gate.open();
        assert_eq!(reader.join().unwrap(), Err(Errno::ESTALE));
    });
    assert_eq!(page(&t2, middle), Err(Errno::ESTALE));
    assert_alive(&mut mount, &index);
    let log = format!("weightfs: {}: written to since it was opened; mount it again\n", point.join(FILE).display());
    assert_eq!(mount.log(), log);
}

#[test]
fn new_version_behind_cached_attributes_gives_estale() {
    require_root!();
    for options in [&["--threads=1"][..], &["--direct-io"]] {
        let scene = Scene::new();
        let model = std::fs::read(model(&scene)).unwrap();
        let point = scene.mkdir("source");
        let gate = Gate::caching(&point, model);
        let source = point.join(FILE);
        let mount = scene.mount(&source, options);
        let whole = pattern(TENSORS * MIB);
        assert!(mount.read("tensors/t0") == whole[..MIB]);
        // The kernel now has pages of the mounted version in the middle of t2, also as pages of the source.
        let kept = page(&source, DATA + 2 * MIB + MIB / 2).unwrap();
        assert!(kept == whole[2 * MIB + MIB / 2..][..4096]);
        gate.write(|bytes| bytes[DATA..].iter_mut().for_each(|byte| *byte = !*byte));
        // The kernel still returns the old attributes of the source, and its bytes are a mixture of both versions.
        let old = std::fs::metadata(&source).unwrap().modified().unwrap();
        assert_eq!(old, std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_000_000_000));
        for view in ["tensors/t1", "npy/t2.npy", "f32/t3.f32", "export/model-whole.safetensors", "stats/t1.json"] {
            let path = mount.path(view);
            let len = std::fs::metadata(&path).unwrap().len() as usize;
            for offset in [len / 2, len.saturating_sub(4096)].map(|offset| offset / 4096 * 4096) {
                assert_eq!(page(&path, offset), Err(Errno::ESTALE), "{view} {offset} {options:?}");
            }
        }
        for offset in (0..MIB).step_by(128 << 10) {
            assert_eq!(page(mount.path("tensors/t2"), offset), Err(Errno::ESTALE), "{offset} {options:?}");
        }
        // What the mount itself has cached is of the mounted version.
        let first = page(mount.path("tensors/t0"), 0);
        let expected = if options == ["--direct-io"] { Err(Errno::ESTALE) } else { Ok(whole[..4096].to_vec()) };
        assert!(first == expected, "{options:?}");
        let log = format!("weightfs: {}: written to since it was opened; mount it again\n", source.display());
        assert_eq!(mount.log(), log);
    }
}

#[test]
fn readers_of_a_source_that_does_not_answer_do_not_block_others() {
    require_root!();
    let scene = Scene::new();
    let bytes = std::fs::read(model(&scene)).unwrap();
    let gate = Gate::new(&scene.mkdir("source"), bytes);
    scene.ok("mkdir models && cp model.safetensors models/other.safetensors");
    std::os::unix::fs::symlink(scene.path("source").join(FILE), scene.path("models/slow.safetensors")).unwrap();
    let mount = scene.mount(&scene.path("models"), &["--threads=2"]);
    assert!(mount.path("slow/tensors/t1").exists() && mount.path("other/tensors/t1").exists());
    gate.close(DATA as u64);
    thread::scope(|scope| {
        // More readers than threads that receive requests.
        let readers = [0, 1, 2, 3].map(|at| {
            let path = mount.path(format!("slow/tensors/t{at}"));
            scope.spawn(move || std::fs::read(path).unwrap())
        });
        gate.wait_for_read();
        let (sender, receiver) = mpsc::channel();
        let mount = &mount;
        scope.spawn(move || sender.send(mount.read("other/tensors/t1")));
        let other = receiver.recv_timeout(std::time::Duration::from_secs(60));
        let waiting = readers.iter().filter(|reader| !reader.is_finished()).count();
        gate.open();
        let whole = pattern(TENSORS * MIB);
        assert!(other.expect("the other model is served meanwhile") == whole[MIB..2 * MIB]);
        assert_eq!(waiting, readers.len());
        for (at, reader) in readers.into_iter().enumerate() {
            assert!(reader.join().unwrap() == whole[at * MIB..][..MIB], "t{at}");
        }
    });
}

/// The models of a mount with few descriptors: in `models`, on an ext4 file system with these options. At most 16 of
/// the models are open at a time.
fn mount_with_few_descriptors(scene: &Scene, options: &str) {
    scene.ok(&format!("truncate -s 16M disk && mkfs.ext4 -q {options} disk 2>/dev/null && mkdir models mnt"));
    scene.ok("mount -o loop disk models && rmdir models/lost+found");
    for at in 0..40 {
        scene.model(
            &format!("models/m{at}.safetensors"),
            &[("w", safetensors::Dtype::U8, &[5000], pattern(5000))],
            &[],
        );
    }
    // The rules of the sandbox keep inodes, so that no new file can get their numbers.
    scene.ok("touch -d 2001-02-03 models/*; ulimit -n 64; weightfs --no-sandbox --log-file log models mnt");
}

/// Makes the daemon close the files of all models below number 20.
fn close_files(scene: &Scene) {
    scene.ok(
        "for at in $(seq 20 39) $(seq 20 39); do dd if=mnt/m$at/tensors/w iflag=direct status=none; done >/dev/null",
    );
    let [daemon] = scene.daemons()[..] else { panic!("{:?}", scene.processes()) };
    let held: Vec<_> = std::fs::read_dir(format!("/proc/{daemon}/fd")).unwrap().collect();
    let held = held.iter().filter_map(|fd| std::fs::read_link(fd.as_ref().unwrap().path()).ok());
    let open: Vec<_> =
        held.filter(|path| ["m0", "m1", "m2"].contains(&path.file_stem().unwrap().to_str().unwrap())).collect();
    assert!(open.is_empty(), "{open:?}");
}

#[test]
fn new_file_with_an_old_inode_number_gives_estale() {
    require_root!();
    // Smaller inodes have no creation time, and times in whole seconds.
    for options in ["-I 256", "-I 128"] {
        let scene = Scene::new();
        mount_with_few_descriptors(&scene, options);
        let read = |model: &str| scene.sh(&format!("dd if=mnt/{model}/tensors/w iflag=direct status=none | sha256sum"));
        let before = read("m1");
        assert!(before.err.is_empty() && read("m0") == before, "{before:?}");
        // An open file may be changed in ways that keep its bytes.
        scene.ok("chmod 640 models/m1.safetensors; ln models/m1.safetensors models/link");
        close_files(&scene);
        let inode = scene.ok("stat -c %i models/m0.safetensors");
        // The new file must not have the same time of creation, in whole seconds.
        std::thread::sleep(std::time::Duration::from_millis(1100));
        scene.ok("tr '\\0-\\376' '\\1-\\377' <models/m0.safetensors >new && head -c 72 models/m0.safetensors >head");
        scene.ok("(cat head; tail -c +73 new) >other && rm models/m0.safetensors");
        let is_reused = (0..100).any(|at| {
            scene.ok(&format!("cp other models/new{at}"));
            let found = scene.ok(&format!("stat -c %i models/new{at}")) == inode;
            if found {
                scene.ok(&format!(
                    "mv models/new{at} models/m0.safetensors && touch -d 2001-02-03 models/m0.safetensors"
                ));
            }
            found
        });
        assert!(is_reused, "ext4 uses the inode number again");
        let said = read("m0");
        assert!(said.err.contains("Stale file handle"), "{options}: {said:?}");
        let log = scene.ok("cat log");
        assert!(log.contains("m0.safetensors: removed or replaced after it was closed"), "{log}");
        assert_eq!(read("m1"), before, "{options}");
        if options == "-I 256" {
            // The creation time also identifies a file that was changed while it was closed.
            close_files(&scene);
            scene.ok("chmod 600 models/m1.safetensors; chown 1:1 models/m1.safetensors; rm models/link");
            assert_eq!(read("m1"), before);
        }
        scene.ok("weightfs umount mnt");
        scene.wait_for_end();
        scene.ok("umount models");
        assert_eq!(scene.ok("losetup -j disk"), "");
    }
}

#[test]
fn each_fault_is_logged_once_and_recovered_source_is_readable() {
    require_root!();
    let scene = Scene::new();
    let model = std::fs::read(model(&scene)).unwrap();
    let point = scene.mkdir("source");
    let gate = Gate::new(&point, model);
    let mount = scene.mount(&point.join(FILE), &[]);
    let views = ["tensors/t2", "npy/t2.npy", "f32/t2.f32", "safetensors/t3.safetensors", "stats/t3.json", "SHA256SUMS"];
    let read =
        || views.map(|view| std::fs::read(mount.path(view)).map_err(|error| error.raw_os_error().unwrap()).err());
    gate.fail(true);
    assert_eq!((read(), read()), ([Some(Errno::EIO as i32); 6], [Some(Errno::EIO as i32); 6]));
    gate.fail(false);
    assert_eq!(read(), [None; 6]);
    let whole = pattern(TENSORS * MIB);
    assert!(mount.read("tensors/t2") == whole[2 * MIB..3 * MIB]);
    gate.write(|bytes| bytes[DATA..].fill(0));
    for _ in 0..3 {
        assert_eq!(page(mount.path("tensors/t1"), MIB / 2), Err(Errno::ESTALE));
    }
    let messages = ["Input/output error", "written to since it was opened; mount it again"];
    let lines = messages.map(|message| format!("weightfs: {}: {message}\n", point.join(FILE).display()));
    assert_eq!(mount.log(), lines.concat());
}

#[test]
fn fault_in_one_shard_leaves_others_readable() {
    require_fuse!();
    let shards = ["a.safetensors", "b.safetensors", "c.safetensors"];
    let part = |at: usize| pattern(MIB * (at + 1))[MIB * at..].to_vec();
    let table = [
        ("b.safetensors", "truncate -s 4096 b.safetensors"),
        ("b.safetensors", "touch b.safetensors"),
        ("b.safetensors", "dd if=a.safetensors of=b.safetensors conv=notrunc status=none"),
        ("dataset_manifest.json", "echo >>dataset_manifest.json"),
    ];
    for (file, line) in table {
        let (scene, outside) = (Scene::new(), Scene::new());
        let listed = shards.map(|name| serde_json::json!({"shard_path": name, "samples_count": 1, "bytes": 1}));
        let manifest = serde_json::json!({"format_version": "1.0", "shards": listed});
        std::fs::write(scene.path("dataset_manifest.json"), manifest.to_string()).unwrap();
        for (at, name) in shards.iter().enumerate() {
            scene.model(name, &[("x", safetensors::Dtype::U8, &[1, MIB], part(at))], &[]);
        }
        scene.ok("touch -d 2001-02-03 *.safetensors *.json");
        let mount = outside.mount(scene.dir.path(), &[]);
        let before = mount.log();
        scene.ok(line);
        for (view, header) in [("tensors/x", 0), ("npy/x.npy", 128)] {
            for (at, shard) in shards.iter().enumerate() {
                let (name, part) = (format!("shards/{shard}/{view}"), part(at));
                let joined = page(mount.path(view), header + MIB * at + 65536);
                let alone = std::fs::read(mount.path(&name)).map_err(|error| error.raw_os_error().unwrap());
                if *shard == file {
                    assert!(matches!(joined, Err(Errno::EIO | Errno::ESTALE)), "{line}: {view} {at}");
                    assert!(matches!(alone, Err(nix::libc::EIO | nix::libc::ESTALE)), "{line}: {name}");
                } else {
                    assert!(joined.is_ok_and(|page| page == part[65536..][..4096]), "{line}: {view} {at}");
                    assert!(alone.is_ok_and(|bytes| bytes[header..] == part), "{line}: {name}");
                }
            }
        }
        for view in ["f32/x.f32", "safetensors/x.safetensors", "stats/x.json", "plots/x.png", "SHA256SUMS"] {
            assert_eq!(std::fs::read(mount.path(view)).is_ok(), file.ends_with(".json"), "{line}: {view}");
        }
        let found = std::fs::read(mount.path("dataset_manifest.json"));
        assert_eq!(
            found.is_ok_and(|bytes| bytes == manifest.to_string().as_bytes()),
            !file.ends_with(".json"),
            "{line}"
        );
        let log = mount.log();
        let added = log.strip_prefix(&before).unwrap();
        let beginning = format!("weightfs: {}: ", scene.path(file).display());
        assert!(added.starts_with(&beginning) && added.lines().count() == 1, "{line}: {added}");
    }
}

#[test]
fn killed_reader_does_not_affect_mount() {
    require_fuse!();
    let scene = Scene::new();
    // Too large to be read completely before the readers are killed.
    let source = sparse(&scene, 1, 1 << 40);
    let mut mount = scene.mount(&source, &[]);
    let map = "import mmap, sys; f = open(sys.argv[1]); m = mmap.mmap(f.fileno(), 0, prot=1); [m[i] for i in range(0, len(m), 4096)]";
    let readers = [
        ("exec cat", "tensors/t0"),
        ("exec dd bs=64M status=none if=", "tree/t0"),
        ("exec dd bs=8M iflag=direct status=none if=", "tensors/t0"),
        ("exec tail -c +12345", "npy/t0.npy"),
        ("exec cat", "f32/t0.f32"),
        ("exec dd bs=64M iflag=direct status=none if=", "safetensors/t0.safetensors"),
        ("exec cat", "export/model-whole.safetensors"),
        ("exec $PYTHON -c \"$MAP\"", "tensors/t0"),
        ("exec $PYTHON -c \"$MAP\"", "f32/t0.f32"),
    ];
    let read = |line: &str, name: &str| {
        let space = if line.ends_with('=') { "" } else { " " };
        let line = format!("{line}{space}{} >/dev/null", mount.path(name).display());
        scene.command("sh").args(["-c", &line]).env("PYTHON", python()).env("MAP", map).spawn().unwrap()
    };
    for _ in 0..3 {
        for mut reader in readers.map(|(line, name)| read(line, name)) {
            let id = reader.id();
            let proc = |name: &str| std::fs::read_to_string(format!("/proc/{id}/{name}")).unwrap();
            let count = |text: &str, name: &str| -> u64 {
                let value = text.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
                value.trim().trim_end_matches(" kB").parse().unwrap_or(0)
            };
            wait_until("the reader has read a little", || {
                assert!(reader.try_wait().unwrap().is_none());
                count(&proc("io"), "rchar: ") > 10_000_000 || count(&proc("status"), "RssFile:") > 32_000
            });
            reader.kill().unwrap();
            reader.wait().unwrap();
            assert_eq!(mount.list("tensors"), ["t0"]);
        }
    }
    let path = mount.path("tensors/t0");
    assert_eq!(page(&path, (1 << 40) - 4096).unwrap(), [0; 4096]);
    assert!(mount.child.try_wait().unwrap().is_none());
    assert_eq!(mount.log(), "");
}

#[test]
fn every_write_operation_gives_erofs() {
    require_root!();
    let scene = Scene::new();
    let before = std::fs::read(model(&scene)).unwrap();
    scene.ok("mkdir mnt && weightfs model.safetensors mnt");
    let lines = [
        ": >new",
        ": >tensors/new",
        ": >header.json",
        ": >>header.json",
        "dd of=tensors/t0 conv=notrunc if=/dev/zero count=1",
        "dd of=tensors/t0 oflag=direct conv=notrunc if=/dev/zero count=1",
        "truncate -s 0 tensors/t0",
        "truncate -s 9M tensors/t0",
        "fallocate -l 9M tensors/t0",
        "fallocate -p -l 4096 tensors/t0",
        "cp ../same header.json",
        "cp ../same tensors",
        "chmod 600 header.json",
        "chmod 777 .",
        "chown 1:1 tensors/t0",
        "touch header.json",
        "touch tensors",
        "rm -f header.json",
        "rm -rf tensors",
        "mv header.json header",
        "mv header.json tensors/t0",
        "mkdir new",
        "mkdir tensors/new",
        "rmdir tensors",
        "ln header.json new",
        "ln -s header.json new",
        "mkfifo new",
        "mknod new c 1 3",
        "setfattr -n user.new -v 1 tensors/t0",
        "setfattr -n user.weightfs.dtype -v F32 tensors/t0",
        "setfattr -x user.weightfs.dtype tensors/t0",
        "setfattr -n security.new -v 1 tensors/t0",
        "mktemp ./XXXXXX",
        "sed -i s/a/b/ header.json",
    ];
    let listing = scene.ok("ls -lR mnt");
    for line in lines {
        let output = scene.sh(&format!("cd mnt && {line}"));
        assert!(output.code != 0 && output.err.contains("Read-only file system"), "{line}: {output:?}");
    }
    assert_eq!(scene.ok("ls -lR mnt"), listing);
    // mount(8) cannot make it writable either.
    let output = scene.sh("mount -i -o remount,rw mnt && : >mnt/new");
    assert!(output.code != 0 && !scene.path("mnt/new").exists(), "{output:?}");
    assert!(std::fs::read(scene.path("model.safetensors")).unwrap() == before);
}

#[test]
fn sixteen_readers_of_two_mounts_get_every_byte() {
    require_fuse!();
    let scene = Scene::new();
    let source = model(&scene);
    let whole = pattern(TENSORS * MIB);
    let mounts = [scene.mount(&source, &["--threads=8"]), scene.mount(&source, &["--max-read=4096"])];
    thread::scope(|scope| {
        for reader in 0..16 {
            let (mount, whole) = (&mounts[reader % 2], &whole);
            // Readers differ in block size, order and flags.
            let chunk = [MIB, 100_000, 65_536, 4097][reader / 4];
            let flags = if reader / 2 % 2 == 0 { 0 } else { O_DIRECT };
            scope.spawn(move || {
                let mut bytes = vec![0; chunk];
                for tensor in (0..TENSORS).map(|tensor| (tensor + reader) % TENSORS) {
                    let path = mount.path(format!("{}/t{tensor}", if reader < 8 { "tensors" } else { "tree" }));
                    let file = File::options().read(true).custom_flags(flags).open(path).unwrap();
                    for offset in (0..MIB).step_by(chunk) {
                        let bytes = &mut bytes[..chunk.min(MIB - offset)];
                        file.read_exact_at(bytes, offset as u64).unwrap();
                        assert!(bytes == &whole[tensor * MIB + offset..][..bytes.len()], "t{tensor} at {offset}");
                    }
                    assert_eq!(file.read_at(&mut bytes, MIB as u64).unwrap(), 0);
                }
            });
        }
    });
    assert_eq!(mounts.map(|mount| mount.log()), ["", ""]);
}
