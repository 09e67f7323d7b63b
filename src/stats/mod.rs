//! Statistics of the values of a tensor. The caller provides the bytes.

mod accumulator;
mod codes;
mod real;
mod special;
mod summary;
mod tally;
mod wide;

pub use accumulator::{Accumulator, has};
pub use special::Specials;
pub use summary::{BINS, Histogram, Stats, json_len};
