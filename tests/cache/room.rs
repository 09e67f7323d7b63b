//! The limit of the size, and what is evicted.

use crate::support::*;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;
use weightfs::remote::cache::{BlockCache, CacheError, CachedObject};
use weightfs::source::pins::BLOCK;

const MIB: u64 = 1 << 20;

/// Blocks that are evicted together.
const SEGMENT: u64 = 64;

fn count(object: &CachedObject) -> u64 {
    all(object).iter().map(|run| run.end - run.start).sum()
}

#[test]
fn size_stays_below_the_limit_and_agrees_with_the_disk() {
    let dir = tempdir();
    let limit = 16 * MIB;
    let cache = open_with_limit(dir.path(), limit);
    let objects = [1, 2, 3].map(|number| cache.object(&key(number, 40 * MIB - 5)).unwrap());
    let mut random = Random(3);
    let mut evicted = 0;
    for _ in 0..200 {
        let number = random.below(3);
        let object = &objects[number as usize];
        let first = random.below(object.blocks);
        let range = bytes_of(object, first..(first + 1 + random.below(16)).min(object.blocks));
        let room = cache.make_room(range.end - range.start).unwrap();
        assert_eq!(room.lacking, 0);
        evicted += room.freed;
        _ = object.write(range.start, &content(number + 1, range)).unwrap();
        let size = cache.size().unwrap();
        assert!(size <= limit, "{size}");
        let present: u64 = objects.iter().map(|object| count(object)).sum::<u64>() * BLOCK;
        // The last block is shorter by less than a block, and is rounded to blocks of the file system.
        assert!(present.abs_diff(size) <= 3 * BLOCK, "{present} bytes of blocks are present, and the disk has {size}");
    }
    assert!(evicted > 2 * limit, "{evicted}");
    for (number, object) in (1..).zip(&objects) {
        assert!(verify(object, number) > 0);
    }
    let listed: u64 = BlockCache::list(dir.path()).unwrap().entries.iter().map(|entry| entry.present).sum();
    assert!(listed.abs_diff(cache.size().unwrap()) <= 3 * 4096);
}

#[test]
fn blocks_that_are_read_again_outlive_the_others() {
    let dir = tempdir();
    let cache = open_with_limit(dir.path(), 32 * MIB);
    let object = cache.object(&key(1, 256 * MIB)).unwrap();
    let reader = reader(&object);
    for segment in 0..64 {
        let blocks = segment * SEGMENT..(segment + 1) * SEGMENT;
        let room = cache.make_room(SEGMENT * BLOCK).unwrap();
        assert_eq!(room.lacking, 0);
        assert!(cache.take_evicted().iter().all(|(evicted, _)| Arc::ptr_eq(evicted, &object)));
        fill(&object, 1, blocks);
        // The first segment is read all the time, and the others never.
        assert!(reader.pin(0..BLOCK).is_ok(), "after {segment} segments");
    }
    assert_eq!(count(&object), 8 * SEGMENT);
    assert!(verify(&object, 1) > 0);
    // What is left is the first segment and the latest ones.
    assert_eq!(all(&object).last().unwrap().end, object.blocks);
}

#[test]
fn pinned_blocks_and_those_fetched_for_a_pending_read_are_kept() {
    let dir = tempdir();
    let cache = open_with_limit(dir.path(), 0);
    let object = cache.object(&key(1, 64 * MIB)).unwrap();
    let reader = reader(&object);
    // A read of two blocks, one of which is there.
    fill(&object, 1, 9..10);
    let missing = reader.pin(9 * BLOCK..11 * BLOCK).unwrap_err();
    cache.make_room(MIB).unwrap();
    assert_eq!(all(&object), [9..10]);
    // The other one arrives, with read-ahead that nobody waits for.
    fill(&object, 1, 10..200);
    let room = cache.make_room(MIB).unwrap();
    assert_eq!(all(&object), [9..11]);
    assert_eq!(room.freed, 189 * BLOCK);
    assert_eq!(room.lacking, 3 * BLOCK + MIB - BLOCK);
    let pinned = missing.retry().unwrap();
    cache.make_room(MIB).unwrap();
    assert_eq!(verify(&object, 1), 2);
    drop(pinned);
    let held = reader.pin(10 * BLOCK..11 * BLOCK).unwrap();
    cache.make_room(MIB).unwrap();
    assert_eq!(all(&object), [10..11]);
    drop((held, cache.take_evicted()));
    cache.make_room(0).unwrap();
    assert!(cache.take_evicted().iter().any(|(_, blocks)| blocks.contains(&10)));
    assert_eq!((all(&object), cache.size().unwrap()), (vec![], 0));
    assert!(reader.pin(9 * BLOCK..11 * BLOCK).is_err());
}

#[test]
fn too_many_pins_of_a_block_delay_a_read_and_never_unpin_it() {
    let dir = tempdir();
    let cache = open_with_limit(dir.path(), 0);
    let object = cache.object(&key(1, BLOCK)).unwrap();
    fill(&object, 1, 0..1);
    let reader = reader(&object);
    let mut pins: Vec<_> = (0..0x3fff).map(|_| reader.pin(0..1).unwrap()).collect();
    let missing = reader.pin(0..1).unwrap_err();
    cache.make_room(0).unwrap();
    assert_eq!(count(&object), 1);
    let missing = missing.retry().unwrap_err();
    pins.pop();
    let last = missing.retry().unwrap();
    drop(pins);
    cache.make_room(0).unwrap();
    assert_eq!(count(&object), 1);
    drop(last);
    cache.make_room(0).unwrap();
    assert_eq!(count(&object), 0);
}

#[test]
fn unused_objects_are_evicted_by_the_time_of_their_last_use_and_from_their_end() {
    let dir = tempdir();
    for (number, ago) in [(1, 100), (2, 300), (3, 200)] {
        fill(&open(dir.path()).object(&key(number, 16 * MIB)).unwrap(), number, 0..256);
        set_last_use(dir.path(), |entry| entry.name == Some(format!("object {number}")), ago);
    }
    let cache = open_with_limit(dir.path(), 64 * MIB);
    let used = cache.object(&key(4, 16 * MIB)).unwrap();
    fill(&used, 4, 0..256);
    let names = || -> Vec<_> {
        let list = BlockCache::list(dir.path()).unwrap().entries;
        list.iter().map(|entry| (entry.name.clone().unwrap().pop().unwrap(), entry.present / MIB)).collect()
    };
    assert_eq!(names(), [('4', 16), ('1', 16), ('3', 16), ('2', 16)]);
    assert_eq!(cache.make_room(0).unwrap().freed, 0);
    assert_eq!(cache.make_room(5 * MIB).unwrap().freed, 8 * MIB, "two segments");
    assert_eq!(names(), [('4', 16), ('1', 16), ('3', 16), ('2', 8)]);
    assert_eq!(all(&open(dir.path()).object(&key(2, 16 * MIB)).unwrap()), [0..128]);
    set_last_use(dir.path(), |entry| entry.name.as_deref() == Some("object 2"), 300);
    assert_eq!(cache.make_room(20 * MIB).unwrap().freed, 12 * MIB);
    assert_eq!(names(), [('4', 16), ('1', 16), ('3', 12)]);
    // Objects in use come last.
    let room = cache.make_room(60 * MIB).unwrap();
    assert_eq!((room.freed, room.lacking), (40 * MIB, 0));
    assert_eq!(names(), [('4', 4)]);
    assert_eq!(cache.take_evicted().iter().map(|(_, blocks)| blocks.end - blocks.start).sum::<u64>(), 192);
    assert_eq!(verify(&used, 4), 64);
}

#[test]
fn objects_that_others_use_are_not_evicted() {
    let dir = tempdir();
    let (mine, other) = (open_with_limit(dir.path(), 0), open(dir.path()));
    let (shared, theirs) = (mine.object(&key(1, 8 * MIB)).unwrap(), other.object(&key(2, 8 * MIB)).unwrap());
    let user = other.object(&key(1, 8 * MIB)).unwrap();
    fill(&shared, 1, 0..128);
    fill(&theirs, 2, 0..128);
    let room = mine.make_room(MIB).unwrap();
    assert_eq!((room.freed, room.lacking), (0, 17 * MIB));
    let pruned = clear(dir.path()).unwrap();
    assert_eq!((pruned.removed(), pruned.freed(), pruned.left, pruned.in_use.len()), (0, 0, 16 * MIB, 2));
    assert!(pruned.in_use.iter().all(|entry| entry.in_use));
    assert_eq!((verify(&shared, 1), verify(&user, 1), verify(&theirs, 2)), (128, 128, 128));
    // A sole user evicts again.
    drop(user);
    assert_eq!(mine.make_room(MIB).unwrap().freed, 8 * MIB);
    drop(theirs);
    let pruned = clear(dir.path()).unwrap();
    assert_eq!((pruned.removed(), pruned.freed(), pruned.left, pruned.in_use.len()), (1, 8 * MIB, 0, 1));
    drop(shared);
    assert_eq!(clear(dir.path()).unwrap().removed(), 1);
    assert_eq!(fs::read_dir(dir.path().join("objects")).unwrap().count(), 0);
}

#[test]
fn reader_keeps_its_blocks_after_its_owner_died() {
    let dir = tempdir();
    let first = open(dir.path());
    let object = first.object(&key(1, 8 * MIB)).unwrap();
    fill(&object, 1, 0..128);
    let old = reader(&object);
    let pinned = old.pin(0..BLOCK).unwrap();
    drop((object, first));
    // A new owner does not see the pins of the old reader.
    let second = open_with_limit(dir.path(), 0);
    let object = second.object(&key(1, 8 * MIB)).unwrap();
    assert_eq!(second.make_room(0).unwrap().lacking, 8 * MIB);
    assert_eq!(clear(dir.path()).unwrap().in_use.len(), 1);
    let new = reader(&object);
    assert_eq!(verify(&object, 1), 128);
    assert!(new.pin(0..8 * MIB).is_ok());
    drop((pinned, old));
    assert_eq!(second.make_room(0).unwrap().lacking, 0);
    assert!(new.pin(0..BLOCK).is_err());
}

#[test]
fn prune_leaves_as_much_as_asked_for() {
    let dir = tempdir();
    assert_eq!(prune(&dir.path().join("missing"), 5).unwrap().left, 0);
    for number in 1..=3 {
        fill(&open(dir.path()).object(&key(number, 16 * MIB)).unwrap(), number, 0..256);
        set_last_use(dir.path(), |entry| entry.name == Some(format!("object {number}")), 100 - number);
    }
    let pruned = prune(dir.path(), 100 * MIB).unwrap();
    assert_eq!((pruned.removed(), pruned.freed(), pruned.left), (0, 0, 48 * MIB));
    let pruned = prune(dir.path(), 20 * MIB).unwrap();
    assert_eq!((pruned.removed(), pruned.freed(), pruned.left), (1, 28 * MIB, 20 * MIB));
    let found = [1, 2, 3].map(|number| verify(&open(dir.path()).object(&key(number, 16 * MIB)).unwrap(), number));
    assert_eq!(found, [0, 64, 256]);
    // Objects without blocks, files that others have put there, and a process that was killed while it removed one.
    let strange = dir.path().join("objects").join(format!("{}-{}", "0".repeat(32), "1".repeat(32)));
    fs::create_dir(&strange).unwrap();
    fs::write(strange.join("something"), "").unwrap();
    fs::write(dir.path().join("objects/other"), "").unwrap();
    assert_eq!(clear(dir.path()).unwrap().removed(), 4);
    let left: Vec<_> =
        fs::read_dir(dir.path().join("objects")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["other"]);
}

#[test]
fn sparse_file_occupies_no_more_than_its_blocks() {
    let dir = tempdir();
    let cache = open(dir.path());
    let object = cache.object(&key(1, 700 << 30)).unwrap();
    for block in [0, 1_000_000, object.blocks - 1] {
        fill(&object, 1, block..block + 1);
    }
    assert_eq!(fs::metadata(file(dir.path(), "data")).unwrap().blocks() * 512, 3 * BLOCK);
    assert!(fs::metadata(file(dir.path(), "table")).unwrap().blocks() * 512 <= 4 * 4096);
    assert_eq!(verify_sparse(&object), 3);
    assert_eq!(cache.evict(u64::MAX).unwrap().freed, 3 * BLOCK);
    assert_eq!(cache.size().unwrap(), 0);
}

#[test]
fn space_that_is_allocated_for_a_transfer_is_freed_when_it_ends_early() {
    let dir = tempdir();
    let cache = open(dir.path());
    let object = cache.object(&key(1, 16 * MIB)).unwrap();
    let occupied = || fs::metadata(file(dir.path(), "data")).unwrap().blocks() * 512;
    let write = |bytes: u64| {
        let mut incoming = object.incoming(MIB..5 * MIB);
        _ = incoming.write(&content(1, MIB..MIB + bytes)).unwrap();
        incoming
    };
    let incoming = write(3 * BLOCK + 5);
    let during = occupied();
    drop(incoming);
    assert_eq!((during, occupied()), (MIB, 3 * BLOCK));
    assert_eq!(verify(&object, 1), 3);
    // All of it arrives.
    drop(write(4 * MIB));
    assert_eq!((occupied(), verify(&object, 1)), (4 * MIB, 64));

    // What another session may be writing is kept. It counts, and is evicted in the end.
    let other = open(dir.path());
    let user = other.object(&key(1, 16 * MIB)).unwrap();
    assert_eq!(cache.evict(u64::MAX).unwrap().freed, 0, "two sessions use it");
    let mut incoming = object.incoming(12 * MIB..16 * MIB);
    _ = incoming.write(&content(1, 12 * MIB..12 * MIB + 5)).unwrap();
    drop(incoming);
    assert_eq!(occupied(), 5 * MIB);
    drop((user, other));
    assert_eq!(cache.evict(u64::MAX).unwrap().freed, 5 * MIB);
    assert_eq!((occupied(), cache.size().unwrap()), (0, 0));
}

#[test]
fn object_that_has_only_allocated_space_is_removed() {
    let dir = tempdir();
    let sessions = [open(dir.path()), open(dir.path())];
    let objects = sessions.each_ref().map(|cache| cache.object(&key(1, 8 * MIB)).unwrap());
    let mut incoming = objects[0].incoming(0..MIB);
    _ = incoming.write(&content(1, 0..5)).unwrap();
    drop(incoming);
    drop(objects);
    assert_eq!(sessions[0].size().unwrap(), MIB);
    let pruned = prune(dir.path(), 4096).unwrap();
    assert_eq!((pruned.removed(), pruned.freed(), pruned.left), (1, MIB, 0));
}

fn verify_sparse(object: &CachedObject) -> usize {
    [0, 1_000_000, object.blocks - 1].iter().filter(|&&block| object.has(block..block + 1).unwrap().len() == 1).count()
}

/// Takes the lock that a process holds while it opens or evicts an object.
fn lock_gate(file: &fs::File, kind: nix::libc::c_int) {
    use nix::fcntl::{FcntlArg, fcntl};
    let lock = nix::libc::flock { l_type: kind as _, l_whence: 0, l_start: 1, l_len: 1, l_pid: 0 };
    fcntl(file, FcntlArg::F_OFD_SETLK(&lock)).unwrap();
}

#[test]
fn object_that_another_process_opens_is_not_evicted_and_waiting_for_it_ends() {
    let dir = tempdir();
    fill(&open(dir.path()).object(&key(1, BLOCK)).unwrap(), 1, 0..1);
    let other = fs::File::options().read(true).write(true).open(file(dir.path(), "lock")).unwrap();
    lock_gate(&other, nix::libc::F_WRLCK);
    assert_eq!(clear(dir.path()).unwrap().in_use.len(), 1);
    assert_eq!(open(dir.path()).evict(BLOCK).unwrap().lacking, BLOCK);
    // The other process was stopped.
    let error = open(dir.path()).object(&key(1, BLOCK)).unwrap_err();
    assert!(matches!(error, CacheError::Busy { seconds: 10, .. }), "{error}");
    // It goes on.
    let (path, (sender, receiver)) = (dir.path().to_owned(), std::sync::mpsc::channel());
    let thread = std::thread::spawn(move || {
        sender.send(()).unwrap();
        verify(&open(&path).object(&key(1, BLOCK)).unwrap(), 1)
    });
    receiver.recv().unwrap();
    std::thread::sleep(Duration::from_millis(100));
    assert!(!thread.is_finished());
    lock_gate(&other, nix::libc::F_UNLCK);
    assert_eq!(thread.join().unwrap(), 1);
}

#[test]
fn several_sessions_keep_a_common_limit() {
    let dir = tempdir();
    let limit = 32 * MIB;
    let sessions = [1, 2, 3, 4].map(|number| {
        let cache = open_with_limit(dir.path(), limit);
        let object = cache.object(&key(number, 100 * MIB)).unwrap();
        (cache, object, number)
    });
    for step in 0..100 {
        for (cache, object, number) in &sessions {
            let blocks = step * 16..(step + 1) * 16;
            let room = cache.make_room(MIB).unwrap();
            // Each one has at most its own object to evict from, and that suffices here.
            assert_eq!(room.lacking, 0, "step {step}");
            fill(object, *number, blocks);
            assert!(cache.size().unwrap() <= limit, "step {step}");
        }
    }
    for (_, object, number) in &sessions {
        assert!(verify(object, *number) > 0);
    }
}

#[test]
fn object_that_cannot_be_removed_does_not_keep_others_from_being_evicted() {
    let dir = tempdir();
    fill(&open(dir.path()).object(&key(1, BLOCK)).unwrap(), 1, 0..1);
    // Made by hand. It has blocks and no use for a longer time than the other one.
    let strange = file(dir.path(), "sub");
    fs::create_dir(&strange).unwrap();
    fs::write(strange.join("file"), "").unwrap();
    set_last_use(dir.path(), |entry| entry.name.as_deref() == Some("object 1"), 1000);
    fill(&open(dir.path()).object(&key(2, BLOCK)).unwrap(), 2, 0..1);
    let cache = open_with_limit(dir.path(), BLOCK);
    let room = cache.make_room(0).unwrap();
    assert_eq!((room.freed, room.lacking), (BLOCK, 0));
    let pruned = clear(dir.path()).unwrap();
    assert_eq!((pruned.removed(), pruned.failed.len()), (0, 1));
    assert!(pruned.failed[0].to_string().contains("objects/"), "{}", pruned.failed[0]);
    // The strange one is empty, and can be used again.
    let object = cache.object(&key(1, BLOCK)).unwrap();
    assert_eq!(verify(&object, 1), 0);
    fill(&object, 1, 0..1);
    assert_eq!(verify(&object, 1), 1);
}
