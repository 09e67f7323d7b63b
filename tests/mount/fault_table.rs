//! Every fault of a source, under readers of every kind in every view: each gets the bytes that were mounted, or an
//! error.

use crate::gate::{FILE, Gate};
use crate::readers::{End, Expected, Readers, Way};
use crate::support::{Scene, pattern, require_fuse};
use std::collections::BTreeSet;
use std::sync::Arc;

const KIB: usize = 1 << 10;

/// Tensors: two that are read while a fault happens and two that are first read after it, with room in between that no
/// read-ahead crosses.
const TENSORS: [(&str, &str, &[usize], usize); 5] = [
    ("a16", "BF16", &[256, 1024], 512 * KIB),
    ("a8", "U8", &[512, 1024], 512 * KIB),
    ("gap", "U8", &[2048, 1024], 2048 * KIB),
    ("b16", "BF16", &[256, 1024], 512 * KIB),
    ("b8", "U8", &[512, 1024], 512 * KIB),
];

/// Where the data begins and where that of `b16` does, in bytes from the start of the file.
const DATA: usize = 4096;
const B: usize = DATA + 3072 * KIB;
const LEN: usize = DATA + 4096 * KIB;

/// Where a source lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum On {
    /// Beside everything else.
    Here,
    /// In a file system in memory.
    Tmpfs,
    /// In a file system on a disk of its own.
    Disk,
    /// In a file system whose daemon is this test.
    Gate,
}

/// What may be read after a fault of what was not read before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Then {
    /// All of it, as if nothing had happened.
    Whole,
    /// Nothing of the source. The log has one line, of one of these.
    Nothing(&'static [&'static str]),
    /// Nothing of the source but what the kernel has kept of it. The log has one line, that this was the reason.
    Kept(&'static str),
}

/// What happens to `source/model.safetensors`: where it lies, a line of shell, and what comes of it. `other` is a file
/// of the same length with other bytes in `b16` and `b8`.
type Fault = (On, &'static str, Then);

const WRITTEN: Then = Then::Nothing(&["written to since it was opened; mount it again"]);
/// Which of the two depends on what is read first.
const CUT: Then = Then::Nothing(&["cut from 4198400 to ", "written to since it was opened; mount it again"]);
/// The second of who waited for an answer then.
const DIED: Then = Then::Nothing(&["Transport endpoint is not connected", "Software caused connection abort"]);

const CHANGES: [Fault; 10] = [
    (On::Here, ": >source/model.safetensors", CUT),
    (On::Here, "truncate -s -1M source/model.safetensors", CUT),
    (On::Here, "truncate -s -1 source/model.safetensors", CUT),
    (On::Here, "truncate -s +1M source/model.safetensors", WRITTEN),
    (On::Here, "cat other >>source/model.safetensors", WRITTEN),
    (On::Here, "cp other source/model.safetensors", CUT),
    (On::Here, "dd if=other of=source/model.safetensors bs=64K conv=notrunc status=none", WRITTEN),
    (On::Here, "dd if=other of=source/model.safetensors bs=64K oflag=direct conv=notrunc status=none", WRITTEN),
    (On::Here, "fallocate -p -o 3149824 -l 1M source/model.safetensors", WRITTEN),
    (On::Tmpfs, "dd if=other of=source/model.safetensors bs=1M conv=notrunc status=none", WRITTEN),
];

const INDIFFERENT: [Fault; 8] = [
    (On::Here, "cp other new && mv new source/model.safetensors", Then::Whole),
    (On::Here, "cp --remove-destination other source/model.safetensors", Then::Whole),
    (On::Here, "rm source/model.safetensors", Then::Whole),
    (On::Here, "rm -r source && mkdir source && mkfifo source/model.safetensors", Then::Whole),
    (On::Here, "chmod 000 source/model.safetensors source", Then::Whole),
    (On::Tmpfs, "umount -l source", Then::Whole),
    (On::Tmpfs, "mount -t tmpfs none source", Then::Whole),
    (On::Disk, "umount -l source", Then::Whole),
];

const FAILURES: [Fault; 2] = [
    // The disk ends before it begins, so that the block layer gives an error for each read; first the kernel forgets
    // what it has read and nobody has mapped.
    (
        On::Disk,
        "dd if=source/model.safetensors iflag=nocache count=0 status=none && : >disk",
        Then::Kept("Input/output error"),
    ),
    (On::Gate, "umount -f source 2>/dev/null || true", DIED),
];

/// Lays out a source where the fault wants it.
fn lay_out(scene: &Scene, on: On) -> Option<Gate> {
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
    match on {
        On::Here => scene.ok("mv model.safetensors source"),
        On::Tmpfs => scene.ok("mount -t tmpfs none source && cp -p model.safetensors source"),
        On::Disk => {
            // Direct, because through the page cache what is past the end of `disk` would be zeros. The device goes
            // with the mount.
            scene.ok("mkdir files && mv model.safetensors files && truncate -s 16M disk");
            scene.ok("mkfs.ext4 -q -O ^has_journal -d files disk && mount -o ro,loop disk source");
            scene.ok("losetup --direct-io=on $(findmnt -no SOURCE source)")
        }
        On::Gate => return Some(Gate::new(&scene.path("source"), std::fs::read(scene.path(FILE)).unwrap())),
    };
    None
}

/// Every file of a mount for which no byte of the source is read.
const IN_MEMORY: [&str; 3] = ["index.json", "metadata.json", "metadata/key"];

/// Every other file, of the model or of tensors that begin with `letter`.
fn of_the_source(letter: char) -> Vec<String> {
    let model = ["header.json", "export/model.safetensors", "export/model-clean.safetensors", "SHA256SUMS"];
    let tensors = ["tensors/@16", "tree/@16", "npy/@16.npy", "npy/@8.npy", "f32/@16.f32"];
    let tensors = tensors.into_iter().chain(["safetensors/@16.safetensors", "stats/@16.json", "plots/@16.png"]);
    model.into_iter().chain(tensors).map(|name| name.replace('@', &letter.to_string())).collect()
}

/// Whether a file is computed as a whole when it is first read, and kept.
fn is_computed(name: &str) -> bool {
    ["stats/", "plots/", "SHA256SUMS"].iter().any(|beginning| name.starts_with(beginning))
}

/// What every view shows, as it is read from a mount that nothing happens to.
struct Reference {
    scene: Scene,
    files: Vec<(String, Vec<u8>)>,
}

impl Reference {
    fn new() -> Self {
        let scene = Scene::new();
        lay_out(&scene, On::Here);
        let mount = scene.mount(&scene.path("source").join(FILE), &[]);
        let names = IN_MEMORY.map(str::to_owned).into_iter().chain(['a', 'b'].into_iter().flat_map(of_the_source));
        let names: BTreeSet<String> = names.collect();
        let files: Vec<_> = names.into_iter().map(|name| (name.clone(), mount.read(name))).collect();
        // There is no view that the table does not know.
        let top = |name: &String| name.split('/').next().unwrap().to_owned();
        let known: BTreeSet<String> = files.iter().map(|file| top(&file.0)).collect();
        assert_eq!(known, mount.list("").into_iter().collect());
        for (at, (_, bytes)) in files.iter().enumerate() {
            std::fs::write(scene.path(at.to_string()), bytes).unwrap();
        }
        drop(mount);
        Self { scene, files }
    }

    /// The files about tensors that begin with `letter`, as a mount of a source in another scene shows them. Of what
    /// reaches over all tensors only what is before the gap is read where other tensors must not be touched.
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

/// Mounts a source twice, has every file about some tensors read from one mount while the fault happens, and then every
/// file about other tensors from the other, where nothing was read before.
fn happen(reference: &Reference, fault: Fault, options: &[&str]) {
    let (on, line, then) = fault;
    let scene = Scene::new();
    let gate = lay_out(&scene, on);
    let source = scene.path("source").join(FILE);
    let mut mounts = [scene.mount(&source, &[]), scene.mount(&source, options)];
    let mut readers = Readers::start(&mounts[0].point, &reference.expected(&scene, 'a'));
    scene.ok(line);
    readers.round();
    for (name, way, end) in readers.stop() {
        let fine = match then {
            Then::Whole => end == End::Right,
            _ if IN_MEMORY.contains(&&name[..]) => end == End::Right,
            Then::Nothing(_) if is_computed(&name) => end == End::Right,
            // The others may find everything in the page cache.
            Then::Nothing(_) if way == Way::Random => end.is_error(),
            _ => end == End::Right || end.is_error(),
        };
        assert!(fine, "{fault:?}: {name} {way:?}, while it happened: {end:?}");
    }
    for (name, way, end) in Readers::once(&mounts[1].point, &reference.expected(&scene, 'b')) {
        let fine = match then {
            Then::Whole => end == End::Right,
            _ if IN_MEMORY.contains(&&name[..]) => end == End::Right,
            // It was read to mount it.
            Then::Kept(_) if name == "header.json" => end == End::Right || end.is_error(),
            _ => end.is_error(),
        };
        assert!(fine, "{fault:?}: {name} {way:?}, afterwards: {end:?}");
    }
    for (at, mount) in mounts.iter_mut().enumerate() {
        assert!(mount.child.try_wait().unwrap().is_none(), "{fault:?}");
        assert_eq!(mount.list("tensors"), TENSORS.map(|tensor| tensor.0), "{fault:?}");
        let (log, beginning) = (mount.log(), format!("weightfs: {}: ", source.display()));
        let said = |text: &str| log.strip_prefix(&beginning).is_some_and(|said| said.starts_with(text));
        let fine = match then {
            Then::Whole => log.is_empty(),
            // It may not have missed anything.
            Then::Kept(_) if at == 0 && log.is_empty() => true,
            Then::Kept(text) => said(text) && log.lines().count() == 1,
            Then::Nothing(texts) => texts.iter().any(|text| said(text)) && log.lines().count() == 1,
        };
        assert!(fine, "{fault:?}: {log:?}");
    }
    drop((mounts, gate));
    if on == On::Disk {
        scene.sh("umount source");
        assert_eq!(scene.ok("losetup -j disk"), "");
    }
}

/// One after the other; of the second mounts some go past the page cache of the kernel.
fn happen_all(faults: &[Fault]) {
    let reference = Reference::new();
    for (fault, options) in faults.iter().zip([&[][..], &["--direct-io"]].into_iter().cycle()) {
        happen(&reference, *fault, options);
    }
}

#[test]
fn of_a_source_that_changes_readers_get_the_old_bytes_or_an_error() {
    require_fuse!();
    happen_all(&CHANGES);
}

#[test]
fn of_a_source_that_loses_its_name_its_rights_or_its_mount_readers_get_every_byte() {
    require_fuse!();
    happen_all(&INDIFFERENT);
}

#[test]
fn of_a_source_whose_disk_or_file_system_fails_readers_get_its_bytes_or_an_error() {
    require_fuse!();
    happen_all(&FAILURES);
}

#[test]
fn what_only_the_kernel_finds_unreadable_is_logged_once() {
    require_fuse!();
    let scene = Scene::new();
    lay_out(&scene, On::Disk);
    let source = scene.path("source").join(FILE);
    let mount = scene.mount(&source, &[]);
    scene.ok(": >disk");
    // Raw bytes, which the daemon hands on without a look.
    for _ in 0..3 {
        let said = scene.sh("cat mnt0/tensors/b8 mnt0/tree/b16 >/dev/null");
        assert_eq!(said.err.matches("Input/output error").count(), 2, "{said:?}");
    }
    assert_eq!(mount.log(), format!("weightfs: {}: Input/output error\n", source.display()));
}
