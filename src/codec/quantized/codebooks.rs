//! Adds the entries of codebooks.

use super::F32;
use super::layout::Codebooks;
use super::numbers::widen;
use std::ops::Range;

impl Codebooks {
    /// Writes the sums for some columns of a row. `codes` begins with those of the first block.
    pub(super) fn decode(&self, codes: &[u8], books: &[u8], row: u64, cols: Range<u64>, out: &mut [F32]) {
        let [height, width] = self.block;
        let (size, code_bytes) = (self.number.bytes() as usize, self.code_bytes() as usize);
        let mut at = cols.start;
        let mut codes = codes.chunks_exact(code_bytes);
        while at < cols.end {
            let end = ((at / width + 1) * width).min(cols.end);
            let block = &mut out[(at - cols.start) as usize..(end - cols.start) as usize];
            // As in the library, the sum begins with 0, so that -0 becomes 0.
            block.fill([0; 4]);
            for (book, code) in (0..self.count).zip(&mut codes) {
                let from = self.entry(book, code, row % height, at % width);
                let add = |at: usize, number: f32| block[at] = (f32::from_le_bytes(block[at]) + number).to_le_bytes();
                widen(self.number, &books[from..], size, add, (end - at) as usize);
            }
            at = end;
        }
    }

    /// The offset in bytes of a number of a codebook.
    fn entry(&self, book: u64, code: &[u8], row: u64, col: u64) -> usize {
        let [height, width] = self.block;
        let code = code.iter().rev().fold(0, |code, byte| code << 8 | u64::from(*byte));
        let code = code & ((1 << self.bits) - 1);
        ((((book << self.bits | code) * height + row) * width + col) * self.number.bytes()) as usize
    }
}
