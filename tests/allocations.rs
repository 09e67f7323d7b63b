//! A raw read does not allocate memory, unless it is short: it returns a slice of the memory map. A message between
//! processes takes memory for what its packet holds, and not for what it claims.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
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

struct Counting;

// SAFETY: all calls are forwarded to the system allocator. Counting only changes a thread-local number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        ALLOCATED.set(ALLOCATED.get() + layout.size());
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `GlobalAlloc::dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn raw_read_does_not_allocate() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let header = br#"{"a.b":{"dtype":"F32","shape":[25000],"data_offsets":[0,100000]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[7; 100_000]].concat();
    std::fs::write(file.path(), bytes).unwrap();
    let model = model::open_model(&file.path().into(), ParseMode::Strict).unwrap();
    let opened = OpenedModel::Model(model.into());
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
