//! `stats/`: statistics of the values of a tensor, computed on all cores.

use super::results::{CachedResults, ResultKey};
use super::values::{each_value, own, step};
use crate::content::{Content, Error, GeneratedBytes, ReadRequest, Segment, WaitResource};
use crate::format::Dtype;
use crate::model::{Model, TensorNumbers};
use crate::stats::{self, StatsAccumulator, TensorStats};
use crate::threads::{self, cores};
use std::sync::Arc;

/// Smallest share of a thread, in bytes. Smaller tensors are processed by one thread.
const PART_MIN: u64 = 4 << 20;

/// Whether a tensor is shown.
pub fn stats_shows(numbers: &TensorNumbers) -> bool {
    stats::has(numbers.dtype())
}

/// The file of a tensor. The whole file is computed at the first read.
pub fn stats_content(
    model: &Arc<Model>,
    numbers: &TensorNumbers,
    results: &Arc<CachedResults>,
    key: ResultKey,
) -> Content {
    let content = own(model, numbers);
    let (model, tensor, is_dequantized) = (model.clone(), numbers.tensor.id, numbers.weight.is_some());
    computed(stats::json_len(numbers.elements()), need(&content), results, key, move |request| {
        let numbers = model.numbers(tensor, is_dequantized);
        Ok(stats_count(numbers.dtype(), &content, request)?.to_json())
    })
}

/// What a pass over these bytes needs.
pub(super) fn need(content: &Content) -> WaitResource {
    WaitResource::Cores { bytes: content.len(), device: content.device() }
}

/// A file of `len` bytes that `compute` returns as a whole. The result is cached under `key`.
pub(super) fn computed(
    len: usize,
    need: WaitResource,
    results: &Arc<CachedResults>,
    key: ResultKey,
    compute: impl Fn(&ReadRequest) -> Result<Vec<u8>, Error> + Send + Sync + 'static,
) -> Content {
    let results = results.clone();
    Content::new([Segment::Generated(GeneratedBytes::new(len as u64, move |range, request, out| {
        let whole = results.get(key, need, request, || compute(request))?;
        out.extend_from_slice(&whole[range.start as usize..range.end as usize]);
        Ok(())
    }))])
}

/// The statistics of all values in `data`.
pub(super) fn stats_count(dtype: Dtype, data: &Content, request: &ReadRequest) -> Result<TensorStats, Error> {
    let none = || Error::Compute(format!("{dtype} has no values to count"));
    let step = step(dtype);
    // Every part except the last consists of whole blocks.
    let share = data.len().div_ceil(cores() as u64).max(PART_MIN).next_multiple_of(step);
    let counted = threads::map_parallel(data.len().div_ceil(share).max(1) as usize, |at| {
        let mut counted = StatsAccumulator::new(dtype).ok_or_else(none)?;
        let part = at as u64 * share..((at as u64 + 1) * share).min(data.len());
        each_value(data, part, step, request, |bytes| counted.add(bytes)).map(|()| counted)
    });
    let mut counted = counted.into_iter();
    let mut whole = counted.next().ok_or_else(none)??;
    for counted in counted {
        whole.merge(&counted?);
    }
    Ok(whole.finish())
}
