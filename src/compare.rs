//! Differences between two tensors of the same shape. Bytes that both files share on disk are not read. Tensors of
//! different dtypes are compared by their values.

use crate::content::{Data, Error, Extents, Run, Sources};
use crate::format::{Block as Elements, Dtype, TensorInfo};
use crate::source::{Block, FileId};
use crate::threads;
use std::ops::Range;
use std::sync::Arc;
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

/// The numbers to which the values of two dtypes are converted, so that they can be compared. No conversion rounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Numbers {
    /// float32.
    Float32,
    /// float64.
    Float64,
    /// Sums of two float64 numbers, which hold every float64 number and every 64-bit integer.
    Exact,
}

impl Numbers {
    /// The numbers that hold all values of both dtypes; `None` if a dtype is complex or unknown.
    pub fn of(a: Dtype, b: Dtype) -> Option<Self> {
        let narrowest = |dtype: Dtype| match dtype {
            Dtype::F64 | Dtype::I32 | Dtype::U32 => Some(Self::Float64),
            Dtype::I64 | Dtype::U64 => Some(Self::Exact),
            _ => dtype.to_f32().map(|_| Self::Float32),
        };
        Some(narrowest(a)?.max(narrowest(b)?))
    }

    /// The name for reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Float32 => "float32",
            Self::Float64 => "float64",
            Self::Exact => "exact",
        }
    }
}

/// Why the values of two tensors cannot be compared, if that is so.
pub fn obstacle(a: &TensorInfo, b: &TensorInfo) -> Option<String> {
    if a.shape != b.shape {
        return Some("the shapes differ".to_owned());
    }
    if let Some(unknown) = [a.dtype, b.dtype].into_iter().find(|dtype| dtype.block().is_none()) {
        return Some(format!("dtype {} is unknown", unknown.quoted()));
    }
    if let Some(opaque) = [a.dtype, b.dtype].into_iter().find(|dtype| dtype.has_scales() && dtype.to_f32().is_none()) {
        return Some(format!("the values of {} cannot be decoded", opaque.quoted()));
    }
    Numbers::of(a.dtype, b.dtype).is_none().then(|| "only one of them is complex".to_owned())
}

/// What differs between two tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Difference {
    /// Number of bits that differ; `None` if the dtypes differ.
    pub bits: Option<u64>,
    /// Differences between elements and their values; `None` if the dtype is unknown.
    pub values: Option<Values>,
    /// Number of bytes that were not read, because both files have them in the same place of a disk.
    pub shared: u64,
}

/// What differs between the values of two tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Values {
    /// Number of elements with different bits, or with different values if the dtypes differ.
    pub elements: u64,
    /// How many of these are infinite or NaN in either tensor. They have no distance.
    pub not_finite: u64,
    /// The largest distance between two values; for complex values the magnitude of their difference.
    pub max_abs: f64,
    /// The largest distance relative to the larger magnitude of the two values: from 0 to 2.
    pub max_rel: f64,
}

impl Difference {
    /// Whether all bytes are equal, or all values if the dtypes differ.
    pub fn is_empty(&self) -> bool {
        self.bits.is_none_or(|bits| bits == 0) && self.values.is_none_or(|values| values.elements == 0)
    }

    fn merge(self, other: Self) -> Self {
        let values = |(a, b): (Values, Values)| Values {
            elements: a.elements + b.elements,
            not_finite: a.not_finite + b.not_finite,
            max_abs: a.max_abs.max(b.max_abs),
            max_rel: a.max_rel.max(b.max_rel),
        };
        Self {
            bits: self.bits.zip(other.bits).map(|(a, b)| a + b),
            values: self.values.zip(other.values).map(values),
            shared: self.shared + other.shared,
        }
    }
}

impl Values {
    /// Counts a pair of elements with different bits. `distance` is absolute and relative; `None` if one is not finite.
    fn add(&mut self, distance: Option<(f64, f64)>) {
        self.elements += 1;
        match distance {
            Some((abs, rel)) => {
                self.max_abs = self.max_abs.max(abs);
                self.max_rel = self.max_rel.max(rel);
            }
            None => self.not_finite += 1,
        }
    }

    /// Counts a pair of elements if they differ, without a branch. The distance of float32 numbers cannot overflow
    /// float64.
    #[inline(always)]
    fn add_if(&mut self, differs: bool, a: f64, b: f64) {
        let is_finite = a.is_finite() & b.is_finite();
        let distance = if differs & is_finite { (a - b).abs() } else { 0.0 };
        let relative = if distance == 0.0 { 0.0 } else { distance / a.abs().max(b.abs()) };
        self.elements += u64::from(differs);
        self.not_finite += u64::from(differs & !is_finite);
        self.max_abs = if distance > self.max_abs { distance } else { self.max_abs };
        self.max_rel = if relative > self.max_rel { relative } else { self.max_rel };
    }
}

/// The files of one model, and the disk blocks that they may share with other files.
#[derive(Debug)]
pub struct Files {
    sources: Sources,
    blocks: Vec<(Option<FileId>, Vec<Block>)>,
}

impl Files {
    /// Queries the file system for the blocks.
    pub fn new(sources: &Sources) -> Self {
        let blocks = threads::map(sources.len(), |at| (sources[at].id(), sources[at].shared_blocks()));
        Self { sources: sources.clone(), blocks }
    }
}

/// A tensor as runs in files.
#[derive(Debug, Clone)]
pub struct Stored<'a> {
    /// The files.
    pub files: &'a Files,
    /// The runs.
    pub runs: Arc<[Run]>,
}

impl Stored<'_> {
    fn data(&self, len: u64) -> Data {
        Data::Extents(Extents { sources: self.files.sources.clone(), runs: self.runs.clone(), len })
    }
}

/// Two tensors of the same shape.
#[derive(Debug)]
pub struct Pair<'a> {
    dtype: Dtype<'a>,
    /// The dtype of the second tensor, if it is another, and how to compare the values.
    other: Option<(Dtype<'a>, Numbers)>,
    a: Data,
    b: Data,
    /// The parts that have to be read: whole blocks of elements, in bytes of the first tensor.
    parts: Vec<Range<u64>>,
    /// Number of bytes that need not be read, because both files have them in the same place of a disk.
    shared: u64,
}

impl<'a> Pair<'a> {
    /// Two tensors of `len` bytes.
    pub fn new(dtype: Dtype<'a>, len: u64, a: &Stored, b: &Stored) -> Self {
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
        Self { dtype, other: None, a: a.data(len), b: b.data(len), parts, shared }
    }

    /// Two tensors of the same shape and different dtypes, each with its length in bytes. `None` if their values cannot
    /// be compared.
    pub fn converted(a: (Dtype<'a>, u64, &Stored), b: (Dtype<'a>, u64, &Stored)) -> Option<Self> {
        let ((dtype, len_a, a), (other, len_b, b)) = (a, b);
        let numbers = Numbers::of(dtype, other)?;
        let (group, _) = group(dtype, other)?;
        let part = (AT_ONCE / group).max(1) * STEPS * group;
        let parts = (0..len_a).step_by(part as usize).map(|start| start..len_a.min(start + part)).collect();
        Some(Self { dtype, other: Some((other, numbers)), a: a.data(len_a), b: b.data(len_b), parts, shared: 0 })
    }

    /// How the values are compared, if the dtypes differ.
    pub fn numbers(&self) -> Option<Numbers> {
        self.other.map(|(_, numbers)| numbers)
    }

    fn empty(&self) -> Difference {
        let bits = if self.other.is_none() { Some(0) } else { None };
        let has_values = self.dtype == Dtype::C64 || self.dtype.to_f32().is_some();
        Difference { bits, values: has_values.then(Values::default), shared: 0 }
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
pub fn differences(pairs: &[Pair], progress: &(impl Fn(u64) + Sync)) -> Result<Vec<Difference>, Error> {
    let jobs: Vec<(usize, &Range<u64>)> =
        pairs.iter().enumerate().flat_map(|(at, pair)| pair.parts.iter().map(move |part| (at, part))).collect();
    pairs.iter().for_each(|pair| progress(pair.shared));
    let failed = AtomicBool::new(false);
    let compared = threads::map(jobs.len(), |job| {
        let (at, part) = jobs[job];
        // After an error the remaining parts need not be read.
        if failed.load(Ordering::Relaxed) {
            return Ok(Difference::default());
        }
        let pair = &pairs[at];
        let compared = match pair.other {
            None => compare_part(pair.dtype, &pair.a, &pair.b, part.clone(), pair.empty(), progress),
            Some((other, numbers)) => compare_converted(pair, other, numbers, part.clone(), progress),
        };
        failed.fetch_or(compared.is_err(), Ordering::Relaxed);
        compared
    });
    let mut found: Vec<Difference> =
        pairs.iter().map(|pair| Difference { shared: pair.shared, ..pair.empty() }).collect();
    for ((at, _), compared) in jobs.iter().zip(compared) {
        found[*at] = found[*at].merge(compared?);
    }
    Ok(found)
}

fn compare_part(
    dtype: Dtype,
    a: &Data,
    b: &Data,
    part: Range<u64>,
    mut found: Difference,
    progress: &impl Fn(u64),
) -> Result<Difference, Error> {
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
    pair: &Pair,
    other: Dtype,
    numbers: Numbers,
    mut part: Range<u64>,
    progress: &impl Fn(u64),
) -> Result<Difference, Error> {
    let (mut found, mut values) = (pair.empty(), Values::default());
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
        match numbers {
            Numbers::Float32 => compare_floats(&float32(pair.dtype, &of_a), &float32(other, &of_b), &mut values),
            Numbers::Float64 | Numbers::Exact => {
                compare_exact(&exact(pair.dtype, &of_a), &exact(other, &of_b), &mut values);
            }
        }
        part.start += of_a.len() as u64;
        progress(of_a.len() as u64);
    }
    found.values = Some(values);
    Ok(found)
}

/// The values of whole blocks as float32, in memory; nothing if the dtype has no such conversion.
fn float32(dtype: Dtype, encoded: &[u8]) -> Vec<u8> {
    let (Some(Elements { elements, bytes }), Some(to_f32)) = (dtype.block(), dtype.to_f32()) else { return Vec::new() };
    let mut wide = vec![0; encoded.len() / bytes as usize * elements as usize * size_of::<f32>()];
    to_f32(encoded, &mut wide);
    wide
}

/// The values of whole blocks, each as the sum of two numbers: the nearest float64 number and the rest.
fn exact(dtype: Dtype, encoded: &[u8]) -> Vec<[f64; 2]> {
    fn each<const N: usize>(encoded: &[u8], number: impl Fn([u8; N]) -> [f64; 2]) -> Vec<[f64; 2]> {
        encoded.as_chunks().0.iter().map(|bytes| number(*bytes)).collect()
    }
    let integer = |value: i128| [value as f64, (value - value as f64 as i128) as f64];
    match dtype {
        Dtype::F64 => each(encoded, |bytes| [f64::from_le_bytes(bytes), 0.0]),
        Dtype::I32 => each(encoded, |bytes| [i32::from_le_bytes(bytes).into(), 0.0]),
        Dtype::U32 => each(encoded, |bytes| [u32::from_le_bytes(bytes).into(), 0.0]),
        Dtype::I64 => each(encoded, |bytes| integer(i64::from_le_bytes(bytes).into())),
        Dtype::U64 => each(encoded, |bytes| integer(u64::from_le_bytes(bytes).into())),
        _ => each(&float32(dtype, encoded), |bytes| [f32::from_le_bytes(bytes).into(), 0.0]),
    }
}

/// Compares float32 numbers. 0.0 and -0.0 are equal, and so are all NaN.
///
/// There is no branch, because it would be unpredictable.
fn compare_floats(a: &[u8], b: &[u8], values: &mut Values) {
    let mut found = *values;
    for (a, b) in a.as_chunks::<4>().0.iter().zip(b.as_chunks::<4>().0) {
        let [a, b] = [a, b].map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
        let differs = (a != b) & !(a.is_nan() & b.is_nan());
        found.add_if(differs, a, b);
    }
    *values = found;
}

/// Compares sums of float64 numbers. 0.0 and -0.0 are equal, and so are all NaN.
fn compare_exact(a: &[[f64; 2]], b: &[[f64; 2]], values: &mut Values) {
    for (a, b) in a.iter().zip(b) {
        if a != b && !(a[0].is_nan() && b[0].is_nan()) {
            values.add(sum(*a, *b));
        }
    }
}

fn differing_bits(a: &[u8], b: &[u8]) -> u64 {
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let words = a.iter().zip(b).map(|(a, b)| (u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b)).count_ones());
    let rest = rest_a.iter().zip(rest_b).map(|(a, b)| (a ^ b).count_ones());
    words.chain(rest).map(u64::from).sum()
}

/// Compares the elements of whole blocks.
fn compare_values(dtype: Dtype, a: &[u8], b: &[u8], values: &mut Values) {
    match dtype {
        Dtype::F32 => each_wide::<4>((a, b), (a, b), values),
        Dtype::F64 => each(a, b, values, |a, b| double(f64::from_le_bytes(a), f64::from_le_bytes(b))),
        Dtype::I32 => each(a, b, values, |a, b| double(i32::from_le_bytes(a).into(), i32::from_le_bytes(b).into())),
        Dtype::U32 => each(a, b, values, |a, b| double(u32::from_le_bytes(a).into(), u32::from_le_bytes(b).into())),
        Dtype::I64 => each(a, b, values, |a, b| {
            let (a, b) = (i64::from_le_bytes(a), i64::from_le_bytes(b));
            integer(a.abs_diff(b), a.unsigned_abs().max(b.unsigned_abs()))
        }),
        Dtype::U64 => each(a, b, values, |a, b| {
            let (a, b) = (u64::from_le_bytes(a), u64::from_le_bytes(b));
            integer(a.abs_diff(b), a.max(b))
        }),
        Dtype::C64 => each(a, b, values, complex),
        _ => compare_widened(dtype, a, b, values),
    }
}

/// Compares elements whose values float32 can represent.
fn compare_widened(dtype: Dtype, a: &[u8], b: &[u8], values: &mut Values) {
    let Some(Elements { elements, bytes }) = dtype.block() else { return };
    let (wide_a, wide_b) = (float32(dtype, a), float32(dtype, b));
    match (elements, bytes) {
        (1, 1) => each_wide::<1>((a, b), (&wide_a, &wide_b), values),
        (1, 2) => each_wide::<2>((a, b), (&wide_a, &wide_b), values),
        // Elements that share bytes are compared as float32: different codes have different float32 bits.
        _ => each_wide::<4>((&wide_a, &wide_b), (&wide_a, &wide_b), values),
    }
}

/// Compares elements of `N` bytes by the float32 of each.
///
/// There is no branch, because it would be unpredictable.
fn each_wide<const N: usize>(raw: (&[u8], &[u8]), wide: (&[u8], &[u8]), values: &mut Values) {
    let raw = raw.0.as_chunks::<N>().0.iter().zip(raw.1.as_chunks::<N>().0);
    let wide = wide.0.as_chunks::<4>().0.iter().zip(wide.1.as_chunks::<4>().0);
    let mut found = *values;
    for ((raw_a, raw_b), (a, b)) in raw.zip(wide) {
        let [a, b] = [a, b].map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
        found.add_if(raw_a != raw_b, a, b);
    }
    *values = found;
}

fn each<const N: usize>(
    a: &[u8],
    b: &[u8],
    values: &mut Values,
    distance: impl Fn([u8; N], [u8; N]) -> Option<(f64, f64)>,
) {
    let elements = a.as_chunks::<N>().0.iter().zip(b.as_chunks::<N>().0);
    elements.filter(|(a, b)| a != b).for_each(|(a, b)| values.add(distance(*a, *b)));
}

/// The distance of two float64 numbers.
fn double(a: f64, b: f64) -> Option<(f64, f64)> {
    sum([a, 0.0], [b, 0.0])
}

/// The distance of two sums of float64 numbers.
fn sum([a, rest_a]: [f64; 2], [b, rest_b]: [f64; 2]) -> Option<(f64, f64)> {
    let (distance, scale) = ((a - b + (rest_a - rest_b)).abs(), a.abs().max(b.abs()));
    (a.is_finite() && b.is_finite()).then(|| relative(distance, scale, || (a / scale - b / scale).abs()))
}

fn integer(distance: u64, scale: u64) -> Option<(f64, f64)> {
    Some((distance as f64, distance as f64 / scale as f64))
}

fn complex(a: [u8; 8], b: [u8; 8]) -> Option<(f64, f64)> {
    let part = |bytes: &[u8; 8], at: usize| f64::from(f32::from_le_bytes(bytes.as_chunks().0[at]));
    let [(a_re, a_im), (b_re, b_im)] = [a, b].map(|bytes| (part(&bytes, 0), part(&bytes, 1)));
    let finite = [a_re, a_im, b_re, b_im].iter().all(|part| part.is_finite());
    let distance = (a_re - b_re).hypot(a_im - b_im);
    let scale = a_re.hypot(a_im).max(b_re.hypot(b_im));
    finite.then(|| relative(distance, scale, || distance / scale))
}

/// A distance, absolute and relative to `scale`. `scaled` computes the latter if `distance` overflowed to infinity.
fn relative(distance: f64, scale: f64, scaled: impl Fn() -> f64) -> (f64, f64) {
    // 0.0 and -0.0 have the distance 0, and 0 / 0 would be NaN.
    let rel = if distance == 0.0 { 0.0 } else { distance / scale };
    (distance, if distance.is_finite() { rel } else { scaled() })
}

/// The ranges of two tensors of `len` bytes that are not known to lie in the same place of a disk.
fn unshared(a: &Stored, b: &Stored, len: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < len {
        let (side_a, side_b) = (Piece::find(a, at, len), Piece::find(b, at, len));
        let (same, long) = side_a.compare(&side_b);
        // Each step covers at least one byte, even if the file system reports an empty block.
        let end = at + long.clamp(1, len - at);
        match ranges.last_mut() {
            _ if same => {}
            Some(last) if last.end == at => last.end = end,
            _ => ranges.push(at..end),
        }
        at = end;
    }
    ranges
}

/// Where the bytes from an offset in a tensor on are stored.
struct Piece<'a> {
    id: Option<FileId>,
    blocks: &'a [Block],
    /// In bytes from the start of the file.
    offset: u64,
    /// Number of bytes from there on that are contiguous in the file.
    len: u64,
}

impl<'a> Piece<'a> {
    fn find(tensor: &Stored<'a>, at: u64, len: u64) -> Self {
        let runs = &tensor.runs;
        let next = runs.partition_point(|run| run.start <= at);
        let end = runs.get(next).map_or(len, |run| run.start);
        let Some(run) = next.checked_sub(1).map(|last| runs[last]) else {
            return Self { id: None, blocks: &[], offset: 0, len: end - at };
        };
        let (id, blocks) = &tensor.files.blocks[run.source];
        Self { id: *id, blocks, offset: run.offset + at - run.start, len: end - at }
    }

    /// Whether both lie in the same place of a disk, and for how many bytes this is known.
    fn compare(&self, other: &Self) -> (bool, u64) {
        let len = self.len.min(other.len);
        match (self.id, other.id) {
            (Some(a), Some(b)) if a == b && self.offset == other.offset => return (true, len),
            // Places on different disks cannot be compared.
            (Some((a, _)), Some((b, _))) if a != b => return (false, len),
            _ => {}
        }
        let ((place_a, len_a), (place_b, len_b)) = (self.place(), other.place());
        (place_a.is_some() && place_a == place_b, len.min(len_a).min(len_b))
    }

    /// Its place on the disk, if that is known, and the number of bytes for which this holds.
    fn place(&self) -> (Option<u64>, u64) {
        let next = self.blocks.partition_point(|block| block.start <= self.offset);
        if let Some(block) = next.checked_sub(1).map(|last| self.blocks[last]) {
            let inside = self.offset - block.start;
            if inside < block.len {
                return (Some(block.place.wrapping_add(inside)), block.len - inside);
            }
        }
        (None, self.blocks.get(next).map_or(u64::MAX, |block| block.start - self.offset))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::{Bytes, Error as SourceError, Memory, Source, Stat};
    use proptest::prelude::*;
    use std::sync::atomic::AtomicU64;

    fn difference(
        dtype: Dtype,
        len: u64,
        (a, runs_a): (&Sources, &[Run]),
        (b, runs_b): (&Sources, &[Run]),
        progress: &(impl Fn(u64) + Sync),
    ) -> Difference {
        let (a, b) = (Files::new(a), Files::new(b));
        let (a, b) = (Stored { files: &a, runs: runs_a.into() }, Stored { files: &b, runs: runs_b.into() });
        differences(&[Pair::new(dtype, len, &a, &b)], progress).unwrap()[0]
    }

    /// All dtypes without scales and an unknown one.
    fn dtypes() -> Vec<Dtype<'static>> {
        Dtype::SAFETENSORS.iter().copied().chain([Dtype::Unknown("I4")]).collect()
    }

    /// A source in memory that reports disk blocks and counts the bytes that are read.
    #[derive(Debug)]
    struct OnDisk {
        memory: Memory,
        id: FileId,
        blocks: Vec<Block>,
        read: Arc<AtomicU64>,
    }

    impl Source for OnDisk {
        fn len(&self) -> u64 {
            self.memory.len()
        }
        fn bytes(&self, range: Range<u64>) -> Result<Bytes, SourceError> {
            self.memory.bytes(range)
        }
        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), SourceError> {
            self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
            self.memory.read_exact_at(buf, offset)
        }
        fn verify(&self) -> Result<(), SourceError> {
            self.memory.verify()
        }
        fn may_block(&self, range: &Range<u64>) -> bool {
            self.memory.may_block(range)
        }
        fn stat(&self) -> Stat {
            self.memory.stat()
        }
        fn id(&self) -> Option<FileId> {
            Some(self.id)
        }
        fn shared_blocks(&self) -> Vec<Block> {
            self.blocks.clone()
        }
    }

    const FIRST: [Run; 1] = [Run { start: 0, source: 0, offset: 0 }];

    fn memory(bytes: &[u8]) -> Sources {
        Arc::new([Arc::new(Memory::new(bytes.to_vec())) as Arc<dyn Source>])
    }

    fn compare(dtype: Dtype, a: &[u8], b: &[u8]) -> Difference {
        let (of_a, of_b) = (memory(a), memory(b));
        let done = AtomicU64::new(0);
        let progress = |bytes| _ = done.fetch_add(bytes, Ordering::Relaxed);
        let found = difference(dtype, a.len() as u64, (&of_a, &FIRST), (&of_b, &FIRST), &progress);
        assert_eq!((done.into_inner(), found.shared), (a.len() as u64, 0));
        found
    }

    /// The bits of each element, and the real and imaginary part of its value.
    fn elements(dtype: Dtype, bytes: &[u8]) -> Vec<(u64, [f64; 2])> {
        fn wide<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> [f64; 2]) -> Vec<(u64, [f64; 2])> {
            let bits = |bytes: &[u8; N]| bytes.iter().rev().fold(0, |bits, byte| bits << 8 | u64::from(*byte));
            bytes.as_chunks().0.iter().map(|bytes| (bits(bytes), value(*bytes))).collect()
        }
        match dtype {
            Dtype::F64 => wide(bytes, |bytes| [f64::from_le_bytes(bytes), 0.0]),
            Dtype::I64 => wide(bytes, |bytes| [i64::from_le_bytes(bytes) as f64, 0.0]),
            Dtype::U64 => wide(bytes, |bytes| [u64::from_le_bytes(bytes) as f64, 0.0]),
            Dtype::I32 => wide(bytes, |bytes| [i32::from_le_bytes(bytes).into(), 0.0]),
            Dtype::U32 => wide(bytes, |bytes| [u32::from_le_bytes(bytes).into(), 0.0]),
            Dtype::C64 => wide(bytes, |bytes: [u8; 8]| {
                let [re, im] = [0, 1].map(|at| f32::from_le_bytes(bytes.as_chunks().0[at]).into());
                [re, im]
            }),
            _ => {
                let block = dtype.block().unwrap();
                let mut values = vec![0; bytes.len() / block.bytes as usize * block.elements as usize * 4];
                dtype.to_f32().unwrap()(bytes, &mut values);
                let width = dtype.bits().unwrap() as usize;
                let bit = |at: usize| u64::from(bytes[at / 8] >> (at % 8) & 1);
                let bits = |at: usize| (0..width).map(|place| bit(at * width + place) << place).sum();
                let values = values.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
                values.enumerate().map(|(at, value)| (bits(at), [value.into(), 0.0])).collect()
            }
        }
    }

    fn naive(dtype: Dtype, a: &[u8], b: &[u8]) -> Difference {
        let bits = a.iter().zip(b).map(|(a, b)| u64::from((a ^ b).count_ones())).sum();
        let values = dtype.bits().map(|_| {
            let mut values = Values::default();
            for ((bits_a, a), (bits_b, b)) in elements(dtype, a).into_iter().zip(elements(dtype, b)) {
                if bits_a != bits_b {
                    values.elements += 1;
                    let size = |[re, im]: [f64; 2]| re.hypot(im);
                    let apart = match dtype {
                        // Beyond the precision of float64.
                        Dtype::I64 => (bits_a as i64).abs_diff(bits_b as i64) as f64,
                        Dtype::U64 => bits_a.abs_diff(bits_b) as f64,
                        _ => size([a[0] - b[0], a[1] - b[1]]),
                    };
                    if a.iter().chain(&b).all(|part| part.is_finite()) {
                        let largest = size(a).max(size(b));
                        let relative = match apart {
                            0.0 => 0.0,
                            // The distance of finite numbers may overflow; that of their halves does not.
                            f64::INFINITY => size([a[0] / 2.0 - b[0] / 2.0, 0.0]) / (largest / 2.0),
                            _ => apart / largest,
                        };
                        values.max_abs = values.max_abs.max(apart);
                        values.max_rel = values.max_rel.max(relative);
                    } else {
                        values.not_finite += 1;
                    }
                }
            }
            values
        });
        Difference { bits: Some(bits), values, shared: 0 }
    }

    fn assert_close(found: Difference, expected: Difference, context: &str) {
        let close = |a: f64, b: f64| a == b || (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
        let exact = |difference: Difference| {
            (difference.bits, difference.values.map(|values| (values.elements, values.not_finite)))
        };
        assert_eq!(exact(found), exact(expected), "{context}");
        if let (Some(found), Some(expected)) = (found.values, expected.values) {
            assert!(close(found.max_abs, expected.max_abs), "{context} {found:?} {expected:?}");
            assert!(close(found.max_rel, expected.max_rel), "{context} {found:?} {expected:?}");
        }
    }

    #[test]
    fn all_codes_of_small_dtypes_match_naive_comparison() {
        let a: Vec<u8> = (0..=u16::MAX).flat_map(|code| code.to_le_bytes()).collect();
        let b: Vec<u8> = (0..=u16::MAX).flat_map(|code| (code.wrapping_mul(7) ^ 0x5a).to_le_bytes()).collect();
        let len = a.len() / 24 * 24;
        for dtype in dtypes().into_iter().filter(|dtype| dtype.bits().is_none_or(|bits| bits <= 16)) {
            assert_close(compare(dtype, &a[..len], &b[..len]), naive(dtype, &a[..len], &b[..len]), dtype.name());
            assert!(compare(dtype, &a[..len], &a[..len]).is_empty());
        }
    }

    /// Compares tensors of different dtypes.
    fn converted(a: (Dtype, &[u8]), b: (Dtype, &[u8])) -> Difference {
        let (of_a, of_b) = (memory(a.1), memory(b.1));
        let (files_a, files_b) = (Files::new(&of_a), Files::new(&of_b));
        let stored = |files| Stored { files, runs: FIRST[..].into() };
        let done = AtomicU64::new(0);
        let pair =
            Pair::converted((a.0, a.1.len() as u64, &stored(&files_a)), (b.0, b.1.len() as u64, &stored(&files_b)));
        let found = differences(&[pair.unwrap()], &|bytes| _ = done.fetch_add(bytes, Ordering::Relaxed)).unwrap()[0];
        assert_eq!((done.into_inner(), found.bits), (a.1.len() as u64, None));
        found
    }

    #[test]
    fn values_of_different_dtypes_are_compared_exactly() {
        let f32s = |values: &[f32]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let f64s = |values: &[f64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let halves = |values: &[f32]| -> Vec<u8> {
            values.iter().flat_map(|value| half::f16::from_f32(*value).to_le_bytes()).collect()
        };
        let brains = |values: &[f32]| -> Vec<u8> {
            values.iter().flat_map(|value| half::bf16::from_f32(*value).to_le_bytes()).collect()
        };
        let i64s = |values: &[i64]| values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>();
        let (nan, inf, odd) = (f32::NAN, f32::INFINITY, (1i64 << 53) + 1);
        use Dtype::{BF16, F16, F32, F64, I8, I32, I64, U64};
        type Side<'s> = (Dtype<'s>, Vec<u8>);
        type Case<'c> = (Side<'c>, Side<'c>, Numbers, (u64, u64, f64));
        // Two tensors, the numbers, and what differs: elements, of these not finite, and the largest distance.
        let table: [Case; 12] = [
            (
                (F32, f32s(&[1.0, -0.0, nan, inf])),
                (BF16, brains(&[1.0, 0.0, -nan, inf])),
                Numbers::Float32,
                (0, 0, 0.0),
            ),
            ((BF16, brains(&[1.0, 2.0, nan, inf])), (F32, f32s(&[1.5, 2.0, 0.0, -inf])), Numbers::Float32, (3, 2, 0.5)),
            (
                (F16, halves(&[0.1])),
                (F32, f32s(&[0.1])),
                Numbers::Float32,
                (1, 0, f64::from(0.1f32) - f64::from(half::f16::from_f32(0.1))),
            ),
            ((F16, halves(&[-3.0, 7.0])), (I8, vec![253, 7]), Numbers::Float32, (0, 0, 0.0)),
            ((F64, f64s(&[0.1, 1e300])), (F32, f32s(&[0.1, inf])), Numbers::Float64, (2, 1, f64::from(0.1f32) - 0.1)),
            (
                (F64, f64s(&[f64::MAX, 16_777_217.0])),
                (F64, f64s(&[f64::MIN, 16_777_217.0])),
                Numbers::Float64,
                (1, 0, f64::INFINITY),
            ),
            ((I32, 16_777_217i32.to_le_bytes().to_vec()), (F32, f32s(&[16_777_216.0])), Numbers::Float64, (1, 0, 1.0)),
            ((I64, i64s(&[odd, 5])), (F64, f64s(&[odd as f64, 5.0])), Numbers::Exact, (1, 0, 1.0)),
            ((I64, i64s(&[odd])), (U64, i64s(&[odd])), Numbers::Exact, (0, 0, 0.0)),
            ((I64, i64s(&[-1])), (U64, i64s(&[-1])), Numbers::Exact, (1, 0, 2f64.powi(64))),
            ((U64, i64s(&[-1, -2])), (F32, f32s(&[nan, 2f32.powi(64)])), Numbers::Exact, (2, 1, 2.0)),
            ((I64, vec![]), (F32, vec![]), Numbers::Exact, (0, 0, 0.0)),
        ];
        for ((dtype_a, a), (dtype_b, b), numbers, (elements, not_finite, max_abs)) in table {
            assert_eq!(Numbers::of(dtype_a, dtype_b), Some(numbers));
            for (a, b) in [((dtype_a, &a[..]), (dtype_b, &b[..])), ((dtype_b, &b[..]), (dtype_a, &a[..]))] {
                let found = converted(a, b);
                let values = found.values.unwrap();
                assert_eq!((values.elements, values.not_finite), (elements, not_finite), "{dtype_a} {dtype_b}");
                let close = values.max_abs == max_abs || (values.max_abs - max_abs).abs() < 1e-12 * max_abs;
                assert!(close && found.is_empty() == (elements == 0), "{dtype_a} {dtype_b} {values:?}");
            }
        }
        for (a, b) in [(Dtype::C64, F32), (Dtype::Unknown("I4"), F32), (Dtype::C64, Dtype::C64)] {
            assert_eq!((Numbers::of(a, b), Numbers::of(b, a)), (None, None));
        }
    }

    #[test]
    fn dtypes_of_all_widths_are_compared_element_by_element() {
        let codes: Vec<u8> = (0..1_300_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
        let real: Vec<Dtype> =
            Dtype::ALL.iter().copied().filter(|dtype| Numbers::of(*dtype, *dtype).is_some()).collect();
        for (at, a) in real.iter().enumerate() {
            let b = real[(at * 7 + 3) % real.len()];
            // Longer than one step of a comparison, and no multiple of eight elements if the dtypes allow that.
            let count = if a.has_scales() || b.has_scales() { 100_096 } else { 100_004 };
            let len = |dtype: Dtype| {
                let Elements { elements, bytes } = dtype.block().unwrap();
                (count / elements * bytes) as usize
            };
            let (of_a, of_b) = (&codes[..len(*a)], &codes[77..77 + len(b)]);
            let (values_a, values_b) = (exact(*a, of_a), exact(b, of_b));
            assert_eq!((values_a.len(), values_b.len()), (count as usize, count as usize));
            let differ = |(a, b): &(&[f64; 2], &[f64; 2])| a != b && !(a[0].is_nan() && b[0].is_nan());
            let expected = values_a.iter().zip(&values_b).filter(differ).count() as u64;
            assert_eq!(converted((*a, of_a), (b, of_b)).values.unwrap().elements, expected, "{a} {b}");
        }
    }

    #[test]
    fn blocks_with_scales_are_compared_by_value() {
        // The scale 1.0, then nibbles: 8 stands for 0.
        let block = |scale: [u8; 2], nibbles: u8| [&scale[..], &[nibbles; 16]].concat();
        let (ones, twos) = (block([0, 0x3c], 0x99), block([0, 0x40], 0x99));
        let found = compare(Dtype::Q4_0, &[&ones[..], &ones].concat(), &[&ones[..], &twos].concat());
        let values = Values { elements: 32, not_finite: 0, max_abs: 1.0, max_rel: 0.5 };
        assert_eq!((found.bits, found.values), (Some(5), Some(values)));
        // There is no decoder for Q8_1.
        let found = compare(Dtype::Q8_1, &[0; 36], &[1; 36]);
        assert_eq!((found.bits, found.values), (Some(36), None));
    }

    #[test]
    fn edge_values_have_the_expected_distances() {
        fn doubles(values: &[f64]) -> Vec<u8> {
            values.iter().flat_map(|value| value.to_le_bytes()).collect()
        }
        let of = |a: &[f64], b: &[f64]| compare(Dtype::F64, &doubles(a), &doubles(b)).values.unwrap();
        let values = |elements, not_finite, max_abs, max_rel| Values { elements, not_finite, max_abs, max_rel };
        let inf = f64::INFINITY;
        assert_eq!(of(&[0.0, 1.0], &[-0.0, 1.0]), values(1, 0, 0.0, 0.0));
        assert_eq!(of(&[1.0, 3.0], &[-1.0, 3.0]), values(1, 0, 2.0, 2.0));
        assert_eq!(of(&[f64::NAN, inf, inf, 1.0], &[1.0, 1.0, -inf, 1.5]), values(4, 3, 0.5, 0.5 / 1.5));
        assert_eq!(of(&[f64::MAX], &[f64::MIN]), values(1, 0, inf, 2.0));
        assert_eq!(of(&[f64::from_bits(1)], &[0.0]), values(1, 0, f64::from_bits(1), 1.0));
        let far = compare(Dtype::I64, &i64::MIN.to_le_bytes(), &i64::MAX.to_le_bytes()).values.unwrap();
        assert_eq!((far.elements, far.max_abs), (1, u64::MAX as f64));
        // Beyond the precision of float64, but still reported.
        let near = compare(Dtype::U64, &u64::MAX.to_le_bytes(), &(u64::MAX - 1).to_le_bytes()).values.unwrap();
        assert_eq!(near, values(1, 0, 1.0, 1.0 / u64::MAX as f64));
        assert_eq!(
            compare(Dtype::F32, &[], &[]),
            Difference { bits: Some(0), values: Some(Values::default()), shared: 0 }
        );
    }

    #[test]
    fn shared_blocks_are_not_read() {
        const LEN: u64 = 3 << 20;
        let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7 / 8) as u8).collect();
        let read = Arc::new(AtomicU64::new(0));
        let source = |id, blocks: &[(u64, u64, u64)]| -> Sources {
            let blocks = blocks.iter().map(|(start, len, place)| Block { start: *start, len: *len, place: *place });
            let (blocks, read) = (blocks.collect(), read.clone());
            Arc::new([Arc::new(OnDisk { memory: Memory::new(bytes.clone()), id, blocks, read }) as Arc<dyn Source>])
        };
        let at = |offset: u64| [Run { start: 0, source: 0, offset }];
        let len = LEN - 8192;
        // Of both files: identity, blocks, and offset of the tensor; then the number of shared bytes.
        type Blocks<'b> = &'b [(u64, u64, u64)];
        let table: [(FileId, Blocks, u64, FileId, Blocks, u64, u64); 7] = [
            ((1, 1), &[], 0, (1, 1), &[], 0, len),
            ((1, 1), &[], 0, (1, 1), &[], 4096, 0),
            ((1, 1), &[(0, LEN, 1 << 30)], 0, (1, 2), &[(0, LEN, 1 << 30)], 0, len),
            ((1, 1), &[(0, LEN, 1 << 30)], 0, (2, 2), &[(0, LEN, 1 << 30)], 0, 0),
            ((1, 1), &[(0, LEN, 1 << 30)], 4096, (1, 2), &[(4096, LEN, (1 << 30) + 8192)], 0, len - 4096),
            ((1, 1), &[(8192, 8192, 1 << 30)], 0, (1, 2), &[(4096, 8192, (1 << 30) - 4096)], 0, 4096),
            ((1, 1), &[(0, 4096, 0), (4096, 4096, 1 << 20)], 100, (1, 2), &[(0, 8192, 0)], 100, 3996),
        ];
        for (id_a, blocks_a, offset_a, id_b, blocks_b, offset_b, expected) in table {
            let (a, b) = (source(id_a, blocks_a), source(id_b, blocks_b));
            let (runs_a, runs_b) = (at(offset_a), at(offset_b));
            let found = difference(Dtype::U8, len, (&a, &runs_a), (&b, &runs_b), &|_| {});
            assert_eq!(found.shared, expected, "{blocks_a:?} {blocks_b:?}");
            assert_eq!(read.swap(0, Ordering::Relaxed), (len - expected) * 2, "{blocks_a:?} {blocks_b:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn matches_naive_comparison(
            dtype in prop::sample::select(dtypes()),
            bytes in prop::collection::vec(any::<u8>(), 0..3000),
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        ) {
            let a = &bytes[..bytes.len() / 24 * 24];
            let mut b = a.to_vec();
            for (at, byte) in changes {
                if !b.is_empty() {
                    let at = at.index(b.len());
                    b[at] = byte;
                }
            }
            assert_close(compare(dtype, a, &b), naive(dtype, a, &b), dtype.name());
        }

        #[test]
        fn runs_and_blocks_do_not_change_the_result(
            seams in prop::collection::btree_set(1u64..4000, 0..6),
            blocks in prop::collection::vec((0u64..4000, 1u64..900), 0..6),
            changed in prop::option::of(0usize..4000),
        ) {
            const LEN: u64 = 4000;
            let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
            let mut end = 0;
            let mut sorted = blocks.clone();
            sorted.sort();
            // Both files report the same blocks, so their bytes there count as equal: a change there is not found.
            let blocks: Vec<Block> = sorted.into_iter().filter_map(|(start, len)| {
                let block = Block { start: start.max(end), len, place: start.max(end) + 77 };
                end = block.start + len;
                (block.start < LEN).then_some(block)
            }).collect();
            let mut other = bytes.clone();
            let hidden = |at: usize| blocks.iter().any(|block| (block.start..block.start + block.len).contains(&(at as u64)));
            if let Some(at) = changed {
                other[at] ^= 0x11;
            }
            let on_disk = |bytes: &[u8], id| -> Arc<dyn Source> {
                let (memory, blocks, read) = (Memory::new(bytes.to_vec()), blocks.clone(), Arc::default());
                Arc::new(OnDisk { memory, id, blocks, read })
            };
            let a: Sources = Arc::new([on_disk(&bytes, (1, 1))]);
            let b: Sources = Arc::new([on_disk(&other, (1, 2)), on_disk(&other, (1, 3))]);
            let mut starts = vec![0];
            starts.extend(&seams);
            let runs: Vec<Run> =
                starts.iter().map(|start| Run { start: *start, source: (*start % 2) as usize, offset: *start }).collect();
            let found = difference(Dtype::U8, LEN, (&a, &FIRST), (&b, &runs), &|_| {});
            let shared = (0..LEN as usize).filter(|at| hidden(*at)).count() as u64;
            prop_assert_eq!(found.shared, shared);
            let seen = changed.filter(|at| !hidden(*at)).is_some();
            prop_assert_eq!(found.bits, Some(if seen { 2 } else { 0 }));
            prop_assert_eq!(found.values.unwrap().elements, u64::from(seen));
        }
    }
}
