//! AWQ, version "gemm": the matrix is transposed, and eight codes are interleaved in a word.

use super::scheme::{
    Answer, FoundWeight, QuantizationScheme, WeightRefusal, ending, layout, missing, wide, wrong_companion, wrong_shape,
};
use crate::codec::quantized::{CodeNumber, CodePacking, QuantizedPart, ScaleGrid, ZeroPoints};
use crate::model::quantization::site::WeightSite;

pub const SCHEME: QuantizationScheme =
    QuantizationScheme { name: "AWQ", endings: &[ending(".qweight", ".scales", ".weight")], recognise: recognise_awq };

const ZEROS: &str = ".qzeros";

fn recognise_awq(site: &WeightSite) -> Answer {
    let ("I32", [cols, words], [count, rows]) = (site.values.dtype, site.values.shape, site.scales.shape) else {
        return Ok(None);
    };
    let version = site.config.text("version").unwrap_or("gemm").to_ascii_lowercase();
    let is_awq = site.config.text("quant_method").is_some_and(|method| method.eq_ignore_ascii_case("awq"));
    // In GPTQ, codes and scales have the same number of columns. If the matrix has no rows, this is also so in AWQ.
    if words.checked_mul(8) != Some(*rows) || rows == words && !is_awq {
        return if is_awq { Err(WeightRefusal::new("a version of AWQ that is not known", version)) } else { Ok(None) };
    }
    if is_awq && version != "gemm" {
        return Err(WeightRefusal::new("a version of AWQ that is not known", version));
    }
    let scale = wide(site.scales.dtype).ok_or_else(|| wrong_companion("scales", site.scales))?;
    let zeros = site.companion(ZEROS).ok_or_else(|| missing(ZEROS))?;
    if (zeros.dtype, zeros.shape) != ("I32", &[*count, *words]) {
        return Err(wrong_companion(ZEROS, zeros));
    }
    let size = site.config.group_size(*cols, *count).ok_or_else(|| wrong_shape(site))?;
    let grid = ScaleGrid::Blocks { block: [1, size], groups: *count, strides: [0, 1, *rows] };
    let mut layout = layout([1, *rows, *cols], CodePacking::Across, CodeNumber::Unsigned, grid, scale);
    layout.zeros = ZeroPoints::Packed { bits: 4, along: 1, across: *words, interleaved: true, add: 0, offset: 0 };
    let mut found = FoundWeight::new(site, "INT4", vec![*rows, *cols], layout).with(QuantizedPart::Zeros, Some(zeros));
    found.parameters.asymmetric = true;
    Ok(Some(found))
}
