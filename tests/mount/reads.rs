//! Bytes: what is read is what is in the file.

use crate::support::{Scene, require_fuse};
use safetensors::SafeTensors;

#[test]
fn every_tensor_is_a_file_of_its_bytes() {
    require_fuse!();
    let scene = Scene::new();
    let source = scene.sample();
    let mount = scene.mount(&source, &[]);
    let whole = std::fs::read(&source).unwrap();
    let tensors = SafeTensors::deserialize(&whole).unwrap();
    let mut names = mount.list("tensors");
    assert_eq!(names.len(), tensors.len());
    names.sort();
    for name in names {
        let decoded = weightfs::name::decode(&name).unwrap().into_owned();
        assert!(mount.read(format!("tensors/{name}")) == tensors.tensor(&decoded).unwrap().data(), "{name}");
    }
    let json = u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    assert!(mount.read("header.json") == whole[8..8 + json]);
    assert_eq!(mount.log(), "");
}
