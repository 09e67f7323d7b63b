//! What a loss of power, a bad disk, or another program may do to the files of an object.

use crate::support::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use weightfs::remote::cache::{BlockCache, CacheError};
use weightfs::source::pins::BLOCK;

const TABLE_HEADER: u64 = 64;

fn overwrite(path: &Path, at: u64, bytes: &[u8]) {
    OpenOptions::new().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

fn resize(path: &Path, len: u64) {
    OpenOptions::new().write(true).open(path).unwrap().set_len(len).unwrap();
}

/// The number of present blocks in a session after the system was started again.
fn verify_in_boot(dir: &Path, boot: &str, len: u64) -> u64 {
    verify(&open_in_boot(dir, boot).object(&key(1, len)).unwrap(), 1)
}

#[test]
fn blocks_lost_with_the_power_are_absent_and_can_be_fetched_again() {
    let dir = tempdir();
    let len = 12 * BLOCK - 100;
    fill(&open_in_boot(dir.path(), "one").object(&key(1, len)).unwrap(), 1, 0..12);
    let data = file(dir.path(), "data");
    // Never written, written in part, one wrong bit, and the last page of the last block.
    overwrite(&data, 2 * BLOCK, &vec![0; BLOCK as usize]);
    overwrite(&data, 5 * BLOCK + 4096, &[0; 512]);
    overwrite(&data, 7 * BLOCK + 99, &[content(1, 7 * BLOCK + 99..7 * BLOCK + 100)[0] ^ 4]);
    overwrite(&data, len - 10, &[0; 10]);

    let object = open_in_boot(dir.path(), "two").object(&key(1, len)).unwrap();
    // What is not asked for is not verified, so it is not present yet.
    assert_eq!(object.has(1..4).unwrap(), [1..2, 3..4]);
    assert!(!is_present(&object, 4));
    assert_eq!(all(&object), [0..2, 3..5, 6..7, 8..11]);
    assert_eq!(verify(&object, 1), 8);
    for block in [2, 5, 7, 11] {
        fill(&object, 1, block..block + 1);
    }
    assert_eq!(verify(&object, 1), 12);
    drop(object);
    // Blocks of both earlier sessions.
    assert_eq!(verify_in_boot(dir.path(), "three", len), 12);
}

#[test]
fn verified_block_is_not_read_again_in_the_same_boot() {
    let dir = tempdir();
    fill(&open_in_boot(dir.path(), "one").object(&key(1, 3 * BLOCK)).unwrap(), 1, 0..3);
    assert_eq!(all(&open_in_boot(dir.path(), "two").object(&key(1, 3 * BLOCK)).unwrap()), [0..3]);
    // Damage as no loss of power can cause it now shows which blocks are read.
    overwrite(&file(dir.path(), "data"), BLOCK, &[0; 8]);
    assert_eq!(all(&open_in_boot(dir.path(), "two").object(&key(1, 3 * BLOCK)).unwrap()), [0..3]);
    assert_eq!(all(&open_in_boot(dir.path(), "one").object(&key(1, 3 * BLOCK)).unwrap()), [0..1, 2..3]);
}

#[test]
fn copied_cache_is_verified() {
    let dir = tempdir();
    fill(&open(dir.path()).object(&key(1, 3 * BLOCK)).unwrap(), 1, 0..3);
    let data = file(dir.path(), "data");
    let copy = data.with_extension("copy");
    fs::copy(&data, &copy).unwrap();
    overwrite(&copy, BLOCK, &[0; 8]);
    fs::rename(&copy, &data).unwrap();
    assert_eq!(all(&open(dir.path()).object(&key(1, 3 * BLOCK)).unwrap()), [0..1, 2..3]);
}

#[test]
fn data_file_of_another_size_makes_the_object_empty() {
    for size in [0, 1, 3 * BLOCK, 4 * BLOCK - 1, 4 * BLOCK + 1] {
        let dir = tempdir();
        let cache = open(dir.path());
        let object = cache.object(&key(1, 4 * BLOCK)).unwrap();
        fill(&object, 1, 0..3);
        resize(&file(dir.path(), "data"), size);
        let error = object.has(0..4).unwrap_err();
        assert!(matches!(error, CacheError::Resized { len, now, .. } if len == 4 * BLOCK && now == size), "{error}");
        // Another session gets a new file; extending the old one would show zeros in this session.
        let other = open(dir.path()).object(&key(1, 4 * BLOCK)).unwrap();
        assert!(all(&other).is_empty());
        fill(&other, 1, 0..4);
        assert_eq!(verify(&other, 1), 4);
        assert_eq!(object.data().metadata().unwrap().len(), size);
        drop((object, other));
        assert_eq!(verify(&cache.object(&key(1, 4 * BLOCK)).unwrap(), 1), 4);
    }
}

#[test]
fn truncated_table_makes_the_object_empty() {
    let full = TABLE_HEADER + 4 * 8;
    for size in (0..full).step_by(7).chain([full - 1, full + 8]) {
        let dir = tempdir();
        let object = open(dir.path()).object(&key(1, 4 * BLOCK)).unwrap();
        fill(&object, 1, 0..3);
        let table = file(dir.path(), "table");
        assert_eq!(fs::metadata(&table).unwrap().len(), full);
        resize(&table, size);
        // The session that has them in use still has the bytes, and adds more.
        fill(&object, 1, 3..4);
        assert_eq!(verify(&object, 1), 4);
        drop(object);
        let object = open(dir.path()).object(&key(1, 4 * BLOCK)).unwrap();
        let found = verify(&object, 1);
        // The last block was written at its place in the table, which has extended a short table again.
        match size {
            _ if size < TABLE_HEADER || size > full => assert_eq!(found, 0, "{size} bytes"),
            _ => assert!(found >= 1, "{size} bytes"),
        }
        fill(&object, 1, 0..4);
        assert_eq!(verify(&object, 1), 4);
    }
}

#[test]
fn damaged_description_costs_no_bytes_and_is_repaired() {
    let dir = tempdir();
    fill(&open(dir.path()).object(&key(1, 4 * BLOCK)).unwrap(), 1, 0..3);
    let about = file(dir.path(), "about.json");
    let good = fs::read(&about).unwrap();
    for damaged in [&b""[..], &good[..good.len() / 2], b"{}", b"[1]", &[0; 100], &[b'['; 1 << 20]] {
        fs::write(&about, damaged).unwrap();
        let list = BlockCache::list(dir.path()).unwrap().entries;
        assert_eq!((list.len(), list[0].name.clone(), list[0].present), (1, None, 3 * BLOCK));
        assert_eq!(verify(&open(dir.path()).object(&key(1, 4 * BLOCK)).unwrap(), 1), 3);
        assert_eq!(fs::read(&about).unwrap(), good);
    }
    fs::remove_file(&about).unwrap();
    assert_eq!(verify(&open(dir.path()).object(&key(1, 4 * BLOCK)).unwrap(), 1), 3);
    assert_eq!(fs::read(&about).unwrap(), good);
}

#[test]
fn removed_cache_does_not_disturb_its_users() {
    let dir = tempdir();
    let cache = open(dir.path());
    let object = cache.object(&key(1, 4 * BLOCK)).unwrap();
    fill(&object, 1, 0..3);
    fs::remove_dir_all(dir.path().join("objects")).unwrap();
    fill(&object, 1, 3..4);
    assert_eq!(verify(&object, 1), 4);
    assert!(cache.evict(BLOCK).is_ok());
    drop(object);
    assert!(cache.object(&key(1, 4 * BLOCK)).is_err(), "the directory that this session has open is gone");
    assert!(all(&open(dir.path()).object(&key(1, 4 * BLOCK)).unwrap()).is_empty());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The disk has any mixture of old and new states of the sectors of both files, as after a loss of power.
    #[test]
    fn any_mixture_of_old_and_new_sectors_gives_right_bytes(
        before in vec(0..16u64, 0..8), after in vec(0..16u64, 1..8), kept in any::<u64>(), evict in any::<bool>(),
    ) {
        let dir = tempdir();
        let len = 16 * BLOCK - 1;
        let cache = open_in_boot(dir.path(), "one");
        let object = cache.object(&key(1, len)).unwrap();
        for block in before {
            fill(&object, 1, block..block + 1);
        }
        let paths = [file(dir.path(), "data"), file(dir.path(), "table")];
        let old = paths.clone().map(|path| fs::read(path).unwrap());
        for (at, block) in after.iter().enumerate() {
            fill(&object, 1, *block..block + 1);
            if evict && at == after.len() / 2 {
                cache.evict(1).unwrap();
            }
        }
        drop((object, cache));
        let mut random = Random(kept);
        for (path, old) in paths.iter().zip(old) {
            let mut mixed = fs::read(path).unwrap();
            prop_assert_eq!(mixed.len(), old.len());
            for (new, old) in mixed.chunks_mut(512).zip(old.chunks(512)) {
                // Most sectors of a block have the same state, so that some blocks are complete.
                match random.below(40) {
                    0 => new.copy_from_slice(old),
                    1 => new.fill(0),
                    _ => {}
                }
            }
            // The table has one sector here, so its entries are mixed too.
            if path.ends_with("table") {
                for (new, old) in mixed.chunks_mut(8).skip(8).zip(old.chunks(8).skip(8)) {
                    if random.below(4) == 0 {
                        new.copy_from_slice(old);
                    }
                }
            }
            overwrite(path, 0, &mixed);
        }
        verify_in_boot(dir.path(), "two", len);
        let object = open_in_boot(dir.path(), "two").object(&key(1, len)).unwrap();
        fill(&object, 1, 0..16);
        prop_assert_eq!(verify(&object, 1), 16);
    }

    /// Garbage in the table, in the same boot, where blocks are not compared with their checksums.
    #[test]
    fn garbage_in_the_table_gives_right_bytes(
        written in vec(0..16u64, 0..16), garbage in vec((0..(TABLE_HEADER + 128), any::<u8>()), 1..40),
    ) {
        let dir = tempdir();
        let object = open(dir.path()).object(&key(1, 16 * BLOCK)).unwrap();
        for &block in &written {
            fill(&object, 1, block..block + 1);
        }
        drop(object);
        for (at, byte) in garbage {
            overwrite(&file(dir.path(), "table"), at, &[byte]);
        }
        let object = open(dir.path()).object(&key(1, 16 * BLOCK)).unwrap();
        prop_assert!(verify(&object, 1) <= written.len() as u64);
        fill(&object, 1, 0..16);
        prop_assert_eq!(verify(&object, 1), 16);
    }
}
