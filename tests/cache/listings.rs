//! Kept listings: what locations led to.

use crate::support::*;
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use weightfs::remote::cache::{BlockCache, CacheError};
use weightfs::source::pins::BLOCK;

const LOCATION: &str = "hf://org/model@main";

/// The files of the listings.
fn files(dir: &Path) -> Vec<PathBuf> {
    let all = fs::read_dir(dir.join("listings")).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| path.file_name().unwrap() != "lock").collect()
}

/// The file of the only listing.
fn only_file(dir: &Path) -> PathBuf {
    let mut files = files(dir);
    assert_eq!(files.len(), 1, "{files:?}");
    files.remove(0)
}

#[test]
fn listing_is_found_by_its_location_until_another_replaces_it() {
    let dir = tempdir();
    let cache = open(dir.path());
    assert_eq!(cache.kept_listing(LOCATION), None);
    assert!(!dir.path().join("listings").exists(), "looking creates nothing");
    let large = content(1, 0..3 << 20);
    for listing in [&b"a listing"[..], b"", &large, b"\0"] {
        cache.keep_listing(LOCATION, listing).unwrap();
        assert!(open(dir.path()).kept_listing(LOCATION).unwrap() == listing);
    }
    cache.keep_listing("hf://org/other", b"other").unwrap();
    assert_eq!(cache.kept_listing(LOCATION).as_deref(), Some(&b"\0"[..]));
    assert_eq!(cache.kept_listing("hf://org/other").as_deref(), Some(&b"other"[..]));
    assert_eq!(cache.kept_listing("hf://org/othe"), None);
    // The location is not there in plain text.
    assert_eq!(files(dir.path()).len(), 2);
    for path in files(dir.path()) {
        let bytes = [path.to_str().unwrap().as_bytes(), &fs::read(&path).unwrap()].concat();
        assert!(!bytes.windows(3).any(|part| part == b"org"), "{}", path.display());
    }
}

#[test]
fn damaged_listing_is_absent_and_can_be_kept_again() {
    let dir = tempdir();
    let cache = open(dir.path());
    cache.keep_listing(LOCATION, b"listing").unwrap();
    let path = only_file(dir.path());
    let whole = fs::read(&path).unwrap();
    let check = |bytes: &[u8], expected: Option<&[u8]>| {
        fs::write(&path, bytes).unwrap();
        assert_eq!(cache.kept_listing(LOCATION).as_deref(), expected, "{bytes:?}");
    };
    for at in 0..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        check(&changed, None);
        check(&whole[..at], None);
    }
    check(&[&whole[..], &[0]].concat(), None);
    check(&vec![0; whole.len()], None);
    check(&whole, Some(b"listing"));
    // The listing of another location under this name.
    cache.keep_listing("hf://org/other", b"listing").unwrap();
    let other = files(dir.path()).into_iter().find(|file| *file != path).unwrap();
    check(&fs::read(other).unwrap(), None);
    cache.keep_listing(LOCATION, b"new").unwrap();
    assert_eq!(cache.kept_listing(LOCATION).as_deref(), Some(&b"new"[..]));
}

#[test]
fn other_files_in_the_way_are_replaced_and_not_followed() {
    let dir = tempdir();
    let cache = open(&dir.path().join("cache"));
    cache.keep_listing(LOCATION, b"listing").unwrap();
    let path = only_file(&dir.path().join("cache"));
    let whole = fs::read(&path).unwrap();
    let victim = dir.path().join("victim");
    for name in [path.clone(), path.with_file_name("new")] {
        fs::write(&victim, &whole).unwrap();
        _ = fs::remove_file(&name);
        symlink(&victim, &name).unwrap();
        if name == path {
            assert_eq!(cache.kept_listing(LOCATION), None);
        }
        cache.keep_listing(LOCATION, b"again").unwrap();
        assert_eq!(cache.kept_listing(LOCATION).as_deref(), Some(&b"again"[..]));
        assert_eq!(fs::read(&victim).unwrap(), whole);
    }
    // A directory, and what a process that was killed has left.
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    fs::write(path.with_file_name("new"), "half of a list").unwrap();
    assert_eq!(cache.kept_listing(LOCATION), None);
    cache.keep_listing(LOCATION, b"listing").unwrap();
    assert_eq!(fs::read(only_file(&dir.path().join("cache"))).unwrap(), whole);
}

#[test]
fn listing_of_more_than_64_mib_is_not_kept_and_leaves_no_older_one() {
    let dir = tempdir();
    let cache = open(dir.path());
    let mut listing = vec![1; 64 << 20];
    cache.keep_listing(LOCATION, &listing).unwrap();
    assert!(cache.kept_listing(LOCATION).unwrap() == listing);
    listing.push(1);
    let error = cache.keep_listing(LOCATION, &listing).unwrap_err();
    assert!(matches!(error, CacheError::TooLarge { len: 67_108_865, .. }), "{error}");
    assert!(error.to_string().starts_with("the listing of hf://org/model@main: 67108865 bytes"), "{error}");
    assert_eq!(cache.kept_listing(LOCATION), None, "the location leads to other files now");
    assert!(files(dir.path()).is_empty());
}

#[test]
fn least_recently_used_listings_are_removed_when_all_are_too_large() {
    let dir = tempdir();
    let cache = open(dir.path());
    let listings: Vec<String> = (0..5).map(|number| format!("hf://org/{number}")).collect();
    for (location, seconds_ago) in listings.iter().zip([500, 400, 300, 200]) {
        let known: BTreeSet<PathBuf> = if dir.path().join("listings").exists() {
            files(dir.path()).into_iter().collect()
        } else {
            BTreeSet::new()
        };
        cache.keep_listing(location, location.as_bytes()).unwrap();
        let new = files(dir.path()).into_iter().find(|path| !known.contains(path)).unwrap();
        let file = fs::File::options().write(true).open(new).unwrap();
        // Sparse, so that the test does not write 256 MiB.
        file.set_len(if location == &listings[3] { 200 << 20 } else { 20 << 20 }).unwrap();
        file.set_modified(SystemTime::now() - Duration::from_secs(seconds_ago)).unwrap();
    }
    // 260 MiB. The first is used, so that the second is the oldest.
    let first = files(dir.path()).into_iter().min_by_key(|path| path.metadata().unwrap().modified().unwrap()).unwrap();
    fs::File::options().write(true).open(&first).unwrap().set_len(32 + listings[0].len() as u64).unwrap();
    assert_eq!(cache.kept_listing(&listings[0]).unwrap(), listings[0].as_bytes());
    fs::File::options().write(true).open(&first).unwrap().set_len(20 << 20).unwrap();
    cache.keep_listing(&listings[4], b"new").unwrap();
    let sizes: Vec<u64> = files(dir.path()).iter().map(|path| path.metadata().unwrap().len()).collect();
    assert_eq!((sizes.len(), sizes.iter().sum::<u64>() >> 20), (4, 240), "one was enough");
    assert!(first.exists());
    assert_eq!(cache.kept_listing(&listings[4]).as_deref(), Some(&b"new"[..]));
}

/// Keeps listings again and again until it is killed.
#[test]
#[ignore = "run by another test in a separate process"]
fn keeper() {
    let job = job();
    let cache = open(Path::new(&job[0]));
    for round in 0.. {
        let number: u64 = job[1].parse().unwrap();
        cache.keep_listing(LOCATION, &listing(number, round)).unwrap();
        if round == 0 {
            println!("ready");
        }
    }
}

/// A listing that says itself which one it is.
fn listing(number: u64, round: u64) -> Vec<u8> {
    let round = round % 16;
    let mut listing = vec![number as u8, round as u8];
    listing.extend(content(number * 16 + round, 0..1 + round * 20_000));
    listing
}

fn find(cache: &BlockCache) -> Vec<u8> {
    let found = cache.kept_listing(LOCATION).expect("there is always a whole one");
    assert!(found == listing(found[0].into(), found[1].into()), "a mixture");
    found
}

#[test]
fn killed_writers_leave_a_whole_listing() {
    use std::io::{BufRead, BufReader};
    let dir = tempdir_alone();
    let cache = open(dir.path());
    let mut random = Random(4);
    let mut seen = BTreeSet::new();
    for round in 0..20 {
        let mut both = [2 * round, 2 * round + 1].map(|number| {
            let job = format!("{}\n{number}", dir.path().display());
            let mut process = Process::start("listings::keeper", &job);
            let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().ends_with("ready")));
            process
        });
        for _ in 0..5 {
            _ = find(&cache);
        }
        std::thread::sleep(Duration::from_micros(random.below(20_000)));
        both.iter_mut().for_each(|process| assert!(process.0.try_wait().unwrap().is_none()));
        drop(both);
        seen.insert(find(&cache)[..2].to_vec());
    }
    assert!(seen.len() >= 10, "{seen:?}");
    // Objects and listings do not disturb each other.
    fill(&cache.object(&key(1, BLOCK)).unwrap(), 1, 0..1);
    cache.keep_listing(LOCATION, b"last").unwrap();
    assert_eq!(files(dir.path()).len(), 1, "no temporary file is left");
}
