//! The table of schemes, and the functions that recognise them.

mod aqlm;
mod bitsandbytes;
mod exl2;
mod floats;
mod hqq;
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
    scheme(
        "HQQ",
        hqq::recognise_hqq,
        &[WeightEndings { codes: CodeDtypes::AnyKnown, ..ending(".W_q", ".scale", ".weight") }],
    ),
    scheme("AQLM", aqlm::recognise_aqlm, &[ending(".codes", ".scales", ".weight")]),
    scheme("EXL2", exl2::recognise_exl2, &[ending(".q_weight", ".q_scale", ".weight")]),
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
    scheme("HQQ", hqq::refuse_nested, &[ending(".W_q", ".scale_q", "")]),
    // The signs of the columns are numbers or, in old files, bits.
    undecoded("EXL3", &[ending(".trellis", ".suh", ""), ending(".trellis", ".su", "")]),
    undecoded("QuIP#", &[ending(".Qidxs", ".Wscale", "")]),
    undecoded("SpQR", &[ending(".dense_weights", ".row_offsets", "")]),
    undecoded("VPTQ", &[ending(".indices", ".weight_scale", "")]),
    scheme(
        "unknown",
        |_| Ok(None),
        &[
            // torchao, and quanto.
            ending("_qdata", "_scale", ""),
            ending("._data", "._scale", ""),
            // EETQ.
            ending(".weight", ".weight_scales", ""),
            // Marlin, and Nunchaku.
            ending(".B", ".s", ""),
            ending(".qweight", ".wscales", ""),
            ending(".qweight", ".wtscale", ""),
            // Sparse weights of compressed-tensors, also of 16 bits.
            WeightEndings { codes: CodeDtypes::Any, ..ending(".compressed", ".bitmask", "") },
        ],
    ),
];

/// A scheme whose tensors are shown as they are stored.
const fn undecoded(name: &'static str, endings: &'static [WeightEndings]) -> QuantizationScheme {
    scheme(name, |site| Err(WeightRefusal::unknown(NOT_DECODED, site.scales.name)), endings)
}

/// The reason why weights of a known scheme are shown as they are stored.
pub(super) const NOT_DECODED: &str = "a scheme that is recognised, not dequantized";

/// All schemes, decoded or not, with each of their endings.
pub(super) fn all_endings() -> impl Iterator<Item = (&'static QuantizationScheme, &'static WeightEndings)> {
    let schemes = SCHEMES.iter().chain(UNDECODED);
    schemes.flat_map(|scheme| scheme.endings.iter().map(move |ending| (scheme, ending)))
}

/// The endings of the names of tensors whose data is needed to recognise a weight, the endings of the names of its
/// codes, and the size in bytes above which they are not read. Descriptions in JSON take some hundred bytes.
pub(super) fn contents() -> impl Iterator<Item = (&'static str, &'static str, u64)> {
    let of_hqq = hqq::CONTENTS.iter().map(|(ending, max)| (*ending, ".W_q", *max));
    let of_exl2 = exl2::CONTENTS.iter().map(|(ending, max)| (*ending, ".q_weight", *max));
    CONTENTS.iter().copied().chain(of_hqq).chain(of_exl2)
}

const CONTENTS: &[(&str, &str, u64)] = &[
    (".weight_shape", ".weight_packed", 64),
    (".weight_format", ".weight", 16),
    (".comfy_quant", ".weight", 4 << 10),
    (".quant_state.bitsandbytes__nf4", "", 4 << 10),
    (".quant_state.bitsandbytes__fp4", "", 4 << 10),
];

/// The endings of the names of other tensors that belong to a quantized weight, whose values do not depend on them, and
/// the endings of the names of its codes.
pub(super) const OTHERS: &[(&[&str], &[&str])] =
    &[(OF_WEIGHTS, &[".weight", ".qweight", ".weight_packed", ""]), (OF_HQQ, &[".W_q"])];

const OF_WEIGHTS: &[&str] = &[
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

/// The descriptions of HQQ. Those that are read decide how the values are computed.
const OF_HQQ: &[&str] = &[
    ".nbits",
    ".group_size",
    ".axis",
    ".shape",
    ".packing",
    ".view_as_float",
    ".channel_wise",
    ".quant_zero",
    ".quant_scale",
    ".compute_dtype",
    ".unpack_view_dtype",
    ".encoded_state_dict",
    ".stores_quant_config",
    ".offload_meta",
    ".optimize",
    ".round_zero",
];

/// The name of a tensor that says that a model is quantized, in the old format of ComfyUI. A prefix may precede it.
pub(super) const MARKER: &str = "scaled_fp8";
