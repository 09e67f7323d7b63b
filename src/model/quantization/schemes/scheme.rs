//! The type of a scheme, the result of recognition, and functions that several schemes share.

use crate::codec::quantized::{
    CodeNumber, CodePacking, DequantizeFormula, GlobalScale, Parts, QuantizedLayout, QuantizedPart, ScaleGrid,
    ScaleType, ZeroPoints,
};
use crate::model::quantization::config::QuantizationConfig;
pub use crate::model::quantization::site::{CodeDtypes, WeightEndings};
use crate::model::quantization::site::{WeightMember, WeightSite};
pub use crate::model::quantization::warnings::WeightRefusal;
use serde_json::Value;
use std::fmt;

/// A quantization scheme, and how to recognise it.
pub struct QuantizationScheme {
    /// The name for users.
    pub name: &'static str,
    /// The endings of the names of codes and scales.
    pub endings: &'static [WeightEndings],
    /// Called for codes and scales whose names fit together.
    pub recognise: fn(&WeightSite) -> Answer,
}

impl fmt::Debug for QuantizationScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

impl PartialEq for QuantizationScheme {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

pub const fn ending(values: &'static str, scales: &'static str, logical: &'static str) -> WeightEndings {
    WeightEndings { values, scales, logical, codes: CodeDtypes::Narrow }
}

/// A kind of tensors whose data is needed to recognise a weight.
pub struct NeededData {
    /// The ending of their names.
    pub ending: &'static str,
    /// The ending of the names of the codes.
    pub values: &'static str,
    /// Larger ones are not read, in bytes.
    pub max: u64,
}

/// The kinds of tensors whose data is needed to recognise a weight. Descriptions in JSON take some hundred bytes.
pub const CONTENTS: &[NeededData] = &[
    NeededData { ending: ".weight_shape", values: ".weight_packed", max: 64 },
    NeededData { ending: ".weight_format", values: ".weight", max: 16 },
    NeededData { ending: ".comfy_quant", values: ".weight", max: 4 << 10 },
    NeededData { ending: ".quant_state.bitsandbytes__nf4", values: "", max: 4 << 10 },
    NeededData { ending: ".quant_state.bitsandbytes__fp4", values: "", max: 4 << 10 },
];

/// The names of the descriptions of bitsandbytes contain this.
pub const QUANT_STATE: &str = ".quant_state.bitsandbytes__";

/// The endings of the names of other tensors that belong to a quantized weight. Its values do not depend on them.
pub const OTHERS: &[&str] = &[
    ".input_scale",
    ".input_scale_ub",
    "_input_scale",
    ".scale_input",
    ".input_global_scale",
    ".activation_scale",
    ".input_zero_point",
    ".pre_quant_scale",
    ".output_scale",
    ".qscale_act",
    // A scale of activations, in schemes that multiply 4-bit weights by FP8 activations.
    ".weight_scale_2",
    ".weight_shape",
    ".weight_g_idx",
    ".g_idx",
    ".comfy_quant",
    ".weight_format",
    ".quant_state.bitsandbytes__nf4",
    ".quant_state.bitsandbytes__fp4",
];

/// The name of a tensor that says that a model is quantized, in the old format of ComfyUI. A prefix may precede it.
pub const MARKER: &str = "scaled_fp8";

/// The endings of the names of the codes of these weights.
pub const VALUES: &[&str] = &[".weight", ".qweight", ".weight_packed", ""];

/// The result of [`QuantizationScheme::recognise`]: `None` if the tensors belong to another scheme, and an error if
/// they belong to this one and do not fit together.
pub type Answer = Result<Option<FoundWeight>, WeightRefusal>;

/// The parameters of a scheme, for users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchemeParameters {
    /// Width of a code in bits.
    pub bits: u32,
    /// Rows and columns that share a scale; the dimensions of the matrix if all do.
    pub block: [u64; 2],
    /// Whether there are zero points or biases.
    pub asymmetric: bool,
    /// Whether columns are reordered.
    pub act_order: bool,
    /// Whether the scales are quantized too.
    pub nested: bool,
    /// Whether the stored matrix is the weight times a scale for each column that belongs to the activations.
    pub smoothed: bool,
}

/// A weight that a scheme has recognised. The rest of `Weight` does not depend on the scheme.
pub struct FoundWeight {
    /// The type of the codes for users.
    pub dtype: &'static str,
    /// Logical dimensions in elements.
    pub shape: Vec<u64>,
    /// The tensors that the values are computed from.
    pub parts: Parts<Option<TensorCount>>,
    /// The formula of the values.
    pub layout: QuantizedLayout,
    /// The parameters of the scheme, for users.
    pub parameters: SchemeParameters,
}

/// The number and the size in bytes of a tensor.
#[derive(Clone, Copy)]
pub struct TensorCount {
    pub index: usize,
    pub bytes: u64,
}

impl FoundWeight {
    /// A weight with codes and scales, and without other parts.
    pub fn new(site: &WeightSite, dtype: &'static str, shape: Vec<u64>, layout: QuantizedLayout) -> Self {
        let block = match layout.grid {
            ScaleGrid::Blocks { block, .. } => block,
            ScaleGrid::Tiled { block, .. } => [1, block],
        };
        let mut parts = [None; QuantizedPart::COUNT];
        let part = |member: WeightMember| Some(TensorCount { index: member.index, bytes: member.bytes });
        parts[QuantizedPart::Values as usize] = part(site.values);
        parts[QuantizedPart::Scales as usize] = part(site.scales);
        Self { dtype, shape, parts, layout, parameters: SchemeParameters { block, ..SchemeParameters::default() } }
    }

    /// The same weight with the tensor of another part.
    pub fn with(mut self, part: QuantizedPart, member: Option<WeightMember>) -> Self {
        self.parts[part as usize] = member.map(|member| TensorCount { index: member.index, bytes: member.bytes });
        self
    }
}

/// The refusal of a shape, with the shapes that were found.
pub fn wrong_shape(site: &WeightSite) -> WeightRefusal {
    WeightRefusal::mismatch(
        "scales of a wrong shape",
        format!("{:?} for codes of {:?}", site.scales.shape, site.values.shape),
    )
}

/// The refusal of a missing tensor.
pub fn missing(name: &str) -> WeightRefusal {
    WeightRefusal::missing("a tensor that is missing", name.trim_start_matches('.'))
}

/// The refusal of a tensor with a wrong dtype or shape.
pub fn wrong_companion(name: &str, member: WeightMember) -> WeightRefusal {
    let name = name.trim_start_matches('.');
    WeightRefusal::mismatch(
        "a companion with a wrong dtype or shape",
        format!("{name}: {} {:?}", member.dtype, member.shape),
    )
}

/// A layout with codes and scales, and without other parts. `matrix` is the result of [`matrix`].
pub fn layout(
    matrix: [u64; 3],
    packing: CodePacking,
    number: CodeNumber,
    grid: ScaleGrid,
    scale: ScaleType,
) -> QuantizedLayout {
    let [batch, rows, cols] = matrix;
    QuantizedLayout {
        batch,
        rows,
        cols,
        packing,
        number,
        grid,
        scale,
        bias: ScaleType::F32,
        global: GlobalScale::None,
        zeros: ZeroPoints::None,
        group_index: false,
        formula: DequantizeFormula::Scale,
    }
}

/// Number of matrices, rows and columns.
pub fn matrix(shape: &[u64]) -> Option<[u64; 3]> {
    let (batch, rows, cols) = match shape {
        [] => (&[][..], 1, 1),
        [cols] => (&[][..], 1, *cols),
        [batch @ .., rows, cols] => (batch, *rows, *cols),
    };
    let batch = batch.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim))?;
    Some([batch, rows, cols])
}

/// The type of scales with a dtype.
pub fn real(dtype: &str) -> Option<ScaleType> {
    Some(match dtype {
        "F32" => ScaleType::F32,
        "F16" => ScaleType::F16,
        "BF16" => ScaleType::Bf16,
        "F8_E8M0" => ScaleType::E8M0,
        "F8_E4M3" => ScaleType::E4M3,
        _ => return None,
    })
}

/// The type of scales with a dtype of 16 or 32 bits.
pub fn wide(dtype: &str) -> Option<ScaleType> {
    real(dtype).filter(|real| real.bytes() > 1)
}

/// Scales of groups of `size` columns of a row, in rows of `groups` scales.
pub fn group_count([_, rows, _]: [u64; 3], size: u64, groups: u64) -> ScaleGrid {
    ScaleGrid::Blocks { block: [1, size], groups, strides: [rows.saturating_mul(groups), groups, 1] }
}

/// The grid of scales of one of the usual shapes: one scale, one for each matrix, row or column, groups or blocks.
pub fn grid(weight: &[u64], scales: &[u64], config: &QuantizationConfig) -> Option<ScaleGrid> {
    let all = matrix(weight)?;
    let [_, rows, cols] = all;
    let (height, width) = (rows.max(1), cols.max(1));
    let blocks = |block, groups, strides| Some(ScaleGrid::Blocks { block, groups, strides });
    // ModelOpt writes grids as [rows, 1, columns, 1].
    let squeezed;
    let scales = match *scales {
        [below, 1, beside, 1] if weight.len() == 2 => {
            squeezed = [below, beside];
            &squeezed
        }
        _ => scales,
    };
    if scales.iter().all(|dim| *dim == 1) {
        return blocks([height, width], 1, [0, 0, 0]);
    }
    let outer = &weight[..weight.len().saturating_sub(2)];
    match scales.strip_prefix(outer)? {
        [] | [1] | [1, 1] => blocks([height, width], 1, [1, 0, 0]),
        [below] | [below, 1] if *below == rows => blocks([1, width], 1, [rows, 1, 0]),
        [1, beside] if *beside == cols => blocks([height, 1], cols, [cols, 0, 1]),
        [below, beside] => {
            let strides = [below.checked_mul(*beside)?, *beside, 1];
            if let Some(block) = config.block([rows, cols], [*below, *beside]) {
                return blocks(block, *beside, strides);
            }
            let size = config.group_size(cols, *beside).filter(|_| *below == rows)?;
            blocks([1, size], *beside, strides)
        }
        _ => None,
    }
}

/// Whether tensors with names that are not specific to quantized weights also have the shapes of codes and scales.
pub fn is_certain(site: &WeightSite) -> bool {
    match site.ending {
        // Only fused experts have scales whose names do not end in ".weight_scale" or the like.
        WeightEndings { values: "", .. } => site.values.shape.len() == 3,
        // DeepSeek-V4 has grids of scales.
        WeightEndings { scales: ".scale", .. } => site.scales.shape.len() == 2,
        _ => true,
    }
}

/// Tensors with two codes in a byte. Their dimensions count bytes, or codes if the dtype has 4 bits.
/// Returns the outer dimensions, and the bytes and codes of a row.
pub fn pairs<'t>(values: WeightMember<'t>) -> Option<(&'t [u64], u64, u64)> {
    let (last, outer) = values.shape.split_last()?;
    match values.dtype {
        "U8" | "I8" => Some((outer, *last, last.checked_mul(2)?)),
        "F4" if last % 2 == 0 => Some((outer, last / 2, *last)),
        _ => None,
    }
}

/// The dimensions of scales in tiles of 128 rows and 4 columns.
pub fn tiles(rows: u64, cols: u64) -> Option<[u64; 2]> {
    Some([rows.checked_next_multiple_of(128)?, cols.checked_next_multiple_of(4)?])
}

/// The format that ComfyUI has written for a weight, if there is one.
pub fn comfy_format(site: &WeightSite) -> Option<String> {
    let value = match site.companion(".comfy_quant") {
        Some(member) => serde_json::from_slice(site.contents(member).unwrap_or_default()).unwrap_or_default(),
        None => site.config.comfy(site.stem)?.clone(),
    };
    // Rotated matrices are not decoded.
    let is_rotated = value.get("convrot").is_some_and(|rotated| *rotated != Value::Bool(false));
    let format = value.get("format").and_then(Value::as_str).filter(|_| !is_rotated);
    Some(format.unwrap_or("unknown").to_owned())
}

/// The name of an integer type.
pub fn parameter_integer(bits: u64) -> &'static str {
    ["INT1", "INT2", "INT3", "INT4", "INT5", "INT6", "INT7", "INT8"]
        .get((bits as usize).saturating_sub(1))
        .copied()
        .unwrap_or("INT")
}
