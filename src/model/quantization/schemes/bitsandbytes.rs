//! bitsandbytes: 4-bit codes (NF4 and FP4) in blocks that run across the rows, and INT8 with a scale per row.

use super::scheme::{Answer, FoundWeight, WeightRefusal, WeightSite, missing_companion, plain_layout, wrong_companion};
use crate::codec::quantized::{CodeNumber, CodePacking, DequantizeFormula, QuantizedPart, ScaleGrid, ScaleType};
use serde_json::Value;

const STATES: [&str; 2] = [".quant_state.bitsandbytes__nf4", ".quant_state.bitsandbytes__fp4"];
const MAP: &str = ".quant_map";
const NESTED_SCALES: &str = ".nested_absmax";
const NESTED_MAP: &str = ".nested_quant_map";
const FORMAT: &str = ".weight_format";

pub fn recognise_four_bits(site: &WeightSite) -> Answer {
    let state = STATES.iter().find_map(|ending| site.companion(ending));
    let state = state.ok_or_else(|| missing_companion("quant_state"))?;
    let Some(WeightState { dtype, shape, block, nested_block, offset }) =
        site.contents(state).and_then(WeightState::parse)
    else {
        return Err(wrong_companion("quant_state", state));
    };
    let count = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim));
    let count = count.ok_or_else(|| site.wrong_shape())?;
    let map = site.required(MAP)?;
    if (map.dtype, map.elements()) != ("F32", 16) {
        return Err(wrong_companion(MAP, map));
    }
    let blocks = count.div_ceil(block);
    if site.scales.elements() != blocks || site.values.bytes < count.div_ceil(2) {
        return Err(site.wrong_shape());
    }
    // Blocks do not end at the end of a row, so the weight is decoded as one row.
    let grid = ScaleGrid::Blocks { block: [1, block], groups: blocks, strides: [0, 0, 1] };
    let packing = CodePacking::HighFirst { row_bytes: site.values.bytes };
    let mut layout = plain_layout([1, 1, count], packing, CodeNumber::Map, grid, ScaleType::F32);
    if site.scales.dtype == "F32" {
        return Ok(Some(FoundWeight::new(site, dtype, shape, layout).with(QuantizedPart::Map, Some(map))));
    }
    if site.scales.dtype != "U8" {
        return Err(site.wrong_scales());
    }
    let (Some(scales), Some(nested_map)) = (site.companion(NESTED_SCALES), site.companion(NESTED_MAP)) else {
        return Err(missing_companion(NESTED_SCALES));
    };
    let is_map = (nested_map.dtype, nested_map.elements()) == ("F32", 256);
    if !is_map || (scales.dtype, scales.elements()) != ("F32", blocks.div_ceil(nested_block)) {
        return Err(wrong_companion(NESTED_SCALES, scales));
    }
    layout.scale = ScaleType::Nested { block: nested_block, offset };
    let found = FoundWeight::new(site, dtype, shape, layout)
        .with(QuantizedPart::Map, Some(map))
        .with(QuantizedPart::NestedScales, Some(scales))
        .with(QuantizedPart::NestedMap, Some(nested_map));
    Ok(Some(found))
}

/// Maximum number of dimensions, as in torch.
const DIMS_MAX: usize = 64;

struct WeightState {
    dtype: &'static str,
    shape: Vec<u64>,
    block: u64,
    nested_block: u64,
    offset: f32,
}

impl WeightState {
    fn parse(bytes: &[u8]) -> Option<Self> {
        let value: Value = serde_json::from_slice(bytes).ok()?;
        let sizes = ["blocksize", "nested_blocksize"].map(|key| value.get(key).and_then(Value::as_u64));
        let [block, nested_block] = sizes.map(|size| size.filter(|size| *size > 0));
        let dtype = match value.get("quant_type")?.as_str()? {
            "nf4" => "NF4",
            "fp4" => "FP4",
            _ => return None,
        };
        let shape = value.get("shape")?.as_array().filter(|shape| shape.len() <= DIMS_MAX)?;
        Some(Self {
            dtype,
            shape: shape.iter().map(Value::as_u64).collect::<Option<_>>()?,
            block: block?,
            nested_block: nested_block.unwrap_or(256),
            offset: value.get("nested_offset").and_then(Value::as_f64).unwrap_or(0.0) as f32,
        })
    }
}

pub fn recognise_eight_bits(site: &WeightSite) -> Answer {
    if site.values.dtype != "I8" {
        return Ok(None);
    }
    // Other numbers are layouts for particular processors.
    if let Some(format) = site.companion(FORMAT)
        && site.contents(format) != Some(&[0])
    {
        return Err(WeightRefusal::unknown("a layout that is not known", "weight_format is not 0"));
    }
    let all @ [1, rows, cols] = site.matrix(site.values.shape)? else { return Err(site.wrong_shape()) };
    if site.scales.elements() != rows {
        return Err(site.wrong_shape());
    }
    if site.scales.dtype != "F32" {
        return Err(site.wrong_scales());
    }
    let grid = ScaleGrid::Blocks { block: [1, cols.max(1)], groups: 1, strides: [0, 1, 0] };
    let packing = CodePacking::Stream { bits: 8, row_bytes: cols };
    let mut layout = plain_layout(all, packing, CodeNumber::Signed, grid, ScaleType::F32);
    layout.formula = DequantizeFormula::ScaleTwice(1.0 / 127.0);
    Ok(Some(FoundWeight::new(site, "INT8", site.values.shape.to_vec(), layout)))
}
