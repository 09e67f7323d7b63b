//! Pairs of tensors, compared on all cores.

use super::common::{CommonNumber, exact, float32};
use super::difference::{TensorDifference, ValueDifference};
use super::elements::{compare_exact, compare_floats, compare_values, differing_bits};
use super::shared::{StoredTensor, unshared};
use crate::content::{Data, Error};
use crate::format::Dtype;
use crate::threads;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Approximate number of bytes that are read at a time.
const AT_ONCE: u64 = 768 << 10;

/// Number of reads of about [`AT_ONCE`] bytes in one job of a thread.
const STEPS: u64 = 16;

/// Approximate number of differing bytes whose values are compared at a time. Decoded, they fit into a core's cache.
const DECODED_AT_ONCE: u64 = 24 << 10;

/// `bytes`, rounded down to whole blocks of `dtype`, but at least one block.
fn step(dtype: Dtype, bytes: u64) -> u64 {
    let block = dtype.block().map_or(1, |block| block.bytes);
    (bytes / block).max(1) * block
}

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
    dtype: Dtype<'a>,
    /// The dtype of the second tensor, if it is another, and how to compare the values.
    other: Option<(Dtype<'a>, CommonNumber)>,
    a: Data,
    b: Data,
    /// The parts that have to be read: whole blocks of elements, in bytes of the first tensor.
    parts: Vec<Range<u64>>,
    /// Number of bytes that need not be read, because both files have them in the same place of a disk.
    shared: u64,
}

impl<'a> TensorPair<'a> {
    /// Two tensors of `len` bytes.
    pub fn new(dtype: Dtype<'a>, len: u64, a: &StoredTensor, b: &StoredTensor) -> Self {
        let unshared = unshared(a, b, len);
        let shared = len - unshared.iter().map(|range| range.end - range.start).sum::<u64>();
        let block = step(dtype, 1);
        let whole = |range: &Range<u64>| range.start / block * block..range.end.next_multiple_of(block).min(len);
        let part = step(dtype, AT_ONCE) * STEPS;
        let parts = unshared.iter().map(whole).flat_map(|range| {
            let end = range.end;
            range.step_by(part as usize).map(move |start| start..end.min(start + part))
        });
        let parts = parts.collect();
        Self { dtype, other: None, a: a.data.clone(), b: b.data.clone(), parts, shared }
    }

    /// Two tensors of the same shape and different dtypes, the first with its length in bytes. `None` if their values
    /// cannot be compared.
    pub fn converted(a: (Dtype<'a>, u64, &StoredTensor), b: (Dtype<'a>, &StoredTensor)) -> Option<Self> {
        let ((dtype, len_a, a), (other, b)) = (a, b);
        let common = CommonNumber::of(dtype, other)?;
        let (group, _) = group(dtype, other)?;
        let part = (AT_ONCE / group).max(1) * STEPS * group;
        let parts = (0..len_a).step_by(part as usize).map(|start| start..len_a.min(start + part)).collect();
        Some(Self { dtype, other: Some((other, common)), a: a.data.clone(), b: b.data.clone(), parts, shared: 0 })
    }

    /// The type in which the values are compared, if the dtypes differ.
    pub fn common(&self) -> Option<CommonNumber> {
        self.other.map(|(_, common)| common)
    }

    fn empty(&self) -> TensorDifference {
        let bits = if self.other.is_none() { Some(0) } else { None };
        let has_values = self.dtype == Dtype::C64 || self.dtype.to_f32().is_some();
        TensorDifference { bits, values: has_values.then(ValueDifference::default), shared: 0 }
    }
}

/// The bytes of the smallest group of elements that is a whole number of blocks in both dtypes. `None` if one of them
/// is unknown.
fn group(a: Dtype, b: Dtype) -> Option<(u64, u64)> {
    let (a, b) = (a.block()?, b.block()?);
    // The elements of blocks are powers of two.
    let elements = a.elements.max(b.elements);
    Some((elements / a.elements * a.bytes, elements / b.elements * b.bytes))
}

/// Compares all pairs on all cores, large tensors in parts.
///
/// `progress` is called from any thread with the number of further bytes that are done.
pub fn differences(pairs: &[TensorPair], progress: &(impl Fn(u64) + Sync)) -> Result<Vec<TensorDifference>, Error> {
    let jobs: Vec<(usize, &Range<u64>)> =
        pairs.iter().enumerate().flat_map(|(at, pair)| pair.parts.iter().map(move |part| (at, part))).collect();
    pairs.iter().for_each(|pair| progress(pair.shared));
    let failed = AtomicBool::new(false);
    let compared = threads::map_parallel(jobs.len(), |job| {
        let (at, part) = jobs[job];
        // After an error the remaining parts need not be read.
        if failed.load(Ordering::Relaxed) {
            return Ok(TensorDifference::default());
        }
        let pair = &pairs[at];
        let compared = match pair.other {
            None => compare_part(pair.dtype, &pair.a, &pair.b, part.clone(), pair.empty(), progress),
            Some((other, common)) => compare_converted(pair, other, common, part.clone(), progress),
        };
        failed.fetch_or(compared.is_err(), Ordering::Relaxed);
        compared
    });
    let mut found: Vec<TensorDifference> =
        pairs.iter().map(|pair| TensorDifference { shared: pair.shared, ..pair.empty() }).collect();
    for ((at, _), compared) in jobs.iter().zip(compared) {
        found[*at] = found[*at].merge(compared?);
    }
    Ok(found)
}

/// Whether the tensors of all pairs of a group have the same bytes, for each group. Reads on all cores, and of a group
/// little more than is needed to find a difference.
///
/// # Errors
/// If a file cannot be read.
pub fn have_same_bytes(groups: &[Vec<TensorPair>]) -> Result<Vec<bool>, Error> {
    let differ: Vec<AtomicBool> = groups.iter().map(|_| AtomicBool::new(false)).collect();
    let pairs = groups.iter().zip(&differ).flat_map(|(group, differs)| group.iter().map(move |pair| (pair, differs)));
    let jobs: Vec<(&TensorPair, &Range<u64>, &AtomicBool)> =
        pairs.flat_map(|(pair, differs)| pair.parts.iter().map(move |part| (pair, part, differs))).collect();
    let failed = AtomicBool::new(false);
    let compared = threads::map_parallel(jobs.len(), |job| {
        let (pair, part, differs) = jobs[job];
        let is_over = || differs.load(Ordering::Relaxed) || failed.load(Ordering::Relaxed);
        let compared = find_difference(&pair.a, &pair.b, part.clone(), is_over);
        failed.fetch_or(compared.is_err(), Ordering::Relaxed);
        differs.fetch_or(compared?, Ordering::Relaxed);
        Ok(())
    });
    compared.into_iter().collect::<Result<(), Error>>()?;
    Ok(differ.into_iter().map(|differs| !differs.into_inner()).collect())
}

/// Whether a part of two tensors differs. Ends early once `is_over`.
fn find_difference(a: &Data, b: &Data, part: Range<u64>, is_over: impl Fn() -> bool) -> Result<bool, Error> {
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    for at in part.clone().step_by(AT_ONCE as usize) {
        if is_over() {
            break;
        }
        let len = AT_ONCE.min(part.end - at) as usize;
        of_a.resize(len, 0);
        of_b.resize(len, 0);
        a.read_exact_at(&mut of_a, at)?;
        b.read_exact_at(&mut of_b, at)?;
        if of_a != of_b {
            return Ok(true);
        }
    }
    Ok(false)
}

fn compare_part(
    dtype: Dtype,
    a: &Data,
    b: &Data,
    part: Range<u64>,
    mut found: TensorDifference,
    progress: &impl Fn(u64),
) -> Result<TensorDifference, Error> {
    let (step, decoded) = (step(dtype, AT_ONCE), step(dtype, DECODED_AT_ONCE) as usize);
    let size = step.min(part.end - part.start) as usize;
    let (mut of_a, mut of_b) = (vec![0; size], vec![0; size]);
    let mut at = part.start;
    while at < part.end {
        let len = step.min(part.end - at);
        let (of_a, of_b) = (&mut of_a[..len as usize], &mut of_b[..len as usize]);
        a.read_exact_at(of_a, at)?;
        b.read_exact_at(of_b, at)?;
        if of_a != of_b {
            for (a, b) in of_a.chunks(decoded).zip(of_b.chunks(decoded)).filter(|(a, b)| a != b) {
                found.bits = found.bits.map(|bits| bits + differing_bits(a, b));
                if let Some(values) = &mut found.values {
                    compare_values(dtype, a, b, values);
                }
            }
        }
        at += len;
        progress(len);
    }
    Ok(found)
}

/// Compares a part of two tensors of different dtypes.
fn compare_converted(
    pair: &TensorPair,
    other: Dtype,
    common: CommonNumber,
    mut part: Range<u64>,
    progress: &impl Fn(u64),
) -> Result<TensorDifference, Error> {
    let (mut found, mut values) = (pair.empty(), ValueDifference::default());
    // A pair is only made of dtypes that have a size.
    let (group_a, group_b) = group(pair.dtype, other).unwrap_or((1, 1));
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    while part.start < part.end {
        let left = (part.end - part.start).div_ceil(group_a);
        let groups = left.min((DECODED_AT_ONCE / group_a.max(group_b)).max(1));
        let from = part.start / group_a * group_b;
        of_a.resize((groups * group_a).min(part.end - part.start) as usize, 0);
        of_b.resize((groups * group_b).min(pair.b.len() - from) as usize, 0);
        pair.a.read_exact_at(&mut of_a, part.start)?;
        pair.b.read_exact_at(&mut of_b, from)?;
        match common {
            CommonNumber::Float32 => compare_floats(&float32(pair.dtype, &of_a), &float32(other, &of_b), &mut values),
            CommonNumber::Float64 | CommonNumber::Exact => {
                compare_exact(&exact(pair.dtype, &of_a), &exact(other, &of_b), &mut values);
            }
        }
        part.start += of_a.len() as u64;
        progress(of_a.len() as u64);
    }
    found.values = Some(values);
    Ok(found)
}
