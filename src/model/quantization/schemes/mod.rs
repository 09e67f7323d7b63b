//! The table of schemes, each with its own file.

mod awq;
mod bitsandbytes;
mod fp8;
mod gptq;
mod int4_pairs;
mod int8;
mod mlx;
mod mxfp4;
mod mxfp8;
mod nvfp4;
mod packed;
mod scheme;
mod slm;

pub(super) use scheme::{CONTENTS, FoundWeight, MARKER, NeededData, OTHERS, VALUES};
pub use scheme::{QuantizationScheme, SchemeParameters};

use super::site::{CodeDtypes, WeightEndings};
use super::warnings::WeightRefusal;
use scheme::ending;

/// All schemes. They are tried in this order; no two of them recognise the same tensors.
pub static SCHEMES: &[QuantizationScheme] = &[
    fp8::SCHEME,
    mxfp8::SCHEME,
    mxfp4::SCHEME,
    nvfp4::SCHEME,
    packed::SCHEME,
    int8::SCHEME,
    int4_pairs::SCHEME,
    awq::SCHEME,
    gptq::SCHEME,
    bitsandbytes::FOUR_BITS,
    bitsandbytes::EIGHT_BITS,
    mlx::SCHEME,
    slm::SCHEME,
];

/// Schemes that are not decoded. Their codes are only reported.
pub(super) static UNDECODED: &[QuantizationScheme] = &[GGUF, UNKNOWN];

/// Block types of GGUF with a separate scale, which the values are not multiplied by. llama.cpp writes such scales for
/// NVFP4.
const GGUF: QuantizationScheme = QuantizationScheme {
    name: "GGUF",
    endings: &[WeightEndings { values: ".weight", scales: ".scale", logical: ".weight", codes: CodeDtypes::Blocks }],
    recognise: |site| {
        let scale = format!("{}{}", site.stem, site.ending.scales);
        Err(WeightRefusal::new("a scale that the values are not multiplied by", scale))
    },
};

const UNKNOWN: QuantizationScheme = QuantizationScheme {
    name: "unknown",
    endings: &[
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
        WeightEndings { values: ".compressed", scales: ".bitmask", logical: "", codes: CodeDtypes::Any },
    ],
    recognise: |_| Ok(None),
};
