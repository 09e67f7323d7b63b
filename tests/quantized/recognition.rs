//! What is recognised and what is not, and the warnings.

use crate::cases::{File, Tensor, cases};
use crate::hostile;
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use serde_json::{Value, json};
use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashMap};
use weightfs::codec::quantized::{LayoutDecoder, QuantizedPart};
use weightfs::model::quantization::{
    self, CONTENTS_COUNT_MAX, CONTENTS_MAX, QuantizationConfig, RecognisedWeights, SCHEMES, SiteTensor, StoredTensors,
    parse_config, recognise_weights, wanted,
};

fn size(dtype: &str) -> u64 {
    match dtype {
        "F32" | "I32" | "U32" => 4,
        "F16" | "BF16" | "I16" => 2,
        "I64" => 8,
        _ => 1,
    }
}

fn tensor(name: &str, dtype: &str, shape: &[u64]) -> Tensor {
    let elements = if shape.contains(&0) { 0 } else { shape.iter().product::<u64>() };
    let data = vec![0; (elements * size(dtype)) as usize];
    Tensor { name: name.to_owned(), dtype: dtype.to_owned(), shape: shape.to_vec(), data }
}

fn found(tensors: &[(&str, &str, &[u64])], config: Value) -> (File, RecognisedWeights) {
    let file = File::new(tensors.iter().map(|(name, dtype, shape)| tensor(name, dtype, shape)).collect());
    let recognised = file.recognise(&QuantizationConfig::new(Some(&config), None));
    (file, recognised)
}

/// The only warning for these tensors, none of which is recognised.
fn warning(tensors: &[(&str, &str, &[u64])], config: Value) -> String {
    let (_, recognised) = found(tensors, config);
    assert!(recognised.weights.is_empty(), "{}", recognised.weights[0].class.summary());
    let warnings: Vec<String> = recognised.warnings.iter().map(ToString::to_string).collect();
    let [warning] = &warnings[..] else { panic!("{warnings:?}") };
    warning.clone()
}

#[test]
fn every_scheme_has_a_case_and_every_case_one_scheme() {
    let cases = cases();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    for case in &cases {
        let recognised = case.file.recognise(&case.config());
        *seen.entry(recognised.weights[0].class.scheme).or_default() += 1;
        // The order of the tensors does not matter.
        let reversed = File::new(case.file.tensors.iter().rev().cloned().collect());
        let last = reversed.tensors.len() - 1;
        let weight = &reversed.recognise(&case.config()).weights[0];
        let parts = weight.parts().map(|part| part.map(|at| last - at));
        assert_eq!(
            (parts, &weight.class.layout),
            (recognised.weights[0].parts(), &recognised.weights[0].class.layout),
            "{}",
            case.name
        );
    }
    for scheme in SCHEMES {
        assert!(seen.contains_key(scheme.name), "{}", scheme.name);
    }
}

/// Every tensor of the cases is a part of the weight or belongs to it, except for those that are weights themselves.
#[test]
fn every_companion_is_accounted_for() {
    for case in cases() {
        let recognised = case.file.recognise(&case.config());
        let weight = &recognised.weights[0];
        for (at, tensor) in case.file.tensors.iter().enumerate() {
            let belongs = weight.values == at || weight.companions().any(|companion| companion == at);
            let is_apart = ["bias", "_proj_bias", "k_scale", "scaled_fp8"].iter().any(|end| tensor.name.ends_with(end));
            assert!(belongs != is_apart, "{}: {}", case.name, tensor.name);
        }
        let stored: u64 = case.file.tensors.iter().map(|tensor| tensor.data.len() as u64).sum();
        assert!(weight.bytes <= stored && (weight.bytes > 0 || weight.class.elements() == 0), "{}", case.name);
    }
}

/// A weight without one of its parts is not recognised, unless it does not need the part.
#[test]
fn missing_part_is_reported() {
    for case in cases() {
        let weight = &case.file.recognise(&case.config()).weights[0];
        for part in QuantizedPart::ALL {
            let Some(at) = weight.parts()[part as usize] else { continue };
            let mut tensors = case.file.tensors.clone();
            let missing = tensors.remove(at);
            let recognised = File::new(tensors).recognise(&case.config());
            // Without the codes there is no warning. Zero points and indices are optional in some schemes.
            match part {
                QuantizedPart::Values => assert!(recognised.weights.is_empty(), "{}", case.name),
                QuantizedPart::Zeros | QuantizedPart::GroupIndex | QuantizedPart::Permutation
                    if !recognised.weights.is_empty() => {}
                QuantizedPart::Scales if recognised.warnings.is_empty() => {
                    // Without the scales, these are not recognised as codes: there is no configuration, or other
                    // tensors have such names or dtypes too.
                    let values = &case.file.tensors[weight.values];
                    let is_ordinary = !values.name.ends_with(".weight") || values.dtype == "BF16";
                    assert!(is_ordinary || !case.config().is_quantized, "{}", case.name);
                }
                _ => assert!(
                    recognised.weights.is_empty() && recognised.warnings.len() == 1,
                    "{}: {} {:?}",
                    case.name,
                    missing.name,
                    recognised.warnings
                ),
            }
        }
    }
}

/// A part that is longer or shorter by one in any dimension is refused, unless the weight is recognised with other
/// dimensions.
#[test]
fn part_of_a_wrong_shape_is_refused() {
    for case in cases() {
        let weight = &case.file.recognise(&case.config()).weights[0];
        for part in QuantizedPart::ALL {
            let Some(at) = weight.parts()[part as usize] else { continue };
            for axis in 0..case.file.tensors[at].shape.len() {
                for change in [1, -1] {
                    let mut tensors = case.file.tensors.clone();
                    let changed = &mut tensors[at];
                    let Some(dim) = changed.shape[axis].checked_add_signed(change) else { continue };
                    changed.shape[axis] = dim;
                    let (dtype, shape) = (changed.dtype.clone(), changed.shape.clone());
                    changed.data.resize((shape.iter().product::<u64>() * size(&dtype)) as usize, 0);
                    let file = File::new(tensors);
                    let recognised = file.recognise(&case.config());
                    let Some(changed) = recognised.weights.first() else { continue };
                    let decoder = LayoutDecoder::new(changed.class.layout, &file.sizes(changed));
                    assert!(decoder.is_ok(), "{}: {:?} {axis} {change}", case.name, part);
                    let range = 0..changed.class.elements();
                    file.decode(changed, &range, &range);
                    let same_size = matches!(
                        part,
                        QuantizedPart::Map
                            | QuantizedPart::NestedMap
                            | QuantizedPart::Global
                            | QuantizedPart::GroupIndex
                            | QuantizedPart::CodeGroups
                            | QuantizedPart::Permutation
                    );
                    assert!(!same_size, "{}: {part:?} {shape:?}", case.name);
                }
            }
        }
    }
}

#[test]
fn unknown_methods_and_formats_are_reported() {
    let config = json!({"quantization_config": {"quant_method": "eetq"}});
    assert_eq!(warning(&[], config), "a quantization method that is not known (eetq)");
    let config = json!({"quantization_config": {"quant_method": "compressed-tensors", "format": "marlin-24"}});
    assert_eq!(warning(&[], config), "a format of compressed-tensors that is not known (marlin-24)");
    let config = json!({"quantization_config": {"quant_method": "gptq", "checkpoint_format": "marlin"}});
    assert_eq!(warning(&[], config), "a format of GPTQ that is not known (marlin)");
    for (method, format) in [("fp8", "x"), ("AWQ", "x"), ("compressed-tensors", "float-quantized")] {
        let config = json!({"quantization_config": {"quant_method": method, "format": format}});
        assert!(found(&[], config).1.warnings.is_empty());
    }
}

/// Tensors without data.
struct ListedTensors<'t> {
    count: usize,
    tensor: &'t dyn Fn(usize) -> SiteTensor<'t>,
    find: &'t dyn Fn(&str) -> Option<usize>,
}

impl StoredTensors for ListedTensors<'_> {
    fn count(&self) -> usize {
        self.count
    }

    fn tensor(&self, index: usize) -> SiteTensor<'_> {
        (self.tensor)(index)
    }

    fn find(&self, name: &str) -> Option<usize> {
        (self.find)(name)
    }

    fn contents(&self, _: usize) -> Option<&[u8]> {
        None
    }
}

/// Whether the configuration of a model with these tensors is read.
fn may_be_quantized(list: &[(&str, &str)]) -> bool {
    let tensors = ListedTensors {
        count: list.len(),
        tensor: &|index| {
            let (name, dtype) = list[index];
            SiteTensor { index, name, dtype, shape: &[4, 4], bytes: 16 * size(dtype) }
        },
        find: &|name| list.iter().position(|(other, _)| *other == name),
    };
    quantization::may_be_quantized(&tensors)
}

#[test]
fn scales_without_a_scheme_are_reported_once() {
    let pairs = [
        ("m.weight", "m.weight_scale"),
        ("m._weight_qdata", "m._weight_scale"),
        ("m.weight._data", "m.weight._scale"),
        ("m.W_q", "m.scale"),
        ("m.codes", "m.scales"),
        ("m.weight", "m.weight_scales"),
        ("m.weight", "m.scale"),
        ("m.B", "m.s"),
        ("m.qweight", "m.wscales"),
        ("m.weight.compressed", "m.weight.bitmask"),
    ];
    for (values, scales) in pairs {
        let expected = format!("scales of no known scheme ({scales}), such as \"{values}\"");
        assert_eq!(warning(&[(values, "I32", &[4, 4]), (scales, "BF16", &[4, 1])], json!({})), expected);
        assert!(may_be_quantized(&[(values, "I32"), (scales, "BF16")]), "{values}");
        // Tensors of ordinary types are no codes, except for those of sparse weights, and some of HQQ.
        let may_be_float = values.ends_with(".compressed") || values.ends_with(".W_q");
        assert_eq!(may_be_quantized(&[(values, "F16"), (scales, "BF16")]), may_be_float, "{values}");
        if values.ends_with(".compressed") {
            continue;
        }
        let (_, recognised) = found(&[(values, "F16", &[4, 4]), (scales, "BF16", &[4, 1])], json!({}));
        assert!(recognised.warnings.is_empty() && recognised.weights.is_empty(), "{values}");
    }
    let many: Vec<(String, String)> =
        (0..50).map(|at| (format!("{at}.weight"), format!("{at}.weight_scale"))).collect();
    let many: Vec<(&str, &str, &[u64])> = many
        .iter()
        .flat_map(|(weight, scale)| [(&**weight, "U8", &[4, 4][..]), (&**scale, "I32", &[4, 1][..])])
        .collect();
    let expected = "scales of no known scheme (0.weight_scale), such as \"0.weight\", 50 tensors";
    assert_eq!(warning(&many, json!({})), expected);
}

/// Such weights are named with their scheme: by their tensors or, if these have other names, by the configuration.
#[test]
fn schemes_that_are_not_decoded_are_named() {
    let schemes = [
        ("m.trellis", "m.suh", "exl3", "EXL3"),
        ("m.trellis", "m.su", "exl3", "EXL3"),
        ("m.Qidxs", "m.Wscale", "quip", "QuIP#"),
        ("m.dense_weights", "m.row_offsets", "spqr", "SpQR"),
        ("m.indices", "m.weight_scale", "vptq", "VPTQ"),
    ];
    for (values, scales, method, scheme) in schemes {
        let config = json!({"quantization_config": {"quant_method": method}});
        for config in [config.clone(), json!({})] {
            let expected =
                format!("{scheme}: a scheme that is recognised, not dequantized ({scales}), such as \"{values}\"");
            assert_eq!(warning(&[(values, "I16", &[4, 4]), (scales, "F16", &[4])], config), expected);
        }
        let expected = format!("{scheme}: a scheme that is recognised, not dequantized ({method})");
        assert_eq!(warning(&[("m.other", "I16", &[4, 4])], config), expected);
        assert!(may_be_quantized(&[(values, "I16"), (scales, "F16")]), "{values}");
    }
}

/// llama.cpp multiplies by such scales, which weightfs does not.
#[test]
fn scales_of_block_types_are_reported() {
    for dtype in ["NVFP4", "MXFP4", "Q4_0", "IQ2_XS", "TQ1_0"] {
        let scales: [(&str, &str, &[u64]); 4] = [
            ("blk.0.up.weight", dtype, &[4, 64]),
            ("blk.0.up.scale", "F32", &[1]),
            ("blk.1.up.weight", dtype, &[4, 64]),
            ("blk.1.up.scale", "F32", &[1]),
        ];
        let expected = "GGUF: a scale that the values are not multiplied by (blk.0.up.scale), such as \
                        \"blk.0.up.weight\", 2 tensors";
        assert_eq!(warning(&scales, json!({})), expected);
        assert!(may_be_quantized(&[("m.weight", dtype), ("m.scale", "F32")]));
        assert!(!may_be_quantized(&[("m.weight", dtype), ("m.bias", "F32")]));
    }
    for dtype in ["F32", "BF16", "F16", "F64"] {
        assert!(!may_be_quantized(&[("m.weight", dtype), ("m.scale", "F32")]), "{dtype}");
        assert!(found(&[("m.weight", dtype, &[4, 4]), ("m.scale", "F32", &[1])], json!({})).1.warnings.is_empty());
    }
}

#[test]
fn codes_without_scales_are_reported() {
    let fp8 = json!({"quantization_config": {"quant_method": "fp8"}});
    let expected = "codes without scales (F8_E4M3), such as \"m.weight\"";
    assert_eq!(warning(&[("m.weight", "F8_E4M3", &[4, 4])], fp8), expected);
    let expected = "codes without scales (I32), such as \"m.qweight\"";
    assert_eq!(warning(&[("m.qweight", "I32", &[4, 4])], json!({})), expected);
    let expected = "codes without scales (I32), such as \"m.q_weight\"";
    assert_eq!(warning(&[("m.q_weight", "I32", &[4, 32])], json!({})), expected);
    let config = json!({"quantization_config": {"quant_method": "mxfp4"}});
    for name in ["m_blocks", "m.blocks"] {
        let expected = format!("codes without scales (U8), such as \"{name}\"");
        assert_eq!(warning(&[(name, "U8", &[4, 16])], config.clone()), expected);
        assert!(found(&[(name, "U8", &[4, 16])], json!({})).1.warnings.is_empty(), "{name}");
    }
    // Codes of AQLM and, in the dtype of floats, of HQQ.
    let expected = "codes without scales (I16), such as \"m.codes\"";
    let codes: (&str, &str, &[u64]) = ("m.codes", "I16", &[4, 4, 1]);
    assert_eq!(warning(&[codes, ("m.codebooks", "F16", &[1, 512, 1, 8])], json!({})), expected);
    assert!(may_be_quantized(&[("m.codes", "I16"), ("m.codebooks", "F16")]));
    assert_eq!(warning(&[codes], json!({"quantization_config": {"quant_method": "aqlm"}})), expected);
    assert!(found(&[codes], json!({})).1.warnings.is_empty());
    for beside in ["m.nbits", "m.packing"] {
        let expected = "codes without scales (F16), such as \"m.W_q\"";
        assert_eq!(warning(&[("m.W_q", "F16", &[4, 4]), (beside, "U8", &[1])], json!({})), expected);
        assert!(may_be_quantized(&[("m.W_q", "F16"), (beside, "U8")]));
    }
    assert!(found(&[("m.W_q", "F16", &[4, 4])], json!({})).1.warnings.is_empty());
    // Without a configuration these are ordinary numbers.
    assert!(found(&[("m.weight", "F8_E4M3", &[4, 4])], json!({})).1.warnings.is_empty());
}

#[test]
fn names_that_only_look_like_scales_are_ignored() {
    let tensors: [(&str, &str, &[u64]); 14] = [
        ("logit_scale", "F32", &[]),
        ("logit.weight", "F32", &[4]),
        ("layer", "BF16", &[4, 4]),
        ("layer_scale", "BF16", &[4]),
        ("norm.weight", "F32", &[4]),
        ("norm.scale", "F32", &[4]),
        ("norm.scales", "F32", &[4]),
        ("mask", "BOOL", &[4]),
        ("mask_scale", "F32", &[]),
        ("_scale", "F32", &[]),
        ("scale", "F32", &[]),
        ("attn.k_scale", "F32", &[]),
        ("m.weight", "F16", &[4, 4]),
        ("m.weight_scale", "F32", &[]),
    ];
    let (_, recognised) = found(&tensors, json!({}));
    assert!(recognised.weights.is_empty() && recognised.warnings.is_empty(), "{:?}", recognised.warnings);
}

#[test]
fn block_size_comes_from_the_configuration() {
    let tensors: [(&str, &str, &[u64]); 2] =
        [("m.weight", "F8_E4M3", &[192, 256]), ("m.weight_scale_inv", "F32", &[2, 2])];
    let block = |size: [u64; 2]| json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": size}});
    let blocks = |config: Value| found(&tensors, config).1.weights.first().map(|weight| weight.class.parameters.block);
    assert_eq!(blocks(block([128, 128])), Some([128, 128]));
    assert_eq!(blocks(block([96, 128])), Some([96, 128]));
    assert_eq!(blocks(json!({})), Some([128, 128]));
    assert_eq!(blocks(block([64, 64])), None);
    let expected = "FP8: scales of a wrong shape ([2, 2] for codes of [192, 256]), such as \"m.weight\"";
    assert_eq!(warning(&tensors, block([64, 64])), expected);
}

/// E8M0 scales of 32 columns are those of MXFP8, and others those of blocks.
#[test]
fn shape_of_the_scales_distinguishes_mxfp8_from_fp8_blocks() {
    let config = json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}});
    let scheme = |scales: &[u64]| {
        let (_, recognised) =
            found(&[("m.weight", "F8_E4M3", &[256, 384]), ("m.scale", "F8_E8M0", scales)], config.clone());
        recognised.weights.first().map(|weight| weight.class.scheme)
    };
    assert_eq!(scheme(&[256, 12]), Some("MXFP8"));
    assert_eq!(scheme(&[2, 3]), Some("FP8"));
    assert_eq!(scheme(&[256, 11]), None);
}

/// If a matrix has no rows, only the configuration distinguishes AWQ from GPTQ.
#[test]
fn matrix_without_rows_has_the_scheme_of_the_configuration() {
    let tensors: [(&str, &str, &[u64]); 3] =
        [("m.qweight", "I32", &[64, 0]), ("m.qzeros", "I32", &[2, 0]), ("m.scales", "F16", &[2, 0])];
    let scheme = |method: &str, cols: u64| {
        let config = json!({"quantization_config": {"quant_method": method, "bits": 4, "group_size": cols / 2}});
        let weight = found(&tensors, config).1.weights.pop()?;
        Some((weight.class.scheme, weight.class.shape.clone()))
    };
    assert_eq!(scheme("awq", 64), Some(("AWQ", vec![0, 64])));
    assert_eq!(scheme("gptq", 512), Some(("GPTQ", vec![0, 512])));
}

#[test]
fn uncertain_schemes_are_refused() {
    let gptq: [(&str, &str, &[u64]); 3] =
        [("m.qweight", "I32", &[8, 64]), ("m.qzeros", "I32", &[2, 8]), ("m.scales", "F16", &[2, 64])];
    let unknown = "GPTQ: a checkpoint format that is not known";
    let missing = "GPTQ: the checkpoint format is not given (config.json has none, or is missing)";
    assert_eq!(warning(&gptq, json!({})), format!("{missing}, such as \"m.qweight\""));
    let config = json!({"quantization_config": {"quant_method": "gptq", "checkpoint_format": "gptq_p", "bits": 4}});
    let warnings = found(&gptq, config).1.warnings;
    assert_eq!(warnings[0].to_string(), format!("{unknown} (gptq_p), such as \"m.qweight\""));
    assert_eq!(warnings[1].to_string(), "a format of GPTQ that is not known (gptq_p)");
    let config = json!({"quantization_config": {"quant_method": "auto-round", "packing_format": "auto_round:x"}});
    assert_eq!(warning(&gptq, config), format!("{unknown} (auto_round:x), such as \"m.qweight\""));
    let awq: [(&str, &str, &[u64]); 3] =
        [("m.qweight", "I32", &[64, 8]), ("m.qzeros", "I32", &[2, 8]), ("m.scales", "F16", &[2, 64])];
    let config = json!({"quantization_config": {"quant_method": "awq", "version": "gemv", "bits": 4}});
    assert_eq!(warning(&awq, config), "AWQ: a version of AWQ that is not known (gemv), such as \"m.qweight\"");
    let mlx: [(&str, &str, &[u64]); 3] =
        [("m.weight", "U32", &[4, 8]), ("m.scales", "F16", &[4, 1]), ("m.biases", "F16", &[4, 1])];
    let expected = "MLX: group size and bits that are not given (no quantization in config.json), such as \"m.weight\"";
    assert_eq!(warning(&mlx, json!({})), expected);
    // 100 columns of 3 bits take 10 words in both packings.
    let mut packed = vec![
        tensor("m.weight_packed", "I32", &[4, 10]),
        tensor("m.weight_scale", "F32", &[4, 1]),
        tensor("m.weight_shape", "I64", &[2]),
    ];
    packed[2].data = [4i64.to_le_bytes(), 100i64.to_le_bytes()].concat();
    let config = json!({"quantization_config": {"quant_method": "compressed-tensors", "num_bits": 3}});
    let recognised = File::new(packed).recognise(&QuantizationConfig::new(Some(&config), None));
    let expected = "pack-quantized: a packing that is not certain (3 bits, 100 columns), such as \"m.weight_packed\"";
    assert_eq!(recognised.warnings[0].to_string(), expected);
    let comfy: [(&str, &str, &[u64]); 3] =
        [("m.weight", "I8", &[4, 4]), ("m.weight_scale", "F32", &[]), ("m.comfy_quant", "U8", &[1])];
    let expected = "int-quantized: a format of ComfyUI that is not known (unknown), such as \"m.weight\"";
    assert_eq!(warning(&comfy, json!({})), expected);
}

/// The metadata of a file says the same as a tensor beside the weight.
#[test]
fn metadata_of_comfyui_is_used() {
    for name in ["comfy_nvfp4", "comfy_mxfp8", "comfy_fp8"] {
        let case = cases().into_iter().find(|case| case.name == name).unwrap();
        let expected = case.file.recognise(&case.config()).weights[0].class.layout;
        let is_format = |tensor: &Tensor| tensor.name == "m.comfy_quant";
        let format = case.file.tensors.iter().find(|tensor| is_format(tensor)).unwrap().data.clone();
        let format: Value = serde_json::from_slice(&format).unwrap();
        let file = File::new(case.file.tensors.into_iter().filter(|tensor| !is_format(tensor)).collect());
        let found = |layer: &str| {
            let metadata = json!({"format_version": "1.0", "layers": {layer: format}});
            let config = QuantizationConfig::default().with_comfy_metadata(&metadata.to_string());
            file.recognise(&config).weights.first().map(|weight| weight.class.layout)
        };
        assert_eq!(found("m"), Some(expected), "{name}");
        // Without it, the scales have the wrong shape for any other scheme.
        assert_eq!(found("other").is_some(), name == "comfy_fp8", "{name}");
    }
    let rotated: [(&str, &str, &[u64]); 2] = [("m.weight", "F8_E4M3", &[4, 4]), ("m.weight_scale", "F32", &[])];
    let file = File::new(rotated.iter().map(|(name, dtype, shape)| tensor(name, dtype, shape)).collect());
    let metadata = json!({"layers": {"m": {"format": "float8_e4m3fn", "convrot": true}}});
    let recognised = file.recognise(&QuantizationConfig::default().with_comfy_metadata(&metadata.to_string()));
    assert_eq!((recognised.weights.len(), recognised.warnings.len()), (0, 1));
}

/// If the configuration has several group sizes, the shapes of a layer select one.
#[test]
fn groups_of_layers_may_differ() {
    let groups = json!({
        "a": {"weights": {"num_bits": 4, "group_size": 128}},
        "b": {"weights": {"num_bits": 4, "group_size": 32}},
        "c": {"weights": {"num_bits": 8, "group_size": 30}},
    });
    let config = QuantizationConfig::new(Some(&json!({"quantization_config": {"config_groups": groups}})), None);
    let block = |count: u64, cols: u64| {
        let mut tensors = vec![
            tensor("m.weight_packed", "I32", &[4, cols / 8]),
            tensor("m.weight_scale", "F32", &[4, count]),
            tensor("m.weight_shape", "I64", &[2]),
        ];
        tensors[2].data = [4u64.to_le_bytes(), cols.to_le_bytes()].concat();
        let recognised = File::new(tensors).recognise(&config);
        recognised.weights.first().map(|weight| (weight.class.dtype, weight.class.parameters.block[1]))
    };
    assert_eq!(block(4, 512), Some(("INT4", 128)));
    assert_eq!(block(16, 512), Some(("INT4", 32)));
    // None of the named sizes fits, and 64 leaves no column over.
    assert_eq!(block(8, 512), Some(("INT4", 64)));
    // Groups of 30 and of 32 columns fit.
    assert_eq!(block(2, 56), None);
}

/// What is kept of the configuration, and compared with each weight, does not grow with the number of groups. (Only the
/// names of layers are kept, and are looked up once.)
#[test]
fn many_groups_of_layers_cost_no_more_than_one() {
    let config = |count: usize| {
        let groups = (0..count).map(|at| {
            let group = json!({"num_bits": 4, "group_size": 32, "weight_block_size": [64, 64], "desc_act": true});
            (format!("group_{at}"), json!({"weights": group}))
        });
        let groups: serde_json::Map<String, Value> = groups.collect();
        let all = json!({"config_groups": groups, "modules": groups});
        QuantizationConfig::new(Some(&json!({"quantization_config": all})), Some(&json!({"quantization": all})))
    };
    let (one, many) = (format!("{:?}", config(1)), format!("{:?}", config(5000)));
    assert_eq!(one, many);
    assert!(one.contains("32") && one.contains("64") && !one.contains("group_0"), "{one}");
}

/// Sizes that differ are found without looking at all of them, with the same result.
#[test]
fn different_group_sizes_are_told_apart() {
    let sizes = [7, 8, 16, 30, 32, 64, 128];
    let groups: serde_json::Map<String, Value> =
        sizes.iter().rev().map(|size| (format!("{size}"), json!({"weights": {"group_size": size}}))).collect();
    let config = QuantizationConfig::new(Some(&json!({"quantization_config": {"config_groups": groups}})), None);
    for cols in 0..300u64 {
        for count in 0..50 {
            let fitting: Vec<u64> = sizes.into_iter().filter(|size| cols.div_ceil(*size) == count).collect();
            let expected = match &fitting[..] {
                [] => (count > 0 && cols % count == 0).then(|| (cols / count).max(1)),
                [size] => Some(*size),
                _ => None,
            };
            assert_eq!(config.group_size(cols, count), expected, "{cols} {count}");
        }
    }
    let blocks: serde_json::Map<String, Value> =
        (1..=65).map(|size| (format!("{size}"), json!({"block_structure": [size, 1000]}))).collect();
    let config = |count: usize| {
        let blocks: serde_json::Map<String, Value> = blocks.clone().into_iter().take(count).collect();
        QuantizationConfig::new(Some(&json!({"quantization_config": {"config_groups": blocks}})), None)
    };
    assert!(config(64).block([60, 1000], [60, 1]).is_some() && config(65).block([60, 1000], [60, 1]).is_none());
}

/// Files of MLX may mix modes. A layer with an entry of its own has the defaults of its own mode.
#[test]
fn layers_of_mlx_with_own_parameters_ignore_those_of_the_model() {
    let affine: [(&str, &str, &[u64]); 3] =
        [("a.weight", "U32", &[4, 32]), ("a.scales", "BF16", &[4, 2]), ("a.biases", "BF16", &[4, 2])];
    let mxfp4: [(&str, &str, &[u64]); 2] = [("b.weight", "U32", &[4, 16]), ("b.scales", "U8", &[4, 4])];
    let summaries = |quantization: Value| {
        let (_, recognised) = found(&[&affine[..], &mxfp4].concat(), json!({"quantization": quantization}));
        assert!(recognised.warnings.is_empty(), "{:?}", recognised.warnings);
        recognised.weights.iter().map(|weight| weight.class.summary()).collect::<Vec<_>>()
    };
    let expected = ["MLX: INT8, groups of 64, asymmetric", "MLX: MXFP4, groups of 32"];
    let of_model = json!({"group_size": 32, "bits": 4, "mode": "mxfp4", "a": {"group_size": 64, "bits": 8}});
    assert_eq!(summaries(of_model), expected);
    assert_eq!(summaries(json!({"mode": "mxfp4", "a": {"bits": 8}})), expected);
    assert_eq!(summaries(json!({"group_size": 64, "bits": 8, "b": {"mode": "mxfp4"}})), expected);
    // An entry that is no object says only whether the layer is quantized.
    assert_eq!(summaries(json!({"group_size": 64, "bits": 8, "a": true, "b": {"mode": "mxfp4"}})), expected);
}

/// No version of mlx writes them.
#[test]
fn codes_of_7_bits_are_not_known_in_mlx() {
    let tensors: [(&str, &str, &[u64]); 3] =
        [("a.weight", "U32", &[4, 14]), ("a.scales", "BF16", &[4, 1]), ("a.biases", "BF16", &[4, 1])];
    let expected = "MLX: a mode that is not known (affine, 7 bits, groups of 64), such as \"a.weight\"";
    assert_eq!(warning(&tensors, json!({"quantization": {"group_size": 64, "bits": 7}})), expected);
}

#[test]
fn weight_whose_logical_name_is_taken_is_refused() {
    let tensors: [(&str, &str, &[u64]); 3] =
        [("m.weight_packed", "U8", &[4, 16]), ("m.weight_scale", "U8", &[4, 1]), ("m.weight", "F16", &[4, 32])];
    let expected = "MXFP4: a logical name that another tensor has (m.weight), such as \"m.weight_packed\"";
    assert_eq!(warning(&tensors, json!({})), expected);
    let (file, recognised) = found(&tensors[..2], json!({}));
    let weight = &recognised.weights[0];
    assert_eq!(weight.name.as_deref().unwrap_or(&file.tensors[weight.values].name), "m.weight");
}

/// ModelOpt writes one scale for all experts, or one for each.
#[test]
fn fused_experts_of_modelopt_are_recognised() {
    let tensors = |dims: &'static [u64], scales: &'static [u64]| -> [(&str, &str, &'static [u64]); 3] {
        let name = "experts.gate_up_proj";
        [
            (name, "F8_E4M3", dims),
            ("experts.gate_up_proj_weight_scale", "F32", scales),
            ("experts.gate_up_proj_input_scale", "F32", &[]),
        ]
    };
    for scales in [&[][..], &[1], &[3], &[3, 1, 1]] {
        let (_, recognised) = found(&tensors(&[3, 4, 8], scales), json!({}));
        let weight = &recognised.weights[0];
        assert_eq!((weight.class.scheme, &weight.class.shape[..]), ("FP8", &[3, 4, 8][..]), "{scales:?}");
        assert_eq!(weight.companions().collect::<Vec<_>>(), [1, 2]);
    }
    for scales in [&[4][..], &[3, 4], &[3, 4, 1], &[3, 1, 8]] {
        let scheme = "FP8: scales of a wrong shape";
        assert!(warning(&tensors(&[3, 4, 8], scales), json!({})).starts_with(scheme), "{scales:?}");
    }
    assert!(found(&tensors(&[4, 8], &[]), json!({})).1.weights.is_empty());
}

#[test]
fn scales_of_activations_belong_to_the_weight() {
    let tensors: [(&str, &str, &[u64]); 6] = [
        ("a.weight", "F8_E4M3", &[4, 4]),
        ("a.weight_scale", "F32", &[1]),
        ("a.input_scale_ub", "F32", &[1]),
        ("b.weight", "U8", &[4, 32]),
        ("b.weight_scale", "F32", &[8, 1]),
        ("b.weight_scale_2", "F32", &[]),
    ];
    let (_, recognised) = found(&tensors, json!({}));
    let companions = |at: usize| recognised.weights[at].companions().collect::<Vec<_>>();
    assert_eq!((companions(0), companions(1)), (vec![1, 2], vec![4, 5]));
}

#[test]
fn markers_of_the_model_are_found() {
    let tensors: [(&str, &str, &[u64]); 5] = [
        ("scaled_fp8", "F8_E4M3", &[2]),
        ("m.scaled_fp8", "F8_E4M3", &[0]),
        ("m.unscaled_fp8", "F8_E4M3", &[2]),
        ("m.weight", "F8_E4M3", &[4, 4]),
        ("m.scale_weight", "F32", &[]),
    ];
    let (_, recognised) = found(&tensors, json!({}));
    assert_eq!((recognised.weights.len(), &recognised.markers[..]), (1, &[0, 1][..]));
    assert_eq!(recognised.weights[0].companions().collect::<Vec<_>>(), [4]);
}

#[test]
fn weights_of_the_same_name_are_refused() {
    let blocks: [(&str, &str, &[u64]); 4] = [
        ("m_blocks", "U8", &[4, 2, 16]),
        ("m_scales", "U8", &[4, 2]),
        ("m.blocks", "U8", &[4, 2, 16]),
        ("m.scales", "U8", &[4, 2]),
    ];
    let expected = "codes of two weights of the same name (m), such as \"m_blocks\", 2 tensors";
    assert_eq!(warning(&blocks, json!({})), expected);
    for pair in blocks.chunks(2) {
        assert_eq!(found(pair, json!({})).1.weights.len(), 1);
    }
    let packed: [(&str, &str, &[u64]); 5] = [
        ("m.qweight", "I32", &[64, 8]),
        ("m.qzeros", "I32", &[2, 8]),
        ("m.scales", "F16", &[2, 64]),
        ("m.weight_packed", "U8", &[4, 16]),
        ("m.weight_scale", "U8", &[4, 1]),
    ];
    let config = json!({"quantization_config": {"quant_method": "awq", "bits": 4}});
    let expected = "codes of two weights of the same name (m.weight), such as \"m.qweight\", 2 tensors";
    assert_eq!(warning(&packed, config), expected);
}

/// Codes that two kinds of scales fit are not recognised. Scales that do not fit are ignored if others do.
#[test]
fn codes_with_two_kinds_of_scales_are_refused() {
    let tensors = |other: &'static [u64]| -> [(&str, &str, &'static [u64]); 3] {
        [("m.weight", "F8_E4M3", &[4, 4]), ("m.weight_scale", "F32", &[1]), ("m.weight_scale_inv", "F32", other)]
    };
    let expected = "codes with two kinds of scales (m.weight_scale, m.weight_scale_inv), such as \"m.weight\"";
    let config = json!({"quantization_config": {"quant_method": "fp8"}});
    assert_eq!(warning(&tensors(&[4]), config), expected);
    let (_, recognised) = found(&tensors(&[3]), json!({}));
    assert_eq!((recognised.weights.len(), &recognised.warnings[..]), (1, &[][..]));
    assert_eq!(recognised.weights[0].part(QuantizedPart::Scales), Some(1));
}

#[test]
fn summaries_name_the_parameters() {
    let expected = [
        ("fp8_block", "FP8: F8_E4M3, blocks of 128 x 128"),
        ("ct_float_tensor", "FP8: F8_E4M3, one scale"),
        ("ct_float_channel", "FP8: F8_E4M3, a scale per row"),
        ("fp8_experts_columns", "FP8: F8_E4M3, a scale per column"),
        ("gpt_oss", "MXFP4: MXFP4, groups of 32"),
        ("ct_packed_4_asymmetric", "pack-quantized: INT4, groups of 32, asymmetric"),
        ("gptq_4_order", "GPTQ: INT4, groups of 32, asymmetric, act-order"),
        ("bnb_nf4_nested", "bitsandbytes 4-bit: NF4, groups of 64, nested"),
        ("modelopt_int4", "ModelOpt INT4: INT4, groups of 32, smoothed for the activations"),
        ("mlx_3_64", "MLX: INT3, groups of 64, asymmetric"),
        ("aqlm_2x8_1x8", "AQLM: 2x8, a scale per row"),
        ("aqlm_1x8_2x4", "AQLM: 1x8, blocks of 2 x 128"),
        ("hqq_3_axis0_64", "HQQ: INT3, groups of 64, asymmetric"),
        ("hqq_5_axis1_channel", "HQQ: INT5, a scale per row, asymmetric"),
        ("hqq_4_axis0_channel", "HQQ: INT4, a scale per column, asymmetric"),
        ("exl2_4", "EXL2: INT4, groups of 32, act-order, nested"),
        ("exl2_plain", "EXL2: mixed INT, groups of 32, nested"),
    ];
    let cases = cases();
    for (name, expected) in expected {
        let case = cases.iter().find(|case| case.name == name).unwrap();
        assert_eq!(case.file.recognise(&case.config()).weights[0].class.summary(), expected, "{name}");
    }
    let of = |name: &str| {
        let case = cases.iter().find(|case| case.name == name).unwrap();
        case.file.recognise(&case.config()).weights[0].bits_per_weight()
    };
    assert_eq!((of("gpt_oss"), of("ct_packed_4_group")), (4.25, 4.5));
    // 4 bits, an 8-bit scale for 16 elements, and a scale of 4 bytes.
    assert_eq!(of("modelopt_nvfp4"), 4.5 + 32.0 / (20.0 * 96.0));
}

/// Each tensor is looked at once, and few names are searched for.
#[test]
fn a_million_tensors_take_few_lookups() {
    const LEN: usize = 1_000_000;
    let looked = Cell::new(0);
    let searched = Cell::new(0);
    let names =
        ["weight", "bias", "weight_scale_inv", "norm.weight", "input_scale", "rotary.inv_freq", "x.scales", "y.scale"];
    let names: Vec<String> =
        (0..LEN).map(|at| format!("layers.{}.{}", at / names.len(), names[at % names.len()])).collect();
    let by_name: HashMap<&str, usize> = names.iter().enumerate().map(|(at, name)| (name.as_str(), at)).collect();
    let tensors = ListedTensors {
        count: LEN,
        tensor: &|index| {
            looked.set(looked.get() + 1);
            let dtype = if index % 8 == 0 { "F8_E4M3" } else { "F32" };
            SiteTensor { index, name: &names[index], dtype, shape: &[1, 1], bytes: size(dtype) }
        },
        find: &|name| {
            searched.set(searched.get() + 1);
            by_name.get(name).copied()
        },
    };
    let recognised = recognise_weights(&tensors, &QuantizationConfig::default());
    assert_eq!((recognised.weights.len(), recognised.warnings.len()), (LEN / 8, 0));
    assert!(looked.get() < 2 * LEN && searched.get() < 4 * LEN, "{} {}", looked.get(), searched.get());
}

/// Descriptions are read only where a weight may be, up to the size that a description has, and not many.
#[test]
fn only_small_descriptions_beside_codes_are_read() {
    let named = |list: &[(&str, u64)]| {
        let tensors = ListedTensors {
            count: list.len(),
            tensor: &|index| SiteTensor { index, name: list[index].0, dtype: "U8", shape: &[], bytes: list[index].1 },
            find: &|name| list.iter().position(|(other, _)| *other == name),
        };
        wanted(&tensors)
    };
    let kinds = [
        ("m.weight_shape", "m.weight_packed", 64),
        ("m.weight_format", "m.weight", 16),
        ("m.comfy_quant", "m.weight", 4096),
        ("m.weight.quant_state.bitsandbytes__nf4", "m.weight", 4096),
        ("m.quant_state.bitsandbytes__fp4", "m", 4096),
        ("m.shape", "m.W_q", 16),
        ("m.packing", "m.W_q", 32),
        ("m.q_groups", "m.q_weight", 256 << 10),
        ("m.q_invperm", "m.q_weight", 4 << 20),
    ];
    for (name, codes, max) in kinds {
        assert_eq!(named(&[(codes, 1 << 40), (name, max)]), Ok(vec![1]), "{name}");
        assert_eq!(named(&[(codes, 1 << 40), (name, max + 1)]), Ok(vec![]), "{name}");
        assert_eq!(named(&[("m.other", 1), (name, max)]), Ok(vec![]), "{name}");
    }
    let most = CONTENTS_MAX / 4096;
    let many = |count: u64, bytes: u64| {
        let tensors = ListedTensors {
            count: count as usize,
            tensor: &|index| SiteTensor { index, name: "m.comfy_quant", dtype: "U8", shape: &[], bytes },
            find: &|_| Some(0),
        };
        wanted(&tensors).map_err(|warnings| warnings[0].to_string())
    };
    assert_eq!(many(most, 4096).map(|wanted| wanted.len() as u64), Ok(most));
    let expected = "descriptions of weights that are too large (more than 128 MiB), such as \"m.comfy_quant\"";
    assert_eq!(many(most + 1, 4096), Err(expected.to_owned()));
    let expected =
        format!("too many descriptions of weights (more than {CONTENTS_COUNT_MAX}), such as \"m.comfy_quant\"");
    assert_eq!(many(CONTENTS_COUNT_MAX as u64 + 1, 1), Err(expected));
}

#[test]
fn dimensions_in_descriptions_are_bounded() {
    let found = |dims: usize| {
        let shape: Vec<u64> = (0..dims).map(|_| 1).chain([64]).collect();
        let state = json!({"quant_type": "nf4", "blocksize": 64, "shape": shape}).to_string().into_bytes();
        let mut tensors = vec![
            tensor("m", "U8", &[32, 1]),
            tensor("m.absmax", "F32", &[1]),
            tensor("m.quant_map", "F32", &[16]),
            tensor("m.quant_state.bitsandbytes__nf4", "U8", &[state.len() as u64]),
        ];
        tensors[3].data = state;
        let recognised = File::new(tensors).recognise(&QuantizationConfig::default());
        (recognised.weights.len(), recognised.warnings.len())
    };
    assert_eq!((found(63), found(64)), ((1, 0), (0, 1)));
}

/// Configurations of some models have numbers that only Python reads, and editors write byte order marks.
#[test]
fn json_with_nan_infinity_or_a_byte_order_mark_is_read() {
    let text = br#"{"a": NaN, "b": [0.0, Infinity,-Infinity], "NaN": "-Infinity \" NaN", "c\\": -1, "d": NaN}"#;
    let expected = json!({"a": null, "b": [0.0, null, null], "NaN": "-Infinity \" NaN", "c\\": -1, "d": null});
    assert_eq!(parse_config(text).unwrap(), expected);
    assert_eq!(parse_config(&[b"\xef\xbb\xbf", &text[..]].concat()).unwrap(), expected);
    let wrong = ["", "-", "nan", "-NaN", "1NaN", "NaNNaN", "\"NaN", "\"\\", "\"NaN\\\"", "{NaN: 1}", "I", "-Infinit"];
    for text in wrong {
        assert!(parse_config(text.as_bytes()).is_err(), "{text}");
    }
}

#[test]
fn malformed_configurations_are_ignored() {
    let strange = [
        json!(null),
        json!([]),
        json!({"quantization_config": 3}),
        json!({"quantization_config": {"quant_method": 3, "bits": "x", "group_size": -1, "weight_block_size": [0, 0]}}),
        json!({"quantization_config": {"config_groups": {"a": {"weights": {"num_bits": 0, "group_size": 0}}, "b": 1}}}),
        json!({"quantization": {"bits": 1e300, "group_size": 18446744073709551615u64, "mode": "mxfp4"}}),
        json!({"quantization": {"bits": 0, "group_size": 0, "m": {"bits": 9}}}),
    ];
    for case in cases() {
        for config in &strange {
            let recognised = case.file.recognise(&QuantizationConfig::new(Some(config), Some(config)));
            for weight in &recognised.weights {
                let range = 0..weight.class.elements();
                case.file.decode(weight, &range, &range);
            }
        }
    }
}

/// Names, types and dimensions that fit together now and then.
fn tensors() -> impl Strategy<Value = Vec<Tensor>> {
    let endings: Vec<&'static str> = SCHEMES
        .iter()
        .flat_map(|scheme| scheme.endings.iter().flat_map(|ending| [ending.values, ending.scales]))
        .collect();
    let more = [
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
        ".weight_format",
        ".codebooks",
        ".zero",
        ".nbits",
        ".group_size",
        ".axis",
        ".shape",
        ".packing",
        ".view_as_float",
    ];
    let endings: Vec<&'static str> = endings.into_iter().chain(more).collect();
    let dtypes =
        vec!["F4", "F8_E4M3", "F8_E5M2", "U8", "I8", "I16", "I32", "U32", "F32", "BF16", "F16", "F8_E8M0", "I64"];
    let dim = prop_oneof![4 => prop::sample::select(vec![0u64, 1, 2, 4, 8, 16, 32, 64]), 1 => 0u64..20];
    let shape = prop_oneof![
        20 => prop::collection::vec(dim, 0..5),
        1 => Just(vec![0, u64::MAX]),
        1 => Just(vec![u64::MAX - 1, 0]),
    ];
    let contents = prop_oneof![
        Just(Vec::new()),
        Just(br#"{"format":"nvfp4"}"#.to_vec()),
        Just(br#"{"quant_type":"nf4","blocksize":64,"shape":[8,16],"nested_blocksize":256}"#.to_vec()),
        (any::<i64>(), 0i64..65).prop_map(|(a, b)| [(a % 65).to_le_bytes(), b.to_le_bytes()].concat()),
        prop::sample::select(vec!["4bit_u8", "3bit_32", "1bit_u8"]).prop_map(|packing| packing.into()),
        (0i32..9).prop_map(|number| number.to_le_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..40),
    ];
    let one = (prop::sample::select(endings), prop::sample::select(dtypes), shape, contents);
    let any = prop::collection::vec(one.clone(), 0..10);
    let any = any.prop_map(|list| list.into_iter().map(filled).collect());
    // Weights that are rarely found by chance, with up to two other tensors.
    let sound = prop::sample::select(vec![hostile::hqq(), hostile::aqlm(), hostile::exl2()]);
    let changed = (sound, prop::collection::vec((any_index(), one), 0..3)).prop_map(|(mut tensors, others)| {
        for (at, other) in others {
            let (at, mut other) = (at.index(tensors.len()), filled(other));
            other.name.clone_from(&tensors[at].name);
            tensors[at] = other;
        }
        tensors
    });
    prop_oneof![4 => any, 1 => changed]
}

fn any_index() -> impl Strategy<Value = prop::sample::Index> {
    any::<prop::sample::Index>()
}

/// A tensor whose name has an ending. Its data begins with `contents`.
fn filled((ending, dtype, shape, contents): (&str, &str, Vec<u64>, Vec<u8>)) -> Tensor {
    let mut tensor = tensor(&format!("m{ending}"), dtype, &shape);
    for (at, byte) in tensor.data.iter_mut().enumerate() {
        *byte = contents.get(at).copied().unwrap_or(at as u8);
    }
    tensor
}

#[test]
fn whatever_is_recognised_can_be_decoded() {
    let seen = RefCell::new(BTreeSet::new());
    let mut runner = TestRunner::new(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(4000) });
    let all = (tensors(), 0u64..10, 0u64..40);
    let run = runner.run(&all, |(tensors, bits, group)| {
        let config =
            json!({"quantization_config": {"bits": bits, "group_size": group, "weight_block_size": [group, 8]}});
        let file = File::new(tensors);
        let recognised = file.recognise(&QuantizationConfig::new(Some(&config), None));
        for weight in &recognised.weights {
            seen.borrow_mut().insert(weight.class.scheme);
            let elements = weight.class.elements();
            let expected = weight.class.shape.iter().fold(1, |product: u64, dim| product.saturating_mul(*dim));
            prop_assert_eq!(elements, if weight.class.shape.contains(&0) { 0 } else { expected });
            let range = 0..elements;
            let whole = file.decode(weight, &range, &range);
            let part = elements / 3..elements - elements / 4;
            let found = file.decode(weight, &part, &part);
            let expected = &whole[part.start as usize..part.end as usize];
            prop_assert!(
                found.iter().zip(expected).all(|(found, expected)| crate::cases::is_same(*found, *expected, true))
            );
            prop_assert!(!weight.class.summary().is_empty());
        }
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
    let seen = seen.into_inner();
    assert!(["HQQ", "AQLM", "EXL2"].iter().all(|scheme| seen.contains(scheme)), "{seen:?}");
}
