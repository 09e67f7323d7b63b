//! `weightfs demo`: writes a small model, so that weightfs can be tried without owning one.
//!
//! It has the shape of a Llama model: four layers of width 256 in BF16, norms in F32, one matrix quantized to F8 with
//! its scale, a causal mask in BOOL, and the kinds of metadata that real files have. About 10 MB. The weights are
//! random, and the same on every machine.

use crate::cli::DemoArgs;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::io::Write;
use std::process::ExitCode;
use weightfs::text::{HexDigits, printable};
use weightfs::units::format_size;
use weightfs::write::{OutputFile, is_stdout};

const HIDDEN: usize = 256;
const FEED_FORWARD: usize = 688;
const VOCABULARY: usize = 4096;
const LAYERS: usize = 4;

/// Writes the demonstration model, and prints what to do with it.
pub fn run_demo(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let path = &args.file;
    let mut output = OutputFile::create(path, 0o666)?;
    output.check_force(args.force)?;
    let bytes = demo_file()?;
    output.write(&bytes)?;
    output.commit()?;
    if !is_stdout(path) {
        let shown = printable(&path.to_string_lossy()).into_owned();
        let size = format_size(bytes.len() as u64);
        writeln!(std::io::stdout(), "wrote {shown}, {size} of random weights (mount it: weightfs {shown})")?;
    }
    Ok(ExitCode::SUCCESS)
}

struct DemoTensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    bytes: Vec<u8>,
}

fn demo_file() -> anyhow::Result<Vec<u8>> {
    let mut tensors = demo_tensors();
    // Wide elements first, as the official writer does, so that all data is aligned.
    tensors.sort_by_cached_key(|DemoTensor { name, dtype, .. }| (*dtype != "F32", *dtype != "BF16", name.clone()));
    let data = tensors.iter().map(|tensor| &tensor.bytes[..]).collect::<Vec<_>>().concat();
    let mut header = serde_json::Map::new();
    header.insert(
        "__metadata__".into(),
        json!({
            "format": "pt",
            "modelspec.sai_model_spec": "1.0.1",
            "modelspec.architecture": "llama",
            "modelspec.implementation": "https://github.com/huggingface/transformers",
            "modelspec.title": "weightfs sample",
            "modelspec.description": "Random weights in the shape of a small Llama.\nMade to be looked at.",
            "modelspec.author": "weightfs",
            "modelspec.date": "2026-11-21",
            "modelspec.data_format": "bf16",
            "modelspec.license": "CC0-1.0",
            "modelspec.hash_sha256": format!("0x{}", HexDigits(&Sha256::digest(&data))),
        }),
    );
    let mut start = 0;
    for DemoTensor { name, dtype, shape, bytes } in tensors {
        let end = start + bytes.len();
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": [start, end]}));
        start = end;
    }
    let mut text = serde_json::to_string(&header)?;
    // The data begins at a multiple of 8 bytes.
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    Ok([&(text.len() as u64).to_le_bytes()[..], text.as_bytes(), &data].concat())
}

fn demo_tensors() -> Vec<DemoTensor> {
    let mut random = DemoRandom(0x5eed);
    let mut tensors = vec![
        random.bf16("model.embed_tokens.weight", &[VOCABULARY, HIDDEN]),
        random.bf16("lm_head.weight", &[VOCABULARY, HIDDEN]),
        random.f32("model.norm.weight", &[HIDDEN], 1.0),
        DemoTensor {
            name: "model.causal_mask".into(),
            dtype: "BOOL",
            shape: vec![64, 64],
            bytes: (0..64 * 64).map(|at| u8::from(at % 64 <= at / 64)).collect(),
        },
    ];
    for layer in 0..LAYERS {
        let prefix = format!("model.layers.{layer}");
        for part in ["q", "k", "v", "o"] {
            tensors.push(random.bf16(&format!("{prefix}.self_attn.{part}_proj.weight"), &[HIDDEN, HIDDEN]));
        }
        for part in ["gate", "up"] {
            tensors.push(random.bf16(&format!("{prefix}.mlp.{part}_proj.weight"), &[FEED_FORWARD, HIDDEN]));
        }
        let down = format!("{prefix}.mlp.down_proj.weight");
        if layer + 1 == LAYERS {
            // Clearing bit 3 avoids the two NaN codes of E4M3.
            let bytes = (0..HIDDEN * FEED_FORWARD).map(|_| (random.next() >> 56) as u8 & 0xf7).collect();
            tensors.push(random.f32(&format!("{down}_scale"), &[], 0.01));
            tensors.push(DemoTensor { name: down, dtype: "F8_E4M3", shape: vec![HIDDEN, FEED_FORWARD], bytes });
        } else {
            tensors.push(random.bf16(&down, &[HIDDEN, FEED_FORWARD]));
        }
        for norm in ["input_layernorm", "post_attention_layernorm"] {
            tensors.push(random.f32(&format!("{prefix}.{norm}.weight"), &[HIDDEN], 1.0));
        }
    }
    tensors
}

/// A SplitMix64 generator: the same numbers on every machine.
struct DemoRandom(u64);

impl DemoRandom {
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

    /// Normal weights whose standard deviation is one over the square root of the last dimension.
    fn bf16(&mut self, name: &str, shape: &[usize]) -> DemoTensor {
        let scale = 1.0 / (shape[shape.len() - 1] as f32).sqrt();
        let count: usize = shape.iter().product();
        // The upper half of a float32 is a bfloat16.
        let bytes =
            (0..count).flat_map(|_| ((self.normal() * scale).to_bits() >> 16).to_le_bytes().into_iter().take(2));
        DemoTensor { name: name.into(), dtype: "BF16", shape: shape.to_vec(), bytes: bytes.collect() }
    }

    /// Weights around `mean`, with a standard deviation of a twentieth of it.
    fn f32(&mut self, name: &str, shape: &[usize], mean: f32) -> DemoTensor {
        let count: usize = shape.iter().product();
        let bytes = (0..count).flat_map(|_| (mean * (1.0 + self.normal() * 0.05)).to_le_bytes());
        DemoTensor { name: name.into(), dtype: "F32", shape: shape.to_vec(), bytes: bytes.collect() }
    }
}
