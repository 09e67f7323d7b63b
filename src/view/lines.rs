//! A text of one piece a tensor: knows where in the text each piece stands without keeping the text.
//!
//! The pieces of a million tensors take 100 MB and more, so only the place of every 256th is kept, and pieces are
//! written when they are read.

use crate::content::{Generated, Segment};
use rayon::prelude::*;
use std::io::{self, Write};
use std::ops::Range;

/// Pieces between two kept places.
pub const STRIDE: usize = 256;

/// Where the pieces of a text are.
#[derive(Debug)]
pub struct Lines {
    count: usize,
    /// Where every [`STRIDE`]th piece begins, in bytes from the first; the last entry is where the text ends.
    places: Vec<u64>,
}

/// Takes text: a vector, or something that only measures it. Neither fails.
pub type Out<'o> = &'o mut dyn Write;

impl Lines {
    /// Measures `count` pieces, of which `write` writes any run that begins at a multiple of [`STRIDE`] and is not longer.
    /// A million take a while, so that every core measures a part.
    pub fn new(count: usize, write: impl Fn(Range<usize>, Out) -> io::Result<()> + Sync) -> Self {
        let measure = |first: usize| {
            let mut length = Length::default();
            let _ = write(first..count.min(first + STRIDE), &mut length);
            length.0
        };
        let firsts: Vec<usize> = (0..count).step_by(STRIDE).collect();
        let mut places = vec![0];
        places.par_extend(firsts.into_par_iter().map(measure));
        for at in 1..places.len() {
            places[at] += places[at - 1];
        }
        Self { count, places }
    }

    /// Length of the text in bytes.
    pub fn len(&self) -> u64 {
        self.places.last().copied().unwrap_or(0)
    }

    /// The text, by the same `write` with which it was measured.
    pub fn segment<'a>(&'a self, write: impl Fn(Range<usize>, Out) -> io::Result<()> + 'a) -> Segment<'a> {
        let write = move |range: Range<u64>, out: &mut Vec<u8>| {
            let first = self.places.partition_point(|place| *place <= range.start).saturating_sub(1);
            let from = out.len();
            for (at, place) in self.places.iter().enumerate().skip(first) {
                if *place >= range.end {
                    break;
                }
                let _ = write(at * STRIDE..self.count.min((at + 1) * STRIDE), out);
            }
            out.drain(from..from + (range.start - self.places[first]) as usize);
            out.truncate(from + (range.end - range.start) as usize);
        };
        Segment::Generated(Generated { len: self.len(), write: Box::new(write) })
    }
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
