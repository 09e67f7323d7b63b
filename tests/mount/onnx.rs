//! ONNX models, alone and beside another model.

use crate::pytorch::files;
use crate::support::{Scene, require_fuse};
use std::fs;
use std::path::Path;

#[test]
fn onnx_models_are_mounted() {
    require_fuse!();
    let scene = Scene::new();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/onnx");
    for case in ["odd.onnx", "subgraph.onnx", "external/model.onnx"] {
        let (source, out) = (dir.join(case), scene.path("out.safetensors"));
        scene.ok(&format!("weightfs export --force {} {}", source.display(), out.display()));
        let views = ["tensors", "f32", "npy"];
        let [found, expected] = [&source, &out].map(|model| files(&scene.mount(model, &[]), &views));
        assert!(found == expected && !found.is_empty(), "{case}");
    }
    // Elements that do not fill the last byte are raw bytes.
    let mount = scene.mount(&dir.join("raw.onnx"), &[]);
    assert_eq!(mount.read("tensors/t20.float4e2m1").len(), 8);
    assert!(mount.list("f32").iter().all(|name| !name.to_string().contains("float4")));
}

#[test]
fn onnx_models_beside_another_one_are_its_other_files() {
    require_fuse!();
    let scene = Scene::new();
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints/onnx");
    let hub = scene.mkdir("hub");
    scene.ok(&format!(
        "weightfs export {} {}",
        dir.join("odd.onnx").display(),
        hub.join("model.safetensors").display()
    ));
    fs::write(hub.join("config.json"), "{}").unwrap();
    let alone = scene.mount(&hub, &[]);
    let expected = files(&alone, &["tensors", "safetensors"]);
    drop(alone);
    scene.ok(&format!("cp -r {} {}", dir.join("external").display(), hub.join("onnx").display()));
    fs::copy(dir.join("raw.onnx"), hub.join("model.onnx")).unwrap();
    let mount = scene.mount(&hub, &[]);
    assert!(files(&mount, &["tensors", "safetensors"]) == expected && !expected.is_empty());
    for name in ["model.onnx", "onnx/model.onnx", "onnx/model.onnx_data", "config.json"] {
        for folder in ["files", "export/hf"] {
            assert_eq!(mount.read(format!("{folder}/{name}")), fs::read(hub.join(name)).unwrap(), "{folder}/{name}");
        }
    }
    // Also if the model is named, as far as they are directly beside it.
    let named = scene.mount(&hub.join("model.safetensors"), &[]);
    assert_eq!(named.read("files/model.onnx"), fs::read(hub.join("model.onnx")).unwrap());
    // One that is named is a model.
    let whole = scene.mount(&hub.join("onnx/model.onnx"), &[]);
    assert!(whole.list("tensors").len() > 1);
}
