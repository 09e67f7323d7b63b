//! SLM1: signed bytes with a scale for each row (`q8_0`), or signed 4-bit codes, two in a byte, with a scale for each
//! block of a row (`q4_0`). They differ from the block types of ggml that have these names.

use super::scheme::{Answer, FoundWeight, QuantizationScheme, ending, group_count, layout, matrix, wrong_shape};
use crate::codec::quantized::{CodeNumber, CodePacking, ScaleType};
use crate::format::slm::SCALES;
use crate::model::quantization::site::WeightSite;

pub const SCHEME: QuantizationScheme =
    QuantizationScheme { name: "SLM1", endings: &[ending("", SCALES, "")], recognise: recognise_slm };

fn recognise_slm(site: &WeightSite) -> Answer {
    let (bits, in_byte, dtype) = match (site.values.dtype, site.scales.dtype) {
        ("I8", "F32") => (8, 1, "INT8"),
        ("U8", "F32") => (4, 2, "INT4"),
        _ => return Ok(None),
    };
    let ([outer @ .., row_bytes], [of_scales @ .., count]) = (site.values.shape, site.scales.shape) else {
        return Err(wrong_shape(site));
    };
    let cols = row_bytes.checked_mul(in_byte).filter(|cols| outer == of_scales && cols.checked_rem(*count) == Some(0));
    let cols = cols.ok_or_else(|| wrong_shape(site))?;
    let shape = [outer, &[cols]].concat();
    let all = matrix(&shape).ok_or_else(|| wrong_shape(site))?;
    let packing = CodePacking::Stream { bits, row_bytes: *row_bytes };
    let grid = group_count(all, (cols / count).max(1), *count);
    Ok(Some(FoundWeight::new(site, dtype, shape, layout(all, packing, CodeNumber::Signed, grid, ScaleType::F32))))
}
