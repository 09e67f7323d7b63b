//! bitsandbytes: 4-bit codes (NF4 and FP4) in blocks that run across the rows, and INT8 with a scale per row.

use super::scheme::{
    Answer, CodeDtypes, FoundWeight, QUANT_STATE, QuantizationScheme, WeightEndings, WeightRefusal, ending, layout,
    matrix, missing, wrong_companion, wrong_shape,
};
use crate::codec::quantized::{CodeNumber, CodePacking, DequantizeFormula, QuantizedPart, ScaleGrid, ScaleType};
use crate::model::quantization::site::WeightSite;
use serde_json::Value;

pub const FOUR_BITS: QuantizationScheme = QuantizationScheme {
    name: "bitsandbytes 4-bit",
    endings: &[WeightEndings { values: "", scales: ".absmax", logical: "", codes: CodeDtypes::Any }],
    recognise: four_bits,
};

pub const EIGHT_BITS: QuantizationScheme = QuantizationScheme {
    name: "bitsandbytes INT8",
    endings: &[ending(".weight", ".SCB", ".weight")],
    recognise: eight_bits,
};

const MAP: &str = ".quant_map";
const NESTED_SCALES: &str = ".nested_absmax";
const NESTED_MAP: &str = ".nested_quant_map";
const FORMAT: &str = ".weight_format";

fn four_bits(site: &WeightSite) -> Answer {
    let state = ["nf4", "fp4"].into_iter().find_map(|kind| site.companion(&[QUANT_STATE, kind].concat()));
    let state = state.ok_or_else(|| missing("quant_state"))?;
    let Some(WeightState { dtype, shape, block, nested_block, offset }) =
        site.contents(state).and_then(WeightState::parse)
    else {
        return Err(wrong_companion("quant_state", state));
    };
    let Some(count) = shape.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim)) else {
        return Err(wrong_shape(site));
    };
    let map = site.companion(MAP).ok_or_else(|| missing(MAP))?;
    if (map.dtype, map.elements()) != ("F32", 16) {
        return Err(wrong_companion(MAP, map));
    }
    let blocks = count.div_ceil(block);
    if site.scales.elements() != blocks || site.values.bytes < count.div_ceil(2) {
        return Err(wrong_shape(site));
    }
    let nested = site.companion(NESTED_SCALES).zip(site.companion(NESTED_MAP));
    let scale = match (site.scales.dtype, nested) {
        ("F32", _) => ScaleType::F32,
        ("U8", Some((scales, map))) => {
            let is_map = (map.dtype, map.elements()) == ("F32", 256);
            if !is_map || (scales.dtype, scales.elements()) != ("F32", blocks.div_ceil(nested_block)) {
                return Err(wrong_companion(NESTED_SCALES, scales));
            }
            ScaleType::Nested { block: nested_block, offset }
        }
        ("U8", None) => return Err(missing(NESTED_SCALES)),
        _ => return Err(wrong_companion("absmax", site.scales)),
    };
    // Blocks do not end at the end of a row, so the weight is decoded as one row.
    let grid = ScaleGrid::Blocks { block: [1, block], groups: blocks, strides: [0, 0, 1] };
    let packing = CodePacking::HighFirst { row_bytes: site.values.bytes };
    let layout = layout([1, 1, count], packing, CodeNumber::Map, grid, scale);
    let mut found = FoundWeight::new(site, dtype, shape, layout).with(QuantizedPart::Map, Some(map));
    if let (ScaleType::Nested { .. }, Some((scales, map))) = (scale, nested) {
        found = found.with(QuantizedPart::NestedScales, Some(scales)).with(QuantizedPart::NestedMap, Some(map));
        found.parameters.nested = true;
    }
    Ok(Some(found))
}

/// Maximum number of dimensions, as in torch.
const DIMS_MAX: usize = 64;

/// The description of a weight, in JSON.
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
        let number = |key: &str| value.get(key).and_then(Value::as_u64).filter(|number| *number > 0);
        let dtype = match value.get("quant_type")?.as_str()? {
            "nf4" => "NF4",
            "fp4" => "FP4",
            _ => return None,
        };
        let shape = value.get("shape")?.as_array().filter(|shape| shape.len() <= DIMS_MAX)?;
        Some(Self {
            dtype,
            shape: shape.iter().map(Value::as_u64).collect::<Option<_>>()?,
            block: number("blocksize")?,
            nested_block: number("nested_blocksize").unwrap_or(256),
            offset: value.get("nested_offset").and_then(Value::as_f64).unwrap_or(0.0) as f32,
        })
    }
}

fn eight_bits(site: &WeightSite) -> Answer {
    if site.values.dtype != "I8" {
        return Ok(None);
    }
    // Other numbers are layouts for particular processors.
    if let Some(format) = site.companion(FORMAT)
        && site.contents(format) != Some(&[0])
    {
        return Err(WeightRefusal::new("a layout that is not known", "weight_format is not 0"));
    }
    let Some(all @ [1, rows, cols]) = matrix(site.values.shape) else { return Err(wrong_shape(site)) };
    if site.scales.elements() != rows {
        return Err(wrong_shape(site));
    }
    if site.scales.dtype != "F32" {
        return Err(wrong_companion("SCB", site.scales));
    }
    let grid = ScaleGrid::Blocks { block: [1, cols.max(1)], groups: 1, strides: [0, 1, 0] };
    let packing = CodePacking::Stream { bits: 8, row_bytes: cols };
    let mut layout = layout(all, packing, CodeNumber::Signed, grid, ScaleType::F32);
    layout.formula = DequantizeFormula::ScaleTwice(1.0 / 127.0);
    Ok(Some(FoundWeight::new(site, "INT8", site.values.shape.to_vec(), layout)))
}
