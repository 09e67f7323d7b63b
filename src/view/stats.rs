//! `stats/`: statistics of the values of a tensor, computed on all cores.

use super::results::{CachedResults, ResultKey};
use super::values::{each_value, own, step};
use super::views::ModelViews;
use crate::content::{Content, Error, GeneratedBytes, ReadRequest, WaitResource};
use crate::format::Dtype;
use crate::model::{Model, TensorId, TensorNumbers};
use crate::source::WholeRange;
use crate::stats::{self, StatsAccumulator, TensorStats};
use crate::threads::{self, cores};
use std::ops::Range;
use std::sync::Arc;

/// Smallest share of a thread, in bytes. Smaller tensors are processed by one thread.
const PART_MIN: u64 = 4 << 20;

/// Whether `stats/` shows a tensor: its values can be counted.
pub fn has_statistics(numbers: &TensorNumbers) -> bool {
    stats::has(numbers.dtype())
}

/// The statistics of the values of a tensor, counted on all cores. Fails if it has none.
pub fn tensor_stats(model: &Model, numbers: &TensorNumbers, request: &ReadRequest) -> Result<TensorStats, Error> {
    stats_count(numbers.dtype(), &own(model, numbers), request)
}

/// The size of the values of a tensor in bytes, and the size of the blocks that are counted at a time.
pub fn stats_blocks(model: &Model, numbers: &TensorNumbers) -> (u64, u64) {
    (own(model, numbers).len(), step(numbers.dtype()))
}

/// As [`tensor_stats`], of a part in bytes: whole blocks as [`stats_blocks`] gives them, up to the last one.
pub fn part_stats(
    model: &Model,
    numbers: &TensorNumbers,
    part: Range<u64>,
    request: &ReadRequest,
) -> Result<StatsAccumulator, Error> {
    count_part(numbers.dtype(), &own(model, numbers), part, request)
}

/// Says that such a part is read as a whole: see [`Content::read_whole`].
pub fn read_whole_part(model: &Model, numbers: &TensorNumbers, part: &Range<u64>) -> Vec<WholeRange> {
    own(model, numbers).read_whole(part)
}

/// The file of a tensor. The whole file is computed at the first read.
pub fn stats_content(views: &ModelViews, numbers: &TensorNumbers, key: ResultKey) -> Content {
    ComputedFile::content(views, numbers, key, stats::json_len(numbers.elements()), |numbers, data, request| {
        Ok(stats_count(numbers.dtype(), data, request)?.to_json())
    })
}

/// The need of a pass over these bytes.
pub(super) fn need(content: &Content) -> WaitResource {
    WaitResource::Cores { bytes: content.len(), device: content.plan(0..1).device() }
}

/// A file that is computed as a whole from the numbers of a tensor at the first read, and then cached.
pub(super) struct ComputedFile {
    model: Arc<Model>,
    tensor: TensorId,
    is_dequantized: bool,
    data: Content,
    results: Arc<CachedResults>,
    key: ResultKey,
    len: usize,
    compute: ComputeFile,
}

/// Computes the bytes of a file from numbers and their data.
type ComputeFile = fn(&TensorNumbers, &Content, &ReadRequest) -> Result<Vec<u8>, Error>;

impl ComputedFile {
    /// A file of `len` bytes.
    pub fn content(
        views: &ModelViews,
        numbers: &TensorNumbers,
        key: ResultKey,
        len: usize,
        compute: ComputeFile,
    ) -> Content {
        let (model, results, data) = (views.model.clone(), views.results.clone(), own(&views.model, numbers));
        let (tensor, is_dequantized) = (numbers.tensor.id, numbers.weight.is_some());
        Content::generated(Self { model, tensor, is_dequantized, data, results, key, len, compute })
    }
}

impl GeneratedBytes for ComputedFile {
    fn nbytes(&self) -> u64 {
        self.len as u64
    }

    fn fill(&self, buf: &mut [u8], offset: u64, request: &ReadRequest) -> Result<(), Error> {
        let whole = self.results.get(self.key, need(&self.data), request, || {
            (self.compute)(&self.model.numbers(self.tensor, self.is_dequantized), &self.data, request)
        })?;
        buf.copy_from_slice(&whole[offset as usize..][..buf.len()]);
        Ok(())
    }
}

pub(super) fn stats_count(dtype: Dtype, data: &Content, request: &ReadRequest) -> Result<TensorStats, Error> {
    count_part(dtype, data, 0..data.len(), request).map(StatsAccumulator::finish)
}

fn count_part(
    dtype: Dtype,
    data: &Content,
    part: Range<u64>,
    request: &ReadRequest,
) -> Result<StatsAccumulator, Error> {
    let mut whole = empty_stats(dtype)?;
    let (step, len) = (step(dtype), part.end - part.start);
    // Every share except the last consists of whole blocks.
    let share = len.div_ceil(cores() as u64).max(PART_MIN).next_multiple_of(step);
    let counted = threads::map_parallel(len.div_ceil(share).max(1) as usize, |at| {
        let mut counted = empty_stats(dtype)?;
        let start = part.start + at as u64 * share;
        let share = start..(start + share).min(part.end);
        each_value(data, share, step, request, |bytes| counted.add(bytes)).map(|()| counted)
    });
    for counted in counted {
        whole.merge(&counted?);
    }
    Ok(whole)
}

fn empty_stats(dtype: Dtype) -> Result<StatsAccumulator, Error> {
    StatsAccumulator::new(dtype).ok_or_else(|| Error::Compute(format!("{dtype} has no values to count")))
}
