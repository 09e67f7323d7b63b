//! HQQ: integers of 1 to 8 bits with a float zero point and a scale for each group. Small tensors beside the codes say
//! how these are packed.
//!
//! Source: `hqq`, `hqq/core/quantize.py`, `Quantizer.quantize` and `Quantizer.dequantize`.

use super::scheme::{
    Answer, FoundWeight, WeightRefusal, WeightSite, integer_name, missing_companion, plain_layout, wide,
    wrong_companion,
};
use crate::codec::quantized::{CodeNumber, CodePacking, QuantizedPart, ScaleGrid, ScaleType, ZeroPoints};
use crate::model::quantization::site::SiteTensor;

const BITS: &str = ".nbits";
const GROUP_SIZE: &str = ".group_size";
const AXIS: &str = ".axis";
const SHAPE: &str = ".shape";
const PACKING: &str = ".packing";
const ZEROS: &str = ".zero";
const IS_VIEW: &str = ".view_as_float";
const HAS_CHANNELS: &str = ".channel_wise";

/// Old files have quantized scales or zero points, which say so with these.
const NESTED: [&str; 2] = [".quant_zero", ".quant_scale"];

/// The tensors that describe a weight and whose data is needed, and the size in bytes above which they are not read.
pub const CONTENTS: &[(&str, u64)] = &[
    (BITS, 8),
    (GROUP_SIZE, 8),
    (AXIS, 8),
    (SHAPE, 16),
    (PACKING, 32),
    (IS_VIEW, 8),
    (HAS_CHANNELS, 8),
    (NESTED[0], 8),
    (NESTED[1], 8),
];

/// The ways to pack codes: the name, the number of codes in a byte or a 32-bit word, and the widths of the codes.
const PACKINGS: [(&str, u64, &[CodeWidth]); 5] = [
    ("8bit_u8", 1, &[CodeWidth::Whole(8), CodeWidth::Whole(6), CodeWidth::Whole(5)]),
    ("4bit_u8", 2, &[CodeWidth::Whole(4)]),
    ("3bit_32", 10, &[CodeWidth::Whole(3)]),
    ("2bit_u8", 4, &[CodeWidth::Whole(2), CodeWidth::Ternary]),
    ("1bit_u8", 8, &[CodeWidth::Whole(1)]),
];

#[derive(Debug, Clone, Copy, PartialEq)]
enum CodeWidth {
    Whole(u64),
    /// Three codes, which are called codes of 1.58 bits.
    Ternary,
}

impl CodeWidth {
    fn read(site: &WeightSite, tensor: SiteTensor) -> Option<Self> {
        let bytes = site.contents(tensor)?;
        if tensor.dtype == "F32" {
            return match f32::from_le_bytes(bytes.try_into().ok()?) {
                1.58 => Some(Self::Ternary),
                bits => (1..=8).find(|whole| *whole as f32 == bits).map(Self::Whole),
            };
        }
        let bits = site.integer(tensor).and_then(|bits| u64::try_from(bits).ok())?;
        (1..=8).contains(&bits).then_some(Self::Whole(bits))
    }

    fn name(self) -> &'static str {
        match self {
            Self::Whole(bits) => integer_name(bits),
            Self::Ternary => "INT1.58",
        }
    }
}

/// The matrix that the codes are stored as. Its elements are those of the weight in the same order.
struct GroupedMatrix {
    rows: u64,
    cols: u64,
    /// The shape of the scales and zero points.
    scales: [u64; 2],
    /// Rows and columns that share a scale.
    block: [u64; 2],
    group: Option<u64>,
}

impl GroupedMatrix {
    fn read(site: &WeightSite, [rows, cols]: [u64; 2]) -> Result<Self, WeightRefusal> {
        let axis = site.required(AXIS)?;
        let axis = site.integer(axis).ok_or_else(|| wrong_companion(AXIS, axis))?;
        let group = site.companion(GROUP_SIZE);
        let group = group.map(|size| site.integer(size).ok_or_else(|| wrong_companion(GROUP_SIZE, size)));
        let elements = rows
            .checked_mul(cols)
            .ok_or_else(|| WeightRefusal::mismatch("a shape that is too large", format!("shape {:?}", [rows, cols])))?;
        if site.flag(HAS_CHANNELS, true)? {
            let group = match group.transpose()? {
                None => None,
                Some(size) => {
                    let fitting = u64::try_from(size).ok().filter(|size| elements.checked_rem(*size) == Some(0));
                    Some(fitting.ok_or_else(|| {
                        let found = format!("group_size {size} for a shape of {:?}", [rows, cols]);
                        WeightRefusal::mismatch("a group size that does not divide the weight", found)
                    })?)
                }
            };
            return match (axis, group) {
                (0, None) => Ok(Self { rows, cols, scales: [1, cols], block: [rows.max(1), 1], group: None }),
                (1, None) => Ok(Self { rows, cols, scales: [rows, 1], block: [1, cols.max(1)], group: None }),
                (0, Some(size)) => {
                    let groups = elements / size;
                    Ok(Self { rows: size, cols: groups, scales: [1, groups], block: [size, 1], group })
                }
                (1, Some(size)) => {
                    let groups = elements / size;
                    Ok(Self { rows: groups, cols: size, scales: [groups, 1], block: [1, size], group })
                }
                _ => Err(WeightRefusal::unknown("an axis that is not known", format!("axis {axis}"))),
            };
        }
        Ok(Self { rows, cols, scales: [1, 1], block: [rows.max(1), cols.max(1)], group: None })
    }

    /// The type of scales or zero points, which must have the right shape. One for the whole weight has no dimensions.
    fn numbers(&self, ending: &str, tensor: SiteTensor) -> Result<ScaleType, WeightRefusal> {
        let number = wide(tensor.dtype).ok_or_else(|| wrong_companion(ending, tensor))?;
        if tensor.shape == self.scales || self.scales == [1, 1] && tensor.shape.is_empty() {
            return Ok(number);
        }
        let name = ending.trim_start_matches('.');
        let found = format!("{name} {:?} instead of {:?}", tensor.shape, self.scales);
        Err(WeightRefusal::mismatch("scales or zero points that do not fit the groups", found))
    }

    fn grid(&self) -> ScaleGrid {
        let [down, beside] = self.scales.map(|count| u64::from(count > 1));
        let groups = self.cols.div_ceil(self.block[1]);
        ScaleGrid::Blocks { block: self.block, groups, strides: [0, down, beside] }
    }
}

pub fn recognise_hqq(site: &WeightSite) -> Answer {
    if ![BITS, SHAPE, PACKING, ZEROS].iter().any(|ending| site.companion(ending).is_some()) {
        return Ok(None);
    }
    for ending in NESTED {
        if site.flag(ending, false)? {
            return Err(nested(format!("{} is 1", ending.trim_start_matches('.'))));
        }
    }
    let shape = site.required(SHAPE)?;
    let shape = site.dimensions(SHAPE, shape)?;
    let width = site.required(BITS)?;
    let width = CodeWidth::read(site, width).ok_or_else(|| wrong_bits(site, width))?;
    let matrix = GroupedMatrix::read(site, shape)?;
    let zeros = site.companion(ZEROS).ok_or_else(|| missing_companion(ZEROS))?;
    let scale = matrix.numbers(site.ending.scales, site.scales)?;
    let zero = matrix.numbers(ZEROS, zeros)?;
    let (packing, number) = packing(site, width, &matrix)?;
    let mut layout = plain_layout([1, matrix.rows, matrix.cols], packing, number, matrix.grid(), scale);
    layout.zeros = ZeroPoints::Numbers(zero);
    let mut found =
        FoundWeight::new(site, width.name(), shape.to_vec(), layout).with(QuantizedPart::Zeros, Some(zeros));
    found.group = matrix.group;
    Ok(Some(found))
}

/// Scales that are codes too, in files that have no scales as numbers.
pub fn refuse_nested(site: &WeightSite) -> Answer {
    Err(nested(site.scales.name))
}

fn nested(found: impl Into<String>) -> WeightRefusal {
    WeightRefusal::unknown("scales or zero points that are quantized too", found)
}

fn wrong_bits(site: &WeightSite, width: SiteTensor) -> WeightRefusal {
    let float = site.contents(width).filter(|_| width.dtype == "F32").and_then(|bytes| bytes.try_into().ok());
    let bits = match (site.integer(width), float.map(f32::from_le_bytes)) {
        (Some(bits), _) => bits.to_string(),
        (_, Some(bits)) => bits.to_string(),
        _ => return wrong_companion(BITS, width),
    };
    WeightRefusal::unknown("a width of codes that is not known", format!("nbits {bits}"))
}

/// How the codes are stored, which must have the dtype and the shape that belong to this.
fn packing(
    site: &WeightSite,
    width: CodeWidth,
    matrix: &GroupedMatrix,
) -> Result<(CodePacking, CodeNumber), WeightRefusal> {
    let GroupedMatrix { rows, cols, .. } = *matrix;
    let SiteTensor { dtype, shape, .. } = site.values;
    let wrong = || {
        let found = format!("{dtype} {shape:?} for a matrix of {:?}", [rows, cols]);
        WeightRefusal::mismatch("codes of a wrong dtype or shape", found)
    };
    let Some(named) = site.companion(PACKING) else {
        // The numbers are stored as they are.
        let is_whole = shape == [rows, cols];
        return match (dtype, wide(dtype)) {
            (_, Some(number)) if is_whole => {
                let row_bytes = cols.checked_mul(number.bytes()).ok_or_else(wrong)?;
                Ok((CodePacking::Numbers { number, row_bytes }, CodeNumber::Packed))
            }
            ("U8", None) if is_whole => Ok((CodePacking::Stream { bits: 8, row_bytes: cols }, CodeNumber::Unsigned)),
            _ => Err(wrong()),
        };
    };
    let text = site.contents(named).filter(|_| named.dtype == "U8").ok_or_else(|| wrong_companion(PACKING, named))?;
    let Some((name, count, widths)) = PACKINGS.into_iter().find(|(name, ..)| name.as_bytes() == text) else {
        let found = String::from_utf8_lossy(text);
        return Err(WeightRefusal::unknown("a packing that is not known", found));
    };
    if !widths.contains(&width) {
        let found = format!("{name} for {}", width.name());
        return Err(WeightRefusal::mismatch("a packing that does not fit the width of the codes", found));
    }
    let word = if count == 10 { 4 } else { 1 };
    // A view of the codes as floats has another number of columns.
    let (stored, bytes) = match site.flag(IS_VIEW, false)? {
        true => wide(dtype).map(|number| (number.bytes(), dtype)).ok_or_else(wrong)?,
        false if word == 4 => (4, "I32"),
        false => (1, "U8"),
    };
    let row_bytes = cols.checked_mul(word).filter(|bytes| bytes % stored == 0).ok_or_else(wrong)?;
    let is_right = dtype == bytes && *shape == [rows.div_ceil(count), row_bytes / stored];
    if !is_right || word == 1 && !rows.is_multiple_of(count) {
        return Err(wrong());
    }
    let packing = match count {
        1 => CodePacking::Stream { bits: 8, row_bytes },
        2 => CodePacking::RowParts { bits: 4 },
        4 => CodePacking::RowParts { bits: 2 },
        8 => CodePacking::RowParts { bits: 1 },
        _ => CodePacking::RowParts { bits: 3 },
    };
    Ok((packing, CodeNumber::Unsigned))
}
