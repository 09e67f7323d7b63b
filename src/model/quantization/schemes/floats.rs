//! Schemes whose codes are floats of 8 or 4 bits.

use super::scheme::{
    Answer, EXPERTS, FoundWeight, WeightSite, code_pairs, missing_companion, plain_layout, real, row_groups,
    scale_tiles, unknown_comfy, wrong_companion,
};
use crate::codec::quantized::{
    CodeNumber, CodePacking, DequantizeFormula, GlobalScale, QuantizedPart, ScaleGrid, ScaleType,
};

/// Elements that share a scale in MXFP4 and MXFP8.
const MX_GROUP: u64 = 32;

/// Elements that share a scale in NVFP4.
const NV_GROUP: u64 = 16;

/// The dtypes of FP8 codes, their numbers, and their formats in ComfyUI.
const FP8: [(&str, CodeNumber, &str); 4] = [
    ("F8_E4M3", CodeNumber::E4M3, "float8_e4m3fn"),
    ("F8_E5M2", CodeNumber::E5M2, "float8_e5m2"),
    ("F8_E4M3FNUZ", CodeNumber::E4M3Fnuz, "float8_e4m3fnuz"),
    ("F8_E5M2FNUZ", CodeNumber::E5M2Fnuz, "float8_e5m2fnuz"),
];

/// FP8: 8-bit floats with a scale for the tensor, for each row, or for each block (DeepSeek, Qwen, vLLM, ModelOpt,
/// compressed-tensors, ComfyUI).
pub fn recognise_fp8(site: &WeightSite) -> Answer {
    let codes = FP8.into_iter().find(|codes| codes.0 == site.values.dtype);
    // Scales of one byte are those of MXFP8.
    let codes = codes.filter(|_| site.scales.dtype != "U8" && site.is_certain());
    let Some((dtype, number, comfy)) = codes else { return Ok(None) };
    match site.comfy_format() {
        Some(format) if format == "mxfp8" => return Ok(None),
        Some(format) if format != comfy => return Err(unknown_comfy(format)),
        _ => {}
    }
    // Fused experts of ModelOpt have one scale for all experts, or one for each.
    let experts = site.values.shape.first().copied().unwrap_or_default();
    if site.ending.scales == EXPERTS && ![1, experts].contains(&site.scales.elements()) {
        return Err(site.wrong_shape());
    }
    let Some(scale) = real(site.scales.dtype).filter(|real| *real != ScaleType::E4M3) else {
        return Err(site.wrong_scales());
    };
    let all @ [_, rows, cols] = site.matrix(site.values.shape)?;
    if scale == ScaleType::E8M0 && site.scales.shape.ends_with(&[rows, cols.div_ceil(MX_GROUP)]) {
        // MXFP8 whose scales have their own dtype.
        return Ok(None);
    }
    let grid = site.grid(site.values.shape)?;
    let mut layout = plain_layout(all, CodePacking::Stream { bits: 8, row_bytes: cols }, number, grid, scale);
    if site.config.is_inverse() {
        layout.formula = DequantizeFormula::Divide;
    }
    Ok(Some(FoundWeight::new(site, dtype, site.values.shape.to_vec(), layout)))
}

/// MXFP8: E4M3 with an E8M0 scale for 32 elements (compressed-tensors, transformers, ComfyUI).
pub fn recognise_mxfp8(site: &WeightSite) -> Answer {
    if site.values.dtype != "F8_E4M3" || !matches!(site.scales.dtype, "U8" | "F8_E8M0") {
        return Ok(None);
    }
    let all @ [_, rows, cols] = site.matrix(site.values.shape)?;
    let count = cols.div_ceil(MX_GROUP);
    let grid = match (site.comfy_format(), site.values.shape, site.scales.shape) {
        (None, [outer @ .., _], scales) if scales == [outer, &[count]].concat() => row_groups(all, MX_GROUP, count),
        (Some(format), ..) if format != "mxfp8" => return Err(unknown_comfy(format)),
        (Some(_), [_, _], [below, beside]) if scale_tiles(rows, count) == Some([*below, *beside]) => {
            ScaleGrid::Tiled { block: MX_GROUP, groups: *beside }
        }
        _ => return Err(site.wrong_shape()),
    };
    let packing = CodePacking::Stream { bits: 8, row_bytes: cols };
    let layout = plain_layout(all, packing, CodeNumber::E4M3, grid, ScaleType::E8M0);
    Ok(Some(FoundWeight::new(site, "MXFP8", site.values.shape.to_vec(), layout)))
}

/// MXFP4: E2M1 with an E8M0 scale for 32 elements (gpt-oss, compressed-tensors, DeepSeek-V4).
///
/// The dimensions of gpt-oss weights are in the order in which they are stored: `[experts, rows, columns]`.
/// transformers transposes the matrices.
pub fn recognise_mxfp4(site: &WeightSite) -> Answer {
    match (site.values.dtype, site.scales.dtype) {
        ("U8", "U8" | "F8_E8M0") | ("I8" | "F4", "F8_E8M0") => {}
        _ => return Ok(None),
    }
    if let Some(format) = site.comfy_format() {
        return Err(unknown_comfy(format));
    }
    let (outer, bytes, cols) = match (site.values.shape, site.scales.shape) {
        // The blocks of a row are an additional dimension.
        ([outer @ .., count, 16], scales) if scales.split_last() == Some((count, outer)) => {
            (outer, count.saturating_mul(MX_GROUP / 2), count.saturating_mul(MX_GROUP))
        }
        _ => code_pairs(site.values).ok_or_else(|| site.wrong_shape())?,
    };
    let count = cols / MX_GROUP;
    if count.checked_mul(MX_GROUP) != Some(cols) || site.scales.shape.split_last() != Some((&count, outer)) {
        return Err(site.wrong_shape());
    }
    let shape = [outer, &[cols]].concat();
    let all = site.matrix(&shape)?;
    let packing = CodePacking::Stream { bits: 4, row_bytes: bytes };
    let layout = plain_layout(all, packing, CodeNumber::E2M1, row_groups(all, MX_GROUP, count), ScaleType::E8M0);
    Ok(Some(FoundWeight::new(site, "MXFP4", shape, layout)))
}

/// NVFP4: E2M1 with an E4M3 scale for 16 elements and a float32 scale for the tensor (ModelOpt, compressed-tensors,
/// ComfyUI).
pub fn recognise_nvfp4(site: &WeightSite) -> Answer {
    let ("U8" | "F4", "F8_E4M3") = (site.values.dtype, site.scales.dtype) else { return Ok(None) };
    let names = [".weight_scale_2", ".weight_global_scale", "_weight_scale_2"];
    let global = names.iter().find_map(|name| Some((*name, site.companion(name)?)));
    let (name, global) = global.ok_or_else(|| missing_companion(names[0]))?;
    let (outer, bytes, cols) = code_pairs(site.values).ok_or_else(|| site.wrong_shape())?;
    let mut shape = [outer, &[cols]].concat();
    let mut all = site.matrix(&shape)?;
    let count = cols.div_ceil(NV_GROUP);
    let (packing, grid) = match (site.comfy_format(), site.scales.shape) {
        (None, scales) if scales == [outer, &[count]].concat() => {
            (CodePacking::Stream { bits: 4, row_bytes: bytes }, row_groups(all, NV_GROUP, count))
        }
        // ModelOpt packs the fused experts of some models along their rows.
        (None, [matrices, below, beside])
            if site.values.dtype == "U8"
                && site.values.shape[..] == [*matrices, below.saturating_mul(NV_GROUP / 2), *beside] =>
        {
            all = [*matrices, below.saturating_mul(NV_GROUP), *beside];
            shape = all.to_vec();
            let strides = [below.saturating_mul(*beside), *beside, 1];
            (CodePacking::RowPairs, ScaleGrid::Blocks { block: [NV_GROUP, 1], groups: *beside, strides })
        }
        (Some(format), _) if format != "nvfp4" => return Err(unknown_comfy(format)),
        (Some(_), [below, beside]) if shape.len() == 2 && scale_tiles(all[1], count) == Some([*below, *beside]) => {
            (CodePacking::HighFirst { row_bytes: bytes }, ScaleGrid::Tiled { block: NV_GROUP, groups: *beside })
        }
        _ => return Err(site.wrong_shape()),
    };
    let each = match global.elements() {
        1 => false,
        count if count == all[0] => true,
        _ => return Err(wrong_companion(name, global)),
    };
    if global.dtype != "F32" {
        return Err(wrong_companion(name, global));
    }
    let mut layout = plain_layout(all, packing, CodeNumber::E2M1, grid, ScaleType::E4M3);
    layout.global =
        if name == ".weight_global_scale" { GlobalScale::Over { each } } else { GlobalScale::Times { each } };
    Ok(Some(FoundWeight::new(site, "NVFP4", shape, layout).with(QuantizedPart::Global, Some(global))))
}
