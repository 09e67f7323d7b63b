//! Integers of compressed-tensors (`pack-quantized`): codes in 32-bit words along the rows, with an offset.

use super::scheme::{
    Answer, FoundWeight, QuantizationScheme, WeightRefusal, ending, grid, group_count, layout, missing,
    parameter_integer, wide, wrong_companion, wrong_shape,
};
use crate::codec::quantized::{CodeNumber, CodePacking, QuantizedPart, ScaleGrid, ZeroPoints};
use crate::model::quantization::site::{WeightMember, WeightSite};

pub const SCHEME: QuantizationScheme = QuantizationScheme {
    name: "pack-quantized",
    endings: &[ending(".weight_packed", ".weight_scale", ".weight")],
    recognise: recognise_packed,
};

const SHAPE: &str = ".weight_shape";
const ZEROS: &str = ".weight_zero_point";
const INDEX: &str = ".weight_g_idx";

fn recognise_packed(site: &WeightSite) -> Answer {
    if site.values.dtype != "I32" {
        return Ok(None);
    }
    let ([rows, words], Some(scale)) = (site.values.shape, wide(site.scales.dtype)) else {
        return Err(wrong_companion("weight_scale", site.scales));
    };
    let (rows, words) = (*rows, *words);
    let shape = site.companion(SHAPE).ok_or_else(|| missing(SHAPE))?;
    let Some(cols) = shape_of(site, shape).filter(|shape| shape[0] == rows).map(|shape| shape[1]) else {
        return Err(wrong_companion(SHAPE, shape));
    };
    let dense = |bits: u64| cols.checked_mul(bits).map(|bits| bits.div_ceil(32)) == Some(words);
    let aligned = |bits: u64| cols.div_ceil(32 / bits) == words;
    let named = site.config.bits(|bits| dense(bits) || aligned(bits));
    let mut fitting = (1..=8).filter(|bits| dense(*bits) || aligned(*bits));
    let Some(bits) = named.or_else(|| fitting.next().filter(|_| fitting.next().is_none())) else {
        let (values, cols) = (site.values.shape, cols);
        return Err(WeightRefusal::new(
            "a width of codes that is not certain",
            format!("{values:?} for {cols} columns"),
        ));
    };
    let row_bytes = words.saturating_mul(4);
    let packing = match (dense(bits), aligned(bits)) {
        // Both packings are the same.
        (true, _) if 32 % bits == 0 || words <= 1 => CodePacking::Stream { bits: bits as u32, row_bytes },
        (true, false) => CodePacking::Stream { bits: bits as u32, row_bytes },
        (false, _) => CodePacking::Words { bits: bits as u32, row_bytes },
        (true, true) => {
            return Err(WeightRefusal::new("a packing that is not certain", format!("{bits} bits, {cols} columns")));
        }
    };
    let all = [1, rows, cols];
    let grid = match site.scales.shape {
        [below, count] if *below == rows && *count > 1 => {
            let size = site.config.group_size(cols, *count).ok_or_else(|| wrong_shape(site))?;
            group_count(all, size, *count)
        }
        scales => match grid(&[rows, cols], scales, site.config) {
            Some(grid) => grid,
            None => return Err(wrong_shape(site)),
        },
    };
    let mut layout = layout(all, packing, CodeNumber::Offset, grid, scale);
    let zeros = site.companion(ZEROS);
    if let Some(zeros) = zeros {
        let count = match grid {
            ScaleGrid::Blocks { groups, .. } => groups,
            ScaleGrid::Tiled { .. } => 0,
        };
        let packed = [rows.saturating_mul(bits).div_ceil(32), count];
        layout.zeros = match (zeros.dtype, zeros.shape) {
            ("I32", shape) if shape == packed => {
                let bits = bits as u32;
                ZeroPoints::Packed {
                    bits,
                    along: count,
                    across: 1,
                    interleaved: false,
                    add: 0,
                    offset: 1 << (bits - 1),
                }
            }
            // Versions before 0.10.
            ("I8", shape) if shape == site.scales.shape => ZeroPoints::Bytes,
            _ => return Err(wrong_companion(ZEROS, zeros)),
        };
    }
    let index = site.companion(INDEX);
    if let Some(index) = index
        && (index.dtype, index.shape) != ("I32", &[cols])
    {
        return Err(wrong_companion(INDEX, index));
    }
    layout.group_index = index.is_some();
    let mut found = FoundWeight::new(site, parameter_integer(bits), vec![rows, cols], layout)
        .with(QuantizedPart::Zeros, zeros)
        .with(QuantizedPart::GroupIndex, index);
    (found.parameters.asymmetric, found.parameters.act_order) = (zeros.is_some(), index.is_some());
    Ok(Some(found))
}

/// The two dimensions that a tensor of I64 or I32 contains.
fn shape_of(site: &WeightSite, member: WeightMember) -> Option<[u64; 2]> {
    let bytes = site.contents(member)?;
    let dim = |at: usize| match member.dtype {
        "I64" => bytes.as_chunks::<8>().0.get(at).map(|dim| i64::from_le_bytes(*dim)),
        "I32" => bytes.as_chunks::<4>().0.get(at).map(|dim| i64::from(i32::from_le_bytes(*dim))),
        _ => None,
    };
    (member.shape == [2]).then_some([u64::try_from(dim(0)?).ok()?, u64::try_from(dim(1)?).ok()?])
}
