//! Several processes that use, fill and evict the same objects, and readers that compare each byte.
//!
//! A *session* is a process with a cache, and a reader in another process, to which it passes descriptors. They talk
//! over a socket: the reader sends the blocks that it waits for, and the session answers when they are there.

use crate::support::*;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};
use weightfs::remote::cache::{BlockCache, CachedObject};
use weightfs::source::pins::{BLOCK, PinnedBlocks, PinnedReader};

/// 12 segments and a bit.
const LEN: u64 = (48 << 20) + 1234;

/// What each session must have seen: reads, reads that had to wait, and evicted runs of blocks.
const ENOUGH: [u64; 3] = [1000, 100, 100];

/// How many readers each session must have had, one after the other.
const READERS: u64 = 16;

/// When a session gives up, which fails the test.
const PATIENCE: Duration = Duration::from_secs(300);

/// Takes over a descriptor from the process that has started this one.
fn inherited(number: &str) -> OwnedFd {
    // SAFETY: the parent has left this descriptor open for this process, which takes each number only once.
    #[allow(unsafe_code)]
    unsafe {
        OwnedFd::from_raw_fd(number.parse().unwrap())
    }
}

/// Reads blocks at random, in three threads, a given number of times.
#[test]
#[ignore = "run by another test in a separate process"]
fn child_reader() {
    let job = job();
    let number: u64 = job[0].parse().unwrap();
    let [data, present, marks, lock, socket] = [1, 2, 3, 4, 5].map(|at| inherited(&job[at]));
    let [seed, count]: [u64; 2] = [6, 7].map(|at| job[at].parse().unwrap());
    let data = File::from(data);
    let reader = PinnedReader::open(LEN, present, marks, lock).unwrap();
    let socket = UnixStream::from(socket);
    let answers = BufReader::new(socket.try_clone().unwrap());
    let channel = Mutex::new((socket, answers));
    let (reads, waits) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        for thread in 0..3 {
            let (reader, channel, data, reads, waits) = (&reader, &channel, &data, &reads, &waits);
            scope.spawn(move || {
                let mut random = Random(seed * 1000 + thread);
                for _ in 0..count {
                    let start = random.below(LEN);
                    let range = start..(start + 1 + random.below(5 * BLOCK)).min(LEN);
                    let Some(pinned) = pin(reader, &range, channel, waits) else { return };
                    if random.below(4) == 0 {
                        thread::sleep(Duration::from_micros(random.below(300)));
                    }
                    let mut found = vec![0; (range.end - range.start) as usize];
                    data.read_exact_at(&mut found, range.start).unwrap();
                    drop(pinned);
                    assert!(found == content(number, range.clone()), "wrong bytes in {range:?} of object {number}");
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
    });
    println!("reads {} waits {}", reads.into_inner(), waits.into_inner());
}

/// Waits for the owner until the blocks are there. `None` if the owner was killed.
fn pin(
    reader: &Arc<PinnedReader>,
    range: &std::ops::Range<u64>,
    channel: &Mutex<(UnixStream, BufReader<UnixStream>)>,
    waits: &AtomicU64,
) -> Option<PinnedBlocks> {
    let mut missing = match reader.pin(range.clone()) {
        Ok(pinned) => return Some(pinned),
        Err(missing) => missing,
    };
    waits.fetch_add(1, Ordering::Relaxed);
    // Pinned blocks are not evicted, so one answer is enough, unless they were pinned while their eviction began.
    for _ in 0..5 {
        let mut channel = channel.lock().unwrap();
        writeln!(channel.0, "{} {}", missing.blocks().start, missing.blocks().end).ok()?;
        let mut answer = String::new();
        if channel.1.read_line(&mut answer).unwrap_or(0) == 0 {
            return None;
        }
        drop(channel);
        missing = match missing.retry() {
            Ok(pinned) => return Some(pinned),
            Err(missing) => missing,
        };
    }
    panic!("evicted before it was read: {missing:?}");
}

/// Opens objects one after the other, each with a reader, and evicts all the time.
#[test]
#[ignore = "run by another test in a separate process"]
fn child_session() {
    let job = job();
    let mut random = Random(job[1].parse::<u64>().unwrap() * 100_000);
    let start = Instant::now();
    let (mut totals, mut readers) = ([0; 3], 0);
    let is_enough = |totals: [u64; 3]| totals.iter().zip(ENOUGH).all(|(total, enough)| *total >= enough);
    while readers < READERS || !is_enough(totals) {
        assert!(start.elapsed() < PATIENCE, "{readers} readers, {totals:?}");
        let cache = open_with_limit(Path::new(&job[0]), 20 << 20);
        let number = 1 + random.below(3);
        let object = cache.object(&key(number, LEN)).unwrap();
        let new = serve(&cache, &object, number, [random.next() % 1_000_000, 20 + random.below(150)]);
        totals.iter_mut().zip(new).for_each(|(total, new)| *total += new);
        readers += 1;
    }
    println!("\nreads {} waits {} evicted {}", totals[0], totals[1], totals[2]);
}

/// One reader of one object, with a seed and a number of reads for each thread. Returns the number of its reads, of
/// those that had to wait, and of evicted runs.
fn serve(cache: &BlockCache, object: &CachedObject, number: u64, [seed, count]: [u64; 2]) -> [u64; 3] {
    let [data, present, marks, lock] = descriptors(object);
    let (mine, theirs) = UnixStream::pair().unwrap();
    let passed = [data, present, marks, lock, theirs.into()];
    for descriptor in &passed {
        fcntl(descriptor, FcntlArg::F_SETFD(FdFlag::empty())).unwrap();
    }
    let numbers: Vec<String> = passed.iter().map(|descriptor| descriptor.as_raw_fd().to_string()).collect();
    let job = format!("{number}\n{}\n{seed}\n{count}", numbers.join("\n"));
    let process = Process::start("processes::child_reader", &job);
    drop(passed);
    let (done, evicted) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = Random(seed);
            while !done.load(Ordering::Relaxed) {
                _ = cache.evict(1 + random.below(16 << 20)).unwrap();
                evicted.fetch_add(cache.take_evicted().len() as u64, Ordering::Relaxed);
                thread::sleep(Duration::from_micros(random.below(3000)));
            }
        });
        let mut answers = mine.try_clone().unwrap();
        let mut random = Random(seed + 1);
        for line in BufReader::new(mine).lines() {
            let line = line.unwrap();
            let (start, end) = line.split_once(' ').unwrap();
            let blocks = start.parse().unwrap()..end.parse().unwrap();
            let present: Vec<u64> = object.has(blocks.clone()).unwrap().into_iter().flatten().collect();
            for block in blocks.clone().filter(|block| !present.contains(block)) {
                let range = bytes_of(object, block..block + 1);
                let middle = range.start + random.below(range.end - range.start);
                let parts =
                    if random.below(2) == 0 { vec![range] } else { vec![range.start..middle, middle..range.end] };
                for part in parts {
                    _ = object.write(part.start, &content(number, part)).unwrap();
                }
            }
            // Read-ahead, which nobody waits for.
            if blocks.end < object.blocks {
                fill(object, number, blocks.end..blocks.end + 1);
            }
            writeln!(answers, "ready").unwrap();
        }
        done.store(true, Ordering::Relaxed);
    });
    let text = process.finish();
    let words: Vec<&str> = text.lines().find_map(|line| line.split_once("reads ")).unwrap().1.split(' ').collect();
    [words[0].parse().unwrap(), words[2].parse().unwrap(), evicted.into_inner()]
}

/// What people do meanwhile, until a file is there.
#[test]
#[ignore = "run by another test in a separate process"]
fn child_pruner() {
    let job = job();
    let dir = Path::new(&job[0]);
    let mut random = Random(99);
    let mut freed = 0;
    while !Path::new(&job[1]).exists() {
        match random.below(4) {
            0 => freed += clear(dir).unwrap().freed(),
            1 => freed += prune(dir, random.below(20 << 20)).unwrap().freed(),
            2 => assert!(BlockCache::list(dir).unwrap().entries.len() <= 3),
            _ => {
                let number = 1 + random.below(3);
                let cache = open(dir);
                let object = cache.object(&key(number, LEN)).unwrap();
                verify_some(&object, number, &mut random);
            }
        }
        thread::sleep(Duration::from_millis(random.below(20)));
    }
    println!("\nfreed {freed}");
}

/// Compares some present blocks, and adds some. As long as it has the object open, others evict nothing from it.
fn verify_some(object: &CachedObject, number: u64, random: &mut Random) {
    let runs = object.has(0..object.blocks).unwrap();
    for block in runs.into_iter().flatten().take(50) {
        let range = bytes_of(object, block..block + 1);
        let mut found = vec![0; (range.end - range.start) as usize];
        object.data().read_exact_at(&mut found, range.start).unwrap();
        assert!(found == content(number, range), "block {block} of object {number}");
    }
    let first = random.below(object.blocks - 8);
    fill(object, number, first..first + 8);
}

#[test]
fn readers_of_several_processes_never_see_a_wrong_byte() {
    let dir = tempdir_alone();
    let path = dir.path().display();
    let sessions = [1, 2].map(|seed| Process::start("processes::child_session", &format!("{path}\n{seed}")));
    let other = tempfile::tempdir().unwrap();
    let end = other.path().join("end");
    let pruner = Process::start("processes::child_pruner", &format!("{path}\n{}", end.display()));
    let numbers = |text: &str, first: &str| -> Vec<u64> {
        let line = text.lines().find(|line| line.starts_with(first)).unwrap();
        line.split(' ').filter_map(|word| word.parse().ok()).collect()
    };
    let mut totals = [0; 3];
    for session in sessions {
        let found = numbers(&session.finish(), "reads ");
        totals.iter_mut().zip(found).for_each(|(total, new)| *total += new);
    }
    File::create(end).unwrap();
    let freed = numbers(&pruner.finish(), "freed ")[0];
    println!("{} reads, {} waits, {} evicted runs, {freed} pruned bytes", totals[0], totals[1], totals[2]);
    assert!(totals.iter().zip(ENOUGH).all(|(total, enough)| *total >= 2 * enough), "{totals:?}");
    for number in 1..=3 {
        verify(&open_in_boot(dir.path(), "other").object(&key(number, LEN)).unwrap(), number);
    }
}
