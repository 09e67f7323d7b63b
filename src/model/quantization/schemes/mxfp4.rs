//! MXFP4: E2M1 with an E8M0 scale for 32 elements (gpt-oss, compressed-tensors, DeepSeek-V4).
//!
//! The dimensions of gpt-oss weights are in the order in which they are stored: `[experts, rows, columns]`.
//! transformers transposes the matrices.

use super::scheme::{
    Answer, FoundWeight, QuantizationScheme, WeightRefusal, comfy_format, ending, group_count, layout, matrix, pairs,
    wrong_shape,
};
use crate::codec::quantized::{CodeNumber, CodePacking, ScaleType};
use crate::model::quantization::site::WeightSite;

pub const SCHEME: QuantizationScheme = QuantizationScheme {
    name: "MXFP4",
    endings: &[
        ending("_blocks", "_scales", ""),
        // The original files of gpt-oss.
        ending(".blocks", ".scales", ""),
        ending(".weight_packed", ".weight_scale", ".weight"),
        // ModelOpt.
        ending(".weight", ".weight_scale", ".weight"),
        // DeepSeek-V4.
        ending(".weight", ".scale", ".weight"),
    ],
    recognise: recognise_mxfp4,
};

/// Elements that share a scale.
const GROUP: u64 = 32;

fn recognise_mxfp4(site: &WeightSite) -> Answer {
    match (site.values.dtype, site.scales.dtype) {
        ("U8", "U8" | "F8_E8M0") | ("I8" | "F4", "F8_E8M0") => {}
        _ => return Ok(None),
    }
    if let Some(format) = comfy_format(site) {
        return Err(WeightRefusal::new("a format of ComfyUI that is not known", format));
    }
    let (outer, bytes, cols) = match (site.values.shape, site.scales.shape) {
        // The blocks of a row are an additional dimension.
        ([outer @ .., count, 16], scales) if scales.split_last() == Some((count, outer)) => {
            (outer, count.saturating_mul(GROUP / 2), count.saturating_mul(GROUP))
        }
        _ => pairs(site.values).ok_or_else(|| wrong_shape(site))?,
    };
    let count = cols / GROUP;
    if count.checked_mul(GROUP) != Some(cols) || site.scales.shape.split_last() != Some((&count, outer)) {
        return Err(wrong_shape(site));
    }
    let shape = [outer, &[cols]].concat();
    let all = matrix(&shape).ok_or_else(|| wrong_shape(site))?;
    let packing = CodePacking::Stream { bits: 4, row_bytes: bytes };
    let layout = layout(all, packing, CodeNumber::E2M1, group_count(all, GROUP, count), ScaleType::E8M0);
    Ok(Some(FoundWeight::new(site, "MXFP4", shape, layout)))
}
