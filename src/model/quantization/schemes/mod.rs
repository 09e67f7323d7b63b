//! The table of schemes, and the functions that recognise them.

mod bitsandbytes;
mod floats;
mod integers;
mod scheme;
mod transposed;

pub(super) use scheme::FoundWeight;
pub use scheme::{QuantizationScheme, SchemeParameters};

use super::site::{CodeDtypes, WeightEndings};
use super::warnings::WeightRefusal;
use scheme::{EXPERTS, ending, scheme};

/// All schemes. They are tried in this order; no two of them recognise the same tensors.
pub static SCHEMES: &[QuantizationScheme] = &[
    scheme(
        "FP8",
        floats::recognise_fp8,
        &[
            ending(".weight", ".weight_scale_inv", ".weight"),
            // Fused experts.
            ending("", "_scale_inv", ""),
            ending(".weight", ".weight_scale", ".weight"),
            ending("", "_scale", ""),
            ending("", EXPERTS, ""),
            // DeepSeek-V4.
            ending(".weight", ".scale", ".weight"),
            // ComfyUI, and Mistral.
            ending(".weight", ".scale_weight", ".weight"),
            ending(".weight", ".qscale_weight", ".weight"),
        ],
    ),
    scheme(
        "MXFP8",
        floats::recognise_mxfp8,
        &[
            ending(".weight", ".weight_scale", ".weight"),
            ending(".weight", ".weight_scale_inv", ".weight"),
            ending("", "_scale_inv", ""),
            // DeepSeek-V4 uses this name for the scales of larger blocks too, which the scheme FP8 recognises.
            ending(".weight", ".scale", ".weight"),
        ],
    ),
    scheme(
        "MXFP4",
        floats::recognise_mxfp4,
        &[
            ending("_blocks", "_scales", ""),
            // The original files of gpt-oss.
            ending(".blocks", ".scales", ""),
            ending(".weight_packed", ".weight_scale", ".weight"),
            // ModelOpt.
            ending(".weight", ".weight_scale", ".weight"),
            // DeepSeek-V4.
            ending(".weight", ".scale", ".weight"),
        ],
    ),
    scheme(
        "NVFP4",
        floats::recognise_nvfp4,
        &[
            ending(".weight", ".weight_scale", ".weight"),
            ending(".weight_packed", ".weight_scale", ".weight"),
            // Fused experts.
            ending("", EXPERTS, ""),
        ],
    ),
    scheme("pack-quantized", integers::recognise_packed, &[ending(".weight_packed", ".weight_scale", ".weight")]),
    scheme(
        "int-quantized",
        integers::recognise_int8,
        &[ending(".weight", ".weight_scale", ".weight"), ending("", "_scale", "")],
    ),
    scheme("ModelOpt INT4", integers::recognise_int4_pairs, &[ending(".weight", ".weight_scale", ".weight")]),
    scheme("AWQ", transposed::recognise_awq, &[ending(".qweight", ".scales", ".weight")]),
    scheme("GPTQ", transposed::recognise_gptq, &[ending(".qweight", ".scales", ".weight")]),
    scheme(
        "bitsandbytes 4-bit",
        bitsandbytes::recognise_four_bits,
        &[WeightEndings { codes: CodeDtypes::Any, ..ending("", ".absmax", "") }],
    ),
    scheme("bitsandbytes INT8", bitsandbytes::recognise_eight_bits, &[ending(".weight", ".SCB", ".weight")]),
    scheme("MLX", integers::recognise_mlx, &[ending(".weight", ".scales", ".weight")]),
    scheme("SLM1", integers::recognise_slm, &[ending("", crate::format::slm::SCALES, "")]),
];

/// Schemes that are not decoded. Their codes are only reported.
static UNDECODED: &[QuantizationScheme] = &[
    // Block types of GGUF with a separate scale, which the values are not multiplied by. llama.cpp writes such scales
    // for NVFP4.
    QuantizationScheme {
        name: "GGUF",
        endings: &[WeightEndings { codes: CodeDtypes::Blocks, ..ending(".weight", ".scale", ".weight") }],
        recognise: |site| {
            Err(WeightRefusal::unknown("a scale that the values are not multiplied by", site.scales.name))
        },
    },
    scheme(
        "unknown",
        |_| Ok(None),
        &[
            // torchao, and quanto.
            ending("_qdata", "_scale", ""),
            ending("._data", "._scale", ""),
            // HQQ.
            ending(".W_q", ".scale", ""),
            // AQLM, and EETQ.
            ending(".codes", ".scales", ""),
            ending(".weight", ".weight_scales", ""),
            // Marlin, and Nunchaku.
            ending(".B", ".s", ""),
            ending(".qweight", ".wscales", ""),
            ending(".qweight", ".wtscale", ""),
            // EXL2, EXL3, VPTQ, and QuIP#.
            ending(".q_weight", ".q_scale", ""),
            ending(".trellis", ".suh", ""),
            ending(".indices", ".weight_scale", ""),
            ending(".Qidxs", ".Wscale", ""),
            // Sparse weights of compressed-tensors, also of 16 bits.
            WeightEndings { codes: CodeDtypes::Any, ..ending(".compressed", ".bitmask", "") },
        ],
    ),
];

/// All schemes, decoded or not, with each of their endings.
pub(super) fn all_endings() -> impl Iterator<Item = (&'static QuantizationScheme, &'static WeightEndings)> {
    let schemes = SCHEMES.iter().chain(UNDECODED);
    schemes.flat_map(|scheme| scheme.endings.iter().map(move |ending| (scheme, ending)))
}

/// The endings of the names of tensors whose data is needed to recognise a weight, the endings of the names of its
/// codes, and the size in bytes above which they are not read. Descriptions in JSON take some hundred bytes.
pub(super) const CONTENTS: &[(&str, &str, u64)] = &[
    (".weight_shape", ".weight_packed", 64),
    (".weight_format", ".weight", 16),
    (".comfy_quant", ".weight", 4 << 10),
    (".quant_state.bitsandbytes__nf4", "", 4 << 10),
    (".quant_state.bitsandbytes__fp4", "", 4 << 10),
];

/// The endings of the names of other tensors that belong to a quantized weight. Its values do not depend on them.
pub(super) const OTHERS: &[&str] = &[
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

/// The endings of the names of the codes of these weights.
pub(super) const VALUES: &[&str] = &[".weight", ".qweight", ".weight_packed", ""];

/// The name of a tensor that says that a model is quantized, in the old format of ComfyUI. A prefix may precede it.
pub(super) const MARKER: &str = "scaled_fp8";
