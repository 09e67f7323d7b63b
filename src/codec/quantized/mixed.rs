//! Groups of codes of different widths down the columns of the stored matrix, with half-precision arithmetic.

use super::F32;
use super::layout::{CodeNumber, CodePacking, MixedColumns, Parts, QuantizedPart, TOO_LARGE};
use super::needs::ByteRuns;
use super::numbers::CodeDecoder;
use super::transposed::{ROWS_AT_ONCE, transpose};
use crate::codec::{elements, f16};
use std::ops::Range;

/// The widths of codes that a group can have.
const WIDTHS: [u64; 6] = [2, 3, 4, 5, 6, 8];

/// The codes of a row that have the same width and share a scale.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CodeGroup {
    pub bits: u64,
    /// The first word of the group in a column of the stored matrix, and the number of its words.
    start: u64,
    words: u64,
    pub codes: u64,
}

impl MixedColumns {
    /// The minimum size of each part in bytes, for a matrix that is not empty. Fails with a reason if a matrix of this
    /// size cannot have such codes.
    pub(super) fn required(&self, rows: u64, cols: u64) -> Result<Parts<u64>, &'static str> {
        let Self { words, columns, groups, is_permuted } = *self;
        // A group has at least one code, and its last word may have unused bits.
        let most = cols.checked_add(groups.checked_mul(4).ok_or(TOO_LARGE)?);
        if groups == 0 || groups > cols || words < groups || most.is_none_or(|most| words > most.div_ceil(4)) {
            return Err("more groups than codes, or more words than the codes fill");
        }
        if columns < rows || !columns.is_multiple_of(8) {
            return Err("columns that are too few, or not a multiple of 8");
        }
        let sizes = words.checked_mul(columns).zip(groups.checked_mul(columns));
        let (codes, scales) = sizes.ok_or(TOO_LARGE)?;
        let mut required = [0; QuantizedPart::COUNT];
        required[QuantizedPart::Values as usize] = codes.checked_mul(4).ok_or(TOO_LARGE)?;
        required[QuantizedPart::Scales as usize] = scales / 2;
        required[QuantizedPart::NestedScales as usize] = groups * 2;
        required[QuantizedPart::CodeGroups as usize] = groups * 4;
        required[QuantizedPart::Permutation as usize] = if is_permuted { cols * 4 } else { 0 };
        Ok(required)
    }

    /// The bytes that some rows of the matrix need, from the first to the last one.
    pub(super) fn needs(&self, first: u64, last: u64, cols: u64) -> Parts<ByteRuns> {
        let Self { words, columns, groups, is_permuted } = *self;
        let mut needs = [ByteRuns::default(); QuantizedPart::COUNT];
        needs[QuantizedPart::Values as usize] =
            ByteRuns { start: first * 4, len: (last - first + 1) * 4, stride: columns * 4, count: words };
        let (start, end) = (first / 8 * 4, (last / 8 + 1) * 4);
        needs[QuantizedPart::Scales as usize] =
            ByteRuns { start, len: end - start, stride: columns / 2, count: groups };
        needs[QuantizedPart::NestedScales as usize] = ByteRuns::one(0..groups * 2);
        needs[QuantizedPart::CodeGroups as usize] = ByteRuns::one(0..groups * 4);
        if is_permuted {
            needs[QuantizedPart::Permutation as usize] = ByteRuns::one(0..cols * 4);
        }
        needs
    }

    /// Size in bytes of the codes and scales of a row of the matrix.
    pub(super) fn row_bytes(&self) -> u64 {
        self.words * 4 + self.groups.div_ceil(2)
    }
}

impl CodeGroup {
    /// The groups that [`QuantizedPart::CodeGroups`] lists: for each, the width of its codes and its first word. Fails
    /// with what is wrong if they are not those of columns with `words` words and `cols` codes. Without `cols`, the
    /// last group fills its words.
    pub fn parse(list: &[u8], words: u64, cols: Option<u64>) -> Result<Vec<Self>, String> {
        let list: Vec<[u64; 2]> = list
            .as_chunks::<4>()
            .0
            .iter()
            .map(|group| {
                let [a, b, c, d] = *group;
                [[a, b], [c, d]].map(|number| u16::from_le_bytes(number).into())
            })
            .collect();
        let mut groups: Vec<Self> = Vec::with_capacity(list.len());
        let (mut end, mut before) = (0u64, 0u64);
        for (at, [bits, start]) in list.iter().copied().enumerate() {
            let next = list.get(at + 1).map(|[_, next]| *next);
            if !WIDTHS.contains(&bits) {
                return Err(format!("group {at} has codes of {bits} bits"));
            }
            if let Some(last) = groups.last().filter(|last| last.bits < bits) {
                return Err(format!("group {at} has codes of {bits} bits, after codes of {} bits", last.bits));
            }
            if start != end || next.unwrap_or(words) <= start || next.is_some_and(|next| next >= words) {
                let next = next.unwrap_or(words);
                return Err(format!("group {at} has the rows {start} to {next} of {words}, after row {end}"));
            }
            let here = next.unwrap_or(words) - start;
            let whole = here.saturating_mul(32);
            let codes = match (next, cols) {
                (None, Some(cols)) => {
                    let rest = cols
                        .checked_sub(before)
                        .filter(|rest| rest.checked_mul(bits).map(|bits| bits.div_ceil(32)) == Some(here));
                    rest.ok_or_else(|| {
                        format!("group {at} has {here} rows for the codes {before} to {cols} of {bits} bits")
                    })?
                }
                _ if whole.is_multiple_of(bits) => whole / bits,
                _ => return Err(format!("group {at} has {here} rows, which codes of {bits} bits do not fill")),
            };
            groups.push(Self { bits, start, words: here, codes });
            (end, before) = (start + here, before + codes);
        }
        if end != words || cols.is_some_and(|cols| cols != before) {
            let cols = cols.map_or(String::new(), |cols| format!(" and {cols} codes"));
            return Err(format!("{} groups for {words} rows{cols}", groups.len()));
        }
        Ok(groups)
    }
}

/// Decodes rows of a matrix that is packed as [`CodePacking::MixedDown`].
pub(super) struct MixedDecoder<'p> {
    columns: MixedColumns,
    cols: u64,
    /// The range of rows that are decoded.
    rows: Range<u64>,
    values: (&'p [u8], ByteRuns),
    scales: (&'p [u8], ByteRuns),
    permutation: &'p [[u8; 4]],
    /// `None` if the list contradicts the matrix, because it is not the one that was checked.
    groups: Option<Vec<CodeGroup>>,
    /// A 256th of the largest scale of each group.
    units: Vec<f32>,
    decoders: [CodeDecoder; WIDTHS.len()],
    /// The words of some rows, transposed back.
    copied: Vec<u8>,
    copied_rows: Range<u64>,
    /// The scales of the groups of a row, the elements of the row before they are permuted, and half-precision numbers.
    row_scales: Vec<F32>,
    row: Vec<F32>,
    rounded: Vec<u8>,
    decoded_row: Option<u64>,
}

impl<'p> MixedDecoder<'p> {
    pub fn new(
        columns: MixedColumns,
        cols: u64,
        rows: Range<u64>,
        parts: &Parts<&'p [u8]>,
        needs: &Parts<ByteRuns>,
    ) -> Self {
        let stored = |part: QuantizedPart| (parts[part as usize], needs[part as usize]);
        let groups = CodeGroup::parse(stored(QuantizedPart::CodeGroups).0, columns.words, Some(cols)).ok();
        let mut decoder = Self {
            columns,
            cols,
            rows,
            values: stored(QuantizedPart::Values),
            scales: stored(QuantizedPart::Scales),
            permutation: stored(QuantizedPart::Permutation).0.as_chunks().0,
            groups: groups.filter(|groups| groups.len() as u64 == columns.groups),
            units: Vec::new(),
            decoders: WIDTHS.map(|bits| CodeDecoder::new(stream(bits), CodeNumber::Offset, &[])),
            copied: Vec::new(),
            copied_rows: 0..0,
            row_scales: Vec::new(),
            row: Vec::new(),
            rounded: Vec::new(),
            decoded_row: None,
        };
        let largest = stored(QuantizedPart::NestedScales).0;
        let mut units = vec![[0; 4]; largest.len() / 2];
        elements::f16(largest, units.as_flattened_mut());
        units.iter_mut().for_each(|unit| *unit = (f32::from_le_bytes(*unit) / 256.0).to_le_bytes());
        decoder.round(&mut units);
        decoder.units = units.into_iter().map(f32::from_le_bytes).collect();
        decoder
    }

    /// Writes some columns of a row.
    pub fn decode(&mut self, row: u64, cols: Range<u64>, out: &mut [F32]) {
        let Some(groups) = self.groups.take() else { return out.fill(f32::NAN.to_le_bytes()) };
        if self.decoded_row != Some(row) {
            if !self.copied_rows.contains(&row) {
                self.copy(row);
            }
            self.decode_row(row, &groups);
            self.decoded_row = Some(row);
        }
        self.groups = Some(groups);
        let cols = cols.start as usize..cols.end as usize;
        if !self.columns.is_permuted {
            return out.copy_from_slice(&self.row[cols]);
        }
        for (at, out) in self.permutation[cols].iter().zip(out) {
            let number = self.row.get(u32::from_le_bytes(*at) as usize);
            *out = number.copied().unwrap_or(f32::NAN.to_le_bytes());
        }
    }

    /// Copies the words of some rows, from `row` on.
    fn copy(&mut self, row: u64) {
        let (values, runs) = self.values;
        let end = self.rows.end.min((row / ROWS_AT_ONCE + 1) * ROWS_AT_ONCE);
        let count = (end - row) as usize;
        self.copied.resize(count * self.stride(), 0);
        let from = runs.place(row * 4);
        let stored = (0..self.columns.words as usize).map(|word| &values[from + word * runs.step()..][..count * 4]);
        transpose(stored, self.stride(), &mut self.copied);
        self.copied_rows = row..end;
    }

    /// Distance of two copied rows in bytes. Without the additional bytes, rows at distances of a power of two would
    /// compete for the same cache sets.
    fn stride(&self) -> usize {
        self.columns.words as usize * 4 + 64
    }

    /// Decodes a row to `self.row`. The product of two half-precision numbers is exact in float32, so that rounding it
    /// gives the half-precision product.
    fn decode_row(&mut self, row: u64, groups: &[CodeGroup]) {
        let (scales, runs) = self.scales;
        let from = runs.place(row / 8 * 4);
        let mut row_scales = std::mem::take(&mut self.row_scales);
        row_scales.clear();
        row_scales.extend(self.units.iter().enumerate().map(|(group, unit)| {
            let byte = scales[from + group * runs.step() + (row % 8 / 2) as usize];
            let code = f32::from(byte >> (row % 2 * 4) & 15);
            ((code + 1.0) * (code + 1.0) * unit).to_le_bytes()
        }));
        self.round(&mut row_scales);
        let words = &self.copied[(row - self.copied_rows.start) as usize * self.stride()..];
        let mut numbers = std::mem::take(&mut self.row);
        numbers.resize(self.cols as usize, [0; 4]);
        let mut rest = &mut numbers[..];
        for (CodeGroup { bits, start, words: count, codes }, scale) in groups.iter().zip(&row_scales) {
            let (here, others) = rest.split_at_mut(*codes as usize);
            let words = &words[*start as usize * 4..][..*count as usize * 4];
            if let Some(at) = WIDTHS.iter().position(|width| width == bits) {
                self.decoders[at].decode_from(stream(*bits), words, 0, here);
            }
            scale_all(here, f32::from_le_bytes(*scale));
            rest = others;
        }
        self.round(&mut numbers);
        (self.row_scales, self.row) = (row_scales, numbers);
    }

    /// Rounds numbers to half precision.
    fn round(&mut self, numbers: &mut [F32]) {
        self.rounded.resize(numbers.len() * 2, 0);
        f16::from_f32(numbers.as_flattened(), &mut self.rounded);
        elements::f16(&self.rounded, numbers.as_flattened_mut());
    }
}

/// The packing of the codes of a group, whose words are next to each other.
fn stream(bits: u64) -> CodePacking {
    CodePacking::Stream { bits: bits as u32, row_bytes: 0 }
}

vectorised! {
    fn scale_all(numbers: &mut [F32], scale: f32) {
        for number in numbers {
            *number = (f32::from_le_bytes(*number) * scale).to_le_bytes();
        }
    }
}
