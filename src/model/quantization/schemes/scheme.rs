//! The type of a scheme, the result of recognition, and functions that several schemes share.

use crate::codec::quantized::{
    CodeNumber, CodePacking, DequantizeFormula, GlobalScale, Parts, QuantizedLayout, QuantizedPart, ScaleGrid,
    ScaleType, ZeroPoints,
};
use crate::model::quantization::config::QuantizationConfig;
pub use crate::model::quantization::site::WeightSite;
use crate::model::quantization::site::{CodeDtypes, SiteTensor, WeightEndings};
pub use crate::model::quantization::warnings::WeightRefusal;
use serde_json::Value;

pub struct QuantizationScheme {
    pub name: &'static str,
    pub endings: &'static [WeightEndings],
    /// Called for codes and scales whose names fit together.
    pub recognise: fn(&WeightSite) -> Answer,
}

pub const fn scheme(
    name: &'static str,
    recognise: fn(&WeightSite) -> Answer,
    endings: &'static [WeightEndings],
) -> QuantizationScheme {
    QuantizationScheme { name, endings, recognise }
}

pub const fn ending(values: &'static str, scales: &'static str, logical: &'static str) -> WeightEndings {
    WeightEndings { values, scales, logical, codes: CodeDtypes::Narrow }
}

/// The ending of the names of the scales of fused experts of ModelOpt.
pub const EXPERTS: &str = "_weight_scale";

/// The result of [`QuantizationScheme::recognise`]: `None` if the tensors belong to another scheme, and an error if
/// they belong to this one and do not fit together.
pub type Answer = Result<Option<FoundWeight>, WeightRefusal>;

/// The parameters of a scheme, for users.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SchemeParameters {
    /// Rows and columns that share a scale; the dimensions of the matrix if all do.
    pub block: [u64; 2],
    /// Elements that share a scale, if the matrix that is stored is another one than the weight.
    pub group: Option<u64>,
    /// Whether there are zero points or biases.
    pub asymmetric: bool,
    /// Whether columns are reordered.
    pub act_order: bool,
    /// Whether the scales are quantized too.
    pub nested: bool,
    /// Whether the stored matrix is the weight times a scale for each column that belongs to the activations.
    pub smoothed: bool,
}

/// A weight that a scheme has recognised.
pub struct FoundWeight {
    /// The type of the codes for users.
    pub dtype: &'static str,
    /// Logical dimensions in elements.
    pub shape: Vec<u64>,
    /// The number and the size in bytes of each tensor that the values are computed from.
    pub parts: Parts<Option<(usize, u64)>>,
    pub layout: QuantizedLayout,
    /// Whether there are zero points or biases, and whether columns are reordered. Follows from the parts, unless a
    /// scheme sets it.
    pub asymmetric: bool,
    pub act_order: bool,
    /// Elements that share a scale, if the layout is another matrix than the weight.
    pub group: Option<u64>,
}

impl FoundWeight {
    /// A weight with codes and scales, and without other parts.
    pub fn new(site: &WeightSite, dtype: &'static str, shape: Vec<u64>, layout: QuantizedLayout) -> Self {
        let parts = [None; QuantizedPart::COUNT];
        Self { dtype, shape, parts, layout, asymmetric: false, act_order: false, group: None }
            .with(QuantizedPart::Values, Some(site.values))
            .with(QuantizedPart::Scales, Some(site.scales))
    }

    /// The same weight with the tensor of another part.
    pub fn with(mut self, part: QuantizedPart, tensor: Option<SiteTensor>) -> Self {
        self.parts[part as usize] = tensor.map(|tensor| (tensor.index, tensor.bytes));
        self.asymmetric |= tensor.is_some() && matches!(part, QuantizedPart::Zeros | QuantizedPart::Biases);
        self.act_order |= tensor.is_some() && matches!(part, QuantizedPart::GroupIndex | QuantizedPart::Permutation);
        self
    }
}

/// The refusal of a tensor with a wrong dtype or shape. `ending` is that of its name.
pub fn wrong_companion(ending: &str, tensor: SiteTensor) -> WeightRefusal {
    let name = ending.trim_start_matches('.');
    WeightRefusal::mismatch(
        "a companion with a wrong dtype or shape",
        format!("{name}: {} {:?}", tensor.dtype, tensor.shape),
    )
}

/// The refusal of a tensor whose numbers are wrong. `value` is what they are.
pub fn wrong_content(ending: &str, value: impl std::fmt::Display) -> WeightRefusal {
    WeightRefusal::mismatch("a companion with a wrong value", format!("{} {value}", ending.trim_start_matches('.')))
}

pub fn missing_companion(ending: &str) -> WeightRefusal {
    WeightRefusal::missing("a tensor that is missing", ending.trim_start_matches('.'))
}

pub fn unknown_comfy(format: String) -> WeightRefusal {
    WeightRefusal::unknown("a format of ComfyUI that is not known", format)
}

impl<'s> WeightSite<'s> {
    /// The tensor whose name is the stem with this ending. Without it, the weight is refused.
    pub fn required(&self, ending: &str) -> Result<SiteTensor<'s>, WeightRefusal> {
        self.companion(ending).ok_or_else(|| missing_companion(ending))
    }

    /// The tensor whose name is the stem with this ending, if there is one. With another dtype or shape, the weight is
    /// refused.
    pub fn optional(&self, ending: &str, dtype: &str, shape: &[u64]) -> Result<Option<SiteTensor<'s>>, WeightRefusal> {
        match self.companion(ending) {
            Some(tensor) if (tensor.dtype, tensor.shape) != (dtype, shape) => Err(wrong_companion(ending, tensor)),
            found => Ok(found),
        }
    }

    /// The two dimensions that a tensor of I64 or I32 contains. `ending` is that of its name.
    pub fn dimensions(&self, ending: &str, tensor: SiteTensor) -> Result<[u64; 2], WeightRefusal> {
        let dims = self.pair(tensor).ok_or_else(|| wrong_companion(ending, tensor))?;
        match dims.map(u64::try_from) {
            [Ok(rows), Ok(cols)] => Ok([rows, cols]),
            _ => Err(wrong_content(ending, format!("{dims:?}"))),
        }
    }

    /// The two numbers that a tensor of I64 or I32 contains.
    fn pair(&self, tensor: SiteTensor) -> Option<[i64; 2]> {
        let bytes = self.contents(tensor).filter(|_| tensor.shape == [2])?;
        let dims: Vec<i64> = match tensor.dtype {
            "I64" => bytes.as_chunks().0.iter().map(|dim| i64::from_le_bytes(*dim)).collect(),
            "I32" => bytes.as_chunks().0.iter().map(|dim| i32::from_le_bytes(*dim).into()).collect(),
            _ => return None,
        };
        dims.try_into().ok()
    }

    /// The only number of a tensor of integers.
    pub fn integer(&self, tensor: SiteTensor) -> Option<i64> {
        let bytes = self.contents(tensor)?;
        match tensor.dtype {
            "I64" => Some(i64::from_le_bytes(bytes.try_into().ok()?)),
            "I32" => Some(i32::from_le_bytes(bytes.try_into().ok()?).into()),
            "U8" | "BOOL" => Some(u8::from_le_bytes(bytes.try_into().ok()?).into()),
            _ => None,
        }
    }

    /// Whether the only number of a tensor is 1, which otherwise must be 0. Without the tensor, the default.
    pub fn flag(&self, ending: &str, default: bool) -> Result<bool, WeightRefusal> {
        let Some(tensor) = self.companion(ending) else { return Ok(default) };
        match self.integer(tensor) {
            Some(flag @ (0 | 1)) => Ok(flag == 1),
            Some(other) => Err(wrong_content(ending, other)),
            None => Err(wrong_companion(ending, tensor)),
        }
    }

    /// The refusal of scales that do not have a shape that fits the codes.
    pub fn wrong_shape(&self) -> WeightRefusal {
        let (scales, codes) = (self.scales.shape, self.values.shape);
        WeightRefusal::mismatch("scales of a wrong shape", format!("{scales:?} for codes of {codes:?}"))
    }

    pub fn wrong_scales(&self) -> WeightRefusal {
        wrong_companion(self.ending.scales, self.scales)
    }

    /// The type of the scales, which must have 16 or 32 bits.
    pub fn wide_scales(&self) -> Result<ScaleType, WeightRefusal> {
        wide(self.scales.dtype).ok_or_else(|| self.wrong_scales())
    }

    /// The size of the groups of `cols` columns that have `count` scales.
    pub fn group_size(&self, cols: u64, count: u64) -> Result<u64, WeightRefusal> {
        self.config.group_size(cols, count).ok_or_else(|| self.wrong_shape())
    }

    /// Number of matrices, rows and columns.
    pub fn matrix(&self, shape: &[u64]) -> Result<[u64; 3], WeightRefusal> {
        matrix(shape).ok_or_else(|| self.wrong_shape())
    }

    /// The grid of scales of one of the usual shapes, for a weight of this shape.
    pub fn grid(&self, shape: &[u64]) -> Result<ScaleGrid, WeightRefusal> {
        usual_grid(shape, self.scales.shape, self.config).ok_or_else(|| self.wrong_shape())
    }

    /// Whether tensors with names that are not specific to quantized weights also have the shapes of codes and scales.
    pub fn is_certain(&self) -> bool {
        match self.ending {
            // Only fused experts have scales whose names do not end in ".weight_scale" or the like.
            WeightEndings { values: "", .. } => self.values.shape.len() == 3,
            // DeepSeek-V4 has grids of scales.
            WeightEndings { scales: ".scale", .. } => self.scales.shape.len() == 2,
            _ => true,
        }
    }

    /// The format that ComfyUI has written for the weight, if there is one.
    pub fn comfy_format(&self) -> Option<String> {
        let value = match self.companion(".comfy_quant") {
            Some(tensor) => serde_json::from_slice(self.contents(tensor).unwrap_or_default()).unwrap_or_default(),
            None => self.config.comfy(self.stem)?.clone(),
        };
        // Rotated matrices are not decoded.
        let is_rotated = value.get("convrot").is_some_and(|rotated| *rotated != Value::Bool(false));
        let format = value.get("format").and_then(Value::as_str).filter(|_| !is_rotated);
        Some(format.unwrap_or("unknown").to_owned())
    }
}

/// A layout with codes and scales, and without other parts. `matrix` is the result of [`WeightSite::matrix`].
pub fn plain_layout(
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

fn matrix(shape: &[u64]) -> Option<[u64; 3]> {
    let (batch, rows, cols) = match shape {
        [] => (&[][..], 1, 1),
        [cols] => (&[][..], 1, *cols),
        [batch @ .., rows, cols] => (batch, *rows, *cols),
    };
    let batch = batch.iter().try_fold(1u64, |product, dim| product.checked_mul(*dim))?;
    Some([batch, rows, cols])
}

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
pub fn row_groups([_, rows, _]: [u64; 3], size: u64, groups: u64) -> ScaleGrid {
    ScaleGrid::Blocks { block: [1, size], groups, strides: [rows.saturating_mul(groups), groups, 1] }
}

/// The grid of scales of one of the usual shapes: one scale, one for each matrix, row or column, groups or blocks.
fn usual_grid(weight: &[u64], scales: &[u64], config: &QuantizationConfig) -> Option<ScaleGrid> {
    let [_, rows, cols] = matrix(weight)?;
    let (height, width) = (rows.max(1), cols.max(1));
    // ModelOpt writes grids as [rows, 1, columns, 1].
    let squeezed;
    let scales = match *scales {
        [below, 1, beside, 1] if weight.len() == 2 => {
            squeezed = [below, beside];
            &squeezed
        }
        _ => scales,
    };
    let outer = &weight[..weight.len().saturating_sub(2)];
    let (block, groups, strides) = match scales.strip_prefix(outer) {
        _ if scales.iter().all(|dim| *dim == 1) => ([height, width], 1, [0, 0, 0]),
        Some([] | [1] | [1, 1]) => ([height, width], 1, [1, 0, 0]),
        Some([below] | [below, 1]) if *below == rows => ([1, width], 1, [rows, 1, 0]),
        Some([1, beside]) if *beside == cols => ([height, 1], cols, [cols, 0, 1]),
        Some([below, beside]) => {
            let block = config.block([rows, cols], [*below, *beside]);
            let block = block.or_else(|| Some([1, config.group_size(cols, *beside).filter(|_| *below == rows)?]))?;
            (block, *beside, [below.checked_mul(*beside)?, *beside, 1])
        }
        _ => return None,
    };
    Some(ScaleGrid::Blocks { block, groups, strides })
}

/// Tensors with two codes in a byte. Their dimensions count bytes, or codes if the dtype has 4 bits.
/// Returns the outer dimensions, and the bytes and codes of a row.
pub fn code_pairs<'t>(values: SiteTensor<'t>) -> Option<(&'t [u64], u64, u64)> {
    let (last, outer) = values.shape.split_last()?;
    match values.dtype {
        "U8" | "I8" => Some((outer, *last, last.checked_mul(2)?)),
        "F4" if last % 2 == 0 => Some((outer, last / 2, *last)),
        _ => None,
    }
}

/// The dimensions of scales in tiles of 128 rows and 4 columns.
pub fn scale_tiles(rows: u64, cols: u64) -> Option<[u64; 2]> {
    Some([rows.checked_next_multiple_of(128)?, cols.checked_next_multiple_of(4)?])
}

/// The name of an integer type of 1 to 8 bits.
pub fn integer_name(bits: u64) -> &'static str {
    let names = ["INT1", "INT2", "INT3", "INT4", "INT5", "INT6", "INT7", "INT8"];
    names.get((bits as usize).wrapping_sub(1)).copied().unwrap_or("INT")
}
