//! Statistics of the values of a tensor. The caller provides the bytes.

mod accumulator;
mod codes;
mod real;
mod special;
mod state;
mod summary;
mod tally;
mod wide;

pub use accumulator::{StatsAccumulator, has};
pub use special::SpecialCounts;
pub use state::{FinishedState, StatsState};
pub use summary::{BINS, TensorStats, ValueHistogram, json_len};
