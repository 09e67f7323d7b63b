//! Adding blocks and finding them again.

use crate::support::*;
use std::fs;
use std::sync::Arc;
use weightfs::remote::cache::{BlockCache, CacheEntry, CacheError, CacheKey};
use weightfs::source::pins::BLOCK;

#[test]
fn block_is_present_once_all_of_its_bytes_were_written() {
    let dir = tempdir();
    let len = 3 * BLOCK + 1000;
    let object = open(dir.path()).object(&key(1, len)).unwrap();
    assert_eq!((object.len, object.blocks), (len, 4));
    assert!(all(&object).is_empty());
    assert_eq!(object.data().metadata().unwrap().len(), len);

    // Pieces of all sizes, as they come from a network.
    let (mut at, mut random, mut complete) = (0, Random(5), 0);
    while at < len {
        let end = (at + 1 + random.below(20_000)).min(len);
        let written = object.write(at, &content(1, at..end)).unwrap();
        at = end;
        if !written.is_empty() {
            assert_eq!(written.start, complete);
            complete = written.end;
        }
        assert_eq!(complete, if at == len { 4 } else { at / BLOCK });
        assert_eq!(all(&object).iter().map(|run| run.end - run.start).sum::<u64>(), complete);
    }
    assert_eq!(verify(&object, 1), 4);
}

#[test]
fn large_write_adds_all_whole_blocks_and_keeps_the_rest() {
    let dir = tempdir();
    let len = 100 * BLOCK + 1;
    let object = open(dir.path()).object(&key(1, len)).unwrap();
    let written = object.write(BLOCK / 2, &content(1, BLOCK / 2..60 * BLOCK + 7)).unwrap();
    assert_eq!(written, 1..60);
    assert_eq!(object.write(60 * BLOCK + 7, &content(1, 60 * BLOCK + 7..len)).unwrap(), 60..101);
    assert_eq!(all(&object), [1..101]);
    assert_eq!(object.write(0, &content(1, 0..BLOCK / 2)).unwrap(), 0..1);
    assert_eq!(verify(&object, 1), 101);
}

#[test]
fn bytes_past_the_end_are_refused() {
    let dir = tempdir();
    let object = open(dir.path()).object(&key(1, 10)).unwrap();
    for offset in [0, 10, u64::MAX] {
        let error = object.write(offset, &[1; 11]).unwrap_err();
        assert!(matches!(error, CacheError::OutOfRange { len: 10, .. }), "{error}");
    }
    assert!(all(&object).is_empty());
    assert!(object.has(7..u64::MAX).unwrap().is_empty());
}

#[test]
fn empty_object_can_be_read() {
    let dir = tempdir();
    let object = open(dir.path()).object(&key(1, 0)).unwrap();
    assert!(object.len == 0 && all(&object).is_empty());
    assert!(reader(&object).pin(0..0).is_ok());
    assert!(object.write(0, &[]).unwrap().is_empty());
}

#[test]
fn blocks_are_found_by_later_sessions_and_by_others() {
    let dir = tempdir();
    let len = 200 * BLOCK;
    let (one, two) = (open(dir.path()), open(dir.path()));
    let first = one.object(&key(1, len)).unwrap();
    let second = two.object(&key(1, len)).unwrap();
    assert!(!Arc::ptr_eq(&first, &second));
    fill(&first, 1, 3..5);
    assert_eq!(all(&second), [3..5]);
    fill(&second, 1, 100..200);
    assert_eq!(all(&first), [3..5, 100..200]);
    drop((first, second, one, two));
    let again = open(dir.path()).object(&key(1, len)).unwrap();
    // One look finds all blocks of 64 MiB.
    assert_eq!(again.has(100..101).unwrap(), [100..101]);
    assert!(is_present(&again, 199));
    assert_eq!(verify(&again, 1), 102);
}

#[test]
fn versions_and_files_are_separate_objects() {
    let dir = tempdir();
    let cache = open(dir.path());
    let old = cache.object(&key(1, BLOCK)).unwrap();
    fill(&old, 1, 0..1);
    assert!(Arc::ptr_eq(&cache.object(&key(1, BLOCK)).unwrap(), &old), "opened once");
    let mut new = key(1, BLOCK);
    new.validator = "\"other\"".into();
    for key in [new.clone(), key(1, BLOCK + 1), key(2, BLOCK)] {
        assert!(all(&cache.object(&key).unwrap()).is_empty());
    }
    let mut versions = BlockCache::list(dir.path()).unwrap().entries;
    // The first half of the name of a directory is that of the file.
    let id = |entry: &CacheEntry| entry.id[..32].to_owned();
    let other = id(versions.iter().find(|entry| entry.name.as_deref() == Some("object 2")).unwrap());
    versions.retain(|entry| id(entry) != other);
    assert!(versions.iter().all(|entry| id(entry) == id(&versions[0])));
    versions.sort_by_key(|entry| (entry.len, entry.validator.clone()));
    let found: Vec<_> = versions.iter().map(|entry| (entry.validator.as_deref().unwrap(), entry.len)).collect();
    assert_eq!(found, [("\"etag-1\"", BLOCK), ("\"other\"", BLOCK), ("\"etag-1\"", BLOCK + 1)]);
    assert!(cache.has_version(&new.identity) && !cache.has_version("https://host/other"));
}

#[test]
fn version_that_was_used_last_comes_first() {
    let dir = tempdir();
    let cache = open(dir.path());
    let version = |number: u64| CacheKey { validator: format!("{number}"), ..key(1, 3 * BLOCK) };
    for number in [0, 1, 2] {
        let object = cache.object(&version(number)).unwrap();
        if number != 1 {
            fill(&object, 1, 0..number + 1);
        }
        drop(object);
        set_last_use(
            dir.path(),
            |entry| entry.validator == Some(version(number).validator),
            [50, 70, 60][number as usize],
        );
    }
    drop(cache.object(&key(2, BLOCK)).unwrap());
    let found = || -> Vec<(String, u64)> {
        let versions = BlockCache::list(dir.path()).unwrap().entries.into_iter();
        let versions = versions.filter(|entry| entry.name.as_deref() == Some("object 1"));
        versions.map(|entry| (entry.validator.unwrap(), entry.present / BLOCK)).collect()
    };
    assert_eq!(found(), [("0".into(), 1), ("2".into(), 3), ("1".into(), 0)]);
    // Opening is a use.
    drop(cache.object(&version(1)).unwrap());
    assert_eq!(found(), [("1".into(), 0), ("0".into(), 1), ("2".into(), 3)]);
}

#[test]
fn list_shows_objects_and_not_their_identity() {
    let dir = tempdir();
    assert!(BlockCache::list(&dir.path().join("missing")).unwrap().entries.is_empty());
    let cache = open(dir.path());
    assert!(BlockCache::list(dir.path()).unwrap().entries.is_empty());
    let object = cache.object(&key(7, 10 * BLOCK)).unwrap();
    fill(&object, 7, 2..5);
    let list = BlockCache::list(dir.path()).unwrap().entries;
    assert_eq!(list.len(), 1);
    let entry = &list[0];
    assert_eq!((entry.name.as_deref(), entry.validator.as_deref()), (Some("object 7"), Some("\"etag-7\"")));
    assert_eq!((entry.len, entry.present, entry.in_use), (10 * BLOCK, 3 * BLOCK, true));
    assert!(entry.last_use.elapsed().unwrap().as_secs() < 60);
    drop(object);
    assert!(!BlockCache::list(dir.path()).unwrap().entries[0].in_use);
    for name in ["data", "table", "about.json", "lock"] {
        let bytes = fs::read(file(dir.path(), name)).unwrap();
        assert!(!bytes.windows(8).any(|part| part == b"identity"), "{name}");
    }
}

#[test]
fn url_with_query_is_refused() {
    let dir = tempdir();
    let mut secret = key(1, 1);
    secret.identity += "?X-Amz-Signature=123";
    assert!(matches!(open(dir.path()).object(&secret), Err(CacheError::Secret { field: "identity" })));
    assert_eq!(fs::read_dir(dir.path().join("objects")).unwrap().count(), 0);
}

#[test]
fn reader_sees_blocks_and_triggers() {
    let dir = tempdir();
    let object = open(dir.path()).object(&key(1, 10 * BLOCK - 5)).unwrap();
    let reader = reader(&object);
    object.set_trigger(4);
    let missing = reader.pin(3 * BLOCK + 1..5 * BLOCK + 1).unwrap_err();
    assert_eq!(missing.blocks(), 3..6);
    fill(&object, 1, 3..5);
    assert_eq!(missing.absent().collect::<Vec<_>>(), [5]);
    let missing = missing.retry().unwrap_err();
    fill(&object, 1, 5..6);
    let pinned = missing.retry().unwrap();
    assert!(pinned.has_trigger());
    object.clear_trigger(4);
    assert!(!pinned.has_trigger());
    assert!(reader.pin(3 * BLOCK..6 * BLOCK).is_ok());
    assert!(reader.pin(3 * BLOCK..6 * BLOCK + 1).is_err());
    fill(&object, 1, 9..10);
    assert!(reader.pin(9 * BLOCK..u64::MAX).is_ok(), "what is past the end is ignored");
    assert!(reader.pin(u64::MAX..u64::MAX).is_ok());
}

#[test]
fn wrong_descriptors_are_refused() {
    use nix::fcntl::{FcntlArg, SealFlag, fcntl};
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use std::os::fd::OwnedFd;
    use weightfs::source::pins::{self, PinnedReader};
    let dir = tempdir();
    let cache = open(dir.path());
    let (small, large) = (cache.object(&key(1, BLOCK)).unwrap(), cache.object(&key(1, 1000 * BLOCK)).unwrap());
    let [_, present, marks, lock] = descriptors(&small);
    let [_, _, large_marks, large_lock] = descriptors(&large);
    let short = PinnedReader::open(1000 * BLOCK, present, large_marks, lock).unwrap_err();
    assert_eq!(short.to_string(), "shared memory 'present': 2 bytes instead of 2000");
    // A file that can be truncated would raise SIGBUS in the reader.
    let file: OwnedFd = tempfile::tempfile().unwrap().into();
    let unsealed = PinnedReader::open(BLOCK, file, marks, large_lock).unwrap_err();
    assert_eq!(unsealed.to_string(), "shared memory 'present': not sealed against shrinking");
    // So could huge pages, which may all be in use when they are read.
    let flags = MFdFlags::MFD_ALLOW_SEALING | MFdFlags::MFD_HUGETLB;
    if let Ok(huge) = memfd_create("huge", flags) {
        fcntl(&huge, FcntlArg::F_ADD_SEALS(SealFlag::F_SEAL_SHRINK)).unwrap();
        let [_, _, marks, lock] = descriptors(&large);
        let refused = PinnedReader::open(BLOCK, huge, marks, lock).unwrap_err();
        assert_eq!(refused.to_string(), "shared memory 'present': not ordinary memory");
    }
    // The data must be a file that is as long as was said.
    let data = || descriptors(&large).into_iter().next().unwrap();
    assert!(pins::data(data(), 1000 * BLOCK).is_ok());
    let dir = std::fs::File::open(dir.path()).unwrap();
    for (wrong, len) in [(data(), 1000 * BLOCK + 1), (std::io::pipe().unwrap().0.into(), 0), (dir.into(), 0)] {
        let refused = pins::data(wrong, len).unwrap_err();
        assert_eq!(refused.to_string(), format!("not a file of {len} bytes"));
    }
    // The reader cannot write to what the owner says.
    let [data, present, _, lock] = descriptors(&large);
    let present = std::fs::File::from(present);
    assert!(std::os::unix::fs::FileExt::write_all_at(&present, &[1], 0).is_err());
    assert!(present.set_len(0).is_err() && present.set_len(5000).is_err());
    for descriptor in [data, lock] {
        assert!(std::fs::File::from(descriptor).set_len(0).is_err());
    }
    assert!(!is_present(&large, 0));
}

#[test]
fn object_that_is_opened_by_many_threads_is_the_same() {
    let dir = tempdir();
    let cache = open(dir.path());
    let objects: Vec<_> = std::thread::scope(|scope| {
        let open = || scope.spawn(|| cache.object(&key(1, BLOCK)).unwrap());
        let threads: Vec<_> = (0..8).map(|_| open()).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(objects.iter().all(|object| Arc::ptr_eq(object, &objects[0])));
    fill(&objects[3], 1, 0..1);
    assert_eq!(cache.evict(1).unwrap().freed, BLOCK, "no second description of the lock is left");
}
