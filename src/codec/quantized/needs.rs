//! Computes which bytes of the stored tensors a range of elements needs.

use super::layout::{
    CodeNumber, CodePacking, Codebooks, GlobalScale, Parts, QuantizedLayout, QuantizedPart, RowParts, ScaleGrid,
    ScaleType, ZeroPoints,
};
use std::ops::Range;

/// Runs of bytes of equal length, at equal distances.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ByteRuns {
    /// The start of the first run, in bytes from the start of the tensor.
    pub start: u64,
    pub len: u64,
    /// Distance of the starts of two runs in bytes, at least `len`.
    pub stride: u64,
    pub count: u64,
}

impl ByteRuns {
    pub(super) fn one(range: Range<u64>) -> Self {
        let len = range.end.saturating_sub(range.start);
        Self { start: range.start, len, stride: len, count: u64::from(len > 0) }
    }

    pub fn bytes(&self) -> u64 {
        self.len * self.count
    }

    /// The ranges, in bytes from the start of the tensor.
    pub fn ranges(self) -> impl Iterator<Item = Range<u64>> {
        (0..self.count).map(move |at| self.start + at * self.stride..self.start + at * self.stride + self.len)
    }

    /// The place of the byte at `offset` of the tensor, which is in a run, if the runs are stored one after the other.
    #[inline(always)]
    pub(super) fn place(&self, offset: u64) -> usize {
        let from = offset - self.start;
        if self.count == 1 {
            return from as usize;
        }
        (from / self.stride * self.len + from % self.stride) as usize
    }

    /// Distance of two runs that are stored one after the other.
    pub(super) fn step(&self) -> usize {
        self.len as usize
    }
}

/// A non-empty range of elements, in rows and columns.
#[derive(Debug, Clone)]
struct ElementSpan {
    /// The first and the last row, over all matrices.
    first: u64,
    last: u64,
    /// The columns if the range lies in a row, otherwise all columns.
    cols: Range<u64>,
    /// The column of the first element, and the column behind the last element.
    start: u64,
    end: u64,
}

/// Approximate number of packed bytes that are read of each stored row of a transposed matrix: a page.
const STRIP: u64 = 4096;

/// Maximum size of the codes and scales of a window in bytes.
const STRIP_MAX: u64 = 4 << 20;

impl QuantizedLayout {
    /// The range of elements around `range` that should be read at once, because this touches hardly more pages than
    /// reading `range`. It is larger than `range` only for a transposed matrix: rows whose codes and scales are at most
    /// 4 MiB, or eight rows; and for one with codebooks: rows whose codes are at most 256 KiB, or those of a block.
    pub fn window(&self, range: Range<u64>) -> Range<u64> {
        if !self.packing.has_windows() || range.is_empty() {
            return range;
        }
        if let CodePacking::Codebooks(books) = self.packing {
            return self.whole_rows(&range, books.window(self.cols));
        }
        let bits = u64::from(self.packing.bits());
        let row_bytes = match self.packing {
            CodePacking::MixedDown(columns) => columns.row_bytes(),
            _ => (self.cols * bits).div_ceil(8).max(1) + self.grid.groups() * (self.scale.bytes() + 1),
        };
        let rows = match self.packing {
            CodePacking::Across => STRIP * 2,
            _ => STRIP / 4,
        };
        let rows = rows.min(STRIP_MAX / row_bytes / 8 * 8).max(8);
        self.whole_rows(&range, rows)
    }

    /// The elements around a range in groups of so many rows.
    fn whole_rows(&self, range: &Range<u64>, rows: u64) -> Range<u64> {
        let first = range.start / self.cols / rows * rows;
        let last = ((range.end - 1) / self.cols / rows + 1).saturating_mul(rows);
        first * self.cols..last.min(self.rows) * self.cols
    }

    /// The bytes of each part that `range` needs. `range` must lie inside the elements.
    pub(super) fn needs(&self, range: &Range<u64>) -> Parts<ByteRuns> {
        let mut needs = [ByteRuns::default(); QuantizedPart::COUNT];
        if range.is_empty() || range.end > self.elements() {
            return needs;
        }
        let span = self.span(range);
        if let CodePacking::MixedDown(columns) = self.packing {
            return columns.needs(span.first, span.last, self.cols);
        }
        needs[QuantizedPart::Values as usize] = self.values(&span);
        let (scales, indices) = self.scales(&span, self.scale.bytes());
        needs[QuantizedPart::Scales as usize] = scales;
        if self.formula == super::DequantizeFormula::ScaleThenAdd {
            needs[QuantizedPart::Biases as usize] = self.scales(&span, self.bias.bytes()).0;
        }
        needs[QuantizedPart::Zeros as usize] = match self.zeros {
            ZeroPoints::None => ByteRuns::default(),
            ZeroPoints::Bytes => self.scales(&span, 1).0,
            ZeroPoints::Numbers(number) => self.scales(&span, number.bytes()).0,
            ZeroPoints::Packed { .. } => self.zeros(&span),
        };
        if let ScaleType::Nested { block, .. } = self.scale {
            needs[QuantizedPart::NestedScales as usize] =
                ByteRuns::one(indices.start / block * 4..indices.end.div_ceil(block) * 4);
            needs[QuantizedPart::NestedMap as usize] = ByteRuns::one(0..256 * 4);
        }
        if self.group_index {
            needs[QuantizedPart::GroupIndex as usize] = ByteRuns::one(0..self.cols * 4);
        }
        needs[QuantizedPart::Global as usize] = match self.global {
            GlobalScale::None => ByteRuns::default(),
            GlobalScale::Times { each: false } | GlobalScale::Over { each: false } => ByteRuns::one(0..4),
            GlobalScale::Times { each: true } | GlobalScale::Over { each: true } => {
                ByteRuns::one(span.first / self.rows * 4..(span.last / self.rows + 1) * 4)
            }
        };
        if self.number == CodeNumber::Map {
            needs[QuantizedPart::Map as usize] = ByteRuns::one(0..16 * 4);
        }
        if let CodePacking::Codebooks(books) = self.packing {
            needs[QuantizedPart::Map as usize] = books.bytes();
        }
        needs
    }

    /// The end of the longest range from `start` on that has at most `count` elements and needs memory in proportion to
    /// them. A range over several rows needs the scales of whole rows, and one over several matrices those of whole
    /// matrices. It ends at the end of its part of [`CodePacking::RowParts`], because a range over two parts needs the
    /// bytes of whole parts.
    pub fn step(&self, start: u64, count: u64) -> u64 {
        let matrix = self.rows.saturating_mul(self.cols);
        let most = start.saturating_add(count).min(self.part_end(start));
        match () {
            () if matrix == 0 || matrix <= count => most,
            () if self.cols <= count => most.min(end_of(start, matrix)),
            () => most.min(end_of(start, self.cols)),
        }
    }

    /// The end of the elements from `start` on whose rows are in the same part of [`CodePacking::RowParts`].
    pub fn part_end(&self, start: u64) -> u64 {
        match self.row_parts() {
            Some(parts) if self.cols > 0 => end_of(start, parts.rows.saturating_mul(self.cols)).min(self.elements()),
            _ => self.elements(),
        }
    }

    pub(super) fn row_parts(&self) -> Option<RowParts> {
        let CodePacking::RowParts { bits } = self.packing else { return None };
        RowParts::new(bits, self.rows).filter(|parts| parts.rows > 0)
    }

    fn span(&self, range: &Range<u64>) -> ElementSpan {
        let (first, last) = (range.start / self.cols, (range.end - 1) / self.cols);
        let (start, end) = (range.start - first * self.cols, range.end - last * self.cols);
        ElementSpan { first, last, cols: if first == last { start..end } else { 0..self.cols }, start, end }
    }

    fn values(&self, span: &ElementSpan) -> ByteRuns {
        match self.packing {
            CodePacking::Stream { .. }
            | CodePacking::Words { .. }
            | CodePacking::HighFirst { .. }
            | CodePacking::Numbers { .. } => {
                let ((codes, bytes), row_bytes) = (self.packing.unit(), self.packing.row_bytes());
                let start = span.first * row_bytes + span.start / codes * bytes;
                ByteRuns::one(start..span.last * row_bytes + (span.end.div_ceil(codes) * bytes).min(row_bytes))
            }
            CodePacking::RowPairs if span.first / 2 == span.last / 2 => {
                let row = span.first / 2 * self.cols;
                ByteRuns::one(row + span.cols.start..row + span.cols.end)
            }
            CodePacking::RowPairs => ByteRuns::one(span.first / 2 * self.cols..(span.last / 2 + 1) * self.cols),
            CodePacking::Down { .. } => {
                let words = self.packing.words(&span.cols, self.cols);
                let (start, len) = ((words.start * self.rows + span.first) * 4, (span.last - span.first + 1) * 4);
                ByteRuns { start, len, stride: self.rows * 4, count: words.end - words.start }
            }
            CodePacking::Across => {
                let (words, first, last) = (self.rows / 8, span.first / 8, span.last / 8);
                let start = (span.cols.start * words + first) * 4;
                let count = span.cols.end - span.cols.start;
                ByteRuns { start, len: (last - first + 1) * 4, stride: words * 4, count }
            }
            CodePacking::Codebooks(books) => books.codes(span.first, span.last, &span.cols, self.cols),
            // `MixedColumns::needs` has all parts.
            CodePacking::MixedDown(_) => ByteRuns::default(),
            CodePacking::RowParts { .. } => {
                let Some(RowParts { rows, word, .. }) = self.row_parts() else { return ByteRuns::default() };
                let (first, last) = (span.first % rows, span.last % rows);
                if span.first / rows == span.last / rows {
                    return ByteRuns::one(
                        (first * self.cols + span.start) * word..(last * self.cols + span.end) * word,
                    );
                }
                ByteRuns::one(0..rows * self.cols * word)
            }
        }
    }

    /// The scales, `width` bytes each, and a range of the indices of scales that contains all of them.
    fn scales(&self, span: &ElementSpan, width: u64) -> (ByteRuns, Range<u64>) {
        match self.grid {
            ScaleGrid::Blocks { block, groups, strides: [matrix, down, beside] } => {
                let across = self.groups(span, block[1], groups);
                let [(first_matrix, first), (last_matrix, last)] =
                    [span.first, span.last].map(|row| (row / self.rows, row % self.rows / block[0]));
                if self.grid.is_transposed() {
                    let start = across.start * beside + first * down;
                    let len = (last - first) * down + 1;
                    let count = across.end - across.start;
                    let runs = ByteRuns { start: start * width, len: len * width, stride: beside * width, count };
                    return (runs, start..start + (count - 1) * beside + len);
                }
                let is_one_matrix = first_matrix == last_matrix;
                let (first, last) = if is_one_matrix { (first, last) } else { (0, (self.rows - 1) / block[0]) };
                let across = if is_one_matrix && first == last { across } else { 0..groups };
                let start = first_matrix * matrix + first * down + across.start * beside;
                let end = last_matrix * matrix + last * down + (across.end - 1) * beside + 1;
                (ByteRuns::one(start * width..end * width), start..end)
            }
            ScaleGrid::Tiled { groups, .. } => {
                let tiles = span.first / 128 * 128 * groups..(span.last / 128 + 1) * 128 * groups;
                (ByteRuns::one(tiles.clone()), tiles)
            }
        }
    }

    fn zeros(&self, span: &ElementSpan) -> ByteRuns {
        let (ZeroPoints::Packed { bits, along, across, .. }, ScaleGrid::Blocks { block, groups, .. }) =
            (self.zeros, self.grid)
        else {
            return ByteRuns::default();
        };
        let words = zero_words(bits, span.first, span.last);
        if along == 1 && groups > 1 {
            let beside = self.groups(span, block[1], groups);
            let start = (beside.start * across + words.start) * 4;
            let len = (words.end - words.start) * 4;
            return ByteRuns { start, len, stride: across * 4, count: beside.end - beside.start };
        }
        ByteRuns::one(words.start * along * 4..((words.end - 1) * along + (groups - 1) * across + 1) * 4)
    }

    fn groups(&self, span: &ElementSpan, block: u64, groups: u64) -> Range<u64> {
        if self.group_index { 0..groups } else { span.cols.start / block..span.cols.end.div_ceil(block) }
    }
}

/// Size of the codes in bytes that are read together, unless a row of blocks is larger. So neighbouring rows are read
/// once.
const WINDOW: u64 = 256 << 10;

impl Codebooks {
    /// Number of rows of the matrix that are read at once.
    pub(super) fn window(&self, cols: u64) -> u64 {
        (WINDOW / self.row_bytes(cols).max(1)).max(1).saturating_mul(self.block[0])
    }

    /// The codes of some columns of the rows from `first` to `last`: all columns, if there are several rows.
    pub(super) fn codes(&self, first: u64, last: u64, cols: &Range<u64>, all: u64) -> ByteRuns {
        let [height, width] = self.block;
        let (row, block) = (self.row_bytes(all), self.count * self.code_bytes());
        let start = first / height * row + cols.start / width * block;
        ByteRuns::one(start..last / height * row + cols.end.div_ceil(width) * block)
    }

    pub(super) fn bytes(&self) -> ByteRuns {
        ByteRuns::one(0..(self.count << self.bits) * self.block[0] * self.block[1] * self.number.bytes())
    }

    /// The offset in bytes of the codes of the block with an element.
    pub(super) fn offset(&self, row: u64, col: u64, all: u64) -> u64 {
        self.codes(row, row, &(col..col + 1), all).start
    }
}

/// The end of the part of `size` elements that has the element `at`.
fn end_of(at: u64, size: u64) -> u64 {
    (at / size + 1).saturating_mul(size)
}

/// The words of a stream that have the zero points of some rows. Zero points of 4 bits are in the same words if they
/// are interleaved.
fn zero_words(bits: u32, first: u64, last: u64) -> Range<u64> {
    let bits = u64::from(bits);
    first * bits / 32..((last + 1) * bits).div_ceil(32)
}

impl CodePacking {
    /// The smallest number of consecutive codes that take whole bytes, and these bytes.
    pub(super) fn unit(self) -> (u64, u64) {
        match self {
            Self::Words { bits, .. } => (u64::from(32 / bits), 4),
            Self::Numbers { number, .. } => (1, number.bytes()),
            _ => match self.bits() {
                8 => (1, 1),
                4 => (2, 1),
                2 => (4, 1),
                bits => (8, u64::from(bits)),
            },
        }
    }

    /// The words of a column that have the codes of some columns of the matrix, in whole units.
    pub(super) fn words(self, cols: &Range<u64>, all: u64) -> Range<u64> {
        let (codes, bytes) = self.unit();
        let end = (all * u64::from(self.bits())).div_ceil(32);
        cols.start / codes * bytes / 4..(cols.end.div_ceil(codes) * bytes).div_ceil(4).min(end)
    }
}
