//! A raw read takes no memory: it hands out a slice of the map and nothing else.
#![allow(clippy::unwrap_used, reason = "that is how a test fails")]
#![allow(unsafe_code, reason = "an allocator that counts")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use weightfs::format::Mode;
use weightfs::fs::{Ownership, ROOT, Shown, Superblock};
use weightfs::model::{Model, Opened};
use weightfs::source::Bytes;

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is left to the system's allocator; counting touches only a number of this thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

#[test]
fn a_raw_read_allocates_nothing() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let header = br#"{"a.b":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}"#;
    let bytes = [&(header.len() as u64).to_le_bytes()[..], header, &[7; 16]].concat();
    std::fs::write(file.path(), bytes).unwrap();
    let model = Model::open(file.path(), Mode::Strict).unwrap();
    let opened = Opened::Model(model.into());
    let superblock = Superblock::new(opened, Shown::default(), Ownership::default()).unwrap();
    let tensors = superblock.lookup(ROOT, b"tensors").unwrap().ino;
    let ino = superblock.lookup(tensors, b"a.b").unwrap().ino;
    let before = ALLOCATIONS.get();
    let read = superblock.read(ino, 4, 8, &|| false).unwrap();
    let attr = superblock.getattr(ino).unwrap();
    let after = ALLOCATIONS.get();
    assert!(matches!(&read, Bytes::Mapped(bytes) if **bytes == [7; 8]));
    assert_eq!(attr.size, 16);
    assert_eq!(after - before, 0);
    // The count works.
    drop(Box::new(1));
    assert!(ALLOCATIONS.get() > after);
}
