//! Comparisons against plain ones.

use super::common::exact;
use super::*;
use crate::content::{Extents, Segment, SourceRun, Sources};
use crate::format::{Dtype, DtypeBlock};
use crate::source::{Bytes, DiskBlock, Error as SourceError, FileId, MemorySource, Source, SourceInfo};
use proptest::prelude::*;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

fn difference(
    dtype: Dtype,
    len: u64,
    (a, runs_a): (&Sources, &[SourceRun]),
    (b, runs_b): (&Sources, &[SourceRun]),
    progress: &(impl Fn(u64) + Sync),
) -> TensorDifference {
    let (files_a, files_b) = (SharedFiles::new(a), SharedFiles::new(b));
    let (a, b) = (stored(a, &files_a, runs_a, len), stored(b, &files_b, runs_b, len));
    differences(&[TensorPair::new(dtype, len, &a, &b)], progress).unwrap()[0]
}

/// A tensor of `len` bytes.
fn stored<'f>(sources: &Sources, files: &'f SharedFiles, runs: &[SourceRun], len: u64) -> StoredTensor<'f> {
    let runs: Arc<[SourceRun]> = runs.into();
    let data = Segment::Extents(Extents::new(sources.clone(), runs.clone(), len));
    StoredTensor { files, data, runs: runs.to_vec() }
}

/// All dtypes without scales, one without values, and an unknown one.
fn dtypes() -> Vec<Dtype<'static>> {
    Dtype::SAFETENSORS.iter().copied().chain([Dtype::I4, Dtype::Unknown("x")]).collect()
}

/// A source in memory that reports disk blocks and counts the bytes that are read.
#[derive(Debug)]
struct OnDisk {
    memory: MemorySource,
    info: SourceInfo,
    blocks: Vec<DiskBlock>,
    read: Arc<AtomicU64>,
}

impl OnDisk {
    fn new(bytes: Vec<u8>, id: FileId, blocks: Vec<DiskBlock>, read: Arc<AtomicU64>) -> Self {
        let info = SourceInfo { id: Some(id), ..SourceInfo::anonymous(bytes.len() as u64) };
        Self { memory: MemorySource::new(bytes), info, blocks, read }
    }
}

impl Source for OnDisk {
    fn info(&self) -> &SourceInfo {
        &self.info
    }
    fn bytes(&self, range: Range<u64>) -> Result<Bytes, SourceError> {
        self.memory.bytes(range)
    }
    fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), SourceError> {
        self.read.fetch_add(buf.len() as u64, Ordering::Relaxed);
        self.memory.read_runs_at(buf, len, offset, step)
    }
    fn shared_blocks(&self) -> Vec<DiskBlock> {
        self.blocks.clone()
    }
}

const FIRST: [SourceRun; 1] = [SourceRun { start: 0, source: 0, offset: 0 }];

fn memory(bytes: &[u8]) -> Sources {
    Arc::new([Arc::new(MemorySource::new(bytes.to_vec())) as Arc<dyn Source>])
}

fn compare(dtype: Dtype, a: &[u8], b: &[u8]) -> TensorDifference {
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

fn naive(dtype: Dtype, a: &[u8], b: &[u8]) -> TensorDifference {
    let bits = a.iter().zip(b).map(|(a, b)| u64::from((a ^ b).count_ones())).sum();
    let has_values = dtype == Dtype::C64 || dtype.to_f32().is_some();
    let values = has_values.then(|| {
        let mut values = ValueDifference::default();
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
    TensorDifference { bits: Some(bits), values, shared: 0 }
}

fn assert_close(found: TensorDifference, expected: TensorDifference, context: &str) {
    let close = |a: f64, b: f64| a == b || (a - b).abs() <= 1e-9 * a.abs().max(b.abs());
    let exact = |difference: TensorDifference| {
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
fn converted(a: (Dtype, &[u8]), b: (Dtype, &[u8])) -> TensorDifference {
    let (of_a, of_b) = (memory(a.1), memory(b.1));
    let (files_a, files_b) = (SharedFiles::new(&of_a), SharedFiles::new(&of_b));
    let done = AtomicU64::new(0);
    let (len_a, len_b) = (a.1.len() as u64, b.1.len() as u64);
    let (stored_a, stored_b) = (stored(&of_a, &files_a, &FIRST, len_a), stored(&of_b, &files_b, &FIRST, len_b));
    let pair = TensorPair::converted((a.0, len_a, &stored_a), (b.0, &stored_b));
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
    type Case<'c> = (Side<'c>, Side<'c>, CommonNumber, (u64, u64, f64));
    // Two tensors, the numbers, and what differs: elements, of these not finite, and the largest distance.
    let table: [Case; 12] = [
        (
            (F32, f32s(&[1.0, -0.0, nan, inf])),
            (BF16, brains(&[1.0, 0.0, -nan, inf])),
            CommonNumber::Float32,
            (0, 0, 0.0),
        ),
        (
            (BF16, brains(&[1.0, 2.0, nan, inf])),
            (F32, f32s(&[1.5, 2.0, 0.0, -inf])),
            CommonNumber::Float32,
            (3, 2, 0.5),
        ),
        (
            (F16, halves(&[0.1])),
            (F32, f32s(&[0.1])),
            CommonNumber::Float32,
            (1, 0, f64::from(0.1f32) - f64::from(half::f16::from_f32(0.1))),
        ),
        ((F16, halves(&[-3.0, 7.0])), (I8, vec![253, 7]), CommonNumber::Float32, (0, 0, 0.0)),
        ((F64, f64s(&[0.1, 1e300])), (F32, f32s(&[0.1, inf])), CommonNumber::Float64, (2, 1, f64::from(0.1f32) - 0.1)),
        (
            (F64, f64s(&[f64::MAX, 16_777_217.0])),
            (F64, f64s(&[f64::MIN, 16_777_217.0])),
            CommonNumber::Float64,
            (1, 0, f64::INFINITY),
        ),
        ((I32, 16_777_217i32.to_le_bytes().to_vec()), (F32, f32s(&[16_777_216.0])), CommonNumber::Float64, (1, 0, 1.0)),
        ((I64, i64s(&[odd, 5])), (F64, f64s(&[odd as f64, 5.0])), CommonNumber::Exact, (1, 0, 1.0)),
        ((I64, i64s(&[odd])), (U64, i64s(&[odd])), CommonNumber::Exact, (0, 0, 0.0)),
        ((I64, i64s(&[-1])), (U64, i64s(&[-1])), CommonNumber::Exact, (1, 0, 2f64.powi(64))),
        ((U64, i64s(&[-1, -2])), (F32, f32s(&[nan, 2f32.powi(64)])), CommonNumber::Exact, (2, 1, 2.0)),
        ((I64, vec![]), (F32, vec![]), CommonNumber::Exact, (0, 0, 0.0)),
    ];
    for ((dtype_a, a), (dtype_b, b), numbers, (elements, not_finite, max_abs)) in table {
        assert_eq!(CommonNumber::of(dtype_a, dtype_b), Some(numbers));
        for (a, b) in [((dtype_a, &a[..]), (dtype_b, &b[..])), ((dtype_b, &b[..]), (dtype_a, &a[..]))] {
            let found = converted(a, b);
            let values = found.values.unwrap();
            assert_eq!((values.elements, values.not_finite), (elements, not_finite), "{dtype_a} {dtype_b}");
            let close = values.max_abs == max_abs || (values.max_abs - max_abs).abs() < 1e-12 * max_abs;
            assert!(close && found.is_empty() == (elements == 0), "{dtype_a} {dtype_b} {values:?}");
        }
    }
    for (a, b) in [(Dtype::C64, F32), (Dtype::I4, F32), (Dtype::Unknown("x"), F32), (Dtype::C64, Dtype::C64)] {
        assert_eq!((CommonNumber::of(a, b), CommonNumber::of(b, a)), (None, None));
    }
}

#[test]
fn dtypes_of_all_widths_are_compared_element_by_element() {
    let codes: Vec<u8> = (0..1_300_000u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let real: Vec<Dtype> =
        Dtype::ALL.iter().copied().filter(|dtype| CommonNumber::of(*dtype, *dtype).is_some()).collect();
    for (at, a) in real.iter().enumerate() {
        let b = real[(at * 7 + 3) % real.len()];
        // Longer than one step of a comparison, and no multiple of eight elements if the dtypes allow that.
        let count = if a.has_scales() || b.has_scales() { 100_096 } else { 100_004 };
        let len = |dtype: Dtype| {
            let DtypeBlock { elements, bytes } = dtype.block().unwrap();
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
    let values = ValueDifference { elements: 32, not_finite: 0, max_abs: 1.0, max_rel: 0.5 };
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
    let values = |elements, not_finite, max_abs, max_rel| ValueDifference { elements, not_finite, max_abs, max_rel };
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
        TensorDifference { bits: Some(0), values: Some(ValueDifference::default()), shared: 0 }
    );
}

#[test]
fn shared_blocks_are_not_read() {
    const LEN: u64 = 3 << 20;
    let bytes: Vec<u8> = (0..LEN).map(|at| (at * 7 / 8) as u8).collect();
    let read = Arc::new(AtomicU64::new(0));
    let source = |id, blocks: &[(u64, u64, u64)]| -> Sources {
        let blocks = blocks.iter().map(|(start, len, place)| DiskBlock { start: *start, len: *len, place: *place });
        let (blocks, read) = (blocks.collect(), read.clone());
        Arc::new([Arc::new(OnDisk::new(bytes.clone(), id, blocks, read)) as Arc<dyn Source>])
    };
    let at = |offset: u64| [SourceRun { start: 0, source: 0, offset }];
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
        let blocks: Vec<DiskBlock> = sorted.into_iter().filter_map(|(start, len)| {
            let block = DiskBlock { start: start.max(end), len, place: start.max(end) + 77 };
            end = block.start + len;
            (block.start < LEN).then_some(block)
        }).collect();
        let mut other = bytes.clone();
        let hidden = |at: usize| blocks.iter().any(|block| (block.start..block.start + block.len).contains(&(at as u64)));
        if let Some(at) = changed {
            other[at] ^= 0x11;
        }
        let on_disk = |bytes: &[u8], id| -> Arc<dyn Source> {
            Arc::new(OnDisk::new(bytes.to_vec(), id, blocks.clone(), Arc::default()))
        };
        let a: Sources = Arc::new([on_disk(&bytes, (1, 1))]);
        let b: Sources = Arc::new([on_disk(&other, (1, 2)), on_disk(&other, (1, 3))]);
        let mut starts = vec![0];
        starts.extend(&seams);
        let runs: Vec<SourceRun> =
            starts.iter().map(|start| SourceRun { start: *start, source: (*start % 2) as usize, offset: *start }).collect();
        let found = difference(Dtype::U8, LEN, (&a, &FIRST), (&b, &runs), &|_| {});
        let shared = (0..LEN as usize).filter(|at| hidden(*at)).count() as u64;
        prop_assert_eq!(found.shared, shared);
        let seen = changed.filter(|at| !hidden(*at)).is_some();
        prop_assert_eq!(found.bits, Some(if seen { 2 } else { 0 }));
        prop_assert_eq!(found.values.unwrap().elements, u64::from(seen));
    }
}
