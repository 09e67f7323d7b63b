//! Schemes whose codes are integers in 32-bit words down the columns of the matrix, which is transposed.

use super::scheme::{
    Answer, FoundWeight, WeightRefusal, WeightSite, integer_name, missing_companion, plain_layout, wrong_companion,
};
use crate::codec::quantized::{CodeNumber, CodePacking, QuantizedPart, ScaleGrid, ZeroPoints};
use crate::model::quantization::config::GptqZeros;

const ZEROS: &str = ".qzeros";
const INDEX: &str = ".g_idx";

/// AWQ, version "gemm": eight codes of neighbouring rows are interleaved in a word.
pub fn recognise_awq(site: &WeightSite) -> Answer {
    let ("I32", [cols, words], [count, rows]) = (site.values.dtype, site.values.shape, site.scales.shape) else {
        return Ok(None);
    };
    let version = site.config.text("version").unwrap_or("gemm").to_ascii_lowercase();
    let is_awq = site.config.text("quant_method").is_some_and(|method| method.eq_ignore_ascii_case("awq"));
    // In GPTQ, codes and scales have the same number of columns. If the matrix has no rows, this is also so in AWQ.
    let fits = words.checked_mul(8) == Some(*rows) && (rows != words || is_awq);
    if is_awq && (!fits || version != "gemm") {
        return Err(WeightRefusal::unknown("a version of AWQ that is not known", version));
    }
    if !fits {
        return Ok(None);
    }
    let scale = site.wide_scales()?;
    let zeros = site.optional(ZEROS, "I32", &[*count, *words])?.ok_or_else(|| missing_companion(ZEROS))?;
    let grid =
        ScaleGrid::Blocks { block: [1, site.group_size(*cols, *count)?], groups: *count, strides: [0, 1, *rows] };
    let mut layout = plain_layout([1, *rows, *cols], CodePacking::Across, CodeNumber::Unsigned, grid, scale);
    layout.zeros = ZeroPoints::Packed { bits: 4, along: 1, across: *words, interleaved: true, add: 0, offset: 0 };
    Ok(Some(FoundWeight::new(site, "INT4", vec![*rows, *cols], layout).with(QuantizedPart::Zeros, Some(zeros))))
}

/// GPTQ: codes are streams of bits down the columns. Also AutoRound in this format.
pub fn recognise_gptq(site: &WeightSite) -> Answer {
    let ("I32", [words, rows], [count, scale_rows]) = (site.values.dtype, site.values.shape, site.scales.shape) else {
        return Ok(None);
    };
    let (words, rows, count) = (*words, *rows, *count);
    if *scale_rows != rows {
        return Ok(None);
    }
    let scale = site.wide_scales()?;
    let zeros = site.required(ZEROS)?;
    let ("I32", [zero_groups, zero_words]) = (zeros.dtype, zeros.shape) else {
        return Err(wrong_companion(ZEROS, zeros));
    };
    let fitting = (1..=8).filter(|bits| rows.checked_mul(*bits).map(|bits| bits.div_ceil(32)) == Some(*zero_words));
    let fitting: Vec<u64> = fitting.filter(|_| *zero_groups == count).collect();
    let named = site.config.bits(|bits| fitting.contains(&bits));
    let mut known = fitting.iter().filter(|bits| matches!(bits, 2 | 3 | 4 | 8));
    let Some(bits) = named.or_else(|| known.next().filter(|_| known.next().is_none()).copied()) else {
        return Err(wrong_companion(ZEROS, zeros));
    };
    if !matches!(bits, 2 | 3 | 4 | 8) {
        return Err(WeightRefusal::unknown("a width of codes that is not known", format!("{bits} bits")));
    }
    let add = match site.config.gptq_zeros() {
        GptqZeros::MinusOne => 1,
        GptqZeros::Plain => 0,
        GptqZeros::Unknown => {
            let found = site.config.text("checkpoint_format").or(site.config.text("packing_format"));
            return Err(match found {
                Some(found) => WeightRefusal::unknown("a checkpoint format that is not known", found),
                None => {
                    WeightRefusal::unknown("the checkpoint format is not given", "config.json has none, or is missing")
                }
            });
        }
    };
    let index = site.companion(INDEX);
    let cols = match index.map(|index| (index, index.dtype, index.shape)) {
        Some((_, "I32", [cols])) => *cols,
        Some((index, ..)) => return Err(wrong_companion(INDEX, index)),
        None => words.saturating_mul(32) / bits,
    };
    if cols.checked_mul(bits) != words.checked_mul(32) {
        let found = format!("{:?} for {cols} columns", site.values.shape);
        return Err(WeightRefusal::mismatch("codes of a wrong shape", found));
    }
    let grid = ScaleGrid::Blocks { block: [1, site.group_size(cols, count)?], groups: count, strides: [0, 1, rows] };
    let (dtype, bits, across) = (integer_name(bits), bits as u32, *zero_words);
    let mut layout = plain_layout([1, rows, cols], CodePacking::Down { bits }, CodeNumber::Unsigned, grid, scale);
    layout.zeros = ZeroPoints::Packed { bits, along: 1, across, interleaved: false, add, offset: 0 };
    layout.group_index = index.is_some();
    let mut found = FoundWeight::new(site, dtype, vec![rows, cols], layout)
        .with(QuantizedPart::Zeros, Some(zeros))
        .with(QuantizedPart::GroupIndex, index);
    // Symmetric weights have zero points too.
    (found.asymmetric, found.act_order) = (site.config.symmetry() != Some(true), site.config.is_act_order);
    Ok(Some(found))
}
