//! Parts of blocks, until the rest of each block arrives. Bounded: the oldest part is dropped to make room.

use super::key::ObjectDirId;
use crate::source::pins::BLOCK;
use std::ops::Range;

/// Maximum number of incomplete blocks: 8 MiB. Each stream has one at a time.
const PARTS_MAX: usize = 128;

/// Incomplete blocks, the one that was added to last at the end. An object that is opened again finds its parts,
/// because its id is that of the same bytes.
#[derive(Debug, Default)]
pub(super) struct PartialBlocks(Vec<PartialBlock>);

#[derive(Debug)]
struct PartialBlock {
    id: ObjectDirId,
    block: u64,
    bytes: Vec<u8>,
    filled: Range<usize>,
}

impl PartialBlocks {
    /// Number of bytes that are there from the start of a block on. They are the last to be dropped from now on.
    pub fn held(&mut self, id: ObjectDirId, block: u64) -> usize {
        let Some(found) = self.0.iter().position(|part| part.id == id && part.block == block) else { return 0 };
        let part = self.0.remove(found);
        let held = if part.filled.start == 0 { part.filled.end } else { 0 };
        self.0.push(part);
        held
    }

    /// Adds bytes that begin at `at` in a block of `size` bytes. Returns the block if it is complete now.
    pub fn add(&mut self, id: ObjectDirId, block: u64, size: usize, at: usize, bytes: &[u8]) -> Option<Vec<u8>> {
        let found = self.0.iter().position(|part| part.id == id && part.block == block);
        let mut part = match found {
            Some(found) => self.0.remove(found),
            None => PartialBlock { id, block, bytes: vec![0; size.min(BLOCK as usize)], filled: at..at },
        };
        let end = at + bytes.len();
        part.bytes.get_mut(at..end)?.copy_from_slice(bytes);
        let touches = at <= part.filled.end && end >= part.filled.start;
        part.filled = match touches {
            true => part.filled.start.min(at)..part.filled.end.max(end),
            // Bytes between the two are missing. Streams go on where they have stopped, so the old bytes are given up.
            false => at..end,
        };
        if part.filled == (0..part.bytes.len()) {
            return Some(part.bytes);
        }
        if self.0.len() >= PARTS_MAX {
            self.0.remove(0);
        }
        self.0.push(part);
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::CacheKey;
    use super::*;

    fn id(text: &str) -> ObjectDirId {
        ObjectDirId::of(&CacheKey { identity: text.into(), validator: String::new(), len: 0, name: String::new() })
    }

    #[test]
    fn block_is_complete_when_its_parts_meet() {
        let mut parts = PartialBlocks::default();
        assert_eq!(parts.add(id("a"), 0, 6, 0, b"ab"), None);
        assert_eq!(parts.add(id("b"), 0, 6, 2, b"XXXX"), None);
        assert_eq!(parts.add(id("a"), 1, 6, 2, b"YYYY"), None);
        assert_eq!(parts.add(id("a"), 0, 6, 4, b"ef"), None, "there is a gap");
        assert_eq!(parts.add(id("a"), 0, 6, 2, b"cd"), None, "the first part was given up");
        assert_eq!(parts.add(id("a"), 0, 6, 0, b"abc").as_deref(), Some(&b"abcdef"[..]));
        assert_eq!(parts.add(id("a"), 0, 6, 0, b"abc"), None, "complete blocks are not kept");
    }

    #[test]
    fn held_bytes_are_those_from_the_start_of_the_block() {
        let mut parts = PartialBlocks::default();
        assert_eq!(parts.add(id("a"), 0, 6, 0, b"ab"), None);
        assert_eq!(parts.add(id("a"), 1, 6, 2, b"cd"), None);
        assert_eq!([parts.held(id("a"), 0), parts.held(id("a"), 1), parts.held(id("b"), 0)], [2, 0, 0]);
        assert_eq!(parts.add(id("a"), 0, 6, 2, b"cdef").as_deref(), Some(&b"abcdef"[..]));
        assert_eq!(parts.held(id("a"), 0), 0);
    }

    #[test]
    fn number_of_parts_is_bounded() {
        let mut parts = PartialBlocks::default();
        for block in 0..1000 {
            assert_eq!(parts.add(id("a"), block, 2, 0, b"a"), None);
        }
        assert_eq!(parts.0.len(), PARTS_MAX);
        assert_eq!(parts.add(id("a"), 999, 2, 1, b"b").as_deref(), Some(&b"ab"[..]));
        assert_eq!(parts.add(id("a"), 0, 2, 1, b"b"), None, "the oldest was dropped");
    }
}
