//! Arrays whose elements do not lie in C order in a source, whose numbers have their bytes in reverse order, or which
//! are made of boxes in several sources. They are presented in C order and little-endian order: each range of bytes is
//! gathered from the places that it needs.

use super::boxes::{ArrayBox, BoxFault, check_cover, wide_dims};
use super::extents::TakeRun;
use crate::source::{self, Source};
use smallvec::{SmallVec, smallvec};
use std::convert::Infallible;
use std::ops::Range;
use std::sync::Arc;

/// An array in one or several sources. Its elements are gathered when they are read.
#[derive(Debug, Clone)]
pub struct StridedData {
    /// The place of the array, or of each box of it.
    pub places: SmallVec<[ArrayPlace; 1]>,
    pub layout: Arc<StridedLayout>,
}

/// Where the elements of an array, or of a box of it, begin.
#[derive(Debug, Clone)]
pub struct ArrayPlace {
    pub source: Arc<dyn Source>,
    /// In bytes from the start of the source.
    pub start: u64,
}

/// The distances of the elements of an array in its places, and the order of their bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct StridedLayout {
    /// Outermost first. For an array of boxes, those of its shape, with the strides of C order. For others, without
    /// dimensions of one element, and with those merged that form one run of elements.
    pub(super) dims: Dims,
    /// The boxes of an array that has several, sorted by their offsets; each has its own place.
    boxes: Box<[ArrayBox]>,
    /// The largest number of rows of a box.
    box_rows: u64,
    len: u64,
    /// Size of an element in bytes.
    pub(super) size: usize,
    /// Width in bytes of the numbers whose bytes are reversed; 1 if none are.
    word: usize,
}

/// A dimension. Distances are in elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StridedDim {
    pub(super) len: u64,
    /// Distance of neighbours in the source.
    pub(super) stride: u64,
    /// Distance of neighbours in C order.
    pub(super) out: u64,
}

pub(super) type Dims = SmallVec<[StridedDim; 4]>;

/// Elements that are copied to the output together, after one or more reads of the source.
#[derive(Debug, Clone, Copy)]
pub(super) struct CopySpan<'d> {
    /// The first element in the source.
    from: u64,
    /// The number of elements that one read covers, including those between the elements that are needed.
    len: u64,
    /// The number of reads, and the distance of their starts in the source.
    pub(super) reads: u64,
    step: u64,
    /// The first element in the output.
    out: u64,
    /// The dimensions. Their strides are those of the bytes of all reads, one after the other.
    dims: &'d [StridedDim],
}

/// Largest number of bytes that are read together.
const SPAN_MAX: u64 = 256 << 10;

/// Bytes are read together if at least one of this many is needed.
const SPARSE: u64 = 4;

/// So many bytes are read together even if fewer of them are needed.
const SPAN_MIN: u64 = 4 << 10;

/// Maximum number of reads whose elements are copied together, so that neighbours in the output are copied together.
const READS_MAX: u64 = 64;

impl StridedLayout {
    /// The layout of an array with this shape. `strides` are the distances of neighbours along each dimension, in
    /// elements of `size` bytes. The bytes of all numbers of `word` bytes are reversed, of none if `word` is 1. `word`
    /// must divide `size`.
    ///
    /// The size of the array, and the distance of its last element from the first, must be less than 2^63 bytes.
    pub fn new(shape: &[u64], strides: &[u64], size: usize, word: usize) -> Self {
        let (dims, len) = dims(shape, strides);
        let (boxes, box_rows) = Default::default();
        Self { dims: merged(dims), boxes, box_rows, len, size: size.max(1), word: word.max(1) }
    }

    /// The layout of an array that is made of several boxes, which cover it exactly and are sorted.
    fn of_boxes(shape: &[u64], boxes: Box<[ArrayBox]>, size: usize) -> Self {
        let (mut dims, len) = dims(shape, shape);
        dims.iter_mut().for_each(|dim| dim.stride = dim.out);
        let box_rows = boxes.iter().filter_map(|one| one.shape.first()).copied().max().unwrap_or(0);
        Self { dims, boxes, box_rows, len, size: size.max(1), word: 1 }
    }

    /// Size of the array in bytes.
    pub fn nbytes(&self) -> u64 {
        self.len.saturating_mul(self.size as u64)
    }

    /// The number of boxes that share the first row, if the array is made of boxes.
    pub(super) fn boxes_in_a_row(&self) -> Option<u64> {
        let first = self.boxes.partition_point(|one| one.offsets[0] == 0) as u64;
        (first > 0).then_some(first)
    }

    /// Passes everything that must be read for the elements of `range` to `take`, with the index of its place.
    pub(super) fn spans<E>(
        &self,
        range: Range<u64>,
        take: &mut dyn FnMut(usize, CopySpan) -> Result<(), E>,
    ) -> Result<(), E> {
        let size = self.size as u64;
        split_span(&self.dims, range, 0, 0, &mut |dims, from, out| match self.boxes.is_empty() {
            true => spans(dims, from, out, size, &mut |span| take(0, span)),
            false => self.box_spans(&dims, from, out, take),
        })
    }

    /// Passes what must be read of the boxes for a part to `take`. The part has the last dimensions of the array.
    fn box_spans<E>(
        &self,
        part: &[StridedDim],
        mut from: u64,
        out: u64,
        take: &mut dyn FnMut(usize, CopySpan) -> Result<(), E>,
    ) -> Result<(), E> {
        let lens = std::iter::repeat_n(1, self.dims.len() - part.len()).chain(part.iter().map(|dim| dim.len));
        let area = self.dims.iter().zip(lens).map(|(dim, len)| {
            let start = from / dim.out;
            from -= start * dim.out;
            start..start + len
        });
        let area: SmallVec<[Range<u64>; 4]> = area.collect();
        let Some(rows) = area.first() else { return Ok(()) };
        let before = self.boxes.partition_point(|one| one.offsets[0] + self.box_rows <= rows.start);
        let boxes = self.boxes.iter().enumerate().skip(before).take_while(|(_, one)| one.offsets[0] < rows.end);
        boxes.into_iter().try_for_each(|(place, one)| {
            let (mut dims, mut from, mut out) = (Dims::new(), 0, out);
            for (at, (dim, area)) in self.dims.iter().zip(&area).enumerate() {
                let here = one.range(at);
                let both = here.start.max(area.start)..here.end.min(area.end);
                if both.is_empty() {
                    return Ok(());
                }
                from += (both.start - here.start) * one.strides[at];
                out += (both.start - area.start) * dim.out;
                dims.push(StridedDim { len: both.end - both.start, stride: one.strides[at], out: dim.out });
            }
            spans(merged(dims), from, out, self.size as u64, &mut |span| take(place, span))
        })
    }
}

/// The dimensions of an array, and the number of its elements.
fn dims(shape: &[u64], strides: &[u64]) -> (Dims, u64) {
    let mut out = 1u64;
    let inner_first = shape.iter().zip(strides).rev().map(|(len, stride)| {
        let dim = StridedDim { len: *len, stride: *stride, out };
        out = out.saturating_mul(*len);
        dim
    });
    let mut dims: Dims = inner_first.collect();
    dims.reverse();
    (dims, if shape.contains(&0) { 0 } else { out })
}

/// The same dimensions without those of one element. Neighbours that form one run of elements are merged.
fn merged(dims: Dims) -> Dims {
    let mut merged = Dims::new();
    for dim in dims.into_iter().rev().filter(|dim| dim.len != 1) {
        match merged.last_mut() {
            Some(StridedDim { len, stride, out })
                if stride.checked_mul(*len) == Some(dim.stride) && out.checked_mul(*len) == Some(dim.out) =>
            {
                *len = len.saturating_mul(dim.len);
            }
            _ => merged.push(dim),
        }
    }
    merged.reverse();
    merged
}

/// Passes the parts of an array that make up `range`, given in C order, to `take`. Each part has all elements of its
/// dimensions; the two numbers are its first element in the source and in the output, which begins with `range`.
fn split_span<E>(
    dims: &[StridedDim],
    range: Range<u64>,
    from: u64,
    out: u64,
    take: &mut dyn FnMut(Dims, u64, u64) -> Result<(), E>,
) -> Result<(), E> {
    if range.is_empty() {
        return Ok(());
    }
    let Some((dim, inner)) = dims.split_first() else { return take(Dims::new(), from, out) };
    let Range { start, end } = range;
    let (first, last) = (start / dim.out, end / dim.out);
    let whole = start.div_ceil(dim.out)..last;
    let at = |index: u64| from + index * dim.stride;
    if first < whole.start {
        let end = end.min(whole.start * dim.out);
        split_span(inner, start - first * dim.out..end - first * dim.out, at(first), out, take)?;
    }
    if !whole.is_empty() {
        let outer = StridedDim { len: whole.end - whole.start, ..*dim };
        let dims = [outer].iter().chain(inner).copied().collect();
        take(dims, at(whole.start), out + whole.start * dim.out - start)?;
    }
    if last >= whole.start {
        split_span(inner, 0..end - last * dim.out, at(last), out + (last * dim.out).saturating_sub(start), take)?;
    }
    Ok(())
}

/// Passes what must be read for all elements of a part to `take`, in the order of the source.
fn spans<E>(
    mut dims: Dims,
    from: u64,
    out: u64,
    size: u64,
    take: &mut dyn FnMut(CopySpan) -> Result<(), E>,
) -> Result<(), E> {
    dims.sort_by_key(|dim| dim.stride);
    // The number of dimensions that are read together, their span, and the number of their different elements.
    let (mut inner, mut span, mut needed) = (0, 1u64, 1u64);
    let mut at_once = 1;
    for dim in &dims {
        let (wider, more) = (span + (dim.len - 1) * dim.stride, needed.saturating_mul(dim.len));
        let is_dense = dim.stride == 0 || wider <= more.saturating_mul(SPARSE);
        let span_max = if is_dense { SPAN_MAX } else { SPAN_MIN } / size;
        if wider > span_max && dim.stride > 0 {
            at_once = (span_max.saturating_sub(span) / dim.stride + 1).min(dim.len);
            break;
        }
        (inner, span) = (inner + 1, wider);
        needed = if dim.stride > 0 { more } else { needed };
    }
    let mut outer: Dims = dims.iter().skip(inner + 1).rev().copied().collect();
    let Some(cut) = dims.get(inner).copied() else {
        return take(CopySpan { from, len: span, reads: 1, step: 0, out, dims: &dims });
    };
    dims.truncate(inner + 1);
    let read_len = span + (cut.len - 1) * cut.stride;
    let reads_max =
        if at_once < cut.len || is_run(&dims) { 1 } else { (SPAN_MAX / size / read_len).clamp(1, READS_MAX) };
    // The dimension along which the reads of a span lie.
    let rows = if reads_max > 1 { outer.pop() } else { None }.unwrap_or(StridedDim { len: 1, stride: 0, out: 0 });
    dims.push(rows);
    let mut indices: SmallVec<[u64; 4]> = outer.iter().map(|_| 0).collect();
    loop {
        let from = from + outer.iter().zip(&indices).map(|(dim, index)| dim.stride * index).sum::<u64>();
        let out = out + outer.iter().zip(&indices).map(|(dim, index)| dim.out * index).sum::<u64>();
        let mut start = 0;
        while start < cut.len {
            let len = at_once.min(cut.len - start);
            dims[inner].len = len;
            let (from, out) = (from + start * cut.stride, out + start * cut.out);
            let read_len = span + (len - 1) * cut.stride;
            let mut row = 0;
            while row < rows.len {
                let reads = reads_max.min(rows.len - row);
                dims[inner + 1] = StridedDim { len: reads, stride: read_len, out: rows.out };
                let (from, out) = (from + row * rows.stride, out + row * rows.out);
                take(CopySpan { from, len: read_len, reads, step: rows.stride, out, dims: &dims })?;
                row += reads;
            }
            start += len;
        }
        // The next combination of indices.
        let Some(at) = (0..outer.len()).rev().find(|at| indices[*at] + 1 < outer[*at].len) else { return Ok(()) };
        indices[at] += 1;
        indices[at + 1..].fill(0);
    }
}

/// Whether the elements are one run in the source and in the output.
fn is_run(dims: &[StridedDim]) -> bool {
    dims.iter().filter(|dim| dim.len > 1).all(|dim| dim.stride == 1 && dim.out == 1)
}

impl CopySpan<'_> {
    /// Copies the elements from the bytes of all reads to the output.
    fn scatter(&self, bytes: &[u8], size: usize, out: &mut [u8]) {
        let mut dims: Dims = self.dims.iter().filter(|dim| dim.len > 1).copied().collect();
        // Neighbours in the output are copied one after the other.
        dims.sort_by_key(|dim| std::cmp::Reverse(dim.out));
        scatter(&dims, bytes, size, &mut out[self.out as usize * size..]);
    }
}

fn scatter(dims: &[StridedDim], bytes: &[u8], size: usize, out: &mut [u8]) {
    match dims {
        [] => out[..size].copy_from_slice(&bytes[..size]),
        [StridedDim { len, stride: 1, out: 1 }] => {
            let len = *len as usize * size;
            out[..len].copy_from_slice(&bytes[..len]);
        }
        [dim] => match size {
            1 => copy::<1>(dim, bytes, out),
            2 => copy::<2>(dim, bytes, out),
            4 => copy::<4>(dim, bytes, out),
            8 => copy::<8>(dim, bytes, out),
            _ => {
                for at in 0..dim.len as usize {
                    let (from, to) = (at * dim.stride as usize * size, at * dim.out as usize * size);
                    out[to..to + size].copy_from_slice(&bytes[from..from + size]);
                }
            }
        },
        [dim, inner @ ..] => {
            for at in 0..dim.len as usize {
                let (from, to) = (at * dim.stride as usize * size, at * dim.out as usize * size);
                scatter(inner, &bytes[from..], size, &mut out[to..]);
            }
        }
    }
}

/// Copies the elements of one dimension. They have `N` bytes.
fn copy<const N: usize>(dim: &StridedDim, bytes: &[u8], out: &mut [u8]) {
    let (bytes, out) = (bytes.as_chunks::<N>().0, out.as_chunks_mut::<N>().0);
    for at in 0..dim.len as usize {
        out[at * dim.out as usize] = bytes[at * dim.stride as usize];
    }
}

/// Reverses the bytes of each number.
fn reverse(bytes: &mut [u8], word: usize) {
    match word {
        2 => bytes.as_chunks_mut::<2>().0.iter_mut().for_each(|word| word.reverse()),
        4 => bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|word| word.reverse()),
        8 => bytes.as_chunks_mut::<8>().0.iter_mut().for_each(|word| word.reverse()),
        _ => bytes.chunks_exact_mut(word).for_each(<[u8]>::reverse),
    }
}

impl StridedData {
    /// An array that lies in one place.
    pub fn new(source: &Arc<dyn Source>, start: u64, layout: StridedLayout) -> Self {
        Self { places: smallvec![ArrayPlace { source: source.clone(), start }], layout: Arc::new(layout) }
    }

    /// An array of this shape that is made of boxes, with elements of `size` bytes. Boxes without elements are left
    /// out; the others must cover the array exactly. The size of the array, and the distance of the last element of a
    /// box from its first, must be less than 2^63 bytes.
    pub fn of_boxes(shape: &[u64], size: usize, mut boxes: Vec<(ArrayBox, ArrayPlace)>) -> Result<Self, BoxFault> {
        boxes.retain(|(one, _)| !one.shape.contains(&0));
        boxes.sort_by(|a, b| a.0.offsets.cmp(&b.0.offsets));
        let (mut boxes, places): (Vec<ArrayBox>, SmallVec<_>) = boxes.into_iter().unzip();
        check_cover(shape, &boxes)?;
        if let [whole] = &boxes[..] {
            let layout = StridedLayout::new(shape, &whole.strides, size, 1);
            return Ok(Self { places, layout: layout.into() });
        }
        let kept = wide_dims(shape);
        let of_kept = |all: &[u64]| kept.iter().map(|dim| all[*dim]).collect();
        for ArrayBox { offsets, shape, strides } in &mut boxes {
            (*offsets, *shape, *strides) = (of_kept(offsets), of_kept(shape), of_kept(strides));
        }
        let shape: SmallVec<[u64; 2]> = of_kept(shape);
        let layout = StridedLayout::of_boxes(&shape, boxes.into(), size);
        Ok(Self { places, layout: Arc::new(layout) })
    }

    /// Fills `buf` with the bytes from `offset` on, without a panel.
    pub(super) fn fill_alone(&self, buf: &mut [u8], offset: u64) -> Result<(), source::Error> {
        let size = self.layout.size;
        let elements = self.elements(&(offset..offset + buf.len() as u64));
        let skipped = (offset - elements.start * size as u64) as usize;
        let len = (elements.end - elements.start) as usize * size;
        if len == buf.len() {
            return self.gather(elements, buf);
        }
        // The first or the last element or row is not needed as a whole.
        let mut whole = vec![0; len];
        self.gather(elements, &mut whole)?;
        buf.copy_from_slice(&whole[skipped..skipped + buf.len()]);
        Ok(())
    }

    /// Passes the runs that a part needs to `take`, without panels. Runs with a gap of at most `gap_max` bytes are
    /// passed as one.
    pub(super) fn visit_runs_alone(&self, part: &Range<u64>, gap_max: u64, take: &mut TakeRun) {
        let size = self.layout.size as u64;
        let mut run: Option<(usize, Range<u64>)> = None;
        let mut take = |(place, run): (usize, Range<u64>)| take(&self.places[place].source, run);
        let Ok(()) = self.layout.spans::<Infallible>(self.elements(part), &mut |place, span| {
            for from in (0..span.reads).map(|read| span.from + read * span.step) {
                let start = self.places[place].start;
                let next = start + from * size..start + (from + span.len) * size;
                match &mut run {
                    Some((last, run)) if *last == place && (run.start..=run.end + gap_max).contains(&next.start) => {
                        run.end = run.end.max(next.end);
                    }
                    run => run.replace((place, next)).into_iter().for_each(&mut take),
                }
            }
            Ok(())
        });
        run.into_iter().for_each(take);
    }

    /// The elements that are read for a range of bytes. Those of boxes are read in whole rows, unless a row is longer
    /// than half of the range: the first part of a row, the rows after it and a part of the last one lie one after the
    /// other in each box, and take one read instead of three.
    pub(super) fn elements(&self, bytes: &Range<u64>) -> Range<u64> {
        let StridedLayout { dims, boxes, len, size, .. } = &*self.layout;
        let size = *size as u64;
        let most = (bytes.end - bytes.start) / size / 2;
        let rows = dims.iter().map(|dim| dim.out).filter(|row| !boxes.is_empty() && *row <= most);
        let row = rows.max().unwrap_or(1);
        bytes.start / size / row * row..bytes.end.div_ceil(size).next_multiple_of(row).min(*len)
    }

    pub(super) fn gather(&self, elements: Range<u64>, out: &mut [u8]) -> Result<(), source::Error> {
        let Self { places, layout } = self;
        let size = layout.size;
        let mut bytes = Vec::new();
        layout.spans(elements, &mut |place, span| {
            let ArrayPlace { source, start } = &places[place];
            let (offset, len) = (start + span.from * size as u64, span.len as usize * size);
            if span.reads == 1 && is_run(span.dims) {
                let to = span.out as usize * size;
                return source.read_exact_at(&mut out[to..to + len], offset);
            }
            bytes.resize(span.reads as usize * len, 0);
            source.read_runs_at(&mut bytes, len, offset, span.step * size as u64)?;
            span.scatter(&bytes, size, out);
            Ok(())
        })?;
        if layout.word > 1 {
            reverse(out, layout.word);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::content::{Content, ReadRequest, Segment};
    use crate::source::{Bytes, Error, MemorySource, SourceInfo};
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// An array of the elements at these places of `bytes`.
    fn array(bytes: &[u8], start: u64, layout: StridedLayout) -> (StridedData, Content) {
        let source: Arc<dyn Source> = Arc::new(MemorySource::new(bytes.to_vec()));
        let strided = StridedData::new(&source, start, layout);
        (strided.clone(), Segment::Strided(strided).into())
    }

    /// Every byte of the array in C order, found in the simplest way.
    fn expected(bytes: &[u8], start: u64, shape: &[u64], strides: &[u64], size: usize, word: usize) -> Vec<u8> {
        let mut indices = vec![0; shape.len()];
        let mut all = Vec::new();
        for _ in 0..shape.iter().product::<u64>() {
            let at: u64 = indices.iter().zip(strides).map(|(index, stride)| index * stride).sum();
            let from = start as usize + at as usize * size;
            all.extend(bytes[from..from + size].chunks(word).flat_map(|word| word.iter().rev()));
            for (index, dim) in indices.iter_mut().zip(shape).rev() {
                *index += 1;
                if *index < *dim {
                    break;
                }
                *index = 0;
            }
        }
        all
    }

    fn noise(len: usize) -> Vec<u8> {
        (0..len as u32).map(|at| (at.wrapping_mul(0x9e37_79b1) >> 24) as u8).collect()
    }

    proptest! {
        #[test]
        fn any_range_of_any_layout_is_gathered(
            dims in proptest::collection::vec((1u64..7, 0u64..40), 0..5),
            (size, word) in prop_oneof![
                Just((1, 1)), Just((2, 2)), Just((4, 1)), Just((4, 4)), Just((8, 4)), Just((8, 8)), Just((16, 8)),
                Just((3, 1)),
            ],
            start in 0u64..20,
            (from, to) in (0u64..3000, 0u64..3000),
        ) {
            let (shape, strides): (Vec<u64>, Vec<u64>) = dims.into_iter().unzip();
            let last: u64 = shape.iter().zip(&strides).map(|(len, stride)| (len - 1) * stride).sum();
            let bytes = noise(start as usize + (last as usize + 1) * size);
            let expected = expected(&bytes, start, &shape, &strides, size, word);
            let (strided, content) = array(&bytes, start, StridedLayout::new(&shape, &strides, size, word));
            prop_assert_eq!(strided.layout.nbytes(), expected.len() as u64);
            let len = expected.len() as u64;
            let (from, to) = (from.min(to).min(len), to.max(from).min(len));
            let mut read = Vec::new();
            content.copy(from..to, &ReadRequest::WAIT, &mut read).unwrap();
            prop_assert_eq!(&read, &expected[from as usize..to as usize]);
            // The prepared range is inside the file, and has all bytes that are needed.
            let mut runs = Vec::new();
            strided.visit_runs(&(from..to), &mut |_, run| runs.push(run));
            prop_assert!(runs.iter().all(|run| run.start >= start && run.end <= bytes.len() as u64));
            let mut only: Vec<u8> = vec![0; bytes.len()];
            for run in runs {
                only[run.start as usize..run.end as usize]
                    .copy_from_slice(&bytes[run.start as usize..run.end as usize]);
            }
            let (_, content) = array(&only, start, StridedLayout::new(&shape, &strides, size, word));
            content.copy(from..to, &ReadRequest::WAIT, &mut read).unwrap();
            prop_assert_eq!(&read, &expected[from as usize..to as usize]);
        }
    }

    #[test]
    fn large_arrays_are_gathered() {
        // A transposed matrix, every second row, channels last, repeated rows, and a matrix that is wider than a span.
        let cases: [(&[u64], &[u64]); 6] = [
            (&[300, 500], &[1, 300]),
            (&[250, 400], &[800, 2]),
            (&[4, 3, 70, 90], &[18_900, 1, 270, 3]),
            (&[50, 3000], &[0, 1]),
            (&[2, 150_000], &[150_001, 2]),
            (&[3, 130_000], &[100_000, 1]),
        ];
        let bytes = noise(4 * 460_000);
        for (shape, strides) in cases {
            let expected = expected(&bytes, 0, shape, strides, 4, 1);
            let (_, content) = array(&bytes, 0, StridedLayout::new(shape, strides, 4, 1));
            let len = expected.len() as u64;
            for range in [0..len, 5..len - 3, len / 3..len / 3 + 70_001, len - 1..len, 1000..1001] {
                let mut read = Vec::new();
                content.copy(range.clone(), &ReadRequest::WAIT, &mut read).unwrap();
                assert!(read == expected[range.start as usize..range.end as usize], "{shape:?} {range:?}");
            }
        }
    }

    /// Bytes that count how often they are read.
    #[derive(Debug)]
    struct Counted(MemorySource, AtomicU64);

    impl Source for Counted {
        fn info(&self) -> &SourceInfo {
            self.0.info()
        }

        fn bytes(&self, range: Range<u64>) -> Result<Bytes, Error> {
            self.0.bytes(range)
        }

        fn read_runs_at(&self, buf: &mut [u8], len: usize, offset: u64, step: u64) -> Result<(), Error> {
            self.1.fetch_add(buf.len().div_ceil(len) as u64, Ordering::Relaxed);
            self.0.read_runs_at(buf, len, offset, step)
        }
    }

    #[test]
    fn long_reads_of_a_transposed_matrix_gather_each_panel_once() {
        const ROWS: u64 = 1500;
        let (shape, strides) = ([700, ROWS], [1, 3000]);
        let bytes = noise(4 * (ROWS * 3000) as usize);
        let expected = expected(&bytes, 0, &shape, &strides, 4, 1);
        let source = Arc::new(Counted(MemorySource::new(bytes), AtomicU64::new(0)));
        let bytes: Arc<dyn Source> = source.clone();
        let strided = |strides: [u64; 2]| StridedData::new(&bytes, 0, StridedLayout::new(&shape, &strides, 4, 1));
        let transposed = strided(strides);
        let reads = || source.1.swap(0, Ordering::Relaxed);
        // Several readers, each of which reads everything. The last read of each is short, and starts inside of a
        // number.
        std::thread::scope(|scope| {
            for len in [128 << 10, 1 << 20, 100_001] {
                let (transposed, expected) = (&transposed, &expected);
                scope.spawn(move || {
                    for (at, expected) in expected.chunks(len).enumerate() {
                        let mut read = vec![0; expected.len()];
                        transposed.fill(&mut read, (at * len) as u64).unwrap();
                        assert!(read == expected, "{at} {len}");
                    }
                });
            }
        });
        // There are three panels, and the last reads of two readers are too short for panels.
        assert_eq!(transposed.panels(&(0..expected.len() as u64)), 0..3);
        let short = expected.len() % (1 << 20) / 4;
        assert_eq!(reads(), 3 * ROWS + 2 * short as u64);
        // Nothing has to be prepared for panels that are kept, and everything for others.
        let part = 0..1 << 20;
        let runs = |array: &StridedData| {
            let mut count = 0;
            array.visit_runs(&part, &mut |_, _| count += 1);
            count
        };
        assert_eq!(runs(&transposed), 0);
        let other = strided([2, 3000]);
        assert_eq!(runs(&other), 1);
        // An array with another layout in the same place has other panels.
        let mut read = vec![0; 128 << 10];
        other.fill(&mut read, 0).unwrap();
        assert!(reads() == ROWS && read != expected[..128 << 10]);
        // A short read gathers what it needs.
        strided([3, 3000]).fill(&mut read[..400], 0).unwrap();
        assert_eq!(reads(), 100);
    }

    #[test]
    fn little_more_is_read_than_needed() {
        // (shape, strides, range, reads, elements that are read).
        let transposed = (&[4096u64, 4096][..], &[1u64, 4096][..]);
        let cases = [
            // One row: 4096 elements, each in another row of the file.
            (transposed, 0..4096, 4096, 4096),
            // Eight rows of the same matrix: eight elements at a time.
            (transposed, 0..8 * 4096, 4096, 8 * 4096),
            // A part of a row.
            (transposed, 100..130, 30, 30),
            // Every second element: one span.
            ((&[1000], &[2]), 0..1000, 1, 1999),
            // One of 64 elements: a page at a time.
            ((&[1000], &[64]), 0..1000, 63, 1000 + 937 * 63),
            // One element, repeated.
            ((&[1 << 40], &[0]), 1 << 39..(1 << 39) + 1000, 1, 1),
            // A run is read as it is.
            ((&[1 << 20], &[1]), 0..1 << 20, 16, 1 << 20),
        ];
        for ((shape, strides), range, reads, elements) in cases {
            let (mut count, mut read) = (0, 0);
            let take = &mut |_, span: CopySpan| {
                count += span.reads;
                read += span.reads * span.len;
                Ok::<_, ()>(())
            };
            StridedLayout::new(shape, strides, 4, 1).spans(range.clone(), take).unwrap();
            assert_eq!((count, read), (reads, elements), "{shape:?} {range:?}");
        }
    }

    #[test]
    fn arrays_without_elements_are_empty() {
        let huge = 1 << 62;
        for (shape, strides) in [(&[0, huge, huge][..], &[1, 1, 1][..]), (&[huge, 0], &[0, 0]), (&[0], &[1])] {
            assert_eq!(StridedLayout::new(shape, strides, 8, 1).nbytes(), 0);
        }
        assert_eq!(StridedLayout::new(&[], &[], 8, 8).nbytes(), 8);
    }
}
