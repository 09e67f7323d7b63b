//! The parts of a file that were read for a parser.

use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Parts of a file of a known size. If a parser returns [`MissingRange`], the caller adds that range and parses again.
#[derive(Debug)]
pub struct HeaderInput {
    len: u64,
    /// In the order of their starts and of their ends: none lies inside another one.
    pieces: Vec<InputPiece>,
    /// The most bytes at the end that a parser asks for at first.
    tail: u64,
    /// What a parser has found, kept because the parser starts again when it needs more bytes.
    kept: OnceLock<Arc<dyn Any + Send + Sync>>,
}

#[derive(Debug)]
struct InputPiece {
    start: u64,
    bytes: Vec<u8>,
}

/// A range of the file that the parser needs and that was not added yet. It is always inside the file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("bytes {} to {} are needed", .0.start, .0.end)]
pub struct MissingRange(pub Range<u64>);

impl HeaderInput {
    /// The input for a file of `len` bytes, still without any part.
    pub fn new(len: u64) -> Self {
        Self { len, pieces: Vec::new(), tail: u64::MAX, kept: OnceLock::new() }
    }

    /// The input for one of many small files, of which parsers at first ask for at most `tail` bytes at the end.
    pub fn with_tail(len: u64, tail: u64) -> Self {
        Self { tail, ..Self::new(len) }
    }

    /// The input for a file of `len` bytes that begins with `prefix`.
    pub fn with_prefix(len: u64, prefix: Vec<u8>) -> Self {
        let mut input = Self::new(len);
        input.add(0, prefix);
        input
    }

    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    pub fn held(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.bytes.len() as u64).sum()
    }

    /// Adds the part of the file at offset `start`. Earlier parts that lie inside it are dropped.
    pub fn add(&mut self, start: u64, bytes: Vec<u8>) {
        let end = start + bytes.len() as u64;
        self.pieces.retain(|piece| piece.start < start || piece.start + piece.bytes.len() as u64 > end);
        let at = self.pieces.partition_point(|piece| piece.start <= start);
        let before = at.checked_sub(1).map(|at| &self.pieces[at]);
        if before.is_none_or(|piece| piece.start + (piece.bytes.len() as u64) < end) {
            self.pieces.insert(at, InputPiece { start, bytes });
        }
    }

    /// The result of `find` when it succeeded, so that a parser that starts again need not find it again. One value
    /// is kept; for a value of another type, `find` is called each time.
    pub fn keep<T: Any + Send + Sync, E>(&self, find: impl FnOnce() -> Result<T, E>) -> Result<Arc<T>, E> {
        if let Some(kept) = self.kept.get().and_then(|kept| kept.clone().downcast().ok()) {
            return Ok(kept);
        }
        let found = Arc::new(find()?);
        // A value of another type stays.
        let _ = self.kept.set(found.clone());
        Ok(found)
    }

    pub fn prefix(&self) -> &[u8] {
        self.pieces.first().filter(|piece| piece.start == 0).map_or(&[], |piece| &piece.bytes)
    }

    /// The longest run of bytes from offset `start` on in one piece; empty if no piece has the byte at `start`.
    pub(super) fn from(&self, start: u64) -> &[u8] {
        // The last one that begins before them reaches farthest.
        let after = self.pieces.partition_point(|piece| piece.start <= start);
        let piece = after.checked_sub(1).map(|at| &self.pieces[at]);
        piece.and_then(|piece| piece.bytes.get(usize::try_from(start - piece.start).ok()?..)).unwrap_or_default()
    }

    pub fn into_prefix(self) -> Vec<u8> {
        let first = self.pieces.into_iter().next().filter(|piece| piece.start == 0);
        first.map_or(Vec::new(), |piece| piece.bytes)
    }

    /// The bytes of `range`, limited to the end of the file. One part must hold all of them.
    pub fn get(&self, range: Range<u64>) -> Result<&[u8], MissingRange> {
        let range = range.start.min(self.len)..range.end.min(self.len);
        if range.is_empty() {
            return Ok(&[]);
        }
        // The last one that begins before the range reaches farthest.
        let after = self.pieces.partition_point(|piece| piece.start <= range.start);
        let found = after.checked_sub(1).and_then(|at| {
            let InputPiece { start, bytes } = &self.pieces[at];
            bytes.get(usize::try_from(range.start - start).ok()?..usize::try_from(range.end - start).ok()?)
        });
        found.ok_or(MissingRange(range))
    }

    /// Fails unless all of these ranges are there.
    pub(super) fn require(&self, ranges: impl IntoIterator<Item = Range<u64>>) -> Result<(), MissingRange> {
        ranges.into_iter().try_for_each(|range| self.get(range).map(drop))
    }
}

/// Joins ranges, which are in the order of their starts, if at most `gap` bytes are between them and they have at most
/// `most` bytes together. Each joined range comes with the number of ranges before it.
pub(super) fn join_ranges(
    ranges: impl IntoIterator<Item = Range<u64>>,
    gap: u64,
    most: u64,
) -> Vec<(usize, Range<u64>)> {
    let mut joined: Vec<(usize, Range<u64>)> = Vec::new();
    for (at, range) in ranges.into_iter().enumerate() {
        match joined.last_mut() {
            Some((_, last))
                if range.start <= last.end.saturating_add(gap) && range.end <= last.start.saturating_add(most) =>
            {
                last.end = range.end.max(last.end);
            }
            _ => joined.push((at, range)),
        }
    }
    joined
}

/// The little-endian number in the `len` bytes at `at`, at most 8. Bytes beyond the end are taken for 0.
pub(super) fn number_at(bytes: &[u8], at: usize, len: usize) -> u64 {
    let bytes = bytes.get(at..).unwrap_or_default().iter().take(len);
    bytes.rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Maximum length of a number of variable size of Protocol Buffers, in bytes.
pub(super) const VARINT_MAX: usize = 10;

/// The number of variable size with which bytes begin, and its length. `None` if it is cut or too long.
/// Source: "Encoding" of the documentation of Protocol Buffers.
pub(super) fn take_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let mut number = 0;
    for (at, byte) in bytes.iter().take(VARINT_MAX).enumerate() {
        number |= u64::from(byte & 0x7f).checked_shl(7 * at as u32).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Some((number, at + 1));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_found_once() {
        let input = HeaderInput::new(1);
        let find = |number: u32| input.keep(|| if number > 1 { Ok(number) } else { Err(()) });
        assert_eq!((find(1), find(2), find(3)), (Err(()), Ok(2.into()), Ok(2.into())));
        assert_eq!(input.keep(|| Ok::<u8, ()>(4)), Ok(4.into()));
    }

    #[test]
    fn missing_range_is_limited_to_the_end_of_the_file() {
        let mut input = HeaderInput::with_prefix(100, (0..10).collect());
        assert_eq!(input.get(2..5), Ok(&[2, 3, 4][..]));
        assert_eq!(input.get(5..20), Err(MissingRange(5..20)));
        assert_eq!(input.get(90..200), Err(MissingRange(90..100)));
        assert_eq!(
            (input.get(100..200), input.get(200..300), input.get(7..7)),
            (Ok(&[][..]), Ok(&[][..]), Ok(&[][..]))
        );
        input.add(90, (90..100).collect());
        assert_eq!(input.get(98..u64::MAX), Ok(&[98, 99][..]));
        input.add(0, (0..50).collect());
        assert_eq!((input.pieces.len(), input.held()), (2, 60));
        assert_eq!(input.get(49..50), Ok(&[49][..]));
        // Adjacent parts are not merged.
        input.add(50, (50..90).collect());
        assert_eq!(input.get(40..60), Err(MissingRange(40..60)));
    }
}
