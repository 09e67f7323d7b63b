//! Listing what a cache has, and removing what is no longer wanted.

use crate::support::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use weightfs::remote::cache::{BlockCache, CacheError, FreedObject, KeptListings, PruneOptions, PruneOutcome};
use weightfs::source::pins::BLOCK;

const MIB: u64 = 1 << 20;

/// Seconds since the last use of the objects 1 to 4. Each has 8 MiB, except for the last one, which is empty.
const AGES: [u64; 4] = [4000, 3000, 2000, 1000];

/// A cache with objects and two listings, one of which was used as long ago as object 2.
fn sample(dir: &Path) -> BlockCache {
    let cache = open(dir);
    for (number, age) in (1..).zip(AGES) {
        let object = cache.object(&key(number, 8 * MIB)).unwrap();
        if number < 4 {
            fill(&object, number, 0..128);
        }
        drop(object);
        set_last_use(dir, |entry| entry.name == Some(format!("object {number}")), age);
    }
    cache.keep_listing("old", b"an old listing").unwrap();
    let old = fs::read_dir(dir.join("listings")).unwrap().map(|entry| entry.unwrap().path());
    let old = old.into_iter().find(|path| path.file_name().unwrap() != "lock").unwrap();
    let age = Duration::from_secs(3000);
    fs::File::options().write(true).open(old).unwrap().set_modified(SystemTime::now() - age).unwrap();
    cache.keep_listing("new", b"new").unwrap();
    cache
}

fn ago(seconds: u64) -> Option<SystemTime> {
    Some(SystemTime::now() - Duration::from_secs(seconds))
}

/// All files below a directory, with size, allocated blocks, and the time of the last use.
fn state(dir: &Path) -> Vec<(PathBuf, u64, u64, Option<SystemTime>)> {
    let mut found = Vec::new();
    let mut stack = vec![dir.to_owned()];
    while let Some(path) = stack.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        if stat.is_dir() {
            stack.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
        }
        let is_lock = path.file_name().is_some_and(|name| name == "lock");
        let last_use = is_lock.then(|| stat.modified().unwrap());
        found.push((path, stat.len(), stat.blocks(), last_use));
    }
    found.sort();
    found
}

/// What was done to each object: its name, freed bytes, and whether it was removed.
fn done(pruned: &PruneOutcome) -> Vec<(&str, u64, bool)> {
    let all = pruned.objects.iter();
    all.map(|FreedObject { entry, bytes, is_removed }| (entry.name.as_deref().unwrap(), *bytes, *is_removed)).collect()
}

#[test]
fn dry_run_says_what_happens_and_changes_nothing() {
    let cases = [
        (PruneOptions::default(), vec![], 24, 0),
        (PruneOptions { size: Some(100 * MIB), ..PruneOptions::default() }, vec![], 24, 0),
        (PruneOptions { size: Some(24 * MIB), ..PruneOptions::default() }, vec![], 24, 0),
        // Blocks are evicted in segments of 4 MiB, at the end.
        (
            PruneOptions { size: Some(24 * MIB - 1), ..PruneOptions::default() },
            vec![("object 1", 4 * MIB, false)],
            20,
            0,
        ),
        (
            PruneOptions { size: Some(9 * MIB), ..PruneOptions::default() },
            vec![("object 1", 8 * MIB, true), ("object 2", 8 * MIB, true)],
            8,
            0,
        ),
        (
            PruneOptions { size: Some(0), ..PruneOptions::default() },
            vec![
                ("object 1", 8 * MIB, true),
                ("object 2", 8 * MIB, true),
                ("object 3", 8 * MIB, true),
                ("object 4", 0, true),
            ],
            0,
            2,
        ),
        (PruneOptions { unused_since: ago(3500), ..PruneOptions::default() }, vec![("object 1", 8 * MIB, true)], 16, 0),
        (
            PruneOptions { unused_since: ago(2500), ..PruneOptions::default() },
            vec![("object 1", 8 * MIB, true), ("object 2", 8 * MIB, true)],
            8,
            1,
        ),
        (
            // Both: by age first, then by size.
            PruneOptions { unused_since: ago(3500), size: Some(13 * MIB), ..PruneOptions::default() },
            vec![("object 1", 8 * MIB, true), ("object 2", 4 * MIB, false)],
            12,
            0,
        ),
        (
            // By age, although there is no excess.
            PruneOptions { unused_since: ago(500), size: Some(90 * MIB), ..PruneOptions::default() },
            vec![
                ("object 1", 8 * MIB, true),
                ("object 2", 8 * MIB, true),
                ("object 3", 8 * MIB, true),
                ("object 4", 0, true),
            ],
            0,
            1,
        ),
    ];
    for (pruning, expected, left, listings) in cases {
        let dir = tempdir();
        let cache = sample(dir.path());
        let before = state(dir.path());
        let dry = BlockCache::prune(dir.path(), &PruneOptions { dry_run: true, ..pruning }).unwrap();
        assert_eq!(state(dir.path()), before, "{pruning:?}");
        let wet = BlockCache::prune(dir.path(), &pruning).unwrap();
        for pruned in [&dry, &wet] {
            assert_eq!(done(pruned), expected, "{pruning:?}");
            assert_eq!((pruned.left, pruned.listings.count), (left * MIB, listings), "{pruning:?}");
            assert_eq!(pruned.freed(), (24 - left) * MIB);
            assert_eq!((pruned.in_use.len(), pruned.failed.len()), (0, 0));
        }
        assert_eq!((dry.objects, dry.listings), (wet.objects, wet.listings));
        assert_eq!(cache.size().unwrap(), left * MIB);
        let kept = [("old", true), ("new", false)].map(|(location, is_old)| {
            let kept = cache.kept_listing(location).is_some();
            assert!(kept || is_old || listings == 2, "{pruning:?}");
            usize::from(kept)
        });
        assert_eq!(kept.iter().sum::<usize>(), 2 - listings);
        // What is left is right.
        for number in 1..5 {
            verify(&cache.object(&key(number, 8 * MIB)).unwrap(), number);
        }
    }
}

#[test]
fn objects_in_use_are_kept_and_reported_also_by_a_dry_run() {
    let dir = tempdir();
    let cache = sample(dir.path());
    let used = cache.object(&key(2, 8 * MIB)).unwrap();
    set_last_use(dir.path(), |entry| entry.in_use, 9000);
    for pruning in [
        PruneOptions { size: Some(1), dry_run: true, ..PruneOptions::default() },
        PruneOptions { unused_since: ago(0), dry_run: true, ..PruneOptions::default() },
        PruneOptions { size: Some(0), ..PruneOptions::default() },
    ] {
        let pruned = BlockCache::prune(dir.path(), &pruning).unwrap();
        let in_use: Vec<_> = pruned.in_use.iter().map(|entry| (entry.name.as_deref().unwrap(), entry.in_use)).collect();
        assert_eq!(in_use, [("object 2", true)]);
        assert_eq!(pruned.left, 8 * MIB, "{pruning:?}");
        assert!(pruned.objects.iter().all(|freed| freed.entry.name.as_deref() != Some("object 2")));
    }
    assert_eq!(verify(&used, 2), 128);
}

#[test]
fn contents_are_listed_by_last_use() {
    let dir = tempdir();
    let cache = sample(dir.path());
    let contents = BlockCache::list(dir.path()).unwrap();
    let names: Vec<_> = contents.entries.iter().map(|entry| entry.name.as_deref().unwrap()).collect();
    assert_eq!(names, ["object 4", "object 3", "object 2", "object 1"]);
    assert_eq!(contents.listings, KeptListings { count: 2, bytes: 2 * 32 + 14 + 3 });
    assert!(contents.unknown.is_empty() && contents.failed.is_empty());
    drop(cache.object(&key(2, 8 * MIB)).unwrap());
    assert_eq!(BlockCache::list(dir.path()).unwrap().entries[0].name.as_deref(), Some("object 2"));
    // Nothing is created by looking.
    let empty = tempdir();
    assert!(BlockCache::list(empty.path()).unwrap().entries.is_empty());
    assert!(clear(empty.path()).unwrap().objects.is_empty());
    assert_eq!(state(empty.path()).len(), 1);
}

#[test]
fn strange_files_are_reported_and_left_alone() {
    let dir = tempdir();
    drop(sample(dir.path()));
    let objects = dir.path().join("objects");
    fs::write(objects.join("notes.txt"), "mine").unwrap();
    fs::create_dir(objects.join("folder")).unwrap();
    // Names of objects that are no directories.
    let id = |digit: &str| format!("{}-{}", digit.repeat(32), digit.repeat(32));
    fs::write(objects.join(id("a")), "mine").unwrap();
    symlink(dir.path(), objects.join(id("b"))).unwrap();
    let contents = BlockCache::list(dir.path()).unwrap();
    assert_eq!(contents.entries.len(), 4);
    assert_eq!(contents.unknown, [objects.join("folder"), objects.join("notes.txt")]);
    let failed: Vec<_> =
        contents.failed.iter().map(|error| matches!(error, CacheError::NotADirectory { .. })).collect();
    assert_eq!(failed, [true, true]);
    let pruned = clear(dir.path()).unwrap();
    assert_eq!((pruned.removed(), pruned.left, pruned.failed.len()), (4, 0, 2));
    assert_eq!(fs::read_dir(&objects).unwrap().count(), 4);
    assert_eq!(fs::read_to_string(objects.join("notes.txt")).unwrap(), "mine");
    assert!(dir.path().join("layout").exists(), "links are not followed");
}

#[test]
fn object_with_a_damaged_description_is_listed_and_removed() {
    let dir = tempdir();
    let cache = open(dir.path());
    fill(&cache.object(&key(1, BLOCK)).unwrap(), 1, 0..1);
    fs::write(file(dir.path(), "about.json"), "{").unwrap();
    let entries = BlockCache::list(dir.path()).unwrap().entries;
    let entry = &entries[0];
    assert_eq!((&entry.name, &entry.validator, entry.len, entry.present), (&None, &None, BLOCK, BLOCK));
    let pruned = clear(dir.path()).unwrap();
    assert_eq!((&pruned.objects[0].entry, pruned.freed()), (entry, BLOCK));
}
