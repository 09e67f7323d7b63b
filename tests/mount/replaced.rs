//! The tree of a mount is replaced under its readers: names lead to the new one, open files keep theirs.

use crate::support::{Scene, require_root, wait_until};
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use safetensors::Dtype;
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use weightfs::format::ParseMode;
use weightfs::fs::{MountedTree, Ownership, Superblock};
use weightfs::fuse::{FuseSession, MountAccess, ReaderWatch, ServeOptions, TreeReplacer, answer_reader_queries};
use weightfs::model;
use weightfs::source::Location;
use weightfs::view::ShownViews;

/// Size of the tensor `w` of version `v`, in bytes. It exceeds a read request.
fn size(version: u8) -> usize {
    (3 << 20) + usize::from(version)
}

/// The tree of a model of version `v`: `w` and `only_v` have bytes of the value `v`.
fn tree(scene: &Scene, version: u8) -> Superblock {
    let name = format!("v{version}.safetensors");
    let only = format!("only_{version}");
    let bytes = vec![version; size(version)];
    let tensors = [("w", Dtype::U8, &[bytes.len()][..], bytes.clone()), (&only, Dtype::U8, &[1], vec![version])];
    let path = scene.model(&name, &tensors, &[]);
    let opened = model::open_location(&Location::from(&*path), ParseMode::Strict).unwrap();
    Superblock::new(opened, ShownViews::default(), Ownership::default()).unwrap()
}

/// A mount of this process, whose tree can be replaced. It is unmounted on drop.
struct ReplaceableMount {
    point: PathBuf,
    replacer: TreeReplacer,
    threads: Vec<JoinHandle<()>>,
}

impl ReplaceableMount {
    fn new(scene: &Scene, first: Superblock) -> Self {
        let point = scene.mkdir("mnt");
        let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let data = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        mount(Some("replaceable"), &point, Some("fuse"), MsFlags::MS_RDONLY, Some(&*data)).unwrap();
        let (asked, answers) = UnixStream::pair().unwrap();
        let serving = ServeOptions {
            access: MountAccess::All,
            threads: 2,
            direct_io: false,
            check_permissions: false,
            memory: None,
        };
        let tree = MountedTree::replaceable(first);
        let session = FuseSession::new(tree, OwnedFd::from(device), serving, ReaderWatch::new(asked)).unwrap();
        let replacer = session.replacer();
        let threads = vec![thread::spawn(|| session.run().unwrap()), thread::spawn(|| answer_reader_queries(answers))];
        Self { point, replacer, threads }
    }
}

impl Drop for ReplaceableMount {
    fn drop(&mut self) {
        let unmounted = umount2(&self.point, MntFlags::MNT_DETACH);
        if thread::panicking() {
            return;
        }
        unmounted.unwrap();
        // The other thread ends with the last reference to the watch.
        self.threads.remove(0).join().unwrap();
    }
}

/// Reads a file of one version, and returns the version.
fn version_of(path: &Path) -> u8 {
    let mut file = File::open(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let expected = file.metadata().unwrap().len();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len() as u64, expected);
    let version = bytes[0];
    assert_eq!(bytes.len(), size(version), "the size of another version");
    assert!(bytes.iter().all(|byte| *byte == version), "bytes of two versions");
    version
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn open_files_keep_the_tree_that_a_new_one_replaces() {
    require_root!();
    let scene = Scene::new();
    let mount = ReplaceableMount::new(&scene, tree(&scene, 1));
    let tensors = mount.point.join("tensors");
    let (w, only_1, only_2) = (tensors.join("w"), tensors.join("only_1"), tensors.join("only_2"));
    let old = File::open(&w).unwrap();
    assert!(std::fs::metadata(&only_2).is_err(), "the kernel remembers that it does not exist");
    assert!(std::fs::metadata(mount.point.join("nothing")).is_err());
    let before = std::fs::metadata(&w).unwrap();
    assert_eq!(names(&tensors), ["only_1", "w"]);

    mount.replacer.replace(tree(&scene, 2)).unwrap();
    // Names lead to the new tree, at once.
    let after = std::fs::metadata(&w).unwrap();
    assert_eq!((before.len(), after.len()), (size(1) as u64, size(2) as u64));
    assert_ne!(before.ino(), after.ino());
    assert_eq!(names(&tensors), ["only_2", "w"]);
    assert!(std::fs::metadata(&only_1).is_err());
    assert_eq!(std::fs::read(&only_2).unwrap(), [2]);
    assert_eq!(version_of(&w), 2);
    // The open file is what it was, also where its pages are not in the page cache.
    let mut byte = [0];
    for offset in [0, (size(1) - 1) as u64] {
        nix::fcntl::posix_fadvise(&old, 0, 0, nix::fcntl::PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
        old.read_exact_at(&mut byte, offset).unwrap();
        assert_eq!(byte, [1]);
    }
    assert_eq!(old.read_at(&mut byte, size(1) as u64).unwrap(), 0, "the end of the old version");
    assert_eq!((old.metadata().unwrap().len(), old.metadata().unwrap().ino()), (before.len(), before.ino()));
    assert_eq!(mount.replacer.trees_in_use(), 2);
    drop(old);
    wait_until("the replaced tree is dropped", || mount.replacer.trees_in_use() == 1);
}

#[test]
fn readers_see_one_version_at_a_time_while_trees_are_replaced() {
    require_root!();
    let scene = Scene::new();
    let mount = ReplaceableMount::new(&scene, tree(&scene, 1));
    let w = mount.point.join("tensors/w");
    // The newest version that names lead to for certain.
    let (newest, done) = (AtomicU8::new(1), AtomicBool::new(false));
    // The number of files that each reader has read.
    let reads = [const { AtomicUsize::new(0) }; 3];
    thread::scope(|scope| {
        let (w, newest, done) = (&w, &newest, &done);
        let read = move |count: &AtomicUsize| {
            while !done.load(Ordering::SeqCst) {
                let least = newest.load(Ordering::SeqCst);
                let version = version_of(w);
                assert!(version >= least, "version {version} after {least}");
                count.fetch_add(1, Ordering::SeqCst);
            }
        };
        let readers: Vec<_> = reads.iter().map(|count| scope.spawn(move || read(count))).collect();
        let is_broken = || readers.iter().any(thread::ScopedJoinHandle::is_finished);
        for version in 2..=60 {
            mount.replacer.replace(tree(&scene, version)).unwrap();
            newest.store(version, Ordering::SeqCst);
            // The kernel looks a path up again once if the tree is replaced while a file is opened, and not twice.
            let before = reads.each_ref().map(|count| count.load(Ordering::SeqCst));
            let has_read = || reads.iter().zip(before).all(|(count, before)| count.load(Ordering::SeqCst) > before);
            wait_until("each reader has read a file", || has_read() || is_broken());
            if is_broken() {
                break;
            }
        }
        done.store(true, Ordering::SeqCst);
    });
    assert_eq!(version_of(&w), 60);
    wait_until("the replaced trees are dropped", || mount.replacer.trees_in_use() == 1);
}
