//! Recognises quantized tensors by the names of their scales. Does not know how to dequantize them.

use super::ids::TensorId;
use crate::format::{Dtype, Header, TensorInfo};
use crate::text::quote;

/// How the names of quantized values and of their scales end. The rest of both names is the same.
struct Ending {
    scales: &'static str,
    values: &'static str,
    /// Whether the values may have any dtype. Otherwise, 16-bit and wider floats are not quantized.
    any_dtype: bool,
}

const ENDINGS: &[Ending] = &[
    // FP8 by DeepSeek, compressed-tensors, vLLM, ModelOpt and ComfyUI; fused experts.
    ending("_scale_inv", ""),
    ending("_scale", ""),
    ending("_scale", "_packed"),
    ending("_scale", "_qdata"),
    ending(".scale_weight", ".weight"),
    ending(".qscale_weight", ".weight"),
    ending(".scale", ".weight"),
    // GPTQ and AWQ; MLX.
    ending(".scales", ".qweight"),
    ending(".scales", ".weight"),
    // MXFP4 of gpt-oss, in the layout of transformers and in the original one.
    ending("_scales", "_blocks"),
    ending(".scales", ".blocks"),
    // bitsandbytes. It may store 4-bit codes as elements of any dtype.
    Ending { scales: ".absmax", values: "", any_dtype: true },
    ending(".SCB", ".weight"),
];

const fn ending(scales: &'static str, values: &'static str) -> Ending {
    Ending { scales, values, any_dtype: false }
}

/// The tensors of a model that look quantized.
#[derive(Debug, Default)]
pub struct Quantized {
    /// Quantized values and their scales, sorted.
    pairs: Vec<(TensorId, TensorId)>,
    /// The names of the first pair.
    example: Option<(String, String)>,
}

impl Quantized {
    /// Finds the quantized tensors of a model from the names of all tensors. `find` finds a tensor by its name.
    pub(super) fn new<'m>(
        names: impl Iterator<Item = (TensorId, &'m str)>,
        find: impl Fn(&str) -> Option<(TensorId, TensorInfo<'m>)>,
    ) -> Self {
        let mut quantized = Self::default();
        for (scales, name) in names {
            // Most names are no scales. Comparing the last byte first is the fastest way to skip them.
            let is_last = |ending: &&Ending| ending.scales.as_bytes().last() == name.as_bytes().last();
            let values = ENDINGS.iter().filter(is_last).find_map(|ending| {
                let values = [name.strip_suffix(ending.scales)?, ending.values].concat();
                let is_quantized = |info: &TensorInfo| info.nbytes() > 0 && (ending.any_dtype || is_code(info.dtype));
                find(&values).filter(|(_, info)| is_quantized(info))
            });
            if let Some((values, info)) = values {
                quantized.example.get_or_insert_with(|| (info.name.to_owned(), name.to_owned()));
                quantized.pairs.push((values, scales));
            }
        }
        quantized.pairs.sort_unstable();
        quantized.pairs.dedup_by_key(|pair| pair.0);
        quantized
    }

    /// Finds the quantized tensors of a file. Their numbers are their indices in the header.
    pub fn of(header: &Header) -> Self {
        let names = (0..header.len()).map(|index| (TensorId::new(index), header.name(index)));
        Self::new(names, |name| header.find(name).map(|index| (TensorId::new(index), header.tensor(index))))
    }

    /// Number of quantized tensors.
    pub fn len(&self) -> usize {
        self.pairs.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// The scales of a tensor, if it looks quantized.
    pub fn scales_of(&self, values: TensorId) -> Option<TensorId> {
        let at = self.pairs.binary_search_by_key(&values, |pair| pair.0).ok()?;
        Some(self.pairs[at].1)
    }

    /// How many tensors look quantized, and an example; `None` if there are none.
    pub fn summary(&self) -> Option<String> {
        let (values, scales) = self.example.as_ref()?;
        let (values, scales) = (quote(values), quote(scales));
        Some(match self.len() {
            1 => format!("1 tensor looks quantized: {values}, with scales in {scales}"),
            len => format!("{len} tensors look quantized, such as {values}, with scales in {scales}"),
        })
    }

    /// The message for users of a mount; `None` if nothing looks quantized.
    pub fn note(&self) -> Option<String> {
        Some(format!("{}: {NOT_DEQUANTIZED}", self.summary()?))
    }
}

/// What a mount of a quantized model does not do.
pub const NOT_DEQUANTIZED: &str =
    "npy/, f32/, stats/, plots/ and converted exports have the stored numbers, not the dequantized weights";

/// Whether elements may be quantized values: integers, floats of at most 8 bits, and unknown dtypes such as I4.
fn is_code(dtype: Dtype) -> bool {
    !matches!(dtype, Dtype::Bool | Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64 | Dtype::C64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn quantized(tensors: &[(&'static str, Dtype<'static>)]) -> Quantized {
        let info = |at: usize| TensorInfo { name: tensors[at].0, dtype: tensors[at].1, shape: &[4], range: 0..4 };
        let names = tensors.iter().enumerate().map(|(at, tensor)| (TensorId::new(at), tensor.0));
        Quantized::new(names, |wanted| {
            let at = tensors.iter().position(|tensor| tensor.0 == wanted)?;
            Some((TensorId::new(at), info(at)))
        })
    }

    /// The names of the values and scales that are found among tensors with these names and dtypes.
    fn found(tensors: &[(&'static str, Dtype<'static>)]) -> Vec<(&'static str, &'static str)> {
        let quantized = quantized(tensors);
        for (values, scales) in &quantized.pairs {
            assert_eq!((quantized.scales_of(*values), quantized.scales_of(*scales)), (Some(*scales), None));
        }
        let name = |id: TensorId| tensors[id.index()].0;
        quantized.pairs.iter().map(|(values, scales)| (name(*values), name(*scales))).collect()
    }

    #[test]
    fn scales_of_every_known_scheme_are_recognised() {
        use Dtype::{BF16, F8E4M3, F8E8M0, F16, F32, I8, I32, I64, U8, U32};
        let schemes: [&[(&str, Dtype)]; 17] = [
            &[("m.weight", F8E4M3), ("m.weight_scale_inv", F32)],
            &[("m.weight", F8E4M3), ("m.weight_scale", F32), ("m.input_scale", F32)],
            &[("m.weight", U8), ("m.weight_scale", F8E4M3), ("m.weight_scale_2", F32)],
            &[("m.weight_packed", I32), ("m.weight_scale", BF16), ("m.weight_shape", I64)],
            &[("m.weight_packed", U8), ("m.weight_scale", F8E4M3), ("m.weight_global_scale", F32)],
            &[("m._weight_qdata", I8), ("m._weight_scale", BF16)],
            &[("gate_up_proj", F8E4M3), ("gate_up_proj_scale_inv", F32)],
            &[("m.weight", F8E4M3), ("m.scale_weight", F32), ("scaled_fp8", F8E4M3)],
            &[("m.weight", F8E4M3), ("m.qscale_weight", F32)],
            &[("m.weight", I8), ("m.scale", F8E8M0)],
            &[("m.qweight", I32), ("m.qzeros", I32), ("m.scales", F16), ("m.g_idx", I32)],
            &[("m.weight", U32), ("m.scales", BF16), ("m.biases", BF16)],
            &[("e.gate_up_proj_blocks", U8), ("e.gate_up_proj_scales", U8), ("e.gate_up_proj_bias", BF16)],
            &[("block.0.mlp.mlp1_weight.blocks", U8), ("block.0.mlp.mlp1_weight.scales", U8)],
            &[("m.weight", U8), ("m.weight.absmax", U8), ("m.weight.nested_absmax", F32), ("m.weight.quant_map", F32)],
            &[("m.weight", BF16), ("m.weight.absmax", F32)],
            &[("m.weight", I8), ("m.SCB", F32), ("m.weight_format", U8)],
        ];
        for scheme in schemes {
            let scales = scheme[1..].iter().find(|tensor| tensor.0.contains("scale") || tensor.1 != I32).unwrap();
            assert_eq!(found(scheme), [(scheme[0].0, scales.0)], "{scheme:?}");
            // The order of the tensors does not matter.
            assert_eq!(found(&scheme.iter().rev().copied().collect::<Vec<_>>()), [(scheme[0].0, scales.0)]);
        }
    }

    #[test]
    fn names_that_only_look_like_scales_are_not_recognised() {
        use Dtype::{BF16, Bool, F8E4M3, F16, F32, I64};
        let models: [&[(&str, Dtype)]; 8] = [
            &[("logit_scale", F32), ("logit.weight", F32), ("text_projection", F16)],
            &[("layer.weight", BF16), ("layer.layer_scale", BF16), ("layer_scale", BF16), ("layer.bias", BF16)],
            &[("norm.weight", F32), ("norm.scale", F32), ("norm.scales", F32)],
            &[("attn.k_proj.weight", F8E4M3), ("attn.k_scale", F32), ("attn.v_scale", F32)],
            &[("m.weight", F16), ("m.weight_scale", F32), ("m.input_scale", F32)],
            &[("weight", F8E4M3), ("bias", BF16), ("_scale", F32), (".scales", F32), ("scale", F32)],
            &[("mask", Bool), ("mask_scale", F32), ("position_ids", I64), ("absmax", F32)],
            &[("m.weight", F8E4M3), ("m.weight_scale_2", F32), ("m.upscale", F32), ("m.rescales", F32)],
        ];
        for model in models {
            assert_eq!(found(model), [], "{model:?}");
        }
    }

    #[test]
    fn note_names_an_example() {
        let note = quantized(&[("a", Dtype::I8), ("a_scale", Dtype::F32)]).note().unwrap();
        assert!(note.starts_with("1 tensor looks quantized: \"a\", with scales in \"a_scale\": npy/, f32/"), "{note}");
        assert_eq!(Quantized::default().note(), None);
    }
}
