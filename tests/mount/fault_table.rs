//! Faults of a source while readers of every kind read every view: each reader gets the bytes that were mounted, or an
//! error.

use crate::gate::{FILE, Gate};
use crate::readers::{End, Expected, Readers, Way};
use crate::support::{Scene, pattern, require_root};
use std::collections::BTreeSet;
use std::sync::Arc;

const KIB: usize = 1 << 10;

/// Tensors as (name, dtype, shape, bytes). The `a` tensors are read during a fault, the `b` tensors only after it. No
/// read-ahead of the mount or of a device crosses `agap`. `model-clean.safetensors` has the tensors with the largest
/// elements first, and those by name, so there too it lies between what is read and `b16`.
const TENSORS: [(&str, &str, &[usize], usize); 5] = [
    ("a16", "BF16", &[256, 1024], 512 * KIB),
    ("a8", "U8", &[512, 1024], 512 * KIB),
    ("agap", "BF16", &[1536, 1024], 3072 * KIB),
    ("b16", "BF16", &[256, 1024], 512 * KIB),
    ("b8", "U8", &[512, 1024], 512 * KIB),
];

/// Offsets in the file, in bytes: where the data begins, where `b16` begins, and where the file ends.
const DATA: usize = 4096;
const B: usize = DATA + 4096 * KIB;
const LEN: usize = DATA + 5120 * KIB;

/// The file system that holds a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Storage {
    /// The file system of the other files of the test.
    Here,
    /// A tmpfs.
    Tmpfs,
    /// An ext4 image on a loop device.
    Disk,
    /// A [`Gate`], a FUSE file system that this test serves.
    Gate,
}

/// What readers get after a fault, of the parts that were not read before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Outcome {
    /// Every byte, as if nothing had happened.
    Whole,
    /// Errors. The log has one line, with one of these texts.
    Nothing(&'static [&'static str]),
    /// Errors, or bytes that are still in the page cache. The log has one line, with this text.
    Kept(&'static str),
}

/// A fault of `source/model.safetensors`: its storage, the shell command that causes the fault, and the outcome.
/// `other` is a file of the same length with other bytes in `b16` and `b8`.
type Fault = (Storage, &'static str, Outcome);

const WRITTEN: Outcome = Outcome::Nothing(&["written to since it was opened; mount it again"]);
/// The first read decides which of the two texts is logged.
const CUT: Outcome =
    Outcome::Nothing(&["truncated from 5246976 to ", "written to since it was opened; mount it again"]);
/// A request that was waiting when the file system died gets the second error.
const DIED: Outcome = Outcome::Nothing(&["Transport endpoint is not connected", "Software caused connection abort"]);

const CHANGES: [Fault; 10] = [
    (Storage::Here, ": >source/model.safetensors", CUT),
    (Storage::Here, "truncate -s -1M source/model.safetensors", CUT),
    (Storage::Here, "truncate -s -1 source/model.safetensors", CUT),
    (Storage::Here, "truncate -s +1M source/model.safetensors", WRITTEN),
    (Storage::Here, "cat other >>source/model.safetensors", WRITTEN),
    (Storage::Here, "cp other source/model.safetensors", CUT),
    (Storage::Here, "dd if=other of=source/model.safetensors bs=64K conv=notrunc status=none", WRITTEN),
    (Storage::Here, "dd if=other of=source/model.safetensors bs=64K oflag=direct conv=notrunc status=none", WRITTEN),
    (Storage::Here, "fallocate -p -o 4198400 -l 1M source/model.safetensors", WRITTEN),
    (Storage::Tmpfs, "dd if=other of=source/model.safetensors bs=1M conv=notrunc status=none", WRITTEN),
];

const HARMLESS: [Fault; 8] = [
    (Storage::Here, "cp other new && mv new source/model.safetensors", Outcome::Whole),
    (Storage::Here, "cp --remove-destination other source/model.safetensors", Outcome::Whole),
    (Storage::Here, "rm source/model.safetensors", Outcome::Whole),
    (Storage::Here, "rm -r source && mkdir source && mkfifo source/model.safetensors", Outcome::Whole),
    (Storage::Here, "chmod 000 source/model.safetensors source", Outcome::Whole),
    (Storage::Tmpfs, "umount -l source", Outcome::Whole),
    (Storage::Tmpfs, "mount -t tmpfs none source", Outcome::Whole),
    (Storage::Disk, "umount -l source", Outcome::Whole),
];

const FAILURES: [Fault; 2] = [
    // The image is truncated to 0 bytes, so the block layer fails every read. Before that, dd drops the source's cached
    // pages, except mapped ones.
    (
        Storage::Disk,
        "dd if=source/model.safetensors iflag=nocache count=0 status=none && : >disk",
        Outcome::Kept("Input/output error"),
    ),
    (Storage::Gate, "umount -f source 2>/dev/null || true", DIED),
];

/// Creates the source and `other`. Returns the gate if the source is in one.
fn lay_out(scene: &Scene, storage: Storage) -> Option<Gate> {
    let mut start = 0;
    let tensors = TENSORS.map(|(name, dtype, shape, len)| {
        start += len;
        format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{},{start}]}}"#, start - len)
    });
    let header = format!(r#"{{"__metadata__":{{"key":"value"}},{}}}"#, tensors.join(","));
    scene.raw(FILE, format!("{header:<0$}", DATA - 8).as_bytes(), &pattern(LEN - DATA));
    scene.ok("touch -d 2001-02-03 model.safetensors && mkdir source");
    let rest = B + 1;
    scene.ok(&format!(r"(head -c {B} {FILE} && tail -c +{rest} {FILE} | tr '\0-\376' '\1-\377') >other"));
    match storage {
        Storage::Here => scene.ok("mv model.safetensors source"),
        Storage::Tmpfs => scene.ok("mount -t tmpfs none source && cp -p model.safetensors source"),
        Storage::Disk => {
            // Direct I/O, because the page cache would give zeros for bytes past the end of `disk`. The device is
            // removed with the mount.
            scene.ok("mkdir files && mv model.safetensors files && truncate -s 16M disk");
            scene.ok("mkfs.ext4 -q -O ^has_journal -d files disk && mount -o ro,loop disk source");
            scene.ok(
                "device=$(findmnt -no SOURCE source) && losetup --direct-io=on $device && blockdev --setra 256 $device",
            )
        }
        Storage::Gate => return Some(Gate::new(&scene.path("source"), std::fs::read(scene.path(FILE)).unwrap())),
    };
    None
}

/// Files of a mount that are served without reading a byte of the source.
const IN_MEMORY: [&str; 3] = ["index.json", "metadata.json", "metadata/key"];

/// All other files: those of the whole model, and those of the tensors whose names begin with `letter`. The checksums
/// are with the `b` tensors, because they are computed from those too.
fn of_the_source(letter: char) -> Vec<String> {
    let model = ["header.json", "export/model-whole.safetensors", "export/model-clean.safetensors"];
    let tensors = ["tensors/@16", "tree/@16", "npy/@16.npy", "npy/@8.npy", "f32/@16.f32"];
    let tensors = tensors.into_iter().chain(["safetensors/@16.safetensors", "stats/@16.json", "plots/@16.png"]);
    let sums = (letter == 'b').then_some("SHA256SUMS");
    model.into_iter().chain(tensors).chain(sums).map(|name| name.replace('@', &letter.to_string())).collect()
}

/// Whether a file is computed as a whole on its first read, and kept in memory.
fn is_computed(name: &str) -> bool {
    ["stats/", "plots/", "SHA256SUMS"].iter().any(|beginning| name.starts_with(beginning))
}

/// The files of every view, read from a mount without a fault.
struct Reference {
    scene: Scene,
    files: Vec<(String, Vec<u8>)>,
}

impl Reference {
    fn new() -> Self {
        let scene = Scene::new();
        lay_out(&scene, Storage::Here);
        let mount = scene.mount(&scene.path("source").join(FILE), &[]);
        let names = IN_MEMORY.map(str::to_owned).into_iter().chain(['a', 'b'].into_iter().flat_map(of_the_source));
        let names: BTreeSet<String> = names.collect();
        let files: Vec<_> = names.into_iter().map(|name| (name.clone(), mount.read(name))).collect();
        // Every view is covered.
        let top = |name: &String| name.split('/').next().unwrap().to_owned();
        let covered: BTreeSet<String> = files.iter().map(|file| top(&file.0)).collect();
        assert_eq!(covered, mount.list("").into_iter().collect());
        for (at, (_, bytes)) in files.iter().enumerate() {
            std::fs::write(scene.path(at.to_string()), bytes).unwrap();
        }
        drop(mount);
        Self { scene, files }
    }

    /// The files of the model and of the tensors whose names begin with `letter`, as a mount of the source in `scene`
    /// shows them. For `a`, exports are read only up to the gap, so that their readers do not touch the `b` tensors.
    fn expected(&self, scene: &Scene, letter: char) -> Vec<Arc<Expected>> {
        let names = of_the_source(letter);
        let files = self.files.iter().enumerate();
        let wanted = files.filter(|(_, (name, _))| names.contains(name) || IN_MEMORY.contains(&&name[..]));
        let expected = |(at, (name, bytes)): (usize, &(String, Vec<u8>))| {
            let (mut bytes, mut copy) = (bytes.clone(), self.scene.path(at.to_string()));
            if name == "index.json" {
                let dir = |scene: &Scene| scene.dir.path().display().to_string();
                bytes = String::from_utf8(bytes).unwrap().replace(&dir(&self.scene), &dir(scene)).into();
                copy = scene.path("index.json");
                std::fs::write(&copy, &bytes).unwrap();
            }
            let len = if name.starts_with("export/") && letter == 'a' { 1024 * KIB } else { bytes.len() };
            Arc::new(Expected { name: name.clone(), bytes, copy, len })
        };
        wanted.map(expected).collect()
    }
}

/// Mounts a source twice. The files of the `a` tensors are read from the first mount during the fault, then those of
/// the `b` tensors from the second mount, where nothing was read before.
fn test_fault(reference: &Reference, fault: Fault, options: &[&str]) {
    let (storage, line, outcome) = fault;
    let scene = Scene::new();
    let gate = lay_out(&scene, storage);
    let source = scene.path("source").join(FILE);
    let mut mounts = [scene.mount(&source, &[]), scene.mount(&source, options)];
    let mut readers = Readers::start(&mounts[0].point, &reference.expected(&scene, 'a'));
    scene.ok(line);
    readers.round();
    for (name, way, end) in readers.stop() {
        let fine = match outcome {
            Outcome::Whole => end == End::Right,
            _ if IN_MEMORY.contains(&&name[..]) => end == End::Right,
            Outcome::Nothing(_) if is_computed(&name) => end == End::Right,
            // Other readers may find every byte in the page cache.
            Outcome::Nothing(_) if way == Way::Random => end.is_error(),
            _ => end == End::Right || end.is_error(),
        };
        assert!(fine, "{fault:?}: {name} {way:?}, during the fault: {end:?}");
    }
    for (name, way, end) in Readers::once(&mounts[1].point, &reference.expected(&scene, 'b')) {
        let fine = match outcome {
            Outcome::Whole => end == End::Right,
            _ if IN_MEMORY.contains(&&name[..]) => end == End::Right,
            // It was read while mounting, so it may be cached.
            Outcome::Kept(_) if name == "header.json" => end == End::Right || end.is_error(),
            _ => end.is_error(),
        };
        assert!(fine, "{fault:?}: {name} {way:?}, after the fault: {end:?}");
    }
    for (at, mount) in mounts.iter_mut().enumerate() {
        assert!(mount.child.try_wait().unwrap().is_none(), "{fault:?}");
        assert_eq!(mount.list("tensors"), TENSORS.map(|tensor| tensor.0), "{fault:?}");
        let (log, beginning) = (mount.log(), format!("weightfs: {}: ", source.display()));
        let logged = |text: &str| log.strip_prefix(&beginning).is_some_and(|logged| logged.starts_with(text));
        let fine = match outcome {
            Outcome::Whole => log.is_empty(),
            // The first mount may have found every byte in the page cache.
            Outcome::Kept(_) if at == 0 && log.is_empty() => true,
            Outcome::Kept(text) => logged(text) && log.lines().count() == 1,
            Outcome::Nothing(texts) => texts.iter().any(|text| logged(text)) && log.lines().count() == 1,
        };
        assert!(fine, "{fault:?}: {log:?}");
    }
    drop((mounts, gate));
    if storage == Storage::Disk {
        scene.sh("umount source");
        assert_eq!(scene.ok("losetup -j disk"), "");
    }
}

/// Tests each fault in turn. The second mount of every other fault bypasses the page cache.
fn test_faults(faults: &[Fault]) {
    let reference = Reference::new();
    for (fault, options) in faults.iter().zip([&[][..], &["--direct-io"]].into_iter().cycle()) {
        test_fault(&reference, *fault, options);
    }
}

#[test]
fn changed_source_gives_old_bytes_or_error() {
    require_root!();
    test_faults(&CHANGES);
}

#[test]
fn source_without_name_permissions_or_mount_gives_every_byte() {
    require_root!();
    test_faults(&HARMLESS);
}

#[test]
fn failed_disk_or_file_system_gives_right_bytes_or_error() {
    require_root!();
    test_faults(&FAILURES);
}

#[test]
fn read_error_seen_only_by_kernel_is_logged_once() {
    require_root!();
    let scene = Scene::new();
    lay_out(&scene, Storage::Disk);
    let source = scene.path("source").join(FILE);
    let mount = scene.mount(&source, &[]);
    scene.ok(": >disk");
    // Views of raw bytes, which the daemon passes to the kernel without reading them.
    for _ in 0..3 {
        let output = scene.sh("cat mnt0/tensors/b8 mnt0/tree/b16 >/dev/null");
        assert_eq!(output.err.matches("Input/output error").count(), 2, "{output:?}");
    }
    assert_eq!(mount.log(), format!("weightfs: {}: Input/output error\n", source.display()));
}
