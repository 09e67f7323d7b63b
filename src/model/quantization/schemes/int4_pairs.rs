//! INT4 of ModelOpt: two rows of signed codes in a byte, with a scale for each group of columns.

use super::scheme::{Answer, FoundWeight, QuantizationScheme, ending, group_count, layout, matrix, wide, wrong_shape};
use crate::codec::quantized::{CodeNumber, CodePacking};
use crate::model::quantization::site::WeightSite;

pub const SCHEME: QuantizationScheme = QuantizationScheme {
    name: "ModelOpt INT4",
    endings: &[ending(".weight", ".weight_scale", ".weight")],
    recognise: recognise_int4_pairs,
};

fn recognise_int4_pairs(site: &WeightSite) -> Answer {
    let ("U8", Some(scale)) = (site.values.dtype, wide(site.scales.dtype)) else { return Ok(None) };
    let ([outer @ .., pairs, cols], [of_scales @ .., rows, count]) = (site.values.shape, site.scales.shape) else {
        return Ok(None);
    };
    if outer != of_scales || pairs.checked_mul(2) != Some(*rows) {
        return Err(wrong_shape(site));
    }
    let size = site.config.group_size(*cols, *count).ok_or_else(|| wrong_shape(site))?;
    let shape = [outer, &[*rows, *cols]].concat();
    let all = matrix(&shape).ok_or_else(|| wrong_shape(site))?;
    let layout = layout(all, CodePacking::RowPairs, CodeNumber::Signed, group_count(all, size, *count), scale);
    Ok(Some(FoundWeight::new(site, "INT4", shape, layout)))
}
