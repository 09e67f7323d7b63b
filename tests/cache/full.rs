//! A disk that is full, and other file systems.

use crate::support::*;
use nix::mount::{MntFlags, MsFlags, mount, umount2};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use weightfs::remote::cache::CacheError;
use weightfs::source::pins::BLOCK;

/// A small file system in memory.
struct Disk {
    dir: Dir,
}

impl Disk {
    /// `None` without the permission to mount.
    fn new(size: u64) -> Option<Self> {
        Self::mount("tmpfs", &format!("size={size},mode=0700"))
    }

    fn mount(kind: &str, options: &str) -> Option<Self> {
        let dir = tempdir();
        if let Err(error) = mount(Some(kind), dir.path(), Some(kind), MsFlags::empty(), Some(options)) {
            assert!(!nix::unistd::geteuid().is_root(), "cannot mount: {error}");
            eprintln!("skipped: this test needs the permission to mount");
            return None;
        }
        Some(Self { dir })
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("cache")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        _ = umount2(self.dir.path(), MntFlags::MNT_DETACH);
    }
}

#[test]
fn full_disk_evicts_older_blocks() {
    let Some(disk) = Disk::new(24 << 20) else { return };
    let cache = open(&disk.path());
    let unused = cache.object(&key(9, 8 << 20)).unwrap();
    fill(&unused, 9, 0..128);
    drop(unused);
    let object = cache.object(&key(1, 64 << 20)).unwrap();
    let mut evicted = 0;
    let mut incoming = object.incoming(0..object.len);
    for block in 0..object.blocks {
        let range = bytes_of(&object, block..block + 1);
        // In two parts, so that a part is in memory when the disk is full.
        assert!(incoming.write(&content(1, range.start..range.start + 100)).unwrap().is_empty());
        let written = incoming.write(&content(1, range.start + 100..range.end)).unwrap();
        assert_eq!(written, block..block + 1);
        evicted += cache.take_evicted().len();
        assert!(is_present(&object, block));
    }
    assert!(evicted >= 10, "{evicted}");
    assert!(verify(&object, 1) >= 128);
    assert!(all(&cache.object(&key(9, 8 << 20)).unwrap()).is_empty(), "the unused object was evicted first");
}

#[test]
fn full_disk_without_anything_to_evict_is_an_error_and_leaves_blocks_absent() {
    let Some(disk) = Disk::new(8 << 20) else { return };
    let cache = open(&disk.path());
    let object = cache.object(&key(1, 64 << 20)).unwrap();
    let reader = reader(&object);
    // One read that is larger than the disk.
    let missing = reader.pin(0..32 << 20).unwrap_err();
    let mut error = None;
    for block in 0..512 {
        let range = bytes_of(&object, block..block + 1);
        if let Err(failed) = object.write(range.start, &content(1, range)) {
            error.get_or_insert(failed);
        }
    }
    let error = error.unwrap();
    assert!(matches!(error, CacheError::Full { .. }), "{error}");
    assert!(error.to_string().contains("the disk of the cache is full"), "{error}");
    let missing = missing.retry().unwrap_err();
    let count = verify(&object, 1);
    assert!((64..128).contains(&count), "{count}");
    // Nothing else occupies the disk.
    let size = cache.size().unwrap();
    assert!(size <= count * BLOCK, "{size} bytes for {count} blocks");
    // A new session finds the same, and the cache works again once the read has given up.
    drop(missing);
    fill(&object, 1, 600..616);
    assert!(is_present(&object, 600));
    assert!(verify(&object, 1) >= 16);
    drop((reader, object, cache));
    assert!(verify(&open_in_boot(&disk.path(), "other").object(&key(1, 64 << 20)).unwrap(), 1) >= 16);
}

/// Fills the rest of a disk with a file that does not belong to the cache.
fn fill_disk(disk: &Disk) {
    let file = std::fs::File::create(disk.dir.path().join("other")).unwrap();
    for chunk in [64 << 10, 4 << 10] {
        let mut at = file.metadata().unwrap().len();
        while file.write_all_at(&vec![1; chunk], at).is_ok() {
            at += chunk as u64;
        }
    }
}

#[test]
fn object_and_listing_are_created_on_a_full_disk_after_something_was_evicted() {
    let Some(disk) = Disk::new(16 << 20) else { return };
    let cache = open(&disk.path());
    let unused = cache.object(&key(9, 4 << 20)).unwrap();
    fill(&unused, 9, 0..64);
    drop(unused);
    let used = cache.object(&key(8, 8 << 20)).unwrap();
    fill(&used, 8, 0..128);

    fill_disk(&disk);
    let new = cache.object(&key(1, 1 << 30)).unwrap();
    assert!(cache.take_evicted().is_empty(), "the object that nobody uses is enough");
    assert_eq!(verify(&used, 8), 128);
    fill(&new, 1, 0..1);
    assert_eq!(verify(&new, 1), 1);

    fill_disk(&disk);
    cache.keep_listing("there", &vec![7; 1 << 20]).unwrap();
    assert_eq!(cache.kept_listing("there").unwrap().len(), 1 << 20);
    let evicted = cache.take_evicted();
    assert!(evicted.iter().any(|(object, _)| Arc::ptr_eq(object, &used)), "{}", evicted.len());
    assert!(cache.take_evicted().is_empty());
    assert!(verify(&used, 8) < 128);

    drop((used, new));
    fill_disk(&disk);
    // Everything is evicted in the end, and then the error says why.
    let mut kept = Vec::new();
    let error = loop {
        assert!(kept.len() < 10_000);
        match cache.object(&key(100 + kept.len() as u64, 1 << 30)) {
            Ok(object) => kept.push(object),
            Err(error) => break error,
        }
    };
    assert!(kept.len() > 1, "{error}");
    assert!(matches!(error, CacheError::Full { .. }), "{error}");
}

#[test]
fn disk_without_room_for_an_object_is_an_error_that_names_it() {
    let Some(disk) = Disk::new(64 << 10) else { return };
    let cache = open(&disk.path());
    let mut number = 0;
    let error = loop {
        number += 1;
        assert!(number < 100);
        match cache.object(&key(number, 1 << 30)) {
            Ok(object) => std::mem::forget(object),
            Err(error) => break error,
        }
    };
    assert!(error.to_string().contains(&disk.path().display().to_string()), "{error}");
    assert!(error.to_string().contains("No space left"), "{error}");
}

/// The flags of this process's descriptors of a file.
fn open_flags(path: &std::path::Path) -> Vec<i32> {
    let mut flags = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd").unwrap() {
        let entry = entry.unwrap();
        if std::fs::read_link(entry.path()).is_ok_and(|target| target == path) {
            let info =
                std::fs::read_to_string(std::path::Path::new("/proc/self/fdinfo").join(entry.file_name())).unwrap();
            let line = info.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
            flags.push(i32::from_str_radix(line.trim(), 8).unwrap());
        }
    }
    flags
}

#[test]
fn unknown_file_system_is_written_synchronously_and_may_have_no_holes() {
    // An ordinary one, and ramfs, which stands for all that are not known.
    let sync = nix::libc::O_DSYNC;
    let (Some(known), Some(unknown)) = (Disk::new(8 << 20), Disk::mount("ramfs", "mode=0700")) else { return };
    for (disk, expected) in [(known, 0), (unknown, sync)] {
        for _new_and_existing in 0..2 {
            let cache = open(&disk.path());
            let object = cache.object(&key(1, 1 << 20)).unwrap();
            let flags = open_flags(&std::fs::canonicalize(file(&disk.path(), "data")).unwrap());
            let mut synchronous: Vec<i32> =
                flags.iter().filter(|flags| *flags & 3 != 0).map(|flags| flags & sync).collect();
            synchronous.dedup();
            assert_eq!(synchronous, [expected]);
            fill(&object, 1, 0..16);
            _ = cache.evict(1).unwrap();
            // Without holes, blocks of an object in use are kept rather than forgotten.
            let left = if expected == 0 { 0 } else { 16 };
            assert_eq!((verify(&object, 1), cache.take_evicted().len()), (left, usize::from(left == 0)));
        }
        // An unused object is removed as a whole.
        let cache = open(&disk.path());
        _ = cache.evict(1).unwrap();
        assert_eq!(std::fs::read_dir(disk.path().join("objects")).unwrap().count(), 0);
    }
}

#[test]
fn failed_write_keeps_the_bytes_that_another_process_is_writing() {
    use std::os::unix::fs::FileExt;
    let Some(disk) = Disk::new(8 << 20) else { return };
    let (cache, other) = (open(&disk.path()), open(&disk.path()));
    let object = cache.object(&key(1, 64 << 20)).unwrap();
    let user = other.object(&key(1, 64 << 20)).unwrap();
    // The other process has written a block, and does not have it in the table yet.
    let range = bytes_of(&object, 500..501);
    let data = std::fs::File::options().write(true).open(file(&disk.path(), "data")).unwrap();
    data.write_all_at(&content(1, range.clone()), range.start).unwrap();
    let write = || object.write(496 * BLOCK, &content(1, 496 * BLOCK..512 * BLOCK));
    let error = (0..20).find_map(|part| object.write(part << 20, &content(1, part << 20..(part + 1) << 20)).err());
    assert!(matches!(error, Some(CacheError::Full { .. })), "{error:?}");
    assert!(matches!(write(), Err(CacheError::Full { .. })));
    let mut found = vec![0; BLOCK as usize];
    user.data().read_exact_at(&mut found, range.start).unwrap();
    assert!(found == content(1, range), "the bytes of the other process are gone");
    // A sole user evicts.
    drop(user);
    assert_eq!(write().unwrap(), 496..512);
    assert!(verify(&object, 1) >= 16);
}
