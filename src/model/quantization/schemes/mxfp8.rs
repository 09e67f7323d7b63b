//! MXFP8: E4M3 with an E8M0 scale for 32 elements (compressed-tensors, transformers, ComfyUI).

use super::scheme::{
    Answer, FoundWeight, QuantizationScheme, WeightRefusal, comfy_format, ending, group_count, layout, matrix, tiles,
    wrong_shape,
};
use crate::codec::quantized::{CodeNumber, CodePacking, ScaleGrid, ScaleType};
use crate::model::quantization::site::WeightSite;

pub const SCHEME: QuantizationScheme = QuantizationScheme {
    name: "MXFP8",
    endings: &[
        ending(".weight", ".weight_scale", ".weight"),
        ending(".weight", ".weight_scale_inv", ".weight"),
        ending("", "_scale_inv", ""),
        // DeepSeek-V4 uses this name for the scales of larger blocks too, which the scheme FP8 recognises.
        ending(".weight", ".scale", ".weight"),
    ],
    recognise: recognise_mxfp8,
};

/// Elements that share a scale.
const GROUP: u64 = 32;

fn recognise_mxfp8(site: &WeightSite) -> Answer {
    if site.values.dtype != "F8_E4M3" || !matches!(site.scales.dtype, "U8" | "F8_E8M0") {
        return Ok(None);
    }
    let all = matrix(site.values.shape).ok_or_else(|| wrong_shape(site))?;
    let [_, rows, cols] = all;
    let count = cols.div_ceil(GROUP);
    let grid = match comfy_format(site).as_deref() {
        None => {
            let [outer @ .., _] = site.values.shape else { return Err(wrong_shape(site)) };
            if site.scales.shape != [outer, &[count]].concat() {
                return Err(wrong_shape(site));
            }
            group_count(all, GROUP, count)
        }
        Some("mxfp8") => {
            let padded = tiles(rows, count).ok_or_else(|| wrong_shape(site))?;
            if site.scales.shape != padded || site.values.shape.len() != 2 {
                return Err(wrong_shape(site));
            }
            ScaleGrid::Tiled { block: GROUP, groups: padded[1] }
        }
        Some(format) => return Err(WeightRefusal::new("a format of ComfyUI that is not known", format)),
    };
    let layout = layout(all, CodePacking::Stream { bits: 8, row_bytes: cols }, CodeNumber::E4M3, grid, ScaleType::E8M0);
    Ok(Some(FoundWeight::new(site, "MXFP8", site.values.shape.to_vec(), layout)))
}
