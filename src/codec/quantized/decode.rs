//! The decoder: computes any range of elements from the bytes that the range needs. Does no I/O.

use super::groups::{Group, GroupOperands, combine, combine_by_index};
use super::layout::{
    CodeNumber, CodePacking, DequantizeFormula, GlobalScale, INTERLEAVED, Parts, QuantizedLayout, QuantizedPart,
    ScaleGrid, ScaleType, ZeroPoints,
};
use super::mixed::MixedDecoder;
use super::needs::ByteRuns;
use super::numbers::{CodeDecoder, widen};
use super::transposed::{ROWS_AT_ONCE, transpose};
use super::{Bf16, F32, fp8};
use crate::codec::bf16;
use crate::codec::elements::{E4M3, E8M0};
use std::ops::Range;

/// A decoder for a layout that has been checked against the sizes of the parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayoutDecoder {
    layout: QuantizedLayout,
}

/// The slices that were given to a decoder do not have the sizes that the range needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("quantized tensor: {}", self.fault())]
pub struct SizeMismatch {
    /// The part whose size is wrong; `None` for the output or the range.
    pub part: Option<QuantizedPart>,
}

impl SizeMismatch {
    fn fault(&self) -> String {
        match self.part {
            Some(part) => format!("{}: the number of bytes is wrong", part.name()),
            None => "the range or the size of the output is wrong".to_owned(),
        }
    }
}

#[derive(Debug)]
pub enum DecodedOutput<'o> {
    F32(&'o mut [F32]),
    /// As bfloat16, rounded from float32 to nearest, ties to even.
    Bf16(&'o mut [Bf16]),
}

impl DecodedOutput<'_> {
    fn len(&self) -> usize {
        match self {
            Self::F32(out) => out.len(),
            Self::Bf16(out) => out.len(),
        }
    }

    fn part(&mut self, range: Range<usize>) -> DecodedOutput<'_> {
        match self {
            Self::F32(out) => DecodedOutput::F32(&mut out[range]),
            Self::Bf16(out) => DecodedOutput::Bf16(&mut out[range]),
        }
    }
}

/// Maximum number of groups, and of columns, that are decoded before they are scaled, so that the elements stay in the
/// cache of a core.
const GROUPS_AT_ONCE: usize = 256;
const COLUMNS_AT_ONCE: u64 = 2048;

impl LayoutDecoder {
    /// A decoder for parts of these sizes in bytes. Fails with a reason if the layout is inconsistent or a part is too
    /// small.
    pub fn new(layout: QuantizedLayout, sizes: &Parts<u64>) -> Result<Self, String> {
        layout.check(sizes)?;
        Ok(Self { layout })
    }

    pub fn layout(&self) -> &QuantizedLayout {
        &self.layout
    }

    /// The bytes of each part that the elements of `range` need, in row-major order.
    pub fn needs(&self, range: &Range<u64>) -> Parts<ByteRuns> {
        self.layout.needs(range)
    }

    /// Writes the elements of `range` to `out`. `parts` are the bytes that [`LayoutDecoder::needs`] returns for `held`,
    /// one run after the other. `held` contains `range`.
    pub fn decode(
        &self,
        held: &Range<u64>,
        parts: &Parts<&[u8]>,
        range: &Range<u64>,
        out: DecodedOutput,
    ) -> Result<(), SizeMismatch> {
        self.decode_needed(held, self.needs(held), parts, range, out)
    }

    /// As [`LayoutDecoder::decode`]. `needs` are the runs that `held` needs.
    pub(super) fn decode_needed(
        &self,
        held: &Range<u64>,
        needs: Parts<ByteRuns>,
        parts: &Parts<&[u8]>,
        range: &Range<u64>,
        out: DecodedOutput,
    ) -> Result<(), SizeMismatch> {
        let is_inside = held.start <= range.start && range.end <= held.end && held.end <= self.layout.elements();
        if range.start > range.end || !is_inside || out.len() as u64 != range.end - range.start {
            return Err(SizeMismatch { part: None });
        }
        for ((part, needs), bytes) in QuantizedPart::ALL.into_iter().zip(&needs).zip(parts) {
            if needs.bytes() != bytes.len() as u64 {
                return Err(SizeMismatch { part: Some(part) });
            }
        }
        if !range.is_empty() {
            DecodePass::new(&self.layout, needs, parts, range).decode(out);
        }
        Ok(())
    }
}

/// One call of [`LayoutDecoder::decode`].
struct DecodePass<'p> {
    layout: &'p QuantizedLayout,
    needs: Parts<ByteRuns>,
    parts: &'p Parts<&'p [u8]>,
    range: &'p Range<u64>,
    codes: CodeDecoder,
    /// The group of each column, if the columns are not in the order of the groups.
    groups: Option<&'p [Group]>,
    /// For [`CodePacking::MixedDown`], which decodes all columns of a row.
    mixed: Option<MixedDecoder<'p>>,
    /// Some rows of a transposed matrix, transposed back.
    copied: CopiedRows,
    /// Elements of a row before they are rounded to bfloat16.
    rounded: Vec<F32>,
    /// The operands of all groups of a row, if there is a group index, and the row.
    operands: Vec<GroupOperands>,
    row: Option<u64>,
}

#[derive(Default)]
struct CopiedRows {
    rows: Range<u64>,
    words: Range<u64>,
    row_bytes: usize,
    bytes: Vec<u8>,
}

impl<'p> DecodePass<'p> {
    fn new(
        layout: &'p QuantizedLayout,
        needs: Parts<ByteRuns>,
        parts: &'p Parts<&'p [u8]>,
        range: &'p Range<u64>,
    ) -> Self {
        let codes = CodeDecoder::new(layout.packing, layout.number, parts[QuantizedPart::Map as usize]);
        let mut groups = layout.group_index.then(|| parts[QuantizedPart::GroupIndex as usize].as_chunks::<4>().0);
        if let (Some(index), ScaleGrid::Blocks { block, .. }) = (groups, layout.grid) {
            let mut columns = (0..).zip(index);
            let is_in_order = columns.all(|(column, group)| u64::from(u32::from_le_bytes(*group)) == column / block[1]);
            // compressed-tensors ignores an index that has -1.
            if is_in_order || index.contains(&(-1i32).to_le_bytes()) {
                groups = None;
            }
        }
        let rows = range.start / layout.cols..(range.end - 1) / layout.cols + 1;
        let mixed = match layout.packing {
            CodePacking::MixedDown(columns) => Some(MixedDecoder::new(columns, layout.cols, rows, parts, &needs)),
            _ => None,
        };
        Self {
            layout,
            needs,
            parts,
            range,
            codes,
            groups,
            mixed,
            copied: CopiedRows::default(),
            rounded: Vec::new(),
            operands: Vec::new(),
            row: None,
        }
    }

    fn decode(&mut self, mut out: DecodedOutput) {
        let cols = self.layout.cols;
        let mut at = self.range.start;
        while at < self.range.end {
            let (row, start) = (at / cols, at % cols);
            let end = cols.min(start + (self.range.end - at));
            let from = (at - self.range.start) as usize;
            self.decode_row(row, start..end, out.part(from..from + (end - start) as usize));
            at += end - start;
        }
    }

    fn decode_row(&mut self, row: u64, cols: Range<u64>, mut out: DecodedOutput) {
        let [_, width] = self.layout.grid.block();
        if self.groups.is_some() {
            self.index_operands(row);
        }
        let mut start = cols.start;
        while start < cols.end {
            let end = ((start / COLUMNS_AT_ONCE + 1) * COLUMNS_AT_ONCE).min(cols.end);
            let end = end.min((start / width + GROUPS_AT_ONCE as u64).saturating_mul(width));
            match out.part((start - cols.start) as usize..(end - cols.start) as usize) {
                DecodedOutput::F32(out) => self.decode_part(row, start..end, width, out),
                DecodedOutput::Bf16(out) if self.is_fp8() => {
                    let mut operands = [GroupOperands::default(); GROUPS_AT_ONCE];
                    let (first, operands) = self.operands_of(row, &(start..end), width, &mut operands);
                    fp8::to_bf16(self.bytes(row, &(start..end)), out, first, width as usize, operands);
                }
                DecodedOutput::Bf16(out) => {
                    let mut rounded = std::mem::take(&mut self.rounded);
                    rounded.resize(out.len(), [0; 4]);
                    self.decode_part(row, start..end, width, &mut rounded);
                    bf16::from_f32(rounded.as_flattened(), out.as_flattened_mut());
                    self.rounded = rounded;
                }
            }
            start = end;
        }
    }

    fn stored(&self, part: QuantizedPart) -> (&'p [u8], ByteRuns) {
        (self.parts[part as usize], self.needs[part as usize])
    }

    fn is_fp8(&self) -> bool {
        let QuantizedLayout { packing, number, formula, zeros, .. } = *self.layout;
        let is_plain = (formula, zeros) == (DequantizeFormula::Scale, ZeroPoints::None) && self.groups.is_none();
        is_plain && number == CodeNumber::E4M3 && matches!(packing, CodePacking::Stream { .. })
    }

    /// Decodes some columns of a row. A group has `width` columns.
    fn decode_part(&mut self, row: u64, cols: Range<u64>, width: u64, out: &mut [F32]) {
        if let Some(mixed) = &mut self.mixed {
            return mixed.decode(row, cols, out);
        }
        let has_zeros = self.layout.zeros != ZeroPoints::None;
        self.numbers(row, cols.clone(), out);
        if let Some(groups) = self.groups {
            combine_by_index(has_zeros, out, &groups[cols.start as usize..cols.end as usize], &self.operands);
            return;
        }
        let mut operands = [GroupOperands::default(); GROUPS_AT_ONCE];
        let (first, operands) = self.operands_of(row, &cols, width, &mut operands);
        combine(self.layout.formula, has_zeros, out, first, width.min(COLUMNS_AT_ONCE) as usize, operands);
    }

    /// The operands of the groups of some columns of a row, and the number of these columns in the first group.
    fn operands_of<'o>(
        &self,
        row: u64,
        cols: &Range<u64>,
        width: u64,
        operands: &'o mut [GroupOperands; GROUPS_AT_ONCE],
    ) -> (usize, &'o [GroupOperands]) {
        let operands = &mut operands[..(cols.end.div_ceil(width) - cols.start / width) as usize];
        self.operands(row, cols.start / width, operands);
        ((width - cols.start % width).min(cols.end - cols.start) as usize, operands)
    }

    /// The bytes with the codes of some columns of a row that is not transposed.
    fn bytes(&self, row: u64, cols: &Range<u64>) -> &'p [u8] {
        let (values, runs) = self.stored(QuantizedPart::Values);
        let (codes, bytes) = self.layout.packing.unit();
        let row_bytes = self.layout.packing.row_bytes();
        let start = row * row_bytes + cols.start / codes * bytes;
        let end = row * row_bytes + (cols.end.div_ceil(codes) * bytes).min(row_bytes);
        let from = runs.place(start);
        &values[from..from + (end - start) as usize]
    }

    /// Writes the numbers that the codes of some columns of a row represent.
    fn numbers(&mut self, row: u64, cols: Range<u64>, out: &mut [F32]) {
        let packing = self.layout.packing;
        let (values, runs) = self.stored(QuantizedPart::Values);
        let (codes, bytes) = packing.unit();
        let skipped = (cols.start % codes) as usize;
        match packing {
            CodePacking::Stream { .. }
            | CodePacking::Words { .. }
            | CodePacking::HighFirst { .. }
            | CodePacking::Numbers { .. } => {
                self.codes.decode_from(packing, self.bytes(row, &cols), skipped, out);
            }
            CodePacking::RowPairs => {
                let from = runs.place(row / 2 * self.layout.cols + cols.start);
                self.codes.nibbles_of_bytes(&values[from..from + out.len()], row as u32 % 2 * 4, out);
            }
            CodePacking::Down { .. } => {
                if !self.copied.rows.contains(&row) {
                    self.copy_down(row);
                }
                let copied = &self.copied;
                let from = (row - copied.rows.start) as usize * copied.row_bytes;
                let words = &copied.bytes[from..from + (copied.words.end - copied.words.start) as usize * 4];
                let from = (cols.start / codes * bytes - copied.words.start * 4) as usize;
                self.codes.decode_from(packing, &words[from..], skipped, out);
            }
            CodePacking::Across => {
                if !self.copied.rows.contains(&row) {
                    self.copy_across(row);
                }
                let from = (cols.start - self.copied.words.start) as usize * 4;
                let words = &self.copied.bytes[from..from + out.len() * 4];
                self.codes.nibbles_of_words(words, INTERLEAVED[row as usize % 8] * 4, out);
            }
            CodePacking::Codebooks(books) => {
                let from = runs.place(books.offset(row, cols.start, self.layout.cols));
                books.decode(&values[from..], self.parts[QuantizedPart::Map as usize], row, cols, out);
            }
            // `MixedDecoder` decodes these.
            CodePacking::MixedDown(_) => {}
            CodePacking::RowParts { .. } => {
                if let Some(parts) = self.layout.row_parts() {
                    let from = runs.place((row % parts.rows * self.layout.cols + cols.start) * parts.word);
                    let words = &values[from..from + out.len() * parts.word as usize];
                    self.codes.fields(words, parts.shift(row), out);
                }
            }
        }
    }

    /// The columns that the range touches: all of them if it touches several rows.
    fn touched(&self) -> Range<u64> {
        let cols = self.layout.cols;
        let (first, last) = (self.range.start / cols, (self.range.end - 1) / cols);
        if first == last { self.range.start - first * cols..self.range.end - last * cols } else { 0..cols }
    }

    /// Copies the words of some rows, from `row` on, of a matrix that is packed as [`CodePacking::Down`].
    fn copy_down(&mut self, row: u64) {
        let QuantizedLayout { rows, cols, packing, .. } = *self.layout;
        let (values, runs) = self.stored(QuantizedPart::Values);
        let words = packing.words(&self.touched(), cols);
        let end = ((self.range.end - 1) / cols + 1).min((row / ROWS_AT_ONCE + 1) * ROWS_AT_ONCE);
        // Without the additional bytes, rows at distances of a power of two would compete for the same cache sets.
        let row_bytes = (words.end - words.start) as usize * 4 + 64;
        let count = (end - row) as usize;
        self.copied.bytes.resize(count * row_bytes, 0);
        let from = runs.place((words.start * rows + row) * 4);
        let stored =
            (0..(words.end - words.start) as usize).map(|word| &values[from + word * runs.step()..][..count * 4]);
        transpose(stored, row_bytes, &mut self.copied.bytes);
        (self.copied.rows, self.copied.words, self.copied.row_bytes) = (row..end, words, row_bytes);
    }

    /// Copies the words that contain `row` of a matrix that is packed as [`CodePacking::Across`].
    fn copy_across(&mut self, row: u64) {
        let (values, runs) = self.stored(QuantizedPart::Values);
        let cols = self.touched();
        let from = runs.place((cols.start * (self.layout.rows / 8) + row / 8) * 4);
        self.copied.bytes.resize((cols.end - cols.start) as usize * 4, 0);
        let stored = (0..(cols.end - cols.start) as usize).map(|word| &values[from + word * runs.step()..][..4]);
        for (word, copy) in stored.zip(self.copied.bytes.as_chunks_mut::<4>().0) {
            copy.copy_from_slice(word);
        }
        (self.copied.rows, self.copied.words) = (row / 8 * 8..row / 8 * 8 + 8, cols);
    }

    fn index_operands(&mut self, row: u64) {
        if let ScaleGrid::Blocks { groups, .. } = self.layout.grid
            && self.row != Some(row)
        {
            let mut operands = std::mem::take(&mut self.operands);
            operands.resize(groups as usize, GroupOperands::default());
            self.operands(row, 0, &mut operands);
            (self.operands, self.row) = (operands, Some(row));
        }
    }

    /// The operands of consecutive groups of a row, from `group` on.
    fn operands(&self, row: u64, group: u64, operands: &mut [GroupOperands]) {
        let QuantizedLayout { rows, scale, .. } = *self.layout;
        let (matrix, below) = (row / rows, row % rows);
        let scales = self.strided(QuantizedPart::Scales, scale.bytes(), matrix, below, group);
        match self.layout.grid {
            ScaleGrid::Blocks { .. } => self.scales(scales, operands),
            ScaleGrid::Tiled { groups, .. } => {
                let (scales, runs) = self.stored(QuantizedPart::Scales);
                let table = if scale == ScaleType::E8M0 { &E8M0 } else { &E4M3 };
                for (group, operands) in (group..).zip(&mut *operands) {
                    let tile = below / 128 * (groups / 4) + group / 4;
                    let at = tile * 512 + below % 32 * 16 + below % 128 / 32 * 4 + group % 4;
                    operands.scale = table[usize::from(scales[runs.place(at)])];
                }
            }
        }
        let (globals, runs) = self.stored(QuantizedPart::Global);
        match self.layout.global {
            GlobalScale::None => {}
            GlobalScale::Times { each } => {
                let global = float_at(globals, runs.place(if each { matrix * 4 } else { 0 }));
                operands.iter_mut().for_each(|operands| operands.scale *= global);
            }
            GlobalScale::Over { each } => {
                let global = float_at(globals, runs.place(if each { matrix * 4 } else { 0 }));
                operands.iter_mut().for_each(|operands| operands.scale /= global);
            }
        }
        if self.layout.formula == DequantizeFormula::ScaleThenAdd {
            let bias = self.layout.bias;
            let (bytes, step, _) = self.strided(QuantizedPart::Biases, bias.bytes(), matrix, below, group);
            let count = operands.len();
            widen(bias, bytes, step, |at, value| operands[at].other = value, count);
        }
        self.zeros(matrix, below, group, operands);
    }

    /// The bytes of a part that has an element for each scale, from the element for a group of a row on; the distance
    /// of the elements in bytes; and the index of the first one.
    fn strided(&self, part: QuantizedPart, width: u64, matrix: u64, row: u64, group: u64) -> (&'p [u8], usize, u64) {
        let ScaleGrid::Blocks { block, groups, strides: [matrices, down, beside] } = self.layout.grid else {
            return (&[], 0, 0);
        };
        // The distance of the groups of a row can be any number if there is only one.
        let beside = if groups > 1 { beside } else { 1 };
        let (bytes, runs) = self.stored(part);
        let index = matrix * matrices + row / block[0] * down + group * beside;
        let step = if runs.count > 1 { runs.step() } else { (beside * width) as usize };
        (&bytes[runs.place(index * width)..], step, index)
    }

    fn scales(&self, (bytes, step, index): (&[u8], usize, u64), operands: &mut [GroupOperands]) {
        let count = operands.len();
        let ScaleType::Nested { block, offset } = self.layout.scale else {
            widen(self.layout.scale, bytes, step, |at, value| operands[at].scale = value, count);
            return;
        };
        let (nested, runs) = self.stored(QuantizedPart::NestedScales);
        let (map, _) = self.stored(QuantizedPart::NestedMap);
        let step = step.max(1);
        for (at, operands) in operands.iter_mut().enumerate() {
            let scale = float_at(nested, runs.place((index + (at * step) as u64) / block * 4));
            operands.scale = float_at(map, usize::from(bytes[at * step]) * 4) * scale + offset;
        }
    }

    fn zeros(&self, matrix: u64, row: u64, group: u64, operands: &mut [GroupOperands]) {
        let (zeros, runs) = self.stored(QuantizedPart::Zeros);
        match self.layout.zeros {
            ZeroPoints::None => {}
            ZeroPoints::Bytes => {
                let (bytes, step, _) = self.strided(QuantizedPart::Zeros, 1, matrix, row, group);
                for (at, operands) in operands.iter_mut().enumerate() {
                    operands.other = f32::from(bytes[at * step] as i8);
                }
            }
            ZeroPoints::Numbers(number) => {
                let (bytes, step, _) = self.strided(QuantizedPart::Zeros, number.bytes(), matrix, row, group);
                let count = operands.len();
                widen(number, bytes, step, |at, value| operands[at].other = value, count);
            }
            ZeroPoints::Packed { bits, along, across, interleaved, add, offset } => {
                let row = if interleaved { row / 8 * 8 + u64::from(INTERLEAVED[row as usize % 8]) } else { row };
                let (word, shift) = (row * u64::from(bits) / 32, row * u64::from(bits) % 32);
                let from = runs.place((word * along + group * across) * 4);
                let step = if runs.count > 1 { runs.step() } else { across as usize * 4 };
                let next = along as usize * 4;
                let crosses = shift + u64::from(bits) > 32;
                for (at, operands) in operands.iter_mut().enumerate() {
                    let at = from + at * step;
                    let high = if crosses { word_at(zeros, at + next) } else { 0 };
                    let field = ((u64::from(high) << 32 | u64::from(word_at(zeros, at))) >> shift) as u32;
                    let zero = field.wrapping_add(add) & ((1 << bits) - 1);
                    operands.other = zero as f32 - offset as f32;
                }
            }
        }
    }
}

/// The word at `at`, which is there.
fn word_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn float_at(bytes: &[u8], at: usize) -> f32 {
    f32::from_bits(word_at(bytes, at))
}
