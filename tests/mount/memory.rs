//! Resident memory of the daemon.

use crate::support::{Scene, require_fuse, status};
use std::fs::File;
use std::io::Read;

#[test]
fn resident_memory_stays_below_64_mb_while_a_large_model_is_read() {
    require_fuse!();
    const SIZE: u64 = 512 << 20;
    let scene = Scene::new();
    let header = format!(r#"{{"w":{{"dtype":"U8","shape":[{SIZE}],"data_offsets":[0,{SIZE}]}}}}"#);
    let source = scene.raw("model.safetensors", header.as_bytes(), &[]);
    File::options().write(true).open(&source).unwrap().set_len(8 + header.len() as u64 + SIZE).unwrap();
    // Threads take turns to serve, and each may have a part of the map resident.
    let mount = scene.mount(&source, &["--threads", "4"]);
    let mut highest = 0;
    for file in ["tensors/w", "npy/w.npy"] {
        let mut file = File::open(mount.path(file)).unwrap();
        let mut buffer = vec![0; 1 << 20];
        while file.read(&mut buffer).unwrap() > 0 {
            highest = highest.max(1024 * status(mount.child.id(), "VmRSS"));
        }
    }
    assert!(highest < 64_000_000, "{highest} bytes");
    assert!(highest > 1_000_000, "{highest} bytes: not the daemon's");
}
