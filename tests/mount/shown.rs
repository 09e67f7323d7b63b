//! `weightfs show`: values, slices and statistics of tensors.

use crate::support::{Scene, WEIGHTFS, python, run_ok};
use safetensors::Dtype;

#[test]
fn shown_values_are_those_of_numpy() {
    let scene = Scene::new();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/mount/shown.py");
    let args = [script.as_ref(), WEIGHTFS.as_ref(), scene.dir.path().as_os_str()];
    assert_eq!(run_ok(python().to_str().unwrap(), args).trim(), "252");
}

#[test]
fn a_tensor_is_shown_with_its_statistics_and_dequantized() {
    let scene = Scene::new();
    let scale = ("w.weight_scale", Dtype::F32, &[][..], 2f32.to_le_bytes().to_vec());
    let codes = ("w.weight", Dtype::F8_E4M3, &[2, 2][..], vec![0x38, 0x38, 0xb8, 0x30]);
    scene.model("m.safetensors", &[codes, scale], &[]);
    assert_eq!(
        scene.ok("weightfs show m.safetensors w.weight"),
        "w.weight: F32 [2, 2], FP8: F8_E4M3, one scale\n\
         min -2  max 2  mean 0.75  std 1.63936  zeros 0  NaN 0  +Inf 0  -Inf 0\n\
         [[ 2.  2.]\n [-2.  1.]]\n"
    );
    assert_eq!(
        scene.ok("weightfs show --stored --no-statistics m.safetensors w.weight -1,:"),
        "w.weight: F8_E4M3 [2, 2]\nselected [2]\n[-1.0  0.5]\n"
    );
    for (args, error) in [
        ("w.weigh", "no tensor \"w.weigh\"; did you mean w.weight?"),
        ("w.weight 2", "\"w.weight\": index 2 is out of bounds for axis 0 with size 2"),
        ("w.weight 0,0,0", "3 indices, and the tensor 2 axes"),
    ] {
        let said = scene.sh(&format!("weightfs show m.safetensors {args}"));
        assert!(said.code == 1 && said.err.contains(error), "{args}: {said:?}");
    }
}
