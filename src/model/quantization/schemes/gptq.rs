//! GPTQ: the matrix is transposed, and codes are streams of bits down its columns. Also AutoRound in this format.

use super::scheme::{
    Answer, FoundWeight, QuantizationScheme, WeightRefusal, ending, layout, missing, parameter_integer, wide,
    wrong_companion, wrong_shape,
};
use crate::codec::quantized::{CodeNumber, CodePacking, QuantizedPart, ScaleGrid, ZeroPoints};
use crate::model::quantization::config::GptqZeros;
use crate::model::quantization::site::WeightSite;

pub const SCHEME: QuantizationScheme = QuantizationScheme {
    name: "GPTQ",
    endings: &[ending(".qweight", ".scales", ".weight")],
    recognise: recognise_gptq,
};

const ZEROS: &str = ".qzeros";
const INDEX: &str = ".g_idx";

fn recognise_gptq(site: &WeightSite) -> Answer {
    let ("I32", [words, rows], [count, scale_rows]) = (site.values.dtype, site.values.shape, site.scales.shape) else {
        return Ok(None);
    };
    let (words, rows, count) = (*words, *rows, *count);
    if *scale_rows != rows {
        return Ok(None);
    }
    let scale = wide(site.scales.dtype).ok_or_else(|| wrong_companion("scales", site.scales))?;
    let zeros = site.companion(ZEROS).ok_or_else(|| missing(ZEROS))?;
    let [zero_groups, zero_words] = zeros.shape else { return Err(wrong_companion(ZEROS, zeros)) };
    let fits = |bits: u64| rows.checked_mul(bits).map(|bits| bits.div_ceil(32)) == Some(*zero_words);
    if zeros.dtype != "I32" || *zero_groups != count {
        return Err(wrong_companion(ZEROS, zeros));
    }
    let named = site.config.bits(fits);
    let mut fitting = [2, 3, 4, 8].into_iter().filter(|bits| fits(*bits));
    let Some(bits) = named.or_else(|| fitting.next().filter(|_| fitting.next().is_none())) else {
        return Err(wrong_companion(ZEROS, zeros));
    };
    if !matches!(bits, 2 | 3 | 4 | 8) {
        return Err(WeightRefusal::new("a width of codes that is not known", format!("{bits} bits")));
    }
    let add = match site.config.gptq_zeros() {
        GptqZeros::MinusOne => 1,
        GptqZeros::Plain => 0,
        GptqZeros::Unknown => {
            let found = site.config.text("checkpoint_format").or(site.config.text("packing_format"));
            return Err(WeightRefusal::new(
                "a checkpoint format that is not known or not given",
                found.unwrap_or("none"),
            ));
        }
    };
    let index = site.companion(INDEX);
    let cols = match index.map(|index| (index, index.dtype, index.shape)) {
        Some((_, "I32", [cols])) => *cols,
        Some((index, ..)) => return Err(wrong_companion(INDEX, index)),
        None => words.saturating_mul(32) / bits,
    };
    if cols.checked_mul(bits) != words.checked_mul(32) {
        return Err(WeightRefusal::mismatch(
            "codes of a wrong shape",
            format!("{:?} for {cols} columns", site.values.shape),
        ));
    }
    let size = site.config.group_size(cols, count).ok_or_else(|| wrong_shape(site))?;
    let grid = ScaleGrid::Blocks { block: [1, size], groups: count, strides: [0, 1, rows] };
    let bits_32 = bits as u32;
    let mut layout = layout([1, rows, cols], CodePacking::Down { bits: bits_32 }, CodeNumber::Unsigned, grid, scale);
    layout.zeros =
        ZeroPoints::Packed { bits: bits_32, along: 1, across: *zero_words, interleaved: false, add, offset: 0 };
    layout.group_index = index.is_some();
    let mut found = FoundWeight::new(site, parameter_integer(bits), vec![rows, cols], layout)
        .with(QuantizedPart::Zeros, Some(zeros))
        .with(QuantizedPart::GroupIndex, index);
    found.parameters.asymmetric = !site.config.is_symmetric();
    found.parameters.act_order = site.config.is_act_order();
    Ok(Some(found))
}
