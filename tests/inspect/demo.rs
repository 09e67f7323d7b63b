//! `demo`: the model that it writes is sound, is the same every time, and never replaces a file unasked.

use crate::room::Room;
use safetensors::{Dtype, SafeTensors};

#[test]
fn demo_writes_a_sound_model_that_is_always_the_same() {
    let room = Room::new();
    assert_eq!(
        room.ok("weightfs demo"),
        "wrote sample.safetensors, 10.4 MB of random weights (mount it: weightfs sample.safetensors)\n"
    );
    let bytes = std::fs::read(room.path("sample.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(tensors.len(), 41);
    let scaled = tensors.tensor("model.layers.3.mlp.down_proj.weight").unwrap();
    assert_eq!((scaled.dtype(), scaled.shape()), (Dtype::F8_E4M3, &[256, 688][..]));
    let checked = room.ok("weightfs check sample.safetensors");
    assert!(checked.contains("OK") && checked.contains("modelspec.hash_sha256 verified"), "{checked}");
    room.ok("weightfs demo - >again && cmp again sample.safetensors");
}

#[test]
fn demo_replaces_a_file_only_with_force() {
    let room = Room::new();
    room.ok("echo mine >model.safetensors");
    let refused = room.sh("weightfs demo model.safetensors");
    assert_eq!((refused.code, &refused.out[..]), (1, ""));
    assert_eq!(refused.err, "weightfs: model.safetensors: exists already; --force replaces it\n");
    assert_eq!(room.ok("cat model.safetensors"), "mine\n");
    room.ok("weightfs demo --force model.safetensors && weightfs check model.safetensors");
}
