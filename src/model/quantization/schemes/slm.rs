//! SLM1: signed bytes with a scale for each row (`q8_0`), or signed 4-bit codes, two in a byte, with a scale for each
//! block of a row (`q4_0`). They differ from the block types of ggml that have these names.

use super::scheme::{Answer, Found, Scheme, ending, groups, layout, matrix, wrong_shape};
use crate::codec::quantized::{Number, Packing, Real};
use crate::format::slm::SCALES;
use crate::model::quantization::site::Site;

pub const SCHEME: Scheme = Scheme { name: "SLM1", endings: &[ending("", SCALES, "")], recognise };

fn recognise(site: &Site) -> Answer {
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
    let packing = Packing::Stream { bits, row_bytes: *row_bytes };
    let grid = groups(all, (cols / count).max(1), *count);
    Ok(Some(Found::new(site, dtype, shape, layout(all, packing, Number::Signed, grid, Real::F32))))
}
