//! MXFP8: E4M3 with an E8M0 scale for 32 elements (compressed-tensors, transformers, ComfyUI).

use super::scheme::{Answer, Found, Refusal, Scheme, comfy_format, ending, groups, layout, matrix, tiles, wrong_shape};
use crate::codec::quantized::{Grid, Number, Packing, Real};
use crate::model::quantization::site::Site;

pub const SCHEME: Scheme = Scheme {
    name: "MXFP8",
    endings: &[
        ending(".weight", ".weight_scale", ".weight"),
        ending(".weight", ".weight_scale_inv", ".weight"),
        ending("", "_scale_inv", ""),
        // DeepSeek-V4 uses this name for the scales of larger blocks too, which the scheme FP8 recognises.
        ending(".weight", ".scale", ".weight"),
    ],
    recognise,
};

/// Elements that share a scale.
const GROUP: u64 = 32;

fn recognise(site: &Site) -> Answer {
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
            groups(all, GROUP, count)
        }
        Some("mxfp8") => {
            let padded = tiles(rows, count).ok_or_else(|| wrong_shape(site))?;
            if site.scales.shape != padded || site.values.shape.len() != 2 {
                return Err(wrong_shape(site));
            }
            Grid::Tiled { block: GROUP, groups: padded[1] }
        }
        Some(format) => return Err(Refusal::new("a format of ComfyUI that is not known", format)),
    };
    let layout = layout(all, Packing::Stream { bits: 8, row_bytes: cols }, Number::E4M3, grid, Real::E8M0);
    Ok(Some(Found::new(site, "MXFP8", site.values.shape.to_vec(), layout)))
}
