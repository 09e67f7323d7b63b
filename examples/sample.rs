//! Writes a small Llama-shaped model with the official crate: `cargo run --example sample -- OUT.safetensors`.
//!
//! Four layers of width 256 in BF16, norms in F32, one matrix quantised to F8 with its scale, a causal mask in BOOL,
//! and the kinds of metadata that real files have. About 10 MB. Every run writes the same tensors and metadata.

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use sha2::{Digest, Sha256};
use std::error::Error;
use std::path::Path;

const HIDDEN: usize = 256;
const FEED_FORWARD: usize = 688;
const VOCABULARY: usize = 4096;
const LAYERS: usize = 4;

struct Tensor {
    name: String,
    dtype: Dtype,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn main() -> Result<(), Box<dyn Error>> {
    write(std::env::args_os().nth(1).ok_or("usage: sample OUT.safetensors")?.as_ref())
}

/// Writes the sample to `out`.
pub fn write(out: &Path) -> Result<(), Box<dyn Error>> {
    let mut random = Random(0x5eed);
    let mut tensors = vec![
        bf16(&mut random, "model.embed_tokens.weight", &[VOCABULARY, HIDDEN]),
        bf16(&mut random, "lm_head.weight", &[VOCABULARY, HIDDEN]),
        f32(&mut random, "model.norm.weight", &[HIDDEN], 1.0),
        Tensor {
            name: "model.causal_mask".into(),
            dtype: Dtype::BOOL,
            shape: vec![64, 64],
            bytes: (0..64 * 64).map(|at| u8::from(at % 64 <= at / 64)).collect(),
        },
    ];
    for layer in 0..LAYERS {
        let name = |part: &str| format!("model.layers.{layer}.{part}");
        for part in ["q", "k", "v", "o"] {
            tensors.push(bf16(&mut random, &name(&format!("self_attn.{part}_proj.weight")), &[HIDDEN, HIDDEN]));
        }
        tensors.push(bf16(&mut random, &name("mlp.gate_proj.weight"), &[FEED_FORWARD, HIDDEN]));
        tensors.push(bf16(&mut random, &name("mlp.up_proj.weight"), &[FEED_FORWARD, HIDDEN]));
        let down = name("mlp.down_proj.weight");
        if layer + 1 == LAYERS {
            // Clearing bit 3 avoids the two NaN codes of E4M3.
            let bytes = (0..HIDDEN * FEED_FORWARD).map(|_| (random.next() >> 56) as u8 & 0xf7).collect();
            tensors.push(Tensor { name: down, dtype: Dtype::F8_E4M3, shape: vec![HIDDEN, FEED_FORWARD], bytes });
            tensors.push(f32(&mut random, &name("mlp.down_proj.weight_scale"), &[], 0.01));
        } else {
            tensors.push(bf16(&mut random, &down, &[HIDDEN, FEED_FORWARD]));
        }
        tensors.push(f32(&mut random, &name("input_layernorm.weight"), &[HIDDEN], 1.0));
        tensors.push(f32(&mut random, &name("post_attention_layernorm.weight"), &[HIDDEN], 1.0));
    }
    let views = tensors
        .iter()
        .map(|tensor| Ok((&tensor.name, TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes)?)))
        .collect::<Result<Vec<_>, SafeTensorError>>()?;
    let plain = safetensors::serialize(views.clone(), None)?;
    let (header_len, _) = SafeTensors::read_metadata(&plain)?;
    let sha256: String = Sha256::digest(&plain[8 + header_len..]).iter().map(|byte| format!("{byte:02x}")).collect();
    let metadata = [
        ("format", "pt"),
        ("modelspec.sai_model_spec", "1.0.1"),
        ("modelspec.architecture", "llama"),
        ("modelspec.implementation", "https://github.com/huggingface/transformers"),
        ("modelspec.title", "weightfs sample"),
        ("modelspec.description", "Random weights in the shape of a small Llama.\nMade to be looked at."),
        ("modelspec.author", "weightfs"),
        ("modelspec.date", "2026-11-21"),
        ("modelspec.data_format", "bf16"),
        ("modelspec.license", "CC0-1.0"),
        ("modelspec.hash_sha256", &format!("0x{sha256}")),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()));
    safetensors::serialize_to_file(views, Some(metadata.into()), out)?;
    Ok(())
}

fn bf16(random: &mut Random, name: &str, shape: &[usize]) -> Tensor {
    let scale = 1.0 / (shape[shape.len() - 1] as f32).sqrt();
    let count = shape.iter().product();
    // The upper half of a float32 is a bfloat16.
    let bytes = (0..count).flat_map(|_| ((random.normal() * scale).to_bits() >> 16).to_le_bytes().into_iter().take(2));
    Tensor { name: name.into(), dtype: Dtype::BF16, shape: shape.to_vec(), bytes: bytes.collect() }
}

fn f32(random: &mut Random, name: &str, shape: &[usize], mean: f32) -> Tensor {
    let count = shape.iter().product();
    let bytes = (0..count).flat_map(|_| (mean * (1.0 + random.normal() * 0.05)).to_le_bytes());
    Tensor { name: name.into(), dtype: Dtype::F32, shape: shape.to_vec(), bytes: bytes.collect() }
}

/// A SplitMix64 generator: the same numbers on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    /// An approximately normal number: the sum of twelve uniform ones, less six.
    fn normal(&mut self) -> f32 {
        (0..12).map(|_| (self.next() >> 40) as f32 / (1u64 << 24) as f32).sum::<f32>() - 6.0
    }
}
