//! SLM1 files, written by `slm.py` from the documented layout.

use crate::support::{Scene, require_fuse, run_ok};
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

/// Runs `slm.py`.
pub fn slm<const N: usize>(args: [&OsStr; N]) -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mount/slm.py");
    let args = std::iter::once(script.as_os_str()).chain(args);
    run_ok(crate::support::python().to_str().unwrap(), args)
}

#[test]
fn numbers_of_slm1_files_are_those_that_were_written() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("models");
    slm(["write".as_ref(), dir.as_os_str()]);
    let mount = scene.mount(&dir, &[]);
    let counts = slm(["check".as_ref(), dir.as_os_str(), mount.point.as_os_str()]);
    assert_eq!(counts, "byte 32\nbpe 32\ntied 30\nextra 35\n");
}

#[test]
fn commands_read_slm1_files() {
    require_fuse!();
    let scene = Scene::new();
    let dir = scene.mkdir("models");
    slm(["write".as_ref(), dir.as_os_str()]);
    assert_eq!(
        scene.ok("weightfs check --values models/byte.slm"),
        "models/byte.slm: note: checksum 0x0000000000001234 (unverified: its constants are not published)\n\
         models/byte.slm: OK, with 1 note (32 tensors, 200 kB; data aligned to 64 bytes; all values finite)\n"
    );
    let said = scene.ok("weightfs check models/extra.slm");
    assert!(said.contains("warning: tensors whose hash matches no documented name: 2;"), "{said}");
    let page = scene.ok("weightfs inspect models/bpe.slm");
    assert!(page.contains("\n  Quantization     SLM1: INT4, groups of 32\n"), "{page}");
    let said = scene.sh("weightfs metadata set models/bpe.slm a=b");
    assert!(said.code == 1 && said.err.contains("bpe.slm: metadata of slm1 files cannot be changed"), "{said:?}");
    // The exported file has the same codes and scales, and the same numbers.
    scene.ok("weightfs export --force models/tied.slm tied.safetensors");
    // The metadata of safetensors are strings.
    let said = scene.sh("weightfs diff --data models/tied.slm tied.safetensors");
    assert!(said.out.contains("tensors: 0 added, 0 removed, 0 changed, 30 unchanged"), "{said:?}");
    assert!(said.out.ends_with("\ndata: 0 different, 30 equal\n"), "{said:?}");
    assert!(scene.ok("weightfs inspect tied.safetensors").contains("SLM1: INT8, a scale per row"));
    // A file that is cut, and the tensors that are whole.
    let file = fs::read(dir.join("byte.slm")).unwrap();
    fs::write(dir.join("cut.slm"), &file[..file.len() - 5000]).unwrap();
    let said = scene.sh("weightfs ls models/cut.slm");
    assert!(said.code == 1 && said.err.contains("cut.slm: truncated: the data ends at byte"), "{said:?}");
    let said = scene.sh("weightfs ls --lenient models/cut.slm");
    assert!(said.code == 0 && said.out.contains("norm.weight") && said.err.contains("skipped"), "{said:?}");
}
