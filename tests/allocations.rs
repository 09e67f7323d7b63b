//! A raw read does not allocate memory, unless it is short: it returns a slice of the memory map. A message between
//! processes takes memory for what its packet holds, and not for what it claims. Models take a known number of bytes
//! for each tensor.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fmt::Write;
use std::path::Path;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::sync::{Mutex, PoisonError};
use weightfs::content::ReadRequest;
use weightfs::format::ParseMode;
use weightfs::fs::{Ownership, ROOT, Superblock};
use weightfs::model::{self, OpenedModel};
use weightfs::source::Bytes;
use weightfs::view::ShownViews;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
    /// In bytes. Memory that was freed is counted too.
    static ALLOCATED: Cell<usize> = const { Cell::new(0) };
}

/// Memory of all threads that was not freed, in bytes.
static LIVE: AtomicIsize = AtomicIsize::new(0);

/// Held by each test, because they would count the memory of each other.
static ALONE: Mutex<()> = Mutex::new(());

struct Counting;

// SAFETY: all calls are forwarded to the system allocator. Counting only changes a thread-local number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        ALLOCATED.set(ALLOCATED.get() + layout.size());
        LIVE.fetch_add(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as isize, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn raw_read_does_not_allocate() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let file = tempfile::NamedTempFile::new().unwrap();
    let header = br#"{"a.b":{"dtype":"F32","shape":[25000],"data_offsets":[0,100000]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[7; 100_000]].concat();
    std::fs::write(file.path(), bytes).unwrap();
    let model = model::open_model(&file.path().into(), ParseMode::Strict).unwrap();
    let opened = OpenedModel::Model(model.into(), None);
    let superblock = Superblock::new(opened, ShownViews::default(), Ownership::default()).unwrap();
    let request = ReadRequest::NOWAIT;
    let tensors = superblock.lookup(ROOT, b"tensors", &request).unwrap().ino;
    let ino = superblock.lookup(tensors, b"a.b", &request).unwrap().ino;
    let before = ALLOCATIONS.get();
    let plan = superblock.open(ino, &request).unwrap().plan(4..90_000);
    let read = plan.read(&request).unwrap();
    let attr = superblock.getattr(ino, &request).unwrap();
    let after = ALLOCATIONS.get();
    assert!(matches!(&read, Bytes::Mapped(_)) && read[..] == [7; 89_996]);
    assert_eq!(attr.size, 100_000);
    assert_eq!(after - before, 0);
    // The counter counts allocations at all.
    drop(Box::new(1));
    assert!(ALLOCATIONS.get() > after);
}

#[cfg(feature = "remote")]
#[test]
fn packets_cost_no_memory_for_lengths_that_they_only_claim() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    use weightfs::remote::protocol::{PACKET_MAX, WireReply, decode_message, encode_message};
    let mut whole = encode_message(&WireReply::Entries { id: 1, entries: vec![("a".into(), 1); 1000] }).unwrap();
    // The kind, the request, and the number of entries in two bytes.
    let entries = whole.split_off(2).split_off(2);
    let claims = |len: u64| {
        let mut packet = whole.clone();
        let mut left = len;
        while left >= 0x80 {
            packet.push(left as u8 | 0x80);
            left >>= 7;
        }
        packet.push(left as u8);
        packet
    };
    let filled = |len: u64| [claims(len), entries.repeat(PACKET_MAX / entries.len() - 1)].concat();
    let allocated = |packet: &[u8]| {
        let before = ALLOCATED.get();
        let is_read = decode_message::<WireReply>(packet).is_ok();
        (ALLOCATED.get() - before, is_read)
    };
    let (needed, is_read) = allocated(&filled(20_000));
    assert!(is_read && needed >= 20_000 * 24, "{needed}");
    for len in [20_001, 60_000, 1 << 20, 1 << 32, 1 << 62, u64::MAX] {
        for packet in [claims(len), filled(len)] {
            let (needed, is_read) = allocated(&packet);
            assert!(!is_read && needed < 8 << 20, "{len}: {needed}");
        }
    }
    // A name that claims to be long.
    let (needed, is_read) = allocated(&[claims(1), b"\xff\xff\xff\xff\xff\xff\xff\x7f".to_vec()].concat());
    assert!(!is_read && needed < 1 << 20, "{needed}");
}

const TENSORS: usize = 100_000;

/// Writes a file of tensors from number `start` on and before `end`. Each has a name of 10 bytes and two dimensions,
/// and one in four has another shape.
fn write_tensors(path: &Path, start: usize, end: usize) {
    let mut header = String::from("{");
    let mut offset = 0;
    for number in start..end {
        let size = if number % 4 == 0 { 2 } else { 6 };
        let comma = if number == start { "" } else { "," };
        let (name, data) = (format!("t{number:09}"), format!("[{offset},{}]", offset + size));
        write!(header, r#"{comma}"{name}":{{"dtype":"U8","shape":[2,{}],"data_offsets":{data}}}"#, size / 2).unwrap();
        offset += size;
    }
    header.push('}');
    let data = vec![0; offset];
    std::fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).unwrap();
}

/// The memory that an opened model keeps for each tensor, in bytes.
fn kept_for_each(path: &Path) -> usize {
    let before = LIVE.load(Ordering::Relaxed);
    let model = model::open_model(&path.into(), ParseMode::Strict).unwrap();
    assert_eq!(model.logical().len(), TENSORS);
    // A model of several files makes its table of names at the first lookup.
    assert!(model.find("t000000000").or(model.find("renamed000")).is_some());
    let after = LIVE.load(Ordering::Relaxed);
    usize::try_from(after - before).unwrap() / TENSORS
}

#[test]
fn tensors_take_little_memory_in_one_file_in_shards_and_under_other_names() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    let one = dir.path().join("model.safetensors");
    write_tensors(&one, 0, TENSORS);
    let one_file = kept_for_each(&one);
    std::fs::create_dir(dir.path().join("shards")).unwrap();
    let shard = |number| dir.path().join(format!("shards/model-{number:05}-of-00100.safetensors"));
    (1..=100).for_each(|number| write_tensors(&shard(number), (number - 1) * 1000, number * 1000));
    let shards = kept_for_each(&dir.path().join("shards/model-*-of-00100.safetensors"));
    assert!((50..=60).contains(&one_file), "{one_file} bytes");
    assert!((60..=75).contains(&shards), "{shards} bytes");
}

#[cfg(debug_assertions)]
#[test]
fn renamed_tensors_take_little_more_memory() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().unwrap();
    write_tensors(&dir.path().join("model.safetensors"), 0, TENSORS);
    let renamed = |number: usize| {
        let part = format!(r#"{{"file":"model.safetensors","tensor":"t{number:09}"}}"#);
        format!(r#"{{"name":"renamed{number:03}","is_stack":false,"parts":[{part}]}}"#)
    };
    let tensors: Vec<String> = (0..TENSORS).map(renamed).collect();
    let recipe = dir.path().join("renamed.recipe");
    std::fs::write(&recipe, format!(r#"{{"tensors":[{}]}}"#, tensors.join(","))).unwrap();
    let renamed = kept_for_each(&recipe);
    assert!((100..=120).contains(&renamed), "{renamed} bytes");
}
