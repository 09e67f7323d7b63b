//! Ollama stores: the models of each manifest under its name and tag, and its other layers as files.

use crate::gguf::{file, texts};
use crate::support::{Detached, Mount, Scene, pattern, require_fuse, require_root};
use safetensors::Dtype;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::PathBuf;

const LIBRARY: &str = "registry.ollama.ai/library";

/// A GGUF file with three tokens and a tensor.
fn gguf() -> Vec<u8> {
    let tokens = texts(&[b"<s>", b"</s>", b"the"]);
    file(&[("tokenizer.ggml.tokens", tokens)], &[("output_norm.weight", 1, &[4], vec![0; 8])])
}

/// Writes a blob. Returns its digest and its size.
fn blob(scene: &Scene, bytes: &[u8]) -> (String, usize) {
    let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(scene.path("store/blobs").join(format!("sha256-{hash}")), bytes).unwrap();
    (format!("sha256:{hash}"), bytes.len())
}

/// A layer in a manifest, whose blob has these bytes.
fn layer(scene: &Scene, kind: &str, bytes: &[u8]) -> Value {
    let (digest, size) = blob(scene, bytes);
    json!({"mediaType": format!("application/vnd.ollama.image.{kind}"), "digest": digest, "size": size})
}

/// Writes a manifest to `store/manifests`.
fn manifest(scene: &Scene, path: &str, layers: &[Value]) -> PathBuf {
    let (digest, size) = blob(scene, b"{\"model_format\": \"gguf\"}");
    let text = json!({
        "schemaVersion": 2, "mediaType": "application/vnd.docker.distribution.manifest.v2+json",
        "config": {"mediaType": "application/vnd.docker.container.image.v1+json", "digest": digest, "size": size},
        "layers": layers,
    });
    let path = scene.path("store/manifests").join(path);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, text.to_string()).unwrap();
    path
}

/// A scene with an empty store, and the bytes of an adapter.
fn scene() -> (Scene, Vec<u8>) {
    let scene = Scene::new();
    fs::create_dir_all(scene.path("store/blobs")).unwrap();
    fs::create_dir_all(scene.path("store/manifests")).unwrap();
    let adapter = fs::read(scene.model("adapter", &[("lora", Dtype::U8, &[5], pattern(5))], &[])).unwrap();
    (scene, adapter)
}

/// A model with a layer of each kind.
fn llava(scene: &Scene, adapter: &[u8]) -> PathBuf {
    let model = gguf();
    let layers = [
        layer(scene, "model", &model),
        layer(scene, "projector", &[&model[..], &[0; 32]].concat()),
        layer(scene, "adapter", adapter),
        layer(scene, "template", b"{{ .Prompt }}"),
        layer(scene, "system", b"You are a whale."),
        layer(scene, "params", b"{\"stop\": [\"x\"]}"),
        layer(scene, "messages", b"[]"),
        layer(scene, "license", b"MIT"),
        layer(scene, "license", b"Apache"),
    ];
    manifest(scene, &format!("{LIBRARY}/llava/7b"), &layers)
}

const FILES: [(&str, &str); 7] = [
    ("config.json", "{\"model_format\": \"gguf\"}"),
    ("license", "MIT"),
    ("license-2", "Apache"),
    ("messages.json", "[]"),
    ("params.json", "{\"stop\": [\"x\"]}"),
    ("system", "You are a whale."),
    ("template", "{{ .Prompt }}"),
];

fn names(mount: &Mount, dir: &str) -> Vec<String> {
    let mut names = mount.list(dir);
    names.sort();
    names
}

/// Asserts that the mount shows the model of [`llava`].
fn assert_llava(mount: &Mount) {
    let mut expected = vec!["adapter", "manifest.json", "model", "projector"];
    expected.extend(FILES.map(|file| file.0));
    expected.sort();
    assert_eq!(names(mount, "llava/7b"), expected);
    for (file, text) in FILES {
        assert_eq!(mount.read(format!("llava/7b/{file}")), text.as_bytes(), "{file}");
    }
    for (layer, tensor) in [("model", "output_norm.weight"), ("projector", "output_norm.weight"), ("adapter", "lora")] {
        assert_eq!(mount.list(format!("llava/7b/{layer}/tensors")), [tensor]);
    }
    assert_eq!(mount.read("llava/7b/adapter/tensors/lora"), pattern(5));
    assert_eq!(mount.read("llava/7b/model/metadata/tokenizer.ggml.tokens"), b"\"<s>\"\n\"</s>\"\n\"the\"\n");
    assert!(mount.path("llava/7b/adapter/header.json").exists() && !mount.path("llava/7b/model/shards").exists());
    for (layer, stem) in [("model", "llava-7b"), ("projector", "llava-7b-projector")] {
        let exports = ["bf16.safetensors", "f32.safetensors", "whole.gguf"].map(|kind| format!("{stem}-{kind}"));
        assert_eq!(names(mount, &format!("llava/7b/{layer}/export")), exports);
    }
    let index: Value = serde_json::from_slice(&mount.read("llava/7b/model/index.json")).unwrap();
    let shard = index["tensors"][0]["shard"].as_str().unwrap();
    assert!(shard.starts_with("sha256-") && index["source"].as_str().unwrap().ends_with("/llava/7b/model"), "{index}");
    assert_eq!(mount.log(), "");
}

#[test]
fn store_shows_models_by_name_and_tag() {
    require_fuse!();
    let (scene, adapter) = scene();
    let path = llava(&scene, &adapter);
    let model = [layer(&scene, "model", &gguf())];
    for path in [
        "registry.ollama.ai/mannix/llama3/q4",
        "hf.co/bartowski/X-GGUF/Q4_K_M",
        // A tag of one model, and a model of a user, would have the same path.
        "registry.ollama.ai/library/both/one",
        "registry.ollama.ai/both/one/latest",
    ] {
        manifest(&scene, path, &model);
    }
    // A remote model has no weights. Neither files elsewhere nor hidden files are manifests.
    manifest(&scene, &format!("{LIBRARY}/cloud/big"), &[]);
    fs::write(scene.path("store/manifests/registry.ollama.ai/stray"), "stray").unwrap();
    fs::write(scene.path("store/manifests/registry.ollama.ai/library/llava/.hidden"), "hidden").unwrap();
    fs::write(scene.path("store/notes.txt"), "notes").unwrap();
    let mount = scene.mount(&scene.path("store"), &[]);
    assert_llava(&mount);
    assert_eq!(names(&mount, ""), ["cloud", "hf.co", "llava", "mannix", "notes.txt", "registry.ollama.ai"]);
    assert_eq!(names(&mount, "cloud/big"), ["config.json", "manifest.json"]);
    for path in [
        "mannix/llama3/q4",
        "hf.co/bartowski/X-GGUF/Q4_K_M",
        "registry.ollama.ai/library/both/one",
        "registry.ollama.ai/both/one/latest",
    ] {
        assert_eq!(names(&mount, path), ["config.json", "manifest.json", "model"]);
        assert_eq!(mount.list(format!("{path}/model/tensors")), ["output_norm.weight"]);
    }
    drop(mount);
    // The store lies somewhere below SOURCE, and its blobs elsewhere.
    scene.mkdir("home");
    fs::rename(scene.path("store/blobs"), scene.path("else")).unwrap();
    symlink("../else", scene.path("store/blobs")).unwrap();
    symlink("../store", scene.path("home/models")).unwrap();
    let mount = scene.mount(&scene.path("home"), &[]);
    assert_eq!(mount.list("models/llava/7b/model/tensors"), ["output_norm.weight"]);
    drop(mount);
    // A single manifest.
    assert_llava(&scene.mount(&path, &[]));
}

#[test]
fn commands_take_a_store_a_manifest_or_a_layer() {
    let (scene, adapter) = scene();
    llava(&scene, &adapter);
    fs::write(scene.path("one.gguf"), gguf()).unwrap();
    let path = format!("store/manifests/{LIBRARY}/llava/7b");
    let all = scene.ok("weightfs ls --no-headings store");
    for layer in ["adapter", "model", "projector"] {
        assert!(all.contains(&format!("{path}/{layer}:\n")), "{all}");
    }
    assert_eq!(scene.ok(&format!("weightfs ls --no-headings {path}")), all);
    assert!(scene.ok(&format!("weightfs ls --no-headings {path}/adapter")).ends_with(" lora\n"));
    assert!(scene.ok("weightfs inspect store").contains("gguf, a layer of an Ollama model"));
    assert!(scene.ok("weightfs check store").contains(&format!("{path}/model: OK, with 1 warning (1 tensor, ")));
    let id = |source: &str| scene.ok(&format!("weightfs summary {source}"));
    assert_eq!(id(&format!("{path}/model")), id("one.gguf"));
    scene.ok(&format!("weightfs diff {path}/model one.gguf && weightfs diff store {path}"));
    let said = scene.sh(&format!("weightfs ls {path}/nothing"));
    let expected = format!("weightfs: {path}: has no layer \"nothing\" with a model\n");
    assert_eq!((said.code, said.err), (1, expected));
    let before = scene.ok("find store -type f -exec sha256sum {} + | sort");
    let said = scene.sh(&format!("weightfs metadata set {path}/adapter key=value"));
    assert!(said.code == 1 && said.err.contains("a layer of an Ollama model cannot be changed"), "{said:?}");
    assert_eq!(scene.ok("find store -type f -exec sha256sum {} + | sort"), before);
    // From the directory of a manifest, whose path is then too short.
    let short = scene.sh(&format!("cd store/manifests/{LIBRARY}/llava && weightfs ls --no-headings 7b"));
    assert_eq!((short.code, short.out.lines().count()), (0, all.lines().count()));
    require_fuse!();
    let mounted = scene.sh(&format!("weightfs {path}"));
    let unmounted = Detached(scene.path("llava-7b"));
    assert!(mounted.out.ends_with(" on llava-7b (unmount: weightfs umount llava-7b)\n"), "{mounted:?}");
    assert_eq!(fs::read_dir(scene.path("llava-7b/llava/7b/model/tensors")).unwrap().count(), 1);
    drop(unmounted);
    let mount = scene.mount(&scene.path(format!("{path}/adapter")), &[]);
    assert_eq!(mount.list("tensors"), ["lora"]);
}

#[test]
fn missing_blobs_wrong_sizes_and_hostile_manifests_become_error_files() {
    require_fuse!();
    let (scene, _) = scene();
    let model = layer(&scene, "model", &gguf());
    let template = layer(&scene, "template", b"text");
    fs::write(scene.path("secret"), gguf()).unwrap();
    let changed = |layer: &Value, key: &str, value: Value| {
        let mut layer = layer.clone();
        layer[key] = value;
        layer
    };
    let (zeros, up) = ("0".repeat(64), "sha256:../../secret");
    let cases: [(&str, Value, &str); 8] = [
        ("m-missing", changed(&model, "digest", json!(format!("sha256:{zeros}"))), "there is no blobs/sha256-0000"),
        ("m-size", changed(&model, "size", json!(5)), " bytes, but the manifest says 5"),
        (
            "m-up",
            changed(&model, "digest", json!(up)),
            "refused: the digest \"sha256:../../secret\" of the layer \"model\"",
        ),
        ("m-empty", changed(&model, "digest", json!("")), "refused: the digest \"\""),
        ("m-text", layer(&scene, "model", b"no model at all"), "/m-text/latest/model: "),
        ("t-missing", changed(&template, "digest", json!(format!("sha256:{zeros}"))), "there is no blobs/sha256-0000"),
        ("t-size", changed(&template, "size", json!(5)), "has 4 bytes, but the manifest says 5"),
        ("t-up", changed(&template, "digest", json!("sha256-/../../secret")), "refused: the digest "),
    ];
    for (name, layer, _) in &cases {
        manifest(&scene, &format!("{LIBRARY}/{name}/latest"), std::slice::from_ref(layer));
    }
    let texts = [
        ("j-text", "{\"layers\": \"\\u001b[2J\"}".to_owned(), "not a valid Ollama manifest: unexpected string"),
        ("j-cut", "{\"layers\": [".to_owned(), "not a valid Ollama manifest: EOF"),
        ("j-many", json!({"layers": vec![json!({}); 10_001]}).to_string(), "names more than 10000 layers"),
        ("j-long", " ".repeat((16 << 20) + 1), "16777217 bytes long; at most 16777216 are read"),
    ];
    for (name, text, _) in &texts {
        let path = manifest(&scene, &format!("{LIBRARY}/{name}/latest"), &[]);
        fs::write(path, text).unwrap();
    }
    let path = manifest(&scene, &format!("{LIBRARY}/pipe/latest"), &[]);
    fs::remove_file(&path).unwrap();
    scene.ok(&format!("mkfifo {}", path.display()));
    symlink("gone", path.with_file_name("dangling")).unwrap();
    manifest(&scene, &format!("{LIBRARY}/fine/latest"), &[model, template]);
    let mount = scene.mount(&scene.path("store"), &[]);
    assert_eq!(names(&mount, "fine/latest"), ["config.json", "manifest.json", "model", "template"]);
    for (name, _, expected) in &cases {
        let error = if name.starts_with('m') { "model.error.txt" } else { "template.error.txt" };
        let mut listed = vec!["config.json", "manifest.json", error];
        listed.sort();
        assert_eq!(names(&mount, &format!("{name}/latest")), listed);
        let said = String::from_utf8(mount.read(format!("{name}/latest/{error}"))).unwrap();
        assert!(said.contains(expected) && said.lines().count() == 1, "{name}: {said}");
    }
    for (name, _, expected) in &texts {
        assert_eq!(names(&mount, &format!("{name}/latest")), ["manifest.error.txt"]);
        let said = String::from_utf8(mount.read(format!("{name}/latest/manifest.error.txt"))).unwrap();
        assert!(said.contains(expected) && !said.trim_end().contains(char::is_control), "{name}: {said}");
    }
    assert_eq!(names(&mount, "pipe").len(), 2);
    for name in names(&mount, "pipe") {
        let path = mount.path("pipe").join(name);
        let path = if path.is_dir() { path.join("manifest.error.txt") } else { path };
        assert!(fs::read_to_string(&path).unwrap().contains("/pipe/"), "{}", path.display());
    }
    let everything = scene.ok(&format!("find {} -type l -printf '%l\\n'", mount.point.display()));
    let store = scene.path("store").display().to_string();
    assert!(everything.lines().all(|target| target.starts_with(&store) && !target.contains("..")), "{everything}");
    drop(mount);
    // A single manifest that cannot be read, or has no model.
    for (name, expected) in [("j-cut", "not a valid Ollama manifest: EOF"), ("t-size", "names no layer with a model")] {
        let path = format!("store/manifests/{LIBRARY}/{name}/latest");
        let said = scene.sh(&format!("weightfs -f {path} ."));
        assert!(said.code == 1 && said.err.starts_with(&format!("weightfs: {path}: {expected}")), "{said:?}");
    }
    let said = scene.sh("weightfs check store");
    assert!(said.code == 2 && said.out.contains("m-size/latest/model: error: the layer \"model\" has the wrong size"));
    assert_eq!(scene.sh("weightfs ls store").code, 1);
}

#[test]
fn other_users_read_a_layer_only_if_they_may_read_its_manifest_and_its_blob() {
    require_root!();
    const USER: u32 = 65533;
    let (scene, adapter) = scene();
    let path = llava(&scene, &adapter);
    let mut blobs = fs::read_dir(scene.path("store/blobs")).unwrap().map(|entry| entry.unwrap().path());
    let model = blobs.find(|path| fs::read(path).unwrap() == gguf()).unwrap();
    fs::set_permissions(scene.dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let above: Vec<PathBuf> = path.ancestors().skip(1).take(4).map(PathBuf::from).collect();
    assert!(above[3].ends_with("manifests"));
    let others = [model.clone(), scene.path("store/blobs"), path.clone()];
    let reads = |path: PathBuf| {
        let mut command = scene.command("setpriv");
        command.args([format!("--reuid={USER}"), format!("--regid={USER}"), "--clear-groups".into(), "cat".into()]);
        crate::support::Said::of(command.arg(path)).code == 0
    };
    for source in [scene.path("store"), path.clone()] {
        for closed in std::iter::once(None).chain(others.iter().chain(&above).map(Some)) {
            let mode = |closed: &PathBuf| fs::metadata(closed).unwrap().permissions().mode();
            let before = closed.map(|closed| (closed, mode(closed)));
            if let Some((closed, mode)) = before {
                fs::set_permissions(closed, fs::Permissions::from_mode(mode & 0o700)).unwrap();
            }
            let mount = scene.mount(&source, &["-o", "allow_other"]);
            let seen = reads(mount.path("llava/7b/model/tensors/output_norm.weight"));
            let projector = reads(mount.path("llava/7b/projector/metadata.json"));
            drop(mount);
            if let Some((closed, mode)) = before {
                fs::set_permissions(closed, fs::Permissions::from_mode(mode)).unwrap();
            }
            assert_eq!(seen, closed.is_none(), "{} without {closed:?}", source.display());
            let is_open = closed.is_none_or(|closed| *closed == model);
            assert_eq!(projector, is_open, "{} without {closed:?}", source.display());
        }
    }
}

#[test]
fn export_replaces_no_file_of_its_source() {
    let (scene, adapter) = scene();
    let path = llava(&scene, &adapter);
    let manifest = fs::read(&path).unwrap();
    let (digest, _) = blob(&scene, &adapter);
    let blob = scene.path("store/blobs").join(digest.replace(':', "-"));
    let layer = path.join("adapter");
    for out in [&path, &blob] {
        let said = scene.sh(&format!("weightfs export --force {} {}", layer.display(), out.display()));
        assert!(said.code == 1 && said.err.contains("part of the source"), "{said:?}");
    }
    assert!(fs::read(&path).unwrap() == manifest && fs::read(&blob).unwrap() == adapter);
    scene.ok(&format!("weightfs export --force {} copy.safetensors", layer.display()));
}
