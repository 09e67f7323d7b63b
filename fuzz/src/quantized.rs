//! Target `quantized`: for any names of tensors and any configuration, every range of the values of a quantized weight
//! can be read, and returns the same bytes as a read of all values.

use super::shards;
use arbitrary::{Result, Unstructured};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use weightfs::content::{Content, ReadRequest};
use weightfs::format::ParseMode;
use weightfs::model::quantization::SCHEMES;
use weightfs::model::{self, OpenedModel};

pub fn run(bytes: &[u8]) -> bool {
    open(&mut Unstructured::new(bytes)).unwrap_or(false)
}

/// The endings of the names of companions that no scheme lists as codes or scales.
const OTHERS: [&str; 29] = [
    ".qzeros",
    ".g_idx",
    ".weight_zero_point",
    ".weight_shape",
    ".weight_g_idx",
    ".weight_scale_2",
    ".biases",
    ".weight_global_scale",
    ".comfy_quant",
    ".quant_map",
    ".nested_absmax",
    ".nested_quant_map",
    ".quant_state.bitsandbytes__nf4",
    ".quant_state.bitsandbytes__fp4",
    ".weight_format",
    ".input_scale",
    ".pre_quant_scale",
    ".codebooks",
    ".zero",
    ".nbits",
    ".group_size",
    ".axis",
    ".shape",
    ".packing",
    ".view_as_float",
    ".channel_wise",
    ".q_groups",
    ".q_scale_max",
    ".q_invperm",
];

/// Dtypes and their widths in bits.
const DTYPES: [(&str, u64); 14] = [
    ("F4", 4),
    ("F8_E4M3", 8),
    ("F8_E5M2", 8),
    ("F8_E8M0", 8),
    ("U8", 8),
    ("I8", 8),
    ("F16", 16),
    ("BF16", 16),
    ("F32", 32),
    ("I16", 16),
    ("I32", 32),
    ("U32", 32),
    ("I64", 64),
    ("F64", 64),
];

/// The contents of small tensors that describe a weight.
const CONTENTS: [&str; 10] = [
    r#"{"format":"nvfp4"}"#,
    r#"{"format":"float8_e4m3fn"}"#,
    r#"{"quant_type":"nf4","blocksize":64,"shape":[8,16],"nested_blocksize":256,"nested_offset":0.5}"#,
    r#"{"quant_type":"fp4","blocksize":18446744073709551615,"shape":[0,4294967296]}"#,
    "\0\0\0\0",
    "\u{1}\0\0\0",
    "\u{4}\0\0\0",
    "4bit_u8",
    "3bit_32",
    "\u{8}\0\0\0\0\0\0\0\u{10}\0\0\0\0\0\0\0",
];

/// Keys of configurations, and some of their values.
const KEYS: [(&str, &[&str]); 12] = [
    ("quant_method", &["\"fp8\"", "\"gptq\"", "\"awq\"", "\"compressed-tensors\"", "\"modelopt\"", "\"?\"", "3"]),
    ("format", &["\"pack-quantized\"", "\"nvfp4-pack-quantized\"", "\"gptq_v2\"", "null"]),
    ("checkpoint_format", &["\"gptq\"", "\"gptq_v2\"", "\"marlin\""]),
    ("bits", &["2", "3", "4", "8", "0", "-1", "1e9", "18446744073709551615"]),
    ("group_size", &["1", "2", "8", "16", "32", "-1", "0", "18446744073709551615"]),
    ("weight_block_size", &["[2, 4]", "[128, 128]", "[0, 1]", "[18446744073709551615, 1]", "\"2x8\"", "[]"]),
    ("desc_act", &["true", "false"]),
    ("sym", &["true", "false"]),
    ("version", &["\"gemm\"", "\"gemv\""]),
    ("mode", &["\"affine\"", "\"mxfp4\"", "\"nvfp4\"", "\"mxfp8\""]),
    ("weight_scale_semantics", &["\"inverse\""]),
    ("config_groups", &["{\"a\": {\"weights\": {\"num_bits\": 4, \"group_size\": 8}}}", "{\"a\": 1}"]),
];

/// Name, dtype, shape and data.
type WeightTensor = (String, &'static str, Vec<u64>, Vec<u8>);

fn sound(name: &str, dtype: &'static str, shape: &[u64], data: &[u8]) -> WeightTensor {
    (name.into(), dtype, shape.into(), data.into())
}

/// A weight of 24 rows and 128 columns, in groups of 64. Any tensors are rarely one of this scheme.
fn hqq() -> Vec<WeightTensor> {
    vec![
        sound("m.W_q", "U8", &[24, 64], &[0x21; 24 * 64]),
        sound("m.scale", "F16", &[48, 1], &[0x30; 96]),
        sound("m.zero", "F16", &[48, 1], &[0x31; 96]),
        sound("m.nbits", "I32", &[], &4i32.to_le_bytes()),
        sound("m.group_size", "I32", &[], &64i32.to_le_bytes()),
        sound("m.axis", "I32", &[], &1i32.to_le_bytes()),
        sound("m.shape", "I64", &[2], [24i64, 128].map(i64::to_le_bytes).as_flattened()),
        sound("m.packing", "U8", &[7], b"4bit_u8"),
    ]
}

/// A weight of 6 rows and 16 columns, with two codebooks for blocks of 2 x 4.
fn aqlm() -> Vec<WeightTensor> {
    vec![
        sound("m.codes", "I8", &[3, 4, 2], &[0xf7; 24]),
        sound("m.codebooks", "F16", &[2, 256, 2, 4], &[0x30; 8192]),
        sound("m.scales", "F16", &[3, 1, 1, 1], &[0x31; 6]),
    ]
}

/// A weight of 32 rows and 16 columns in reverse order, in groups of 8 codes of 4 bits and of 8 codes of 3 bits.
fn exl2() -> Vec<WeightTensor> {
    let places: Vec<i32> = (0..16).rev().collect();
    let places: Vec<u8> = places.into_iter().flat_map(i32::to_le_bytes).collect();
    vec![
        sound("m.q_weight", "I32", &[2, 32], &[0xb7; 256]),
        sound("m.q_scale", "I32", &[2, 4], &[0x5a; 32]),
        sound("m.q_groups", "I16", &[4], &[4, 0, 0, 0, 3, 0, 1, 0]),
        sound("m.q_scale_max", "F16", &[2], &[0x30; 4]),
        sound("m.q_invperm", "I32", &[16], &places),
    ]
}

fn open(bytes: &mut Unstructured) -> Result<bool> {
    // The most dimensions of a tensor, and a weight some of whose tensors are replaced.
    let (most, start) = match bytes.int_in_range(0..=4)? {
        0 => (3, Vec::new()),
        1 => (4, Vec::new()),
        2 => (4, hqq()),
        3 => (4, aqlm()),
        _ => (4, exl2()),
    };
    let mut config = serde_json::Map::new();
    for _ in 0..bytes.int_in_range(0..=5)? {
        let (key, values) = *bytes.choose(&KEYS)?;
        let value: Value = serde_json::from_str(bytes.choose(values)?).unwrap();
        config.insert(key.to_owned(), value);
    }
    let key = *bytes.choose(&["quantization_config", "quantization", "compression_config"])?;
    let endings = || SCHEMES.iter().flat_map(|scheme| scheme.endings);
    let (endings, count): (Vec<&str>, u32) = if start.is_empty() {
        let endings = endings().flat_map(|ending| [ending.values, ending.scales]).chain(OTHERS);
        (endings.collect(), 1 + bytes.int_in_range(1..=7)?)
    } else {
        (start.iter().filter_map(|tensor| tensor.0.strip_prefix('m')).collect(), bytes.int_in_range(0..=2)?)
    };
    let (mut taken, mut tensors): (_, Vec<WeightTensor>) = (BTreeSet::new(), Vec::new());
    for _ in 0..count {
        let name = format!("{}{}", bytes.choose(&["m", "m", "m", "n"])?, bytes.choose(&endings)?);
        let (dtype, bits) = *bytes.choose(&DTYPES)?;
        let mut shape = Vec::new();
        for _ in 0..bytes.int_in_range(0..=most)? {
            shape.push(*bytes.choose(&[0u64, 1, 2, 3, 4, 7, 8, 12, 16, 32, 64])?);
        }
        let elements: u64 = shape.iter().product();
        if !(elements * bits).is_multiple_of(8) || elements > 1 << 16 || !taken.insert(name.clone()) {
            continue;
        }
        let mut data = vec![0; (elements * bits / 8) as usize];
        match bytes.arbitrary::<bool>()? {
            true => data.iter_mut().zip(bytes.choose(&CONTENTS)?.bytes()).for_each(|(to, from)| *to = from),
            false => {
                let seed = bytes.arbitrary::<u8>()?;
                (0u8..=255).cycle().zip(&mut data).for_each(|(at, to)| *to = at.wrapping_mul(seed));
            }
        }
        tensors.push((name, dtype, shape, data));
    }
    tensors.extend(start.iter().filter(|tensor| !taken.contains(&tensor.0)).cloned());
    let dir = tempfile::tempdir().unwrap();
    let listed: Vec<_> =
        tensors.iter().map(|(name, dtype, shape, data)| (&name[..], *dtype, &shape[..], &data[..])).collect();
    let path = dir.path().join("model.safetensors");
    std::fs::write(&path, shards::file(&listed)).unwrap();
    std::fs::write(dir.path().join("config.json"), json!({ key: config }).to_string()).unwrap();
    let Ok(OpenedModel::Model(model, _)) = model::open_location(&path.as_path().into(), ParseMode::Strict) else {
        panic!("not opened")
    };
    let quantized = &model.quantized;
    assert!(count > 0 || !quantized.weights().is_empty(), "a sound weight is not recognised");
    let mut names: BTreeSet<&str> = model.logical().iter().map(|id| model.name(id)).collect();
    for weight in quantized.weights() {
        if let Some(name) = &weight.name {
            assert!(names.insert(name), "{name} is the name of another tensor");
            assert_eq!(quantized.find(name).map(|id| id.index()), Some(weight.values));
        }
        let values = model.dequantized(weight, false).unwrap();
        assert_eq!(values.len(), weight.class.elements() * 4);
        let content = Content::from(values);
        let whole = content.read(0..content.len(), &ReadRequest::WAIT).unwrap().to_vec();
        for _ in 0..4 {
            let start = bytes.int_in_range(0..=content.len())?;
            let end = bytes.int_in_range(start..=content.len())?;
            let part = content.read(start..end, &ReadRequest::WAIT).unwrap().to_vec();
            assert!(part == whole[start as usize..end as usize], "{start}..{end} of {}", weight.class.summary());
        }
    }
    Ok(!quantized.weights().is_empty())
}
