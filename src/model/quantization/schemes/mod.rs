//! The schemes, one row and one file each.

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

pub(super) use scheme::{CONTENTS, Found, OTHERS, QUANT_STATE, VALUES};
pub use scheme::{Parameters, Scheme};

use scheme::ending;

/// All schemes. Those with the same endings are asked in this order; no two of them recognise the same tensors.
pub static SCHEMES: &[Scheme] = &[
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
];

/// Schemes that are not decoded. Their codes are only reported.
pub(super) static UNKNOWN: Scheme = Scheme {
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
    ],
    recognise: |_| Ok(None),
};
