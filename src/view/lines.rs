//! A text of many pieces, one for each tensor, that is generated when it is read and never kept in memory.
//!
//! The text of a million tensors takes 100 MB and more. Only the offset of every 256th piece is kept, or of more pieces
//! if they are long.

use crate::content::{GeneratedBytes, Segment};
use crate::threads;
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of pieces between two marks.
pub const STRIDE: usize = 256;

/// If [`STRIDE`] pieces have more than four times this many bytes, marks are set about every `STRIDE_BYTES` instead. A
/// read therefore generates and discards at most four times this many bytes and one piece.
const STRIDE_BYTES: u64 = 64 << 10;

/// The offsets of the pieces of a text.
#[derive(Debug)]
pub struct TextLines {
    count: usize,
    marks: Vec<LineMark>,
    len: u64,
}

/// A piece and its offset.
#[derive(Debug, Clone, Copy)]
struct LineMark {
    piece: usize,
    /// In bytes from the start of the text.
    offset: u64,
}

/// The destination of a text: a vector, a window of the text, or a counter of its length.
pub type Out<'o> = &'o mut dyn Write;

impl TextLines {
    /// Measures `count` pieces on all cores. `write` writes any range of them.
    pub fn new(count: usize, write: impl Fn(Range<usize>, Out) -> io::Result<()> + Sync) -> Self {
        let length = |pieces: Range<usize>| length(|length| write(pieces.clone(), length));
        // Returns marks with offsets relative to the stride, and the length of the stride.
        let measure = |first: usize| {
            let end = count.min(first + STRIDE);
            let whole = length(first..end);
            let mut marks = vec![LineMark { piece: first, offset: 0 }];
            let (mut offset, mut kept) = (0, 0);
            if whole > STRIDE_BYTES * 4 {
                for piece in first..end {
                    if offset - kept >= STRIDE_BYTES {
                        marks.push(LineMark { piece, offset });
                        kept = offset;
                    }
                    offset += length(piece..piece + 1);
                }
            }
            (marks, whole)
        };
        let strides = threads::map_parallel(count.div_ceil(STRIDE), |stride| measure(stride * STRIDE));
        let (mut marks, mut len) = (Vec::new(), 0);
        for (stride, length) in strides {
            marks.extend(stride.into_iter().map(|mark| LineMark { offset: len + mark.offset, ..mark }));
            len += length;
        }
        Self { count, marks, len }
    }

    /// Length of the text in bytes.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// The piece that contains the byte at `offset`, and the offset of that piece. `write` must be the function that
    /// measured the text.
    pub fn find(&self, offset: u64, write: impl Fn(Range<usize>, Out) -> io::Result<()>) -> (usize, u64) {
        let Some(LineMark { mut piece, offset: mut begins }) = self.mark(offset) else { return (0, 0) };
        while piece + 1 < self.count {
            let ends = begins + length(|length| write(piece..piece + 1, length));
            if ends > offset {
                break;
            }
            (piece, begins) = (piece + 1, ends);
        }
        (piece, begins)
    }

    /// The text as a segment. `write` must be the function that measured the text.
    pub fn segment(
        self: &Arc<Self>,
        write: impl Fn(Range<usize>, Out) -> io::Result<()> + Send + Sync + 'static,
    ) -> Segment {
        let lines = self.clone();
        Segment::Generated(GeneratedBytes::new(self.len, move |range, _, out| {
            let Some(mark) = lines.mark(range.start) else { return Ok(()) };
            let mut window =
                TextWindow { skip: range.start - mark.offset, take: (range.end - range.start) as usize, out };
            // The window returns an error when it is full, which stops `write`.
            let _ = write(mark.piece..lines.count, &mut window);
            Ok(())
        }))
    }

    /// The last mark at or before `offset`.
    fn mark(&self, offset: u64) -> Option<LineMark> {
        let first = self.marks.partition_point(|mark| mark.offset <= offset).saturating_sub(1);
        self.marks.get(first).copied()
    }
}

/// Writes numbers with a separator between them.
pub fn write_list(numbers: &[u64], separator: &str, out: Out) -> io::Result<()> {
    for (at, number) in numbers.iter().enumerate() {
        write!(out, "{}{number}", if at == 0 { "" } else { separator })?;
    }
    Ok(())
}

/// Copies a part of a text to `out`. Returns an error once the part is complete, to stop the writer.
struct TextWindow<'o> {
    /// Bytes to skip before the part.
    skip: u64,
    /// Bytes of the part that are missing.
    take: usize,
    out: &'o mut Vec<u8>,
}

impl Write for TextWindow<'_> {
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

/// The number of bytes that `write` writes.
pub fn length(write: impl Fn(Out) -> io::Result<()>) -> u64 {
    let mut length = LengthWriter::default();
    // Counting cannot fail.
    let _ = write(&mut length);
    length.0
}

/// Counts the bytes that are written to it.
#[derive(Default)]
struct LengthWriter(u64);

impl Write for LengthWriter {
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
    use crate::content::{Content, ReadRequest};
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn partial_reads_match_whole_text(
            lengths in prop::collection::vec(prop_oneof![8 => 0usize..200, 1 => 0usize..200_000], 0..600),
            parts in prop::collection::vec((any::<prop::sample::Index>(), 0u64..300_000), 20),
        ) {
            let count = lengths.len();
            let longest = lengths.iter().max().copied().unwrap_or(0) as u64;
            let piece = move |at: usize| vec![b'a' + (at % 26) as u8; lengths[at]];
            let whole: Vec<u8> = (0..count).flat_map(&piece).collect();
            let write = move |mut pieces: Range<usize>, out: Out| pieces.try_for_each(|at| out.write_all(&piece(at)));
            let lines = Arc::new(TextLines::new(count, &write));
            prop_assert_eq!(lines.len(), whole.len() as u64);
            // This bounds the bytes that a read generates and discards.
            for pair in lines.marks.windows(2) {
                prop_assert!(pair[1].offset - pair[0].offset <= STRIDE_BYTES * 4 + longest);
            }
            let content = Content::new([lines.segment(write)]);
            for (at, size) in parts {
                let from = at.index(whole.len() + 1) as u64;
                let to = (from + size).min(whole.len() as u64);
                let read = content.read(from..from + size, &ReadRequest::NOWAIT).unwrap();
                prop_assert!(read[..] == whole[from as usize..to as usize], "{}..{}", from, to);
            }
        }
    }
}
