//! A text of one piece a tensor: knows where in the text the pieces stand without keeping the text.
//!
//! The pieces of a million tensors take 100 MB and more, so only the place of every 256th is kept, or of more where they are
//! long, and pieces are written when they are read.

use crate::content::{Generated, Segment};
use crate::threads;
use std::io::{self, ErrorKind, Write};
use std::ops::Range;

/// Most pieces between two kept places.
pub const STRIDE: usize = 256;

/// Bytes after which a place is kept in any case: so much is written in vain for a read, or one piece.
const STRIDE_BYTES: u64 = 64 << 10;

/// Where the pieces of a text are.
#[derive(Debug)]
pub struct Lines {
    count: usize,
    places: Vec<Place>,
    len: u64,
}

/// The beginning of a piece.
#[derive(Debug, Clone, Copy)]
struct Place {
    /// Number of the piece.
    piece: u32,
    /// In bytes from the first.
    offset: u64,
}

/// Takes text: a vector, a part of it, or only its length.
pub type Out<'o> = &'o mut dyn Write;

impl Lines {
    /// Measures `count` pieces, of which `write` writes any run. A million take a while, so that every core measures a part.
    pub fn new(count: usize, write: impl Fn(Range<usize>, Out) -> io::Result<()> + Sync) -> Self {
        let length = |pieces: Range<usize>| length(|length| write(pieces.clone(), length));
        // Places with offsets from the first piece of the stride, and the length of the stride.
        let measure = |first: usize| {
            let end = count.min(first + STRIDE);
            let whole = length(first..end);
            let mut places = vec![Place { piece: first as u32, offset: 0 }];
            let (mut offset, mut kept) = (0, 0);
            if whole > STRIDE_BYTES * 4 {
                for piece in first..end {
                    if offset - kept >= STRIDE_BYTES {
                        places.push(Place { piece: piece as u32, offset });
                        kept = offset;
                    }
                    offset += length(piece..piece + 1);
                }
            }
            (places, whole)
        };
        let strides = threads::map(count.div_ceil(STRIDE), |stride| measure(stride * STRIDE));
        let (mut places, mut len) = (Vec::new(), 0);
        for (stride, length) in strides {
            places.extend(stride.into_iter().map(|place| Place { offset: len + place.offset, ..place }));
            len += length;
        }
        Self { count, places, len }
    }

    /// Length of the text in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The piece in which the byte at `offset` is, and where that piece begins, by the same `write` with which it was
    /// measured.
    pub fn find(&self, offset: u64, write: impl Fn(Range<usize>, Out) -> io::Result<()>) -> (usize, u64) {
        let first = self.places.partition_point(|place| place.offset <= offset).saturating_sub(1);
        let Some(place) = self.places.get(first) else { return (0, 0) };
        let (mut piece, mut begins) = (place.piece as usize, place.offset);
        while piece + 1 < self.count {
            let ends = begins + length(|length| write(piece..piece + 1, length));
            if ends > offset {
                break;
            }
            (piece, begins) = (piece + 1, ends);
        }
        (piece, begins)
    }

    /// The text, by the same `write` with which it was measured.
    pub fn segment<'a>(&'a self, write: impl Fn(Range<usize>, Out) -> io::Result<()> + 'a) -> Segment<'a> {
        let write = move |range: Range<u64>, out: &mut Vec<u8>| {
            let first = self.places.partition_point(|place| place.offset <= range.start).saturating_sub(1);
            let Some(place) = self.places.get(first) else { return Ok(()) };
            let mut window = Window { skip: range.start - place.offset, take: (range.end - range.start) as usize, out };
            // Ends with an error of its own where the window is full.
            let _ = write(place.piece as usize..self.count, &mut window);
            Ok(())
        };
        Segment::Generated(Generated { len: self.len, write: Box::new(write) })
    }
}

/// Writes numbers with a separator between them.
pub fn write_list(numbers: &[u64], separator: &str, out: Out) -> io::Result<()> {
    for (at, number) in numbers.iter().enumerate() {
        write!(out, "{}{number}", if at == 0 { "" } else { separator })?;
    }
    Ok(())
}

/// Takes a part of a text, and stops who writes it when it has that.
struct Window<'o> {
    /// Bytes to drop first.
    skip: u64,
    /// Bytes to take then.
    take: usize,
    out: &'o mut Vec<u8>,
}

impl Write for Window<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.take == 0 {
            return Err(ErrorKind::WriteZero.into());
        }
        let skipped = self.skip.min(bytes.len() as u64);
        self.skip -= skipped;
        let rest = &bytes[skipped as usize..];
        let taken = &rest[..rest.len().min(self.take)];
        self.take -= taken.len();
        self.out.extend_from_slice(taken);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The length of what `write` writes.
pub fn length(write: impl Fn(Out) -> io::Result<()>) -> u64 {
    let mut length = Length::default();
    // A length cannot refuse text.
    let _ = write(&mut length);
    length.0
}

/// Takes text and keeps its length only.
#[derive(Default)]
struct Length(u64);

impl Write for Length {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::Content;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_part_is_that_of_the_whole(
            lengths in prop::collection::vec(prop_oneof![8 => 0usize..200, 1 => 0usize..200_000], 0..600),
            parts in prop::collection::vec((any::<prop::sample::Index>(), 0u32..300_000), 20),
        ) {
            let piece = |at: usize| vec![b'a' + (at % 26) as u8; lengths[at]];
            let write = |mut pieces: Range<usize>, out: Out| pieces.try_for_each(|at| out.write_all(&piece(at)));
            let lines = Lines::new(lengths.len(), write);
            let whole: Vec<u8> = (0..lengths.len()).flat_map(piece).collect();
            prop_assert_eq!(lines.len(), whole.len() as u64);
            // Places are as many as needed: no read writes much more in vain than a stride has, or one piece.
            let longest = lengths.iter().max().copied().unwrap_or(0) as u64;
            for pair in lines.places.windows(2) {
                prop_assert!(pair[1].offset - pair[0].offset <= STRIDE_BYTES * 4 + longest);
            }
            for (at, size) in parts {
                let from = at.index(whole.len() + 1);
                let to = (from + size as usize).min(whole.len());
                let read = Content::new([lines.segment(write)]).read_at(from as u64, size).unwrap();
                prop_assert!(read[..] == whole[from..to], "{}..{}", from, to);
            }
        }
    }
}
