//! A text of many pieces, one for each tensor, that is generated when it is read and never kept in memory.
//!
//! The text of a million tensors takes 100 MB and more. Only the offset of every 256th piece is kept, or of more pieces
//! if they are long.

use crate::content::{Error, GeneratedBytes, ReadRequest};
use crate::threads;
use std::io::{self, ErrorKind, Write};
use std::ops::Range;

/// Maximum number of pieces between two marks.
pub const STRIDE: usize = 256;

/// If [`STRIDE`] pieces have more than four times this many bytes, marks are set about every `STRIDE_BYTES` instead. A
/// read therefore generates and discards at most four times this many bytes and one piece.
const STRIDE_BYTES: u64 = 64 << 10;

pub trait TextPieces: Send + Sync {
    fn count(&self) -> usize;

    /// Writes some of the pieces, always in the same way. Fails only if `out` does.
    fn write(&self, pieces: Range<usize>, out: Out) -> io::Result<()>;

    fn measure(&self, pieces: Range<usize>) -> u64 {
        let mut length = LengthWriter(0);
        // Counting cannot fail.
        let _ = self.write(pieces, &mut length);
        length.0
    }
}

/// The destination of a text: a vector, a window of the text, or a counter of its length.
pub type Out<'o> = &'o mut dyn Write;

#[derive(Debug)]
pub struct TextLines<P> {
    pieces: P,
    marks: Vec<LineMark>,
    len: u64,
}

#[derive(Debug, Clone, Copy)]
struct LineMark {
    piece: usize,
    /// In bytes from the start of the text.
    offset: u64,
}

impl<P: TextPieces> TextLines<P> {
    /// Measures the pieces on all cores.
    pub fn new(pieces: P) -> Self {
        let strides = threads::map_parallel(pieces.count().div_ceil(STRIDE), |at| marks_of_stride(&pieces, at));
        let (mut marks, mut len) = (Vec::new(), 0);
        for (stride, length) in strides {
            marks.extend(stride.into_iter().map(|mark| LineMark { offset: len + mark.offset, ..mark }));
            len += length;
        }
        Self { pieces, marks, len }
    }

    pub fn pieces(&self) -> &P {
        &self.pieces
    }

    /// The piece that contains the byte at `offset`, and the offset of that piece.
    pub fn find(&self, offset: u64) -> (usize, u64) {
        let Some(LineMark { mut piece, offset: mut begins }) = self.mark(offset) else { return (0, 0) };
        while piece + 1 < self.pieces.count() {
            let ends = begins + self.pieces.measure(piece..piece + 1);
            if ends > offset {
                break;
            }
            (piece, begins) = (piece + 1, ends);
        }
        (piece, begins)
    }

    /// The last mark at or before `offset`.
    fn mark(&self, offset: u64) -> Option<LineMark> {
        let first = self.marks.partition_point(|mark| mark.offset <= offset).saturating_sub(1);
        self.marks.get(first).copied()
    }
}

/// The marks of a stride, with offsets in bytes from its start, and its length.
fn marks_of_stride(pieces: &impl TextPieces, stride: usize) -> (Vec<LineMark>, u64) {
    let first = stride * STRIDE;
    let end = pieces.count().min(first + STRIDE);
    let whole = pieces.measure(first..end);
    let mut marks = vec![LineMark { piece: first, offset: 0 }];
    let (mut offset, mut kept) = (0, 0);
    if whole > STRIDE_BYTES * 4 {
        for piece in first..end {
            if offset - kept >= STRIDE_BYTES {
                marks.push(LineMark { piece, offset });
                kept = offset;
            }
            offset += pieces.measure(piece..piece + 1);
        }
    }
    (marks, whole)
}

impl<P: TextPieces> GeneratedBytes for TextLines<P> {
    fn nbytes(&self) -> u64 {
        self.len
    }

    fn fill(&self, buf: &mut [u8], offset: u64, _: &ReadRequest) -> Result<(), Error> {
        if let Some(mark) = self.mark(offset) {
            // The window returns an error when it is full, which stops the writer.
            let _ = self
                .pieces
                .write(mark.piece..self.pieces.count(), &mut TextWindow { skip: offset - mark.offset, rest: buf });
        }
        Ok(())
    }
}

pub fn write_list(numbers: &[u64], separator: &str, out: Out) -> io::Result<()> {
    for (at, number) in numbers.iter().enumerate() {
        write!(out, "{}{number}", if at == 0 { "" } else { separator })?;
    }
    Ok(())
}

/// Copies a part of a text to a buffer. Returns an error once the buffer is full, to stop the writer.
struct TextWindow<'b> {
    /// Number of bytes before the part.
    skip: u64,
    /// The bytes that are missing.
    rest: &'b mut [u8],
}

impl Write for TextWindow<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.rest.is_empty() {
            return Err(ErrorKind::WriteZero.into());
        }
        let skipped = self.skip.min(bytes.len() as u64);
        self.skip -= skipped;
        // Bytes beyond the buffer are not needed.
        let _ = self.rest.write(&bytes[skipped as usize..])?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

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
    use crate::content::Content;
    use proptest::prelude::*;

    /// Pieces of one letter each, of these lengths.
    #[derive(Debug)]
    struct Letters(Vec<usize>);

    impl TextPieces for Letters {
        fn count(&self) -> usize {
            self.0.len()
        }

        fn write(&self, mut pieces: Range<usize>, out: Out) -> io::Result<()> {
            pieces.try_for_each(|at| out.write_all(&vec![b'a' + (at % 26) as u8; self.0[at]]))
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn partial_reads_match_whole_text(
            lengths in prop::collection::vec(prop_oneof![8 => 0usize..200, 1 => 0usize..200_000], 0..600),
            parts in prop::collection::vec((any::<prop::sample::Index>(), 0u64..300_000), 20),
        ) {
            let longest = lengths.iter().max().copied().unwrap_or(0) as u64;
            let lines = TextLines::new(Letters(lengths));
            let mut whole = Vec::new();
            lines.pieces.write(0..lines.pieces.count(), &mut whole).unwrap();
            prop_assert_eq!(lines.nbytes(), whole.len() as u64);
            // This bounds the bytes that a read generates and discards.
            for pair in lines.marks.windows(2) {
                prop_assert!(pair[1].offset - pair[0].offset <= STRIDE_BYTES * 4 + longest);
            }
            let content = Content::generated(lines);
            for (at, size) in parts {
                let from = at.index(whole.len() + 1) as u64;
                let to = (from + size).min(whole.len() as u64);
                let read = content.read(from..from + size, &ReadRequest::NOWAIT).unwrap();
                prop_assert!(read[..] == whole[from as usize..to as usize], "{}..{}", from, to);
            }
        }
    }
}
