//! FP8: 8-bit floats with a scale for the tensor, for each row, or for each block (DeepSeek, Qwen, vLLM, ModelOpt,
//! compressed-tensors, ComfyUI).

use super::scheme::{
    Answer, FoundWeight, QuantizationScheme, WeightRefusal, comfy_format, ending, grid, is_certain, layout, matrix,
    real, wrong_companion, wrong_shape,
};
use crate::codec::quantized::{CodeNumber, CodePacking, DequantizeFormula, ScaleType};
use crate::model::quantization::site::WeightSite;

pub const SCHEME: QuantizationScheme = QuantizationScheme {
    name: "FP8",
    endings: &[
        ending(".weight", ".weight_scale_inv", ".weight"),
        // Fused experts.
        ending("", "_scale_inv", ""),
        ending(".weight", ".weight_scale", ".weight"),
        ending("", "_scale", ""),
        // Fused experts of ModelOpt.
        ending("", EXPERTS, ""),
        // DeepSeek-V4.
        ending(".weight", ".scale", ".weight"),
        // ComfyUI, and Mistral.
        ending(".weight", ".scale_weight", ".weight"),
        ending(".weight", ".qscale_weight", ".weight"),
    ],
    recognise: recognise_fp8,
};

/// The ending of the names of the scales of fused experts of ModelOpt. There is one scale for all experts, or one for
/// each expert.
const EXPERTS: &str = "_weight_scale";

fn recognise_fp8(site: &WeightSite) -> Answer {
    let (number, comfy) = match site.values.dtype {
        "F8_E4M3" => (CodeNumber::E4M3, "float8_e4m3fn"),
        "F8_E5M2" => (CodeNumber::E5M2, "float8_e5m2"),
        "F8_E4M3FNUZ" => (CodeNumber::E4M3Fnuz, "float8_e4m3fnuz"),
        "F8_E5M2FNUZ" => (CodeNumber::E5M2Fnuz, "float8_e5m2fnuz"),
        _ => return Ok(None),
    };
    // Scales of one byte are those of MXFP8.
    if site.scales.dtype == "U8" || !is_certain(site) {
        return Ok(None);
    }
    if let Some(format) = comfy_format(site)
        && format != comfy
    {
        return if format == "mxfp8" {
            Ok(None)
        } else {
            Err(WeightRefusal::new("a format of ComfyUI that is not known", format))
        };
    }
    let experts = site.values.shape.first().copied().unwrap_or_default();
    if site.ending.scales == EXPERTS && ![1, experts].contains(&site.scales.elements()) {
        return Err(wrong_shape(site));
    }
    let Some(scale) = real(site.scales.dtype).filter(|real| *real != ScaleType::E4M3) else {
        return Err(wrong_companion("scales", site.scales));
    };
    let all = matrix(site.values.shape).ok_or_else(|| wrong_shape(site))?;
    let [_, rows, cols] = all;
    if scale == ScaleType::E8M0 && site.scales.shape.ends_with(&[rows, cols.div_ceil(32)]) {
        // MXFP8 whose scales have their own dtype.
        return Ok(None);
    }
    let grid = grid(site.values.shape, site.scales.shape, site.config).ok_or_else(|| wrong_shape(site))?;
    let mut layout = layout(all, CodePacking::Stream { bits: 8, row_bytes: cols }, number, grid, scale);
    if site.config.is_inverse() {
        layout.formula = DequantizeFormula::Divide;
    }
    let dtype = match number {
        CodeNumber::E5M2 => "F8_E5M2",
        CodeNumber::E4M3Fnuz => "F8_E4M3FNUZ",
        CodeNumber::E5M2Fnuz => "F8_E5M2FNUZ",
        _ => "F8_E4M3",
    };
    Ok(Some(FoundWeight::new(site, dtype, site.values.shape.to_vec(), layout)))
}
