//! Differences between two tensors of the same shape. Bytes that both files share on disk are not read. Tensors of
//! different dtypes are compared by their values.
//!
//! [`deviations`] is a separate comparison, of the numbers of two tensors: it computes errors such as the root mean
//! square, and does not depend on how the numbers are stored.

mod common;
mod deviation;
mod elements;
mod numbers;
mod pair;
mod shared;
mod state;
#[cfg(test)]
mod tests;

use crate::content::Error;
use crate::threads;
use std::sync::atomic::{AtomicBool, Ordering};

pub use common::CommonNumber;
pub use deviation::Deviation;
pub use elements::ValueDifference;
pub use numbers::{ComparablePair, DEVIATION_STEP, deviations};
pub use pair::{TensorDifference, TensorPair, differences, have_same_bytes, obstacle};
pub use shared::{SharedFiles, StoredTensor};
pub use state::DeviationState;

/// Runs `compare` for all jobs on all cores, and returns the results in order, or the first error. After an error, no
/// further job is begun.
fn run_jobs<J: Sync, R: Default + Send>(
    jobs: &[J],
    compare: impl Fn(&J) -> Result<R, Error> + Sync,
) -> Result<Vec<R>, Error> {
    let failed = AtomicBool::new(false);
    let compared = threads::map_parallel(jobs.len(), |at| {
        if failed.load(Ordering::Relaxed) {
            return Ok(R::default());
        }
        let compared = compare(&jobs[at]);
        failed.fetch_or(compared.is_err(), Ordering::Relaxed);
        compared
    });
    compared.into_iter().collect()
}
