//! Decoding quantized weights compared with memcpy: `cargo bench --bench quantized [NAME]`.
//!
//! One thread, in bytes of output. A read is 1 MiB of output, the size of the kernel's largest request; memcpy copies
//! 1 MiB from 64 MiB of memory. Both are measured in turn, and the medians are compared.
#![allow(clippy::unwrap_used, reason = "a benchmark has no API to document")]

use std::collections::HashMap;
use std::hint::black_box;
use std::time::Instant;
use weightfs::codec::quantized::{
    CodeNumber, CodePacking, DecodedOutput, DequantizeFormula, GatheredParts, GlobalScale, LayoutDecoder, Parts,
    QuantizedLayout, QuantizedPart, ScaleGrid, ScaleType, ZeroPoints,
};
use weightfs::content::{Content, ReadRequest};
use weightfs::format::ParseMode;
use weightfs::model::open_model;
use weightfs::model::quantization::{QuantizationConfig, SiteTensor, StoredTensors, recognise_weights};

const READ: usize = 1 << 20;
const ROUNDS: usize = 60;

const ROWS: u64 = 4096;
const COLS: u64 = 4096;

fn layout(packing: CodePacking, number: CodeNumber, block: [u64; 2], scale: ScaleType) -> QuantizedLayout {
    let groups = COLS.div_ceil(block[1]);
    let strides = if block[0] >= ROWS { [0, 0, 0] } else { [0, groups, 1] };
    QuantizedLayout {
        batch: 1,
        rows: ROWS,
        cols: COLS,
        packing,
        number,
        grid: ScaleGrid::Blocks { block, groups, strides },
        scale,
        bias: scale,
        global: GlobalScale::None,
        zeros: ZeroPoints::None,
        group_index: false,
        formula: DequantizeFormula::Scale,
    }
}

fn layouts() -> Vec<(&'static str, QuantizedLayout)> {
    let stream = |bits: u32| CodePacking::Stream { bits, row_bytes: COLS * u64::from(bits) / 8 };
    let transposed = ScaleGrid::Blocks { block: [1, 128], groups: COLS / 128, strides: [0, 1, ROWS] };
    let zeros = |interleaved: bool| ZeroPoints::Packed {
        bits: 4,
        along: 1,
        across: ROWS / 8,
        interleaved,
        add: u32::from(!interleaved),
        offset: 0,
    };
    let fp8 = |block| layout(stream(8), CodeNumber::E4M3, block, ScaleType::F32);
    let gptq = QuantizedLayout {
        grid: transposed,
        zeros: zeros(false),
        ..layout(CodePacking::Down { bits: 4 }, CodeNumber::Unsigned, [1, 128], ScaleType::F16)
    };
    let mlx = |bits: u32| QuantizedLayout {
        formula: DequantizeFormula::ScaleThenAdd,
        ..layout(stream(bits), CodeNumber::Unsigned, [1, 64], ScaleType::Bf16)
    };
    let nf4 = QuantizedLayout {
        rows: 1,
        cols: ROWS * COLS,
        packing: CodePacking::HighFirst { row_bytes: ROWS * COLS / 2 },
        grid: ScaleGrid::Blocks { block: [1, 64], groups: ROWS * COLS / 64, strides: [0, 0, 1] },
        ..layout(stream(4), CodeNumber::Map, [1, 64], ScaleType::F32)
    };
    vec![
        ("fp8 block", fp8([128, 128])),
        ("fp8 tensor", fp8([ROWS, COLS])),
        ("fp8 channel", fp8([1, COLS])),
        ("mxfp8", layout(stream(8), CodeNumber::E4M3, [1, 32], ScaleType::E8M0)),
        ("mxfp4", layout(stream(4), CodeNumber::E2M1, [1, 32], ScaleType::E8M0)),
        (
            "nvfp4",
            QuantizedLayout {
                global: GlobalScale::Times { each: false },
                ..layout(stream(4), CodeNumber::E2M1, [1, 16], ScaleType::E4M3)
            },
        ),
        (
            "nvfp4 comfy",
            QuantizedLayout {
                global: GlobalScale::Times { each: false },
                grid: ScaleGrid::Tiled { block: 16, groups: COLS / 16 },
                ..layout(CodePacking::HighFirst { row_bytes: COLS / 2 }, CodeNumber::E2M1, [1, 16], ScaleType::E4M3)
            },
        ),
        ("int8 channel", layout(stream(8), CodeNumber::Signed, [1, COLS], ScaleType::Bf16)),
        ("packed int4 g128", layout(stream(4), CodeNumber::Offset, [1, 128], ScaleType::Bf16)),
        (
            "packed int4 g32 zeros",
            QuantizedLayout {
                zeros: ZeroPoints::Packed {
                    bits: 4,
                    along: COLS / 32,
                    across: 1,
                    interleaved: false,
                    add: 0,
                    offset: 8,
                },
                ..layout(stream(4), CodeNumber::Offset, [1, 32], ScaleType::Bf16)
            },
        ),
        ("packed int3 g128", layout(stream(3), CodeNumber::Offset, [1, 128], ScaleType::Bf16)),
        (
            "awq",
            QuantizedLayout {
                grid: transposed,
                zeros: zeros(true),
                ..layout(CodePacking::Across, CodeNumber::Unsigned, [1, 128], ScaleType::F16)
            },
        ),
        ("gptq", gptq),
        ("gptq act-order", QuantizedLayout { group_index: true, ..gptq }),
        ("gptq 8 bits", QuantizedLayout { packing: CodePacking::Down { bits: 8 }, ..gptq }),
        ("gptq 3 bits", QuantizedLayout { packing: CodePacking::Down { bits: 3 }, ..gptq }),
        ("nf4", nf4),
        ("nf4 nested", QuantizedLayout { scale: ScaleType::Nested { block: 256, offset: 0.01 }, ..nf4 }),
        ("mlx 2 bits", mlx(2)),
        ("mlx 3 bits", mlx(3)),
        ("mlx 4 bits", mlx(4)),
        ("mlx 6 bits", mlx(6)),
        ("mlx 8 bits", mlx(8)),
    ]
}

/// Replaces random bytes by float32 numbers of the size of real scales: from 2^-13 to 2^-11.
fn make_scales(bytes: &mut [u8]) {
    for scale in bytes.as_chunks_mut::<4>().0 {
        *scale = (u32::from_le_bytes(*scale) & 0x00ff_ffff | 0x3900_0000).to_le_bytes();
    }
}

/// The time of `run` in seconds.
fn time(run: impl FnOnce()) -> f64 {
    let start = Instant::now();
    run();
    start.elapsed().as_secs_f64()
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

fn main() {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with("--")).unwrap_or_default();
    let mut seed = 1u32;
    let mut byte = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    };
    let source: Vec<u8> = (0..64 << 20).map(|_| byte()).collect();
    let mut target = vec![0; READ];
    for (name, layout) in layouts() {
        if !name.contains(&wanted) {
            continue;
        }
        let required = layout.required().unwrap();
        let mut parts: Parts<Vec<u8>> = required.map(|size| source[..size as usize].to_vec());
        if layout.scale == ScaleType::F32 {
            make_scales(&mut parts[QuantizedPart::Scales as usize]);
        }
        if layout.group_index {
            let cols = layout.cols as u32;
            let index = (0..cols).flat_map(|column| (column.wrapping_mul(2_654_435_761) % (cols / 128)).to_le_bytes());
            parts[QuantizedPart::GroupIndex as usize] = index.collect();
        }
        let decoder = LayoutDecoder::new(layout, &required).unwrap();
        for kind in ["f32", "bf16"] {
            let size = if kind == "f32" { 4 } else { 2 };
            let elements = READ as u64 / size;
            let (mut copies, mut decodes, mut gathers) = (Vec::new(), Vec::new(), Vec::new());
            for round in 0..ROUNDS {
                let at = (round * READ) % source.len();
                copies.push(time(|| {
                    target.copy_from_slice(&source[at..at + READ]);
                    black_box(&mut target);
                }));
                let start = (round as u64 * elements) % layout.elements();
                let range = start..start + elements;
                let held = decoder.layout().window(range.clone());
                let mut gathered = GatheredParts::default();
                gathers.push(time(|| {
                    let read = |part: QuantizedPart, offset: u64, bytes: &mut [u8]| {
                        bytes.copy_from_slice(&parts[part as usize][offset as usize..offset as usize + bytes.len()]);
                        Ok::<_, ()>(())
                    };
                    gathered = GatheredParts::new(held.clone(), decoder.needs(&held), read).unwrap();
                }));
                decodes.push(time(|| {
                    let output = match kind {
                        "f32" => DecodedOutput::F32(target.as_chunks_mut().0),
                        _ => DecodedOutput::Bf16(target.as_chunks_mut().0),
                    };
                    gathered.decode(&decoder, &range, output).unwrap();
                    black_box(&mut target);
                }));
            }
            let (copy, decode, gather) = (median(copies), median(decodes), median(gathers));
            let window = decoder.layout().window(0..elements).end / elements;
            println!(
                "{name:22} to {kind:4} {:.2} of memcpy with reading, {:.2} without; {:.1} GB/s, memcpy {:.1} GB/s; window {window} MiB",
                copy / (decode + gather / window as f64),
                copy / decode,
                READ as f64 / decode / 1e9,
                READ as f64 / copy / 1e9,
            );
        }
    }
    if wanted.is_empty() || wanted == "content" {
        content(&source);
    }
    if wanted.is_empty() || wanted == "recognition" {
        recognition();
    }
}

/// Reads the values of weights of a file as a mount does, 1 MiB at a time, as float32 and as bfloat16.
fn content(source: &[u8]) {
    /// Name, dtype, shape, and size in bytes.
    type Tensor = (&'static str, &'static str, &'static [u64], u64);
    const SIDE: u64 = 8192;
    let files: [(&str, &[Tensor]); 3] = [
        (
            "fp8 block",
            &[
                ("w.weight", "F8_E4M3", &[SIDE, SIDE], SIDE * SIDE),
                ("w.weight_scale_inv", "F32", &[64, 64], 64 * 64 * 4),
            ],
        ),
        (
            "fp8 channel",
            &[("w.weight", "F8_E4M3", &[SIDE, SIDE], SIDE * SIDE), ("w.weight_scale", "F32", &[SIDE, 1], SIDE * 4)],
        ),
        (
            "awq",
            &[
                ("w.qweight", "I32", &[SIDE, SIDE / 8], SIDE * SIDE / 2),
                ("w.qzeros", "I32", &[SIDE / 128, SIDE / 8], SIDE / 128 * SIDE / 2),
                ("w.scales", "F16", &[SIDE / 128, SIDE], SIDE / 128 * SIDE * 2),
            ],
        ),
    ];
    let dir = tempfile::tempdir().unwrap();
    for (name, tensors) in files {
        let mut end = 0;
        let entry = |(name, dtype, shape, nbytes): &Tensor| {
            let begin = end;
            end += nbytes;
            format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#)
        };
        let header = format!("{{{}}}", tensors.iter().map(entry).collect::<Vec<_>>().join(","));
        let mut file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
        // Codes that are not NaN.
        let data = file.len();
        file.extend(source.iter().cycle().take(end as usize).map(|byte| byte & 0x3f));
        if let Some(scales) = tensors.last().filter(|tensor| tensor.1 == "F32") {
            make_scales(&mut file[data..][(end - scales.3) as usize..]);
        }
        let path = dir.path().join(format!("{}.safetensors", name.replace(' ', "-")));
        std::fs::write(&path, file).unwrap();
        let model = open_model(&path.as_path().into(), ParseMode::Strict).unwrap();
        for (kind, rounded) in [("f32", false), ("bf16", true)] {
            let values = model.dequantized(&model.quantized.weights()[0], rounded).unwrap();
            let content = Content::from(values);
            let mut target = vec![0; READ];
            let (mut copies, mut reads) = (Vec::new(), Vec::new());
            for round in 0..2 * ROUNDS {
                let at = (round * READ) % source.len();
                copies.push(time(|| {
                    target.copy_from_slice(&source[at..at + READ]);
                    black_box(&mut target);
                }));
                let at = ((round * READ) as u64) % content.len();
                reads.push(time(|| {
                    content.copy(at..at + READ as u64, &ReadRequest::WAIT, &mut target).unwrap();
                    black_box(&mut target);
                }));
            }
            let (copy, read) = (median(copies), median(reads));
            println!("{name} file as {kind:6} {:.2} of memcpy; {:.1} GB/s", copy / read, READ as f64 / read / 1e9);
        }
    }
}

/// Matrices, grids of scales, and vectors.
struct ExpertTensors<'n> {
    names: &'n [String],
    find: HashMap<&'n str, usize>,
    dtype: &'static str,
}

impl StoredTensors for ExpertTensors<'_> {
    fn count(&self) -> usize {
        self.names.len()
    }

    fn tensor(&self, index: usize) -> SiteTensor<'_> {
        let (dtype, shape, bytes): (_, &[u64], _) = match index % 3 {
            0 => (self.dtype, &[2048, 7168], 2048 * 7168),
            1 => ("F32", &[16, 56], 16 * 56 * 4),
            _ => ("BF16", &[7168], 7168 * 2),
        };
        SiteTensor { index, name: &self.names[index], dtype, shape, bytes }
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.find.get(name).copied()
    }

    fn contents(&self, _: usize) -> Option<&[u8]> {
        None
    }
}

/// Looks for the weights of models of a million tensors, a third of which are quantized in one of the models.
fn recognition() {
    for (kind, dtype) in [("quantized", "F8_E4M3"), ("plain", "BF16")] {
        let names: Vec<String> = (0..1_000_000)
            .map(|at| format!("model.layers.{}.mlp.experts.{}.{}", at / 3 / 256, at / 3 % 256, NAMES[at % 3]))
            .collect();
        let names: Vec<String> = match kind {
            "quantized" => names,
            _ => names.into_iter().map(|name| name.replace("weight_scale_inv", "bias")).collect(),
        };
        let find: HashMap<&str, usize> = names.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
        let tensors = ExpertTensors { names: &names, find, dtype };
        let config = QuantizationConfig::default();
        let mut found = 0;
        let times =
            (0..5).map(|_| time(|| found = black_box(recognise_weights(&tensors, &config)).weights.len())).collect();
        println!("{found} weights among a million tensors of a {kind} model: {:.0} ms", median(times) * 1e3);
    }
}

const NAMES: [&str; 3] = ["gate_proj.weight", "gate_proj.weight_scale_inv", "norm.weight"];
