//! Statistics: what there is to say about the values of a tensor. Where the bytes come from is not decided here.

mod accumulator;
mod codes;
mod real;
mod special;
mod summary;
mod tally;
mod wide;

pub use accumulator::{Accumulator, has};
pub use special::Specials;
pub use summary::{BINS, Histogram, JSON_LEN, Stats};
