//! What is recognised and what is not, and the warnings.

use crate::cases::{File, Tensor, cases};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::cell::Cell;
use std::collections::HashMap;
use weightfs::codec::quantized::{Decoder, Part};
use weightfs::model::quantization::{Config, Recognised, SCHEMES, Stored, Tensors, recognise};

fn size(dtype: &str) -> u64 {
    match dtype {
        "F32" | "I32" | "U32" => 4,
        "F16" | "BF16" => 2,
        "I64" => 8,
        _ => 1,
    }
}

fn tensor(name: &str, dtype: &str, shape: &[u64]) -> Tensor {
    let elements = if shape.contains(&0) { 0 } else { shape.iter().product::<u64>() };
    let data = vec![0; (elements * size(dtype)) as usize];
    Tensor { name: name.to_owned(), dtype: dtype.to_owned(), shape: shape.to_vec(), data }
}

fn found(tensors: &[(&str, &str, &[u64])], config: Value) -> (File, Recognised) {
    let file = File::new(tensors.iter().map(|(name, dtype, shape)| tensor(name, dtype, shape)).collect());
    let recognised = file.recognise(&Config::new(Some(&config), None));
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
        *seen.entry(recognised.weights[0].class.scheme.name).or_default() += 1;
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

/// Without one of its parts, no weight is recognised, or else it does not need the part.
#[test]
fn missing_part_is_reported() {
    for case in cases() {
        let weight = &case.file.recognise(&case.config()).weights[0];
        for part in Part::ALL {
            let Some(at) = weight.parts()[part as usize] else { continue };
            let mut tensors = case.file.tensors.clone();
            let missing = tensors.remove(at);
            let recognised = File::new(tensors).recognise(&case.config());
            // Without the codes there is nothing to warn of. Zero points and indices are optional in some schemes.
            match part {
                Part::Values => assert!(recognised.weights.is_empty(), "{}", case.name),
                Part::Zeros | Part::GroupIndex if !recognised.weights.is_empty() => {}
                Part::Scales if recognised.warnings.is_empty() => {
                    // Nothing says that these numbers are codes: there is no configuration, or the name or type is one
                    // that other tensors have too.
                    let values = &case.file.tensors[weight.values];
                    let is_ordinary = !values.name.ends_with(".weight") || values.dtype == "BF16";
                    assert!(is_ordinary || !case.config().is_quantized(), "{}", case.name);
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

/// A part that is longer or shorter by one in any dimension is refused, or else the weight has other dimensions.
#[test]
fn part_of_a_wrong_shape_is_refused() {
    for case in cases() {
        let weight = &case.file.recognise(&case.config()).weights[0];
        for part in Part::ALL {
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
                    let decoder = Decoder::new(changed.class.layout, &file.sizes(changed));
                    assert!(decoder.is_ok(), "{}: {:?} {axis} {change}", case.name, part);
                    let range = 0..changed.class.elements();
                    file.decode(changed, &range, &range);
                    let same_size = matches!(part, Part::Map | Part::NestedMap | Part::Global | Part::GroupIndex);
                    assert!(!same_size, "{}: {part:?} {shape:?}", case.name);
                }
            }
        }
    }
}

#[test]
fn unknown_methods_and_formats_are_reported() {
    let config = json!({"quantization_config": {"quant_method": "spqr"}});
    assert_eq!(warning(&[], config), "a quantization method that is not known (spqr)");
    let config = json!({"quantization_config": {"quant_method": "compressed-tensors", "format": "marlin-24"}});
    assert_eq!(warning(&[], config), "a format of compressed-tensors that is not known (marlin-24)");
    let config = json!({"quantization_config": {"quant_method": "gptq", "checkpoint_format": "marlin"}});
    assert_eq!(warning(&[], config), "a format of GPTQ that is not known (marlin)");
    for (method, format) in [("fp8", "x"), ("AWQ", "x"), ("compressed-tensors", "float-quantized")] {
        let config = json!({"quantization_config": {"quant_method": method, "format": format}});
        assert!(found(&[], config).1.warnings.is_empty());
    }
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
    ];
    for (values, scales) in pairs {
        let expected = format!("scales of no known scheme ({scales}), such as \"{values}\"");
        assert_eq!(warning(&[(values, "I32", &[4, 4]), (scales, "BF16", &[4, 1])], json!({})), expected);
        // Tensors of ordinary types are no codes.
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

#[test]
fn codes_without_scales_are_reported() {
    let fp8 = json!({"quantization_config": {"quant_method": "fp8"}});
    let expected = "codes without scales (F8_E4M3), such as \"m.weight\"";
    assert_eq!(warning(&[("m.weight", "F8_E4M3", &[4, 4])], fp8), expected);
    let expected = "codes without scales (I32), such as \"m.qweight\"";
    assert_eq!(warning(&[("m.qweight", "I32", &[4, 4])], json!({})), expected);
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
fn shape_of_the_scales_tells_mxfp8_from_blocks() {
    let config = json!({"quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}});
    let scheme = |scales: &[u64]| {
        let (_, recognised) =
            found(&[("m.weight", "F8_E4M3", &[256, 384]), ("m.scale", "F8_E8M0", scales)], config.clone());
        recognised.weights.first().map(|weight| weight.class.scheme.name)
    };
    assert_eq!(scheme(&[256, 12]), Some("MXFP8"));
    assert_eq!(scheme(&[2, 3]), Some("FP8"));
    assert_eq!(scheme(&[256, 11]), None);
}

/// Without rows, nothing but the configuration tells AWQ from GPTQ.
#[test]
fn matrix_without_rows_has_the_scheme_of_the_configuration() {
    let tensors: [(&str, &str, &[u64]); 3] =
        [("m.qweight", "I32", &[64, 0]), ("m.qzeros", "I32", &[2, 0]), ("m.scales", "F16", &[2, 0])];
    let scheme = |method: &str, cols: u64| {
        let config = json!({"quantization_config": {"quant_method": method, "bits": 4, "group_size": cols / 2}});
        let weight = found(&tensors, config).1.weights.pop()?;
        Some((weight.class.scheme.name, weight.class.shape.clone()))
    };
    assert_eq!(scheme("awq", 64), Some(("AWQ", vec![0, 64])));
    assert_eq!(scheme("gptq", 512), Some(("GPTQ", vec![0, 512])));
}

#[test]
fn uncertain_schemes_are_refused() {
    let gptq: [(&str, &str, &[u64]); 3] =
        [("m.qweight", "I32", &[8, 64]), ("m.qzeros", "I32", &[2, 8]), ("m.scales", "F16", &[2, 64])];
    let unknown = "GPTQ: a checkpoint format that is not known or not given";
    assert_eq!(warning(&gptq, json!({})), format!("{unknown} (none), such as \"m.qweight\""));
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
    let recognised = File::new(packed).recognise(&Config::new(Some(&config), None));
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
            let config = Config::default().with_comfy_metadata(&metadata.to_string());
            file.recognise(&config).weights.first().map(|weight| weight.class.layout)
        };
        assert_eq!(found("m"), Some(expected), "{name}");
        // Without it, the scales have the wrong shape for any other scheme.
        assert_eq!(found("other").is_some(), name == "comfy_fp8", "{name}");
    }
    let rotated: [(&str, &str, &[u64]); 2] = [("m.weight", "F8_E4M3", &[4, 4]), ("m.weight_scale", "F32", &[])];
    let file = File::new(rotated.iter().map(|(name, dtype, shape)| tensor(name, dtype, shape)).collect());
    let metadata = json!({"layers": {"m": {"format": "float8_e4m3fn", "convrot": true}}});
    let recognised = file.recognise(&Config::default().with_comfy_metadata(&metadata.to_string()));
    assert_eq!((recognised.weights.len(), recognised.warnings.len()), (0, 1));
}

/// Each layer has the group size that its shapes tell, if the configuration names several.
#[test]
fn groups_of_layers_may_differ() {
    let groups = json!({
        "a": {"weights": {"num_bits": 4, "group_size": 128}},
        "b": {"weights": {"num_bits": 4, "group_size": 32}},
        "c": {"weights": {"num_bits": 8, "group_size": 30}},
    });
    let config = Config::new(Some(&json!({"quantization_config": {"config_groups": groups}})), None);
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

#[test]
fn logical_name_must_be_free() {
    let tensors: [(&str, &str, &[u64]); 3] =
        [("m.weight_packed", "U8", &[4, 16]), ("m.weight_scale", "U8", &[4, 1]), ("m.weight", "F16", &[4, 32])];
    let expected = "MXFP4: a name that is taken (m.weight), such as \"m.weight_packed\"";
    assert_eq!(warning(&tensors, json!({})), expected);
    let (file, recognised) = found(&tensors[..2], json!({}));
    let weight = &recognised.weights[0];
    assert_eq!(weight.name.as_deref().unwrap_or(&file.tensors[weight.values].name), "m.weight");
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
    let tensors = Tensors {
        len: LEN,
        tensor: &|at| {
            looked.set(looked.get() + 1);
            let dtype = if at % 8 == 0 { "F8_E4M3" } else { "F32" };
            Stored { name: &names[at], dtype, shape: &[1, 1], bytes: size(dtype) }
        },
        find: &|name| {
            searched.set(searched.get() + 1);
            by_name.get(name).copied()
        },
        contents: &|_| None,
    };
    let recognised = recognise(&tensors, &Config::default());
    assert_eq!((recognised.weights.len(), recognised.warnings.len()), (LEN / 8, 0));
    assert!(looked.get() < 2 * LEN && searched.get() < 4 * LEN, "{} {}", looked.get(), searched.get());
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
            let recognised = case.file.recognise(&Config::new(Some(config), Some(config)));
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
    ];
    let endings: Vec<&'static str> = endings.into_iter().chain(more).collect();
    let dtypes = vec!["F4", "F8_E4M3", "F8_E5M2", "U8", "I8", "I32", "U32", "F32", "BF16", "F16", "F8_E8M0", "I64"];
    let dim = prop_oneof![4 => prop::sample::select(vec![0u64, 1, 2, 4, 8, 16, 32, 64]), 1 => 0u64..20];
    let shape = prop_oneof![
        20 => prop::collection::vec(dim, 0..4),
        1 => Just(vec![0, u64::MAX]),
        1 => Just(vec![u64::MAX - 1, 0]),
    ];
    let contents = prop_oneof![
        Just(Vec::new()),
        Just(br#"{"format":"nvfp4"}"#.to_vec()),
        Just(br#"{"quant_type":"nf4","blocksize":64,"shape":[8,16],"nested_blocksize":256}"#.to_vec()),
        (any::<i64>(), 0i64..65).prop_map(|(a, b)| [(a % 65).to_le_bytes(), b.to_le_bytes()].concat()),
        prop::collection::vec(any::<u8>(), 0..40),
    ];
    let one = (prop::sample::select(endings), prop::sample::select(dtypes), shape, contents);
    prop::collection::vec(one, 0..10).prop_map(|list| {
        let tensor = |(ending, dtype, shape, contents): (&str, &str, Vec<u64>, Vec<u8>)| {
            let mut tensor = tensor(&format!("m{ending}"), dtype, &shape);
            for (at, byte) in tensor.data.iter_mut().enumerate() {
                *byte = contents.get(at).copied().unwrap_or(at as u8);
            }
            tensor
        };
        list.into_iter().map(tensor).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn whatever_is_recognised_can_be_decoded(tensors in tensors(), bits in 0u64..10, group in 0u64..40) {
        let config = json!({"quantization_config": {"bits": bits, "group_size": group, "weight_block_size": [group, 8]}});
        let file = File::new(tensors);
        let recognised = file.recognise(&Config::new(Some(&config), None));
        for weight in &recognised.weights {
            let elements = weight.class.elements();
            let expected = weight.class.shape.iter().fold(1, |product: u64, dim| product.saturating_mul(*dim));
            prop_assert_eq!(elements, if weight.class.shape.contains(&0) { 0 } else { expected });
            let range = 0..elements;
            let whole = file.decode(weight, &range, &range);
            let part = elements / 3..elements - elements / 4;
            let found = file.decode(weight, &part, &part);
            let expected = &whole[part.start as usize..part.end as usize];
            prop_assert!(found.iter().zip(expected).all(|(found, expected)| crate::cases::is_same(*found, *expected, true)));
            prop_assert!(!weight.class.summary().is_empty());
        }
    }
}
