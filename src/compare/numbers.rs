//! Computes the deviations of the numbers of many pairs of tensors, on all cores.

use super::common::{CommonNumber, exact, float32};
use super::deviation::Deviation;
use super::run_jobs;
use crate::content::{Content, Error, ReadRequest};
use crate::format::Dtype;
use std::ops::Range;

/// Number of elements that a thread compares as one job, and that have one [`Deviation`]. Sums are merged in the order
/// of the jobs, so they depend neither on the number of threads nor on their speed. A multiple of the elements of any
/// block.
pub const DEVIATION_STEP: u64 = 4 << 20;

/// Number of elements that are read and converted at a time.
const AT_ONCE: u64 = 64 << 10;

/// Two tensors of the same shape whose values can be compared, or a range of their elements.
#[derive(Debug, Clone)]
pub struct ComparablePair<'a> {
    pub dtypes: [Dtype<'a>; 2],
    /// Begins at a multiple of [`DEVIATION_STEP`].
    pub elements: Range<u64>,
}

/// Compares the numbers of all pairs on all cores. Returns the deviations of each pair, one for every
/// [`DEVIATION_STEP`] elements, in their order: whoever merges them in this order gets the same sums, also if several
/// processes have compared the tensor.
///
/// `open` returns the numbers of both sides of a pair in their dtypes. `progress` is called from any thread with the
/// number of a pair and the number of further elements that are done. Fails if the values of two dtypes cannot be
/// compared: see [`super::obstacle`].
pub fn deviations(
    pairs: &[ComparablePair],
    open: &(impl Fn(usize) -> [Content; 2] + Sync),
    progress: &(impl Fn(usize, u64) + Sync),
) -> Result<Vec<Vec<Deviation>>, Error> {
    let mut jobs: Vec<(usize, Range<u64>)> = Vec::new();
    for (at, pair) in pairs.iter().enumerate() {
        let starts = pair.elements.clone().step_by(DEVIATION_STEP as usize);
        jobs.extend(starts.map(|start| (at, start..pair.elements.end.min(start.saturating_add(DEVIATION_STEP)))));
    }
    let compared = run_jobs(&jobs, |(at, part)| {
        deviation(pairs[*at].dtypes, &open(*at), part, &|elements| progress(*at, elements))
    })?;
    let mut found = vec![Vec::new(); pairs.len()];
    for ((at, _), compared) in jobs.iter().zip(compared) {
        found[*at].push(compared);
    }
    Ok(found)
}

fn deviation(
    [a, b]: [Dtype; 2],
    [content_a, content_b]: &[Content; 2],
    part: &Range<u64>,
    progress: &impl Fn(u64),
) -> Result<Deviation, Error> {
    let mut found = Deviation::default();
    let [mut of_a, mut of_b] = [const { Vec::new() }; 2];
    for start in part.clone().step_by(AT_ONCE as usize) {
        let elements = start..part.end.min(start + AT_ONCE);
        content_a.copy(bytes(a, &elements, content_a.len()), &ReadRequest::WAIT, &mut of_a)?;
        content_b.copy(bytes(b, &elements, content_b.len()), &ReadRequest::WAIT, &mut of_b)?;
        match CommonNumber::of(a, b) {
            Some(CommonNumber::Float32) => found.add_floats(&float32(a, &of_a), &float32(b, &of_b)),
            Some(CommonNumber::Float64 | CommonNumber::Exact) => found.add_exact(&exact(a, &of_a), &exact(b, &of_b)),
            None if (a, b) == (Dtype::C64, Dtype::C64) => found.add_complex(&of_a, &of_b),
            None => return Err(Error::Compute(format!("values of {a} and {b} cannot be compared"))),
        }
        progress(elements.end - elements.start);
    }
    // Fewer would count as equal.
    match found.elements == part.end - part.start {
        true => Ok(found),
        false => Err(Error::Compute("the data of a tensor is shorter than its shape".to_owned())),
    }
}

/// The bytes that hold elements, from the start of a block on.
fn bytes(dtype: Dtype, elements: &Range<u64>, len: u64) -> Range<u64> {
    let (count, bytes) = dtype.block().map_or((1, 1), |block| (block.elements, block.bytes));
    (elements.start / count * bytes).min(len)..(elements.end.div_ceil(count) * bytes).min(len)
}
