//! What `index.json` and the extended attributes say about quantized weights and their companions.

use crate::quantized::{models, write, write_cases};
use crate::support::{Scene, require_fuse, run_ok};
use crate::vectors::{Tensor, cases};
use serde_json::{Value, json};
use std::ffi::OsStr;
use std::fs;

const ATTRIBUTE: &str = "user.weightfs.quantization";

fn attribute(path: std::path::PathBuf) -> Option<String> {
    xattr::get(path, ATTRIBUTE).unwrap().map(|value| String::from_utf8(value).unwrap())
}

#[test]
fn every_tensor_of_a_weight_is_described() {
    require_fuse!();
    let scene = Scene::new();
    let cases = cases();
    let mount = scene.mount(&write_cases(&scene, &cases), &[]);
    for case in &cases {
        let weight = &case.expected.tensors[0];
        for model in models(case) {
            let index: Value = serde_json::from_slice(&mount.read(format!("{model}/index.json"))).unwrap();
            let tensors = index["tensors"].as_array().unwrap();
            let (codes, others): (Vec<&Value>, Vec<&Value>) =
                tensors.iter().partition(|tensor| !tensor["quantization"].is_null());
            let [codes] = codes[..] else { panic!("{model}: {codes:?}") };
            let quantization = &codes["quantization"];
            assert_eq!((&quantization["name"], &quantization["shape"]), (&json!(weight.name), &json!(weight.shape)));
            let summary = quantization["summary"].as_str().unwrap();
            let begin = ["scheme", "dtype"].map(|key| quantization[key].as_str().unwrap()).join(": ");
            assert!(summary.starts_with(&begin), "{model}: {summary}");
            let file = |tensor: &Value| mount.path(format!("{model}/{}", tensor["file"].as_str().unwrap()));
            assert_eq!(attribute(file(codes)).unwrap(), summary);
            // Every other tensor is a companion of this weight, or an ordinary tensor.
            let mut names: Vec<&str> = Vec::new();
            let mut nbytes = codes["nbytes"].as_u64().unwrap();
            for other in others {
                let name = other["name"].as_str().unwrap();
                if ["bias", "k_scale", "scaled_fp8"].iter().any(|end| name.ends_with(end)) {
                    assert!(other["companion_of"].is_null() && attribute(file(other)).is_none(), "{model}: {other}");
                    continue;
                }
                assert_eq!(other["companion_of"], json!(weight.name), "{model}: {other}");
                let role = other["role"].as_str().unwrap();
                assert_eq!(
                    attribute(file(other)).unwrap(),
                    format!("{} of {}", if role == "other" { "companion" } else { role }, weight.name)
                );
                names.push(name);
                nbytes += if role == "other" { 0 } else { other["nbytes"].as_u64().unwrap() };
            }
            let mut companions: Vec<&str> =
                quantization["companions"].as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect();
            companions.sort_unstable();
            names.sort_unstable();
            assert_eq!(companions, names, "{model}");
            let elements: u64 = weight.shape.iter().product();
            let bits = if elements == 0 { 0.0 } else { nbytes as f64 * 8.0 / elements as f64 };
            let stated = quantization["bits_per_weight"].as_f64().unwrap();
            assert!((stated - bits).abs() < 0.001, "{model}: {stated} {bits}");
        }
    }
}

#[test]
fn jq_and_getfattr_answer_which_tensors_are_quantized() {
    require_fuse!();
    let scene = Scene::new();
    let tensor = |name: &str, dtype: &str, shape: &[u64], data: Vec<u8>| Tensor {
        name: name.into(),
        dtype: dtype.into(),
        shape: shape.into(),
        data,
    };
    let tensors = [
        tensor("a.weight", "F8_E4M3", &[256, 128], vec![0x38; 32768]),
        tensor("a.weight_scale_inv", "F32", &[2, 1], [1f32; 2].map(f32::to_le_bytes).concat()),
        tensor("a.input_scale", "F32", &[], 1f32.to_le_bytes().to_vec()),
        tensor("norm.weight", "BF16", &[4], vec![0; 8]),
    ];
    let source = scene.path("m.safetensors");
    write(&source, &tensors.iter().collect::<Vec<_>>());
    for options in [&[][..], &["--stored"]] {
        let mount = scene.mount(&source, options);
        let index = mount.path("index.json");
        let jq = |filter: &str| run_ok("jq", [OsStr::new("-r"), OsStr::new(filter), index.as_os_str()]);
        let weights = jq(".tensors[].quantization | select(.) | [.name, .summary, .bits_per_weight] | @tsv");
        assert_eq!(weights, "a.weight\tFP8: F8_E4M3, blocks of 128 x 128\t8.002\n");
        let companions = jq(r#".tensors[] | select(.companion_of == "a.weight") | [.role, .name] | @tsv"#);
        assert_eq!(companions, "scales\ta.weight_scale_inv\nother\ta.input_scale\n");
        assert_eq!(jq(".tensors[] | select(.quantization or .companion_of | not) | .name"), "norm.weight\n");
        assert_eq!(jq(".notes"), "null\n");
        let get = |name: &str| {
            let file = mount.path(format!("tensors/{name}"));
            run_ok("getfattr", ["--only-values", "-n", ATTRIBUTE].map(OsStr::new).into_iter().chain([file.as_os_str()]))
        };
        assert_eq!(get("a.weight"), "FP8: F8_E4M3, blocks of 128 x 128");
        assert_eq!(get("a.weight_scale_inv"), "scales of a.weight");
        assert_eq!(get("a.input_scale"), "companion of a.weight");
        let names: Vec<_> = xattr::list(mount.path("tensors/norm.weight")).unwrap().collect();
        assert!(names.len() == 6 && names.iter().all(|name| name != ATTRIBUTE), "{names:?}");
        assert_eq!(xattr::list(mount.path("tree/a/weight")).unwrap().count(), 7);
        assert!(attribute(mount.path("npy/a.weight.npy")).is_none());
    }
    fs::remove_file(source).unwrap();
}
