//! `export/hf/`: a folder that loaders open.

use crate::converted;
use crate::gguf;
use crate::quantized;
use crate::support::{Mount, Scene, Tensor, files_below, pattern, python, require_fuse, require_root, run_ok};
use crate::vectors::{Case, cases};
use safetensors::Dtype;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

const PT: &[(&str, &str)] = &[("format", "pt")];

fn tensors() -> Vec<Tensor<'static>> {
    vec![("embed", Dtype::F32, &[2, 3], pattern(24)), ("head", Dtype::BF16, &[5], pattern(10))]
}

/// Adds what a repository has besides its weights to a directory.
fn add_others(dir: &Path) {
    fs::create_dir_all(dir.join("onnx/empty")).unwrap();
    for (name, text) in [
        ("config.json", r#"{"model_type": "llama"}"#),
        ("tokenizer.json", "{}"),
        ("onnx/notes.txt", "notes"),
        ("onnx/empty/scaler.pt", "the suffix of weights"),
        ("training_args.bin", "the suffix of weights"),
        ("flax.BIN", "the suffix of weights"),
    ] {
        fs::write(dir.join(name), text).unwrap();
    }
}

const OTHERS: [&str; 3] = ["config.json", "onnx/notes.txt", "tokenizer.json"];

/// The names of [`OTHERS`] and of some files of weights.
fn with_others(weights: &[&str]) -> Vec<String> {
    let mut names: Vec<String> = OTHERS.iter().chain(weights).map(|name| (*name).to_owned()).collect();
    names.sort();
    names
}

/// The paths of all files in `export/hf/`, which has nothing but regular files and folders.
fn listed(scene: &Scene, mount: &Mount) -> Vec<String> {
    let folder = mount.path("export/hf");
    assert_eq!(scene.ok(&format!("find {} ! -type f ! -type d", folder.display())), "");
    let mut names: Vec<String> = files_below(&folder).into_keys().collect();
    names.sort();
    names
}

/// The metadata of the safetensors files below a directory, and the name, dtype, shape and SHA-256 of each tensor, as
/// the official package reads them.
fn loaded(dir: &Path) -> (BTreeMap<String, Value>, BTreeMap<String, Value>) {
    let script = r#"
import hashlib, json, pathlib, sys
from safetensors import deserialize, safe_open
files, tensors = {}, {}
top = pathlib.Path(sys.argv[1])
for path in sorted(top.rglob("*.safetensors")):
    with safe_open(path, "numpy") as file:
        files[str(path.relative_to(top))] = file.metadata()
        names = set(file.keys())
    for name, tensor in deserialize(path.read_bytes()):
        names.remove(name)
        assert name not in tensors, name
        tensors[name] = [tensor["dtype"], tensor["shape"], hashlib.sha256(bytes(tensor["data"])).hexdigest()]
    assert not names
print(json.dumps([files, tensors]))
"#;
    let said = run_ok(python().to_str().unwrap(), ["-c".as_ref(), script.as_ref(), dir.as_os_str()]);
    serde_json::from_str(&said).unwrap()
}

/// The SHA-256 of the tensors of a mount, by name.
fn sums(scene: &Scene, mount: &Mount) -> BTreeMap<String, String> {
    let said = scene.ok(&format!("cd {} && sha256sum -- *", mount.path("tensors").display()));
    said.lines().map(|line| line.split_once("  ").unwrap()).map(|(sum, name)| (name.into(), sum.into())).collect()
}

/// Asserts that `export/hf/` has these files of weights, with all tensors of the model and `format: pt` in each of
/// them. Returns their metadata.
#[track_caller]
fn assert_loads(scene: &Scene, mount: &Mount, weights: &[&str]) -> BTreeMap<String, Value> {
    assert_eq!(listed(scene, mount), with_others(weights));
    for name in OTHERS {
        assert_eq!(mount.read(format!("export/hf/{name}")), mount.read(format!("files/{name}")), "{name}");
    }
    let (files, tensors) = loaded(&mount.path("export/hf"));
    let expected = sums(scene, mount);
    let found: BTreeMap<String, String> =
        tensors.into_iter().map(|(name, tensor)| (name, tensor[2].as_str().unwrap().to_owned())).collect();
    assert_eq!(found, expected);
    assert!(files.values().all(|metadata| metadata["format"] == "pt"), "{files:?}");
    files
}

fn index(mount: &Mount) -> Value {
    serde_json::from_slice(&mount.read("export/hf/model.safetensors.index.json")).unwrap()
}

#[test]
fn model_with_the_name_that_loaders_look_for_is_given_as_it_is() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("m");
    add_others(&dir);
    let model = scene.model("m/model.safetensors", &tensors(), PT);
    for source in [&dir, &model] {
        let mount = scene.mount(source, &[]);
        assert_eq!(mount.read("export/hf/model.safetensors"), fs::read(&model).unwrap());
        let shown = fs::metadata(mount.path("export/hf/model.safetensors")).unwrap();
        assert_eq!((shown.blocks(), shown.nlink()), (1, 1));
        let ino = |path: &str| fs::metadata(mount.path(path)).unwrap().ino();
        assert_eq!((ino("export/hf/.."), ino("export/..")), (ino("export"), ino(".")));
        assert_eq!(mount.log(), "");
    }
    let mount = scene.mount(&dir, &[]);
    assert_loads(&scene, &mount, &["model.safetensors"]);
    let ino = |path: &str| fs::metadata(mount.path(path)).unwrap().ino();
    assert_eq!(ino("export/hf/onnx/.."), ino("export/hf"));
    assert_eq!(
        mount.list("export"),
        [
            "hf",
            "hf-bf16",
            "hf-f32",
            "model-bf16.safetensors",
            "model-clean.safetensors",
            "model-f32.safetensors",
            "model-whole.safetensors"
        ]
    );

    // A copy is a conversion, with and without a mount.
    scene.ok(&format!("cp -r {} copied", mount.path("export/hf").display()));
    scene.ok("weightfs cp m export/hf without && diff -r copied without/hf");
    assert_eq!(files_below(&scene.path("copied")).len(), OTHERS.len() + 1);
    assert_eq!(scene.ok("weightfs cat m export/hf/onnx/notes.txt"), "notes");
    let said = scene.ok("weightfs ls --files -n m export/hf");
    assert!(said.contains("export/hf/model.safetensors") && said.contains("export/hf/onnx/"), "{said}");
}

#[test]
fn model_with_another_name_or_format_gets_those_of_transformers() {
    require_fuse!();
    let scene = Scene::new();
    for (dir, name, metadata, weights) in [
        ("named", "llama.safetensors", PT, "model.safetensors"),
        ("none", "model.safetensors", &[][..], "model.safetensors"),
        ("mlx", "model.safetensors", &[("format", "mlx"), ("other", "kept")][..], "model.safetensors"),
        ("np", "weights.safetensors", &[("format", "np")][..], "model.safetensors"),
        ("unet", "diffusion_pytorch_model.fp16.safetensors", PT, "diffusion_pytorch_model.safetensors"),
    ] {
        add_others(&scene.mkdir(dir));
        scene.model(&format!("{dir}/{name}"), &tensors(), metadata);
        let mount = scene.mount(&scene.path(dir), &[]);
        let files = assert_loads(&scene, &mount, &[weights]);
        let kept: Vec<_> = metadata.iter().filter(|(key, _)| *key != "format").collect();
        assert!(kept.iter().all(|(key, value)| files[weights][*key] == *value), "{files:?}");
    }
}

/// Writes a model of two shards in `dir` with an index called `index`.
fn sharded(scene: &Scene, dir: &str, index: &str, names: [&str; 2], metadata: [&[(&str, &str)]; 2]) -> PathBuf {
    let path = scene.mkdir(dir);
    add_others(&path);
    let mut map = serde_json::Map::new();
    for (at, (name, tensor)) in names.iter().zip(tensors()).enumerate() {
        fs::create_dir_all(path.join(name).parent().unwrap()).unwrap();
        map.insert(tensor.0.into(), (*name).into());
        scene.model(&format!("{dir}/{name}"), &[tensor], metadata[at]);
    }
    fs::write(path.join(index), json!({"metadata": {"total_size": 34}, "weight_map": map}).to_string()).unwrap();
    path
}

const INDEX: &str = "model.safetensors.index.json";
const NUMBERED: [&str; 2] = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];

#[test]
fn shards_and_their_index_are_given_as_they_are() {
    require_fuse!();
    let scene = Scene::new();
    for (dir, names) in [("usual", NUMBERED), ("free", ["model-a.safetensors", "model-b.safetensors"])] {
        let path = sharded(&scene, dir, INDEX, names, [PT, PT]);
        let mount = scene.mount(&path.join(INDEX), &[]);
        for name in [names[0], names[1], INDEX] {
            assert_eq!(mount.read(format!("export/hf/{name}")), fs::read(path.join(name)).unwrap(), "{name}");
        }
        let mount = scene.mount(&path, &[]);
        assert_loads(&scene, &mount, &[names[0], names[1], INDEX]);
        assert_eq!(mount.log(), "");
    }
}

#[test]
fn index_and_shards_that_loaders_refuse_are_written_anew() {
    require_fuse!();
    let scene = Scene::new();
    // transformers needs metadata in the index, and no byte order mark before it.
    let dir = sharded(&scene, "bare", INDEX, NUMBERED, [PT, &[("format", "mlx"), ("own", "2")]]);
    let map = json!({"embed": NUMBERED[0], "head": NUMBERED[1]});
    for text in [
        json!({"weight_map": map}).to_string(),
        json!({"weight_map": map, "metadata": []}).to_string(),
        format!("\u{feff}{}", json!({"metadata": {}, "weight_map": map})),
    ] {
        fs::write(dir.join(INDEX), text).unwrap();
        let mount = scene.mount(&dir, &[]);
        assert_loads(&scene, &mount, &[NUMBERED[0], NUMBERED[1], INDEX]);
        let expected = json!({"metadata": {"total_size": 34, "total_parameters": 11}, "weight_map": map});
        assert_eq!(index(&mount), expected);
        // Only the file that loaders refuse has another header.
        assert_eq!(mount.read(format!("export/hf/{}", NUMBERED[0])), fs::read(dir.join(NUMBERED[0])).unwrap());
        assert_ne!(mount.read(format!("export/hf/{}", NUMBERED[1])), fs::read(dir.join(NUMBERED[1])).unwrap());
    }
    // Other names of the index, and a shard with the name of a whole model, which hides the index.
    for (dir, index_name, names) in [
        ("other", "llama.safetensors.index.json", ["1.safetensors", "2.safetensors"]),
        ("variant", "model.safetensors.index.fp16.json", NUMBERED),
        ("hidden", INDEX, ["model.safetensors", "model2.safetensors"]),
        ("below", INDEX, ["deep/model-1.safetensors", "model-2.safetensors"]),
        ("mistral", INDEX, ["consolidated-1.safetensors", "model-2.safetensors"]),
    ] {
        let path = sharded(&scene, dir, index_name, names, [PT, PT]);
        let mount = scene.mount(&path.join(index_name), &[]);
        let listed: Vec<String> = listed(&scene, &mount).into_iter().filter(|name| name.starts_with("model")).collect();
        assert_eq!(listed, [NUMBERED[0], NUMBERED[1], INDEX], "{dir}");
        assert_eq!(index(&mount)["weight_map"], map, "{dir}");
        assert_eq!(mount.read(format!("export/hf/{}", NUMBERED[0])), fs::read(path.join(names[0])).unwrap(), "{dir}");
    }
    // Shards without an index get one.
    fs::remove_file(dir.join(INDEX)).unwrap();
    let mount = scene.mount(&dir, &[]);
    assert_loads(&scene, &mount, &[NUMBERED[0], NUMBERED[1], INDEX]);
    assert_eq!(index(&mount)["weight_map"], map);
}

#[test]
fn pytorch_models_are_given_as_safetensors() {
    require_fuse!();
    let scene = Scene::new();
    crate::pytorch::script(["write".as_ref(), scene.mkdir("torch").as_os_str()]);
    for (dir, copies) in [
        ("one", "cp torch/views.pt one/pytorch_model.bin"),
        ("big", "cp torch/big.pt big/pytorch_model.bin"),
        ("several", "cp torch/pytorch_model* several"),
    ] {
        add_others(&scene.mkdir(dir));
        scene.ok(copies);
        let mount = scene.mount(&scene.path(dir), &[]);
        let files = assert_loads(&scene, &mount, &["model.safetensors"]);
        assert_eq!(files["model.safetensors"], json!({"format": "pt"}), "{dir}");
        assert!(mount.list("tensors").contains(&"tied".to_owned()));
        assert_eq!(mount.log(), "");
    }
}

#[test]
fn other_models_have_no_folder() {
    require_fuse!();
    let scene = Scene::new();
    let has_folder = |dir: &str| scene.mount(&scene.path(dir), &[]).list("export").contains(&"hf".to_owned());
    let dir = scene.mkdir("m");
    scene.model("m/model.safetensors", &tensors(), PT);
    fs::write(dir.join("tokenizer.json"), "{}").unwrap();
    fs::create_dir(dir.join("sub")).unwrap();
    fs::write(dir.join("sub/config.json"), "{}").unwrap();
    assert!(!has_folder("m"));
    fs::create_dir(dir.join("config.json")).unwrap();
    fs::write(dir.join("config.json/text"), "{}").unwrap();
    assert!(!has_folder("m"));
    fs::remove_dir_all(dir.join("config.json")).unwrap();
    fs::write(dir.join("config.json"), "{}").unwrap();
    assert!(has_folder("m"));
    // The folder needs no view but its own.
    let mount = scene.mount(&dir, &["--views=export"]);
    assert_eq!(mount.read("export/hf/config.json"), b"{}");
    assert_eq!(mount.list(""), ["export"]);

    let path = scene.mkdir("g").join("model.gguf");
    fs::write(path, gguf::file(&[("general.architecture", gguf::text(b"llama"))], &[("w", 0, &[4], pattern(16))]))
        .unwrap();
    fs::write(scene.path("g/config.json"), "{}").unwrap();
    assert!(!has_folder("g"));
    let npy = scene.mkdir("n");
    fs::write(npy.join("config.json"), "{}").unwrap();
    run_ok(
        python().to_str().unwrap(),
        [
            "-c".as_ref(),
            "import numpy, sys; numpy.save(sys.argv[1], numpy.zeros(3))".as_ref(),
            npy.join("a.npy").as_os_str(),
        ],
    );
    assert!(!has_folder("n"));
}

/// Loaders take random numbers for what is missing.
#[test]
fn what_is_not_the_whole_of_a_model_has_no_folder() {
    require_fuse!();
    let scene = Scene::new();
    let dir = sharded(&scene, "sharded", INDEX, NUMBERED, [PT, PT]);
    let left_out = |source: &Path, args: &[&str], expected: &str| {
        let mount = scene.mount(source, args);
        assert!(!mount.list("export").contains(&"hf".to_owned()), "{expected}");
        let log = mount.log();
        assert!(log.contains(&format!("export/hf/: skipped: {expected}")), "{expected}: {log}");
    };
    left_out(&dir.join(NUMBERED[0]), &[], "\"model-00001-of-00002.safetensors\" is one of several files");
    fs::remove_file(dir.join(NUMBERED[1])).unwrap();
    left_out(&dir, &["--lenient"], "parts of the model that were left out: 1");
    for (dir, name, tensor, expected) in [
        ("adapter", "adapter_model.safetensors", "lora_A", "\"adapter_model.safetensors\" does not have the weights"),
        ("state", "model.safetensors", "optimizer.m", "tensor \"optimizer.m\" belongs to the state of a training"),
    ] {
        add_others(&scene.mkdir(dir));
        let file = scene.model(&format!("{dir}/{name}"), &[(tensor, Dtype::U8, &[2], vec![0; 2])], PT);
        left_out(&file, &[], expected);
    }
    add_others(&scene.mkdir("dtype"));
    let header = br#"{"__metadata__":{"format":"pt"},"w":{"dtype":"C128","shape":[1],"data_offsets":[0,16]}}"#;
    let file = scene.raw("dtype/model.safetensors", header, &[0; 16]);
    left_out(&file, &[], "tensor \"w\": no loader reads the dtype");
}

/// The folders of converted weights, the files with the same numbers, and the dtypes that configurations name.
const CONVERTED: [(&str, &str, &str); 2] = [("hf-bf16", "model-bf16", "bfloat16"), ("hf-f32", "model-f32", "float32")];

/// The paths of all files in a folder of `export/`.
fn names_in(mount: &Mount, folder: &str) -> Vec<String> {
    let mut names: Vec<String> = files_below(&mount.path("export").join(folder)).into_keys().collect();
    names.sort();
    names
}

fn config_of(mount: &Mount, folder: &str) -> Value {
    serde_json::from_slice(&mount.read(format!("export/{folder}/config.json"))).unwrap()
}

/// Asserts that the weights in a folder of `export/` have `format: pt` and are those of a file in `export/`. Returns
/// them.
#[track_caller]
fn assert_same_numbers(scene: &Scene, mount: &Mount, folder: &str, export: &str) -> BTreeMap<String, Value> {
    scene.ok("rm -rf copied-export");
    let copy = scene.mkdir("copied-export");
    fs::copy(mount.path(format!("export/{export}.safetensors")), copy.join("model.safetensors")).unwrap();
    let (metadata, tensors) = loaded(&mount.path("export").join(folder));
    assert_eq!(tensors, loaded(&copy).1);
    assert!(metadata.values().all(|metadata| *metadata == json!({"format": "pt"})), "{metadata:?}");
    tensors
}

#[test]
fn models_have_folders_of_converted_weights() {
    require_fuse!();
    let scene = Scene::new();
    let tensors: Vec<Tensor> = vec![
        ("double", Dtype::F64, &[3], pattern(24)),
        ("embed", Dtype::F32, &[2, 3], pattern(24)),
        ("half", Dtype::F16, &[5], pattern(10)),
        ("head", Dtype::BF16, &[5], pattern(10)),
        ("ids", Dtype::I64, &[2], pattern(16)),
        ("scaled", Dtype::F8_E4M3, &[4], pattern(4)),
    ];
    let text = r#"{"torch_dtype": "float32", "factors": [1.0800000429153442, 0.08838834764831845, 1e-05, 3],
        "text_config": {"dtype": "float16", "layers": 2}, "transformers_weights": "llama.safetensors"}"#;
    let dirs = [("plain", "model.safetensors"), ("named", "llama.safetensors")];
    for (dir, name) in dirs {
        add_others(&scene.mkdir(dir));
        scene.model(&format!("{dir}/{name}"), &tensors, PT);
    }
    let dir = scene.mkdir("sharded");
    add_others(&dir);
    for (shard, tensors) in NUMBERED.iter().zip(tensors.chunks(3)) {
        scene.model(&format!("sharded/{shard}"), tensors, PT);
    }
    crate::pytorch::script(["write".as_ref(), scene.mkdir("torch").as_os_str()]);
    add_others(&scene.mkdir("pickled"));
    scene.ok("cp torch/views.pt pickled/pytorch_model.bin");

    for dir in ["plain", "named", "sharded", "pickled"] {
        fs::write(scene.path(dir).join("config.json"), text).unwrap();
        let mount = scene.mount(&scene.path(dir), &["--stored"]);
        let stem =
            mount.list("export").into_iter().find_map(|name| Some(name.strip_suffix("-f32.safetensors")?.to_owned()));
        for (folder, export, dtype) in CONVERTED {
            assert_eq!(names_in(&mount, folder), with_others(&["model.safetensors"]), "{dir}");
            let expected = json!({
                "dtype": dtype, "factors": [1.0800000429153442, 0.08838834764831845, 1e-05, 3],
                "text_config": {"dtype": dtype, "layers": 2},
            });
            assert_eq!(config_of(&mount, folder), expected, "{dir}");
            // Python reads the same numbers.
            let numbers = "import json, sys; print(json.load(open(sys.argv[1]))['factors'])";
            let path = mount.path(format!("export/{folder}/config.json"));
            let said = run_ok(python().to_str().unwrap(), ["-c".as_ref(), numbers.as_ref(), path.as_os_str()]);
            assert_eq!(said, "[1.0800000429153442, 0.08838834764831845, 1e-05, 3]\n");
            let export = export.replace("model", stem.as_deref().unwrap());
            let found = assert_same_numbers(&scene, &mount, folder, &export);
            assert!(dir == "pickled" && found.contains_key("tied") || found.len() == tensors.len(), "{found:?}");
        }
        assert!(!mount.log().contains("skipped"), "{dir}: {}", mount.log());
    }

    // The numbers are those that ml_dtypes makes of what the official package reads, also in a copy.
    let mount = scene.mount(&scene.path("plain"), &[]);
    for kind in ["bf16", "f32"] {
        scene.ok(&format!("cp -r {} .", mount.path(format!("export/hf-{kind}")).display()));
        scene.ok(&format!("weightfs cp plain export/hf-{kind} without && diff -r hf-{kind} without/hf-{kind}"));
        scene.ok(&format!("mv hf-{kind}/model.safetensors hf-{kind}/model-{kind}.safetensors"));
        let copy = scene.path(format!("hf-{kind}/model-{kind}.safetensors"));
        let said = converted::compare(&scene.path("plain/model.safetensors"), &copy, &mount);
        assert_eq!(said, format!("6 {}", kind.to_uppercase()));
    }
}

/// A configuration of transformers may name the file of weights, which the folder has under another name.
#[test]
fn configuration_names_no_weights_that_the_folder_lacks() {
    require_fuse!();
    let scene = Scene::new();
    for (dir, name, named, is_kept) in [
        ("same", "model.safetensors", r#""model.safetensors""#, true),
        ("other", "llama.safetensors", r#""llama.safetensors""#, false),
        ("adapter", "model.safetensors", r#""adapter_model.bin""#, false),
        ("number", "model.safetensors", "1", false),
    ] {
        let text = format!(r#"{{ "transformers_weights": {named}, "eps": 1e-05 }}"#);
        fs::write(scene.mkdir(dir).join("config.json"), &text).unwrap();
        scene.model(&format!("{dir}/{name}"), &tensors(), PT);
        let mount = scene.mount(&scene.path(dir), &[]);
        assert_eq!(mount.list("export/hf"), ["config.json", "model.safetensors"]);
        let found = mount.read("export/hf/config.json");
        let expected = if is_kept { text.into_bytes() } else { b"{\"eps\":0.00001}\n".to_vec() };
        assert_eq!(String::from_utf8_lossy(&found), String::from_utf8_lossy(&expected), "{dir}");
        assert_eq!(config_of(&mount, "hf-bf16"), json!({"dtype": "bfloat16", "eps": 1e-5}));
        assert_eq!(mount.log(), "");
    }
    let path = scene.path("other");
    fs::write(path.join("config.json"), r#"{"transformers_weights": "llama.safetensors", "limit": Infinity}"#).unwrap();
    let mount = scene.mount(&path, &[]);
    assert!(!mount.list("export").iter().any(|name| name.starts_with("hf")));
    let log = mount.log();
    assert!(
        log.contains("export/hf/: skipped: config.json cannot be written again") && log.lines().count() == 1,
        "{log}"
    );
}

#[test]
fn weights_that_cannot_be_converted_have_no_other_folder() {
    require_fuse!();
    let scene = Scene::new();
    let float: (&str, &str, &[u64], usize) = ("w", "F32", &[2], 8);
    for (dir, tensors, config, folders, expected) in [
        ("ids", &[("w", "I64", &[2][..], 16), ("b", "BOOL", &[1], 1), ("c", "C64", &[1], 8)][..], "{}", 1, ""),
        ("none", &[], "{}", 1, ""),
        ("f6", &[float, ("x", "F6_E2M3", &[4], 3)], "{}", 3, ""),
        (
            "described",
            &[float],
            r#"{"quantization_config": {"quant_method": "new"}}"#,
            1,
            "hf-bf16/: skipped: config.json describes a quantization, but no quantized weights were found",
        ),
        (
            "nested",
            &[float],
            r#"{"text_config": {"quantization_config": {"quant_method": "new"}}}"#,
            1,
            "hf-bf16/: skipped: config.json describes a quantization, but no quantized weights were found",
        ),
        ("infinite", &[float], r#"{"limit": Infinity}"#, 1, "hf-bf16/: skipped: config.json cannot be written again"),
        ("empty", &[float], r#"{"quantization_config": {}}"#, 3, ""),
        (
            "large",
            &[float],
            &format!("{{}}{}", " ".repeat(1 << 20)),
            1,
            "hf-bf16/: skipped: config.json has 1048578 bytes",
        ),
    ] {
        let mount = scene.mount(&zeros(&scene, dir, tensors, config), &[]);
        let found: Vec<String> = mount.list("export").into_iter().filter(|name| name.starts_with("hf")).collect();
        assert_eq!(found, ["hf", "hf-bf16", "hf-f32"][..folders], "{dir}");
        assert_eq!(mount.read("export/hf/config.json"), config.as_bytes());
        let log = mount.log();
        let said: Vec<&str> = log.lines().filter(|line| line.contains("export/hf")).collect();
        assert!(said.len() == usize::from(!expected.is_empty()) && log.contains(expected), "{dir}: {log}");
    }
    // Old programs and ModelOpt describe a quantization in a file of their own.
    let dir = zeros(&scene, "beside", &[float], "{}");
    fs::write(dir.join("hf_quant_config.json"), r#"{"quantization": {"quant_algo": "NEW"}}"#).unwrap();
    let mount = scene.mount(&dir, &[]);
    assert_eq!(mount.list("export/hf").len(), 3);
    assert!(!mount.path("export/hf-bf16").exists());
    let (log, expected) = (mount.log(), "hf-bf16/: skipped: hf_quant_config.json describes a quantization");
    assert!(log.contains(expected) && log.lines().count() == 1, "{log}");
    // A configuration of diffusers has a dtype only if it had one before.
    for (dir, text, expected) in [
        ("class", json!({"_class_name": "A"}), json!({"_class_name": "A"})),
        ("stated", json!({"_class_name": "A", "torch_dtype": "x"}), json!({"_class_name": "A", "dtype": "bfloat16"})),
    ] {
        let mount = scene.mount(&zeros(&scene, dir, &[float], &text.to_string()), &[]);
        assert_eq!(config_of(&mount, "hf-bf16"), expected);
    }
}

#[test]
fn quantized_models_have_folders_of_dequantized_weights() {
    require_fuse!();
    let scene = Scene::new();
    let wanted =
        ["fp8_block", "gptq_4_v2_order", "awq", "ct_packed_4_channel_ragged", "hqq_4_axis1_64", "aqlm_2x8_1x8"];
    let cases: Vec<Case> = cases().into_iter().filter(|case| wanted.contains(&&*case.name)).collect();
    assert_eq!(cases.len(), wanted.len());
    for case in &cases {
        for is_sharded in [false, true] {
            let dir = scene.path(format!("{}-{is_sharded}", case.name));
            quantized::write_case(&dir, case, is_sharded);
            // The configuration of some schemes is in another file.
            let config = fs::read(dir.join("config.json")).unwrap_or_else(|_| b"{}".into());
            let mut config: Value = serde_json::from_slice(&config).unwrap();
            config["torch_dtype"] = "float16".into();
            config["thinker_config"] = json!({
                "text_config": {"quantization_config": {}, "compression_config": {}, "torch_dtype": "float16", "layers": 2},
            });
            config["kept"] = json!({"layers": 3});
            fs::write(dir.join("config.json"), config.to_string()).unwrap();
            let mount = scene.mount(&dir, &[]);
            for (folder, export, dtype) in CONVERTED {
                assert_eq!(names_in(&mount, folder), ["config.json", "model.safetensors"], "{}", case.name);
                let config = config_of(&mount, folder);
                assert_eq!(config["dtype"], dtype);
                assert_eq!(config["thinker_config"], json!({"text_config": {"dtype": dtype, "layers": 2}}));
                assert_eq!(config["kept"], json!({"layers": 3}));
                assert!(!config.to_string().contains("ion_config") && config.get("torch_dtype").is_none());
                // The values are those of the whole model, which are compared with the libraries elsewhere.
                let tensors = assert_same_numbers(&scene, &mount, folder, export);
                assert!(tensors.contains_key(&case.expected.tensors[0].name), "{}", case.name);
            }
            // As stored, with the configuration that describes it.
            assert_eq!(mount.read("export/hf/config.json"), fs::read(dir.join("config.json")).unwrap());
            let stored = scene.mount(&dir, &["--stored"]);
            assert!(!stored.list("export").iter().any(|name| name.starts_with("hf-")));
        }
    }
}

/// Writes a model of zeros in `dir`, with tensors given by name, dtype, shape and size, and its configuration.
fn zeros(scene: &Scene, dir: &str, tensors: &[(&str, &str, &[u64], usize)], config: &str) -> PathBuf {
    let path = scene.mkdir(dir);
    fs::write(path.join("config.json"), config).unwrap();
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, dtype, shape, len) in tensors {
        end += len;
        header.insert((*name).into(), json!({"dtype": dtype, "shape": shape, "data_offsets": [end - len, end]}));
    }
    scene.raw(&format!("{dir}/model.safetensors"), Value::from(header).to_string().as_bytes(), &vec![0; end]);
    path
}

#[test]
fn dequantized_weights_that_a_layer_would_misread_have_no_folder() {
    require_fuse!();
    let scene = Scene::new();
    let fp8: &[(&str, &str, &[u64], usize)] =
        &[("l.weight", "F8_E4M3", &[4, 4], 16), ("l.weight_scale", "F32", &[1], 4)];
    let smoothed = [fp8, &[("l.pre_quant_scale", "F32", &[4], 16)]].concat();
    let experts: &[(&str, &str, &[u64], usize)] =
        &[("e.gate_up_proj_blocks", "U8", &[2, 4, 1, 16], 128), ("e.gate_up_proj_scales", "U8", &[2, 4, 1], 8)];
    let mxfp4 = r#"{"quantization_config": {"quant_method": "mxfp4"}}"#;
    let rotated =
        r#"{"quantization_config": {"quant_method": "fp8", "transform_config": {"config_groups": {"R1": {}}}}}"#;
    let infinite = r#"{"quantization_config": {"quant_method": "fp8"}, "limit": [0.0, Infinity]}"#;
    let plain = r#"{"quantization_config": {"quant_method": "fp8", "transform_config": {}}}"#;
    let aqlm = r#"{"quantization_config": {"quant_method": "aqlm"}}"#;
    let unscaled: &[(&str, &str, &[u64], usize)] = &[
        ("a.codes", "I8", &[2, 1, 1], 2),
        ("a.codebooks", "F16", &[1, 256, 1, 8], 4096),
        ("a.scales", "F16", &[2, 1, 1, 1], 4),
        ("b.codes", "I8", &[2, 1, 1], 2),
        ("b.codebooks", "F16", &[1, 256, 1, 8], 4096),
    ];
    for (dir, tensors, config, expected) in [
        ("smoothed", &smoothed[..], plain, "tensor \"l.weight\": its activations have to be scaled too"),
        ("experts", experts, mxfp4, "tensor \"e.gate_up_proj\": loaders expect its matrices in another order"),
        ("rotated", fp8, rotated, "config.json describes a rotation"),
        ("unscaled", unscaled, aqlm, "codes without scales (I8), such as \"b.codes\""),
        ("infinite", fp8, infinite, "config.json cannot be written again"),
        ("plain", fp8, plain, ""),
    ] {
        let mount = scene.mount(&zeros(&scene, dir, tensors, config), &[]);
        let found: Vec<String> = mount.list("export").into_iter().filter(|name| name.starts_with("hf")).collect();
        let log = mount.log();
        if expected.is_empty() {
            assert_eq!(found, ["hf", "hf-bf16", "hf-f32"], "{log}");
        } else {
            assert_eq!(found, ["hf"], "{dir}: {log}");
            assert!(log.contains(&format!("export/hf-bf16/: skipped: {expected}")), "{dir}: {log}");
        }
    }
}

#[test]
fn copy_of_the_folder_does_not_overwrite_a_model_in_a_directory_called_hf() {
    require_fuse!();
    let scene = Scene::new();
    add_others(&scene.mkdir("hf"));
    let model = scene.model("hf/model.safetensors", &tensors(), PT);
    let before = fs::read(&model).unwrap();
    let mount = scene.mount(&scene.path("hf"), &[]);
    scene.ok(&format!("cp -r {}/hf* .", mount.path("export").display()));
    assert_eq!(fs::read(&model).unwrap(), before);
    assert_eq!(fs::read(scene.path("hf-hf/model.safetensors")).unwrap(), before);
}

/// Whether a user other than root can read a file in `mnt/export/hf/`.
fn others_can_read(scene: &Scene, name: &str) -> bool {
    let path = scene.path("mnt/export/hf").join(name);
    let line = format!("setpriv --reuid=65534 --regid=65534 --clear-groups -- cat {} >/dev/null", path.display());
    scene.sh(&line).code == 0
}

#[test]
fn permissions_are_those_of_the_model_and_of_each_other_file() {
    require_root!();
    let scene = Scene::new();
    let dir = scene.mkdir("m");
    add_others(&dir);
    scene.model("m/model.safetensors", &tensors(), PT);
    scene.ok("chmod 755 . && chmod -R u=rwX,go=rX m && chmod 600 m/tokenizer.json && mkdir mnt");
    let read = |name: &str| others_can_read(&scene, name);
    scene.ok("weightfs -o allow_other m mnt");
    let found = ["model.safetensors", "config.json", "onnx/notes.txt", "tokenizer.json"].map(read);
    let modes = scene.ok("cd mnt/export/hf && stat -c '%a %n' . * && cd - && weightfs umount mnt");
    assert_eq!(found, [true, true, true, false], "{modes}");
    assert!(
        modes.starts_with("555 .\n444 config.json\n444 model.safetensors\n555 onnx\n400 tokenizer.json\n"),
        "{modes}"
    );
    scene.wait_for_end();
    // A configuration that is written again is no more readable than that of the source.
    scene.ok("chmod 600 m/config.json && weightfs -o allow_other m mnt");
    let found = ["model.safetensors", "../hf-bf16/model.safetensors", "../hf-bf16/config.json"].map(read);
    scene.ok("weightfs umount mnt && chmod 644 m/config.json");
    assert_eq!(found, [true, true, false]);
    scene.wait_for_end();
    // A user who may not read the model reads nothing of the folder.
    scene.ok("chmod 600 m/model.safetensors && weightfs -o allow_other m mnt");
    let found = ["model.safetensors", "config.json", "onnx/notes.txt", "tokenizer.json"].map(read);
    scene.ok("weightfs umount mnt");
    assert_eq!(found, [false; 4]);
    scene.wait_for_end();
}

const PARTS: &str = r#"{
  "_class_name": "StableDiffusionPipeline",
  "_diffusers_version": "0.42.1",
  "requires_safety_checker": false,
  "safety_checker": [null, null],
  "scheduler": ["diffusers", "PNDMScheduler"],
  "text_encoder": ["transformers", "CLIPTextModel"],
  "tokenizer": ["transformers", "CLIPTokenizer"],
  "unet": ["diffusers", "UNet2DConditionModel"],
  "vae": ["diffusers", "AutoencoderKL"]
}"#;

/// The files of [`pipeline`] that are not weights.
const PIPELINE_OTHERS: [&str; 8] = [
    "README.md",
    "model_index.json",
    "scheduler/scheduler_config.json",
    "text_encoder/config.json",
    "tokenizer/vocab.json",
    "unet/config.json",
    "unet/notes/made.txt",
    "vae/config.json",
];

const UNET: &str = "diffusion_pytorch_model.safetensors";
const UNET_INDEX: &str = "diffusion_pytorch_model.safetensors.index.json";
const UNET_SHARDS: [&str; 2] =
    ["diffusion_pytorch_model-00001-of-00002.safetensors", "diffusion_pytorch_model-00002-of-00002.safetensors"];

/// Writes a pipeline of a UNet of two shards, an autoencoder and a text encoder, and a checkpoint that belongs to none
/// of them.
fn pipeline(scene: &Scene, dir: &str) -> PathBuf {
    let path = scene.mkdir(dir);
    for name in PIPELINE_OTHERS {
        let file = path.join(name);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, format!("the text of {name}")).unwrap();
    }
    for (part, config) in [
        ("text_encoder", r#"{"model_type": "clip_text_model"}"#),
        ("unet", r#"{"_class_name": "UNet2DConditionModel", "sample_size": 8}"#),
        ("vae", r#"{"_class_name": "AutoencoderKL", "torch_dtype": "float16"}"#),
    ] {
        fs::write(path.join(part).join("config.json"), config).unwrap();
    }
    fs::write(path.join("model_index.json"), PARTS).unwrap();
    let mut map = serde_json::Map::new();
    for (shard, tensor) in UNET_SHARDS.iter().zip(tensors()) {
        map.insert(tensor.0.into(), (*shard).into());
        scene.model(&format!("{dir}/unet/{shard}"), &[tensor], PT);
    }
    let index = json!({"metadata": {"total_size": 34}, "weight_map": map});
    fs::write(path.join("unet").join(UNET_INDEX), index.to_string()).unwrap();
    scene.model(&format!("{dir}/vae/{UNET}"), &[("v", Dtype::F16, &[3], pattern(6))], PT);
    scene.model(&format!("{dir}/text_encoder/model.safetensors"), &[("t", Dtype::F32, &[2], pattern(8))], PT);
    scene.model(&format!("{dir}/whole.safetensors"), &tensors(), PT);
    fs::write(path.join("text_encoder/flax.pth"), "the suffix of weights").unwrap();
    path
}

/// The names of [`PIPELINE_OTHERS`] and of the weights of [`pipeline`].
fn pipeline_files() -> Vec<String> {
    let unet = [UNET_SHARDS[0], UNET_SHARDS[1], UNET_INDEX].map(|name| format!("unet/{name}"));
    let others = PIPELINE_OTHERS.iter().map(|name| (*name).to_owned());
    let parts = ["text_encoder/model.safetensors".to_owned(), format!("vae/{UNET}")];
    let mut names: Vec<String> = others.chain(unet).chain(parts).collect();
    names.sort();
    names
}

#[test]
fn pipeline_is_a_folder_with_the_weights_of_each_part() {
    require_fuse!();
    let scene = Scene::new();
    let dir = pipeline(&scene, "pipe");
    let mount = scene.mount(&dir, &[]);
    assert!(mount.list("").contains(&"export".to_owned()));
    assert_eq!(mount.list("export"), ["hf", "hf-bf16", "hf-f32"]);
    assert_eq!(listed(&scene, &mount), pipeline_files());
    for name in pipeline_files() {
        assert_eq!(mount.read(format!("export/hf/{name}")), fs::read(dir.join(&name)).unwrap(), "{name}");
    }
    assert_eq!(mount.log(), "");
    let stat = |path: &str| fs::metadata(mount.path(path)).unwrap();
    let shown = stat("export/hf/vae/diffusion_pytorch_model.safetensors");
    assert_eq!((shown.blocks(), shown.nlink()), (1, 1));
    let parents = ["export", "export/hf", "export/hf/unet/notes"].map(|path| stat(&format!("{path}/..")).ino());
    assert_eq!(parents, [".", "export", "export/hf/unet"].map(|path| stat(path).ino()));
    assert_eq!(fs::read_dir(mount.path("export/none")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    // The models are shown as before.
    assert_eq!(mount.read("vae/diffusion_pytorch_model/tensors/v"), pattern(6));

    // A copy is a pipeline too, with and without a mount.
    scene.ok(&format!("cp -r {} copied", mount.path("export/hf").display()));
    scene.ok("weightfs cp pipe export/hf without && diff -r copied without/hf");
    assert_eq!(files_below(&scene.path("copied")).len(), pipeline_files().len());
    assert_eq!(scene.ok("weightfs cat pipe export/hf/model_index.json"), PARTS);
    let said = scene.ok("weightfs ls --files -n pipe export/hf/vae");
    assert!(said.contains("export/hf/vae/config.json") && said.contains(UNET), "{said}");

    // The folder needs no view but its own.
    let mount = scene.mount(&dir, &["--views=export"]);
    assert_eq!(listed(&scene, &mount), pipeline_files());
    let mount = scene.mount(&dir, &["--views=tensors"]);
    assert!(!mount.list("").contains(&"export".to_owned()) && !mount.path("export").exists());

    // Other files of these names are not hidden, and are not overwritten by a copy.
    scene.ok("mv pipe hf && mkdir hf/export && touch hf/export/mine.txt");
    let mount = scene.mount(&scene.path("hf"), &[]);
    assert_eq!(
        (mount.list("export"), mount.list("export~2")),
        (vec!["mine.txt".into()], ["hf-bf16", "hf-f32", "hf-hf"].map(str::to_owned).to_vec())
    );
    assert_eq!(mount.read("export~2/hf-hf/export/mine.txt"), b"");
}

#[test]
fn part_of_a_pipeline_has_the_weights_that_its_loader_reads() {
    require_fuse!();
    let scene = Scene::new();
    for (at, (part, files, expected)) in [
        ("unet", &["diffusion_pytorch_model.fp16.safetensors", UNET][..], 1),
        ("unet", &["diffusion_pytorch_model.fp16.safetensors"], 0),
        ("unet", &["diffusion_pytorch_model.non_ema.safetensors", UNET], 1),
        ("unet", &["odd.safetensors"], 0),
        ("text_encoder", &["model.fp16.safetensors", "model.safetensors"], 1),
        ("text_encoder", &["model.fp16.safetensors"], 0),
        ("text_encoder", &["odd.safetensors"], 0),
        // Files that the library of the part does not look for.
        ("unet", &["diffusion_pytorch_model.fp16.safetensors", "model.fp16.safetensors", UNET], 2),
        ("text_encoder", &[UNET, "model.safetensors"], 1),
        ("text_encoder", &[UNET], 0),
    ]
    .into_iter()
    .enumerate()
    {
        let dir = pipeline(&scene, &format!("p{at}"));
        for entry in fs::read_dir(dir.join(part)).unwrap().map(Result::unwrap) {
            if entry.file_name().to_string_lossy().contains("model") {
                fs::remove_file(entry.path()).unwrap();
            }
        }
        for (number, file) in files.iter().enumerate() {
            scene.model(&format!("p{at}/{part}/{file}"), &[("w", Dtype::U8, &[1], vec![number as u8])], PT);
        }
        let mount = scene.mount(&dir, &[]);
        let name = if part == "unet" { UNET } else { "model.safetensors" };
        let listed: Vec<String> =
            mount.list(format!("export/hf/{part}")).into_iter().filter(|name| name.ends_with(".safetensors")).collect();
        assert_eq!(listed, [name], "{files:?}");
        let expected = fs::read(dir.join(part).join(files[expected])).unwrap();
        assert_eq!(mount.read(format!("export/hf/{part}/{name}")), expected, "{files:?}");
        assert_eq!(mount.log(), "", "{files:?}");
    }
}

#[test]
fn pipeline_has_folders_of_converted_weights() {
    require_fuse!();
    let scene = Scene::new();
    crate::pytorch::script(["write".as_ref(), scene.mkdir("torch").as_os_str()]);
    let dir = pipeline(&scene, "pipe");
    scene.ok("cd pipe/text_encoder && rm model.safetensors flax.pth");
    scene.ok("cp torch/views.pt pipe/text_encoder/pytorch_model.bin");
    let mount = scene.mount(&dir, &["--stored"]);
    let others = PIPELINE_OTHERS.iter().map(|name| (*name).to_owned());
    let unet = format!("unet/{UNET}");
    let vae = format!("vae/{UNET}");
    let mut expected: Vec<String> = others.chain(["text_encoder/model.safetensors".into(), unet, vae]).collect();
    expected.sort();
    for (folder, _, dtype) in CONVERTED {
        assert_eq!(names_in(&mount, folder), expected);
        for name in PIPELINE_OTHERS.iter().filter(|name| !name.ends_with("/config.json")) {
            assert_eq!(mount.read(format!("export/{folder}/{name}")), fs::read(dir.join(name)).unwrap(), "{name}");
        }
        for (part, config) in [
            ("text_encoder", json!({"model_type": "clip_text_model", "dtype": dtype})),
            ("unet", json!({"_class_name": "UNet2DConditionModel", "sample_size": 8})),
            ("vae", json!({"_class_name": "AutoencoderKL", "dtype": dtype})),
        ] {
            let found = mount.read(format!("export/{folder}/{part}/config.json"));
            assert_eq!(serde_json::from_slice::<Value>(&found).unwrap(), config);
            // The numbers of a part are those of its model alone.
            let alone = scene.mount(&dir.join(part), &[]);
            assert_eq!(
                loaded(&mount.path(format!("export/{folder}/{part}"))),
                loaded(&alone.path(format!("export/{folder}")))
            );
        }
    }
    assert_eq!(mount.log(), "");
    scene.ok(&format!("cp -r {} .", mount.path("export/hf-bf16").display()));
    scene.ok("weightfs cp pipe export/hf-bf16 without && diff -r hf-bf16 without/hf-bf16");

    // A part that cannot be dequantized, one that can be, and one without floating-point numbers.
    let fp8: &[(&str, &str, &[u64], usize)] =
        &[("l.weight", "F8_E4M3", &[4, 4], 16), ("l.weight_scale", "F32", &[1], 4)];
    let smoothed = [fp8, &[("l.pre_quant_scale", "F32", &[4], 16)]].concat();
    let config = r#"{"quantization_config": {"quant_method": "fp8"}}"#;
    for (tensors, args, expected) in [
        (fp8, &[][..], Some("")),
        (fp8, &["--stored"], None),
        (&smoothed, &[], Some("export/hf-bf16/: skipped: part \"text_encoder\": tensor \"l.weight\": its activations")),
        (&[("ids", "I64", &[2], 16)], &[], Some("")),
    ] {
        let config = if tensors[0].1 == "I64" { "{}" } else { config };
        scene.ok("rm -r pipe/text_encoder");
        zeros(&scene, "pipe/text_encoder", tensors, config);
        let mount = scene.mount(&dir, args);
        let folders = if expected == Some("") { &["hf", "hf-bf16", "hf-f32"][..] } else { &["hf"] };
        assert_eq!(mount.list("export"), folders);
        assert_eq!(mount.read("export/hf/text_encoder/config.json"), config.as_bytes());
        let log = mount.log();
        match expected.filter(|text| !text.is_empty()) {
            Some(expected) => assert!(log.contains(expected) && log.lines().count() == 1, "{log}"),
            None => assert_eq!(log, ""),
        }
    }
    // The configurations of all parts together are too large to be written again.
    scene.ok("for part in unet vae; do head -c 600000 /dev/zero | tr '\\0' ' ' >>pipe/$part/config.json; done");
    let mount = scene.mount(&dir, &[]);
    assert_eq!(mount.list("export"), ["hf"]);
    let (log, expected) = (mount.log(), "export/hf-bf16/: skipped: part \"vae\": config.json has 6000");
    assert!(log.contains(expected) && log.lines().count() == 1, "{log}");
}

/// PyTorch files are given as safetensors, and of a part in both forms, safetensors is preferred.
#[test]
fn part_of_a_pipeline_in_pytorch_files_is_given_as_safetensors() {
    require_fuse!();
    let scene = Scene::new();
    crate::pytorch::script(["write".as_ref(), scene.mkdir("torch").as_os_str()]);
    let dir = pipeline(&scene, "pipe");
    scene.ok("cp torch/views.pt pipe/text_encoder/pytorch_model.bin");
    scene.ok(&format!("rm pipe/vae/{UNET} && cp torch/views.pt pipe/vae/diffusion_pytorch_model.bin"));
    scene.model("pipe/vae/diffusion_pytorch_model.fp16.safetensors", &tensors(), PT);
    let mount = scene.mount(&dir, &[]);
    assert_eq!(listed(&scene, &mount), pipeline_files());
    assert_eq!(
        mount.read("export/hf/text_encoder/model.safetensors"),
        fs::read(dir.join("text_encoder/model.safetensors")).unwrap()
    );
    let (files, tensors) = loaded(&mount.path("export/hf/vae"));
    assert_eq!(files[UNET], json!({"format": "pt"}));
    assert!(tensors.contains_key("tied"), "{tensors:?}");
    assert_eq!(mount.log(), "");
}

/// Loaders take random numbers for what is missing, and the file of parts is written by others.
#[test]
fn pipeline_whose_parts_cannot_be_shown_has_no_folder() {
    require_fuse!();
    let scene = Scene::new();
    let nested = "[".repeat(100_000);
    let large = format!("{{\"a\": \"{}\"}}", "x".repeat(1 << 20));
    let gguf = gguf::file(&[("general.architecture", gguf::text(b"unet"))], &[("w", 0, &[4], pattern(16))]);
    fs::write(scene.path("unet.gguf"), gguf).unwrap();
    let vae = format!("pipe/vae/{UNET}");
    let indices = [
        ("[]", "model_index.json is not a JSON object"),
        ("{}", "model_index.json names no part with weights"),
        (r#"{"unet": ["a", NaN]}"#, "model_index.json: expected value at line 1"),
        (&nested, "model_index.json: recursion limit exceeded"),
        (&large, "model_index.json has 1048585 bytes; at most 1048576 are read"),
        (
            r#"{"../pipe/unet": ["a", "B"]}"#,
            r#"model_index.json: part "../pipe/unet" does not have the name of a folder"#,
        ),
        (r#"{"..": ["a", "B"]}"#, r#"model_index.json: part ".." does not have the name of a folder"#),
    ];
    let changes = [
        (format!("truncate -s 20 {vae}"), "truncated: the header takes bytes 8 to"),
        ("rm -r pipe/scheduler".into(), r#"part "scheduler": it has no files, or only links"#),
        (
            "mv pipe/tokenizer . && ln -s ../tokenizer pipe".into(),
            r#"part "tokenizer": it has no files, or only links"#,
        ),
        (
            format!(
                "mv {vae} pipe/vae/diffusion_pytorch_model.fp16.safetensors && head -c 99 /dev/zero >pipe/vae/diffusion_pytorch_model.bin"
            ),
            "diffusion_pytorch_model.bin: not a model but filled with zeros",
        ),
        (
            "mkdir pipe/images && (cd pipe/images && touch $(seq 1000))".into(),
            "the directory has more files that are not models than are shown",
        ),
        (
            "rm pipe/unet/*.safetensors* && cp unet.gguf pipe/unet/diffusion_pytorch_model.gguf".into(),
            r#"part "unet": "diffusion_pytorch_model.gguf" does not have weights in safetensors or PyTorch files"#,
        ),
        ("rm pipe/vae/config.json".into(), r#"part "vae": its directory has no config.json"#),
        (
            "mv pipe/vae pipe/vae.bin && sed -i 's/\"vae\"/\"vae.bin\"/' pipe/model_index.json".into(),
            r#"part "vae.bin": a folder of that name is left out"#,
        ),
        (
            format!("mv {vae} pipe/vae/a.safetensors && cp pipe/vae/a.safetensors pipe/vae/b.safetensors"),
            r#"part "vae": 2 sets of weights, such as "a.safetensors" and "b.safetensors", and none has"#,
        ),
        (
            "rm -r pipe/vae && ln -s unet pipe/vae".into(),
            r#"part "vae": not a directory, or one that is shown elsewhere"#,
        ),
        ("rm pipe/unet/*-00002-*.safetensors".into(), "diffusion_pytorch_model-00002-of-00002.safetensors"),
        ("mv pipe/model_index.json . && ln -s ../model_index.json pipe".into(), "model_index.json is not a file"),
    ];
    let indices = indices.iter().enumerate().map(|(at, (text, expected))| {
        fs::write(scene.path(format!("index-{at}")), text).unwrap();
        (format!("cp index-{at} pipe/model_index.json"), *expected)
    });
    for (change, expected) in changes.into_iter().chain(indices) {
        let _ = fs::remove_dir_all(scene.path("pipe"));
        let dir = pipeline(&scene, "pipe");
        scene.ok(&change);
        let mount = scene.mount(&dir, &[]);
        assert_eq!(mount.list("export"), Vec::<String>::new(), "{change}");
        assert!(!mount.path("export/hf").exists(), "{change}");
        let log = mount.log();
        let said: Vec<&str> = log.lines().filter(|line| line.contains("export/hf/: skipped: ")).collect();
        assert!(said.len() == 1 && said[0].contains(expected) && said[0].len() < 400, "{change}: {log}");
        assert_eq!(mount.read("text_encoder/model/tensors/t"), pattern(8), "{change}");
    }
    // Values that name no part are options, whatever they are.
    let _ = fs::remove_dir_all(scene.path("pipe"));
    let dir = pipeline(&scene, "pipe");
    let options = r#"{"a": [], "b": [1, 2], "c": ["x"], "d": {"unet": ["a", "b"]}, "vae": [null, "B"],
        "text_encoder": ["transformers", "CLIPTextModel"]}"#;
    fs::write(dir.join("model_index.json"), options).unwrap();
    let mount = scene.mount(&dir, &[]);
    let shown = listed(&scene, &mount);
    let weights: Vec<&String> = shown.iter().filter(|name| name.ends_with(".safetensors")).collect();
    assert_eq!(weights, ["text_encoder/model.safetensors"]);
    assert_eq!(mount.log(), "");
}

#[test]
fn permissions_in_a_pipeline_are_those_of_each_part() {
    require_root!();
    let scene = Scene::new();
    let dir = pipeline(&scene, "pipe");
    let vae = dir.join("vae").join(UNET);
    scene.ok(&format!(
        "chmod 755 . && chmod -R u=rwX,go=rX pipe && chmod 600 {} pipe/tokenizer/vocab.json && chmod 700 pipe/scheduler && \
         mkdir mnt",
        vae.display()
    ));
    let read = |name: &str| others_can_read(&scene, name);
    scene.ok("weightfs -o allow_other pipe mnt");
    let found = [
        "model_index.json",
        "unet/config.json",
        &format!("unet/{}", UNET_SHARDS[0]),
        "text_encoder/model.safetensors",
        &format!("vae/{UNET}"),
        "tokenizer/vocab.json",
        "scheduler/scheduler_config.json",
    ]
    .map(read);
    let modes = scene.ok("cd mnt/export/hf && stat -c '%a %n' . scheduler vae vae/* && cd - && weightfs umount mnt");
    assert_eq!(found, [true, true, true, true, false, false, false], "{modes}");
    let expected = format!("555 .\n500 scheduler\n555 vae\n444 vae/config.json\n400 vae/{UNET}\n");
    assert!(modes.starts_with(&expected), "{modes}");
    scene.wait_for_end();
    // The owner that the user names reads what the rest of the mount shows, whoever may search the directory itself.
    scene.ok("chmod 700 pipe && weightfs -o allow_other --uid 65534 pipe mnt");
    let found =
        ["model_index.json", "unet/config.json", &format!("vae/{UNET}"), "../hf-bf16/vae/config.json"].map(read);
    let shown = read("../../vae/diffusion_pytorch_model/tensors/v");
    scene.ok("weightfs umount mnt");
    assert_eq!((found, shown), ([true; 4], true));
    scene.wait_for_end();
}

/// transformers and diffusers themselves, which `scripts/oracles` installs, load the folder. No tensor is missing, and
/// the model computes what that of the source computes.
#[test]
fn transformers_loads_the_folder() {
    require_fuse!();
    if std::env::var_os("REQUIRE_ORACLES").is_none() {
        eprintln!("skipped: takes 6 GB of Python packages; run scripts/oracles and set REQUIRE_ORACLES=1");
        return;
    }
    let scene = Scene::new();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/transformers_folders.py").into_os_string();
    let python = python().into_os_string().into_string().unwrap();
    let models = scene.mkdir("models");
    run_ok(&python, [script.as_os_str(), "write".as_ref(), models.as_os_str()]);
    let load_as = |name: &str, folder: &str, expected: &str, dtype: &str| {
        let mount = scene.mount(&models.join(name), &[]);
        let (found, expected) = (mount.path("export").join(folder), models.join(expected));
        let load = [script.as_os_str(), "load".as_ref(), found.as_os_str(), expected.as_os_str(), dtype.as_ref()];
        let said = run_ok(&python, load);
        let expected = if name.starts_with("pipeline") { "['text_encoder', 'unet', 'vae']" } else { "{}" };
        assert_eq!(said, format!("True {expected}\n"), "{name} {folder}");
    };
    let load = |name: &str, folder: &str, expected: &str| load_as(name, folder, expected, "auto");
    let families = [
        "Qwen3ForCausalLM",
        "Gemma2ForCausalLM",
        "MixtralForCausalLM",
        "BertForMaskedLM",
        "T5ForConditionalGeneration",
        "UNet2DConditionModel",
    ];
    let forms = ["", "-bin", "-named", "-sharded", "-bare"];
    let of_llama = ["plain", "tied"].iter().flat_map(|name| forms.map(|form| (*name, form)));
    for (name, form) in of_llama.chain(families.map(|name| (name, ""))) {
        load(&format!("{name}{form}"), "hf", name);
    }
    load("plain-explicit", "hf", "plain");
    for name in
        ["plain", "tied-bin", "plain-sharded", "plain-explicit", "UNet2DConditionModel", "T5ForConditionalGeneration"]
    {
        let expected = name.split_once('-').map_or(name, |(name, _)| name);
        load(name, "hf-f32", expected);
        load_as(name, "hf-bf16", expected, "bfloat16");
    }
    for scheme in ["fp8", "gptq", "awq", "compressed-tensors"] {
        load(scheme, "hf-bf16", &format!("{scheme}-numbers"));
    }
    for form in ["", "-fp16", "-bin", "-sharded"] {
        load(&format!("pipeline{form}"), "hf", "pipeline");
        load_as(&format!("pipeline{form}"), "hf-bf16", "pipeline", "bfloat16");
    }
}
