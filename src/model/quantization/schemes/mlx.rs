//! MLX: codes of 2 to 6 or 8 bits in 32-bit words along the rows, with a scale and a bias for each group; and its MX
//! and NVFP4 modes, which have no biases.

use super::scheme::{
    Answer, FoundWeight, QuantizationScheme, WeightRefusal, ending, group_count, layout, matrix, missing,
    parameter_integer, wide, wrong_companion, wrong_shape,
};
use crate::codec::quantized::{CodeNumber, CodePacking, DequantizeFormula, QuantizedPart, ScaleType};
use crate::model::quantization::site::WeightSite;

pub const SCHEME: QuantizationScheme =
    QuantizationScheme { name: "MLX", endings: &[ending(".weight", ".scales", ".weight")], recognise: recognise_mlx };

const BIASES: &str = ".biases";

fn recognise_mlx(site: &WeightSite) -> Answer {
    if site.values.dtype != "U32" {
        return Ok(None);
    }
    let Some((size, bits, mode)) = site.config.mlx(site.stem) else {
        return Err(WeightRefusal::new("group size and bits that are not given", "no quantization in config.json"));
    };
    let ([outer @ .., words], [of_scales @ .., count]) = (site.values.shape, site.scales.shape) else {
        return Err(wrong_shape(site));
    };
    let cols = count.checked_mul(size);
    let is_row = cols.and_then(|cols| cols.checked_mul(bits)) == words.checked_mul(32);
    let cols = cols.filter(|_| outer == of_scales && is_row).ok_or_else(|| wrong_shape(site))?;
    let shape = [outer, &[cols]].concat();
    let all = matrix(&shape).ok_or_else(|| wrong_shape(site))?;
    let (number, scale, dtype) = match (mode, bits, size, site.scales.dtype) {
        ("affine", 2..=6 | 8, ..) => match wide(site.scales.dtype) {
            Some(scale) => (CodeNumber::Unsigned, scale, parameter_integer(bits)),
            None => return Err(wrong_companion("scales", site.scales)),
        },
        ("mxfp4", 4, 32, "U8") => (CodeNumber::E2M1, ScaleType::E8M0, "MXFP4"),
        ("mxfp8", 8, 32, "U8") => (CodeNumber::E4M3, ScaleType::E8M0, "MXFP8"),
        ("nvfp4", 4, 16, "U8") => (CodeNumber::E2M1, ScaleType::E4M3, "NVFP4"),
        _ => {
            return Err(WeightRefusal::new(
                "a mode that is not known",
                format!("{mode}, {bits} bits, groups of {size}"),
            ));
        }
    };
    let packing = CodePacking::Stream { bits: bits as u32, row_bytes: words.saturating_mul(4) };
    let mut layout = layout(all, packing, number, group_count(all, size, *count), scale);
    let mut biases = None;
    if mode == "affine" {
        let found = site.companion(BIASES).ok_or_else(|| missing(BIASES))?;
        match wide(found.dtype) {
            Some(bias) if found.shape == site.scales.shape => layout.bias = bias,
            _ => return Err(wrong_companion(BIASES, found)),
        }
        layout.formula = DequantizeFormula::ScaleThenAdd;
        biases = Some(found);
    }
    let mut found = FoundWeight::new(site, dtype, shape, layout).with(QuantizedPart::Biases, biases);
    found.parameters.asymmetric = biases.is_some();
    Ok(Some(found))
}
