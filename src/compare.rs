//! Two tensors of one dtype and shape: knows how far apart their bytes and values are, and which bytes need no look.

use crate::content::{Data, Error, Extents, Run};
use crate::format::Dtype;
use crate::source::{Block, FileId, Source};
use crate::threads;
use crate::widen;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes that are read at once: groups of every dtype go into it.
const AT_ONCE: u64 = 768 << 10;

/// Bytes that one thread compares before it takes the next. A multiple of the above.
const PART: u64 = 12 << 20;

/// Bytes whose values are compared at once, where they differ: decoded they stay in the core's cache.
const DECODED_AT_ONCE: usize = 24 << 10;

/// What differs between two tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Difference {
    /// Number of bits.
    pub bits: u64,
    /// Elements and their values; `None` for an unknown dtype.
    pub values: Option<Values>,
    /// Bytes that were not read, because both files have them in the same place of a disk.
    pub shared: u64,
}

/// What differs between the values of two tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Values {
    /// Elements with other bits.
    pub elements: u64,
    /// How many of these are infinite or not a number on either side, and so have no distance.
    pub not_finite: u64,
    /// The largest distance of two values; of complex ones its magnitude.
    pub max_abs: f64,
    /// The largest distance in parts of the larger magnitude of the two: from 0 to 2.
    pub max_rel: f64,
}

impl Difference {
    /// Whether all bytes are equal.
    pub fn is_empty(&self) -> bool {
        self.bits == 0
    }

    fn merge(self, other: Self) -> Self {
        let values = |(a, b): (Values, Values)| Values {
            elements: a.elements + b.elements,
            not_finite: a.not_finite + b.not_finite,
            max_abs: a.max_abs.max(b.max_abs),
            max_rel: a.max_rel.max(b.max_rel),
        };
        Self {
            bits: self.bits + other.bits,
            values: self.values.zip(other.values).map(values),
            shared: self.shared + other.shared,
        }
    }
}

impl Values {
    /// Takes note of two elements with other bits, and of what their distance is: absolute and relative.
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
}

/// The files of one side, and which of their bytes may be those of other files.
#[derive(Debug)]
pub struct Files<'a> {
    sources: &'a [Box<dyn Source>],
    places: Vec<(Option<FileId>, Vec<Block>)>,
}

impl<'a> Files<'a> {
    /// Asks the file system where the files lie.
    pub fn new(sources: &'a [Box<dyn Source>]) -> Self {
        Self { sources, places: threads::map(sources.len(), |at| (sources[at].id(), sources[at].shared_blocks())) }
    }

    fn data<'r>(&'r self, runs: &'r [Run], len: u64) -> Data<'r> {
        Data::Extents(Extents { sources: self.sources, runs, len })
    }
}

/// Two tensors of one dtype and one length.
#[derive(Debug)]
pub struct Pair<'a> {
    dtype: Dtype<'a>,
    a: Data<'a>,
    b: Data<'a>,
    /// The parts that have to be read: whole groups of elements, at most [`PART`] bytes each.
    parts: Vec<Range<u64>>,
    /// Bytes that need not be read, because both files have them in the same place of a disk.
    shared: u64,
}

impl<'a> Pair<'a> {
    /// Two tensors of `len` bytes, each given by its files and by the runs in which it lies there.
    pub fn new(dtype: Dtype<'a>, len: u64, a: (&'a Files, &'a [Run]), b: (&'a Files, &'a [Run])) -> Self {
        let group = group(dtype) as u64;
        let unlike = unlike(a, b, len);
        let shared = len - unlike.iter().map(|range| range.end - range.start).sum::<u64>();
        // What is read in vain for whole groups is less than a block.
        let whole = |range: &Range<u64>| range.start / group * group..range.end.next_multiple_of(group).min(len);
        let parts = unlike.iter().map(whole).flat_map(|range| {
            let end = range.end;
            range.step_by(PART as usize).map(move |start| start..end.min(start + PART))
        });
        let parts = parts.collect();
        Self { dtype, a: a.0.data(a.1, len), b: b.0.data(b.1, len), parts, shared }
    }

    fn empty(&self) -> Difference {
        Difference { values: self.dtype.bits().map(|_| Values::default()), ..Difference::default() }
    }
}

/// Compares all pairs on all cores, large tensors in parts.
///
/// `progress` gets the number of bytes that are done, from any thread.
pub fn differences(pairs: &[Pair], progress: &(impl Fn(u64) + Sync)) -> Result<Vec<Difference>, Error> {
    let jobs: Vec<(usize, &Range<u64>)> =
        pairs.iter().enumerate().flat_map(|(at, pair)| pair.parts.iter().map(move |part| (at, part))).collect();
    pairs.iter().for_each(|pair| progress(pair.shared));
    let failed = AtomicBool::new(false);
    let compared = threads::map(jobs.len(), |job| {
        let (at, part) = jobs[job];
        // After an error the rest need not be read.
        if failed.load(Ordering::Relaxed) {
            return Ok(Difference::default());
        }
        let Pair { dtype, a, b, .. } = &pairs[at];
        let compared = compare_part(*dtype, a, b, part.clone(), pairs[at].empty(), progress);
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
    let size = AT_ONCE.min(part.end - part.start) as usize;
    let (mut of_a, mut of_b) = (vec![0; size], vec![0; size]);
    let mut at = part.start;
    while at < part.end {
        let len = AT_ONCE.min(part.end - at);
        let (of_a, of_b) = (&mut of_a[..len as usize], &mut of_b[..len as usize]);
        a.read_exact_at(of_a, at)?;
        b.read_exact_at(of_b, at)?;
        if of_a != of_b {
            for (a, b) in of_a.chunks(DECODED_AT_ONCE).zip(of_b.chunks(DECODED_AT_ONCE)).filter(|(a, b)| a != b) {
                found.bits += differing_bits(a, b);
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

fn differing_bits(a: &[u8], b: &[u8]) -> u64 {
    let ((a, rest_a), (b, rest_b)) = (a.as_chunks::<8>(), b.as_chunks::<8>());
    let words = a.iter().zip(b).map(|(a, b)| (u64::from_le_bytes(*a) ^ u64::from_le_bytes(*b)).count_ones());
    let rest = rest_a.iter().zip(rest_b).map(|(a, b)| (a ^ b).count_ones());
    words.chain(rest).map(u64::from).sum()
}

/// Bytes of the fewest elements that are whole bytes.
fn group(dtype: Dtype) -> usize {
    match widen::to_f32(dtype) {
        Some(decoder) => decoder.group_in,
        None => dtype.bits().map_or(1, |bits| bits as usize / 8),
    }
}

/// Compares the elements of whole groups.
fn compare_values(dtype: Dtype, a: &[u8], b: &[u8], values: &mut Values) {
    match dtype {
        Dtype::F32 => each_wide::<4>((a, b), (a, b), values),
        Dtype::F64 => each(a, b, values, |a, b| float(f64::from_le_bytes(a), f64::from_le_bytes(b))),
        Dtype::I32 => each(a, b, values, |a, b| float(i32::from_le_bytes(a).into(), i32::from_le_bytes(b).into())),
        Dtype::U32 => each(a, b, values, |a, b| float(u32::from_le_bytes(a).into(), u32::from_le_bytes(b).into())),
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

/// Elements that float32 can hold.
fn compare_widened(dtype: Dtype, a: &[u8], b: &[u8], values: &mut Values) {
    let Some(decoder) = widen::to_f32(dtype) else { return };
    let widen = |bytes: &[u8]| {
        let mut wide = vec![0; bytes.len() / decoder.group_in * decoder.group_out];
        (decoder.decode)(bytes, &mut wide);
        wide
    };
    let (wide_a, wide_b) = (widen(a), widen(b));
    match (decoder.group_in, decoder.group_out) {
        (1, 4) => each_wide::<1>((a, b), (&wide_a, &wide_b), values),
        (2, 4) => each_wide::<2>((a, b), (&wide_a, &wide_b), values),
        // Elements that share bytes: each code has a value of its own.
        _ => each_wide::<4>((&wide_a, &wide_b), (&wide_a, &wide_b), values),
    }
}

/// Compares elements of `N` bytes by the float32 of each.
///
/// The distance of two such numbers is one that float64 has: all is done without a branch, which could not be foretold.
fn each_wide<const N: usize>(raw: (&[u8], &[u8]), wide: (&[u8], &[u8]), values: &mut Values) {
    let raw = raw.0.as_chunks::<N>().0.iter().zip(raw.1.as_chunks::<N>().0);
    let wide = wide.0.as_chunks::<4>().0.iter().zip(wide.1.as_chunks::<4>().0);
    let mut found = *values;
    for ((raw_a, raw_b), (a, b)) in raw.zip(wide) {
        let [a, b] = [a, b].map(|bytes| f64::from(f32::from_le_bytes(*bytes)));
        let is_other = raw_a != raw_b;
        let is_finite = a.is_finite() & b.is_finite();
        let distance = if is_other & is_finite { (a - b).abs() } else { 0.0 };
        let relative = if distance == 0.0 { 0.0 } else { distance / a.abs().max(b.abs()) };
        found.elements += u64::from(is_other);
        found.not_finite += u64::from(is_other & !is_finite);
        found.max_abs = if distance > found.max_abs { distance } else { found.max_abs };
        found.max_rel = if relative > found.max_rel { relative } else { found.max_rel };
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

fn float(a: f64, b: f64) -> Option<(f64, f64)> {
    let scale = a.abs().max(b.abs());
    (a.is_finite() && b.is_finite()).then(|| relative((a - b).abs(), scale, || (a / scale - b / scale).abs()))
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

/// A distance and what it is in parts of `scale`, by `scaled` where it is beyond the largest number.
fn relative(distance: f64, scale: f64, scaled: impl Fn() -> f64) -> (f64, f64) {
    // Zeros of either sign are no distance apart.
    let rel = if distance == 0.0 { 0.0 } else { distance / scale };
    (distance, if distance.is_finite() { rel } else { scaled() })
}

/// The ranges of two tensors of `len` bytes that do not lie in the same place.
fn unlike(a: (&Files, &[Run]), b: (&Files, &[Run]), len: u64) -> Vec<Range<u64>> {
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut at = 0;
    while at < len {
        let (side_a, side_b) = (Piece::find(a, at, len), Piece::find(b, at, len));
        let (same, long) = side_a.compare(&side_b);
        // Never none, whatever a file system says.
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

/// What is known of the bytes from some place of a tensor on.
struct Piece<'a> {
    id: Option<FileId>,
    blocks: &'a [Block],
    /// In bytes from the start of the file.
    offset: u64,
    /// Bytes from there on that are of this file.
    len: u64,
}

impl<'a> Piece<'a> {
    fn find((files, runs): (&'a Files, &[Run]), at: u64, len: u64) -> Self {
        let next = runs.partition_point(|run| run.start <= at);
        let end = runs.get(next).map_or(len, |run| run.start);
        let Some(run) = next.checked_sub(1).map(|last| runs[last]) else {
            return Self { id: None, blocks: &[], offset: 0, len: end - at };
        };
        let (id, blocks) = &files.places[run.source as usize];
        Self { id: *id, blocks, offset: run.offset + at - run.start, len: end - at }
    }

    /// Whether both lie in the same place, and for how many bytes that is the answer.
    fn compare(&self, other: &Self) -> (bool, u64) {
        let len = self.len.min(other.len);
        match (self.id, other.id) {
            (Some(a), Some(b)) if a == b && self.offset == other.offset => return (true, len),
            // Places on different disks have nothing to do with each other.
            (Some((a, _)), Some((b, _))) if a != b => return (false, len),
            _ => {}
        }
        let ((place_a, len_a), (place_b, len_b)) = (self.place(), other.place());
        (place_a.is_some() && place_a == place_b, len.min(len_a).min(len_b))
    }

    /// Where on the disk it begins, if that is known, and for how many bytes that is so.
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
    use crate::format::DTYPES;
    use crate::source::{Bytes, Error as SourceError, Memory, Stat};
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    fn difference(
        dtype: Dtype,
        len: u64,
        a: (&Files, &[Run]),
        b: (&Files, &[Run]),
        progress: &(impl Fn(u64) + Sync),
    ) -> Result<Difference, Error> {
        Ok(differences(&[Pair::new(dtype, len, a, b)], progress)?[0])
    }

    /// The known ones and another.
    fn dtypes() -> Vec<Dtype<'static>> {
        DTYPES.into_iter().chain([Dtype::Unknown("I4")]).collect()
    }

    /// Bytes in memory that claim to lie somewhere on a disk, and count how many of them are read.
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
        fn bytes(&self, range: Range<u64>) -> Result<Bytes<'_>, SourceError> {
            self.memory.bytes(range)
        }
        fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), SourceError> {
            self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
            self.memory.read_exact_at(buf, offset)
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

    fn memory(bytes: &[u8]) -> [Box<dyn Source>; 1] {
        [Box::new(Memory::new(bytes.to_vec()))]
    }

    fn compare(dtype: Dtype, a: &[u8], b: &[u8]) -> Difference {
        let (of_a, of_b) = (memory(a), memory(b));
        let (files_a, files_b) = (Files::new(&of_a), Files::new(&of_b));
        let told = AtomicU64::new(0);
        let progress = |bytes| _ = told.fetch_add(bytes, Ordering::Relaxed);
        let found = difference(dtype, a.len() as u64, (&files_a, &FIRST), (&files_b, &FIRST), &progress).unwrap();
        assert_eq!((told.into_inner(), found.shared), (a.len() as u64, 0));
        found
    }

    /// Element by element: the bits of each, and its value where it has one.
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
                let decoder = widen::to_f32(dtype).unwrap();
                let mut values = vec![0; bytes.len() / decoder.group_in * decoder.group_out];
                (decoder.decode)(bytes, &mut values);
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
                            // Finite numbers may be further apart than the largest number; their halves are not.
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
        Difference { bits, values, shared: 0 }
    }

    fn assert_like(found: Difference, expected: Difference, what: &str) {
        let close = |a: f64, b: f64| a == b || (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
        let exact = |difference: Difference| {
            (difference.bits, difference.values.map(|values| (values.elements, values.not_finite)))
        };
        assert_eq!(exact(found), exact(expected), "{what}");
        if let (Some(found), Some(expected)) = (found.values, expected.values) {
            assert!(close(found.max_abs, expected.max_abs), "{what} {found:?} {expected:?}");
            assert!(close(found.max_rel, expected.max_rel), "{what} {found:?} {expected:?}");
        }
    }

    #[test]
    fn every_code_of_every_small_dtype() {
        let a: Vec<u8> = (0..=u16::MAX).flat_map(|code| code.to_le_bytes()).collect();
        let b: Vec<u8> = (0..=u16::MAX).flat_map(|code| (code.wrapping_mul(7) ^ 0x5a).to_le_bytes()).collect();
        let len = a.len() / 24 * 24;
        for dtype in dtypes().into_iter().filter(|dtype| dtype.bits().is_none_or(|bits| bits <= 16)) {
            assert_like(compare(dtype, &a[..len], &b[..len]), naive(dtype, &a[..len], &b[..len]), dtype.name());
            assert!(compare(dtype, &a[..len], &a[..len]).is_empty());
        }
    }

    #[test]
    fn values_at_the_edges() {
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
        // Beyond the precision of float64, and told all the same.
        let near = compare(Dtype::U64, &u64::MAX.to_le_bytes(), &(u64::MAX - 1).to_le_bytes()).values.unwrap();
        assert_eq!(near, values(1, 0, 1.0, 1.0 / u64::MAX as f64));
        assert_eq!(compare(Dtype::F32, &[], &[]), Difference { bits: 0, values: Some(Values::default()), shared: 0 });
    }

    #[test]
    fn what_lies_in_one_place_is_not_read() {
        const LEN: u64 = 3 << 20;
        let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7 / 8) as u8).collect();
        let read = Arc::new(AtomicU64::new(0));
        let source = |id, blocks: &[(u64, u64, u64)]| -> [Box<dyn Source>; 1] {
            let blocks = blocks.iter().map(|(start, len, place)| Block { start: *start, len: *len, place: *place });
            let (blocks, read) = (blocks.collect(), read.clone());
            [Box::new(OnDisk { memory: Memory::new(bytes.clone()), id, blocks, read })]
        };
        let at = |offset: u64| [Run { start: 0, source: 0, offset }];
        let len = LEN - 8192;
        // The blocks of both files, where the tensors begin, and how many bytes of them are shared.
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
            let (files_a, files_b) = (Files::new(&a), Files::new(&b));
            let (runs_a, runs_b) = (at(offset_a), at(offset_b));
            let found = difference(Dtype::U8, len, (&files_a, &runs_a), (&files_b, &runs_b), &|_| {}).unwrap();
            assert_eq!(found.shared, expected, "{blocks_a:?} {blocks_b:?}");
            assert_eq!(read.swap(0, Ordering::Relaxed), (len - expected) * 2, "{blocks_a:?} {blocks_b:?}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn like_element_by_element(
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
            assert_like(compare(dtype, a, &b), naive(dtype, a, &b), dtype.name());
        }

        #[test]
        fn runs_and_blocks_make_no_difference(
            seams in prop::collection::btree_set(1u64..4000, 0..6),
            blocks in prop::collection::vec((0u64..4000, 1u64..900), 0..6),
            changed in prop::option::of(0usize..4000),
        ) {
            const LEN: u64 = 4000;
            let bytes: Vec<u8> = (0..LEN).map(|at| (at % 251) as u8).collect();
            let mut end = 0;
            let mut sorted = blocks.clone();
            sorted.sort();
            // On both sides the same, so that what they hold must be equal: a change there is not looked for.
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
            let on_disk = |bytes: &[u8], id| -> Box<dyn Source> {
                let (memory, blocks, read) = (Memory::new(bytes.to_vec()), blocks.clone(), Arc::default());
                Box::new(OnDisk { memory, id, blocks, read })
            };
            let (a, b) = ([on_disk(&bytes, (1, 1))], [on_disk(&other, (1, 2)), on_disk(&other, (1, 3))]);
            let mut starts = vec![0];
            starts.extend(&seams);
            let runs: Vec<Run> =
                starts.iter().map(|start| Run { start: *start, source: (*start % 2) as u32, offset: *start }).collect();
            let (files_a, files_b) = (Files::new(&a), Files::new(&b));
            let found =
                difference(Dtype::U8, LEN, (&files_a, &FIRST), (&files_b, &runs), &|_| {}).unwrap();
            let shared = (0..LEN as usize).filter(|at| hidden(*at)).count() as u64;
            prop_assert_eq!(found.shared, shared);
            let seen = changed.filter(|at| !hidden(*at)).is_some();
            prop_assert_eq!(found.bits, if seen { 2 } else { 0 });
            prop_assert_eq!(found.values.unwrap().elements, u64::from(seen));
        }
    }
}
