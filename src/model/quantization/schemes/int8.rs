//! INT8 of compressed-tensors (`int-quantized`): signed bytes with a scale for the tensor, each row or each group.

use super::scheme::{
    Answer, FoundWeight, QuantizationScheme, WeightRefusal, comfy_format, ending, grid, is_certain, layout, matrix,
    wide, wrong_companion, wrong_shape,
};
use crate::codec::quantized::{CodeNumber, CodePacking, QuantizedPart, ZeroPoints};
use crate::model::quantization::site::WeightSite;

pub const SCHEME: QuantizationScheme = QuantizationScheme {
    name: "int-quantized",
    endings: &[ending(".weight", ".weight_scale", ".weight"), ending("", "_scale", "")],
    recognise: recognise_int8,
};

const ZEROS: &str = ".weight_zero_point";

fn recognise_int8(site: &WeightSite) -> Answer {
    if site.values.dtype != "I8" || !is_certain(site) {
        return Ok(None);
    }
    if let Some(format) = comfy_format(site) {
        return Err(WeightRefusal::new("a format of ComfyUI that is not known", format));
    }
    let scale = wide(site.scales.dtype).ok_or_else(|| wrong_companion("weight_scale", site.scales))?;
    let all = matrix(site.values.shape);
    let Some((all, grid)) = all.zip(grid(site.values.shape, site.scales.shape, site.config)) else {
        return Err(wrong_shape(site));
    };
    let mut layout = layout(all, CodePacking::Stream { bits: 8, row_bytes: all[2] }, CodeNumber::Signed, grid, scale);
    let zeros = site.companion(ZEROS);
    if let Some(zeros) = zeros {
        if (zeros.dtype, zeros.shape) != ("I8", site.scales.shape) {
            return Err(wrong_companion(ZEROS, zeros));
        }
        layout.zeros = ZeroPoints::Bytes;
    }
    let mut found =
        FoundWeight::new(site, "INT8", site.values.shape.to_vec(), layout).with(QuantizedPart::Zeros, zeros);
    found.parameters.asymmetric = zeros.is_some();
    Ok(Some(found))
}
