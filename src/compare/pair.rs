//! Pairs of tensors, compared on all cores.

use super::common::{CommonNumber, exact, float32};
use super::elements::{ValueDifference, compare_exact, compare_floats, compare_values, differing_bits};
use super::run_jobs;
use super::shared::{StoredTensor, unshared};
use crate::content::{Error, ReadRequest, Segment};
use crate::format::Dtype;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct TensorDifference {
    /// Number of bits that differ; `None` if the dtypes differ.
    pub bits: Option<u64>,
    /// Differences between elements and their values; `None` if the dtype is unknown.
    pub values: Option<ValueDifference>,
    /// Number of bytes that were not read, because both files have them in the same place of a disk.
    pub shared: u64,
}

impl TensorDifference {
    /// Whether all bytes are equal, or all values if the dtypes differ.
    pub fn is_empty(&self) -> bool {
        self.bits.is_none_or(|bits| bits == 0) && self.values.is_none_or(|values| values.elements == 0)
    }

    fn merge(self, other: Self) -> Self {
        Self {
            bits: self.bits.zip(other.bits).map(|(a, b)| a + b),
            values: self.values.zip(other.values).map(|(a, b)| a.merge(b)),
            shared: self.shared + other.shared,
        }
    }
}

/// Approximate number of bytes that are read at a time.
const AT_ONCE: u64 = 768 << 10;

/// Number of reads of about [`AT_ONCE`] bytes in one job of a thread.
const STEPS: u64 = 16;

/// Approximate number of differing bytes whose values are compared at a time. Decoded, they fit into a core's cache.
const DECODED_AT_ONCE: u64 = 24 << 10;

/// Why the values of two tensors cannot be compared, if that is so. Each has a dtype and a shape.
pub fn obstacle((a, shape_a): (Dtype, &[u64]), (b, shape_b): (Dtype, &[u64])) -> Option<String> {
    if shape_a != shape_b {
        return Some("the shapes differ".to_owned());
    }
    if let Some(unknown) = [a, b].into_iter().find(|dtype| dtype.block().is_none()) {
        return Some(format!("dtype {} is unknown", unknown.quoted()));
    }
    if let Some(opaque) = [a, b].into_iter().find(|dtype| *dtype != Dtype::C64 && dtype.to_f32().is_none()) {
        return Some(format!("the values of {} cannot be decoded", opaque.quoted()));
    }
    let is_complex = (a, b) == (Dtype::C64, Dtype::C64);
    (!is_complex && CommonNumber::of(a, b).is_none()).then(|| "only one of them is complex".to_owned())
}

/// Two tensors of the same shape.
#[derive(Debug)]
pub struct TensorPair<'a> {
    dtypes: [Dtype<'a>; 2],
    /// The type in which the values are compared, if the dtypes differ.
    pub common: Option<CommonNumber>,
    data: [Segment; 2],
    /// Bytes of the smallest group of elements that is a whole number of blocks in both dtypes.
    group: [u64; 2],
    /// The parts that have to be read: whole groups, in bytes of the first tensor.
    parts: Vec<Range<u64>>,
    /// Number of bytes that need not be read, because both files have them in the same place of a disk.
    shared: u64,
}

impl<'a> TensorPair<'a> {
    /// Two tensors of `len` bytes.
    pub fn new(dtype: Dtype<'a>, len: u64, a: &StoredTensor, b: &StoredTensor) -> Self {
        let block = dtype.block().map_or(1, |block| block.bytes);
        let unshared = unshared(a, b, len);
        let shared = len - unshared.iter().map(|range| range.end - range.start).sum::<u64>();
        let parts = unshared
            .iter()
            .flat_map(|range| parts_of(range.start / block * block..range.end.next_multiple_of(block).min(len), block))
            .collect();
        let (data, group) = ([a.data.clone(), b.data.clone()], [block, block]);
        Self { dtypes: [dtype, dtype], common: None, data, group, parts, shared }
    }

    /// Two tensors of the same shape and different dtypes, the first with its length in bytes. `None` if their values
    /// cannot be compared.
    pub fn converted(a: (Dtype<'a>, u64, &StoredTensor), b: (Dtype<'a>, &StoredTensor)) -> Option<Self> {
        let common = CommonNumber::of(a.0, b.0)?;
        let (block_a, block_b) = (a.0.block()?, b.0.block()?);
        // The elements of blocks are powers of two.
        let elements = block_a.elements.max(block_b.elements);
        let group = [block_a, block_b].map(|block| elements / block.elements * block.bytes);
        let (data, parts) = ([a.2.data.clone(), b.1.data.clone()], parts_of(0..a.1, group[0]).collect());
        Some(Self { dtypes: [a.0, b.0], common: Some(common), data, group, parts, shared: 0 })
    }

    fn empty(&self) -> TensorDifference {
        let bits = if self.common.is_none() { Some(0) } else { None };
        let has_values = self.dtypes[0] == Dtype::C64 || self.dtypes[0].to_f32().is_some();
        TensorDifference { bits, values: has_values.then(ValueDifference::default), shared: 0 }
    }

    /// Reads a part and passes it to `each` in pieces of whole groups, until that returns false.
    fn read(&self, part: &Range<u64>, mut each: impl FnMut(&[u8], &[u8]) -> bool) -> Result<(), Error> {
        let ([data_a, data_b], [group_a, group_b]) = (&self.data, self.group);
        let step = whole_groups(AT_ONCE, group_a);
        let [mut a, mut b] = [const { Vec::new() }; 2];
        for start in part.clone().step_by(step as usize) {
            let len = step.min(part.end - start);
            let start_b = start / group_a * group_b;
            a.resize(len as usize, 0);
            b.resize((len.div_ceil(group_a) * group_b).min(data_b.len() - start_b) as usize, 0);
            data_a.fill(&mut a, start, &ReadRequest::WAIT)?;
            data_b.fill(&mut b, start_b, &ReadRequest::WAIT)?;
            if !each(&a, &b) {
                break;
            }
        }
        Ok(())
    }

    fn compare(&self, part: &Range<u64>, progress: &impl Fn(u64)) -> Result<TensorDifference, Error> {
        let mut found = self.empty();
        let groups = (DECODED_AT_ONCE / self.group[0].max(self.group[1])).max(1);
        let [step_a, step_b] = self.group.map(|group| (groups * group) as usize);
        self.read(part, |a, b| {
            a.chunks(step_a).zip(b.chunks(step_b)).for_each(|(a, b)| self.add(a, b, &mut found));
            progress(a.len() as u64);
            true
        })?;
        Ok(found)
    }

    /// Adds the differences of a piece to `found`.
    fn add(&self, a: &[u8], b: &[u8], found: &mut TensorDifference) {
        if self.common.is_none() {
            if a == b {
                return;
            }
            found.bits = found.bits.map(|bits| bits + differing_bits(a, b));
        }
        let ([dtype_a, dtype_b], Some(values)) = (self.dtypes, &mut found.values) else { return };
        match self.common {
            None => compare_values(dtype_a, a, b, values),
            Some(CommonNumber::Float32) => compare_floats(&float32(dtype_a, a), &float32(dtype_b, b), values),
            Some(_) => compare_exact(&exact(dtype_a, a), &exact(dtype_b, b), values),
        }
    }
}

/// `bytes`, rounded down to whole groups of `group` bytes, but at least one group.
fn whole_groups(bytes: u64, group: u64) -> u64 {
    (bytes / group).max(1) * group
}

/// A range of whole groups of `group` bytes, in parts for one job each.
fn parts_of(range: Range<u64>, group: u64) -> impl Iterator<Item = Range<u64>> {
    let (part, end) = (whole_groups(AT_ONCE, group) * STEPS, range.end);
    range.step_by(part as usize).map(move |start| start..end.min(start + part))
}

/// Compares all pairs on all cores, large tensors in parts. `progress` is called from any thread with the number of
/// further bytes that are done.
pub fn differences(pairs: &[TensorPair], progress: &(impl Fn(u64) + Sync)) -> Result<Vec<TensorDifference>, Error> {
    pairs.iter().for_each(|pair| progress(pair.shared));
    let jobs: Vec<(usize, &Range<u64>)> =
        pairs.iter().enumerate().flat_map(|(at, pair)| pair.parts.iter().map(move |part| (at, part))).collect();
    let compared = run_jobs(&jobs, |(at, part)| pairs[*at].compare(part, progress))?;
    let mut found: Vec<TensorDifference> =
        pairs.iter().map(|pair| TensorDifference { shared: pair.shared, ..pair.empty() }).collect();
    for ((at, _), compared) in jobs.iter().zip(compared) {
        found[*at] = found[*at].merge(compared);
    }
    Ok(found)
}

/// Whether the tensors of all pairs of a group have the same bytes, for each group. Reads on all cores, and of a group
/// little more than is needed to find a difference.
pub fn have_same_bytes(groups: &[Vec<TensorPair>]) -> Result<Vec<bool>, Error> {
    let differ: Vec<AtomicBool> = groups.iter().map(|_| AtomicBool::new(false)).collect();
    let pairs = groups.iter().zip(&differ).flat_map(|(group, differs)| group.iter().map(move |pair| (pair, differs)));
    let jobs: Vec<(&TensorPair, &Range<u64>, &AtomicBool)> =
        pairs.flat_map(|(pair, differs)| pair.parts.iter().map(move |part| (pair, part, differs))).collect();
    run_jobs(&jobs, |(pair, part, differs)| {
        if differs.load(Ordering::Relaxed) {
            return Ok(());
        }
        pair.read(part, |a, b| {
            differs.fetch_or(a != b, Ordering::Relaxed);
            !differs.load(Ordering::Relaxed)
        })
    })?;
    Ok(differ.into_iter().map(|differs| !differs.into_inner()).collect())
}
