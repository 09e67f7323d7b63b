//! Processes that are killed while they write and evict.

use crate::support::*;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::time::Duration;
use weightfs::source::pins::BLOCK;

const LEN: u64 = 48 << 20;

/// Writes and evicts blocks until it is killed.
#[test]
#[ignore = "run by another test in a separate process"]
fn writer() {
    let job = job();
    let mut random = Random(job[1].parse().unwrap());
    let cache = open_with_limit(Path::new(&job[0]), LEN / 2);
    let objects = [1, 2].map(|number| cache.object(&key(number, LEN)).unwrap());
    for step in 0.. {
        let number = random.below(2);
        let object = &objects[number as usize];
        let first = random.below(object.blocks);
        let range = bytes_of(object, first..(first + 1 + random.below(40)).min(object.blocks));
        cache.make_room(range.end - range.start).unwrap();
        let mut at = range.start;
        let mut incoming = object.incoming(range.clone());
        while at < range.end {
            let end = (at + 1 + random.below(300_000)).min(range.end);
            _ = incoming.write(&content(number + 1, at..end)).unwrap();
            at = end;
        }
        if step == 3 {
            println!("ready");
        }
    }
}

#[test]
fn killed_writer_leaves_only_right_blocks() {
    let dir = tempdir_alone();
    let mut random = Random(11);
    let (mut blocks, mut changes) = (0, 0);
    let mut last = Vec::new();
    for round in 0..40 {
        let mut process = Process::start("crash::writer", &format!("{}\n{round}", dir.path().display()));
        let mut lines = BufReader::new(process.0.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().ends_with("ready")));
        std::thread::sleep(Duration::from_micros(random.below(120_000)));
        assert!(process.0.try_wait().unwrap().is_none(), "the writer does not end by itself");
        drop(process);

        // Its locks are gone, otherwise opening fails after some seconds. What the table has is there: without a loss
        // of power, no block is lost.
        let runs = [1, 2].map(|number| {
            let object = open(dir.path()).object(&key(number, LEN)).unwrap();
            let runs = all(&object);
            blocks += verify(&object, number);
            runs
        });
        for number in [1, 2] {
            let object = open_in_boot(dir.path(), &round.to_string()).object(&key(number, LEN)).unwrap();
            assert_eq!(all(&object), runs[number as usize - 1], "all of them have the right checksum");
        }
        changes += usize::from(runs[..] != last[..]);
        last = runs.to_vec();
    }
    assert!(blocks > 1000 && changes > 20, "{blocks} blocks were verified, and changed {changes} times");
    // Bytes that have no entry are freed too.
    let cache = open_with_limit(dir.path(), 0);
    let objects = [1, 2].map(|number| cache.object(&key(number, LEN)).unwrap());
    let room = cache.make_room(0).unwrap();
    assert_eq!((room.lacking, cache.size().unwrap()), (0, 0));
    assert_eq!(objects.map(|object| all(&object).len()), [0, 0]);
    assert!(room.freed >= BLOCK);
}
