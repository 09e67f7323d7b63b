//! Descriptions and codebooks that contradict each other, or that have numbers out of range: such a weight is refused
//! with one line that names it and what was found.

use crate::cases::{File, Tensor};
use proptest::prelude::*;
use serde_json::json;
use weightfs::model::quantization::QuantizationConfig;

fn tensor(name: &str, dtype: &str, shape: &[u64], data: Vec<u8>) -> Tensor {
    Tensor { name: name.into(), dtype: dtype.into(), shape: shape.into(), data }
}

fn integer(name: &str, value: i32) -> Tensor {
    tensor(name, "I32", &[], value.to_le_bytes().to_vec())
}

fn float(name: &str, value: f32) -> Tensor {
    tensor(name, "F32", &[], value.to_le_bytes().to_vec())
}

fn dims(name: &str, dims: [i64; 2]) -> Tensor {
    tensor(name, "I64", &[2], dims.map(i64::to_le_bytes).as_flattened().to_vec())
}

fn letters(name: &str, text: &str) -> Tensor {
    tensor(name, "U8", &[text.len() as u64], text.into())
}

/// A weight of HQQ with 24 rows and 128 columns, in groups of 64.
pub fn hqq() -> Vec<Tensor> {
    vec![
        tensor("m.W_q", "U8", &[24, 64], vec![0x21; 24 * 64]),
        tensor("m.scale", "F16", &[48, 1], vec![0; 96]),
        tensor("m.zero", "F16", &[48, 1], vec![0; 96]),
        integer("m.nbits", 4),
        integer("m.group_size", 64),
        integer("m.axis", 1),
        dims("m.shape", [24, 128]),
        letters("m.packing", "4bit_u8"),
        tensor("m.quant_zero", "U8", &[], vec![0]),
    ]
}

/// The tensors with some in the places of those of the same names, or added.
fn with(mut tensors: Vec<Tensor>, others: &[Tensor]) -> Vec<Tensor> {
    tensors.retain(|tensor| others.iter().all(|other| other.name != tensor.name));
    tensors.extend_from_slice(others);
    tensors
}

fn without(mut tensors: Vec<Tensor>, name: &str) -> Vec<Tensor> {
    tensors.retain(|tensor| tensor.name != name);
    tensors
}

/// The summaries of the weights, or the warnings.
fn found(tensors: Vec<Tensor>) -> Result<Vec<String>, Vec<String>> {
    found_with(tensors, &QuantizationConfig::default())
}

fn found_with(tensors: Vec<Tensor>, config: &QuantizationConfig) -> Result<Vec<String>, Vec<String>> {
    let file = File::new(tensors);
    let recognised = file.recognise(config);
    for weight in &recognised.weights {
        let range = 0..weight.class.elements();
        file.decode(weight, &range, &range);
    }
    match &recognised.warnings[..] {
        [] => Ok(recognised.weights.iter().map(|weight| weight.class.summary()).collect()),
        warnings => Err(warnings.iter().map(ToString::to_string).collect()),
    }
}

fn refused(tensors: Vec<Tensor>, expected: &str) {
    assert_eq!(found(tensors), Err(vec![expected.to_owned()]));
}

#[test]
fn descriptions_of_hqq_that_do_not_fit_are_refused() {
    assert_eq!(found(hqq()), Ok(vec!["HQQ: INT4, groups of 64, asymmetric".to_owned()]));
    for name in ["nbits", "axis", "shape", "zero"] {
        let expected = format!("HQQ: a tensor that is missing ({name}), such as \"m.W_q\"");
        refused(without(hqq(), &format!("m.{name}")), &expected);
    }
    let wide = "0123456789abcdef0123456789abcdef!";
    let cases = [
        (
            integer("m.group_size", 0),
            "a group size that does not divide the weight (group_size 0 for a shape of [24, 128])",
        ),
        (
            integer("m.group_size", -64),
            "a group size that does not divide the weight (group_size -64 for a shape of [24, 128])",
        ),
        (
            integer("m.group_size", i32::MAX),
            "a group size that does not divide the weight (group_size 2147483647 for a shape of [24, 128])",
        ),
        (
            tensor("m.group_size", "I64", &[], i64::MIN.to_le_bytes().to_vec()),
            "a group size that does not divide the weight (group_size -9223372036854775808 for a shape of [24, 128])",
        ),
        (
            integer("m.group_size", 32),
            "scales or zero points that do not fit the groups (scale [48, 1] instead of [96, 1])",
        ),
        (
            tensor("m.zero", "F16", &[1, 48], vec![0; 96]),
            "scales or zero points that do not fit the groups (zero [1, 48] instead of [48, 1])",
        ),
        (
            tensor("m.channel_wise", "U8", &[], vec![0]),
            "scales or zero points that do not fit the groups (scale [48, 1] instead of [1, 1])",
        ),
        (integer("m.axis", -1), "an axis that is not known (axis -1)"),
        (integer("m.axis", 2), "an axis that is not known (axis 2)"),
        (integer("m.axis", 0), "scales or zero points that do not fit the groups (scale [48, 1] instead of [1, 48])"),
        (integer("m.nbits", 9), "a width of codes that is not known (nbits 9)"),
        (integer("m.nbits", -1), "a width of codes that is not known (nbits -1)"),
        (float("m.nbits", 7.5), "a width of codes that is not known (nbits 7.5)"),
        (float("m.nbits", f32::NAN), "a width of codes that is not known (nbits NaN)"),
        (float("m.nbits", 1.58), "a packing that does not fit the width of the codes (4bit_u8 for INT1.58)"),
        (tensor("m.nbits", "F16", &[], vec![0, 0x44]), "a companion with a wrong dtype or shape (nbits: F16 [])"),
        (tensor("m.nbits", "I32", &[2], vec![4; 8]), "a companion with a wrong dtype or shape (nbits: I32 [2])"),
        (integer("m.nbits", 3), "a packing that does not fit the width of the codes (4bit_u8 for INT3)"),
        (letters("m.packing", "exit()"), "a packing that is not known (exit())"),
        (letters("m.packing", ""), "a packing that is not known ()"),
        (tensor("m.packing", "U8", &[1], vec![0xff]), "a packing that is not known (\u{fffd})"),
        (letters("m.packing", wide), "a companion with a wrong dtype or shape (packing: U8 [33])"),
        (letters("m.packing", "3bit_32"), "a packing that does not fit the width of the codes (3bit_32 for INT4)"),
        (dims("m.shape", [-24, 128]), "a companion with a wrong value (shape [-24, 128])"),
        (
            dims("m.shape", [i64::MAX, i64::MAX]),
            "a shape that is too large (shape [9223372036854775807, 9223372036854775807])",
        ),
        (tensor("m.shape", "I64", &[3], vec![0; 24]), "a companion with a wrong dtype or shape (shape: I64 [3])"),
        (
            dims("m.shape", [24, 64]),
            "scales or zero points that do not fit the groups (scale [48, 1] instead of [24, 1])",
        ),
        (
            tensor("m.zero", "I32", &[48, 1], vec![0; 192]),
            "a companion with a wrong dtype or shape (zero: I32 [48, 1])",
        ),
        (
            tensor("m.scale", "F16", &[1, 48], vec![0; 96]),
            "scales or zero points that do not fit the groups (scale [1, 48] instead of [48, 1])",
        ),
        (
            tensor("m.W_q", "U8", &[25, 64], vec![0; 1600]),
            "codes of a wrong dtype or shape (U8 [25, 64] for a matrix of [48, 64])",
        ),
        (
            tensor("m.W_q", "I32", &[24, 64], vec![0; 6144]),
            "codes of a wrong dtype or shape (I32 [24, 64] for a matrix of [48, 64])",
        ),
        (
            tensor("m.view_as_float", "U8", &[], vec![1]),
            "codes of a wrong dtype or shape (U8 [24, 64] for a matrix of [48, 64])",
        ),
        (tensor("m.view_as_float", "U8", &[], vec![2]), "a companion with a wrong value (view_as_float 2)"),
        (tensor("m.quant_zero", "U8", &[], vec![1]), "scales or zero points that are quantized too (quant_zero is 1)"),
        (
            tensor("m.quant_scale", "U8", &[], vec![1]),
            "scales or zero points that are quantized too (quant_scale is 1)",
        ),
    ];
    for (changed, expected) in cases {
        refused(with(hqq(), &[changed]), &format!("HQQ: {expected}, such as \"m.W_q\""));
    }
    // The shape may be of 32 bits. Without packing, a byte is a code.
    let narrow = tensor("m.shape", "I32", &[2], [24i32, 128].map(i32::to_le_bytes).as_flattened().to_vec());
    let plain = with(without(hqq(), "m.packing"), &[tensor("m.W_q", "U8", &[48, 64], vec![3; 48 * 64])]);
    for tensors in [with(hqq(), &[narrow]), plain] {
        assert_eq!(found(tensors), Ok(vec!["HQQ: INT4, groups of 64, asymmetric".to_owned()]));
    }
    // Ten parts of 48 rows have five rows.
    let short =
        [integer("m.nbits", 3), letters("m.packing", "3bit_32"), tensor("m.W_q", "I32", &[4, 64], vec![0; 4 * 64 * 4])];
    let expected = "HQQ: codes of a wrong dtype or shape (I32 [4, 64] for a matrix of [48, 64]), such as \"m.W_q\"";
    refused(with(hqq(), &short), expected);
    // An odd number of rows has no halves.
    let odd = [
        dims("m.shape", [3, 64]),
        tensor("m.W_q", "U8", &[2, 64], vec![0; 128]),
        tensor("m.scale", "F16", &[3, 1], vec![0; 6]),
        tensor("m.zero", "F16", &[3, 1], vec![0; 6]),
    ];
    let expected = "HQQ: codes of a wrong dtype or shape (U8 [2, 64] for a matrix of [3, 64]), such as \"m.W_q\"";
    refused(with(hqq(), &odd), expected);
    // Old files have no scales but codes of scales.
    let nested = with(without(hqq(), "m.scale"), &[tensor("m.scale_q", "U8", &[48, 1], vec![0; 48])]);
    let expected = "HQQ: scales or zero points that are quantized too (m.scale_q), such as \"m.W_q\"";
    refused(nested, expected);
    // Floats of that name are codes only if the other tensors say so.
    let floats = tensor("m.W_q", "F32", &[4, 4], vec![0; 64]);
    assert_eq!(found(vec![floats, tensor("m.scale", "F32", &[], vec![0; 4])]), Ok(vec![]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// Whatever the descriptions of HQQ say, the weight is refused or can be decoded.
    #[test]
    fn any_description_of_hqq_is_refused_or_decoded(
        (nbits, size, axis) in (0i32..9, prop_oneof![Just(None), (-1i32..70).prop_map(Some)], 0i32..3),
        (rows, cols) in (prop_oneof![0i64..40, Just(i64::MAX)], prop_oneof![0i64..40, Just(1i64 << 62)]),
        packing in prop::sample::select(vec!["8bit_u8", "4bit_u8", "3bit_32", "2bit_u8", "1bit_u8", "?"]),
        of_codes in prop::sample::select(vec![("U8", 1u64), ("I32", 4), ("F16", 2), ("F32", 4)]),
        is_view in prop::option::of(0u8..3),
        wrong in 0u64..12,
    ) {
        // The codes and scales mostly have the shapes that belong to this.
        let [height, width] = [rows, cols].map(|dim| dim as u64 % 50);
        let group = size.map_or(0, |size| size.max(1) as u64);
        let [below, beside] = match (axis, group) {
            (_, 0) => [height, width],
            (0, group) => [group, height * width / group],
            (_, group) => [height * width / group, group],
        };
        let parts = match packing { "4bit_u8" => 2, "3bit_32" => 10, "2bit_u8" => 4, "1bit_u8" => 8, _ => 1 };
        let scales = if axis == 0 { [1, beside] } else { [below, 1 + wrong / 11] };
        let (dtype, bytes) = of_codes;
        let codes = [below.div_ceil(parts), beside + wrong / 10];
        let filled = |name: &str, dtype: &str, shape: [u64; 2], bytes: u64| {
            tensor(name, dtype, &shape, vec![0x35; (shape[0] * shape[1] * bytes) as usize])
        };
        let mut tensors = vec![
            filled("m.W_q", dtype, codes, bytes),
            filled("m.scale", "F16", scales, 2),
            filled("m.zero", "F32", scales, 4),
            integer("m.nbits", nbits),
            integer("m.axis", axis),
            dims("m.shape", [rows, cols]),
        ];
        tensors.extend(size.map(|size| integer("m.group_size", size)));
        tensors.extend((packing != "?").then(|| letters("m.packing", packing)));
        tensors.extend(is_view.map(|is_view| tensor("m.view_as_float", "U8", &[], vec![is_view])));
        match found(tensors) {
            Ok(summaries) => prop_assert_eq!(summaries.len(), 1),
            Err(warnings) => prop_assert_eq!(warnings.len(), 1, "{:?}", warnings),
        }
    }
}

/// A weight of AQLM with 6 rows and 16 columns, and two codebooks for blocks of 2 x 4.
pub fn aqlm() -> Vec<Tensor> {
    vec![
        tensor("m.codes", "I8", &[3, 4, 2], vec![0xff; 24]),
        tensor("m.codebooks", "F16", &[2, 256, 2, 4], vec![0; 8192]),
        tensor("m.scales", "F16", &[3, 1, 1, 1], vec![0; 6]),
    ]
}

#[test]
fn codebooks_that_do_not_fit_the_codes_are_refused() {
    assert_eq!(found(aqlm()), Ok(vec!["AQLM: 2x8, blocks of 2 x 16".to_owned()]));
    let books =
        |shape: &[u64]| tensor("m.codebooks", "F16", shape, vec![0; 2 * shape.iter().product::<u64>() as usize]);
    let cases = [
        (
            books(&[1, 256, 2, 4]),
            "codes for another number of codebooks (codebooks of [1, 256, 2, 4] and codes of [3, 4, 2])",
        ),
        (
            tensor("m.codes", "I8", &[1, 3, 4, 2], vec![0; 24]),
            "codes of a wrong shape ([1, 3, 4, 2] instead of rows, columns and codebooks)",
        ),
        (books(&[2, 255, 2, 4]), "a companion with a wrong dtype or shape (codebooks: F16 [2, 255, 2, 4])"),
        (books(&[2, 1, 2, 4]), "a companion with a wrong dtype or shape (codebooks: F16 [2, 1, 2, 4])"),
        (books(&[2, 512, 2, 4]), "a companion with a wrong dtype or shape (codebooks: F16 [2, 512, 2, 4])"),
        (books(&[2, 256, 0, 4]), "a companion with a wrong dtype or shape (codebooks: F16 [2, 256, 0, 4])"),
        (books(&[2, 256, 8]), "a companion with a wrong dtype or shape (codebooks: F16 [2, 256, 8])"),
        (
            tensor("m.codebooks", "I16", &[2, 256, 2, 4], vec![0; 8192]),
            "a companion with a wrong dtype or shape (codebooks: I16 [2, 256, 2, 4])",
        ),
        (
            books(&[2, 256, 2, 4097]),
            "tensors that do not fit together (codebooks that are empty, or larger than 8 MiB: codebooks of \
             [2, 256, 2, 4097] and codes of [3, 4, 2])",
        ),
        (tensor("m.scales", "F16", &[3, 1], vec![0; 6]), "scales of a wrong shape ([3, 1] for codes of [3, 4, 2])"),
        (
            tensor("m.scales", "F16", &[4, 1, 1, 1], vec![0; 8]),
            "scales of a wrong shape ([4, 1, 1, 1] for codes of [3, 4, 2])",
        ),
        (
            tensor("m.scales", "I16", &[3, 1, 1, 1], vec![0; 6]),
            "a companion with a wrong dtype or shape (scales: I16 [3, 1, 1, 1])",
        ),
    ];
    for (changed, expected) in cases {
        refused(with(aqlm(), &[changed]), &format!("AQLM: {expected}, such as \"m.codes\""));
    }
    refused(without(aqlm(), "m.codebooks"), "scales of no known scheme (m.scales), such as \"m.codes\"");
    let largest = found(with(aqlm(), &[books(&[2, 256, 2, 4096])]));
    assert_eq!(largest, Ok(vec!["AQLM: 2x8, blocks of 2 x 16384".to_owned()]));
    let without_rows =
        [tensor("m.codes", "I8", &[0, 4, 2], Vec::new()), tensor("m.scales", "F16", &[0, 1, 1, 1], Vec::new())];
    assert_eq!(found(with(aqlm(), &without_rows)), Ok(vec!["AQLM: 2x8, one scale".to_owned()]));
    for count in [0u64, 65] {
        let many = [books(&[count, 2, 1, 1]), tensor("m.codes", "I8", &[3, 4, count], vec![0; 12 * count as usize])];
        let expected = format!(
            "AQLM: tensors that do not fit together (no codebooks, or more than 64: codebooks of [{count}, 2, 1, 1] \
             and codes of [3, 4, {count}]), such as \"m.codes\""
        );
        refused(with(aqlm(), &many), &expected);
    }
    for (key, value) in [("in_group_size", 8), ("out_group_size", 1), ("num_codebooks", 1), ("nbits_per_codebook", 16)]
    {
        let config = json!({"quantization_config": {"quant_method": "aqlm", key: value}});
        let expected = format!(
            "AQLM: codebooks that do not fit the configuration ({key} {value} for [2, 256, 2, 4]), such as \"m.codes\""
        );
        assert_eq!(found_with(aqlm(), &QuantizationConfig::new(Some(&config), None)), Err(vec![expected]));
    }
}

/// A list of the groups of EXL2: the width of the codes of each group, and its first row.
fn groups(list: &[[u16; 2]]) -> Tensor {
    let data = list.iter().flatten().flat_map(|number| number.to_le_bytes()).collect();
    tensor("m.q_groups", "I16", &[list.len() as u64 * 2], data)
}

fn permutation(places: impl Iterator<Item = i32>) -> Tensor {
    let data: Vec<u8> = places.flat_map(i32::to_le_bytes).collect();
    tensor("m.q_invperm", "I32", &[data.len() as u64 / 4], data)
}

fn halves(name: &str, codes: &[u16]) -> Tensor {
    tensor(name, "F16", &[codes.len() as u64], codes.iter().flat_map(|code| code.to_le_bytes()).collect())
}

/// A weight of EXL2 with 32 rows and 48 columns in reverse order: 32 codes of 4 bits, and 16 of 3 bits.
pub fn exl2() -> Vec<Tensor> {
    vec![
        tensor("m.q_weight", "I32", &[6, 32], vec![0; 6 * 32 * 4]),
        tensor("m.q_scale", "I32", &[2, 4], vec![0; 32]),
        groups(&[[4, 0], [3, 4]]),
        halves("m.q_scale_max", &[0x3c00, 0x4000]),
        permutation((0..48).rev()),
    ]
}

#[test]
fn tensors_of_exl2_that_do_not_fit_are_refused() {
    assert_eq!(found(exl2()), Ok(vec!["EXL2: mixed INT, groups of 32, act-order, nested".to_owned()]));
    for name in ["q_groups", "q_scale_max"] {
        let expected = format!("EXL2: a tensor that is missing ({name}), such as \"m.q_weight\"");
        refused(without(exl2(), &format!("m.{name}")), &expected);
    }
    let of_groups = [
        (&[[4, 0], [7, 4]][..], "group 1 has codes of 7 bits"),
        (&[[0, 0], [3, 4]], "group 0 has codes of 0 bits"),
        (&[[3, 0], [4, 3]], "group 1 has codes of 4 bits, after codes of 3 bits"),
        (&[[4, 1], [3, 4]], "group 0 has the rows 1 to 4 of 6, after row 0"),
        (&[[4, 0], [3, 0]], "group 0 has the rows 0 to 0 of 6, after row 0"),
        (&[[4, 0], [3, 6]], "group 0 has the rows 0 to 6 of 6, after row 0"),
        (&[[4, 0], [3, 65535]], "group 0 has the rows 0 to 65535 of 6, after row 0"),
        (&[[3, 0], [3, 4]], "group 0 has 4 rows, which codes of 3 bits do not fill"),
        (&[[4, 0], [3, 2]], "group 1 has 4 rows for the codes 16 to 48 of 3 bits"),
        (&[[2, 0], [2, 4]], "group 1 has 2 rows for the codes 64 to 48 of 2 bits"),
    ];
    for (list, expected) in of_groups {
        let expected = format!("EXL2: groups that do not fit the codes (q_groups: {expected}), such as \"m.q_weight\"");
        refused(with(exl2(), &[groups(list)]), &expected);
    }
    let cases = [
        (tensor("m.q_weight", "I16", &[6, 32], vec![0; 384]), "codes of a wrong dtype or shape (I16 [6, 32])"),
        (tensor("m.q_weight", "I32", &[192], vec![0; 768]), "codes of a wrong dtype or shape (I32 [192])"),
        (tensor("m.q_weight", "I32", &[6, 40], vec![0; 960]), "scales of a wrong shape ([2, 4] for codes of [6, 40])"),
        (tensor("m.q_weight", "I32", &[6, 64], vec![0; 1536]), "scales of a wrong shape ([2, 4] for codes of [6, 64])"),
        (
            tensor("m.q_weight", "I32", &[7, 32], vec![0; 896]),
            "groups that do not fit the codes (q_groups: group 1 has 3 rows for the codes 32 to 48 of 3 bits)",
        ),
        (
            tensor("m.q_scale", "F16", &[2, 4], vec![0; 16]),
            "a companion with a wrong dtype or shape (q_scale: F16 [2, 4])",
        ),
        (
            tensor("m.q_scale", "I32", &[3, 4], vec![0; 48]),
            "a companion with a wrong dtype or shape (q_groups: I16 [4])",
        ),
        (tensor("m.q_groups", "I32", &[4], vec![0; 16]), "a companion with a wrong dtype or shape (q_groups: I32 [4])"),
        (halves("m.q_scale_max", &[0; 3]), "a companion with a wrong dtype or shape (q_scale_max: F16 [3])"),
        (
            tensor("m.q_invperm", "I16", &[48], vec![0; 96]),
            "a companion with a wrong dtype or shape (q_invperm: I16 [48])",
        ),
        (permutation((1..48).chain([1])), "a list that is not a permutation (q_invperm: 1 at 47 of 48 occurs twice)"),
        (permutation(1..49), "a list that is not a permutation (q_invperm: 48 at 47 of 48 is out of range)"),
        (permutation(-1..47), "a list that is not a permutation (q_invperm: -1 at 0 of 48 is out of range)"),
        (
            permutation(0..60),
            "groups that do not fit the codes (q_groups: group 1 has 2 rows for the codes 32 to 60 of 3 bits)",
        ),
        (
            permutation(0..0),
            "groups that do not fit the codes (q_groups: group 1 has 2 rows for the codes 32 to 0 of 3 bits)",
        ),
        (halves("m.bias", &[0; 33]), "a bias that does not fit the codes (bias [33] for codes of [6, 32])"),
        (halves("m.bias", &[]), "a bias that does not fit the codes (bias [0] for codes of [6, 32])"),
        (
            tensor("m.bias", "F16", &[32, 1], vec![0; 64]),
            "a bias that does not fit the codes (bias [32, 1] for codes of [6, 32])",
        ),
    ];
    for (changed, expected) in cases {
        refused(with(exl2(), &[changed]), &format!("EXL2: {expected}, such as \"m.q_weight\""));
    }
    // Without a permutation, the number of columns follows from the groups.
    let expected = "EXL2: groups that do not fit the codes (q_groups: group 1 has 2 rows, which codes of 3 bits do not \
                    fill), such as \"m.q_weight\"";
    refused(without(exl2(), "m.q_invperm"), expected);
    let plain = with(without(exl2(), "m.q_invperm"), &[groups(&[[4, 0], [4, 4]])]);
    assert_eq!(found(plain), Ok(vec!["EXL2: INT4, groups of 32, nested".to_owned()]));
}

/// No number of rows or columns overflows, and a matrix without elements has no values.
#[test]
fn sizes_of_exl2_are_bounded() {
    let of = |words: u64, list: &[[u16; 2]], places: Option<Tensor>| {
        let count = list.len() as u64;
        let mut tensors = vec![
            tensor("m.q_weight", "I32", &[words, 0], Vec::new()),
            tensor("m.q_scale", "I32", &[count, 0], Vec::new()),
            groups(list),
            halves("m.q_scale_max", &vec![0; list.len()]),
        ];
        tensors.extend(places);
        found(tensors)
    };
    assert_eq!(of(0, &[], None), Ok(vec!["EXL2: INT, one scale, nested".to_owned()]));
    for words in [u64::MAX, u64::MAX / 32 + 1, 1 << 58, 1 << 40] {
        for bits in [2, 3, 8] {
            _ = of(words, &[[bits, 0]], None);
            _ = of(words, &[[bits, 0], [2, 96]], None);
            assert!(of(words, &[[bits, 0]], Some(permutation(0..40))).is_err());
        }
    }
    let expected = "EXL2: groups that do not fit the codes (q_groups: 0 groups for 5 rows), such as \"m.q_weight\"";
    assert_eq!(of(5, &[], None), Err(vec![expected.to_owned()]));
}

/// The elements of a row of a weight.
fn row(tensors: Vec<Tensor>, row: u64) -> Vec<f32> {
    let file = File::new(tensors);
    let recognised = file.recognise(&QuantizationConfig::default());
    let weight = &recognised.weights[0];
    let cols = weight.class.shape[1];
    let range = row * cols..(row + 1) * cols;
    file.decode(weight, &range, &range)
}

/// Each product is rounded to half precision, and subnormal numbers are kept.
#[test]
fn values_of_exl2_are_half_precision_numbers() {
    let repeated = |first: f32, second: f32| [[first; 16].as_slice(), [second; 32].as_slice()].concat();
    // The columns are in reverse order, so those of 3 bits, whose largest scale is 2, are the first.
    assert_eq!(row(exl2(), 5), repeated(-4.0 / 128.0, -8.0 / 256.0));
    // The scale of row 5 is in the sixth nibble: 15 is the largest scale.
    let scales = tensor(
        "m.q_scale",
        "I32",
        &[2, 4],
        [[0, 0, 0xf0, 0], [0; 4], [0; 4], [0; 4], [0, 0, 0x20, 0], [0; 4], [0; 4], [0; 4]].concat(),
    );
    assert_eq!(row(with(exl2(), std::slice::from_ref(&scales)), 5), repeated(-4.0 * 9.0 / 128.0, -8.0));
    assert_eq!(row(with(exl2(), &[scales]), 4), repeated(-4.0 / 128.0, -8.0 / 256.0));
    // 384 and 640 times the least subnormal number, divided by 256, are 1.5 and 2.5 times this: a tie, to even.
    let least = 2f32.powi(-24);
    let subnormal = with(exl2(), &[halves("m.q_scale_max", &[384, 640])]);
    assert_eq!(row(subnormal, 5), repeated(-4.0 * 2.0 * least, -8.0 * 2.0 * least));
    let zero = with(exl2(), &[halves("m.q_scale_max", &[128, 129])]);
    let found: Vec<u32> = row(zero, 5).into_iter().map(f32::to_bits).collect();
    let expected = repeated(-4.0 * least, -0.0).into_iter().map(f32::to_bits);
    assert!(found.into_iter().eq(expected));
    // Beyond the range of half precision: 15 * 15 / 256 * 65504 is in it, and 8 times this is not.
    let scales = tensor("m.q_scale", "I32", &[2, 4], vec![0xee; 32]);
    let large = with(exl2(), &[scales, halves("m.q_scale_max", &[0x7bff, 0])]);
    assert_eq!(row(large, 5), repeated(-0.0, f32::NEG_INFINITY));
}

/// Rows that pad the weight are dropped if the bias or, for the last layer, the vocabulary has fewer.
#[test]
fn padding_of_exl2_is_dropped() {
    let shape = |stem: &str, bias: Option<usize>, vocabulary: u64| {
        let mut tensors = exl2();
        tensors.extend(bias.map(|rows| halves("m.bias", &vec![0; rows])));
        tensors.iter_mut().for_each(|tensor| tensor.name = tensor.name.replacen("m", stem, 1));
        let config = json!({"vocab_size": vocabulary, "quantization_config": {"quant_method": "exl2"}});
        let recognised = File::new(tensors).recognise(&QuantizationConfig::new(Some(&config), None));
        assert!(recognised.warnings.is_empty(), "{:?}", recognised.warnings);
        recognised.weights[0].class.shape.clone()
    };
    assert_eq!(shape("lm_head", None, 30), [30, 48]);
    assert_eq!(shape("model.lm_head", None, 1), [1, 48]);
    assert_eq!(shape("lm_head", None, 33), [32, 48]);
    assert_eq!(shape("lm_head", None, u64::MAX), [32, 48]);
    assert_eq!(shape("mlp.up_proj", None, 30), [32, 48]);
    assert_eq!(shape("mlp.up_proj", Some(31), 30), [31, 48]);
    assert_eq!(shape("lm_head", Some(32), 30), [32, 48]);
}
