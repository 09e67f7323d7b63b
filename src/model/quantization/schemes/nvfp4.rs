//! NVFP4: E2M1 with an E4M3 scale for 16 elements and a float32 scale for the tensor (ModelOpt, compressed-tensors,
//! ComfyUI).

use super::scheme::{
    Answer, FoundWeight, QuantizationScheme, WeightRefusal, comfy_format, ending, group_count, layout, matrix, missing,
    pairs, tiles, wrong_companion, wrong_shape,
};
use crate::codec::quantized::{CodeNumber, CodePacking, GlobalScale, QuantizedPart, ScaleGrid, ScaleType};
use crate::model::quantization::site::WeightSite;

pub const SCHEME: QuantizationScheme = QuantizationScheme {
    name: "NVFP4",
    endings: &[
        ending(".weight", ".weight_scale", ".weight"),
        ending(".weight_packed", ".weight_scale", ".weight"),
        // Fused experts.
        ending("", "_weight_scale", ""),
    ],
    recognise: recognise_nvfp4,
};

/// Elements that share a scale.
const GROUP: u64 = 16;

fn recognise_nvfp4(site: &WeightSite) -> Answer {
    let ("U8" | "F4", "F8_E4M3") = (site.values.dtype, site.scales.dtype) else { return Ok(None) };
    let names = [".weight_scale_2", ".weight_global_scale", "_weight_scale_2"];
    let global = names.iter().find_map(|name| Some((*name, site.companion(name)?)));
    let (name, global) = global.ok_or_else(|| missing(names[0]))?;
    let (outer, bytes, cols) = pairs(site.values).ok_or_else(|| wrong_shape(site))?;
    let mut shape = [outer, &[cols]].concat();
    let mut all = matrix(&shape).ok_or_else(|| wrong_shape(site))?;
    let count = cols.div_ceil(GROUP);
    let comfy = comfy_format(site);
    let (packing, grid) = match (comfy.as_deref(), site.scales.shape) {
        (None, scales) if scales == [outer, &[count]].concat() => {
            (CodePacking::Stream { bits: 4, row_bytes: bytes }, group_count(all, GROUP, count))
        }
        // ModelOpt packs the fused experts of some models along their rows.
        (None, [matrices, below, beside])
            if site.values.dtype == "U8"
                && site.values.shape[..] == [*matrices, below.saturating_mul(GROUP / 2), *beside] =>
        {
            shape = vec![*matrices, below.saturating_mul(GROUP), *beside];
            all = [*matrices, below.saturating_mul(GROUP), *beside];
            let strides = [below.saturating_mul(*beside), *beside, 1];
            (CodePacking::RowPairs, ScaleGrid::Blocks { block: [GROUP, 1], groups: *beside, strides })
        }
        (None, _) => return Err(wrong_shape(site)),
        (Some("nvfp4"), scales) => {
            let padded = tiles(all[1], count).ok_or_else(|| wrong_shape(site))?;
            if scales != padded || shape.len() != 2 {
                return Err(wrong_shape(site));
            }
            (CodePacking::HighFirst { row_bytes: bytes }, ScaleGrid::Tiled { block: GROUP, groups: padded[1] })
        }
        (Some(format), _) => return Err(WeightRefusal::new("a format of ComfyUI that is not known", format)),
    };
    let each = match global.elements() {
        1 => false,
        count if count == all[0] => true,
        _ => return Err(wrong_companion(name, global)),
    };
    if global.dtype != "F32" {
        return Err(wrong_companion(name, global));
    }
    let mut layout = layout(all, packing, CodeNumber::E2M1, grid, ScaleType::E4M3);
    layout.global =
        if name == ".weight_global_scale" { GlobalScale::Over { each } } else { GlobalScale::Times { each } };
    Ok(Some(FoundWeight::new(site, "NVFP4", shape, layout).with(QuantizedPart::Global, Some(global))))
}
