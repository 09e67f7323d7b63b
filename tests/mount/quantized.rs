//! Quantized models: views and exports have the values that the libraries compute, bit for bit.

use crate::support::{Mount, Scene, pattern, python, require_fuse, run_ok};
use crate::vectors::{Case, File, Tensor, cases, floats, is_same};
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Writes tensors as a safetensors file.
pub fn write(path: &Path, tensors: &[&Tensor]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for tensor in tensors {
        let begin = data.len();
        data.extend(&tensor.data);
        let offsets = [begin, data.len()];
        let entry = json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": offsets});
        header.insert(tensor.name.clone(), entry);
    }
    let header = serde_json::to_vec(&header).unwrap();
    fs::write(path, [&(header.len() as u64).to_le_bytes()[..], &header, &data].concat()).unwrap();
}

/// Writes a case to a directory: as one file, or as two shards of which the second has the companions.
pub fn write_case(dir: &Path, case: &Case, is_sharded: bool) {
    fs::create_dir_all(dir).unwrap();
    for (file, config) in &case.files {
        fs::write(dir.join(file), config.to_string()).unwrap();
    }
    let all: Vec<&Tensor> = case.file.tensors.iter().collect();
    if !is_sharded {
        return write(&dir.join("model.safetensors"), &all);
    }
    // The largest tensor has the codes.
    let largest = all.iter().map(|tensor| tensor.data.len()).max().unwrap();
    let (codes, others): (Vec<&Tensor>, Vec<&Tensor>) = all.iter().partition(|tensor| tensor.data.len() == largest);
    let names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    let mut map = serde_json::Map::new();
    for (name, tensors) in names.iter().zip([codes, others]) {
        write(&dir.join(name), &tensors);
        map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), json!(name))));
    }
    fs::write(dir.join("model.safetensors.index.json"), json!({"weight_map": map}).to_string()).unwrap();
}

/// All cases, in directories of their names, each as one file and as shards.
pub fn write_cases(scene: &Scene, cases: &[Case]) -> std::path::PathBuf {
    let dir = scene.mkdir("models");
    for case in cases {
        write_case(&dir.join(&case.name).join("one"), case, false);
        write_case(&dir.join(&case.name).join("sharded"), case, true);
    }
    dir
}

/// The path of a case's model in a mount of all cases.
pub fn models(case: &Case) -> [String; 2] {
    ["one", "sharded"].map(|kind| format!("{}/{kind}/model", case.name))
}

#[test]
fn values_of_every_scheme_are_those_of_the_libraries() {
    require_fuse!();
    let scene = Scene::new();
    let cases = cases();
    let mount = scene.mount(&write_cases(&scene, &cases), &[]);
    let mut wrong = Vec::new();
    for case in &cases {
        let expected = &case.expected.tensors[0];
        for model in models(case) {
            let file = format!("{model}/f32/{}.f32", expected.name);
            let Ok(found) = fs::read(mount.path(&file)) else {
                wrong.push(format!("{file}: missing; {:?}", mount.list(format!("{model}/f32"))));
                continue;
            };
            let found: Vec<f32> = found.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            let floats = floats(expected);
            let is_same = |(found, expected): (&f32, &f32)| is_same(*found, *expected, case.zero_sign);
            if found.len() != floats.len() || !found.iter().zip(&floats).all(is_same) {
                wrong.push(format!("{file}: wrong values"));
            }
            // The tensor with the codes has another name than the weight only in tensors/.
            let stored: Vec<&str> = case.file.tensors.iter().map(|tensor| &tensor.name[..]).collect();
            let mut names: Vec<String> = mount.list(format!("{model}/tensors"));
            names.sort();
            let mut expected_names = stored.clone();
            expected_names.sort_unstable();
            assert_eq!(names, expected_names, "{model}");
            assert_eq!(mount.list(format!("{model}/npy")).len(), mount.list(format!("{model}/stats")).len(), "{model}");
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(mount.log(), "");
}

#[test]
fn numpy_and_the_official_reader_see_the_same_values() {
    require_fuse!();
    let scene = Scene::new();
    let cases = cases();
    let mount = scene.mount(&write_cases(&scene, &cases), &["--direct-io"]);
    let mut jobs = Vec::new();
    for case in &cases {
        let name = &case.expected.tensors[0].name;
        let shape = &case.expected.tensors[0].shape;
        jobs.extend(models(case).map(|model| json!({"model": mount.path(model), "name": name, "shape": shape})));
    }
    let list = scene.path("jobs.json");
    fs::write(&list, json!(jobs).to_string()).unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/quantized.py");
    let said = run_ok(python().to_str().unwrap(), [&*script, &*list]);
    assert_eq!(said.trim(), format!("{} models", 2 * cases.len()));
}

#[test]
fn any_range_of_the_values_can_be_read() {
    require_fuse!();
    let scene = Scene::new();
    let cases = cases();
    let mount = scene.mount(&write_cases(&scene, &cases), &["--direct-io"]);
    let mut state = 1u64;
    let mut below = |end: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        if end == 0 { 0 } else { (state >> 33) % end }
    };
    for case in &cases {
        let [one, sharded] = models(case);
        let name = &case.expected.tensors[0].name;
        for path in [
            format!("{one}/f32/{name}.f32"),
            format!("{sharded}/npy/{name}.npy"),
            format!("{one}/export/model-bf16.safetensors"),
            format!("{sharded}/export/model-f32.safetensors"),
        ] {
            let whole = mount.read(&path);
            let mut file = fs::File::open(mount.path(&path)).unwrap();
            let len = whole.len() as u64;
            for _ in 0..12 {
                let start = below(len + 1);
                let count = below((len - start).min(9000) + 1) as usize;
                let mut found = vec![0; count];
                file.seek(SeekFrom::Start(start)).unwrap();
                file.read_exact(&mut found).unwrap();
                assert!(found == whole[start as usize..start as usize + count], "{path}: {count} bytes from {start}");
            }
        }
    }
}

/// An FP8 model with one scale, and what the values are.
fn fp8(scene: &Scene) -> (std::path::PathBuf, Vec<f32>) {
    let codes: Vec<u8> = (0..=255).filter(|code| code & 0x7f != 0x7f).chain([0, 0]).collect();
    let scale = 0.5f32;
    let dir = scene.mkdir("fp8");
    let tensor = |name: &str, dtype: &str, shape: &[u64], data: Vec<u8>| Tensor {
        name: name.into(),
        dtype: dtype.into(),
        shape: shape.into(),
        data,
    };
    let tensors = [
        tensor("layer.weight", "F8_E4M3", &[16, 16], codes.clone()),
        tensor("layer.weight_scale", "F32", &[1], scale.to_le_bytes().to_vec()),
        tensor("norm.weight", "BF16", &[4], pattern(8)),
    ];
    write(&dir.join("fp8.safetensors"), &tensors.iter().collect::<Vec<_>>());
    let value = |code: u8| {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let magnitude = if exponent == 0 { mantissa / 512.0 } else { (8.0 + mantissa) * 2f32.powi(exponent - 10) };
        if code < 128 { magnitude * scale } else { -magnitude * scale }
    };
    (dir.join("fp8.safetensors"), codes.into_iter().map(value).collect())
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

#[test]
fn stored_numbers_are_shown_on_request() {
    require_fuse!();
    let scene = Scene::new();
    let (source, values) = fp8(&scene);
    let mount = scene.mount(&source, &[]);
    let stored = scene.mount(&source, &["--stored"]);
    assert_eq!(f32s(&mount.read("f32/layer.weight.f32")), values);
    let undone: Vec<f32> = values.iter().map(|value| value * 2.0).collect();
    assert_eq!(f32s(&stored.read("f32/layer.weight.f32")), undone);
    let stats = |mount: &Mount| serde_json::from_slice::<Value>(&mount.read("stats/layer.weight.json")).unwrap();
    assert_eq!((stats(&mount)["max"].as_f64(), stats(&stored)["max"].as_f64()), (Some(224.0), Some(448.0)));
    let pictures = [&mount, &stored].map(|mount| mount.read("plots/layer.weight.png"));
    assert!(pictures[0] != pictures[1] && pictures.iter().all(|picture| picture.starts_with(b"\x89PNG")));
    // What is stored is the same in both.
    for file in ["tensors/layer.weight", "safetensors/layer.weight.safetensors", "export/fp8-whole.safetensors"] {
        assert!(mount.read(file) == stored.read(file), "{file}");
    }
    // Companions are visible, and belong to no dequantized export.
    assert_eq!(f32s(&mount.read("f32/layer.weight_scale.f32")), [0.5]);
    let names = |mount: &Mount, file: &str| {
        let bytes = mount.read(file);
        let read = SafeTensors::deserialize(&bytes).unwrap();
        let mut names: Vec<(String, Dtype)> =
            read.tensors().into_iter().map(|(name, view)| (name, view.dtype())).collect();
        names.sort_by(|a, b| a.0.cmp(&b.0));
        names
    };
    let pair = |dtype| vec![("layer.weight".to_owned(), dtype), ("norm.weight".to_owned(), dtype)];
    assert_eq!(names(&mount, "export/fp8-bf16.safetensors"), pair(Dtype::BF16));
    assert_eq!(names(&mount, "export/fp8-f32.safetensors"), pair(Dtype::F32));
    assert_eq!(names(&stored, "export/fp8-f32.safetensors").len(), 3);
}

#[test]
fn command_writes_the_same_exports() {
    require_fuse!();
    let scene = Scene::new();
    let (source, _) = fp8(&scene);
    for (options, arguments) in [(&[][..], ""), (&["--stored"], "--stored")] {
        let mount = scene.mount(&source, options);
        for dtype in ["bf16", "f32"] {
            scene.ok(&format!(
                "weightfs export --force --dtype {dtype} {arguments} {} out.safetensors",
                source.display()
            ));
            let written = fs::read(scene.path("out.safetensors")).unwrap();
            assert!(written == mount.read(format!("export/fp8-{dtype}.safetensors")), "{dtype} {arguments}");
        }
    }
    // A pattern matches logical names, and a weight needs no companions.
    let case = cases().into_iter().find(|case| case.name == "gptq_4").unwrap();
    let dir = scene.path("gptq");
    write_case(&dir, &case, false);
    scene.ok("weightfs export --force --dtype f32 --only '*.weight' gptq out.safetensors");
    let written = fs::read(scene.path("out.safetensors")).unwrap();
    let read = SafeTensors::deserialize(&written).unwrap();
    let expected = &case.expected.tensors[0];
    assert_eq!(read.names(), [&expected.name]);
    assert_eq!(f32s(read.tensor(&expected.name).unwrap().data()), floats(expected));
    // Half floats are rounded from the same values.
    let halves = ["--only '*.weight'", "--shard-size 1MB"].map(|options| {
        scene.ok(&format!("rm -rf half.safetensors; weightfs export --dtype f16 {options} gptq half.safetensors"));
        let file =
            if options.starts_with("--only") { "half.safetensors" } else { "half.safetensors/model.safetensors" };
        let written = fs::read(scene.path(file)).unwrap();
        let read = SafeTensors::deserialize(&written).unwrap();
        let tensor = read.tensor(&expected.name).unwrap();
        assert_eq!(tensor.dtype(), Dtype::F16);
        tensor.data().as_chunks().0.iter().map(|bytes| half::f16::from_le_bytes(*bytes)).collect::<Vec<_>>()
    });
    let rounded: Vec<half::f16> = floats(expected).into_iter().map(half::f16::from_f32).collect();
    assert_eq!(halves, [rounded.clone(), rounded]);
    // Shards have logical names too.
    scene.ok("weightfs export --force --dtype bf16 --shard-size 1MB gptq parts && rm -r parts");
    let said = scene.sh("weightfs export --force --stored gptq out.safetensors");
    assert!(said.code == 2 && said.err.contains("--dtype"), "{said:?}");
}

#[test]
fn description_of_comfyui_is_not_in_a_dequantized_export() {
    require_fuse!();
    let scene = Scene::new();
    let description = r#"{"layers": {"layer": {"format": "float8_e4m3fn"}}}"#;
    let source = scene.model(
        "m.safetensors",
        &[
            ("layer.weight", Dtype::F8_E4M3, &[2, 2], vec![0x38; 4]),
            ("layer.weight_scale", Dtype::F32, &[], 2f32.to_le_bytes().to_vec()),
        ],
        &[("_quantization_metadata", description), ("format", "pt")],
    );
    let (mount, stored) = (scene.mount(&source, &[]), scene.mount(&source, &["--stored"]));
    assert_eq!(f32s(&mount.read("f32/layer.weight.f32")), [2.0; 4]);
    let keys = |mount: &Mount, file: &str| {
        let bytes = mount.read(file);
        let (_, header) = SafeTensors::read_metadata(&bytes).unwrap();
        let mut keys: Vec<String> = header.metadata().clone().unwrap().into_keys().collect();
        keys.sort();
        keys
    };
    assert_eq!(keys(&mount, "export/m-bf16.safetensors"), ["format"]);
    for (mount, file) in [(&mount, "export/m-whole.safetensors"), (&stored, "export/m-bf16.safetensors")] {
        assert_eq!(keys(mount, file), ["_quantization_metadata", "format"], "{file}");
    }
}

/// The old format of ComfyUI has a tensor that says that the model is quantized.
#[test]
fn marker_of_comfyui_is_not_in_a_dequantized_export() {
    require_fuse!();
    let scene = Scene::new();
    let source = scene.model(
        "m.safetensors",
        &[
            ("net.scaled_fp8", Dtype::F8_E4M3, &[2], vec![0; 2]),
            ("net.a.weight", Dtype::F8_E4M3, &[2, 2], vec![0x38; 4]),
            ("net.a.scale_weight", Dtype::F32, &[], 2f32.to_le_bytes().to_vec()),
        ],
        &[],
    );
    let (mount, stored) = (scene.mount(&source, &[]), scene.mount(&source, &["--stored"]));
    let count = |mount: &Mount, file: &str| SafeTensors::deserialize(&mount.read(file)).unwrap().len();
    assert_eq!(count(&mount, "export/m-bf16.safetensors"), 1);
    assert_eq!(count(&mount, "export/m-whole.safetensors"), 3);
    assert_eq!(count(&stored, "export/m-bf16.safetensors"), 3);
    assert!(mount.path("tensors/net.scaled_fp8").exists() && mount.path("f32/net.scaled_fp8.f32").exists());
}

#[test]
fn configuration_written_by_python_is_read() {
    require_fuse!();
    let scene = Scene::new();
    let case = cases().into_iter().find(|case| case.name == "mlx_3_64").unwrap();
    let dir = scene.path("mlx");
    write_case(&dir, &case, false);
    let config = fs::read_to_string(dir.join("config.json")).unwrap();
    fs::write(dir.join("config.json"), config.replacen('{', "\u{feff}{\"time_step_limit\": [0.0, Infinity], ", 1))
        .unwrap();
    let mount = scene.mount(&dir, &[]);
    let expected = &case.expected.tensors[0];
    assert_eq!(f32s(&mount.read(format!("f32/{}.f32", expected.name))), floats(expected));
    drop(mount);
    // A file that cannot be used is reported once, with its path once.
    for text in ["{", &" ".repeat((16 << 20) + 1)] {
        fs::write(dir.join("config.json"), text).unwrap();
        let mount = scene.mount(&dir, &[]);
        let log = mount.log();
        assert_eq!((log.matches("config.json: ").count(), log.matches("ignored: ").count()), (1, 1), "{log}");
    }
}

#[test]
fn unknown_scheme_is_reported_and_shown_as_stored() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("unknown");
    let source = scene.model(
        "unknown/m.safetensors",
        &[
            ("a.weight", Dtype::I8, &[2, 4], pattern(8)),
            ("a.weight_scales", Dtype::F32, &[3], pattern(12)),
            ("b.qweight", Dtype::I32, &[2, 4], pattern(32)),
        ],
        &[],
    );
    fs::write(dir.join("config.json"), r#"{"quantization_config": {"quant_method": "eetq"}}"#).unwrap();
    let mount = scene.mount(&source, &[]);
    let index: Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
    let notes: Vec<&str> = index["notes"].as_array().unwrap().iter().map(|note| note.as_str().unwrap()).collect();
    assert_eq!(notes.len(), 3, "{notes:?}");
    for (note, word) in notes.iter().zip(["a.weight_scales", "b.qweight", "eetq"]) {
        assert!(note.contains(word) && note.contains("not the weights"), "{note}");
        assert!(mount.log().contains(note), "{}", mount.log());
    }
    assert_eq!(mount.read("npy/a.weight.npy")[128..], pattern(8));
    // Weights of a known scheme are dequantized even if the configuration names an unknown method.
    let (fp8, values) = fp8(&scene);
    fs::write(fp8.with_file_name("config.json"), r#"{"quantization_config": {"quant_method": "quark"}}"#).unwrap();
    let known = scene.mount(&fp8, &[]);
    let index: Value = serde_json::from_slice(&known.read("index.json")).unwrap();
    let note = index["notes"][0].as_str().unwrap();
    assert!(note.contains("(quark); ") && note.ends_with("are dequantized nevertheless"), "{note}");
    assert!(index["notes"].as_array().unwrap().len() == 1 && !note.contains("not dequantized"), "{note}");
    assert_eq!(f32s(&known.read("f32/layer.weight.f32")), values);
    let mut files = mount.list("npy");
    files.sort();
    assert_eq!(files, ["a.weight.npy", "a.weight_scales.npy", "b.qweight.npy"]);
}

#[test]
fn companions_are_read_at_the_first_read_of_a_value_only() {
    require_fuse!();
    let scene = Scene::new();
    let case = cases().into_iter().find(|case| case.name == "gptq_4_order").unwrap();
    let dir = scene.path("gptq");
    write_case(&dir, &case, true);
    let mount = scene.mount(&dir, &[]);
    let name = &case.expected.tensors[0].name;
    // A shard that is truncated after the mount fails reads of values that need it, and of nothing else.
    let shard = dir.join("model-00002-of-00002.safetensors");
    let len = fs::metadata(&shard).unwrap().len();
    fs::File::options().write(true).open(&shard).unwrap().set_len(len - 1).unwrap();
    assert!(fs::read(mount.path(format!("f32/{name}.f32"))).is_err());
    let codes = case.file.tensors.iter().max_by_key(|tensor| tensor.data.len()).unwrap();
    assert!(mount.read(format!("tensors/{}", codes.name)) == codes.data);
    assert!(mount.log().contains("model-00002-of-00002.safetensors"), "{}", mount.log());
}

#[test]
fn renamed_weights_have_one_name_in_each_view() {
    require_fuse!();
    let scene = Scene::new();
    let case = cases().into_iter().find(|case| case.name == "awq").unwrap();
    let File { tensors, .. } = &case.file;
    // Names so long that file names are cut.
    let long = "l".repeat(300);
    let renamed: Vec<Tensor> = tensors
        .iter()
        .map(|tensor| Tensor { name: tensor.name.replacen("m.", &format!("{long}."), 1), ..tensor.clone() })
        .collect();
    let dir = scene.mkdir("awq");
    for (file, config) in &case.files {
        fs::write(dir.join(file), config.to_string()).unwrap();
    }
    write(&dir.join("model.safetensors"), &renamed.iter().collect::<Vec<_>>());
    let mount = scene.mount(&dir, &[]);
    let index: Value = serde_json::from_slice(&mount.read("index.json")).unwrap();
    let codes = index["tensors"].as_array().unwrap().iter().find(|tensor| !tensor["quantization"].is_null()).unwrap();
    assert_eq!(codes["quantization"]["name"], format!("{long}.weight"));
    // Every listed file can be opened, and the file of the weight is that with the size of the values.
    let size = case.expected.tensors[0].data.len() as u64;
    let sizes: Vec<u64> =
        mount.list("f32").iter().map(|name| fs::metadata(mount.path(format!("f32/{name}"))).unwrap().len()).collect();
    assert_eq!(sizes.iter().filter(|found| **found == size).count(), 1, "{sizes:?}");
    let weight = &mount.list("f32")[sizes.iter().position(|found| *found == size).unwrap()];
    assert!(weight.contains("%~"), "{weight}");
    assert_eq!(f32s(&mount.read(format!("f32/{weight}"))), floats(&case.expected.tensors[0]));
    // The name of the codes is not there, nor is the logical name in tensors/.
    let short = |name: &str| mount.path(name).exists();
    let (plain, _) = (scene.path("plain"), write_case(&scene.path("plain"), &case, false));
    let mount2 = scene.mount(&plain, &[]);
    let exists = |name: &str| mount2.path(name).exists();
    assert!(exists("f32/m.weight.f32") && !exists("f32/m.qweight.f32") && !short("f32/m.weight.f32"));
    assert!(exists("tensors/m.qweight") && !exists("tensors/m.weight"));
    assert!(exists("npy/m.scales.npy") && exists("stats/m.weight.json") && exists("plots/m.weight.png"));
}
