//! Schemes whose codes are integers in the rows of the matrix.

use super::scheme::{
    Answer, FoundWeight, WeightRefusal, WeightSite, integer_name, plain_layout, row_groups, unknown_comfy, wide,
    wrong_companion, wrong_content,
};
use crate::codec::quantized::{CodeNumber, CodePacking, DequantizeFormula, QuantizedPart, ScaleType, ZeroPoints};
use crate::model::quantization::site::SiteTensor;

const ZEROS: &str = ".weight_zero_point";
const SHAPE: &str = ".weight_shape";
const INDEX: &str = ".weight_g_idx";
const BIASES: &str = ".biases";

/// INT8 of compressed-tensors (`int-quantized`): signed bytes with a scale for the tensor, each row or each group.
pub fn recognise_int8(site: &WeightSite) -> Answer {
    if site.values.dtype != "I8" || !site.is_certain() {
        return Ok(None);
    }
    if let Some(format) = site.comfy_format() {
        return Err(unknown_comfy(format));
    }
    let scale = site.wide_scales()?;
    let all = site.matrix(site.values.shape)?;
    let packing = CodePacking::Stream { bits: 8, row_bytes: all[2] };
    let mut layout = plain_layout(all, packing, CodeNumber::Signed, site.grid(site.values.shape)?, scale);
    let zeros = site.optional(ZEROS, "I8", site.scales.shape)?;
    if zeros.is_some() {
        layout.zeros = ZeroPoints::Bytes;
    }
    let found = FoundWeight::new(site, "INT8", site.values.shape.to_vec(), layout);
    Ok(Some(with_zeros(found, zeros, site)))
}

/// INT4 of ModelOpt: two rows of signed codes in a byte, with a scale for each group of columns.
pub fn recognise_int4_pairs(site: &WeightSite) -> Answer {
    let ("U8", Some(scale)) = (site.values.dtype, wide(site.scales.dtype)) else { return Ok(None) };
    let ([outer @ .., pairs, cols], [of_scales @ .., rows, count]) = (site.values.shape, site.scales.shape) else {
        return Ok(None);
    };
    if outer != of_scales || pairs.checked_mul(2) != Some(*rows) {
        return Err(site.wrong_shape());
    }
    let size = site.group_size(*cols, *count)?;
    let shape = [outer, &[*rows, *cols]].concat();
    let all = site.matrix(&shape)?;
    let grid = row_groups(all, size, *count);
    let layout = plain_layout(all, CodePacking::RowPairs, CodeNumber::Signed, grid, scale);
    Ok(Some(FoundWeight::new(site, "INT4", shape, layout)))
}

/// Integers of compressed-tensors (`pack-quantized`): codes in 32-bit words along the rows, with an offset.
pub fn recognise_packed(site: &WeightSite) -> Answer {
    if site.values.dtype != "I32" {
        return Ok(None);
    }
    let ([rows, words], Some(scale)) = (site.values.shape, wide(site.scales.dtype)) else {
        return Err(site.wrong_scales());
    };
    let (rows, words) = (*rows, *words);
    let shape = site.required(SHAPE)?;
    let [named_rows, cols] = site.dimensions(SHAPE, shape)?;
    if named_rows != rows {
        return Err(wrong_content(SHAPE, format!("{:?}", [named_rows, cols])));
    }
    let row = PackedRow { cols, words };
    let fitting: Vec<u64> = (1..=8).filter(|bits| row.is_dense(*bits) || row.is_aligned(*bits)).collect();
    let named = site.config.bits(|bits| fitting.contains(&bits));
    let Some(bits) = named.or(fitting.first().copied().filter(|_| fitting.len() == 1)) else {
        let found = format!("{:?} for {cols} columns", site.values.shape);
        return Err(WeightRefusal::unknown("a width of codes that is not certain", found));
    };
    let (width, row_bytes) = (bits as u32, words.saturating_mul(4));
    let packing = match (row.is_dense(bits), row.is_aligned(bits)) {
        // Both packings are the same.
        (true, true) if 32 % bits == 0 || words <= 1 => CodePacking::Stream { bits: width, row_bytes },
        (true, true) => {
            return Err(WeightRefusal::unknown(
                "a packing that is not certain",
                format!("{bits} bits, {cols} columns"),
            ));
        }
        (true, false) => CodePacking::Stream { bits: width, row_bytes },
        (false, _) => CodePacking::Words { bits: width, row_bytes },
    };
    let all = [1, rows, cols];
    let grid = match site.scales.shape {
        [below, count] if *below == rows && *count > 1 => row_groups(all, site.group_size(cols, *count)?, *count),
        _ => site.grid(&[rows, cols])?,
    };
    let mut layout = plain_layout(all, packing, CodeNumber::Offset, grid, scale);
    let zeros = site.companion(ZEROS);
    if let Some(zeros) = zeros {
        let along = grid.groups();
        let offset = 1 << (bits - 1);
        layout.zeros = match (zeros.dtype, zeros.shape) {
            ("I32", shape) if shape == [rows.saturating_mul(bits).div_ceil(32), along] => {
                ZeroPoints::Packed { bits: width, along, across: 1, interleaved: false, add: 0, offset }
            }
            // Versions before 0.10.
            ("I8", shape) if shape == site.scales.shape => ZeroPoints::Bytes,
            _ => return Err(wrong_companion(ZEROS, zeros)),
        };
    }
    let index = site.optional(INDEX, "I32", &[cols])?;
    layout.group_index = index.is_some();
    let found = FoundWeight::new(site, integer_name(bits), vec![rows, cols], layout);
    Ok(Some(with_zeros(found, zeros, site).with(QuantizedPart::GroupIndex, index)))
}

/// The weight with its zero points. Symmetric ones, which old versions stored too, do not make it asymmetric.
fn with_zeros(found: FoundWeight, zeros: Option<SiteTensor>, site: &WeightSite) -> FoundWeight {
    let mut found = found.with(QuantizedPart::Zeros, zeros);
    found.asymmetric &= site.config.symmetry() != Some(true);
    found
}

/// Codes in 32-bit words.
struct PackedRow {
    cols: u64,
    words: u64,
}

impl PackedRow {
    /// Whether the codes may be a stream of bits.
    fn is_dense(&self, bits: u64) -> bool {
        self.cols.checked_mul(bits).map(|bits| bits.div_ceil(32)) == Some(self.words)
    }

    /// Whether each word may have as many codes as fit into it.
    fn is_aligned(&self, bits: u64) -> bool {
        self.cols.div_ceil(32 / bits) == self.words
    }
}

/// MLX: codes of 2 to 6 or 8 bits in 32-bit words, with a scale and a bias for each group; and its MX and NVFP4 modes,
/// which have no biases.
pub fn recognise_mlx(site: &WeightSite) -> Answer {
    if site.values.dtype != "U32" {
        return Ok(None);
    }
    let Some((size, bits, mode)) = site.config.mlx(site.stem) else {
        let found = "no quantization in config.json";
        return Err(WeightRefusal::unknown("group size and bits that are not given", found));
    };
    let ([outer @ .., words], [of_scales @ .., count]) = (site.values.shape, site.scales.shape) else {
        return Err(site.wrong_shape());
    };
    let cols = count.checked_mul(size);
    let is_row = cols.and_then(|cols| cols.checked_mul(bits)) == words.checked_mul(32);
    let cols = cols.filter(|_| outer == of_scales && is_row).ok_or_else(|| site.wrong_shape())?;
    let shape = [outer, &[cols]].concat();
    let all = site.matrix(&shape)?;
    let (number, scale, dtype) = match (mode, bits, size, site.scales.dtype) {
        ("affine", 2..=6 | 8, ..) => (CodeNumber::Unsigned, site.wide_scales()?, integer_name(bits)),
        ("mxfp4", 4, 32, "U8") => (CodeNumber::E2M1, ScaleType::E8M0, "MXFP4"),
        ("mxfp8", 8, 32, "U8") => (CodeNumber::E4M3, ScaleType::E8M0, "MXFP8"),
        ("nvfp4", 4, 16, "U8") => (CodeNumber::E2M1, ScaleType::E4M3, "NVFP4"),
        _ => {
            let found = format!("{mode}, {bits} bits, groups of {size}");
            return Err(WeightRefusal::unknown("a mode that is not known", found));
        }
    };
    let packing = CodePacking::Stream { bits: bits as u32, row_bytes: words.saturating_mul(4) };
    let mut layout = plain_layout(all, packing, number, row_groups(all, size, *count), scale);
    if mode != "affine" {
        return Ok(Some(FoundWeight::new(site, dtype, shape, layout)));
    }
    let biases = site.required(BIASES)?;
    let bias = wide(biases.dtype).filter(|_| biases.shape == site.scales.shape);
    layout.bias = bias.ok_or_else(|| wrong_companion(BIASES, biases))?;
    layout.formula = DequantizeFormula::ScaleThenAdd;
    Ok(Some(FoundWeight::new(site, dtype, shape, layout).with(QuantizedPart::Biases, Some(biases))))
}

/// SLM1: signed bytes with a scale for each row (`q8_0`), or signed 4-bit codes, two in a byte, with a scale for each
/// block of a row (`q4_0`). They differ from the block types of ggml that have these names.
pub fn recognise_slm(site: &WeightSite) -> Answer {
    let (bits, in_byte) = match (site.values.dtype, site.scales.dtype) {
        ("I8", "F32") => (8, 1),
        ("U8", "F32") => (4, 2),
        _ => return Ok(None),
    };
    let ([outer @ .., row_bytes], [of_scales @ .., count]) = (site.values.shape, site.scales.shape) else {
        return Err(site.wrong_shape());
    };
    let cols = row_bytes.checked_mul(in_byte).filter(|cols| outer == of_scales && cols.checked_rem(*count) == Some(0));
    let cols = cols.ok_or_else(|| site.wrong_shape())?;
    let shape = [outer, &[cols]].concat();
    let all = site.matrix(&shape)?;
    let packing = CodePacking::Stream { bits, row_bytes: *row_bytes };
    let grid = row_groups(all, (cols / count).max(1), *count);
    let layout = plain_layout(all, packing, CodeNumber::Signed, grid, ScaleType::F32);
    Ok(Some(FoundWeight::new(site, integer_name(bits.into()), shape, layout)))
}
