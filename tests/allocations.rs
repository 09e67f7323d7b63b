//! A raw read does not allocate memory, unless it is short: it returns a slice of the memory map.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(unsafe_code, reason = "GlobalAlloc is an unsafe trait")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use weightfs::content::Request;
use weightfs::format::Mode;
use weightfs::fs::{Ownership, ROOT, Superblock};
use weightfs::model::{self, Opened};
use weightfs::source::Bytes;
use weightfs::view::Shown;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: all calls are forwarded to the system allocator. Counting only changes a thread-local number.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
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
    let model = model::open_model(&file.path().into(), Mode::Strict).unwrap();
    let opened = Opened::Model(model.into());
    let superblock = Superblock::new(opened, Shown::default(), Ownership::default()).unwrap();
    let request = Request::NOWAIT;
    let tensors = superblock.lookup(ROOT, b"tensors", &request).unwrap().ino;
    let ino = superblock.lookup(tensors, b"a.b", &request).unwrap().ino;
    let before = ALLOCATIONS.get();
    let content = superblock.open(ino, &request).unwrap();
    let wait = content.waits_for(&(4..90_000));
    let read = content.read(4..90_000, &request).unwrap();
    let attr = superblock.getattr(ino, &request).unwrap();
    let after = ALLOCATIONS.get();
    assert_eq!(wait, None);
    assert!(matches!(&read, Bytes::Mapped(_)) && read[..] == [7; 89_996]);
    assert_eq!(attr.size, 100_000);
    assert_eq!(after - before, 0);
    // The counter counts allocations at all.
    drop(Box::new(1));
    assert!(ALLOCATIONS.get() > after);
}
